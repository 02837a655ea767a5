//! What ends a statement from outside: the client's cancel, and `statement_timeout`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result, SqlState};
use tidepool_database::Patience;
use tokio::sync::Notify;

/// Nothing has ended the statement, but perhaps its deadline.
const OPEN: u8 = 0;
/// The client cancelled it.
const CANCELED: u8 = 1;
/// Its client has the error; whoever works for it has yet to notice.
const TOLD: u8 = 2;
/// It was decided what it comes to.
const SETTLED: u8 = 3;
/// Another process is to go on with its session.
const GIVES_WAY: u8 = 4;

/// One a statement. What ends it, and what settles it, is whichever comes first: so that no client is told of the end of a statement
/// that commits.
pub struct Interrupt {
    state: AtomicU8,
    notify: Notify,
    deadline: Option<Instant>,
    lock_timeout: Option<Duration>,
    /// Waits for locks that go on now.
    lock_waits: AtomicU32,
}

/// A wait for a lock, as `pg_stat_activity` shows it while this lives.
pub struct NotedWait<'i>(&'i Interrupt);

impl Drop for NotedWait<'_> {
    fn drop(&mut self) {
        self.0.lock_waits.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A wait for a lock that may never begin: it is noted when it is first asked whether it is to end.
struct LockWait<'i> {
    interrupt: &'i Interrupt,
    start: Instant,
    noted: AtomicBool,
}

impl LockWait<'_> {
    fn look(&self) -> Result<()> {
        if !self.noted.swap(true, Ordering::Relaxed) {
            self.interrupt.lock_waits.fetch_add(1, Ordering::Relaxed);
        }
        self.interrupt.check()?;
        match self.interrupt.lock_timeout {
            Some(timeout) if self.start.elapsed() >= timeout => Err(lock_timed_out()),
            _ => Ok(()),
        }
    }
}

impl Drop for LockWait<'_> {
    fn drop(&mut self) {
        if *self.noted.get_mut() {
            self.interrupt.lock_waits.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Interrupt {
    /// `since`: when the statement began.
    pub fn new(since: Instant, statement_timeout: Option<Duration>, lock_timeout: Option<Duration>) -> Interrupt {
        Interrupt {
            state: AtomicU8::new(OPEN),
            notify: Notify::new(),
            deadline: statement_timeout.map(|timeout| since + timeout),
            lock_timeout,
            lock_waits: AtomicU32::new(0),
        }
    }

    pub fn cancel(&self) {
        if self.turn(CANCELED) == OPEN {
            self.notify.notify_waiters();
        }
    }

    /// As `cancel`, with 40001: it was no wish of its client's.
    pub fn give_way(&self) {
        if self.turn(GIVES_WAY) == OPEN {
            self.notify.notify_waiters();
        }
    }

    /// The error that ends the statement, if it is to end.
    pub fn check(&self) -> Result<()> {
        match self.state.load(Ordering::Acquire) {
            CANCELED => return Err(crate::errors::canceled()),
            GIVES_WAY => return Err(crate::errors::gives_way()),
            SETTLED => return Ok(()),
            _ => {}
        }
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => Err(timed_out()),
            _ => Ok(()),
        }
    }

    /// A check that also ends a wait for locks begun now.
    pub fn lock_wait(&self) -> impl Fn() -> Result<()> + '_ {
        let wait = LockWait { interrupt: self, start: Instant::now(), noted: AtomicBool::new(false) };
        move || wait.look()
    }

    /// Notes a wait for a lock that is not made through `lock_wait`.
    pub fn note_lock_wait(&self) -> NotedWait<'_> {
        self.lock_waits.fetch_add(1, Ordering::Relaxed);
        NotedWait(self)
    }

    /// The statement waits for another transaction now.
    pub fn waits_for_lock(&self) -> bool {
        self.lock_waits.load(Ordering::Relaxed) > 0
    }

    /// From open to another state. Returns the state before.
    fn turn(&self, to: u8) -> u8 {
        match self.state.compare_exchange(OPEN, to, Ordering::AcqRel, Ordering::Acquire) {
            Ok(before) | Err(before) => before,
        }
    }

    /// Waits until the statement is to end, and sees to it that it does: it is not settled any more.
    pub async fn wait_to_tell(&self) -> Error {
        let error = self.wait().await;
        if self.turn(TOLD) == SETTLED {
            std::future::pending::<()>().await;
        }
        error
    }

    /// Waits until the statement is to end.
    pub async fn wait(&self) -> Error {
        loop {
            if self.state.load(Ordering::Acquire) == SETTLED {
                std::future::pending::<()>().await;
            }
            let notified = self.notify.notified();
            tokio::pin!(notified);
            // Registered before the flag is read, so that no cancel falls between.
            notified.as_mut().enable();
            if let Err(error) = self.check() {
                return error;
            }
            match self.deadline {
                Some(deadline) => {
                    let _ = tokio::time::timeout_at(deadline.into(), notified).await;
                }
                None => notified.await,
            }
        }
    }
}

impl Patience for Interrupt {
    fn check(&self) -> Result<()> {
        Interrupt::check(self)
    }

    fn begin_wait(&self) -> Box<dyn Fn() -> Result<()> + '_> {
        Box::new(self.lock_wait())
    }
}

/// Of a transaction's one commit, whose client may hear of its end before it ends ([`Interrupt::wait_to_tell`]).
pub struct Settling(pub Arc<Interrupt>);

impl Patience for Settling {
    fn check(&self) -> Result<()> {
        self.0.check()
    }

    fn settle(&self) -> Result<()> {
        self.0.check()?;
        match self.0.turn(SETTLED) {
            OPEN | SETTLED => Ok(()),
            // Since it was looked at.
            _ => self.0.check().and_then(|()| Err(crate::errors::canceled())),
        }
    }

    fn begin_wait(&self) -> Box<dyn Fn() -> Result<()> + '_> {
        Box::new(self.0.lock_wait())
    }
}

/// 55P03.
pub fn lock_timed_out() -> Error {
    Error::new(SqlState::LOCK_NOT_AVAILABLE, "canceling statement due to lock timeout")
}

fn timed_out() -> Error {
    Error::new(SqlState::QUERY_CANCELED, "canceling statement due to statement timeout")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(result: Result<()>) -> bool {
        result.is_err_and(|error| error.code() == SqlState::QUERY_CANCELED)
    }

    #[tokio::test]
    async fn what_is_settled_does_not_end() {
        let interrupt = Arc::new(Interrupt::new(Instant::now(), None, None));
        let settling = Settling(interrupt.clone());
        settling.settle().unwrap();
        interrupt.cancel();
        interrupt.check().unwrap();
        settling.settle().unwrap();
        let told = tokio::time::timeout(Duration::from_millis(20), interrupt.wait_to_tell()).await;
        assert!(told.is_err(), "it was told of an end that there was not");
    }

    #[tokio::test]
    async fn what_was_told_to_end_is_not_settled() {
        let canceled = Arc::new(Interrupt::new(Instant::now(), None, None));
        canceled.cancel();
        canceled.wait_to_tell().await;
        assert!(ended(Settling(canceled.clone()).settle()) && ended(canceled.check()));
        let late = Arc::new(Interrupt::new(Instant::now(), Some(Duration::from_millis(1)), None));
        late.wait_to_tell().await;
        assert!(ended(Settling(late.clone()).settle()) && ended(late.check()));
    }
}
