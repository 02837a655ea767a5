//! Readers: hosts that follow as standbys do, answer queries, and never take over.
//!
//! A reader maps the pool to be read, but for its own page ([`Pool::open_as_reader`]), so that nothing that goes wrong in it reaches
//! others. It comes and goes at any time. Commits wait for it only where its name is among those that they wait for.
//!
//! What a reader may read stays in the pool: mains that others took the place of, and the log from where it has come to. A reader for
//! which too much is kept is suspected by the primary. From then on the log is not kept for it: it looks after each look at the log
//! whether it is suspect. Main is kept until its death is confirmed, as statements read there in place. It is told by its next look at
//! its own page, tells its clients (57P02), and ends; one that is stopped is killed, where this kernel can.
//!
//! [`Pool::open_as_reader`]: tidepool_pool::pool::Pool::open_as_reader

use super::{HostRole, Roles};
use crate::Database;
use crate::config::PoolRole;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_pool::layout::HostNumber;
use tidepool_pool::liveness::Watcher;
use tidepool_pool::pool::HostView;
use tidepool_pool::words::{Host, HostState, Role};

/// A reader is beyond its bound for so long before it is sent away, at least.
const OVER_TIME_MIN: Duration = Duration::from_secs(1);

/// How long a process that was sent a signal is waited for.
const END_WAIT: Duration = Duration::from_millis(20);

/// By default a reader may hold one part in so many of the pool.
const HOLD_PART: u64 = 4;

/// What stays in the pool for a host that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostHolds {
    pub slot: u8,
    pub life: u32,
    /// Main that others took the place of, images and manifests.
    pub main_bytes: u64,
    /// The log from where it has come to.
    pub log_bytes: u64,
}

/// Whether a host is one.
pub(super) fn is_reader(view: &HostView) -> bool {
    view.ident.role == Role::Reader
}

impl Roles {
    pub(super) fn is_reader(&self) -> bool {
        self.begins_as == PoolRole::Reader
    }
}

impl Database {
    /// This process reads a database that lives in a pool, and never takes over.
    pub fn is_reader(&self) -> bool {
        self.roles.as_ref().is_some_and(|roles| roles.is_reader())
    }

    /// 55000 of a reader.
    pub(super) fn check_may_promote(&self) -> Result<()> {
        if !self.is_reader() {
            return Ok(());
        }
        Err(Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "a reader cannot be promoted")
            .with_hint("Promote a standby. A server becomes one with --role standby."))
    }
}

impl Database {
    /// What stays in the pool for each host that follows this one, which is primary. Of several that hold the same, each has it all.
    /// `None`: it is not known at this moment, or this process is no primary.
    pub fn host_holds(&self) -> Result<Option<Vec<HostHolds>>> {
        let Some(roles) = self.roles.as_ref().filter(|roles| roles.role() == HostRole::Primary) else {
            return Ok(None);
        };
        let Some(owed) = roles.checkpoints().and_then(|checkpoints| checkpoints.owed()) else { return Ok(None) };
        let (pool, last) = (roles.host().pool(), self.log_position().unwrap_or_default().segment());
        let (own, database) = (roles.host().member().host(), roles.host().member().database());
        let mut holds = Vec::new();
        // Suspects hold, too.
        for view in pool.hosts()?.iter().filter(|view| view.host != own && view.ident.database == database) {
            let main = owed.iter().filter(|since| view.gen_held.0 < u64::from(since.0)).count() as u64;
            let needed = pool.layout().host_number(view.host.slot, HostNumber::LogNeeded);
            let needed = pool.told(pool.books().load(needed))?.0;
            let behind = if needed == 0 { 0 } else { last.saturating_sub(needed) };
            holds.push(HostHolds {
                slot: view.host.slot.0,
                life: view.host.incarnation.0,
                main_bytes: main * pool.extent_bytes(),
                log_bytes: behind * pool.extent_bytes(),
            });
        }
        Ok(Some(holds))
    }
}

/// Readers that hold too much, at a primary.
pub(super) struct Bounds {
    watcher: Watcher,
    /// Since when.
    over: HashMap<Host, Instant>,
    /// Those that were told to end, and when.
    suspected: HashMap<Host, Instant>,
}

impl Bounds {
    pub fn new(roles: &Roles) -> Bounds {
        let watcher = Watcher::new(Arc::clone(roles.host().pool()));
        Bounds { watcher, over: HashMap::new(), suspected: HashMap::new() }
    }

    /// Sends readers away that have held too much for a while.
    pub fn look(&mut self, roles: &Roles, database: &Database) -> Result<()> {
        let pool = roles.host().pool();
        let hosts = pool.hosts()?;
        self.over.retain(|host, _| hosts.iter().any(|view| view.host == *host));
        self.suspected.retain(|host, _| hosts.iter().any(|view| view.host == *host));
        if !hosts.iter().any(is_reader) {
            return Ok(());
        }
        // Whose lock was seen held can be killed.
        self.watcher.look(roles.host_timeout)?;
        let bound = match roles.reader_hold_max {
            Some(bound) => bound,
            None => pool.room()?.0 * pool.extent_bytes() / HOLD_PART,
        };
        let Some(holds) = database.host_holds()? else { return Ok(()) };
        let patience = roles.host_timeout.max(OVER_TIME_MIN);
        for view in hosts.iter().filter(|view| is_reader(view)) {
            let of = holds.iter().find(|of| (of.slot, of.life) == (view.host.slot.0, view.host.incarnation.0));
            let bytes = of.map_or(0, |of| of.main_bytes + of.log_bytes);
            if view.ident.state == HostState::Suspect {
                let since = *self.suspected.entry(view.host).or_insert_with(Instant::now);
                if since.elapsed() >= patience {
                    self.suspected.insert(view.host, Instant::now());
                    self.end(roles, view.host)?;
                }
            } else if bytes <= bound {
                self.over.remove(&view.host);
            } else if self.over.entry(view.host).or_insert_with(Instant::now).elapsed() >= patience {
                let name = view.text.as_ref().map_or("", |text| text.name.as_str());
                let (held, bound) = (ByteSize(bytes), ByteSize(bound));
                tracing::warn!(
                    "reader \"{name}\" ({}) is sent away: {held} of the pool are kept for it, and it may hold {bound} (pool.reader_hold_max)",
                    view.host
                );
                self.watcher.suspect(view.host)?;
            }
        }
        Ok(())
    }

    /// Makes sure that one is dead which was told to end and has not: what is kept for it goes back then.
    fn end(&mut self, roles: &Roles, host: Host) -> Result<()> {
        match self.watcher.kill(host, END_WAIT)? {
            Some(death) => {
                tracing::warn!("{host}, a reader that did not end, was killed");
                self.watcher.bury(host, &death).map(drop)
            }
            // Its process is another kernel's, or another namespace's.
            None => roles.fence_host(host),
        }
    }
}
