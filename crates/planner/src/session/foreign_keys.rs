//! Foreign keys: made and dropped by `ALTER TABLE`, deferred by `SET CONSTRAINTS`, and what they mean for `TRUNCATE`.

use super::alter::Altering;
use super::{Notice, Outcome, Session};
use crate::dependents::Object;
use crate::facts::SessionFacts;
use crate::references::ForeignKeyClause;
use crate::resolve;
use crate::statement::QualifiedName;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState, TableId};
use tidepool_database::{RelationName, Transaction};
use tidepool_table::{ForeignKeyDef, TableVersion};

impl Session {
    pub(super) async fn set_constraints(
        &mut self,
        text: &str,
        names: Option<&[QualifiedName]>,
        deferred: bool,
    ) -> Result<Outcome> {
        if self.block.as_ref().is_none_or(|block| !block.explicit) {
            let message = "SET CONSTRAINTS can only be used in transaction blocks";
            self.notice("WARNING", SqlState::NO_ACTIVE_SQL_TRANSACTION, message);
            return Ok(Outcome::command("SET CONSTRAINTS"));
        }
        let running = self.running(text);
        let keys = names.map(|names| deferrable(&running.facts, names)).transpose()?;
        self.write(running, move |transaction, _| transaction.set_constraints(keys.as_deref(), deferred)).await?;
        Ok(Outcome::command("SET CONSTRAINTS"))
    }

    pub(super) async fn truncate(
        &mut self,
        text: &str,
        names: &[QualifiedName],
        restart_identity: bool,
        cascade: bool,
    ) -> Result<Outcome> {
        let running = self.running(text);
        let named = names
            .iter()
            .map(|name| resolve::table(&running.facts, name).map(|version| version.def.id))
            .collect::<Result<Vec<_>>>()?;
        let told = self
            .write(running, move |transaction, interrupt| {
                let mut told = Vec::new();
                let mut tables: Vec<TableId> = Vec::new();
                let mut left = named;
                // Under the lock of a table nobody comes to refer to it.
                while !left.is_empty() {
                    // All partitions first: they are among those that are emptied.
                    while !left.is_empty() {
                        for id in std::mem::take(&mut left) {
                            let version = transaction.version();
                            let Some(table) = version.table_by_id(id) else { continue };
                            transaction.lock_table(&*table.def, &interrupt.lock_wait())?;
                            if !tables.contains(&id) {
                                tables.push(id);
                                left.extend(super::partitions::partitions_of(&table.def));
                            }
                        }
                    }
                    left.extend(referencing(transaction, &tables, cascade, &mut told)?);
                }
                for id in tables {
                    let version = transaction.version();
                    let Some(table) = version.table_by_id(id) else { continue };
                    let table = RelationName::from(&*table.def);
                    transaction.truncate(&table)?;
                    if restart_identity {
                        super::tables::restart_sequences(transaction, &table)?;
                    }
                }
                Ok(told)
            })
            .await?;
        self.notices.extend(told.into_iter().map(|error| Notice { severity: "NOTICE", error }));
        Ok(Outcome::command("TRUNCATE TABLE"))
    }
}

/// Tables that refer to one of `tables` and are not among them. 0A000 without `cascade` when there are some.
fn referencing(
    transaction: &Transaction,
    tables: &[TableId],
    cascade: bool,
    told: &mut Vec<Error>,
) -> Result<Vec<TableId>> {
    let version = transaction.version();
    let mut found = Vec::new();
    for id in tables {
        let mut within = vec![*id];
        while let Some(parent) = within.last().and_then(|id| version.table_of_id(*id)?.def.partition_of) {
            within.push(parent);
        }
        let mut children: Vec<_> = within.iter().flat_map(|id| version.foreign_keys_to(*id)).collect();
        // Whole tables before their partitions.
        children.sort_by_key(|(_, key)| key.part_of.is_some());
        for (child, _) in children {
            if tables.contains(&child.def.id) || found.contains(&child.def.id) {
                continue;
            }
            let name = &child.def.name;
            if !cascade {
                let parent = version.table_of_id(*id).map_or("", |parent| &parent.def.name);
                return Err(Error::unsupported("cannot truncate a table referenced in a foreign key constraint")
                    .with_detail(format!("Table \"{name}\" references \"{parent}\"."))
                    .with_hint(format!("Truncate table \"{name}\" at the same time, or use TRUNCATE ... CASCADE.")));
            }
            told.push(Error::new(SqlState::SUCCESSFUL_COMPLETION, format!("truncate cascades to table \"{name}\"")));
            found.push(child.def.id);
        }
    }
    Ok(found)
}

/// Numbers of the constraints that these names mean. 42704 when there is none, 42809 when it cannot be deferred.
fn deferrable(facts: &SessionFacts, names: &[QualifiedName]) -> Result<Vec<u32>> {
    let mut keys = Vec::new();
    for name in names {
        let path = match &name.schema {
            Some(schema) => vec![schema.clone()],
            None => resolve::search_path(facts),
        };
        // All of the name in the first schema that has some.
        let in_schema = |schema: &String| {
            let id = facts.version.schema(schema)?.id;
            let tables = facts.version.tables.values().filter(move |table| table.def.schema == id);
            let names_it = |key: &&ForeignKeyDef| key.names().any(|known| *known == name.name);
            let constraints: Vec<Option<&ForeignKeyDef>> = tables
                .filter(|table| crate::keys::constraint_names(&table.def).contains(&name.name))
                .map(|table| table.def.foreign_keys.iter().find(names_it))
                .collect();
            (!constraints.is_empty()).then_some(constraints)
        };
        let Some(found) = path.iter().find_map(in_schema) else {
            let message = format!("constraint \"{}\" does not exist", name.name);
            return Err(Error::new(SqlState::UNDEFINED_OBJECT, message));
        };
        for key in found {
            let Some(key) = key.filter(|key| key.deferrable) else {
                let message = format!("constraint \"{}\" is not deferrable", name.name);
                return Err(Error::new(SqlState::WRONG_OBJECT_TYPE, message));
            };
            keys.push(key.oid);
        }
    }
    Ok(keys)
}

impl Altering<'_> {
    pub(super) fn add_foreign_key(&mut self, table: &TableVersion, key: &ForeignKeyClause) -> Result<()> {
        let facts = self.facts.over(self.transaction.version());
        let new = key.resolve(&facts, &table.def)?;
        self.transaction.create_foreign_key(&*table.def, new).map(drop)
    }

    pub(super) fn validate_constraint(&mut self, table: &TableVersion, constraint: &str) -> Result<()> {
        let def = &table.def;
        if def.foreign_key(constraint).is_some() {
            return self.transaction.validate_foreign_key(&**def, constraint);
        }
        // A CHECK always holds.
        if def.checks.iter().any(|check| check.name == constraint) {
            return Ok(());
        }
        if def.index(constraint).is_some_and(|index| index.constraint.is_some()) {
            return Err(Error::new(
                SqlState::WRONG_OBJECT_TYPE,
                format!(
                    "constraint \"{constraint}\" of relation \"{}\" is not a foreign key or check constraint",
                    def.name
                ),
            ));
        }
        Err(super::alter::no_constraint(constraint, &def.name))
    }

    /// Drops an index, and the constraint that it serves, with the foreign keys that refer to it if they may go.
    pub(super) fn drop_key(&mut self, table: &Arc<TableVersion>, name: &str, cascade: bool) -> Result<()> {
        let Some(index) = table.def.index(name) else { return Ok(()) };
        let path = super::objects::path_ids(self.facts);
        let targets = [Object::Key(table.def.id, index.id)];
        let told = super::objects::drop_all(self.transaction, self.interrupt, &path, &targets, cascade)?;
        self.told.extend(told);
        self.transaction.drop_index(&RelationName::new(table.def.schema, name))
    }

    pub(super) fn alter_constraint(
        &mut self,
        table: &TableVersion,
        constraint: &str,
        deferrable: bool,
        initially_deferred: bool,
    ) -> Result<()> {
        let def = &table.def;
        if def.foreign_key(constraint).is_some() {
            return self.transaction.set_deferrable(&**def, constraint, deferrable, initially_deferred);
        }
        if !crate::keys::constraint_names(def).iter().any(|name| name == constraint) {
            return Err(super::alter::no_constraint(constraint, &def.name));
        }
        if let Some(key) = def.foreign_keys.iter().find(|key| key.names().any(|name| name == constraint)) {
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("cannot alter constraint \"{constraint}\" on relation \"{}\"", def.name),
            )
            .with_detail(format!(
                "Constraint \"{constraint}\" is derived from constraint \"{}\" of relation \"{}\".",
                key.name, def.name
            ))
            .with_hint("You may alter the constraint it derives from, instead."));
        }
        let message =
            format!("constraint \"{constraint}\" of relation \"{}\" is not a foreign key constraint", def.name);
        Err(Error::new(SqlState::WRONG_OBJECT_TYPE, message))
    }

    /// Looks again at the foreign keys that a column's new type matters to, of the table and its partitions.
    pub(super) fn recheck_foreign_keys(&mut self, table: &TableVersion, column: &str) -> Result<()> {
        let version = self.transaction.version();
        let Some(position) = table.def.column_index(column) else { return Ok(()) };
        let mut touched: Vec<(RelationName, String)> = Vec::new();
        let mut tables = vec![table.def.id];
        tables.extend(version.partitions_within(&table.def));
        for table in tables.iter().filter_map(|table| version.table_of_id(*table)) {
            let number = table.def.columns[position].number;
            let own = table.def.foreign_keys.iter().filter(|key| key.has_column(number)).map(|key| (table, key));
            let others = version.foreign_keys_to(table.def.id);
            let all = own.chain(others.filter(|(_, key)| key.referenced_columns.contains(&number)));
            let whole = all.filter(|(_, key)| key.part_of.is_none());
            touched.extend(whole.map(|(child, key)| (RelationName::from(&*child.def), key.name.clone())));
        }
        for (child, key) in touched {
            self.transaction.recheck_foreign_key(&child, &key)?;
        }
        Ok(())
    }
}
