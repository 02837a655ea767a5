//! TPC-C by the embedded API: `tidepool bench tpcc`.

use crate::cli::{BenchArgs, configuration, terminals, threads};
use crate::machine::{self, Machine};
use crate::progress::say;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_database::Config;
use tidepool_embedded::{Isolation, Tidepool};
use tidepool_tablespace::Purpose;
use tidepool_tpcc::{Mix, Plan, RunResult, TABLES, Tables, Tablespaces};

const WARM_UP: Duration = Duration::from_secs(2);
const SECONDS: f64 = 10.0;

/// What a run writes as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct TpccResult {
    pub schema: &'static str,
    pub tidepool_version: &'static str,
    pub machine: Machine,
    pub warehouses: u32,
    pub threads: usize,
    /// Of each thread.
    pub terminals: usize,
    pub mix: String,
    pub isolation: &'static str,
    pub placement: String,
    /// Of the far tablespace; `None`: not paced.
    pub profile: Option<String>,
    pub durable: bool,
    pub load_seconds: f64,
    /// After the load.
    pub memory: Vec<SpaceMemory>,
    pub tables: Vec<TableMemory>,
    pub indexes: Vec<IndexMemory>,
    pub run: RunResult,
    /// Breaches of the conditions of clause 3.3.2, after the run.
    pub breaches: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct SpaceMemory {
    pub tablespace: String,
    pub purpose: &'static str,
    pub bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct TableMemory {
    pub name: String,
    pub rows: u64,
    /// Of versions with their headers, without what their blocks are rounded up by.
    pub bytes_per_row: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct IndexMemory {
    pub name: String,
    pub keys: u64,
    pub bytes_per_key: f64,
}

fn placed(name: &str) -> Result<Tablespaces> {
    let (rows, indexes) = match name {
        "near" | "both-near" | "none" => ("near", "near"),
        "all" | "both-far" => ("far", "far"),
        "index" => ("near", "far"),
        "row" => ("far", "near"),
        _ => {
            let error = format!("no placement is called \"{name}\"");
            return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, error)
                .with_hint("Of TPC-C near, all, index or row can be far."));
        }
    };
    Ok(Tablespaces { rows: rows.to_owned(), indexes: indexes.to_owned() })
}

/// Loads, runs, checks and reports. Fails where a condition does not hold.
pub fn run_tpcc(args: &BenchArgs) -> Result<ExitCode> {
    let warehouses = args.warehouses.unwrap_or(1);
    if warehouses == 0 {
        return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "there must be at least one warehouse"));
    }
    if args.sf != 1.0 {
        return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "TPC-C has no scale factor")
            .with_hint("--warehouses says how large it is."));
    }
    let spaces = placed(&args.placement)?;
    let plan = Plan {
        warehouses: warehouses as i32,
        threads: threads(args.threads)?,
        terminals: terminals(args, 1)?,
        warm_up: WARM_UP,
        duration: Duration::try_from_secs_f64(args.seconds.unwrap_or(SECONDS)).unwrap_or_default(),
        mix: Mix::parse(&args.mix)?,
        isolation: Isolation::Serializable,
        seed: 7,
    };
    let mut config = configuration(args.near, args.far.as_deref())?;
    let is_far = spaces.rows == "far" || spaces.indexes == "far";
    config.far.profile = if is_far { args.far_profiles(args.profile())?.into_iter().next().flatten() } else { None };
    config.far.profiles.clear();
    config.threads = plan.threads;
    config.data_dir = args.durable.clone();
    let profile = config.far.profile.as_ref().map(|profile| profile.name.clone());
    let result = measure(args, config, &spaces, &plan, profile)?;
    print(&result);
    if let Some(path) = &args.json {
        crate::write_json(path, &result)?;
    }
    Ok(if result.breaches.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn measure(
    args: &BenchArgs,
    config: Config,
    spaces: &Tablespaces,
    plan: &Plan,
    profile: Option<String>,
) -> Result<TpccResult> {
    if let Some(folder) = &config.data_dir {
        must_be_new(folder)?;
    }
    let tidepool = Tidepool::open(config)?;
    tidepool_tpcc::create(&tidepool, spaces)?;
    let tables = Tables::prepare(&tidepool)?;
    let start = Instant::now();
    say(format!("load {} warehouses", plan.warehouses));
    tidepool_tpcc::load(&tidepool, &tables, plan.warehouses, plan.threads)?;
    let load_seconds = start.elapsed().as_secs_f64();
    let database = tidepool.database();
    if args.durable.is_some() {
        database.checkpoint()?;
    }
    let ledger = database.tablespaces().ledger();
    let memory = ledger
        .into_iter()
        .filter(|row| row.bytes > 0 && matches!(row.purpose, Purpose::Delta | Purpose::Index | Purpose::Main))
        .map(|row| SpaceMemory { tablespace: row.tablespace, purpose: row.purpose.name(), bytes: row.bytes })
        .collect();
    let rows = table_memory(&tidepool)?;
    let indexes = tables
        .indexes()
        .into_iter()
        .map(|(name, index)| {
            let (keys, bytes) = index.size()?;
            Ok(IndexMemory { name: name.to_owned(), keys, bytes_per_key: bytes as f64 / keys.max(1) as f64 })
        })
        .collect::<Result<_>>()?;
    say(format!("run {} threads for {} s", plan.threads, plan.duration.as_secs_f64()));
    let run = tidepool_tpcc::run(&tidepool, &tables, plan)?;
    let breaches = tidepool_tpcc::check(&tidepool, &tables, plan.warehouses)?;
    Ok(TpccResult {
        schema: "tidepool-tpcc/1",
        tidepool_version: env!("CARGO_PKG_VERSION"),
        machine: machine::machine(),
        warehouses: plan.warehouses as u32,
        threads: plan.threads,
        terminals: plan.terminals,
        mix: args.mix.clone(),
        isolation: "serializable",
        placement: args.placement.clone(),
        profile,
        durable: args.durable.is_some(),
        load_seconds,
        memory,
        tables: rows,
        indexes,
        run,
        breaches,
    })
}

pub(crate) fn must_be_new(folder: &PathBuf) -> Result<()> {
    let is_empty = std::fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none());
    match is_empty {
        true => Ok(()),
        false => Err(Error::new(SqlState::DUPLICATE_FILE, format!("folder \"{}\" is not empty", folder.display()))
            .with_hint("--durable makes a new one.")),
    }
}

fn table_memory(tidepool: &Tidepool) -> Result<Vec<TableMemory>> {
    let version = tidepool.database().version();
    let of = |name: &&str| {
        let table = version.table(*name).ok_or_else(|| Error::internal(format!("there is no table {name}")))?;
        let size = tidepool_database::TableSize::of(&table);
        let rows = size.delta_rows + size.main_rows;
        let bytes = size.delta_bytes + size.columns.iter().map(|column| column.encoded_bytes).sum::<u64>();
        Ok(TableMemory { name: (*name).to_owned(), rows, bytes_per_row: bytes as f64 / rows.max(1) as f64 })
    };
    TABLES.iter().map(of).collect()
}

fn print(result: &TpccResult) {
    let run = &result.run;
    println!(
        "{:.0} transactions/s, {} warehouses, {} threads of {} terminals, {}, {}{}",
        run.per_second,
        result.warehouses,
        result.threads,
        result.terminals,
        result.mix,
        result.isolation,
        if result.durable { ", durable" } else { ", without a log" }
    );
    println!(
        "{:<14} {:>12} {:>10} {:>10} {:>10} {:>10} {:>8}",
        "", "/s", "mean µs", "p50 µs", "p99 µs", "max µs", "retries"
    );
    for kind in run.kinds.iter().filter(|kind| kind.count > 0) {
        println!(
            "{:<14} {:>12.0} {:>10.1} {:>10.1} {:>10.1} {:>10.0} {:>8}",
            format!("{:?}", kind.kind),
            kind.per_second,
            kind.mean_us,
            kind.p50_us,
            kind.p99_us,
            kind.max_us,
            kind.retries
        );
    }
    if let Some(waits) = run.waits.filter(|waits| waits.asked_ns > 0) {
        println!(
            "paused {:.1} times a transaction, for {:.2} µs of memory's time; {:.0} % of that while others went on",
            waits.pauses as f64 / run.transactions.max(1) as f64,
            waits.asked_ns as f64 / run.transactions.max(1) as f64 / 1e3,
            100.0 * (1.0 - waits.idle_ns as f64 / waits.asked_ns as f64)
        );
    }
    if let (Some(p50), Some(p99), Some(max)) =
        (run.acknowledged_p50_us, run.acknowledged_p99_us, run.acknowledged_max_us)
    {
        println!("durable after {:.1} ms (p50), {:.1} ms (p99), {:.1} ms at most", p50 / 1e3, p99 / 1e3, max / 1e3);
    }
    for table in &result.tables {
        println!("{:<20} {:>10} rows {:>8.1} bytes a row", table.name, table.rows, table.bytes_per_row);
    }
    for index in &result.indexes {
        println!("{:<20} {:>10} keys {:>8.1} bytes a key", index.name, index.keys, index.bytes_per_key);
    }
    for space in &result.memory {
        println!("{:<20} {:>10} of {}", ByteSize(space.bytes).to_string(), space.purpose, space.tablespace);
    }
    match result.breaches.is_empty() {
        true => println!("the consistency conditions hold"),
        false => result.breaches.iter().for_each(|breach| println!("FAILED  {breach}")),
    }
}
