//! Bookkeeping memory that the global allocator knows nothing of.
//!
//! The query heap's extent hooks run inside the global allocator and change a tablespace's books there. So the books are
//! plain arrays of fixed size, taken once from the system when a tablespace is opened. Pages of them that are never touched
//! take no memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use tidepool_base::{Error, Result, SqlState};

/// Below, the allocator's own bookkeeping is the smaller waste.
const MAPPED_BYTES_MIN: usize = 64 << 10;

/// Types for which all bits zero is a value.
///
/// # Safety
/// Zeroed memory is a valid value of the type, and the type needs no drop.
pub(crate) unsafe trait Zeroable {}

// SAFETY: integers.
unsafe impl Zeroable for u64 {}
// SAFETY: an integer.
unsafe impl Zeroable for std::sync::atomic::AtomicU16 {}
// SAFETY: an integer.
unsafe impl Zeroable for std::sync::atomic::AtomicU32 {}

/// A zeroed array of fixed length.
#[derive(Debug)]
pub(crate) struct SystemArray<T: Zeroable> {
    base: NonNull<T>,
    len: usize,
}

// SAFETY: owns its elements, as a boxed slice does.
unsafe impl<T: Zeroable + Send> Send for SystemArray<T> {}
// SAFETY: as above.
unsafe impl<T: Zeroable + Sync> Sync for SystemArray<T> {}

impl<T: Zeroable> SystemArray<T> {
    pub fn zeroed(len: usize) -> Result<SystemArray<T>> {
        let none = || Error::new(SqlState::OUT_OF_MEMORY, "out of memory for a tablespace's books");
        let layout = Layout::array::<T>(len).map_err(|_| none())?;
        if layout.size() == 0 {
            return Ok(SystemArray { base: NonNull::dangling(), len });
        }
        let base = if is_mapped(&layout) {
            map(layout.size())
        } else {
            // SAFETY: the size is not zero.
            NonNull::new(unsafe { System.alloc_zeroed(layout) })
        };
        Ok(SystemArray { base: base.ok_or_else(none)?.cast(), len })
    }
}

/// Large arrays are mappings of their own, so that what is never touched of them surely takes no memory. (Miri has none.)
fn is_mapped(layout: &Layout) -> bool {
    layout.size() >= MAPPED_BYTES_MIN && !cfg!(miri)
}

/// Zeroed memory from the system: a whole number of pages, or rounded up to it.
fn map(len: usize) -> Option<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if base == libc::MAP_FAILED { None } else { NonNull::new(base.cast()) }
}

impl<T: Zeroable> Deref for SystemArray<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements were allocated zeroed, which is a value of T.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl<T: Zeroable> DerefMut for SystemArray<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl<T: Zeroable> Drop for SystemArray<T> {
    fn drop(&mut self) {
        if let Ok(layout) = Layout::array::<T>(self.len)
            && layout.size() > 0
        {
            // SAFETY: mapped with this length, or allocated by `System` with this layout, by the same rule.
            unsafe {
                if is_mapped(&layout) {
                    libc::munmap(self.base.as_ptr().cast(), layout.size());
                } else {
                    System.dealloc(self.base.as_ptr().cast(), layout);
                }
            }
        }
    }
}
