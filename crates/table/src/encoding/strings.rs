//! Strings one after the other, handed out in place; and [`Extents`], where each of many strings lies.

use super::ints::{Ints, by_block};
use super::packing::BLOCK;
use super::{Rows, Views};
use crate::blob::{Blob, BlobWriter, Section, TreeReader};
use crate::logical::Logical;
use std::ops::Range;
use std::sync::Arc;
use tidepool_base::{Error, Result};

/// Arrow's views reach so far into a buffer.
pub(crate) const BYTES_MAX: usize = i32::MAX as usize;

/// Strings up to here lie within their view.
pub(crate) const INLINE_MAX: usize = 12;

/// A view of `bytes`, which lie at `offset` of the first buffer.
#[inline]
pub(crate) fn view_of(bytes: &[u8], offset: u32) -> u128 {
    let len = bytes.len();
    let four = |bytes: &[u8; 4]| u128::from(u32::from_le_bytes(*bytes));
    let last_four = || bytes.last_chunk::<4>().map_or(0, four);
    // Loads that overlap, for a copy of unknown length is a call.
    let value = if len > INLINE_MAX {
        bytes.first_chunk::<4>().map_or(0, four) | u128::from(offset) << 64
    } else if let Some(eight) = bytes.first_chunk::<8>() {
        u128::from(u64::from_le_bytes(*eight)) | last_four() << ((len - 4) * 8)
    } else if let Some(first) = bytes.first_chunk::<4>() {
        four(first) | last_four() << ((len - 4) * 8)
    } else if let (Some(first), Some(last)) = (bytes.first(), bytes.last()) {
        u128::from(*first) | u128::from(bytes[len / 2]) << (len / 2 * 8) | u128::from(*last) << ((len - 1) * 8)
    } else {
        0
    };
    value << 32 | len as u128
}

/// Where each string of a section lies: lengths, and the place of every 1,024th.
#[derive(Debug)]
pub(crate) struct Extents {
    rows: usize,
    lengths: Ints,
    /// One more than there are blocks: the last is the end.
    starts: Section,
}

impl Extents {
    pub fn write(lengths: &[i64], writer: &mut BlobWriter) {
        Ints::write_best(lengths, writer);
        let mut starts = vec![0u32];
        let mut end = 0;
        for block in lengths.chunks(BLOCK) {
            end += block.iter().sum::<i64>() as u32;
            starts.push(end);
        }
        writer.section(&starts);
    }

    pub fn read(reader: &mut TreeReader<'_>, blob: &[u8], rows: usize) -> Result<Extents> {
        let lengths = Ints::read(reader, blob, rows)?;
        Ok(Extents { rows, lengths, starts: reader.section_of::<u32>(rows.div_ceil(BLOCK) + 1)? })
    }

    /// XX001 unless the extents follow one another from 0 to `total`.
    pub fn check(&self, blob: &Blob, rows: usize, total: usize) -> Result<()> {
        self.lengths.check(blob, rows, 0..=BYTES_MAX as i64)?;
        let starts = blob.slice::<u32>(self.starts);
        let mut lengths: Vec<i64> = Vec::with_capacity(BLOCK);
        let mut end = 0i64;
        for (block, start) in starts.iter().enumerate() {
            if i64::from(*start) != end {
                return Err(Error::corrupted("segment's text does not add up"));
            }
            lengths.clear();
            self.lengths.decode_into(blob, (block * BLOCK).min(rows)..((block + 1) * BLOCK).min(rows), &mut lengths);
            end += lengths.iter().sum::<i64>();
        }
        if end != total as i64 || total > BYTES_MAX {
            return Err(Error::corrupted("segment's text does not add up"));
        }
        Ok(())
    }

    pub fn bytes(&self) -> usize {
        self.lengths.bytes() + self.starts.len
    }

    pub fn lengths(&self) -> &Ints {
        &self.lengths
    }

    /// Where the first row of a range starts, and the length of each.
    pub fn range(&self, blob: &Blob, rows: Range<usize>) -> (usize, Vec<u32>) {
        let block = rows.start / BLOCK;
        let start = blob.slice::<u32>(self.starts)[block] as usize;
        let mut lengths: Vec<u32> = Vec::with_capacity(rows.end - block * BLOCK);
        self.lengths.decode_into(blob, block * BLOCK..rows.end, &mut lengths);
        let before = rows.start - block * BLOCK;
        if before == 0 {
            return (start, lengths);
        }
        let skipped: usize = lengths.drain(..before).map(|len| len as usize).sum();
        (start + skipped, lengths)
    }

    /// Where a range of rows lies.
    pub fn span(&self, blob: &Blob, rows: Range<usize>) -> Range<usize> {
        let whole = rows.start.is_multiple_of(BLOCK) && (rows.end.is_multiple_of(BLOCK) || rows.end == self.rows);
        if whole && !rows.is_empty() {
            let starts = blob.slice::<u32>(self.starts);
            return starts[rows.start / BLOCK] as usize..starts[rows.end.div_ceil(BLOCK)] as usize;
        }
        let (start, lengths) = self.range(blob, rows);
        start..start + lengths.iter().map(|len| *len as usize).sum::<usize>()
    }

    /// Start and length of one row's.
    pub fn at(&self, blob: &Blob, row: usize) -> (usize, usize) {
        let block = row / BLOCK;
        let start = blob.slice::<u32>(self.starts)[block] as usize;
        if let Ints::Constant(len) = &self.lengths {
            return (start + (row - block * BLOCK) * *len as usize, *len as usize);
        }
        let mut lengths: Vec<u32> = Vec::with_capacity(BLOCK);
        self.lengths.decode_into(blob, block * BLOCK..row + 1, &mut lengths);
        let len = lengths.pop().unwrap_or(0) as usize;
        (start + lengths.iter().map(|len| *len as usize).sum::<usize>(), len)
    }

    /// Start and length of each of some rows.
    pub fn list(&self, blob: &Blob, rows: &[u32]) -> Vec<(u32, u32)> {
        let starts = blob.slice::<u32>(self.starts);
        let mut extents = Vec::with_capacity(rows.len());
        let mut lengths: Vec<u32> = Vec::with_capacity(BLOCK);
        by_block(rows, |block, rows| {
            let first = block * BLOCK;
            lengths.clear();
            self.lengths.decode_into(blob, first..rows[rows.len() - 1] as usize + 1, &mut lengths);
            let (mut row, mut start) = (0, starts[block]);
            for wanted in rows {
                let wanted = *wanted as usize - first;
                start += lengths[row..wanted].iter().sum::<u32>();
                row = wanted;
                extents.push((start, lengths[wanted]));
            }
        });
        extents
    }
}

#[derive(Debug)]
pub(crate) struct Strings {
    extents: Extents,
    bytes: Section,
}

impl Strings {
    pub fn write(values: &[&[u8]], writer: &mut BlobWriter) {
        Extents::write(&values.iter().map(|value| value.len() as i64).collect::<Vec<_>>(), writer);
        writer.section(&values.concat());
    }

    pub fn read(reader: &mut TreeReader<'_>, blob: &[u8], rows: usize) -> Result<Strings> {
        Ok(Strings { extents: Extents::read(reader, blob, rows)?, bytes: reader.section::<u8>()? })
    }

    pub fn check(&self, blob: &Arc<Blob>, rows: usize, logical: Logical) -> Result<()> {
        self.extents.check(blob, rows, self.bytes.len)?;
        if logical == Logical::Text {
            let (_, lengths) = self.extents.range(blob, 0..rows);
            check_text(blob.slice(self.bytes), lengths.iter().map(|len| *len as usize))?;
        }
        Ok(())
    }

    pub fn bytes(&self) -> usize {
        self.extents.bytes() + self.bytes.len
    }

    /// Of each string, in bytes.
    pub fn lengths(&self) -> &Ints {
        self.extents.lengths()
    }

    pub fn at<'b>(&self, blob: &'b Blob, row: usize) -> &'b [u8] {
        let (start, len) = self.extents.at(blob, row);
        &blob.slice::<u8>(self.bytes)[start..start + len]
    }

    pub fn gather(&self, blob: &Arc<Blob>, rows: &Rows<'_>) -> Views {
        let bytes: &[u8] = blob.slice(self.bytes);
        let mut views = Vec::with_capacity(rows.len());
        match rows {
            Rows::Range(range) => {
                let (mut start, lengths) = self.extents.range(blob, range.clone());
                views.extend(lengths.iter().map(|len| {
                    let end = start + *len as usize;
                    let view = view_of(&bytes[start..end], start as u32);
                    start = end;
                    view
                }));
            }
            Rows::List(rows) => {
                let extents = self.extents.list(blob, rows);
                views.extend(
                    extents.iter().map(|(start, len)| view_of(&bytes[*start as usize..][..*len as usize], *start)),
                );
            }
        }
        Views { views, buffers: vec![blob.buffer(self.bytes)] }
    }
}

/// XX001 unless strings of these lengths, one after the other, are UTF-8 each.
pub(crate) fn check_text(bytes: &[u8], lengths: impl Iterator<Item = usize>) -> Result<()> {
    let bad = || Error::corrupted("segment's text is not UTF-8");
    let text = std::str::from_utf8(bytes).map_err(|_| bad())?;
    let mut end = 0;
    for len in lengths {
        end += len;
        if !text.is_char_boundary(end) {
            return Err(bad());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::builder::make_view;

    #[test]
    fn views_are_those_of_arrow() {
        let bytes: Vec<u8> = (1..=40).collect();
        for len in 0..=bytes.len() {
            assert_eq!(view_of(&bytes[..len], 7_000_000), make_view(&bytes[..len], 0, 7_000_000), "{len} bytes");
        }
    }
}
