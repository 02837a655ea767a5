use crate::{LedgerRow, Purpose, Region};
use std::ptr::NonNull;
use std::sync::Arc;
use tidepool_base::{Result, TablespaceId};
use tidepool_device::{Location, Pacer, Profile};

#[derive(Clone, Debug)]
pub struct TablespaceConfig {
    pub name: String,
    pub location: Location,
    /// `None`: all of a device of fixed size; otherwise required.
    pub size_bytes: Option<u64>,
    /// Pace accesses as this device. `None`: the real thing.
    pub profile: Option<Profile>,
    pub huge_pages: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TablespaceUsage {
    pub size_bytes: u64,
    /// Owned by a purpose other than `Free`.
    pub used_bytes: u64,
    /// Backed by memory, whoever owns it.
    pub resident_bytes: u64,
}

/// A place in which data can live.
#[derive(Debug)]
pub struct Tablespace {}

impl Tablespace {
    pub fn open(_id: TablespaceId, _config: TablespaceConfig) -> Result<Arc<Tablespace>> {
        unimplemented!()
    }

    pub fn id(&self) -> TablespaceId {
        unimplemented!()
    }

    pub fn name(&self) -> &str {
        unimplemented!()
    }

    pub fn config(&self) -> &TablespaceConfig {
        unimplemented!()
    }

    /// The pacer, when the tablespace names a profile.
    pub fn pacer(&self) -> Option<&Pacer> {
        unimplemented!()
    }

    /// An owned run of `len` bytes (64-byte aligned at least, zeroed or not), counted under `purpose` until dropped.
    /// 53200 naming the tablespace when it does not fit.
    pub fn allocate(self: &Arc<Self>, _len: usize, _purpose: Purpose) -> Result<Region> {
        unimplemented!()
    }

    /// Page-granular allocation for the heap's extent hooks: `len` is a multiple of 4096, `align` a power of two.
    /// Never blocks on anything but the tablespace's own mutex and never allocates from the global allocator.
    pub fn allocate_pages(&self, _len: usize, _align: usize, _purpose: Purpose) -> Option<NonNull<u8>> {
        unimplemented!()
    }

    /// # Safety
    /// `[address, address + len)` came from `allocate_pages` (whole or part of a run) with the same purpose and is no longer used.
    pub unsafe fn free_pages(&self, _address: NonNull<u8>, _len: usize, _purpose: Purpose) {
        unimplemented!()
    }

    pub fn contains(&self, _address: *const u8) -> bool {
        unimplemented!()
    }

    pub fn usage(&self) -> TablespaceUsage {
        unimplemented!()
    }

    pub fn ledger(&self) -> Vec<LedgerRow> {
        unimplemented!()
    }

    /// Gives free pages back to the system until at most `keep_bytes` of free memory stay resident. Returns the bytes given back.
    pub fn trim(&self, _keep_bytes: u64) -> Result<u64> {
        unimplemented!()
    }
}
