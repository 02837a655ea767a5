//! Blocks of 1,024 unsigned integers of up to 64 bits, packed by FastLanes into the fewest bits that hold them.
//!
//! The lane (the integer type that FastLanes works in) is the narrowest that holds the width: the packed size is the same
//! and unpacking touches more values per instruction.

use crate::blob::{Plain, bytes_of, cast_slice};
use fastlanes::BitPacking;

pub(crate) const BLOCK: usize = 1024;

/// Bytes of a packed block.
#[inline]
pub(crate) fn packed_bytes(width: u32) -> usize {
    BLOCK / 8 * width as usize
}

#[inline]
pub(crate) fn width_of(max: u64) -> u32 {
    u64::BITS - max.leading_zeros()
}

/// Room for one unpacked block of any lane.
#[derive(Clone)]
#[repr(align(64))]
pub(crate) struct Scratch([u64; BLOCK]);

impl Scratch {
    pub fn new() -> Scratch {
        Scratch([0; BLOCK])
    }

    #[inline]
    fn lane<T: Plain>(&mut self) -> &mut [T] {
        const { assert!(size_of::<T>() <= 8) };
        // SAFETY: the scratch is aligned for and as long as 1,024 of the widest lane, and `Plain` admits any bits.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast::<T>(), BLOCK) }
    }
}

/// Appends `values`, each less than 2^`width`, to `out`.
pub(crate) fn pack(values: &[u64; BLOCK], width: u32, out: &mut Vec<u8>) {
    fn lane<T: BitPacking + Plain>(values: &[u64; BLOCK], width: u32, out: &mut Vec<u8>, narrow: impl Fn(u64) -> T) {
        let input: [T; BLOCK] = std::array::from_fn(|i| narrow(values[i]));
        let mut packed = [T::default(); BLOCK];
        let packed = &mut packed[..packed_bytes(width) / size_of::<T>()];
        // SAFETY: the input has 1,024 values, the output 1,024 times the width in bits, and the width fits the lane.
        unsafe { T::unchecked_pack(width as usize, &input, packed) };
        out.extend_from_slice(bytes_of(packed));
    }
    debug_assert!(values.iter().all(|value| width_of(*value) <= width));
    match width {
        0 => {}
        1..=8 => lane::<u8>(values, width, out, |value| value as u8),
        9..=16 => lane::<u16>(values, width, out, |value| value as u16),
        17..=32 => lane::<u32>(values, width, out, |value| value as u32),
        _ => lane::<u64>(values, width, out, |value| value),
    }
}

/// An unpacked block in its lane.
pub(crate) enum Unpacked<'a> {
    Zero,
    U8(&'a [u8]),
    U16(&'a [u16]),
    U32(&'a [u32]),
    U64(&'a [u64]),
}

/// Unpacks a block. Panics if `packed` is not aligned to its lane or not `packed_bytes(width)` long.
#[inline]
pub(crate) fn unpack<'a>(packed: &[u8], width: u32, scratch: &'a mut Scratch) -> Unpacked<'a> {
    #[inline]
    fn lane<'a, T: BitPacking + Plain>(packed: &[u8], width: u32, scratch: &'a mut Scratch) -> &'a [T] {
        let out = scratch.lane::<T>();
        // SAFETY: `unpack` checked the packed length; the scratch has room for 1,024; the width fits the lane.
        unsafe { T::unchecked_unpack(width as usize, cast_slice(packed), out) };
        out
    }
    assert!(packed.len() == packed_bytes(width) && width <= 64);
    match width {
        0 => Unpacked::Zero,
        1..=8 => Unpacked::U8(lane(packed, width, scratch)),
        9..=16 => Unpacked::U16(lane(packed, width, scratch)),
        17..=32 => Unpacked::U32(lane(packed, width, scratch)),
        _ => Unpacked::U64(lane(packed, width, scratch)),
    }
}

/// One value of a packed block. Panics where [`unpack`] does, and on an index past the block.
#[inline]
pub(crate) fn unpack_one(packed: &[u8], width: u32, index: usize) -> u64 {
    #[inline]
    fn lane<T: BitPacking + Plain + Into<u64>>(packed: &[u8], width: u32, index: usize) -> u64 {
        // SAFETY: `unpack_one` checked the packed length, and the width fits the lane.
        unsafe { T::unchecked_unpack_single(width as usize, cast_slice(packed), index) }.into()
    }
    assert!(packed.len() == packed_bytes(width) && index < BLOCK);
    match width {
        0 => 0,
        1..=8 => lane::<u8>(packed, width, index),
        9..=16 => lane::<u16>(packed, width, index),
        17..=32 => lane::<u32>(packed, width, index),
        _ => lane::<u64>(packed, width, index),
    }
}

/// Runs `$body` with `$values` as the unpacked slice in whichever lane it is; `$zero` for a block of width 0.
macro_rules! with_lane {
    ($unpacked:expr, $zero:expr, |$values:ident| $body:expr) => {
        match $unpacked {
            $crate::encoding::packing::Unpacked::Zero => $zero,
            $crate::encoding::packing::Unpacked::U8($values) => $body,
            $crate::encoding::packing::Unpacked::U16($values) => $body,
            $crate::encoding::packing::Unpacked::U32($values) => $body,
            $crate::encoding::packing::Unpacked::U64($values) => $body,
        }
    };
}
pub(crate) use with_lane;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::useless_conversion, reason = "one of the lanes is 64 bits wide")]
    fn every_width_comes_back() {
        let mut seed = 7u64;
        for width in 0..=64u32 {
            let mask = if width == 64 { u64::MAX } else { (1 << width) - 1 };
            let values: [u64; BLOCK] = std::array::from_fn(|_| {
                seed = crate::sketch::hash_u64(seed);
                seed & mask
            });
            let mut packed = Vec::new();
            pack(&values, width, &mut packed);
            assert_eq!(packed.len(), packed_bytes(width));
            // Vec<u8> promises no alignment; regions do.
            let mut aligned = vec![0u64; packed.len() / 8];
            for (word, bytes) in aligned.iter_mut().zip(packed.chunks_exact(8)) {
                *word = u64::from_le_bytes(bytes.try_into().unwrap());
            }
            let packed = bytes_of(&aligned);
            let mut scratch = Scratch::new();
            let all: Vec<u64> = with_lane!(unpack(packed, width, &mut scratch), vec![0; BLOCK], |lane| lane
                .iter()
                .map(|value| u64::from(*value))
                .collect());
            assert_eq!(all, values, "width {width}");
            for index in [0, 1, 500, BLOCK - 1] {
                assert_eq!(unpack_one(packed, width, index), values[index]);
            }
        }
    }

    /// Figures for docs/decisions/0001-encodings.md: `cargo test --release -p tidepool-table packing -- --ignored --nocapture`
    #[test]
    #[ignore = "a measurement"]
    fn measure_against_a_plain_shift_loop() {
        /// Values one after the other, least significant bit first.
        fn pack_in_order(values: &[u64; BLOCK], width: u32) -> Vec<u64> {
            let mut words = vec![0u64; BLOCK / 64 * width as usize + 1];
            for (i, value) in values.iter().enumerate() {
                let (word, shift) = (i * width as usize / 64, i as u32 * width % 64);
                words[word] |= value << shift;
                if shift + width > 64 {
                    words[word + 1] |= value >> (64 - shift);
                }
            }
            words
        }
        fn unpack_in_order(words: &[u64], width: u32, out: &mut [u64; BLOCK]) {
            let mask = u64::MAX >> (64 - width);
            for (i, out) in out.iter_mut().enumerate() {
                let (word, shift) = (i * width as usize / 64, i as u32 * width % 64);
                let pair = u128::from(words[word]) | u128::from(words[word + 1]) << 64;
                *out = (pair >> shift) as u64 & mask;
            }
        }
        fn per_value(mut run: impl FnMut()) -> f64 {
            let times = 20_000;
            let mut best = f64::MAX;
            for _ in 0..5 {
                let start = std::time::Instant::now();
                (0..times).for_each(|_| run());
                best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(times) / BLOCK as f64);
            }
            best
        }
        for width in [3u32, 6, 12, 18, 24, 40] {
            let values: [u64; BLOCK] =
                std::array::from_fn(|i| crate::sketch::hash_u64(i as u64) & (u64::MAX >> (64 - width)));
            let mut packed = Vec::new();
            pack(&values, width, &mut packed);
            let aligned: Vec<u64> = packed.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
            let mut scratch = Scratch::new();
            let lanes = per_value(|| {
                std::hint::black_box(unpack(std::hint::black_box(bytes_of(&aligned)), width, &mut scratch));
            });
            let words = pack_in_order(&values, width);
            let mut out = [0; BLOCK];
            let in_order =
                per_value(|| unpack_in_order(std::hint::black_box(&words), width, std::hint::black_box(&mut out)));
            println!("{width:2} bits: fastlanes {lanes:.3} ns a value, shift loop {in_order:.3} ns");
        }
    }
}
