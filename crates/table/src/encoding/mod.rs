//! Encodings: how a segment's values are written, and read by range, by row, and by condition.
//!
//! Every encoding has the same shape: `write` puts it into a blob; `read` takes it out of one and checks its structure;
//! `check` looks at what only decoding can tell (needed for a blob from elsewhere); `gather` decodes a range of rows or a
//! list of them. Conditions on integers are evaluated on the packed form (`ints`), on dictionaries once an entry.
//!
//! | encoding | holds | as |
//! | --- | --- | --- |
//! | [`Ints`] | integers, dates, timestamps, booleans, decimals that fit 64 bits | the best form of integers |
//! | [`Dictionary`] | anything with few distinct values, constants included | sorted values, and codes as [`Ints`] |
//! | [`ScaledFloats`] | floats that are short decimals | [`Ints`] over a power of ten, and exceptions |
//! | [`Fsst`] | text | FSST codes; compressed and plain lengths as [`Ints`] |
//! | [`Strings`] | text that does not compress, bytea | lengths as [`Ints`], and the bytes, handed out in place |
//! | [`Uuids`] | canonical uuid text | 16 bytes each |
//! | [`Plain`] | floats, wide decimals, intervals | as they lie in Arrow |

mod choose;
mod dictionary;
mod fsst;
pub(crate) mod ints;
pub(crate) mod packing;
mod plain;
mod scaled;
mod single;
mod strings;
pub(crate) mod uuid;
mod validity;

pub(crate) use choose::{Column, write};
pub(crate) use dictionary::Dictionary;
pub(crate) use fsst::Fsst;
pub(crate) use ints::{IntTest, Ints, Keys};
pub(crate) use plain::Plain;
pub(crate) use scaled::ScaledFloats;
pub(crate) use strings::Strings;
pub(crate) use uuid::Uuids;
pub(crate) use validity::Validity;

use crate::blob::{Blob, TreeReader};
use crate::logical::Logical;
use crate::schema::NUMERIC_WIDTH;
use arrow_array::builder::BooleanBufferBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type,
    IntervalMonthDayNano, IntervalMonthDayNanoType, TimestampMicrosecondType,
};
use arrow_array::{
    Array, ArrayRef, BinaryViewArray, BooleanArray, FixedSizeBinaryArray, PrimitiveArray, StringViewArray,
};
use arrow_buffer::{Buffer, NullBuffer, ScalarBuffer};
use ints::FromInt;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use tidepool_base::{Error, NUMERIC_BYTES, Result};

/// How a segment's values are held, by the name that views show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EncodingKind {
    Constant,
    RunLength,
    FrameOfReference,
    Delta,
    Dictionary,
    /// Dictionary codes in runs.
    DictionaryRunLength,
    /// Floats as integers over a power of ten.
    DecimalFloat,
    Fsst,
    Uuid,
    Plain,
}

impl EncodingKind {
    pub fn name(self) -> &'static str {
        match self {
            EncodingKind::Constant => "constant",
            EncodingKind::RunLength => "run length",
            EncodingKind::FrameOfReference => "frame of reference",
            EncodingKind::Delta => "delta",
            EncodingKind::Dictionary => "dictionary",
            EncodingKind::DictionaryRunLength => "dictionary, run length",
            EncodingKind::DecimalFloat => "decimal float",
            EncodingKind::Fsst => "fsst",
            EncodingKind::Uuid => "uuid",
            EncodingKind::Plain => "plain",
        }
    }
}

impl fmt::Display for EncodingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which rows to decode.
#[derive(Clone, Debug)]
pub(crate) enum Rows<'a> {
    Range(Range<usize>),
    /// Ascending.
    List(&'a [u32]),
}

impl Rows<'_> {
    pub fn len(&self) -> usize {
        match self {
            Rows::Range(range) => range.len(),
            Rows::List(rows) => rows.len(),
        }
    }

    /// From the first to the last, if an eighth of what lies between is among them.
    pub fn dense(&self) -> Option<Range<usize>> {
        match self {
            Rows::Range(range) => Some(range.clone()),
            Rows::List(rows) => {
                let (first, last) = (*rows.first()? as usize, *rows.last()? as usize);
                (rows.len() * 8 > last - first).then_some(first..last + 1)
            }
        }
    }
}

impl Ints {
    pub fn gather_into<T: FromInt>(&self, blob: &Blob, rows: &Rows<'_>, out: &mut Vec<T>) {
        match rows {
            Rows::Range(range) => self.decode_into(blob, range.clone(), out),
            Rows::List(rows) => self.take_into(blob, rows, out),
        }
    }

    fn gather<T: FromInt>(&self, blob: &Blob, rows: &Rows<'_>) -> Vec<T> {
        let mut out = Vec::with_capacity(rows.len());
        self.gather_into(blob, rows, &mut out);
        out
    }
}

#[derive(Debug)]
pub(crate) enum Payload {
    Ints(Ints),
    Dictionary(Dictionary),
    ScaledFloats(ScaledFloats),
    Fsst(Fsst),
    Strings(Strings),
    Uuids(Uuids),
    Plain(Plain),
}

const TAG_INTS: u8 = 0;
const TAG_DICTIONARY: u8 = 1;
const TAG_SCALED_FLOATS: u8 = 2;
const TAG_FSST: u8 = 3;
const TAG_STRINGS: u8 = 4;
const TAG_UUIDS: u8 = 5;
const TAG_PLAIN: u8 = 6;

/// Text and bytes as views and the buffers that they point into.
pub(crate) struct Views {
    pub views: Vec<u128>,
    pub buffers: Vec<Buffer>,
}

impl Payload {
    pub fn read(reader: &mut TreeReader<'_>, blob: &[u8], rows: usize, logical: Logical) -> Result<Payload> {
        let payload = match reader.u8()? {
            TAG_INTS => Payload::Ints(Ints::read(reader, blob, rows)?),
            TAG_DICTIONARY => Payload::Dictionary(Dictionary::read(reader, blob, rows, logical)?),
            TAG_SCALED_FLOATS => Payload::ScaledFloats(ScaledFloats::read(reader, blob, rows)?),
            TAG_FSST => Payload::Fsst(Fsst::read(reader, blob, rows)?),
            TAG_STRINGS => Payload::Strings(Strings::read(reader, blob, rows)?),
            TAG_UUIDS => Payload::Uuids(Uuids::read(reader, rows)?),
            TAG_PLAIN => Payload::Plain(Plain::read(reader, rows, logical)?),
            _ => return Err(Error::corrupted("segment has an unknown encoding")),
        };
        let fits = match &payload {
            Payload::Ints(_) => logical.is_int() || matches!(logical, Logical::Decimal { .. }),
            Payload::ScaledFloats(_) => logical.is_float(),
            Payload::Fsst(_) | Payload::Strings(_) => logical.is_bytes(),
            Payload::Uuids(_) => logical == Logical::Text,
            // These two chose their values' type by the logical one.
            Payload::Dictionary(_) | Payload::Plain(_) => true,
        };
        if fits { Ok(payload) } else { Err(Error::corrupted("segment's encoding does not fit its type")) }
    }

    /// Rows of a block that are read one by one, at most: for more, or for one of an encoding that goes from value to value, all of
    /// the block is.
    pub fn singles_max(&self) -> usize {
        match self {
            Payload::Ints(ints) => ints.singles_max(),
            Payload::Dictionary(dictionary) => dictionary.codes().singles_max(),
            _ => usize::MAX,
        }
    }

    /// Asks the processor to fetch what a block of rows is read from, where that is known without looking.
    #[inline]
    pub fn prefetch(&self, blob: &Blob, block: usize) {
        match self {
            Payload::Ints(ints) => ints.prefetch(blob, block),
            Payload::Dictionary(dictionary) => dictionary.codes().prefetch(blob, block),
            Payload::ScaledFloats(scaled) => scaled.prefetch(blob, block),
            Payload::Fsst(_) | Payload::Strings(_) | Payload::Uuids(_) | Payload::Plain(_) => {}
        }
    }

    /// What only decoding can tell: XX001 when some row would decode to nonsense.
    pub fn check(&self, blob: &Arc<Blob>, rows: usize, logical: Logical) -> Result<()> {
        match self {
            Payload::Ints(ints) => ints.check(blob, rows, logical.int_bounds()),
            Payload::Dictionary(dictionary) => dictionary.check(blob, rows, logical),
            Payload::ScaledFloats(scaled) => scaled.check(blob, rows),
            Payload::Fsst(fsst) => fsst.check(blob, rows, logical),
            Payload::Strings(strings) => strings.check(blob, rows, logical),
            Payload::Uuids(_) | Payload::Plain(_) => Ok(()),
        }
    }

    pub fn kind(&self) -> EncodingKind {
        match self {
            Payload::Ints(Ints::Constant(_)) => EncodingKind::Constant,
            Payload::Ints(Ints::Plain { .. }) => EncodingKind::Plain,
            Payload::Ints(Ints::Frame(_) | Ints::Identity) => EncodingKind::FrameOfReference,
            Payload::Ints(Ints::Delta(_)) => EncodingKind::Delta,
            Payload::Ints(Ints::RunLength(_)) => EncodingKind::RunLength,
            Payload::Dictionary(dictionary) => match dictionary.codes() {
                Ints::Constant(_) => EncodingKind::Constant,
                Ints::RunLength(_) => EncodingKind::DictionaryRunLength,
                _ => EncodingKind::Dictionary,
            },
            Payload::ScaledFloats(_) => EncodingKind::DecimalFloat,
            Payload::Fsst(_) => EncodingKind::Fsst,
            Payload::Uuids(_) => EncodingKind::Uuid,
            Payload::Strings(_) | Payload::Plain(_) => EncodingKind::Plain,
        }
    }

    /// Bytes that are read once a segment whatever rows are wanted, and those that the rows share.
    pub fn bytes(&self) -> (usize, usize) {
        match self {
            Payload::Ints(ints) => (0, ints.bytes()),
            Payload::Dictionary(dictionary) => (dictionary.value_bytes(), dictionary.codes().bytes()),
            Payload::ScaledFloats(scaled) => (0, scaled.bytes()),
            Payload::Fsst(fsst) => (0, fsst.bytes()),
            Payload::Strings(strings) => (0, strings.bytes()),
            Payload::Uuids(uuids) => (0, uuids.bytes()),
            Payload::Plain(plain) => (0, plain.bytes()),
        }
    }

    /// Decodes rows into Arrow.
    pub fn gather(
        &self,
        blob: &Arc<Blob>,
        rows: &Rows<'_>,
        logical: Logical,
        nulls: Option<NullBuffer>,
    ) -> Result<ArrayRef> {
        Ok(match logical {
            Logical::Boolean => {
                let bytes: Vec<u8> = self.ints(blob, rows)?;
                let mut bits = BooleanBufferBuilder::new(0);
                let words: Vec<u64> = bytes.chunks(64).map(crate::bits::word_of).collect();
                bits.append_packed_range(0..bytes.len(), crate::blob::bytes_of(&words));
                Arc::new(BooleanArray::new(bits.finish(), nulls))
            }
            Logical::Int16 => primitive::<Int16Type>(self.ints(blob, rows)?, nulls),
            Logical::Int32 => primitive::<Int32Type>(self.ints(blob, rows)?, nulls),
            Logical::Int64 => primitive::<Int64Type>(self.ints(blob, rows)?, nulls),
            Logical::Date => primitive::<Date32Type>(self.ints(blob, rows)?, nulls),
            Logical::Timestamp => primitive::<TimestampMicrosecondType>(self.ints(blob, rows)?, nulls),
            Logical::TimestampTz => Arc::new(
                PrimitiveArray::<TimestampMicrosecondType>::new(self.ints::<i64>(blob, rows)?.into(), nulls)
                    .with_timezone("UTC"),
            ),
            Logical::Float32 => primitive::<Float32Type>(self.floats(blob, rows)?, nulls),
            Logical::Float64 => primitive::<Float64Type>(self.floats(blob, rows)?, nulls),
            Logical::Decimal { .. } => Arc::new(
                PrimitiveArray::<Decimal128Type>::new(self.wide(blob, rows)?.into(), nulls)
                    .with_data_type(logical.data_type()),
            ),
            Logical::Interval => {
                let values = self.wide(blob, rows)?.into_iter().map(interval_of).collect::<Vec<_>>();
                primitive::<IntervalMonthDayNanoType>(values, nulls)
            }
            Logical::Text | Logical::Bytes | Logical::Numeric => {
                let Views { views, buffers } = self.views(blob, rows)?;
                let views = ScalarBuffer::from(views);
                if logical == Logical::Text {
                    // SAFETY: every encoding of text hands out views within its buffers, and text was valid when it was
                    // encoded, or was checked when the segment was loaded.
                    Arc::new(unsafe { StringViewArray::new_unchecked(views, buffers, nulls) })
                } else {
                    // SAFETY: as above, without a demand on the bytes.
                    let bytes = unsafe { BinaryViewArray::new_unchecked(views, buffers, nulls) };
                    if logical == Logical::Numeric { Arc::new(numerics(&bytes)?) } else { Arc::new(bytes) }
                }
            }
        })
    }

    /// Integers of any type, and decimals that are known to fit, as 64 bits.
    pub fn narrow(&self, blob: &Blob, rows: &Rows<'_>) -> Result<Vec<i64>> {
        match self {
            Payload::Dictionary(dictionary) if dictionary.is_wide() => dictionary.narrow(blob, rows),
            Payload::Plain(plain) => Ok(plain.wide(blob, rows)?.into_iter().map(|value| value as i64).collect()),
            _ => self.ints(blob, rows),
        }
    }

    fn ints<T: FromInt>(&self, blob: &Blob, rows: &Rows<'_>) -> Result<Vec<T>> {
        match self {
            Payload::Ints(ints) => Ok(ints.gather(blob, rows)),
            Payload::Dictionary(dictionary) => dictionary.ints(blob, rows),
            _ => Err(mismatch()),
        }
    }

    fn wide(&self, blob: &Blob, rows: &Rows<'_>) -> Result<Vec<i128>> {
        match self {
            Payload::Ints(ints) => Ok(ints.gather(blob, rows)),
            Payload::Dictionary(dictionary) => dictionary.wide(blob, rows),
            Payload::Plain(plain) => plain.wide(blob, rows),
            _ => Err(mismatch()),
        }
    }

    fn floats<T: FromFloat>(&self, blob: &Blob, rows: &Rows<'_>) -> Result<Vec<T>> {
        match self {
            Payload::ScaledFloats(scaled) => Ok(scaled.gather(blob, rows)),
            Payload::Dictionary(dictionary) => dictionary.floats(blob, rows),
            Payload::Plain(plain) => plain.floats(blob, rows),
            _ => Err(mismatch()),
        }
    }

    fn views(&self, blob: &Arc<Blob>, rows: &Rows<'_>) -> Result<Views> {
        match self {
            Payload::Dictionary(dictionary) => dictionary.views(blob, rows),
            Payload::Fsst(fsst) => Ok(fsst.gather(blob, rows)),
            Payload::Strings(strings) => Ok(strings.gather(blob, rows)),
            Payload::Uuids(uuids) => Ok(uuids.gather(blob, rows)),
            _ => Err(mismatch()),
        }
    }
}

/// Byte strings as numbers, all of which have one width. The place of a NULL is stored empty, and whoever gathers without saying which
/// rows are NULL looks at no value of theirs.
fn numerics(bytes: &BinaryViewArray) -> Result<FixedSizeBinaryArray> {
    let mut values = Vec::with_capacity(bytes.len() * NUMERIC_BYTES);
    for value in bytes {
        match value {
            Some(value) if value.len() == NUMERIC_BYTES => values.extend_from_slice(value),
            Some([]) if bytes.nulls().is_none() => values.resize(values.len() + NUMERIC_BYTES, 0),
            Some(_) => return Err(Error::corrupted("a segment's numbers have a wrong width")),
            None => values.resize(values.len() + NUMERIC_BYTES, 0),
        }
    }
    FixedSizeBinaryArray::try_new(NUMERIC_WIDTH, Buffer::from_vec(values), bytes.nulls().cloned())
        .map_err(|error| Error::internal(error.to_string()))
}

pub(crate) fn primitive<T: ArrowPrimitiveType>(values: Vec<T::Native>, nulls: Option<NullBuffer>) -> ArrayRef {
    Arc::new(PrimitiveArray::<T>::new(values.into(), nulls))
}

/// An array of integers of any type, or of decimals that are known to fit, as 64 bits.
pub(crate) fn ints_of(array: &ArrayRef) -> Result<ArrayRef> {
    fn widened<T: ArrowPrimitiveType>(array: &ArrayRef, widen: impl Fn(T::Native) -> i64) -> ArrayRef {
        let array = array.as_primitive::<T>();
        let values: Vec<i64> = array.values().iter().map(|value| widen(*value)).collect();
        primitive::<Int64Type>(values, array.nulls().cloned())
    }
    Ok(match Logical::of(array.data_type())? {
        Logical::Int16 => widened::<Int16Type>(array, i64::from),
        Logical::Int32 => widened::<Int32Type>(array, i64::from),
        Logical::Int64 => Arc::clone(array),
        Logical::Date => widened::<Date32Type>(array, i64::from),
        Logical::Timestamp | Logical::TimestampTz => widened::<TimestampMicrosecondType>(array, |value| value),
        Logical::Decimal { .. } => widened::<Decimal128Type>(array, |value| value as i64),
        _ => return Err(mismatch()),
    })
}

/// `Payload::read` refuses an encoding that does not fit the type, so this is a broken invariant.
fn mismatch() -> Error {
    Error::internal("a segment's encoding does not fit its type")
}

/// What floats are decoded to.
pub(crate) trait FromFloat: Copy + 'static {
    fn from_float(value: f64) -> Self;
}
impl FromFloat for f64 {
    #[inline(always)]
    fn from_float(value: f64) -> f64 {
        value
    }
}
impl FromFloat for f32 {
    #[inline(always)]
    fn from_float(value: f64) -> f32 {
        value as f32
    }
}

/// An interval's three parts in one integer: months lowest, then days, then nanoseconds.
pub(crate) fn wide_of_interval(value: IntervalMonthDayNano) -> i128 {
    i128::from(value.nanoseconds) << 64 | i128::from(value.days as u32) << 32 | i128::from(value.months as u32)
}

pub(crate) fn interval_of(value: i128) -> IntervalMonthDayNano {
    IntervalMonthDayNano::new(value as i32, (value >> 32) as i32, (value >> 64) as i64)
}
