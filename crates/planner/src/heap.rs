//! The query heap around a plan's execution.
//!
//! Planning stays outside it: plans, functions and whatever they create lazily outlive the statement. Execution is
//! inside: every poll of the plan's stream, and, through DataFusion's tracer hook, every task and blocking closure that
//! an operator spawns. A memory pool on top lets operators that ask before they grow be refused before the allocator
//! would have to take from the process.

use datafusion::arrow::array::{ArrayRef, NullArray};
use datafusion::common::hash_utils::{RandomState, with_hashes};
use datafusion::common::runtime::{JoinSetTracer, set_join_set_tracer};
use datafusion::common::{DataFusionError, Result as PlanResult};
use datafusion::execution::memory_pool::{MemoryPool, MemoryReservation};
use datafusion::execution::runtime_env::RuntimeEnv;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Wake, Waker};
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_database::Database;
use tidepool_heap::QueryHeap;

use crate::settings::Settings;

/// Opens the heap that a session's settings ask for.
pub fn open(database: &Database, settings: &Settings) -> Result<Arc<QueryHeap>> {
    let tablespaces = database.tablespaces();
    let spaces = settings.temp_tablespaces().iter().map(|name| tablespaces.get(name)).collect::<Result<Vec<_>>>()?;
    QueryHeap::open(spaces, settings.statement_memory_bytes())
}

/// What a session's open cursors and portals may hold of the tablespaces, beside the statement that runs, where no budget says it: one part in
/// so many.
const WAITING_PART: u64 = 2;

/// The heaps of a session's statements that hold memory: of its cursors and portals, of the one that runs, and of those that have ended whose
/// workers have yet to notice.
#[derive(Debug, Default)]
pub struct SessionHeaps(Mutex<Vec<StatementHeap>>);

#[derive(Debug)]
struct StatementHeap {
    heap: Weak<QueryHeap>,
    /// Nobody asks for the statement's rows any more.
    has_ended: bool,
}

impl SessionHeaps {
    /// As [`open`], for one statement more.
    pub fn open(&self, database: &Database, settings: &Settings) -> Result<Arc<QueryHeap>> {
        let heap = open(database, settings)?;
        let mut heaps = self.0.lock();
        heaps.retain(|statement| statement.heap.strong_count() > 0);
        heaps.push(StatementHeap { heap: Arc::downgrade(&heap), has_ended: false });
        Ok(heap)
    }

    /// The statement whose heap this is has ended, and holds what its workers let go of as soon as they notice.
    pub fn end(&self, heap: &Arc<QueryHeap>) {
        let mut heaps = self.0.lock();
        if let Some(statement) = heaps.iter_mut().find(|statement| statement.heap.as_ptr() == Arc::as_ptr(heap)) {
            statement.has_ended = true;
        }
    }

    /// As [`QueryHeap::check`]; and 53200 where all heaps together hold more than the budget of `heap`, one of them; without a budget, where those
    /// that wait for their clients hold more than half of its tablespaces. It is looked at between batches only, so one statement may take them
    /// to twice the budget before that.
    pub fn check(&self, heap: &QueryHeap) -> Result<()> {
        heap.check()?;
        let heaps = self.0.lock();
        if heaps.len() < 2 {
            return Ok(());
        }
        let bytes_of = |heap: &QueryHeap| -> u64 { heap.usage().iter().map(|usage| usage.bytes).sum() };
        let held_by = |counts: &dyn Fn(&StatementHeap) -> bool| -> u64 {
            let counted = heaps.iter().filter(|statement| counts(statement));
            counted.filter_map(|statement| statement.heap.upgrade()).map(|heap| bytes_of(&heap)).sum()
        };
        let (held, budget) = match heap.budget_bytes() {
            Some(budget) => (held_by(&|_| true), budget),
            None => {
                let size: u64 = heap.tablespaces().iter().map(|space| space.size_bytes()).sum();
                let waits = |other: &StatementHeap| !other.has_ended && !std::ptr::eq(other.heap.as_ptr(), heap);
                (held_by(&waits), size / WAITING_PART)
            }
        };
        if held <= budget {
            return Ok(());
        }
        Err(Error::new(SqlState::OUT_OF_MEMORY, "out of memory")
            .with_detail(format!(
                "The session's statements, open cursors among them, hold {}. Their budget is {}.",
                ByteSize(held),
                ByteSize(budget)
            ))
            .with_hint("Close cursors that are not needed any more, or raise tidepool.statement_memory."))
    }
}

/// Polls `future` inside `heap`, on whichever threads.
pub fn scope<F: Future>(heap: &Arc<QueryHeap>, future: F) -> impl Future<Output = F::Output> + use<F> {
    let scoped = heap.scope(future);
    async move {
        let mut scoped = pin!(scoped);
        poll_fn(|context| {
            prepare_thread();
            scoped.as_mut().poll(context)
        })
        .await
    }
}

/// Tasks that a worker polls before it wakes those that yielded meanwhile (Tokio's own default).
pub const WORKER_EVENT_INTERVAL: u32 = 61;

/// Wakers of yielded tasks that a worker has room for: some of each task that it polls in between.
const YIELDS_MAX: usize = 4 * WORKER_EVENT_INTERVAL as usize;

/// Rows that DataFusion hashes at once: a batch has a quarter of them.
const HASHED_ROWS_MAX: usize = 32_768;

/// Grows what libraries keep for each thread before the thread enters its first heap. Grown inside, it would be taken from
/// that statement's heap and outlive it: a page that is not given back, a tablespace that cannot be dropped.
pub fn prepare_thread() {
    thread_local! {
        static PREPARED: Cell<bool> = const { Cell::new(false) };
    }
    if !PREPARED.replace(true) {
        QueryHeap::outside(|| {
            grow_yielded();
            grow_hashes();
        });
    }
}

/// As much for a thread of the engine's.
pub fn prepare_engine_thread() {
    QueryHeap::outside(grow_hashes);
}

/// Tokio's list of tasks that yielded, of this worker. It leaves out a waker that equals the last one.
fn grow_yielded() {
    struct Nobody;

    impl Wake for Nobody {
        fn wake(self: Arc<Self>) {}
    }

    let wakers = [Waker::from(Arc::new(Nobody)), Waker::from(Arc::new(Nobody))];
    for waker in wakers.iter().cycle().take(YIELDS_MAX) {
        let _ = pin!(tokio::task::yield_now()).poll(&mut Context::from_waker(waker));
    }
}

/// DataFusion's buffer of hashes.
fn grow_hashes() {
    let rows: ArrayRef = Arc::new(NullArray::new(HASHED_ROWS_MAX));
    // Refused only while the buffer is in use.
    let _ = with_hashes([&rows], &RandomState::default(), |_| Ok(()));
}

/// The runtime environment of one statement.
pub fn runtime(base: &RuntimeEnv, heap: &Arc<QueryHeap>) -> Arc<RuntimeEnv> {
    let pool = HeapPool { heap: heap.clone(), reserved: AtomicUsize::new(0) };
    Arc::new(RuntimeEnv { memory_pool: Arc::new(pool), ..base.clone() })
}

/// Makes tasks spawned by operators allocate where their spawner does. Once a process.
pub fn install_tracer() {
    // Already set: by an earlier planner of this process, to the same.
    let _ = set_join_set_tracer(&HeapTracer);
}

struct HeapTracer;

type Erased = Box<dyn Any + Send>;

impl JoinSetTracer for HeapTracer {
    fn trace_future(&self, future: BoxFuture<'static, Erased>) -> BoxFuture<'static, Erased> {
        match QueryHeap::current() {
            Some(heap) => Box::pin(scope(&heap, future)),
            None => future,
        }
    }

    fn trace_block(&self, block: Box<dyn FnOnce() -> Erased + Send>) -> Box<dyn FnOnce() -> Erased + Send> {
        match QueryHeap::current() {
            Some(heap) => Box::new(move || {
                prepare_thread();
                let _guard = heap.enter();
                block()
            }),
            None => block,
        }
    }
}

/// DataFusion's reservations checked against what the heap can still take. The heap counts real bytes, so what was
/// reserved and then allocated is already in them; reservations themselves are kept for display only.
struct HeapPool {
    heap: Arc<QueryHeap>,
    reserved: AtomicUsize,
}

impl fmt::Debug for HeapPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeapPool(reserved {})", self.reserved.load(Ordering::Relaxed))
    }
}

impl fmt::Display for HeapPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("query heap")
    }
}

impl MemoryPool for HeapPool {
    fn name(&self) -> &str {
        "query heap"
    }

    fn grow(&self, _reservation: &MemoryReservation, additional: usize) {
        self.reserved.fetch_add(additional, Ordering::Relaxed);
    }

    fn shrink(&self, _reservation: &MemoryReservation, shrink: usize) {
        self.reserved.fetch_sub(shrink, Ordering::Relaxed);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> PlanResult<()> {
        let available = self.heap.available_bytes();
        if additional as u64 > available {
            return Err(DataFusionError::ResourcesExhausted(format!(
                "{} needs {} more; {} are left for the query heap in {}.",
                reservation.consumer().name(),
                ByteSize(additional as u64),
                ByteSize(available),
                self.heap.usage().iter().map(|usage| usage.tablespace.name().to_owned()).collect::<Vec<_>>().join(", "),
            )));
        }
        self.reserved.fetch_add(additional, Ordering::Relaxed);
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.reserved.load(Ordering::Relaxed)
    }
}
