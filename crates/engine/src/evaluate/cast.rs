//! Casts among integers, decimals and floats, and of dates to timestamps.

use super::arithmetic::{out_of_range, rows_of_interest};
use super::{Value, float_range};
use crate::expr::Scalar;
use crate::mask::Mask;
use crate::simd::{map, simd};
use crate::types::{Class, ColumnType, type_bounds};
use crate::vector::{Values, Vector};
use arrow_schema::DataType;
use tidepool_base::{Error, Result, SqlState};

const DAY_US: i64 = 86_400_000_000;

pub struct Kernel {
    way: Way,
    /// What results must be within, if bounds do not prove that they are.
    check: Option<(i128, i128)>,
}

enum Way {
    /// By a power of ten.
    Multiply(i128),
    /// By a power of ten, halves away from zero.
    Divide(i128),
    ToFloat {
        divisor: f64,
        is_real: bool,
    },
    FloatToFloat {
        is_real: bool,
    },
    FloatToInt,
    FloatToDecimal {
        factor: f64,
    },
    DateToTimestamp,
}

fn power(exponent: i16) -> Result<i128> {
    let power = 10i128.checked_pow(exponent.unsigned_abs().into());
    power.ok_or_else(|| Error::internal("a cast over more digits than there are"))
}

/// Quotient by a positive divisor, halves away from zero.
#[inline(always)]
fn rounded(value: i128, divisor: i128) -> i128 {
    let (quotient, rest) = (value / divisor, value % divisor);
    if rest.abs() >= divisor - rest.abs() { quotient + value.signum() } else { quotient }
}

#[inline(always)]
fn rounded_i64(value: i64, divisor: i64) -> i64 {
    let (quotient, rest) = (value / divisor, value % divisor);
    if rest.abs() >= divisor - rest.abs() { quotient + value.signum() } else { quotient }
}

impl Kernel {
    pub fn new(from: &ColumnType, to: &ColumnType) -> Result<Kernel> {
        let limits = type_bounds(&to.data_type);
        let scale = |of: &ColumnType| i16::from(of.scale().unwrap_or(0));
        let is_date = from.data_type == DataType::Date32;
        let (way, exact) = match (from.class(), to.class()) {
            (Class::Float, Class::Float) => (Way::FloatToFloat { is_real: to.data_type == DataType::Float32 }, None),
            (Class::Float, Class::Int | Class::Wide) => match to.data_type {
                DataType::Decimal128(_, scale) => (Way::FloatToDecimal { factor: 10f64.powi(scale.into()) }, None),
                _ => (Way::FloatToInt, None),
            },
            (Class::Int | Class::Wide, Class::Float) => {
                let divisor = 10f64.powi(scale(from).into());
                (Way::ToFloat { divisor, is_real: to.data_type == DataType::Float32 }, None)
            }
            (Class::Int, Class::Int) if is_date => {
                let factor = i128::from(DAY_US);
                (Way::DateToTimestamp, from.bounds.map(|(lower, upper)| (lower * factor, upper * factor)))
            }
            (Class::Int | Class::Wide, Class::Int | Class::Wide) => {
                let digits = scale(to) - scale(from);
                let power = power(digits)?;
                let moved = |value: i128| {
                    if digits >= 0 { value.checked_mul(power) } else { Some(rounded(value, power)) }
                };
                let exact = from.bounds.and_then(|(lower, upper)| moved(lower).zip(moved(upper)));
                (if digits >= 0 { Way::Multiply(power) } else { Way::Divide(power) }, exact)
            }
            _ => return Err(Error::internal(format!("a cast of {} to {}", from.data_type, to.data_type))),
        };
        let check = match (exact, limits) {
            _ if to.class() == Class::Float => None,
            (Some((lower, upper)), Some(limits)) if limits.0 <= lower && upper <= limits.1 => None,
            (_, limits) => limits,
        };
        Ok(Kernel { way, check })
    }

    pub fn can_fail(&self) -> bool {
        self.check.is_some() || matches!(self.way, Way::FloatToFloat { is_real: true })
    }
}

simd! {
    fn all[T: Copy](values: &[T], test: impl Fn(T) -> bool) -> bool {
        let mut all = true;
        for value in values {
            all &= test(*value);
        }
        all
    }
}

fn failed(to: &ColumnType) -> Error {
    match to.data_type {
        DataType::Decimal128(precision, scale) => {
            let digits = i16::from(precision) - i16::from(scale);
            Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "numeric field overflow").with_detail(format!(
                "A field with precision {precision}, scale {scale} must round to an absolute value less than 10^{digits}."
            ))
        }
        DataType::Timestamp(..) => Error::new(SqlState::DATETIME_FIELD_OVERFLOW, "date out of range for timestamp"),
        _ => out_of_range(&to.data_type),
    }
}

/// Where a row's value is not within `limits`, if it counts, that is an error.
fn confirm<T>(
    results: &[T],
    valid: Option<&Mask>,
    live: Option<&Mask>,
    to: &ColumnType,
    is_within: impl Fn(usize) -> bool,
) -> Result<()> {
    let rows = rows_of_interest(results.len(), valid, live).positions();
    if rows.into_iter().all(|row| is_within(row as usize)) { Ok(()) } else { Err(failed(to)) }
}

pub fn cast(
    kernel: &Kernel,
    value: Value,
    from: &ColumnType,
    to: &ColumnType,
    rows: usize,
    live: Option<&Mask>,
) -> Result<Value> {
    if value.is_null() {
        return Ok(Value::Constant(Scalar::Null));
    }
    let Vector { values, valid } = value.into_vector(from, rows)?;
    let valid_rows = valid.as_ref();
    let values = match (&kernel.way, &values) {
        (Way::Multiply(1), Values::Int(_)) if kernel.check.is_none() && to.class() == Class::Int => values,
        (Way::Multiply(1), Values::Wide(_)) if kernel.check.is_none() && to.class() == Class::Wide => values,
        (Way::Multiply(_) | Way::Divide(_), Values::Int(values)) => {
            if let Some(narrow) = in_64_bits(kernel, values, valid_rows, live, to)? {
                Values::Int(narrow.into())
            } else {
                in_128_bits(kernel, values, valid_rows, live, to)?
            }
        }
        (Way::Multiply(_) | Way::Divide(_), Values::Wide(values)) => in_128_bits(kernel, values, valid_rows, live, to)?,
        (Way::ToFloat { divisor, is_real }, Values::Int(values)) => {
            to_float(values, *divisor, *is_real, |value| value as f64, |value| value as f32)
        }
        (Way::ToFloat { divisor, is_real }, Values::Wide(values)) => {
            to_float(values, *divisor, *is_real, |value| value as f64, |value| value as f32)
        }
        (Way::FloatToFloat { is_real: true }, Values::Float(values)) => {
            let of_interest = || rows_of_interest(values.len(), valid_rows, live).positions();
            Values::Float(float_range::narrow(values, of_interest)?.into())
        }
        (Way::FloatToFloat { is_real: false }, Values::Float(_)) => values,
        (Way::FloatToInt, Values::Float(values)) => {
            let (lower, upper) = kernel.check.unwrap_or((i64::MIN.into(), i64::MAX.into()));
            // As floats, 2^63 - 1 is 2^63: hence one below what is one too many.
            let (lower, above) = (lower as f64, (upper + 1) as f64);
            let is_within = |value: f64| {
                let value = value.round_ties_even();
                (value >= lower) & (value < above)
            };
            let results = map(values, |value| value.round_ties_even() as i64);
            if !all(values, is_within) {
                confirm(&results, valid_rows, live, to, |row| is_within(values[row]))?;
            }
            Values::Int(results.into())
        }
        (Way::FloatToDecimal { factor }, Values::Float(values)) => {
            let (lower, upper) = kernel.check.unwrap_or((i128::MIN, i128::MAX));
            let scaled = |value: f64| (value * factor).round();
            let is_within = |value: f64| {
                let value = scaled(value);
                // Beyond, the cast would give the nearest integer that there is.
                value.abs() < 1e38 && lower <= value as i128 && value as i128 <= upper
            };
            let results: Vec<i128> = values.iter().map(|value| scaled(*value) as i128).collect();
            if !values.iter().all(|value| is_within(*value)) {
                confirm(&results, valid_rows, live, to, |row| is_within(values[row]))?;
            }
            of_class(results, to.class())
        }
        (Way::DateToTimestamp, Values::Int(days)) => {
            let results = map(days, |days| days.wrapping_mul(DAY_US));
            if kernel.check.is_some() && days.iter().any(|days| days.checked_mul(DAY_US).is_none()) {
                confirm(&results, valid_rows, live, to, |row| days[row].checked_mul(DAY_US).is_some())?;
            }
            Values::Int(results.into())
        }
        _ => return Err(Error::internal(format!("a cast of {} to {}", from.data_type, to.data_type))),
    };
    Ok(Value::Vector(Vector { values, valid }))
}

fn of_class(results: Vec<i128>, class: Class) -> Values {
    match class {
        Class::Int => Values::Int(results.into_iter().map(|value| value as i64).collect()),
        _ => Values::Wide(results.into()),
    }
}

fn to_float<T: Copy>(
    values: &[T],
    divisor: f64,
    is_real: bool,
    to_f64: impl Fn(T) -> f64,
    to_f32: impl Fn(T) -> f32,
) -> Values {
    let floats: Vec<f64> = match (is_real, divisor == 1.0) {
        (false, true) => map(values, to_f64),
        (false, false) => map(values, |value| to_f64(value) / divisor),
        (true, true) => map(values, |value| to_f32(value).into()),
        (true, false) => map(values, |value| ((to_f64(value) / divisor) as f32).into()),
    };
    Values::Float(floats.into())
}

/// `None`: 64 bits do not do.
fn in_64_bits(
    kernel: &Kernel,
    values: &[i64],
    valid: Option<&Mask>,
    live: Option<&Mask>,
    to: &ColumnType,
) -> Result<Option<Vec<i64>>> {
    let (lower, upper) = kernel.check.unwrap_or((i64::MIN.into(), i64::MAX.into()));
    let fits = |value: i128| i64::try_from(value).ok();
    if to.class() != Class::Int {
        return Ok(None);
    }
    let (Some(lower), Some(upper)) = (fits(lower), fits(upper)) else { return Ok(None) };
    let results: Vec<i64> = match kernel.way {
        Way::Multiply(1) => values.to_vec(),
        Way::Multiply(factor) => {
            let Some(factor) = fits(factor) else { return Ok(None) };
            if kernel.check.is_some() {
                // What passes the limits, and what they are, divided by the factor: one comparison for both.
                let (lower, upper) =
                    (lower.div_euclid(factor) + i64::from(lower % factor != 0), upper.div_euclid(factor));
                let is_within = |value: i64| (lower <= value) & (value <= upper);
                if !all(values, is_within) {
                    confirm(values, valid, live, to, |row| is_within(values[row]))?;
                }
            }
            return Ok(Some(map(values, |value| value.wrapping_mul(factor))));
        }
        Way::Divide(divisor) => {
            let Some(divisor) = fits(divisor) else { return Ok(None) };
            values.iter().map(|value| rounded_i64(*value, divisor)).collect()
        }
        _ => return Ok(None),
    };
    if kernel.check.is_some() {
        let is_within = |value: i64| (lower <= value) & (value <= upper);
        if !all(&results, is_within) {
            confirm(&results, valid, live, to, |row| is_within(results[row]))?;
        }
    }
    Ok(Some(results))
}

fn in_128_bits<T: Copy + Into<i128>>(
    kernel: &Kernel,
    values: &[T],
    valid: Option<&Mask>,
    live: Option<&Mask>,
    to: &ColumnType,
) -> Result<Values> {
    let (lower, upper) = kernel.check.unwrap_or((i128::MIN, i128::MAX));
    let moved = |value: T| match kernel.way {
        Way::Multiply(factor) => value.into().checked_mul(factor),
        Way::Divide(divisor) => Some(rounded(value.into(), divisor)),
        _ => None,
    };
    let is_within = |value: T| moved(value).is_some_and(|value| lower <= value && value <= upper);
    if kernel.check.is_some() && !values.iter().all(|value| is_within(*value)) {
        confirm(values, valid, live, to, |row| is_within(values[row]))?;
    }
    Ok(of_class(values.iter().map(|value| moved(*value).unwrap_or(0)).collect(), to.class()))
}
