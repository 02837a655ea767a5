//! What the kernel says of this machine's caches, memory and nodes.

use std::fs;
use std::path::Path;

const NODES: &str = "/sys/devices/system/node";

/// Assumed where the kernel does not tell (some containers and virtual machines).
const LAST_LEVEL_CACHE_DEFAULT_BYTES: u64 = 32 << 20;

/// Size of the cache nearest to memory that the first processor uses, bytes.
pub(crate) fn last_level_cache_bytes() -> u64 {
    let read = |path: &Path| fs::read_to_string(path).ok();
    let Ok(entries) = fs::read_dir("/sys/devices/system/cpu/cpu0/cache") else {
        return LAST_LEVEL_CACHE_DEFAULT_BYTES;
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let level: u32 = read(&entry.path().join("level"))?.trim().parse().ok()?;
            Some((level, cache_size_bytes(&read(&entry.path().join("size"))?)?))
        })
        .max()
        .map_or(LAST_LEVEL_CACHE_DEFAULT_BYTES, |(_, bytes)| bytes)
}

/// `36608K` as the kernel prints it.
fn cache_size_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, scale) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        b'G' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(scale).filter(|bytes| *bytes > 0)
}

/// Physical memory and swap, bytes. `None` where it cannot be read.
pub(crate) fn memory_total_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    Some(meminfo_bytes(&text, "MemTotal:")? + meminfo_bytes(&text, "SwapTotal:").unwrap_or(0))
}

/// Node numbers that exist now. Nodes of CXL devices come and go.
pub(crate) fn numa_nodes() -> Vec<u32> {
    let mut nodes: Vec<u32> = fs::read_dir(NODES)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok())
        .collect();
    nodes.sort_unstable();
    nodes
}

/// Memory of a node, bytes; zero for a node of processors alone.
pub(crate) fn numa_node_bytes(node: u32) -> Option<u64> {
    // Lines read "Node 0 MemTotal:       24669068 kB".
    meminfo_bytes(&fs::read_to_string(format!("{NODES}/node{node}/meminfo")).ok()?, "MemTotal:")
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
        assert_eq!(cache_size_bytes("36608K\n"), Some(36608 << 10));
        assert_eq!(cache_size_bytes("32M"), Some(32 << 20));
        assert_eq!(cache_size_bytes(""), None);
        assert_eq!(cache_size_bytes("K"), None);
        assert_eq!(meminfo_bytes("Node 0 MemTotal:       24669068 kB\n", "MemTotal:"), Some(24669068 * 1024));
        assert_eq!(meminfo_bytes("MemFree: 1 kB", "MemTotal:"), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads the machine")]
    fn this_machine_has_a_cache_and_memory() {
        assert!(last_level_cache_bytes() >= 256 << 10);
        assert!(memory_total_bytes().unwrap() > 64 << 20);
    }
}
