//! Transactions: a set of changed tables over the latest committed state.

use crate::catalog::{Changes, RelationName};
use crate::progress::Progress;
use crate::writer::{concat, encode_all};
use crate::{Database, DatabaseVersion, TableWriter};
use arrow_array::RecordBatch;
use std::collections::BTreeSet;
use std::sync::Arc;
use tidepool_base::{CommitTs, Error, Result, SchemaId, SqlState};
use tidepool_heap::{QueryHeap, Release};
use tidepool_table::{ColumnDef, DeltaChunk, Placement, ROW_GROUP_ROWS, RowGroup, TableDef, TableVersion};
use tidepool_tablespace::Tablespace;

/// PostgreSQL's limits, which its clients rely on.
const NAME_BYTES_MAX: usize = 63;
const COLUMNS_MAX: usize = 1600;

/// Rows of new row groups after which the memory that their making took is given back at once.
const LOAD_ROWS: u64 = 8 * ROW_GROUP_ROWS as u64;

/// Asked while a transaction waits or copies for long; its error ends the work.
pub type Interrupted = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// Builds the next state of the database. What it makes outlives the statement that asked for it, so every change is made
/// outside the statement's heap. Tables it changes are locked against other writers until it ends; readers see
/// the state before it until it commits. Dropped without `commit`, it leaves nothing behind.
pub struct Transaction {
    pub(crate) database: Arc<Database>,
    id: u64,
    pub(crate) changes: Changes,
    locked: BTreeSet<RelationName>,
    /// Definitions or places changed, or row groups were made: kept in the data folder at commit.
    pub(crate) durable: bool,
    /// Rows of row groups made.
    encoded_rows: u64,
    interrupted: Option<Interrupted>,
}

/// What a transaction had done at one moment, for going back to it.
#[derive(Clone)]
pub struct Savepoint {
    changes: Changes,
    locked: BTreeSet<RelationName>,
    durable: bool,
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction")
            .field("id", &self.id)
            .field("changes", &self.changes.tables.keys())
            .field("locked", &self.locked)
            .finish()
    }
}

impl Transaction {
    pub(crate) fn new(database: Arc<Database>, id: u64) -> Transaction {
        Transaction {
            database,
            id,
            changes: Changes::default(),
            locked: BTreeSet::new(),
            durable: false,
            encoded_rows: 0,
            interrupted: None,
        }
    }

    /// For the life of the process; names the transaction in lock lists and deadlock messages.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What methods that take no such function ask while they wait for a lock or copy rows.
    pub fn set_interrupted(&mut self, interrupted: Option<Interrupted>) {
        self.interrupted = interrupted;
    }

    /// What the next statement reads: the latest committed state with this transaction's changes over it.
    pub fn version(&self) -> Arc<DatabaseVersion> {
        let base = self.database.version();
        if self.changes.is_empty() { base } else { Arc::new(base.with(base.commit_ts, &self.changes)) }
    }

    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Remembers what was done so far. Table versions are immutable, so this costs an entry for each table changed.
    pub fn savepoint(&self) -> Savepoint {
        QueryHeap::outside(|| Savepoint {
            changes: self.changes.clone(),
            locked: self.locked.clone(),
            durable: self.durable,
        })
    }

    /// Undoes what was done since the savepoint, and gives up the locks taken since.
    pub fn roll_back_to(&mut self, savepoint: &Savepoint) {
        QueryHeap::outside(|| {
            self.changes.clone_from(&savepoint.changes);
            self.durable = savepoint.durable;
            let taken: Vec<RelationName> = self.locked.difference(&savepoint.locked).cloned().collect();
            self.database.locks.release(self.id, &taken);
            self.locked.clone_from(&savepoint.locked);
        });
    }

    /// Takes the table's write lock until the transaction ends; waits in slices and calls `interrupted` between them
    /// (cancel, lock_timeout: return its error). 40P01 on a cycle, 42P01 when there is no such table.
    pub fn lock_table(&mut self, table: impl Into<RelationName>, interrupted: &dyn Fn() -> Result<()>) -> Result<()> {
        let table = table.into();
        self.table(&table)?;
        self.lock_name(&table, interrupted)?;
        // Whoever held it may have dropped or renamed the table.
        self.table(&table).map(drop)
    }

    /// As `lock_table`, for a name that no table has yet.
    pub fn lock_name(&mut self, name: impl Into<RelationName>, interrupted: &dyn Fn() -> Result<()>) -> Result<()> {
        let name = name.into();
        if !self.locked.contains(&name) {
            QueryHeap::outside(|| {
                self.database.locks.lock(self.id, &name, interrupted)?;
                self.locked.insert(name.clone());
                Ok(())
            })?;
        }
        Ok(())
    }

    pub(crate) fn lock(&mut self, name: &RelationName) -> Result<()> {
        let interrupted = self.interrupted.clone();
        self.lock_name(name, &|| interrupted.as_ref().map_or(Ok(()), |interrupted| interrupted()))
    }

    pub(crate) fn check_interrupted(&self) -> Result<()> {
        self.interrupted.as_ref().map_or(Ok(()), |interrupted| interrupted())
    }

    /// Locks a table and returns what this transaction has of it. 42P01 when there is none.
    pub(crate) fn locked_table(&mut self, name: &RelationName) -> Result<Arc<TableVersion>> {
        self.table(name)?;
        self.lock(name)?;
        self.table(name)
    }

    pub(crate) fn table(&self, name: &RelationName) -> Result<Arc<TableVersion>> {
        self.version()
            .table(name)
            .cloned()
            .ok_or_else(|| Error::new(SqlState::UNDEFINED_TABLE, format!("relation \"{}\" does not exist", name.name)))
    }

    pub(crate) fn change(&mut self, next: TableVersion) -> Arc<TableVersion> {
        let next = Arc::new(next);
        self.changes.tables.insert(next.def.id, Some(next.clone()));
        next
    }

    /// 42P07 when it exists, 42704 when a tablespace does not.
    pub fn create_table(
        &mut self,
        name: impl Into<RelationName>,
        columns: Vec<ColumnDef>,
        primary_key: Vec<usize>,
        placement: Placement,
    ) -> Result<Arc<TableVersion>> {
        let name = name.into();
        QueryHeap::outside(|| self.create_table_outside(&name, columns, primary_key, placement))
    }

    fn create_table_outside(
        &mut self,
        name: &RelationName,
        columns: Vec<ColumnDef>,
        primary_key: Vec<usize>,
        placement: Placement,
    ) -> Result<Arc<TableVersion>> {
        check_name(&name.name)?;
        if columns.len() > COLUMNS_MAX {
            return Err(Error::new(
                SqlState::TOO_MANY_COLUMNS,
                format!("tables can have at most {COLUMNS_MAX} columns"),
            ));
        }
        for (position, column) in columns.iter().enumerate() {
            check_name(&column.name)?;
            if columns[..position].iter().any(|other| other.name == column.name) {
                return Err(Error::new(
                    SqlState::DUPLICATE_COLUMN,
                    format!("column \"{}\" specified more than once", column.name),
                ));
            }
        }
        if primary_key.iter().chain(placement.columns.keys()).any(|column| *column >= columns.len()) {
            return Err(Error::internal("a table's key or placement names a column that it does not have"));
        }
        self.check_placement(&placement)?;
        self.lock(name)?;
        if self.version().is_taken(name) {
            return Err(exists(&name.name));
        }
        let id = self.database.next_table_id();
        let def = TableDef { schema: name.schema, ..TableDef::new(id, &name.name, columns, primary_key) };
        self.durable = true;
        Ok(self.change(TableVersion::new(Arc::new(def), placement)))
    }

    fn check_placement(&self, placement: &Placement) -> Result<()> {
        for name in [&placement.main, &placement.delta].into_iter().chain(placement.columns.values()) {
            self.database.tablespaces().get(name)?;
        }
        Ok(())
    }

    /// 42P01 when there is none.
    pub fn drop_table(&mut self, name: impl Into<RelationName>) -> Result<()> {
        let name = name.into();
        QueryHeap::outside(|| self.drop_table_outside(&name))
    }

    fn drop_table_outside(&mut self, name: &RelationName) -> Result<()> {
        let table = self.locked_table(name)?;
        self.durable = true;
        self.changes.tables.insert(table.def.id, None);
        Ok(())
    }

    pub fn truncate(&mut self, name: impl Into<RelationName>) -> Result<()> {
        let name = name.into();
        QueryHeap::outside(|| self.truncate_outside(&name))
    }

    fn truncate_outside(&mut self, name: &RelationName) -> Result<()> {
        let table = self.locked_table(name)?;
        self.durable = true;
        self.change(TableVersion::new(table.def.clone(), table.placement.clone()));
        Ok(())
    }

    /// 42P07 when the new name is taken.
    pub fn rename_table(&mut self, name: impl Into<RelationName>, new_name: &str) -> Result<()> {
        let name = name.into();
        let new_name = RelationName::new(name.schema, new_name);
        QueryHeap::outside(|| self.move_table(&name, &new_name))
    }

    /// Moves a table to another schema. 42P07 when its name is taken there.
    pub fn set_table_schema(&mut self, name: impl Into<RelationName>, schema: SchemaId) -> Result<()> {
        let name = name.into();
        let new_name = RelationName::new(schema, &name.name);
        QueryHeap::outside(|| self.move_table(&name, &new_name))
    }

    fn move_table(&mut self, name: &RelationName, new_name: &RelationName) -> Result<()> {
        check_name(&new_name.name)?;
        let table = self.locked_table(name)?;
        self.lock(new_name)?;
        if self.version().is_taken(new_name) {
            return Err(match name.schema == new_name.schema {
                true => exists(&new_name.name),
                false => Error::new(
                    SqlState::DUPLICATE_TABLE,
                    format!(
                        "relation \"{}\" already exists in schema \"{}\"",
                        new_name.name,
                        self.version().schema_name(new_name.schema)
                    ),
                ),
            });
        }
        let RelationName { schema, name } = new_name.clone();
        let def = TableDef { schema, name, ..TableDef::clone(&table.def) };
        self.durable = true;
        self.change(with_parts(Arc::new(def), &table, table.row_groups.clone(), table.delta.clone()));
        Ok(())
    }

    /// Gives a column another name. 42703 when there is none, 42701 when the new name is taken.
    pub fn rename_column(&mut self, table: impl Into<RelationName>, column: &str, new_name: &str) -> Result<()> {
        let table = table.into();
        QueryHeap::outside(|| self.rename_column_outside(&table, column, new_name))
    }

    fn rename_column_outside(&mut self, table: &RelationName, column: &str, new_name: &str) -> Result<()> {
        check_name(new_name)?;
        let table = self.locked_table(table)?;
        let position = column_position(&table, column)?;
        if table.def.column_index(new_name).is_some() {
            return Err(Error::new(
                SqlState::DUPLICATE_COLUMN,
                format!("column \"{new_name}\" of relation \"{}\" already exists", table.def.name),
            ));
        }
        let mut def = TableDef::clone(&table.def);
        def.columns[position].name = new_name.to_owned();
        self.durable = true;
        self.change(with_parts(Arc::new(def), &table, table.row_groups.clone(), table.delta.clone()));
        Ok(())
    }

    /// Moves the whole table's main and delta, or one column's main. Readers go on with the version they have.
    pub fn set_tablespace(
        &mut self,
        table: impl Into<RelationName>,
        column: Option<&str>,
        tablespace: &str,
    ) -> Result<()> {
        let table = table.into();
        QueryHeap::outside(|| self.set_tablespace_outside(&table, column, tablespace))
    }

    fn set_tablespace_outside(&mut self, table: &RelationName, column: Option<&str>, tablespace: &str) -> Result<()> {
        let target = self.database.tablespaces().get(tablespace)?;
        let table = self.locked_table(table)?;
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
        let moves = |group: &RowGroup| -> u64 {
            let segments = group.segments().iter().enumerate();
            segments
                .filter(|(position, segment)| segment.tablespace().name() != placement.column(*position))
                .map(|(_, segment)| segment.bytes().len() as u64)
                .sum()
        };
        let delta_moves = column.is_none() && table.placement.delta != tablespace;
        let delta_bytes: u64 = if delta_moves { table.delta.iter().map(|chunk| chunk.bytes()).sum() } else { 0 };
        let bytes_total = table.row_groups.iter().map(|group| moves(group)).sum::<u64>() + delta_bytes;
        let progress = self.start_progress("SET TABLESPACE", &table.def, bytes_total);
        let mut row_groups = Vec::with_capacity(table.row_groups.len());
        for group in &table.row_groups {
            self.check_interrupted()?;
            let bytes = moves(group);
            row_groups.push(Arc::new(group.place(&placement, self.database.tablespaces())?));
            progress.add(bytes, group.rows() as u64);
        }
        let mut delta = Vec::with_capacity(table.delta.len());
        for chunk in &table.delta {
            self.check_interrupted()?;
            delta.push(if delta_moves {
                progress.add(chunk.bytes(), chunk.batch().num_rows() as u64);
                Arc::new(DeltaChunk::new(chunk.batch(), &target)?)
            } else {
                chunk.clone()
            });
        }
        self.durable = true;
        let mut next = with_parts(table.def.clone(), &table, row_groups, delta);
        next.placement = placement;
        self.change(next);
        Ok(())
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
            let mut row_groups = Vec::with_capacity(table.row_groups.len());
            for group in &table.row_groups {
                interrupted()?;
                row_groups.push(match group.moved(space)? {
                    Some(moved) => Arc::new(moved),
                    None => group.clone(),
                });
                progress.add(group.segments().iter().map(|segment| segment.bytes().len() as u64).sum(), 0);
            }
            let mut delta = Vec::with_capacity(table.delta.len());
            for chunk in &table.delta {
                interrupted()?;
                delta.push(if chunk.must_move(space) {
                    Arc::new(chunk.copy_to(&chunk.tablespace().clone())?)
                } else {
                    chunk.clone()
                });
            }
            self.change(with_parts(table.def.clone(), &table, row_groups, delta));
            Ok(())
        })
    }

    /// Appends rows; they belong to this transaction once `absorb` returns.
    pub fn writer(&mut self, table: impl Into<RelationName>) -> Result<TableWriter> {
        let table = self.locked_table(&table.into())?;
        Ok(TableWriter::new(self.database.clone(), table))
    }

    /// Takes a writer's rows in. Returns how many.
    pub fn absorb(&mut self, writer: TableWriter) -> Result<u64> {
        QueryHeap::outside(|| self.absorb_outside(writer))
    }

    fn absorb_outside(&mut self, writer: TableWriter) -> Result<u64> {
        let rows = writer.rows();
        let id = writer.table().def.id;
        let (groups, rest) = writer.finish()?;
        let table = self
            .version()
            .table_by_id(id)
            .cloned()
            .ok_or_else(|| Error::internal("rows for a table that this transaction dropped"))?;
        if !self.locked.contains(&RelationName::from(&*table.def)) {
            return Err(Error::internal("rows for a table that this transaction has not locked"));
        }
        if rows == 0 {
            return Ok(0);
        }
        self.durable |= !groups.is_empty();
        self.encoded_rows += groups.iter().map(|group| group.rows() as u64).sum::<u64>();
        let mut row_groups = table.row_groups.clone();
        row_groups.extend(groups);
        let delta = self.extended_delta(&table, rest)?;
        let mut next = with_parts(table.def.clone(), &table, row_groups, delta);
        let delta_rows: usize = next.delta.iter().map(|chunk| chunk.batch().num_rows()).sum();
        if delta_rows >= ROW_GROUP_ROWS {
            next = self.merged(&next)?;
            self.durable = true;
        }
        self.change(next);
        Ok(rows)
    }

    /// The table's delta with `rest` behind it. Chunks are joined like the digits of a binary counter, so that there are
    /// few of them and each row is copied a logarithmic number of times.
    fn extended_delta(&self, table: &TableVersion, rest: Vec<RecordBatch>) -> Result<Vec<Arc<DeltaChunk>>> {
        let mut delta = table.delta.clone();
        let mut rows: usize = rest.iter().map(RecordBatch::num_rows).sum();
        if rows == 0 {
            return Ok(delta);
        }
        let mut joined = rest;
        while let Some(last) = delta.last().filter(|last| last.batch().num_rows() < 2 * rows) {
            rows += last.batch().num_rows();
            joined.insert(0, last.batch().clone());
            delta.pop();
        }
        let space = self.database.tablespaces().get(&table.placement.delta)?;
        let batch = concat(&table.def.arrow_schema(), &joined)?;
        delta.push(Arc::new(DeltaChunk::new(&batch, &space)?));
        Ok(delta)
    }

    /// Shows a command of this transaction in the database's progress until what is returned drops.
    pub fn start_progress(&self, command: &str, table: &TableDef, bytes_total: u64) -> Arc<Progress> {
        let name = self.version().shown_name(table);
        self.database.progress().start(command, &name, bytes_total)
    }

    /// Moves all delta rows of a table into main. Returns the rows moved.
    pub fn merge_table(&mut self, table: impl Into<RelationName>) -> Result<u64> {
        let table = table.into();
        QueryHeap::outside(|| self.merge_table_outside(&table))
    }

    fn merge_table_outside(&mut self, table: &RelationName) -> Result<u64> {
        let table = self.locked_table(table)?;
        let rows: u64 = table.delta.iter().map(|chunk| chunk.batch().num_rows() as u64).sum();
        if rows > 0 {
            let next = self.merged(&table)?;
            self.durable = true;
            self.change(next);
        }
        Ok(rows)
    }

    fn merged(&self, table: &TableVersion) -> Result<TableVersion> {
        let batches: Vec<RecordBatch> = table.delta.iter().map(|chunk| chunk.read_whole().clone()).collect();
        let groups = encode_all(&self.database, &table.def.arrow_schema(), &batches, &table.placement)?;
        let mut row_groups = table.row_groups.clone();
        row_groups.extend(groups);
        Ok(with_parts(table.def.clone(), table, row_groups, Vec::new()))
    }

    /// Publishes all changes at once. On an error nothing of them remains: 53100 when the data folder's disk is full.
    pub fn commit(mut self) -> Result<CommitTs> {
        let changes = std::mem::take(&mut self.changes);
        if changes.is_empty() {
            return Ok(self.database.version().commit_ts);
        }
        QueryHeap::outside(|| {
            let committed = self.database.publish(&changes, self.durable)?;
            if self.encoded_rows >= LOAD_ROWS {
                tidepool_heap::release(Release::All);
            }
            Ok(committed)
        })
    }

    pub fn rollback(self) {}
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.changes = Changes::default();
        self.database.locks.release(self.id, &self.locked);
    }
}

pub(crate) fn with_parts(
    def: Arc<TableDef>,
    table: &TableVersion,
    row_groups: Vec<Arc<RowGroup>>,
    delta: Vec<Arc<DeltaChunk>>,
) -> TableVersion {
    let mut next = TableVersion::new(def, table.placement.clone());
    next.row_groups = row_groups;
    next.delta = delta;
    next
}

pub(crate) fn column_position(table: &TableVersion, column: &str) -> Result<usize> {
    table.def.column_index(column).ok_or_else(|| {
        Error::new(
            SqlState::UNDEFINED_COLUMN,
            format!("column \"{column}\" of relation \"{}\" does not exist", table.def.name),
        )
    })
}

pub(crate) fn exists(name: &str) -> Error {
    Error::new(SqlState::DUPLICATE_TABLE, format!("relation \"{name}\" already exists"))
}

pub(crate) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.contains('\0') {
        return Err(Error::new(SqlState::INVALID_NAME, "a name must have at least one character, and no zero bytes"));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::new(SqlState::NAME_TOO_LONG, format!("identifier \"{name}\" is too long"))
            .with_detail(format!("The maximum length is {NAME_BYTES_MAX} bytes.")));
    }
    Ok(())
}
