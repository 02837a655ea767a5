//! CASE and COALESCE: each branch is evaluated for the rows that come to it alone.

use super::arithmetic::Side;
use super::{Input, Prepared, Value, logic, scatter_mask, text};
use crate::expr::Scalar;
use crate::mask::Mask;
use crate::simd::simd;
use crate::text::{Owners, Text};
use crate::types::{Class, ColumnType};
use crate::vector::{Texts, Values, Vector};
use arrow_array::{Array, ArrayRef, BooleanArray, UInt32Array};
use tidepool_base::{Error, Result};

pub fn case(
    branches: &[(Prepared, Prepared)],
    otherwise: Option<&Prepared>,
    of: &ColumnType,
    input: &Input<'_>,
    live: Option<&Mask>,
) -> Result<Vector> {
    let rows = input.rows;
    let mut parts = Vec::with_capacity(branches.len() + 1);
    let mut rest = live.cloned().unwrap_or_else(|| Mask::all(rows));
    for (condition, value) in branches {
        if rest.is_none() {
            break;
        }
        let taken = condition.truth_within(input, &rest, true)?;
        if !taken.is_none() {
            parts.push((value.value_within(input, &taken)?, taken.clone()));
            rest = rest.and_not(&taken);
        }
    }
    if let Some(otherwise) = otherwise
        && !rest.is_none()
    {
        parts.push((otherwise.value_within(input, &rest)?, rest));
    }
    merge(parts, of, rows)
}

pub fn coalesce(values: &[Prepared], of: &ColumnType, input: &Input<'_>, live: Option<&Mask>) -> Result<Vector> {
    let rows = input.rows;
    let mut parts = Vec::with_capacity(values.len());
    let mut rest = live.cloned().unwrap_or_else(|| Mask::all(rows));
    for value in values {
        if rest.is_none() {
            break;
        }
        let value = value.value_within(input, &rest)?;
        let found = match &value {
            Value::Constant(Scalar::Null) => continue,
            Value::Constant(_) => rest.clone(),
            Value::Vector(vector) => vector.valid.as_ref().map_or_else(|| rest.clone(), |valid| rest.and(valid)),
        };
        rest = rest.and_not(&found);
        parts.push((value, found));
    }
    merge(parts, of, rows)
}

/// Values of some rows put where those rows are; all else is NULL.
pub fn scatter(vector: &Vector, positions: &[u32], rows: usize) -> Result<Vector> {
    fn put<T: Copy>(values: &[T], positions: &[u32], none: T, rows: usize) -> Vec<T> {
        let mut out = vec![none; rows];
        for (row, value) in positions.iter().zip(values) {
            out[*row as usize] = *value;
        }
        out
    }
    let values = match &vector.values {
        Values::Int(values) => Values::Int(put(values, positions, 0, rows).into()),
        Values::Wide(values) => Values::Wide(put(values, positions, 0, rows).into()),
        Values::Float(values) => Values::Float(put(values, positions, 0.0, rows).into()),
        Values::Bool(values) => Values::Bool(scatter_mask(values, positions, rows)),
        Values::Text(texts) => {
            let values = put(texts.values(), positions, Text::EMPTY, rows);
            // SAFETY: the values are from `texts`, whose owners they get.
            Values::Text(unsafe { Texts::new(values, texts.owners().clone()) })
        }
        Values::Other(array) => {
            let mut from = vec![None; rows];
            for (index, row) in positions.iter().enumerate() {
                from[*row as usize] = Some(index as u32);
            }
            let taken = arrow_select::take::take(array.as_ref(), &UInt32Array::from(from), None);
            Values::Other(taken.map_err(|error| Error::internal(error.to_string()))?)
        }
    };
    let valid = vector.valid.clone().unwrap_or_else(|| Mask::all(positions.len()));
    Ok(Vector { values, valid: None }.with_valid(Some(scatter_mask(&valid, positions, rows))))
}

/// Each part's values in the rows of its mask; NULL in rows that are in none.
fn merge(mut parts: Vec<(Value, Mask)>, of: &ColumnType, rows: usize) -> Result<Vector> {
    if let [(Value::Vector(vector), taken)] = &parts[..]
        && taken.is_all()
        && vector.values.class() == of.class()
    {
        return Ok(vector.clone());
    }
    let mut valid: Option<Mask> = None;
    for (value, taken) in &parts {
        let there = match value {
            Value::Constant(Scalar::Null) => continue,
            Value::Constant(_) => taken.clone(),
            Value::Vector(vector) => vector.valid.as_ref().map_or_else(|| taken.clone(), |valid| taken.and(valid)),
        };
        valid = Some(valid.map_or_else(|| there.clone(), |valid| valid.or(&there)));
    }
    let Some(valid) = valid else { return Ok(Vector::nulls(of, rows)) };
    let values = match of.class() {
        Class::Int => Values::Int(blend(&parts, rows, 0, ints)?.into()),
        Class::Wide => {
            let parts = parts.into_iter().map(|(value, taken)| Ok((widened(value), taken)));
            Values::Wide(blend(&parts.collect::<Result<Vec<_>>>()?, rows, 0, wides)?.into())
        }
        Class::Float => Values::Float(blend(&parts, rows, 0.0, floats)?.into()),
        Class::Bool => {
            let mut all = Mask::none(rows);
            for (value, taken) in parts {
                all = all.or(&logic::truth_of(value, true, rows)?.and(&taken));
            }
            Values::Bool(all)
        }
        Class::Text => {
            let mut owners = Owners::default();
            for (value, _) in &mut parts {
                match value {
                    // Its bytes must be held by something.
                    Value::Constant(Scalar::Text(bytes)) => {
                        let texts = text::repeat(bytes, 1);
                        owners.join(texts.owners());
                        *value = Value::Vector(Vector { values: Values::Text(texts), valid: None });
                    }
                    Value::Vector(Vector { values: Values::Text(texts), .. }) => owners.join(texts.owners()),
                    _ => {}
                }
            }
            let values = blend(&parts, rows, Text::EMPTY, texts)?;
            // SAFETY: the values are from the parts, whose owners are all joined.
            Values::Text(unsafe { Texts::new(values, owners) })
        }
        Class::Other => Values::Other(blend_arrays(parts, of, rows)?),
    };
    Ok(Vector { values, valid: None }.with_valid(Some(valid)))
}

fn widened(value: Value) -> Value {
    match value {
        Value::Constant(Scalar::Int(value)) => Value::Constant(Scalar::Wide(value.into())),
        Value::Vector(Vector { values: Values::Int(values), valid }) => {
            let values = Values::Wide(values.iter().map(|value| i128::from(*value)).collect());
            Value::Vector(Vector { values, valid })
        }
        value => value,
    }
}

type SideOf<T> = for<'a> fn(&'a Value) -> Option<Side<'a, T>>;

fn ints(value: &Value) -> Option<Side<'_, i64>> {
    match value {
        Value::Constant(Scalar::Int(value)) => Some(Side::Constant(*value)),
        Value::Vector(Vector { values: Values::Int(values), .. }) => Some(Side::Slice(values)),
        _ => None,
    }
}

fn wides(value: &Value) -> Option<Side<'_, i128>> {
    match value {
        Value::Constant(Scalar::Wide(value)) => Some(Side::Constant(*value)),
        Value::Vector(Vector { values: Values::Wide(values), .. }) => Some(Side::Slice(values)),
        _ => None,
    }
}

fn floats(value: &Value) -> Option<Side<'_, f64>> {
    match value {
        Value::Constant(Scalar::Float(value)) => Some(Side::Constant(*value)),
        Value::Vector(Vector { values: Values::Float(values), .. }) => Some(Side::Slice(values)),
        _ => None,
    }
}

/// A column of one value stands for a constant: rows are more.
fn texts(value: &Value) -> Option<Side<'_, Text>> {
    match value {
        Value::Vector(Vector { values: Values::Text(texts), .. }) => Some(match texts.values() {
            [one] => Side::Constant(*one),
            values => Side::Slice(values),
        }),
        _ => None,
    }
}

fn blend<T: Copy>(parts: &[(Value, Mask)], rows: usize, none: T, side: SideOf<T>) -> Result<Vec<T>> {
    // The last part's values go everywhere, and the others over them.
    let (last, parts) = match parts.split_last() {
        Some(((last, _), parts)) => (side(last), parts),
        None => (None, parts),
    };
    let mut out = match last {
        Some(Side::Slice(values)) => values.to_vec(),
        Some(Side::Constant(value)) => vec![value; rows],
        None => vec![none; rows],
    };
    for (value, taken) in parts {
        match (value, side(value)) {
            (_, Some(Side::Slice(values))) => out = blended(out, taken.words(), values),
            (_, Some(Side::Constant(value))) => out = blended_with(out, taken.words(), value),
            (Value::Constant(Scalar::Null), None) => {}
            _ => return Err(Error::internal("branches of different types")),
        }
    }
    Ok(out)
}

simd! {
    /// With other values in the rows of a mask.
    fn blended[T: Copy](out: Vec<T>, words: &[u64], values: &[T]) -> Vec<T> {
        let mut out = out;
        let (blocks, rest) = out.as_chunks_mut::<64>();
        let (from, from_rest) = values.as_chunks::<64>();
        for ((word, out), values) in words.iter().zip(blocks.iter_mut()).zip(from) {
            match *word {
                0 => {}
                u64::MAX => *out = *values,
                word => choose(out, word, |bit| values[bit]),
            }
        }
        let word = words.last().copied().unwrap_or_default();
        for (bit, (out, value)) in rest.iter_mut().zip(from_rest).enumerate() {
            *out = if word >> bit & 1 == 1 { *value } else { *out };
        }
        out
    }

    /// With another value in the rows of a mask.
    fn blended_with[T: Copy](out: Vec<T>, words: &[u64], value: T) -> Vec<T> {
        let mut out = out;
        let (blocks, rest) = out.as_chunks_mut::<64>();
        for (word, out) in words.iter().zip(blocks.iter_mut()) {
            match *word {
                0 => {}
                word => choose(out, word, |_| value),
            }
        }
        let word = words.last().copied().unwrap_or_default();
        for (bit, out) in rest.iter_mut().enumerate() {
            *out = if word >> bit & 1 == 1 { value } else { *out };
        }
        out
    }
}

#[inline(always)]
fn choose<T: Copy>(out: &mut [T; 64], word: u64, value: impl Fn(usize) -> T) {
    const FEW: u32 = 6;
    if word.count_ones() <= FEW {
        let mut left = word;
        while left != 0 {
            let bit = left.trailing_zeros() as usize;
            out[bit] = value(bit);
            left &= left - 1;
        }
        return;
    }
    for (bit, out) in out.iter_mut().enumerate() {
        *out = if word >> bit & 1 == 1 { value(bit) } else { *out };
    }
}

fn blend_arrays(parts: Vec<(Value, Mask)>, of: &ColumnType, rows: usize) -> Result<ArrayRef> {
    let mut all = arrow_array::new_null_array(&of.data_type, rows);
    for (value, taken) in parts {
        let Values::Other(array) = value.into_vector(of, rows)?.values else {
            return Err(Error::internal("branches of different types"));
        };
        let taken = BooleanArray::new(taken.to_arrow(), None);
        let array: &dyn Array = array.as_ref();
        let zipped = arrow_select::zip::zip(&taken, &array, &all.as_ref());
        all = zipped.map_err(|error| Error::internal(error.to_string()))?;
    }
    Ok(all)
}
