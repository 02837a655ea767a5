//! Who writes rows without locking tables, so that others can wait for him.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use tidepool_base::Result;
use tidepool_txn::{Tag, Transactions};

/// Of a session: the tag of the transaction that writes rows now, or zero.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Activity(AtomicU64);

/// All sessions', and how many transactions have a table alone, or want it.
#[derive(Debug, Default)]
pub(crate) struct Activities {
    alone: AtomicUsize,
    all: Mutex<Vec<Arc<Activity>>>,
}

impl Activity {
    /// A transaction is about to write. False: tables are to be locked. See the module above.
    #[inline]
    pub fn begin(&self, tag: Tag, activities: &Activities) -> bool {
        // Looked at before, so that nobody waits for this transaction which may then have to wait for him.
        if activities.alone.load(Ordering::Relaxed) != 0 {
            return false;
        }
        self.0.store(tag.word(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if activities.alone.load(Ordering::Relaxed) == 0 {
            return true;
        }
        self.end();
        false
    }

    /// After the transaction's end.
    #[inline]
    pub fn end(&self) {
        self.0.store(0, Ordering::Release);
    }
}

impl Activities {
    pub fn add(&self) -> Arc<Activity> {
        let activity = Arc::<Activity>::default();
        self.all.lock().push(activity.clone());
        activity
    }

    pub fn remove(&self, activity: &Arc<Activity>) {
        self.all.lock().retain(|known| !Arc::ptr_eq(known, activity));
    }

    /// From now on who begins to write takes locks; until `not_alone`.
    pub fn alone(&self) {
        self.alone.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    pub fn not_alone(&self) {
        self.alone.fetch_sub(1, Ordering::SeqCst);
    }

    /// Waits until those are over that write without locks.
    pub fn wait(&self, transactions: &Transactions, own: Tag, interrupted: &dyn Fn() -> Result<()>) -> Result<()> {
        let all: Vec<_> = self.all.lock().clone();
        // Acquire: what they wrote is there.
        let tags = all.iter().filter_map(|activity| Tag::of_word(activity.0.load(Ordering::Acquire)));
        tags.into_iter().try_for_each(|tag| transactions.wait_for(own, tag, interrupted))
    }
}
