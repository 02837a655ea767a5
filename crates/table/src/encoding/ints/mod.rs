//! Sequences of 64-bit integers: what columns of integers, dates, timestamps, booleans and narrow decimals are, and
//! also dictionary codes, text lengths and scaled floats.
//!
//! | form | for |
//! | --- | --- |
//! | constant | one value |
//! | plain | few rows, or values without any pattern |
//! | [`Frame`] | anything of limited range within a block of 1,024 |
//! | [`Delta`] | ascending or slowly changing values |
//! | [`RunLength`] | long runs |

mod delta;
mod frame;
mod run_length;

pub(crate) use delta::Delta;
pub(crate) use frame::Frame;
pub(crate) use run_length::RunLength;

use super::packing::BLOCK;
use crate::KeyTest;
use crate::bits;
use crate::blob::{Blob, BlobWriter, Section, TreeReader};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use tidepool_base::{Error, Result};

/// What integers are decoded to.
pub(crate) trait FromInt: Copy + 'static {
    fn from_int(value: i64) -> Self;
}
macro_rules! from_int {
    ($($t:ty),*) => { $( impl FromInt for $t {
        #[inline(always)]
        fn from_int(value: i64) -> $t { value as $t }
    } )* };
}
from_int!(u8, u32, i16, i32, i64, i128);

/// A condition on one integer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum IntTest {
    /// Between the two, inclusive. `lower <= upper`.
    Within {
        lower: i64,
        upper: i64,
    },
    /// Not between the two.
    Outside {
        lower: i64,
        upper: i64,
    },
    /// Within one of a few ranges, inclusive, which ascend and leave gaps.
    Ranges(Vec<(i64, i64)>),
    /// One of these, ascending and not empty.
    Set(Vec<i64>),
    /// `passes[value - base]` is 1; 0 for values past the table.
    Table {
        base: i64,
        passes: Vec<u8>,
    },
    Keys(Keys),
}

/// Those of a join's other side.
#[derive(Clone, Debug)]
pub(crate) struct Keys(pub Arc<dyn KeyTest>);

impl PartialEq for Keys {
    fn eq(&self, other: &Keys) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// What is told of blocks that have been tested: each with its number and what words are left of it. Who knows what comes next asks for it then.
pub(crate) type Ahead<'a> = &'a mut dyn FnMut(usize, &[u64]);

/// More ranges than these are not tested one by one.
pub(crate) const RANGES_MAX: usize = 6;

/// A table this long stays in the second-level cache.
const TABLE_LEN_MAX: u64 = 1 << 17;

impl IntTest {
    /// One of `values`, in the form that is quickest to test. `None`: nothing can pass.
    pub fn any_of(mut values: Vec<i64>) -> Option<IntTest> {
        values.sort_unstable();
        values.dedup();
        let (lower, upper) = (*values.first()?, *values.last()?);
        let span = upper.wrapping_sub(lower) as u64;
        if span == values.len() as u64 - 1 {
            return Some(IntTest::Within { lower, upper });
        }
        let follows = |a: &i64, b: &i64| a.checked_add(1) == Some(*b);
        let ranges = values.chunk_by(follows).take(RANGES_MAX + 1).map(|run| (run[0], run[run.len() - 1]));
        let ranges: Vec<(i64, i64)> = ranges.collect();
        if ranges.len() <= RANGES_MAX {
            return Some(IntTest::Ranges(ranges));
        }
        if span < TABLE_LEN_MAX {
            let mut passes = vec![0; span as usize + 1];
            for value in values {
                passes[value.wrapping_sub(lower) as usize] = 1;
            }
            return Some(IntTest::Table { base: lower, passes });
        }
        Some(IntTest::Set(values))
    }

    #[inline]
    pub fn passes(&self, value: i64) -> bool {
        match self {
            IntTest::Within { lower, upper } => (*lower..=*upper).contains(&value),
            IntTest::Outside { lower, upper } => !(*lower..=*upper).contains(&value),
            IntTest::Ranges(ranges) => ranges.iter().any(|(lower, upper)| (*lower..=*upper).contains(&value)),
            IntTest::Set(values) => values.binary_search(&value).is_ok(),
            IntTest::Table { base, passes } => {
                passes.get(value.wrapping_sub(*base) as u64 as usize).is_some_and(|passes| *passes == 1)
            }
            IntTest::Keys(Keys(keys)) => {
                let mut word = [1];
                keys.and_values(&[value], &mut word);
                word[0] == 1
            }
        }
    }

    /// `words &= test(values)`.
    pub fn and_values(&self, values: &[i64], words: &mut [u64]) {
        #[inline(always)]
        fn each(values: &[i64], words: &mut [u64], test: impl Fn(i64) -> bool) {
            for (word, chunk) in words.iter_mut().zip(values.chunks(64)) {
                if *word == 0 {
                    continue;
                }
                let mut bytes = [0u8; 64];
                for (byte, value) in bytes.iter_mut().zip(chunk) {
                    *byte = u8::from(test(*value));
                }
                *word &= bits::word_of(&bytes);
            }
        }
        match self {
            IntTest::Within { lower, upper } => {
                let span = upper.wrapping_sub(*lower) as u64;
                each(values, words, |value| value.wrapping_sub(*lower) as u64 <= span);
            }
            IntTest::Outside { lower, upper } => {
                let span = upper.wrapping_sub(*lower) as u64;
                each(values, words, |value| value.wrapping_sub(*lower) as u64 > span);
            }
            IntTest::Keys(Keys(keys)) => keys.and_values(values, words),
            _ => each(values, words, |value| self.passes(value)),
        }
    }
}

#[derive(Debug)]
pub(crate) enum Ints {
    Constant(i64),
    Plain {
        bytes_per_value: u8,
        values: Section,
    },
    Frame(Frame),
    Delta(Delta),
    RunLength(RunLength),
    /// Each row's own number. Never written; stands in for codes to decode a whole dictionary.
    Identity,
}

const TAG_CONSTANT: u8 = 0;
const TAG_PLAIN: u8 = 1;
const TAG_FRAME: u8 = 2;
const TAG_DELTA: u8 = 3;
const TAG_RUN_LENGTH: u8 = 4;

/// The form chosen for some values and the bytes it takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IntsPlan {
    tag: u8,
    pub bytes: usize,
}

/// Runs of equal values.
pub(crate) fn count_runs(values: &[i64]) -> usize {
    if values.is_empty() { 0 } else { 1 + values.windows(2).filter(|pair| pair[0] != pair[1]).count() }
}

fn plain_width(values: &[i64]) -> u8 {
    let (min, max) = values.iter().fold((0, 0), |(min, max), value| (value.min(&min).to_owned(), max.max(*value)));
    match (min, max) {
        (min, max) if min >= i8::MIN.into() && max <= i8::MAX.into() => 1,
        (min, max) if min >= i16::MIN.into() && max <= i16::MAX.into() => 2,
        (min, max) if min >= i32::MIN.into() && max <= i32::MAX.into() => 4,
        _ => 8,
    }
}

impl Ints {
    pub fn singles_max(&self) -> usize {
        match self {
            Ints::Frame(_) => frame::SINGLES_MAX,
            Ints::Delta(_) => 0,
            _ => usize::MAX,
        }
    }

    /// Chooses a form: the smallest, unless one that is quicker to read is nearly as small.
    pub fn plan(values: &[i64]) -> IntsPlan {
        let runs = count_runs(values);
        if runs <= 1 {
            return IntsPlan { tag: TAG_CONSTANT, bytes: 0 };
        }
        let mut best = IntsPlan { tag: TAG_FRAME, bytes: Frame::planned_bytes(values) };
        let plain = values.len() * usize::from(plain_width(values));
        if plain <= best.bytes {
            best = IntsPlan { tag: TAG_PLAIN, bytes: plain };
        }
        let delta = Delta::planned_bytes(values);
        // A prefix sum costs more than an addition: worth it for a fifth.
        if delta < best.bytes / 5 * 4 {
            best = IntsPlan { tag: TAG_DELTA, bytes: delta };
        }
        if runs < values.len() / 4 {
            let run_length = RunLength::planned_bytes(values);
            if run_length < best.bytes / 4 * 3 {
                best = IntsPlan { tag: TAG_RUN_LENGTH, bytes: run_length };
            }
        }
        best
    }

    pub fn write(plan: IntsPlan, values: &[i64], writer: &mut BlobWriter) {
        writer.u8(plan.tag);
        match plan.tag {
            TAG_CONSTANT => writer.i64(values.first().copied().unwrap_or(0)),
            TAG_PLAIN => {
                let width = plain_width(values);
                writer.u8(width);
                match width {
                    1 => writer.section::<i8>(&values.iter().map(|value| *value as i8).collect::<Vec<_>>()),
                    2 => writer.section::<i16>(&values.iter().map(|value| *value as i16).collect::<Vec<_>>()),
                    4 => writer.section::<i32>(&values.iter().map(|value| *value as i32).collect::<Vec<_>>()),
                    _ => writer.section::<i64>(values),
                }
            }
            TAG_FRAME => Frame::write(values, writer),
            TAG_DELTA => Delta::write(values, writer),
            _ => RunLength::write(values, writer),
        }
    }

    pub fn write_best(values: &[i64], writer: &mut BlobWriter) {
        Ints::write(Ints::plan(values), values, writer);
    }

    pub fn read(reader: &mut TreeReader<'_>, blob: &[u8], rows: usize) -> Result<Ints> {
        Ok(match reader.u8()? {
            TAG_CONSTANT => Ints::Constant(reader.i64()?),
            TAG_PLAIN => {
                let bytes_per_value = reader.u8()?;
                let values = match bytes_per_value {
                    1 => reader.section_of::<i8>(rows)?,
                    2 => reader.section_of::<i16>(rows)?,
                    4 => reader.section_of::<i32>(rows)?,
                    8 => reader.section_of::<i64>(rows)?,
                    _ => return Err(Error::corrupted("segment has integers of an impossible width")),
                };
                Ints::Plain { bytes_per_value, values }
            }
            TAG_FRAME => Ints::Frame(Frame::read(reader, blob, rows)?),
            TAG_DELTA => Ints::Delta(Delta::read(reader, blob, rows)?),
            TAG_RUN_LENGTH => Ints::RunLength(RunLength::read(reader, blob, rows)?),
            _ => return Err(Error::corrupted("segment has integers of an unknown form")),
        })
    }

    /// XX001 unless every value is within `bounds`.
    pub fn check(&self, blob: &Blob, rows: usize, bounds: RangeInclusive<i64>) -> Result<()> {
        let mut values: Vec<i64> = Vec::with_capacity(8 * BLOCK);
        let mut start = 0;
        while start < rows {
            let end = rows.min(start + 8 * BLOCK);
            values.clear();
            self.decode_into(blob, start..end, &mut values);
            if !values.iter().all(|value| bounds.contains(value)) {
                return Err(Error::corrupted("segment has a value outside of its bounds"));
            }
            start = end;
        }
        Ok(())
    }

    /// Bytes in sections.
    pub fn bytes(&self) -> usize {
        match self {
            Ints::Constant(_) | Ints::Identity => 0,
            Ints::Plain { values, .. } => values.len,
            Ints::Frame(frame) => frame.bytes(),
            Ints::Delta(delta) => delta.bytes(),
            Ints::RunLength(runs) => runs.bytes(),
        }
    }

    /// Appends the values of `rows`.
    pub fn decode_into<T: FromInt>(&self, blob: &Blob, rows: Range<usize>, out: &mut Vec<T>) {
        match self {
            Ints::Constant(value) => out.resize(out.len() + rows.len(), T::from_int(*value)),
            Ints::Identity => out.extend(rows.map(|row| T::from_int(row as i64))),
            Ints::Plain { bytes_per_value, values } => match bytes_per_value {
                1 => out.extend(blob.slice::<i8>(*values)[rows].iter().map(|value| T::from_int((*value).into()))),
                2 => out.extend(blob.slice::<i16>(*values)[rows].iter().map(|value| T::from_int((*value).into()))),
                4 => out.extend(blob.slice::<i32>(*values)[rows].iter().map(|value| T::from_int((*value).into()))),
                _ => out.extend(blob.slice::<i64>(*values)[rows].iter().map(|value| T::from_int(*value))),
            },
            Ints::Frame(frame) => frame.decode_into(blob, rows, out),
            Ints::Delta(delta) => delta.decode_into(blob, rows, out),
            Ints::RunLength(runs) => runs.decode_into(blob, rows, out),
        }
    }

    /// The value of one row, without those of its neighbours where the form allows.
    #[inline]
    pub fn at(&self, blob: &Blob, row: usize) -> i64 {
        match self {
            Ints::Constant(value) => *value,
            Ints::Identity => row as i64,
            Ints::Plain { bytes_per_value, values } => match bytes_per_value {
                1 => blob.slice::<i8>(*values)[row].into(),
                2 => blob.slice::<i16>(*values)[row].into(),
                4 => blob.slice::<i32>(*values)[row].into(),
                _ => blob.slice::<i64>(*values)[row],
            },
            Ints::Frame(frame) => frame.at(blob, row),
            Ints::Delta(delta) => delta.at(blob, row),
            Ints::RunLength(runs) => runs.at(blob, row),
        }
    }

    /// Appends the values of `rows`, which ascend.
    pub fn take_into<T: FromInt>(&self, blob: &Blob, rows: &[u32], out: &mut Vec<T>) {
        fn pick<S: Copy + Into<i64>, T: FromInt>(values: &[S], rows: &[u32], out: &mut Vec<T>) {
            out.extend(rows.iter().map(|row| T::from_int(values[*row as usize].into())));
        }
        match self {
            Ints::Constant(value) => out.resize(out.len() + rows.len(), T::from_int(*value)),
            Ints::Identity => out.extend(rows.iter().map(|row| T::from_int((*row).into()))),
            Ints::Plain { bytes_per_value, values } => match bytes_per_value {
                1 => pick(blob.slice::<i8>(*values), rows, out),
                2 => pick(blob.slice::<i16>(*values), rows, out),
                4 => pick(blob.slice::<i32>(*values), rows, out),
                _ => pick(blob.slice::<i64>(*values), rows, out),
            },
            Ints::Frame(frame) => frame.take_into(blob, rows, out),
            Ints::Delta(delta) => delta.take_into(blob, rows, out),
            Ints::RunLength(runs) => runs.take_into(blob, rows, out),
        }
    }

    /// Asks the processor to fetch what a block of rows is read from, where that is one piece.
    #[inline]
    pub fn prefetch(&self, blob: &Blob, block: usize) {
        match self {
            Ints::Frame(frame) => frame.prefetch(blob, block),
            Ints::Delta(delta) => delta.prefetch(blob, block),
            Ints::Constant(_) | Ints::Plain { .. } | Ints::RunLength(_) | Ints::Identity => {}
        }
    }

    /// `words &= test(values of rows)`; `rows` starts at a block's start.
    pub fn filter(&self, blob: &Blob, rows: Range<usize>, test: &IntTest, words: &mut [u64]) {
        self.filter_telling(blob, rows, test, words, &mut |_, _| {});
    }

    /// The same, and tells `ahead` of each block, as it goes or in the end.
    pub fn filter_telling(&self, blob: &Blob, rows: Range<usize>, test: &IntTest, words: &mut [u64], ahead: Ahead<'_>) {
        debug_assert!(rows.start.is_multiple_of(BLOCK));
        if let Ints::Frame(frame) = self {
            frame.filter(blob, rows, test, words, ahead);
            return;
        }
        let first = rows.start / BLOCK;
        match self {
            Ints::Constant(value) => {
                if !test.passes(*value) {
                    words.fill(0);
                }
            }
            Ints::Frame(_) => unreachable!("tested above"),
            Ints::RunLength(runs) => runs.filter(blob, rows, test, words),
            Ints::Plain { .. } | Ints::Delta(_) | Ints::Identity => {
                let mut values: Vec<i64> = Vec::with_capacity(BLOCK);
                for (start, words) in rows.clone().step_by(BLOCK).zip(words.chunks_mut(BLOCK / 64)) {
                    if words.iter().all(|word| *word == 0) {
                        continue;
                    }
                    values.clear();
                    self.decode_into(blob, start..rows.end.min(start + BLOCK), &mut values);
                    test.and_values(&values, words);
                }
            }
        }
        tell_all(first, words, ahead);
    }
}

/// Tells of all blocks from `first` on at once.
pub(crate) fn tell_all(first: usize, words: &[u64], ahead: Ahead<'_>) {
    words.chunks(BLOCK / 64).zip(first..).for_each(|(words, block)| ahead(block, words));
}

/// Rows of a block that are looked through one by one.
const FEW: usize = 32;

/// Splits ascending rows by block: calls `each(block, rows of it)`.
#[inline]
pub(crate) fn by_block(rows: &[u32], mut each: impl FnMut(usize, &[u32])) {
    rows_by_block(rows).for_each(|(block, rows)| each(block, rows));
}

/// Ascending rows by block: the block's number, and rows of it.
#[inline]
pub(crate) fn rows_by_block(mut rows: &[u32]) -> impl Iterator<Item = (usize, &[u32])> {
    std::iter::from_fn(move || {
        let block = *rows.first()? as usize / BLOCK;
        let end = ((block + 1) * BLOCK) as u64;
        // Mostly few: to count those is quicker than to search.
        let near = &rows[..rows.len().min(FEW)];
        let mut count = near.iter().filter(|row| u64::from(**row) < end).count();
        if count == FEW {
            count += rows[FEW..rows.len().min(BLOCK)].partition_point(|row| u64::from(*row) < end);
        }
        let (head, tail) = rows.split_at(count);
        rows = tail;
        Some((block, head))
    })
}

/// The part of `rows` that lies in each block: calls `each(block, range within the block)`.
#[inline]
fn block_ranges(rows: Range<usize>, mut each: impl FnMut(usize, Range<usize>)) {
    let mut start = rows.start;
    while start < rows.end {
        let block = start / BLOCK;
        let end = rows.end.min((block + 1) * BLOCK);
        each(block, start - block * BLOCK..end - block * BLOCK);
        start = end;
    }
}

/// Where each packed block of a form lies.
#[derive(Debug)]
struct Blocks {
    /// First byte of each block in `packed`, in units of 128 bytes.
    offsets: Section,
    widths: Section,
    packed: Section,
}

const UNIT: usize = BLOCK / 8;

/// [`Blocks`] in the making.
#[derive(Default)]
struct BlocksWriter {
    offsets: Vec<u32>,
    widths: Vec<u8>,
    packed: Vec<u8>,
}

impl BlocksWriter {
    fn push(&mut self, values: &[u64; BLOCK], width: u32) {
        self.offsets.push((self.packed.len() / UNIT) as u32);
        self.widths.push(width as u8);
        super::packing::pack(values, width, &mut self.packed);
    }

    fn finish(self, writer: &mut BlobWriter) {
        writer.section(&self.offsets);
        writer.section(&self.widths);
        writer.section(&self.packed);
    }
}

impl Blocks {
    fn read(reader: &mut TreeReader<'_>, blob: &[u8], count: usize) -> Result<Blocks> {
        let blocks = Blocks {
            offsets: reader.section_of::<u32>(count)?,
            widths: reader.section_of::<u8>(count)?,
            packed: reader.section::<u64>()?,
        };
        let offsets = &blob[blocks.offsets.offset..][..blocks.offsets.len];
        let widths = &blob[blocks.widths.offset..][..blocks.widths.len];
        for (offset, width) in offsets.chunks_exact(4).zip(widths) {
            let offset = u32::from_le_bytes(offset.try_into().expect("four bytes")) as usize;
            let len = super::packing::packed_bytes(u32::from(*width));
            if *width > 64 || offset.checked_mul(UNIT).is_none_or(|start| start + len > blocks.packed.len) {
                return Err(Error::corrupted("segment has a packed block outside of it"));
            }
        }
        Ok(blocks)
    }

    fn bytes(&self) -> usize {
        self.offsets.len + self.widths.len + self.packed.len
    }

    #[inline]
    fn prefetch(&self, blob: &Blob, block: usize) {
        super::packing::prefetch_block(self.get(blob, block).0);
    }

    #[inline]
    fn get<'a>(&self, blob: &'a Blob, block: usize) -> (&'a [u8], u32) {
        let width = u32::from(blob.slice::<u8>(self.widths)[block]);
        let offset = blob.slice::<u32>(self.offsets)[block] as usize * UNIT;
        (blob.slice(self.packed.part(offset, super::packing::packed_bytes(width))), width)
    }
}
