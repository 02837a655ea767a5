//! Which rows are NULL: none, all, or as a bitmap says.

use crate::bits::words_for;
use crate::blob::{Blob, BlobWriter, Section, TreeReader};
use crate::encoding::Rows;
use arrow_buffer::{BooleanBuffer, NullBuffer};
use std::sync::Arc;
use tidepool_base::{Error, Result};

#[derive(Debug)]
pub(crate) enum Validity {
    NoneNull,
    AllNull,
    /// A set bit is a value, as in Arrow.
    Bitmap(Section),
}

impl Validity {
    pub fn write(nulls: Option<&NullBuffer>, writer: &mut BlobWriter) {
        match nulls.filter(|nulls| nulls.null_count() > 0) {
            None => writer.u8(0),
            Some(nulls) if nulls.null_count() == nulls.len() => writer.u8(1),
            Some(nulls) => {
                let mut words = vec![0u64; words_for(nulls.len())];
                for row in nulls.valid_indices() {
                    words[row / 64] |= 1 << (row % 64);
                }
                writer.u8(2);
                writer.section(&words);
            }
        }
    }

    pub fn read(reader: &mut TreeReader<'_>, blob: &[u8], rows: usize, null_count: usize) -> Result<Validity> {
        let (validity, counted) = match reader.u8()? {
            0 => (Validity::NoneNull, 0),
            1 => (Validity::AllNull, rows),
            2 => {
                let section = reader.section_of::<u64>(words_for(rows))?;
                let bytes = &blob[section.offset..][..section.len];
                let valid: usize = bytes.iter().map(|byte| byte.count_ones() as usize).sum();
                // Bits past the last row are zero, so whatever is not set among the rows is NULL.
                (Validity::Bitmap(section), rows.checked_sub(valid).unwrap_or(usize::MAX))
            }
            _ => return Err(Error::corrupted("segment has an unknown validity")),
        };
        if counted == null_count { Ok(validity) } else { Err(Error::corrupted("segment's null count is off")) }
    }

    pub fn bytes(&self) -> usize {
        match self {
            Validity::Bitmap(section) => section.len,
            _ => 0,
        }
    }

    pub fn gather(&self, blob: &Arc<Blob>, rows: &Rows<'_>) -> Option<NullBuffer> {
        match self {
            Validity::NoneNull => None,
            Validity::AllNull => Some(NullBuffer::new_null(rows.len())),
            Validity::Bitmap(section) => match rows {
                Rows::Range(range) => {
                    let bits = BooleanBuffer::new(blob.buffer(*section), range.start, range.len());
                    Some(NullBuffer::new(bits)).filter(|nulls| nulls.null_count() > 0)
                }
                Rows::List(list) => {
                    let words = blob.slice::<u64>(*section);
                    let bits = BooleanBuffer::collect_bool(list.len(), |i| {
                        let row = list[i] as usize;
                        words[row / 64] >> (row % 64) & 1 == 1
                    });
                    Some(NullBuffer::new(bits)).filter(|nulls| nulls.null_count() > 0)
                }
            },
        }
    }

    pub fn is_valid(&self, blob: &Blob, row: usize) -> bool {
        match self {
            Validity::NoneNull => true,
            Validity::AllNull => false,
            Validity::Bitmap(section) => blob.slice::<u64>(*section)[row / 64] >> (row % 64) & 1 == 1,
        }
    }

    /// The words of the bitmap from `row` (a multiple of 64) on.
    pub fn words<'a>(&self, blob: &'a Blob, row: usize) -> Option<&'a [u64]> {
        debug_assert!(row.is_multiple_of(64));
        match self {
            Validity::Bitmap(section) => Some(&blob.slice::<u64>(*section)[row / 64..]),
            _ => None,
        }
    }
}
