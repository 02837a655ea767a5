//! The thread that tends to a database: when it works, and how it is called and stopped.

use parking_lot::{Condvar, Mutex};
use std::time::Duration;

#[derive(Debug, Default)]
pub(crate) struct Background {
    state: Mutex<BackgroundState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct BackgroundState {
    stopped: bool,
    /// The thread is at work, and holds the database.
    busy: bool,
    /// There is work before the next interval.
    is_called: bool,
}

impl Background {
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }

    pub fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// Rests for a while, unless it is stopped or called.
    pub fn rest(&self, time: Duration) {
        let mut state = self.state.lock();
        if !state.stopped {
            self.changed.wait_for(&mut state, time);
        }
    }

    /// Has the thread work at once.
    pub fn call(&self) {
        self.state.lock().is_called = true;
        self.changed.notify_all();
    }

    /// Waits for work under way to end.
    pub fn wait(&self) {
        let mut state = self.state.lock();
        while state.busy {
            self.changed.wait(&mut state);
        }
    }

    /// Has `work` done every so often, and when it is called for. Ends when stopped, or when `work` says that there is none any more.
    pub fn run(&self, interval: Duration, mut work: impl FnMut() -> bool) {
        let mut state = self.state.lock();
        while !state.stopped {
            if !state.is_called {
                self.changed.wait_for(&mut state, interval);
            }
            if state.stopped {
                return;
            }
            state.is_called = false;
            state.busy = true;
            let goes_on = parking_lot::MutexGuard::unlocked(&mut state, &mut work);
            state.busy = false;
            self.changed.notify_all();
            if !goes_on {
                return;
            }
        }
    }
}
