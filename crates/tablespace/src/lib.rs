//! Tablespaces: a device's memory divided into extents, owned and counted.
//!
//! Every byte is owned by a (tablespace, purpose) pair and counted once. A tablespace hands out runs of 4 KiB pages, to
//! [`Region`]s (main, delta) and to the query heap's extent hooks alike. The latter run inside the global allocator, so
//! taking and giving back pages never allocates, and waits for nothing but the tablespace's own mutex.
//!
//! The memory of a tablespace is its own, or that of a pool which several processes share: then it leases extents as it needs
//! them (`leased.rs`).
//!
//! Leaves to others: mapping a device and what it costs (`tidepool-device`), which
//! process owns which extent of a pool (`tidepool-pool`), dividing pages into objects
//! (`tidepool-heap`), and when to give idle memory back ([`Tablespace::trim`] is the database's to call).

mod backing;
mod extents;
mod found;
mod layout;
mod leased;
mod ledger;
#[cfg(loom)]
mod no_pool;
mod owners;
mod pacers;
mod paged;
mod region;
mod shape;
mod space;
mod spaces;
mod storage;
mod striped;
mod superblock;
#[cfg(test)]
mod tests;

pub use found::{Contents, Left};
pub use leased::{Claimed, LeaseOptions, PoolPlace, around_growth};
pub use ledger::{LedgerRow, Purpose};
pub use owners::{TABLESPACES_MAX, TAG_MAX, page_tag};
pub use region::Region;
pub use shape::Reshape;
pub use space::{GatherSlot, PageRun, Tablespace, TablespaceConfig, TablespaceUsage};
pub use spaces::{Opener, Tablespaces};
pub use tidepool_device::stop;
