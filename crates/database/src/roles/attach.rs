//! How a process comes by what the pool has of a database: the way in for start, standby and failover.

use super::places::PoolGroups;
use crate::follow::Follower;
use crate::pool_host::PoolHost;
use crate::{Config, Database};
use std::sync::Arc;
use tidepool_base::{CommitTs, Error, Result};
use tidepool_log::PoolTail;
use tidepool_log::files::SystemFiles;
use tidepool_pool::words::HostState;

/// Threads that apply rows, at most: they share the machine with statements that read.
const APPLY_THREADS_MAX: usize = 4;

/// What applies the log, and where in it to go on.
pub(crate) struct Attached {
    pub follower: Follower,
    pub tail: PoolTail,
}

/// Makes a database of what the pool has, as of a state that its primary had, and what goes on from there. The host holds the
/// root in force, which it did when it joined.
pub(crate) fn attach(config: Config, host: &Arc<PoolHost>) -> Result<(Arc<Database>, Attached)> {
    let threads = config.threads.clamp(1, APPLY_THREADS_MAX);
    // There is no manifest yet: the log has everything, from its beginning on.
    let (from, after) = (None, CommitTs(0));
    let database = Database::open_as(config, Arc::new(SystemFiles), None, Some(after), Some(Arc::clone(host)))?;
    let roles = database.roles.as_ref().ok_or_else(|| Error::internal("a database without a role attaches"))?;
    let groups = PoolGroups { places: Arc::clone(roles.places()), database: Arc::downgrade(&database) };
    let follower = Follower::new(&database, Arc::new(groups), threads)?;
    let tail = PoolTail::attach(Arc::clone(host.member()), roles.identity(), from, after)?;
    host.advance(HostState::Following)?;
    Ok((database, Attached { follower, tail }))
}
