//! Pacing for operators that are not ours: what their work in a paced query heap would have cost.
//!
//! DataFusion's operators do not say which memory they touch, so this is an estimate (`docs/pacing.md`), made where rows
//! enter them. Above the inputs of operators that hold rows sits a node, which lets batches through and charges, batch by
//! batch and on the thread that runs the operator:
//!
//! | operator | charged |
//! | --- | --- |
//! | hash join, build | the rows written once and read once in sequence; one line written at random a row, over the hash table |
//! | hash join, probe | a line read at random a row over the hash table, and one over the rows held |
//! | grouping | two lines read at random a row, over the group table; the table's growth written, and the table read once at the end |
//! | sort, window, nested-loop and cross joins | the rows held written once and read once in sequence |
//!
//! A group table's size is what DataFusion reserves for it, seen by a memory pool that stands between the operator and
//! the statement's (`Measure`). Random lines over what stays in the last-level cache cost nothing more. All threads share
//! that cache, and so do all tables of a statement that live at a time: it is taken to hold the smallest of them first,
//! whose lines are touched most often. Batches that merely pass between operators are taken to stay in cache. If the heap
//! lies in several tablespaces, each access is shared out by the bytes that lie in each.

use crate::errors::from_datafusion;
use crate::pass::{PassExec, Passage};
use crate::queries::QueryInfo;
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::DataType;
use datafusion::common::Result as PlanResult;
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet, Time};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::windows::WindowAggExec;
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions};
use futures::Stream;
use parking_lot::Mutex;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tidepool_base::Result;
use tidepool_device::{Access, CostModel, Excess, Pattern};
use tidepool_heap::QueryHeap;
use tidepool_tablespace::Purpose;

/// Independent accesses that a core keeps in flight while it works through a batch of precomputed hashes: out-of-order
/// execution reaches over a few rows of such a loop, and each row's own accesses depend on each other.
const IN_FLIGHT: f64 = 4.0;

/// Bytes of DataFusion's join hash table a row: a (hash, row) pair at hashbrown's load, and the chain's next row.
const JOIN_ENTRY_BYTES: u64 = 28;

/// What one operator did in the query heap, and what that costs by each of several models, in their order.
#[derive(Clone, Debug)]
pub struct OperatorCount {
    pub name: String,
    pub bytes: u64,
    pub lines: u64,
    /// On the device, nothing overlapping but what the model says, ns.
    pub device_ns: Vec<f64>,
    pub excess: Vec<Excess>,
}

/// Counts of a statement's operators that hold rows.
pub struct HeapCounts {
    models: Vec<CostModel>,
    operators: Mutex<Vec<OperatorCount>>,
}

impl HeapCounts {
    pub fn new(models: Vec<CostModel>) -> HeapCounts {
        HeapCounts { models, operators: Mutex::new(Vec::new()) }
    }

    /// Those that did anything.
    pub fn operators(&self) -> Vec<OperatorCount> {
        self.operators.lock().iter().filter(|operator| operator.bytes + operator.lines > 0).cloned().collect()
    }

    fn register(&self, name: String) -> usize {
        let mut operators = self.operators.lock();
        operators.push(OperatorCount {
            name,
            bytes: 0,
            lines: 0,
            device_ns: vec![0.0; self.models.len()],
            excess: vec![Excess::default(); self.models.len()],
        });
        operators.len() - 1
    }

    fn add(&self, operator: usize, sequential: &[Access], random: &[RandomLines], pacing: &Pacing) {
        let mut operators = self.operators.lock();
        let Some(count) = operators.get_mut(operator) else { return };
        for access in sequential {
            if let Pattern::Sequential { bytes, .. } = access.pattern {
                count.bytes += bytes;
            }
        }
        count.lines += random.iter().map(|random| random.lines).sum::<u64>();
        for (index, model) in self.models.iter().enumerate() {
            let random = random.iter().map(|lines| lines.access(pacing, model.last_level_cache_bytes()));
            let accesses: Vec<Access> = sequential.iter().copied().chain(random).collect();
            count.device_ns[index] += model.device_ns_of(&accesses, 1);
            count.excess[index] += model.excess_of(&accesses);
        }
    }
}

/// Puts the charges into a plan; the plan itself if nothing of the heap is paced and nothing is to be counted.
pub fn wrap(
    plan: Arc<dyn ExecutionPlan>,
    heap: &Arc<QueryHeap>,
    info: &Arc<QueryInfo>,
    counts: Option<&Arc<HeapCounts>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    if counts.is_none() && heap.usage().iter().all(|usage| usage.tablespace.pacer().is_none()) {
        return Ok(plan);
    }
    let pacing = Arc::new(Pacing {
        heap: heap.clone(),
        info: info.clone(),
        tables: Mutex::new(Vec::new()),
        counts: counts.cloned(),
    });
    rewrite(plan, &pacing).map_err(from_datafusion)
}

/// What tells an operator from others of its kind: the keys of a join or a grouping, as far as they fit on a line.
fn keys_of(plan: &dyn ExecutionPlan) -> String {
    let keys: Vec<String> = if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        let column = |key: &Arc<dyn PhysicalExpr>| match key.downcast_ref::<Column>() {
            Some(column) => column.name().to_owned(),
            None => key.to_string(),
        };
        join.on().iter().map(|(left, right)| format!("{} = {}", column(left), column(right))).collect()
    } else if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        aggregate.group_expr().expr().iter().map(|(_, name)| name.clone()).collect()
    } else {
        vec![plan.name().trim_end_matches("Exec").to_owned()]
    };
    let text = keys.join(", ");
    match text.char_indices().nth(KEYS_LENGTH_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

const KEYS_LENGTH_MAX: usize = 60;

fn rewrite(plan: Arc<dyn ExecutionPlan>, pacing: &Arc<Pacing>) -> PlanResult<Arc<dyn ExecutionPlan>> {
    let mut children =
        plan.children().into_iter().map(|child| rewrite(child.clone(), pacing)).collect::<PlanResult<Vec<_>>>()?;
    if children.is_empty() {
        return Ok(plan);
    }
    let mut measured = None;
    if plan.is::<HashJoinExec>() {
        let probes = plan.properties().partitioning.partition_count();
        let table = Arc::new(JoinTable {
            entries: pacing.table(),
            held: pacing.table(),
            probes_left: AtomicUsize::new(probes),
        });
        if let [build, probe] = children.as_mut_slice() {
            *build = Charge::over(build, plan.as_ref(), pacing, Role::Build(table.clone()));
            *probe = Charge::over(probe, plan.as_ref(), pacing, Role::Probe(table));
        }
    } else if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        if !aggregate.group_expr().is_true_no_grouping() {
            let partitions = children[0].properties().partitioning.partition_count();
            let table = Arc::new(GroupTable {
                all: pacing.table(),
                parts: (0..partitions).map(|_| AtomicU64::new(0)).collect(),
            });
            children[0] = Charge::over(&children[0], plan.as_ref(), pacing, Role::Group(table.clone()));
            measured = Some(table);
        }
    } else if let Some(sort) = plan.downcast_ref::<SortExec>() {
        // With a limit it keeps only the best few rows.
        if sort.fetch().is_none() {
            children[0] = Charge::over(&children[0], plan.as_ref(), pacing, Role::Hold);
        }
    } else if plan.is::<WindowAggExec>() || plan.is::<NestedLoopJoinExec>() || plan.is::<CrossJoinExec>() {
        children[0] = Charge::over(&children[0], plan.as_ref(), pacing, Role::Hold);
    }
    let plan = plan.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep))?;
    Ok(match measured {
        Some(table) => PassExec::over(plan, Arc::new(Measure(table))),
        None => plan,
    })
}

/// Bytes of one structure that is touched at random.
#[derive(Debug, Default)]
struct Table {
    bytes: AtomicU64,
}

impl Table {
    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn grow(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn shrink(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

struct Pacing {
    heap: Arc<QueryHeap>,
    info: Arc<QueryInfo>,
    /// The structures of the statement's plan that are touched at random; those that are gone have no bytes.
    tables: Mutex<Vec<Weak<Table>>>,
    counts: Option<Arc<HeapCounts>>,
}

impl Pacing {
    fn table(&self) -> Arc<Table> {
        let table = Arc::new(Table::default());
        self.tables.lock().push(Arc::downgrade(&table));
        table
    }

    /// Bytes of the live tables that the cache holds before `table`.
    fn ahead_of(&self, table: &Arc<Table>) -> u64 {
        let own = table.bytes();
        let tables = self.tables.lock();
        let others = tables.iter().filter(|other| other.as_ptr() != Arc::as_ptr(table)).filter_map(Weak::upgrade);
        others.map(|other| other.bytes()).filter(|bytes| *bytes < own).sum()
    }

    /// Shares accesses out to the heap's paced tablespaces and spends them here. Returns ns.
    fn charge(&self, operator: usize, sequential: &[Access], random: &[RandomLines]) -> u64 {
        if let Some(counts) = &self.counts {
            QueryHeap::outside(|| counts.add(operator, sequential, random, self));
        }
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
                let random = random.iter().map(|lines| lines.access(self, pacer.last_level_cache_bytes()));
                let shares: Vec<Access> =
                    sequential.iter().copied().chain(random).map(|access| scaled(&access, share)).collect();
                stall_ns += usage.tablespace.charge(Purpose::Heap, &shares);
            }
        }
        if stall_ns > 0 {
            self.info.add_heap_stall_ns(stall_ns);
        }
        stall_ns
    }
}

/// Lines touched at random over a table.
struct RandomLines<'a> {
    table: &'a Arc<Table>,
    lines: u64,
    write: bool,
}

impl RandomLines<'_> {
    /// The access, over a working set that misses a cache of `cache_bytes` as often as the table misses what other tables
    /// leave of it.
    fn access(&self, pacing: &Pacing, cache_bytes: u64) -> Access {
        let left = cache_bytes.saturating_sub(pacing.ahead_of(self.table));
        let working_set_bytes = match left {
            0 => u64::MAX,
            left => (u128::from(self.table.bytes()) * u128::from(cache_bytes) / u128::from(left)) as u64,
        };
        let access = if self.write { Access::write_random } else { Access::read_random };
        access(self.lines, working_set_bytes, IN_FLIGHT)
    }
}

fn scaled(access: &Access, share: f64) -> Access {
    let part = |count: u64| (count as f64 * share) as u64;
    let pattern = match access.pattern {
        Pattern::Sequential { bytes, runs } => Pattern::Sequential { bytes: part(bytes), runs },
        Pattern::Random { lines, working_set_bytes, in_flight } => {
            Pattern::Random { lines: part(lines), working_set_bytes, in_flight }
        }
    };
    Access { pattern, write: access.write }
}

/// A hash join's tables, of all partitions together.
#[derive(Debug)]
struct JoinTable {
    entries: Arc<Table>,
    held: Arc<Table>,
    probes_left: AtomicUsize,
}

impl JoinTable {
    /// A partition has ended its probe; with the last one the tables are dropped.
    fn probed(&self) {
        if self.probes_left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.entries.bytes.store(0, Ordering::Relaxed);
            self.held.bytes.store(0, Ordering::Relaxed);
        }
    }
}

/// A grouping's tables, one a partition.
#[derive(Debug)]
struct GroupTable {
    all: Arc<Table>,
    parts: Vec<AtomicU64>,
}

impl GroupTable {
    fn part_bytes(&self, partition: usize) -> u64 {
        self.parts.get(partition).map_or(0, |bytes| bytes.load(Ordering::Relaxed))
    }

    fn grow(&self, partition: usize, bytes: u64) {
        if let Some(part) = self.parts.get(partition) {
            part.fetch_add(bytes, Ordering::Relaxed);
            self.all.grow(bytes);
        }
    }

    fn shrink(&self, partition: usize, bytes: u64) {
        if let Some(part) = self.parts.get(partition) {
            part.fetch_sub(bytes, Ordering::Relaxed);
            self.all.shrink(bytes);
        }
    }
}

/// Stands above a grouping and sees what it reserves.
#[derive(Debug)]
struct Measure(Arc<GroupTable>);

impl Passage for Measure {
    fn name(&self) -> &'static str {
        "MeasureExec"
    }

    fn execute(
        &self,
        input: &dyn ExecutionPlan,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> PlanResult<SendableRecordBatchStream> {
        let pool = MeasuringPool { inner: context.memory_pool().clone(), table: self.0.clone(), partition };
        input.execute(partition, with_pool(&context, Arc::new(pool)))
    }
}

fn with_pool(context: &TaskContext, memory_pool: Arc<dyn MemoryPool>) -> Arc<TaskContext> {
    let runtime = RuntimeEnv { memory_pool, ..context.runtime_env().as_ref().clone() };
    Arc::new(TaskContext::new(
        context.task_id(),
        context.session_id(),
        context.session_config().clone(),
        context.scalar_functions().clone(),
        context.higher_order_functions().clone(),
        context.aggregate_functions().clone(),
        context.window_functions().clone(),
        Arc::new(runtime),
    ))
}

#[derive(Debug)]
struct MeasuringPool {
    inner: Arc<dyn MemoryPool>,
    table: Arc<GroupTable>,
    partition: usize,
}

impl fmt::Display for MeasuringPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl MemoryPool for MeasuringPool {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.inner.grow(reservation, additional);
        self.table.grow(self.partition, additional as u64);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.inner.shrink(reservation, shrink);
        self.table.shrink(self.partition, shrink as u64);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> PlanResult<()> {
        self.inner.try_grow(reservation, additional)?;
        self.table.grow(self.partition, additional as u64);
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.inner.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.inner.memory_limit()
    }
}

/// The operator's context without the pool that measures the operator above.
fn unmeasured(context: Arc<TaskContext>) -> Arc<TaskContext> {
    match context.memory_pool().downcast_ref::<MeasuringPool>() {
        Some(pool) => with_pool(&context, pool.inner.clone()),
        None => context,
    }
}

#[derive(Clone, Debug)]
enum Role {
    Build(Arc<JoinTable>),
    Probe(Arc<JoinTable>),
    Group(Arc<GroupTable>),
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

/// Charges what the operator above does with the batches that pass.
struct Charge {
    pacing: Arc<Pacing>,
    role: Role,
    /// Its place among the counts, where there are any.
    operator: usize,
    metrics: ExecutionPlanMetricsSet,
}

impl Charge {
    /// Over an input of `operator`.
    fn over(
        input: &Arc<dyn ExecutionPlan>,
        operator: &dyn ExecutionPlan,
        pacing: &Arc<Pacing>,
        role: Role,
    ) -> Arc<dyn ExecutionPlan> {
        let name = || format!("{}: {}", role.name(), keys_of(operator));
        let charge = Charge {
            operator: pacing.counts.as_ref().map_or(0, |counts| counts.register(name())),
            pacing: pacing.clone(),
            role,
            metrics: ExecutionPlanMetricsSet::new(),
        };
        PassExec::over(input.clone(), Arc::new(charge))
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeapPacingExec({})", self.role.name())
    }
}

impl Passage for Charge {
    fn name(&self) -> &'static str {
        "HeapPacingExec"
    }

    fn label(&self) -> Option<String> {
        Some(format!("HeapPacingExec: {}", self.role.name()))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn execute(
        &self,
        input: &dyn ExecutionPlan,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> PlanResult<SendableRecordBatchStream> {
        Ok(Box::pin(PacedStream {
            input: input.execute(partition, unmeasured(context))?,
            pacing: self.pacing.clone(),
            role: self.role.clone(),
            operator: self.operator,
            partition,
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
    operator: usize,
    partition: usize,
    /// Written so far by this partition and to be read at the end.
    held_bytes: u64,
    ended: bool,
    stall: Time,
    lines: Count,
    bytes: Count,
}

impl PacedStream {
    fn batch(&mut self, batch: &RecordBatch) {
        let rows = batch.num_rows() as u64;
        match self.role.clone() {
            Role::Build(table) => {
                let bytes = batch_bytes(batch);
                table.entries.grow(rows * JOIN_ENTRY_BYTES);
                table.held.grow(bytes);
                self.held_bytes += bytes;
                let random = RandomLines { table: &table.entries, lines: rows, write: true };
                self.spend(bytes, &[Access::write_sequential(bytes)], &[random]);
            }
            Role::Probe(table) => {
                let entries = RandomLines { table: &table.entries, lines: rows, write: false };
                let held = RandomLines { table: &table.held, lines: rows, write: false };
                self.spend(0, &[], &[entries, held]);
            }
            Role::Group(table) => {
                let grown = self.group_growth(&table);
                let random = RandomLines { table: &table.all, lines: 2 * rows, write: false };
                self.spend(grown, &[Access::write_sequential(grown)], &[random]);
            }
            Role::Hold => {
                let bytes = batch_bytes(batch);
                self.held_bytes += bytes;
                self.spend(bytes, &[Access::write_sequential(bytes)], &[]);
            }
        }
    }

    /// What was held is read once.
    fn end(&mut self) {
        let mut accesses = Vec::new();
        if let Role::Group(table) = self.role.clone() {
            accesses.push(Access::write_sequential(self.group_growth(&table)));
        }
        if self.held_bytes > 0 {
            accesses.push(Access::read_sequential(self.held_bytes));
            self.spend(self.held_bytes, &accesses, &[]);
        }
    }

    /// Bytes by which this partition's group table has outgrown its largest size before.
    fn group_growth(&mut self, table: &GroupTable) -> u64 {
        let grown = table.part_bytes(self.partition).saturating_sub(self.held_bytes);
        self.held_bytes += grown;
        grown
    }

    fn spend(&self, bytes: u64, sequential: &[Access], random: &[RandomLines]) {
        self.lines.add(random.iter().map(|random| random.lines as usize).sum());
        self.bytes.add(bytes as usize);
        let stall_ns = self.pacing.charge(self.operator, sequential, random);
        self.stall.add_duration(Duration::from_nanos(stall_ns));
    }
}

impl Drop for PacedStream {
    fn drop(&mut self) {
        if let Role::Probe(table) = &self.role {
            table.probed();
        }
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
