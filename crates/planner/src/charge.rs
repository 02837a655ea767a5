//! Pacing for operators that are not ours: what their work in a paced query heap would have cost.
//!
//! DataFusion's operators do not say which memory they touch, so this is an estimate (`docs/pacing.md`), made where rows
//! enter and leave them. Above the inputs of operators that hold rows sits a [`HeapPacingExec`], which lets batches through
//! and charges, batch by batch and on the thread that runs the operator:
//!
//! | operator | charged |
//! | --- | --- |
//! | hash join, build | the rows written once and read once in sequence; one line written at random a row, over the hash table |
//! | hash join, probe | a line read at random a row over the hash table, and one over the rows held |
//! | grouping | two lines read at random a row, over the group table; the table's growth written, and the table read once at the end |
//! | sort, window, nested-loop and cross joins | the rows held written once and read once in sequence |
//!
//! The cost model knows the last-level cache: random lines over what fits in it cost nothing more. Batches that merely
//! pass between operators are taken to stay in cache. If the heap lies in several tablespaces, each access is shared out
//! by the bytes that lie in each.

use crate::errors::from_datafusion;
use crate::queries::QueryInfo;
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::DataType;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result as PlanResult, Statistics};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec, PartitionMode};
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet, Time};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::windows::WindowAggExec;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, ReplaceChildrenOptions,
};
use futures::Stream;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tidepool_base::Result;
use tidepool_device::Access;
use tidepool_heap::QueryHeap;

/// Independent accesses that a core keeps in flight while it works through a batch of precomputed hashes: out-of-order
/// execution reaches over a few rows of such a loop, and each row's own accesses depend on each other.
const IN_FLIGHT: f64 = 4.0;

/// Bytes of DataFusion's join hash table a row: a (hash, row) pair at hashbrown's load, and the chain's next row.
const JOIN_ENTRY_BYTES: u64 = 28;

/// Batches after which a group table's size is asked for again.
const SIZE_BATCHES: u64 = 8;

/// Puts the charges into a plan; the plan itself if nothing of the heap is paced.
pub fn wrap(
    plan: Arc<dyn ExecutionPlan>,
    heap: &Arc<QueryHeap>,
    info: &Arc<QueryInfo>,
) -> Result<Arc<dyn ExecutionPlan>> {
    if heap.usage().iter().all(|usage| usage.tablespace.pacer().is_none()) {
        return Ok(plan);
    }
    let pacing = Arc::new(Pacing { heap: heap.clone(), info: info.clone() });
    rewrite(plan, &pacing).map_err(from_datafusion)
}

fn rewrite(plan: Arc<dyn ExecutionPlan>, pacing: &Arc<Pacing>) -> PlanResult<Arc<dyn ExecutionPlan>> {
    let mut children =
        plan.children().into_iter().map(|child| rewrite(child.clone(), pacing)).collect::<PlanResult<Vec<_>>>()?;
    if children.is_empty() {
        return Ok(plan);
    }
    let mut groups = None;
    if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        let tables = match join.partition_mode() {
            PartitionMode::Partitioned => children[0].properties().partitioning.partition_count(),
            _ => 1,
        };
        let table =
            Arc::new(JoinTable { rows: AtomicU64::new(0), bytes: AtomicU64::new(0), tables: tables.max(1) as u64 });
        if let [build, probe] = children.as_mut_slice() {
            *build = HeapPacingExec::over(build.clone(), pacing, Role::Build(table.clone()));
            *probe = HeapPacingExec::over(probe.clone(), pacing, Role::Probe(table));
        }
    } else if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        if !aggregate.group_expr().is_true_no_grouping() {
            let parent = Arc::new(OnceLock::new());
            children[0] = HeapPacingExec::over(children[0].clone(), pacing, Role::Group(parent.clone()));
            groups = Some(parent);
        }
    } else if let Some(sort) = plan.downcast_ref::<SortExec>() {
        // With a limit it keeps only the best few rows.
        if sort.fetch().is_none() {
            children[0] = HeapPacingExec::over(children[0].clone(), pacing, Role::Hold);
        }
    } else if plan.is::<WindowAggExec>() || plan.is::<NestedLoopJoinExec>() || plan.is::<CrossJoinExec>() {
        children[0] = HeapPacingExec::over(children[0].clone(), pacing, Role::Hold);
    }
    let plan = plan.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep))?;
    if let Some(groups) = groups {
        let _ = groups.set(Arc::downgrade(&plan));
    }
    Ok(plan)
}

struct Pacing {
    heap: Arc<QueryHeap>,
    info: Arc<QueryInfo>,
}

impl Pacing {
    /// Shares accesses out to the heap's paced tablespaces and spends them here. Returns ns.
    fn charge(&self, accesses: &[Access]) -> u64 {
        let usage = self.heap.usage();
        let total: u64 = usage.iter().map(|usage| usage.bytes).sum();
        let mut stall_ns = 0;
        for (index, usage) in usage.iter().enumerate() {
            let Some(pacer) = usage.tablespace.pacer() else { continue };
            let share = match total {
                // Nothing allocated yet: what comes first goes to the first tablespace.
                0 => f64::from(u8::from(index == 0)),
                total => usage.bytes as f64 / total as f64,
            };
            if share > 0.0 {
                let shares: Vec<Access> = accesses.iter().map(|access| scaled(access, share)).collect();
                stall_ns += pacer.charge_all(&shares);
            }
        }
        if stall_ns > 0 {
            self.info.add_heap_stall_ns(stall_ns);
        }
        stall_ns
    }
}

fn scaled(access: &Access, share: f64) -> Access {
    use tidepool_device::Pattern;
    let part = |count: u64| (count as f64 * share) as u64;
    let pattern = match access.pattern {
        Pattern::Sequential { bytes, runs } => Pattern::Sequential { bytes: part(bytes), runs },
        Pattern::Random { lines, working_set_bytes, in_flight } => {
            Pattern::Random { lines: part(lines), working_set_bytes, in_flight }
        }
    };
    Access { pattern, write: access.write }
}

/// The size of a join's hash tables so far.
#[derive(Debug)]
struct JoinTable {
    rows: AtomicU64,
    bytes: AtomicU64,
    /// Equal parts, one a partition.
    tables: u64,
}

impl JoinTable {
    fn entries_bytes(&self) -> u64 {
        self.rows.load(Ordering::Relaxed) * JOIN_ENTRY_BYTES / self.tables
    }

    fn held_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed) / self.tables
    }
}

#[derive(Clone, Debug)]
enum Role {
    Build(Arc<JoinTable>),
    Probe(Arc<JoinTable>),
    /// The aggregate above, which measures its table.
    Group(Arc<OnceLock<Weak<dyn ExecutionPlan>>>),
    Hold,
}

impl Role {
    fn name(&self) -> &'static str {
        match self {
            Role::Build(_) => "hash join build",
            Role::Probe(_) => "hash join probe",
            Role::Group(_) => "grouping",
            Role::Hold => "rows held",
        }
    }
}

/// Lets batches through and charges what the operator above does with them.
struct HeapPacingExec {
    input: Arc<dyn ExecutionPlan>,
    pacing: Arc<Pacing>,
    role: Role,
    metrics: ExecutionPlanMetricsSet,
}

impl HeapPacingExec {
    fn over(input: Arc<dyn ExecutionPlan>, pacing: &Arc<Pacing>, role: Role) -> Arc<dyn ExecutionPlan> {
        Arc::new(HeapPacingExec { input, pacing: pacing.clone(), role, metrics: ExecutionPlanMetricsSet::new() })
    }
}

impl fmt::Debug for HeapPacingExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeapPacingExec({})", self.role.name())
    }
}

impl DisplayAs for HeapPacingExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "HeapPacingExec: {}", self.role.name())
            }
            DisplayFormatType::TreeRender => f.write_str(self.role.name()),
        }
    }
}

impl ExecutionPlan for HeapPacingExec {
    fn name(&self) -> &str {
        "HeapPacingExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> PlanResult<TreeNodeRecursion>,
    ) -> PlanResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> PlanResult<Arc<dyn ExecutionPlan>> {
        match children.pop() {
            Some(input) => Ok(HeapPacingExec::over(input, &self.pacing, self.role.clone())),
            None => datafusion::common::internal_err!("HeapPacingExec needs an input"),
        }
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(
        &self,
        input_stats: &[Arc<Statistics>],
        _args: &StatisticsArgs,
    ) -> PlanResult<Arc<Statistics>> {
        match input_stats.first() {
            Some(statistics) => Ok(statistics.clone()),
            None => datafusion::common::internal_err!("an input's statistics are missing"),
        }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> PlanResult<SendableRecordBatchStream> {
        Ok(Box::pin(PacedStream {
            input: self.input.execute(partition, context)?,
            pacing: self.pacing.clone(),
            role: self.role.clone(),
            partition,
            batches: 0,
            held_bytes: 0,
            ended: false,
            stall: MetricBuilder::new(&self.metrics).subset_time("heap_stall", partition),
            lines: MetricBuilder::new(&self.metrics).counter("heap_lines", partition),
            bytes: MetricBuilder::new(&self.metrics).counter("heap_bytes", partition),
        }))
    }
}

struct PacedStream {
    input: SendableRecordBatchStream,
    pacing: Arc<Pacing>,
    role: Role,
    partition: usize,
    batches: u64,
    /// Written so far by this partition and to be read at the end; a group table's size when it was last asked for.
    held_bytes: u64,
    ended: bool,
    stall: Time,
    lines: Count,
    bytes: Count,
}

impl PacedStream {
    fn batch(&mut self, batch: &RecordBatch) {
        let rows = batch.num_rows() as u64;
        self.batches += 1;
        match &self.role {
            Role::Build(table) => {
                let bytes = batch_bytes(batch);
                table.rows.fetch_add(rows, Ordering::Relaxed);
                table.bytes.fetch_add(bytes, Ordering::Relaxed);
                self.held_bytes += bytes;
                let random = Access::write_random(rows, table.entries_bytes(), IN_FLIGHT);
                self.spend(rows, bytes, &[Access::write_sequential(bytes), random]);
            }
            Role::Probe(table) => {
                let entries = Access::read_random(rows, table.entries_bytes(), IN_FLIGHT);
                let held = Access::read_random(rows, table.held_bytes(), IN_FLIGHT);
                self.spend(2 * rows, 0, &[entries, held]);
            }
            Role::Group(_) => {
                let mut grown = 0;
                if self.batches % SIZE_BATCHES == 1 {
                    let size = self.group_table_bytes();
                    grown = size.saturating_sub(self.held_bytes);
                    self.held_bytes = self.held_bytes.max(size);
                }
                let random = Access::read_random(2 * rows, self.held_bytes, IN_FLIGHT);
                self.spend(2 * rows, grown, &[random, Access::write_sequential(grown)]);
            }
            Role::Hold => {
                let bytes = batch_bytes(batch);
                self.held_bytes += bytes;
                self.spend(0, bytes, &[Access::write_sequential(bytes)]);
            }
        }
    }

    /// What was held is read once.
    fn end(&mut self) {
        let mut accesses = Vec::new();
        if matches!(self.role, Role::Group(_)) {
            let size = self.group_table_bytes();
            accesses.push(Access::write_sequential(size.saturating_sub(self.held_bytes)));
            self.held_bytes = self.held_bytes.max(size);
        }
        if self.held_bytes > 0 {
            accesses.push(Access::read_sequential(self.held_bytes));
            self.spend(0, self.held_bytes, &accesses);
        }
    }

    fn group_table_bytes(&self) -> u64 {
        let Role::Group(parent) = &self.role else { return 0 };
        let Some(metrics) = parent.get().and_then(Weak::upgrade).and_then(|parent| parent.metrics()) else { return 0 };
        let sizes = metrics
            .iter()
            .filter(|metric| metric.partition() == Some(self.partition) && metric.value().name() == "peak_mem_used");
        sizes.map(|metric| metric.value().as_usize() as u64).sum()
    }

    fn spend(&self, lines: u64, bytes: u64, accesses: &[Access]) {
        self.lines.add(lines as usize);
        self.bytes.add(bytes as usize);
        let stall_ns = self.pacing.charge(accesses);
        self.stall.add_duration(Duration::from_nanos(stall_ns));
    }
}

impl Stream for PacedStream {
    type Item = PlanResult<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<PlanResult<RecordBatch>>> {
        let polled = self.input.as_mut().poll_next(context);
        match &polled {
            Poll::Ready(Some(Ok(batch))) => self.batch(batch),
            Poll::Ready(None) if !self.ended => {
                self.ended = true;
                self.end();
            }
            _ => {}
        }
        polled
    }
}

impl RecordBatchStream for PacedStream {
    fn schema(&self) -> arrow::datatypes::SchemaRef {
        self.input.schema()
    }
}

/// Bytes of a batch's values, each counted once even if its buffers are shared with others.
fn batch_bytes(batch: &RecordBatch) -> u64 {
    let rows = batch.num_rows() as u64;
    batch
        .columns()
        .iter()
        .map(|column| match column.data_type() {
            DataType::Utf8View => rows * 16 + column.as_string_view().total_buffer_bytes_used() as u64,
            DataType::BinaryView => rows * 16 + column.as_binary_view().total_buffer_bytes_used() as u64,
            DataType::Boolean => rows / 8,
            data_type => match data_type.primitive_width() {
                Some(width) => rows * width as u64,
                None => column.to_data().get_slice_memory_size().unwrap_or(0) as u64,
            },
        })
        .sum()
}
