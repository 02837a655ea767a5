//! Putting in place what another process's log says of rows, while others read.
//!
//! A change comes with its timestamp, which is above all snapshots until the whole batch is published
//! (`Transactions::follow`). It is put in the row's head as a writer's version is, but stamped; what it replaces is retired
//! as of that timestamp in this process's own horizon, by the thread that applies it, and its entries go into all indexes. So
//! readers need not know that somebody applies: they find versions that they do not see yet.
//!
//! A row's changes come in the order of their timestamps, as those of one range come to one thread at a time. What a patch
//! is a change of is in the row's head, or in main, if that was adopted and the head taken out since. Nobody waits, as whether
//! two rows may have one key was decided where the log was written.
//!
//! Beside those who apply, others take out deletions that nothing is beneath, and adopt mains: heads change under them, too.
//!
//! A range may be named before those before it. They are made for its sake, and their mains are nobody's (`NEVER`) until
//! there is one: whoever looks at a range asks since when its main is there before he looks for it.

use super::patch::Patch;
use super::range::{MainPart, Range};
use super::reclaim::{PLAIN, SUPERSEDED, TOMBSTONE};
use super::restore::GAP_MAX;
use super::sync::spin;
use super::version::{Found, Keys, Kind, Version};
use super::{RowRef, RowStore};
use crate::RowGroup;
use crate::index::{IndexKey, TableIndex};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidepool_base::{CommitTs, Error, Result, RowId};
use tidepool_index::Fingers;
use tidepool_txn::{NEVER, Reclaim, View, Worker};

/// What becomes of a row. Exhaustive and mutually exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowChange<'r> {
    Put(&'r [u8]),
    Patch(Patch<'r>),
    Delete,
}

/// A table's rows as those who apply need them.
#[derive(Clone)]
pub struct Applied {
    store: Arc<RowStore>,
    owner: Arc<dyn Reclaim>,
    indexes: Vec<Arc<TableIndex>>,
    /// What was there before anything was applied is as of this.
    checkpoint: CommitTs,
}

impl std::fmt::Debug for Applied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Applied({:?}, {} indexes)", self.store, self.indexes.len())
    }
}

impl Applied {
    /// `indexes`: all that there are over the rows. `checkpoint`: what the store has by now is as of this.
    pub fn new(store: &Arc<RowStore>, indexes: &[Arc<TableIndex>], checkpoint: CommitTs) -> Applied {
        Applied { store: Arc::clone(store), owner: Arc::clone(store) as _, indexes: indexes.to_vec(), checkpoint }
    }

    pub fn store(&self) -> &Arc<RowStore> {
        &self.store
    }

    pub fn checkpoint(&self) -> CommitTs {
        self.checkpoint
    }
}

/// What one thread keeps from row to row, for its memory.
#[derive(Default)]
pub struct Applier {
    image: Vec<u8>,
    old: Vec<u8>,
    before: IndexKey,
    /// By index: whether the key is another, and what it is.
    after: Vec<(bool, IndexKey)>,
    fingers: Fingers,
    /// Of this row, or of the rows of a load whose first it is, entries are missing: there was no memory for them.
    half: Option<RowId>,
}

/// What a row is before a change.
#[derive(Clone, Copy)]
enum Before<'v> {
    Version(Version),
    Main(&'v MainPart),
    Nothing,
}

impl Applier {
    /// Puts a change of a row in place, as of `ts`. Nobody else may be at the row's range. The view is this worker's. 53200 when
    /// memory is full: the same is to be tried again before anything else. XX001 when the change does not fit the row.
    pub fn apply(
        &mut self,
        to: &Applied,
        worker: &Worker,
        view: &View,
        row: RowId,
        change: RowChange<'_>,
        ts: CommitTs,
    ) -> Result<()> {
        let store = &*to.store;
        store.check_view(view);
        if self.half.take() == Some(row) {
            return self.enter(to, view, row);
        }
        let range = store.range_to_apply(row.range())?;
        let head = range.head_to_write(view, row.position())?;
        let mut found = head.load();
        loop {
            let before = match found {
                Found::Version(version) => Before::Version(version),
                // Whoever takes it out leaves the row to main.
                Found::TakingOut => {
                    spin();
                    // Its page may be going, too.
                    found = range.head_to_write(view, row.position())?.load();
                    continue;
                }
                Found::Pod(_) => return Err(Error::internal("a row of another process's log is in the pod")),
                Found::Null => {
                    let main = range.main(view).filter(|main| main.has(row.position()));
                    main.map_or(Before::Nothing, Before::Main)
                }
            };
            let kind = self.become_image(to, before, row, change)?;
            let keys = self.look_at_keys(to, before, row, kind)?;
            let older = if let Before::Version(version) = before { Some(version) } else { None };
            let version = Version::write(&store.memory, worker.index(), ts.0, 0, (kind, keys), older, &self.image)?;
            let placed = range.head_to_write(view, row.position()).map(|head| head.replace(older, version));
            if !matches!(placed, Ok(true)) {
                // SAFETY: nobody has seen it.
                unsafe { version.free(&store.memory) };
                found = range.head_to_write(view, row.position())?.load();
                continue;
            }
            range.mark(row.position());
            if let Some(older) = older {
                let mark = if keys == Keys::Leave { PLAIN } else { SUPERSEDED };
                worker.retire(ts, &to.owner, [older.marked(mark), row.0]);
            }
            if kind == Kind::Deleted {
                worker.retire(ts, &to.owner, [version.marked(TOMBSTONE), row.0]);
                return Ok(());
            }
            return self.enter(to, view, row);
        }
    }

    fn enter(&mut self, to: &Applied, view: &View, row: RowId) -> Result<()> {
        for (index, (changes, key)) in to.indexes.iter().zip(&self.after) {
            if *changes {
                index.enter_decided(view, row, key, &mut self.fingers).inspect_err(|_| self.half = Some(row))?;
            }
        }
        Ok(())
    }

    /// Makes what is to be the row's image, if any.
    fn become_image(&mut self, to: &Applied, before: Before<'_>, row: RowId, change: RowChange<'_>) -> Result<Kind> {
        self.image.clear();
        match change {
            RowChange::Delete => return Ok(Kind::Deleted),
            RowChange::Put(image) => {
                to.store.layout().check(image)?;
                self.image.extend_from_slice(image);
            }
            RowChange::Patch(patch) => match before {
                Before::Version(version) => {
                    // SAFETY: found in the head under the view.
                    let header = unsafe { version.header() };
                    let begin = CommitTs(header.begin.load(Ordering::Relaxed));
                    // Records come in their order, so this is the version that was there then. One that a process took from a
                    // checkpoint has that one's timestamp: here, or where the patch was made. A checksum says that it is the
                    // right one.
                    let is_base = begin <= patch.base || (begin <= to.checkpoint && patch.base <= to.checkpoint);
                    if !is_base || header.kind() != Kind::Row {
                        return Err(misfit(row, &patch, begin));
                    }
                    // SAFETY: as above.
                    patch.apply(unsafe { version.image() }, &mut self.image)?;
                }
                // It was adopted since; a checksum says that it is the right one.
                Before::Main(main) => {
                    self.old.clear();
                    to.store.layout().image_in_main(&main.group, row.position(), &mut self.old)?;
                    patch.apply(&self.old, &mut self.image)?;
                }
                Before::Nothing => return Err(misfit(row, &patch, CommitTs(0))),
            },
        }
        Ok(Kind::Row)
    }

    /// Which keys the row comes to have, and what becomes of those that it had.
    fn look_at_keys(&mut self, to: &Applied, before: Before<'_>, row: RowId, kind: Kind) -> Result<Keys> {
        if kind == Kind::Deleted {
            return Ok(Keys::Change);
        }
        let before = match before {
            // SAFETY: found in the head under the view.
            Before::Version(version) if unsafe { version.header() }.kind() == Kind::Row => {
                // SAFETY: as above.
                Some(RowRef::Version(unsafe { version.image() }))
            }
            Before::Main(main) => Some(RowRef::Main { group: &main.group, position: row.position() }),
            Before::Version(_) | Before::Nothing => None,
        };
        self.after.resize_with(to.indexes.len(), Default::default);
        let mut left = Keys::Leave;
        for (index, (changes, after)) in to.indexes.iter().zip(&mut self.after) {
            index.key_of(&to.store, RowRef::Version(&self.image), after)?;
            *changes = match before {
                Some(before) => !index.has_key(&to.store, before, after.bytes(), &mut self.before)?,
                None => true,
            };
            if *changes {
                left = match (left, index.is_unique()) {
                    (Keys::Leave | Keys::LeaveUnique, false) => Keys::LeaveUnique,
                    _ => Keys::Change,
                };
            }
        }
        Ok(left)
    }

    /// A range whose rows were loaded as a whole, as of `ts`. XX001 when it has rows already.
    pub fn apply_load(
        &mut self,
        to: &Applied,
        worker: &Worker,
        view: &View,
        number: u64,
        group: Arc<RowGroup>,
        ts: CommitTs,
    ) -> Result<()> {
        let store = &*to.store;
        store.check_view(view);
        let range = store.range_to_apply(number)?;
        let first = RowId::new(number, 0);
        if self.half.take() != Some(first) {
            if range.main(view).is_some() || range.has_marks() || group.rows() > RowId::RANGE_ROWS {
                return Err(Error::corrupted(format!("range {number} is loaded, and has rows")));
            }
            // Whoever finds main finds this: it is `NEVER` up to then, and above all snapshots from then on.
            range.begin.store(ts.0, Ordering::Release);
            range.replace_main(Some(MainPart::new(Arc::clone(&group), Vec::new(), 0)), worker);
        }
        let mut enter = |index: &TableIndex| {
            let keys = index.keys_of_group(&group)?;
            keys.in_order().try_for_each(|(key, position)| {
                index.enter_decided(view, RowId::new(number, position), key, &mut self.fingers)
            })
        };
        // Entries that are there already stay as they are.
        let entered = to.indexes.iter().try_for_each(|index| enter(index));
        if entered.is_err() {
            self.half = Some(first);
        }
        entered
    }

    /// Something else is done meanwhile.
    pub fn rest(&mut self) {
        self.fingers.rest();
    }
}

#[cold]
fn misfit(row: RowId, patch: &Patch<'_>, begin: CommitTs) -> Error {
    Error::corrupted("the log has a change of a row, and not the row").with_detail(format!(
        "Row {} was changed as it was since {}, and is as it is since {}.",
        row.0, patch.base.0, begin.0
    ))
}

impl RowStore {
    pub(super) fn range_to_apply(&self, number: u64) -> Result<&Range> {
        if let Some(range) = self.directory.get(number) {
            return Ok(range);
        }
        if number >= self.directory.len() + GAP_MAX {
            return Err(Error::corrupted(format!("a row is in range {number}, of {}", self.directory.len())));
        }
        let _adding = self.directory.adding.lock();
        while self.directory.len() <= number {
            let range = Range::new(self.heads());
            range.begin.store(NEVER.0, Ordering::Relaxed);
            self.directory.push(range);
        }
        self.directory.get(number).ok_or_else(|| Error::internal(format!("there is no range {number}")))
    }

    /// From now on this process writes, and nobody applies any more. New rows go to a new range: whoever follows in turn may still
    /// have what is gone of the last one.
    pub fn end_applying(&self, view: &View) {
        self.check_view(view);
        for number in 0..self.directory.len() {
            let Some(range) = self.directory.get(number) else { break };
            if range.begin.load(Ordering::Acquire) == NEVER.0 && range.main(view).is_none() {
                // What was made for others' sake takes part in merges.
                range.begin.store(0, Ordering::Release);
            }
        }
        self.seal();
    }
}
