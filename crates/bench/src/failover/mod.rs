//! `tidepool bench failover`: how soon clients of a host that is killed go on at another, and that nothing is lost.
//!
//! Clients insert rows one after the other into a database that two hosts have. Again and again the host that takes writes is
//! killed, or stopped, and another follows in its place. Of each client and kill: the time to the first acknowledgement of
//! a statement that it began afterwards, at another host. At the end what is there is held
//! against what was acknowledged. The hosts are this program over a pool, or those of a cluster that others run.

mod clients;
mod cluster;
mod report;

use crate::cli::BenchArgs;
use crate::client::{Client, Login};
use crate::machine::{self, Machine};
use crate::progress::say;
use clients::{Clients, Patience, TABLE, Written};
pub use cluster::Signal;
use cluster::{Cluster, OtherHosts};
pub(crate) use cluster::{PoolHosts, PoolSetup};
use serde::Serialize;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidepool_base::{ByteSize, Error, Result, SqlState};

const CONNECTIONS: usize = 16;

/// Within which every client has to go on.
const RESUME_TIMEOUT: Duration = Duration::from_secs(180);
const LOOK: Duration = Duration::from_millis(2);

/// Clients work undisturbed for so long between two kills, and up to as much again.
const BETWEEN: Duration = Duration::from_millis(300);

/// Of hosts apart: after how long without a sign of life one is taken for gone.
const APART_TIMEOUT_MS: u64 = 200;

/// For the rows of clients and what comes with them.
const POOL_BYTES: u64 = 2 << 30;

#[derive(Clone, Debug, clap::Args)]
pub struct FailoverArgs {
    /// failover: how often the host that takes writes is ended, or hosts in turns are paused
    #[arg(long, default_value_t = 20)]
    pub kills: usize,
    /// failover: how it is ended
    #[arg(long, value_enum, default_value_t = Signal::Kill)]
    pub signal: Signal,
    /// failover: the longest pause in ms; what is left of the hosts' `host_timeout` is for those that wait for a processor
    #[arg(long, value_name = "MS", default_value_t = 700)]
    pub pause_max: u64,
    /// failover: the pool, which must be there and have no database of the default name [default: one in /dev/shm]
    #[arg(long, value_name = "LOCATION")]
    pub pool: Option<String>,
    /// failover: a further argument for each host, may be repeated
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub host_argument: Vec<String>,
    /// failover: rows of so many bytes that the database has besides
    #[arg(long, value_name = "SIZE")]
    pub resident: Option<ByteSize>,
    /// failover: the size of the pool that is made [default: 2 GB, and three times the other rows]
    #[arg(long, value_name = "SIZE", conflicts_with = "pool")]
    pub pool_size: Option<ByteSize>,
    /// failover: an index of the other rows is made before each kill, and the standby is still filling its own then
    #[arg(long, requires = "resident")]
    pub index: bool,
    /// failover: hosts as on machines of their own: they share no sockets, and the one that takes writes is stopped and says nothing
    /// more. Clients wait 100 ms for an answer
    #[arg(long, conflicts_with = "host")]
    pub apart: bool,
    /// failover: the hosts' `host_timeout` in ms [default: the hosts' own; with --apart 200]
    #[arg(long, value_name = "MS")]
    pub host_timeout: Option<u64>,
    /// failover: a host of a cluster that is there, HOST:PORT, once for each
    #[arg(long, value_name = "ADDRESS")]
    pub host: Vec<String>,
    /// failover: shell command that ends the host at $FAILOVER_HOST
    #[arg(long, value_name = "COMMAND", requires = "host")]
    pub end_with: Option<String>,
    /// failover: shell command that lets it follow again
    #[arg(long, value_name = "COMMAND", requires = "host")]
    pub restore_with: Option<String>,
    /// failover: user of that cluster
    #[arg(long, default_value = "tidepool")]
    pub user: String,
    /// failover: database of that cluster
    #[arg(long, default_value = "tidepool")]
    pub database: String,
}

/// What a run writes as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct FailoverResult {
    pub schema: &'static str,
    pub tidepool_version: &'static str,
    pub machine: Machine,
    /// What each host says of itself.
    pub hosts: String,
    pub connections: usize,
    pub signal: Signal,
    pub resident_bytes: u64,
    /// An index of the other rows was being filled at each kill.
    pub index: bool,
    /// Hosts shared no sockets, and learned of each other by heartbeats alone.
    pub apart: bool,
    /// Of each kill, the clients' times in ms, sorted.
    pub kills: Vec<Vec<f64>>,
    /// How often a host was paused.
    pub pauses: usize,
    /// How often another host took over from one that was only paused.
    pub false_failovers: usize,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
    pub acknowledged: usize,
    /// Statements whose connection ended before the answer, and those of them that are there.
    pub in_doubt: usize,
    pub in_doubt_there: usize,
    /// Rows that were acknowledged and are not there.
    pub lost: usize,
    /// Rows that nobody wrote, or whose statement was refused.
    pub invented: usize,
    /// Statements and connections that failed, by SQLSTATE.
    pub failed: BTreeMap<String, u64>,
}

/// Measures, reports, and fails where something was lost or a client did not go on.
pub async fn run_failover(args: &BenchArgs) -> Result<ExitCode> {
    let options = &args.failover;
    let connections = args.connections.unwrap_or(CONNECTIONS);
    let invalid = |message: &str| Error::new(SqlState::INVALID_PARAMETER_VALUE, message);
    if connections == 0 || connections > 1000 {
        return Err(invalid("there must be between 1 and 1000 connections"));
    }
    if options.pause_max == 0 {
        return Err(invalid("the longest pause must be at least 1 ms"));
    }
    if options.signal == Signal::Pause && !options.host.is_empty() {
        return Err(invalid("hosts of a cluster that others run cannot be paused"));
    }
    if options.kills == 0 {
        return Err(invalid("a host must be killed at least once"));
    }
    if options.apart && options.signal == Signal::Pause {
        return Err(invalid("hosts that are paused share their machine"));
    }
    let login = Login { user: options.user.clone(), database: options.database.clone() };
    let cluster = if options.host.is_empty() {
        let size = ByteSize(POOL_BYTES + 3 * options.resident.map_or(0, |bytes| bytes.0));
        let setup = PoolSetup {
            location: options.pool.clone(),
            size: options.pool_size.unwrap_or(size),
            near: args.near,
            settings: options.host_argument.clone(),
            // A machine that is gone says no more than a host that is stopped: the kernel tells nobody of it.
            signal: if options.apart { Signal::Stop } else { options.signal },
            apart: options.apart,
            host_timeout: options.host_timeout.or(options.apart.then_some(APART_TIMEOUT_MS)),
        };
        Cluster::Pool(PoolHosts::start(setup).await?)
    } else {
        let (Some(end), Some(restore)) = (&options.end_with, &options.restore_with) else {
            return Err(invalid("a cluster that is there needs --end-with and --restore-with"));
        };
        Cluster::Others(OtherHosts::new(options.host.clone(), end.clone(), restore.clone()))
    };
    let result = measure(args, cluster, &login, connections).await?;
    crate::show(args, &result, &report::markdown(&result))?;
    let is_right = result.lost == 0 && result.invented == 0 && result.false_failovers == 0;
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn measure(args: &BenchArgs, mut cluster: Cluster, login: &Login, connections: usize) -> Result<FailoverResult> {
    let options = &args.failover;
    let resident = options.resident.map_or(0, |bytes| bytes.0);
    let primary = cluster.ready(login).await?;
    let (mut admin, _) = Client::log_in(&primary, login).await?;
    admin.query(TABLE).await?.succeeded()?;
    let version = admin.query("SELECT version()").await?.succeeded()?;
    let hosts = version.values.into_iter().flatten().next().unwrap_or_default();
    if resident > 0 {
        say(format!("loading {}", ByteSize(resident)));
        load(&mut admin, resident).await?;
    }
    drop(admin);
    let patience = if options.apart { Patience::APART } else { Patience::default() };
    let clients = Clients::start(connections, login, cluster.addresses(), patience);
    until(|| clients.are_at_work(), "a client did not begin").await?;
    let (ends, pauses) = match options.signal {
        Signal::Kill | Signal::Stop => (options.kills, 0),
        Signal::Pause => (0, options.kills),
    };
    let false_failovers = pause(&cluster, login, pauses, options.pause_max).await?;
    let mut kills = Vec::new();
    for kill in 1..=ends {
        let primary = cluster.ready(login).await?;
        clients.look_at(cluster.addresses());
        // Not in step with anything that a host does at intervals.
        tokio::time::sleep(BETWEEN + BETWEEN.mul_f64(f64::from(kill as u32 * 7 % 10) / 10.0)).await;
        if options.index {
            make_index(&primary, login).await?;
        }
        let at = cluster.end(&primary).await?;
        clients.host_ended(at);
        until(|| clients.resumed_after(at).iter().all(Option::is_some), "a client did not go on").await?;
        let resumed = clients.resumed_after(at).into_iter().flatten();
        let mut times: Vec<f64> = resumed.map(|time| time.as_secs_f64() * 1e3).collect();
        times.sort_by(f64::total_cmp);
        say(format!("kill {kill} of {}: {:.1} to {:.1} ms", options.kills, times[0], times[times.len() - 1]));
        kills.push(times);
        cluster.restore(&primary).await?;
    }
    let primary = cluster.ready(login).await?;
    let written = clients.stop().await?;
    let held = hold(&primary, login, &written).await?;
    cluster.stop().await?;
    let mut all: Vec<f64> = kills.iter().flatten().copied().collect();
    all.sort_by(f64::total_cmp);
    let mut failed = BTreeMap::new();
    for (code, count) in written.iter().flat_map(|client| &client.failed) {
        *failed.entry(code.clone()).or_default() += count;
    }
    Ok(FailoverResult {
        schema: "tidepool-failover/1",
        tidepool_version: env!("CARGO_PKG_VERSION"),
        machine: machine::machine(),
        hosts,
        connections,
        signal: options.signal,
        resident_bytes: resident,
        index: options.index,
        apart: options.apart,
        kills,
        pauses,
        false_failovers,
        p50_ms: crate::result::quantile(&all, 0.5),
        p99_ms: crate::result::quantile(&all, 0.99),
        max_ms: crate::result::quantile(&all, 1.0),
        acknowledged: written.iter().map(|client| client.acknowledged.len()).sum(),
        in_doubt: written.iter().map(|client| client.in_doubt.len()).sum(),
        in_doubt_there: held.in_doubt_there,
        lost: held.lost,
        invented: held.invented,
        failed,
    })
}

/// Pauses hosts, two of three times the one that takes writes: how often another one took over.
async fn pause(cluster: &Cluster, login: &Login, pauses: usize, longest_ms: u64) -> Result<usize> {
    let mut primary = cluster.ready(login).await?;
    let (mut random, mut taken_over) = (crate::random::Random::new(1), 0);
    for number in 1..=pauses {
        let paused = match number % 3 {
            0 => cluster.addresses().into_iter().find(|address| *address != primary),
            _ => Some(primary.clone()),
        };
        let paused = paused.ok_or_else(|| Error::internal("there is one host alone"))?;
        let time = Duration::from_millis(1 + random.below(longest_ms));
        cluster.pause(&paused, time).await?;
        tokio::time::sleep(Duration::from_millis(random.below(BETWEEN.as_millis() as u64))).await;
        let now = cluster.ready(login).await?;
        if now != primary {
            taken_over += 1;
            say(format!("pause {number}: another host took over from one that was stopped for {time:.0?}"));
            primary = now;
        }
        if number % 100 == 0 {
            say(format!("{number} of {pauses} pauses, {taken_over} false failovers"));
        }
    }
    Ok(taken_over)
}

/// Waits for what must become true.
async fn until(is_true: impl Fn() -> bool, failure: &str) -> Result<()> {
    let end = Instant::now() + RESUME_TIMEOUT;
    while !is_true() {
        if Instant::now() > end {
            let within = RESUME_TIMEOUT.as_secs();
            return Err(Error::new(SqlState::CONNECTION_FAILURE, format!("{failure} within {within} s")));
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// Rows of so many bytes, which do not compress.
async fn load(admin: &mut Client, bytes: u64) -> Result<()> {
    const ROW_BYTES: u64 = 128;
    const STATEMENT_ROWS: u64 = 1_000_000;
    admin.query("CREATE TABLE resident (id BIGINT PRIMARY KEY, body TEXT NOT NULL)").await?.succeeded()?;
    let rows = bytes.div_ceil(ROW_BYTES);
    for first in (0..rows).step_by(STATEMENT_ROWS as usize) {
        let last = (first + STATEMENT_ROWS).min(rows) - 1;
        let sql = format!(
            "INSERT INTO resident SELECT i, md5(i::text) || md5((i + 1)::text) || md5((-i)::text) || md5((i * 7)::text) \
             FROM generate_series({first}::bigint, {last}) AS g(i)"
        );
        admin.query(&sql).await?.succeeded()?;
    }
    Ok(())
}

/// Makes the index of the other rows anew. When this returns, the standby has the record of it before itself, or fills its own.
async fn make_index(primary: &str, login: &Login) -> Result<()> {
    let (mut admin, _) = Client::log_in(primary, login).await?;
    admin.query("DROP INDEX IF EXISTS resident_body").await?.succeeded()?;
    admin.query("CREATE INDEX resident_body ON resident (body)").await?.succeeded()?;
    Ok(())
}

struct Held {
    in_doubt_there: usize,
    lost: usize,
    invented: usize,
}

/// Holds the rows that are there against what clients know of them.
async fn hold(primary: &str, login: &Login, written: &[Written]) -> Result<Held> {
    let mut held = Held { in_doubt_there: 0, lost: 0, invented: 0 };
    let (mut admin, _) = Client::log_in(primary, login).await?;
    for (client, written) in written.iter().enumerate() {
        let sql = format!("SELECT number FROM acknowledged WHERE client = {client}");
        let rows = admin.query(&sql).await?.succeeded()?;
        let mut there = 0;
        for number in rows.values.iter().flatten() {
            let number = number.parse().map_err(|_| Error::internal(format!("\"{number}\" is no number")))?;
            if written.acknowledged.contains(&number) {
                there += 1;
            } else if written.in_doubt.contains(&number) {
                held.in_doubt_there += 1;
            } else {
                held.invented += 1;
            }
        }
        held.lost += written.acknowledged.len() - there;
    }
    Ok(held)
}
