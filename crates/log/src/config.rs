use crate::format::{BLOCK_FRAMES_MAX, DatabaseIdentity};
use std::time::{Duration, SystemTime};

/// How a log behaves. Sizes are of whole segments, so a log may be some larger.
#[derive(Clone, Debug)]
pub struct LogConfig {
    pub identity: DatabaseIdentity,
    /// From here on a checkpoint is wanted (PostgreSQL's `max_wal_size`). A log that needs more takes more, if there is any.
    pub bytes_max: u64,
    /// Kept for the next use when records are superfluous (PostgreSQL's `min_wal_size`).
    pub bytes_min: u64,
    /// Wait so long for others before writing (PostgreSQL's `commit_delay`), if the last time at least `commit_siblings`
    /// threads had something to write.
    pub commit_delay: Duration,
    pub commit_siblings: usize,
    /// What a thread may have appended before it has to see to it being written.
    pub buffer_bytes_max: u64,
    /// What is sealed under one checksum at most, up to 1 MB, if it is more than one record. Small ones are for tests of what
    /// happens between several.
    pub block_bytes_max: usize,
    /// How long a reservation waits for a checkpoint to make room, before it fails.
    pub room_wait: Duration,
    pub notes: NotesUse,
    /// Microseconds since 1970, which the log notes beside commits.
    pub clock: fn() -> u64,
}

fn system_clock() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_micros() as u64)
}

/// What a reader makes of the device's note of segments (`notes.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotesUse {
    /// There must be one.
    Needed,
    /// Where there is one, it counts. Logs of earlier releases have none.
    IfThere,
    /// Nobody needs what the log has.
    Ignored,
}

impl LogConfig {
    pub fn new(identity: DatabaseIdentity) -> LogConfig {
        LogConfig {
            identity,
            bytes_max: 1 << 30,
            bytes_min: 80 << 20,
            commit_delay: Duration::ZERO,
            commit_siblings: 5,
            buffer_bytes_max: 4 << 20,
            block_bytes_max: BLOCK_FRAMES_MAX,
            room_wait: Duration::from_secs(10),
            notes: NotesUse::IfThere,
            clock: system_clock,
        }
    }
}
