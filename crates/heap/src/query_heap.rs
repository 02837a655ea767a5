use crate::allocator::{self, Route, route, set_route};
use crate::arena::{Arena, HEAP_SPACES_MAX};
use crate::blocks::{self, BlockEvent, Watch};
use crate::{jemalloc, promise};
use std::cell::Cell;
use std::future::Future;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_tablespace::Tablespace;

#[derive(Clone, Debug)]
pub struct HeapUsage {
    pub tablespace: Arc<Tablespace>,
    /// In whole extents, free blocks inside them included.
    pub bytes: u64,
    pub bytes_peak: u64,
}

/// One statement's heap.
#[derive(Debug)]
pub struct QueryHeap {
    tablespaces: Vec<Arc<Tablespace>>,
    budget_bytes: Option<u64>,
    /// `None` without [`crate::TidepoolAllocator`]: nothing is routed.
    arena: Option<&'static Arena>,
    /// Set when threads inside log large blocks.
    watch: OnceLock<Watch>,
}

/// What a statement may have of the process because no tablespace had room, as small ones need little: where one statement takes all there is, others
/// are answered.
const OVERDRAFT_TOLERATED: u64 = 256 << 10;

/// Which heap a thread is in: beside the route, which only the allocator reads.
#[derive(Clone, Copy)]
struct Inside {
    /// Kept alive by the guard that set it.
    heap: *const QueryHeap,
    /// Guards that are alive on this thread.
    depth: usize,
}

thread_local! {
    static INSIDE: Cell<Inside> = const { Cell::new(Inside { heap: std::ptr::null(), depth: 0 }) };
    /// Spreads threads over thread caches. Zero: not numbered yet.
    static THREAD_NUMBER: Cell<usize> = const { Cell::new(0) };
}

fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let number = THREAD_NUMBER.get();
    if number != 0 {
        return number;
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    THREAD_NUMBER.set(number);
    number
}

impl QueryHeap {
    /// `tablespaces` in overflow order; `budget_bytes` over all of them, if any.
    pub fn open(tablespaces: Vec<Arc<Tablespace>>, budget_bytes: Option<u64>) -> Result<Arc<QueryHeap>> {
        QueryHeap::outside(|| {
            // Whatever was allocated inside another heap goes with that heap: copied here, outside of it.
            let mut named: Vec<Arc<Tablespace>> = Vec::with_capacity(tablespaces.len());
            for space in &tablespaces {
                if !named.iter().any(|other| Arc::ptr_eq(other, space)) {
                    named.push(space.clone());
                }
            }
            if named.is_empty() {
                return Err(Error::new(
                    SqlState::INVALID_PARAMETER_VALUE,
                    "a query heap needs at least one tablespace",
                ));
            }
            if named.len() > HEAP_SPACES_MAX {
                return Err(Error::new(
                    SqlState::PROGRAM_LIMIT_EXCEEDED,
                    format!("a query heap cannot use more than {HEAP_SPACES_MAX} tablespaces"),
                ));
            }
            let arena = if allocator::is_installed() { Some(Arena::lease(&named, budget_bytes)?) } else { None };
            Ok(Arc::new(QueryHeap { tablespaces: named, budget_bytes, arena, watch: OnceLock::new() }))
        })
    }

    /// Routes this thread's allocations here until the guard drops. Nests: guards drop in the reverse order of their
    /// making.
    pub fn enter(self: &Arc<Self>) -> HeapGuard {
        let before = INSIDE.get();
        let route_before = route();
        let mut cache = None;
        if let Some(arena) = self.arena
            && arena.tag() != route_before.tag()
        {
            // A cache is made, if need be, with the process's memory.
            set_route(Route::PROCESS);
            let taken = arena.take_cache(thread_number());
            cache = taken.map(|(place, _)| place);
            set_route(Route::to(arena, taken.map(|(_, flag)| flag), self.watch.get().copied()));
        }
        let depth = before.depth + 1;
        INSIDE.set(Inside { heap: Arc::as_ptr(self), depth });
        HeapGuard { heap: ManuallyDrop::new(self.clone()), cache, before, route_before, depth, not_send: PhantomData }
    }

    /// From now on, threads that enter log what they do with large blocks, for [`QueryHeap::take_blocks`].
    pub fn watch(&self) {
        self.watch.get_or_init(Watch::new);
    }

    /// Whether this thread, which is inside, logs large blocks from now on, if the heap is watched: it does when it enters.
    pub fn listen(&self, listens: bool) {
        let (Some(arena), Some(watch)) = (self.arena, self.watch.get()) else { return };
        let now = route();
        if now.tag() == arena.tag() && now.is_watched() != listens {
            set_route(now.watched(listens.then_some(*watch)));
        }
    }

    /// True when this thread has something for [`QueryHeap::take_blocks`].
    pub fn has_blocks(&self) -> bool {
        self.watch.get().is_some_and(|watch| blocks::any(*watch))
    }

    /// What this thread did with large blocks (from [`crate::BLOCK_BYTES_MIN`] on) inside this heap since it last asked, in
    /// order. `take` is run outside any heap.
    pub fn take_blocks(&self, take: impl FnMut(BlockEvent)) {
        if let Some(watch) = self.watch.get() {
            QueryHeap::outside(|| blocks::take(*watch, take));
        }
    }

    /// The heap that this thread allocates from, if any.
    pub fn current() -> Option<Arc<QueryHeap>> {
        let heap = INSIDE.get().heap;
        if heap.is_null() {
            return None;
        }
        // SAFETY: from `Arc::as_ptr` of a guard that is alive (see `HeapGuard::drop`), so there is a count to add to.
        unsafe {
            Arc::increment_strong_count(heap);
            Some(Arc::from_raw(heap))
        }
    }

    /// Runs `f` with allocations going to the process as usual, for state that outlives the statement.
    pub fn outside<R>(f: impl FnOnce() -> R) -> R {
        struct Back(Inside, Route);

        impl Drop for Back {
            fn drop(&mut self) {
                INSIDE.set(self.0);
                set_route(self.1);
            }
        }

        let inside = INSIDE.get();
        let _back = Back(inside, set_route(Route::PROCESS));
        INSIDE.set(Inside { heap: std::ptr::null(), ..inside });
        f()
    }

    /// Polls `future` inside this heap, and drops it there.
    pub fn scope<F: Future>(self: &Arc<Self>, future: F) -> impl Future<Output = F::Output> + use<F> {
        Scoped { heap: self.clone(), future: ManuallyDrop::new(future) }
    }

    /// 53200 once allocations found no room in any tablespace or the budget was passed, by more than a little; `Ok` before. What was over
    /// was taken from the process so that nothing aborts; whoever drives the statement asks here between batches and ends
    /// it. Of a statement that runs for long, free memory is given back here from time to time.
    pub fn check(&self) -> Result<()> {
        let Some(arena) = self.arena else { return Ok(()) };
        if arena.overdraft_bytes() > OVERDRAFT_TOLERATED {
            return Err(QueryHeap::outside(|| self.exhausted(arena)));
        }
        QueryHeap::outside(|| arena.tidy());
        Ok(())
    }

    /// Runs `allocate`, which allocates one block of about so many bytes, once there is room for it in this thread's heap, if it is in
    /// one; 53200 where there is none, beyond the little that the process gives, and as `check`. The room is the block's: no other thread of the statement finds it
    /// meanwhile.
    pub fn with_room<R>(bytes: usize, allocate: impl FnOnce() -> R) -> Result<R> {
        let Some(heap) = QueryHeap::current() else { return Ok(allocate()) };
        heap.check()?;
        let Some(arena) = heap.arena else { return Ok(allocate()) };
        let bytes = jemalloc::extent_bytes(bytes);
        let is_set_apart = heap.set_apart(arena, bytes)
            || QueryHeap::outside(|| {
                // Free extents count as the heap's.
                arena.purge();
                heap.set_apart(arena, bytes)
            });
        if !is_set_apart {
            // A little may be had of the process, as of an allocation that did not ask.
            if arena.overdraft_bytes() + bytes <= OVERDRAFT_TOLERATED {
                return Ok(allocate());
            }
            return Err(QueryHeap::outside(|| heap.refused(arena, bytes)));
        }
        Ok(promise::during(arena.tag(), bytes, |left| arena.put_back(left), allocate))
    }

    fn set_apart(&self, arena: &Arena, bytes: u64) -> bool {
        let room: u64 = self.tablespaces.iter().map(|space| space.available_bytes()).sum();
        bytes <= room && arena.set_apart(bytes)
    }

    /// Bytes that this thread's heap can still take, if it is in one.
    pub fn room_bytes() -> Option<u64> {
        QueryHeap::current().map(|heap| heap.available_bytes())
    }

    /// Whether what this thread's heap takes first is far memory.
    pub fn is_far() -> bool {
        QueryHeap::current().is_some_and(|heap| heap.tablespaces[0].is_far())
    }

    fn exhausted(&self, arena: &Arena) -> Error {
        self.refused(arena, arena.overdraft_bytes())
    }

    fn refused(&self, arena: &Arena, wanted_bytes: u64) -> Error {
        let used: Vec<String> = self
            .tablespaces
            .iter()
            .map(|space| {
                let used = ByteSize(arena.usage(space).bytes);
                let free = ByteSize(space.available_bytes());
                format!("{used} in {} ({free} free there)", space.name())
            })
            .collect();
        let budget = match self.budget_bytes {
            Some(bytes) => format!(" Its budget is {}.", ByteSize(bytes)),
            None => String::new(),
        };
        Error::new(SqlState::OUT_OF_MEMORY, "out of memory")
            .with_detail(format!(
                "The statement holds {}, and {} more were wanted.{budget}",
                used.join(" and "),
                ByteSize(wanted_bytes)
            ))
            .with_hint("Name more tablespaces in temp_tablespaces, make them larger, or raise the statement's budget.")
    }

    /// Bytes that can still be taken: the lesser of the budget's and the tablespaces' room.
    pub fn available_bytes(&self) -> u64 {
        let room: u64 = self.tablespaces.iter().map(|space| space.available_bytes()).sum();
        match self.budget_bytes {
            Some(budget) => room.min(budget.saturating_sub(self.arena.map_or(0, Arena::bytes))),
            None => room,
        }
    }

    /// What the heap holds now, and at most held, in each of its tablespaces, in their order.
    pub fn usage(&self) -> Vec<HeapUsage> {
        self.tablespaces
            .iter()
            .map(|space| {
                let usage = self.arena.map(|arena| arena.usage(space)).unwrap_or_default();
                HeapUsage { tablespace: space.clone(), bytes: usage.bytes, bytes_peak: usage.bytes_peak }
            })
            .collect()
    }

    /// Bytes that the process gave because nobody else had room.
    pub fn overdraft_bytes(&self) -> u64 {
        self.arena.map_or(0, Arena::overdraft_bytes)
    }

    pub fn tablespaces(&self) -> &[Arc<Tablespace>] {
        &self.tablespaces
    }

    pub fn budget_bytes(&self) -> Option<u64> {
        self.budget_bytes
    }
}

impl Drop for QueryHeap {
    fn drop(&mut self) {
        // Every guard holds a count, so no thread is inside.
        if let Some(arena) = self.arena {
            QueryHeap::outside(|| arena.close());
        }
    }
}

/// This thread is inside a heap. Not to be sent to another.
#[derive(Debug)]
pub struct HeapGuard {
    heap: ManuallyDrop<Arc<QueryHeap>>,
    /// The place of the thread cache that this guard took.
    cache: Option<usize>,
    before: Inside,
    route_before: Route,
    depth: usize,
    not_send: PhantomData<*const ()>,
}

impl std::fmt::Debug for Inside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "depth {}", self.depth)
    }
}

impl Drop for HeapGuard {
    fn drop(&mut self) {
        if INSIDE.get().depth != self.depth {
            // Another guard remembers this heap as what it goes back to. The heap stays for ever, so that it can.
            if !std::thread::panicking() {
                panic!("query heap guards must be dropped in the reverse order of their making");
            }
            return;
        }
        INSIDE.set(self.before);
        set_route(self.route_before);
        if let (Some(arena), Some(place)) = (self.heap.arena, self.cache) {
            arena.give_cache_back(place);
        }
        // SAFETY: dropped once, here. After leaving, as it may be the last and close the heap.
        unsafe { ManuallyDrop::drop(&mut self.heap) };
    }
}

/// A future that is polled and dropped inside a heap.
struct Scoped<F> {
    heap: Arc<QueryHeap>,
    future: ManuallyDrop<F>,
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: `future` is pinned with its owner: nothing moves it, `Drop` drops it in place, and no other field's
        // access hands it out.
        let this = unsafe { self.get_unchecked_mut() };
        let _guard = this.heap.enter();
        // SAFETY: as above.
        unsafe { Pin::new_unchecked(&mut *this.future) }.poll(context)
    }
}

impl<F> Drop for Scoped<F> {
    fn drop(&mut self) {
        let _guard = self.heap.enter();
        // SAFETY: dropped once, here, in place.
        unsafe { ManuallyDrop::drop(&mut self.future) };
    }
}
