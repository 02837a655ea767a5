//! Arithmetic that PostgreSQL has under a name of its own.

use super::Type::*;
use super::{Function, invalid, sql_error};
use crate::catalog::value::{Value, rescale};
use crate::numerics::NUMERIC;
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{DataFusionError, Result};
use tidepool_base::SqlState;

/// `numeric` without a fraction.
const WHOLE: DataType = DataType::Decimal128(38, 0);

pub fn functions() -> Vec<Function> {
    vec![
        Function::new("sign", &[&[Int8], &[Numeric], &[Float8]], "float8", |_, args| {
            Ok(match &args[0] {
                Value::Decimal(value, _) => Value::Decimal(value.signum(), 0),
                other => Value::Float(if other.as_float() == 0.0 { 0.0 } else { other.as_float().signum() }),
            })
        })
        .returning(|types| match same(types)? {
            DataType::Decimal128(..) | NUMERIC => Ok(WHOLE),
            _ => Ok(DataType::Float64),
        }),
        Function::new("div", &[&[Int8, Int8], &[Numeric, Numeric], &[Float8, Float8]], "float8", |_, args| {
            if args[1].as_float() == 0.0 {
                return Err(sql_error(SqlState::DIVISION_BY_ZERO, "division by zero"));
            }
            match (&args[0], &args[1]) {
                (Value::Float(left), Value::Float(right)) => Ok(Value::Float((left / right).trunc())),
                (left, right) => {
                    let (left, right) = (decimal(left), decimal(right));
                    let scale = left.1.max(right.1);
                    let quotient = rescale(left.0, left.1, scale)? / rescale(right.0, right.1, scale)?;
                    Ok(Value::Decimal(quotient, 0))
                }
            }
        })
        .returning(|types| match same(types)? {
            DataType::Float64 => Ok(DataType::Float64),
            _ => Ok(WHOLE),
        }),
        Function::new("width_bucket", &[&[Float8, Float8, Float8, Int4]], "int4", |_, args| {
            let [value, low, high, count] = [0, 1, 2, 3].map(|index| args[index].as_float());
            if count < 1.0 {
                return Err(sql_error(SqlState::INVALID_PARAMETER_VALUE, "count must be greater than zero"));
            }
            if low == high || !low.is_finite() || !high.is_finite() || value.is_nan() {
                return Err(sql_error(SqlState::INVALID_PARAMETER_VALUE, "lower bound cannot equal upper bound"));
            }
            let position = if low < high { (value - low) / (high - low) } else { (low - value) / (low - high) };
            Ok(Value::Int(if position < 0.0 {
                0
            } else if position >= 1.0 {
                count as i64 + 1
            } else {
                (position * count).floor() as i64 + 1
            }))
        }),
        Function::new("scale", &[&[Numeric]], "int4", |_, args| Ok(Value::Int(i64::from(decimal(&args[0]).1)))),
        Function::new("min_scale", &[&[Numeric]], "int4", |_, args| {
            let (mut value, mut scale) = decimal(&args[0]);
            while scale > 0 && value % 10 == 0 {
                value /= 10;
                scale -= 1;
            }
            Ok(Value::Int(i64::from(scale)))
        }),
        Function::new("trim_scale", &[&[Numeric]], "numeric", |_, args| {
            let (mut value, mut scale) = decimal(&args[0]);
            while scale > 0 && value % 10 == 0 {
                value /= 10;
                scale -= 1;
            }
            Ok(Value::Decimal(value, scale))
        })
        .returning(|_| Ok(NUMERIC)),
        Function::new("bit_count", &[&[Bytes]], "int8", |_, args| match &args[0] {
            Value::Bytes(bytes) => Ok(bytes.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>().into()),
            _ => Err(invalid("bit_count takes bytea")),
        }),
    ]
}

/// The type of the first argument.
fn same(types: &[DataType]) -> Result<DataType> {
    types.first().cloned().ok_or_else(|| invalid("an argument is missing"))
}

fn decimal(value: &Value) -> (i128, i8) {
    match value {
        Value::Decimal(value, scale) => (*value, *scale),
        other => (i128::from(other.as_int()), 0),
    }
}

pub fn out_of_range(type_name: &str) -> DataFusionError {
    sql_error(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, format!("{type_name} out of range"))
}
