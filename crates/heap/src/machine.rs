//! What machine and process have, asked inside the allocator too: no allocation.

use std::ffi::CStr;

/// Kept free for everybody else.
const RESERVE_BYTES: u64 = 64 << 20;

/// As much as any of the files takes up to the lines that are asked for.
const TEXT_BYTES: usize = 4096;

/// Whether the machine has so much. True also where it cannot be told.
pub fn has_room_for(bytes: u64) -> bool {
    let available = read(c"/proc/meminfo", |text| bytes_of(text, b"MemAvailable:"));
    available.is_none_or(|available| bytes.saturating_add(RESERVE_BYTES) <= available)
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
    fn the_process_has_memory() {
        let before = process_bytes().unwrap();
        assert!(before > 100 << 10);
        // What tests beside this one give back is less.
        let block = std::hint::black_box(vec![1u8; 256 << 20]);
        let with_block = process_bytes().unwrap();
        assert!(with_block >= before + (block.len() as u64) / 2, "{before} and {with_block} bytes");
    }
}
