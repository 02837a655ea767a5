//! Named crash points: places at which a harness can end the process, as a power switch would.
//!
//! A place calls [`crash_point`] with its name. Nothing happens there, at the cost of one load and a branch, unless
//! `TIDEPOOL_CRASH_POINT` names it: `NAME` ends the process when it is first reached, `NAME:COUNT` when it is reached for
//! the COUNT-th time. A crate lists the names of its own in a constant `CRASH_POINTS`, for harnesses that visit them all.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

pub const CRASH_POINT_VARIABLE: &str = "TIDEPOOL_CRASH_POINT";

const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ARMED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

struct Target {
    name: String,
    /// Times that it is still to be reached, this one included.
    left: u64,
}

static TARGET: Mutex<Option<Target>> = Mutex::new(None);

/// Ends the process here if that was asked for.
#[inline]
pub fn crash_point(name: &str) {
    // Whoever arms a point does so before the threads that are to reach it start, or does not mind missing some.
    if STATE.load(Ordering::Relaxed) != OFF {
        reached(name);
    }
}

/// Arms a point as the environment variable would: `NAME` or `NAME:COUNT`.
pub fn arm_crash_point(text: &str) {
    let (name, left) = match text.rsplit_once(':').and_then(|(name, count)| Some((name, count.parse().ok()?))) {
        Some((name, count)) => (name, count),
        None => (text, 1),
    };
    *lock() = Some(Target { name: name.to_owned(), left });
    STATE.store(ARMED, Ordering::Relaxed);
}

fn lock() -> std::sync::MutexGuard<'static, Option<Target>> {
    TARGET.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cold]
fn reached(name: &str) {
    if STATE.load(Ordering::Relaxed) == UNKNOWN {
        match std::env::var(CRASH_POINT_VARIABLE) {
            Ok(text) if !text.is_empty() => arm_crash_point(&text),
            // Unless another thread armed one meanwhile.
            _ => _ = STATE.compare_exchange(UNKNOWN, OFF, Ordering::Relaxed, Ordering::Relaxed),
        }
    }
    let mut target = lock();
    if let Some(target) = target.as_mut().filter(|target| target.name == name) {
        target.left = target.left.saturating_sub(1);
        if target.left == 0 {
            // No destructor runs and nothing is flushed.
            std::process::abort();
        }
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
        assert_eq!(lock().as_ref().map(|target| target.left), Some(1));
        *lock() = None;
        crash_point("base.test");
    }
}
