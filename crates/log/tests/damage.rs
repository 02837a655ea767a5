//! Damage in the middle is told from an end that was cut short, whichever byte it is; other databases' and other sizes' segments
//! are refused.

mod common;

use common::{Clock, IDENTITY, config, never, open, read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidepool_base::{CommitTs, SqlState};
use tidepool_log::files::{Files, OpenHow, SimulatedFiles};
use tidepool_log::{DatabaseIdentity, FileDevice, Log, LogConfig, Tail};

const SEGMENT_BYTES: usize = 128 << 10;

fn device(files: &SimulatedFiles, segment_bytes: usize) -> Arc<FileDevice> {
    let files = Arc::new(files.clone());
    Arc::new(FileDevice::open(files, Path::new("/log"), segment_bytes, OpenHow::default()).unwrap())
}

fn segment(number: u64) -> PathBuf {
    format!("/log/{number:016x}.log").into()
}

/// A log of so many records, each durable before the next.
fn log_of(count: u64, len: usize) -> SimulatedFiles {
    let files = SimulatedFiles::new(1);
    let clock = Clock::default();
    let log = open(device(&files, SEGMENT_BYTES), &clock).unwrap();
    let mut appender = log.appender().unwrap();
    for _ in 0..count {
        let ts = clock.commit(&mut appender, &vec![5; len]).unwrap();
        log.wait_durable(ts, never).unwrap();
    }
    files
}

#[test]
fn an_empty_log_is_empty() {
    let (records, tail) = read(log_device(&SimulatedFiles::new(1)), CommitTs(0)).unwrap();
    assert!(records.is_empty());
    assert!(matches!(tail, Tail::Clean(_)));
}

fn log_device(files: &SimulatedFiles) -> Arc<FileDevice> {
    device(files, SEGMENT_BYTES)
}

#[test]
fn damage_before_the_end_is_an_error_with_its_place() {
    let files = log_of(20, 300);
    let (records, tail) = read(log_device(&files), CommitTs(0)).unwrap();
    assert_eq!(records.len(), 20);
    assert!(matches!(tail, Tail::Clean(_)));
    // Blocks start at pages: of the first 19 no byte of header or frame may change.
    let mut noticed = 0;
    for block in 1..20usize {
        for byte in [0, 8, 13, 20, 30, 45, 63, 64, 100, 64 + 300] {
            let offset = block * 4096 + byte;
            files.damage(&segment(1), offset, |byte| *byte ^= 0x40);
            let error = read(log_device(&files), CommitTs(0)).map(|(records, _)| records.len()).unwrap_err();
            assert_eq!(error.code(), SqlState::DATA_CORRUPTED);
            let place = if block == 1 { 4096 } else { (block - 1) * 4096 + 64 + 320 };
            assert!(
                error.message().contains("0000000000000001.log") && error.message().contains(&format!("byte {place} ")),
                "{error}"
            );
            files.damage(&segment(1), offset, |byte| *byte ^= 0x40);
            noticed += 1;
        }
    }
    assert_eq!(noticed, 190);
    // The last one is an end that was cut short: nobody can tell it from one.
    files.damage(&segment(1), 20 * 4096 + 100, |byte| *byte ^= 1);
    let (records, tail) = read(log_device(&files), CommitTs(0)).unwrap();
    assert_eq!(records.len(), 19);
    assert!(matches!(tail, Tail::Torn(_)), "{tail:?}");
}

#[test]
fn a_missing_or_damaged_segment_is_an_error_if_later_ones_are_begun() {
    let files = log_of(400, 900);
    let count = files.list(Path::new("/log")).unwrap().len() as u64;
    assert!(count > 5);
    for number in 1..count - 1 {
        files.damage(&segment(number), 50, |byte| *byte ^= 1);
        let error = read(log_device(&files), CommitTs(0)).unwrap_err();
        assert_eq!(error.code(), SqlState::DATA_CORRUPTED, "segment {number}");
        files.damage(&segment(number), 50, |byte| *byte ^= 1);
    }
    assert_eq!(read(log_device(&files), CommitTs(0)).unwrap().0.len(), 400);
    files.rename(&segment(3), Path::new("/elsewhere")).unwrap();
    assert_eq!(read(log_device(&files), CommitTs(0)).unwrap_err().code(), SqlState::DATA_CORRUPTED);
    // All of the first are gone: to its reader that is what a checkpoint recycled.
    files.rename(&segment(1), Path::new("/elsewhere1")).unwrap();
    files.rename(&segment(2), Path::new("/elsewhere2")).unwrap();
    let (records, _) = read(log_device(&files), CommitTs(0)).unwrap();
    assert!(!records.is_empty() && records.len() < 400);
}

#[test]
fn bytes_of_an_earlier_use_are_nothing() {
    // Several rounds through the same segments, with records of the same size at the same places.
    let files = SimulatedFiles::new(1);
    let clock = Clock::default();
    for life in 0..6 {
        let log = open(log_device(&files), &clock).unwrap();
        let mut appender = log.appender().unwrap();
        for _ in 0..100 + life {
            let ts = clock.commit(&mut appender, &[life as u8; 900]).unwrap();
            log.wait_durable(ts, never).unwrap();
        }
        drop(appender);
        let kept = CommitTs(clock.now().0 - 10);
        log.recycle_below(kept).unwrap();
        drop(log);
        let (records, tail) = read(log_device(&files), kept).unwrap();
        assert_eq!(records.len(), 10, "life {life}");
        assert!(matches!(tail, Tail::Clean(_)));
    }
}

#[test]
fn what_a_crash_left_behind_the_end_never_follows_what_is_written_there() {
    // Three blocks of a page each in one round, of which the first is torn: nothing was acknowledged.
    const PAGE_OF_PAYLOAD: usize = 4096 - 64 - 16;
    let files = SimulatedFiles::new(1);
    let clock = Clock::default();
    let config = LogConfig { block_bytes_max: 1, ..config() };
    let log = Log::open(log_device(&files), config).unwrap().into_log(clock.floor()).unwrap();
    let mut appender = log.appender().unwrap();
    for _ in 0..3 {
        clock.commit(&mut appender, &[1; PAGE_OF_PAYLOAD]).unwrap();
    }
    log.flush().unwrap();
    drop((appender, log));
    files.damage(&segment(1), 4096 + 1000, |byte| *byte ^= 1);
    let (records, tail) = read(log_device(&files), CommitTs(0)).unwrap();
    assert!(records.is_empty() && matches!(tail, Tail::Torn(_)));
    // The next life writes a page there. What follows it is valid in itself.
    let log = open(log_device(&files), &clock).unwrap();
    let mut appender = log.appender().unwrap();
    let ts = clock.commit(&mut appender, &[2; PAGE_OF_PAYLOAD]).unwrap();
    log.wait_durable(ts, never).unwrap();
    drop((appender, log));
    let (records, _) = read(log_device(&files), CommitTs(0)).unwrap();
    assert_eq!(records.into_keys().collect::<Vec<_>>(), [ts.0]);
}

#[test]
fn segments_of_others_are_refused() {
    let files = log_of(5, 100);
    let other = LogConfig { identity: DatabaseIdentity([9; 16]), ..config() };
    let error = Log::open(log_device(&files), other).unwrap_err();
    assert_eq!(error.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    assert!(error.message().contains("another database") && error.detail().unwrap().contains(&IDENTITY.to_string()));
    let error = Log::open(device(&files, 2 * SEGMENT_BYTES), config()).unwrap_err();
    assert_eq!(error.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    for bytes in [0, 4096, 100_000, 2 << 30] {
        let files = Arc::new(files.clone());
        let error = FileDevice::open(files, Path::new("/log"), bytes, OpenHow::default()).unwrap_err();
        assert_eq!(error.code(), SqlState::INVALID_PARAMETER_VALUE);
    }
}
