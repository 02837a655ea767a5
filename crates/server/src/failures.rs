//! How long a failed attempt to log in waits for its answer.
//!
//! Each failure with a name doubles the time that the next one with it takes, up to a bound, so that passwords cannot be guessed
//! by the hundred a second. Only the connection that failed waits: who knows the password is let in at once, whatever others try.
//! Names are counted by their hashes, in memory of a fixed size; names that share a place wait for each other's failures, too.

use parking_lot::Mutex;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

const PLACES: usize = 1024;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(2);

/// After so long without a failure a name begins anew.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

pub(crate) struct Failures {
    hasher: RandomState,
    places: Vec<Mutex<Failed>>,
}

#[derive(Clone, Copy, Default)]
struct Failed {
    times: u32,
    last: Option<Instant>,
}

impl Default for Failures {
    fn default() -> Failures {
        let places = (0..PLACES).map(|_| Mutex::default()).collect();
        Failures { hasher: RandomState::new(), places }
    }
}

impl Failures {
    fn place(&self, user: &str) -> &Mutex<Failed> {
        &self.places[self.hasher.hash_one(user) as usize % PLACES]
    }

    /// Counts a failure at `now`, and says how long its answer waits.
    pub fn failed(&self, user: &str, now: Instant) -> Duration {
        let mut failed = self.place(user).lock();
        if failed.last.is_some_and(|last| now.saturating_duration_since(last) >= FORGOTTEN_AFTER) {
            failed.times = 0;
        }
        let delay = FIRST.saturating_mul(1 << failed.times.min(8)).min(LONGEST);
        *failed = Failed { times: failed.times.saturating_add(1), last: Some(now) };
        delay
    }

    pub fn succeeded(&self, user: &str) {
        *self.place(user).lock() = Failed::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_take_longer_and_longer_and_are_forgotten() {
        let failures = Failures::default();
        let start = Instant::now();
        let delays: Vec<u128> = (0..7).map(|_| failures.failed("ada", start).as_millis()).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1600, 2000, 2000]);
        failures.succeeded("ada");
        assert_eq!(failures.failed("ada", start), FIRST);
        assert_eq!(failures.failed("ada", start + FORGOTTEN_AFTER), FIRST);
        assert_eq!(failures.failed("ada", start + FORGOTTEN_AFTER), 2 * FIRST);
    }
}
