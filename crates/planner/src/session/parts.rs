//! Statements some of whose queries lock rows: these run first, in the statement's transaction and over what it sees, and
//! their rows take their places.

use super::{Running, Session};
use crate::execute::joined;
use crate::facts::SessionFacts;
use crate::locking::Reading;
use crate::locking::parts::{self, Part};
use crate::statement::Statement;
use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{MemTable, Session as PlanSession, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{Result as PlanResult, Statistics};
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState};
use tidepool_heap::QueryHeap;

/// A statement ready to be planned.
pub(super) struct Begun {
    pub running: Running,
    /// The statement without its parts.
    pub statement: Statement,
    /// Of a query that locks rows.
    pub reading: Option<Reading>,
    /// Plans of the parts.
    pub plans: Vec<Arc<dyn ExecutionPlan>>,
}

/// Rows of a part.
#[derive(Debug)]
struct PartRows {
    rows: MemTable,
    count: usize,
    /// What they lie in.
    _heap: Option<Arc<QueryHeap>>,
}

#[async_trait]
impl TableProvider for PartRows {
    fn schema(&self) -> SchemaRef {
        self.rows.schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Temporary
    }

    async fn scan(
        &self,
        state: &dyn PlanSession,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> PlanResult<Arc<dyn ExecutionPlan>> {
        self.rows.scan(state, projection, filters, limit).await
    }

    fn statistics(&self) -> Option<Statistics> {
        Some(Statistics { num_rows: Precision::Exact(self.count), ..Statistics::new_unknown(&self.rows.schema()) })
    }
}

impl Session {
    /// Begins a statement: its parts run, again and again until their rows are as they see them; or, unless it `runs`,
    /// are planned. Needs a transaction block if there are any.
    pub(super) async fn begin_statement(
        &mut self,
        text: &str,
        statement: &Statement,
        parameters: &[ArrayRef],
        runs: bool,
    ) -> Result<Begun> {
        loop {
            let running = self.running(text);
            // Before anything of it is looked at.
            self.planner.database().check_snapshot(running.facts.version.view().ts())?;
            if !statement.locks_rows() {
                return Ok(Begun { running, statement: statement.clone(), reading: None, plans: Vec::new() });
            }
            let (facts, whole) = (running.facts.clone(), statement.clone());
            let reading = self.plan_apart(text, async move { parts::of(&facts, &whole) });
            let parts::Parted { statement: rest, parts, reading } = reading.await?;
            let mut begun = Begun { running, statement: rest, reading, plans: Vec::new() };
            if self.run_parts(&mut begun, statement, parts, parameters, runs).await? {
                return Ok(begun);
            }
        }
    }

    /// False: rows have changed, and the statement is to begin again, as of now.
    async fn run_parts(
        &mut self,
        begun: &mut Begun,
        statement: &Statement,
        waiting: Vec<Part>,
        parameters: &[ArrayRef],
        runs: bool,
    ) -> Result<bool> {
        let mut waiting = VecDeque::from(waiting);
        let mut next = 0;
        while let Some(Part { reading, columns }) = waiting.pop_front() {
            let number = next;
            next += 1;
            let facts = begun.running.facts.clone();
            // The query of a view has no parameters.
            let parameters = if reading.within.is_some() { &[] } else { parameters };
            let planned = self.plan_locking(&facts, reading, parameters).await;
            let (locking, planned) = match planned {
                Err(error) if is_missing(&error) => {
                    return Err(self.explained_missing(facts, statement, error).await);
                }
                planned => planned?,
            };
            let fields = &planned.schema.fields()[locking.targets.len()..];
            let names = locking.columns(&planned.schema).into_iter().map(|column| column.name);
            let schema = schema_of(fields, columns.unwrap_or_else(|| names.collect()));
            begun.plans.push(planned.plan.clone());
            let (mut kept, mut heap) = (Vec::new(), None);
            if runs {
                let (prepared, reevaluation) = self.prepare_part(&begun.running, planned)?;
                heap = Some(prepared.heap.clone());
                let interrupt = begun.running.interrupt.clone();
                let work = self.lock_rows(locking, prepared, reevaluation, false);
                let locked = self.begin_part(facts.clone(), interrupt, work);
                match joined(locked.await)? {
                    Some(rows) => kept = rows,
                    None => return Ok(false),
                }
                if let Some(literals) = parts::literals(&schema, &kept)? {
                    begun.statement = parts::inline_into(number, &literals, &begun.statement);
                    let others = waiting.iter_mut().map(|part| &mut part.reading);
                    let others = others.chain(&mut begun.reading);
                    others.for_each(|reading| parts::inline(number, &literals, reading.query.as_mut()));
                }
            }
            let rows = rows_of(schema, kept, heap)?;
            begun.running.facts = facts.with_part(parts::name(number), Arc::new(rows));
        }
        Ok(true)
    }

    /// Why a part's name means nothing: it may be one of the query around it.
    async fn explained_missing(&self, facts: Arc<SessionFacts>, statement: &Statement, error: Error) -> Error {
        let statement = parts::without_locks(statement);
        let text = statement.text().to_owned();
        let described = self.plan_apart(&text, async move { super::describe::describe(&facts, &statement, &[]) });
        match described.await {
            Ok(_) => Error::unsupported("rows cannot be locked in a subquery that refers to the query around it")
                .with_hint("Lock them in a query of their own."),
            Err(_) => error,
        }
    }
}

fn is_missing(error: &Error) -> bool {
    [SqlState::UNDEFINED_COLUMN, SqlState::UNDEFINED_TABLE].contains(&error.code())
}

/// With names of which none is there twice.
fn schema_of(fields: &[Arc<Field>], names: Vec<String>) -> SchemaRef {
    let mut taken = BTreeSet::new();
    let fields = fields.iter().zip(names).enumerate().map(|(place, (field, name))| {
        let name = if taken.insert(name.clone()) { name } else { format!("\u{1}{place}") };
        field.as_ref().clone().with_name(name)
    });
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

fn rows_of(schema: SchemaRef, kept: Vec<RecordBatch>, heap: Option<Arc<QueryHeap>>) -> Result<PartRows> {
    let named = |batch: RecordBatch| {
        RecordBatch::try_new(schema.clone(), batch.columns().to_vec()).map_err(crate::errors::from_arrow)
    };
    let batches = kept.into_iter().map(named).collect::<Result<Vec<_>>>()?;
    let count = batches.iter().map(RecordBatch::num_rows).sum();
    let rows = MemTable::try_new(schema.clone(), vec![batches]).map_err(crate::errors::from_datafusion)?;
    Ok(PartRows { rows, count, _heap: heap })
}
