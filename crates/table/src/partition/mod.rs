//! Partitions: how a partitioned table's rows are divided among other tables, as PostgreSQL divides them.
//!
//! A partitioned table has a definition and no rows; each partition is a table of its own, with the same columns in the
//! same order. What belongs where is said by the partitioned table's definition alone ([`Partitioning`]); a partition
//! knows only whose it is. [`PartitionMap`] is that made ready: it finds the partition of each row of a batch, the
//! partitions that conditions leave, and what stands in a new partition's way.
//!
//! All of it is done with keys as indexes have them ([`tidepool_index::key`]), each column one that may be NULL, in
//! ascending order with NULL last:
//!
//! * `RANGE`: a bound is a key cut off where it says `MINVALUE`; where it says `MAXVALUE` it is the least that is above
//!   all keys which begin with what comes before. A partition has the keys from its lower bound up to, but not including, its upper one. A key with
//!   NULL in it belongs to the default partition.
//! * `LIST`: a partition has the keys listed.
//! * `HASH`: a partition has the keys whose hash, divided by its modulus, leaves its remainder. The hash is XXH3 with 64
//!   bits, seed 0, of the key's bytes. It is in data folders, so it stays: a test holds some values.

mod map;
mod prune;
#[cfg(test)]
mod tests;

pub use map::{Misfit, PartitionMap};

use serde::{Deserialize, Serialize};
use tidepool_base::TableId;

/// How a partitioned table's rows are divided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partitioning {
    pub strategy: PartitionStrategy,
    /// Numbers of the columns that decide, in the order of the key.
    pub columns: Vec<u16>,
    /// In the order in which they came.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<PartitionDef>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartitionStrategy {
    Range,
    List,
    Hash,
}

impl PartitionStrategy {
    /// As SQL has it.
    pub fn name(self) -> &'static str {
        match self {
            PartitionStrategy::Range => "range",
            PartitionStrategy::List => "list",
            PartitionStrategy::Hash => "hash",
        }
    }
}

/// A partition: a table, and which rows it has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionDef {
    pub id: TableId,
    pub bound: PartitionBound,
}

/// Which rows a partition has. Values are text as PostgreSQL writes it (dates and times in ISO style, UTC).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartitionBound {
    /// `FROM` inclusive, `TO` exclusive; as many values as the key has columns.
    Range {
        from: Vec<RangeBound>,
        to: Vec<RangeBound>,
    },
    /// `None` is NULL.
    List {
        values: Vec<Option<String>>,
    },
    Hash {
        modulus: u32,
        remainder: u32,
    },
    /// What no other partition has.
    Default,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RangeBound {
    MinValue,
    Value(String),
    MaxValue,
}
