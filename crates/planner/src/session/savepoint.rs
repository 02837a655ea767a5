//! `SAVEPOINT`, `RELEASE` and `ROLLBACK TO`: places within a transaction block to go back to.

use super::{Block, Outcome, Session};
use crate::execute::joined;
use crate::settings::Settings;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState};
use tidepool_heap::Reservation;

/// One of a block's savepoints. The block keeps them in order; a name may occur again, and then means its latest.
pub(super) struct Savepoint {
    name: String,
    /// `None` when the block had written nothing yet.
    state: Option<tidepool_database::Savepoint>,
    settings: Arc<Settings>,
    settings_session: Arc<Settings>,
    read_only: bool,
    /// Cursors from this number on were opened later.
    next_cursor: u64,
    _held: Option<Reservation>,
}

impl Savepoint {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn state(&self) -> Option<&tidepool_database::Savepoint> {
        self.state.as_ref()
    }

    pub(super) fn next_cursor(&self) -> u64 {
        self.next_cursor
    }

    /// Whether its name, what had been done and its settings are all that there is of it.
    pub(super) fn is_made_again(&self, block: &Block) -> bool {
        self.state.is_some() && self.read_only == block.read_only
    }

    /// As they were, and without `SET LOCAL`.
    pub(super) fn settings(&self) -> (&Arc<Settings>, &Arc<Settings>) {
        (&self.settings, &self.settings_session)
    }

    /// `settings`: as they are, and without `SET LOCAL`.
    pub(super) fn of_other_process(
        name: &str,
        state: tidepool_database::Savepoint,
        settings: (Arc<Settings>, Arc<Settings>),
        read_only: bool,
        next_cursor: u64,
    ) -> Savepoint {
        let (settings, settings_session) = settings;
        let state = Some(state);
        Savepoint { name: name.to_owned(), state, settings, settings_session, read_only, next_cursor, _held: None }
    }
}

impl Block {
    fn find_savepoint(&self, name: &str) -> Result<usize> {
        self.savepoints.iter().rposition(|savepoint| savepoint.name == name).ok_or_else(|| {
            Error::new(SqlState::INVALID_SAVEPOINT_SPECIFICATION, format!("savepoint \"{name}\" does not exist"))
        })
    }
}

impl Session {
    fn explicit_block(&mut self, what: &str) -> Result<&mut Block> {
        match &mut self.block {
            Some(block) if block.explicit => Ok(block),
            _ => Err(Error::new(
                SqlState::NO_ACTIVE_SQL_TRANSACTION,
                format!("{what} can only be used in transaction blocks"),
            )),
        }
    }

    pub(super) fn savepoint(&mut self, name: &str) -> Result<Outcome> {
        // Settings that have not changed since the last one are shared with it.
        let last = self.block.as_ref().and_then(|block| block.savepoints.last());
        let is_shared = last.is_some_and(|last| Arc::ptr_eq(&last.settings, &self.settings));
        let held = self.hold(name.len() as u64 + if is_shared { 0 } else { 2 * self.settings.bytes() })?;
        let settings = self.settings.clone();
        let next_cursor = self.next_cursor;
        let block = self.explicit_block("SAVEPOINT")?;
        let state = block.slot.lock().as_ref().map(tidepool_database::Transaction::savepoint);
        block.savepoints.push(Savepoint {
            name: name.to_owned(),
            state,
            settings,
            settings_session: block.settings_session.clone(),
            read_only: block.read_only,
            next_cursor,
            _held: held,
        });
        Ok(Outcome::command("SAVEPOINT"))
    }

    /// Keeps what was done since, and forgets the savepoint and those after it.
    pub(super) fn release(&mut self, name: &str) -> Result<Outcome> {
        let block = self.explicit_block("RELEASE SAVEPOINT")?;
        let position = block.find_savepoint(name)?;
        block.savepoints.truncate(position);
        Ok(Outcome::command("RELEASE"))
    }

    /// Undoes what was done since; the savepoint stays, those after it go. A failed block works again.
    pub(super) async fn roll_back_to(&mut self, name: &str) -> Result<Outcome> {
        let workers = self.planner.workers();
        let block = self.explicit_block("ROLLBACK TO SAVEPOINT")?;
        let position = block.find_savepoint(name)?;
        block.savepoints.truncate(position + 1);
        let savepoint = &block.savepoints[position];
        let transaction = block.slot.lock().take();
        let state = savepoint.state.clone();
        // Letting go of many rows takes its time.
        let rolled_back = workers.spawn_blocking(move || match (transaction, state) {
            (Some(mut transaction), Some(state)) => {
                transaction.roll_back_to(&state);
                Ok(Some(transaction))
            }
            (None, Some(_)) => Err(Error::internal("the transaction was lost to an earlier error; roll it all back")),
            (_, None) => Ok(None),
        });
        *block.slot.lock() = joined(rolled_back.await)?;
        // A query begun before may still fail; that no longer concerns the block.
        block.failed = Arc::default();
        block.read_only = savepoint.read_only;
        block.settings_session = savepoint.settings_session.clone();
        let (settings, next_cursor) = (savepoint.settings.clone(), savepoint.next_cursor);
        self.settings = settings;
        self.cursors.retain(|_, cursor| cursor.number < next_cursor);
        self.show_status();
        Ok(Outcome::command("ROLLBACK"))
    }
}
