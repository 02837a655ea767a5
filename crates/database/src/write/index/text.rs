//! Keys as messages show them.

use crate::text::{TextSettings, TextWriter, shortened};
use arrow_array::types::{Decimal128Type, IntervalMonthDayNano};
use arrow_array::{
    ArrayRef, BinaryViewArray, BooleanArray, Date32Array, Float32Array, Float64Array, Int16Array, Int32Array,
    Int64Array, IntervalMonthDayNanoArray, PrimitiveArray, StringViewArray, TimestampMicrosecondArray,
};
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState, SqlType};
use tidepool_index::key::KeyValue;
use tidepool_table::{IndexDef, TableDef, TableIndex};

/// Characters of a value that a message shows.
const VALUE_CHARACTERS_MAX: usize = 64;

/// `(a, b)=(1, 2)`: an index's columns, and a key of it.
pub(crate) fn key_text(table: &TableDef, def: &IndexDef, index: &TableIndex, key: &[u8]) -> Result<String> {
    let columns: Vec<&str> =
        table.index_positions(def).into_iter().map(|column| table.columns[column].name.as_str()).collect();
    let values = index.codec().decode(key)?;
    let texts = values
        .iter()
        .zip(index.codec().columns())
        .map(|(value, column)| value_text(value, column.sql_type()))
        .collect::<Result<Vec<_>>>()?;
    Ok(format!("({})=({})", columns.join(", "), texts.join(", ")))
}

/// 23505.
pub(crate) fn duplicate_key(table: &TableDef, def: &IndexDef, index: &TableIndex, key: &[u8]) -> Error {
    let error = Error::new(
        SqlState::UNIQUE_VIOLATION,
        format!("duplicate key value violates unique constraint \"{}\"", def.name),
    );
    match key_text(table, def, index, key) {
        Ok(text) => error.with_detail(format!("Key {text} already exists.")),
        Err(_) => error,
    }
}

pub(crate) fn value_text(value: &KeyValue<'_>, sql_type: SqlType) -> Result<String> {
    let array: ArrayRef = match value {
        KeyValue::Null => return Ok("null".to_owned()),
        KeyValue::Boolean(value) => Arc::new(BooleanArray::from(vec![*value])),
        KeyValue::SmallInt(value) => Arc::new(Int16Array::from(vec![*value])),
        KeyValue::Integer(value) => Arc::new(Int32Array::from(vec![*value])),
        KeyValue::BigInt(value) => Arc::new(Int64Array::from(vec![*value])),
        KeyValue::Real(value) => Arc::new(Float32Array::from(vec![*value])),
        KeyValue::DoublePrecision(value) => Arc::new(Float64Array::from(vec![*value])),
        KeyValue::Numeric(value) => {
            let SqlType::Numeric { precision, scale } = sql_type else {
                return Err(Error::internal("a numeric key of a column that is none"));
            };
            let array = PrimitiveArray::<Decimal128Type>::from(vec![*value]);
            let array = array.with_precision_and_scale(precision, scale);
            Arc::new(array.map_err(|error| Error::internal(error.to_string()))?)
        }
        KeyValue::Unconstrained(number) => {
            let mut text = Vec::new();
            crate::text::numeric::write(*number, &mut text);
            return Ok(String::from_utf8_lossy(&text).into_owned());
        }
        KeyValue::Text(text) => Arc::new(StringViewArray::from(vec![text.as_ref()])),
        KeyValue::Date(value) => Arc::new(Date32Array::from(vec![*value])),
        KeyValue::Timestamp(value) => {
            let array = TimestampMicrosecondArray::from(vec![*value]);
            match sql_type {
                SqlType::TimestampTz { .. } => Arc::new(array.with_timezone("UTC")),
                _ => Arc::new(array),
            }
        }
        KeyValue::Interval { months, days, nanoseconds } => {
            Arc::new(IntervalMonthDayNanoArray::from(vec![IntervalMonthDayNano::new(*months, *days, *nanoseconds)]))
        }
        KeyValue::Bytea(bytes) => Arc::new(BinaryViewArray::from(vec![bytes.as_ref()])),
        KeyValue::Uuid(bytes) => {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
            return Ok(parts.join("-"));
        }
    };
    let mut text = Vec::new();
    TextWriter::new(&array, sql_type, &TextSettings::default())?.write(0, &mut text);
    Ok(shortened(&String::from_utf8_lossy(&text), VALUE_CHARACTERS_MAX))
}
