//! What exists: one immutable state of the database, and what its tables take.

use crate::Sequence;
use crate::catalog::comment::{Commented, Comments};
use crate::catalog::relation::{RelationName, SchemaDef, ViewDef, ViewSource};
use crate::catalog::roles::{Access, AccessObject, RoleDef};
use crate::write::partition::PartitionTrees;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tidepool_base::{CommitTs, Error, Result, RoleId, SchemaId, SqlState, TableId};
use tidepool_table::rows::ReadLog;
use tidepool_table::{EncodingKind, Table, TableDef, TableVersion};
use tidepool_txn::{HeldSnapshot, Tag, Transactions, View};

/// What exists beside tables.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    pub schemas: BTreeMap<SchemaId, Arc<SchemaDef>>,
    pub views: BTreeMap<RelationName, Arc<ViewDef>>,
    pub sequences: BTreeMap<RelationName, Arc<Sequence>>,
    /// Also of what is there no more: see [`DatabaseState::comments`].
    pub comments: Comments,
    pub roles: BTreeMap<RoleId, Arc<RoleDef>>,
    /// Of objects that have another owner than the database, or of which something was granted.
    pub access: BTreeMap<AccessObject, Arc<Access>>,
}

impl Catalog {
    pub fn sequence_by_id(&self, id: TableId) -> Option<&Arc<Sequence>> {
        self.sequences.values().find(|sequence| sequence.def.id == id)
    }

    /// The sequences that go with a table's columns.
    pub fn owned_sequences(&self, table: TableId) -> impl Iterator<Item = &Arc<Sequence>> {
        self.sequences.values().filter(move |sequence| sequence.def.owner.is_some_and(|owner| owner.table == table))
    }

    pub fn view_by_id(&self, id: TableId) -> Option<&Arc<ViewDef>> {
        self.views.values().find(|view| view.id == id)
    }

    pub fn schema(&self, name: &str) -> Option<&Arc<SchemaDef>> {
        self.schemas.values().find(|schema| schema.name == name)
    }
}

/// What exists.
#[derive(Clone, Debug)]
pub struct DatabaseState {
    /// When it came to be.
    pub commit_ts: CommitTs,
    pub tables: BTreeMap<RelationName, Arc<Table>>,
    pub catalog: Arc<Catalog>,
    /// By table, the tables whose foreign keys refer to it.
    pub(crate) referencing: Arc<BTreeMap<TableId, Vec<TableId>>>,
    /// What tables are called.
    pub(crate) names: Arc<BTreeMap<TableId, RelationName>>,
    pub(crate) trees: Arc<PartitionTrees>,
}

/// What will exist when a transaction commits: a version of the state, as rows have versions. It is announced before the
/// transaction begins to commit, and stamped before its slot moves on, so a view finds out whether it includes it as it
/// does of a row: what a transaction writes and what it changes of what exists is seen together, or not at all.
#[derive(Debug)]
pub(crate) struct Coming {
    /// The transaction's tag, then its timestamp.
    begin: AtomicU64,
    state: Arc<DatabaseState>,
}

impl Coming {
    pub fn new(tag: Tag, state: DatabaseState) -> Coming {
        Coming { begin: AtomicU64::new(tag.word()), state: Arc::new(state) }
    }

    /// What exists from `ts` on, by another process's doing.
    pub fn at(ts: CommitTs, state: DatabaseState) -> Coming {
        Coming { begin: AtomicU64::new(ts.0), state: Arc::new(state) }
    }

    pub fn stamp(&self, ts: CommitTs) {
        // Release: as a row's version is stamped.
        self.begin.store(ts.0, Ordering::Release);
    }
}

/// The state that is committed, and the one that is to be.
#[derive(Debug)]
pub(crate) struct Current {
    pub state: Arc<DatabaseState>,
    pub coming: Option<Arc<Coming>>,
}

impl Current {
    /// What existed when a view was drawn; between that and this there was a full fence. `None`: what exists is newer.
    pub fn as_of(&self, transactions: &Transactions, view: &View) -> Option<Arc<DatabaseState>> {
        if self.state.commit_ts > view.ts() {
            return None;
        }
        let Some(coming) = &self.coming else {
            // Whoever comes now draws his timestamp after this look.
            return Some(self.state.clone());
        };
        match view.sees(transactions, &coming.begin, u32::MAX) {
            false => Some(self.state.clone()),
            // Nothing came between it and the view: that would have had to wait for it.
            true => Some(Arc::new(DatabaseState { commit_ts: view.ts(), ..DatabaseState::clone(&coming.state) })),
        }
    }
}

/// What exists, and what one view sees of tables' rows.
#[derive(Debug)]
pub struct DatabaseVersion {
    state: Arc<DatabaseState>,
    view: Arc<HeldSnapshot>,
    /// Tables that were asked for.
    seen: Mutex<BTreeMap<TableId, Arc<TableVersion>>>,
    /// Where a serializable transaction's scans are put down.
    reads: Option<Arc<ReadLog>>,
    /// Its transaction has written rows.
    has_own_writes: bool,
}

impl Deref for DatabaseVersion {
    type Target = DatabaseState;

    fn deref(&self) -> &DatabaseState {
        &self.state
    }
}

/// Tells states of what exists apart. Holds none of it.
#[derive(Clone, Debug)]
pub struct StateMark(Weak<DatabaseState>);

impl StateMark {
    pub fn is_of(&self, state: &Arc<DatabaseState>) -> bool {
        std::ptr::eq(Arc::as_ptr(state), self.0.as_ptr())
    }
}

impl DatabaseState {
    pub fn mark(self: &Arc<Self>) -> StateMark {
        StateMark(Arc::downgrade(self))
    }
}

impl DatabaseVersion {
    pub fn mark(&self) -> StateMark {
        StateMark(Arc::downgrade(&self.state))
    }

    /// Nothing was created, changed, dropped or granted in between.
    pub fn is_of(&self, mark: &StateMark) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.state), mark.0.as_ptr())
    }

    pub(crate) fn new(state: Arc<DatabaseState>, view: Arc<HeldSnapshot>) -> DatabaseVersion {
        DatabaseVersion { state, view, seen: Mutex::default(), reads: None, has_own_writes: false }
    }

    pub(crate) fn with_reads(self, reads: Option<Arc<ReadLog>>) -> DatabaseVersion {
        DatabaseVersion { reads, ..self }
    }

    pub(crate) fn with_own_writes(self, has_own_writes: bool) -> DatabaseVersion {
        DatabaseVersion { has_own_writes, ..self }
    }

    pub fn state(&self) -> &Arc<DatabaseState> {
        &self.state
    }

    pub fn view(&self) -> &Arc<HeldSnapshot> {
        &self.view
    }

    fn seen(&self, table: &Arc<Table>) -> Arc<TableVersion> {
        let mut seen = self.seen.lock();
        let of = || {
            let version = TableVersion::of(table, &self.view).with_reads(self.reads.clone());
            Arc::new(version.with_own_writes(self.has_own_writes))
        };
        seen.entry(table.def.id).or_insert_with(of).clone()
    }

    pub fn table(&self, name: impl Into<RelationName>) -> Option<Arc<TableVersion>> {
        self.state.tables.get(&name.into()).map(|table| self.seen(table))
    }

    pub fn table_by_id(&self, id: TableId) -> Option<Arc<TableVersion>> {
        self.state.table_of_id(id).map(|table| self.seen(table))
    }

    /// All tables.
    pub fn versions(&self) -> impl Iterator<Item = Arc<TableVersion>> {
        self.state.tables.values().map(|table| self.seen(table))
    }
}

/// What a transaction does to the state before it: by id what takes an object's place, `None` for one that goes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    pub tables: BTreeMap<TableId, Option<Arc<Table>>>,
    pub schemas: BTreeMap<SchemaId, Option<Arc<SchemaDef>>>,
    pub views: BTreeMap<TableId, Option<Arc<ViewDef>>>,
    pub sequences: BTreeMap<TableId, Option<Arc<Sequence>>>,
    pub comments: BTreeMap<Commented, Option<Arc<str>>>,
    pub roles: BTreeMap<RoleId, Option<Arc<RoleDef>>>,
    pub access: BTreeMap<AccessObject, Option<Arc<Access>>>,
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty() && !self.of_catalog()
    }

    /// Something other than a table changes.
    fn of_catalog(&self) -> bool {
        !self.schemas.is_empty()
            || !self.views.is_empty()
            || !self.sequences.is_empty()
            || !self.comments.is_empty()
            || !self.roles.is_empty()
            || !self.access.is_empty()
    }

    /// Objects appear or go, on which others may depend.
    fn of_objects(&self) -> bool {
        self.of_catalog() || self.tables.values().any(Option::is_none)
    }
}

impl DatabaseState {
    pub(crate) fn table(&self, name: &RelationName) -> Option<&Arc<Table>> {
        self.tables.get(name)
    }

    pub fn schema(&self, name: &str) -> Option<&Arc<SchemaDef>> {
        self.catalog.schema(name)
    }

    pub fn schema_name(&self, id: SchemaId) -> &str {
        self.catalog.schemas.get(&id).map_or("", |schema| &schema.name)
    }

    /// A relation of this name exists.
    pub fn is_taken(&self, name: &RelationName) -> bool {
        self.tables.contains_key(name)
            || self.catalog.views.contains_key(name)
            || self.catalog.sequences.contains_key(name)
            || self.index(name).is_some()
    }

    /// A table's name for people: alone in schema `public`, elsewhere with its schema's.
    pub fn shown_name(&self, def: &TableDef) -> String {
        match def.schema {
            SchemaId::PUBLIC => def.name.clone(),
            schema => format!("{}.{}", self.schema_name(schema), def.name),
        }
    }

    /// This state with objects replaced, added (`Some`) or removed (`None`).
    pub(crate) fn with(&self, commit_ts: CommitTs, changes: &Changes) -> Self {
        let mut tables: BTreeMap<_, _> =
            self.tables.iter().filter(|(_, table)| !changes.tables.contains_key(&table.def.id)).map(cloned).collect();
        for table in changes.tables.values().flatten() {
            tables.insert(RelationName::from(&*table.def), table.clone());
        }
        let mut catalog = self.catalog.clone();
        if changes.of_catalog() {
            let catalog = Arc::make_mut(&mut catalog);
            for (id, schema) in &changes.schemas {
                match schema {
                    Some(schema) => drop(catalog.schemas.insert(*id, schema.clone())),
                    None => drop(catalog.schemas.remove(id)),
                }
            }
            catalog.views.retain(|_, view| !changes.views.contains_key(&view.id));
            for view in changes.views.values().flatten() {
                catalog.views.insert(RelationName::from(&**view), view.clone());
            }
            catalog.sequences.retain(|_, sequence| !changes.sequences.contains_key(&sequence.def.id));
            for sequence in changes.sequences.values().flatten() {
                catalog.sequences.insert(RelationName::from(&sequence.def), sequence.clone());
            }
            for (about, text) in &changes.comments {
                match text {
                    Some(text) => drop(catalog.comments.insert(about.clone(), text.clone())),
                    None => drop(catalog.comments.remove(about)),
                }
            }
            for (id, role) in &changes.roles {
                match role {
                    Some(role) => drop(catalog.roles.insert(*id, role.clone())),
                    None => drop(catalog.roles.remove(id)),
                }
            }
            for (object, access) in &changes.access {
                match access {
                    Some(access) => drop(catalog.access.insert(object.clone(), access.clone())),
                    None => drop(catalog.access.remove(object)),
                }
            }
        }
        let refers = |table: &Arc<Table>| !table.def.foreign_keys.is_empty();
        let referencing = match self.referencing.is_empty() && !changes.tables.values().flatten().any(refers) {
            true => self.referencing.clone(),
            false => Arc::new(referencing(&tables)),
        };
        let trees = match changes.tables.is_empty() {
            true => self.trees.clone(),
            false => Arc::default(),
        };
        let names = match changes.tables.is_empty() {
            true => self.names.clone(),
            false => names_of(&tables),
        };
        let mut next = DatabaseState { commit_ts, tables, catalog, referencing, names, trees };
        if changes.of_objects() && !next.catalog.access.is_empty() {
            next.forget_access_to_missing();
        }
        next
    }

    /// What goes takes with it what was granted of it.
    pub(crate) fn forget_access_to_missing(&mut self) {
        let access = &self.catalog.access;
        let missing: Vec<AccessObject> = access.keys().filter(|object| !self.has_object(object)).cloned().collect();
        if !missing.is_empty() {
            let catalog = Arc::make_mut(&mut self.catalog);
            catalog.access.retain(|object, _| !missing.contains(object));
        }
    }

    pub(crate) fn new(
        commit_ts: CommitTs,
        tables: BTreeMap<RelationName, Arc<Table>>,
        catalog: Arc<Catalog>,
    ) -> DatabaseState {
        DatabaseState {
            commit_ts,
            referencing: Arc::new(referencing(&tables)),
            names: names_of(&tables),
            tables,
            catalog,
            trees: Arc::default(),
        }
    }

    pub fn table_of_id(&self, id: TableId) -> Option<&Arc<Table>> {
        self.names.get(&id).and_then(|name| self.tables.get(name))
    }

    /// Names of all relations.
    pub fn relations(&self) -> impl Iterator<Item = &RelationName> {
        self.tables.keys().chain(self.catalog.views.keys()).chain(self.catalog.sequences.keys())
    }

    /// Whether what this state has still stands on what it needs, after `changes` that were made over an earlier one.
    /// Locks keep two transactions off the same name; what an object depends on is not locked for it. 3F000 for a
    /// schema that another transaction dropped, 2BP01 where another made something that depends on what this one drops.
    pub(crate) fn check_dependencies(&self, changes: &Changes) -> Result<()> {
        let schema_dropped = |name: &str| {
            Error::new(
                SqlState::INVALID_SCHEMA_NAME,
                format!("the schema of relation \"{name}\" was dropped by another transaction"),
            )
        };
        for table in changes.tables.values().flatten() {
            if !self.catalog.schemas.contains_key(&table.def.schema) {
                return Err(schema_dropped(&table.def.name));
            }
        }
        let meanwhile = |name: &str| {
            Error::new(SqlState::DEPENDENT_OBJECTS_STILL_EXIST, "cannot drop an object because others depend on it")
                .with_detail(format!("Another transaction created \"{name}\", which depends on it."))
        };
        for view in self.catalog.views.values() {
            let ours = matches!(changes.views.get(&view.id), Some(Some(_)));
            let changed = |id: &TableId| ours || changes.tables.contains_key(id);
            for relation in view.relations.iter().filter(|relation| changed(&relation.id)) {
                let Some(table) = self.table_of_id(relation.id) else { continue };
                let lacks = |column: &&ViewSource| column.used && table.def.column_by_number(column.number).is_none();
                let Some(column) = relation.columns.iter().find(lacks) else { continue };
                let message = format!("column \"{}\" does not exist", column.name);
                return Err(if ours { Error::new(SqlState::UNDEFINED_COLUMN, message) } else { meanwhile(&view.name) });
            }
        }
        if !changes.of_objects() {
            return Ok(());
        }
        if let Some(left) = self.relations().find(|name| !self.catalog.schemas.contains_key(&name.schema)) {
            let views = changes.views.values().flatten().map(|view| RelationName::from(&**view));
            let sequences = changes.sequences.values().flatten().map(|sequence| RelationName::from(&sequence.def));
            let ours = views.chain(sequences).any(|name| name == *left);
            return Err(if ours { schema_dropped(&left.name) } else { meanwhile(&left.name) });
        }
        let has_table = |id: TableId| self.tables.values().any(|table| table.def.id == id);
        let exists = |id: TableId| has_table(id) || self.catalog.view_by_id(id).is_some();
        for view in self.catalog.views.values() {
            if view.relations.iter().any(|relation| !exists(relation.id)) {
                let ours = matches!(changes.views.get(&view.id), Some(Some(_)));
                return Err(if ours {
                    Error::new(
                        SqlState::UNDEFINED_TABLE,
                        format!("a relation that view \"{}\" reads was dropped by another transaction", view.name),
                    )
                } else {
                    meanwhile(&view.name)
                });
            }
        }
        Ok(())
    }
}

/// By table, the tables whose foreign keys refer to it.
fn referencing(tables: &BTreeMap<RelationName, Arc<Table>>) -> BTreeMap<TableId, Vec<TableId>> {
    let mut all: BTreeMap<TableId, Vec<TableId>> = BTreeMap::new();
    for table in tables.values() {
        for key in &table.def.foreign_keys {
            let of_parent = all.entry(key.referenced).or_default();
            if !of_parent.contains(&table.def.id) {
                of_parent.push(table.def.id);
            }
        }
    }
    all
}

fn names_of(tables: &BTreeMap<RelationName, Arc<Table>>) -> Arc<BTreeMap<TableId, RelationName>> {
    Arc::new(tables.iter().map(|(name, table)| (table.def.id, name.clone())).collect())
}

fn cloned((name, table): (&RelationName, &Arc<Table>)) -> (RelationName, Arc<Table>) {
    (name.clone(), table.clone())
}

/// What one column's main takes.
#[derive(Clone, Debug, Default)]
pub struct ColumnSize {
    pub tablespace: String,
    /// As plain Arrow.
    pub raw_bytes: u64,
    pub encoded_bytes: u64,
    /// Each encoding once, with the number of segments that use it.
    pub encodings: Vec<(EncodingKind, usize)>,
}

/// What a table takes. What of main turns out to be damaged is left out of all but the encoded bytes.
#[derive(Clone, Debug, Default)]
pub struct TableSize {
    pub main_rows: u64,
    pub delta_rows: u64,
    pub delta_bytes: u64,
    pub row_groups: usize,
    pub columns: Vec<ColumnSize>,
}

impl TableSize {
    pub fn of(table: &TableVersion) -> TableSize {
        let mut columns: Vec<ColumnSize> = (0..table.def.columns.len())
            .map(|column| ColumnSize { tablespace: table.placement.column(column).to_owned(), ..ColumnSize::default() })
            .collect();
        for group in &table.row_groups {
            for (segment, column) in group.segments().iter().zip(&mut columns) {
                column.raw_bytes += segment.raw_bytes().unwrap_or_default();
                column.encoded_bytes += segment.encoded_bytes();
                let Ok(encoding) = segment.encoding() else { continue };
                match column.encodings.iter_mut().find(|(kind, _)| *kind == encoding) {
                    Some((_, count)) => *count += 1,
                    None => column.encodings.push((encoding, 1)),
                }
            }
        }
        TableSize {
            main_rows: table.main_rows(),
            delta_rows: table.delta_rows(),
            delta_bytes: table.delta_bytes(),
            row_groups: table.row_groups.len(),
            columns,
        }
    }

    pub fn main_raw_bytes(&self) -> u64 {
        self.columns.iter().map(|column| column.raw_bytes).sum()
    }

    pub fn main_bytes(&self) -> u64 {
        self.columns.iter().map(|column| column.encoded_bytes).sum()
    }
}
