//! A physical plan into a stream of batches: on the planner's workers, or what is small on the thread that asks, inside the
//! statement's heap, to be canceled at any time.

use crate::errors::from_datafusion;
use crate::facts::SessionFacts;
use crate::heap::SessionHeaps;
use crate::interrupt::Interrupt;
use crate::queries::RunningQuery;
use crate::query::{Planned, physical_plan_of_targets};
use crate::scan::{can_restrict, restricted};
use crate::types::canonical_batch;
use crate::workload::PLACE_IDLE_MAX;
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::execution::TaskContext;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::SessionConfig;
use futures::{FutureExt, Stream, StreamExt};
use std::any::Any;
use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker, ready};
use tidepool_base::{Error, Result, RowId, panic_point};
use tidepool_heap::QueryHeap;
use tidepool_table::TableVersion;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};

/// Batches ready for the client before the plan is made to wait.
const BATCHES_AHEAD: usize = 2;

/// Bytes of batches that are ready, the one that is being sent included, from which on the plan is made to wait: of a client that does not read, no
/// more is held but the batch that came to this.
const BYTES_AHEAD: usize = 2 << 20;

/// A batch, and its bytes.
type Sent = (Result<RecordBatch>, usize);

/// Bytes of batches that are made and not done with.
#[derive(Default)]
struct Ahead {
    bytes: AtomicUsize,
    /// There are fewer.
    less: Notify,
}

impl Ahead {
    async fn has_room(&self) {
        while self.bytes.load(Ordering::Acquire) >= BYTES_AHEAD {
            let less = self.less.notified();
            tokio::pin!(less);
            // Before it is looked at again, so that what becomes less meanwhile is heard of.
            less.as_mut().enable();
            if self.bytes.load(Ordering::Acquire) >= BYTES_AHEAD {
                less.await;
            }
        }
    }

    fn done(&self, bytes: usize) {
        if bytes > 0 {
            self.bytes.fetch_sub(bytes, Ordering::Release);
            self.less.notify_waiters();
        }
    }
}

/// Bytes of a batch's values, shared buffers counted by what is used of them.
fn bytes_of(batch: &RecordBatch) -> usize {
    let column = |array: &ArrayRef| match array.data_type() {
        DataType::Utf8View => 16 * array.len() + array.as_string_view().total_buffer_bytes_used(),
        DataType::BinaryView => 16 * array.len() + array.as_binary_view().total_buffer_bytes_used(),
        other => match other.primitive_width() {
            Some(width) => width * array.len(),
            None => array.to_data().get_slice_memory_size().unwrap_or(0),
        },
    };
    batch.columns().iter().map(column).sum()
}

/// A plan ready to run, with all it needs.
pub struct Execution {
    pub plan: Arc<dyn ExecutionPlan>,
    pub context: Arc<TaskContext>,
    /// What leaves: `types::canonical_schema` of the plan's.
    pub schema: SchemaRef,
    pub heap: Arc<QueryHeap>,
    /// Of the session.
    pub heaps: Arc<SessionHeaps>,
    /// `None` for a part of a statement.
    pub query: Option<RunningQuery>,
    pub interrupt: Arc<Interrupt>,
    /// Set when the statement fails after its first row, which also fails the transaction block.
    pub failed: Option<Arc<AtomicBool>>,
    /// It takes no longer than to wake a thread for it, or not much.
    pub is_small: bool,
}

/// A running plan's batches. Dropping it ends the plan.
pub struct Batches {
    receiver: mpsc::Receiver<Sent>,
    ahead: Arc<Ahead>,
    /// Of the batch that was handed out last.
    handed: usize,
    /// Batches in the channel may lie in it.
    heap: Arc<QueryHeap>,
    /// Of the session.
    heaps: Arc<SessionHeaps>,
    interrupt: Arc<Interrupt>,
    /// As [`Execution::failed`].
    failed: Option<Arc<AtomicBool>>,
    /// The statement's end from outside, once its batches had to be waited for; whoever makes them may be long in noticing it.
    end: Option<Pin<Box<dyn Future<Output = Error> + Send>>>,
    /// Its end was told, and nothing comes after it.
    is_told: bool,
}

impl Batches {
    /// For a thread that may block. Once the statement is to end, that is the next: batches that were ready before are as good as
    /// none.
    pub fn blocking_next(&mut self) -> Option<Result<RecordBatch>> {
        if let Err(error) = self.interrupt.check() {
            return Some(Err(error));
        }
        Handle::current().block_on(self.next())
    }

    /// When the error is handed out and not when it is met: batches are made ahead of a cursor's FETCH, and a transaction whose client was
    /// told of no error goes on.
    fn fail(&self) {
        if let Some(failed) = &self.failed {
            failed.store(true, Ordering::Release);
        }
    }
}

impl Stream for Batches {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<RecordBatch>>> {
        if self.is_told {
            return Poll::Ready(None);
        }
        // Whoever asks for the next is done with the last.
        let handed = std::mem::take(&mut self.handed);
        self.ahead.done(handed);
        if let Poll::Ready(next) = self.receiver.poll_recv(context) {
            let Some((batch, bytes)) = next else { return Poll::Ready(None) };
            self.handed = bytes;
            if batch.is_err() {
                self.fail();
            }
            return Poll::Ready(Some(batch));
        }
        let Batches { end, interrupt, .. } = &mut *self;
        let end = end.get_or_insert_with(|| {
            let interrupt = interrupt.clone();
            Box::pin(async move { interrupt.wait().await })
        });
        let error = ready!(end.as_mut().poll(context));
        self.is_told = true;
        self.heaps.end(&self.heap);
        self.fail();
        Poll::Ready(Some(Err(error)))
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.heaps.end(&self.heap);
    }
}

impl Execution {
    pub fn start(self, workers: &Handle) -> Batches {
        let (batches, work) = self.begin();
        workers.spawn(work);
        batches
    }

    /// As `start`, where what is small is done by this thread: one that nothing else waits for, or not for long.
    pub fn start_here(self, workers: &Handle) -> Batches {
        if !self.is_small {
            return self.start(workers);
        }
        let (batches, work) = self.begin();
        let mut work = Box::pin(work);
        let _runtime = workers.enter();
        // It catches its panics.
        if work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            workers.spawn(work);
        }
        batches
    }

    /// The batches, and what makes them, for one of the planner's workers.
    fn begin(self) -> (Batches, impl Future<Output = ()> + Send + use<>) {
        let (sender, receiver) = mpsc::channel(BATCHES_AHEAD);
        let ahead = Arc::new(Ahead::default());
        let batches = Batches {
            receiver,
            ahead: ahead.clone(),
            handed: 0,
            heap: self.heap.clone(),
            heaps: self.heaps.clone(),
            interrupt: self.interrupt.clone(),
            failed: self.failed.clone(),
            end: None,
            is_told: false,
        };
        let work = async move {
            let outcome = caught(self.run(&sender, &ahead)).await;
            if let Err(error) = outcome {
                // Nobody listens any more: then nobody needs the error either.
                let _ = sender.send((Err(error), 0)).await;
            }
        };
        (batches, work)
    }

    async fn run(mut self, sender: &mpsc::Sender<Sent>, ahead: &Ahead) -> Result<()> {
        if let Some(query) = &self.query {
            query.info.running(Some(self.heap.clone()));
        }
        panic_point("planner.execution");
        let mut stream = {
            crate::heap::prepare_thread();
            let _guard = self.heap.enter();
            execute_stream(self.plan.clone(), self.context.clone()).map_err(from_datafusion)?
        };
        loop {
            let next = tokio::select! {
                biased;
                error = self.interrupt.wait() => return Err(error),
                next = crate::heap::scope(&self.heap, stream.next()) => next,
            };
            let Some(batch) = next else { break };
            // An operator that met the heap's end reports what it tripped over; the heap knows the reason.
            let batch = match batch {
                Ok(batch) => batch,
                Err(error) => {
                    self.heaps.check(&self.heap)?;
                    return Err(from_datafusion(error));
                }
            };
            self.heaps.check(&self.heap)?;
            if batch.num_rows() == 0 {
                continue;
            }
            let batch = {
                let _guard = self.heap.enter();
                canonical_batch(&batch, &self.schema, self.context.session_config().options())?
            };
            let rows = batch.num_rows() as u64;
            let bytes = bytes_of(&batch);
            crate::catalog::check_batch(&batch, bytes)?;
            ahead.bytes.fetch_add(bytes, Ordering::AcqRel);
            let info = self.query.as_ref().map(|query| query.info.clone());
            let sending = async {
                let sent = sender.send((Ok(batch), bytes)).await.is_ok();
                if let Some(info) = info.filter(|_| sent) {
                    info.rows.fetch_add(rows, Ordering::Relaxed);
                }
                // Before the next one is made. Whoever listened may be gone.
                tokio::select! {
                    biased;
                    () = ahead.has_room() => sent,
                    () = sender.closed() => false,
                }
            };
            let mut sending = std::pin::pin!(sending);
            let sent = loop {
                let place = self.query.as_mut().map(|query| &mut query.place).filter(|place| place.is_some());
                let idle = async {
                    match &place {
                        Some(_) => tokio::time::sleep(PLACE_IDLE_MAX).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    error = self.interrupt.wait() => return Err(error),
                    sent = &mut sending => break sent,
                    // Its client does not read, and may never: somebody else has the turn.
                    () = idle => if let Some(place) = place {
                        *place = None;
                    },
                }
            };
            if !sent {
                break;
            }
        }
        self.heaps.check(&self.heap)?;
        if let Some(query) = &mut self.query {
            query.succeeded();
        }
        Ok(())
    }
}

/// A plan that ran for a statement, to be run again for some of its targets' rows: PostgreSQL's EvalPlanQual.
pub struct Reevaluation {
    again: Again,
    /// Once it was asked for.
    plan: OnceLock<Arc<dyn ExecutionPlan>>,
    context: Arc<TaskContext>,
    schema: SchemaRef,
    heap: Arc<QueryHeap>,
    interrupt: Arc<Interrupt>,
    workers: Handle,
}

/// What a statement's plan is run again as.
pub struct Again {
    /// What the statement runs, before anything was wrapped around its operators.
    plan: Arc<dyn ExecutionPlan>,
    /// What another one is made of, where that one cannot be run for some rows.
    later: Option<(LogicalPlan, Arc<SessionFacts>)>,
    /// It does not name the statement, so that scans are no part of its account.
    config: SessionConfig,
}

impl Again {
    pub fn of(planned: &Planned) -> Again {
        let facts = SessionFacts::of(planned.state.config_options());
        Again {
            plan: planned.plan.clone(),
            later: planned.again.clone().zip(facts.cloned()),
            config: planned.state.config().clone(),
        }
    }
}

impl Reevaluation {
    pub fn new(again: Again, execution: &Execution, workers: Handle) -> Reevaluation {
        let context = task_context(again.config.clone(), execution.context.runtime_env());
        Reevaluation {
            again,
            plan: OnceLock::new(),
            context: Arc::new(context),
            schema: execution.schema.clone(),
            heap: execution.heap.clone(),
            interrupt: execution.interrupt.clone(),
            workers,
        }
    }

    /// The plan that is run again. Of a statement that changes rows, for a thread that may block.
    fn plan(&self) -> Result<&Arc<dyn ExecutionPlan>> {
        let Some((plan, facts)) = &self.again.later else { return Ok(&self.again.plan) };
        if let Some(made) = self.plan.get() {
            return Ok(made);
        }
        let made = Handle::current().block_on(physical_plan_of_targets(facts, plan.clone()))?;
        Ok(self.plan.get_or_init(|| made))
    }

    /// Whether `rows` can be asked for; or, unless the plan has `ended`, while it runs.
    pub fn is_possible(&self, ended: bool) -> Result<bool> {
        Ok(can_restrict(self.plan()?, ended))
    }

    /// What the plan gives for these rows of each target, as those versions have them. For a thread that may block.
    pub fn rows(&self, targets: &[(Arc<TableVersion>, Vec<RowId>)]) -> Result<Vec<RecordBatch>> {
        let plan = restricted(self.plan()?, targets).map_err(from_datafusion)?;
        let execution = Execution {
            plan: crate::guard::wrap(plan, &self.interrupt)?,
            context: self.context.clone(),
            schema: self.schema.clone(),
            heap: self.heap.clone(),
            heaps: Arc::default(),
            query: None,
            interrupt: self.interrupt.clone(),
            failed: None,
            is_small: false,
        };
        let mut batches = execution.start(&self.workers);
        let mut rows = Vec::new();
        while let Some(batch) = batches.blocking_next() {
            rows.push(batch?);
        }
        Ok(rows)
    }
}

/// What operators run in. Functions are in their plans.
pub fn task_context(config: SessionConfig, runtime: Arc<RuntimeEnv>) -> TaskContext {
    let none = String::new();
    TaskContext::new(None, none, config, HashMap::new(), HashMap::new(), HashMap::new(), HashMap::new(), runtime)
}

/// A panic in an operator or a library is that statement's error and nobody else's.
pub fn panicked(panic: &(dyn Any + Send)) -> Error {
    let error = tidepool_base::panicked(panic);
    tracing::error!("a statement panicked: {error}");
    error
}

/// Like `future`, or the error that its panic is. Dropping it drops what it was about, which so must be consistent, or nobody's.
pub async fn caught<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    AssertUnwindSafe(future).catch_unwind().await.unwrap_or_else(|panic| Err(panicked(panic.as_ref())))
}

/// What a task of the planner's own came to.
pub fn joined<T>(joined: std::result::Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    match joined {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => Err(panicked(panic.as_ref())),
            Err(_) => Err(crate::errors::canceled()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};
    use tidepool_base::{SqlState, TablespaceId};
    use tidepool_device::Location;
    use tidepool_tablespace::{Tablespace, TablespaceConfig};

    /// Batches that nobody makes.
    fn batches(interrupt: &Arc<Interrupt>) -> (Batches, mpsc::Sender<Sent>, Arc<AtomicBool>) {
        let config = TablespaceConfig {
            name: "near".into(),
            location: Location::Anon,
            size_bytes: Some(1 << 20),
            profile: None,
            profiles: Vec::new(),
            huge_pages: false,
            populate_bytes: 0,
        };
        let near = Tablespace::open(TablespaceId(0), config).unwrap();
        let (sender, receiver) = mpsc::channel(BATCHES_AHEAD);
        let failed = Arc::new(AtomicBool::new(false));
        let batches = Batches {
            receiver,
            ahead: Arc::default(),
            handed: 0,
            heap: QueryHeap::open(vec![near], None).unwrap(),
            heaps: Arc::default(),
            interrupt: interrupt.clone(),
            failed: Some(failed.clone()),
            end: None,
            is_told: false,
        };
        (batches, sender, failed)
    }

    #[tokio::test]
    async fn who_waits_for_batches_hears_of_the_end_before_those_who_make_them() {
        for timeout in [None, Some(Duration::from_millis(5))] {
            let interrupt = Arc::new(Interrupt::new(Instant::now(), timeout, None));
            let (mut batches, _sender, failed) = batches(&interrupt);
            if timeout.is_none() {
                assert!(batches.next().now_or_never().is_none() && !failed.load(Ordering::Acquire));
                interrupt.cancel();
            }
            let error = batches.next().await.unwrap().unwrap_err();
            assert_eq!(error.code(), SqlState::QUERY_CANCELED);
            assert!(failed.load(Ordering::Acquire));
            assert!(batches.next().await.is_none());
        }
    }

    #[tokio::test]
    async fn a_transaction_fails_when_the_error_is_read() {
        let (mut batches, sender, failed) = batches(&Arc::new(Interrupt::new(Instant::now(), None, None)));
        sender.send((Err(Error::internal("met ahead of the client")), 0)).await.unwrap();
        assert!(!failed.load(Ordering::Acquire));
        assert!(batches.next().await.unwrap().is_err());
        assert!(failed.load(Ordering::Acquire));
    }

    #[test]
    fn a_thread_that_waits_for_batches_hears_of_the_end() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let interrupt = Arc::new(Interrupt::new(Instant::now(), None, None));
        let (mut batches, _sender, _) = batches(&interrupt);
        let waiting = runtime.spawn_blocking(move || batches.blocking_next());
        std::thread::sleep(Duration::from_millis(10));
        interrupt.cancel();
        let error = runtime.block_on(waiting).unwrap().unwrap().unwrap_err();
        assert_eq!(error.code(), SqlState::QUERY_CANCELED);
    }
}
