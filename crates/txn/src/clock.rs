//! The clock that snapshots and commits are drawn from.

#[cfg(loom)]
use crate::sync::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::time::Instant;
use tidepool_base::CommitTs;

/// Nanoseconds of the machine's monotonic clock, on top of what was reached before. Threads read it without sharing
/// anything.
///
/// What is relied on: a thread that learnt from another one (through memory, with a full fence on both sides) never reads
/// an earlier time than that one had. `CLOCK_MONOTONIC` promises it: where processors' counters disagree, the kernel takes
/// a clock that they share.
#[derive(Debug)]
pub struct Clock {
    base: u64,
    #[cfg(not(loom))]
    started: Instant,
    /// In place of time: it passes by half a tick a look, so that two looks may find the same.
    #[cfg(loom)]
    looks: AtomicU64,
}

impl Clock {
    /// A clock all of whose times are after `last`.
    pub fn starting_after(last: CommitTs) -> Clock {
        Clock {
            base: last.0 + 1,
            #[cfg(not(loom))]
            started: Instant::now(),
            #[cfg(loom)]
            looks: AtomicU64::new(0),
        }
    }

    #[cfg(not(loom))]
    #[inline]
    pub fn now(&self) -> CommitTs {
        let elapsed = self.started.elapsed();
        CommitTs(self.base + elapsed.as_secs() * 1_000_000_000 + u64::from(elapsed.subsec_nanos()))
    }

    /// Relaxed: a clock orders no memory.
    #[cfg(loom)]
    pub fn now(&self) -> CommitTs {
        CommitTs(self.base + self.looks.fetch_add(1, Ordering::Relaxed) / 2)
    }

    /// Returns when the clock has reached `ts`, which is some nanoseconds ahead at most.
    #[inline]
    pub(crate) fn wait_until(&self, ts: u64) -> u64 {
        loop {
            let now = self.now().0;
            if now >= ts {
                return now;
            }
            #[cfg(not(loom))]
            std::hint::spin_loop();
            #[cfg(loom)]
            loom::thread::yield_now();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_where_it_ended() {
        let before = Clock::starting_after(CommitTs(0));
        let last = CommitTs(before.wait_until(before.now().0 + 1000));
        let after = Clock::starting_after(last);
        let mut now = after.now();
        assert!(now > last);
        for _ in 0..1000 {
            let next = after.now();
            assert!(next >= now);
            now = next;
        }
    }
}
