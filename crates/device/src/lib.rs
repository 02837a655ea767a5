//! Devices: mapping, binding and flushing one kind of byte-addressable memory, what a device costs (profiles and the
//! cost model), and charging that cost to whoever touched it (pacing).
//!
//! Leaves to others: dividing a mapping into extents and counting who owns them (`tidepool-tablespace`).

mod cost;
mod location;
mod mapping;
mod pacing;
mod profile;

pub use cost::{Access, CostModel, Pattern};
pub use location::Location;
pub use mapping::{MapOptions, Mapping};
pub use pacing::{Pacer, PacingCounters};
pub use profile::Profile;
