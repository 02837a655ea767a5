//! Hashes of rows' keys, a column at a time.

use crate::mask::Mask;
use crate::text::Text;
use crate::vector::{Values, Vector};
use tidepool_base::{Error, Result};

const K0: u64 = 0xa076_1d64_78bd_642f;
const K1: u64 = 0xe703_7ed1_a0b4_28db;
/// What NULL hashes as.
const NULL: u64 = 0x8ebc_6af0_9c88_c6e3;

/// The two halves of a product, folded: every bit of both goes into every bit of it.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[inline(always)]
pub fn of_int(value: i64) -> u64 {
    fold(value as u64 ^ K0, K1)
}

/// Of a key's hash so far and its next column's.
#[inline(always)]
fn joined(so_far: u64, next: u64) -> u64 {
    fold(so_far ^ K1, next ^ K0)
}

/// Floats that are equal in SQL hash alike: -0 and 0, and all NaNs.
#[inline(always)]
pub fn float_bits(value: f64) -> u64 {
    if value.is_nan() { f64::NAN.to_bits() } else { (value + 0.0).to_bits() }
}

#[inline]
fn of_text(text: &Text, bytes: &[u8]) -> u64 {
    if text.is_short() {
        return fold(text.head() ^ K0, text.rest() ^ K1);
    }
    let mut hash = fold(bytes.len() as u64 ^ K0, K1);
    let (eights, rest) = bytes.as_chunks::<8>();
    for eight in eights {
        hash = fold(hash ^ u64::from_le_bytes(*eight), K1);
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    fold(hash ^ u64::from_le_bytes(last), K0)
}

/// Hashes of keys: rows whose columns are all equal (or NULL in both) have the same.
pub fn of_columns(columns: &[&Vector], rows: usize) -> Result<Vec<u64>> {
    let mut hashes = Vec::new();
    of_columns_into(columns, rows, &mut hashes)?;
    Ok(hashes)
}

/// As [`of_columns`], in place of what `hashes` has.
pub fn of_columns_into(columns: &[&Vector], rows: usize, hashes: &mut Vec<u64>) -> Result<()> {
    hashes.clear();
    for (index, column) in columns.iter().enumerate() {
        fn each<T: Copy>(
            is_first: bool,
            hashes: &mut Vec<u64>,
            values: &[T],
            valid: Option<&Mask>,
            hash: impl Fn(T) -> u64,
        ) {
            match (is_first, valid) {
                (true, None) => hashes.extend(values.iter().map(|value| hash(*value))),
                (true, Some(valid)) => {
                    let of = |(row, value): (usize, &T)| if valid.get(row) { hash(*value) } else { NULL };
                    hashes.extend(values.iter().enumerate().map(of));
                }
                (false, None) => {
                    hashes.iter_mut().zip(values).for_each(|(so_far, value)| *so_far = joined(*so_far, hash(*value)));
                }
                (false, Some(valid)) => {
                    for (row, (so_far, value)) in hashes.iter_mut().zip(values).enumerate() {
                        *so_far = joined(*so_far, if valid.get(row) { hash(*value) } else { NULL });
                    }
                }
            }
        }
        let valid = column.valid.as_ref();
        match &column.values {
            Values::Int(values) => each(index == 0, hashes, values, valid, of_int),
            Values::Wide(values) => {
                each(index == 0, hashes, values, valid, |value| joined(of_int(value as i64), (value >> 64) as u64));
            }
            Values::Float(values) => each(index == 0, hashes, values, valid, |value| of_int(float_bits(value) as i64)),
            Values::Bool(values) => {
                let bytes: Vec<i64> = (0..values.len()).map(|row| i64::from(values.get(row))).collect();
                each(index == 0, hashes, &bytes, valid, of_int);
            }
            Values::Text(texts) => {
                let places: Vec<u32> = (0..rows as u32).collect();
                each(index == 0, hashes, &places, valid, |row| {
                    let text = &texts.values()[row as usize];
                    of_text(text, if text.is_short() { &[] } else { texts.bytes(row as usize) })
                });
            }
            Values::Other(_) => return Err(Error::internal("a key of a type without a hash")),
        }
    }
    if columns.is_empty() {
        hashes.resize(rows, 0);
    }
    Ok(())
}
