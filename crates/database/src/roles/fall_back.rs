//! The way in with a data folder beside the pool: which of the two has the newest of the database, and how the pool comes to have
//! it again.
//!
//! The pool has all that the folder has, and more, as long as it is there: the copy of the log is made behind it. So the folder
//! counts only where
//!
//! * there is no pool at its place, or what is there is damaged: it is made anew, as large as it was;
//! * the pool has no such database, or one in which nothing was ever committed;
//! * what the pool has of the database is damaged, and the folder is of that very database (their identities say so): the one in the pool
//!   is dropped, and made anew.
//!
//! Then the folder's checkpoint is read, the copy of the log is followed to its end, as a standby follows a pool's, and a
//! manifest in the pool says what there is before the host serves. A database that was made anew has another identity, and its
//! manifests say whose life it goes on with, and up to where. So the folder of another host, which was copied from the lost
//! pool, is told from a stranger's, and one that has *more* than the new pool is never overwritten.
//!
//! Nothing of that happens where another host of the database is alive, nor at the start of a standby.

use super::attach::{self, Attached};
use super::following::Following;
use super::tier2::{copy_folder, copy_of};
use super::{HostRole, Roles};
use crate::catalog::relation::RelationName;
use crate::catalog::state::{Catalog, DatabaseState};
use crate::config::{PoolRole, PoolSettings};
use crate::database::Follows;
use crate::durability::ids;
use crate::durability::redo::{COMMIT, MAIN};
use crate::durability::small::MainRecord;
use crate::durability::storage::{
    EarlierLife, FoundGroups, LogPlace, Manifest, SavedFile, SavedPool, SavedTable, Storage, lock_folder,
};
use crate::follow::{Batch, Follower, LoggedRecord, RowGroups};
use crate::pool_host::PoolHost;
use crate::{Config, Database, Sequence};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Instant;
use tidepool_base::{CommitTs, Error, Result, RowGroupId, SqlState};
use tidepool_device::Location;
use tidepool_log::files::SystemFiles;
use tidepool_log::{DatabaseIdentity, FileSource, Next, PoolSource, PoolTail, Tail};
use tidepool_pool::control::living_beside;
use tidepool_pool::liveness::Watcher;
use tidepool_pool::member::{JoinOptions, Member};
use tidepool_pool::pool::{CreateOptions, Pool};
use tidepool_pool::words::Root;
use tidepool_table::{RowGroup, Table, TableDef};
use tidepool_txn::Worker;

/// A data folder beside a role, as it was found.
pub(super) struct Folder {
    pub storage: Storage,
    pub manifest: Manifest,
}

impl Folder {
    pub fn open(config: &Config) -> Result<Option<Folder>> {
        let Some(path) = &config.data_dir else { return Ok(None) };
        let lock = lock_folder(path)?;
        #[cfg(test)]
        let files = crate::stress::files();
        #[cfg(not(test))]
        let files = Arc::new(SystemFiles);
        let (storage, manifest) = Storage::open(path, files, Some(lock))?;
        // A manifest in the pool does.
        storage.say_no_places();
        Ok(Some(Folder { storage, manifest }))
    }

    /// 55000 unless nothing was ever in it.
    pub fn check_new(&self) -> Result<()> {
        if !self.has_contents() {
            return Ok(());
        }
        let shown = self.storage.folder().display();
        Err(Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("data folder \"{shown}\" has a database already"),
        )
        .with_detail("It is to be the second tier of what the copy has once it is promoted.")
        .with_hint("Name an empty folder with --data, or none."))
    }

    /// It has a database.
    fn has_contents(&self) -> bool {
        self.manifest.commit_ts > CommitTs(0) || self.manifest.identity.is_some()
    }

    /// 55000 where its log is in it: what the last checkpoint lacks would be lost.
    fn check_log(&self) -> Result<()> {
        let has_log = match &self.manifest.log {
            Some(log) => !log.closed && !matches!(log.place, LogPlace::Pool(_)),
            None => self.manifest.identity.is_some(),
        };
        let is_old = self.manifest.tables.iter().any(|table| table.store.is_none());
        if has_log || is_old {
            let shown = self.storage.folder().display();
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("data folder \"{shown}\" cannot be brought into a pool yet"),
            )
            .with_detail("Its log has what its last checkpoint lacks, or it is of an earlier release.")
            .with_hint("Start the server once without a role, and stop it."));
        }
        Ok(())
    }

    /// Everything up to here is in it.
    fn end(&self, config: &Config) -> Result<CommitTs> {
        let Some(files) = self.copy(config)? else { return Ok(self.manifest.commit_ts) };
        let end = files.end()?;
        Ok(end.map_or(CommitTs(0), |end| end.floor).max(self.manifest.commit_ts))
    }

    /// The copy of the log. `None`: the checkpoint has everything.
    fn copy(&self, config: &Config) -> Result<Option<FileSource>> {
        let (Some(copy), Some(identity)) = (copy_of(&self.manifest), self.manifest.identity()?) else {
            return Ok(None);
        };
        let folder = copy_folder(config, &self.storage, copy);
        FileSource::open(Arc::clone(self.storage.files()), &folder, copy.segment_bytes, identity).map(Some)
    }

    fn is_of(&self, host: &PoolHost) -> Result<bool> {
        let identity = DatabaseIdentity(host.database_identity()?);
        Ok(self.manifest.identity()? == Some(identity))
    }

    fn pool(&self) -> Option<&SavedPool> {
        copy_of(&self.manifest).map(|copy| &copy.pool)
    }
}

impl Database {
    /// Opens a database that lives in a pool, as primary or standby. 55006 where it is to be primary and another host is.
    pub(crate) fn open_in_pool(config: Config, begins_as: PoolRole) -> Result<Arc<Database>> {
        let Some(settings) = config.pool.clone() else { return Err(Error::internal("a role without a pool")) };
        // No host can follow another's log in a slice that is one machine's alone.
        let begins_as = match begins_as {
            PoolRole::Copy => return Database::open_copy(config),
            _ if settings.machine.is_some() => PoolRole::Primary,
            other => other,
        };
        let mut given_up = false;
        loop {
            let folder = Folder::open(&config)?;
            if let Some(folder) = &folder {
                folder.check_log()?;
            }
            let fills = matches!(begins_as, PoolRole::Primary | PoolRole::Auto)
                && folder.as_ref().is_some_and(Folder::has_contents);
            let joined = PoolHost::join(&config);
            let host = match (joined, &folder) {
                (Err(error), Some(folder)) if fills && !given_up && is_lost(&error, &settings.location) => {
                    tracing::error!("{error}: the pool is made anew, and filled from the data folder");
                    make_anew(&settings, folder.pool(), &error)?;
                    given_up = true;
                    continue;
                }
                (joined, _) => joined?.ok_or_else(|| Error::internal("a role without a pool"))?,
            };
            host.check_beside_copies(false)?;
            let reigns = host.host_of(host.member().reign()?)?.is_some();
            let Some(folder) = folder else { return Database::open_from_pool(config, begins_as, &host, None) };
            let is_same = folder.is_of(&host)?;
            if fills && !reigns && !is_same {
                match logged(&host)? {
                    InLog::Nothing => {
                        check_no_stranger(&settings.location, Some(host.pool()))?;
                        return Database::open_from_folder(config, begins_as, &host, folder);
                    }
                    // Another start was filling it, and did not come to its end.
                    InLog::Marks => {
                        drop((host, folder));
                        let pool = Folder::open(&config)?.and_then(|folder| folder.pool().cloned());
                        give_up(&settings, pool.as_ref())?;
                        continue;
                    }
                    InLog::Commits => {}
                }
            }
            let opened = Database::open_from_pool(config.clone(), begins_as, &host, Some(folder));
            match opened {
                Err(error) if fills && !reigns && is_same && !given_up && error.code() == SqlState::DATA_CORRUPTED => {
                    tracing::error!(
                        "{error}: what the pool has of the database is dropped, and filled from the data folder"
                    );
                    drop(host);
                    let pool = Folder::open(&config)?.and_then(|folder| folder.pool().cloned());
                    give_up(&settings, pool.as_ref()).map_err(|given_up| {
                        error
                            .clone()
                            .with_hint(format!("The data folder has a copy, but the pool is not given up: {given_up}"))
                    })?;
                    given_up = true;
                }
                opened => return opened,
            }
        }
    }

    /// Opens it from what the pool has.
    fn open_from_pool(
        config: Config,
        begins_as: PoolRole,
        host: &Arc<PoolHost>,
        folder: Option<Folder>,
    ) -> Result<Arc<Database>> {
        let ends_at = match &folder {
            Some(folder) if folder.has_contents() && !folder.is_of(host)? => Some(folder.end(&config)?),
            _ => None,
        };
        let (storage, manifest) =
            folder.map_or((None, None), |Folder { storage, manifest }| (Some(storage), Some(manifest)));
        if let (Some(storage), Some(manifest)) = (&storage, &manifest) {
            let identity = DatabaseIdentity(host.database_identity()?);
            storage.begin_second_tier(manifest.identity()? == Some(identity))?;
        }
        let (database, following) = Following::attach(config, host, storage)?;
        if let (Some(ends_at), Some(manifest)) = (ends_at, &manifest) {
            database.check_follows(manifest, ends_at)?;
        }
        let roles = database.roles_of_pool()?;
        *roles.folder.lock() = manifest;
        following.run(&database, begins_as)
    }

    pub(super) fn roles_of_pool(&self) -> Result<Arc<Roles>> {
        self.roles.clone().ok_or_else(|| Error::internal("a database in a pool has no role"))
    }

    /// 55000 unless the pool goes on with all that a folder has.
    fn check_follows(&self, manifest: &Manifest, ends_at: CommitTs) -> Result<()> {
        let lives = self.earlier_lives.lock();
        let life = lives.iter().find(|life| Some(&life.identity) == manifest.identity.as_ref());
        let detail = match life {
            Some(life) if ends_at <= life.upto => return Ok(()),
            Some(life) => format!(
                "The pool was made anew from another copy, which had commits up to {}. The folder has commits up to {ends_at}.",
                life.upto
            ),
            None => "Nothing in the pool says that its database goes on with the one in the folder.".to_owned(),
        };
        Err(Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            "the data folder has a database that is not the one in the pool",
        )
        .with_detail(detail)
        .with_hint("Name an empty folder with --data; or stop the pool's hosts, drop its database, and start from this folder."))
    }

    /// Fills the pool's database, which is new, from the data folder.
    fn open_from_folder(
        config: Config,
        begins_as: PoolRole,
        host: &Arc<PoolHost>,
        folder: Folder,
    ) -> Result<Arc<Database>> {
        let begun = Instant::now();
        let ts = folder.manifest.commit_ts;
        let source = folder.copy(&config)?;
        let threads = config.threads.clamp(1, attach::APPLY_THREADS_MAX);
        let Folder { storage, manifest } = folder;
        let follows =
            Follows { storage: Some(storage), applied: ts, host: Some(Arc::clone(host)), catalogue: Some(&manifest) };
        let database = Database::open_as(config, Arc::new(SystemFiles), None, Some(follows))?;
        let roles = database.roles_of_pool()?;
        database.attach_folder(database.folder_storage()?, &manifest)?;
        let groups = Arc::new(FileGroups { database: Arc::downgrade(&database), loaded: Mutex::default() });
        let mut follower = Follower::new(&database, Arc::clone(&groups) as _, threads)?;
        let mut after = ts;
        if let (Some(source), Some(copy), Some(identity)) = (source, copy_of(&manifest), manifest.identity()?) {
            let from = if copy.from.is_some() { copy.from } else { source.oldest()? };
            let mut tail = Tail::open(source, identity, from);
            tail.skip_to(ts);
            while let Next::Batch(batch) = tail.read()? {
                let batch = of_files(&database, &mut tail, batch, &mut |_| ())?;
                follower.apply(&database, batch)?;
            }
            tail.check_end()?;
            after = after.max(tail.ts_max());
        }
        let upto = follower.applied_ts();
        let storage = database.folder_storage()?;
        let version = database.version();
        storage.recovered(&version, version.view(), &groups.loaded.lock())?;
        storage.remove_leftovers()?;
        drop(version);
        if let Some(identity) = &manifest.identity {
            let life = EarlierLife { identity: identity.clone(), upto };
            database.earlier_lives.lock().push(life);
        }
        let tail = PoolTail::attach(Arc::clone(host.member()), roles.identity(), None, after)?;
        let following = Following::of(&roles, Attached { follower, tail });
        let database = following.run(&database, begins_as)?;
        if database.role() != HostRole::Primary {
            return Err(Error::new(SqlState::OBJECT_IN_USE, "another host filled the pool from its data folder")
                .with_hint("Start this one again."));
        }
        // From here on the pool has the database.
        if let Some(checkpoints) = roles.checkpoints() {
            checkpoints.write(&database)?;
        }
        // And the folder is its second tier.
        database.save()?;
        tracing::warn!(
            upto = upto.0,
            ms = begun.elapsed().as_millis() as u64,
            "the pool was filled from the data folder, with all that was copied there"
        );
        Ok(database)
    }

    pub(crate) fn folder_storage(&self) -> Result<&Storage> {
        self.storage.as_ref().ok_or_else(|| Error::internal("a second tier without a folder"))
    }

    /// Makes the checkpoint of a folder the present state of a database that follows, and has nothing yet.
    pub(crate) fn attach_folder(&self, storage: &Storage, manifest: &Manifest) -> Result<()> {
        let state = self.state_of_folder(storage, manifest)?;
        self.set_state(state);
        self.index_tables()
    }

    /// What the checkpoint of a folder has, as a state whose tables lack their indexes. Nobody sees it yet.
    pub(super) fn state_of_folder(&self, storage: &Storage, manifest: &Manifest) -> Result<DatabaseState> {
        let worker = self.transactions().worker()?;
        let mut made = BTreeMap::new();
        for saved in &manifest.tables {
            let table = self.table_of_folder(storage, &worker, saved, manifest.commit_ts)?;
            storage.loaded(&table, saved);
            made.insert(RelationName::from(&*table.def), Arc::new(table));
        }
        // The copy of the log has later positions; without one, it is the file that has them.
        let is_copied = copy_of(manifest).is_some();
        let position = |id| if is_copied { None } else { storage.position(id) };
        let sequences = manifest.sequences.iter().map(|saved| {
            let position = position(saved.def.position_id).unwrap_or(saved.position);
            (RelationName::from(&saved.def), Arc::new(Sequence::at(saved.def.clone(), position)))
        });
        let views = manifest.views.iter().map(|view| (RelationName::from(view), Arc::new(view.clone())));
        let comments = manifest.comments.iter().map(|(about, text)| (about.clone(), Arc::from(text.as_str())));
        let access = manifest.access.iter().map(|(object, access)| (object.clone(), Arc::new(access.clone())));
        let catalog = Catalog {
            schemas: manifest.schemas(),
            views: views.collect(),
            sequences: sequences.collect(),
            comments: comments.collect(),
            roles: manifest.roles(),
            access: access.collect(),
        };
        let mut state = DatabaseState::new(manifest.commit_ts, made, Arc::new(catalog));
        state.forget_access_to_missing();
        ids::check_state(&state, &self.ids)?;
        worker.rest();
        Ok(state)
    }

    fn table_of_folder(&self, storage: &Storage, worker: &Worker, saved: &SavedTable, ts: CommitTs) -> Result<Table> {
        let mut def = TableDef::clone(&saved.def);
        def.number_columns();
        let def = Arc::new(def);
        let store = saved.store.ok_or_else(|| Error::internal("a table without a store"))?;
        let rows = self.rows_of_store(store, &def, &saved.placement)?;
        let view = worker.snapshot_now();
        let (spaces, threads) = (self.tablespaces(), self.config().threads);
        storage.load_table(saved, spaces, threads, &rows, worker, &view, ts, &mut FoundGroups::default())?;
        rows.end_restoring(&view);
        // The log brings rows to any place; those that this process writes one day go to new ranges.
        rows.seal();
        Ok(Table::new(def, saved.placement.clone(), rows))
    }
}

/// Records of a copy. What merges made is not in the folder yet, and their rows are: `main` is told of each.
pub(crate) fn of_files(
    database: &Database,
    tail: &mut Tail<FileSource>,
    batch: tidepool_log::Batch,
    main: &mut dyn FnMut(MainRecord),
) -> Result<Batch> {
    let tidepool_log::Batch { floor, records } = batch;
    let mut logged = Vec::with_capacity(records.len());
    for mut record in records {
        if record.kind == MAIN {
            let made = MainRecord::from_bytes(&tail.payload_of(&record)?)?;
            made.group.iter().for_each(|(group, _)| database.ids.pass_row_group(*group));
            main(made);
            continue;
        }
        if record.kind.may_be_skipped() {
            continue;
        }
        let mut pieces = Vec::new();
        while let Some(piece) = tail.next_piece(&mut record)? {
            pieces.push(piece.to_vec());
        }
        logged.push(LoggedRecord { ts: record.ts, kind: record.kind, pieces });
    }
    Ok(Batch { records: logged, floor })
}

/// Row groups of loads, from their files.
struct FileGroups {
    database: Weak<Database>,
    loaded: Mutex<Vec<RowGroupId>>,
}

impl RowGroups for FileGroups {
    fn loaded(&self, table: &Table, group: RowGroupId, rows: u64, _: Option<&[u8]>) -> Result<Arc<RowGroup>> {
        let database = self.database.upgrade().ok_or_else(|| Error::internal("the database is closed"))?;
        let storage = database.storage.as_ref().ok_or_else(|| Error::internal("a second tier without a folder"))?;
        let file = SavedFile { id: group.0, rows, range: None };
        let spaces = database.tablespaces();
        let loaded = storage.load_group(&table.def, &table.placement, &file, spaces, &FoundGroups::default())?;
        self.loaded.lock().push(group);
        Ok(Arc::new(loaded))
    }

    fn merged(&self, _: &Table, _: RowGroupId, _: u64, _: &[u8]) -> Result<Arc<RowGroup>> {
        Err(Error::internal("what a merge made is read from a copy of the log"))
    }
}

/// What the pool has of a database that has no manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InLog {
    Nothing,
    /// Records without a commit among them.
    Marks,
    Commits,
}

pub(super) fn logged(host: &PoolHost) -> Result<InLog> {
    let member = host.member();
    if member.root()?.place != Root::NEW.place {
        return Ok(InLog::Commits);
    }
    let identity = DatabaseIdentity(host.database_identity()?);
    match PoolSource::new(Arc::clone(member)).begins_after(identity)? {
        None => return Ok(InLog::Nothing),
        // Nothing is committed before the first manifest has what was brought in.
        Some(ts) if ts > CommitTs(0) => return Ok(InLog::Marks),
        Some(_) => {}
    }
    let mut tail = PoolTail::attach(Arc::clone(member), identity, None, CommitTs(0))?;
    while let Next::Batch(batch) = tail.read()? {
        if batch.records.iter().any(|record| record.kind == COMMIT) {
            return Ok(InLog::Commits);
        }
    }
    Ok(InLog::Marks)
}

/// 55006 where a server is alive that has another pool mapped than there is at its place: the file was removed or another one took
/// its place, and the memory is there as long as it is mapped. That server may be the database's primary.
fn check_no_stranger(location: &Location, pool: Option<&Pool>) -> Result<()> {
    let Location::File(path) = location else { return Ok(()) };
    let hosts = pool.map_or_else(|| Ok(Vec::new()), Pool::hosts)?;
    let is_known = |socket: &Path| {
        hosts.iter().any(|view| view.text.as_ref().is_some_and(|text| socket == Path::new(&text.control_socket)))
    };
    let Some(stranger) = living_beside(path).into_iter().find(|socket| !is_known(socket)) else { return Ok(()) };
    Err(Error::new(
        SqlState::OBJECT_IN_USE,
        format!("a server has another pool than there is at \"{location}\", and is alive"),
    )
    .with_detail(format!(
        "It listens at \"{}\", and has the pool mapped whose file was here before.",
        stranger.display()
    ))
    .with_hint("Save what it has, and stop it. Then start this server again: it fills the pool from the data folder."))
}

/// There is no pool at its place, or it is damaged.
fn is_lost(error: &Error, location: &Location) -> bool {
    let is_gone = matches!(location, Location::File(path) if !path.exists());
    is_gone || matches!(error.code(), SqlState::DATA_CORRUPTED | SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE)
}

/// Makes a pool in place of one that was lost.
fn make_anew(settings: &PoolSettings, saved: Option<&SavedPool>, cause: &Error) -> Result<()> {
    let location = &settings.location;
    let is_same = |saved: &&SavedPool| saved.location == location.to_string() && saved.devices == 1;
    // Other slices of a pool that is dealt out are other machines'.
    let Some(saved) = saved.filter(|saved| is_same(saved) && settings.machine.is_none()) else {
        return Err(cause.clone().with_hint(
            "Make a pool there: tidepool pool create. Then start the server again: it fills the pool from the data folder.",
        ));
    };
    check_no_stranger(location, None)?;
    let is_gone = matches!(location, Location::File(path) if !path.exists());
    if !is_gone {
        Pool::give_up_damaged(location)?;
    }
    let is_file = matches!(location, Location::File(_));
    let options = CreateOptions {
        devices: vec![(location.clone(), is_file.then_some(saved.bytes))],
        extent_bytes: Some(saved.extent_bytes),
        bytes_max: Some(saved.bytes_max),
        label: saved.label.clone(),
        populates: false,
        overcommits: false,
    };
    Pool::create(&options).map(drop)
}

/// Drops what the pool has of the database, or, where its books do not allow that and it has no other, the pool.
fn give_up(settings: &PoolSettings, saved: Option<&SavedPool>) -> Result<()> {
    let dropped = drop_database(settings);
    match dropped {
        Err(error) if error.code() == SqlState::DATA_CORRUPTED => {
            let pool = settings.open()?;
            if pool.databases().is_ok_and(|all| all.iter().any(|view| view.name != settings.database)) {
                return Err(error);
            }
            drop(pool);
            make_anew(settings, saved, &error)
        }
        dropped => dropped,
    }
}

pub(super) fn drop_database(settings: &PoolSettings) -> Result<()> {
    let pool = Arc::new(settings.open()?);
    Watcher::new(Arc::clone(&pool)).bury_the_dead()?;
    let tool = Member::join(pool, &JoinOptions::tool("tidepool serve"))?;
    tool.drop_database(&settings.database).map(drop)
}
