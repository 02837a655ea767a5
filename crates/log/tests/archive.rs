//! An archive of the log, and reading it up to a moment: at random moments what is read is what had been committed by then, after
//! restarts, over several terms, with a clock that is set back; what is missing or damaged is named.

mod common;

use common::{Clock, IDENTITY, Random, config, never};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tidepool_base::{CommitTs, Result, SqlState};
use tidepool_device::Location;
use tidepool_log::files::{Files, OpenHow, SystemFiles};
use tidepool_log::{
    Archiver, Archiving, DeviceSource, FileDevice, FileSource, Log, LogConfig, LogPosition, Next, PoolSource, PoolTail,
    Source, Tail, TakeOver, Until,
};
use tidepool_pool::member::{JoinOptions, Member};
use tidepool_pool::pool::{CreateOptions, Pool};
use tidepool_pool::words::{Role, Term};

const SEGMENT_BYTES: usize = 64 << 10;
const POOL_SEGMENT_BYTES: usize = 2 << 20;

type Records = BTreeMap<u64, Vec<u8>>;

thread_local! {
    /// What the clock shows that the log asks: whoever waits for a commit asks it.
    static NOW: Cell<u64> = const { Cell::new(0) };
}

fn now() -> u64 {
    NOW.get()
}

/// The default, with that clock.
fn clocked() -> LogConfig {
    LogConfig { clock: now, ..config() }
}

fn payload(ts: u64) -> Vec<u8> {
    let len = 16 + (ts * 131 % 1_500) as usize + if ts.is_multiple_of(29) { 70_000 } else { 0 };
    (0..len).map(|index| (index as u64 ^ ts) as u8).collect()
}

/// What was committed: by timestamp the mark of its block, and where the log ended then.
type Committed = BTreeMap<u64, (u64, LogPosition)>;

fn archived(folder: &Path) -> FileSource {
    FileSource::find_archive(Arc::new(SystemFiles), folder, IDENTITY).unwrap()
}

/// What an archive has up to a place, from a segment on, beyond what a checkpoint has.
fn read(folder: &Path, from: (u64, u64), after: u64, until: Option<Until>) -> (Records, Result<bool>) {
    let mut tail = Tail::open(archived(folder), IDENTITY, Some(from));
    tail.skip_to(CommitTs(after));
    until.into_iter().for_each(|until| tail.stop_at(until));
    let mut records = Records::new();
    loop {
        match tail.read() {
            Ok(Next::Batch(batch)) => {
                for record in batch.records {
                    let bytes = tail.payload_of(&record).unwrap();
                    assert!(bytes == payload(record.ts.0), "record {}", record.ts);
                    records.insert(record.ts.0, bytes);
                }
            }
            Ok(_) => break,
            Err(error) => return (records, tail.check_archive().and(Err(error))),
        }
    }
    if tail.is_reached() {
        return (records, Ok(true));
    }
    let whole = tail.check_archive();
    (records, whole.map(|()| false))
}

fn archive_of(log: &Arc<Log>, folder: &Path, timeout: Duration) -> Archiver {
    let (source, position, oldest) = (Arc::clone(log.device()), Arc::downgrade(log), Arc::downgrade(log));
    let folder = folder.to_owned();
    Archiver::start(Archiving {
        source: Box::new(move || DeviceSource::new(Arc::clone(&source))),
        term: 0,
        from: Box::new(move || {
            let number = oldest.upgrade().map_or(0, |log| log.needed_from(CommitTs(0)));
            Ok((number > 0).then_some((0, number)))
        }),
        files: Box::new(move || FileSource::archive(Arc::new(SystemFiles), &folder, SEGMENT_BYTES, IDENTITY)),
        position: Box::new(move || position.upgrade().map_or(LogPosition::default(), |log| log.position())),
        bring: Box::new(|| Ok(())),
        kept_from: log.kept_from(),
        timeout,
    })
    .unwrap()
}

struct Place {
    _folder: tempfile::TempDir,
    log: PathBuf,
    archive: PathBuf,
}

fn place() -> Place {
    let folder = tempfile::tempdir().unwrap();
    let (log, archive) = (folder.path().join("log"), folder.path().join("archive"));
    Place { _folder: folder, log, archive }
}

fn open(place: &Place, clock: &Clock) -> Arc<Log> {
    let device = FileDevice::open(Arc::new(SystemFiles), &place.log, SEGMENT_BYTES, OpenHow::default()).unwrap();
    let mut recovery = Log::open(Arc::new(device), clocked()).unwrap();
    while recovery.next_record().unwrap().is_some() {}
    clock.set(recovery.ts_max());
    recovery.into_log(clock.floor()).unwrap()
}

/// Commits, and notes when that was.
fn commit(log: &Arc<Log>, clock: &Clock, committed: &mut Committed, random: &mut Random, count: u64) {
    let mut appender = log.appender().unwrap();
    for _ in 0..count {
        // Now and then it is set back, or stands still.
        let at = match random.below(12) {
            0 => NOW.get().saturating_sub(random.below(5_000)),
            1 => NOW.get(),
            _ => NOW.get() + 1 + random.below(1_000),
        };
        NOW.set(at);
        let group = 1 + random.below(3);
        let mut last = CommitTs(0);
        for _ in 0..group {
            last = clock.commit(&mut appender, &payload(clock.now().0 + 1)).unwrap();
        }
        log.wait_durable(last, never).unwrap();
        let mark = committed.last_key_value().map_or(0, |(_, (mark, _))| *mark).max(at);
        for ts in last.0 + 1 - group..=last.0 {
            committed.insert(ts, (mark, log.position()));
        }
        log.prepare().unwrap();
    }
}

fn check_moments(folder: &Path, from: (u64, u64), committed: &Committed, after: u64, random: &mut Random) {
    let marks: Vec<_> = committed.iter().map(|(ts, (mark, end))| (*ts, *mark, *end)).collect();
    let expected = |has: &dyn Fn(u64, LogPosition) -> bool| -> Vec<u64> {
        marks.iter().filter(|(ts, mark, end)| *ts > after && has(*mark, *end)).map(|(ts, ..)| *ts).collect()
    };
    let found = |records: &Records| -> Vec<u64> { records.keys().copied().filter(|ts| *ts > after).collect() };
    for _ in 0..12 {
        let (_, mark, end) = marks[random.below(marks.len() as u64) as usize];
        let inclusive = random.below(2) == 0;
        let us = mark + random.below(3) - u64::from(mark > 0);
        let (records, outcome) = read(folder, from, after, Some(Until::Time { us, inclusive }));
        let wanted = expected(&|mark, _| if inclusive { mark <= us } else { mark < us });
        assert_eq!(found(&records), wanted, "until {us}, {inclusive}");
        let last = marks[marks.len() - 1];
        assert_eq!(outcome.unwrap(), if inclusive { last.1 > us } else { last.1 >= us });
        let (records, outcome) = read(folder, from, after, Some(Until::Position { end, inclusive }));
        assert_eq!(found(&records), expected(&|_, at| if inclusive { at <= end } else { at < end }));
        assert!(outcome.unwrap(), "{end}");
    }
    let (records, outcome) = read(folder, from, after, None);
    assert_eq!((found(&records), outcome.unwrap()), (expected(&|_, _| true), false));
}

#[test]
fn an_archive_is_read_up_to_any_moment() {
    for seed in 1..4 {
        let (place, clock, mut random) = (place(), Clock::default(), Random(seed * 77));
        NOW.set(1_000_000);
        let mut committed = Committed::new();
        let mut log = open(&place, &clock);
        let mut archiver = archive_of(&log, &place.archive, Duration::from_millis(1));
        let mut from = None;
        for round in 0..6 {
            commit(&log, &clock, &mut committed, &mut random, 30);
            from = from.or(Some((0, log.needed_from(CommitTs(0)))));
            // A checkpoint: what goes is archived, or stays.
            log.recycle_below(CommitTs(clock.now().0.saturating_sub(random.below(20)))).unwrap();
            if round % 2 == 1 {
                match random.below(2) {
                    // It ends as by a crash, with what it has.
                    0 => drop(archiver),
                    _ => archiver.finish().unwrap(),
                }
                drop(log);
                log = open(&place, &clock);
                archiver = archive_of(&log, &place.archive, Duration::from_millis(1));
            }
        }
        archiver.finish().unwrap();
        let state = archiver.state();
        assert_eq!((state.end, state.failures), (log.position(), 0));
        // Once more, as the archiver may have been behind at each checkpoint.
        log.recycle_below(CommitTs(clock.now().0.saturating_sub(20))).unwrap();
        assert!(log.used_bytes() < 20 * SEGMENT_BYTES as u64, "what is archived goes");
        check_moments(&place.archive, from.unwrap(), &committed, 0, &mut random);
    }
}

#[test]
fn what_is_missing_or_damaged_is_named() {
    let (place, clock, mut random) = (place(), Clock::default(), Random(5));
    let mut committed = Committed::new();
    let log = open(&place, &clock);
    let archiver = archive_of(&log, &place.archive, Duration::from_secs(3600));
    commit(&log, &clock, &mut committed, &mut random, 60);
    archiver.finish().unwrap();
    let mut names: Vec<_> = std::fs::read_dir(&place.archive).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.retain(|path| path.extension().is_some_and(|ext| ext == "log"));
    names.sort();
    assert!(names.len() > 4);
    for (index, path) in names.iter().enumerate() {
        let name = path.file_name().unwrap().to_str().unwrap();
        let bytes = std::fs::read(path).unwrap();
        std::fs::remove_file(path).unwrap();
        let (records, outcome) = read(&place.archive, (0, 1), 0, None);
        let error = outcome.unwrap_err();
        assert_eq!(error.code(), SqlState::DATA_CORRUPTED);
        assert!(error.message().contains(name) && error.message().contains("is missing"), "{index}: {error}");
        assert!(records.len() < committed.len());
        // In the first block, in one in the middle and in the last, whose last byte it is.
        let blocks: Vec<_> =
            (0..bytes.len() / 64).map(|line| line * 64).filter(|at| &bytes[at + 8..at + 12] == b"BLK1").collect();
        for at in [blocks[0] + 20, blocks[blocks.len() / 2] + 50, bytes.len() - 1] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            std::fs::write(path, &damaged).unwrap();
            let error = read(&place.archive, (0, 1), 0, None).1.unwrap_err();
            assert_eq!(error.code(), SqlState::DATA_CORRUPTED);
            assert!(error.message().contains(name) && error.message().contains("damaged"), "{index}, {at}: {error}");
        }
        std::fs::write(path, &bytes).unwrap();
    }
    // Two that are missing, of which the first is named.
    let aside = [&names[1], &names[2]].map(|path| (path, std::fs::read(path).unwrap()));
    aside.iter().for_each(|(path, _)| std::fs::remove_file(path).unwrap());
    assert!(read(&place.archive, (0, 1), 0, None).1.is_err());
    // Up to a moment before them, nothing is.
    let early = committed.values().find(|(_, end)| end.segment() == 1).unwrap();
    assert!(read(&place.archive, (0, 1), 0, Some(Until::Position { end: early.1, inclusive: true })).1.unwrap());
    aside.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
    check_moments(&place.archive, (0, 1), &committed, 0, &mut random);
    // What a backup does not need goes.
    let after = *committed.keys().find(|ts| log.needed_from(CommitTs(**ts)) == 3).unwrap();
    assert_eq!(archived(&place.archive).remove_before(0, 3).unwrap(), 2);
    let error = read(&place.archive, (0, 2), 0, None).1.unwrap_err();
    assert!(error.message().contains("0000000000000002.log\" is missing"), "{error}");
    assert!(read(&place.archive, (0, 3), after, None).1.is_ok());
}

#[test]
fn a_log_that_cannot_be_archived_is_kept_and_nobody_waits() {
    let (place, clock, mut random) = (place(), Clock::default(), Random(9));
    let mut committed = Committed::new();
    let log = open(&place, &clock);
    // Something is in its way.
    std::fs::write(&place.archive, "in the way").unwrap();
    let archiver = archive_of(&log, &place.archive, Duration::from_millis(1));
    commit(&log, &clock, &mut committed, &mut random, 60);
    while archiver.state().failures == 0 {
        std::thread::yield_now();
    }
    assert!(archiver.state().failure.is_some());
    assert_eq!(log.recycle_below(clock.now()).unwrap(), 0);
    assert!(!log.wants_checkpoint());
    let kept = log.used_bytes();
    std::fs::remove_file(&place.archive).unwrap();
    while archiver.state().end != log.position() {
        std::thread::yield_now();
    }
    assert!(archiver.state().failure.is_none());
    assert!(log.recycle_below(clock.now()).unwrap() > 2);
    assert!(log.used_bytes() < kept);
    archiver.finish().unwrap();
    check_moments(&place.archive, (0, 1), &committed, 0, &mut random);
    drop((archiver, log));
    // Another log's archive is not written to; nor is the copy of a folder taken for what it was copied from.
    let copy = self::place();
    std::fs::create_dir_all(&copy.log).unwrap();
    for entry in std::fs::read_dir(&place.log).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.log.join(entry.file_name())).unwrap();
    }
    let log = open(&place, &clock);
    commit(&log, &clock, &mut committed, &mut random, 10);
    archive_of(&log, &place.archive, Duration::from_millis(1)).finish().unwrap();
    let clock = Clock::default();
    let other = open(&copy, &clock);
    NOW.set(NOW.get() + 5);
    commit(&other, &clock, &mut Committed::new(), &mut random, 10);
    let error = archive_of(&other, &place.archive, Duration::from_millis(1)).finish().unwrap_err();
    assert_eq!(error.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "{error}");
}

#[test]
fn a_time_when_nothing_was_archived_is_a_gap_that_is_named() {
    let (place, clock, mut random) = (place(), Clock::default(), Random(3));
    let mut committed = Committed::new();
    let log = open(&place, &clock);
    let archiver = archive_of(&log, &place.archive, Duration::from_millis(1));
    commit(&log, &clock, &mut committed, &mut random, 20);
    archiver.finish().unwrap();
    drop((archiver, log));
    let log = open(&place, &clock);
    commit(&log, &clock, &mut committed, &mut random, 60);
    log.recycle_below(clock.now()).unwrap();
    let after = clock.now().0;
    let archiver = archive_of(&log, &place.archive, Duration::from_millis(1));
    commit(&log, &clock, &mut committed, &mut random, 30);
    archiver.finish().unwrap();
    let error = read(&place.archive, (0, 1), 0, None).1.unwrap_err();
    assert!(error.message().contains("missing") || error.message().contains("damaged"), "{error}");
    // A backup that is made since needs nothing before.
    let number = log.needed_from(CommitTs(after));
    let later: Committed = committed.into_iter().filter(|(ts, _)| *ts > after).collect();
    check_moments(&place.archive, (0, number), &later, after, &mut random);
}

fn join(path: &Path, name: &str) -> Arc<Member> {
    let options = JoinOptions { role: Role::Standby, database: Some("a".to_owned()), ..JoinOptions::tool(name) };
    let location = Location::File(path.to_owned());
    Arc::new(Member::join(Arc::new(Pool::open(&location).unwrap()), &options).unwrap())
}

#[test]
fn an_archive_goes_through_terms_and_has_nothing_that_was_sealed_away() {
    let folder = tempfile::tempdir().unwrap();
    let (path, archive) = (folder.path().join("pool"), folder.path().join("archive"));
    let pool = Pool::create(&CreateOptions {
        devices: vec![(Location::File(path.clone()), Some(64 * POOL_SEGMENT_BYTES as u64))],
        extent_bytes: None,
        bytes_max: None,
        label: String::new(),
        populates: false,
        overcommits: false,
    });
    let tool = Member::join(Arc::new(pool.unwrap()), &JoinOptions::tool("test")).unwrap();
    tool.create_database_after("a", 0, Term(0)).unwrap();
    let (mut committed, mut random) = (Committed::new(), Random(11));
    NOW.set(5_000);
    let mut before: Vec<Box<dyn std::any::Any>> = Vec::new();
    for term in 1..=5u64 {
        let member = join(&path, &format!("h{term}"));
        let tail = PoolTail::attach(member.clone(), IDENTITY, None, CommitTs(0)).unwrap();
        let mut taking = TakeOver::begin(tail).unwrap();
        while taking.next_batch().unwrap().is_some() {}
        let clock = Clock::default();
        clock.set(taking.tail().ts_max());
        let primary = taking.into_log(clocked(), clock.floor()).unwrap();
        // The one before wakes, and writes on behind the seal.
        if let Some(sleeper) = before.last_mut().and_then(|last| last.downcast_mut::<(Arc<Log>, Clock)>()) {
            let (log, clock) = sleeper;
            let mut appender = log.appender().unwrap();
            let ts = clock.commit(&mut appender, &payload(clock.now().0 + 1)).unwrap();
            assert_eq!(log.wait_durable(ts, never).unwrap_err().code(), SqlState::CRASH_SHUTDOWN);
        }
        let (of_source, of_oldest, position) = (member.clone(), member.clone(), Arc::downgrade(&primary.log));
        let (files, first) = (archive.clone(), primary.first);
        let archiver = Archiver::start(Archiving {
            source: Box::new(move || PoolSource::new(of_source.clone())),
            term,
            from: Box::new(move || PoolSource::new(of_oldest.clone()).oldest(IDENTITY)),
            files: Box::new(move || FileSource::archive(Arc::new(SystemFiles), &files, POOL_SEGMENT_BYTES, IDENTITY)),
            position: Box::new(move || {
                let position = position.upgrade().map_or(LogPosition::default(), |log| log.position());
                if position.segment() < first { LogPosition::default() } else { position }
            }),
            bring: Box::new(|| Ok(())),
            kept_from: primary.device.archived_from(),
            timeout: Duration::from_millis(1),
        })
        .unwrap();
        commit(&primary.log, &clock, &mut committed, &mut random, 40);
        // Some end as by a crash, with the end of their log not archived.
        if term % 2 == 0 {
            drop(archiver);
            commit(&primary.log, &clock, &mut committed, &mut random, 5);
        } else {
            archiver.finish().unwrap();
        }
        before.push(Box::new((primary.log.clone(), clock)));
        before.push(Box::new(member));
        let last = before.len() - 2;
        before.swap(last, last + 1);
    }
    let source = archived(&archive);
    let terms: Vec<_> = (0..5).map(|term| source.next_terms(term).unwrap()[0].0).collect();
    assert_eq!(terms, [1, 2, 3, 4, 5]);
    let from = source.oldest().unwrap().unwrap();
    check_moments(&archive, from, &committed, 0, &mut random);
    // The first segment of a term goes: what was committed before it is not taken for all there is.
    let gone = source.next_terms(2).unwrap()[0];
    let name = format!("{:08x}-{:016x}.log", gone.0, gone.1);
    std::fs::remove_file(archive.join(&name)).unwrap();
    let error = read(&archive, from, 0, None).1.unwrap_err();
    assert!(error.message().contains(&name) && error.message().contains("missing"), "{error}");
    let _ = SystemFiles.list(&archive).unwrap();
}
