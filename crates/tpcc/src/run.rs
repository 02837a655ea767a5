//! Terminals without think time, one a thread or several that take turns, and what they are measured by.

use crate::random::Random;
use crate::schema::Tables;
use crate::transactions::{Input, KINDS, Kind, Outcome};
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidepool_embedded::{CommitTs, DirectSession, Error, Isolation, Result, SqlState, Tidepool, Waits};

/// Shares of the five transactions, percent, in the order of [`KINDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Mix(pub [u8; 5]);

impl Mix {
    /// 22023 for a name that there is not.
    pub fn parse(name: &str) -> Result<Mix> {
        Ok(Mix(match name {
            "standard" => [45, 43, 4, 4, 4],
            "neworder-payment" => [50, 50, 0, 0, 0],
            // As the paper on openGauss's memory engine has it: mostly order status and stock level.
            "read" => [9, 9, 39, 4, 39],
            "neworder" => [100, 0, 0, 0, 0],
            "payment" => [0, 100, 0, 0, 0],
            _ => {
                let error = format!("no mix is called \"{name}\"");
                return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, error)
                    .with_hint("Mixes are standard, neworder-payment, read, neworder and payment."));
            }
        }))
    }

    pub(crate) fn draw(&self, random: &mut Random) -> Kind {
        let mut drawn = random.within(0, 99) as u8;
        for (kind, share) in KINDS.into_iter().zip(self.0) {
            if drawn < share {
                return kind;
            }
            drawn -= share;
        }
        Kind::NewOrder
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub warehouses: i32,
    pub threads: usize,
    /// Terminals of each thread, which take turns while they wait for far memory.
    pub terminals: usize,
    pub warm_up: Duration,
    pub duration: Duration,
    pub mix: Mix,
    pub isolation: Isolation,
    pub seed: u64,
}

/// Times of one kind of transaction, in nanoseconds.
#[derive(Clone, Debug, Default)]
struct Times {
    /// By power of two and sixteenth of it.
    counts: Vec<u64>,
    count: u64,
    sum: u64,
    most: u64,
}

const STEPS: usize = 16;

impl Times {
    fn add(&mut self, time: u64) {
        let power = time.max(STEPS as u64).ilog2() as usize;
        let place = power * STEPS + (time >> (power - 4)) as usize % STEPS;
        if self.counts.len() <= place {
            self.counts.resize(place + 1, 0);
        }
        self.counts[place] += 1;
        self.count += 1;
        self.sum += time;
        self.most = self.most.max(time);
    }

    fn merge(&mut self, other: &Times) {
        self.counts.resize(self.counts.len().max(other.counts.len()), 0);
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, other)| *count += other);
        self.count += other.count;
        self.sum += other.sum;
        self.most = self.most.max(other.most);
    }

    /// The time that so much of them did not exceed, µs.
    fn quantile(&self, part: f64) -> f64 {
        let wanted = (self.count as f64 * part).ceil() as u64;
        let mut seen = 0;
        for (place, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && *count > 0 {
                let (power, step) = (place / STEPS, place % STEPS);
                return ((STEPS + step + 1) as f64 * 2f64.powi(power as i32 - 4)).min(self.most as f64) / 1000.0;
            }
        }
        0.0
    }
}

/// What one terminal did.
#[derive(Clone, Debug, Default)]
struct Done {
    times: [Times; 5],
    rolled_back: u64,
    retried: [u64; 5],
    /// From a transaction's begin to its being durable.
    durable: Times,
}

/// What was measured of one kind of transaction. Times in microseconds: from a transaction's beginning to its commit, with all that
/// had to be tried again.
#[derive(Clone, Debug, Serialize)]
pub struct KindResult {
    pub kind: Kind,
    pub count: u64,
    pub per_second: f64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
    pub retries: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct RunResult {
    pub seconds: f64,
    pub transactions: u64,
    pub per_second: f64,
    /// New orders of items that there are not, as the specification has them; among the transactions.
    pub rolled_back: u64,
    pub retries: u64,
    pub kinds: Vec<KindResult>,
    /// Of terminals that take turns: what they waited for, from the first transaction to the last. Absent where each has a thread.
    pub waits: Option<Waits>,
    /// From a transaction's begin to its being durable: what a terminal would wait, µs. Absent without a log.
    pub acknowledged_p50_us: Option<f64>,
    pub acknowledged_p99_us: Option<f64>,
    pub acknowledged_max_us: Option<f64>,
}

/// Commits that are not durable yet, in order.
type Pending = VecDeque<(CommitTs, Instant)>;

/// Commits under way to the log that a terminal is ahead of, at most.
const PENDING_MAX: usize = 20_000;

/// What the terminals of a thread did, and what they waited for if they took turns.
type OfThread = (Vec<Done>, Option<Waits>);

/// Runs the terminals. Each belongs to a part of the warehouses. Where the database has a log, terminals go on while their
/// commits become durable, and a transaction counts as acknowledged when it is.
pub fn run(tidepool: &Tidepool, tables: &Tables, plan: &Plan) -> Result<RunResult> {
    run_counted(tidepool, tables, plan, &AtomicU64::new(0))
}

/// As `run`, adding to `orders` each new order whose commit has returned: who reads the count sees that many more orders in any snapshot drawn
/// from then on. Threads begin where the calling one may run.
pub fn run_counted(tidepool: &Tidepool, tables: &Tables, plan: &Plan, orders: &AtomicU64) -> Result<RunResult> {
    let has_log = tidepool.database().durable().is_some();
    let phase = Phase::default();
    let barrier = Barrier::new(plan.threads + 1);
    let (done, seconds) = std::thread::scope(|scope| -> Result<(Vec<OfThread>, f64)> {
        let terminals: Vec<_> = (0..plan.threads)
            .map(|thread| {
                let (phase, barrier) = (&phase, &barrier);
                scope.spawn(move || -> Result<OfThread> {
                    let terminals = (0..plan.terminals).map(|of_thread| {
                        let terminal = thread * plan.terminals + of_thread;
                        move |session: &mut DirectSession| {
                            let terminal = Terminal::new(tidepool, tables, plan, session, terminal, has_log, orders);
                            terminal.run(phase).inspect_err(|_| phase.over.store(true, Ordering::Relaxed))
                        }
                    });
                    barrier.wait();
                    if plan.terminals == 1 {
                        // No fiber: as a program without them would have it.
                        let mut session = tidepool.session()?;
                        return Ok((terminals.map(|terminal| terminal(&mut session)).collect::<Result<_>>()?, None));
                    }
                    let (done, waits) = tidepool.side_by_side(terminals)?;
                    Ok((done.into_iter().collect::<Result<_>>()?, Some(waits)))
                })
            })
            .collect();
        let committer = has_log.then(|| {
            let phase = &phase;
            scope.spawn(move || -> Result<()> {
                while !phase.over.load(Ordering::Relaxed) {
                    tidepool.database().flush_log()?;
                    std::thread::sleep(Duration::from_micros(500));
                }
                Ok(())
            })
        });
        barrier.wait();
        // A thread of terminals that has ended before its time has failed: nothing is waited for then.
        let sleep_while = |goes_on: &dyn Fn(Duration) -> bool| {
            let start = Instant::now();
            while goes_on(start.elapsed())
                && !phase.over.load(Ordering::Relaxed)
                && !terminals.iter().any(|thread| thread.is_finished())
            {
                std::thread::sleep(Duration::from_millis(5).min(plan.duration));
            }
            start.elapsed().as_secs_f64()
        };
        sleep_while(&|elapsed| elapsed < plan.warm_up);
        phase.measuring.store(true, Ordering::Relaxed);
        let all = (plan.threads * plan.terminals) as u64;
        let seconds = sleep_while(&|elapsed| elapsed < plan.duration || phase.measured.load(Ordering::Relaxed) < all);
        phase.over.store(true, Ordering::Relaxed);
        let done = terminals.into_iter().map(|thread| thread.join().expect("a thread of terminals"));
        let done = done.collect::<Result<Vec<_>>>()?;
        if let Some(committer) = committer {
            committer.join().expect("the committer")?;
        }
        Ok((done, seconds))
    })?;
    let mut waits = None;
    for of_thread in done.iter().filter_map(|(_, waits)| *waits) {
        *waits.get_or_insert_with(Waits::default) += of_thread;
    }
    let done: Vec<Done> = done.into_iter().flat_map(|(done, _)| done).collect();
    Ok(RunResult { waits, ..result(&done, seconds, has_log) })
}

fn result(done: &[Done], seconds: f64, has_log: bool) -> RunResult {
    let mut durable = Times::default();
    done.iter().for_each(|done| durable.merge(&done.durable));
    let kinds: Vec<KindResult> = KINDS
        .into_iter()
        .enumerate()
        .map(|(place, kind)| {
            let mut times = Times::default();
            done.iter().for_each(|done| times.merge(&done.times[place]));
            KindResult {
                kind,
                count: times.count,
                per_second: times.count as f64 / seconds,
                mean_us: times.sum as f64 / times.count.max(1) as f64 / 1000.0,
                p50_us: times.quantile(0.5),
                p99_us: times.quantile(0.99),
                max_us: times.most as f64 / 1000.0,
                retries: done.iter().map(|done| done.retried[place]).sum(),
            }
        })
        .collect();
    let transactions = kinds.iter().map(|kind| kind.count).sum();
    let acknowledged = |part: f64| has_log.then(|| durable.quantile(part));
    RunResult {
        seconds,
        transactions,
        per_second: transactions as f64 / seconds,
        rolled_back: done.iter().map(|done| done.rolled_back).sum(),
        retries: kinds.iter().map(|kind| kind.retries).sum(),
        kinds,
        waits: None,
        acknowledged_p50_us: acknowledged(0.5),
        acknowledged_p99_us: acknowledged(0.99),
        acknowledged_max_us: has_log.then_some(durable.most as f64 / 1000.0),
    }
}

/// How far a run is. On a busy machine its time may pass before a terminal gets the processor: a run goes on until each terminal has
/// ended a transaction that is measured, so that no figure is that of nothing.
#[derive(Default)]
struct Phase {
    measuring: AtomicBool,
    over: AtomicBool,
    /// Terminals that have ended a measured transaction.
    measured: AtomicU64,
}

struct Terminal<'r> {
    tidepool: &'r Tidepool,
    tables: &'r Tables,
    plan: &'r Plan,
    session: &'r mut DirectSession,
    random: Random,
    /// Its warehouses, from the first to the last.
    warehouses: (i32, i32),
    has_log: bool,
    /// New orders of all terminals whose commits have returned.
    orders: &'r AtomicU64,
}

impl<'r> Terminal<'r> {
    fn new(
        tidepool: &'r Tidepool,
        tables: &'r Tables,
        plan: &'r Plan,
        session: &'r mut DirectSession,
        terminal: usize,
        has_log: bool,
        orders: &'r AtomicU64,
    ) -> Terminal<'r> {
        session.set_synchronous(false);
        let terminals = plan.threads * plan.terminals;
        let part = |terminal: usize| (plan.warehouses as usize * terminal / terminals) as i32;
        let first = (part(terminal) + 1).min(plan.warehouses);
        Terminal {
            tidepool,
            tables,
            plan,
            session,
            random: Random::new(plan.seed + terminal as u64),
            warehouses: (first, part(terminal + 1).max(first)),
            has_log,
            orders,
        }
    }

    fn run(mut self, phase: &Phase) -> Result<Done> {
        let mut done = Done::default();
        let mut pending = Pending::new();
        let (mut is_measured, mut counts) = (false, false);
        while !phase.over.load(Ordering::Relaxed) {
            if !is_measured && phase.measuring.load(Ordering::Relaxed) {
                is_measured = true;
                done = Done::default();
                pending.clear();
            }
            let kind = self.plan.mix.draw(&mut self.random);
            let (first, last) = self.warehouses;
            let w = self.random.within(first as u64, last as u64) as i32;
            let input = Input::draw(kind, &mut self.random, w, self.plan.warehouses);
            let start = Instant::now();
            let committed = self.transact(kind, &input, &mut done)?;
            let end = Instant::now();
            tidepool_embedded::pass();
            done.times[kind as usize].add((end - start).as_nanos() as u64);
            if is_measured && !counts {
                counts = true;
                phase.measured.fetch_add(1, Ordering::Relaxed);
            }
            if self.has_log {
                if let Some(committed) = committed {
                    pending.push_back((committed, start));
                }
                self.acknowledge(&mut pending, &mut done, end);
                while pending.len() >= PENDING_MAX && !phase.over.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_micros(100));
                    self.acknowledge(&mut pending, &mut done, Instant::now());
                }
            }
        }
        if let Some((last, _)) = pending.back() {
            self.tidepool.database().wait_durable(*last)?;
        }
        Ok(done)
    }

    fn acknowledge(&self, pending: &mut Pending, done: &mut Done, now: Instant) {
        let durable = self.tidepool.database().durable().unwrap_or(CommitTs(0));
        while let Some((_, start)) = pending.pop_front_if(|(committed, _)| *committed <= durable) {
            done.durable.add((now - start).as_nanos() as u64);
        }
    }

    fn transact(&mut self, kind: Kind, input: &Input, done: &mut Done) -> Result<Option<CommitTs>> {
        let isolation = if kind.is_read_only() { Isolation::RepeatableRead } else { self.plan.isolation };
        loop {
            let transaction = self.session.begin(isolation)?;
            let committed = match self.tables.run(transaction.access(), input) {
                Ok(Outcome::Done) => transaction.commit(),
                Ok(Outcome::NotFound) => {
                    transaction.roll_back();
                    done.rolled_back += 1;
                    return Ok(None);
                }
                Err(error) => Err(error),
            };
            match committed {
                Ok(committed) => {
                    if kind == Kind::NewOrder {
                        self.orders.fetch_add(1, Ordering::Release);
                    }
                    return Ok(committed);
                }
                Err(error) if matches!(error.code(), SqlState::SERIALIZATION_FAILURE | SqlState::DEADLOCK_DETECTED) => {
                    done.retried[kind as usize] += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }
}
