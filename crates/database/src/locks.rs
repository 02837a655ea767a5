//! Locks of relations by name, held to the end of a transaction.
//!
//! Whoever changes rows of a table shares its lock; whoever changes the table itself has it alone. Readers take none.
//!
//! Invariants:
//!   * A name has one exclusive holder and no others, or any number of shared ones.
//!   * A transaction waits for another transaction's end, through [`Transactions::wait_for`], as it does for rows: so a
//!     cycle of both kinds of waits is found there. A lock that is given up earlier, by going back to a savepoint, lets
//!     waiters go on after a slice of their wait.
//!
//! Names, not tables, are locked: creating and renaming must also keep others off a name that no table has yet.

use crate::catalog::RelationName;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tidepool_base::{Error, Result};
use tidepool_txn::{Tag, Transactions};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockMode {
    /// To change rows.
    Shared,
    /// To change the table.
    Exclusive,
}

/// A lock that is held, or waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockInfo {
    pub relation: RelationName,
    pub transaction: u64,
    pub mode: LockMode,
    pub granted: bool,
}

/// Who locks: its tag, by which others wait for it, and its number for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Locker {
    pub tag: Tag,
    pub id: u64,
}

#[derive(Debug)]
pub(crate) struct LockManager {
    transactions: Arc<Transactions>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By name, who holds it: by number.
    holders: HashMap<RelationName, BTreeMap<u64, (Tag, LockMode)>>,
    waiting: BTreeMap<u64, (RelationName, LockMode)>,
}

impl State {
    /// Some other holder that is in the way.
    fn conflict(&self, locker: Locker, name: &RelationName, mode: LockMode) -> Option<Tag> {
        let others = self.holders.get(name)?.iter().filter(|(id, _)| **id != locker.id);
        let mut in_the_way = others.filter(|(_, (_, held))| mode.max(*held) == LockMode::Exclusive);
        in_the_way.next().map(|(_, (tag, _))| *tag)
    }

    fn holds(&self, locker: Locker, name: &RelationName) -> Option<LockMode> {
        Some(self.holders.get(name)?.get(&locker.id)?.1)
    }

    fn give_up(&mut self, id: u64, name: &RelationName) {
        if let Some(holders) = self.holders.get_mut(name) {
            holders.remove(&id);
            if holders.is_empty() {
                self.holders.remove(name);
            }
        }
    }

    fn grant(&mut self, locker: Locker, name: &RelationName, mode: LockMode) {
        self.holders.entry(name.clone()).or_default().insert(locker.id, (locker.tag, mode));
    }
}

impl LockManager {
    pub fn new(transactions: Arc<Transactions>) -> LockManager {
        LockManager { transactions, state: Mutex::default() }
    }

    /// Returns the mode in which `locker` held the name before. `interrupted` is asked while it waits; its error ends
    /// that, as does 40P01 where waiting would be for ever.
    pub fn lock(
        &self,
        locker: Locker,
        name: &RelationName,
        mode: LockMode,
        interrupted: &dyn Fn() -> Result<()>,
    ) -> Result<Option<LockMode>> {
        let mut state = self.state.lock();
        let held = state.holds(locker, name);
        if held >= Some(mode) {
            return Ok(held);
        }
        while let Some(holder) = state.conflict(locker, name, mode) {
            state.waiting.insert(locker.id, (name.clone(), mode));
            drop(state);
            let waited = self.wait(locker, holder, name, mode, interrupted);
            state = self.state.lock();
            state.waiting.remove(&locker.id);
            waited?;
        }
        state.grant(locker, name, mode);
        Ok(held)
    }

    /// Until `holder` is over, or the lock is to be had before.
    fn wait(
        &self,
        locker: Locker,
        holder: Tag,
        name: &RelationName,
        mode: LockMode,
        interrupted: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let is_free = || self.state.lock().conflict(locker, name, mode).is_none();
        let freed = std::cell::Cell::new(false);
        let check = || {
            interrupted()?;
            freed.set(is_free());
            // Ends the wait; nobody sees it.
            if freed.get() { Err(Error::internal("the lock was given up")) } else { Ok(()) }
        };
        match self.transactions.wait_for(locker.tag, holder, &check) {
            Err(_) if freed.get() => Ok(()),
            waited => waited,
        }
    }

    /// Goes back to what was held of each name before, from whatever is held of it now.
    pub fn restore<'a>(&self, locker: Locker, names: impl IntoIterator<Item = (&'a RelationName, Option<LockMode>)>) {
        let mut state = self.state.lock();
        for (name, mode) in names {
            match mode {
                Some(mode) => state.grant(locker, name, mode),
                None => state.give_up(locker.id, name),
            }
        }
    }

    /// Lets go of names at a transaction's end.
    pub fn forget<'a>(&self, id: u64, names: impl IntoIterator<Item = &'a RelationName>) {
        let mut state = self.state.lock();
        for name in names {
            state.give_up(id, name);
        }
    }

    pub fn list(&self) -> Vec<LockInfo> {
        let state = self.state.lock();
        let held = state.holders.iter().flat_map(|(relation, holders)| {
            holders.iter().map(move |(transaction, (_, mode))| (relation, *transaction, *mode, true))
        });
        let waited = state.waiting.iter().map(|(transaction, (relation, mode))| (relation, *transaction, *mode, false));
        let mut list: Vec<LockInfo> = held
            .chain(waited)
            .map(|(relation, transaction, mode, granted)| LockInfo {
                relation: relation.clone(),
                transaction,
                mode,
                granted,
            })
            .collect();
        list.sort_by(|left, right| {
            (&left.relation, !left.granted, left.transaction).cmp(&(&right.relation, !right.granted, right.transaction))
        });
        list
    }
}
