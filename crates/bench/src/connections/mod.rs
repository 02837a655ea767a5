//! `tidepool bench connections`: what clients notice of an upgrade, or of a primary that is killed.
//!
//! Many clients are idle, some update one row each again and again, and some are in transactions, over a pool that has the database. Again and
//! again the server is replaced (`tidepool upgrade`), or killed beside a standby. Connections are to go on: of each busy
//! client and time the longest statement is measured, the sum that each client wrote is compared with what was acknowledged after every
//! statement, and at the end each idle session has to have what it began with.

mod clients;
mod hosts;
mod report;

use crate::cli::BenchArgs;
use crate::client::{Client, tls};
use crate::machine::{self, Machine};
use crate::progress::say;
use crate::result::quantile;
use clients::{Clients, Setup};
use hosts::{Hosts, HostsSetup};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result, SqlState};

const BUSY: usize = 16;

/// Clients work undisturbed for so long between two times.
const BETWEEN: Duration = Duration::from_millis(500);

/// What ends a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Through {
    /// `tidepool upgrade`: another process begins in its place
    Upgrade,
    /// SIGKILL, beside a standby
    Kill,
}

#[derive(Clone, Debug, clap::Args)]
pub struct ConnectionsArgs {
    /// connections: what they are to outlive
    #[arg(long, value_enum, default_value_t = Through::Upgrade)]
    pub through: Through,
    /// connections: how often
    #[arg(long, default_value_t = 20)]
    pub times: usize,
    /// connections: clients that ask for nothing until the end
    #[arg(long, default_value_t = 1000)]
    pub idle: usize,
    /// connections: clients in transactions that they keep open for up to 100 ms between two statements
    #[arg(long, default_value_t = 16)]
    pub open: usize,
    /// connections: between two statements of a busy client, in ms
    #[arg(long, default_value_t = 1)]
    pub think: u64,
    /// connections: another release's program; upgrades go to it and back by turns
    #[arg(long, value_name = "PROGRAM")]
    pub other_program: Option<PathBuf>,
    /// connections: a certificate (PEM) for the name localhost; every second client has TLS then
    #[arg(long, value_name = "FILE", requires = "key")]
    pub certificate: Option<PathBuf>,
    /// connections: its key
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub key: Option<PathBuf>,
}

/// What a run writes as JSON.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ConnectionsResult {
    schema: &'static str,
    tidepool_version: &'static str,
    machine: Machine,
    through: Through,
    idle: usize,
    busy: usize,
    open: usize,
    tls: bool,
    think_ms: u64,
    /// Of each time, each busy client's longest statement in ms, sorted.
    times: Vec<Vec<f64>>,
    /// Of the longest ones of each time.
    longest_p50_ms: f64,
    longest_max_ms: f64,
    /// Of all busy clients at all times.
    p50_ms: f64,
    p99_ms: f64,
    /// Statements of busy clients that were acknowledged, and transactions of those that keep them open.
    acknowledged: u64,
    committed: u64,
    /// Connections that ended.
    lost_connections: u64,
    /// Sums that are not what was acknowledged, and sessions that are not what they were.
    wrong: u64,
    /// Statements that failed, by SQLSTATE.
    failed: BTreeMap<String, u64>,
}

/// Measures, reports, and fails where something was lost.
pub async fn run_connections(args: &BenchArgs) -> Result<ExitCode> {
    let options = &args.connections_of;
    let busy = args.connections.unwrap_or(BUSY);
    let invalid = |message: &str| Error::new(SqlState::INVALID_PARAMETER_VALUE, message);
    if busy == 0 || options.times == 0 {
        return Err(invalid("there must be a busy connection, and a time"));
    }
    if options.through == Through::Kill && options.other_program.is_some() {
        return Err(invalid("--other-program is for upgrades"));
    }
    let all = options.idle + busy + options.open;
    let setup = HostsSetup {
        through: options.through,
        near: args.near,
        clients: all,
        other_program: options.other_program.clone(),
        tls: options.certificate.clone().zip(options.key.clone()),
    };
    let hosts = Hosts::start(setup).await?;
    let tls = options.certificate.as_deref().map(tls).transpose()?;
    let setup =
        Setup { idle: options.idle, busy, open: options.open, think: Duration::from_millis(options.think), tls };
    let result = measure(args, hosts, setup).await?;
    crate::show(args, &result, &report::markdown(&result))?;
    let is_right = result.wrong == 0 && result.lost_connections == 0;
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn measure(args: &BenchArgs, mut hosts: Hosts, setup: Setup) -> Result<ConnectionsResult> {
    let options = &args.connections_of;
    let (idle, busy, open, has_tls) = (setup.idle, setup.busy, setup.open, setup.tls.is_some());
    let address = hosts.ready().await?;
    let clients = Clients::start(&address, setup).await?;
    let mut times = Vec::new();
    for time in 1..=options.times {
        tokio::time::sleep(BETWEEN).await;
        let address = hosts.ready().await?;
        let begun = Instant::now();
        let now = hosts.replace(&address).await?;
        clients.look_at(&now);
        clients.went_on(Instant::now()).await?;
        // Whoever took over listens where the one before did.
        if Client::connect(&address).await.is_err() {
            clients.address_is_gone();
        }
        let stalls = clients.stalls(begun);
        let longest = stalls.last().copied().unwrap_or_default();
        say(format!("{time} of {}: {:.1} to {longest:.1} ms", options.times, stalls[0]));
        times.push(stalls);
        hosts.restore(&address).await?;
    }
    let address = hosts.ready().await?;
    let done = clients.stop(&address).await?;
    hosts.stop().await?;
    let sorted = |times: &mut dyn Iterator<Item = f64>| {
        let mut all: Vec<f64> = times.collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let all = sorted(&mut times.iter().flatten().copied());
    let longest = sorted(&mut times.iter().filter_map(|stalls| stalls.last().copied()));
    Ok(ConnectionsResult {
        schema: "tidepool-connections/1",
        tidepool_version: env!("CARGO_PKG_VERSION"),
        machine: machine::machine(),
        through: options.through,
        idle,
        busy,
        open,
        tls: has_tls,
        think_ms: options.think,
        times,
        longest_p50_ms: quantile(&longest, 0.5),
        longest_max_ms: quantile(&longest, 1.0),
        p50_ms: quantile(&all, 0.5),
        p99_ms: quantile(&all, 0.99),
        acknowledged: done.acknowledged,
        committed: done.committed,
        lost_connections: done.lost_connections,
        wrong: done.wrong,
        failed: done.failed,
    })
}
