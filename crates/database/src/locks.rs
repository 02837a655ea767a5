//! Write locks by relation name, held to the end of a transaction.
//!
//! Invariants:
//!   * A name has at most one owner.
//!   * A transaction waits for at most one name, so the wait graph is a set of chains and a cycle is found by walking
//!     from the wanted name's owner along what each owner waits for. Whoever closes a cycle gets the error.
//!
//! Names, not tables, are locked: creating and renaming must also keep others off a name that no table has yet.

use crate::catalog::RelationName;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::time::Duration;
use tidepool_base::{Error, Result, SqlState};

/// Short enough that a cancelled statement ends at once by a person's measure.
const WAIT_SLICE: Duration = Duration::from_millis(20);

/// A lock that is held, or waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockInfo {
    pub relation: RelationName,
    pub transaction: u64,
    pub granted: bool,
}

#[derive(Debug, Default)]
pub(crate) struct LockManager {
    state: Mutex<State>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct State {
    owners: HashMap<RelationName, u64>,
    waiting: HashMap<u64, RelationName>,
}

impl State {
    /// The transactions that `transaction` would wait for, if one of them waits for it.
    fn cycle(&self, transaction: u64, name: &RelationName) -> Option<Vec<(u64, RelationName)>> {
        let mut chain = vec![(transaction, name.clone())];
        let mut wanted = name;
        loop {
            let owner = *self.owners.get(wanted)?;
            if owner == transaction {
                return Some(chain);
            }
            wanted = self.waiting.get(&owner)?;
            chain.push((owner, wanted.clone()));
            // Only reached if the invariant above were broken: never loop for ever.
            if chain.len() > self.waiting.len() + 2 {
                return None;
            }
        }
    }
}

impl LockManager {
    /// True when the lock was newly taken, false when `transaction` has it already.
    pub fn lock(&self, transaction: u64, name: &RelationName, interrupted: &dyn Fn() -> Result<()>) -> Result<bool> {
        let mut state = self.state.lock();
        loop {
            match state.owners.get(name) {
                None => {
                    state.waiting.remove(&transaction);
                    state.owners.insert(name.clone(), transaction);
                    return Ok(true);
                }
                Some(owner) if *owner == transaction => return Ok(false),
                Some(_) => {}
            }
            if let Some(chain) = state.cycle(transaction, name) {
                state.waiting.remove(&transaction);
                let detail: Vec<String> = chain
                    .iter()
                    .map(|(waiter, table)| format!("Transaction {waiter} waits for table \"{}\".", table.name))
                    .collect();
                return Err(Error::new(SqlState::DEADLOCK_DETECTED, "deadlock detected")
                    .with_detail(detail.join(" "))
                    .with_hint("Lock tables in the same order everywhere, or try again."));
            }
            state.waiting.insert(transaction, name.clone());
            self.released.wait_for(&mut state, WAIT_SLICE);
            // Not under the lock: it may take its time, or ask for other locks.
            if let Err(error) = parking_lot::MutexGuard::unlocked(&mut state, interrupted) {
                state.waiting.remove(&transaction);
                return Err(error);
            }
        }
    }

    pub fn release<'a>(&self, transaction: u64, names: impl IntoIterator<Item = &'a RelationName>) {
        let mut state = self.state.lock();
        state.waiting.remove(&transaction);
        for name in names {
            if state.owners.get(name) == Some(&transaction) {
                state.owners.remove(name);
            }
        }
        drop(state);
        self.released.notify_all();
    }

    pub fn list(&self) -> Vec<LockInfo> {
        let state = self.state.lock();
        let held = state.owners.iter().map(|(table, transaction)| (table, *transaction, true));
        let waited = state.waiting.iter().map(|(transaction, table)| (table, *transaction, false));
        let mut list: Vec<LockInfo> = held
            .chain(waited)
            .map(|(relation, transaction, granted)| LockInfo { relation: relation.clone(), transaction, granted })
            .collect();
        list.sort_by(|left, right| (&left.relation, !left.granted).cmp(&(&right.relation, !right.granted)));
        list
    }
}
