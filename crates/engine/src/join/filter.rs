//! What a join's build side tells scans of the probe side: which rows cannot match.

use super::Join;
use super::table::{Built, JoinTable};
use super::words::Words;
use crate::hash;
use crate::rows::RowPtr;
use crate::types::Class;
use crate::vector::Values;
use std::sync::atomic::Ordering;
use tidepool_base::Result;

/// Bits of a bitmap, for each of the rows.
const BITMAP_BITS_PER_ROW: u64 = 128;
const BITMAP_BITS_MIN: u64 = 1 << 16;
/// More rows than this make a filter that a test of takes as long as a look into the table.
const BLOOM_ROWS_MAX: usize = 4 << 20;
const BLOOM_BITS_PER_ROW: usize = 12;
/// Of 64 values, so few that each is tested by itself.
const FEW: u32 = 16;

/// Of a key that is an integer, by its value. NULL is no value: rows with NULL for the key match none.
#[derive(Debug)]
pub struct KeyFilter {
    bounds: Option<(i64, i64)>,
    set: Set,
}

#[derive(Debug)]
enum Set {
    /// Bounds are all that is known.
    Bounds,
    /// Bit `value - least`.
    Bitmap(Words),
    /// Word `hash >> shift`, and four bits there (Lang et al., "Performance-Optimal Filtering", PVLDB 12(5), 2019).
    Bloom { shift: u32, words: Words },
}

#[inline(always)]
fn pattern(hash: u64) -> u64 {
    1 << (hash & 63) | 1 << (hash >> 6 & 63) | 1 << (hash >> 12 & 63) | 1 << (hash >> 18 & 63)
}

impl KeyFilter {
    /// Of a key's bounds in `rows` rows, which are still to be put in.
    pub(super) fn new(join: &Join, key: usize, rows: usize, bounds: Option<(i64, i64)>) -> Result<Option<KeyFilter>> {
        let is_int = join.probe_types[join.keys[key].probe].class() == Class::Int;
        if !join.filters
            || !is_int
            || join.keys[key].nulls_equal
            || !join.kind.drops_unmatched_probe()
            || join.null_aware
        {
            return Ok(None);
        }
        let Some((min, max)) = bounds else { return Ok(Some(KeyFilter { bounds: None, set: Set::Bounds })) };
        let last = max.wrapping_sub(min) as u64;
        let set = if last < (rows as u64).saturating_mul(BITMAP_BITS_PER_ROW).max(BITMAP_BITS_MIN) {
            Set::Bitmap(Words::new(last as usize / 64 + 1)?)
        } else if rows <= BLOOM_ROWS_MAX {
            let words = (rows * BLOOM_BITS_PER_ROW).div_ceil(64).next_power_of_two().max(2);
            Set::Bloom { shift: 64 - words.trailing_zeros(), words: Words::new(words)? }
        } else {
            Set::Bounds
        };
        Ok(Some(KeyFilter { bounds: Some((min, max)), set }))
    }

    /// Least and greatest value that matches; `None`: none does.
    pub fn bounds(&self) -> Option<(i64, i64)> {
        self.bounds
    }

    /// Whether a value that passes always matches, as far as this key goes.
    pub fn is_exact(&self) -> bool {
        matches!(self.set, Set::Bitmap(_)) || self.bounds.is_none()
    }

    /// Whether it tells more than its bounds do.
    pub fn is_selective(&self) -> bool {
        !matches!(self.set, Set::Bounds)
    }

    /// Puts some values in. `scratch` is kept for its memory only.
    pub(super) fn insert(&self, values: &[i64], scratch: &mut Vec<(usize, u64)>) {
        let Some((min, _)) = self.bounds else { return };
        scratch.clear();
        let words = match &self.set {
            Set::Bounds => return,
            Set::Bitmap(words) => {
                let place = |value: &i64| {
                    let bit = value.wrapping_sub(min) as u64;
                    (bit as usize / 64, 1 << (bit % 64))
                };
                scratch.extend(values.iter().map(place));
                words
            }
            Set::Bloom { shift, words } => {
                let place = |value: &i64| {
                    let hash = hash::of_int(*value);
                    ((hash >> shift) as usize, pattern(hash))
                };
                scratch.extend(values.iter().map(place));
                words
            }
        };
        // What is set already goes first: loads do not wait for one another, changes do.
        for (word, bits) in scratch.iter_mut() {
            *bits &= !words[*word].load(Ordering::Relaxed);
        }
        for (word, bits) in scratch.iter() {
            if *bits != 0 {
                words[*word].fetch_or(*bits, Ordering::Relaxed);
            }
        }
    }

    /// Clears bit `i` where value `i` cannot match: bit `i % 64` of word `i / 64`. Bits of other values stay. Panics on
    /// fewer words than values take.
    pub fn test_ints(&self, values: &[i64], words: &mut [u64]) {
        #[inline(always)]
        fn each(values: &[i64], words: &mut [u64], test: impl Fn(i64) -> bool) {
            assert!(words.len() >= values.len().div_ceil(64));
            for (values, word) in values.chunks(64).zip(words) {
                if word.count_ones() > FEW {
                    let mut fails = 0;
                    for (bit, value) in values.iter().enumerate() {
                        fails |= u64::from(!test(*value)) << bit;
                    }
                    *word &= !fails;
                    continue;
                }
                let mut left = *word;
                while left != 0 {
                    let bit = left.trailing_zeros();
                    left &= left - 1;
                    // Bits past the last value stay.
                    if values.get(bit as usize).is_some_and(|value| !test(*value)) {
                        *word &= !(1 << bit);
                    }
                }
            }
        }
        let Some((min, max)) = self.bounds else { return each(values, words, |_| false) };
        match &self.set {
            Set::Bounds => each(values, words, |value| min <= value && value <= max),
            Set::Bitmap(bits) => tidepool_simd::and_words_in_bitmap(values, min, bits, words),
            Set::Bloom { shift, words: bits } => each(values, words, |value| {
                let hash = hash::of_int(value);
                let pattern = pattern(hash);
                bits[(hash >> shift) as usize].load(Ordering::Relaxed) & pattern == pattern
            }),
        }
    }
}

impl JoinTable {
    /// Puts rows' keys into the filters.
    pub(super) fn insert_into_filters(&self, built: &Built, rows: &[RowPtr], scratch: &mut Vec<(usize, u64)>) {
        for (filter, field) in built.filters.iter().zip(&self.key_fields) {
            let Some(filter) = filter.as_ref().filter(|filter| filter.is_selective()) else { continue };
            // SAFETY: the caller has the rows, of this layout, and nobody writes their columns.
            let key = unsafe { self.layout.gather(*field, rows, &built.owners) };
            if let Values::Int(values) = &key.values {
                filter.insert(values, scratch);
            }
        }
    }
}
