//! Keys of rows as numbers that order as the rows do.
//!
//! Each column takes as many bits as its bounds need, the first column the highest, with a bit for NULL above. What does not
//! fit into 128 bits, and the rest of texts, is compared where the numbers are equal.

use super::SortKey;
use crate::hash::float_bits;
use crate::types::{Class, ColumnType};
use crate::vector::{Chunk, Values, Vector};
use std::cmp::Ordering;
use tidepool_base::{Error, Result};

const KEY_BITS: u32 = 128;
/// Of a text, more than this is not in the key.
const TEXT_BITS_MAX: u32 = 96;

#[derive(Clone, Copy, Debug)]
struct Part {
    key: SortKey,
    is_nullable: bool,
    lower: i128,
    /// Bits that its values have, and those of them, the highest, that are in the key.
    bits: u32,
    kept: u32,
}

#[derive(Debug)]
pub(crate) struct KeyPlan {
    keys: Vec<SortKey>,
    parts: Vec<Part>,
    /// Bits of all parts.
    bits: u32,
    /// Rows with equal numbers have equal keys.
    pub is_decisive: bool,
}

/// An integer that orders as PostgreSQL orders floats.
pub(crate) fn float_order(value: f64) -> i64 {
    let bits = float_bits(value) as i64;
    bits ^ (((bits >> 63) as u64) >> 1) as i64
}

impl KeyPlan {
    /// Fails for columns of a type without an order.
    pub fn new(keys: &[SortKey], types: &[ColumnType]) -> Result<KeyPlan> {
        let mut plan = KeyPlan { keys: keys.to_vec(), parts: Vec::new(), bits: 0, is_decisive: true };
        for key in keys {
            let of = types.get(key.column).ok_or_else(|| Error::internal("a sort key that is not there"))?;
            let class = of.class();
            if class == Class::Other {
                return Err(Error::internal("a sort key of a type without an order"));
            }
            let left = (KEY_BITS - plan.bits).saturating_sub(u32::from(of.nullable));
            if left == 0 || !plan.is_decisive {
                plan.is_decisive = false;
                continue;
            }
            let (lower, upper) = match &of.dictionary {
                Some(dictionary) => (0, dictionary.len().max(1) as i128 - 1),
                None => of.bounds.unwrap_or((i128::MIN, i128::MAX)),
            };
            let bits = match class {
                Class::Int | Class::Wide => KEY_BITS - (upper.max(lower).wrapping_sub(lower) as u128).leading_zeros(),
                Class::Float => 64,
                Class::Bool => 1,
                _ => left.min(TEXT_BITS_MAX) / 8 * 8,
            };
            let kept = bits.min(left);
            plan.is_decisive = class != Class::Text && kept == bits;
            plan.bits += kept + u32::from(of.nullable);
            plan.parts.push(Part { key: *key, is_nullable: of.nullable, lower, bits, kept });
        }
        Ok(plan)
    }

    /// The keys of a chunk's rows.
    pub fn encode(&self, chunk: &Chunk) -> Result<Vec<u128>> {
        let mut out = vec![0u128; chunk.rows];
        for part in &self.parts {
            let vector = &chunk.columns[part.key.column];
            match &vector.values {
                Values::Int(values) => {
                    let lower = part.lower as i64;
                    part.add(vector, &mut out, |row| values[row].wrapping_sub(lower) as u64 as u128);
                }
                Values::Wide(values) => {
                    part.add(vector, &mut out, |row| values[row].wrapping_sub(part.lower) as u128);
                }
                Values::Float(values) => {
                    part.add(vector, &mut out, |row| (float_order(values[row]) as u64 ^ (1 << 63)).into());
                }
                Values::Bool(values) => part.add(vector, &mut out, |row| values.get(row).into()),
                Values::Text(texts) => {
                    let bytes = part.bits as usize / 8;
                    part.add(vector, &mut out, |row| {
                        let text = texts.bytes(row);
                        let mut first = [0; 16];
                        let len = text.len().min(bytes);
                        first[16 - bytes..][..len].copy_from_slice(&text[..len]);
                        u128::from_be_bytes(first)
                    });
                }
                Values::Other(_) => return Err(Error::internal("a sort key of a type without an order")),
            }
        }
        // So that the upper half alone tells most.
        if self.bits > 0 {
            let shift = KEY_BITS - self.bits;
            out.iter_mut().for_each(|key| *key <<= shift);
        }
        Ok(out)
    }

    /// The order of two rows by all of their keys.
    pub fn compare(&self, a: (&Chunk, usize), b: (&Chunk, usize)) -> Ordering {
        let by = |key: &SortKey| {
            let (left, right) = (&a.0.columns[key.column], &b.0.columns[key.column]);
            match (left.is_valid(a.1), right.is_valid(b.1)) {
                (true, true) => {}
                (false, false) => return Ordering::Equal,
                (is_valid, _) => return if is_valid == key.nulls_first { Ordering::Greater } else { Ordering::Less },
            }
            let order = compare_values(left, a.1, right, b.1);
            if key.descending { order.reverse() } else { order }
        };
        self.keys.iter().map(by).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    }
}

/// Of two values that are there, as `ORDER BY` has them, ascending.
pub(crate) fn compare_values(left: &Vector, a: usize, right: &Vector, b: usize) -> Ordering {
    match (&left.values, &right.values) {
        (Values::Int(left), Values::Int(right)) => left[a].cmp(&right[b]),
        (Values::Wide(left), Values::Wide(right)) => left[a].cmp(&right[b]),
        (Values::Float(left), Values::Float(right)) => float_order(left[a]).cmp(&float_order(right[b])),
        (Values::Bool(left), Values::Bool(right)) => left.get(a).cmp(&right.get(b)),
        (Values::Text(left), Values::Text(right)) => left.bytes(a).cmp(right.bytes(b)),
        // Columns have one class in all chunks, and `KeyPlan::new` refused others.
        _ => Ordering::Equal,
    }
}

impl Part {
    #[inline(always)]
    fn add(&self, vector: &Vector, out: &mut [u128], value: impl Fn(usize) -> u128) {
        let Part { kept, bits, is_nullable, key, .. } = *self;
        let all = if bits == 0 { 0 } else { u128::MAX >> (KEY_BITS - bits) };
        let flip = if key.descending { all } else { 0 };
        // All bits of a key are shifted out when one column takes them all.
        let push = |out: &mut u128, value: u128, bits: u32| {
            *out = if bits == KEY_BITS { value } else { *out << bits | value };
        };
        for (row, out) in out.iter_mut().enumerate() {
            let is_valid = vector.is_valid(row);
            if is_nullable {
                push(out, u128::from(is_valid == key.nulls_first), 1);
            }
            let value = if is_valid { (value(row) ^ flip) & all } else { 0 };
            push(out, if bits == kept { value } else { value >> (bits - kept) }, kept);
        }
    }
}
