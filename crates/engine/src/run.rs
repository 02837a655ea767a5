//! A run: pipelines one after the other, each on as many workers as find something to do.

use crate::counters::Tally;
use crate::pipeline::{Next, Out, Pipeline, Reader, SinkState, Step, Task};
use crate::schedule::{Job, SLICE, Tickets, Worked};
use crate::touch::Way;
use crate::vector::Chunk;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;
use tidepool_base::{Error, Result, caught, panic_point};
use tidepool_heap::QueryHeap;

/// Whether a run is still wanted: asked once a chunk.
pub trait Interruption: Send + Sync {
    fn check(&self) -> Result<()>;
}

/// What a worker has of each part of a pipeline.
struct WorkerState {
    reader: Box<dyn Reader>,
    steps: Vec<Box<dyn Step>>,
    sink: Box<dyn SinkState>,
    tallies: Vec<Tally>,
    way: Option<Way>,
}

#[derive(Default)]
struct State {
    /// Which pipeline is at work.
    stage: usize,
    /// Asked of its sink next; `None`: chunks still flow.
    round: Option<usize>,
    tasks: Vec<Task>,
    /// Nobody is at work with these.
    resting: Vec<WorkerState>,
    made: usize,
    /// Of the pipeline's source, once the first worker has asked.
    parallelism: Option<usize>,
    /// Its source has no more, or nobody wants more.
    is_ending: bool,
    /// Workers inside.
    active: usize,
    parked: usize,
    finished: Vec<Box<dyn SinkState>>,
    is_over: bool,
    error: Option<Error>,
}

/// Called once, with how the run came out.
type Over = Box<dyn FnOnce(Result<()>) + Send>;

pub struct Run {
    /// Gone once the run is over, before that is told: so are the tables and streams that it read, however long somebody keeps the
    /// run or a ticket of it. Who is inside has a count of his own.
    pipelines: Mutex<Arc<Vec<Pipeline>>>,
    state: Mutex<State>,
    over: Mutex<Option<Over>>,
    heap: Option<Arc<QueryHeap>>,
    interruption: Arc<dyn Interruption>,
    is_stopped: AtomicBool,
    /// How often somebody woke it: a worker that found nothing looks again if it has changed since.
    wakes: AtomicU64,
    tickets: Tickets,
    own: OnceLock<Weak<Run>>,
}

/// Wakes a run that waits for chunks, or for room. Keeps nothing alive.
#[derive(Clone, Default)]
pub struct Waker(Arc<OnceLock<Weak<Run>>>);

impl Waker {
    pub fn wake(&self) {
        if let Some(run) = self.0.get().and_then(Weak::upgrade) {
            run.wake();
        }
    }
}

enum Outcome {
    /// The slice is over; there is more.
    Slice,
    /// The worker has nothing to do until the run is woken.
    Blocked,
    /// The worker's part of the pipeline is over.
    End,
}

impl Run {
    /// Starts. `wakers` are told whom to wake. `over` is called at the end, on the thread that notices it. `here`: the caller is the first one to work, for a slice.
    #[expect(clippy::too_many_arguments, reason = "what a run is made of")]
    pub fn start(
        pipelines: Vec<Pipeline>,
        heap: Option<Arc<QueryHeap>>,
        interruption: Arc<dyn Interruption>,
        tickets: Tickets,
        threads: usize,
        wakers: &[Waker],
        here: bool,
        over: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Arc<Run> {
        let run = Arc::new(Run {
            state: Mutex::new(State { is_over: pipelines.is_empty(), ..State::default() }),
            pipelines: Mutex::new(Arc::new(pipelines)),
            over: Mutex::new(Some(Box::new(over))),
            heap,
            interruption,
            is_stopped: AtomicBool::new(false),
            wakes: AtomicU64::new(0),
            tickets,
            own: OnceLock::new(),
        });
        // Neither has a value yet.
        let _ = run.own.set(Arc::downgrade(&run));
        for waker in wakers {
            let _ = waker.0.set(Arc::downgrade(&run));
        }
        if run.state.lock().is_over {
            run.tell_over(Ok(()));
        } else {
            let mut tickets = threads.max(1);
            if here && let Worked::Kept = run.clone().work(&|| false) {
                // Its ticket waits to be woken for, or nobody needs one any more.
                tickets = if run.state.lock().is_over { 0 } else { tickets - 1 };
            }
            run.hand_in(tickets);
        }
        run
    }

    /// It ends as soon as its workers notice: within a chunk's time.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        self.wake();
    }

    /// Parked tickets are handed in again.
    pub fn wake(&self) {
        self.wakes.fetch_add(1, Ordering::AcqRel);
        let parked = std::mem::take(&mut self.state.lock().parked);
        self.hand_in(parked);
    }

    fn hand_in(&self, count: usize) {
        if let Some(run) = self.own.get().and_then(Weak::upgrade) {
            let job: Arc<dyn Job> = run;
            self.tickets.hand_in(&job, count);
        }
    }

    fn tell_over(&self, result: Result<()>) {
        let over = self.over.lock().take();
        if let Some(over) = over {
            over(result);
        }
    }

    fn pipelines(&self) -> Arc<Vec<Pipeline>> {
        Arc::clone(&self.pipelines.lock())
    }

    fn check(&self) -> Result<()> {
        if let Some(heap) = &self.heap {
            heap.check()?;
        }
        self.interruption.check()
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    fn fail(&self, error: Error) {
        self.state.lock().error.get_or_insert(error);
        self.is_stopped.store(true, Ordering::Release);
    }

    /// Works until the slice is over or there is nothing to do. True: there is more.
    fn serve(&self, is_alone: &dyn Fn() -> bool) -> bool {
        let start = Instant::now();
        loop {
            let wakes = self.wakes.load(Ordering::Acquire);
            let mut state = self.state.lock();
            if state.is_over {
                return false;
            }
            if self.is_stopped() {
                if state.active > 0 {
                    // The last one inside ends it; this ticket is of no more use.
                    return false;
                }
                self.end(state);
                return false;
            }
            if let Some(task) = state.tasks.pop() {
                state.active += 1;
                drop(state);
                let done = caught(task);
                self.leave(done);
            } else if state.round.is_some() {
                if state.active > 0 {
                    state.parked += 1;
                    return false;
                }
                state.active += 1;
                let stage = state.stage;
                let round = state.round.unwrap_or_default();
                let mut finished = std::mem::take(&mut state.finished);
                drop(state);
                let tasks = caught(|| self.pipelines()[stage].sink.finish(round, &mut finished));
                let mut is_shared = false;
                let done = tasks.map(|tasks| {
                    is_shared = tasks.len() > 1;
                    let mut state = self.state.lock();
                    state.finished = finished;
                    if tasks.is_empty() {
                        *state = State {
                            stage: stage + 1,
                            active: state.active,
                            parked: state.parked,
                            error: state.error.take(),
                            is_over: state.is_over,
                            ..State::default()
                        };
                    } else {
                        state.tasks = tasks;
                        state.round = Some(round + 1);
                    }
                });
                self.leave(done);
                // Whoever begins a pipeline wakes others for it.
                if is_shared {
                    self.wake();
                }
            } else if state.stage == self.pipelines().len() {
                if state.active > 0 {
                    return false;
                }
                self.end(state);
                return false;
            } else {
                let stage = state.stage;
                let worker = match state.resting.pop() {
                    Some(worker) => Some(worker),
                    None if state.is_ending
                        || (state.made > 0 && state.parallelism.is_none_or(|most| state.made >= most)) =>
                    {
                        if state.active == 0 && state.is_ending {
                            state.round = Some(0);
                            continue;
                        }
                        state.parked += 1;
                        return false;
                    }
                    None => {
                        state.made += 1;
                        None
                    }
                };
                state.active += 1;
                drop(state);
                let outcome = caught(|| {
                    let pipelines = self.pipelines();
                    let pipeline = &pipelines[stage];
                    let mut worker = match worker {
                        Some(worker) => worker,
                        None => self.worker(pipeline)?,
                    };
                    let outcome = self.flow(pipeline, &mut worker, start, is_alone)?;
                    Ok((worker, outcome))
                });
                let mut is_blocked = false;
                let done = outcome.map(|(worker, outcome)| {
                    let mut state = self.state.lock();
                    match outcome {
                        Outcome::End => {
                            state.is_ending = true;
                            state.finished.push(worker.sink);
                        }
                        Outcome::Slice => state.resting.push(worker),
                        Outcome::Blocked => {
                            is_blocked = true;
                            state.resting.push(worker);
                        }
                    }
                });
                self.leave(done);
                if is_blocked {
                    let mut state = self.state.lock();
                    if self.wakes.load(Ordering::Acquire) == wakes && !self.is_stopped() && !state.is_over {
                        state.parked += 1;
                        return false;
                    }
                }
            }
            if start.elapsed() >= SLICE && !is_alone() {
                return true;
            }
        }
    }

    /// A worker comes out. It looks again for what there is to do: nobody else is woken for what one can do alone.
    fn leave(&self, done: Result<()>) {
        if let Err(error) = done {
            self.fail(error);
        }
        self.state.lock().active -= 1;
    }

    /// Nobody is inside any more. What workers held goes before the end is told.
    fn end(&self, mut state: parking_lot::MutexGuard<'_, State>) {
        state.is_over = true;
        let error = state.error.take();
        let rest = std::mem::take(&mut *state);
        state.is_over = true;
        drop(state);
        drop(rest);
        drop(std::mem::take(&mut *self.pipelines.lock()));
        let stopped = || Err(Error::internal("a run was stopped"));
        let result = match error {
            Some(error) => Err(error),
            None if self.is_stopped() => self.interruption.check().and_then(|()| stopped()),
            None => Ok(()),
        };
        self.tell_over(result);
    }

    fn worker(&self, pipeline: &Pipeline) -> Result<WorkerState> {
        if self.state.lock().parallelism.is_none() {
            let parallelism = pipeline.source.parallelism()?;
            self.state.lock().parallelism = Some(parallelism);
            if parallelism > 1 {
                self.wake();
            }
        }
        panic_point("engine.worker");
        Ok(WorkerState {
            reader: pipeline.source.reader()?,
            steps: pipeline.operators.iter().map(|operator| operator.worker()).collect::<Result<_>>()?,
            sink: pipeline.sink.worker()?,
            tallies: vec![Tally::default(); pipeline.operators.len() + 2],
            way: pipeline.account.clone().map(Way::new),
        })
    }

    fn flow(
        &self,
        pipeline: &Pipeline,
        worker: &mut WorkerState,
        start: Instant,
        is_alone: &dyn Fn() -> bool,
    ) -> Result<Outcome> {
        let outcome = loop {
            self.check()?;
            if self.is_stopped() {
                break Outcome::Slice;
            }
            if pipeline.sink.is_satisfied() || worker.steps.iter().any(|step| step.is_satisfied()) {
                break Outcome::End;
            }
            if !pipeline.sink.is_ready() {
                break Outcome::Blocked;
            }
            let before = Instant::now();
            let next = worker.reader.next()?;
            let WorkerState { steps, sink, tallies, .. } = worker;
            let (tally, tallies) = tallies.split_first_mut().unwrap_or_else(|| unreachable!("one for each part"));
            let after = Instant::now();
            tally.ns += after.duration_since(before).as_nanos() as u64;
            match next {
                Next::Chunk(chunk) => {
                    tally.rows_out += chunk.rows as u64;
                    if chunk.rows > 0 {
                        push(chunk, after, steps, sink.as_mut(), tallies)?;
                    }
                    if let (Some(way), Some(heap)) = (&mut worker.way, &self.heap) {
                        way.passed(heap);
                    }
                }
                Next::Blocked => break Outcome::Blocked,
                Next::End => break Outcome::End,
            }
            // A clock that is read anyway.
            if after.duration_since(start) >= SLICE && !is_alone() {
                break Outcome::Slice;
            }
        };
        if let Outcome::End = outcome {
            let WorkerState { steps, sink, tallies, .. } = worker;
            for index in 0..steps.len() {
                let (step, rest) = steps[index..].split_first_mut().unwrap_or_else(|| unreachable!("within"));
                let (tally, tallies) =
                    tallies[index + 1..].split_first_mut().unwrap_or_else(|| unreachable!("one for each part"));
                let before = Instant::now();
                let mut within = 0;
                step.end(&mut |chunk| {
                    tally.rows_out += chunk.rows as u64;
                    let start = Instant::now();
                    push(chunk, start, rest, sink.as_mut(), tallies)?;
                    within += start.elapsed().as_nanos() as u64;
                    Ok(())
                })?;
                tally.ns += (before.elapsed().as_nanos() as u64).saturating_sub(within);
            }
            let before = Instant::now();
            sink.end()?;
            if let Some(tally) = tallies.last_mut() {
                tally.ns += before.elapsed().as_nanos() as u64;
            }
        }
        for (tally, counters) in worker.tallies.iter_mut().zip(&pipeline.counters) {
            counters.add(tally);
        }
        Ok(outcome)
    }
}

/// Through the operators that are left, and into the sink. Returns when it came out.
fn push(
    chunk: Chunk,
    start: Instant,
    steps: &mut [Box<dyn Step>],
    sink: &mut dyn SinkState,
    tallies: &mut [Tally],
) -> Result<()> {
    if chunk.rows == 0 {
        return Ok(());
    }
    let Some((tally, tallies)) = tallies.split_first_mut() else { unreachable!("one for each part") };
    tally.rows_in += chunk.rows as u64;
    let Some((step, steps)) = steps.split_first_mut() else {
        sink.push(chunk)?;
        tally.ns += start.elapsed().as_nanos() as u64;
        return Ok(());
    };
    let mut within = 0;
    let out: Out<'_> = &mut |chunk| {
        tally.rows_out += chunk.rows as u64;
        let start = Instant::now();
        push(chunk, start, steps, sink, tallies)?;
        within += start.elapsed().as_nanos() as u64;
        Ok(())
    };
    step.push(chunk, out)?;
    tally.ns += (start.elapsed().as_nanos() as u64).saturating_sub(within);
    Ok(())
}

impl Job for Run {
    fn work(self: Arc<Self>, is_alone: &dyn Fn() -> bool) -> Worked {
        let _inside = self.heap.as_ref().map(|heap| heap.enter());
        // What a pipeline does is caught where it is done. What is left is the run's own books, which nobody knows to be right any more.
        match caught(|| Ok(self.serve(is_alone))) {
            Ok(true) => Worked::More,
            Ok(false) => Worked::Kept,
            Err(error) => {
                self.is_stopped.store(true, Ordering::Release);
                self.state.lock().is_over = true;
                self.tell_over(Err(error));
                Worked::Kept
            }
        }
    }
}
