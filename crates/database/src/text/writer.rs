//! A column into texts.

use super::bytes::write_bytea;
use super::calendar::{US_PER_DAY, Zone};
use super::datetime::{write_date, write_time, write_timestamp, write_timestamptz};
use super::interval::write_interval;
use super::number::{write_decimal, write_decimal256, write_f32, write_f64, write_i64, write_u64};
use super::numeric;
use super::{TextSettings, VECTOR_ITEM};
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::*;
use arrow_buffer::{IntervalMonthDayNano, NullBuffer, OffsetBuffer};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{DataType, Field, IntervalUnit, TimeUnit};
use tidepool_base::{Error, Numeric, Result, SqlType};
use tidepool_table::NUMERIC_WIDTH;

/// Writes values of one column. Holds the array's buffers, not the borrowed array.
pub struct TextWriter {
    nulls: Option<NullBuffer>,
    column: Column,
}

enum Column {
    Null,
    Boolean(BooleanArray),
    Int8(Int8Array),
    Int16(Int16Array),
    Int32(Int32Array),
    Int64(Int64Array),
    UInt8(UInt8Array),
    UInt16(UInt16Array),
    UInt32(UInt32Array),
    UInt64(UInt64Array),
    Float32(Float32Array, i32),
    Float64(Float64Array, i32),
    Decimal128(Decimal128Array, i32),
    Decimal256(Decimal256Array, i32),
    Utf8(StringArray),
    LargeUtf8(LargeStringArray),
    Utf8View(StringViewArray),
    /// Blank-padded to a number of characters.
    Char(StringViewArray, usize),
    Binary(BinaryArray),
    LargeBinary(LargeBinaryArray),
    BinaryView(BinaryViewArray),
    FixedSizeBinary(FixedSizeBinaryArray),
    /// Numbers that each have a scale.
    Numeric(FixedSizeBinaryArray),
    Date(Date32Array),
    /// Microseconds of a day.
    Time(Int64Array),
    /// Microseconds since 1970.
    Timestamp(Int64Array),
    TimestampTz(Int64Array, Zone),
    Interval(IntervalMonthDayNanoArray),
    /// Microseconds.
    Duration(Int64Array),
    List(Offsets, Box<TextWriter>, Shape),
    Struct(Vec<TextWriter>),
    /// Anything else, as Arrow shows it.
    Other(ArrayRef),
}

/// What lists are of, and so how they are written.
#[derive(Clone, Copy, PartialEq)]
enum Shape {
    Values,
    Lists,
    /// `int2vector` and `oidvector`: without braces and commas.
    Vector,
}

enum Offsets {
    Small(OffsetBuffer<i32>),
    Large(OffsetBuffer<i64>),
    Fixed(usize),
}

impl Offsets {
    fn range(&self, row: usize) -> std::ops::Range<usize> {
        match self {
            Offsets::Small(offsets) => offsets[row] as usize..offsets[row + 1] as usize,
            Offsets::Large(offsets) => offsets[row] as usize..offsets[row + 1] as usize,
            Offsets::Fixed(size) => row * size..(row + 1) * size,
        }
    }
}

/// An array of any time type's values in microseconds.
fn microseconds<T: ArrowPrimitiveType<Native = i64>>(array: &dyn Array, unit: TimeUnit) -> Int64Array {
    let array = array.as_primitive::<T>();
    match unit {
        TimeUnit::Second => array.unary(|value| value.saturating_mul(1_000_000)),
        TimeUnit::Millisecond => array.unary(|value| value.saturating_mul(1_000)),
        TimeUnit::Microsecond => array.unary(|value| value),
        TimeUnit::Nanosecond => array.unary(|value| value.div_euclid(1_000)),
    }
}

impl TextWriter {
    pub fn new(array: &dyn Array, sql_type: SqlType, settings: &TextSettings) -> Result<TextWriter> {
        let digits = settings.extra_float_digits;
        let failed = |error: arrow_schema::ArrowError| Error::internal(error.to_string());
        let column = match array.data_type() {
            DataType::Null => Column::Null,
            DataType::Boolean => Column::Boolean(array.as_boolean().clone()),
            DataType::Int8 => Column::Int8(array.as_primitive().clone()),
            DataType::Int16 => Column::Int16(array.as_primitive().clone()),
            DataType::Int32 => Column::Int32(array.as_primitive().clone()),
            DataType::Int64 => Column::Int64(array.as_primitive().clone()),
            DataType::UInt8 => Column::UInt8(array.as_primitive().clone()),
            DataType::UInt16 => Column::UInt16(array.as_primitive().clone()),
            DataType::UInt32 => Column::UInt32(array.as_primitive().clone()),
            DataType::UInt64 => Column::UInt64(array.as_primitive().clone()),
            DataType::Float16 => Column::Float32(
                arrow_cast::cast(array, &DataType::Float32).map_err(failed)?.as_primitive().clone(),
                digits,
            ),
            DataType::Float32 => Column::Float32(array.as_primitive().clone(), digits),
            DataType::Float64 => Column::Float64(array.as_primitive().clone(), digits),
            DataType::Decimal32(precision, scale) | DataType::Decimal64(precision, scale) => Column::Decimal128(
                arrow_cast::cast(array, &DataType::Decimal128(*precision, *scale))
                    .map_err(failed)?
                    .as_primitive()
                    .clone(),
                i32::from(*scale),
            ),
            DataType::Decimal128(_, scale) => Column::Decimal128(array.as_primitive().clone(), i32::from(*scale)),
            DataType::Decimal256(_, scale) => Column::Decimal256(array.as_primitive().clone(), i32::from(*scale)),
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => match (array.data_type(), sql_type) {
                (DataType::Utf8View, SqlType::Char { length }) => {
                    Column::Char(array.as_string_view().clone(), length as usize)
                }
                (_, SqlType::Char { length }) => Column::Char(
                    arrow_cast::cast(array, &DataType::Utf8View).map_err(failed)?.as_string_view().clone(),
                    length as usize,
                ),
                (DataType::Utf8, _) => Column::Utf8(array.as_string().clone()),
                (DataType::LargeUtf8, _) => Column::LargeUtf8(array.as_string().clone()),
                _ => Column::Utf8View(array.as_string_view().clone()),
            },
            DataType::Binary => Column::Binary(array.as_binary().clone()),
            DataType::LargeBinary => Column::LargeBinary(array.as_binary().clone()),
            DataType::BinaryView => Column::BinaryView(array.as_binary_view().clone()),
            DataType::FixedSizeBinary(NUMERIC_WIDTH) => Column::Numeric(array.as_fixed_size_binary().clone()),
            DataType::FixedSizeBinary(_) => Column::FixedSizeBinary(array.as_fixed_size_binary().clone()),
            DataType::Date32 => Column::Date(array.as_primitive().clone()),
            DataType::Date64 => Column::Timestamp(
                array.as_primitive::<Date64Type>().unary::<_, Int64Type>(|value| value.saturating_mul(1_000)),
            ),
            DataType::Time32(TimeUnit::Second) => {
                Column::Time(array.as_primitive::<Time32SecondType>().unary(|value| i64::from(value) * 1_000_000))
            }
            DataType::Time32(_) => {
                Column::Time(array.as_primitive::<Time32MillisecondType>().unary(|value| i64::from(value) * 1_000))
            }
            DataType::Time64(unit @ TimeUnit::Nanosecond) => {
                Column::Time(microseconds::<Time64NanosecondType>(array, *unit))
            }
            DataType::Time64(unit) => Column::Time(microseconds::<Time64MicrosecondType>(array, *unit)),
            DataType::Timestamp(unit, zone) => {
                let values = match unit {
                    TimeUnit::Second => microseconds::<TimestampSecondType>(array, *unit),
                    TimeUnit::Millisecond => microseconds::<TimestampMillisecondType>(array, *unit),
                    TimeUnit::Microsecond => microseconds::<TimestampMicrosecondType>(array, *unit),
                    TimeUnit::Nanosecond => microseconds::<TimestampNanosecondType>(array, *unit),
                };
                match zone {
                    None => Column::Timestamp(values),
                    Some(_) => Column::TimestampTz(values, settings.zone()?),
                }
            }
            DataType::Interval(IntervalUnit::MonthDayNano) => Column::Interval(array.as_primitive().clone()),
            DataType::Interval(IntervalUnit::YearMonth) => Column::Interval(
                array.as_primitive::<IntervalYearMonthType>().unary(|months| IntervalMonthDayNano::new(months, 0, 0)),
            ),
            DataType::Interval(IntervalUnit::DayTime) => Column::Interval(
                array
                    .as_primitive::<IntervalDayTimeType>()
                    .unary(|value| IntervalMonthDayNano::new(0, value.days, i64::from(value.milliseconds) * 1_000_000)),
            ),
            DataType::Duration(unit) => Column::Duration(match unit {
                TimeUnit::Second => microseconds::<DurationSecondType>(array, *unit),
                TimeUnit::Millisecond => microseconds::<DurationMillisecondType>(array, *unit),
                TimeUnit::Microsecond => microseconds::<DurationMicrosecondType>(array, *unit),
                TimeUnit::Nanosecond => microseconds::<DurationNanosecondType>(array, *unit),
            }),
            DataType::List(item) => {
                let list = array.as_list::<i32>();
                list_column(Offsets::Small(list.offsets().clone()), item, list.values(), sql_type, settings)?
            }
            DataType::LargeList(item) => {
                let list = array.as_list::<i64>();
                list_column(Offsets::Large(list.offsets().clone()), item, list.values(), sql_type, settings)?
            }
            DataType::FixedSizeList(item, size) => {
                let list = array.as_fixed_size_list();
                list_column(Offsets::Fixed(*size as usize), item, list.values(), sql_type, settings)?
            }
            DataType::Struct(_) => {
                let row = array.as_struct();
                let columns = row.columns().iter().map(|column| TextWriter::new(column, SqlType::Text, settings));
                Column::Struct(columns.collect::<Result<_>>()?)
            }
            DataType::Dictionary(_, values) => {
                let plain = arrow_cast::cast(array, values).map_err(failed)?;
                return TextWriter::new(&plain, sql_type, settings);
            }
            _ => Column::Other(make_array(array.to_data())),
        };
        Ok(TextWriter { nulls: array.logical_nulls(), column })
    }

    #[inline]
    pub fn is_null(&self, row: usize) -> bool {
        matches!(self.column, Column::Null) || self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row))
    }

    /// Appends the text of row `row` to `out`; false (and nothing appended) for NULL.
    #[inline]
    pub fn write(&self, row: usize, out: &mut Vec<u8>) -> bool {
        if self.is_null(row) {
            return false;
        }
        match &self.column {
            Column::Null => return false,
            Column::Boolean(array) => out.push(if array.value(row) { b't' } else { b'f' }),
            Column::Int8(array) => write_i64(i64::from(array.value(row)), out),
            Column::Int16(array) => write_i64(i64::from(array.value(row)), out),
            Column::Int32(array) => write_i64(i64::from(array.value(row)), out),
            Column::Int64(array) => write_i64(array.value(row), out),
            Column::UInt8(array) => write_u64(u64::from(array.value(row)), out),
            Column::UInt16(array) => write_u64(u64::from(array.value(row)), out),
            Column::UInt32(array) => write_u64(u64::from(array.value(row)), out),
            Column::UInt64(array) => write_u64(array.value(row), out),
            Column::Float32(array, digits) => write_f32(array.value(row), *digits, out),
            Column::Float64(array, digits) => write_f64(array.value(row), *digits, out),
            Column::Decimal128(array, scale) => write_decimal(array.value(row), *scale, out),
            Column::Decimal256(array, scale) => write_decimal256(array.value(row), *scale, out),
            Column::Utf8(array) => out.extend_from_slice(array.value(row).as_bytes()),
            Column::LargeUtf8(array) => out.extend_from_slice(array.value(row).as_bytes()),
            Column::Utf8View(array) => out.extend_from_slice(array.value(row).as_bytes()),
            Column::Char(array, length) => {
                let text = array.value(row);
                out.extend_from_slice(text.as_bytes());
                out.resize(out.len() + length.saturating_sub(text.chars().count()), b' ');
            }
            Column::Binary(array) => write_bytea(array.value(row), out),
            Column::LargeBinary(array) => write_bytea(array.value(row), out),
            Column::BinaryView(array) => write_bytea(array.value(row), out),
            Column::Numeric(array) => match Numeric::from_bytes(array.value(row)) {
                Some(number) => numeric::write(number, out),
                None => write_bytea(array.value(row), out),
            },
            Column::FixedSizeBinary(array) => write_bytea(array.value(row), out),
            Column::Date(array) => write_date(i64::from(array.value(row)), out),
            Column::Time(array) => write_time(array.value(row), out),
            Column::Timestamp(array) => write_timestamp(array.value(row), out),
            Column::TimestampTz(array, zone) => write_timestamptz(array.value(row), *zone, out),
            Column::Interval(array) => {
                let value = array.value(row);
                write_interval(value.months, value.days, value.nanoseconds / 1_000, out);
            }
            Column::Duration(array) => {
                // As PostgreSQL shows a difference of timestamps: whole days apart.
                let us = array.value(row);
                write_interval(0, (us / US_PER_DAY) as i32, us % US_PER_DAY, out);
            }
            Column::List(offsets, values, shape) => write_list(offsets.range(row), values, *shape, out),
            Column::Struct(columns) => write_row(columns, row, out),
            Column::Other(array) => {
                let shown = ArrayFormatter::try_new(array, &FormatOptions::default())
                    .map(|formatter| formatter.value(row).to_string());
                out.extend_from_slice(shown.unwrap_or_default().as_bytes());
            }
        }
        true
    }
}

fn list_column(
    offsets: Offsets,
    item: &Field,
    values: &ArrayRef,
    sql_type: SqlType,
    settings: &TextSettings,
) -> Result<Column> {
    let shape = match values.data_type() {
        DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(_, _) => Shape::Lists,
        _ if item.name() == VECTOR_ITEM => Shape::Vector,
        _ => Shape::Values,
    };
    Ok(Column::List(offsets, Box::new(TextWriter::new(values, sql_type, settings)?), shape))
}

/// `{a,"b c",NULL}`, or `2 3` for a vector.
fn write_list(range: std::ops::Range<usize>, values: &TextWriter, shape: Shape, out: &mut Vec<u8>) {
    let first = range.start;
    if shape == Shape::Vector {
        for row in range {
            if row > first {
                out.push(b' ');
            }
            values.write(row, out);
        }
        return;
    }
    out.push(b'{');
    for row in range {
        if row > first {
            out.push(b',');
        }
        let start = out.len();
        if !values.write(row, out) {
            out.extend_from_slice(b"NULL");
        } else if shape == Shape::Values {
            let text = &out[start..];
            let quoted = text.is_empty()
                || text.eq_ignore_ascii_case(b"null")
                || text.iter().any(|byte| matches!(byte, b'"' | b'\\' | b'{' | b'}' | b',') || is_space(*byte));
            if quoted {
                quote_tail(out, start, |byte| matches!(byte, b'"' | b'\\'), b'\\');
            }
        }
    }
    out.push(b'}');
}

/// `(1,"a b",)`.
fn write_row(columns: &[TextWriter], row: usize, out: &mut Vec<u8>) {
    out.push(b'(');
    for (position, column) in columns.iter().enumerate() {
        if position > 0 {
            out.push(b',');
        }
        let start = out.len();
        if column.write(row, out) {
            let text = &out[start..];
            let quoted = text.is_empty()
                || text.iter().any(|byte| matches!(byte, b'"' | b'\\' | b'(' | b')' | b',') || is_space(*byte));
            if quoted {
                let tail = out.split_off(start);
                out.push(b'"');
                for byte in tail {
                    if matches!(byte, b'"' | b'\\') {
                        out.push(byte);
                    }
                    out.push(byte);
                }
                out.push(b'"');
            }
        }
    }
    out.push(b')');
}

fn is_space(byte: u8) -> bool {
    super::number::is_space(byte as char)
}

/// Puts what lies behind `start` into double quotes, with `escape` before each byte that `special` names.
fn quote_tail(out: &mut Vec<u8>, start: usize, special: impl Fn(u8) -> bool, escape: u8) {
    let tail = out.split_off(start);
    out.push(b'"');
    for byte in tail {
        if special(byte) {
            out.push(escape);
        }
        out.push(byte);
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::builder::{ListBuilder, StringBuilder};
    use std::sync::Arc;

    fn texts(array: &dyn Array, sql_type: SqlType) -> Vec<Option<String>> {
        let writer = TextWriter::new(array, sql_type, &TextSettings::default()).unwrap();
        (0..array.len())
            .map(|row| {
                let mut out = Vec::new();
                writer.write(row, &mut out).then(|| String::from_utf8(out).unwrap())
            })
            .collect()
    }

    #[test]
    fn any_array_that_a_query_makes_is_written() {
        let text = |text: &str| vec![Some(text.to_owned())];
        assert_eq!(texts(&NullArray::new(1), SqlType::Text), vec![None]);
        assert_eq!(texts(&Int8Array::from(vec![-5]), SqlType::SmallInt), text("-5"));
        assert_eq!(texts(&UInt64Array::from(vec![u64::MAX]), SqlType::BigInt), text("18446744073709551615"));
        assert_eq!(texts(&StringArray::from(vec!["é"]), SqlType::Char { length: 3 }), text("é  "));
        assert_eq!(texts(&LargeBinaryArray::from(vec![&b"\x01"[..]]), SqlType::Bytea), text("\\x01"));
        assert_eq!(texts(&Time64NanosecondArray::from(vec![3_661_500_000_000]), SqlType::Text), text("01:01:01.5"));
        assert_eq!(texts(&Time32SecondArray::from(vec![59]), SqlType::Text), text("00:00:59"));
        assert_eq!(
            texts(&TimestampNanosecondArray::from(vec![-1]), SqlType::TIMESTAMP),
            text("1969-12-31 23:59:59.999999")
        );
        assert_eq!(
            texts(&TimestampSecondArray::from(vec![0]).with_timezone("Asia/Tokyo"), SqlType::TIMESTAMPTZ),
            text("1970-01-01 00:00:00+00")
        );
        assert_eq!(texts(&DurationSecondArray::from(vec![90_061]), SqlType::Interval), text("1 day 01:01:01"));
        let dictionary: DictionaryArray<Int32Type> = vec!["x", "y", "x"].into_iter().collect();
        assert_eq!(texts(&dictionary, SqlType::Text).len(), 3);
        assert_eq!(texts(&dictionary, SqlType::Text)[1], Some("y".to_owned()));
        let decimal = Decimal256Array::from(vec![arrow_buffer::i256::from(5)]).with_precision_and_scale(40, 2).unwrap();
        assert_eq!(texts(&decimal, SqlType::UnconstrainedNumeric), text("0.05"));
    }

    #[test]
    fn lists_and_rows_are_quoted_where_they_must_be() {
        let mut builder = ListBuilder::new(StringBuilder::new());
        for value in [Some("a"), Some("b c"), None, Some(""), Some("NULL"), Some("q\"\\,")] {
            builder.values().append_option(value);
        }
        builder.append(true);
        builder.append(false);
        builder.append(true);
        let list: ArrayRef = Arc::new(builder.finish());
        assert_eq!(
            texts(&list, SqlType::Text),
            vec![Some(r#"{a,"b c",NULL,"","NULL","q\"\\,"}"#.to_owned()), None, Some("{}".to_owned())]
        );
        let row = StructArray::try_from(vec![
            ("a", Arc::new(Int32Array::from(vec![Some(1), None])) as ArrayRef),
            ("b", Arc::new(StringArray::from(vec!["x y", "\"\\"])) as ArrayRef),
        ])
        .unwrap();
        assert_eq!(texts(&row, SqlType::Text), vec![Some("(1,\"x y\")".to_owned()), Some(r#"(,"""\\")"#.to_owned())]);
    }

    #[test]
    fn vectors_are_written_without_braces() {
        let item = Arc::new(Field::new(VECTOR_ITEM, DataType::Int16, true));
        let values: ArrayRef = Arc::new(Int16Array::from(vec![3, 0, 7]));
        let list = ListArray::new(item, OffsetBuffer::from_lengths([2, 0, 1]), values, None);
        let expected = ["3 0", "", "7"].map(|text| Some(text.to_owned()));
        assert_eq!(texts(&list, SqlType::Text), expected);
    }

    #[test]
    fn slices_write_their_own_rows() {
        let array: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None, Some(3)]));
        assert_eq!(texts(&array.slice(1, 2), SqlType::Integer), vec![None, Some("3".to_owned())]);
    }
}
