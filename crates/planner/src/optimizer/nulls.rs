//! NULL where DataFusion's simplification forgets it.
//!
//! Some of its rules hold for values only, or for what is written alike: equations of one column with one constant, what lists of one expression come to together ([`lists`]), `x # x` is 0,
//! and every text matches `.*`. What they would take wrongly is written so that NULL is seen to before they come.

use super::lists;
use crate::rewrites::{RewritePlan, RewriteTree};
use chrono::{DateTime, Utc};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, DFSchemaRef, Result, ScalarValue};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{BinaryExpr, Cast, Expr, LogicalPlan, Operator, lit, when};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};
use std::sync::Arc;

/// To be run right before each of DataFusion's `simplify_expressions`.
#[derive(Debug)]
pub struct Nulls;

impl OptimizerRule for Nulls {
    fn name(&self) -> &str {
        "tidepool_nulls"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let mut forgets = false;
        plan.apply_expressions(|expr| {
            forgets = forgets
                || expr.exists(|expr| {
                    Ok(is_any_text(expr) || xored(expr).is_some() || lists::may_meet(expr) || is_unlike_others(expr))
                })?;
            Ok(TreeNodeRecursion::Continue)
        })?;
        if !forgets {
            return Ok(Transformed::no(plan));
        }
        let names = NamePreserver::new(&plan);
        let simplifier = simplifier(&plan, config.options(), config.query_execution_start_time())?;
        plan.rewrite_expressions(&mut |expr| {
            let name = names.save(&expr);
            let expr = expr.rewrite_up(&mut |expr| remembered(expr, &simplifier))?;
            Ok(expr.update_data(|expr| name.restore(expr)))
        })
    }
}

/// Simplifies a node's expressions, of a statement that began at `now`.
pub(crate) fn simplifier(
    plan: &LogicalPlan,
    options: Arc<ConfigOptions>,
    now: Option<DateTime<Utc>>,
) -> Result<ExprSimplifier> {
    let context = SimplifyContext::builder().with_schema(schema_beneath(plan)?).with_config_options(options);
    Ok(ExprSimplifier::new(context.with_query_execution_start_time(now).build()))
}

/// What the names in a node's expressions stand for.
fn schema_beneath(plan: &LogicalPlan) -> Result<DFSchemaRef> {
    match plan {
        // Its filters may name columns that leave it for nobody.
        LogicalPlan::TableScan(scan) => {
            DFSchema::try_from_qualified_schema(scan.table_name.clone(), &scan.source.schema()).map(Arc::new)
        }
        plan => Ok(match plan.inputs()[..] {
            [input] => input.schema().clone(),
            _ => Arc::new(merge_schema(&plan.inputs())),
        }),
    }
}

/// Whether it matches a text with what every text is.
fn is_any_text(expr: &Expr) -> bool {
    let Expr::BinaryExpr(BinaryExpr { op: Operator::RegexMatch | Operator::RegexIMatch, right, .. }) = expr else {
        return false;
    };
    let pattern = match right.as_ref() {
        Expr::Cast(cast) => cast.expr.as_ref(),
        pattern => pattern,
    };
    matches!(pattern, Expr::Literal(pattern, _) if pattern.try_as_str() == Some(Some(".*")))
}

/// What is once more among what it is xored with.
fn xored(expr: &Expr) -> Option<&Expr> {
    fn is_among(needle: &Expr, expr: &Expr) -> bool {
        match expr {
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::BitwiseXor, right }) => {
                is_among(needle, left) || is_among(needle, right)
            }
            expr => expr == needle,
        }
    }
    let Expr::BinaryExpr(BinaryExpr { left, op: Operator::BitwiseXor, right }) = expr else { return None };
    if is_among(right, left) {
        return Some(right);
    }
    is_among(left, right).then_some(left)
}

/// Whether it is an equation with a constant that is not written as others are: turned around, or with more said of the constant than its
/// value. Of equations of one column that are not written alike DataFusion takes no row to fulfil both.
fn is_unlike_others(expr: &Expr) -> bool {
    let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = expr else { return false };
    match (constant(left), constant(right)) {
        (Some(_), None) => true,
        (None, Some(is_marked)) => is_marked,
        _ => false,
    }
}

/// Whether a constant, if it is one, has more said of it than its value.
fn constant(expr: &Expr) -> Option<bool> {
    match expr {
        Expr::Literal(_, said) => Some(said.is_some()),
        Expr::Cast(cast) => constant(&cast.expr),
        _ => None,
    }
}

/// A constant of which only its value is said.
fn unmarked(expr: Expr) -> Expr {
    match expr {
        Expr::Literal(value, _) => Expr::Literal(value, None),
        Expr::Cast(Cast { expr, field }) => Expr::Cast(Cast { expr: Box::new(unmarked(*expr)), field }),
        expr => expr,
    }
}

/// What is to be simplified next, such that NULL is not forgotten.
pub(crate) fn seen_to(expr: Expr, simplifier: &ExprSimplifier) -> Result<Expr> {
    Ok(expr.rewrite_up(&mut |expr| remembered(expr, simplifier))?.data)
}

fn remembered(expr: Expr, simplifier: &ExprSimplifier) -> Result<Transformed<Expr>> {
    if lists::may_meet(&expr) {
        return lists::put_together(expr, &|part| simplifier.simplify(part));
    }
    if let Some(twice) = xored(&expr) {
        return when(twice.clone().is_not_null(), expr.clone()).end().map(Transformed::yes);
    }
    if is_unlike_others(&expr)
        && let Expr::BinaryExpr(BinaryExpr { left, op, right }) = expr
    {
        let (value, constant) = if constant(&left).is_some() { (right, left) } else { (left, right) };
        return Ok(Transformed::yes(Expr::BinaryExpr(BinaryExpr::new(value, op, Box::new(unmarked(*constant))))));
    }
    let is_any_text = is_any_text(&expr);
    Ok(match expr {
        Expr::BinaryExpr(BinaryExpr { left, .. }) if is_any_text => {
            Transformed::yes(left.is_not_null().or(lit(ScalarValue::Boolean(None))))
        }
        expr => Transformed::no(expr),
    })
}
