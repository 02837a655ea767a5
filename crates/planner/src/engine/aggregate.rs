//! Aggregates as the engine's, by one set of keys or several.

use super::lower::{Lowered, Lowering, own, refused, shown};
use crate::optimizer::estimate;
use datafusion::arrow::datatypes::DataType;
use datafusion::common::Result as PlanResult;
use datafusion::logical_expr::{Aggregate, Expr, GroupingSet, LogicalPlan};
use tidepool_engine::aggregate::{Aggregate as EngineAggregate, AggregateCall, AggregateFunction, AggregateTable};
use tidepool_engine::expr::Expr as EngineExpr;
use tidepool_engine::grouping::{self, GroupingSets, KeySet, average, merging};
use tidepool_engine::plan::Plan;
use tidepool_engine::types::ColumnType;

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
        _ => return None,
    })
}

impl Lowering<'_> {
    pub(super) fn aggregate(&mut self, aggregate: &Aggregate, plan: &LogicalPlan) -> PlanResult<Lowered> {
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
        // The sets' number follows the keys.
        let first = keys.len() + usize::from(sets.is_some());
        let mut functions = Vec::new();
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
            let function = aggregate_function(call.func.name()).ok_or_else(|| refused("such aggregate"))?;
            let argument = match params.args.as_slice() {
                [Expr::Literal(value, _)]
                    if function == AggregateFunction::Count && !value.is_null() && !params.distinct =>
                {
                    None
                }
                [argument] => Some(scope.expr(argument)?),
                _ => return Err(refused("such aggregate")),
            };
            let of = match (function, &argument) {
                (AggregateFunction::Min | AggregateFunction::Max, Some(argument)) => {
                    ColumnType { nullable: true, ..argument.of.clone() }
                }
                (AggregateFunction::Count, _) => ColumnType::new(field.data_type().clone(), false),
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
            functions.push(AggregateCall { function, argument, filter, distinct: params.distinct, of });
        }
        let input = below.plan.project(outputs);
        let rows_max = input.rows_max();
        let estimate = estimate::of_node(plan, &[below.estimate]);
        let name = Some(crate::charge::named("grouping", &names(aggregate)));
        if let Some(sets) = sets {
            let id = ColumnType::new(plan.schema().field(keys.len()).data_type().clone(), false);
            return Ok(Lowered { plan: by_sets(input, keys, sets, id, functions)?.called(name), estimate });
        }
        let spec = EngineAggregate { keys, functions, input: input.types.clone(), rows_max };
        own(AggregateTable::new(&spec))?;
        Ok(Lowered { plan: input.aggregate(spec).called(name), estimate })
    }
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
