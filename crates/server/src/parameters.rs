//! Parameter values, text or binary, into the arrays that `Session::execute` takes.

use arrow::array::ArrayRef;
use bytes::Bytes;
use tidepool_base::{Error, Result, SqlState, SqlType};
use tidepool_database::text::{BinaryReader, TextReader, TextSettings};

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

fn decode_one(value: Option<&Bytes>, format: i16, oid: u32, settings: &TextSettings) -> Result<ArrayRef> {
    let sql_type = sql_type(oid, format)?;
    if format == 1 {
        let mut reader = BinaryReader::new(sql_type);
        match value {
            // `jsonb` is `json` after a version byte.
            Some(bytes) if oid == 3802 => reader.append(bytes.strip_prefix(&[1]).unwrap_or(bytes))?,
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
        1114 => SqlType::Timestamp,
        1184 => SqlType::TimestampTz,
        1186 => SqlType::Interval,
        1700 => SqlType::NUMERIC_DEFAULT,
        2950 => SqlType::Uuid,
        114 | 3802 => SqlType::Json,
        0 | 18 | 19 | 25 | 705 | 1042 | 1043 => SqlType::Text,
        _ if format == 0 => SqlType::Text,
        _ => {
            return Err(Error::unsupported(format!("no binary input function available for type oid {oid}"))
                .with_hint("Send the parameter as text."));
        }
    })
}
