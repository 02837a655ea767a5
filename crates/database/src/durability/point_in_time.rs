//! Recovery to a moment: a backup, and the archived log from there on up to a target.
//!
//! The log is followed as a standby follows it ([`crate::follow`]), in memory, and what there is at the target is written as the
//! checkpoint of a new data folder. So the folder has all that was committed up to there, and nothing after, or does not exist.
//! The target lies between two rounds of group commit: what such a round made durable was acknowledged together.
//!
//! Across terms the archive's segments say themselves where a term ended, as the second tier's do: what was sealed away is no part
//! of the log, and no copy has it. The new folder has no log: its next start makes one, with an identity of its own.

use crate::database::Follows;
use crate::durability::archive::{BackupLabel, LABEL, folder_of, rows_name, rows_of};
use crate::durability::check::open_folder;
use crate::durability::redo::{COMMIT, Entry, next_entry};
use crate::durability::storage::{Copied, SavedFile, check_empty};
use crate::follow::{Follower, RowGroups};
use crate::roles::fall_back::of_files;
use crate::text::moment_text;
use crate::{Config, Database, Lsn};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};
use tidepool_base::{Error, Result, RowGroupId, SqlState};
use tidepool_device::Location;
use tidepool_log::files::SystemFiles;
use tidepool_log::{DatabaseIdentity, FileSource, LogPosition, Next, Source, Tail, Until};
use tidepool_table::{RowGroup, Table};

/// Files of row groups that no record names are kept for so long: the record may be on its way.
const ROWS_KEPT: Duration = Duration::from_secs(24 * 3600);

/// How far a recovery goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryTarget {
    /// To the archive's end.
    End,
    /// To what was committed by then, in microseconds since 1970. `inclusive`: at that very microsecond, too.
    Time { us: u64, inclusive: bool },
    /// To a place in the log, as `pg_current_wal_lsn()` says it. `inclusive`: with what ends there.
    Lsn { lsn: Lsn, inclusive: bool },
}

/// What was recovered.
#[derive(Clone, Copy, Debug)]
pub struct Recovered {
    pub copied: Copied,
    /// Transactions that the log had beyond the backup.
    pub transactions: u64,
    /// When the last part of the log was written that was recovered, if there was any.
    pub last_at: Option<SystemTime>,
    pub lsn: Lsn,
    pub term: u64,
}

fn refused(message: String) -> Error {
    Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message)
}

/// Row groups of loads, from an archive.
struct ArchivedGroups {
    database: Weak<Database>,
    rows: PathBuf,
    /// Of the records that are applied.
    term: AtomicU64,
}

impl RowGroups for ArchivedGroups {
    fn loaded(&self, table: &Table, group: RowGroupId, rows: u64, _: Option<&[u8]>) -> Result<Arc<RowGroup>> {
        let database = self.database.upgrade().ok_or_else(|| Error::internal("the database is closed"))?;
        let storage = database.storage.as_ref().ok_or_else(|| Error::internal("a recovery without a backup"))?;
        let path = self.rows.join(rows_name(self.term.load(Ordering::Relaxed), group));
        if !path.exists() {
            return Err(Error::corrupted(format!("file \"{}\" is missing in the archive", path.display()))
                .with_detail("It has rows that a transaction loaded, and what was committed later cannot be recovered without it.")
                .with_hint("If a host died before it archived the file, start that host again, or copy the file from folder \"unarchived\" of its data folder. Otherwise recover to a moment before the load."));
        }
        let file = SavedFile { id: group.0, rows, range: None };
        let loaded = storage.load_group_at(&path, &table.def, &table.placement, &file, database.tablespaces())?;
        Ok(Arc::new(loaded))
    }

    fn merged(&self, _: &Table, _: RowGroupId, _: u64, _: &[u8]) -> Result<Arc<RowGroup>> {
        Err(Error::internal("what a merge made is read from an archive"))
    }
}

/// A backup, and the archive of its log.
struct Archived {
    label: BackupLabel,
    identity: DatabaseIdentity,
    source: FileSource,
    folder: PathBuf,
}

fn find(backup: &Path, archive: &Path) -> Result<Archived> {
    let label = BackupLabel::of(backup)?.ok_or_else(|| {
        refused(format!("\"{}\" is no backup that a log goes on from", backup.display()))
            .with_detail(format!("It has no file {LABEL}: the log was not archived when it was made."))
    })?;
    let identity = DatabaseIdentity::parse(&label.identity).ok_or_else(|| {
        Error::corrupted(format!("file \"{}\" is damaged: it names no database", backup.join(LABEL).display()))
    })?;
    let folder = folder_of(archive, identity);
    let source = FileSource::find_archive(Arc::new(SystemFiles), &folder, identity)?;
    Ok(Archived { label, identity, source, folder })
}

/// The memory of the process that recovers: no pool's.
fn of_process(config: &Config) -> Config {
    let mut config = Config { data_dir: None, pool: None, process_tablespace: None, ..config.clone() };
    config.log.archive = None;
    for space in [&mut config.near, &mut config.far].into_iter().chain(&mut config.tablespaces) {
        if space.location == Location::Pool {
            space.location = Location::Anon;
        }
    }
    config
}

/// Makes the data folder of `config`, which is not there or empty (55000 otherwise), of a backup and an archive: as the database was
/// at `target`. `spaces` as for [`restore`](crate::restore). XX001, naming the file, where something that it takes is missing or
/// damaged; 55000 where the archive does not go as far as the target. Then there is no data folder.
pub fn recover_to(
    backup: &Path,
    archive: &Path,
    config: &Config,
    spaces: &[(String, Location)],
    target: RecoveryTarget,
    interrupted: &dyn Fn() -> Result<()>,
) -> Result<Recovered> {
    let to = config.data_dir.as_deref().ok_or_else(|| Error::internal("there is no data folder"))?;
    check_empty(&SystemFiles, to)?;
    let (storage, mut manifest) = open_folder(&Config { data_dir: Some(backup.to_owned()), ..config.clone() })?;
    let Archived { label, identity, source, folder } = find(backup, archive)?;
    if manifest.identity.is_some() || manifest.commit_ts != label.commit_ts {
        return Err(refused(format!("backup \"{}\" was changed since it was made", backup.display()))
            .with_hint("A server that is started on a backup makes it another database. Restore it elsewhere first."));
    }
    manifest.move_tablespaces(spaces)?;
    storage.say_no_places();
    let base = manifest.commit_ts;
    let follows = Follows { storage: Some(storage), applied: base, host: None, catalogue: Some(&manifest) };
    let config = of_process(config);
    let threads = config.threads.clamp(1, 8);
    let database = Database::open_as(config, Arc::new(SystemFiles), None, Some(follows))?;
    let attached = database.folder_storage().and_then(|storage| database.attach_folder(storage, &manifest));
    let recovered = attached.and_then(|()| {
        let segment_bytes = source.segment_bytes() as u64;
        let groups =
            ArchivedGroups { database: Arc::downgrade(&database), rows: rows_of(&folder), term: AtomicU64::new(0) };
        let groups = Arc::new(groups);
        let mut follower = Follower::new(&database, Arc::clone(&groups) as _, threads)?;
        let mut tail = Tail::open(source, identity, Some((label.term, label.segment)));
        tail.skip_to(base);
        tail.stop_at(match target {
            RecoveryTarget::End => Until::Time { us: u64::MAX, inclusive: true },
            RecoveryTarget::Time { us, inclusive } => Until::Time { us, inclusive },
            RecoveryTarget::Lsn { lsn, inclusive } => {
                let segment = (lsn.0 / segment_bytes).min(u64::from(u32::MAX));
                let bits = (segment << 32) | (lsn.0 % segment_bytes);
                Until::Position { end: LogPosition::from_bits(bits), inclusive }
            }
        });
        let mut transactions = 0;
        loop {
            interrupted()?;
            let batch = match tail.read() {
                Ok(Next::Batch(batch)) => batch,
                Ok(_) => break,
                // What is missing says more than where that was noticed.
                Err(error) => return tail.check_archive().and(Err(error)),
            };
            transactions += batch.records.iter().filter(|record| record.kind == COMMIT).count() as u64;
            groups.term.store(tail.position().0, Ordering::Relaxed);
            let batch = of_files(&database, &mut tail, batch, &mut |_| ())?;
            follower.apply(&database, batch)?;
        }
        let last_at = Some(tail.marked_us()).filter(|us| *us > 0);
        let last_at = last_at.map(|us| SystemTime::UNIX_EPOCH + Duration::from_micros(us));
        if !tail.is_reached() {
            tail.check_archive()?;
            if target != RecoveryTarget::End {
                return Err(not_reached(last_at));
            }
        }
        let (term, position) = tail.position();
        let lsn = Lsn(position.segment() * segment_bytes + position.offset() as u64);
        let copied = database.save_as(to, interrupted)?;
        Ok(Recovered { copied, transactions, last_at, lsn, term })
    });
    database.halt();
    recovered
}

fn not_reached(last_at: Option<SystemTime>) -> Error {
    let error = refused("recovery ended before configured recovery target was reached".to_owned());
    let error = match last_at {
        Some(last) => {
            let us = last.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64);
            error.with_detail(format!("The archive ends with what was written at {}.", moment_text(us)))
        }
        None => error.with_detail("The archive has nothing beyond the backup."),
    };
    error.with_hint("Without a target, all that the archive has is recovered.")
}

/// Removes what no recovery from `backup`, or a later one, needs of an archive. Returns how many files of the log and of row groups
/// went.
pub fn remove_archive_before(backup: &Path, archive: &Path) -> Result<(u64, u64)> {
    let Archived { label, identity, source, folder } = find(backup, archive)?;
    let rows = rows_of(&folder);
    let failed = |error: std::io::Error| Error::io(format_args!("read folder \"{}\"", rows.display()), &error);
    let mut files = Vec::new();
    if rows.exists() {
        for entry in std::fs::read_dir(&rows).map_err(failed)? {
            files.push(entry.map_err(failed)?);
        }
    }
    // What is named is looked for after the files were: a file that came since is not among them.
    let mut named = HashSet::new();
    let mut tail = Tail::open(source.clone(), identity, Some((label.term, label.segment)));
    while let Next::Batch(batch) = tail.read()? {
        let term = tail.position().0;
        for mut record in batch.records.into_iter().filter(|record| record.kind == COMMIT) {
            while let Some(mut piece) = tail.next_piece(&mut record)? {
                while let Some(entry) = next_entry(&mut piece)? {
                    if let Entry::Load { group, .. } = entry {
                        named.insert(rows_name(term, group));
                    }
                }
            }
        }
    }
    tail.check_archive()?;
    let segments = source.remove_before(label.term, label.segment)?;
    let mut count = 0;
    for file in files {
        let age = file.metadata().and_then(|data| data.modified()).ok().and_then(|at| at.elapsed().ok());
        let is_named = file.file_name().to_str().is_some_and(|name| named.contains(name));
        if !is_named && age.is_some_and(|age| age > ROWS_KEPT) {
            let path = file.path();
            std::fs::remove_file(&path)
                .map_err(|error| Error::io(format_args!("remove file \"{}\"", path.display()), &error))?;
            count += 1;
        }
    }
    Ok((segments, count))
}
