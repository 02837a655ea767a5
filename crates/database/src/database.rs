//! The database: its current state, how the next one is published, and what runs in the background.

use crate::access::AccessLog;
use crate::background::Background;
use crate::catalog::sequence::KeptPositions;
use crate::catalog::state::{Catalog, Coming, Current};
use crate::catalog::temporary::{TemporaryIds, TemporaryTables};
use crate::durability::archive::Archive;
use crate::durability::ids::Ids;
use crate::durability::log_home::{advised, open_log};
use crate::durability::log_writer::LogWriter;
use crate::durability::redo::Redo;
use crate::durability::small::MainPlaces;
use crate::durability::space_configs::SpaceConfigs;
use crate::durability::storage::{
    EarlierLife, Finds, Manifest, SavedAlteration, SavedTablespace, Storage, lock_folder,
};
use crate::durability::transaction_ids::TransactionIds;
use crate::encode_pool::EncodePool;
use crate::nodes::Nodes;
use crate::pod::PodHost;
use crate::pool_host::PoolHost;
use crate::progress::{Progress, ProgressRegistry};
use crate::roles::Roles;
use crate::write::index::IndexedAtOnce;
use crate::write::locks::{LockInfo, LockManager};
use crate::{Config, DatabaseState, DatabaseVersion, Sequence};
use parking_lot::{Mutex, RwLock};
use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidepool_base::{CommitTs, Error, Result, RowGroupId, SqlState, StoreId, TableId, TablespaceId, caught};
use tidepool_device::Location;
use tidepool_device::remote::Absence;
use tidepool_heap::{ClientMemory, QueryHeap, Release};
use tidepool_log::Log;
use tidepool_log::files::{Files, SystemFiles};
use tidepool_table::rows::{RowStore, VersionMemory};
use tidepool_table::{Table, TableDef};
use tidepool_tablespace::{Purpose, Tablespace, TablespaceConfig, Tablespaces};
use tidepool_txn::{Isolation, Tag, Transactions, View, Worker};

/// How long `DROP TABLESPACE` waits for memory of statements that have ended.
const HEAP_LINGERS_MAX: Duration = Duration::from_secs(2);

/// How often rows are tended to, and idle memory given back.
const BACKGROUND_INTERVAL: Duration = Duration::from_secs(5);

/// Free memory that a tablespace keeps for the next use however long it is idle.
const FREE_BYTES_KEPT: u64 = 64 << 20;

/// What comes has been announced. To be dropped before `commit` is let go of.
pub(crate) struct Announced<'d>(&'d Database);

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        self.0.current.write().coming = None;
    }
}

/// One a process and data folder.
///
/// Lock order: the storage's `saving`, then `commit`, then the storage's others; `current` and the rest are held for moments
/// only.
pub struct Database {
    config: Config,
    spaces: Tablespaces,
    current: RwLock<Current>,
    /// Held while the next version is made of the current one.
    pub(crate) commit: Mutex<()>,
    transactions: Arc<Transactions>,
    /// What transactions need that none has.
    seats: Mutex<Vec<Seat>>,
    /// Of a data folder, once it is recovered.
    pub(crate) log: OnceLock<Arc<Log>>,
    pub(crate) log_writer: OnceLock<LogWriter>,
    /// What archives it.
    pub(crate) archive: OnceLock<Archive>,
    /// Somebody may follow the log.
    pub(crate) main_places: OnceLock<Arc<dyn MainPlaces>>,
    /// Draws views, and frees what was retired. Held for moments only.
    pub(crate) keeper: Mutex<Worker>,
    /// Merges whose versions somebody may still look at: rows, and range.
    pub(crate) unfinished: Mutex<Vec<(Arc<RowStore>, u64)>>,
    /// Shared from the record of a main until that is in its place; alone while a manifest's view is drawn. After `commit`.
    pub(crate) told: RwLock<()>,
    /// Held while those are not there that are being tried. Before `unfinished`.
    pub(crate) finishing: Mutex<()>,
    /// By table, transactions that wrote to it when it was last looked at, and since when it has been so many.
    pub(crate) quiet: Mutex<HashMap<TableId, (u64, Instant)>>,
    /// By tablespace, where versions of rows are.
    pub(crate) memories: Mutex<HashMap<TablespaceId, Arc<VersionMemory>>>,
    pub(crate) locks: LockManager,
    /// The program's procedures, which are of a room above (`by_key`).
    pub(crate) procedures: OnceLock<Box<dyn Any + Send + Sync>>,
    pub(crate) ids: Arc<Ids>,
    pub(crate) temporary_ids: TemporaryIds,
    /// Of sessions that have some.
    pub(crate) temporary_tables: Mutex<Vec<Weak<TemporaryTables>>>,
    next_transaction_id: AtomicU64,
    /// What clients that asked for it know transactions by.
    pub(crate) transaction_ids: TransactionIds,
    /// Reads the configuration again, as far as it may change.
    reload: OnceLock<Box<dyn Fn() -> Result<()> + Send + Sync>>,
    /// How often the data folder was opened to be written to, with this time.
    starts: u32,
    /// Tablespaces as `ALTER TABLESPACE` made them, or is about to.
    pub(crate) altered: Mutex<BTreeMap<String, TablespaceConfig>>,
    /// Of a database that lives in a pool: pools that were lost.
    pub(crate) earlier_lives: Mutex<Vec<EarlierLife>>,
    /// Who it is at memory nodes.
    nodes: Nodes,
    encode_pool: EncodePool,
    client_memory: Arc<ClientMemory>,
    progress: ProgressRegistry,
    access: Arc<AccessLog>,
    pub(crate) storage: Option<Storage>,
    /// Something was committed since the last checkpoint began.
    pub(crate) dirty: AtomicBool,
    pub(crate) last_checkpoint: Mutex<Instant>,
    pub(crate) background: Arc<Background>,
    pub(crate) indexed_at_once: IndexedAtOnce,
    /// Threads that fill indexes of tables that were found.
    pub(crate) indexing: Mutex<Vec<JoinHandle<()>>>,
    /// When extents of a pool were emptied for other hosts last.
    pub(crate) condensed: Mutex<Option<Instant>>,
    /// Where the database is a host of a pod.
    pod: OnceLock<Weak<PodHost>>,
    /// Where the database lives in a pool.
    pub(crate) roles: Option<Arc<Roles>>,
    /// What tablespaces at `pool:` lease from. Last, as they are dropped before.
    pool: Option<Arc<PoolHost>>,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database")
            .field("data_dir", &self.config.data_dir)
            .field("commit_ts", &self.version().commit_ts)
            .finish()
    }
}

/// What a transaction takes, and gives back.
pub(crate) struct Seat {
    pub worker: Worker,
    /// Without a log none.
    pub redo: Option<Redo>,
}

/// What goes on in a database, for views.
#[derive(Clone, Debug)]
pub struct DatabaseStats {
    pub commit_ts: CommitTs,
    pub tables: usize,
    /// The log has something that no checkpoint has.
    pub dirty: bool,
    pub locks: Vec<LockInfo>,
    pub progress: Vec<Arc<Progress>>,
}

/// What a database begins with that follows another process's log.
pub(crate) struct Follows<'f> {
    /// Its data folder, which is its second tier.
    pub storage: Option<Storage>,
    /// The log up to there is passed over.
    pub applied: CommitTs,
    /// What the process is in the pool that the configuration names, if it has joined.
    pub host: Option<Arc<PoolHost>>,
    /// What exists by then, but for tables' rows.
    pub catalogue: Option<&'f Manifest>,
}

impl Database {
    /// Opens (or makes) the data folder and reads what is in it. One process at a time: 55006 otherwise.
    /// One that lives in a pool has other processes beside it: this one becomes its primary, or follows that.
    pub fn open(config: Config) -> Result<Arc<Database>> {
        if let Some(role) = config.pool.as_ref().and_then(|pool| pool.role) {
            return Database::open_in_pool(config, role);
        }
        let lock = config.data_dir.as_deref().map(lock_folder).transpose()?;
        Database::open_with(config, Arc::new(SystemFiles), lock)
    }

    /// `lock`: of the folder, where other processes could have it.
    pub(crate) fn open_with(config: Config, files: Arc<dyn Files>, lock: Option<File>) -> Result<Arc<Database>> {
        Database::open_as(config, files, lock, None)
    }

    /// One of which nothing is kept, by these transactions.
    pub(crate) fn open_with_transactions(config: Config, transactions: Arc<Transactions>) -> Result<Arc<Database>> {
        Database::open_by(config, Arc::new(SystemFiles), None, None, Some(transactions))
    }

    /// `follows`: another process's log. Without a data folder.
    pub(crate) fn open_as(
        config: Config,
        files: Arc<dyn Files>,
        lock: Option<File>,
        follows: Option<Follows<'_>>,
    ) -> Result<Arc<Database>> {
        Database::open_by(config, files, lock, follows, None)
    }

    fn open_by(
        config: Config,
        files: Arc<dyn Files>,
        lock: Option<File>,
        mut follows: Option<Follows<'_>>,
        transactions: Option<Arc<Transactions>>,
    ) -> Result<Arc<Database>> {
        tidepool_heap::set_process_limit(config.memory_limit_bytes);
        let (storage, manifest) = match (&config.data_dir, &mut follows) {
            (None, None) => (None, Manifest::new()),
            (folder, Some(follows)) => {
                let manifest = follows.catalogue.cloned().unwrap_or_else(Manifest::new);
                let storage = follows.storage.take();
                if let (Some(folder), Some(storage)) = (folder, &storage) {
                    tidepool_heap::open_overflow(folder);
                    storage.ids().pass(&Ids::of(&manifest).next());
                }
                (storage, manifest)
            }
            (Some(folder), None) => {
                let (storage, manifest) = Storage::open(folder, files, lock)?;
                tidepool_heap::open_overflow(folder);
                (Some(storage), manifest)
            }
        };
        if let Some(bytes) = config.last_level_cache_bytes {
            tidepool_device::set_last_level_cache_bytes(bytes)?;
        }
        if let Some(profile) = &config.local_profile {
            tidepool_device::set_local_profile(profile.clone())?;
        }
        let configs = SpaceConfigs::of(&config, &manifest)?;
        let log_place = manifest.log.as_ref().map(|log| &log.place);
        // A folder that is new has nothing that a device lacks: who configures that is told what is wrong with it.
        let known = storage.as_ref().filter(|_| manifest.identity.is_some() && follows.is_none());
        let host = follows.as_ref().and_then(|follows| follows.host.clone());
        let pool = if host.is_some() { host } else { PoolHost::join(&config)? };
        let roles = match (&pool, &config.pool) {
            (Some(host), Some(settings)) => {
                settings.role.map(|role| Roles::new(host, settings, role).map(Arc::new)).transpose()?
            }
            _ => None,
        };
        let nodes = Nodes::new(config.data_dir.clone());
        let known = known.map(|storage| (storage, log_place));
        let spaces = configs.open(&Finds::new(&manifest), pool.as_deref(), known, &nodes)?;
        if let Some(name) = &config.process_tablespace {
            tidepool_heap::place_process_memory(&spaces.get(name)?)?;
        }
        let names = config.temp_tablespaces.iter().chain([&config.default_tablespace]);
        for name in names {
            spaces.get(name)?;
        }
        let open_log = |storage| open_log(&config, storage, &manifest, &|name| spaces.get(name));
        let mut log = storage.as_ref().filter(|_| follows.is_none()).map(open_log).transpose()?;
        let last = log.as_mut().map_or(Ok(CommitTs(0)), |log| log.recovery.look_ahead().map_err(advised))?;
        let transactions = match (transactions, &follows) {
            (Some(transactions), _) => transactions,
            (None, Some(follows)) => Transactions::following(follows.applied),
            (None, None) => Transactions::starting_after(manifest.commit_ts.max(last)),
        };
        let catalog = Arc::new(Catalog { schemas: manifest.schemas(), roles: manifest.roles(), ..Catalog::default() });
        let database = Arc::new(Database {
            encode_pool: EncodePool::new(config.threads),
            nodes,
            client_memory: ClientMemory::new(
                config.client_memory_bytes,
                config.server.connections_max,
                config.memory_limit_bytes,
            ),
            config,
            spaces,
            current: RwLock::new(Current {
                state: Arc::new(DatabaseState::new(manifest.commit_ts, BTreeMap::new(), catalog)),
                coming: None,
            }),
            commit: Mutex::new(()),
            locks: LockManager::new(transactions.clone()),
            procedures: OnceLock::new(),
            seats: Mutex::default(),
            log: OnceLock::new(),
            log_writer: OnceLock::new(),
            archive: OnceLock::new(),
            main_places: OnceLock::new(),
            memories: Mutex::default(),
            quiet: Mutex::default(),
            keeper: Mutex::new(transactions.worker()?),
            unfinished: Mutex::default(),
            told: RwLock::default(),
            finishing: Mutex::default(),
            transactions,
            ids: storage.as_ref().map_or_else(|| Arc::new(Ids::of(&manifest)), |storage| Arc::clone(storage.ids())),
            temporary_ids: TemporaryIds::default(),
            temporary_tables: Mutex::default(),
            next_transaction_id: AtomicU64::new(1),
            transaction_ids: TransactionIds::restore(&manifest.transaction_ids),
            reload: OnceLock::new(),
            starts: manifest.starts + 1,
            altered: Mutex::new(configs.altered),
            earlier_lives: Mutex::new(manifest.earlier_lives.clone()),
            progress: ProgressRegistry::default(),
            access: Arc::new(AccessLog::new(storage.as_ref().and_then(Storage::load_workload))),
            storage,
            dirty: AtomicBool::new(false),
            last_checkpoint: Mutex::new(Instant::now()),
            background: Arc::default(),
            condensed: Mutex::default(),
            indexed_at_once: IndexedAtOnce::of_thread(),
            indexing: Mutex::default(),
            pod: OnceLock::new(),
            roles,
            pool,
        });
        if let Some(log) = log {
            database.start_log(manifest, log)?;
        }
        if follows.is_none() {
            // The manifest that says so is on its device.
            database.transaction_ids.begin(database.starts);
        }
        // Once everything that was left there is in its place.
        for space in database.spaces.list() {
            space.populate()?;
        }
        let (weak, background) = (Arc::downgrade(&database), database.background.clone());
        if let Some(host) = &database.pool {
            host.set_tender(&background);
        }
        // What it merges is for scans: it takes nothing of transactions' processors.
        let cores = database.config.workload.analytics.cores.clone();
        std::thread::Builder::new()
            .name("background".to_owned())
            .spawn(move || {
                if let Err(error) = tidepool_device::confine(&cores) {
                    tracing::warn!(%error, "the background thread runs on any processor");
                }
                tend(&weak, &background);
            })
            .map_err(|error| Error::io("start the background thread", &error))?;
        Ok(database)
    }

    pub(crate) fn set_pod_host(&self, host: &Arc<PodHost>) {
        let set = self.pod.set(Arc::downgrade(host));
        debug_assert!(set.is_ok());
    }

    /// What the database is in a pod, if it is in one.
    pub fn pod_host(&self) -> Option<Arc<PodHost>> {
        self.pod.get().and_then(Weak::upgrade)
    }

    /// Answers other hosts of a pod, where there are some.
    #[inline]
    pub(crate) fn serve_pod(&self) {
        if let Some(host) = self.pod.get() {
            host.upgrade().inspect(|host| host.serve());
        }
    }

    /// What clients make the process hold.
    pub fn client_memory(&self) -> &Arc<ClientMemory> {
        &self.client_memory
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// How the configuration is read again: once, by who read it.
    pub fn set_reload(&self, reload: impl Fn() -> Result<()> + Send + Sync + 'static) {
        let _ = self.reload.set(Box::new(reload));
    }

    /// Reads the configuration again. Where it is wrong, all stays as it is, and the log says so.
    pub fn reload_configuration(&self) {
        match self.reload.get().map(|reload| reload()) {
            None | Some(Ok(())) => {}
            Some(Err(error)) => tracing::error!("the configuration contains errors; nothing was changed: {error}"),
        }
    }

    /// What this process is in the pool that its tablespaces at `pool:` lease from.
    pub fn pool(&self) -> Option<&Arc<PoolHost>> {
        self.pool.as_ref()
    }

    pub fn tablespaces(&self) -> &Tablespaces {
        &self.spaces
    }

    /// What no client knows, and every start has again: where there is a data folder, its identity, and in a pool the
    /// database's.
    pub fn secret(&self) -> [u8; 16] {
        static OF_PROCESS: OnceLock<[u8; 16]> = OnceLock::new();
        if let Some(roles) = &self.roles {
            return roles.identity().0;
        }
        let log = self.storage.as_ref().and_then(Storage::log_home);
        log.map_or_else(|| *OF_PROCESS.get_or_init(rand::random), |home| home.identity.0)
    }

    /// What exists.
    pub fn state(&self) -> Arc<DatabaseState> {
        self.current.read().state.clone()
    }

    /// All that is committed by now.
    pub fn version(&self) -> Arc<DatabaseVersion> {
        self.version_over(Arc::clone)
    }

    /// As `version`, for a session with temporary tables.
    pub fn version_for(&self, temporary: &TemporaryTables) -> Arc<DatabaseVersion> {
        let version = self.version_over(|state| temporary.over(state.clone()));
        if self.is_following() && version.temporary_schema().is_some() {
            temporary.note_view(version.view());
        }
        version
    }

    fn version_over(&self, over: impl Fn(&Arc<DatabaseState>) -> Arc<DatabaseState>) -> Arc<DatabaseVersion> {
        QueryHeap::outside(|| {
            loop {
                let view = {
                    let mut keeper = self.keeper.lock();
                    // Within a transaction, so that no later one's writes are taken for the view's own.
                    let view = keeper.begin(Isolation::ReadCommitted).map(|()| keeper.hold_now());
                    keeper.abort(|_| ());
                    view.unwrap_or_else(|_| keeper.hold_now())
                };
                if let Some(state) = self.state_as_of(&view) {
                    return Arc::new(DatabaseVersion::new(over(&state), Arc::new(view)));
                }
            }
        })
    }

    /// What existed when a view was drawn. `None`: what exists is newer, and another view is to be drawn.
    pub(crate) fn state_as_of(&self, view: &View) -> Option<Arc<DatabaseState>> {
        self.current.read().as_of(&self.transactions, view)
    }

    /// Announces what will exist when a transaction commits, until the state is set or what this returns is dropped.
    pub(crate) fn announce(&self, coming: Arc<Coming>) -> Announced<'_> {
        self.current.write().coming = Some(coming);
        Announced(self)
    }

    pub(crate) fn take_transaction_id(&self) -> u64 {
        self.next_transaction_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn take_seat(&self) -> Result<Seat> {
        let idle = self.seats.lock().pop();
        idle.map_or_else(|| self.new_seat(), Ok)
    }

    fn new_seat(&self) -> Result<Seat> {
        Ok(Seat { worker: self.transactions.worker()?, redo: self.new_redo()? })
    }

    /// Without a log none.
    pub(crate) fn new_redo(&self) -> Result<Option<Redo>> {
        let appended = || self.roles.as_ref().map(|roles| Arc::clone(roles.appended()));
        self.log.get().map(|log| Redo::new(log, appended())).transpose()
    }

    /// Seats that were taken before there was a log have no end of it.
    pub(crate) fn forget_seats(&self) {
        self.seats.lock().clear();
    }

    pub(crate) fn give_back(&self, seat: Seat) {
        seat.worker.rest();
        self.seats.lock().push(seat);
    }

    /// Frees what nobody sees any more. Many versions take a while, in which nobody waits for the keeper.
    pub(crate) fn collect(&self) {
        match self.take_seat() {
            Ok(seat) => {
                seat.worker.collect();
                self.give_back(seat);
            }
            Err(_) => _ = self.keeper.lock().collect(),
        }
    }

    /// A quarter of some tablespace at most is left.
    pub(crate) fn is_short_of_memory(&self) -> bool {
        self.spaces.list().iter().any(|space| space.available_bytes() < space.size_bytes() / 4)
    }

    pub(crate) fn set_state(&self, state: DatabaseState) {
        let state = Arc::new(state);
        let before = std::mem::replace(&mut *self.current.write(), Current { state: state.clone(), coming: None });
        for (name, table) in &before.state.tables {
            if state.tables.get(name).is_none_or(|now| !Arc::ptr_eq(now, table)) {
                table.supersede();
            }
        }
        self.forget_states();
    }

    pub(crate) fn transactions(&self) -> &Arc<Transactions> {
        &self.transactions
    }

    /// The next checkpoint has something to do.
    pub(crate) fn rows_changed(&self) {
        // Looked at first, as all who commit come by here.
        if self.storage.is_some() && !self.dirty.load(Ordering::Acquire) {
            self.dirty.store(true, Ordering::Release);
        }
    }

    pub(crate) fn encode_pool(&self) -> &EncodePool {
        &self.encode_pool
    }

    /// Everything but what a state has, and the counters of ids: these are asked for when all is known that is named.
    pub(crate) fn manifest(&self, commit_ts: CommitTs) -> Manifest {
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
        let log = self.storage.as_ref().and_then(Storage::log_home);
        Manifest {
            commit_ts,
            starts: if self.storage.is_some() { self.starts } else { 0 },
            identity: log.as_ref().map(|home| home.identity.to_string()),
            log: log.map(|home| home.saved),
            earlier_lives: self.earlier_lives.lock().clone(),
            tablespaces: created
                .map(|space| match altered.remove(space.name()) {
                    Some(config) => SavedTablespace::new(&config),
                    None => SavedTablespace::new(&space.config()),
                })
                .collect(),
            altered: altered.into_values().filter_map(of_configured).collect(),
            ..Manifest::new()
        }
    }

    /// Not transactional, as in PostgreSQL. Remembered in the data folder.
    pub fn create_tablespace(&self, config: TablespaceConfig) -> Result<()> {
        if self.roles.is_some() {
            return Err(Error::unsupported("CREATE TABLESPACE in a database that lives in a pool")
                .with_hint("Declare the tablespace in each host's configuration file."));
        }
        let name = config.name.clone();
        if name.starts_with("pg_") {
            return Err(Error::new(SqlState::RESERVED_NAME, format!("unacceptable tablespace name \"{name}\""))
                .with_detail("The prefix \"pg_\" is reserved for system tablespaces."));
        }
        let pool = self.pool.as_deref().filter(|_| config.location == Location::Pool);
        let open = |id, config| match pool {
            Some(pool) => pool.open(id, config),
            None => self.nodes.open(id, &config, Absence::Refused).unwrap_or_else(|| Tablespace::open(id, config)),
        };
        if let Err(error) = self.spaces.create_by(config, &open)?.populate() {
            self.spaces.drop(&name)?;
            return Err(error);
        }
        // Of one with this name that was dropped while it was being altered.
        self.altered.lock().remove(&name);
        self.save_settings().inspect_err(|_| {
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
        let commit = self.commit.lock();
        self.spaces.get(name)?;
        let version = self.state();
        let shown = |table: &Arc<Table>| version.shown_name(&table.def);
        let users: Vec<String> = version.tables.values().filter(|table| table.uses(name)).map(shown).collect();
        if !users.is_empty() && !matches!(name, "near" | "far") {
            return Err(Error::new(SqlState::OBJECT_IN_USE, format!("tablespace \"{name}\" is not empty"))
                .with_detail(format!("Tables in it: {}.", users.join(", ")))
                .with_hint("Move them with ALTER TABLE … SET TABLESPACE first."));
        }
        if self.temporary_tables().iter().any(|table| table.uses(name)) && !matches!(name, "near" | "far") {
            return Err(Error::new(SqlState::OBJECT_IN_USE, format!("tablespace \"{name}\" is not empty"))
                .with_detail("Temporary tables of sessions are in it."));
        }
        if self.config.tablespaces.iter().any(|space| space.name == name) {
            return Err(Error::new(
                SqlState::OBJECT_IN_USE,
                format!("tablespace \"{name}\" is declared in the configuration file"),
            )
            .with_hint("Remove it there and start again."));
        }
        let id = self.spaces.get(name)?.id();
        self.free_retired_in(id);
        self.spaces.drop(name)?;
        self.memories.lock().remove(&id);
        self.altered.lock().remove(name);
        drop(commit);
        // Tables of the last checkpoint may be in it: they have gone elsewhere since, and the log says so.
        self.save()
    }

    /// Where statements that end are recorded; [`Database::workload`] has what was.
    pub fn access_log(&self) -> &Arc<AccessLog> {
        &self.access
    }

    /// Ends the background work and makes a checkpoint. The database can still be read.
    pub fn close(&self) -> Result<()> {
        self.background.stop();
        self.background.wait();
        self.end_indexing();
        let Some(storage) = self.storage.as_ref().filter(|_| self.roles.is_none()) else { return self.leave_pool() };
        if let Some(log) = self.log.get() {
            log.close()?;
        }
        self.end_archive();
        let sequences = &self.version().catalog.sequences;
        let settled: Vec<_> =
            sequences.values().map(|sequence| (sequence.def.position_id, sequence.settle())).collect();
        storage.write_positions(&settled)?;
        self.checkpoint()?;
        self.note_log_closed()
    }

    /// Waits for threads that fill indexes, once they are told to stop.
    fn end_indexing(&self) {
        for thread in std::mem::take(&mut *self.indexing.lock()) {
            // It has told of its panic itself.
            let _ = thread.join();
        }
    }

    /// Ends what the process is to a database that lives in a pool: all of it is there.
    fn leave_pool(&self) -> Result<()> {
        let Some(roles) = &self.roles else { return Ok(()) };
        roles.stop();
        if let Some(log) = self.log.get() {
            for sequence in self.version().catalog.sequences.values() {
                sequence.settle();
            }
            if let Some(checkpoints) = roles.checkpoints()
                && let Err(error) = checkpoints.write(self)
            {
                // The log has what a manifest would have.
                tracing::warn!("no manifest was written to the pool at the end: {error}");
            }
            log.close()?;
            self.end_archive();
            if let Some(tier) = roles.second_tier.get() {
                // The log's end, too.
                tier.end();
            }
            roles.end_reign();
        }
        Ok(())
    }

    /// Ends the background work without a checkpoint.
    pub(crate) fn halt(&self) {
        self.background.stop();
        self.background.wait();
        self.end_indexing();
    }

    /// Gives out the next `count` values of a sequence, whatever becomes of the transaction that asks. With `partial`
    /// fewer where the sequence ends, but one at least. 2200H when there are no more.
    pub fn next_values(&self, sequence: &Sequence, count: u64, partial: bool) -> Result<Vec<i64>> {
        if sequence.def.id.is_temporary() {
            return QueryHeap::outside(|| sequence.take(None, count, partial));
        }
        self.check_writes()?;
        QueryHeap::outside(|| sequence.take(self.kept_positions(), count, partial))
    }

    fn kept_positions(&self) -> Option<&dyn KeptPositions> {
        (self.storage.is_some() || self.roles.is_some()).then_some(self as _)
    }

    /// Sets where a sequence stands, at once and for all. 22003 when the value is not within its bounds.
    pub fn set_sequence(&self, sequence: &Sequence, value: i64, called: bool) -> Result<()> {
        if sequence.def.id.is_temporary() {
            return QueryHeap::outside(|| sequence.set(None, value, called));
        }
        self.check_writes()?;
        QueryHeap::outside(|| sequence.set(self.kept_positions(), value, called))
    }

    pub fn next_table_id(&self) -> TableId {
        TableId(self.ids.draw_oid())
    }

    pub(crate) fn next_store_id(&self) -> StoreId {
        self.ids.draw_store()
    }

    pub(crate) fn next_row_group_id(&self) -> RowGroupId {
        self.ids.draw_row_group()
    }

    /// Of new rows of a table.
    pub(crate) fn next_row_group_of(&self, table: &TableDef) -> RowGroupId {
        match table.is_temporary() {
            true => self.temporary_ids.draw_row_group(),
            false => self.next_row_group_id(),
        }
    }

    /// Write locks held and waited for.
    pub fn locks(&self) -> Vec<LockInfo> {
        self.locks.list()
    }

    /// Who waits for whom: for a lock of a relation, or for what another transaction makes of a row or a key.
    pub fn lock_waits(&self) -> Vec<(Tag, Tag)> {
        let mut waits = self.locks.waits();
        waits.extend(self.transactions.waits());
        waits.sort_by_key(|(waiter, holder)| (waiter.number(), holder.number()));
        waits.dedup();
        waits
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
            if let Err(error) = space.look_at_pool() {
                tracing::warn!("could not look at the pool of tablespace \"{}\": {error}", space.name());
            }
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

impl Drop for Database {
    fn drop(&mut self) {
        // The thread holds no pointer that keeps the database alive, so it is only told.
        self.background.stop();
        // Those that fill indexes hold some of the tables' memory for a moment.
        self.end_indexing();
        if let Some(roles) = &self.roles {
            roles.stop();
        }
        // Before the folder is unlocked: nothing of this process writes to it any more.
        drop(self.log_writer.take());
        drop(self.archive.take());
        self.seats.get_mut().clear();
        let is_written = self.log.take().is_some_and(|log| log.flush().is_ok());
        if let Some(tier) = self.roles.as_ref().and_then(|roles| roles.second_tier.get()) {
            tier.end();
        }
        if let Some(roles) = self.roles.as_ref().filter(|_| is_written) {
            roles.end_reign();
        }
        // What was retired keeps its tables.
        self.unfinished.lock().clear();
        // Of one who follows, it would be kept for as long as time stands still.
        self.transactions.promote(CommitTs(0));
        self.keeper.lock().collect();
    }
}

/// What the background thread does, until it is stopped or the database is gone.
fn tend(database: &Weak<Database>, background: &Background) {
    let mut failing = false;
    background.run(BACKGROUND_INTERVAL, || {
        let Some(database) = database.upgrade() else { return false };
        // A round that panics is over; the next one comes all the same.
        let tended = caught(|| {
            database.tend_rows();
            database.trim();
            database.give_way_if_short()
        });
        if let Err(error) = tended {
            tracing::error!("the background thread: {error}");
        }
        match caught(|| database.checkpoint_if_due()) {
            Ok(()) => failing = false,
            // Once until it works again: a full disk would fill the server's messages.
            Err(error) if !failing => {
                tracing::error!("could not write to the data folder: {error}");
                failing = true;
            }
            Err(_) => {}
        }
        true
    });
}
