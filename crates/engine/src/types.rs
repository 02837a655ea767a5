//! What a column's values are, and how the engine carries them.

use crate::dictionary::Dictionary;
use arrow_schema::{DataType, TimeUnit};
use std::fmt;
use std::sync::Arc;

/// How values lie in a chunk's column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// `i64`: integers, dates, timestamps, decimals whose bounds are known to fit, codes of a dictionary.
    Int,
    /// `i128`: other decimals, unscaled.
    Wide,
    /// `f64`. A `real` is rounded to one after each operation.
    Float,
    Bool,
    /// [`crate::text::Text`]: text and bytes.
    Text,
    /// An Arrow array: what the engine only passes on (intervals, lists).
    Other,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::Int => "an integer",
            Class::Wide => "a wide decimal",
            Class::Float => "a float",
            Class::Bool => "a boolean",
            Class::Text => "text",
            Class::Other => "of another type",
        })
    }
}

/// A column: its type in SQL, and what is known for certain of its values.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnType {
    /// As an Arrow array of it has it. Text of a dictionary is text here.
    pub data_type: DataType,
    pub nullable: bool,
    /// Inclusive, of what the class `Int` or `Wide` holds: no value lies outside.
    pub bounds: Option<(i128, i128)>,
    /// Values are codes in it.
    pub dictionary: Option<Arc<Dictionary>>,
}

/// Integers that are added and multiplied in 64 bits.
pub fn fits_i64((lower, upper): (i128, i128)) -> bool {
    i128::from(i64::MIN) <= lower && upper <= i128::from(i64::MAX)
}

/// Bounds of everything that a type can hold.
pub fn type_bounds(data_type: &DataType) -> Option<(i128, i128)> {
    Some(match data_type {
        DataType::Int8 => (i8::MIN.into(), i8::MAX.into()),
        DataType::Int16 => (i16::MIN.into(), i16::MAX.into()),
        DataType::Int32 | DataType::Date32 => (i32::MIN.into(), i32::MAX.into()),
        DataType::Int64 | DataType::Timestamp(TimeUnit::Microsecond, _) => (i64::MIN.into(), i64::MAX.into()),
        DataType::UInt8 => (0, u8::MAX.into()),
        DataType::UInt16 => (0, u16::MAX.into()),
        DataType::UInt32 => (0, u32::MAX.into()),
        DataType::UInt64 => (0, i64::MAX.into()),
        DataType::Decimal128(precision, _) => {
            let limit = 10i128.checked_pow(u32::from(*precision)).map_or(i128::MAX, |power| power - 1);
            (-limit, limit)
        }
        _ => return None,
    })
}

impl ColumnType {
    /// Of which nothing more is known.
    pub fn new(data_type: DataType, nullable: bool) -> ColumnType {
        let bounds = type_bounds(&data_type);
        ColumnType { data_type, nullable, bounds, dictionary: None }
    }

    /// With bounds, which are within those of the type.
    pub fn within(mut self, bounds: (i128, i128)) -> ColumnType {
        if let Some((lower, upper)) = self.bounds {
            self.bounds = Some((lower.max(bounds.0), upper.min(bounds.1)));
        }
        self
    }

    pub fn in_dictionary(mut self, dictionary: Arc<Dictionary>) -> ColumnType {
        self.dictionary = Some(dictionary);
        self.bounds = Some((0, i64::MAX.into()));
        self
    }

    pub fn class(&self) -> Class {
        match &self.data_type {
            _ if self.dictionary.is_some() => Class::Int,
            DataType::Boolean => Class::Bool,
            DataType::Int8
            | DataType::Int16
            | DataType::Int32
            | DataType::Int64
            | DataType::UInt8
            | DataType::UInt16
            | DataType::UInt32
            | DataType::UInt64
            | DataType::Date32
            | DataType::Timestamp(TimeUnit::Microsecond, _) => Class::Int,
            DataType::Decimal128(..) => match self.bounds {
                Some(bounds) if fits_i64(bounds) => Class::Int,
                _ => Class::Wide,
            },
            DataType::Float32 | DataType::Float64 => Class::Float,
            DataType::Utf8 | DataType::Utf8View | DataType::Binary | DataType::BinaryView => Class::Text,
            _ => Class::Other,
        }
    }

    /// The scale of a decimal, 0 for an integer.
    pub fn scale(&self) -> Option<i8> {
        match self.data_type {
            DataType::Decimal128(_, scale) => Some(scale),
            DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => Some(0),
            DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::UInt64 => Some(0),
            _ => None,
        }
    }
}
