//! Named crash points: places at which a harness can end the process, as a power switch would.
//!
//! A place calls [`crash_point`] with its name. Nothing happens there, at the cost of one load and a branch, unless
//! `TIDEPOOL_CRASH_POINT` names it: `NAME` ends the process when it is first reached, `NAME:COUNT` when it is reached for
//! the COUNT-th time; `stop:NAME` and `stop:NAME:COUNT` stop it there instead, until it is told to go on. A crate lists the names of its own in a constant `CRASH_POINTS`, for harnesses that visit them all.
//!
//! A simulation in one process has its own look at the points that a thread comes to ([`at_crash_points`]).
//!
//! A [`panic_point`] panics instead, once, if `TIDEPOOL_PANIC_POINT` names it: so tests see that a defect at that place ends its
//! statement and nothing else. [`without_unwinding`] marks the places where nothing may go on after a panic.

use std::cell::RefCell;
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
    /// The process is stopped there, and not ended.
    stops: bool,
}

/// Points of one kind, of which one at most is armed.
struct Points {
    variable: &'static str,
    state: AtomicU8,
    target: Mutex<Option<Target>>,
}

/// What a simulation does where a thread comes to a crash point, which it is told the name of.
pub type Look = Box<dyn FnMut(&str)>;

thread_local! {
    static LOOK: RefCell<Option<Look>> = const { RefCell::new(None) };
}

/// Has `look` called at each crash point that this thread comes to, until another one takes its place. The thread goes on when it
/// returns: as long as it does not, the thread is as one of a process that is stopped, or was killed.
pub fn at_crash_points(look: Option<Look>) {
    LOOK.set(look);
    // As if one were armed.
    CRASHES.state.store(ARMED, Ordering::Relaxed);
}

/// Ends the process here, or stops it, if that was asked for.
#[inline]
pub fn crash_point(name: &str) {
    if CRASHES.are_on() {
        reached(name);
    }
}

#[cold]
fn reached(name: &str) {
    // Not where a look comes to one itself, nor while the thread ends.
    let _ = LOOK.try_with(|look| {
        if let Ok(mut look) = look.try_borrow_mut()
            && let Some(look) = &mut *look
        {
            look(name);
        }
    });
    if let Some(target) = CRASHES.reached(name) {
        if !target.stops {
            // No destructor runs and nothing is flushed.
            std::process::abort();
        }
        // All threads of the process stop, as for a signal from anybody, before this call returns.
        let _ = std::process::Command::new("kill").args(["-STOP", &std::process::id().to_string()]).status();
    }
}

/// Panics here if that was asked for.
#[inline]
pub fn panic_point(name: &str) {
    if PANICS.are_on() && PANICS.reached(name).is_some() {
        panic!("panic point {name}");
    }
}

/// Arms a crash point as the environment variable would: `NAME`, `NAME:COUNT`, `stop:NAME` or `stop:NAME:COUNT`.
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
        let (text, stops) = text.strip_prefix("stop:").map_or((text, false), |text| (text, true));
        let (name, left) = match text.rsplit_once(':').and_then(|(name, count)| Some((name, count.parse().ok()?))) {
            Some((name, count)) => (name, count),
            None => (text, 1),
        };
        *self.lock() = Some(Target { name: name.to_owned(), left, stops });
        self.state.store(ARMED, Ordering::Relaxed);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Target>> {
        self.target.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The armed point, if it was reached as often as it was to be: once.
    #[cold]
    fn reached(&self, name: &str) -> Option<Target> {
        if self.state.load(Ordering::Relaxed) == UNKNOWN {
            match std::env::var(self.variable) {
                Ok(text) if !text.is_empty() => self.arm(&text),
                // Unless another thread armed one meanwhile.
                _ => _ = self.state.compare_exchange(UNKNOWN, OFF, Ordering::Relaxed, Ordering::Relaxed),
            }
        }
        let mut armed = self.lock();
        let target = armed.as_mut().filter(|target| target.name == name)?;
        target.left = target.left.saturating_sub(1);
        if target.left == 0 { armed.take() } else { None }
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
        arm_crash_point("stop:base.test:3");
        crash_point("base.test");
        assert!(CRASHES.lock().as_ref().is_some_and(|target| target.stops && target.left == 2));
        *CRASHES.lock() = None;
    }

    #[test]
    fn a_look_is_had_at_each_point_of_its_thread() {
        let names = std::rc::Rc::new(RefCell::new(Vec::new()));
        let of_look = names.clone();
        at_crash_points(Some(Box::new(move |name| {
            of_look.borrow_mut().push(name.to_owned());
            crash_point("base.within");
        })));
        crash_point("base.one");
        std::thread::spawn(|| crash_point("base.elsewhere")).join().unwrap();
        crash_point("base.two");
        at_crash_points(None);
        crash_point("base.three");
        assert_eq!(*names.borrow(), ["base.one", "base.two"]);
    }

    #[test]
    fn a_panic_point_panics_once() {
        PANICS.arm("base.panics:2");
        panic_point("base.panics");
        assert!(std::panic::catch_unwind(|| panic_point("base.panics")).is_err());
        panic_point("base.panics");
    }
}
