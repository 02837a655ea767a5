//! Atomics, or those of the model checker.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

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
