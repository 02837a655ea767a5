//! What a device costs.

use serde::{Deserialize, Serialize};
use tidepool_base::Result;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    pub name: String,
    /// One dependent cache-line read or write, ns.
    pub read_latency_ns: f64,
    pub write_latency_ns: f64,
    /// Sustained by all threads together, GB/s (1e9 bytes).
    pub read_gb_per_s: f64,
    pub write_gb_per_s: f64,
    /// Bytes that the device moves at least.
    pub granularity_bytes: u32,
    /// Where the figures come from.
    pub source: String,
}

impl Profile {
    /// The shipped profiles: `fpga-prototype` (paper 000), `pcie4-x8-expander` (paper 001), `local-dram`, and so on.
    pub fn presets() -> Vec<Profile> {
        unimplemented!()
    }

    /// A preset by name; 42704 with the list of names when there is none.
    pub fn preset(_name: &str) -> Result<Profile> {
        unimplemented!()
    }

    /// Refuses nonsense: 22023.
    pub fn validate(&self) -> Result<()> {
        unimplemented!()
    }
}
