//! The data folder: what is kept when the process ends.
//!
//! ```text
//! LOCK                     held while a process uses the folder
//! MANIFEST                 what is in force (`manifest.rs`)
//! ACCESS                   the recorded workload, for the placement advisor: JSON
//! SEQUENCES                how far sequences' values may have been given (`positions.rs`)
//! log/                     what was committed since the manifest was written (`tidepool_log`, `redo.rs`)
//! rows/main-<id>.rows      one row group each (`row_file.rs`)
//! rows/delta-<id>.rows     what of a table main does not show (`delta.rs`)
//! ```
//!
//! Invariants:
//!   * Row files never change. A file is durable before a manifest or a record of the log that names it is.
//!   * The manifest is a checkpoint as of its `commit_ts`: it has all that was committed up to then, and the log has the
//!     rest.
//!   * The manifest is replaced by renaming, so that a crash leaves the old or the new one, whole.
//!   * Files that neither names are leftovers: of a crash, removed at the next start; of a transaction under way,
//!     kept until it ends.
//!
//! Lock order: `Storage::saving`, then `Database::commit`, then `Storage::state`. A sequence's own lock may be taken
//! under `saving`, and `Storage::positions` under that.

mod backup;
mod census;
mod contents;
mod delta;
mod files;
mod found;
mod log_place;
mod manifest;
mod positions;
mod row_file;

pub use backup::Copied;
pub(crate) use backup::{check_empty, check_files};
pub(crate) use census::Census;
pub(crate) use contents::SavedContents;
pub(crate) use delta::{delta_bytes, restore_delta_bytes};
pub(crate) use files::lock_folder;
pub(crate) use found::{Finds, FoundGroups, Restarted};
pub(crate) use log_place::{EarlierLife, LeftFolder, LogCopy, LogHome, LogPlace, LogRegion, SavedLog, SavedPool};
pub(crate) use manifest::{
    Manifest, SavedAlteration, SavedFile, SavedSchema, SavedSequence, SavedTable, SavedTablespace,
};

use crate::catalog::roles::{Access, RoleDef, is_initial};
use crate::durability::archive::keep_rows;
use crate::durability::ids::Ids;
use crate::{DatabaseState, DatabaseVersion, ViewDef, Workload};
use delta::Delta;
use found::{Gathered, Held};
use parking_lot::{Mutex, MutexGuard};
use positions::Positions;
use row_file::{Identity, Kind};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tidepool_base::{CommitTs, Error, Result, RowGroupId, RowId, SqlState, StoreId, TableId, crash_point};
use tidepool_log::files::Files;
use tidepool_table::rows::RowStore;
use tidepool_table::{RowGroup, Table, TableDef, TableVersion};
use tidepool_tablespace::Tablespaces;
use tidepool_txn::{View, Worker};

/// How often a checkpoint that waits for another one asks whether it is still wanted.
const SAVING_LOOK: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FileKey {
    kind: Kind,
    id: u64,
}

#[derive(Debug)]
pub(crate) struct Storage {
    folder: PathBuf,
    files: Arc<dyn Files>,
    ids: Arc<Ids>,
    state: Mutex<State>,
    /// By `SequenceDef::position_id`, as file `SEQUENCES` has them.
    positions: Mutex<Positions>,
    /// Held while a manifest is written.
    saving: Mutex<()>,
    /// The one in force, if it has all that this release writes.
    manifest: Mutex<Option<Manifest>>,
    held: Mutex<Held>,
    restarted: Restarted,
    /// Manifests say where row groups lie in memory, for a start that finds them there.
    says_places: AtomicBool,
    /// Where files wait that records of this term name, until they are archived.
    archived: OnceLock<(PathBuf, u64)>,
    /// Whose log it is and where, once that is known.
    log: Mutex<Option<LogHome>>,
    next_temporary: AtomicU64,
    /// Unlocks the folder when it closes.
    _lock: Option<File>,
}

#[derive(Debug)]
struct State {
    /// Row files that are whole and durable. Of those of main that a table has, what is in them ([`RowGroup::checksum`]).
    stored: HashMap<FileKey, Option<u64>>,
    /// Those of them that the manifest on disk names, or the log.
    named: BTreeSet<FileKey>,
    /// By table, what its delta was when it was written last.
    deltas: HashMap<TableId, StoredDelta>,
    /// Who copies files, or reads them.
    lent: usize,
    /// Files to be removed when nobody does any more.
    owed: Vec<FileKey>,
    /// A file that is named as a row group is has that row group, though nobody has looked.
    trusts: bool,
    /// Files that were there when the process came to write, and that the next checkpoint may leave behind.
    inherited: Vec<String>,
}

#[derive(Debug)]
struct StoredDelta {
    rows: Weak<RowStore>,
    /// As `Table::writes` counts, from before the view was drawn. It has all that a later view sees if no more than these had
    /// begun after that was drawn.
    writes: u64,
    groups: Vec<RowGroupId>,
    /// None when there was nothing.
    files: Vec<SavedFile>,
}

/// Files of row groups that a transaction loaded.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    /// For it.
    written: Vec<FileKey>,
    all: Vec<FileKey>,
}

/// As `Table::writes` counts, by table; taken before the view was drawn that is saved.
pub(crate) type Writes = HashMap<TableId, u64>;

impl Storage {
    /// Reads what is in the folder, which is there. 55000 when it holds something else, XX001 when its manifest is damaged.
    pub fn open(folder: &Path, files: Arc<dyn Files>, lock: Option<File>) -> Result<(Storage, Manifest)> {
        let rows = folder.join("rows");
        let entries = list(&*files, folder)?;
        let is_new = check_ours(folder, entries)?;
        files
            .create_folder(&rows)
            .map_err(|error| Error::io(format_args!("create folder \"{}\"", rows.display()), &error))?;
        let manifest = read_manifest(&*files, folder, is_new)?;
        let named: BTreeSet<FileKey> = manifest.tables.iter().flat_map(table_keys).collect();
        let positions = positions::read(folder, &*files, &manifest)?;
        let ids = Ids::of_folder(&manifest, &list(&*files, &rows)?, positions.ids());
        let storage = Storage {
            positions: Mutex::new(positions),
            folder: folder.to_owned(),
            files,
            ids: Arc::new(ids),
            state: Mutex::new(State {
                stored: named.iter().map(|key| (*key, None)).collect(),
                named,
                deltas: HashMap::new(),
                lent: 0,
                owed: Vec::new(),
                trusts: false,
                inherited: Vec::new(),
            }),
            saving: Mutex::new(()),
            manifest: Mutex::new(None),
            held: Mutex::default(),
            restarted: Restarted::default(),
            says_places: AtomicBool::new(true),
            archived: OnceLock::new(),
            log: Mutex::new(None),
            next_temporary: AtomicU64::new(0),
            _lock: lock,
        };
        Ok((storage, manifest))
    }

    pub fn files(&self) -> &Arc<dyn Files> {
        &self.files
    }

    /// What ids are drawn from. To be drawn from once the log has been read.
    pub fn ids(&self) -> &Arc<Ids> {
        &self.ids
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn log_home(&self) -> Option<LogHome> {
        self.log.lock().clone()
    }

    /// What is saved from now on says so.
    pub fn set_log_home(&self, home: LogHome) {
        *self.log.lock() = Some(home);
    }

    /// Writes a small file of this name into another folder, durably.
    pub fn write_mark(&self, folder: &Path, name: &str, text: &str) -> Result<()> {
        self.replace(&folder.join(name), &[text.as_bytes()])?;
        self.sync_other(folder)
    }

    pub fn remove_mark(&self, folder: &Path, name: &str) -> Result<()> {
        let path = folder.join(name);
        self.files
            .remove(&path)
            .map_err(|error| Error::io(format_args!("remove file \"{}\"", path.display()), &error))?;
        self.sync_other(folder)
    }

    fn sync_other(&self, folder: &Path) -> Result<()> {
        let failed = |error| Error::io(format_args!("sync folder \"{}\"", folder.display()), &error);
        self.files.sync_folder(folder).map_err(failed)
    }

    /// Replaces the manifest of a folder that no database has open.
    pub fn write_manifest(&self, mut manifest: Manifest) -> Result<()> {
        manifest.set_next_ids(self.ids.next());
        self.replace_manifest(&manifest)?;
        self.sync_manifest()
    }

    /// What is in memory is found another way, or is not this folder's.
    pub fn say_no_places(&self) {
        self.says_places.store(false, Ordering::Relaxed);
    }

    fn says_places(&self) -> bool {
        self.says_places.load(Ordering::Relaxed)
    }

    /// Of a folder that is the second tier of what this process has from a pool. `is_same`: the folder's last checkpoint is of that
    /// database, so that a file under a row group's number has that row group; what is not named by it may be somebody else's.
    pub fn begin_second_tier(&self, is_same: bool) -> Result<()> {
        let inherited = list(&*self.files, &self.folder.join("rows"))?;
        let mut state = self.state.lock();
        if !is_same {
            state.stored.clear();
        }
        (state.trusts, state.inherited) = (is_same, inherited);
        Ok(())
    }

    /// A checkpoint of this process is in force: what was there before it and what nothing names by now goes.
    pub fn end_inheritance(&self) {
        let folder = self.folder.join("rows");
        let gone: Vec<PathBuf> = {
            let mut state = self.state.lock();
            let inherited = std::mem::take(&mut state.inherited);
            let known: HashSet<PathBuf> =
                state.stored.keys().chain(&state.named).chain(&state.owed).map(|key| self.path(*key)).collect();
            inherited.into_iter().map(|name| folder.join(name)).filter(|path| !known.contains(path)).collect()
        };
        gone.iter().for_each(|path| self.remove(path));
    }

    /// The folder has a checkpoint that a copy can be made of.
    pub fn has_checkpoint(&self) -> bool {
        self.manifest.lock().is_some()
    }

    /// The manifest that was found is the one in force.
    pub fn opened(&self, manifest: Manifest) {
        *self.manifest.lock() = Some(manifest);
    }

    fn path(&self, key: FileKey) -> PathBuf {
        file_path(&self.folder, key)
    }

    /// Removes row files that nothing names. Only while nothing is being written: at start.
    pub fn remove_leftovers(&self) -> Result<()> {
        let folder = self.folder.join("rows");
        let state = self.state.lock();
        let wanted: HashSet<PathBuf> = state.named.iter().map(|key| self.path(*key)).collect();
        for name in list(&*self.files, &folder)? {
            let path = folder.join(name);
            if !wanted.contains(&path) {
                self.remove(&path);
            }
        }
        Ok(())
    }

    /// Best effort: a file that stays behind costs space until the next start.
    fn remove(&self, path: &Path) {
        if let Err(error) = self.files.remove(path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!("could not remove file \"{}\": {error}", path.display());
        }
    }

    // ------------------------------------------------------------------------------------------------------- reading

    /// Reads a table's rows back as of `ts`, `threads` files at a time. Nobody else uses them yet.
    #[expect(clippy::too_many_arguments, reason = "what a start has at hand")]
    pub fn load_table(
        &self,
        saved: &SavedTable,
        spaces: &Tablespaces,
        threads: usize,
        rows: &Arc<RowStore>,
        worker: &Worker,
        view: &View,
        ts: CommitTs,
        found: &mut FoundGroups,
    ) -> Result<()> {
        let def = &Arc::new(saved.def.clone());
        let groups = parallel(&saved.row_groups, threads, |file| {
            self.load_group(def, &saved.placement, file, spaces, found).map(Arc::new)
        })?;
        self.found(saved, rows.id(), &groups);
        // Rows come in any order, and what is gone of main's ranges is to be known when these are made. Rows that have no ids yet get
        // them behind all ranges, of which nothing is gone then.
        let have_ids = saved.store.is_some();
        let mut gone = Vec::new();
        if have_ids {
            self.restore_delta(saved, def, rows, view, ts, found, &mut gone)?;
        }
        for (place, (group, file)) in groups.into_iter().zip(&saved.row_groups).enumerate() {
            let number = file.range.unwrap_or(place as u64);
            let dead: Vec<usize> = gone.iter().filter(|row| row.range() == number).map(|row| row.position()).collect();
            rows.restore_main(worker, number, group, &dead)?;
        }
        if !have_ids {
            self.restore_delta(saved, def, rows, view, ts, found, &mut gone)?;
        }
        Ok(())
    }

    /// Puts the rows of a table's delta into their places, file by file. Adds to `gone` what it says is gone of main.
    #[expect(clippy::too_many_arguments, reason = "what a start has at hand")]
    fn restore_delta(
        &self,
        saved: &SavedTable,
        def: &Arc<TableDef>,
        rows: &Arc<RowStore>,
        view: &View,
        ts: CommitTs,
        found: &mut FoundGroups,
        gone: &mut Vec<RowId>,
    ) -> Result<()> {
        for file in &saved.delta {
            let delta = self.read_delta(def, file, rows.id(), found)?;
            delta.restore(rows, view, ts)?;
            gone.extend_from_slice(delta.gone());
        }
        Ok(())
    }

    /// Reads a file of delta, from its image in memory if that was found whole.
    fn read_delta(
        &self,
        def: &Arc<TableDef>,
        file: &SavedFile,
        store: StoreId,
        found: &mut FoundGroups,
    ) -> Result<Delta> {
        let identity = identity(Kind::Delta, def, file);
        if let Some(image) = found.take_image(file.id)
            && let Ok(parts) = row_file::parts(&image, &identity)
            && let Ok(delta) = Delta::read(def, &parts, file.rows)
        {
            self.found_image(file.id, store, image);
            return Ok(delta);
        }
        let (path, bytes) = self.read_rows(&identity)?;
        let parts = row_file::parts(&bytes, &identity);
        parts.and_then(|parts| Delta::read(def, &parts, file.rows)).map_err(|error| in_file(&path, &error))
    }

    /// A table is as `saved` says: its delta need not be written until it changes.
    pub fn loaded(&self, table: &Table, saved: &SavedTable) {
        // By an earlier version, and to be written anew: its rows had no ids, or its row groups no ranges.
        if (saved.delta.len() > 1 && saved.store.is_none()) || saved.row_groups.iter().any(|file| file.range.is_none())
        {
            return;
        }
        let stored = StoredDelta {
            rows: Arc::downgrade(&table.rows),
            writes: table.writes(),
            groups: saved.row_groups.iter().map(|file| RowGroupId(file.id)).collect(),
            files: saved.delta.clone(),
        };
        self.state.lock().deltas.insert(table.def.id, stored);
    }

    fn read_rows(&self, identity: &Identity) -> Result<(PathBuf, Vec<u8>)> {
        let path = self.path(FileKey { kind: identity.kind, id: identity.id });
        let bytes = read_file(&*self.files, &path)?;
        Ok((path, bytes))
    }

    // ------------------------------------------------------------------------------------------------------- writing

    /// Writes row groups that are not there yet, before a commit whose record names them. Returns their files, to be
    /// discarded if it fails.
    pub fn prepare<'g>(&self, groups: impl Iterator<Item = (&'g TableDef, &'g RowGroup)>) -> Result<Prepared> {
        let (mut written, mut all) = (Vec::new(), Vec::new());
        for (def, group) in groups {
            if let Err(error) = self.write_group(def, group, &mut written) {
                self.discard(&written);
                return Err(error);
            }
            all.push(FileKey { kind: Kind::Main, id: group.id().0 });
        }
        self.sync_rows(&written)?;
        if let Some((unarchived, term)) = self.archived.get() {
            let paths: Vec<_> = all.iter().map(|key| (RowGroupId(key.id), self.path(*key))).collect();
            let kept = keep_rows(unarchived, *term, paths.iter().map(|(group, path)| (*group, path.as_path())));
            kept.inspect_err(|_| self.discard(&written))?;
        }
        Ok(Prepared { written, all })
    }

    /// Files that records of a term name are kept in a folder until they are archived.
    pub fn archive_rows(&self, unarchived: PathBuf, term: u64) {
        let _ = self.archived.set((unarchived, term));
    }

    /// What the last checkpoint is as of.
    pub fn checkpoint_ts(&self) -> CommitTs {
        self.manifest.lock().as_ref().map_or(CommitTs(0), |manifest| manifest.commit_ts)
    }

    /// The log is about to name these: no checkpoint of before knows of them, and the next one does.
    pub fn name(&self, prepared: &Prepared) {
        self.state.lock().named.extend(&prepared.all);
    }

    /// The transaction has failed.
    pub fn give_up(&self, prepared: &Prepared) {
        {
            let mut state = self.state.lock();
            for key in &prepared.written {
                state.named.remove(key);
            }
        }
        self.discard(&prepared.written);
    }

    /// What the log names by now. To be asked while nobody commits such a thing, with the view that is saved.
    pub fn named(&self) -> BTreeSet<FileKey> {
        self.state.lock().named.clone()
    }

    /// What was found at a start is there, and named; also what is nobody's any more, until a checkpoint makes the log
    /// that names it superfluous. XX001 when a row group is in two places.
    pub fn recovered(&self, state: &DatabaseState, view: &View, loaded: &[RowGroupId]) -> Result<()> {
        let mut census = Census::default();
        let mut known = self.state.lock();
        for group in loaded {
            let key = FileKey { kind: Kind::Main, id: group.0 };
            known.named.insert(key);
            // Of a table that went since it is a file whose rows nobody knows: others do not go there.
            known.stored.entry(key).or_insert(None);
        }
        for table in state.tables.values() {
            census.store(table.rows.id(), table.def.id)?;
            for number in 0..table.rows.ranges() {
                if let Some(group) = table.rows.range(view, number).and_then(|range| range.group().cloned()) {
                    census.present_row_group(group.id(), table.def.id, table.rows.id())?;
                    let key = FileKey { kind: Kind::Main, id: group.id().0 };
                    known.stored.insert(key, group.checksum().ok());
                    known.named.insert(key);
                }
            }
        }
        Ok(())
    }

    fn sync_rows(&self, written: &[FileKey]) -> Result<()> {
        if written.is_empty() {
            return Ok(());
        }
        let folder = self.folder.join("rows");
        self.files.sync_folder(&folder).map_err(|error| {
            self.discard(written);
            Error::io(format_args!("sync folder \"{}\"", folder.display()), &error)
        })
    }

    /// Files of delta that the manifest in force names.
    #[cfg(test)]
    pub fn delta_files(&self) -> usize {
        self.manifest.lock().iter().flat_map(|manifest| &manifest.tables).map(|table| table.delta.len()).sum()
    }

    /// Removes files that no manifest names.
    pub fn discard(&self, keys: &[FileKey]) {
        let mut state = self.state.lock();
        let goes = |file: &SavedFile| keys.contains(&FileKey { kind: Kind::Delta, id: file.id });
        state.deltas.retain(|_, stored| !stored.files.iter().any(goes));
        for key in keys {
            if !state.named.contains(key) && state.stored.remove(key).is_some() {
                self.remove(&self.path(*key));
            }
        }
    }

    fn write_group(&self, def: &TableDef, group: &RowGroup, written: &mut Vec<FileKey>) -> Result<()> {
        let key = FileKey { kind: Kind::Main, id: group.id().0 };
        let checksum = group.checksum()?;
        {
            let mut state = self.state.lock();
            let trusts = state.trusts;
            if let Some(stored) = state.stored.get_mut(&key) {
                if stored.is_none() && trusts {
                    *stored = Some(checksum);
                }
                return if *stored == Some(checksum) { Ok(()) } else { Err(self.is_others(key)) };
            }
        }
        let parts = group.segments().iter().map(|segment| segment.read_whole()).collect::<Result<Vec<_>>>()?;
        self.write_rows(key, def, group.rows(), &parts)?;
        self.state.lock().stored.insert(key, Some(checksum));
        written.push(key);
        Ok(())
    }

    /// A row file would be written under the name of another one, or other rows taken to be in that.
    fn is_others(&self, key: FileKey) -> Error {
        Error::corrupted(format!("file \"{}\" has other rows", self.path(key).display())).with_detail(format!(
            "Id {} was drawn twice for files of kind {}.",
            key.id,
            key.kind.name()
        ))
    }

    /// Writes what main does not show of a table, unless the files are there.
    fn write_delta(
        &self,
        table: &TableVersion,
        writes: u64,
        written: &mut Vec<FileKey>,
        gathered: &mut Gathered,
    ) -> Result<Vec<SavedFile>> {
        let groups: Vec<RowGroupId> = table.row_groups.iter().map(|group| group.id()).collect();
        if let Some(stored) = self.state.lock().deltas.get(&table.def.id)
            && (stored.writes, &stored.groups) == (table.table().writes_begun(), &groups)
            && stored.rows.ptr_eq(&Arc::downgrade(table.rows()))
        {
            return Ok(stored.files.clone());
        }
        let mut files = Vec::new();
        Delta::each(table, |delta| {
            let id = self.ids.draw_chunk();
            let key = FileKey { kind: Kind::Delta, id };
            if self.state.lock().stored.contains_key(&key) {
                return Err(self.is_others(key));
            }
            let parts = delta.parts()?;
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let header = self.write_rows(key, &table.def, delta.rows(), &parts)?;
            self.state.lock().stored.insert(key, None);
            written.push(key);
            let whole: Vec<&[u8]> = std::iter::once(header.as_slice()).chain(parts).collect();
            if self.says_places() {
                self.put_image(gathered, table, id, &whole);
            }
            files.push(SavedFile { id, rows: delta.rows() as u64, range: None });
            Ok(())
        })?;
        let stored = StoredDelta { rows: Arc::downgrade(table.rows()), writes, groups, files: files.clone() };
        self.state.lock().deltas.insert(table.def.id, stored);
        Ok(files)
    }

    fn saved_table(
        &self,
        table: &TableVersion,
        writes: u64,
        written: &mut Vec<FileKey>,
        gathered: &mut Gathered,
        interrupted: &dyn Fn() -> Result<()>,
    ) -> Result<SavedTable> {
        for group in &table.row_groups {
            interrupted()?;
            // Of loads they are there; merges make others.
            self.write_group(&table.def, group, written)?;
        }
        let groups = table.row_groups.iter().zip(table.ranges());
        let saved =
            groups.map(|(group, range)| SavedFile { id: group.id().0, rows: group.rows() as u64, range: Some(*range) });
        interrupted()?;
        let delta = self.write_delta(table, writes, written, gathered)?;
        let (places, delta_place) = match self.says_places() {
            true => {
                let delta_place = self.image_places(gathered, &delta)?;
                (self.places(gathered, table.rows().id(), &table.row_groups)?, delta_place)
            }
            false => (Vec::new(), None),
        };
        Ok(SavedTable {
            def: TableDef::clone(&table.def),
            placement: table.placement.clone(),
            store: Some(table.rows().id()),
            row_groups: saved.collect(),
            delta,
            places,
            delta_place,
        })
    }

    /// Returns the header that comes before the parts.
    fn write_rows(&self, key: FileKey, def: &TableDef, rows: usize, parts: &[&[u8]]) -> Result<Vec<u8>> {
        let identity = Identity { kind: key.kind, table: u64::from(def.id.0), id: key.id, rows: rows as u64 };
        let header = row_file::header(&identity, parts);
        let mut all: Vec<&[u8]> = Vec::with_capacity(parts.len() + 1);
        all.push(&header);
        all.extend_from_slice(parts);
        self.replace(&self.path(key), &all)?;
        Ok(header)
    }

    /// Writes beside `path` and renames: a file of that name is always whole.
    pub(super) fn replace(&self, path: &Path, parts: &[&[u8]]) -> Result<()> {
        let number = self.next_temporary.fetch_add(1, Ordering::Relaxed);
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(format!(".{number}.new"));
        let temporary = PathBuf::from(temporary);
        files::write(&*self.files, &temporary, parts).and_then(|()| self.files.rename(&temporary, path)).map_err(
            |error| {
                self.remove(&temporary);
                Error::io(format_args!("write file \"{}\"", path.display()), &error)
            },
        )
    }

    /// The recorded workload, if one was saved and can be read. It is no table's data: damage costs the record and a
    /// warning, not the start.
    pub fn load_workload(&self) -> Option<Workload> {
        let path = self.folder.join("ACCESS");
        let bytes = match self.files.read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!("could not read file \"{}\", the recorded workload: {error}", path.display());
                return None;
            }
        };
        serde_json::from_slice(&bytes)
            .inspect_err(|error| {
                tracing::warn!("file \"{}\", the recorded workload, is damaged: {error}", path.display());
            })
            .ok()
    }

    pub fn save_workload(&self, workload: &Workload) -> Result<()> {
        let text = serde_json::to_string(workload)
            .map_err(|error| Error::internal(format!("the recorded workload cannot be written: {error}")))?;
        self.replace(&self.folder.join("ACCESS"), &[text.as_bytes()])
    }

    /// Keeps others from writing a manifest until the guard drops.
    pub fn saving(&self) -> MutexGuard<'_, ()> {
        self.saving.lock()
    }

    /// As `saving`; the error of `interrupted` ends the wait for others.
    pub fn saving_unless(&self, interrupted: &dyn Fn() -> Result<()>) -> Result<MutexGuard<'_, ()>> {
        loop {
            interrupted()?;
            if let Some(saving) = self.saving.try_lock_for(SAVING_LOOK) {
                return Ok(saving);
            }
        }
    }

    /// Makes `version` the one in force: writes row files that are not there yet, then the manifest, then removes files
    /// that it no longer names. The caller holds `saving`. `manifest` has everything but what `version` has; `named` is
    /// what was, when the version's view was drawn. The error of `interrupted` ends it as long as the manifest is the one before.
    pub fn save(
        &self,
        version: &DatabaseVersion,
        writes: &Writes,
        named: BTreeSet<FileKey>,
        mut manifest: Manifest,
        spaces: &Tablespaces,
        interrupted: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let (mut written, mut gathered) = (Vec::new(), Gathered::default());
        let tables: Result<Vec<SavedTable>> = version
            .versions()
            .map(|table| {
                let writes = writes.get(&table.def.id).copied().unwrap_or(0);
                self.saved_table(&table, writes, &mut written, &mut gathered, interrupted)
            })
            .collect();
        let tables = tables.inspect_err(|_| self.discard(&written)).and_then(|tables| {
            self.sync_rows(&written)?;
            interrupted().inspect_err(|_| self.discard(&written))?;
            Ok(tables)
        });
        manifest.tables = tables?;
        manifest.contents = gathered.contents();
        crash_point("checkpoint.rows");
        {
            let mut state = self.state.lock();
            state.deltas.retain(|_, stored| stored.rows.strong_count() > 0);
            save_catalogue(&mut manifest, version);
        }
        manifest.set_next_ids(self.ids.next());
        manifest.positions_written = self.positions_written();
        self.replace_manifest(&manifest).inspect_err(|_| self.discard(&written))?;
        if let Err(error) = self.sync_manifest() {
            // Nobody knows which of the two a restart finds: both must find their files. Should it be the one before, what
            // this one alone names is removed then.
            self.state.lock().deltas.clear();
            return Err(error);
        }
        crash_point("checkpoint.manifest");
        let now: BTreeSet<FileKey> = manifest.tables.iter().flat_map(table_keys).collect();
        *self.manifest.lock() = Some(manifest);
        if self.says_places() {
            self.hold(gathered, spaces);
        }
        let mut state = self.state.lock();
        for key in &now {
            state.named.insert(*key);
        }
        for key in named.difference(&now) {
            state.named.remove(key);
            state.stored.remove(key);
            if state.lent > 0 {
                state.owed.push(*key);
            } else {
                self.remove(&self.path(*key));
            }
        }
        Ok(())
    }

    fn replace_manifest(&self, manifest: &Manifest) -> Result<()> {
        census::check_manifest(manifest)?;
        census::check_counters(manifest)?;
        self.replace(&self.folder.join("MANIFEST"), &[&manifest.to_bytes()?])
    }

    fn sync_manifest(&self) -> Result<()> {
        self.sync_other(&self.folder)
    }

    /// Writes what of the manifest is not of tables and other objects, which stay as they were saved last. The caller holds
    /// `saving`. False when nothing was saved yet.
    pub fn save_settings(&self, settings: Manifest) -> Result<bool> {
        let Some(last) = self.manifest.lock().clone() else { return Ok(false) };
        let mut next = Manifest {
            commit_ts: last.commit_ts,
            schemas: last.schemas,
            views: last.views,
            sequences: last.sequences,
            comments: last.comments,
            tables: last.tables,
            contents: last.contents,
            transaction_ids: last.transaction_ids,
            roles: last.roles,
            access: last.access,
            ..settings
        };
        next.set_next_ids(self.ids.next());
        next.positions_written = self.positions_written();
        self.replace_manifest(&next)?;
        self.sync_manifest()?;
        *self.manifest.lock() = Some(next);
        Ok(true)
    }
}

/// What exists beside tables.
pub(crate) fn save_catalogue(manifest: &mut Manifest, version: &DatabaseVersion) {
    let catalog = &version.catalog;
    let roles = catalog.roles.values();
    manifest.roles = roles.filter(|role| !is_initial(role)).map(|role| RoleDef::clone(role)).collect();
    let access = catalog.access.iter();
    manifest.access = access.map(|(object, access)| (object.clone(), Access::clone(access))).collect();
    manifest.schemas = Some(catalog.schemas.values().map(|schema| SavedSchema::new(schema)).collect());
    manifest.sequences = catalog.sequences.values().map(|sequence| SavedSequence::new(sequence)).collect();
    manifest.views = catalog.views.values().map(|view| ViewDef::clone(view)).collect();
    manifest.comments = catalog.comments.iter().map(|(about, text)| (about.clone(), text.to_string())).collect();
}

/// Of a data folder, whose folder `rows` is there. XX001 when it is damaged, or names something twice.
fn read_manifest(files: &dyn Files, folder: &Path, is_new: bool) -> Result<Manifest> {
    let path = folder.join("MANIFEST");
    if is_new {
        // A folder with row files but no manifest lost it: starting empty over them would lose the rows too.
        if !list(files, &folder.join("rows"))?.is_empty() {
            return Err(Error::corrupted(format!("file \"{}\" is missing, and the folder has rows", path.display())));
        }
        return Ok(Manifest::new());
    }
    let bytes =
        files.read(&path).map_err(|error| Error::io(format_args!("read file \"{}\"", path.display()), &error))?;
    Manifest::from_bytes(&bytes)
        .and_then(|manifest| census::check_manifest(&manifest).map(|()| manifest))
        .map_err(|error| in_file(&path, &error))
}

/// Has sequences go on where the last checkpoint had them, in a data folder that no process uses: file `SEQUENCES` is missing or
/// damaged. 55000 when it can be read.
pub(crate) fn reset_positions(folder: &Path, files: &dyn Files) -> Result<()> {
    let manifest = read_manifest(files, folder, false)?;
    positions::reset(folder, files, &manifest)
}

fn list(files: &dyn Files, folder: &Path) -> Result<Vec<String>> {
    files.list(folder).map_err(|error| Error::io(format_args!("read folder \"{}\"", folder.display()), &error))
}

/// Whether a folder with these entries is a new one. 55000 when it holds something else.
fn check_ours(folder: &Path, entries: Vec<String>) -> Result<bool> {
    let ours = |name: &String| {
        name == "LOCK"
            || ["MANIFEST", "ACCESS", "SEQUENCES", "BACKUP", "rows", "log"].iter().any(|own| name.starts_with(own))
    };
    let is_new = !entries.iter().any(|name| name == "MANIFEST");
    if is_new && !entries.iter().all(ours) {
        return Err(Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("folder \"{}\" is not empty and is not a data folder of Tidepool's", folder.display()),
        )
        .with_hint("Name another folder with --data."));
    }
    Ok(is_new)
}

fn table_keys(table: &SavedTable) -> impl Iterator<Item = FileKey> + '_ {
    let main = table.row_groups.iter().map(|file| FileKey { kind: Kind::Main, id: file.id });
    main.chain(table.delta.iter().map(|file| FileKey { kind: Kind::Delta, id: file.id }))
}

fn identity(kind: Kind, def: &TableDef, file: &SavedFile) -> Identity {
    Identity { kind, table: u64::from(def.id.0), id: file.id, rows: file.rows }
}

/// The same error, about a file.
fn in_file(path: &Path, error: &Error) -> Error {
    let shown = path.display();
    let message = match error.code() {
        SqlState::DATA_CORRUPTED => format!("file \"{shown}\" is damaged: {}", error.message()),
        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE => {
            format!("file \"{shown}\" is of another version: {}", error.message())
        }
        _ => format!("could not load file \"{shown}\": {}", error.message()),
    };
    let mut about = Error::new(error.code(), message);
    if let Some(detail) = error.detail() {
        about = about.with_detail(detail);
    }
    if let Some(hint) = error.hint() {
        about = about.with_hint(hint);
    }
    about
}

fn file_path(folder: &Path, key: FileKey) -> PathBuf {
    folder.join("rows").join(format!("{}-{:016x}.rows", key.kind.name(), key.id))
}

fn read_file(files: &dyn Files, path: &Path) -> Result<Vec<u8>> {
    match files.read(path) {
        Ok(bytes) => Ok(bytes),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Error::corrupted(format!("file \"{}\" is missing", path.display())))
        }
        Err(error) => Err(Error::io(format_args!("read file \"{}\"", path.display()), &error)),
    }
}

/// `work` on each item, on up to `threads` threads; results in order, or the first error.
pub(crate) fn parallel<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicU64::new(0);
    let results: Mutex<Vec<Option<R>>> = Mutex::new(items.iter().map(|_| None).collect());
    let failed: Mutex<Option<Error>> = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(items.len()) {
            scope.spawn(|| {
                while failed.lock().is_none() {
                    let position = next.fetch_add(1, Ordering::Relaxed) as usize;
                    let Some(item) = items.get(position) else { return };
                    match work(item) {
                        Ok(result) => results.lock()[position] = Some(result),
                        Err(error) => drop(failed.lock().get_or_insert(error)),
                    }
                }
            });
        }
    });
    match failed.into_inner() {
        Some(error) => Err(error),
        None => Ok(results.into_inner().into_iter().flatten().collect()),
    }
}
