//! Atomics, or loom's in their place, and what tells it of memory that is no atomic.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

/// Asks the processor to fetch the cache line of an address.
#[inline]
pub(crate) fn prefetch<T>(address: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which is right for any address.
        unsafe { _mm_prefetch(address.cast(), _MM_HINT_T0) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri), not(loom))))]
    let _ = address;
}

/// Beside memory that is written, published, read by many and freed: the model checker finds a read that neither comes after the
/// writing nor before the freeing.
#[derive(Debug)]
pub(crate) struct Witness(#[cfg(loom)] loom::cell::UnsafeCell<()>);

#[cfg(loom)]
// SAFETY: there is nothing in it; loom tells of accesses that meet.
unsafe impl Sync for Witness {}

#[cfg(loom)]
impl Witness {
    pub fn written() -> Witness {
        Witness(loom::cell::UnsafeCell::new(()))
    }

    pub fn read(&self) {
        self.0.with(|_| ());
    }

    pub fn freed(&self) {
        self.0.with_mut(|_| ());
    }
}

#[cfg(not(loom))]
impl Witness {
    #[inline(always)]
    pub fn written() -> Witness {
        Witness()
    }

    #[inline(always)]
    pub fn read(&self) {}

    #[inline(always)]
    pub fn freed(&self) {}
}

/// Lets another thread go on that is in the middle of something short.
#[inline]
pub(crate) fn spin() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::hint::spin_loop();
}
