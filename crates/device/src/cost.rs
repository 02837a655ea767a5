//! The cost model: accesses and a profile into nanoseconds. Pacing, planner and advisor use this one and no other.
//!
//! * In sequence: `bytes / bandwidth + runs * latency`. Hardware prefetching hides all but the first line of a run.
//! * At random: a line misses the last-level cache with probability `1 - cache / working set` (none while the set fits).
//!   Misses cost `latency / in flight` each, and no less than the link needs to move `max(64, granularity)` bytes each.
//!
//! A cache hit costs the same on every device and counts as nothing. Nothing is modelled of row buffers, of TLB misses
//! or of reads mixed with writes.

use crate::profile::LOCAL_DRAM;
use crate::{Profile, topology};
use tidepool_base::Result;

const CACHE_LINE_BYTES: u64 = 64;

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

    pub fn read_random(lines: u64, working_set_bytes: u64, in_flight: f64) -> Access {
        Access { pattern: Pattern::Random { lines, working_set_bytes, in_flight }, write: false }
    }

    pub fn write_random(lines: u64, working_set_bytes: u64, in_flight: f64) -> Access {
        Access { pattern: Pattern::Random { lines, working_set_bytes, in_flight }, write: true }
    }

    /// What the code asked for, before caches and granularity.
    pub(crate) fn bytes_asked(&self) -> u64 {
        match self.pattern {
            Pattern::Sequential { bytes, .. } => bytes,
            Pattern::Random { lines, .. } => lines.saturating_mul(CACHE_LINE_BYTES),
        }
    }

    pub(crate) fn lines_asked(&self) -> u64 {
        match self.pattern {
            Pattern::Sequential { bytes, .. } => bytes.div_ceil(CACHE_LINE_BYTES),
            Pattern::Random { lines, .. } => lines,
        }
    }
}

/// A device's profile beside that of the local memory the process really runs in, and the machine's caches.
#[derive(Clone, Debug)]
pub struct CostModel {
    device: Profile,
    local: Profile,
    last_level_cache_bytes: u64,
}

/// An access's two costs on one device, ns. Which of them a thread waits for is the caller's rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cost {
    /// This thread's alone.
    pub latency_ns: f64,
    /// The link's, which every thread shares.
    pub transfer_ns: f64,
}

impl CostModel {
    pub fn new(device: Profile, local: Profile, last_level_cache_bytes: u64) -> CostModel {
        CostModel { device, local, last_level_cache_bytes }
    }

    /// Beside the preset `local-dram` and this machine's last-level cache. 22023 when the profile is nonsense.
    ///
    /// Local memory is not measured: what is charged is the device's distance from the local memory of the machines its
    /// figures were taken beside, and that is the same on every machine and in every run.
    pub fn on_this_machine(device: Profile) -> Result<CostModel> {
        device.validate()?;
        Ok(CostModel::new(device, Profile::preset(LOCAL_DRAM)?, topology::last_level_cache_bytes()))
    }

    pub fn device(&self) -> &Profile {
        &self.device
    }

    pub fn local(&self) -> &Profile {
        &self.local
    }

    pub fn last_level_cache_bytes(&self) -> u64 {
        self.last_level_cache_bytes
    }

    /// Time the access takes on the device with one thread alone, ns.
    pub fn device_ns(&self, access: &Access) -> f64 {
        total_ns(access, self.cost(&self.device, access))
    }

    /// Time it takes in local memory, ns.
    pub fn local_ns(&self, access: &Access) -> f64 {
        total_ns(access, self.cost(&self.local, access))
    }

    /// Bytes that cross the device's link.
    pub fn device_bytes(&self, access: &Access) -> u64 {
        self.bytes_moved(&self.device, access)
    }

    pub(crate) fn device_cost(&self, access: &Access) -> Cost {
        self.cost(&self.device, access)
    }

    pub(crate) fn local_cost(&self, access: &Access) -> Cost {
        self.cost(&self.local, access)
    }

    fn cost(&self, profile: &Profile, access: &Access) -> Cost {
        let latency_ns = match access.pattern {
            Pattern::Sequential { bytes: 0, .. } => 0.0,
            Pattern::Sequential { runs, .. } => runs as f64 * profile.latency_ns(access.write),
            Pattern::Random { lines, working_set_bytes, in_flight } => {
                // `max` also turns NaN into 1.
                self.misses(lines, working_set_bytes) * profile.latency_ns(access.write) / in_flight.max(1.0)
            }
        };
        Cost { latency_ns, transfer_ns: self.bytes_moved(profile, access) as f64 / profile.bandwidth(access.write) }
    }

    fn bytes_moved(&self, profile: &Profile, access: &Access) -> u64 {
        let granularity = u64::from(profile.granularity_bytes);
        match access.pattern {
            Pattern::Sequential { bytes: 0, .. } => 0,
            Pattern::Sequential { bytes, runs } => {
                let runs = runs.max(1);
                bytes.div_ceil(runs).next_multiple_of(granularity).saturating_mul(runs).max(bytes)
            }
            Pattern::Random { lines, working_set_bytes, .. } => {
                (self.misses(lines, working_set_bytes) * granularity.max(CACHE_LINE_BYTES) as f64) as u64
            }
        }
    }

    /// Lines expected to come from the device.
    fn misses(&self, lines: u64, working_set_bytes: u64) -> f64 {
        if working_set_bytes <= self.last_level_cache_bytes {
            return 0.0;
        }
        lines as f64 * (1.0 - self.last_level_cache_bytes as f64 / working_set_bytes as f64)
    }
}

/// In sequence the transfer follows the first line; at random the transfers run beneath the waits.
fn total_ns(access: &Access, cost: Cost) -> f64 {
    match access.pattern {
        Pattern::Sequential { .. } => cost.latency_ns + cost.transfer_ns,
        Pattern::Random { .. } => cost.latency_ns.max(cost.transfer_ns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn model(device: &str) -> CostModel {
        CostModel::new(Profile::preset(device).unwrap(), Profile::preset(LOCAL_DRAM).unwrap(), 32 * MIB)
    }

    fn close(left: f64, right: f64) -> bool {
        (left - right).abs() <= right.abs() * 1e-9 + 1e-9
    }

    #[test]
    fn sequences_cost_bandwidth_and_latency_once_a_run() {
        let model = model("fpga-prototype");
        assert!(close(model.device_ns(&Access::read_sequential(10_700_032)), 10_700_032.0 / 10.7 + 400.0));
        let runs = Access { pattern: Pattern::Sequential { bytes: 107_000 * 64, runs: 10 }, write: true };
        assert!(close(model.device_ns(&runs), 640_000.0 + 4_000.0));
        assert!(close(model.local_ns(&runs), 34_240.0 + 1_000.0));
        assert_eq!(model.device_ns(&Access::read_sequential(0)), 0.0);
    }

    #[test]
    fn random_lines_cost_what_misses_the_cache() {
        let model = model("fpga-prototype");
        // Within the cache: nothing. Twice the cache: every second line.
        assert_eq!(model.device_ns(&Access::read_random(1000, 32 * MIB, 1.0)), 0.0);
        assert!(close(model.device_ns(&Access::read_random(1000, 64 * MIB, 1.0)), 500.0 * 400.0));
        assert!(close(model.local_ns(&Access::read_random(1000, 64 * MIB, 1.0)), 500.0 * 100.0));
        assert!(close(model.device_ns(&Access::read_random(1000, 64 * MIB, 10.0)), 500.0 * 40.0));
        // Beyond 67 in flight the link is the limit: 64 bytes at 10.7 bytes/ns.
        assert!(close(model.device_ns(&Access::read_random(1000, 64 * MIB, 1000.0)), 500.0 * 64.0 / 10.7));
        // Nonsense in flight counts as one at a time.
        assert!(close(model.device_ns(&Access::read_random(1000, 64 * MIB, f64::NAN)), 500.0 * 400.0));
    }

    #[test]
    fn granularity_amplifies_small_accesses() {
        let model = model("optane");
        assert_eq!(model.device_bytes(&Access::read_random(1000, 64 * MIB, 1.0)), 500 * 256);
        assert_eq!(model.device_bytes(&Access::read_sequential(100)), 256);
        let runs = Access { pattern: Pattern::Sequential { bytes: 1000, runs: 10 }, write: false };
        assert_eq!(model.device_bytes(&runs), 2560);
    }
}
