//! Reading what was written at another host: statements that wait until this one shows the log up to a position.
//!
//! A host that follows keeps the position up to which it has applied all records in one word. A statement looks at it once; where that is
//! not enough, it is told by the thread that applies. The position is of what has been applied whole: a record above the
//! last floor holds it back, though later blocks have been read.
//!
//! A primary that writes nothing more says no later floor for a while. So the host says in its page what is waited for, and the
//! primary puts a mark behind it.

use super::waiters::{Answer, Waiters, answer, closing};
use super::{HostRole, Roles};
use crate::{Database, Lsn};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tidepool_base::{Error, Result, SqlState};
use tidepool_log::LogPosition;
use tidepool_pool::layout::HostNumber;

#[derive(Default)]
struct Waiting {
    waiters: Waiters<Lsn>,
    stopped: bool,
}

/// Of a host of a database that lives in a pool.
#[derive(Default)]
pub(crate) struct Positions {
    /// All up to here is shown, as [`Lsn`].
    shown: AtomicU64,
    has_waiters: AtomicBool,
    waiting: Mutex<Waiting>,
}

/// A statement that waits. Dropped, it does not wait any more.
pub struct PositionWait {
    roles: Weak<Roles>,
    number: u64,
}

impl Drop for PositionWait {
    fn drop(&mut self) {
        if let Some(roles) = self.roles.upgrade() {
            let positions = &roles.positions;
            let mut waiting = positions.waiting.lock();
            waiting.waiters.remove(self.number);
            positions.has_waiters.store(!waiting.waiters.is_empty(), Ordering::SeqCst);
        }
    }
}

impl Positions {
    /// All up to there is shown from now on.
    pub(super) fn show(&self, shown: Lsn) {
        if self.shown.load(Ordering::Relaxed) == shown.0 && !self.has_waiters.load(Ordering::SeqCst) {
            return;
        }
        // Before the look whether anybody waits, who looks at this after it said so.
        self.shown.store(shown.0, Ordering::SeqCst);
        if self.has_waiters.load(Ordering::SeqCst) {
            self.answer(|waiters| waiters.take_up_to(shown), &Ok(()));
        }
    }

    fn answer(&self, take: impl FnOnce(&mut Waiters<Lsn>) -> Vec<Answer>, outcome: &Result<()>) {
        let taken = {
            let mut waiting = self.waiting.lock();
            let taken = take(&mut waiting.waiters);
            self.has_waiters.store(!waiting.waiters.is_empty(), Ordering::SeqCst);
            taken
        };
        answer(taken, outcome);
    }

    fn answer_all(&self, outcome: &Result<()>) {
        self.answer(Waiters::take_all, outcome);
    }

    /// Tells all that wait, and takes nobody any more.
    pub(super) fn stop(&self) {
        self.waiting.lock().stopped = true;
        self.answer_all(&Err(closing()));
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
        self.positions.show(database.lsn_of(position));
    }
}

impl Database {
    /// Whether a statement that begins now sees all that was in the log up to there. Who writes the log does.
    #[inline]
    pub fn shows(&self, position: Lsn) -> bool {
        match &self.roles {
            Some(roles) if self.is_following() => roles.positions.shown.load(Ordering::Acquire) >= position.0,
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
        let positions = &roles.positions;
        let number = {
            let mut waiting = positions.waiting.lock();
            if waiting.stopped {
                drop(waiting);
                told(Err(closing()));
                return None;
            }
            let number = waiting.waiters.add(position, Box::new(told));
            positions.has_waiters.store(true, Ordering::SeqCst);
            let wanted = waiting.waiters.furthest().map_or(0, |position| position.0);
            // Under the lock, so that the furthest stays there.
            if let Err(error) = roles.host.say(HostNumber::Wanted, wanted) {
                tracing::debug!(%error, "the primary is not told what is waited for");
            }
            number
        };
        let wait = PositionWait { roles: Arc::downgrade(roles), number };
        // What came between the look and the waiter is told here.
        positions.show(Lsn(positions.shown.load(Ordering::SeqCst)));
        roles.positions_in(roles.role());
        Some(wait)
    }
}
