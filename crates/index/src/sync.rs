//! Atomics and locks, or loom's in their place.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering, fence},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering, fence},
};

/// Nothing that these locks guard is left half changed by a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Where the model checker is to consider other threads. It remembers only the last access to an atomic, so that a thread which
/// reads a word and then writes it hides that another one had read it before: this one all threads write.
#[cfg(loom)]
pub(crate) fn step() {
    loom::lazy_static! {
        static ref STEPS: AtomicU64 = AtomicU64::new(0);
    }
    STEPS.fetch_add(1, Ordering::Relaxed);
}

#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn step() {}

/// Lets whoever holds a node go on. It may have lost its processor.
pub(crate) struct Backoff(u32);

impl Backoff {
    pub fn new() -> Backoff {
        Backoff(0)
    }

    #[cfg(not(loom))]
    #[cold]
    pub fn pause(&mut self) {
        /// Some hundred nanoseconds of doubling waits: longer than a node is held by a thread that runs.
        const SPINS_MAX: u32 = 6;
        if self.0 < SPINS_MAX {
            for _ in 0..1 << self.0 {
                std::hint::spin_loop();
            }
        } else {
            std::thread::yield_now();
        }
        self.0 += 1;
    }

    #[cfg(loom)]
    pub fn pause(&mut self) {
        self.0 += 1;
        loom::thread::yield_now();
    }
}
