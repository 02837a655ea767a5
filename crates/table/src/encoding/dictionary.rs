//! Sorted dictionary: each distinct value once, ascending, and a code for each row.
//!
//! Text values are stored as the very views that Arrow uses, pointing into the bytes behind them, so a scan hands out
//! copies of views over the segment's own bytes.

use super::ints::{FromInt, Ints};
use super::strings::{INLINE_MAX, view_of};
use super::{FromFloat, Rows, Views, mismatch};
use crate::blob::{self, Blob, BlobWriter, Section, TreeReader};
use crate::logical::Logical;
use crate::statistics::float_key;
use std::sync::Arc;
use tidepool_base::{Error, Result};

#[derive(Debug)]
pub(crate) struct Dictionary {
    values: Values,
    len: usize,
    codes: Ints,
}

#[derive(Clone, Copy, Debug)]
enum Values {
    Ints(Section),
    Wide(Section),
    /// Ordered as PostgreSQL orders floats, and then by their bits.
    Floats(Section),
    Views {
        views: Section,
        bytes: Section,
    },
}

/// The order of floats within a dictionary, in which -0 and 0, and one NaN and another, are neighbours but different.
pub(crate) fn float_order(value: f64) -> (i64, u64) {
    (float_key(value), value.to_bits())
}

fn pick<S: blob::Plain, T>(values: &[S], codes: &[u32], convert: impl Fn(S) -> T) -> Vec<T> {
    codes.iter().map(|code| convert(values[*code as usize])).collect()
}

impl Dictionary {
    pub fn write_ints(values: &[i64], codes: &[i64], writer: &mut BlobWriter) {
        writer.u64(values.len() as u64);
        writer.section(values);
        Ints::write_best(codes, writer);
    }

    pub fn write_wide(values: &[i128], codes: &[i64], writer: &mut BlobWriter) {
        writer.u64(values.len() as u64);
        writer.section(values);
        Ints::write_best(codes, writer);
    }

    pub fn write_floats(values: &[f64], codes: &[i64], writer: &mut BlobWriter) {
        writer.u64(values.len() as u64);
        writer.section(values);
        Ints::write_best(codes, writer);
    }

    pub fn write_strings(values: &[&[u8]], codes: &[i64], writer: &mut BlobWriter) {
        let (mut views, mut bytes) = (Vec::with_capacity(values.len()), Vec::new());
        for value in values {
            views.push(view_of(value, bytes.len() as u32));
            if value.len() > INLINE_MAX {
                bytes.extend_from_slice(value);
            }
        }
        writer.u64(values.len() as u64);
        writer.section(&views);
        writer.section(&bytes);
        Ints::write_best(codes, writer);
    }

    pub fn read(reader: &mut TreeReader<'_>, blob: &[u8], rows: usize, logical: Logical) -> Result<Dictionary> {
        let len = usize::try_from(reader.u64()?).unwrap_or(usize::MAX);
        if len > rows.max(1) || (len == 0 && rows > 0) {
            return Err(Error::corrupted("segment has a dictionary of an impossible size"));
        }
        let values = if logical.is_int() {
            Values::Ints(reader.section_of::<i64>(len)?)
        } else if logical.is_float() {
            Values::Floats(reader.section_of::<f64>(len)?)
        } else if logical.is_bytes() {
            Values::Views { views: reader.section_of::<u128>(len)?, bytes: reader.section::<u8>()? }
        } else {
            Values::Wide(reader.section_of::<i128>(len)?)
        };
        Ok(Dictionary { values, len, codes: Ints::read(reader, blob, rows)? })
    }

    pub fn check(&self, blob: &Arc<Blob>, rows: usize, logical: Logical) -> Result<()> {
        self.codes.check(blob, rows, 0..=self.len as i64 - 1)?;
        let ascending = match self.values {
            Values::Ints(section) => {
                let values = blob.slice::<i64>(section);
                values.is_sorted() && values.iter().all(|value| logical.int_bounds().contains(value))
            }
            Values::Wide(section) => blob.slice::<i128>(section).is_sorted(),
            Values::Floats(section) => blob.slice::<f64>(section).is_sorted_by_key(|value| float_order(*value)),
            Values::Views { views, bytes } => {
                let bytes = blob.slice::<u8>(bytes);
                for view in blob.slice::<u128>(views) {
                    check_view(*view, bytes, logical == Logical::Text)?;
                }
                (1..self.len).all(|code| self.string(blob, code - 1) <= self.string(blob, code))
            }
        };
        if ascending { Ok(()) } else { Err(Error::corrupted("segment's dictionary is not in order")) }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn codes(&self) -> &Ints {
        &self.codes
    }

    pub fn value_bytes(&self) -> usize {
        match self.values {
            Values::Ints(section) | Values::Wide(section) | Values::Floats(section) => section.len,
            Values::Views { views, bytes } => views.len + bytes.len,
        }
    }

    /// A value of a dictionary of text or bytes. Panics on one of numbers or past the end.
    pub fn string<'a>(&self, blob: &'a Blob, code: usize) -> &'a [u8] {
        let Values::Views { views, bytes } = self.values else { panic!("a dictionary of numbers has no strings") };
        let view = &blob.slice::<u128>(views)[code];
        let len = *view as u32 as usize;
        if len <= INLINE_MAX {
            &blob::bytes_of(std::slice::from_ref(view))[4..4 + len]
        } else {
            &blob.slice::<u8>(bytes)[(*view >> 96) as usize..][..len]
        }
    }

    fn gather_codes(&self, blob: &Blob, rows: &Rows<'_>) -> Vec<u32> {
        let mut codes = Vec::with_capacity(rows.len());
        self.codes.gather_into(blob, rows, &mut codes);
        codes
    }

    pub fn ints<T: FromInt>(&self, blob: &Blob, rows: &Rows<'_>) -> Result<Vec<T>> {
        let Values::Ints(values) = self.values else { return Err(mismatch()) };
        Ok(pick(blob.slice::<i64>(values), &self.gather_codes(blob, rows), T::from_int))
    }

    /// Its values are of 128 bits.
    pub fn is_wide(&self) -> bool {
        matches!(self.values, Values::Wide(_))
    }

    /// Values of 128 bits that are known to fit 64.
    pub fn narrow(&self, blob: &Blob, rows: &Rows<'_>) -> Result<Vec<i64>> {
        let Values::Wide(values) = self.values else { return Err(mismatch()) };
        Ok(pick(blob.slice::<i128>(values), &self.gather_codes(blob, rows), |value| value as i64))
    }

    pub fn wide(&self, blob: &Blob, rows: &Rows<'_>) -> Result<Vec<i128>> {
        let Values::Wide(values) = self.values else { return Err(mismatch()) };
        Ok(pick(blob.slice::<i128>(values), &self.gather_codes(blob, rows), |value| value))
    }

    pub fn floats<T: FromFloat>(&self, blob: &Blob, rows: &Rows<'_>) -> Result<Vec<T>> {
        let Values::Floats(values) = self.values else { return Err(mismatch()) };
        Ok(pick(blob.slice::<f64>(values), &self.gather_codes(blob, rows), T::from_float))
    }

    fn code_at(&self, blob: &Blob, row: usize) -> usize {
        self.codes.at(blob, row) as usize
    }

    pub fn int_at(&self, blob: &Blob, row: usize) -> Result<i64> {
        let Values::Ints(values) = self.values else { return Err(mismatch()) };
        Ok(blob.slice::<i64>(values)[self.code_at(blob, row)])
    }

    pub fn wide_at(&self, blob: &Blob, row: usize) -> Result<i128> {
        let Values::Wide(values) = self.values else { return Err(mismatch()) };
        Ok(blob.slice::<i128>(values)[self.code_at(blob, row)])
    }

    pub fn float_at(&self, blob: &Blob, row: usize) -> Result<f64> {
        let Values::Floats(values) = self.values else { return Err(mismatch()) };
        Ok(blob.slice::<f64>(values)[self.code_at(blob, row)])
    }

    pub fn bytes_at<'b>(&self, blob: &'b Blob, row: usize) -> Result<&'b [u8]> {
        match self.values {
            Values::Views { .. } => Ok(self.string(blob, self.code_at(blob, row))),
            _ => Err(mismatch()),
        }
    }

    pub fn views(&self, blob: &Arc<Blob>, rows: &Rows<'_>) -> Result<Views> {
        let Values::Views { views, bytes } = self.values else { return Err(mismatch()) };
        let views = pick(blob.slice::<u128>(views), &self.gather_codes(blob, rows), |view| view);
        Ok(Views { views, buffers: vec![blob.buffer(bytes)] })
    }

    /// The same values with code `i` in row `i`.
    pub fn identity(&self) -> Dictionary {
        Dictionary { values: self.values, len: self.len, codes: Ints::Identity }
    }
}

fn check_view(view: u128, bytes: &[u8], text: bool) -> Result<()> {
    let bad = || Error::corrupted("segment has an impossible view");
    let len = view as u32 as usize;
    let view_bytes = view.to_le_bytes();
    let value = if len <= INLINE_MAX {
        if view_bytes[4 + len..].iter().any(|byte| *byte != 0) {
            return Err(bad());
        }
        &view_bytes[4..4 + len]
    } else {
        let buffer_index = (view >> 64) as u32;
        let offset = (view >> 96) as usize;
        let value = bytes.get(offset..).and_then(|bytes| bytes.get(..len)).ok_or_else(bad)?;
        if buffer_index != 0 || value[..4] != view_bytes[4..8] {
            return Err(bad());
        }
        value
    };
    if text && std::str::from_utf8(value).is_err() {
        return Err(Error::corrupted("segment's text is not UTF-8"));
    }
    Ok(())
}
