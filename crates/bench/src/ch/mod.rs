//! `tidepool bench ch`: the CH-benCHmark, TPC-C's terminals and analytical streams over the same tables at the same time.
//!
//! Terminals go by the embedded API and streams by SQL, in one process: the one on some processors, the other on the rest. In each round
//! terminals run alone, streams alone, and both; what transactions lose is told by rounds. Each query's snapshot is held against
//! the commits that had returned when the query was handed in.

mod report;
mod streams;
mod tables;

use crate::cli::{BenchArgs, configuration, terminals};
use crate::compare::ResultSet;
use crate::machine::{self, Machine};
use crate::progress::say;
use crate::result::median;
use serde::Serialize;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result, SqlState};
use tidepool_database::config;
use tidepool_embedded::{Isolation, MergePolicy, Tidepool};
use tidepool_planner::Planner;
use tidepool_tpcc::{Mix, Plan, RunResult, Tables, Tablespaces};

pub use streams::Freshness;

const SECONDS: f64 = 10.0;
const WARM_UP: Duration = Duration::from_secs(1);

/// How long transactions run before the queries' answers are compared.
const SETTLING: Duration = Duration::from_secs(1);

/// What transactions may lose beside analytics.
pub(crate) const LOSS_GOAL: f64 = 0.1;

pub(crate) const QUERIES: [&str; 22] = [
    include_str!("queries/q1.sql"),
    include_str!("queries/q2.sql"),
    include_str!("queries/q3.sql"),
    include_str!("queries/q4.sql"),
    include_str!("queries/q5.sql"),
    include_str!("queries/q6.sql"),
    include_str!("queries/q7.sql"),
    include_str!("queries/q8.sql"),
    include_str!("queries/q9.sql"),
    include_str!("queries/q10.sql"),
    include_str!("queries/q11.sql"),
    include_str!("queries/q12.sql"),
    include_str!("queries/q13.sql"),
    include_str!("queries/q14.sql"),
    include_str!("queries/q15.sql"),
    include_str!("queries/q16.sql"),
    include_str!("queries/q17.sql"),
    include_str!("queries/q18.sql"),
    include_str!("queries/q19.sql"),
    include_str!("queries/q20.sql"),
    include_str!("queries/q21.sql"),
    include_str!("queries/q22.sql"),
];

/// What a run writes as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct ChResult {
    pub schema: &'static str,
    pub tidepool_version: &'static str,
    pub machine: Machine,
    pub warehouses: u32,
    pub terminals: usize,
    pub streams: usize,
    /// Processors of the terminals, and of all that works for queries.
    pub terminal_cores: Vec<usize>,
    pub analytics_cores: Vec<usize>,
    pub isolation: &'static str,
    /// Of the tables whose rows settle.
    pub merge_policy: String,
    pub durable: bool,
    pub seconds: f64,
    pub load_seconds: f64,
    /// After some transactions: the engine's rows beside those of DataFusion's operators.
    pub answers: Vec<Answer>,
    pub rounds: Vec<Round>,
    /// Median over the rounds of the part of transactions a second that are lost beside streams.
    pub loss: f64,
    pub queries: Vec<QueryTimes>,
    /// Queries a second: medians.
    pub queries_per_second_alone: f64,
    pub queries_per_second_beside: f64,
    pub freshness: Freshness,
    /// Breaches of TPC-C's consistency conditions, after all rounds.
    pub breaches: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    pub query: usize,
    pub rows: usize,
    pub agrees: bool,
}

#[derive(Clone, Debug, Serialize)]
pub struct Round {
    pub transactions_alone: RunResult,
    pub transactions_beside: RunResult,
    pub queries_alone: usize,
    pub queries_beside: usize,
    /// Part of the transactions a second that were lost.
    pub loss: f64,
}

/// Medians over all runs of a query, ms; `None`: it did not run.
#[derive(Clone, Debug, Serialize)]
pub struct QueryTimes {
    pub query: usize,
    pub alone_ms: Option<f64>,
    pub beside_ms: Option<f64>,
}

struct Setup {
    plan: Plan,
    streams: usize,
    rounds: usize,
    terminal_cores: Vec<usize>,
    analytics_cores: Vec<usize>,
    merge_policy: MergePolicy,
}

impl Setup {
    fn read(args: &BenchArgs) -> Result<Setup> {
        let invalid = |message: &str| Error::new(SqlState::INVALID_PARAMETER_VALUE, message);
        let warehouses = args.warehouses.unwrap_or(1);
        if warehouses == 0 || args.repeat == 0 || args.streams == 0 {
            return Err(invalid("there must be at least one warehouse, one round and one stream"));
        }
        if args.sf != 1.0 {
            return Err(invalid("the CH-benCHmark has no scale factor").with_hint("--warehouses says how large it is."));
        }
        let all = tidepool_device::processors()?;
        let analytics_cores = match &args.analytics_cores {
            Some(list) => config::cores(list)?,
            None => all.last().copied().into_iter().collect(),
        };
        if let Some(core) = analytics_cores.iter().find(|core| !all.contains(core)) {
            return Err(invalid(&format!("there is no processor {core}")));
        }
        // Where there is nothing left, they share.
        let rest: Vec<usize> = all.iter().copied().filter(|core| !analytics_cores.contains(core)).collect();
        let terminal_cores = if rest.is_empty() { all } else { rest };
        let threads = args.threads.unwrap_or(terminal_cores.len());
        if threads == 0 {
            return Err(invalid("there must be at least one thread"));
        }
        let merge_policy = match args.merge.as_str() {
            "auto" => MergePolicy::Auto,
            "never" => MergePolicy::Never,
            other => return Err(invalid(&format!("tables are merged auto or never, not \"{other}\""))),
        };
        Ok(Setup {
            plan: Plan {
                warehouses: warehouses as i32,
                threads,
                terminals: terminals(args, 1)?,
                warm_up: WARM_UP,
                duration: Duration::try_from_secs_f64(args.seconds.unwrap_or(SECONDS)).unwrap_or_default(),
                mix: Mix::parse(&args.mix)?,
                isolation: Isolation::Serializable,
                seed: 7,
            },
            streams: args.streams,
            rounds: args.repeat,
            terminal_cores,
            analytics_cores,
            merge_policy,
        })
    }
}

/// Loads, checks the queries' answers, runs and reports. Fails where an answer or a condition is wrong, or a query saw too little.
pub fn run_ch(args: &BenchArgs) -> Result<ExitCode> {
    let result = measure(args, &Setup::read(args)?)?;
    crate::show(args, &result, &report::markdown(&result))?;
    let is_right = result.breaches.is_empty() && result.freshness.stale == 0;
    let agrees = result.answers.iter().all(|answer| answer.agrees);
    Ok(if is_right && agrees { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn measure(args: &BenchArgs, setup: &Setup) -> Result<ChResult> {
    let mut config = configuration(args.near, args.far.as_deref())?;
    config.workload.analytics.cores = setup.analytics_cores.clone();
    config.data_dir = args.durable.clone();
    if let Some(folder) = &config.data_dir {
        crate::tpcc::must_be_new(folder)?;
    }
    let tidepool = Tidepool::open(config)?;
    tidepool_tpcc::create_with(&tidepool, &Tablespaces::one("near"), setup.merge_policy)?;
    let tables = Tables::prepare(&tidepool)?;
    say(format!("load {} warehouses", setup.plan.warehouses));
    let start = Instant::now();
    let loaders = setup.terminal_cores.len() + setup.analytics_cores.len();
    tidepool_tpcc::load(&tidepool, &tables, setup.plan.warehouses, loaders)?;
    tables::load(&tidepool)?;
    let planner = Planner::new(tidepool.database().clone())?;
    let loaded = prepare(&planner, setup)?;
    let load_seconds = start.elapsed().as_secs_f64();
    let bench =
        Bench { tidepool: &tidepool, tables: &tables, planner: &planner, setup, loaded, orders: AtomicU64::new(0) };
    // Over rows of all kinds: as they were loaded, changed since, new, and gone.
    bench.transactions_for(SETTLING)?;
    say("compare the queries' answers");
    let answers = answers(&planner)?;
    let (mut rounds, mut freshness) = (Vec::new(), Freshness::default());
    let mut alone = vec![Vec::new(); QUERIES.len()];
    let mut beside = alone.clone();
    let take = |times: &mut Vec<Vec<f64>>, done: streams::Done| {
        times.iter_mut().zip(&done.times_ms).for_each(|(times, more)| times.extend(more));
        done.times_ms.iter().map(Vec::len).sum::<usize>()
    };
    for round in 0..setup.rounds {
        say(format!("round {} of {}: transactions, queries, both", round + 1, setup.rounds));
        let before = bench.transactions()?;
        let queries = bench.queries(round, setup.plan.duration)?;
        freshness.merge(queries.freshness.clone());
        let queries_alone = take(&mut alone, queries);
        let (both, queries) = bench.both(round)?;
        freshness.merge(queries.freshness.clone());
        let queries_beside = take(&mut beside, queries);
        // Tables grow: beside what it was before and what it is after.
        let after = bench.transactions()?;
        let loss = 1.0 - both.per_second / ((before.per_second + after.per_second) / 2.0);
        rounds.push(Round {
            transactions_alone: before,
            transactions_beside: both,
            queries_alone,
            queries_beside,
            loss,
        });
    }
    let breaches = tidepool_tpcc::check(&tidepool, &tables, setup.plan.warehouses)?;
    let queries = (0..QUERIES.len())
        .map(|query| QueryTimes {
            query: query + 1,
            alone_ms: median(&alone[query]),
            beside_ms: median(&beside[query]),
        })
        .collect();
    let seconds = setup.plan.duration.as_secs_f64();
    let rate = |of: fn(&Round) -> usize, seconds: f64| {
        let rates: Vec<f64> = rounds.iter().map(|round| of(round) as f64 / seconds).collect();
        median(&rates).unwrap_or(0.0)
    };
    let losses: Vec<f64> = rounds.iter().map(|round| round.loss).collect();
    let beside_seconds = seconds + WARM_UP.as_secs_f64();
    Ok(ChResult {
        schema: "tidepool-ch/1",
        tidepool_version: env!("CARGO_PKG_VERSION"),
        machine: machine::machine(),
        warehouses: setup.plan.warehouses as u32,
        terminals: setup.plan.threads,
        streams: setup.streams,
        terminal_cores: setup.terminal_cores.clone(),
        analytics_cores: setup.analytics_cores.clone(),
        isolation: "serializable",
        merge_policy: setup.merge_policy.name().to_owned(),
        durable: args.durable.is_some(),
        seconds,
        load_seconds,
        answers,
        loss: median(&losses).unwrap_or(0.0),
        queries_per_second_alone: rate(|round| round.queries_alone, seconds),
        queries_per_second_beside: rate(|round| round.queries_beside, beside_seconds),
        rounds,
        queries,
        freshness,
        breaches,
    })
}

/// Moves what was loaded to main, where that is what is measured. Returns how many orders there are.
fn prepare(planner: &Arc<Planner>, setup: &Setup) -> Result<u64> {
    streams::runtime()?.block_on(async {
        let mut session = planner.session("tidepool");
        if setup.merge_policy == MergePolicy::Auto {
            for table in ["history", "orders", "order_line"] {
                session.query(&format!("CALL tidepool.merge('{table}')")).await?;
            }
        }
        streams::number(&session.query("SELECT count(*) FROM orders").await?)
    })
}

/// Runs each query by the engine and by DataFusion's operators.
fn answers(planner: &Arc<Planner>) -> Result<Vec<Answer>> {
    streams::runtime()?.block_on(async {
        let mut session = planner.session("tidepool");
        let mut answers = Vec::new();
        for (place, query) in QUERIES.iter().enumerate() {
            let mut results = Vec::new();
            for engine in ["tidepool", "datafusion"] {
                session.query(&format!("SET tidepool.engine = '{engine}'")).await?;
                let mut rows = ResultSet::from_batches(&session.query(query).await?)?.rows;
                // Rows that are the same to `ORDER BY` come in any order.
                rows.sort();
                results.push(rows);
            }
            answers.push(Answer { query: place + 1, rows: results[0].len(), agrees: results[0] == results[1] });
        }
        Ok(answers)
    })
}

struct Bench<'r> {
    tidepool: &'r Tidepool,
    tables: &'r Tables,
    planner: &'r Arc<Planner>,
    setup: &'r Setup,
    /// Orders before the first round.
    loaded: u64,
    /// New ones whose commits have returned.
    orders: AtomicU64,
}

impl Bench<'_> {
    fn transactions(&self) -> Result<RunResult> {
        self.transactions_for(self.setup.plan.duration)
    }

    /// The terminals, on their processors.
    fn transactions_for(&self, duration: Duration) -> Result<RunResult> {
        let plan = Plan { duration, ..self.setup.plan };
        std::thread::scope(|scope| {
            let terminals = scope.spawn(|| {
                tidepool_device::confine(&self.setup.terminal_cores)?;
                tidepool_tpcc::run_counted(self.tidepool, self.tables, &plan, &self.orders)
            });
            terminals.join().expect("the terminals")
        })
    }

    /// The streams, until it is `over`.
    fn streams(&self, round: usize, over: &AtomicBool) -> Result<streams::Done> {
        let seen = streams::Seen { orders: &self.orders, loaded: self.loaded };
        std::thread::scope(|scope| {
            let streams: Vec<_> = (0..self.setup.streams)
                .map(|stream| {
                    let seen = &seen;
                    // Apart, so that streams run different queries, and rounds begin with others.
                    let first = stream * QUERIES.len() / self.setup.streams + round * 7;
                    scope.spawn(move || {
                        tidepool_device::confine(&self.setup.analytics_cores)?;
                        streams::run(self.planner, first, seen, over)
                    })
                })
                .collect();
            let mut all = streams::Done { times_ms: vec![Vec::new(); QUERIES.len()], ..streams::Done::default() };
            for stream in streams {
                let done = stream.join().expect("a stream")?;
                all.times_ms.iter_mut().zip(done.times_ms).for_each(|(all, times)| all.extend(times));
                all.freshness.merge(done.freshness);
            }
            Ok(all)
        })
    }

    fn queries(&self, round: usize, duration: Duration) -> Result<streams::Done> {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let streams = scope.spawn(|| self.streams(round, &over));
            let start = Instant::now();
            while start.elapsed() < duration && !streams.is_finished() {
                std::thread::sleep(Duration::from_millis(5).min(duration));
            }
            over.store(true, Ordering::Relaxed);
            streams.join().expect("the streams")
        })
    }

    fn both(&self, round: usize) -> Result<(RunResult, streams::Done)> {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let streams = scope.spawn(|| self.streams(round, &over));
            let transactions = self.transactions();
            over.store(true, Ordering::Relaxed);
            let queries = streams.join().expect("the streams");
            Ok((transactions?, queries?))
        })
    }
}
