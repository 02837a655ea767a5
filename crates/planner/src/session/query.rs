//! Queries: planned and started.

use super::parts::Begun;
use super::{Outcome, ResultColumn, Running, Session};
use crate::charge::HeapCounts;
use crate::execute::{Batches, Execution, Reevaluation, joined};
use crate::query;
use crate::statement::{Command, Statement};
use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;
use datafusion::execution::TaskContext;
use datafusion::sql::sqlparser::ast;
use std::sync::Arc;
use tidepool_base::{Error, Result};

impl Session {
    /// Plans and starts a query. `query` is called on a worker: copying a deep one takes a deep stack.
    pub(super) async fn start(
        &self,
        running: Running,
        query: impl FnOnce() -> Result<Box<ast::Query>> + Send + 'static,
        parameters: &[ArrayRef],
    ) -> Result<(Vec<ResultColumn>, SchemaRef, Batches)> {
        let facts = running.facts.clone();
        let parameters = parameters.to_vec();
        let planning = self.planner.workers().spawn(async move { query::plan(facts, query()?, parameters).await });
        let planned = tokio::select! {
            biased;
            error = running.interrupt.wait() => return Err(error),
            planned = planning => joined(planned)?,
        };
        let (columns, schema) = (planned.columns.clone(), planned.schema.clone());
        let batches = self.run(running, planned)?;
        Ok((columns, schema, batches))
    }

    pub(super) fn run(&self, running: Running, planned: query::Planned) -> Result<Batches> {
        Ok(self.prepare_run(running, planned, None)?.start(&self.planner.workers()))
    }

    /// With `counts`, what operators do in the query heap is counted there, paced or not.
    pub(super) fn prepare_run(
        &self,
        running: Running,
        planned: query::Planned,
        counts: Option<&Arc<HeapCounts>>,
    ) -> Result<Execution> {
        let mut execution = self.execution(&running, planned, counts)?;
        execution.query = Some(running.query);
        Ok(execution)
    }

    fn execution(
        &self,
        running: &Running,
        planned: query::Planned,
        counts: Option<&Arc<HeapCounts>>,
    ) -> Result<Execution> {
        let heap = crate::heap::open(self.planner.database(), &running.facts.settings)?;
        let runtime = crate::heap::runtime(planned.state.runtime_env(), &heap);
        let context = TaskContext::default()
            .with_session_config(planned.state.config().clone().with_extension(running.query.info.clone()))
            .with_runtime(runtime);
        Ok(Execution {
            plan: crate::charge::wrap(
                crate::guard::wrap(planned.plan, &running.interrupt)?,
                &heap,
                &running.query.info,
                counts,
            )?,
            context: Arc::new(context),
            schema: planned.schema,
            heap,
            query: None,
            interrupt: running.interrupt.clone(),
            failed: self.block_failed(),
        })
    }

    /// As `prepare_writing`, of a part of the statement that runs.
    pub(super) fn prepare_part(&self, running: &Running, planned: query::Planned) -> Result<(Execution, Reevaluation)> {
        let (plan, config) = (planned.plan.clone(), planned.state.config().clone());
        let execution = self.execution(running, planned, None)?;
        let reevaluation = Reevaluation::new(plan, config, &execution, self.planner.workers());
        Ok((execution, reevaluation))
    }

    /// As `prepare_run`, with what it takes to run the plan again for some rows.
    pub(super) fn prepare_writing(
        &self,
        running: Running,
        planned: query::Planned,
    ) -> Result<(Execution, Reevaluation)> {
        let (plan, config) = (planned.plan.clone(), planned.state.config().clone());
        let execution = self.prepare_run(running, planned, None)?;
        let reevaluation = Reevaluation::new(plan, config, &execution, self.planner.workers());
        Ok((execution, reevaluation))
    }

    pub(super) async fn select(
        &mut self,
        text: &str,
        statement: &Statement,
        parameters: &[ArrayRef],
    ) -> Result<Outcome> {
        let Begun { running, statement, .. } = self.begin_statement(text, statement, parameters, true).await?;
        let (columns, _, batches) = self.start(running, move || query_of(&statement), parameters).await?;
        Ok(Outcome::Rows { columns, batches: Box::pin(batches), tag: "SELECT" })
    }
}

/// The query in a statement.
pub(super) fn query_of(statement: &Statement) -> Result<Box<ast::Query>> {
    let query = match statement.command() {
        Command::Query(query) => Some(query.clone()),
        Command::Insert(insert, _) => insert.source.clone(),
        Command::CreateTable { table, .. } => table.query.clone(),
        Command::Unsupported(error) => return Err(error.clone()),
        _ => None,
    };
    let query = query.ok_or_else(|| Error::unsupported("this needs a query that returns rows"))?;
    if matches!(query.body.as_ref(), ast::SetExpr::Select(select) if select.into.is_some()) {
        return Err(Error::unsupported("SELECT INTO is not supported").with_hint("Use CREATE TABLE AS."));
    }
    Ok(query)
}
