//! Queries run for a witness: a cache simulator that follows every memory access of this process from outside, and counts
//! what the engine's own account says it counted (`bench/hold_to_account.py` runs the two and compares them).
//!
//! Main lies in `far` and the heap in a tablespace of its own, so that addresses tell them apart. Both stand for local memory:
//! everything is accounted and nothing waited for.

use crate::engine::Engine;
use crate::load;
use crate::progress::say;
use crate::workload::Workload;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tidepool_base::{ByteSize, Error, Result};
use tidepool_database::Database;
use tidepool_database::config::ConfigBuilder;
use tidepool_device::{LOCAL_DRAM, Location, PacingCounters, Profile};
use tidepool_planner::Planner;
use tidepool_tablespace::TablespaceConfig;

/// The heap's tablespace.
const WORK: &str = "work";

/// Run queries under an outside witness of their memory accesses; see bench/hold_to_account.py.
#[derive(Clone, Debug, clap::Args)]
pub struct ObserveArgs {
    /// Data folder with the benchmark's tables; made if it is not there
    #[arg(long)]
    pub data: PathBuf,
    /// Scale factor of the tables that are made
    #[arg(long, default_value_t = 0.1)]
    pub sf: f64,
    /// Queries of TPC-H, such as 1,6,10-14
    #[arg(long, default_value = "1,3,6,9,13,18")]
    pub queries: String,
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// The last-level cache that is accounted with
    #[arg(long, default_value = "4MB")]
    pub last_level_cache: ByteSize,
    /// By DataFusion's operators
    #[arg(long)]
    pub datafusion: bool,
    /// Only make the tables
    #[arg(long)]
    pub prepare: bool,
    /// Where to tell the witness about marks and addresses; go on when FILE.seen is there
    #[arg(long)]
    pub setup: Option<PathBuf>,
    /// Write the account as JSON
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// What the engine says a query's accesses came to.
#[derive(Debug, Serialize)]
struct Account {
    query: String,
    main: Accounted,
    heap: Accounted,
}

/// Bytes taken to have come from, and gone to, memory: what the cache did not hold.
#[derive(Debug, Default, Serialize)]
struct Accounted {
    bytes_asked: u64,
    link_bytes_read: u64,
    link_bytes_written: u64,
}

/// A store to the one begins what is watched, to the other ends it. Each in a cache line, and a page, of its own.
#[repr(C, align(4096))]
struct Marks {
    begin: AtomicU8,
    _apart: [u8; 4095],
    end: AtomicU8,
}

static MARKS: Marks = Marks { begin: AtomicU8::new(0), _apart: [0; 4095], end: AtomicU8::new(0) };

pub async fn run_observe(args: ObserveArgs) -> Result<ExitCode> {
    let workload = Workload::by_name("tpch", args.sf)?;
    let queries = workload.select_queries(&args.queries)?;
    let (database, engine) = open(&args)?;
    if database.version().tables.is_empty() {
        load::load(&engine, &workload, args.threads).await?;
        let mut connection = engine.connect().await?;
        for table in &workload.tables {
            connection.query(&format!("ALTER TABLE {} SET TABLESPACE far", table.name)).await?;
        }
        database.checkpoint()?;
    }
    if args.prepare {
        return Ok(ExitCode::SUCCESS);
    }
    let mut connection = engine.connect().await?;
    connection.query(&format!("SET temp_tablespaces = '{WORK}'")).await?;
    // What is made on first use is not the query's.
    for query in &queries {
        connection.query(query.sql).await?;
    }
    if let Some(path) = &args.setup {
        meet(&database, path)?;
    }
    let mut accounts = Vec::new();
    for query in &queries {
        let before = counters(&database)?;
        MARKS.begin.store(1, Ordering::SeqCst);
        let rows = connection.query(query.sql).await?;
        MARKS.end.store(1, Ordering::SeqCst);
        drop(rows);
        let after = counters(&database)?;
        let [main, heap] = [0, 1].map(|index| Accounted {
            bytes_asked: asked(&after[index]) - asked(&before[index]),
            link_bytes_read: after[index].link_bytes_read - before[index].link_bytes_read,
            link_bytes_written: after[index].link_bytes_written - before[index].link_bytes_written,
        });
        say(format!("{}: ran", query.name));
        accounts.push(Account { query: query.name.clone(), main, heap });
    }
    let text = serde_json::to_string_pretty(&accounts)
        .map_err(|error| Error::internal(format!("could not write the account: {error}")))?;
    match &args.json {
        Some(path) => write(path, &text)?,
        None => println!("{text}"),
    }
    Ok(ExitCode::SUCCESS)
}

fn open(args: &ObserveArgs) -> Result<(Arc<Database>, Engine)> {
    let local = Profile::preset(LOCAL_DRAM)?;
    let mut config = ConfigBuilder::new().data_dir(Some(args.data.clone())).build()?;
    config.threads = crate::cli::threads(Some(args.threads))?;
    config.last_level_cache_bytes = Some(args.last_level_cache.0);
    config.far.profile = Some(local.clone());
    config.far.profiles.clear();
    let work = TablespaceConfig { name: WORK.to_owned(), location: Location::Anon, ..config.far.clone() };
    config.tablespaces.push(work);
    let database = Database::open(config)?;
    let planner = Planner::new(database.clone())?;
    Ok((database.clone(), Engine::Tidepool { database, planner, datafusion_only: args.datafusion }))
}

fn asked(counters: &PacingCounters) -> u64 {
    counters.bytes_read + counters.bytes_written
}

/// Of main and of the heap.
fn counters(database: &Database) -> Result<[PacingCounters; 2]> {
    let of = |name: &str| {
        let space = database.tablespaces().get(name)?;
        Ok(space.pacer().map(|pacer| pacer.counters()).unwrap_or_default())
    };
    Ok([of("far")?, of(WORK)?])
}

/// Tells the witness what to watch for, and waits until it has read that.
fn meet(database: &Database, path: &Path) -> Result<()> {
    let address = |mark: &AtomicU8| (mark as *const AtomicU8).addr();
    let mut text = format!("begin {:x}\nend {:x}\n", address(&MARKS.begin), address(&MARKS.end));
    for (name, tablespace) in [("main", "far"), ("heap", WORK)] {
        let range = database.tablespaces().get(tablespace)?.address_range();
        text += &format!("range {name} {:x} {:x}\n", range.start, range.end);
    }
    let unfinished = path.with_extension("unfinished");
    write(&unfinished, &text)?;
    std::fs::rename(&unfinished, path).map_err(|error| Error::io(format!("write \"{}\"", path.display()), &error))?;
    let mut seen = path.as_os_str().to_owned();
    seen.push(".seen");
    while !Path::new(&seen).exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|error| Error::io(format!("write \"{}\"", path.display()), &error))
}
