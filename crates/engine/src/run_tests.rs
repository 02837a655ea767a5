//! Runs on several workers: every chunk comes through once, each run ends once and says how, and nobody waits for ever.

use crate::pipeline::{Next, Operator, Out, Pipeline, Reader, Sink, SinkState, Source, Step, Task, states_of};
use crate::run::{Interruption, Run, Waker};
use crate::schedule::Workers;
use crate::stream::{Batch, Inlet, InletSource, Outlet, OutletSink};
use crate::types::ColumnType;
use crate::vector::{Chunk, Vector};
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array};
use arrow_schema::DataType;
use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake};
use std::time::Duration;
use tidepool_base::{Error, Result};

struct Always;

impl Interruption for Always {
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

fn noise(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 11
    }
}

/// Chunks of the numbers from 0 on.
struct Numbers {
    chunks: usize,
    next: Arc<AtomicUsize>,
    most: usize,
}

struct NumbersReader {
    chunks: usize,
    next: Arc<AtomicUsize>,
}

const ROWS: usize = 10;

impl Source for Numbers {
    fn reader(&self) -> Result<Box<dyn Reader>> {
        Ok(Box::new(NumbersReader { chunks: self.chunks, next: Arc::clone(&self.next) }))
    }

    fn parallelism(&self) -> Result<usize> {
        Ok(self.most)
    }
}

impl Reader for NumbersReader {
    fn next(&mut self) -> Result<Next> {
        let chunk = self.next.fetch_add(1, Ordering::Relaxed);
        if chunk >= self.chunks {
            return Ok(Next::End);
        }
        let first = (chunk * ROWS) as i64;
        Ok(Next::Chunk(Chunk::new(ROWS, vec![Vector::ints((first..first + ROWS as i64).collect())])))
    }
}

fn numbers(chunks: usize, most: usize) -> Arc<Numbers> {
    Arc::new(Numbers { chunks, next: Arc::default(), most })
}

/// Fails, or panics, at the chunk with this number; passes others on, and one more at its end.
struct Tripwire {
    fails_at: Option<i64>,
    panics: bool,
}

struct TripwireStep {
    fails_at: Option<i64>,
    panics: bool,
}

impl Operator for Tripwire {
    fn worker(&self) -> Result<Box<dyn Step>> {
        Ok(Box::new(TripwireStep { fails_at: self.fails_at, panics: self.panics }))
    }
}

impl Step for TripwireStep {
    fn push(&mut self, chunk: Chunk, out: Out<'_>) -> Result<()> {
        if self.fails_at.is_some_and(|at| chunk.columns[0].as_ints().unwrap().contains(&at)) {
            assert!(!self.panics, "on purpose");
            return Err(Error::unsupported("on purpose"));
        }
        out(chunk)
    }

    fn end(&mut self, out: Out<'_>) -> Result<()> {
        out(Chunk::new(1, vec![Vector::ints(vec![0])]))
    }
}

/// Adds up, in two rounds of tasks.
#[derive(Default)]
struct Sum {
    sum: Arc<AtomicU64>,
    rows: Arc<AtomicU64>,
    tasks: Arc<AtomicU64>,
    finished: AtomicBool,
}

struct SumState(u64, u64);

impl SinkState for SumState {
    fn push(&mut self, chunk: Chunk) -> Result<()> {
        self.0 += chunk.columns[0].as_ints()?.iter().sum::<i64>() as u64;
        self.1 += chunk.rows as u64;
        Ok(())
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl Sink for Sum {
    fn worker(&self) -> Result<Box<dyn SinkState>> {
        Ok(Box::new(SumState(0, 0)))
    }

    fn finish(&self, round: usize, states: &mut Vec<Box<dyn SinkState>>) -> Result<Vec<Task>> {
        assert!(!self.finished.load(Ordering::SeqCst));
        let task = |states: Vec<Box<SumState>>| {
            let (sum, rows, tasks) = (Arc::clone(&self.sum), Arc::clone(&self.rows), Arc::clone(&self.tasks));
            Box::new(move || {
                for state in states {
                    sum.fetch_add(state.0, Ordering::SeqCst);
                    rows.fetch_add(state.1, Ordering::SeqCst);
                }
                tasks.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }) as Task
        };
        Ok(match round {
            0 => states_of::<SumState>(states).into_iter().map(|state| task(vec![state])).collect(),
            1 => {
                assert!(self.tasks.load(Ordering::SeqCst) > 0, "a round begins when the one before it is over");
                (0..5).map(|_| task(Vec::new())).collect()
            }
            _ => {
                self.finished.store(true, Ordering::SeqCst);
                Vec::new()
            }
        })
    }
}

fn pipeline(source: Arc<dyn Source>, operators: Vec<Arc<dyn Operator>>, sink: Arc<dyn Sink>) -> Pipeline {
    Pipeline { source, operators, sink, counters: Vec::new(), account: None }
}

/// How runs come out; an end that is told twice is an error.
fn told() -> (mpsc::Sender<Result<()>>, mpsc::Receiver<Result<()>>) {
    mpsc::channel()
}

const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn pipelines_run_in_order_and_whole() {
    let workers = Workers::start(4, 1 << 20, || {}).unwrap();
    let mut next = noise(1);
    for round in 0..150 {
        let mut runs = Vec::new();
        for _ in 0..1 + next() % 4 {
            let (sender, over) = told();
            let mut sums = Vec::new();
            let mut pipelines = Vec::new();
            for _ in 0..1 + next() % 4 {
                let (chunks, most) = ((next() % 300) as usize, 1 + (next() % 5) as usize);
                let sum = Arc::new(Sum::default());
                let tripwire = Arc::new(Tripwire { fails_at: None, panics: false });
                pipelines.push(pipeline(numbers(chunks, most), vec![tripwire], sum.clone()));
                sums.push((chunks * ROWS, sum));
            }
            let threads = 1 + (next() % 6) as usize;
            let run =
                Run::start(pipelines, None, Arc::new(Always), workers.tickets(), threads, &[], false, move |result| {
                    sender.send(result).unwrap();
                });
            runs.push((run, over, sums));
        }
        for (run, over, sums) in runs {
            over.recv_timeout(PATIENCE).expect("the run ends").unwrap();
            for (rows, sum) in sums {
                assert!(sum.finished.load(Ordering::SeqCst));
                let rows = rows as u64;
                assert_eq!(sum.sum.load(Ordering::SeqCst), rows * rows.saturating_sub(1) / 2, "round {round}");
                // And one for each worker's end.
                let found = sum.rows.load(Ordering::SeqCst);
                assert!((rows + 1..=rows + 6).contains(&found), "{found} of {rows}");
            }
            drop(run);
            assert!(over.try_recv().is_err());
        }
    }
}

#[test]
fn errors_and_panics_end_a_run_once() {
    let workers = Workers::start(3, 1 << 20, || {}).unwrap();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut next = noise(2);
    for round in 0..200 {
        let (sender, over) = told();
        let chunks = 1 + (next() % 100) as usize;
        let fails_at = Some((next() % (chunks * ROWS) as u64) as i64);
        let panics = next().is_multiple_of(2);
        let later = Arc::new(Sum::default());
        let pipelines = vec![
            pipeline(numbers(50, 4), vec![], Arc::new(Sum::default())),
            pipeline(numbers(chunks, 4), vec![Arc::new(Tripwire { fails_at, panics })], Arc::new(Sum::default())),
            pipeline(numbers(50, 4), vec![], later.clone()),
        ];
        // Half of them begin on this thread.
        let here = round % 2 == 1;
        let run = Run::start(pipelines, None, Arc::new(Always), workers.tickets(), 3, &[], here, move |result| {
            sender.send(result).unwrap();
        });
        let error = over.recv_timeout(PATIENCE).expect("the run ends").unwrap_err();
        assert!(error.to_string().contains("on purpose"), "round {round}: {error}");
        assert!(!later.finished.load(Ordering::SeqCst));
        drop(run);
        assert!(over.recv_timeout(Duration::from_millis(1)).is_err());
    }
    std::panic::set_hook(hook);
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn wait<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = Context::from_waker(&waker);
    loop {
        match poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park_timeout(PATIENCE),
        }
    }
}

#[test]
fn streams_go_in_and_come_out_however_slow_either_end_is() {
    let workers = Workers::start(3, 1 << 20, || {}).unwrap();
    for seed in 0..60 {
        let mut next = noise(seed);
        let of = ColumnType::new(DataType::Int64, false);
        let waker = Waker::default();
        let inlet = Inlet::new(vec![of.clone()], waker.clone());
        let outlet = Outlet::new(vec![of], waker.clone());
        let end = outlet.clone();
        let sink = Arc::new(OutletSink(outlet.clone()));
        let pipelines = vec![pipeline(Arc::new(InletSource(inlet.clone())), vec![], sink)];
        let threads = 1 + (next() % 3) as usize;
        let (wakers, tickets) = ([waker], workers.tickets());
        let here = seed % 2 == 1;
        let run = Run::start(pipelines, None, Arc::new(Always), tickets, threads, &wakers, here, move |r| end.end(r));
        let (batches, is_stopped) = (next() % 200, seed % 4 == 3);
        let (writer_pauses, reader_pauses) = (next().is_multiple_of(3), next().is_multiple_of(3));
        let writer = std::thread::spawn(move || {
            let mut next = noise(seed + 1000);
            let mut first = 0;
            for _ in 0..batches {
                let rows = 1 + (next() % 3000) as usize;
                let values: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + rows as i64));
                first += rows as i64;
                if !is_stopped {
                    wait(|context| inlet.poll_room(context));
                }
                inlet.push(Batch { rows, columns: vec![values] });
                if writer_pauses && next().is_multiple_of(8) {
                    std::thread::sleep(Duration::from_micros(next() % 300));
                }
            }
            inlet.end(Ok(()));
            first
        });
        let (mut sum, mut rows) = (0, 0);
        loop {
            if is_stopped && rows > 20_000 {
                run.stop();
            }
            match wait(|context| outlet.poll_next(context)) {
                None => break,
                Some(Ok(batch)) => {
                    rows += batch.rows as i64;
                    sum += batch.columns[0].as_primitive::<Int64Type>().values().iter().sum::<i64>();
                }
                Some(Err(error)) => {
                    assert!(is_stopped, "{error}");
                    break;
                }
            }
            if reader_pauses && next().is_multiple_of(8) {
                std::thread::sleep(Duration::from_micros(next() % 300));
            }
        }
        let all = writer.join().unwrap();
        if !is_stopped {
            assert_eq!((rows, sum), (all, all * (all - 1) / 2), "seed {seed}");
        }
    }
}

/// A sink that tells when it goes.
struct Guarded(Sum, Arc<AtomicU64>);

impl Drop for Guarded {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Sink for Guarded {
    fn worker(&self) -> Result<Box<dyn SinkState>> {
        self.0.worker()
    }

    fn finish(&self, round: usize, states: &mut Vec<Box<dyn SinkState>>) -> Result<Vec<Task>> {
        self.0.finish(round, states)
    }
}

#[test]
fn what_a_run_held_is_gone_when_its_end_is_told() {
    let workers = Workers::start(3, 1 << 20, || {}).unwrap();
    let mut next = noise(5);
    for round in 0..300u64 {
        let (sender, over) = mpsc::channel();
        let held = Arc::new(AtomicU64::new(2));
        let fails_at = round.is_multiple_of(3).then_some((next() % 100) as i64);
        let sink = || Arc::new(Guarded(Sum::default(), held.clone()));
        let tripwire = Arc::new(Tripwire { fails_at, panics: false });
        let pipelines =
            vec![pipeline(numbers(20, 3), vec![], sink()), pipeline(numbers(20, 3), vec![tripwire], sink())];
        let left = held.clone();
        let here = round % 2 == 1;
        let run = Run::start(pipelines, None, Arc::new(Always), workers.tickets(), 3, &[], here, move |result| {
            sender.send((result.is_err(), left.load(Ordering::SeqCst))).unwrap();
        });
        let failed = over.recv_timeout(PATIENCE).expect("the run ends");
        assert_eq!(failed, (fails_at.is_some(), 0));
        drop(run);
    }
}

#[test]
fn a_small_run_is_over_when_it_has_started() {
    // Its workers are not asked: none is left.
    let tickets = Workers::start(1, 1 << 20, || {}).unwrap().tickets();
    let (sender, over) = told();
    let sum = Arc::new(Sum::default());
    let pipelines =
        vec![pipeline(numbers(1, 4), vec![], Arc::new(Sum::default())), pipeline(numbers(1, 4), vec![], sum.clone())];
    let run = Run::start(pipelines, None, Arc::new(Always), tickets, 4, &[], true, move |result| {
        sender.send(result).unwrap();
    });
    over.try_recv().expect("the run is over").unwrap();
    assert!(sum.finished.load(Ordering::SeqCst));
    drop(run);
    assert!(over.try_recv().is_err(), "its end is told once");
}

#[test]
fn a_run_that_is_stopped_ends() {
    let workers = Workers::start(2, 1 << 20, || {}).unwrap();
    let mut next = noise(4);
    for round in 0..100 {
        let (sender, over) = told();
        let sum = Arc::new(Sum::default());
        let source = numbers(usize::MAX / 2, 3);
        let run = Run::start(
            vec![pipeline(source, vec![], sum)],
            None,
            Arc::new(Always),
            workers.tickets(),
            3,
            &[],
            round % 2 == 1,
            move |r| {
                sender.send(r).unwrap();
            },
        );
        std::thread::sleep(Duration::from_micros(next() % 2000));
        run.stop();
        over.recv_timeout(PATIENCE).expect("the run ends").unwrap_err();
    }
}
