//! What the log costs: nanoseconds to append a record of 200 bytes, on one thread and on two; commits a second and their
//! latency for 1, 2, 8 and 64 committers, on files and in memory, waiting for the device and not.
//!
//! `cargo run --release -p tidepool-log --example log_speed -- [FOLDER] [SECONDS] [DEVICE]`
//! where DEVICE is a part of a device's name below, to measure no others
//!
//! Committers draw timestamps as transactions do: a slot each, a lower bound, the clock, the record, the slot again.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use tidepool_base::{CommitTs, Result, TablespaceId};
use tidepool_device::Location;
use tidepool_log::files::{OpenHow, SystemFiles};
use tidepool_log::{DatabaseIdentity, FileDevice, Log, LogConfig, LogDevice, MemoryDevice, RecordKind};
use tidepool_tablespace::{Purpose, Tablespace, TablespaceConfig};

const PAYLOAD: [u8; 200] = [7; 200];
const SEGMENT_BYTES: usize = 64 << 20;
const IDENTITY: DatabaseIdentity = DatabaseIdentity([1; 16]);
const SLOTS: usize = 64;
const LATENCIES_MAX: usize = 1 << 18;

/// Whose timestamp is drawn and not appended.
#[repr(align(128))]
#[derive(Default)]
struct Slot(AtomicU64);

struct Clock {
    start: Instant,
    slots: Vec<Slot>,
}

impl Clock {
    fn new() -> Arc<Clock> {
        Arc::new(Clock { start: Instant::now(), slots: (0..SLOTS).map(|_| Slot::default()).collect() })
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64 + 1
    }

    fn floor(&self) -> CommitTs {
        let now = self.now() - 1;
        std::sync::atomic::fence(Ordering::SeqCst);
        let bounds = self.slots.iter().map(|slot| slot.0.load(Ordering::SeqCst)).filter(|bound| *bound > 0);
        CommitTs(bounds.map(|bound| bound - 1).fold(now, u64::min))
    }
}

fn never() -> Result<()> {
    Ok(())
}

fn open(device: Arc<dyn LogDevice>) -> (Arc<Log>, Arc<Clock>) {
    let clock = Clock::new();
    let floor = clock.clone();
    let log = Log::open(device, LogConfig::new(IDENTITY))
        .and_then(|recovery| recovery.into_log(Box::new(move || floor.floor())))
        .expect("a log");
    (log, clock)
}

fn memory(location: Location, bytes: u64) -> Arc<dyn LogDevice> {
    let config = TablespaceConfig {
        name: "log".into(),
        location,
        size_bytes: Some(bytes + (4 << 20)),
        profile: None,
        profiles: Vec::new(),
        huge_pages: true,
        populate_bytes: 0,
    };
    let space = Tablespace::open(TablespaceId(0), config).expect("memory");
    let region_bytes = MemoryDevice::region_bytes(bytes, SEGMENT_BYTES);
    let mut region = space.allocate(region_bytes as usize, Purpose::Log).expect("memory");
    region.fill(0);
    Arc::new(MemoryDevice::create(region, SEGMENT_BYTES, IDENTITY).expect("a log"))
}

fn files(folder: &Path, direct: bool) -> Arc<dyn LogDevice> {
    let _ = std::fs::remove_dir_all(folder);
    let how = OpenHow { direct };
    Arc::new(FileDevice::open(Arc::new(SystemFiles), folder, SEGMENT_BYTES, how).expect("a folder"))
}

/// Least and median nanoseconds of an append, over many short runs on so many threads at once.
fn append_ns(threads: usize) -> (f64, f64) {
    const RUNS: usize = 200;
    const APPENDS: usize = 4000;
    let (log, clock) = open(memory(Location::Anon, 8 * SEGMENT_BYTES as u64));
    let barrier = Arc::new(Barrier::new(threads));
    let workers: Vec<_> = (0..threads)
        .map(|_| {
            let (log, clock, barrier) = (log.clone(), clock.clone(), barrier.clone());
            std::thread::spawn(move || {
                let mut appender = log.appender().expect("memory");
                let mut runs = Vec::new();
                for _ in 0..RUNS {
                    barrier.wait();
                    let ts = CommitTs(clock.now());
                    let start = Instant::now();
                    for _ in 0..APPENDS {
                        appender.reserve(PAYLOAD.len(), &never).expect("room");
                        appender.append(ts, RecordKind(1), &PAYLOAD);
                    }
                    runs.push(start.elapsed().as_nanos() as f64 / APPENDS as f64);
                    barrier.wait();
                    log.flush().expect("memory does not fail");
                    let _ = log.recycle_below(log.durable());
                }
                runs
            })
        })
        .collect();
    let mut runs: Vec<f64> = workers.into_iter().flat_map(|worker| worker.join().expect("no panic")).collect();
    runs.sort_by(f64::total_cmp);
    (runs[0], runs[runs.len() / 2])
}

/// Commits a second, and latencies in microseconds: median, 99 %.
fn commits(device: Arc<dyn LogDevice>, committers: usize, waits: bool, time: Duration) -> (f64, f64, f64) {
    let (log, clock) = open(device);
    let stop = Arc::new(AtomicBool::new(false));
    let barrier = Arc::new(Barrier::new(committers + 1));
    let workers: Vec<_> = (0..committers)
        .map(|slot| {
            let (log, clock, stop, barrier) = (log.clone(), clock.clone(), stop.clone(), barrier.clone());
            std::thread::spawn(move || {
                let mut appender = log.appender().expect("memory");
                let slot = &clock.slots[slot].0;
                let (mut count, mut latencies) = (0u64, Vec::with_capacity(LATENCIES_MAX));
                barrier.wait();
                while !stop.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    appender.reserve(PAYLOAD.len(), &never).expect("room");
                    let bound = clock.now();
                    slot.swap(bound, Ordering::SeqCst);
                    let ts = CommitTs(clock.now().max(bound + 1));
                    appender.append(ts, RecordKind(1), &PAYLOAD);
                    slot.store(0, Ordering::Release);
                    if waits {
                        log.wait_durable(ts, never).expect("the device works");
                    }
                    // Enough for a median; the count goes on.
                    if latencies.len() < LATENCIES_MAX {
                        latencies.push(start.elapsed().as_nanos() as u64);
                    }
                    count += 1;
                }
                (count, latencies)
            })
        })
        .collect();
    // The owner's thread: what PostgreSQL's WAL writer and checkpointer do.
    let owner = {
        let (log, stop) = (log.clone(), stop.clone());
        std::thread::spawn(move || {
            let mut flushed = Instant::now();
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(20));
                log.prepare().expect("room");
                if flushed.elapsed() >= Duration::from_millis(200) {
                    log.flush().expect("the device works");
                    flushed = Instant::now();
                }
                if log.used_bytes() > 3 * SEGMENT_BYTES as u64 {
                    log.recycle_below(log.durable()).expect("the device works");
                }
            }
        })
    };
    barrier.wait();
    let start = Instant::now();
    std::thread::sleep(time);
    stop.store(true, Ordering::Relaxed);
    let results: Vec<(u64, Vec<u64>)> = workers.into_iter().map(|worker| worker.join().expect("no panic")).collect();
    let seconds = start.elapsed().as_secs_f64();
    owner.join().expect("no panic");
    let count: u64 = results.iter().map(|(count, _)| count).sum();
    let mut latencies: Vec<u64> = results.into_iter().flat_map(|(_, latencies)| latencies).collect();
    latencies.sort_unstable();
    let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize] as f64 / 1000.0;
    (count as f64 / seconds, at(0.5), at(0.99))
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from).join("tidepool-log-speed");
    let seconds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(2.0);
    let time = Duration::from_secs_f64(seconds);
    let only = arguments.next().unwrap_or_default();

    println!("append of {} bytes, ns (least, median of runs)", PAYLOAD.len());
    for threads in [1, 2] {
        let (least, median) = append_ns(threads);
        println!("  {threads} threads: {least:.1} {median:.1}");
    }

    let shm = std::env::temp_dir().join("tidepool-log-speed.memory");
    let shm = if Path::new("/dev/shm").is_dir() { "/dev/shm/tidepool-log-speed.memory".into() } else { shm };
    type Make = Box<dyn Fn() -> Arc<dyn LogDevice>>;
    let size = 8 * SEGMENT_BYTES as u64;
    let devices: Vec<(&str, Make)> = vec![
        (
            "file",
            Box::new({
                let folder = folder.clone();
                move || files(&folder, false)
            }),
        ),
        (
            "file, O_DIRECT",
            Box::new({
                let folder = folder.clone();
                move || files(&folder, true)
            }),
        ),
        ("memory, anon:", Box::new(move || memory(Location::Anon, size))),
        (
            "memory, file: on tmpfs",
            Box::new({
                let shm = shm.clone();
                move || memory(Location::File(shm.clone()), size)
            }),
        ),
    ];
    println!("device, waits, committers: commits a second; latency in µs, median, 99 %");
    for (name, make) in devices.iter().filter(|(name, _)| name.contains(&only)) {
        for waits in [true, false] {
            for committers in [1, 2, 8, 64] {
                let (rate, median, high) = commits(make(), committers, waits, time);
                let waits = if waits { "yes" } else { "no" };
                println!("{name:24} {waits:4} {committers:3}: {rate:12.0} {median:10.2} {high:10.2}");
            }
        }
    }
    let _ = std::fs::remove_dir_all(&folder);
    let _ = std::fs::remove_file(&shm);
}
