//! Named crash points: places at which a harness can end the process, as a power switch would.
//!
//! A place calls [`crash_point`] with its name. Nothing happens there, at the cost of one load and a branch, unless
//! `TIDEPOOL_CRASH_POINT` names it: `NAME` ends the process when it is first reached, `NAME:COUNT` when it is reached for
//! the COUNT-th time. A crate lists the names of its own in a constant `CRASH_POINTS`, for harnesses that visit them all.
//!
//! A [`panic_point`] panics instead, once, if `TIDEPOOL_PANIC_POINT` names it: so tests see that a defect at that place ends its
//! statement and nothing else. [`without_unwinding`] marks the places where nothing may go on after a panic.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

pub const CRASH_POINT_VARIABLE: &str = "TIDEPOOL_CRASH_POINT";

pub const PANIC_POINT_VARIABLE: &str = "TIDEPOOL_PANIC_POINT";

const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ARMED: u8 = 2;

static CRASHES: Points = Points::new(CRASH_POINT_VARIABLE);
static PANICS: Points = Points::new(PANIC_POINT_VARIABLE);

struct Target {
    name: String,
    /// Times that it is still to be reached, this one included.
    left: u64,
}

/// Points of one kind, of which one at most is armed.
struct Points {
    variable: &'static str,
    state: AtomicU8,
    target: Mutex<Option<Target>>,
}

/// Ends the process here if that was asked for.
#[inline]
pub fn crash_point(name: &str) {
    if CRASHES.are_on() && CRASHES.reached(name) {
        // No destructor runs and nothing is flushed.
        std::process::abort();
    }
}

/// Panics here if that was asked for.
#[inline]
pub fn panic_point(name: &str) {
    if PANICS.are_on() && PANICS.reached(name) {
        panic!("panic point {name}");
    }
}

/// Arms a crash point as the environment variable would: `NAME` or `NAME:COUNT`.
pub fn arm_crash_point(text: &str) {
    CRASHES.arm(text);
}

/// Does `work`, in the middle of which shared state is between two states: a panic there ends the process, as a crash would, rather
/// than let anybody go on with what it leaves.
pub fn without_unwinding<T>(work: impl FnOnce() -> T) -> T {
    struct Within;

    impl Drop for Within {
        fn drop(&mut self) {
            if std::thread::panicking() {
                std::process::abort();
            }
        }
    }

    let within = Within;
    let done = work();
    // Its drop is for panics alone: nothing else may meet a thread that panics already.
    std::mem::forget(within);
    done
}

impl Points {
    const fn new(variable: &'static str) -> Points {
        Points { variable, state: AtomicU8::new(UNKNOWN), target: Mutex::new(None) }
    }

    /// Whether one may be armed. Whoever arms one does so before the threads that are to reach it start, or does not mind missing some.
    #[inline]
    fn are_on(&self) -> bool {
        self.state.load(Ordering::Relaxed) != OFF
    }

    fn arm(&self, text: &str) {
        let (name, left) = match text.rsplit_once(':').and_then(|(name, count)| Some((name, count.parse().ok()?))) {
            Some((name, count)) => (name, count),
            None => (text, 1),
        };
        *self.lock() = Some(Target { name: name.to_owned(), left });
        self.state.store(ARMED, Ordering::Relaxed);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Target>> {
        self.target.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether the armed point was reached as often as it was to be: once.
    #[cold]
    fn reached(&self, name: &str) -> bool {
        if self.state.load(Ordering::Relaxed) == UNKNOWN {
            match std::env::var(self.variable) {
                Ok(text) if !text.is_empty() => self.arm(&text),
                // Unless another thread armed one meanwhile.
                _ => _ = self.state.compare_exchange(UNKNOWN, OFF, Ordering::Relaxed, Ordering::Relaxed),
            }
        }
        let mut armed = self.lock();
        let Some(target) = armed.as_mut().filter(|target| target.name == name) else { return false };
        target.left = target.left.saturating_sub(1);
        let is_due = target.left == 0;
        if is_due {
            *armed = None;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_that_is_not_named_is_passed() {
        arm_crash_point("base.test:2");
        crash_point("base.other");
        crash_point("base.test");
        assert_eq!(CRASHES.lock().as_ref().map(|target| target.left), Some(1));
        *CRASHES.lock() = None;
        crash_point("base.test");
    }

    #[test]
    fn a_panic_point_panics_once() {
        PANICS.arm("base.panics:2");
        panic_point("base.panics");
        assert!(std::panic::catch_unwind(|| panic_point("base.panics")).is_err());
        panic_point("base.panics");
    }
}
