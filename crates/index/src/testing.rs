//! What tests of several modules need.

#[cfg(not(loom))]
use crate::Index;
use std::sync::Arc;
use tidepool_base::{CommitTs, TablespaceId};
use tidepool_device::{Location, Mapping};
use tidepool_tablespace::{Tablespace, TablespaceConfig};
#[cfg(not(loom))]
use tidepool_txn::HeldSnapshot;
use tidepool_txn::Transactions;

pub fn space(kib: usize) -> Arc<Tablespace> {
    let config = TablespaceConfig {
        name: "t".into(),
        location: Location::Anon,
        size_bytes: Some((kib << 10) as u64),
        profile: None,
        profiles: Vec::new(),
        huge_pages: false,
        populate_bytes: 0,
    };
    Tablespace::over(TablespaceId(7), config, Mapping::heap(kib << 10)).expect("room for a tablespace")
}

#[cfg(not(loom))]
/// An index, and a view that keeps all that ever leaves it.
pub fn index(kib: usize) -> (Index, HeldSnapshot) {
    let transactions = transactions();
    let index = Index::create(space(kib), transactions.clone()).expect("room for an index");
    (index, transactions.worker().expect("a slot").hold())
}

pub fn transactions() -> Arc<Transactions> {
    Transactions::starting_after(CommitTs(0))
}

/// A generator of which a seed is enough to see a failure again.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let mixed = (self.0 ^ self.0 >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 29
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}
