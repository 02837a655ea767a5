//! Row images: a row's values as the bytes that its version holds.
//!
//! ```text
//! [null bits][one slot a column, in the columns' order        ][values of variable length, in the columns' order]
//!             fixed columns: the value, little endian
//!             others: where the value ends, u32 from the image's start
//! ```
//!
//! Slots are not aligned. A value of variable length starts where the one before it ends, the first one after the slots. A
//! NULL's slot is zero, or an empty value. Numerics of at most 18 digits take 8 bytes, those without precision 18, uuids 16 in the order in which they
//! are written.

use crate::encoding::{interval_of, uuid};
use crate::logical::Logical;
use crate::schema::{NUMERIC_WIDTH, arrow_type};
use crate::{RowGroup, TableDef};
use arrow_array::builder::{
    BinaryViewBuilder, BooleanBuilder, Decimal128Builder, FixedSizeBinaryBuilder, PrimitiveBuilder, StringViewBuilder,
    TimestampMicrosecondBuilder,
};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type,
    IntervalMonthDayNano, IntervalMonthDayNanoType, TimestampMicrosecondType,
};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::SchemaRef;
use std::sync::Arc;
use tidepool_base::{Error, NUMERIC_BYTES, Result, SqlState, SqlType};

/// Bytes of the longest image.
pub const IMAGE_BYTES_MAX: usize = 1 << 28;

/// Digits that fit 8 bytes whatever they are.
pub(super) const SHORT_DIGITS_MAX: u8 = 18;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Boolean,
    Int16,
    Int32,
    Int64,
    Float32,
    Float64,
    Date,
    Timestamp,
    TimestampTz,
    ShortDecimal { precision: u8, scale: i8 },
    Decimal { precision: u8, scale: i8 },
    Interval,
    Uuid,
    Text,
    Bytes,
    Numeric,
}

impl Kind {
    fn of(sql_type: SqlType) -> Result<Kind> {
        Ok(match Logical::of(&arrow_type(sql_type))? {
            Logical::Boolean => Kind::Boolean,
            Logical::Int16 => Kind::Int16,
            Logical::Int32 => Kind::Int32,
            Logical::Int64 => Kind::Int64,
            Logical::Float32 => Kind::Float32,
            Logical::Float64 => Kind::Float64,
            Logical::Date => Kind::Date,
            Logical::Timestamp => Kind::Timestamp,
            Logical::TimestampTz => Kind::TimestampTz,
            Logical::Decimal { precision, scale } if precision <= SHORT_DIGITS_MAX => {
                Kind::ShortDecimal { precision, scale }
            }
            Logical::Decimal { precision, scale } => Kind::Decimal { precision, scale },
            Logical::Interval => Kind::Interval,
            Logical::Text if sql_type == SqlType::Uuid => Kind::Uuid,
            Logical::Text => Kind::Text,
            Logical::Bytes => Kind::Bytes,
            Logical::Numeric => Kind::Numeric,
        })
    }

    pub fn slot_bytes(self) -> usize {
        match self {
            Kind::Boolean => 1,
            Kind::Int16 => 2,
            Kind::Int32 | Kind::Float32 | Kind::Date | Kind::Text | Kind::Bytes => 4,
            Kind::Int64 | Kind::Float64 | Kind::Timestamp | Kind::TimestampTz | Kind::ShortDecimal { .. } => 8,
            Kind::Decimal { .. } | Kind::Interval | Kind::Uuid => 16,
            Kind::Numeric => NUMERIC_BYTES,
        }
    }

    pub fn is_variable(self) -> bool {
        matches!(self, Kind::Text | Kind::Bytes)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub kind: Kind,
    /// Of its slot.
    pub offset: usize,
    /// Of the slot that says where its value starts; zero: it is the first of variable length.
    pub before: usize,
}

/// One value of an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    Null,
    Boolean(bool),
    /// Integers, dates (days), timestamps (µs).
    Int(i64),
    Real(f32),
    Double(f64),
    /// Without its scale.
    Numeric(i128),
    Interval(IntervalMonthDayNano),
    /// Its bytes, as it is written.
    Uuid([u8; 16]),
    /// Text and bytea, and `numeric` without precision as [`tidepool_base::Numeric`] writes it.
    Bytes(&'a [u8]),
}

/// How the rows of a table are laid out as images.
#[derive(Clone, Debug)]
pub struct RowLayout {
    schema: SchemaRef,
    pub(super) columns: Vec<Column>,
    /// Null bits and slots.
    pub(super) fixed_bytes: usize,
}

#[inline]
pub(super) fn fixed<const N: usize>(image: &[u8], at: usize) -> [u8; N] {
    *image[at..].first_chunk().expect("an image holds all slots of its layout")
}

#[inline]
pub(super) fn end_at(image: &[u8], at: usize) -> usize {
    u32::from_le_bytes(fixed(image, at)) as usize
}

impl RowLayout {
    pub fn new(def: &TableDef) -> Result<RowLayout> {
        let mut offset = def.columns.len().div_ceil(8);
        let mut before = 0;
        let columns = (def.columns.iter())
            .map(|column| {
                let kind = Kind::of(column.sql_type)?;
                let laid = Column { kind, offset, before };
                if kind.is_variable() {
                    before = offset;
                }
                offset += kind.slot_bytes();
                Ok(laid)
            })
            .collect::<Result<_>>()?;
        Ok(RowLayout { schema: def.arrow_schema(), columns, fixed_bytes: offset })
    }

    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Where an integer, date or timestamp lies in images, and how many bytes it takes there. `None`: the column is of another type.
    pub(crate) fn integer(&self, index: usize) -> Option<(usize, usize)> {
        let column = self.columns[index];
        let is_integer = matches!(
            column.kind,
            Kind::Int16 | Kind::Int32 | Kind::Int64 | Kind::Date | Kind::Timestamp | Kind::TimestampTz
        );
        is_integer.then(|| (column.offset, column.kind.slot_bytes()))
    }

    #[inline]
    fn is_null(&self, image: &[u8], column: usize) -> bool {
        image[column / 8] & (1 << (column % 8)) != 0
    }

    #[inline]
    fn variable<'a>(&self, image: &'a [u8], column: &Column) -> &'a [u8] {
        let start = if column.before == 0 { self.fixed_bytes } else { end_at(image, column.before) };
        &image[start..end_at(image, column.offset)]
    }

    /// One column's value, the others untouched.
    pub fn value<'a>(&self, image: &'a [u8], index: usize) -> Value<'a> {
        if self.is_null(image, index) {
            return Value::Null;
        }
        let column = &self.columns[index];
        let at = column.offset;
        match column.kind {
            Kind::Boolean => Value::Boolean(image[at] != 0),
            Kind::Int16 => Value::Int(i16::from_le_bytes(fixed(image, at)).into()),
            Kind::Int32 | Kind::Date => Value::Int(i32::from_le_bytes(fixed(image, at)).into()),
            Kind::Int64 | Kind::Timestamp | Kind::TimestampTz => Value::Int(i64::from_le_bytes(fixed(image, at))),
            Kind::Float32 => Value::Real(f32::from_le_bytes(fixed(image, at))),
            Kind::Float64 => Value::Double(f64::from_le_bytes(fixed(image, at))),
            Kind::ShortDecimal { .. } => Value::Numeric(i64::from_le_bytes(fixed(image, at)).into()),
            Kind::Decimal { .. } => Value::Numeric(i128::from_le_bytes(fixed(image, at))),
            Kind::Interval => Value::Interval(interval(&fixed(image, at))),
            Kind::Uuid => Value::Uuid(fixed(image, at)),
            Kind::Text | Kind::Bytes => Value::Bytes(self.variable(image, column)),
            Kind::Numeric => Value::Bytes(&image[at..at + NUMERIC_BYTES]),
        }
    }

    /// The batch's rows, to be made images of one by one. Its columns are the table's, in order.
    pub fn rows<'a>(&'a self, batch: &'a RecordBatch) -> Result<BatchRows<'a>> {
        let fits = batch.num_columns() == self.columns.len()
            && (batch.columns().iter().zip(self.schema.fields()))
                .all(|(array, field)| array.data_type() == field.data_type());
        if !fits {
            return Err(Error::internal("a batch's columns are not the table's"));
        }
        Ok(BatchRows { layout: self, batch })
    }

    /// Puts the image of a row of these values, one a column, in place of what `image` holds. 22003 for a number beyond its
    /// declared digits, 54000 for a row that is too long, XX000 for values that are not of the columns' types.
    pub fn image_of<'v>(&self, values: impl IntoIterator<Item = Value<'v>>, image: &mut Vec<u8>) -> Result<()> {
        image.clear();
        image.resize(self.fixed_bytes, 0);
        let mut values = values.into_iter();
        for (index, column) in self.columns.iter().enumerate() {
            let value =
                values.next().ok_or_else(|| Error::internal("a row has fewer values than its table columns"))?;
            if value == Value::Null {
                image[index / 8] |= 1 << (index % 8);
                if column.kind.is_variable() {
                    put_end(image, column.offset)?;
                }
                continue;
            }
            put_value(column, value, image)?;
        }
        Ok(())
    }

    /// Puts the image of a row in main in place of what `image` holds. Each value is read by itself, and charged for where its segment's
    /// tablespace is paced. Panics if the row is past the group's last.
    pub fn image_in_main(&self, group: &RowGroup, row: usize, image: &mut Vec<u8>) -> Result<()> {
        image.clear();
        image.resize(self.fixed_bytes, 0);
        let mut room = Vec::new();
        for (index, column) in self.columns.iter().enumerate() {
            match self.value_in_main(group, row, index, &mut room)? {
                Value::Null => {
                    image[index / 8] |= 1 << (index % 8);
                    if column.kind.is_variable() {
                        put_end(image, column.offset)?;
                    }
                }
                value => put_value(column, value, image)?,
            }
        }
        Ok(())
    }

    /// One column's value of a row in main, read by itself and charged for likewise. It lies in the segment, or in `room`.
    pub fn value_in_main<'v>(
        &self,
        group: &'v RowGroup,
        row: usize,
        column: usize,
        room: &'v mut Vec<u8>,
    ) -> Result<Value<'v>> {
        let (Some(segment), Some(Column { kind, .. })) = (group.segments().get(column), self.columns.get(column))
        else {
            return Err(Error::internal("a row group's columns are not the table's"));
        };
        let segment = segment.sound()?;
        segment.charge_one();
        assert!(row < segment.rows(), "row {row} of {}", segment.rows());
        let (blob, payload) = (segment.blob(), segment.payload());
        if !segment.validity().is_valid(blob, row) {
            return Ok(Value::Null);
        }
        Ok(match kind {
            Kind::Boolean => Value::Boolean(payload.int_at(blob, row)? != 0),
            Kind::Int16 | Kind::Int32 | Kind::Int64 | Kind::Date | Kind::Timestamp | Kind::TimestampTz => {
                Value::Int(payload.int_at(blob, row)?)
            }
            Kind::Float32 => Value::Real(payload.float_at(blob, row)? as f32),
            Kind::Float64 => Value::Double(payload.float_at(blob, row)?),
            Kind::ShortDecimal { .. } | Kind::Decimal { .. } => Value::Numeric(payload.wide_at(blob, row)?),
            Kind::Interval => Value::Interval(interval_of(payload.wide_at(blob, row)?)),
            Kind::Uuid => match payload.uuid_at(blob, row) {
                Some(value) => Value::Uuid(value.to_le_bytes()),
                None => Value::Bytes(payload.bytes_at(blob, row, room)?),
            },
            Kind::Text | Kind::Bytes | Kind::Numeric => Value::Bytes(payload.bytes_at(blob, row, room)?),
        })
    }

    /// As Arrow arrays of some columns, a row for each image.
    pub fn decode(&self, images: &[&[u8]], columns: &[usize]) -> Result<Vec<ArrayRef>> {
        columns.iter().map(|column| self.decode_column(images, *column)).collect()
    }

    fn decode_column(&self, images: &[&[u8]], index: usize) -> Result<ArrayRef> {
        let at = self.columns[index].offset;
        fn of<'a, T: ArrowPrimitiveType>(
            layout: &'a RowLayout,
            images: &'a [&[u8]],
            index: usize,
            value: impl Fn(&[u8]) -> T::Native,
        ) -> PrimitiveBuilder<T> {
            let mut builder = PrimitiveBuilder::<T>::with_capacity(images.len());
            for image in images {
                builder.append_option((!layout.is_null(image, index)).then(|| value(image)));
            }
            builder
        }
        macro_rules! primitive {
            ($type:ty, $read:expr) => {
                Arc::new(of::<$type>(self, images, index, $read).finish())
            };
        }
        Ok(match self.columns[index].kind {
            Kind::Boolean => {
                let mut builder = BooleanBuilder::with_capacity(images.len());
                for image in images {
                    builder.append_option((!self.is_null(image, index)).then(|| image[at] != 0));
                }
                Arc::new(builder.finish())
            }
            Kind::Int16 => primitive!(Int16Type, |image| i16::from_le_bytes(fixed(image, at))),
            Kind::Int32 => primitive!(Int32Type, |image| i32::from_le_bytes(fixed(image, at))),
            Kind::Int64 => primitive!(Int64Type, |image| i64::from_le_bytes(fixed(image, at))),
            Kind::Float32 => primitive!(Float32Type, |image| f32::from_le_bytes(fixed(image, at))),
            Kind::Float64 => primitive!(Float64Type, |image| f64::from_le_bytes(fixed(image, at))),
            Kind::Date => primitive!(Date32Type, |image| i32::from_le_bytes(fixed(image, at))),
            Kind::Timestamp => primitive!(TimestampMicrosecondType, |image| i64::from_le_bytes(fixed(image, at))),
            Kind::TimestampTz => {
                let mut builder: TimestampMicrosecondBuilder =
                    of::<TimestampMicrosecondType>(self, images, index, |image| i64::from_le_bytes(fixed(image, at)));
                Arc::new(builder.finish().with_timezone("UTC"))
            }
            Kind::Interval => primitive!(IntervalMonthDayNanoType, |image| interval(&fixed(image, at))),
            Kind::ShortDecimal { precision, scale } => {
                let mut builder: Decimal128Builder =
                    of::<Decimal128Type>(self, images, index, |image| i64::from_le_bytes(fixed(image, at)).into());
                Arc::new(builder.finish().with_precision_and_scale(precision, scale).map_err(broken)?)
            }
            Kind::Decimal { precision, scale } => {
                let mut builder: Decimal128Builder =
                    of::<Decimal128Type>(self, images, index, |image| i128::from_le_bytes(fixed(image, at)));
                Arc::new(builder.finish().with_precision_and_scale(precision, scale).map_err(broken)?)
            }
            Kind::Uuid => {
                let mut builder = StringViewBuilder::with_capacity(images.len());
                let mut text = Vec::with_capacity(uuid::TEXT_BYTES);
                for image in images {
                    if self.is_null(image, index) {
                        builder.append_null();
                        continue;
                    }
                    text.clear();
                    uuid::format(u128::from_le_bytes(fixed(image, at)), &mut text);
                    builder.append_value(text_of(&text)?);
                }
                Arc::new(builder.finish())
            }
            Kind::Text => {
                let mut builder = StringViewBuilder::with_capacity(images.len());
                for image in images {
                    match self.value(image, index) {
                        Value::Bytes(text) => builder.append_value(text_of(text)?),
                        _ => builder.append_null(),
                    }
                }
                Arc::new(builder.finish())
            }
            Kind::Numeric => {
                let mut builder = FixedSizeBinaryBuilder::with_capacity(images.len(), NUMERIC_WIDTH);
                for image in images {
                    match self.value(image, index) {
                        Value::Bytes(bytes) => builder.append_value(bytes).map_err(broken)?,
                        _ => builder.append_null(),
                    }
                }
                Arc::new(builder.finish())
            }
            Kind::Bytes => {
                let mut builder = BinaryViewBuilder::with_capacity(images.len());
                for image in images {
                    match self.value(image, index) {
                        Value::Bytes(bytes) => builder.append_value(bytes),
                        _ => builder.append_null(),
                    }
                }
                Arc::new(builder.finish())
            }
        })
    }

    /// XX001 unless these bytes, from outside, are an image of this layout, so that reading it cannot go wrong.
    pub fn check(&self, image: &[u8]) -> Result<()> {
        let broken = || Error::corrupted("a row's bytes do not fit its table");
        if image.len() < self.fixed_bytes || image.len() > IMAGE_BYTES_MAX {
            return Err(broken());
        }
        let mut start = self.fixed_bytes;
        for (index, column) in self.columns.iter().enumerate() {
            if !column.kind.is_variable() {
                continue;
            }
            let end = end_at(image, column.offset);
            let bytes = image.get(start..end).ok_or_else(broken)?;
            if column.kind == Kind::Text && !self.is_null(image, index) {
                text_of(bytes)?;
            }
            start = end;
        }
        if start == image.len() { Ok(()) } else { Err(broken()) }
    }
}

fn text_of(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|_| Error::corrupted("a row's text is not UTF-8"))
}

fn broken(error: arrow_schema::ArrowError) -> Error {
    Error::internal(format!("a row does not fit its schema: {error}"))
}

fn interval(bytes: &[u8; 16]) -> IntervalMonthDayNano {
    IntervalMonthDayNano::new(
        i32::from_le_bytes(fixed(bytes, 0)),
        i32::from_le_bytes(fixed(bytes, 4)),
        i64::from_le_bytes(fixed(bytes, 8)),
    )
}

/// The rows of a batch of the table's columns.
#[derive(Clone, Copy, Debug)]
pub struct BatchRows<'a> {
    layout: &'a RowLayout,
    batch: &'a RecordBatch,
}

impl BatchRows<'_> {
    /// Puts one row's image in place of what `image` holds. 22003 for a number beyond its declared digits, 54000 for a row
    /// that is too long.
    pub fn image(&self, row: usize, image: &mut Vec<u8>) -> Result<()> {
        image.clear();
        image.resize(self.layout.fixed_bytes, 0);
        for (index, (column, array)) in self.layout.columns.iter().zip(self.batch.columns()).enumerate() {
            if array.is_null(row) {
                image[index / 8] |= 1 << (index % 8);
                if column.kind.is_variable() {
                    put_end(image, column.offset)?;
                }
                continue;
            }
            put(column, array, row, image)?;
        }
        Ok(())
    }
}

#[inline]
pub(super) fn put_end(image: &mut [u8], at: usize) -> Result<()> {
    if image.len() > IMAGE_BYTES_MAX {
        return Err(Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "row is too long").with_detail(format!(
            "A row takes at most {} until it is merged.",
            tidepool_base::ByteSize(IMAGE_BYTES_MAX as u64)
        )));
    }
    let end = image.len() as u32;
    image[at..at + 4].copy_from_slice(&end.to_le_bytes());
    Ok(())
}

fn put_value(column: &Column, value: Value<'_>, image: &mut Vec<u8>) -> Result<()> {
    let at = column.offset;
    let slot = at..at + column.kind.slot_bytes();
    match (column.kind, value) {
        (Kind::Boolean, Value::Boolean(value)) => image[at] = value.into(),
        (Kind::Int16, Value::Int(value)) => image[slot].copy_from_slice(&(value as i16).to_le_bytes()),
        (Kind::Int32 | Kind::Date, Value::Int(value)) => image[slot].copy_from_slice(&(value as i32).to_le_bytes()),
        (Kind::Int64 | Kind::Timestamp | Kind::TimestampTz, Value::Int(value)) => {
            image[slot].copy_from_slice(&value.to_le_bytes());
        }
        (Kind::Float32, Value::Real(value)) => image[slot].copy_from_slice(&value.to_le_bytes()),
        (Kind::Float64, Value::Double(value)) => image[slot].copy_from_slice(&value.to_le_bytes()),
        (Kind::Decimal { .. }, Value::Numeric(value)) => image[slot].copy_from_slice(&value.to_le_bytes()),
        (Kind::ShortDecimal { precision, scale }, Value::Numeric(value)) => {
            image[slot].copy_from_slice(&short_decimal(value, precision, scale)?.to_le_bytes());
        }
        (Kind::Interval, Value::Interval(value)) => {
            image[at..at + 4].copy_from_slice(&value.months.to_le_bytes());
            image[at + 4..at + 8].copy_from_slice(&value.days.to_le_bytes());
            image[at + 8..at + 16].copy_from_slice(&value.nanoseconds.to_le_bytes());
        }
        (Kind::Uuid, Value::Uuid(value)) => image[slot].copy_from_slice(&value),
        (Kind::Uuid, Value::Bytes(text)) => {
            let value = uuid::parse(text).ok_or_else(|| Error::internal("a uuid is not in canonical form"))?;
            image[slot].copy_from_slice(&value.to_le_bytes());
        }
        (Kind::Numeric, Value::Bytes(bytes)) if bytes.len() == NUMERIC_BYTES => image[slot].copy_from_slice(bytes),
        (Kind::Text | Kind::Bytes, Value::Bytes(bytes)) => {
            image.extend_from_slice(bytes);
            put_end(image, at)?;
        }
        (kind, value) => return Err(Error::internal(format!("a {kind:?} is to be written as {value:?}"))),
    }
    Ok(())
}

fn short_decimal(value: i128, precision: u8, scale: i8) -> Result<i64> {
    i64::try_from(value).map_err(|_| {
        Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "numeric field overflow")
            .with_detail(format!("A field with precision {precision}, scale {scale} cannot hold it."))
    })
}

fn put(column: &Column, array: &ArrayRef, row: usize, image: &mut Vec<u8>) -> Result<()> {
    let at = column.offset;
    let slot = at..at + column.kind.slot_bytes();
    macro_rules! primitive {
        ($type:ty) => {
            image[slot].copy_from_slice(&array.as_primitive::<$type>().value(row).to_le_bytes())
        };
    }
    match column.kind {
        Kind::Boolean => image[at] = array.as_boolean().value(row).into(),
        Kind::Int16 => primitive!(Int16Type),
        Kind::Int32 => primitive!(Int32Type),
        Kind::Int64 => primitive!(Int64Type),
        Kind::Float32 => primitive!(Float32Type),
        Kind::Float64 => primitive!(Float64Type),
        Kind::Date => primitive!(Date32Type),
        Kind::Timestamp | Kind::TimestampTz => primitive!(TimestampMicrosecondType),
        Kind::Decimal { .. } => primitive!(Decimal128Type),
        Kind::ShortDecimal { precision, scale } => {
            let value = array.as_primitive::<Decimal128Type>().value(row);
            image[slot].copy_from_slice(&short_decimal(value, precision, scale)?.to_le_bytes());
        }
        Kind::Interval => {
            let value = array.as_primitive::<IntervalMonthDayNanoType>().value(row);
            image[at..at + 4].copy_from_slice(&value.months.to_le_bytes());
            image[at + 4..at + 8].copy_from_slice(&value.days.to_le_bytes());
            image[at + 8..at + 16].copy_from_slice(&value.nanoseconds.to_le_bytes());
        }
        Kind::Uuid => {
            let text = array.as_string_view().value(row);
            let value = uuid::parse(text.as_bytes())
                .ok_or_else(|| Error::internal(format!("a uuid is not in canonical form: {text}")))?;
            image[slot].copy_from_slice(&value.to_le_bytes());
        }
        Kind::Numeric => image[slot].copy_from_slice(array.as_fixed_size_binary().value(row)),
        Kind::Text => {
            image.extend_from_slice(array.as_string_view().value(row).as_bytes());
            put_end(image, at)?;
        }
        Kind::Bytes => {
            image.extend_from_slice(array.as_binary_view().value(row));
            put_end(image, at)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{array_of, noise, table};
    use tidepool_base::RowGroupId;

    const ALL: [SqlType; 17] = [
        SqlType::Boolean,
        SqlType::Text,
        SqlType::SmallInt,
        SqlType::Integer,
        SqlType::Bytea,
        SqlType::BigInt,
        SqlType::Real,
        SqlType::DoublePrecision,
        SqlType::Numeric { precision: 15, scale: 2 },
        SqlType::Numeric { precision: 38, scale: 10 },
        SqlType::Date,
        SqlType::Varchar { length_max: None },
        SqlType::TIMESTAMP,
        SqlType::TIMESTAMPTZ,
        SqlType::Interval,
        SqlType::Uuid,
        SqlType::UnconstrainedNumeric,
    ];

    fn batch(rows: usize) -> (RowLayout, RecordBatch) {
        let names: Vec<String> = (0..ALL.len()).map(|i| format!("c{i}")).collect();
        let columns: Vec<(&str, SqlType)> = names.iter().map(String::as_str).zip(ALL).collect();
        let def = table(&columns);
        let arrays = ALL
            .iter()
            .enumerate()
            .map(|(column, sql_type)| {
                let mut next = noise(column as u64);
                array_of(*sql_type, rows, |_| (!next().is_multiple_of(4)).then(|| next() as i64 % 100_000))
            })
            .collect();
        let layout = RowLayout::new(&def).unwrap();
        let batch = RecordBatch::try_new(def.arrow_schema(), arrays).unwrap();
        (layout, batch)
    }

    #[test]
    fn rows_of_every_type_come_back_as_they_went() {
        let (layout, batch) = batch(50);
        let rows = layout.rows(&batch).unwrap();
        let images: Vec<Vec<u8>> = (0..50)
            .map(|row| {
                let mut image = Vec::new();
                rows.image(row, &mut image).unwrap();
                layout.check(&image).unwrap();
                image
            })
            .collect();
        let images: Vec<&[u8]> = images.iter().map(Vec::as_slice).collect();
        let all: Vec<usize> = (0..ALL.len()).collect();
        let decoded = RecordBatch::try_new(batch.schema(), layout.decode(&images, &all).unwrap()).unwrap();
        assert_eq!(decoded, batch);
        let some = layout.decode(&images[3..4], &[15, 2]).unwrap();
        assert_eq!(some[0].to_data(), batch.column(15).slice(3, 1).to_data());
        assert_eq!(&some[1], &batch.column(2).slice(3, 1));
    }

    #[test]
    fn a_single_value_is_read_by_itself() {
        let (layout, batch) = batch(40);
        let rows = layout.rows(&batch).unwrap();
        let mut image = Vec::new();
        for row in 0..40 {
            rows.image(row, &mut image).unwrap();
            let text = batch.column(11).as_string_view();
            match layout.value(&image, 11) {
                Value::Null => assert!(text.is_null(row)),
                Value::Bytes(bytes) => assert_eq!(bytes, text.value(row).as_bytes()),
                other => panic!("{other:?}"),
            }
            let numbers = batch.column(8).as_primitive::<Decimal128Type>();
            let expected = if numbers.is_null(row) { Value::Null } else { Value::Numeric(numbers.value(row)) };
            assert_eq!(layout.value(&image, 8), expected);
        }
    }

    #[test]
    fn an_image_of_single_values_is_that_of_the_row() {
        let (layout, batch) = batch(40);
        let rows = layout.rows(&batch).unwrap();
        let (mut image, mut again) = (Vec::new(), Vec::new());
        for row in 0..40 {
            rows.image(row, &mut image).unwrap();
            layout.image_of((0..ALL.len()).map(|column| layout.value(&image, column)), &mut again).unwrap();
            assert_eq!(again, image);
        }
        assert!(layout.image_of([Value::Null], &mut again).is_err());
        assert!(layout.image_of((0..ALL.len()).map(|_| Value::Int(1)), &mut again).is_err());
    }

    /// Of each type, in as many encodings as values of several shapes take.
    #[test]
    fn a_row_in_main_has_the_image_that_it_had_before() {
        let names: Vec<String> = (0..ALL.len()).map(|i| format!("c{i}")).collect();
        let columns: Vec<(&str, SqlType)> = names.iter().map(String::as_str).zip(ALL).collect();
        let def = table(&columns);
        let layout = RowLayout::new(&def).unwrap();
        let spaces = crate::testing::spaces();
        let placement = crate::testing::placement("near");
        type Shape = fn(u64, usize) -> Option<i64>;
        let shapes: [Shape; 7] = [
            |noise, _| Some(noise as i64 % 100_000),
            |noise, _| (!noise.is_multiple_of(4)).then_some(noise as i64 >> 3),
            |noise, _| Some(noise as i64 % 7),
            |_, row| Some(row as i64),
            |_, row| Some(row as i64 / 300),
            |_, _| Some(11),
            |_, _| None,
        ];
        let rows = if cfg!(miri) { 40 } else { 3000 };
        let mut encodings = std::collections::BTreeSet::new();
        for shape in shapes {
            let arrays = ALL.iter().enumerate().map(|(column, sql_type)| {
                let mut next = noise(column as u64);
                array_of(*sql_type, rows, |row| shape(next(), row))
            });
            let batch = RecordBatch::try_new(def.arrow_schema(), arrays.collect()).unwrap();
            let group = RowGroup::encode(RowGroupId(1), &batch, &placement, &spaces).unwrap();
            encodings.extend(group.segments().iter().map(|segment| segment.encoding().unwrap().name()));
            let images = layout.rows(&batch).unwrap();
            let (mut expected, mut image) = (Vec::new(), Vec::new());
            for row in (0..rows).step_by(if cfg!(miri) { 13 } else { 1 }) {
                images.image(row, &mut expected).unwrap();
                layout.image_in_main(&group, row, &mut image).unwrap();
                assert_eq!(image, expected, "row {row}");
            }
        }
        if !cfg!(miri) {
            assert!(encodings.len() >= 8, "{encodings:?}");
        }
    }

    #[test]
    fn damaged_images_are_refused() {
        let (layout, batch) = batch(1);
        let mut image = Vec::new();
        layout.rows(&batch).unwrap().image(0, &mut image).unwrap();
        assert!(layout.check(&image[..image.len() - 1]).is_err());
        assert!(layout.check(&[]).is_err());
        for at in (0..image.len()).step_by(if cfg!(miri) { 9 } else { 1 }) {
            for flip in [1, 0x80, 0xff] {
                let mut damaged = image.clone();
                damaged[at] ^= flip;
                if layout.check(&damaged).is_ok() {
                    for column in 0..ALL.len() {
                        layout.decode_column(&[&damaged], column).unwrap();
                    }
                }
            }
        }
    }
}
