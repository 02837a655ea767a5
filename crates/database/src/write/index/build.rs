//! Indexes made of the rows that a table has.

use super::text::key_text;
use crate::catalog::relation::RelationName;
use crate::catalog::state::DatabaseState;
use crate::{Database, Patience, Transaction};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidepool_base::{Error, Result, SqlState};
use tidepool_table::{BuildRequest, IndexDef, Table, TableDef, TableIndex, TableVersion};
use tidepool_tablespace::Tablespace;
use tidepool_txn::HeldSnapshot;

/// Rows of a table whose indexes are made before a start is over.
const INDEXED_AT_ONCE_ROWS: u64 = 100_000;

const INDEX_AGAIN_AFTER: Duration = Duration::from_secs(1);

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

    /// Makes the indexes of all tables, when the tables' rows are there and nobody is at work yet. Those of large tables are
    /// made by a thread, so that a start takes no longer for more rows; until then such a table can be read, and who
    /// wants to write to it waits.
    pub(crate) fn index_tables(self: &Arc<Self>) -> Result<()> {
        let mut large = self.index_small_tables()?;
        if large.is_empty() {
            return Ok(());
        }
        // Whoever waits for a small one shall not wait for a large one.
        large.sort_unstable();
        let locked = large.into_iter().map(|(_, name)| {
            let mut transaction = self.begin()?;
            transaction.lock_table(name.clone(), &|| Ok(()))?;
            Ok((name, transaction))
        });
        let locked = locked.collect::<Result<Vec<_>>>()?;
        let database = Arc::clone(self);
        std::thread::Builder::new()
            .name("indexes".to_owned())
            .spawn(move || locked.into_iter().for_each(|(name, transaction)| database.index_locked(&name, transaction)))
            .map(|thread| *self.indexing.lock() = Some(thread))
            .map_err(|error| Error::io("start the thread that makes indexes", &error))
    }

    /// Makes the indexes of small tables. Of large ones that lack some it returns the numbers of rows, and the names.
    pub(crate) fn index_small_tables(&self) -> Result<Vec<(u64, RelationName)>> {
        let version = self.version();
        let mut large: Vec<(u64, RelationName)> = Vec::new();
        for (name, table) in &version.tables {
            let rows = TableVersion::of(table, version.view()).rows_max();
            if rows <= INDEXED_AT_ONCE_ROWS {
                self.index_table(name, &|| Ok(()))?;
            } else if table.def.indexes.iter().any(|index| table.index(index.id).is_none()) {
                large.push((rows, name.clone()));
            }
        }
        Ok(large)
    }

    /// Makes the indexes of a table that `transaction` keeps others from writing to; as often as it takes: without them
    /// nobody can be let in.
    fn index_locked(&self, name: &RelationName, transaction: Transaction) {
        let stopping = || match self.background.is_stopped() {
            true => Err(Error::new(SqlState::ADMIN_SHUTDOWN, "the database is being closed")),
            false => Ok(()),
        };
        let mut was_told = false;
        while let Err(error) = self.index_table(name, &stopping) {
            if stopping().is_err() {
                break;
            }
            if !std::mem::replace(&mut was_told, true) {
                tracing::warn!("indexes of table \"{}\" could not be made, and writers wait: {error}", name.name);
            }
            std::thread::sleep(INDEX_AGAIN_AFTER);
        }
        transaction.rollback();
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
        let indexed = Arc::new(self.with_indexes(with, version.view(), &duplicate, check)?);
        let _commit = self.commit.lock();
        let state = self.state();
        let mut tables = state.tables.clone();
        tables.insert(name.clone(), indexed);
        self.set_state(DatabaseState { tables, ..DatabaseState::clone(&state) });
        Ok(())
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
    }
}

impl Database {
    /// Forgets the indexes that were being made beside others' writes when the process ended. To be called when nobody is
    /// at work yet, and before what is there is made anew.
    pub(crate) fn drop_unfinished_indexes(&self) {
        let _commit = self.commit.lock();
        let state = self.state();
        let mut tables = state.tables.clone();
        for (name, table) in &state.tables {
            if table.def.indexes.iter().any(|index| index.building) {
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
