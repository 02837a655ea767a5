//! The scan operator: as many streams as there are threads over one storage scan.

use super::filter::{self, Conjuncts};
use super::runtime::RuntimeFilters;
use super::source::{Part, Source};
use crate::QueryInfo;
use crate::engine::EngineExec;
use datafusion::arrow::array::{AsArray, RecordBatch, RecordBatchOptions};
use datafusion::arrow::compute::filter_record_batch;
use datafusion::arrow::datatypes::{Schema, SchemaRef, UInt64Type};
use datafusion::common::config::ConfigOptions;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_datafusion_err, plan_err};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{DynamicFilterTracking, EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::coop::cooperative;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::filter_pushdown::{
    ChildPushdownResult, FilterDescription, FilterPushdownPhase, FilterPushdownPropagation, PushedDown,
};
use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, Metric, MetricValue, MetricsSet, Time,
};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, ReplaceChildrenOptions,
};
use futures::Stream;
use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;
use tidepool_base::RowId;
use tidepool_database::{ordinal_bits, split_id};
use tidepool_device::{PacingCounters, PacingTotals};
use tidepool_engine::plan::Op;
use tidepool_heap::QueryHeap;
use tidepool_table::{
    BATCH_ROWS, ColumnFilter, FilterSource, IndexUse, ScanMetrics, ScanReader, ScanRequest, TableScan, TableVersion,
};
use tidepool_tablespace::Purpose;

/// Reads one version of a table, or of its partitions. Its streams share a queue of row groups, so which rows come from which stream is chance;
/// each is executed once for an answer.
pub struct TidepoolScanExec {
    source: Arc<Source>,
    /// What it reads: the table itself, or the partitions that the filters leave.
    parts: Arc<[Part]>,
    table_schema: SchemaRef,
    /// Output column to table column.
    projection: Vec<usize>,
    /// Exact, over the table's columns.
    filters: Vec<ColumnFilter>,
    /// What `filters` say, for people.
    filter_expressions: Vec<Arc<dyn PhysicalExpr>>,
    /// Learnt while the plan runs; over the output's columns.
    runtime: Vec<Arc<dyn PhysicalExpr>>,
    limit: Option<usize>,
    /// These rows alone, by id; of one table.
    picked: Option<Arc<[RowId]>>,
    /// Of a table that the statement changes or locks: which one of them.
    target: Option<usize>,
    /// Of every column of the table, filters taken into account.
    table_statistics: Arc<Statistics>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    run: Arc<Mutex<Run>>,
}

/// The storage scans of a plan that ran.
pub fn scans_of(plan: &Arc<dyn ExecutionPlan>) -> Vec<Arc<TableScan>> {
    let mut scans: Vec<Arc<TableScan>> = plan.children().into_iter().flat_map(scans_of).collect();
    if let Some(scan) = plan.downcast_ref::<TidepoolScanExec>() {
        scans.extend(scan.run.lock().scans());
    }
    if let Some(engine) = plan.downcast_ref::<EngineExec>() {
        scans.extend(engine.plan().nodes().into_iter().flat_map(|node| match &node.op {
            Op::Scan(scan) => scan.history(),
            _ => Vec::new(),
        }));
    }
    scans
}

/// What a scan reads that some filters leave rows of; it is noted that it does.
pub(super) fn parts_read(source: &Source, filters: &[ColumnFilter], projection: &[usize]) -> Vec<Part> {
    let parts = source.parts(filters, projection);
    // Whatever becomes of the plan: its answer may come from statistics. What is kept outlives the statement.
    QueryHeap::outside(|| {
        parts.iter().for_each(|part| part.version.read_by(filters, part.access.as_deref()));
    });
    parts
}

/// What pacing accounted to storage scans so far, by tablespace and purpose.
pub fn paced(scans: &[Arc<TableScan>]) -> Vec<(String, Purpose, PacingCounters)> {
    let mut sum: Vec<(String, Purpose, PacingTotals)> = Vec::new();
    for (tablespace, purpose, spent) in scans.iter().flat_map(|scan| scan.paced()) {
        match sum.iter().find(|(name, of, _)| (name, of) == (&tablespace, &purpose)) {
            Some((.., totals)) => totals.add(&spent),
            None => {
                let totals = PacingTotals::default();
                totals.add(&spent);
                sum.push((tablespace, purpose, totals));
            }
        }
    }
    sum.into_iter().map(|(tablespace, purpose, totals)| (tablespace, purpose, totals.get())).collect()
}

/// What storage scans did so far, added up.
pub fn scan_metrics(scans: &[Arc<TableScan>]) -> ScanMetrics {
    let mut sum = ScanMetrics::default();
    for one in scans.iter().map(|scan| scan.metrics()) {
        sum.row_groups += one.row_groups;
        sum.row_groups_skipped += one.row_groups_skipped;
        sum.rows_scanned += one.rows_scanned;
        sum.rows_produced += one.rows_produced;
        if let Some((index, used)) = one.index {
            let (_, total) = sum.index.get_or_insert_with(|| (index, IndexUse::default()));
            *total += used;
        }
        one.tablespaces.into_iter().for_each(|read| read.add_to(&mut sum.tablespaces));
    }
    sum
}

/// The storage scans of this operator: a round for each time it was executed.
#[derive(Default)]
struct Run {
    rounds: Vec<Arc<Round>>,
    /// Streams that already read the last of them.
    started: BTreeSet<usize>,
}

impl Run {
    fn scans(&self) -> impl Iterator<Item = Arc<TableScan>> {
        self.rounds.iter().flat_map(|round| round.scans.iter().filter_map(OnceLock::get).cloned())
    }
}

/// One execution.
struct Round {
    parts: Arc<[Part]>,
    picked: Option<Arc<[RowId]>>,
    projection: Vec<usize>,
    filters: Vec<ColumnFilter>,
    runtime: Option<Arc<RuntimeFilters>>,
    rows_left: Option<Arc<AtomicUsize>>,
    batch_rows: usize,
    query: Option<Arc<QueryInfo>>,
    /// Of all parts, at most.
    rows_total: u64,
    /// Of each part, once a stream has come to it.
    scans: Vec<OnceLock<Arc<TableScan>>>,
}

impl Round {
    /// `None` when there is nothing left to read.
    fn scan(&self, part: usize) -> Option<&Arc<TableScan>> {
        let (scan, part) = (self.scans.get(part)?, &self.parts[part]);
        if self.rows_left.as_ref().is_some_and(|left| left.load(Ordering::Relaxed) == 0) {
            return None;
        }
        Some(scan.get_or_init(|| {
            let request = ScanRequest {
                projection: self.projection.clone(),
                filters: self.filters.clone(),
                dynamic: self.runtime.clone().map(|source| source as Arc<dyn FilterSource>),
                limit: self.rows_left.clone(),
                batch_rows: self.batch_rows,
                forms: Vec::new(),
            };
            let scan = match (&self.picked, &part.access) {
                (Some(rows), _) => TableScan::picked(part.version.clone(), request, rows),
                (None, Some(access)) => TableScan::through(part.version.clone(), request, access),
                (None, None) => TableScan::among(part.version.clone(), request, self.rows_total),
            };
            if let Some(query) = &self.query {
                query.add_scan(scan.clone());
            }
            scan
        }))
    }
}

impl TidepoolScanExec {
    /// `predicates` read one column of the table each.
    pub fn try_new(
        source: Arc<Source>,
        table_schema: SchemaRef,
        projection: Vec<usize>,
        predicates: Vec<Arc<dyn PhysicalExpr>>,
        limit: Option<usize>,
        threads: usize,
    ) -> Result<TidepoolScanExec> {
        let all: Vec<usize> = (0..table_schema.fields().len()).collect();
        let mut conjuncts = Conjuncts::default();
        for predicate in &predicates {
            filter::convert(predicate, &all, &table_schema, &mut conjuncts);
        }
        if let Some(predicate) = conjuncts.residual.first() {
            return plan_err!("{predicate} reads more than one column, which a scan cannot filter by");
        }
        let parts: Arc<[Part]> = parts_read(&source, &conjuncts.filters, &projection).into();
        let partitions = streams(&parts, threads);
        let schema = Arc::new(table_schema.project(&projection)?);
        Ok(TidepoolScanExec {
            table_statistics: Arc::new(Statistics::new_unknown(&table_schema)),
            properties: properties(schema, partitions),
            source,
            parts,
            table_schema,
            projection,
            filters: conjuncts.filters,
            filter_expressions: conjuncts.expressions,
            runtime: Vec::new(),
            limit,
            picked: None,
            target: None,
            metrics: ExecutionPlanMetricsSet::new(),
            run: Arc::default(),
        })
    }

    /// `statistics` are of every column of the table, filters taken into account.
    pub fn with_statistics(mut self, statistics: Statistics) -> TidepoolScanExec {
        self.table_statistics = Arc::new(statistics);
        self
    }

    /// What its rows pass.
    pub fn filters(&self) -> &[ColumnFilter] {
        &self.filters
    }

    /// What it reads.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// How many rows it looks up, if it does so by whole keys alone.
    pub fn points(&self) -> Option<usize> {
        let rows = |part: &Part| part.access.as_ref().filter(|access| access.is_point()).map(|a| a.rows_estimated());
        self.parts.iter().map(rows).sum::<Option<f64>>().map(|rows| rows.ceil() as usize)
    }

    pub fn of_target(mut self, target: Option<usize>) -> TidepoolScanExec {
        self.target = target;
        self
    }

    /// Reads one row alone, by its id among those of all partitions.
    pub fn of_row(mut self, row: RowId) -> TidepoolScanExec {
        let (ordinal, row) = if self.source.is_partitioned() { split_id(row) } else { (0, row) };
        let of_row = self.parts.iter().filter(|part| part.ordinal == ordinal);
        self.parts = of_row.map(|part| Part { access: None, ..part.clone() }).collect();
        self.picked = Some([row].into());
        self
    }

    /// Which of the statement's targets it reads.
    pub(super) fn target(&self) -> Option<usize> {
        self.target
    }

    /// A copy that has not run, without what was learnt while this one ran. With `rows`: of these alone, by ascending
    /// ids, as that version has them.
    pub(super) fn restarted(&self, rows: Option<(&Arc<TableVersion>, &[RowId])>) -> TidepoolScanExec {
        let mut scan = self.fresh();
        scan.runtime = Vec::new();
        if let Some((version, rows)) = rows {
            scan.parts = [Part { version: version.clone(), ordinal: 0, access: None }].into();
            scan.picked = Some(rows.into());
        }
        scan
    }

    /// A copy that has not run.
    fn fresh(&self) -> TidepoolScanExec {
        TidepoolScanExec {
            source: self.source.clone(),
            parts: self.parts.clone(),
            table_schema: self.table_schema.clone(),
            projection: self.projection.clone(),
            filters: self.filters.clone(),
            filter_expressions: self.filter_expressions.clone(),
            runtime: self.runtime.clone(),
            limit: self.limit,
            picked: self.picked.clone(),
            target: self.target,
            table_statistics: self.table_statistics.clone(),
            properties: self.properties.clone(),
            metrics: ExecutionPlanMetricsSet::new(),
            run: Arc::default(),
        }
    }

    /// The storage scans of each time that it was executed.
    pub fn scans(&self) -> Vec<Arc<TableScan>> {
        self.run.lock().scans().collect()
    }

    /// The share of what it produces, by width, that conditions on whole batches look at in every row.
    pub fn residual_share(&self) -> f64 {
        let width = |column: usize| {
            let width = self.schema().fields().get(column).and_then(|field| field.data_type().primitive_width());
            // Of text, what lies in its view.
            width.unwrap_or(16) as f64
        };
        let run = self.run.lock();
        let residual =
            run.rounds.iter().filter_map(|round| round.runtime.as_ref()).flat_map(|runtime| runtime.residual());
        let columns: BTreeSet<usize> =
            residual.flat_map(|(predicate, _)| collect_columns(&predicate)).map(|column| column.index()).collect();
        let all: f64 = (0..self.schema().fields().len()).map(width).sum();
        columns.into_iter().map(width).sum::<f64>() / all.max(1.0)
    }

    /// The table's name.
    pub fn table(&self) -> &str {
        &self.source.version.def.name
    }

    /// The indexes that it reads through: their names, and the columns whose conditions are used.
    fn indexes(&self) -> Option<(Vec<&str>, Vec<&str>)> {
        let mut names = Vec::new();
        let mut key = Vec::new();
        for part in self.parts.iter() {
            let (Some(access), Some(def)) = (&part.access, part.index_def()) else { continue };
            names.push(def.name.as_str());
            key = access.columns().iter().map(|column| part.version.def.columns[*column].name.as_str()).collect();
        }
        (!names.is_empty()).then_some((names, key))
    }

    /// The tablespaces that hold what it reads, by name.
    fn tablespaces(&self) -> BTreeSet<&str> {
        let filtered: Vec<usize> = self.filters.iter().map(ColumnFilter::column).collect();
        let mut names: BTreeSet<&str> = BTreeSet::new();
        for part in self.parts.iter() {
            let placement = &part.version.placement;
            let mut own: BTreeSet<&str> = BTreeSet::new();
            if !part.version.row_groups.is_empty() {
                let read = self.projection.iter().chain(&filtered);
                own.extend(read.map(|column| placement.column(*column)));
            }
            if !part.version.is_settled() || own.is_empty() {
                own.insert(&placement.delta);
            }
            names.append(&mut own);
            names.extend(part.index_def().map(|def| part.version.table().index_tablespace(def)));
        }
        names
    }

    /// The partitions that it reads, of how many, for people.
    fn partitions_text(&self) -> Option<String> {
        if !self.source.is_partitioned() {
            return None;
        }
        let mut names: Vec<&str> =
            self.parts.iter().take(NAMES_SHOWN).map(|part| part.version.def.name.as_str()).collect();
        if self.parts.len() > NAMES_SHOWN {
            names.push("…");
        }
        Some(format!("[{}] ({} of {})", names.join(", "), self.parts.len(), self.source.partitions()))
    }

    /// The execution that stream `partition` is of.
    fn start(&self, partition: usize, context: &TaskContext) -> Option<Arc<Round>> {
        let mut run = self.run.lock();
        if run.rounds.is_empty() || !run.started.insert(partition) {
            let runtime = (!self.runtime.is_empty()).then(|| {
                Arc::new(RuntimeFilters::new(self.runtime.clone(), self.projection.clone(), self.table_schema.clone()))
            });
            run.rounds.push(Arc::new(Round {
                parts: self.parts.clone(),
                projection: self.projection.clone(),
                filters: self.filters.clone(),
                runtime,
                rows_left: self.limit.map(|limit| Arc::new(AtomicUsize::new(limit))),
                batch_rows: context.session_config().batch_size().clamp(1, BATCH_ROWS),
                picked: self.picked.clone(),
                query: context.session_config().get_extension::<QueryInfo>(),
                rows_total: self.parts.iter().map(|part| part.version.rows_max()).sum(),
                scans: self.parts.iter().map(|_| OnceLock::new()).collect(),
            }));
            run.started = BTreeSet::from([partition]);
        }
        run.rounds.last().cloned()
    }
}

/// Partitions that are shown by name.
const NAMES_SHOWN: usize = 32;

/// As many streams as there are threads, or fewer where there is less to read.
fn streams(parts: &[Part], threads: usize) -> usize {
    threads.min(parts.iter().map(Part::morsels).sum()).max(1)
}

fn properties(schema: SchemaRef, partitions: usize) -> Arc<PlanProperties> {
    let properties = PlanProperties::new(
        EquivalenceProperties::new(schema),
        Partitioning::UnknownPartitioning(partitions),
        EmissionType::Incremental,
        Boundedness::Bounded,
    );
    Arc::new(properties.with_scheduling_type(SchedulingType::Cooperative))
}

impl fmt::Debug for TidepoolScanExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TidepoolScanExec")
            .field("table", &self.table())
            .field("projection", &self.projection)
            .field("filters", &self.filter_expressions)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// What it reads, and how.
impl fmt::Display for TidepoolScanExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> =
            self.projection.iter().map(|&index| self.table_schema.field(index).name().as_str()).collect();
        let list = |expressions: &[Arc<dyn PhysicalExpr>]| {
            expressions.iter().map(|expression| expression.to_string()).collect::<Vec<_>>().join(" AND ")
        };
        let tablespaces = self.tablespaces().into_iter().collect::<Vec<_>>().join(", ");
        write!(f, "table={}", self.table())?;
        if let Some(partitions) = self.partitions_text() {
            write!(f, ", partitions={partitions}")?;
        }
        match self.indexes() {
            Some((names, key)) if names.len() == 1 => write!(f, ", index={}, key=[{}]", names[0], key.join(", "))?,
            Some((names, key)) => write!(f, ", indexes=[{}], key=[{}]", names.join(", "), key.join(", "))?,
            None => {}
        }
        write!(f, ", projection=[{}]", names.join(", "))?;
        if !self.filter_expressions.is_empty() {
            write!(f, ", filters=[{}]", list(&self.filter_expressions))?;
        }
        if !self.runtime.is_empty() {
            // A long list of keys would drown the plan.
            let text: String = list(&self.runtime).chars().take(200).collect();
            write!(f, ", runtime_filters=[{text}]")?;
        }
        if let Some(limit) = self.limit {
            write!(f, ", limit={limit}")?;
        }
        write!(f, ", tablespaces=[{tablespaces}]")
    }
}

impl DisplayAs for TidepoolScanExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let DisplayFormatType::TreeRender = format {
            let tablespaces = self.tablespaces().into_iter().collect::<Vec<_>>().join(", ");
            writeln!(f, "table={}", self.table())?;
            if let Some(partitions) = self.partitions_text() {
                writeln!(f, "partitions={partitions}")?;
            }
            if let Some((indexes, _)) = self.indexes() {
                writeln!(f, "index={}", indexes.join(", "))?;
            }
            return writeln!(f, "tablespaces={tablespaces}");
        }
        write!(f, "TidepoolScanExec: {self}")
    }
}

impl ExecutionPlan for TidepoolScanExec {
    fn name(&self) -> &str {
        "TidepoolScanExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        datafusion::physical_plan::execution_plan::apply_expression_roots(
            self.filter_expressions.iter().chain(&self.runtime),
            f,
        )
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match children.is_empty() {
            true => Ok(self),
            false => plan_err!("a scan has no children"),
        }
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(self.fresh()))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let round =
            self.start(partition, &context).ok_or_else(|| internal_datafusion_err!("a scan was not started"))?;
        let columns = self.source.version.def.columns.len();
        let ids = self.projection.iter().position(|column| *column == columns);
        Ok(Box::pin(cooperative(ScanStream {
            schema: self.schema(),
            is_partitioned: self.source.is_partitioned(),
            ids,
            part: 0,
            reader: round.scan(0).map(TableScan::reader),
            round,
            metrics: BaselineMetrics::new(&self.metrics, partition),
        })))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        let mut set = self.metrics.clone_inner();
        let scan = scan_metrics(&self.scans());
        let mut add = |name: Cow<'static, str>, value: u64| {
            let count = Count::new();
            count.add(value as usize);
            set.push(Arc::new(Metric::new(MetricValue::Count { name, count }, None)));
        };
        add("row_groups".into(), scan.row_groups);
        add("row_groups_skipped".into(), scan.row_groups_skipped);
        add("rows_scanned".into(), scan.rows_scanned);
        add("decoded_bytes".into(), scan.tablespaces.iter().map(|read| read.decoded_bytes).sum());
        if let Some((_, used)) = &scan.index {
            add("index_lookups".into(), used.lookups);
            add("index_entries".into(), used.entries);
            add("index_bytes".into(), used.touched.bytes_read());
        }
        for read in &scan.tablespaces {
            add(format!("{}_bytes", read.tablespace).into(), read.bytes);
        }
        for read in &scan.tablespaces {
            let time = Time::new();
            time.add_duration(Duration::from_nanos(read.stall_ns));
            let name = format!("{}_stall", read.tablespace).into();
            set.push(Arc::new(Metric::new(MetricValue::Time { name, time }, None)));
        }
        Some(set)
    }

    fn statistics_from_inputs(&self, _inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        let mut statistics = self.table_statistics.as_ref().clone().project(Some(&self.projection));
        if let Some(limit) = self.limit
            && statistics.num_rows.get_value().is_none_or(|rows| *rows > limit)
        {
            statistics = statistics.with_fetch(Some(limit), 0, 1)?;
        }
        let partitions = self.properties.partitioning.partition_count();
        if args.partition().is_some() && partitions > 1 {
            // Which rows a partition gets is not known before it runs.
            let part = |value: Precision<usize>| value.to_inexact().map(|value| value.div_ceil(partitions));
            statistics = statistics.to_inexact();
            statistics.num_rows = part(statistics.num_rows);
            statistics.total_byte_size = part(statistics.total_byte_size);
        }
        Ok(Arc::new(statistics))
    }

    fn supports_limit_pushdown(&self) -> bool {
        false
    }

    fn with_fetch(&self, limit: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        let mut scan = self.fresh();
        scan.limit = limit;
        Some(Arc::new(scan))
    }

    fn fetch(&self) -> Option<usize> {
        self.limit
    }

    /// A projection that only picks columns becomes the scan's own.
    fn try_swapping_with_projection(&self, projection: &ProjectionExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        if !self.runtime.is_empty() {
            return Ok(None);
        }
        let mut columns = Vec::with_capacity(projection.expr().len());
        for item in projection.expr() {
            match item.expr.downcast_ref::<Column>() {
                Some(column) if column.name() == item.alias => columns.push(self.projection[column.index()]),
                _ => return Ok(None),
            }
        }
        let mut scan = self.fresh();
        let schema: Schema = self.table_schema.project(&columns)?;
        scan.properties = properties(Arc::new(schema), self.properties.partitioning.partition_count());
        scan.projection = columns;
        Ok(Some(Arc::new(scan)))
    }

    fn gather_filters_for_pushdown(
        &self,
        _phase: FilterPushdownPhase,
        _parent_filters: Vec<Arc<dyn PhysicalExpr>>,
        _config: &ConfigOptions,
    ) -> Result<FilterDescription> {
        Ok(FilterDescription::new())
    }

    fn handle_child_pushdown_result(
        &self,
        _phase: FilterPushdownPhase,
        result: ChildPushdownResult,
        _config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        let refused = vec![PushedDown::No; result.parent_filters.len()];
        if self.limit.is_some() {
            // Filtering first would let other rows fill the limit.
            return Ok(FilterPushdownPropagation::with_parent_pushdown_result(refused));
        }
        let mut scan = self.fresh();
        let mut changed = false;
        let mut answers = refused;
        for (parent, answer) in result.parent_filters.into_iter().zip(&mut answers) {
            if DynamicFilterTracking::classify(&parent.filter).contains_dynamic_filter() {
                scan.runtime.push(parent.filter);
                changed = true;
                continue;
            }
            let mut conjuncts = Conjuncts::default();
            filter::convert(&parent.filter, &self.projection, &self.table_schema, &mut conjuncts);
            if conjuncts.residual.is_empty() {
                scan.filters.extend(conjuncts.filters);
                if scan.source.is_partitioned() {
                    let kept: BTreeSet<usize> = scan.source.tables(&scan.filters).iter().map(|table| table.0).collect();
                    scan.parts = scan.parts.iter().filter(|part| kept.contains(&part.ordinal)).cloned().collect();
                }
                scan.filter_expressions.extend(conjuncts.expressions);
                // Without the logical expression there is no estimate; a guess is better than the whole table.
                let statistics = scan.table_statistics.as_ref().clone().to_inexact();
                let rows = statistics.num_rows.with_estimated_selectivity(0.2);
                scan.table_statistics = Arc::new(statistics.with_num_rows(rows));
                *answer = PushedDown::Yes;
                changed = true;
            }
        }
        let propagation = FilterPushdownPropagation::with_parent_pushdown_result(answers);
        Ok(match changed {
            true => propagation.with_updated_node(Arc::new(scan)),
            false => propagation,
        })
    }
}

struct ScanStream {
    schema: SchemaRef,
    is_partitioned: bool,
    /// The output that has rows' ids.
    ids: Option<usize>,
    round: Arc<Round>,
    part: usize,
    reader: Option<ScanReader>,
    metrics: BaselineMetrics,
}

impl ScanStream {
    /// The next batch of any part, as the storage has it.
    fn read(&mut self) -> Result<Option<RecordBatch>> {
        while let Some(reader) = &mut self.reader {
            if let Some(batch) = reader.next_batch().map_err(crate::errors::carry)? {
                return Ok(Some(batch));
            }
            self.part += 1;
            self.reader = self.round.scan(self.part).map(TableScan::reader);
        }
        Ok(None)
    }

    /// Of the partitioned table's schema, which may allow more NULLs, and with the part's ordinal in rows' ids.
    fn of_table(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let mut columns = batch.columns().to_vec();
        if let Some(ids) = self.ids {
            let bits = ordinal_bits(self.round.parts[self.part].ordinal);
            let own = columns[ids].as_primitive_opt::<UInt64Type>();
            let own = own.ok_or_else(|| internal_datafusion_err!("rows' ids are no numbers"))?;
            columns[ids] = Arc::new(own.unary::<_, UInt64Type>(|id| id | bits));
        }
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?)
    }

    fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let Some(mut batch) = self.read()? else { return Ok(None) };
            if self.is_partitioned {
                batch = self.of_table(batch)?;
            }
            if let Some(runtime) = &self.round.runtime {
                for (predicate, effect) in runtime.residual() {
                    let mask = filter::predicate_mask(&predicate, &batch)?;
                    let kept = mask.true_count();
                    effect.add(mask.len(), kept);
                    if kept < batch.num_rows() {
                        batch = filter_record_batch(&batch, &mask)?;
                    }
                }
                if batch.num_rows() == 0 {
                    continue;
                }
            }
            return Ok(Some(batch));
        }
    }
}

impl Stream for ScanStream {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let time = self.metrics.elapsed_compute().clone();
        let timer = time.timer();
        let next = self.next().transpose();
        drop(timer);
        self.metrics.record_poll(Poll::Ready(next))
    }
}

impl RecordBatchStream for ScanStream {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}
