//! How a process comes by what the pool has of a database: the way in for start, standby and failover.

use super::places::PoolGroups;
use crate::database::Follows;
use crate::durability::storage::Storage;
use crate::durability::tier1::FoundManifest;
use crate::follow::Follower;
use crate::pool_host::PoolHost;
use crate::{Config, Database};
use std::sync::Arc;
use std::time::Duration;
use tidepool_base::{CommitTs, Error, Result, SqlState};
use tidepool_log::files::SystemFiles;
use tidepool_log::{DatabaseIdentity, PoolSource, PoolTail};

/// Threads that apply rows, at most: they share the machine with statements that read.
pub(super) const APPLY_THREADS_MAX: usize = 4;

/// How often a host looks whether a database that is brought into the pool has come as a whole.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// What applies the log, and where in it to go on.
pub(crate) struct Attached {
    pub follower: Follower,
    pub tail: PoolTail,
}

/// Makes a database of what the pool has, as of a state that its primary had, and what goes on from there. The host holds the
/// root in force, which it did when it joined. `storage`: of the data folder beside the pool.
pub(crate) fn attach(
    config: Config,
    host: &Arc<PoolHost>,
    storage: Option<Storage>,
) -> Result<(Arc<Database>, Attached)> {
    let threads = config.threads.clamp(1, APPLY_THREADS_MAX);
    let found = match FoundManifest::in_force(host.member())? {
        None => first_manifest(host)?,
        found => found,
    };
    let after = found.as_ref().map_or(CommitTs(0), |found| found.header.commit_ts);
    // Where there is no manifest, the log has everything, from its beginning on.
    let from = found.as_ref().and_then(|found| found.header.log).map(|log| (log.term, log.segment));
    let follows = Follows {
        storage,
        applied: after,
        host: Some(Arc::clone(host)),
        catalogue: found.as_ref().map(|found| &found.catalogue),
    };
    let database = Database::open_as(config, Arc::new(SystemFiles), None, Some(follows))?;
    let roles = database.roles.as_ref().ok_or_else(|| Error::internal("a database without a role attaches"))?;
    if let Some(found) = &found {
        let attached = database.attach(host.member(), roles.places(), found)?;
        tracing::info!(
            generation = found.header.generation,
            tables = attached.tables,
            ranges = attached.ranges,
            rows = attached.image_rows,
            us = attached.took.as_micros() as u64,
            "attached to the pool's manifest"
        );
    }
    let groups = PoolGroups { places: Arc::clone(roles.places()), database: Arc::downgrade(&database) };
    let follower = Follower::new(&database, Arc::new(groups), threads)?;
    let tail = PoolTail::attach(Arc::clone(host.member()), roles.identity(), from, after)?;
    Ok((database, Attached { follower, tail }))
}

/// The first manifest of a database that is brought into the pool from elsewhere, which its log lacks: once it is in force. `None`: the
/// log has everything from its beginning on. 55000 where the host that brought it in has gone before it was done.
fn first_manifest(host: &PoolHost) -> Result<Option<FoundManifest>> {
    let member = host.member();
    let source = PoolSource::new(Arc::clone(member));
    let identity = DatabaseIdentity(host.database_identity()?);
    let mut is_said = false;
    loop {
        let has_primary = host.host_of(member.reign()?)?.is_some();
        let begins_after = source.begins_after(identity)?;
        // Last: it may have come into force meanwhile, and its primary gone.
        if let Some(found) = FoundManifest::in_force(member)? {
            return Ok(Some(found));
        }
        if begins_after.is_none_or(|ts| ts == CommitTs(0)) {
            return Ok(None);
        }
        if !has_primary {
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                "the database was being brought into the pool, and is not there as a whole",
            )
            .with_detail("The host that filled the pool from its data folder ended before it was done.")
            .with_hint("Start the server with that data folder first."));
        }
        if !std::mem::replace(&mut is_said, true) {
            tracing::info!("waiting for the host that fills the pool from its data folder");
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}
