//! What machine and process have, asked inside the allocator too: no allocation.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Kept free for everybody else.
const RESERVE_BYTES: u64 = 64 << 20;

/// Of a limit, one part in so many is kept free at most.
const RESERVE_PART: u64 = 8;

/// What the process may use: zero until it is known.
static LIMIT: AtomicU64 = AtomicU64::new(0);

/// As much as any of the files takes up to the lines that are asked for.
const TEXT_BYTES: usize = 4096;

/// The process may use so much in all, or as much as was said before if that is more. Returns which.
pub fn set_limit(bytes: u64) -> u64 {
    LIMIT.fetch_max(bytes, Ordering::Relaxed).max(bytes)
}

/// Whether the machine has so much, and the process may take it. True also where it cannot be told.
pub fn has_room_for(bytes: u64) -> bool {
    let available = read(c"/proc/meminfo", |text| bytes_of(text, b"MemAvailable:"));
    available.is_none_or(|available| bytes.saturating_add(RESERVE_BYTES) <= available)
        && is_within(bytes, process_bytes(), LIMIT.load(Ordering::Relaxed))
}

fn is_within(bytes: u64, now: Option<u64>, limit: u64) -> bool {
    let reserve = RESERVE_BYTES.min(limit / RESERVE_PART);
    limit == 0 || now.is_none_or(|now| now.saturating_add(bytes).saturating_add(reserve) <= limit)
}

/// Memory that the process has and that cannot be taken from it: all but pages of files.
pub fn process_bytes() -> Option<u64> {
    read(c"/proc/self/status", |text| Some(bytes_of(text, b"RssAnon:")? + bytes_of(text, b"RssShmem:").unwrap_or(0)))
}

fn read<T>(name: &CStr, find: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
    let mut text = [0u8; TEXT_BYTES];
    // SAFETY: a zero-terminated name; the descriptor is closed here; the buffer is as long as is said.
    let count = unsafe {
        let file = libc::open(name.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return None;
        }
        let count = libc::read(file, text.as_mut_ptr().cast(), text.len());
        libc::close(file);
        count
    };
    find(&text[..usize::try_from(count).ok()?])
}

/// Of `MemAvailable:   22000000 kB`.
fn bytes_of(text: &[u8], key: &[u8]) -> Option<u64> {
    let line = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(key))?;
    let digits = line.iter().copied().skip_while(|byte| matches!(byte, b' ' | b'\t')).take_while(u8::is_ascii_digit);
    let kilobytes = digits.fold(0u64, |value, digit| value.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
    Some(kilobytes.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read() {
        assert_eq!(bytes_of(b"MemTotal: 9 kB\nMemAvailable:   22 kB\n", b"MemAvailable:"), Some(22 * 1024));
        assert_eq!(bytes_of(b"MemTotal: 9 kB\n", b"MemAvailable:"), None);
        assert!(has_room_for(1));
        assert!(!has_room_for(1 << 60));
    }

    #[test]
    fn what_the_process_may_use_is_less_than_the_machine_has() {
        let limit = 800 << 20;
        assert!(is_within(100 << 20, Some(600 << 20), limit));
        assert!(!is_within(150 << 20, Some(600 << 20), limit));
        assert!(!is_within(u64::MAX, Some(1), limit));
        // Of a small limit little is kept free.
        assert!(is_within(10 << 20, Some(40 << 20), 64 << 20));
        assert!(is_within(u64::MAX, Some(1), 0) && is_within(1, None, limit));
    }

    #[test]
    fn the_process_has_memory() {
        let before = process_bytes().unwrap();
        assert!(before > 100 << 10);
        // What tests beside this one give back is less.
        let block = std::hint::black_box(vec![1u8; 256 << 20]);
        let with_block = process_bytes().unwrap();
        assert!(with_block >= before + (block.len() as u64) / 2, "{before} and {with_block} bytes");
    }
}
