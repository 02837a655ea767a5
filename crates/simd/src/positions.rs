//! Rows whose bit is set, and values at rows.

use crate::{Level, level, simd};

/// Appends the positions of set bits, ascending; the lowest bit of the first word is `base`.
pub fn positions_into(words: &[u64], base: u32, out: &mut Vec<u32>) {
    let count: usize = words.iter().map(|word| word.count_ones() as usize).sum();
    #[cfg(target_arch = "x86_64")]
    // Where few are set, one at a time is as quick: but not where they come often enough for processors to guess wrong of each word.
    if level() == Level::Avx512 && count > words.len() / 2 {
        // SAFETY: the processor has been found to have it.
        unsafe { compressed_into(words, base, count, out) };
        return;
    }
    out.reserve(count);
    for (index, word) in words.iter().enumerate() {
        let base = base + (index * 64) as u32;
        let mut left = *word;
        while left != 0 {
            out.push(base + left.trailing_zeros());
            left &= left - 1;
        }
    }
}

/// `count` bits are set.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
fn compressed_into(words: &[u64], base: u32, count: usize, out: &mut Vec<u32>) {
    use std::arch::x86_64::{
        _mm512_add_epi32, _mm512_maskz_compress_epi32, _mm512_set1_epi32, _mm512_setr_epi32, _mm512_storeu_si512,
    };
    // Each store is of sixteen, of which those that are none are written over, or not looked at.
    out.reserve(count + 16);
    let start = out.len();
    let slots = out.spare_capacity_mut();
    let first = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let mut rows = _mm512_add_epi32(first, _mm512_set1_epi32(base as i32));
    let sixteen = _mm512_set1_epi32(16);
    let mut at = 0;
    for word in words {
        for quarter in 0..4 {
            let bits = (word >> (quarter * 16)) as u16;
            let found = _mm512_maskz_compress_epi32(bits, rows);
            // SAFETY: at most `count` have been written before, and there is room for sixteen more than that.
            unsafe { _mm512_storeu_si512(slots.as_mut_ptr().add(at).cast(), found) };
            at += bits.count_ones() as usize;
            rows = _mm512_add_epi32(rows, sixteen);
        }
    }
    assert_eq!(at, count);
    // SAFETY: so many have been written.
    unsafe { out.set_len(start + count) };
}

simd! {
    fn most[](rows: &[u32]) -> u32 {
        let mut most = 0;
        for row in rows {
            most = most.max(*row);
        }
        most
    }
}

/// Values at some rows, in that order. Panics if one is past the last.
#[inline]
pub fn pick<T: Copy>(values: &[T], rows: &[u32]) -> Vec<T> {
    let mut out = Vec::with_capacity(rows.len());
    if rows.is_empty() {
        return out;
    }
    assert!((most(rows) as usize) < values.len(), "a row is past the last");
    for (slot, row) in out.spare_capacity_mut().iter_mut().zip(rows) {
        // SAFETY: no row is past the last.
        slot.write(unsafe { *values.get_unchecked(*row as usize) });
    }
    // SAFETY: there is room for as many, and so many have been written.
    unsafe { out.set_len(rows.len()) };
    out
}
