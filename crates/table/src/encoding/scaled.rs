//! Floats that are short decimals: integers over a power of ten, and the few values that are not such as exceptions.
//!
//! An integer of up to 53 bits and a power of ten up to 10^22 are both exact floats, and division rounds correctly, so
//! the quotient is the float nearest to the decimal: exactly what parsing that decimal gave. (ALP multiplies by an inexact
//! inverse instead: quicker to decode, but needs a second exponent and has more exceptions.)

use super::ints::{Ints, IntsPlan};
use super::{FromFloat, Rows};
use crate::blob::{Blob, BlobWriter, Section, TreeReader};
use tidepool_base::{Error, Result};

const POWERS: [f64; 19] =
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18];

/// 2^53: every integer up to here is a float.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

#[derive(Debug)]
pub(crate) struct ScaledFloats {
    exponent: u8,
    ints: Ints,
    /// Ascending rows, and their floats' bits.
    exception_rows: Section,
    exceptions: Section,
}

/// Values made ready to be written this way.
pub(crate) struct Scaling {
    exponent: u8,
    ints: Vec<i64>,
    plan: IntsPlan,
    exceptions: Vec<(u32, f64)>,
}

/// The integer that gives `value` back, bit for bit.
#[inline]
fn scale(value: f64, power: f64, single: bool) -> Option<i64> {
    let scaled = (value * power).round_ties_even();
    if scaled.is_nan() || scaled.abs() > EXACT_MAX {
        return None;
    }
    let int = scaled as i64;
    let back = int as f64 / power;
    let same =
        if single { (back as f32).to_bits() == (value as f32).to_bits() } else { back.to_bits() == value.to_bits() };
    same.then_some(int)
}

impl Scaling {
    /// `None` when the values are not decimals, going by a sample, or too many of them are not.
    pub fn of(values: &[f64], single: bool) -> Option<Scaling> {
        let sample: Vec<f64> = values.iter().step_by((values.len() / 512).max(1)).copied().collect();
        let fits = |power: f64| sample.iter().filter(|value| scale(**value, power, single).is_some()).count();
        let exponent = (0..POWERS.len()).max_by_key(|e| (fits(POWERS[*e]), std::cmp::Reverse(*e)))?;
        if fits(POWERS[exponent]) * 10 < sample.len() * 9 {
            return None;
        }
        let (mut ints, mut exceptions, mut last) = (Vec::with_capacity(values.len()), Vec::new(), 0);
        for (row, value) in values.iter().enumerate() {
            match scale(*value, POWERS[exponent], single) {
                Some(int) => last = int,
                None => exceptions.push((row as u32, *value)),
            }
            ints.push(last);
        }
        let plan = Ints::plan(&ints);
        (exceptions.len() * 8 <= values.len()).then_some(Scaling { exponent: exponent as u8, ints, plan, exceptions })
    }

    pub fn bytes(&self) -> usize {
        self.plan.bytes + 12 * self.exceptions.len()
    }

    pub fn write(&self, writer: &mut BlobWriter) {
        writer.u8(self.exponent);
        Ints::write(self.plan, &self.ints, writer);
        writer.u64(self.exceptions.len() as u64);
        writer.section(&self.exceptions.iter().map(|(row, _)| *row).collect::<Vec<_>>());
        writer.section(&self.exceptions.iter().map(|(_, value)| *value).collect::<Vec<_>>());
    }
}

impl ScaledFloats {
    pub fn read(reader: &mut TreeReader<'_>, blob: &[u8], rows: usize) -> Result<ScaledFloats> {
        let bad = || Error::corrupted("segment has impossible scaled floats");
        let exponent = reader.u8()?;
        let ints = Ints::read(reader, blob, rows)?;
        let count = usize::try_from(reader.u64()?).ok().filter(|count| *count <= rows).ok_or_else(bad)?;
        if usize::from(exponent) >= POWERS.len() {
            return Err(bad());
        }
        Ok(ScaledFloats {
            exponent,
            ints,
            exception_rows: reader.section_of::<u32>(count)?,
            exceptions: reader.section_of::<f64>(count)?,
        })
    }

    pub fn check(&self, blob: &Blob, rows: usize) -> Result<()> {
        let exceptions = blob.slice::<u32>(self.exception_rows);
        let ascending = exceptions.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascending || exceptions.last().is_some_and(|row| *row as usize >= rows) {
            return Err(Error::corrupted("segment's exceptions are not in order"));
        }
        Ok(())
    }

    pub fn bytes(&self) -> usize {
        self.ints.bytes() + self.exception_rows.len + self.exceptions.len
    }

    #[inline]
    pub fn prefetch(&self, blob: &Blob, block: usize) {
        self.ints.prefetch(blob, block);
    }

    pub fn at(&self, blob: &Blob, row: usize) -> f64 {
        match blob.slice::<u32>(self.exception_rows).binary_search(&(row as u32)) {
            Ok(found) => blob.slice::<f64>(self.exceptions)[found],
            Err(_) => self.ints.at(blob, row) as f64 / POWERS[usize::from(self.exponent)],
        }
    }

    pub fn gather<T: FromFloat>(&self, blob: &Blob, rows: &Rows<'_>) -> Vec<T> {
        let power = POWERS[usize::from(self.exponent)];
        let ints: Vec<i64> = self.ints.gather(blob, rows);
        let mut out: Vec<T> = ints.iter().map(|int| T::from_float(*int as f64 / power)).collect();
        let exception_rows = blob.slice::<u32>(self.exception_rows);
        let exceptions = blob.slice::<f64>(self.exceptions);
        match rows {
            Rows::Range(range) => {
                let first = exception_rows.partition_point(|row| (*row as usize) < range.start);
                for (row, value) in exception_rows[first..].iter().zip(&exceptions[first..]) {
                    match out.get_mut((*row as usize).wrapping_sub(range.start)) {
                        Some(out) => *out = T::from_float(*value),
                        None => break,
                    }
                }
            }
            Rows::List(rows) if !exception_rows.is_empty() => {
                for (out, row) in out.iter_mut().zip(*rows) {
                    if let Ok(found) = exception_rows.binary_search(row) {
                        *out = T::from_float(exceptions[found]);
                    }
                }
            }
            Rows::List(_) => {}
        }
        out
    }
}
