//! Frame of reference: each block of 1,024 is its minimum and the packed distances from it.
//!
//! The minimum and the width bound a block's values, so a filter often decides a block without unpacking it, and
//! otherwise compares packed distances with a bound moved into the same frame, in the narrowest lane.

use super::{Blocks, BlocksWriter, FromInt, IntTest, Keys, block_ranges, by_block};
use crate::bits;
use crate::blob::{Blob, BlobWriter, Plain, Section, TreeReader};
use crate::encoding::packing::{BLOCK, Room, packed_bytes, unpack, unpack_one, width_of, with_lane, with_room};
use std::ops::Range;
use tidepool_base::Result;
use tidepool_simd::{and_words_of, extend_mapped, map_into};

#[derive(Debug)]
pub(crate) struct Frame {
    references: Section,
    blocks: Blocks,
}

/// Up to so many rows of a block are fetched one by one; unpacking the block costs about as much as this many.
pub(crate) const SINGLES_MAX: usize = 12;

fn frame(values: &[i64]) -> (i64, u32) {
    let (min, max) = values.iter().fold((i64::MAX, i64::MIN), |(min, max), value| (min.min(*value), max.max(*value)));
    (min, width_of(max.wrapping_sub(min) as u64))
}

trait Lane: Plain + Into<u64> {
    fn truncate(value: u64) -> Self;
    fn within(self, lower: Self, span: Self) -> bool;
}
macro_rules! lane {
    ($($t:ty),*) => { $( impl Lane for $t {
        #[inline(always)]
        fn truncate(value: u64) -> $t { value as $t }
        #[inline(always)]
        fn within(self, lower: $t, span: $t) -> bool { self.wrapping_sub(lower) <= span }
    } )* };
}
lane!(u8, u16, u32, u64);

impl Frame {
    pub fn planned_bytes(values: &[i64]) -> usize {
        values.chunks(BLOCK).map(|block| packed_bytes(frame(block).1) + 13).sum()
    }

    pub fn write(values: &[i64], writer: &mut BlobWriter) {
        let mut references = Vec::new();
        let mut blocks = BlocksWriter::default();
        let mut distances = [0; BLOCK];
        for block in values.chunks(BLOCK) {
            let (reference, width) = frame(block);
            references.push(reference);
            for (distance, value) in distances.iter_mut().zip(block) {
                *distance = value.wrapping_sub(reference) as u64;
            }
            distances[block.len()..].fill(0);
            blocks.push(&distances, width);
        }
        writer.section(&references);
        blocks.finish(writer);
    }

    pub fn read(reader: &mut TreeReader<'_>, blob: &[u8], rows: usize) -> Result<Frame> {
        let count = rows.div_ceil(BLOCK);
        Ok(Frame { references: reader.section_of::<i64>(count)?, blocks: Blocks::read(reader, blob, count)? })
    }

    pub fn bytes(&self) -> usize {
        self.references.len + self.blocks.bytes()
    }

    #[allow(clippy::useless_conversion, reason = "one of the lanes is 64 bits wide")]
    pub fn decode_into<T: FromInt>(&self, blob: &Blob, rows: Range<usize>, out: &mut Vec<T>) {
        let references = blob.slice::<i64>(self.references);
        out.reserve(rows.len());
        with_room(|Room { scratch, .. }| {
            block_ranges(rows, |block, range| {
                let reference = references[block];
                let (packed, width) = self.blocks.get(blob, block);
                with_lane!(
                    unpack(packed, width, scratch),
                    out.resize(out.len() + range.len(), T::from_int(reference)),
                    |lane| extend_mapped(out, &lane[range], |value| {
                        T::from_int(reference.wrapping_add(u64::from(value) as i64))
                    })
                );
            });
        });
    }

    /// The value of one row.
    #[inline]
    pub fn at(&self, blob: &Blob, row: usize) -> i64 {
        let block = row / BLOCK;
        let (packed, width) = self.blocks.get(blob, block);
        blob.slice::<i64>(self.references)[block].wrapping_add(unpack_one(packed, width, row % BLOCK) as i64)
    }

    #[allow(clippy::useless_conversion, reason = "one of the lanes is 64 bits wide")]
    pub fn take_into<T: FromInt>(&self, blob: &Blob, rows: &[u32], out: &mut Vec<T>) {
        let references = blob.slice::<i64>(self.references);
        out.reserve(rows.len());
        with_room(|Room { scratch, .. }| {
            by_block(rows, |block, rows| {
                let reference = references[block];
                let (packed, width) = self.blocks.get(blob, block);
                let value = |distance: u64| T::from_int(reference.wrapping_add(distance as i64));
                if rows.len() <= SINGLES_MAX {
                    out.extend(rows.iter().map(|row| value(unpack_one(packed, width, *row as usize % BLOCK))));
                    return;
                }
                with_lane!(
                    unpack(packed, width, scratch),
                    out.resize(out.len() + rows.len(), T::from_int(reference)),
                    |lane| {
                        let lane: &[_; BLOCK] = lane.try_into().expect("a whole block");
                        out.extend(rows.iter().map(|row| value(u64::from(lane[*row as usize % BLOCK]))));
                    }
                );
            });
        });
    }

    pub fn filter(&self, blob: &Blob, rows: Range<usize>, test: &IntTest, words: &mut [u64]) {
        with_room(|room| self.filter_in(room, blob, rows, test, words));
    }

    #[allow(clippy::useless_conversion, reason = "one of the lanes is 64 bits wide")]
    fn filter_in(&self, room: &mut Room, blob: &Blob, rows: Range<usize>, test: &IntTest, words: &mut [u64]) {
        let Room { scratch, values } = room;
        let references = blob.slice::<i64>(self.references);
        for (start, words) in rows.step_by(BLOCK).zip(words.chunks_mut(BLOCK / 64)) {
            if words.iter().all(|word| *word == 0) {
                continue;
            }
            let block = start / BLOCK;
            let reference = references[block];
            let (packed, width) = self.blocks.get(blob, block);
            let distance_max = if width == 0 { 0 } else { u64::MAX >> (64 - width) };
            match test {
                IntTest::Within { lower, upper } | IntTest::Outside { lower, upper } => {
                    let inverted = matches!(test, IntTest::Outside { .. });
                    let lower_distance = if *lower <= reference { 0 } else { lower.wrapping_sub(reference) as u64 };
                    let upper_distance = upper.wrapping_sub(reference) as u64;
                    let none = *upper < reference || lower_distance > distance_max;
                    let all = !none && lower_distance == 0 && upper_distance >= distance_max;
                    if none || all {
                        if none != inverted {
                            words.fill(0);
                        }
                        continue;
                    }
                    let span = upper_distance.min(distance_max) - lower_distance;
                    with_lane!(unpack(packed, width, scratch), unreachable!("one value is all or none"), |lane| {
                        and_within(lane, lower_distance, span, inverted, words)
                    });
                }
                IntTest::Keys(Keys(keys)) => {
                    let upper = (distance_max <= i64::MAX as u64).then(|| reference.checked_add(distance_max as i64));
                    let outside = keys.bounds().is_none_or(|(least, greatest)| {
                        greatest < reference || upper.flatten().is_some_and(|upper| upper < least)
                    });
                    if outside {
                        words.fill(0);
                        continue;
                    }
                    with_lane!(unpack(packed, width, scratch), values.fill(reference), |lane| {
                        map_into(values, lane, |distance| reference.wrapping_add(u64::from(distance) as i64))
                    });
                    keys.and_values(&values[..words.len() * 64], words);
                }
                IntTest::Set(_) | IntTest::Table { .. } if distance_max < u64::from(u32::BITS) => {
                    // So few values can be there that a bit for each says whether it passes.
                    let passes = |distance: u64| u32::from(test.passes(reference.wrapping_add(distance as i64)));
                    let passing = (0..=distance_max).fold(0, |bits, distance| bits | passes(distance) << distance);
                    with_lane!(unpack(packed, width, scratch), and_all(passing & 1 == 1, words), |lane| {
                        let lane = &lane[..lane.len().min(words.len() * 64)];
                        and_words_of(lane, |value| passing >> (u64::from(value) as u32 & 31) & 1 == 1, words);
                    });
                }
                IntTest::Set(_) | IntTest::Table { .. } => {
                    let mut bytes = [0u8; BLOCK];
                    with_lane!(unpack(packed, width, scratch), bytes.fill(u8::from(test.passes(reference))), |lane| {
                        for (byte, value) in bytes.iter_mut().zip(lane) {
                            *byte = u8::from(test.passes(reference.wrapping_add(u64::from(*value) as i64)));
                        }
                    });
                    bits::and_bytes(words, &bytes);
                }
            }
        }
    }
}

fn and_all(passes: bool, words: &mut [u64]) {
    if !passes {
        words.fill(0);
    }
}

#[inline]
fn and_within<T: Lane>(values: &[T], lower: u64, span: u64, inverted: bool, words: &mut [u64]) {
    let (lower, span) = (T::truncate(lower), T::truncate(span));
    let values = &values[..values.len().min(words.len() * 64)];
    match inverted {
        false => and_words_of(values, |value| value.within(lower, span), words),
        true => and_words_of(values, |value| !value.within(lower, span), words),
    }
}
