//! A log in a tablespace: several times round, full and going on, threads at once, and what it charges.

mod common;

use common::{Clock, IDENTITY, config, never, open, read};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidepool_base::{CommitTs, SqlState, TablespaceId};
use tidepool_device::{Location, Profile};
use tidepool_log::{DatabaseIdentity, Log, LogConfig, LogDevice, LogEnd, MemoryDevice, RecordKind};
use tidepool_tablespace::{Purpose, Tablespace, TablespaceConfig};

const SEGMENT_BYTES: usize = 128 << 10;

fn space(location: Location, profile: Option<Profile>) -> Arc<Tablespace> {
    let config = TablespaceConfig {
        name: "far".into(),
        location,
        size_bytes: Some(4 << 20),
        profile,
        profiles: Vec::new(),
        huge_pages: false,
        populate_bytes: 0,
    };
    Tablespace::open(TablespaceId(1), config).unwrap()
}

fn device(space: &Arc<Tablespace>, segments: usize) -> Arc<MemoryDevice> {
    let bytes = MemoryDevice::region_bytes((segments * SEGMENT_BYTES) as u64, SEGMENT_BYTES);
    let mut region = space.allocate(bytes as usize, Purpose::Log).unwrap();
    region.fill(0xa5);
    Arc::new(MemoryDevice::create(region, SEGMENT_BYTES, IDENTITY).unwrap())
}

/// On plain memory and on a file, whose stores go another way.
fn spaces() -> Vec<(Arc<Tablespace>, Option<tempfile::TempDir>)> {
    let folder = tempfile::tempdir().unwrap();
    let file = Location::File(folder.path().join("memory"));
    vec![(space(Location::Anon, None), None), (space(file, None), Some(folder))]
}

#[test]
fn a_log_goes_round_and_is_found_again() {
    for (space, _folder) in spaces() {
        let mut device = device(&space, 5);
        let clock = Clock::default();
        let mut expected = BTreeMap::new();
        for life in 0..12u64 {
            let log = open(device.clone(), &clock).unwrap();
            let mut appender = log.appender().unwrap();
            for number in 0..40 + life * 7 {
                let payload = vec![number as u8; (number * 97 % 3000) as usize];
                let ts = clock.commit(&mut appender, &payload).unwrap();
                expected.insert(ts.0, payload);
                if number % 5 == 0 {
                    log.wait_durable(ts, never).unwrap();
                    assert!(log.durable() >= ts);
                }
            }
            log.flush().unwrap();
            let checkpoint = CommitTs(clock.now().0 - 20);
            log.recycle_below(checkpoint).unwrap();
            drop((appender, log));
            expected.retain(|ts, _| *ts > checkpoint.0);
            let (records, tail) = read(device.clone(), checkpoint).unwrap();
            assert!(records == expected, "life {life}");
            assert!(matches!(tail, LogEnd::Clean(_)));
            // As another process would map it.
            let region = Arc::into_inner(device).unwrap().into_region().unwrap();
            assert_eq!(region.purpose(), Purpose::Log);
            device = Arc::new(MemoryDevice::open(region, IDENTITY).unwrap());
        }
        // Made anew over what was there, it is empty.
        let region = Arc::into_inner(device).unwrap().into_region().unwrap();
        let device = MemoryDevice::create(region, SEGMENT_BYTES, DatabaseIdentity([9; 16])).unwrap();
        assert!(device.segments().unwrap().is_empty());
        let mut region = device.into_region().unwrap();
        region[30] ^= 1;
        let error = MemoryDevice::open(region, DatabaseIdentity([9; 16])).unwrap_err();
        assert_eq!(error.code(), SqlState::DATA_CORRUPTED);
    }
}

#[test]
fn a_full_log_stops_commits_before_they_are_decided_and_goes_on() {
    let space = space(Location::Anon, None);
    let device = device(&space, 4);
    let clock = Clock::default();
    let log = open(device.clone(), &clock).unwrap();
    let mut appender = log.appender().unwrap();
    assert!(!log.wants_checkpoint());
    let mut count = 0;
    let error = loop {
        match clock.commit(&mut appender, &[1; 1000]) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.code(), SqlState::DISK_FULL);
    assert!(error.message().contains("\"far\""), "{error}");
    assert!(log.wants_checkpoint());
    // Overheads are a fifth of such small segments.
    assert!(count * 1000 > 4 * SEGMENT_BYTES / 2, "{count}");
    log.wait_durable(clock.now(), never).unwrap();
    assert!(log.failure().is_none());
    assert!(clock.commit(&mut appender, &[1; 1000]).is_err());
    assert!(log.recycle_below(clock.now()).unwrap() > 0);
    let ts = clock.commit(&mut appender, &[2; 1000]).unwrap();
    log.wait_durable(ts, never).unwrap();
    // One that never fits.
    let error = appender.reserve(4 * SEGMENT_BYTES, &never).unwrap_err();
    assert_eq!(error.code(), SqlState::DISK_FULL);
    drop((appender, log));
    let (records, _) = read(device, CommitTs(0)).unwrap();
    assert_eq!(records.last_key_value(), Some((&ts.0, &vec![2; 1000])));
}

#[test]
fn a_reservation_waits_for_a_checkpoint_and_can_be_interrupted() {
    let space = space(Location::Anon, None);
    let clock = Clock::default();
    let config = LogConfig { room_wait: Duration::from_secs(3600), ..config() };
    let log = Log::open(device(&space, 3), config).unwrap().into_log(clock.floor()).unwrap();
    let mut appender = log.appender().unwrap();
    // Nobody makes room: the statement's interrupt ends it.
    let full = || Err(tidepool_base::Error::new(SqlState::QUERY_CANCELED, "canceled"));
    while appender.reserve(1000, &full).is_ok() {
        let ts = CommitTs(clock.now().0 + 1);
        appender.append(ts, RecordKind(1), &[1; 1000]);
        clock.set(ts);
    }
    log.flush().unwrap();
    assert_eq!(appender.reserve(1000, &full).unwrap_err().code(), SqlState::QUERY_CANCELED);
    let waiter = std::thread::spawn(move || {
        appender.reserve(1000, &never).unwrap();
        appender
    });
    while log.recycle_below(log.durable()).unwrap() == 0 {
        std::thread::yield_now();
    }
    drop(waiter.join().unwrap());
}

#[test]
fn threads_append_at_once_and_wait_for_each_other() {
    const THREADS: usize = 6;
    const COMMITS: usize = 400;
    let space = space(Location::Anon, None);
    let device = device(&space, 20);
    // Slots as transactions have them: 0, or a bound below the timestamp that is being drawn.
    let slots: Arc<Vec<AtomicU64>> = Arc::new((0..THREADS).map(|_| AtomicU64::new(0)).collect());
    let clock = Arc::new(AtomicU64::new(1));
    let floor = {
        let (slots, clock) = (slots.clone(), clock.clone());
        move || {
            let now = clock.load(Ordering::SeqCst) - 1;
            let bounds = slots.iter().map(|slot| slot.load(Ordering::SeqCst)).filter(|bound| *bound > 0);
            CommitTs(bounds.map(|bound| bound - 1).fold(now, u64::min))
        }
    };
    let log = Log::open(device.clone(), config()).unwrap().into_log(Box::new(floor)).unwrap();
    let threads: Vec<_> = (0..THREADS)
        .map(|slot| {
            let (log, slots, clock) = (log.clone(), slots.clone(), clock.clone());
            std::thread::spawn(move || {
                let mut appender = log.appender().unwrap();
                let mut committed = Vec::new();
                for number in 0..COMMITS {
                    let payload = vec![slot as u8; number % 300];
                    appender.reserve(payload.len(), &never).unwrap();
                    slots[slot].swap(clock.load(Ordering::SeqCst), Ordering::SeqCst);
                    let ts = CommitTs(clock.fetch_add(1, Ordering::SeqCst));
                    appender.append(ts, RecordKind(1), &payload);
                    slots[slot].store(0, Ordering::Release);
                    if number % 3 > 0 {
                        log.wait_durable(ts, never).unwrap();
                        assert!(log.durable() >= ts);
                    }
                    committed.push((ts.0, payload));
                }
                committed
            })
        })
        .collect();
    let expected: BTreeMap<u64, Vec<u8>> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    log.flush().unwrap();
    assert_eq!(log.durable().0, (THREADS * COMMITS) as u64);
    drop(log);
    assert!(read(device, CommitTs(0)).unwrap().0 == expected);
}

#[test]
fn what_a_device_costs_is_charged_to_the_log() {
    let profile = Profile::preset("cxl-asic").unwrap();
    let space = space(Location::Anon, Some(profile));
    let device = device(&space, 4);
    let clock = Clock::default();
    let log = open(device, &clock).unwrap();
    let mut appender = log.appender().unwrap();
    for _ in 0..50 {
        let ts = clock.commit(&mut appender, &[1; 500]).unwrap();
        log.wait_durable(ts, never).unwrap();
    }
    let paced = space.paced();
    assert!(paced.iter().any(|(purpose, counters)| *purpose == Purpose::Log && counters.stall_ns > 0), "{paced:?}");
}
