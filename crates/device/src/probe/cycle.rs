//! Loads that wait for one another.
//!
//! A working set is one cycle through all of its cache lines: each line holds the offset of the next, so that no load can
//! start before the one before it has ended, and the lines follow in no order that a prefetcher knows. Line `x` of the
//! cycle lies at `place(x)`, a bijection of the lines' numbers made of invertible steps modulo a power of two (odd factor,
//! shift and exclusive or; numbers beyond the last line are sent on until they land on one). So a cycle is laid with
//! independent stores, at a fraction of the time that swapping lines at random would take.

use std::hint::black_box;
use std::time::{Duration, Instant};

pub(super) const LINE_BYTES: usize = 64;

/// Lines between two readings of the clock: enough for it to cost nothing beside them, even within the first cache.
pub(super) const STRETCH_LINES: usize = 16_384;

/// Most chains that are followed at a time.
pub const IN_FLIGHT_MAX: usize = 16;

#[derive(Clone, Copy, Debug)]
struct Shuffle {
    lines: u64,
    mask: u64,
    shift: u32,
}

impl Shuffle {
    fn new(lines: usize) -> Shuffle {
        let size = (lines as u64).next_power_of_two();
        Shuffle { lines: lines as u64, mask: size - 1, shift: (size.trailing_zeros() / 2).max(1) }
    }

    fn place(&self, x: u64) -> usize {
        let mut y = x;
        loop {
            // The constants of SplitMix64, and one more odd number.
            for factor in [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb_u64] {
                y = y.wrapping_mul(factor).wrapping_add(factor >> 32) & self.mask;
                y ^= y >> self.shift;
            }
            if y < self.lines {
                return y as usize;
            }
        }
    }
}

/// A working set with the cycle laid through it.
#[derive(Debug)]
pub(super) struct Cycle<'a> {
    memory: &'a [u8],
    shuffle: Shuffle,
    /// Where the next measurement starts, as a number of the cycle: lines that were just seen are not seen again before
    /// all others have been.
    next: u64,
}

impl<'a> Cycle<'a> {
    /// Lays the cycle through all whole lines of `memory`, which starts at one, and reads it once in the order of its
    /// addresses: what the caches keep of it is then no stretch of the cycle. Then follows it for a while, so that the tables
    /// which translate its addresses are in the caches as far as they will be: of a gigabyte in a virtual machine, whose pages
    /// the host may hold in 4 KiB each, they take megabytes, and a measurement of some milliseconds would begin by
    /// fetching them.
    pub fn lay(memory: &'a mut [u8]) -> Cycle<'a> {
        assert!((memory.as_ptr() as usize).is_multiple_of(LINE_BYTES) && memory.len() >= 2 * LINE_BYTES);
        let lines = memory.len() / LINE_BYTES;
        let shuffle = Shuffle::new(lines);
        let first = shuffle.place(0);
        let mut at = first;
        for x in 1..=lines as u64 {
            let next = if x == lines as u64 { first } else { shuffle.place(x) };
            memory[at * LINE_BYTES..][..8].copy_from_slice(&((next * LINE_BYTES) as u64).to_ne_bytes());
            at = next;
        }
        let memory = &memory[..lines * LINE_BYTES];
        let mut sum = 0u8;
        for line in memory.chunks_exact(LINE_BYTES) {
            sum ^= line[0];
        }
        black_box(sum);
        let mut cycle = Cycle { memory, shuffle, next: 0 };
        // Several loads for each 4 KiB.
        let steps = lines / 16 / IN_FLIGHT_MAX;
        let mut at = cycle.starts(IN_FLIGHT_MAX);
        follow(IN_FLIGHT_MAX)(&cycle, &mut at, steps);
        cycle.next = steps as u64;
        cycle
    }

    /// Where `in_flight` chains start: as far apart as the cycle is long.
    fn starts(&self, in_flight: usize) -> [usize; IN_FLIGHT_MAX] {
        let mut at = [0; IN_FLIGHT_MAX];
        for (index, at) in at[..in_flight].iter_mut().enumerate() {
            let x = self.next + (self.lines() * index / in_flight) as u64;
            *at = self.shuffle.place(x % self.shuffle.lines) * LINE_BYTES;
        }
        at
    }

    pub fn lines(&self) -> usize {
        self.memory.len() / LINE_BYTES
    }

    /// Follows `in_flight` chains for about `duration`, calling `after` with the number of lines after each stretch. Returns
    /// ns a line.
    pub fn ns_per_line(&mut self, in_flight: usize, duration: Duration, after: &dyn Fn(u64)) -> f64 {
        let steps = STRETCH_LINES / in_flight;
        let follow = follow(in_flight);
        let mut at = self.starts(in_flight);
        let mut lines = 0;
        let start = Instant::now();
        let ns = loop {
            follow(self, &mut at, steps);
            lines += steps * in_flight;
            after((steps * in_flight) as u64);
            let passed = start.elapsed();
            if passed >= duration {
                break passed.as_nanos() as f64;
            }
        };
        self.next = (self.next + (lines / in_flight) as u64) % self.shuffle.lines;
        ns / lines as f64
    }

    /// Follows the first `N` chains from the offsets in `at`, leaving there how far they came.
    fn chase<const N: usize>(&self, at: &mut [usize; IN_FLIGHT_MAX], steps: usize) {
        let mut places = [0; N];
        places.copy_from_slice(&at[..N]);
        assert!(places.iter().all(|place| place.is_multiple_of(LINE_BYTES) && *place < self.memory.len()));
        let base = self.memory.as_ptr();
        for _ in 0..steps {
            for place in &mut places {
                // SAFETY: offsets of whole lines inside the memory: those it starts with were just checked, and each line
                // holds another one's, as `lay` wrote it and as the borrow keeps it. Volatile, so that no load is left out.
                *place = unsafe { base.add(*place).cast::<u64>().read_volatile() } as usize;
            }
        }
        at[..N].copy_from_slice(&places);
    }
}

/// The loop for a number of chains, which has to be known when it is compiled: the offsets then stay in registers.
fn follow(in_flight: usize) -> fn(&Cycle<'_>, &mut [usize; IN_FLIGHT_MAX], usize) {
    macro_rules! by_count {
        ($($count:literal)*) => {
            match in_flight {
                $($count => |cycle, at, steps| cycle.chase::<$count>(at, steps),)*
                _ => panic!("1 to {IN_FLIGHT_MAX} chains can be followed, not {in_flight}"),
            }
        };
    }
    by_count!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16)
}

/// Writes lines of `memory` past the caches in the cycle's order, each when the one before has arrived, for about `duration`.
/// Returns ns a line.
pub(super) fn fenced_write_ns(memory: &mut [u8], duration: Duration) -> f64 {
    const STRETCH_LINES: u64 = 4096;
    let (lines, _) = memory.as_chunks_mut::<LINE_BYTES>();
    let shuffle = Shuffle::new(lines.len());
    let mut x = 0;
    let start = Instant::now();
    loop {
        for _ in 0..STRETCH_LINES {
            super::stream::write_fenced(&mut lines[shuffle.place(x % shuffle.lines)]);
            x += 1;
        }
        let passed = start.elapsed();
        if passed >= duration {
            return passed.as_nanos() as f64 / x as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mapping;

    #[test]
    fn a_cycle_goes_through_every_line_once() {
        for lines in [2, 3, 64, 65, 96, 1000, 4096, 5000] {
            let mapping = Mapping::heap(lines * LINE_BYTES);
            // SAFETY: as long as the mapping, which nothing else borrows from.
            let memory = unsafe { std::slice::from_raw_parts_mut(mapping.base().as_ptr(), lines * LINE_BYTES) };
            let cycle = Cycle::lay(memory);
            assert_eq!(cycle.lines(), lines);
            let mut at = [0; IN_FLIGHT_MAX];
            let mut seen = vec![false; lines];
            for _ in 0..lines {
                assert!(!std::mem::replace(&mut seen[at[0] / LINE_BYTES], true), "{lines} lines: a shorter cycle");
                cycle.chase::<1>(&mut at, 1);
            }
            assert_eq!(at[0], 0, "{lines} lines: the cycle does not close");
        }
    }

    #[test]
    fn chains_start_apart_and_follow_the_cycle() {
        let mapping = Mapping::heap(4096 * LINE_BYTES);
        // SAFETY: as above.
        let memory = unsafe { std::slice::from_raw_parts_mut(mapping.base().as_ptr(), 4096 * LINE_BYTES) };
        let mut cycle = Cycle::lay(memory);
        let shuffle = cycle.shuffle;
        let mut at = [0; IN_FLIGHT_MAX];
        for (index, at) in at.iter_mut().enumerate() {
            *at = shuffle.place(index as u64 * 256) * LINE_BYTES;
        }
        cycle.chase::<16>(&mut at, 256);
        for (index, at) in at.iter().enumerate() {
            assert_eq!(*at, shuffle.place((index as u64 + 1) * 256 % 4096) * LINE_BYTES);
        }
        for in_flight in 1..=IN_FLIGHT_MAX {
            let lines = std::cell::Cell::new(0);
            let ns = cycle.ns_per_line(in_flight, Duration::ZERO, &|more| lines.set(lines.get() + more));
            assert!(ns > 0.0 && lines.get() as usize == 16_384 / in_flight * in_flight);
        }
    }

    #[test]
    fn lines_follow_in_no_order_that_a_prefetcher_knows() {
        let shuffle = Shuffle::new(1 << 16);
        let places: Vec<i64> = (0..1 << 16).map(|x| shuffle.place(x) as i64).collect();
        // Strides repeat seldom, few lines lie on their predecessor's page of 64 lines.
        let strides = places.windows(2).map(|pair| pair[1] - pair[0]);
        let mut count = std::collections::HashMap::new();
        for stride in strides.clone() {
            *count.entry(stride).or_insert(0) += 1;
        }
        assert!(count.values().max().unwrap() < &(places.len() / 100), "{:?}", count.values().max());
        let near = places.windows(2).filter(|pair| pair[0] / 64 == pair[1] / 64).count();
        assert!(near < places.len() / 100, "{near}");
    }
}
