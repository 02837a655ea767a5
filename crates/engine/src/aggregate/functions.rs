//! What is aggregated, and which accumulators it takes: functions of one argument share theirs.

use super::states::{Accumulator, Primitive};
use crate::types::{Class, ColumnType, fits_i64};
use arrow_schema::DataType;
use tidepool_base::{Error, Result};

/// An aggregate function, of the values of its argument that are not NULL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AggregateFunction {
    /// Of rows when there is no argument.
    Count,
    Sum,
    Min,
    Max,
    /// A decimal is rounded half away from zero to the result's scale, from the exact sum and count.
    Avg,
    BoolAnd,
    BoolOr,
    /// Of columns that have one value in a group: some row's, which may be NULL where another's is not.
    AnyValue,
    /// Of integers and decimals of moderate size, from exact sums.
    VarPop,
    VarSamp,
    StddevPop,
    StddevSamp,
}

/// A call of a function.
#[derive(Clone, Debug, PartialEq)]
pub struct AggregateCall {
    pub function: AggregateFunction,
    /// A column of the input; `None` for `count(*)` only.
    pub argument: Option<usize>,
    /// A boolean column: only rows in which it is true count.
    pub filter: Option<usize>,
    pub distinct: bool,
    /// Of the result. Sums of integers are `Int64` or a decimal of scale 0, those of decimals have the argument's scale.
    pub of: ColumnType,
}

/// Rows that are taken: those whose argument is there and whose filter is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Take {
    pub argument: Option<usize>,
    pub filter: Option<usize>,
}

/// How a column of the result is made of a group's row.
#[derive(Clone, Copy, Debug)]
pub(super) enum Output {
    /// A column of the stored row.
    Stored(usize),
    Count(usize),
    /// `seen`: NULL where this count is 0.
    Sum {
        sum: usize,
        seen: Option<usize>,
    },
    /// The result has `shift` digits more after the point than the sum.
    Average {
        sum: usize,
        count: usize,
        shift: i32,
    },
    Extreme {
        value: usize,
        seen: Option<usize>,
    },
    /// Text knows itself whether it is there.
    Text(usize),
    Moments {
        moments: usize,
        of: AggregateFunction,
    },
}

/// Accumulators that some functions need, each once.
#[derive(Debug, Default)]
pub(super) struct Needs {
    pub takes: Vec<Take>,
    pub accumulators: Vec<Accumulator>,
    /// Columns and filters whose values are taken once a group.
    pub sets: Vec<Take>,
    /// Columns that are stored when a group is made.
    pub carried: Vec<usize>,
}

/// The largest magnitude that a sum can have.
fn sum_limit(of: &ColumnType, rows_max: u64) -> Option<i128> {
    let (lower, upper) = of.bounds?;
    let most = lower.checked_abs()?.max(upper.checked_abs()?);
    most.checked_mul(i128::from(rows_max))
}

/// What a sum of type `of` has, of up to so many of an argument's values: their bounds as often as that.
pub fn sum_type(of: ColumnType, argument: &ColumnType, rows_max: u64) -> ColumnType {
    let is_number = matches!(argument.class(), Class::Int | Class::Wide) && argument.scale() == of.scale();
    let all = |bound: i128| bound.checked_mul(rows_max.into());
    let bounds = argument.bounds.filter(|_| is_number && argument.dictionary.is_none());
    let bounds = bounds.and_then(|(lower, upper)| all(lower.min(0)).zip(all(upper.max(0))));
    bounds.map_or(of.clone(), |bounds| of.within(bounds))
}

/// Whether 64 bits hold the sum of so many values' squares. Then they hold that of the values.
fn squares_fit(of: &ColumnType, rows_max: u64) -> bool {
    let Some((lower, upper)) = of.bounds else { return false };
    let most = lower.unsigned_abs().max(upper.unsigned_abs());
    let sum = most.checked_mul(most).and_then(|square| square.checked_mul(rows_max.into()));
    sum.is_some_and(|sum| sum <= i64::MAX as u128)
}

impl Needs {
    fn take(&mut self, take: Take) -> usize {
        if let Some(known) = self.takes.iter().position(|known| *known == take) {
            return known;
        }
        self.takes.push(take);
        self.takes.len() - 1
    }

    fn accumulator(&mut self, wanted: Accumulator) -> usize {
        let same = |known: &Accumulator| {
            (known.primitive, known.argument, known.take, known.set)
                == (wanted.primitive, wanted.argument, wanted.take, wanted.set)
        };
        if let Some(known) = self.accumulators.iter().position(same) {
            return known;
        }
        self.accumulators.push(wanted);
        self.accumulators.len() - 1
    }

    /// What a call needs. `base`: columns that rows store before the carried ones. Fails for types that the function has not.
    pub fn of_call(
        &mut self,
        call: &AggregateCall,
        input: &[ColumnType],
        has_keys: bool,
        rows_max: u64,
        base: usize,
    ) -> Result<Output> {
        use AggregateFunction as F;
        let wrong = |what: &str| Err(Error::internal(format!("{:?} {what}", call.function)));
        let Some(argument) = call.argument else {
            if call.function != F::Count {
                return wrong("without an argument");
            }
            let take = self.take(Take { argument: None, filter: call.filter });
            return Ok(Output::Count(self.accumulator(Accumulator::new(Primitive::Count, None, take, None))));
        };
        let of = &input[argument];
        let class = of.class();
        if call.function == F::AnyValue && call.filter.is_none() && has_keys {
            if class == Class::Other {
                return wrong("of values that rows do not hold");
            }
            let place = match self.carried.iter().position(|known| *known == argument) {
                Some(place) => place,
                None => {
                    self.carried.push(argument);
                    self.carried.len() - 1
                }
            };
            return Ok(Output::Stored(base + place));
        }
        // What a set holds of repeated values does not change these.
        let repeats_count = !matches!(call.function, F::Min | F::Max | F::BoolAnd | F::BoolOr | F::AnyValue);
        let narrowed = Take { argument: of.nullable.then_some(argument), filter: call.filter };
        let (take, set) = if call.distinct && repeats_count {
            let wanted = Take { argument: Some(argument), filter: call.filter };
            let set = self.sets.iter().position(|known| *known == wanted).unwrap_or_else(|| {
                self.sets.push(wanted);
                self.sets.len() - 1
            });
            (self.take(Take { argument: None, filter: None }), Some(set))
        } else {
            (self.take(narrowed), None)
        };
        let new = |primitive| Accumulator::new(primitive, Some(argument), take, set);
        let count = Accumulator::new(Primitive::Count, None, take, set);
        let may_be_empty = !has_keys || narrowed != (Take { argument: None, filter: None });
        let seen = |needs: &mut Needs| may_be_empty.then(|| needs.accumulator(count));
        let limit = sum_limit(of, rows_max);
        let sum = match class {
            Class::Int if limit.is_some_and(|limit| fits_i64((-limit, limit))) => Some(Primitive::SumInt64),
            Class::Int => Some(Primitive::SumInt128),
            Class::Wide if limit.is_some() => Some(Primitive::SumInt128),
            Class::Wide => Some(Primitive::SumWide),
            Class::Float => Some(Primitive::SumFloat),
            _ => None,
        };
        Ok(match call.function {
            F::Count => Output::Count(self.accumulator(count)),
            F::Sum => {
                let Some(sum) = sum else { return wrong("of values that are no numbers") };
                let is_float = class == Class::Float;
                if is_float != (call.of.class() == Class::Float) || !is_float && of.scale() != call.of.scale() {
                    return wrong("of another type than its argument");
                }
                Output::Sum { sum: self.accumulator(new(sum)), seen: seen(self) }
            }
            F::Avg => {
                let Some(sum) = sum else { return wrong("of values that are no numbers") };
                let shift = match (class, call.of.class()) {
                    (Class::Float, Class::Float) => 0,
                    (Class::Float, _) | (_, Class::Bool | Class::Text | Class::Other) => {
                        return wrong("of another type than its argument");
                    }
                    (_, Class::Float) => -i32::from(of.scale().unwrap_or(0)),
                    _ => i32::from(call.of.scale().unwrap_or(0)) - i32::from(of.scale().unwrap_or(0)),
                };
                Output::Average { sum: self.accumulator(new(sum)), count: self.accumulator(count), shift }
            }
            F::Min | F::Max | F::AnyValue | F::BoolAnd | F::BoolOr => {
                let least = matches!(call.function, F::Min | F::BoolAnd);
                let primitive = match class {
                    Class::Text if call.function == F::AnyValue => Primitive::TextFirst,
                    Class::Text => Primitive::TextExtreme { least },
                    Class::Wide => Primitive::WideExtreme { least },
                    Class::Int | Class::Float | Class::Bool => Primitive::Extreme { least },
                    Class::Other => return wrong("of values without an order"),
                };
                if call.of.class() != class {
                    return wrong("of another type than its argument");
                }
                match class {
                    Class::Text => Output::Text(self.accumulator(new(primitive))),
                    _ => Output::Extreme { value: self.accumulator(new(primitive)), seen: seen(self) },
                }
            }
            F::VarPop | F::VarSamp | F::StddevPop | F::StddevSamp => {
                if sum.is_none() || call.of.class() != Class::Float {
                    return wrong("of values that are no numbers");
                }
                let scale = i32::from(of.scale().unwrap_or(0));
                let mut moments = new(Primitive::Moments);
                moments.unit = 10f64.powi(-scale);
                if class == Class::Int && squares_fit(of, rows_max) {
                    moments = Accumulator { unit: 10f64.powi(scale), ..new(Primitive::ExactMoments) };
                }
                Output::Moments { moments: self.accumulator(moments), of: call.function }
            }
        })
    }
}

/// Bounds of what a type can hold; of integers and decimals.
pub(crate) fn result_bounds(of: &ColumnType) -> (i128, i128) {
    let (lower, upper) = crate::types::type_bounds(&of.data_type).unwrap_or((i128::MIN, i128::MAX));
    // A class narrower than its type was promised to hold all results.
    if of.class() == Class::Int { (lower.max(i64::MIN.into()), upper.min(i64::MAX.into())) } else { (lower, upper) }
}

pub(crate) fn out_of_range(of: &ColumnType) -> Error {
    let message = match of.data_type {
        DataType::Int16 => "smallint out of range",
        DataType::Int32 => "integer out of range",
        DataType::Int64 => "bigint out of range",
        _ => "numeric field overflow",
    };
    Error::new(tidepool_base::SqlState::NUMERIC_VALUE_OUT_OF_RANGE, message)
}
