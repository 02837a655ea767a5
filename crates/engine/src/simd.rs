//! Wider instructions where the processor has them, found out at run time: the crate itself is compiled for any x86-64.

use std::sync::atomic::{AtomicU8, Ordering};
use tidepool_table::CompareOp;

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
#[cfg(test)]
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

/// Defines a function that is compiled once for each [`Level`](crate::simd::level) and runs as the one that the processor
/// can. Its type parameters stand in brackets; closures among its arguments are compiled into each, if they are small.
///
/// ```ignore
/// simd! {
///     /// Sums, wrapping around.
///     pub fn sum[](values: &[i64]) -> i64 {
///         values.iter().fold(0, |sum, value| sum.wrapping_add(*value))
///     }
/// }
/// ```
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

            match $crate::simd::level() {
                // SAFETY: the processor has been found to have what the function is compiled for.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Level::Avx512 => unsafe { avx512($($argument),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Level::Avx2 => unsafe { avx2($($argument),*) },
                _ => plain($($argument),*),
            }
        })*
    };
}
pub(crate) use simd;

/// Bit `i` is byte `i`, each 0 or 1.
#[inline(always)]
fn word_of(bytes: &[u8; 64]) -> u64 {
    let mut word = 0;
    for (index, eight) in bytes.as_chunks::<8>().0.iter().enumerate() {
        // The product moves bit 0 of byte i to bit 56 + i.
        let bits = u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        word |= bits << (index * 8);
    }
    word
}

#[inline(always)]
fn word_with<T: Copy>(values: &[T], test: &impl Fn(T) -> bool, pack: impl Fn(&[u8; 64]) -> u64) -> u64 {
    let mut bytes = [0u8; 64];
    for (byte, value) in bytes.iter_mut().zip(values) {
        *byte = u8::from(test(*value));
    }
    pack(&bytes)
}

#[inline(always)]
fn words_with<T: Copy>(values: &[T], test: impl Fn(T) -> bool, pack: impl Fn(&[u8; 64]) -> u64 + Copy) -> Vec<u64> {
    let mut words = Vec::with_capacity(values.len().div_ceil(64));
    let (blocks, rest) = values.as_chunks::<64>();
    for block in blocks {
        words.push(word_with(block, &test, pack));
    }
    if !rest.is_empty() {
        words.push(word_with(rest, &test, pack));
    }
    words
}

#[inline(always)]
fn pair_words_with<T: Copy, U: Copy>(
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

/// A comparison that processors have an instruction for.
pub trait Comparable: Copy + PartialOrd {
    /// # Safety
    ///
    /// The processor has AVX-512 F.
    #[cfg(target_arch = "x86_64")]
    unsafe fn compare_eight<const OP: i32>(left: &[Self; 8], right: &[Self; 8]) -> u8;

    /// # Safety
    ///
    /// The processor has AVX2.
    #[cfg(target_arch = "x86_64")]
    unsafe fn compare_four<const OP: i32>(left: &[Self; 4], right: &[Self; 4]) -> u8;
}

/// As [`words_of`], of values that compare so with a constant. Of floats, NaN is not equal to, below or above any.
pub fn compare_constant<T: Comparable>(op: CompareOp, values: &[T], constant: T) -> Vec<u64> {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: each arm is of what the processor has been found to have.
    unsafe {
        match (level(), op) {
            (Level::Avx512, CompareOp::Eq) => return x86::constant_avx512::<T, { x86::EQ }>(values, constant),
            (Level::Avx512, CompareOp::Ne) => return x86::constant_avx512::<T, { x86::NE }>(values, constant),
            (Level::Avx512, CompareOp::Lt) => return x86::constant_avx512::<T, { x86::LT }>(values, constant),
            (Level::Avx512, CompareOp::Le) => return x86::constant_avx512::<T, { x86::LE }>(values, constant),
            (Level::Avx512, CompareOp::Gt) => return x86::constant_avx512::<T, { x86::GT }>(values, constant),
            (Level::Avx512, CompareOp::Ge) => return x86::constant_avx512::<T, { x86::GE }>(values, constant),
            (Level::Avx2, CompareOp::Eq) => return x86::constant_avx2::<T, { x86::EQ }>(values, constant),
            (Level::Avx2, CompareOp::Ne) => return x86::constant_avx2::<T, { x86::NE }>(values, constant),
            (Level::Avx2, CompareOp::Lt) => return x86::constant_avx2::<T, { x86::LT }>(values, constant),
            (Level::Avx2, CompareOp::Le) => return x86::constant_avx2::<T, { x86::LE }>(values, constant),
            (Level::Avx2, CompareOp::Gt) => return x86::constant_avx2::<T, { x86::GT }>(values, constant),
            (Level::Avx2, CompareOp::Ge) => return x86::constant_avx2::<T, { x86::GE }>(values, constant),
            _ => {}
        }
    }
    match op {
        CompareOp::Eq => words_with(values, |value| value == constant, word_of),
        CompareOp::Ne => words_with(values, |value| value != constant, word_of),
        CompareOp::Lt => words_with(values, |value| value < constant, word_of),
        CompareOp::Le => words_with(values, |value| value <= constant, word_of),
        CompareOp::Gt => words_with(values, |value| value > constant, word_of),
        CompareOp::Ge => words_with(values, |value| value >= constant, word_of),
    }
}

/// As [`compare_constant`], of two columns of one length.
pub fn compare_pairs<T: Comparable>(op: CompareOp, left: &[T], right: &[T]) -> Vec<u64> {
    let (op, left, right) = match op {
        CompareOp::Gt => (CompareOp::Lt, right, left),
        CompareOp::Ge => (CompareOp::Le, right, left),
        op => (op, left, right),
    };
    #[cfg(target_arch = "x86_64")]
    // SAFETY: each arm is of what the processor has been found to have.
    unsafe {
        match (level(), op) {
            (Level::Avx512, CompareOp::Eq) => return x86::pairs_avx512::<T, { x86::EQ }>(left, right),
            (Level::Avx512, CompareOp::Ne) => return x86::pairs_avx512::<T, { x86::NE }>(left, right),
            (Level::Avx512, CompareOp::Lt) => return x86::pairs_avx512::<T, { x86::LT }>(left, right),
            (Level::Avx512, CompareOp::Le) => return x86::pairs_avx512::<T, { x86::LE }>(left, right),
            (Level::Avx2, CompareOp::Eq) => return x86::pairs_avx2::<T, { x86::EQ }>(left, right),
            (Level::Avx2, CompareOp::Ne) => return x86::pairs_avx2::<T, { x86::NE }>(left, right),
            (Level::Avx2, CompareOp::Lt) => return x86::pairs_avx2::<T, { x86::LT }>(left, right),
            (Level::Avx2, CompareOp::Le) => return x86::pairs_avx2::<T, { x86::LE }>(left, right),
            _ => {}
        }
    }
    match op {
        CompareOp::Eq => pair_words_with(left, right, |a, b| a == b, word_of),
        CompareOp::Ne => pair_words_with(left, right, |a, b| a != b, word_of),
        CompareOp::Lt => pair_words_with(left, right, |a, b| a < b, word_of),
        _ => pair_words_with(left, right, |a, b| a <= b, word_of),
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Comparable, pair_words_with, words_with};
    use std::arch::x86_64::*;

    pub const EQ: i32 = 0;
    pub const LT: i32 = 1;
    pub const LE: i32 = 2;
    pub const NE: i32 = 4;
    pub const GE: i32 = 5;
    pub const GT: i32 = 6;

    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    fn pack_avx512(bytes: &[u8; 64]) -> u64 {
        // SAFETY: 64 bytes are there.
        let bytes = unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) };
        _mm512_test_epi8_mask(bytes, bytes)
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn pack_avx2(bytes: &[u8; 64]) -> u64 {
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
    pub fn words_of_pairs_avx512<T: Copy, U: Copy>(left: &[T], right: &[U], test: impl Fn(T, U) -> bool) -> Vec<u64> {
        pair_words_with(left, right, test, |bytes| pack_avx512(bytes))
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub fn words_of_pairs_avx2<T: Copy, U: Copy>(left: &[T], right: &[U], test: impl Fn(T, U) -> bool) -> Vec<u64> {
        pair_words_with(left, right, test, |bytes| pack_avx2(bytes))
    }

    impl Comparable for i64 {
        #[inline]
        #[target_feature(enable = "avx512f")]
        unsafe fn compare_eight<const OP: i32>(left: &[i64; 8], right: &[i64; 8]) -> u8 {
            // SAFETY: eight values are there.
            let (left, right) =
                unsafe { (_mm512_loadu_si512(left.as_ptr().cast()), _mm512_loadu_si512(right.as_ptr().cast())) };
            match OP {
                EQ => _mm512_cmpeq_epi64_mask(left, right),
                LT => _mm512_cmplt_epi64_mask(left, right),
                LE => _mm512_cmple_epi64_mask(left, right),
                NE => _mm512_cmpneq_epi64_mask(left, right),
                GE => _mm512_cmpge_epi64_mask(left, right),
                _ => _mm512_cmpgt_epi64_mask(left, right),
            }
        }

        #[inline]
        #[target_feature(enable = "avx2")]
        unsafe fn compare_four<const OP: i32>(left: &[i64; 4], right: &[i64; 4]) -> u8 {
            // SAFETY: four values are there.
            let (left, right) =
                unsafe { (_mm256_loadu_si256(left.as_ptr().cast()), _mm256_loadu_si256(right.as_ptr().cast())) };
            let bits = |lanes| _mm256_movemask_pd(_mm256_castsi256_pd(lanes)) as u8;
            match OP {
                EQ => bits(_mm256_cmpeq_epi64(left, right)),
                NE => bits(_mm256_cmpeq_epi64(left, right)) ^ 0xF,
                LT => bits(_mm256_cmpgt_epi64(right, left)),
                GE => bits(_mm256_cmpgt_epi64(right, left)) ^ 0xF,
                LE => bits(_mm256_cmpgt_epi64(left, right)) ^ 0xF,
                _ => bits(_mm256_cmpgt_epi64(left, right)),
            }
        }
    }

    impl Comparable for f64 {
        #[inline]
        #[target_feature(enable = "avx512f")]
        unsafe fn compare_eight<const OP: i32>(left: &[f64; 8], right: &[f64; 8]) -> u8 {
            // SAFETY: eight values are there.
            let (left, right) = unsafe { (_mm512_loadu_pd(left.as_ptr()), _mm512_loadu_pd(right.as_ptr())) };
            match OP {
                EQ => _mm512_cmp_pd_mask::<_CMP_EQ_OQ>(left, right),
                LT => _mm512_cmp_pd_mask::<_CMP_LT_OQ>(left, right),
                LE => _mm512_cmp_pd_mask::<_CMP_LE_OQ>(left, right),
                NE => _mm512_cmp_pd_mask::<_CMP_NEQ_UQ>(left, right),
                GE => _mm512_cmp_pd_mask::<_CMP_GE_OQ>(left, right),
                _ => _mm512_cmp_pd_mask::<_CMP_GT_OQ>(left, right),
            }
        }

        #[inline]
        #[target_feature(enable = "avx2")]
        unsafe fn compare_four<const OP: i32>(left: &[f64; 4], right: &[f64; 4]) -> u8 {
            // SAFETY: four values are there.
            let (left, right) = unsafe { (_mm256_loadu_pd(left.as_ptr()), _mm256_loadu_pd(right.as_ptr())) };
            let bits = |lanes| _mm256_movemask_pd(lanes) as u8;
            match OP {
                EQ => bits(_mm256_cmp_pd::<_CMP_EQ_OQ>(left, right)),
                LT => bits(_mm256_cmp_pd::<_CMP_LT_OQ>(left, right)),
                LE => bits(_mm256_cmp_pd::<_CMP_LE_OQ>(left, right)),
                NE => bits(_mm256_cmp_pd::<_CMP_NEQ_UQ>(left, right)),
                GE => bits(_mm256_cmp_pd::<_CMP_GE_OQ>(left, right)),
                _ => bits(_mm256_cmp_pd::<_CMP_GT_OQ>(left, right)),
            }
        }
    }

    /// Words of whole blocks of 64, and the bits of what is left.
    macro_rules! words {
        ($lanes:literal, $compare:ident, $values:ident, $right_of:expr, $rest:expr) => {{
            let mut words = Vec::with_capacity($values.len().div_ceil(64));
            let (blocks, rest) = $values.as_chunks::<64>();
            for (index, block) in blocks.iter().enumerate() {
                let mut word = 0;
                for (lane, lanes) in block.as_chunks::<$lanes>().0.iter().enumerate() {
                    // SAFETY: this is compiled for it.
                    let bits = unsafe { T::$compare::<OP>(lanes, $right_of(index * 64 + lane * $lanes)) };
                    word |= u64::from(bits) << (lane * $lanes);
                }
                words.push(word);
            }
            if !rest.is_empty() {
                let mut word = 0;
                for (row, value) in rest.iter().enumerate() {
                    let right = $rest(blocks.len() * 64 + row);
                    let holds = match OP {
                        EQ => *value == right,
                        NE => *value != right,
                        LT => *value < right,
                        LE => *value <= right,
                        GE => *value >= right,
                        _ => *value > right,
                    };
                    word |= u64::from(holds) << row;
                }
                words.push(word);
            }
            words
        }};
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
    pub fn constant_avx512<T: Comparable, const OP: i32>(values: &[T], constant: T) -> Vec<u64> {
        let right = [constant; 8];
        words!(8, compare_eight, values, |_| &right, |_| constant)
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub fn constant_avx2<T: Comparable, const OP: i32>(values: &[T], constant: T) -> Vec<u64> {
        let right = [constant; 4];
        words!(4, compare_four, values, |_| &right, |_| constant)
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
    pub fn pairs_avx512<T: Comparable, const OP: i32>(left: &[T], right: &[T]) -> Vec<u64> {
        let right = &right[..left.len()];
        let (eights, _) = right.as_chunks::<8>();
        words!(8, compare_eight, left, |row: usize| &eights[row / 8], |row: usize| right[row])
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub fn pairs_avx2<T: Comparable, const OP: i32>(left: &[T], right: &[T]) -> Vec<u64> {
        let right = &right[..left.len()];
        let (fours, _) = right.as_chunks::<4>();
        words!(4, compare_four, left, |row: usize| &fours[row / 4], |row: usize| right[row])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_gives_the_same() {
        let ops = [CompareOp::Eq, CompareOp::Ne, CompareOp::Lt, CompareOp::Le, CompareOp::Gt, CompareOp::Ge];
        let bits = |words: Vec<u64>, len: usize| {
            assert_eq!(words.len(), len.div_ceil(64));
            (0..words.len() * 64).map(|row| words[row / 64] >> (row % 64) & 1 == 1).collect::<Vec<bool>>()
        };
        for level in [Level::Plain, Level::Avx2, Level::Avx512] {
            limit(level);
            for len in [0usize, 1, 7, 8, 63, 64, 65, 127, 200] {
                let ints: Vec<i64> = (0..len as i64).map(|row| (row * 7) % 5 - 2 + (row % 3) * i64::MAX / 3).collect();
                let others: Vec<i64> = ints.iter().rev().copied().collect();
                let float = |value: &i64| if *value == 1 { f64::NAN } else { *value as f64 / 2.0 };
                let floats: Vec<f64> = ints.iter().map(float).collect();
                let other_floats: Vec<f64> = others.iter().map(float).collect();
                for op in ops {
                    let test = |order: Option<std::cmp::Ordering>| match (op, order) {
                        (CompareOp::Ne, None) => true,
                        (_, None) => false,
                        (CompareOp::Eq, Some(order)) => order.is_eq(),
                        (CompareOp::Ne, Some(order)) => order.is_ne(),
                        (CompareOp::Lt, Some(order)) => order.is_lt(),
                        (CompareOp::Le, Some(order)) => order.is_le(),
                        (CompareOp::Gt, Some(order)) => order.is_gt(),
                        (CompareOp::Ge, Some(order)) => order.is_ge(),
                    };
                    let padded = |expected: Vec<bool>| {
                        let mut expected = expected;
                        expected.resize(len.div_ceil(64) * 64, false);
                        expected
                    };
                    let expected = padded(ints.iter().map(|value| test(value.partial_cmp(&1))).collect());
                    assert_eq!(bits(compare_constant(op, &ints, 1), len), expected);
                    assert_eq!(bits(words_of(&ints, |value| test(value.partial_cmp(&1))), len), expected);
                    let expected = padded(floats.iter().map(|value| test(value.partial_cmp(&0.5))).collect());
                    assert_eq!(bits(compare_constant(op, &floats, 0.5), len), expected);
                    let both = ints.iter().zip(&others).map(|(a, b)| test(a.partial_cmp(b)));
                    let expected = padded(both.collect());
                    assert_eq!(bits(compare_pairs(op, &ints, &others), len), expected);
                    assert_eq!(bits(words_of_pairs(&ints, &others, |a, b| test(a.partial_cmp(&b))), len), expected);
                    let both = floats.iter().zip(&other_floats).map(|(a, b)| test(a.partial_cmp(b)));
                    assert_eq!(bits(compare_pairs(op, &floats, &other_floats), len), padded(both.collect()));
                }
                assert_eq!(map(&ints, |value| value ^ 5), ints.iter().map(|value| value ^ 5).collect::<Vec<_>>());
            }
        }
    }
}
