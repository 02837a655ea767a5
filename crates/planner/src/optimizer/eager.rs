//! Aggregation below joins.
//!
//! Where a join has a row for each row of one of its sides, and that side's rows fall into few groups by what the join and the grouping
//! above need of them, these groups are made first and joined in place of the rows: `sum` is the sum of their sums, `count` the sum of
//! their counts. ("Eager group-by": Yan, Larson, *Eager Aggregation and Lazy Aggregation*, VLDB 1995.)

use super::estimate::{self, Estimate};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::alias::AliasGenerator;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema, JoinType, NullEquality, Result};
use datafusion::functions::core::expr_fn::coalesce;
use datafusion::functions_aggregate::sum::sum_udaf;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{Aggregate, Cast, Expr, Join, LogicalPlan, Projection, SubqueryAlias, lit};
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
        plan.transform_down_with_subqueries(|node| {
            let eager = eager(&node, names)?;
            Ok(eager.map_or_else(|| Transformed::no(node), Transformed::yes))
        })
    }
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

fn has_subquery(expr: &Expr) -> bool {
    let is_subquery = |expr: &Expr| {
        matches!(expr, Expr::ScalarSubquery(_) | Expr::Exists(_) | Expr::InSubquery(_) | Expr::OuterReferenceColumn(..))
    };
    expr.exists(|expr| Ok(is_subquery(expr))).unwrap_or(true)
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
    let replace = |node: Expr| match &node {
        Expr::Column(column) => {
            Ok(meanings.get(column).map_or(Transformed::no(node.clone()), |meant| Transformed::yes(meant.clone())))
        }
        _ => Ok(Transformed::no(node)),
    };
    Ok(expr.transform_up(replace)?.data)
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
        return merged(aggregate, &over, index, groups);
    }
    Ok(None)
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
    let grouping = Arc::new(LogicalPlan::Aggregate(Aggregate::try_new(side.clone(), keys.clone(), distinct)?));
    let parts: Vec<String> = (width..grouping.schema().fields().len()).map(|_| names.next("__part")).collect();
    let part = |(index, name): (usize, &String)| {
        Expr::Column(Column::from(grouping.schema().qualified_field(width + index))).alias(name)
    };
    let outputs: Vec<Expr> = keys.into_iter().chain(parts.iter().enumerate().map(part)).collect();
    let columns = places.into_iter().map(|place| Column::new_unqualified(&parts[place])).collect();
    Ok((LogicalPlan::Projection(Projection::try_new(outputs, grouping)?), columns))
}

/// The aggregate over the join of groups in place of a side.
fn merged(
    aggregate: &Aggregate,
    over: &OverJoin<'_>,
    side: usize,
    (groups, parts): (LogicalPlan, Vec<Column>),
) -> Result<Option<LogicalPlan>> {
    let mut join = over.join.clone();
    *(if side == 0 { &mut join.left } else { &mut join.right }) = Arc::new(groups);
    let join = LogicalPlan::Join(join).recompute_schema()?;
    let of = |index: usize, schema: &DFSchema, functions: usize| {
        let first = schema.fields().len() - functions;
        schema.field(first + index).data_type().clone()
    };
    let functions = over.functions.len();
    let mut calls: Vec<Expr> = Vec::new();
    let mut places = Vec::new();
    for (index, (function, part)) in over.functions.iter().zip(&parts).enumerate() {
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
            output = coalesce(vec![output, lit(0i64)]);
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
