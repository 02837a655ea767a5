//! What a device costs.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use tidepool_base::{Error, Result, SqlState};

/// Latency, bandwidth and granularity of one kind of device, as one thread (latency) and all threads together (bandwidth)
/// see it from the host. Presets are named after the machine they stand for; a user's own come from `tidepool.toml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    pub name: String,
    /// One dependent load of a cache line, ns.
    pub read_latency_ns: f64,
    /// One cache line written past the caches and fenced, ns.
    pub write_latency_ns: f64,
    /// Sustained on the device's link by all threads together, nothing written meanwhile, GB/s (1e9 bytes), which is also
    /// bytes per ns.
    pub read_gb_per_s: f64,
    /// As above, nothing read meanwhile.
    pub write_gb_per_s: f64,
    /// What the link sustains when reads and writes are mixed. A link with a lane for each direction (PCIe, and CXL over
    /// it) carries more of a mix than of either alone; a memory bus that has to be turned round carries no more.
    #[serde(default, skip_serializing_if = "Mixes::is_empty")]
    pub mixed_gb_per_s: Mixes,
    /// Bytes that the device moves at least.
    #[serde(default = "cache_line")]
    pub granularity_bytes: u32,
    /// Tablespaces whose profiles name the same link share its bandwidth, as several on one device do, in all processes
    /// of one user on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
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

/// Bandwidth of one mix of reads and writes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    pub reads: u32,
    pub writes: u32,
    /// Both directions together, GB/s.
    pub gb_per_s: f64,
}

impl Mix {
    /// Part of the bytes that are written: between 0 and 1.
    pub fn write_share(&self) -> f64 {
        f64::from(self.writes) / (f64::from(self.reads) + f64::from(self.writes))
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.reads, self.writes)
    }
}

/// Mixes by rising share of writes. Written as a table of `"READS:WRITES" = GB/s`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, f64>", into = "BTreeMap<String, f64>")]
pub struct Mixes(Vec<Mix>);

impl Mixes {
    pub fn new(mut mixes: Vec<Mix>) -> Mixes {
        mixes.sort_by(|left, right| left.write_share().total_cmp(&right.write_share()));
        Mixes(mixes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Mixes {
    /// `3:1 23.6, 1:1 27.2`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mix) in self.0.iter().enumerate() {
            write!(f, "{}{mix} {}", if index == 0 { "" } else { ", " }, mix.gb_per_s)?;
        }
        Ok(())
    }
}

impl std::ops::Deref for Mixes {
    type Target = [Mix];

    fn deref(&self) -> &[Mix] {
        &self.0
    }
}

impl TryFrom<BTreeMap<String, f64>> for Mixes {
    type Error = String;

    fn try_from(table: BTreeMap<String, f64>) -> Result<Mixes, String> {
        let part = |text: &str| text.trim().parse::<u32>().ok().filter(|part| *part > 0);
        let mixes = table.into_iter().map(|(key, gb_per_s)| {
            let (reads, writes) =
                key.split_once(':')
                    .and_then(|(reads, writes)| Some((part(reads)?, part(writes)?)))
                    .ok_or_else(|| format!("\"{key}\" is not a mix of reads and writes such as \"2:1\""))?;
            Ok(Mix { reads, writes, gb_per_s })
        });
        Ok(Mixes::new(mixes.collect::<Result<_, String>>()?))
    }
}

impl From<Mixes> for BTreeMap<String, f64> {
    fn from(mixes: Mixes) -> BTreeMap<String, f64> {
        mixes.iter().map(|mix| (mix.to_string(), mix.gb_per_s)).collect()
    }
}

/// The preset that stands for the memory the process itself runs in. Pacing charges a device's excess over it.
pub const LOCAL_DRAM: &str = "local-dram";

/// How much more than alone a direction may carry in a mix before that is nonsense. Measured figures scatter.
const MIX_TOLERANCE: f64 = 1.1;

struct Preset {
    name: &'static str,
    read_latency_ns: f64,
    write_latency_ns: f64,
    read_gb_per_s: f64,
    write_gb_per_s: f64,
    mixes: &'static [Mix],
    granularity_bytes: u32,
    source: &'static str,
}

const fn mix(reads: u32, writes: u32, gb_per_s: f64) -> Mix {
    Mix { reads, writes, gb_per_s }
}

/// "Derived" and "assumed" mark what no publication prints, "common figure" what many print and none is cited for.
const PRESETS: [Preset; 13] = [
    Preset {
        name: LOCAL_DRAM,
        read_latency_ns: 100.0,
        write_latency_ns: 100.0,
        read_gb_per_s: 200.0,
        write_gb_per_s: 200.0,
        mixes: &[],
        granularity_bytes: 64,
        source: "one socket of eight DDR5-4800 channels: 80 to 115 ns, 200 GB/s and more of 307 (common figures)",
    },
    Preset {
        name: "fpga-prototype",
        read_latency_ns: 400.0,
        write_latency_ns: 400.0,
        read_gb_per_s: 10.7,
        write_gb_per_s: 10.7,
        mixes: &[],
        granularity_bytes: 64,
        source: "CXL prototype on an Agilex FPGA (Elastic Use of Far Memory for In-Memory Database Management Systems, \
                 DaMoN 2023): DDR4-1333 behind a link of 64 GB/s (section 4.2), bandwidth derived from one channel of it; \
                 latency derived from \"three to four times longer than a single NUMA hop\" (section 3.2)",
    },
    Preset {
        name: "pcie4-x8-expander",
        read_latency_ns: 400.0,
        write_latency_ns: 400.0,
        read_gb_per_s: 16.0,
        write_gb_per_s: 16.0,
        mixes: &[],
        granularity_bytes: 64,
        source: "CXL expander on an FPGA (Expanding System Memory Boundaries Through CXL-Enabled Device, section 3): \
                 theoretical 16 GB/s of PCIe Gen4 x8 over one channel of DDR3; latency assumed, that of the other FPGA",
    },
    Preset {
        name: "pcie4-x8-expander-2x",
        read_latency_ns: 400.0,
        write_latency_ns: 400.0,
        read_gb_per_s: 32.0,
        write_gb_per_s: 32.0,
        mixes: &[],
        granularity_bytes: 64,
        source: "two such expanders striped (section 4.2 there): theoretical 32 GB/s; latency assumed",
    },
    Preset {
        name: "cxl-asic",
        read_latency_ns: 250.0,
        write_latency_ns: 250.0,
        read_gb_per_s: 17.8,
        write_gb_per_s: 17.8,
        mixes: &[mix(3, 1, 23.6), mix(2, 1, 25.1), mix(1, 1, 27.2)],
        granularity_bytes: 64,
        source: "CXL 2.0 expander of 96 GB, PCIe Gen5 x8: 250 ns, 17.8 GB/s of reads and the mixes as printed (wiki of \
                 intel/CacheLib, OCP demo configuration); writes assumed equal to reads",
    },
    Preset {
        name: "cxl-asic-2ch",
        read_latency_ns: 250.0,
        write_latency_ns: 250.0,
        read_gb_per_s: 24.0,
        write_gb_per_s: 24.0,
        mixes: &[mix(2, 1, 36.0)],
        granularity_bytes: 64,
        source: "CXL 2.0 expander with two channels of DDR5, PCIe Gen5 x8, as Micron's CZ120: 36 GB/s at two reads to a \
                 write (the vendor's figure); reads derived from it, writes assumed equal, latency a common figure",
    },
    Preset {
        name: "remote-socket",
        read_latency_ns: 190.0,
        write_latency_ns: 190.0,
        read_gb_per_s: 50.0,
        write_gb_per_s: 50.0,
        mixes: &[],
        granularity_bytes: 64,
        source: "the other socket's memory, which both CXL studies of SAP HANA take for a coming device (section 4.2 of \
                 the one, 5.2 of the other, no figures): 190 ns, 40 to 60 GB/s over UPI (common figures)",
    },
    Preset {
        name: "switch-pool",
        read_latency_ns: 549.0,
        write_latency_ns: 549.0,
        read_gb_per_s: 50.0,
        write_gb_per_s: 50.0,
        mixes: &[],
        granularity_bytes: 64,
        source: "pool behind a CXL 2.0 switch: 549 ns, beside 265 without the switch and 146 local (Unlocking the \
                 Potential of CXL for Disaggregated Memory in Cloud-Native Databases, SIGMOD 2025, quoted from memory); \
                 bandwidth assumed, an x16 port",
    },
    Preset {
        name: "optane",
        read_latency_ns: 305.0,
        write_latency_ns: 90.0,
        read_gb_per_s: 6.6,
        write_gb_per_s: 2.3,
        mixes: &[],
        granularity_bytes: 256,
        source: "one persistent memory DIMM: 305 ns for a random load, 6.6 GB/s read and 2.3 GB/s written, blocks of 256 \
                 bytes (Basic Performance Measurements of the Intel Optane DC Persistent Memory Module, 2019); 90 ns for \
                 a fenced write, which ends in the memory controller's queue (a common figure)",
    },
    Preset {
        name: "optane-4x",
        read_latency_ns: 305.0,
        write_latency_ns: 90.0,
        read_gb_per_s: 26.4,
        write_gb_per_s: 9.2,
        mixes: &[],
        granularity_bytes: 256,
        source: "four such DIMMs interleaved, one socket of the machine of Extending In-Memory OLTP with Persistent Memory \
                 (page Our Server): bandwidth derived, four times one",
    },
    Preset {
        name: "rdma-56g",
        read_latency_ns: 1200.0,
        write_latency_ns: 1200.0,
        read_gb_per_s: 7.0,
        write_gb_per_s: 7.0,
        mixes: &[],
        granularity_bytes: 4096,
        source: "memory node over 56 Gb/s InfiniBand: 1.2 us (the study of TELEPORT in Memory-Disaggregated DBMSs) plus \
                 the transfer of a page",
    },
    Preset {
        name: "rdma-56g-paging",
        read_latency_ns: 4415.0,
        write_latency_ns: 4415.0,
        read_gb_per_s: 7.0,
        write_gb_per_s: 7.0,
        mixes: &[mix(1, 1, 14.0)],
        granularity_bytes: 4096,
        source: "paging in user space over 56 Gb/s InfiniBand, as in LegoBase: 4 to 6 us a page of 4 KiB, software included \
                 (Memory-Disaggregated DBMSs, Memory Management Motivation); 5 us taken, less 585 ns for the transfer; the \
                 link carries as much each way at once",
    },
    Preset {
        name: "infiniswap",
        read_latency_ns: 39_415.0,
        write_latency_ns: 39_415.0,
        read_gb_per_s: 7.0,
        write_gb_per_s: 7.0,
        mixes: &[mix(1, 1, 14.0)],
        granularity_bytes: 4096,
        source: "the kernel's swapping over the same network, as in Infiniswap: 40 us a page of 4 KiB (the same page), less \
                 585 ns for the transfer",
    },
];

impl Profile {
    /// The shipped profiles: `fpga-prototype` and so on, `local-dram` first.
    pub fn presets() -> Vec<Profile> {
        PRESETS
            .iter()
            .map(|preset| Profile {
                name: preset.name.into(),
                read_latency_ns: preset.read_latency_ns,
                write_latency_ns: preset.write_latency_ns,
                read_gb_per_s: preset.read_gb_per_s,
                write_gb_per_s: preset.write_gb_per_s,
                mixed_gb_per_s: Mixes::new(preset.mixes.to_vec()),
                granularity_bytes: preset.granularity_bytes,
                link: None,
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

    /// The same device with a link of `factor` times the bandwidth, latencies as they are: what a machine with fewer
    /// processors than the one that the profile comes from can use of it, if each is to have as much.
    pub fn with_link_scaled(&self, factor: f64) -> Profile {
        let mixes = self.mixed_gb_per_s.iter().map(|mix| Mix { gb_per_s: mix.gb_per_s * factor, ..*mix });
        Profile {
            name: format!("{} with {factor:.3} of its link", self.name),
            read_gb_per_s: self.read_gb_per_s * factor,
            write_gb_per_s: self.write_gb_per_s * factor,
            mixed_gb_per_s: Mixes::new(mixes.collect()),
            ..self.clone()
        }
    }

    /// Refuses nonsense: 22023.
    pub fn validate(&self) -> Result<()> {
        let invalid = |detail: String| {
            Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("invalid device profile: \"{}\"", self.name))
                .with_detail(detail))
        };
        if self.name.trim().is_empty() {
            return invalid("name must be given.".into());
        }
        // Written so that NaN fails. A nanosecond is below any memory's latency, a second above any.
        for (what, value) in [("read_latency_ns", self.read_latency_ns), ("write_latency_ns", self.write_latency_ns)] {
            if !(1.0..=1e9).contains(&value) {
                return invalid(format!("{what} must be between 1 and 1000000000, not {value}."));
            }
        }
        let mixes = self.mixed_gb_per_s.iter();
        for (what, value) in [("read_gb_per_s", self.read_gb_per_s), ("write_gb_per_s", self.write_gb_per_s)]
            .map(|(what, value)| (what.to_owned(), value))
            .into_iter()
            .chain(mixes.clone().map(|mix| (format!("mixed_gb_per_s of {mix}"), mix.gb_per_s)))
        {
            if !(0.001..=100_000.0).contains(&value) {
                return invalid(format!("{what} must be between 0.001 and 100000, not {value}."));
            }
        }
        for mix in mixes {
            let writes = mix.gb_per_s * mix.write_share();
            for (part, alone, what) in
                [(mix.gb_per_s - writes, self.read_gb_per_s, "read"), (writes, self.write_gb_per_s, "write")]
            {
                if part > alone * MIX_TOLERANCE {
                    return invalid(format!(
                        "In mixed_gb_per_s of {mix} the {what}s come to {part:.1} GB/s, more than {what}_gb_per_s, which \
                         is {alone} without the other direction."
                    ));
                }
            }
        }
        if let Some(pair) = self.mixed_gb_per_s.windows(2).find(|pair| pair[0].write_share() == pair[1].write_share()) {
            return invalid(format!("mixed_gb_per_s gives the same mix twice: {} and {}.", pair[0], pair[1]));
        }
        if !self.granularity_bytes.is_power_of_two() || self.granularity_bytes > 2 << 20 {
            return invalid(format!(
                "granularity_bytes must be a power of two up to 2097152, not {}.",
                self.granularity_bytes
            ));
        }
        Ok(())
    }

    /// Time that the link needs for a mix of bytes read and written, ns.
    ///
    /// Time per byte is linear in the share of writes between the mixes that are known, reads alone and writes alone
    /// among them: what lies between two mixes is the one for part of the time and the other for the rest. So a profile
    /// without mixes is that of a link which goes one way at a time.
    pub fn transfer_ns(&self, read_bytes: f64, write_bytes: f64) -> f64 {
        let bytes = read_bytes + write_bytes;
        if bytes <= 0.0 {
            return 0.0;
        }
        let share = write_bytes / bytes;
        let mut below = (0.0, 1.0 / self.read_gb_per_s);
        for above in self
            .mixed_gb_per_s
            .iter()
            .map(|mix| (mix.write_share(), 1.0 / mix.gb_per_s))
            .chain([(1.0, 1.0 / self.write_gb_per_s)])
        {
            if share <= above.0 {
                return bytes * (below.1 + (above.1 - below.1) * (share - below.0) / (above.0 - below.0));
            }
            below = above;
        }
        bytes * below.1
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
    fn the_documentation_lists_the_presets() {
        let documentation = include_str!("../../../docs/reference/profiles.md");
        let local = Profile::preset(LOCAL_DRAM).unwrap();
        for preset in Profile::presets() {
            let pair =
                |read: f64, write: f64| if read == write { read.to_string() } else { format!("{read} / {write}") };
            let row = format!(
                "| `{}` | {} | {} | {} | {} | {} | {} |\n",
                preset.name,
                pair(preset.read_latency_ns, preset.write_latency_ns),
                preset.read_latency_ns - local.read_latency_ns,
                pair(preset.read_gb_per_s, preset.write_gb_per_s),
                preset.mixed_gb_per_s,
                preset.granularity_bytes,
                preset.source
            );
            assert!(documentation.contains(&row), "docs/reference/profiles.md lacks the row\n{row}");
        }
    }

    fn mixed(mixes: &[Mix]) -> Mixes {
        Mixes::new(mixes.to_vec())
    }

    #[test]
    fn nonsense_is_refused() {
        type Change = fn(&mut Profile);
        let good = Profile::preset("cxl-asic").unwrap();
        let changes: [(Change, &str); 11] = [
            (|profile| profile.read_latency_ns = f64::NAN, "read_latency_ns must be between"),
            (|profile| profile.write_latency_ns = 0.0, "write_latency_ns must be between"),
            (|profile| profile.read_gb_per_s = -1.0, "read_gb_per_s must be between"),
            (|profile| profile.write_gb_per_s = f64::INFINITY, "write_gb_per_s must be between"),
            (|profile| profile.granularity_bytes = 0, "granularity_bytes must be"),
            (|profile| profile.granularity_bytes = 100, "granularity_bytes must be"),
            (|profile| profile.name = " ".into(), "name must be given"),
            (|profile| profile.mixed_gb_per_s = mixed(&[mix(2, 1, f64::NAN)]), "mixed_gb_per_s of 2:1 must be"),
            // 45 GB/s of which 30 are read, on a link that reads 17.8.
            (|profile| profile.mixed_gb_per_s = mixed(&[mix(2, 1, 45.0)]), "the reads come to 30.0 GB/s"),
            (|profile| profile.mixed_gb_per_s = mixed(&[mix(1, 4, 25.0)]), "the writes come to 20.0 GB/s"),
            (
                |profile| profile.mixed_gb_per_s = mixed(&[mix(2, 2, 20.0), mix(1, 1, 21.0)]),
                "the same mix twice: 2:2 and 1:1",
            ),
        ];
        for (change, detail) in changes {
            let mut profile = good.clone();
            change(&mut profile);
            let error = profile.validate().unwrap_err();
            assert_eq!(error.code(), SqlState::INVALID_PARAMETER_VALUE, "{profile:?}");
            assert!(error.detail().unwrap().contains(detail), "{error:?}");
        }
    }

    #[test]
    fn a_mix_takes_what_was_measured_and_what_lies_between() {
        let asic = Profile::preset("cxl-asic").unwrap();
        let gb_per_s = |reads: f64, writes: f64| (reads + writes) / asic.transfer_ns(reads, writes);
        for (reads, writes, expected) in
            [(1.0, 0.0, 17.8), (3.0, 1.0, 23.6), (2.0, 1.0, 25.1), (1.0, 1.0, 27.2), (0.0, 1.0, 17.8)]
        {
            assert!((gb_per_s(reads, writes) - expected).abs() < 1e-9, "{reads}:{writes}");
        }
        // Halfway between reads alone and 3:1 in the share of writes (7:1): halfway in time per byte.
        let between = 2.0 / (1.0 / 17.8 + 1.0 / 23.6);
        assert!((gb_per_s(7.0, 1.0) - between).abs() < 1e-9);
        assert_eq!(asic.transfer_ns(0.0, 0.0), 0.0);
        // Without mixes the directions take turns.
        let optane = Profile::preset("optane").unwrap();
        assert!((optane.transfer_ns(6600.0, 2300.0) - 2000.0).abs() < 1e-9);
    }

    #[test]
    fn mixes_are_read_from_a_table_of_ratios() {
        let table = |entries: &[(&str, f64)]| entries.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect();
        let mixes = Mixes::try_from(table(&[("1:1", 27.2), ("3:1", 23.6)])).unwrap();
        assert_eq!(*mixes, [mix(3, 1, 23.6), mix(1, 1, 27.2)]);
        assert_eq!(mixes.to_string(), "3:1 23.6, 1:1 27.2");
        assert_eq!(BTreeMap::from(mixes), table(&[("1:1", 27.2), ("3:1", 23.6)]));
        for key in ["", "2", "2:0", "0:1", "-1:1", "a:b", "2:1:1"] {
            assert!(Mixes::try_from(table(&[(key, 1.0)])).unwrap_err().contains("is not a mix"), "{key}");
        }
    }
}
