//! Tablespaces: a device's memory divided into extents, owned and counted.
//!
//! Every byte is owned by a (tablespace, purpose) pair and counted once.

mod ledger;
mod region;
mod space;
mod spaces;

pub use ledger::{LedgerRow, Purpose};
pub use region::Region;
pub use space::{Tablespace, TablespaceConfig, TablespaceUsage};
pub use spaces::Tablespaces;
