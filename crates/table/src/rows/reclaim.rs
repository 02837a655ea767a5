//! Freeing what the horizon has passed.

use super::version::Version;
use super::{RowRef, RowStore};
use crate::RowGroup;
use std::sync::Arc;
use tidepool_base::{CommitTs, RowId};
use tidepool_txn::{HeldSnapshot, Reclaim, Retired, View, Worker};

/// A version that another one has replaced for everybody.
pub(super) const SUPERSEDED: u64 = 0;
/// A row's version whose transaction was aborted, or went back to a savepoint.
pub(super) const ABORTED: u64 = 1;
/// A version without an image of its own, or whose keys another has, too: a lock, a deletion, what main has, what was replaced
/// without a change of keys.
pub(super) const PLAIN: u64 = 2;
/// A deletion that everybody sees now: still in the row's head, it is to be taken out if main does not have the row.
pub(super) const TOMBSTONE: u64 = 3;

/// So many versions that were replaced in a temporary table are worth a look at which of them can go.
const RETIRED_MUCH: usize = 256;

/// Versions whose headers are looked at together.
const AT_ONCE: usize = 32;

/// Told of rows' images that nobody can see any more, so that an index can drop its entries for them.
pub trait Gone: Send + Sync {
    /// `was` is gone, and will be freed. Entries of other versions of the row (`RowStore::any_version`) stay. Called under
    /// no lock. `horizon` is a view of the oldest that anybody can see.
    fn gone(&self, store: &RowStore, horizon: &View, row: RowId, was: RowRef<'_>);

    /// As `gone`, of all rows of a range that was loaded by a transaction which takes it back. Nobody else ever saw one.
    fn gone_range(&self, store: &RowStore, horizon: &View, number: u64, was: &RowGroup);
}

impl Reclaim for RowStore {
    fn reclaim(&self, items: &[Retired], worker: &Worker) {
        self.free(items, worker, Worker::pin_horizon);
    }
}

impl RowStore {
    /// Frees what is out of reach. `oldest`: a view of the oldest that anybody can see of the store,
    /// below which no chain of versions is followed.
    fn free(&self, items: &[Retired], worker: &Worker, oldest: impl Fn(&Worker) -> HeldSnapshot) {
        let has_entries = |item: &Retired| Version::of_marked(item.words[0]).1 <= ABORTED;
        if let Some(gone) = self.gone.get()
            && items.iter().any(has_entries)
        {
            let horizon = oldest(worker);
            for item in items {
                let (version, mark) = Version::of_marked(item.words[0]);
                // SAFETY: retired, and freed below.
                if mark <= ABORTED && unsafe { version.header() }.kind() == super::version::Kind::Row {
                    // SAFETY: as above.
                    let image = unsafe { version.image() };
                    gone.gone(self, &horizon, RowId(item.words[1]), RowRef::Version(image));
                }
            }
        }
        for items in items.chunks(AT_ONCE) {
            // All at first: what they say of their lengths may be far, and is waited for together.
            let mut bytes = [0; AT_ONCE];
            for (item, bytes) in items.iter().zip(&mut bytes) {
                let (version, mark) = Version::of_marked(item.words[0]);
                if mark != TOMBSTONE {
                    // SAFETY: retired, and freed below.
                    *bytes = unsafe { version.header() }.bytes();
                }
            }
            for (item, bytes) in items.iter().zip(bytes) {
                let (version, mark) = Version::of_marked(item.words[0]);
                if mark == TOMBSTONE {
                    self.take_tombstone_out(version, RowId(item.words[1]), worker);
                } else {
                    // SAFETY: out of reach, and the horizon has passed the time that it came to be.
                    unsafe { version.free_bytes(&self.memory, worker.index(), bytes) };
                }
            }
        }
    }
}

/// Those of a store's retired versions that no head holds.
pub(super) fn unreached(retired: Vec<Retired>) -> impl Iterator<Item = Version> {
    retired
        .into_iter()
        .map(|item| Version::of_marked(item.words[0]))
        .filter(|(_, mark)| *mark != TOMBSTONE)
        .map(|of| of.0)
}

impl RowStore {
    /// Retires a version of the store. Those of a temporary table stay with the store: they go with it at once, or when its session has
    /// no view left, also where time stands still. `owner`: the store.
    pub(super) fn retire(&self, worker: &Worker, owner: &Arc<dyn Reclaim>, ts: CommitTs, words: [u64; 2]) {
        match self.id().is_temporary() {
            true => self.retired.lock().push(Retired { ts, words }),
            false => worker.retire(ts, owner, words),
        }
    }

    /// Frees what was replaced in a temporary table and can be found by no snapshot. `is_still`: its session, which alone looks at it, has
    /// no view of it any more, so nothing that was replaced can be found.
    pub fn free_retired(&self, worker: &Worker, is_still: bool) {
        loop {
            let is_much = self.retired.lock().len() >= RETIRED_MUCH;
            if !is_still && !is_much {
                return;
            }
            let horizon = worker.transactions().try_advance_horizon();
            let due: Vec<Retired> = self.retired.lock().extract_if(.., |item| is_still || item.ts < horizon).collect();
            if due.is_empty() {
                return;
            }
            // What deletions leave behind is retired by it. All that is replaced later is so at this time or later: whoever frees that looks no
            // further down than to what is there now.
            match is_still {
                true => self.free(&due, worker, Worker::pin_now),
                false => self.reclaim(&due, worker),
            }
        }
    }

    /// Takes a deletion out of its head, if nothing is beneath it in main. Otherwise a merge will.
    fn take_tombstone_out(&self, version: Version, row: RowId, worker: &Worker) {
        let Some(range) = self.directory.get(row.range()) else { return };
        // While somebody may look at a main from before the last merge, which may have the row, it has to stay. Whatever
        // stays is taken out after the next merge.
        let Some(_merging) = range.merging.try_lock().filter(|state| !state.is_waiting()) else { return };
        let view = worker.snapshot_now();
        if range.main(&view).is_some_and(|main| main.has(row.position())) {
            return;
        }
        // No other version comes to lie there: the row is gone for good. A merge may have taken it out already.
        if range.take_out(&view, row.position(), version) {
            // Those who found it in the head come first.
            let words = [version.marked(PLAIN), row.0];
            match self.me.upgrade() {
                Some(me) => self.retire(worker, &(me as _), worker.retirement_ts(), words),
                None => debug_assert!(false, "a store that is at work is somebody's"),
            }
        }
    }
}
