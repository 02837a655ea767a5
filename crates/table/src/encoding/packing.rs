//! Blocks of 1,024 unsigned integers of up to 64 bits, packed by FastLanes into the fewest bits that hold them.
//!
//! The lane (the integer type that FastLanes works in) is the narrowest that holds the width: the packed size is the same
//! and unpacking touches more values per instruction.

use crate::blob::{Plain, bytes_of, cast_slice};
use crate::rows::sync::prefetch;
use fastlanes::{BitPacking, FL_ORDER, FastLanes};
use seq_macro::seq;
use std::cell::RefCell;
use tidepool_simd::{and_words_of, simd, simd_bits};

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

    /// The difference, wrapped around.
    fn less(self, other: Self) -> Self;

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
        // The order is that of numbers whose bits are reversed, which is its own inverse.
        let eight = FL_ORDER[within / Self::LANES * (Self::LANES / 16)];
        (eight * 8 + index / 128, within % Self::LANES)
    }
}
macro_rules! lane {
    ($($t:ty),*) => { $( impl Lane for $t {
        #[inline(always)]
        fn less(self, other: $t) -> $t { self.wrapping_sub(other) }
    } )* };
}
lane!(u8, u16, u32, u64);

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

simd_bits! {
    /// Clears the bits of values that lie outside of `lower..=lower + span`, or, where `flip` is all ones, within. 64 values at a time come out of the
    /// packed words, are compared in registers, and leave their bits: they are never written to the block's scratch. Words that are zero
    /// already are passed over. `range` is its lower end and its length. As many values as `_beside` says lie side by side: 64, or all of a row.
    ///
    /// Shifts are not known to the compiler, as they are in [`unpack_lanes`]: one function a lane is as quick as one a width, of which
    /// there are 64.
    fn and_within_lanes[T: Lane, const N: usize](
        _beside: Width<N>, width: usize, packed: &[T], range: (T, T), flip: u64, words: &mut [u64; BLOCK / 64]; bits
    ) -> () {
        assert!(N == T::LANES.min(64));
        assert!(width <= T::BITS && packed.len() == width * T::LANES);
        let mask = T::mask(width);
        let (lower, span) = range;
        for (index, passing) in words.iter_mut().enumerate() {
            if *passing == 0 {
                continue;
            }
            let mut values = [T::default(); 64];
            for (part, values) in values.as_chunks_mut::<N>().0.iter_mut().enumerate() {
                let (row, lane) = T::place(index * 64 + part * N);
                let (word, shift) = (row * width / T::BITS, row * width % T::BITS);
                let low: &[T; N] = packed[word * T::LANES + lane..].first_chunk().expect("a row of the block");
                if shift + width <= T::BITS {
                    for lane in 0..N {
                        values[lane] = low[lane] >> shift & mask;
                    }
                } else {
                    let high = packed[(word + 1) * T::LANES + lane..].first_chunk::<N>().expect("a row of the block");
                    for lane in 0..N {
                        values[lane] = (low[lane] >> shift | high[lane] << (T::BITS - shift)) & mask;
                    }
                }
            }
            let mut passes = [0u8; 64];
            for lane in 0..64 {
                passes[lane] = u8::from(values[lane].less(lower) <= span);
            }
            *passing &= bits(&passes) ^ flip;
        }
    }
}

/// Of a packed block, clears bit `i % 64` of word `i / 64` unless value `i` lies in `lower..=lower + span`, or, if `inverted`, if it does. There may be
/// fewer words than a block has. The range must lie within what the width holds. Panics where [`unpack`] does, and on more words than a block has.
#[allow(clippy::useless_conversion, reason = "one of the lanes is 64 bits wide")]
pub(crate) fn and_within(
    packed: &[u8],
    width: u32,
    (lower, span): (u64, u64),
    inverted: bool,
    scratch: &mut Scratch,
    words: &mut [u64],
) {
    assert!(packed.len() == packed_bytes(width) && width <= 64);
    debug_assert!(lower.checked_add(span).is_some_and(|upper| width_of(upper) <= width));
    let mut room = [0; BLOCK / 64];
    let whole = match <&mut [u64; BLOCK / 64]>::try_from(&mut *words) {
        Ok(whole) => whole,
        Err(_) => {
            room[..words.len()].copy_from_slice(words);
            &mut room
        }
    };
    let (bits, flip) = (width as usize, if inverted { u64::MAX } else { 0 });
    match width {
        // There is one value, and it is in the range.
        0 => whole.iter_mut().for_each(|word| *word &= !flip),
        1..=8 => and_within_lanes(Width::<64>, bits, cast_slice(packed), (lower as u8, span as u8), flip, whole),
        9..=16 => and_within_lanes(Width::<64>, bits, cast_slice(packed), (lower as u16, span as u16), flip, whole),
        17..=32 => and_within_lanes(Width::<32>, bits, cast_slice(packed), (lower as u32, span as u32), flip, whole),
        // 64 of these are more than registers hold.
        _ => with_lane!(unpack(packed, width, scratch), unreachable!("a width of another lane"), |lane| {
            and_words_of(lane, |value| (u64::from(value).wrapping_sub(lower) <= span) != inverted, whole);
        }),
    }
    if words.len() < BLOCK / 64 {
        let len = words.len();
        words.copy_from_slice(&room[..len]);
    }
}

/// Asks the processor to fetch a packed block.
#[inline]
pub(crate) fn prefetch_block(packed: &[u8]) {
    for line in packed.chunks(64) {
        prefetch(line.as_ptr());
    }
}

/// Asks the processor to fetch what [`unpack_one`] will read. Panics on a width of more than 64.
#[inline]
pub(crate) fn prefetch_one(packed: &[u8], width: u32, index: usize) {
    #[inline]
    fn lane<T: Lane>(packed: &[u8], width: usize, index: usize) {
        let (row, lane) = T::place(index);
        let bit = row * width;
        let address = packed.as_ptr().wrapping_add((bit / T::BITS * T::LANES + lane) * size_of::<T>());
        prefetch(address);
        if bit % T::BITS + width > T::BITS {
            prefetch(address.wrapping_add(T::LANES * size_of::<T>()));
        }
    }
    match width {
        0 => {}
        1..=8 => lane::<u8>(packed, width as usize, index),
        9..=16 => lane::<u16>(packed, width as usize, index),
        17..=32 => lane::<u32>(packed, width as usize, index),
        _ => lane::<u64>(packed, width as usize, index),
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

    /// Packed and aligned, as regions hold them.
    fn aligned(values: &[u64; BLOCK], width: u32) -> Vec<u64> {
        let mut packed = Vec::new();
        pack(values, width, &mut packed);
        packed.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()
    }

    #[test]
    fn packed_values_are_compared_as_unpacked_ones_are() {
        use tidepool_simd::{Level, limit};
        let mut seed = 11u64;
        let mut random = || {
            seed = crate::sketch::hash_u64(seed);
            seed
        };
        let widths: &[u32] = if cfg!(miri) { &[0, 3, 8, 13, 24, 47, 64] } else { &(0..=64).collect::<Vec<u32>>() };
        for width in widths.iter().copied() {
            let most = if width == 0 { 0 } else { u64::MAX >> (64 - width) };
            let mut values: [u64; BLOCK] = std::array::from_fn(|_| random() & most);
            // Both ends are there, and some value more than once.
            (values[0], values[511], values[1023], values[64]) = (0, most, most, values[65]);
            let packed = aligned(&values, width);
            let packed = bytes_of(&packed);
            let (a, b) = (random() & most, random() & most);
            let ranges =
                [(0, 0), (0, most), (most, most), (a.min(b), a.max(b)), (values[65], values[65]), (0, most / 2)];
            for level in [Level::Plain, Level::Avx2, Level::Avx512] {
                limit(level);
                for ((lower, upper), len) in ranges.into_iter().zip([16, 1, 15, 16, 2, 7]) {
                    for inverted in [false, true] {
                        let before: Vec<u64> = (0..len).map(|word| [u64::MAX, random(), 0][word % 3]).collect();
                        let mut words = before.clone();
                        and_within(packed, width, (lower, upper - lower), inverted, &mut Scratch::new(), &mut words);
                        for row in 0..len * 64 {
                            let bit = |words: &[u64]| words[row / 64] >> (row % 64) & 1 == 1;
                            let passes = (lower..=upper).contains(&values[row]) != inverted;
                            assert_eq!(bit(&words), bit(&before) && passes, "{width} bits, {level:?}, row {row}");
                        }
                    }
                }
            }
            (0..BLOCK).for_each(|index| prefetch_one(packed, width, index));
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
