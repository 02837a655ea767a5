//! Views: what a statement sees, for as long as it looks.

use crate::sync::{AtomicU64, Ordering};
use crate::{Tag, Transactions};
use std::ops::Deref;
use std::sync::Arc;
use tidepool_base::CommitTs;

/// Everything that was committed up to a timestamp, and what its own transaction's earlier commands wrote.
///
/// One is only ever lent by a [`Snapshot`] or a [`HeldSnapshot`], which keep the horizon back meanwhile: what can be
/// reached under it stays where it is.
#[derive(Debug)]
pub struct View {
    /// The address of whose horizon is kept back, to be compared.
    transactions: usize,
    ts: u64,
    own: u64,
    /// Of its own transaction's writes it sees those of lower commands.
    command: u32,
    /// What is written under it bears this.
    writes_as: u32,
}

impl View {
    pub(crate) fn new(transactions: &Arc<Transactions>, ts: u64, own: Tag, command: u32) -> View {
        View { transactions: Arc::as_ptr(transactions).addr(), ts, own: own.word(), command, writes_as: command }
    }

    /// As `new`, but it sees what is written under it.
    pub(crate) fn seeing_own(transactions: &Arc<Transactions>, ts: u64, own: Tag, command: u32) -> View {
        View { command: command.saturating_add(1), writes_as: command, ..View::new(transactions, ts, own, command) }
    }

    #[inline]
    pub fn ts(&self) -> CommitTs {
        CommitTs(self.ts)
    }

    /// The transaction that looks.
    #[inline]
    pub fn own(&self) -> Tag {
        Tag(self.own)
    }

    /// Of what its own transaction wrote it sees what is marked with a lower number.
    pub fn command(&self) -> u32 {
        self.command
    }

    /// What is written under it is marked with this number.
    #[inline]
    pub fn writes_as(&self) -> u32 {
        self.writes_as
    }

    /// Whether it keeps back the horizon of these transactions.
    #[inline]
    pub fn is_of(&self, transactions: &Arc<Transactions>) -> bool {
        self.transactions == Arc::as_ptr(transactions).addr()
    }

    /// Whether it includes what `begin` dates, by command `command` of its transaction. The view must be of these
    /// transactions.
    #[inline]
    pub fn sees(&self, transactions: &Transactions, begin: &AtomicU64, command: u32) -> bool {
        loop {
            let word = begin.load(Ordering::Acquire);
            if word == self.own {
                return command < self.command;
            }
            if let Some(sees) = transactions.is_before(word, self.ts) {
                return sees;
            }
        }
    }
}

/// A view that its worker looks through.
#[derive(Debug)]
pub struct Snapshot<'w> {
    pub(crate) view: View,
    pub(crate) worker: &'w crate::Worker,
}

impl Deref for Snapshot<'_> {
    type Target = View;

    #[inline]
    fn deref(&self) -> &View {
        &self.view
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        self.worker.close_snapshot();
    }
}

/// A view that is used apart from its worker: by a cursor, or by other threads. Keeps the horizon back until dropped, even
/// after the transaction's end; what the transaction itself wrote is seen until then only.
#[derive(Debug)]
pub struct HeldSnapshot {
    pub(crate) view: View,
    pub(crate) transactions: Arc<Transactions>,
    pub(crate) slot: usize,
}

impl Deref for HeldSnapshot {
    type Target = View;

    #[inline]
    fn deref(&self) -> &View {
        &self.view
    }
}

/// A held snapshot that sees, of its own transaction, also what is written under it: what a procedure reads and writes through.
#[derive(Debug)]
pub struct ProcedureView<'h> {
    view: View,
    _held: &'h HeldSnapshot,
}

impl HeldSnapshot {
    pub fn for_procedure(&self) -> ProcedureView<'_> {
        let view = View::seeing_own(&self.transactions, self.view.ts, Tag(self.view.own), self.view.writes_as);
        ProcedureView { view, _held: self }
    }
}

impl Deref for ProcedureView<'_> {
    type Target = View;

    #[inline]
    fn deref(&self) -> &View {
        &self.view
    }
}

impl Drop for HeldSnapshot {
    fn drop(&mut self) {
        self.transactions.let_go(self.slot, self.view.ts);
    }
}
