//! Values as they lie in Arrow: floats, wide decimals, intervals.

use super::{FromFloat, Rows, mismatch};
use crate::blob::{self, Blob, BlobWriter, Section, TreeReader};
use crate::logical::Logical;
use tidepool_base::{Error, Result};

#[derive(Debug)]
pub(crate) enum Plain {
    Float32(Section),
    Float64(Section),
    Wide(Section),
}

fn gather<S: blob::Plain, T>(values: &[S], rows: &Rows<'_>, convert: impl Fn(S) -> T) -> Vec<T> {
    match rows {
        Rows::Range(range) => values[range.clone()].iter().map(|value| convert(*value)).collect(),
        Rows::List(rows) => rows.iter().map(|row| convert(values[*row as usize])).collect(),
    }
}

impl Plain {
    pub fn write_floats(values: &[f64], single: bool, writer: &mut BlobWriter) {
        if single {
            writer.section(&values.iter().map(|value| *value as f32).collect::<Vec<_>>());
        } else {
            writer.section(values);
        }
    }

    pub fn write_wide(values: &[i128], writer: &mut BlobWriter) {
        writer.section(values);
    }

    pub fn read(reader: &mut TreeReader<'_>, rows: usize, logical: Logical) -> Result<Plain> {
        match logical {
            Logical::Float32 => Ok(Plain::Float32(reader.section_of::<f32>(rows)?)),
            Logical::Float64 => Ok(Plain::Float64(reader.section_of::<f64>(rows)?)),
            Logical::Decimal { .. } | Logical::Interval => Ok(Plain::Wide(reader.section_of::<i128>(rows)?)),
            _ => Err(Error::corrupted("segment's encoding does not fit its type")),
        }
    }

    pub fn bytes(&self) -> usize {
        let (Plain::Float32(section) | Plain::Float64(section) | Plain::Wide(section)) = self;
        section.len
    }

    pub fn floats<T: FromFloat>(&self, blob: &Blob, rows: &Rows<'_>) -> Result<Vec<T>> {
        match self {
            Plain::Float32(section) => Ok(gather(blob.slice::<f32>(*section), rows, |v| T::from_float(v.into()))),
            Plain::Float64(section) => Ok(gather(blob.slice::<f64>(*section), rows, T::from_float)),
            Plain::Wide(_) => Err(mismatch()),
        }
    }

    pub fn float_at(&self, blob: &Blob, row: usize) -> Result<f64> {
        match self {
            Plain::Float32(section) => Ok(blob.slice::<f32>(*section)[row].into()),
            Plain::Float64(section) => Ok(blob.slice::<f64>(*section)[row]),
            Plain::Wide(_) => Err(mismatch()),
        }
    }

    pub fn wide_at(&self, blob: &Blob, row: usize) -> Result<i128> {
        match self {
            Plain::Wide(section) => Ok(blob.slice::<i128>(*section)[row]),
            _ => Err(mismatch()),
        }
    }

    pub fn wide(&self, blob: &Blob, rows: &Rows<'_>) -> Result<Vec<i128>> {
        match self {
            Plain::Wide(section) => Ok(gather(blob.slice::<i128>(*section), rows, |value| value)),
            _ => Err(mismatch()),
        }
    }
}
