//! The cost model: accesses and a profile into nanoseconds. Pacing, planner and advisor use this one and no other.

use crate::Profile;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pattern {
    /// Bytes in address order: bandwidth, and latency once a run.
    Sequential { bytes: u64, runs: u64 },
    /// Cache-line accesses over a working set, `in_flight` of them at a time (1: each depends on the one before).
    Random { lines: u64, working_set_bytes: u64, in_flight: f64 },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Access {
    pub pattern: Pattern,
    pub write: bool,
}

impl Access {
    pub fn read_sequential(bytes: u64) -> Access {
        Access { pattern: Pattern::Sequential { bytes, runs: 1 }, write: false }
    }
    pub fn write_sequential(bytes: u64) -> Access {
        Access { pattern: Pattern::Sequential { bytes, runs: 1 }, write: true }
    }
}

/// A device's profile beside that of the local memory the process really runs in, and the machine's caches.
#[derive(Clone, Debug)]
pub struct CostModel {}

impl CostModel {
    pub fn new(_device: Profile, _local: Profile, _last_level_cache_bytes: u64) -> CostModel {
        unimplemented!()
    }

    /// Time the access takes on the device with one thread alone, ns.
    pub fn device_ns(&self, _access: &Access) -> f64 {
        unimplemented!()
    }

    /// Time it takes in local memory, ns.
    pub fn local_ns(&self, _access: &Access) -> f64 {
        unimplemented!()
    }

    /// Bytes that cross the device's link.
    pub fn device_bytes(&self, _access: &Access) -> u64 {
        unimplemented!()
    }
}
