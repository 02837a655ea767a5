//! Many statements on many threads over tablespaces that are too small for them: blocks of all sizes, grown, shrunk, freed
//! by other threads and after their statement's end, arenas leased again over other tablespaces, tablespaces that come and
//! go. After every round nothing may be left in any ledger.
//!
//! `TIDEPOOL_STRESS_SECONDS=300 TIDEPOOL_STRESS_SEED=7 cargo test --release -p tidepool-heap --test stress`

mod common;

use common::{MIB, Random, space};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use tidepool_heap::QueryHeap;
use tidepool_tablespace::{Purpose, Tablespace};

const THREADS: usize = 8;
const ROUND: Duration = Duration::from_millis(250);

impl Random {
    /// From one byte to a few megabytes: most small, as in a statement, and around the sizes at which jemalloc changes
    /// its ways.
    fn size(&mut self) -> usize {
        let scale = match self.below(100) {
            0..40 => 200,
            40..65 => 14_000,
            65..85 => 120_000,
            85..97 => 1_500_000,
            _ => 5_000_000,
        };
        1 + self.below(scale)
    }
}

/// A block that knows what it holds, and is looked at before every change and at its end. Only its marks are written: the
/// ends, the middle, and one byte a page.
struct Block {
    bytes: Vec<MaybeUninit<u8>>,
    seed: u8,
}

impl Block {
    fn new(len: usize, seed: u8) -> Block {
        let mut bytes = Vec::with_capacity(len);
        bytes.resize_with(len, MaybeUninit::uninit);
        let mut block = Block { bytes, seed };
        block.mark();
        block
    }

    fn marks(len: usize) -> impl Iterator<Item = usize> {
        (0..len).step_by(4096).chain([len / 2, len - 1])
    }

    fn mark(&mut self) {
        for at in Block::marks(self.bytes.len()) {
            self.bytes[at].write(self.seed);
        }
    }

    /// `at`: a mark.
    fn at(&self, at: usize) -> u8 {
        // SAFETY: marks are written.
        unsafe { self.bytes[at].assume_init() }
    }

    fn check(&self) {
        for at in Block::marks(self.bytes.len()) {
            assert_eq!(self.at(at), self.seed, "a block of {} was changed at {at}", self.bytes.len());
        }
    }

    /// Grows or shrinks the block in place or not, as the allocator likes.
    fn resize(&mut self, len: usize) {
        self.check();
        let kept = self.bytes.len().min(len);
        self.bytes.reserve_exact(len.saturating_sub(self.bytes.len()));
        self.bytes.resize_with(len, MaybeUninit::uninit);
        self.bytes.shrink_to_fit();
        assert!((0..kept).step_by(4096).all(|at| self.at(at) == self.seed), "a block changed while it moved");
        self.mark();
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.check();
        }
    }
}

enum Message {
    Block(Block),
    /// Work for a statement on a second thread.
    Help(Arc<QueryHeap>, u64),
}

struct Worker {
    random: Random,
    spaces: Vec<Arc<Tablespace>>,
    senders: Vec<Sender<Message>>,
    receiver: Receiver<Message>,
    /// Blocks of statements that may have ended.
    kept: Vec<Block>,
}

impl Worker {
    fn spaces(&mut self) -> Vec<Arc<Tablespace>> {
        let count = 1 + self.random.below(3);
        let mut chosen: Vec<_> =
            (0..count).map(|_| self.spaces[self.random.below(self.spaces.len())].clone()).collect();
        if self.random.below(8) == 0 {
            // One that ends with the statement, or with its last block.
            let index = self.random.below(chosen.len() + 1);
            chosen.insert(index, space("short-lived", (1 + self.random.below(8)) as u64 * MIB));
        }
        chosen
    }

    fn statement(&mut self) {
        let spaces = self.spaces();
        let budget = (self.random.below(3) == 0).then(|| (1 + self.random.below(16)) as u64 * MIB);
        let heap = QueryHeap::open(spaces, budget).unwrap();
        for _ in 0..self.random.below(3) {
            let other = self.random.below(THREADS);
            let seed = self.random.0;
            let _ = self.senders[other].send(Message::Help(heap.clone(), seed));
        }
        self.work(&heap);
        self.receive();
    }

    /// Allocates inside `heap` until it is full or enough is done.
    fn work(&mut self, heap: &Arc<QueryHeap>) {
        let mut blocks: Vec<Block> = Vec::new();
        let mut sent: Vec<Block> = Vec::new();
        let steps = 20 + self.random.below(400);
        let mut guard = Some(heap.enter());
        for _ in 0..steps {
            match self.random.below(20) {
                0..9 => blocks.push(Block::new(self.random.size(), self.random.0 as u8)),
                9..13 if !blocks.is_empty() => {
                    let index = self.random.below(blocks.len());
                    blocks.swap_remove(index);
                }
                13..15 if !blocks.is_empty() => {
                    let index = self.random.below(blocks.len());
                    let len = match self.random.below(3) {
                        0 => blocks[index].bytes.len() / 2 + 1,
                        1 => blocks[index].bytes.len() * 3 / 2,
                        _ => self.random.size(),
                    };
                    blocks[index].resize(len);
                }
                15 if !blocks.is_empty() => sent.push(blocks.pop().unwrap()),
                16 => {
                    // A burst of equal small blocks: slabs that fill and empty.
                    let len = 1 + self.random.below(3000);
                    let burst: Vec<Block> = (0..200).map(|_| Block::new(len, self.random.0 as u8)).collect();
                    blocks.extend(burst.into_iter().enumerate().filter(|(at, _)| at % 50 == 0).map(|(_, block)| block));
                }
                17 => {
                    // Elsewhere for a moment: what is freed there is freed from outside.
                    drop(guard.take());
                    if !blocks.is_empty() {
                        let index = self.random.below(blocks.len());
                        blocks.swap_remove(index);
                    }
                    self.receive_one();
                    guard = Some(heap.enter());
                }
                _ => {
                    if heap.check().is_err() {
                        break;
                    }
                }
            }
        }
        if self.random.below(4) == 0 {
            // Freed inside, in reverse.
            while let Some(block) = blocks.pop() {
                drop(block);
            }
        }
        drop(guard);
        for block in sent {
            let other = self.random.below(THREADS);
            let _ = self.senders[other].send(Message::Block(block));
        }
        // The vectors' own memory is the heap's, so all that is kept moves into one that is the worker's.
        while let Some(block) = blocks.pop() {
            if self.random.below(3) == 0 {
                self.kept.push(block);
            }
        }
    }

    fn receive_one(&mut self) -> bool {
        match self.receiver.try_recv() {
            Ok(Message::Block(mut block)) => {
                match self.random.below(4) {
                    0 => self.kept.push(block),
                    1 => block.resize(self.random.size()),
                    _ => drop(block),
                }
                true
            }
            Ok(Message::Help(heap, seed)) => {
                // Not deeper than this: help asks for no help.
                let before = std::mem::replace(&mut self.random, Random(seed | 1));
                let guard = heap.enter();
                let mut blocks: Vec<Block> = Vec::new();
                for _ in 0..self.random.below(100) {
                    if self.random.below(3) > 0 {
                        blocks.push(Block::new(self.random.size(), self.random.0 as u8));
                    } else if !blocks.is_empty() {
                        let index = self.random.below(blocks.len());
                        blocks.swap_remove(index);
                    }
                    if heap.check().is_err() {
                        break;
                    }
                }
                let late = self.random.below(2) == 0;
                if late {
                    drop(guard);
                    drop(heap);
                    drop(blocks);
                } else {
                    drop(blocks);
                    drop(guard);
                    drop(heap);
                }
                self.random = before;
                true
            }
            Err(_) => false,
        }
    }

    fn receive(&mut self) {
        for _ in 0..self.random.below(20) {
            if !self.receive_one() {
                break;
            }
        }
        while self.kept.len() > 60 {
            let index = self.random.below(self.kept.len());
            // Freed inside another statement's heap, or outside of any.
            let block = self.kept.swap_remove(index);
            if self.random.below(2) == 0 {
                let spaces = vec![self.spaces[self.random.below(self.spaces.len())].clone()];
                let heap = QueryHeap::open(spaces, None).unwrap();
                let _guard = heap.enter();
                drop(block);
            } else {
                drop(block);
            }
        }
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn nothing_is_left_or_changed_under_stress() {
    let seconds = setting("TIDEPOOL_STRESS_SECONDS", 5);
    let seed = setting("TIDEPOOL_STRESS_SEED", 1);
    println!("{seconds} seconds with seed {seed}");
    let spaces: Vec<Arc<Tablespace>> =
        [("a", 8), ("b", 24), ("c", 64), ("d", 3)].map(|(name, size)| space(name, size * MIB)).to_vec();
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| channel::<Message>()).unzip();
    // Twice a round: when all work is done, and when all blocks are gone.
    let barrier = Barrier::new(THREADS + 1);
    let (ended, round_ended, statements) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (thread, receiver) in receivers.into_iter().enumerate() {
            let random = Random((seed * 1000 + thread as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
            let (spaces, senders) = (spaces.clone(), senders.clone());
            let (barrier, ended, round_ended, statements, failed) =
                (&barrier, &ended, &round_ended, &statements, &failed);
            scope.spawn(move || {
                let mut worker = Worker { random, spaces, senders, receiver, kept: Vec::new() };
                while !ended.load(Ordering::Relaxed) {
                    let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        while !round_ended.load(Ordering::Relaxed) && !failed.load(Ordering::Relaxed) {
                            worker.statement();
                            statements.fetch_add(1, Ordering::Relaxed);
                        }
                    }));
                    if worked.is_err() {
                        failed.store(true, Ordering::Relaxed);
                    }
                    barrier.wait();
                    // All at once: frees that race with each other, and with nothing else.
                    worker.kept.clear();
                    while let Ok(message) = worker.receiver.try_recv() {
                        drop(message);
                    }
                    barrier.wait();
                    barrier.wait();
                }
            });
        }
        let start = Instant::now();
        while !ended.load(Ordering::Relaxed) {
            std::thread::sleep(ROUND);
            round_ended.store(true, Ordering::Relaxed);
            barrier.wait();
            barrier.wait();
            let left: Vec<(String, u64)> =
                spaces.iter().map(|space| (space.name().to_owned(), space.bytes(Purpose::Heap))).collect();
            let clean = left.iter().all(|(_, bytes)| *bytes == 0);
            if !clean {
                failed.store(true, Ordering::Relaxed);
            }
            let done = failed.load(Ordering::Relaxed) || start.elapsed() >= Duration::from_secs(seconds);
            ended.store(done, Ordering::Relaxed);
            round_ended.store(false, Ordering::Relaxed);
            barrier.wait();
            assert!(clean, "seed {seed}: after {} statements: {left:?}", statements.load(Ordering::Relaxed));
        }
    });
    assert!(!failed.load(Ordering::Relaxed), "seed {seed}: a block was changed");
    for space in &spaces {
        assert_eq!(space.usage().used_bytes, 0);
        // Nobody else holds it: every arena has let go.
        assert_eq!(Arc::strong_count(space), 1, "{}", space.name());
    }
    let statements = statements.load(Ordering::Relaxed);
    println!("{statements} statements");
    assert!(statements > 10);
}
