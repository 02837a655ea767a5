//! `ALTER TABLE`: its actions one after another, within one transaction.

use super::{Notice, Outcome, Session};
use crate::catalog::quote_identifier;
use crate::ddl;
use crate::dependents::Object;
use crate::facts::SessionFacts;
use crate::interrupt::Interrupt;
use crate::keys::{constraint_names, taken};
use crate::references::{conform, take_references};
use crate::resolve;
use crate::row_expressions::{self, Checks, RowExpressions};
use crate::sequences;
use crate::statement::{AlterAction, QualifiedName};
use datafusion::sql::sqlparser::ast;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState, SqlType, TableId};
use tidepool_database::{ColumnSource, RelationName, SequenceDef, SequenceOwner, Transaction};
use tidepool_table::{CheckDef, TableDef, TableVersion};

impl Session {
    pub(super) async fn alter_table(
        &mut self,
        text: &str,
        name: &QualifiedName,
        if_exists: bool,
        actions: &[AlterAction],
    ) -> Result<Outcome> {
        let running = self.running(text);
        // What names a view may say that it is a table, as in PostgreSQL.
        if let [
            action @ (AlterAction::Rename { .. } | AlterAction::RenameColumn { .. } | AlterAction::SetSchema { .. }),
        ] = actions
            && let Some(resolve::Relation::View(_)) =
                resolve::relation(&running.facts, name.schema.as_deref(), &name.name)
        {
            drop(running);
            self.alter_view(text, name, if_exists, action).await?;
            return Ok(Outcome::command("ALTER TABLE"));
        }
        let table = match resolve::table(&running.facts, name) {
            Ok(version) => version.def.id,
            Err(error) if if_exists && error.code() == SqlState::UNDEFINED_TABLE => {
                self.skipping(error.message());
                return Ok(Outcome::command("ALTER TABLE"));
            }
            Err(error) => return Err(error),
        };
        let (facts, actions) = (running.facts.clone(), actions.to_vec());
        let told = self
            .write(running, move |transaction, interrupt| {
                let mut told = Vec::new();
                for action in &actions {
                    let facts = facts.over(transaction.version());
                    let told = &mut told;
                    Altering { facts: &facts, transaction, interrupt, table, is_recursing: false, told }
                        .apply(action)?;
                }
                Ok(told)
            })
            .await?;
        self.notices.extend(told.into_iter().map(|error| Notice { severity: "NOTICE", error }));
        Ok(Outcome::command("ALTER TABLE"))
    }
}

/// One action under way.
pub(super) struct Altering<'a> {
    pub facts: &'a Arc<SessionFacts>,
    pub transaction: &'a mut Transaction,
    pub interrupt: &'a Interrupt,
    pub table: TableId,
    /// It is a partition, altered with the table that it is of.
    pub is_recursing: bool,
    pub told: &'a mut Vec<Error>,
}

impl Altering<'_> {
    /// The table as this transaction has it, locked.
    pub(super) fn locked(&mut self) -> Result<Arc<TableVersion>> {
        let gone = || Error::new(SqlState::UNDEFINED_TABLE, "the table was dropped by another transaction");
        let before = self.transaction.version().table_by_id(self.table).ok_or_else(gone)?;
        self.transaction.lock_table(&*before.def, &self.interrupt.lock_wait())?;
        self.transaction.version().table_by_id(self.table).ok_or_else(gone)
    }

    pub(super) fn skip(&mut self, code: SqlState, message: String) {
        self.told.push(Error::new(code, format!("{message}, skipping")));
    }

    pub(super) fn apply(&mut self, action: &AlterAction) -> Result<()> {
        let table = self.locked()?;
        self.check_partitioned(&table, action)?;
        self.apply_here(&table, action)?;
        self.recurse(&table.def, action)?;
        match action {
            AlterAction::SetType { column, .. } if !self.is_recursing => self.recheck_foreign_keys(&table, column),
            _ => Ok(()),
        }
    }

    fn apply_here(&mut self, table: &Arc<TableVersion>, action: &AlterAction) -> Result<()> {
        let name = RelationName::from(&*table.def);
        match action {
            AlterAction::SetTablespace { column, tablespace } => {
                self.transaction.set_tablespace(&name, column.as_deref(), tablespace)
            }
            AlterAction::SetParameters { parameters } => {
                let mut def = TableDef::clone(&table.def);
                for (name, value) in parameters {
                    def.parameters.set(name, value.as_deref())?;
                }
                self.transaction.set_table_def(&name, def)
            }
            AlterAction::Rename { name: new_name } => {
                ddl::check_table_name(new_name)?;
                self.transaction.rename_table(&name, new_name)
            }
            AlterAction::RenameColumn { column, name: new_name } => self.rename_column(table, column, new_name),
            AlterAction::SetSchema { schema } => self.set_schema(table, schema),
            AlterAction::AddColumn { column, if_not_exists } => self.add_column(table, column, *if_not_exists),
            AlterAction::DropColumn { column, if_exists, cascade } => {
                self.drop_column(table, column, *if_exists, *cascade)
            }
            AlterAction::SetType { column, data_type, using } => {
                self.set_type(table, column, data_type, using.as_deref())
            }
            AlterAction::SetDefault { column, default } => self.set_default(table, column, default.as_deref()),
            AlterAction::AddIdentity { column, identity, options } => {
                self.add_identity(table, column, *identity, options.as_ref().clone())
            }
            AlterAction::SetIdentity { column, identity, options } => {
                self.set_identity(table, column, *identity, options)
            }
            AlterAction::DropIdentity { column, if_exists } => self.drop_identity(table, column, *if_exists),
            AlterAction::AlterConstraint { name: constraint, deferrable, initially_deferred } => {
                self.alter_constraint(table, constraint, *deferrable, *initially_deferred)
            }
            AlterAction::SetNotNull { column, not_null } => self.set_not_null(table, column, *not_null),
            AlterAction::AddCheck { name: constraint, condition } => {
                let others = if self.is_recursing { Vec::new() } else { constraint_names(&table.def) };
                let check = row_expressions::check(
                    self.facts,
                    &table.def.name,
                    &table.def.columns,
                    &others,
                    constraint.clone(),
                    condition,
                )?;
                let mut def = TableDef::clone(&table.def);
                if self.is_recursing && self.has_inherited_check(&def, &check)? {
                    return Ok(());
                }
                def.checks.push(check);
                self.check_existing(&def, &def.checks[def.checks.len() - 1..])?;
                self.transaction.set_table_def(&name, def)
            }
            AlterAction::AddKey(key) => {
                let new = key.resolve(&table.def)?;
                self.transaction.create_index(&name, new).map(drop)
            }
            AlterAction::UseIndex { name: constraint, index, primary } => {
                let constraint = constraint.as_deref().unwrap_or(index);
                if crate::keys::constraint_names(&table.def).iter().any(|known| known == constraint) {
                    return Err(crate::keys::taken(constraint, &table.def.name));
                }
                self.transaction.constrain(&name, index, constraint, *primary)?;
                if constraint != index {
                    let message = format!(
                        "ALTER TABLE / ADD CONSTRAINT USING INDEX will rename index \"{index}\" to \"{constraint}\""
                    );
                    self.told.push(Error::new(SqlState::SUCCESSFUL_COMPLETION, message));
                }
                Ok(())
            }
            AlterAction::AttachPartition { name, bound } => self.attach(table, name, bound),
            AlterAction::DetachPartition { name } => self.detach(table, name),
            AlterAction::AddForeignKey(key) => self.add_foreign_key(table, key),
            AlterAction::ValidateConstraint { name } => self.validate_constraint(table, name),
            AlterAction::DropConstraint { name, if_exists, cascade } => {
                self.drop_constraint(table, name, *if_exists, *cascade)
            }
            AlterAction::RenameConstraint { name: old, new_name } => {
                let mut def = TableDef::clone(&table.def);
                if constraint_names(&def).contains(new_name) {
                    return Err(taken(new_name, &def.name));
                }
                if def.index(old).is_some_and(|index| index.constraint.is_some()) {
                    return self.transaction.rename_index(&RelationName::new(def.schema, old), new_name);
                }
                let checks = def.checks.iter_mut().map(|check| &mut check.name);
                let keys = def.foreign_keys.iter_mut().flat_map(|key| {
                    std::iter::once(&mut key.name).chain(key.referenced_parts.iter_mut().map(|part| &mut part.name))
                });
                match checks.chain(keys).find(|name| *name == old) {
                    Some(name) => name.clone_from(new_name),
                    None => return Err(no_constraint(old, &def.name)),
                }
                self.transaction.set_table_def(&name, def)
            }
        }
    }

    pub(super) fn check_existing(&mut self, def: &TableDef, checks: &[CheckDef]) -> Result<()> {
        if checks.is_empty() {
            return Ok(());
        }
        let checks = Checks::these(self.facts, def, checks.iter())?;
        let reads = checks.reads().to_vec();
        self.transaction.check_rows(&RelationName::from(def), &reads, &|batch| checks.check_existing(&def.name, batch))
    }

    fn rename_column(&mut self, table: &TableVersion, column: &str, new_name: &str) -> Result<()> {
        self.transaction.rename_column(&*table.def, column, new_name)?;
        let version = self.transaction.version();
        let Some(renamed) = version.table(&*table.def).filter(|renamed| !renamed.def.checks.is_empty()) else {
            return Ok(());
        };
        let mut def = TableDef::clone(&renamed.def);
        let number = table.def.columns.iter().find(|known| known.name == column).map(|known| known.number);
        for check in def.checks.iter_mut().filter(|check| number.is_some_and(|number| check.columns.contains(&number)))
        {
            check.condition = row_expressions::rename_column(&check.condition, column, new_name)?;
        }
        self.transaction.set_table_def(&RelationName::from(&*table.def), def)
    }

    fn set_schema(&mut self, table: &TableVersion, schema: &str) -> Result<()> {
        let schema = resolve::own_schema(self.facts, schema)?;
        if schema == table.def.schema {
            return Ok(());
        }
        self.transaction.set_table_schema(&*table.def, schema)?;
        let version = self.transaction.version();
        for sequence in version.catalog.owned_sequences(table.def.id) {
            let def = SequenceDef { schema, ..sequence.def.clone() };
            self.transaction.alter_sequence(&RelationName::from(&sequence.def), def, None)?;
        }
        Ok(())
    }

    fn add_column(&mut self, table: &TableVersion, column: &ast::ColumnDef, if_not_exists: bool) -> Result<()> {
        let name = RelationName::from(&*table.def);
        let (column, conditions) = ddl::take_checks(column.clone());
        let (mut column, foreign_keys) = take_references(column)?;
        for option in &mut column.options {
            if let ast::ColumnOption::Default(expr) = &mut option.option {
                crate::catalog::rewrite_expression(expr);
            }
        }
        let (mut added, keys, own) = ddl::column_def(self.facts, &table.def.name, column)?;
        if table.def.column_index(&added.name).is_some() {
            let message = format!("column \"{}\" of relation \"{}\" already exists", added.name, table.def.name);
            if if_not_exists {
                self.skip(SqlState::DUPLICATE_COLUMN, message);
                return Ok(());
            }
            return Err(Error::new(SqlState::DUPLICATE_COLUMN, message));
        }
        let mut sequence = None;
        if let Some((options, identity)) = own {
            let version = self.transaction.version();
            let free = version.free_name(name.schema, [&name.name, &added.name], "seq", &[]);
            let free = RelationName::new(name.schema, free);
            let (def, _) = sequences::define(&free, None, &options)?;
            let id = self.transaction.create_sequence(def)?;
            added.default = Some(sequences::default_of(id));
            sequence = Some((free, identity));
        }
        let mut def = TableDef::clone(&table.def);
        def.columns.push(added.clone());
        ddl::check_columns(&def.columns)?;
        def.number_columns();
        let mut new_checks = Vec::new();
        for (constraint, condition) in conditions {
            let mut others = constraint_names(&def);
            others.extend(new_checks.iter().map(|check: &CheckDef| check.name.clone()));
            let check = row_expressions::check(self.facts, &def.name, &def.columns, &others, constraint, &condition)?;
            new_checks.push(check);
        }
        def.checks.extend(new_checks.iter().cloned());
        let mut sources: Vec<ColumnSource> = (0..table.def.columns.len()).map(ColumnSource::Kept).collect();
        sources.push(ColumnSource::Computed(0));
        // The sequence that a default asks may be this transaction's own.
        let facts = self.facts.over(self.transaction.version());
        let default = added.default.clone().unwrap_or_else(|| "NULL".to_owned());
        let expressions =
            RowExpressions::plan(&facts, &def.name, &[], &[(default, Some(added.sql_type))], "default expression")?;
        let conform = conform(&facts, &added);
        self.transaction
            .rewrite_table(&name, def.clone(), &sources, &[], &|batch| conform(expressions.evaluate(batch)?))?;
        self.check_existing(&def, &new_checks)?;
        self.add_to_partitions(&def, &added, &new_checks)?;
        for key in &keys {
            let now = self.locked()?;
            self.transaction.create_index(&name, key.resolve(&now.def)?)?;
        }
        for key in &foreign_keys {
            let now = self.locked()?;
            self.add_foreign_key(&now, key)?;
        }
        if let Some((free, identity)) = sequence {
            let version = self.transaction.version();
            if let Some(sequence) = version.catalog.sequences.get(&free)
                && let Some(column) = def.columns.last()
            {
                let owner = Some(SequenceOwner { table: def.id, column: column.number, identity });
                self.transaction.alter_sequence(&free, SequenceDef { owner, ..sequence.def.clone() }, None)?;
            }
        }
        Ok(())
    }

    fn drop_column(&mut self, table: &TableVersion, column: &str, if_exists: bool, cascade: bool) -> Result<()> {
        let Some(position) = table.def.column_index(column) else {
            let error = no_column(column, &table.def.name);
            if if_exists {
                self.skip(SqlState::SUCCESSFUL_COMPLETION, error.message().to_owned());
                return Ok(());
            }
            return Err(error);
        };
        if table.def.columns.len() == 1 {
            return Err(Error::unsupported("a table needs at least one column"));
        }
        let number = table.def.columns[position].number;
        let path = super::objects::path_ids(self.facts);
        let told = super::objects::drop_all(
            self.transaction,
            self.interrupt,
            &path,
            &[Object::Column(table.def.id, number)],
            cascade,
        )?;
        self.told.extend(told);
        let table = self.locked()?;
        for key in table.def.foreign_keys.iter().filter(|key| key.has_column(number)) {
            self.transaction.drop_foreign_key(&*table.def, &key.name)?;
        }
        let table = self.locked()?;
        let mut def = TableDef::clone(&table.def);
        def.columns.remove(position);
        def.checks.retain(|check| !check.columns.contains(&number));
        def.indexes.retain(|index| !index.has_column(number));
        if def.primary_key.contains(&position) {
            def.primary_key.clear();
        }
        for key in def.primary_key.iter_mut().filter(|key| **key > position) {
            *key -= 1;
        }
        let kept = (0..table.def.columns.len()).filter(|kept| *kept != position);
        let sources: Vec<ColumnSource> = kept.map(ColumnSource::Kept).collect();
        self.transaction.rewrite_table(&RelationName::from(&*table.def), def, &sources, &[], &|_| Ok(Vec::new()))
    }

    fn set_type(
        &mut self,
        table: &TableVersion,
        column: &str,
        data_type: &ast::DataType,
        using: Option<&ast::Expr>,
    ) -> Result<()> {
        let position = self.position(table, column)?;
        let sql_type = crate::types::sql_type(data_type)?;
        let before = &table.def.columns[position];
        let version = self.transaction.version();
        for view in version.catalog.views.values() {
            let uses = |relation: &tidepool_database::ViewRelation| {
                relation.id == table.def.id
                    && relation.columns.iter().any(|source| source.number == before.number && source.used)
            };
            if view.relations.iter().any(uses) {
                return Err(Error::unsupported("cannot alter type of a column used by a view or rule").with_detail(
                    format!("rule _RETURN on view {} depends on column \"{column}\"", quote_identifier(&view.name)),
                ));
            }
        }
        if before.identity.is_some() && !matches!(sql_type, SqlType::SmallInt | SqlType::Integer | SqlType::BigInt) {
            return Err(Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                "identity column type must be smallint, integer, or bigint",
            ));
        }
        let mut def = TableDef::clone(&table.def);
        def.columns[position].sql_type = sql_type;
        if let (Some(default), None) = (&before.default, before.identity) {
            let expr = crate::statement::parse_expression(default)?;
            let checked = ddl::check_default(self.facts, column, sql_type, expr).map_err(|_| {
                Error::new(
                    SqlState::DATATYPE_MISMATCH,
                    format!("default for column \"{column}\" cannot be cast automatically to type {sql_type}"),
                )
            })?;
            def.columns[position].default = Some(checked);
        }
        let text = match using {
            Some(using) => {
                let mut using = using.clone();
                crate::catalog::rewrite_expression(&mut using);
                using.to_string()
            }
            None if !crate::insert::assignable_types(before.sql_type, sql_type) => {
                return Err(Error::new(
                    SqlState::DATATYPE_MISMATCH,
                    format!("column \"{column}\" cannot be cast automatically to type {sql_type}"),
                )
                .with_hint(format!("You might need to specify \"USING {}::{sql_type}\".", quote_identifier(column))));
            }
            None => quote_all(column),
        };
        let what = "transform expression";
        let texts = [(text, Some(sql_type))];
        let expressions = RowExpressions::plan(self.facts, &def.name, &table.def.columns, &texts, what)?;
        let mut sources: Vec<ColumnSource> = (0..table.def.columns.len()).map(ColumnSource::Kept).collect();
        sources[position] = ColumnSource::Computed(0);
        let conform = conform(self.facts, &def.columns[position]);
        let name = RelationName::from(&*table.def);
        let reads = expressions.reads.clone();
        self.transaction
            .rewrite_table(&name, def.clone(), &sources, &reads, &|batch| conform(expressions.evaluate(batch)?))?;
        let number = def.columns[position].number;
        let touched: Vec<CheckDef> =
            def.checks.iter().filter(|check| check.columns.contains(&number)).cloned().collect();
        self.check_existing(&def, &touched)
    }

    fn set_default(&mut self, table: &TableVersion, column: &str, default: Option<&ast::Expr>) -> Result<()> {
        let position = self.position(table, column)?;
        let mut def = TableDef::clone(&table.def);
        let target = &mut def.columns[position];
        if target.identity.is_some() {
            return Err(Error::new(
                SqlState::SYNTAX_ERROR,
                format!("column \"{column}\" of relation \"{}\" is an identity column", table.def.name),
            ));
        }
        target.default = match default {
            Some(expr) => {
                let mut expr = expr.clone();
                crate::catalog::rewrite_expression(&mut expr);
                Some(ddl::check_default(self.facts, column, target.sql_type, expr)?)
            }
            None => None,
        };
        self.transaction.set_table_def(&RelationName::from(&*table.def), def)
    }

    fn set_not_null(&mut self, table: &TableVersion, column: &str, not_null: bool) -> Result<()> {
        let position = self.position(table, column)?;
        let name = RelationName::from(&*table.def);
        let mut def = TableDef::clone(&table.def);
        if not_null {
            self.transaction.check_not_null(&name, position)?;
        } else if def.primary_key.contains(&position) {
            return Err(Error::new(
                SqlState::INVALID_TABLE_DEFINITION,
                format!("column \"{column}\" is in a primary key"),
            ));
        } else if def.columns[position].identity.is_some() {
            return Err(Error::new(
                SqlState::SYNTAX_ERROR,
                format!("column \"{column}\" of relation \"{}\" is an identity column", def.name),
            ));
        }
        def.columns[position].nullable = !not_null;
        self.transaction.set_table_def(&name, def)
    }

    fn drop_constraint(
        &mut self,
        table: &Arc<TableVersion>,
        constraint: &str,
        if_exists: bool,
        cascade: bool,
    ) -> Result<()> {
        let mut def = TableDef::clone(&table.def);
        if let Some(position) = def.checks.iter().position(|check| check.name == constraint) {
            def.checks.remove(position);
        } else if def.index(constraint).is_some_and(|index| index.constraint.is_some()) {
            return self.drop_key(table, constraint, cascade);
        } else if def.foreign_key(constraint).is_some() {
            return self.transaction.drop_foreign_key(&*table.def, constraint);
        } else if def.foreign_keys.iter().any(|key| key.names().any(|name| name == constraint)) {
            return Err(super::partitions::inherited(constraint, &def.name));
        } else {
            let error = no_constraint(constraint, &def.name);
            if if_exists {
                self.skip(SqlState::SUCCESSFUL_COMPLETION, error.message().to_owned());
                return Ok(());
            }
            return Err(error);
        }
        self.transaction.set_table_def(&RelationName::from(&*table.def), def)
    }

    pub(super) fn position(&self, table: &TableVersion, column: &str) -> Result<usize> {
        table.def.column_index(column).ok_or_else(|| no_column(column, &table.def.name))
    }
}

fn quote_all(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

pub(super) fn no_constraint(constraint: &str, table: &str) -> Error {
    Error::new(
        SqlState::UNDEFINED_OBJECT,
        format!("constraint \"{constraint}\" of relation \"{table}\" does not exist"),
    )
}

fn no_column(column: &str, table: &str) -> Error {
    Error::new(SqlState::UNDEFINED_COLUMN, format!("column \"{column}\" of relation \"{table}\" does not exist"))
}
