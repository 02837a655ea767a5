//! Single values and their texts, without a column around them.

use super::bytes::{parse_uuid, write_bytea};
use super::datetime::{write_date, write_timestamp, write_timestamptz};
use super::interval::write_interval;
use super::json::{check_json, read_jsonb};
use super::number::{parse_int, write_decimal, write_f32, write_f64, write_i64};
use super::reader::{fit_char, fit_varchar};
use super::{Zone, bytes};
use arrow_buffer::IntervalMonthDayNano;
use std::borrow::Cow;
use tidepool_base::{Error, Result, SqlType};

/// A uuid's canonical text.
pub fn uuid_text(uuid: &[u8; 16]) -> [u8; 36] {
    bytes::uuid_text(uuid)
}

/// A text as a column of a text type takes it: checked, and cut where only blanks are lost. 22001 and 22P02.
pub fn fitted(text: &str, sql_type: SqlType) -> Result<Cow<'_, str>> {
    Ok(match sql_type {
        SqlType::Varchar { length_max: Some(length) } => Cow::Borrowed(fit_varchar(text, length)?),
        SqlType::Char { length } => Cow::Borrowed(fit_char(text, length)?),
        SqlType::Json => {
            check_json(text)?;
            Cow::Borrowed(text)
        }
        SqlType::Jsonb => Cow::Owned(read_jsonb(text)?),
        SqlType::Uuid => {
            let canonical = uuid_text(&parse_uuid(text)?);
            Cow::Owned(String::from_utf8(canonical.to_vec()).map_err(|_| Error::internal("uuid"))?)
        }
        _ => Cow::Borrowed(text),
    })
}

/// The number in the text of a `smallint`, `integer` or `bigint`. 22P02 and 22003. `None` for another type.
pub fn integer(text: &str, sql_type: SqlType) -> Option<Result<i64>> {
    Some(match sql_type {
        SqlType::SmallInt => parse_int(text, "smallint", i64::from(i16::MIN), i64::from(i16::MAX)),
        SqlType::Integer => parse_int(text, "integer", i64::from(i32::MIN), i64::from(i32::MAX)),
        SqlType::BigInt => parse_int(text, "bigint", i64::MIN, i64::MAX),
        _ => return None,
    })
}

pub fn write_integer(value: i64, out: &mut Vec<u8>) {
    write_i64(value, out);
}

pub fn write_numeric(value: i128, scale: i8, out: &mut Vec<u8>) {
    write_decimal(value, i32::from(scale), out);
}

pub fn write_real(value: f32, extra_float_digits: i32, out: &mut Vec<u8>) {
    write_f32(value, extra_float_digits, out);
}

pub fn write_double(value: f64, extra_float_digits: i32, out: &mut Vec<u8>) {
    write_f64(value, extra_float_digits, out);
}

/// Days since 1970.
pub fn write_days(days: i64, out: &mut Vec<u8>) {
    write_date(days, out);
}

/// Microseconds since 1970; of a point in time on the clock of a zone.
pub fn write_microseconds(us: i64, zone: Option<Zone>, out: &mut Vec<u8>) {
    match zone {
        None => write_timestamp(us, out),
        Some(zone) => write_timestamptz(us, zone, out),
    }
}

pub fn write_duration(value: IntervalMonthDayNano, out: &mut Vec<u8>) {
    write_interval(value.months, value.days, value.nanoseconds / 1_000, out);
}

pub fn write_bytes(value: &[u8], out: &mut Vec<u8>) {
    write_bytea(value, out);
}
