//! `EXPLAIN`: of queries, and of statements that write. `ANALYZE` does what the statement does, in its transaction.

use super::change::Verb;
use super::parts::Begun;
use super::query::query_of;
use super::{Outcome, ResultColumn, Running, Session};
use crate::charge::HeapCounts;
use crate::explain::Node;
use crate::explain::format::{Item, Notation};
use crate::queries::QueryInfo;
use crate::query;
use crate::statement::{Command, ExplainFormat, ExplainOptions, Statement};
use arrow::array::{ArrayRef, RecordBatch, StringViewArray};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::physical_plan::ExecutionPlan;
use futures::StreamExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidepool_base::{ByteSize, Error, Result, SqlType};
use tidepool_database::Database;
use tidepool_device::paged::{Paged, PagingCounters};
use tidepool_table::TablespaceRead;
use tidepool_tablespace::Tablespace;

/// A statement's plan, and what came of it.
pub(super) struct Explained {
    /// What stands over the plan, of a statement that does something with the plan's rows.
    pub node: Option<Node>,
    pub plan: Arc<dyn ExecutionPlan>,
    /// Plans of the queries within it that lock rows.
    pub parts: Vec<Arc<dyn ExecutionPlan>>,
    pub planning: Duration,
    /// Unless it was planned only.
    pub ran: Option<Ran>,
}

pub(super) struct Ran {
    pub elapsed: Duration,
    pub rows: u64,
    pub info: Arc<QueryInfo>,
}

impl Session {
    pub(super) async fn explain(
        &mut self,
        text: &str,
        options: ExplainOptions,
        statement: &Statement,
        parameters: &[ArrayRef],
    ) -> Result<Outcome> {
        let (statement, parameters) = match statement.command() {
            Command::Execute { name, arguments } => {
                let prepared = self.prepared(name)?;
                let arguments = self.arguments(name, &prepared, arguments).await?;
                (prepared.statement, arguments)
            }
            _ => (statement.clone(), parameters.to_vec()),
        };
        let writes = Verb::of(statement.command()).is_some()
            || matches!(statement.command(), Command::Locking { .. } | Command::CreateTable { .. });
        if options.placement {
            if writes {
                return Err(Error::unsupported("EXPLAIN PLACEMENT runs queries only"));
            }
            // The account of what operators touch is kept of DataFusion's.
            let (running, planned, ..) = self.planned(text, &statement, &parameters, true).await?;
            return self.explain_placement(running, planned).await;
        }
        let direct = match options.analyze {
            true => Vec::new(),
            false => self.explain_direct(&statement, &parameters).await,
        };
        let paging = PagingBefore::now(self.planner.database());
        let explained = match options.analyze {
            true if writes => self.analyze_writing(text, &statement, &parameters).await?,
            true => Some(self.analyze_query(text, &statement, &parameters).await?),
            false => Some(self.explain_only(text, &statement, &parameters).await?),
        };
        // A table that was there already.
        let Some(explained) = explained else { return plan_lines(Vec::new()) };
        let node = explained.node.as_ref();
        let ran = explained.ran.as_ref().map(|ran| (ran.elapsed, ran.rows));
        if let ExplainFormat::Document(notation) = options.format {
            return self.plan_document(&explained, direct, &paging, options, notation);
        }
        let mut lines = crate::explain::lines(&explained.plan, node, ran, options);
        for (number, part) in explained.parts.iter().enumerate() {
            lines.push(format!("Part {} (locks rows first)", number + 1));
            let part = crate::explain::lines(part, Some(&Node::new("LockRows")), None, options);
            lines.extend(part.into_iter().map(|line| format!("  {line}")));
        }
        lines.extend(direct);
        if let Some(Ran { elapsed, rows, info }) = explained.ran.filter(|_| !options.hides_summary) {
            lines.extend(summary(&info));
            lines.extend(paging.lines());
            lines.push(format!("Planning Time: {:.3} ms", explained.planning.as_secs_f64() * 1e3));
            lines.push(format!("Execution Time: {:.3} ms ({rows} rows)", elapsed.as_secs_f64() * 1e3));
        }
        plan_lines(lines)
    }

    /// A plan as a document in one row.
    fn plan_document(
        &self,
        explained: &Explained,
        direct: Vec<String>,
        paging: &PagingBefore,
        options: ExplainOptions,
        notation: Notation,
    ) -> Result<Outcome> {
        let ran = explained.ran.as_ref();
        let totals = ran.map(|ran| (ran.elapsed, ran.rows));
        let mut shown = crate::explain::shown(&explained.plan, explained.node.as_ref(), totals, options);
        for part in &explained.parts {
            let part = crate::explain::shown(part, Some(&Node::new("LockRows")), None, options);
            shown.children.push(part);
        }
        let mut whole = Vec::new();
        let mut notes = direct;
        if let Some(ran) = ran.filter(|_| !options.hides_summary) {
            let planning = explained.planning.as_secs_f64() * 1e3;
            whole.push(("Planning Time".to_owned(), Item::ms(planning)));
            whole.push(("Execution Time".to_owned(), Item::ms(ran.elapsed.as_secs_f64() * 1e3)));
            notes.extend(summary(&ran.info));
            notes.extend(paging.lines());
        }
        if !notes.is_empty() {
            whole.push(("Notes".to_owned(), Item::List("Note", notes.into_iter().map(Item::Text).collect())));
        }
        let text = crate::explain::format::document(&shown, whole, notation);
        plan_rows(vec![text], plan_column(options.format))
    }

    /// The plan of the query in a statement.
    async fn planned(
        &mut self,
        text: &str,
        statement: &Statement,
        parameters: &[ArrayRef],
        runs: bool,
    ) -> Result<(Running, query::Planned, Duration, Vec<Arc<dyn ExecutionPlan>>)> {
        let Begun { running, statement, plans, .. } = self.begin_statement(text, statement, parameters, runs).await?;
        let facts = running.facts.clone();
        let parameters = parameters.to_vec();
        let start = Instant::now();
        let planning = async move { query::plan(facts, query_of(&statement)?, parameters, None).await };
        let planned = self.plan_apart(text, planning).await?;
        Ok((running, planned, start.elapsed(), plans))
    }

    async fn explain_only(&mut self, text: &str, statement: &Statement, parameters: &[ArrayRef]) -> Result<Explained> {
        if Verb::of(statement.command()).is_some() {
            let Begun { running, statement, plans: parts, .. } =
                self.begin_statement(text, statement, parameters, false).await?;
            let start = Instant::now();
            let (source, upsert, planned) = self.plan_change(&running.facts, &statement, parameters, false).await?;
            let node = Some(source.node(&running.facts, upsert.as_ref()));
            return Ok(Explained { node, plan: planned.plan, parts, planning: start.elapsed(), ran: None });
        }
        if let Command::Locking { .. } = statement.command() {
            let Begun { running, reading, plans: parts, .. } =
                self.begin_statement(text, statement, parameters, false).await?;
            let reading = reading.ok_or_else(|| Error::internal("not a query that locks rows"))?;
            let start = Instant::now();
            let (_, planned) = self.plan_locking(&running.facts, reading, parameters).await?;
            let node = Some(Node::new("LockRows"));
            return Ok(Explained { node, plan: planned.plan, parts, planning: start.elapsed(), ran: None });
        }
        let (_, planned, planning, parts) = self.planned(text, statement, parameters, false).await?;
        Ok(Explained { node: None, plan: planned.plan, parts, planning, ran: None })
    }

    async fn analyze_query(&mut self, text: &str, statement: &Statement, parameters: &[ArrayRef]) -> Result<Explained> {
        let (running, planned, planning, parts) = self.planned(text, statement, parameters, true).await?;
        let info = running.query.info.clone();
        let start = Instant::now();
        let prepared = self.prepare_run(running, planned, None)?;
        let plan = prepared.plan.clone();
        let mut batches = prepared.start(&self.planner.workers());
        let mut rows = 0;
        while let Some(batch) = batches.next().await {
            rows += batch?.num_rows() as u64;
        }
        let ran = Some(Ran { elapsed: start.elapsed(), rows, info });
        Ok(Explained { node: None, plan, parts, planning, ran })
    }

    /// `None` where nothing was to be done.
    async fn analyze_writing(
        &mut self,
        text: &str,
        statement: &Statement,
        parameters: &[ArrayRef],
    ) -> Result<Option<Explained>> {
        let mut explained = None;
        match statement.command() {
            Command::Locking { .. } => {
                self.select_locking(text, statement, parameters, Some(&mut explained), None).await?
            }
            Command::CreateTable { .. } => self.create_table(text, statement, parameters, Some(&mut explained)).await?,
            _ => self.change(text, statement, parameters, Some(&mut explained)).await?,
        };
        Ok(explained)
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
        let stall_ns = info.heap_stall_ns() + info.scan_bytes().iter().map(|read| read.stall_ns).sum::<u64>();
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

/// What a statement that ran held and read, by tablespace.
fn summary(info: &QueryInfo) -> Vec<String> {
    let mut lines = Vec::new();
    for (tablespace, _, peak) in info.heap_bytes() {
        lines.push(format!("Heap in {tablespace}: {} at most", ByteSize(peak)));
    }
    let stall = info.heap_stall_ns();
    if stall > 0 {
        lines.push(format!("Heap stalled by pacing (estimate): {:.3} ms", stall as f64 / 1e6));
    }
    for TablespaceRead { tablespace, bytes, stall_ns, .. } in info.scan_bytes() {
        let (bytes, stall_ms) = (ByteSize(bytes), stall_ns as f64 / 1e6);
        lines.push(format!("Read from {tablespace}: {bytes}, stalled {stall_ms:.3} ms"));
    }
    lines
}

/// The column of an `EXPLAIN`.
pub(super) fn plan_column(format: ExplainFormat) -> ResultColumn {
    let oid = match format {
        ExplainFormat::Document(Notation::Json) => SqlType::Json.oid(),
        ExplainFormat::Document(Notation::Xml) => XML_OID,
        _ => SqlType::Text.oid(),
    };
    ResultColumn { type_oid: oid, ..ResultColumn::text("QUERY PLAN") }
}

const XML_OID: u32 = 142;

fn plan_lines(lines: Vec<String>) -> Result<Outcome> {
    plan_rows(lines, plan_column(ExplainFormat::Text))
}

fn plan_rows(lines: Vec<String>, column: ResultColumn) -> Result<Outcome> {
    let schema = Arc::new(Schema::new(vec![Field::new("QUERY PLAN", DataType::Utf8View, true)]));
    let lines = StringViewArray::from_iter_values(lines);
    let batch = RecordBatch::try_new(schema, vec![Arc::new(lines)]).map_err(crate::errors::from_arrow)?;
    Ok(Outcome::Rows { columns: vec![column], batches: Box::pin(futures::stream::iter([Ok(batch)])), tag: "EXPLAIN" })
}
