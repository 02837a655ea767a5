//! Aggregates as the engine's, by one set of keys or several.

use super::expressions::is_exact;
use super::lower::{Lowered, Lowering, own, refused, shown};
use crate::optimizer::estimate;
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result as PlanResult, ScalarValue};
use datafusion::logical_expr::{Aggregate, BinaryExpr, Cast, Expr, ExprSchemable, GroupingSet, LogicalPlan, Operator};
use std::collections::HashMap;
use tidepool_engine::aggregate::{
    Aggregate as EngineAggregate, AggregateCall, AggregateFunction, AggregateTable, sum_type,
};
use tidepool_engine::determined::determined;
use tidepool_engine::expr::{ArithmeticOp, Expr as EngineExpr, Scalar};
use tidepool_engine::grouping::{self, GroupingSets, KeySet, average, merging};
use tidepool_engine::plan::Plan;
use tidepool_engine::types::{ColumnType, type_bounds};

/// By its name.
pub(super) fn aggregate_function(name: &str) -> Option<AggregateFunction> {
    Some(match name {
        "count" => AggregateFunction::Count,
        "sum" => AggregateFunction::Sum,
        "min" => AggregateFunction::Min,
        "max" => AggregateFunction::Max,
        "avg" => AggregateFunction::Avg,
        "bool_and" => AggregateFunction::BoolAnd,
        "bool_or" => AggregateFunction::BoolOr,
        "var_pop" => AggregateFunction::VarPop,
        "var" | "var_samp" => AggregateFunction::VarSamp,
        "stddev_pop" => AggregateFunction::StddevPop,
        "stddev" | "stddev_samp" => AggregateFunction::StddevSamp,
        _ => return None,
    })
}

impl Lowering<'_> {
    pub(super) fn aggregate(&mut self, aggregate: &Aggregate, plan: &LogicalPlan) -> PlanResult<Lowered> {
        use AggregateFunction as F;
        let below = self.input(&aggregate.input)?;
        let scope = self.scope(aggregate.input.schema(), &below.plan.types);
        let mut outputs: Vec<EngineExpr> = Vec::new();
        let place = |outputs: &mut Vec<EngineExpr>, expr: EngineExpr| {
            outputs.push(expr);
            outputs.len() - 1
        };
        let (group_expr, sets) = match aggregate.group_expr.as_slice() {
            [Expr::GroupingSet(set)] => (set.distinct_expr(), Some(key_sets(set)?)),
            keys => (keys.iter().collect(), None),
        };
        let mut keys = Vec::new();
        for expr in group_expr {
            keys.push(place(&mut outputs, scope.expr(expr)?));
        }
        let is_determined = match sets {
            None => determined(&below.plan, &outputs),
            // Not where the keys that tell are left out.
            Some(_) => vec![false; keys.len()],
        };
        // The sets' number follows the keys.
        let first = keys.len() + usize::from(sets.is_some());
        let shifts = if sets.is_none() { shifts(aggregate) } else { HashMap::new() };
        let mut functions: Vec<AggregateCall> = Vec::new();
        let mut results = Vec::new();
        let mut sums: HashMap<&Expr, (usize, usize)> = HashMap::new();
        for (index, expr) in aggregate.aggr_expr.iter().enumerate() {
            let field = plan.schema().field(first + index);
            let inner = expr.clone().unalias();
            let Expr::AggregateFunction(call) = &inner else { return Err(refused("such aggregate")) };
            let params = &call.params;
            if !params.order_by.is_empty() && !matches!(call.func.name(), "sum" | "count" | "min" | "max" | "avg")
                || params.null_treatment.is_some()
                || params.args.len() > 1
            {
                return Err(refused("such aggregate"));
            }
            let is_any =
                call.func.name() == "first_value" && !params.distinct && params.filter.is_none() && !keys.is_empty();
            let function = match aggregate_function(call.func.name()) {
                None if is_any && sets.is_none() => F::AnyValue,
                function => function.ok_or_else(|| refused("such aggregate"))?,
            };
            if let Some(Shift { unshifted, added_to, by }) = shifts.get(&index)
                && stays_in_type(&scope.expr(added_to)?, *by, field.data_type(), below.plan.rows_max())
            {
                let argument = scope.expr(unshifted)?;
                let (sum, count) = *sums.entry(unshifted).or_insert_with(|| {
                    let argument = Some(place(&mut outputs, argument));
                    let sum = ColumnType::new(field.data_type().clone(), true);
                    let count = ColumnType::new(DataType::Int64, false);
                    for (function, of) in [(AggregateFunction::Sum, sum), (AggregateFunction::Count, count)] {
                        functions.push(AggregateCall { function, argument, filter: None, distinct: false, of });
                    }
                    (functions.len() - 2, functions.len() - 1)
                });
                results.push(Made::Shifted { sum, count, by: *by });
                continue;
            }
            let is_spread = matches!(function, F::VarPop | F::VarSamp | F::StddevPop | F::StddevSamp);
            let argument = match params.args.as_slice() {
                [Expr::Cast(cast)] if is_spread && is_exact(&cast.expr.get_type(aggregate.input.schema())?) => {
                    Some(scope.expr(&cast.expr)?)
                }
                [Expr::Literal(value, _)]
                    if function == AggregateFunction::Count && !value.is_null() && !params.distinct =>
                {
                    None
                }
                [argument] => Some(scope.expr(argument)?),
                _ => return Err(refused("such aggregate")),
            };
            let of = match (function, &argument) {
                (F::Min | F::Max | F::AnyValue, Some(argument)) => ColumnType { nullable: true, ..argument.of.clone() },
                (F::Count, _) => ColumnType::new(field.data_type().clone(), false),
                (F::Sum, Some(argument)) => {
                    let of = ColumnType::new(field.data_type().clone(), true);
                    sum_type(of, &argument.of, below.plan.rows_max())
                }
                _ => ColumnType::new(field.data_type().clone(), true),
            };
            if of.data_type != *field.data_type() {
                return Err(refused("aggregate of this type"));
            }
            let argument = argument.map(|argument| place(&mut outputs, argument));
            let filter = match &params.filter {
                Some(filter) => Some(place(&mut outputs, scope.expr(filter)?)),
                None => None,
            };
            results.push(Made::Function(functions.len()));
            functions.push(AggregateCall { function, argument, filter, distinct: params.distinct, of });
        }
        let input = below.plan.project(outputs);
        let rows_max = input.rows_max();
        let estimate = estimate::of_node(plan, &[below.estimate]);
        let name = Some(crate::charge::named("grouping", &names(aggregate)));
        if let Some(sets) = sets {
            let id = ColumnType::new(plan.schema().field(keys.len()).data_type().clone(), false);
            return Ok(Lowered::new(by_sets(input, keys, sets, id, functions)?.called(name), estimate));
        }
        // Keys that follow from others come with the groups that those make.
        let is_carried = |key: &usize| is_determined[*key];
        let (carried, kept): (Vec<usize>, Vec<usize>) = (0..keys.len()).partition(is_carried);
        let carry = |key: &usize| {
            let of = input.types[keys[*key]].clone();
            AggregateCall { function: F::AnyValue, argument: Some(keys[*key]), filter: None, distinct: false, of }
        };
        let functions = carried.iter().map(carry).chain(functions).collect();
        let has_carried = !carried.is_empty();
        let mut place_of_key = vec![0; keys.len()];
        kept.iter().chain(&carried).enumerate().for_each(|(place, key)| place_of_key[*key] = place);
        let keys = kept.into_iter().map(|key| keys[key]).collect();
        let spec = EngineAggregate { keys, functions, input: input.types.clone(), rows_max };
        own(AggregateTable::new(&spec))?;
        let grouped = input.aggregate(spec).called(name);
        if sums.is_empty() && !has_carried {
            return Ok(Lowered::new(grouped, estimate));
        }
        let column = |index: usize| EngineExpr::column(index, grouped.types[index].clone());
        let made = results.iter().map(|result| match result {
            Made::Function(place) => Ok(column(first + place)),
            Made::Shifted { sum, count, by } => {
                let sum = column(first + sum);
                let of = sum.of.data_type.clone();
                let by = EngineExpr::literal(Scalar::Wide(*by), of.clone());
                let shift = column(first + count).cast(of.clone())?;
                let shift = EngineExpr::arithmetic(ArithmeticOp::Multiply, shift, by, of.clone())?;
                EngineExpr::arithmetic(ArithmeticOp::Add, sum, shift, of)
            }
        });
        let made = own(made.collect::<tidepool_base::Result<Vec<_>>>())?;
        let outputs = place_of_key.into_iter().map(column).chain(made).collect();
        Ok(Lowered::new(grouped.project(outputs), estimate))
    }
}

/// How an aggregate comes of functions, by their numbers.
enum Made {
    Function(usize),
    /// The sum of values all of which are shifted by as much.
    Shifted {
        sum: usize,
        count: usize,
        by: i128,
    },
}

/// Sums of this many shifts of one value are made of its sum and count.
const SHIFTS_MIN: usize = 3;

/// A sum's argument that is another value and a constant integer.
struct Shift {
    /// The argument without the constant.
    unshifted: Expr,
    /// The same before a cast to what sums are of.
    added_to: Expr,
    by: i128,
}

/// By an aggregate's number, sums of `x + c` and `x - c` with several constants.
fn shifts(aggregate: &Aggregate) -> HashMap<usize, Shift> {
    let sums = aggregate.aggr_expr.iter().enumerate().filter_map(|(index, expr)| {
        let Expr::AggregateFunction(call) = expr.clone().unalias() else { return None };
        let params = call.params;
        let plain = !params.distinct && params.filter.is_none() && params.order_by.is_empty();
        let argument = <[Expr; 1]>::try_from(params.args).ok().filter(|_| plain && call.func.name() == "sum")?;
        Some((index, shift(argument.into_iter().next()?)))
    });
    let mut sums: HashMap<usize, Shift> = sums.collect();
    let mut times: HashMap<Expr, usize> = HashMap::new();
    sums.values().for_each(|shift| *times.entry(shift.unshifted.clone()).or_default() += 1);
    sums.retain(|_, shift| times[&shift.unshifted] >= SHIFTS_MIN);
    sums
}

fn shift(expr: Expr) -> Shift {
    let integer = |expr: &Expr| match expr {
        Expr::Literal(ScalarValue::Int16(Some(value)), _) => Some(i128::from(*value)),
        Expr::Literal(ScalarValue::Int32(Some(value)), _) => Some(i128::from(*value)),
        Expr::Literal(ScalarValue::Int64(Some(value)), _) => Some(i128::from(*value)),
        _ => None,
    };
    match &expr {
        Expr::Cast(cast) if *cast.field.data_type() == DataType::Int64 => {
            let Shift { unshifted, by, .. } = shift(cast.expr.as_ref().clone());
            let cast = Cast { expr: Box::new(unshifted.clone()), field: cast.field.clone() };
            return Shift { unshifted: Expr::Cast(cast), added_to: unshifted, by };
        }
        Expr::ScalarFunction(function) => {
            if let Some(arithmetic) = crate::casts::watched(function) {
                return shift(arithmetic);
            }
        }
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            let found = match (op, integer(left), integer(right)) {
                (Operator::Plus, None, Some(by)) => Some((left, by)),
                (Operator::Plus, Some(by), None) => Some((right, by)),
                (Operator::Minus, None, Some(by)) => Some((left, -by)),
                _ => None,
            };
            if let Some((value, by)) = found {
                return Shift { unshifted: value.as_ref().clone(), added_to: value.as_ref().clone(), by };
            }
        }
        _ => {}
    }
    Shift { unshifted: expr.clone(), added_to: expr, by: 0 }
}

/// Adding the constant to any value of an expression leaves none outside of its type, and adding it as many times as there are rows none outside of the
/// sum's.
fn stays_in_type(value: &EngineExpr, by: i128, sum: &DataType, rows_max: u64) -> bool {
    let is_integer = matches!(value.of.data_type, DataType::Int16 | DataType::Int32 | DataType::Int64);
    let (Some((lower, upper)), Some(limits)) = (value.of.bounds, type_bounds(&value.of.data_type)) else {
        return false;
    };
    let within = |bound: i128| bound.checked_add(by).is_some_and(|sum| (limits.0..=limits.1).contains(&sum));
    let all = by.unsigned_abs().checked_mul(rows_max.into());
    let sum_fits = all.is_some_and(|all| matches!(sum, DataType::Decimal128(..)) || all < 1 << 62);
    is_integer && within(lower) && within(upper) && sum_fits
}

/// Of its keys, for people.
fn names(aggregate: &Aggregate) -> Vec<String> {
    match aggregate.group_expr.as_slice() {
        [Expr::GroupingSet(sets)] => sets.distinct_expr().into_iter().map(shown).collect(),
        keys => keys.iter().map(shown).collect(),
    }
}

/// Which of the distinct keys each set has.
fn key_sets(grouping: &GroupingSet) -> PlanResult<Vec<KeySet>> {
    let all = grouping.distinct_expr();
    let width = all.len();
    let is_distinct = |keys: &[Expr]| if keys.len() == width { Ok(()) } else { Err(refused("such grouping sets")) };
    let sets: Vec<Vec<bool>> = match grouping {
        GroupingSet::Rollup(keys) => {
            is_distinct(keys)?;
            (0..=width).map(|len| (0..width).map(|key| key < len).collect()).collect()
        }
        GroupingSet::Cube(keys) if width <= CUBE_KEYS_MAX => {
            is_distinct(keys)?;
            (0..1u32 << width).map(|set| (0..width).map(|key| set >> key & 1 == 1).collect()).collect()
        }
        GroupingSet::Cube(_) => return Err(refused("cube of so many keys")),
        GroupingSet::GroupingSets(sets) => {
            sets.iter().map(|set| all.iter().map(|key| set.contains(key)).collect()).collect()
        }
    };
    let mut numbered: Vec<KeySet> = Vec::with_capacity(sets.len());
    for keys in sets {
        // As DataFusion has it: a bit for each key that is not there, the first key's the highest, and above them how many of the same
        // sets there were before.
        let before = numbered.iter().filter(|known| known.keys == keys).count();
        let missing = keys.iter().fold(0i128, |bits, is_kept| bits << 1 | i128::from(!is_kept));
        let id = (width < 64).then(|| missing | (before as i128) << width).and_then(|id| i64::try_from(id).ok());
        numbered.push(KeySet { id: id.ok_or_else(|| refused("so many grouping sets"))?, keys });
    }
    Ok(numbered)
}

/// Sets of more keys than DataFusion lets through.
const CUBE_KEYS_MAX: usize = 16;

/// Groups of several sets. Where one of them has all keys, and what is known of its groups makes the functions of the others, rows
/// are grouped by that one first.
fn by_sets(
    input: Plan,
    keys: Vec<usize>,
    sets: Vec<KeySet>,
    id: ColumnType,
    functions: Vec<AggregateCall>,
) -> PlanResult<Plan> {
    let rows_max = input.rows_max();
    let has_all = sets.iter().any(|set| !set.keys.contains(&false));
    let finest = if has_all && sets.len() > 1 { parts_of(&functions, &input.types, rows_max) } else { None };
    let Some((parts, places)) = finest else {
        let counts = functions.iter().map(|call| call.function == AggregateFunction::Count).collect();
        return grouped(input, GroupingSets { input: Vec::new(), keys, sets, id, functions, counts, rows_max });
    };
    let width = keys.len();
    let counts = parts.iter().map(|call| call.function == AggregateFunction::Count).collect();
    let merged = parts.iter().enumerate().map(|(index, call)| merging(call, width + index)).collect::<Option<Vec<_>>>();
    let merged = merged.ok_or_else(|| refused("such aggregate"))?;
    let of_all = EngineAggregate { keys, functions: parts, input: input.types.clone(), rows_max };
    own(AggregateTable::new(&of_all))?;
    let keys = (0..width).collect();
    let sets = GroupingSets { input: Vec::new(), keys, sets, id, functions: merged, counts, rows_max };
    let grouped = grouped(input.aggregate(of_all), sets)?;
    let column = |index: usize| EngineExpr::column(index, grouped.types[index].clone());
    let first = width + 1;
    let results = functions.iter().zip(places).map(|(call, place)| match call.function {
        AggregateFunction::Avg => average(column(first + place), column(first + place + 1), call.of.clone()),
        _ => column(first + place),
    });
    let outputs = (0..first).map(column).chain(results).collect();
    Ok(grouped.project(outputs))
}

fn grouped(input: Plan, grouping: GroupingSets) -> PlanResult<Plan> {
    let grouping = GroupingSets { input: input.types.clone(), ..grouping };
    own(grouping.check())?;
    Ok(input.grouping_sets(grouping))
}

/// Functions of parts of the rows that make some functions of all, and where among them each one's are. `None`: not all can be made so.
fn parts_of(
    functions: &[AggregateCall],
    types: &[ColumnType],
    rows_max: u64,
) -> Option<(Vec<AggregateCall>, Vec<usize>)> {
    let (mut parts, mut places) = (Vec::new(), Vec::new());
    for call in functions {
        places.push(parts.len());
        // Each part of a sum of `real` would be rounded to one.
        let is_rounded = call.of.data_type == DataType::Float32 && call.function == AggregateFunction::Sum;
        if call.function == AggregateFunction::Avg {
            parts.extend(grouping::parts(call, types, rows_max)?);
        } else if merging(call, 0).is_some() && !is_rounded {
            parts.push(call.clone());
        } else {
            return None;
        }
    }
    Some((parts, places))
}
