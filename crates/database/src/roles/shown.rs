//! What is shown of roles, and asked of them by clients: places in the log, who follows whom, a pause, and a switch-over.

use super::readers::is_reader;
use super::{CopyState, HostRole, Roles, SyncState, not_in_recovery};
use crate::{Database, Lsn};
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};
use tidepool_base::{CommitTs, Error, Result, SqlState, crash_point};
use tidepool_log::LogPosition;
use tidepool_pool::layout::HostNumber;
use tidepool_pool::liveness::is_lock_held;
use tidepool_pool::pool::HostView;
use tidepool_pool::words::{Host, HostState, Number, Reign};

/// How long a host that is asked to take over has for it.
const SWITCHOVER_WAIT: Duration = Duration::from_secs(10);

/// Between two looks whether it has.
const SWITCHOVER_LOOKS: Duration = Duration::from_millis(1);

/// What passes a host's clients to the host that takes over from it.
pub trait PassesSessions: Send + Sync {
    /// Stops sessions where they can be stopped, but for the caller's, and passes them to a host under a number. Returns when that one
    /// has them.
    fn pass(&self, to: Host, pass: u64, caller: Option<u32>) -> Result<()>;

    /// That host goes on with none of them, whatever becomes of it: they go on here.
    fn take_back(&self);
}

/// Whether a standby applies what it reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplayPause {
    #[default]
    NotPaused,
    /// It begins no other batch.
    Requested,
    Paused,
}

impl ReplayPause {
    /// PostgreSQL's name.
    pub fn name(self) -> &'static str {
        match self {
            ReplayPause::NotPaused => "not paused",
            ReplayPause::Requested => "pause requested",
            ReplayPause::Paused => "paused",
        }
    }

    pub fn is_asked(self) -> bool {
        self != ReplayPause::NotPaused
    }
}

/// A host that follows this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standby {
    pub name: String,
    pub process: u32,
    /// Where its clients connect.
    pub address: String,
    /// It has come to the log's end once.
    pub is_following: bool,
    pub replayed: Lsn,
    /// How much older what it shows is than what this host has acknowledged.
    pub lag: Option<Duration>,
    pub heard: Option<SystemTime>,
    /// Its place among those that commits wait for. 0: none.
    pub sync_priority: usize,
    pub sync_state: SyncState,
}

/// The host that this one follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    pub name: String,
    pub process: u32,
    pub address: String,
    pub heard: Option<SystemTime>,
    /// The end of what it has acknowledged, when it last said so.
    pub written: Lsn,
}

/// How a switch-over is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchoverOptions {
    /// Bytes of the log that the other host may not have applied.
    pub lag_max: u64,
    /// It is looked at only.
    pub is_trial: bool,
    /// This process ends afterwards, whatever it was configured to do when it is taken over from.
    pub ends: bool,
    /// The session that asks, if one does, which stays here.
    pub caller: Option<u32>,
}

/// A switch-over that was tried or done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switchover {
    pub host: String,
    /// Bytes of the log that it had not applied.
    pub lag_bytes: u64,
    /// It is primary now. False: that was not asked for, or it has not said so yet.
    pub is_done: bool,
}

fn heard(view: &HostView) -> Option<SystemTime> {
    (view.wall_us.0 > 0).then(|| SystemTime::UNIX_EPOCH + Duration::from_micros(view.wall_us.0))
}

impl Roles {
    /// Takes note of whether it is to pause. True: nothing is applied now.
    pub(super) fn pauses(&self) -> bool {
        let mut state = self.state.lock();
        state.is_paused = state.pause_asked;
        state.is_paused
    }

    /// What the primary asks of this host.
    pub(super) fn request(&self) -> Result<Request> {
        let (pool, host) = (self.host.pool(), self.host.member().host());
        let kick = pool.told(pool.books().load(pool.layout().host_number(host.slot, HostNumber::Kick)))?;
        Ok(Request::of(kick))
    }

    fn number_of(&self, view: &HostView, which: HostNumber) -> u64 {
        let pool = self.host.pool();
        pool.told(pool.books().load(pool.layout().host_number(view.host.slot, which))).map_or(0, |number| number.0)
    }

    /// Hosts of the database that are alive, but for this one.
    pub(super) fn others(&self) -> Vec<HostView> {
        let (own, database) = (self.host.member().host(), self.host.member().database());
        let is_other =
            |view: &HostView| view.host != own && view.ident.database == database && view.ident.state.is_live();
        self.host.pool().hosts().unwrap_or_default().into_iter().filter(is_other).collect()
    }
}

impl Database {
    /// A position in the log, in bytes from where it began.
    pub fn lsn_of(&self, position: LogPosition) -> Lsn {
        let segment_bytes = match &self.roles {
            Some(roles) => {
                let of_copy = roles.copy.lock().as_ref().map(|copy| copy.segment_bytes);
                of_copy.unwrap_or_else(|| roles.host.pool().extent_bytes())
            }
            None => self.config().log.segment_bytes as u64,
        };
        Lsn(position.segment() * segment_bytes + position.offset() as u64)
    }

    /// The end of what is acknowledged of the log that this process writes.
    pub fn written_lsn(&self) -> Lsn {
        self.log_position().map_or(Lsn(0), |position| self.lsn_of(position))
    }

    /// Says to other hosts how far the log has come. A primary does so now and then.
    pub fn say_written(&self) {
        if let (Some(roles), Some(position)) = (&self.roles, self.log_position())
            && roles.role() == HostRole::Primary
            && let Err(error) = roles.host.say(HostNumber::AppliedPosition, position.to_bits())
        {
            tracing::debug!(%error, "other hosts are not told of the log's end");
        }
    }

    /// How this process does as a copy of another pool's database. `None` where it is none, or was promoted.
    pub fn copy(&self) -> Option<CopyState> {
        self.roles.as_ref()?.copy.lock().clone()
    }

    /// The hosts that follow this one, which is primary.
    pub fn standbys(&self) -> Vec<Standby> {
        let Some(roles) = self.roles.as_ref().filter(|roles| roles.role() == HostRole::Primary) else {
            return Vec::new();
        };
        let durable = self.log.get().map_or(CommitTs(0), |log| log.durable());
        let written = self.log_position().unwrap_or_default();
        let views = roles.others();
        let states = roles.sync_states(&views);
        let standby = |(view, (sync_priority, sync_state)): (HostView, (usize, SyncState))| {
            let applied = roles.number_of(&view, HostNumber::AppliedTs);
            let position = LogPosition::from_bits(roles.number_of(&view, HostNumber::AppliedPosition));
            let heard = heard(&view);
            let text = view.text.unwrap_or_default();
            Standby {
                name: text.name,
                process: text.pid,
                address: text.address,
                is_following: view.ident.state == HostState::Following,
                replayed: self.lsn_of(position),
                // One that has all of the log shows what there is, however long ago the last of it was written.
                lag: (applied > 0).then(|| match position >= written {
                    true => Duration::ZERO,
                    false => Duration::from_nanos(durable.0.saturating_sub(applied)),
                }),
                heard,
                sync_priority,
                sync_state,
            }
        };
        views.into_iter().zip(states).map(standby).collect()
    }

    /// The host that this one follows.
    pub fn upstream(&self) -> Option<Upstream> {
        let roles = self.roles.as_ref().filter(|roles| roles.role() == HostRole::Following)?;
        let reign = roles.host.member().reign().ok()?;
        let view = roles.others().into_iter().find(|view| reign.is_of(view.host))?;
        let position = LogPosition::from_bits(roles.number_of(&view, HostNumber::AppliedPosition));
        let heard = heard(&view);
        let text = view.text.unwrap_or_default();
        let written = self.lsn_of(position);
        Some(Upstream { name: text.name, process: text.pid, address: text.address, heard, written })
    }

    /// Bytes of the log that this host, which follows, has not applied, as far as it knows.
    pub fn lag_bytes(&self) -> Option<u64> {
        if let Some(copy) = self.copy() {
            let replayed = self.lsn_of(self.follow_progress()?.replayed);
            return Some(self.lsn_of(copy.end).0.saturating_sub(replayed.0));
        }
        let (upstream, progress) = (self.upstream()?, self.follow_progress()?);
        (upstream.written > Lsn(0)).then(|| upstream.written.0.saturating_sub(self.lsn_of(progress.replayed).0))
    }

    /// The term that this host reigns in, or follows.
    pub fn term(&self) -> Option<u64> {
        let roles = self.roles.as_ref()?;
        match roles.reign.get() {
            Some(reign) => Some(reign.term.0.into()),
            None => Some(roles.state.lock().progress.term).filter(|term| *term > 0),
        }
    }

    /// Whether this host, which follows, applies what it reads.
    pub fn replay_pause(&self) -> ReplayPause {
        let Some(roles) = &self.roles else { return ReplayPause::NotPaused };
        let state = roles.state.lock();
        match (state.pause_asked, state.is_paused) {
            (false, _) => ReplayPause::NotPaused,
            (true, false) => ReplayPause::Requested,
            (true, true) => ReplayPause::Paused,
        }
    }

    /// Stops applying before the next batch, or goes on. A promotion goes on with all that there is. 55000 on a primary.
    pub fn pause_replay(&self, is_paused: bool) -> Result<()> {
        let roles = self.roles.as_ref().filter(|roles| roles.role().is_in_recovery()).ok_or_else(not_in_recovery)?;
        roles.state.lock().pause_asked = is_paused;
        roles.changed.notify_all();
        Ok(())
    }

    /// Who passes this host's clients to the one that takes over, if that is planned. Held as long as its owner holds it.
    pub fn set_passing(&self, passing: Weak<dyn PassesSessions>) {
        if let Some(roles) = &self.roles {
            *roles.passing.lock() = Some(passing);
        }
    }

    /// Has the standby of a name take over from this host, which is primary. What this host has acknowledged is not lost: it is fenced as
    /// by any other take-over.
    pub fn switch_over(&self, to: &str, options: &SwitchoverOptions) -> Result<Switchover> {
        let SwitchoverOptions { lag_max, is_trial, ends, caller } = *options;
        let not_here = |message: String| Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message);
        let roles = self.roles.as_ref().filter(|roles| roles.role() == HostRole::Primary);
        let (Some(roles), Some(reign)) = (roles, roles.and_then(|roles| roles.reign.get())) else {
            return Err(not_here("this server is not the primary of a database in a pool".to_owned())
                .with_hint("Ask the primary, or promote a standby: SELECT pg_promote()."));
        };
        let others = roles.others();
        let is_its = |view: &&HostView| view.text.as_ref().is_some_and(|text| text.name == to);
        // Lives of the name that nobody knows to be dead may be there, too.
        let follows = |view: &&HostView| is_its(view) && view.ident.state == HostState::Following;
        let Some(view) = others.iter().find(follows).or_else(|| others.iter().find(is_its)) else {
            let standbys = others.iter().filter(|view| !is_reader(view));
            let names = standbys.filter_map(|view| Some(view.text.as_ref()?.name.clone())).collect::<Vec<_>>();
            return Err(Error::new(SqlState::UNDEFINED_OBJECT, format!("standby \"{to}\" does not exist"))
                .with_detail(match names.is_empty() {
                    true => "No host follows this one.".to_owned(),
                    false => format!("There are: {}.", names.join(", ")),
                }));
        };
        if is_reader(view) {
            return Err(
                not_here(format!("host \"{to}\" is a reader, and cannot become primary")).with_hint("Name a standby.")
            );
        }
        if view.ident.state != HostState::Following {
            return Err(match view.ident.state {
                HostState::Attached => {
                    not_here(format!("host \"{to}\" has not caught up with the log yet")).with_hint("Wait.")
                }
                state => not_here(format!("host \"{to}\" is {}, and does not follow", state.text())),
            });
        }
        let replayed = LogPosition::from_bits(roles.number_of(view, HostNumber::AppliedPosition));
        let lag_bytes = self.written_lsn().0.saturating_sub(self.lsn_of(replayed).0);
        if lag_bytes > lag_max {
            return Err(not_here(format!("standby \"{to}\" is {lag_bytes} bytes of log behind"))
                .with_detail(format!("At most {lag_max} are allowed."))
                .with_hint("Wait, or allow more."));
        }
        let mut switched = Switchover { host: to.to_owned(), lag_bytes, is_done: false };
        if is_trial {
            return Ok(switched);
        }
        if roles.hands_over.swap(true, Ordering::AcqRel) {
            return Err(Error::new(SqlState::OBJECT_IN_USE, "a switch-over is under way already"));
        }
        // Whoever ends or begins anew looks at it once this host is fenced.
        roles.ends.store(ends, Ordering::Release);
        let done = self.hand_over(roles, *reign, view.host, caller);
        if let Ok(true) = done {
            switched.is_done = true;
            return Ok(switched);
        }
        roles.ends.store(false, Ordering::Release);
        roles.hands_over.store(false, Ordering::Release);
        done?;
        Err(not_here(format!("host \"{to}\" has not taken over within {} s", SWITCHOVER_WAIT.as_secs())))
    }

    /// Passes sessions to a host, and has it take over: whether it has. Otherwise all is as before, unless this host is fenced.
    fn hand_over(&self, roles: &Roles, reign: Reign, to: Host, caller: Option<u32>) -> Result<bool> {
        let passing = roles.passing.lock().as_ref().and_then(Weak::upgrade);
        // Of no pass before, whatever became of that.
        let pass = u64::from(rand::random::<u32>() >> 8).max(1);
        let passed = match &passing {
            Some(passing) => {
                roles.ask_of(to, Request { pass, term: 0 })?;
                passing.pass(to, pass, caller)
            }
            None => Ok(()),
        };
        // Also what was committed without waiting for the log.
        let passed = passed.and_then(|()| self.mark());
        let taken = passed.and_then(|_| {
            crash_point("switchover.passed");
            roles.ask_of(to, Request { pass, term: reign.term.0 })?;
            roles.is_taken_over(reign, to)
        });
        if let Ok(true) = taken {
            return Ok(true);
        }
        // In this order: a host that takes over looks at the request after it has taken the term.
        roles.ask_of(to, Request { pass: 0, term: 0 })?;
        let pool = roles.host.pool();
        pool.told(pool.books().fence())?;
        let now = roles.host.member().reign()?;
        if now.term != reign.term {
            let fenced = roles.check();
            return if now.is_of(to) { Ok(true) } else { fenced.and(taken) };
        }
        if let Some(passing) = &passing {
            passing.take_back();
        }
        taken
    }

    /// The pass of sessions to this host that is in force, if one is. To be asked after this host took the term: sessions of that pass
    /// are its own then, and the primary before goes on with none of them.
    pub fn passed(&self) -> Option<u64> {
        let host = &self.roles.as_ref()?.host;
        let (pool, slot) = (host.pool(), host.member().host().slot);
        pool.told(pool.books().fence()).ok()?;
        let kick = pool.told(pool.books().load(pool.layout().host_number(slot, HostNumber::Kick))).ok()?;
        Some(Request::of(kick).pass).filter(|pass| *pass > 0)
    }
}

/// What a primary asks of a host that is to take over from it. One word of that host's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Sessions that were passed under this number are the host's, once it has taken the term. 0: none are.
    pass: u64,
    /// The term that it is to end. 0: none.
    term: u32,
}

impl Request {
    fn of(number: Number) -> Request {
        Request { pass: number.0 >> 32, term: number.0 as u32 }
    }

    /// To take over from the primary of a term.
    pub(super) fn is_to_end(self, term: u32) -> bool {
        self.term == term && term > 0
    }

    /// The host is to take over soon: clients stop meanwhile.
    pub(super) fn is_announced(self) -> bool {
        self.pass > 0 && self.term == 0
    }
}

impl Roles {
    fn ask_of(&self, host: Host, request: Request) -> Result<()> {
        let pool = self.host.pool();
        let kick = pool.layout().host_number(host.slot, HostNumber::Kick);
        pool.told(pool.books().store(kick, Number(request.pass << 32 | u64::from(request.term))))
    }

    /// Waits until a host that was asked to has taken over.
    fn is_taken_over(&self, reign: Reign, by: Host) -> Result<bool> {
        let end = Instant::now() + SWITCHOVER_WAIT;
        while Instant::now() < end {
            let now = self.host.member().reign()?;
            if now.term != reign.term {
                // At once, so that nothing waits for the next look.
                let fenced = self.check();
                return if now.is_of(by) { Ok(true) } else { fenced.map(|()| false) };
            }
            if !is_lock_held(self.host.pool(), by)? {
                let message = format!("{by} has ended before it took over");
                return Err(Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message));
            }
            std::thread::sleep(SWITCHOVER_LOOKS);
        }
        Ok(false)
    }
}
