//! Bits for the rows of a chunk: which values are there, which rows pass.

use crate::simd;
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer};
use std::sync::Arc;

/// A bit a row, 64 to a word, lowest first. Bits past the last row are 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mask {
    words: Arc<[u64]>,
    len: usize,
}

/// Bits of the last word that belong to rows.
#[inline]
fn tail(len: usize) -> u64 {
    if len.is_multiple_of(64) { u64::MAX } else { (1 << (len % 64)) - 1 }
}

impl Mask {
    pub fn all(len: usize) -> Mask {
        Mask::from_words(vec![u64::MAX; len.div_ceil(64)], len)
    }

    pub fn none(len: usize) -> Mask {
        Mask { words: vec![0; len.div_ceil(64)].into(), len }
    }

    /// Bits past `len` are cleared. Panics if the words are not as many as the rows take.
    pub fn from_words(mut words: Vec<u64>, len: usize) -> Mask {
        assert_eq!(words.len(), len.div_ceil(64));
        if let Some(last) = words.last_mut() {
            *last &= tail(len);
        }
        Mask { words: words.into(), len }
    }

    /// `test` of each row.
    #[inline]
    pub fn from_fn(len: usize, mut test: impl FnMut(usize) -> bool) -> Mask {
        let mut words = Vec::with_capacity(len.div_ceil(64));
        let mut row = 0;
        while row < len {
            let end = len.min(row + 64);
            let mut word = 0;
            for (bit, row) in (row..end).enumerate() {
                word |= u64::from(test(row)) << bit;
            }
            words.push(word);
            row = end;
        }
        Mask { words: words.into(), len }
    }

    /// `test` of each value. One that does not branch becomes SIMD.
    #[inline]
    pub fn of_values<T: Copy>(values: &[T], test: impl Fn(T) -> bool) -> Mask {
        Mask { words: simd::words_of(values, test).into(), len: values.len() }
    }

    /// As [`Mask::of_values`], of two columns.
    #[inline]
    pub fn of_pairs<T: Copy, U: Copy>(left: &[T], right: &[U], test: impl Fn(T, U) -> bool) -> Mask {
        assert_eq!(left.len(), right.len());
        Mask { words: simd::words_of_pairs(left, right, test).into(), len: left.len() }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn words(&self) -> &[u64] {
        &self.words
    }

    #[inline]
    pub fn get(&self, row: usize) -> bool {
        debug_assert!(row < self.len);
        self.words[row / 64] >> (row % 64) & 1 == 1
    }

    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub fn is_all(&self) -> bool {
        self.count() == self.len
    }

    pub fn is_none(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    fn zip(&self, other: &Mask, op: impl Fn(u64, u64) -> u64) -> Mask {
        assert_eq!(self.len, other.len);
        // Of bits that are 0 in both, each of these makes a 0.
        Mask { words: self.words.iter().zip(other.words.iter()).map(|(a, b)| op(*a, *b)).collect(), len: self.len }
    }

    pub fn and(&self, other: &Mask) -> Mask {
        self.zip(other, |a, b| a & b)
    }

    pub fn or(&self, other: &Mask) -> Mask {
        self.zip(other, |a, b| a | b)
    }

    pub fn and_not(&self, other: &Mask) -> Mask {
        self.zip(other, |a, b| a & !b)
    }

    pub fn not(&self) -> Mask {
        Mask::from_words(self.words.iter().map(|word| !word).collect(), self.len)
    }

    /// Appends the rows whose bit is set, ascending.
    pub fn positions_into(&self, out: &mut Vec<u32>) {
        simd::positions_into(&self.words, 0, out);
    }

    pub fn positions(&self) -> Vec<u32> {
        let mut out = Vec::new();
        self.positions_into(&mut out);
        out
    }

    /// The bits of some rows, in that order.
    pub fn gather(&self, rows: &[u32]) -> Mask {
        Mask::of_values(rows, |row| self.get(row as usize))
    }

    pub fn slice(&self, start: usize, len: usize) -> Mask {
        assert!(start + len <= self.len);
        if start.is_multiple_of(64) {
            return Mask::from_words(self.words[start / 64..][..len.div_ceil(64)].to_vec(), len);
        }
        Mask::from_fn(len, |row| self.get(start + row))
    }

    pub fn concat(parts: &[&Mask]) -> Mask {
        let len = parts.iter().map(|part| part.len).sum();
        let mut words = vec![0u64; usize::div_ceil(len, 64)];
        let mut at: usize = 0;
        for part in parts {
            // Bits past a part's last row are 0, so what spills over harms nothing.
            for (index, word) in part.words.iter().enumerate() {
                let (to, shift) = (at / 64 + index, at % 64);
                words[to] |= word << shift;
                if shift > 0 && to + 1 < words.len() {
                    words[to + 1] |= word >> (64 - shift);
                }
            }
            at += part.len;
        }
        Mask { words: words.into(), len }
    }

    pub fn from_arrow(bits: &BooleanBuffer) -> Mask {
        Mask::from_words(bits.bit_chunks().iter_padded().take(bits.len().div_ceil(64)).collect(), bits.len())
    }

    pub fn to_arrow(&self) -> BooleanBuffer {
        BooleanBuffer::new(Buffer::from_vec(self.words.to_vec()), 0, self.len)
    }

    /// `None` when all are there.
    pub fn valid_from_arrow(nulls: Option<&NullBuffer>) -> Option<Mask> {
        nulls.filter(|nulls| nulls.null_count() > 0).map(|nulls| Mask::from_arrow(nulls.inner()))
    }

    /// Rows that are valid in both; `None` stands for all.
    pub fn both(a: Option<&Mask>, b: Option<&Mask>) -> Option<Mask> {
        match (a, b) {
            (Some(a), Some(b)) => Some(a.and(b)),
            (Some(one), None) | (None, Some(one)) => Some(one.clone()),
            (None, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_come_back() {
        for len in [0, 1, 63, 64, 65, 200] {
            let mask = Mask::from_fn(len, |row| row % 3 == 0);
            let same = Mask::of_values(&(0..len).collect::<Vec<_>>(), |row| row % 3 == 0);
            assert_eq!(mask, same);
            assert_eq!(mask.count(), len.div_ceil(3));
            assert_eq!(mask.positions(), (0..len as u32).step_by(3).collect::<Vec<_>>());
            assert_eq!(mask.not().count() + mask.count(), len);
            assert_eq!(Mask::from_arrow(&mask.to_arrow()), mask);
            assert_eq!(mask.gather(&mask.positions()), Mask::all(mask.count()));
            assert_eq!(Mask::concat(&[&mask, &Mask::all(5), &mask]).count(), 2 * mask.count() + 5);
            if len > 10 {
                assert_eq!(mask.slice(3, len - 3), Mask::from_fn(len - 3, |row| row % 3 == 0));
            }
        }
    }
}
