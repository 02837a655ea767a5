//! The cost model: accesses and a profile into nanoseconds. Pacing, planner and advisor use this one and no other.
//!
//! An access has two costs. *Latency* is its thread's alone:
//!
//! * In sequence, one latency a run: hardware prefetching hides all but the first line.
//! * At random, one latency a line that misses the last-level cache, divided by the lines in flight. A working set misses
//!   with probability `1 - cache / working set` (never while it fits): each line is as likely to be cached as any other.
//! * A line written at random is fetched first (read for ownership), and that is what its thread can wait for: its latency
//!   is the one of a read. Runs are written past the caches, as `memcpy` does from a few kilobytes on.
//!
//! *Transfer* is the link's, which all threads share. Each run, and each line that misses, moves whole units of the device's
//! granularity. A line written at random moves twice, once in and once out. Reads and writes at once take what the profile
//! says of their mix ([`Profile::transfer_ns`]).
//!
//! In sequence the transfer follows the wait, at random it runs beneath the waits, and threads wait side by side:
//!
//! ```text
//! ns = sequential waits / threads + max(transfer, random waits / threads)
//! ```
//!
//! # Several devices side by side
//!
//! Memory that is striped over devices is touched everywhere alike: of any access each device has its share. A thread
//! waits for the mean of the devices' latencies, weighted by share, and the link that needs longest for its share of the
//! bytes is the one that the transfer takes. So two equal devices carry twice what one does, and near memory beside far
//! takes off its share of both costs (the 'uniform' interleave of Expanding System Memory Boundaries Through CXL-Enabled
//! Device, section 2).
//!
//! A cache hit costs the same on every device and counts as nothing, so of the machine's caches only the last matters.
//! Nothing is modelled of row buffers, of TLB misses, or of one thread that cannot keep the whole link busy by itself.

use crate::profile::LOCAL_DRAM;
use crate::{Profile, topology};
use std::sync::{PoisonError, RwLock};
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

/// Bytes that cross a device's link, which fractions of expected misses make fractional.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Traffic {
    pub read_bytes: f64,
    pub write_bytes: f64,
}

impl Traffic {
    fn part(self, part: f64) -> Traffic {
        Traffic { read_bytes: part * self.read_bytes, write_bytes: part * self.write_bytes }
    }
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        self.read_bytes += other.read_bytes;
        self.write_bytes += other.write_bytes;
    }
}

/// An access's two costs on one device. Which of them a thread waits for is the caller's rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cost {
    /// This thread's alone, ns.
    pub latency_ns: f64,
    /// The link's, which every thread shares.
    pub traffic: Traffic,
}

/// What accesses cost on a device beyond what they cost in local memory, as pacing charges it. They add up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Excess {
    /// Waits for the first lines of runs and for lines that miss, ns, of the threads that made the accesses. Waited for
    /// whatever else goes on.
    pub wait_ns: f64,
    /// The link's whole time, ns. Only what is left of it after the time that threads worked meanwhile is waited for.
    pub transfer_ns: f64,
}

impl Excess {
    /// What is waited for, ns, if threads worked `work_ns` while the link was busy.
    pub fn stall_ns(&self, work_ns: f64) -> f64 {
        self.wait_ns + (self.transfer_ns - work_ns).max(0.0)
    }
}

impl std::ops::AddAssign for Excess {
    fn add_assign(&mut self, other: Excess) {
        self.wait_ns += other.wait_ns;
        self.transfer_ns += other.transfer_ns;
    }
}

/// `None`: the preset.
static LOCAL_TOLD: RwLock<Option<Profile>> = RwLock::new(None);

/// What every cost model made from now on takes local memory to cost: the profile that is told, or else the preset
/// `local-dram`.
///
/// It is not measured unasked: what is charged is the device's distance from the local memory of the machines its figures
/// were taken beside, and that is the same on every machine and in every run.
pub fn local_profile() -> Result<Profile> {
    match &*LOCAL_TOLD.read().unwrap_or_else(PoisonError::into_inner) {
        Some(profile) => Ok(profile.clone()),
        None => Profile::preset(LOCAL_DRAM),
    }
}

/// Tells the cost model what this machine's local memory costs, for the whole process: then a paced access takes as long as
/// the device's profile says, and not as much longer as the device is farther. 22023 for nonsense.
pub fn set_local_profile(profile: Profile) -> Result<()> {
    profile.validate()?;
    *LOCAL_TOLD.write().unwrap_or_else(PoisonError::into_inner) = Some(profile);
    Ok(())
}

/// One of the devices that memory is striped over.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// Of the bytes; between 0 and 1. All shares together are 1.
    pub part: f64,
    /// `None`: local memory, which is the real thing and takes its own time.
    pub profile: Option<Profile>,
}

/// A device's profile, or those of several side by side, beside that of the local memory the process really runs in, and
/// the machine's last cache.
#[derive(Clone, Debug)]
pub struct CostModel {
    device: Vec<Share>,
    local: Profile,
    last_level_cache_bytes: u64,
}

impl CostModel {
    pub fn new(device: Profile, local: Profile, last_level_cache_bytes: u64) -> CostModel {
        CostModel::striped(vec![Share { part: 1.0, profile: Some(device) }], local, last_level_cache_bytes)
    }

    /// Of memory that is striped over several devices.
    pub fn striped(device: Vec<Share>, local: Profile, last_level_cache_bytes: u64) -> CostModel {
        CostModel { device, local, last_level_cache_bytes }
    }

    /// Beside [`local_profile`] and this machine's last-level cache. 22023 when the profile is nonsense.
    pub fn on_this_machine(device: Profile) -> Result<CostModel> {
        CostModel::striped_on_this_machine(vec![Share { part: 1.0, profile: Some(device) }])
    }

    /// As above, of several devices.
    pub fn striped_on_this_machine(device: Vec<Share>) -> Result<CostModel> {
        for profile in device.iter().filter_map(|share| share.profile.as_ref()) {
            profile.validate()?;
        }
        Ok(CostModel::striped(device, local_profile()?, topology::last_level_cache_bytes()))
    }

    /// The devices and what each has of the bytes.
    pub fn shares(&self) -> &[Share] {
        &self.device
    }

    /// Latency of one dependent load, ns: the devices' mean by share.
    pub fn read_latency_ns(&self) -> f64 {
        self.mean(|profile| profile.read_latency_ns)
    }

    /// As above, of one line written past the caches.
    pub fn write_latency_ns(&self) -> f64 {
        self.mean(|profile| profile.write_latency_ns)
    }

    fn mean(&self, of: impl Fn(&Profile) -> f64) -> f64 {
        self.device.iter().map(|share| share.part * of(self.profile_of(share))).sum()
    }

    fn profile_of<'a>(&'a self, share: &'a Share) -> &'a Profile {
        share.profile.as_ref().unwrap_or(&self.local)
    }

    /// Time that the devices' links need for a mix of bytes read and written, ns: that of the one that needs longest.
    pub fn transfer_ns(&self, read_bytes: f64, write_bytes: f64) -> f64 {
        let each = self
            .device
            .iter()
            .map(|share| self.profile_of(share).transfer_ns(share.part * read_bytes, share.part * write_bytes));
        each.fold(0.0, f64::max)
    }

    pub fn local(&self) -> &Profile {
        &self.local
    }

    pub fn last_level_cache_bytes(&self) -> u64 {
        self.last_level_cache_bytes
    }

    /// Time that one thread alone needs for the access on the device, ns.
    pub fn device_ns(&self, access: &Access) -> f64 {
        self.device_ns_of(&[*access], 1)
    }

    /// Time it needs in local memory, ns.
    pub fn local_ns(&self, access: &Access) -> f64 {
        self.local_ns_of(&[*access], 1)
    }

    /// Time that `threads` threads need for all of `accesses` on the device, ns: made side by side, and shared out evenly.
    pub fn device_ns_of(&self, accesses: &[Access], threads: usize) -> f64 {
        self.total_ns(&self.device, accesses, threads)
    }

    /// As above, in local memory.
    pub fn local_ns_of(&self, accesses: &[Access], threads: usize) -> f64 {
        let local = [Share { part: 1.0, profile: None }];
        self.total_ns(&local, accesses, threads)
    }

    /// What `accesses`, made side by side, cost beyond local memory: nothing if that is what the device is.
    pub fn excess_of(&self, accesses: &[Access]) -> Excess {
        let mut excess = Excess::default();
        for access in accesses {
            excess.wait_ns += self.wait_ns(access);
        }
        for share in self.device.iter().filter(|share| self.profile_of(share) != &self.local) {
            excess.transfer_ns = excess.transfer_ns.max(self.link_ns(share, accesses).0);
        }
        excess
    }

    /// What a thread waits for first lines and for lines that miss beyond what it would in local memory, ns.
    pub(crate) fn wait_ns(&self, access: &Access) -> f64 {
        (self.device_cost(access).latency_ns - self.local_cost(access).latency_ns).max(0.0)
    }

    /// Time that one device's link needs for its share of accesses that are made side by side, ns, and the bytes of it.
    pub(crate) fn link_ns(&self, share: &Share, accesses: &[Access]) -> (f64, Traffic) {
        let profile = self.profile_of(share);
        let mut traffic = Traffic::default();
        for access in accesses {
            traffic += self.cost(profile, access).traffic.part(share.part);
        }
        (profile.transfer_ns(traffic.read_bytes, traffic.write_bytes), traffic)
    }

    /// Bytes that cross the links of the devices, either way, local memory left out.
    pub fn device_bytes(&self, access: &Access) -> u64 {
        let far = self.device.iter().filter(|share| share.profile.is_some());
        far.map(|share| self.link_ns(share, &[*access]).1)
            .map(|traffic| traffic.read_bytes + traffic.write_bytes)
            .sum::<f64>()
            .round() as u64
    }

    pub(crate) fn device_cost(&self, access: &Access) -> Cost {
        self.shared_cost(&self.device, access)
    }

    /// The mean of the latencies, and all of the bytes.
    fn shared_cost(&self, device: &[Share], access: &Access) -> Cost {
        let mut sum = Cost { latency_ns: 0.0, traffic: Traffic::default() };
        for share in device {
            let cost = self.cost(self.profile_of(share), access);
            sum.latency_ns += share.part * cost.latency_ns;
            sum.traffic += cost.traffic.part(share.part);
        }
        sum
    }

    pub(crate) fn local_cost(&self, access: &Access) -> Cost {
        self.cost(&self.local, access)
    }

    fn total_ns(&self, device: &[Share], accesses: &[Access], threads: usize) -> f64 {
        let (mut sequential_ns, mut random_ns) = (0.0, 0.0);
        for access in accesses {
            let cost = self.shared_cost(device, access);
            match access.pattern {
                Pattern::Sequential { .. } => sequential_ns += cost.latency_ns,
                Pattern::Random { .. } => random_ns += cost.latency_ns,
            }
        }
        let threads = threads.max(1) as f64;
        let transfer_ns = device.iter().map(|share| self.link_ns(share, accesses).0).fold(0.0, f64::max);
        sequential_ns / threads + transfer_ns.max(random_ns / threads)
    }

    fn cost(&self, profile: &Profile, access: &Access) -> Cost {
        let granularity = u64::from(profile.granularity_bytes);
        match access.pattern {
            Pattern::Sequential { bytes: 0, .. } => Cost { latency_ns: 0.0, traffic: Traffic::default() },
            Pattern::Sequential { bytes, runs } => {
                let units = runs.max(1);
                let moved = bytes.div_ceil(units).next_multiple_of(granularity).saturating_mul(units).max(bytes) as f64;
                let latency_ns = if access.write { profile.write_latency_ns } else { profile.read_latency_ns };
                let traffic = if access.write {
                    Traffic { read_bytes: 0.0, write_bytes: moved }
                } else {
                    Traffic { read_bytes: moved, write_bytes: 0.0 }
                };
                Cost { latency_ns: runs as f64 * latency_ns, traffic }
            }
            Pattern::Random { lines, working_set_bytes, in_flight } => {
                let misses = self.misses(lines, working_set_bytes);
                let moved = misses * granularity.max(CACHE_LINE_BYTES) as f64;
                Cost {
                    // `max` also turns NaN into 1.
                    latency_ns: misses * profile.read_latency_ns / in_flight.max(1.0),
                    traffic: Traffic { read_bytes: moved, write_bytes: if access.write { moved } else { 0.0 } },
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn model(device: &str) -> CostModel {
        CostModel::new(Profile::preset(device).unwrap(), Profile::preset(LOCAL_DRAM).unwrap(), 32 * MIB)
    }

    #[track_caller]
    fn assert_close(left: f64, right: f64) {
        assert!((left - right).abs() <= right.abs() * 1e-9 + 1e-9, "{left} is not {right}");
    }

    #[test]
    fn sequences_cost_bandwidth_and_latency_once_a_run() {
        let model = model("fpga-prototype");
        assert_close(model.device_ns(&Access::read_sequential(10_700_032)), 10_700_032.0 / 10.7 + 400.0);
        let runs = Access { pattern: Pattern::Sequential { bytes: 107_000 * 64, runs: 10 }, write: true };
        assert_close(model.device_ns(&runs), 640_000.0 + 4_000.0);
        assert_close(model.local_ns(&runs), 34_240.0 + 1_000.0);
        assert_eq!(model.device_ns(&Access::read_sequential(0)), 0.0);
    }

    #[test]
    fn random_lines_cost_what_misses_the_cache() {
        let model = model("fpga-prototype");
        // Within the cache: nothing. Twice the cache: every second line.
        assert_eq!(model.device_ns(&Access::read_random(1000, 32 * MIB, 1.0)), 0.0);
        assert_close(model.device_ns(&Access::read_random(1000, 64 * MIB, 1.0)), 500.0 * 400.0);
        assert_close(model.local_ns(&Access::read_random(1000, 64 * MIB, 1.0)), 500.0 * 100.0);
        assert_close(model.device_ns(&Access::read_random(1000, 64 * MIB, 10.0)), 500.0 * 40.0);
        // Beyond 67 in flight the link is the limit: 64 bytes at 10.7 bytes/ns.
        assert_close(model.device_ns(&Access::read_random(1000, 64 * MIB, 1000.0)), 500.0 * 64.0 / 10.7);
        // Nonsense in flight counts as one at a time.
        assert_close(model.device_ns(&Access::read_random(1000, 64 * MIB, f64::NAN)), 500.0 * 400.0);
    }

    #[test]
    fn reads_and_writes_differ_where_the_device_does() {
        let model = model("optane");
        // 6,600 bytes are 26 units of 256 after rounding up, and 2,300 are 9.
        assert_close(model.device_ns(&Access::read_sequential(6_600)), 305.0 + 6_656.0 / 6.6);
        assert_close(model.device_ns(&Access::write_sequential(2_300)), 90.0 + 2_304.0 / 2.3);
        // Of 1,000 lines over four caches 750 miss. A read moves a unit: 38.8 ns, beneath the wait of 305. A write waits
        // for the same fetch and moves another unit back: 38.8 + 111.3 ns of the link, the limit from two in flight on.
        assert_close(model.device_ns(&Access::read_random(1000, 128 * MIB, 1.0)), 750.0 * 305.0);
        assert_close(model.device_ns(&Access::write_random(1000, 128 * MIB, 1.0)), 750.0 * 305.0);
        let link_ns = 256.0 / 6.6 + 256.0 / 2.3;
        assert_close(model.device_ns(&Access::write_random(1000, 128 * MIB, 4.0)), 750.0 * link_ns);
        assert_close(model.device_ns(&Access::read_random(1000, 128 * MIB, 4.0)), 750.0 * 305.0 / 4.0);
    }

    #[test]
    fn reads_and_writes_at_once_take_what_their_mix_does() {
        let model = model("cxl-asic");
        let mix = [Access::read_sequential(2_000_000), Access::write_sequential(1_000_000)];
        let moved = 2_000_000.0 + 1_000_000.0;
        // Two runs wait for their first lines. Both are whole numbers of lines.
        assert_close(model.device_ns_of(&mix, 1), 500.0 + moved / 25.1);
        // Apart, each takes its own time: 12 % more.
        let apart = model.device_ns(&mix[0]) + model.device_ns(&mix[1]);
        assert_close(apart, 500.0 + moved / 17.8);
        // Lines written at random come and go, one to one.
        let lines = Access::write_random(1_000_000, u64::MAX, 1e9);
        assert_close(model.device_ns(&lines), 128e6 / 27.2);
    }

    #[test]
    fn threads_wait_side_by_side_and_share_the_link() {
        let model = model("fpga-prototype");
        let chase = Access::read_random(1_000_000, u64::MAX, 1.0);
        assert_close(model.device_ns_of(&[chase], 1), 400e6);
        assert_close(model.device_ns_of(&[chase], 8), 50e6);
        // 64 bytes at 10.7 GB/s: 67 threads with a line each keep the link busy, more do not help.
        assert_close(model.device_ns_of(&[chase], 100), 64e6 / 10.7);
        assert_close(model.device_ns_of(&[chase], 0), 400e6);
        let scan = Access { pattern: Pattern::Sequential { bytes: 64_000_000, runs: 100 }, write: false };
        assert_close(model.device_ns_of(&[scan], 4), 64e6 / 10.7 + 100.0 * 400.0 / 4.0);
        // A scan beside a chase: the link works beneath the waits.
        assert_close(model.device_ns_of(&[scan, chase], 4), 10_000.0 + 100e6);
    }

    #[test]
    fn excess_is_waits_beyond_local_ones_and_what_work_does_not_cover_of_the_link() {
        let model = model("fpga-prototype");
        let runs = Access { pattern: Pattern::Sequential { bytes: 64 * 107_000, runs: 10 }, write: false };
        let chase = Access::read_random(1000, 64 * MIB, 1.0);
        let excess = model.excess_of(&[runs, chase]);
        assert_close(excess.wait_ns, 10.0 * 300.0 + 500.0 * 300.0);
        assert_close(excess.transfer_ns, 640_000.0 + 500.0 * 64.0 / 10.7);
        assert_close(excess.stall_ns(1e9), 153_000.0);
        assert_close(excess.stall_ns(40_000.0), 153_000.0 + excess.transfer_ns - 40_000.0);
        let local =
            CostModel::new(Profile::preset(LOCAL_DRAM).unwrap(), Profile::preset(LOCAL_DRAM).unwrap(), 32 * MIB);
        assert_eq!(local.excess_of(&[runs, chase]), Excess::default());
    }

    #[test]
    fn granularity_amplifies_small_accesses() {
        let model = model("optane");
        assert_eq!(model.device_bytes(&Access::read_random(1000, 64 * MIB, 1.0)), 500 * 256);
        assert_eq!(model.device_bytes(&Access::write_random(1000, 64 * MIB, 1.0)), 2 * 500 * 256);
        assert_eq!(model.device_bytes(&Access::read_sequential(100)), 256);
        let runs = Access { pattern: Pattern::Sequential { bytes: 1000, runs: 10 }, write: false };
        assert_eq!(model.device_bytes(&runs), 2560);
    }

    fn striped(parts: &[(f64, Option<&str>)]) -> CostModel {
        let share = |(part, name): &(f64, Option<&str>)| Share {
            part: *part,
            profile: name.map(|name| Profile::preset(name).unwrap()),
        };
        let shares = parts.iter().map(share).collect();
        CostModel::striped(shares, Profile::preset(LOCAL_DRAM).unwrap(), 32 * MIB)
    }

    #[test]
    fn equal_devices_side_by_side_carry_as_much_as_they_are() {
        let (one, two) = (model("pcie4-x8-expander"), striped(&[(0.5, Some("pcie4-x8-expander")); 2]));
        let scan = Access::read_sequential(64_000_000);
        assert_close(one.device_ns(&scan), 400.0 + 64e6 / 16.0);
        assert_close(two.device_ns(&scan), 400.0 + 64e6 / 32.0);
        assert_close(two.device_ns(&scan), model("pcie4-x8-expander-2x").device_ns(&scan));
        // Waiting for lines one by one is no faster; with many in flight it is.
        let chase = |in_flight| Access::read_random(1000, 64 * MIB, in_flight);
        assert_close(two.device_ns(&chase(1.0)), one.device_ns(&chase(1.0)));
        assert_close(two.device_ns(&chase(1e6)), 500.0 * 64.0 / 32.0);
        assert_eq!(two.device_bytes(&scan), 64_000_000);
        assert_eq!(two.excess_of(&[scan]), Excess { wait_ns: 300.0, transfer_ns: 64e6 / 32.0 });
    }

    #[test]
    fn near_memory_beside_far_takes_its_share_of_the_cost() {
        // Three stripes near to one far: a quarter of the bytes and of the latency's excess.
        let uniform = striped(&[(0.75, None), (0.25, Some("fpga-prototype"))]);
        assert_close(uniform.read_latency_ns(), 0.75 * 100.0 + 0.25 * 400.0);
        let scan = Access::read_sequential(64_000_000);
        let far_ns = 16e6 / 10.7;
        assert_eq!(uniform.excess_of(&[scan]).wait_ns, 75.0);
        assert_close(uniform.excess_of(&[scan]).transfer_ns, far_ns);
        // Near memory at 200 GB/s is done long before.
        assert_close(uniform.device_ns(&scan), 175.0 + far_ns);
        assert_eq!(uniform.device_bytes(&scan), 16_000_000);
        let chase = Access::read_random(1000, 64 * MIB, 1.0);
        assert_close(uniform.device_ns(&chase), 500.0 * 175.0);
        assert_close(uniform.excess_of(&[chase]).wait_ns, 500.0 * 75.0);
        // One to nine the other way round: the near link is the slower one for its share.
        let lopsided = striped(&[(0.99, None), (0.01, Some("fpga-prototype"))]);
        let local = Profile::preset(LOCAL_DRAM).unwrap();
        assert_close(lopsided.transfer_ns(1e6, 0.0), (0.99e6 / local.read_gb_per_s).max(0.01e6 / 10.7));
    }

    #[test]
    fn unlike_devices_each_move_their_own_units() {
        // Half on cache lines, half on units of 256 bytes.
        let mixed = striped(&[(0.5, Some("fpga-prototype")), (0.5, Some("optane"))]);
        let lines = Access::read_random(1000, u64::MAX, 1.0);
        assert_close(mixed.device_ns(&lines), 1000.0 * (400.0 + 305.0) / 2.0);
        let many = Access::read_random(1000, u64::MAX, 1e9);
        assert_close(mixed.device_ns(&many), (500.0f64 * 64.0 / 10.7).max(500.0 * 256.0 / 6.6));
        assert_eq!(mixed.device_bytes(&lines), 500 * 64 + 500 * 256);
    }
}
