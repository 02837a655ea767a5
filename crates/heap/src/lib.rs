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
//!   statement ends it. A large block lies in a file of the data folder instead, and so do others where the process may take no
//!   more; one is refused, which ends the process, only where there is no such file, no room on the disk, and none in memory. So that little is taken that way, a block that
//!   may be large is allocated within [`QueryHeap::with_room`].
//! * Lazily made state that outlives a statement belongs into [`QueryHeap::outside`].

mod allocator;
mod arena;
mod blocks;
mod bulk;
mod clients;
mod jemalloc;
mod lease;
mod machine;
mod process;
mod promise;
mod query_heap;
mod spill;

pub use allocator::{TidepoolAllocator, is_installed};
pub use blocks::{BLOCK_BYTES_MIN, BlockEvent};
pub use bulk::bulk;
pub use clients::{ClientAccount, ClientMemory, Held, Reservation};
pub use process::place_process_memory;
pub use query_heap::{HeapGuard, HeapUsage, QueryHeap};
pub use spill::open as open_overflow;

/// Bytes of the process that no tablespace holds (ordinary allocations), from jemalloc's statistics. Where a tablespace holds some
/// of them ([`place_process_memory`]), free ones there count as allocated.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessMemory {
    pub allocated_bytes: u64,
    pub resident_bytes: u64,
}

/// Whether an address lies in a statement's heap.
pub fn is_in_heap(address: *const u8) -> bool {
    tidepool_tablespace::page_tag(address).is_some_and(|tag| (1..process::TAG_MIN).contains(&tag))
}

/// Takes some microseconds for each arena ever made.
pub fn process_memory() -> ProcessMemory {
    let (allocated_bytes, resident_bytes) = jemalloc::memory_except(arena::numbers().chain(spill::number()));
    let in_space = process::bytes();
    ProcessMemory {
        allocated_bytes: allocated_bytes.saturating_sub(in_space),
        resident_bytes: resident_bytes.saturating_sub(in_space),
    }
}

/// Runs `work` and tells by how many bytes what its thread has allocated grew meanwhile, in whichever heap: what `work` made and did not free, as far
/// as it made it on this thread.
pub fn retained<R>(work: impl FnOnce() -> R) -> (R, u64) {
    let before = jemalloc::thread_balance();
    let made = work();
    (made, jemalloc::thread_balance().wrapping_sub(before).cast_signed().max(0).cast_unsigned())
}

/// With less than this, free memory is worth more than the time that it takes to give it back.
const SMALL_LIMIT_BYTES: u64 = 2 << 30;

/// The process may use so much in all: the machine's memory, its control group's, or what the configuration says. Of several databases in one
/// process, the most.
pub fn set_process_limit(bytes: u64) {
    if machine::set_limit(bytes) < SMALL_LIMIT_BYTES {
        let heaps: Vec<u32> = arena::numbers().chain(spill::number()).collect();
        for number in (0..jemalloc::arenas_count()).filter(|number| !heaps.contains(number)) {
            // One that is not made yet is made with the default.
            let _ = jemalloc::set_dirty_decay(number, 0);
        }
        let _ = jemalloc::set_default_dirty_decay(0);
    }
}

/// Which of the process's free memory goes back to the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// What was of no use for some seconds. jemalloc looks at this only as an arena is used, so an idle process would keep
    /// for ever what it needed once: call it now and then.
    Stale,
    /// All of it: at the end of work whose memory nothing that follows needs.
    All,
}

/// Gives the free extents that statements under way keep back to their tablespaces.
pub fn release_heaps() {
    arena::purge_all();
}

/// Gives free memory of the process's own arenas back to the system. Query heaps' goes to their tablespaces by itself.
pub fn release(what: Release) {
    let heaps: Vec<u32> = arena::numbers().chain(spill::number()).collect();
    for number in (0..jemalloc::arenas_count()).filter(|number| !heaps.contains(number)) {
        match what {
            Release::Stale => jemalloc::decay(number),
            Release::All => jemalloc::purge(number),
        }
    }
}
