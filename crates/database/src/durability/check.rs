//! Verification: of a database at work, of a data folder that nobody uses; and copies of both.

use crate::durability::archive::{BackupLabel, LABEL};
use crate::durability::commit::counts;
use crate::durability::log_home::{OpenedLog, find_log};
use crate::durability::redo::{COMMIT, CatalogChange, Entry, MAIN, SEQUENCE, next_entry};
use crate::durability::small::{MainRecord, SequenceRecord};
use crate::durability::space_configs::SpaceConfigs;
use crate::durability::storage::{self, Census, Copied, Finds, LogCopy, Manifest, Storage, lock_folder};
use crate::roles::tier2::{copy_folder, copy_of};
use crate::{Config, Database};
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use tidepool_base::{ByteSize, CommitTs, Error, Result, RowGroupId, SqlState, StoreId};
use tidepool_device::Location;
use tidepool_heap::QueryHeap;
use tidepool_log::files::SystemFiles;
use tidepool_log::{FileSource, Next, Tail};
use tidepool_table::TableDef;

/// What was looked at, and what is wrong with it, if anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// A table, or part of the data folder.
    pub object: String,
    /// For people: how much there was of it.
    pub looked_at: String,
    pub faults: Vec<String>,
}

/// Faults that are listed of one object. Where there are more, they are counted.
const FAULTS_MAX: usize = 100;

#[derive(Default)]
struct Faults {
    listed: Vec<String>,
    more: u64,
}

impl Faults {
    fn add(&mut self, fault: String) {
        if self.listed.len() < FAULTS_MAX {
            self.listed.push(fault);
        } else {
            self.more += 1;
        }
    }

    fn of(mut self, object: impl Into<String>, looked_at: String) -> Checked {
        if self.more > 0 {
            self.listed.push(format!("and {} more", self.more));
        }
        Checked { object: object.into(), looked_at, faults: self.listed }
    }
}

fn of_files(faults: Faults, looked_at: &Copied) -> Checked {
    faults.of("files of the last checkpoint", format!("{} files, {}", looked_at.files, ByteSize(looked_at.bytes)))
}

impl Database {
    /// Verifies every checksum of main, every chain of versions, every index and every foreign key against a view of now, and
    /// every file of the last checkpoint and of loads since. Others go on meanwhile. An error is `interrupted`'s.
    pub fn check(&self, interrupted: &dyn Fn() -> Result<()>) -> Result<Vec<Checked>> {
        let version = self.version();
        let mut checked = Vec::new();
        for table in version.versions() {
            let mut faults = Faults::default();
            let report = table.check(&mut |fault| faults.add(fault), interrupted)?;
            let mut looked_at = format!(
                "{} rows, {} of main in {} segments, {} versions",
                report.rows,
                ByteSize(report.main_bytes),
                report.segments,
                report.versions
            );
            if report.indexes > 0 {
                looked_at += &format!(", {} entries of {} indexes", report.entries, report.indexes);
            }
            // Rows that cannot be read have been told of.
            if faults.listed.is_empty() {
                crate::write::references::verify(&version, &table, interrupted, &mut |fault| faults.add(fault))?;
            }
            checked.push(faults.of(version.shown_name(&table.def), looked_at));
        }
        if let Some(storage) = self.storage.as_ref().filter(|storage| storage.has_checkpoint()) {
            let mut faults = Faults::default();
            let looked_at = storage.check_files(&version, &mut |fault| faults.add(fault), interrupted)?;
            checked
                .push(faults.of("files of rows", format!("{} files, {}", looked_at.files, ByteSize(looked_at.bytes))));
        }
        Ok(checked)
    }

    /// Makes a checkpoint and copies it to `folder`, which is not there or empty (55000 otherwise), while others go on. Of a
    /// database that lives in a pool the checkpoint is made there, where this process has none of its own: a standby shows what it
    /// has applied. 0A000 without a data folder or a pool; XX001 when a file is damaged; then there is no copy.
    pub fn backup(&self, folder: &Path, interrupted: &dyn Fn() -> Result<()>) -> Result<Copied> {
        let Some(storage) = self.saves_to() else {
            if self.roles.is_none() {
                return Err(Error::unsupported("a database without a data folder cannot be backed up"));
            }
            return QueryHeap::outside(|| self.save_as(folder, interrupted));
        };
        QueryHeap::outside(|| {
            // First: what a checkpoint beside this one lets go is archived.
            let label = self.backup_label(storage.checkpoint_ts())?;
            self.checkpoint_unless(interrupted)?;
            storage.backup(folder, label, interrupted)
        })
    }
}

impl Database {
    /// Writes what there is now to a folder that is not there or empty, as a checkpoint of a data folder, and reads it back.
    pub(crate) fn save_as(&self, folder: &Path, interrupted: &dyn Fn() -> Result<()>) -> Result<Copied> {
        storage::check_empty(&SystemFiles, folder)?;
        let lock = lock_folder(folder)?;
        let saved = self.save_into(folder, lock, interrupted);
        if saved.is_err() {
            // Best effort: without a manifest it is nobody's data.
            for entry in ["MANIFEST", "SEQUENCES", LABEL, "LOCK"] {
                let _ = std::fs::remove_file(folder.join(entry));
            }
            let _ = std::fs::remove_dir_all(folder.join("rows"));
            let _ = std::fs::remove_dir(folder);
        }
        saved
    }

    fn save_into(&self, folder: &Path, lock: File, interrupted: &dyn Fn() -> Result<()>) -> Result<Copied> {
        let (storage, _) = Storage::open(folder, Arc::new(SystemFiles), Some(lock))?;
        storage.say_no_places();
        storage.ids().pass(&self.ids.next());
        let label = self.backup_label(CommitTs(0))?;
        let (version, writes) = {
            // No change of what exists comes between the state and the view.
            let _commit = self.commit.lock();
            let writes = counts(&self.state());
            (self.version(), writes)
        };
        // What is seen is acknowledged.
        self.check_snapshot(version.view().ts())?;
        let positions = version.catalog.sequences.values();
        let positions: Vec<_> = positions.map(|sequence| (sequence.def.position_id, sequence.written())).collect();
        storage.make_positions_file()?;
        storage.write_positions(&positions)?;
        let ts = version.view().ts();
        if let Some(label) = label {
            let label = BackupLabel { commit_ts: ts, ..label }.to_bytes()?;
            storage.write_mark(folder, LABEL, &String::from_utf8_lossy(&label))?;
        }
        let transaction_ids = self.transaction_ids.saved(ts, self.transactions());
        let manifest =
            Manifest { transaction_ids, identity: None, log: None, earlier_lives: Vec::new(), ..self.manifest(ts) };
        storage.save(&version, &writes, BTreeSet::new(), manifest, self.tablespaces(), interrupted)?;
        drop(version);
        let mut faults = Vec::new();
        let checked = storage.check_saved(&mut |fault| faults.push(fault), interrupted)?;
        match faults.into_iter().next() {
            Some(fault) => Err(Error::corrupted(fault)),
            None => Ok(checked),
        }
    }
}

/// Verifies a data folder that no process uses: its manifest, the log since, and all files that either names. Changes nothing.
/// 55000 when it is none, 55006 when it is in use, XX001 when the manifest itself is damaged.
pub fn check_folder(config: &Config) -> Result<Vec<Checked>> {
    let (storage, manifest) = open_folder(config)?;
    let mut faults = Faults::default();
    let files = Arc::clone(storage.files());
    let looked_at =
        storage::check_files(&*files, storage.folder(), &manifest, &mut |fault| faults.add(fault), &|| Ok(()))?;
    let mut checked = vec![of_files(faults, &looked_at)];
    if manifest.identity.is_some() {
        checked.push(check_log(config, &storage, &manifest));
    }
    Ok(checked)
}

pub(crate) fn check_log(config: &Config, storage: &Storage, manifest: &Manifest) -> Checked {
    let mut faults = Faults::default();
    let (mut records, mut changes) = (0, 0);
    let mut loads = Loads::of(manifest);
    let mut read = || -> Result<()> {
        if let Some(copy) = copy_of(manifest) {
            return check_copy(&copy_folder(config, storage, copy), copy, storage, manifest, |piece| match piece {
                Some(piece) => loads.take(piece).map(|count| changes += count),
                None => {
                    records += 1;
                    Ok(())
                }
            });
        }
        let (configs, finds) = (SpaceConfigs::of(config, manifest)?, Finds::new(manifest));
        let found = find_log(config, storage, manifest, &|name| configs.open_one(name, &finds))?;
        let Some(OpenedLog { recovery: mut log, .. }) = found else { return Ok(()) };
        log.skip_to(manifest.commit_ts);
        while let Some(mut record) = log.next_record()? {
            if record.kind == MAIN {
                MainRecord::from_bytes(&record.payload()?)?;
                continue;
            }
            if record.kind == SEQUENCE {
                SequenceRecord::from_bytes(&record.payload()?)?;
                continue;
            }
            if record.kind != COMMIT {
                return Err(Error::corrupted(format!("a record is of kind {}, which is not known", record.kind.0)));
            }
            records += 1;
            while let Some(piece) = record.next_piece()? {
                changes += loads.take(piece)?;
            }
        }
        Ok(())
    };
    if let Err(error) = read() {
        faults.add(format!(
            "{}{}",
            error.message(),
            error.detail().map(|detail| format!(": {detail}")).unwrap_or_default()
        ));
    }
    let (files, bytes) = loads.check(storage, manifest, &mut faults);
    let of_files = match files {
        0 => String::new(),
        _ => format!(", {files} files of rows, {}", ByteSize(bytes)),
    };
    faults.of("the log since then", format!("{records} transactions, {changes} changes{of_files}"))
}

/// Reads the copy of a pool's log to its end. `piece` is told of each record, and of the pieces of those that changed rows.
fn check_copy(
    folder: &Path,
    copy: &LogCopy,
    storage: &Storage,
    manifest: &Manifest,
    mut piece: impl FnMut(Option<&[u8]>) -> Result<()>,
) -> Result<()> {
    if !folder.exists() {
        return Err(Error::corrupted(format!("folder \"{}\" is missing", folder.display())));
    }
    let identity = manifest.identity()?.ok_or_else(|| Error::corrupted("a copy of a log is nobody's"))?;
    let source = FileSource::open(Arc::clone(storage.files()), folder, copy.segment_bytes, identity)?;
    let from = if copy.from.is_some() { copy.from } else { source.oldest()? };
    let mut tail = Tail::open(source, identity, from);
    tail.skip_to(manifest.commit_ts);
    while let Next::Batch(batch) = tail.read()? {
        for mut record in batch.records {
            if record.kind == MAIN {
                MainRecord::from_bytes(&tail.payload_of(&record)?)?;
            } else if record.kind == SEQUENCE {
                SequenceRecord::from_bytes(&tail.payload_of(&record)?)?;
            } else if record.kind == COMMIT {
                piece(None)?;
                while let Some(bytes) = tail.next_piece(&mut record)? {
                    piece(Some(bytes))?;
                }
            } else if !record.kind.may_be_skipped() {
                return Err(Error::corrupted(format!("a record is of kind {}, which is not known", record.kind.0)));
            }
        }
    }
    tail.check_end()
}

/// Row files that the log names, and no checkpoint yet.
struct Loads {
    /// The tables that stores were made for, as they were then.
    tables: HashMap<StoreId, TableDef>,
    found: Vec<(Option<StoreId>, RowGroupId, u64)>,
}

impl Loads {
    fn of(manifest: &Manifest) -> Loads {
        let tables = manifest.tables.iter().filter_map(|table| Some((table.store?, table.def.clone())));
        Loads { tables: tables.collect(), found: Vec::new() }
    }

    /// Of a piece of a record. How many entries it has.
    fn take(&mut self, mut piece: &[u8]) -> Result<u64> {
        let (mut store, mut entries) = (None, 0);
        while let Some(entry) = next_entry(&mut piece)? {
            entries += 1;
            match entry {
                Entry::Store(id) => store = Some(id),
                Entry::Load { group, rows, .. } => self.add(store, group, rows),
                Entry::Catalog(change) => self.learn(&change),
                Entry::Put(..) | Entry::Patch(..) | Entry::Delete(_) | Entry::Id(_) => {}
            }
        }
        Ok(entries)
    }

    fn add(&mut self, store: Option<StoreId>, group: RowGroupId, rows: u64) {
        self.found.push((store, group, rows));
    }

    fn learn(&mut self, change: &CatalogChange) {
        for table in change.tables.iter().filter_map(|(_, table)| table.as_ref()) {
            self.tables.entry(table.store).or_insert_with(|| table.def.clone());
        }
    }

    /// Compares the files with their checksums, and looks whether an id is another's. Returns how many there were, and their bytes.
    fn check(&self, storage: &Storage, manifest: &Manifest, faults: &mut Faults) -> (u64, u64) {
        let (mut files, mut bytes) = (0, 0);
        let mut census = Census::default();
        for table in &manifest.tables {
            let Some(store) = table.store else { continue };
            for file in &table.row_groups {
                if let Err(error) = census.row_group(RowGroupId(file.id), table.def.id, store) {
                    faults.add(error.message().to_owned());
                }
            }
        }
        for (store, group, rows) in &self.found {
            // Of a store that nothing makes they are passed over, as a start does.
            let Some((store, def)) = store.and_then(|store| Some((store, self.tables.get(&store)?))) else { continue };
            if let Err(error) = census.row_group(*group, def.id, store) {
                faults.add(error.message().to_owned());
            }
            files += 1;
            match storage.check_loaded(def, *group, *rows) {
                Ok(len) => bytes += len,
                Err(error) => faults.add(error.message().to_owned()),
            }
        }
        (files, bytes)
    }
}

/// Has the sequences of a data folder that no process uses go on where the last checkpoint had them: file `SEQUENCES` is missing or
/// damaged. What they gave since may be given again. 55000 when the file can be read.
pub fn reset_sequences(config: &Config) -> Result<()> {
    let folder = existing(config)?;
    let _lock = lock_folder(folder)?;
    storage::reset_positions(folder, &SystemFiles)
}

/// 55000 unless there is a data folder.
fn existing(config: &Config) -> Result<&Path> {
    let folder = config.data_dir.as_deref().ok_or_else(|| Error::internal("there is no data folder"))?;
    if !folder.join("MANIFEST").exists() {
        return Err(Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("\"{}\" is not a data folder of Tidepool's", folder.display()),
        ));
    }
    Ok(folder)
}

/// The folder's storage, which nobody else uses meanwhile.
pub(crate) fn open_folder(config: &Config) -> Result<(Storage, Manifest)> {
    let folder = existing(config)?;
    let lock = lock_folder(folder)?;
    Storage::open(folder, Arc::new(SystemFiles), Some(lock))
}

/// Copies a backup to the data folder of `config`, which is not there or empty (55000 otherwise), verifying both. `spaces`: where
/// tablespaces are to be instead of where they were, by name; 42704 for one that the backup does not have. XX001 when
/// something is damaged; then there is no data folder.
pub fn restore(
    backup: &Path,
    config: &Config,
    spaces: &[(String, Location)],
    interrupted: &dyn Fn() -> Result<()>,
) -> Result<Copied> {
    let (storage, mut manifest) = open_folder(&Config { data_dir: Some(backup.to_owned()), ..config.clone() })?;
    manifest.move_tablespaces(spaces)?;
    let to = config.data_dir.as_deref().ok_or_else(|| Error::internal("there is no data folder"))?;
    let _lock = lock_folder(to)?;
    storage.copy_to(to, manifest, interrupted)
}
