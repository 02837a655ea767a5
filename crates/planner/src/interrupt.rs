//! What ends a statement from outside: the client's cancel, and `statement_timeout`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result, SqlState};
use tidepool_database::Patience;
use tokio::sync::Notify;

/// One a statement.
pub struct Interrupt {
    canceled: AtomicBool,
    notify: Notify,
    deadline: Option<Instant>,
    lock_timeout: Option<Duration>,
}

impl Interrupt {
    pub fn new(statement_timeout: Option<Duration>, lock_timeout: Option<Duration>) -> Interrupt {
        Interrupt {
            canceled: AtomicBool::new(false),
            notify: Notify::new(),
            deadline: statement_timeout.map(|timeout| Instant::now() + timeout),
            lock_timeout,
        }
    }

    pub fn cancel(&self) {
        self.canceled.store(true, Ordering::Release);
        self.notify.notify_waiters();
    }

    /// The error that ends the statement, if it is to end.
    pub fn check(&self) -> Result<()> {
        if self.canceled.load(Ordering::Acquire) {
            return Err(crate::errors::canceled());
        }
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => Err(timed_out()),
            _ => Ok(()),
        }
    }

    /// A check that also ends a wait for locks begun now.
    pub fn lock_wait(&self) -> impl Fn() -> Result<()> + '_ {
        let start = Instant::now();
        move || {
            self.check()?;
            match self.lock_timeout {
                Some(timeout) if start.elapsed() >= timeout => {
                    Err(Error::new(SqlState::LOCK_NOT_AVAILABLE, "canceling statement due to lock timeout"))
                }
                _ => Ok(()),
            }
        }
    }

    /// Waits until the statement is to end.
    pub async fn wait(&self) -> Error {
        loop {
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

fn timed_out() -> Error {
    Error::new(SqlState::QUERY_CANCELED, "canceling statement due to statement timeout")
}
