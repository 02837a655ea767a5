//! Commits of one thread's sessions, which wait for the log together.
//!
//! Without this each commit wakes the thread that syncs the log, and is woken by it across threads: two switches a commit, which
//! cost more than the commit. Here a task of the sessions' own thread asks the log for all commits that were decided since it
//! last ran, and is woken once for all that became durable. It comes behind the tasks that are ready already, so that it
//! asks for what they commit, too.

use parking_lot::Mutex;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tidepool_base::{CommitTs, Error, Result};
use tidepool_database::Database;
use tokio::sync::{Notify, oneshot};

struct Waiter {
    ts: CommitTs,
    told: oneshot::Sender<Result<()>>,
}

struct Commits {
    database: Weak<Database>,
    /// Only this thread's, so nobody waits for the lock.
    waiting: Mutex<Vec<Waiter>>,
    /// What the log has been asked for so far.
    asked: AtomicU64,
    durable: AtomicU64,
    failure: Mutex<Option<Error>>,
    /// Somebody came to wait, or something became durable.
    changed: Notify,
    /// The task is there.
    is_served: AtomicBool,
}

thread_local! {
    static COMMITS: RefCell<Option<Arc<Commits>>> = const { RefCell::new(None) };
}

/// Those who wait are told that nobody serves them: their channels close.
struct Served(Arc<Commits>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.is_served.store(false, Ordering::Release);
        self.0.waiting.lock().clear();
    }
}

/// Has commits of sessions that run on this thread wait for the log together. To be called once, within a runtime that has this thread
/// and no other, and that the thread serves to its end.
pub fn share_commits(database: &Arc<Database>) {
    let commits = Arc::new(Commits {
        database: Arc::downgrade(database),
        waiting: Mutex::default(),
        asked: AtomicU64::new(0),
        durable: AtomicU64::new(0),
        failure: Mutex::default(),
        changed: Notify::new(),
        is_served: AtomicBool::new(true),
    });
    COMMITS.set(Some(commits.clone()));
    tokio::spawn(async move {
        let served = Served(commits);
        loop {
            served.0.changed.notified().await;
            served.0.tell();
            if !Commits::ask(&served.0) {
                return;
            }
        }
    });
}

/// Told when a commit is durable, or why it is not; the channel closes when the database does. `None` on threads whose commits do not wait
/// together, and of another database.
pub(super) fn shared(database: &Arc<Database>, ts: CommitTs) -> Option<oneshot::Receiver<Result<()>>> {
    COMMITS.with_borrow(|commits| {
        let commits = commits.as_ref()?;
        let is_own = std::ptr::eq(commits.database.as_ptr(), Arc::as_ptr(database));
        (is_own && commits.is_served.load(Ordering::Acquire)).then_some(())?;
        let (told, durable) = oneshot::channel();
        commits.waiting.lock().push(Waiter { ts, told });
        commits.changed.notify_one();
        Some(durable)
    })
}

impl Commits {
    /// Asks the log for what it has not been asked for. False: the database is gone.
    fn ask(this: &Arc<Commits>) -> bool {
        let last = this.waiting.lock().iter().map(|waiter| waiter.ts.0).max().unwrap_or(0);
        if last <= this.asked.load(Ordering::Relaxed) {
            return true;
        }
        this.asked.store(last, Ordering::Relaxed);
        let Some(database) = this.database.upgrade() else { return false };
        let commits = this.clone();
        database.when_durable(CommitTs(last), move |outcome| {
            match outcome {
                Ok(()) => drop(commits.durable.fetch_max(last, Ordering::AcqRel)),
                Err(error) => drop(commits.failure.lock().get_or_insert(error)),
            }
            commits.changed.notify_one();
        });
        true
    }

    /// Tells those whose commits are durable, and after a failure everybody.
    fn tell(&self) {
        let durable = self.durable.load(Ordering::Acquire);
        let failure = self.failure.lock().clone();
        let mut waiting = self.waiting.lock();
        let told: Vec<Waiter> = waiting.extract_if(.., |one| one.ts.0 <= durable || failure.is_some()).collect();
        drop(waiting);
        for Waiter { ts, told } in told {
            let outcome = match &failure {
                Some(failure) if ts.0 > durable => Err(failure.clone()),
                _ => Ok(()),
            };
            // Who waited may be gone.
            let _ = told.send(outcome);
        }
    }
}
