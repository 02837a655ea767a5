//! What was touched of an index by those who do not count for themselves: writes, the checks before them, and planners.
//!
//! Threads add to counters in a cache line of their own, as far as there are no more threads than processors; whoever
//! wants to know takes what all of them have, about.

use crate::pace::Touched;
use std::cell::Cell;
use std::sync::OnceLock;
// Not loom's: what is counted orders nothing, and is no part of any protocol.
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Two lines: processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    inner_lines: AtomicU64,
    leaves: AtomicU64,
    inner_lines_together: AtomicU64,
    hint_lines: AtomicU64,
    hint_lines_together: AtomicU64,
    writes: AtomicU64,
    copies: AtomicU64,
    copied_bytes: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Uses(Box<[Shard]>);

const SHARDS_MAX: usize = 64;

/// A power of two.
fn shards() -> usize {
    static SHARDS: OnceLock<usize> = OnceLock::new();
    *SHARDS.get_or_init(|| {
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
        processors.next_power_of_two().min(SHARDS_MAX)
    })
}

/// This thread's number, the next one at its first use.
#[inline]
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        // Constant and without a destructor, so that touching it never allocates.
        static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    NUMBER.with(|number| {
        if number.get() == usize::MAX {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS_MAX);
        }
        number.get()
    })
}

impl Default for Uses {
    fn default() -> Uses {
        Uses((0..shards()).map(|_| Shard::default()).collect())
    }
}

impl Uses {
    #[inline]
    pub fn add(&self, touched: &Touched) {
        // Relaxed: numbers that order no other memory. Not in one step, which would take as long as a search in a node: where
        // there are more threads than lines, a count is lost now and then.
        let add = |counter: &AtomicU64, count: u64| {
            if count > 0 {
                counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
            }
        };
        // A power of two of them.
        let shard = &self.0[thread_number() & (self.0.len() - 1)];
        add(&shard.inner_lines, touched.inner_lines);
        add(&shard.leaves, touched.leaves);
        add(&shard.inner_lines_together, touched.inner_lines_together);
        add(&shard.hint_lines, touched.hint_lines);
        add(&shard.hint_lines_together, touched.hint_lines_together);
        add(&shard.writes, touched.writes);
        add(&shard.copies, touched.copies);
        add(&shard.copied_bytes, touched.copied_bytes);
    }

    /// All that was added since it was last taken.
    pub fn take(&self) -> Touched {
        let mut total = Touched::default();
        let take = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        for shard in &self.0 {
            total += Touched {
                inner_lines: take(&shard.inner_lines),
                leaves: take(&shard.leaves),
                inner_lines_together: take(&shard.inner_lines_together),
                hint_lines: take(&shard.hint_lines),
                hint_lines_together: take(&shard.hint_lines_together),
                writes: take(&shard.writes),
                copies: take(&shard.copies),
                copied_bytes: take(&shard.copied_bytes),
            };
        }
        total
    }
}
