//! Rewrites of DataFusion's trees.
//!
//! DataFusion compiles a walk over an expression or a plan for every closure that is handed to `TreeNode`'s methods. These are compiled
//! once for each kind of tree.

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::{Expr, LogicalPlan};

/// What is done at each node.
pub type Rewrite<'r, T> = &'r mut dyn FnMut(T) -> Result<Transformed<T>>;

pub trait RewriteTree: TreeNode {
    /// [`TreeNode::transform_up`].
    #[allow(clippy::disallowed_methods)]
    fn rewrite_up(self, rewrite: Rewrite<Self>) -> Result<Transformed<Self>> {
        self.transform_up(rewrite)
    }

    /// [`TreeNode::transform_down`].
    #[allow(clippy::disallowed_methods)]
    fn rewrite_down(self, rewrite: Rewrite<Self>) -> Result<Transformed<Self>> {
        self.transform_down(rewrite)
    }
}

impl<T: TreeNode> RewriteTree for T {}

pub trait RewritePlan: Sized {
    /// [`LogicalPlan::transform_up_with_subqueries`].
    fn rewrite_up_with_subqueries(self, rewrite: Rewrite<LogicalPlan>) -> Result<Transformed<LogicalPlan>>;

    /// [`LogicalPlan::transform_down_with_subqueries`].
    fn rewrite_down_with_subqueries(self, rewrite: Rewrite<LogicalPlan>) -> Result<Transformed<LogicalPlan>>;

    /// [`LogicalPlan::map_expressions`].
    fn rewrite_expressions(self, rewrite: Rewrite<Expr>) -> Result<Transformed<LogicalPlan>>;
}

#[allow(clippy::disallowed_methods)]
impl RewritePlan for LogicalPlan {
    fn rewrite_up_with_subqueries(self, rewrite: Rewrite<LogicalPlan>) -> Result<Transformed<LogicalPlan>> {
        self.transform_up_with_subqueries(rewrite)
    }

    fn rewrite_down_with_subqueries(self, rewrite: Rewrite<LogicalPlan>) -> Result<Transformed<LogicalPlan>> {
        self.transform_down_with_subqueries(rewrite)
    }

    fn rewrite_expressions(self, rewrite: Rewrite<Expr>) -> Result<Transformed<LogicalPlan>> {
        self.map_expressions(rewrite)
    }
}
