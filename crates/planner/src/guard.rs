//! Cancel and timeouts inside operators that work long without yielding.
//!
//! A join can make billions of rows that the operator above it swallows within one poll, where nobody asks whether the
//! statement is still wanted; and so can an aggregate, a sort or a window swallow what it is given. Above each join, and beneath each
//! operator that takes all its rows before it gives one, sits a guard, which asks once a batch, and hands the worker on to
//! whoever waits for it from time to time.

use crate::errors::{carry, from_datafusion};
use crate::interrupt::Interrupt;
use crate::pass::{PassExec, Passage};
use datafusion::common::Result as PlanResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coop::cooperative;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions};
use futures::StreamExt;
use std::fmt;
use std::sync::Arc;
use tidepool_base::Result;
use tidepool_heap::QueryHeap;

/// Puts guards above a plan's joins, and beneath what takes all its rows before it gives one.
pub fn wrap(plan: Arc<dyn ExecutionPlan>, interrupt: &Arc<Interrupt>) -> Result<Arc<dyn ExecutionPlan>> {
    let guard: Arc<dyn Passage> = Arc::new(Guard(interrupt.clone()));
    rewrite(plan, &guard).map_err(from_datafusion)
}

fn rewrite(plan: Arc<dyn ExecutionPlan>, guard: &Arc<dyn Passage>) -> PlanResult<Arc<dyn ExecutionPlan>> {
    let before: Vec<Arc<dyn ExecutionPlan>> = plan.children().into_iter().cloned().collect();
    let swallows = plan.is::<AggregateExec>()
        || plan.is::<SortExec>()
        || plan.is::<WindowAggExec>()
        || plan.is::<BoundedWindowAggExec>();
    let rewritten = |child: &Arc<dyn ExecutionPlan>| {
        let child = rewrite(child.clone(), guard)?;
        Ok(if swallows && !child.is::<PassExec>() { PassExec::over(child, guard.clone()) } else { child })
    };
    let after = before.iter().map(rewritten).collect::<PlanResult<Vec<_>>>()?;
    let plan = if before.iter().zip(&after).all(|(before, after)| Arc::ptr_eq(before, after)) {
        plan
    } else {
        plan.replace_children(after, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep))?
    };
    let join = plan.is::<NestedLoopJoinExec>()
        || plan.is::<CrossJoinExec>()
        || plan.is::<HashJoinExec>()
        || plan.is::<SortMergeJoinExec>();
    Ok(if join { PassExec::over(plan, guard.clone()) } else { plan })
}

struct Guard(Arc<Interrupt>);

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Passage for Guard {
    fn name(&self) -> &'static str {
        "GuardExec"
    }

    fn execute(
        &self,
        input: &dyn ExecutionPlan,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> PlanResult<SendableRecordBatchStream> {
        let interrupt = self.0.clone();
        let input = input.execute(partition, context)?;
        let schema = input.schema();
        let asked = move || {
            interrupt.check()?;
            // What swallows rows may have come to the end of the statement's memory, too.
            QueryHeap::current().map_or(Ok(()), |heap| heap.check())
        };
        let guarded = input.map(move |batch| asked().map_err(carry).and(batch));
        Ok(Box::pin(cooperative(RecordBatchStreamAdapter::new(schema, guarded))))
    }
}
