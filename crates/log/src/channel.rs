//! A thread's buffer: frames from the one thread that appends to whoever writes the log out.
//!
//! A row of *chunks*. The appender stores a frame's words into the last chunk and then *publishes* them by the chunk's
//! count, which only grows. The drain reads the count and then the words below it. So each word is written by one thread
//! before it is published and never after; neither side waits for the other, and the only line that both use all the time
//! is the count's. Words are atomics that are stored and loaded in any order (plain moves on every machine): that is what
//! makes the sharing sound without a line of unsafe code.
//!
//! A frame lies in one chunk. When one does not fit any more, the appender links the next chunk and then publishes the
//! count with [`SEALED`]. The drain lets go of a sealed chunk when it has read it; the appender, which keeps all chunks in
//! its row, finds the first of them to be its alone and uses it again.

use crate::sync::{Arc, AtomicU64, AtomicUsize, Mutex, Ordering, lock};
use std::collections::VecDeque;
use tidepool_base::{Error, Result, SqlState};

/// Words of a chunk: 64 kB, so that a buffer in steady use stays in the cache.
pub(crate) const CHUNK_WORDS: usize = 8 << 10;

/// Chunks that an appender keeps for its next records when they are done with.
const SPARE_MAX: usize = 4;

/// Nothing more comes in this chunk, and there is a next one.
const SEALED: usize = 1 << (usize::BITS - 1);

#[derive(Debug)]
struct Chunk {
    /// Words that are published, and [`SEALED`]. On a line of its own: it is what the two threads hand over.
    published: Line<AtomicUsize>,
    words: Box<[AtomicU64]>,
    next: Mutex<Option<Arc<Chunk>>>,
}

#[derive(Debug)]
#[repr(align(128))]
struct Line<T>(T);

impl Chunk {
    fn new(words: usize) -> Result<Arc<Chunk>> {
        let mut slots = Vec::new();
        slots
            .try_reserve_exact(words)
            .map_err(|_| Error::new(SqlState::OUT_OF_MEMORY, "out of memory for the log's buffers"))?;
        slots.resize_with(words, || AtomicU64::new(0));
        Ok(Arc::new(Chunk {
            published: Line(AtomicUsize::new(0)),
            words: slots.into_boxed_slice(),
            next: Mutex::new(None),
        }))
    }
}

/// The appender's end.
#[derive(Debug)]
pub(crate) struct Sender {
    /// All chunks that may not be drained yet, and at the end the one in use.
    chunks: VecDeque<Arc<Chunk>>,
    /// Nobody else's.
    spare: Vec<Arc<Chunk>>,
    /// Words stored in the last chunk.
    used: usize,
    chunk_words: usize,
    /// Words of frames that were ever published.
    sent: u64,
    drained: Arc<Line<AtomicU64>>,
}

/// The drain's end.
#[derive(Debug)]
pub(crate) struct Receiver {
    chunk: Arc<Chunk>,
    taken: usize,
    received: u64,
    drained: Arc<Line<AtomicU64>>,
}

/// A channel whose frames have at most half of `chunk_words`.
pub(crate) fn channel(chunk_words: usize) -> Result<(Sender, Receiver)> {
    let chunk = Chunk::new(chunk_words)?;
    let drained = Arc::new(Line(AtomicU64::new(0)));
    let receiver = Receiver { chunk: chunk.clone(), taken: 0, received: 0, drained: drained.clone() };
    let chunks = VecDeque::from([chunk]);
    Ok((Sender { chunks, spare: Vec::new(), used: 0, chunk_words, sent: 0, drained }, receiver))
}

impl Sender {
    /// Takes memory for frames of `words` words together, so that sending them cannot fail.
    pub fn reserve(&mut self, words: usize) -> Result<()> {
        if words <= self.chunk_words / 2 && self.used + words <= self.chunk_words {
            return Ok(());
        }
        self.reclaim();
        // Of each chunk at least half is used: no frame is longer than the other half.
        let chunks = words.div_ceil(self.chunk_words / 2);
        while self.spare.len() < chunks {
            self.spare.push(Chunk::new(self.chunk_words)?);
        }
        Ok(())
    }

    /// Takes back the chunks that were drained.
    fn reclaim(&mut self) {
        while self.chunks.len() > 1
            && let Some(chunk) = Arc::get_mut(&mut self.chunks[0])
        {
            chunk.published = Line(AtomicUsize::new(0));
            chunk.next = Mutex::new(None);
            let chunk = self.chunks.pop_front().expect("there are several");
            if self.spare.len() < SPARE_MAX {
                self.spare.push(chunk);
            }
        }
    }

    /// Sends a frame: `head`, then `payload` padded with zeroes to whole words. Room for it was reserved.
    #[inline]
    pub fn send(&mut self, head: &[u64], payload: &[u8]) {
        let words = head.len() + payload.len().div_ceil(8);
        debug_assert!(words <= self.chunk_words / 2);
        if self.used + words > self.chunk_words {
            self.turn();
        }
        let chunk = self.chunks.back().expect("never empty");
        let slots = &chunk.words[self.used..self.used + words];
        let (head_slots, slots) = slots.split_at(head.len());
        for (slot, word) in head_slots.iter().zip(head) {
            slot.store(*word, Ordering::Relaxed);
        }
        let (whole, rest) = payload.as_chunks::<8>();
        for (slot, bytes) in slots.iter().zip(whole) {
            slot.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            slots[whole.len()].store(u64::from_le_bytes(last), Ordering::Relaxed);
        }
        self.used += words;
        self.sent += words as u64;
        // Release: whoever sees the count sees the words.
        chunk.published.0.store(self.used, Ordering::Release);
    }

    #[cold]
    fn turn(&mut self) {
        let next = self.spare.pop().expect("memory was reserved before");
        let last = self.chunks.back().expect("never empty");
        *lock(&last.next) = Some(next.clone());
        last.published.0.store(self.used | SEALED, Ordering::Release);
        self.chunks.push_back(next);
        self.used = 0;
        self.reclaim();
    }

    /// Bytes that were sent and not yet drained.
    pub fn buffered_bytes(&self) -> u64 {
        (self.sent - self.drained.0.load(Ordering::Relaxed)) * 8
    }
}

impl Receiver {
    /// The next run of words that is published and in one place: whole frames. Empty: there is none.
    pub fn peek(&mut self) -> &[AtomicU64] {
        loop {
            let published = self.chunk.published.0.load(Ordering::Acquire);
            let end = published & !SEALED;
            if self.taken == end && published & SEALED != 0 {
                let next = lock(&self.chunk.next).clone().expect("linked before it was sealed");
                self.chunk = next;
                self.taken = 0;
                continue;
            }
            return &self.chunk.words[self.taken..end];
        }
    }

    /// Says that so many words of the run were taken.
    pub fn advance(&mut self, words: usize) {
        self.taken += words;
        self.received += words as u64;
    }

    /// Lets the appender know how much was drained.
    pub fn report(&self) {
        self.drained.0.store(self.received, Ordering::Relaxed);
    }

    /// The appender is gone, and so is all that it sent.
    pub fn is_done(&mut self) -> bool {
        // Whoever has the only one sees all that the appender did before it let go of its own.
        Arc::get_mut(&mut self.drained).is_some() && self.peek().is_empty()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn received(receiver: &mut Receiver) -> Vec<u64> {
        let mut all = Vec::new();
        loop {
            let run: Vec<u64> = receiver.peek().iter().map(|word| word.load(Ordering::Relaxed)).collect();
            if run.is_empty() {
                receiver.report();
                return all;
            }
            receiver.advance(run.len());
            all.extend(run);
        }
    }

    #[test]
    fn frames_come_out_as_they_went_in_and_chunks_are_used_again() {
        let (mut sender, mut receiver) = channel(8).unwrap();
        let mut expected = Vec::new();
        for number in 0..100u64 {
            sender.reserve(3).unwrap();
            sender.send(&[number, 1], &number.to_le_bytes()[..5]);
            expected.extend([number, 1, number]);
            if number % 3 == 0 {
                assert_eq!(received(&mut receiver), expected);
                expected.clear();
                assert_eq!(sender.buffered_bytes(), 0);
            }
            assert!(sender.chunks.len() + sender.spare.len() <= 4 + SPARE_MAX);
        }
        assert!(!receiver.is_done());
        drop(sender);
        assert_eq!(received(&mut receiver), expected);
        assert!(receiver.is_done());
    }

    #[test]
    fn two_threads_hand_over_what_one_sends() {
        let count = if cfg!(miri) { 200 } else { 200_000 };
        let (mut sender, mut receiver) = channel(64).unwrap();
        let appender = std::thread::spawn(move || {
            for number in 0..count {
                sender.reserve(4).unwrap();
                sender.send(&[number], &[number as u8; 20]);
            }
        });
        let mut next = 0;
        while next < count {
            for frame in received(&mut receiver).chunks_exact(4) {
                assert_eq!(frame[0], next);
                assert_eq!(frame[1], u64::from_le_bytes([next as u8; 8]));
                assert_eq!(frame[3], u64::from(u32::from_le_bytes([next as u8; 4])));
                next += 1;
            }
        }
        appender.join().unwrap();
        assert!(receiver.is_done());
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::thread;

    /// An appender that turns to new chunks and takes old ones back, against a drain: every word comes out once, in order,
    /// and no chunk is used again before it was read.
    #[test]
    fn interleavings_of_a_channel() {
        loom::model(|| {
            let (mut sender, mut receiver) = channel(2).unwrap();
            let appender = thread::spawn(move || {
                for number in 1..=4 {
                    sender.reserve(1).unwrap();
                    sender.send(&[number], &[]);
                }
            });
            let mut next = 1;
            for _ in 0..2 {
                let run = receiver.peek();
                let count = run.len();
                for word in run {
                    assert_eq!(word.load(Ordering::Relaxed), next);
                    next += 1;
                }
                receiver.advance(count);
            }
            appender.join().unwrap();
            while next <= 4 {
                let run = receiver.peek();
                let count = run.len();
                assert!(count > 0, "a frame is lost");
                for word in run {
                    assert_eq!(word.load(Ordering::Relaxed), next);
                    next += 1;
                }
                receiver.advance(count);
            }
        });
    }
}
