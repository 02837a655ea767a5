//! Calls over a segment's rows.

use super::frame::{Frame, Spans, spans};
use super::functions::{WindowCall, WindowFunction};
use super::layout::{Layout, Partition, Segment};
use super::{Checks, Window, aggregates};
use crate::mask::Mask;
use crate::room;
use crate::vector::{Values, Vector};
use arrow_array::{Array, UInt32Array};
use tidepool_base::{Error, Result, SqlState};

/// Where there is no row. No segment has so many.
pub(super) const NONE: u32 = u32::MAX;

/// The functions' columns, each as long as the segment.
pub(super) fn evaluate(window: &Window, segment: &Segment, checks: &Checks) -> Result<Vec<Vector>> {
    let mut frames: Vec<(&Frame, Spans)> = Vec::new();
    let mut columns = Vec::with_capacity(window.functions.len());
    for call in &window.functions {
        checks.check()?;
        let place = match call.own_frame() {
            None => None,
            Some(frame) => Some(match frames.iter().position(|(known, _)| *known == frame) {
                Some(place) => place,
                None => {
                    frames.push((frame, of_frame(window, segment, frame)?));
                    frames.len() - 1
                }
            }),
        };
        let frame = place.map_or(&Spans::Whole, |place| &frames[place].1);
        let scale = call.argument.and_then(|column| window.input[column].scale()).unwrap_or(0);
        columns.push(column(call, scale, segment, frame, checks)?);
    }
    Ok(columns)
}

fn of_frame(window: &Window, segment: &Segment, frame: &Frame) -> Result<Spans> {
    let key = window.order.first().copied().filter(|_| frame.has_values());
    let values = key.map(|key| segment.column(key.column)).transpose()?;
    spans(frame, &segment.layout, key.zip(values.as_ref()))
}

fn column(call: &WindowCall, scale: i8, segment: &Segment, frame: &Spans, checks: &Checks) -> Result<Vector> {
    use WindowFunction as F;
    let layout = &segment.layout;
    let argument = || -> Result<Vector> {
        let column =
            call.argument.ok_or_else(|| Error::internal(format!("{:?} without an argument", call.function)))?;
        segment.column(column)
    };
    Ok(match call.function {
        F::RowNumber => numbers(layout, |_, out| {
            out.iter_mut().zip(1..).for_each(|(out, number)| *out = number);
        })?,
        F::Rank => numbers(layout, |partition, out| {
            groups(partition, out, |_, first, _| i64::from(first) + 1);
        })?,
        F::DenseRank => numbers(layout, |partition, out| {
            groups(partition, out, |number, _, _| number as i64 + 1);
        })?,
        F::PercentRank => floats(layout, |partition, out| {
            let others = f64::from(partition.end - partition.start - 1);
            groups(partition, out, |_, first, _| if others == 0.0 { 0.0 } else { f64::from(first) / others });
        })?,
        F::CumeDist => floats(layout, |partition, out| {
            let rows = f64::from(partition.end - partition.start);
            groups(partition, out, |_, _, end| f64::from(end) / rows);
        })?,
        F::Ntile(parts) => {
            if parts <= 0 {
                let message = "argument of ntile must be greater than zero";
                return Err(Error::new(SqlState::INVALID_ARGUMENT_FOR_NTILE, message));
            }
            numbers(layout, |_, out| tiles(parts as u64, out))?
        }
        F::Shift(shift) => pick(&argument()?, &shifted(layout, shift)?)?,
        F::HasShift(shift) => {
            let rows = shifted(layout, shift)?;
            Vector { values: Values::Bool(Mask::of_values(&rows, |row| row != NONE)), valid: None }
        }
        F::FirstValue => {
            pick(&argument()?, &framed(layout, frame, |start, end| if start < end { start } else { NONE })?)?
        }
        F::LastValue => {
            pick(&argument()?, &framed(layout, frame, |start, end| if start < end { end - 1 } else { NONE })?)?
        }
        F::NthValue(number) => {
            if number <= 0 {
                let message = "argument of nth_value must be greater than zero";
                return Err(Error::new(SqlState::INVALID_ARGUMENT_FOR_NTH_VALUE, message));
            }
            let skipped = number as u64 - 1;
            let nth =
                |start: u32, end: u32| if skipped < u64::from(end - start) { start + skipped as u32 } else { NONE };
            pick(&argument()?, &framed(layout, frame, nth)?)?
        }
        F::Aggregate(function) => aggregates::column(function, call, scale, segment, frame, checks)?,
    })
}

fn of_partitions<T: Copy + Default>(layout: &Layout, mut fill: impl FnMut(Partition<'_>, &mut [T])) -> Result<Vec<T>> {
    let mut out = room::filled(T::default(), layout.rows as usize)?;
    for partition in layout.partitions() {
        fill(partition, &mut out[partition.start as usize..partition.end as usize]);
    }
    Ok(out)
}

fn numbers(layout: &Layout, fill: impl FnMut(Partition<'_>, &mut [i64])) -> Result<Vector> {
    of_partitions(layout, fill).map(Vector::ints)
}

fn floats(layout: &Layout, fill: impl FnMut(Partition<'_>, &mut [f64])) -> Result<Vector> {
    Ok(Vector { values: Values::Float(of_partitions(layout, fill)?.into()), valid: None })
}

/// `value` of each group: its number, and where within the partition it begins and ends.
fn groups<T: Copy>(partition: Partition<'_>, out: &mut [T], value: impl Fn(usize, u32, u32) -> T) {
    for (number, bounds) in partition.groups.windows(2).enumerate() {
        let (start, end) = (bounds[0] - partition.start, bounds[1] - partition.start);
        out[start as usize..end as usize].fill(value(number, start, end));
    }
}

fn tiles(parts: u64, out: &mut [i64]) {
    let rows = out.len() as u64;
    let (base, larger) = (rows / parts, rows % parts);
    let mut at = 0;
    // Of more parts than rows, those without any are not told of.
    for part in 0..parts.min(rows) {
        let len = (base + u64::from(part < larger)) as usize;
        out[at..at + len].fill(part as i64 + 1);
        at += len;
    }
}

/// The row of each row's partition that is so many after it.
fn shifted(layout: &Layout, shift: i64) -> Result<Vec<u32>> {
    of_partitions(layout, |partition, out| {
        for (out, row) in out.iter_mut().zip(partition.start..) {
            let wanted = i64::from(row).saturating_add(shift);
            let is_there = i64::from(partition.start) <= wanted && wanted < i64::from(partition.end);
            *out = if is_there { wanted as u32 } else { NONE };
        }
    })
}

fn framed(layout: &Layout, frame: &Spans, row: impl Fn(u32, u32) -> u32) -> Result<Vec<u32>> {
    let mut out = room::of_capacity(layout.rows as usize)?;
    frame.each(layout, |_, start, end| out.push(row(start, end)));
    Ok(out)
}

/// Some rows, NULL for [`NONE`].
pub(super) fn pick(vector: &Vector, rows: &[u32]) -> Result<Vector> {
    if !rows.contains(&NONE) {
        return vector.gather(rows);
    }
    if let Values::Other(array) = &vector.values {
        let places: UInt32Array = rows.iter().map(|row| (*row != NONE).then_some(*row)).collect();
        let taken = arrow_select::take::take(array.as_ref(), &places, None);
        let taken = taken.map_err(|error| Error::internal(error.to_string()))?;
        let valid = Mask::valid_from_arrow(taken.logical_nulls().as_ref());
        return Ok(Vector { values: Values::Other(taken), valid });
    }
    // A segment has a row, whose value is nobody's where it stands for none.
    let places = room::collected(rows.len(), rows.iter().map(|row| if *row == NONE { 0 } else { *row }))?;
    let there = Mask::of_values(rows, |row| row != NONE);
    let picked = vector.gather(&places)?;
    let valid = Mask::both(picked.valid.as_ref(), Some(&there));
    Ok(picked.with_valid(valid))
}
