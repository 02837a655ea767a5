//! What the kernel says of this machine's caches, memory, nodes and device-DAX devices.

use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use tidepool_base::{Error, Result, SqlState};

const NODES: &str = "/sys/devices/system/node";

/// Assumed where the kernel does not tell (some containers and virtual machines).
const LAST_LEVEL_CACHE_DEFAULT_BYTES: u64 = 32 << 20;

/// What a guest is taken to have of the last-level cache, for each processor that shares it. Hypervisors show the host's
/// cache whole, to a guest with few of its processors and many neighbours; servers have 1 to 4 MiB a core.
const GUEST_CACHE_BYTES_PER_PROCESSOR: u64 = 4 << 20;

/// Zero: not told.
static LAST_LEVEL_CACHE_TOLD: AtomicU64 = AtomicU64::new(0);

/// A cache of the first processor, instruction caches left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cache {
    pub level: u32,
    pub size_bytes: u64,
    /// Processors that use it.
    pub processors: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    pub id: u32,
    /// As the kernel writes it: `0-27,56-83`; empty for memory alone.
    pub processors: String,
    pub memory_bytes: u64,
    pub free_bytes: u64,
    /// To each node in order of their numbers; 10 is local.
    pub distances: Vec<u32>,
    /// What the firmware says (HMAT), as seen from the nearest processors.
    pub firmware: Option<FirmwareFigures>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FirmwareFigures {
    pub read_latency_ns: u64,
    pub write_latency_ns: u64,
    /// MB/s, as the kernel has it.
    pub read_mb_per_s: u64,
    pub write_mb_per_s: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DaxDevice {
    /// `dax0.0`, under `/dev` while the driver is `device_dax`.
    pub name: String,
    pub size_bytes: u64,
    pub align_bytes: Option<u64>,
    /// The node that its memory is or would be of.
    pub target_node: Option<u32>,
    /// `device_dax`: a device to map. `kmem`: memory of the target node.
    pub driver: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Topology {
    pub caches: Vec<Cache>,
    /// What the cost model takes the last-level cache to be.
    pub last_level_cache_bytes: u64,
    /// This is a virtual machine.
    pub guest: bool,
    pub nodes: Vec<Node>,
    pub dax_devices: Vec<DaxDevice>,
}

impl Topology {
    pub fn read() -> Topology {
        Topology {
            caches: caches(Path::new("/sys/devices/system/cpu/cpu0/cache")),
            last_level_cache_bytes: last_level_cache_bytes(),
            guest: is_guest(),
            nodes: numa_nodes().into_iter().map(|id| node(Path::new(NODES), id)).collect(),
            dax_devices: dax_devices(Path::new("/sys/bus/dax/devices")),
        }
    }
}

/// The last-level cache that every cost model made from now on counts with: the size that is told, or else what the kernel
/// says; in a virtual machine at most 4 MiB for each processor that shares it, as the rest is the neighbours'.
pub fn last_level_cache_bytes() -> u64 {
    static FOUND: OnceLock<u64> = OnceLock::new();
    match LAST_LEVEL_CACHE_TOLD.load(Ordering::Relaxed) {
        0 => *FOUND.get_or_init(|| last_level_of(&caches(Path::new("/sys/devices/system/cpu/cpu0/cache")), is_guest())),
        told => told,
    }
}

/// Tells the cost model the size of the last-level cache, for the whole process. 22023 for nonsense.
pub fn set_last_level_cache_bytes(bytes: u64) -> Result<()> {
    // Smaller than any processor's; larger than any.
    if !(256 << 10..=16 << 30).contains(&bytes) {
        return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "invalid size of the last-level cache")
            .with_detail("It must be between 256 kB and 16 GB."));
    }
    LAST_LEVEL_CACHE_TOLD.store(bytes, Ordering::Relaxed);
    Ok(())
}

fn last_level_of(caches: &[Cache], guest: bool) -> u64 {
    match caches.iter().max_by_key(|cache| cache.level) {
        None => LAST_LEVEL_CACHE_DEFAULT_BYTES,
        Some(cache) if guest => cache.size_bytes.min(GUEST_CACHE_BYTES_PER_PROCESSOR * cache.processors),
        Some(cache) => cache.size_bytes,
    }
}

fn is_guest() -> bool {
    let flags = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    flags.lines().find(|line| line.starts_with("flags")).is_some_and(|line| line.contains(" hypervisor"))
}

fn caches(folder: &Path) -> Vec<Cache> {
    let mut caches: Vec<Cache> = entries(folder)
        .filter(|path| text(path, "type").is_some_and(|kind| kind != "Instruction"))
        .filter_map(|path| {
            Some(Cache {
                level: number(&path, "level")?,
                size_bytes: cache_size_bytes(&text(&path, "size")?)?,
                processors: text(&path, "shared_cpu_list").map_or(1, |list| processor_count(&list)).max(1),
            })
        })
        .collect();
    caches.sort_by_key(|cache| cache.level);
    caches
}

/// `36608K` as the kernel prints it.
fn cache_size_bytes(text: &str) -> Option<u64> {
    let (digits, scale) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        b'G' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(scale).filter(|bytes| *bytes > 0)
}

/// Of a list such as `0-27,56`.
fn processor_count(list: &str) -> u64 {
    let bound = |text: &str| text.trim().parse::<u64>().ok();
    list.split(',')
        .map(|part| match part.split_once('-') {
            Some((first, last)) => match (bound(first), bound(last)) {
                (Some(first), Some(last)) => (last + 1).saturating_sub(first),
                _ => 0,
            },
            None => u64::from(bound(part).is_some()),
        })
        .sum()
}

/// Whether a node has no processors.
pub fn is_memory_alone(node: u32) -> bool {
    let processors = std::fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist"));
    processors.is_ok_and(|list| list.trim().is_empty())
}

/// Physical memory and swap, bytes. `None` where it cannot be read.
pub fn memory_total_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    Some(meminfo_bytes(&text, "MemTotal:")? + meminfo_bytes(&text, "SwapTotal:").unwrap_or(0))
}

/// Memory that can be taken without swapping, bytes: of the machine, or of the control group of this process where that has
/// less. `None` where it cannot be read.
pub fn memory_available_bytes() -> Option<u64> {
    let machine = meminfo_bytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")?;
    Some(group_available_bytes(Path::new("/")).map_or(machine, |group| group.min(machine)))
}

/// What the control group of this process may still take, with `/proc` and `/sys` below `root`. Its own group alone is looked
/// at, as a container sees it. `None` where it has no limit.
fn group_available_bytes(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let folders = root.join("sys/fs/cgroup");
    // `HIERARCHY:CONTROLLERS:PATH`; version 2 has no controllers here.
    let own = |line: &str| -> Option<u64> {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?.trim_start_matches('/'));
        let (folder, limit, usage, idle) = if controllers.is_empty() {
            (folders.clone(), "memory.max", "memory.current", "inactive_file ")
        } else if controllers.split(',').any(|name| name == "memory") {
            (folders.join("memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ")
        } else {
            return None;
        };
        // In a container the group is often mounted as the root of all.
        let folder = [folder.join(path), folder].into_iter().find(|folder| folder.join(limit).exists())?;
        let read = |name: &str| number::<u64>(&folder, name);
        let text = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        // The kernel gives it back when others want it.
        let cached = text.lines().find_map(|line| line.strip_prefix(idle)?.trim().parse::<u64>().ok()).unwrap_or(0);
        Some(read(limit)?.saturating_sub(read(usage)?.saturating_sub(cached)))
    };
    groups.lines().filter_map(own).min()
}

/// Node numbers that exist now. Nodes of CXL devices come and go.
pub(crate) fn numa_nodes() -> Vec<u32> {
    let mut nodes: Vec<u32> =
        entries(Path::new(NODES)).filter_map(|path| file_name(&path)?.strip_prefix("node")?.parse().ok()).collect();
    nodes.sort_unstable();
    nodes
}

/// Memory of a node, bytes; zero for a node of processors alone.
pub(crate) fn numa_node_bytes(node: u32) -> Option<u64> {
    // Lines read "Node 0 MemTotal:       24669068 kB".
    meminfo_bytes(&fs::read_to_string(format!("{NODES}/node{node}/meminfo")).ok()?, "MemTotal:")
}

fn node(folder: &Path, id: u32) -> Node {
    let folder = folder.join(format!("node{id}"));
    let memory = text(&folder, "meminfo").unwrap_or_default();
    let initiators = folder.join("access0/initiators");
    let firmware = || {
        Some(FirmwareFigures {
            read_latency_ns: number(&initiators, "read_latency")?,
            write_latency_ns: number(&initiators, "write_latency")?,
            read_mb_per_s: number(&initiators, "read_bandwidth")?,
            write_mb_per_s: number(&initiators, "write_bandwidth")?,
        })
    };
    Node {
        id,
        processors: text(&folder, "cpulist").unwrap_or_default(),
        memory_bytes: meminfo_bytes(&memory, "MemTotal:").unwrap_or(0),
        free_bytes: meminfo_bytes(&memory, "MemFree:").unwrap_or(0),
        distances: text(&folder, "distance")
            .map(|list| list.split_whitespace().filter_map(|distance| distance.parse().ok()).collect())
            .unwrap_or_default(),
        firmware: firmware(),
    }
}

fn dax_devices(folder: &Path) -> Vec<DaxDevice> {
    let mut devices: Vec<DaxDevice> = entries(folder)
        .filter_map(|path| {
            Some(DaxDevice {
                name: file_name(&path)?.to_owned(),
                size_bytes: number(&path, "size")?,
                align_bytes: number(&path, "align"),
                // -1 where there is none.
                target_node: number(&path, "target_node"),
                driver: fs::read_link(path.join("driver"))
                    .ok()
                    .and_then(|target| target.file_name()?.to_str().map(str::to_owned)),
            })
        })
        .collect();
    devices.sort_by(|left, right| left.name.cmp(&right.name));
    devices
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn file_name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

fn text(folder: &Path, name: &str) -> Option<String> {
    Some(fs::read_to_string(folder.join(name)).ok()?.trim().to_owned())
}

fn number<T: std::str::FromStr>(folder: &Path, name: &str) -> Option<T> {
    text(folder, name)?.parse().ok()
}

fn meminfo_bytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains(key))?;
    let kilobytes: u64 = line.split_once(key)?.1.split_whitespace().next()?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_sizes_are_read() {
        assert_eq!(cache_size_bytes("36608K"), Some(36608 << 10));
        assert_eq!(cache_size_bytes("32M"), Some(32 << 20));
        assert_eq!(cache_size_bytes(""), None);
        assert_eq!(cache_size_bytes("K"), None);
        assert_eq!(meminfo_bytes("Node 0 MemTotal:       24669068 kB\n", "MemTotal:"), Some(24669068 * 1024));
        assert_eq!(meminfo_bytes("MemFree: 1 kB", "MemTotal:"), None);
        for (list, count) in [("0", 1), ("0-27,56-83", 56), ("3,5,7-8", 4), ("", 0), ("x-y,2", 1), ("5-2", 0)] {
            assert_eq!(processor_count(list), count, "{list}");
        }
    }

    #[test]
    fn a_guest_is_not_taken_to_have_its_neighbours_cache() {
        let cache = |level, mib: u64, processors| Cache { level, size_bytes: mib << 20, processors };
        let host = [cache(1, 1, 1), cache(3, 480, 2), cache(2, 2, 1)];
        assert_eq!(last_level_of(&host, false), 480 << 20);
        assert_eq!(last_level_of(&host, true), 8 << 20);
        assert_eq!(last_level_of(&[cache(3, 36, 32)], true), 36 << 20);
        assert_eq!(last_level_of(&[], true), LAST_LEVEL_CACHE_DEFAULT_BYTES);
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes files")]
    fn nodes_caches_and_devices_are_read_as_the_kernel_shows_them() {
        let folder = std::env::temp_dir().join(format!("tidepool-topology-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("node1/cpulist", "\n");
        write("node1/distance", "21 10\n");
        write("node1/meminfo", "Node 1 MemTotal:  1024 kB\nNode 1 MemFree:  512 kB\n");
        for (name, value) in [
            ("read_latency", "250"),
            ("write_latency", "260"),
            ("read_bandwidth", "17800"),
            ("write_bandwidth", "9000"),
        ] {
            write(&format!("node1/access0/initiators/{name}"), value);
        }
        write("cache/index0/type", "Instruction\n");
        for (index, level, size, shared) in [(3, "3", "480M", "0-1"), (1, "1", "48K", "0")] {
            write(&format!("cache/index{index}/type"), "Unified\n");
            write(&format!("cache/index{index}/level"), level);
            write(&format!("cache/index{index}/size"), size);
            write(&format!("cache/index{index}/shared_cpu_list"), shared);
        }
        write("dax/dax0.0/size", "2147483648\n");
        write("dax/dax0.0/align", "2097152\n");
        write("dax/dax0.0/target_node", "1\n");
        std::os::unix::fs::symlink("../../drivers/kmem", folder.join("dax/dax0.0/driver")).unwrap();

        let found = node(&folder, 1);
        assert_eq!((found.processors.as_str(), found.memory_bytes, found.free_bytes), ("", 1 << 20, 1 << 19));
        assert_eq!(found.distances, [21, 10]);
        let firmware =
            FirmwareFigures { read_latency_ns: 250, write_latency_ns: 260, read_mb_per_s: 17800, write_mb_per_s: 9000 };
        assert_eq!(found.firmware, Some(firmware));
        assert_eq!(node(&folder, 2).firmware, None);
        let cache = |level, size_bytes, processors| Cache { level, size_bytes, processors };
        assert_eq!(caches(&folder.join("cache")), [cache(1, 48 << 10, 1), cache(3, 480 << 20, 2)]);
        let device = DaxDevice {
            name: "dax0.0".into(),
            size_bytes: 2 << 30,
            align_bytes: Some(2 << 20),
            target_node: Some(1),
            driver: Some("kmem".into()),
        };
        assert_eq!(dax_devices(&folder.join("dax")), [device]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "writes files")]
    fn a_control_group_has_less_than_its_machine() {
        let root = std::env::temp_dir().join(format!("tidepool-group-{}", std::process::id()));
        let put = |name: &str, text: &str| {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("proc/self/cgroup", "0::/box\n");
        assert_eq!(group_available_bytes(&root), None, "nothing is mounted");
        put("sys/fs/cgroup/box/memory.max", "max\n");
        put("sys/fs/cgroup/box/memory.current", "300\n");
        assert_eq!(group_available_bytes(&root), None, "it has no limit");
        put("sys/fs/cgroup/box/memory.max", "1000\n");
        assert_eq!(group_available_bytes(&root), Some(700));
        put("sys/fs/cgroup/box/memory.stat", "anon 10\ninactive_file 100\n");
        assert_eq!(group_available_bytes(&root), Some(800));
        put("proc/self/cgroup", "9:cpu,cpuacct:/a\n4:memory:/a\n0::/\n");
        put("sys/fs/cgroup/memory/memory.limit_in_bytes", "500\n");
        put("sys/fs/cgroup/memory/memory.usage_in_bytes", "600\n");
        assert_eq!(group_available_bytes(&root), Some(0));
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads the machine")]
    fn this_machine_has_a_cache_and_memory() {
        assert!(last_level_cache_bytes() >= 256 << 10);
        assert!(memory_total_bytes().unwrap() > 64 << 20);
        assert!(set_last_level_cache_bytes(1000).is_err());
    }
}
