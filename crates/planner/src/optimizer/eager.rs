//! Aggregation below joins.
//!
//! Where a join has a row for each row of one of its sides, and that side's rows fall into few groups by what the join and the grouping
//! above need of them, these groups are made first and joined in place of the rows: `sum` is the sum of their sums, `count` the sum of
//! their counts, `avg` the one by the other. ("Eager group-by": Yan, Larson, *Eager Aggregation and Lazy Aggregation*, VLDB 1995.)

use super::estimate::{self, Estimate};
use super::passes::has_subquery;
use crate::arithmetic;
use crate::rewrites::{RewritePlan, RewriteTree};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::alias::AliasGenerator;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchema, JoinConstraint, JoinType, NullEquality, Result};
use datafusion::functions_aggregate::count::count_udaf;
use datafusion::functions_aggregate::sum::sum_udaf;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{
    Aggregate, Cast, Expr, ExprSchemable, Join, LogicalPlan, Projection, SubqueryAlias, lit, when,
};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Fewer rows than this are not worth the thought.
const ROWS_MIN: f64 = 256.0;

/// Rows of a group, by estimate, from which on it is worth making.
const ROWS_PER_GROUP_MIN: f64 = 3.0;

/// Rows that the join leaves of each row of the side. If it drops many, they are better dropped first.
const ROWS_LEFT_MIN: f64 = 0.5;

/// What a row takes in a join, and in a grouping by how many groups it has and how many of its keys are text: as a rule, of the engine's
/// operators on one core. Few groups are kept by number, or in the processor's own caches.
const JOIN_NS: f64 = 5.0;
const GROUPING_NS: [(f64, f64); 3] = [(16e3, 5.0), (256e3, 20.0), (f64::INFINITY, 40.0)];
const TEXT_KEY_NS: f64 = 15.0;

#[derive(Debug)]
pub struct EagerAggregation;

impl OptimizerRule for EagerAggregation {
    fn name(&self) -> &str {
        "eager_aggregation"
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let names = config.alias_generator();
        plan.rewrite_down_with_subqueries(&mut |node| {
            let LogicalPlan::Aggregate(aggregate) = &node else { return Ok(Transformed::no(node)) };
            let eager = match without_averages(aggregate, names)? {
                None => eager(&node, names)?,
                Some((of_parts, outputs)) => match eager(&of_parts, names)? {
                    Some(made) => Some(LogicalPlan::Projection(Projection::try_new(outputs, Arc::new(made))?)),
                    None => None,
                },
            };
            Ok(eager.map_or_else(|| Transformed::no(node), Transformed::yes))
        })
    }
}

/// Decimals of more digits may have sums that no decimal holds, where the average is one.
const AVERAGED_PRECISION_MAX: u8 = 28;

/// The same aggregate with sums and counts in place of averages, and its columns over that one's. `None` where there is no average, or one
/// that is not made of them.
fn without_averages(aggregate: &Aggregate, names: &Arc<AliasGenerator>) -> Result<Option<(LogicalPlan, Vec<Expr>)>> {
    let schema = aggregate.input.schema();
    let mut calls: Vec<Expr> = Vec::new();
    let mut place = |call: Expr| {
        calls.iter().position(|known| *known == call).unwrap_or_else(|| {
            calls.push(call);
            calls.len() - 1
        })
    };
    let mut has_averages = false;
    // Of each function, where it is, or where its sum and count are.
    let mut places: Vec<(usize, Option<usize>)> = Vec::new();
    for expr in &aggregate.aggr_expr {
        let call = expr.clone().unalias();
        let Expr::AggregateFunction(average) = &call else { return Ok(None) };
        if average.func.name() != "avg" {
            places.push((place(call), None));
            continue;
        }
        let params = &average.params;
        let [argument] = params.args.as_slice() else { return Ok(None) };
        let is_exact = match argument.get_type(schema)? {
            DataType::Decimal128(precision, _) => precision <= AVERAGED_PRECISION_MAX,
            DataType::Float64 => true,
            _ => false,
        };
        if params.distinct || params.filter.is_some() || !params.order_by.is_empty() || !is_exact {
            return Ok(None);
        }
        has_averages = true;
        let of = |function| AggregateFunction::new_udf(function, vec![argument.clone()], false, None, Vec::new(), None);
        let sum = place(Expr::AggregateFunction(of(sum_udaf())));
        places.push((sum, Some(place(Expr::AggregateFunction(of(count_udaf()))))));
    }
    if !has_averages {
        return Ok(None);
    }
    // Casts are no part of an expression's own name.
    let calls = calls.into_iter().map(|call| call.alias(names.next("__part"))).collect();
    let of_parts = Aggregate::try_new(aggregate.input.clone(), aggregate.group_expr.clone(), calls)?;
    let first = aggregate.schema.fields().len() - aggregate.aggr_expr.len();
    let column = |index: usize| Expr::Column(Column::from(of_parts.schema.qualified_field(index)));
    let mut outputs: Vec<Expr> = (0..first).map(column).collect();
    for (index, (value, count)) in places.into_iter().enumerate() {
        let (qualifier, field) = aggregate.schema.qualified_field(first + index);
        let value = column(first + value);
        let output = match count.map(|count| column(first + count)) {
            None => value,
            Some(count) if *field.data_type() == DataType::Float64 => {
                value / Expr::Cast(Cast::new(Box::new(count), DataType::Float64))
            }
            Some(count) => {
                let count = Expr::Cast(Cast::new(Box::new(count), DataType::Decimal128(20, 0)));
                arithmetic::call(arithmetic::Kind::DivideDecimals, vec![value, count])
            }
        };
        outputs.push(output.alias_qualified(qualifier.cloned(), field.name()));
    }
    Ok(Some((LogicalPlan::Aggregate(of_parts), outputs)))
}

/// A function that is one of groups of rows as it is one of the rows.
struct Function {
    call: AggregateFunction,
    /// `None`: rows are counted.
    argument: Option<Expr>,
}

impl Function {
    fn of(expr: &Expr) -> Option<Function> {
        let Expr::AggregateFunction(call) = expr.clone().unalias() else { return None };
        let params = &call.params;
        let is_plain = !params.distinct
            && params.filter.is_none()
            && params.order_by.is_empty()
            && params.null_treatment.is_none()
            && !params.args.iter().any(Expr::is_volatile);
        let argument = match params.args.as_slice() {
            [Expr::Literal(value, _)] if call.func.name() == "count" && !value.is_null() => None,
            [argument] if matches!(call.func.name(), "count" | "sum" | "min" | "max") => Some(argument.clone()),
            _ => return None,
        };
        is_plain.then_some(Function { call, argument })
    }

    fn is_count(&self) -> bool {
        self.call.func.name() == "count"
    }

    /// Of a column that has what it is of each group.
    fn merging(&self, part: Column, of: &DataType) -> Expr {
        let mut call = self.call.clone();
        if self.is_count() || self.call.func.name() == "sum" && *of == DataType::Int64 {
            // Of integers into as wide ones, which `sum` of them is not in SQL.
            call.func = sum_udaf();
        }
        call.params.args = vec![Expr::Column(part)];
        Expr::AggregateFunction(call)
    }
}

/// An aggregate's expressions as ones of a join's columns.
struct OverJoin<'a> {
    keys: Vec<Expr>,
    functions: Vec<Function>,
    join: &'a Join,
}

impl OverJoin<'_> {
    /// `None` where there is no join beneath projections, or something that cannot be taken apart.
    fn of(aggregate: &Aggregate) -> Result<Option<OverJoin<'_>>> {
        let mut keys = aggregate.group_expr.clone();
        let Some(mut functions) = aggregate.aggr_expr.iter().map(Function::of).collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        if functions.is_empty() || keys.iter().any(|key| key.is_volatile() || has_subquery(key)) {
            return Ok(None);
        }
        let mut below = aggregate.input.as_ref();
        loop {
            let meanings = match below {
                LogicalPlan::Join(join) => return Ok(Some(OverJoin { keys, functions, join })),
                LogicalPlan::Projection(projection) => meanings_in(projection),
                LogicalPlan::SubqueryAlias(alias) => Some(meanings_under(alias)),
                _ => return Ok(None),
            };
            let Some(meanings) = meanings else { return Ok(None) };
            let meant = |expr: Expr| replaced(expr, &meanings);
            keys = keys.into_iter().map(meant).collect::<Result<_>>()?;
            for function in &mut functions {
                function.argument = function.argument.take().map(meant).transpose()?;
                if let Some(argument) = &function.argument {
                    function.call.params.args = vec![argument.clone()];
                }
            }
            below = below.inputs()[0];
        }
    }

    /// The columns of a side by which its groups are to be told apart. `None` where rows of the side cannot be put together.
    fn group_columns(&self, side: &LogicalPlan, other: &LogicalPlan, is_optional: bool) -> Option<BTreeSet<Column>> {
        let (own, others) = (side.schema(), other.schema());
        let is_own = |column: &Column| own.has_column(column) && !others.has_column(column);
        for function in &self.functions {
            match &function.argument {
                // A row without a match counts, too.
                None if is_optional => return None,
                None => {}
                Some(argument) => {
                    let is_strict = matches!(argument, Expr::Column(_));
                    let columns = argument.column_refs();
                    if columns.is_empty() || !columns.into_iter().all(is_own) || is_optional && !is_strict {
                        return None;
                    }
                }
            }
        }
        let mut columns = BTreeSet::new();
        let mut add = |expr: &Expr| columns.extend(expr.column_refs().into_iter().filter(|it| is_own(it)).cloned());
        self.keys.iter().chain(&self.join.filter).for_each(&mut add);
        for (left, right) in &self.join.on {
            add(left);
            add(right);
        }
        Some(columns)
    }
}

/// What a projection's columns are.
fn meanings_in(projection: &Projection) -> Option<HashMap<Column, Expr>> {
    let is_simple = |expr: &Expr| !expr.is_volatile() && !has_subquery(expr);
    let meaning = |(index, expr): (usize, &Expr)| {
        let column = Column::from(projection.schema.qualified_field(index));
        is_simple(expr).then(|| (column, expr.clone().unalias()))
    };
    projection.expr.iter().enumerate().map(meaning).collect()
}

fn meanings_under(alias: &SubqueryAlias) -> HashMap<Column, Expr> {
    let below = alias.input.schema();
    let meaning = |index: usize| {
        (Column::from(alias.schema.qualified_field(index)), Expr::Column(Column::from(below.qualified_field(index))))
    };
    (0..below.fields().len()).map(meaning).collect()
}

fn replaced(expr: Expr, meanings: &HashMap<Column, Expr>) -> Result<Expr> {
    let mut replace = |node: Expr| match &node {
        Expr::Column(column) => {
            Ok(meanings.get(column).map_or(Transformed::no(node.clone()), |meant| Transformed::yes(meant.clone())))
        }
        _ => Ok(Transformed::no(node)),
    };
    Ok(expr.rewrite_up(&mut replace)?.data)
}

fn estimated(plan: &LogicalPlan) -> Estimate {
    let inputs: Vec<Estimate> = plan.inputs().into_iter().map(estimated).collect();
    estimate::of_node(plan, &inputs)
}

/// What a row takes in a grouping, which is said to have so many groups.
fn grouping_ns(plan: &LogicalPlan, groups: f64) -> f64 {
    let LogicalPlan::Aggregate(aggregate) = plan else { return 0.0 };
    let keys = aggregate.schema.fields().len() - aggregate.aggr_expr.len();
    let is_text = |index: &usize| {
        matches!(aggregate.schema.field(*index).data_type(), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
    };
    let of_groups = GROUPING_NS.iter().find(|(most, _)| groups <= *most).map_or(0.0, |(_, ns)| *ns);
    of_groups + (0..keys).filter(is_text).count() as f64 * TEXT_KEY_NS
}

/// The same result with groups made below a join, where that is less work.
fn eager(plan: &LogicalPlan, names: &Arc<AliasGenerator>) -> Result<Option<LogicalPlan>> {
    let LogicalPlan::Aggregate(aggregate) = plan else { return Ok(None) };
    let Some(over) = OverJoin::of(aggregate)? else { return Ok(None) };
    let join = over.join;
    // Of left and right, whether rows of the other side come with NULL in its place.
    let is_optional = match join.join_type {
        JoinType::Inner => [false, false],
        JoinType::Left => [false, true],
        JoinType::Right => [true, false],
        _ => return Ok(None),
    };
    let is_understood = join.null_equality == NullEquality::NullEqualsNothing
        && !join.on.is_empty()
        && !join.filter.as_ref().is_some_and(|filter| filter.is_volatile() || has_subquery(filter));
    let is_distinct = |index: usize| !over.keys[..index].contains(&over.keys[index]);
    // Parts of a sum of `real` would each be rounded to one.
    let is_rounded = aggregate.schema.fields().iter().any(|field| *field.data_type() == DataType::Float32);
    if !is_understood || is_rounded || !(0..over.keys.len()).all(is_distinct) {
        return Ok(None);
    }
    let sides = [&join.left, &join.right];
    let (mut joined, mut groups_above) = (None, None);
    for (index, side) in sides.into_iter().enumerate() {
        let Some(columns) = over.group_columns(side, sides[1 - index], is_optional[index]) else { continue };
        let rows = estimated(side);
        if rows.rows < ROWS_MIN {
            continue;
        }
        let groups = grouped(side, &columns, &over.functions, names)?;
        let grouping = groups.0.inputs()[0];
        let of_groups = estimate::of_node(grouping, std::slice::from_ref(&rows)).rows;
        if of_groups * ROWS_PER_GROUP_MIN > rows.rows {
            continue;
        }
        let rows_joined = *joined.get_or_insert_with(|| estimated(&LogicalPlan::Join(join.clone())).rows);
        if rows_joined < rows.rows * ROWS_LEFT_MIN {
            continue;
        }
        let above_ns = JOIN_NS + grouping_ns(plan, *groups_above.get_or_insert_with(|| estimated(plan).rows));
        if rows.rows * above_ns < rows.rows * grouping_ns(grouping, of_groups) + of_groups * above_ns {
            continue;
        }
        let mut join = join.clone();
        *(if index == 0 { &mut join.left } else { &mut join.right }) = Arc::new(groups.0);
        let joined = LogicalPlan::Join(join).recompute_schema()?;
        return merged(aggregate, &over, joined, &groups.1);
    }
    below_several(aggregate, plan, &over, names)
}

/// Groups below several inner joins: of the input that the functions are of, joined to those that have no key, before those that have some.
fn below_several(
    aggregate: &Aggregate,
    plan: &LogicalPlan,
    over: &OverJoin<'_>,
    names: &Arc<AliasGenerator>,
) -> Result<Option<LogicalPlan>> {
    let whole = LogicalPlan::Join(over.join.clone());
    let mut inputs = Vec::new();
    inputs_of(&whole, &mut inputs);
    let has_any = |input: &LogicalPlan, exprs: &[&Expr]| {
        exprs.iter().flat_map(|expr| expr.column_refs()).any(|column| input.schema().has_column(column))
    };
    let arguments: Vec<&Expr> = over.functions.iter().filter_map(|function| function.argument.as_ref()).collect();
    let keys: Vec<&Expr> = over.keys.iter().collect();
    let (main, others): (Vec<&LogicalPlan>, Vec<&LogicalPlan>) =
        inputs.iter().copied().partition(|input| has_any(input, &arguments));
    let [main] = main[..] else { return Ok(None) };
    let later: Vec<&LogicalPlan> = others.into_iter().filter(|input| has_any(input, &keys)).collect();
    // Without others it is a join's side, which has been looked at.
    if inputs.len() < 3 || later.is_empty() || later.len() + 1 == inputs.len() {
        return Ok(None);
    }
    let mut deferred = Conditions::default();
    let is_first = |input: &LogicalPlan| std::ptr::eq(input, main) || !later.iter().any(|it| std::ptr::eq(*it, input));
    let Some(Some(first)) = without(&whole, &is_first, &mut deferred)? else { return Ok(None) };
    let first = Arc::new(first);
    let rows = estimated(&first);
    if rows.rows < ROWS_MIN {
        return Ok(None);
    }
    let mut columns = BTreeSet::new();
    let used = over.keys.iter().chain(deferred.exprs());
    columns.extend(used.flat_map(Expr::column_refs).filter(|column| first.schema().has_column(column)).cloned());
    let (groups, parts) = grouped(&first, &columns, &over.functions, names)?;
    let grouping = groups.inputs()[0];
    let of_groups = estimate::of_node(grouping, std::slice::from_ref(&rows)).rows;
    let above_ns = JOIN_NS * later.len() as f64 + grouping_ns(plan, estimated(plan).rows);
    if of_groups * ROWS_PER_GROUP_MIN > rows.rows
        || estimated(&whole).rows < rows.rows * ROWS_LEFT_MIN
        || rows.rows * above_ns < rows.rows * grouping_ns(grouping, of_groups) + of_groups * above_ns
    {
        return Ok(None);
    }
    let mut joined = groups;
    let mut later: Vec<LogicalPlan> = later.into_iter().cloned().collect();
    while !later.is_empty() {
        let Some(next) = later.iter().position(|input| deferred.connects(&joined, input)) else { return Ok(None) };
        joined = deferred.join(joined, later.remove(next))?;
    }
    if deferred.exprs().next().is_some() {
        return Ok(None);
    }
    merged(aggregate, over, joined, &parts)
}

fn plain_join(plan: &LogicalPlan) -> Option<&Join> {
    match plan {
        LogicalPlan::Join(join) => {
            let conditions = join.on.iter().flat_map(|(left, right)| [left, right]).chain(&join.filter);
            let is_plain = join.join_type == JoinType::Inner
                && join.null_equality == NullEquality::NullEqualsNothing
                && !conditions.into_iter().any(|expr| expr.is_volatile() || has_subquery(expr));
            is_plain.then_some(join)
        }
        // The order of columns does not matter here.
        LogicalPlan::Projection(projection) if projection.expr.iter().all(|expr| matches!(expr, Expr::Column(_))) => {
            plain_join(&projection.input)
        }
        _ => None,
    }
}

/// What inner joins put together.
fn inputs_of<'p>(plan: &'p LogicalPlan, inputs: &mut Vec<&'p LogicalPlan>) {
    match plain_join(plan) {
        Some(join) => [&join.left, &join.right].into_iter().for_each(|side| inputs_of(side, inputs)),
        None => inputs.push(plan),
    }
}

/// The joins of those inputs alone that are kept, and conditions on others. `None` where some would not be told by a key which of
/// their rows go together.
fn without(
    plan: &LogicalPlan,
    is_kept: &dyn Fn(&LogicalPlan) -> bool,
    deferred: &mut Conditions,
) -> Result<Option<Option<LogicalPlan>>> {
    let Some(join) = plain_join(plan) else { return Ok(Some(is_kept(plan).then(|| plan.clone()))) };
    let sides = (without(&join.left, is_kept, deferred)?, without(&join.right, is_kept, deferred)?);
    let (Some(left), Some(right)) = sides else { return Ok(None) };
    let mut own = Conditions::default();
    own.on.extend(join.on.iter().cloned());
    own.filters.extend(join.filter.iter().flat_map(split_conjunction).cloned());
    Ok(match (left, right) {
        (Some(left), Some(right)) if own.connects(&left, &right) => {
            let joined = own.join(left, right)?;
            deferred.append(own);
            Some(Some(joined))
        }
        (Some(_), Some(_)) => None,
        (one, other) => {
            deferred.append(own);
            Some(one.or(other))
        }
    })
}

/// Of inner joins.
#[derive(Default)]
struct Conditions {
    on: Vec<(Expr, Expr)>,
    filters: Vec<Expr>,
}

impl Conditions {
    fn append(&mut self, mut other: Conditions) {
        self.on.append(&mut other.on);
        self.filters.append(&mut other.filters);
    }

    fn exprs(&self) -> impl Iterator<Item = &Expr> {
        self.on.iter().flat_map(|(left, right)| [left, right]).chain(&self.filters)
    }

    fn connects(&self, left: &LogicalPlan, right: &LogicalPlan) -> bool {
        self.on.iter().any(|pair| oriented(pair, left, right).is_some())
    }

    /// The join of two plans, by those conditions that are of both of them, which are used up.
    fn join(&mut self, left: LogicalPlan, right: LogicalPlan) -> Result<LogicalPlan> {
        let (mut on, mut filters) = (Vec::new(), Vec::new());
        self.on.retain(|pair| oriented(pair, &left, &right).map(|pair| on.push(pair)).is_none());
        let has = |column: &Column| left.schema().has_column(column) || right.schema().has_column(column);
        self.filters.retain(|filter| {
            let is_own = filter.column_refs().into_iter().all(has);
            if is_own {
                filters.push(filter.clone());
            }
            !is_own
        });
        let (left, right) = (Arc::new(left), Arc::new(right));
        let (inner, on_keys, filter) = (JoinType::Inner, JoinConstraint::On, conjunction(filters));
        let nulls = NullEquality::NullEqualsNothing;
        Ok(LogicalPlan::Join(Join::try_new(left, right, on, filter, inner, on_keys, nulls, false)?))
    }
}

/// Keys that are equal, the left plan's first.
fn oriented((one, other): &(Expr, Expr), left: &LogicalPlan, right: &LogicalPlan) -> Option<(Expr, Expr)> {
    let is_of = |expr: &Expr, plan: &LogicalPlan| {
        let columns = expr.column_refs();
        !columns.is_empty() && columns.into_iter().all(|column| plan.schema().has_column(column))
    };
    match (is_of(one, left) && is_of(other, right), is_of(other, left) && is_of(one, right)) {
        (true, _) => Some((one.clone(), other.clone())),
        (_, true) => Some((other.clone(), one.clone())),
        _ => None,
    }
}

/// A side's groups, and the columns that have what the functions are of each.
fn grouped(
    side: &Arc<LogicalPlan>,
    columns: &BTreeSet<Column>,
    functions: &[Function],
    names: &Arc<AliasGenerator>,
) -> Result<(LogicalPlan, Vec<Column>)> {
    let keys: Vec<Expr> = columns.iter().cloned().map(Expr::Column).collect();
    let calls = functions.iter().map(|function| Expr::AggregateFunction(function.call.clone()));
    let mut distinct: Vec<Expr> = Vec::new();
    let mut places = Vec::new();
    for call in calls {
        places.push(distinct.iter().position(|known| *known == call).unwrap_or_else(|| {
            distinct.push(call);
            distinct.len() - 1
        }));
    }
    let width = keys.len();
    let distinct = distinct.into_iter().map(|call| call.alias(names.next("__part"))).collect();
    let grouping = Arc::new(LogicalPlan::Aggregate(Aggregate::try_new(side.clone(), keys.clone(), distinct)?));
    let parts: Vec<String> = (width..grouping.schema().fields().len()).map(|_| names.next("__part")).collect();
    let part = |(index, name): (usize, &String)| {
        Expr::Column(Column::from(grouping.schema().qualified_field(width + index))).alias(name)
    };
    let outputs: Vec<Expr> = keys.into_iter().chain(parts.iter().enumerate().map(part)).collect();
    let columns = places.into_iter().map(|place| Column::new_unqualified(&parts[place])).collect();
    Ok((LogicalPlan::Projection(Projection::try_new(outputs, grouping)?), columns))
}

/// The aggregate over a join of groups in place of their rows.
fn merged(
    aggregate: &Aggregate,
    over: &OverJoin<'_>,
    join: LogicalPlan,
    parts: &[Column],
) -> Result<Option<LogicalPlan>> {
    let of = |index: usize, schema: &DFSchema, functions: usize| {
        let first = schema.fields().len() - functions;
        schema.field(first + index).data_type().clone()
    };
    let functions = over.functions.len();
    let mut calls: Vec<Expr> = Vec::new();
    let mut places = Vec::new();
    for (index, (function, part)) in over.functions.iter().zip(parts).enumerate() {
        let call = function.merging(part.clone(), &of(index, &aggregate.schema, functions));
        places.push(calls.iter().position(|known| *known == call).unwrap_or_else(|| {
            calls.push(call);
            calls.len() - 1
        }));
    }
    let merging = LogicalPlan::Aggregate(Aggregate::try_new(Arc::new(join), over.keys.clone(), calls)?);
    let (before, after) = (&aggregate.schema, merging.schema());
    let first = before.fields().len() - functions;
    let mut outputs = Vec::new();
    for index in 0..before.fields().len() {
        let (qualifier, field) = before.qualified_field(index);
        let place = if index < first { index } else { first + places[index - first] };
        let (made_qualifier, made) = after.qualified_field(place);
        let mut output = Expr::Column(Column::from((made_qualifier, made)));
        if made.data_type() != field.data_type() {
            output = Expr::Cast(Cast::new(Box::new(output), field.data_type().clone()));
        }
        if index >= first && over.functions[index - first].is_count() {
            // As `coalesce` says it: the rule that makes this of it has had its turn.
            output = when(output.clone().is_not_null(), output).otherwise(lit(0i64))?;
        }
        outputs.push(match output {
            Expr::Column(column) if column.relation.as_ref() == qualifier && column.name == *field.name() => {
                Expr::Column(column)
            }
            output => output.alias_qualified(qualifier.cloned(), field.name()),
        });
    }
    Ok(Some(LogicalPlan::Projection(Projection::try_new(outputs, Arc::new(merging))?)))
}
