//! `LATERAL` subqueries that DataFusion cannot turn into joins: those that read nothing are computed beside the rows before them;
//! others are unnested, or there is a list of their rows for each row before them.

use super::apply::{Apply, Kind};
use super::pull_up::{Asked, can_pull_up, lateral, outer_columns};
use super::unnesting::unnest;
use crate::optimizer::has_query;
use crate::rewrites::RewriteTree;
use datafusion::arrow::datatypes::{DataType, Field, Fields};
use datafusion::common::metadata::FieldMetadata;
use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::common::{Column, DFSchema, ExprSchema, NullHandling, Result, ScalarValue, UnnestOptions};
use datafusion::functions::core::expr_fn::get_field;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, Filter, Join, JoinType, LogicalPlan, LogicalPlanBuilder, SubqueryAlias};
use std::sync::Arc;

/// A join with such a subquery, as lists of rows that are unnested; others as they are.
pub fn as_lists(join: Join) -> Result<Transformed<LogicalPlan>> {
    let as_is = |join| Ok(Transformed::no(LogicalPlan::Join(join)));
    let Some(subquery) = lateral(&join.right) else { return as_is(join) };
    let columns = outer_columns(&subquery.subquery)?;
    let is_own = |(column, _): &(Column, Expr)| join.left.schema().has_column(column);
    // Columns of a query around both are put in their place when that one is seen to.
    let is_plain = join.on.is_empty() && matches!(join.join_type, JoinType::Inner | JoinType::Left);
    if columns.is_empty() || !columns.iter().all(is_own) || !is_plain {
        return as_is(join);
    }
    if can_pull_up(subquery, Asked::Rows)? {
        return as_is(join);
    }

    if let Ok(Some(plan)) = without_from(&join, &subquery.subquery) {
        return Ok(Transformed::yes(plan));
    }
    let rows = match join.right.as_ref() {
        LogicalPlan::SubqueryAlias(named) => {
            LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(subquery.subquery.clone(), named.alias.clone())?)
        }
        _ => subquery.subquery.as_ref().clone(),
    };
    let (left, shown) = (join.left.schema().clone(), rows.schema().clone());
    let rows = match join.filter {
        Some(condition) => {
            LogicalPlanBuilder::from(rows).filter(seen_from_within(condition, &left, &shown)?)?.build()?
        }
        None => rows,
    };
    if let Some(unnested) = unnest(&join.left, &rows, true)? {
        let outputs = left.columns().into_iter().chain(shown.columns()).map(Expr::Column);
        let joined = unnested.join(join.left.as_ref().clone(), join.join_type)?;
        return LogicalPlanBuilder::from(joined).project(outputs)?.build().map(Transformed::yes);
    }
    let columns: Vec<Column> = outer_columns(&rows)?.into_iter().map(|(column, _)| column).collect();
    let item = |(place, field): (usize, &Arc<Field>)| Field::new(name_of(place), field.data_type().clone(), true);
    let row = DataType::Struct(shown.fields().iter().enumerate().map(item).collect::<Fields>());
    let list = DataType::List(Arc::new(Field::new_list_field(row, true)));
    let args = columns.iter().cloned().map(Expr::Column).collect();
    let lists = Apply::of(Kind::Rows, Arc::new(rows), columns, list).call(args);
    let name = lists.schema_name().to_string();

    let left_columns: Vec<Expr> = left.columns().into_iter().map(Expr::Column).collect();
    let mut listed = left_columns.clone();
    listed.push(lists);
    let null_handling = match join.join_type {
        JoinType::Left => NullHandling::PreserveAndExpandEmpty,
        _ => NullHandling::Drop,
    };
    let options = UnnestOptions { null_handling, ..UnnestOptions::new() };
    let column = Column::new_unqualified(&name);
    let mut outputs = left_columns;
    outputs.extend(shown.iter().enumerate().map(|(place, (qualifier, field))| {
        let metadata = FieldMetadata::from(field.as_ref());
        get_field(Expr::Column(column.clone()), name_of(place)).alias_qualified_with_metadata(
            qualifier.cloned(),
            field.name(),
            Some(metadata),
        )
    }));
    let plan = LogicalPlanBuilder::from(join.left.as_ref().clone())
        .project(listed)?
        .unnest_column_with_options(column, options)?
        .project(outputs)?
        .build()?;
    Ok(Transformed::yes(plan))
}

/// A filter over a join with such a subquery: its conditions on the left side alone go below the join, so that the subquery is asked for the rows that
/// pass. As in PostgreSQL, one that fails then fails for rows that the subquery would have left out, too.
pub fn filtered_before(mut filter: Filter) -> Result<LogicalPlan> {
    let LogicalPlan::Join(join) = filter.input.as_ref() else { return Ok(LogicalPlan::Filter(filter)) };
    if lateral(&join.right).is_none() || !matches!(join.join_type, JoinType::Inner | JoinType::Left) {
        return Ok(LogicalPlan::Filter(filter));
    }
    let schema = join.left.schema();
    let is_before = |condition: &Expr| {
        let columns = condition.column_refs();
        !columns.is_empty()
            && columns.iter().all(|column| schema.has_column(column))
            && !has_query(condition)
            && !condition.contains_outer()
            && !condition.is_volatile()
    };
    let conditions = split_conjunction_owned(filter.predicate.clone());
    let (before, after): (Vec<Expr>, Vec<Expr>) = conditions.into_iter().partition(is_before);
    let Some(before) = conjunction(before) else { return Ok(LogicalPlan::Filter(filter)) };
    let left = Arc::new(LogicalPlan::Filter(Filter::try_new(before, join.left.clone())?));
    let joined = LogicalPlan::Join(Join { left, ..join.clone() });
    match conjunction(after) {
        Some(after) => {
            filter = Filter::try_new(after, Arc::new(joined))?;
            Ok(LogicalPlan::Filter(filter))
        }
        None => Ok(joined),
    }
}

/// A subquery that reads nothing, as what it computes of each row, or unnests: `LATERAL (SELECT t.a + 1)`, `unnest(t.list)`.
/// `None`: it does more than that. An error: its columns and those before them have names in common.
fn without_from(join: &Join, subquery: &LogicalPlan) -> Result<Option<LogicalPlan>> {
    let is_outer = join.join_type == JoinType::Left;
    let is_true = |condition: &Expr| matches!(condition, Expr::Literal(ScalarValue::Boolean(Some(true)), _));
    let condition = join.filter.as_ref().filter(|condition| !is_true(condition));
    if is_outer && condition.is_some() {
        return Ok(None);
    }
    let columns: Vec<Expr> = join.left.schema().columns().into_iter().map(Expr::Column).collect();
    let mut beside = Beside { left: &join.left, columns: &columns, is_outer, lists: 0 };
    let Some(plan) = beside.rows(subquery)? else { return Ok(None) };
    let (is, shown) = (subquery.schema(), join.right.schema());
    let outputs = is.iter().zip(shown.iter()).map(|(is, (qualifier, field))| {
        Expr::Column(Column::from(is)).alias_qualified(qualifier.cloned(), field.name())
    });
    let plan = LogicalPlanBuilder::from(plan).project(columns.iter().cloned().chain(outputs))?;
    let plan = match condition {
        Some(condition) => plan.filter(condition.clone())?,
        None => plan,
    };
    plan.build().map(Some)
}

/// A subquery's operators beside the columns of the rows before it.
struct Beside<'a> {
    left: &'a LogicalPlan,
    columns: &'a [Expr],
    /// Rows stay that the subquery has none for.
    is_outer: bool,
    lists: usize,
}

impl Beside<'_> {
    fn rows(&mut self, plan: &LogicalPlan) -> Result<Option<LogicalPlan>> {
        let [input] = plan.inputs()[..] else {
            let is_one_row = matches!(plan, LogicalPlan::EmptyRelation(empty) if empty.produce_one_row);
            return Ok(is_one_row.then(|| self.left.clone()));
        };
        let Some(below) = self.rows(input)? else { return Ok(None) };
        let below = LogicalPlanBuilder::from(below);
        let plan = match plan {
            LogicalPlan::Projection(projection) => {
                if projection.expr.iter().any(has_query) {
                    return Ok(None);
                }
                let outputs = projection.expr.iter().zip(projection.schema.iter()).map(|(expr, (qualifier, field))| {
                    Ok(as_columns(expr.clone())?.alias_qualified(qualifier.cloned(), field.name()))
                });
                let outputs = outputs.collect::<Result<Vec<_>>>()?;
                below.project(self.columns.iter().cloned().chain(outputs))?
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let outputs = input.schema().iter().zip(alias.schema.iter()).map(|(is, (qualifier, field))| {
                    Expr::Column(Column::from(is)).alias_qualified(qualifier.cloned(), field.name())
                });
                below.project(self.columns.iter().cloned().chain(outputs))?
            }
            LogicalPlan::Unnest(unnest) => {
                self.lists += 1;
                if self.is_outer && self.lists > 1 {
                    return Ok(None);
                }
                let mut options = unnest.options.clone();
                if self.is_outer {
                    options.null_handling = NullHandling::PreserveAndExpandEmpty;
                }
                below.unnest_columns_with_options(unnest.exec_columns.clone(), options)?
            }
            LogicalPlan::Filter(filter) if !self.is_outer && !has_query(&filter.predicate) => {
                below.filter(as_columns(filter.predicate.clone())?)?
            }
            _ => return Ok(None),
        };
        plan.build().map(Some)
    }
}

/// Outer columns, which are now beside the others.
fn as_columns(expr: Expr) -> Result<Expr> {
    expr.rewrite_up(&mut |expr| match expr {
        Expr::OuterReferenceColumn(_, column) => Ok(Transformed::yes(Expr::Column(column))),
        other => Ok(Transformed::no(other)),
    })
    .data()
}

fn name_of(place: usize) -> String {
    format!("c{place}")
}

/// The condition of a join, as one of its right side alone: what it says of the left side are outer columns.
fn seen_from_within(condition: Expr, left: &DFSchema, right: &DFSchema) -> Result<Expr> {
    condition
        .rewrite_up(&mut |expr| match expr {
            Expr::Column(column) if !right.has_column(&column) => {
                let field = left.field_from_column(&column)?.clone();
                Ok(Transformed::yes(Expr::OuterReferenceColumn(field, column)))
            }
            other => Ok(Transformed::no(other)),
        })
        .data()
}
