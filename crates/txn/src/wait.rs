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
use std::time::Duration;
use tidepool_base::{Error, Result, SqlState};

/// Short enough that a cancelled statement ends at once by a person's measure.
const WAIT_SLICE: Duration = Duration::from_millis(20);

/// Waiters of one are woken with those of few others.
const CONDITIONS: usize = 64;

#[derive(Debug)]
pub(crate) struct Waits {
    /// Who waits for whom.
    edges: Mutex<HashMap<Tag, Tag>>,
    /// Found by the awaited slot.
    ended: Box<[Condvar]>,
}

impl Waits {
    pub fn new() -> Waits {
        Waits { edges: Mutex::new(HashMap::new()), ended: (0..CONDITIONS).map(|_| Condvar::new()).collect() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Tag, Tag>> {
        self.edges.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// To be called after the transaction's sequence number moved on, if that said that somebody waits.
    #[cold]
    pub fn wake(&self, slot: usize) {
        // Under the lock a waiter goes from looking at the sequence number to sleeping.
        drop(self.lock());
        self.ended[slot % CONDITIONS].notify_all();
    }
}

impl Transactions {
    /// Returns when the transaction of `target` is over, its versions stamped or taken back. 40P01 if that would be never:
    /// it waits, through others or not, for `own`. `interrupted` is asked every 20 ms, and its error ends the waiting.
    #[cold]
    pub fn wait_for(&self, own: Tag, target: Tag, interrupted: &dyn Fn() -> Result<()>) -> Result<()> {
        let slot = self.slot(target.slot());
        let condition = &self.waits.ended[target.slot() % CONDITIONS];
        loop {
            let mut edges = self.waits.lock();
            if !slot.mark_waited(target) {
                edges.remove(&own);
                return Ok(());
            }
            if let Some(chain) = self.cycle(&edges, own, target) {
                edges.remove(&own);
                return Err(deadlock(&chain));
            }
            edges.insert(own, target);
            let waited = condition.wait_timeout(edges, WAIT_SLICE);
            drop(waited.unwrap_or_else(|poisoned| poisoned.into_inner()));
            // Not under the lock: it may take its time.
            if let Err(error) = interrupted() {
                self.waits.lock().remove(&own);
                return Err(error);
            }
        }
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
        let mut waits: Vec<_> = self.waits.lock().iter().map(|(waiter, target)| (*waiter, *target)).collect();
        waits.sort_by_key(|(waiter, _)| waiter.number());
        waits
    }
}

fn deadlock(chain: &[(Tag, Tag)]) -> Error {
    let detail: Vec<String> =
        chain.iter().map(|(waiter, target)| format!("Transaction {waiter} waits for transaction {target}.")).collect();
    Error::new(SqlState::DEADLOCK_DETECTED, "deadlock detected")
        .with_detail(detail.join(" "))
        .with_hint("Change rows in the same order everywhere, or try again.")
}
