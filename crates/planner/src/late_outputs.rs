//! Outputs of volatile functions beside an order: PostgreSQL computes them after it has sorted, in that order, and of the rows that a limit
//! leaves alone.

use crate::rewrites::{RewritePlan, RewriteTree};
use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::common::{Column, Result};
use datafusion::logical_expr::expr::Sort as SortKey;
use datafusion::logical_expr::{Expr, LogicalPlan, Projection, Sort};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Computes such outputs above the sorts, in a query and all within it.
pub fn settle(plan: LogicalPlan) -> Result<LogicalPlan> {
    plan.rewrite_up_with_subqueries(&mut |node| match node {
        LogicalPlan::Sort(sort) => late(sort),
        node => Ok(Transformed::no(node)),
    })
    .data()
}

fn late(sort: Sort) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Projection(outputs) = sort.input.as_ref() else {
        return Ok(Transformed::no(LogicalPlan::Sort(sort)));
    };
    let place = |column: &Column| outputs.schema.maybe_index_of_column(column);
    let sorted: BTreeSet<usize> = sort.expr.iter().flat_map(|key| key.expr.column_refs()).filter_map(place).collect();
    let is_late = |place: usize| {
        let output = &outputs.expr[place];
        !sorted.contains(&place) && output.is_volatile() && !crate::optimizer::has_query(output)
    };
    let places: Vec<usize> = (0..outputs.expr.len()).filter(|place| is_late(*place)).collect();
    if places.is_empty() {
        return Ok(Transformed::no(LogicalPlan::Sort(sort)));
    }
    let needed: BTreeSet<&Column> = places.iter().flat_map(|place| outputs.expr[*place].column_refs()).collect();
    let needed: Vec<&Column> = needed.into_iter().collect();
    let name = |place: usize| format!("\u{1}late{place}");
    // The keys are columns of their own that nothing above has: where all keys are outputs, a rule of DataFusion's moves what is above a sort
    // below it.
    let key_name = |place: usize| format!("\u{1}key{place}");
    let output_of = |column: &Column| place(column).map(|place| outputs.expr[place].clone().unalias_nested().data);
    let key = |(place, key): (usize, &SortKey)| {
        let of_input = key.expr.clone().rewrite_down(&mut |expr| match &expr {
            Expr::Column(column) => Ok(match output_of(column) {
                Some(output) => Transformed::new(output, true, datafusion::common::tree_node::TreeNodeRecursion::Jump),
                None => Transformed::no(expr),
            }),
            _ => Ok(Transformed::no(expr)),
        })?;
        Ok(of_input.data.alias(key_name(place)))
    };
    let mut inner: Vec<Expr> = (0..outputs.expr.len())
        .filter(|place| !places.contains(place))
        .map(|place| outputs.expr[place].clone())
        .collect();
    inner.extend(needed.iter().enumerate().map(|(place, column)| Expr::Column((*column).clone()).alias(name(place))));
    inner.extend(sort.expr.iter().enumerate().map(key).collect::<Result<Vec<Expr>>>()?);
    let outer = (0..outputs.expr.len()).map(|place| {
        let (qualifier, field) = outputs.schema.qualified_field(place);
        if !places.contains(&place) {
            return Ok(Expr::Column(Column::from((qualifier, field))));
        }
        let computed = outputs.expr[place].clone().unalias().rewrite_up(&mut |expr| match &expr {
            Expr::Column(column) => Ok(match needed.iter().position(|known| *known == column) {
                Some(at) => Transformed::yes(Expr::Column(Column::new_unqualified(name(at)))),
                None => Transformed::no(expr),
            }),
            _ => Ok(Transformed::no(expr)),
        })?;
        Ok(computed.data.alias_qualified(qualifier.cloned(), field.name()))
    });
    let outer = outer.collect::<Result<Vec<Expr>>>()?;
    let keys = sort
        .expr
        .iter()
        .enumerate()
        .map(|(place, key)| SortKey { expr: Expr::Column(Column::new_unqualified(key_name(place))), ..key.clone() });
    let keys = keys.collect();
    let inner = LogicalPlan::Projection(Projection::try_new(inner, outputs.input.clone())?);
    let sorted = LogicalPlan::Sort(Sort { expr: keys, input: Arc::new(inner), fetch: sort.fetch });
    Ok(Transformed::yes(LogicalPlan::Projection(Projection::try_new(outer, Arc::new(sorted))?)))
}
