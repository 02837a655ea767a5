//! PostgreSQL's binary forms, as the protocol carries them (without their length prefix).
//!
//! Integers and floats are big-endian; dates and timestamps count from 2000-01-01; a numeric is base-10,000 digits with
//! the weight of the first one.

use super::builder::ColumnBuilder;
use super::bytes::{parse_uuid, uuid_text};
use super::json::{check_json, read_jsonb};
use super::number::{POWERS_OF_TEN, numeric_overflow};
use super::numeric::{CastError, cast_array};
use super::reader::{append_number, fit_char, fit_varchar};
use super::{TextSettings, TextWriter, VECTOR_ITEM};
use arrow_array::cast::AsArray;
use arrow_array::*;
use arrow_buffer::{IntervalMonthDayNano, NullBuffer};
use arrow_schema::DataType;
use tidepool_base::{Error, Numeric, Result, SqlState, SqlType, round_microseconds};
use tidepool_table::{arrow_type, sql_type_of_field};

/// Days and microseconds from 1970-01-01 to 2000-01-01.
const EPOCH_DAYS: i32 = 10_957;
const EPOCH_US: i64 = EPOCH_DAYS as i64 * 86_400_000_000;

/// Writes values of one column in the binary form of `sql_type`.
pub struct BinaryWriter {
    nulls: Option<NullBuffer>,
    column: Column,
}

enum Column {
    Boolean(BooleanArray),
    SmallInt(Int16Array),
    Integer(Int32Array),
    BigInt(Int64Array),
    Real(Float32Array),
    Double(Float64Array),
    Numeric(Decimal128Array, i32),
    Unconstrained(FixedSizeBinaryArray),
    Date(Date32Array),
    Timestamp(TimestampMicrosecondArray),
    Interval(IntervalMonthDayNanoArray),
    Bytea(BinaryViewArray),
    Uuid(StringViewArray),
    /// Types whose binary form is their text.
    Text(TextWriter),
    /// Its text after the format's version.
    Jsonb(TextWriter),
    /// One-dimensional arrays: row offsets, the elements' writer and oid, the first one's subscript.
    List(Vec<usize>, Box<BinaryWriter>, u32, i32),
}

/// The version of the binary form of `jsonb`.
const JSONB_VERSION: u8 = 1;

impl BinaryWriter {
    /// 22003 where the array has a value that `sql_type` cannot hold.
    pub fn new(array: &dyn Array, sql_type: SqlType, settings: &TextSettings) -> Result<BinaryWriter> {
        let nested = array.data_type().is_nested() && !matches!(array.data_type(), DataType::Dictionary(_, _));
        if nested || sql_type.is_text() && sql_type != SqlType::Uuid {
            let text = TextWriter::new(array, sql_type, settings)?;
            let is_jsonb = sql_type == SqlType::Jsonb && !nested;
            let column = if is_jsonb { Column::Jsonb(text) } else { Column::Text(text) };
            return Ok(BinaryWriter { nulls: array.logical_nulls(), column });
        }
        let target = arrow_type(sql_type);
        let array = if *array.data_type() == target {
            make_array(array.to_data())
        } else {
            cast_array(&make_array(array.to_data()), &target).map_err(|error| {
                let error = match error {
                    CastError::Value(error) => return error,
                    CastError::Arrow(error) => error,
                };
                Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, format!("{sql_type} out of range"))
                    .with_detail(format!("{error}."))
            })?
        };
        let column = match sql_type {
            SqlType::Boolean => Column::Boolean(array.as_boolean().clone()),
            SqlType::SmallInt => Column::SmallInt(array.as_primitive().clone()),
            SqlType::Integer => Column::Integer(array.as_primitive().clone()),
            SqlType::BigInt => Column::BigInt(array.as_primitive().clone()),
            SqlType::Real => Column::Real(array.as_primitive().clone()),
            SqlType::DoublePrecision => Column::Double(array.as_primitive().clone()),
            SqlType::Numeric { scale, .. } => Column::Numeric(array.as_primitive().clone(), i32::from(scale)),
            SqlType::UnconstrainedNumeric => Column::Unconstrained(array.as_fixed_size_binary().clone()),
            SqlType::Date => Column::Date(array.as_primitive().clone()),
            SqlType::Timestamp { .. } | SqlType::TimestampTz { .. } => Column::Timestamp(array.as_primitive().clone()),
            SqlType::Interval => Column::Interval(array.as_primitive().clone()),
            SqlType::Bytea => Column::Bytea(array.as_binary_view().clone()),
            SqlType::Uuid => Column::Uuid(array.as_string_view().clone()),
            SqlType::Text | SqlType::Varchar { .. } | SqlType::Char { .. } | SqlType::Json | SqlType::Jsonb => {
                Column::Text(TextWriter::new(&array, sql_type, settings)?)
            }
        };
        Ok(BinaryWriter { nulls: array.logical_nulls(), column })
    }

    /// As `COPY` writes it: an array is one of the type that its items naturally have.
    pub fn of_copy(array: &dyn Array, sql_type: SqlType, settings: &TextSettings) -> Result<BinaryWriter> {
        match array.data_type() {
            DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _)
                if !item.data_type().is_nested() =>
            {
                let element = sql_type_of_field(item);
                BinaryWriter::array(array, element, element.oid(), settings)
            }
            _ => BinaryWriter::new(array, sql_type, settings),
        }
    }

    /// A list column as a PostgreSQL array of `element`s, which clients know as `oid`, for result columns whose type is an array
    /// type.
    pub fn array(array: &dyn Array, element: SqlType, oid: u32, settings: &TextSettings) -> Result<BinaryWriter> {
        let (offsets, values): (Vec<usize>, &ArrayRef) = match array.data_type() {
            DataType::List(_) => {
                let list = array.as_list::<i32>();
                (list.offsets().iter().map(|offset| *offset as usize).collect(), list.values())
            }
            DataType::LargeList(_) => {
                let list = array.as_list::<i64>();
                (list.offsets().iter().map(|offset| *offset as usize).collect(), list.values())
            }
            DataType::FixedSizeList(_, size) => {
                ((0..=array.len()).map(|row| row * *size as usize).collect(), array.as_fixed_size_list().values())
            }
            other => return Err(Error::internal(format!("an array type's column is {other}"))),
        };
        let first = match array.data_type() {
            DataType::List(item) if item.name() == VECTOR_ITEM => 0,
            _ => 1,
        };
        if values.data_type().is_nested() {
            return Err(Error::unsupported("arrays of more than one dimension have no binary form here"));
        }
        let values = BinaryWriter::new(values, element, settings)?;
        Ok(BinaryWriter { nulls: array.logical_nulls(), column: Column::List(offsets, Box::new(values), oid, first) })
    }

    /// Appends the value of row `row` to `out`; false (and nothing appended) for NULL.
    #[inline]
    pub fn write(&self, row: usize, out: &mut Vec<u8>) -> bool {
        if self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            return false;
        }
        match &self.column {
            Column::Boolean(array) => out.push(u8::from(array.value(row))),
            Column::SmallInt(array) => out.extend_from_slice(&array.value(row).to_be_bytes()),
            Column::Integer(array) => out.extend_from_slice(&array.value(row).to_be_bytes()),
            Column::BigInt(array) => out.extend_from_slice(&array.value(row).to_be_bytes()),
            Column::Real(array) => out.extend_from_slice(&array.value(row).to_be_bytes()),
            Column::Double(array) => out.extend_from_slice(&array.value(row).to_be_bytes()),
            Column::Numeric(array, scale) => write_numeric(array.value(row), *scale, out),
            Column::Unconstrained(array) => {
                let number = Numeric::from_bytes(array.value(row)).unwrap_or_default();
                write_numeric(number.unscaled(), i32::from(number.scale()), out);
            }
            Column::Date(array) => {
                out.extend_from_slice(&array.value(row).saturating_sub(EPOCH_DAYS).to_be_bytes());
            }
            Column::Timestamp(array) => {
                out.extend_from_slice(&array.value(row).saturating_sub(EPOCH_US).to_be_bytes());
            }
            Column::Interval(array) => {
                let value = array.value(row);
                out.extend_from_slice(&(value.nanoseconds / 1_000).to_be_bytes());
                out.extend_from_slice(&value.days.to_be_bytes());
                out.extend_from_slice(&value.months.to_be_bytes());
            }
            Column::Bytea(array) => out.extend_from_slice(array.value(row)),
            Column::Uuid(array) => match parse_uuid(array.value(row)) {
                Ok(uuid) => out.extend_from_slice(&uuid),
                Err(_) => out.extend_from_slice(&[0; 16]),
            },
            Column::Text(writer) => return writer.write(row, out),
            Column::Jsonb(writer) => {
                out.push(JSONB_VERSION);
                writer.write(row, out);
            }
            Column::List(offsets, values, oid, first) => {
                let (start, end) = (offsets[row], offsets[row + 1]);
                let has_null =
                    (start..end).any(|element| values.nulls.as_ref().is_some_and(|nulls| nulls.is_null(element)));
                let dimensions = i32::from(end > start);
                out.extend_from_slice(&dimensions.to_be_bytes());
                out.extend_from_slice(&i32::from(has_null).to_be_bytes());
                out.extend_from_slice(&oid.to_be_bytes());
                if end > start {
                    out.extend_from_slice(&((end - start) as i32).to_be_bytes());
                    out.extend_from_slice(&first.to_be_bytes());
                }
                for element in start..end {
                    let at = out.len();
                    out.extend_from_slice(&(-1i32).to_be_bytes());
                    if values.write(element, out) {
                        let length = (out.len() - at - 4) as i32;
                        out[at..at + 4].copy_from_slice(&length.to_be_bytes());
                    }
                }
            }
        }
        true
    }
}

/// ndigits, weight, sign, dscale, digits.
fn write_numeric(value: i128, scale: i32, out: &mut Vec<u8>) {
    let dscale = scale.max(0);
    // Align the point with a digit of 10,000: first the fraction's digits below it, then the rest.
    let mut rest = value.unsigned_abs();
    let mut digits = [0i16; 24];
    let mut count = 0;
    let mut exponent = 0i32; // of the lowest digit, in powers of 10,000
    if scale < 0 {
        // At most 38 digits and 127 zeroes: append the zeroes as whole digits, the odd ones by multiplication.
        let zeros = scale.unsigned_abs();
        let odd = zeros % 4;
        exponent = (zeros / 4) as i32;
        let low = (rest % 10u128.pow(4 - odd)) as i16 * 10i16.pow(odd);
        rest /= 10u128.pow(4 - odd);
        digits[count] = low;
        count += 1;
    } else if dscale > 0 {
        exponent = -((dscale + 3) / 4);
        let first = match dscale % 4 {
            0 => 4,
            odd => odd as u32,
        };
        digits[count] = (rest % 10u128.pow(first)) as i16 * 10i16.pow(4 - first);
        rest /= 10u128.pow(first);
        count += 1;
    }
    while rest > 0 {
        digits[count] = (rest % 10_000) as i16;
        rest /= 10_000;
        count += 1;
    }
    let mut low = 0;
    while low < count && digits[low] == 0 {
        low += 1;
    }
    let mut high = count;
    while high > low && digits[high - 1] == 0 {
        high -= 1;
    }
    let used = high - low;
    let weight = if used == 0 { 0 } else { exponent + high as i32 - 1 };
    out.extend_from_slice(&(used as i16).to_be_bytes());
    out.extend_from_slice(&(weight as i16).to_be_bytes());
    out.extend_from_slice(&(if value < 0 { 0x4000u16 } else { 0 }).to_be_bytes());
    out.extend_from_slice(&(dscale as u16).to_be_bytes());
    for digit in digits[low..high].iter().rev() {
        out.extend_from_slice(&digit.to_be_bytes());
    }
}

/// A binary numeric at a precision and scale, rounding half away from zero.
fn read_numeric(bytes: &[u8], precision: u8, scale: i8) -> Result<i128> {
    let word = |at: usize| -> Option<u16> { Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?])) };
    let header = || Some((word(0)? as usize, word(2)? as i16, word(4)?, word(6)?));
    let (count, weight, sign, _) = header().ok_or_else(malformed)?;
    if bytes.len() != 8 + count * 2 {
        return Err(malformed());
    }
    match sign {
        0 | 0x4000 => {}
        0xC000 | 0xD000 | 0xF000 => {
            return Err(Error::unsupported("numeric values that are not finite are not supported"));
        }
        _ => return Err(malformed()),
    }
    // Digit i stands for digit * 10^(4 * (weight - i)); at the scale, for 10^(4 * (weight - i) + scale).
    let overflow = || numeric_overflow(precision, scale);
    let mut value = 0i128;
    let mut half_up = false;
    for position in 0..count {
        let digit = i128::from(word(8 + position * 2).ok_or_else(malformed)?);
        if digit > 9_999 {
            return Err(malformed());
        }
        let power = 4 * (i32::from(weight) - position as i32) + i32::from(scale);
        if power >= 0 {
            if digit != 0 {
                let scaled = POWERS_OF_TEN.get(power as usize).and_then(|power| digit.checked_mul(*power));
                value = scaled.and_then(|scaled| value.checked_add(scaled)).ok_or_else(overflow)?;
            }
        } else if power > -4 {
            let divisor = POWERS_OF_TEN[power.unsigned_abs() as usize];
            value = value.checked_add(digit / divisor).ok_or_else(overflow)?;
            half_up = digit % divisor * 2 >= divisor;
        } else if power == -4 {
            half_up = digit >= 5_000;
        }
    }
    value += i128::from(half_up);
    if value >= POWERS_OF_TEN[usize::from(precision.min(38))] {
        return Err(overflow());
    }
    Ok(if sign == 0x4000 { -value } else { value })
}

/// A binary numeric with all its digits, at the scale that it says. 22003 for one of more digits than are held.
fn read_unconstrained(bytes: &[u8]) -> Result<Numeric> {
    let word = |at: usize| -> Option<u16> { Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?])) };
    let (count, weight, scale) = (|| Some((word(0)? as usize, word(2)? as i16, word(6)?)))().ok_or_else(malformed)?;
    // Digits beyond the scale are cut, as PostgreSQL does.
    let scale = u8::try_from(scale).unwrap_or(u8::MAX);
    if scale <= 38 {
        return Numeric::new(read_numeric(bytes, 38, scale as i8)?, scale);
    }
    // More digits after the point than are held: zeros among them may be left out.
    let below = 4 * (count as i32 - 1 - i32::from(weight));
    let exact = u8::try_from(below.clamp(0, 38)).map_err(|_| malformed())?;
    if below > 38 + 3 {
        return Err(numeric_overflow(38, 38));
    }
    Numeric::new(read_numeric(bytes, 38, exact as i8)?, exact)
}

#[cold]
fn malformed() -> Error {
    Error::new(SqlState::INVALID_BINARY_REPRESENTATION, "incorrect binary data format")
}

/// Builds one column from binary values. 22P03 on bytes that are none, 22003 and 22001 as text has them. After an error
/// nothing was appended.
pub struct BinaryReader {
    sql_type: SqlType,
    builder: ColumnBuilder,
}

impl BinaryReader {
    pub fn new(sql_type: SqlType) -> BinaryReader {
        BinaryReader { sql_type, builder: ColumnBuilder::new(sql_type, 0) }
    }

    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        fn fixed<const N: usize>(bytes: &[u8]) -> Result<[u8; N]> {
            bytes.try_into().map_err(|_| malformed())
        }
        match &mut self.builder {
            ColumnBuilder::Boolean(builder) => builder.append_value(fixed::<1>(bytes)?[0] != 0),
            ColumnBuilder::SmallInt(builder) => builder.append_value(i16::from_be_bytes(fixed(bytes)?)),
            ColumnBuilder::Integer(builder) => builder.append_value(i32::from_be_bytes(fixed(bytes)?)),
            ColumnBuilder::BigInt(builder) => builder.append_value(i64::from_be_bytes(fixed(bytes)?)),
            ColumnBuilder::Real(builder) => builder.append_value(f32::from_be_bytes(fixed(bytes)?)),
            ColumnBuilder::Double(builder) => builder.append_value(f64::from_be_bytes(fixed(bytes)?)),
            ColumnBuilder::Numeric(builder) => {
                let SqlType::Numeric { precision, scale } = self.sql_type else {
                    return Err(Error::internal("a numeric column without precision"));
                };
                builder.append_value(read_numeric(bytes, precision, scale)?);
            }
            ColumnBuilder::Unconstrained(builder) => append_number(builder, read_unconstrained(bytes)?)?,
            ColumnBuilder::Date(builder) => {
                let days = i32::from_be_bytes(fixed(bytes)?);
                // The extremes are PostgreSQL's infinities.
                let days = days.checked_add(EPOCH_DAYS).filter(|_| days != i32::MIN);
                builder.append_value(
                    days.ok_or_else(|| Error::new(SqlState::DATETIME_FIELD_OVERFLOW, "date out of range"))?,
                );
            }
            ColumnBuilder::Timestamp(builder) => {
                let us = i64::from_be_bytes(fixed(bytes)?);
                let us = us.checked_add(EPOCH_US).filter(|_| us != i64::MIN);
                let us = us.ok_or_else(|| Error::new(SqlState::DATETIME_FIELD_OVERFLOW, "timestamp out of range"))?;
                builder.append_value(match self.sql_type.rounds_to() {
                    Some(digits) => round_microseconds(us, digits),
                    None => us,
                });
            }
            ColumnBuilder::Interval(builder) => {
                let all: [u8; 16] = fixed(bytes)?;
                let us = i64::from_be_bytes(fixed(&all[..8])?);
                let days = i32::from_be_bytes(fixed(&all[8..12])?);
                let months = i32::from_be_bytes(fixed(&all[12..])?);
                let nanoseconds = us
                    .checked_mul(1_000)
                    .ok_or_else(|| Error::new(SqlState::DATETIME_FIELD_OVERFLOW, "interval out of range"))?;
                builder.append_value(IntervalMonthDayNano::new(months, days, nanoseconds));
            }
            ColumnBuilder::Bytea(builder) => builder.append_value(bytes),
            ColumnBuilder::Text(builder) => {
                if self.sql_type == SqlType::Uuid {
                    let canonical = uuid_text(&fixed(bytes)?);
                    builder.append_value(std::str::from_utf8(&canonical).map_err(|_| malformed())?);
                    return Ok(());
                }
                if self.sql_type == SqlType::Jsonb {
                    let (version, text) = bytes.split_first().ok_or_else(malformed)?;
                    if *version != JSONB_VERSION {
                        let message = format!("unsupported jsonb version number {version}");
                        return Err(Error::new(SqlState::INTERNAL_ERROR, message));
                    }
                    builder.append_value(read_jsonb(super::utf8(text)?)?);
                    return Ok(());
                }
                let text = super::utf8(bytes)?;
                match self.sql_type {
                    SqlType::Varchar { length_max: Some(length) } => builder.append_value(fit_varchar(text, length)?),
                    SqlType::Char { length } => builder.append_value(fit_char(text, length)?),
                    SqlType::Json => {
                        check_json(text)?;
                        builder.append_value(text);
                    }
                    _ => builder.append_value(text),
                }
            }
        }
        Ok(())
    }

    pub fn append_null(&mut self) {
        self.builder.append_null();
    }

    /// The column built so far; the reader goes on with an empty one.
    pub fn finish(&mut self) -> ArrayRef {
        self.builder.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::TextReader;
    use super::*;

    #[test]
    fn text_and_binary_agree_for_every_type() {
        let settings = TextSettings::default();
        let numeric = |precision, scale| SqlType::Numeric { precision, scale };
        for (sql_type, texts) in [
            (SqlType::Boolean, vec!["t", "f"]),
            (SqlType::SmallInt, vec!["-32768", "7"]),
            (SqlType::Integer, vec!["-2147483648", "7"]),
            (SqlType::BigInt, vec!["-9223372036854775808", "7"]),
            (SqlType::Real, vec!["1.5", "NaN", "-Infinity"]),
            (SqlType::DoublePrecision, vec!["1.5e+300", "0.1"]),
            (numeric(38, 10), vec!["0.0000000000", "1.0000000001", "-9999999999999999999999999999.9999999999"]),
            (numeric(5, 2), vec!["0.01", "-123.40", "100.00"]),
            (numeric(38, 0), vec!["99999999999999999999999999999999999999", "10000", "1"]),
            (numeric(7, 5), vec!["12.34567", "0.00001"]),
            (SqlType::Text, vec!["", "héllo"]),
            (SqlType::Varchar { length_max: Some(3) }, vec!["abc"]),
            (SqlType::Char { length: 4 }, vec!["ab  "]),
            (SqlType::Date, vec!["2000-01-01", "0044-03-15 BC"]),
            (SqlType::TIMESTAMP, vec!["2020-01-05 10:20:30.123456"]),
            (SqlType::TIMESTAMPTZ, vec!["1969-12-31 23:59:59.5+00"]),
            (SqlType::Interval, vec!["1 year 2 mons -3 days +04:05:06.5"]),
            (SqlType::Bytea, vec!["\\x00ff"]),
            (SqlType::Uuid, vec!["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
            (SqlType::Json, vec!["[1]"]),
            (SqlType::Jsonb, vec!["[1, 2]"]),
        ] {
            let mut reader = TextReader::new(sql_type, &settings);
            texts.iter().for_each(|text| reader.append(text).unwrap());
            reader.append_null();
            let array = reader.finish();
            let writer = BinaryWriter::new(&array, sql_type, &settings).unwrap();
            let mut back = BinaryReader::new(sql_type);
            for row in 0..texts.len() {
                let mut out = Vec::new();
                assert!(writer.write(row, &mut out));
                if sql_type.type_len() > 0 {
                    assert_eq!(out.len(), sql_type.type_len() as usize, "{sql_type}");
                }
                back.append(&out).unwrap();
            }
            assert!(!writer.write(texts.len(), &mut Vec::new()));
            back.append_null();
            let back = back.finish();
            let writer = TextWriter::new(&back, sql_type, &settings).unwrap();
            for (row, text) in texts.iter().enumerate() {
                let mut out = Vec::new();
                writer.write(row, &mut out);
                assert_eq!(std::str::from_utf8(&out).unwrap(), *text, "{sql_type}");
            }
        }
    }

    #[test]
    fn numerics_have_postgresqls_bytes() {
        let bytes = |value, scale| {
            let mut out = Vec::new();
            write_numeric(value, scale, &mut out);
            out
        };
        // select numeric_send(12345.678), from PostgreSQL: 3 digits 1 2345 6780, weight 1, scale 3.
        assert_eq!(bytes(12_345_678, 3), [0, 3, 0, 1, 0, 0, 0, 3, 0, 1, 9, 41, 26, 124]);
        assert_eq!(bytes(0, 2), [0, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!(bytes(-1, 4), [0, 1, 255, 255, 64, 0, 0, 4, 0, 1]);
        assert_eq!(bytes(7, -5), [0, 1, 0, 1, 0, 0, 0, 0, 0, 70]);
        assert_eq!(read_numeric(&bytes(12_345_678, 3), 10, 1).unwrap(), 123_457);
        assert_eq!(read_numeric(&bytes(7, -5), 10, 0).unwrap(), 700_000);
        assert!(read_numeric(&bytes(12_345_678, 3), 4, 0).is_err());
    }

    #[test]
    fn random_bytes_are_refused_without_harm() {
        let mut state = 7u64;
        for sql_type in [
            SqlType::Boolean,
            SqlType::Integer,
            SqlType::Date,
            SqlType::TIMESTAMP,
            SqlType::Interval,
            SqlType::Uuid,
            SqlType::Text,
            SqlType::Numeric { precision: 38, scale: 37 },
            SqlType::Numeric { precision: 3, scale: -2 },
        ] {
            let mut reader = BinaryReader::new(sql_type);
            for _ in 0..5_000 {
                let mut bytes = Vec::new();
                for _ in 0..(state % 21) {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    bytes.push(if state & 0x100 == 0 { 0 } else { (state >> 33) as u8 });
                }
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let before = reader.builder.len();
                let appended = reader.append(&bytes).is_ok();
                assert_eq!(reader.builder.len(), before + usize::from(appended));
            }
        }
    }

    #[test]
    fn integer_arrays_have_dimensions_and_elements() {
        let mut builder = arrow_array::builder::ListBuilder::new(arrow_array::builder::Int32Builder::new());
        builder.values().append_value(1);
        builder.values().append_null();
        builder.append(true);
        builder.append(true);
        let writer = BinaryWriter::array(&builder.finish(), SqlType::Integer, 23, &TextSettings::default()).unwrap();
        let mut out = Vec::new();
        writer.write(0, &mut out);
        let words: Vec<i32> = out.chunks(4).map(|chunk| i32::from_be_bytes(chunk.try_into().unwrap())).collect();
        assert_eq!(words, [1, 1, 23, 2, 1, 4, 1, -1]);
        out.clear();
        writer.write(1, &mut out);
        assert_eq!(out, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 23]);
    }
}
