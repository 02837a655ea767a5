//! Arithmetic of integers, decimals and floats.
//!
//! Loops do not stop at an error: they note that some row may have one, and only then are rows looked at one by one, those
//! that are NULL or do not count left out. Where the operands' bounds prove that nothing can go wrong, nothing is noted.

use super::{Value, float_range};
use crate::expr::{ArithmeticOp, Scalar};
use crate::mask::Mask;
use crate::simd::{Level, level, map, map_pairs, simd};
use crate::types::{Class, ColumnType, type_bounds};
use crate::vector::{Values, Vector};
use arrow_buffer::{ArrowNativeType, ScalarBuffer};
use arrow_schema::DataType;
use tidepool_base::{Error, Result, SqlState};

type Bounds = Option<(i128, i128)>;

/// An operation on values of known types.
pub struct Kernel {
    op: ArithmeticOp,
    /// The result's; operands of class `Int` may go into a `Wide` result.
    class: Class,
    /// What the result must be within, if bounds do not prove that it is.
    check: Bounds,
    divides: bool,
    /// Both factors are known to be within 32 bits.
    is_narrow: bool,
    is_real: bool,
    data_type: DataType,
}

/// A column, or one value for all rows.
#[derive(Clone, Copy)]
pub enum Side<'a, T> {
    Slice(&'a [T]),
    Constant(T),
}

impl<T: Copy> Side<'_, T> {
    pub fn get(&self, row: usize) -> T {
        match self {
            Side::Slice(values) => values[row],
            Side::Constant(value) => *value,
        }
    }
}

pub fn out_of_range(data_type: &DataType) -> Error {
    let name = match data_type {
        DataType::Int8 | DataType::Int16 => "smallint",
        DataType::Int32 => "integer",
        DataType::Int64 | DataType::UInt64 => "bigint",
        DataType::Float32 => "real",
        DataType::Date32 => "date",
        DataType::Decimal128(..) => {
            let error = Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "value overflows numeric format");
            return error.with_detail("Numbers of up to 38 digits are held, those after the point included.");
        }
        _ => "value",
    };
    Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, format!("{name} out of range"))
}

fn division_by_zero() -> Error {
    Error::new(SqlState::DIVISION_BY_ZERO, "division by zero")
}

/// What the result is within by its operands' bounds alone; `None`: 128 bits may not hold it.
fn exact_bounds(op: ArithmeticOp, left: Bounds, right: Bounds) -> Bounds {
    let ((a, b), (c, d)) = left.zip(right)?;
    match op {
        ArithmeticOp::Add => a.checked_add(c).zip(b.checked_add(d)),
        ArithmeticOp::Subtract => a.checked_sub(d).zip(b.checked_sub(c)),
        ArithmeticOp::Multiply => {
            let all = [a.checked_mul(c)?, a.checked_mul(d)?, b.checked_mul(c)?, b.checked_mul(d)?];
            all.iter().min().copied().zip(all.iter().max().copied())
        }
        ArithmeticOp::Divide => {
            let limit = i128::try_from(a.unsigned_abs().max(b.unsigned_abs())).ok()?;
            // Only a negative divisor turns a dividend's sign.
            Some(if c >= 0 { (a.min(0), b.max(0)) } else { (-limit, limit) })
        }
        ArithmeticOp::Modulo => Some((a.min(0), b.max(0))),
    }
}

/// The check that a result needs, by its type and by what it is known to be within.
pub fn check_for(of: &ColumnType, exact: Bounds) -> Bounds {
    let limits = match &of.data_type {
        // Declared digits bound no result: 128 bits do, or 64 where the type's class says so.
        DataType::Decimal128(..) if of.class() == Class::Wide => (i128::MIN, i128::MAX),
        DataType::Decimal128(..) => (i64::MIN.into(), i64::MAX.into()),
        other => type_bounds(other)?,
    };
    match exact {
        Some((lower, upper)) if limits.0 <= lower && upper <= limits.1 => None,
        _ => Some(limits),
    }
}

impl Kernel {
    pub fn new(op: ArithmeticOp, left: &ColumnType, right: &ColumnType, of: &ColumnType) -> Result<Kernel> {
        let class = of.class();
        if !matches!(class, Class::Int | Class::Wide | Class::Float) {
            return Err(Error::internal(format!("arithmetic of {}", of.data_type)));
        }
        let fits_i32 = |of: &ColumnType| {
            of.bounds.is_some_and(|(lower, upper)| lower >= i32::MIN.into() && upper <= i32::MAX.into())
        };
        Ok(Kernel {
            op,
            class,
            check: if class == Class::Float {
                None
            } else {
                check_for(of, exact_bounds(op, left.bounds, right.bounds))
            },
            divides: matches!(op, ArithmeticOp::Divide | ArithmeticOp::Modulo),
            is_narrow: fits_i32(left) && fits_i32(right),
            is_real: of.data_type == DataType::Float32,
            data_type: of.data_type.clone(),
        })
    }

    /// Of `0 - value`, but for floats, whose sign is turned.
    pub fn negation(value: &ColumnType, of: &ColumnType) -> Result<Kernel> {
        let zero = ColumnType { bounds: Some((0, 0)), ..value.clone() };
        Kernel::new(ArithmeticOp::Subtract, &zero, value, of)
    }

    pub fn can_fail(&self) -> bool {
        self.check.is_some() || self.divides || self.class == Class::Float
    }
}

simd! {
    /// Whether any value is outside.
    pub fn leaves[](values: &[i64], lower: i64, upper: i64) -> bool {
        let mut any = false;
        for value in values {
            any |= (*value < lower) | (*value > upper);
        }
        any
    }

    /// Whether any of three values has the sign of an overflow, as `sign` gives it.
    fn overflows[](left: &[i64], right: &[i64], results: &[i64], sign: impl Fn(i64, i64, i64) -> i64) -> bool {
        let mut all = 0;
        for ((a, b), c) in left.iter().zip(right).zip(results) {
            all |= sign(*a, *b, *c);
        }
        all < 0
    }

    /// As many bits as any value has, without its sign's.
    fn bits[](values: &[i64]) -> u32 {
        let mut all = 0;
        for value in values {
            all |= value ^ (value >> 63);
        }
        64 - all.leading_zeros()
    }
}

#[inline(always)]
fn zip<T: Copy, U: Copy, V>(left: Side<'_, T>, right: Side<'_, U>, rows: usize, f: impl Fn(T, U) -> V) -> Vec<V> {
    match (left, right) {
        (Side::Slice(left), Side::Slice(right)) => map_pairs(left, right, f),
        (Side::Slice(left), Side::Constant(b)) => map(left, |a| f(a, b)),
        (Side::Constant(a), Side::Slice(right)) => map(right, |b| f(a, b)),
        (Side::Constant(a), Side::Constant(b)) => (0..rows).map(|_| f(a, b)).collect(),
    }
}

fn ints<'a>(value: &'a Value) -> Result<Side<'a, i64>> {
    match value {
        Value::Constant(Scalar::Int(value)) => Ok(Side::Constant(*value)),
        Value::Vector(Vector { values: Values::Int(values), .. }) => Ok(Side::Slice(values)),
        _ => Err(Error::internal("an operand is no integer")),
    }
}

fn floats<'a>(value: &'a Value) -> Result<Side<'a, f64>> {
    match value {
        Value::Constant(Scalar::Float(value)) => Ok(Side::Constant(*value)),
        Value::Vector(Vector { values: Values::Float(values), .. }) => Ok(Side::Slice(values)),
        _ => Err(Error::internal("an operand is no float")),
    }
}

/// Rows that count and are not NULL.
pub fn rows_of_interest(rows: usize, valid: Option<&Mask>, live: Option<&Mask>) -> Mask {
    Mask::both(valid, live).unwrap_or_else(|| Mask::all(rows))
}

pub fn binary(
    kernel: &Kernel,
    left: Value,
    right: Value,
    rows: usize,
    live: Option<&Mask>,
    of: &ColumnType,
) -> Result<Value> {
    if left.is_null() || right.is_null() {
        return Ok(Value::Constant(Scalar::Null));
    }
    let valid = Mask::both(left.valid(), right.valid());
    let (mut left, mut right) = (left, right);
    let is_all = valid.is_none() && live.is_none();
    if let Some(values) = in_place(kernel, &mut left, &mut right, is_all)? {
        return Ok(Value::Vector(Vector { values, valid }));
    }
    let values = match kernel.class {
        Class::Float => {
            Values::Float(float(kernel, floats(&left)?, floats(&right)?, rows, valid.as_ref(), live)?.into())
        }
        Class::Int if matches!((wides(&left)?, wides(&right)?), (Wides::Int(_), Wides::Int(_))) => {
            Values::Int(int(kernel, ints(&left)?, ints(&right)?, rows, valid.as_ref(), live)?.into())
        }
        _ => {
            let wide = match (wides(&left)?, wides(&right)?) {
                (Wides::Int(a), Wides::Int(b)) => wide(kernel, a, b, rows, valid.as_ref(), live)?,
                (Wides::Int(a), Wides::Wide(b)) => wide(kernel, a, b, rows, valid.as_ref(), live)?,
                (Wides::Wide(a), Wides::Int(b)) => wide(kernel, a, b, rows, valid.as_ref(), live)?,
                (Wides::Wide(a), Wides::Wide(b)) => wide(kernel, a, b, rows, valid.as_ref(), live)?,
            };
            match of.class() {
                Class::Int => Values::Int(wide.into_iter().map(|value| value as i64).collect()),
                _ => Values::Wide(wide.into()),
            }
        }
    };
    Ok(Value::Vector(Vector { values, valid: None }.with_valid(valid)))
}

/// Writes the result over an operand that nobody else has, if nothing can fail, or, of floats, if all rows are of interest (`is_all`).
fn in_place(kernel: &Kernel, left: &mut Value, right: &mut Value, is_all: bool) -> Result<Option<Values>> {
    if kernel.check.is_some() || kernel.divides || kernel.is_real {
        return Ok(None);
    }
    let op = kernel.op;
    Ok(match kernel.class {
        Class::Int => {
            if !matches!((wides(left)?, wides(right)?), (Wides::Int(_), Wides::Int(_))) {
                return Ok(None);
            }
            if let Some(values) = own_ints(left) {
                Some(Values::Int(over_ints(op, values, ints(right)?, false).into()))
            } else if let Some(values) = own_ints(right) {
                Some(Values::Int(over_ints(op, values, ints(left)?, true).into()))
            } else {
                None
            }
        }
        Class::Float if is_all => {
            if let Some(mut values) = own_floats(left) {
                float_range::over(op, &mut values, floats(right)?, false)?;
                Some(Values::Float(values.into()))
            } else if let Some(mut values) = own_floats(right) {
                float_range::over(op, &mut values, floats(left)?, true)?;
                Some(Values::Float(values.into()))
            } else {
                None
            }
        }
        _ => None,
    })
}

/// A vector's memory, if it is nobody else's.
fn own_ints(value: &mut Value) -> Option<Vec<i64>> {
    let Value::Vector(Vector { values: Values::Int(values), .. }) = value else { return None };
    own(values)
}

fn own_floats(value: &mut Value) -> Option<Vec<f64>> {
    let Value::Vector(Vector { values: Values::Float(values), .. }) = value else { return None };
    own(values)
}

fn own<T: ArrowNativeType>(values: &mut ScalarBuffer<T>) -> Option<Vec<T>> {
    match std::mem::replace(values, Vec::new().into()).into_inner().into_vec() {
        Ok(own) => Some(own),
        Err(shared) => {
            *values = shared.into();
            None
        }
    }
}

simd! {
    fn over[T: Copy](values: Vec<T>, other: &[T], f: impl Fn(T, T) -> T) -> Vec<T> {
        let mut values = values;
        for (value, other) in values.iter_mut().zip(other) {
            *value = f(*value, *other);
        }
        values
    }

    fn over_with[T: Copy](values: Vec<T>, other: T, f: impl Fn(T, T) -> T) -> Vec<T> {
        let mut values = values;
        for value in &mut values {
            *value = f(*value, other);
        }
        values
    }
}

#[inline(always)]
fn over_side<T: Copy>(values: Vec<T>, other: Side<'_, T>, f: impl Fn(T, T) -> T) -> Vec<T> {
    match other {
        Side::Slice(other) => over(values, other, f),
        Side::Constant(other) => over_with(values, other, f),
    }
}

/// `is_right`: the values are the right operand.
fn over_ints(op: ArithmeticOp, values: Vec<i64>, other: Side<'_, i64>, is_right: bool) -> Vec<i64> {
    match (op, is_right) {
        (ArithmeticOp::Add, _) => over_side(values, other, i64::wrapping_add),
        (ArithmeticOp::Subtract, false) => over_side(values, other, i64::wrapping_sub),
        (ArithmeticOp::Subtract, true) => over_side(values, other, |b, a| a.wrapping_sub(b)),
        _ => over_side(values, other, i64::wrapping_mul),
    }
}

pub fn negate(kernel: &Kernel, value: Value, rows: usize, live: Option<&Mask>, of: &ColumnType) -> Result<Value> {
    match &value {
        Value::Vector(Vector { values: Values::Float(values), valid }) => {
            let values = values.iter().map(|value| -value).collect();
            Ok(Value::Vector(Vector { values: Values::Float(values), valid: valid.clone() }))
        }
        Value::Constant(Scalar::Float(value)) => Ok(Value::Constant(Scalar::Float(-value))),
        Value::Constant(Scalar::Null) => Ok(value),
        _ => binary(kernel, Value::Constant(Scalar::Int(0)), value, rows, live, of),
    }
}

fn int(
    kernel: &Kernel,
    left: Side<'_, i64>,
    right: Side<'_, i64>,
    rows: usize,
    valid: Option<&Mask>,
    live: Option<&Mask>,
) -> Result<Vec<i64>> {
    if kernel.divides {
        return divide(kernel, left, right, rows, valid, live);
    }
    let values = match kernel.op {
        ArithmeticOp::Add => zip(left, right, rows, i64::wrapping_add),
        ArithmeticOp::Subtract => zip(left, right, rows, i64::wrapping_sub),
        // Where there is no instruction for 64 bits each.
        _ if kernel.is_narrow && level() < Level::Avx512 => {
            zip(left, right, rows, |a, b| i64::from(a as i32).wrapping_mul(i64::from(b as i32)))
        }
        _ => zip(left, right, rows, i64::wrapping_mul),
    };
    let Some((lower, upper)) = kernel.check else { return Ok(values) };
    // 64 bits hold whatever two values of 32 bits give.
    let is_exact = kernel.is_narrow || !may_wrap(kernel.op, left, right, &values);
    if is_exact && !leaves(&values, lower as i64, upper as i64) {
        return Ok(values);
    }
    recheck(kernel, left, right, rows, valid, live)?;
    Ok(values)
}

/// Whether 64 bits may not have held some result. Of sums and differences this is exact.
fn may_wrap(op: ArithmeticOp, left: Side<'_, i64>, right: Side<'_, i64>, results: &[i64]) -> bool {
    let bits_of = |side: Side<'_, i64>| match side {
        Side::Slice(values) => bits(values),
        Side::Constant(value) => bits(&[value]),
    };
    let sum = |a: i64, b: i64, c: i64| (a ^ c) & (b ^ c);
    let difference = |a: i64, b: i64, c: i64| (a ^ b) & (a ^ c);
    match (op, left, right) {
        (ArithmeticOp::Add, Side::Slice(a), Side::Slice(b)) => overflows(a, b, results, sum),
        (ArithmeticOp::Subtract, Side::Slice(a), Side::Slice(b)) => overflows(a, b, results, difference),
        (ArithmeticOp::Add, Side::Slice(values), Side::Constant(constant))
        | (ArithmeticOp::Add, Side::Constant(constant), Side::Slice(values)) => {
            overflows(values, results, results, |a, c, _| sum(a, constant, c))
        }
        (ArithmeticOp::Subtract, Side::Slice(values), Side::Constant(constant)) => {
            overflows(values, results, results, |a, c, _| difference(a, constant, c))
        }
        (ArithmeticOp::Subtract, Side::Constant(constant), Side::Slice(values)) => {
            overflows(values, results, results, |b, c, _| difference(constant, b, c))
        }
        (ArithmeticOp::Multiply, ..) => bits_of(left) + bits_of(right) >= 63,
        _ => true,
    }
}

fn divide(
    kernel: &Kernel,
    left: Side<'_, i64>,
    right: Side<'_, i64>,
    rows: usize,
    valid: Option<&Mask>,
    live: Option<&Mask>,
) -> Result<Vec<i64>> {
    let is_quotient = kernel.op == ArithmeticOp::Divide;
    if let (Side::Slice(values), Side::Constant(divisor)) = (left, right)
        && kernel.is_narrow
        && kernel.check.is_none()
        && divisor > 0
    {
        // Of numbers this small, the nearest float to a quotient is on the same side of each whole number.
        let quotient = |value: i64| (f64::from(value as i32) / divisor as f64) as i32 as i64;
        return Ok(match is_quotient {
            true => map(values, quotient),
            false => map(values, |value| i64::from(value as i32) - quotient(value) * divisor),
        });
    }
    let (lower, upper) = kernel.check.unwrap_or((i64::MIN.into(), i64::MAX.into()));
    let (lower, upper) = (lower as i64, upper as i64);
    let mut bad = false;
    let values = zip_mut(left, right, rows, |a, b| {
        if b == 0 {
            bad = true;
            return 0;
        }
        let value = if is_quotient { a.wrapping_div(b) } else { a.wrapping_rem(b) };
        bad |= value < lower || value > upper || (is_quotient && b == -1 && a == i64::MIN);
        value
    });
    if bad {
        recheck(kernel, left, right, rows, valid, live)?;
    }
    Ok(values)
}

/// As [`zip`], for what notes something.
#[inline(always)]
fn zip_mut<T: Copy, U: Copy, V>(
    left: Side<'_, T>,
    right: Side<'_, U>,
    rows: usize,
    mut f: impl FnMut(T, U) -> V,
) -> Vec<V> {
    match (left, right) {
        (Side::Slice(left), Side::Slice(right)) => left.iter().zip(right).map(|(a, b)| f(*a, *b)).collect(),
        (Side::Slice(left), Side::Constant(b)) => left.iter().map(|a| f(*a, b)).collect(),
        (Side::Constant(a), Side::Slice(right)) => right.iter().map(|b| f(a, *b)).collect(),
        (Side::Constant(a), Side::Constant(b)) => (0..rows).map(|_| f(a, b)).collect(),
    }
}

/// The error of the first row that has one.
#[cold]
fn recheck<A: Copy + Into<i128>, B: Copy + Into<i128>>(
    kernel: &Kernel,
    left: Side<'_, A>,
    right: Side<'_, B>,
    rows: usize,
    valid: Option<&Mask>,
    live: Option<&Mask>,
) -> Result<()> {
    for row in rows_of_interest(rows, valid, live).positions() {
        let (a, b): (i128, i128) = (left.get(row as usize).into(), right.get(row as usize).into());
        if kernel.divides && b == 0 {
            return Err(division_by_zero());
        }
        let value = exact(kernel.op, a, b);
        let is_within = match (value, kernel.check) {
            (Some(value), Some((lower, upper))) => lower <= value && value <= upper,
            (value, None) => value.is_some(),
            (None, Some(_)) => false,
        };
        if !is_within {
            return Err(out_of_range(&kernel.data_type));
        }
    }
    Ok(())
}

#[inline(always)]
fn exact(op: ArithmeticOp, a: i128, b: i128) -> Option<i128> {
    match op {
        ArithmeticOp::Add => a.checked_add(b),
        ArithmeticOp::Subtract => a.checked_sub(b),
        ArithmeticOp::Multiply => a.checked_mul(b),
        ArithmeticOp::Divide => a.checked_div(b),
        ArithmeticOp::Modulo if b == -1 => Some(0),
        ArithmeticOp::Modulo => a.checked_rem(b),
    }
}

enum Wides<'a> {
    Int(Side<'a, i64>),
    Wide(Side<'a, i128>),
}

fn wides<'a>(value: &'a Value) -> Result<Wides<'a>> {
    Ok(match value {
        Value::Constant(Scalar::Int(value)) => Wides::Int(Side::Constant(*value)),
        Value::Constant(Scalar::Wide(value)) => match i64::try_from(*value) {
            Ok(value) => Wides::Int(Side::Constant(value)),
            Err(_) => Wides::Wide(Side::Constant(*value)),
        },
        Value::Vector(Vector { values: Values::Int(values), .. }) => Wides::Int(Side::Slice(values)),
        Value::Vector(Vector { values: Values::Wide(values), .. }) => Wides::Wide(Side::Slice(values)),
        _ => return Err(Error::internal("an operand is no integer")),
    })
}

fn wide<A: Copy + Into<i128>, B: Copy + Into<i128>>(
    kernel: &Kernel,
    left: Side<'_, A>,
    right: Side<'_, B>,
    rows: usize,
    valid: Option<&Mask>,
    live: Option<&Mask>,
) -> Result<Vec<i128>> {
    if kernel.check.is_none() && !kernel.divides {
        return Ok(match kernel.op {
            ArithmeticOp::Add => zip(left, right, rows, |a, b| a.into().wrapping_add(b.into())),
            ArithmeticOp::Subtract => zip(left, right, rows, |a, b| a.into().wrapping_sub(b.into())),
            _ => zip(left, right, rows, |a, b| a.into().wrapping_mul(b.into())),
        });
    }
    let op = kernel.op;
    let (lower, upper) = kernel.check.unwrap_or((i128::MIN, i128::MAX));
    let mut bad = false;
    let values = zip_mut(left, right, rows, |a, b| match exact(op, a.into(), b.into()) {
        Some(value) => {
            bad |= value < lower || value > upper;
            value
        }
        None => {
            bad = true;
            0
        }
    });
    if bad {
        recheck(kernel, left, right, rows, valid, live)?;
    }
    Ok(values)
}

fn float(
    kernel: &Kernel,
    left: Side<'_, f64>,
    right: Side<'_, f64>,
    rows: usize,
    valid: Option<&Mask>,
    live: Option<&Mask>,
) -> Result<Vec<f64>> {
    if kernel.divides {
        let has_zero = match right {
            Side::Slice(values) => values.iter().fold(false, |any, value| any | (*value == 0.0)),
            Side::Constant(value) => value == 0.0,
        };
        let is_divided = |row: &u32| right.get(*row as usize) == 0.0 && !left.get(*row as usize).is_nan();
        if has_zero && rows_of_interest(rows, valid, live).positions().iter().any(is_divided) {
            return Err(division_by_zero());
        }
    }
    let values = match (kernel.op, kernel.is_real) {
        (ArithmeticOp::Add, false) => zip(left, right, rows, |a, b| a + b),
        (ArithmeticOp::Subtract, false) => zip(left, right, rows, |a, b| a - b),
        (ArithmeticOp::Multiply, false) => zip(left, right, rows, |a, b| a * b),
        (ArithmeticOp::Divide, false) => zip(left, right, rows, |a, b| a / b),
        (ArithmeticOp::Modulo, false) => zip(left, right, rows, |a, b| a % b),
        // Rounding twice gives what rounding once does: 53 digits are more than twice 24 and two.
        (ArithmeticOp::Add, true) => zip(left, right, rows, |a, b| f64::from((a + b) as f32)),
        (ArithmeticOp::Subtract, true) => zip(left, right, rows, |a, b| f64::from((a - b) as f32)),
        (ArithmeticOp::Multiply, true) => zip(left, right, rows, |a, b| f64::from((a * b) as f32)),
        (ArithmeticOp::Divide, true) => zip(left, right, rows, |a, b| f64::from((a / b) as f32)),
        (ArithmeticOp::Modulo, true) => zip(left, right, rows, |a, b| f64::from((a % b) as f32)),
    };
    if kernel.op != ArithmeticOp::Modulo {
        let of_interest = || rows_of_interest(rows, valid, live).positions();
        float_range::check(kernel.op, left, right, &values, of_interest)?;
    }
    Ok(values)
}
