//! The query heap: every allocation that a statement makes comes from the tablespaces it names, in their order.
//!
//! A global allocator over jemalloc with a thread-local route. While a thread is inside a [`QueryHeap`], its allocations
//! come from that statement's arena, whose extent hooks carve pages from the statement's tablespaces. A free looks at the
//! address and returns to the right arena from any thread.

use std::future::Future;
use std::sync::Arc;
use tidepool_base::Result;
use tidepool_tablespace::Tablespace;

/// Install with `#[global_allocator]`. Without it, heaps open and work but route nothing.
#[derive(Debug, Default, Clone, Copy)]
pub struct TidepoolAllocator;

/// True when `TidepoolAllocator` is this program's global allocator.
pub fn is_installed() -> bool {
    unimplemented!()
}

/// Bytes of the process that no tablespace holds (ordinary allocations), from jemalloc's statistics.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessMemory {
    pub allocated_bytes: u64,
    pub resident_bytes: u64,
}

pub fn process_memory() -> ProcessMemory {
    unimplemented!()
}

#[derive(Clone, Debug)]
pub struct HeapUsage {
    pub tablespace: Arc<Tablespace>,
    pub bytes: u64,
    pub bytes_peak: u64,
}

/// One statement's heap.
#[derive(Debug)]
pub struct QueryHeap {}

impl QueryHeap {
    /// `tablespaces` in overflow order; `budget_bytes` over all of them, if any.
    pub fn open(_tablespaces: Vec<Arc<Tablespace>>, _budget_bytes: Option<u64>) -> Result<Arc<QueryHeap>> {
        unimplemented!()
    }

    /// Routes this thread's allocations here until the guard drops. Nests.
    pub fn enter(self: &Arc<Self>) -> HeapGuard {
        unimplemented!()
    }

    /// The heap that this thread allocates from, if any.
    pub fn current() -> Option<Arc<QueryHeap>> {
        unimplemented!()
    }

    /// Runs `f` with allocations going to the process as usual, for state that outlives the statement.
    pub fn outside<R>(_f: impl FnOnce() -> R) -> R {
        unimplemented!()
    }

    /// Polls `future` inside this heap.
    pub fn scope<F: Future>(self: &Arc<Self>, _future: F) -> impl Future<Output = F::Output> + use<F> {
        async { unimplemented!() }
    }

    /// 53200 once an allocation found no room in any tablespace or the budget was passed; `Ok` before. What was over
    /// was taken from the process so that nothing aborts; whoever drives the statement asks here between batches and ends it.
    pub fn check(&self) -> Result<()> {
        unimplemented!()
    }

    /// Bytes that can still be taken: the lesser of the budget's and the tablespaces' room.
    pub fn available_bytes(&self) -> u64 {
        unimplemented!()
    }

    pub fn usage(&self) -> Vec<HeapUsage> {
        unimplemented!()
    }
}

#[derive(Debug)]
pub struct HeapGuard {}
