//! `tidepool bench idle-compute`: a second, independent database on idle processors, wholly out of a pool.
//!
//! Servers that keep nothing load TPC-H and answer its queries in alternate turns: one has all its memory near; of the other
//! everything is in a pool that is paced as a device, its own memory too. What is told: the time of each query beside the
//! other's, and what the process holds outside the pool, as the kernel counts it. Then servers are ended in every way, again and
//! again, and the time is taken until all that they had of the pool is free.

mod ends;
mod memory;
mod report;

use crate::cli::BenchArgs;
use crate::client::Client;
use crate::machine::{self, Machine};
use crate::progress::{Bar, say};
use crate::result::quantile;
use crate::served::{ConfigFile, MadePool, Served, load};
use crate::workload::Workload;
use ends::End;
use memory::Peak;
pub use memory::Resident;
pub(crate) use memory::resident;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Instant;
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_database::config::profile_toml;
use tidepool_device::Profile;

/// Near memory that is to be enough, and what the pool may cost.
const NEAR_GOAL: u64 = 64 << 20;
const TIME_GOAL: f64 = 1.35;
const FREE_GOAL_MS: f64 = 100.0;

/// Of the pool, for each unit of the scale factor, and beside that.
const POOL_BYTES_BY_SCALE: f64 = 2.0 * (1u64 << 30) as f64;
const POOL_BYTES_MIN: u64 = 2 << 30;

#[derive(Clone, Debug, clap::Args)]
pub struct IdleArgs {
    /// idle-compute: servers that are ended, a third each by SIGKILL, SIGTERM and a crash
    #[arg(long, default_value_t = 51)]
    pub ends: usize,
    /// idle-compute, shared-peaks, pool: file of the pool, which is made and removed [default: one in /dev/shm]
    #[arg(long, value_name = "PATH")]
    pub pool_file: Option<PathBuf>,
}

/// What a run writes as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct IdleResult {
    pub schema: &'static str,
    pub tidepool_version: &'static str,
    pub machine: Machine,
    pub scale_factor: f64,
    pub profile: String,
    pub rounds: usize,
    pub arms: Vec<Arm>,
    pub queries: Vec<Query>,
    /// Geometric means over the queries, of each arm's time by the first's.
    pub ratios: Vec<f64>,
    /// Queries whose rows differ.
    pub differing: Vec<String>,
    pub ends: Vec<End>,
}

/// One of the ways to have the database.
#[derive(Clone, Debug, Serialize)]
pub struct Arm {
    pub name: &'static str,
    pub load_seconds: f64,
    pub at_start: Resident,
    pub after_load: Resident,
    pub after_queries: Resident,
    /// Within the queries: of anonymous memory, of code, of both at once.
    pub peak: [u64; 3],
}

#[derive(Clone, Debug, Serialize)]
pub struct Query {
    pub name: String,
    /// Of each arm, in the order of the rounds.
    pub times_ms: Vec<Vec<f64>>,
}

/// Which server, and how it is to be had.
struct Way {
    name: &'static str,
    arguments: Vec<String>,
    _file: ConfigFile,
}

pub async fn run_idle(args: &BenchArgs) -> Result<ExitCode> {
    let workload = Workload::by_name("tpch", args.sf)?;
    let queries = workload.select_queries(args.queries.as_deref().unwrap_or("1-22"))?;
    let profile = args.far_profiles(args.profile.as_deref().unwrap_or("cxl-asic"))?.into_iter().next().flatten();
    let folder = match &args.export {
        Some(folder) => folder.clone(),
        None => std::env::temp_dir().join(format!("tidepool-tpch-{}", args.sf)),
    };
    generate(&folder, args.sf, &workload).await?;
    let bytes = POOL_BYTES_MIN + (POOL_BYTES_BY_SCALE * args.sf) as u64;
    let pool = MadePool::make(args.idle.pool_file.as_deref(), bytes, "idle").await?;
    let ways = ways(&pool, profile.as_ref(), args.threads)?;
    let mut servers = Vec::new();
    for way in &ways {
        say(format!("load TPC-H SF {} {}", args.sf, way.name));
        let arguments: Vec<&str> = way.arguments.iter().map(String::as_str).collect();
        servers.push(Loaded::start(way.name, &arguments, &pool, &folder, &workload).await?);
    }
    let mut result = IdleResult {
        schema: "tidepool-idle-compute/1",
        tidepool_version: env!("CARGO_PKG_VERSION"),
        machine: machine::machine(),
        scale_factor: args.sf,
        profile: profile.map_or("none".to_owned(), |profile| profile.name),
        rounds: args.repeat,
        arms: Vec::new(),
        queries: queries
            .iter()
            .map(|query| Query { name: query.name.clone(), times_ms: vec![Vec::new(); ways.len()] })
            .collect(),
        ratios: Vec::new(),
        differing: Vec::new(),
        ends: Vec::new(),
    };
    let bar = Bar::new("queries", (queries.len() * (args.repeat + 1)) as u64, "queries");
    let peaks = servers.iter().map(|server| Peak::watch(server.server.pid)).collect::<Result<Vec<_>>>()?;
    for round in 0..=args.repeat {
        for (query, timed) in queries.iter().zip(&mut result.queries) {
            let mut rows: Vec<Option<Vec<Option<String>>>> = vec![None; servers.len()];
            // No arm always goes first.
            for turn in 0..servers.len() {
                let arm = (turn + round) % servers.len();
                let started = Instant::now();
                let answer = servers[arm].client.query(query.sql).await?.succeeded()?;
                let time = started.elapsed().as_secs_f64() * 1e3;
                // The first round warms up.
                if round > 0 {
                    timed.times_ms[arm].push(time);
                }
                rows[arm] = Some(answer.values);
            }
            if round == 0 && rows.iter().any(|other| *other != rows[0]) {
                result.differing.push(query.name.clone());
            }
            bar.add(1);
        }
    }
    drop(bar);
    for (server, peak) in servers.into_iter().zip(peaks) {
        result.arms.push(server.end(&pool, peak.end()).await?);
    }
    result.ratios = (0..result.arms.len()).map(|arm| ratio(&result.queries, arm)).collect();
    let whole = ways.iter().find(|way| way.name == WHOLE).ok_or_else(|| Error::internal("no way is in the pool"))?;
    let arguments: Vec<&str> = whole.arguments.iter().map(String::as_str).collect();
    result.ends = ends::run(&pool, &arguments, args.idle.ends).await?;
    crate::show(args, &result, &report::markdown(&result))?;
    let is_free = result.ends.iter().all(|end| end.left == 0);
    Ok(if result.differing.is_empty() && is_free { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

const NEAR: &str = "all near";
const MAIN: &str = "main in the pool";
const WHOLE: &str = "all in the pool";

fn ways(pool: &MadePool, profile: Option<&Profile>, threads: Option<usize>) -> Result<Vec<Way>> {
    let (declared, paced) = match profile {
        // A preset may be declared, too.
        Some(profile) => (profile_toml(profile), format!("profile = \"{}\"\n", profile.name)),
        None => Default::default(),
    };
    let location = pool.location();
    let way = |name, database: &str, memory: &str, settings: &str| -> Result<Way> {
        let text = format!("{memory}\n[settings]\n{settings}\n{declared}");
        let file = ConfigFile::write(&format!("idle-{database}"), &text)?;
        let mut arguments = vec!["--config".to_owned(), file.path()];
        if !memory.is_empty() {
            arguments.extend(["--pool", &location, "--database", database].map(str::to_owned));
        }
        if let Some(threads) = threads {
            arguments.extend(["--threads".to_owned(), threads.to_string()]);
        }
        Ok(Way { name, arguments, _file: file })
    };
    let in_pool = format!("location = \"pool:\"\n{paced}");
    Ok(vec![
        way(NEAR, "a", "", "")?,
        way(
            MAIN,
            "c",
            &format!("[memory.far]\n{in_pool}"),
            "default_tablespace = \"far\"\ntemp_tablespaces = \"near\"",
        )?,
        way(
            WHOLE,
            "b",
            &format!("[memory]\nprocess = \"near\"\n[memory.near]\n{in_pool}\n[memory.far]\nlocation = \"pool:\"\n"),
            "",
        )?,
    ])
}

/// Writes the tables as Parquet files, unless they are there.
pub(crate) async fn generate(folder: &Path, scale_factor: f64, workload: &Workload) -> Result<()> {
    if workload.tables.iter().all(|table| folder.join(format!("{}.parquet", table.name)).exists()) {
        return Ok(());
    }
    say(format!("generate TPC-H SF {scale_factor} into {}", folder.display()));
    let program = std::env::current_exe().map_err(|error| Error::io("find this program", &error))?;
    let mut command = tokio::process::Command::new(program);
    // A process of its own, whose memory is gone before anything is measured.
    command.args(["bench", "tpch", "--sf", &scale_factor.to_string(), "--queries", "6", "--repeat", "1", "--export"]);
    let status = command.arg(folder).stdout(Stdio::null()).status().await;
    let status = status.map_err(|error| Error::io("generate tables", &error))?;
    match status.success() {
        true => Ok(()),
        false => Err(Error::new(SqlState::IO_ERROR, format!("the tables were not generated: {status}"))),
    }
}

/// A server with the tables.
struct Loaded {
    arm: Arm,
    server: Served,
    client: Client,
}

impl Loaded {
    async fn start(
        name: &'static str,
        arguments: &[&str],
        pool: &MadePool,
        folder: &Path,
        workload: &Workload,
    ) -> Result<Loaded> {
        let server = Served::start(arguments).await?;
        let mut client = server.connect().await?;
        let at_start = resident(server.pid, pool.file())?;
        let started = Instant::now();
        load(&mut client, workload, folder).await?;
        let load_seconds = started.elapsed().as_secs_f64();
        let after_load = resident(server.pid, pool.file())?;
        let arm = Arm { name, load_seconds, at_start, after_load, after_queries: after_load, peak: [0; 3] };
        Ok(Loaded { arm, server, client })
    }

    async fn end(self, pool: &MadePool, peak: [u64; 3]) -> Result<Arm> {
        let after_queries = resident(self.server.pid, pool.file())?;
        self.server.stop().await?;
        Ok(Arm { after_queries, peak, ..self.arm })
    }
}

/// Of the medians, the geometric mean of an arm's by the first's.
fn ratio(queries: &[Query], arm: usize) -> f64 {
    let median = |times: &[f64]| {
        let mut times = times.to_vec();
        times.sort_unstable_by(f64::total_cmp);
        quantile(&times, 0.5)
    };
    let logs = queries.iter().map(|query| (median(&query.times_ms[arm]) / median(&query.times_ms[0])).ln());
    (logs.sum::<f64>() / queries.len().max(1) as f64).exp()
}

pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Of the pool, in words.
fn size(bytes: u64) -> ByteSize {
    ByteSize(bytes)
}
