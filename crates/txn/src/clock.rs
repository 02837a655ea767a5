//! The clock that snapshots and commits are drawn from: time, or, where another process's log is followed, how far that is
//! applied.

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
///
/// A clock that follows stands still until it is told how far it has come: everything up to there is in its place, and is
/// seen by whoever reads the clock. It shares one line, which is written once a batch. Once it runs, it runs for good.
#[derive(Debug)]
pub struct Clock {
    /// `RUNNING`, or the timestamp that it stands at.
    applied: AtomicU64,
    /// Written before the clock begins to run, and not again.
    base: AtomicU64,
    #[cfg(not(loom))]
    started: Instant,
    /// In place of time: it passes by half a tick a look, so that two looks may find the same.
    #[cfg(loom)]
    looks: AtomicU64,
}

/// Above all timestamps.
const RUNNING: u64 = u64::MAX;

impl Clock {
    /// A clock all of whose times are after `last`.
    pub fn starting_after(last: CommitTs) -> Clock {
        Clock::new(RUNNING, last.0 + 1)
    }

    /// A clock that stands at `applied` until it is moved on.
    pub fn following(applied: CommitTs) -> Clock {
        Clock::new(applied.0, applied.0 + 1)
    }

    /// A clock that shows the same times as this one, which runs: for another host on the same machine.
    #[must_use]
    pub fn beside(&self) -> Clock {
        Clock {
            applied: AtomicU64::new(RUNNING),
            base: AtomicU64::new(self.base.load(Ordering::Relaxed)),
            #[cfg(not(loom))]
            started: self.started,
            #[cfg(loom)]
            looks: AtomicU64::new(self.looks.load(Ordering::Relaxed)),
        }
    }

    fn new(applied: u64, base: u64) -> Clock {
        Clock {
            applied: AtomicU64::new(applied),
            base: AtomicU64::new(base),
            #[cfg(not(loom))]
            started: Instant::now(),
            #[cfg(loom)]
            looks: AtomicU64::new(0),
        }
    }

    #[inline]
    pub fn now(&self) -> CommitTs {
        // Acquire: what is applied up to there is in its place; or the base that it runs from.
        let applied = self.applied.load(Ordering::Acquire);
        if applied != RUNNING {
            return CommitTs(applied);
        }
        CommitTs(self.base.load(Ordering::Relaxed).wrapping_add(self.elapsed()))
    }

    #[cfg(not(loom))]
    #[inline]
    fn elapsed(&self) -> u64 {
        let elapsed = self.started.elapsed();
        elapsed.as_secs() * 1_000_000_000 + u64::from(elapsed.subsec_nanos())
    }

    /// Relaxed: a clock orders no memory.
    #[cfg(loom)]
    fn elapsed(&self) -> u64 {
        self.looks.fetch_add(1, Ordering::Relaxed) / 2
    }

    /// Whether it stands until it is moved on.
    #[inline]
    pub fn is_following(&self) -> bool {
        self.applied.load(Ordering::Acquire) != RUNNING
    }

    /// Moves a clock that follows on to `ts`; never back. Does nothing to one that runs.
    pub(crate) fn follow(&self, ts: CommitTs) {
        debug_assert!(ts.0 < RUNNING);
        // Release: what was applied was put in its place before.
        self.applied.fetch_max(ts.0, Ordering::AcqRel);
    }

    /// Lets a clock that follows run, from after `after` and all that it stood at.
    pub(crate) fn run_after(&self, after: CommitTs) {
        let applied = self.applied.load(Ordering::Acquire);
        if applied == RUNNING {
            return;
        }
        let first = after.0.max(applied) + 1;
        self.base.store(first.wrapping_sub(self.elapsed()), Ordering::Relaxed);
        // Release: whoever finds it running finds the base.
        self.applied.store(RUNNING, Ordering::Release);
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
    fn a_clock_that_follows_stands_until_it_is_moved_on_and_then_runs_for_good() {
        let clock = Clock::following(CommitTs(0));
        assert_eq!((clock.now(), clock.now()), (CommitTs(0), CommitTs(0)));
        clock.follow(CommitTs(70));
        clock.follow(CommitTs(60));
        assert_eq!(clock.now(), CommitTs(70));
        assert!(clock.is_following());
        clock.run_after(CommitTs(50));
        let first = clock.now();
        assert!(!clock.is_following() && first > CommitTs(70));
        clock.follow(CommitTs(1 << 61));
        clock.run_after(CommitTs(1 << 61));
        let second = clock.now();
        assert!(second >= first && second < CommitTs(1 << 61));
        let ahead = Clock::following(CommitTs(70));
        ahead.run_after(CommitTs(1 << 50));
        assert!(ahead.now() > CommitTs(1 << 50) && ahead.now() < CommitTs(1 << 51));
    }

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
