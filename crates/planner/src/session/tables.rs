//! Statements that make, fill, change and drop tables.

use super::explain::{Explained, Ran};
use super::parts::Begun;
use super::{Outcome, Session};
use crate::ddl::NewTable;
use crate::execute::{Batches, joined};
use crate::facts::SessionFacts;
use crate::insert::Conform;
use crate::query;
use crate::row_expressions::Checks;
use crate::sequences;
use crate::statement::{Command, Statement};
use crate::types;
use arrow::array::ArrayRef;
use arrow::datatypes::Schema;
use std::sync::Arc;
use std::time::Instant;
use tidepool_base::{Error, Result, SqlState, SqlType};
use tidepool_database::text::TextSettings;
use tidepool_database::{RelationName, RowChecks, SequenceDef, SequenceOwner, TableWriter, Transaction};
use tidepool_table::{ColumnDef, OnCommit, TableDef};

impl Session {
    pub(super) async fn create_table(
        &mut self,
        text: &str,
        statement: &Statement,
        parameters: &[ArrayRef],
        explained: Option<&mut Option<Explained>>,
    ) -> Result<Outcome> {
        let Command::CreateTable { table, with_data, .. } = statement.command() else {
            return Err(Error::internal("not a CREATE TABLE"));
        };
        let with_data = *with_data;
        let is_query = table.query.is_some();
        if !(self.settings.is_standby() && self.is_of_temporary(statement.command())) {
            self.check_writable(if is_query { "CREATE TABLE AS" } else { "CREATE TABLE" })?;
        }
        if explained.is_some() && !is_query {
            return Err(Error::unsupported("this needs a query that returns rows"));
        }
        let Begun { running, statement, plans: parts, .. } =
            self.begin_statement(text, statement, parameters, true).await?;
        let start = Instant::now();
        let facts = running.facts.clone();
        let parameters = parameters.to_vec();
        let planning = self.plan_apart(text, async move {
            let Command::CreateTable { table, tablespace, partitions, .. } = statement.command() else {
                return Err(Error::internal("not a CREATE TABLE"));
            };
            let mut table = crate::ddl::new_table(&facts, table.as_ref().clone(), tablespace.clone(), partitions)?;
            let exists = facts.version.is_taken(&table.name);
            let Some((query, names)) = table.query.take() else { return Ok((table, None)) };
            if exists && table.if_not_exists {
                return Ok((table, None));
            }
            let planned = query::plan(facts, query, parameters, None).await?;
            table.columns = created_columns(&planned, names)?;
            Ok((table, Some(planned)))
        });
        let (table, planned) = planning.await?;
        let planning = start.elapsed();
        let exists = running.facts.version.is_taken(&table.name);
        if exists && table.if_not_exists {
            self.notice(
                "NOTICE",
                SqlState::DUPLICATE_TABLE,
                format!("relation \"{}\" already exists, skipping", table.name.name),
            );
            return Ok(Outcome::command(if is_query { "CREATE TABLE AS" } else { "CREATE TABLE" }));
        }
        if exists {
            return Err(Error::new(
                SqlState::DUPLICATE_TABLE,
                format!("relation \"{}\" already exists", table.name.name),
            ));
        }
        let Some(planned) = planned else {
            let facts = running.facts.clone();
            self.write(running, move |transaction, _| create_with_sequences(transaction, &facts, table)).await?;
            return Ok(Outcome::command("CREATE TABLE"));
        };
        let schema = planned.schema.clone();
        let settings = running.facts.settings.text_settings();
        let interrupt = running.interrupt.clone();
        let facts = running.facts.clone();
        let info = running.query.info.clone();
        let start = Instant::now();
        let mut plan = planned.plan.clone();
        let mut prepared = None;
        if with_data {
            let execution = self.prepare_run(running, planned, None)?;
            plan = execution.plan.clone();
            prepared = Some(execution);
        }
        let workers = self.planner.workers();
        let written = self.begin_write(facts.clone(), interrupt, move |transaction, _| {
            let name = table.name.clone();
            let created = transaction.create_table(&name, table.columns, Vec::new(), table.placement)?;
            if !table.parameters.is_empty() || table.on_commit != OnCommit::PreserveRows {
                let def = TableDef::clone(&created.def);
                let def = TableDef { parameters: table.parameters, on_commit: table.on_commit, ..def };
                transaction.set_table_def(&name, def)?;
            }
            let Some(prepared) = prepared else { return Ok(0) };
            fill(transaction, &facts, &name, &mut prepared.start(&workers), &schema, settings)
        });
        let rows = joined(written.await)?;
        if let Some(explained) = explained {
            let ran = Some(Ran { elapsed: start.elapsed(), rows, info });
            *explained = Some(Explained { node: None, plan, parts, planning, ran });
        }
        Ok(Outcome::command(if with_data { format!("SELECT {rows}") } else { "CREATE TABLE AS".to_owned() }))
    }
}

/// Makes a table, and the sequences that its columns take their values from.
fn create_with_sequences(transaction: &mut Transaction, facts: &Arc<SessionFacts>, mut table: NewTable) -> Result<()> {
    let mut made = Vec::with_capacity(table.generated.len());
    for generated in &table.generated {
        let column = &mut table.columns[generated.column];
        let version = transaction.version();
        let name = version.free_name(table.name.schema, [&table.name.name, &column.name], "seq", &[]);
        let name = RelationName::new(table.name.schema, name);
        let (def, _) = sequences::define(&name, None, &generated.options)?;
        let id = transaction.create_sequence(def)?;
        column.default = Some(sequences::default_of(id));
        made.push((generated.column, generated.identity, name));
    }
    let created = transaction.create_table(&table.name, table.columns, Vec::new(), table.placement)?;
    let settles = table.on_commit != OnCommit::PreserveRows;
    if !table.checks.is_empty() || !table.parameters.is_empty() || table.partitioning.is_some() || settles {
        let mut def = TableDef::clone(&created.def);
        def.on_commit = table.on_commit;
        def.checks = table.checks;
        for check in def.checks.iter_mut().filter(|_| created.def.is_temporary()) {
            check.oid = facts.planner.database().next_oid_in(created.def.schema).0;
        }
        def.parameters = table.parameters;
        def.partitioning = table.partitioning;
        transaction.set_table_def(&table.name, def)?;
    }
    for key in &table.keys {
        let version = transaction.version();
        let now = version.table(&table.name).ok_or_else(|| Error::internal("a new table is gone"))?;
        transaction.create_index(&table.name, key.resolve(&now.def)?)?;
    }
    if let Some(partition) = &table.partition {
        transaction.attach_partition(&table.name, partition)?;
    }
    for key in &table.foreign_keys {
        // Also of a table to itself.
        let facts = facts.over(transaction.version());
        transaction.create_foreign_key(&table.name, key.resolve(&facts, &created.def)?)?;
    }
    for (column, identity, name) in made {
        let version = transaction.version();
        let Some(sequence) = version.catalog.sequences.get(&name) else { continue };
        let column = created.def.columns[column].number;
        let owner = Some(SequenceOwner { table: created.def.id, column, identity });
        transaction.alter_sequence(&name, SequenceDef { owner, ..sequence.def.clone() }, None)?;
    }
    Ok(())
}

/// `RESTART IDENTITY`.
pub(super) fn restart_sequences(transaction: &mut Transaction, table: &RelationName) -> Result<()> {
    let version = transaction.version();
    let Some(table) = version.table(table) else { return Ok(()) };
    for sequence in version.catalog.owned_sequences(table.def.id) {
        let def = sequence.def.clone();
        let start = def.start;
        transaction.alter_sequence(&RelationName::from(&sequence.def), def, Some(start))?;
    }
    Ok(())
}

/// Puts a plan's rows, of `schema`, into a table.
fn fill(
    transaction: &mut Transaction,
    facts: &Arc<SessionFacts>,
    table: &RelationName,
    batches: &mut Batches,
    schema: &Schema,
    settings: TextSettings,
) -> Result<u64> {
    let mut writer = checked_writer(transaction, facts, table)?;
    let conform = Conform::new(&writer.table().def.clone(), schema, settings);
    while let Some(batch) = batches.blocking_next() {
        writer.write(&conform.apply(&batch?)?)?;
    }
    transaction.absorb(writer)
}

/// A writer that checks the table's constraints.
pub(crate) fn checked_writer(
    transaction: &mut Transaction,
    facts: &Arc<SessionFacts>,
    table: &RelationName,
) -> Result<TableWriter> {
    let facts = facts.clone();
    transaction
        .writer(table)?
        .with_checks_of(Arc::new(move |def| Ok(Arc::new(Checks::of(&facts, def)?) as Arc<dyn RowChecks>)))
}

fn created_columns(planned: &query::Planned, names: Vec<String>) -> Result<Vec<ColumnDef>> {
    if names.len() > planned.columns.len() {
        return Err(Error::new(SqlState::SYNTAX_ERROR, "too many column names were specified"));
    }
    let fields = planned.schema.fields();
    let columns: Vec<ColumnDef> = planned
        .columns
        .iter()
        .zip(fields)
        .enumerate()
        .map(|(position, (column, field))| {
            let Some(sql_type) = types::type_of(field) else {
                return Err(Error::unsupported(format!(
                    "column \"{}\" has a type that no table can hold",
                    column.name
                )));
            };
            // What a computed number is planned as is not a bound that was declared.
            let sql_type = match sql_type {
                SqlType::Numeric { .. } if types::declared_type(field).is_none() => SqlType::UnconstrainedNumeric,
                declared => declared,
            };
            let name = names.get(position).cloned().unwrap_or_else(|| column.name.clone());
            Ok(ColumnDef::new(name, sql_type))
        })
        .collect::<Result<_>>()?;
    crate::ddl::check_columns(&columns)?;
    Ok(columns)
}
