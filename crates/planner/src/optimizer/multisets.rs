//! `INTERSECT ALL` and `EXCEPT ALL`, which count how often a row is there.
//!
//! DataFusion 55 makes semi and anti joins of them, which keep or drop all rows that are alike. With the number that each has among
//! those like it beside it, a row of one side meets at most one of the other.

use crate::rewrites::RewritePlan;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::common::{Column, JoinType, NullEquality, Result};
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::{Distinct, Expr, ExprFunctionExt, Join, LogicalPlan, LogicalPlanBuilder};
use datafusion::optimizer::AnalyzerRule;
use std::sync::Arc;

/// No column of anybody's.
const NUMBER: &str = "\u{1}number";

/// Goes before any rule that makes joins of its own.
#[derive(Debug)]
pub struct Multisets;

impl AnalyzerRule for Multisets {
    fn name(&self) -> &str {
        "multisets"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        plan.rewrite_up_with_subqueries(&mut |node| match node {
            LogicalPlan::Join(join) if is_multiset_operation(&join) => numbered(join).map(Transformed::yes),
            node => Ok(Transformed::no(node)),
        })
        .data()
    }
}

/// Nothing else makes such joins before the optimizer does. Without `ALL`, the left side's rows are distinct.
fn is_multiset_operation(join: &Join) -> bool {
    matches!(join.join_type, JoinType::LeftSemi | JoinType::LeftAnti)
        && join.null_equality == NullEquality::NullEqualsNull
        && join.filter.is_none()
        && join.on.len() == join.left.schema().fields().len()
        && !matches!(join.left.as_ref(), LogicalPlan::Distinct(Distinct::All(_)))
}

fn numbered(join: Join) -> Result<LogicalPlan> {
    let columns = |side: &LogicalPlan| side.schema().columns().into_iter().map(Expr::Column).collect::<Vec<_>>();
    let outputs = columns(&join.left);
    let side = |side: &LogicalPlan| -> Result<Arc<LogicalPlan>> {
        let number = row_number().partition_by(columns(side)).build()?;
        let plan = LogicalPlanBuilder::from(side.clone()).window([number])?.build()?;
        let last = plan.schema().fields().len() - 1;
        let number = Expr::Column(Column::from(plan.schema().qualified_field(last))).alias(NUMBER);
        let outputs: Vec<Expr> = columns(side).into_iter().chain([number]).collect();
        Ok(Arc::new(LogicalPlanBuilder::from(plan).project(outputs)?.build()?))
    };
    let number = || Expr::Column(Column::new_unqualified(NUMBER));
    let (left, right) = (side(&join.left)?, side(&join.right)?);
    let on = join.on.into_iter().chain([(number(), number())]).collect();
    let joined = Join::try_new(
        left,
        right,
        on,
        None,
        join.join_type,
        join.join_constraint,
        join.null_equality,
        join.null_aware,
    )?;
    LogicalPlanBuilder::from(LogicalPlan::Join(joined)).project(outputs)?.build()
}
