//! Statements on their way into their workload class ([`crate::workload`]).

use super::transaction::check_modes;
use super::{Outcome, Session};
use crate::statement::{Statement, TransactionMode};
use crate::workload::{Class, PLACE_IDLE_MAX, Place};
use std::sync::Arc;
use std::time::Duration;
use tidepool_base::Result;

impl Session {
    /// Takes a place for a statement that is planned, if it needs one, and keeps it for what is begun next ([`Session::running`]).
    /// Before the statement's snapshot is drawn, so that it sees what was committed while it waited.
    pub(super) async fn admit_planned(&mut self, statement: &Statement) -> Result<()> {
        self.place = match Class::of(statement) {
            Some(class) => {
                self.shown_here().await?;
                let class = self.settings.workload_class().unwrap_or(class);
                self.admit(class, statement.text()).await?.map(Arc::new)
            }
            None => None,
        };
        Ok(())
    }

    /// `BEGIN`: the block has its place before there is a transaction, so that there is nothing to undo where it is refused.
    pub(super) async fn begin_admitted(&mut self, text: &str, modes: &[TransactionMode]) -> Result<Outcome> {
        check_modes(modes)?;
        let is_of_class = self.settings.workload_class() != Some(Class::Analytics);
        let place = match self.block.is_none() && is_of_class {
            true => self.admit(Class::Transactions, text).await?,
            false => None,
        };
        let outcome = self.begin_block(modes)?;
        if let (Some(block), Some(place)) = (&mut self.block, place) {
            block.place = Some(place);
            block.was_admitted = true;
        }
        Ok(outcome)
    }

    /// Takes a place of a class, waiting for it where nobody waits for this session. `None`: the transaction block has it, or has it from now
    /// on. 53000 when it is refused.
    pub(super) async fn admit(&mut self, class: Class, text: &str) -> Result<Option<Place>> {
        let keeps = class == Class::Transactions;
        if keeps && self.block.as_ref().is_some_and(|block| block.place.is_some()) {
            return Ok(None);
        }
        let gate = self.planner.workload.gate(class).clone();
        let place = match gate.try_enter() {
            Some(place) => place,
            None if self.is_waited_for(class) => gate.enter(),
            None => {
                // What is waited for takes long: others may have the block's place.
                self.give_up_place();
                let query = self.planner.queries.start(self.shared.id, &self.shared.user, text);
                query.info.queued();
                let interrupt = self.interrupt();
                let place = gate.wait(keeps.then_some(&mut self.turn), &interrupt).await?;
                query.forget();
                place
            }
        };
        match &mut self.block {
            Some(block) if keeps => {
                block.place = Some(place);
                block.was_admitted = true;
                Ok(None)
            }
            _ => Ok(Some(place)),
        }
    }

    /// Whether others may wait for what the session holds, or its transaction is one that was let in already.
    fn is_waited_for(&self, class: Class) -> bool {
        let of_block = self.block.as_ref().is_some_and(|block| {
            (class == Class::Transactions && block.was_admitted)
                || block.slot.lock().as_ref().is_none_or(|transaction| transaction.holds_locks())
        });
        of_block || self.planner.advisory.holds(self.shared.id)
    }

    /// How long the session may wait for its client before its transaction's place is to be given up ([`Session::give_up_place`]).
    /// `None`: it has none.
    pub fn place_timeout(&self) -> Option<Duration> {
        self.block.as_ref().and_then(|block| block.place.as_ref()).map(|_| PLACE_IDLE_MAX)
    }

    /// Lets another transaction in while this one's client does nothing. When it goes on it does so at once.
    pub fn give_up_place(&mut self) {
        if let Some(block) = &mut self.block {
            block.place = None;
        }
    }
}
