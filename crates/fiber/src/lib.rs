//! Fibers: tasks that take turns on one thread. While one waits for memory that is far, or for another's transaction, the next
//! goes on. (Jonathan et al., *Exploiting Coroutines to Attack the "Killer Nanoseconds"*, VLDB 2018; He, Lu and Wang, *CoroBase:
//! Coroutine-Oriented Main-Memory Database Engine*, VLDB 2021.)
//!
//! A fiber has a stack of its own, so what waits may be any number of calls below what the task is made of: code that waits for
//! memory asks for the lines that it needs, calls [`pause`], and goes on as if they had been there. Outside a fiber that does
//! nothing.
//!
//! A lock that is held across a pause may be asked for by the next fiber of the same thread, which would then wait for ever. So a
//! fiber pauses for memory only where its caller has said that it may ([`pausing`]): whoever holds no lock. Waiting for
//! something that another fiber of the thread may have to do first ([`wait_until`]) is for those who hold none in any case.

#[cfg(test)]
mod tests;

use corosensei::stack::DefaultStack;
use corosensei::{CoroutineResult, ScopedCoroutine, ScopedCoroutineRef, Yielder};
use std::cell::Cell;
use std::io;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Of each fiber. What is not touched of it takes no memory.
const STACK_BYTES: usize = 2 << 20;

/// Turns in which nobody could go on, before the thread sleeps between two of them.
const IDLE_TURNS: u32 = 64;
const IDLE_SLEEP: Duration = Duration::from_micros(20);

/// Why a fiber does not go on by itself. Exhaustive and mutually exclusive.
enum Pause {
    /// What it asked for is there at `until_ns`. The time was `now_ns`.
    Memory { now_ns: u64, until_ns: u64 },
    /// It looks again at its next turn.
    Look,
}

type Switch = Yielder<(), Pause>;
type Fiber<'f, T> = ScopedCoroutine<'f, (), Pause, T, DefaultStack>;
type FiberRef<'f, T> = ScopedCoroutineRef<'f, (), Pause, T, DefaultStack>;

thread_local! {
    // Constant and without destructors, so that looking costs a load.
    /// Of the fiber that runs.
    static CURRENT: Cell<Option<NonNull<Switch>>> = const { Cell::new(None) };
    /// It may pause for memory.
    static MAY_PAUSE: Cell<bool> = const { Cell::new(false) };
}

/// Ends what began with [`pausing`].
#[derive(Debug)]
pub struct Pausing {
    before: bool,
}

/// Until what is returned is dropped, the fiber that this runs in may pause for memory. The caller holds no lock that another fiber of
/// the thread could ask for, and none is taken across a wait.
#[inline]
pub fn pausing() -> Pausing {
    Pausing { before: MAY_PAUSE.replace(CURRENT.get().is_some()) }
}

impl Drop for Pausing {
    #[inline]
    fn drop(&mut self) {
        MAY_PAUSE.set(self.before);
    }
}

/// Whether this runs in a fiber.
#[inline]
pub fn is_fiber() -> bool {
    CURRENT.get().is_some()
}

/// Whether a pause for memory would let others go on.
#[inline]
pub fn may_pause() -> bool {
    MAY_PAUSE.get()
}

/// Lets the thread's other fibers go on, while memory comes that was asked for just now. Does nothing where [`may_pause`] says so.
#[inline]
pub fn pause() {
    if may_pause() {
        suspend(Pause::Memory { now_ns: 0, until_ns: 0 });
    }
}

/// As [`pause`], for memory that stands for such as takes so many nanoseconds more: returns no sooner. Outside it returns at once.
pub fn pause_for(ns: u64) {
    if may_pause() {
        let now_ns = now_ns();
        suspend(Pause::Memory { now_ns, until_ns: now_ns + ns });
    }
}

/// Lets the thread's other fibers have their turns: for a task that has come to the end of what it does in one go.
#[inline]
pub fn pass() {
    if is_fiber() {
        suspend(Pause::Memory { now_ns: 0, until_ns: 0 });
    }
}

/// Returns when `is_met`, which is asked again and again while the thread's other fibers go on. For fibers: others would keep their
/// thread busy.
pub fn wait_until(mut is_met: impl FnMut() -> bool) {
    while !is_met() {
        if is_fiber() { suspend(Pause::Look) } else { std::thread::yield_now() }
    }
}

fn suspend(pause: Pause) {
    // A thread knows only that it unwinds, not which of its fibers does: others would take themselves to unwind.
    if std::thread::panicking() {
        return;
    }
    let Some(switch) = CURRENT.take() else { return };
    let may_pause = MAY_PAUSE.replace(false);
    // SAFETY: `run` lends it to the fiber for as long as the fiber lasts, and this is that fiber: it is `CURRENT` only from
    // when the fiber begins or goes on until it is suspended or ends.
    unsafe { switch.as_ref() }.suspend(pause);
    CURRENT.set(Some(switch));
    MAY_PAUSE.set(may_pause);
}

/// Ends a fiber's being the one that runs, also where it ends by a panic.
struct Ending;

impl Drop for Ending {
    fn drop(&mut self) {
        CURRENT.set(None);
        MAY_PAUSE.set(false);
    }
}

/// What fibers that ran side by side came to, and what their waiting was.
#[derive(Clone, Debug)]
pub struct Finished<T> {
    /// In the order of the tasks.
    pub values: Vec<T>,
    pub waits: Waits,
}

/// What fibers of one thread waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Waits {
    /// Pauses, for memory and by [`pass`].
    pub pauses: u64,
    /// What they were for, together; of paced memory only.
    pub asked_ns: u64,
    /// Of that, what the thread spent with no fiber that could go on.
    pub idle_ns: u64,
}

impl std::ops::AddAssign for Waits {
    fn add_assign(&mut self, other: Waits) {
        self.pauses += other.pauses;
        self.asked_ns += other.asked_ns;
        self.idle_ns += other.idle_ns;
    }
}

/// Runs tasks as fibers of this thread until all are over. A panic in one of them is passed on, once the others have been unwound.
/// An error: there is no memory for their stacks. Where this is a fiber already, the tasks run one after the other.
pub fn run<'f, T: 'f>(tasks: impl IntoIterator<Item = Box<dyn FnOnce() -> T + 'f>>) -> io::Result<Finished<T>> {
    if is_fiber() {
        let values = tasks.into_iter().map(|task| task()).collect();
        return Ok(Finished { values, waits: Waits::default() });
    }
    let fibers = tasks.into_iter().map(fiber).collect::<io::Result<Vec<_>>>()?;
    Ok(within(fibers.into_iter(), Vec::new()))
}

fn fiber<'f, T: 'f>(task: Box<dyn FnOnce() -> T + 'f>) -> io::Result<Fiber<'f, T>> {
    let stack = DefaultStack::new(STACK_BYTES)?;
    Ok(ScopedCoroutine::with_stack(stack, move |switch: &Switch, ()| {
        CURRENT.set(Some(NonNull::from(switch)));
        let _ending = Ending;
        task()
    }))
}

/// Enters the scopes of all fibers, one within the other, and then gives them their turns.
fn within<'s, T>(mut rest: std::vec::IntoIter<Fiber<'s, T>>, mut entered: Vec<FiberRef<'s, T>>) -> Finished<T> {
    match rest.next() {
        Some(fiber) => fiber.scope(|fiber| {
            let mut entered = shortened(entered);
            entered.push(fiber);
            within(rest, entered)
        }),
        None => take_turns(&mut entered),
    }
}

/// The same fibers, for a scope that ends sooner.
fn shortened<'long: 'short, 'short, T>(fibers: Vec<FiberRef<'long, T>>) -> Vec<FiberRef<'short, T>> {
    fibers
}

fn take_turns<T>(fibers: &mut [FiberRef<'_, T>]) -> Finished<T> {
    let mut values: Vec<Option<T>> = fibers.iter().map(|_| None).collect();
    let mut ready_ns = vec![0; fibers.len()];
    let mut waits = Waits::default();
    let mut now_ns = 0;
    let mut left = fibers.len();
    let mut idle_turns = 0;
    // When it was last looked whether somebody can go on, if nobody could since.
    let mut idle_since_ns = None;
    while left > 0 {
        // Whether some fiber did something in this turn, or some look for what others do.
        let (mut has_gone_on, mut looks) = (false, false);
        let turn_began_ns = now_ns;
        for (at, fiber) in fibers.iter_mut().enumerate() {
            if values[at].is_some() || ready_ns[at] > now_ns {
                continue;
            }
            match fiber.resume(()) {
                CoroutineResult::Yield(Pause::Memory { now_ns: now, until_ns }) => {
                    has_gone_on = true;
                    now_ns = now_ns.max(now);
                    ready_ns[at] = until_ns;
                    waits.pauses += 1;
                    waits.asked_ns += until_ns - now;
                }
                CoroutineResult::Yield(Pause::Look) => looks = true,
                CoroutineResult::Return(value) => {
                    has_gone_on = true;
                    values[at] = Some(value);
                    left -= 1;
                }
            }
        }
        let waiting = ready_ns.iter().zip(&values).filter(|(ready, value)| value.is_none() && **ready > now_ns);
        let soonest_ns = waiting.map(|(ready, _)| *ready).min();
        if has_gone_on {
            idle_turns = 0;
            idle_since_ns = None;
            if soonest_ns.is_some() && now_ns == turn_began_ns {
                now_ns = self::now_ns();
            }
            continue;
        }
        if soonest_ns.is_none() && looks {
            // For something that another thread does.
            idle_turns += 1;
            if idle_turns < IDLE_TURNS { std::thread::yield_now() } else { std::thread::sleep(IDLE_SLEEP) }
        } else {
            std::hint::spin_loop();
        }
        now_ns = self::now_ns();
        if let Some(soonest_ns) = soonest_ns {
            // What comes after the memory is there is the scheduler's doing.
            waits.idle_ns += idle_since_ns.map_or(0, |since| soonest_ns.min(now_ns).saturating_sub(since));
        }
        idle_since_ns = Some(now_ns);
    }
    Finished { values: values.into_iter().flatten().collect(), waits }
}

fn now_ns() -> u64 {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    // Never zero, which is before everything.
    EPOCH.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1
}
