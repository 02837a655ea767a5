//! Commits that wait until standbys show them: `synchronous_commit = remote_apply`.
//!
//! The log is in the pool, so all of its hosts have a commit that is durable there, and no other level waits for a standby. Each host that follows says in its
//! page how far it has applied the log. A thread reads these words while a commit waits, and sleeps otherwise.
//!
//! A commit waits for as long as too few of the standbys that are named are there, as in PostgreSQL, and until the names change, its
//! client gives up, or another host takes over.
//!
//! A block of the log says up to where the log is complete when it is written. A commit's own block may not say so of that commit, and no
//! other may follow: so a mark is written behind commits that have waited for a while.

use super::readers::is_reader;
use super::standby_names::{Choice, StandbyNames};
use super::{HostRole, Roles, closing};
use crate::Database;
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tidepool_base::{CommitTs, Error, Result};
use tidepool_log::waiters::{Waiters, answer};
use tidepool_pool::layout::HostNumber;
use tidepool_pool::pool::HostView;
use tidepool_pool::words::{Host, HostState};

/// Between two looks at what standbys have applied: while a commit has come lately, and otherwise.
const LOOK_INTERVAL: Duration = Duration::from_micros(100);
const LOOK_INTERVAL_IDLE: Duration = Duration::from_millis(2);
const IDLE_AFTER: Duration = Duration::from_millis(50);

/// Between two looks which hosts there are.
const HOSTS_INTERVAL: Duration = Duration::from_millis(5);

/// A commit that waits for so long gets a mark behind it.
const MARK_AFTER: Duration = Duration::from_micros(700);

/// What a standby is to commits that wait, in PostgreSQL's words. Exhaustive and mutually exclusive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncState {
    /// No commit waits for it.
    #[default]
    Async,
    /// One will, when another goes.
    Potential,
    Sync,
    Quorum,
}

impl SyncState {
    /// PostgreSQL's name.
    pub fn name(self) -> &'static str {
        match self {
            SyncState::Async => "async",
            SyncState::Potential => "potential",
            SyncState::Sync => "sync",
            SyncState::Quorum => "quorum",
        }
    }
}

#[derive(Default)]
struct State {
    names: Option<Arc<StandbyNames>>,
    waiters: Waiters<CommitTs>,
    /// The last one came then.
    last_came: Option<Instant>,
    /// The thread is there.
    is_served: bool,
    stopped: bool,
}

/// Of a database that lives in a pool.
#[derive(Default)]
pub(crate) struct Synchronous {
    state: Mutex<State>,
    changed: Condvar,
    /// Commits wait: looked at without the lock.
    has_names: AtomicBool,
}

/// A commit that waits. Dropped, it does not wait any more.
pub struct StandbyWait {
    roles: Weak<Roles>,
    number: u64,
}

impl Drop for StandbyWait {
    fn drop(&mut self) {
        if let Some(roles) = self.roles.upgrade() {
            roles.synchronous.state.lock().waiters.remove(self.number);
        }
    }
}

/// A standby that is named and follows.
struct Candidate {
    host: Host,
    priority: usize,
}

/// A reader counts where its name is written, and not where any host does: it comes and goes.
fn priority_of(names: &StandbyNames, view: &HostView) -> usize {
    match &view.text {
        None => 0,
        Some(text) if is_reader(view) => names.priority_of_reader(&text.name),
        Some(text) => names.priority(&text.name),
    }
}

impl Synchronous {
    pub fn new(names: Option<Arc<StandbyNames>>) -> Synchronous {
        let has_names = AtomicBool::new(names.is_some());
        Synchronous { state: Mutex::new(State { names, ..State::default() }), has_names, ..Synchronous::default() }
    }

    fn names(&self) -> Option<Arc<StandbyNames>> {
        self.state.lock().names.clone()
    }

    /// Tells all that wait, and takes nobody any more.
    pub fn stop(&self) {
        let waiters = {
            let mut state = self.state.lock();
            state.stopped = true;
            state.waiters.take_all()
        };
        self.changed.notify_all();
        answer(waiters, &Err(closing()));
    }
}

impl Roles {
    /// Those of the names that are there, the first in their order first.
    fn candidates(&self, names: &StandbyNames) -> Vec<Candidate> {
        let candidate = |view: HostView| {
            let priority = priority_of(names, &view);
            let is_there = priority > 0 && view.ident.state == HostState::Following;
            is_there.then_some(Candidate { host: view.host, priority })
        };
        let mut candidates: Vec<Candidate> = self.others().into_iter().filter_map(candidate).collect();
        candidates.sort_by_key(|candidate| (candidate.priority, candidate.host.slot.0));
        candidates
    }

    /// The commits that enough standbys show. `None`: too few are there.
    fn applied_by(&self, names: &StandbyNames, candidates: &[Candidate]) -> Result<Option<CommitTs>> {
        if candidates.len() < names.count {
            return Ok(None);
        }
        let (pool, books) = (self.host.pool(), self.host.pool().books());
        let mut applied = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            let number = books.layout.host_number(candidate.host.slot, HostNumber::AppliedTs);
            let number = pool.told(books.load(number))?;
            // After the number: it was this host's.
            let ident = pool.told(books.load(books.layout.ident(candidate.host.slot)))?;
            let is_its = ident.incarnation == candidate.host.incarnation && ident.state == HostState::Following;
            applied.push(if is_its { number.0 } else { 0 });
        }
        Ok(match names.choice {
            Choice::First => applied[..names.count].iter().min().map(|ts| CommitTs(*ts)),
            Choice::Any => {
                applied.sort_unstable_by(|left, right| right.cmp(left));
                Some(CommitTs(applied[names.count - 1]))
            }
        })
    }

    /// What each of the hosts that follow is to commits that wait, by its name and whether it follows: priority and state.
    pub(super) fn sync_states(&self, hosts: &[HostView]) -> Vec<(usize, SyncState)> {
        let Some(names) = self.synchronous.names() else { return vec![(0, SyncState::Async); hosts.len()] };
        let candidates = self.candidates(&names);
        let state = |view: &HostView| {
            let priority = priority_of(&names, view);
            let place = candidates.iter().position(|candidate| candidate.host == view.host);
            let state = match (priority, names.choice, place) {
                (0, _, _) => SyncState::Async,
                (_, Choice::First, Some(place)) if place < names.count => SyncState::Sync,
                (_, Choice::Any, Some(_)) => SyncState::Quorum,
                _ => SyncState::Potential,
            };
            (priority, state)
        };
        hosts.iter().map(state).collect()
    }
}

impl Database {
    /// The standbys that commits wait for, as they were set last.
    pub fn synchronous_standby_names(&self) -> String {
        let names = self.roles.as_ref().and_then(|roles| roles.synchronous.names());
        names.map_or_else(String::new, |names| names.to_string())
    }

    /// Sets which standbys commits wait for from now on, those that wait already among them. 22023 where the text cannot be understood.
    pub fn set_synchronous_standby_names(&self, text: &str) -> Result<()> {
        let names = StandbyNames::parse(text)?;
        let Some(roles) = &self.roles else { return Ok(()) };
        let synchronous = &roles.synchronous;
        let released = {
            let mut state = synchronous.state.lock();
            synchronous.has_names.store(names.is_some(), Ordering::Release);
            state.names = names;
            if state.names.is_none() { state.waiters.take_all() } else { Vec::new() }
        };
        synchronous.changed.notify_all();
        answer(released, &Ok(()));
        Ok(())
    }

    /// Whether a commit that wants to be shown by standbys has any to wait for.
    #[inline]
    pub fn has_synchronous_standbys(&self) -> bool {
        self.roles.as_ref().is_some_and(|roles| roles.synchronous.has_names.load(Ordering::Acquire))
    }

    /// Has `told` called once enough standbys show a commit that is durable, or with why they will not. `None`: it was called already.
    pub fn when_applied(
        self: &Arc<Self>,
        ts: CommitTs,
        told: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Result<Option<StandbyWait>> {
        let Some(roles) = self.roles.as_ref().filter(|_| self.has_synchronous_standbys()) else {
            told(Ok(()));
            return Ok(None);
        };
        let number = {
            let mut state = roles.synchronous.state.lock();
            if state.names.is_none() || state.stopped {
                drop(state);
                told(Ok(()));
                return Ok(None);
            }
            state.last_came = Some(Instant::now());
            state.waiters.add(ts, Box::new(told))
        };
        // From here on it is taken back where nobody will tell it.
        let wait = StandbyWait { roles: Arc::downgrade(roles), number };
        if !std::mem::replace(&mut roles.synchronous.state.lock().is_served, true) {
            let (of_thread, database) = (Arc::clone(roles), Arc::downgrade(self));
            let spawned = std::thread::Builder::new()
                .name("standby-waits".to_owned())
                .spawn(move || serve(&of_thread, &database))
                .map_err(|error| Error::io("start a thread", &error))
                .inspect_err(|_| roles.synchronous.state.lock().is_served = false)?;
            roles.state.lock().threads.push(spawned);
        }
        roles.synchronous.changed.notify_all();
        Ok(Some(wait))
    }
}

/// Tells commits that wait, until the database is closed.
fn serve(roles: &Arc<Roles>, database: &Weak<Database>) {
    let mut candidates: Option<(Arc<StandbyNames>, Instant, Vec<Candidate>)> = None;
    let mut marked = CommitTs(0);
    let mut failing = false;
    loop {
        let (names, wanted, since) = {
            let mut state = roles.synchronous.state.lock();
            while state.waiters.is_empty() && !state.stopped {
                roles.synchronous.changed.wait(&mut state);
            }
            if state.stopped {
                return;
            }
            let Some(names) = state.names.clone() else { continue };
            let wanted = state.waiters.furthest().unwrap_or(CommitTs(0));
            (names, wanted, state.last_came.unwrap_or_else(Instant::now))
        };
        if let HostRole::Fenced | HostRole::Failed = roles.role() {
            let error = roles.fence();
            let waiters = roles.synchronous.state.lock().waiters.take_all();
            answer(waiters, &Err(error));
            continue;
        }
        let is_known = |known: &(Arc<StandbyNames>, Instant, Vec<Candidate>)| {
            known.0 == names && known.1.elapsed() < HOSTS_INTERVAL
        };
        let known = match candidates.take().filter(is_known) {
            Some(known) => known,
            None => (names.clone(), Instant::now(), roles.candidates(&names)),
        };
        let applied = roles.applied_by(&names, &known.2);
        candidates = Some(known);
        match applied {
            Ok(applied) => {
                failing = false;
                let applied = applied.unwrap_or(CommitTs(0));
                let reached = {
                    let mut state = roles.synchronous.state.lock();
                    // Otherwise others have been named meanwhile.
                    let is_same = state.names.as_ref() == Some(&names);
                    if is_same { state.waiters.take_up_to(applied) } else { Vec::new() }
                };
                answer(reached, &Ok(()));
                if applied >= wanted {
                    continue;
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::error!("could not look at what standbys have applied: {error}");
                }
            }
        }
        if marked < wanted && since.elapsed() >= MARK_AFTER {
            let Some(database) = database.upgrade() else { return };
            match database.mark() {
                Ok(ts) => marked = ts,
                // The log says what is wrong with it; commits that come are told.
                Err(_) => marked = wanted,
            }
        }
        let mut state = roles.synchronous.state.lock();
        if !state.stopped {
            let interval = if since.elapsed() < IDLE_AFTER { LOOK_INTERVAL } else { LOOK_INTERVAL_IDLE };
            roles.synchronous.changed.wait_for(&mut state, interval);
        }
    }
}
