//! Segments: one column of one row group, encoded.

mod found;

pub use found::Origin;

use self::found::Found;
use crate::blob::{self, Blob, BlobWriter, Header, TreeReader};
use crate::encoding::{self, Column, EncodingKind, Payload, Rows, Validity, wide_of_interval};
use crate::logical::Logical;
use crate::scan::ColumnAccess;
use crate::sketch::{Sketch, hash_bytes, hash_i128, hash_u64};
use crate::statistics::{ColumnStatistics, Datum, float_key};
use crate::{ROW_GROUP_ROWS, sql_type_of_field};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type,
    IntervalMonthDayNanoType, TimestampMicrosecondType,
};
use arrow_array::{Array, ArrayRef};
use arrow_buffer::NullBuffer;
use arrow_schema::Field;
use std::ops::Range;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlType};
use tidepool_device::Access;
use tidepool_tablespace::{Claimed, PoolPlace, Purpose, Region, Tablespace};

/// One column of one row group: a self-describing blob in one region (header with magic, format version, checksum,
/// encoding, row count, statistics; then the encoded bytes). Valid at any address.
///
/// One that another process made is *opened*, its header and its tree being checked, at once, or when something of it is wanted
/// first; its contents are checked when a value is wanted first.
#[derive(Debug)]
pub struct Segment {
    state: State,
}

#[derive(Debug)]
enum State {
    /// This process made it, or has looked at all of it.
    Sound(Opened),
    Found(Found),
}

/// A segment whose header and tree are right.
#[derive(Debug)]
pub(crate) struct Opened {
    blob: Arc<Blob>,
    header: Header,
    logical: Logical,
    known: Box<Known>,
    validity: Validity,
    payload: Payload,
}

#[derive(Debug)]
struct Known {
    statistics: ColumnStatistics,
    sketch: Sketch,
}

/// Where a segment lies in its tablespace, and what tells that it is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentPlace {
    /// Bytes from the tablespace's first.
    pub offset: u64,
    pub len: u64,
    /// XXH3 of its header and its tree.
    pub head: u64,
}

/// A longer text is cut for a lower bound and gives no upper one.
const BOUND_BYTES_MAX: usize = 256;

impl Segment {
    /// Picks an encoding by the data and writes the blob into `tablespace`.
    pub fn encode(array: &ArrayRef, field: &Field, tablespace: &Arc<Tablespace>) -> Result<Segment> {
        let logical = Logical::of(field.data_type())?;
        if Logical::of(array.data_type())? != logical || array.len() > ROW_GROUP_ROWS {
            return Err(Error::internal(format!(
                "{} values of {} cannot be a segment of {}",
                array.len(),
                array.data_type(),
                field.data_type()
            )));
        }
        let blob = build(array, logical, sql_type_of_field(field) == SqlType::Uuid)?;
        Segment::store(&blob, tablespace)
    }

    /// Takes a blob that was read from elsewhere: checks magic, version, lengths and checksum (XX001 if any is off)
    /// and copies it into `tablespace`. Every row is looked at, so that no later read can go wrong.
    pub fn load(bytes: &[u8], field: &Field, tablespace: &Arc<Tablespace>) -> Result<Segment> {
        // In this order: a foreign file is told apart from a damaged one.
        blob::open(bytes)?;
        blob::verify_checksum(bytes)?;
        let opened = Opened::store(bytes, tablespace)?;
        if opened.logical != Logical::of(field.data_type())? {
            return Err(Error::corrupted(format!(
                "segment holds {}, not column \"{}\"",
                opened.logical.data_type(),
                field.name()
            )));
        }
        opened.payload.check(&opened.blob, opened.header.rows, opened.logical)?;
        Ok(Segment { state: State::Sound(opened) })
    }

    /// Takes a segment that an earlier process left in memory: `region` is at the place that was recorded. Its header and its
    /// tree are checked now; the rest when it is read first, so that attaching does not take longer for more rows. Then, if
    /// it is damaged, `origin`'s copy of `column` takes its place. XX001 when something else is there.
    pub fn attach(
        region: Region,
        place: &SegmentPlace,
        field: &Field,
        origin: &Arc<dyn Origin>,
        column: usize,
    ) -> Result<Segment> {
        let opened = Opened::attach(region, place.head, Logical::of(field.data_type())?)?;
        Ok(Segment { state: State::Found(Found::opened_at_once(opened, origin, column)) })
    }

    /// As `attach`, of a segment with so many rows in a pool; but nothing of it is touched before something of it is wanted. Where
    /// something else is there, `origin`'s copy takes its place then.
    pub fn attach_later(
        claimed: Claimed,
        head: u64,
        rows: usize,
        field: &Field,
        origin: &Arc<dyn Origin>,
        column: usize,
    ) -> Result<Segment> {
        let logical = Logical::of(field.data_type())?;
        Ok(Segment { state: State::Found(Found::opened_later(claimed, head, rows, logical, origin, column)) })
    }

    /// What may be read of it: it, unless it was found damaged. An error of its origin's when there is no other copy.
    #[inline]
    pub(crate) fn sound(&self) -> Result<&Opened> {
        match &self.state {
            State::Sound(opened) => Ok(opened),
            State::Found(found) => found.sound(),
        }
    }

    /// What says of its contents what its header and its tree say. They may be damaged. Errors as of `sound`.
    #[inline]
    pub(crate) fn opened(&self) -> Result<&Opened> {
        match &self.state {
            State::Sound(opened) => Ok(opened),
            State::Found(found) => found.opened(),
        }
    }

    /// What is read of it, as far as that is known. `None`: nothing of it was wanted yet.
    fn present(&self) -> Option<&Opened> {
        match &self.state {
            State::Sound(opened) => Some(opened),
            State::Found(found) => found.present(),
        }
    }

    /// Something of it was wanted: it takes memory of this process.
    pub fn is_open(&self) -> bool {
        self.present().is_some()
    }

    /// Where it lies. Errors as of `decode`.
    pub fn place(&self) -> Result<SegmentPlace> {
        let opened = self.opened()?;
        let head = blob::head_checksum(opened.bytes())?;
        let (offset, len) = opened.extent();
        Ok(SegmentPlace { offset, len: len as u64, head })
    }

    /// Where hosts of its pool find it, and what tells that it is there: the place of its bytes, and the XXH3 of its header and
    /// its tree. `None`: it lies in memory of this process alone.
    pub fn pool_place(&self) -> Result<Option<(PoolPlace, u64)>> {
        let Some(present) = self.present() else {
            let State::Found(found) = &self.state else { return Ok(None) };
            return Ok(found.claimed().map(|(place, head)| (place.clone(), head)));
        };
        let Some(place) = present.blob.region().pool_place() else { return Ok(None) };
        let place = PoolPlace { len: present.bytes().len() as u64, ..place };
        Ok(Some((place, blob::head_checksum(present.bytes())?)))
    }

    /// Its first byte, counted from the tablespace's, and its length. `None`: it was not mapped yet.
    pub fn extent(&self) -> Option<(u64, usize)> {
        self.present().map(Opened::extent)
    }

    /// Bytes that it takes, its header included.
    pub fn encoded_bytes(&self) -> u64 {
        match (self.present(), &self.state) {
            (Some(present), _) => present.bytes().len() as u64,
            (None, State::Found(found)) => found.claimed().map_or(0, |(place, _)| place.len),
            (None, State::Sound(_)) => 0,
        }
    }

    /// Makes it durable where its device outlives the machine.
    pub fn flush(&self) -> Result<()> {
        self.present().map_or(Ok(()), |present| present.blob.region().flush())
    }

    /// Some of it lies in memory that `space` is to give up.
    pub fn is_closing(&self, space: &Tablespace) -> bool {
        let is_closing = |opened: &Opened| space.is_closing(opened.blob.bytes());
        match &self.state {
            State::Sound(opened) => is_closing(opened),
            State::Found(found) => found.all().any(is_closing),
        }
    }

    /// The same bytes in another tablespace.
    pub fn copy_to(&self, tablespace: &Arc<Tablespace>) -> Result<Segment> {
        Segment::store(self.read_whole()?, tablespace)
    }

    fn store(bytes: &[u8], tablespace: &Arc<Tablespace>) -> Result<Segment> {
        Ok(Segment { state: State::Sound(Opened::store(bytes, tablespace)?) })
    }

    /// The whole blob, to be read from end to end: the tablespace's device is charged for it.
    pub fn read_whole(&self) -> Result<&[u8]> {
        self.sound().map(Opened::read_whole)
    }

    /// That of all its bytes, as it was written with them.
    pub(crate) fn checksum(&self) -> Result<u64> {
        self.opened().map(|opened| blob::written_checksum(opened.bytes()))
    }

    /// XX001 unless the bytes are a segment's, as they were written.
    pub fn check_bytes(bytes: &[u8]) -> Result<()> {
        blob::open(bytes)?;
        blob::verify_checksum(bytes)
    }

    /// Recomputes the checksum and looks at every row: XX001 when something is wrong.
    pub fn check(&self) -> Result<()> {
        let opened = self.sound()?;
        blob::verify_checksum(opened.read_whole())?;
        opened.payload.check(&opened.blob, opened.header.rows, opened.logical)
    }

    /// The one that it was made or found in.
    pub fn tablespace(&self) -> &Arc<Tablespace> {
        match &self.state {
            State::Sound(opened) => opened.tablespace(),
            State::Found(found) => found.tablespace(),
        }
    }

    pub fn rows(&self) -> usize {
        match &self.state {
            State::Sound(opened) => opened.rows(),
            State::Found(found) => found.rows(),
        }
    }

    pub fn encoding(&self) -> Result<EncodingKind> {
        let opened = self.opened()?;
        Ok(match opened.validity {
            Validity::AllNull => EncodingKind::Constant,
            _ => opened.payload.kind(),
        })
    }

    /// Bytes the same values take as plain Arrow.
    pub fn raw_bytes(&self) -> Result<u64> {
        self.opened().map(|opened| opened.header.raw_bytes)
    }

    pub fn statistics(&self) -> Result<&ColumnStatistics> {
        self.opened().map(Opened::statistics)
    }

    /// Vectorised decode of a row range. Panics if it reaches past the last row.
    pub fn decode(&self, rows: Range<usize>) -> Result<ArrayRef> {
        assert!(rows.start <= rows.end && rows.end <= self.rows(), "rows {rows:?} of {}", self.rows());
        self.sound()?.gather(&Rows::Range(rows))
    }

    /// Decode of chosen rows (ascending) without decoding their neighbours where the encoding allows. Panics if they do
    /// not ascend or one is past the last row.
    pub fn take(&self, rows: &[u32]) -> Result<ArrayRef> {
        assert!(rows.is_sorted(), "rows are taken in ascending order");
        assert!(rows.last().is_none_or(|row| (*row as usize) < self.rows()));
        self.sound()?.gather(&Rows::List(rows))
    }

    /// Texts by code, if it has a dictionary of text.
    pub(crate) fn dictionary_texts(&self) -> Result<Option<Vec<&[u8]>>> {
        let Opened { validity, payload, blob, logical, .. } = self.sound()?;
        Ok(match (validity, payload) {
            (Validity::AllNull, _) => Some(Vec::new()),
            (_, Payload::Dictionary(dictionary)) if logical.is_bytes() => {
                Some((0..dictionary.len()).map(|code| dictionary.string(blob, code)).collect())
            }
            _ => None,
        })
    }

    /// How many values its dictionary of text has, if it has one.
    pub(crate) fn dictionary_len(&self) -> Result<Option<usize>> {
        let Opened { validity, payload, logical, .. } = self.opened()?;
        Ok(match (validity, payload) {
            (Validity::AllNull, _) => Some(0),
            (_, Payload::Dictionary(dictionary)) if logical.is_bytes() => Some(dictionary.len()),
            _ => None,
        })
    }

    /// The value of one row; `None` for NULL. Panics if it is past the last row.
    pub fn value(&self, row: usize) -> Result<Option<Datum>> {
        let Opened { validity, payload, blob, header, logical, .. } = self.sound()?;
        assert!(row < header.rows, "row {row} of {}", header.rows);
        if !validity.is_valid(blob, row) {
            return Ok(None);
        }
        let array = payload.gather(blob, &Rows::List(&[row as u32]), *logical, None)?;
        datum_at(&array, 0, *logical)
    }
}

impl Opened {
    fn new(blob: Arc<Blob>) -> Result<Opened> {
        let (header, mut reader) = blob::open(blob.bytes())?;
        let logical = logical_of(header.logical_type)?;
        let known = Box::new(read_statistics(&mut reader, &header, logical)?);
        let validity = Validity::read(&mut reader, blob.bytes(), header.rows, header.null_count)?;
        let payload = Payload::read(&mut reader, blob.bytes(), header.rows, logical)?;
        reader.end()?;
        Ok(Opened { header, logical, known, validity, payload, blob })
    }

    fn store(bytes: &[u8], tablespace: &Arc<Tablespace>) -> Result<Opened> {
        let mut region = tablespace.allocate(bytes.len(), Purpose::Main)?;
        region[..bytes.len()].copy_from_slice(bytes);
        region.publish();
        tablespace.charge(Purpose::Main, &[Access::write_sequential(bytes.len() as u64)]);
        Opened::new(Blob::new(region, bytes.len())?)
    }

    /// XX001 unless the segment with this head is there.
    fn attach(region: Region, head: u64, logical: Logical) -> Result<Opened> {
        if blob::head_checksum(&region)? != head {
            return Err(Error::corrupted("another segment is there"));
        }
        let len = region.len();
        let opened = Opened::new(Blob::new(region, len)?)?;
        if opened.logical != logical {
            return Err(Error::corrupted("a segment of another type is there"));
        }
        Ok(opened)
    }

    fn check_contents(&self) -> Result<()> {
        blob::verify_checksum(self.bytes())?;
        self.payload.check(&self.blob, self.header.rows, self.logical)
    }

    /// All bytes, to be read from end to end.
    fn read_whole(&self) -> &[u8] {
        self.tablespace().charge(Purpose::Main, &[Access::read_sequential(self.bytes().len() as u64)]);
        self.tablespace().about_to_read(self.bytes());
        self.bytes()
    }

    fn extent(&self) -> (u64, usize) {
        (self.blob.region().offset(), self.bytes().len())
    }

    /// The whole blob, header included.
    pub fn bytes(&self) -> &[u8] {
        self.blob.bytes()
    }

    #[inline]
    pub fn tablespace(&self) -> &Arc<Tablespace> {
        self.blob.region().tablespace()
    }

    /// Says that these rows' values are about to be read, for memory that brings them then. They lie about where their share
    /// of the rows is: what does not is brought when it is touched.
    #[inline]
    pub fn about_to_read(&self, rows: Range<usize>) {
        let bytes = self.bytes();
        let share = |row: usize| (bytes.len() as u128 * row as u128 / self.header.rows.max(1) as u128) as usize;
        let bytes = &raw const bytes[share(rows.start)..share(rows.end.min(self.header.rows))];
        self.tablespace().about_to_read(bytes);
    }

    #[inline]
    pub fn rows(&self) -> usize {
        self.header.rows
    }

    pub fn statistics(&self) -> &ColumnStatistics {
        &self.known.statistics
    }

    pub fn sketch(&self) -> &Sketch {
        &self.known.sketch
    }

    #[inline]
    pub fn blob(&self) -> &Arc<Blob> {
        &self.blob
    }

    #[inline]
    pub fn payload(&self) -> &Payload {
        &self.payload
    }

    #[inline]
    pub fn validity(&self) -> &Validity {
        &self.validity
    }

    pub fn logical(&self) -> Logical {
        self.logical
    }

    pub fn gather(&self, rows: &Rows<'_>) -> Result<ArrayRef> {
        let Opened { validity, payload, blob, .. } = self;
        payload.gather(blob, rows, self.logical, validity.gather(blob, rows))
    }

    /// Integers of any type, and decimals that are known to fit, as an array of `Int64`.
    pub fn gather_ints(&self, rows: &Rows<'_>) -> Result<ArrayRef> {
        let Opened { validity, payload, blob, .. } = self;
        Ok(encoding::primitive::<Int64Type>(payload.narrow(blob, rows)?, validity.gather(blob, rows)))
    }

    /// Codes of text in a larger dictionary, given that of each code here.
    pub fn gather_codes(&self, rows: &Rows<'_>, map: &[i64]) -> Result<ArrayRef> {
        let Opened { validity, payload, blob, .. } = self;
        if let Validity::AllNull = validity {
            return Ok(encoding::primitive::<Int64Type>(vec![0; rows.len()], validity.gather(blob, rows)));
        }
        let Payload::Dictionary(dictionary) = payload else {
            return Err(Error::internal("codes of a segment without a dictionary were asked for"));
        };
        let mut codes: Vec<i64> = Vec::with_capacity(rows.len());
        dictionary.codes().gather_into(blob, rows, &mut codes);
        let within = |code: &i64| map.get(*code as usize).copied();
        for code in &mut codes {
            *code = within(code).ok_or_else(|| Error::internal("a code outside of its dictionary"))?;
        }
        Ok(encoding::primitive::<Int64Type>(codes, validity.gather(blob, rows)))
    }

    /// Charges for the read of one value, where the segment's tablespace is paced.
    #[inline]
    pub fn charge_one(&self) {
        if self.tablespace().pacer().is_some() {
            self.tablespace().spend(Purpose::Main, &[ColumnAccess::random(1)]);
        }
    }
}

/// The value of a row that is not NULL; `None` for an interval, which has no order and so no datum.
pub(crate) fn datum_at(array: &ArrayRef, row: usize, logical: Logical) -> Result<Option<Datum>> {
    Ok(match logical {
        Logical::Boolean => Some(Datum::Boolean(array.as_boolean().value(row))),
        Logical::Int16 => Some(Datum::Int(array.as_primitive::<Int16Type>().value(row).into())),
        Logical::Int32 => Some(Datum::Int(array.as_primitive::<Int32Type>().value(row).into())),
        Logical::Int64 => Some(Datum::Int(array.as_primitive::<Int64Type>().value(row))),
        Logical::Date => Some(Datum::Int(array.as_primitive::<Date32Type>().value(row).into())),
        Logical::Timestamp | Logical::TimestampTz => {
            Some(Datum::Int(array.as_primitive::<TimestampMicrosecondType>().value(row)))
        }
        Logical::Float32 => Some(Datum::Float(array.as_primitive::<Float32Type>().value(row).into())),
        Logical::Float64 => Some(Datum::Float(array.as_primitive::<Float64Type>().value(row))),
        Logical::Decimal { .. } => Some(Datum::Decimal(array.as_primitive::<Decimal128Type>().value(row))),
        Logical::Text => Some(Datum::Text(array.as_string_view().value(row).to_string())),
        Logical::Bytes => Some(Datum::Bytes(array.as_binary_view().value(row).to_vec())),
        Logical::Numeric => Some(Datum::Bytes(array.as_fixed_size_binary().value(row).to_vec())),
        Logical::Interval => None,
    })
}

fn logical_of(tag: [u8; 3]) -> Result<Logical> {
    let plain = [
        Logical::Boolean,
        Logical::Int16,
        Logical::Int32,
        Logical::Int64,
        Logical::Float32,
        Logical::Float64,
        Logical::Text,
        Logical::Date,
        Logical::Timestamp,
        Logical::TimestampTz,
        Logical::Interval,
        Logical::Bytes,
        Logical::Numeric,
        Logical::Decimal { precision: tag[1], scale: tag[2] as i8 },
    ];
    let found = plain.into_iter().find(|logical| logical.tag() == tag);
    let valid = found.filter(|logical| match logical {
        Logical::Decimal { precision, scale } => (1..=38).contains(precision) && (-38..=38).contains(scale),
        _ => true,
    });
    valid.ok_or_else(|| Error::corrupted("segment has an unknown type"))
}

/// Values with NULLs replaced by their neighbour before (the first by the one after): that adds no run, no distinct
/// value and no width.
fn fill<T: Copy>(values: impl ExactSizeIterator<Item = T>, nulls: Option<&NullBuffer>) -> Vec<T> {
    let mut filled: Vec<T> = values.collect();
    if let Some(nulls) = nulls
        && let Some(first) = nulls.valid_indices().next()
    {
        let mut last = filled[first];
        for (row, value) in filled.iter_mut().enumerate() {
            if nulls.is_valid(row) {
                last = *value;
            } else {
                *value = last;
            }
        }
    }
    filled
}

fn ints<T: ArrowPrimitiveType>(array: &ArrayRef, nulls: Option<&NullBuffer>) -> Vec<i64>
where
    T::Native: Into<i64>,
{
    fill(array.as_primitive::<T>().values().iter().map(|value| (*value).into()), nulls)
}

/// What is learnt of a column in one pass over its values.
#[derive(Default)]
struct Survey {
    sketch: Sketch,
    bounds: Option<(Datum, Datum)>,
    unique: bool,
    /// Bytes of text outside of its views.
    long_bytes: usize,
}

/// Strictly ascending or strictly descending.
fn strictly_ordered<T: PartialOrd>(values: &[T]) -> bool {
    values.windows(2).all(|pair| pair[0] < pair[1]) || values.windows(2).all(|pair| pair[0] > pair[1])
}

/// Statistics of an array that is no segment.
pub(crate) fn statistics_of(array: &ArrayRef) -> Result<(ColumnStatistics, Sketch)> {
    let logical = Logical::of(array.data_type())?;
    let nulls = array.logical_nulls().filter(|nulls| nulls.null_count() > 0);
    let (_, survey) = survey(array, nulls.as_ref(), logical, false);
    let (rows, null_count) = (array.len(), nulls.as_ref().map_or(0, NullBuffer::null_count));
    let (min, max) = cut_bounds(survey.bounds);
    let statistics = ColumnStatistics {
        min,
        max,
        null_count: null_count as u64,
        distinct_count: Some(survey.sketch.estimate().min((rows - null_count) as u64)),
        value_bytes_avg: logical.value_bytes() + survey.long_bytes as f64 / rows.max(1) as f64,
        unique: survey.unique,
    };
    Ok((statistics, survey.sketch))
}

fn build(array: &ArrayRef, logical: Logical, uuid: bool) -> Result<Vec<u8>> {
    let nulls = array.logical_nulls().filter(|nulls| nulls.null_count() > 0);
    let (rows, null_count) = (array.len(), nulls.as_ref().map_or(0, NullBuffer::null_count));
    let (column, survey) = survey(array, nulls.as_ref(), logical, uuid);
    let validity_bytes = if nulls.is_some() { rows.div_ceil(8) } else { 0 };
    let raw_bytes = (logical.value_bytes() * rows as f64).ceil() as u64 + (survey.long_bytes + validity_bytes) as u64;
    let mut writer = BlobWriter::new();
    write_statistics(&mut writer, survey.bounds, survey.unique, &survey.sketch);
    Validity::write(nulls.as_ref(), &mut writer);
    encoding::write(&column, survey.sketch.estimate() as usize, &mut writer)?;
    Ok(writer.finish(Header { rows, null_count, logical_type: logical.tag(), raw_bytes }))
}

fn survey<'a>(array: &'a ArrayRef, nulls: Option<&NullBuffer>, logical: Logical, uuid: bool) -> (Column<'a>, Survey) {
    let (rows, null_count) = (array.len(), nulls.map_or(0, NullBuffer::null_count));
    // A stretch of NULLs repeats a value, which a sketch does not mind; but then order says nothing about recurrence.
    let no_nulls = null_count == 0;
    let mut survey = Survey::default();
    let int_column = |values: Vec<i64>, datum: &dyn Fn(i64) -> Datum, survey: &mut Survey| {
        let (mut min, mut max) = (i64::MAX, i64::MIN);
        let mut last = None;
        for value in &values {
            min = min.min(*value);
            max = max.max(*value);
            if last != Some(*value) {
                survey.sketch.insert(hash_u64(*value as u64));
                last = Some(*value);
            }
        }
        survey.bounds = (!values.is_empty()).then(|| (datum(min), datum(max)));
        survey.unique = no_nulls && strictly_ordered(&values);
        values
    };
    let column = if null_count == rows {
        match logical {
            _ if logical.is_int() => Column::Ints(vec![0; rows]),
            Logical::Decimal { .. } => Column::NarrowDecimals(vec![0; rows]),
            Logical::Interval => Column::Wide(vec![0; rows]),
            Logical::Float32 | Logical::Float64 => {
                Column::Floats { values: vec![0.0; rows], single: logical == Logical::Float32 }
            }
            _ => Column::Strings { values: vec![b""; rows], uuid: false },
        }
    } else {
        match logical {
            Logical::Boolean => {
                let array = array.as_boolean();
                let values = fill((0..rows).map(|row| i64::from(array.value(row))), nulls);
                Column::Ints(int_column(values, &|value| Datum::Boolean(value == 1), &mut survey))
            }
            Logical::Int16 => Column::Ints(int_column(ints::<Int16Type>(array, nulls), &Datum::Int, &mut survey)),
            Logical::Int32 => Column::Ints(int_column(ints::<Int32Type>(array, nulls), &Datum::Int, &mut survey)),
            Logical::Int64 => Column::Ints(int_column(ints::<Int64Type>(array, nulls), &Datum::Int, &mut survey)),
            Logical::Date => Column::Ints(int_column(ints::<Date32Type>(array, nulls), &Datum::Int, &mut survey)),
            Logical::Timestamp | Logical::TimestampTz => {
                let values = ints::<TimestampMicrosecondType>(array, nulls);
                Column::Ints(int_column(values, &Datum::Int, &mut survey))
            }
            Logical::Decimal { .. } => {
                let values = fill(array.as_primitive::<Decimal128Type>().values().iter().copied(), nulls);
                if values.iter().all(|value| i64::try_from(*value).is_ok()) {
                    let values = values.iter().map(|value| *value as i64).collect();
                    Column::NarrowDecimals(int_column(values, &|value| Datum::Decimal(value.into()), &mut survey))
                } else {
                    values.iter().for_each(|value| survey.sketch.insert(hash_i128(*value)));
                    let (min, max) = (values.iter().min().copied(), values.iter().max().copied());
                    survey.bounds = min.zip(max).map(|(min, max)| (Datum::Decimal(min), Datum::Decimal(max)));
                    survey.unique = no_nulls && strictly_ordered(&values);
                    Column::Wide(values)
                }
            }
            Logical::Interval => {
                let values = array.as_primitive::<IntervalMonthDayNanoType>().values();
                let values = fill(values.iter().map(|value| wide_of_interval(*value)), nulls);
                values.iter().for_each(|value| survey.sketch.insert(hash_i128(*value)));
                Column::Wide(values)
            }
            Logical::Float32 | Logical::Float64 => {
                let single = logical == Logical::Float32;
                let values = if single {
                    fill(array.as_primitive::<Float32Type>().values().iter().map(|value| f64::from(*value)), nulls)
                } else {
                    fill(array.as_primitive::<Float64Type>().values().iter().copied(), nulls)
                };
                let (mut min, mut max) = (values[0], values[0]);
                for value in &values {
                    survey.sketch.insert(hash_u64(float_key(*value) as u64));
                    if float_key(*value) < float_key(min) {
                        min = *value;
                    }
                    if float_key(*value) > float_key(max) {
                        max = *value;
                    }
                }
                survey.bounds = Some((Datum::Float(min), Datum::Float(max)));
                Column::Floats { values, single }
            }
            Logical::Text | Logical::Bytes | Logical::Numeric => {
                let values: Vec<&[u8]> = if logical == Logical::Text {
                    let array = array.as_string_view();
                    fill((0..rows).map(|row| array.value(row).as_bytes()), nulls)
                } else if logical == Logical::Numeric {
                    let array = array.as_fixed_size_binary();
                    fill((0..rows).map(|row| array.value(row)), nulls)
                } else {
                    let array = array.as_binary_view();
                    fill((0..rows).map(|row| array.value(row)), nulls)
                };
                let (mut min, mut max) = (values[0], values[0]);
                for (row, value) in values.iter().enumerate() {
                    survey.sketch.insert(hash_bytes(value));
                    min = min.min(value);
                    max = max.max(value);
                    if value.len() > 12 && nulls.is_none_or(|nulls| nulls.is_valid(row)) {
                        survey.long_bytes += value.len();
                    }
                }
                survey.bounds = Some((bytes_datum(min, logical), bytes_datum(max, logical)));
                survey.unique = no_nulls && strictly_ordered(&values);
                Column::Strings { values, uuid }
            }
        }
    };
    (column, survey)
}

fn bytes_datum(value: &[u8], logical: Logical) -> Datum {
    match logical {
        // Only called with what came out of a text array.
        Logical::Text => Datum::Text(String::from_utf8_lossy(value).into_owned()),
        _ => Datum::Bytes(value.to_vec()),
    }
}

fn write_statistics(writer: &mut BlobWriter, bounds: Option<(Datum, Datum)>, unique: bool, sketch: &Sketch) {
    let (min, max) = cut_bounds(bounds);
    write_datum(writer, min.as_ref());
    write_datum(writer, max.as_ref());
    writer.u8(u8::from(unique));
    writer.inline_bytes(sketch.as_bytes());
}

fn cut_bounds(bounds: Option<(Datum, Datum)>) -> (Option<Datum>, Option<Datum>) {
    bounds.map_or((None, None), |(min, max)| (Some(cut(min)), uncut(max)))
}

/// A lower bound no longer than need be.
fn cut(min: Datum) -> Datum {
    match min {
        Datum::Text(mut text) => {
            text.truncate(text.floor_char_boundary(BOUND_BYTES_MAX));
            Datum::Text(text)
        }
        Datum::Bytes(mut bytes) => {
            bytes.truncate(BOUND_BYTES_MAX);
            Datum::Bytes(bytes)
        }
        other => other,
    }
}

fn uncut(max: Datum) -> Option<Datum> {
    match &max {
        Datum::Text(text) if text.len() > BOUND_BYTES_MAX => None,
        Datum::Bytes(bytes) if bytes.len() > BOUND_BYTES_MAX => None,
        _ => Some(max),
    }
}

fn write_datum(writer: &mut BlobWriter, datum: Option<&Datum>) {
    match datum {
        None => writer.u8(0),
        Some(Datum::Boolean(value)) => {
            writer.u8(1);
            writer.u8(u8::from(*value));
        }
        Some(Datum::Int(value)) => {
            writer.u8(2);
            writer.i64(*value);
        }
        Some(Datum::Decimal(value)) => {
            writer.u8(3);
            writer.i128(*value);
        }
        Some(Datum::Float(value)) => {
            writer.u8(4);
            writer.u64(value.to_bits());
        }
        Some(Datum::Text(value)) => {
            writer.u8(5);
            writer.inline_bytes(value.as_bytes());
        }
        Some(Datum::Bytes(value)) => {
            writer.u8(6);
            writer.inline_bytes(value);
        }
    }
}

fn read_datum(reader: &mut TreeReader<'_>, logical: Logical) -> Result<Option<Datum>> {
    let bad = || Error::corrupted("segment has impossible statistics");
    let datum = match reader.u8()? {
        0 => return Ok(None),
        1 => Datum::Boolean(reader.u8()? != 0),
        2 => Datum::Int(reader.i64()?),
        3 => Datum::Decimal(reader.i128()?),
        4 => Datum::Float(f64::from_bits(reader.u64()?)),
        5 => Datum::Text(String::from_utf8(reader.inline_bytes()?.to_vec()).map_err(|_| bad())?),
        6 => Datum::Bytes(reader.inline_bytes()?.to_vec()),
        _ => return Err(bad()),
    };
    let fits = match &datum {
        Datum::Boolean(_) => logical == Logical::Boolean,
        Datum::Int(value) => logical.is_int() && logical != Logical::Boolean && logical.int_bounds().contains(value),
        Datum::Decimal(_) => matches!(logical, Logical::Decimal { .. }),
        Datum::Float(_) => logical.is_float(),
        Datum::Text(_) => logical == Logical::Text,
        Datum::Bytes(_) => matches!(logical, Logical::Bytes | Logical::Numeric),
    };
    if fits { Ok(Some(datum)) } else { Err(bad()) }
}

fn read_statistics(reader: &mut TreeReader<'_>, header: &Header, logical: Logical) -> Result<Known> {
    let min = read_datum(reader, logical)?;
    let max = read_datum(reader, logical)?;
    let unique = reader.u8()? == 1;
    let sketch = Sketch::from_bytes(reader.inline_bytes()?)
        .ok_or_else(|| Error::corrupted("segment has impossible statistics"))?;
    let values = header.rows - header.null_count;
    let statistics = ColumnStatistics {
        min,
        max,
        null_count: header.null_count as u64,
        distinct_count: Some(sketch.estimate().min(values as u64)),
        value_bytes_avg: if header.rows == 0 { 0.0 } else { header.raw_bytes as f64 / header.rows as f64 },
        unique,
    };
    Ok(Known { statistics, sketch })
}
