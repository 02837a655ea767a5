//! Single values, as rows, parameters and expressions have them.

use crate::errors::from_datafusion;
use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, IntervalMonthDayNano, IntervalUnit, TimeUnit};
use datafusion::common::ScalarValue;
use std::borrow::Cow;
use std::cmp::Ordering;
use tidepool_base::{Error, NUMERIC_BYTES, NUMERIC_KEY_BYTES, Numeric, Result, SqlType};
use tidepool_index::key::KeyValue;
use tidepool_table::rows::Value;

/// A value of one of the types that columns have in Arrow. Which one, those who have it know: an `Int` is of any width, a date (days) or a
/// timestamp (µs); a `Numeric` is without its scale; a `Text` may be a uuid or JSON, `Bytes` a
/// number that has a scale.
#[derive(Clone, Debug, PartialEq)]
pub enum Datum<'a> {
    Null,
    Boolean(bool),
    Int(i64),
    Real(f32),
    Double(f64),
    Numeric(i128),
    Interval(IntervalMonthDayNano),
    Text(Cow<'a, str>),
    Bytes(Cow<'a, [u8]>),
}

impl<'a> Datum<'a> {
    pub fn is_null(&self) -> bool {
        matches!(self, Datum::Null)
    }

    /// The same value, lent.
    #[inline]
    pub fn lend(&self) -> Datum<'_> {
        match self {
            Datum::Null => Datum::Null,
            Datum::Boolean(value) => Datum::Boolean(*value),
            Datum::Int(value) => Datum::Int(*value),
            Datum::Real(value) => Datum::Real(*value),
            Datum::Double(value) => Datum::Double(*value),
            Datum::Numeric(value) => Datum::Numeric(*value),
            Datum::Interval(value) => Datum::Interval(*value),
            Datum::Text(text) => Datum::Text(Cow::Borrowed(text)),
            Datum::Bytes(bytes) => Datum::Bytes(Cow::Borrowed(bytes)),
        }
    }

    pub fn into_owned(self) -> Datum<'static> {
        match self {
            Datum::Null => Datum::Null,
            Datum::Boolean(value) => Datum::Boolean(value),
            Datum::Int(value) => Datum::Int(value),
            Datum::Real(value) => Datum::Real(value),
            Datum::Double(value) => Datum::Double(value),
            Datum::Numeric(value) => Datum::Numeric(value),
            Datum::Interval(value) => Datum::Interval(value),
            Datum::Text(text) => Datum::Text(Cow::Owned(text.into_owned())),
            Datum::Bytes(bytes) => Datum::Bytes(Cow::Owned(bytes.into_owned())),
        }
    }

    /// A value of a row's image, of a column of this type.
    #[inline]
    pub fn of_value(value: Value<'a>, sql_type: SqlType) -> Result<Datum<'a>> {
        Ok(match value {
            Value::Null => Datum::Null,
            Value::Boolean(value) => Datum::Boolean(value),
            Value::Int(value) => Datum::Int(value),
            Value::Real(value) => Datum::Real(value),
            Value::Double(value) => Datum::Double(value),
            Value::Numeric(value) => Datum::Numeric(value),
            Value::Interval(value) => Datum::Interval(value),
            Value::Uuid(bytes) => {
                let text = tidepool_database::text::single::uuid_text(&bytes);
                Datum::Text(Cow::Owned(String::from_utf8_lossy(&text).into_owned()))
            }
            Value::Bytes(bytes) if matches!(sql_type, SqlType::Bytea | SqlType::UnconstrainedNumeric) => {
                Datum::Bytes(Cow::Borrowed(bytes))
            }
            Value::Bytes(bytes) => {
                let text = std::str::from_utf8(bytes).map_err(|_| Error::corrupted("a row's text is not UTF-8"))?;
                Datum::Text(Cow::Borrowed(text))
            }
        })
    }

    /// As a row's image takes it.
    #[inline]
    pub fn to_value(&self) -> Value<'_> {
        match self {
            Datum::Null => Value::Null,
            Datum::Boolean(value) => Value::Boolean(*value),
            Datum::Int(value) => Value::Int(*value),
            Datum::Real(value) => Value::Real(*value),
            Datum::Double(value) => Value::Double(*value),
            Datum::Numeric(value) => Value::Numeric(*value),
            Datum::Interval(value) => Value::Interval(*value),
            Datum::Text(text) => Value::Bytes(text.as_bytes()),
            Datum::Bytes(bytes) => Value::Bytes(bytes),
        }
    }

    /// As a key of a column of this type has it. `None` for one that no column of the type can have.
    #[inline]
    pub fn to_key(&self, sql_type: SqlType) -> Option<KeyValue<'_>> {
        Some(match (sql_type, self) {
            (_, Datum::Null) => KeyValue::Null,
            (SqlType::Boolean, Datum::Boolean(value)) => KeyValue::Boolean(*value),
            (SqlType::SmallInt, Datum::Int(value)) => KeyValue::SmallInt(i16::try_from(*value).ok()?),
            (SqlType::Integer, Datum::Int(value)) => KeyValue::Integer(i32::try_from(*value).ok()?),
            (SqlType::BigInt, Datum::Int(value)) => KeyValue::BigInt(*value),
            (SqlType::Date, Datum::Int(value)) => KeyValue::Date(i32::try_from(*value).ok()?),
            (SqlType::Timestamp { .. } | SqlType::TimestampTz { .. }, Datum::Int(value)) => KeyValue::Timestamp(*value),
            (SqlType::Numeric { precision, .. }, Datum::Numeric(value)) => {
                let fits = value.unsigned_abs() < 10u128.pow(u32::from(precision));
                if fits { KeyValue::Numeric(*value) } else { return None }
            }
            (SqlType::Uuid, Datum::Text(text)) => KeyValue::uuid(text).ok()?,
            (SqlType::Text | SqlType::Varchar { .. } | SqlType::Char { .. }, Datum::Text(text)) => {
                KeyValue::Text(Cow::Borrowed(text))
            }
            (SqlType::UnconstrainedNumeric, Datum::Bytes(bytes)) if bytes.len() == NUMERIC_BYTES => {
                KeyValue::Unconstrained(Numeric::from_key(&bytes[..NUMERIC_KEY_BYTES])?)
            }
            (SqlType::Bytea, Datum::Bytes(bytes)) => KeyValue::Bytea(Cow::Borrowed(bytes)),
            _ => return None,
        })
    }

    /// The one value of an array at a row.
    pub fn of_array(array: &ArrayRef, row: usize) -> Result<Datum<'static>> {
        let scalar = ScalarValue::try_from_array(array, row).map_err(from_datafusion)?;
        Datum::of_scalar(&scalar).ok_or_else(|| Error::internal(format!("a value of type {}", array.data_type())))
    }

    /// `None` for what no column holds.
    pub fn of_scalar(scalar: &ScalarValue) -> Option<Datum<'static>> {
        fn text(text: &Option<String>) -> Datum<'static> {
            text.as_ref().map_or(Datum::Null, |text| Datum::Text(Cow::Owned(text.clone())))
        }
        fn bytes(bytes: &Option<Vec<u8>>) -> Datum<'static> {
            bytes.as_ref().map_or(Datum::Null, |bytes| Datum::Bytes(Cow::Owned(bytes.clone())))
        }
        fn int<T: Into<i64> + Copy>(value: &Option<T>) -> Datum<'static> {
            value.map_or(Datum::Null, |value| Datum::Int(value.into()))
        }
        Some(match scalar {
            ScalarValue::Null => Datum::Null,
            ScalarValue::Boolean(value) => value.map_or(Datum::Null, Datum::Boolean),
            ScalarValue::Int16(value) => int(value),
            ScalarValue::Int32(value) => int(value),
            ScalarValue::Int64(value) => int(value),
            ScalarValue::Date32(value) => int(value),
            ScalarValue::TimestampMicrosecond(value, _) => int(value),
            ScalarValue::Float32(value) => value.map_or(Datum::Null, Datum::Real),
            ScalarValue::Float64(value) => value.map_or(Datum::Null, Datum::Double),
            ScalarValue::Decimal128(value, ..) => value.map_or(Datum::Null, Datum::Numeric),
            ScalarValue::IntervalMonthDayNano(value) => value.map_or(Datum::Null, Datum::Interval),
            ScalarValue::Utf8(value) | ScalarValue::Utf8View(value) | ScalarValue::LargeUtf8(value) => text(value),
            ScalarValue::Binary(value)
            | ScalarValue::BinaryView(value)
            | ScalarValue::LargeBinary(value)
            | ScalarValue::FixedSizeBinary(_, value) => bytes(value),
            _ => return None,
        })
    }

    /// In an Arrow type that [`is_covered`].
    pub fn to_scalar(&self, data_type: &DataType) -> Result<ScalarValue> {
        let text = |text: &str| text.to_owned();
        Ok(match (data_type, self) {
            (_, Datum::Null) => ScalarValue::try_from(data_type).map_err(from_datafusion)?,
            (DataType::Boolean, Datum::Boolean(value)) => ScalarValue::Boolean(Some(*value)),
            (DataType::Int16, Datum::Int(value)) => ScalarValue::Int16(Some(*value as i16)),
            (DataType::Int32, Datum::Int(value)) => ScalarValue::Int32(Some(*value as i32)),
            (DataType::Int64, Datum::Int(value)) => ScalarValue::Int64(Some(*value)),
            (DataType::Date32, Datum::Int(value)) => ScalarValue::Date32(Some(*value as i32)),
            (DataType::Timestamp(TimeUnit::Microsecond, zone), Datum::Int(value)) => {
                ScalarValue::TimestampMicrosecond(Some(*value), zone.clone())
            }
            (DataType::Float32, Datum::Real(value)) => ScalarValue::Float32(Some(*value)),
            (DataType::Float64, Datum::Double(value)) => ScalarValue::Float64(Some(*value)),
            (DataType::Decimal128(precision, scale), Datum::Numeric(value)) => {
                ScalarValue::Decimal128(Some(*value), *precision, *scale)
            }
            (DataType::Interval(IntervalUnit::MonthDayNano), Datum::Interval(value)) => {
                ScalarValue::IntervalMonthDayNano(Some(*value))
            }
            (DataType::Utf8View, Datum::Text(value)) => ScalarValue::Utf8View(Some(text(value))),
            (DataType::Utf8, Datum::Text(value)) => ScalarValue::Utf8(Some(text(value))),
            (DataType::LargeUtf8, Datum::Text(value)) => ScalarValue::LargeUtf8(Some(text(value))),
            (DataType::BinaryView, Datum::Bytes(value)) => ScalarValue::BinaryView(Some(value.to_vec())),
            (DataType::FixedSizeBinary(width), Datum::Bytes(value)) => {
                ScalarValue::FixedSizeBinary(*width, Some(value.to_vec()))
            }
            (DataType::Binary, Datum::Bytes(value)) => ScalarValue::Binary(Some(value.to_vec())),
            (data_type, datum) => return Err(Error::internal(format!("{datum:?} is not of type {data_type}"))),
        })
    }

    /// An array of these values.
    pub fn array<'d>(values: impl IntoIterator<Item = &'d Datum<'d>>, data_type: &DataType) -> Result<ArrayRef> {
        let scalars = values.into_iter().map(|value| value.to_scalar(data_type)).collect::<Result<Vec<_>>>()?;
        if scalars.is_empty() {
            return Ok(arrow::array::new_empty_array(data_type));
        }
        ScalarValue::iter_to_array(scalars).map_err(from_datafusion)
    }

    /// Of two values of one type, neither of which is NULL.
    #[inline]
    pub fn order(&self, other: &Datum<'_>) -> Ordering {
        match (self, other) {
            (Datum::Boolean(left), Datum::Boolean(right)) => left.cmp(right),
            (Datum::Int(left), Datum::Int(right)) => left.cmp(right),
            (Datum::Numeric(left), Datum::Numeric(right)) => left.cmp(right),
            (Datum::Real(left), Datum::Real(right)) => left.total_cmp(right),
            (Datum::Double(left), Datum::Double(right)) => left.total_cmp(right),
            (Datum::Text(left), Datum::Text(right)) => left.as_bytes().cmp(right.as_bytes()),
            (Datum::Bytes(left), Datum::Bytes(right)) => left.cmp(right),
            _ => Ordering::Equal,
        }
    }
}

/// Whether values of an Arrow type are held as they are here.
pub fn is_covered(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Null
            | DataType::Boolean
            | DataType::Int16
            | DataType::Int32
            | DataType::Int64
            | DataType::Date32
            | DataType::Timestamp(TimeUnit::Microsecond, _)
            | DataType::Float32
            | DataType::Float64
            | DataType::Decimal128(..)
            | DataType::Interval(IntervalUnit::MonthDayNano)
            | DataType::Utf8View
            | DataType::Utf8
            | DataType::LargeUtf8
            | DataType::BinaryView
            | DataType::Binary
            | DataType::FixedSizeBinary(_)
    )
}

/// Whether [`Datum::order`] orders values of an Arrow type as PostgreSQL does. Numbers that each have a scale are compared by their keys,
/// and as they are only with bounds ([`crate::numerics::as_bounds`]). Floats it does not: their zeroes and NaNs.
pub fn is_ordered(data_type: &DataType) -> bool {
    is_covered(data_type)
        && !matches!(data_type, DataType::Null | DataType::Float32 | DataType::Float64 | DataType::Interval(_))
}

pub fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8View | DataType::Utf8 | DataType::LargeUtf8)
}
