//! Where some bytes first come in others: made for texts of some dozen bytes, each searched for the same.

use memchr::arch::all::packedpair::Pair;
use memchr::memmem::Finder;

/// Searches for the same bytes again and again.
pub struct Searcher {
    finder: Finder<'static>,
    /// Places of two of them that are seldom seen together.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    pair: (usize, usize),
}

impl Searcher {
    pub fn new(needle: &[u8]) -> Searcher {
        let pair = Pair::new(needle).map_or((0, 0), |pair| (pair.index1().into(), pair.index2().into()));
        Searcher { finder: Finder::new(needle).into_owned(), pair }
    }

    pub fn needle(&self) -> &[u8] {
        self.finder.needle()
    }

    /// Where its first match begins.
    #[inline]
    pub fn find(&self, bytes: &[u8]) -> Option<usize> {
        #[cfg(target_arch = "x86_64")]
        if crate::simd::level() == crate::simd::Level::Avx512 && (1..=64).contains(&self.needle().len()) {
            // SAFETY: the processor has been found to have it, the length is right, and the pair lies within.
            return unsafe { find_avx512(bytes, self.needle(), self.pair) };
        }
        self.finder.find(bytes)
    }
}

/// The "generic SIMD" search of Muła ("SIMD-friendly algorithms for substring searching", 2016): 64 places at a time are
/// looked at for two of the needle's bytes.
///
/// # Safety
///
/// Both places of the pair are within the needle, which has 1 to 64 bytes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
unsafe fn find_avx512(bytes: &[u8], needle: &[u8], (first, second): (usize, usize)) -> Option<usize> {
    use std::arch::x86_64::{
        _mm512_cmpneq_epi8_mask, _mm512_mask_cmpeq_epi8_mask, _mm512_maskz_loadu_epi8, _mm512_set1_epi8,
    };
    let places = (bytes.len() + 1).saturating_sub(needle.len());
    let (first_byte, second_byte) = (_mm512_set1_epi8(needle[first] as i8), _mm512_set1_epi8(needle[second] as i8));
    let whole = u64::MAX >> (64 - needle.len());
    let mut start = 0;
    while start < places {
        let mask = if places - start >= 64 { u64::MAX } else { (1 << (places - start)) - 1 };
        // SAFETY: a needle that begins at one of the places ends within the bytes, so both of its bytes are there; others are
        // not read.
        let (ones, others) = unsafe {
            let at = bytes.as_ptr().add(start);
            (_mm512_maskz_loadu_epi8(mask, at.add(first).cast()), _mm512_maskz_loadu_epi8(mask, at.add(second).cast()))
        };
        let mut hits = _mm512_mask_cmpeq_epi8_mask(mask, ones, first_byte)
            & _mm512_mask_cmpeq_epi8_mask(mask, others, second_byte);
        while hits != 0 {
            let place = start + hits.trailing_zeros() as usize;
            // SAFETY: as above, and the rest of a vector is not read.
            let (found, wanted) = unsafe {
                (
                    _mm512_maskz_loadu_epi8(whole, bytes.as_ptr().add(place).cast()),
                    _mm512_maskz_loadu_epi8(whole, needle.as_ptr().cast()),
                )
            };
            // No call to a comparison: what is in registers here would have to go through memory for it.
            if _mm512_cmpneq_epi8_mask(found, wanted) == 0 {
                return Some(place);
            }
            hits &= hits - 1;
        }
        start += 64;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Level, limit};

    #[test]
    fn finds_what_memmem_finds() {
        let mut state = 7u64;
        let mut random = |limit: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % limit
        };
        for round in 0..20_000 {
            limit([Level::Plain, Level::Avx512][round % 2]);
            let text: Vec<u8> = (0..random(200)).map(|_| b"ab"[random(2)]).collect();
            let needle: Vec<u8> = (0..random(9)).map(|_| b"ab"[random(2)]).collect();
            let expected = memchr::memmem::find(&text, &needle);
            assert_eq!(Searcher::new(&needle).find(&text), expected, "{needle:?} in {text:?}");
        }
    }
}
