//! Windows as the engine's.

use super::aggregate::aggregate_function;
use super::expressions::{self, Scope};
use super::lower::{Lowered, Lowering, own, refused};
use crate::optimizer::estimate;
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result as PlanResult, ScalarValue};
use datafusion::logical_expr::expr::{NullTreatment, WindowFunction, WindowFunctionParams};
use datafusion::logical_expr::{
    Cast, Expr, LogicalPlan, Window, WindowFrame, WindowFrameBound, WindowFrameUnits, WindowFunctionDefinition,
};
use tidepool_engine::aggregate::AggregateFunction;
use tidepool_engine::expr::{Expr as EngineExpr, Scalar};
use tidepool_engine::sort::SortKey;
use tidepool_engine::types::{Class, ColumnType};
use tidepool_engine::window::{
    Distance, Frame, FrameBound, FrameUnits, Window as EngineWindow, WindowCall, WindowFunction as EngineFunction,
};

/// The columns of a window's input, and those that its expressions add, each once.
struct Columns<'a> {
    scope: Scope<'a>,
    outputs: Vec<EngineExpr>,
    known: Vec<(Expr, usize)>,
}

impl Columns<'_> {
    fn place(&mut self, expr: &Expr) -> PlanResult<usize> {
        if let Some((_, place)) = self.known.iter().find(|(known, _)| known == expr) {
            return Ok(*place);
        }
        let lowered = self.scope.expr(expr)?;
        let place = match lowered.as_column() {
            Some(column) => column,
            None => {
                self.outputs.push(lowered);
                self.outputs.len() - 1
            }
        };
        self.known.push((expr.clone(), place));
        Ok(place)
    }

    fn of(&self, place: usize) -> &ColumnType {
        &self.outputs[place].of
    }
}

/// Calls of one partitioning and order.
struct Group {
    partition: Vec<usize>,
    order: Vec<SortKey>,
    calls: Vec<WindowCall>,
}

/// Where the value of one of DataFusion's calls comes from.
struct Output {
    group: usize,
    call: usize,
    /// A default, as a column of the input, and the call that tells whether it is asked for.
    default: Option<(usize, usize)>,
}

/// A constant integer; `None` for NULL and what is no constant.
fn constant(expr: &Expr) -> Option<i64> {
    match expr {
        Expr::Literal(value, _) => match expressions::scalar(value)? {
            Scalar::Int(value) => Some(value),
            _ => None,
        },
        Expr::Negative(value) => constant(value)?.checked_neg(),
        Expr::Cast(cast) if cast.field.data_type().is_integer() => constant(&cast.expr),
        _ => None,
    }
}

impl Lowering<'_> {
    pub(super) fn window(&mut self, window: &Window, plan: &LogicalPlan) -> PlanResult<Lowered> {
        let below = self.input(&window.input)?;
        let width = below.plan.types.len();
        let scope = self.scope(window.input.schema(), &below.plan.types);
        let outputs = below.plan.types.iter().enumerate().map(|(index, of)| EngineExpr::column(index, of.clone()));
        let mut columns = Columns { scope, outputs: outputs.collect(), known: Vec::new() };
        let mut groups: Vec<Group> = Vec::new();
        let mut results = Vec::new();
        for (index, expr) in window.window_expr.iter().enumerate() {
            let inner = expr.clone().unalias();
            let Expr::WindowFunction(call) = &inner else { return Err(refused("such window")) };
            let data_type = plan.schema().field(width + index).data_type();
            results.push(call_of(call, data_type, &mut columns, &mut groups)?);
        }
        let estimate = estimate::of_node(plan, &[below.estimate]);
        let outputs = columns.outputs;
        let input_width = outputs.len();
        let mut lowered = if input_width > width { below.plan.project(outputs) } else { below.plan };
        lowered.rows_estimated = Some(estimate.rows);
        // Where each group's columns begin.
        let mut starts = Vec::new();
        for Group { partition, order, calls } in groups {
            starts.push(lowered.types.len());
            let input = lowered.types.clone();
            let output = (0..input.len()).collect();
            let spec = EngineWindow { input, partition, order, functions: calls, output, first: None };
            own(spec.check())?;
            lowered = lowered.window(spec);
            lowered.rows_estimated = Some(estimate.rows);
        }
        let column = |index: usize| EngineExpr::column(index, lowered.types[index].clone());
        let mut all: Vec<EngineExpr> = (0..width).map(column).collect();
        for Output { group, call, default } in results {
            let value = column(starts[group] + call);
            all.push(match default {
                None => value,
                Some((default, is_there)) => {
                    let is_there = column(starts[group] + is_there);
                    own(EngineExpr::case(vec![(is_there, value)], Some(column(default))))?
                }
            });
        }
        Ok(Lowered::new(lowered.project(all), estimate))
    }
}

fn call_of(
    call: &WindowFunction,
    data_type: &DataType,
    columns: &mut Columns<'_>,
    groups: &mut Vec<Group>,
) -> PlanResult<Output> {
    let params = &call.params;
    if params.distinct || params.null_treatment == Some(NullTreatment::IgnoreNulls) {
        return Err(refused("such window function"));
    }
    let partition = params.partition_by.iter().map(|expr| columns.place(expr)).collect::<PlanResult<Vec<_>>>()?;
    let mut order: Vec<SortKey> = Vec::new();
    for key in &params.order_by {
        // A constant orders nothing.
        if matches!(key.expr, Expr::Literal(..)) {
            continue;
        }
        let column = columns.place(&key.expr)?;
        order.push(SortKey { column, descending: !key.asc, nulls_first: key.nulls_first });
    }
    let group = groups.iter().position(|known| known.partition == partition && known.order == order);
    let group = group.unwrap_or_else(|| {
        groups.push(Group { partition, order: order.clone(), calls: Vec::new() });
        groups.len() - 1
    });
    let key = order.first().map(|key| columns.of(key.column).clone());
    let frame = frame(&params.window_frame, key.as_ref())?;
    let function = function(call)?;
    let argument = match (function, params.args.as_slice()) {
        (EngineFunction::Aggregate(AggregateFunction::Count), [Expr::Literal(value, _)]) if !value.is_null() => None,
        (EngineFunction::Aggregate(_), [argument]) => Some(columns.place(argument)?),
        (EngineFunction::Aggregate(_), _) => return Err(refused("such window function")),
        (EngineFunction::Shift(_) | EngineFunction::FirstValue | EngineFunction::LastValue, [argument, ..])
        | (EngineFunction::NthValue(_), [argument, _]) => Some(columns.place(argument)?),
        _ => None,
    };
    let filter = match &params.filter {
        Some(filter) if matches!(function, EngineFunction::Aggregate(_)) => Some(columns.place(filter)?),
        Some(_) => return Err(refused("such window function")),
        None => None,
    };
    let of = result_type(function, argument.map(|argument| columns.of(argument)), data_type)?;
    let default = default(function, params, data_type, columns)?;
    let calls = &mut groups[group].calls;
    let mut add = |function, argument, of| {
        calls.push(WindowCall { function, argument, filter, frame, of });
        calls.len() - 1
    };
    let value = add(function, argument, of);
    let default = match (function, default) {
        (EngineFunction::Shift(shift), Some(default)) => {
            Some((default, add(EngineFunction::HasShift(shift), None, ColumnType::new(DataType::Boolean, false))))
        }
        _ => None,
    };
    Ok(Output { group, call: value, default })
}

fn function(call: &WindowFunction) -> PlanResult<EngineFunction> {
    use EngineFunction as F;
    let arguments = call.params.args.as_slice();
    let number = |index: usize| match arguments.get(index) {
        None => Ok(None),
        Some(argument) => constant(argument).map(Some).ok_or_else(|| refused("such argument of a window function")),
    };
    let is_window = matches!(call.fun, WindowFunctionDefinition::WindowUDF(_));
    let name = call.fun.name();
    let other = || refused("such window function");
    let at_most = |most: usize| if arguments.len() <= most { Ok(()) } else { Err(other()) };
    Ok(match name {
        "row_number" => F::RowNumber,
        "rank" => F::Rank,
        "dense_rank" => F::DenseRank,
        "percent_rank" => F::PercentRank,
        "cume_dist" => F::CumeDist,
        "ntile" => F::Ntile(number(0)?.ok_or_else(other)?),
        "lead" => F::Shift(number(1)?.unwrap_or(1)),
        "lag" => F::Shift(number(1)?.unwrap_or(1).checked_neg().ok_or_else(other)?),
        "first_value" => at_most(1).map(|()| F::FirstValue)?,
        "last_value" => at_most(1).map(|()| F::LastValue)?,
        "nth_value" => F::NthValue(number(1)?.ok_or_else(other)?),
        _ if is_window => return Err(other()),
        name => F::Aggregate(aggregate_function(name).ok_or_else(other)?),
    })
}

fn result_type(
    function: EngineFunction,
    argument: Option<&ColumnType>,
    data_type: &DataType,
) -> PlanResult<ColumnType> {
    use AggregateFunction as A;
    use EngineFunction as F;
    let of = match (function, argument) {
        (
            F::Shift(_)
            | F::FirstValue
            | F::LastValue
            | F::NthValue(_)
            | F::Aggregate(A::Min | A::Max | A::BoolAnd | A::BoolOr),
            Some(argument),
        ) => ColumnType { nullable: true, ..argument.clone() },
        (F::Aggregate(A::Sum | A::Avg), _) => ColumnType::new(data_type.clone(), true),
        _ => ColumnType::new(data_type.clone(), false),
    };
    if of.data_type == *data_type { Ok(of) } else { Err(refused("window function of this type")) }
}

/// What `lag` and `lead` give where there is no row, as a column of the input.
fn default(
    function: EngineFunction,
    params: &WindowFunctionParams,
    data_type: &DataType,
    columns: &mut Columns<'_>,
) -> PlanResult<Option<usize>> {
    let (EngineFunction::Shift(_), Some(default)) = (function, params.args.get(2)) else { return Ok(None) };
    match default {
        Expr::Literal(value, _) if value.is_null() => Ok(None),
        Expr::Literal(value, _) if value.data_type() == *data_type => columns.place(default).map(Some),
        default => {
            let cast = Expr::Cast(Cast::new(Box::new(default.clone()), data_type.clone()));
            columns.place(&cast).map(Some)
        }
    }
}

/// `key`: the first order key, of a range by values.
fn frame(frame: &WindowFrame, key: Option<&ColumnType>) -> PlanResult<Frame> {
    let units = match frame.units {
        WindowFrameUnits::Rows => FrameUnits::Rows,
        WindowFrameUnits::Range => FrameUnits::Range,
        WindowFrameUnits::Groups => FrameUnits::Groups,
    };
    let at = |value: &ScalarValue, is_before: bool| -> PlanResult<FrameBound> {
        let distance = if units == FrameUnits::Range {
            range_distance(value, key.ok_or_else(|| refused("such frame"))?)?
        } else {
            let ScalarValue::UInt64(Some(rows)) = value else { return Err(refused("such frame")) };
            Distance::Whole((*rows).into())
        };
        Ok(FrameBound::At(match distance {
            Distance::Whole(distance) if is_before => Distance::Whole(-distance),
            Distance::Float(distance) if is_before => Distance::Float(-distance),
            distance => distance,
        }))
    };
    let bound = |bound: &WindowFrameBound| match bound {
        WindowFrameBound::Preceding(value) if value.is_null() => Ok(FrameBound::First),
        WindowFrameBound::Preceding(value) => at(value, true),
        WindowFrameBound::CurrentRow => Ok(FrameBound::Current),
        WindowFrameBound::Following(value) if value.is_null() => Ok(FrameBound::Last),
        WindowFrameBound::Following(value) => at(value, false),
    };
    Ok(Frame { units, start: bound(&frame.start_bound)?, end: bound(&frame.end_bound)? })
}

/// How far a range goes over a key's values, in its units. Below 0 is refused.
fn range_distance(value: &ScalarValue, key: &ColumnType) -> PlanResult<Distance> {
    let other = || refused("frame over such values");
    let is_number = matches!(
        key.data_type,
        DataType::Int8
            | DataType::Int16
            | DataType::Int32
            | DataType::Int64
            | DataType::Decimal128(..)
            | DataType::Float32
            | DataType::Float64
    );
    if !is_number || value.data_type() != key.data_type && !same_scale(&value.data_type(), key) {
        return Err(other());
    }
    match (expressions::scalar(value).ok_or_else(other)?, key.class()) {
        (Scalar::Int(distance @ 0..), Class::Int | Class::Wide) => Ok(Distance::Whole(distance.into())),
        (Scalar::Wide(distance @ 0..), Class::Int | Class::Wide) => Ok(Distance::Whole(distance)),
        // A `real` would be rounded after each sum.
        (Scalar::Float(distance), Class::Float) if distance >= 0.0 && key.data_type == DataType::Float64 => {
            Ok(Distance::Float(distance))
        }
        _ => Err(other()),
    }
}

fn same_scale(data_type: &DataType, key: &ColumnType) -> bool {
    ColumnType::new(data_type.clone(), true).scale().is_some_and(|scale| key.scale() == Some(scale))
}
