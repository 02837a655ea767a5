//! Merging a range: its settled rows into a row group, while everybody goes on.
//!
//! 1. Under a view of the horizon *h*, of each row the newest version up to *h* is gathered, or main's. Nobody sees an
//!    older one, now or later.
//! 2. They are encoded, and the new main takes the old one's place. Every snapshot finds the same rows before and after: a
//!    row that has a version goes by its versions, and one that has none is the same in both.
//! 3. When the horizon has passed the replacement, everybody looks at the new main, and goes by it for what it has
//!    (`RangeView`). Heads that are still what was encoded
//!    are taken out; a row that was written meanwhile keeps its versions, with main beneath them.
//!
//! A version that is found in its head at step 3 is the one that was encoded if it has a timestamp up to *h*: another one at
//! the same address would have been written since.
//!
//! Positions that are no rows are filled with another row's values, and dead. Where all that changed is deletions, the row
//! group stays, and only what is dead is replaced.
//!
//! # Adopting
//!
//! Who follows another process's log merges nothing: it *adopts* the mains that the other made ([`RowStore::adopt_main`]). The
//! steps are 2 and 3. Main is replaced when the horizon is at *h* or past it, which everybody's snapshot is then, too; heads are taken out when
//! the horizon is past the replacement. Of several mains of a range that wait for the horizon only the last one is adopted.
//! One that still waits when its process begins to write is adopted then. From that moment on others may begin with what this process
//! has: so they are told of it as of a merge.
//!
//! A row that the new main has was there at *h*. Where it has neither a head nor a place in the main before, it was deleted
//! since, and the deletion was taken out of its head, as everybody saw it and nothing was beneath it. So it is dead in what is
//! adopted.

use super::range::{MainPart, Range, WORDS};
use super::reclaim::PLAIN;
use super::store::Seen;
use super::version::{Found, Version};
use super::{RowRef, RowStore};
use crate::RowGroup;
use crate::bits::words_for;
use arrow_array::{ArrayRef, RecordBatch};
use arrow_select::interleave::interleave;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidepool_base::{CommitTs, Error, Result, RowId};
use tidepool_txn::{NEVER, Reclaim, View, Worker};

/// What came of a merge. Exhaustive and mutually exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merged {
    /// Main has been replaced; the versions that it holds are taken out by `finish_merge`.
    Replaced { rows: usize, dead: usize },
    /// Nothing was below the horizon that main does not have.
    Nothing,
    /// Another merge of the range is under way, or waits for the horizon.
    Busy,
}

/// Is told of a main before anybody finds it; its error leaves the main before where it is.
pub type TellMain<'t> = &'t mut dyn FnMut(&NewMain) -> Result<()>;

/// Another row group with the same rows, or `None` to leave the one that there is.
pub type ChangeGroup<'c> = &'c mut dyn FnMut(&Arc<RowGroup>) -> Result<Option<Arc<RowGroup>>>;

/// What lies where in a range, about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeUsage {
    /// Row ids given out.
    pub used: usize,
    /// Rows that have versions, or had until lately.
    pub headed: usize,
    /// Rows of main, dead ones included.
    pub main: usize,
    /// Of main's.
    pub dead: usize,
}

/// A main that a merge made: what it takes to have the same elsewhere.
#[derive(Clone, Debug)]
pub struct NewMain {
    /// `None`: no row is left.
    pub group: Option<Arc<RowGroup>>,
    /// Positions that are no rows, a bit each; empty when none is.
    pub dead: Vec<u64>,
    /// Of every row it has the newest version up to this timestamp, which nobody's snapshot was below.
    pub horizon: CommitTs,
}

#[derive(Debug, Default)]
pub(crate) struct MergeState {
    waiting: Option<TakingOut>,
    /// To take main's place when the horizon has come that far.
    adopting: Option<NewMain>,
}

impl MergeState {
    /// Somebody may still look at a main before the present one.
    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    fn is_settled(&self) -> bool {
        self.waiting.is_none() && self.adopting.is_none()
    }
}

/// Step 3, to be done.
#[derive(Debug)]
struct TakingOut {
    /// When main was replaced.
    after: CommitTs,
    /// Up to which timestamp versions were encoded.
    horizon: u64,
    heads: Vec<(u32, Version)>,
    /// Rows of the old main that the new one does not have as they were.
    replaced: Option<(Arc<RowGroup>, Vec<u32>)>,
}

/// Of a range's rows, where each comes from.
struct Gathered<'v> {
    images: Vec<&'v [u8]>,
    /// Per position: which of the arrays (0: main, 1: images), and which row of it.
    sources: Vec<(usize, usize)>,
    /// Positions that are no rows, as a bitmap.
    dead: Vec<u64>,
    live: usize,
    heads: Vec<(u32, Version)>,
    replaced: Vec<u32>,
}

impl NewMain {
    /// Of 64 rows, those that are there.
    fn live(&self, word: usize) -> u64 {
        let rows = self.group.as_ref().map_or(0, |group| group.rows());
        super::range::live(rows, &self.dead, word)
    }

    fn into_part(self) -> Option<MainPart> {
        self.group.map(|group| MainPart::new(group, self.dead, self.horizon.0))
    }
}

impl RowStore {
    pub fn range_usage(&self, view: &View, number: u64) -> RangeUsage {
        self.check_view(view);
        let Some(range) = self.directory.get(number) else { return RangeUsage::default() };
        let main = range.main(view);
        RangeUsage {
            used: self.used_rows(number),
            headed: range.headed_rows(),
            main: main.map_or(0, |main| main.group.rows()),
            dead: main.map_or(0, MainPart::dead_rows),
        }
    }

    /// Whether many of a range's rows that have versions were written after `since`, or are being written: what a merge would make of
    /// them would soon be replaced. Going by some of them.
    pub fn is_hot(&self, view: &View, number: u64, since: CommitTs) -> bool {
        const SAMPLE: usize = 64;
        const HOT_PER_SAMPLE: usize = 4;
        self.check_view(view);
        let Some(range) = self.directory.get(number) else { return false };
        let step = (range.headed_rows() / SAMPLE).max(1);
        let (mut seen, mut hot) = (0, 0);
        for word in 0..WORDS {
            let mut headed = range.headed(word);
            while headed != 0 {
                let position = word * 64 + headed.trailing_zeros() as usize;
                headed &= headed - 1;
                seen += 1;
                if seen % step == 0
                    && let Some(Found::Version(version)) = range.head(view, position).map(|head| head.load())
                {
                    // SAFETY: in the head under the view.
                    let header = unsafe { version.header() };
                    // A tag is above all timestamps.
                    hot += usize::from(header.begin.load(Ordering::Relaxed) > since.0);
                }
            }
        }
        hot * SAMPLE > HOT_PER_SAMPLE * (seen / step).max(1)
    }

    /// Merges what is settled of a range. `encode` makes a row group of rows in the table's columns. Holds one range's rows
    /// unencoded meanwhile; blocks nobody but other merges of the same range.
    pub fn merge_range(
        &self,
        worker: &Worker,
        number: u64,
        encode: &mut dyn FnMut(&RecordBatch) -> Result<RowGroup>,
    ) -> Result<Merged> {
        self.merge_range_telling(worker, number, encode, &mut |_| Ok(()))
    }

    /// As `merge_range`. `tell` is told of the new main before anybody finds it, and before the range is merged again; its error ends
    /// the merge, and main stays as it was. And of a main that was to be adopted first.
    pub fn merge_range_telling(
        &self,
        worker: &Worker,
        number: u64,
        encode: &mut dyn FnMut(&RecordBatch) -> Result<RowGroup>,
        tell: TellMain<'_>,
    ) -> Result<Merged> {
        self.merge_range_moving(worker, number, encode, &mut |_| Ok(None), tell)
    }

    /// As `merge_range_telling`. Where all of the range is in main, `moved` may say that the same rows are to lie elsewhere.
    pub fn merge_range_moving(
        &self,
        worker: &Worker,
        number: u64,
        encode: &mut dyn FnMut(&RecordBatch) -> Result<RowGroup>,
        moved: &mut dyn FnMut(&RowGroup) -> Result<Option<RowGroup>>,
        tell: TellMain<'_>,
    ) -> Result<Merged> {
        let Some(range) = self.directory.get(number) else { return Ok(Merged::Nothing) };
        let Some(mut state) = range.merging.try_lock() else { return Ok(Merged::Busy) };
        if !state.is_settled() && !self.settle(worker, number, range, &mut state, tell)? {
            return Ok(Merged::Busy);
        }
        self.transactions.advance_horizon();
        let pin = worker.pin_horizon();
        // A range that somebody is loading is his alone.
        if range.begin.load(Ordering::Acquire) > pin.ts().0 {
            return Ok(Merged::Nothing);
        }
        let gathered = self.gather(&pin, number, range);
        let old = range.main(&pin);
        let group = if gathered.live == 0 {
            if gathered.heads.is_empty() && old.is_none() {
                return Ok(Merged::Nothing);
            }
            None
        } else if gathered.images.is_empty() {
            let old = old.ok_or_else(|| Error::internal("rows of a range without main come from versions"))?;
            match moved(&old.group)? {
                Some(group) if group.rows() != old.group.rows() => {
                    return Err(Error::internal("a row group that was moved has other rows"));
                }
                Some(group) => Some(Arc::new(group)),
                None if gathered.live == old.live_rows() => return Ok(Merged::Nothing),
                None => Some(Arc::clone(&old.group)),
            }
        } else {
            let batch = self.batch_of(&gathered, old)?;
            let group = encode(&batch)?;
            if group.rows() != batch.num_rows() {
                return Err(Error::internal("a range's new row group has other rows"));
            }
            Some(Arc::new(group))
        };
        let live = gathered.live;
        let dead = group.as_ref().map_or(0, |group| group.rows()) - live;
        let replaced = old.map(|old| (Arc::clone(&old.group), gathered.replaced));
        let (heads, mut dead_bits) = (gathered.heads, gathered.dead);
        let horizon = pin.ts().0;
        if let Some(group) = &group {
            debug_assert!(group.rows() <= RowId::RANGE_ROWS);
            // Behind the last row that there is, an old row group may have some that are gone.
            dead_bits.resize(words_for(group.rows()), u64::MAX);
        }
        if dead == 0 {
            dead_bits = Vec::new();
        }
        let main = NewMain { group, dead: dead_bits, horizon: pin.ts() };
        tell(&main)?;
        let after = range.replace_main(main.into_part(), worker);
        drop(pin);
        state.waiting = Some(TakingOut { after, horizon, heads, replaced });
        Ok(Merged::Replaced { rows: live, dead })
    }

    fn gather<'v>(&'v self, horizon: &'v View, number: u64, range: &'v Range) -> Gathered<'v> {
        let main = range.main(horizon);
        let mut gathered = Gathered {
            images: Vec::new(),
            sources: Vec::new(),
            dead: Vec::new(),
            live: 0,
            heads: Vec::new(),
            replaced: Vec::new(),
        };
        let used = self.used_rows(number);
        for word in 0..WORDS {
            let in_main = main.map_or(0, |main| main.live(word));
            let headed = range.headed(word);
            let mut live = in_main;
            // Positions beyond the last row stay out; those before are filled when the next row is known.
            if (in_main | headed) == 0 {
                continue;
            }
            for bit in 0..64 {
                let (position, mask) = (word * 64 + bit, 1u64 << bit);
                if position >= used {
                    break;
                }
                let mut source = (in_main & mask != 0).then_some((0, position));
                if headed & mask != 0
                    && let Some(Found::Version(version)) = range.head(horizon, position).map(|head| head.load())
                {
                    let seen = self.seen(horizon, version);
                    if !matches!(seen, Seen::Main) {
                        if in_main & mask != 0 {
                            gathered.replaced.push(position as u32);
                        }
                        // SAFETY: in the head under the view.
                        let header = unsafe { version.header() };
                        if header.begin.load(Ordering::Acquire) <= horizon.ts().0 {
                            gathered.heads.push((position as u32, version));
                        }
                    }
                    match seen {
                        Seen::Main => {}
                        Seen::Deleted => {
                            live &= !mask;
                            source = None;
                        }
                        Seen::Image(image) => {
                            live |= mask;
                            source = Some((1, gathered.images.len()));
                            gathered.images.push(image);
                        }
                    }
                }
                if let Some(source) = source {
                    gathered.sources.resize(position, source);
                    gathered.sources.push(source);
                    gathered.live += 1;
                }
            }
            gathered.dead.resize(word, u64::MAX);
            gathered.dead.push(!live);
        }
        gathered
    }

    fn batch_of(&self, gathered: &Gathered<'_>, main: Option<&MainPart>) -> Result<RecordBatch> {
        let all: Vec<usize> = (0..self.layout().schema().fields().len()).collect();
        let of_images = self.layout().decode(&gathered.images, &all)?;
        // A row group is decoded as a whole only if a row of it is left.
        let uses_main = gathered.sources.iter().any(|(array, _)| *array == 0);
        let columns = (of_images.iter().enumerate())
            .map(|(column, images)| {
                let in_main: ArrayRef = match main {
                    Some(main) if uses_main => {
                        let segment = &main.group.segments()[column];
                        segment.decode(0..segment.rows())?
                    }
                    _ => images.slice(0, 0),
                };
                interleave(&[&*in_main, &**images], &gathered.sources).map_err(broken)
            })
            .collect::<Result<Vec<_>>>()?;
        RecordBatch::try_new(Arc::clone(self.layout().schema()), columns).map_err(broken)
    }

    /// Takes the versions that main holds out of their heads, if a merge of the range has come so far that it can. False:
    /// somebody still looks at the main before, so try again later.
    pub fn finish_merge(&self, worker: &Worker, number: u64) -> bool {
        self.finish_merge_telling(worker, number, &mut |_| Ok(())).unwrap_or(false)
    }

    /// As `finish_merge`. `tell` is told of a main that was to be adopted, if it takes its place now.
    pub fn finish_merge_telling(&self, worker: &Worker, number: u64, tell: TellMain<'_>) -> Result<bool> {
        let Some(range) = self.directory.get(number) else { return Ok(true) };
        let Some(mut state) = range.merging.try_lock() else { return Ok(false) };
        self.settle(worker, number, range, &mut state, tell)
    }

    /// A main waits to be adopted.
    pub fn is_adopting(&self, number: u64) -> bool {
        self.directory.get(number).is_some_and(|range| range.merging.lock().adopting.is_some())
    }

    /// Puts a main that another process made in the place of a range's: now, if nobody can have a snapshot from before what it
    /// holds, and else by [`RowStore::finish_merge`], which does the rest, too. All that it holds is applied. True when that is all
    /// done.
    pub fn adopt_main(&self, worker: &Worker, number: u64, main: NewMain) -> Result<bool> {
        let rows = main.group.as_ref().map_or(0, |group| group.rows());
        let words = if main.dead.is_empty() { 0 } else { words_for(rows) };
        if rows > RowId::RANGE_ROWS || main.dead.len() != words {
            return Err(Error::corrupted(format!("range {number} has a row group that is no range's")));
        }
        let range = self.range_to_apply(number)?;
        let mut state = range.merging.lock();
        // What was there before anything was applied may be later than some of what is applied.
        let is_later = |known: &MainPart| known.made_at() >= main.horizon.0;
        if state.adopting.is_none() && range.main(&worker.snapshot_now()).is_some_and(is_later) {
            return self.settle(worker, number, range, &mut state, &mut |_| Ok(()));
        }
        state.adopting = Some(main);
        self.settle(worker, number, range, &mut state, &mut |_| Ok(()))
    }

    /// Does what waits for the horizon, as far as that has come. True: nothing is left.
    fn settle(
        &self,
        worker: &Worker,
        number: u64,
        range: &Range,
        state: &mut MergeState,
        tell: TellMain<'_>,
    ) -> Result<bool> {
        if !self.take_out(worker, number, range, state) {
            return Ok(false);
        }
        Ok(self.adopt(worker, range, state, tell)? && self.take_out(worker, number, range, state))
    }

    fn adopt(&self, worker: &Worker, range: &Range, state: &mut MergeState, tell: TellMain<'_>) -> Result<bool> {
        let Some(main) = &state.adopting else { return Ok(true) };
        let horizon = main.horizon;
        if self.transactions.horizon() < horizon && self.transactions.advance_horizon() < horizon {
            return Ok(false);
        }
        // As it was made: what was deleted since, others find out by themselves.
        tell(main)?;
        let Some(mut main) = state.adopting.take() else { return Ok(true) };
        let view = worker.snapshot_now();
        let old = range.main(&view);
        let (mut heads, mut replaced) = (Vec::new(), Vec::new());
        for word in 0..WORDS {
            let in_old = old.map_or(0, |old| old.live(word));
            let mut headed = range.headed(word);
            if let Some(group) = &main.group
                && word < words_for(group.rows())
            {
                let gone = main.live(word) & !headed & !in_old;
                if gone != 0 {
                    main.dead.resize(words_for(group.rows()), 0);
                    main.dead[word] |= gone;
                }
            }
            while headed != 0 {
                let position = word * 64 + headed.trailing_zeros() as usize;
                headed &= headed - 1;
                let Some(Found::Version(version)) = range.head(&view, position).map(|head| head.load()) else {
                    continue;
                };
                // What main had of it may be another row's key by now. Of too many it does no harm to ask.
                if in_old >> (position % 64) & 1 != 0 {
                    replaced.push(position as u32);
                }
                // SAFETY: in the head under the view.
                if unsafe { version.header() }.begin.load(Ordering::Acquire) <= horizon.0 {
                    heads.push((position as u32, version));
                }
            }
        }
        let replaced = old.map(|old| (Arc::clone(&old.group), replaced));
        // A range that was made for others' sake shows its first main from here on. Who looked before has all rows in heads.
        let unseen = range.begin.load(Ordering::Relaxed) == NEVER.0;
        if unseen {
            range.begin.store(0, Ordering::Release);
        }
        let after = range.replace_main(main.into_part(), worker);
        drop(view);
        state.waiting = Some(TakingOut { after, horizon: horizon.0, heads, replaced });
        Ok(true)
    }

    fn take_out(&self, worker: &Worker, number: u64, range: &Range, state: &mut MergeState) -> bool {
        let Some(waiting) = &state.waiting else { return true };
        if self.transactions.horizon() <= waiting.after && self.transactions.advance_horizon() <= waiting.after {
            return false;
        }
        let Some(waiting) = state.waiting.take() else { return true };
        if let (Some(gone), Some((group, positions))) = (self.gone.get(), &waiting.replaced) {
            let horizon = worker.pin_horizon();
            for position in positions {
                let position = *position as usize;
                gone.gone(self, &horizon, RowId::new(number, position), RowRef::Main { group, position });
            }
        }
        // So that no version found in a head is another one by the time that it is taken out.
        let view = worker.snapshot_now();
        let mut taken = waiting.heads;
        taken.retain(|(position, version)| {
            let position = *position as usize;
            let there = range.head(&view, position).is_some_and(|head| head.load() == Found::Version(*version));
            // SAFETY: in the head under the view.
            there
                && unsafe { version.header() }.begin.load(Ordering::Acquire) <= waiting.horizon
                && range.take_out(&view, position, *version)
        });
        drop(view);
        range.drop_pages(worker);
        let ts = worker.retirement_ts();
        if let (false, Some(me)) = (taken.is_empty(), self.me.upgrade()) {
            let owner: Arc<dyn Reclaim> = me;
            for (position, version) in taken {
                let row = RowId::new(number, position as usize);
                worker.retire(ts, &owner, [version.marked(PLAIN), row.0]);
            }
        }
        true
    }

    /// Puts another row group in the place of a range's, with the same rows: in other tablespaces, or encoded anew.
    /// True when it was replaced.
    pub fn replace_group(&self, worker: &Worker, number: u64, change: ChangeGroup<'_>) -> Result<bool> {
        let Some(range) = self.directory.get(number) else { return Ok(false) };
        let _merging = range.merging.lock();
        let view = worker.snapshot_now();
        let Some(main) = range.main(&view) else { return Ok(false) };
        let Some(group) = change(&main.group)? else { return Ok(false) };
        if group.rows() != main.group.rows() {
            return Err(Error::internal("a range's new row group has other rows"));
        }
        range.replace_main(Some(main.with_group(group)), worker);
        Ok(true)
    }
}

fn broken(error: arrow_schema::ArrowError) -> Error {
    Error::internal(format!("a range's rows do not fit its schema: {error}"))
}
