//! Aggregates of frames.

use super::Checks;
use super::evaluate::{NONE, pick};
use super::frame::Spans;
use super::functions::WindowCall;
use super::layout::Segment;
use super::slide::{Count, Exact, Queue, Sum, slide};
use crate::aggregate::{AggregateFunction, SumWide, out_of_range, result_bounds};
use crate::evaluate::Fault;
use crate::mask::Mask;
use crate::room;
use crate::sort::keys::compare_values;
use crate::types::{Class, ColumnType};
use crate::vector::{Values, Vector};
use tidepool_base::{Error, Result};

/// One value a row. `scale`: the argument's, of a decimal. Fails (22003) for sums that their type does not hold.
pub(super) fn column(
    function: AggregateFunction,
    call: &WindowCall,
    scale: i8,
    segment: &Segment,
    frame: &Spans,
    checks: &Checks,
) -> Result<Vector> {
    use AggregateFunction as F;
    let argument = call.argument.map(|column| segment.column(column)).transpose()?;
    let filter = call.filter.map(|column| segment.column(column)).transpose()?;
    let filter = match &filter {
        None => None,
        Some(filter) => {
            let is_true = filter.as_bools()?;
            Some(filter.valid.as_ref().map_or_else(|| is_true.clone(), |valid| valid.and(is_true)))
        }
    };
    let valid = argument.as_ref().and_then(|argument| argument.valid.as_ref());
    let taken = Mask::both(valid, filter.as_ref());
    let takes = |row: usize| taken.as_ref().is_none_or(|taken| taken.get(row));
    let layout = &segment.layout;
    if function == F::Count {
        let mut counts = room::filled(0, layout.rows as usize)?;
        slide(frame, layout, checks, &mut Count { takes, count: 0 }, |from, to, state| {
            counts[from as usize..to as usize].fill(state.count as i64);
        })?;
        return Ok(Vector::ints(counts));
    }
    let argument = argument.ok_or_else(|| Error::internal(format!("{function:?} without an argument")))?;
    match (function, &argument.values) {
        (F::Sum | F::Avg, Values::Int(values)) => {
            let mut state = Sum { values, takes, sum: 0i128, count: 0 };
            exact(function, &call.of, scale, (segment, frame, checks), &mut state, &|values| floats(call, values))
        }
        (F::Sum | F::Avg, Values::Wide(values)) => {
            let mut state = Sum { values, takes, sum: SumWide::default(), count: 0 };
            exact(function, &call.of, scale, (segment, frame, checks), &mut state, &|values| floats(call, values))
        }
        (F::Sum | F::Avg, Values::Float(values)) => {
            let of = |row: u32| takes(row as usize).then(|| (values[row as usize], 1u64));
            let mut queue = Queue::new(frame, of, |a: (f64, u64), b: (f64, u64)| (a.0 + b.0, a.1 + b.1))?;
            let mut sums = room::filled(None, layout.rows as usize)?;
            slide(frame, layout, checks, &mut queue, |from, to, state| {
                let value = state.value().map(|(sum, count)| if function == F::Sum { sum } else { sum / count as f64 });
                sums[from as usize..to as usize].fill(value);
            })?;
            let has_infinite = || (0..values.len()).any(|row| takes(row) && values[row].is_infinite());
            let sums = floats(call, &sums)?;
            match &sums.values {
                Values::Float(values) if values.iter().any(|sum| sum.is_infinite()) && !has_infinite() => {
                    Err(Fault::Overflow.error())
                }
                _ => Ok(sums),
            }
        }
        (F::Min | F::Max | F::BoolAnd | F::BoolOr, _) => {
            let least = matches!(function, F::Min | F::BoolAnd);
            let of = |row: u32| takes(row as usize).then_some(row);
            // Of equal ones, the first.
            let better = |a: u32, b: u32| {
                let order = compare_values(&argument, a as usize, &argument, b as usize);
                if if least { order.is_le() } else { order.is_ge() } { a } else { b }
            };
            let mut rows = room::filled(NONE, layout.rows as usize)?;
            slide(frame, layout, checks, &mut Queue::new(frame, of, better)?, |from, to, state| {
                rows[from as usize..to as usize].fill(state.value().unwrap_or(NONE));
            })?;
            pick(&argument, &rows)
        }
        _ => Err(Error::internal(format!("{function:?} of such values"))),
    }
}

fn floats(call: &WindowCall, values: &[Option<f64>]) -> Result<Vector> {
    let real = |value: f64| if call.is_single() { f64::from(value as f32) } else { value };
    let valid = Mask::of_values(values, |value: Option<f64>| value.is_some());
    let values = room::collected(values.len(), values.iter().map(|value| real(value.unwrap_or(0.0))))?;
    Ok(Vector { values: Values::Float(values.into()), valid: None }.with_valid(Some(valid)))
}

/// Sums and averages of integers and decimals.
fn exact<E: Exact, F: Fn(usize) -> bool>(
    function: AggregateFunction,
    of: &ColumnType,
    scale: i8,
    (segment, frame, checks): (&Segment, &Spans, &Checks),
    state: &mut Sum<'_, E, F>,
    floats: &dyn Fn(&[Option<f64>]) -> Result<Vector>,
) -> Result<Vector> {
    let is_sum = function == AggregateFunction::Sum;
    let rows = segment.layout.rows as usize;
    if of.class() == Class::Float {
        let unit = 10f64.powi(-i32::from(scale));
        let mut values = room::filled(None, rows)?;
        slide(frame, &segment.layout, checks, state, |from, to, state| {
            let average = || state.sum.wide().to_f64() * unit / state.count as f64;
            values[from as usize..to as usize].fill((state.count > 0).then(average));
        })?;
        return floats(&values);
    }
    let shift = i32::from(of.scale().unwrap_or(0)) - i32::from(scale);
    let (lower, upper) = result_bounds(of);
    let mut values = room::filled(None, rows)?;
    let mut is_beyond = false;
    slide(frame, &segment.layout, checks, state, |from, to, state| {
        let value = match state.count {
            0 => return,
            _ if is_sum => state.sum.wide().get(),
            count => state.sum.wide().average(count, shift),
        };
        let value = value.filter(|value| lower <= *value && *value <= upper);
        is_beyond |= value.is_none();
        values[from as usize..to as usize].fill(value);
    })?;
    if is_beyond { Err(out_of_range(of)) } else { integers(of, &values) }
}

fn integers(of: &ColumnType, values: &[Option<i128>]) -> Result<Vector> {
    let valid = Mask::of_values(values, |value: Option<i128>| value.is_some());
    let value = |value: &Option<i128>| value.unwrap_or(0);
    let values = match of.class() {
        Class::Int => Values::Int(room::collected(values.len(), values.iter().map(|it| value(it) as i64))?.into()),
        Class::Wide => Values::Wide(room::collected(values.len(), values.iter().map(value))?.into()),
        _ => return Err(Error::internal("an aggregate's result is no number")),
    };
    Ok(Vector { values, valid: None }.with_valid(Some(valid)))
}
