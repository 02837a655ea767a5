//! Wider instructions where the processor has them, found out at run time: everything is compiled for any x86-64.

mod bitmap;
mod positions;
#[cfg(test)]
mod tests;

pub use bitmap::{Bloom, and_words_in_bitmap};
pub use positions::{pick, positions_into};
use std::sync::atomic::{AtomicU8, Ordering};

/// What the processor can do; each can do what those before it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Plain,
    /// AVX2 with BMI: x86-64-v3 without FMA, which would round differently.
    Avx2,
    /// AVX-512 F, BW, CD, DQ and VL: x86-64-v4.
    Avx512,
}

static KNOWN: AtomicU8 = AtomicU8::new(u8::MAX);

/// No more than that from now on, so that all of them can be tested where the best is.
pub fn limit(most: Level) {
    KNOWN.store(most.min(detect()) as u8, Ordering::Relaxed);
}

#[inline]
pub fn level() -> Level {
    match KNOWN.load(Ordering::Relaxed) {
        0 => Level::Plain,
        1 => Level::Avx2,
        2 => Level::Avx512,
        _ => {
            let level = detect();
            KNOWN.store(level as u8, Ordering::Relaxed);
            level
        }
    }
}

#[cold]
fn detect() -> Level {
    #[cfg(target_arch = "x86_64")]
    {
        let has_avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt");
        let has_avx512 = has_avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512cd")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        if has_avx512 {
            return Level::Avx512;
        }
        if has_avx2 {
            return Level::Avx2;
        }
    }
    Level::Plain
}

/// Defines a function that is compiled once for each [`Level`] and runs as the one that the processor can. Its type parameters stand in brackets; closures among its arguments are compiled into each, if they are small.
///
/// ```
/// tidepool_simd::simd! {
///     /// Sums, wrapping around.
///     pub fn sum[](values: &[i64]) -> i64 {
///         values.iter().fold(0, |sum, value| sum.wrapping_add(*value))
///     }
/// }
/// assert_eq!(sum(&[1, 2, 3]), 6);
/// ```
#[macro_export]
macro_rules! simd {
    ($($(#[$attribute:meta])* $vis:vis fn $name:ident[$($generics:tt)*]($($argument:ident: $type:ty),* $(,)?)
        -> $result:ty $body:block)*) => {
        $($(#[$attribute])*
        $vis fn $name<$($generics)*>($($argument: $type),*) -> $result {
            #[inline(always)]
            fn plain<$($generics)*>($($argument: $type),*) -> $result $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
            fn avx2<$($generics)*>($($argument: $type),*) -> $result {
                plain($($argument),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(
                enable = "avx2,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl"
            )]
            fn avx512<$($generics)*>($($argument: $type),*) -> $result {
                plain($($argument),*)
            }

            match $crate::level() {
                // SAFETY: the processor has been found to have what the function is compiled for.
                #[cfg(target_arch = "x86_64")]
                $crate::Level::Avx512 => unsafe { avx512($($argument),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::Level::Avx2 => unsafe { avx2($($argument),*) },
                _ => plain($($argument),*),
            }
        })*
    };
}

/// Defines a function as [`simd`] does, which has one argument more by the name that stands behind the semicolon: a function from 64
/// bytes, each 0 or 1, to as many bits, lowest first, by the instruction of each [`Level`].
///
/// ```
/// tidepool_simd::simd_bits! {
///     /// A bit for each value that is even.
///     pub fn even[](values: &[u8; 64]; bits) -> u64 {
///         let mut bytes = [0; 64];
///         for index in 0..64 {
///             bytes[index] = u8::from(values[index] % 2 == 0);
///         }
///         bits(&bytes)
///     }
/// }
/// assert_eq!(even(&[2; 64]), u64::MAX);
/// ```
#[macro_export]
macro_rules! simd_bits {
    ($($(#[$attribute:meta])* $vis:vis fn $name:ident[$($generics:tt)*]($($argument:ident: $type:ty),*; $bits:ident)
        -> $result:ty $body:block)*) => {
        $($(#[$attribute])*
        $vis fn $name<$($generics)*>($($argument: $type),*) -> $result {
            #[inline(always)]
            fn plain<$($generics)*>($($argument: $type,)* $bits: impl Fn(&[u8; 64]) -> u64) -> $result $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
            fn avx2<$($generics)*>($($argument: $type),*) -> $result {
                plain($($argument,)* |bytes: &[u8; 64]| $crate::x86::pack_avx2(bytes))
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(
                enable = "avx2,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl"
            )]
            fn avx512<$($generics)*>($($argument: $type),*) -> $result {
                plain($($argument,)* |bytes: &[u8; 64]| $crate::x86::pack_avx512(bytes))
            }

            match $crate::level() {
                // SAFETY: the processor has been found to have what the function is compiled for.
                #[cfg(target_arch = "x86_64")]
                $crate::Level::Avx512 => unsafe { avx512($($argument),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::Level::Avx2 => unsafe { avx2($($argument),*) },
                _ => plain($($argument,)* $crate::word_of),
            }
        })*
    };
}

/// Bit `i` is byte `i`, each 0 or 1.
#[inline(always)]
pub fn word_of(bytes: &[u8; 64]) -> u64 {
    let mut word = 0;
    for (index, eight) in bytes.as_chunks::<8>().0.iter().enumerate() {
        // The product moves bit 0 of byte i to bit 56 + i.
        let bits = u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        word |= bits << (index * 8);
    }
    word
}

// By index, as iterators' own functions are not always compiled into those of wider instructions.
#[inline(always)]
fn word_with<T: Copy>(values: &[T], test: &impl Fn(T) -> bool, pack: impl Fn(&[u8; 64]) -> u64) -> u64 {
    let mut bytes = [0u8; 64];
    for index in 0..values.len().min(64) {
        bytes[index] = u8::from(test(values[index]));
    }
    pack(&bytes)
}

/// As [`word_with`], of as many values as a word has bits.
#[inline(always)]
fn whole_word_with<T: Copy>(values: &[T; 64], test: &impl Fn(T) -> bool, pack: impl Fn(&[u8; 64]) -> u64) -> u64 {
    let mut bytes = [0u8; 64];
    for index in 0..64 {
        bytes[index] = u8::from(test(values[index]));
    }
    pack(&bytes)
}

/// A bit for each value, by `test`, the bytes of 64 made bits by `pack`.
#[inline(always)]
pub fn words_with<T: Copy>(values: &[T], test: impl Fn(T) -> bool, pack: impl Fn(&[u8; 64]) -> u64 + Copy) -> Vec<u64> {
    let mut words = vec![0; values.len().div_ceil(64)];
    let (blocks, rest) = values.as_chunks::<64>();
    for index in 0..blocks.len() {
        words[index] = whole_word_with(&blocks[index], &test, pack);
    }
    if !rest.is_empty() {
        words[blocks.len()] = word_with(rest, &test, pack);
    }
    words
}

/// As [`words_with`], of two columns of one length.
#[inline(always)]
pub fn pair_words_with<T: Copy, U: Copy>(
    left: &[T],
    right: &[U],
    test: impl Fn(T, U) -> bool,
    pack: impl Fn(&[u8; 64]) -> u64,
) -> Vec<u64> {
    let mut words = Vec::with_capacity(left.len().div_ceil(64));
    for (left, right) in left.chunks(64).zip(right.chunks(64)) {
        let mut bytes = [0u8; 64];
        for ((byte, left), right) in bytes.iter_mut().zip(left).zip(right) {
            *byte = u8::from(test(*left, *right));
        }
        words.push(pack(&bytes));
    }
    words
}

/// Each value through a function. For use within [`simd`]: what iterators collect by is compiled for any processor.
#[inline(always)]
pub fn mapped<T: Copy, V>(values: &[T], f: impl Fn(T) -> V) -> Vec<V> {
    let mut out = Vec::with_capacity(values.len());
    for (slot, value) in out.spare_capacity_mut().iter_mut().zip(values) {
        slot.write(f(*value));
    }
    // SAFETY: there is room for as many, and so many have been written.
    unsafe { out.set_len(values.len()) };
    out
}

/// As [`mapped`], of two columns of one length.
#[inline(always)]
pub fn mapped_pairs<T: Copy, U: Copy, V>(left: &[T], right: &[U], f: impl Fn(T, U) -> V) -> Vec<V> {
    assert_eq!(left.len(), right.len());
    let mut out = Vec::with_capacity(left.len());
    for ((slot, a), b) in out.spare_capacity_mut().iter_mut().zip(left).zip(right) {
        slot.write(f(*a, *b));
    }
    // SAFETY: there is room for as many, and so many have been written.
    unsafe { out.set_len(left.len()) };
    out
}

simd! {
    /// Appends each value through a function.
    pub fn extend_mapped[T: Copy, V](out: &mut Vec<V>, values: &[T], f: impl Fn(T) -> V) -> () {
        out.reserve(values.len());
        for (slot, value) in out.spare_capacity_mut().iter_mut().zip(values) {
            slot.write(f(*value));
        }
        // SAFETY: there is room for as many more, and so many have been written.
        unsafe { out.set_len(out.len() + values.len()) };
    }

    /// Each value through a function, into as many places. Panics on columns of different lengths.
    pub fn map_into[T: Copy, V](out: &mut [V], values: &[T], f: impl Fn(T) -> V) -> () {
        assert_eq!(out.len(), values.len());
        for index in 0..values.len() {
            out[index] = f(values[index]);
        }
    }

    /// Each value through a function.
    pub fn map[T: Copy, V](values: &[T], f: impl Fn(T) -> V) -> Vec<V> {
        mapped(values, f)
    }

    /// Each pair of two columns' values through a function. Panics on columns of different lengths.
    pub fn map_pairs[T: Copy, U: Copy, V](left: &[T], right: &[U], f: impl Fn(T, U) -> V) -> Vec<V> {
        mapped_pairs(left, right, f)
    }
}

/// A bit for each value, 64 to a word, lowest first: whether it passes a test. Bits past the last value are 0.
#[inline]
pub fn words_of<T: Copy>(values: &[T], test: impl Fn(T) -> bool) -> Vec<u64> {
    match level() {
        // SAFETY: the processor has been found to have what the function is compiled for.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { x86::words_of_avx512(values, test) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { x86::words_of_avx2(values, test) },
        _ => words_with(values, test, word_of),
    }
}

#[inline(always)]
fn and_words_with<T: Copy>(values: &[T], test: impl Fn(T) -> bool, words: &mut [u64], pack: impl Fn(&[u8; 64]) -> u64) {
    let (blocks, rest) = values.as_chunks::<64>();
    assert!(words.len() >= values.len().div_ceil(64));
    for index in 0..blocks.len() {
        if words[index] != 0 {
            words[index] &= whole_word_with(&blocks[index], &test, &pack);
        }
    }
    if !rest.is_empty() {
        words[blocks.len()] &= word_with(rest, &test, &pack);
    }
}

/// Clears bit `i % 64` of word `i / 64` where value `i` fails a test, and those past the last value in its word. Panics on fewer words
/// than values take.
#[inline]
pub fn and_words_of<T: Copy>(values: &[T], test: impl Fn(T) -> bool, words: &mut [u64]) {
    match level() {
        // SAFETY: the processor has been found to have what the function is compiled for.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { x86::and_words_of_avx512(values, test, words) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { x86::and_words_of_avx2(values, test, words) },
        _ => and_words_with(values, test, words, word_of),
    }
}

/// As [`words_of`], of two columns of one length.
#[inline]
pub fn words_of_pairs<T: Copy, U: Copy>(left: &[T], right: &[U], test: impl Fn(T, U) -> bool) -> Vec<u64> {
    match level() {
        // SAFETY: the processor has been found to have what the function is compiled for.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { x86::words_of_pairs_avx512(left, right, test) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { x86::words_of_pairs_avx2(left, right, test) },
        _ => pair_words_with(left, right, test, word_of),
    }
}

/// Public for what [`simd_bits`] is made of alone.
#[cfg(target_arch = "x86_64")]
#[doc(hidden)]
pub mod x86 {
    use super::{and_words_with, pair_words_with, words_with};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    pub fn pack_avx512(bytes: &[u8; 64]) -> u64 {
        // SAFETY: 64 bytes are there.
        let bytes = unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) };
        _mm512_test_epi8_mask(bytes, bytes)
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    pub fn pack_avx2(bytes: &[u8; 64]) -> u64 {
        // SAFETY: 64 bytes are there.
        let (low, high) =
            unsafe { (_mm256_loadu_si256(bytes.as_ptr().cast()), _mm256_loadu_si256(bytes.as_ptr().add(32).cast())) };
        // The lowest bit, moved to where the instruction looks.
        let low = _mm256_movemask_epi8(_mm256_slli_epi16::<7>(low)) as u32;
        let high = _mm256_movemask_epi8(_mm256_slli_epi16::<7>(high)) as u32;
        u64::from(low) | u64::from(high) << 32
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
    pub fn words_of_avx512<T: Copy>(values: &[T], test: impl Fn(T) -> bool) -> Vec<u64> {
        words_with(values, test, |bytes| pack_avx512(bytes))
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub fn words_of_avx2<T: Copy>(values: &[T], test: impl Fn(T) -> bool) -> Vec<u64> {
        words_with(values, test, |bytes| pack_avx2(bytes))
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
    pub fn and_words_of_avx512<T: Copy>(values: &[T], test: impl Fn(T) -> bool, words: &mut [u64]) {
        and_words_with(values, test, words, |bytes| pack_avx512(bytes));
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub fn and_words_of_avx2<T: Copy>(values: &[T], test: impl Fn(T) -> bool, words: &mut [u64]) {
        and_words_with(values, test, words, |bytes| pack_avx2(bytes));
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
    pub fn words_of_pairs_avx512<T: Copy, U: Copy>(left: &[T], right: &[U], test: impl Fn(T, U) -> bool) -> Vec<u64> {
        pair_words_with(left, right, test, |bytes| pack_avx512(bytes))
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub fn words_of_pairs_avx2<T: Copy, U: Copy>(left: &[T], right: &[U], test: impl Fn(T, U) -> bool) -> Vec<u64> {
        pair_words_with(left, right, test, |bytes| pack_avx2(bytes))
    }
}
