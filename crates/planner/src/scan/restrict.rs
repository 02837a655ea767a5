//! A plan that ran, to be run again for some rows of the tables that its statement changes or locks.

use super::TidepoolScanExec;
use crate::rewrites::RewriteTree;
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use datafusion::physical_plan::scalar_subquery::ScalarSubqueryExec;
use std::sync::Arc;
use tidepool_base::RowId;
use tidepool_table::TableVersion;

/// Whether [`restricted`] can make a plan of this one; or, unless it has `ended`, while it runs.
pub fn can_restrict(plan: &Arc<dyn ExecutionPlan>, ended: bool) -> bool {
    let mut can = true;
    let found = plan.apply(|node| {
        // What the one has worked out, and the results of the other, are the plan's and not a run's.
        let keeps = node.is::<RecursiveQueryExec>() || !ended && node.is::<ScalarSubqueryExec>();
        can &= !keeps;
        Ok(if can { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    });
    found.is_ok() && can
}

/// The same plan, of each target some rows alone: by ascending ids, as a version has them. Of other tables it reads what
/// it read before. What joins learnt of rows while the plan ran holds for other rows, and is left out.
pub fn restricted(
    plan: &Arc<dyn ExecutionPlan>,
    targets: &[(Arc<TableVersion>, Vec<RowId>)],
) -> Result<Arc<dyn ExecutionPlan>> {
    let mut restart = |node: Arc<dyn ExecutionPlan>| {
        let Some(scan) = node.downcast_ref::<TidepoolScanExec>() else {
            return node.reset_state().map(Transformed::yes);
        };
        let rows = scan.target().and_then(|target| targets.get(target));
        let scan = scan.restarted(rows.map(|(version, rows)| (version, rows.as_slice())));
        Ok(Transformed::yes(Arc::new(scan) as Arc<dyn ExecutionPlan>))
    };
    plan.clone().rewrite_up(&mut restart).data()
}
