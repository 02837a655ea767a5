//! The query heap: every allocation that a statement makes comes from the tablespaces it names, in their order.
//!
//! A global allocator over jemalloc with a thread-local route. While a thread is inside a [`QueryHeap`], its allocations
//! come from that statement's arena, whose extent hooks carve pages from the statement's tablespaces. A free looks at the
//! address and returns to the right arena from any thread.
//!
//! * What a heap took goes back to its tablespaces when the heap is dropped, thread caches and free extents included.
//!   Blocks that outlive it stay valid and stay counted under `heap` in the ledger until they are freed.
//! * When neither budget nor tablespaces have room, the process gives the memory: Rust code aborts on a failed
//!   allocation, and no statement may end the server. [`QueryHeap::check`] tells from then on, and whoever drives the
//!   statement ends it. Only a block larger than what the machine has left is refused.
//! * Lazily made state that outlives a statement belongs into [`QueryHeap::outside`].

mod allocator;
mod arena;
mod jemalloc;
mod query_heap;

pub use allocator::{TidepoolAllocator, is_installed};
pub use query_heap::{HeapGuard, HeapUsage, QueryHeap};

/// Bytes of the process that no tablespace holds (ordinary allocations), from jemalloc's statistics.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessMemory {
    pub allocated_bytes: u64,
    pub resident_bytes: u64,
}

/// Takes some microseconds for each arena ever made.
pub fn process_memory() -> ProcessMemory {
    let (allocated_bytes, resident_bytes) = jemalloc::memory_except(arena::numbers());
    ProcessMemory { allocated_bytes, resident_bytes }
}
