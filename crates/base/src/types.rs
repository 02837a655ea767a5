//! The SQL types a column can have, as declared. How each is held in memory is `tidepool-table`'s business.

use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
    Timestamp,
    TimestampTz,
    Interval,
    Bytea,
    Uuid,
    Json,
}

impl SqlType {
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
            SqlType::Timestamp => 1114,
            SqlType::TimestampTz => 1184,
            SqlType::Interval => 1186,
            SqlType::Numeric { .. } | SqlType::UnconstrainedNumeric => 1700,
            SqlType::Uuid => 2950,
        }
    }

    /// PostgreSQL's `atttypmod`: the declared length or precision and scale, or -1.
    pub fn type_modifier(self) -> i32 {
        match self {
            SqlType::Numeric { precision, scale } => ((i32::from(precision) << 16) | (i32::from(scale) & 0x7ff)) + 4,
            SqlType::Char { length } => length as i32 + 4,
            SqlType::Varchar { length_max: Some(length) } => length as i32 + 4,
            _ => -1,
        }
    }

    /// Bytes of the binary form, or -1 where they vary (`pg_type.typlen`).
    pub fn type_len(self) -> i16 {
        match self {
            SqlType::Boolean => 1,
            SqlType::SmallInt => 2,
            SqlType::Integer | SqlType::Real | SqlType::Date => 4,
            SqlType::BigInt | SqlType::DoublePrecision | SqlType::Timestamp | SqlType::TimestampTz => 8,
            SqlType::Interval | SqlType::Uuid => 16,
            _ => -1,
        }
    }

    pub fn is_numeric(self) -> bool {
        matches!(self, SqlType::Numeric { .. } | SqlType::UnconstrainedNumeric)
    }

    pub fn is_text(self) -> bool {
        matches!(self, SqlType::Text | SqlType::Varchar { .. } | SqlType::Char { .. } | SqlType::Json | SqlType::Uuid)
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
            SqlType::Timestamp => f.write_str("timestamp without time zone"),
            SqlType::TimestampTz => f.write_str("timestamp with time zone"),
            SqlType::Interval => f.write_str("interval"),
            SqlType::Bytea => f.write_str("bytea"),
            SqlType::Uuid => f.write_str("uuid"),
            SqlType::Json => f.write_str("json"),
        }
    }
}
