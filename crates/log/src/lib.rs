//! The log: what was committed, in order of being written, on a device that survives.
//!
//! Records are opaque: a commit timestamp, a kind and a payload. Each thread has an [`Appender`], a buffer of its own that
//! shares no lock and no counter with others'. Whoever waits first writes all of them out for everybody and syncs
//! (`group.rs`); the timestamp up to which everything is durable is [`Log::durable`]. The device is a folder of files
//! ([`FileDevice`]) or memory that persists ([`MemoryDevice`]). What is on it, and how its end is told from damage, is in
//! `format.rs`.
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//! use tidepool_base::CommitTs;
//! use tidepool_log::files::{OpenHow, SimulatedFiles};
//! use tidepool_log::{DatabaseIdentity, FileDevice, Log, LogConfig, RecordKind};
//!
//! # fn main() -> tidepool_base::Result<()> {
//! let files = Arc::new(SimulatedFiles::new(1));
//! let device = Arc::new(FileDevice::open(files, "/log".as_ref(), 1 << 20, OpenHow::default())?);
//! let config = LogConfig::new(DatabaseIdentity([1; 16]));
//!
//! // All commits up to here have been appended. There is one thread, so that is the last one's timestamp.
//! let appended = Arc::new(AtomicU64::new(0));
//! let floor = { let appended = appended.clone(); move || CommitTs(appended.load(Ordering::Acquire)) };
//! let log = Log::open(device.clone(), config.clone())?.into_log(Box::new(floor))?;
//!
//! let mut appender = log.appender()?;
//! appender.reserve(5, &|| Ok(()))?;
//! appender.append(CommitTs(10), RecordKind(1), b"hello");
//! appended.store(10, Ordering::Release);
//! log.wait_durable(CommitTs(10), || Ok(()))?;
//! drop((appender, log));
//!
//! let mut recovery = Log::open(device, config)?;
//! let mut record = recovery.next_record()?.expect("it is durable");
//! assert_eq!((record.ts, &*record.payload()?), (CommitTs(10), &b"hello"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! Leaves to others: what records mean (`tidepool-database`), timestamps and when a commit is decided (`tidepool-txn`), when
//! a checkpoint is made, and the thread that calls [`Log::flush`] and [`Log::prepare`].

#[cfg(not(loom))]
mod archive;
mod blocks;
mod channel;
mod config;
mod device;
mod file_device;
pub mod files;
mod format;
mod group;
#[cfg(all(test, loom))]
mod interleavings;
mod log;
mod memory_device;
mod notes;
mod pool_device;
mod reached;
mod recovery;
mod room;
mod seal;
#[cfg(all(test, not(loom)))]
mod simulated;
mod sync;
mod tail;
#[cfg(not(loom))]
mod take_over;
#[cfg(not(loom))]
mod tee;
pub mod waiters;
mod writer;

#[cfg(not(loom))]
pub use archive::{ArchiveState, Archiver, Archiving, DeviceSource, Oldest};
pub use blocks::{Source, Verdict};
pub use config::{LogConfig, NotesUse};
pub use device::{LogDevice, LogSegment, NOTE_BYTES};
pub use file_device::FileDevice;
pub use format::{DatabaseIdentity, LogPosition};
pub use log::{Appender, Call, Floor, Log, RecordKind, SEGMENT_OVERHEAD_BYTES};
pub use memory_device::MemoryDevice;
pub use pool_device::{PoolDevice, PoolHost, PoolSource};
pub use reached::Reached;
pub use recovery::{LogEnd, Record, Recovery};
pub use seal::{Sealed, seal_before};
pub use tail::{Batch, Before, Begun, Next, Tail, TailRecord, Until};
#[cfg(not(loom))]
pub use take_over::{PoolTail, Primary, TakeOver};
#[cfg(not(loom))]
pub use tee::{CopiedCall, FileSource, FilesEnd, Tee, TeeWriter};

/// Where [`tidepool_base::crash_point`] can end the process in this crate.
pub const CRASH_POINTS: &[&str] = &[
    "log.appended",
    "log.write",
    "log.written",
    "log.synced",
    "log.segment.created",
    "log.segment.filled",
    "log.segment.begun",
    "log.noted",
    "log.segment.renamed",
    "log.segment.removed",
    "log.recycle",
];

/// Where it can be ended in a log that lies in a pool.
#[cfg(not(loom))]
pub const POOL_CRASH_POINTS: &[&str] = &[
    "log.segment.leased",
    "log.segment.forgotten",
    "log.term.begun",
    "log.sealing",
    "log.sealed",
    "log.tee.header",
    "log.tee.block",
];

/// Where it can be ended in a log that is archived.
pub const ARCHIVE_CRASH_POINTS: &[&str] = &["log.archived", "log.archive.noted"];
