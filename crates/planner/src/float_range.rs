//! Results of functions of floating-point numbers that no such number holds: 22003, where the library gives infinity, zero or NaN.

use crate::errors::carry;
use arrow::array::{Array, ArrayRef, AsArray, Float32Array, Float64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use datafusion::common::Result;
use datafusion::logical_expr::{ColumnarValue, Operator};
use tidepool_base::{Error, SqlState};
use tidepool_engine::evaluate::Fault;
use tidepool_engine::expr::ArithmeticOp;

/// Whether a function's results have to be looked at.
pub fn is_watched(name: &str) -> bool {
    is_bounded(name) || has_domain(name)
}

/// Grows beyond all numbers.
fn is_bounded(name: &str) -> bool {
    matches!(name, "exp" | "power" | "pow" | "degrees")
}

/// Comes so near to zero that no number but zero is left.
fn vanishes(name: &str) -> bool {
    matches!(name, "exp" | "power" | "pow")
}

/// Is not there for all numbers.
fn has_domain(name: &str) -> bool {
    matches!(name, "acos" | "acosh" | "asin" | "atanh" | "cos" | "cot" | "sin" | "tan")
}

/// 22003 for a result that its arguments do not have.
pub fn check(name: &str, args: &[ColumnarValue], result: &ColumnarValue) -> Result<()> {
    let suspect = |value: f64| !value.is_finite() || value == 0.0 && vanishes(name);
    let rows = match result {
        ColumnarValue::Scalar(_) => 1,
        ColumnarValue::Array(array) => array.len(),
    };
    let results = floats(result, rows)?;
    let Some(results) = results.as_ref().map(|array| array.as_primitive::<Float64Type>()) else { return Ok(()) };
    if !results.iter().flatten().any(suspect) {
        return Ok(());
    }
    let mut arrays = Vec::with_capacity(args.len());
    for arg in args {
        match floats(arg, rows)? {
            Some(array) => arrays.push(array),
            None => return Ok(()),
        }
    }
    let arrays: Vec<&Float64Array> = arrays.iter().map(|array| array.as_primitive::<Float64Type>()).collect();
    for (row, value) in results.iter().enumerate() {
        let Some(value) = value.filter(|value| suspect(*value)) else { continue };
        let of_args =
            |test: &dyn Fn(f64) -> bool| arrays.iter().any(|array| array.is_valid(row) && test(array.value(row)));
        let message = match value {
            value if value.is_nan() => match has_domain(name) && !of_args(&f64::is_nan) {
                true => "input is out of range",
                false => continue,
            },
            // A power of zero.
            0.0 if name != "exp" && arrays.first().is_some_and(|base| base.value(row) == 0.0) => continue,
            _ if !is_bounded(name) || of_args(&|arg| !arg.is_finite()) => continue,
            value if value.is_infinite() => "value out of range: overflow",
            _ => "value out of range: underflow",
        };
        return Err(carry(Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, message)));
    }
    Ok(())
}

/// 22003 for a result of arithmetic that its operands do not have, 22012 for a quotient of zero. Of other than floating-point numbers nothing is said.
pub fn check_arithmetic(
    op: Operator,
    (left, right): (&ColumnarValue, &ColumnarValue),
    result: &ColumnarValue,
    rows: usize,
) -> Result<()> {
    let op = match op {
        Operator::Plus => ArithmeticOp::Add,
        Operator::Minus => ArithmeticOp::Subtract,
        Operator::Multiply => ArithmeticOp::Multiply,
        Operator::Divide => ArithmeticOp::Divide,
        _ => return Ok(()),
    };
    let rows = if matches!(result, ColumnarValue::Scalar(_)) { 1 } else { rows };
    let widened = |value: &ColumnarValue| -> Result<Option<ArrayRef>> {
        match value.data_type() {
            DataType::Float64 => value.to_array(rows).map(Some),
            DataType::Float32 => Ok(Some(cast(&value.to_array(rows)?, &DataType::Float64)?)),
            _ => Ok(None),
        }
    };
    let (Some(left), Some(right), Some(result)) = (widened(left)?, widened(right)?, widened(result)?) else {
        return Ok(());
    };
    let [left, right, result] = [&left, &right, &result].map(|array| array.as_primitive::<Float64Type>());
    for (row, value) in result.iter().enumerate() {
        // What is finite and not zero has no fault, whatever it comes of.
        let Some(value) = value.filter(|value| !value.is_finite() || *value == 0.0) else { continue };
        let (left, right) = (left.value(row), right.value(row));
        if op == ArithmeticOp::Divide && right == 0.0 && !left.is_nan() {
            return Err(carry(Error::new(SqlState::DIVISION_BY_ZERO, "division by zero")));
        }
        if let Some(fault) = Fault::of(op, left, right, value) {
            return Err(carry(fault.error()));
        }
    }
    Ok(())
}

/// Doubles as `real`. 22003 for one that no such number holds.
pub fn narrow(doubles: &Float64Array) -> Result<Float32Array> {
    doubles.try_unary(|value| match Fault::of_narrowing(value, value as f32) {
        Some(fault) => Err(carry(fault.error())),
        None => Ok(value as f32),
    })
}

/// A sum of `real`s as one. 22003 if no such number holds it. A sum of small numbers may come to nothing.
pub fn sum_as_real(sum: f64) -> Result<f32> {
    match sum as f32 {
        real if real.is_infinite() && !sum.is_infinite() => Err(carry(Fault::Overflow.error())),
        real => Ok(real),
    }
}

/// Doubles as an array. `None` for other values.
fn floats(value: &ColumnarValue, rows: usize) -> Result<Option<ArrayRef>> {
    if value.data_type() != DataType::Float64 {
        return Ok(None);
    }
    value.to_array(rows).map(Some)
}
