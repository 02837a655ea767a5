//! Locks, whatever became of the threads that held them.

pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Waits to be woken, or for so long: then the answer is true.
pub(crate) fn wait_for<'a, T>(
    condition: &Condvar,
    guard: MutexGuard<'a, T>,
    timeout: Duration,
) -> (MutexGuard<'a, T>, bool) {
    let (guard, result) = condition.wait_timeout(guard, timeout).unwrap_or_else(|poisoned| poisoned.into_inner());
    (guard, result.timed_out())
}
