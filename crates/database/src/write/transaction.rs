//! Transactions: what they write of rows, and what they change of what exists.

use crate::catalog::relation::RelationName;
use crate::catalog::roles::AccessObject;
use crate::catalog::state::{Changes, DatabaseState};
use crate::database::Seat;
use crate::durability::commit::Committing;
use crate::durability::redo::Redo;
use crate::durability::transaction_ids::CurrentTransaction;
use crate::progress::Progress;
use crate::write::footing::Footing;
use crate::write::locks::{LockMode, Locker};
use crate::write::references::{References, ReferencesSavepoint};
use crate::{Database, DatabaseVersion, NewIndex, Patience, TemporaryTables};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidepool_base::{
    CommitTs, Error, Result, RoleId, RowId, SchemaId, SqlState, TableId, panic_point, without_unwinding,
};
use tidepool_heap::{QueryHeap, Release};
use tidepool_index::Fingers;
use tidepool_table::rows::{ReadLog, RowStore, WriteSet};
use tidepool_table::{ColumnDef, MergePolicy, Placement, ROW_GROUP_ROWS, Table, TableDef, TableIndex};
use tidepool_txn::{HeldSnapshot, Isolation, Worker};

/// PostgreSQL's limits, which its clients rely on.
const NAME_BYTES_MAX: usize = 63;
const COLUMNS_MAX: usize = 1600;

/// Rows of new row groups after which the memory that their making took is given back at once.
const LOAD_ROWS: u64 = 8 * ROW_GROUP_ROWS as u64;

/// Rows written after which a rollback gives their memory back at once.
const MANY_ROWS: usize = 1_000;

/// Rows that are written before it is asked whether the statement is to end: what takes far less than a millisecond.
const ROWS_UNASKED_MAX: u32 = 64;

/// Writes rows and changes what exists. What it makes outlives the statement that asked for it, so every change is made
/// outside the statement's heap. Rows it writes are its own until it ends, as are tables that it changes; readers see
/// the state before it until it commits. Dropped without `commit`, it leaves nothing behind.
pub struct Transaction {
    pub(crate) database: Arc<Database>,
    id: u64,
    /// Back to the database when the transaction is over.
    pub(crate) worker: Option<Worker>,
    redo: Option<Redo>,
    pub(crate) writes: WriteSet,
    /// Tables that rows were written of.
    pub(crate) written: BTreeMap<TableId, Arc<Table>>,
    pub(crate) changes: Changes,
    pub(crate) references: References,
    pub(crate) fingers: Fingers,
    /// Indexes that it dropped, or put others in the place of.
    left: Vec<Arc<TableIndex>>,
    /// What existed when the transaction's one snapshot was drawn; of the levels that have one.
    pub(crate) base: Option<Arc<DatabaseState>>,
    /// What the statement that runs reads.
    pub(crate) statement: Option<Arc<DatabaseVersion>>,
    /// If it is serializable: what its statements scan, until it goes to `writes`.
    reads: Option<Arc<ReadLog>>,
    /// Rows that it was to write or lock and that others changed meanwhile, locked; by table.
    pub(crate) newer: BTreeMap<TableId, BTreeSet<RowId>>,
    /// Those that others deleted meanwhile.
    pub(crate) gone: BTreeSet<(TableId, RowId)>,
    begun: bool,
    pub(crate) locked: BTreeMap<RelationName, LockMode>,
    /// Row groups were made, of tables that are not temporary.
    pub(crate) loaded: bool,
    commit_wait: CommitWait,
    /// Rows of row groups made.
    pub(crate) encoded_rows: u64,
    patience: Arc<dyn Patience>,
    /// Since `patience` was asked.
    rows_unasked: u32,
    /// Whose the objects are that it makes.
    pub(crate) role: RoleId,
    /// What the statement that runs was planned against.
    pub(crate) footing: Option<Arc<Footing>>,
    /// Of its session.
    current: Option<Arc<CurrentTransaction>>,
    /// Of its session, too.
    pub(crate) temporary: Option<Arc<TemporaryTables>>,
}

/// What a commit waits for before its client is told. Exhaustive and mutually exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitWait {
    None,
    /// The log has it on its device.
    Durable,
    /// And standbys show it, which is for the session to wait for ([`CurrentTransaction::take_commit`]).
    Applied,
}

/// What a transaction had done at one moment, for going back to it.
#[derive(Clone)]
pub struct Savepoint {
    changes: Changes,
    written: BTreeMap<TableId, Arc<Table>>,
    writes: tidepool_table::rows::Savepoint,
    locked: BTreeMap<RelationName, LockMode>,
    references: ReferencesSavepoint,
    left: usize,
}

impl Savepoint {
    pub(crate) fn locked(&self) -> &BTreeMap<RelationName, LockMode> {
        &self.locked
    }

    /// Rows that had been written, or locked.
    pub(crate) fn writes(&self) -> usize {
        self.writes.len()
    }
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

impl Database {
    /// 53300 when there are too many at a time.
    pub fn begin(self: &Arc<Self>) -> Result<Transaction> {
        self.begin_at(Isolation::ReadCommitted)
    }

    pub fn begin_at(self: &Arc<Self>, isolation: Isolation) -> Result<Transaction> {
        QueryHeap::outside(|| {
            let mut seat = self.take_seat()?;
            seat.worker.begin(isolation)?;
            Ok(Transaction::new(self.clone(), self.take_transaction_id(), seat))
        })
    }
}

impl Transaction {
    pub(crate) fn new(database: Arc<Database>, id: u64, seat: Seat) -> Transaction {
        Transaction {
            database,
            id,
            worker: Some(seat.worker),
            redo: seat.redo,
            writes: WriteSet::new(),
            written: BTreeMap::new(),
            changes: Changes::default(),
            references: References::default(),
            fingers: Fingers::default(),
            left: Vec::new(),
            base: None,
            statement: None,
            reads: None,
            newer: BTreeMap::new(),
            gone: BTreeSet::new(),
            begun: false,
            locked: BTreeMap::new(),
            loaded: false,
            commit_wait: CommitWait::Durable,
            encoded_rows: 0,
            patience: Arc::new(()),
            rows_unasked: 0,
            role: RoleId::OWNER,
            footing: None,
            current: None,
            temporary: None,
        }
    }

    /// Whose temporary tables it sees and may change.
    pub fn set_temporary(&mut self, temporary: Arc<TemporaryTables>) {
        self.temporary = Some(temporary);
    }

    /// Its client may ask for its id, and what has it by then is this transaction's.
    pub fn set_current(&mut self, current: Arc<CurrentTransaction>) {
        self.name_to(&current);
        self.current = Some(current);
    }

    /// Its session has it: views of locks name the session. `set_current` does so, too.
    #[inline]
    pub fn name_to(&self, current: &CurrentTransaction) {
        current.begin(self.worker().tag());
    }

    /// Its client has asked for its id: it is committed or rolled back, whatever it did.
    pub fn has_id(&self) -> bool {
        self.current.as_ref().is_some_and(|current| current.assigned_id().is_some())
    }

    /// For the life of the process; names the transaction in lock lists and deadlock messages.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What methods that take no function for it ask while they wait for others, and while they write, lock or copy rows.
    pub fn set_patience(&mut self, patience: Arc<dyn Patience>) {
        self.patience = patience;
    }

    /// Whether `commit` waits until the log has it on its device, as it does unless told otherwise (PostgreSQL's
    /// `synchronous_commit`). Where it does not, a crash may take the last commits away, and leaves none in part.
    pub fn set_synchronous(&mut self, synchronous: bool) {
        self.commit_wait = if synchronous { CommitWait::Durable } else { CommitWait::None };
    }

    pub fn set_commit_wait(&mut self, wait: CommitWait) {
        self.commit_wait = wait;
    }

    pub fn isolation(&self) -> Isolation {
        self.worker().isolation()
    }

    pub(crate) fn worker(&self) -> &Worker {
        self.worker.as_ref().expect("a transaction has a worker until it is dropped")
    }

    /// What writing rows takes.
    pub(crate) fn writing(&mut self) -> (&Worker, &mut WriteSet) {
        (self.worker.as_ref().expect("a transaction has a worker until it is dropped"), &mut self.writes)
    }

    pub(crate) fn patience(&self) -> Arc<dyn Patience> {
        self.patience.clone()
    }

    /// To be called for each row that is written or locked: an error when the statement is to end. Rows come by thousands in a
    /// batch, and each may take microseconds in many indexes.
    pub(crate) fn begin_row(&mut self) -> Result<()> {
        self.rows_unasked += 1;
        if self.rows_unasked < ROWS_UNASKED_MAX {
            return Ok(());
        }
        self.rows_unasked = 0;
        self.patience.check()
    }

    /// Its tag ends with the transaction, so others can wait for it.
    pub(crate) fn locker(&self) -> Locker {
        Locker { tag: self.worker().tag_to_write(), id: self.id }
    }

    /// What exists as this transaction sees it: the latest committed, or what did at its snapshot, with its changes
    /// over it.
    pub(crate) fn state(&self) -> Arc<DatabaseState> {
        self.with_changes(self.base.clone().unwrap_or_else(|| self.database.state()))
    }

    pub(crate) fn with_changes(&self, base: Arc<DatabaseState>) -> Arc<DatabaseState> {
        let base = match &self.temporary {
            Some(temporary) => temporary.over(base),
            None => base,
        };
        if self.changes.is_empty() { base } else { Arc::new(base.with(base.commit_ts, &self.changes)) }
    }

    /// A view, and what existed when it was drawn.
    fn look(&self, draw: impl Fn(&Worker) -> HeldSnapshot) -> (Arc<DatabaseState>, Arc<HeldSnapshot>) {
        loop {
            let view = draw(self.worker());
            if let Some(state) = self.database.state_as_of(&view) {
                return (state, Arc::new(view));
            }
        }
    }

    /// Begins the next statement: it sees what earlier ones wrote, and nothing of what it writes itself. Returns what
    /// it reads: as of now, or as of the transaction's snapshot.
    pub fn begin_statement(&mut self) -> Result<Arc<DatabaseVersion>> {
        QueryHeap::outside(|| {
            self.end_statement();
            if let Some(temporary) = self.temporary.as_ref().filter(|temporary| temporary.is_used()) {
                temporary.free_retired(self.worker(), self.database.is_following());
            }
            self.begun = true;
            self.worker().next_command()?;
            let (base, view) = match &self.base {
                Some(base) => (base.clone(), Arc::new(self.worker().hold())),
                None => self.look(|worker| {
                    worker.forget_snapshot();
                    worker.hold()
                }),
            };
            if self.isolation() != Isolation::ReadCommitted && self.base.is_none() {
                self.writes.exists_as_of(base.commit_ts);
                self.base = Some(base.clone());
            }
            self.database.check_snapshot(view.ts())?;
            let state = self.with_changes(base);
            if self.isolation() == Isolation::Serializable && self.reads.is_none() {
                self.reads = Some(Arc::default());
            }
            let version = Arc::new(self.version_of(state, view));
            self.statement = Some(version.clone());
            Ok(version)
        })
    }

    /// A statement has begun, at some time.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// The statement that was begun is over: it holds nothing back any more.
    pub fn end_statement(&mut self) {
        self.newer.clear();
        self.gone.clear();
        self.statement = None;
        if let Some(reads) = &self.reads {
            self.writes.read_logged(reads);
        }
    }

    /// What a statement found out by the way, other than by scanning: nobody may have changed any row of the table by the commit.
    pub(crate) fn read_all_of(&mut self, table: &Table) {
        if self.isolation() == Isolation::Serializable {
            QueryHeap::outside(|| self.writes.read_table(&table.rows));
        }
    }

    /// As `read_all_of`, of one row.
    pub(crate) fn read_row_of(&mut self, table: &Table, row: RowId) {
        if self.isolation() == Isolation::Serializable {
            QueryHeap::outside(|| self.writes.read_row(&table.rows, row));
        }
    }

    /// What the statement that runs reads, with what it changed of what exists; or what the next one would.
    pub fn version(&self) -> Arc<DatabaseVersion> {
        QueryHeap::outside(|| {
            let view = match &self.statement {
                Some(statement) if self.changes.is_empty() => return statement.clone(),
                Some(statement) => statement.view().clone(),
                None => {
                    // Only after four billion commands is it none: what was written since the last is then not seen.
                    let _ = self.worker().next_command();
                    let (base, view) = match &self.base {
                        Some(base) => (base.clone(), Arc::new(self.worker().hold())),
                        // The transaction's own snapshot is its first statement's to draw.
                        None => self.look(Worker::hold_now),
                    };
                    return Arc::new(self.version_of(self.with_changes(base), view));
                }
            };
            Arc::new(self.version_of(self.state(), view))
        })
    }

    fn version_of(&self, state: Arc<DatabaseState>, view: Arc<HeldSnapshot>) -> DatabaseVersion {
        let has_own_writes = self.loaded || !self.writes.is_empty();
        self.note_view(&state, &view);
        DatabaseVersion::new(state, view).with_reads(self.reads.clone()).with_own_writes(has_own_writes)
    }

    /// A statement is to look at a state through a view.
    pub(crate) fn note_view(&self, state: &DatabaseState, view: &Arc<HeldSnapshot>) {
        if let Some(temporary) = &self.temporary
            && self.database.is_following()
            && state.temporary_schema().is_some()
        {
            temporary.note_view(view);
        }
    }

    /// The running statement's; of one that is over with what it is for, if there is none.
    pub(crate) fn statement(&mut self) -> Result<Arc<DatabaseVersion>> {
        match &self.statement {
            Some(statement) => Ok(statement.clone()),
            None => self.begin_statement().inspect(|_| self.statement = None),
        }
    }

    /// Rows that going back on it has to undo.
    pub fn rows_written(&self) -> usize {
        self.writes.len()
    }

    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty() || !self.writes.is_empty()
    }

    /// The number that its client was told, if it asked.
    pub(crate) fn current_id(&self) -> Option<u64> {
        self.current.as_ref().and_then(|current| current.assigned_id())
    }

    pub(crate) fn has_left_indexes(&self) -> bool {
        !self.left.is_empty()
    }

    /// Whether others may have to wait until it is over.
    pub fn holds_locks(&self) -> bool {
        self.has_changes() || !self.locked.is_empty()
    }

    /// Remembers what was done so far. Tables are immutable, so this costs an entry for each table changed.
    pub fn savepoint(&self) -> Savepoint {
        QueryHeap::outside(|| Savepoint {
            changes: self.changes.clone(),
            written: self.written.clone(),
            writes: self.writes.savepoint(),
            locked: self.locked.clone(),
            references: self.references.savepoint(),
            left: self.left.len(),
        })
    }

    /// Undoes what was done since the savepoint, and gives up the locks taken since.
    pub fn roll_back_to(&mut self, savepoint: &Savepoint) {
        QueryHeap::outside(|| {
            // What was read stays read.
            self.end_statement();
            if let Some(worker) = &self.worker {
                // What is undone is reached under it.
                let _view = worker.snapshot_now();
                self.writes.undo_to(savepoint.writes, worker);
            }
            self.changes.clone_from(&savepoint.changes);
            self.written.clone_from(&savepoint.written);
            self.references.roll_back_to(&savepoint.references);
            self.left.drain(savepoint.left..).for_each(|index| index.set_left(false));
            let before = |name: &RelationName| savepoint.locked.get(name).copied();
            let changed = self.locked.iter().filter(|(name, mode)| before(name) != Some(**mode));
            self.database.locks.restore(self.locker(), changed.map(|(name, _)| (name, before(name))));
            self.locked.clone_from(&savepoint.locked);
        });
    }

    /// Takes the table's write lock until the transaction ends; waits in slices and calls `interrupted` between them
    /// (cancel, lock_timeout: return its error). 40P01 on a cycle, 42P01 when there is no such table.
    pub fn lock_table(&mut self, table: impl Into<RelationName>, interrupted: &dyn Fn() -> Result<()>) -> Result<()> {
        self.lock_table_as(table, LockMode::AccessExclusive, interrupted)
    }

    /// As `lock_table`, for changing rows: others may do so at the same time.
    pub fn lock_rows_of(&mut self, table: impl Into<RelationName>, interrupted: &dyn Fn() -> Result<()>) -> Result<()> {
        self.lock_table_as(table, LockMode::RowExclusive, interrupted)
    }

    /// As `lock_table`, in some mode.
    pub fn lock_table_as(
        &mut self,
        table: impl Into<RelationName>,
        mode: LockMode,
        interrupted: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let table = &table.into();
        self.table(table)?;
        self.lock_name_in(table, mode, interrupted)?;
        // Whoever held it may have dropped or renamed the table.
        let table = self.table(table)?;
        self.check_current(&table)
    }

    /// 40001 for a table of the transaction's snapshot that another has taken the place of since: its rows are nobody's.
    pub(crate) fn check_current(&self, table: &Arc<Table>) -> Result<()> {
        let is_own = table.def.is_temporary() || self.changes.tables.contains_key(&table.def.id);
        if self.base.is_none() || is_own {
            return Ok(());
        }
        let now = self.database.state();
        if now.tables.values().any(|now| Arc::ptr_eq(now, table) || table.serves_writers_of(now)) {
            return Ok(());
        }
        Err(Error::new(SqlState::SERIALIZATION_FAILURE, "could not serialize access due to concurrent update")
            .with_detail(format!("Table \"{}\" was altered since the transaction's snapshot.", table.def.name)))
    }

    /// As `lock_table`, for a name that no table has yet.
    pub fn lock_name(&mut self, name: impl Into<RelationName>, interrupted: &dyn Fn() -> Result<()>) -> Result<()> {
        self.lock_name_in(&name.into(), LockMode::AccessExclusive, interrupted)
    }

    fn lock_name_in(
        &mut self,
        name: &RelationName,
        mode: LockMode,
        interrupted: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let held = self.locked.get(name).copied();
        if held.is_none_or(|held| !held.covers(mode)) {
            if !name.schema.is_temporary() {
                self.database.check_writes()?;
            }
            QueryHeap::outside(|| {
                if !self.worker().is_hurried() {
                    self.database.locks.lock(self.locker(), name, mode, interrupted)?;
                } else if !self.database.locks.try_lock(self.locker(), name, mode) {
                    return Err(self.worker().held_up());
                }
                self.locked.insert(name.clone(), held.map_or(mode, |held| held.join(mode)));
                Ok(())
            })?;
        }
        if self.footing.is_some() { QueryHeap::outside(|| self.check_footing(name)) } else { Ok(()) }
    }

    pub(crate) fn lock_rows(&mut self, name: &RelationName) -> Result<()> {
        let patience = self.patience();
        self.lock_rows_of(name, &*patience.begin_wait())
    }

    pub(crate) fn lock(&mut self, name: &RelationName) -> Result<()> {
        self.lock_as(name, LockMode::AccessExclusive)
    }

    pub(crate) fn lock_as(&mut self, name: &RelationName, mode: LockMode) -> Result<()> {
        let patience = self.patience();
        self.lock_name_in(name, mode, &*patience.begin_wait())
    }

    /// Locks a table and returns what this transaction has of it. 42P01 when there is none.
    pub(crate) fn locked_table(&mut self, name: &RelationName) -> Result<Arc<Table>> {
        self.table(name)?;
        self.lock(name)?;
        self.table(name)
    }

    pub(crate) fn table(&self, name: &RelationName) -> Result<Arc<Table>> {
        table_of(&self.state(), name)
    }

    pub(crate) fn change(&mut self, next: Table) -> Arc<Table> {
        let next = Arc::new(next);
        let name = RelationName::from(&*next.def);
        let known = |state: &DatabaseState| match state.table(&name).filter(|table| table.def.id == next.def.id) {
            Some(table) => Some(table.clone()),
            // Renamed.
            None => state.tables.values().find(|table| table.def.id == next.def.id).cloned(),
        };
        let before = known(&self.state());
        if let Some(before) = before.as_ref().filter(|before| !Arc::ptr_eq(&before.rows, &next.rows)) {
            self.replace_store(&before.rows);
        }
        if before.as_ref().is_some_and(|before| before.def.partitioning != next.def.partitioning) {
            self.repartition(&next);
        }
        if let Some(before) = before.filter(|before| Arc::ptr_eq(&before.rows, &next.rows)) {
            let stays = |index: &&Arc<TableIndex>| next.indexes().iter().any(|other| Arc::ptr_eq(index, other));
            let left: Vec<_> = before.indexes().iter().filter(|index| !stays(index)).cloned().collect();
            left.iter().for_each(|index| index.set_left(true));
            self.left.extend(left);
        }
        self.changes.tables.insert(next.def.id, Some(next.clone()));
        next
    }

    /// A table that is locked does without these rows, or has others besides, from now on.
    fn replace_store(&mut self, rows: &Arc<RowStore>) {
        let (worker, writes) = self.writing();
        writes.redefined(rows, worker);
    }

    /// A table, and those that it is a part of, have other partitions from now on.
    fn repartition(&mut self, table: &Arc<Table>) {
        let mut table = Some(table.clone());
        while let Some(part) = table {
            self.replace_store(&part.rows);
            table = part.def.partition_of.and_then(|parent| self.state().table_of_id(parent).cloned());
        }
    }

    /// A table of this definition without rows.
    fn empty_table(&self, def: Arc<TableDef>, placement: Placement) -> Result<Table> {
        let rows = self.database.new_rows(&def, &placement)?;
        self.indexed(Table::new(def, placement, rows))
    }

    /// 42P07 when it exists, 42704 when a tablespace does not.
    pub fn create_table(
        &mut self,
        name: impl Into<RelationName>,
        columns: Vec<ColumnDef>,
        primary_key: Vec<usize>,
        placement: Placement,
    ) -> Result<Arc<Table>> {
        let name = name.into();
        QueryHeap::outside(|| self.create_table_outside(&name, columns, primary_key, placement))
    }

    fn create_table_outside(
        &mut self,
        name: &RelationName,
        columns: Vec<ColumnDef>,
        primary_key: Vec<usize>,
        placement: Placement,
    ) -> Result<Arc<Table>> {
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
        if self.state().is_taken(name) {
            return Err(exists(&name.name));
        }
        self.begin_schema(name.schema);
        let id = self.database.next_oid_in(name.schema);
        let mut def = TableDef { schema: name.schema, ..TableDef::new(id, &name.name, columns, primary_key) };
        if !def.primary_key.is_empty() {
            let numbers: Vec<u16> = def.primary_key.iter().map(|column| def.columns[*column].number).collect();
            let index = self.define(&def, NewIndex::primary_key(numbers))?;
            def.indexes.push(index);
        }
        let table = self.empty_table(Arc::new(def), placement)?;
        self.own(AccessObject::Relation(id));
        Ok(self.change(table))
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

    pub(crate) fn drop_table_outside(&mut self, name: &RelationName) -> Result<()> {
        self.leave_parent(name)?;
        let table = self.locked_table(name)?;
        self.check_nothing_pends(&table.def, "DROP TABLE")?;
        self.replace_store(&table.rows);
        self.changes.tables.insert(table.def.id, None);
        Ok(())
    }

    pub fn truncate(&mut self, name: impl Into<RelationName>) -> Result<()> {
        let name = name.into();
        QueryHeap::outside(|| self.truncate_outside(&name))
    }

    pub(crate) fn truncate_outside(&mut self, name: &RelationName) -> Result<()> {
        let table = self.locked_table(name)?;
        self.check_nothing_pends(&table.def, "TRUNCATE")?;
        let empty = self.empty_table(table.def.clone(), table.placement.clone())?;
        self.change(empty);
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
        check_move(name.schema, new_name.schema)?;
        let table = self.locked_table(name)?;
        self.lock(new_name)?;
        if self.state().is_taken(new_name) {
            return Err(match name.schema == new_name.schema {
                true => exists(&new_name.name),
                false => Error::new(
                    SqlState::DUPLICATE_TABLE,
                    format!(
                        "relation \"{}\" already exists in schema \"{}\"",
                        new_name.name,
                        self.state().schema_name(new_name.schema)
                    ),
                ),
            });
        }
        let RelationName { schema, name } = new_name.clone();
        let def = TableDef { schema, name, ..TableDef::clone(&table.def) };
        self.change(table.with_def(Arc::new(def)));
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
        self.change(table.with_def(Arc::new(def)));
        Ok(())
    }

    /// Shows a command of this transaction in the database's progress until what is returned drops.
    pub fn start_progress(&self, command: &str, table: &TableDef, bytes_total: u64) -> Arc<Progress> {
        let name = self.state().shown_name(table);
        self.database.progress().start(command, &name, bytes_total)
    }

    /// Publishes everything at once, and waits until it is durable. 23503 where a deferred foreign key does not hold, 40001 where a serializable transaction's reads do not
    /// hold still, 53100 when the log's device is full: nothing remains then. 58030 when the log has failed: what became of
    /// the transaction is known after the next start.
    pub fn commit(mut self) -> Result<CommitTs> {
        self.try_commit()
    }

    /// As `commit`. After an error it is to be rolled back, when there is time for it.
    pub fn try_commit(&mut self) -> Result<CommitTs> {
        self.end_statement();
        QueryHeap::outside(|| {
            if self.has_references() {
                self.check_all_references()?;
            }
            self.settle_temporary_tables()?;
            let committed = self.commit_outside()?;
            if self.encoded_rows >= LOAD_ROWS {
                tidepool_heap::release(Release::All);
            }
            Ok(committed)
        })
    }

    /// As `try_commit`, but for waiting until the commit is durable, which is the caller's to do where it is synchronous
    /// ([`Database::when_durable`]): the timestamp to wait for.
    pub fn decide_commit(&mut self) -> Result<Option<CommitTs>> {
        self.end_statement();
        QueryHeap::outside(|| {
            if self.has_references() {
                self.check_all_references()?;
            }
            self.settle_temporary_tables()?;
            let (committed, wrote) = self.commit_undurably()?;
            Ok((wrote && self.commit_wait != CommitWait::None).then_some(committed))
        })
    }

    /// Whether committing takes little more than its record: nothing that exists changes, and no foreign keys are left to be
    /// checked.
    pub fn commits_at_once(&self) -> bool {
        self.changes.is_empty()
            && !self.loaded
            && !self.has_references()
            && self.isolation() != Isolation::Serializable
            && self.writes.len() < MANY_ROWS
    }

    fn commit_outside(&mut self) -> Result<CommitTs> {
        let (committed, wrote) = self.commit_undurably()?;
        if wrote && self.commit_wait != CommitWait::None {
            self.database.wait_durable(committed)?;
        }
        Ok(committed)
    }

    /// The timestamp, and whether there was anything to be made durable.
    fn commit_undurably(&mut self) -> Result<(CommitTs, bool)> {
        panic_point("database.commit");
        if let Some(current) = &self.current
            && (self.writes.is_for_others() || self.changes.is_for_others() || current.assigned_id().is_some())
        {
            current.committing(&self.database)?;
        }
        // From here on, what is shared may say that it is committed before all that is shared does.
        without_unwinding(|| self.commit_decided())
    }

    fn commit_decided(&mut self) -> Result<(CommitTs, bool)> {
        if self.redo.is_none() {
            // The database may have come to write a log since this began.
            self.redo = self.database.new_redo()?;
        }
        let mut changes = std::mem::take(&mut self.changes);
        let own = self.temporary.as_ref().map(|_| changes.take_temporary()).unwrap_or_default();
        let Some(mut worker) = self.worker.take() else {
            return Err(Error::internal("a transaction without a worker"));
        };
        let patience = self.patience();
        let id = self.current.as_ref().and_then(|current| current.assigned_id());
        let commit = Committing {
            worker: &mut worker,
            writes: &mut self.writes,
            redo: self.redo.as_mut(),
            id: id.map(|id| (&self.database.transaction_ids, id)),
            written: &self.written,
            places: self.database.main_places.get().map(|places| &**places),
            interrupted: &|| patience.check(),
            patience: &*patience,
        };
        let wrote = commit.writes.is_for_others() || id.is_some();
        self.written.values().for_each(|table| table.begin_write());
        let committed = match changes.is_empty() && !self.loaded {
            true => commit.rows().map(|ts| ts.unwrap_or_else(|| self.database.state().commit_ts)),
            false => commit.publish(&self.database, &changes),
        };
        self.written.values().for_each(|table| table.end_write());
        self.worker = Some(worker);
        let committed = committed?;
        if let Some(temporary) = self.temporary.as_ref().filter(|_| !own.is_empty()) {
            temporary.apply(own, &self.database);
        }
        self.left.clear();
        let is_change = wrote || !changes.is_empty();
        if let Some(current) = &self.current {
            current.commit((is_change && self.commit_wait == CommitWait::Applied).then_some(committed));
        }
        if is_change {
            if self.written.values().any(|table| table.def.parameters.merge_policy() == MergePolicy::Immediate) {
                self.database.background.call();
            }
            self.database.rows_changed();
        }
        Ok((committed, is_change))
    }

    pub fn rollback(self) {}
}

impl Drop for Transaction {
    fn drop(&mut self) {
        QueryHeap::outside(|| {
            self.statement = None;
            self.base = None;
            if let Some(current) = self.current.take() {
                current.abort(&self.database);
            }
            self.changes = Changes::default();
            self.left.drain(..).for_each(|index| index.set_left(false));
            let Some(mut worker) = self.worker.take() else { return };
            worker.set_hurried(false);
            // Who waits looks when the tag has ended; after a commit, it has, and looks again a moment later.
            self.database.locks.forget(self.id, self.locked.keys());
            let written = self.writes.len() + self.encoded_rows as usize;
            worker.abort(|worker| self.writes.undo(worker));
            // Whoever waits for the end waits for freeing no longer than it takes to have it begun, but where the next one would
            // find no memory.
            if written >= MANY_ROWS && self.database.is_short_of_memory() {
                worker.collect();
                self.written.values().for_each(|table| table.rows.memory().trim());
            } else if written >= MANY_ROWS {
                self.database.background.call();
            }
            if let Some(redo) = &mut self.redo {
                redo.abandon();
            }
            self.database.give_back(Seat { worker, redo: self.redo.take() });
        });
    }
}

/// 42P01 when there is none.
pub(crate) fn table_of(state: &DatabaseState, name: &RelationName) -> Result<Arc<Table>> {
    let table = state.table(name).cloned();
    table.ok_or_else(|| Error::new(SqlState::UNDEFINED_TABLE, format!("relation \"{}\" does not exist", name.name)))
}

pub(crate) fn column_position(table: &Table, column: &str) -> Result<usize> {
    table.def.column_index(column).ok_or_else(|| {
        Error::new(
            SqlState::UNDEFINED_COLUMN,
            format!("column \"{column}\" of relation \"{}\" does not exist", table.def.name),
        )
    })
}

/// 0A000 for a relation that is to be one session's alone from now on, or no more.
pub(crate) fn check_move(from: SchemaId, to: SchemaId) -> Result<()> {
    match from != to && (from.is_temporary() || to.is_temporary()) {
        true => Err(Error::unsupported("cannot move objects into or out of temporary schemas")),
        false => Ok(()),
    }
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
