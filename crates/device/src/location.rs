//! Where a device is: `anon:`, `file:PATH`, `numa:N`, `dax:PATH`.

use std::path::PathBuf;
use tidepool_base::{Error, Result};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// Anonymous private memory: local DRAM.
    Anon,
    /// A file mapped shared: tmpfs, fsdax, hugetlbfs.
    File(PathBuf),
    /// Anonymous memory bound to one NUMA node by the kernel's memory policy.
    Numa(u32),
    /// A device-DAX character device.
    Dax(PathBuf),
}

impl std::str::FromStr for Location {
    type Err = Error;
    fn from_str(_text: &str) -> Result<Location> {
        unimplemented!()
    }
}

impl std::fmt::Display for Location {
    fn fmt(&self, _f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        unimplemented!()
    }
}
