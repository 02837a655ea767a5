//! Verification: of a database at work, of a data folder that nobody uses; and copies of both.

use crate::elastic::SpaceConfigs;
use crate::log_home::{OpenedLog, find_log};
use crate::redo::{COMMIT, next_entry};
use crate::storage::{self, Copied, Finds, Manifest, Storage, lock_folder};
use crate::{Config, Database};
use std::path::Path;
use std::sync::Arc;
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_device::Location;
use tidepool_heap::QueryHeap;
use tidepool_log::files::SystemFiles;

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
    /// every file of the last checkpoint. Others go on meanwhile. An error is `interrupted`'s.
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
                crate::references::verify(&version, &table, interrupted, &mut |fault| faults.add(fault))?;
            }
            checked.push(faults.of(version.shown_name(&table.def), looked_at));
        }
        if let Some(storage) = &self.storage {
            let mut faults = Faults::default();
            let looked_at = storage.check_files(&mut |fault| faults.add(fault), interrupted)?;
            checked.push(of_files(faults, &looked_at));
        }
        Ok(checked)
    }

    /// Makes a checkpoint and copies it to `folder`, which is not there or empty (55000 otherwise), while others go on. 0A000
    /// without a data folder; XX001 when a file is damaged; then there is no copy.
    pub fn backup(&self, folder: &Path, interrupted: &dyn Fn() -> Result<()>) -> Result<Copied> {
        let Some(storage) = &self.storage else {
            return Err(Error::unsupported("a database without a data folder cannot be backed up"));
        };
        QueryHeap::outside(|| {
            self.checkpoint()?;
            storage.backup(folder, interrupted)
        })
    }
}

/// Verifies a data folder that no process uses: its manifest, all files that it names, and the log since. Changes nothing.
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
    let mut read = || -> Result<()> {
        let (configs, finds) = (SpaceConfigs::of(config, manifest)?, Finds::new(manifest));
        let found = find_log(config, storage, manifest, &|name| configs.open_one(name, &finds))?;
        let Some(OpenedLog { recovery: mut log, .. }) = found else { return Ok(()) };
        log.skip_to(manifest.commit_ts);
        while let Some(mut record) = log.next_record()? {
            if record.kind != COMMIT {
                return Err(Error::corrupted(format!("a record is of kind {}, which is not known", record.kind.0)));
            }
            records += 1;
            while let Some(mut piece) = record.next_piece()? {
                while next_entry(&mut piece)?.is_some() {
                    changes += 1;
                }
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
    faults.of("the log since then", format!("{records} transactions, {changes} changes"))
}

/// The folder's storage, which nobody else uses meanwhile.
pub(crate) fn open_folder(config: &Config) -> Result<(Storage, Manifest)> {
    let folder = config.data_dir.as_deref().ok_or_else(|| Error::internal("there is no data folder"))?;
    if !folder.join("MANIFEST").exists() {
        return Err(Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("\"{}\" is not a data folder of Tidepool's", folder.display()),
        ));
    }
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
    for (name, location) in spaces {
        let saved = manifest.tablespaces.iter_mut().find(|saved| saved.name == *name).ok_or_else(|| {
            Error::new(SqlState::UNDEFINED_OBJECT, format!("the backup has no tablespace \"{name}\""))
                .with_detail("Those of the configuration are where it says.")
        })?;
        saved.location = location.to_string();
    }
    let to = config.data_dir.as_deref().ok_or_else(|| Error::internal("there is no data folder"))?;
    let _lock = lock_folder(to)?;
    storage.copy_to(to, manifest, interrupted)
}
