//! AND, OR and NOT of three values: true, false and NULL.

use super::{Input, Prepared, Value, narrowed};
use crate::expr::Scalar;
use crate::mask::Mask;
use crate::vector::{Values, Vector};
use tidepool_base::{Error, Result};

/// Never NULL.
pub fn of_mask(mask: Mask) -> Vector {
    Vector { values: Values::Bool(mask), valid: None }
}

/// The rows in which a value is `wanted`.
pub fn truth_of(value: Value, wanted: bool, rows: usize) -> Result<Mask> {
    match value {
        Value::Constant(Scalar::Bool(value)) if value == wanted => Ok(Mask::all(rows)),
        Value::Constant(Scalar::Bool(_) | Scalar::Null) => Ok(Mask::none(rows)),
        Value::Constant(_) => Err(Error::internal("a condition that is no boolean")),
        Value::Vector(Vector { values: Values::Bool(values), valid }) => Ok(match (valid, wanted) {
            (None, true) => values,
            (None, false) => values.not(),
            (Some(valid), true) => valid.and(&values),
            (Some(valid), false) => valid.and_not(&values),
        }),
        Value::Vector(_) => Err(Error::internal("a condition that is no boolean")),
    }
}

/// Rows in which every part is `wanted`. A part is asked only of the rows that those before it left.
pub fn every(parts: &[Prepared], wanted: bool, input: &Input<'_>, live: Option<&Mask>) -> Result<Mask> {
    let mut left: Option<Mask> = None;
    for part in parts {
        left = Some(match &left {
            None => part.truth(input, live, wanted)?,
            Some(left) if left.is_none() => break,
            Some(left) => part.truth_within(input, &narrowed(live, left), wanted)?,
        });
    }
    Ok(left.unwrap_or_else(|| Mask::all(input.rows)))
}

/// Rows in which any part is `wanted`. A part is asked only of the rows in which none before it was.
pub fn any(parts: &[Prepared], wanted: bool, input: &Input<'_>, live: Option<&Mask>) -> Result<Mask> {
    let mut found: Option<Mask> = None;
    for part in parts {
        found = Some(match &found {
            None => part.truth(input, live, wanted)?,
            Some(found) => {
                let rest = narrowed(live, &found.not());
                found.or(&part.truth_within(input, &rest, wanted)?)
            }
        });
    }
    Ok(found.unwrap_or_else(|| Mask::none(input.rows)))
}

/// AND (`is_and`) or OR of the parts.
pub fn value(
    parts: &[Prepared],
    is_and: bool,
    nullable: bool,
    input: &Input<'_>,
    live: Option<&Mask>,
) -> Result<Vector> {
    let rows = input.rows;
    if !nullable {
        let is_true = if is_and { every(parts, true, input, live)? } else { any(parts, true, input, live)? };
        return Ok(of_mask(is_true));
    }
    // What decides (false for AND) and what does not: a row is NULL if it has neither been decided nor passed all.
    let (mut decided, mut passed) = (Mask::none(rows), Mask::all(rows));
    for part in parts {
        let open = narrowed(live, &decided.not());
        let value = part.value_within(input, &open)?;
        let passes = truth_of(value.clone(), is_and, rows)?;
        decided = decided.or(&open.and(&truth_of(value, !is_and, rows)?));
        passed = passed.and(&passes);
    }
    passed = passed.and_not(&decided);
    let valid = decided.or(&passed);
    Ok(of_mask(if is_and { passed } else { decided }).with_valid(Some(valid)))
}

pub fn not(value: Value, rows: usize) -> Result<Vector> {
    Ok(match value {
        Value::Vector(Vector { values: Values::Bool(values), valid }) => {
            Vector { values: Values::Bool(values.not()), valid }
        }
        Value::Constant(Scalar::Null) => of_mask(Mask::none(rows)).with_valid(Some(Mask::none(rows))),
        Value::Constant(Scalar::Bool(true)) => of_mask(Mask::none(rows)),
        Value::Constant(Scalar::Bool(false)) => of_mask(Mask::all(rows)),
        _ => return Err(Error::internal("a condition that is no boolean")),
    })
}
