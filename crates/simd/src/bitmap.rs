//! Integers looked up in bitmaps and Bloom filters.

use crate::{Level, level};
use std::sync::atomic::{AtomicU64, Ordering};

/// Of 64 values, so few that each is tested by itself.
const FEW: u32 = 16;

/// Asks of the values of each word that has bits: of all at once, or one by one.
#[inline(always)]
fn each(
    values: &[i64],
    words: &mut [u64],
    test: impl Fn(i64) -> bool,
    #[cfg(target_arch = "x86_64")] wide: impl Fn(&[i64; 64]) -> u64,
) {
    assert!(words.len() >= values.len().div_ceil(64));
    for (values, word) in values.chunks(64).zip(words) {
        if word.count_ones() > FEW {
            #[cfg(target_arch = "x86_64")]
            if let (Ok(values), Level::Avx512) = (values.try_into(), level()) {
                *word &= wide(values);
                continue;
            }
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
            if values.get(bit as usize).is_some_and(|value| !test(*value)) {
                *word &= !(1 << bit);
            }
        }
    }
}

/// Clears bit `i % 64` of word `i / 64` where bit `values[i] - least` of the bitmap is not set. Bits past the last value stay.
/// Panics on fewer words than values take. Nobody sets bits meanwhile.
pub fn and_words_in_bitmap(values: &[i64], least: i64, bitmap: &[AtomicU64], words: &mut [u64]) {
    let test = |value: i64| {
        let bit = value.wrapping_sub(least) as u64;
        let word = usize::try_from(bit / 64).ok().and_then(|word| bitmap.get(word));
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (bit % 64) & 1 == 1)
    };
    each(
        values,
        words,
        test,
        #[cfg(target_arch = "x86_64")]
        // SAFETY: asked where the processor has been found to have it.
        |values| unsafe { in_bitmap(values, least, bitmap) },
    );
}

/// A Bloom filter whose bits for a value lie in one word (Lang et al., "Performance-Optimal Filtering", PVLDB 12(5), 2019): a power of two
/// of words, at least two.
#[derive(Clone, Copy, Debug)]
pub struct Bloom<'a>(pub &'a [AtomicU64]);

const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

impl Bloom<'_> {
    #[inline(always)]
    fn shift(self) -> u32 {
        64 - self.0.len().trailing_zeros()
    }

    /// The word of a value, and its bits there.
    #[inline(always)]
    pub fn place(self, value: i64) -> (usize, u64) {
        let value = value as u64;
        let product = (value ^ value >> 32).wrapping_mul(MULTIPLIER);
        let hash = product ^ product >> 32;
        let pattern = 1 << (hash & 63) | 1 << (hash >> 6 & 63) | 1 << (hash >> 12 & 63) | 1 << (hash >> 18 & 63);
        ((hash >> self.shift()) as usize, pattern)
    }

    /// As [`and_words_in_bitmap`], where the value was not put in; but for some by chance.
    pub fn and_words(self, values: &[i64], words: &mut [u64]) {
        assert!(self.0.len().is_power_of_two() && self.0.len() > 1);
        let test = |value: i64| {
            let (word, pattern) = self.place(value);
            self.0[word].load(Ordering::Relaxed) & pattern == pattern
        };
        each(
            values,
            words,
            test,
            #[cfg(target_arch = "x86_64")]
            // SAFETY: asked where the processor has been found to have it.
            |values| unsafe { in_bloom(values, self) },
        );
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
fn in_bitmap(values: &[i64; 64], least: i64, bitmap: &[AtomicU64]) -> u64 {
    use std::arch::x86_64::*;
    let (least, one) = (_mm512_set1_epi64(least), _mm512_set1_epi64(1));
    let len = _mm512_set1_epi64(bitmap.len() as i64);
    let mut passes = 0;
    for (index, eight) in values.as_chunks::<8>().0.iter().enumerate() {
        // SAFETY: eight values are there.
        let bits = _mm512_sub_epi64(unsafe { _mm512_loadu_si512(eight.as_ptr().cast()) }, least);
        let places = _mm512_srli_epi64::<6>(bits);
        let within = _mm512_cmplt_epu64_mask(places, len);
        // SAFETY: only words within the bitmap are read, which nobody writes meanwhile.
        let found =
            unsafe { _mm512_mask_i64gather_epi64::<8>(_mm512_setzero_si512(), within, places, bitmap.as_ptr().cast()) };
        // The count is taken modulo 64 by masking it.
        let moved = _mm512_srlv_epi64(found, _mm512_and_si512(bits, _mm512_set1_epi64(63)));
        passes |= u64::from(_mm512_test_epi64_mask(moved, one)) << (index * 8);
    }
    passes
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
fn in_bloom(values: &[i64; 64], bloom: Bloom<'_>) -> u64 {
    use std::arch::x86_64::*;
    let (multiplier, one) = (_mm512_set1_epi64(MULTIPLIER as i64), _mm512_set1_epi64(1));
    let (low, shift) = (_mm512_set1_epi64(63), _mm_cvtsi32_si128(bloom.shift() as i32));
    let mut passes = 0;
    for (index, eight) in values.as_chunks::<8>().0.iter().enumerate() {
        // SAFETY: eight values are there.
        let value = unsafe { _mm512_loadu_si512(eight.as_ptr().cast()) };
        let product = _mm512_mullo_epi64(_mm512_xor_si512(value, _mm512_srli_epi64::<32>(value)), multiplier);
        let hash = _mm512_xor_si512(product, _mm512_srli_epi64::<32>(product));
        let bit = |hash| _mm512_sllv_epi64(one, _mm512_and_si512(hash, low));
        let first = _mm512_or_si512(bit(hash), bit(_mm512_srli_epi64::<6>(hash)));
        let second = _mm512_or_si512(bit(_mm512_srli_epi64::<12>(hash)), bit(_mm512_srli_epi64::<18>(hash)));
        let pattern = _mm512_or_si512(first, second);
        // SAFETY: the shift leaves numbers of words, which nobody writes meanwhile.
        let found = unsafe { _mm512_i64gather_epi64::<8>(_mm512_srl_epi64(hash, shift), bloom.0.as_ptr().cast()) };
        let passed = _mm512_cmpeq_epi64_mask(_mm512_and_si512(found, pattern), pattern);
        passes |= u64::from(passed) << (index * 8);
    }
    passes
}
