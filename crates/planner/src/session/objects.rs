//! Schemas, and dropping of anything.

use super::{Notice, Outcome, Running, Session};
use crate::dependents::{self, Object, Shown};
use crate::facts::SessionFacts;
use crate::interrupt::Interrupt;
use crate::resolve::{self, Relation};
use crate::statement::{QualifiedName, RoleName};
use tidepool_base::{Error, Result, SchemaId, SqlState};
use tidepool_database::{Access, AccessObject, RelationName, Transaction};
use tidepool_table::TableDef;

/// The kinds of relations that `DROP` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Table,
    View,
    Sequence,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Table => "table",
            Kind::View => "view",
            Kind::Sequence => "sequence",
        }
    }
}

impl Session {
    pub(super) async fn create_schema(
        &mut self,
        text: &str,
        name: &str,
        if_not_exists: bool,
        owner: Option<&RoleName>,
    ) -> Result<Outcome> {
        let running = self.running(text);
        if if_not_exists && running.facts.version.schema(name).is_some() {
            self.notice("NOTICE", SqlState::DUPLICATE_SCHEMA, format!("schema \"{name}\" already exists, skipping"));
            return Ok(Outcome::command("CREATE SCHEMA"));
        }
        let name = name.to_owned();
        let owner = owner.map(|owner| self.member_role(&running.facts, owner)).transpose()?;
        let create = move |transaction: &mut Transaction, _: &Interrupt| {
            let id = transaction.create_schema(&name)?;
            if let Some(owner) = owner {
                transaction.set_access(AccessObject::Schema(id), Access::of(owner));
            }
            Ok(())
        };
        self.write(running, create).await?;
        Ok(Outcome::command("CREATE SCHEMA"))
    }

    pub(super) async fn rename_schema(&mut self, text: &str, name: &str, new_name: &str) -> Result<Outcome> {
        let running = self.running(text);
        resolve::own_schema(&running.facts, name)?;
        let (name, new_name) = (name.to_owned(), new_name.to_owned());
        self.write(running, move |transaction, _| transaction.rename_schema(&name, &new_name)).await?;
        Ok(Outcome::command("ALTER SCHEMA"))
    }

    pub(super) async fn drop_schemas(
        &mut self,
        text: &str,
        names: &[String],
        if_exists: bool,
        cascade: bool,
    ) -> Result<Outcome> {
        let running = self.running(text);
        let mut targets = Vec::with_capacity(names.len());
        for name in names {
            match resolve::own_schema(&running.facts, name) {
                Ok(id) => targets.push(Object::Schema(id)),
                Err(error) if if_exists && error.code() == SqlState::INVALID_SCHEMA_NAME => {
                    self.skipping(&format!("schema \"{name}\" does not exist"));
                }
                Err(error) => return Err(error),
            }
        }
        self.drop_objects(running, targets, cascade).await?;
        Ok(Outcome::command("DROP SCHEMA"))
    }

    pub(super) async fn drop_relations(
        &mut self,
        text: &str,
        kind: Kind,
        names: &[QualifiedName],
        if_exists: bool,
        cascade: bool,
    ) -> Result<Outcome> {
        let tag = format!("DROP {}", kind.name().to_uppercase());
        let running = self.running(text);
        let mut targets = Vec::with_capacity(names.len());
        for name in names {
            let found = match resolve::relation(&running.facts, name.schema.as_deref(), &name.name) {
                Some(Relation::Table(table)) => (Kind::Table, Object::Table(table.def.id)),
                Some(Relation::View(view)) => (Kind::View, Object::View(view.id)),
                Some(Relation::Sequence(sequence)) => (Kind::Sequence, Object::Sequence(sequence.def.id)),
                Some(Relation::System(relation)) => return Err(crate::errors::system_relation(relation.name)),
                None => {
                    self.missing(&running, name, kind.name(), if_exists)?;
                    continue;
                }
            };
            if found.0 != kind {
                let message = format!("\"{}\" is not a {}", name.name, kind.name());
                return Err(Error::new(SqlState::WRONG_OBJECT_TYPE, message).with_hint(format!(
                    "Use DROP {} to remove a {}.",
                    found.0.name().to_uppercase(),
                    found.0.name()
                )));
            }
            targets.push(found.1);
        }
        self.drop_objects(running, targets, cascade).await?;
        Ok(Outcome::command(tag))
    }

    pub(super) fn skipping(&mut self, message: &str) {
        self.notice("NOTICE", SqlState::SUCCESSFUL_COMPLETION, format!("{message}, skipping"));
    }

    /// The error for what is to be dropped and is not there, or with `IF EXISTS` a notice.
    fn missing(&mut self, running: &Running, name: &QualifiedName, kind: &str, if_exists: bool) -> Result<()> {
        let schema = name.schema.as_deref();
        let error = match schema.filter(|schema| crate::catalog::schema_oid(&running.facts, schema).is_none()) {
            Some(schema) => Error::new(SqlState::INVALID_SCHEMA_NAME, format!("schema \"{schema}\" does not exist")),
            None => Error::new(SqlState::UNDEFINED_TABLE, format!("{kind} \"{name}\" does not exist")),
        };
        if !if_exists {
            return Err(error);
        }
        self.skipping(error.message());
        Ok(())
    }

    /// Drops objects with all that depends on them, or, without `cascade`, none if anything does.
    async fn drop_objects(&mut self, running: Running, targets: Vec<Object>, cascade: bool) -> Result<()> {
        let path = path_ids(&running.facts);
        let dropping = self
            .write(running, move |transaction, interrupt| drop_all(transaction, interrupt, &path, &targets, cascade));
        let told = dropping.await?;
        self.notices.extend(told.map(|error| Notice { severity: "NOTICE", error }));
        Ok(())
    }
}

/// The search path.
pub(super) fn path_ids(facts: &SessionFacts) -> Vec<SchemaId> {
    let path = resolve::search_path(facts);
    path.iter().filter_map(|schema| facts.version.schema(schema).map(|schema| schema.id)).collect()
}

pub(super) fn drop_all(
    transaction: &mut Transaction,
    interrupt: &Interrupt,
    path: &[SchemaId],
    targets: &[Object],
    cascade: bool,
) -> Result<Option<Error>> {
    // While a table's lock is waited for, something else may come to depend on it.
    let (version, drops) = loop {
        let version = transaction.version();
        let drops = dependents::plan(&Shown { version: &version, path }, targets, cascade)?;
        for drop in &drops {
            if let Object::Table(id) | Object::Default(id, _) | Object::ForeignKey(id, _) = drop.object
                && let Some(table) = version.table_by_id(id)
            {
                transaction.lock_table(&*table.def, &interrupt.lock_wait())?;
            }
        }
        let now = transaction.version();
        if dependents::plan(&Shown { version: &now, path }, targets, cascade)? == drops {
            break (now, drops);
        }
    };
    let gone = || Error::new(SqlState::UNDEFINED_OBJECT, "an object was dropped by another transaction");
    for drop in &drops {
        match drop.object {
            Object::Schema(id) => {
                let schema = version.catalog.schemas.get(&id).ok_or_else(gone)?;
                transaction.drop_schema(&schema.name)?;
            }
            Object::Table(id) => {
                let table = version.table_by_id(id).ok_or_else(gone)?;
                transaction.drop_table(RelationName::from(&*table.def))?;
            }
            Object::View(id) => {
                let view = version.catalog.view_by_id(id).ok_or_else(gone)?;
                transaction.drop_view(&RelationName::from(&**view))?;
            }
            Object::Sequence(id) => {
                let sequence = version.catalog.sequence_by_id(id).ok_or_else(gone)?;
                transaction.drop_sequence(&RelationName::from(&sequence.def))?;
            }
            // Whoever drops a column rewrites its table, and whoever drops an index does that himself.
            Object::Column(..) | Object::Key(..) => {}
            Object::ForeignKey(id, oid) => {
                let now = transaction.version();
                let table = now.table_by_id(id).ok_or_else(gone)?;
                let key = table.def.foreign_keys.iter().find(|key| key.oid == oid).ok_or_else(gone)?;
                transaction.drop_foreign_key(&*table.def, &key.name)?;
            }
            Object::Default(id, number) => {
                let now = transaction.version();
                let table = now.table_by_id(id).ok_or_else(gone)?;
                let mut def = TableDef::clone(&table.def);
                for column in def.columns.iter_mut().filter(|column| column.number == number) {
                    column.default = None;
                }
                transaction.set_table_def(&RelationName::from(&*table.def), def)?;
            }
        }
    }
    Ok(dependents::notice(&Shown { version: &version, path }, &drops))
}
