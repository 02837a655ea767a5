//! Pages beneath the memory that is measured.

use crate::HUGE_PAGE_BYTES;
use std::fs;
use std::ops::Range;

/// Asks for huge pages beneath `memory`, or for none. Nothing may have been touched yet. Devices with pages of one size
/// (hugetlbfs, device DAX) refuse, and [`huge_share`] says what there is.
pub(super) fn advise(memory: &mut [u8], huge: bool) {
    let advice = if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    // SAFETY: advice on memory that is borrowed exclusively; it changes no content.
    unsafe { libc::madvise(memory.as_mut_ptr().cast(), memory.len(), advice) };
}

/// Part of `memory` that lies in huge pages, 0 to 1, by `/proc/self/smaps`. 0 where that cannot be read.
pub(super) fn huge_share(memory: &[u8]) -> f64 {
    let start = memory.as_ptr() as usize;
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    (huge_bytes(&smaps, start..start + memory.len()) / memory.len().max(1) as f64).min(1.0)
}

/// A mapping counts by the part of it that `range` covers.
fn huge_bytes(smaps: &str, range: Range<usize>) -> f64 {
    let mut mapping = 0..0;
    let mut covered = 0.0;
    let mut bytes = 0.0;
    for line in smaps.lines() {
        if let Some(found) = mapping_of(line) {
            let shared = found.end.min(range.end).saturating_sub(found.start.max(range.start));
            covered = shared as f64 / found.len().max(1) as f64;
            mapping = found;
        } else if let Some((key, value)) = line.split_once(':')
            && covered > 0.0
        {
            let kilobytes = value.trim().trim_end_matches("kB").trim().parse::<usize>().unwrap_or(0);
            match key {
                "AnonHugePages" | "ShmemPmdMapped" | "FilePmdMapped" => bytes += covered * (kilobytes << 10) as f64,
                // hugetlbfs and device DAX know no other.
                "KernelPageSize" if kilobytes << 10 >= HUGE_PAGE_BYTES => bytes += covered * mapping.len() as f64,
                _ => {}
            }
        }
    }
    bytes
}

/// `7f0000000000-7f0040000000 rw-p …`
fn mapping_of(line: &str) -> Option<Range<usize>> {
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_counted_over_the_range_alone() {
        let smaps = "7f0000000000-7f0000800000 rw-p 00000000 00:00 0 \n\
            Size:               8192 kB\nKernelPageSize:        4 kB\nAnonHugePages:      4096 kB\nVmFlags: rd wr hg \n\
            7f0000800000-7f0000c00000 rw-s 00000000 00:0f 7  /mnt/huge/pool\n\
            Size:               4096 kB\nKernelPageSize:     2048 kB\nAnonHugePages:         0 kB\n\
            7f0000c00000-7f0001000000 rw-s 00000000 00:0f 8  /dev/shm/pool\n\
            Size:               4096 kB\nKernelPageSize:        4 kB\nShmemPmdMapped:     2048 kB\n";
        let base = 0x7f0000000000;
        let mib =
            |range: Range<usize>| huge_bytes(smaps, base + (range.start << 20)..base + (range.end << 20)) / 1048576.0;
        assert_eq!(mib(0..8), 4.0);
        assert_eq!(mib(0..4), 2.0);
        assert_eq!(mib(8..12), 4.0);
        assert_eq!(mib(6..10), 1.0 + 2.0);
        assert_eq!(mib(12..16), 2.0);
        assert_eq!(mib(16..20), 0.0);
        assert_eq!(huge_bytes("nonsense\na: b\n", 0..10), 0.0);
    }
}
