//! Names to what they mean: the search path, and the relations of a statement's snapshot.

use crate::catalog;
use crate::errors::system_relation;
use crate::facts::SessionFacts;
use crate::statement::QualifiedName;
use std::sync::Arc;
use tidepool_base::{Error, Result, SchemaId, SqlState};
use tidepool_database::RelationName;
use tidepool_table::TableVersion;

/// What a relation's name stands for.
pub enum Relation {
    Table(Arc<TableVersion>),
    /// A table or view of `pg_catalog`, `information_schema` or `tidepool`.
    System(&'static catalog::SystemRelation),
}

impl Relation {
    pub fn oid(&self) -> u32 {
        match self {
            Relation::Table(table) => table.def.id.0,
            Relation::System(relation) => relation.oid,
        }
    }
}

/// The schemas that the session's path names, in order, as far as they exist.
pub fn named_path(facts: &SessionFacts) -> Vec<String> {
    let exists = |name: &String| catalog::schema_oid(facts, name).is_some();
    let named = facts.settings.search_path().into_iter();
    let mut path: Vec<String> = Vec::new();
    for name in named.map(|name| if name == "$user" { facts.user.clone() } else { name }).filter(exists) {
        if !path.contains(&name) {
            path.push(name);
        }
    }
    path
}

/// The schemas that names without one are looked up in: `pg_catalog` first unless the path places it.
pub fn search_path(facts: &SessionFacts) -> Vec<String> {
    let mut path = named_path(facts);
    if !path.iter().any(|schema| schema == "pg_catalog") {
        path.insert(0, "pg_catalog".to_owned());
    }
    path
}

/// The first schema of the path, in which objects are made.
pub fn current_schema(facts: &SessionFacts) -> Option<String> {
    named_path(facts).into_iter().next()
}

pub fn in_schema(facts: &SessionFacts, schema: &str, name: &str) -> Option<Relation> {
    match facts.version.schema(schema) {
        Some(schema) => {
            facts.version.table(RelationName::new(schema.id, name)).map(|table| Relation::Table(table.clone()))
        }
        None => catalog::system_relation(schema, name).map(Relation::System),
    }
}

pub fn relation(facts: &SessionFacts, schema: Option<&str>, name: &str) -> Option<Relation> {
    match schema {
        Some(schema) => in_schema(facts, schema, name),
        None => search_path(facts).iter().find_map(|schema| in_schema(facts, schema, name)),
    }
}

/// A schema of the users' own. 3F000 when there is none of that name, 42501 when it is the system's.
pub fn own_schema(facts: &SessionFacts, name: &str) -> Result<SchemaId> {
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
        None => match current_schema(facts) {
            Some(schema) => own_schema(facts, &schema)?,
            None => {
                return Err(Error::new(SqlState::INVALID_SCHEMA_NAME, "no schema has been selected to create in"));
            }
        },
    };
    Ok(RelationName::new(schema, &name.name))
}

/// A table that can be changed. 42P01 when there is none, 42501 for one of the system's.
pub fn table(facts: &SessionFacts, name: &QualifiedName) -> Result<Arc<TableVersion>> {
    match relation(facts, name.schema.as_deref(), &name.name) {
        Some(Relation::Table(table)) => Ok(table),
        Some(Relation::System(relation)) => Err(system_relation(relation.name)),
        None => Err(missing(name)),
    }
}

/// 42P01.
pub fn missing(name: &QualifiedName) -> Error {
    Error::new(SqlState::UNDEFINED_TABLE, format!("relation \"{name}\" does not exist"))
}
