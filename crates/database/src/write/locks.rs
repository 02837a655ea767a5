//! Locks of relations by name, held to the end of a transaction.
//!
//! The modes are PostgreSQL's. Whoever changes rows of a table shares its lock (`RowExclusive`); whoever changes the table itself has it
//! alone (`AccessExclusive`), or, where that may be beside others who change rows, is the only one that does (`ShareUpdateExclusive`). The other
//! modes are `LOCK TABLE`'s. Readers take none.
//!
//! Invariants:
//!   * No two holders of a name have modes that conflict.
//!   * A holder has one mode of a name: the least that keeps off whom all those keep off that it asked for. There always is one that keeps off
//!     nobody else ([`LockMode::join`]).
//!   * A transaction waits for another transaction's end, through [`Transactions::wait_for`], as it does for rows: so a
//!     cycle of both kinds of waits is found there. A lock that is given up earlier, by going back to a savepoint, lets
//!     waiters go on after a slice of their wait.
//!   * Who is to have a table alone comes to have it while others begin to change rows all the time: they give way to him,
//!     for a while. Giving way is no wait for anybody, and ends by itself, so nothing can be locked up by it.
//!
//! Who writes rows directly shares no locks, unless somebody has a table alone or wants to: see `direct`.
//!
//! Names, not tables, are locked: creating and renaming must also keep others off a name that no table has yet.

use crate::catalog::relation::RelationName;
use crate::write::activity::Activities;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result};
use tidepool_txn::{Tag, Transactions};

/// Who waits to have a table alone is given way to for this long,
const GIVE_WAY: Duration = Duration::from_secs(1);

/// once in this time: one who changes rows and stays idle shall not keep all others out with him.
const GIVE_WAY_EVERY: Duration = Duration::from_secs(10);

/// How long who gives way sleeps at a time.
const SLICE: Duration = Duration::from_millis(10);

/// How a table is locked. Each mode but `Share` keeps off whom those before it do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockMode {
    AccessShare,
    RowShare,
    /// To change rows.
    RowExclusive,
    /// To change the table in a way that those who change rows need not wait for.
    ShareUpdateExclusive,
    /// That nobody changes rows. Others may have it, too.
    Share,
    ShareRowExclusive,
    Exclusive,
    /// To change the table.
    AccessExclusive,
}

impl LockMode {
    pub const ALL: [LockMode; 8] = [
        LockMode::AccessShare,
        LockMode::RowShare,
        LockMode::RowExclusive,
        LockMode::ShareUpdateExclusive,
        LockMode::Share,
        LockMode::ShareRowExclusive,
        LockMode::Exclusive,
        LockMode::AccessExclusive,
    ];

    /// PostgreSQL, "Conflicting Lock Modes" (13.3.1).
    fn conflicts(self, other: LockMode) -> bool {
        use LockMode::{AccessShare, Exclusive, RowExclusive, RowShare, Share, ShareUpdateExclusive};
        let (low, high) = (self.min(other), self.max(other));
        match low {
            AccessShare => high > Exclusive,
            RowShare => high >= Exclusive,
            RowExclusive => high >= Share,
            ShareUpdateExclusive => high >= ShareUpdateExclusive,
            // Not with itself.
            Share => high > Share,
            _ => true,
        }
    }

    /// Whether who has this mode keeps off all that one with the other does.
    pub(crate) fn covers(self, other: LockMode) -> bool {
        self.join(other) == self
    }

    /// What keeps off whom the two do.
    pub(crate) fn join(self, other: LockMode) -> LockMode {
        let (low, high) = (self.min(other), self.max(other));
        let writes = [LockMode::RowExclusive, LockMode::ShareUpdateExclusive];
        // Neither keeps off whom the other does.
        if high == LockMode::Share && writes.contains(&low) { LockMode::ShareRowExclusive } else { high }
    }

    /// Whether nobody else changes rows.
    fn excludes_writers(self) -> bool {
        self >= LockMode::Share
    }

    /// PostgreSQL's name.
    pub fn name(self) -> &'static str {
        match self {
            LockMode::AccessShare => "AccessShareLock",
            LockMode::RowShare => "RowShareLock",
            LockMode::RowExclusive => "RowExclusiveLock",
            LockMode::ShareUpdateExclusive => "ShareUpdateExclusiveLock",
            LockMode::Share => "ShareLock",
            LockMode::ShareRowExclusive => "ShareRowExclusiveLock",
            LockMode::Exclusive => "ExclusiveLock",
            LockMode::AccessExclusive => "AccessExclusiveLock",
        }
    }
}

/// A lock that is held, or waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockInfo {
    pub relation: RelationName,
    /// Of the transaction that has it or waits for it.
    pub tag: Tag,
    pub mode: LockMode,
    pub granted: bool,
    /// How long it has been waited for.
    pub waited: Option<Duration>,
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
    /// Somebody waits no longer.
    settled: Condvar,
    /// Who writes rows without locks, and how many keep them off names, or want to.
    activities: Activities,
}

#[derive(Debug)]
struct Waiter {
    tag: Tag,
    relation: RelationName,
    mode: LockMode,
    since: Instant,
}

#[derive(Debug, Default)]
struct State {
    /// By name, who holds it: by number.
    holders: HashMap<RelationName, BTreeMap<u64, (Tag, LockMode)>>,
    waiting: BTreeMap<u64, Waiter>,
}

impl State {
    /// Some other holder that is in the way.
    fn conflict(&self, locker: Locker, name: &RelationName, mode: LockMode) -> Option<Tag> {
        let others = self.holders.get(name)?.iter().filter(|(id, _)| **id != locker.id);
        let mut in_the_way = others.filter(|(_, (_, held))| mode.conflicts(*held));
        in_the_way.next().map(|(_, (tag, _))| *tag)
    }

    /// Somebody waits for the others to change no rows, and it is his turn to be given way to.
    fn is_wanted_alone(&self, name: &RelationName) -> bool {
        let is_his_turn =
            |since: Instant| since.elapsed().as_millis() % GIVE_WAY_EVERY.as_millis() < GIVE_WAY.as_millis();
        self.waiting
            .values()
            .any(|waiter| waiter.mode.excludes_writers() && waiter.relation == *name && is_his_turn(waiter.since))
    }

    fn holds(&self, locker: Locker, name: &RelationName) -> Option<LockMode> {
        Some(self.holders.get(name)?.get(&locker.id)?.1)
    }

    /// What was held.
    fn give_up(&mut self, id: u64, name: &RelationName) -> Option<LockMode> {
        let holders = self.holders.get_mut(name)?;
        let (_, held) = holders.remove(&id)?;
        if holders.is_empty() {
            self.holders.remove(name);
        }
        Some(held)
    }

    fn grant(&mut self, locker: Locker, name: &RelationName, mode: LockMode) {
        self.holders.entry(name.clone()).or_default().insert(locker.id, (locker.tag, mode));
    }
}

impl LockManager {
    pub fn new(transactions: Arc<Transactions>) -> LockManager {
        LockManager {
            transactions,
            state: Mutex::default(),
            settled: Condvar::new(),
            activities: Activities::default(),
        }
    }

    pub fn activities(&self) -> &Activities {
        &self.activities
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
        let held = self.state.lock().holds(locker, name);
        if held.is_some_and(|held| held.covers(mode)) {
            return Ok(held);
        }
        if !mode.excludes_writers() || held.is_some_and(LockMode::excludes_writers) {
            return self.lock_beside_direct(locker, name, mode, interrupted);
        }
        self.activities.alone();
        let locked = self.lock_beside_direct(locker, name, mode, interrupted);
        let alone = locked.and_then(|held| {
            self.activities.wait(&self.transactions, locker.tag, interrupted).map(|()| held).inspect_err(|_| {
                let mut state = self.state.lock();
                match held {
                    Some(held) => state.grant(locker, name, held),
                    None => drop(state.give_up(locker.id, name)),
                }
            })
        });
        if alone.is_err() {
            self.activities.not_alone();
        }
        alone
    }

    fn lock_beside_direct(
        &self,
        locker: Locker,
        name: &RelationName,
        mode: LockMode,
        interrupted: &dyn Fn() -> Result<()>,
    ) -> Result<Option<LockMode>> {
        let mut state = self.state.lock();
        let held = state.holds(locker, name);
        // What it has keeps it from nobody that it would not be kept from then.
        let mode = held.map_or(mode, |held| held.join(mode));
        let since = Instant::now();
        loop {
            let holder = state.conflict(locker, name, mode);
            let gives_way = mode == LockMode::RowExclusive && held.is_none() && state.is_wanted_alone(name);
            if holder.is_none() && !gives_way {
                break;
            }
            state.waiting.insert(locker.id, Waiter { tag: locker.tag, relation: name.clone(), mode, since });
            let waited = match holder {
                Some(holder) => MutexGuard::unlocked(&mut state, || self.wait(locker, holder, name, mode, interrupted)),
                None => {
                    self.settled.wait_for(&mut state, SLICE);
                    MutexGuard::unlocked(&mut state, interrupted)
                }
            };
            state.waiting.remove(&locker.id);
            self.settled.notify_all();
            waited?;
        }
        state.grant(locker, name, mode);
        Ok(held)
    }

    /// As `lock`, if nobody is to be waited for. False: somebody is.
    pub fn try_lock(&self, locker: Locker, name: &RelationName, mode: LockMode) -> bool {
        let mut state = self.state.lock();
        let held = state.holds(locker, name);
        if held.is_some_and(|held| held.covers(mode)) {
            return true;
        }
        // Who writes rows directly may have to be waited for.
        if mode.excludes_writers() {
            return false;
        }
        let mode = held.map_or(mode, |held| held.join(mode));
        let gives_way = mode == LockMode::RowExclusive && held.is_none() && state.is_wanted_alone(name);
        if gives_way || state.conflict(locker, name, mode).is_some() {
            return false;
        }
        state.grant(locker, name, mode);
        true
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
            let before = state.holds(locker, name);
            match mode {
                Some(mode) => state.grant(locker, name, mode),
                None => drop(state.give_up(locker.id, name)),
            }
            let excludes = |mode: Option<LockMode>| mode.is_some_and(LockMode::excludes_writers);
            if excludes(before) && !excludes(mode) {
                self.activities.not_alone();
            }
        }
    }

    /// Lets go of names at a transaction's end.
    pub fn forget<'a>(&self, id: u64, names: impl IntoIterator<Item = &'a RelationName>) {
        let mut state = self.state.lock();
        for name in names {
            if state.give_up(id, name).is_some_and(LockMode::excludes_writers) {
                self.activities.not_alone();
            }
        }
    }

    pub fn list(&self) -> Vec<LockInfo> {
        let state = self.state.lock();
        let held = state
            .holders
            .iter()
            .flat_map(|(relation, holders)| holders.values().map(move |&(tag, mode)| (relation, tag, mode, None)));
        let waited = (state.waiting.values())
            .map(|waiter| (&waiter.relation, waiter.tag, waiter.mode, Some(waiter.since.elapsed())));
        let mut list: Vec<LockInfo> = held
            .chain(waited)
            .map(|(relation, tag, mode, waited)| LockInfo {
                relation: relation.clone(),
                tag,
                mode,
                granted: waited.is_none(),
                waited,
            })
            .collect();
        list.sort_by(|left, right| {
            let order = |lock: &LockInfo| (!lock.granted, lock.tag.number());
            left.relation.cmp(&right.relation).then_with(|| order(left).cmp(&order(right)))
        });
        list
    }

    /// Who waits for a name, and who has it in a mode that is in the way.
    pub fn waits(&self) -> Vec<(Tag, Tag)> {
        let state = self.state.lock();
        let waits = state.waiting.iter().flat_map(|(id, waiter)| {
            let holders = state.holders.get(&waiter.relation).into_iter().flatten();
            let others = holders.filter(move |(holder, (_, mode))| *holder != id && waiter.mode.conflicts(*mode));
            others.map(|(_, (holder, _))| (waiter.tag, *holder))
        });
        waits.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::LockMode;
    use crate::tests::{columns, insert, memory, near};
    use crate::{Database, NewIndex};
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::thread;
    use std::time::Duration;

    /// The invariant of one mode for all that a holder asked for.
    #[test]
    fn a_joined_mode_keeps_off_whom_both_do_and_nobody_else() {
        for one in LockMode::ALL {
            for two in LockMode::ALL {
                let joined = one.join(two);
                assert_eq!(joined, two.join(one));
                for other in LockMode::ALL {
                    let kept_off = one.conflicts(other) || two.conflicts(other);
                    assert_eq!(joined.conflicts(other), kept_off, "{one:?} and {two:?} beside {other:?}");
                    assert_eq!(one.conflicts(other), other.conflicts(one));
                }
                assert_eq!(
                    one.covers(two),
                    LockMode::ALL.iter().all(|other| one.conflicts(*other) >= two.conflicts(*other))
                );
            }
        }
    }

    #[test]
    fn who_changes_rows_all_the_time_gives_way_to_who_changes_the_table() {
        let database = Database::open(memory()).unwrap();
        let mut transaction = database.begin().unwrap();
        transaction.create_table("t", columns(), vec![], near()).unwrap();
        transaction.commit().unwrap();
        let (done, begun) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            // So many, each at it nearly all the time, that there is practically never none.
            for _ in 0..10 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        let mut transaction = database.begin().unwrap();
                        insert(&mut transaction, "t", 0..1).unwrap();
                        begun.fetch_add(1, Ordering::Relaxed);
                        thread::sleep(Duration::from_millis(10));
                        transaction.commit().unwrap();
                    }
                });
            }
            while begun.load(Ordering::Relaxed) < 20 {
                thread::sleep(Duration::from_millis(1));
            }
            for name in ["once", "again"] {
                let mut altering = database.begin().unwrap();
                let new = NewIndex {
                    name: Some(name.to_owned()),
                    primary: None,
                    unique: false,
                    ..NewIndex::primary_key([1])
                };
                altering.create_index("t", new).unwrap();
                altering.commit().unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}
