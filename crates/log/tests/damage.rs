//! Damage in the middle is told from an end that was cut short, whichever byte it is; other databases' and other sizes' segments
//! are refused.

mod common;

use common::{Clock, IDENTITY, config, never, open, read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidepool_base::{CommitTs, SqlState};
use tidepool_log::files::{Files, OpenHow, SimulatedFiles};
use tidepool_log::{DatabaseIdentity, FileDevice, Log, LogConfig, LogDevice, LogEnd, NotesUse};

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
    assert!(matches!(tail, LogEnd::Clean(_)));
}

fn log_device(files: &SimulatedFiles) -> Arc<FileDevice> {
    device(files, SEGMENT_BYTES)
}

#[test]
fn damage_before_the_end_is_an_error_with_its_place() {
    let files = log_of(20, 300);
    let (records, tail) = read(log_device(&files), CommitTs(0)).unwrap();
    assert_eq!(records.len(), 20);
    assert!(matches!(tail, LogEnd::Clean(_)));
    // Blocks start at pages: of the first 19 no byte of header or frame may change.
    let mut noticed = 0;
    for block in 1..20usize {
        for byte in [0, 8, 13, 20, 30, 45, 63, 64, 100, 64 + 300] {
            let offset = block * 4096 + byte;
            files.damage(&segment(1), offset, |byte| *byte ^= 0x40);
            let error = read(log_device(&files), CommitTs(0)).map(|(records, _)| records.len()).unwrap_err();
            assert_eq!(error.code(), SqlState::DATA_CORRUPTED);
            // Header, frame and the mark of the time.
            let ends = (64usize + 320 + 32).next_multiple_of(64);
            let place = if block == 1 { 4096 } else { (block - 1) * 4096 + ends };
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
    assert!(matches!(tail, LogEnd::Torn(_)), "{tail:?}");
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
    // All of the first are gone, and no checkpoint gave them up.
    files.rename(&segment(1), Path::new("/elsewhere1")).unwrap();
    files.rename(&segment(2), Path::new("/elsewhere2")).unwrap();
    let error = read(log_device(&files), CommitTs(0)).unwrap_err();
    assert!(error.message().contains("0000000000000001.log\" is missing"), "{error}");
}

/// The greatest number of a segment that is begun, and of one that is there.
fn last_segments(files: &SimulatedFiles) -> (u64, u64) {
    let device = log_device(files);
    let numbers = device.segments().unwrap();
    let is_begun = |number: &u64| {
        let mut start = [0; 64];
        device.open(*number).unwrap().read(0, &mut start).unwrap();
        start[8..16] == *b"TIDEPLOG" && start[48..56] == number.to_le_bytes()
    };
    (numbers.iter().copied().rfind(is_begun).unwrap(), *numbers.last().unwrap())
}

#[test]
fn the_last_segment_is_missed_however_it_went() {
    for count in [1, 20, 400] {
        let files = log_of(count, 900);
        // One more is there that was never begun.
        let log = open(log_device(&files), &Clock::default()).unwrap();
        log.prepare().unwrap();
        drop(log);
        let (begun, last) = last_segments(&files);
        assert!(begun < last, "{begun} {last}");
        let expect = |what: &str, told: &str| {
            let error = read(log_device(&files), CommitTs(0)).map(|(records, _)| records.len()).unwrap_err();
            assert_eq!(error.code(), SqlState::DATA_CORRUPTED, "{what}");
            let name = segment(begun);
            assert!(
                error.message().contains(name.to_str().unwrap()) && error.message().contains(told),
                "{what}: {error}"
            );
        };
        let aside = Path::new("/aside");
        let restore = || files.rename(aside, &segment(begun)).unwrap();
        files.rename(&segment(begun), aside).unwrap();
        expect("removed", "is missing");
        drop(files.create(&segment(begun), OpenHow::default()).unwrap());
        expect("emptied", "has nothing of the log");
        files.rename(&segment(last), &segment(begun)).unwrap();
        expect("replaced by an unused one", "has nothing of the log");
        restore();
        // And with it all that came before.
        files.rename(&segment(begun), aside).unwrap();
        let before: Vec<_> = (1..begun).map(|number| (segment(number), PathBuf::from(format!("/{number}")))).collect();
        before.iter().for_each(|(from, to)| files.rename(from, to).unwrap());
        assert_eq!(read(log_device(&files), CommitTs(0)).unwrap_err().code(), SqlState::DATA_CORRUPTED);
        before.iter().for_each(|(from, to)| files.rename(to, from).unwrap());
        restore();
        let file = files.open(&segment(begun), OpenHow::default()).unwrap();
        file.set_len(SEGMENT_BYTES as u64 / 2).unwrap();
        expect("cut off", "is cut off");
        file.set_len(SEGMENT_BYTES as u64).unwrap();
        // The one that was prepared is nobody's loss.
        let (records, _) = read(log_device(&files), CommitTs(0)).unwrap();
        assert!(!records.is_empty());
    }
}

#[test]
fn the_first_segment_is_missed_unless_a_checkpoint_gave_it_up() {
    let files = SimulatedFiles::new(1);
    let clock = Clock::default();
    let mut config = config();
    // What is superfluous goes.
    config.bytes_min = 0;
    let log = Log::open(log_device(&files), config).unwrap().into_log(clock.floor()).unwrap();
    let mut appender = log.appender().unwrap();
    for _ in 0..400 {
        let ts = clock.commit(&mut appender, &[5; 900]).unwrap();
        log.wait_durable(ts, never).unwrap();
    }
    let kept = CommitTs(clock.now().0 - 100);
    assert!(log.recycle_below(kept).unwrap() > 0);
    drop((appender, log));
    let first = log_device(&files).segments().unwrap()[0];
    assert!(first > 1);
    assert_eq!(read(log_device(&files), kept).unwrap().0.len(), 100);
    files.rename(&segment(first), Path::new("/aside")).unwrap();
    let error = read(log_device(&files), kept).unwrap_err();
    assert!(error.message().contains("is missing"), "{error}");
    // To who needs nothing of it, it is no loss.
    let ignored = LogConfig { notes: NotesUse::Ignored, ..common::config() };
    let mut recovery = Log::open(log_device(&files), ignored).unwrap();
    while recovery.next_record().unwrap().is_some() {}
}

#[test]
fn the_note_of_segments_is_missed_where_there_must_be_one() {
    let files = log_of(3, 300);
    let needed = LogConfig { notes: NotesUse::Needed, ..config() };
    Log::open(log_device(&files), needed.clone()).unwrap();
    let note = Path::new("/log/SEGMENTS");
    // A torn line leaves the other; what the log says is as true.
    for line in [0, 4096] {
        files.damage(note, line + 30, |byte| *byte ^= 1);
        Log::open(log_device(&files), needed.clone()).unwrap();
        files.damage(note, line + 30, |byte| *byte ^= 1);
    }
    for line in [0, 4096] {
        files.damage(note, line + 30, |byte| *byte ^= 1);
    }
    let error = Log::open(log_device(&files), needed.clone()).unwrap_err();
    assert_eq!(error.code(), SqlState::DATA_CORRUPTED);
    files.rename(note, Path::new("/aside")).unwrap();
    assert_eq!(Log::open(log_device(&files), needed.clone()).unwrap_err().code(), SqlState::DATA_CORRUPTED);
    // A log of an earlier release has none, and gets one when it is opened for writing.
    assert_eq!(read(log_device(&files), CommitTs(0)).unwrap().0.len(), 3);
    drop(open(log_device(&files), &Clock::default()).unwrap());
    Log::open(log_device(&files), needed).unwrap();
}

/// A process draws timestamps behind those of all before it. One that does not has committed at a timestamp twice.
#[test]
fn a_timestamp_of_an_earlier_process_is_told() {
    for late in [1, 3] {
        let files = log_of(3, 300);
        let clock = Clock::default();
        clock.set(CommitTs(late - 1));
        let log = Log::open(log_device(&files), config()).unwrap().into_log(clock.floor()).unwrap();
        let mut appender = log.appender().unwrap();
        clock.commit(&mut appender, &[1; 30]).unwrap();
        drop((appender, log));
        let error = read(log_device(&files), CommitTs(0)).unwrap_err();
        assert_eq!(error.code(), SqlState::DATA_CORRUPTED);
        assert!(error.message().contains(&format!("timestamp {late} twice")), "{error}");
    }
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
        assert!(matches!(tail, LogEnd::Clean(_)));
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
    assert!(records.is_empty() && matches!(tail, LogEnd::Torn(_)));
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
