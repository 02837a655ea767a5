//! A directory for integer keys that are spread over more values than an array by key is worth.
//!
//! A bit for each value says whether it is a key; how many keys come before it is the place of its rows' address. Unlike a hash
//! directory it keeps the order of the keys, so rows that come in that order look at neighbouring lines; what has no match ends at
//! its bit; and it takes a quarter of a byte a value and eight bytes a key, which is small enough to stay in the cache, or near,
//! where rows are far. (Rank over bit vectors with counts beside the bits: Jacobson, Space-efficient Static Trees and Graphs, FOCS
//! 1989; as a hash table: Barber et al., Memory-Efficient Hash Joins, PVLDB 8(4), 2014, "concise hash table".)

use super::words::Words;
use crate::observed::Observer;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use tidepool_base::{Error, Result};

#[derive(Debug)]
pub struct Ranked {
    min: i64,
    /// Two a 64 values: the bits, and how many are set before them. The second is there once the keys are numbered.
    pairs: Words,
    /// By a key's number. The last is nobody's, and 0: where values lead that are no key.
    slots: OnceLock<Words>,
}

impl Ranked {
    /// For keys from `min` to `last` beyond it. 53200 where there is no room.
    pub fn new(min: i64, last: u64, observer: &Observer) -> Result<Ranked> {
        Ok(Ranked { min, pairs: Words::new((last as usize / 64 + 1) * 2, observer)?, slots: OnceLock::new() })
    }

    /// The keys' range is at least as large as this.
    pub fn values(&self) -> usize {
        self.pairs.len() * 32
    }

    pub fn bytes(&self) -> usize {
        self.pairs.len() * 8 + self.slots.get().map_or(0, |slots| slots.len() * 8)
    }

    /// The value is a key, and of the range.
    pub fn add(&self, value: i64) {
        let place = value.wrapping_sub(self.min) as u64 as usize;
        let (word, bit) = (&self.pairs[place / 64 * 2], 1 << (place % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Numbers the keys, once all are there. Returns how many there are.
    pub fn number(&self, observer: &Observer) -> Result<usize> {
        let mut count = 0;
        for pair in self.pairs.chunks_exact(2) {
            pair[1].store(count, Ordering::Relaxed);
            count += u64::from(pair[0].load(Ordering::Relaxed).count_ones());
        }
        let slots = Words::new(count as usize + 1, observer)?;
        self.slots.set(slots).map_err(|_| Error::internal("a join's keys were numbered twice"))?;
        Ok(count as usize)
    }

    /// Of numbered keys.
    pub fn slots(&self) -> Result<&[AtomicU64]> {
        self.slots.get().map(|slots| &slots[..]).ok_or_else(|| Error::internal("a join's keys are not numbered"))
    }

    /// The number of a value, that of the last slot if it is no key.
    #[inline(always)]
    pub fn place(&self, value: i64, slots: &[AtomicU64]) -> usize {
        let place = value.wrapping_sub(self.min) as u64 as usize;
        let Some([bits, before]) = self.pairs.get(place / 64 * 2..).and_then(|pairs| pairs.first_chunk()) else {
            return slots.len() - 1;
        };
        let bits = bits.load(Ordering::Relaxed);
        let number =
            before.load(Ordering::Relaxed) as usize + (bits & !(u64::MAX << (place % 64))).count_ones() as usize;
        if bits >> (place % 64) & 1 == 1 { number } else { slots.len() - 1 }
    }

    /// Where a value's bit is, as an address, for accounts. 0: nowhere.
    pub fn address(&self, value: i64) -> u64 {
        let place = value.wrapping_sub(self.min) as u64;
        if place < self.values() as u64 { 64 + place / 64 * 16 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_numbered_in_order() {
        let keys = [-7i64, -6, 0, 56, 57, 58, 1000, 4242];
        let ranked = Ranked::new(-7, 4249, &Observer::default()).unwrap();
        keys.iter().chain(&keys).for_each(|key| ranked.add(*key));
        assert_eq!(ranked.number(&Observer::default()).unwrap(), keys.len());
        let slots = ranked.slots().unwrap();
        assert_eq!(slots.len(), keys.len() + 1);
        for value in (-10_000..10_000).chain([i64::MIN, i64::MAX, i64::MAX - 7]) {
            let expected = keys.iter().position(|key| *key == value).unwrap_or(keys.len());
            assert_eq!(ranked.place(value, slots), expected, "{value}");
        }
        assert!(ranked.number(&Observer::default()).is_err());
    }
}
