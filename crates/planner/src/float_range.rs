//! Results of functions of floating-point numbers that no such number holds: 22003, where the library gives infinity, zero or NaN.

use crate::errors::carry;
use arrow::array::{Array, ArrayRef, AsArray, Float64Array};
use arrow::datatypes::{DataType, Float64Type};
use datafusion::common::Result;
use datafusion::logical_expr::ColumnarValue;
use tidepool_base::{Error, SqlState};

/// Whether a function's results have to be looked at.
pub fn is_watched(name: &str) -> bool {
    is_bounded(name) || has_domain(name)
}

/// Grows beyond all numbers.
fn is_bounded(name: &str) -> bool {
    matches!(name, "exp" | "power" | "pow" | "degrees")
}

/// Is not there for all numbers.
fn has_domain(name: &str) -> bool {
    matches!(name, "acos" | "acosh" | "asin" | "atanh" | "cos" | "cot" | "sin" | "tan")
}

/// 22003 for a result that its arguments do not have.
pub fn check(name: &str, args: &[ColumnarValue], result: &ColumnarValue) -> Result<()> {
    let suspect = |value: f64| !value.is_finite() || value == 0.0 && name == "exp";
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
            _ if !is_bounded(name) || of_args(&|arg| !arg.is_finite()) => continue,
            value if value.is_infinite() => "value out of range: overflow",
            _ => "value out of range: underflow",
        };
        return Err(carry(Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, message)));
    }
    Ok(())
}

/// Doubles as an array. `None` for other values.
fn floats(value: &ColumnarValue, rows: usize) -> Result<Option<ArrayRef>> {
    if value.data_type() != DataType::Float64 {
        return Ok(None);
    }
    value.to_array(rows).map(Some)
}
