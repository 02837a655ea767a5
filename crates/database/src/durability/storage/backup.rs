//! Copies of a data folder: each is one itself, and can be served, or restored from.
//!
//! What is copied is a checkpoint: its manifest, and the files that it names, which never change. The log is left out, as a
//! checkpoint needs none; the copy is another database from then on, with a log of its own. Every file is compared with
//! its checksums before it is written, and what was written is read back and compared again. The manifest comes last: a
//! copy that was interrupted is no data folder.

use super::delta::Delta;
use super::row_file::{self, Identity, Kind};
use super::{FileKey, Manifest, SavedFile, SavedTable, Storage, file_path, files, in_file, positions, read_file};
use crate::DatabaseVersion;
use crate::durability::archive::{BackupLabel, LABEL};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use tidepool_base::{CommitTs, Error, Result, RowGroupId, SqlState};
use tidepool_log::files::Files;
use tidepool_table::{Segment, TableDef};

/// What was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    pub tables: u64,
    pub files: u64,
    pub bytes: u64,
    /// It has all that was committed up to then.
    pub ts: CommitTs,
}

impl Copied {
    fn of(manifest: &Manifest) -> Copied {
        Copied { tables: manifest.tables.len() as u64, files: 0, bytes: 0, ts: manifest.commit_ts }
    }
}

/// While it is there, no file that was named is removed.
struct Lent<'s>(&'s Storage);

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let owed = {
            let mut state = self.0.state.lock();
            state.lent -= 1;
            if state.lent > 0 { Vec::new() } else { std::mem::take(&mut state.owed) }
        };
        owed.into_iter().for_each(|key| self.0.remove(&self.0.path(key)));
    }
}

impl Storage {
    /// The manifest in force, and its files for as long as they are lent. 55000 when there is none yet.
    fn lend(&self) -> Result<(Manifest, Lent<'_>)> {
        let _saving = self.saving();
        let manifest = self.manifest.lock().clone();
        let manifest = manifest.ok_or_else(|| {
            Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "the data folder has no checkpoint yet")
        })?;
        self.state.lock().lent += 1;
        Ok((manifest, Lent(self)))
    }

    /// Copies the last checkpoint to a folder that is not there, or empty; 55000 otherwise. XX001 naming a file that is
    /// damaged.
    /// `label`: what it needs of the log beyond.
    pub fn backup(
        &self,
        to: &Path,
        label: Option<BackupLabel>,
        interrupted: &dyn Fn() -> Result<()>,
    ) -> Result<Copied> {
        let (manifest, _lent) = self.lend()?;
        let mut others = vec![(positions::NAME, positions::to_bytes(&self.positions.lock())?)];
        if let Some(label) = label {
            others.push((LABEL, BackupLabel { commit_ts: manifest.commit_ts, ..label }.to_bytes()?));
        }
        copy(&*self.files, &self.folder, to, manifest, &others, interrupted)
    }

    /// Copies what was read of this folder elsewhere.
    pub fn copy_to(&self, to: &Path, manifest: Manifest, interrupted: &dyn Fn() -> Result<()>) -> Result<Copied> {
        let others = [(positions::NAME, positions::to_bytes(&self.positions.lock())?)];
        copy(&*self.files, &self.folder, to, manifest, &others, interrupted)
    }

    /// Compares every file of the last checkpoint with its checksums, and those of loads since that a version shows. Tells `fault` of what
    /// is damaged or missing.
    pub fn check_files(
        &self,
        version: &DatabaseVersion,
        fault: &mut dyn FnMut(String),
        interrupted: &dyn Fn() -> Result<()>,
    ) -> Result<Copied> {
        let (manifest, _lent) = self.lend()?;
        let mut looked_at = check_files(&*self.files, &self.folder, &manifest, fault, interrupted)?;
        let of_manifest: HashSet<FileKey> = files_of(&manifest).map(|(_, key, _)| key).collect();
        for table in version.versions() {
            for group in &table.row_groups {
                let key = FileKey { kind: Kind::Main, id: group.id().0 };
                // What a merge made has no file before the next checkpoint, and what one replaced may have none any more.
                if of_manifest.contains(&key) || !self.state.lock().named.contains(&key) {
                    continue;
                }
                interrupted()?;
                looked_at.files += 1;
                match self.check_loaded(&table.def, group.id(), group.rows() as u64) {
                    Ok(bytes) => looked_at.bytes += bytes,
                    Err(error) => fault(error.message().to_owned()),
                }
            }
        }
        Ok(looked_at)
    }

    /// Compares every file of the last checkpoint with its checksums.
    pub fn check_saved(&self, fault: &mut dyn FnMut(String), interrupted: &dyn Fn() -> Result<()>) -> Result<Copied> {
        let (manifest, _lent) = self.lend()?;
        check_files(&*self.files, &self.folder, &manifest, fault, interrupted)
    }

    /// Compares the file of a row group that a record of the log names with its checksums, and returns its bytes. XX001 when it is
    /// damaged or missing.
    pub fn check_loaded(&self, def: &TableDef, group: RowGroupId, rows: u64) -> Result<u64> {
        let key = FileKey { kind: Kind::Main, id: group.0 };
        let path = self.path(key);
        let bytes = read_file(&*self.files, &path)?;
        check(def, key, rows, &bytes).map_err(|error| in_file(&path, &error))?;
        Ok(bytes.len() as u64)
    }
}

fn files_of(manifest: &Manifest) -> impl Iterator<Item = (&SavedTable, FileKey, &SavedFile)> {
    manifest.tables.iter().flat_map(|table| {
        let main = table.row_groups.iter().map(|file| (FileKey { kind: Kind::Main, id: file.id }, file));
        let delta = table.delta.iter().map(|file| (FileKey { kind: Kind::Delta, id: file.id }, file));
        main.chain(delta).map(move |(key, file)| (table, key, file))
    })
}

/// XX001 unless these are the bytes of the table's file.
fn check(def: &TableDef, key: FileKey, rows: u64, bytes: &[u8]) -> Result<()> {
    let identity = Identity { kind: key.kind, table: u64::from(def.id.0), id: key.id, rows };
    let parts = row_file::parts(bytes, &identity)?;
    match key.kind {
        Kind::Delta => Delta::read(def, &parts, rows).map(drop),
        Kind::Main if parts.len() != def.columns.len() => {
            Err(Error::corrupted(format!("it has {} columns, the table {}", parts.len(), def.columns.len())))
        }
        Kind::Main => parts.into_iter().try_for_each(Segment::check_bytes),
    }
}

pub(crate) fn check_files(
    files: &dyn Files,
    folder: &Path,
    manifest: &Manifest,
    fault: &mut dyn FnMut(String),
    interrupted: &dyn Fn() -> Result<()>,
) -> Result<Copied> {
    let mut looked_at = Copied::of(manifest);
    for (table, key, file) in files_of(manifest) {
        interrupted()?;
        let path = file_path(folder, key);
        looked_at.files += 1;
        match read_file(files, &path) {
            Ok(bytes) => {
                looked_at.bytes += bytes.len() as u64;
                if let Err(error) = check(&table.def, key, file.rows, &bytes) {
                    fault(in_file(&path, &error).message().to_owned());
                }
            }
            Err(error) => fault(error.message().to_owned()),
        }
    }
    Ok(looked_at)
}

/// 55000 unless a folder is not there, or empty.
pub(crate) fn check_empty(files: &dyn Files, folder: &Path) -> Result<()> {
    if folder.exists() && !super::list(files, folder)?.iter().all(|name| name == "LOCK") {
        return Err(Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("folder \"{}\" is not empty", folder.display()),
        ));
    }
    Ok(())
}

/// Copies what `manifest` names from one folder to another. Leaves nothing there when it fails.
fn copy(
    files: &dyn Files,
    from: &Path,
    to: &Path,
    manifest: Manifest,
    others: &[(&str, Vec<u8>)],
    interrupted: &dyn Fn() -> Result<()>,
) -> Result<Copied> {
    check_empty(files, to)?;
    let mut written = Vec::new();
    let copied = copy_into(files, from, to, manifest, others, interrupted, &mut written);
    if copied.is_err() {
        // Best effort: without a manifest it is nobody's data.
        written.iter().for_each(|path: &PathBuf| drop(files.remove(path)));
        let _ = std::fs::remove_dir(to.join("rows"));
        let _ = std::fs::remove_dir(to);
    }
    copied
}

fn copy_into(
    files: &dyn Files,
    from: &Path,
    to: &Path,
    mut manifest: Manifest,
    others: &[(&str, Vec<u8>)],
    interrupted: &dyn Fn() -> Result<()>,
    written: &mut Vec<PathBuf>,
) -> Result<Copied> {
    let failed = |action: &str, path: &Path, error: &std::io::Error| {
        Error::io(format_args!("{action} \"{}\"", path.display()), error)
    };
    let rows = to.join("rows");
    files.create_folder(to).map_err(|error| failed("create folder", to, &error))?;
    files::restrict(to);
    files.create_folder(&rows).map_err(|error| failed("create folder", &rows, &error))?;
    let mut copied = Copied::of(&manifest);
    let mut write = |path: PathBuf, bytes: &[u8]| {
        written.push(path.clone());
        files::write(files, &path, &[bytes]).map_err(|error| failed("write file", &path, &error))?;
        copied.files += 1;
        copied.bytes += bytes.len() as u64;
        read_file(files, &path)
    };
    for (table, key, file) in files_of(&manifest) {
        interrupted()?;
        let source = file_path(from, key);
        let bytes = read_file(files, &source)?;
        check(&table.def, key, file.rows, &bytes).map_err(|error| in_file(&source, &error))?;
        let target = file_path(to, key);
        let read = write(target.clone(), &bytes)?;
        check(&table.def, key, file.rows, &read).map_err(|error| in_file(&target, &error))?;
    }
    for (name, bytes) in others {
        write(to.join(name), bytes)?;
    }
    if let Ok(workload) = files.read(&from.join("ACCESS")) {
        write(to.join("ACCESS"), &workload)?;
    }
    // Where main lies in memory is the first database's to know, and so is its log.
    manifest.contents.clear();
    manifest.identity = None;
    manifest.log = None;
    manifest.earlier_lives.clear();
    for table in &mut manifest.tables {
        table.places.clear();
        table.delta_place = None;
    }
    files.sync_folder(&rows).map_err(|error| failed("sync folder", &rows, &error))?;
    let bytes = manifest.to_bytes()?;
    let read = write(to.join("MANIFEST"), &bytes)?;
    Manifest::from_bytes(&read).map_err(|error| in_file(&to.join("MANIFEST"), &error))?;
    files.sync_folder(to).map_err(|error| failed("sync folder", to, &error))?;
    Ok(copied)
}
