//! `tidepool bench` and `tidepool demo`.

use crate::engine::{Engine, EngineKind};
use crate::load;
use crate::machine;
use crate::placement::Placement;
use crate::progress::say;
use crate::report;
use crate::result::{BenchResult, Configuration, SCHEMA, TablespaceFacts, stable_hash};
use crate::run::{self, Arm, Plan, Repeat};
use crate::workload::{QuerySpec, Workload};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_database::config::ConfigBuilder;
use tidepool_database::{Config, Database};
use tidepool_device::Profile;
use tidepool_planner::Planner;
use tidepool_planner::baseline::Baseline;
use tidepool_tablespace::TablespaceConfig;

pub use crate::demo::{DemoArgs, run_demo};
pub use crate::observe::{ObserveArgs, run_observe};

/// Generate a benchmark's data, load it, run its queries and check them.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchArgs {
    /// tpch, tpcds, or over TPC-H: placement, the far-memory study with 1 to 8 streams, alone and sharing a device; advise,
    /// tables as the placement advisor and simpler rules place them; disaggregation, everything in paged memory by share of
    /// local cache. Or transactions by the embedded API: tpcc, and mot, TPC-C by what of it is far, with its log on a file
    /// or in memory, and single accesses. Or both: ch, the CH-benCHmark, TPC-C's transactions beside analytical queries over
    /// the same tables. Or servers: failover, how soon clients of a killed host go on at another; connections, what clients notice of an
    /// upgrade, or of a kill beside a standby; and overload, one asked by many connections for a multiple of the transactions that it can do. Or a pool: idle-compute, a second database wholly in
    /// it; shared-peaks, several databases whose peaks do not coincide; pool, what its own operations cost; restart, TPC-H's tables with their keys after a kill;
    /// readers, what servers that read it give and cost. Or TPC-C and TPC-DS: expander, the study of
    /// memory expanders. Or single accesses: reach, rows by key and scans by loads and stores, of a memory node that is asked, and of one that
    /// is paged
    pub name: String,
    /// Scale factor: 1 is about a gigabyte of text
    #[arg(long, default_value_t = 1.0)]
    pub sf: f64,
    /// Threads for loading and for each query [default: all]; ch: terminals [default: one for each of their processors]
    #[arg(long)]
    pub threads: Option<usize>,
    /// Also run this many streams at once and measure their throughput
    #[arg(long, default_value_t = 1)]
    pub streams: usize,
    /// both-near, main-far, heap-far, both-far: any, separated by commas, or all. tpcc: near, all, index or row, as what is far
    #[arg(long, default_value = "both-near")]
    pub placement: String,
    /// Profiles that far memory is paced as, presets or the configuration file's, separated by commas; none for no pacing
    /// [default: fpga-prototype; disaggregation: rdma-56g-paging,infiniswap; mot: optane,cxl-asic,fpga-prototype]
    #[arg(long)]
    pub profile: Option<String>,
    /// Bandwidth of the profiles' links as a part of what the device has, such as 2/56: this machine's processors of as many as the
    /// device was measured with, so that each has as much of the link as there
    #[arg(long, value_name = "PART", value_parser = link_scale)]
    pub scale_link: Option<f64>,
    /// Queries, such as 1,6,10-14 [default: all]
    #[arg(long)]
    pub queries: Option<String>,
    /// Timed runs of each query, after one warm-up; mot, ch: rounds
    #[arg(long, default_value_t = 3)]
    pub repeat: usize,
    #[arg(long, value_enum, default_value_t = EngineKind::Tidepool)]
    pub engine: EngineKind,
    /// Size of near memory [default: as the server's]
    #[arg(long)]
    pub near: Option<ByteSize>,
    /// Far memory, as LOCATION,size=SIZE; the profile comes from --profile [default: as the server's, anon:]
    #[arg(long)]
    pub far: Option<String>,
    /// advise: part of the table data that is to be far
    #[arg(long, default_value_t = 0.8)]
    pub far_share: f64,
    /// disaggregation: sizes of the local cache, in percent of what the queries touch
    #[arg(long, default_value = "100,75,50,25,10,5")]
    pub shares: String,
    /// tpcc, mot, ch: warehouses [default: 1; mot: one for each terminal]
    #[arg(long)]
    pub warehouses: Option<u32>,
    /// tpcc, mot, ch: terminals of each thread, which take turns while they wait for far memory [default: 1; mot: both 1 and 2]
    #[arg(long)]
    pub terminals: Option<usize>,
    /// tpcc, mot, ch, overload: seconds of each run that are measured [default: 10; mot: 1]
    #[arg(long)]
    pub seconds: Option<f64>,
    /// tpcc, ch: standard, neworder-payment, read, neworder or payment
    #[arg(long, default_value = "standard")]
    pub mix: String,
    /// tpcc, ch, overload: keep the tables in this new folder, with a log that commits wait for
    #[arg(long)]
    pub durable: Option<PathBuf>,
    /// ch: processors that queries run on, such as 1 or 2-3; terminals have the others [default: the last]
    #[arg(long)]
    pub analytics_cores: Option<String>,
    /// Connections [default: overload: 1000; failover: 16; connections: 16, those that are busy]
    #[arg(long)]
    pub connections: Option<usize>,
    /// overload: transactions offered, as a multiple of the most that are done for few connections
    #[arg(long, default_value_t = 10.0)]
    pub factor: f64,
    /// ch: auto or never, as orders, their lines and the history go to main or not
    #[arg(long, default_value = "auto")]
    pub merge: String,
    /// Write the result as JSON (- for standard output)
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Write result.json and index.html into this folder; mot, ch, overload: result.json and report.md
    #[arg(long)]
    pub report: Option<PathBuf>,
    /// Write the tables as Parquet files into this folder
    #[arg(long)]
    pub export: Option<PathBuf>,
    /// Write each query's rows as CSV into this folder
    #[arg(long)]
    pub results: Option<PathBuf>,
    #[command(flatten)]
    pub failover: crate::failover::FailoverArgs,
    #[command(flatten)]
    pub connections_of: crate::connections::ConnectionsArgs,
    #[command(flatten)]
    pub readers: crate::readers::ReadersArgs,
    #[command(flatten)]
    pub idle: crate::idle::IdleArgs,
    #[command(flatten)]
    pub peaks: crate::peaks::PeaksArgs,
    #[command(flatten)]
    pub pool: crate::pool::PoolBenchArgs,
    #[command(flatten)]
    pub reach: crate::reach::ReachArgs,
    /// placement: be one of the study's two instances, which another process tells what to run
    #[arg(long, hide = true)]
    pub instance: bool,
}

impl BenchArgs {
    /// Of everything but the study of disaggregation.
    pub(crate) fn profile(&self) -> &str {
        self.profile.as_deref().unwrap_or("fpga-prototype")
    }

    /// Of that list, each with what `--scale-link` leaves of its link.
    pub(crate) fn far_profiles(&self, list: &str) -> Result<Vec<Option<Profile>>> {
        let scaled = |profile: Profile| match self.scale_link {
            Some(factor) => profile.with_link_scaled(factor),
            None => profile,
        };
        Ok(profiles(list)?.into_iter().map(|profile| profile.map(scaled)).collect())
    }
}

/// `2/56` or `0.04`: above zero, and at most 1,000.
fn link_scale(text: &str) -> Result<f64, String> {
    let number = |text: &str| text.trim().parse::<f64>().map_err(|_| format!("\"{text}\" is no part such as 2/56"));
    let scale = match text.split_once('/') {
        Some((part, whole)) => number(part)? / number(whole)?,
        None => number(text)?,
    };
    match scale > 0.0 && scale <= 1000.0 {
        true => Ok(scale),
        false => Err(format!("\"{text}\" is not above zero and at most 1000")),
    }
}

/// What a run needs, whichever command asked for it.
pub(crate) struct Request {
    pub workload: Workload,
    pub queries: Vec<QuerySpec>,
    pub engine: EngineKind,
    pub threads: usize,
    pub streams: usize,
    pub placements: Vec<Placement>,
    /// `None`: far memory is not paced.
    pub profiles: Vec<Option<Profile>>,
    pub config: Config,
    pub repeat: Repeat,
    pub export: Option<PathBuf>,
    pub results: Option<PathBuf>,
}

/// Fails when an answer is wrong or a query cannot run.
pub async fn run_bench(args: BenchArgs) -> Result<ExitCode> {
    match args.name.as_str() {
        "placement" if args.instance => return crate::instance::run_instance(args).await,
        "placement" => return crate::study::run_study(args).await,
        "expander" => return crate::expander::run_expander(&args).await,
        "advise" => return crate::advise::run(&args).await,
        "disaggregation" => return crate::disaggregation::run(&args).await,
        "mot" => return tokio::task::block_in_place(|| crate::mot::run_mot(&args)),
        "connections" => return crate::connections::run_connections(&args).await,
        "failover" => return crate::failover::run_failover(&args).await,
        "idle-compute" => return crate::idle::run_idle(&args).await,
        "shared-peaks" => return crate::peaks::run_peaks(&args).await,
        "readers" => return crate::readers::run_readers(&args).await,
        "restart" => return crate::restart::run_restart(&args).await,
        "reach" => return tokio::task::block_in_place(|| crate::reach::run_reach(&args)),
        "pool" => return tokio::task::block_in_place(|| crate::pool::run_pool(&args)),
        "overload" => return crate::overload::run_overload(&args).await,
        "ch" => return tokio::task::block_in_place(|| crate::ch::run_ch(&args)),
        "tpcc" => return tokio::task::block_in_place(|| crate::tpcc::run_tpcc(&args)),
        _ => {}
    }
    let workload = Workload::by_name(&args.name, args.sf)?;
    let queries =
        workload.select_queries(args.queries.as_deref().unwrap_or(&format!("1-{}", workload.queries.len())))?;
    let request = Request {
        queries,
        engine: args.engine,
        threads: threads(args.threads)?,
        streams: args.streams,
        placements: Placement::parse_list(&args.placement)?,
        profiles: args.far_profiles(args.profile())?,
        config: configuration(args.near, args.far.as_deref())?,
        repeat: Repeat::Rounds(args.repeat),
        export: args.export,
        results: args.results,
        workload,
    };
    let result = execute(&request).await?;
    print_summary(&result);
    if let Some(path) = &args.json {
        crate::write_json(path, &result)?;
    }
    if let Some(dir) = &args.report {
        say(format!("report: {}", report::write(dir, &result)?.display()));
    }
    Ok(report_failures(&result))
}

/// Loads, runs and measures.
pub(crate) async fn execute(request: &Request) -> Result<BenchResult> {
    if request.engine == EngineKind::PlainDatafusion
        && (request.placements.iter().any(|placement| placement.main_far || placement.heap_far)
            || request.export.is_some())
    {
        return Err(Error::new(SqlState::FEATURE_NOT_SUPPORTED, "plain DataFusion has no tablespaces and no COPY")
            .with_hint("Use --placement both-near, without --export."));
    }
    for dir in [&request.export, &request.results].into_iter().flatten() {
        std::fs::create_dir_all(dir)
            .map_err(|error| Error::io(format!("create folder \"{}\"", dir.display()), &error))?;
    }
    let started_at_unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (engine, arms) = open(request)?;
    let load = load::load(&engine, &request.workload, request.threads).await?;
    if let Some(dir) = &request.export {
        export(&engine, &request.workload, dir).await?;
    }
    let plan = Plan {
        engine: &engine,
        workload: &request.workload,
        queries: request.queries.clone(),
        arms,
        repeat: request.repeat,
        streams: request.streams,
        results_dir: request.results.as_deref(),
    };
    let placements = run::run(&plan).await?;
    let configuration = Configuration {
        benchmark: request.workload.name,
        scale_factor: request.workload.scale_factor,
        engine: request.engine,
        threads: request.threads,
        streams: request.streams,
        queries: request.queries.iter().map(|query| query.name.clone()).collect(),
        placements: request.placements.iter().map(|placement| placement.name.to_owned()).collect(),
        profiles: request
            .profiles
            .iter()
            .map(|profile| profile.as_ref().map_or("none".to_owned(), |profile| profile.name.clone()))
            .collect(),
    };
    let machine = machine::machine();
    let tablespaces = engine.database().map(|database| tablespaces(database)).unwrap_or_default();
    let identity = serde_json::to_string(&(&configuration, &machine, &tablespaces))
        .map_err(|error| Error::internal(format!("could not write the configuration: {error}")))?;
    Ok(BenchResult {
        schema: SCHEMA,
        tidepool_version: env!("CARGO_PKG_VERSION"),
        started_at_unix,
        configuration_hash: stable_hash(&identity),
        configuration,
        machine,
        tablespaces,
        load,
        placements,
    })
}

/// The engine, and each placement with the far tablespace of each profile. A placement with nothing far is there once.
fn open(request: &Request) -> Result<(Engine, Vec<Arm>)> {
    let mut arms = Vec::new();
    if request.engine == EngineKind::PlainDatafusion {
        for &placement in &request.placements {
            arms.push(Arm { placement, far: "far".to_owned(), profile: None });
        }
        return Ok((Engine::Plain(Arc::new(Baseline::new(request.threads))), arms));
    }
    let mut config = request.config.clone();
    config.far.profile = request.profiles.first().cloned().flatten();
    config.far.profiles.clear();
    let far_config = config.far.clone();
    config.threads = request.threads;
    let database = Database::open(config)?;
    for (index, profile) in request.profiles.iter().enumerate() {
        let far = if index == 0 { "far".to_owned() } else { format!("far{}", index + 1) };
        if index > 0 {
            // Only memory without an owner can be had twice.
            if !far_config.location.is_anonymous() {
                return Err(Error::new(
                    SqlState::FEATURE_NOT_SUPPORTED,
                    "several profiles need a far tablespace in anonymous memory",
                ));
            }
            database.create_tablespace(TablespaceConfig {
                name: far.clone(),
                profile: profile.clone(),
                profiles: Vec::new(),
                ..far_config.clone()
            })?;
        }
        for &placement in &request.placements {
            if index == 0 || placement.main_far || placement.heap_far {
                let profile = profile.as_ref().map(|profile| profile.name.clone());
                arms.push(Arm { placement, far: far.clone(), profile });
            }
        }
    }
    let planner = Planner::new(database.clone())?;
    let datafusion_only = request.engine == EngineKind::Datafusion;
    Ok((Engine::Tidepool { database, planner, datafusion_only }, arms))
}

async fn export(engine: &Engine, workload: &Workload, dir: &Path) -> Result<()> {
    let dir = std::path::absolute(dir).map_err(|error| Error::io("find the export folder", &error))?;
    let mut connection = engine.connect().await?;
    let bar = crate::progress::Bar::new("export as Parquet", workload.tables.len() as u64, "tables");
    for table in &workload.tables {
        bar.message(format!("export {}", table.name));
        let path = dir.join(format!("{}.parquet", table.name)).display().to_string().replace('\'', "''");
        connection.query(&format!("COPY {} TO '{path}' WITH (FORMAT parquet)", table.name)).await?;
        bar.add(1);
    }
    Ok(())
}

fn tablespaces(database: &Database) -> Vec<TablespaceFacts> {
    database
        .tablespaces()
        .list()
        .iter()
        .map(|space| {
            let config = space.config();
            TablespaceFacts {
                name: config.name.clone(),
                location: config.location.to_string(),
                size_bytes: config.size_bytes,
                paced: config.profile.is_some(),
                profile: config.profile.clone(),
            }
        })
        .collect()
}

pub(crate) fn threads(wanted: Option<usize>) -> Result<usize> {
    match wanted {
        Some(0) => Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "there must be at least one thread")),
        Some(threads) => Ok(threads),
        None => Ok(std::thread::available_parallelism().map_or(1, usize::from)),
    }
}

/// Of each thread.
pub(crate) fn terminals(args: &BenchArgs, default: usize) -> Result<usize> {
    match args.terminals.unwrap_or(default) {
        0 => Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "there must be at least one terminal")),
        terminals => Ok(terminals),
    }
}

fn profiles(list: &str) -> Result<Vec<Option<Profile>>> {
    let config = surroundings()?.build()?;
    list.split(',')
        .map(|name| match name.trim() {
            "none" => Ok(None),
            name => config.profile(name).map(Some),
        })
        .collect()
}

/// The memory that the configuration file and the environment name. Nothing is kept: no data folder.
fn surroundings() -> Result<ConfigBuilder> {
    Ok(ConfigBuilder::surroundings(None)?.memory_only())
}

/// Near and far as the server's flags would make them.
pub(crate) fn configuration(near: Option<ByteSize>, far: Option<&str>) -> Result<Config> {
    let mut builder = surroundings()?;
    if let Some(near) = near {
        builder = builder.near(&near.0.to_string())?;
    }
    if let Some(far) = far {
        builder = builder.far(far)?;
    }
    builder.build()
}

/// One line a placement.
pub(crate) fn print_summary(result: &BenchResult) {
    println!(
        "{:<28} {:>10} {:>12} {:>10} {:>18} {:>10} {:>8}",
        "placement", "total ms", "geo. mean ms", "stalled ms", "slowdown", "modelled", "paper"
    );
    for placement in &result.placements {
        let label = match &placement.profile {
            Some(profile) => format!("{} ({profile})", placement.title),
            None => placement.title.to_owned(),
        };
        println!(
            "{label:<28} {:>10.0} {:>12.1} {:>10.0} {:>18} {:>10} {:>8}",
            placement.total_ms,
            placement.geometric_mean_ms,
            placement.stall_ms(),
            match placement.slowdown_noise {
                Some(noise) => format!("{} ± {:.1}", percent(placement.slowdown), noise * 100.0),
                None => percent(placement.slowdown),
            },
            percent(placement.slowdown.and_then(|_| result.slowdown_modelled(placement))),
            percent(placement.paper_slowdown)
        );
        if let Some(throughput) = &placement.throughput {
            println!(
                "  {} streams: {:.0} queries an hour, loss {} (paper, 8 streams: {})",
                throughput.streams,
                throughput.queries_per_hour,
                percent(throughput.loss),
                percent(throughput.paper_loss)
            );
        }
    }
    result.doubts().iter().for_each(|doubt| println!("{doubt}"));
}

pub(crate) fn percent(ratio: Option<f64>) -> String {
    ratio.map_or("–".to_owned(), |ratio| format!("{:.1} %", ratio * 100.0))
}

pub(crate) fn report_failures(result: &BenchResult) -> ExitCode {
    let failures = result.failures();
    for failure in &failures {
        say(format!("FAILED  {failure}"));
    }
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
