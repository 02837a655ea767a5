//! The rows of a `WITH` query that is computed once.
//!
//! What makes them runs on a thread of its own: a reader may be a function that holds up the thread that it is called on, and then nobody
//! but another thread could get it any further. It is as far ahead as the foremost reader has come, and ends with the last one.

use crate::errors::{carry, from_datafusion};
use crate::execute::caught;
use crate::facts::SessionFacts;
use crate::interrupt::Interrupt;
use crate::planner::WORKER_STACK_BYTES;
use crate::query;
use async_trait::async_trait;
use datafusion::arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{FieldRef, Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Result as PlanResult, Statistics, internal_err, stats::Precision};
use datafusion::datasource::{TableType, source_as_provider};
use datafusion::execution::session_state::SessionState;
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, execute_stream};
use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use tidepool_base::{Error, Result, panic_point};
use tidepool_heap::QueryHeap;
use tokio::sync::Notify;

/// A `WITH` query as a table of its statement.
#[derive(Debug)]
pub(crate) struct SharedQuery {
    name: String,
    /// As it was written.
    plan: LogicalPlan,
    schema: SchemaRef,
    rows_estimated: usize,
    parameters: OnceLock<Vec<ArrayRef>>,
    /// Made for the first of those who read it.
    exec: tokio::sync::Mutex<Option<Arc<dyn ExecutionPlan>>>,
    rows: Arc<Kept>,
}

impl SharedQuery {
    /// `None` where it cannot be a table.
    pub(crate) fn of(state: &SessionState, name: &str, plan: LogicalPlan) -> Option<SharedQuery> {
        // Types are only final after coercion. As long as those of parameters are open, so are others.
        let analyzed = crate::optimizer::analyze(state, plan.clone());
        let analyzed = analyzed.as_ref().unwrap_or(&plan);
        let fields = analyzed.schema().fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let is_once = |name: &String| schema.fields().iter().filter(|field| field.name() == name).count() == 1;
        if !schema.fields().iter().all(|field| is_once(field.name())) {
            return None;
        }
        let rows_estimated = crate::optimizer::estimated_rows(analyzed) as usize;
        Some(SharedQuery {
            name: name.to_owned(),
            plan,
            schema,
            rows_estimated,
            parameters: OnceLock::new(),
            exec: tokio::sync::Mutex::default(),
            rows: Arc::default(),
        })
    }

    async fn exec(&self, state: &dyn Session) -> Result<Arc<dyn ExecutionPlan>> {
        let mut exec = self.exec.lock().await;
        if let Some(exec) = exec.as_ref() {
            return Ok(exec.clone());
        }
        let Some(facts) = SessionFacts::of(state.config_options()) else {
            return Err(Error::internal("a WITH query runs within a session"));
        };
        let state = facts.planner.state(facts);
        let plan = query::bind(self.plan.clone(), self.parameters.get().map_or(&[], |values| values.as_slice()))?;
        let mut made = query::physical_plan(&state, &plan).await?;
        if let Some(interrupt) = interrupt_of(facts) {
            made = crate::guard::wrap(made, &interrupt)?;
        }
        Ok(exec.insert(made).clone())
    }
}

fn interrupt_of(facts: &SessionFacts) -> Option<Arc<Interrupt>> {
    facts.planner.shared(facts.session_id)?.interrupt().upgrade()
}

#[async_trait]
impl TableProvider for SharedQuery {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Temporary
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> PlanResult<Arc<dyn ExecutionPlan>> {
        let exec = self.exec(state).await.map_err(carry)?;
        let projection = projection.cloned().unwrap_or_else(|| (0..self.schema.fields().len()).collect());
        let projected = Arc::new(self.schema.project(&projection)?);
        let properties = PlanProperties::new(
            EquivalenceProperties::new(projected),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Ok(Arc::new(SharedScan {
            name: self.name.clone(),
            exec,
            whole: self.schema.clone(),
            projection,
            rows: self.rows.clone(),
            properties: Arc::new(properties),
        }))
    }

    fn statistics(&self) -> Option<Statistics> {
        let num_rows = Precision::Inexact(self.rows_estimated);
        Some(Statistics { num_rows, ..Statistics::new_unknown(&self.schema) })
    }
}

/// Those that a plan reads, whatever depth they are at in it, each once.
fn each(
    plan: &LogicalPlan,
    seen: &mut HashMap<usize, ()>,
    visit: &mut dyn FnMut(&SharedQuery) -> Result<()>,
) -> Result<()> {
    let mut outcome = Ok(());
    let found = plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node
            && let Ok(provider) = source_as_provider(&scan.source)
            && let Some(shared) = provider.downcast_ref::<SharedQuery>()
            && seen.insert(std::ptr::from_ref(shared).addr(), ()).is_none()
        {
            outcome = visit(shared).and_then(|()| each(&shared.plan, seen, visit));
        }
        Ok(if outcome.is_ok() { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    });
    found.map_err(from_datafusion)?;
    outcome
}

/// Gives the queries that a plan reads the values of the statement's parameters.
pub(crate) fn bind(plan: &LogicalPlan, parameters: &[ArrayRef]) -> Result<()> {
    each(plan, &mut HashMap::new(), &mut |shared| {
        // Bound before: to the same.
        let _ = shared.parameters.set(parameters.to_vec());
        Ok(())
    })
}

/// What is known of the types of parameters, by name, in a plan and in the queries that it reads. The first place that tells a parameter's type
/// decides, and in others it is a value of that type. Places are in the order of the plan, from its top: PostgreSQL looks at subqueries in
/// FROM, and at the WHERE of an UPDATE, before the rest.
pub(crate) fn parameter_fields(plan: &LogicalPlan) -> Result<HashMap<String, Option<FieldRef>>> {
    let mut fields = HashMap::new();
    // `WITH` stands before what reads it.
    each(plan, &mut HashMap::new(), &mut |shared| add_parameter_fields(&shared.plan, &mut fields))?;
    add_parameter_fields(plan, &mut fields)?;
    Ok(fields)
}

fn add_parameter_fields(plan: &LogicalPlan, fields: &mut HashMap<String, Option<FieldRef>>) -> Result<()> {
    let walked = plan.apply_with_subqueries(|plan| {
        plan.apply_expressions(|expr| {
            expr.apply(|expr| {
                if let Expr::Placeholder(placeholder) = expr {
                    let known = fields.entry(placeholder.id.clone()).or_default();
                    if known.as_ref().is_none_or(|field| field.data_type().is_null()) {
                        *known = placeholder.field.clone().or_else(|| known.take());
                    }
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    });
    walked.map(drop).map_err(from_datafusion)
}

// --------------------------------------------------------------------------------------------------------------- the rows

/// Rows as far as they are made, and what waits for more of them.
#[derive(Debug, Default)]
struct SharedRows {
    made: Mutex<Made>,
    /// More is wanted, or nothing any more.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Made {
    is_begun: bool,
    batches: Vec<RecordBatch>,
    /// What comes after them.
    over: Option<Result<()>>,
    /// Batches that readers have come to.
    wanted: usize,
    waiting: Vec<Waker>,
    is_closed: bool,
}

impl SharedRows {
    /// Nobody reads any more.
    fn close(&self) {
        let mut made = self.made.lock();
        made.is_closed = true;
        made.batches.clear();
        self.changed.notify_one();
    }

    fn end(&self, outcome: Result<()>) {
        let mut made = self.made.lock();
        made.over.get_or_insert(outcome);
        made.waiting.drain(..).for_each(Waker::wake);
    }

    async fn make(&self, exec: Arc<dyn ExecutionPlan>, context: Arc<TaskContext>) -> Result<()> {
        panic_point("planner.shared");
        let mut stream = execute_stream(exec, context).map_err(from_datafusion)?;
        loop {
            let (is_closed, is_wanted) = {
                let made = self.made.lock();
                (made.is_closed, made.batches.len() < made.wanted)
            };
            if is_closed {
                return Ok(());
            }
            if !is_wanted {
                self.changed.notified().await;
                continue;
            }
            let next = tokio::select! {
                biased;
                next = stream.next() => next,
                () = self.changed.notified() => continue,
            };
            let Some(batch) = next else { return Ok(()) };
            let batch = batch.map_err(from_datafusion)?;
            if let Some(heap) = QueryHeap::current() {
                heap.check()?;
            }
            if batch.num_rows() > 0 {
                let mut made = self.made.lock();
                made.batches.push(batch);
                made.waiting.drain(..).for_each(Waker::wake);
            }
        }
    }
}

/// Has the rows kept for those who read them, or may yet; what makes them does not have it.
#[derive(Debug, Default)]
struct Kept(Arc<SharedRows>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Reads them.
#[derive(Debug)]
struct SharedScan {
    name: String,
    exec: Arc<dyn ExecutionPlan>,
    /// Before the projection.
    whole: SchemaRef,
    projection: Vec<usize>,
    rows: Arc<Kept>,
    properties: Arc<PlanProperties>,
}

impl DisplayAs for SharedScan {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CteScan: {}", self.name)
    }
}

impl ExecutionPlan for SharedScan {
    fn name(&self) -> &'static str {
        "CteScan"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> PlanResult<TreeNodeRecursion>,
    ) -> PlanResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> PlanResult<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> PlanResult<SendableRecordBatchStream> {
        if partition > 0 {
            return internal_err!("the rows of a WITH query are in one piece");
        }
        Ok(Box::pin(SharedStream {
            schema: self.schema(),
            exec: self.exec.clone(),
            context,
            heap: QueryHeap::current(),
            whole: self.whole.clone(),
            projection: self.projection.clone(),
            rows: self.rows.clone(),
            next: 0,
        }))
    }
}

struct SharedStream {
    schema: SchemaRef,
    exec: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    heap: Option<Arc<QueryHeap>>,
    whole: SchemaRef,
    projection: Vec<usize>,
    rows: Arc<Kept>,
    next: usize,
}

impl SharedStream {
    /// Begins to make the rows, on a thread that holds nothing of the statement beyond their making.
    fn begin(&self) -> Result<()> {
        let (rows, exec, context) = (self.rows.0.clone(), self.exec.clone(), self.context.clone());
        let heap = self.heap.clone();
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            let outcome = match runtime {
                Ok(runtime) => runtime.block_on(caught(async {
                    let making = rows.make(exec, context);
                    match &heap {
                        Some(heap) => crate::heap::scope(heap, making).await,
                        None => making.await,
                    }
                })),
                Err(error) => Err(Error::io("start a thread for a WITH query", &error)),
            };
            drop(heap);
            rows.end(outcome);
        };
        QueryHeap::outside(|| {
            let thread = std::thread::Builder::new().name("tidepool-with".into()).stack_size(WORKER_STACK_BYTES);
            thread.spawn(run).map(drop).map_err(|error| Error::io("start a thread for a WITH query", &error))
        })
    }

    fn projected(&self, batch: &RecordBatch) -> PlanResult<RecordBatch> {
        let column = |place: &usize| -> PlanResult<ArrayRef> {
            let (column, wanted) = (batch.column(*place), self.whole.field(*place).data_type());
            Ok(if column.data_type() == wanted { column.clone() } else { cast(column, wanted)? })
        };
        let columns = self.projection.iter().map(column).collect::<PlanResult<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?)
    }
}

impl Stream for SharedStream {
    type Item = PlanResult<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let rows = self.rows.0.clone();
        let mut made = rows.made.lock();
        if let Some(batch) = made.batches.get(self.next).cloned() {
            drop(made);
            self.next += 1;
            return Poll::Ready(Some(self.projected(&batch)));
        }
        match &made.over {
            Some(Ok(())) => return Poll::Ready(None),
            Some(Err(error)) => return Poll::Ready(Some(Err(carry(error.clone())))),
            None => {}
        }
        made.wanted = made.wanted.max(self.next + 1);
        made.waiting.push(context.waker().clone());
        if !std::mem::replace(&mut made.is_begun, true) {
            drop(made);
            if let Err(error) = self.begin() {
                rows.end(Err(error));
            }
        } else {
            drop(made);
            rows.changed.notify_one();
        }
        Poll::Pending
    }
}

impl RecordBatchStream for SharedStream {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}
