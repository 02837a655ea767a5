//! Room for other hosts of a pool: extents in which little is are emptied while everybody goes on.
//!
//! Where the pool is short of room ([`tidepool_pool::needs`]), a host that may write closes those extents of main in which least is,
//! and puts what lies there elsewhere: a range of rows at a time, as a merge does, so that nobody waits but for who changes
//! the table itself. An extent of which nothing is left goes back to the pool; if other hosts read it, once two manifests do not
//! name it.

use crate::catalog::relation::RelationName;
use crate::{Database, TableSize};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_heap::QueryHeap;
use tidepool_table::TableVersion;
use tidepool_tablespace::{Reshape, Tablespace};

/// After a round that moved something comes none for so long: what it freed goes back when manifests do not name it any more.
const ROUND_INTERVAL: Duration = Duration::from_secs(12);

/// What was moved is gone from where it was by then, unless statements under way still read it.
const LEFT_WITHIN: Duration = Duration::from_secs(2);

/// Hosts that have given nothing for so long have nothing to give.
const GIVEN_WITHIN: Duration = Duration::from_secs(15);

/// Between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// What `CALL tidepool.pool_yield` came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolYield {
    pub wanted_bytes: u64,
    /// Of the pool, now.
    pub free_bytes: u64,
    /// So much is free as was wanted.
    pub is_done: bool,
}

impl Database {
    /// Asks all hosts of the pool to give way until `bytes` of it are free, and waits for that: until it is so, or nobody gives any
    /// more. 55000 where there is no pool, 22023 where it is not so large; the error of `interrupted` ends the wait.
    pub fn pool_yield(&self, bytes: u64, interrupted: &dyn Fn() -> Result<()>) -> Result<PoolYield> {
        let host = self.pool().ok_or_else(|| {
            Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "this process is not attached to a pool")
                .with_hint("Start the server with --pool.")
        })?;
        let member = host.member();
        let extent_bytes = member.pool().extent_bytes();
        let wanted = bytes.div_ceil(extent_bytes);
        let size = member.pool_room()?.all;
        if wanted > size {
            return Err(Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("pool \"{}\" is smaller than what is to be free of it", member.pool().location()),
            )
            .with_detail(format!("It has {}.", ByteSize(size * extent_bytes))));
        }
        let _need = member.need(wanted)?;
        let (mut most, mut given) = (0, Instant::now());
        loop {
            let free = member.pool_room()?.free;
            if free > most {
                (most, given) = (free, Instant::now());
            }
            if free >= wanted || given.elapsed() >= GIVEN_WITHIN {
                let (wanted_bytes, free_bytes) = (wanted * extent_bytes, free * extent_bytes);
                return Ok(PoolYield { wanted_bytes, free_bytes, is_done: free >= wanted });
            }
            interrupted()?;
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// What the background thread does where the pool is short of room.
    pub(crate) fn give_way_if_short(self: &Arc<Self>) -> Result<()> {
        let Some(host) = self.pool().filter(|_| !self.transactions().is_following()) else { return Ok(()) };
        let lack = host.member().pool_room()?.lack();
        let mut round = self.condensed.lock();
        if lack == 0 || round.is_some_and(|last| last.elapsed() < ROUND_INTERVAL) {
            return Ok(());
        }
        let moved = self.give_way(usize::try_from(lack).unwrap_or(usize::MAX))?;
        if moved > 0 {
            *round = Some(Instant::now());
            tracing::info!("{moved} row groups were moved, so that extents of the pool are free for others");
        }
        Ok(())
    }

    /// Empties extents in which little is, so that `extents` more are free, or as many as that gains. How many row groups were
    /// moved.
    fn give_way(self: &Arc<Self>, extents: usize) -> Result<usize> {
        let mut moved = 0;
        for space in self.tablespaces().list() {
            let reshape = match space.condense(extents) {
                Ok(Some(reshape)) => reshape,
                // It is being altered, which moves what lies there as well.
                Err(error) if error.code() == SqlState::OBJECT_IN_USE => continue,
                nothing => {
                    nothing?;
                    continue;
                }
            };
            match self.move_row_groups(&space) {
                Ok(count) => moved += count,
                // It moves what it can.
                Err(error) if error.is_of_room() => tracing::debug!(%error, "no room to empty an extent"),
                Err(error) => return Err(error),
            }
            self.let_go_of_left(&space, &reshape);
        }
        Ok(moved)
    }

    /// Waits a moment for those who look at what lay in closed memory before.
    fn let_go_of_left(&self, space: &Tablespace, reshape: &Reshape<'_>) {
        let deadline = Instant::now() + LEFT_WITHIN;
        loop {
            self.vacuum();
            self.let_go_of_unused();
            self.free_retired_in(space.id());
            if reshape.left_bytes() == 0 || Instant::now() >= deadline || self.background.is_stopped() {
                return;
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Puts row groups elsewhere that lie in memory which `space` has closed. How many.
    fn move_row_groups(self: &Arc<Self>, space: &Tablespace) -> Result<usize> {
        let version = self.version();
        let lies_there = |table: &Arc<TableVersion>| table.row_groups.iter().any(|group| group.must_move(space));
        let tables: Vec<RelationName> =
            version.versions().filter(lies_there).map(|table| (&*table.def).into()).collect();
        // It would keep the horizon where it is.
        drop(version);
        // Whoever changes the table may take long: next time, then.
        let busy = || Err(Error::new(SqlState::LOCK_NOT_AVAILABLE, "the table is being changed"));
        let mut moved = 0;
        for name in tables {
            match self.move_row_groups_of(&name, space, &busy) {
                Ok(count) => moved += count,
                Err(error) if matches!(error.code(), SqlState::UNDEFINED_TABLE | SqlState::LOCK_NOT_AVAILABLE) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(moved)
    }

    fn move_row_groups_of(
        self: &Arc<Self>,
        name: &RelationName,
        space: &Tablespace,
        impatient: &dyn Fn() -> Result<()>,
    ) -> Result<usize> {
        let mut transaction = self.begin()?;
        transaction.lock_rows_of(name, impatient)?;
        let state = transaction.state();
        let Some(table) = state.table(name) else { return Ok(0) };
        QueryHeap::outside(|| {
            let worker = self.transactions().worker()?;
            let version = TableVersion::of(table, &Arc::new(worker.hold_now()));
            let groups = version.row_groups.iter().zip(version.ranges());
            let closed = groups.filter(|(group, _)| group.must_move(space));
            let ranges: Vec<(u64, usize)> = closed.map(|(group, number)| (*number, group.rows())).collect();
            let progress =
                self.progress().start("MOVE", &state.shown_name(&table.def), TableSize::of(&version).main_bytes());
            drop(version);
            let mut moved = 0;
            let interrupted = || match self.background.is_stopped() {
                true => Err(Error::new(SqlState::ADMIN_SHUTDOWN, "the server is shutting down")),
                false => Ok(()),
            };
            let merged = self.merge_ranges(&worker, table, ranges, &progress, &interrupted, &mut |group| {
                let elsewhere = group.moved_as(self.next_row_group_id(), space)?;
                moved += usize::from(elsewhere.is_some());
                Ok(elsewhere)
            });
            worker.rest();
            merged.map(|_| moved)
        })
    }
}
