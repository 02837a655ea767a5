//! The thread that looks at other hosts: whether the primary can go on, whether others took this host's term or life for over,
//! and who is dead, so that what it had is free.

use super::shown::Request;
use super::{HostRole, Roles};
use crate::config::PoolRole;
use crate::pool_host::PoolHost;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result};
use tidepool_pool::liveness::{Finding, Watcher};
use tidepool_pool::words::{Host, Reign, TermState};

/// Between two looks: a primary that is killed is noticed sooner, as the kernel wakes the thread.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// The same, while the primary passes its clients' sessions to this host: they wait for it.
const LOOK_INTERVAL_ANNOUNCED: Duration = Duration::from_millis(1);
const ANNOUNCED_MAX: Duration = Duration::from_secs(60);

/// Between two looks for hosts that have died.
const BURY_INTERVAL: Duration = Duration::from_millis(40);

/// Between two looks whether the pool is nearly full.
const RELIEF_INTERVAL: Duration = Duration::from_millis(100);

/// Between two runs of the fence command for one host, where it fails.
const FENCE_INTERVAL: Duration = Duration::from_secs(5);

/// A fence command that has not ended by then is run again.
const FENCE_RUNS_MAX: Duration = Duration::from_secs(3600);

/// How long a process that was sent a signal is waited for at a time.
const END_WAIT: Duration = Duration::from_millis(20);

/// The term that is to be ended by a host that is to be primary where there is none. `None`: its primary is alive. Waits until
/// either is known.
pub(super) fn term_to_end(host: &PoolHost, watcher: &mut Watcher, silence: Duration) -> Result<Option<Reign>> {
    let mut first = None;
    loop {
        let seen = host.member().reign()?;
        let Some(primary) = host.host_of(seen)? else { return Ok(Some(seen)) };
        let beats = host.beats_of(primary)?;
        let findings = watcher.look(silence)?;
        match findings.iter().find(|(there, _)| *there == primary) {
            // Its slot has another life, or none.
            None => return Ok(Some(seen)),
            Some((_, Finding::Dead(_) | Finding::Silent)) => return Ok(Some(seen)),
            Some((_, Finding::Alive)) => {}
        }
        // It has beaten since it was looked at first.
        if *first.get_or_insert((primary, beats)) != (primary, beats) {
            return Ok(None);
        }
        watcher.wait_for_end(primary, LOOK_INTERVAL.min(silence / 8))?;
    }
}

pub(super) fn start(roles: &Arc<Roles>, watcher: Watcher) -> Result<()> {
    let of_thread = Arc::clone(roles);
    let thread = std::thread::Builder::new()
        .name("pool".to_owned())
        .spawn(move || watch(&of_thread, watcher))
        .map_err(|error| Error::io("start the thread that watches the pool", &error))?;
    roles.state.lock().threads.push(thread);
    Ok(())
}

fn watch(roles: &Roles, mut watcher: Watcher) {
    let (mut failing, mut last_burial, mut last_relief) = (false, Instant::now(), Instant::now());
    loop {
        if roles.state.lock().stopped {
            return;
        }
        let mut look = || -> Result<()> {
            roles.host().stop_if_dead()?;
            // Says that it is fenced, if it is.
            let _ = roles.check();
            if last_burial.elapsed() >= BURY_INTERVAL {
                last_burial = Instant::now();
                roles.host().bury_the_dead(&mut watcher)?;
            }
            if last_relief.elapsed() >= RELIEF_INTERVAL {
                last_relief = Instant::now();
                roles.host().relieve()?;
            }
            roles.confirm_predecessor(&mut watcher)?;
            match roles.role() {
                HostRole::Following if !matches!(roles.begins_as, PoolRole::Reader | PoolRole::Copy) => {
                    roles.look_at_primary(&mut watcher)
                }
                _ => {
                    roles.pause();
                    Ok(())
                }
            }
        };
        match look() {
            Ok(()) => failing = false,
            Err(error) => {
                // Once until it works again.
                if !std::mem::replace(&mut failing, true) {
                    tracing::error!("could not look at the pool's other hosts: {error}");
                }
                std::thread::sleep(LOOK_INTERVAL);
            }
        }
    }
}

impl Roles {
    /// Looks whether the primary can go on, for as long as one look lasts.
    fn look_at_primary(&self, watcher: &mut Watcher) -> Result<()> {
        let seen = self.host().member().reign()?;
        let Some(primary) = self.host().host_of(seen)? else {
            // It has handed its term in, or none had one yet; or it is so dead that its slot is free.
            let is_over = seen.state == TermState::Ended;
            if !is_over || self.begins_as != PoolRole::Standby {
                self.suspect(seen);
            }
            self.pause();
            return Ok(());
        };
        let request = self.request()?;
        if request.is_to_end(seen.term.0) {
            tracing::info!(term = seen.term.0, "the primary, {primary}, hands over to this host");
            self.state.lock().is_asked = true;
            self.changed.notify_all();
        }
        let time = self.look_interval(request).min(self.host_timeout / 8);
        // The kernel's word is enough: the take-over does not wait for a look at all hosts.
        let is_over = watcher.wait_for_end(primary, time)? || {
            let findings = watcher.look(self.host_timeout)?;
            !findings.iter().any(|(there, finding)| *there == primary && matches!(finding, Finding::Alive))
        };
        if is_over {
            tracing::warn!(term = seen.term.0, "the primary, {primary}, is dead or silent");
            self.suspect(seen);
            let mut state = self.state.lock();
            if self.role() == HostRole::Following && !state.stopped {
                self.changed.wait_for(&mut state, LOOK_INTERVAL);
            }
        }
        Ok(())
    }

    /// Until the next look at the primary, which asks this.
    fn look_interval(&self, request: Request) -> Duration {
        let mut state = self.state.lock();
        if !request.is_announced() {
            state.announced = None;
            return LOOK_INTERVAL;
        }
        let (announced, since) = state.announced.unwrap_or((request, Instant::now()));
        let since = if announced == request { since } else { Instant::now() };
        state.announced = Some((request, since));
        // A primary that died meanwhile has left its announcement behind.
        if since.elapsed() < ANNOUNCED_MAX { LOOK_INTERVAL_ANNOUNCED } else { LOOK_INTERVAL }
    }

    /// Has a command make sure that a host is dead, if one is configured; what it owned is free then. The command takes its time on a thread of
    /// its own. One that failed is run again after a while.
    pub(super) fn fence_host(&self, host: Host) -> Result<()> {
        let Some(command) = self.fence_command.clone() else { return Ok(()) };
        {
            let mut fencing = self.fencing.lock();
            if fencing.is_some_and(|(_, since)| since.elapsed() < FENCE_INTERVAL) {
                return Ok(());
            }
            // While it runs, no other is begun.
            *fencing = Some((host, Instant::now() + FENCE_RUNS_MAX));
        }
        let (pool, fencing) = (Arc::clone(self.host().pool()), Arc::clone(&self.fencing));
        let run = move || {
            let watcher = Watcher::new(pool);
            tracing::warn!("{host} is silent, and cannot be killed from here: the fence command runs");
            match watcher.fence(host, &command).and_then(|death| watcher.bury(host, &death)) {
                Ok(_) => tracing::warn!("{host} is dead, says the fence command: what it owned is free"),
                Err(error) => tracing::error!("{error}"),
            }
            *fencing.lock() = Some((host, Instant::now()));
        };
        let spawned = std::thread::Builder::new().name("fence".to_owned()).spawn(run);
        spawned.map(drop).map_err(|error| Error::io("start a thread", &error))
    }

    /// Between two looks, unless something changes.
    fn pause(&self) {
        let mut state = self.state.lock();
        if !state.stopped {
            self.changed.wait_for(&mut state, LOOK_INTERVAL);
        }
    }

    /// Sees to it that whom this host took over from is known to be dead: one that was stopped is ended.
    fn confirm_predecessor(&self, watcher: &mut Watcher) -> Result<()> {
        let Some(predecessor) = self.state.lock().predecessor else { return Ok(()) };
        if predecessor == self.host().member().host() || !self.host().is_there(predecessor)? {
            self.state.lock().predecessor = None;
            return Ok(());
        }
        let finding = watcher.look(self.host_timeout)?.into_iter().find(|(there, _)| *there == predecessor);
        match finding {
            Some((_, Finding::Dead(death))) => {
                watcher.bury(predecessor, &death)?;
            }
            // It beats no more, and puts another process in its place.
            Some((_, Finding::Silent)) if self.host().is_leaving(predecessor)? => {}
            Some((_, Finding::Silent)) => {
                match watcher.kill(predecessor, END_WAIT)? {
                    Some(death) => {
                        tracing::warn!("{predecessor}, which was silent, was killed");
                        watcher.bury(predecessor, &death)?;
                    }
                    // Its process is another kernel's, or another namespace's: it may wake, so what it owns is in quarantine.
                    None => {
                        if watcher.suspect(predecessor)? {
                            tracing::warn!(
                                "{predecessor}, which was taken over from, may wake: what it owns is in quarantine"
                            );
                        }
                        self.fence_host(predecessor)?;
                    }
                }
            }
            // It is told by its next look at the term, and ends by itself.
            _ => {}
        }
        Ok(())
    }
}
