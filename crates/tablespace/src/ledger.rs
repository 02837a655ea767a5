//! The ledger: bytes by (tablespace, purpose).

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
    /// Backed by memory but owned by nobody: kept for the next use, given back when idle.
    Free,
}

impl Purpose {
    pub const ALL: [Purpose; 7] =
        [Purpose::Main, Purpose::Delta, Purpose::Heap, Purpose::Index, Purpose::Log, Purpose::Metadata, Purpose::Free];

    pub fn name(self) -> &'static str {
        match self {
            Purpose::Main => "main",
            Purpose::Delta => "delta",
            Purpose::Heap => "heap",
            Purpose::Index => "index",
            Purpose::Log => "log",
            Purpose::Metadata => "metadata",
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
