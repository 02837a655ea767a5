//! The machine a result was measured on.

use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub cpu: String,
    pub cpus: usize,
    pub memory_bytes: u64,
    pub kernel: String,
    pub transparent_huge_pages: String,
    pub architecture: &'static str,
}

pub fn machine() -> Machine {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let cpu = read("/proc/cpuinfo")
        .lines()
        .find_map(|line| {
            line.strip_prefix("model name").map(|rest| rest.trim_start_matches([' ', '\t', ':']).to_owned())
        })
        .unwrap_or_else(|| "unknown".to_owned());
    // The chosen one stands in brackets.
    let huge_pages = read("/sys/kernel/mm/transparent_hugepage/enabled");
    let chosen = huge_pages.split('[').nth(1).and_then(|rest| rest.split(']').next()).unwrap_or("unknown").to_owned();
    Machine {
        cpu,
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        memory_bytes: memory_bytes(),
        kernel: read("/proc/sys/kernel/osrelease"),
        transparent_huge_pages: chosen,
        architecture: std::env::consts::ARCH,
    }
}

pub fn memory_bytes() -> u64 {
    proc_kilobytes("/proc/meminfo", "MemTotal:")
}

/// What the process holds now.
pub fn resident_bytes() -> u64 {
    proc_kilobytes("/proc/self/status", "VmRSS:")
}

fn proc_kilobytes(path: &str, key: &str) -> u64 {
    std::fs::read_to_string(path)
        .unwrap_or_default()
        .lines()
        .find_map(|line| line.strip_prefix(key))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse::<u64>().ok())
        .map_or(0, |kilobytes| kilobytes * 1024)
}
