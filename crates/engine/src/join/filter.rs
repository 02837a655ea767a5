//! What a join's build side tells scans of the probe side: which rows cannot match.

use super::Join;
use super::table::{Built, JoinTable};
use super::words::Words;
use crate::observed::Observer;
use crate::rows::RowPtr;
use crate::touch::{Pool, sampled_lines};
use crate::types::Class;
use crate::vector::Values;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use tidepool_base::Result;
use tidepool_simd::{Bloom, and_words_in_bitmap, and_words_of};

/// Bits of a bitmap, for each of the rows; and as many as a core's cache holds beside other things, for any number of rows.
const BITMAP_BITS_PER_ROW: u64 = 128;
const BITMAP_BITS_MIN: u64 = 1 << 21;
/// More rows than this make a filter that a test of takes as long as a look into the table.
const BLOOM_ROWS_MAX: usize = 4 << 20;
const BLOOM_BITS_PER_ROW: usize = 12;
/// Tests by a thread of which the first is looked at for an account, and counts for all: to look at one costs as much as some tenths of it. A prime, as
/// filters are asked in turns.
const LOOKED_AT: u64 = 7;

thread_local! {
    /// Tests until the next one that is looked at.
    static UNSEEN: Cell<u64> = const { Cell::new(0) };
}

/// Of a key that is an integer, by its value. NULL is no value: rows with NULL for the key match none.
#[derive(Debug)]
pub struct KeyFilter {
    bounds: Option<(i64, i64)>,
    set: Set,
    /// Where an account asks for them.
    tested: Option<Tested>,
}

/// Lines that tests came to and nobody has taken yet. On a line of its own: all workers write it, and read what is beside it for each test.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Tested(AtomicU64);

impl Tested {
    /// Another test, which comes to so many lines.
    fn add(&self, lines: impl FnOnce() -> u64) {
        let unseen = UNSEEN.get();
        UNSEEN.set(unseen.checked_sub(1).unwrap_or(LOOKED_AT - 1));
        if unseen == 0 {
            self.0.fetch_add(LOOKED_AT * lines(), Ordering::Relaxed);
        }
    }

    fn take(&self) -> u64 {
        // Most often there is nothing, and to look does not take the line from others.
        if self.0.load(Ordering::Relaxed) == 0 { 0 } else { self.0.swap(0, Ordering::Relaxed) }
    }
}

#[derive(Debug)]
enum Set {
    /// Bounds are all that is known.
    Bounds,
    /// Bit `value - least`.
    Bitmap(Words),
    Bloom(Words),
}

impl KeyFilter {
    /// Of a key's bounds in `rows` rows, which are still to be put in. `pool`: what it is in.
    pub(super) fn new(
        join: &Join,
        key: usize,
        rows: usize,
        bounds: Option<(i64, i64)>,
        pool: &Pool,
        observer: &Observer,
    ) -> Result<Option<KeyFilter>> {
        let is_int = join.probe_types[join.keys[key].probe].class() == Class::Int;
        if !join.filters
            || !is_int
            || join.keys[key].nulls_equal
            || !join.kind.drops_unmatched_probe()
            || join.null_aware
        {
            return Ok(None);
        }
        let Some((min, max)) = bounds else {
            return Ok(Some(KeyFilter { bounds: None, set: Set::Bounds, tested: None }));
        };
        let last = max.wrapping_sub(min) as u64;
        let set = if last < (rows as u64).saturating_mul(BITMAP_BITS_PER_ROW).max(BITMAP_BITS_MIN) {
            Set::Bitmap(Words::new(last as usize / 64 + 1, observer)?)
        } else if rows <= BLOOM_ROWS_MAX {
            let words = (rows * BLOOM_BITS_PER_ROW).div_ceil(64).next_power_of_two().max(2);
            Set::Bloom(Words::new(words, observer)?)
        } else {
            Set::Bounds
        };
        let mut filter = KeyFilter { bounds: Some((min, max)), set, tested: None };
        filter.tested = (!pool.is_small(filter.bytes())).then(Tested::default);
        Ok(Some(filter))
    }

    /// What people call it.
    pub(crate) fn kind(&self) -> &'static str {
        match self.set {
            Set::Bounds => "bounds",
            Set::Bitmap(_) => "bitmap",
            Set::Bloom(_) => "Bloom filter",
        }
    }

    pub fn bytes(&self) -> usize {
        match &self.set {
            Set::Bounds => 0,
            Set::Bitmap(words) | Set::Bloom(words) => words.len() * 8,
        }
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
            Set::Bloom(words) => {
                scratch.extend(values.iter().map(|value| Bloom(words).place(*value)));
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

    /// Lines that a test of values comes to.
    fn lines(&self, values: &[i64], min: i64) -> u64 {
        match &self.set {
            Set::Bounds => 0,
            Set::Bitmap(words) => {
                let place = |value: &i64| value.wrapping_sub(min) as u64 / 64;
                let address = |word: u64| if word < words.len() as u64 { (word + 8) * 8 } else { 0 };
                sampled_lines(values.iter().map(|value| address(place(value))), 8)
            }
            Set::Bloom(words) => {
                sampled_lines(values.iter().map(|value| (Bloom(words).place(*value).0 as u64 + 8) * 8), 8)
            }
        }
    }

    /// Lines that tests came to since it was last asked.
    pub(super) fn take_tested(&self) -> u64 {
        self.tested.as_ref().map_or(0, Tested::take)
    }

    /// The values that were put in, if they are known one by one.
    fn listed(&self) -> Option<Vec<i64>> {
        let (Some((min, _)), Set::Bitmap(words)) = (self.bounds, &self.set) else { return None };
        let mut values = Vec::new();
        for (at, word) in words.iter().enumerate() {
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 {
                values.push(min.wrapping_add((at * 64) as i64 + i64::from(bits.trailing_zeros())));
                bits &= bits - 1;
            }
        }
        Some(values)
    }

    /// Clears bit `i` where value `i` cannot match: bit `i % 64` of word `i / 64`. Bits of other values stay. Panics on
    /// fewer words than values take.
    pub fn test_ints(&self, values: &[i64], words: &mut [u64]) {
        let Some((min, max)) = self.bounds else {
            return and_words(values, |_| false, words);
        };
        if let Some(tested) = &self.tested {
            tested.add(|| self.lines(values, min));
        }
        match &self.set {
            Set::Bounds => and_words(values, |value| min <= value && value <= max, words),
            Set::Bitmap(bits) => and_words_in_bitmap(values, min, bits, words),
            Set::Bloom(bits) => Bloom(bits).and_words(values, words),
        }
    }
}

/// Bits past the last value stay.
fn and_words(values: &[i64], test: impl Fn(i64) -> bool, words: &mut [u64]) {
    let past = values.len() / 64;
    let kept = if values.len().is_multiple_of(64) {
        None
    } else {
        words.get(past).map(|word| word & u64::MAX << (values.len() % 64))
    };
    and_words_of(values, test, words);
    if let Some(kept) = kept {
        words[past] |= kept;
    }
}

impl JoinTable {
    /// All values of a key of rows that can match, each once, in order. `None` where there are more than `rows_max` rows, or where
    /// [`JoinTable::key_filter`] says nothing.
    pub fn keys_listed(&self, key: usize, rows_max: usize) -> Option<Vec<i64>> {
        let (built, filter) = (self.built().ok()?, self.key_filter(key)?);
        if filter.bounds().is_none() {
            return Some(Vec::new());
        }
        if built.total > rows_max {
            return None;
        }
        // Rows that nothing but a bitmap is kept of.
        if built.rows.is_empty() {
            return filter.listed();
        }
        let mut keys = Vec::with_capacity(built.total);
        for rows in &built.rows {
            let pointers = rows.pointers().ok()?;
            // SAFETY: the table's rows, of its layout, whose columns nobody writes once it is built.
            let values = unsafe { self.layout.gather(self.key_fields[key], &pointers, &built.owners) };
            let Values::Int(values) = &values.values else { return None };
            keys.extend_from_slice(values);
        }
        keys.sort_unstable();
        keys.dedup();
        Some(keys)
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_tests_some_are_looked_at_and_count_for_all() {
        let (one, other) = (Tested::default(), Tested::default());
        let looked_at = Cell::new(0);
        for _ in 0..10 * LOOKED_AT {
            for tested in [&one, &other] {
                tested.add(|| {
                    looked_at.set(looked_at.get() + 1);
                    3
                });
            }
        }
        assert_eq!(looked_at.get(), 20);
        assert_eq!([one.take(), other.take()], [30 * LOOKED_AT; 2], "in turns, each has its share");
        assert_eq!(one.take(), 0);
    }
}
