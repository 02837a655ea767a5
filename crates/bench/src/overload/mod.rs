//! `tidepool bench overload`: a server of its own process, asked for far more transactions than it can do.
//!
//! First the most that it does for few connections; then many connections, to which transactions arrive at a multiple of that,
//! whether or not the ones before are done. One that arrives at a connection that is still busy is not sent: its client has given up.
//! A transaction moves an amount to an account by its key, reads the balance and notes the amount, in five messages. At the end
//! the server's rows are held against what it acknowledged.

mod report;

use crate::cli::BenchArgs;
use crate::client::Client;
use crate::machine::{self, Machine};
use crate::progress::say;
use crate::result::quantile;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result, SqlState};
use tokio::io::AsyncBufReadExt;
use tokio::process::{Child, Command};

const SECONDS: f64 = 10.0;
const CONNECTIONS: usize = 1000;
const ACCOUNTS: i64 = 100_000;

/// Connections that the peak is looked for with.
const PEAK_CONNECTIONS: [usize; 6] = [2, 4, 8, 16, 32, 64];

/// What throughput may lose under overload.
pub(crate) const LOSS_GOAL: f64 = 0.1;

/// Between two looks at the server's queue and memory.
const LOOK: Duration = Duration::from_millis(50);

/// What a run writes as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct OverloadResult {
    pub schema: &'static str,
    pub tidepool_version: &'static str,
    pub machine: Machine,
    pub seconds: f64,
    /// Limits of the class of transactions.
    pub running_max: i64,
    pub queued_max: i64,
    pub queue_timeout_ms: Option<i64>,
    pub peak: Vec<Load>,
    pub peak_per_second: f64,
    pub factor: f64,
    pub overload: Load,
    /// Of the peak.
    pub part: f64,
    /// Transactions that were acknowledged and are not there, or are there and were not acknowledged.
    pub lost: i64,
}

/// What came of a number of connections.
#[derive(Clone, Debug, Serialize)]
pub struct Load {
    pub connections: usize,
    /// Transactions a second that arrived; `None`: each as soon as the one before was done.
    pub offered_per_second: Option<f64>,
    pub arrived: u64,
    /// Of those, at connections that were free.
    pub sent: u64,
    pub committed: u64,
    pub per_second: f64,
    /// From a transaction's being sent to its commit, ms.
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
    /// Refused by admission control, before anything of them ran; and how long that took.
    pub refused: u64,
    pub refused_p99_ms: f64,
    /// Other failures, by SQLSTATE.
    pub failed: BTreeMap<String, u64>,
    /// Of the server, at most.
    pub queued_most: i64,
    pub running_most: i64,
    pub resident_bytes_most: u64,
}

struct Server {
    process: Child,
    address: String,
    folder: PathBuf,
    /// Made here, and to be removed.
    is_temporary: bool,
}

impl Server {
    /// Starts this program as a server on a free port.
    async fn start(args: &BenchArgs, connections: usize) -> Result<Server> {
        let program = std::env::current_exe().map_err(|error| Error::io("find this program", &error))?;
        let is_temporary = args.durable.is_none();
        let folder = args
            .durable
            .clone()
            .unwrap_or_else(|| std::env::temp_dir().join(format!("tidepool-overload-{}", std::process::id())));
        crate::tpcc::must_be_new(&folder)?;
        let mut command = Command::new(program);
        command.arg("serve").arg("--data").arg(&folder).args(["--listen", "127.0.0.1:0"]);
        // One more looks on.
        command.args(["--connections-max", &(connections + 10).to_string()]);
        if let Some(near) = &args.near {
            command.args(["--near", &near.0.to_string()]);
        }
        command.stdout(std::process::Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().map_err(|error| Error::io("start a server", &error))?;
        let output = process.stdout.take().ok_or_else(|| Error::internal("a server without output"))?;
        let mut lines = tokio::io::BufReader::new(output).lines();
        let line = lines.next_line().await.map_err(|error| Error::io("read what the server says", &error))?;
        let line = line.unwrap_or_default();
        let address = line.split('@').nth(1).and_then(|rest| rest.split('/').next());
        let Some(address) = address else {
            return Err(Error::internal(format!("the server did not start: \"{line}\"")));
        };
        Ok(Server { process, address: address.to_owned(), folder, is_temporary })
    }

    fn resident_bytes(&self) -> u64 {
        let status = self.process.id().map(|id| std::fs::read_to_string(format!("/proc/{id}/status")));
        let status = status.and_then(|status| status.ok()).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
        kilobytes.map_or(0, |kilobytes| kilobytes * 1024)
    }

    async fn stop(mut self) -> Result<()> {
        self.process.kill().await.map_err(|error| Error::io("stop the server", &error))?;
        if self.is_temporary {
            let failed = |error| Error::io(format!("remove \"{}\"", self.folder.display()), &error);
            std::fs::remove_dir_all(&self.folder).map_err(failed)?;
        }
        Ok(())
    }
}

/// Measures, reports, and fails where the server lost something or broke a bound.
pub async fn run_overload(args: &BenchArgs) -> Result<ExitCode> {
    let connections = args.connections.unwrap_or(CONNECTIONS);
    let invalid = |message: &str| Error::new(SqlState::INVALID_PARAMETER_VALUE, message);
    if connections == 0 || connections > 20_000 {
        return Err(invalid("there must be between 1 and 20000 connections"));
    }
    if !(args.factor.is_finite() && args.factor >= 1.0) {
        return Err(invalid("the load must be at least what can be done: a factor of 1"));
    }
    let seconds = args.seconds.unwrap_or(SECONDS);
    let duration = Duration::try_from_secs_f64(seconds).map_err(|_| invalid("that is no time"))?;
    let server = Server::start(args, connections).await?;
    let measured = measure(args, &server, connections, duration).await;
    let stopped = server.stop().await;
    let result = measured?;
    stopped?;
    crate::show(args, &result, &report::markdown(&result))?;
    let is_bounded = result.overload.queued_most <= result.queued_max;
    let is_right = result.lost == 0 && result.overload.failed.is_empty() && is_bounded;
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn measure(args: &BenchArgs, server: &Server, connections: usize, duration: Duration) -> Result<OverloadResult> {
    let mut admin = Client::connect(&server.address).await?;
    for sql in [
        "CREATE TABLE account (id INT PRIMARY KEY, balance BIGINT NOT NULL)",
        &format!("INSERT INTO account SELECT g, 0 FROM generate_series(1, {ACCOUNTS}) g"),
        "CREATE TABLE note (account INT NOT NULL, amount BIGINT NOT NULL)",
    ] {
        admin.query(sql).await?.succeeded()?;
    }
    let limits =
        "SELECT running_max, queued_max, queue_timeout_ms FROM tidepool.workload_classes WHERE class = 'transactions'";
    let limits = admin.query(limits).await?.succeeded()?;
    let mut peak = Vec::new();
    let mut committed = 0;
    for count in PEAK_CONNECTIONS.into_iter().filter(|count| *count <= connections) {
        say(format!("{count} connections"));
        let load = load(server, &mut admin, count, None, duration / 2).await?;
        committed += load.committed as i64;
        peak.push(load);
    }
    let peak_per_second = peak.iter().map(|load| load.per_second).fold(0.0, f64::max);
    let offered = peak_per_second * args.factor;
    say(format!("{connections} connections, {offered:.0} transactions/s offered"));
    let overload = load(server, &mut admin, connections, Some(offered), duration).await?;
    committed += overload.committed as i64;
    let rows = admin.query("SELECT count(*), sum(amount) FROM note").await?.succeeded()?;
    let sum = admin.query("SELECT sum(balance) FROM account").await?.succeeded()?;
    // Each amount is 1.
    let noted = rows.number(0)?;
    let lost = (noted - committed).abs().max((sum.number(0)? - committed).abs());
    Ok(OverloadResult {
        schema: "tidepool-overload/1",
        tidepool_version: env!("CARGO_PKG_VERSION"),
        machine: machine::machine(),
        seconds: duration.as_secs_f64(),
        running_max: limits.number(0)?,
        queued_max: limits.number(1)?,
        queue_timeout_ms: limits.number(2).ok(),
        peak,
        peak_per_second,
        factor: args.factor,
        part: overload.per_second / peak_per_second,
        overload,
        lost,
    })
}

/// What one connection saw.
#[derive(Default)]
struct Seen {
    arrived: u64,
    sent: u64,
    /// Commits within the measured time.
    counted: u64,
    committed: u64,
    times_ms: Vec<f64>,
    refused_ms: Vec<f64>,
    failed: BTreeMap<String, u64>,
}

/// Runs connections for a time that begins when all are there.
async fn load(
    server: &Server,
    admin: &mut Client,
    connections: usize,
    offered_per_second: Option<f64>,
    duration: Duration,
) -> Result<Load> {
    let mut clients = Vec::new();
    for _ in 0..connections {
        let mut client = Client::connect(&server.address).await?;
        for (name, sql) in [
            ("add", "UPDATE account SET balance = balance + $1 WHERE id = $2"),
            ("read", "SELECT balance FROM account WHERE id = $1"),
            ("note", "INSERT INTO note VALUES ($1, $2)"),
            ("begin", "BEGIN"),
            ("commit", "COMMIT"),
        ] {
            client.prepare(name, sql).await?;
        }
        clients.push(client);
    }
    // A moment for the first connections' caches, which is not measured.
    let start = Instant::now() + duration.mul_f64(0.1);
    let end = start + duration;
    let over = Arc::new(AtomicBool::new(false));
    let interval = offered_per_second.map(|rate| Duration::from_secs_f64(connections as f64 / rate));
    let tasks: Vec<_> = (0_u64..)
        .zip(clients)
        .map(|(number, client)| tokio::spawn(connection(client, number, interval, start, end)))
        .collect();
    let (mut queued_most, mut running_most, mut resident_bytes_most) = (0, 0, 0);
    let looked = async {
        while !over.load(Ordering::Relaxed) {
            let look = "SELECT queued, running FROM tidepool.workload_classes WHERE class = 'transactions'";
            let row = admin.query(look).await?.succeeded()?;
            queued_most = queued_most.max(row.number(0)?);
            running_most = running_most.max(row.number(1)?);
            resident_bytes_most = resident_bytes_most.max(server.resident_bytes());
            tokio::time::sleep(LOOK).await;
        }
        Ok::<_, Error>(())
    };
    let finished = async {
        let mut all = Seen::default();
        for task in tasks {
            let seen = task.await.unwrap_or_else(|error| Err(Error::internal(format!("a connection failed: {error}"))));
            // Nobody else looks on either.
            let seen = seen.inspect_err(|_| over.store(true, Ordering::Relaxed))?;
            all.arrived += seen.arrived;
            all.sent += seen.sent;
            all.counted += seen.counted;
            all.committed += seen.committed;
            all.times_ms.extend(seen.times_ms);
            all.refused_ms.extend(seen.refused_ms);
            for (code, count) in seen.failed {
                *all.failed.entry(code).or_default() += count;
            }
        }
        over.store(true, Ordering::Relaxed);
        Ok::<_, Error>(all)
    };
    let (looked, all) = tokio::join!(looked, finished);
    let mut all = all?;
    looked?;
    all.times_ms.sort_by(f64::total_cmp);
    all.refused_ms.sort_by(f64::total_cmp);
    Ok(Load {
        connections,
        offered_per_second,
        arrived: all.arrived,
        sent: all.sent,
        committed: all.committed,
        per_second: all.counted as f64 / duration.as_secs_f64(),
        p50_ms: quantile(&all.times_ms, 0.5),
        p99_ms: quantile(&all.times_ms, 0.99),
        max_ms: quantile(&all.times_ms, 1.0),
        refused: all.refused_ms.len() as u64,
        refused_p99_ms: quantile(&all.refused_ms, 0.99),
        failed: all.failed,
        queued_most,
        running_most,
        resident_bytes_most,
    })
}

async fn connection(
    mut client: Client,
    number: u64,
    interval: Option<Duration>,
    start: Instant,
    end: Instant,
) -> Result<Seen> {
    let mut seen = Seen::default();
    // xorshift64: accounts, and where in an interval the first transaction arrives.
    let mut random = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut arrival = Instant::now();
    if let Some(interval) = interval {
        arrival += interval.mul_f64((draw() % 1000) as f64 / 1000.0);
    }
    loop {
        let now = Instant::now();
        if now >= end {
            return Ok(seen);
        }
        if let Some(interval) = interval {
            // Those that arrived while it was busy.
            while arrival < now {
                seen.arrived += u64::from(arrival >= start);
                arrival += interval;
            }
            if arrival >= end {
                return Ok(seen);
            }
            tokio::time::sleep_until(arrival.into()).await;
            arrival += interval;
        }
        let account = (draw() % ACCOUNTS as u64) as i64 + 1;
        let sent = Instant::now();
        let failed = transact(&mut client, account).await?;
        let done = Instant::now();
        let time_ms = (done - sent).as_secs_f64() * 1e3;
        let is_measured = sent >= start;
        seen.arrived += u64::from(is_measured);
        seen.sent += u64::from(is_measured);
        match failed {
            None => {
                seen.committed += 1;
                seen.counted += u64::from(done >= start && done < end);
                if is_measured {
                    seen.times_ms.push(time_ms);
                }
            }
            Some(code) if code == SqlState::INSUFFICIENT_RESOURCES.code() => {
                if is_measured {
                    seen.refused_ms.push(time_ms);
                }
            }
            Some(code) => *seen.failed.entry(code).or_default() += 1,
        }
    }
}

/// One transaction. The SQLSTATE of what failed of it.
async fn transact(client: &mut Client, account: i64) -> Result<Option<String>> {
    for (name, values) in
        [("begin", &[][..]), ("add", &[1, account]), ("read", &[account]), ("note", &[account, 1]), ("commit", &[])]
    {
        let answer = client.execute(name, values).await?;
        if let Some(code) = answer.error {
            if answer.in_transaction {
                client.query("ROLLBACK").await?.succeeded()?;
            }
            return Ok(Some(code));
        }
    }
    Ok(None)
}
