//! Schemas made, renamed and dropped by a transaction.

use crate::Transaction;
use crate::catalog::{RelationName, SchemaDef};
use crate::transaction::check_name;
use std::sync::Arc;
use tidepool_base::{Error, Result, SchemaId, SqlState};
use tidepool_heap::QueryHeap;

/// No schema's id: names of schemas are locked under it.
const NAMES_OF_SCHEMAS: SchemaId = SchemaId(0);

impl Transaction {
    /// 42P06 when it exists, 42939 for a name that is the system's.
    pub fn create_schema(&mut self, name: &str) -> Result<SchemaId> {
        QueryHeap::outside(|| {
            self.check_schema_name(name)?;
            let id = SchemaId(self.database.next_table_id().0);
            self.change_schema(id, Some(name));
            Ok(id)
        })
    }

    pub fn rename_schema(&mut self, name: &str, new_name: &str) -> Result<()> {
        QueryHeap::outside(|| {
            self.lock(&RelationName::new(NAMES_OF_SCHEMAS, name))?;
            let id = self.schema(name)?;
            self.check_schema_name(new_name)?;
            self.change_schema(id, Some(new_name));
            Ok(())
        })
    }

    /// Drops a schema that has nothing left in it. 3F000 when there is none, 2BP01 when it is not empty.
    pub fn drop_schema(&mut self, name: &str) -> Result<()> {
        QueryHeap::outside(|| {
            self.lock(&RelationName::new(NAMES_OF_SCHEMAS, name))?;
            let id = self.schema(name)?;
            if self.version().tables.keys().any(|table| table.schema == id) {
                return Err(Error::new(
                    SqlState::DEPENDENT_OBJECTS_STILL_EXIST,
                    format!("cannot drop schema {name} because other objects depend on it"),
                ));
            }
            self.change_schema(id, None);
            Ok(())
        })
    }

    fn schema(&self, name: &str) -> Result<SchemaId> {
        let schema = self.version().schema(name).map(|schema| schema.id);
        schema.ok_or_else(|| Error::new(SqlState::INVALID_SCHEMA_NAME, format!("schema \"{name}\" does not exist")))
    }

    fn check_schema_name(&mut self, name: &str) -> Result<()> {
        check_name(name)?;
        if name.starts_with("pg_") {
            return Err(Error::new(SqlState::RESERVED_NAME, format!("unacceptable schema name \"{name}\""))
                .with_detail("The prefix \"pg_\" is reserved for system schemas."));
        }
        self.lock(&RelationName::new(NAMES_OF_SCHEMAS, name))?;
        if matches!(name, "information_schema" | "tidepool") || self.version().schema(name).is_some() {
            return Err(Error::new(SqlState::DUPLICATE_SCHEMA, format!("schema \"{name}\" already exists")));
        }
        Ok(())
    }

    fn change_schema(&mut self, id: SchemaId, name: Option<&str>) {
        self.durable = true;
        let schema = name.map(|name| Arc::new(SchemaDef { id, name: name.to_owned() }));
        self.changes.schemas.insert(id, schema);
    }
}
