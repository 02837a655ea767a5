//! Subqueries deep within subqueries.
//!
//! DataFusion looks at the plan of a subquery anew for each subquery around it, and at what is in that again: with each level the work
//! doubles. So of more than a few levels the inner ones become leaves: a query that asks nothing of the rows around it a table that is
//! computed once, as a `WITH` query ([`SharedQuery`]) is, another one a function of these rows ([`Apply`](crate::catalog::Apply)), each planned by
//! itself.

use crate::catalog::{applied, outer_columns};
use crate::rewrites::{RewritePlan, RewriteTree};
use crate::with_queries::SharedQuery;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchemaRef, Result};
use datafusion::datasource::provider_as_source;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::expr::{Exists, InSubquery, SetComparison};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, Subquery};
use std::sync::Arc;

/// Levels that DataFusion is given.
const LEVELS_MAX: usize = 4;

/// The same plan, whose subqueries are no more than a few levels deep.
pub fn flatten(state: &SessionState, plan: LogicalPlan) -> Result<LogicalPlan> {
    if levels(&plan)? <= LEVELS_MAX { Ok(plan) } else { Ok(flattened(state, plan)?.0) }
}

fn subquery_of(expr: &Expr) -> Option<&Subquery> {
    match expr {
        Expr::ScalarSubquery(subquery)
        | Expr::Exists(Exists { subquery, .. })
        | Expr::InSubquery(InSubquery { subquery, .. })
        | Expr::SetComparison(SetComparison { subquery, .. }) => Some(subquery),
        _ => None,
    }
}

fn with_plan(expr: Expr, plan: LogicalPlan) -> Expr {
    let of = |subquery: Subquery| Subquery { subquery: Arc::new(plan), ..subquery };
    match expr {
        Expr::ScalarSubquery(subquery) => Expr::ScalarSubquery(of(subquery)),
        Expr::Exists(Exists { subquery, negated }) => Expr::Exists(Exists { subquery: of(subquery), negated }),
        Expr::InSubquery(InSubquery { expr, subquery, negated }) => {
            Expr::InSubquery(InSubquery { expr, subquery: of(subquery), negated })
        }
        Expr::SetComparison(comparison) => {
            let subquery = of(comparison.subquery);
            Expr::SetComparison(SetComparison { subquery, ..comparison })
        }
        other => other,
    }
}

/// Levels of subqueries in a plan.
fn levels(plan: &LogicalPlan) -> Result<usize> {
    let mut most = 0;
    plan.apply(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                if let Some(subquery) = subquery_of(expr) {
                    most = most.max(1 + levels(&subquery.subquery)?);
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(most)
}

/// And how many levels it has then.
fn flattened(state: &SessionState, plan: LogicalPlan) -> Result<(LogicalPlan, usize)> {
    let mut most = 0;
    let plan = plan.rewrite_up(&mut |node| {
        let inputs: Vec<DFSchemaRef> = node.inputs().into_iter().map(|input| input.schema().clone()).collect();
        let names = NamePreserver::new(&node);
        node.rewrite_expressions(&mut |expr| {
            let name = names.save(&expr);
            let flattened = expr.rewrite_up(&mut |expr| {
                let Some(subquery) = subquery_of(&expr) else { return Ok(Transformed::no(expr)) };
                let (plan, own) = flattened(state, Arc::unwrap_or_clone(subquery.subquery.clone()))?;
                if own + 1 < LEVELS_MAX {
                    most = most.max(own + 1);
                    return Ok(Transformed::yes(with_plan(expr, plan)));
                }
                if outer_columns(&plan)?.is_empty()
                    && let Some(shared) = SharedQuery::of(state, "subquery", plan.clone())
                {
                    most = most.max(1);
                    let table = LogicalPlanBuilder::scan("subquery", provider_as_source(Arc::new(shared)), None)?;
                    return Ok(Transformed::yes(with_plan(expr, table.build()?)));
                }
                let expr = with_plan(expr, plan);
                match applied(&inputs, &expr)? {
                    Some(call) => Ok(Transformed::yes(call)),
                    None => {
                        most = most.max(own + 1);
                        Ok(Transformed::yes(expr))
                    }
                }
            })?;
            Ok(flattened.update_data(|expr| name.restore(expr)))
        })
    });
    Ok((plan.data()?, most))
}
