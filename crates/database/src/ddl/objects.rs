//! Schemas, views and sequences made, changed and dropped by a transaction.

use crate::catalog::relation::{RelationName, SchemaDef, ViewDef};
use crate::catalog::roles::AccessObject;
use crate::write::transaction::{check_move, check_name, exists};
use crate::{Sequence, SequenceDef, Transaction};
use std::sync::Arc;
use tidepool_base::{Error, Result, SchemaId, SqlState, TableId};
use tidepool_heap::QueryHeap;
use tidepool_table::TableDef;

/// No schema's id: names of schemas are locked under it.
const NAMES_OF_SCHEMAS: SchemaId = SchemaId(0);

impl Transaction {
    /// 42P06 when it exists, 42939 for a name that is the system's.
    pub fn create_schema(&mut self, name: &str) -> Result<SchemaId> {
        QueryHeap::outside(|| {
            self.check_schema_name(name)?;
            let id = SchemaId(self.database.next_table_id().0);
            self.change_schema(id, Some(name));
            self.own(AccessObject::Schema(id));
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
            if self.state().relations().any(|relation| relation.schema == id) {
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
        let schema = self.state().schema(name).map(|schema| schema.id);
        if schema.is_some_and(SchemaId::is_temporary) {
            return Err(Error::unsupported("temporary schemas cannot be changed or dropped")
                .with_hint("DISCARD TEMP drops all that is in it."));
        }
        schema.ok_or_else(|| Error::new(SqlState::INVALID_SCHEMA_NAME, format!("schema \"{name}\" does not exist")))
    }

    fn check_schema_name(&mut self, name: &str) -> Result<()> {
        check_name(name)?;
        if name.starts_with("pg_") {
            return Err(Error::new(SqlState::RESERVED_NAME, format!("unacceptable schema name \"{name}\""))
                .with_detail("The prefix \"pg_\" is reserved for system schemas."));
        }
        self.lock(&RelationName::new(NAMES_OF_SCHEMAS, name))?;
        if matches!(name, "information_schema" | "tidepool") || self.state().schema(name).is_some() {
            return Err(Error::new(SqlState::DUPLICATE_SCHEMA, format!("schema \"{name}\" already exists")));
        }
        Ok(())
    }

    /// Makes the session's own schema, if something is made in it for the first time.
    pub(crate) fn begin_schema(&mut self, id: SchemaId) {
        if id.is_temporary()
            && !self.state().catalog.schemas.contains_key(&id)
            && let Some(name) = self.temporary.as_ref().map(|temporary| temporary.schema_name())
        {
            self.change_schema(id, Some(&name));
        }
    }

    fn change_schema(&mut self, id: SchemaId, name: Option<&str>) {
        let schema = name.map(|name| Arc::new(SchemaDef { id, name: name.to_owned() }));
        self.changes.schemas.insert(id, schema);
    }

    // ----------------------------------------------------------------------------------------------------------- views

    /// Makes a view, or with `replace` puts it in the place of the one of its name, whose id it takes. 42P07 when the
    /// name is taken, 42809 when it is by something other than a view.
    pub fn create_view(&mut self, mut view: ViewDef, replace: bool) -> Result<TableId> {
        QueryHeap::outside(|| {
            let name = RelationName::from(&view);
            check_name(&name.name)?;
            check_lasts(&view)?;
            self.lock(&name)?;
            let version = self.state();
            view.id = match version.catalog.views.get(&name) {
                Some(before) if replace => before.id,
                None if !version.is_taken(&name) => self.database.next_table_id(),
                None if replace => {
                    return Err(Error::new(SqlState::WRONG_OBJECT_TYPE, format!("\"{}\" is not a view", name.name)));
                }
                _ => return Err(exists(&name.name)),
            };
            let id = view.id;
            if !version.catalog.views.contains_key(&name) {
                self.own(AccessObject::Relation(id));
            }
            self.change_view(id, Some(view));
            Ok(id)
        })
    }

    /// Gives a view another name, schema or columns' names. 42P07 when the name is taken.
    pub fn alter_view(&mut self, name: &RelationName, altered: ViewDef) -> Result<()> {
        QueryHeap::outside(|| {
            let new_name = RelationName::from(&altered);
            check_name(&new_name.name)?;
            check_move(name.schema, new_name.schema)?;
            self.lock(name)?;
            let before = self.view(name)?;
            if new_name != *name {
                self.lock(&new_name)?;
                if self.state().is_taken(&new_name) {
                    return Err(exists(&new_name.name));
                }
            }
            self.change_view(before.id, Some(altered));
            Ok(())
        })
    }

    pub fn drop_view(&mut self, name: &RelationName) -> Result<()> {
        QueryHeap::outside(|| {
            self.lock(name)?;
            let view = self.view(name)?;
            self.change_view(view.id, None);
            Ok(())
        })
    }

    fn view(&self, name: &RelationName) -> Result<Arc<ViewDef>> {
        self.state()
            .catalog
            .views
            .get(name)
            .cloned()
            .ok_or_else(|| Error::new(SqlState::UNDEFINED_TABLE, format!("view \"{}\" does not exist", name.name)))
    }

    fn change_view(&mut self, id: TableId, view: Option<ViewDef>) {
        self.changes.views.insert(id, view.map(Arc::new));
    }

    // ------------------------------------------------------------------------------------------------------- sequences

    /// Makes a sequence, whose ids are given here. 42P07 when the name is taken.
    pub fn create_sequence(&mut self, mut def: SequenceDef) -> Result<TableId> {
        QueryHeap::outside(|| {
            let name = RelationName::from(&def);
            check_name(&name.name)?;
            self.lock(&name)?;
            if self.state().is_taken(&name) {
                return Err(exists(&name.name));
            }
            self.begin_schema(name.schema);
            def.id = self.database.next_oid_in(name.schema);
            def.position_id = self.database.next_oid_in(name.schema).0;
            let id = def.id;
            self.change_sequence(id, Some(Sequence::new(def)));
            self.own(AccessObject::Relation(id));
            Ok(id)
        })
    }

    /// Gives a sequence another definition. With `restart` it goes on with that value, once this transaction has
    /// committed. 42P07 when the new name is taken.
    pub fn alter_sequence(&mut self, name: &RelationName, mut def: SequenceDef, restart: Option<i64>) -> Result<()> {
        QueryHeap::outside(|| {
            let new_name = RelationName::from(&def);
            check_name(&new_name.name)?;
            check_move(name.schema, new_name.schema)?;
            self.lock(name)?;
            let before = self.sequence(name)?;
            if new_name != *name {
                self.lock(&new_name)?;
                if self.state().is_taken(&new_name) {
                    return Err(exists(&new_name.name));
                }
            }
            let id = before.def.id;
            let altered = match restart {
                Some(value) => {
                    def.position_id = self.database.next_oid_in(def.schema).0;
                    Sequence::restarted(def, value)
                }
                None => before.with_def(def),
            };
            self.change_sequence(id, Some(altered));
            Ok(())
        })
    }

    pub fn drop_sequence(&mut self, name: &RelationName) -> Result<()> {
        QueryHeap::outside(|| {
            self.lock(name)?;
            let sequence = self.sequence(name)?;
            self.change_sequence(sequence.def.id, None);
            Ok(())
        })
    }

    fn sequence(&self, name: &RelationName) -> Result<Arc<Sequence>> {
        self.state()
            .catalog
            .sequences
            .get(name)
            .cloned()
            .ok_or_else(|| Error::new(SqlState::UNDEFINED_TABLE, format!("sequence \"{}\" does not exist", name.name)))
    }

    fn change_sequence(&mut self, id: TableId, sequence: Option<Sequence>) {
        self.changes.sequences.insert(id, sequence.map(Arc::new));
    }

    /// Changes a table's columns in what is not their values: names, defaults, constraints.
    pub fn set_table_def(&mut self, name: &RelationName, def: TableDef) -> Result<()> {
        QueryHeap::outside(|| {
            let table = self.locked_table(name)?;
            self.change(table.with_def(Arc::new(def)));
            Ok(())
        })
    }
}

/// 0A000 for a view that would be one session's alone.
fn check_lasts(view: &ViewDef) -> Result<()> {
    let reads_temporary = view.relations.iter().any(|relation| relation.id.is_temporary());
    match reads_temporary || view.schema.is_temporary() {
        true => Err(Error::unsupported("temporary views are not supported")
            .with_hint("A view of a temporary table would be temporary itself. Use a common table expression.")),
        false => Ok(()),
    }
}
