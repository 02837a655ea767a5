//! Keys of rows, wherever their values come from.

use super::TableIndex;
use crate::rows::{RowLayout, Value};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type, IntervalMonthDayNanoType,
    TimestampMicrosecondType,
};
use arrow_array::{Array, ArrayRef};
use std::borrow::Cow;
use tidepool_base::{Error, Result, SqlType};
use tidepool_index::key::KeyValue;

/// A row's key, encoded. Kept from row to row, for its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexKey {
    bytes: Vec<u8>,
    has_null: bool,
}

impl IndexKey {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// A column of it is NULL.
    pub fn has_null(&self) -> bool {
        self.has_null
    }

    pub(super) fn set(&mut self, bytes: &[u8], has_null: bool) {
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        self.has_null = has_null;
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.has_null = false;
    }

    fn push(&mut self, index: &TableIndex, place: usize, value: &KeyValue<'_>) -> Result<()> {
        self.has_null |= *value == KeyValue::Null;
        index.codec().push(place, value, &mut self.bytes)
    }
}

pub(super) fn of_image(index: &TableIndex, layout: &RowLayout, image: &[u8], key: &mut IndexKey) -> Result<()> {
    for (place, column) in index.positions().iter().enumerate() {
        let value = of_value(index.sql_type(place), layout.value(image, *column))?;
        key.push(index, place, &value)?;
    }
    Ok(())
}

/// Appends the value of one row of the array of the key's column at `place`.
pub(super) fn push(index: &TableIndex, place: usize, array: &ArrayRef, row: usize, key: &mut IndexKey) -> Result<()> {
    let value = key_value(index.sql_type(place), array, row)?;
    key.push(index, place, &value)
}

fn of_value(sql_type: SqlType, value: Value<'_>) -> Result<KeyValue<'_>> {
    Ok(match (sql_type, value) {
        (_, Value::Null) => KeyValue::Null,
        (_, Value::Boolean(value)) => KeyValue::Boolean(value),
        // As wide as the type in the image.
        (SqlType::SmallInt, Value::Int(value)) => KeyValue::SmallInt(value as i16),
        (SqlType::Integer, Value::Int(value)) => KeyValue::Integer(value as i32),
        (SqlType::Date, Value::Int(value)) => KeyValue::Date(value as i32),
        (SqlType::Timestamp | SqlType::TimestampTz, Value::Int(value)) => KeyValue::Timestamp(value),
        (_, Value::Int(value)) => KeyValue::BigInt(value),
        (_, Value::Real(value)) => KeyValue::Real(value),
        (_, Value::Double(value)) => KeyValue::DoublePrecision(value),
        (_, Value::Numeric(value)) => KeyValue::Numeric(value),
        (_, Value::Interval(value)) => {
            KeyValue::Interval { months: value.months, days: value.days, nanoseconds: value.nanoseconds }
        }
        // In the image its number is little endian.
        (_, Value::Uuid(bytes)) => KeyValue::Uuid(u128::from_le_bytes(bytes).to_be_bytes()),
        (SqlType::Bytea, Value::Bytes(bytes)) => KeyValue::Bytea(Cow::Borrowed(bytes)),
        (_, Value::Bytes(bytes)) => {
            let text = std::str::from_utf8(bytes).map_err(|_| Error::corrupted("a row's text is not UTF-8"))?;
            KeyValue::Text(Cow::Borrowed(text))
        }
    })
}

/// The value of one row of an array that holds a column of this type.
pub fn key_value(sql_type: SqlType, array: &ArrayRef, row: usize) -> Result<KeyValue<'_>> {
    if array.is_null(row) {
        return Ok(KeyValue::Null);
    }
    Ok(match sql_type {
        SqlType::Boolean => KeyValue::Boolean(array.as_boolean().value(row)),
        SqlType::SmallInt => KeyValue::SmallInt(array.as_primitive::<Int16Type>().value(row)),
        SqlType::Integer => KeyValue::Integer(array.as_primitive::<Int32Type>().value(row)),
        SqlType::BigInt => KeyValue::BigInt(array.as_primitive::<Int64Type>().value(row)),
        SqlType::Real => KeyValue::Real(array.as_primitive::<Float32Type>().value(row)),
        SqlType::DoublePrecision => KeyValue::DoublePrecision(array.as_primitive::<Float64Type>().value(row)),
        SqlType::Numeric { .. } => KeyValue::Numeric(array.as_primitive::<Decimal128Type>().value(row)),
        SqlType::Date => KeyValue::Date(array.as_primitive::<Date32Type>().value(row)),
        SqlType::Timestamp | SqlType::TimestampTz => {
            KeyValue::Timestamp(array.as_primitive::<TimestampMicrosecondType>().value(row))
        }
        SqlType::Interval => {
            let value = array.as_primitive::<IntervalMonthDayNanoType>().value(row);
            KeyValue::Interval { months: value.months, days: value.days, nanoseconds: value.nanoseconds }
        }
        SqlType::Uuid => KeyValue::uuid(array.as_string_view().value(row))?,
        SqlType::Bytea => KeyValue::Bytea(Cow::Borrowed(array.as_binary_view().value(row))),
        SqlType::Text | SqlType::Varchar { .. } | SqlType::Char { .. } | SqlType::Json => {
            KeyValue::Text(Cow::Borrowed(array.as_string_view().value(row)))
        }
    })
}
