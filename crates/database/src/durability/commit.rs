//! What makes commits last: the log, and checkpoints of what it has.

use crate::catalog::state::{Changes, Coming};
use crate::durability::log_home::OpenedLog;
use crate::durability::log_writer::LogWriter;
use crate::durability::recovery::Recovered;
use crate::durability::redo::{CHECKPOINT, CatalogChange, Logged, Redo, point};
use crate::durability::small::MainPlaces;
use crate::durability::storage::{FileKey, Manifest, Storage, Writes};
use crate::durability::transaction_ids::TransactionIds;
use crate::roles::tier2::SecondTier;
use crate::roles::{HostRole, Roles};
use crate::{Database, DatabaseState, DatabaseVersion, Patience};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tidepool_base::{CommitTs, Error, Result, StoreId, TableId};
use tidepool_log::Log;
use tidepool_table::rows::{Change, WriteSet};
use tidepool_table::{RowGroup, Table, TableDef};
use tidepool_txn::Worker;

/// A transaction at its end.
pub(crate) struct Committing<'t> {
    pub worker: &'t mut Worker,
    pub writes: &'t mut WriteSet,
    pub redo: Option<&'t mut Redo>,
    /// If its client asked for it.
    pub id: Option<(&'t TransactionIds, u64)>,
    /// Tables that rows were written of.
    pub written: &'t BTreeMap<TableId, Arc<Table>>,
    /// Where those who follow find row groups that it loaded.
    pub places: Option<&'t dyn MainPlaces>,
    pub interrupted: &'t dyn Fn() -> Result<()>,
    pub patience: &'t dyn Patience,
}

impl Committing<'_> {
    /// Commits rows. `None`: there were none.
    pub fn rows(mut self) -> Result<Option<CommitTs>> {
        self.commit(None, None)
    }

    fn commit(&mut self, catalog: Option<&CatalogChange>, coming: Option<&Coming>) -> Result<Option<CommitTs>> {
        if catalog.is_some() || self.id.is_some() {
            // It is to have a timestamp, also where no row was written.
            self.worker.tag_to_write();
        }
        if let Some(redo) = &mut self.redo {
            // What the last command wrote, too.
            self.worker.next_command()?;
            let id = self.id.map(|(ids, id)| ids.logged(id));
            redo.prepare(self.writes, catalog, id, &self.worker.snapshot_now(), self.places, self.interrupted)?;
        }
        // Whoever waits for it may have been told by now that it came to nothing.
        let is_apart = catalog.is_none() && self.id.is_none() && !self.writes.is_for_others();
        let committed = self.patience.settle().and_then(|()| {
            let redo = self.redo.as_deref_mut();
            self.worker.commit(&mut Logged { writes: self.writes, redo, coming, id: self.id, is_apart })
        });
        if let (Err(_), Some(redo)) = (&committed, &mut self.redo) {
            redo.abandon();
        }
        committed
    }

    /// Commits a transaction that changes what exists, or loaded row groups.
    pub fn publish(mut self, database: &Database, changes: &Changes) -> Result<CommitTs> {
        let Some(storage) = &database.storage else { return self.publish_locked(database, changes, &|| ()) };
        self.worker.next_command()?;
        // Files are written before anybody else has to wait.
        let loaded = self.loaded(changes)?;
        let prepared = storage.prepare(loaded.iter().map(|(def, group)| (&**def, &**group)))?;
        let published = self.publish_locked(database, changes, &|| storage.name(&prepared));
        if published.is_err() {
            storage.give_up(&prepared);
        }
        published
    }

    /// The row groups that the transaction's record names.
    fn loaded(&self, changes: &Changes) -> Result<Vec<(Arc<TableDef>, Arc<RowGroup>)>> {
        let view = self.worker.snapshot_now();
        let tables = || changes.tables.values().flatten().chain(self.written.values());
        let mut loaded = Vec::new();
        for (store, row, change) in self.writes.changes() {
            if change != Change::Loaded || store.id().is_temporary() {
                continue;
            }
            // None: it was emptied, moved or dropped later in the same transaction.
            let Some(table) = tables().find(|table| Arc::ptr_eq(&table.rows, store)) else { continue };
            let group = store.range(&view, row.range()).and_then(|range| range.group().cloned());
            let group = group.ok_or_else(|| Error::internal("a loaded range has no row group"))?;
            loaded.push((table.def.clone(), group));
        }
        Ok(loaded)
    }

    fn publish_locked(&mut self, database: &Database, changes: &Changes, name: &dyn Fn()) -> Result<CommitTs> {
        let _commit = database.commit.lock();
        for table in changes.tables.values().flatten() {
            // Dropped since: possible while none of the table's rows lived in it.
            let placement = &table.placement;
            let own = table.def.indexes.iter().filter_map(|index| index.tablespace.as_ref());
            let names = [&placement.main, &placement.delta].into_iter().chain(placement.columns.values()).chain(own);
            for name in names {
                database.tablespaces().get(name)?;
            }
        }
        let mut next = database.state().with(database.transactions().clock().now(), changes);
        next.check_dependencies(changes)?;
        let catalog = (!changes.is_empty()).then(|| CatalogChange::new(database.ids.next(), changes));
        name();
        // It is seen with the transaction's rows, which others see before the state is set.
        let tag = (!changes.is_empty()).then(|| self.worker.tag_to_write());
        let coming = tag.map(|tag| Arc::new(Coming::new(tag, next.clone())));
        let _announced = coming.clone().map(|coming| database.announce(coming));
        next.commit_ts = self.commit(catalog.as_ref(), coming.as_deref())?.unwrap_or(next.commit_ts);
        let committed = next.commit_ts;
        let before = database.state();
        database.set_state(next);
        if let Some(storage) = &database.storage {
            let stays =
                |id: &TableId, rows: StoreId| changes.tables[id].as_ref().is_some_and(|table| table.rows.id() == rows);
            let gone = before.tables.values().filter(|table| changes.tables.contains_key(&table.def.id));
            for table in gone.filter(|table| !stays(&table.def.id, table.rows.id())) {
                storage.let_go_of(table.rows.id());
            }
        }
        Ok(committed)
    }
}

impl Database {
    /// Recovers what the data folder has, and goes on with its log.
    pub(crate) fn start_log(self: &Arc<Self>, mut manifest: Manifest, mut opened: OpenedLog) -> Result<()> {
        let Some(storage) = &self.storage else { return Ok(()) };
        manifest.tables.iter_mut().for_each(|table| table.def.number_columns());
        let Recovered { had_records, keys_added } = self.recover(storage, &manifest, &mut opened.recovery)?;
        storage.remove_leftovers()?;
        storage.make_positions_file()?;
        let segment_bytes = self.config().log.segment_bytes;
        if let Some(left) = &opened.home.saved.left
            && left.remove(storage, segment_bytes)
        {
            opened.home.saved.left = None;
        }
        if !opened.is_as_configured(self.config()) {
            opened = opened.moved(self.config(), storage, &|name| self.tablespaces().get(name))?;
        }
        opened.sign(storage)?;
        opened.home.saved.closed = false;
        // The log has it when it is opened for writing, before a manifest says so.
        opened.home.saved.noted = true;
        let mut home = opened.home.clone();
        let is_known = manifest.identity.as_deref() == Some(&home.identity.to_string());
        storage.set_log_home(home.clone());
        let transactions = self.transactions().clone();
        // Below it, all have been appended.
        let floor = move || CommitTs(transactions.floor().0.saturating_sub(1));
        let held = opened.take_memory();
        let log = opened.recovery.into_log(Box::new(floor))?;
        if keys_added || !is_known || manifest.tables.iter().any(|table| table.store.is_none()) {
            // A folder that is new, or of an earlier release: the log builds upon what it says.
            self.save()?;
        } else {
            storage.opened(manifest);
            // What the configuration says anew is remembered; and a folder that cannot be written to is noticed.
            self.save_settings()?;
            let finds_more = storage.would_find_more(&self.version());
            self.dirty.store(had_records || finds_more, Ordering::Release);
        }
        // The manifest names this log by now.
        held.settle();
        if let Some(left) = home.saved.left.take()
            && left.remove(storage, segment_bytes)
        {
            storage.set_log_home(home);
        }
        // Before a checkpoint has been made that lets go of anything.
        let identity = storage.log_home().map(|home| home.identity);
        identity.map_or(Ok(()), |identity| self.archive_log(storage, &log, identity))?;
        let writer = LogWriter::start(&log, self.background.clone())?;
        let _ = self.log_writer.set(writer);
        let _ = self.log.set(log);
        self.drop_unfinished_indexes();
        self.index_tables()
    }

    /// The data folder, if this process writes checkpoints to it.
    pub(crate) fn saves_to(&self) -> Option<&Storage> {
        let is_second = |roles: &Arc<Roles>| roles.second_tier.get().is_some() && roles.role() == HostRole::Primary;
        let writes = |_: &&Storage| match &self.roles {
            Some(roles) => is_second(roles),
            // One that is being recovered reads its backup.
            None => !self.is_following(),
        };
        self.storage.as_ref().filter(writes)
    }

    /// A checkpoint: writes all that is committed to the data folder, so that the log need not have it.
    pub(crate) fn save(&self) -> Result<()> {
        self.save_unless(&|| Ok(()))
    }

    /// As `save`; the error of `interrupted` ends it, and the folder stays as it was.
    fn save_unless(&self, interrupted: &dyn Fn() -> Result<()>) -> Result<()> {
        let Some(storage) = self.saves_to() else { return Ok(()) };
        let _saving = storage.saving_unless(interrupted)?;
        // Before anything is looked at: a commit from here on sets it again.
        let dirty = self.dirty.swap(false, Ordering::AcqRel);
        let saved = self.save_all(storage, interrupted);
        if saved.is_err() {
            self.dirty.fetch_or(dirty, Ordering::AcqRel);
        }
        saved
    }

    fn save_all(&self, storage: &Storage, interrupted: &dyn Fn() -> Result<()>) -> Result<()> {
        *self.last_checkpoint.lock() = Instant::now();
        let (version, writes, named) = {
            // No change of what exists comes between the state and the view.
            let _commit = self.commit.lock();
            let writes = counts(&self.state());
            (self.version(), writes, storage.named())
        };
        let ts = version.view().ts();
        // What is merged from here on is looked for in the tables, and has ids that were drawn later.
        point("checkpoint.view");
        if let (Some(tier), Some(log)) = (self.roles.as_ref().and_then(|roles| roles.second_tier.get()), self.log.get())
        {
            return self.save_second(storage, tier, log, &version, &writes, named, interrupted);
        }
        let transaction_ids = self.transaction_ids.saved(ts, self.transactions());
        let settings = Manifest { transaction_ids, ..self.manifest(ts) };
        storage.save(&version, &writes, named, settings, self.tablespaces(), interrupted)?;
        drop(version);
        if let Some(log) = self.log.get() {
            log.recycle_below(ts)?;
        }
        Ok(())
    }

    /// Writes a checkpoint of a database that lives in a pool to its second tier.
    #[expect(clippy::too_many_arguments, reason = "what a checkpoint has at hand")]
    fn save_second(
        &self,
        storage: &Storage,
        tier: &SecondTier,
        log: &Log,
        version: &DatabaseVersion,
        writes: &Writes,
        named: BTreeSet<FileKey>,
        interrupted: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        tier.tries();
        let ts = version.view().ts();
        // What the view shows is durable then, this host still reigned, and who takes over goes on above it.
        let marked = self.commit_small(CHECKPOINT, &[0; 4])?;
        log.wait_durable(marked, || Ok(()))?;
        let roles = self.roles.as_ref().and_then(|roles| roles.checkpoints());
        let from = match log.needed_from(ts) {
            0 => None,
            number => roles.map(|checkpoints| checkpoints.segment(number)).transpose()?,
        };
        let transaction_ids = self.transaction_ids.saved(ts, self.transactions());
        let manifest = Manifest { transaction_ids, log: Some(tier.saved(from)), ..self.manifest(ts) };
        let manifest = Manifest { identity: self.roles.as_ref().map(|roles| roles.identity().to_string()), ..manifest };
        let sequences = &version.catalog.sequences;
        storage.make_positions_file()?;
        storage.save(version, writes, named, manifest, self.tablespaces(), interrupted)?;
        // For copies of the folder, which have no log.
        let positions: Vec<_> =
            sequences.values().map(|sequence| (sequence.def.position_id, sequence.written())).collect();
        storage.write_positions(&positions)?;
        tier.based(storage, ts, from);
        Ok(())
    }

    /// Writes what is neither table nor another object of a schema.
    pub(crate) fn save_settings(&self) -> Result<()> {
        let Some(storage) = self.saves_to() else { return Ok(()) };
        let saved = {
            let _saving = storage.saving();
            storage.save_settings(self.manifest(CommitTs(0)))?
        };
        if saved { Ok(()) } else { self.save() }
    }

    /// Writes everything committed, and the recorded workload, to the data folder, and makes the log short. A no-op
    /// without one.
    pub fn checkpoint(&self) -> Result<()> {
        self.checkpoint_unless(&|| Ok(()))
    }

    /// As `checkpoint`; the error of `interrupted` ends it, and the folder stays as it was.
    pub fn checkpoint_unless(&self, interrupted: &dyn Fn() -> Result<()>) -> Result<()> {
        // One that was asked for just after a take-over is made, too.
        if let Some(roles) = &self.roles {
            roles.wait_settled();
        }
        if self.dirty.load(Ordering::Acquire) {
            self.save_unless(interrupted)?;
        }
        let Some(storage) = self.saves_to() else { return Ok(()) };
        let version = self.version();
        self.access_log().forget_missing(|table| version.table_by_id(table).map(|table| table.def.clone()));
        storage.save_workload(&self.workload())
    }

    /// Nothing was committed since the last checkpoint, and nothing will be: the log will not be missed.
    pub(crate) fn note_log_closed(&self) -> Result<()> {
        let Some(storage) = &self.storage else { return Ok(()) };
        let Some(mut home) = storage.log_home() else { return Ok(()) };
        if self.dirty.load(Ordering::Acquire) {
            return Ok(());
        }
        home.saved.closed = true;
        storage.set_log_home(home);
        self.save_settings()
    }

    /// A checkpoint, if there is something for it and the last one was long ago, or the log is long.
    pub(crate) fn checkpoint_if_due(&self) -> Result<()> {
        if !self.dirty.load(Ordering::Acquire) {
            return Ok(());
        }
        let bytes_max = self.config().log.bytes_max;
        let is_long = match self.roles.as_ref().map(|roles| roles.second_tier.get()) {
            None => self.log.get().is_some_and(|log| log.wants_checkpoint()),
            Some(tier) => {
                (tier.zip(self.log.get())).is_some_and(|(tier, log)| tier.wants_checkpoint(log.position(), bytes_max))
            }
        };
        if is_long || self.last_checkpoint.lock().elapsed() >= self.config().log.checkpoint_timeout {
            self.save()?;
        }
        Ok(())
    }
}

/// How often tables were written to. To be asked before a view is drawn that is saved: what it lacks is counted later.
pub(crate) fn counts(state: &DatabaseState) -> Writes {
    state.tables.values().map(|table| (table.def.id, table.writes())).collect()
}
