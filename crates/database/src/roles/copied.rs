//! The data folder of another pool's primary, as a copy reads it: a checkpoint, the log's segments from there on, and the row groups of
//! loads that the log names.
//!
//! The folder is another server's. Nothing is written there, nothing is locked, and files are looked for again and again: they grow,
//! come late where the folder itself is a copy, in any order and in part, and go once a later checkpoint has what they had. A file
//! counts when it is whole, by its checksums. So a row group is looked at before anything of the batch that names it is
//! applied, and its file stays open until then, whatever becomes of its name.

use super::tier2::copy_of;
use crate::Database;
use crate::durability::redo::{COMMIT, Entry, next_entry};
use crate::durability::storage::{LogCopy, Manifest, SavedFile, Storage};
use crate::follow::{Batch, RowGroups};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::SystemTime;
use tidepool_base::{CommitTs, Error, Result, RowGroupId, SqlState, StoreId};
use tidepool_log::files::{OpenHow, StoredFile, SystemFiles};
use tidepool_log::{DatabaseIdentity, FileSource, LogPosition, Tail, Until};
use tidepool_table::{RowGroup, Table};

/// What tells one manifest of a folder from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp(Option<SystemTime>, u64, u64);

impl Stamp {
    /// `None`: there is no manifest.
    pub fn of(folder: &Path) -> Option<Stamp> {
        let metadata = std::fs::metadata(folder.join("MANIFEST")).ok()?;
        Some(Stamp(metadata.modified().ok(), metadata.len(), metadata.ino()))
    }
}

/// The checkpoint of a folder, and where the log is from there on.
#[derive(Clone, Debug)]
pub(super) struct Base {
    pub storage: Arc<Storage>,
    pub manifest: Arc<Manifest>,
    pub identity: DatabaseIdentity,
    pub log: LogCopy,
}

impl Base {
    /// The one in force of a folder. 55000 where there is none, XX001 where it is damaged or has not come wholly yet.
    pub fn find(folder: &Path) -> Result<Base> {
        let shown = folder.display();
        let none = |detail: &str| {
            let message = format!("\"{shown}\" has nothing that a copy can begin with");
            Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message).with_detail(detail.to_owned()).with_hint(
                "Name the data folder of the primary, its second tier, once complete is true there in tidepool.second_tier.",
            )
        };
        if !folder.join("MANIFEST").exists() {
            return Err(none("There is no manifest."));
        }
        let (storage, mut manifest) = Storage::open(folder, Arc::new(SystemFiles), None)?;
        storage.say_no_places();
        let (Some(log), Some(identity)) = (copy_of(&manifest).cloned(), manifest.identity()?) else {
            return Err(none("It is not the second tier of a database that lives in a pool."));
        };
        // Tablespaces are each host's own.
        manifest.tablespaces.clear();
        manifest.altered.clear();
        manifest.contents.clear();
        Ok(Base { storage: Arc::new(storage), manifest: Arc::new(manifest), identity, log })
    }

    /// What the checkpoint is as of.
    pub fn ts(&self) -> CommitTs {
        self.manifest.commit_ts
    }

    /// Its log goes on in the files of another one's.
    pub fn goes_on(&self, other: &Base) -> bool {
        (self.identity, &self.log.folder, self.log.segment_bytes)
            == (other.identity, &other.log.folder, other.log.segment_bytes)
    }

    pub fn source(&self) -> FileSource {
        let folder = self.storage.folder().join("log").join(&self.log.folder);
        FileSource::of(Arc::clone(self.storage.files()), &folder, self.log.segment_bytes, self.identity)
    }

    /// A reader of the log that gives out what is above `applied`, from a place that an earlier one needed, or from where the checkpoint
    /// needs it. `None`: nothing of it is there yet.
    pub fn tail(&self, place: Option<(u64, u64)>, applied: CommitTs) -> Result<Option<Tail<FileSource>>> {
        let source = self.source();
        let from = match place.or(self.log.from) {
            Some(from) => Some(from),
            None => source.oldest()?,
        };
        let Some(from) = from else { return Ok(None) };
        let mut tail = Tail::open(source, self.identity, Some(from));
        tail.skip_to(applied);
        // So that it says when blocks were written.
        tail.stop_at(Until::Time { us: u64::MAX, inclusive: true });
        Ok(Some(tail))
    }

    /// The row group of main that a range of a table has in the checkpoint.
    pub fn mains(&self) -> HashMap<(StoreId, u64), SavedFile> {
        let tables = self.manifest.tables.iter().filter_map(|table| Some((table.store?, &table.row_groups)));
        let groups = tables.flat_map(|(store, groups)| groups.iter().map(move |file| (store, file)));
        groups.filter_map(|(store, file)| Some(((store, file.range?), *file))).collect()
    }
}

/// A file that stays open, and its name.
type Held = (PathBuf, Arc<dyn StoredFile>);

/// Row groups of loads, from files that were whole when they were looked at.
pub(super) struct CopiedGroups {
    pub database: Weak<Database>,
    pub storage: Arc<Storage>,
    held: Mutex<HashMap<RowGroupId, Held>>,
}

impl CopiedGroups {
    pub fn new(database: &Arc<Database>, storage: &Arc<Storage>) -> CopiedGroups {
        CopiedGroups { database: Arc::downgrade(database), storage: Arc::clone(storage), held: Mutex::default() }
    }

    /// Holds the files that a batch names. 58P01 or XX001, naming the file, where one is not there or not whole.
    pub fn hold(&self, batch: &Batch) -> Result<()> {
        for record in batch.records.iter().filter(|record| record.kind == COMMIT) {
            for piece in &record.pieces {
                let mut piece = &piece[..];
                while let Some(entry) = next_entry(&mut piece)? {
                    if let Entry::Load { group, rows, .. } = entry {
                        let held = self.whole(group, rows)?;
                        self.held.lock().insert(group, held);
                    }
                }
            }
        }
        Ok(())
    }

    pub fn let_go(&self) {
        self.held.lock().clear();
    }

    fn whole(&self, group: RowGroupId, rows: u64) -> Result<Held> {
        let path = self.storage.group_path(group);
        let opened = self.storage.files().open(&path, OpenHow::default());
        let file = opened.map_err(|error| Error::io(format_args!("open file \"{}\"", path.display()), &error))?;
        Storage::check_group(&path, &bytes_of(&path, &*file)?, group, rows)?;
        Ok((path, file))
    }

    /// A row group that a merge made, if its file is there.
    pub fn merged_group(&self, table: &Table, file: &SavedFile) -> Result<Arc<RowGroup>> {
        let database = self.database.upgrade().ok_or_else(|| Error::internal("the database is closed"))?;
        let path = self.storage.group_path(RowGroupId(file.id));
        let spaces = database.tablespaces();
        self.storage.load_group_at(&path, &table.def, &table.placement, file, spaces).map(Arc::new)
    }
}

impl RowGroups for CopiedGroups {
    fn loaded(&self, table: &Table, group: RowGroupId, rows: u64, _: Option<&[u8]>) -> Result<Arc<RowGroup>> {
        let database = self.database.upgrade().ok_or_else(|| Error::internal("the database is closed"))?;
        let held = self.held.lock().get(&group).cloned();
        let (path, file) = held.ok_or_else(|| Error::internal("a load's file was not looked at"))?;
        let saved = SavedFile { id: group.0, rows, range: None };
        let bytes = bytes_of(&path, &*file)?;
        let spaces = database.tablespaces();
        self.storage.load_group_of(&bytes, &path, &table.def, &table.placement, &saved, spaces).map(Arc::new)
    }

    fn merged(&self, _: &Table, _: RowGroupId, _: u64, _: &[u8]) -> Result<Arc<RowGroup>> {
        Err(Error::internal("what a merge made is read from a copy of the log"))
    }
}

fn bytes_of(path: &Path, file: &dyn StoredFile) -> Result<Vec<u8>> {
    let failed = |error| Error::io(format_args!("read file \"{}\"", path.display()), &error);
    let mut bytes = vec![0; usize::try_from(file.len().map_err(failed)?).unwrap_or(usize::MAX)];
    let count = file.read_full_at(0, &mut bytes).map_err(failed)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Where the log of a folder ends. `None`: nothing is there.
pub(super) fn end_of(source: &FileSource) -> Result<Option<(u64, LogPosition)>> {
    Ok(source.end()?.map(|end| (end.term, end.end)))
}
