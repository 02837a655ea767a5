//! Reading and writing in sequence, with the widest vectors that the processor has.

use super::pin;
use serde::Serialize;
use std::fmt;
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

/// What goes through the kernels' loops once.
pub(super) const STEP_BYTES: usize = 256;

/// Between two readings of the clock: long enough for the clock to cost nothing beside it.
pub(super) const BLOCK_BYTES: usize = 1 << 20;

/// Reads and writes of a mix take turns after this much of a write.
const TURN_BYTES: usize = 1 << 10;

/// What is done to the memory. Written as `read`, `write`, `streamed write` or `2:1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub enum Stream {
    Read,
    /// Ordinary stores. The cache fetches each line before it is written.
    Write,
    /// Non-temporal stores, which go past the caches.
    StreamedWrite,
    /// Bytes read and bytes written by non-temporal stores, in this ratio.
    Mixed {
        reads: u32,
        writes: u32,
    },
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stream::Read => f.write_str("read"),
            Stream::Write => f.write_str("write"),
            Stream::StreamedWrite => f.write_str("streamed write"),
            Stream::Mixed { reads, writes } => write!(f, "{reads}:{writes}"),
        }
    }
}

impl From<Stream> for String {
    fn from(stream: Stream) -> String {
        stream.to_string()
    }
}

/// Loops over memory that starts at a multiple of 64 bytes and is a multiple of 256 bytes long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernels {
    pub name: &'static str,
    pub(super) read: fn(&[u8]),
    write: fn(&mut [u8]),
    /// Past the caches. Whoever calls it calls [`fence`] before anybody else may look at the memory: non-temporal stores are
    /// ordered with nothing. (Not after each call, as a fence empties the processor's buffers.)
    stream: fn(&mut [u8]),
}

/// # Panics
/// When the memory is not what [`Kernels`] says.
fn check(memory: &[u8]) {
    assert!((memory.as_ptr() as usize).is_multiple_of(64) && memory.len().is_multiple_of(STEP_BYTES));
}

/// Written everywhere. Not zero: some processors drop a line of zeroes that is written over zeroes.
const PATTERN: i64 = 0x5bd1_e995_9d3c_2f47;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Kernels, PATTERN, STEP_BYTES, check};
    use std::arch::x86_64::*;
    use std::hint::black_box;

    /// The three loops over vectors of one width. Four registers take turns, so that no load waits for another.
    macro_rules! kernels {
        ($module:ident, $name:literal, $feature:literal, $vector:ty, $set:ident, $or:ident, $load:ident, $store:ident, $stream:ident) => {
            pub(super) mod $module {
                use super::*;

                const VECTOR_BYTES: usize = size_of::<$vector>();
                const _: () = assert!(STEP_BYTES.is_multiple_of(4 * VECTOR_BYTES));

                /// To be used where the processor has the feature.
                pub const KERNELS: Kernels = Kernels { name: $name, read, write, stream };

                fn read(memory: &[u8]) {
                    #[target_feature(enable = $feature)]
                    fn run(memory: &[u8]) {
                        let mut sums = [$set(0); 4];
                        for vectors in memory.chunks_exact(4 * VECTOR_BYTES) {
                            for (index, sum) in sums.iter_mut().enumerate() {
                                // SAFETY: one of the chunk's four vectors, aligned as the memory and the chunks are.
                                let vector = unsafe { $load(vectors.as_ptr().add(index * VECTOR_BYTES).cast()) };
                                *sum = $or(*sum, vector);
                            }
                        }
                        black_box(sums);
                    }
                    check(memory);
                    // SAFETY: the feature was detected by `detect`, which alone hands these loops out.
                    unsafe { run(memory) }
                }

                fn write(memory: &mut [u8]) {
                    #[target_feature(enable = $feature)]
                    fn run(memory: &mut [u8]) {
                        let value = black_box($set(PATTERN));
                        for vectors in memory.chunks_exact_mut(4 * VECTOR_BYTES) {
                            for index in 0..4 {
                                // SAFETY: one of the chunk's four vectors, borrowed exclusively, and aligned as above.
                                unsafe { $store(vectors.as_mut_ptr().add(index * VECTOR_BYTES).cast(), value) };
                            }
                        }
                    }
                    check(memory);
                    // SAFETY: as above.
                    unsafe { run(memory) }
                }

                fn stream(memory: &mut [u8]) {
                    #[target_feature(enable = $feature)]
                    fn run(memory: &mut [u8]) {
                        let value = black_box($set(PATTERN));
                        for vectors in memory.chunks_exact_mut(4 * VECTOR_BYTES) {
                            for index in 0..4 {
                                // SAFETY: as above.
                                unsafe { $stream(vectors.as_mut_ptr().add(index * VECTOR_BYTES).cast(), value) };
                            }
                        }
                    }
                    check(memory);
                    // SAFETY: as above.
                    unsafe { run(memory) }
                }
            }
        };
    }

    kernels!(
        avx512,
        "AVX-512",
        "avx512f",
        __m512i,
        _mm512_set1_epi64,
        _mm512_or_si512,
        _mm512_load_si512,
        _mm512_store_si512,
        _mm512_stream_si512
    );
    kernels!(
        avx2,
        "AVX2",
        "avx2",
        __m256i,
        _mm256_set1_epi64x,
        _mm256_or_si256,
        _mm256_load_si256,
        _mm256_store_si256,
        _mm256_stream_si256
    );
    kernels!(
        sse2,
        "SSE2",
        "sse2",
        __m128i,
        _mm_set1_epi64x,
        _mm_or_si128,
        _mm_load_si128,
        _mm_store_si128,
        _mm_stream_si128
    );

    pub fn detect() -> Kernels {
        if is_x86_feature_detected!("avx512f") {
            avx512::KERNELS
        } else if is_x86_feature_detected!("avx2") {
            avx2::KERNELS
        } else {
            // Part of x86-64.
            sse2::KERNELS
        }
    }

    /// Writes one line past the caches and waits until the memory controller has it.
    pub fn write_fenced(line: &mut [u8; 64]) {
        for word in line.chunks_exact_mut(8) {
            // SAFETY: eight bytes, borrowed exclusively; the instruction asks for no alignment. SSE2 is part of x86-64.
            unsafe { _mm_stream_si64(word.as_mut_ptr().cast(), PATTERN) };
        }
        fence();
    }

    /// Waits until all stores of this thread have arrived.
    pub fn fence() {
        // SAFETY: SSE is part of x86-64.
        unsafe { _mm_sfence() };
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{detect, fence, write_fenced};

/// Where there are no kernels of its own: what the compiler makes of plain loops, and ordinary stores throughout.
#[cfg(not(target_arch = "x86_64"))]
mod portable {
    use super::{Kernels, PATTERN, check};
    use std::hint::black_box;

    pub fn detect() -> Kernels {
        Kernels { name: "plain loops, no non-temporal stores", read, write, stream: write }
    }

    fn read(memory: &[u8]) {
        check(memory);
        let words = memory.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
        black_box(words.fold(0, |sum, word| sum | word));
    }

    fn write(memory: &mut [u8]) {
        check(memory);
        for word in memory.chunks_exact_mut(8) {
            word.copy_from_slice(&PATTERN.to_ne_bytes());
        }
        black_box(memory);
    }

    pub fn write_fenced(line: &mut [u8; 64]) {
        line.as_chunks_mut::<8>().0.fill(PATTERN.to_ne_bytes());
        black_box(line);
        fence();
    }

    pub fn fence() {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) use portable::{detect, fence, write_fenced};

/// Bytes that were moved before `after` is called: read, written.
pub(super) type After<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// Lets as many threads as there are `processors` work on a part of `memory` each, for about `duration`. Returns GB/s of all
/// of them together. `turn` differs from call to call, so that one does not find what the last one left in the caches.
pub(super) fn gb_per_s(
    kernels: &Kernels,
    memory: &mut [u8],
    stream: Stream,
    processors: &[usize],
    duration: Duration,
    turn: usize,
    after: After<'_>,
) -> f64 {
    let part = memory.len() / processors.len() / STEP_BYTES * STEP_BYTES;
    let barrier = Barrier::new(processors.len());
    // One clock for all: were each thread timed by itself, threads that take turns on a processor would count double.
    let start = OnceLock::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = memory
            .chunks_exact_mut(part)
            .zip(processors)
            .map(|(memory, processor)| {
                let (barrier, start) = (&barrier, &start);
                scope.spawn(move || {
                    pin(*processor);
                    let mut blocks = Blocks::new(kernels, memory, stream, turn);
                    barrier.wait();
                    let start = start.get_or_init(Instant::now);
                    let mut bytes = 0;
                    loop {
                        let (read, written) = blocks.next();
                        bytes += read + written;
                        after(read, written);
                        let passed = start.elapsed();
                        if passed >= duration {
                            return (bytes, passed);
                        }
                    }
                })
            })
            .collect();
        let (mut bytes, mut passed) = (0, Duration::ZERO);
        for thread in threads {
            let (more, until) = thread.join().expect("a measuring thread does not panic");
            bytes += more;
            passed = passed.max(until);
        }
        bytes as f64 / passed.as_nanos() as f64
    })
}

/// One thread's memory, gone through block by block, over and over.
struct Blocks<'a> {
    kernels: &'a Kernels,
    stream: Stream,
    read: &'a [u8],
    write: &'a mut [u8],
    read_at: usize,
    write_at: usize,
}

impl<'a> Blocks<'a> {
    fn new(kernels: &'a Kernels, memory: &'a mut [u8], stream: Stream, turn: usize) -> Blocks<'a> {
        let steps = memory.len() / STEP_BYTES;
        let read_steps = match stream {
            Stream::Read => steps,
            Stream::Write | Stream::StreamedWrite => 0,
            Stream::Mixed { reads, writes } => steps * reads as usize / (reads + writes) as usize,
        };
        let (read, write) = memory.split_at_mut(read_steps * STEP_BYTES);
        // The golden section: turns spread evenly however many there are.
        let at = |len: usize| {
            let part = (turn as f64 * 0.618_033_988_749_895).fract();
            ((len / STEP_BYTES) as f64 * part) as usize * STEP_BYTES
        };
        let (read_at, write_at) = (at(read.len()), at(write.len()));
        Blocks { kernels, stream, read, write, read_at, write_at }
    }

    /// Bytes read and written.
    fn next(&mut self) -> (u64, u64) {
        let bytes = self.turns();
        fence();
        bytes
    }

    fn turns(&mut self) -> (u64, u64) {
        match self.stream {
            Stream::Read => (self.read(BLOCK_BYTES), 0),
            Stream::Write => (0, self.write(BLOCK_BYTES, self.kernels.write)),
            Stream::StreamedWrite => (0, self.write(BLOCK_BYTES, self.kernels.stream)),
            Stream::Mixed { reads, writes } => {
                let (mut read, mut written) = (0, 0);
                while read + written < BLOCK_BYTES as u64 {
                    read += self.read(TURN_BYTES * reads as usize);
                    written += self.write(TURN_BYTES * writes as usize, self.kernels.stream);
                }
                (read, written)
            }
        }
    }

    fn read(&mut self, len: usize) -> u64 {
        let mut left = len;
        while left > 0 {
            let end = self.read.len().min(self.read_at + left);
            (self.kernels.read)(&self.read[self.read_at..end]);
            left -= end - self.read_at;
            self.read_at = if end == self.read.len() { 0 } else { end };
        }
        len as u64
    }

    fn write(&mut self, len: usize, kernel: fn(&mut [u8])) -> u64 {
        let mut left = len;
        while left > 0 {
            let end = self.write.len().min(self.write_at + left);
            kernel(&mut self.write[self.write_at..end]);
            left -= end - self.write_at;
            self.write_at = if end == self.write.len() { 0 } else { end };
        }
        len as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mapping;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn memory(mapping: &mut Mapping) -> &mut [u8] {
        // SAFETY: as long as the mapping, borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(mapping.base().as_ptr(), mapping.len()) }
    }

    fn all_kernels() -> Vec<Kernels> {
        #[cfg(target_arch = "x86_64")]
        return [
            Some(x86::sse2::KERNELS),
            is_x86_feature_detected!("avx2").then_some(x86::avx2::KERNELS),
            is_x86_feature_detected!("avx512f").then_some(x86::avx512::KERNELS),
        ]
        .into_iter()
        .flatten()
        .collect();
        #[cfg(not(target_arch = "x86_64"))]
        vec![detect()]
    }

    #[test]
    fn kernels_write_every_byte_and_none_beyond() {
        let mut mapping = Mapping::heap(64 << 10);
        for kernels in all_kernels() {
            for kernel in [kernels.write, kernels.stream] {
                let memory = memory(&mut mapping);
                memory.fill(0);
                kernel(&mut memory[4096..4096 + 1024]);
                fence();
                let (before, rest) = memory.split_at(4096);
                let (written, after) = rest.split_at(1024);
                assert!(before.iter().chain(after).all(|byte| *byte == 0), "{}", kernels.name);
                assert!(written.chunks(8).all(|word| word == PATTERN.to_ne_bytes()), "{}", kernels.name);
                (kernels.read)(memory);
            }
        }
        let memory = memory(&mut mapping);
        memory.fill(0);
        write_fenced(memory[64..128].as_mut_array().unwrap());
        assert!(memory[64..128].chunks(8).all(|word| word == PATTERN.to_ne_bytes()) && memory[128] == 0);
    }

    #[test]
    #[should_panic(expected = "is_multiple_of")]
    fn kernels_refuse_memory_that_is_not_aligned() {
        let mut mapping = Mapping::heap(4096);
        (detect().write)(&mut memory(&mut mapping)[..100]);
    }

    #[test]
    fn every_stream_moves_what_it_says() {
        let mut mapping = Mapping::heap(4 << 20);
        for (stream, reads, writes) in [
            (Stream::Read, 1, 0),
            (Stream::Write, 0, 1),
            (Stream::StreamedWrite, 0, 1),
            (Stream::Mixed { reads: 3, writes: 1 }, 3, 1),
            (Stream::Mixed { reads: 1, writes: 1 }, 1, 1),
        ] {
            let (read, written) = (AtomicU64::new(0), AtomicU64::new(0));
            let after = |more_read, more_written| {
                read.fetch_add(more_read, Ordering::Relaxed);
                written.fetch_add(more_written, Ordering::Relaxed);
            };
            memory(&mut mapping).fill(0);
            let kernels = detect();
            let rate = gb_per_s(&kernels, memory(&mut mapping), stream, &[0, 0], Duration::from_millis(2), 3, &after);
            let (read, written) = (read.into_inner(), written.into_inner());
            assert!(rate > 0.0 && read + written >= 2 * BLOCK_BYTES as u64);
            assert_eq!(read * writes, written * reads, "{stream}");
            assert_eq!(memory(&mut mapping).iter().all(|byte| *byte == 0), writes == 0, "{stream}");
        }
    }
}
