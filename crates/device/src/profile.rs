//! What a device costs.

use serde::{Deserialize, Serialize};
use tidepool_base::{Error, Result, SqlState};

/// Latency, bandwidth and granularity of one kind of device, as one thread (latency) and all threads together (bandwidth)
/// see it from the host. Presets are named after the machine they stand for; a user's own come from `tidepool.toml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    pub name: String,
    /// One dependent cache-line read or write, ns.
    pub read_latency_ns: f64,
    pub write_latency_ns: f64,
    /// Sustained by all threads together, GB/s (1e9 bytes), which is also bytes per ns.
    pub read_gb_per_s: f64,
    pub write_gb_per_s: f64,
    /// Bytes that the device moves at least.
    #[serde(default = "cache_line")]
    pub granularity_bytes: u32,
    /// Where the figures come from.
    #[serde(default = "user_source")]
    pub source: String,
}

fn cache_line() -> u32 {
    64
}

fn user_source() -> String {
    "configuration".into()
}

/// The preset that stands for the memory the process itself runs in. Pacing charges a device's excess over it.
pub const LOCAL_DRAM: &str = "local-dram";

struct Preset {
    name: &'static str,
    latency_ns: f64,
    read_gb_per_s: f64,
    write_gb_per_s: f64,
    granularity_bytes: u32,
    source: &'static str,
}

/// "Derived" and "assumed" mark what no publication prints.
const PRESETS: [Preset; 9] = [
    Preset {
        name: LOCAL_DRAM,
        latency_ns: 100.0,
        read_gb_per_s: 200.0,
        write_gb_per_s: 200.0,
        granularity_bytes: 64,
        source: "one socket of eight DDR5-4800 channels: 80 to 115 ns, 200 GB/s and more (common figures)",
    },
    Preset {
        name: "fpga-prototype",
        latency_ns: 400.0,
        read_gb_per_s: 10.7,
        write_gb_per_s: 10.7,
        granularity_bytes: 64,
        source: "CXL prototype on an Agilex FPGA with DDR4-1333 (Elastic Use of Far Memory for In-Memory DBMSs, \
                 DaMoN 2023): latency derived from \"three to four times longer than a single NUMA hop\", bandwidth \
                 from one channel of DDR4-1333",
    },
    Preset {
        name: "pcie4-x8-expander",
        latency_ns: 400.0,
        read_gb_per_s: 16.0,
        write_gb_per_s: 16.0,
        granularity_bytes: 64,
        source: "CXL expander on an FPGA, PCIe Gen4 x8, DDR3 (Enabling CXL Memory Expansion for In-Memory Database \
                 Management Systems, DaMoN 2022): theoretical 16 GB/s, latency assumed",
    },
    Preset {
        name: "pcie4-x8-expander-2x",
        latency_ns: 400.0,
        read_gb_per_s: 32.0,
        write_gb_per_s: 32.0,
        granularity_bytes: 64,
        source: "two striped expanders of the same publication: theoretical 32 GB/s, latency assumed",
    },
    Preset {
        name: "cxl-asic",
        latency_ns: 250.0,
        read_gb_per_s: 17.8,
        write_gb_per_s: 17.8,
        granularity_bytes: 64,
        source: "CXL 2.0 expander of 96 GB, PCIe Gen5 x8: 250 ns, 17.8 GB/s of reads (CacheLib wiki); writes assumed \
                 equal",
    },
    Preset {
        name: "remote-socket",
        latency_ns: 190.0,
        read_gb_per_s: 50.0,
        write_gb_per_s: 50.0,
        granularity_bytes: 64,
        source: "the other socket's memory, which both DaMoN papers use as emulated CXL: 190 ns and 40 to 60 GB/s of \
                 UPI (common figures)",
    },
    Preset {
        name: "switch-pool",
        latency_ns: 549.0,
        read_gb_per_s: 50.0,
        write_gb_per_s: 50.0,
        granularity_bytes: 64,
        source: "pool behind a CXL switch: 549 ns against 146 local (PolarDB's CXL publication); bandwidth assumed, \
                 an x16 port",
    },
    Preset {
        name: "optane",
        latency_ns: 350.0,
        read_gb_per_s: 6.0,
        write_gb_per_s: 2.0,
        granularity_bytes: 256,
        source: "one persistent memory DIMM: 350 ns, 6 GB/s read and 2 GB/s written, blocks of 256 bytes (common \
                 figures)",
    },
    Preset {
        name: "rdma-56g",
        latency_ns: 1200.0,
        read_gb_per_s: 7.0,
        write_gb_per_s: 7.0,
        granularity_bytes: 4096,
        source: "memory node over 56 Gb/s RDMA: 1,200 ns plus the transfer of a page (LegoBase)",
    },
];

impl Profile {
    /// The shipped profiles: `fpga-prototype` and so on, `local-dram` first.
    pub fn presets() -> Vec<Profile> {
        PRESETS
            .iter()
            .map(|preset| Profile {
                name: preset.name.into(),
                read_latency_ns: preset.latency_ns,
                write_latency_ns: preset.latency_ns,
                read_gb_per_s: preset.read_gb_per_s,
                write_gb_per_s: preset.write_gb_per_s,
                granularity_bytes: preset.granularity_bytes,
                source: preset.source.into(),
            })
            .collect()
    }

    /// A preset by name; 42704 with the list of names when there is none.
    pub fn preset(name: &str) -> Result<Profile> {
        Profile::presets().into_iter().find(|profile| profile.name == name).ok_or_else(|| {
            let names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
            Error::new(SqlState::UNDEFINED_OBJECT, format!("device profile \"{name}\" does not exist"))
                .with_hint(format!("Profiles are: {}.", names.join(", ")))
        })
    }

    /// Refuses nonsense: 22023.
    pub fn validate(&self) -> Result<()> {
        let invalid = |what: &str, bounds: &str| {
            Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("invalid device profile: \"{}\"", self.name))
                .with_detail(format!("{what} must be {bounds}.")))
        };
        if self.name.trim().is_empty() {
            return invalid("name", "given");
        }
        // Written so that NaN fails. A nanosecond is below any memory's latency, a second above any.
        for (what, value) in [("read_latency_ns", self.read_latency_ns), ("write_latency_ns", self.write_latency_ns)] {
            if !(1.0..=1e9).contains(&value) {
                return invalid(what, "between 1 and 1000000000");
            }
        }
        for (what, value) in [("read_gb_per_s", self.read_gb_per_s), ("write_gb_per_s", self.write_gb_per_s)] {
            if !(0.001..=100_000.0).contains(&value) {
                return invalid(what, "between 0.001 and 100000");
            }
        }
        if !self.granularity_bytes.is_power_of_two() || self.granularity_bytes > 2 << 20 {
            return invalid("granularity_bytes", "a power of two up to 2097152");
        }
        Ok(())
    }

    pub(crate) fn latency_ns(&self, write: bool) -> f64 {
        if write { self.write_latency_ns } else { self.read_latency_ns }
    }

    /// Bytes per ns.
    pub(crate) fn bandwidth(&self, write: bool) -> f64 {
        if write { self.write_gb_per_s } else { self.read_gb_per_s }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_sane_and_found_by_its_name() {
        for preset in Profile::presets() {
            preset.validate().unwrap();
            assert_eq!(Profile::preset(&preset.name).unwrap(), preset);
            assert!(!preset.source.is_empty());
        }
        let error = Profile::preset("drum").unwrap_err();
        assert_eq!(error.code(), SqlState::UNDEFINED_OBJECT);
        assert!(error.hint().unwrap().contains("fpga-prototype"));
    }

    #[test]
    fn nonsense_is_refused() {
        let good = Profile::preset("cxl-asic").unwrap();
        let changes: [fn(&mut Profile); 7] = [
            |profile| profile.read_latency_ns = f64::NAN,
            |profile| profile.write_latency_ns = 0.0,
            |profile| profile.read_gb_per_s = -1.0,
            |profile| profile.write_gb_per_s = f64::INFINITY,
            |profile| profile.granularity_bytes = 0,
            |profile| profile.granularity_bytes = 100,
            |profile| profile.name = " ".into(),
        ];
        for change in changes {
            let mut profile = good.clone();
            change(&mut profile);
            assert_eq!(profile.validate().unwrap_err().code(), SqlState::INVALID_PARAMETER_VALUE, "{profile:?}");
        }
    }
}
