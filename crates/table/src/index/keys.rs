//! Keys of rows, wherever their values come from.

use super::TableIndex;
use crate::RowGroup;
use crate::rows::typed::KeyValues;
use crate::rows::{RowLayout, Value};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type, IntervalMonthDayNanoType,
    TimestampMicrosecondType,
};
use arrow_array::{Array, ArrayRef};
use std::borrow::Cow;
use tidepool_base::{Error, Numeric, Result, SqlType};
use tidepool_index::key::{KeyCodec, KeyValue, NOT_NULL};

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

    /// The key of these values, of the index's first columns if they are fewer.
    #[inline]
    pub fn encode(&mut self, index: &TableIndex, values: &(impl KeyValues + ?Sized)) -> Result<()> {
        self.clear();
        self.has_null = values.encode(index.codec(), &mut self.bytes)?;
        Ok(())
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

/// How keys of integers alone are made of images: without looking at types one by one.
#[derive(Clone, Debug)]
pub(super) struct IntegerKey(Vec<IntegerPart>);

#[derive(Clone, Copy, Debug)]
struct IntegerPart {
    column: usize,
    offset: usize,
    /// Bytes of the number: 2, 4 or 8.
    width: usize,
    /// A byte before it says that it is not NULL.
    is_marked: bool,
    descending: bool,
}

/// Bytes of the longest such key.
const INTEGER_KEY_BYTES: usize = 64;

impl IntegerKey {
    pub fn new(codec: &KeyCodec, layout: &RowLayout, positions: &[usize]) -> Option<IntegerKey> {
        let parts = codec.columns().iter().zip(positions).map(|(column, position)| {
            let (offset, width) = layout.integer(*position)?;
            let (is_marked, descending) = (column.is_nullable(), column.is_descending());
            Some(IntegerPart { column: *position, offset, width, is_marked, descending })
        });
        let parts = parts.collect::<Option<Vec<_>>>()?;
        (parts.len() * 9 <= INTEGER_KEY_BYTES).then_some(IntegerKey(parts))
    }

    /// The key of an image, and its length. `None`: a column is NULL.
    // A call of its own costs a transaction one part in a hundred: the key's bytes are copied then.
    #[inline(always)]
    fn of(&self, image: &[u8]) -> Option<([u8; INTEGER_KEY_BYTES], usize)> {
        let mut key = [0; INTEGER_KEY_BYTES];
        let mut end = 0;
        for part in &self.0 {
            if image[part.column / 8] & (1 << (part.column % 8)) != 0 {
                return None;
            }
            if part.is_marked {
                key[end] = NOT_NULL;
                end += 1;
            }
            let number = &image[part.offset..part.offset + part.width];
            // Big-endian, with the sign turned; of a descending one all the other bits, too.
            let word = match part.width {
                2 => u64::from(u16::from_le_bytes([number[0], number[1]]) ^ 1 << 15) << 48,
                4 => u64::from(u32::from_le_bytes([number[0], number[1], number[2], number[3]]) ^ 1 << 31) << 32,
                _ => u64::from_le_bytes(*number.first_chunk()?) ^ 1 << 63,
            };
            let word = if part.descending { !word } else { word };
            key[end..end + 8].copy_from_slice(&word.to_be_bytes());
            end += part.width;
        }
        Some((key, end))
    }

    /// Whether an image's key is this one. `None`: it cannot be told so.
    #[inline]
    pub fn is(&self, image: &[u8], key: &[u8]) -> Option<bool> {
        self.of(image).map(|(own, length)| own[..length] == *key)
    }
}

pub(super) fn of_image(index: &TableIndex, layout: &RowLayout, image: &[u8], key: &mut IndexKey) -> Result<()> {
    if let Some((bytes, length)) = index.integers.as_ref().and_then(|integers| integers.of(image)) {
        key.bytes.extend_from_slice(&bytes[..length]);
        return Ok(());
    }
    for (place, column) in index.positions().iter().enumerate() {
        let value = of_value(index.sql_type(place), layout.value(image, *column))?;
        key.push(index, place, &value)?;
    }
    Ok(())
}

pub(super) fn of_main(
    index: &TableIndex,
    layout: &RowLayout,
    group: &RowGroup,
    row: usize,
    key: &mut IndexKey,
) -> Result<()> {
    let mut room = Vec::new();
    for (place, column) in index.positions().iter().enumerate() {
        let value = of_value(index.sql_type(place), layout.value_in_main(group, row, *column, &mut room)?)?;
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
        (SqlType::Timestamp { .. } | SqlType::TimestampTz { .. }, Value::Int(value)) => KeyValue::Timestamp(value),
        (_, Value::Int(value)) => KeyValue::BigInt(value),
        (_, Value::Real(value)) => KeyValue::Real(value),
        (_, Value::Double(value)) => KeyValue::DoublePrecision(value),
        (_, Value::Numeric(value)) => KeyValue::Numeric(value),
        (_, Value::Interval(value)) => {
            KeyValue::Interval { months: value.months, days: value.days, nanoseconds: value.nanoseconds }
        }
        (_, Value::Uuid(bytes)) => KeyValue::Uuid(bytes),
        (SqlType::UnconstrainedNumeric, Value::Bytes(bytes)) => KeyValue::Unconstrained(number(bytes)?),
        (SqlType::Bytea, Value::Bytes(bytes)) => KeyValue::Bytea(Cow::Borrowed(bytes)),
        (_, Value::Bytes(bytes)) => {
            let text = std::str::from_utf8(bytes).map_err(|_| Error::corrupted("a row's text is not UTF-8"))?;
            KeyValue::Text(Cow::Borrowed(text))
        }
    })
}

fn number(bytes: &[u8]) -> Result<Numeric> {
    Numeric::from_bytes(bytes).ok_or_else(|| Error::corrupted("a row's number is damaged"))
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
        SqlType::UnconstrainedNumeric => KeyValue::Unconstrained(number(array.as_fixed_size_binary().value(row))?),
        SqlType::Date => KeyValue::Date(array.as_primitive::<Date32Type>().value(row)),
        SqlType::Timestamp { .. } | SqlType::TimestampTz { .. } => {
            KeyValue::Timestamp(array.as_primitive::<TimestampMicrosecondType>().value(row))
        }
        SqlType::Interval => {
            let value = array.as_primitive::<IntervalMonthDayNanoType>().value(row);
            KeyValue::Interval { months: value.months, days: value.days, nanoseconds: value.nanoseconds }
        }
        SqlType::Uuid => KeyValue::uuid(array.as_string_view().value(row))?,
        SqlType::Bytea => KeyValue::Bytea(Cow::Borrowed(array.as_binary_view().value(row))),
        SqlType::Text | SqlType::Varchar { .. } | SqlType::Char { .. } | SqlType::Json | SqlType::Jsonb => {
            KeyValue::Text(Cow::Borrowed(array.as_string_view().value(row)))
        }
    })
}
