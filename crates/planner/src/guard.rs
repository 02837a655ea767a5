//! Cancel and timeouts inside operators that work long without yielding.
//!
//! A join can make billions of rows that the operator above it swallows within one poll, where nobody asks whether the
//! statement is still wanted. Above each join sits a [`GuardExec`], which asks once a batch.

use crate::errors::{carry, from_datafusion};
use crate::interrupt::Interrupt;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result as PlanResult, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, ReplaceChildrenOptions,
};
use futures::StreamExt;
use std::fmt;
use std::sync::Arc;
use tidepool_base::Result;

/// Name of the plan node, which `EXPLAIN` leaves out.
pub const NAME: &str = "GuardExec";

/// Puts guards above a plan's joins.
pub fn wrap(plan: Arc<dyn ExecutionPlan>, interrupt: &Arc<Interrupt>) -> Result<Arc<dyn ExecutionPlan>> {
    rewrite(plan, interrupt).map_err(from_datafusion)
}

fn rewrite(plan: Arc<dyn ExecutionPlan>, interrupt: &Arc<Interrupt>) -> PlanResult<Arc<dyn ExecutionPlan>> {
    let before: Vec<Arc<dyn ExecutionPlan>> = plan.children().into_iter().cloned().collect();
    let after = before.iter().map(|child| rewrite(child.clone(), interrupt)).collect::<PlanResult<Vec<_>>>()?;
    let plan = if before.iter().zip(&after).all(|(before, after)| Arc::ptr_eq(before, after)) {
        plan
    } else {
        plan.replace_children(after, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep))?
    };
    let join = plan.is::<NestedLoopJoinExec>()
        || plan.is::<CrossJoinExec>()
        || plan.is::<HashJoinExec>()
        || plan.is::<SortMergeJoinExec>();
    Ok(if join { Arc::new(GuardExec { input: plan, interrupt: interrupt.clone() }) } else { plan })
}

struct GuardExec {
    input: Arc<dyn ExecutionPlan>,
    interrupt: Arc<Interrupt>,
}

impl fmt::Debug for GuardExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAME)
    }
}

impl DisplayAs for GuardExec {
    fn fmt_as(&self, _format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(NAME)
    }
}

impl ExecutionPlan for GuardExec {
    fn name(&self) -> &str {
        NAME
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
            Some(input) => Ok(Arc::new(GuardExec { input, interrupt: self.interrupt.clone() })),
            None => datafusion::common::internal_err!("GuardExec needs an input"),
        }
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
        let interrupt = self.interrupt.clone();
        let input = self.input.execute(partition, context)?;
        let schema = input.schema();
        let guarded = input.map(move |batch| interrupt.check().map_err(carry).and(batch));
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, guarded)))
    }
}
