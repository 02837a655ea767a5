//! What indexes are used for, for the recorded workload.

use super::TableIndex;
use serde::{Deserialize, Serialize};
use tidepool_index::Touched;

/// What uses of one index came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IndexUse {
    /// Keys and ranges of keys that scans looked up.
    pub lookups: u64,
    /// Entries that they found.
    pub entries: u64,
    /// By these lookups; by writes and the checks of uniqueness before them; by planners, who ask how many rows a range has.
    pub touched: Touched,
}

impl IndexUse {
    pub fn is_empty(&self) -> bool {
        *self == IndexUse::default()
    }
}

impl std::ops::AddAssign for IndexUse {
    fn add_assign(&mut self, other: IndexUse) {
        self.lookups += other.lookups;
        self.entries += other.entries;
        self.touched += other.touched;
    }
}

impl TableIndex {
    /// What was touched since this was last asked by others than scans, which count for themselves
    /// ([`ScanMetrics::index`](crate::ScanMetrics::index)).
    pub fn take_use(&self) -> IndexUse {
        IndexUse { touched: self.tree.take_touched(), ..IndexUse::default() }
    }
}
