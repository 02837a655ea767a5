//! The query heap around a plan's execution.
//!
//! Planning stays outside it: plans, functions and whatever they create lazily outlive the statement. Execution is
//! inside: every poll of the plan's stream, and, through DataFusion's tracer hook, every task and blocking closure that
//! an operator spawns. A memory pool on top lets operators that ask before they grow be refused before the allocator
//! would have to take from the process.

use datafusion::common::runtime::{JoinSetTracer, set_join_set_tracer};
use datafusion::common::{DataFusionError, Result as PlanResult};
use datafusion::execution::memory_pool::{MemoryPool, MemoryReservation};
use datafusion::execution::runtime_env::RuntimeEnv;
use futures::future::BoxFuture;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidepool_base::{ByteSize, Result};
use tidepool_database::Database;
use tidepool_heap::QueryHeap;

use crate::settings::Settings;

/// Opens the heap that a session's settings ask for.
pub fn open(database: &Database, settings: &Settings) -> Result<Arc<QueryHeap>> {
    let tablespaces = database.tablespaces();
    let spaces = settings.temp_tablespaces().iter().map(|name| tablespaces.get(name)).collect::<Result<Vec<_>>>()?;
    QueryHeap::open(spaces, settings.statement_memory_bytes())
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
            Some(heap) => Box::pin(heap.scope(future)),
            None => future,
        }
    }

    fn trace_block(&self, block: Box<dyn FnOnce() -> Erased + Send>) -> Box<dyn FnOnce() -> Erased + Send> {
        match QueryHeap::current() {
            Some(heap) => Box::new(move || {
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
