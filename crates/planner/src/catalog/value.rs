//! Single values, and columns made of them. The catalogue's tables are small and its functions are called a few times
//! a statement, so both work value by value, and this is where values meet Arrow.

use crate::catalog::items::Items;
use chrono::{DateTime, Utc};
use datafusion::arrow::array::*;
use datafusion::arrow::buffer::{NullBuffer, OffsetBuffer};
use datafusion::arrow::datatypes::*;
use datafusion::common::{DataFusionError, Result, exec_err};
use std::borrow::Cow;
use std::sync::Arc;
use tidepool_base::Numeric;
use tidepool_table::NUMERIC_WIDTH;

/// One value of any type that the catalogue and PostgreSQL's functions deal in.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    /// Unscaled value and scale.
    Decimal(i128, i8),
    Text(Cow<'static, str>),
    Bytes(Vec<u8>),
    /// Days since 1970-01-01.
    Date(i32),
    /// Microseconds since 1970-01-01; of the clock on the wall, or in UTC for a type with time zone.
    Timestamp(i64),
    Interval(IntervalMonthDayNano),
    List(Vec<Value>),
    /// Fields in the type's order.
    Struct(Vec<Value>),
}

impl Value {
    pub fn text(text: impl Into<String>) -> Value {
        Value::Text(Cow::Owned(text.into()))
    }
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }
    pub fn as_str(&self) -> &str {
        match self {
            Value::Text(text) => text,
            _ => "",
        }
    }
    pub fn as_int(&self) -> i64 {
        match self {
            Value::Int(value) => *value,
            Value::Bool(value) => i64::from(*value),
            Value::Float(value) => *value as i64,
            Value::Decimal(value, scale) => decimal_to_f64(*value, *scale) as i64,
            _ => 0,
        }
    }
    pub fn as_bool(&self) -> bool {
        matches!(self, Value::Bool(true))
    }
    pub fn as_float(&self) -> f64 {
        match self {
            Value::Float(value) => *value,
            Value::Int(value) => *value as f64,
            Value::Decimal(value, scale) => decimal_to_f64(*value, *scale),
            _ => 0.0,
        }
    }
}

fn decimal_to_f64(value: i128, scale: i8) -> f64 {
    value as f64 / 10f64.powi(i32::from(scale))
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Value {
        Value::Text(Cow::Borrowed(text))
    }
}
impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(Cow::Owned(text))
    }
}
impl From<bool> for Value {
    fn from(value: bool) -> Value {
        Value::Bool(value)
    }
}
impl From<f64> for Value {
    fn from(value: f64) -> Value {
        Value::Float(value)
    }
}
impl From<DateTime<Utc>> for Value {
    fn from(value: DateTime<Utc>) -> Value {
        Value::Timestamp(value.timestamp_micros())
    }
}
impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Value {
        value.map_or(Value::Null, Into::into)
    }
}
impl<T: Into<Value>> From<Vec<T>> for Value {
    fn from(values: Vec<T>) -> Value {
        Value::List(values.into_iter().map(Into::into).collect())
    }
}
macro_rules! from_integers {
    ($($t:ty),*) => { $(impl From<$t> for Value { fn from(value: $t) -> Value { Value::Int(value as i64) } })* };
}
// A u64 here is a count of bytes or rows, and those stay below 2^63.
from_integers!(i16, u16, i32, i64, u32, u64, usize);

/// The value at `row`, by the array's type.
pub fn value_at(array: &dyn Array, row: usize) -> Result<Value> {
    if array.is_null(row) || array.data_type() == &DataType::Null {
        return Ok(Value::Null);
    }
    macro_rules! int {
        ($t:ty) => {
            Value::Int(array.as_primitive::<$t>().value(row) as i64)
        };
    }
    Ok(match array.data_type() {
        DataType::Boolean => Value::Bool(array.as_boolean().value(row)),
        DataType::Int8 => int!(Int8Type),
        DataType::Int16 => int!(Int16Type),
        DataType::Int32 => int!(Int32Type),
        DataType::Int64 => int!(Int64Type),
        DataType::UInt8 => int!(UInt8Type),
        DataType::UInt16 => int!(UInt16Type),
        DataType::UInt32 => int!(UInt32Type),
        DataType::UInt64 => int!(UInt64Type),
        DataType::Float32 => Value::Float(f64::from(array.as_primitive::<Float32Type>().value(row))),
        DataType::Float64 => Value::Float(array.as_primitive::<Float64Type>().value(row)),
        DataType::Decimal128(_, scale) => Value::Decimal(array.as_primitive::<Decimal128Type>().value(row), *scale),
        DataType::FixedSizeBinary(NUMERIC_WIDTH) => {
            let number = Numeric::from_bytes(array.as_fixed_size_binary().value(row)).unwrap_or_default();
            Value::Decimal(number.unscaled(), number.scale() as i8)
        }
        DataType::Utf8 => Value::text(array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => Value::text(array.as_string::<i64>().value(row)),
        DataType::Utf8View => Value::text(array.as_string_view().value(row)),
        DataType::Binary => Value::Bytes(array.as_binary::<i32>().value(row).to_vec()),
        DataType::LargeBinary => Value::Bytes(array.as_binary::<i64>().value(row).to_vec()),
        DataType::BinaryView => Value::Bytes(array.as_binary_view().value(row).to_vec()),
        DataType::Date32 => Value::Date(array.as_primitive::<Date32Type>().value(row)),
        DataType::Timestamp(TimeUnit::Second, _) => {
            Value::Timestamp(array.as_primitive::<TimestampSecondType>().value(row).saturating_mul(1_000_000))
        }
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            Value::Timestamp(array.as_primitive::<TimestampMillisecondType>().value(row).saturating_mul(1_000))
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            Value::Timestamp(array.as_primitive::<TimestampMicrosecondType>().value(row))
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            Value::Timestamp(array.as_primitive::<TimestampNanosecondType>().value(row).div_euclid(1_000))
        }
        DataType::Interval(IntervalUnit::MonthDayNano) => {
            Value::Interval(array.as_primitive::<IntervalMonthDayNanoType>().value(row))
        }
        DataType::List(_) => values_of(&array.as_list::<i32>().value(row))?,
        DataType::LargeList(_) => values_of(&array.as_list::<i64>().value(row))?,
        DataType::FixedSizeList(_, _) => values_of(&array.as_fixed_size_list().value(row))?,
        DataType::Struct(_) => {
            Value::Struct(array.as_struct().columns().iter().map(|c| value_at(c, row)).collect::<Result<_>>()?)
        }
        DataType::Dictionary(_, _) => {
            let array = array.as_any_dictionary();
            let key = array.normalized_keys()[row];
            return value_at(array.values(), key);
        }
        other => return exec_err!("values of type {other} are not supported here"),
    })
}

fn values_of(array: &ArrayRef) -> Result<Value> {
    Ok(Value::List(Items::of((0..array.len()).map(|row| value_at(array, row)))?))
}

/// A column of `data_type` made of `values`. A value that does not fit its column is a bug here, never the user's.
pub fn array_of(values: &[Value], data_type: &DataType) -> Result<ArrayRef> {
    macro_rules! primitive {
        ($t:ty, $pattern:pat => $value:expr) => {
            Arc::new(
                values
                    .iter()
                    .map(|value| match value {
                        Value::Null => Ok(None),
                        $pattern => Ok(Some($value)),
                        other => Err(misfit(other, data_type)),
                    })
                    .collect::<Result<PrimitiveArray<$t>>>()?,
            )
        };
    }
    macro_rules! integer {
        ($t:ty) => {
            Arc::new(
                values
                    .iter()
                    .map(|value| match value {
                        Value::Null => Ok(None),
                        Value::Int(value) => <$t as ArrowPrimitiveType>::Native::try_from(*value)
                            .map(Some)
                            .map_err(|_| DataFusionError::Execution(format!("value {value} out of range"))),
                        other => Err(misfit(other, data_type)),
                    })
                    .collect::<Result<PrimitiveArray<$t>>>()?,
            )
        };
    }
    macro_rules! texts {
        ($t:ty) => {
            Arc::new(
                values
                    .iter()
                    .map(|value| match value {
                        Value::Null => Ok(None),
                        Value::Text(text) => Ok(Some(text.as_ref())),
                        other => Err(misfit(other, data_type)),
                    })
                    .collect::<Result<$t>>()?,
            )
        };
    }
    Ok(match data_type {
        DataType::Null => new_null_array(data_type, values.len()),
        DataType::Boolean => Arc::new(
            values
                .iter()
                .map(|value| match value {
                    Value::Null => Ok(None),
                    Value::Bool(value) => Ok(Some(*value)),
                    other => Err(misfit(other, data_type)),
                })
                .collect::<Result<BooleanArray>>()?,
        ),
        DataType::Int16 => integer!(Int16Type),
        DataType::Int32 => integer!(Int32Type),
        DataType::Int64 => integer!(Int64Type),
        DataType::UInt32 => integer!(UInt32Type),
        DataType::Float32 => primitive!(Float32Type, Value::Float(value) => *value as f32),
        DataType::Float64 => primitive!(Float64Type, Value::Float(value) => *value),
        DataType::Decimal128(precision, scale) => {
            let array = values
                .iter()
                .map(|value| match value {
                    Value::Null => Ok(None),
                    Value::Decimal(value, from) => rescale(*value, *from, *scale).map(Some),
                    Value::Int(value) => rescale(i128::from(*value), 0, *scale).map(Some),
                    other => Err(misfit(other, data_type)),
                })
                .collect::<Result<Decimal128Array>>()?;
            Arc::new(array.with_precision_and_scale(*precision, *scale)?)
        }
        DataType::FixedSizeBinary(NUMERIC_WIDTH) => {
            let numbers = values.iter().map(|value| match value {
                Value::Null => Ok(None),
                Value::Decimal(value, scale) => {
                    Numeric::of_decimal(*value, *scale).map(Some).map_err(crate::errors::carry)
                }
                Value::Int(value) => Ok(Some(Numeric::of_int(*value))),
                other => Err(misfit(other, data_type)),
            });
            let numbers = numbers.collect::<Result<Vec<_>>>()?;
            tidepool_database::text::numeric::array_of(numbers.into_iter()).map_err(crate::errors::carry)?
        }
        DataType::Utf8 => texts!(StringArray),
        DataType::Utf8View => texts!(StringViewArray),
        DataType::Binary => Arc::new(
            values
                .iter()
                .map(|value| match value {
                    Value::Null => Ok(None),
                    Value::Bytes(bytes) => Ok(Some(bytes.as_slice())),
                    other => Err(misfit(other, data_type)),
                })
                .collect::<Result<BinaryArray>>()?,
        ),
        DataType::Date32 => primitive!(Date32Type, Value::Date(value) => *value),
        DataType::Timestamp(TimeUnit::Microsecond, zone) => {
            let array: Arc<TimestampMicrosecondArray> =
                primitive!(TimestampMicrosecondType, Value::Timestamp(value) => *value);
            match zone {
                None => array,
                Some(zone) => Arc::new(array.as_ref().clone().with_timezone(zone.clone())),
            }
        }
        DataType::Interval(IntervalUnit::MonthDayNano) => {
            primitive!(IntervalMonthDayNanoType, Value::Interval(value) => *value)
        }
        DataType::List(field) => {
            let mut items = Vec::new();
            let mut lengths = Vec::with_capacity(values.len());
            let mut valid = Vec::with_capacity(values.len());
            for value in values {
                match value {
                    Value::Null => lengths.push(0),
                    Value::List(list) => {
                        lengths.push(list.len());
                        items.extend_from_slice(list);
                    }
                    other => return Err(misfit(other, data_type)),
                }
                valid.push(!value.is_null());
            }
            let items = array_of(&items, field.data_type())?;
            let offsets = OffsetBuffer::from_lengths(lengths);
            Arc::new(ListArray::try_new(field.clone(), offsets, items, Some(NullBuffer::from(valid)))?)
        }
        DataType::Struct(fields) => {
            let mut columns = vec![Vec::with_capacity(values.len()); fields.len()];
            for value in values {
                match value {
                    Value::Struct(parts) if parts.len() == fields.len() => {
                        columns.iter_mut().zip(parts).for_each(|(column, part)| column.push(part.clone()));
                    }
                    Value::Null => columns.iter_mut().for_each(|column| column.push(Value::Null)),
                    other => return Err(misfit(other, data_type)),
                }
            }
            let valid = NullBuffer::from(values.iter().map(|value| !value.is_null()).collect::<Vec<_>>());
            let columns = columns
                .iter()
                .zip(fields)
                .map(|(column, field)| array_of(column, field.data_type()))
                .collect::<Result<Vec<_>>>()?;
            Arc::new(StructArray::try_new(fields.clone(), columns, Some(valid))?)
        }
        other => return exec_err!("columns of type {other} are not supported here"),
    })
}

fn misfit(value: &Value, data_type: &DataType) -> DataFusionError {
    DataFusionError::Internal(format!("{value:?} in a column of type {data_type}"))
}

/// The same number with another count of digits after the point, rounded half away from zero.
pub fn rescale(value: i128, from: i8, to: i8) -> Result<i128> {
    let shift = i32::from(to) - i32::from(from);
    let scaled = if shift >= 0 {
        10i128.checked_pow(shift.unsigned_abs()).and_then(|factor| value.checked_mul(factor))
    } else {
        10i128.checked_pow(shift.unsigned_abs()).map(|factor| {
            let (quotient, remainder) = (value / factor, value % factor);
            if remainder.abs() * 2 >= factor { quotient + value.signum() } else { quotient }
        })
    };
    scaled.ok_or_else(|| DataFusionError::Execution("numeric field overflow".to_owned()))
}
