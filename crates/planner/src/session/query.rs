//! Queries: planned, started, and explained.

use super::{Outcome, ResultColumn, Running, Session};
use crate::charge::HeapCounts;
use crate::execute::{Batches, Execution, joined};
use crate::query;
use crate::statement::{Command, ExplainOptions, Statement};
use arrow::array::{ArrayRef, RecordBatch, StringViewArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::execution::TaskContext;
use datafusion::sql::sqlparser::ast;
use futures::StreamExt;
use std::sync::Arc;
use std::time::Instant;
use tidepool_base::{ByteSize, Error, Result};
use tidepool_database::Database;
use tidepool_device::paged::{Paged, PagingCounters};
use tidepool_tablespace::Tablespace;

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
    fn prepare_run(
        &self,
        running: Running,
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
            query: running.query,
            interrupt: running.interrupt,
            failed: self.block_failed(),
        })
    }

    pub(super) async fn select(
        &mut self,
        text: &str,
        statement: &Statement,
        parameters: &[ArrayRef],
    ) -> Result<Outcome> {
        let running = self.running(text);
        let statement = statement.clone();
        let (columns, _, batches) = self.start(running, move || query_of(&statement), parameters).await?;
        Ok(Outcome::Rows { columns, batches: Box::pin(batches), tag: "SELECT" })
    }

    pub(super) async fn explain(
        &mut self,
        text: &str,
        options: ExplainOptions,
        statement: &Statement,
        parameters: &[ArrayRef],
    ) -> Result<Outcome> {
        let running = self.running(text);
        let explained = match statement.command() {
            Command::Execute { name, .. } => self.prepared(name)?.statement,
            Command::Insert(..) | Command::CreateTable { .. } if options.analyze || options.placement => {
                let form = if options.placement { "EXPLAIN PLACEMENT" } else { "EXPLAIN ANALYZE" };
                return Err(Error::unsupported(format!("{form} runs queries only")));
            }
            Command::Locking { .. } => {
                return Err(Error::unsupported("queries that lock rows cannot be explained")
                    .with_hint("Leave the locking clause out: the plan is the same."));
            }
            _ => statement.clone(),
        };
        let facts = running.facts.clone();
        let owned = parameters.to_vec();
        let planning_start = Instant::now();
        let planning =
            self.planner.workers().spawn(async move { query::plan(facts, query_of(&explained)?, owned).await });
        let planned = joined(planning.await)?;
        let planning_time = planning_start.elapsed();
        if options.placement {
            return self.explain_placement(running, planned).await;
        }
        let mut plan = planned.plan.clone();
        let mut execution = None;
        if options.analyze {
            let info = running.query.info.clone();
            let paging = PagingBefore::now(self.planner.database());
            let start = Instant::now();
            let prepared = self.prepare_run(running, planned, None)?;
            plan = prepared.plan.clone();
            let mut batches = prepared.start(&self.planner.workers());
            let mut rows = 0;
            while let Some(batch) = batches.next().await {
                rows += batch?.num_rows();
            }
            execution = Some((start.elapsed(), rows, info, paging));
        }
        let mut lines = crate::explain::lines(&plan, options.analyze, options.verbose, options.tree);
        if let Some((elapsed, rows, info, paging)) = execution {
            for (tablespace, _, peak) in info.heap_bytes() {
                lines.push(format!("Heap in {tablespace}: {} at most", ByteSize(peak)));
            }
            let stall = info.heap_stall_ns();
            if stall > 0 {
                lines.push(format!("Heap stalled by pacing (estimate): {:.3} ms", stall as f64 / 1e6));
            }
            for (tablespace, bytes, stall) in info.scan_bytes() {
                lines.push(format!(
                    "Read from {tablespace}: {}, stalled {:.3} ms",
                    ByteSize(bytes),
                    stall as f64 / 1e6
                ));
            }
            lines.extend(paging.lines());
            lines.push(format!("Planning Time: {:.3} ms", planning_time.as_secs_f64() * 1e3));
            lines.push(format!("Execution Time: {:.3} ms ({rows} rows)", elapsed.as_secs_f64() * 1e3));
        }
        plan_lines(lines)
    }

    /// Runs the query once, to count what it touches, and says what that would cost elsewhere.
    async fn explain_placement(&self, running: Running, planned: query::Planned) -> Result<Outcome> {
        let models = crate::placement::models(self.planner.database())?;
        let counts = Arc::new(HeapCounts::new(models.iter().map(|(_, model)| model.clone()).collect()));
        let info = running.query.info.clone();
        // Asking is no part of the workload.
        info.leave_unrecorded();
        let facts = running.facts.clone();
        let start = Instant::now();
        let prepared = self.prepare_run(running, planned, Some(&counts))?;
        let plan = prepared.plan.clone();
        let mut batches = prepared.start(&self.planner.workers());
        while let Some(batch) = batches.next().await {
            batch?;
        }
        let elapsed = start.elapsed();
        let stall_ns = info.heap_stall_ns() + info.scan_bytes().iter().map(|(.., stall_ns)| stall_ns).sum::<u64>();
        let scans = crate::scan::scans_of(&plan);
        plan_lines(crate::placement::lines(&crate::placement::Run {
            scans: &scans,
            operators: counts.operators(),
            models: &models,
            threads: facts.settings.threads(),
            elapsed,
            stall_ns,
        }))
    }
}

/// Counters of the paged tablespaces before a statement.
struct PagingBefore(Vec<(Arc<Tablespace>, PagingCounters)>);

impl PagingBefore {
    fn now(database: &Database) -> PagingBefore {
        let paged = |space: Arc<Tablespace>| space.paged().map(Paged::counters).map(|counters| (space, counters));
        PagingBefore(database.tablespaces().list().into_iter().filter_map(paged).collect())
    }

    /// What came since, by whomever: faults belong to threads, not to statements.
    fn lines(&self) -> Vec<String> {
        let ms = |ns: u64| ns as f64 / 1e6;
        let line = |(space, before): &(Arc<Tablespace>, PagingCounters)| {
            let spent = space.paged()?.counters().since(before);
            (spent.faults > 0).then(|| {
                format!(
                    "Paged in {}: {} faults, {} pages fetched, {} written back; network {:.3} ms; mechanism {:.3} ms, \
                     waited {:.3} ms",
                    space.name(),
                    spent.faults,
                    spent.fetched,
                    spent.written_back,
                    ms(spent.modelled_ns),
                    ms(spent.mechanism_ns),
                    ms(spent.waited_ns + spent.shared_ns),
                )
            })
        };
        self.0.iter().filter_map(line).collect()
    }
}

fn plan_lines(lines: Vec<String>) -> Result<Outcome> {
    let schema = Arc::new(Schema::new(vec![Field::new("QUERY PLAN", DataType::Utf8View, true)]));
    let lines = StringViewArray::from_iter_values(lines);
    let batch = RecordBatch::try_new(schema, vec![Arc::new(lines)]).map_err(crate::errors::from_arrow)?;
    Ok(Outcome::Rows {
        columns: vec![ResultColumn::text("QUERY PLAN")],
        batches: Box::pin(futures::stream::iter([Ok(batch)])),
        tag: "EXPLAIN",
    })
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
