//! Whom a statement works for, and what that role may do (PostgreSQL's privileges).
//!
//! What a statement reads is checked where names become plans (`query`), against the role that the query works for: a view's
//! query for the view's owner. All else that a statement needs is checked before it begins, from its syntax ([`check`]).
//! Superusers pass everything.

use crate::facts::SessionFacts;
use crate::resolve::{self, Relation};
use crate::statement::{AlterAction, Command, CommentOn, CopyEndpoint, CopySource, QualifiedName, fold};
use crate::walk::walk;
use datafusion::sql::sqlparser::ast;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use tidepool_base::{Error, Result, RoleId, SchemaId, SqlState};
use tidepool_database::{AccessKind, AccessObject, Catalog, Grant, LockMode, Privileges, RelationName, predefined};
use tidepool_table::TableDef;

/// A role that something is done for.
#[derive(Clone, Debug)]
pub struct Acting {
    pub id: RoleId,
    pub is_superuser: bool,
    pub may_create_roles: bool,
    /// Itself and those whose privileges it has.
    roles: BTreeSet<RoleId>,
}

fn denied(message: String) -> Error {
    Error::new(SqlState::INSUFFICIENT_PRIVILEGE, message)
}

impl Acting {
    /// A role that is not there any more may nothing.
    pub fn of(catalog: &Catalog, id: RoleId) -> Acting {
        let def = catalog.roles.get(&id);
        let is_superuser = def.is_some_and(|role| role.superuser);
        Acting {
            id,
            is_superuser,
            may_create_roles: is_superuser || def.is_some_and(|role| role.create_role),
            roles: if is_superuser { BTreeSet::from([id]) } else { catalog.roles_of(id, true) },
        }
    }

    /// Whether it has a role's privileges.
    pub fn has(&self, role: RoleId) -> bool {
        self.is_superuser || self.roles.contains(&role)
    }

    pub fn owns(&self, catalog: &Catalog, object: &AccessObject) -> bool {
        self.has(catalog.owner_of(object))
    }

    fn of_grants(&self, grants: &[Grant]) -> Privileges {
        let to_us =
            grants.iter().filter(|grant| grant.grantee == RoleId::PUBLIC || self.roles.contains(&grant.grantee));
        to_us.fold(Privileges::NONE, |all, grant| all.and(grant.privileges))
    }

    /// What it may do with an object, apart from its columns.
    pub fn privileges(&self, catalog: &Catalog, object: &AccessObject, kind: AccessKind) -> Privileges {
        // The schema of its session's own tables, which no statement of another finds.
        let is_own = matches!(object, AccessObject::Schema(id) if id.is_temporary());
        if self.is_superuser || is_own {
            return kind.privileges();
        }
        let mut all = self.of_grants(&catalog.access(object).grants(kind));
        if self.roles.contains(&predefined::READ_ALL_DATA) {
            all = all.and(match kind {
                AccessKind::Table | AccessKind::Sequence => Privileges::SELECT,
                AccessKind::Schema => Privileges::USAGE,
                _ => Privileges::NONE,
            });
        }
        if self.roles.contains(&predefined::WRITE_ALL_DATA) {
            all = all.and(match kind {
                AccessKind::Table => Privileges::INSERT.and(Privileges::UPDATE).and(Privileges::DELETE),
                AccessKind::Sequence => Privileges::UPDATE.and(Privileges::USAGE),
                AccessKind::Schema => Privileges::USAGE,
                _ => Privileges::NONE,
            });
        }
        all
    }

    /// What it may do with a column, by its number, without what it may do with all of the table.
    pub fn of_column(&self, catalog: &Catalog, table: &AccessObject, number: u16) -> Privileges {
        if self.is_superuser {
            return AccessKind::Column.privileges();
        }
        let access = catalog.access.get(table);
        access.and_then(|access| access.columns.get(&number)).map_or(Privileges::NONE, |grants| self.of_grants(grants))
    }

    /// Whether it may do this with some column at least.
    pub fn with_some_column(&self, catalog: &Catalog, table: &AccessObject, privilege: Privileges) -> bool {
        catalog
            .access
            .get(table)
            .is_some_and(|access| access.columns.values().any(|grants| self.of_grants(grants).has(privilege)))
    }

    pub fn check_superuser(&self, message: &str) -> Result<()> {
        if self.is_superuser { Ok(()) } else { Err(denied(message.to_owned())) }
    }

    pub fn may_see_all_statistics(&self) -> bool {
        [predefined::MONITOR, predefined::READ_ALL_STATS].into_iter().any(|role| self.has(role))
    }

    /// Whether it may end a session of that role.
    pub fn may_signal(&self, catalog: &Catalog, role: RoleId) -> bool {
        let is_superuser = catalog.roles.get(&role).is_some_and(|role| role.superuser);
        self.is_superuser || !is_superuser && (self.has(role) || self.has(predefined::SIGNAL_BACKEND))
    }
}

/// Of a relation of users: what it is, its id, and its name.
fn access_of(relation: &Relation) -> Option<(AccessKind, AccessObject, &str, &'static str)> {
    Some(match relation {
        Relation::Table(table) => (AccessKind::Table, AccessObject::Relation(table.def.id), &table.def.name, "table"),
        Relation::View(view) => (AccessKind::Table, AccessObject::Relation(view.id), &view.name, "view"),
        Relation::Sequence(sequence) => {
            (AccessKind::Sequence, AccessObject::Relation(sequence.def.id), &sequence.def.name, "sequence")
        }
        Relation::System(_) => return None,
    })
}

/// 42501 for a table.
pub fn denied_table(name: &str) -> Error {
    denied(format!("permission denied for table {name}"))
}

/// What a reader of a relation may read of it.
#[derive(Clone, Debug)]
pub enum Readable {
    All,
    /// Only the columns of which this is true.
    Columns(Vec<bool>),
}

/// Whether a query may read a relation. 42501.
pub fn check_read(facts: &SessionFacts, acting: &Acting, relation: &Relation) -> Result<Readable> {
    if acting.is_superuser {
        return Ok(Readable::All);
    }
    if let Relation::System(system) = relation {
        return match system.name {
            "pg_authid" | "pg_shadow" => Err(denied(format!("permission denied for table {}", system.name))),
            _ => Ok(Readable::All),
        };
    }
    let catalog = &facts.version.catalog;
    let Some((kind, object, name, what)) = access_of(relation) else { return Ok(Readable::All) };
    if acting.privileges(catalog, &object, kind).has(Privileges::SELECT) {
        return Ok(Readable::All);
    }
    if let Relation::Table(table) = relation
        && acting.with_some_column(catalog, &object, Privileges::SELECT)
    {
        let columns = table.def.columns.iter();
        let may = |number| acting.of_column(catalog, &object, number).has(Privileges::SELECT);
        return Ok(Readable::Columns(columns.map(|column| may(column.number)).collect()));
    }
    Err(denied(format!("permission denied for {what} {name}")))
}

/// As `check_read`, of a relation whose rows are locked: by whoever might change some column of them.
pub fn check_lock(facts: &SessionFacts, acting: &Acting, relation: &Relation) -> Result<Readable> {
    if let Some((kind, object, name, what)) = access_of(relation).filter(|_| !acting.is_superuser) {
        let catalog = &facts.version.catalog;
        let update = Privileges::UPDATE;
        if !acting.privileges(catalog, &object, kind).has(update) && !acting.with_some_column(catalog, &object, update)
        {
            return Err(denied(format!("permission denied for {what} {name}")));
        }
    }
    check_read(facts, acting, relation)
}

/// 42501 for a schema that the statement names and may not look into.
pub fn check_schema(facts: &SessionFacts, acting: &Acting, schema: Option<&str>) -> Result<()> {
    let Some(name) = schema else { return Ok(()) };
    facts.footing.schema(name);
    let Some(schema) = facts.version.schema(name) else { return Ok(()) };
    check_of_schema(facts, acting, schema.id, Privileges::USAGE)
}

fn check_of_schema(facts: &SessionFacts, acting: &Acting, id: SchemaId, privilege: Privileges) -> Result<()> {
    let object = AccessObject::Schema(id);
    match acting.privileges(&facts.version.catalog, &object, AccessKind::Schema).has(privilege) {
        true => Ok(()),
        false => Err(denied(format!("permission denied for schema {}", facts.version.schema_name(id)))),
    }
}

/// Whether names without a schema are looked up in this one.
pub fn is_usable(facts: &SessionFacts, schema: &str) -> bool {
    facts.role.is_superuser || check_schema(facts, &facts.role, Some(schema)).is_ok()
}

/// Whether the session may use a sequence for one of these. 42501.
pub fn check_sequence(facts: &SessionFacts, relation: &Relation, any: &[Privileges]) -> Result<()> {
    let Some((kind, object, name, what)) = access_of(relation).filter(|_| !facts.role.is_superuser) else {
        return Ok(());
    };
    let has = facts.role.privileges(&facts.version.catalog, &object, kind);
    match any.iter().any(|privilege| has.has(*privilege)) {
        true => Ok(()),
        false => Err(denied(format!("permission denied for {what} {name}"))),
    }
}

struct Check<'f> {
    facts: &'f SessionFacts,
    acting: &'f Acting,
    catalog: &'f Catalog,
}

/// What a statement needs beyond what its queries read. 42501. Objects that do not exist are another's to tell.
pub fn check(facts: &SessionFacts, command: &Command) -> Result<()> {
    if facts.role.is_superuser {
        return Ok(());
    }
    Check { facts, acting: &facts.role, catalog: &facts.version.catalog }.command(command)
}

impl Check<'_> {
    fn command(&self, command: &Command) -> Result<()> {
        match command {
            Command::Insert(insert, _) => self.insert(insert),
            Command::Update { update, .. } => self.update(update),
            Command::Delete { delete, .. } => self.delete(delete),
            Command::MergeInto { merge, .. } => self.merge(merge),
            Command::CreateTable { table, tablespace, partitions, .. } => {
                self.tablespace(tablespace.as_deref())?;
                if let Some((parent, _)) = &partitions.of {
                    self.own(parent)?;
                }
                self.references(table)?;
                let name = object_name(&table.name);
                let is_in_own = || resolve::makes_temporary(self.facts, name.schema.as_deref());
                if table.temporary || is_in_own() {
                    return self.make_temporary();
                }
                self.create_in(name.schema.as_deref())
            }
            Command::DropTables { names, .. }
            | Command::DropViews { names, .. }
            | Command::DropSequences { names, .. } => names.iter().try_for_each(|name| self.drop(name)),
            Command::AlterTable { name, actions, .. } => {
                self.own(name)?;
                actions.iter().try_for_each(|action| self.action(action))
            }
            Command::AlterView { name, action, .. } | Command::NameSequence { name, action, .. } => {
                self.own(name)?;
                self.action(action)
            }
            Command::AlterSequence { name, .. } => self.own(name),
            Command::CreateSequence { name, .. } => self.create_in(name.schema.as_deref()),
            Command::CreateView { name, or_replace, .. } => {
                if *or_replace && self.relation(name)?.is_some() {
                    self.own(name)?;
                }
                self.create_in(name.schema.as_deref())
            }
            Command::CreateIndex(clause) => {
                self.tablespace(clause.key.tablespace.as_deref())?;
                self.own(&clause.table)
            }
            Command::AlterIndex { name, .. } => self.own_index(name),
            Command::DropIndexes { names, .. } => names.iter().try_for_each(|name| self.own_index(name)),
            Command::Reindex { what, .. } => match what {
                crate::statement::Reindexed::Table(name) => self.maintain(name),
                crate::statement::Reindexed::Index(name) => self.own_index(name),
            },
            Command::CreateSchema { .. } => self.on_database(Privileges::CREATE),
            Command::AlterSchema { name, .. } => {
                self.own_schema(name)?;
                self.on_database(Privileges::CREATE)
            }
            Command::DropSchemas { names, .. } => names.iter().try_for_each(|name| self.own_schema(name)),
            Command::Truncate { names, .. } => {
                names.iter().try_for_each(|name| self.table(name, Privileges::TRUNCATE, &[]))
            }
            Command::LockTables { relations, mode, .. } => {
                relations.iter().try_for_each(|relation| self.lock(&relation.name, *mode))
            }
            Command::CreateTablespace { name, .. } => self
                .acting
                .check_superuser(&format!("permission denied to create tablespace \"{name}\""))
                .map_err(|error| error.with_hint("Must be superuser to create a tablespace.")),
            Command::AlterTablespace { name, .. } | Command::DropTablespace { name, .. } => self.own_tablespace(name),
            Command::Comment { about, .. } => match about {
                CommentOn::Table(name)
                | CommentOn::View(name)
                | CommentOn::Sequence(name)
                | CommentOn::Column(name, _)
                | CommentOn::Constraint(_, name) => self.own(name),
                CommentOn::Index(name) => self.own_index(name),
                CommentOn::Schema(name) => self.own_schema(name),
                CommentOn::Database(name) => self.own_other(&AccessObject::Database, &format!("database {name}")),
                CommentOn::Tablespace(name) => self.own_tablespace(name),
            },
            Command::Copy(copy) => self.copy(copy),
            Command::Declare { query, .. } => self.command(query.command()),
            Command::Explain { statement, .. } => self.command(statement.command()),
            Command::Checkpoint if self.acting.has(predefined::CHECKPOINT) => Ok(()),
            Command::Checkpoint => {
                Err(denied("must be superuser or have privileges of pg_checkpoint to do CHECKPOINT".to_owned()))
            }
            Command::Analyze { names } | Command::Vacuum { names, .. } => {
                names.iter().try_for_each(|name| self.maintain(name))
            }
            Command::Merge { table } => self.maintain(table),
            Command::Advise(_) if self.acting.has(predefined::MONITOR) => Ok(()),
            Command::ResetAccess
            | Command::Advise(_)
            | Command::Check
            | Command::Switchover(_)
            | Command::PoolYield { .. }
            | Command::Backup { .. } => {
                self.acting.check_superuser("permission denied: this procedure is for superusers")
            }
            // Each looks after its own.
            Command::Role(_) => Ok(()),
            // What their queries read is checked with them, and when a prepared statement is executed it comes by here.
            Command::Empty
            | Command::Query(_)
            | Command::Locking { .. }
            | Command::Begin { .. }
            | Command::Commit { .. }
            | Command::Rollback { .. }
            | Command::Savepoint { .. }
            | Command::Release { .. }
            | Command::RollbackTo { .. }
            | Command::Set { .. }
            | Command::SetTransaction { .. }
            | Command::SetConstraints { .. }
            | Command::SetSessionTransaction { .. }
            | Command::Reset { .. }
            | Command::Show { .. }
            | Command::DiscardAll
            | Command::DiscardSequences
            | Command::DiscardTemporary
            | Command::DoNothing { .. }
            | Command::Prepare { .. }
            | Command::Execute { .. }
            // As anybody may execute a function unless that is taken away. It works for the program that it is a part of.
            | Command::Call { .. }
            | Command::Deallocate { .. }
            | Command::Fetch { .. }
            | Command::Close { .. }
            | Command::Unsupported(_) => Ok(()),
        }
    }

    /// `None`: there is none, or one of the system's. 42501 when its schema may not be looked into.
    fn relation(&self, name: &QualifiedName) -> Result<Option<Relation>> {
        check_schema(self.facts, self.acting, name.schema.as_deref())?;
        let relation = resolve::relation(self.facts, name.schema.as_deref(), &name.name);
        Ok(relation.filter(|relation| !matches!(relation, Relation::System(_))))
    }

    fn own(&self, name: &QualifiedName) -> Result<()> {
        let Some(relation) = self.relation(name)? else { return Ok(()) };
        let Some((_, object, name, what)) = access_of(&relation) else { return Ok(()) };
        match self.acting.owns(self.catalog, &object) {
            true => Ok(()),
            false => Err(denied(format!("must be owner of {what} {name}"))),
        }
    }

    /// The owner of a schema may drop what is in it.
    fn drop(&self, name: &QualifiedName) -> Result<()> {
        let schema = match self.relation(name)? {
            Some(Relation::Table(table)) => table.def.schema,
            Some(Relation::View(view)) => view.schema,
            Some(Relation::Sequence(sequence)) => sequence.def.schema,
            _ => return Ok(()),
        };
        match self.acting.owns(self.catalog, &AccessObject::Schema(schema)) {
            true => Ok(()),
            false => self.own(name),
        }
    }

    fn own_index(&self, name: &QualifiedName) -> Result<()> {
        check_schema(self.facts, self.acting, name.schema.as_deref())?;
        let schemas = match &name.schema {
            Some(schema) => vec![schema.clone()],
            None => resolve::search_path(self.facts),
        };
        let found = schemas.iter().filter_map(|schema| self.facts.version.schema(schema)).find_map(|schema| {
            let name = RelationName::new(schema.id, &name.name);
            self.facts.footing.name(&name);
            self.facts.version.index(&name).map(|(table, _)| table.def.id)
        });
        found.into_iter().for_each(|table| self.facts.footing.relation(table));
        match found {
            Some(table) if !self.acting.owns(self.catalog, &AccessObject::Relation(table)) => {
                Err(denied(format!("must be owner of index {}", name.name)))
            }
            _ => Ok(()),
        }
    }

    fn own_schema(&self, name: &str) -> Result<()> {
        self.facts.footing.schema(name);
        match self.facts.version.schema(name) {
            Some(schema) if !self.acting.owns(self.catalog, &AccessObject::Schema(schema.id)) => {
                Err(denied(format!("must be owner of schema {name}")))
            }
            _ => Ok(()),
        }
    }

    fn own_tablespace(&self, name: &str) -> Result<()> {
        self.own_other(&AccessObject::Tablespace(name.to_owned()), &format!("tablespace {name}"))
    }

    fn own_other(&self, object: &AccessObject, shown: &str) -> Result<()> {
        match self.acting.owns(self.catalog, object) {
            true => Ok(()),
            false => Err(denied(format!("must be owner of {shown}"))),
        }
    }

    fn maintain(&self, name: &QualifiedName) -> Result<()> {
        if self.acting.has(predefined::MAINTAIN) { Ok(()) } else { self.own(name) }
    }

    fn on_database(&self, privilege: Privileges) -> Result<()> {
        let has = self.acting.privileges(self.catalog, &AccessObject::Database, AccessKind::Database);
        match has.has(privilege) {
            true => Ok(()),
            false => Err(denied(format!("permission denied for database {}", self.facts.database))),
        }
    }

    fn make_temporary(&self) -> Result<()> {
        let has = self.acting.privileges(self.catalog, &AccessObject::Database, AccessKind::Database);
        match has.has(Privileges::TEMPORARY) {
            true => Ok(()),
            false => {
                let database = self.facts.database;
                Err(denied(format!("permission denied to create temporary tables in database \"{database}\"")))
            }
        }
    }

    fn create_in(&self, schema: Option<&str>) -> Result<()> {
        let current = || resolve::current_schema(self.facts);
        let Some(schema) = schema.map(str::to_owned).or_else(current) else { return Ok(()) };
        match self.facts.version.schema(&schema) {
            Some(schema) => check_of_schema(self.facts, self.acting, schema.id, Privileges::CREATE),
            None => Ok(()),
        }
    }

    /// The tablespace that new tables go to anyway is for everybody.
    fn tablespace(&self, name: Option<&str>) -> Result<()> {
        let default = &self.facts.planner.database().config().default_tablespace;
        let Some(name) = name.filter(|name| name != default) else { return Ok(()) };
        let object = AccessObject::Tablespace(name.to_owned());
        match self.acting.privileges(self.catalog, &object, AccessKind::Tablespace).has(Privileges::CREATE) {
            true => Ok(()),
            false => Err(denied(format!("permission denied for tablespace {name}"))),
        }
    }

    /// `columns`: that the privilege is for, all of which may have it in place of the table. None: all of the table.
    fn table(&self, name: &QualifiedName, privilege: Privileges, columns: &[String]) -> Result<()> {
        let Some(relation) = self.relation(name)? else { return Ok(()) };
        let Some((kind, object, shown, what)) = access_of(&relation) else { return Ok(()) };
        if self.acting.privileges(self.catalog, &object, kind).has(privilege) {
            return Ok(());
        }
        let may = |def: &TableDef, column: &String| match def.columns.iter().find(|own| own.name == *column) {
            Some(own) => self.acting.of_column(self.catalog, &object, own.number).has(privilege),
            // The statement says what is wrong with it.
            None => true,
        };
        match &relation {
            Relation::Table(table) if !columns.is_empty() && columns.iter().all(|column| may(&table.def, column)) => {
                Ok(())
            }
            _ => Err(denied(format!("permission denied for {what} {shown}"))),
        }
    }

    /// One of several privileges, by how it is locked.
    fn lock(&self, name: &QualifiedName, mode: LockMode) -> Result<()> {
        let Some(relation) = self.relation(name)? else { return Ok(()) };
        let Some((kind, object, shown, what)) = access_of(&relation) else { return Ok(()) };
        let changing = [Privileges::UPDATE, Privileges::DELETE, Privileges::TRUNCATE];
        let beside: &[Privileges] = match mode {
            LockMode::AccessShare => &[Privileges::SELECT, Privileges::INSERT],
            LockMode::RowShare | LockMode::RowExclusive => &[Privileges::INSERT],
            _ => &[],
        };
        let has = self.acting.privileges(self.catalog, &object, kind);
        match changing.iter().chain(beside).any(|privilege| has.has(*privilege)) {
            true => Ok(()),
            false => Err(denied(format!("permission denied for {what} {shown}"))),
        }
    }

    /// What the foreign keys of a new table refer to.
    fn references(&self, table: &ast::CreateTable) -> Result<()> {
        let of_table = table.constraints.iter().filter_map(|constraint| match constraint {
            ast::TableConstraint::ForeignKey(key) => Some(key),
            _ => None,
        });
        let options = table.columns.iter().flat_map(|column| &column.options);
        let of_columns = options.filter_map(|option| match &option.option {
            ast::ColumnOption::ForeignKey(key) => Some(key),
            _ => None,
        });
        of_table.chain(of_columns).try_for_each(|key| {
            let columns: Vec<String> = key.referred_columns.iter().map(fold).collect();
            self.table(&object_name(&key.foreign_table), Privileges::REFERENCES, &columns)
        })
    }

    fn insert(&self, insert: &ast::Insert) -> Result<()> {
        let ast::TableObject::TableName(table) = &insert.table else { return Ok(()) };
        let name = object_name(table);
        let mut columns: Vec<String> = insert.columns.iter().map(column_name).collect();
        if columns.is_empty()
            && let Some(Relation::Table(table)) = self.relation(&name)?
        {
            columns = table.def.columns.iter().map(|column| column.name.clone()).collect();
        }
        self.table(&name, Privileges::INSERT, &columns)?;
        let mut read = Names::default();
        if let Some(ast::OnInsert::OnConflict(conflict)) = &insert.on {
            if let Some(ast::ConflictTarget::Columns(columns)) = &conflict.conflict_target {
                read.0.extend(columns.iter().map(fold));
            }
            if let ast::OnConflictAction::DoUpdate(update) = &conflict.action {
                self.table(&name, Privileges::UPDATE, &assigned(&update.assignments))?;
                for assignment in &update.assignments {
                    read.of(&assignment.value);
                }
                update.selection.iter().for_each(|selection| read.of(selection));
            }
        }
        read.of_items(insert.returning.as_ref());
        self.reads(&name, &read)
    }

    fn update(&self, update: &ast::Update) -> Result<()> {
        let ast::TableFactor::Table { name, .. } = &update.table.relation else { return Ok(()) };
        let name = object_name(name);
        self.table(&name, Privileges::UPDATE, &assigned(&update.assignments))?;
        let mut read = Names::default();
        update.assignments.iter().for_each(|assignment| read.of(&assignment.value));
        update.selection.iter().for_each(|selection| read.of(selection));
        read.of_items(update.returning.as_ref());
        self.reads(&name, &read)
    }

    fn delete(&self, delete: &ast::Delete) -> Result<()> {
        let (ast::FromTable::WithFromKeyword(from) | ast::FromTable::WithoutKeyword(from)) = &delete.from;
        let Some(ast::TableFactor::Table { name, .. }) = from.first().map(|from| &from.relation) else { return Ok(()) };
        let name = object_name(name);
        self.table(&name, Privileges::DELETE, &[])?;
        let mut read = Names::default();
        delete.selection.iter().for_each(|selection| read.of(selection));
        read.of_items(delete.returning.as_ref());
        self.reads(&name, &read)
    }

    fn merge(&self, merge: &ast::Merge) -> Result<()> {
        let ast::TableFactor::Table { name, .. } = &merge.table else { return Ok(()) };
        let name = object_name(name);
        let all = match self.relation(&name)? {
            Some(Relation::Table(table)) => table.def.columns.iter().map(|column| column.name.clone()).collect(),
            _ => Vec::new(),
        };
        let mut read = Names::default();
        read.of(&*merge.on);
        for clause in &merge.clauses {
            clause.predicate.iter().for_each(|predicate| read.of(predicate));
            match &clause.action {
                ast::MergeAction::Insert(insert) => {
                    let named: Vec<String> = insert.columns.iter().map(column_name).collect();
                    self.table(&name, Privileges::INSERT, if named.is_empty() { &all } else { &named })?;
                }
                ast::MergeAction::Update(update) if update.assignments.is_empty() => {}
                ast::MergeAction::Update(update) => {
                    self.table(&name, Privileges::UPDATE, &assigned(&update.assignments))?;
                    update.assignments.iter().for_each(|assignment| read.of(&assignment.value));
                }
                ast::MergeAction::Delete { .. } => self.table(&name, Privileges::DELETE, &[])?,
            }
        }
        if let Some(ast::OutputClause::Returning { select_items, .. }) = &merge.output {
            read.of_items(Some(select_items));
        }
        self.reads(&name, &read)
    }

    /// A statement that looks at its target's rows needs to read them: the columns that it names, which may be another
    /// table's of the same name, or all for a `*`.
    fn reads(&self, target: &QualifiedName, names: &Names) -> Result<()> {
        let Some(Relation::Table(table)) = self.relation(target)? else { return Ok(()) };
        let of_table = table.def.columns.iter().map(|column| &column.name);
        let columns: Vec<String> =
            of_table.filter(|name| names.0.contains(*name) || names.0.contains("*")).cloned().collect();
        if columns.is_empty() { Ok(()) } else { self.table(target, Privileges::SELECT, &columns) }
    }

    fn action(&self, action: &AlterAction) -> Result<()> {
        match action {
            AlterAction::SetTablespace { tablespace, .. } => self.tablespace(Some(tablespace)),
            AlterAction::SetSchema { schema } => self.create_in(Some(schema)),
            AlterAction::AttachPartition { name, .. } => self.own(name),
            AlterAction::AddForeignKey(key) => {
                self.table(&key.referenced, Privileges::REFERENCES, &key.referenced_columns)
            }
            _ => Ok(()),
        }
    }

    fn copy(&self, copy: &crate::statement::CopyStatement) -> Result<()> {
        let from = copy.from;
        if let CopyEndpoint::File(_) = &copy.endpoint {
            let (role, message) = match from {
                true => (
                    predefined::READ_SERVER_FILES,
                    "must be superuser or have privileges of the pg_read_server_files role to COPY from a file",
                ),
                false => (
                    predefined::WRITE_SERVER_FILES,
                    "must be superuser or have privileges of the pg_write_server_files role to COPY to a file",
                ),
            };
            if !self.acting.has(role) {
                return Err(denied(message.to_owned()).with_hint(
                    "Anyone can COPY to stdout or from stdin. psql's \\copy command also works for anyone.",
                ));
            }
        }
        match &copy.source {
            CopySource::Table { name, columns } => {
                let mut columns = columns.clone();
                if columns.is_empty()
                    && let Some(Relation::Table(table)) = self.relation(name)?
                {
                    columns = table.def.columns.iter().map(|column| column.name.clone()).collect();
                }
                self.table(name, if from { Privileges::INSERT } else { Privileges::SELECT }, &columns)
            }
            CopySource::Query(statement) => self.command(statement.command()),
        }
    }
}

/// Names of columns in expressions, without what they are qualified by; `*` among them for all.
#[derive(Default)]
struct Names(BTreeSet<String>);

impl Names {
    fn of(&mut self, node: &impl ast::Visit) {
        let _ = walk(node, self);
    }

    /// Of `RETURNING`.
    fn of_items(&mut self, items: Option<&Vec<ast::SelectItem>>) {
        for item in items.into_iter().flatten() {
            if matches!(item, ast::SelectItem::Wildcard(_) | ast::SelectItem::QualifiedWildcard(..)) {
                self.0.insert("*".to_owned());
            }
            self.of(item);
        }
    }
}

impl ast::Visitor for Names {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &ast::Expr) -> ControlFlow<()> {
        match expr {
            ast::Expr::Identifier(ident) => drop(self.0.insert(fold(ident))),
            ast::Expr::CompoundIdentifier(idents) => self.0.extend(idents.last().map(fold)),
            ast::Expr::Wildcard(_) | ast::Expr::QualifiedWildcard(..) => drop(self.0.insert("*".to_owned())),
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

fn assigned(assignments: &[ast::Assignment]) -> Vec<String> {
    let names = |target: &ast::AssignmentTarget| match target {
        ast::AssignmentTarget::ColumnName(name) => vec![column_name(name)],
        ast::AssignmentTarget::Tuple(names) => names.iter().map(column_name).collect(),
    };
    assignments.iter().flat_map(|assignment| names(&assignment.target)).collect()
}

fn column_name(name: &ast::ObjectName) -> String {
    name.0.last().and_then(ast::ObjectNamePart::as_ident).map(fold).unwrap_or_default()
}

pub fn object_name(name: &ast::ObjectName) -> QualifiedName {
    let mut parts = name.0.iter().rev().filter_map(ast::ObjectNamePart::as_ident).map(fold);
    let (own, schema) = (parts.next().unwrap_or_default(), parts.next());
    QualifiedName { schema, name: own }
}
