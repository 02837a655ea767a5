//! Time, as a connection sees it: the system's, or one that a test moves.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time since some moment, and waiting for later.
pub trait Clock: Send + Sync + fmt::Debug {
    fn now(&self) -> Duration;

    /// Returns at that time, or later.
    fn sleep_until(&self, time: Duration);
}

#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

/// The system wakes a sleeper so much too late at times that the rest is spun.
const SPIN: Duration = Duration::from_micros(150);

impl SystemClock {
    pub fn new() -> SystemClock {
        SystemClock { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn sleep_until(&self, time: Duration) {
        let left = time.saturating_sub(self.now());
        if left > SPIN {
            std::thread::sleep(left - SPIN);
        }
        while self.now() < time {
            std::hint::spin_loop();
        }
    }
}

/// A clock that moves only when a thread sleeps, and then at once to where the thread wants it: what a paced connection
/// would have taken can be told exactly, whatever the machine does meanwhile.
#[derive(Debug, Default)]
pub struct VirtualClock(AtomicU64);

impl Clock for VirtualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }

    fn sleep_until(&self, time: Duration) {
        self.0.fetch_max(time.as_nanos() as u64, Ordering::SeqCst);
    }
}
