//! Segments of the log, as a crash, a disk or a stranger may have left them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tidepool_base::{CommitTs, Error, Result};
use tidepool_log::{DatabaseIdentity, Log, LogConfig, LogDevice, LogSegment, NOTE_BYTES, RecordKind};
use xxhash_rust::xxh3::xxh3_64_with_seed;

const SEGMENT_BYTES: usize = 64 << 10;
const SEGMENTS_MAX: usize = 8;
const IDENTITY: DatabaseIdentity = DatabaseIdentity([3; 16]);
const HEADER_BYTES: usize = 4096;
const HEADER_FIELDS_BYTES: usize = 128;
const BLOCK_HEADER_BYTES: usize = 64;

type SegmentBytes = Arc<Mutex<Vec<u8>>>;

/// Segments in memory, and the two lines of the note about them.
#[derive(Clone, Debug, Default)]
struct Segments {
    segments: Arc<Mutex<BTreeMap<u64, SegmentBytes>>>,
    notes: Arc<Mutex<BTreeMap<bool, [u8; NOTE_BYTES]>>>,
}

impl Segments {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, SegmentBytes>> {
        self.segments.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn lock_notes(&self) -> MutexGuard<'_, BTreeMap<bool, [u8; NOTE_BYTES]>> {
        self.notes.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn put(&self, number: u64, bytes: Vec<u8>) -> Arc<dyn LogSegment> {
        let bytes = Arc::new(Mutex::new(bytes));
        self.lock().insert(number, bytes.clone());
        Arc::new(Segment(bytes))
    }
}

#[derive(Debug)]
struct Segment(SegmentBytes);

impl Segment {
    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl LogSegment for Segment {
    fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<usize> {
        let segment = self.lock();
        let from = segment.get(offset..).unwrap_or_default();
        let count = from.len().min(bytes.len());
        bytes[..count].copy_from_slice(&from[..count]);
        Ok(count)
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let mut segment = self.lock();
        let place = segment.get_mut(offset..offset + bytes.len());
        place.ok_or_else(|| Error::internal("written past a segment's end"))?.copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

impl LogDevice for Segments {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn segment_name(&self, number: u64) -> String {
        number.to_string()
    }

    fn segment_bytes(&self) -> usize {
        SEGMENT_BYTES
    }

    fn segments_max(&self) -> u64 {
        64
    }

    fn write_alignment(&self) -> usize {
        64
    }

    fn block_alignment(&self) -> usize {
        64
    }

    fn segments(&self) -> Result<Vec<u64>> {
        Ok(self.lock().keys().copied().collect())
    }

    fn open(&self, number: u64) -> Result<Arc<dyn LogSegment>> {
        let segments = self.lock();
        let bytes =
            segments.get(&number).ok_or_else(|| Error::corrupted(format!("there is no log segment {number}")))?;
        Ok(Arc::new(Segment(bytes.clone())))
    }

    fn create(&self, number: u64) -> Result<Arc<dyn LogSegment>> {
        Ok(self.put(number, vec![0; SEGMENT_BYTES]))
    }

    fn recycle(&self, source: u64, target: u64) -> Result<Arc<dyn LogSegment>> {
        let bytes =
            self.lock().remove(&source).ok_or_else(|| Error::corrupted(format!("there is no log segment {source}")))?;
        self.lock().insert(target, bytes.clone());
        Ok(Arc::new(Segment(bytes)))
    }

    fn remove(&self, number: u64) -> Result<()> {
        self.lock().remove(&number);
        Ok(())
    }

    fn notes(&self) -> Result<Vec<[u8; NOTE_BYTES]>> {
        Ok(self.lock_notes().values().copied().collect())
    }

    fn write_note(&self, second: bool, line: &[u8; NOTE_BYTES]) -> Result<()> {
        self.lock_notes().insert(second, *line);
        Ok(())
    }
}

fn config() -> LogConfig {
    LogConfig { room_wait: Duration::ZERO, ..LogConfig::new(IDENTITY) }
}

/// Payloads by timestamp.
type Records = BTreeMap<u64, Vec<u8>>;

/// All records, the log behind them, and its floor.
fn open(segments: &Segments) -> Result<(Records, Arc<Log>, Arc<AtomicU64>)> {
    let mut recovery = Log::open(Arc::new(segments.clone()), config())?;
    let mut records = Records::new();
    while let Some(mut record) = recovery.next_record()? {
        let ts = record.ts.0;
        records.insert(ts, record.payload()?.into_owned());
    }
    let floor = Arc::new(AtomicU64::new(records.keys().next_back().copied().unwrap_or(0)));
    let log_floor = floor.clone();
    let log = recovery.into_log(Box::new(move || CommitTs(log_floor.load(Ordering::Acquire))))?;
    Ok((records, log, floor))
}

fn append(log: &Arc<Log>, floor: &AtomicU64, ts: u64, payload: &[u8]) -> Result<()> {
    let mut appender = log.appender()?;
    appender.reserve(payload.len(), &|| Ok(()))?;
    appender.append(CommitTs(ts), RecordKind(1), payload);
    floor.store(ts, Ordering::Release);
    log.wait_durable(CommitTs(ts), || Ok(()))
}

/// A byte that says whether checksums are put right, then each segment without the zeros at its end: its length in two
/// bytes, and its bytes.
pub fn seeds() -> Vec<Vec<u8>> {
    let made = |records: u64, len: usize| -> Result<Vec<u8>> {
        let segments = Segments::default();
        let (_, log, floor) = open(&segments)?;
        for ts in 1..=records {
            append(&log, &floor, ts, &vec![ts as u8; len * ts as usize % 30_000])?;
        }
        drop(log);
        let mut input = vec![1];
        for bytes in segments.lock().values() {
            let bytes = bytes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1).min(usize::from(u16::MAX));
            input.extend_from_slice(&(used as u16).to_le_bytes());
            input.extend_from_slice(&bytes[..used]);
        }
        Ok(input)
    };
    [(0, 1), (1, 10), (5, 100), (20, 7), (12, 4000), (3, 40_000)]
        .into_iter()
        .map(|(records, len)| made(records, len).unwrap_or_else(|error| panic!("{error}")))
        .flat_map(|seed| [[&[0], &seed[1..]].concat(), seed])
        .collect()
}

/// Right checksums and chains for whatever looks like a segment's header and its blocks.
fn seal(bytes: &mut [u8], chain: &mut u64) {
    let seed = xxh3_64_with_seed(&IDENTITY.0, 0);
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
    if &bytes[8..16] == b"TIDEPLOG" {
        bytes[56..64].copy_from_slice(&chain.to_le_bytes());
        let checksum = xxh3_64_with_seed(&bytes[8..HEADER_FIELDS_BYTES], seed);
        bytes[..8].copy_from_slice(&checksum.to_le_bytes());
    }
    let mut at = HEADER_BYTES;
    while at + BLOCK_HEADER_BYTES <= bytes.len() {
        let frames = (word(bytes, at + 8) >> 32) as usize;
        let end = at + BLOCK_HEADER_BYTES + frames;
        if &bytes[at + 8..at + 12] != b"BLK1" || end > bytes.len() {
            at += 64;
            continue;
        }
        bytes[at + 24..at + 32].copy_from_slice(&chain.to_le_bytes());
        *chain = xxh3_64_with_seed(&bytes[at + 8..end], seed);
        bytes[at..at + 8].copy_from_slice(&chain.to_le_bytes());
        at = end.next_multiple_of(64);
    }
}

/// The note that segments 1 to `begun` were begun.
fn note(begun: u64) -> [u8; NOTE_BYTES] {
    let mut line = [0; NOTE_BYTES];
    line[8..16].copy_from_slice(b"TIDESEGS");
    for (at, value) in [(16, 1), (24, 1), (32, begun)] {
        line[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
    }
    let checksum = xxh3_64_with_seed(&line[8..], xxh3_64_with_seed(&IDENTITY.0, 0));
    line[..8].copy_from_slice(&checksum.to_le_bytes());
    line
}

/// A log is refused, or read to its end; then it takes another record. Unless checksums were put right, which makes logs that no
/// writer leaves, it has this and all that it had when it is opened again.
pub fn run(input: &[u8]) {
    let Some((seals, mut rest)) = input.split_first() else { return };
    let segments = Segments::default();
    let (mut number, mut chain) = (1, 0);
    while let Some((len, after)) = rest.split_first_chunk::<2>()
        && number <= SEGMENTS_MAX as u64
    {
        let len = usize::from(u16::from_le_bytes(*len)).min(after.len());
        let mut bytes = after[..len].to_vec();
        bytes.resize(SEGMENT_BYTES, 0);
        if seals % 2 == 1 {
            seal(&mut bytes, &mut chain);
        }
        segments.put(number, bytes);
        rest = &after[len..];
        number += 1;
    }
    // As their writer noted it: all of them were begun.
    segments.lock_notes().insert(false, note(number - 1));
    let Ok((records, log, floor)) = open(&segments) else { return };
    let last = floor.load(Ordering::Acquire);
    if last >= u64::MAX / 2 {
        return;
    }
    if append(&log, &floor, last + 1, b"another one").is_err() {
        return;
    }
    drop(log);
    let again = open(&segments);
    if seals % 2 == 1 {
        return;
    }
    let (again, ..) = again.unwrap_or_else(|error| panic!("a log that was written cannot be read: {error}"));
    assert_eq!(again.get(&(last + 1)).map(Vec::as_slice), Some(&b"another one"[..]), "what was acknowledged is gone");
    for (ts, payload) in &records {
        assert!(again.get(ts) == Some(payload), "the record of {ts} is not what it was");
    }
}
