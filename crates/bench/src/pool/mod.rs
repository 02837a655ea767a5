//! `tidepool bench pool`: what a pool's own operations cost, and that none of its words is lost, by processes that anybody can run.
//!
//! * A gigabyte goes from one running host to another, of the same database with its contents kept, and of another zeroed.
//! * The contents of a gigabyte that was published are compared.
//! * The books of a large pool are read through; then bits of them are turned, each of which has to be found.
//! * Four hosts lease, hand over and give back until it is a million times, and are killed at random.

mod child;

use crate::cli::BenchArgs;
use crate::machine::{self, Machine};
use crate::progress::Bar;
use crate::random::Random;
use serde::Serialize;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidepool_base::{ByteSize, Error, Result};
use tidepool_device::Location;
use tidepool_pool::check::{check, usage};
use tidepool_pool::liveness::Watcher;
use tidepool_pool::member::{JoinOptions, Member};
use tidepool_pool::pool::{CreateOptions, Pool};
use tidepool_pool::words::{Extent, Generation, Kind, Owner, Slot};

const EXTENT_BYTES: u64 = 2 << 20;
const HANDED_BYTES: u64 = 1 << 30;
/// What the pool may grow to whose books are read: they have the words of a pool of 20 GB, which by default has them for four
/// times its size. It is made small, as making a pool takes all of its memory.
const BOOKS_BYTES_MAX: u64 = 80 << 30;
const BOOKS_POOL_BYTES: u64 = 64 << 20;
const KILLS_POOL_BYTES: u64 = 128 << 20;
const HOSTS: usize = 4;

#[derive(Clone, Debug, clap::Args)]
pub struct PoolBenchArgs {
    /// pool: leases, returns and hand-overs by hosts that are killed
    #[arg(long, default_value_t = 1_000_000)]
    pub operations: u64,
    /// pool: bits of the books that are turned
    #[arg(long, default_value_t = 10_000)]
    pub faults: u64,
    /// pool: seed of what is random
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// pool: be a host that another process tells what to do
    #[arg(long, hide = true)]
    pub host_mode: Option<String>,
}

/// What a run writes as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct PoolResult {
    pub schema: &'static str,
    pub tidepool_version: &'static str,
    pub machine: Machine,
    pub file_system: String,
    /// What was done, over how many bytes, in how many ms: of several turns the median.
    pub steps: Vec<Step>,
    pub books_words: u64,
    /// Of the pool whose books were read, for the first time and again.
    pub books_ms: [f64; 2],
    pub faults: u64,
    pub faults_found: u64,
    pub operations: u64,
    pub kills: u64,
    pub seconds: f64,
    /// Extents that nobody owns and that are not free, at the end.
    pub leaked: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Step {
    pub name: &'static str,
    pub bytes: u64,
    pub ms: f64,
}

/// A file that goes with this value.
struct Place(PathBuf);

impl Place {
    fn location(&self) -> Location {
        Location::File(self.0.clone())
    }

    fn pool(&self, bytes: u64, bytes_max: Option<u64>, populates: bool) -> Result<Arc<Pool>> {
        let options = CreateOptions {
            devices: vec![(self.location(), Some(bytes))],
            extent_bytes: Some(EXTENT_BYTES),
            bytes_max,
            label: "bench".to_owned(),
            populates,
            overcommits: false,
        };
        let pool = Arc::new(Pool::create(&options)?);
        let tool = Member::join(Arc::clone(&pool), &JoinOptions::tool("bench"))?;
        tool.create_database("a", 0)?;
        tool.create_database("b", 0)?;
        Ok(pool)
    }

    fn file(&self) -> Result<File> {
        let opened = OpenOptions::new().read(true).write(true).open(&self.0);
        opened.map_err(|error| Error::io("open the pool's file", &error))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub fn run_pool(args: &BenchArgs) -> Result<ExitCode> {
    let file = args.idle.pool_file.clone();
    let file = file.unwrap_or_else(|| PathBuf::from(format!("/dev/shm/tidepool-bench-{}", std::process::id())));
    if let Some(mode) = &args.pool.host_mode {
        child::run(&Location::File(file), mode)?;
        return Ok(ExitCode::SUCCESS);
    }
    let options = &args.pool;
    let mut result = PoolResult {
        schema: "tidepool-pool/1",
        tidepool_version: env!("CARGO_PKG_VERSION"),
        machine: machine::machine(),
        file_system: file_system(&file),
        steps: Vec::new(),
        books_words: 0,
        books_ms: [0.0; 2],
        faults: options.faults,
        faults_found: 0,
        operations: 0,
        kills: 0,
        seconds: 0.0,
        leaked: 0,
    };
    hand_over(&file, args.repeat, &mut result)?;
    books(&file, options, &mut result)?;
    kills(&file, options, &mut result)?;
    crate::show(args, &result, &markdown(&result))?;
    let is_right = result.faults_found == result.faults && result.leaked == 0;
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Where a file is to be: the mount's kind and options.
fn file_system(path: &Path) -> String {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let of = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let (Some(folder), Some(kind), Some(options)) = (fields.get(1), fields.get(2), fields.get(3)) else {
            return None;
        };
        path.starts_with(folder).then(|| (folder.len(), format!("{kind} ({options})")))
    };
    mounts.lines().filter_map(of).max().map_or_else(String::new, |(_, text)| text)
}

/// A host in a process of its own.
struct Host {
    process: Child,
    input: Option<ChildStdin>,
    lines: Option<std::io::Lines<BufReader<ChildStdout>>>,
    slot: Slot,
}

impl Host {
    fn start(file: &Path, mode: &str) -> Result<Host> {
        let program = std::env::current_exe().map_err(|error| Error::io("find this program", &error))?;
        let mut command = Command::new(program);
        command.args(["bench", "pool", "--host-mode", mode, "--pool-file"]).arg(file);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| Error::io("start a host", &error))?;
        let lines = process.stdout.take().map(|output| BufReader::new(output).lines());
        let input = process.stdin.take();
        let mut host = Host { process, input, lines, slot: Slot(0) };
        let line = host.line()?;
        let slot = line.strip_prefix("slot ").and_then(|slot| slot.parse().ok());
        host.slot = Slot(slot.ok_or_else(|| Error::internal(format!("a host says \"{line}\"")))?);
        Ok(host)
    }

    fn line(&mut self) -> Result<String> {
        match self.lines.as_mut().and_then(Iterator::next) {
            Some(Ok(line)) => Ok(line),
            _ => Err(Error::internal("a host has ended")),
        }
    }

    fn says(&mut self, wanted: &str) -> Result<()> {
        match self.line()? {
            line if line == wanted => Ok(()),
            line => Err(Error::internal(format!("a host says \"{line}\" and not \"{wanted}\""))),
        }
    }

    fn tell(&mut self) -> Result<()> {
        let Some(input) = &mut self.input else { return Ok(()) };
        input.write_all(b"\n").map_err(|error| Error::io("tell a host", &error))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    crate::result::quantile(&times, 0.5)
}

/// From this process to another, and the contents of what was published.
fn hand_over(file: &Path, turns: usize, result: &mut PoolResult) -> Result<()> {
    let place = Place(file.to_owned());
    let pool = place.pool(HANDED_BYTES + (32 << 20), None, true)?;
    let own = child::join(&pool, "own", "a")?;
    let count = (HANDED_BYTES / EXTENT_BYTES) as usize;
    let books = pool.books();
    let bytes = place.file()?;
    let offset = |extent: Extent| u64::from(extent.0) * EXTENT_BYTES;
    let hand = |database: &str, is_kept: bool| -> Result<Vec<f64>> {
        let mut host = Host::start(file, &format!("take:{database}:{count}"))?;
        let mut times = Vec::new();
        for _ in 0..=turns {
            let extents = own.lease(Kind::Heap, count)?;
            for extent in &extents {
                bytes.write_all_at(&extent.0.to_le_bytes(), offset(*extent) + 4096).map_err(written)?;
            }
            let started = Instant::now();
            extents.iter().try_for_each(|extent| own.hand(*extent, host.slot))?;
            for extent in &extents {
                let field = pool.layout().owner(*extent);
                while !matches!(pool.told(books.load(field))?, Owner::Private { by, .. } if by.slot == host.slot) {
                    std::hint::spin_loop();
                }
            }
            times.push(ms(started));
            host.says("taken")?;
            for extent in &extents {
                let mut found = [0; 4];
                bytes.read_exact_at(&mut found, offset(*extent) + 4096).map_err(written)?;
                if u32::from_le_bytes(found) != if is_kept { extent.0 } else { 0 } {
                    return Err(Error::internal(format!("extent {} holds something else", extent.0)));
                }
            }
            host.tell()?;
            host.says("returned")?;
        }
        Ok(times)
    };
    let kept = hand("a", true)?;
    let zeroed = hand("b", false)?;
    let mut step = |name, ms| result.steps.push(Step { name, bytes: HANDED_BYTES, ms });
    step("hand over to a host of the database, contents kept", median(kept[1..].to_vec()));
    step("hand over to another database's host, zeroed, first touched there", zeroed[0]);
    step("the same, page tables in place", median(zeroed[1..].to_vec()));
    let extents = own.lease(Kind::Main, count)?;
    let mut random = Random::new(1);
    let noise: Vec<u8> = (0..EXTENT_BYTES).map(|_| random.below(256) as u8).collect();
    for extent in &extents {
        bytes.write_all_at(&noise, offset(*extent)).map_err(written)?;
    }
    let started = Instant::now();
    extents.iter().try_for_each(|extent| own.publish(*extent, Generation(0)))?;
    step("publish, with checksums", ms(started));
    let mut deep = Vec::new();
    for _ in 0..turns.max(1) {
        let started = Instant::now();
        let report = check(&pool, true)?;
        deep.push(ms(started));
        if !report.is_clean() || report.compared_bytes != HANDED_BYTES {
            return Err(Error::internal(format!("the contents were not compared: {:?}", report.faults)));
        }
    }
    step("check --deep", median(deep));
    Ok(())
}

fn written(error: std::io::Error) -> Error {
    Error::io("write to the pool's file", &error)
}

/// The books of a large pool, and bits of them.
fn books(file: &Path, options: &PoolBenchArgs, result: &mut PoolResult) -> Result<()> {
    let place = Place(file.to_owned());
    drop(place.pool(BOOKS_POOL_BYTES, Some(BOOKS_BYTES_MAX), false)?);
    let pool = Pool::open(&place.location())?;
    for time in &mut result.books_ms {
        let started = Instant::now();
        let report = check(&pool, false)?;
        *time = ms(started);
        result.books_words = report.words;
        if !report.is_clean() || !report.remarks.is_empty() {
            return Err(Error::internal(format!("the books of a new pool are damaged: {:?}", report.faults)));
        }
    }
    let bytes = place.file()?;
    let bits = pool.layout().control_bytes() as u64 * 8;
    let mut random = Random::new(options.seed);
    let bar = Bar::new("faults", options.faults, "bits");
    for _ in 0..options.faults {
        let bit = random.below(bits);
        let (offset, mask) = (bit / 8, 1u8 << (bit % 8));
        let mut byte = [0];
        bytes.read_exact_at(&mut byte, offset).map_err(written)?;
        bytes.write_all_at(&[byte[0] ^ mask], offset).map_err(written)?;
        let report = check(&pool, false)?;
        result.faults_found += u64::from(!report.is_clean() || !report.remarks.is_empty());
        bytes.write_all_at(&byte, offset).map_err(written)?;
        bar.add(1);
    }
    Ok(())
}

/// Hosts that are killed while they lease, hand over and give back.
fn kills(file: &Path, options: &PoolBenchArgs, result: &mut PoolResult) -> Result<()> {
    let place = Place(file.to_owned());
    let pool = place.pool(KILLS_POOL_BYTES, None, true)?;
    let mut watcher = Watcher::new(Arc::clone(&pool));
    let mut random = Random::new(options.seed);
    let done = Arc::new(AtomicU64::new(0));
    let mut started = 0;
    let mut start = || -> Result<Host> {
        started += 1;
        // Zeroing for another database is most of what they do, so one of four is enough.
        let database = if started % HOSTS == 0 { "b" } else { "a" };
        let mut host = Host::start(file, &format!("work:{database}:{started}"))?;
        let (lines, done) = (host.lines.take(), Arc::clone(&done));
        std::thread::spawn(move || {
            let mut told = 0;
            for line in lines.into_iter().flatten().map_while(Result::ok) {
                let Some(number) = line.strip_prefix("done ").and_then(|number| number.parse::<u64>().ok()) else {
                    break;
                };
                done.fetch_add(number.saturating_sub(told), Ordering::Relaxed);
                told = number.max(told);
            }
        });
        Ok(host)
    };
    let began = Instant::now();
    let mut hosts = (0..HOSTS).map(|_| start()).collect::<Result<Vec<_>>>()?;
    let bar = Bar::new("leases, hand-overs and returns", options.operations, "operations");
    let mut shown = 0;
    while done.load(Ordering::Relaxed) < options.operations {
        std::thread::sleep(Duration::from_millis(20 + random.below(80)));
        let victim = random.below(HOSTS as u64) as usize;
        drop(hosts.remove(victim));
        result.kills += 1;
        watcher.bury_the_dead()?;
        hosts.push(start()?);
        let now = done.load(Ordering::Relaxed);
        bar.add(now - shown);
        shown = now;
    }
    result.kills += hosts.len() as u64;
    drop(hosts);
    result.seconds = began.elapsed().as_secs_f64();
    watcher.bury_the_dead()?;
    result.operations = done.load(Ordering::Relaxed);
    let report = check(&pool, false)?;
    if let Some(fault) = report.faults.first() {
        return Err(Error::internal(format!("the books are damaged: {fault}")));
    }
    let is_free = |key: &(&str, &str, Option<u8>)| matches!(key.0, "free" | "control");
    result.leaked = usage(&pool)?.into_iter().filter(|(key, _)| !is_free(key)).map(|(_, extents)| extents).sum();
    Ok(())
}

fn markdown(result: &PoolResult) -> String {
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = write(result, &mut text);
    text
}

fn write(result: &PoolResult, text: &mut String) -> std::fmt::Result {
    let machine = &result.machine;
    writeln!(text, "# A pool's own operations\n")?;
    writeln!(
        text,
        "By `tidepool bench pool`. Machine: {}, {} CPUs, {} GB, Linux {}. The pool's file is on {}.\n",
        machine.cpu,
        machine.cpus,
        machine.memory_bytes >> 30,
        machine.kernel,
        result.file_system,
    )?;
    writeln!(text, "| | ms | GB/s |")?;
    writeln!(text, "| --- | ---: | ---: |")?;
    for step in &result.steps {
        writeln!(
            text,
            "| {} of {} | {:.3} | {:.1} |",
            step.name,
            ByteSize(step.bytes),
            step.ms,
            step.bytes as f64 / step.ms / 1e6
        )?;
    }
    writeln!(
        text,
        "\nHand-overs are between two running processes, from the first swap until the receiver owns the last extent.\n\n\
         * The books of a pool that may grow to {}, as one of 20 GB may, have {} words. `pool check` reads them in **{:.1} ms**, and in {:.1} ms again. Of {} bits \
         that were turned in them, one at a time, **{}** were found.\n\
         * {HOSTS} hosts, of two databases, did **{}** leases, hand-overs and returns in {:.0} s, and {} were killed. **{}** \
         extents are lost.",
        ByteSize(BOOKS_BYTES_MAX),
        result.books_words,
        result.books_ms[0],
        result.books_ms[1],
        result.faults,
        result.faults_found,
        result.operations,
        result.seconds,
        result.kills,
        result.leaked,
    )
}
