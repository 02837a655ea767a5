//! What one operator reserves of the statement's memory, seen by a pool that stands between the two.

use crate::pass::Passage;
use datafusion::common::Result as PlanResult;
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that an operator has reserved, all its partitions together.
#[derive(Debug, Default)]
pub struct Reserved(AtomicU64);

impl Reserved {
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Stands above an operator and sees what it reserves.
#[derive(Debug)]
pub struct Measure(pub Arc<Reserved>);

impl Passage for Measure {
    fn name(&self) -> &'static str {
        "MeasureExec"
    }

    fn execute(
        &self,
        input: &dyn ExecutionPlan,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> PlanResult<SendableRecordBatchStream> {
        let pool = MeasuringPool { inner: context.memory_pool().clone(), reserved: self.0.clone() };
        input.execute(partition, with_pool(&context, Arc::new(pool)))
    }
}

fn with_pool(context: &TaskContext, memory_pool: Arc<dyn MemoryPool>) -> Arc<TaskContext> {
    let runtime = RuntimeEnv { memory_pool, ..context.runtime_env().as_ref().clone() };
    Arc::new(TaskContext::new(
        context.task_id(),
        context.session_id(),
        context.session_config().clone(),
        context.scalar_functions().clone(),
        context.higher_order_functions().clone(),
        context.aggregate_functions().clone(),
        context.window_functions().clone(),
        Arc::new(runtime),
    ))
}

/// The operator's context without the pool that measures the operator above.
pub fn unmeasured(context: Arc<TaskContext>) -> Arc<TaskContext> {
    match context.memory_pool().downcast_ref::<MeasuringPool>() {
        Some(pool) => with_pool(&context, pool.inner.clone()),
        None => context,
    }
}

#[derive(Debug)]
struct MeasuringPool {
    inner: Arc<dyn MemoryPool>,
    reserved: Arc<Reserved>,
}

impl MeasuringPool {
    fn add(&self, bytes: usize) {
        self.reserved.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl fmt::Display for MeasuringPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl MemoryPool for MeasuringPool {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.inner.grow(reservation, additional);
        self.add(additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.inner.shrink(reservation, shrink);
        self.reserved.0.fetch_sub(shrink as u64, Ordering::Relaxed);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> PlanResult<()> {
        self.inner.try_grow(reservation, additional)?;
        self.add(additional);
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.inner.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.inner.memory_limit()
    }
}
