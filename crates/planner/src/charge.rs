//! Pacing of the query heap: what operators' work in it would have cost.
//!
//! The engine's operators say what they touch ([`engine`]). DataFusion's operators do not say which memory they touch, so this is an estimate (`docs/explanation/far-memory-and-pacing.md`). It is put together
//! from three things that can be seen from outside:
//!
//! * the large blocks that a thread allocates and frees: arrays are written after the one and read before the other;
//! * the batches that an operator is handed, at their addresses, and which of their columns it reads;
//! * how many lines of tables it touches at random for their rows: of hash tables, and of rows that joins hold.
//!
//! A model of the last-level cache ([`tidepool_device::Residency`]), one a statement, says which of that misses. Above each
//! operator sits a node that lets batches through. When it is asked for one, its thread comes from the operator above, and
//! what happened since it was last asked is charged to that; when it gives one, to the operator below.

mod account;
mod arrays;
mod engine;
mod keys;
mod measure;

pub use account::{HeapCounts, OperatorAccount, OperatorCount};
pub use engine::EngineAccount;

use crate::engine::EngineExec;
use crate::errors::from_datafusion;
use crate::pass::{PassExec, Passage};
use crate::queries::QueryInfo;
use crate::scan::TidepoolScanExec;
use account::{Blocks, Charge, HASHES, HeapAccount};
use arrow::array::RecordBatch;
use datafusion::common::Result as PlanResult;
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateInputMode, AggregateMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::union::{InterleaveExec, UnionExec};
use datafusion::physical_plan::windows::WindowAggExec;
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, Partitioning, ReplaceChildrenOptions};
use futures::Stream;
use keys::KeySketch;
use measure::{Measure, Reserved, unmeasured};
use parking_lot::Mutex;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll};
use tidepool_base::{ByteSize, Result};
use tidepool_device::{PacingCounters, PoolId};
use tidepool_heap::QueryHeap;
use tidepool_table::BATCH_ROWS;

/// Puts the charges into a plan; the plan itself if nothing of the heap is paced and nothing is to be counted.
pub fn wrap(
    plan: Arc<dyn ExecutionPlan>,
    heap: &Arc<QueryHeap>,
    info: &Arc<QueryInfo>,
    counts: Option<&Arc<HeapCounts>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let paced = heap.tablespaces().iter().find_map(|space| space.pacer());
    if counts.is_none() && paced.is_none() {
        return Ok(plan);
    }
    let cache_bytes = tidepool_device::last_level_cache_bytes();
    let account = Arc::new(HeapAccount::new(heap.clone(), info.clone(), counts.cloned(), cache_bytes));
    rewrite(plan, None, &account).map_err(from_datafusion)
}

/// What tells an operator from others: what it is, and the keys of a join or a grouping as far as they fit on a line, or
/// the table of a scan.
fn name_of(plan: &dyn ExecutionPlan) -> String {
    let (kind, keys): (_, Vec<String>) = if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        let column = |key: &Arc<dyn PhysicalExpr>| match key.downcast_ref::<Column>() {
            Some(column) => column.name().to_owned(),
            None => key.to_string(),
        };
        let keys = join.on().iter().map(|(left, right)| format!("{} = {}", column(left), column(right)));
        ("hash join", keys.collect())
    } else if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        ("grouping", aggregate.group_expr().expr().iter().map(|(_, name)| name.clone()).collect())
    } else if let Some(scan) = plan.downcast_ref::<TidepoolScanExec>() {
        ("scan", vec![scan.table().to_owned()])
    } else {
        (plan.name().trim_end_matches("Exec"), Vec::new())
    };
    named(kind, &keys)
}

/// A kind of operator, with its keys as far as they fit on a line.
pub fn named(kind: &str, keys: &[String]) -> String {
    if keys.is_empty() {
        return kind.to_owned();
    }
    let text = keys.join(", ");
    match text.char_indices().nth(KEYS_LENGTH_MAX) {
        Some((end, _)) => format!("{kind}: {}…", &text[..end]),
        None => format!("{kind}: {text}"),
    }
}

const KEYS_LENGTH_MAX: usize = 60;

/// The operator that a node stands beneath.
#[derive(Clone)]
struct Above {
    operator: Arc<OperatorAccount>,
    reads: Reads,
    table: Option<TableUse>,
}

/// Which columns of a batch an operator reads on being handed it, in order, and some of them again. What it keeps, it reads later; its block is then seen to
/// be freed.
#[derive(Clone)]
enum Reads {
    All,
    Columns(Vec<usize>),
    Nothing,
}

/// What a batch means for a table of the operator above.
#[derive(Clone)]
enum TableUse {
    Build(Arc<JoinTable>),
    Probe(Arc<JoinTable>),
    Group(Arc<GroupTable>),
}

fn rewrite(
    plan: Arc<dyn ExecutionPlan>,
    above: Option<Above>,
    account: &Arc<HeapAccount>,
) -> PlanResult<Arc<dyn ExecutionPlan>> {
    let replaced = |plan: Arc<dyn ExecutionPlan>, children| {
        plan.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep))
    };
    let children: Vec<Arc<dyn ExecutionPlan>> = plan.children().into_iter().cloned().collect();
    if plan.is::<PassExec>() {
        let children = children.into_iter().map(|child| rewrite(child, above.clone(), account));
        return replaced(plan, children.collect::<PlanResult<_>>()?);
    }
    if let Some(engine) = plan.downcast_ref::<EngineExec>() {
        let account_of_plan = Arc::new(EngineAccount::new(account, engine.plan()));
        let inputs = children.into_iter().map(|child| rewrite(child, None, account));
        let engine = engine.with_account(account_of_plan, inputs.collect::<PlanResult<_>>()?);
        return Ok(Arc::new(engine));
    }
    let operator = account.operator(|| name_of(plan.as_ref()));
    let reserved = Arc::new(Reserved::default());
    let join = plan.is::<HashJoinExec>().then(|| JoinTable::of(&plan, account, &reserved)).flatten().map(Arc::new);
    let group = plan
        .downcast_ref::<AggregateExec>()
        .filter(|aggregate| !aggregate.group_expr().is_true_no_grouping())
        .map(|aggregate| Arc::new(GroupTable::of(aggregate, account, &reserved)));
    let mut plan = plan;
    if !children.is_empty() {
        let rewritten = children.into_iter().enumerate().map(|(input, child)| {
            let table = match (&join, &group, input) {
                (Some(join), _, 0) => Some(TableUse::Build(join.clone())),
                (Some(join), _, _) => Some(TableUse::Probe(join.clone())),
                (None, Some(group), _) => Some(TableUse::Group(group.clone())),
                (None, None, _) => None,
            };
            let above = Above { operator: operator.clone(), reads: reads_of(plan.as_ref(), input), table };
            rewrite(child, Some(above), account)
        });
        let rewritten = rewritten.collect::<PlanResult<Vec<_>>>()?;
        plan = replaced(plan, rewritten)?;
    }
    if let Some(join) = &join {
        // Set here and nowhere else.
        let _ = join.join.set(Arc::downgrade(&plan));
    }
    let scan = plan.is::<TidepoolScanExec>().then(|| plan.clone());
    if join.is_some() || group.is_some() {
        plan = PassExec::over(plan, Arc::new(Measure(reserved)));
    }
    let above = above.unwrap_or_else(|| Above { operator: operator.clone(), reads: Reads::Nothing, table: None });
    let below = if let Some(join) = join {
        Below::Join(join)
    } else if let Some(scan) = scan {
        Below::Scan(Arc::new(Sieve { scan, rows_passed: AtomicU64::new(0), bytes_read: AtomicU64::new(0) }))
    } else {
        Below::Other
    };
    let boundary = Boundary { account: account.clone(), operator, below, above };
    Ok(PassExec::over(plan, Arc::new(boundary)))
}

/// The columns of expressions that are evaluated one after the other, each time that one needs it.
fn in_turn<'a>(expressions: impl IntoIterator<Item = &'a Arc<dyn PhysicalExpr>>) -> Reads {
    let columns = expressions.into_iter().flat_map(|expression| {
        let mut columns: Vec<usize> = collect_columns(expression).iter().map(Column::index).collect();
        columns.sort_unstable();
        columns
    });
    Reads::Columns(columns.collect())
}

fn reads_of(plan: &dyn ExecutionPlan, input: usize) -> Reads {
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        match aggregate.mode().input_mode() {
            AggregateInputMode::Raw => {
                // Values that have to be computed, keys, and then a pass over its values for each aggregate.
                let arguments = aggregate.aggr_expr().iter().flat_map(|function| function.expressions());
                let (passed, computed): (Vec<_>, Vec<_>) = arguments.partition(|argument| argument.is::<Column>());
                let keys = aggregate.group_expr().expr().iter().map(|(key, _)| key);
                let filters = aggregate.filter_expr().iter().flatten();
                in_turn(filters.chain(&computed).chain(keys).chain(&passed))
            }
            AggregateInputMode::Partial => Reads::All,
        }
    } else if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        // A column by itself is passed on as it is.
        let expressions = projection.expr().iter().map(|projected| &projected.expr);
        in_turn(expressions.filter(|expression| !expression.is::<Column>()))
    } else if let Some(sort) = plan.downcast_ref::<SortExec>() {
        // With a limit it keeps only the best few rows, and looks at the keys of all.
        match sort.fetch() {
            Some(_) => in_turn(sort.expr().iter().map(|key| &key.expr)),
            None => Reads::Nothing,
        }
    } else if let Some(repartition) = plan.downcast_ref::<RepartitionExec>() {
        match repartition.partitioning() {
            Partitioning::RoundRobinBatch(_) => Reads::Nothing,
            _ => Reads::All,
        }
    } else if plan.is::<HashJoinExec>() || plan.is::<NestedLoopJoinExec>() || plan.is::<CrossJoinExec>() {
        if input == 0 { Reads::Nothing } else { Reads::All }
    } else if plan.is::<CoalescePartitionsExec>()
        || plan.is::<GlobalLimitExec>()
        || plan.is::<LocalLimitExec>()
        || plan.is::<UnionExec>()
        || plan.is::<InterleaveExec>()
        || plan.is::<WindowAggExec>()
    {
        Reads::Nothing
    } else {
        Reads::All
    }
}

/// What a hash join touches at random, all partitions together.
struct JoinTable {
    account: Arc<HeapAccount>,
    /// Set once its inputs are. Weak, as these refer to this.
    join: OnceLock<Weak<dyn ExecutionPlan>>,
    /// Of hashes and rows, or of rows by key.
    entries: PoolId,
    /// The rows built, whose columns are taken from by the rows that match.
    held: PoolId,
    /// Columns of them in what the join makes.
    held_columns: u64,
    /// Columns of the keys, built and probed.
    keys: [Option<Vec<usize>>; 2],
    matches: usize,
    reserved: Arc<Reserved>,
    built: Mutex<Built>,
    probes_left: AtomicUsize,
}

#[derive(Default)]
struct Built {
    rows: u64,
    /// Lines that these touch of a table by key, if it is one, and whether they come in its order.
    lines: u64,
    ascending: bool,
    held_bytes: u64,
    entries_bytes: u64,
    /// What was reserved when the last row had come: the rows.
    reserved_for_rows: u64,
    /// Set when the first row is probed.
    by_key: Option<bool>,
    /// Of rows probed last: how many touch another line than the row before.
    apart: f64,
}

impl JoinTable {
    fn of(plan: &Arc<dyn ExecutionPlan>, account: &Arc<HeapAccount>, reserved: &Arc<Reserved>) -> Option<JoinTable> {
        use datafusion::common::JoinType;
        let join = plan.downcast_ref::<HashJoinExec>()?;
        let columns = join.left().schema().fields().len();
        let held_columns = match join.join_type() {
            // Rows of the other side, or rows held in their order.
            JoinType::RightSemi
            | JoinType::RightAnti
            | JoinType::RightMark
            | JoinType::LeftSemi
            | JoinType::LeftAnti
            | JoinType::LeftMark => 0,
            _ => match &join.projection {
                Some(projection) => projection.iter().filter(|column| **column < columns).count(),
                None => columns,
            },
        };
        Some(JoinTable {
            account: account.clone(),
            join: OnceLock::new(),
            entries: account.pool(),
            held: account.pool(),
            held_columns: held_columns as u64,
            keys: [
                keys::columns_of(join.on().iter().map(|(built, _)| built)),
                keys::columns_of(join.on().iter().map(|(_, probed)| probed)),
            ],
            matches: account.make_scratch(),
            reserved: reserved.clone(),
            built: Mutex::new(Built { ascending: true, apart: 1.0, ..Built::default() }),
            probes_left: AtomicUsize::new(plan.properties().partitioning.partition_count()),
        })
    }

    /// How the rows of a batch go over a table by key.
    fn steps(&self, batch: &RecordBatch, side: usize) -> Option<keys::Steps> {
        match self.keys[side].as_deref() {
            Some([key]) => keys::steps(batch.columns().get(*key)?),
            _ => None,
        }
    }

    fn build(&self, batch: &RecordBatch) {
        let steps = self.steps(batch, 0);
        let mut bytes = 0;
        batch.columns().iter().for_each(|column| arrays::ranges(column, &mut |range| bytes += range.len() as u64));
        let mut built = self.built.lock();
        built.rows += batch.num_rows() as u64;
        built.held_bytes += bytes;
        match steps {
            Some(steps) => {
                built.lines += steps.lines;
                built.ascending &= steps.ascending;
            }
            None => built.ascending = false,
        }
    }

    fn build_ended(&self) {
        self.built.lock().reserved_for_rows = self.reserved.bytes();
    }

    fn is_by_key(&self) -> bool {
        let join = self.join.get().and_then(Weak::upgrade);
        let metrics = join.and_then(|join| join.metrics());
        let count = metrics.and_then(|metrics| metrics.sum_by_name("array_map_created_count"));
        count.is_some_and(|count| count.as_usize() > 0)
    }

    fn probe(&self, charge: &mut Charge<'_>, batch: &RecordBatch) {
        let mut built = self.built.lock();
        let by_key = *built.by_key.get_or_insert_with(|| self.is_by_key());
        if built.rows > 0 && built.reserved_for_rows < u64::MAX {
            let table = self.reserved.bytes().saturating_sub(built.reserved_for_rows);
            built.reserved_for_rows = u64::MAX;
            built.entries_bytes = table;
            charge.resize_pool(self.entries, table);
            charge.random(self.entries, if by_key { built.lines } else { built.rows }, true);
            charge.resize_pool(self.held, built.held_bytes);
        }
        let rows = batch.num_rows() as u64;
        let lines = match self.steps(batch, 1).filter(|_| by_key) {
            Some(steps) => steps.lines,
            None if built.entries_bytes < SMALL_TABLE_BYTES && built.held_bytes < SMALL_TABLE_BYTES => rows,
            None => keys::runs(batch, self.keys[1].as_deref(), |_| {}),
        };
        // Rows that are held in the order of their keys lie as the keys do.
        let apart = if by_key && !built.ascending { rows } else { lines };
        built.apart = apart as f64 / rows.max(1) as f64;
        charge.random(self.entries, lines, false);
    }

    fn made(&self, charge: &mut Charge<'_>, rows: u64) {
        // Numbers of the rows that match, of both sides.
        let matches_bytes = rows.min(BATCH_ROWS as u64) as usize * (size_of::<u64>() + size_of::<u32>());
        charge.fill_scratch(self.matches, matches_bytes);
        charge.scratch(self.matches, matches_bytes);
        let apart = self.built.lock().apart;
        charge.random(self.held, ((rows * self.held_columns) as f64 * apart) as u64, false);
    }

    /// A partition has ended its probe; with the last one the tables are dropped.
    fn probed(&self) {
        if self.probes_left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.account.drop_pool(self.entries);
            self.account.drop_pool(self.held);
        }
    }
}

/// A grouping's table, all partitions together.
struct GroupTable {
    account: Arc<HeapAccount>,
    /// Of hashes and groups.
    entries: PoolId,
    /// Keys and accumulators, in the order in which groups came.
    states: PoolId,
    /// Partitions that have the same groups.
    copies: u64,
    reserved: Arc<Reserved>,
    keys: Option<Vec<usize>>,
    /// With its latest estimate.
    seen: Mutex<(KeySketch, f64)>,
    /// Lines touched for each row beside one of the hash table: of the keys, and of the accumulators.
    key_lines: u64,
    accumulator_lines: u64,
    /// The group of each row of a batch.
    groups: usize,
}

impl GroupTable {
    fn of(aggregate: &AggregateExec, account: &Arc<HeapAccount>, reserved: &Arc<Reserved>) -> GroupTable {
        let copies = match aggregate.mode() {
            AggregateMode::Partial => aggregate.properties().partitioning.partition_count() as u64,
            _ => 1,
        };
        GroupTable {
            account: account.clone(),
            entries: account.pool(),
            states: account.pool(),
            copies,
            reserved: reserved.clone(),
            keys: keys::columns_of(aggregate.group_expr().expr().iter().map(|(key, _)| key)),
            seen: Mutex::default(),
            key_lines: aggregate.group_expr().expr().len() as u64,
            accumulator_lines: aggregate.aggr_expr().len() as u64,
            groups: account.make_scratch(),
        }
    }

    fn group(&self, charge: &mut Charge<'_>, batch: &RecordBatch) {
        let reserved = self.reserved.bytes();
        if reserved < SMALL_TABLE_BYTES {
            charge.resize_pool(self.states, reserved);
            charge.random(self.states, batch.num_rows() as u64, true);
            return;
        }
        let (runs, groups_before, groups) = {
            let mut seen = self.seen.lock();
            let (sketch, groups) = &mut *seen;
            let before = *groups;
            let runs = keys::runs(batch, self.keys.as_deref(), |hash| sketch.add(hash));
            *groups = sketch.estimate();
            (runs, before, *groups)
        };
        let entries = match &self.keys {
            Some(_) => (self.copies * entries_bytes(groups as u64)).min(reserved),
            // Nothing is known of its groups.
            None => reserved / 2,
        };
        charge.resize_pool(self.entries, entries);
        charge.resize_pool(self.states, reserved - entries);
        let new = ((groups - groups_before) as u64).min(runs);
        let known = runs - new;
        // What is new lies beside what was new before, but for its place in the hash table.
        charge.random(self.entries, new, true);
        charge.random(self.entries, known, false);
        charge.random(self.states, known * self.key_lines, false);
        charge.random(self.states, known * self.accumulator_lines, true);
    }
}

/// A table below that is in the cache whatever its rows are: not worth looking at their keys.
const SMALL_TABLE_BYTES: u64 = 32 << 10;

/// What hashbrown has for so many entries of a hash and a number: buckets in a power of two, seven of eight at most in use, and a
/// byte beside each.
fn entries_bytes(groups: u64) -> u64 {
    (groups * 8 / 7).next_power_of_two() * 17
}

impl Drop for GroupTable {
    fn drop(&mut self) {
        self.account.drop_pool(self.entries);
        self.account.drop_pool(self.states);
    }
}

/// A scan that may drop rows of what it has produced.
struct Sieve {
    scan: Arc<dyn ExecutionPlan>,
    rows_passed: AtomicU64,
    /// Of main and delta.
    bytes_read: AtomicU64,
}

impl Sieve {
    /// What it looked at of values that it did not pass on, if it does not pass all on: what its conditions are about, and of
    /// the rest the lines, of four rows, of which a row was kept.
    fn blocks(&self, charge: &mut Charge<'_>) -> Blocks {
        let passed = self.rows_passed.load(Ordering::Relaxed);
        let Some(scan) = self.scan.downcast_ref::<TidepoolScanExec>() else { return Blocks::Values };
        let metrics = crate::scan::scan_metrics(&scan.scans());
        let read = metrics.tablespaces.iter().map(|read| read.bytes).sum::<u64>();
        charge.stream(read.saturating_sub(self.bytes_read.fetch_max(read, Ordering::Relaxed)));
        let produced = metrics.rows_produced;
        if produced <= passed {
            return Blocks::Values;
        }
        // Conditions on several columns look rows up by their hashes.
        charge.fill_scratch(HASHES, BATCH_ROWS * size_of::<u64>());
        let kept = 1.0 - (1.0 - passed as f64 / produced as f64).powi(4);
        let looked_at = scan.residual_share();
        Blocks::Sifted(looked_at + (1.0 - looked_at) * kept)
    }
}

/// What an operator was charged with, in lines for people.
pub fn details(operator: &OperatorAccount, verbose: bool) -> Vec<String> {
    let spent = operator.spent();
    let line = |(tablespace, spent): &(String, PacingCounters)| match verbose {
        false => format!(
            "Heap in {tablespace} (estimate): read {}, written {}, stalled {:.3} ms",
            ByteSize(spent.link_bytes_read),
            ByteSize(spent.link_bytes_written),
            spent.stall_ns as f64 / 1e6
        ),
        true => format!("Paced heap in {tablespace} (estimate): {}", crate::explain::counters(spent)),
    };
    let is_any = |(_, spent): &&(String, PacingCounters)| *spent != PacingCounters::default();
    spent.iter().filter(is_any).map(line).collect()
}

/// The operator that a node stands above, if more is known of it.
#[derive(Clone)]
enum Below {
    Join(Arc<JoinTable>),
    Scan(Arc<Sieve>),
    Other,
}

/// Between two operators: charges each with its part.
struct Boundary {
    account: Arc<HeapAccount>,
    operator: Arc<OperatorAccount>,
    below: Below,
    above: Above,
}

impl fmt::Debug for Boundary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Passage for Boundary {
    fn name(&self) -> &'static str {
        "HeapPacingExec"
    }

    fn details(&self, verbose: bool) -> Vec<String> {
        details(&self.operator, verbose)
    }

    fn execute(
        &self,
        input: &dyn ExecutionPlan,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> PlanResult<SendableRecordBatchStream> {
        Ok(Box::pin(BoundaryStream {
            input: input.execute(partition, unmeasured(context))?,
            account: self.account.clone(),
            operator: self.operator.clone(),
            below: self.below.clone(),
            above: self.above.clone(),
            started: false,
            ended: false,
        }))
    }
}

struct BoundaryStream {
    input: SendableRecordBatchStream,
    account: Arc<HeapAccount>,
    operator: Arc<OperatorAccount>,
    below: Below,
    above: Above,
    started: bool,
    ended: bool,
}

impl BoundaryStream {
    fn batch(&self, batch: &RecordBatch) {
        let rows = batch.num_rows() as u64;
        if let Below::Join(join) = &self.below {
            self.account.charge(&self.operator, |charge| join.made(charge, rows));
        }
        self.account.charge(&self.above.operator, |charge| {
            let columns = batch.columns();
            let scratch_bytes = batch.num_rows() * size_of::<u64>();
            if self.above.table.is_some() {
                charge.fill_scratch(HASHES, scratch_bytes);
            }
            if let Some(TableUse::Group(table)) = &self.above.table {
                charge.fill_scratch(table.groups, scratch_bytes);
            }
            let mut read = |column| {
                arrays::ranges(column, &mut |range| charge.read(range));
                // Each aggregate takes the groups of the rows with its values.
                if let Some(TableUse::Group(table)) = &self.above.table {
                    charge.scratch(table.groups, scratch_bytes);
                }
            };
            match &self.above.reads {
                Reads::All => columns.iter().for_each(&mut read),
                Reads::Columns(places) => places.iter().filter_map(|place| columns.get(*place)).for_each(&mut read),
                Reads::Nothing => {}
            }
            match &self.above.table {
                Some(TableUse::Build(table)) => table.build(batch),
                Some(TableUse::Probe(table)) => table.probe(charge, batch),
                Some(TableUse::Group(table)) => table.group(charge, batch),
                None => {}
            }
        });
    }
}

impl Drop for BoundaryStream {
    fn drop(&mut self) {
        self.account.settle(&self.above.operator, None, |_| Blocks::Values);
        if let Some(TableUse::Probe(table)) = &self.above.table {
            table.probed();
        }
    }
}

impl Stream for BoundaryStream {
    type Item = PlanResult<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<PlanResult<RecordBatch>>> {
        let started = std::mem::replace(&mut self.started, true);
        self.account.settle(&self.above.operator, None, |_| match &self.above.table {
            // A join that asks for its first row to probe has built its table.
            Some(TableUse::Probe(_)) if !started => Blocks::Tables,
            Some(TableUse::Group(_)) => Blocks::Tables,
            _ => Blocks::Values,
        });
        let polled = self.input.as_mut().poll_next(context);
        let made = match &polled {
            Poll::Ready(Some(Ok(batch))) => Some(batch),
            _ => None,
        };
        if let (Below::Scan(sieve), Some(batch)) = (&self.below, made) {
            sieve.rows_passed.fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
        }
        self.account.settle(&self.operator, made, |charge| match &self.below {
            Below::Scan(sieve) => sieve.blocks(charge),
            _ => Blocks::Values,
        });
        match &polled {
            Poll::Ready(Some(Ok(batch))) => self.batch(batch),
            Poll::Ready(None) if !self.ended => {
                self.ended = true;
                if let Some(TableUse::Build(table)) = &self.above.table {
                    table.build_ended();
                }
            }
            _ => {}
        }
        polled
    }
}

impl RecordBatchStream for BoundaryStream {
    fn schema(&self) -> arrow::datatypes::SchemaRef {
        self.input.schema()
    }
}
