//! The engine as one of DataFusion's operators: its streams go in, the engine's result comes out.

use crate::QueryInfo;
use crate::charge::EngineAccount;
use crate::facts::SessionFacts;
use crate::interrupt::Interrupt;
use datafusion::arrow::array::{RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::{Stream, StreamExt};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use tidepool_base::panic_point;
use tidepool_engine::plan::{self, Plan};
use tidepool_engine::run::{Interruption, Run, Waker};
use tidepool_engine::scan::Opened;
use tidepool_engine::stream::{Batch, Inlet, Outlet, OutletSink};
use tidepool_engine::touch::Account;
use tidepool_engine::types::ColumnType;
use tidepool_heap::QueryHeap;

/// Runs a plan of the engine's.
pub struct EngineExec {
    plan: Arc<Plan>,
    /// What its columns leave as.
    types: Vec<ColumnType>,
    inputs: Vec<Arc<dyn ExecutionPlan>>,
    properties: Arc<PlanProperties>,
    account: Option<Arc<EngineAccount>>,
    is_small: bool,
}

impl EngineExec {
    pub fn new(
        plan: Arc<Plan>,
        types: Vec<ColumnType>,
        schema: SchemaRef,
        inputs: Vec<Arc<dyn ExecutionPlan>>,
        is_small: bool,
    ) -> EngineExec {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        EngineExec { plan, types, inputs, properties: Arc::new(properties), account: None, is_small }
    }

    /// The same, over other inputs, and with an account of what it does in the query heap.
    pub fn with_account(&self, account: Arc<EngineAccount>, inputs: Vec<Arc<dyn ExecutionPlan>>) -> EngineExec {
        EngineExec { account: Some(account), ..self.over(inputs) }
    }

    fn over(&self, inputs: Vec<Arc<dyn ExecutionPlan>>) -> EngineExec {
        EngineExec {
            plan: self.plan.clone(),
            types: self.types.clone(),
            inputs,
            properties: self.properties.clone(),
            account: self.account.clone(),
            is_small: self.is_small,
        }
    }

    /// Whether the thread that executes it runs it, at least for a while.
    pub fn is_small(&self) -> bool {
        self.is_small
    }

    pub fn account(&self) -> Option<&EngineAccount> {
        self.account.as_deref()
    }

    /// What it runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
}

impl fmt::Debug for EngineExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EngineExec({})", self.plan.label())
    }
}

impl DisplayAs for EngineExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EngineExec")
    }
}

/// The run ends when its stream is dropped, or its statement is to end. A worker that is within a chunk, which may be paired with millions of rows,
/// sees it here.
struct UntilDropped {
    is_dropped: AtomicBool,
    interrupt: Option<Arc<Interrupt>>,
}

impl Interruption for UntilDropped {
    fn check(&self) -> tidepool_base::Result<()> {
        if self.is_dropped.load(Ordering::Acquire) {
            return Err(crate::errors::canceled());
        }
        self.interrupt.as_ref().map_or(Ok(()), |interrupt| interrupt.check())
    }
}

impl ExecutionPlan for EngineExec {
    fn name(&self) -> &'static str {
        "EngineExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.inputs.iter().collect()
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        if children.len() != self.inputs.len() {
            return internal_err!("the engine's plan takes {} inputs", self.inputs.len());
        }
        Ok(Arc::new(self.over(children)))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if partition > 0 {
            return internal_err!("the engine's result is in one piece");
        }
        let config = context.session_config();
        let Some(facts) = SessionFacts::of(config.options()) else {
            return internal_err!("the engine runs within a session");
        };
        let query = config.get_extension::<QueryInfo>();
        let observes = query.as_ref().is_some_and(|query| query.is_observed());
        let opened: Option<Opened> =
            query.map(|query| -> Opened { Arc::new(move |scan| query.add_scan(scan.clone())) });
        let waker = Waker::default();
        let types_of = |input: &Arc<dyn ExecutionPlan>| {
            let of =
                |field: &Arc<datafusion::arrow::datatypes::Field>| ColumnType::new(field.data_type().clone(), true);
            input.schema().fields().iter().map(of).collect::<Vec<_>>()
        };
        let mut inlets = Vec::new();
        let mut pumps = Vec::new();
        for input in &self.inputs {
            let inlet = Inlet::new(types_of(input), waker.clone());
            let streams = (0..input.properties().output_partitioning().partition_count())
                .map(|partition| input.execute(partition, context.clone()))
                .collect::<Result<Vec<_>>>()?;
            pumps.push(SpawnedTask::spawn(pump(streams, inlet.clone())));
            inlets.push(inlet);
        }
        let outlet = Outlet::new(self.types.clone(), waker.clone());
        let sink = Arc::new(OutletSink(outlet.clone()));
        let account = self.account.clone().map(|account| account as Arc<dyn Account>);
        let interrupt = config.get_extension::<Interrupt>();
        let until_dropped = Arc::new(UntilDropped { is_dropped: AtomicBool::new(false), interrupt });
        let pipelines = plan::compile(&self.plan, &inlets, opened, account, observes, until_dropped.clone(), sink)
            .map_err(crate::errors::carry)?;
        let end = outlet.clone();
        let run = Run::start(
            pipelines,
            QueryHeap::current(),
            until_dropped.clone(),
            facts.planner.engine_tickets(),
            facts.settings.threads(),
            &[waker],
            self.is_small,
            move |result| end.end(result),
        );
        Ok(Box::pin(Results { schema: self.schema(), outlet, run, until_dropped, _pumps: pumps }))
    }
}

/// Moves batches from an operator's streams into an inlet, whose run waits for them until it hears of their end: a panic of the
/// operator's is an end, too.
async fn pump(streams: Vec<SendableRecordBatchStream>, inlet: Arc<Inlet>) {
    inlet.end(crate::execute::caught(pump_all(streams, &inlet)).await);
}

async fn pump_all(streams: Vec<SendableRecordBatchStream>, inlet: &Inlet) -> tidepool_base::Result<()> {
    let mut all = futures::stream::select_all(streams);
    loop {
        std::future::poll_fn(|context| inlet.poll_room(context)).await;
        match all.next().await {
            Some(Ok(batch)) => {
                panic_point("planner.operator");
                inlet.push(Batch { rows: batch.num_rows(), columns: batch.columns().to_vec() });
            }
            Some(Err(error)) => return Err(crate::errors::from_datafusion(error)),
            None => return Ok(()),
        }
    }
}

struct Results {
    schema: SchemaRef,
    outlet: Arc<Outlet>,
    run: Arc<Run>,
    until_dropped: Arc<UntilDropped>,
    _pumps: Vec<SpawnedTask<()>>,
}

impl Drop for Results {
    fn drop(&mut self) {
        self.until_dropped.is_dropped.store(true, Ordering::Release);
        self.run.stop();
    }
}

impl Stream for Results {
    type Item = Result<RecordBatch>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<RecordBatch>>> {
        Poll::Ready(ready!(self.outlet.poll_next(context)).map(|batch| {
            let batch = batch.map_err(crate::errors::carry)?;
            let options = RecordBatchOptions::new().with_row_count(Some(batch.rows));
            Ok(RecordBatch::try_new_with_options(self.schema.clone(), batch.columns, &options)?)
        }))
    }
}

impl RecordBatchStream for Results {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}
