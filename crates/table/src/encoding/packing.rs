//! Blocks of 1,024 unsigned integers of up to 64 bits, packed by FastLanes into the fewest bits that hold them.
//!
//! The lane (the integer type that FastLanes works in) is the narrowest that holds the width: the packed size is the same
//! and unpacking touches more values per instruction.

use crate::blob::{Plain, bytes_of, cast_slice};
use crate::rows::sync::prefetch;
use fastlanes::{BitPacking, FL_ORDER, FastLanes};
use seq_macro::seq;
use std::cell::RefCell;
use tidepool_simd::simd;

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

/// Room for a block's values, unpacked and as what they stand for.
pub(crate) struct Room {
    pub scratch: Scratch,
    pub values: [i64; BLOCK],
}

thread_local! {
    /// A thread's own: to clear new room for each block takes as long as to unpack it.
    static ROOM: RefCell<Room> = const { RefCell::new(Room { scratch: Scratch::new(), values: [0; BLOCK] }) };
}

/// Lends the thread's room, which has anything in it.
#[inline]
pub(crate) fn with_room<R>(work: impl FnOnce(&mut Room) -> R) -> R {
    ROOM.with(|room| match room.try_borrow_mut() {
        Ok(mut room) => work(&mut room),
        // Whoever has it asks for values himself.
        Err(_) => work(&mut Room { scratch: Scratch::new(), values: [0; BLOCK] }),
    })
}

impl Scratch {
    pub const fn new() -> Scratch {
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

/// Integers that values are packed and unpacked as.
///
/// FastLanes' order (Afroozeh and Boncz, "The FastLanes Compression Layout", PVLDB 16(9), 2023): a block is as many rows as the lane has
/// bits, each of as many values as there are lanes, which lie side by side. Bits of one lane follow one another from row to row, so that all lanes of a
/// row are shifted alike.
trait Lane: FastLanes + Plain {
    const BITS: usize = 8 * size_of::<Self>();

    /// The lowest `bits` bits, of which there is at least one.
    #[inline(always)]
    fn mask(bits: usize) -> Self {
        Self::max_value() >> (Self::BITS - bits)
    }

    /// Where the values of a row begin.
    #[inline(always)]
    fn start(row: usize) -> usize {
        FL_ORDER[row / 8] * 16 + row % 8 * 128
    }

    /// Row and lane of a value.
    #[inline(always)]
    fn place(index: usize) -> (usize, usize) {
        let within = index % 128;
        // The order of eight rows is that of their numbers' bits reversed, in as many bits as there are eights.
        let eight =
            (within / Self::LANES).reverse_bits() >> (usize::BITS - 3) >> (3 - (Self::BITS / 8).trailing_zeros());
        (eight * 8 + index / 128, within % Self::LANES)
    }
}
impl Lane for u8 {}
impl Lane for u16 {}
impl Lane for u32 {}
impl Lane for u64 {}

struct Width<const W: usize>;

simd! {
    fn unpack_lanes[T: Lane, const W: usize](_width: Width<W>, packed: &[T], out: &mut [T]) -> () {
        assert!(packed.len() == W * T::LANES && out.len() == BLOCK);
        // Each with shifts that are known: the compiler makes a few wide instructions of it.
        seq!(ROW in 0..64 {
            if ROW < T::BITS {
                unpack_row(ROW, W, packed, out);
            }
        });
    }
}

#[inline(always)]
fn unpack_row<T: Lane>(row: usize, width: usize, packed: &[T], out: &mut [T]) {
    let (word, shift) = (row * width / T::BITS, row * width % T::BITS);
    let low = &packed[word * T::LANES..][..T::LANES];
    let out = &mut out[T::start(row)..][..T::LANES];
    if shift + width <= T::BITS {
        for lane in 0..T::LANES {
            out[lane] = low[lane] >> shift & T::mask(width);
        }
    } else {
        let high = &packed[(word + 1) * T::LANES..][..T::LANES];
        for lane in 0..T::LANES {
            out[lane] = (low[lane] >> shift | high[lane] << (T::BITS - shift)) & T::mask(width);
        }
    }
}

macro_rules! unpack_as {
    ($lane:ty, $width:expr, $packed:expr, $out:expr, $($w:literal)*) => {
        match $width {
            $($w => unpack_lanes::<$lane, $w>(Width::<$w>, $packed, $out),)*
            _ => unreachable!("a width of another lane"),
        }
    };
}

/// Lines of the next block that are asked for: from there on processors go ahead by themselves.
const LINES_AHEAD: usize = 4;

/// Unpacks a block. Panics if `packed` is not aligned to its lane or not `packed_bytes(width)` long.
#[inline]
pub(crate) fn unpack<'a>(packed: &[u8], width: u32, scratch: &'a mut Scratch) -> Unpacked<'a> {
    assert!(packed.len() == packed_bytes(width) && width <= 64);
    // Blocks lie one behind the other. Processors do not fetch ahead across a page, and a batch's work lies between this block and the next.
    for line in 0..LINES_AHEAD.min(packed.len() / 64) {
        prefetch(packed.as_ptr_range().end.wrapping_add(64 * line));
    }
    match width {
        0 => Unpacked::Zero,
        1..=8 => {
            let out = scratch.lane::<u8>();
            unpack_as!(u8, width, cast_slice(packed), out, 1 2 3 4 5 6 7 8);
            Unpacked::U8(out)
        }
        9..=16 => {
            let out = scratch.lane::<u16>();
            unpack_as!(u16, width, cast_slice(packed), out, 9 10 11 12 13 14 15 16);
            Unpacked::U16(out)
        }
        17..=32 => {
            let out = scratch.lane::<u32>();
            unpack_as!(u32, width, cast_slice(packed), out, 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32);
            Unpacked::U32(out)
        }
        _ => {
            let out = scratch.lane::<u64>();
            unpack_as!(u64, width, cast_slice(packed), out, 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64);
            Unpacked::U64(out)
        }
    }
}

/// One value of a packed block. Panics where [`unpack`] does, and on an index past the block.
#[inline]
pub(crate) fn unpack_one(packed: &[u8], width: u32, index: usize) -> u64 {
    #[inline]
    fn lane<T: Lane + Into<u64>>(packed: &[u8], width: usize, index: usize) -> u64 {
        let packed: &[T] = cast_slice(packed);
        let (row, lane) = T::place(index);
        let (word, shift) = (row * width / T::BITS, row * width % T::BITS);
        let low = packed[word * T::LANES + lane] >> shift;
        if shift + width <= T::BITS {
            return (low & T::mask(width)).into();
        }
        ((low | packed[(word + 1) * T::LANES + lane] << (T::BITS - shift)) & T::mask(width)).into()
    }
    assert!(packed.len() == packed_bytes(width) && index < BLOCK);
    match width {
        0 => 0,
        1..=8 => lane::<u8>(packed, width as usize, index),
        9..=16 => lane::<u16>(packed, width as usize, index),
        17..=32 => lane::<u32>(packed, width as usize, index),
        _ => lane::<u64>(packed, width as usize, index),
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
            for (index, value) in values.iter().enumerate() {
                assert_eq!(unpack_one(packed, width, index), *value, "width {width}");
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
