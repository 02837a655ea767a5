//! A point that is reached, and waiters for it: how far a process shows the log that another one writes.
//!
//! One thread says how far it has come, others look at one word. Where that is not enough they wait, and the thread that reaches
//! their point answers them.

use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, fence, lock};
use crate::waiters::{Answer, Waiters, answer};
use tidepool_base::Result;

#[derive(Default)]
struct Waiting {
    waiters: Waiters<u64>,
    stopped: bool,
}

/// A point that grows.
///
/// No waiter is forgotten: the thread that reaches a point stores it and then looks for waiters; a waiter says that it is there and
/// then looks at the point. A full fence stands between the two steps of each, so at least one of them sees the other.
#[derive(Default)]
pub struct Reached {
    point: AtomicU64,
    /// Changed under the lock alone.
    has_waiters: AtomicBool,
    waiting: Mutex<Waiting>,
}

impl Reached {
    /// Whether `point` is reached. Then all is seen that was done before it was said.
    #[inline]
    pub fn is_at(&self, point: u64) -> bool {
        self.point.load(Ordering::Acquire) >= point
    }

    /// All up to `point` is done. It never goes back.
    pub fn reach(&self, point: u64) {
        // Relaxed: a waiter that comes now finds the point itself.
        if self.point.load(Ordering::Relaxed) >= point && !self.has_waiters.load(Ordering::Relaxed) {
            return;
        }
        // Release: what was done is seen by whoever finds the point.
        self.point.fetch_max(point, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.has_waiters.load(Ordering::Relaxed) {
            self.answer_reached();
        }
    }

    /// Has `told` called once `point` is reached, which may be at once. `furthest` is given the furthest point that is waited for,
    /// before another one can be. Returns the number by which it goes away, or `told` where nobody is taken any more.
    pub fn wait(&self, point: u64, told: Answer, furthest: impl FnOnce(u64)) -> std::result::Result<u64, Answer> {
        let number = {
            let mut waiting = lock(&self.waiting);
            if waiting.stopped {
                return Err(told);
            }
            let number = waiting.waiters.add(point, told);
            self.has_waiters.store(true, Ordering::Relaxed);
            furthest(waiting.waiters.furthest().unwrap_or(point));
            number
        };
        fence(Ordering::SeqCst);
        // What came between the caller's look and the waiter is told here.
        self.answer_reached();
        Ok(number)
    }

    /// Nothing, if it was answered.
    pub fn remove(&self, number: u64) {
        let mut waiting = lock(&self.waiting);
        waiting.waiters.remove(number);
        self.has_waiters.store(!waiting.waiters.is_empty(), Ordering::Relaxed);
    }

    fn answer_reached(&self) {
        // Acquire: what the waiter was to wait for is seen by whoever is told.
        let point = self.point.load(Ordering::Acquire);
        self.answer(|waiters| waiters.take_up_to(point), &Ok(()));
    }

    fn answer(&self, take: impl FnOnce(&mut Waiters<u64>) -> Vec<Answer>, outcome: &Result<()>) {
        let taken = {
            let mut waiting = lock(&self.waiting);
            let taken = take(&mut waiting.waiters);
            self.has_waiters.store(!waiting.waiters.is_empty(), Ordering::Relaxed);
            taken
        };
        answer(taken, outcome);
    }

    /// Tells all that wait, whatever they wait for.
    pub fn answer_all(&self, outcome: &Result<()>) {
        self.answer(Waiters::take_all, outcome);
    }

    /// As `answer_all`, and takes nobody any more.
    pub fn stop(&self, outcome: &Result<()>) {
        lock(&self.waiting).stopped = true;
        self.answer_all(outcome);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tidepool_base::Error;

    /// An answer, and how often it was given with success and with an error.
    fn counted() -> (Answer, Arc<[AtomicU64; 2]>) {
        let counts: Arc<[AtomicU64; 2]> = Arc::default();
        let of_answer = Arc::clone(&counts);
        let told = move |outcome: Result<()>| {
            of_answer[usize::from(outcome.is_err())].fetch_add(1, Ordering::Relaxed);
        };
        (Box::new(told), counts)
    }

    fn of(counts: &[AtomicU64; 2]) -> [u64; 2] {
        [counts[0].load(Ordering::Relaxed), counts[1].load(Ordering::Relaxed)]
    }

    #[test]
    fn waiters_are_told_at_their_points_and_those_that_are_left_at_the_end() {
        let reached = Reached::default();
        reached.reach(5);
        let (at_once, early, late, gone) = (counted(), counted(), counted(), counted());
        let mut furthest = Vec::new();
        assert!(reached.wait(5, at_once.0, |point| furthest.push(point)).is_ok());
        assert_eq!(of(&at_once.1), [1, 0]);
        assert!(reached.wait(8, late.0, |point| furthest.push(point)).is_ok());
        assert!(reached.wait(6, early.0, |point| furthest.push(point)).is_ok());
        let number = reached.wait(6, gone.0, |point| furthest.push(point));
        assert_eq!(furthest, [5, 8, 8, 8]);
        number.map(|number| reached.remove(number)).ok().unwrap();
        reached.reach(7);
        // Late: it does not go back.
        reached.reach(6);
        assert!(reached.is_at(7) && !reached.is_at(8));
        assert_eq!([&early.1, &late.1, &gone.1].map(|counts| of(counts)), [[1, 0], [0, 0], [0, 0]]);
        reached.stop(&Err(Error::internal("closing")));
        assert_eq!(of(&late.1), [0, 1]);
        let (too_late, counts) = counted();
        assert!(reached.wait(1, too_late, |_| ()).is_err());
        assert_eq!(of(&counts), [0, 0]);
    }
}

#[cfg(all(test, loom))]
mod interleavings {
    use super::*;
    use crate::sync::Arc;
    use loom::thread;

    fn model(run: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(run);
    }

    /// A point, what is done before it is reached, and how many were told.
    struct World {
        reached: Reached,
        done: AtomicU64,
        told: AtomicU64,
    }

    impl World {
        fn new() -> Arc<World> {
            Arc::new(World { reached: Reached::default(), done: AtomicU64::new(0), told: AtomicU64::new(0) })
        }

        fn go_to(&self, point: u64) {
            self.done.store(point, Ordering::Relaxed);
            self.reached.reach(point);
        }
    }

    fn wait(world: &Arc<World>, point: u64) -> Option<u64> {
        let of_answer = Arc::clone(world);
        let told = move |outcome: Result<()>| {
            assert!(outcome.is_err() || of_answer.done.load(Ordering::Relaxed) >= point, "told too early");
            of_answer.told.fetch_add(1, Ordering::Relaxed);
        };
        world.reached.wait(point, Box::new(told), |_| ()).ok()
    }

    /// A statement waits while its point is reached: it is told, once, and what was done is seen.
    #[test]
    fn a_waiter_is_told() {
        model(|| {
            let world = World::new();
            let other = Arc::clone(&world);
            let applier = thread::spawn(move || other.go_to(1));
            assert!(wait(&world, 1).is_some());
            applier.join().unwrap();
            assert_eq!(world.told.load(Ordering::Relaxed), 1);
        });
    }

    /// Two wait for points that come one after the other.
    #[test]
    fn of_two_waiters_each_is_told() {
        model(|| {
            let world = World::new();
            let (one, two) = (Arc::clone(&world), Arc::clone(&world));
            let applier = thread::spawn(move || {
                one.go_to(1);
                one.go_to(2);
            });
            let waiter = thread::spawn(move || wait(&two, 1).is_some());
            assert!(wait(&world, 2).is_some());
            assert!(waiter.join().unwrap());
            applier.join().unwrap();
            assert_eq!(world.told.load(Ordering::Relaxed), 2);
            assert!(world.reached.is_at(2), "it went back");
        });
    }

    /// Whoever finds a point reached sees what was done before.
    #[test]
    fn what_was_done_is_seen_at_its_point() {
        model(|| {
            let world = World::new();
            let other = Arc::clone(&world);
            let reader = thread::spawn(move || {
                if other.reached.is_at(1) {
                    assert_eq!(other.done.load(Ordering::Relaxed), 1);
                }
            });
            world.go_to(1);
            reader.join().unwrap();
        });
    }

    /// A waiter that gives up, or comes while all are told of the end, leaves nobody else untold.
    #[test]
    fn an_end_is_told_to_those_that_are_there() {
        model(|| {
            let world = World::new();
            let other = Arc::clone(&world);
            let gone = wait(&world, 7).unwrap();
            let closer = thread::spawn(move || other.reached.stop(&Err(tidepool_base::Error::internal("closing"))));
            let taken = wait(&world, 7).is_some();
            world.reached.remove(gone);
            closer.join().unwrap();
            let told = world.told.load(Ordering::Relaxed);
            assert!(told >= u64::from(taken) && told <= 1 + u64::from(taken), "{told} of {taken}");
        });
    }
}
