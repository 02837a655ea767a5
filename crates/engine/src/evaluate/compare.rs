//! Comparisons. Floats are ordered as PostgreSQL orders them: NaN is equal to itself and above all else; -0 equals 0.

use super::{Value, logic, text};
use crate::expr::Scalar;
use crate::mask::Mask;
use crate::simd;
use crate::vector::{Values, Vector};
use std::cmp::Ordering;
use tidepool_base::{Error, Result};
use tidepool_table::CompareOp;

pub fn holds(op: CompareOp, ordering: Ordering) -> bool {
    match op {
        CompareOp::Eq => ordering.is_eq(),
        CompareOp::Ne => ordering.is_ne(),
        CompareOp::Lt => ordering.is_lt(),
        CompareOp::Le => ordering.is_le(),
        CompareOp::Gt => ordering.is_gt(),
        CompareOp::Ge => ordering.is_ge(),
    }
}

/// The same comparison with its sides exchanged.
pub fn mirrored(op: CompareOp) -> CompareOp {
    match op {
        CompareOp::Lt => CompareOp::Gt,
        CompareOp::Le => CompareOp::Ge,
        CompareOp::Gt => CompareOp::Lt,
        CompareOp::Ge => CompareOp::Le,
        same => same,
    }
}

/// The comparison that holds where this one does not.
pub fn opposite(op: CompareOp) -> CompareOp {
    match op {
        CompareOp::Eq => CompareOp::Ne,
        CompareOp::Ne => CompareOp::Eq,
        CompareOp::Lt => CompareOp::Ge,
        CompareOp::Le => CompareOp::Gt,
        CompareOp::Gt => CompareOp::Le,
        CompareOp::Ge => CompareOp::Lt,
    }
}

pub fn order_floats(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

pub fn compare(op: CompareOp, left: Value, right: Value, rows: usize) -> Result<Value> {
    Ok(match (left, right) {
        (Value::Constant(Scalar::Null), _) | (_, Value::Constant(Scalar::Null)) => Value::Constant(Scalar::Null),
        (Value::Constant(a), Value::Constant(b)) => Value::Constant(Scalar::Bool(holds(op, order_scalars(&a, &b)?))),
        (Value::Vector(vector), Value::Constant(constant)) => {
            Value::Vector(with_constant(op, &vector, &constant, rows)?.with_valid(vector.valid))
        }
        (Value::Constant(constant), Value::Vector(vector)) => {
            Value::Vector(with_constant(mirrored(op), &vector, &constant, rows)?.with_valid(vector.valid))
        }
        (Value::Vector(a), Value::Vector(b)) => {
            let valid = Mask::both(a.valid.as_ref(), b.valid.as_ref());
            Value::Vector(logic::of_mask(of_vectors(op, &a, &b)?).with_valid(valid))
        }
    })
}

fn of_words(words: Vec<u64>, rows: usize) -> Mask {
    Mask::from_words(words, rows)
}

fn different() -> Error {
    Error::internal("comparison of different types")
}

fn order_scalars(a: &Scalar, b: &Scalar) -> Result<Ordering> {
    match (a, b) {
        (Scalar::Float(a), Scalar::Float(b)) => Ok(order_floats(*a, *b)),
        (Scalar::Bool(a), Scalar::Bool(b)) => Ok(a.cmp(b)),
        (Scalar::Text(a), Scalar::Text(b)) => Ok(a.cmp(b)),
        (a, b) => a.as_i128().zip(b.as_i128()).map(|(a, b)| a.cmp(&b)).ok_or_else(different),
    }
}

#[inline(always)]
fn values_with<T: Copy + PartialOrd>(op: CompareOp, values: &[T], constant: T) -> Mask {
    match op {
        CompareOp::Eq => Mask::of_values(values, |value| value == constant),
        CompareOp::Ne => Mask::of_values(values, |value| value != constant),
        CompareOp::Lt => Mask::of_values(values, |value| value < constant),
        CompareOp::Le => Mask::of_values(values, |value| value <= constant),
        CompareOp::Gt => Mask::of_values(values, |value| value > constant),
        CompareOp::Ge => Mask::of_values(values, |value| value >= constant),
    }
}

/// `holds` of the value that is neither above nor below any: for a constant outside of what values can be.
fn all_or_none(op: CompareOp, value_to_constant: Ordering, rows: usize) -> Mask {
    if holds(op, value_to_constant) { Mask::all(rows) } else { Mask::none(rows) }
}

fn floats_with(op: CompareOp, values: &[f64], constant: f64) -> Mask {
    let rows = values.len();
    if constant.is_nan() {
        return match op {
            CompareOp::Eq | CompareOp::Ge => Mask::of_values(values, |value| value.is_nan()),
            CompareOp::Ne | CompareOp::Lt => Mask::of_values(values, |value| !value.is_nan()),
            CompareOp::Le => Mask::all(rows),
            CompareOp::Gt => Mask::none(rows),
        };
    }
    match op {
        // NaN is above the constant.
        CompareOp::Gt => of_words(simd::compare_constant(CompareOp::Le, values, constant), rows).not(),
        CompareOp::Ge => of_words(simd::compare_constant(CompareOp::Lt, values, constant), rows).not(),
        op => of_words(simd::compare_constant(op, values, constant), rows),
    }
}

fn with_constant(op: CompareOp, vector: &Vector, constant: &Scalar, rows: usize) -> Result<Vector> {
    let mask = match (&vector.values, constant) {
        (Values::Int(values), Scalar::Int(constant)) => of_words(simd::compare_constant(op, values, *constant), rows),
        (Values::Int(values), Scalar::Wide(constant)) => match i64::try_from(*constant) {
            Ok(constant) => of_words(simd::compare_constant(op, values, constant), rows),
            Err(_) if *constant > 0 => all_or_none(op, Ordering::Less, rows),
            Err(_) => all_or_none(op, Ordering::Greater, rows),
        },
        (Values::Wide(values), constant @ (Scalar::Int(_) | Scalar::Wide(_))) => {
            values_with(op, values, constant.as_i128().ok_or_else(different)?)
        }
        (Values::Float(values), Scalar::Float(constant)) => floats_with(op, values, *constant),
        (Values::Bool(values), Scalar::Bool(constant)) => {
            let constant = if *constant { Mask::all(rows) } else { Mask::none(rows) };
            bools(op, values, &constant)
        }
        (Values::Text(texts), Scalar::Text(constant)) => text::compare_with(op, texts, constant),
        _ => return Err(different()),
    };
    Ok(logic::of_mask(mask))
}

fn bools(op: CompareOp, a: &Mask, b: &Mask) -> Mask {
    match op {
        CompareOp::Eq => a.and(b).or(&a.or(b).not()),
        CompareOp::Ne => a.and_not(b).or(&b.and_not(a)),
        CompareOp::Lt => b.and_not(a),
        CompareOp::Le => b.or(&a.not()),
        CompareOp::Gt => a.and_not(b),
        CompareOp::Ge => a.or(&b.not()),
    }
}

#[inline(always)]
fn pairs<A: Copy, B: Copy>(op: CompareOp, a: &[A], b: &[B], order: impl Fn(A, B) -> Ordering) -> Mask {
    match op {
        CompareOp::Eq => Mask::of_pairs(a, b, |a, b| order(a, b).is_eq()),
        CompareOp::Ne => Mask::of_pairs(a, b, |a, b| order(a, b).is_ne()),
        CompareOp::Lt => Mask::of_pairs(a, b, |a, b| order(a, b).is_lt()),
        CompareOp::Le => Mask::of_pairs(a, b, |a, b| order(a, b).is_le()),
        CompareOp::Gt => Mask::of_pairs(a, b, |a, b| order(a, b).is_gt()),
        CompareOp::Ge => Mask::of_pairs(a, b, |a, b| order(a, b).is_ge()),
    }
}

#[inline(always)]
fn floats(op: CompareOp, a: &[f64], b: &[f64]) -> Mask {
    let equal = |a: f64, b: f64| (a == b) | (a.is_nan() & b.is_nan());
    let less = |a: f64, b: f64| (a < b) | (!a.is_nan() & b.is_nan());
    match op {
        CompareOp::Eq => Mask::of_pairs(a, b, equal),
        CompareOp::Ne => Mask::of_pairs(a, b, |a, b| !equal(a, b)),
        CompareOp::Lt => Mask::of_pairs(a, b, less),
        CompareOp::Ge => Mask::of_pairs(a, b, |a, b| !less(a, b)),
        CompareOp::Gt => Mask::of_pairs(b, a, less),
        CompareOp::Le => Mask::of_pairs(b, a, |b, a| !less(b, a)),
    }
}

fn of_vectors(op: CompareOp, a: &Vector, b: &Vector) -> Result<Mask> {
    Ok(match (&a.values, &b.values) {
        (Values::Int(a), Values::Int(b)) => of_words(simd::compare_pairs(op, a, b), a.len()),
        (Values::Int(a), Values::Wide(b)) => pairs(op, a, b, |a: i64, b: i128| i128::from(a).cmp(&b)),
        (Values::Wide(a), Values::Int(b)) => pairs(op, a, b, |a: i128, b: i64| a.cmp(&b.into())),
        (Values::Wide(a), Values::Wide(b)) => pairs(op, a, b, |a: i128, b: i128| a.cmp(&b)),
        (Values::Float(a), Values::Float(b)) => floats(op, a, b),
        (Values::Bool(a), Values::Bool(b)) => bools(op, a, b),
        (Values::Text(a), Values::Text(b)) => text::compare(op, a, b),
        _ => return Err(different()),
    })
}

/// NULL equals NULL and nothing else.
pub fn is_distinct(left: Value, right: Value, negated: bool, rows: usize) -> Result<Vector> {
    let is_same = match (left, right) {
        (Value::Constant(Scalar::Null), other) | (other, Value::Constant(Scalar::Null)) => match other {
            Value::Constant(Scalar::Null) => Mask::all(rows),
            Value::Constant(_) => Mask::none(rows),
            Value::Vector(vector) => vector.valid.map_or_else(|| Mask::none(rows), |valid| valid.not()),
        },
        (left, right) => {
            let nulls = left.valid().zip(right.valid()).map(|(a, b)| a.or(b).not());
            let equal = logic::truth_of(compare(CompareOp::Eq, left, right, rows)?, true, rows)?;
            nulls.map_or_else(|| equal.clone(), |nulls| equal.or(&nulls))
        }
    };
    Ok(logic::of_mask(if negated { is_same } else { is_same.not() }))
}
