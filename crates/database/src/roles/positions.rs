//! Reading what was written at another host: statements that wait until this one shows the log up to a position.
//!
//! A host that follows keeps the position up to which it has applied all records in one word. A statement looks at it once; where that is
//! not enough, it is told by the thread that applies. The position is of what has been applied whole: a record above the
//! last floor holds it back, though later blocks have been read.
//!
//! A primary that writes nothing more says no later floor for a while. So the host says in its page what is waited for, and the
//! primary puts a mark behind it.

use super::{HostRole, Roles, closing};
use crate::{Database, Lsn};
use std::sync::{Arc, Weak};
use tidepool_base::{Error, Result, SqlState};
use tidepool_log::LogPosition;
use tidepool_pool::layout::HostNumber;

/// A statement that waits. Dropped, it does not wait any more.
pub struct PositionWait {
    roles: Weak<Roles>,
    number: u64,
}

impl Drop for PositionWait {
    fn drop(&mut self) {
        if let Some(roles) = self.roles.upgrade() {
            roles.positions.remove(self.number);
        }
    }
}

impl Roles {
    /// The role is another: whoever takes over has read all that there was.
    pub(super) fn positions_in(&self, role: HostRole) {
        match role {
            HostRole::Primary => self.positions.answer_all(&Ok(())),
            HostRole::Fenced => self
                .positions
                .answer_all(&Err(Error::new(SqlState::CRASH_SHUTDOWN, "another host has taken the database over"))),
            HostRole::Failed => {
                let failure = self.state.lock().progress.failure.clone();
                self.positions.answer_all(&Err(failure.unwrap_or_else(closing)));
            }
            HostRole::Alone | HostRole::Following | HostRole::TakingOver => {}
        }
    }

    /// What this host shows the log up to.
    pub(super) fn show_position(&self, database: &Database, position: LogPosition) {
        self.positions.reach(database.lsn_of(position).0);
    }
}

impl Database {
    /// Whether a statement that begins now sees all that was in the log up to there. Who writes the log does.
    #[inline]
    pub fn shows(&self, position: Lsn) -> bool {
        match &self.roles {
            Some(roles) if self.is_following() => roles.positions.is_at(position.0),
            _ => true,
        }
    }

    /// Has `told` called once statements see the log up to there, or with why they will not. `None`: it was called already.
    pub fn when_shown(
        self: &Arc<Self>,
        position: Lsn,
        told: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Option<PositionWait> {
        let Some(roles) = self.roles.as_ref().filter(|_| !self.shows(position)) else {
            told(Ok(()));
            return None;
        };
        // Within the lock, so that the furthest stays there.
        let furthest = |wanted: u64| {
            if let Err(error) = roles.host.say(HostNumber::Wanted, wanted) {
                tracing::debug!(%error, "the primary is not told what is waited for");
            }
        };
        let number = match roles.positions.wait(position.0, Box::new(told), furthest) {
            Ok(number) => number,
            Err(told) => {
                told(Err(closing()));
                return None;
            }
        };
        let wait = PositionWait { roles: Arc::downgrade(roles), number };
        // Who changes the role after this look finds the waiter.
        roles.positions_in(roles.role());
        Some(wait)
    }
}
