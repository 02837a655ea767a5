//! `ORDER BY` of subqueries in `FROM`, as far as anybody sees it.
//!
//! By the standard such an order means nothing. In PostgreSQL it is the order in which the query around gets its rows, and
//! clients count on that: `SELECT array_agg(x) FROM (SELECT x FROM t ORDER BY y) q`. So what depends on the order of its
//! input is told that order, and a sort stays where its rows reach a limit or the client in its order. Others are left out.

use crate::rewrites::{RewritePlan, RewriteTree};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, Result};
use datafusion::logical_expr::expr::{AggregateFunction, WindowFunction};
use datafusion::logical_expr::{
    Aggregate, Distinct, Expr, Filter, Limit, LogicalPlan, Projection, Sort, SortExpr, SubqueryAlias, Window,
    WindowFrameBound, WindowFrameUnits,
};
use datafusion::optimizer::AnalyzerRule;
use std::sync::Arc;

/// What gives something else for another order of its rows, whichever frame it looks at.
const IN_ORDER: [&str; 9] =
    ["array_agg", "string_agg", "first_value", "last_value", "nth_value", "row_number", "lag", "lead", "ntile"];

#[derive(Debug)]
pub struct SubqueryOrder;

impl AnalyzerRule for SubqueryOrder {
    fn name(&self) -> &str {
        "tidepool_subquery_order"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        let (mut sorts, mut sorts_on_top) = (0, 0);
        plan.apply_with_subqueries(|node| {
            sorts += usize::from(matches!(node, LogicalPlan::Sort(_)));
            Ok(TreeNodeRecursion::Continue)
        })?;
        let mut top = &plan;
        while let LogicalPlan::Projection(_) | LogicalPlan::Sort(_) | LogicalPlan::Limit(_) = top {
            sorts_on_top += usize::from(matches!(top, LogicalPlan::Sort(_)));
            top = top.inputs()[0];
        }
        if sorts == sorts_on_top {
            return Ok(plan);
        }
        let told = plan.rewrite_up_with_subqueries(&mut |node| match node {
            LogicalPlan::Aggregate(aggregate) => aggregate_in_order(aggregate),
            LogicalPlan::Window(window) => window_in_order(window),
            other => Ok(Transformed::no(other)),
        })?;
        without_unseen(told.data, true).data()
    }
}

/// Leaves out sorts whose order nobody sees. `is_seen`: that of the plan's rows is.
fn without_unseen(plan: LogicalPlan, is_seen: bool) -> Result<Transformed<LogicalPlan>> {
    let input_is_seen = match &plan {
        LogicalPlan::Sort(Sort { input, fetch: None, .. }) if !is_seen => {
            let input = without_unseen(input.as_ref().clone(), false)?;
            return Ok(Transformed::yes(input.data));
        }
        LogicalPlan::Sort(_)
        | LogicalPlan::Aggregate(_)
        | LogicalPlan::Join(_)
        | LogicalPlan::Distinct(Distinct::All(_)) => false,
        LogicalPlan::Distinct(Distinct::On(on)) => on.sort_expr.is_none(),
        LogicalPlan::Projection(_)
        | LogicalPlan::Filter(_)
        | LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Window(_)
        | LogicalPlan::Union(_) => is_seen,
        _ => true,
    };
    plan.map_children(|input| without_unseen(input, input_is_seen))?
        .transform_sibling(|plan| plan.map_subqueries(|subquery| without_unseen(subquery, true)))
}

fn aggregate_in_order(aggregate: Aggregate) -> Result<Transformed<LogicalPlan>> {
    let as_is = |aggregate| Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
    let depends = |function: &AggregateFunction| {
        let params = &function.params;
        IN_ORDER.contains(&function.func.name()) && params.order_by.is_empty() && !params.distinct
    };
    let is_told = |expr: &Expr| expr.exists(|expr| Ok(matches!(expr, Expr::AggregateFunction(call) if depends(call))));
    let told = aggregate.aggr_expr.iter().map(is_told).collect::<Result<Vec<_>>>()?;
    if !told.contains(&true) {
        return as_is(aggregate);
    }
    let Some((input, keys)) = rows_in_order(&aggregate.input, false)? else { return as_is(aggregate) };
    let mut tell = |expr: Expr| match expr {
        Expr::AggregateFunction(mut function) if depends(&function) => {
            function.params.order_by.clone_from(&keys);
            Ok(Transformed::yes(Expr::AggregateFunction(function)))
        }
        other => Ok(Transformed::no(other)),
    };
    let calls = aggregate.aggr_expr.into_iter().map(|expr| expr.rewrite_up(&mut tell).data());
    let calls = calls.collect::<Result<Vec<_>>>()?;
    let in_order = Aggregate::try_new(Arc::new(input), aggregate.group_expr, calls)?;
    // The calls' columns are named by their texts, which name the order.
    let outputs = in_order.schema.iter().zip(aggregate.schema.iter()).map(|(is, (qualifier, field))| {
        Expr::Column(Column::from(is)).alias_qualified(qualifier.cloned(), field.name())
    });
    let outputs = outputs.collect();
    let in_order = Arc::new(LogicalPlan::Aggregate(in_order));
    Ok(Transformed::yes(LogicalPlan::Projection(Projection::try_new(outputs, in_order)?)))
}

fn window_in_order(window: Window) -> Result<Transformed<LogicalPlan>> {
    let as_is = |window| Ok(Transformed::no(LogicalPlan::Window(window)));
    let depends = |function: &WindowFunction| {
        let params = &function.params;
        let frame = &params.window_frame;
        let is_whole = matches!(&frame.start_bound, WindowFrameBound::Preceding(bound) if bound.is_null())
            && matches!(&frame.end_bound, WindowFrameBound::Following(bound) if bound.is_null());
        params.order_by.is_empty()
            && frame.units == WindowFrameUnits::Rows
            && (IN_ORDER.contains(&function.fun.name()) || !is_whole)
    };
    let is_told = |expr: &Expr| expr.exists(|expr| Ok(matches!(expr, Expr::WindowFunction(call) if depends(call))));
    let told = window.window_expr.iter().map(is_told).collect::<Result<Vec<_>>>()?;
    if !told.contains(&true) {
        return as_is(window);
    }
    let Some((input, keys)) = rows_in_order(&window.input, true)? else { return as_is(window) };
    let mut tell = |expr: Expr| match expr {
        Expr::WindowFunction(mut function) if depends(&function) => {
            function.params.order_by.clone_from(&keys);
            Ok(Transformed::yes(Expr::WindowFunction(function)))
        }
        other => Ok(Transformed::no(other)),
    };
    let calls = window.window_expr.iter().cloned().map(|expr| expr.rewrite_up(&mut tell).data());
    let calls = calls.collect::<Result<Vec<_>>>()?;
    let (before, now) = (window.input.schema().fields().len(), input.schema().fields().len());
    let in_order = Window::try_new(calls, Arc::new(input))?;
    // Without the order's own columns.
    let columns = in_order.schema.iter().take(before).chain(in_order.schema.iter().skip(now));
    let outputs = columns.zip(window.schema.iter()).map(|(is, (qualifier, field))| {
        Expr::Column(Column::from(is)).alias_qualified(qualifier.cloned(), field.name())
    });
    let outputs = outputs.collect();
    let in_order = Arc::new(LogicalPlan::Window(in_order));
    Ok(Transformed::yes(LogicalPlan::Projection(Projection::try_new(outputs, in_order)?)))
}

/// A plan with the keys that its rows are in order of among its columns, behind those it has anyway, and these keys.
/// `None`: they come in no order. `keeps`: the sort stays where it is.
pub fn rows_in_order(plan: &LogicalPlan, keeps: bool) -> Result<Option<(LogicalPlan, Vec<SortExpr>)>> {
    match plan {
        LogicalPlan::Sort(sort) => {
            let plan = if keeps { plan } else { sort.input.as_ref() };
            Ok(Some((plan.clone(), sort.expr.clone())))
        }
        LogicalPlan::Limit(limit) => {
            let Some((input, keys)) = rows_in_order(&limit.input, true)? else { return Ok(None) };
            Ok(Some((LogicalPlan::Limit(Limit { input: Arc::new(input), ..limit.clone() }), keys)))
        }
        LogicalPlan::Filter(filter) => {
            let Some((input, keys)) = rows_in_order(&filter.input, keeps)? else { return Ok(None) };
            let filter = Filter::try_new(filter.predicate.clone(), Arc::new(input))?;
            Ok(Some((LogicalPlan::Filter(filter), keys)))
        }
        LogicalPlan::SubqueryAlias(alias) => {
            let Some((input, keys)) = rows_in_order(&alias.input, keeps)? else { return Ok(None) };
            let schema = input.schema().clone();
            let alias = SubqueryAlias::try_new(Arc::new(input), alias.alias.clone())?;
            let renamed = |column: Column| {
                let place = schema.index_of_column(&column)?;
                Ok(Column::from(alias.schema.qualified_field(place)))
            };
            let keys = keys.into_iter().map(|key| over_columns(key, &renamed)).collect::<Result<Vec<_>>>()?;
            Ok(Some((LogicalPlan::SubqueryAlias(alias), keys)))
        }
        LogicalPlan::Projection(projection) => {
            let Some((input, keys)) = rows_in_order(&projection.input, keeps)? else { return Ok(None) };
            let mut outputs = projection.expr.clone();
            let places: Vec<usize> = keys
                .iter()
                .map(|key| {
                    let known = outputs.iter().position(|output| output.clone().unalias() == key.expr);
                    known.unwrap_or_else(|| {
                        outputs.push(key.expr.clone().alias(format!("\u{1}order {}", outputs.len())));
                        outputs.len() - 1
                    })
                })
                .collect();
            let projection = Projection::try_new(outputs, Arc::new(input))?;
            let column = |place: usize| Expr::Column(Column::from(projection.schema.qualified_field(place)));
            let keys = keys.into_iter().zip(places).map(|(key, place)| SortExpr { expr: column(place), ..key });
            Ok(Some((LogicalPlan::Projection(projection.clone()), keys.collect())))
        }
        _ => Ok(None),
    }
}

fn over_columns(key: SortExpr, renamed: &impl Fn(Column) -> Result<Column>) -> Result<SortExpr> {
    let expr = key.expr.rewrite_up(&mut |expr| match expr {
        Expr::Column(column) => Ok(Transformed::yes(Expr::Column(renamed(column)?))),
        other => Ok(Transformed::no(other)),
    });
    Ok(SortExpr { expr: expr.data()?, ..key })
}
