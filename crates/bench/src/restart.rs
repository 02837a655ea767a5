//! `tidepool bench restart`: how soon a server over a pool answers and writes again after a kill, without a standby.
//!
//! TPC-H's tables, with their primary keys, are loaded into a database that lives in a pool. The server is killed (SIGKILL) and
//! started again, some times. From its start on: the time to its first answer, and to the first rows that are written by a
//! key: one that is new, for which the primary key is looked through, and one of the largest table that is changed.

use crate::cli::BenchArgs;
use crate::machine::{self, Machine};
use crate::progress::say;
use crate::result::quantile;
use crate::served::{MadePool, Served, load};
use crate::workload::Workload;
use serde::Serialize;
use std::fmt::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result};

/// Of the pool, for each unit of the scale factor, and beside that.
const POOL_BYTES_BY_SCALE: f64 = 700e6;
const POOL_BYTES_MIN: u64 = 1 << 30;

/// For two manifests after the load, so that the log before them is not read.
const SETTLE: Duration = Duration::from_secs(12);

/// What a run writes as JSON.
#[derive(Clone, Debug, Serialize)]
struct RestartResult {
    schema: &'static str,
    tidepool_version: &'static str,
    machine: Machine,
    scale_factor: f64,
    rows: u64,
    load_seconds: f64,
    restarts: Vec<Restart>,
}

/// Milliseconds from the start of the process.
#[derive(Clone, Copy, Debug, Serialize)]
struct Restart {
    ready_ms: f64,
    answer_ms: f64,
    insert_ms: f64,
    update_ms: f64,
}

pub async fn run_restart(args: &BenchArgs) -> Result<ExitCode> {
    let workload = Workload::by_name("tpch", args.sf)?;
    let folder = args.export.clone();
    let folder = folder.unwrap_or_else(|| std::env::temp_dir().join(format!("tidepool-tpch-{}", args.sf)));
    crate::idle::generate(&folder, args.sf, &workload).await?;
    let bytes = POOL_BYTES_MIN + (POOL_BYTES_BY_SCALE * args.sf) as u64;
    let pool = MadePool::make(args.idle.pool_file.as_deref(), bytes, "restart").await?;
    let (location, near) = (pool.location(), args.near.map(|near| near.0.to_string()));
    let mut arguments = vec!["--pool", &location, "--role", "auto", "--name", "h1"];
    if let Some(near) = &near {
        arguments.extend(["--near", near]);
    }
    say(format!("load TPC-H SF {}", args.sf));
    let mut server = Served::start_with(&arguments).await?;
    let mut client = server.connect().await?;
    let started = Instant::now();
    load(&mut client, &workload, &folder).await?;
    let load_seconds = started.elapsed().as_secs_f64();
    tokio::time::sleep(SETTLE).await;
    let last_order = client.query("SELECT max(o_orderkey) FROM orders").await?.succeeded()?.number(0)?;
    drop(client);
    let mut restarts = Vec::new();
    for number in 1..=args.repeat {
        server.stop().await?;
        let (again, restart) = restart(&arguments, last_order, number as i64).await?;
        server = again;
        let Restart { answer_ms, insert_ms, update_ms, .. } = restart;
        say(format!(
            "restart {number} of {}: answers after {answer_ms:.0} ms, a new key after {insert_ms:.0}, a change after \
             {update_ms:.0}",
            args.repeat
        ));
        restarts.push(restart);
        // Beyond what the restart itself left to be done.
        tokio::time::sleep(SETTLE).await;
    }
    let mut client = server.connect().await?;
    let there = client.query(&format!("SELECT count(*) FROM orders WHERE o_orderkey > {last_order}")).await?;
    let is_right = there.succeeded()?.number(0)? == args.repeat as i64;
    server.stop().await?;
    let result = RestartResult {
        schema: "tidepool-restart/1",
        tidepool_version: env!("CARGO_PKG_VERSION"),
        machine: machine::machine(),
        scale_factor: args.sf,
        rows: workload.tables.iter().map(|table| table.rows).sum(),
        load_seconds,
        restarts,
    };
    crate::show(args, &result, &markdown(&result))?;
    if !is_right {
        return Err(Error::internal("rows that were written after a restart are not there after the next"));
    }
    Ok(ExitCode::SUCCESS)
}

async fn restart(arguments: &[&str], last_order: i64, number: i64) -> Result<(Served, Restart)> {
    let begun = Instant::now();
    let ms = || begun.elapsed().as_secs_f64() * 1e3;
    let server = Served::start_with(arguments).await?;
    let ready_ms = ms();
    let mut client = server.connect().await?;
    client.query("SELECT count(*) FROM nation").await?.succeeded()?;
    let answer_ms = ms();
    let key = last_order + number;
    let insert = format!(
        "INSERT INTO orders VALUES ({key}, 1, 'O', 1.00, DATE '1998-08-02', '5-LOW', 'Clerk#000000001', 0, 'after a kill')"
    );
    client.query(&insert).await?.succeeded()?;
    let insert_ms = ms();
    // Some order in the middle; its first four keys of eight are there.
    let order = last_order / 2 / 32 * 32 + number % 7 + 1;
    let update = format!("UPDATE lineitem SET l_tax = l_tax WHERE l_orderkey = {order} AND l_linenumber = 1");
    client.query(&update).await?.succeeded()?;
    let update_ms = ms();
    Ok((server, Restart { ready_ms, answer_ms, insert_ms, update_ms }))
}

fn markdown(result: &RestartResult) -> String {
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = write(result, &mut text);
    text
}

fn write(result: &RestartResult, text: &mut String) -> std::fmt::Result {
    let machine = &result.machine;
    writeln!(text, "# Restart over a pool\n")?;
    writeln!(
        text,
        "By `tidepool bench restart --sf {}`. Machine: {}, {} CPUs, {} GB, Linux {}. TPC-H's tables with their primary keys, {} \
         rows, in a database that lives in a pool; the server is killed (SIGKILL) and started again. Milliseconds from its start \
         on.\n",
        result.scale_factor,
        machine.cpu,
        machine.cpus,
        machine.memory_bytes >> 30,
        machine.kernel,
        result.rows
    )?;
    writeln!(text, "| restart | listens | first answer | first new key | first change by a key |")?;
    writeln!(text, "| ---: | ---: | ---: | ---: | ---: |")?;
    for (number, one) in (1..).zip(&result.restarts) {
        let Restart { ready_ms, answer_ms, insert_ms, update_ms } = one;
        writeln!(text, "| {number} | {ready_ms:.1} | {answer_ms:.1} | {insert_ms:.1} | {update_ms:.1} |")?;
    }
    let median = |of: fn(&Restart) -> f64| {
        let mut times: Vec<f64> = result.restarts.iter().map(of).collect();
        times.sort_by(f64::total_cmp);
        quantile(&times, 0.5)
    };
    writeln!(
        text,
        "| median | {:.1} | {:.1} | {:.1} | {:.1} |",
        median(|one| one.ready_ms),
        median(|one| one.answer_ms),
        median(|one| one.insert_ms),
        median(|one| one.update_ms)
    )
}
