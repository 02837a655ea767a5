//! `tidepool bench readers`: what servers that read a pool give, and what they cost its primary.
//!
//! TPC-H's tables are loaded into a database that lives in a pool. Then, one after the other:
//!
//! * readers are started: the time from the start of the process to its first right answer, and the memory that is its own;
//! * queries run at the primary and at a reader in turns;
//! * clients update rows at the primary at a fixed rate, and a client at the reader asks how old what it sees is;
//! * the same updates without readers, beside readers that are idle, and beside readers that answer queries without a pause: the primary's time on
//!   processors for each of them;
//! * a cursor is fetched from slowly at a reader, beside the same updates: it has to see what it saw first, and is not to be cancelled.

mod report;
mod updates;

use crate::cli::BenchArgs;
use crate::client::Client;
use crate::idle::{generate, resident};
use crate::machine::{self, Machine};
use crate::progress::say;
use crate::result::quantile;
use crate::served::{MadePool, Served, load};
use crate::workload::Workload;
use serde::Serialize;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result, SqlState};
use updates::Updates;

/// Of the pool, for each unit of the scale factor, and beside that.
const POOL_BYTES_BY_SCALE: f64 = 700e6;
const POOL_BYTES_MIN: u64 = 2 << 30;

/// For two manifests after the load, so that the log before them is not read.
const SETTLE: Duration = Duration::from_secs(12);

/// For readers that have just come, and updates that have just begun.
const WARM_UP: Duration = Duration::from_secs(1);

/// Readers beside which updates are measured.
const READERS: usize = 4;

const QUERIES: &str = "1,6,9";
const SECONDS: f64 = 10.0;

/// How often each query runs in turns, for each round.
const QUERY_RUNS: usize = 3;

#[derive(Clone, Debug, clap::Args)]
pub struct ReadersArgs {
    /// readers: updates a second
    #[arg(long, default_value_t = 5000)]
    pub updates: u32,
    /// readers: seconds that the slow cursor takes
    #[arg(long, default_value_t = 60.0)]
    pub scan_seconds: f64,
}

/// What a run writes as JSON.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ReadersResult {
    schema: &'static str,
    tidepool_version: &'static str,
    machine: Machine,
    scale_factor: f64,
    rows: u64,
    updates_a_second: u32,
    starts: Vec<Start>,
    queries: Vec<QueryTimes>,
    /// Of what is seen at a reader, in microseconds.
    age_p50_us: f64,
    age_p99_us: f64,
    looks: usize,
    costs: Vec<Cost>,
    scan_seconds: f64,
    /// Updates during the scan.
    scan_updates: u64,
}

/// A reader that was started.
#[derive(Clone, Copy, Debug, Serialize)]
struct Start {
    ready_ms: f64,
    answer_ms: f64,
    /// Of nobody else.
    private_bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
struct QueryTimes {
    name: String,
    primary_ms: f64,
    reader_ms: f64,
}

/// What readers are doing meanwhile. Exhaustive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Beside {
    Nobody,
    Idle,
    Busy,
}

/// Of one round, beside some readers.
#[derive(Clone, Copy, Debug, Serialize)]
struct Cost {
    beside: Beside,
    updates_a_second: f64,
    /// The primary's time on processors, for each update.
    cpu_us: f64,
    /// What readers have answered, all together.
    queries: usize,
}

pub async fn run_readers(args: &BenchArgs) -> Result<ExitCode> {
    let options = &args.readers;
    if options.updates == 0 {
        return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "there must be an update a second"));
    }
    let workload = Workload::by_name("tpch", args.sf)?;
    let folder = args.export.clone();
    let folder = folder.unwrap_or_else(|| std::env::temp_dir().join(format!("tidepool-tpch-{}", args.sf)));
    generate(&folder, args.sf, &workload).await?;
    let bytes = POOL_BYTES_MIN + (POOL_BYTES_BY_SCALE * args.sf) as u64;
    let pool = MadePool::make(args.idle.pool_file.as_deref(), bytes, "readers").await?;
    let location = pool.location();
    let near = args.near.map(|near| near.0.to_string());
    let mut arguments = vec!["--pool", &location, "--role", "primary", "--name", "h1"];
    if let Some(near) = &near {
        arguments.extend(["--near", near]);
    }
    say(format!("load TPC-H SF {}", args.sf));
    let primary = Served::start_with(&arguments).await?;
    let mut client = primary.connect().await?;
    load(&mut client, &workload, &folder).await?;
    updates::make_table(&mut client).await?;
    tokio::time::sleep(SETTLE).await;
    let seconds = Duration::from_secs_f64(args.seconds.unwrap_or(SECONDS));
    let lineitems = client.query("SELECT count(*) FROM lineitem").await?.succeeded()?.number(0)?;

    let mut starts = Vec::new();
    for number in 1..=args.repeat {
        let (reader, start) = start_reader(&pool, number, lineitems).await?;
        say(format!("reader {number}: a right answer after {:.0} ms", start.answer_ms));
        starts.push(start);
        reader.stop().await?;
    }

    let (reader, _) = start_reader(&pool, 1, lineitems).await?;
    let queries = compare(args, &workload, &primary, &reader).await?;
    let load = Updates::start(&primary.address, options.updates).await?;
    tokio::time::sleep(WARM_UP).await;
    let mut ages = updates::ages(&reader.address, seconds).await?;
    load.stop().await?;
    ages.sort_by(f64::total_cmp);
    say(format!("what a reader sees is {:.0} us old, p99 {:.0}", quantile(&ages, 0.5), quantile(&ages, 0.99)));
    reader.stop().await?;

    let mut costs = Vec::new();
    for round in 0..args.repeat {
        // No way always goes first.
        for turn in 0..3 {
            let beside = [Beside::Nobody, Beside::Idle, Beside::Busy][(turn + round) % 3];
            let cost = cost(&pool, &primary, beside, options.updates, seconds, lineitems).await?;
            say(format!("{:.1} us of the primary's processors for an update beside {beside:?}", cost.cpu_us));
            costs.push(cost);
        }
    }

    let (reader, _) = start_reader(&pool, 1, lineitems).await?;
    let load = Updates::start(&primary.address, options.updates).await?;
    updates::scan(&reader.address, Duration::from_secs_f64(options.scan_seconds)).await?;
    let scan_updates = load.stop().await?;
    reader.stop().await?;
    drop(client);
    primary.stop().await?;

    let result = ReadersResult {
        schema: "tidepool-readers/1",
        tidepool_version: env!("CARGO_PKG_VERSION"),
        machine: machine::machine(),
        scale_factor: args.sf,
        rows: workload.tables.iter().map(|table| table.rows).sum(),
        updates_a_second: options.updates,
        starts,
        queries,
        age_p50_us: quantile(&ages, 0.5),
        age_p99_us: quantile(&ages, 0.99),
        looks: ages.len(),
        costs,
        scan_seconds: options.scan_seconds,
        scan_updates,
    };
    crate::show(args, &result, &report::markdown(&result))?;
    Ok(ExitCode::SUCCESS)
}

/// Starts a reader, and waits until it has counted the rows of the largest table.
async fn start_reader(pool: &MadePool, number: usize, lineitems: i64) -> Result<(Served, Start)> {
    let (location, name) = (pool.location(), format!("r{number}"));
    let begun = Instant::now();
    let ms = || begun.elapsed().as_secs_f64() * 1e3;
    let server =
        Served::start_with(&["--pool", &location, "--role", "reader", "--name", &name, "--far", "pool:"]).await?;
    let ready_ms = ms();
    let mut client = server.connect().await?;
    let counted = client.query("SELECT count(*) FROM lineitem").await?.succeeded()?.number(0)?;
    let answer_ms = ms();
    if counted != lineitems {
        return Err(Error::internal(format!("a reader counts {counted} rows where there are {lineitems}")));
    }
    let private_bytes = resident(server.pid, pool.file())?.anonymous;
    Ok((server, Start { ready_ms, answer_ms, private_bytes }))
}

/// Medians of queries at the primary and at a reader, in turns. Fails where they answer otherwise.
async fn compare(args: &BenchArgs, workload: &Workload, primary: &Served, reader: &Served) -> Result<Vec<QueryTimes>> {
    let mut clients = [primary.connect().await?, reader.connect().await?];
    let mut compared = Vec::new();
    for query in workload.select_queries(args.queries.as_deref().unwrap_or(QUERIES))? {
        let mut times = [Vec::new(), Vec::new()];
        let mut answers = [None, None];
        for run in 0..=args.repeat * QUERY_RUNS {
            for turn in 0..clients.len() {
                let at = (turn + run) % clients.len();
                let started = Instant::now();
                let answer = clients[at].query(query.sql).await?.succeeded()?;
                // The first run warms up.
                if run > 0 {
                    times[at].push(started.elapsed().as_secs_f64() * 1e3);
                }
                answers[at] = Some(answer.values);
            }
        }
        if answers[0] != answers[1] {
            return Err(Error::internal(format!("a reader answers {} otherwise than the primary", query.name)));
        }
        let [primary_ms, reader_ms] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            quantile(&times, 0.5)
        });
        say(format!("{}: {primary_ms:.1} ms at the primary, {reader_ms:.1} at a reader", query.name));
        compared.push(QueryTimes { name: query.name.clone(), primary_ms, reader_ms });
    }
    Ok(compared)
}

/// What updates cost the primary beside some readers.
async fn cost(
    pool: &MadePool,
    primary: &Served,
    beside: Beside,
    rate: u32,
    seconds: Duration,
    lineitems: i64,
) -> Result<Cost> {
    let mut readers = Vec::new();
    if beside != Beside::Nobody {
        for number in 1..=READERS {
            readers.push(start_reader(pool, number, lineitems).await?.0);
        }
    }
    let asking: Vec<_> = match beside {
        Beside::Busy => {
            readers.iter().map(|reader| tokio::spawn(ask(reader.address.clone(), WARM_UP + seconds))).collect()
        }
        Beside::Nobody | Beside::Idle => Vec::new(),
    };
    let load = Updates::start(&primary.address, rate).await?;
    tokio::time::sleep(WARM_UP).await;
    let (before, done_before, begun) = (updates::processor_time(primary.pid)?, load.done(), Instant::now());
    tokio::time::sleep(seconds).await;
    let (after, done, lasted) = (updates::processor_time(primary.pid)?, load.done() - done_before, begun.elapsed());
    load.stop().await?;
    let mut queries = 0;
    for asking in asking {
        queries += asking.await.map_err(|error| Error::internal(format!("a client failed: {error}")))??;
    }
    for reader in readers {
        reader.stop().await?;
    }
    let cpu_us = (after - before).as_secs_f64() * 1e6 / done.max(1) as f64;
    Ok(Cost { beside, updates_a_second: done as f64 / lasted.as_secs_f64(), cpu_us, queries })
}

/// One query after the other, for so long: how many.
async fn ask(address: String, time: Duration) -> Result<usize> {
    const QUERY: &str = "SELECT sum(l_extendedprice * l_discount) FROM lineitem WHERE l_quantity < 24";
    let mut client = Client::connect(&address).await?;
    let (end, mut asked) = (Instant::now() + time, 0);
    while Instant::now() < end {
        client.query(QUERY).await?.succeeded()?;
        asked += 1;
    }
    Ok(asked)
}
