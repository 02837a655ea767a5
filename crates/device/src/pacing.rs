//! Pacing: charging the cost of an emulated device to the operation that touched it.

use crate::{Access, CostModel};

/// Totals since start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacingCounters {
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub lines: u64,
    pub stall_ns: u64,
}

/// One device's pacer: bandwidth is shared by all threads, latency is each thread's own.
#[derive(Debug)]
pub struct Pacer {}

impl Pacer {
    pub fn new(_model: CostModel) -> Pacer {
        unimplemented!()
    }

    pub fn model(&self) -> &CostModel {
        unimplemented!()
    }

    /// Accounts `access`, which this thread has just made, and spends what it would have cost beyond local memory on
    /// this thread. Returns the nanoseconds that were spent here. Small debts may be carried to the next call.
    pub fn charge(&self, _access: Access) -> u64 {
        unimplemented!()
    }

    pub fn counters(&self) -> PacingCounters {
        unimplemented!()
    }
}
