//! The memory of a paged mapping: a window of addresses, and a copy of equal length that stands for the remote node's
//! memory. Both have addresses for more than there is, and are mapped from their starts on, as far as the memory reaches
//! at present. What lies behind that answers a touch with SIGSEGV.

use super::PAGE_BYTES;
use super::kernel::{self, Userfault};
use crate::mapping::{reserve_some, unmap};
use crate::{Content, Device, HUGE_PAGE_BYTES, Location, MapOptions};
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidepool_base::{ByteSize, Error, Result};

#[derive(Debug)]
pub(super) struct Backing {
    /// The window's start; the copy follows the window's addresses.
    base: NonNull<u8>,
    /// Bytes of addresses that the window has, and the copy.
    reserved: usize,
    /// The copy's memory.
    remote: Device,
    /// Bytes that are mapped of each, in whole pages.
    len: AtomicUsize,
    /// One change at a time.
    changes: Mutex<()>,
}

// SAFETY: an address range, unmapped by its owner alone.
unsafe impl Send for Backing {}
// SAFETY: as above.
unsafe impl Sync for Backing {}

impl Backing {
    /// `len` bytes, in whole pages, whose faults come to `userfault`; with addresses for `most`, or for less where they are
    /// scarce.
    pub fn new(remote: &Location, len: usize, most: usize, userfault: &Userfault) -> Result<Backing> {
        let remote = Device::open(remote, Some(len as u64), MapOptions { huge_pages: false }, &|_| Ok(Content::Goes))?;
        let halves = |len: usize| len.next_multiple_of(HUGE_PAGE_BYTES).saturating_mul(2);
        let (base, reserved) = reserve_some(halves(most), halves(len), 2 * HUGE_PAGE_BYTES)
            .map_err(|error| Error::io(format_args!("reserve addresses for {} twice", ByteSize(len as u64)), &error))?;
        let none = AtomicUsize::new(0);
        let backing = Backing { base, reserved: reserved / 2, remote, len: none, changes: Mutex::new(()) };
        backing.map(0..len, userfault)?;
        backing.len.store(len, Ordering::Relaxed);
        Ok(backing)
    }

    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub fn copy(&self) -> NonNull<u8> {
        // SAFETY: the second half of what was reserved.
        unsafe { self.base.add(self.reserved) }
    }

    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    pub fn reserved(&self) -> usize {
        self.reserved
    }

    /// Maps what is missing up to `len`, in whole pages. After an error everything is as it was.
    pub fn grow(&self, len: usize, userfault: &Userfault) -> Result<()> {
        let _changes = self.changes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let before = self.len();
        assert!(len.is_multiple_of(PAGE_BYTES) && before <= len && len <= self.reserved, "{before} to {len}");
        if len == before {
            return Ok(());
        }
        self.remote.resize(len)?;
        if let Err(error) = self.map(before..len, userfault) {
            // Back to what it was, which there is.
            let _ = self.remote.resize(before);
            return Err(error);
        }
        self.len.store(len, Ordering::Relaxed);
        Ok(())
    }

    /// Takes the bytes from `len` on out of the address space. After an error some of their addresses are mapped still.
    ///
    /// # Safety
    /// Nobody uses them, and the page table says that they are empty.
    pub unsafe fn shrink(&self, len: usize) -> Result<()> {
        let _changes = self.changes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let before = self.len();
        assert!(len.is_multiple_of(PAGE_BYTES) && len <= before, "{before} to {len}");
        self.len.store(len, Ordering::Relaxed);
        self.remote.resize(len)?;
        // SAFETY: the caller's promise.
        unsafe { self.unmap(len..before) }
    }

    /// Maps `range` of both, of which nothing is mapped. After an error that is so again.
    fn map(&self, range: Range<usize>, userfault: &Userfault) -> Result<()> {
        let mapped = self.try_map(range.clone(), userfault);
        if mapped.is_err() {
            // SAFETY: nobody was told of this memory. What cannot be unmapped is empty.
            let _ = unsafe { self.unmap(range) };
        }
        mapped
    }

    fn try_map(&self, range: Range<usize>, userfault: &Userfault) -> Result<()> {
        // SAFETY: inside the reservation, where nothing is mapped.
        let (window, copy) = unsafe { (self.base.add(range.start), self.copy().add(range.start)) };
        // SAFETY: as above.
        unsafe { self.remote.map_at(copy, range.start, range.len())? };
        map_fixed(window, range.len(), libc::PROT_READ | libc::PROT_WRITE)
            .map_err(|error| Error::io(format_args!("map {} of memory", ByteSize(range.len() as u64)), &error))?;
        // Pages come and go one by one. A child process has no handler for them and must not see zeroes instead.
        for advice in [libc::MADV_NOHUGEPAGE, libc::MADV_DONTFORK] {
            // SAFETY: advice on a live mapping; it changes no content. A kernel without huge pages refuses the first.
            unsafe { libc::madvise(window.as_ptr().cast(), range.len(), advice) };
        }
        userfault.register(window.addr().get(), range.len()).map_err(|error| kernel::refused(&error))
    }

    /// # Safety
    /// Nobody uses `range` of either.
    unsafe fn unmap(&self, range: Range<usize>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        for start in [self.base, self.copy()] {
            // SAFETY: inside the reservation.
            let start = unsafe { start.add(range.start) };
            map_fixed(start, range.len(), libc::PROT_NONE)
                .map_err(|error| Error::io("unmap a paged tablespace's memory", &error))?;
        }
        Ok(())
    }
}

/// Maps anonymous memory in place of what is there, which is the caller's.
fn map_fixed(start: NonNull<u8>, len: usize, protection: libc::c_int) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: called for ranges of this module's reservations, which nobody uses.
    let mapped = unsafe { libc::mmap(start.as_ptr().cast(), len, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl Drop for Backing {
    fn drop(&mut self) {
        // SAFETY: reserved with this length, and nothing refers to it once its owner is dropped.
        unsafe { unmap(self.base, 2 * self.reserved) };
    }
}
