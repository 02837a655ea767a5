//! `INSERT … ON CONFLICT`: rows that are inserted unless others have their keys, which may then be changed instead.

use super::write::ChangedKeys;
use crate::Transaction;
use crate::catalog::relation::RelationName;
use crate::write::references::Watch;
use arrow_array::{RecordBatch, RecordBatchOptions};
use std::sync::Arc;
use tidepool_base::{Error, Result, RowId, SqlState, TableId};
use tidepool_heap::QueryHeap;
use tidepool_table::rows::{Claim, Keys, Outcome, RowRef, RowStore};
use tidepool_table::{Entered, IndexKey, Table, TableIndex};
use tidepool_txn::{Isolation, Tag, View};

/// What became of a row.
#[derive(Debug)]
pub enum Upserted {
    Inserted,
    /// Another row had a key of it, and became this one.
    Updated(RecordBatch),
    /// Another row had a key of it, and stays as it is.
    Skipped,
}

/// What is to become of a row that has a key of the row at a place of the batch: a row of all columns, as
/// `TableWriter::checked` gives it, or `None` if it is to stay.
pub type OnConflict<'a> = &'a mut dyn FnMut(usize, &RecordBatch) -> Result<Option<RecordBatch>>;

/// Who is in the way of a row.
enum Found {
    Nobody,
    Row { row: RowId, own: bool },
    Undecided(Tag),
}

/// What is done about rows that are in the way.
struct Conflicting<'a> {
    action: Option<OnConflict<'a>>,
    watch: Watch,
}

enum Attempt {
    Done(Upserted),
    /// Something changed meanwhile.
    Again,
    Wait(Tag),
}

impl Transaction {
    /// Inserts rows, as `TableWriter::checked` gives them, but those whose key another row has in one of the indexes
    /// `arbiters`. With `action` that row is changed; without it stays. 23505 where a key of another index is taken, 21000
    /// where a row would be changed that this command has written, 40001 where the transaction has one snapshot, which does
    /// not show the row.
    pub fn upsert(
        &mut self,
        table: impl Into<RelationName>,
        rows: &RecordBatch,
        arbiters: &[TableId],
        action: Option<OnConflict<'_>>,
    ) -> Result<Vec<Upserted>> {
        let name = table.into();
        self.lock_rows(&name)?;
        let table = QueryHeap::outside(|| self.table(&name))?;
        QueryHeap::outside(|| self.written.insert(table.def.id, table.clone()));
        let images = table.rows.layout().rows(rows)?;
        let mut image = Vec::new();
        let mut conflicting = Conflicting { action, watch: QueryHeap::outside(|| self.watch(&table)) };
        (0..rows.num_rows())
            .map(|place| {
                self.begin_row()?;
                images.image(place, &mut image)?;
                loop {
                    match self.try_upsert(&table, place, &image, arbiters, &mut conflicting)? {
                        Attempt::Done(upserted) => return Ok(upserted),
                        Attempt::Again => {}
                        Attempt::Wait(tag) => self.wait_for_writer(tag)?,
                    }
                    self.patience().check()?;
                }
            })
            .collect()
    }

    fn wait_for_writer(&self, tag: Tag) -> Result<()> {
        let patience = self.patience();
        self.worker().wait_for(tag, &*patience.begin_wait())
    }

    fn try_upsert(
        &mut self,
        table: &Arc<Table>,
        place: usize,
        image: &[u8],
        arbiters: &[TableId],
        conflicting: &mut Conflicting<'_>,
    ) -> Result<Attempt> {
        let statement = self.statement()?;
        let view = statement.view();
        match self.in_the_way(table, view, image, arbiters)? {
            Found::Undecided(tag) => return Ok(Attempt::Wait(tag)),
            Found::Row { row, own } => return self.resolve(table, view, place, row, own, conflicting),
            Found::Nobody => {}
        }
        QueryHeap::outside(|| {
            let before = self.writes.savepoint();
            let (worker, writes) = self.writing();
            let row = table.rows.insert(worker, view, writes, image)?;
            let mut key = IndexKey::default();
            for index in table.indexes() {
                index.key_of(&table.rows, RowRef::Version(image), &mut key)?;
                if !arbiters.contains(&index.id()) {
                    self.enter(table, index, view, row, &key)?;
                    continue;
                }
                // Somebody else came first. Whoever waits for him must not keep others from their keys.
                let waits = match index.enter(&table.rows, view, row, &key, &mut self.fingers)? {
                    Entered::Done => continue,
                    Entered::Taken(_) => None,
                    Entered::Wait(tag) => Some(tag),
                };
                let (worker, writes) = self.writing();
                let _view = worker.snapshot_now();
                writes.undo_to(before, worker);
                return Ok(waits.map_or(Attempt::Again, Attempt::Wait));
            }
            self.inserted(table, row);
            Ok(Attempt::Done(Upserted::Inserted))
        })
    }

    fn in_the_way(&self, table: &Table, view: &View, image: &[u8], arbiters: &[TableId]) -> Result<Found> {
        let (mut key, mut other) = (IndexKey::default(), IndexKey::default());
        let all: Vec<&Arc<TableIndex>> =
            table.indexes().iter().filter(|index| arbiters.contains(&index.id())).collect();
        for index in all {
            index.key_of(&table.rows, RowRef::Version(image), &mut key)?;
            if !index.is_exclusive(&key) {
                continue;
            }
            index.fetch_key(key.bytes())?;
            for row in index.tree().get(view, key.bytes()).iter() {
                match index.claim(&table.rows, view, *row, &key, &mut other)? {
                    Claim::Free => {}
                    Claim::Has => return Ok(Found::Row { row: *row, own: false }),
                    Claim::Own => return Ok(Found::Row { row: *row, own: true }),
                    Claim::Undecided(tag) => return Ok(Found::Undecided(tag)),
                }
            }
        }
        Ok(Found::Nobody)
    }

    /// What becomes of a row that has the key.
    fn resolve(
        &mut self,
        table: &Arc<Table>,
        view: &View,
        place: usize,
        row: RowId,
        own: bool,
        conflicting: &mut Conflicting<'_>,
    ) -> Result<Attempt> {
        let has_one_snapshot = self.isolation() != Isolation::ReadCommitted;
        if has_one_snapshot && !own && table.rows.read(view, row).is_none() {
            return Err(Error::new(
                SqlState::SERIALIZATION_FAILURE,
                "could not serialize access due to concurrent update",
            ));
        }
        let Conflicting { action, watch } = conflicting;
        let Some(action) = action else {
            self.read_row_of(table, row);
            return Ok(Attempt::Done(Upserted::Skipped));
        };
        let held = match has_one_snapshot {
            true => None,
            // The row as it is now, whether or not the statement's view shows it.
            false => Some(self.worker().hold_now()),
        };
        let view = held.as_deref().unwrap_or(view);
        let Some(found) = table.rows.read(view, row) else {
            // Written by this very command, or gone meanwhile.
            return if own { Err(twice()) } else { Ok(Attempt::Again) };
        };
        let existing = row_batch(&table.rows, found)?;
        let Some(new) = action(place, &existing)? else {
            self.read_row_of(table, row);
            return Ok(Attempt::Done(Upserted::Skipped));
        };
        QueryHeap::outside(|| {
            let mut image = Vec::new();
            table.rows.layout().rows(&new)?.image(0, &mut image)?;
            let mut keys = ChangedKeys::default();
            watch.look(table, view, row, Some(&image))?;
            let left = if keys.look(table, view, row, &image)? { keys.left(table) } else { Keys::Change };
            let (worker, writes) = self.writing();
            match table.rows.update(worker, view, writes, row, &image, left)? {
                Outcome::Written => {
                    self.enter_changed(table, view, row, &keys)?;
                    self.changed(table, row, watch, false);
                    Ok(Attempt::Done(Upserted::Updated(new)))
                }
                Outcome::Conflict(tag) => Ok(Attempt::Wait(tag)),
                Outcome::SelfModified => Err(twice()),
                Outcome::Newer { .. } if has_one_snapshot => Err(Error::new(
                    SqlState::SERIALIZATION_FAILURE,
                    "could not serialize access due to concurrent update",
                )),
                Outcome::Newer { .. } | Outcome::Deleted => Ok(Attempt::Again),
            }
        })
    }
}

fn twice() -> Error {
    Error::new(SqlState::CARDINALITY_VIOLATION, "ON CONFLICT DO UPDATE command cannot affect row a second time")
        .with_hint(
            "Ensure that no rows proposed for insertion within the same command have duplicate constrained values.",
        )
}

/// One row, of all columns.
fn row_batch(rows: &RowStore, row: RowRef<'_>) -> Result<RecordBatch> {
    let schema = rows.layout().schema().clone();
    let columns = match row {
        RowRef::Version(image) => {
            let all: Vec<usize> = (0..schema.fields().len()).collect();
            rows.layout().decode(&[image], &all)?
        }
        RowRef::Main { group, position } => {
            group.segments().iter().map(|segment| segment.take(&[position as u32])).collect::<Result<_>>()?
        }
    };
    let options = RecordBatchOptions::new().with_row_count(Some(1));
    RecordBatch::try_new_with_options(schema, columns, &options)
        .map_err(|error| Error::internal(format!("a row does not fit its table: {error}")))
}
