//! What threads share, from the standard library or from the model checker.

#[cfg(all(test, loom))]
pub(crate) use loom::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence},
    },
    thread::{Thread, current, yield_now},
};
#[cfg(not(all(test, loom)))]
pub(crate) use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence},
    },
    thread::{Thread, current, yield_now},
};

use std::time::Duration;

/// A lock, whatever became of the thread that held it last.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Waits until this thread is unparked, or for so long.
pub(crate) fn park(timeout: Duration) {
    #[cfg(all(test, loom))]
    {
        // The model knows no time.
        let _ = timeout;
        loom::thread::park();
    }
    #[cfg(not(all(test, loom)))]
    std::thread::park_timeout(timeout);
}

pub(crate) fn sleep(time: Duration) {
    #[cfg(all(test, loom))]
    {
        let _ = time;
        yield_now();
    }
    #[cfg(not(all(test, loom)))]
    std::thread::sleep(time);
}
