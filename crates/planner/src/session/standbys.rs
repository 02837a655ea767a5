//! Waiting until standbys show what a statement committed, where the client asked for that (`synchronous_commit = remote_apply`).

use super::{Notice, Session, SessionShared};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidepool_base::{CommitTs, Error, Result, SqlState};

/// As `pg_stat_activity` shows it while this lives.
struct Noted(Arc<SessionShared>);

impl Noted {
    fn new(shared: &Arc<SessionShared>) -> Noted {
        shared.waits_for_standbys.store(true, Ordering::Relaxed);
        Noted(shared.clone())
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        self.0.waits_for_standbys.store(false, Ordering::Relaxed);
    }
}

impl Session {
    /// To be awaited before a client is told of a statement's end.
    #[inline]
    pub(super) async fn shown_by_standbys(&mut self) -> Result<()> {
        match self.current.take_commit() {
            None => Ok(()),
            Some(ts) => Box::pin(self.wait_for_standbys(ts)).await,
        }
    }

    /// As PostgreSQL, it ends with a warning where the client gives up: the commit stands.
    async fn wait_for_standbys(&mut self, ts: CommitTs) -> Result<()> {
        let database = self.planner.database().clone();
        if !database.has_synchronous_standbys() {
            return Ok(());
        }
        let (told, shown) = tokio::sync::oneshot::channel();
        let _wait = database.when_applied(ts, move |outcome| drop(told.send(outcome)))?;
        let interrupt = self.interrupt();
        let outcome = {
            let _noted = Noted::new(&self.shared);
            tokio::select! {
                biased;
                shown = shown => Some(shown),
                _ = interrupt.wait() => None,
            }
        };
        match outcome {
            Some(shown) => {
                shown.unwrap_or_else(|_| Err(Error::new(SqlState::ADMIN_SHUTDOWN, "the database is being closed")))
            }
            None => {
                let (code, message) = match self.is_terminated() {
                    true => (
                        SqlState::ADMIN_SHUTDOWN,
                        "canceling the wait for synchronous replication and terminating connection",
                    ),
                    false => (SqlState::WARNING, "canceling wait for synchronous replication due to user request"),
                };
                let error = Error::new(code, message).with_detail(
                    "The transaction has already committed locally, but might not have been replicated to the standby.",
                );
                self.notices.push(Notice { severity: "WARNING", error });
                Ok(())
            }
        }
    }
}
