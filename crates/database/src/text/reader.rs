//! Texts into a column.

use super::TextSettings;
use super::builder::ColumnBuilder;
use super::bytes::{parse_boolean, parse_bytea, parse_uuid, uuid_text};
use super::calendar::Zone;
use super::datetime::{Target, parse_date, parse_timestamp};
use super::interval::parse_interval;
use super::json::{check_json, read_jsonb};
use super::number::{parse_float, parse_int, parse_numeric};
use super::numeric;
use arrow_array::ArrayRef;
use arrow_array::builder::FixedSizeBinaryBuilder;
use tidepool_base::{Error, Numeric, Result, SqlState, SqlType, round_microseconds};

/// Builds one column from texts. Errors are PostgreSQL's: 22P02, 22003, 22007, 22008, 22001. After an error nothing was
/// appended.
pub struct TextReader {
    sql_type: SqlType,
    zone: Zone,
    builder: ColumnBuilder,
    capacity: usize,
    /// For byte strings, whose form differs from their text.
    scratch: Vec<u8>,
}

impl TextReader {
    /// A zone that does not exist counts as UTC: settings are checked where they are set.
    pub fn new(sql_type: SqlType, settings: &TextSettings) -> TextReader {
        TextReader::with_capacity(sql_type, settings, 0)
    }

    /// With room for `capacity` values from the start, and after each `finish`.
    pub fn with_capacity(sql_type: SqlType, settings: &TextSettings, capacity: usize) -> TextReader {
        TextReader {
            capacity,
            sql_type,
            zone: settings.zone().unwrap_or(Zone::UTC),
            builder: ColumnBuilder::new(sql_type, capacity),
            scratch: Vec::new(),
        }
    }

    #[inline]
    pub fn append(&mut self, text: &str) -> Result<()> {
        match &mut self.builder {
            ColumnBuilder::Boolean(builder) => builder.append_value(parse_boolean(text)?),
            ColumnBuilder::SmallInt(builder) => {
                builder.append_value(parse_int(text, "smallint", i64::from(i16::MIN), i64::from(i16::MAX))? as i16);
            }
            ColumnBuilder::Integer(builder) => {
                builder.append_value(parse_int(text, "integer", i64::from(i32::MIN), i64::from(i32::MAX))? as i32);
            }
            ColumnBuilder::BigInt(builder) => builder.append_value(parse_int(text, "bigint", i64::MIN, i64::MAX)?),
            ColumnBuilder::Real(builder) => builder.append_value(parse_float(text, true)? as f32),
            ColumnBuilder::Double(builder) => builder.append_value(parse_float(text, false)?),
            ColumnBuilder::Numeric(builder) => {
                let SqlType::Numeric { precision, scale } = self.sql_type else {
                    return Err(Error::internal("a numeric column without precision"));
                };
                builder.append_value(parse_numeric(text, precision, scale)?);
            }
            ColumnBuilder::Unconstrained(builder) => append_number(builder, numeric::parse(text)?)?,
            ColumnBuilder::Date(builder) => builder.append_value(parse_date(text)?),
            ColumnBuilder::Timestamp(builder) => {
                let target = match self.sql_type {
                    SqlType::Timestamp { .. } => Target::Timestamp,
                    _ => Target::TimestampTz(self.zone),
                };
                let us = parse_timestamp(text, target)?;
                builder.append_value(match self.sql_type.rounds_to() {
                    Some(digits) => round_microseconds(us, digits),
                    None => us,
                });
            }
            ColumnBuilder::Interval(builder) => builder.append_value(parse_interval(text)?),
            ColumnBuilder::Bytea(builder) => {
                parse_bytea(text, &mut self.scratch)?;
                builder.append_value(&self.scratch);
            }
            ColumnBuilder::Text(builder) => match self.sql_type {
                SqlType::Varchar { length_max: Some(length) } => builder.append_value(fit_varchar(text, length)?),
                SqlType::Char { length } => builder.append_value(fit_char(text, length)?),
                SqlType::Json => {
                    check_json(text)?;
                    builder.append_value(text);
                }
                SqlType::Jsonb => builder.append_value(read_jsonb(text)?),
                SqlType::Uuid => {
                    let canonical = uuid_text(&parse_uuid(text)?);
                    builder.append_value(std::str::from_utf8(&canonical).map_err(|_| Error::internal("uuid"))?);
                }
                _ => builder.append_value(text),
            },
        }
        Ok(())
    }

    #[inline]
    pub fn append_null(&mut self) {
        self.builder.append_null();
    }

    /// Values so far.
    pub fn len(&self) -> usize {
        self.builder.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn sql_type(&self) -> SqlType {
        self.sql_type
    }

    /// The column built so far; the reader goes on with an empty one.
    pub fn finish(&mut self) -> ArrayRef {
        std::mem::replace(&mut self.builder, ColumnBuilder::new(self.sql_type, self.capacity)).finish()
    }
}

pub(super) fn append_number(builder: &mut FixedSizeBinaryBuilder, number: Numeric) -> Result<()> {
    builder.append_value(number.to_bytes()).map_err(|error| Error::internal(error.to_string()))
}

/// At most `length` characters; blanks beyond them are cut, anything else is refused with 22001.
pub(crate) fn fit_varchar(text: &str, length: u32) -> Result<&str> {
    let length = length as usize;
    // Never more characters than bytes.
    if text.len() <= length {
        return Ok(text);
    }
    match text.char_indices().nth(length) {
        None => Ok(text),
        Some((end, _)) if text[end..].bytes().all(|byte| byte == b' ') => Ok(&text[..end]),
        Some(_) => Err(Error::new(
            SqlState::STRING_DATA_RIGHT_TRUNCATION,
            format!("value too long for type character varying({length})"),
        )),
    }
}

/// The text without its trailing blanks, at most `length` characters. 22001 otherwise.
pub(crate) fn fit_char(text: &str, length: u32) -> Result<&str> {
    let trimmed = text.trim_end_matches(' ');
    if trimmed.len() > length as usize && trimmed.chars().count() > length as usize {
        return Err(Error::new(
            SqlState::STRING_DATA_RIGHT_TRUNCATION,
            format!("value too long for type character({length})"),
        ));
    }
    Ok(trimmed)
}

#[cfg(test)]
mod tests {
    use super::super::{TextSettings, TextWriter};
    use super::*;

    fn round_trip(sql_type: SqlType, text: &str) -> Result<String> {
        let settings = TextSettings::default();
        let mut reader = TextReader::new(sql_type, &settings);
        reader.append(text)?;
        reader.append_null();
        let array = reader.finish();
        let writer = TextWriter::new(&array, sql_type, &settings)?;
        let mut out = Vec::new();
        assert!(writer.write(0, &mut out));
        assert!(!writer.write(1, &mut Vec::new()));
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn every_type_reads_and_writes() {
        let numeric = SqlType::Numeric { precision: 10, scale: 2 };
        for (sql_type, text, expected) in [
            (SqlType::Boolean, "yes", "t"),
            (SqlType::SmallInt, "-32768", "-32768"),
            (SqlType::Integer, "42", "42"),
            (SqlType::BigInt, "9223372036854775807", "9223372036854775807"),
            (SqlType::Real, "1e20", "1e+20"),
            (SqlType::DoublePrecision, "0.1", "0.1"),
            (numeric, "1.005", "1.01"),
            (SqlType::UnconstrainedNumeric, "-1.500", "-1.500"),
            (SqlType::UnconstrainedNumeric, "1e-21", "0.000000000000000000001"),
            (SqlType::Text, " a ", " a "),
            (SqlType::Varchar { length_max: Some(3) }, "abc   ", "abc"),
            (SqlType::Varchar { length_max: Some(3) }, "äöü", "äöü"),
            (SqlType::Varchar { length_max: None }, "abc", "abc"),
            (SqlType::Char { length: 5 }, "ab   ", "ab   "),
            (SqlType::Char { length: 5 }, "äb", "äb   "),
            (SqlType::Date, "Jan 5 2020", "2020-01-05"),
            (SqlType::TIMESTAMP, "2020-01-05 1:02", "2020-01-05 01:02:00"),
            (SqlType::TIMESTAMPTZ, "2020-01-05 01:02+02", "2020-01-04 23:02:00+00"),
            (SqlType::Timestamp { precision: Some(3) }, "2020-01-05 1:02:03.0045", "2020-01-05 01:02:03.005"),
            (SqlType::TimestampTz { precision: Some(0) }, "1969-12-31 23:59:59.5+00", "1969-12-31 23:59:59+00"),
            (SqlType::Timestamp { precision: Some(6) }, "1999-12-31 23:59:59.999999", "1999-12-31 23:59:59.999999"),
            (SqlType::Interval, "1 mon 1 hour", "1 mon 01:00:00"),
            (SqlType::Bytea, "\\xDEad", "\\xdead"),
            (SqlType::Uuid, "A0EEBC999C0B4EF8BB6D6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
            (SqlType::Json, "{\"a\": [1,2]}", "{\"a\": [1,2]}"),
            (SqlType::Jsonb, "{\"b\": [1,2], \"a\":1e1}", "{\"a\": 10, \"b\": [1, 2]}"),
        ] {
            assert_eq!(round_trip(sql_type, text).unwrap(), expected, "{sql_type}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for (sql_type, text, code, message) in [
            (
                SqlType::Varchar { length_max: Some(5) },
                "abcdef",
                "22001",
                "value too long for type character varying(5)",
            ),
            (SqlType::Char { length: 2 }, "abc", "22001", "value too long for type character(2)"),
            (SqlType::Json, "{a}", "22P02", "invalid input syntax for type json"),
            (SqlType::Json, "", "22P02", "invalid input syntax for type json"),
            (SqlType::SmallInt, "32768", "22003", "value \"32768\" is out of range for type smallint"),
            (SqlType::Boolean, "maybe", "22P02", "invalid input syntax for type boolean: \"maybe\""),
        ] {
            let error = round_trip(sql_type, text).unwrap_err();
            assert_eq!((error.code().code(), error.message()), (code, message));
        }
    }

    #[test]
    fn columns_have_the_tables_storage_types() {
        let settings = TextSettings::default();
        for sql_type in [
            SqlType::Boolean,
            SqlType::SmallInt,
            SqlType::Numeric { precision: 7, scale: 3 },
            SqlType::UnconstrainedNumeric,
            SqlType::Text,
            SqlType::Uuid,
            SqlType::Date,
            SqlType::TIMESTAMP,
            SqlType::TIMESTAMPTZ,
            SqlType::Interval,
            SqlType::Bytea,
        ] {
            let mut reader = TextReader::new(sql_type, &settings);
            reader.append_null();
            assert_eq!(reader.finish().data_type(), &tidepool_table::arrow_type(sql_type), "{sql_type}");
        }
    }
}
