//! Memory for books that a signal handler reads: never from the global allocator, which may itself be handing out the
//! pages that the books are about.

use std::ops::Deref;
use std::ptr::NonNull;

/// Below, the allocator's own bookkeeping is the smaller waste.
#[cfg(not(all(test, loom)))]
const MAPPED_BYTES_MIN: usize = 64 << 10;

/// Types for which all bits zero is a value.
///
/// # Safety
/// Zeroed memory is a valid value of the type, and the type needs no drop.
#[cfg(not(all(test, loom)))]
pub(crate) unsafe trait Zeroable {}

#[cfg(not(all(test, loom)))]
// SAFETY: an integer.
unsafe impl Zeroable for std::sync::atomic::AtomicU32 {}

#[cfg(not(all(test, loom)))]
// SAFETY: an integer.
unsafe impl Zeroable for std::sync::atomic::AtomicU64 {}

/// An array of zeroes of fixed length. What is never touched of it takes no memory.
#[cfg(not(all(test, loom)))]
#[derive(Debug)]
pub(crate) struct Slots<T: Zeroable> {
    base: NonNull<T>,
    len: usize,
}

#[cfg(not(all(test, loom)))]
// SAFETY: owns its elements, as a boxed slice does.
unsafe impl<T: Zeroable + Send> Send for Slots<T> {}
#[cfg(not(all(test, loom)))]
// SAFETY: as above.
unsafe impl<T: Zeroable + Sync> Sync for Slots<T> {}

#[cfg(not(all(test, loom)))]
impl<T: Zeroable> Slots<T> {
    pub fn zeroed(len: usize) -> Option<Slots<T>> {
        use std::alloc::{GlobalAlloc, Layout, System};
        let layout = Layout::array::<T>(len).ok().filter(|layout| layout.size() > 0)?;
        let base = if layout.size() >= MAPPED_BYTES_MIN {
            map(layout.size())?
        } else {
            // SAFETY: the size is not zero.
            NonNull::new(unsafe { System.alloc_zeroed(layout) })?
        };
        Some(Slots { base: base.cast(), len })
    }
}

/// Zeroed memory from the system. An allocator may instead hand out memory that was in use, and clear all of it.
#[cfg(not(all(test, loom)))]
fn map(len: usize) -> Option<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if base == libc::MAP_FAILED { None } else { NonNull::new(base.cast()) }
}

#[cfg(not(all(test, loom)))]
impl<T: Zeroable> Deref for Slots<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements were allocated zeroed, which is a value of T.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

#[cfg(not(all(test, loom)))]
impl<T: Zeroable> Drop for Slots<T> {
    fn drop(&mut self) {
        use std::alloc::{GlobalAlloc, Layout, System};
        if let Ok(layout) = Layout::array::<T>(self.len) {
            // SAFETY: mapped with this length, or allocated by `System` with this layout, by the same rule.
            unsafe {
                if layout.size() >= MAPPED_BYTES_MIN {
                    libc::munmap(self.base.as_ptr().cast(), layout.size());
                } else {
                    System.dealloc(self.base.as_ptr().cast(), layout);
                }
            }
        }
    }
}

/// loom's atomics are no plain memory.
#[cfg(all(test, loom))]
#[derive(Debug)]
pub(crate) struct Slots<T>(Box<[T]>);

#[cfg(all(test, loom))]
impl<T: ModelZero> Slots<T> {
    pub fn zeroed(len: usize) -> Option<Self> {
        Some(Slots((0..len).map(|_| T::zero()).collect()))
    }
}

/// Zero, of what is modelled and of what is not.
#[cfg(all(test, loom))]
pub(crate) trait ModelZero {
    fn zero() -> Self;
}

#[cfg(all(test, loom))]
impl ModelZero for loom::sync::atomic::AtomicU32 {
    fn zero() -> Self {
        Self::new(0)
    }
}

#[cfg(all(test, loom))]
impl ModelZero for std::sync::atomic::AtomicU32 {
    fn zero() -> Self {
        Self::new(0)
    }
}

#[cfg(all(test, loom))]
impl ModelZero for std::sync::atomic::AtomicU64 {
    fn zero() -> Self {
        Self::new(0)
    }
}

#[cfg(all(test, loom))]
impl<T> Deref for Slots<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

/// A value in memory of the system's allocator.
#[derive(Debug)]
pub(crate) struct SystemBox<T>(NonNull<T>);

// SAFETY: owns its value, as a box does.
unsafe impl<T: Send> Send for SystemBox<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for SystemBox<T> {}

impl<T> SystemBox<T> {
    pub fn new(value: T) -> Option<SystemBox<T>> {
        use std::alloc::{GlobalAlloc, Layout, System};
        const { assert!(size_of::<T>() > 0) };
        // SAFETY: the size is not zero.
        let place = NonNull::new(unsafe { System.alloc(Layout::new::<T>()) })?.cast::<T>();
        // SAFETY: fresh memory of the value's layout.
        unsafe { place.write(value) };
        Some(SystemBox(place))
    }

    pub fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T> Deref for SystemBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: holds a value until dropped.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Drop for SystemBox<T> {
    fn drop(&mut self) {
        use std::alloc::{GlobalAlloc, Layout, System};
        // SAFETY: holds a value, dropped once, and was allocated by `System` with this layout.
        unsafe {
            self.0.drop_in_place();
            System.dealloc(self.0.as_ptr().cast(), Layout::new::<T>());
        }
    }
}
