//! Waiting for transactions to end, and telling when that would be for ever.
//!
//! A transaction waits for at most one other at a time, so the graph of waits is a set of chains, and a cycle is closed by
//! the wait that comes last: it is found by walking from the awaited transaction along what each one waits for. Whoever
//! closes a cycle gets the error. What a transaction waited for may have ended while it has not woken up yet; such a
//! wait is none.
//!
//! Nobody waits on the path of a transaction that nobody waits for: it learns so from the word that it ends by.

use crate::{Tag, Transactions};
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result, SqlState};

/// Short enough that a cancelled statement ends at once by a person's measure.
const WAIT_SLICE: Duration = Duration::from_millis(20);

/// So long another host's transaction is waited for.
const FOREIGN_WAIT: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_millis(20) };

/// Looks at another host's slot before other threads have a turn.
const LOOKS: u32 = 200;

/// Waiters of one are woken with those of few others.
const CONDITIONS: usize = 64;

#[derive(Debug)]
pub(crate) struct Waits {
    waiting: Mutex<Waiting>,
    /// Found by the awaited slot.
    ended: Box<[Condvar]>,
}

/// How one that does not sleep is told.
type Call = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Waiting {
    /// Who waits for whom.
    edges: HashMap<Tag, Tag>,
    /// Those of them that do not sleep: who, for whom, and how he is told.
    callers: Vec<(Tag, Tag, Call)>,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").field("edges", &self.edges).field("callers", &self.callers.len()).finish()
    }
}

impl Waits {
    pub fn new() -> Waits {
        Waits { waiting: Mutex::default(), ended: (0..CONDITIONS).map(|_| Condvar::new()).collect() }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// To be called after the transaction's sequence number moved on, if that said that somebody waits.
    #[cold]
    pub fn wake(&self, slot: usize) {
        // Under the lock a waiter goes from looking at the sequence number to sleeping.
        let mut waiting = self.lock();
        let mut told = Vec::new();
        let mut at = 0;
        while at < waiting.callers.len() {
            // One that waits for the slot's next transaction already looks again, and comes back.
            match waiting.callers[at].1.slot() == slot {
                true => told.push(waiting.callers.swap_remove(at)),
                false => at += 1,
            }
        }
        for (waiter, ..) in &told {
            waiting.edges.remove(waiter);
        }
        drop(waiting);
        self.ended[slot % CONDITIONS].notify_all();
        for (.., call) in told {
            call();
        }
    }
}

impl Transactions {
    /// Returns when the transaction of `target` is over, its versions stamped or taken back. 40P01 if that would be never:
    /// it waits, through others or not, for `own`. `interrupted` is asked every 20 ms, of a fiber at each of its
    /// turns, and its error ends the waiting. For one of another host 40001 after some milliseconds.
    #[cold]
    pub fn wait_for(&self, own: Tag, target: Tag, interrupted: &dyn Fn() -> Result<()>) -> Result<()> {
        if self.is_foreign(target) {
            return self.wait_for_foreign(target, interrupted);
        }
        let slot = self.slot(target.slot());
        let condition = &self.waits.ended[target.slot() % CONDITIONS];
        loop {
            let mut waiting = self.waits.lock();
            let edges = &mut waiting.edges;
            if !slot.mark_waited(target) {
                edges.remove(&own);
                return Ok(());
            }
            if let Some(chain) = self.cycle(edges, own, target) {
                edges.remove(&own);
                return Err(deadlock(&chain));
            }
            edges.insert(own, target);
            if tidepool_fiber::is_fiber() {
                // Perhaps for another fiber of this thread, which has to go on then. Its end takes the edge's meaning away.
                drop(waiting);
                let mut outcome = Ok(());
                tidepool_fiber::wait_until(|| {
                    outcome = interrupted();
                    outcome.is_err() || !slot.is_current(target)
                });
                self.waits.lock().edges.remove(&own);
                return outcome;
            }
            let waited = condition.wait_timeout(waiting, WAIT_SLICE);
            drop(waited.unwrap_or_else(|poisoned| poisoned.into_inner()));
            // Not under the lock: it may take its time.
            if let Err(error) = interrupted() {
                self.waits.lock().edges.remove(&own);
                return Err(error);
            }
        }
    }

    fn wait_for_foreign(&self, target: Tag, interrupted: &dyn Fn() -> Result<()>) -> Result<()> {
        let slot = self.slot(target.slot());
        let until = Instant::now() + FOREIGN_WAIT;
        let mut looks = 0u32;
        let mut is_late = false;
        let mut outcome = Ok(());
        let mut look = || {
            if !slot.is_current(target) {
                return true;
            }
            looks += 1;
            if looks.is_multiple_of(LOOKS) {
                outcome = interrupted();
                is_late = Instant::now() >= until;
            }
            is_late || outcome.is_err()
        };
        if tidepool_fiber::is_fiber() {
            tidepool_fiber::wait_until(look);
        } else {
            let mut spins = 0u32;
            while !look() {
                spins += 1;
                match spins % LOOKS {
                    0 => std::thread::yield_now(),
                    _ => std::hint::spin_loop(),
                }
            }
        }
        outcome?;
        if is_late && slot.is_current(target) {
            return Err(foreign(target));
        }
        Ok(())
    }

    /// Has `call` told, by whoever ends it, when the transaction of `target` is over, perhaps at once or too early; 40P01 as `wait_for`.
    /// For those that may not sleep. Of another host's transaction 40001: nobody is told of its end.
    pub fn when_over(&self, own: Tag, target: Tag, call: impl FnOnce() + Send + 'static) -> Result<()> {
        if self.is_foreign(target) {
            return Err(foreign(target));
        }
        let mut waiting = self.waits.lock();
        if !self.slot(target.slot()).mark_waited(target) {
            drop(waiting);
            call();
            return Ok(());
        }
        if let Some(chain) = self.cycle(&waiting.edges, own, target) {
            return Err(deadlock(&chain));
        }
        waiting.edges.insert(own, target);
        waiting.callers.push((own, target, Box::new(call)));
        Ok(())
    }

    /// Waits for nobody any more: `when_over` of this transaction is not told.
    pub fn stop_waiting(&self, own: Tag) {
        let mut waiting = self.waits.lock();
        waiting.edges.remove(&own);
        let left: Vec<_> = waiting.callers.extract_if(.., |(waiter, ..)| *waiter == own).collect();
        drop(waiting);
        drop(left);
    }

    /// From `own` on, if it comes back to it.
    fn cycle(&self, edges: &HashMap<Tag, Tag>, own: Tag, target: Tag) -> Option<Vec<(Tag, Tag)>> {
        let mut chain = vec![(own, target)];
        let mut waiter = target;
        while waiter != own {
            let next = *edges.get(&waiter)?;
            // Only more if the graph were no set of chains: never loop for ever.
            if !self.slot(next.slot()).is_current(next) || chain.len() > edges.len() {
                return None;
            }
            chain.push((waiter, next));
            waiter = next;
        }
        Some(chain)
    }

    /// Who waits for whom, for views of locks.
    pub fn waits(&self) -> Vec<(Tag, Tag)> {
        let mut waits: Vec<_> = self.waits.lock().edges.iter().map(|(waiter, target)| (*waiter, *target)).collect();
        waits.sort_by_key(|(waiter, _)| waiter.number());
        waits
    }
}

fn foreign(target: Tag) -> Error {
    Error::new(SqlState::SERIALIZATION_FAILURE, "could not serialize access due to a transaction of another host")
        .with_detail(format!("Transaction {target} did not end in time."))
        .with_hint("The transaction might succeed if retried.")
}

fn deadlock(chain: &[(Tag, Tag)]) -> Error {
    let detail: Vec<String> =
        chain.iter().map(|(waiter, target)| format!("Transaction {waiter} waits for transaction {target}.")).collect();
    Error::new(SqlState::DEADLOCK_DETECTED, "deadlock detected")
        .with_detail(detail.join(" "))
        .with_hint("Change rows in the same order everywhere, or try again.")
}
