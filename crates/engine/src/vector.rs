//! Columns of some rows, and chunks of them: what operators hand to one another.

use crate::expr::Scalar;
use crate::mask::Mask;
use crate::room;
use crate::simd::pick;
use crate::text::{Owners, Text};
use crate::types::{Class, ColumnType};
use arrow_array::builder::{BinaryViewBuilder, StringViewBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    TimestampMicrosecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, BooleanArray, PrimitiveArray, UInt32Array, new_null_array};
use arrow_buffer::{NullBuffer, ScalarBuffer};
use arrow_schema::{DataType, TimeUnit};
use std::sync::Arc;
use tidepool_base::{Error, Result};

/// Rows that operators handle at a time: what some columns of them take stays in a core's cache.
pub const CHUNK_ROWS: usize = 2048;

/// The values of a column. Where one is NULL, whatever is there means nothing, and may be anything.
#[derive(Clone, Debug)]
pub enum Values {
    Int(ScalarBuffer<i64>),
    Wide(ScalarBuffer<i128>),
    Float(ScalarBuffer<f64>),
    Bool(Mask),
    Text(Texts),
    Other(ArrayRef),
}

/// Values of text, and what holds the long ones.
#[derive(Clone, Debug)]
pub struct Texts {
    values: Arc<Vec<Text>>,
    owners: Owners,
}

impl Texts {
    /// # Safety
    ///
    /// `owners` hold the bytes of each long value.
    pub unsafe fn new(values: Vec<Text>, owners: Owners) -> Texts {
        Texts { values: Arc::new(values), owners }
    }

    pub fn values(&self) -> &[Text] {
        &self.values
    }

    pub fn owners(&self) -> &Owners {
        &self.owners
    }

    #[inline]
    pub fn bytes(&self, row: usize) -> &[u8] {
        // SAFETY: `owners` hold them as long as `self` lives.
        unsafe { self.values[row].bytes() }
    }

    /// Whether each value but the first is another one than the value before it.
    pub fn changes(&self) -> impl Iterator<Item = bool> + '_ {
        // SAFETY: `owners` hold both as long as `self` lives.
        self.values.windows(2).map(|pair| unsafe { !pair[0].equals(&pair[1]) })
    }

    #[inline]
    pub fn are_equal(&self, row: usize, other: usize) -> bool {
        // SAFETY: `owners` hold both as long as `self` lives.
        unsafe { self.values[row].equals(&self.values[other]) }
    }
}

/// A column of some rows.
#[derive(Clone, Debug)]
pub struct Vector {
    pub values: Values,
    /// Which values are there; `None`: all. Never a mask that has all.
    pub valid: Option<Mask>,
}

/// Some rows, as columns of one length.
#[derive(Clone, Debug, Default)]
pub struct Chunk {
    pub rows: usize,
    pub columns: Vec<Vector>,
}

impl Values {
    pub fn class(&self) -> Class {
        match self {
            Values::Int(_) => Class::Int,
            Values::Wide(_) => Class::Wide,
            Values::Float(_) => Class::Float,
            Values::Bool(_) => Class::Bool,
            Values::Text(_) => Class::Text,
            Values::Other(_) => Class::Other,
        }
    }
}

fn mixed(wanted: &str) -> Error {
    Error::internal(format!("a column is not {wanted}"))
}

impl Vector {
    pub fn ints(values: Vec<i64>) -> Vector {
        Vector { values: Values::Int(values.into()), valid: None }
    }

    pub fn with_valid(mut self, valid: Option<Mask>) -> Vector {
        self.valid = valid.filter(|valid| !valid.is_all());
        self
    }

    pub fn len(&self) -> usize {
        match &self.values {
            Values::Int(values) => values.len(),
            Values::Wide(values) => values.len(),
            Values::Float(values) => values.len(),
            Values::Bool(values) => values.len(),
            Values::Text(values) => values.values.len(),
            Values::Other(values) => values.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Of its values, without what long texts lie in.
    pub fn bytes(&self) -> usize {
        let value_bytes = match &self.values {
            Values::Int(_) | Values::Float(_) => 8,
            Values::Wide(_) | Values::Text(_) => 16,
            Values::Bool(_) => return self.len().div_ceil(8),
            Values::Other(values) => return values.get_buffer_memory_size(),
        };
        self.len() * value_bytes
    }

    #[inline]
    pub fn is_valid(&self, row: usize) -> bool {
        self.valid.as_ref().is_none_or(|valid| valid.get(row))
    }

    /// The value of one row.
    pub fn scalar(&self, row: usize) -> Scalar {
        if !self.is_valid(row) {
            return Scalar::Null;
        }
        match &self.values {
            Values::Int(values) => Scalar::Int(values[row]),
            Values::Wide(values) => Scalar::Wide(values[row]),
            Values::Float(values) => Scalar::Float(values[row]),
            Values::Bool(values) => Scalar::Bool(values.get(row)),
            Values::Text(texts) => Scalar::Text(texts.bytes(row).into()),
            Values::Other(array) => Scalar::Other(array.slice(row, 1)),
        }
    }

    pub fn as_ints(&self) -> Result<&[i64]> {
        if let Values::Int(values) = &self.values { Ok(values) } else { Err(mixed("one of integers")) }
    }

    pub fn as_wide(&self) -> Result<&[i128]> {
        if let Values::Wide(values) = &self.values { Ok(values) } else { Err(mixed("one of wide integers")) }
    }

    pub fn as_floats(&self) -> Result<&[f64]> {
        if let Values::Float(values) = &self.values { Ok(values) } else { Err(mixed("one of floats")) }
    }

    pub fn as_bools(&self) -> Result<&Mask> {
        if let Values::Bool(values) = &self.values { Ok(values) } else { Err(mixed("one of booleans")) }
    }

    pub fn as_texts(&self) -> Result<&Texts> {
        if let Values::Text(values) = &self.values { Ok(values) } else { Err(mixed("one of text")) }
    }

    /// A column in which all is NULL.
    pub fn nulls(of: &ColumnType, rows: usize) -> Vector {
        let values = match of.class() {
            Class::Int => Values::Int(vec![0; rows].into()),
            Class::Wide => Values::Wide(vec![0; rows].into()),
            Class::Float => Values::Float(vec![0.0; rows].into()),
            Class::Bool => Values::Bool(Mask::none(rows)),
            Class::Text => Values::Text(Texts { values: Arc::new(vec![Text::EMPTY; rows]), owners: Owners::default() }),
            Class::Other => Values::Other(new_null_array(&of.data_type, rows)),
        };
        Vector { values, valid: None }.with_valid(Some(Mask::none(rows)))
    }

    /// Some rows, in that order. Panics if one is past the last.
    pub fn gather(&self, rows: &[u32]) -> Result<Vector> {
        #[inline(always)]
        fn picked<T: Copy>(values: &[T], rows: &[u32]) -> Result<Vec<T>> {
            room::asked(rows.len() * size_of::<T>(), || pick(values, rows))
        }
        let values = match &self.values {
            Values::Int(values) => Values::Int(picked(values, rows)?.into()),
            Values::Wide(values) => Values::Wide(picked(values, rows)?.into()),
            Values::Float(values) => Values::Float(picked(values, rows)?.into()),
            Values::Bool(values) => Values::Bool(values.gather(rows)),
            Values::Text(texts) => {
                Values::Text(Texts { values: Arc::new(picked(&texts.values, rows)?), owners: texts.owners.clone() })
            }
            Values::Other(array) => {
                let taken = arrow_select::take::take(array.as_ref(), &UInt32Array::from(rows.to_vec()), None);
                Values::Other(taken.map_err(|error| Error::internal(error.to_string()))?)
            }
        };
        Ok(Vector { values, valid: None }.with_valid(self.valid.as_ref().map(|valid| valid.gather(rows))))
    }

    /// Neighbouring rows. Panics if one is past the last.
    pub fn slice(&self, start: usize, len: usize) -> Vector {
        let values = match &self.values {
            Values::Int(values) => Values::Int(values.slice(start, len)),
            Values::Wide(values) => Values::Wide(values.slice(start, len)),
            Values::Float(values) => Values::Float(values.slice(start, len)),
            Values::Bool(values) => Values::Bool(values.slice(start, len)),
            Values::Text(texts) => Values::Text(Texts {
                values: Arc::new(texts.values[start..start + len].to_vec()),
                owners: texts.owners.clone(),
            }),
            Values::Other(array) => Values::Other(array.slice(start, len)),
        };
        Vector { values, valid: None }.with_valid(self.valid.as_ref().map(|valid| valid.slice(start, len)))
    }

    /// Columns of one type one after the other. Panics on none.
    pub fn concat(parts: &[&Vector]) -> Result<Vector> {
        fn joined<T: Copy>(parts: &[&Vector], of: impl Fn(&Vector) -> Result<&[T]>) -> Result<Vec<T>> {
            let mut all = room::of_capacity(parts.iter().map(|part| part.len()).sum())?;
            for part in parts {
                all.extend_from_slice(of(part)?);
            }
            Ok(all)
        }
        let values = match &parts[0].values {
            Values::Int(_) => Values::Int(joined(parts, Vector::as_ints)?.into()),
            Values::Wide(_) => Values::Wide(joined(parts, Vector::as_wide)?.into()),
            Values::Float(_) => Values::Float(joined(parts, Vector::as_floats)?.into()),
            Values::Bool(_) => {
                let masks = parts.iter().map(|part| part.as_bools()).collect::<Result<Vec<_>>>()?;
                Values::Bool(Mask::concat(&masks))
            }
            Values::Text(_) => {
                let values = joined(parts, |part| part.as_texts().map(Texts::values))?;
                let mut owners = Owners::default();
                for part in parts {
                    owners.join(&part.as_texts()?.owners);
                }
                Values::Text(Texts { values: Arc::new(values), owners })
            }
            Values::Other(_) => {
                let arrays = parts.iter().map(|part| match &part.values {
                    Values::Other(array) => Ok(array.as_ref()),
                    _ => Err(mixed("like its other part")),
                });
                let arrays = arrays.collect::<Result<Vec<_>>>()?;
                let all = arrow_select::concat::concat(&arrays);
                Values::Other(all.map_err(|error| Error::internal(error.to_string()))?)
            }
        };
        let valid = parts.iter().any(|part| part.valid.is_some()).then(|| {
            let masks: Vec<Mask> =
                parts.iter().map(|part| part.valid.clone().unwrap_or_else(|| Mask::all(part.len()))).collect();
            Mask::concat(&masks.iter().collect::<Vec<_>>())
        });
        Ok(Vector { values, valid: None }.with_valid(valid))
    }

    /// An Arrow array of the type's, whose text need not be in views. Decimals of class `Int` may come as `Int64`
    /// (unscaled), and so may any other of that class.
    pub fn from_arrow(array: &ArrayRef, of: &ColumnType) -> Result<Vector> {
        fn widened<T: ArrowPrimitiveType>(array: &ArrayRef) -> Values
        where
            T::Native: Into<i64>,
        {
            Values::Int(array.as_primitive::<T>().values().iter().map(|value| (*value).into()).collect())
        }
        let valid = Mask::valid_from_arrow(array.logical_nulls().as_ref());
        let values = match (of.class(), array.data_type()) {
            (Class::Other, _) => Values::Other(Arc::clone(array)),
            (Class::Int, DataType::Int64) => Values::Int(array.as_primitive::<Int64Type>().values().clone()),
            (Class::Int, DataType::Int32) => widened::<Int32Type>(array),
            (Class::Int, DataType::Date32) => widened::<Date32Type>(array),
            (Class::Int, DataType::Int16) => widened::<Int16Type>(array),
            (Class::Int, DataType::Int8) => widened::<Int8Type>(array),
            (Class::Int, DataType::UInt8) => widened::<UInt8Type>(array),
            (Class::Int, DataType::UInt16) => widened::<UInt16Type>(array),
            (Class::Int, DataType::UInt32) => widened::<UInt32Type>(array),
            (Class::Int, DataType::UInt64) => {
                Values::Int(array.as_primitive::<UInt64Type>().values().iter().map(|value| *value as i64).collect())
            }
            (Class::Int, DataType::Timestamp(TimeUnit::Microsecond, _)) => {
                Values::Int(array.as_primitive::<TimestampMicrosecondType>().values().clone())
            }
            (Class::Int, DataType::Decimal128(..)) => {
                Values::Int(array.as_primitive::<Decimal128Type>().values().iter().map(|value| *value as i64).collect())
            }
            (Class::Wide, DataType::Decimal128(..)) => {
                Values::Wide(array.as_primitive::<Decimal128Type>().values().clone())
            }
            (Class::Wide, DataType::Int64) => {
                Values::Wide(array.as_primitive::<Int64Type>().values().iter().map(|value| (*value).into()).collect())
            }
            (Class::Float, DataType::Float64) => Values::Float(array.as_primitive::<Float64Type>().values().clone()),
            (Class::Float, DataType::Float32) => Values::Float(
                array.as_primitive::<Float32Type>().values().iter().map(|value| (*value).into()).collect(),
            ),
            (Class::Bool, DataType::Boolean) => Values::Bool(Mask::from_arrow(array.as_boolean().values())),
            (Class::Text, _) => Values::Text(texts_of(array)?),
            (_, other) => return Err(Error::internal(format!("an array of {other} for a column of {}", of.data_type))),
        };
        Ok(Vector { values, valid })
    }

    /// As an Arrow array of the type's.
    pub fn to_arrow(&self, of: &ColumnType) -> Result<ArrayRef> {
        let nulls = self.valid.as_ref().map(|valid| NullBuffer::new(valid.to_arrow()));
        fn narrowed<T: ArrowPrimitiveType>(
            values: &[i64],
            nulls: Option<NullBuffer>,
            narrow: impl Fn(i64) -> T::Native,
        ) -> ArrayRef {
            let values: Vec<T::Native> = values.iter().map(|value| narrow(*value)).collect();
            Arc::new(PrimitiveArray::<T>::new(values.into(), nulls))
        }
        if let (Some(dictionary), Values::Int(codes)) = (&of.dictionary, &self.values) {
            let value = |row: usize| self.is_valid(row).then(|| dictionary.bytes(codes[row]));
            return text_array((0..codes.len()).map(value), &of.data_type);
        }
        Ok(match (&self.values, &of.data_type) {
            (Values::Other(array), _) => Arc::clone(array),
            (Values::Int(values), DataType::Int8) => narrowed::<Int8Type>(values, nulls, |value| value as i8),
            (Values::Int(values), DataType::Int16) => narrowed::<Int16Type>(values, nulls, |value| value as i16),
            (Values::Int(values), DataType::Int32) => narrowed::<Int32Type>(values, nulls, |value| value as i32),
            (Values::Int(values), DataType::Date32) => narrowed::<Date32Type>(values, nulls, |value| value as i32),
            (Values::Int(values), DataType::UInt8) => narrowed::<UInt8Type>(values, nulls, |value| value as u8),
            (Values::Int(values), DataType::UInt16) => narrowed::<UInt16Type>(values, nulls, |value| value as u16),
            (Values::Int(values), DataType::UInt32) => narrowed::<UInt32Type>(values, nulls, |value| value as u32),
            (Values::Int(values), DataType::UInt64) => narrowed::<UInt64Type>(values, nulls, |value| value as u64),
            (Values::Int(values), DataType::Int64) => Arc::new(PrimitiveArray::<Int64Type>::new(values.clone(), nulls)),
            (Values::Int(values), DataType::Timestamp(TimeUnit::Microsecond, zone)) => Arc::new(
                PrimitiveArray::<TimestampMicrosecondType>::new(values.clone(), nulls).with_timezone_opt(zone.clone()),
            ),
            (Values::Int(values), DataType::Decimal128(..)) => {
                let values: Vec<i128> = values.iter().map(|value| (*value).into()).collect();
                let array = PrimitiveArray::<Decimal128Type>::new(values.into(), nulls);
                Arc::new(array.with_data_type(of.data_type.clone()))
            }
            (Values::Wide(values), DataType::Decimal128(..)) => {
                let array = PrimitiveArray::<Decimal128Type>::new(values.clone(), nulls);
                Arc::new(array.with_data_type(of.data_type.clone()))
            }
            (Values::Float(values), DataType::Float64) => {
                Arc::new(PrimitiveArray::<Float64Type>::new(values.clone(), nulls))
            }
            (Values::Float(values), DataType::Float32) => {
                let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
                Arc::new(PrimitiveArray::<Float32Type>::new(values.into(), nulls))
            }
            (Values::Bool(values), DataType::Boolean) => Arc::new(BooleanArray::new(values.to_arrow(), nulls)),
            (Values::Text(texts), data_type) => {
                let value = |row: usize| self.is_valid(row).then(|| texts.bytes(row));
                text_array((0..texts.values.len()).map(value), data_type)?
            }
            (values, other) => {
                return Err(Error::internal(format!("a column of {:?} is not one of {other}", values.class())));
            }
        })
    }
}

fn text_array<'a>(values: impl Iterator<Item = Option<&'a [u8]>>, data_type: &DataType) -> Result<ArrayRef> {
    Ok(match data_type {
        DataType::Utf8View => {
            let mut builder = StringViewBuilder::new();
            for value in values {
                // SAFETY: a column of text has nothing but text.
                builder.append_option(value.map(|value| unsafe { std::str::from_utf8_unchecked(value) }));
            }
            Arc::new(builder.finish())
        }
        DataType::BinaryView => {
            let mut builder = BinaryViewBuilder::new();
            values.for_each(|value| builder.append_option(value));
            Arc::new(builder.finish())
        }
        DataType::Utf8 => {
            let mut builder = arrow_array::builder::StringBuilder::new();
            for value in values {
                // SAFETY: as above.
                builder.append_option(value.map(|value| unsafe { std::str::from_utf8_unchecked(value) }));
            }
            Arc::new(builder.finish())
        }
        DataType::Binary => {
            let mut builder = arrow_array::builder::BinaryBuilder::new();
            values.for_each(|value| builder.append_option(value));
            Arc::new(builder.finish())
        }
        other => return Err(Error::internal(format!("text as {other}"))),
    })
}

fn texts_of(array: &ArrayRef) -> Result<Texts> {
    let of_views = |views: &[u128], buffers: &[arrow_buffer::Buffer]| {
        let text = |view: &u128| {
            let (bytes, len) = (view.to_le_bytes(), *view as u32 as usize);
            if len <= crate::text::INLINE_MAX {
                Text::short(&bytes[4..4 + len])
            } else {
                let (buffer, offset) = ((*view >> 64) as u32 as usize, (*view >> 96) as usize);
                // SAFETY: the array's buffers become the value's owners just below.
                unsafe { Text::new(&buffers[buffer][offset..offset + len]) }
            }
        };
        // Of a NULL, the view may be anything.
        let values: Vec<Text> = match array.nulls() {
            Some(nulls) => {
                let of = |(row, view)| if nulls.is_valid(row) { text(view) } else { Text::EMPTY };
                views.iter().enumerate().map(of).collect()
            }
            None => views.iter().map(text).collect(),
        };
        let owners = if values.iter().all(Text::is_short) { Vec::new() } else { buffers.to_vec() };
        Texts { values: Arc::new(values), owners: Owners::of(owners) }
    };
    fn of_slices<'a>(values: impl Iterator<Item = Option<&'a [u8]>>, buffer: &arrow_buffer::Buffer) -> Texts {
        // SAFETY: the array's buffer of values becomes their owner.
        let values = values.map(|value| value.map_or(Text::EMPTY, |value| unsafe { Text::new(value) })).collect();
        Texts { values: Arc::new(values), owners: Owners::of(vec![buffer.clone()]) }
    }
    Ok(match array.data_type() {
        DataType::Utf8View => {
            let array = array.as_string_view();
            of_views(array.views(), array.data_buffers())
        }
        DataType::BinaryView => {
            let array = array.as_binary_view();
            of_views(array.views(), array.data_buffers())
        }
        DataType::Utf8 => {
            let array = array.as_string::<i32>();
            of_slices(array.iter().map(|value| value.map(str::as_bytes)), array.values())
        }
        DataType::Binary => {
            let array = array.as_binary::<i32>();
            of_slices(array.iter(), array.values())
        }
        other => return Err(Error::internal(format!("text as {other}"))),
    })
}

impl Chunk {
    pub fn new(rows: usize, columns: Vec<Vector>) -> Chunk {
        debug_assert!(columns.iter().all(|column| column.len() == rows));
        Chunk { rows, columns }
    }

    /// Bytes of its columns' values, without what long texts lie in.
    pub fn bytes(&self) -> usize {
        self.columns.iter().map(Vector::bytes).sum()
    }

    /// Some rows, in that order.
    pub fn gather(&self, rows: &[u32]) -> Result<Chunk> {
        let columns = self.columns.iter().map(|column| column.gather(rows)).collect::<Result<Vec<_>>>()?;
        Ok(Chunk { rows: rows.len(), columns })
    }

    pub fn slice(&self, start: usize, len: usize) -> Chunk {
        Chunk { rows: len, columns: self.columns.iter().map(|column| column.slice(start, len)).collect() }
    }

    /// Chunks of the same columns one after the other. Panics on none.
    pub fn concat(parts: &[Chunk]) -> Result<Chunk> {
        let column = |index: usize| Vector::concat(&parts.iter().map(|part| &part.columns[index]).collect::<Vec<_>>());
        let columns = (0..parts[0].columns.len()).map(column).collect::<Result<_>>()?;
        Ok(Chunk { rows: parts.iter().map(|part| part.rows).sum(), columns })
    }

    /// Some rows of it alone; the same chunk when all of them pass.
    pub fn keep(self, rows: &Mask) -> Result<Chunk> {
        if rows.is_all() { Ok(self) } else { self.gather(&rows.positions()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{Date32Array, Decimal128Array, Float32Array, Int32Array, StringArray, StringViewArray};

    #[test]
    fn arrow_goes_in_and_out() {
        let long = "a text of more than twelve bytes";
        let arrays: Vec<ArrayRef> = vec![
            Arc::new(Int32Array::from(vec![Some(1), None, Some(-3), Some(i32::MAX)])),
            Arc::new(Date32Array::from(vec![Some(0), Some(-1), None, Some(9000)])),
            Arc::new(
                Decimal128Array::from(vec![Some(5), None, Some(7), Some(-8)]).with_precision_and_scale(12, 2).unwrap(),
            ),
            Arc::new(
                Decimal128Array::from(vec![Some(i128::MAX / 2), None, Some(7), Some(-8)])
                    .with_precision_and_scale(38, 2)
                    .unwrap(),
            ),
            Arc::new(Float32Array::from(vec![Some(0.1), None, Some(f32::MAX), Some(-0.0)])),
            Arc::new(BooleanArray::from(vec![Some(true), None, Some(false), Some(true)])),
            Arc::new(StringViewArray::from(vec![Some("x"), None, Some(long), Some("")])),
            Arc::new(StringArray::from(vec![Some("x"), None, Some(long), Some("")])),
        ];
        for array in arrays {
            let of = ColumnType::new(array.data_type().clone(), true);
            let vector = Vector::from_arrow(&array, &of).unwrap();
            assert_eq!(vector.values.class(), of.class());
            assert_eq!(&vector.to_arrow(&of).unwrap(), &array);
            let rows = [3, 0, 0, 1];
            let taken = arrow_select::take::take(array.as_ref(), &UInt32Array::from(rows.to_vec()), None).unwrap();
            assert_eq!(&vector.gather(&rows).unwrap().to_arrow(&of).unwrap(), &taken);
            assert_eq!(&vector.slice(1, 2).to_arrow(&of).unwrap(), &array.slice(1, 2));
            let twice = Vector::concat(&[&vector, &vector.slice(1, 3)]).unwrap().to_arrow(&of).unwrap();
            assert_eq!(&twice.slice(0, 4), &array);
            assert_eq!(&twice.slice(4, 3), &array.slice(1, 3));
            assert_eq!(Vector::nulls(&of, 3).to_arrow(&of).unwrap().null_count(), 3);
        }
    }
}
