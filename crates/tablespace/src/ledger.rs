//! The ledger: bytes by (tablespace, purpose).

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Encoded segments of main.
    Main,
    /// Rows not yet merged (later: delta).
    Delta,
    /// Query heap.
    Heap,
    Index,
    Log,
    /// Headers, superblocks, allocator state.
    Metadata,
    /// Room that nobody else gets, for memory of the process's own that is taken in its place. Not backed.
    Reserved,
    /// Backed by memory but owned by nobody: kept for the next use, given back when idle.
    Free,
}

impl Purpose {
    pub const ALL: [Purpose; 8] = [
        Purpose::Main,
        Purpose::Delta,
        Purpose::Heap,
        Purpose::Index,
        Purpose::Log,
        Purpose::Metadata,
        Purpose::Reserved,
        Purpose::Free,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Purpose::Main => "main",
            Purpose::Delta => "delta",
            Purpose::Heap => "heap",
            Purpose::Index => "index",
            Purpose::Log => "log",
            Purpose::Metadata => "metadata",
            Purpose::Reserved => "reserved",
            Purpose::Free => "free",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerRow {
    pub tablespace: String,
    pub purpose: Purpose,
    pub bytes: u64,
    pub bytes_peak: u64,
}

/// One tablespace's part of the ledger. Changed inside the global allocator, so it only counts.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    bytes: [AtomicU64; Purpose::ALL.len()],
    bytes_peak: [AtomicU64; Purpose::ALL.len()],
}

impl Ledger {
    pub fn add(&self, purpose: Purpose, bytes: u64) {
        let now = self.bytes[purpose as usize].fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.bytes_peak[purpose as usize].fetch_max(now, Ordering::Relaxed);
    }

    pub fn subtract(&self, purpose: Purpose, bytes: u64) {
        let before = self.bytes[purpose as usize].fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "more of {} is freed than was taken", purpose.name());
    }

    /// For `Free`, which follows from the others.
    pub fn set(&self, purpose: Purpose, bytes: u64) {
        self.bytes[purpose as usize].store(bytes, Ordering::Relaxed);
        self.bytes_peak[purpose as usize].fetch_max(bytes, Ordering::Relaxed);
    }

    pub fn bytes(&self, purpose: Purpose) -> u64 {
        self.bytes[purpose as usize].load(Ordering::Relaxed)
    }

    pub fn rows(&self, tablespace: &str) -> Vec<LedgerRow> {
        Purpose::ALL
            .into_iter()
            .map(|purpose| LedgerRow {
                tablespace: tablespace.to_owned(),
                purpose,
                bytes: self.bytes(purpose),
                bytes_peak: self.bytes_peak[purpose as usize].load(Ordering::Relaxed),
            })
            .collect()
    }
}
