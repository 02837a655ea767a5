//! Rows that a transaction writes, and tables' rows that it copies to elsewhere.

use crate::catalog::relation::RelationName;
use crate::progress::Progress;
use crate::write::index::ChangedKeys;
use crate::write::partition::{Membership, Routing};
use crate::write::references::Watch;
use crate::write::transaction::{column_position, table_of};
use crate::{Database, TableWriter, Transaction};
use arrow_array::{BooleanArray, RecordBatch};
use std::sync::Arc;
use tidepool_base::{Error, Result, RowId, SqlState, StoreId, TableId};
use tidepool_heap::QueryHeap;
use tidepool_table::rows::{Apart, Keys, Outcome, RowLayout, RowLock, RowStore, VersionMemory};
use tidepool_table::{IndexKey, Placement, ROW_GROUP_ROWS, RowGroup, Table, TableDef, TableVersion};
use tidepool_tablespace::Tablespace;
use tidepool_txn::{HeldSnapshot, Isolation, Tag, View};

/// What came of changing rows.
#[derive(Debug)]
pub enum Changed {
    /// Of each row whether it was written: not those that are there no more, that the statement changed before, or that
    /// are newer ([`Transaction::newer`]).
    Rows(BooleanArray),
    /// The table was moved or emptied since the statement's view was drawn: the statement is to be run again, as of now.
    /// (`READ COMMITTED` alone.)
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
    /// Another transaction changed the row since the statement's view was drawn, and committed that. It is locked, unless
    /// it is there no more, as it is now, which the statement is to look at. (`READ COMMITTED` alone.)
    Newer,
    /// As [`Changed::Again`].
    Again,
}

/// What came of locking a row as it is now. Exhaustive and mutually exclusive.
enum Now {
    Locked,
    Gone,
    /// Not to be waited for.
    Skipped,
}

/// What is done to rows of one table. Exhaustive and mutually exclusive.
#[derive(Clone, Copy)]
enum Change<'a> {
    Become(&'a RecordBatch),
    Go,
    /// To be in another leaf.
    Leave,
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

    /// Whether others refer to rows of the table.
    pub fn is_referenced(&self) -> bool {
        self.watch.is_referenced()
    }
}

impl Database {
    /// Rows of a new table.
    pub(crate) fn new_rows(&self, def: &TableDef, placement: &Placement) -> Result<Arc<RowStore>> {
        let id = match def.is_temporary() {
            true => self.temporary_ids.draw_store(),
            false => self.next_store_id(),
        };
        self.rows_of_store(id, def, placement)
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
        let patience = self.patience();
        let (groups, rest) = writer.finish(&|| patience.check())?;
        let table = self.table(&name).map_err(|_| Error::internal("rows for a table that this transaction dropped"))?;
        if !self.locked.contains_key(&name) {
            return Err(Error::internal("rows for a table that this transaction has not locked"));
        }
        if rows == 0 {
            return Ok(0);
        }
        self.loaded |= !groups.is_empty() && !table.def.is_temporary();
        self.encoded_rows += groups.iter().map(|group| group.rows() as u64).sum::<u64>();
        let statement = self.statement()?;
        self.written.insert(table.def.id, table.clone());
        if groups.iter().any(|group| group.rows() >= ROW_GROUP_ROWS) {
            // What is left over goes after them, so that rows that are loaded in the order of a key lie in it.
            table.rows.seal();
        }
        for group in groups {
            let (worker, writes) = self.writing();
            let number = table.rows.load(worker, statement.view(), writes, group.clone())?;
            self.enter_group(&table, statement.view(), number, &group)?;
            self.loaded_range(&table, number, group.rows());
        }
        rest.iter().try_for_each(|batch| self.insert_rows(&table, statement.view(), batch).map(drop))?;
        Ok(rows)
    }

    /// Returns their ids.
    pub(crate) fn insert_rows(&mut self, table: &Arc<Table>, view: &View, batch: &RecordBatch) -> Result<Vec<RowId>> {
        let images = table.rows.layout().rows(batch)?;
        let mut image = Vec::new();
        let mut ids = Vec::with_capacity(batch.num_rows());
        for row in 0..batch.num_rows() {
            self.begin_row()?;
            images.image(row, &mut image)?;
            let (worker, writes) = self.writing();
            let row = table.rows.insert(worker, view, writes, &image)?;
            self.enter_row(table, view, row, &image)?;
            self.inserted(table, row);
            ids.push(row);
        }
        Ok(ids)
    }

    /// Appends a few rows to a locked table, as `TableWriter::checked` gives them. Returns their ids.
    pub(crate) fn insert_checked(&mut self, name: &RelationName, rows: &RecordBatch) -> Result<Vec<RowId>> {
        if rows.num_rows() == 0 {
            return Ok(Vec::new());
        }
        let table = self.table(name)?;
        let statement = self.statement()?;
        self.written.insert(table.def.id, table.clone());
        self.insert_rows(&table, statement.view(), rows)
    }

    /// Puts whole new rows in the place of those with these ids. They are as `TableWriter::checked` gives them.
    pub fn update(&mut self, table: impl Into<RelationName>, ids: &[RowId], rows: &RecordBatch) -> Result<Changed> {
        let name = table.into();
        QueryHeap::outside(|| self.change_rows(&name, ids, Change::Become(rows), None))
    }

    pub fn delete(&mut self, table: impl Into<RelationName>, ids: &[RowId]) -> Result<Changed> {
        let name = table.into();
        QueryHeap::outside(|| self.change_rows(&name, ids, Change::Go, None))
    }

    /// As `delete`, of rows that are to be in another leaf.
    pub(crate) fn take_out(&mut self, name: &RelationName, ids: &[RowId]) -> Result<Changed> {
        self.change_rows(name, ids, Change::Leave, None)
    }

    /// Rows that were taken out of a leaf are in another one now.
    pub(crate) fn note_moved(
        &mut self,
        from: TableId,
        left: impl IntoIterator<Item = RowId>,
        to: &RelationName,
        now: &[RowId],
    ) -> Result<()> {
        let state = self.state();
        if !state.foreign_keys_on(from).is_empty()
            && let Some(from) = state.table_of_id(from)
        {
            self.moved(from, left, table_of(&state, to)?.as_ref(), now);
        }
        Ok(())
    }

    /// As `update`, or `delete` where there are no rows, of rows that turned out to be newer than the statement's view,
    /// as `version` has them: one that [`Transaction::look_again`] gave.
    pub fn change_newer(
        &mut self,
        version: &TableVersion,
        ids: &[RowId],
        rows: Option<&RecordBatch>,
    ) -> Result<Changed> {
        let name = RelationName::from(&*version.def);
        let change = rows.map_or(Change::Go, Change::Become);
        QueryHeap::outside(|| self.change_rows(&name, ids, change, Some(version.view())))
    }

    /// Rows of a table that the statement was to write or lock, and that others had changed since its view was drawn. They
    /// are locked, in the order of their ids.
    pub fn newer(&self, table: TableId) -> Vec<RowId> {
        self.newer.get(&table).into_iter().flatten().copied().collect()
    }

    /// Whether others changed or deleted a row of a table that the statement was to write or lock, since its view was drawn.
    pub fn has_newer(&self, table: TableId) -> bool {
        self.newer.contains_key(&table) || self.gone.iter().any(|(of, _)| *of == table)
    }

    /// Whether a row that the statement was to write was deleted by another transaction since its view was drawn.
    pub fn is_gone(&self, table: TableId, row: RowId) -> bool {
        self.gone.contains(&(table, row))
    }

    /// A table as it is now, with the newest versions of all that this transaction has locked, and nothing of what the
    /// running statement wrote.
    pub fn look_again(&mut self, table: impl Into<RelationName>) -> Result<Arc<TableVersion>> {
        let name = table.into();
        QueryHeap::outside(|| {
            let table = self.table(&name)?;
            let view = Arc::new(self.worker().hold_now());
            self.note_view(&self.state(), &view);
            Ok(Arc::new(TableVersion::of(&table, &view)))
        })
    }

    /// Locks rows as they are now, whatever the statement sees, to the transaction's end: so that a statement that is run
    /// again does not find them changed once more.
    pub fn lock_newest(&mut self, table: impl Into<RelationName>, rows: &[RowId], lock: RowLock) -> Result<()> {
        let name = table.into();
        QueryHeap::outside(|| {
            self.lock_rows(&name)?;
            let table = self.table(&name)?;
            for row in rows {
                let _ = self.lock_as_of_now(&table, *row, lock, LockWait::Wait)?;
            }
            Ok(())
        })
    }

    /// `view`: instead of the statement's.
    fn change_rows(
        &mut self,
        name: &RelationName,
        ids: &[RowId],
        change: Change<'_>,
        view: Option<&Arc<HeldSnapshot>>,
    ) -> Result<Changed> {
        self.lock_rows(name)?;
        let state = self.state();
        let table = table_of(&state, name)?;
        let statement = self.statement()?;
        if statement.state().table(name).is_none_or(|seen| !Arc::ptr_eq(&seen.rows, &table.rows)) {
            // Moved or emptied since.
            return self.again();
        }
        self.written.insert(table.def.id, table.clone());
        let rows = match change {
            Change::Become(rows) => Some(rows),
            Change::Go | Change::Leave => None,
        };
        let images = rows.map(|rows| table.rows.layout().rows(rows)).transpose()?;
        let mut image = Vec::new();
        let mut write = RowWrite::new(match change {
            Change::Leave => Watch::of_moving(&state, &table),
            Change::Become(_) | Change::Go => Watch::of(&state, &table),
        });
        let mut done = Vec::with_capacity(ids.len());
        // Who changes the key must be alone; whoever it is that looks again finds out whether it does.
        let lock = if rows.is_some() { RowLock::NoKeyUpdate } else { RowLock::Update };
        for (place, row) in ids.iter().enumerate() {
            if let Some(images) = &images {
                images.image(place, &mut image)?;
            }
            let image = images.is_some().then_some(&image);
            // Its lock would let the statement write over what it has not seen.
            if view.is_none() && self.is_newer(&table, *row) {
                done.push(false);
                continue;
            }
            match self.write_row(&table, view.unwrap_or(statement.view()), *row, image, &mut write)? {
                Outcome::SelfModified | Outcome::Deleted => done.push(false),
                Outcome::Newer { .. } => {
                    self.refuse_newer()?;
                    let _ = self.found_newer(&table, *row, lock, LockWait::Wait)?;
                    done.push(false);
                }
                Outcome::Written | Outcome::Conflict(_) => done.push(true),
            }
        }
        Ok(Changed::Rows(done.into()))
    }

    fn is_newer(&self, table: &Table, row: RowId) -> bool {
        self.newer.get(&table.def.id).is_some_and(|rows| rows.contains(&row))
    }

    /// Locks a row that is newer than the statement's view, and remembers that.
    fn found_newer(&mut self, table: &Arc<Table>, row: RowId, lock: RowLock, wait: LockWait) -> Result<Locked> {
        match self.lock_as_of_now(table, row, lock, wait)? {
            Now::Locked => drop(self.newer.entry(table.def.id).or_default().insert(row)),
            Now::Gone => drop(self.gone.insert((table.def.id, row))),
            Now::Skipped => return Ok(Locked::Skipped),
        }
        Ok(Locked::Newer)
    }

    fn lock_as_of_now(&mut self, table: &Arc<Table>, row: RowId, lock: RowLock, wait: LockWait) -> Result<Now> {
        self.begin_row()?;
        loop {
            let now = self.worker().hold_now();
            let (worker, writes) = self.writing();
            match table.rows.lock_row(worker, &now, writes, row, lock)? {
                Outcome::Written | Outcome::SelfModified => return Ok(Now::Locked),
                Outcome::Deleted | Outcome::Newer { deleted: true, .. } => return Ok(Now::Gone),
                // Committed since it was looked at.
                Outcome::Newer { deleted: false, .. } => {}
                Outcome::Conflict(tag) => {
                    drop(now);
                    if !self.wait_for_row(tag, wait, &table.def.name)? {
                        return Ok(Now::Skipped);
                    }
                }
            }
        }
    }

    /// Waits for a row's writer, unless it is not to be waited for: then false, or 55P03.
    fn wait_for_row(&mut self, tag: Tag, wait: LockWait, table: &str) -> Result<bool> {
        match wait {
            LockWait::Wait => {
                let patience = self.patience();
                self.worker().wait_for(tag, &*patience.begin_wait())?;
                Ok(true)
            }
            LockWait::Skip => Ok(false),
            LockWait::Refuse => Err(Error::new(
                SqlState::LOCK_NOT_AVAILABLE,
                format!("could not obtain lock on row in relation \"{table}\""),
            )),
        }
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
        self.begin_row()?;
        loop {
            write.watch.look(table, view, row, image.map(Vec::as_slice))?;
            let outcome = match image {
                // Of a row that is not there the row store says why.
                Some(image) => {
                    let looked = write.keys.look(table, view, row, image)?;
                    let keys = if looked { write.keys.left(table) } else { Keys::Change };
                    let (worker, writes) = self.writing();
                    table.rows.update(worker, view, writes, row, image, keys)?
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
            self.begin_row()?;
            self.lock_rows(&name)?;
            let table = self.table(&name)?;
            let statement = self.statement()?;
            if statement.state().table(&name).is_none_or(|seen| !Arc::ptr_eq(&seen.rows, &table.rows)) {
                // Moved or emptied since.
                return self.again().map(|_| Locked::Again);
            }
            if self.is_newer(&table, row) {
                return Ok(Locked::Newer);
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
                            self.refuse_newer()?;
                        }
                        held = Some(now);
                    }
                    Outcome::Newer { .. } => {
                        self.refuse_newer()?;
                        return self.found_newer(&table, row, lock, wait);
                    }
                    Outcome::Conflict(tag) => {
                        if !self.wait_for_row(tag, wait, &name.name)? {
                            return Ok(Locked::Skipped);
                        }
                    }
                }
            }
        })
    }

    /// What is to be written is newer than what the statement sees.
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
                .map(|(_, segment)| segment.encoded_bytes())
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
                progress.add(group.encoded_bytes(), 0);
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
