//! Run length: the values of runs, and the row after the last of each run.

use super::{Frame, FromInt, IntTest};
use crate::bits;
use crate::blob::{Blob, BlobWriter, Section, TreeReader};
use std::ops::Range;
use tidepool_base::{Error, Result};

#[derive(Debug)]
pub(crate) struct RunLength {
    /// Ascending, the last one being the row count.
    ends: Section,
    values: Frame,
}

fn runs(values: &[i64]) -> (Vec<u32>, Vec<i64>) {
    let (mut ends, mut run_values) = (Vec::new(), Vec::new());
    let mut end = 0u32;
    for run in values.chunk_by(|a, b| a == b) {
        end += run.len() as u32;
        ends.push(end);
        run_values.push(run[0]);
    }
    (ends, run_values)
}

impl RunLength {
    pub fn planned_bytes(values: &[i64]) -> usize {
        let (ends, values) = runs(values);
        4 * ends.len() + Frame::planned_bytes(&values)
    }

    pub fn write(values: &[i64], writer: &mut BlobWriter) {
        let (ends, values) = runs(values);
        writer.u64(ends.len() as u64);
        writer.section(&ends);
        Frame::write(&values, writer);
    }

    pub fn read(reader: &mut TreeReader<'_>, blob: &[u8], rows: usize) -> Result<RunLength> {
        let bad = || Error::corrupted("segment has impossible runs");
        let count = usize::try_from(reader.u64()?).ok().filter(|count| *count <= rows).ok_or_else(bad)?;
        let ends = reader.section_of::<u32>(count)?;
        let mut last = 0;
        for end in blob[ends.offset..][..ends.len].chunks_exact(4) {
            let end = u32::from_le_bytes(end.try_into().expect("four bytes"));
            if end <= last {
                return Err(bad());
            }
            last = end;
        }
        if last as usize != rows {
            return Err(bad());
        }
        Ok(RunLength { ends, values: Frame::read(reader, blob, count)? })
    }

    pub fn bytes(&self) -> usize {
        self.ends.len + self.values.bytes()
    }

    /// The runs that cover `rows`, their ends and their values.
    fn covering<'a>(&self, blob: &'a Blob, rows: &Range<usize>) -> (&'a [u32], Vec<i64>) {
        let ends = blob.slice::<u32>(self.ends);
        let first = ends.partition_point(|end| *end as usize <= rows.start);
        let last = first + ends[first..].partition_point(|end| (*end as usize) < rows.end);
        let last = (last + 1).min(ends.len());
        let mut values = Vec::new();
        self.values.decode_into(blob, first..last, &mut values);
        (&ends[first..last], values)
    }

    pub fn decode_into<T: FromInt>(&self, blob: &Blob, rows: Range<usize>, out: &mut Vec<T>) {
        if rows.is_empty() {
            return;
        }
        let (ends, values) = self.covering(blob, &rows);
        let mut start = rows.start;
        for (end, value) in ends.iter().zip(values) {
            let end = (*end as usize).min(rows.end);
            out.resize(out.len() + (end - start), T::from_int(value));
            start = end;
        }
    }

    /// The value of one row.
    pub fn at(&self, blob: &Blob, row: usize) -> i64 {
        let run = blob.slice::<u32>(self.ends).partition_point(|end| *end as usize <= row);
        self.values.at(blob, run)
    }

    pub fn take_into<T: FromInt>(&self, blob: &Blob, rows: &[u32], out: &mut Vec<T>) {
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return };
        let (ends, values) = self.covering(blob, &(*first as usize..*last as usize + 1));
        let mut run = 0;
        out.extend(rows.iter().map(|row| {
            while ends[run] <= *row {
                run += 1;
            }
            T::from_int(values[run])
        }));
    }

    pub fn filter(&self, blob: &Blob, rows: Range<usize>, test: &IntTest, words: &mut [u64]) {
        if rows.is_empty() {
            return;
        }
        let (ends, values) = self.covering(blob, &rows);
        let mut passing = bits::ones(values.len());
        test.and_values(&values, &mut passing);
        // Runs that fail one after the other are cleared together.
        let (mut start, mut failing) = (rows.start, rows.start);
        for (run, end) in ends.iter().enumerate() {
            let end = (*end as usize).min(rows.end);
            if passing[run / 64] >> (run % 64) & 1 == 1 {
                if failing < start {
                    bits::clear(words, failing - rows.start, start - rows.start);
                }
                failing = end;
            }
            start = end;
        }
        if failing < start {
            bits::clear(words, failing - rows.start, start - rows.start);
        }
    }
}
