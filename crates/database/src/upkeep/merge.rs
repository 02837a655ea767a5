//! Merging: rows of delta into main, while everybody goes on.

use crate::catalog::relation::RelationName;
use crate::progress::Progress;
use crate::{Database, TableSize};
use arrow_array::RecordBatch;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidepool_base::{CommitTs, Error, Result, SqlState};
use tidepool_heap::QueryHeap;
use tidepool_table::rows::{Merged, NewMain, RowStore};
use tidepool_table::{MergePolicy, ROW_GROUP_ROWS, RowGroup, Table, TableVersion};
use tidepool_txn::Worker;

/// Rows of delta from which on a table is merged without being told to.
const MERGE_ROWS: u64 = ROW_GROUP_ROWS as u64;

/// As `MERGE_ROWS`, of a table that nobody has written to for `COLD_AFTER`.
const MERGE_ROWS_COLD: u64 = ROW_GROUP_ROWS as u64 / 16;
const COLD_AFTER: Duration = Duration::from_secs(30);

/// Rows that are written one after the other are mostly changed again soon, if ever: a queue's when it comes to them, a counter's all the time. So
/// a range of rows of which some were written so lately is left for another time.
const COOL_AFTER: Duration = if cfg!(test) { Duration::ZERO } else { Duration::from_secs(1) };

/// How long a merge waits for those who still look at what was before. Then the background thread does.
const LOOKS: u32 = 10;
const LOOK_SLICE: Duration = Duration::from_millis(2);

impl Database {
    /// Moves the rows of a table's delta into main that were committed before anybody's snapshot. Not transactional.
    /// Returns how many. Others read and write meanwhile; only who changes the table itself is waited for, and waits.
    /// Of a partitioned table, all partitions' rows.
    pub fn merge(self: &Arc<Self>, table: impl Into<RelationName>) -> Result<u64> {
        self.merge_unless(table, &|| Ok(()))
    }

    /// As `merge`; the error of `interrupted` ends it, and what is merged by then stays so.
    pub fn merge_unless(
        self: &Arc<Self>,
        table: impl Into<RelationName>,
        interrupted: &dyn Fn() -> Result<()>,
    ) -> Result<u64> {
        let name = table.into();
        let state = self.state();
        let tree = state.table(&name).map(|table| state.partition_tree(&table.def)).transpose()?.flatten();
        let merge = |name| self.merge_one(name, Duration::ZERO, interrupted, interrupted);
        let Some(tree) = tree else { return merge(name) };
        let leaves = tree.leaves().iter().filter_map(|leaf| state.table_of_id(*leaf));
        leaves.map(|leaf| merge(RelationName::from(&*leaf.def))).sum()
    }

    /// As `merge`, of ranges that nobody has written to for `cool`; the error of `impatient` ends the wait for who changes the table, that of
    /// `interrupted` the rest.
    fn merge_one(
        self: &Arc<Self>,
        name: RelationName,
        cool: Duration,
        impatient: &dyn Fn() -> Result<()>,
        interrupted: &dyn Fn() -> Result<()>,
    ) -> Result<u64> {
        let mut transaction = self.begin()?;
        transaction.lock_rows_of(&name, impatient)?;
        let state = transaction.state();
        let table = state.table(&name).ok_or_else(|| {
            Error::new(SqlState::UNDEFINED_TABLE, format!("relation \"{}\" does not exist", name.name))
        })?;
        QueryHeap::outside(|| {
            let mut worker = self.transactions().worker()?;
            let merged = self.merge_rows(&mut worker, table, &state.shown_name(&table.def), cool, interrupted);
            worker.rest();
            merged
        })
    }

    fn merge_rows(
        &self,
        worker: &mut Worker,
        table: &Arc<Table>,
        shown: &str,
        cool: Duration,
        interrupted: &dyn Fn() -> Result<()>,
    ) -> Result<u64> {
        let version = TableVersion::of(table, &Arc::new(worker.hold_now()));
        let mut headed = version.headed().to_vec();
        if !cool.is_zero() {
            let now = self.transactions().clock().now();
            let since = CommitTs(now.0.saturating_sub(cool.as_nanos() as u64));
            headed.retain(|(number, _)| !table.rows.is_hot(version.view(), *number, since));
        }
        if headed.is_empty() {
            return Ok(0);
        }
        let progress = self.progress().start("MERGE", shown, TableSize::of(&version).delta_bytes);
        // It would keep the horizon where it is.
        drop(version);
        table.rows.seal();
        self.merge_ranges(worker, table, headed, &progress, interrupted, &mut |_| Ok(None))
    }

    /// Merges ranges of rows, which are listed with how many rows of them are to be moved. `elsewhere`: as of
    /// [`RowStore::merge_range_moving`]. How many rows of ranges there are that have another main now.
    pub(super) fn merge_ranges(
        &self,
        worker: &Worker,
        table: &Arc<Table>,
        ranges: Vec<(u64, usize)>,
        progress: &Progress,
        interrupted: &dyn Fn() -> Result<()>,
        elsewhere: &mut dyn FnMut(&RowGroup) -> Result<Option<RowGroup>>,
    ) -> Result<u64> {
        let (mut moved, mut unfinished) = (0, Vec::new());
        let mut ended = Ok(());
        for (number, rows) in ranges {
            let mut merge = || {
                interrupted()?;
                let mut encode = |batch: &RecordBatch| {
                    let encode =
                        || RowGroup::encode(self.next_row_group_id(), batch, &table.placement, self.tablespaces());
                    match encode() {
                        Err(full) if full.is_of_room() && self.let_go_of_unused() => encode(),
                        encoded => encoded,
                    }
                };
                // Until it has its place. And before that one that was to be adopted.
                let mut told = None;
                let mut tell = |main: &NewMain| {
                    told = None;
                    told = self.log_main(table.rows.id(), number, main)?;
                    Ok(())
                };
                table.rows.merge_range_moving(worker, number, &mut encode, elsewhere, &mut tell)
            };
            let merged = match merge() {
                Ok(merged) => merged,
                Err(error) => {
                    ended = Err(error);
                    break;
                }
            };
            if let Merged::Replaced { .. } = merged {
                moved += rows as u64;
                unfinished.push((table.rows.clone(), number));
                progress.add(0, rows as u64);
            }
        }
        if moved > 0 {
            self.rows_changed();
        }
        for _ in 0..if ended.is_ok() { LOOKS } else { 0 } {
            unfinished.retain(|(rows, number)| !self.finish_merge(worker, rows, *number));
            if unfinished.is_empty() {
                break;
            }
            std::thread::sleep(LOOK_SLICE);
        }
        // Of a merge that ended early, too: what it replaced is to be taken out.
        self.unfinished.lock().append(&mut unfinished);
        ended.map(|()| moved)
    }

    /// Lets go of what is held for a restart only and is out of date. Says whether there was anything.
    pub(super) fn let_go_of_unused(&self) -> bool {
        self.storage.as_ref().is_some_and(|storage| storage.let_go_of_unused(&self.version()))
    }

    /// Frees what nobody sees any more: versions, what merges left, nodes of indexes.
    pub fn vacuum(&self) {
        self.finish_merges();
        self.collect();
        self.memories.lock().values().for_each(|memory| memory.trim());
        self.reclaim_indexes();
    }

    fn finish_merges(&self) {
        let _finishing = self.finishing.lock();
        let mut unfinished = std::mem::take(&mut *self.unfinished.lock());
        if unfinished.is_empty() {
            return;
        }
        // Not the keeper: who writes to the log may wait.
        match self.transactions().worker() {
            Ok(worker) => {
                unfinished.retain(|(rows, number)| !self.finish_merge(&worker, rows, *number));
                worker.rest();
            }
            Err(error) => tracing::debug!(%error, "merges are not finished yet"),
        }
        self.unfinished.lock().append(&mut unfinished);
    }

    /// Merges whose versions somebody may still look at, and mains that wait to be adopted.
    pub(crate) fn unfinished_merges(&self) -> Vec<(Arc<RowStore>, u64)> {
        let _finishing = self.finishing.lock();
        self.unfinished.lock().clone()
    }

    /// False: not yet.
    fn finish_merge(&self, worker: &Worker, rows: &RowStore, number: u64) -> bool {
        let mut told = None;
        let finished = rows.finish_merge_telling(worker, number, &mut |main| {
            told = self.log_main(rows.id(), number, main)?;
            Ok(())
        });
        drop(told);
        finished.unwrap_or_else(|error| {
            tracing::debug!(%error, "a main is not adopted yet");
            false
        })
    }

    /// Tables whose delta is to be moved into main, as their policies have it.
    fn to_be_merged(&self) -> Vec<(RelationName, Duration)> {
        let version = self.version();
        let mut quiet = self.quiet.lock();
        let now = Instant::now();
        let due = |table: &Arc<TableVersion>| {
            let writes = table.table().writes();
            let (before, since) = quiet.entry(table.def.id).or_insert((writes, now));
            if *before != writes {
                (*before, *since) = (writes, now);
            }
            match table.def.parameters.merge_policy() {
                MergePolicy::Never => false,
                MergePolicy::Immediate => table.delta_rows() > 0,
                MergePolicy::Auto if since.elapsed() >= COLD_AFTER => table.delta_rows() >= MERGE_ROWS_COLD,
                MergePolicy::Auto => table.delta_rows() >= MERGE_ROWS,
            }
        };
        let cool = |table: &Arc<TableVersion>| match table.def.parameters.merge_policy() {
            MergePolicy::Auto => COOL_AFTER,
            MergePolicy::Never | MergePolicy::Immediate => Duration::ZERO,
        };
        let due = version.versions().filter(due).map(|table| ((&*table.def).into(), cool(&table))).collect();
        quiet.retain(|table, _| version.table_by_id(*table).is_some());
        due
    }

    /// What the background thread does of it: ends merges that waited for somebody, frees what nobody looks at any
    /// more, and merges tables whose delta is large.
    pub(crate) fn tend_rows(self: &Arc<Self>) {
        self.vacuum();
        if self.transactions().is_following() {
            // It comes to have the other process's mains.
            return;
        }
        self.tick();
        let large = self.to_be_merged();
        // Whoever changes the table may take long, and there is more to tend to: next time, then.
        let busy = || Err(Error::new(SqlState::LOCK_NOT_AVAILABLE, "the table is being changed"));
        for (name, cool) in large {
            match self.merge_one(name.clone(), cool, &busy, &|| Ok(())) {
                Err(error) if !matches!(error.code(), SqlState::UNDEFINED_TABLE | SqlState::LOCK_NOT_AVAILABLE) => {
                    tracing::warn!("table \"{}\" could not be merged: {error}", name.name);
                }
                _ => {}
            }
        }
    }
}
