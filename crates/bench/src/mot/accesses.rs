//! Single accesses, by how much of the memory is far and how much is done between them.

use super::{Plan, median};
use serde::Serialize;
use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidepool_base::{Result, TablespaceId};
use tidepool_device::{Access, Location, Profile};
use tidepool_tablespace::{Purpose, Region, Tablespace, TablespaceConfig};

/// Of each of the two memories: far beyond the caches.
const MEMORY_BYTES: usize = 256 << 20;
const LINE_BYTES: usize = 64;
const ROW_BYTES: usize = 512;
/// Accesses to one address in a row, of which the others find it in the cache.
const HOT: usize = 8;
const SHARES: [u32; 5] = [0, 25, 50, 75, 100];
const DELAYS_NS: [u64; 3] = [0, 200, 1000];
const TIME: Duration = Duration::from_millis(30);
/// Accesses between two looks at the clock.
const STRIDE: usize = 64;

#[derive(Clone, Debug, Serialize)]
pub struct AccessResult {
    pub profile: String,
    /// `index` (a cache line) or `row` (512 bytes).
    pub access: &'static str,
    /// Whether seven of eight find in the cache what they want.
    pub is_hot: bool,
    pub writes: bool,
    pub delay_ns: u64,
    pub far_percent: u32,
    /// Of one access, without the delay.
    pub ns: f64,
}

#[derive(Clone, Copy)]
struct Pattern {
    bytes: usize,
    is_hot: bool,
    writes: bool,
    delay_ns: u64,
    far_percent: u32,
}

struct Memory {
    near: Region,
    far: Region,
    space: Arc<Tablespace>,
}

pub(super) fn measure(plan: &Plan) -> Result<Vec<AccessResult>> {
    let mut results = Vec::new();
    for profile in &plan.profiles {
        let mut memory = Memory::new(profile)?;
        for (access, bytes) in [("index", LINE_BYTES), ("row", ROW_BYTES)] {
            for is_hot in [true, false] {
                for writes in [false, true] {
                    for delay_ns in DELAYS_NS {
                        for far_percent in SHARES {
                            let pattern = Pattern { bytes, is_hot, writes, delay_ns, far_percent };
                            let runs = (0..plan.rounds).map(|_| memory.time(pattern)).collect();
                            let ns = median(runs) - delay_ns as f64;
                            let profile = profile.name.clone();
                            results.push(AccessResult { profile, access, is_hot, writes, delay_ns, far_percent, ns });
                        }
                    }
                }
            }
        }
    }
    Ok(results)
}

fn region(id: u16, name: &str, profile: Option<&Profile>) -> Result<Region> {
    let config = TablespaceConfig {
        name: name.to_owned(),
        location: Location::Anon,
        size_bytes: Some(MEMORY_BYTES as u64 + (4 << 20)),
        profile: profile.cloned(),
        profiles: Vec::new(),
        huge_pages: true,
        populate_bytes: 0,
    };
    let mut region = Tablespace::open(TablespaceId(id), config)?.allocate(MEMORY_BYTES, Purpose::Main)?;
    region.fill(1);
    Ok(region)
}

/// Waits about so long without touching memory.
fn wait(ns: u64) {
    if ns > 0 {
        let start = Instant::now();
        while (start.elapsed().as_nanos() as u64) < ns {
            spin_loop();
        }
    }
}

impl Memory {
    fn new(profile: &Profile) -> Result<Memory> {
        let (near, far) = (region(1, "near", None)?, region(2, "far", Some(profile))?);
        let space = far.tablespace().clone();
        Ok(Memory { near, far, space })
    }

    /// Nanoseconds of an access with what is waited before it.
    fn time(&mut self, pattern: Pattern) -> f64 {
        let slots = MEMORY_BYTES / pattern.bytes;
        let (mut place, mut count, mut sum) = (1usize, 0u64, 0u64);
        let start = Instant::now();
        loop {
            for _ in 0..STRIDE {
                wait(pattern.delay_ns);
                let is_first = !pattern.is_hot || (count as usize).is_multiple_of(HOT);
                if is_first {
                    // Another place, far from the last one, that depends on what was read: nothing is fetched ahead.
                    place = place
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407 + (sum & 1) as usize);
                }
                let slot = (place >> 24) % slots;
                let is_far = (place >> 12) as u32 % 100 < pattern.far_percent;
                let memory = if is_far { &mut self.far } else { &mut self.near };
                let bytes = &mut memory[slot * pattern.bytes..(slot + 1) * pattern.bytes];
                if pattern.writes {
                    bytes.fill(count as u8 | 1);
                } else {
                    sum = bytes.chunks_exact(8).fold(sum, |sum, word| sum.wrapping_add(u64::from(word[0]) & 2));
                }
                if is_far && is_first {
                    self.charge(pattern);
                }
                count += 1;
            }
            let elapsed = start.elapsed();
            if elapsed >= TIME {
                black_box(sum);
                return elapsed.as_nanos() as f64 / count as f64;
            }
        }
    }

    fn charge(&self, pattern: Pattern) {
        let lines = (pattern.bytes / LINE_BYTES) as u64;
        let access = match pattern.writes {
            // Nobody waits for what is written, but for its bytes to get there.
            true => Access::write_random(lines, MEMORY_BYTES as u64, f64::MAX),
            false => Access::read_random(lines, MEMORY_BYTES as u64, lines as f64),
        };
        self.space.charge(Purpose::Main, &[access]);
    }
}
