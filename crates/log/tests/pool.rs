//! A log in a pool, between processes: primaries that commit and acknowledge over a pipe are killed at random moments and at
//! every crash point, or stopped and woken. Another process reads their log meanwhile, takes over, and has all that was
//! acknowledged, and nothing behind the seal.
//!
//! `TIDEPOOL_STRESS_SECONDS=300 TIDEPOOL_STRESS_SEED=7 cargo test --release -p tidepool-log --test pool -- --nocapture`

mod common;

use common::{Clock, IDENTITY, Random, config, never};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tidepool_base::{CRASH_POINT_VARIABLE, CommitTs, Result, SqlState};
use tidepool_device::Location;
use tidepool_log::files::{Fault, OpenHow, Operation, SimulatedFiles, SystemFiles};
use tidepool_log::{
    FileDevice, FileSource, LogDevice, Next, POOL_CRASH_POINTS, PoolSource, PoolTail, Primary, RecordKind, Source,
    Tail, TakeOver, Tee, TeeWriter,
};
use tidepool_pool::liveness::Watcher;
use tidepool_pool::member::{JoinOptions, Member};
use tidepool_pool::pool::{CreateOptions, Pool};
use tidepool_pool::words::{End, Role, Term};

const POOL_VARIABLE: &str = "TIDEPOOL_TEST_LOG_POOL";
const TEE_VARIABLE: &str = "TIDEPOOL_TEST_LOG_TEE";
/// What a checkpoint has: of records up to there the log may have no more than the end.
const AFTER_VARIABLE: &str = "TIDEPOOL_TEST_LOG_AFTER";
/// Commits for each byte of a child's input.
const PACE: u64 = 16;
const EXTENTS: u64 = 64;
const EXTENT_BYTES: usize = 2 << 20;

type Records = BTreeMap<u64, Vec<u8>>;

fn location(path: &Path) -> Location {
    Location::File(path.to_owned())
}

struct Place {
    folder: tempfile::TempDir,
    path: PathBuf,
}

/// A pool with database `a`.
fn place() -> Place {
    place_of(EXTENTS)
}

fn place_of(extents: u64) -> Place {
    place_after(extents, Term(0))
}

fn place_after(extents: u64, term: Term) -> Place {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool");
    let pool = Pool::create(&CreateOptions {
        devices: vec![(location(&path), Some(extents * EXTENT_BYTES as u64))],
        extent_bytes: None,
        bytes_max: None,
        label: String::new(),
        populates: false,
        overcommits: false,
    });
    Member::join(Arc::new(pool.unwrap()), &JoinOptions::tool("test"))
        .unwrap()
        .create_database_after("a", 0, term)
        .unwrap();
    Place { folder, path }
}

fn join(path: &Path, name: &str) -> Arc<Member> {
    let options = JoinOptions { role: Role::Standby, database: Some("a".to_owned()), ..JoinOptions::tool(name) };
    Arc::new(Member::join(Arc::new(Pool::open(&location(path)).unwrap()), &options).unwrap())
}

fn attach(member: &Arc<Member>) -> PoolTail {
    let after = std::env::var(AFTER_VARIABLE).map_or(0, |ts| ts.parse().unwrap());
    attach_after(member, after)
}

fn attach_after(member: &Arc<Member>, after: u64) -> PoolTail {
    PoolTail::attach(member.clone(), IDENTITY, None, CommitTs(after)).unwrap()
}

fn files(folder: &Path) -> FileSource {
    FileSource::open(Arc::new(SystemFiles), folder, EXTENT_BYTES, IDENTITY).unwrap()
}

fn payload(ts: u64, writer: u64) -> Vec<u8> {
    let len = 16 + (ts * 131 % 3_000) as usize + if ts.is_multiple_of(50) { 90_000 } else { 0 };
    let mut bytes: Vec<u8> = (0..len).map(|index| (index as u64 ^ ts) as u8).collect();
    bytes[..8].copy_from_slice(&ts.to_le_bytes());
    bytes[8..16].copy_from_slice(&writer.to_le_bytes());
    bytes
}

/// Takes a batch's records. They come in the order of their timestamps, above all that came before, whole.
fn take<S: Source>(tail: &mut Tail<S>, batch: tidepool_log::Batch, records: &mut Records) {
    for record in batch.records {
        let bytes = tail.payload_of(&record).unwrap();
        let writer = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
        assert!(bytes == payload(record.ts.0, writer), "record {}", record.ts);
        assert!(records.last_key_value().is_none_or(|(last, _)| *last < record.ts.0), "{} comes late", record.ts);
        assert!(record.ts <= batch.floor);
        records.insert(record.ts.0, bytes);
    }
}

/// Reads as far as it goes now.
fn read_on<S: Source>(tail: &mut Tail<S>, records: &mut Records) {
    while let Next::Batch(batch) = tail.read().unwrap() {
        take(tail, batch, records);
    }
}

/// Becomes primary, with what is in the log beside `records`.
fn promote(tail: PoolTail, records: &mut Records) -> Result<(Primary, Clock)> {
    let mut taking = TakeOver::begin(tail)?;
    while let Some(batch) = taking.next_batch()? {
        take(taking.tail(), batch, records);
    }
    let clock = Clock::default();
    clock.set(taking.tail().ts_max());
    Ok((taking.into_log(config(), clock.floor())?, clock))
}

fn commit(primary: &Primary, clock: &Clock, records: &mut Records, count: u64) -> Result<()> {
    let mut appender = primary.log.appender()?;
    for _ in 0..count {
        let bytes = payload(clock.now().0 + 1, primary.reign.term.0.into());
        let ts = clock.commit(&mut appender, &bytes)?;
        primary.log.wait_durable(ts, never)?;
        records.insert(ts.0, bytes);
    }
    Ok(())
}

/// Not a test: what the others start, stop and kill.
#[test]
fn child() {
    let Some(path) = std::env::var_os(POOL_VARIABLE) else { return };
    let say = |line: String| std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
    say("\n".into());
    let member = join(Path::new(&path), "child");
    let tee = std::env::var_os(TEE_VARIABLE);
    match work(&member, tee.as_deref().map(Path::new), &say) {
        Err(error) if error.code() == SqlState::CRASH_SHUTDOWN => say(format!("lost {}\n", error.message())),
        other => panic!("{other:?}"),
    }
}

fn work(member: &Arc<Member>, folder: Option<&Path>, say: &dyn Fn(String)) -> Result<()> {
    let mut taking = TakeOver::begin(attach(member))?;
    while let Some(batch) = taking.next_batch()? {
        take(taking.tail(), batch, &mut Records::new());
    }
    let clock = Clock::default();
    clock.set(taking.tail().ts_max());
    let primary = taking.into_log(config(), clock.floor())?;
    let term = u64::from(primary.reign.term.0);
    say(format!("primary {term}\n"));
    let tee = folder
        .map(|folder| {
            let source = PoolSource::new(member.clone());
            let from = source.oldest(IDENTITY)?;
            let from = from.or(primary.needed_from(CommitTs(0))?);
            TeeWriter::start(Tee::open(source, files(folder), from)?, primary.device.kept_from())
        })
        .transpose()?;
    let mut appender = primary.log.appender()?;
    for number in 1u64.. {
        let ts = clock.commit(&mut appender, &payload(clock.now().0 + 1, term))?;
        primary.log.wait_durable(ts, never)?;
        if let Some(tee) = tee.as_ref().filter(|_| number.is_multiple_of(3)) {
            tee.wait(ts, never)?;
            say(format!("on {ts}\n"));
        }
        say(format!("ack {ts}\n"));
        // No faster than it is read, so that the pool is not full before. At the input's end it may go on.
        if folder.is_none() && number.is_multiple_of(PACE) {
            let _ = std::io::stdin().read(&mut [0]);
        }
        if folder.is_some() && number.is_multiple_of(200) {
            let checkpoint = primary.log.durable();
            say(format!("checkpoint {checkpoint}\n"));
            primary.log.recycle_below(checkpoint)?;
        }
        if number.is_multiple_of(40) {
            primary.log.prepare()?;
        }
    }
    Ok(())
}

struct Running {
    child: Child,
    lines: Receiver<String>,
}

fn start(place: &Place, crash: Option<&str>, tee: Option<&Path>) -> Running {
    start_after(place, crash, tee, 0)
}

fn start_after(place: &Place, crash: Option<&str>, tee: Option<&Path>, after: u64) -> Running {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture"]).env(POOL_VARIABLE, &place.path).env_remove(CRASH_POINT_VARIABLE);
    command.env(AFTER_VARIABLE, after.to_string());
    if let Some(crash) = crash {
        command.env(CRASH_POINT_VARIABLE, crash);
    }
    if let Some(tee) = tee {
        command.env(TEE_VARIABLE, tee);
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in output.lines().map_while(|line| line.ok()) {
            // Nobody may want the rest.
            let _ = sender.send(line);
        }
    });
    Running { child, lines }
}

#[derive(Default)]
struct Told {
    acknowledged: Vec<u64>,
    /// Told as being in files.
    on: Vec<u64>,
    checkpoint: u64,
    is_lost: bool,
}

impl Told {
    fn hear(&mut self, line: &str) {
        match line.split_once(' ') {
            Some(("ack", ts)) => self.acknowledged.push(ts.parse().unwrap()),
            Some(("on", ts)) => self.on.push(ts.parse().unwrap()),
            Some(("checkpoint", ts)) => self.checkpoint = ts.parse().unwrap(),
            Some(("lost", _)) => self.is_lost = true,
            _ => {}
        }
    }
}

impl Running {
    /// Hears until so many were acknowledged, and reads the log meanwhile. False: it ended before.
    fn hear(&self, told: &mut Told, count: usize, tail: &mut PoolTail, records: &mut Records) -> bool {
        while told.acknowledged.len() < count {
            read_on(tail, records);
            match self.lines.recv_timeout(Duration::from_millis(1)) {
                Ok(line) => {
                    told.hear(&line);
                    if line.starts_with("ack") && (told.acknowledged.len() as u64).is_multiple_of(PACE) {
                        // Of one that has ended, the next line tells.
                        let _ = self.child.stdin.as_ref().map(|mut input| input.write_all(&[1]));
                    }
                }
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// What it said until its end.
    fn end(mut self, told: &mut Told) -> Option<i32> {
        let status = self.child.wait().unwrap();
        self.lines.iter().for_each(|line| told.hear(&line));
        status.signal()
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a plain call, for a child that was not waited for yet.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }
}

fn seed() -> u64 {
    std::env::var("TIDEPOOL_STRESS_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

#[test]
fn a_reader_has_a_killed_primarys_log_up_to_the_seal() {
    let place = place();
    let member = join(&place.path, "reader");
    let mut records = Records::new();
    let mut tail = attach(&member);
    for round in 0..4 {
        let running = start(&place, None, None);
        let mut told = Told::default();
        assert!(running.hear(&mut told, 20 + (seed() as usize + round * 37) % 100, &mut tail, &mut records));
        running.signal(libc::SIGKILL);
        assert_eq!(running.end(&mut told), Some(libc::SIGKILL));
        let (primary, clock) = promote(tail, &mut records).unwrap();
        for ts in &told.acknowledged {
            assert!(records.contains_key(ts), "{ts} was acknowledged and is gone");
        }
        commit(&primary, &clock, &mut records, 30).unwrap();
        drop(primary);
        // From the first term on, as one that comes anew.
        tail = attach(&member);
        let mut again = Records::new();
        read_on(&mut tail, &mut again);
        assert!(again == records, "round {round}: {} and {}", again.len(), records.len());
        let ended = Term(member.reign().unwrap().term.0 - 1);
        let end = member.pool().told(member.pool().books().end_of(member.database(), ended)).unwrap();
        assert!(matches!(end, Some(End::At { .. })), "{end:?}");
    }
}

#[test]
fn a_stopped_primary_that_wakes_acknowledges_nothing() {
    let place = place();
    let member = join(&place.path, "reader");
    let mut records = Records::new();
    for round in 0..3 {
        let mut tail = attach(&member);
        let running = start(&place, None, None);
        let (mut told, mut seen) = (Told::default(), Records::new());
        assert!(running.hear(&mut told, 15 + round * 20, &mut tail, &mut seen));
        running.signal(libc::SIGSTOP);
        let (primary, clock) = promote(tail, &mut seen).unwrap();
        records = seen;
        commit(&primary, &clock, &mut records, 10).unwrap();
        running.signal(libc::SIGCONT);
        assert_eq!(running.end(&mut told), None, "it ends by itself");
        assert!(told.is_lost);
        for ts in &told.acknowledged {
            let writer = u64::from(primary.reign.term.0) - 1;
            assert!(records.get(ts) == Some(&payload(*ts, writer)), "{ts} was acknowledged and is gone");
        }
        commit(&primary, &clock, &mut records, 10).unwrap();
        drop(primary);
        let mut again = Records::new();
        read_on(&mut attach(&member), &mut again);
        assert!(again == records);
    }
    assert!(records.len() > 60);
}

#[test]
fn a_primary_that_dies_at_any_point_loses_nothing_in_either_tier() {
    let seconds: Option<u64> = std::env::var("TIDEPOOL_STRESS_SECONDS").ok().and_then(|text| text.parse().ok());
    let start_time = Instant::now();
    let place = place();
    let tee = place.folder.path().join("tee");
    let mut known = Records::new();
    let mut checkpoint = 0;
    for round in 0.. {
        match seconds {
            Some(seconds) if start_time.elapsed() >= Duration::from_secs(seconds) => break,
            None if round == POOL_CRASH_POINTS.len() => break,
            _ => {}
        }
        let point = POOL_CRASH_POINTS[round % POOL_CRASH_POINTS.len()];
        // The first time is another host's, or too early to tell anything.
        let times = if point.contains("tee.block") { 100 } else { 1 + round / POOL_CRASH_POINTS.len() % 2 };
        let running = start_after(&place, Some(&format!("{point}:{times}")), Some(&tee), checkpoint);
        let mut told = Told::default();
        while let Ok(line) = running.lines.recv() {
            told.hear(&line);
            // Whether a point comes by a second time is a matter of what was there before.
            if told.acknowledged.len() == 2000 {
                running.signal(libc::SIGKILL);
            }
        }
        let signal = running.end(&mut told);
        assert!(times > 1 || signal == Some(libc::SIGABRT), "{point}: {signal:?}");
        checkpoint = told.checkpoint.max(checkpoint);
        // Others find out that it is dead, so that what it had is free.
        let member = join(&place.path, "reader");
        Watcher::new(member.pool().clone()).bury_the_dead().unwrap();
        let mut tail = attach_after(&member, checkpoint);
        let mut found = Records::new();
        read_on(&mut tail, &mut found);
        let (primary, clock) = promote(tail, &mut found).unwrap();
        for ts in told.acknowledged.iter().filter(|ts| **ts > checkpoint) {
            assert!(found.contains_key(ts), "{point}: {ts} was acknowledged and is gone");
        }
        for (ts, bytes) in known.range(checkpoint + 1..) {
            assert!(found.get(ts) == Some(bytes), "{point}: {ts} has changed");
        }
        // The files have a beginning of it, and all that was said to be in them.
        let source = files(&tee);
        let mut in_files = Records::new();
        if let Some(oldest) = source.oldest().unwrap() {
            let mut tail = Tail::open(source, IDENTITY, Some(oldest));
            tail.skip_to(CommitTs(checkpoint));
            read_on(&mut tail, &mut in_files);
        }
        for (ts, bytes) in in_files.range(checkpoint + 1..) {
            assert!(found.get(ts) == Some(bytes), "{point}: {ts} is in the files alone");
        }
        for ts in told.on.iter().filter(|ts| **ts > checkpoint) {
            assert!(in_files.contains_key(ts), "{point}: {ts} is not in the files");
        }
        commit(&primary, &clock, &mut found, 5).unwrap();
        known = found;
    }
}

#[test]
fn segments_go_when_no_host_reads_them() {
    let place = place();
    let (first, second) = (join(&place.path, "primary"), join(&place.path, "reader"));
    let mut records = Records::new();
    let mut reader = attach(&second);
    let (primary, clock) = promote(attach(&first), &mut records).unwrap();
    commit(&primary, &clock, &mut records, 3000).unwrap();
    let used = |member: &Arc<Member>| {
        let usage = tidepool_pool::check::usage(member.pool()).unwrap();
        usage.iter().filter(|((_, kind, _), _)| *kind == "log").map(|(_, count)| count).sum::<u64>()
    };
    let full = used(&first);
    assert!(full >= 4, "{full}");
    assert!(primary.log.recycle_below(clock.now()).unwrap() > 0);
    assert_eq!(used(&first), full, "a host reads them");
    let mut found = Records::new();
    read_on(&mut reader, &mut found);
    assert!(found == records);
    second.need_log_from(reader.needed_from()).unwrap();
    commit(&primary, &clock, &mut records, 700).unwrap();
    primary.log.recycle_below(clock.now()).unwrap();
    assert!(used(&first) < full, "{} of {full} are left", used(&first));
    let needed = primary.needed_from(clock.now()).unwrap().unwrap();
    read_on(&mut reader, &mut found);
    assert!(found == records);
    // One that starts at the checkpoint, and has what comes after it all the same.
    let mut ahead = Tail::open(PoolSource::new(second.clone()), IDENTITY, Some(needed));
    ahead.skip_to(CommitTs(clock.now().0 + 7));
    while !matches!(ahead.read().unwrap(), Next::Nothing) {}
    assert_eq!(ahead.ts_max(), CommitTs(clock.now().0 + 7), "no timestamp comes twice");
    let mut late = Tail::open(PoolSource::new(second.clone()), IDENTITY, Some(needed));
    late.skip_to(CommitTs(clock.now().0 - 3));
    let mut last = Records::new();
    read_on(&mut late, &mut last);
    assert_eq!(last.len(), 3);
    // Another begins a term from there, and the one before is told.
    let mut rest = Records::new();
    let (next, later) = promote(late, &mut rest).unwrap();
    commit(&next, &later, &mut rest, 3).unwrap();
    let error = commit(&primary, &clock, &mut Records::new(), 1).unwrap_err();
    assert_eq!(error.code(), SqlState::CRASH_SHUTDOWN, "{error}");
    assert_eq!(primary.log.failure().unwrap().code(), SqlState::CRASH_SHUTDOWN);
}

#[test]
fn a_log_begins_after_more_empty_terms_than_the_books_keep() {
    let place = place();
    let member = join(&place.path, "primary");
    let mut records = Records::new();
    for term in 1..=40 {
        let (primary, _) = promote(attach(&member), &mut records).unwrap();
        assert_eq!(primary.reign.term, Term(term));
    }
    for _ in 0..2 {
        let mut seen = Records::new();
        let (primary, clock) = promote(attach(&member), &mut seen).unwrap();
        assert!(seen == records);
        commit(&primary, &clock, &mut records, 3).unwrap();
    }
    let mut found = Records::new();
    read_on(&mut attach(&member), &mut found);
    assert!(found == records && found.len() == 6);
}

#[test]
fn any_number_of_terms_may_come_between_two_roots() {
    // Terms without a block take no room.
    let place = place_of(64);
    let (member, second) = (join(&place.path, "primary"), join(&place.path, "reader"));
    let mut records = Records::new();
    let mut slow = attach(&second);
    let mut seen = Records::new();
    let term = |records: &mut Records, count: u64| {
        let mut found = Records::new();
        let (primary, clock) = promote(attach(&member), &mut found).unwrap();
        assert!(found == *records, "term {}: {} of {}", primary.reign.term.0, found.len(), records.len());
        commit(&primary, &clock, records, count).unwrap();
    };
    // Each has a block.
    (0..40).for_each(|_| term(&mut records, 2));
    read_on(&mut slow, &mut seen);
    assert!(seen == records);
    // None has one, and later some have.
    (0..70).for_each(|_| term(&mut records, 0));
    (0..3).for_each(|_| term(&mut records, 1));
    // Hosts that die before they seal anything.
    let take = || assert!(member.take_over(member.reign().unwrap()).unwrap().is_some());
    (0..50).for_each(|_| take());
    term(&mut records, 1);
    (0..33).for_each(|_| term(&mut records, 0));
    (0..50).for_each(|_| take());
    (0..2).for_each(|_| term(&mut records, 1));
    read_on(&mut slow, &mut seen);
    assert!(seen == records && seen.len() == 86, "{} of {}", seen.len(), records.len());
    let mut found = Records::new();
    read_on(&mut attach(&member), &mut found);
    assert!(found == records);
    // The slow reader takes over itself.
    let (primary, clock) = promote(slow, &mut seen).unwrap();
    commit(&primary, &clock, &mut seen, 1).unwrap();
}

#[test]
fn a_checkpoint_names_no_segment_without_a_block() {
    let place = place();
    let (old, new) = (join(&place.path, "old"), join(&place.path, "new"));
    let mut records = Records::new();
    let (first, clock) = promote(attach(&old), &mut records).unwrap();
    assert_eq!(first.needed_from(CommitTs(u64::MAX)).unwrap(), None);
    commit(&first, &clock, &mut records, 3).unwrap();
    let needed = first.needed_from(clock.now()).unwrap();
    assert_eq!(needed.map(|(term, _)| term), Some(1));
    drop(first);
    let (second, clock) = promote(attach(&old), &mut Records::new()).unwrap();
    assert_eq!(second.needed_from(clock.now()).unwrap(), needed);
    // The first block of the term comes too late.
    let (third, _) = promote(attach(&new), &mut Records::new()).unwrap();
    let error = commit(&second, &clock, &mut Records::new(), 1).unwrap_err();
    assert_eq!(error.code(), SqlState::CRASH_SHUTDOWN);
    assert_eq!(second.needed_from(CommitTs(u64::MAX)).unwrap(), needed);
    assert_eq!(
        second.log.recycle_below(CommitTs(u64::MAX)).unwrap(),
        0,
        "the log ends in the last segment with a block"
    );
    drop(third);
    // One that starts at a segment without a block is told.
    let number = needed.unwrap().1 + 1;
    let entry = old.pool().told(old.pool().books().load(old.pool().layout().segment(old.database(), number))).unwrap();
    let mut tail = Tail::open(PoolSource::new(old.clone()), IDENTITY, Some((entry.term.0.into(), number)));
    assert_eq!(tail.read().unwrap_err().code(), SqlState::DATA_CORRUPTED);
}

/// Changes a bit of a segment, or changes it back.
fn damage(member: &Member, term: u64, number: u64, byte: usize) {
    let books = member.pool().books();
    let extent = member.pool().told(books.segment(member.database(), number, Term(term as u32))).unwrap().unwrap();
    let (base, len) = member.extent(extent).unwrap();
    assert!(byte < len);
    // SAFETY: mapped as long as the pool is open, and nobody else reads or writes there meanwhile.
    unsafe { *base.as_ptr().add(byte) ^= 1 };
}

#[test]
fn a_term_whose_first_block_is_damaged_is_not_sealed_as_empty() {
    let place = place();
    let member = join(&place.path, "primary");
    let mut records = Records::new();
    let (first, clock) = promote(attach(&member), &mut records).unwrap();
    commit(&first, &clock, &mut records, 3).unwrap();
    drop(first);
    let (second, clock) = promote(attach(&member), &mut Records::new()).unwrap();
    let (term, number) = (u64::from(second.reign.term.0), second.device.segments().unwrap()[0]);
    commit(&second, &clock, &mut records, 5).unwrap();
    drop(second);
    // The header of the segment and its first block, the magic of either.
    for byte in [8, 4096 + 8] {
        damage(&member, term, number, byte);
        let error = TakeOver::begin(attach(&member)).unwrap_err();
        assert_eq!(error.code(), SqlState::DATA_CORRUPTED, "{error}");
        damage(&member, term, number, byte);
    }
    let mut found = Records::new();
    let (last, clock) = promote(attach(&member), &mut found).unwrap();
    assert!(found == records);
    commit(&last, &clock, &mut records, 1).unwrap();
}

#[test]
fn a_damaged_block_before_a_large_one_is_not_taken_for_the_end() {
    let place = place();
    let member = join(&place.path, "primary");
    let mut records = Records::new();
    let (primary, clock) = promote(attach(&member), &mut records).unwrap();
    let (term, number) = (u64::from(primary.reign.term.0), primary.device.segments().unwrap()[0]);
    commit(&primary, &clock, &mut records, 48).unwrap();
    let end = primary.log.position();
    // The last is larger than what is looked through at a time.
    commit(&primary, &clock, &mut records, 2).unwrap();
    assert!(end.segment() == number && primary.log.position().segment() == number);
    drop(primary);
    damage(&member, term, number, end.offset() + 8);
    let error = TakeOver::begin(attach(&member)).unwrap_err();
    assert_eq!(error.code(), SqlState::DATA_CORRUPTED, "{error}");
    damage(&member, term, number, end.offset() + 8);
    let mut found = Records::new();
    drop(promote(attach(&member), &mut found).unwrap());
    assert!(found == records);
}

#[test]
fn a_reader_maps_what_a_primary_has_prepared_and_no_more() {
    let place = place();
    let (member, standby) = (join(&place.path, "primary"), join(&place.path, "standby"));
    let mut records = Records::new();
    let (primary, clock) = promote(attach(&member), &mut records).unwrap();
    let mut tail = attach(&standby);
    while tail.map_ahead().unwrap() {}
    commit(&primary, &clock, &mut records, 1000).unwrap();
    primary.log.prepare().unwrap();
    let mut seen = Records::new();
    read_on(&mut tail, &mut seen);
    assert!(seen == records);
    assert!(tail.map_ahead().unwrap(), "there are segments behind the last block");
    while tail.map_ahead().unwrap() {}
    commit(&primary, &clock, &mut records, 1000).unwrap();
    drop(primary);
    let (primary, clock) = promote(tail, &mut seen).unwrap();
    assert!(seen == records);
    commit(&primary, &clock, &mut records, 1).unwrap();
}

#[test]
fn what_late_entries_leave_free_hides_no_segment() {
    let place = place();
    let (member, second) = (join(&place.path, "primary"), join(&place.path, "reader"));
    let (pool, database) = (member.pool(), member.database());
    let mut records = Records::new();
    drop(promote(attach(&member), &mut records).unwrap());
    let (primary, clock) = promote(attach(&member), &mut records).unwrap();
    commit(&primary, &clock, &mut records, 10).unwrap();
    let newest = *primary.device.segments().unwrap().last().unwrap();
    // Two hosts of the first term enter what they took long ago.
    let late: Vec<_> = (0..3)
        .map(|index| {
            let extent = member.lease(tidepool_pool::words::Kind::Log, 1).unwrap()[0];
            let entry = tidepool_pool::words::Segment { term: Term(1), extent };
            assert!(pool.told(pool.books().enter_segment(database, newest + 1 + index, entry)).unwrap());
            entry
        })
        .collect();
    let mut slow = attach(&second);
    read_on(&mut slow, &mut Records::new());
    commit(&primary, &clock, &mut records, 1500).unwrap();
    for (index, entry) in (0..).zip(late) {
        assert!(pool.told(pool.books().forget_segment(database, newest + 1 + index, entry)).unwrap());
    }
    assert!(primary.device.segments().unwrap().len() > 1);
    // A reader in the running term, and a successor.
    let mut seen = Records::new();
    for _ in 0..200 {
        read_on(&mut slow, &mut seen);
    }
    assert_eq!(seen.last_key_value().map(|(ts, _)| *ts), Some(clock.now().0));
    let mut found = Records::new();
    let (next, clock) = promote(attach(&second), &mut found).unwrap();
    assert!(found == records, "{} of {}", found.len(), records.len());
    commit(&next, &clock, &mut records, 1).unwrap();
}

#[test]
fn segments_stay_that_the_second_tier_has_not_copied() {
    let place = place();
    let member = join(&place.path, "primary");
    let mut records = Records::new();
    let (primary, clock) = promote(attach(&member), &mut records).unwrap();
    let source = PoolSource::new(member.clone());
    let mut tee = Tee::open(source.clone(), files(&place.folder.path().join("tee")), None).unwrap();
    let kept = primary.device.kept_from();
    kept.store(tee.needed_from(), std::sync::atomic::Ordering::Release);
    commit(&primary, &clock, &mut records, 3000).unwrap();
    let all = primary.device.segments().unwrap();
    assert!(primary.log.recycle_below(clock.now()).unwrap() > 0);
    assert_eq!(primary.device.segments().unwrap(), all);
    let needs = || {
        let slot = member.host().slot;
        let field = member.pool().layout().host_number(slot, tidepool_pool::layout::HostNumber::LogNeeded);
        member.pool().told(member.pool().books().load(field)).unwrap().0
    };
    assert_eq!(needs(), 0);
    // One that reads what has gone is told.
    let (mut late, mut found) = (Tail::open(source, IDENTITY, None), Records::new());
    let Next::Batch(batch) = late.read().unwrap() else { panic!("there are records") };
    take(&mut late, batch, &mut found);
    while tee.step().unwrap() {}
    kept.store(tee.needed_from(), std::sync::atomic::Ordering::Release);
    primary.log.recycle_below(clock.now()).unwrap();
    assert!(primary.device.segments().unwrap().len() < all.len());
    assert!(needs() > all[0], "other hosts go by it once this one is primary no more");
    let error = loop {
        match late.read() {
            Ok(Next::Batch(batch)) => take(&mut late, batch, &mut found),
            Ok(_) => panic!("it waits for what does not come"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "{error}");
}

#[test]
fn a_database_in_the_place_of_a_dropped_one_has_no_log() {
    let place = place();
    let member = join(&place.path, "primary");
    for _ in 0..3 {
        let (primary, clock) = promote(attach(&member), &mut Records::new()).unwrap();
        commit(&primary, &clock, &mut Records::new(), 2).unwrap();
    }
    drop(member);
    let tool = Member::join(Arc::new(Pool::open(&location(&place.path)).unwrap()), &JoinOptions::tool("tool")).unwrap();
    tool.drop_database("a").unwrap();
    tool.create_database("a", 0).unwrap();
    let member = join(&place.path, "primary");
    let mut records = Records::new();
    let (primary, clock) = promote(attach(&member), &mut records).unwrap();
    assert!(records.is_empty() && primary.reign.term == Term(4));
    commit(&primary, &clock, &mut records, 2).unwrap();
    drop(primary);
    let mut found = Records::new();
    read_on(&mut attach(&member), &mut found);
    assert!(found == records);
}

#[test]
fn a_new_term_leases_no_more_than_it_begins() {
    let place = place();
    let member = join(&place.path, "primary");
    let mut records = Records::new();
    let (primary, clock) = promote(attach(&member), &mut records).unwrap();
    commit(&primary, &clock, &mut records, 4000).unwrap();
    drop(primary);
    let (primary, clock) = promote(attach(&member), &mut Records::new()).unwrap();
    commit(&primary, &clock, &mut records, 1).unwrap();
    primary.log.prepare().unwrap();
    let segments = primary.device.segments().unwrap().len();
    assert!(segments <= 3, "{segments} are leased");
}

#[test]
fn spilled_records_and_gaps_come_whole_and_the_second_tier_has_them() {
    let place = place();
    let member = join(&place.path, "primary");
    let tee = place.folder.path().join("tee");
    let mut expected = BTreeMap::new();
    for life in 0..3 {
        let mut taking = TakeOver::begin(attach(&member)).unwrap();
        while taking.next_batch().unwrap().is_some() {}
        let clock = Clock::default();
        clock.set(CommitTs(taking.tail().ts_max().0.max(life * 1000)));
        let primary = taking.into_log(config(), clock.floor()).unwrap();
        let (mut large, mut small) = (primary.log.appender().unwrap(), primary.log.appender().unwrap());
        let pieces: Vec<Vec<u8>> = (0..4u8).map(|piece| vec![piece + life as u8; 1_500_000]).collect();
        for piece in &pieces {
            large.spill(piece, &never).unwrap();
            let ts = clock.commit(&mut small, b"small").unwrap();
            primary.log.wait_durable(ts, never).unwrap();
            expected.insert(ts.0, vec![b"small".to_vec()]);
        }
        // One that comes to nothing.
        small.spill(&[9; 50_000], &never).unwrap();
        small.abandon();
        large.reserve(3, &never).unwrap();
        let ts = CommitTs(clock.now().0 + 1);
        large.append(ts, RecordKind(200), b"end");
        clock.set(ts);
        primary.log.wait_durable(ts, never).unwrap();
        expected.insert(ts.0, pieces.into_iter().chain([b"end".to_vec()]).collect());
        assert!(RecordKind(200).may_be_skipped() && !RecordKind(127).may_be_skipped());
        let source = PoolSource::new(member.clone());
        let from = source.oldest(IDENTITY).unwrap();
        let writer =
            TeeWriter::start(Tee::open(source, files(&tee), from).unwrap(), primary.device.kept_from()).unwrap();
        writer.wait(ts, never).unwrap();
        assert!(writer.durable() >= ts && writer.failure().is_none());
        let check = |tail: &mut dyn FnMut() -> Option<(u64, Vec<Vec<u8>>)>| {
            let mut found = BTreeMap::new();
            while let Some((ts, pieces)) = tail() {
                found.insert(ts, pieces);
            }
            assert!(found == expected, "life {life}: {:?}", found.keys());
        };
        let mut in_pool = attach(&member);
        let mut batches = Vec::new();
        check(&mut || next_record(&mut in_pool, &mut batches));
        let source = files(&tee);
        let oldest = source.oldest().unwrap();
        let (mut in_files, mut batches) = (Tail::open(source, IDENTITY, oldest), Vec::new());
        check(&mut || next_record(&mut in_files, &mut batches));
    }
    // One who reads the files as a log that one host had to itself is told.
    let device = FileDevice::open(Arc::new(SystemFiles), &tee, EXTENT_BYTES, OpenHow::default()).unwrap();
    assert_eq!(device.segments().unwrap_err().code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
}

#[test]
fn the_second_tier_has_what_it_says_whatever_becomes_of_its_disk() {
    let mut seen = BTreeMap::<&str, u64>::new();
    for seed in seed()..seed() + 6 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let disk = SimulatedFiles::new(seed);
        let place = place();
        let member = join(&place.path, "primary");
        let mut records = Records::new();
        let (mut primary, mut clock) = promote(attach(&member), &mut records).unwrap();
        let folder = Path::new("/tee");
        let open = |from| {
            let files = FileSource::open(Arc::new(disk.clone()), folder, EXTENT_BYTES, IDENTITY).unwrap();
            Tee::open(PoolSource::new(member.clone()), files, from).unwrap()
        };
        // Of the checkpoint that is in the folder, and would be durable there.
        let (mut base, mut base_ts) = (None, CommitTs(0));
        let mut tee = open(base);
        for _ in 0..80 {
            let step = |tee: &mut Tee<_>, seen: &mut BTreeMap<&str, u64>| match tee.step() {
                Ok(_) => {}
                Err(error) => {
                    assert!([SqlState::IO_ERROR, SqlState::DISK_FULL].contains(&error.code()), "{error}");
                    *seen.entry("a step fails").or_default() += 1;
                }
            };
            match random.below(12) {
                0..4 => commit(&primary, &clock, &mut records, random.below(120)).unwrap(),
                4..8 => step(&mut tee, &mut seen),
                8 => {
                    let operations = [Operation::Create, Operation::SyncFolder, Operation::Write, Operation::Sync];
                    disk.inject(Fault {
                        operation: operations[random.below(4) as usize],
                        after: random.below(6),
                        times: 1 + random.below(3),
                        errno: if random.below(2) == 0 { libc::EIO } else { libc::ENOSPC },
                    });
                }
                9 => {
                    disk.clear_faults();
                    let promised = tee.durable();
                    disk.crash();
                    *seen.entry("a crash").or_default() += 1;
                    tee = open(base);
                    assert!(tee.is_complete() && tee.durable().max(base_ts) >= promised);
                }
                10 => {
                    // Another host of the database goes on.
                    drop(primary);
                    let mut found = Records::new();
                    let tail = PoolTail::attach(member.clone(), IDENTITY, base, base_ts).unwrap();
                    (primary, clock) = promote(tail, &mut found).unwrap();
                    assert!(found == records.split_off(&(base_ts.0 + 1)));
                    records.append(&mut found);
                }
                _ => {
                    disk.clear_faults();
                    let ts = tee.durable();
                    let Some((term, number)) = primary.needed_from(ts).unwrap().filter(|_| ts > base_ts) else {
                        continue;
                    };
                    if number > tee.needed_from() {
                        continue;
                    }
                    (base, base_ts) = (Some((term, number)), ts);
                    tee.remove_before(term, number).unwrap();
                    primary.device.kept_from().store(tee.needed_from(), std::sync::atomic::Ordering::Release);
                    if primary.log.recycle_below(ts).unwrap() > 0 {
                        *seen.entry("segments go").or_default() += 1;
                    }
                }
            }
            primary.device.kept_from().store(tee.needed_from(), std::sync::atomic::Ordering::Release);
        }
        disk.clear_faults();
        let promised = tee.durable();
        disk.crash();
        let files = FileSource::open(Arc::new(disk.clone()), folder, EXTENT_BYTES, IDENTITY).unwrap();
        let mut tail = Tail::open(files.clone(), IDENTITY, base.or(files.oldest().unwrap()));
        tail.skip_to(base_ts);
        let mut found = Records::new();
        read_on(&mut tail, &mut found);
        for (ts, bytes) in &found {
            assert!(records.get(ts) == Some(bytes), "seed {seed}: {ts} is in the files alone");
        }
        for (ts, _) in records.range(base_ts.0 + 1..).take_while(|(ts, _)| **ts <= promised.0) {
            assert!(
                found.contains_key(ts),
                "seed {seed}: {ts} is not in the files, which were said to have {promised}"
            );
        }
        *seen.entry("records").or_default() += found.len() as u64;
    }
    println!("{seen:?}");
    for what in ["a step fails", "a crash", "records"] {
        assert!(seen.contains_key(what), "no history had: {what}");
    }
}

#[test]
fn files_of_another_log_are_not_continued() {
    let (one, other) = (place(), place());
    let tee = one.folder.path().join("tee");
    let run = |place: &Place, count: u64| {
        let member = join(&place.path, "primary");
        let mut records = Records::new();
        let (primary, clock) = promote(attach(&member), &mut records).unwrap();
        commit(&primary, &clock, &mut records, count).unwrap();
        (member, primary, clock, records)
    };
    let (member, _primary, _, records) = run(&one, 20);
    let mut first = Tee::open(PoolSource::new(member.clone()), files(&tee), None).unwrap();
    while first.step().unwrap() {}
    // Again, from where the files end.
    let again = Tee::open(PoolSource::new(member), files(&tee), None).unwrap();
    assert!(again.is_complete() && again.durable().0 == 20);
    // The pool is lost, and terms begin at 1 again: in files of the same names.
    let (another, primary, _, mut later) = run(&other, 30);
    drop(primary);
    let (primary, clock) = promote(attach(&another), &mut Records::new()).unwrap();
    commit(&primary, &clock, &mut later, 3).unwrap();
    for from in [None, primary.needed_from(CommitTs(u64::MAX)).unwrap()] {
        let error = Tee::open(PoolSource::new(another.clone()), files(&tee), from).unwrap_err();
        assert_eq!(error.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "{error}");
    }
    drop((primary, another));
    // With later terms, the files have all once a checkpoint in the folder has what was before.
    let third = place_after(EXTENTS, Term(5000));
    let (another, primary, clock, mut later) = run(&third, 30);
    assert_eq!(primary.reign.term, Term(5001));
    let base = primary.needed_from(CommitTs(u64::MAX)).unwrap().unwrap();
    let writer = TeeWriter::start(
        Tee::open(PoolSource::new(another.clone()), files(&tee), Some(base)).unwrap(),
        primary.device.kept_from(),
    )
    .unwrap();
    writer.wait(clock.now(), never).unwrap();
    assert!(!writer.is_complete());
    let mut found = Records::new();
    let oldest = files(&tee).oldest().unwrap();
    read_on(&mut Tail::open(files(&tee), IDENTITY, oldest), &mut found);
    assert!(found == records, "until then, what was there stays");
    writer.remove_before(base.0, base.1);
    while !writer.is_complete() {
        std::thread::yield_now();
    }
    commit(&primary, &clock, &mut later, 5).unwrap();
    writer.wait(clock.now(), never).unwrap();
    drop(writer);
    assert_eq!(files(&tee).oldest().unwrap(), Some(base));
}

#[test]
fn a_disk_that_is_full_for_a_while_ends_no_second_tier() {
    let place = place();
    let member = join(&place.path, "primary");
    let mut records = Records::new();
    let (primary, clock) = promote(attach(&member), &mut records).unwrap();
    let disk = SimulatedFiles::new(1);
    let source = FileSource::open(Arc::new(disk.clone()), Path::new("/tee"), EXTENT_BYTES, IDENTITY).unwrap();
    let tee = Tee::open(PoolSource::new(member), source.clone(), None).unwrap();
    let writer = TeeWriter::start(tee, primary.device.kept_from()).unwrap();
    disk.inject(Fault { operation: Operation::Write, after: 2, times: u64::MAX, errno: libc::ENOSPC });
    commit(&primary, &clock, &mut records, 200).unwrap();
    let error = writer.wait(clock.now(), never).unwrap_err();
    assert_eq!(error.code(), SqlState::DISK_FULL, "{error}");
    disk.clear_faults();
    while writer.wait(clock.now(), never).is_err() {
        std::thread::yield_now();
    }
    assert!(writer.failure().is_none());
    let mut found = Records::new();
    let oldest = source.oldest().unwrap();
    read_on(&mut Tail::open(source, IDENTITY, oldest), &mut found);
    assert!(found == records);
    // One that panics tells those who wait.
    drop(writer);
    #[derive(Debug)]
    struct Panics;
    impl Source for Panics {
        fn name(&self) -> String {
            "a log".to_owned()
        }
        fn segment_bytes(&self) -> usize {
            EXTENT_BYTES
        }
        fn segment(&self, _: u64, _: u64) -> Result<Option<Arc<dyn tidepool_log::LogSegment>>> {
            Ok(None)
        }
        fn next_numbers(&self, _: u64, _: u64, _: bool) -> Result<Vec<u64>> {
            Ok(Vec::new())
        }
        fn next_terms(&self, _: u64) -> Result<Vec<(u64, u64)>> {
            panic!("on purpose")
        }
        fn verdict(&self, _: u64, _: u64) -> Result<tidepool_log::Verdict> {
            Ok(tidepool_log::Verdict::Settled)
        }
        fn too_old(&self, _: u64) -> tidepool_base::Error {
            tidepool_base::Error::internal("too old")
        }
    }
    let empty = FileSource::open(Arc::new(disk), Path::new("/other"), EXTENT_BYTES, IDENTITY).unwrap();
    let writer = TeeWriter::start(Tee::open(Panics, empty, None).unwrap(), Arc::default()).unwrap();
    assert_eq!(writer.wait(CommitTs(1), never).unwrap_err().code(), SqlState::IO_ERROR);
}

/// The next record with its pieces, of a batch or of the next.
fn next_record<S: Source>(
    tail: &mut Tail<S>,
    batch: &mut Vec<tidepool_log::TailRecord>,
) -> Option<(u64, Vec<Vec<u8>>)> {
    while batch.is_empty() {
        match tail.read().unwrap() {
            Next::Batch(next) => *batch = next.records.into_iter().rev().collect(),
            _ => return None,
        }
    }
    let mut record = batch.pop()?;
    let mut pieces = Vec::new();
    while let Some(piece) = tail.next_piece(&mut record).unwrap() {
        pieces.push(piece.to_vec());
    }
    Some((record.ts.0, pieces))
}
