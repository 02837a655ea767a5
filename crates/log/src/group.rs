//! Group commit: whoever waits first writes everything out for everybody.
//!
//! One thread at a time *leads*: it makes a *round* (drain all buffers, write, sync), which ends with the timestamp up to
//! which everything is durable. Whoever comes meanwhile queues up and sleeps. At the end of its round the leader wakes
//! those that are durable, and one of the others, to lead next. A thread that commits alone leads its own round and meets no
//! other thread.
//!
//! Invariants, under the queue's lock:
//!
//! * `durable` is only ever changed by the leader, and only grows.
//! * Nobody is in the queue whose timestamp is durable, once the leader has let the lock go.
//! * When nobody leads and somebody is in the queue, then a thread was taken from it that has not come back to the lock
//!   yet. It leads, or queues up behind one who does; if it gives up, it wakes another in its place.
//!
//! So no sleeper is forgotten. After a failed round nobody leads any more, and everybody gets the error; what was durable
//! before stays acknowledged.

use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, Thread, current, lock, park, sleep, yield_now};
use std::time::Duration;
use tidepool_base::{CommitTs, Error, Result};

/// How often a sleeper looks whether it is to give up.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(20);

/// A round may end below the timestamp that its leader waits for: another commit with a lower one is about to be appended.
/// That takes it nanoseconds, unless its thread lost its processor.
const YIELDS_MAX: u32 = 16;
const BACK_OFF: Duration = Duration::from_micros(50);

#[derive(Debug)]
pub(crate) struct Group {
    durable: AtomicU64,
    failed: AtomicBool,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    is_led: bool,
    waiters: Vec<Arc<Waiter>>,
    failure: Option<Error>,
}

#[derive(Debug)]
struct Waiter {
    ts: CommitTs,
    woken: AtomicBool,
    thread: Thread,
}

impl Waiter {
    fn wake(&self) {
        // Release: with what the leader did. Nothing of the waiter is touched after it may be gone, but for its handle.
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Ends a round in any case: a leader that panics has failed.
struct Lead<'a> {
    group: &'a Group,
    outcome: Result<CommitTs>,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let woken = {
            let mut queue = lock(&self.group.queue);
            queue.is_led = false;
            match &self.outcome {
                Ok(durable) => {
                    // Only the leader stores, so this is the greatest of all. Release: whoever sees it sees what it covers.
                    if self.group.durable() < *durable {
                        self.group.durable.store(durable.0, Ordering::Release);
                    }
                    let durable = self.group.durable();
                    let (mut woken, waiters): (Vec<_>, Vec<_>) =
                        std::mem::take(&mut queue.waiters).into_iter().partition(|waiter| waiter.ts <= durable);
                    queue.waiters = waiters;
                    // First, as everybody else waits for it.
                    if let Some(next) = queue.waiters.pop() {
                        woken.insert(0, next);
                    }
                    woken
                }
                Err(error) => {
                    self.group.failed.store(true, Ordering::Release);
                    queue.failure.get_or_insert_with(|| error.clone());
                    std::mem::take(&mut queue.waiters)
                }
            }
        };
        for waiter in woken {
            waiter.wake();
        }
    }
}

impl Group {
    pub fn new(durable: CommitTs) -> Group {
        Group {
            durable: AtomicU64::new(durable.0),
            failed: AtomicBool::new(false),
            queue: Mutex::new(Queue::default()),
        }
    }

    pub fn durable(&self) -> CommitTs {
        CommitTs(self.durable.load(Ordering::Acquire))
    }

    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// The error that ended it all.
    pub fn failure(&self) -> Option<Error> {
        if self.has_failed() { lock(&self.queue).failure.clone() } else { None }
    }

    /// Ends it: everybody gets `error`, but for those whose timestamp is durable.
    pub fn fail(&self, error: Error) {
        let woken = {
            let mut queue = lock(&self.queue);
            self.failed.store(true, Ordering::Release);
            queue.failure.get_or_insert(error);
            std::mem::take(&mut queue.waiters)
        };
        for waiter in woken {
            waiter.wake();
        }
    }

    /// Leads a round, unless somebody does already. False if so.
    pub fn try_lead(&self, round: impl FnOnce() -> Result<CommitTs>) -> Result<bool> {
        {
            let mut queue = lock(&self.queue);
            if let Some(failure) = &queue.failure {
                return Err(failure.clone());
            }
            if queue.is_led {
                return Ok(false);
            }
            queue.is_led = true;
        }
        self.lead(round)?;
        Ok(true)
    }

    fn lead(&self, round: impl FnOnce() -> Result<CommitTs>) -> Result<()> {
        let mut lead = Lead { group: self, outcome: Err(Error::internal("a thread panicked while it wrote the log")) };
        lead.outcome = round();
        lead.outcome.clone().map(|_| ())
    }

    /// Waits until everything up to `ts` is durable, and works for it if nobody does. `interrupted` is asked now and then
    /// while others work; its error ends the wait, of which the outcome is then open.
    pub fn wait(
        &self,
        ts: CommitTs,
        round: impl Fn() -> Result<CommitTs>,
        interrupted: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let mut rounds = 0;
        loop {
            if self.durable() >= ts {
                return Ok(());
            }
            let mut queue = lock(&self.queue);
            // The leader publishes under the lock: nobody sleeps who need not.
            if self.durable() >= ts {
                return Ok(());
            }
            if let Some(failure) = &queue.failure {
                return Err(failure.clone());
            }
            if !queue.is_led {
                if let Err(error) = interrupted() {
                    Group::wake_another(queue);
                    return Err(error);
                }
                queue.is_led = true;
                drop(queue);
                self.lead(&round)?;
                rounds += 1;
                if self.durable() < ts {
                    if rounds < YIELDS_MAX { yield_now() } else { sleep(BACK_OFF) }
                }
                continue;
            }
            let waiter = Arc::new(Waiter { ts, woken: AtomicBool::new(false), thread: current() });
            queue.waiters.push(waiter.clone());
            drop(queue);
            while !waiter.woken.load(Ordering::Acquire) {
                park(INTERRUPT_INTERVAL);
                if let Err(error) = interrupted() {
                    let mut queue = lock(&self.queue);
                    queue.waiters.retain(|other| !Arc::ptr_eq(other, &waiter));
                    if self.durable() >= ts {
                        // It may have been the one that is to lead next all the same.
                        Group::wake_another(queue);
                        return Ok(());
                    }
                    Group::wake_another(queue);
                    return Err(error);
                }
            }
        }
    }

    /// Lets somebody lead in place of this thread, which may have been woken to.
    fn wake_another(mut queue: crate::sync::MutexGuard<'_, Queue>) {
        let next = if queue.is_led { None } else { queue.waiters.pop() };
        drop(queue);
        if let Some(next) = next {
            next.wake();
        }
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use crate::channel::{Receiver, channel};
    use loom::thread;
    use tidepool_base::SqlState;

    /// Commits that are between drawing a timestamp and having appended, as slots of `txn` are; 0: none.
    struct Database {
        clock: AtomicU64,
        slots: Vec<AtomicU64>,
        receivers: Mutex<Vec<(Receiver, u64)>>,
        group: Group,
    }

    impl Database {
        fn new(threads: usize) -> (Arc<Database>, Vec<crate::channel::Sender>) {
            let (senders, receivers): (Vec<_>, Vec<_>) = (0..threads).map(|_| channel(4).unwrap()).unzip();
            let database = Database {
                clock: AtomicU64::new(1),
                slots: (0..threads).map(|_| AtomicU64::new(0)).collect(),
                receivers: Mutex::new(receivers.into_iter().map(|receiver| (receiver, 0)).collect()),
                group: Group::new(CommitTs(0)),
            };
            (Arc::new(database), senders)
        }

        /// As the design has it: a lower bound first, then the timestamp, then the record, then the slot is free.
        fn commit(&self, slot: usize, sender: &mut crate::channel::Sender) -> CommitTs {
            sender.reserve(1).unwrap();
            self.slots[slot].swap(self.clock.newest(), Ordering::SeqCst);
            let ts = self.clock.fetch_add(1, Ordering::SeqCst);
            sender.send(&[ts], &[]);
            // A store would do, but loom may put it before a read-modify-write that saw what it replaces.
            self.slots[slot].swap(0, Ordering::AcqRel);
            CommitTs(ts)
        }

        /// The clock first: who takes a slot after it was read draws a later timestamp.
        fn floor(&self) -> CommitTs {
            let now = self.clock.newest() - 1;
            let taken = self.slots.iter().map(|slot| slot.newest()).filter(|bound| *bound > 0);
            CommitTs(taken.map(|bound| bound - 1).fold(now, u64::min))
        }

        /// Drains, and answers with the floor. `drained` remembers the last word of each buffer.
        fn round(&self) -> Result<CommitTs> {
            let floor = self.floor();
            for (receiver, drained) in lock(&self.receivers).iter_mut() {
                loop {
                    let run = receiver.peek();
                    let Some(last) = run.last() else { break };
                    *drained = last.load(Ordering::Relaxed);
                    let words = run.len();
                    receiver.advance(words);
                }
            }
            Ok(floor)
        }

        fn is_drained(&self, slot: usize, ts: CommitTs) -> bool {
            lock(&self.receivers)[slot].1 >= ts.0
        }
    }

    trait Newest {
        fn newest(&self) -> u64;
    }

    impl Newest for AtomicU64 {
        /// A load that takes part in the order of all sequentially consistent operations, which loom gives to
        /// read-modify-writes only.
        fn newest(&self) -> u64 {
            self.fetch_add(0, Ordering::SeqCst)
        }
    }

    /// Two commits that wait: both come back, and what is said to be durable was drained.
    #[test]
    fn interleavings_of_commits() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.max_branches = 10_000;
        model.check(|| {
            let (database, senders) = Database::new(2);
            let threads: Vec<_> = senders
                .into_iter()
                .enumerate()
                .map(|(slot, mut sender)| {
                    let database = database.clone();
                    thread::spawn(move || {
                        let ts = database.commit(slot, &mut sender);
                        database.group.wait(ts, || database.round(), || Ok(())).unwrap();
                        assert!(database.group.durable() >= ts);
                        assert!(database.is_drained(slot, ts), "{ts} is acknowledged and was not drained");
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert!(lock(&database.group.queue).waiters.is_empty());
        });
    }

    /// Three that wait for timestamps that are there already, of which one gives up: the others are woken all the same.
    #[test]
    fn interleavings_with_one_that_gives_up() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.max_branches = 10_000;
        model.check(|| {
            let group = Arc::new(Group::new(CommitTs(0)));
            // Each round makes one more durable.
            let rounds = Arc::new(AtomicU64::new(0));
            let threads: Vec<_> = (1..=3u64)
                .map(|ts| {
                    let (group, rounds) = (group.clone(), rounds.clone());
                    thread::spawn(move || {
                        let round = || Ok(CommitTs(rounds.fetch_add(1, Ordering::SeqCst) + 1));
                        let interrupted = || match ts {
                            3 => Err(Error::new(SqlState::QUERY_CANCELED, "canceled")),
                            _ => Ok(()),
                        };
                        let waited = group.wait(CommitTs(ts), round, interrupted);
                        assert!(ts == 3 || waited.is_ok());
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert!(group.durable() >= CommitTs(2));
        });
    }

    /// A round that fails: everybody hears of it, and nobody is told that more is durable.
    #[test]
    fn interleavings_of_a_failure() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.max_branches = 10_000;
        model.check(|| {
            let group = Arc::new(Group::new(CommitTs(0)));
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let group = group.clone();
                    thread::spawn(move || {
                        let round = || Err(Error::new(SqlState::IO_ERROR, "the device failed"));
                        assert!(group.wait(CommitTs(1), round, || Ok(())).is_err());
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert!(group.has_failed() && group.durable() == CommitTs(0));
        });
    }
}
