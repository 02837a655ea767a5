//! Row locks that several transactions can have on one row.
//!
//! Exclusive row locks are versions of kind `Lock` in the row's head. Shared ones are entries here, in stripes by row id;
//! nobody looks at a stripe that has none.
//!
//! A writer puts its version in the head, then looks here. A locker puts its entry here, then looks at the head, with the
//! stripe's lock held; full fences between. So at least one sees the other. If the locker does, it takes its entry out
//! before it lets go of the stripe; the writer, which looks under the stripe's lock, finds the entry of a locker that did
//! not see it, and takes its version out.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use tidepool_base::RowId;
use tidepool_txn::{Status, Tag, Transactions};

/// PostgreSQL's row locks, from the weakest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowLock {
    /// `FOR KEY SHARE`: nobody deletes the row or changes its key.
    KeyShare,
    /// `FOR SHARE`: nobody changes the row.
    Share,
    /// `FOR NO KEY UPDATE`: others may have `KeyShare` only.
    NoKeyUpdate,
    /// `FOR UPDATE`: others may have nothing.
    Update,
}

impl RowLock {
    pub(super) fn is_shared(self) -> bool {
        self <= RowLock::Share
    }

    /// Whether another may have `self` while somebody writes the row, `leaves_key` saying how.
    pub(super) fn bears(self, leaves_key: bool) -> bool {
        self == RowLock::KeyShare && leaves_key
    }
}

const STRIPES: usize = 64;

type Entries = HashMap<RowId, Vec<(Tag, RowLock)>>;

#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe {
    /// Entries; looked at without the lock.
    count: AtomicUsize,
    entries: Mutex<Entries>,
}

#[derive(Debug)]
pub(super) struct RowLocks {
    stripes: Box<[Stripe]>,
}

impl RowLocks {
    pub fn new() -> RowLocks {
        RowLocks { stripes: (0..STRIPES).map(|_| Stripe::default()).collect() }
    }

    fn stripe(&self, row: RowId) -> &Stripe {
        // Rows beside each other go to different stripes.
        &self.stripes[row.0 as usize % STRIPES]
    }

    /// Enters a shared lock, and keeps it if `look` (at the head) says so. True when it is new.
    pub fn share<R>(
        &self,
        row: RowId,
        own: Tag,
        lock: RowLock,
        look: impl FnOnce() -> Result<(), R>,
    ) -> Result<bool, R> {
        let stripe = self.stripe(row);
        let mut entries = stripe.entries.lock();
        let held = entries.get(&row).and_then(|of_row| of_row.iter().find(|(tag, _)| *tag == own));
        if held.is_some_and(|(_, held)| *held >= lock) {
            return Ok(false);
        }
        stripe.count.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        match look() {
            Ok(()) => {
                entries.entry(row).or_default().push((own, lock));
                Ok(true)
            }
            Err(refused) => {
                stripe.count.fetch_sub(1, Ordering::Relaxed);
                Err(refused)
            }
        }
    }

    /// The strongest that a transaction has on a row.
    pub fn held(&self, row: RowId, own: Tag) -> Option<RowLock> {
        let entries = self.stripe(row).entries.lock();
        entries.get(&row)?.iter().filter(|(tag, _)| *tag == own).map(|(_, lock)| *lock).max()
    }

    /// Who else has a lock that a writer, whose version is in the head, has to wait for.
    #[inline(always)]
    pub fn in_the_way(&self, transactions: &Transactions, row: RowId, own: Tag, leaves_key: bool) -> Option<Tag> {
        fence(Ordering::SeqCst);
        if self.stripe(row).count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.look_for(transactions, row, own, leaves_key)
    }

    #[cold]
    fn look_for(&self, transactions: &Transactions, row: RowId, own: Tag, leaves_key: bool) -> Option<Tag> {
        let entries = self.stripe(row).entries.lock();
        let of_row = entries.get(&row)?;
        let in_the_way = |(tag, lock): &&(Tag, RowLock)| {
            *tag != own && !lock.bears(leaves_key) && transactions.status(*tag) != Status::Gone
        };
        of_row.iter().find(in_the_way).map(|(tag, _)| *tag)
    }

    /// Takes one entry of a transaction out, the last that it made for the row.
    pub fn release(&self, row: RowId, own: Tag) {
        let stripe = self.stripe(row);
        let mut entries = stripe.entries.lock();
        let Some(of_row) = entries.get_mut(&row) else { return };
        if let Some(at) = of_row.iter().rposition(|(tag, _)| *tag == own) {
            of_row.remove(at);
            stripe.count.fetch_sub(1, Ordering::Relaxed);
        }
        if of_row.is_empty() {
            entries.remove(&row);
        }
    }
}
