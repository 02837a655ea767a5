//! The types that segments hold, each one Arrow type.

use crate::schema::NUMERIC_WIDTH;
use arrow_schema::{DataType, IntervalUnit, TimeUnit};
use std::ops::RangeInclusive;
use tidepool_base::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Logical {
    Boolean,
    Int16,
    Int32,
    Int64,
    Float32,
    Float64,
    Decimal {
        precision: u8,
        scale: i8,
    },
    Text,
    Date,
    Timestamp,
    TimestampTz,
    Interval,
    Bytes,
    /// Numbers that each have a scale, as [`tidepool_base::Numeric`] writes them.
    Numeric,
}

impl Logical {
    pub fn of(data_type: &DataType) -> Result<Logical> {
        Ok(match data_type {
            DataType::Boolean => Logical::Boolean,
            DataType::Int16 => Logical::Int16,
            DataType::Int32 => Logical::Int32,
            DataType::Int64 => Logical::Int64,
            DataType::Float32 => Logical::Float32,
            DataType::Float64 => Logical::Float64,
            DataType::Decimal128(precision, scale) => Logical::Decimal { precision: *precision, scale: *scale },
            DataType::Utf8View => Logical::Text,
            DataType::Date32 => Logical::Date,
            DataType::Timestamp(TimeUnit::Microsecond, None) => Logical::Timestamp,
            DataType::Timestamp(TimeUnit::Microsecond, Some(_)) => Logical::TimestampTz,
            DataType::Interval(IntervalUnit::MonthDayNano) => Logical::Interval,
            DataType::BinaryView => Logical::Bytes,
            DataType::FixedSizeBinary(NUMERIC_WIDTH) => Logical::Numeric,
            other => return Err(Error::internal(format!("tables do not hold Arrow's {other}"))),
        })
    }

    pub fn data_type(self) -> DataType {
        match self {
            Logical::Boolean => DataType::Boolean,
            Logical::Int16 => DataType::Int16,
            Logical::Int32 => DataType::Int32,
            Logical::Int64 => DataType::Int64,
            Logical::Float32 => DataType::Float32,
            Logical::Float64 => DataType::Float64,
            Logical::Decimal { precision, scale } => DataType::Decimal128(precision, scale),
            Logical::Text => DataType::Utf8View,
            Logical::Date => DataType::Date32,
            Logical::Timestamp => DataType::Timestamp(TimeUnit::Microsecond, None),
            Logical::TimestampTz => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            Logical::Interval => DataType::Interval(IntervalUnit::MonthDayNano),
            Logical::Bytes => DataType::BinaryView,
            Logical::Numeric => DataType::FixedSizeBinary(NUMERIC_WIDTH),
        }
    }

    /// As written in a segment's header.
    pub fn tag(self) -> [u8; 3] {
        match self {
            Logical::Boolean => [1, 0, 0],
            Logical::Int16 => [2, 0, 0],
            Logical::Int32 => [3, 0, 0],
            Logical::Int64 => [4, 0, 0],
            Logical::Float32 => [5, 0, 0],
            Logical::Float64 => [6, 0, 0],
            Logical::Decimal { precision, scale } => [7, precision, scale as u8],
            Logical::Text => [8, 0, 0],
            Logical::Date => [9, 0, 0],
            Logical::Timestamp => [10, 0, 0],
            Logical::TimestampTz => [11, 0, 0],
            Logical::Interval => [12, 0, 0],
            Logical::Bytes => [13, 0, 0],
            Logical::Numeric => [14, 0, 0],
        }
    }

    pub fn is_int(self) -> bool {
        matches!(
            self,
            Logical::Boolean
                | Logical::Int16
                | Logical::Int32
                | Logical::Int64
                | Logical::Date
                | Logical::Timestamp
                | Logical::TimestampTz
        )
    }

    pub fn is_float(self) -> bool {
        matches!(self, Logical::Float32 | Logical::Float64)
    }

    pub fn is_bytes(self) -> bool {
        matches!(self, Logical::Text | Logical::Bytes | Logical::Numeric)
    }

    /// Values that the type can hold, as integers.
    pub fn int_bounds(self) -> RangeInclusive<i64> {
        match self {
            Logical::Boolean => 0..=1,
            Logical::Int16 => i16::MIN.into()..=i16::MAX.into(),
            Logical::Int32 | Logical::Date => i32::MIN.into()..=i32::MAX.into(),
            _ => i64::MIN..=i64::MAX,
        }
    }

    /// Bytes of one value as Arrow, out-of-line text apart.
    pub fn value_bytes(self) -> f64 {
        match self {
            Logical::Boolean => 0.125,
            Logical::Int16 => 2.0,
            Logical::Int32 | Logical::Float32 | Logical::Date => 4.0,
            Logical::Int64 | Logical::Float64 | Logical::Timestamp | Logical::TimestampTz => 8.0,
            Logical::Decimal { .. } | Logical::Text | Logical::Interval | Logical::Bytes => 16.0,
            Logical::Numeric => f64::from(NUMERIC_WIDTH),
        }
    }
}
