//! Aggregates of columns that a query around has: they are that query's, whose rows they are over, and not of the query they stand in.
//!
//! A query of nothing but one such expression is written out as the expression. DataFusion would take others for aggregates of the query they stand
//! in, one for each row around it; they are refused.

use crate::walk::{names_column, walk, walk_mut};
use datafusion::common::Result as PlanResult;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr as PlanExpr, LogicalPlan};
use datafusion::sql::sqlparser::ast::{Expr, GroupByExpr, Query, Select, SelectItem, SetExpr, Visitor, VisitorMut};
use std::ops::ControlFlow;
use tidepool_base::{Error, Result};

/// Writes out queries of one expression over aggregates of columns around them.
pub fn write_out(query: &mut Query, state: &SessionState) {
    let _ = walk_mut(query, &mut Subqueries { state });
}

struct Subqueries<'s> {
    state: &'s SessionState,
}

impl VisitorMut for Subqueries<'_> {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Subquery(query) = expr
            && let Some(only) = only_expression(query)
            && walk(only, &mut Aggregates { state: self.state, depth: 0 }).is_break()
        {
            *expr = Expr::Nested(Box::new(only.clone()));
        }
        ControlFlow::Continue(())
    }
}

/// The one output of a query that reads nothing. All columns in it are those of queries around.
fn only_expression(query: &Query) -> Option<&Expr> {
    let Query { with: None, order_by: None, limit_clause: None, fetch: None, body, .. } = query else { return None };
    let SetExpr::Select(select) = body.as_ref() else { return None };
    let Select { from, selection: None, having: None, distinct: None, group_by, projection, .. } = select.as_ref()
    else {
        return None;
    };
    let is_all = from.is_empty() && matches!(group_by, GroupByExpr::Expressions(keys, _) if keys.is_empty());
    match projection.as_slice() {
        [SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }] if is_all => Some(expr),
        _ => None,
    }
}

/// Stops at an aggregate of columns.
struct Aggregates<'s> {
    state: &'s SessionState,
    depth: usize,
}

impl Visitor for Aggregates<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if self.depth == 0
            && let Expr::Function(function) = expr
            && function.over.is_none()
            && let Some(name) = function.name.0.last().and_then(|part| part.as_ident())
            && self.state.aggregate_functions().contains_key(&crate::statement::fold(name))
            && names_column(&function.args)
        {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

/// 0A000 for an aggregate of nothing but columns of a query around.
pub fn check(plan: &LogicalPlan) -> Result<()> {
    let mut found = false;
    let looked: PlanResult<TreeNodeRecursion> = plan.apply_with_subqueries(|node| {
        if let LogicalPlan::Aggregate(aggregate) = node {
            for expr in &aggregate.aggr_expr {
                found |= is_of_outer(expr)?;
            }
        }
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    looked.map_err(crate::errors::from_datafusion)?;
    match found {
        true => Err(Error::unsupported("aggregates of an outer query's columns are not supported in a subquery")),
        false => Ok(()),
    }
}

fn is_of_outer(expr: &PlanExpr) -> PlanResult<bool> {
    let mut is_of_outer = false;
    expr.apply(|part| {
        let PlanExpr::AggregateFunction(function) = part else { return Ok(TreeNodeRecursion::Continue) };
        let (mut outer, mut own) = (false, false);
        for argument in &function.params.args {
            outer |= argument.exists(|part| Ok(matches!(part, PlanExpr::OuterReferenceColumn(..))))?;
            own |=
                argument.exists(|part| Ok(matches!(part, PlanExpr::Column(_)) || crate::optimizer::has_query(part)))?;
        }
        is_of_outer |= outer && !own;
        Ok(TreeNodeRecursion::Jump)
    })?;
    Ok(is_of_outer)
}
