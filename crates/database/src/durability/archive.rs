//! The archive of a database's log, from which it can be recovered to a moment (`log.archive`).
//!
//! ```text
//! ARCHIVE/<identity>/<term>-<segment>.log    the log (`tidepool_log::Archiver`)
//! ARCHIVE/<identity>/END                     how far it goes
//! ARCHIVE/<identity>/rows/<term>-<id>.rows   row groups that its records of loads name
//! DATA/unarchived/<term>-<id>.rows           those that are not there yet
//! BACKUP/BACKUP                              the segment from which on a backup needs it ([`BackupLabel`])
//! ```
//!
//! A load's file may be gone when its record is archived: a merge and a checkpoint have put other files in its place. So it gets a
//! second name before the record that names it is written, and that goes when the archive has the file. Row groups' numbers may be
//! drawn again after a take-over that sealed a load away, but not in one term.
//!
//! A database that was restored, or whose log moved, has a log with another identity: its archive is another one.

use crate::Database;
use crate::durability::log_home::configured_folder_of;
use crate::durability::redo::TICK;
use crate::durability::storage::Storage;
use crate::roles::Roles;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidepool_base::{CommitTs, Error, Result, RowGroupId};
use tidepool_log::files::SystemFiles;
use tidepool_log::{
    ArchiveState, Archiver, Archiving, DatabaseIdentity, DeviceSource, FileSource, Log, LogPosition, PoolSource,
    Primary,
};

/// What waits for being archived, in a data folder.
pub(crate) const UNARCHIVED: &str = "unarchived";

/// Of an archive, with row groups' files.
const ROWS: &str = "rows";

/// The file of a backup.
pub(crate) const LABEL: &str = "BACKUP";

/// From where on a backup needs the log to be recovered to a later moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BackupLabel {
    /// Whose log it is.
    pub identity: String,
    pub term: u64,
    pub segment: u64,
    /// What the backup is as of.
    pub commit_ts: CommitTs,
}

impl BackupLabel {
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        serde_json::to_vec_pretty(self)
            .map_err(|error| Error::internal(format!("a backup's label cannot be written: {error}")))
    }

    /// Of a backup, if it has one.
    pub fn of(backup: &Path) -> Result<Option<BackupLabel>> {
        let path = backup.join(LABEL);
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|error| Error::io(format_args!("read file \"{}\"", path.display()), &error))?,
        };
        let damaged = |error| Error::corrupted(format!("file \"{}\" is damaged: {error}", path.display()));
        serde_json::from_slice(&bytes).map(Some).map_err(damaged)
    }
}

/// What a row group's file is called that a record of a term names.
pub(crate) fn rows_name(term: u64, group: RowGroupId) -> String {
    format!("{term:08x}-{:016x}.rows", group.0)
}

/// The folder of an archive with the log of a database.
pub(crate) fn folder_of(archive: &Path, identity: impl std::fmt::Display) -> PathBuf {
    archive.join(identity.to_string())
}

/// Where the files of row groups are in it.
pub(crate) fn rows_of(folder: &Path) -> PathBuf {
    folder.join(ROWS)
}

type Files = Box<dyn Fn() -> Result<FileSource> + Send>;
type Bring = Box<dyn FnMut() -> Result<()> + Send>;

/// The archive of the log that this process writes.
#[derive(Debug)]
pub(crate) struct Archive {
    archiver: Archiver,
    folder: PathBuf,
}

/// How the archive does.
#[derive(Clone, Debug)]
pub struct ArchiverState {
    pub folder: PathBuf,
    pub log: ArchiveState,
}

fn failed<'p>(action: &'static str, path: &'p Path) -> impl FnOnce(io::Error) -> Error + 'p {
    move |error| Error::io(format_args!("{action} \"{}\"", path.display()), &error)
}

fn make_folder(path: &Path) -> Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        made => made.map_err(failed("create folder", path))?,
    }
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).map_or(Ok(()), sync_folder)
}

fn sync_folder(path: &Path) -> Result<()> {
    fs::File::open(path).and_then(|folder| folder.sync_all()).map_err(failed("sync folder", path))
}

/// Gives a file another name, or copies it where the folders are on two file systems. Durable once the folder is synced.
fn give_name(from: &Path, to: &Path) -> Result<()> {
    match fs::hard_link(from, to) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(to).map_err(failed("remove file", to))?;
            return give_name(from, to);
        }
        Err(_) => {}
    }
    let next = to.with_extension("new");
    fs::copy(from, &next).map_err(failed("write file", &next))?;
    fs::File::open(&next).and_then(|file| file.sync_all()).map_err(failed("sync file", &next))?;
    fs::rename(&next, to).map_err(failed("rename file", &next))
}

/// Keeps files of row groups that a record is about to name until they are archived.
pub(crate) fn keep_rows<'f>(
    unarchived: &Path,
    term: u64,
    files: impl Iterator<Item = (RowGroupId, &'f Path)>,
) -> Result<()> {
    let mut is_new = false;
    for (group, path) in files {
        if !std::mem::replace(&mut is_new, true) {
            make_folder(unarchived)?;
        }
        give_name(path, &unarchived.join(rows_name(term, group)))?;
    }
    if is_new { sync_folder(unarchived) } else { Ok(()) }
}

/// Archives the files that wait for that.
fn bring_rows(unarchived: &Path, archive: &Path, folder: &Path) -> Result<()> {
    make_folder(archive)?;
    make_folder(folder)?;
    let rows = rows_of(folder);
    make_folder(&rows)?;
    let entries = match fs::read_dir(unarchived) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed("read folder", unarchived))?,
    };
    let mut brought = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed("read folder", unarchived))?.path();
        let Some(name) = path.file_name().filter(|_| path.extension().is_some_and(|ext| ext == "rows")) else {
            continue;
        };
        give_name(&path, &rows.join(name))?;
        brought.push(path);
    }
    if brought.is_empty() {
        return Ok(());
    }
    sync_folder(&rows)?;
    // Those that come back after a crash are brought once more.
    brought.iter().try_for_each(|path| fs::remove_file(path).map_err(failed("remove file", path)))
}

impl Database {
    /// Begins to archive the log of a database that has it to itself. Before a checkpoint makes anything of it superfluous.
    pub(crate) fn archive_log(&self, storage: &Storage, log: &Arc<Log>, identity: DatabaseIdentity) -> Result<()> {
        let weak = Arc::downgrade(log);
        let of_oldest = weak.clone();
        let device = Arc::clone(log.device());
        let segment_bytes = device.segment_bytes();
        self.begin_archive(storage, identity, 0, segment_bytes, |timeout, files, bring| Archiving {
            source: Box::new(move || DeviceSource::new(Arc::clone(&device))),
            term: 0,
            from: Box::new(move || {
                let oldest = of_oldest.upgrade().map_or(0, |log| log.needed_from(CommitTs(0)));
                Ok((oldest > 0).then_some((0, oldest)))
            }),
            files,
            position: Box::new(move || weak.upgrade().map_or(LogPosition::default(), |log| log.position())),
            bring,
            kept_from: log.kept_from(),
            timeout,
        })
    }

    /// Begins to archive the log of a database in a pool, of which this host has just become primary: from where the primary before
    /// it came to, if the pool has that.
    pub(crate) fn archive_pool_log(&self, roles: &Roles, primary: &Primary) -> Result<()> {
        let Some(storage) = &self.storage else { return Ok(()) };
        let (member, identity) = (roles.host().member(), roles.identity());
        let term = u64::from(primary.reign.term.0);
        let (of_source, of_oldest) = (Arc::clone(member), Arc::clone(member));
        let weak = Arc::downgrade(&primary.log);
        let (first, segment_bytes) = (primary.first, member.pool().extent_bytes() as usize);
        let kept_from = primary.device.archived_from();
        self.begin_archive(storage, identity, term, segment_bytes, |timeout, files, bring| Archiving {
            source: Box::new(move || PoolSource::new(Arc::clone(&of_source))),
            term,
            from: Box::new(move || PoolSource::new(Arc::clone(&of_oldest)).oldest(identity)),
            files,
            position: Box::new(move || {
                // Before the term has a block, it is the place where the one before ended.
                let position = weak.upgrade().map_or(LogPosition::default(), |log| log.position());
                if position.segment() < first { LogPosition::default() } else { position }
            }),
            bring,
            kept_from,
            timeout,
        })
    }

    /// Files of loads in this term are kept from now on until they are archived: before anybody commits in it.
    pub(crate) fn keep_loads(&self, term: u64) {
        if let (Some(storage), Some(_)) = (&self.storage, &self.config().log.archive) {
            storage.archive_rows(storage.folder().join(UNARCHIVED), term);
        }
    }

    /// Archives the files of loads that this host kept when it was primary last, and died: its successor has archived the log that names
    /// them. To be called by a host that follows again.
    pub(crate) fn archive_left_rows(&self, roles: &Roles) {
        let archive = configured_folder_of(self.config().log.archive.as_deref());
        let (Some(storage), Some(archive)) = (&self.storage, archive) else { return };
        let (unarchived, identity) = (storage.folder().join(UNARCHIVED), roles.identity().to_string());
        // Of another database's life they are not in this one's log.
        let is_its = roles.folder.lock().as_ref().is_some_and(|folder| folder.identity.as_ref() == Some(&identity));
        if !is_its || !unarchived.exists() {
            return;
        }
        if let Err(error) = bring_rows(&unarchived, &archive, &folder_of(&archive, &identity)) {
            tracing::warn!(
                "files of loads in \"{}\" are not archived; the next start tries again: {error}",
                unarchived.display()
            );
        }
    }

    fn begin_archive<S: tidepool_log::Source + 'static>(
        &self,
        storage: &Storage,
        identity: DatabaseIdentity,
        term: u64,
        segment_bytes: usize,
        archiving: impl FnOnce(std::time::Duration, Files, Bring) -> Archiving<S>,
    ) -> Result<()> {
        let Some(archive) = configured_folder_of(self.config().log.archive.as_deref()) else { return Ok(()) };
        let folder = folder_of(&archive, identity);
        let unarchived = storage.folder().join(UNARCHIVED);
        let of_files = folder.clone();
        let files =
            Box::new(move || FileSource::archive(Arc::new(SystemFiles), &of_files, segment_bytes, identity)) as Box<_>;
        let of_rows = folder.clone();
        let bring = Box::new(move || bring_rows(&unarchived, &archive, &of_rows)) as Box<_>;
        self.keep_loads(term);
        let archiver = Archiver::start(archiving(self.config().log.archive_timeout, files, bring))?;
        let begun = Archive { archiver, folder };
        self.archive.set(begun).map_err(|_| Error::internal("the log is archived already"))
    }

    /// How the archive does. `None`: this process archives no log.
    pub fn archiver(&self) -> Option<ArchiverState> {
        let archive = self.archive.get()?;
        Some(ArchiverState { folder: archive.folder.clone(), log: archive.archiver.state() })
    }

    /// Archives what the log has by now, which nobody writes any more.
    pub(crate) fn end_archive(&self) {
        if let Some(archive) = self.archive.get()
            && let Err(error) = archive.archiver.finish()
        {
            tracing::warn!("the end of the log is not archived; the next start goes on with that: {error}");
        }
    }

    /// What a backup that is about to be made needs of the log, once it is archived. `None`: nobody archives it.
    pub(crate) fn backup_label(&self, checkpoint: CommitTs) -> Result<Option<BackupLabel>> {
        if let Some(roles) = &self.roles {
            let of_log = match (self.log.get(), roles.checkpoints()) {
                (Some(log), Some(checkpoints)) => match log.needed_from(checkpoint) {
                    0 => None,
                    number => Some(checkpoints.segment(number)?),
                },
                _ => roles.needed_segment()?,
            };
            let identity = roles.identity().to_string();
            return Ok(of_log.map(|(term, segment)| BackupLabel { identity, term, segment, commit_ts: checkpoint }));
        }
        let (Some(_), Some(log), Some(storage)) = (self.archive.get(), self.log.get(), &self.storage) else {
            return Ok(None);
        };
        let Some(home) = storage.log_home() else { return Ok(None) };
        if log.needed_from(checkpoint) == 0 {
            // Of a log in which nothing was written yet.
            let begun = self.commit_small(TICK, &[])?;
            log.wait_durable(begun, || Ok(()))?;
        }
        let (identity, segment) = (home.identity.to_string(), log.needed_from(checkpoint));
        Ok((segment > 0).then_some(BackupLabel { identity, term: 0, segment, commit_ts: checkpoint }))
    }
}
