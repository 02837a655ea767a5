//! A connection that writes down where it stands, for a process that comes after this one ([`crate::kept`]).

use super::Connection;
use crate::kept::{self, Block, Keeper, SessionForm};
use crate::protocol::frontend::Message;
use std::sync::Arc;
use tidepool_base::Result;
use tidepool_heap::{ClientAccount, Held, Reservation};
use tidepool_planner::{Statement, TransactionStatus, Unfinished};

/// `Sync`, which has nothing in it.
const SYNC_BYTES: usize = 5;

/// What a connection keeps of itself.
pub(super) struct Settling {
    keeper: Arc<Keeper>,
    /// Something was done since the session was written down that may be another one by it.
    is_changed: bool,
    sequences: u64,
    /// Something was done in the transaction that is open.
    is_worked_in: bool,
    /// For what the pages take.
    held: Reservation,
}

impl Settling {
    /// An error where there is no memory for the pages.
    pub(super) fn new(keeper: Arc<Keeper>, account: &Arc<ClientAccount>) -> Result<Settling> {
        let held = account.reserve(Held::Sessions, kept::FIRST_BYTES)?;
        Ok(Settling { keeper, is_changed: true, sequences: 0, is_worked_in: false, held })
    }

    pub(super) fn keeper(&self) -> &Arc<Keeper> {
        &self.keeper
    }
}

/// What comes of the answer behind a statement that runs next, if it commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Its tag, and that the connection is ready.
    Tag,
    /// The same, as the `Sync` that is there asks.
    Synced,
    /// Its tag is there: that the connection is ready.
    Ready,
    /// Something else.
    None,
}

impl Connection {
    /// Something runs that may leave the session another one than it was.
    #[inline]
    pub(super) fn session_changes(&mut self) {
        if let Some(settling) = &mut self.settling {
            settling.is_changed = true;
        }
    }

    /// A statement went to its rows by itself.
    #[inline]
    pub(super) fn worked_in_block(&mut self) {
        if let Some(settling) = &mut self.settling {
            settling.is_worked_in |=
                self.implicit_block || self.session.transaction_status() != TransactionStatus::Idle;
        }
    }

    /// All that was asked is answered in `output`: puts it down before it is sent.
    pub(super) fn settle(&mut self) {
        let form = self.session_form(false);
        let Some(settling) = &mut self.settling else { return };
        let block = self.session.portable_block(!settling.is_worked_in);
        settling.is_worked_in &= block.is_some();
        let (form, block) = match Block::of(block.as_ref()) {
            Some(block) => (form, block),
            None => {
                settling.is_changed = true;
                (SessionForm::Unknown, Block::None)
            }
        };
        settling.keeper.settle(&self.wire.input, &self.wire.output, form, block);
    }

    /// Where an extended statement ends what the client sent together: the next message is its `Sync`.
    pub(super) fn ending_of_extended(&self) -> Ending {
        match !self.implicit_block && Message::next_is_sync(&self.wire.input) {
            true => Ending::Synced,
            false => Ending::None,
        }
    }

    /// A statement runs next by a plan.
    pub(super) fn executes(&mut self, statement: &Statement, ending: Ending) {
        let in_block = self.session.transaction_status() != TransactionStatus::Idle;
        let Some(settling) = &mut self.settling else { return };
        match statement.is_block_control() {
            // What it was set within the block is the session's from now on, or is not any more.
            true => settling.is_changed |= !self.session.block_leaves_session(),
            false => {
                settling.is_changed = true;
                settling.is_worked_in |= in_block || self.implicit_block;
            }
        }
        match statement.unfinished() {
            Unfinished::BeginsAnew => {}
            Unfinished::Fails => settling.keeper.begins(),
            Unfinished::IsUnknown => settling.keeper.runs_once(),
        }
        self.expect_commit(if statement.commits_with_tag(in_block) { ending } else { Ending::None });
        // By functions that it calls, whatever was written down before.
        if !statement.is_block_control() {
            self.session_changes();
        }
    }

    /// A statement runs next that may commit, or all that was done in an implicit block is committed next.
    pub(super) fn expect_commit(&mut self, ending: Ending) {
        let Some(settling) = &self.settling else { return };
        if ending == Ending::None || !settling.keeper.is_wanted() {
            return settling.keeper.expect_nothing();
        }
        let form = self.session_form(true);
        let Some(settling) = &mut self.settling else { return };
        // It may be known once the transaction has ended.
        settling.is_changed = matches!(form, SessionForm::Unknown);
        let done = if ending == Ending::Synced { SYNC_BYTES } else { 0 };
        let left = self.wire.input.len().saturating_sub(done);
        let sequences = settling.sequences;
        settling.keeper.expect(left, &self.wire.output, form, ending == Ending::Ready, sequences);
    }

    /// The session, if it may have changed since it was written down. `ended`: as it is once its transaction is committed.
    fn session_form(&mut self, ended: bool) -> SessionForm {
        let sequences = match &self.settling {
            Some(_) => self.session.sequences_revision(),
            None => return SessionForm::Unknown,
        };
        let is_changed = |settling: &Settling| settling.is_changed || settling.sequences != sequences;
        if !self.settling.as_ref().is_some_and(is_changed) {
            return SessionForm::Unchanged;
        }
        let bytes = self.session_bytes(ended);
        let Some(settling) = &mut self.settling else { return SessionForm::Unknown };
        (settling.is_changed, settling.sequences) = (false, sequences);
        match bytes {
            Some(bytes) if settling.held.resize(kept::FIRST_BYTES + kept::session_pages(bytes.len())).is_ok() => {
                SessionForm::Bytes(bytes)
            }
            _ => SessionForm::Unknown,
        }
    }
}
