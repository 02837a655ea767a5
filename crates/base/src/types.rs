//! The SQL types a column can have, as declared. How each is held in memory is `tidepool-table`'s business.

use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub enum SqlType {
    Boolean,
    SmallInt,
    Integer,
    BigInt,
    Real,
    DoublePrecision,
    /// `numeric(precision, scale)`; at most 38 digits.
    Numeric {
        precision: u8,
        scale: i8,
    },
    /// `numeric` without a precision: each value has a scale of its own.
    UnconstrainedNumeric,
    Text,
    Varchar {
        length_max: Option<u32>,
    },
    /// Blank-padded: held without its trailing blanks, shown with them.
    Char {
        length: u32,
    },
    Date,
    /// With a precision, values are rounded to so many digits of a second's fraction.
    Timestamp {
        precision: Option<u8>,
    },
    TimestampTz {
        precision: Option<u8>,
    },
    Interval,
    Bytea,
    Uuid,
    Json,
    Jsonb,
}

/// The digits of a second's fraction that a timestamp has at most.
pub const TIMESTAMP_DIGITS_MAX: u8 = 6;

impl SqlType {
    pub const TIMESTAMP: SqlType = SqlType::Timestamp { precision: None };
    pub const TIMESTAMPTZ: SqlType = SqlType::TimestampTz { precision: None };

    /// The digits of a second's fraction that values are rounded to; `None` for a type that keeps all it can hold.
    pub fn rounds_to(self) -> Option<u8> {
        match self {
            SqlType::Timestamp { precision } | SqlType::TimestampTz { precision } => {
                precision.filter(|digits| *digits < TIMESTAMP_DIGITS_MAX)
            }
            _ => None,
        }
    }

    /// The type that takes every value which can be compared with one of this type: it rounds nothing.
    pub fn without_precision(self) -> SqlType {
        match self {
            SqlType::Timestamp { .. } => SqlType::TIMESTAMP,
            SqlType::TimestampTz { .. } => SqlType::TIMESTAMPTZ,
            other => other,
        }
    }

    /// PostgreSQL's object id of the type.
    pub fn oid(self) -> u32 {
        match self {
            SqlType::Boolean => 16,
            SqlType::Bytea => 17,
            SqlType::BigInt => 20,
            SqlType::SmallInt => 21,
            SqlType::Integer => 23,
            SqlType::Text => 25,
            SqlType::Json => 114,
            SqlType::Real => 700,
            SqlType::DoublePrecision => 701,
            SqlType::Char { .. } => 1042,
            SqlType::Varchar { .. } => 1043,
            SqlType::Date => 1082,
            SqlType::Timestamp { .. } => 1114,
            SqlType::TimestampTz { .. } => 1184,
            SqlType::Interval => 1186,
            SqlType::Numeric { .. } | SqlType::UnconstrainedNumeric => 1700,
            SqlType::Uuid => 2950,
            SqlType::Jsonb => 3802,
        }
    }

    /// PostgreSQL's `atttypmod`: the declared length or precision and scale, or -1.
    pub fn type_modifier(self) -> i32 {
        match self {
            SqlType::Numeric { precision, scale } => ((i32::from(precision) << 16) | (i32::from(scale) & 0x7ff)) + 4,
            SqlType::Char { length } => length as i32 + 4,
            SqlType::Varchar { length_max: Some(length) } => length as i32 + 4,
            SqlType::Timestamp { precision: Some(digits) } | SqlType::TimestampTz { precision: Some(digits) } => {
                i32::from(digits)
            }
            _ => -1,
        }
    }

    /// Bytes of the binary form, or -1 where they vary (`pg_type.typlen`).
    pub fn type_len(self) -> i16 {
        match self {
            SqlType::Boolean => 1,
            SqlType::SmallInt => 2,
            SqlType::Integer | SqlType::Real | SqlType::Date => 4,
            SqlType::BigInt | SqlType::DoublePrecision | SqlType::Timestamp { .. } | SqlType::TimestampTz { .. } => 8,
            SqlType::Interval | SqlType::Uuid => 16,
            _ => -1,
        }
    }

    pub fn is_numeric(self) -> bool {
        matches!(self, SqlType::Numeric { .. } | SqlType::UnconstrainedNumeric)
    }

    pub fn is_text(self) -> bool {
        matches!(self, SqlType::Text | SqlType::Varchar { .. } | SqlType::Char { .. } | SqlType::Uuid) || self.is_json()
    }

    pub fn is_json(self) -> bool {
        matches!(self, SqlType::Json | SqlType::Jsonb)
    }
}

/// The name as PostgreSQL's `format_type` prints it.
impl fmt::Display for SqlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SqlType::Boolean => f.write_str("boolean"),
            SqlType::SmallInt => f.write_str("smallint"),
            SqlType::Integer => f.write_str("integer"),
            SqlType::BigInt => f.write_str("bigint"),
            SqlType::Real => f.write_str("real"),
            SqlType::DoublePrecision => f.write_str("double precision"),
            SqlType::Numeric { precision, scale } => write!(f, "numeric({precision},{scale})"),
            SqlType::UnconstrainedNumeric => f.write_str("numeric"),
            SqlType::Text => f.write_str("text"),
            SqlType::Varchar { length_max: None } => f.write_str("character varying"),
            SqlType::Varchar { length_max: Some(length) } => write!(f, "character varying({length})"),
            SqlType::Char { length } => write!(f, "character({length})"),
            SqlType::Date => f.write_str("date"),
            SqlType::Timestamp { precision: None } => f.write_str("timestamp without time zone"),
            SqlType::Timestamp { precision: Some(digits) } => write!(f, "timestamp({digits}) without time zone"),
            SqlType::TimestampTz { precision: None } => f.write_str("timestamp with time zone"),
            SqlType::TimestampTz { precision: Some(digits) } => write!(f, "timestamp({digits}) with time zone"),
            SqlType::Interval => f.write_str("interval"),
            SqlType::Bytea => f.write_str("bytea"),
            SqlType::Uuid => f.write_str("uuid"),
            SqlType::Json => f.write_str("json"),
            SqlType::Jsonb => f.write_str("jsonb"),
        }
    }
}

/// 2000-01-01 in microseconds since 1970. Halves are rounded away from it, as PostgreSQL counts from there.
const ROUNDING_EPOCH_US: i64 = 946_684_800_000_000;

/// Microseconds since 1970, rounded to so many digits of a second's fraction.
pub fn round_microseconds(us: i64, digits: u8) -> i64 {
    let Some(left_out) = TIMESTAMP_DIGITS_MAX.checked_sub(digits).filter(|left_out| *left_out > 0) else { return us };
    let unit = 10_i64.pow(u32::from(left_out));
    let Some(since) = us.checked_sub(ROUNDING_EPOCH_US) else { return us };
    let rest = since % unit;
    let floor = us - rest;
    let up = if rest.abs() * 2 >= unit { unit * rest.signum() } else { 0 };
    floor.checked_add(up).unwrap_or(us)
}

/// How a type is written in catalogues, logs and the metadata of fields. Timestamps without a precision are written as they were before
/// there were any with one.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Stored {
    Boolean,
    SmallInt,
    Integer,
    BigInt,
    Real,
    DoublePrecision,
    Numeric { precision: u8, scale: i8 },
    UnconstrainedNumeric,
    Text,
    Varchar { length_max: Option<u32> },
    Char { length: u32 },
    Date,
    Timestamp,
    TimestampTz,
    RoundedTimestamp { precision: u8 },
    RoundedTimestampTz { precision: u8 },
    Interval,
    Bytea,
    Uuid,
    Json,
    Jsonb,
}

impl From<SqlType> for Stored {
    fn from(sql_type: SqlType) -> Stored {
        match sql_type {
            SqlType::Boolean => Stored::Boolean,
            SqlType::SmallInt => Stored::SmallInt,
            SqlType::Integer => Stored::Integer,
            SqlType::BigInt => Stored::BigInt,
            SqlType::Real => Stored::Real,
            SqlType::DoublePrecision => Stored::DoublePrecision,
            SqlType::Numeric { precision, scale } => Stored::Numeric { precision, scale },
            SqlType::UnconstrainedNumeric => Stored::UnconstrainedNumeric,
            SqlType::Text => Stored::Text,
            SqlType::Varchar { length_max } => Stored::Varchar { length_max },
            SqlType::Char { length } => Stored::Char { length },
            SqlType::Date => Stored::Date,
            SqlType::Timestamp { precision: None } => Stored::Timestamp,
            SqlType::Timestamp { precision: Some(precision) } => Stored::RoundedTimestamp { precision },
            SqlType::TimestampTz { precision: None } => Stored::TimestampTz,
            SqlType::TimestampTz { precision: Some(precision) } => Stored::RoundedTimestampTz { precision },
            SqlType::Interval => Stored::Interval,
            SqlType::Bytea => Stored::Bytea,
            SqlType::Uuid => Stored::Uuid,
            SqlType::Json => Stored::Json,
            SqlType::Jsonb => Stored::Jsonb,
        }
    }
}

impl From<Stored> for SqlType {
    fn from(stored: Stored) -> SqlType {
        match stored {
            Stored::Boolean => SqlType::Boolean,
            Stored::SmallInt => SqlType::SmallInt,
            Stored::Integer => SqlType::Integer,
            Stored::BigInt => SqlType::BigInt,
            Stored::Real => SqlType::Real,
            Stored::DoublePrecision => SqlType::DoublePrecision,
            Stored::Numeric { precision, scale } => SqlType::Numeric { precision, scale },
            Stored::UnconstrainedNumeric => SqlType::UnconstrainedNumeric,
            Stored::Text => SqlType::Text,
            Stored::Varchar { length_max } => SqlType::Varchar { length_max },
            Stored::Char { length } => SqlType::Char { length },
            Stored::Date => SqlType::Date,
            Stored::Timestamp => SqlType::TIMESTAMP,
            Stored::TimestampTz => SqlType::TIMESTAMPTZ,
            Stored::RoundedTimestamp { precision } => SqlType::Timestamp { precision: Some(precision) },
            Stored::RoundedTimestampTz { precision } => SqlType::TimestampTz { precision: Some(precision) },
            Stored::Interval => SqlType::Interval,
            Stored::Bytea => SqlType::Bytea,
            Stored::Uuid => SqlType::Uuid,
            Stored::Json => SqlType::Json,
            Stored::Jsonb => SqlType::Jsonb,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_rounded_away_from_the_year_2000() {
        let epoch = ROUNDING_EPOCH_US;
        let cases = [
            (epoch + 500, 3, epoch + 1_000),
            (epoch + 499, 3, epoch),
            (epoch - 500, 3, epoch - 1_000),
            (epoch - 499, 3, epoch),
            // Before 1970, and between the two.
            (-500, 3, -1_000),
            (-499, 3, 0),
            (500, 3, 0),
            (501, 3, 1_000),
            (epoch + 500_000, 0, epoch + 1_000_000),
            (epoch - 1_500_000, 0, epoch - 2_000_000),
            (epoch + 15, 5, epoch + 20),
            (123_456, 6, 123_456),
            (i64::MAX, 0, i64::MAX),
            (i64::MIN, 0, i64::MIN),
        ];
        for (us, digits, rounded) in cases {
            assert_eq!(round_microseconds(us, digits), rounded, "{us} to {digits} digits");
        }
    }
}
