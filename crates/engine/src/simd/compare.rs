//! Comparisons of columns of numbers, a bit for each value.

use super::{Level, level, pair_words_with, word_of, words_with};
use tidepool_table::CompareOp;

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
    use super::Comparable;
    use std::arch::x86_64::*;

    pub const EQ: i32 = 0;
    pub const LT: i32 = 1;
    pub const LE: i32 = 2;
    pub const NE: i32 = 4;
    pub const GE: i32 = 5;
    pub const GT: i32 = 6;

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
