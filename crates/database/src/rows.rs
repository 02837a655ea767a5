//! Rows that a transaction writes, and tables' rows that it copies to elsewhere.

use crate::catalog::RelationName;
use crate::index::ChangedKeys;
use crate::partition::{Membership, Routing};
use crate::progress::Progress;
use crate::references::Watch;
use crate::transaction::{column_position, table_of};
use crate::{Database, DatabaseVersion, TableWriter, Transaction};
use arrow_array::{BooleanArray, RecordBatch};
use std::sync::Arc;
use tidepool_base::{Error, Result, RowId, SqlState, StoreId};
use tidepool_heap::QueryHeap;
use tidepool_table::rows::{Apart, Outcome, RowLayout, RowLock, RowStore, VersionMemory};
use tidepool_table::{IndexKey, Placement, RowGroup, Table, TableDef, TableVersion};
use tidepool_tablespace::Tablespace;
use tidepool_txn::{HeldSnapshot, Isolation, View};

/// What came of changing rows.
#[derive(Debug)]
pub enum Changed {
    /// Of each row whether it was written: not those that are there no more, or that the statement changed before.
    Rows(BooleanArray),
    /// A row was changed by another transaction since the statement's view was drawn, and has been committed: the
    /// statement is to be run again, as of now. (`READ COMMITTED` alone.)
    Again,
}

/// What is done about a row that another transaction has. Of several wishes the last one here counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockWait {
    /// Its end is waited for.
    Wait,
    /// The row is passed over.
    Skip,
    /// 55P03.
    Refuse,
}

/// What came of locking a row. Exhaustive and mutually exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Locked {
    Yes,
    Skipped,
    /// As [`Changed::Again`].
    Again,
}

/// What is looked at of each row that is written. Kept from row to row.
pub(crate) struct RowWrite {
    keys: ChangedKeys,
    watch: Watch,
}

impl RowWrite {
    pub fn new(watch: Watch) -> RowWrite {
        RowWrite { keys: ChangedKeys::default(), watch }
    }
}

impl Database {
    /// Rows of a new table.
    pub(crate) fn new_rows(&self, def: &TableDef, placement: &Placement) -> Result<Arc<RowStore>> {
        self.rows_of_store(self.next_store_id(), def, placement)
    }

    /// As `new_rows`, of a store that was there before.
    pub(crate) fn rows_of_store(&self, id: StoreId, def: &TableDef, placement: &Placement) -> Result<Arc<RowStore>> {
        let memory = self.version_memory(&placement.delta)?;
        Ok(RowStore::new(id, self.transactions(), RowLayout::new(def)?, &memory, &self.tablespaces().near()))
    }

    /// Where versions of rows are kept in a tablespace.
    pub(crate) fn version_memory(&self, tablespace: &str) -> Result<Arc<VersionMemory>> {
        let space = self.tablespaces().get(tablespace)?;
        let mut memories = self.memories.lock();
        Ok(memories.entry(space.id()).or_insert_with(|| VersionMemory::new(&space)).clone())
    }
}

impl Transaction {
    /// Appends rows; they belong to this transaction once `absorb` returns.
    pub fn writer(&mut self, table: impl Into<RelationName>) -> Result<TableWriter> {
        let name = table.into();
        self.lock_rows(&name)?;
        let version = self.version();
        let table = version.table(&name).ok_or_else(|| Error::internal("a locked table is gone"))?;
        let membership = Membership::of(version.state(), &table.def)?;
        let tree = version.partition_tree(&table.def)?;
        let routing = tree.map(|tree| Routing::new(self.database.clone(), version.clone(), tree));
        Ok(TableWriter::new(self.database.clone(), table).with_partitions(membership, routing))
    }

    /// Takes a writer's rows in. Returns how many.
    pub fn absorb(&mut self, writer: TableWriter) -> Result<u64> {
        QueryHeap::outside(|| self.absorb_outside(writer))
    }

    fn absorb_outside(&mut self, writer: TableWriter) -> Result<u64> {
        let rows = writer.rows();
        if writer.is_routed() {
            for leaf in writer.into_routing().into_iter().flat_map(Routing::into_writers) {
                self.locked_leaf(&leaf.table().def.clone())?;
                self.absorb_outside(leaf)?;
            }
            return Ok(rows);
        }
        let name = RelationName::from(&*writer.table().def);
        let (groups, rest) = writer.finish()?;
        let table = self.table(&name).map_err(|_| Error::internal("rows for a table that this transaction dropped"))?;
        if !self.locked.contains_key(&name) {
            return Err(Error::internal("rows for a table that this transaction has not locked"));
        }
        if rows == 0 {
            return Ok(0);
        }
        self.loaded |= !groups.is_empty();
        self.encoded_rows += groups.iter().map(|group| group.rows() as u64).sum::<u64>();
        let statement = self.statement()?;
        self.written.insert(table.def.id, table.clone());
        for group in groups {
            let (worker, writes) = self.writing();
            let number = table.rows.load(worker, statement.view(), writes, group.clone())?;
            self.enter_group(&table, statement.view(), number, &group)?;
            self.loaded_range(&table, number, group.rows());
        }
        rest.iter().try_for_each(|batch| self.insert_rows(&table, &statement, batch))?;
        Ok(rows)
    }

    fn insert_rows(&mut self, table: &Arc<Table>, statement: &DatabaseVersion, batch: &RecordBatch) -> Result<()> {
        let images = table.rows.layout().rows(batch)?;
        let mut image = Vec::new();
        for row in 0..batch.num_rows() {
            images.image(row, &mut image)?;
            let (worker, writes) = self.writing();
            let row = table.rows.insert(worker, statement.view(), writes, &image)?;
            self.enter_row(table, statement.view(), row, &image)?;
            self.inserted(table, row);
        }
        Ok(())
    }

    /// Appends a few rows to a locked table, as `TableWriter::checked` gives them.
    pub(crate) fn insert_checked(&mut self, name: &RelationName, rows: &RecordBatch) -> Result<()> {
        if rows.num_rows() == 0 {
            return Ok(());
        }
        let table = self.table(name)?;
        let statement = self.statement()?;
        self.written.insert(table.def.id, table.clone());
        self.insert_rows(&table, &statement, rows)
    }

    /// Puts whole new rows in the place of those with these ids. They are as `TableWriter::checked` gives them.
    pub fn update(&mut self, table: impl Into<RelationName>, ids: &[RowId], rows: &RecordBatch) -> Result<Changed> {
        let name = table.into();
        QueryHeap::outside(|| self.change_rows(&name, ids, Some(rows)))
    }

    pub fn delete(&mut self, table: impl Into<RelationName>, ids: &[RowId]) -> Result<Changed> {
        let name = table.into();
        QueryHeap::outside(|| self.change_rows(&name, ids, None))
    }

    fn change_rows(&mut self, name: &RelationName, ids: &[RowId], rows: Option<&RecordBatch>) -> Result<Changed> {
        self.lock_rows(name)?;
        let state = self.state();
        let table = table_of(&state, name)?;
        let statement = self.statement()?;
        if statement.state().table(name).is_none_or(|seen| !Arc::ptr_eq(&seen.rows, &table.rows)) {
            // Moved or emptied since.
            return self.again();
        }
        self.written.insert(table.def.id, table.clone());
        let images = rows.map(|rows| table.rows.layout().rows(rows)).transpose()?;
        let mut image = Vec::new();
        let mut write = RowWrite::new(Watch::of(&state, &table));
        let mut done = Vec::with_capacity(ids.len());
        for (place, row) in ids.iter().enumerate() {
            if let Some(images) = &images {
                images.image(place, &mut image)?;
            }
            let image = images.is_some().then_some(&image);
            match self.write_row(&table, statement.view(), *row, image, &mut write)? {
                Outcome::SelfModified | Outcome::Deleted => done.push(false),
                Outcome::Newer { .. } => return self.again(),
                Outcome::Written | Outcome::Conflict(_) => done.push(true),
            }
        }
        Ok(Changed::Rows(done.into()))
    }

    /// Puts an image in a row's place, or takes the row away, once nobody else has it; never `Conflict`.
    pub(crate) fn write_row(
        &mut self,
        table: &Table,
        view: &View,
        row: RowId,
        image: Option<&Vec<u8>>,
        write: &mut RowWrite,
    ) -> Result<Outcome> {
        loop {
            write.watch.look(table, view, row, image.map(Vec::as_slice))?;
            let outcome = match image {
                // Of a row that is not there the row store says why.
                Some(image) => {
                    let leaves_key = write.keys.look(table, view, row, image)? && write.keys.leaves_unique(table);
                    let (worker, writes) = self.writing();
                    table.rows.update(worker, view, writes, row, image, leaves_key)?
                }
                None => {
                    let (worker, writes) = self.writing();
                    table.rows.delete(worker, view, writes, row)?
                }
            };
            match outcome {
                Outcome::Written => {
                    if image.is_some() {
                        self.enter_changed(table, view, row, &write.keys)?;
                    }
                    self.changed(table, row, &mut write.watch, image.is_none());
                }
                Outcome::Conflict(tag) => {
                    let patience = self.patience();
                    self.worker().wait_for(tag, &*patience.begin_wait())?;
                    continue;
                }
                Outcome::SelfModified | Outcome::Deleted | Outcome::Newer { .. } => {}
            }
            return Ok(outcome);
        }
    }

    /// Locks a row that the statement sees, to the transaction's end. 55P03 where another has it and that is not to be
    /// waited for; 40001 where the transaction's one snapshot does not show what the row is now.
    pub fn lock_row(
        &mut self,
        table: impl Into<RelationName>,
        row: RowId,
        lock: RowLock,
        wait: LockWait,
    ) -> Result<Locked> {
        let name = table.into();
        QueryHeap::outside(|| {
            self.lock_rows(&name)?;
            let table = self.table(&name)?;
            let statement = self.statement()?;
            if statement.state().table(&name).is_none_or(|seen| !Arc::ptr_eq(&seen.rows, &table.rows)) {
                // Moved or emptied since.
                return self.again().map(|_| Locked::Again);
            }
            let mut held: Option<HeldSnapshot> = None;
            loop {
                let (worker, writes) = self.writing();
                let view: &View = held.as_ref().unwrap_or_else(|| statement.view());
                match table.rows.lock_row(worker, view, writes, row, lock)? {
                    Outcome::Written | Outcome::SelfModified => return Ok(Locked::Yes),
                    Outcome::Deleted => return Ok(Locked::Skipped),
                    Outcome::Newer { deleted: false, .. }
                        if lock == RowLock::KeyShare && self.isolation() != Isolation::ReadCommitted =>
                    {
                        // Only its key is to stay.
                        let now = self.worker().hold_now();
                        if !same_keys(&table, row, statement.view(), &now)? {
                            return self.again().map(|_| Locked::Again);
                        }
                        held = Some(now);
                    }
                    Outcome::Newer { .. } => return self.again().map(|_| Locked::Again),
                    Outcome::Conflict(tag) => match wait {
                        LockWait::Wait => {
                            let patience = self.patience();
                            self.worker().wait_for(tag, &*patience.begin_wait())?;
                        }
                        LockWait::Skip => return Ok(Locked::Skipped),
                        LockWait::Refuse => {
                            return Err(Error::new(
                                SqlState::LOCK_NOT_AVAILABLE,
                                format!("could not obtain lock on row in relation \"{}\"", name.name),
                            ));
                        }
                    },
                }
            }
        })
    }

    /// A row that is to be written is newer than what the statement sees.
    fn again(&self) -> Result<Changed> {
        match self.isolation() {
            Isolation::ReadCommitted => Ok(Changed::Again),
            Isolation::RepeatableRead | Isolation::Serializable => {
                Err(Error::new(SqlState::SERIALIZATION_FAILURE, "could not serialize access due to concurrent update"))
            }
        }
    }

    /// Moves the whole table's main and delta, or one column's main. Readers go on with what they have.
    pub fn set_tablespace(
        &mut self,
        table: impl Into<RelationName>,
        column: Option<&str>,
        tablespace: &str,
    ) -> Result<()> {
        let table = table.into();
        QueryHeap::outside(|| self.set_tablespace_outside(&table, column, tablespace))
    }

    fn set_tablespace_outside(&mut self, name: &RelationName, column: Option<&str>, tablespace: &str) -> Result<()> {
        self.database.tablespaces().get(tablespace)?;
        let table = self.locked_table(name)?;
        self.check_nothing_pends(&table.def, "ALTER TABLE")?;
        let mut placement = table.placement.clone();
        match column {
            None => {
                placement.main = tablespace.to_owned();
                placement.delta = tablespace.to_owned();
                placement.columns.clear();
            }
            Some(column) => {
                let position = column_position(&table, column)?;
                placement.columns.remove(&position);
                if placement.main != tablespace {
                    placement.columns.insert(position, tablespace.to_owned());
                }
            }
        }
        let database = self.database.clone();
        let spaces = database.tablespaces();
        let moves = |group: &RowGroup| -> u64 {
            let segments = group.segments().iter().enumerate();
            segments
                .filter(|(position, segment)| segment.tablespace().name() != placement.column(*position))
                .map(|(_, segment)| segment.bytes().len() as u64)
                .sum()
        };
        let version = self.newest(&table);
        let bytes_total = version.row_groups.iter().map(|group| moves(group)).sum::<u64>() + version.delta_bytes();
        let progress = self.start_progress("SET TABLESPACE", &table.def, bytes_total);
        let patience = self.patience();
        let mut place = |group: &Arc<RowGroup>| {
            patience.check()?;
            let placed = Arc::new(group.place(&placement, spaces)?);
            progress.add(moves(group), group.rows() as u64);
            Ok(placed)
        };
        self.copy_rows(&version, placement.clone(), &mut place)
    }

    /// Copies what a table has in memory that `space` is to give up, within the same tablespace.
    pub(crate) fn vacate(
        &mut self,
        table: &RelationName,
        space: &Tablespace,
        progress: &Progress,
        interrupted: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        QueryHeap::outside(|| {
            let table = self.locked_table(table)?;
            let version = self.newest(&table);
            let mut place = |group: &Arc<RowGroup>| {
                interrupted()?;
                let moved = group.moved(space)?.map_or_else(|| group.clone(), Arc::new);
                progress.add(group.segments().iter().map(|segment| segment.bytes().len() as u64).sum(), 0);
                Ok(moved)
            };
            self.copy_rows(&version, table.placement.clone(), &mut place)
        })
    }

    /// All that is committed of a table that nobody else writes to, and what this transaction wrote.
    pub(crate) fn newest(&self, table: &Arc<Table>) -> TableVersion {
        // Also what the present statement wrote.
        let _ = self.worker().next_command();
        let view = self.worker().hold_now();
        TableVersion::of(table, &Arc::new(view))
    }

    /// Puts a table with the same rows in a table's place; `place` says where its row groups go.
    fn copy_rows(
        &mut self,
        version: &TableVersion,
        placement: Placement,
        place: &mut dyn FnMut(&Arc<RowGroup>) -> Result<Arc<RowGroup>>,
    ) -> Result<()> {
        let rows = self.database.new_rows(&version.def, &placement)?;
        let (worker, writes) = self.writing();
        let view = worker.snapshot_now();
        for (group, number) in version.row_groups.iter().zip(version.ranges()) {
            let new = rows.load(worker, &view, writes, place(group)?)?;
            for (row, apart) in version.apart(*number) {
                let row = RowId::new(new, row.position());
                match apart {
                    Apart::Image(image) => rows.put(worker, &view, writes, row, Some(image))?,
                    Apart::Deleted => rows.put(worker, &view, writes, row, None)?,
                }
            }
        }
        for (number, _) in version.headed().iter().filter(|(number, _)| !version.ranges().contains(number)) {
            for (_, apart) in version.apart(*number) {
                if let Apart::Image(image) = apart {
                    rows.insert(worker, &view, writes, image)?;
                }
            }
        }
        drop(view);
        let table = self.indexed(Table::new(version.def.clone(), placement, rows))?;
        let table = self.change(table);
        self.written.insert(table.def.id, table);
        Ok(())
    }
}

/// Whether a row is in both views, with the same unique keys.
fn same_keys(table: &Table, row: RowId, one: &View, other: &View) -> Result<bool> {
    let (Some(before), Some(after)) = (table.rows.read(one, row), table.rows.read(other, row)) else {
        return Ok(false);
    };
    let (mut key, mut other_key) = (IndexKey::default(), IndexKey::default());
    for index in table.indexes().iter().filter(|index| index.is_unique()) {
        index.key_of(&table.rows, before, &mut key)?;
        index.key_of(&table.rows, after, &mut other_key)?;
        if key != other_key {
            return Ok(false);
        }
    }
    Ok(true)
}
