//! What several of the tests need.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidepool_base::{CommitTs, Result};
use tidepool_log::{Appender, DatabaseIdentity, Floor, Log, LogConfig, LogDevice, LogEnd, RecordKind};

pub const IDENTITY: DatabaseIdentity = DatabaseIdentity([3; 16]);

pub fn never() -> Result<()> {
    Ok(())
}

/// Pseudo-random numbers. Its number must not be 0.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Timestamps of a single thread: all that were drawn are appended.
#[derive(Clone, Default)]
pub struct Clock(Arc<AtomicU64>);

impl Clock {
    pub fn floor(&self) -> Floor {
        let appended = self.0.clone();
        Box::new(move || CommitTs(appended.load(Ordering::Acquire)))
    }

    pub fn now(&self) -> CommitTs {
        CommitTs(self.0.load(Ordering::Acquire))
    }

    pub fn set(&self, ts: CommitTs) {
        self.0.fetch_max(ts.0, Ordering::AcqRel);
    }

    /// Appends a record at the next timestamp.
    pub fn commit(&self, appender: &mut Appender, payload: &[u8]) -> Result<CommitTs> {
        appender.reserve(payload.len(), &never)?;
        let ts = CommitTs(self.now().0 + 1);
        appender.append(ts, RecordKind(1), payload);
        self.set(ts);
        Ok(ts)
    }
}

pub fn config() -> LogConfig {
    LogConfig { room_wait: std::time::Duration::ZERO, ..LogConfig::new(IDENTITY) }
}

/// All records after `after`, and how the log ended.
pub fn read(device: Arc<dyn LogDevice>, after: CommitTs) -> Result<(BTreeMap<u64, Vec<u8>>, LogEnd)> {
    let mut recovery = Log::open(device, config())?;
    recovery.skip_to(after);
    let mut records = BTreeMap::new();
    while let Some(mut record) = recovery.next_record()? {
        let payload = record.payload()?.into_owned();
        assert!(records.insert(record.ts.0, payload).is_none(), "{} is there twice", record.ts);
    }
    Ok((records, recovery.tail().expect("all was read")))
}

pub fn open(device: Arc<dyn LogDevice>, clock: &Clock) -> Result<Arc<Log>> {
    let mut recovery = Log::open(device, config())?;
    while recovery.next_record()?.is_some() {}
    clock.set(recovery.ts_max());
    recovery.into_log(clock.floor())
}
