//! Ranges: 131,072 row ids each, with heads, main and what says which of the two a row is in.
//!
//! # How heads come and go
//!
//! A writer marks a row as *headed* before it commits what it put in the head. The mark is taken off by whoever takes a
//! version out for good (`take_out`), between two changes of the head: to *taking out*, when no writer can put anything
//! there, and to null. So a row with a committed version that some snapshot must find is marked at all times, and a
//! scan may pass over rows that are not: a snapshot is drawn before it looks at the marks, a writer marks before it
//! draws its timestamp, and full fences between make one of the two see the other.
//!
//! A page of heads that are all null goes the same way: all of them are set to *taking out*, then the page is unlinked
//! and retired. Who was about to put a version there finds that it cannot, and looks for the page again.
//!
//! # How main is replaced
//!
//! A [`MainPart`] never changes. Another one takes its place at once, the old one is retired. Versions that the new one
//! holds are taken out when the horizon is past the replacement: whoever looks by then looks at the new one.
//!
//! They may be taken out while a scan is at the range. So it does not ask heads which of main's rows are in versions, once
//! for the rows that main shows and once more for the others: it keeps the main that it found first, and takes a version
//! up to that main's timestamp for what main shows, be it in its head or not. A later version stays as long as the scan's
//! view, as only a merge after the view was drawn can have put it into a main.

use super::page::{HeadMemory, HeadPage, PAGE_HEADS};
use super::sync::{AtomicPtr, AtomicU32, AtomicU64, Witness};
use super::version::{Found, Head, Version};
use crate::bits::words_for;
use crate::{ROW_GROUP_ROWS, RowGroup};
use parking_lot::Mutex;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use tidepool_base::{Result, RowId};
use tidepool_tablespace::Tablespace;
use tidepool_txn::{Tag, View, Worker};

const _: () = assert!(RowId::RANGE_ROWS == ROW_GROUP_ROWS);

/// Of a range that have heads: models have few.
const ROWS: usize = if cfg!(loom) { PAGE_HEADS } else { RowId::RANGE_ROWS };
const PAGES: usize = ROWS / PAGE_HEADS;
pub(crate) const WORDS: usize = ROWS / 64;

/// A range's rows in main.
#[derive(Debug)]
pub struct MainPart {
    pub group: Arc<RowGroup>,
    /// Positions that are no rows: deleted, or never used. Where a word is missing, none.
    dead: Vec<u64>,
    live_rows: usize,
    /// Of every row it has the newest version up to this timestamp. Zero: it has been there before all versions.
    upto: u64,
    /// As it was when a merge made it, wherever that was. So of two mains of a range it is known which is the later one.
    made_at: u64,
    witness: Witness,
}

impl MainPart {
    /// `dead` has a bit for each row of the group, or is empty when none is dead.
    pub(crate) fn new(group: Arc<RowGroup>, dead: Vec<u64>, upto: u64) -> MainPart {
        let mut part = MainPart { group, dead, live_rows: 0, upto, made_at: upto, witness: Witness::written() };
        part.live_rows = match part.is_whole() {
            true => part.group.rows(),
            false => (0..words_for(part.group.rows())).map(|word| part.live(word).count_ones() as usize).sum(),
        };
        part
    }

    /// One that has been there before all versions, and that a merge elsewhere made.
    pub(crate) fn restored(group: Arc<RowGroup>, dead: Vec<u64>, made_at: u64) -> MainPart {
        let mut part = MainPart::new(group, dead, 0);
        part.made_at = made_at;
        part
    }

    pub(crate) fn with_group(&self, group: Arc<RowGroup>) -> MainPart {
        MainPart {
            group,
            dead: self.dead.clone(),
            live_rows: self.live_rows,
            upto: self.upto,
            made_at: self.made_at,
            witness: Witness::written(),
        }
    }

    pub(super) fn upto(&self) -> u64 {
        self.upto
    }

    /// The horizon of the merge that made it; zero: none did.
    pub fn made_at(&self) -> u64 {
        self.made_at
    }

    /// The rows of word `word` that are there.
    #[inline]
    pub fn live(&self, word: usize) -> u64 {
        live(self.group.rows(), &self.dead, word)
    }

    #[inline]
    pub fn has(&self, position: usize) -> bool {
        self.live(position / 64) >> (position % 64) & 1 != 0
    }

    /// No row is dead.
    pub fn is_whole(&self) -> bool {
        self.dead.is_empty()
    }

    pub fn live_rows(&self) -> usize {
        self.live_rows
    }

    pub fn dead_rows(&self) -> usize {
        self.group.rows() - self.live_rows()
    }
}

/// Of `rows` rows those of word `word` that are not dead.
#[inline]
pub(super) fn live(rows: usize, dead: &[u64], word: usize) -> u64 {
    let rows = rows.saturating_sub(word * 64);
    let all = if rows >= 64 { u64::MAX } else { (1 << rows) - 1 };
    all & !dead.get(word).copied().unwrap_or(0)
}

impl Drop for MainPart {
    fn drop(&mut self) {
        self.witness.freed();
    }
}

#[derive(Debug)]
pub(crate) struct Range {
    pages: Box<[AtomicPtr<HeadPage>]>,
    /// Made with the first head.
    headed: OnceLock<Box<[AtomicU64]>>,
    /// From `Arc::into_raw`, or null.
    main: AtomicPtr<MainPart>,
    /// Since when main is there at all: zero, unless the range was loaded by a transaction.
    pub begin: AtomicU64,
    pub command: AtomicU32,
    /// Held while main is replaced, or pages are dropped.
    pub merging: Mutex<super::merge::MergeState>,
    heads: Arc<HeadMemory>,
}

impl Range {
    pub fn new(heads: &Arc<HeadMemory>) -> Range {
        Range {
            pages: (0..PAGES).map(|_| AtomicPtr::default()).collect(),
            headed: OnceLock::new(),
            main: AtomicPtr::default(),
            begin: AtomicU64::new(0),
            command: AtomicU32::new(0),
            merging: Mutex::default(),
            heads: Arc::clone(heads),
        }
    }

    pub fn loaded(heads: &Arc<HeadMemory>, main: MainPart, tag: Tag, command: u32) -> Range {
        let range = Range::new(heads);
        range.main.store(Arc::into_raw(Arc::new(main)).cast_mut(), Ordering::Relaxed);
        range.begin.store(tag.word(), Ordering::Relaxed);
        range.command.store(command, Ordering::Relaxed);
        range
    }

    /// # Safety
    /// The page's going is put off for `'v`: by a view, or by something in the head that stays.
    #[inline]
    pub unsafe fn head_unpinned<'v>(&self, position: usize) -> Option<&'v Head> {
        // Acquire: the page's heads were made null before.
        let page = self.pages[position / PAGE_HEADS].load(Ordering::Acquire);
        // SAFETY: null, or a page, which is retired when it is unlinked.
        unsafe { page.as_ref() }.map(|page| &page.0[position % PAGE_HEADS])
    }

    #[inline]
    pub fn head<'v>(&'v self, _view: &'v View, position: usize) -> Option<&'v Head> {
        // SAFETY: the view was drawn before this look.
        unsafe { self.head_unpinned(position) }
    }

    /// The head, made if need be. It may be on its way out; then nothing can be put there. 53200 when the tablespaces are full.
    #[inline]
    pub fn head_to_write<'v>(&'v self, view: &'v View, position: usize) -> Result<&'v Head> {
        loop {
            match self.head(view, position) {
                Some(head) => return Ok(head),
                None => self.add_page(position)?,
            }
        }
    }

    #[cold]
    fn add_page(&self, position: usize) -> Result<()> {
        let page = self.heads.take()?;
        let slot = &self.pages[position / PAGE_HEADS];
        let null = std::ptr::null_mut();
        if slot.compare_exchange(null, page.as_ptr(), Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // SAFETY: made above, and seen by nobody.
            unsafe { self.heads.give_back(page) };
        }
        Ok(())
    }

    /// Gives back pages of heads that are all null. Under `merging`.
    pub fn drop_pages(&self, worker: &Worker) {
        for index in 0..PAGES {
            let page = self.pages[index].load(Ordering::Acquire);
            // SAFETY: null, or a page; and pages are unlinked here only, under the lock.
            let Some(heads) = (unsafe { page.as_ref() }).map(|page| &page.0) else { continue };
            if heads.iter().any(|head| head.load() != Found::Null) {
                continue;
            }
            let closed = heads.iter().take_while(|head| head.begin_taking_away()).count();
            if closed < PAGE_HEADS {
                heads[..closed].iter().for_each(Head::end_taking_out);
                continue;
            }
            let words = PAGE_HEADS / 64;
            for mark in &self.marks()[index * words..(index + 1) * words] {
                mark.store(0, Ordering::Relaxed);
            }
            // Release: whoever makes the page anew finds no mark.
            self.pages[index].store(std::ptr::null_mut(), Ordering::Release);
            let (memory, address) = (Arc::clone(&self.heads), page.expose_provenance());
            worker.retire_with(worker.retirement_ts(), move || {
                let page = std::ptr::with_exposed_provenance_mut::<HeadPage>(address);
                let page = NonNull::new(page).expect("a page's address");
                // SAFETY: from `take`, unlinked once, and nobody looks at it any more.
                unsafe { memory.give_back(page) };
            });
        }
    }

    /// Heads lie in memory that `space` is to give up.
    pub fn must_move(&self, space: &Tablespace) -> bool {
        let pages = self.pages.iter().map(|page| page.load(Ordering::Acquire).addr());
        pages.into_iter().any(|address| address != 0 && space.is_page_closing(address))
    }

    fn marks(&self) -> &[AtomicU64] {
        self.headed.get_or_init(|| (0..WORDS).map(|_| AtomicU64::new(0)).collect())
    }

    /// Marks a row as headed, before what is in its head is committed.
    #[inline(always)]
    pub fn mark(&self, position: usize) {
        let (word, bit) = (&self.marks()[position / 64], 1 << (position % 64));
        // Nobody takes the mark off while the writer's version is in the head.
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::AcqRel);
        }
    }

    /// Of 64 rows, those that may have heads.
    #[inline]
    pub fn headed(&self, word: usize) -> u64 {
        self.headed.get().map_or(0, |marks| marks[word].load(Ordering::Acquire))
    }

    /// A row had a version at some time.
    #[inline]
    pub fn has_marks(&self) -> bool {
        self.headed.get().is_some()
    }

    pub fn headed_rows(&self) -> usize {
        self.headed
            .get()
            .map_or(0, |marks| marks.iter().map(|word| word.load(Ordering::Relaxed).count_ones() as usize).sum())
    }

    /// Takes `version` out of the head if it is there, so that main has the row. Everybody who looks at it from now on
    /// finds main to show the same.
    pub fn take_out(&self, view: &View, position: usize, version: Version) -> bool {
        let Some(head) = self.head(view, position) else { return false };
        if !head.begin_taking_out(version) {
            return false;
        }
        self.marks()[position / 64].fetch_and(!(1 << (position % 64)), Ordering::AcqRel);
        head.end_taking_out();
        true
    }

    /// As of the view, which keeps it from being freed.
    #[inline]
    pub fn main<'v>(&'v self, _view: &'v View) -> Option<&'v MainPart> {
        // SAFETY: null, or from `replace_main`: it is retired when it is replaced, and the view was drawn before this
        // look.
        unsafe { self.main.load(Ordering::Acquire).as_ref() }.inspect(|main| main.witness.read())
    }

    /// As `main`, to be kept beyond the view.
    pub fn main_to_keep(&self, view: &View) -> Option<Arc<MainPart>> {
        let main = std::ptr::from_ref(self.main(view)?);
        // SAFETY: from `Arc::into_raw`, whose count is given up when what was replaced is freed: not under the view.
        unsafe {
            Arc::increment_strong_count(main);
            Some(Arc::from_raw(main))
        }
    }

    /// Puts another main in place, and retires the old one. Only under `merging`, or by whoever loaded the range and
    /// aborts. Returns the time of the replacement.
    pub fn replace_main(&self, new: Option<MainPart>, worker: &Worker) -> tidepool_base::CommitTs {
        let new = new.map_or(std::ptr::null_mut(), |new| Arc::into_raw(Arc::new(new)).cast_mut());
        let old = NonNull::new(self.main.swap(new, Ordering::AcqRel));
        let ts = worker.retirement_ts();
        if let Some(old) = old {
            // SAFETY: from `Arc::into_raw`, and replaced once.
            let old = unsafe { Arc::from_raw(old.as_ptr().cast_const()) };
            worker.retire_with(ts, move || drop(old));
        }
        ts
    }

    /// Every version that a head holds. Nobody else uses the range any more.
    pub fn heads_left(&mut self) -> impl Iterator<Item = Version> {
        let pages = self.pages.iter().map(|page| page.load(Ordering::Acquire));
        // SAFETY: null, or pages that live as long as the range.
        let pages: Vec<&HeadPage> = pages.filter_map(|page| unsafe { page.as_ref() }).collect();
        pages.into_iter().flat_map(|page| page.0.iter()).filter_map(|head| match head.load() {
            Found::Version(version) => Some(version),
            // What is beneath a row in the pod is the pod's member's to free.
            Found::Null | Found::TakingOut | Found::Pod(_) => None,
        })
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        for page in &self.pages {
            if let Some(page) = NonNull::new(page.load(Ordering::Acquire)) {
                // SAFETY: from `take`, and nobody uses the range any more.
                unsafe { self.heads.give_back(page) };
            }
        }
        if let Some(main) = NonNull::new(self.main.load(Ordering::Acquire)) {
            // SAFETY: from `Arc::into_raw`, and not replaced.
            drop(unsafe { Arc::from_raw(main.as_ptr().cast_const()) });
        }
    }
}

/// Ranges of the first segment of the directory; each further one has as many as all before it.
const SEGMENT_RANGES: u64 = 32;

type Segment = OnceLock<Box<[OnceLock<Box<Range>>]>>;

/// All ranges of a table by number, found without a lock.
#[derive(Debug)]
pub(crate) struct Directory {
    segments: Box<[Segment]>,
    /// Ranges that there are. Published after they are made.
    count: AtomicU64,
    /// Held to add a range.
    pub adding: Mutex<()>,
}

impl Directory {
    pub fn new() -> Directory {
        Directory {
            segments: (0..64 - RowId::POSITION_BITS).map(|_| OnceLock::new()).collect(),
            count: AtomicU64::new(0),
            adding: Mutex::default(),
        }
    }

    /// Segment and place within it.
    #[inline]
    fn place(number: u64) -> (usize, usize) {
        let segment = (number / SEGMENT_RANGES + 1).ilog2();
        let first = SEGMENT_RANGES * ((1 << segment) - 1);
        (segment as usize, (number - first) as usize)
    }

    #[inline]
    pub fn get(&self, number: u64) -> Option<&Range> {
        let (segment, place) = Directory::place(number);
        self.segments.get(segment)?.get()?.get(place)?.get().map(|range| &**range)
    }

    pub fn len(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Adds a range behind the others. Under `adding`.
    pub fn push(&self, range: Range) -> u64 {
        let number = self.len();
        let (segment, place) = Directory::place(number);
        let ranges =
            self.segments[segment].get_or_init(|| (0..SEGMENT_RANGES << segment).map(|_| OnceLock::new()).collect());
        let added = ranges[place].set(Box::new(range));
        debug_assert!(added.is_ok(), "a range is added once, under the lock");
        self.count.store(number + 1, Ordering::Release);
        number
    }

    pub fn ranges_mut(&mut self) -> impl Iterator<Item = &mut Range> {
        let segments = self.segments.iter_mut().filter_map(OnceLock::get_mut);
        segments.flat_map(|ranges| ranges.iter_mut().filter_map(OnceLock::get_mut)).map(|range| &mut **range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_place_of_its_own() {
        let (mut segment, mut place) = (0, 0);
        for number in 0..10_000 {
            assert_eq!(Directory::place(number), (segment, place));
            place += 1;
            if place as u64 == SEGMENT_RANGES << segment {
                (segment, place) = (segment + 1, 0);
            }
        }
        let last = Directory::place((1 << (64 - RowId::POSITION_BITS)) - 1);
        assert!(last.0 < 64 - RowId::POSITION_BITS as usize);
    }
}
