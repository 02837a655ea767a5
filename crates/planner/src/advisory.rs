//! Advisory locks, which mean what the application says they mean.
//!
//! A session may hold a lock several times, and shared locks of one key exclude an exclusive one of another session only.
//! A session waits for one key at most, so a cycle is found by walking from holders to what they wait for.

use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result, SqlState};
use tokio::sync::Notify;

/// Two key spaces that do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    One(i64),
    Two(i32, i32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    Shared,
    Exclusive,
}

/// How often one session holds one key in one mode.
#[derive(Clone, Copy, Debug)]
struct Held {
    session: u32,
    mode: Mode,
    /// Ends with the transaction.
    transaction: bool,
    count: u32,
}

/// A lock that a session holds, or waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdvisoryLock {
    pub key: Key,
    pub mode: Mode,
    pub session: u32,
    pub granted: bool,
}

/// Locks at once, of all sessions: PostgreSQL has as many as `max_locks_per_transaction` and `max_connections` make room for.
const LOCKS_MAX: usize = 200_000;

#[derive(Default)]
struct State {
    held: HashMap<Key, Vec<Held>>,
    waiting: HashMap<u32, (Key, Mode)>,
    /// Sessions that are here for a transaction only: a lock here would exclude nobody elsewhere.
    guests: HashSet<u32>,
}

#[derive(Default)]
pub struct AdvisoryLocks {
    state: Mutex<State>,
    released: Notify,
}

impl State {
    /// The sessions that keep `session` from a lock.
    fn in_the_way(&self, session: u32, key: Key, mode: Mode) -> Vec<u32> {
        let held = self.held.get(&key).map_or(&[][..], Vec::as_slice);
        let excludes =
            |held: &&Held| held.session != session && (mode == Mode::Exclusive || held.mode == Mode::Exclusive);
        held.iter().filter(excludes).map(|held| held.session).collect()
    }

    /// 53200 where there is no room for another lock.
    fn take(&mut self, session: u32, key: Key, mode: Mode, transaction: bool) -> Result<bool> {
        if self.guests.contains(&session) {
            let message = "advisory locks cannot be taken in a transaction that runs at a reader";
            return Err(Error::unsupported(message)
                .with_hint("Take them in the transaction's first statement, or SET tidepool.route_reads = off."));
        }
        if !self.in_the_way(session, key, mode).is_empty() {
            return Ok(false);
        }
        if self.held.len() >= LOCKS_MAX && !self.held.contains_key(&key) {
            return Err(Error::new(SqlState::OUT_OF_MEMORY, "out of shared memory")
                .with_detail(format!("Sessions hold {LOCKS_MAX} advisory locks."))
                .with_hint("Give advisory locks back that are not needed any more."));
        }
        let held = self.held.entry(key).or_default();
        match held.iter_mut().find(|held| (held.session, held.mode, held.transaction) == (session, mode, transaction)) {
            Some(held) => held.count += 1,
            None => held.push(Held { session, mode, transaction, count: 1 }),
        }
        Ok(true)
    }

    /// Whether `session`, were it to wait for the key, would wait for itself.
    fn closes_cycle(&self, session: u32, key: Key, mode: Mode) -> bool {
        let mut next = self.in_the_way(session, key, mode);
        let mut seen = Vec::new();
        while let Some(holder) = next.pop() {
            if holder == session {
                return true;
            }
            if !seen.contains(&holder)
                && let Some(&(key, mode)) = self.waiting.get(&holder)
            {
                next.extend(self.in_the_way(holder, key, mode));
            }
            seen.push(holder);
        }
        false
    }

    fn release(&mut self, of: impl Fn(&Held) -> bool) {
        self.held.retain(|_, held| {
            held.retain(|held| !of(held));
            !held.is_empty()
        });
    }
}

impl AdvisoryLocks {
    pub fn try_lock(&self, session: u32, key: Key, mode: Mode, transaction: bool) -> Result<bool> {
        self.state.lock().take(session, key, mode, transaction)
    }

    /// Waits for the lock. 40P01 where that would be for ever, 55P03 after `timeout`.
    pub async fn lock(
        &self,
        session: u32,
        key: Key,
        mode: Mode,
        transaction: bool,
        timeout: Option<Duration>,
    ) -> Result<()> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        // Also when the statement is cancelled, which drops this future.
        let _waiting = Waiting { locks: self, session };
        loop {
            let released = self.released.notified();
            tokio::pin!(released);
            // Registered before the state is read, so that no release falls between.
            released.as_mut().enable();
            {
                let mut state = self.state.lock();
                if state.take(session, key, mode, transaction)? {
                    return Ok(());
                }
                if state.closes_cycle(session, key, mode) {
                    return Err(Error::new(SqlState::DEADLOCK_DETECTED, "deadlock detected")
                        .with_detail("The sessions wait for each other's advisory locks."));
                }
                state.waiting.insert(session, (key, mode));
            }
            match deadline {
                None => released.await,
                Some(deadline) => {
                    if tokio::time::timeout_at(deadline.into(), released).await.is_err() {
                        let message = "canceling statement due to lock timeout";
                        return Err(Error::new(SqlState::LOCK_NOT_AVAILABLE, message));
                    }
                }
            }
        }
    }

    /// Gives a session's lock back once. False when it holds none.
    pub fn unlock(&self, session: u32, key: Key, mode: Mode) -> bool {
        let mut state = self.state.lock();
        let Some(held) = state.held.get_mut(&key) else { return false };
        let mine = held.iter().position(|held| held.session == session && held.mode == mode && !held.transaction);
        let Some(position) = mine else { return false };
        held[position].count -= 1;
        if held[position].count == 0 {
            held.swap_remove(position);
        }
        if held.is_empty() {
            state.held.remove(&key);
        }
        drop(state);
        self.released.notify_waiters();
        true
    }

    /// Gives back what a session holds beyond its transaction.
    pub fn unlock_all(&self, session: u32) {
        self.state.lock().release(|held| held.session == session && !held.transaction);
        self.released.notify_waiters();
    }

    /// Whether a session holds any.
    pub fn holds(&self, session: u32) -> bool {
        self.state.lock().held.values().flatten().any(|held| held.session == session)
    }

    /// What a session holds for its transaction, or beyond it: keys, modes, and how often.
    pub fn held_by(&self, session: u32, of_transaction: bool) -> Vec<(Key, Mode, u32)> {
        let state = self.state.lock();
        let all = state.held.iter().flat_map(|(key, held)| held.iter().map(|held| (*key, *held)));
        let own = all.filter(|(_, held)| held.session == session && held.transaction == of_transaction);
        own.map(|(key, held)| (key, held.mode, held.count)).collect()
    }

    /// Those that are held, each once a session and mode, and those that are waited for.
    pub fn list(&self) -> Vec<AdvisoryLock> {
        let state = self.state.lock();
        let mut list: Vec<AdvisoryLock> = Vec::new();
        for (&key, held) in &state.held {
            let start = list.len();
            for &Held { session, mode, .. } in held {
                let lock = AdvisoryLock { key, mode, session, granted: true };
                if !list[start..].contains(&lock) {
                    list.push(lock);
                }
            }
        }
        let waiting = state.waiting.iter();
        list.extend(waiting.map(|(&session, &(key, mode))| AdvisoryLock { key, mode, session, granted: false }));
        list
    }

    /// Who waits, and who is in the way.
    pub fn waits(&self) -> Vec<(u32, u32)> {
        let state = self.state.lock();
        let waiting = state.waiting.iter();
        waiting
            .flat_map(|(&session, &(key, mode))| {
                state.in_the_way(session, key, mode).into_iter().map(move |holder| (session, holder))
            })
            .collect()
    }

    pub fn end_transaction(&self, session: u32) {
        self.state.lock().release(|held| held.session == session && held.transaction);
        self.released.notify_waiters();
    }

    /// The session takes no locks here: it is another host's, which has its locks.
    pub fn set_guest(&self, session: u32) {
        self.state.lock().guests.insert(session);
    }

    pub fn is_guest(&self, session: u32) -> bool {
        self.state.lock().guests.contains(&session)
    }

    pub fn end_session(&self, session: u32) {
        let mut state = self.state.lock();
        state.guests.remove(&session);
        state.release(|held| held.session == session);
        drop(state);
        self.released.notify_waiters();
    }
}

struct Waiting<'a> {
    locks: &'a AdvisoryLocks,
    session: u32,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.locks.state.lock().waiting.remove(&self.session);
    }
}
