//! The database: its current state, how the next one is published, and what runs in the background.

use crate::access::AccessLog;
use crate::catalog::{Catalog, Changes, RelationName};
use crate::elastic::{SavedAlteration, altered_config};
use crate::encode_pool::EncodePool;
use crate::index::add_declared_keys;
use crate::locks::{LockInfo, LockManager};
use crate::progress::{Progress, ProgressRegistry};
use crate::storage::{Files, Manifest, SavedSequence, SavedTable, SavedTablespace, Storage, SystemFiles, Writes};
use crate::{Config, DatabaseState, DatabaseVersion, Sequence, Transaction, ViewDef};
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tidepool_base::{CommitTs, Error, Result, RowGroupId, SqlState, TableId, TablespaceId};
use tidepool_heap::{QueryHeap, Release};
use tidepool_table::Table;
use tidepool_table::rows::{RowStore, VersionMemory, WriteSet};
use tidepool_tablespace::{Purpose, TablespaceConfig, Tablespaces};
use tidepool_txn::{Isolation, Transactions, Worker};

/// How long `DROP TABLESPACE` waits for memory of statements that have ended.
const HEAP_LINGERS_MAX: Duration = Duration::from_secs(2);

/// How often what small commits left is written to the data folder, and idle memory given back.
const BACKGROUND_INTERVAL: Duration = Duration::from_secs(5);

/// Free memory that a tablespace keeps for the next use however long it is idle.
const FREE_BYTES_KEPT: u64 = 64 << 20;

/// One a process and data folder.
///
/// Lock order: `commit`, then the storage's own; `current` and the rest are held for moments only.
pub struct Database {
    config: Config,
    spaces: Tablespaces,
    current: RwLock<Arc<DatabaseState>>,
    /// Held while the next version is made of the current one.
    commit: Mutex<()>,
    transactions: Arc<Transactions>,
    /// Workers that no transaction has.
    workers: Mutex<Vec<Worker>>,
    /// Draws views, and frees what was retired. Held for moments only.
    pub(crate) keeper: Mutex<Worker>,
    /// Merges whose versions somebody may still look at: rows, and range.
    pub(crate) unfinished: Mutex<Vec<(Arc<RowStore>, u64)>>,
    /// By tablespace, where versions of rows are.
    pub(crate) memories: Mutex<HashMap<TablespaceId, Arc<VersionMemory>>>,
    pub(crate) locks: LockManager,
    next_table_id: AtomicU32,
    next_row_group_id: AtomicU64,
    next_transaction_id: AtomicU64,
    passwords: Mutex<BTreeMap<String, String>>,
    /// Tablespaces as `ALTER TABLESPACE` made them, or is about to.
    pub(crate) altered: Mutex<BTreeMap<String, TablespaceConfig>>,
    encode_pool: EncodePool,
    progress: ProgressRegistry,
    access: Arc<AccessLog>,
    storage: Option<Storage>,
    /// Something committed is not in the data folder yet.
    dirty: AtomicBool,
    background: Arc<Background>,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database")
            .field("data_dir", &self.config.data_dir)
            .field("commit_ts", &self.version().commit_ts)
            .finish()
    }
}

#[derive(Default)]
struct Background {
    state: Mutex<BackgroundState>,
    changed: Condvar,
}

#[derive(Default)]
struct BackgroundState {
    stopped: bool,
    /// The thread is at work, and holds the database.
    busy: bool,
}

/// What goes on in a database, for views.
#[derive(Clone, Debug)]
pub struct DatabaseStats {
    pub commit_ts: CommitTs,
    pub tables: usize,
    /// Committed rows wait to be written to the data folder.
    pub dirty: bool,
    pub locks: Vec<LockInfo>,
    pub progress: Vec<Arc<Progress>>,
}

impl Database {
    /// Opens (or makes) the data folder and reads what is in it. One process at a time: 55006 otherwise.
    pub fn open(config: Config) -> Result<Arc<Database>> {
        Database::open_with(config, Arc::new(SystemFiles))
    }

    pub(crate) fn open_with(config: Config, files: Arc<dyn Files>) -> Result<Arc<Database>> {
        let (storage, mut manifest) = match &config.data_dir {
            None => (None, Manifest::new()),
            Some(folder) => {
                let (storage, manifest) = Storage::open(folder, files)?;
                (Some(storage), manifest)
            }
        };
        if let Some(bytes) = config.last_level_cache_bytes {
            tidepool_device::set_last_level_cache_bytes(bytes)?;
        }
        if let Some(profile) = &config.local_profile {
            tidepool_device::set_local_profile(profile.clone())?;
        }
        let mut altered = BTreeMap::new();
        let mut as_altered = |configured: &TablespaceConfig, name: &str| {
            let now = altered_config(configured, name, &manifest.altered)?;
            if now != (TablespaceConfig { name: name.to_owned(), ..configured.clone() }) {
                altered.insert(name.to_owned(), now.clone());
            }
            Ok(now)
        };
        let near = as_altered(&config.near, "near")?;
        let spaces = Tablespaces::open(near, as_altered(&config.far, "far")?)?;
        for space in &config.tablespaces {
            spaces.create(as_altered(space, &space.name)?)?;
        }
        for saved in &manifest.tablespaces {
            // The configuration file's word counts over what was recorded.
            if spaces.get(&saved.name).is_err() {
                spaces.create(saved.config()?)?;
            }
        }
        let names = config.temp_tablespaces.iter().chain([&config.default_tablespace]);
        for name in names {
            spaces.get(name)?;
        }
        if let Some(storage) = &storage {
            storage.remove_leftovers()?;
        }
        let view = |view: &ViewDef| (RelationName::from(view), Arc::new(view.clone()));
        let views = manifest.views.iter().map(view).collect();
        let sequence = |saved: &SavedSequence| {
            let written = storage.as_ref().and_then(|storage| storage.position(saved.def.position_id));
            let sequence = Sequence::at(saved.def.clone(), written.unwrap_or(saved.position));
            (RelationName::from(&saved.def), Arc::new(sequence))
        };
        let sequences = manifest.sequences.iter().map(sequence).collect();
        let catalog = Arc::new(Catalog { schemas: manifest.schemas(), views, sequences });
        let transactions = Transactions::starting_after(manifest.commit_ts);
        let database = Arc::new(Database {
            encode_pool: EncodePool::new(config.threads),
            config,
            spaces,
            current: RwLock::new(Arc::new(DatabaseState {
                commit_ts: manifest.commit_ts,
                tables: BTreeMap::new(),
                catalog,
            })),
            commit: Mutex::new(()),
            locks: LockManager::new(transactions.clone()),
            workers: Mutex::default(),
            memories: Mutex::default(),
            keeper: Mutex::new(transactions.worker()?),
            unfinished: Mutex::default(),
            transactions,
            next_table_id: AtomicU32::new(manifest.next_table_id),
            next_row_group_id: AtomicU64::new(manifest.next_row_group_id),
            next_transaction_id: AtomicU64::new(1),
            passwords: Mutex::new(manifest.passwords),
            altered: Mutex::new(altered),
            progress: ProgressRegistry::default(),
            access: Arc::new(AccessLog::new(storage.as_ref().and_then(Storage::load_workload))),
            storage,
            dirty: AtomicBool::new(false),
            background: Arc::default(),
        });
        add_declared_keys(&mut manifest.tables, || database.next_table_id().0);
        database.load_tables(&manifest.tables)?;
        database.index_tables()?;
        if database.storage.is_some() {
            // So that a new folder is recognised as ours from now on, and cannot be written to only later.
            database.save()?;
        }
        let (weak, background) = (Arc::downgrade(&database), database.background.clone());
        std::thread::Builder::new()
            .name("background".to_owned())
            .spawn(move || background.run(&weak))
            .map_err(|error| Error::io("start the background thread", &error))?;
        Ok(database)
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn tablespaces(&self) -> &Tablespaces {
        &self.spaces
    }

    /// What exists.
    pub fn state(&self) -> Arc<DatabaseState> {
        self.current.read().clone()
    }

    /// All that is committed by now.
    pub fn version(&self) -> Arc<DatabaseVersion> {
        QueryHeap::outside(|| {
            let state = self.state();
            let view = {
                let mut keeper = self.keeper.lock();
                // Within a transaction, so that no later one's writes are taken for the view's own.
                let view = keeper.begin(Isolation::ReadCommitted).map(|()| keeper.hold_now());
                keeper.abort(|_| ());
                view.unwrap_or_else(|_| keeper.hold_now())
            };
            Arc::new(DatabaseVersion::new(state, Arc::new(view)))
        })
    }

    /// 53300 when there are too many at a time.
    pub fn begin(self: &Arc<Self>) -> Result<Transaction> {
        self.begin_at(Isolation::ReadCommitted)
    }

    pub fn begin_at(self: &Arc<Self>, isolation: Isolation) -> Result<Transaction> {
        QueryHeap::outside(|| {
            let idle = self.workers.lock().pop();
            let mut worker = idle.map_or_else(|| self.transactions.worker(), Ok)?;
            worker.begin(isolation)?;
            Ok(Transaction::new(self.clone(), self.next_transaction_id.fetch_add(1, Ordering::Relaxed), worker))
        })
    }

    pub(crate) fn give_back(&self, worker: Worker) {
        worker.rest();
        self.workers.lock().push(worker);
    }

    pub(crate) fn transactions(&self) -> &Arc<Transactions> {
        &self.transactions
    }

    /// Committed rows are to be written to the data folder.
    pub(crate) fn rows_changed(&self) {
        if self.storage.is_some() {
            self.dirty.store(true, Ordering::Release);
        }
    }

    pub(crate) fn encode_pool(&self) -> &EncodePool {
        &self.encode_pool
    }

    /// Commits a transaction that changes what exists, or made row groups. With `durable`, or not at all, its changes
    /// are in the data folder first.
    pub(crate) fn publish(
        &self,
        worker: &mut Worker,
        writes: &mut WriteSet,
        changes: &Changes,
        durable: bool,
    ) -> Result<CommitTs> {
        worker.next_command()?;
        // Row files are written before anybody else has to wait.
        let prepared = match &self.storage {
            Some(storage) if durable => {
                let next = Arc::new(self.state().with(CommitTs(0), changes));
                storage.prepare(&DatabaseVersion::new(next, Arc::new(worker.hold_now())))?
            }
            _ => Vec::new(),
        };
        let commit = self.commit.lock();
        let published = self.publish_locked(worker, writes, changes, durable);
        drop(commit);
        if let (Err(_), Some(storage)) = (&published, &self.storage) {
            storage.discard(&prepared);
        }
        published
    }

    fn publish_locked(
        &self,
        worker: &mut Worker,
        writes: &mut WriteSet,
        changes: &Changes,
        durable: bool,
    ) -> Result<CommitTs> {
        for table in changes.tables.values().flatten() {
            // Dropped since: possible while none of the table's rows lived in it.
            let placement = &table.placement;
            let own = table.def.indexes.iter().filter_map(|index| index.tablespace.as_ref());
            let names = [&placement.main, &placement.delta].into_iter().chain(placement.columns.values()).chain(own);
            for name in names {
                self.spaces.get(name)?;
            }
        }
        let base = self.state();
        let mut next = base.with(self.transactions.clock().now(), changes);
        next.check_dependencies(changes)?;
        let saving = self.storage.as_ref().filter(|_| durable).map(|storage| (storage, storage.saving()));
        if let Some((storage, _)) = &saving {
            let counts = counts(&next);
            let view = Arc::new(worker.hold_now());
            // What others commit meanwhile is not in it, so it stays dirty if it was.
            let version = DatabaseVersion::new(Arc::new(next.clone()), view);
            storage.save(&version, &counts, self.manifest(next.commit_ts))?;
        }
        let committed = match worker.commit(writes) {
            Ok(ts) => ts.unwrap_or(next.commit_ts),
            Err(error) => {
                if let Some((storage, saving)) = saving {
                    // The folder has what is not to be.
                    storage.forget_deltas();
                    drop(saving);
                    self.save()?;
                }
                return Err(error);
            }
        };
        next.commit_ts = committed;
        *self.current.write() = Arc::new(next);
        if saving.is_none() {
            self.rows_changed();
        }
        Ok(committed)
    }

    /// Makes the tables that a data folder has.
    fn load_tables(&self, saved: &[SavedTable]) -> Result<()> {
        let Some(storage) = &self.storage else { return Ok(()) };
        let mut tables = BTreeMap::new();
        for saved in saved {
            let def = Arc::new(saved.def.clone());
            let rows = self.new_rows(&def, &saved.placement)?;
            let mut keeper = self.keeper.lock();
            keeper.begin(Isolation::ReadCommitted)?;
            let mut writes = WriteSet::new();
            let loaded = storage.load_table(saved, &self.spaces, self.config.threads, &rows, &keeper, &mut writes);
            if let Err(error) = loaded {
                keeper.abort(|worker| writes.undo(worker));
                return Err(error);
            }
            keeper.commit(&mut writes)?;
            let table = Arc::new(Table::new(def, saved.placement.clone(), rows));
            storage.loaded(&table, saved);
            tables.insert(RelationName::from(&*table.def), table);
        }
        let state = self.state();
        *self.current.write() = Arc::new(DatabaseState { tables, ..DatabaseState::clone(&state) });
        Ok(())
    }

    /// Before anybody is at work.
    pub(crate) fn replace_state(&self, state: DatabaseState) {
        *self.current.write() = Arc::new(state);
    }

    /// Everything but the tables.
    fn manifest(&self, commit_ts: CommitTs) -> Manifest {
        let configured = |name: &str| self.config.tablespaces.iter().any(|space| space.name == name);
        let created = self.spaces.list().into_iter().skip(2).filter(|space| !configured(space.name()));
        let mut altered = self.altered.lock().clone();
        let of_configured = |now: TablespaceConfig| {
            let own = [("near", &self.config.near), ("far", &self.config.far)].into_iter();
            let all = own.chain(self.config.tablespaces.iter().map(|space| (space.name.as_str(), space)));
            let (name, configured) = all.into_iter().find(|(name, _)| *name == now.name)?;
            let configured = TablespaceConfig { name: name.to_owned(), ..configured.clone() };
            Some(SavedAlteration { configured: SavedTablespace::new(&configured), now: SavedTablespace::new(&now) })
        };
        Manifest {
            commit_ts,
            next_table_id: self.next_table_id.load(Ordering::Relaxed),
            next_row_group_id: self.next_row_group_id.load(Ordering::Relaxed),
            tablespaces: created
                .map(|space| match altered.remove(space.name()) {
                    Some(config) => SavedTablespace::new(&config),
                    None => SavedTablespace::new(&space.config()),
                })
                .collect(),
            altered: altered.into_values().filter_map(of_configured).collect(),
            passwords: self.passwords.lock().clone(),
            ..Manifest::new()
        }
    }

    /// Writes the current version, whether or not it changed.
    pub(crate) fn save(&self) -> Result<()> {
        let Some(storage) = &self.storage else { return Ok(()) };
        let _saving = storage.saving();
        // Cleared first: a commit from here on sets it again.
        let dirty = self.dirty.swap(false, Ordering::AcqRel);
        let counts = counts(&self.state());
        let version = self.version();
        storage.save(&version, &counts, self.manifest(version.view().ts())).inspect_err(|_| {
            self.dirty.fetch_or(dirty, Ordering::AcqRel);
        })
    }

    /// Not transactional, as in PostgreSQL. Remembered in the data folder.
    pub fn create_tablespace(&self, config: TablespaceConfig) -> Result<()> {
        let name = config.name.clone();
        if name.starts_with("pg_") {
            return Err(Error::new(SqlState::RESERVED_NAME, format!("unacceptable tablespace name \"{name}\""))
                .with_detail("The prefix \"pg_\" is reserved for system tablespaces."));
        }
        self.spaces.create(config)?;
        // Of one with this name that was dropped while it was being altered.
        self.altered.lock().remove(&name);
        self.save().inspect_err(|_| {
            if let Err(error) = self.spaces.drop(&name) {
                tracing::warn!("tablespace \"{name}\" was not recorded and could not be dropped: {error}");
            }
        })
    }

    /// 55006 while any table uses it or anything lives in it. Waits a moment for the heaps of statements that have just
    /// ended: their last tasks may still be letting go of what they held.
    pub fn drop_tablespace(&self, name: &str) -> Result<()> {
        let deadline = Instant::now() + HEAP_LINGERS_MAX;
        loop {
            let dropped = self.try_drop_tablespace(name);
            let in_use = dropped.as_ref().is_err_and(|error| error.code() == SqlState::OBJECT_IN_USE);
            if !in_use || !self.holds_only_heap(name) || Instant::now() >= deadline {
                return dropped;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn holds_only_heap(&self, name: &str) -> bool {
        let rows = self.spaces.ledger().into_iter().filter(|row| row.tablespace == name && row.bytes > 0);
        let purposes: Vec<Purpose> = rows.map(|row| row.purpose).collect();
        let held = |purpose: &Purpose| !matches!(purpose, Purpose::Metadata | Purpose::Free);
        purposes.contains(&Purpose::Heap)
            && purposes.iter().filter(|purpose| held(purpose)).all(|purpose| *purpose == Purpose::Heap)
    }

    fn try_drop_tablespace(&self, name: &str) -> Result<()> {
        let _commit = self.commit.lock();
        self.spaces.get(name)?;
        let version = self.state();
        let uses = |table: &&Arc<Table>| {
            let placement = &table.placement;
            let own = table.def.indexes.iter().filter_map(|index| index.tablespace.as_ref());
            placement.main == name
                || placement.delta == name
                || placement.columns.values().chain(own).any(|space| space == name)
        };
        let shown = |table: &Arc<Table>| version.shown_name(&table.def);
        let users: Vec<String> = version.tables.values().filter(uses).map(shown).collect();
        if !users.is_empty() && !matches!(name, "near" | "far") {
            return Err(Error::new(SqlState::OBJECT_IN_USE, format!("tablespace \"{name}\" is not empty"))
                .with_detail(format!("Tables in it: {}.", users.join(", ")))
                .with_hint("Move them with ALTER TABLE … SET TABLESPACE first."));
        }
        if self.config.tablespaces.iter().any(|space| space.name == name) {
            return Err(Error::new(
                SqlState::OBJECT_IN_USE,
                format!("tablespace \"{name}\" is declared in the configuration file"),
            )
            .with_hint("Remove it there and start again."));
        }
        let id = self.spaces.get(name)?.id();
        if let Some(memory) = self.memories.lock().get(&id) {
            self.keeper.lock().collect();
            memory.trim();
        }
        self.reclaim_indexes();
        self.spaces.drop(name)?;
        self.memories.lock().remove(&id);
        self.altered.lock().remove(name);
        self.save()
    }

    /// Writes everything committed, and the recorded workload, to the data folder. A no-op without one.
    pub fn checkpoint(&self) -> Result<()> {
        self.save_if_dirty()?;
        let Some(storage) = &self.storage else { return Ok(()) };
        let version = self.version();
        self.access.forget_missing(|table| version.table_by_id(table).is_some());
        storage.save_workload(&self.access.workload())
    }

    fn save_if_dirty(&self) -> Result<()> {
        if self.dirty.load(Ordering::Acquire) { self.save() } else { Ok(()) }
    }

    /// What statements read, since the record began.
    pub fn access_log(&self) -> &Arc<AccessLog> {
        &self.access
    }

    /// Ends the background work and writes what is left. The database can still be read.
    pub fn close(&self) -> Result<()> {
        self.background.stop();
        self.background.wait();
        let Some(storage) = &self.storage else { return Ok(()) };
        let sequences = &self.version().catalog.sequences;
        let settled: Vec<_> =
            sequences.values().map(|sequence| (sequence.def.position_id, sequence.settle())).collect();
        storage.write_positions(&settled)?;
        self.checkpoint()
    }

    /// Gives out the next `count` values of a sequence, whatever becomes of the transaction that asks. With `partial`
    /// fewer where the sequence ends, but one at least. 2200H when there are no more.
    pub fn next_values(&self, sequence: &Sequence, count: u64, partial: bool) -> Result<Vec<i64>> {
        QueryHeap::outside(|| sequence.take(self.storage.as_ref(), count, partial))
    }

    /// Sets where a sequence stands, at once and for all. 22003 when the value is not within its bounds.
    pub fn set_sequence(&self, sequence: &Sequence, value: i64, called: bool) -> Result<()> {
        QueryHeap::outside(|| sequence.set(self.storage.as_ref(), value, called))
    }

    pub fn next_table_id(&self) -> TableId {
        TableId(self.next_table_id.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn next_row_group_id(&self) -> RowGroupId {
        RowGroupId(self.next_row_group_id.fetch_add(1, Ordering::Relaxed))
    }

    /// SCRAM verifiers by role (PostgreSQL's `SCRAM-SHA-256$…` text), kept in the data folder.
    pub fn password_verifier(&self, role: &str) -> Option<String> {
        self.passwords.lock().get(role).cloned()
    }

    /// True once any role has a password.
    pub fn has_passwords(&self) -> bool {
        !self.passwords.lock().is_empty()
    }

    pub fn set_password_verifier(&self, role: &str, verifier: Option<String>) -> Result<()> {
        let exchange = |verifier: Option<String>| {
            let mut passwords = self.passwords.lock();
            match verifier {
                Some(verifier) => passwords.insert(role.to_owned(), verifier),
                None => passwords.remove(role),
            }
        };
        let before = exchange(verifier);
        self.save().inspect_err(|_| drop(exchange(before)))
    }

    /// Write locks held and waited for.
    pub fn locks(&self) -> Vec<LockInfo> {
        self.locks.list()
    }

    pub fn stats(&self) -> DatabaseStats {
        let version = self.version();
        DatabaseStats {
            commit_ts: version.commit_ts,
            tables: version.tables.len(),
            dirty: self.dirty.load(Ordering::Acquire),
            locks: self.locks(),
            progress: self.progress.list(),
        }
    }

    /// Long commands that run now.
    pub fn progress(&self) -> &ProgressRegistry {
        &self.progress
    }

    /// Halves each tablespace's free memory, so that what a burst took is gone within a minute and steady use keeps its
    /// own; and gives the process's back that was of no use lately.
    fn trim(&self) {
        tidepool_heap::release(Release::Stale);
        for space in self.spaces.list() {
            let usage = space.usage();
            let free = usage.resident_bytes.saturating_sub(usage.used_bytes);
            if free > FREE_BYTES_KEPT
                && let Err(error) = space.trim(FREE_BYTES_KEPT.max(free / 2))
            {
                tracing::warn!("could not give memory of tablespace \"{}\" back: {error}", space.name());
            }
        }
    }
}

/// How often tables were written to. To be asked before a view is drawn that is saved: what it lacks is counted later.
fn counts(state: &DatabaseState) -> Writes {
    state.tables.values().map(|table| (table.def.id, table.writes())).collect()
}

impl Drop for Database {
    fn drop(&mut self) {
        // The thread holds no pointer that keeps the database alive, so it is only told.
        self.background.stop();
        // What was retired keeps its tables.
        self.unfinished.lock().clear();
        self.keeper.lock().collect();
    }
}

impl Background {
    fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Waits for work under way to end.
    fn wait(&self) {
        let mut state = self.state.lock();
        while state.busy {
            self.changed.wait(&mut state);
        }
    }

    fn run(&self, database: &Weak<Database>) {
        let mut state = self.state.lock();
        let mut failing = false;
        while !state.stopped && database.strong_count() > 0 {
            self.changed.wait_for(&mut state, BACKGROUND_INTERVAL);
            if state.stopped {
                return;
            }
            state.busy = true;
            parking_lot::MutexGuard::unlocked(&mut state, || {
                let Some(database) = database.upgrade() else { return };
                database.tend_rows();
                database.trim();
                match database.save_if_dirty() {
                    Ok(()) => failing = false,
                    // Once until it works again: a full disk would fill the log every few seconds.
                    Err(error) if !failing => {
                        tracing::error!("could not write to the data folder: {error}");
                        failing = true;
                    }
                    Err(_) => {}
                }
            });
            state.busy = false;
            self.changed.notify_all();
        }
    }
}
