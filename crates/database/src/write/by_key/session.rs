//! One transaction after another, of a program that has the database inside it.

use super::access::{Access, Keeper, Work};
use crate::catalog::relation::RelationName;
use crate::database::Seat;
use crate::durability::commit::Committing;
use crate::write::activity::Activity;
use crate::write::locks::{LockMode, Locker};
use crate::{Database, Isolation, Patience};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidepool_base::{CommitTs, Error, Result, SqlState};
use tidepool_heap::QueryHeap;
use tidepool_table::MergePolicy;
use tidepool_txn::Worker;

/// Turns of a thread's other fibers before one writes the log for all of them.
const LOOKS_BEFORE_WRITING: u32 = 2;

/// How a transaction keeps tables as they are. Exhaustive and mutually exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeping {
    /// It has not written yet.
    Undecided,
    /// By its activity.
    Noted,
    /// By locks.
    Locked,
}

/// A thread's: it takes a slot among those of sessions until it is dropped. Transactions are begun and ended without anything
/// that other threads write, too.
pub struct DirectSession {
    database: Arc<Database>,
    /// Back to the database when the session is over.
    worker: Option<Worker>,
    redo: Option<crate::durability::redo::Redo>,
    work: RefCell<Work>,
    activity: Arc<Activity>,
    keeping: Cell<Keeping>,
    /// The transaction's number, and what it locked, where it did.
    locks: RefCell<(u64, BTreeMap<RelationName, LockMode>)>,
    is_synchronous: bool,
    patience: Arc<dyn Patience>,
}

impl std::fmt::Debug for DirectSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DirectSession").field("keeping", &self.keeping).finish()
    }
}

impl Database {
    /// A session for a thread of its own. 53300 when there are too many.
    pub fn direct_session(self: &Arc<Self>) -> Result<DirectSession> {
        QueryHeap::outside(|| {
            let Seat { worker, redo } = self.take_seat()?;
            Ok(DirectSession {
                database: self.clone(),
                worker: Some(worker),
                redo,
                work: RefCell::default(),
                activity: self.locks.activities().add(),
                keeping: Cell::new(Keeping::Undecided),
                locks: RefCell::default(),
                is_synchronous: true,
                patience: Arc::new(()),
            })
        })
    }

    /// Everything that was committed up to this is durable. `None`: nothing is kept beyond the process's end.
    pub fn durable(&self) -> Option<CommitTs> {
        self.log.get().map(|log| log.durable())
    }

    /// Makes what was committed durable, unless somebody is at it: what whoever does not wait for his commits calls now and then.
    pub fn flush_log(&self) -> Result<()> {
        self.log.get().map_or(Ok(()), |log| log.flush())
    }

    /// As [`Database::wait_durable`], of a fiber: the thread's others commit first, so that what they wait for is written together.
    fn wait_durable_as_fiber(&self, committed: CommitTs) -> Result<()> {
        let mut looks = 0;
        tidepool_fiber::wait_until(|| {
            looks += 1;
            looks > LOOKS_BEFORE_WRITING || self.durable().is_none_or(|durable| durable >= committed)
        });
        self.wait_durable(committed)
    }

    /// Waits until a commit is durable. 58030 when the log has failed: what became of it is known after the next start.
    pub fn wait_durable(&self, committed: CommitTs) -> Result<()> {
        let Some(log) = self.log.get() else { return Ok(()) };
        log.wait_durable(committed, || Ok(()))?;
        if let Some(copy) = self.second_tier_copy() {
            // Where it cannot be copied it is in the pool all the same.
            let _ = copy.wait(committed, || Ok(()));
        }
        Ok(())
    }
}

impl DirectSession {
    pub fn database(&self) -> &Arc<Database> {
        &self.database
    }

    /// Whether `commit` waits until the transaction is durable, as it does unless told otherwise. Where it does not, a crash may take
    /// the last commits away, and leaves none in part; [`Database::wait_durable`] waits for one of them.
    pub fn set_synchronous(&mut self, synchronous: bool) {
        self.is_synchronous = synchronous;
    }

    /// What is asked while others are waited for.
    pub fn set_patience(&mut self, patience: Arc<dyn Patience>) {
        self.patience = patience;
    }

    #[inline]
    fn worker(&self) -> &Worker {
        self.worker.as_ref().expect("a session has a worker until it is dropped")
    }

    /// Begins a transaction: of one snapshot (`REPEATABLE READ`), or serializable. 0A000 for `READ COMMITTED`, as there are no
    /// statements that could have a snapshot each.
    #[inline]
    pub fn begin(&mut self, isolation: Isolation) -> Result<DirectTransaction<'_>> {
        if isolation == Isolation::ReadCommitted {
            return Err(Error::unsupported("row access at READ COMMITTED").with_hint("Use REPEATABLE READ."));
        }
        self.database.serve_pod();
        let worker = self.worker.as_mut().expect("a session has a worker until it is dropped");
        worker.begin(isolation)?;
        if self.database.roles.is_some() {
            let ts = worker.view().ts();
            if let Err(error) = self.database.check_snapshot(ts) {
                worker.abort(|_| ());
                return Err(error);
            }
        }
        self.keeping.set(Keeping::Undecided);
        Ok(DirectTransaction { session: self, is_over: false })
    }

    /// Runs a transaction, again and again where others are in its way (40001, 40P01). Other errors end it, and nothing of it
    /// remains.
    pub fn run<T>(&mut self, isolation: Isolation, mut work: impl FnMut(Access<'_>) -> Result<T>) -> Result<T> {
        loop {
            let transaction = self.begin(isolation)?;
            let done = match work(transaction.access()) {
                Ok(value) => transaction.commit().map(|_| value),
                Err(error) => Err(error),
            };
            match done {
                Err(error) if is_retried(&error) => {}
                done => return done,
            }
        }
    }

    fn commit(&mut self) -> Result<Option<CommitTs>> {
        if self.redo.is_none() {
            // The database may have come to write a log since the session began.
            self.redo = self.database.new_redo()?;
        }
        let worker = self.worker.as_mut().expect("a session has a worker until it is dropped");
        let work = self.work.get_mut();
        let shard = worker.index();
        let patience = &self.patience;
        work.written.iter().for_each(|table| table.begin_write_of(shard));
        let commit = Committing {
            worker,
            writes: &mut work.writes,
            redo: self.redo.as_mut(),
            id: None,
            written: &BTreeMap::new(),
            // It loads none.
            places: None,
            interrupted: &|| patience.begin_wait()(),
            patience: &**patience,
        };
        let committed = commit.rows();
        work.written.iter().for_each(|table| table.end_write_of(shard));
        let committed = committed?;
        if committed.is_some() {
            if work.written.iter().any(|table| table.def.parameters.merge_policy() == MergePolicy::Immediate) {
                self.database.background.call();
            }
            self.database.rows_changed();
        }
        self.end();
        if let Some(committed) = committed
            && self.is_synchronous
        {
            match tidepool_fiber::is_fiber() {
                true => self.database.wait_durable_as_fiber(committed)?,
                false => self.database.wait_durable(committed)?,
            }
        }
        Ok(committed)
    }

    /// After the worker's transaction has ended.
    #[inline]
    fn end(&mut self) {
        let work = self.work.get_mut();
        work.written.clear();
        work.lately.clear();
        work.fingers.rest();
        work.main_images.clear();
        match self.keeping.replace(Keeping::Undecided) {
            Keeping::Undecided => {}
            Keeping::Noted => self.activity.end(),
            Keeping::Locked => {
                let (id, names) = self.locks.get_mut();
                self.database.locks.forget(*id, names.keys());
                names.clear();
            }
        }
    }

    fn roll_back(&mut self) {
        let worker = self.worker.as_mut().expect("a session has a worker until it is dropped");
        let writes = &mut self.work.get_mut().writes;
        worker.abort(|worker| writes.undo(worker));
        self.end();
    }

    #[cold]
    fn keep_slowly(&self, table: &RelationName) -> Result<()> {
        self.database.check_writes()?;
        let tag = self.worker().tag_to_write();
        if self.keeping.get() == Keeping::Undecided {
            if self.activity.begin(tag, self.database.locks.activities()) {
                self.keeping.set(Keeping::Noted);
                return Ok(());
            }
            self.keeping.set(Keeping::Locked);
            self.locks.borrow_mut().0 = self.database.take_transaction_id();
        }
        let (id, names) = &mut *self.locks.borrow_mut();
        if !names.contains_key(table) {
            let locker = Locker { tag, id: *id };
            self.database.locks.lock(locker, table, LockMode::RowExclusive, &*self.patience.begin_wait())?;
            names.insert(table.clone(), LockMode::RowExclusive);
        }
        Ok(())
    }
}

impl Keeper for DirectSession {
    #[inline]
    fn keep(&self, table: &RelationName) -> Result<()> {
        if self.keeping.get() == Keeping::Noted { Ok(()) } else { self.keep_slowly(table) }
    }

    fn interrupted(&self) -> Result<()> {
        self.patience.check()
    }
}

/// Whether the same transaction may succeed when it is run again.
fn is_retried(error: &Error) -> bool {
    matches!(error.code(), SqlState::SERIALIZATION_FAILURE | SqlState::DEADLOCK_DETECTED)
}

impl Drop for DirectSession {
    fn drop(&mut self) {
        QueryHeap::outside(|| {
            self.database.locks.activities().remove(&self.activity);
            if let Some(worker) = self.worker.take() {
                self.database.give_back(Seat { worker, redo: self.redo.take() });
            }
        });
    }
}

/// A transaction. Dropped without `commit`, it leaves nothing behind.
#[derive(Debug)]
pub struct DirectTransaction<'s> {
    session: &'s mut DirectSession,
    is_over: bool,
}

impl DirectTransaction<'_> {
    /// What it does is done through this. What is found is lent until the transaction's end.
    #[inline]
    pub fn access(&self) -> Access<'_> {
        let session = &*self.session;
        let worker = session.worker();
        Access {
            database: &session.database,
            worker,
            view: worker.view(),
            work: &session.work,
            keeper: session,
            remembers_reads: worker.isolation() == Isolation::Serializable,
            changed: None,
        }
    }

    /// Commits, and waits until that is durable unless the session does not. `None`: nothing was written. 40001 where what a
    /// serializable transaction read is not the same any more, 53100 when the log's device is full: nothing of it remains then.
    /// 58030 when the log has failed: what became of it is known after the next start.
    #[inline]
    pub fn commit(mut self) -> Result<Option<CommitTs>> {
        let committed = self.session.commit();
        // After an error it is still there, unless only the log failed.
        self.is_over = !self.session.worker().is_active();
        committed
    }

    pub fn roll_back(self) {}
}

impl Drop for DirectTransaction<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.session.roll_back();
        }
    }
}
