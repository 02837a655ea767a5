//! What a primary does for hosts that follow it and change no words but their own page's: it puts a mark into the log where statements
//! there wait for a position, and grants readers memory of the pool.
//!
//! A thread looks at the pages of these hosts, every millisecond while there are any. What a host asks for it says in a
//! number of its page, so that nobody waits for a host that asks for nothing, sleeps or dies.

use super::readers::Bounds;
use super::{HostRole, Roles};
use crate::Database;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tidepool_base::{CommitTs, Error, Result};
use tidepool_pool::layout::HostNumber;
use tidepool_pool::member::Member;
use tidepool_pool::reader::{Asked, asked_of, nobody_else_reigned};
use tidepool_pool::words::{Host, HostState};

/// Between two looks at what hosts ask for: while there are any, and otherwise.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
const LOOK_INTERVAL_ALONE: Duration = Duration::from_millis(20);

/// Between two looks which hosts there are.
const HOSTS_INTERVAL: Duration = Duration::from_millis(20);

/// Between two looks at what is kept for readers.
const BOUNDS_INTERVAL: Duration = Duration::from_millis(200);

/// A mark is followed by another one where the first did not do.
const MARK_AGAIN: Duration = Duration::from_millis(2);

/// Extents that a host is granted at a time, at most.
const GRANT_MAX: u64 = 64;

/// Of a host that follows.
#[derive(Default)]
pub(super) struct Served {
    /// The last thing that it was granted room for.
    granted: Option<u64>,
    /// The position that it waits for, what it shows once it has come to that, and when a mark was made for it last.
    wanted: Option<(u64, CommitTs, Option<Instant>)>,
}

/// Begins to serve hosts of a database that has just become primary.
pub(super) fn start(roles: &Arc<Roles>, database: &Arc<Database>) -> Result<()> {
    #[cfg(test)]
    if crate::stress::is_stepwise() {
        return Ok(());
    }
    let (weak, of_thread) = (Arc::downgrade(database), Arc::clone(roles));
    let thread = std::thread::Builder::new()
        .name("followers".to_owned())
        .spawn(move || serve(&of_thread, &weak))
        .map_err(|error| Error::io("start the thread that serves other hosts", &error))?;
    roles.state.lock().threads.push(thread);
    Ok(())
}

fn serve(roles: &Roles, database: &Weak<Database>) {
    let mut hosts: HashMap<Host, Served> = HashMap::new();
    let (mut looked, mut failing) = (None::<Instant>, false);
    let (mut bounds, mut bounded) = (Bounds::new(roles), Instant::now());
    loop {
        {
            let mut state = roles.state.lock();
            let interval = if hosts.is_empty() { LOOK_INTERVAL_ALONE } else { LOOK_INTERVAL };
            if !state.stopped {
                roles.changed.wait_for(&mut state, interval);
            }
            if state.stopped || roles.role() == HostRole::Fenced {
                return;
            }
        }
        let Some(database) = database.upgrade() else { return };
        if looked.is_none_or(|looked| looked.elapsed() >= HOSTS_INTERVAL) {
            looked = Some(Instant::now());
            let there = roles.others();
            let follows = |state: HostState| matches!(state, HostState::Attached | HostState::Following);
            let there = there.iter().filter(|view| follows(view.ident.state)).map(|view| view.host);
            hosts = there.map(|host| (host, hosts.remove(&host).unwrap_or_default())).collect();
        }
        let is_due = bounded.elapsed() >= BOUNDS_INTERVAL;
        if is_due {
            bounded = Instant::now();
        }
        let kept_within = if is_due { bounds.look(roles, &database) } else { Ok(()) };
        let served = hosts.iter_mut().try_for_each(|(host, served)| roles.serve_host(&database, *host, served));
        match served.and(kept_within) {
            Ok(()) => failing = false,
            Err(error) => {
                // Once until it works again.
                if !std::mem::replace(&mut failing, true) {
                    tracing::error!("could not serve the hosts that follow this one: {error}");
                }
            }
        }
    }
}

impl Roles {
    /// Does for a host what it asks for now.
    pub(super) fn serve_host(&self, database: &Database, host: Host, served: &mut Served) -> Result<()> {
        self.mark_for(database, host, served)?;
        let member = self.host().member();
        if let Some(asked) = asked_of(member.pool(), host)? {
            grant(member, host, asked, served)?;
        }
        Ok(())
    }

    /// Sees to it that a host which waits for a position comes to show it.
    fn mark_for(&self, database: &Database, host: Host, served: &mut Served) -> Result<()> {
        let (pool, books) = (self.host().pool(), self.host().pool().books());
        let number = |which| pool.told(books.load(books.layout.host_number(host.slot, which))).map(|number| number.0);
        let wanted = number(HostNumber::Wanted)?;
        if wanted == 0 || wanted > database.written_lsn().0 {
            return Ok(());
        }
        let Some(log) = database.log.get() else { return Ok(()) };
        let (_, shows, marked) = match &mut served.wanted {
            Some(known) if known.0 == wanted => known,
            // What is durable now has all that is in the log up to there.
            _ => served.wanted.insert((wanted, log.durable(), None)),
        };
        let is_due = marked.is_none_or(|marked| marked.elapsed() >= MARK_AGAIN);
        if is_due && CommitTs(number(HostNumber::AppliedTs)?) < *shows {
            database.mark()?;
            *marked = Some(Instant::now());
        }
        Ok(())
    }
}

/// Takes in what a host gives back, and then grants it what it asks for.
fn grant(member: &Member, host: Host, asked: Asked, served: &mut Served) -> Result<()> {
    // A host that was primary before, and sleeps, may have seen what this one sees.
    if !nobody_else_reigned(member.pool(), member.host(), member.database())? {
        return Ok(());
    }
    if let Some(extent) = asked.returned {
        return member.take_in(host, extent).map(drop);
    }
    if asked.count > 0 && served.granted != Some(asked.number) {
        served.granted = Some(asked.number);
        member.grant(host, asked.count.min(GRANT_MAX) as usize)?;
    }
    Ok(())
}
