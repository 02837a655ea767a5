//! A process that commits and acknowledges over a pipe, on real files, is killed: at random moments with SIGKILL, and at every
//! crash point. Then the log must hold all that was acknowledged, of each thread a beginning of what it appended, and nothing
//! else; and another process goes on with it.
//!
//! `TIDEPOOL_STRESS_SECONDS=300 TIDEPOOL_STRESS_SEED=7 cargo test --release -p tidepool-log --test kill -- --nocapture`

mod common;

use common::{IDENTITY, never};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidepool_base::{CRASH_POINT_VARIABLE, CommitTs};
use tidepool_log::files::{OpenHow, SystemFiles};
use tidepool_log::{CRASH_POINTS, FileDevice, Log, LogConfig, LogDevice, RecordKind};

const FOLDER_VARIABLE: &str = "TIDEPOOL_TEST_LOG_FOLDER";
const THREADS: usize = 3;
const SEGMENT_BYTES: usize = 128 << 10;
/// A child that has acknowledged so many is killed, though it did not come by its crash point: whether segments are renamed
/// or removed is a matter of time.
const LINES_MAX: u64 = 5000;

fn device(folder: &Path) -> Arc<dyn LogDevice> {
    Arc::new(FileDevice::open(Arc::new(SystemFiles), folder, SEGMENT_BYTES, OpenHow::default()).unwrap())
}

/// With much to be kept segments are renamed, with little they are removed.
fn config() -> LogConfig {
    let renames = std::env::var(CRASH_POINT_VARIABLE).is_ok_and(|point| point.contains("renamed"));
    let segments = if renames { 40 } else { 2 };
    LogConfig { bytes_min: segments * SEGMENT_BYTES as u64, ..LogConfig::new(IDENTITY) }
}

/// A record says who wrote it, and as which of its own.
fn payload(thread: u64, number: u64, ts: u64) -> Vec<u8> {
    let len = 24 + (ts * 131 % 700) as usize + if ts.is_multiple_of(50) { 70_000 } else { 0 };
    let mut bytes: Vec<u8> = (0..len).map(|index| (index as u64 ^ ts) as u8).collect();
    bytes[..8].copy_from_slice(&thread.to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Not a test: what the other test starts and kills.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER_VARIABLE) else { return };
    let slots: Arc<Vec<AtomicU64>> = Arc::new((0..THREADS).map(|_| AtomicU64::new(0)).collect());
    let mut recovery = Log::open(device(Path::new(&folder)), config()).unwrap();
    while recovery.next_record().unwrap().is_some() {}
    let clock = Arc::new(AtomicU64::new(recovery.ts_max().0 + 1));
    let floor = {
        let (slots, clock) = (slots.clone(), clock.clone());
        move || {
            let now = clock.load(Ordering::SeqCst) - 1;
            let bounds = slots.iter().map(|slot| slot.load(Ordering::SeqCst)).filter(|bound| *bound > 0);
            CommitTs(bounds.map(|bound| bound - 1).fold(now, u64::min))
        }
    };
    let log = recovery.into_log(Box::new(floor)).unwrap();
    // Past the capture of tests' output, a line at a time.
    let say = |line: String| std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
    say("\n".into());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (log, slots, clock) = (&log, &slots, &clock);
            scope.spawn(move || {
                let mut appender = log.appender().unwrap();
                for number in 0.. {
                    appender.reserve(80_000, &never).unwrap();
                    slots[thread].swap(clock.load(Ordering::SeqCst), Ordering::SeqCst);
                    let ts = clock.fetch_add(1, Ordering::SeqCst);
                    appender.append(CommitTs(ts), RecordKind(1), &payload(thread as u64, number, ts));
                    slots[thread].store(0, Ordering::Release);
                    if !number.is_multiple_of(4) {
                        log.wait_durable(CommitTs(ts), never).unwrap();
                        say(format!("ack {ts}\n"));
                    }
                    if thread == 0 && number % 40 == 39 {
                        let checkpoint = log.durable();
                        say(format!("checkpoint {checkpoint}\n"));
                        log.recycle_below(checkpoint).unwrap();
                        // Now and then a segment is made ahead, now and then in the midst of a commit.
                        if number % 80 == 79 {
                            log.prepare().unwrap();
                        }
                    }
                }
            });
        }
    });
}

/// What is known of a log across its lives.
#[derive(Default)]
struct Known {
    acknowledged: BTreeSet<u64>,
    checkpoint: u64,
}

/// Runs a child until it is killed or kills itself. Returns whether it did that.
fn run(folder: &Path, known: &mut Known, crash: Option<&str>, lines: u64) -> bool {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture"]).env(FOLDER_VARIABLE, folder).env_remove(CRASH_POINT_VARIABLE);
    if let Some(crash) = crash {
        command.env(CRASH_POINT_VARIABLE, crash);
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    for (count, line) in output.lines().map_while(|line| line.ok()).enumerate() {
        match line.split_once(' ') {
            Some(("ack", ts)) => _ = known.acknowledged.insert(ts.parse().unwrap()),
            Some(("checkpoint", ts)) => known.checkpoint = ts.parse().unwrap(),
            _ => {}
        }
        if count as u64 == if crash.is_none() { lines } else { LINES_MAX } {
            // SIGKILL. What it still wrote into the pipe was acknowledged too.
            child.kill().unwrap();
        }
    }
    match child.wait().unwrap().signal() {
        Some(libc::SIGABRT) => true,
        Some(libc::SIGKILL) => false,
        other => panic!("the child ended otherwise: {other:?}"),
    }
}

/// Reads the log and compares it with what is known.
fn check(folder: &Path, known: &mut Known) {
    let mut recovery = Log::open(device(folder), config()).unwrap();
    recovery.skip_to(CommitTs(known.checkpoint));
    let mut found = BTreeSet::new();
    let mut numbers: BTreeMap<u64, u64> = BTreeMap::new();
    while let Some(mut record) = recovery.next_record().unwrap() {
        let ts = record.ts.0;
        let bytes = record.payload().unwrap().into_owned();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let (thread, number) = (word(0), word(8));
        assert!(bytes == payload(thread, number, ts), "record {ts}");
        assert!(found.insert(ts), "{ts} is there twice");
        // Without gaps, from wherever the checkpoint was, or from 0 for each new process.
        let before = numbers.insert(thread, number);
        assert!(
            before.is_none_or(|before| number == before + 1) || number == 0,
            "thread {thread} has a gap at {number}"
        );
    }
    for ts in known.acknowledged.range(known.checkpoint + 1..) {
        assert!(found.contains(ts), "{ts} was acknowledged and is gone");
    }
    known.acknowledged.extend(found);
}

#[test]
fn killed_processes_lose_nothing_that_they_acknowledged() {
    let seconds: Option<u64> = std::env::var("TIDEPOOL_STRESS_SECONDS").ok().and_then(|text| text.parse().ok());
    let seed: u64 = std::env::var("TIDEPOOL_STRESS_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let start = Instant::now();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let mut known = Known::default();
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = move |end: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % end
    };
    let mut died_at = BTreeSet::new();
    for round in 0.. {
        match seconds {
            Some(seconds) if start.elapsed() >= Duration::from_secs(seconds) => break,
            None if round == CRASH_POINTS.len() + 4 => break,
            _ => {}
        }
        // The first rounds visit every point once; then by chance.
        let point = match CRASH_POINTS.get(round) {
            Some(point) => Some((*point, 1 + below(3))),
            None if seconds.is_some() && below(2) == 0 => {
                Some((CRASH_POINTS[below(CRASH_POINTS.len() as u64) as usize], 1 + below(30)))
            }
            None => None,
        };
        let crash = point.map(|(point, count)| format!("{point}:{count}"));
        let is_aborted = run(&log, &mut known, crash.as_deref(), 5 + below(600));
        if let Some((point, _)) = point.filter(|_| is_aborted) {
            died_at.insert(point);
        }
        check(&log, &mut known);
    }
    println!("{} acknowledged; died at {died_at:?}", known.acknowledged.len());
    assert!(known.acknowledged.len() > 20);
    assert_eq!(died_at.len(), CRASH_POINTS.len(), "nobody died at some points: {died_at:?}");
}
