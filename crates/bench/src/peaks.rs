//! `tidepool bench shared-peaks`: databases whose peaks do not coincide share one pool that has far less than the sum of what each
//! would need by itself.
//!
//! Each database has a table, which stays, and now and then a statement that takes much more. One after the other has its peak.
//! What each had at most is what it would need in a machine of its own; what all had at the same moment is what the pool needs.

use crate::cli::BenchArgs;
use crate::machine::{self, Machine};
use crate::progress::say;
use crate::served::{ConfigFile, MadePool, Served};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidepool_base::{ByteSize, Error, Result};
use tidepool_pool::check::usage;
use tidepool_pool::pool::Pool;

const LOOK: Duration = Duration::from_millis(2);

#[derive(Clone, Debug, clap::Args)]
pub struct PeaksArgs {
    /// shared-peaks: databases
    #[arg(long, default_value_t = 4)]
    pub databases: usize,
    /// shared-peaks: rows of the statement that is a database's peak
    #[arg(long, default_value_t = 6_000_000)]
    pub peak_rows: u64,
    /// shared-peaks: size of the pool [default: what stays of all databases, and one and a half peaks]
    #[arg(long, value_name = "SIZE")]
    pub pool_size: Option<ByteSize>,
}

/// What a run writes as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct PeaksResult {
    pub schema: &'static str,
    pub tidepool_version: &'static str,
    pub machine: Machine,
    pub rounds: usize,
    pub pool_bytes: u64,
    /// What stays of each database, and the most that it had.
    pub base_bytes: Vec<u64>,
    pub peak_bytes: Vec<u64>,
    /// The most that all had at one moment.
    pub together_bytes: u64,
    /// Seconds of each peak, and the SQLSTATE of those that were refused.
    pub peaks: Vec<Peak>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Peak {
    pub database: usize,
    pub seconds: f64,
    pub error: Option<String>,
}

fn sql(rows: u64) -> String {
    // Every value is another, and all are kept until the end.
    format!(
        "SELECT count(DISTINCT md5(i::text)), count(DISTINCT i::bigint * 7919 % 1000000007) FROM generate_series(1, {rows}) AS g(i)"
    )
}

pub async fn run_peaks(args: &BenchArgs) -> Result<ExitCode> {
    let options = &args.peaks;
    let count = options.databases.clamp(2, 16);
    // What one needs by itself, in a pool that is large enough.
    let (base, peak) = {
        let pool = MadePool::make(args.idle.pool_file.as_deref(), 8 << 30, "peaks").await?;
        let seen = run(&pool, 1, 1, options.peak_rows).await?;
        (seen.base_bytes[0], seen.peak_bytes[0])
    };
    say(format!("a database has {} and needs {} at its peak", ByteSize(base), ByteSize(peak)));
    let default = base * count as u64 + (peak - base) * 3 / 2;
    let pool_bytes = options.pool_size.map_or(default, |size| size.0).next_multiple_of(2 << 20);
    let pool = MadePool::make(args.idle.pool_file.as_deref(), pool_bytes, "peaks").await?;
    let mut result = run(&pool, count, args.repeat, options.peak_rows).await?;
    result.pool_bytes = pool_bytes;
    crate::show(args, &result, &markdown(&result))?;
    let is_right = result.peaks.iter().all(|peak| peak.error.is_none());
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Bytes that each database has, by number.
fn owned(pool: &Pool) -> Result<BTreeMap<u8, u64>> {
    let mut owned = BTreeMap::new();
    for ((_, _, database), extents) in usage(pool)? {
        if let Some(database) = database {
            *owned.entry(database).or_default() += extents * pool.extent_bytes();
        }
    }
    Ok(owned)
}

async fn run(pool: &MadePool, count: usize, rounds: usize, rows: u64) -> Result<PeaksResult> {
    let location = pool.location();
    let text =
        "[memory]\nprocess = \"near\"\n[memory.near]\nlocation = \"pool:\"\n[memory.far]\nlocation = \"pool:\"\n";
    let file = ConfigFile::write("peaks", text)?;
    let mut servers = Vec::new();
    for number in 1..=count {
        let name = format!("d{number}");
        let server = Served::start(&["--config", &file.path(), "--pool", &location, "--database", &name]).await?;
        let mut client = server.connect().await?;
        for sql in [
            "CREATE TABLE stays (id bigint PRIMARY KEY, body text NOT NULL)",
            "INSERT INTO stays SELECT i, md5(i::text) FROM generate_series(1, 500000) AS g(i)",
            "CALL tidepool.merge('stays')",
        ] {
            client.query(sql).await?.succeeded()?;
        }
        servers.push((server, client));
    }
    let books = Arc::new(pool.open()?);
    let numbers =
        (1..=count).map(|number| Ok(books.database(&format!("d{number}"))?.0)).collect::<Result<Vec<u8>>>()?;
    let now = owned(&books)?;
    let of = |owned: &BTreeMap<u8, u64>| numbers.iter().map(|number| owned.get(number).copied().unwrap_or(0)).collect();
    let base_bytes: Vec<u64> = of(&now);
    let is_over = Arc::new(AtomicBool::new(false));
    let watch = {
        let (books, is_over) = (Arc::clone(&books), Arc::clone(&is_over));
        std::thread::spawn(move || -> Result<(BTreeMap<u8, u64>, u64)> {
            let (mut most, mut together) = (BTreeMap::new(), 0);
            while !is_over.load(Ordering::Relaxed) {
                let now = owned(&books)?;
                together = together.max(now.values().sum());
                for (database, bytes) in now {
                    let peak: &mut u64 = most.entry(database).or_default();
                    *peak = (*peak).max(bytes);
                }
                std::thread::sleep(LOOK);
            }
            Ok((most, together))
        })
    };
    let mut peaks = Vec::new();
    for _ in 0..rounds {
        for (number, (_, client)) in servers.iter_mut().enumerate() {
            let started = Instant::now();
            let answer = client.query(&sql(rows)).await?;
            peaks.push(Peak { database: number + 1, seconds: started.elapsed().as_secs_f64(), error: answer.error });
        }
    }
    is_over.store(true, Ordering::Relaxed);
    let (most, together_bytes) = watch.join().map_err(|_| Error::internal("a thread panicked"))??;
    for (server, _) in servers {
        server.stop().await?;
    }
    Ok(PeaksResult {
        schema: "tidepool-shared-peaks/1",
        tidepool_version: env!("CARGO_PKG_VERSION"),
        machine: machine::machine(),
        rounds,
        pool_bytes: 0,
        base_bytes,
        peak_bytes: of(&most),
        together_bytes,
        peaks,
    })
}

fn markdown(result: &PeaksResult) -> String {
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = write(result, &mut text);
    text
}

fn write(result: &PeaksResult, text: &mut String) -> std::fmt::Result {
    let machine = &result.machine;
    let each: u64 = result.peak_bytes.iter().sum();
    let refused = result.peaks.iter().filter(|peak| peak.error.is_some()).count();
    writeln!(text, "# Shared peaks\n")?;
    writeln!(
        text,
        "By `tidepool bench shared-peaks --databases {} --repeat {}`. Machine: {}, {} CPUs, {} GB, Linux {}. Each database has a \
         table that stays, and a statement that takes much more; one after the other runs it, {} rounds, without a pause.\n",
        result.peak_bytes.len(),
        result.rounds,
        machine.cpu,
        machine.cpus,
        machine.memory_bytes >> 30,
        machine.kernel,
        result.rounds,
    )?;
    writeln!(
        text,
        "Apart the {} databases would need **{}**, the sum of what each had at most. One pool of **{}** was enough: {} were in \
         use at most at one moment, which is {:.0} % less. {} of {} peaks were refused.\n",
        result.peak_bytes.len(),
        ByteSize(each),
        ByteSize(result.pool_bytes),
        ByteSize(result.together_bytes),
        100.0 * (1.0 - result.pool_bytes as f64 / each.max(1) as f64),
        refused,
        result.peaks.len(),
    )?;
    writeln!(text, "| database | stays | at its peak | seconds of each peak |")?;
    writeln!(text, "| --- | ---: | ---: | ---: |")?;
    for (index, (base, peak)) in result.base_bytes.iter().zip(&result.peak_bytes).enumerate() {
        let of = result.peaks.iter().filter(|peak| peak.database == index + 1);
        let times: Vec<String> = of
            .map(|peak| match &peak.error {
                None => format!("{:.2}", peak.seconds),
                Some(code) => format!("refused ({code})"),
            })
            .collect();
        writeln!(text, "| {} | {} | {} | {} |", index + 1, ByteSize(*base), ByteSize(*peak), times.join(", "))?;
    }
    Ok(())
}
