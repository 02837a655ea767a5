//! Delta: each block of 1,024 is its first value and the packed steps from each value to the next, less the smallest
//! step. All arithmetic wraps, so any values come back.

use super::{Blocks, BlocksWriter, FromInt, block_ranges, by_block};
use crate::blob::{Blob, BlobWriter, Section, TreeReader};
use crate::encoding::packing::{BLOCK, Room, Scratch, packed_bytes, unpack, width_of, with_lane, with_room};
use std::ops::Range;
use tidepool_base::Result;
use tidepool_simd::simd;

#[derive(Debug)]
pub(crate) struct Delta {
    firsts: Section,
    steps_min: Section,
    blocks: Blocks,
}

/// Smallest step, and the width of the steps less that.
fn steps(values: &[i64]) -> (i64, u32) {
    let (mut min, mut max) = (i64::MAX, i64::MIN);
    for pair in values.windows(2) {
        let step = pair[1].wrapping_sub(pair[0]);
        min = min.min(step);
        max = max.max(step);
    }
    if min > max { (0, 0) } else { (min, width_of(max.wrapping_sub(min) as u64)) }
}

simd! {
    /// Each value is the one before it, a step and the smallest step, which the block leaves out; the first is known. All of a block.
    fn add_up[T: Copy + Into<u64>](steps: &[T], first: i64, step_min: i64, out: &mut [i64; BLOCK]) -> () {
        assert!(steps.len() == BLOCK);
        // In eights: sums within each, and what all before come to. Only the latter have to wait for one another.
        let mut before = first.wrapping_sub(step_min);
        for start in (0..BLOCK).step_by(8) {
            let mut sums = [0i64; 8];
            for index in 0..8 {
                let step: u64 = steps[start + index].into();
                sums[index] = (step as i64).wrapping_add(step_min);
            }
            if start == 0 {
                // What the block has in the first place is no step.
                sums[0] = step_min;
            }
            for distance in [1, 2, 4] {
                let earlier = sums;
                for index in distance..8 {
                    sums[index] = sums[index].wrapping_add(earlier[index - distance]);
                }
            }
            for index in 0..8 {
                out[start + index] = before.wrapping_add(sums[index]);
            }
            before = before.wrapping_add(sums[7]);
        }
    }
}

impl Delta {
    pub fn planned_bytes(values: &[i64]) -> usize {
        values.chunks(BLOCK).map(|block| packed_bytes(steps(block).1) + 21).sum()
    }

    pub fn write(values: &[i64], writer: &mut BlobWriter) {
        let (mut firsts, mut steps_min) = (Vec::new(), Vec::new());
        let mut blocks = BlocksWriter::default();
        let mut packed = [0; BLOCK];
        for block in values.chunks(BLOCK) {
            let (step_min, width) = steps(block);
            for (packed, pair) in packed[1..].iter_mut().zip(block.windows(2)) {
                *packed = pair[1].wrapping_sub(pair[0]).wrapping_sub(step_min) as u64;
            }
            packed[block.len()..].fill(0);
            firsts.push(block[0]);
            steps_min.push(step_min);
            blocks.push(&packed, width);
        }
        writer.section(&firsts);
        writer.section(&steps_min);
        blocks.finish(writer);
    }

    pub fn read(reader: &mut TreeReader<'_>, blob: &[u8], rows: usize) -> Result<Delta> {
        let count = rows.div_ceil(BLOCK);
        Ok(Delta {
            firsts: reader.section_of::<i64>(count)?,
            steps_min: reader.section_of::<i64>(count)?,
            blocks: Blocks::read(reader, blob, count)?,
        })
    }

    pub fn bytes(&self) -> usize {
        self.firsts.len + self.steps_min.len + self.blocks.bytes()
    }

    /// Asks the processor to fetch a block.
    #[inline]
    pub fn prefetch(&self, blob: &Blob, block: usize) {
        self.blocks.prefetch(blob, block);
    }

    /// The first `len` values of a block.
    #[inline]
    #[allow(clippy::useless_conversion, reason = "one of the lanes is 64 bits wide")]
    fn block(&self, blob: &Blob, block: usize, len: usize, scratch: &mut Scratch, out: &mut [i64; BLOCK]) {
        let step_min = blob.slice::<i64>(self.steps_min)[block];
        let (packed, width) = self.blocks.get(blob, block);
        let mut value = blob.slice::<i64>(self.firsts)[block];
        out[0] = value;
        with_lane!(
            unpack(packed, width, scratch),
            for out in &mut out[1..len] {
                value = value.wrapping_add(step_min);
                *out = value;
            },
            |lane| add_up(lane, value, step_min, out)
        );
    }

    pub fn decode_into<T: FromInt>(&self, blob: &Blob, rows: Range<usize>, out: &mut Vec<T>) {
        out.reserve(rows.len());
        with_room(|Room { scratch, values }| {
            block_ranges(rows, |block, range| {
                self.block(blob, block, range.end, scratch, values);
                out.extend(values[range].iter().map(|value| T::from_int(*value)));
            });
        });
    }

    /// The value of one row: those before it in its block are added up.
    pub fn at(&self, blob: &Blob, row: usize) -> i64 {
        let (block, within) = (row / BLOCK, row % BLOCK);
        with_room(|Room { scratch, values }| {
            self.block(blob, block, within + 1, scratch, values);
            values[within]
        })
    }

    pub fn take_into<T: FromInt>(&self, blob: &Blob, rows: &[u32], out: &mut Vec<T>) {
        out.reserve(rows.len());
        with_room(|Room { scratch, values }| {
            by_block(rows, |block, rows| {
                let last = rows[rows.len() - 1] as usize % BLOCK;
                self.block(blob, block, last + 1, scratch, values);
                out.extend(rows.iter().map(|row| T::from_int(values[*row as usize % BLOCK])));
            });
        });
    }
}
