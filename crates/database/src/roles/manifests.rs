//! The thread that writes manifests while this process is primary, and what of them a process that follows still holds.

use super::{HostRole, Roles};
use crate::Database;
use crate::durability::tier1::{Checkpoints, FoundManifest, Written};
use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tidepool_base::{CommitTs, Error, Result, SqlState};
use tidepool_log::Primary;
use tidepool_pool::member::Member;
use tidepool_pool::words::{Extent, Generation, Root};

/// How often it is asked whether the log is long.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Of the time one in so many parts is spent with writing manifests, at most.
const SHARE: u32 = 10;

/// Begins to write manifests for a database that has just become primary.
pub(super) fn start(roles: &Arc<Roles>, database: &Arc<Database>, primary: &Primary) -> Result<()> {
    let member = roles.host().member();
    let checkpoints = Checkpoints::new(database, member, roles.places(), primary)?;
    let checkpoints = Arc::new(checkpoints);
    roles.checkpoints.set(Arc::clone(&checkpoints)).map_err(|_| Error::internal("manifests are written already"))?;
    #[cfg(test)]
    if crate::stress::is_stepwise() {
        return Ok(());
    }
    let (weak, of_thread) = (Arc::downgrade(database), Arc::clone(roles));
    let thread = std::thread::Builder::new()
        .name("manifests".to_owned())
        .spawn(move || write_on(&of_thread, &checkpoints, &weak))
        .map_err(|error| Error::io("start the thread that writes manifests", &error))?;
    roles.state.lock().threads.push(thread);
    Ok(())
}

fn write_on(roles: &Roles, checkpoints: &Checkpoints, database: &Weak<Database>) {
    let mut failing = false;
    let (mut last, mut pause) = (Instant::now(), roles.tier1_interval);
    loop {
        {
            let mut state = roles.state.lock();
            if !state.stopped {
                roles.changed.wait_for(&mut state, LOOK_INTERVAL.min(roles.tier1_interval));
            }
            if state.stopped || roles.role() == HostRole::Fenced {
                return;
            }
        }
        let Some(database) = database.upgrade() else { return };
        let is_long = database.log.get().is_some_and(|log| log.wants_checkpoint());
        if roles.role() != HostRole::Primary || !(is_long || last.elapsed() >= pause) {
            continue;
        }
        let begun = Instant::now();
        match checkpoints.write(&database) {
            Ok(written) => {
                failing = false;
                if let Some(Written { generation, commit_ts, freed, recycled }) = written {
                    let ms = begun.elapsed().as_millis() as u64;
                    tracing::debug!(
                        generation = generation.0,
                        ts = commit_ts.0,
                        freed,
                        recycled,
                        ms,
                        "a manifest is in force"
                    );
                }
            }
            Err(error) if error.code() == SqlState::CRASH_SHUTDOWN => return drop(roles.fence()),
            Err(error) => {
                // Once until it works again.
                if !std::mem::replace(&mut failing, true) {
                    tracing::error!("a manifest was not written to the pool: {error}");
                }
            }
        }
        last = Instant::now();
        pause = roles.tier1_interval.max(begun.elapsed() * SHARE);
    }
}

/// What a process that follows still may read of what older manifests name.
#[derive(Debug, Default)]
pub(super) struct Holding {
    held: Option<Generation>,
    /// A later root, to be held once whatever was seen up to a timestamp is not looked at any more; and what it names.
    waits: Option<(Generation, CommitTs, HashSet<Extent>)>,
    looked: Option<Instant>,
}

impl Holding {
    /// Whether it is looked the next time, however long ago it was the last time.
    #[cfg(test)]
    pub fn set_due(&mut self, is_due: bool) {
        self.looked = (!is_due).then(|| Instant::now() + Duration::from_secs(3600));
    }

    /// Looks whether the root in force can be held in place of an older one: when everything up to its position is applied,
    /// mains have been adopted, and nobody looks at anything older any more.
    pub fn look(&mut self, roles: &Roles, database: &Database, applied: CommitTs) -> Result<()> {
        if self.looked.is_some_and(|looked| looked.elapsed() < LOOK_INTERVAL) {
            return Ok(());
        }
        self.looked = Some(Instant::now());
        let member = roles.host().member();
        #[cfg(test)]
        if crate::stress::is_left_out("hold on main") {
            return member.raise_hold(member.root()?.generation);
        }
        if let Some((generation, since, named)) = &self.waits {
            let transactions = database.transactions();
            let is_past = transactions.horizon() > *since || transactions.advance_horizon() > *since;
            if is_past || uses_only(roles, database, named) {
                member.raise_hold(*generation)?;
                (self.held, self.waits) = (Some(*generation), None);
            }
            return Ok(());
        }
        let root = member.root()?;
        if root.place == Root::NEW.place || self.held == Some(root.generation) {
            return Ok(());
        }
        let Some(found) = manifest_of(member, root)? else { return Ok(()) };
        if applied < found.header.commit_ts || !database.unfinished_merges().is_empty() {
            return Ok(());
        }
        let named = found.view()?.named_extents().collect();
        self.waits = Some((root.generation, applied, named));
        Ok(())
    }
}

/// The manifest that a root names, unless another root is in force by now, or it is damaged.
fn manifest_of(member: &Member, root: Root) -> Result<Option<FoundManifest>> {
    let found = FoundManifest::in_force(member)?;
    Ok(found.filter(|found| found.root == root && !found.is_before))
}

fn uses_only(roles: &Roles, database: &Database, named: &HashSet<Extent>) -> bool {
    let spaces = database.tablespaces().list();
    let mut all = spaces.iter().chain([roles.places().space()]);
    all.all(|space| space.used_extents().iter().all(|extent| named.contains(extent)))
}
