//! Frame of reference: each block of 1,024 is its minimum and the packed distances from it.
//!
//! The minimum and the width bound a block's values, so a filter often decides a block without unpacking it, and
//! otherwise compares packed distances with a bound moved into the same frame, in the narrowest lane.

use super::{Ahead, Blocks, BlocksWriter, FromInt, IntTest, Keys, block_ranges, by_block, rows_by_block};
use crate::bits;
use crate::blob::{Blob, BlobWriter, Section, TreeReader};
use crate::encoding::packing::{
    BLOCK, Room, and_within, packed_bytes, prefetch_block, prefetch_one, unpack, unpack_one, width_of, with_lane,
    with_room,
};
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

/// Blocks that are on their way while one is read row by row.
const BLOCKS_AHEAD: usize = 2;

fn frame(values: &[i64]) -> (i64, u32) {
    let (min, max) = values.iter().fold((i64::MAX, i64::MIN), |(min, max), value| (min.min(*value), max.max(*value)));
    (min, width_of(max.wrapping_sub(min) as u64))
}

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

    /// Asks the processor to fetch a block.
    #[inline]
    pub fn prefetch(&self, blob: &Blob, block: usize) {
        self.blocks.prefetch(blob, block);
    }

    pub fn bytes(&self) -> usize {
        self.references.len + self.blocks.bytes()
    }

    #[allow(clippy::useless_conversion, reason = "one of the lanes is 64 bits wide")]
    pub fn decode_into<T: FromInt>(&self, blob: &Blob, rows: Range<usize>, out: &mut Vec<T>) {
        let references = blob.slice::<i64>(self.references);
        out.reserve(rows.len());
        with_room(|Room { scratch, .. }| {
            let blocks = rows.end.div_ceil(BLOCK);
            block_ranges(rows, |block, range| {
                if block + 1 < blocks {
                    self.prefetch(blob, block + 1);
                }
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
        // Rows that are few lie in lines that no processor guesses. So those of some blocks are on their way at once.
        let mut ahead = rows_by_block(rows);
        let fetch = |(block, rows): (usize, &[u32])| {
            let (packed, width) = self.blocks.get(blob, block);
            match rows.len() <= SINGLES_MAX {
                true => rows.iter().for_each(|row| prefetch_one(packed, width, *row as usize % BLOCK)),
                false => prefetch_block(packed),
            }
        };
        ahead.by_ref().take(BLOCKS_AHEAD).for_each(fetch);
        with_room(|Room { scratch, .. }| {
            by_block(rows, |block, rows| {
                ahead.next().into_iter().for_each(fetch);
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

    /// Tells `ahead` of each block once it has been tested.
    pub fn filter(&self, blob: &Blob, rows: Range<usize>, test: &IntTest, words: &mut [u64], ahead: Ahead<'_>) {
        with_room(|room| {
            for (start, words) in rows.step_by(BLOCK).zip(words.chunks_mut(BLOCK / 64)) {
                let block = start / BLOCK;
                if words.iter().any(|word| *word != 0) {
                    self.filter_block(room, blob, block, test, words);
                }
                ahead(block, words);
            }
        });
    }

    /// Where a range of values lies among a block's distances from its reference, of which none is more than `most`: where it begins there,
    /// and how far it reaches. `None`: no value of the block is in it.
    #[inline]
    fn moved(lower: i64, upper: i64, reference: i64, most: u64) -> Option<(u64, u64)> {
        let lower_distance = if lower <= reference { 0 } else { lower.wrapping_sub(reference) as u64 };
        if upper < reference || lower_distance > most {
            return None;
        }
        let upper_distance = upper.wrapping_sub(reference) as u64;
        Some((lower_distance, upper_distance.min(most) - lower_distance))
    }

    #[allow(clippy::useless_conversion, reason = "one of the lanes is 64 bits wide")]
    fn filter_block(&self, room: &mut Room, blob: &Blob, block: usize, test: &IntTest, words: &mut [u64]) {
        let Room { scratch, values } = room;
        let reference = blob.slice::<i64>(self.references)[block];
        let (packed, width) = self.blocks.get(blob, block);
        let distance_max = if width == 0 { 0 } else { u64::MAX >> (64 - width) };
        match test {
            IntTest::Within { lower, upper } | IntTest::Outside { lower, upper } => {
                let inverted = matches!(test, IntTest::Outside { .. });
                match Frame::moved(*lower, *upper, reference, distance_max) {
                    None => and_all(inverted, words),
                    Some((0, span)) if span == distance_max => and_all(!inverted, words),
                    Some(range) => and_within(packed, width, range, inverted, scratch, words),
                }
            }
            IntTest::Ranges(ranges) if distance_max >= u64::from(u32::BITS) => {
                // Each range for itself: a pass over the packed words is far less than a look at each value.
                let mut passing = [0; BLOCK / 64];
                let mut all = false;
                for (lower, upper) in ranges {
                    match Frame::moved(*lower, *upper, reference, distance_max) {
                        None => {}
                        Some((0, span)) if span == distance_max => all = true,
                        Some(range) => {
                            let mut within = [0; BLOCK / 64];
                            within[..words.len()].copy_from_slice(words);
                            and_within(packed, width, range, false, scratch, &mut within[..words.len()]);
                            passing.iter_mut().zip(within).for_each(|(word, within)| *word |= within);
                        }
                    }
                }
                if !all {
                    words.copy_from_slice(&passing[..words.len()]);
                }
            }
            IntTest::Keys(Keys(keys)) => {
                let upper = (distance_max <= i64::MAX as u64).then(|| reference.checked_add(distance_max as i64));
                let outside = keys.bounds().is_none_or(|(least, greatest)| {
                    greatest < reference || upper.flatten().is_some_and(|upper| upper < least)
                });
                if outside {
                    words.fill(0);
                    return;
                }
                with_lane!(unpack(packed, width, scratch), values.fill(reference), |lane| {
                    map_into(values, lane, |distance| reference.wrapping_add(u64::from(distance) as i64))
                });
                keys.and_values(&values[..words.len() * 64], words);
            }
            IntTest::Set(_) | IntTest::Table { .. } | IntTest::Ranges(_) if distance_max < u64::from(u32::BITS) => {
                // So few values can be there that a bit for each says whether it passes.
                let passes = |distance: u64| u32::from(test.passes(reference.wrapping_add(distance as i64)));
                let passing = (0..=distance_max).fold(0, |bits, distance| bits | passes(distance) << distance);
                with_lane!(unpack(packed, width, scratch), and_all(passing & 1 == 1, words), |lane| {
                    let lane = &lane[..lane.len().min(words.len() * 64)];
                    and_words_of(lane, |value| passing >> (u64::from(value) as u32 & 31) & 1 == 1, words);
                });
            }
            IntTest::Set(_) | IntTest::Table { .. } | IntTest::Ranges(_) => {
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

fn and_all(passes: bool, words: &mut [u64]) {
    if !passes {
        words.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Ints;
    use super::*;
    use crate::Segment;
    use crate::encoding::Payload;
    use crate::testing::{field, heap_space, noise};
    use arrow_array::{ArrayRef, Int64Array};
    use std::sync::Arc;
    use tidepool_base::SqlType;

    #[test]
    fn packed_blocks_are_tested_as_their_values_are_and_told_of_once() {
        let space = heap_space();
        let mut next = noise(23);
        let shapes: &[(u32, usize)] = if cfg!(miri) {
            &[(7, 1500)]
        } else {
            &[(1, 1000), (3, 1025), (6, 4097), (9, 70), (13, 3000), (17, 2049), (30, 5000), (41, 1100), (60, 2048)]
        };
        let mut frames = 0;
        for (width, rows) in shapes.iter().copied() {
            let base = (next() as i64) >> 20;
            let values: Vec<i64> = (0..rows).map(|_| base + (next() >> (64 - width)) as i64).collect();
            let array: ArrayRef = Arc::new(Int64Array::from(values.clone()));
            let segment = Segment::encode(&array, &field(SqlType::BigInt), &space).unwrap();
            let encoding = segment.encoding().unwrap();
            let segment = segment.sound().unwrap();
            let Payload::Ints(ints) = segment.payload() else { panic!("integers are {encoding}") };
            frames += usize::from(matches!(ints, Ints::Frame(_)));
            let value = |row: usize| values[row % rows];
            let (a, b) = (value(5).min(value(6)), value(5).max(value(6)));
            let mut few = vec![value(1), value(2), value(2).saturating_add(1), value(7), b.saturating_add(1 << 40)];
            few.sort_unstable();
            let many: Vec<i64> = (0..40).map(|row| value(row * 3)).collect();
            let tests = [
                IntTest::Within { lower: a, upper: b },
                IntTest::Within { lower: i64::MIN, upper: a },
                IntTest::Within { lower: b, upper: i64::MAX },
                IntTest::Outside { lower: a, upper: b },
                IntTest::Outside { lower: a, upper: a },
                IntTest::any_of(few).unwrap(),
                IntTest::any_of(many).unwrap(),
                IntTest::Ranges(vec![(i64::MIN, a), (b, b)]),
                IntTest::Ranges(vec![(i64::MIN, i64::MIN), (base - 1, i64::MAX)]),
            ];
            for test in tests {
                let before: Vec<u64> = (0..rows.div_ceil(64))
                    .map(|word| if word % 16 == 3 || word / 16 == 1 { 0 } else { next() | next() })
                    .collect();
                let mut words = before.clone();
                let mut told = Vec::new();
                ints.filter_telling(segment.blob(), 0..rows, &test, &mut words, &mut |block, left| {
                    told.push((block, left.to_vec()));
                });
                for row in 0..rows {
                    let bit = |words: &[u64]| words[row / 64] >> (row % 64) & 1 == 1;
                    let passes = bit(&before) && test.passes(values[row]);
                    assert_eq!(bit(&words), passes, "{width} bits, row {row} of {rows}: {test:?}");
                }
                let blocks = words.chunks(BLOCK / 64).map(<[u64]>::to_vec).enumerate().collect::<Vec<_>>();
                assert_eq!(told, blocks);
            }
            // Rows one by one, and many of a block.
            for step in [1, 2, 37, 90, 700] {
                let picked: Vec<u32> = (0..rows as u32).step_by(step).collect();
                let mut taken: Vec<i64> = Vec::new();
                ints.take_into(segment.blob(), &picked, &mut taken);
                assert!(picked.iter().zip(&taken).all(|(row, value)| values[*row as usize] == *value));
                assert_eq!(taken.len(), picked.len());
            }
        }
        assert!(frames * 2 > shapes.len(), "{frames} of {} are packed", shapes.len());
    }
}
