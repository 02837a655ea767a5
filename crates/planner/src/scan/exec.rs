//! The scan operator: as many streams as there are threads over one storage scan.

use super::filter::{self, Conjuncts};
use super::runtime::RuntimeFilters;
use crate::QueryInfo;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::filter_record_batch;
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, plan_err};
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
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tidepool_device::{PacingCounters, PacingTotals};
use tidepool_heap::QueryHeap;
use tidepool_table::{
    BATCH_ROWS, ColumnFilter, FilterSource, IndexAccess, IndexDef, IndexUse, ScanMetrics, ScanReader, ScanRequest,
    TableScan, TableVersion,
};
use tidepool_tablespace::Purpose;

/// Reads one version of a table. Its partitions share a queue of row groups, so which rows come from which partition is
/// chance; each is executed once for an answer.
pub struct TidepoolScanExec {
    version: Arc<TableVersion>,
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
    /// Through an index, instead of all of the table.
    access: Option<Arc<IndexAccess>>,
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
        scans.extend(scan.run.lock().scans.iter().map(|(scan, _)| scan.clone()));
    }
    scans
}

/// The storage scans of this operator: one for each time it was executed.
#[derive(Default)]
struct Run {
    scans: Vec<(Arc<TableScan>, Option<Arc<RuntimeFilters>>)>,
    /// Partitions that already read the last of them.
    started: BTreeSet<usize>,
}

impl TidepoolScanExec {
    /// `predicates` read one column of the table each.
    pub fn try_new(
        version: Arc<TableVersion>,
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
        let access = IndexAccess::choose(&version, &conjuncts.filters, &projection).map(Arc::new);
        // Whatever becomes of the plan: its answer may come from statistics. What is kept outlives the statement.
        QueryHeap::outside(|| version.read_by(&conjuncts.filters, access.as_deref()));
        let morsels = match access {
            Some(_) => 1,
            None => version.row_groups.len() + version.headed().len(),
        };
        let partitions = threads.min(morsels).max(1);
        let schema = Arc::new(table_schema.project(&projection)?);
        Ok(TidepoolScanExec {
            table_statistics: Arc::new(Statistics::new_unknown(&table_schema)),
            properties: properties(schema, partitions),
            access,
            version,
            table_schema,
            projection,
            filters: conjuncts.filters,
            filter_expressions: conjuncts.expressions,
            runtime: Vec::new(),
            limit,
            metrics: ExecutionPlanMetricsSet::new(),
            run: Arc::default(),
        })
    }

    /// `statistics` are of every column of the table, filters taken into account.
    pub fn with_statistics(mut self, statistics: Statistics) -> TidepoolScanExec {
        self.table_statistics = Arc::new(statistics);
        self
    }

    /// The index that it reads through, if any.
    pub fn access(&self) -> Option<&IndexAccess> {
        self.access.as_deref()
    }

    /// A copy that has not run.
    fn fresh(&self) -> TidepoolScanExec {
        TidepoolScanExec {
            version: self.version.clone(),
            table_schema: self.table_schema.clone(),
            projection: self.projection.clone(),
            filters: self.filters.clone(),
            filter_expressions: self.filter_expressions.clone(),
            runtime: self.runtime.clone(),
            limit: self.limit,
            access: self.access.clone(),
            table_statistics: self.table_statistics.clone(),
            properties: self.properties.clone(),
            metrics: ExecutionPlanMetricsSet::new(),
            run: Arc::default(),
        }
    }

    /// What pacing accounted to its storage scans so far, by tablespace and purpose.
    pub fn paced(&self) -> Vec<(String, Purpose, PacingCounters)> {
        let mut sum: Vec<(String, Purpose, PacingTotals)> = Vec::new();
        for (tablespace, purpose, spent) in self.run.lock().scans.iter().flat_map(|(scan, _)| scan.paced()) {
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

    /// The share of what it produces, by width, that conditions on whole batches look at in every row.
    pub fn residual_share(&self) -> f64 {
        let width = |column: usize| {
            let width = self.schema().fields().get(column).and_then(|field| field.data_type().primitive_width());
            // Of text, what lies in its view.
            width.unwrap_or(16) as f64
        };
        let run = self.run.lock();
        let residual =
            run.scans.iter().filter_map(|(_, runtime)| runtime.as_ref()).flat_map(|runtime| runtime.residual());
        let columns: BTreeSet<usize> =
            residual.flat_map(|(predicate, _)| collect_columns(&predicate)).map(|column| column.index()).collect();
        let all: f64 = (0..self.schema().fields().len()).map(width).sum();
        columns.into_iter().map(width).sum::<f64>() / all.max(1.0)
    }

    /// The table's name.
    pub fn table(&self) -> &str {
        &self.version.def.name
    }

    /// What its storage scans did so far, added up.
    pub fn scan_metrics(&self) -> ScanMetrics {
        let mut sum = ScanMetrics::default();
        for (scan, _) in &self.run.lock().scans {
            let one = scan.metrics();
            sum.row_groups += one.row_groups;
            sum.row_groups_skipped += one.row_groups_skipped;
            sum.rows_scanned += one.rows_scanned;
            sum.rows_produced += one.rows_produced;
            sum.decoded_bytes += one.decoded_bytes;
            if let Some((index, used)) = one.index {
                let (_, total) = sum.index.get_or_insert_with(|| (index, IndexUse::default()));
                *total += used;
            }
            for (name, bytes, stall_ns) in one.tablespaces {
                match sum.tablespaces.iter_mut().find(|row| row.0 == name) {
                    Some(row) => {
                        row.1 += bytes;
                        row.2 += stall_ns;
                    }
                    None => sum.tablespaces.push((name, bytes, stall_ns)),
                }
            }
        }
        sum
    }

    fn index_def(&self) -> Option<&IndexDef> {
        let access = self.access.as_ref()?;
        self.version.def.indexes.iter().find(|def| def.id == access.index().id())
    }

    /// The index that it reads through: its name, and the columns whose conditions it uses.
    fn index(&self) -> Option<(&str, Vec<&str>)> {
        let (access, def) = (self.access.as_ref()?, self.index_def()?);
        let columns = access.columns().iter().map(|column| self.version.def.columns[*column].name.as_str());
        Some((&def.name, columns.collect()))
    }

    /// The tablespaces that hold what it reads, by name.
    fn tablespaces(&self) -> BTreeSet<&str> {
        let placement = &self.version.placement;
        let filtered = self.filters.iter().map(column_of);
        let mut names: BTreeSet<&str> = BTreeSet::new();
        if !self.version.row_groups.is_empty() {
            names.extend(self.projection.iter().copied().chain(filtered).map(|column| placement.column(column)));
        }
        if !self.version.is_settled() || names.is_empty() {
            names.insert(&placement.delta);
        }
        names.extend(self.index_def().map(|def| self.version.table().index_tablespace(def)));
        names
    }

    /// The storage scan that `partition` reads next.
    fn start(&self, partition: usize, context: &TaskContext) -> (Arc<TableScan>, Option<Arc<RuntimeFilters>>) {
        let mut run = self.run.lock();
        if run.scans.is_empty() || !run.started.insert(partition) {
            let runtime = (!self.runtime.is_empty()).then(|| {
                Arc::new(RuntimeFilters::new(self.runtime.clone(), self.projection.clone(), self.table_schema.clone()))
            });
            let request = ScanRequest {
                projection: self.projection.clone(),
                filters: self.filters.clone(),
                dynamic: runtime.clone().map(|source| source as Arc<dyn FilterSource>),
                limit: self.limit,
                batch_rows: context.session_config().batch_size().clamp(1, BATCH_ROWS),
            };
            let scan = match &self.access {
                Some(access) => TableScan::through(self.version.clone(), request, access),
                None => TableScan::new(self.version.clone(), request),
            };
            if let Some(query) = context.session_config().get_extension::<QueryInfo>() {
                query.add_scan(scan.clone());
            }
            run.scans.push((scan, runtime));
            run.started = BTreeSet::from([partition]);
        }
        run.scans.last().cloned().expect("one was added above if there was none")
    }
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

fn column_of(filter: &ColumnFilter) -> usize {
    match filter {
        ColumnFilter::Compare { column, .. }
        | ColumnFilter::In { column, .. }
        | ColumnFilter::IsNull { column }
        | ColumnFilter::IsNotNull { column }
        | ColumnFilter::Function { column, .. } => *column,
    }
}

impl fmt::Debug for TidepoolScanExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TidepoolScanExec")
            .field("table", &self.version.def.name)
            .field("projection", &self.projection)
            .field("filters", &self.filter_expressions)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

impl DisplayAs for TidepoolScanExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> =
            self.projection.iter().map(|&index| self.table_schema.field(index).name().as_str()).collect();
        let list = |expressions: &[Arc<dyn PhysicalExpr>]| {
            expressions.iter().map(|expression| expression.to_string()).collect::<Vec<_>>().join(" AND ")
        };
        let tablespaces = self.tablespaces().into_iter().collect::<Vec<_>>().join(", ");
        if let DisplayFormatType::TreeRender = format {
            writeln!(f, "table={}", self.version.def.name)?;
            if let Some((name, _)) = self.index() {
                writeln!(f, "index={name}")?;
            }
            return writeln!(f, "tablespaces={tablespaces}");
        }
        match self.index() {
            Some((name, columns)) => write!(
                f,
                "TidepoolScanExec: table={}, index={name}, key=[{}], projection=[{}]",
                self.version.def.name,
                columns.join(", "),
                names.join(", ")
            )?,
            None => write!(f, "TidepoolScanExec: table={}, projection=[{}]", self.version.def.name, names.join(", "))?,
        }
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
        let (scan, runtime) = self.start(partition, &context);
        Ok(Box::pin(cooperative(ScanStream {
            schema: self.schema(),
            reader: scan.reader(),
            runtime,
            metrics: BaselineMetrics::new(&self.metrics, partition),
        })))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        let mut set = self.metrics.clone_inner();
        let scan = self.scan_metrics();
        let mut add = |name: Cow<'static, str>, value: u64| {
            let count = Count::new();
            count.add(value as usize);
            set.push(Arc::new(Metric::new(MetricValue::Count { name, count }, None)));
        };
        add("row_groups".into(), scan.row_groups);
        add("row_groups_skipped".into(), scan.row_groups_skipped);
        add("rows_scanned".into(), scan.rows_scanned);
        add("decoded_bytes".into(), scan.decoded_bytes);
        if let Some((_, used)) = &scan.index {
            add("index_lookups".into(), used.lookups);
            add("index_entries".into(), used.entries);
            add("index_bytes".into(), used.touched.bytes_read());
        }
        for (name, bytes, _) in &scan.tablespaces {
            add(format!("{name}_bytes").into(), *bytes);
        }
        for (name, _, stall_ns) in &scan.tablespaces {
            let time = Time::new();
            time.add_duration(Duration::from_nanos(*stall_ns));
            let name = format!("{name}_stall").into();
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
    reader: ScanReader,
    runtime: Option<Arc<RuntimeFilters>>,
    metrics: BaselineMetrics,
}

impl ScanStream {
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let batch = self.reader.next_batch().map_err(crate::errors::carry)?;
            let Some(mut batch) = batch else { return Ok(None) };
            if let Some(runtime) = &self.runtime {
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
