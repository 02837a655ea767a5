//! A log on a simulated disk, by seeds: several appenders, records of all sizes, spills that come to nothing, checkpoints, full
//! disks, failing disks; then the machine loses power, or the process is killed, or both go well. The log is opened again
//! and must hold every record that was acknowledged, of each appender a beginning of what it appended, each piece as it was
//! given, and nothing else. Then on with the same log.
//!
//! All in one thread, so that a seed is a history:
//! `TIDEPOOL_STRESS_SECONDS=300 TIDEPOOL_STRESS_SEED=7 cargo test --release -p tidepool-log --test simulation -- --nocapture`

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tidepool_base::{CommitTs, Result, SqlState};
use tidepool_log::files::{Fault, OpenHow, Operation, SimulatedFiles};
use tidepool_log::{Appender, DatabaseIdentity, FileDevice, Log, LogConfig, LogEnd, RecordKind};

const SEGMENT_BYTES: usize = 160 << 10;
const IDENTITY: DatabaseIdentity = DatabaseIdentity([3; 16]);

fn never() -> Result<()> {
    Ok(())
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn size(&mut self) -> usize {
        let scale = match self.below(100) {
            0..5 => 1,
            5..80 => 400,
            80..95 => 5_000,
            95..99 => 40_000,
            _ => 100_000,
        };
        self.below(scale) as usize
    }
}

fn bytes_of(number: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|index| (number.wrapping_mul(31) ^ (index * 7) ^ (index >> 8)) as u8).collect()
}

/// What an appender does at the moment.
#[derive(Default)]
struct Worker {
    appender: Option<Appender>,
    /// Timestamps in the order in which they were appended.
    appended: Vec<u64>,
    /// Drawn, not appended.
    drawn: Option<(u64, Vec<u8>)>,
    pieces: Vec<Vec<u8>>,
}

struct World {
    random: Random,
    files: SimulatedFiles,
    direct: bool,
    clock: u64,
    floor: Arc<AtomicU64>,
    /// All that was ever appended, by timestamp.
    records: BTreeMap<u64, Vec<Vec<u8>>>,
    /// What must be there.
    acknowledged: BTreeSet<u64>,
    checkpoint: u64,
    trace: bool,
    /// How often things happened, over all lives.
    seen: BTreeMap<&'static str, u64>,
}

impl World {
    fn new(seed: u64) -> World {
        World {
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            files: SimulatedFiles::new(seed),
            direct: seed.is_multiple_of(3),
            clock: 0,
            floor: Arc::new(AtomicU64::new(0)),
            records: BTreeMap::new(),
            acknowledged: BTreeSet::new(),
            checkpoint: 0,
            trace: std::env::var_os("TIDEPOOL_TRACE").is_some(),
            seen: BTreeMap::new(),
        }
    }

    fn note(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
        if self.trace {
            println!("{what} at {}", self.clock);
        }
    }

    fn config(&mut self) -> LogConfig {
        let mut config = LogConfig::new(IDENTITY);
        config.room_wait = Duration::ZERO;
        config.bytes_max = 4 * SEGMENT_BYTES as u64;
        config.bytes_min = self.random.below(4) * SEGMENT_BYTES as u64;
        config.buffer_bytes_max = 64 << 10;
        config.block_bytes_max = 1 << (9 + self.random.below(12));
        config
    }

    fn device(&self) -> Result<FileDevice> {
        let how = OpenHow { direct: self.direct };
        FileDevice::open(Arc::new(self.files.clone()), Path::new("/log"), SEGMENT_BYTES, how)
    }

    /// Reads the log, compares it with what should be there, and opens it.
    fn open(&mut self, workers: &[Worker]) -> Result<Arc<Log>> {
        let mut recovery = Log::open(Arc::new(self.device()?), self.config())?;
        recovery.skip_to(CommitTs(self.checkpoint));
        let mut found = BTreeSet::new();
        while let Some(mut record) = recovery.next_record()? {
            let ts = record.ts.0;
            assert!(ts > self.checkpoint);
            let expected = self.records.get(&ts).unwrap_or_else(|| panic!("nobody appended {ts}"));
            assert_eq!(record.kind, RecordKind(ts as u8));
            if ts % 2 == 0 {
                assert!(*record.payload()? == expected.concat(), "the payload of {ts}");
            } else {
                let mut pieces = expected.iter();
                while let Some(piece) = record.next_piece()? {
                    assert!(pieces.next().is_some_and(|expected| *expected == piece), "a piece of {ts}");
                }
                assert!(pieces.all(|piece| piece.is_empty()), "pieces of {ts} are missing");
            }
            assert!(found.insert(ts), "{ts} is there twice");
        }
        match recovery.tail() {
            Some(LogEnd::Torn(_)) => self.note("torn tail"),
            Some(LogEnd::Clean(_)) => self.note("clean tail"),
            None => panic!("the log has no end"),
        }
        for ts in self.acknowledged.range(self.checkpoint + 1..) {
            assert!(found.contains(ts), "{ts} was acknowledged and is gone");
        }
        for worker in workers {
            let mut is_gone = false;
            for ts in worker.appended.iter().filter(|ts| **ts > self.checkpoint) {
                is_gone |= !found.contains(ts);
                assert!(!is_gone || !found.contains(ts), "{ts} is there without one that came before it");
            }
        }
        let floor = self.floor.clone();
        let log = recovery.into_log(Box::new(move || CommitTs(floor.load(Ordering::Acquire))))?;
        // Whoever opens the log relies on what it read.
        self.records.retain(|ts, _| found.contains(ts));
        self.acknowledged = found;
        Ok(log)
    }

    fn set_floor(&self, workers: &[Worker]) {
        let drawn = workers.iter().filter_map(|worker| worker.drawn.as_ref().map(|(ts, _)| ts - 1)).min();
        self.floor.store(drawn.unwrap_or(self.clock), Ordering::Release);
    }

    fn acknowledge(&mut self, log: &Log) {
        let durable = log.durable().0;
        self.acknowledged.extend(self.records.range(..=durable).map(|(ts, _)| *ts));
    }

    /// One life of the log. False: it failed.
    fn live(&mut self, log: &Arc<Log>, workers: &mut [Worker]) -> bool {
        for worker in workers.iter_mut() {
            *worker = Worker { appender: Some(log.appender().unwrap()), ..Worker::default() };
        }
        for _ in 0..self.random.below(400) {
            let which = self.random.below(workers.len() as u64) as usize;
            let outcome = match self.random.below(100) {
                0..70 => self.work(&mut workers[which]),
                70..75 => {
                    self.note("flush");
                    log.flush()
                }
                75..95 => {
                    let ts = CommitTs(self.floor.load(Ordering::Relaxed));
                    let durable = log.durable();
                    let waited = log.wait_durable(ts, never);
                    if waited.is_ok() && durable < ts {
                        self.note("wait");
                        assert!(log.durable() >= ts);
                    }
                    waited
                }
                95..98 => {
                    // A checkpoint of what is durable; its own storage is not what is tested here.
                    let durable = log.durable().0;
                    if durable > self.checkpoint {
                        self.checkpoint += self.random.below(durable - self.checkpoint + 1);
                    }
                    self.note("checkpoint");
                    log.recycle_below(CommitTs(self.checkpoint)).map(|count| {
                        if count > 0 {
                            self.note("recycling");
                        }
                    })
                }
                98 => {
                    let used = self.files.used_bytes();
                    match self.random.one_in(2) {
                        true => self.files.set_capacity(used + self.random.below(3 * SEGMENT_BYTES as u64)),
                        false => self.files.set_capacity(u64::MAX),
                    }
                    log.prepare()
                }
                _ => {
                    let operations = [Operation::Sync, Operation::Write, Operation::Rename, Operation::SyncFolder];
                    let operation = operations[self.random.below(4) as usize];
                    let times = if self.random.one_in(2) { 1 } else { u64::MAX };
                    let after = self.random.below(5);
                    if self.random.one_in(4) {
                        self.files.inject(Fault { operation, after, times, errno: libc::EIO });
                    }
                    Ok(())
                }
            };
            self.set_floor(workers);
            self.acknowledge(log);
            if let Err(error) = outcome {
                match error.code() {
                    SqlState::DISK_FULL => self.note("full"),
                    SqlState::IO_ERROR if log.failure().is_some() => {
                        self.note("failed");
                        // From here on nothing is acknowledged.
                        let durable = log.durable();
                        assert_eq!(log.flush().unwrap_err().code(), SqlState::IO_ERROR);
                        let next = CommitTs(durable.0 + 1);
                        assert_eq!(log.wait_durable(next, never).unwrap_err().code(), SqlState::IO_ERROR);
                        assert_eq!(log.durable(), durable);
                        return false;
                    }
                    SqlState::IO_ERROR => self.note("upkeep failed"),
                    _ => panic!("{error:?}"),
                }
            }
        }
        true
    }

    fn work(&mut self, worker: &mut Worker) -> Result<()> {
        let appender = worker.appender.as_mut().unwrap();
        if let Some((ts, payload)) = worker.drawn.take() {
            appender.append(CommitTs(ts), RecordKind(ts as u8), &payload);
            let mut pieces = std::mem::take(&mut worker.pieces);
            pieces.push(payload);
            self.records.insert(ts, pieces);
            worker.appended.push(ts);
            return Ok(());
        }
        if self.random.one_in(12) && worker.pieces.len() < 6 {
            let piece = bytes_of(self.random.0, self.random.size());
            let spilled = appender.spill(&piece, &never);
            worker.pieces.push(piece);
            self.note("spill");
            if spilled.is_err() {
                self.files.set_capacity(u64::MAX);
                worker.appender.as_mut().unwrap().abandon();
                worker.pieces.clear();
            }
            return spilled;
        }
        if !worker.pieces.is_empty() && self.random.one_in(5) {
            self.note("abandon");
            appender.abandon();
            worker.pieces.clear();
            return Ok(());
        }
        let len = self.random.size();
        if let Err(error) = appender.reserve(len, &never) {
            appender.abandon();
            worker.pieces.clear();
            return Err(error);
        }
        self.clock += 1;
        worker.drawn = Some((self.clock, bytes_of(self.clock, len)));
        Ok(())
    }

    /// Lives and deaths.
    fn history(&mut self) {
        let mut workers: Vec<Worker> = Vec::new();
        for _ in 0..8 {
            self.files.set_unsteady(self.random.one_in(2));
            let log = match self.open(&workers) {
                Ok(log) => log,
                Err(error) => {
                    // Faults of the disk may still be there, or a crash came while it was opened.
                    assert_eq!(error.code(), SqlState::IO_ERROR, "{error:?}");
                    self.note("not opened");
                    self.files.clear_faults();
                    self.files.kill();
                    if self.random.one_in(2) {
                        self.files.crash();
                    }
                    continue;
                }
            };
            workers.clear();
            workers.resize_with(1 + self.random.below(4) as usize, Worker::default);
            self.set_floor(&workers);
            let is_well = self.live(&log, &mut workers);
            self.acknowledge(&log);
            self.files.set_capacity(u64::MAX);
            if self.random.one_in(3) {
                self.files.clear_faults();
            }
            let end = self.random.below(3);
            if end == 0 {
                self.note("power loss");
                self.files.crash();
            } else if end == 1 {
                self.note("kill");
                self.files.kill();
            } else if is_well {
                self.note("shut down");
                // Nothing more is drawn; what was is appended.
                for worker in &mut workers {
                    if let Some((ts, payload)) = worker.drawn.take() {
                        let appender = worker.appender.as_mut().unwrap();
                        appender.append(CommitTs(ts), RecordKind(ts as u8), &payload);
                        let mut pieces = std::mem::take(&mut worker.pieces);
                        pieces.push(payload);
                        self.records.insert(ts, pieces);
                        worker.appended.push(ts);
                    }
                }
                self.set_floor(&workers);
                if log.flush().is_ok() {
                    self.acknowledge(&log);
                }
            }
            for worker in &mut workers {
                worker.appender = None;
            }
            drop(log);
        }
        self.files.clear_faults();
        self.files.kill();
        self.open(&workers).expect("nothing is in the way of opening it");
    }
}

fn seconds() -> Option<u64> {
    std::env::var("TIDEPOOL_STRESS_SECONDS").ok()?.parse().ok()
}

#[test]
fn histories() {
    let seed = std::env::var("TIDEPOOL_STRESS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1u64);
    let start = Instant::now();
    let seen = Mutex::new(BTreeMap::<&str, u64>::new());
    for history in 0.. {
        match seconds() {
            Some(seconds) if start.elapsed() >= Duration::from_secs(seconds) => break,
            None if history == 60 => break,
            _ => {}
        }
        let seed = seed + history;
        let result = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            world.history();
            world.seen
        });
        match result {
            Ok(counts) => {
                let mut seen = seen.lock().unwrap();
                counts.into_iter().for_each(|(what, count)| *seen.entry(what).or_default() += count);
            }
            Err(panic) => {
                eprintln!("seed {seed} failed: TIDEPOOL_STRESS_SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    let seen = seen.into_inner().unwrap();
    println!("{seen:?}");
    // What never happens tests nothing.
    for what in ["torn tail", "full", "failed", "recycling", "power loss", "kill", "spill", "abandon", "wait"] {
        assert!(seen.contains_key(what), "no history had: {what}");
    }
}
