//! Plans whose expressions are rewritten, and what is asked of those everywhere.

use crate::rewrites::{Rewrite, RewritePlan, RewriteTree};
use arrow::datatypes::{DataType, Field, TimeUnit};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, LogicalPlan, Operator, lit};
use std::sync::LazyLock;
use tidepool_heap::QueryHeap;

/// A point in time, as every expression has it.
pub static INSTANT: LazyLock<DataType> =
    LazyLock::new(|| QueryHeap::outside(|| DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))));

/// Rewrites the expressions of a node, keeping output names. Of grouping sets each key by itself: only as they are are they known for
/// what they are.
pub fn map_expressions(plan: LogicalPlan, rewrite: Rewrite<Expr>) -> Result<Transformed<LogicalPlan>> {
    let names = NamePreserver::new(&plan);
    let mut named = |expr: Expr| {
        let name = names.save(&expr);
        Ok(rewrite(expr)?.update_data(|expr| name.restore(expr)))
    };
    plan.rewrite_expressions(&mut |expr| match expr {
        sets @ Expr::GroupingSet(_) => sets.map_children(&mut named),
        expr => named(expr),
    })
}

/// Rewrites every expression of a plan, children first, keeping output names.
pub fn rewrite_plan(
    plan: LogicalPlan,
    rewrite: &dyn Fn(Expr, &DFSchema) -> Result<Transformed<Expr>>,
) -> Result<LogicalPlan> {
    let rewritten = plan.rewrite_up_with_subqueries(&mut |plan| {
        let mut schema = merge_schema(&plan.inputs());
        if let LogicalPlan::TableScan(scan) = &plan {
            schema.merge(&DFSchema::try_from_qualified_schema(scan.table_name.clone(), &scan.source.schema())?);
        }
        let plan = map_expressions(plan, &mut |expr| expr.rewrite_up(&mut |expr| rewrite(expr, &schema)))?;
        if plan.transformed { plan.map_data(LogicalPlan::recompute_schema) } else { Ok(plan) }
    })?;
    Ok(rewritten.data)
}

pub fn is_comparison(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

pub(super) fn metadata(field: &Field) -> datafusion::common::metadata::FieldMetadata {
    datafusion::common::metadata::FieldMetadata::from(field)
}

/// A NULL of no type, for columns without a default.
pub fn null() -> Expr {
    lit(ScalarValue::Null)
}
