//! Relations and schemas as the catalogue has them: names, and the definitions that are no table's.

use serde::{Deserialize, Serialize};
use tidepool_base::{SchemaId, SqlType, TableId};
use tidepool_table::TableDef;

/// Where a relation is found: its schema, and its name there, which no other relation of the schema has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelationName {
    pub schema: SchemaId,
    pub name: String,
}

impl RelationName {
    pub fn new(schema: SchemaId, name: impl Into<String>) -> RelationName {
        RelationName { schema, name: name.into() }
    }
}

/// Schema `public`'s.
impl From<&str> for RelationName {
    fn from(name: &str) -> RelationName {
        RelationName::new(SchemaId::PUBLIC, name)
    }
}

/// Schema `public`'s.
impl From<&String> for RelationName {
    fn from(name: &String) -> RelationName {
        RelationName::new(SchemaId::PUBLIC, name)
    }
}

impl From<&RelationName> for RelationName {
    fn from(name: &RelationName) -> RelationName {
        name.clone()
    }
}

impl From<&TableDef> for RelationName {
    fn from(def: &TableDef) -> RelationName {
        RelationName::new(def.schema, &def.name)
    }
}

/// A schema: relations' names are looked up in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaDef {
    pub id: SchemaId,
    pub name: String,
}

/// A view: a query under a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewDef {
    pub id: TableId,
    pub schema: SchemaId,
    pub name: String,
    pub columns: Vec<ViewColumn>,
    /// SQL text in which relations of users are named by id, so that it means the same whatever they are called later.
    pub query: String,
    /// What the query reads.
    pub relations: Vec<ViewRelation>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewColumn {
    pub name: String,
    pub sql_type: SqlType,
    /// PostgreSQL's number for the type, which may be one that no table can hold.
    pub type_oid: u32,
    pub type_modifier: i32,
}

/// A relation that a view reads, as it was when the view was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewRelation {
    pub id: TableId,
    pub columns: Vec<ViewSource>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewSource {
    pub number: u16,
    /// As the query calls it.
    pub name: String,
    /// The query names it: it cannot go without the view.
    pub used: bool,
}

impl From<&ViewDef> for RelationName {
    fn from(view: &ViewDef) -> RelationName {
        RelationName::new(view.schema, &view.name)
    }
}
