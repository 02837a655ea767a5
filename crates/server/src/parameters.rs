//! Parameter values, text or binary, into the arrays that `Session::execute` takes.

use crate::encode::element_type;
use arrow::array::{Array, ArrayRef, ListArray, new_null_array};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field};
use bytes::Bytes;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState, SqlType};
use tidepool_database::text::{BinaryReader, TextReader, TextSettings, single};
use tidepool_planner::Datum;

/// One array of length one for each parameter.
pub(crate) fn decode(
    values: &[Option<Bytes>],
    formats: &[i16],
    type_oids: &[u32],
    settings: &TextSettings,
) -> Result<Vec<ArrayRef>> {
    if formats.len() > 1 && formats.len() != values.len() {
        return Err(Error::new(
            SqlState::PROTOCOL_VIOLATION,
            format!("bind message has {} parameter formats but {} parameters", formats.len(), values.len()),
        ));
    }
    let format = |index: usize| match formats {
        [] => 0,
        [one] => *one,
        all => all[index],
    };
    values
        .iter()
        .zip(type_oids)
        .enumerate()
        .map(|(index, (value, oid))| {
            decode_one(value.as_ref(), format(index), *oid, settings).map_err(|error| {
                let context = format!("unnamed portal parameter ${}", index + 1);
                if error.context().is_none() { error.with_context(context) } else { error }
            })
        })
        .collect()
}

/// As `decode`, as single values.
pub(crate) fn decode_values(
    values: &[Option<Bytes>],
    formats: &[i16],
    type_oids: &[u32],
    settings: &TextSettings,
) -> Result<Vec<Datum<'static>>> {
    if formats.len() > 1 {
        // Each in a form of its own.
        let arrays = decode(values, formats, type_oids, settings)?;
        return arrays.iter().map(|array| Datum::of_array(array, 0)).collect();
    }
    let format = formats.first().copied().unwrap_or(0);
    values
        .iter()
        .zip(type_oids)
        .enumerate()
        .map(|(index, (value, oid))| {
            value_of(value.as_ref(), format, *oid, settings).map_err(|error| {
                let context = format!("unnamed portal parameter ${}", index + 1);
                if error.context().is_none() { error.with_context(context) } else { error }
            })
        })
        .collect()
}

fn value_of(value: Option<&Bytes>, format: i16, oid: u32, settings: &TextSettings) -> Result<Datum<'static>> {
    let Some(bytes) = value else { return Ok(Datum::Null) };
    let text = || std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
    match (format, oid, bytes.len()) {
        (1, 21, 2) => return Ok(Datum::Int(i16::from_be_bytes([bytes[0], bytes[1]]).into())),
        (1, 23, 4) => return Ok(Datum::Int(i32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).into())),
        (1, 20, 8) => {
            let mut word = [0; 8];
            word.copy_from_slice(bytes);
            return Ok(Datum::Int(i64::from_be_bytes(word)));
        }
        (0, 20 | 21 | 23, _) => {
            let number = text().and_then(|text| single::integer(text, sql_type(oid, format).ok()?));
            if let Some(number) = number {
                return number.map(Datum::Int);
            }
        }
        (0, 25 | 1043, _) => {
            if let Some(text) = text() {
                return Ok(Datum::Text(text.to_owned().into()));
            }
        }
        _ => {}
    }
    // Whatever else there is, and what is wrong.
    Datum::of_array(&decode_one(value, format, oid, settings)?, 0)
}

fn decode_one(value: Option<&Bytes>, format: i16, oid: u32, settings: &TextSettings) -> Result<ArrayRef> {
    if let Some(element) = element_type(oid) {
        return decode_array(value, format, element, settings);
    }
    let sql_type = sql_type(oid, format)?;
    if format == 1 {
        let mut reader = BinaryReader::new(sql_type);
        match value {
            Some(bytes) => reader.append(bytes)?,
            None => reader.append_null(),
        }
        return Ok(reader.finish());
    }
    let mut reader = TextReader::new(sql_type, settings);
    match value {
        Some(bytes) => {
            let text = std::str::from_utf8(bytes).map_err(|_| {
                Error::new(
                    SqlState::CHARACTER_NOT_IN_REPERTOIRE,
                    "invalid byte sequence for encoding \"UTF8\" in a parameter",
                )
            })?;
            if text.contains('\0') {
                return Err(Error::new(
                    SqlState::CHARACTER_NOT_IN_REPERTOIRE,
                    "invalid byte sequence for encoding \"UTF8\": 0x00",
                ));
            }
            reader.append(text)?;
        }
        None => reader.append_null(),
    }
    Ok(reader.finish())
}

/// An array of one dimension as a list of length one.
fn decode_array(value: Option<&Bytes>, format: i16, element: SqlType, settings: &TextSettings) -> Result<ArrayRef> {
    let items = match value {
        Some(bytes) if format == 1 => {
            let mut reader = BinaryReader::new(element);
            for item in binary_items(bytes)? {
                match item {
                    Some(item) => reader.append(item)?,
                    None => reader.append_null(),
                }
            }
            reader.finish()
        }
        _ => {
            let mut reader = TextReader::new(element, settings);
            let text = value.map(|bytes| std::str::from_utf8(bytes)).transpose();
            let text = text
                .map_err(|_| {
                    Error::new(
                        SqlState::CHARACTER_NOT_IN_REPERTOIRE,
                        "invalid byte sequence for encoding \"UTF8\" in a parameter",
                    )
                })?
                .unwrap_or("{}");
            for item in tidepool_planner::read_array_items(text)? {
                match item {
                    Some(item) => reader.append(&item)?,
                    None => reader.append_null(),
                }
            }
            reader.finish()
        }
    };
    let field = Arc::new(Field::new_list_field(items.data_type().clone(), true));
    if value.is_none() {
        return Ok(new_null_array(&DataType::List(field), 1));
    }
    let list = ListArray::try_new(field, OffsetBuffer::from_lengths([items.len()]), items, None);
    Ok(Arc::new(list.map_err(|error| Error::internal(format!("an array parameter: {error}")))?))
}

/// The items of an array's binary form: dimensions, whether NULLs occur, element oid, then for each dimension its length
/// and lower bound, then the items with their lengths.
fn binary_items(bytes: &[u8]) -> Result<Vec<Option<&[u8]>>> {
    let bad = || Error::new(SqlState::INVALID_BINARY_REPRESENTATION, "malformed binary array");
    let mut rest = bytes;
    let mut int = || -> Result<i32> {
        let (head, tail) = rest.split_first_chunk::<4>().ok_or_else(bad)?;
        rest = tail;
        Ok(i32::from_be_bytes(*head))
    };
    let dimensions = int()?;
    int()?;
    int()?;
    match dimensions {
        0 => return Ok(Vec::new()),
        1 => {}
        _ => return Err(Error::unsupported("arrays of several dimensions are not supported as parameters")),
    }
    let count = int()?;
    int()?;
    let mut items = Vec::new();
    for _ in 0..count {
        let (head, tail) = rest.split_first_chunk::<4>().ok_or_else(bad)?;
        let len = i32::from_be_bytes(*head);
        rest = tail;
        if len == -1 {
            items.push(None);
            continue;
        }
        let (item, tail) = usize::try_from(len).ok().and_then(|len| rest.split_at_checked(len)).ok_or_else(bad)?;
        items.push(Some(item));
        rest = tail;
    }
    Ok(items)
}

/// The type a parameter of type `oid` is held in. What has no type of its own here travels as its text.
fn sql_type(oid: u32, format: i16) -> Result<SqlType> {
    Ok(match oid {
        16 => SqlType::Boolean,
        17 => SqlType::Bytea,
        20 => SqlType::BigInt,
        21 => SqlType::SmallInt,
        23 | 26 => SqlType::Integer,
        700 => SqlType::Real,
        701 => SqlType::DoublePrecision,
        1082 => SqlType::Date,
        1114 => SqlType::TIMESTAMP,
        1184 => SqlType::TIMESTAMPTZ,
        1186 => SqlType::Interval,
        1700 => SqlType::UnconstrainedNumeric,
        2950 => SqlType::Uuid,
        114 => SqlType::Json,
        3802 => SqlType::Jsonb,
        // Without blanks at its end, as columns of the type hold it. PostgreSQL's longest.
        1042 => SqlType::Char { length: 10_485_760 },
        0 | 18 | 19 | 25 | 705 | 1043 => SqlType::Text,
        _ if format == 0 => SqlType::Text,
        _ => {
            return Err(Error::unsupported(format!("no binary input function available for type oid {oid}"))
                .with_hint("Send the parameter as text."));
        }
    })
}
