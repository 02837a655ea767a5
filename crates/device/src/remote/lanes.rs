//! Connections for faults, made beforehand.
//!
//! A *lane* is one connection with a buffer. Whoever serves a fault claims a lane that nobody has, and may go on without a
//! connection if the node is away: the buffer is there still. The keeper's thread claims lanes in the same way to connect
//! them anew.

use super::EXCHANGE_PAGES;
use crate::PAGE_BYTES;
use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tidepool_wire::DirectConnection;
use tidepool_wire::transport::Closer;

/// Enough for a whole exchange, and aligned as a page is.
#[repr(C, align(4096))]
pub(crate) struct Buffer([u8; EXCHANGE_PAGES * PAGE_BYTES]);

#[derive(Debug)]
pub(crate) struct Line {
    pub connection: DirectConnection,
    /// Of the node's content when it was made.
    pub generation: u32,
}

struct Inside {
    line: Option<Line>,
    buffer: Box<Buffer>,
}

pub(crate) struct Lane {
    is_claimed: AtomicBool,
    /// Whether there is a connection, as far as can be told without claiming the lane.
    is_up: AtomicBool,
    /// Since when it is claimed, on the monotonic clock; zero: it is not.
    claimed_ns: AtomicU64,
    /// Ends the connection from outside.
    closer: Mutex<Option<Arc<dyn Closer>>>,
    inside: UnsafeCell<Inside>,
}

// SAFETY: what is inside is touched by the thread alone that claimed the lane, which `is_claimed` sees to: it is set by
// compare-and-swap with Acquire and cleared with Release.
unsafe impl Sync for Lane {}

// What is done with a claim is what a handler of faults may do, which does not panic: nobody finds a lane in the middle of an exchange.
impl std::panic::RefUnwindSafe for Lane {}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("is_up", &self.is_up).finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(crate) struct Lanes(Box<[Lane]>);

/// A lane that is the holder's own until this is dropped.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    lane: &'a Lane,
    pub number: usize,
}

thread_local! {
    // Constant and without a destructor: reading it is one instruction, also in a signal handler.
    /// The lane that this thread had last, plus one: its socket's state is in this processor's caches.
    static LAST: Cell<usize> = const { Cell::new(0) };
}

impl Lanes {
    pub fn new(count: usize) -> Lanes {
        let lane = || Lane {
            is_claimed: AtomicBool::new(false),
            is_up: AtomicBool::new(false),
            claimed_ns: AtomicU64::new(0),
            closer: Mutex::new(None),
            inside: UnsafeCell::new(Inside { line: None, buffer: Box::new(Buffer([0; EXCHANGE_PAGES * PAGE_BYTES])) }),
        };
        Lanes((0..count).map(|_| lane()).collect())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// A lane with a connection if one is free, otherwise any. Waits for one by `pause`, which is told how often.
    pub fn claim(&self, pause: impl Fn(u32)) -> Claim<'_> {
        let first = LAST.get().wrapping_sub(1) % self.len();
        let mut tries = 0;
        loop {
            let numbers = || (first..self.len()).chain(0..first);
            let up = numbers().filter(|number| self.0[*number].is_up.load(Ordering::Relaxed));
            // Those without a connection are as good as any once there is none with one.
            let is_any_up = self.0.iter().any(|lane| lane.is_up.load(Ordering::Relaxed));
            let down = numbers().filter(|_| !is_any_up);
            if let Some(claim) = up.chain(down).find_map(|number| self.try_claim(number)) {
                LAST.set(claim.number + 1);
                return claim;
            }
            pause(tries);
            tries += 1;
        }
    }

    pub fn try_claim(&self, number: usize) -> Option<Claim<'_>> {
        let lane = &self.0[number];
        if lane.is_claimed.load(Ordering::Relaxed)
            || lane.is_claimed.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return None;
        }
        lane.claimed_ns.store(crate::links::monotonic_ns(), Ordering::Relaxed);
        Some(Claim { lane, number })
    }

    /// Ends a lane's connection: whoever waits for it is told so. Not inside of a fault.
    pub fn close(&self, number: usize) {
        let closer = self.0[number].closer.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(closer) = &*closer {
            closer.close();
        }
    }

    /// How long the lane has been claimed, if it is.
    pub fn claimed_for_ns(&self, number: usize) -> Option<u64> {
        let since = self.0[number].claimed_ns.load(Ordering::Relaxed);
        (since != 0).then(|| crate::links::monotonic_ns().saturating_sub(since))
    }
}

impl Claim<'_> {
    fn inside(&mut self) -> &mut Inside {
        // SAFETY: the claim is the only one of its lane, and is borrowed for as long as what is lent.
        unsafe { &mut *self.lane.inside.get() }
    }

    /// The connection, if there is one, and the buffer.
    pub fn parts(&mut self) -> (Option<&mut Line>, &mut [u8; EXCHANGE_PAGES * PAGE_BYTES]) {
        let Inside { line, buffer } = self.inside();
        (line.as_mut(), &mut buffer.0)
    }

    pub fn is_up(&self) -> bool {
        self.lane.is_up.load(Ordering::Relaxed)
    }

    /// Notes that the connection is of no use any more. It is closed, and its memory is freed by the keeper.
    pub fn note_down(&mut self) {
        self.lane.is_up.store(false, Ordering::Relaxed);
    }

    /// Replaces the connection. Not inside of a fault: the old one's memory is freed.
    pub fn set(&mut self, line: Option<Line>) {
        let closer = line.as_ref().map(|line| line.connection.closer());
        *self.lane.closer.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = closer;
        self.lane.is_up.store(line.is_some(), Ordering::Relaxed);
        self.inside().line = line;
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.lane.claimed_ns.store(0, Ordering::Relaxed);
        self.lane.is_claimed.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_one_threads_at_a_time() {
        let lanes = Lanes::new(3);
        std::thread::scope(|scope| {
            for thread in 1..=6_u8 {
                let lanes = &lanes;
                scope.spawn(move || {
                    for _ in 0..5_000 {
                        let mut claim = lanes.claim(|_| std::thread::yield_now());
                        let buffer = claim.parts().1;
                        assert_eq!(buffer[0], 0);
                        buffer[0] = thread;
                        std::hint::black_box(&mut *buffer);
                        assert_eq!(std::mem::take(&mut buffer[0]), thread);
                    }
                });
            }
        });
        let claim = lanes.try_claim(1).unwrap();
        assert!(lanes.try_claim(1).is_none() && lanes.claimed_for_ns(1).is_some());
        drop(claim);
        assert!(lanes.try_claim(1).is_some() && lanes.claimed_for_ns(1).is_none());
    }
}
