//! Plan nodes that let batches through: what watches, stops or charges an operator without changing what it makes.

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result as PlanResult, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use std::fmt;
use std::sync::Arc;

/// What a [`PassExec`] does as batches pass. It must let every batch of its input through, in order.
pub(crate) trait Passage: fmt::Debug + Send + Sync + 'static {
    /// Name of the plan node.
    fn name(&self) -> &'static str;

    /// The node's line in `EXPLAIN`; `None` leaves the node out.
    fn label(&self) -> Option<String> {
        None
    }

    fn metrics(&self) -> Option<MetricsSet> {
        None
    }

    /// Lines of `EXPLAIN ANALYZE` about the operator beneath.
    fn details(&self, _verbose: bool) -> Vec<String> {
        Vec::new()
    }

    fn execute(
        &self,
        input: &dyn ExecutionPlan,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> PlanResult<SendableRecordBatchStream>;
}

/// An operator that looks to its neighbours as its input does.
pub(crate) struct PassExec {
    input: Arc<dyn ExecutionPlan>,
    passage: Arc<dyn Passage>,
}

impl PassExec {
    pub(crate) fn over(input: Arc<dyn ExecutionPlan>, passage: Arc<dyn Passage>) -> Arc<dyn ExecutionPlan> {
        Arc::new(PassExec { input, passage })
    }

    pub(crate) fn is_hidden(&self) -> bool {
        self.passage.label().is_none()
    }

    pub(crate) fn details(&self, verbose: bool) -> Vec<String> {
        self.passage.details(verbose)
    }
}

impl fmt::Debug for PassExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.passage.fmt(f)
    }
}

impl DisplayAs for PassExec {
    fn fmt_as(&self, _format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.passage.label().unwrap_or_else(|| self.passage.name().to_owned()))
    }
}

impl ExecutionPlan for PassExec {
    fn name(&self) -> &str {
        self.passage.name()
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
            Some(input) => Ok(PassExec::over(input, self.passage.clone())),
            None => datafusion::common::internal_err!("{} needs an input", self.passage.name()),
        }
    }

    fn metrics(&self) -> Option<MetricsSet> {
        self.passage.metrics()
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
        self.passage.execute(self.input.as_ref(), partition, context)
    }
}
