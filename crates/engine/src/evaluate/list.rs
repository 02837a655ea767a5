//! `IN` over lists of constants, and tests of a dictionary's codes.

use super::compare::compare;
use super::{Value, logic};
use crate::expr::Scalar;
use crate::mask::Mask;
use crate::simd;
use crate::text::Text;
use crate::types::{Class, ColumnType};
use crate::vector::{Values, Vector};
use hashbrown::HashSet;
use std::sync::Arc;
use tidepool_base::{Error, Result};
use tidepool_table::CompareOp;

/// Up to so many values are compared one after the other.
const FEW: usize = 6;

/// The widest range of integers that gets a bit for each.
const TABLE_BITS: i128 = 1 << 16;

/// A list's values.
pub enum Set {
    Few(Vec<Scalar>),
    /// Bits from the least value on.
    Table {
        least: i64,
        bits: Vec<u64>,
    },
    /// The same of at most 64, for which there is SIMD.
    Word {
        least: i64,
        bits: u64,
    },
    Ints(HashSet<i64>),
    Wides(HashSet<i128>),
    /// Bits of floats, as [`key`] gives them.
    Floats(HashSet<u64>),
    Texts {
        values: HashSet<Box<[u8]>>,
        /// Bit `n` (at most 63): some value has that length.
        lengths: u64,
    },
}

/// Equal for floats that are equal to PostgreSQL.
#[inline]
fn key(value: f64) -> u64 {
    if value.is_nan() { f64::NAN.to_bits() } else { (value + 0.0).to_bits() }
}

fn mistyped() -> Error {
    Error::internal("a list's value is of another type")
}

impl Set {
    pub fn new(values: &[Scalar], of: &ColumnType) -> Result<Set> {
        let values: Vec<&Scalar> = values.iter().filter(|value| !value.is_null()).collect();
        if values.len() <= FEW || of.class() == Class::Bool {
            return Ok(Set::Few(values.into_iter().cloned().collect()));
        }
        match of.class() {
            Class::Int => {
                let ints = values.iter().map(|value| value.as_i128().ok_or_else(mistyped));
                let ints = ints.collect::<Result<Vec<_>>>()?;
                // Beyond 64 bits, nothing is equal.
                let ints: Vec<i64> = ints.into_iter().filter_map(|value| i64::try_from(value).ok()).collect();
                let (Some(least), Some(most)) = (ints.iter().min().copied(), ints.iter().max().copied()) else {
                    return Ok(Set::Few(Vec::new()));
                };
                if i128::from(most) - i128::from(least) >= TABLE_BITS {
                    return Ok(Set::Ints(ints.into_iter().collect()));
                }
                let mut bits = vec![0u64; (most - least) as usize / 64 + 1];
                for value in ints {
                    let bit = (value - least) as usize;
                    bits[bit / 64] |= 1 << (bit % 64);
                }
                Ok(match bits[..] {
                    [bits] => Set::Word { least, bits },
                    _ => Set::Table { least, bits },
                })
            }
            Class::Wide => {
                let values = values.iter().map(|value| value.as_i128().ok_or_else(mistyped));
                Ok(Set::Wides(values.collect::<Result<_>>()?))
            }
            Class::Float => {
                let value = |value: &&Scalar| match value {
                    Scalar::Float(value) => Ok(key(*value)),
                    _ => Err(mistyped()),
                };
                Ok(Set::Floats(values.iter().map(value).collect::<Result<_>>()?))
            }
            Class::Text => {
                let value = |value: &&Scalar| match value {
                    Scalar::Text(value) => Ok(Box::from(&value[..])),
                    _ => Err(mistyped()),
                };
                let values: HashSet<Box<[u8]>> = values.iter().map(value).collect::<Result<_>>()?;
                let lengths = values.iter().fold(0, |lengths, value| lengths | 1 << value.len().min(63));
                Ok(Set::Texts { values, lengths })
            }
            Class::Bool | Class::Other => Err(mistyped()),
        }
    }

    fn mask(&self, vector: &Vector) -> Result<Mask> {
        Ok(match (self, &vector.values) {
            (Set::Few(values), Values::Text(texts)) => {
                let mut all = Mask::none(vector.len());
                for value in values {
                    let Scalar::Text(value) = value else { return Err(mistyped()) };
                    all = all.or(&super::text::compare_with(CompareOp::Eq, texts, value));
                }
                all
            }
            (Set::Few(values), Values::Int(ints)) => {
                let mut all = vec![0; ints.len().div_ceil(64)];
                for value in values.iter().filter_map(Scalar::as_i128) {
                    // Beyond 64 bits, nothing is equal.
                    let Ok(value) = i64::try_from(value) else { continue };
                    let equal = simd::compare_constant(CompareOp::Eq, ints, value);
                    all.iter_mut().zip(equal).for_each(|(all, equal)| *all |= equal);
                }
                Mask::from_words(all, ints.len())
            }
            (Set::Few(values), _) => {
                let mut all = Mask::none(vector.len());
                let value = Vector { values: vector.values.clone(), valid: None };
                for constant in values {
                    let (value, constant) = (Value::Vector(value.clone()), Value::Constant(constant.clone()));
                    let equal = compare(CompareOp::Eq, value, constant, vector.len())?;
                    all = all.or(&logic::truth_of(equal, true, vector.len())?);
                }
                all
            }
            (Set::Table { least, bits }, Values::Int(values)) => Mask::of_values(values, |value| {
                let bit = value.wrapping_sub(*least) as u64;
                bits.get((bit / 64) as usize).is_some_and(|word| word >> (bit % 64) & 1 == 1)
            }),
            (Set::Word { least, bits }, Values::Int(values)) => in_word(values, *least, *bits),
            (Set::Ints(set), Values::Int(values)) => Mask::of_values(values, |value| set.contains(&value)),
            (Set::Wides(set), Values::Wide(values)) => Mask::of_values(values, |value| set.contains(&value)),
            (Set::Floats(set), Values::Float(values)) => Mask::of_values(values, |value| set.contains(&key(value))),
            (Set::Texts { values: set, lengths }, Values::Text(texts)) => {
                Mask::of_values(texts.values(), |value: Text| {
                    // SAFETY: `texts` own their values.
                    lengths >> value.len().min(63) & 1 == 1 && set.contains(unsafe { value.bytes() })
                })
            }
            _ => return Err(mistyped()),
        })
    }
}

/// Whose bit from the least value on is set.
fn in_word(values: &[i64], least: i64, bits: u64) -> Mask {
    Mask::of_values(values, |value| {
        let bit = value.wrapping_sub(least) as u64;
        (bit < 64) & (bits >> (bit % 64) & 1 == 1)
    })
}

pub fn within(value: Value, set: &Set, has_null: bool, negated: bool, of: &ColumnType, rows: usize) -> Result<Value> {
    // Nothing is in an empty list, NULL included.
    if let Set::Few(values) = set
        && values.is_empty()
        && !has_null
    {
        return Ok(Value::Constant(Scalar::Bool(negated)));
    }
    if value.is_null() {
        return Ok(value);
    }
    let vector = value.into_vector(of, rows)?;
    let found = set.mask(&vector)?;
    // What is not among the values may still equal the one that is not known.
    let valid = match has_null {
        true => Some(Mask::both(vector.valid.as_ref(), Some(&found)).unwrap_or_else(|| found.clone())),
        false => vector.valid,
    };
    let found = if negated { found.not() } else { found };
    Ok(Value::Vector(logic::of_mask(found).with_valid(valid)))
}

/// Which codes pass, in the form that is quickest to ask.
pub enum CodeTest {
    /// Those from the first to the last.
    Range(i64, i64),
    /// Bits of at most 64 codes.
    Word(u64),
    Table(Arc<[bool]>),
}

impl CodeTest {
    pub fn new(passes: &Arc<[bool]>) -> CodeTest {
        let first = passes.iter().position(|passes| *passes);
        let last = passes.iter().rposition(|passes| *passes);
        match first.zip(last) {
            None => CodeTest::Range(1, 0),
            Some((first, last)) if passes[first..=last].iter().all(|passes| *passes) => {
                CodeTest::Range(first as i64, last as i64)
            }
            Some(_) if passes.len() <= 64 => {
                let bits = passes.iter().rev().fold(0, |bits, passes| bits << 1 | u64::from(*passes));
                CodeTest::Word(bits)
            }
            Some(_) => CodeTest::Table(Arc::clone(passes)),
        }
    }

    pub fn apply(&self, codes: &Vector) -> Result<Vector> {
        let values = codes.as_ints()?;
        let mask = match self {
            CodeTest::Range(first, last) if first == last => Mask::of_values(values, |code| code == *first),
            CodeTest::Range(first, last) => Mask::of_values(values, |code| (*first <= code) & (code <= *last)),
            CodeTest::Word(bits) => in_word(values, 0, *bits),
            // The code of a NULL may be anything.
            CodeTest::Table(passes) => {
                Mask::of_values(values, |code| passes.get(code as usize).copied().unwrap_or(false))
            }
        };
        Ok(logic::of_mask(mask).with_valid(codes.valid.clone()))
    }
}
