//! Integers looked up in a bitmap.

use crate::{Level, level};
use std::sync::atomic::{AtomicU64, Ordering};

/// Of 64 values, so few that each is tested by itself.
const FEW: u32 = 16;

/// Clears bit `i % 64` of word `i / 64` where bit `values[i] - least` of the bitmap is not set. Bits past the last value stay.
/// Panics on fewer words than values take. Nobody sets bits meanwhile.
pub fn and_words_in_bitmap(values: &[i64], least: i64, bitmap: &[AtomicU64], words: &mut [u64]) {
    assert!(words.len() >= values.len().div_ceil(64));
    let test = |value: i64| {
        let bit = value.wrapping_sub(least) as u64;
        let word = usize::try_from(bit / 64).ok().and_then(|word| bitmap.get(word));
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (bit % 64) & 1 == 1)
    };
    for (values, word) in values.chunks(64).zip(words) {
        if word.count_ones() > FEW {
            #[cfg(target_arch = "x86_64")]
            if let (Ok(values), Level::Avx512) = (values.try_into(), level()) {
                // SAFETY: the processor has been found to have it.
                *word &= unsafe { tested(values, least, bitmap) };
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

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
fn tested(values: &[i64; 64], least: i64, bitmap: &[AtomicU64]) -> u64 {
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
