//! What a query aggregates to.

use super::datum::{Datum, is_covered, is_ordered};
use super::expr::{Compiler, Expr, Inputs};
use crate::errors::from_datafusion;
use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{Accumulator, Expr as PlanExpr, ExprSchemable};
use datafusion::physical_expr::aggregate::{AggregateExprBuilder, AggregateFunctionExpr};
use datafusion::physical_expr::expressions::Column;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use tidepool_base::{Error, Result};

pub enum Function {
    CountRows,
    Count,
    /// Different values that are not NULL.
    CountDistinct,
    /// Of `bigint` or numeric.
    Sum,
    Least,
    Greatest,
    /// As DataFusion has it.
    Other(Arc<AggregateFunctionExpr>),
}

pub struct Aggregate {
    function: Function,
    arguments: Vec<(Expr, DataType)>,
    returns: DataType,
}

/// What one has seen so far.
pub enum State {
    Count(i64),
    Distinct(BTreeSet<Vec<u8>>),
    Sum(Option<i128>, bool),
    Extreme(Option<Datum<'static>>),
    /// Values of each argument, for the end.
    Other(Vec<Vec<Datum<'static>>>),
}

impl Aggregate {
    pub fn of(compiler: &Compiler<'_>, expr: &PlanExpr, schema: &DFSchema, inputs: &Inputs) -> Option<Aggregate> {
        let expr = match expr {
            PlanExpr::Alias(alias) => &alias.expr,
            expr => expr,
        };
        let PlanExpr::AggregateFunction(AggregateFunction { func, params }) = expr else { return None };
        if params.filter.is_some() || !params.order_by.is_empty() || params.null_treatment.is_some() {
            return None;
        }
        let returns = expr.get_type(schema).ok()?;
        is_covered(&returns).then_some(())?;
        let arguments = (params.args.iter())
            .map(|argument| {
                let data_type = argument.get_type(schema).ok()?;
                is_covered(&data_type).then_some(())?;
                Some((compiler.compile(argument, schema, inputs)?, data_type))
            })
            .collect::<Option<Vec<_>>>()?;
        let [(argument, data_type)] = arguments.as_slice() else { return None };
        let function = match (func.name(), params.distinct) {
            ("count", false) if matches!(argument, Expr::Constant(value) if !value.is_null()) => Function::CountRows,
            ("count", false) => Function::Count,
            ("count", true) if is_ordered(data_type) => Function::CountDistinct,
            ("sum", false)
                if matches!(
                    (data_type, &returns),
                    (DataType::Decimal128(_, from), DataType::Decimal128(_, to)) if from == to
                ) =>
            {
                Function::Sum
            }
            ("min", _) if is_ordered(data_type) && returns == *data_type => Function::Least,
            ("max", _) if is_ordered(data_type) && returns == *data_type => Function::Greatest,
            ("sum" | "avg" | "count", distinct) => {
                let fields = [Field::new("0", data_type.clone(), true)];
                let built = AggregateExprBuilder::new(func.clone(), vec![Arc::new(Column::new("0", 0))])
                    .schema(Arc::new(Schema::new(fields.to_vec())))
                    .alias("0")
                    .with_distinct(distinct)
                    .build();
                Function::Other(Arc::new(built.ok()?))
            }
            _ => return None,
        };
        Some(Aggregate { function, arguments, returns })
    }

    pub fn arguments(&self) -> impl Iterator<Item = &Expr> {
        self.arguments.iter().map(|(expr, _)| expr)
    }

    pub fn arguments_mut(&mut self) -> impl Iterator<Item = &mut Expr> {
        self.arguments.iter_mut().map(|(expr, _)| expr)
    }

    pub fn begin(&self) -> State {
        match &self.function {
            Function::CountRows | Function::Count => State::Count(0),
            Function::CountDistinct => State::Distinct(BTreeSet::new()),
            Function::Sum => State::Sum(None, false),
            Function::Least | Function::Greatest => State::Extreme(None),
            Function::Other(_) => State::Other(self.arguments.iter().map(|_| Vec::new()).collect()),
        }
    }

    pub fn add(&self, state: &mut State, frame: &super::expr::Frame<'_>) -> Result<()> {
        if let (Function::CountRows, State::Count(count)) = (&self.function, &mut *state) {
            *count += 1;
            return Ok(());
        }
        let value = self.arguments[0].0.evaluate(frame)?;
        match state {
            State::Other(columns) => columns[0].push(value.into_owned()),
            _ if value.is_null() => {}
            State::Count(count) => *count += 1,
            State::Distinct(seen) => {
                let mut bytes = Vec::new();
                tell_apart(&value, &mut bytes)?;
                seen.insert(bytes);
            }
            State::Sum(sum, overflows) => {
                let Datum::Numeric(value) = value else { return Err(Error::internal("a sum of no numbers")) };
                match sum.unwrap_or(0).checked_add(value) {
                    Some(next) => *sum = Some(next),
                    None => *overflows = true,
                }
            }
            State::Extreme(best) => {
                let wanted = match self.function {
                    Function::Least => std::cmp::Ordering::Less,
                    _ => std::cmp::Ordering::Greater,
                };
                if best.as_ref().is_none_or(|best| value.order(best) == wanted) {
                    *best = Some(value.into_owned());
                }
            }
        }
        Ok(())
    }

    /// `None` where only the general path knows what comes of it.
    pub fn end(&self, state: State) -> Result<Option<Datum<'static>>> {
        Ok(Some(match state {
            State::Count(count) => Datum::Int(count),
            State::Distinct(seen) => Datum::Int(seen.len() as i64),
            State::Sum(_, true) => return Ok(None),
            State::Sum(None, false) => Datum::Null,
            State::Sum(Some(sum), false) => match &self.returns {
                DataType::Decimal128(precision, _)
                    if sum.unsigned_abs() >= 10u128.checked_pow(u32::from(*precision)).unwrap_or(u128::MAX) =>
                {
                    return Ok(None);
                }
                _ => Datum::Numeric(sum),
            },
            State::Extreme(best) => best.unwrap_or(Datum::Null),
            State::Other(columns) => {
                let Function::Other(function) = &self.function else {
                    return Err(Error::internal("values were kept for no function"));
                };
                let mut accumulator = function.create_accumulator().map_err(from_datafusion)?;
                let arrays = (columns.iter().zip(&self.arguments))
                    .map(|(values, (_, data_type))| Datum::array(values, data_type))
                    .collect::<Result<Vec<ArrayRef>>>()?;
                Some(accumulated(accumulator.as_mut(), &arrays)?)
                    .and_then(|value| Datum::of_scalar(&value))
                    .ok_or_else(|| Error::internal("an aggregate of a type that no column has"))?
            }
        }))
    }
}

/// Puts bytes behind `out` that no other value of the same type has, nor one of which they are a beginning; of values that are
/// [`is_ordered`].
fn tell_apart(value: &Datum<'_>, out: &mut Vec<u8>) -> Result<()> {
    let mut counted = |bytes: &[u8]| {
        out.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
        out.extend_from_slice(bytes);
    };
    match value {
        Datum::Int(value) => counted(&value.to_be_bytes()),
        Datum::Numeric(value) => counted(&value.to_be_bytes()),
        Datum::Boolean(value) => counted(&[u8::from(*value)]),
        Datum::Text(text) => counted(text.as_bytes()),
        Datum::Bytes(bytes) => counted(bytes),
        Datum::Null => out.extend_from_slice(&u64::MAX.to_be_bytes()),
        other => return Err(Error::internal(format!("{other:?} cannot be told apart"))),
    }
    Ok(())
}

/// Rows by what they are grouped by.
#[derive(Default)]
pub struct Groups {
    /// In the order in which they came.
    groups: Vec<(Vec<Datum<'static>>, Vec<State>)>,
    found: HashMap<Vec<u8>, usize>,
}

impl Groups {
    pub fn add(&mut self, by: &[Expr], aggregates: &[Aggregate], frame: &super::expr::Frame<'_>) -> Result<()> {
        let group = if by.is_empty() { 0 } else { self.group_of(by, aggregates, frame)? };
        let states = &mut self.groups[group].1;
        aggregates.iter().zip(states).try_for_each(|(aggregate, state)| aggregate.add(state, frame))
    }

    fn group_of(&mut self, by: &[Expr], aggregates: &[Aggregate], frame: &super::expr::Frame<'_>) -> Result<usize> {
        let mut key = Vec::new();
        let values = by.iter().map(|expr| expr.evaluate(frame)).collect::<Result<Vec<_>>>()?;
        values.iter().try_for_each(|value| tell_apart(value, &mut key))?;
        let next = self.groups.len();
        let group = *self.found.entry(key).or_insert(next);
        if group == next {
            let values = values.into_iter().map(Datum::into_owned).collect();
            self.groups.push((values, aggregates.iter().map(Aggregate::begin).collect()));
        }
        Ok(group)
    }

    /// The one group of all rows, of which there may be none.
    pub fn of_all(aggregates: &[Aggregate]) -> Groups {
        let group = (Vec::new(), aggregates.iter().map(Aggregate::begin).collect());
        Groups { groups: vec![group], found: HashMap::new() }
    }

    /// Of each group its values and what its rows aggregate to. `None` where only the general path knows.
    pub fn end(self, aggregates: &[Aggregate]) -> Result<Option<Vec<Vec<Datum<'static>>>>> {
        let mut all = Vec::with_capacity(self.groups.len());
        for (mut slots, states) in self.groups {
            for (aggregate, state) in aggregates.iter().zip(states) {
                match aggregate.end(state)? {
                    Some(value) => slots.push(value),
                    None => return Ok(None),
                }
            }
            all.push(slots);
        }
        Ok(Some(all))
    }
}

fn accumulated(accumulator: &mut dyn Accumulator, arrays: &[ArrayRef]) -> Result<ScalarValue> {
    accumulator.update_batch(arrays).map_err(from_datafusion)?;
    accumulator.evaluate().map_err(from_datafusion)
}
