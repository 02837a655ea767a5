//! Rows that statements read and write one by one, without a plan of operators between them and the rows.
//!
//! Such a statement runs on a thread that serves others too, so it may not sleep there: its transaction is in a hurry
//! ([`Transaction::set_hurried`]). Where it would have to wait for another transaction, what it did is undone
//! ([`Transaction::undo_statement`]), and it begins again on a thread that may sleep.

use crate::catalog::relation::RelationName;
use crate::write::references::{ReferencesSavepoint, Watch};
use crate::write::rows::RowWrite;
use crate::write::transaction::table_of;
use crate::{AccessLog, Database, DatabaseVersion, DirectRead, Transaction};
use std::sync::Arc;
use std::time::Duration;
use tidepool_base::{CommitTs, Error, Result, RowId, SqlState};
use tidepool_heap::QueryHeap;
use tidepool_index::key::KeyBounds;
use tidepool_table::rows::{Outcome, ScanRead};
use tidepool_table::{ColumnFilter, IndexAccess, Table, TableIndex};
use tidepool_txn::{HeldSnapshot, Isolation, View};

/// What a transaction had written when a statement began.
#[derive(Debug)]
pub struct StatementMark {
    writes: tidepool_table::rows::Savepoint,
    references: ReferencesSavepoint,
}

/// What is looked at of each row that a statement changes. Kept from row to row.
pub struct ChangeWatch(RowWrite);

impl Transaction {
    /// Whether it may not sleep until other transactions are over. What would take that is then an error, of whatever kind,
    /// and [`Transaction::was_held_up`].
    pub fn set_hurried(&self, hurried: bool) {
        self.worker().set_hurried(hurried);
    }

    /// It was to sleep since `set_hurried`.
    pub fn was_held_up(&self) -> bool {
        self.worker().was_held_up()
    }

    /// Has `call` told when it may be tried again what it was held up in. False: that is not known, and it is to be tried where
    /// it may sleep. 40P01 where it would wait for ever.
    pub fn when_free(&self, call: impl FnOnce() + Send + 'static) -> Result<bool> {
        self.worker().when_free(call)
    }

    /// `when_free` is not told any more.
    pub fn stop_waiting(&self) {
        self.worker().stop_waiting();
    }

    pub fn mark_statement(&self) -> StatementMark {
        QueryHeap::outside(|| StatementMark {
            writes: self.writes.savepoint(),
            references: self.references.savepoint(),
        })
    }

    /// Goes on with a statement whose writes were undone, over what it saw when it began.
    pub fn resume_statement(&mut self, version: &Arc<DatabaseVersion>) {
        self.statement = Some(Arc::clone(version));
    }

    /// Undoes what was written since. Locks of tables stay.
    pub fn undo_statement(&mut self, mark: &StatementMark) {
        QueryHeap::outside(|| {
            self.end_statement();
            if let Some(worker) = &self.worker {
                // What is undone is reached under it.
                let _view = worker.snapshot_now();
                self.writes.undo_to(mark.writes, worker);
            }
            self.references.roll_back_to(&mark.references);
        });
    }

    /// A table whose rows the statement that runs is to write or lock, its lock shared. `None` where it was moved or emptied,
    /// or anything else of what exists changed, since the statement's view was drawn: the statement is to begin again, as of now. 40001 where it cannot, as the
    /// transaction has one snapshot.
    pub fn table_to_write(&mut self, name: &RelationName) -> Result<Option<Arc<Table>>> {
        QueryHeap::outside(|| {
            self.lock_rows(name)?;
            let now = self.state();
            let table = table_of(&now, name)?;
            let statement = self.statement()?;
            let seen = statement.state().table(name).is_some_and(|seen| Arc::ptr_eq(&seen.rows, &table.rows));
            if !seen {
                self.refuse_newer()?;
                return Ok(None);
            }
            // Others may have changed what the program was made over, privileges among it, while it waited for the lock: the general
            // path looks at what of it.
            if !Arc::ptr_eq(statement.state(), &now) || !self.is_up_to_date() {
                return Ok(None);
            }
            self.written.insert(table.def.id, table.clone());
            Ok(Some(table))
        })
    }

    /// Adds a row by its image, and its entries to the indexes. 23505 where a key is taken.
    pub fn insert_image(&mut self, table: &Arc<Table>, view: &View, image: &[u8]) -> Result<RowId> {
        QueryHeap::outside(|| {
            let (worker, writes) = self.writing();
            let row = table.rows.insert(worker, view, writes, image)?;
            self.enter_row(table, view, row, image)?;
            self.inserted(table, row);
            Ok(row)
        })
    }

    pub fn watch_changes(&self, table: &Table) -> ChangeWatch {
        QueryHeap::outside(|| ChangeWatch(RowWrite::new(Watch::of(&self.state(), table))))
    }

    /// Puts an image in a row's place, or takes the row away, as `view` shows it. Never [`Outcome::Conflict`]: others that have
    /// the row are waited for.
    pub fn change_image(
        &mut self,
        table: &Table,
        view: &View,
        row: RowId,
        image: Option<&Vec<u8>>,
        watch: &mut ChangeWatch,
    ) -> Result<Outcome> {
        QueryHeap::outside(|| self.write_row(table, view, row, image, &mut watch.0))
    }

    /// 40001 where the transaction's one snapshot does not show what a row is now.
    pub fn refuse_newer(&self) -> Result<()> {
        match self.isolation() {
            Isolation::ReadCommitted => Ok(()),
            Isolation::RepeatableRead | Isolation::Serializable => {
                Err(Error::new(SqlState::SERIALIZATION_FAILURE, "could not serialize access due to concurrent update"))
            }
        }
    }

    /// All that is committed by now, and what this transaction wrote before the statement that runs.
    pub fn look_now(&self) -> HeldSnapshot {
        self.worker().hold_now()
    }

    /// Remembers, of a serializable transaction, that rows were looked for by these ranges of an index's keys, for which these
    /// conditions hold. `is_point`: each range is one key.
    pub fn read_through(
        &mut self,
        table: &Table,
        index: &Arc<TableIndex>,
        ranges: Vec<KeyBounds>,
        is_point: bool,
        filters: &[ColumnFilter],
    ) {
        if self.isolation() == Isolation::Serializable {
            QueryHeap::outside(|| {
                let access = IndexAccess::of_ranges(index.clone(), ranges, is_point);
                self.writes.read_scan(&table.rows, ScanRead::new(filters, Some(&access)));
            });
        }
    }
}

impl Database {
    /// Has `call` told when a commit is durable, or why it is not: at once, or from another thread. For those that may not
    /// sleep until it is.
    pub fn when_durable(&self, ts: CommitTs, call: impl FnOnce(Result<()>) + Send + 'static) {
        let Some(log) = self.log.get() else { return call(Ok(())) };
        match self.second_tier_copy() {
            None => log.when_durable(ts, Box::new(call)),
            Some(copy) => log.when_durable(
                ts,
                Box::new(move |outcome| match outcome {
                    // Where it cannot be copied it is in the pool all the same.
                    Ok(()) => copy.when_copied(ts, Box::new(move |_| call(Ok(())))),
                    Err(error) => call(Err(error)),
                }),
            ),
        }
    }
}

impl AccessLog {
    /// Adds a statement that has ended and went to its rows by itself.
    pub fn add_direct(&self, reads: &[DirectRead<'_>], elapsed: Duration) {
        if !reads.is_empty() {
            self.record(reads, elapsed);
        }
    }
}
