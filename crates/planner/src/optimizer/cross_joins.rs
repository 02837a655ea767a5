//! DataFusion's rule that joins relations by the conditions of `WHERE`, kept from joins that take NULL for equal to NULL.
//!
//! It takes inner joins apart and puts them together again, all with what the topmost says of NULLs.

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{JoinType, NullEquality, Result};
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};
use std::sync::Arc;

#[derive(Debug)]
pub struct CrossJoins(pub Arc<dyn OptimizerRule + Send + Sync>);

impl OptimizerRule for CrossJoins {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let is_null_safe = plan.exists(|node| {
            Ok(matches!(node, LogicalPlan::Join(join)
                if join.join_type == JoinType::Inner && join.null_equality == NullEquality::NullEqualsNull))
        })?;
        if is_null_safe { Ok(Transformed::no(plan)) } else { self.0.rewrite(plan, config) }
    }
}
