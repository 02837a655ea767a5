//! Steps of simulated hosts: each runs on a thread of its own, one at a time, and can be made to pause at a crash point. A host that
//! is killed there stays there. So nothing of it is stored, flushed or unwound after its death.

use crate::stress::go_stepwise;
use parking_lot::{Condvar, Mutex};
use std::any::Any;
use std::sync::Arc;
use std::thread::JoinHandle;
use tidepool_base::at_crash_points;

/// What has become of a step.
pub(super) enum Came<T> {
    Ended(T),
    /// It is at the crash point of this name.
    Paused(Step<T>, String),
}

/// A step that pauses. Its thread lives until it has gone on to its end.
pub(super) struct Step<T> {
    gate: Arc<Gate<T>>,
    thread: JoinHandle<()>,
}

struct Gate<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

enum State<T> {
    /// It pauses at the crash point after so many others.
    Runs(Option<u32>),
    Pauses(String),
    Ended(Result<T, Box<dyn Any + Send>>),
}

/// Does `work`, up to the crash point after `passes` others, if it comes to one.
pub(super) fn step<T: Send + 'static>(passes: Option<u32>, work: impl FnOnce() -> T + Send + 'static) -> Came<T> {
    let gate = Arc::new(Gate { state: Mutex::new(State::Runs(passes)), changed: Condvar::new() });
    let of_thread = Arc::clone(&gate);
    let run = move || {
        go_stepwise();
        let of_look = Arc::clone(&of_thread);
        at_crash_points(Some(Box::new(move |name| of_look.pass(name))));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        at_crash_points(None);
        *of_thread.state.lock() = State::Ended(outcome);
        of_thread.changed.notify_all();
    };
    let thread = std::thread::Builder::new().name("step".to_owned()).spawn(run).unwrap();
    Step { gate, thread }.wait()
}

impl<T> Gate<T> {
    /// What the thread does at a crash point.
    fn pass(&self, name: &str) {
        let mut state = self.state.lock();
        match &mut *state {
            State::Runs(Some(0)) => {}
            State::Runs(Some(passes)) => return *passes -= 1,
            _ => return,
        }
        *state = State::Pauses(name.to_owned());
        self.changed.notify_all();
        while matches!(*state, State::Pauses(_)) {
            self.changed.wait(&mut state);
        }
    }
}

impl<T> Step<T> {
    /// Goes on, to the end or to another crash point.
    pub fn go_on(self, passes: Option<u32>) -> Came<T> {
        *self.gate.state.lock() = State::Runs(passes);
        self.gate.changed.notify_all();
        self.wait()
    }

    fn wait(self) -> Came<T> {
        let mut state = self.gate.state.lock();
        loop {
            match &mut *state {
                State::Runs(_) => self.gate.changed.wait(&mut state),
                State::Pauses(name) => {
                    let name = name.clone();
                    drop(state);
                    return Came::Paused(self, name);
                }
                State::Ended(_) => break,
            }
        }
        let ended = std::mem::replace(&mut *state, State::Runs(None));
        drop(state);
        // With what the thread leaves to its end.
        let _ = self.thread.join();
        match ended {
            State::Ended(Ok(outcome)) => Came::Ended(outcome),
            State::Ended(Err(panic)) => std::panic::resume_unwind(panic),
            State::Runs(_) | State::Pauses(_) => unreachable!("it has ended"),
        }
    }
}
