//! What a thread does with the large blocks of a heap that is *watched*: a log of its allocations and frees.
//!
//! Arrays that operators fill are such blocks, and nothing else tells of those that never leave an operator. Whoever
//! accounts for memory takes the log now and then, on the same thread. It has a fixed size and is written inside the
//! allocator, so it never allocates; what it has no room for is counted. A heap that nobody watches pays nothing: its route
//! has no watch.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicU16, Ordering};

/// Blocks from this size on are logged: a page.
pub const BLOCK_BYTES_MIN: usize = 4096;

/// More than an operator allocates for one batch, as long as it has less than about a hundred columns.
const LOG_LENGTH: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockEvent {
    /// To be written by whoever asked for it. A block that grows in place gives one for what it grows by.
    Allocated(Range<usize>),
    /// With all that it has grown by.
    Freed(Range<usize>),
    /// As `Freed`, after what it held was moved to the block that was allocated last.
    Moved(Range<usize>),
    /// Bytes of blocks that were allocated when the log had no more room.
    Unlogged { bytes_allocated: usize },
}

/// One heap's. Numbers come again after 32,767 heaps that were watched, when no thread still has a log of the last one but
/// for one that did nothing since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watch(u16);

impl Watch {
    pub const BITS: u32 = 15;

    pub fn new() -> Watch {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        Watch(NEXT.fetch_add(1, Ordering::Relaxed) % ((1 << Watch::BITS) - 1) + 1)
    }

    /// Never zero.
    pub fn number(self) -> u16 {
        self.0
    }

    pub fn of_number(number: u16) -> Option<Watch> {
        (number != 0).then_some(Watch(number))
    }
}

#[derive(Clone, Copy)]
struct Entry {
    start: usize,
    len: usize,
    what: What,
}

#[derive(Clone, Copy, PartialEq)]
enum What {
    Allocated,
    Freed,
    Moved,
}

struct Log {
    /// Of the heap that this is about. A thread that comes to another one forgets what it did in the last.
    watch: Cell<u16>,
    len: Cell<usize>,
    unlogged_bytes: Cell<usize>,
    entries: [Cell<Entry>; LOG_LENGTH],
}

thread_local! {
    // Constant and without a destructor: the allocator may touch it at any time of a thread's life.
    static LOG: Log = const {
        Log {
            watch: Cell::new(0),
            len: Cell::new(0),
            unlogged_bytes: Cell::new(0),
            entries: [const { Cell::new(Entry { start: 0, len: 0, what: What::Freed }) }; LOG_LENGTH],
        }
    };
}

impl Log {
    fn turn_to(&self, watch: Watch) {
        if self.watch.replace(watch.number()) != watch.number() {
            self.len.set(0);
            self.unlogged_bytes.set(0);
        }
    }

    fn push(&self, watch: Watch, start: usize, len: usize, what: What) {
        self.turn_to(watch);
        let count = self.len.get();
        match self.entries.get(count) {
            Some(entry) => {
                entry.set(Entry { start, len, what });
                self.len.set(count + 1);
            }
            None if what == What::Allocated => self.unlogged_bytes.set(self.unlogged_bytes.get() + len),
            None => {}
        }
    }
}

/// By a thread inside the heap.
pub(crate) fn allocated(watch: Watch, block: *const u8, bytes: usize) {
    if bytes >= BLOCK_BYTES_MIN {
        LOG.with(|log| log.push(watch, block.addr(), bytes, What::Allocated));
    }
}

pub(crate) fn freed(watch: Watch, block: *const u8, bytes: usize) {
    if bytes >= BLOCK_BYTES_MIN {
        LOG.with(|log| log.push(watch, block.addr(), bytes, What::Freed));
    }
}

/// Grown or shrunk from `bytes_before`, in place or by moving.
pub(crate) fn resized(watch: Watch, before: *const u8, bytes_before: usize, after: *const u8, bytes: usize) {
    if before.addr() != after.addr() {
        allocated(watch, after, bytes);
        if bytes_before >= BLOCK_BYTES_MIN {
            LOG.with(|log| log.push(watch, before.addr(), bytes_before, What::Moved));
        }
    } else if bytes > bytes_before {
        allocated(watch, after.wrapping_add(bytes_before), bytes - bytes_before);
    }
}

/// True when there is something to take.
pub(crate) fn any(watch: Watch) -> bool {
    LOG.with(|log| log.watch.get() == watch.number() && (log.len.get() > 0 || log.unlogged_bytes.get() > 0))
}

/// Hands out what this thread did since the last call, in order. `take` is outside any heap.
pub(crate) fn take(watch: Watch, mut take: impl FnMut(BlockEvent)) {
    LOG.with(|log| {
        log.turn_to(watch);
        // Nothing is logged meanwhile, as the thread is outside.
        for entry in &log.entries[..log.len.replace(0)] {
            let Entry { start, len, what } = entry.get();
            let range = start..start + len;
            take(match what {
                What::Allocated => BlockEvent::Allocated(range),
                What::Freed => BlockEvent::Freed(range),
                What::Moved => BlockEvent::Moved(range),
            });
        }
        match log.unlogged_bytes.replace(0) {
            0 => {}
            bytes_allocated => take(BlockEvent::Unlogged { bytes_allocated }),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(watch: Watch) -> Vec<BlockEvent> {
        let mut events = Vec::new();
        take(watch, |event| events.push(event));
        events
    }

    fn at(address: usize) -> *const u8 {
        std::ptr::without_provenance(address)
    }

    #[test]
    fn large_blocks_are_logged_in_order() {
        let watch = Watch::new();
        allocated(watch, at(0x10000), 8192);
        allocated(watch, at(0x20000), BLOCK_BYTES_MIN - 1);
        freed(watch, at(0x10000), 8192);
        assert!(any(watch));
        let block = 0x10000..0x12000;
        assert_eq!(taken(watch), [BlockEvent::Allocated(block.clone()), BlockEvent::Freed(block)]);
        assert!(!any(watch) && taken(watch).is_empty());
    }

    #[test]
    fn blocks_grow_in_place_or_move() {
        let watch = Watch::new();
        resized(watch, at(0x10000), 4096, at(0x10000), 12288);
        resized(watch, at(0x10000), 12288, at(0x10000), 8192);
        resized(watch, at(0x10000), 8192, at(0x30000), 16384);
        assert_eq!(
            taken(watch),
            [
                BlockEvent::Allocated(0x11000..0x13000),
                BlockEvent::Allocated(0x30000..0x34000),
                BlockEvent::Moved(0x10000..0x12000),
            ]
        );
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let watch = Watch::new();
        for _ in 0..LOG_LENGTH + 3 {
            allocated(watch, at(0x10000), 4096);
            freed(watch, at(0x10000), 4096);
        }
        let events = taken(watch);
        assert_eq!(events.len(), LOG_LENGTH + 1);
        let unlogged = LOG_LENGTH / 2 + 3;
        assert_eq!(events.last(), Some(&BlockEvent::Unlogged { bytes_allocated: unlogged * 4096 }));
        assert!(taken(watch).is_empty());
    }

    #[test]
    fn a_thread_forgets_what_it_did_for_another_heap() {
        let (first, second) = (Watch::new(), Watch::new());
        allocated(first, at(0x10000), 4096);
        allocated(second, at(0x20000), 4096);
        assert!(!any(first) && any(second));
        assert!(taken(first).is_empty());
        assert!(taken(second).is_empty(), "it turned to the first in between");
    }
}
