//! Indexes made of the rows that a table has.

use super::text::key_text;
use crate::background::Background;
use crate::catalog::relation::RelationName;
use crate::catalog::state::DatabaseState;
use crate::{Database, Patience, Transaction};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result, SqlState, TableId};
use tidepool_table::{BuildRequest, IndexDef, Table, TableDef, TableIndex, TableVersion};
use tidepool_tablespace::Tablespace;
use tidepool_txn::HeldSnapshot;

/// Rows of tables whose indexes are made at once, while a start or a follower waits for some milliseconds: of all of a start's
/// together.
const INDEXED_AT_ONCE_ROWS: u64 = 10_000;

const FILLED_AGAIN_AFTER: Duration = Duration::from_secs(1);

type Duplicate<'a> = &'a (dyn Fn(&TableDef, &IndexDef, &TableIndex, &[u8]) -> Result<()> + Sync);

impl Database {
    /// The table with those of its indexes made that are not there yet. Nobody else writes to it.
    fn with_indexes(
        &self,
        table: Table,
        view: &Arc<HeldSnapshot>,
        duplicate: Duplicate<'_>,
        check: &(dyn Fn() -> Result<()> + Sync),
    ) -> Result<Table> {
        let missing = table.def.indexes.iter().filter(|def| table.index(def.id).is_none());
        let requests = missing
            .map(|def| {
                let space = self.tablespaces().get(table.index_tablespace(def))?;
                Ok(BuildRequest { def: def.clone(), space })
            })
            .collect::<Result<Vec<_>>>()?;
        if requests.is_empty() {
            return Ok(table);
        }
        // Some may take the place of others.
        self.take_index_uses();
        let table = Arc::new(table);
        let version = Arc::new(TableVersion::of(&table, view));
        let told =
            |place: usize, index: &TableIndex, key: &[u8]| duplicate(&table.def, &requests[place].def, index, key);
        let threads = self.config().threads;
        let made = tidepool_table::build_indexes(&version, self.transactions(), &requests, threads, &told, check)?;
        Ok(table.with_def(table.def.clone()).with_indexes(made))
    }

    /// Gives all tables that lack indexes theirs, when the tables' rows are there and nobody writes yet. Those of small tables are made.
    /// Those of large ones are there at once, and are filled by a thread ([`TableIndex::over`]): neither a start nor a writer waits for
    /// that.
    pub(crate) fn index_tables(&self) -> Result<()> {
        let version = self.version();
        let mut filled = Vec::new();
        let of_tables = version.tables.iter().map(|(name, table)| (name, TableVersion::of(table, version.view())));
        let mut of_tables: Vec<_> = of_tables.collect();
        of_tables.sort_by_key(|(_, of_table)| of_table.rows_max());
        let mut left = self.indexed_at_once.rows;
        for (name, of_table) in of_tables {
            if of_table.rows_max() <= left {
                left -= of_table.rows_max();
                self.index_table(name, &|| Ok(()))?;
            } else if let Some(indexed) = self.with_backfills(&Arc::new(of_table), &mut filled)? {
                self.replace_table(name, indexed);
            }
        }
        self.backfill(filled)
    }

    /// A version's table with those of its indexes that are not there, which are put into `filled`. `None`: all are there.
    pub(crate) fn with_backfills(
        &self,
        version: &Arc<TableVersion>,
        filled: &mut Vec<Weak<TableIndex>>,
    ) -> Result<Option<Table>> {
        let table = version.table();
        let made = (table.def.indexes.iter())
            .filter(|def| table.index(def.id).is_none())
            .map(|def| {
                let space = self.tablespaces().get(table.index_tablespace(def))?;
                TableIndex::over(version, def, space, self.transactions())
            })
            .collect::<Result<Vec<_>>>()?;
        if made.is_empty() {
            return Ok(None);
        }
        let ids: Vec<TableId> = made.iter().map(TableIndex::id).collect();
        let table = table.with_def(Arc::clone(&table.def)).with_indexes(made);
        filled.extend(ids.into_iter().filter_map(|id| table.index(id)).map(Arc::downgrade));
        Ok(Some(table))
    }

    /// Has a thread fill indexes that are used already, but those that are dropped meanwhile.
    pub(crate) fn backfill(&self, indexes: Vec<Weak<TableIndex>>) -> Result<()> {
        if indexes.is_empty() || self.indexed_at_once.leaves_others {
            return Ok(());
        }
        // As much again is left to those who wait for nobody.
        let (threads, background) = (self.config().threads.div_ceil(2), self.background.clone());
        let thread = std::thread::Builder::new()
            .name("indexes".to_owned())
            .spawn(move || fill(&indexes, threads, &background))
            .map_err(|error| Error::io("start the thread that fills indexes", &error))?;
        let mut all = self.indexing.lock();
        all.retain(|thread| !thread.is_finished());
        all.push(thread);
        Ok(())
    }

    /// A table of a follower with those of its indexes that are not there, over the rows that a view sees: made, or, of a large table,
    /// to be filled, and put into `filled`. Where the log was written it was seen to that keys are there once.
    pub(crate) fn with_followed_indexes(
        &self,
        table: Table,
        view: &Arc<HeldSnapshot>,
        filled: &mut Vec<Weak<TableIndex>>,
    ) -> Result<Table> {
        let version = Arc::new(TableVersion::of(&Arc::new(table), view));
        let table = version.table();
        if version.rows_max() > self.indexed_at_once.rows {
            let indexed = self.with_backfills(&version, filled)?;
            return Ok(indexed.unwrap_or_else(|| table.with_def(Arc::clone(&table.def))));
        }
        let missing = table.def.indexes.iter().filter(|index| table.index(index.id).is_none());
        let requests = missing
            .map(|def| {
                let space = self.tablespaces().get(table.index_tablespace(def))?;
                Ok(BuildRequest { def: def.clone(), space })
            })
            .collect::<Result<Vec<_>>>()?;
        let told = |_: usize, _: &TableIndex, _: &[u8]| Ok(());
        let threads = self.config().threads;
        let made = tidepool_table::build_indexes(&version, self.transactions(), &requests, threads, &told, &|| Ok(()))?;
        Ok(table.with_def(Arc::clone(&table.def)).with_indexes(made))
    }

    fn replace_table(&self, name: &RelationName, table: Table) {
        let _commit = self.commit.lock();
        let state = self.state();
        let mut tables = state.tables.clone();
        tables.insert(name.clone(), Arc::new(table));
        self.set_state(DatabaseState { tables, ..DatabaseState::clone(&state) });
    }

    fn index_table(&self, name: &RelationName, check: &(dyn Fn() -> Result<()> + Sync)) -> Result<()> {
        let version = self.version();
        let Some(table) = version.tables.get(name) else { return Ok(()) };
        // Keys of folders from before they were enforced may be there twice. That is told, and stays so.
        let was_told = AtomicBool::new(false);
        let duplicate = |table: &TableDef, def: &IndexDef, index: &TableIndex, key: &[u8]| {
            if !was_told.swap(true, Ordering::Relaxed) {
                let key = key_text(table, def, index, key)?;
                tracing::warn!("table \"{}\" has rows with the same key in \"{}\": {key}", table.name, def.name);
            }
            Ok(())
        };
        let with = table.with_def(table.def.clone());
        let indexed = self.with_indexes(with, version.view(), &duplicate, check)?;
        self.replace_table(name, indexed);
        Ok(())
    }
}

/// Fills indexes, each as often as it takes.
fn fill(indexes: &[Weak<TableIndex>], threads: usize, background: &Background) {
    let stopping = || match background.is_stopped() {
        true => Err(Error::new(SqlState::ADMIN_SHUTDOWN, "the database is being closed")),
        false => Ok(()),
    };
    let begun = Instant::now();
    for index in indexes {
        let mut was_told = false;
        // Dropped by all others, it is needed no more.
        while let Some(index) = index.upgrade() {
            let Err(error) = index.backfill(threads, &stopping) else { break };
            if stopping().is_err() {
                return;
            }
            if !std::mem::replace(&mut was_told, true) {
                tracing::warn!("index {} is not complete, and statements scan its table: {error}", index.id());
            }
            drop(index);
            background.rest(FILLED_AGAIN_AFTER);
        }
    }
    tracing::info!(indexes = indexes.len(), ms = begun.elapsed().as_millis() as u64, "indexes are complete");
}

/// Which indexes are made while a start or a follower waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexedAtOnce {
    /// Those of tables with so many rows, or fewer.
    pub rows: u64,
    /// The others are filled by nobody but those who look keys up.
    pub leaves_others: bool,
}

impl Default for IndexedAtOnce {
    fn default() -> IndexedAtOnce {
        IndexedAtOnce { rows: INDEXED_AT_ONCE_ROWS, leaves_others: false }
    }
}

#[cfg(test)]
thread_local! {
    /// Of databases that this thread opens.
    pub(crate) static INDEXED_AT_ONCE: std::cell::Cell<Option<IndexedAtOnce>> = const { std::cell::Cell::new(None) };
}

impl IndexedAtOnce {
    #[cfg(not(test))]
    pub fn of_thread() -> IndexedAtOnce {
        IndexedAtOnce::default()
    }

    #[cfg(test)]
    pub fn of_thread() -> IndexedAtOnce {
        INDEXED_AT_ONCE.get().unwrap_or_default()
    }
}

impl Database {
    /// Moves what indexes have in memory that `space` is to give up, within the same tablespace, beside all other work.
    pub(crate) fn move_indexes(&self, space: &Tablespace, patience: &dyn Patience) -> Result<()> {
        let version = self.version();
        for index in version.tables.values().flat_map(|table| table.indexes()) {
            patience.check()?;
            if index.tree().tablespace().id() == space.id() {
                index.tree().relocate(version.view())?;
            }
        }
        Ok(())
    }

    /// Gives memory of indexes back that nobody reads any more.
    pub(crate) fn reclaim_indexes(&self) {
        for index in self.state().tables.values().flat_map(|table| table.indexes()) {
            index.tree().reclaim();
        }
        for table in self.temporary_tables() {
            table.indexes().iter().for_each(|index| index.tree().reclaim());
        }
    }
}

impl Database {
    /// Forgets the indexes that were being made beside others' writes when the process ended, or the primary that this one takes over
    /// from. To be called when nobody writes yet, and before what is there is made anew.
    pub(crate) fn drop_unfinished_indexes(&self) {
        let _commit = self.commit.lock();
        let state = self.state();
        let is_unfinished = |table: &Arc<Table>| table.def.indexes.iter().any(|index| index.building);
        if !state.tables.values().any(is_unfinished) {
            // The same state stays: with another one, everything that was planned would be planned anew.
            return;
        }
        let mut tables = state.tables.clone();
        for (name, table) in &state.tables {
            if is_unfinished(table) {
                let mut def = TableDef::clone(&table.def);
                for index in def.indexes.extract_if(.., |index| index.building) {
                    tracing::warn!("index \"{}\" of table \"{}\" was not finished, and is gone", index.name, name.name);
                }
                tables.insert(name.clone(), Arc::new(table.with_def(Arc::new(def))));
            }
        }
        self.set_state(DatabaseState { tables, ..DatabaseState::clone(&state) });
    }
}

/// 23505: no index can be made of these rows.
pub(super) fn duplicated(table: &TableDef, def: &IndexDef, index: &TableIndex, key: &[u8]) -> Result<()> {
    let error = Error::new(SqlState::UNIQUE_VIOLATION, format!("could not create unique index \"{}\"", def.name));
    Err(error.with_detail(format!("Key {} is duplicated.", key_text(table, def, index, key)?)))
}

impl Transaction {
    /// The table with those of its indexes made that are not there yet, of its rows as this transaction has them. It has
    /// the table to itself. 23505 where a key that is to be unique is there twice.
    pub(crate) fn indexed(&self, table: Table) -> Result<Table> {
        if table.def.indexes.iter().all(|def| table.index(def.id).is_some()) {
            return Ok(table);
        }
        // Also what the present statement wrote.
        let _ = self.worker().next_command();
        let view = Arc::new(self.worker().hold_now());
        let patience = self.patience();
        self.database.with_indexes(table, &view, &duplicated, &|| patience.check())
    }
}
