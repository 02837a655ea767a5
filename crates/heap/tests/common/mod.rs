//! What the tests of query heaps share: the allocator, tablespaces and random numbers.

use std::sync::Arc;
use tidepool_base::TablespaceId;
use tidepool_device::Location;
use tidepool_heap::TidepoolAllocator;
use tidepool_tablespace::{Tablespace, TablespaceConfig};

#[global_allocator]
static ALLOCATOR: TidepoolAllocator = TidepoolAllocator;

pub const MIB: u64 = 1 << 20;

/// At `TIDEPOOL_TEST_LOCATION` (`numa:1`, for one), or else in ordinary memory. Not at a device or a file: these tests
/// open several tablespaces at once.
pub fn space(name: &str, size: u64) -> Arc<Tablespace> {
    let config = TablespaceConfig {
        name: name.into(),
        location: match std::env::var("TIDEPOOL_TEST_LOCATION") {
            Ok(text) => text.parse().unwrap(),
            Err(_) => Location::Anon,
        },
        size_bytes: Some(size),
        profile: None,
        profiles: Vec::new(),
        huge_pages: false,
        populate_bytes: 0,
    };
    Tablespace::open(TablespaceId(0), config).unwrap()
}

/// Reproducible and without a dependency.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}
