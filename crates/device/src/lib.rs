//! Devices: mapping, binding and flushing one kind of byte-addressable memory, what a device costs (profiles, the cost
//! model, and measuring it: the probe), and charging that cost to whoever touched it (pacing).
//!
//! Leaves to others: dividing a mapping into extents and counting who owns them (`tidepool-tablespace`).

mod affinity;
mod cost;
mod device;
mod lines;
mod links;
mod location;
mod mapping;
mod pacing;
pub mod paged;
pub mod probe;
mod profile;
pub mod remote;
mod residency;
mod slice;
mod stop;
mod topology;
mod window;

pub use affinity::{confine, processors};
pub use cost::{Access, CostModel, Excess, Pattern, Share, local_profile, set_local_profile};
pub use device::{Device, Protection, identity_of};
pub use lines::{LINE_BYTES, discard_lines, fence_lines, write_back_lines};
pub use location::{CacheSize, Location, Stripe};
pub use mapping::{Content, HEADER_BYTES, HUGE_PAGE_BYTES, HeaderCheck, MapOptions, Mapping, PAGE_BYTES, PartMapping};
pub use pacing::{GATHER_SLOTS, Pacer, PacingCounters, PacingTotals};
pub use profile::{LOCAL_DRAM, Mix, Mixes, Profile};
pub use residency::{Miss, PoolId, Residency};
pub use slice::take_short_turns;
pub use stop::stop;
pub use topology::{
    Cache, DaxDevice, FirmwareFigures, Node, Topology, last_level_cache_bytes, memory_available_bytes,
    memory_total_bytes, set_last_level_cache_bytes,
};
pub use window::{DEVICES_MAX, Place, Window};
