//! How a process comes by what the pool has of a database: the way in for start, standby and failover.

use super::places::PoolGroups;
use crate::database::Follows;
use crate::durability::storage::Storage;
use crate::durability::tier1::FoundManifest;
use crate::follow::Follower;
use crate::pool_host::PoolHost;
use crate::{Config, Database};
use std::sync::Arc;
use tidepool_base::{CommitTs, Error, Result};
use tidepool_log::PoolTail;
use tidepool_log::files::SystemFiles;
use tidepool_pool::words::HostState;

/// Threads that apply rows, at most: they share the machine with statements that read.
pub(super) const APPLY_THREADS_MAX: usize = 4;

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
    let found = FoundManifest::in_force(host.member())?;
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
    host.advance(HostState::Following)?;
    Ok((database, Attached { follower, tail }))
}
