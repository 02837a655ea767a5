//! Seeds of tests with random histories: a few by default, and more for as long as one asks.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tidepool_log::files::{Files, SystemFiles};

thread_local! {
    static IS_STEPWISE: Cell<bool> = const { Cell::new(false) };
    static FILES: RefCell<Option<Arc<dyn Files>>> = const { RefCell::new(None) };
}

/// Names what is left out of the product ([`is_left_out`]).
pub(crate) const LEFT_OUT_VARIABLE: &str = "TIDEPOOL_LEFT_OUT";

/// Has databases that this thread makes primary from here on do nothing but what they are told to: no thread of theirs writes the log out, or
/// manifests.
pub(crate) fn go_stepwise() {
    IS_STEPWISE.set(true);
}

pub(crate) fn is_stepwise() -> bool {
    IS_STEPWISE.get()
}

/// Opens hosts whose data folders are in `files`.
pub(crate) fn with_files<T>(files: Arc<dyn Files>, open: impl FnOnce() -> T) -> T {
    FILES.set(Some(files));
    let opened = open();
    FILES.set(None);
    opened
}

pub(crate) fn files() -> Arc<dyn Files> {
    FILES.with_borrow(Clone::clone).unwrap_or_else(|| Arc::new(SystemFiles))
}

/// Whether `TIDEPOOL_LEFT_OUT` says that the product leaves this step out: the test that guards the step must then fail.
pub(crate) fn is_left_out(what: &str) -> bool {
    static LEFT_OUT: OnceLock<Option<String>> = OnceLock::new();
    LEFT_OUT.get_or_init(|| std::env::var(LEFT_OUT_VARIABLE).ok()).as_deref() == Some(what)
}

/// A number of the environment.
pub(crate) fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

/// Runs `history` for at least so many seeds, and on until `TIDEPOOL_STRESS_SECONDS` have passed, from `TIDEPOOL_STRESS_SEED` on.
pub(crate) fn for_seeds(least: u64, history: impl Fn(u64)) {
    let (first, seconds) = (variable("TIDEPOOL_STRESS_SEED", 1), variable("TIDEPOOL_STRESS_SECONDS", 0));
    let start = Instant::now();
    for seed in first.. {
        if seed >= first + least && start.elapsed() >= Duration::from_secs(seconds) {
            return;
        }
        history(seed);
        println!("seed {seed}");
    }
}
