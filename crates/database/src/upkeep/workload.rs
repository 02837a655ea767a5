//! The recorded workload of a database, with what its indexes were used for since.

use crate::{Database, Workload};
use tidepool_heap::QueryHeap;

impl Database {
    /// What statements have read since the record began.
    pub fn workload(&self) -> Workload {
        self.take_index_uses();
        self.access_log().workload()
    }

    /// Forgets everything: the record begins now.
    pub fn reset_workload(&self) {
        self.take_index_uses();
        QueryHeap::outside(|| self.access_log().reset());
    }

    /// To be called before indexes are made anew.
    pub(crate) fn take_index_uses(&self) {
        QueryHeap::outside(|| {
            let state = self.state();
            for table in state.tables.values() {
                for index in table.indexes() {
                    let used = index.take_use();
                    if !used.is_empty() {
                        self.access_log().add_index_use(table.def.id, index.id(), used);
                    }
                }
            }
        });
    }
}
