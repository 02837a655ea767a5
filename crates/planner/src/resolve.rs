//! Names to what they mean: the search path, and the relations of a statement's snapshot.

use crate::catalog::{self, visible};
use crate::errors::system_relation;
use crate::facts::SessionFacts;
use crate::statement::QualifiedName;
use std::sync::Arc;
use tidepool_base::{Error, Result, SchemaId, SqlState, TableId, nearest};
use tidepool_database::{RelationName, Sequence, ViewDef};
use tidepool_table::TableVersion;

/// The schema in which frozen queries name relations by id. No user can make a schema whose name begins like this.
pub const BY_ID: &str = "pg_oid";

/// What a relation's name stands for.
pub enum Relation {
    Table(Arc<TableVersion>),
    View(Arc<ViewDef>),
    Sequence(Arc<Sequence>),
    /// A table or view of `pg_catalog`, `information_schema` or `tidepool`.
    System(&'static catalog::SystemRelation),
}

impl Relation {
    pub fn oid(&self) -> u32 {
        match self {
            Relation::Table(table) => table.def.id.0,
            Relation::View(view) => view.id.0,
            Relation::Sequence(sequence) => sequence.def.id.0,
            Relation::System(relation) => relation.oid,
        }
    }
}

/// What a session calls the schema of its temporary tables.
pub const TEMPORARY: &str = "pg_temp";

/// The name of the schema of the session's temporary tables, if it has some.
fn own_schema_name(facts: &SessionFacts) -> Option<&str> {
    facts.version.temporary_schema().map(|id| facts.version.schema_name(id))
}

/// Whether a schema's name means that of the session's temporary tables.
pub fn is_temporary(facts: &SessionFacts, schema: &str) -> bool {
    schema == TEMPORARY || schema.starts_with("pg_temp_") && schema == facts.temporary.schema_name()
}

/// Whether a table that is made with this schema's name, or none, is temporary for that alone.
pub fn makes_temporary(facts: &SessionFacts, schema: Option<&str>) -> bool {
    match schema {
        Some(schema) => is_temporary(facts, schema),
        None => facts.settings.search_path().first().is_some_and(|first| is_temporary(facts, first)),
    }
}

/// The schemas that the session's path names, in order, as far as they exist.
pub fn named_path(facts: &SessionFacts) -> Vec<String> {
    let mut path: Vec<String> = Vec::new();
    for name in facts.settings.search_path() {
        facts.footing.schema(if name == "$user" { &facts.user } else { &name });
        let (name, exists) = match name.as_str() {
            // A role may be called as a schema of the system's is, which it does not mean.
            "$user" => (facts.user.clone(), facts.version.schema(&facts.user).is_some()),
            TEMPORARY => match own_schema_name(facts) {
                Some(own) => (own.to_owned(), true),
                None => (name, false),
            },
            _ => {
                let exists = catalog::schema_oid(facts, &name).is_some();
                (name, exists)
            }
        };
        if exists && !path.contains(&name) && crate::privileges::is_usable(facts, &name) {
            path.push(name);
        }
    }
    path
}

/// The schemas that names without one are looked up in: that of the session's temporary tables and `pg_catalog` first, unless the path places
/// them.
pub fn search_path(facts: &SessionFacts) -> Vec<String> {
    let mut path = named_path(facts);
    if !path.iter().any(|schema| schema == "pg_catalog") {
        path.insert(0, "pg_catalog".to_owned());
    }
    if let Some(own) = own_schema_name(facts)
        && !path.iter().any(|schema| schema == own)
    {
        path.insert(0, own.to_owned());
    }
    path
}

/// The first schema of the path, in which objects are made.
pub fn current_schema(facts: &SessionFacts) -> Option<String> {
    named_path(facts).into_iter().next()
}

pub fn in_schema(facts: &SessionFacts, schema: &str, name: &str) -> Option<Relation> {
    let schema = if schema == TEMPORARY { own_schema_name(facts)? } else { schema };
    facts.footing.schema(schema);
    match facts.version.schema(schema) {
        Some(schema) => {
            let name = RelationName::new(schema.id, name);
            facts.footing.name(&name);
            let table = facts.version.table(&name).map(|table| Relation::Table(table.clone()));
            let view = || facts.version.catalog.views.get(&name).map(|view| Relation::View(view.clone()));
            let sequence = || facts.version.catalog.sequences.get(&name).cloned().map(Relation::Sequence);
            table.or_else(view).or_else(sequence)
        }
        None if schema == BY_ID => by_id(facts, TableId(name.parse().ok()?)),
        None => catalog::system_relation(schema, name).map(Relation::System),
    }
}

/// A relation of users by its id.
pub fn by_id(facts: &SessionFacts, id: TableId) -> Option<Relation> {
    facts.footing.relation(id);
    let table = facts.version.table_by_id(id).map(|table| Relation::Table(table.clone()));
    let view = || facts.version.catalog.view_by_id(id).map(|view| Relation::View(view.clone()));
    let sequence = || facts.version.catalog.sequence_by_id(id).cloned().map(Relation::Sequence);
    table.or_else(view).or_else(sequence)
}

pub fn relation(facts: &SessionFacts, schema: Option<&str>, name: &str) -> Option<Relation> {
    match schema {
        Some(schema) => in_schema(facts, schema, name),
        None => search_path(facts).iter().find_map(|schema| in_schema(facts, schema, name)),
    }
}

/// A schema of the users' own. 3F000 when there is none of that name, 42501 when it is the system's.
pub fn own_schema(facts: &SessionFacts, name: &str) -> Result<SchemaId> {
    if is_temporary(facts, name) {
        return Ok(facts.temporary.schema(facts.planner.database()));
    }
    facts.footing.schema(name);
    match facts.version.schema(name) {
        Some(schema) => Ok(schema.id),
        None if catalog::schema_oid(facts, name).is_some() => Err(Error::new(
            SqlState::INSUFFICIENT_PRIVILEGE,
            format!("permission denied: \"{name}\" is a system schema"),
        )),
        None => Err(Error::new(SqlState::INVALID_SCHEMA_NAME, format!("schema \"{name}\" does not exist"))),
    }
}

/// Where an object of this name is made. 3F000 when the path has no schema.
pub fn new_name(facts: &SessionFacts, name: &QualifiedName) -> Result<RelationName> {
    let schema = match &name.schema {
        Some(schema) => own_schema(facts, schema)?,
        None if makes_temporary(facts, None) => own_schema(facts, TEMPORARY)?,
        None => match current_schema(facts) {
            Some(schema) => own_schema(facts, &schema)?,
            None => {
                return Err(Error::new(SqlState::INVALID_SCHEMA_NAME, "no schema has been selected to create in"));
            }
        },
    };
    Ok(RelationName::new(schema, &name.name))
}

/// Where a temporary table of this name is made. 42P16 when that is to be in another schema than the session's own.
pub fn new_temporary_name(facts: &SessionFacts, name: &QualifiedName) -> Result<RelationName> {
    if name.schema.as_ref().is_some_and(|schema| !is_temporary(facts, schema)) {
        let message = "cannot create temporary relation in non-temporary schema";
        return Err(Error::new(SqlState::INVALID_TABLE_DEFINITION, message));
    }
    Ok(RelationName::new(own_schema(facts, TEMPORARY)?, &name.name))
}

/// A table that can be changed. 42P01 when there is none, 42501 for one of the system's.
pub fn table(facts: &SessionFacts, name: &QualifiedName) -> Result<Arc<TableVersion>> {
    match relation(facts, name.schema.as_deref(), &name.name) {
        Some(Relation::Table(table)) => Ok(table),
        Some(Relation::View(view)) => {
            Err(Error::new(SqlState::WRONG_OBJECT_TYPE, format!("\"{}\" is not a table", view.name)))
        }
        Some(Relation::Sequence(sequence)) => {
            Err(Error::new(SqlState::WRONG_OBJECT_TYPE, format!("\"{}\" is not a table", sequence.def.name)))
        }
        Some(Relation::System(relation)) => Err(system_relation(relation.name)),
        None => Err(missing_among(facts, name)),
    }
}

/// 42P01.
pub fn missing(name: &QualifiedName) -> Error {
    Error::new(SqlState::UNDEFINED_TABLE, format!("relation \"{name}\" does not exist"))
}

/// As `missing`, with the relation that may have been meant: of those that the session's role may see.
pub fn missing_among(facts: &SessionFacts, name: &QualifiedName) -> Error {
    let path = match &name.schema {
        Some(schema) => vec![schema.clone()],
        None => named_path(facts),
    };
    let ids: Vec<SchemaId> =
        path.iter().filter_map(|schema| facts.version.schema(schema)).map(|schema| schema.id).collect();
    let tables = facts.version.tables.values().map(|table| (table.def.schema, table.def.id, &table.def.name));
    let views = facts.version.catalog.views.values().map(|view| (view.schema, view.id, &view.name));
    let own = tables.chain(views).filter(|(schema, id, _)| ids.contains(schema) && visible::relation(facts, *id));
    let of_system =
        catalog::relations::all().iter().filter(|relation| path.iter().any(|schema| schema == relation.schema));
    let names = own.map(|(_, _, name)| name.as_str()).chain(of_system.map(|relation| relation.name));
    let error = missing(name);
    match nearest(&name.name, names) {
        Some(near) => {
            let near = QualifiedName { schema: name.schema.clone(), name: near.to_owned() };
            error.with_hint(format!("Perhaps you meant to reference the relation \"{near}\"."))
        }
        None => error,
    }
}
