//! Comparisons by the processor's widest instructions, beside what [`tidepool_simd`] has.

mod compare;
#[cfg(test)]
mod tests;

pub use compare::{Comparable, compare_constant, compare_pairs};
pub use tidepool_simd::{
    Level, level, limit, map, map_pairs, mapped, mapped_pairs, pair_words_with, pick, positions_into, simd, word_of,
    words_of, words_of_pairs, words_with,
};
