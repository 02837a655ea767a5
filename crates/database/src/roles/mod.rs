//! What a process is to a database that lives in a pool: it follows the log that another process writes, or writes it.
//!
//! There is one way in. A process joins the pool and *attaches*: what the pool has of the database becomes a database that
//! follows ([`attach`]). It *follows* the pool's log on a thread of its own ([`following`]). It *takes over* when the primary is
//! dead or silent, when the primary's term has ended, or when it is told to ([`Database::promote`]): the terms before are
//! sealed, the rest of the log is applied, and a log of its own term begins. A restart is the same without waiting.
//!
//! Whether another process has taken over is looked at where it counts: by the log, after each block and before its commits are
//! acknowledged, and by each statement, after it drew its snapshot ([`Database::check_snapshot`]). From then on the process is *fenced*: it
//! answers nothing any more, and never writes again. No clock is part of that; a thread that looks every some milliseconds
//! ([`watch`]) only makes it known early.
//!
//! Lock order: none of what is locked here is held while something else is locked.

mod attach;
#[cfg(test)]
mod attach_tests;
mod copied;
mod copying;
#[cfg(test)]
mod copying_tests;
#[cfg(test)]
mod dealt_tests;
pub(crate) mod fall_back;
#[cfg(test)]
mod filling_tests;
mod following;
#[cfg(test)]
mod full_disk_tests;
#[cfg(test)]
mod manifest_tests;
mod manifests;
pub(crate) mod places;
#[cfg(test)]
mod point_in_time_tests;
mod positions;
#[cfg(test)]
mod processes;
#[cfg(test)]
mod reader_tests;
mod readers;
mod serving;
mod shown;
#[cfg(test)]
mod simulated;
mod standby_names;
#[cfg(test)]
mod steps;
mod synchronous;
#[cfg(test)]
mod tests;
pub(crate) mod tier2;
#[cfg(test)]
mod tier2_tests;
mod watch;
#[cfg(test)]
mod work;

use crate::Database;
use crate::config::{OnFenced, PoolRole, PoolSettings};
use crate::durability::redo::TICK;
use crate::durability::storage::Manifest;
use crate::durability::tier1::Checkpoints;
use crate::pool_host::PoolHost;
use crate::roles::places::PoolPlaces;
use crate::roles::synchronous::Synchronous;
use crate::roles::tier2::SecondTier;
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};
use tidepool_base::{CommitTs, Error, Result, SqlState};
use tidepool_log::{DatabaseIdentity, LogPosition, PoolSource, Reached};
use tidepool_pool::words::{Extent, Host, HostState, Reign};
use tidepool_txn::Appended;

pub use copying::CopyState;
pub use positions::PositionWait;
pub use readers::HostHolds;
pub use shown::{PassesSessions, ReplayPause, Standby, Switchover, SwitchoverOptions, Upstream};
pub use standby_names::StandbyNames;
pub use synchronous::{StandbyWait, SyncState};
pub use tier2::SecondTierState;

/// What a process is to its database now. Exhaustive and mutually exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HostRole {
    /// No other process can have the database: it lives in a data folder, or ends with the process.
    Alone = 0,
    /// It applies what another process writes, and is read alone.
    Following = 1,
    /// It has begun to end the other process's term.
    TakingOver = 2,
    Primary = 3,
    /// Another process has taken over, or it handed its term in. It answers nothing any more.
    Fenced = 4,
    /// It could not go on with the log, as [`FollowProgress::failure`] says.
    Failed = 5,
}

impl HostRole {
    const ALL: [HostRole; 6] = [
        HostRole::Alone,
        HostRole::Following,
        HostRole::TakingOver,
        HostRole::Primary,
        HostRole::Fenced,
        HostRole::Failed,
    ];

    /// In PostgreSQL's words, it is in recovery.
    pub fn is_in_recovery(self) -> bool {
        matches!(self, HostRole::Following | HostRole::TakingOver | HostRole::Failed)
    }

    pub fn name(self) -> &'static str {
        match self {
            HostRole::Alone => "alone",
            HostRole::Following => "standby",
            HostRole::TakingOver => "taking over",
            HostRole::Primary => "primary",
            HostRole::Fenced => "fenced",
            HostRole::Failed => "failed",
        }
    }
}

/// How far a process that follows has come.
#[derive(Clone, Debug)]
pub struct FollowProgress {
    /// The term of the last block that was read. 0: none was.
    pub term: u64,
    /// What is in the log up to here was read.
    pub received: LogPosition,
    /// And applied, up to here.
    pub replayed: LogPosition,
    /// What statements see.
    pub applied: CommitTs,
    /// When something was applied last, by this machine's clock.
    pub replayed_at: Option<SystemTime>,
    pub failure: Option<Error>,
}

impl Default for FollowProgress {
    fn default() -> FollowProgress {
        FollowProgress {
            term: 0,
            received: LogPosition::default(),
            replayed: LogPosition::default(),
            applied: CommitTs(0),
            replayed_at: None,
            failure: None,
        }
    }
}

/// 57P01: what those hear that still wait.
fn closing() -> Error {
    Error::new(SqlState::ADMIN_SHUTDOWN, "the database is being closed")
}

/// Is told of each change of role, by the thread that made it. It does not wait for that thread.
pub type RoleWatch = Box<dyn Fn(HostRole) + Send + Sync>;

#[derive(Default)]
struct State {
    stopped: bool,
    /// Somebody wants the process to take over, whoever is primary.
    is_asked: bool,
    /// The request by which the primary announced that this process is to take over, and when it was seen.
    announced: Option<(shown::Request, Instant)>,
    /// The term of a primary that is dead, silent or has handed it in.
    suspected: Option<Reign>,
    /// Whom the process took over from.
    predecessor: Option<Host>,
    /// What a primary has besides its log, the second tier and manifests, has begun or failed. A moment after it is primary.
    is_settled: bool,
    progress: FollowProgress,
    /// A client wants nothing to be applied for now; and nothing is.
    pause_asked: bool,
    is_paused: bool,
    /// Why a copy that was asked to take over did not.
    refusal: Option<Error>,
    threads: Vec<JoinHandle<()>>,
}

/// Of a database that lives in a pool.
pub(crate) struct Roles {
    host: Arc<PoolHost>,
    places: Arc<PoolPlaces>,
    /// Whose log it is.
    identity: DatabaseIdentity,
    begins_as: PoolRole,
    host_timeout: Duration,
    tier1_interval: Duration,
    on_fenced: OnFenced,
    reader_hold_max: Option<u64>,
    role: AtomicU8,
    /// The greatest timestamp that this process has appended to the log.
    appended: Arc<Appended>,
    /// The one term in which this process is primary, once it is.
    reign: OnceLock<Reign>,
    /// Writes manifests from then on.
    checkpoints: OnceLock<Arc<Checkpoints>>,
    /// Of a primary with a data folder.
    pub(crate) second_tier: OnceLock<SecondTier>,
    /// Why there is none, though there is a folder.
    second_tier_failure: Mutex<Option<Error>>,
    /// The manifest of the data folder as the process found it.
    pub(crate) folder: Mutex<Option<Manifest>>,
    state: Mutex<State>,
    changed: Condvar,
    watches: Mutex<Vec<RoleWatch>>,
    /// This host has told another one to take over from it.
    hands_over: AtomicBool,
    /// And ends once it has.
    ends: AtomicBool,
    /// What passes its clients on then.
    passing: Mutex<Option<Weak<dyn PassesSessions>>>,
    /// Whom a command is making sure of that it is dead, and since when.
    fencing: Arc<Mutex<Option<(Host, Instant)>>>,
    fence_command: Option<String>,
    /// The first segment of the log that this process needs, while it follows; 0 until it knows.
    needed: AtomicU64,
    /// Commits that wait for standbys.
    synchronous: Synchronous,
    /// The position up to which this host shows the log, as [`Lsn`](crate::Lsn), and statements that wait for later ones.
    positions: Reached,
    /// Of a copy of another pool's database, until it is promoted.
    copy: Mutex<Option<CopyState>>,
    /// The process takes over with what it brought from elsewhere, and no manifest has that yet.
    is_founding: AtomicBool,
    /// Where the log ended when it was looked at last, and how often nothing was new since.
    ticks: Mutex<(LogPosition, u32)>,
}

impl std::fmt::Debug for Roles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Roles({})", self.role().name())
    }
}

impl Roles {
    /// Of a host that has joined, and follows at first.
    pub fn new(host: &Arc<PoolHost>, settings: &PoolSettings, begins_as: PoolRole) -> Result<Roles> {
        Ok(Roles {
            host: Arc::clone(host),
            places: Arc::new(PoolPlaces::new(host)?),
            identity: DatabaseIdentity(host.database_identity()?),
            begins_as,
            host_timeout: settings.host_timeout,
            tier1_interval: settings.tier1_interval,
            on_fenced: settings.on_fenced,
            reader_hold_max: settings.reader_hold_max,
            role: AtomicU8::new(HostRole::Following as u8),
            appended: Arc::default(),
            reign: OnceLock::new(),
            checkpoints: OnceLock::new(),
            second_tier: OnceLock::new(),
            second_tier_failure: Mutex::default(),
            folder: Mutex::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
            watches: Mutex::default(),
            hands_over: AtomicBool::new(false),
            ends: AtomicBool::new(false),
            passing: Mutex::default(),
            fencing: Arc::default(),
            fence_command: settings.fence_command.clone(),
            needed: AtomicU64::new(0),
            synchronous: Synchronous::new(settings.synchronous_standby_names.clone()),
            positions: Reached::default(),
            copy: Mutex::default(),
            is_founding: AtomicBool::new(false),
            ticks: Mutex::default(),
        })
    }

    pub fn role(&self) -> HostRole {
        HostRole::ALL[usize::from(self.role.load(Ordering::Acquire))]
    }

    pub fn host(&self) -> &Arc<PoolHost> {
        &self.host
    }

    fn is_founding(&self) -> bool {
        self.is_founding.load(Ordering::Acquire)
    }

    /// What writes manifests, while this process is primary.
    pub fn checkpoints(&self) -> Option<&Arc<Checkpoints>> {
        self.checkpoints.get()
    }

    /// Where row groups are in the pool.
    pub fn places(&self) -> &Arc<PoolPlaces> {
        &self.places
    }

    pub fn appended(&self) -> &Arc<Appended> {
        &self.appended
    }

    pub fn identity(&self) -> DatabaseIdentity {
        self.identity
    }

    /// The first segment of the log that has something which this process, which follows, has not applied, with its term.
    pub fn needed_segment(&self) -> Result<Option<(u64, u64)>> {
        let number = self.needed.load(Ordering::Acquire);
        if number == 0 {
            return PoolSource::new(Arc::clone(self.host.member())).oldest(self.identity);
        }
        let (pool, database) = (self.host.pool(), self.host.member().database());
        let entry = pool.told(pool.books().load(pool.layout().segment(database, number)))?;
        Ok(Some((entry.term.0.into(), number)))
    }

    /// From a role that it still has: a process that is fenced stays so.
    fn set_role_from(&self, from: &[HostRole], role: HostRole) -> bool {
        {
            // Under the lock: nobody misses it that is about to wait.
            let _state = self.state.lock();
            if !from.contains(&self.role()) {
                return false;
            }
            self.role.store(role as u8, Ordering::Release);
            self.changed.notify_all();
        }
        tracing::info!(role = role.name(), "the role of this host has changed");
        self.positions_in(role);
        self.watches.lock().iter().for_each(|watch| watch(role));
        true
    }

    /// As [`Database::check_reigns`]. What a snapshot shows that was drawn before may leave.
    #[inline]
    pub fn check(&self) -> Result<()> {
        let is_current = match self.reign.get() {
            Some(reign) => self.host.reigns(*reign)?,
            // What it reads is old at most, unless its memory may be another's.
            None => self.host.member().is_current()?,
        };
        if is_current && self.role() != HostRole::Fenced { Ok(()) } else { Err(self.fence()) }
    }

    /// Another process has taken over: nothing more is answered.
    #[cold]
    pub fn fence(&self) -> Error {
        let all = [HostRole::Following, HostRole::TakingOver, HostRole::Primary, HostRole::Failed];
        if self.set_role_from(&all, HostRole::Fenced) {
            match self.hands_over.load(Ordering::Acquire) {
                true => tracing::info!("the database was handed over to another host"),
                false => {
                    tracing::error!("another host of the pool took the database over, or took this one for dead");
                }
            }
        }
        Error::new(SqlState::CRASH_SHUTDOWN, "another host has taken the database over")
            .with_hint("Connect again, to the new primary.")
    }

    fn fail(&self, error: &Error) {
        tracing::error!(%error, "the log of the pool cannot be followed any more");
        self.state.lock().progress.failure = Some(error.clone());
        self.set_role_from(&[HostRole::Following, HostRole::TakingOver], HostRole::Failed);
    }

    fn note_progress(&self, note: impl FnOnce(&mut FollowProgress)) {
        note(&mut self.state.lock().progress);
    }

    /// The term of a primary that cannot go on is to be ended.
    fn suspect(&self, reign: Reign) {
        self.state.lock().suspected = Some(reign);
        self.changed.notify_all();
    }

    /// To be called once by a process that has become primary, when all that a primary has was begun.
    fn settle(&self) {
        self.state.lock().is_settled = true;
        self.changed.notify_all();
    }

    /// Waits until all that a primary has was begun, of a process that has become one. That takes a few writes to files.
    pub(crate) fn wait_settled(&self) {
        let mut state = self.state.lock();
        while self.role() == HostRole::Primary && !state.is_settled {
            self.changed.wait(&mut state);
        }
    }

    /// Ends the threads. From one of them it does not wait for itself.
    pub fn stop(&self) {
        self.synchronous.stop();
        self.positions.stop(&Err(closing()));
        let threads = {
            let mut state = self.state.lock();
            state.stopped = true;
            std::mem::take(&mut state.threads)
        };
        self.changed.notify_all();
        let own = std::thread::current().id();
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != own) {
            // It has told of its panic itself.
            let _ = thread.join();
        }
    }

    /// Hands the term in, if it has one: all of it is durable, and nothing follows.
    pub fn end_reign(&self) {
        let Some(reign) = self.reign.get() else { return };
        match self.host.member().end_reign(*reign) {
            Ok(true) => tracing::info!(term = reign.term.0, "the term has ended"),
            // Another process has begun the next.
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "the term of the pool's database was not handed in"),
        }
        self.set_role_from(&[HostRole::Primary], HostRole::Fenced);
    }
}

fn not_in_recovery() -> Error {
    Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "recovery is not in progress")
        .with_hint("Recovery control functions can only be executed during recovery.")
}

impl Database {
    /// What this process is to the database now.
    pub fn role(&self) -> HostRole {
        self.roles.as_ref().map_or(HostRole::Alone, |roles| roles.role())
    }

    /// What it is to do when it is fenced, as it was configured. `None` where it has no role.
    pub fn on_fenced(&self) -> Option<OnFenced> {
        self.roles.as_ref().map(|roles| roles.on_fenced)
    }

    /// Whether this process was told to end when it handed over.
    pub fn ends_after_switchover(&self) -> bool {
        self.roles.as_ref().is_some_and(|roles| roles.ends.load(Ordering::Acquire))
    }

    /// Has `watch` told of the role that there is, and of each change from then on.
    pub fn watch_role(&self, watch: RoleWatch) {
        if let Some(roles) = &self.roles {
            let mut watches = roles.watches.lock();
            watch(roles.role());
            watches.push(watch);
        }
    }

    /// The host that this one took over from, until it is known to be dead: until then it may wake.
    pub fn living_predecessor(&self) -> Option<Host> {
        self.roles.as_ref().and_then(|roles| roles.state.lock().predecessor)
    }

    /// Waits until the role is another than `from`, or for so long. Returns what it is.
    pub fn wait_role(&self, from: HostRole, time: Duration) -> HostRole {
        let Some(roles) = &self.roles else { return HostRole::Alone };
        let end = Instant::now() + time;
        let mut state = roles.state.lock();
        while roles.role() == from && !roles.changed.wait_until(&mut state, end).timed_out() {}
        roles.role()
    }

    /// How far it has come in following. `None` where there is nothing to follow.
    pub fn follow_progress(&self) -> Option<FollowProgress> {
        self.roles.as_ref().map(|roles| roles.state.lock().progress.clone())
    }

    /// Where the log ends that this process writes. `None` where it writes none.
    pub fn log_position(&self) -> Option<LogPosition> {
        self.log.get().map(|log| log.position())
    }

    /// Extents of the pool that wait to go back until no host reads them any more. `None` where this process is not the primary of a
    /// database that lives in a pool.
    pub fn pool_limbo(&self) -> Result<Option<Vec<Extent>>> {
        let checkpoints = self.roles.as_ref().and_then(|roles| roles.checkpoints());
        checkpoints.map(|checkpoints| checkpoints.limbo(self)).transpose()
    }

    /// Takes over, whoever is primary, and waits for that for so long: whether this process is primary then, with its second tier
    /// begun if it has a data folder. 55000 where it does not follow, and what went wrong where it cannot go on.
    pub fn promote(&self, wait: Duration) -> Result<bool> {
        self.check_may_promote()?;
        let roles = self.roles.as_ref().filter(|roles| roles.role().is_in_recovery()).ok_or_else(not_in_recovery)?;
        let end = Instant::now() + wait;
        let mut state = roles.state.lock();
        // What was in the way of an earlier try may be gone.
        state.refusal = None;
        state.is_asked = true;
        roles.changed.notify_all();
        loop {
            match roles.role() {
                HostRole::Following | HostRole::TakingOver => {
                    if let Some(refusal) = state.refusal.take() {
                        return Err(refusal);
                    }
                    if roles.changed.wait_until(&mut state, end).timed_out() {
                        return Ok(false);
                    }
                }
                HostRole::Primary => {
                    drop(state);
                    roles.wait_settled();
                    return Ok(roles.role() == HostRole::Primary);
                }
                HostRole::Failed => {
                    return Err(state.progress.failure.clone().unwrap_or_else(not_in_recovery));
                }
                HostRole::Alone | HostRole::Fenced => return Ok(false),
            }
        }
    }

    /// Sees to it that what a snapshot at `ts` shows may leave this process. To be called after it was drawn, and before
    /// anything is looked at. 57P02 where another process has taken over since this one began to write: otherwise the snapshot
    /// was the newest at that moment.
    ///
    /// Commits are seen when they are decided, and a take-over takes back what is not in the log by then. So those that the
    /// snapshot shows are waited for: a round of group commit at most.
    #[inline]
    pub fn check_snapshot(&self, ts: CommitTs) -> Result<()> {
        match &self.roles {
            None => Ok(()),
            Some(roles) => self.check_snapshot_of(roles, ts),
        }
    }

    fn check_snapshot_of(&self, roles: &Roles, ts: CommitTs) -> Result<()> {
        #[cfg(test)]
        if crate::stress::is_left_out("look at a snapshot") {
            return Ok(());
        }
        if let Some(log) = self.log.get()
            && log.durable() < ts
            && roles.appended.may_be_shown(self.transactions(), ts, || log.durable())
        {
            log.wait_durable(ts, || Ok(()))?;
        }
        roles.check()
    }

    /// Has those who follow come to the end of what there is, when nothing more is written for a while: what they adopt of
    /// mains takes the place of rows when time has passed twice. Called now and then.
    pub(crate) fn tick(&self) {
        const TICKS: u32 = 3;
        let (Some(roles), Some(log)) = (&self.roles, self.log.get()) else { return };
        if roles.role() != HostRole::Primary {
            return;
        }
        let mut ticks = roles.ticks.lock();
        if log.position() != ticks.0 {
            ticks.1 = 0;
        }
        if ticks.1 < TICKS {
            // What went wrong is told by the log.
            let _ = self.mark();
            *ticks = (log.position(), ticks.1 + 1);
        }
    }

    /// Says to those who follow that all commits so far are there. Returns as of when, once that is durable.
    fn mark(&self) -> Result<CommitTs> {
        let ts = self.commit_small(TICK, &[])?;
        if let Some(log) = self.log.get() {
            log.wait_durable(ts, || Ok(()))?;
        }
        Ok(ts)
    }

    /// Says to other hosts that this process ends by itself, or puts another in its place: the one that took over from it need
    /// not see to that. It stores to the pool no more.
    pub fn announce_end(&self) {
        let Some(roles) = &self.roles else { return };
        if let Err(error) = roles.host.advance(HostState::Leaving) {
            tracing::warn!(%error, "other hosts were not told that this one ends");
        }
    }

    /// 57P02 where another process has taken over since this one began to write.
    #[inline]
    pub fn check_reigns(&self) -> Result<()> {
        match &self.roles {
            None => Ok(()),
            Some(roles) => roles.check(),
        }
    }

    /// 25006 while another process writes.
    #[inline]
    pub(crate) fn check_writes(&self) -> Result<()> {
        match &self.roles {
            Some(roles) if self.is_following() || roles.is_founding() => {
                Err(Error::new(SqlState::READ_ONLY_SQL_TRANSACTION, "cannot write during recovery"))
            }
            _ => Ok(()),
        }
    }
}
