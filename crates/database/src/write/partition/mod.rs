//! Partitioned tables: the tree of their partitions, and rows on their way to and within it.
//!
//! A partitioned table's [`PartitionTree`] has its *leaves*: the partitions, and partitions' partitions, that have rows.
//! They are called by their *ordinal*, in the order of what they have. Each leaf is a table of its own, with its own lock,
//! placement, indexes and merges: rows are written to it as to any, so nothing below this module knows of partitions.
//!
//! A scan of a partitioned table that gives rows' ids has the ordinal in their upper bits:
//!
//! ```text
//! 63  62       48 47             17 16            0
//! [0][  ordinal  |      range      |   position    ]
//! ```

mod change;
mod ddl;
mod error;
mod route;
mod state;
mod text;
mod tree;

pub use change::ChangedRows;
pub use ddl::NewPartition;
pub(crate) use route::{Routing, Share, pick};
pub use text::{bound_literal, bound_text};
pub use tree::PartitionTree;
pub(crate) use tree::{Membership, PartitionTrees};

use tidepool_base::RowId;

const ORDINAL_SHIFT: u32 = 48;

/// Leaves of one partitioned table: what ordinals can tell apart, in numbers that are not negative.
pub const PARTITIONS_MAX: usize = 1 << (63 - ORDINAL_SHIFT);

/// What is added to a row's id to name it within a partitioned table.
pub fn ordinal_bits(ordinal: usize) -> u64 {
    (ordinal as u64) << ORDINAL_SHIFT
}

/// The leaf that a row named within a partitioned table is of, and its id there.
pub fn split_id(id: RowId) -> (usize, RowId) {
    ((id.0 >> ORDINAL_SHIFT) as usize, RowId(id.0 & ((1 << ORDINAL_SHIFT) - 1)))
}
