//! `tidepool device probe`: which tablespaces are measured, in how much memory, and what is said about them.

use crate::machine::{Machine, machine};
use crate::progress::Bar;
use serde::Serialize;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};
use tidepool_base::{ByteSize, Error, Result, SqlState, TablespaceId};
use tidepool_device::probe::{self, Measured, Settings};
use tidepool_device::{Location, Profile, Topology};
use tidepool_tablespace::{Purpose, Tablespace, TablespaceConfig};

/// Changes with any change of meaning or of names; new fields may come without one.
pub const SCHEMA: &str = "tidepool-probe/1";

/// Beyond the last-level cache of most machines, also where the kernel does not say how large it is.
const WORKING_SET_BYTES_LEAST: u64 = 256 << 20;

/// The largest working set, beside what the kernel says of the last-level cache.
const CACHES: u64 = 4;

#[derive(Clone, Debug)]
pub struct ProbeOptions {
    /// Largest working set, bytes; `None`: four times the last-level cache, as far as there is memory.
    pub working_set_bytes_max: Option<u64>,
    pub rounds: usize,
    /// Most threads; `None`: one a processor.
    pub threads: Option<usize>,
}

/// Everything one call measured, as it is written as JSON. Latencies are nanoseconds, bandwidths GB/s (1e9 bytes), sizes bytes.
#[derive(Clone, Debug, Serialize)]
pub struct ProbeReport {
    pub schema: &'static str,
    pub tidepool_version: &'static str,
    pub started_at_unix: u64,
    pub machine: Machine,
    pub topology: Topology,
    pub devices: Vec<DeviceReport>,
}

#[derive(Clone, Debug, Serialize)]
pub struct DeviceReport {
    /// Those that lie on the device alike: several of plain memory are measured once.
    pub tablespaces: Vec<String>,
    pub location: String,
    /// What they are paced as, or the network that they are paged over.
    pub profile: Option<Profile>,
    /// Those that measured: one thread each.
    pub processors: Vec<usize>,
    pub working_set_bytes_max: usize,
    /// What is wrong with the figures.
    pub warnings: Vec<String>,
    pub measured: Measured,
    /// What the last-level cache really holds for one thread; `None` where the loads do not tell.
    pub cache_reach_bytes: Option<u64>,
}

impl DeviceReport {
    /// How it is made to behave as another device does: `paced as NAME`, `paged over NAME`.
    pub fn emulation(&self) -> Option<String> {
        let how = if self.location.starts_with("paged:") { "paged over" } else { "paced as" };
        self.profile.as_ref().map(|profile| format!("{how} {}", profile.name))
    }
}

/// Measures each of the tablespaces.
pub fn run(tablespaces: &[TablespaceConfig], options: &ProbeOptions) -> Result<ProbeReport> {
    let started_at_unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let topology = Topology::read();
    let mut groups: Vec<Vec<&TablespaceConfig>> = Vec::new();
    for space in tablespaces {
        // Only memory without an owner can be had twice.
        let alike = |other: &&TablespaceConfig| {
            space.location == other.location && space.profile == other.profile && space.location.is_anonymous()
        };
        match groups.iter_mut().find(|group| group.first().is_some_and(alike)) {
            Some(group) => group.push(space),
            None => groups.push(vec![space]),
        }
    }
    let devices = groups.iter().map(|group| device(group, options, &topology)).collect::<Result<_>>()?;
    Ok(ProbeReport {
        schema: SCHEMA,
        tidepool_version: env!("CARGO_PKG_VERSION"),
        started_at_unix,
        machine: machine(),
        topology,
        devices,
    })
}

fn device(group: &[&TablespaceConfig], options: &ProbeOptions, topology: &Topology) -> Result<DeviceReport> {
    let names: Vec<String> = group.iter().map(|space| space.name.clone()).collect();
    let largest = group.iter().max_by_key(|space| space.size_bytes.unwrap_or(u64::MAX)).copied();
    let mut config = largest.cloned().ok_or_else(|| Error::internal("a group of no tablespaces"))?;
    let context = format!("probe of {} at {}", names.join(", "), config.location);
    let in_context = |error: Error| error.with_context(context.clone());

    let mut processors = probe::processors()?;
    processors.truncate(options.threads.unwrap_or(usize::MAX));
    let cache_bytes = topology.caches.iter().map(|cache| cache.size_bytes).max().unwrap_or(0);
    let wanted = options.working_set_bytes_max.unwrap_or((CACHES * cache_bytes).max(WORKING_SET_BYTES_LEAST));
    let settings = |working_set: u64| Settings {
        working_set_bytes_max: usize::try_from(working_set).unwrap_or(usize::MAX / 4),
        rounds: options.rounds,
        processors: processors.clone(),
    };
    let available = available_bytes(&config.location, topology);
    if matches!(config.location, Location::Anon | Location::Numa(_)) {
        // What is not used costs nothing, but a node or a machine may be smaller than what it is asked to promise.
        let needed = settings(wanted).memory_bytes() as u64 + PAGE_SLACK_BYTES;
        config.size_bytes = Some(config.size_bytes.unwrap_or(u64::MAX).min(needed).min(available.unwrap_or(u64::MAX)));
    }

    let path = match &config.location {
        Location::File(path) if !path.exists() => Some(path.clone()),
        _ => None,
    };
    let _removed = path.map(RemovedFile);
    let space = Tablespace::open(TablespaceId(0), config.clone()).map_err(in_context)?;
    let room = space.size_bytes().saturating_sub(PAGE_SLACK_BYTES).min(available.unwrap_or(u64::MAX));
    let working_set = match options.working_set_bytes_max {
        Some(bytes) if settings(bytes).memory_bytes() as u64 > room => {
            return Err(in_context(
                Error::new(SqlState::INVALID_PARAMETER_VALUE, "the working set does not fit").with_detail(format!(
                    "Working sets of {} need {} and there are {}: huge and ordinary pages are measured in turn.",
                    ByteSize(bytes),
                    ByteSize(settings(bytes).memory_bytes() as u64),
                    ByteSize(room)
                )),
            ));
        }
        Some(bytes) => bytes,
        None => wanted.min(room / 2),
    };
    let settings = settings(working_set);
    let mut region = space.allocate(settings.memory_bytes().min(room as usize), Purpose::Heap).map_err(in_context)?;
    let bar = Bar::new(format!("measure {}", names.join(", ")), options.rounds as u64, "rounds");
    let measured = probe::measure(&mut region, &settings, space.pacer(), &mut |round| bar.add(u64::from(round > 0)))
        .map_err(in_context)?;
    bar.add(1);
    drop(bar);

    let largest = measured.latency().map_or(0, |loads| loads.working_set_bytes);
    let mut warnings = Vec::new();
    if (largest as u64) < 2 * cache_bytes {
        warnings.push(format!(
            "The largest working set, {}, is less than twice the last-level cache, {}: figures may be the cache's.",
            ByteSize(largest as u64),
            ByteSize(cache_bytes)
        ));
    }
    let scattered = |spread: f64| spread > 0.1;
    if measured.latency().is_some_and(|loads| scattered(loads.ns.spread()))
        || measured.bandwidth.iter().any(|found| scattered(found.gb_per_s.spread()))
    {
        warnings.push(
            "Some figures scatter by more than a tenth between their quartiles: the machine does something else too."
                .to_owned(),
        );
    }
    let cache_reach_bytes = measured.cache_reach_bytes(&topology.caches);
    Ok(DeviceReport {
        tablespaces: names,
        location: config.location.to_string(),
        profile: config.profile,
        processors: settings.processors,
        working_set_bytes_max: largest,
        warnings,
        measured,
        cache_reach_bytes,
    })
}

/// A device's first page is the superblock's, and what is left has to be a whole huge page more than is measured.
const PAGE_SLACK_BYTES: u64 = 4 << 20;

/// Memory that can be taken without harm: half of what is free, `None` where taking it takes none of the machine's.
fn available_bytes(location: &Location, topology: &Topology) -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let free = match location {
        Location::Dax(_) | Location::Pool | Location::Node { .. } => return None,
        Location::Paged { remote, .. } => return available_bytes(remote, topology),
        Location::Striped(stripes) => {
            let weights: u32 = stripes.iter().map(|stripe| stripe.weight).sum();
            let all = |free: u64, weight: u32| free / u64::from(weight) * u64::from(weights);
            let each = stripes
                .iter()
                .filter_map(|stripe| Some(all(available_bytes(&stripe.location, topology)?, stripe.weight)));
            return each.min();
        }
        Location::Numa(node) => topology.nodes.iter().find(|found| found.id == *node)?.free_bytes,
        Location::Anon | Location::File(_) => {
            let text = read("/proc/meminfo")?;
            let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
            let machine = line.split_whitespace().next()?.parse::<u64>().ok()?.saturating_mul(1024);
            let group = |name: &str| read(&format!("/sys/fs/cgroup/{name}"))?.trim().parse::<u64>().ok();
            match (group("memory.max"), group("memory.current")) {
                (Some(most), Some(now)) => machine.min(most.saturating_sub(now)),
                _ => machine,
            }
        }
    };
    Some(free / 2)
}

/// A file that was made to be measured.
struct RemovedFile(PathBuf);

impl Drop for RemovedFile {
    fn drop(&mut self) {
        // Best effort: it holds nothing.
        let _ = std::fs::remove_file(&self.0);
    }
}
