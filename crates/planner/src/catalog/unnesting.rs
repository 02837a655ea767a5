//! Correlated subqueries as joins, whatever operators they have.
//!
//! After Neumann and Kemper, "Unnesting Arbitrary Queries" (BTW 2015), section 3. A subquery is to be answered for each
//! combination of the outer columns that it names. Those are its *domain*: a relation of distinct rows, which takes the outer
//! columns' place where they are named, and goes up through the subquery beside its rows: groupings, windows and limits are
//! then by the domain's columns, too. What comes out is joined to the outer rows, once.

use super::functions::sql_error;
use super::pull_up::{has_outer_columns, lateral, outer_columns, refers_within_queries};
use crate::optimizer::{estimated_rows, rows_in_order};
use crate::rewrites::RewriteTree;
use datafusion::arrow::array::{Array, AsArray};
use datafusion::arrow::datatypes::{DataType, Field, Int64Type};
use datafusion::common::metadata::FieldMetadata;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, ExprSchema, NullEquality, Result, ScalarValue, internal_err};
use datafusion::functions::core::expr_fn::coalesce;
use datafusion::functions_aggregate::expr_fn::{count, first_value, min};
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::expr::{AggregateFunction, ScalarFunction};
use datafusion::logical_expr::logical_plan::{FetchType, SkipType};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{
    Aggregate, BinaryExpr, ColumnarValue, Distinct, DistinctOn, Expr, ExprFunctionExt, ExprSchemable, Filter, Join,
    JoinConstraint, JoinType, Limit, LogicalPlan, LogicalPlanBuilder, Operator, Projection, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature, SortExpr, SubqueryAlias, Union, Volatility, Window, binary_expr, lit, when,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidepool_base::SqlState;

/// For fewer outer rows it is cheaper to ask for each, unless what a join looks up are keys; and where it may be that none is to be asked for, an
/// answer that fails is not to be worked out.
const ROWS_MIN: f64 = 64.0;

/// Pairs of rows of the domain and of the subquery that are looked at in one go. Of more it is better to ask for each, which ends sooner
/// when nobody waits for it any more, and keeps nothing.
const PAIRS_MAX: f64 = 1e10;

/// A subquery without outer columns of its own: its rows for each combination of theirs.
pub struct Unnested {
    /// The subquery's columns, and those of its domain.
    pub plan: LogicalPlan,
    /// Outer columns, and those of the domain that stand for them.
    pub pairs: Vec<(Column, Column)>,
}

/// The rows of a subquery for all rows of `outer`. `None`: it cannot be done, or would not pay. `is_asked`: each row asks for them, whatever is in
/// it.
pub fn unnest(outer: &LogicalPlan, subquery: &LogicalPlan, is_asked: bool) -> Result<Option<Unnested>> {
    let columns: Vec<Column> = outer_columns(subquery)?.into_iter().map(|(column, _)| column).collect();
    let is_own = |column: &Column| outer.schema().has_column(column);
    if columns.is_empty() || !columns.iter().all(is_own) || is_volatile(outer)? || is_volatile(subquery)? {
        return Ok(None);
    }
    if !(is_asked && is_by_keys(subquery)?) && estimated_rows(outer) < ROWS_MIN {
        return Ok(None);
    }
    let domain = Domain { outer, columns: &columns };
    let Some(Beside { plan, domain }) = domain.beside(subquery)? else { return Ok(None) };
    Ok(Some(Unnested { plan, pairs: columns.iter().cloned().zip(domain).collect() }))
}

/// Whether all that a subquery asks of the rows around it is which ones equal its own columns.
fn is_by_keys(subquery: &LogicalPlan) -> Result<bool> {
    let mut is = true;
    subquery.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            let is_filter = matches!(node, LogicalPlan::Filter(_));
            is &= split_conjunction(expr).into_iter().filter(|part| part.contains_outer()).all(|part| match part {
                Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) if is_filter => {
                    matches!(
                        (left.as_ref(), right.as_ref()),
                        (Expr::Column(_), Expr::OuterReferenceColumn(..))
                            | (Expr::OuterReferenceColumn(..), Expr::Column(_))
                    )
                }
                _ => false,
            });
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(is)
}

impl Unnested {
    /// Joined to the outer rows, one way or another: as many of them as there are rows of the subquery.
    pub fn join(self, outer: LogicalPlan, join_type: JoinType) -> Result<LogicalPlan> {
        let schema = outer.schema().clone();
        let are_known = self
            .pairs
            .iter()
            .all(|(column, _)| schema.field_from_column(column).is_ok_and(|field| !field.is_nullable()));
        let nulls = if are_known { NullEquality::NullEqualsNothing } else { NullEquality::NullEqualsNull };
        let on = self.pairs.into_iter().map(|(outer, own)| (Expr::Column(outer), Expr::Column(own))).collect();
        joined(outer, self.plan, on, join_type, nulls)
    }

    /// One value beside each outer row: the subquery's, or NULL where it has no row. Fails where it has several.
    pub fn value_beside(self, outer: LogicalPlan, is_one: bool) -> Result<(LogicalPlan, Expr)> {
        let name = fresh("value");
        let value = Expr::Column(Column::from(self.plan.schema().qualified_field(0)));
        let domain: Vec<Expr> = self.pairs.iter().map(|(_, own)| Expr::Column(own.clone())).collect();
        let builder = LogicalPlanBuilder::from(self.plan.clone());
        let builder = if is_one {
            builder
        } else {
            let is_ordered = !value.get_type(self.plan.schema())?.is_nested();
            let any = if is_ordered { min(value.clone()) } else { first_value(value.clone(), vec![]) };
            let (of_value, rows) = (fresh("any"), fresh("rows"));
            let found = vec![any.alias(&of_value), count(lit(1)).alias(&rows)];
            let function = ScalarUDF::new_from_impl(OneRow { signature: Signature::any(2, Volatility::Immutable) });
            let args = [of_value, rows].map(|name| Expr::Column(Column::new_unqualified(name))).to_vec();
            let only = Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(function), args));
            let only = std::iter::once(only.alias_qualified(None::<&str>, "only"));
            builder.aggregate(domain.clone(), found)?.project(only.chain(domain.iter().cloned()))?
        };
        let value = Expr::Column(Column::from(builder.schema().qualified_field(0))).alias(&name);
        let plan = builder.project(std::iter::once(value).chain(domain))?.build()?;
        let plan = Unnested { plan, ..self }.join(outer, JoinType::Left)?;
        Ok((plan, Expr::Column(Column::new_unqualified(name))))
    }

    /// Whether the subquery has rows, beside each outer row.
    pub fn existence_beside(self, outer: LogicalPlan) -> Result<(LogicalPlan, Expr)> {
        let name = fresh("exists");
        let domain = self.pairs.iter().map(|(_, own)| Expr::Column(own.clone()));
        let outputs = domain.chain([lit(true).alias(&name)]);
        let plan = LogicalPlanBuilder::from(self.plan.clone()).project(outputs)?.distinct()?.build()?;
        let plan = Unnested { plan, ..self }.join(outer, JoinType::Left)?;
        Ok((plan, Expr::Column(Column::new_unqualified(name)).is_not_null()))
    }
}

fn fresh(of: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("\u{1}{of} {}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// That two columns are equal, or both NULL, in a way that leaves an equality to join by beside others.
fn is_same(left: Expr, right: Expr, field: &Field) -> Expr {
    if !field.is_nullable() {
        return left.eq(right);
    }
    let same = binary_expr(left.clone(), Operator::IsNotDistinctFrom, right.clone());
    if field.data_type().is_nested() {
        return same;
    }
    // Of a type without a default there is just the one condition.
    let Ok(default) = ScalarValue::new_default(field.data_type()) else { return same };
    // With metadata, even empty ones, it is no literal that is still to be read: a text is none of a uuid.
    let default = Expr::Literal(default, Some(FieldMetadata::default()));
    let known = |side: Expr| coalesce(vec![side, default.clone()]);
    known(left).eq(known(right)).and(same)
}

fn joined(
    left: LogicalPlan,
    right: LogicalPlan,
    on: Vec<(Expr, Expr)>,
    join_type: JoinType,
    nulls: NullEquality,
) -> Result<LogicalPlan> {
    let (left, right) = (Arc::new(left), Arc::new(right));
    Join::try_new(left, right, on, None, join_type, JoinConstraint::On, nulls, false).map(LogicalPlan::Join)
}

/// What is computed twice may come out twice differently.
fn is_volatile(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        found |= node.expressions().iter().any(Expr::is_volatile);
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

struct Domain<'a> {
    outer: &'a LogicalPlan,
    columns: &'a [Column],
}

/// A plan whose last columns are a domain's.
struct Beside {
    plan: LogicalPlan,
    domain: Vec<Column>,
}

impl Beside {
    /// A plan whose first columns, as many as `own`, are not the domain's.
    fn of(plan: LogicalPlan, own: usize) -> Beside {
        let domain = plan.schema().columns().split_off(own);
        Beside { plan, domain }
    }

    /// The plan's first columns, called as in `schema`, and the domain's.
    fn named(
        plan: LogicalPlan,
        columns: impl IntoIterator<Item = Expr>,
        schema: &DFSchema,
        domain: Vec<Column>,
    ) -> Result<Beside> {
        let named = columns
            .into_iter()
            .zip(schema.iter())
            .map(|(expr, (qualifier, field))| expr.alias_qualified(qualifier.cloned(), field.name()));
        let outputs = named.chain(domain.iter().cloned().map(Expr::Column)).collect();
        Ok(Beside { plan: LogicalPlan::Projection(Projection::try_new(outputs, Arc::new(plan))?), domain })
    }
}

fn columns_of(schema: &DFSchema, places: impl IntoIterator<Item = usize>) -> Vec<Expr> {
    places.into_iter().map(|place| Expr::Column(Column::from(schema.qualified_field(place)))).collect()
}

impl Domain<'_> {
    /// The domain itself, its columns by new names.
    fn rows(&self) -> Result<Beside> {
        let names: Vec<String> = self.columns.iter().map(|_| fresh("outer")).collect();
        let outputs = self.columns.iter().zip(&names).map(|(column, name)| Expr::Column(column.clone()).alias(name));
        let plan = LogicalPlanBuilder::from(self.outer.clone()).project(outputs)?.distinct()?.build()?;
        Ok(Beside::of(plan, 0))
    }

    /// Each row of a plan that names no outer column with each row of the domain.
    fn pairs(&self, plan: &LogicalPlan) -> Result<Beside> {
        let domain = self.rows()?.plan;
        let pairs = LogicalPlanBuilder::from(plan.clone()).cross_join(domain)?.build()?;
        Ok(Beside::of(pairs, plan.schema().fields().len()))
    }

    /// An expression with a domain's columns in the outer columns' place.
    fn over(&self, expr: Expr, domain: &[Column]) -> Result<Expr> {
        expr.rewrite_up(&mut |expr| match &expr {
            Expr::OuterReferenceColumn(_, column) => match self.columns.iter().position(|known| known == column) {
                Some(place) => Ok(Transformed::yes(Expr::Column(domain[place].clone()))),
                None => internal_err!("an outer column that is in no domain"),
            },
            _ => Ok(Transformed::no(expr)),
        })
        .data()
    }

    fn all_over(&self, exprs: &[Expr], domain: &[Column]) -> Result<Vec<Expr>> {
        exprs.iter().map(|expr| self.over(expr.clone(), domain)).collect()
    }

    fn keys_over(&self, keys: Vec<SortExpr>, domain: &[Column]) -> Result<Vec<SortExpr>> {
        keys.into_iter().map(|key| Ok(SortExpr { expr: self.over(key.expr, domain)?, ..key })).collect()
    }

    /// An operator's rows for each row of the domain.
    fn beside(&self, plan: &LogicalPlan) -> Result<Option<Beside>> {
        let own = plan.schema().fields().len();
        if !has_outer_columns(plan)? {
            let is_few = estimated_rows(self.outer) * estimated_rows(plan) <= PAIRS_MAX;
            return if is_few { self.pairs(plan).map(Some) } else { Ok(None) };
        }
        if refers_within_queries(plan)? {
            return Ok(None);
        }
        match plan {
            LogicalPlan::Filter(filter) => {
                // Those of equal rows alone: a join by that.
                let below = match is_by_key(&filter.predicate) && !has_outer_columns(&filter.input)? {
                    true => Some(self.pairs(&filter.input)?),
                    false => self.beside(&filter.input)?,
                };
                let Some(below) = below else { return Ok(None) };
                let predicate = self.over(filter.predicate.clone(), &below.domain)?;
                let plan = LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(below.plan))?);
                Ok(Some(Beside { plan, ..below }))
            }
            LogicalPlan::Projection(projection) => {
                let Some(below) = self.beside(&projection.input)? else { return Ok(None) };
                let outputs = self.all_over(&projection.expr, &below.domain)?;
                Beside::named(below.plan, outputs, &projection.schema, below.domain).map(Some)
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let Some(below) = self.beside(&alias.input)? else { return Ok(None) };
                let alias = SubqueryAlias::try_new(Arc::new(below.plan), alias.alias.clone())?;
                Ok(Some(Beside::of(LogicalPlan::SubqueryAlias(alias), own)))
            }
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => self.beside(&sort.input),
            LogicalPlan::Limit(limit) => self.beside_limit(limit),
            LogicalPlan::Aggregate(aggregate) => self.beside_aggregate(aggregate),
            LogicalPlan::Window(window) => self.beside_window(window),
            LogicalPlan::Distinct(Distinct::All(input)) => {
                let Some(below) = self.beside(input)? else { return Ok(None) };
                Ok(Some(Beside { plan: LogicalPlan::Distinct(Distinct::All(Arc::new(below.plan))), ..below }))
            }
            LogicalPlan::Distinct(Distinct::On(on)) => {
                let Some(below) = self.beside(&on.input)? else { return Ok(None) };
                let domain = || below.domain.iter().cloned().map(Expr::Column);
                let distinct = domain().chain(self.all_over(&on.on_expr, &below.domain)?).collect();
                let outputs = self.all_over(&on.select_expr, &below.domain)?.into_iter().chain(domain()).collect();
                let keys = on.sort_expr.clone().map(|keys| self.keys_over(keys, &below.domain)).transpose()?;
                let keys = keys.map(|keys| domain().map(|column| column.sort(true, false)).chain(keys).collect());
                let distinct = DistinctOn::try_new(distinct, outputs, keys, Arc::new(below.plan.clone()))?;
                let distinct = LogicalPlan::Distinct(Distinct::On(distinct));
                let columns = distinct.schema().columns();
                let (columns, domain) = columns.split_at(own);
                let columns = columns.iter().cloned().map(Expr::Column).collect::<Vec<_>>();
                Beside::named(distinct.clone(), columns, plan.schema(), domain.to_vec()).map(Some)
            }
            LogicalPlan::Join(join) => self.beside_join(join),
            LogicalPlan::Union(union) => self.beside_union(union),
            LogicalPlan::Unnest(unnest) => {
                let Some(below) = self.beside(&unnest.input)? else { return Ok(None) };
                let plan = LogicalPlanBuilder::from(below.plan)
                    .unnest_columns_with_options(unnest.exec_columns.clone(), unnest.options.clone())?
                    .build()?;
                Ok(Some(Beside { plan, ..below }))
            }
            _ => Ok(None),
        }
    }

    /// The first rows of each, by their number in the order there is.
    fn beside_limit(&self, limit: &Limit) -> Result<Option<Beside>> {
        let (SkipType::Literal(skip), FetchType::Literal(fetch)) = (limit.get_skip_type()?, limit.get_fetch_type()?)
        else {
            return Ok(None);
        };
        let own = limit.input.schema().fields().len();
        let (input, keys) = match rows_in_order(&limit.input, false)? {
            Some(ordered) => ordered,
            None => (limit.input.as_ref().clone(), Vec::new()),
        };
        let Some(below) = self.beside(&input)? else { return Ok(None) };
        let keys = self.keys_over(keys, &below.domain)?;
        let partition: Vec<Expr> = below.domain.iter().cloned().map(Expr::Column).collect();
        let number = row_number().partition_by(partition);
        let number = if keys.is_empty() { number } else { number.order_by(keys) }.build()?;
        let column = || Expr::Column(Column::new_unqualified(number.schema_name().to_string()));
        let mut builder = LogicalPlanBuilder::from(below.plan).window([number.clone()])?;
        let place = |place: usize| lit(u64::try_from(place).unwrap_or(u64::MAX));
        if skip > 0 {
            builder = builder.filter(column().gt(place(skip)))?;
        }
        if let Some(fetch) = fetch {
            builder = builder.filter(column().lt_eq(place(skip.saturating_add(fetch))))?;
        }
        let plan = builder.build()?;
        let columns = columns_of(plan.schema(), 0..own);
        Beside::named(plan, columns, limit.input.schema(), below.domain).map(Some)
    }

    fn beside_aggregate(&self, aggregate: &Aggregate) -> Result<Option<Beside>> {
        if aggregate.group_expr.iter().any(|key| matches!(key, Expr::GroupingSet(_))) {
            return Ok(None);
        }
        let Some(below) = self.beside(&aggregate.input)? else { return Ok(None) };
        let keys = aggregate.group_expr.len();
        let mut groups = self.all_over(&aggregate.group_expr, &below.domain)?;
        groups.extend(below.domain.iter().cloned().map(Expr::Column));
        let calls = self.all_over(&aggregate.aggr_expr, &below.domain)?;
        let defaults = calls.iter().zip(aggregate.schema.fields().iter().skip(keys));
        let defaults = defaults.map(|(call, field)| of_nothing(call, field.data_type())).collect::<Result<Vec<_>>>()?;
        let grouped = LogicalPlan::Aggregate(Aggregate::try_new(Arc::new(below.plan), groups, calls)?);
        let (after, all) = (keys + below.domain.len(), grouped.schema().fields().len());
        let columns = columns_of(grouped.schema(), (0..keys).chain(after..all));
        if keys > 0 {
            return Beside::named(grouped, columns, &aggregate.schema, below.domain).map(Some);
        }

        // Without groups there is a row for each row of the domain, also where there is nothing to aggregate.
        let (marker, domain) = (fresh("found"), self.rows()?);
        let found = Beside::named(grouped, columns, &aggregate.schema, below.domain)?;
        let of_found = found.plan.schema().columns().into_iter().map(Expr::Column);
        let marked =
            LogicalPlanBuilder::from(found.plan.clone()).project(of_found.chain([lit(true).alias(&marker)]))?;
        let on = domain.domain.iter().cloned().map(Expr::Column).zip(found.domain.into_iter().map(Expr::Column));
        let nulls = NullEquality::NullEqualsNull;
        let joined = joined(domain.plan, marked.build()?, on.collect(), JoinType::Left, nulls)?;
        let is_missing = || Expr::Column(Column::new_unqualified(&marker)).is_null();
        let columns = aggregate.schema.columns().into_iter().zip(defaults).map(|(column, default)| {
            let column = Expr::Column(column);
            if default.is_null() { Ok(column) } else { when(is_missing(), lit(default)).otherwise(column) }
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        Beside::named(joined, columns, &aggregate.schema, domain.domain).map(Some)
    }

    fn beside_window(&self, window: &Window) -> Result<Option<Beside>> {
        let Some(below) = self.beside(&window.input)? else { return Ok(None) };
        let own = window.input.schema().fields().len();
        let mut by_domain = |expr: Expr| match expr {
            Expr::WindowFunction(mut function) => {
                function.params.partition_by.extend(below.domain.iter().cloned().map(Expr::Column));
                Ok(Transformed::yes(Expr::WindowFunction(function)))
            }
            other => Ok(Transformed::no(other)),
        };
        let calls = self.all_over(&window.window_expr, &below.domain)?.into_iter();
        let calls = calls.map(|call| call.rewrite_up(&mut by_domain).data()).collect::<Result<Vec<_>>>()?;
        let plan = LogicalPlan::Window(Window::try_new(calls, Arc::new(below.plan.clone()))?);
        let (after, all) = (own + below.domain.len(), plan.schema().fields().len());
        let columns = columns_of(plan.schema(), (0..own).chain(after..all));
        Beside::named(plan, columns, &window.schema, below.domain).map(Some)
    }

    fn beside_join(&self, join: &Join) -> Result<Option<Beside>> {
        if lateral(&join.right).is_some() || join.null_aware {
            return Ok(None);
        }
        let (in_left, in_right) = (has_outer_columns(&join.left)?, has_outer_columns(&join.right)?);
        // The side whose rows come out, whether they have partners or not, meets the whole domain.
        let (by_left, by_right) = match join.join_type {
            JoinType::Inner => (in_left || !in_right, in_right),
            JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti => (true, in_right),
            JoinType::Right => (in_left, true),
            _ => return Ok(None),
        };
        let side = |is_beside: bool, plan: &LogicalPlan| -> Result<Option<Beside>> {
            if is_beside { self.beside(plan) } else { Ok(Some(Beside { plan: plan.clone(), domain: Vec::new() })) }
        };
        let (Some(left), Some(right)) = (side(by_left, &join.left)?, side(by_right, &join.right)?) else {
            return Ok(None);
        };
        let is_lefts = by_left && join.join_type != JoinType::Right;
        let domain = if is_lefts { left.domain.clone() } else { right.domain.clone() };
        let mut on = Vec::with_capacity(join.on.len());
        for (of_left, of_right) in &join.on {
            on.push((self.over(of_left.clone(), &domain)?, self.over(of_right.clone(), &domain)?));
        }
        let mut filter = join.filter.clone().map(|filter| self.over(filter, &domain)).transpose()?;
        for ((of_left, of_right), column) in left.domain.iter().zip(&right.domain).zip(self.columns) {
            let (_, field) = self.outer.schema().qualified_field_from_column(column)?;
            let (of_left, of_right) = (Expr::Column(of_left.clone()), Expr::Column(of_right.clone()));
            if join.null_equality == NullEquality::NullEqualsNull {
                on.push((of_left, of_right));
            } else {
                let same = is_same(of_left, of_right, field);
                filter = Some(match filter {
                    Some(filter) => filter.and(same),
                    None => same,
                });
            }
        }
        let (left, right) = (Arc::new(left.plan), Arc::new(right.plan));
        let joined =
            Join::try_new(left, right, on, filter, join.join_type, join.join_constraint, join.null_equality, false)?;
        let columns = join.schema.columns().into_iter().map(Expr::Column).collect::<Vec<_>>();
        Beside::named(LogicalPlan::Join(joined), columns, &join.schema, domain).map(Some)
    }

    fn beside_union(&self, union: &Union) -> Result<Option<Beside>> {
        let mut all: Option<LogicalPlanBuilder> = None;
        for input in &union.inputs {
            let Some(input) = self.beside(input)? else { return Ok(None) };
            all = Some(match all {
                Some(all) => all.union(input.plan)?,
                None => LogicalPlanBuilder::from(input.plan),
            });
        }
        let Some(all) = all else { return Ok(None) };
        let (plan, own) = (all.build()?, union.schema.fields().len());
        let domain = plan.schema().columns().split_off(own);
        let columns = columns_of(plan.schema(), 0..own);
        Beside::named(plan, columns, &union.schema, domain).map(Some)
    }
}

/// Whether a condition says that something of the subquery's is equal to something of the outer rows'.
fn is_by_key(condition: &Expr) -> bool {
    split_conjunction(condition).into_iter().any(|condition| match condition {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq | Operator::IsNotDistinctFrom, right }) => {
            let is_pair =
                |outer: &Expr, own: &Expr| outer.contains_outer() && !own.contains_outer() && own.any_column_refs();
            is_pair(left, right) || is_pair(right, left)
        }
        _ => false,
    })
}

/// What an aggregate is of no rows.
fn of_nothing(call: &Expr, data_type: &DataType) -> Result<ScalarValue> {
    match call.clone().unalias() {
        Expr::AggregateFunction(AggregateFunction { func, .. }) => func.default_value(data_type),
        _ => internal_err!("an aggregate that is no function"),
    }
}

/// Whether a subquery has one row at most, whatever its tables hold.
pub fn has_at_most_one_row(plan: &LogicalPlan) -> Result<bool> {
    Ok(match plan {
        LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) | LogicalPlan::Filter(_) | LogicalPlan::Sort(_) => {
            has_at_most_one_row(plan.inputs()[0])?
        }
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        LogicalPlan::Limit(limit) => matches!(limit.get_fetch_type()?, FetchType::Literal(Some(0 | 1))),
        LogicalPlan::EmptyRelation(_) => true,
        _ => false,
    })
}

/// Its first argument, of as many rows as the second says. Fails if they are several.
#[derive(Debug, PartialEq, Eq, Hash)]
struct OneRow {
    signature: Signature,
}

impl ScalarUDFImpl for OneRow {
    fn name(&self) -> &str {
        "one_row"
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        Ok(arg_types.first().cloned().unwrap_or(DataType::Null))
    }
    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let [value, rows] = arrays.as_slice() else { return internal_err!("one_row takes two arguments") };
        if rows.as_primitive::<Int64Type>().iter().flatten().any(|rows| rows > 1) {
            return Err(sql_error(
                SqlState::CARDINALITY_VIOLATION,
                "more than one row returned by a subquery used as an expression",
            ));
        }
        debug_assert_eq!(value.len(), rows.len());
        Ok(ColumnarValue::Array(value.clone()))
    }
}
