//! Memory that one process writes, and another one reads once that one has ended.
//!
//! It is a file without a name, which lives as long as any process has a descriptor of it. A process that is killed writes nothing
//! half that it wrote before: its stores are in the file in the order of the program as far as it came, which is all that a
//! reader needs who comes after its death. Nobody may write beside the process that made it.

#![allow(unsafe_code, reason = "a mapping of the process's own, and the system calls that make it")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// A mapping that this process made, of memory that is there once it is written to.
#[derive(Debug)]
pub struct Pages {
    memory: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is the value's own, as a box's memory is.
unsafe impl Send for Pages {}
// SAFETY: what is shared is read by `&self` alone, but for words, which are atomic.
unsafe impl Sync for Pages {}

impl Pages {
    /// `bytes` of zeroes, and their file, for others. The length is for good, so nobody can take pages from under a reader.
    pub fn new(bytes: usize) -> io::Result<(Pages, OwnedFd)> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a text that ends with a zero, and plain numbers; no other code has the descriptor that comes back.
        let file = unsafe {
            let descriptor = libc::memfd_create(c"tidepool-session".as_ptr(), flags);
            if descriptor < 0 {
                return Err(io::Error::last_os_error());
            }
            File::from(OwnedFd::from_raw_fd(descriptor))
        };
        file.set_len(bytes as u64)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: an open descriptor and plain numbers.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping wherever there is room, of a file that is as long.
        let memory = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED | libc::MAP_NORESERVE, file.as_raw_fd(), 0)
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).ok_or_else(|| io::Error::other("a mapping at nothing"))?;
        Ok((Pages { memory, bytes }, file.into()))
    }

    /// Bytes of it. Panics where it has no such range.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.bytes, "within the pages");
        // SAFETY: within the mapping, which lives as long as `self`; it is written to by `&mut self` alone, but for words, of which
        // each is read by `load`.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(range.start), range.len()) }
    }

    /// Bytes of it, to be written. Panics where it has no such range.
    pub fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.bytes, "within the pages");
        // SAFETY: as in `bytes`, and the borrow is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr().add(range.start), range.len()) }
    }

    /// Stores a word at a multiple of 8, behind all that was written before. Panics where there is none.
    #[inline]
    pub fn store(&mut self, offset: usize, word: u64) {
        self.word(offset).store(word, Ordering::Release);
    }

    /// The word at a multiple of 8. Panics where there is none.
    #[inline]
    pub fn load(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.bytes, "a word of the pages");
        // SAFETY: within the mapping, which begins at a page, so it is aligned; any bits are a number.
        unsafe { AtomicU64::from_ptr(self.memory.as_ptr().add(offset).cast()) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, of which no borrow is left.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn what_is_written_is_in_the_file_whose_length_stays() {
        let (mut pages, file) = Pages::new(3 * 4096).unwrap();
        pages.bytes_mut(4096..4101).copy_from_slice(b"hello");
        pages.store(8, 0x0102);
        let file = File::from(file);
        assert!(file.set_len(4096).is_err() && file.set_len(1 << 20).is_err());
        assert_eq!(pages.bytes(4096..4101), b"hello");
        drop(pages);
        let mut read = [0; 5];
        file.read_exact_at(&mut read, 4096).unwrap();
        assert_eq!(&read, b"hello");
        let mut word = [0; 8];
        file.read_exact_at(&mut word, 8).unwrap();
        assert_eq!(u64::from_ne_bytes(word), 0x0102);
    }

    #[test]
    #[should_panic(expected = "within the pages")]
    fn there_is_nothing_behind_the_end() {
        Pages::new(4096).unwrap().0.bytes_mut(4090..4097);
    }
}
