//! The second tier: a data folder beside the pool, of this host alone.
//!
//! While the host is primary, it copies the log of the pool into files of the folder ([`TeeWriter`]), and writes checkpoints of its
//! tables there, as a database without a pool does ([`Storage`]). A checkpoint and the copy from there on are all that a start
//! needs where the pool is lost ([`super::fall_back`]): what records of loads and merges name in the pool is not.
//!
//! * A load's rows are in files before its record is in the log, so that the copy never has a record whose rows the folder lacks.
//! * What a merge made is in the next checkpoint. Until then the copy has its rows as they were written.
//! * A checkpoint covers nothing that a take-over takes back: a mark behind its view is durable in the log, with the term
//!   looked at, before the manifest says so. So the copy of the next primary's log goes on from it.
//! * The copy goes on in the files where they end, if the log in the pool has that place. Otherwise it begins in a folder of
//!   its own, and the manifest of the next checkpoint names that: until then the folder is as it was.
//!
//! A folder is one host's (`LOCK`). After a take-over it is the new primary's folder that goes on; the one before is a copy
//! of an earlier moment.

use super::{HostRole, Roles};
use crate::Database;
use crate::durability::log_home::{configured_folder, folder_of};
use crate::durability::redo::TICK;
use crate::durability::storage::{LogCopy, LogHome, LogPlace, Manifest, SavedLog, SavedPool, Storage};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};
use tidepool_base::{CommitTs, Error, Result, SqlState};
use tidepool_log::{DatabaseIdentity, FileSource, LogPosition, PoolSource, Primary, Tee, TeeWriter};
use tidepool_pool::pool::Pool;

/// Folders of copies, with a number behind.
const COPY: &str = "copy-";

/// How long a checkpoint that the folder lacks is waited for before it is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// How long after the disk refused it a second tier is tried to be begun again.
const START_RETRY: Duration = Duration::from_secs(1);

/// The second tier of a host that is primary.
#[derive(Debug)]
pub(crate) struct SecondTier {
    identity: DatabaseIdentity,
    /// As the next manifest has it, but for where the copy begins.
    place: LogCopy,
    logs: PathBuf,
    /// The first segment that the copy has.
    begins: (u64, u64),
    /// `None` once it has ended.
    copy: Mutex<Option<Arc<TeeWriter>>>,
    base: Mutex<Base>,
}

/// The checkpoint in the folder.
#[derive(Clone, Copy, Debug)]
struct Base {
    ts: CommitTs,
    from: Option<(u64, u64)>,
    written_at: Option<SystemTime>,
    tried: Option<Instant>,
}

impl Base {
    /// This process knows of none.
    const NONE: Base = Base { ts: CommitTs(0), from: None, written_at: None, tried: None };
}

/// How far the second tier has come.
#[derive(Clone, Debug)]
pub struct SecondTierState {
    /// The folder alone is enough for a start, up to what is copied.
    pub is_complete: bool,
    /// What is in the log of the pool up to here is in the folder.
    pub copied: LogPosition,
    pub copied_ts: CommitTs,
    /// What the last checkpoint there is as of, and when it was written; zero: this process has written none yet.
    pub checkpoint: CommitTs,
    pub checkpoint_at: Option<SystemTime>,
    pub failure: Option<Error>,
}

/// The folder of a copy of the log.
pub(crate) fn copy_folder(config: &crate::Config, storage: &Storage, copy: &LogCopy) -> PathBuf {
    folder_of(configured_folder(config).as_deref(), storage).join(&copy.folder)
}

/// What a folder's manifest says of the pool that it is the second tier of.
pub(crate) fn copy_of(manifest: &Manifest) -> Option<&LogCopy> {
    match &manifest.log {
        Some(SavedLog { place: LogPlace::Pool(copy), .. }) => Some(copy),
        _ => None,
    }
}

fn saved_pool(pool: &Pool) -> SavedPool {
    let superblock = pool.superblock();
    SavedPool {
        location: pool.location().to_string(),
        devices: (0..tidepool_pool::layout::DEVICES).filter(|device| pool.device_location(*device).is_some()).count(),
        bytes: superblock.size_bytes,
        bytes_max: u64::from(superblock.extents_max) * superblock.extent_bytes,
        extent_bytes: superblock.extent_bytes,
        label: superblock.label.clone(),
    }
}

/// Begins the second tier of a host that has just become primary, if it has a folder. Before anything of its log goes.
pub(super) fn start(roles: &Roles, database: &Database, primary: &Primary) -> Result<()> {
    let Some(storage) = &database.storage else { return Ok(()) };
    let (member, identity) = (roles.host().member(), roles.identity());
    let pool = member.pool();
    let segment_bytes = pool.extent_bytes() as usize;
    let logs = folder_of(configured_folder(database.config()).as_deref(), storage);
    let create = storage.files().create_folder(&logs);
    create.map_err(|error| Error::io(format_args!("create folder \"{}\"", logs.display()), &error))?;
    let source = || PoolSource::new(Arc::clone(member));
    let files = |name: &str| FileSource::open(Arc::clone(storage.files()), &logs.join(name), segment_bytes, identity);
    let known = roles.folder.lock().clone().filter(|known| known.identity == Some(identity.to_string()));
    let place = |folder: String, from| LogCopy { folder, from, segment_bytes, pool: saved_pool(pool) };
    let mut begun = None;
    if let Some(manifest) = known
        && let Some(copy) = copy_of(&manifest).cloned().filter(|copy| copy.segment_bytes == segment_bytes)
    {
        match Tee::open(source(), files(&copy.folder)?, copy.from) {
            Ok(tee) if tee.is_complete() => {
                let base = Base { ts: manifest.commit_ts, from: copy.from, ..Base::NONE };
                let saved = SavedLog { place: LogPlace::Pool(copy.clone()), closed: false, noted: false, left: None };
                storage.set_log_home(LogHome { identity, saved });
                storage.opened(manifest);
                begun = Some((tee, place(copy.folder, copy.from), copy.from.unwrap_or((0, 0)), base));
            }
            Ok(_) => {}
            // The log in the pool does not go back to where the files end.
            Err(error) if error.code() == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE => {
                tracing::info!("{error}: the copy begins anew");
            }
            Err(error) => return Err(error),
        }
    }
    let (tee, place, begins, base) = match begun {
        Some(begun) => begun,
        None => {
            // The copy begins with the term, whose log has a block then.
            let begun = database.commit_small(TICK, &[])?;
            primary.log.wait_durable(begun, || Ok(()))?;
            let number = copies(&logs)?.last().map_or(1, |last| last + 1);
            let (name, begins) = (format!("{COPY}{number}"), (u64::from(primary.reign.term.0), primary.first));
            let tee = files(&name).and_then(|files| Tee::open(source(), files, Some(begins)));
            // The next try makes another folder.
            let tee = tee.inspect_err(|_| drop(std::fs::remove_dir(logs.join(&name))))?;
            (tee, place(name, None), begins, Base::NONE)
        }
    };
    let copy = Mutex::new(Some(Arc::new(TeeWriter::start(tee, primary.device.kept_from())?)));
    let tier = SecondTier { identity, place, logs, begins, copy, base: Mutex::new(base) };
    roles.second_tier.set(tier).map_err(|_| Error::internal("there is a second tier already"))?;
    *roles.folder.lock() = None;
    // What came since the last checkpoint is not known, and where there is none all of it is missing.
    database.dirty.store(true, Ordering::Release);
    Ok(())
}

/// The second tier could not begin. Where its disk refused, it is tried again until it does, and the log stays in the pool from the
/// term's beginning on, as it does for a copy that cannot be written.
pub(super) fn start_later(roles: &Arc<Roles>, database: &Arc<Database>, primary: &Primary, error: Error) -> Result<()> {
    let is_of_disk = matches!(error.code(), SqlState::DISK_FULL | SqlState::IO_ERROR);
    *roles.second_tier_failure.lock() = Some(error);
    if !is_of_disk {
        return Ok(());
    }
    primary.device.kept_from().store(primary.first, Ordering::Release);
    let (of_thread, weak, primary) = (Arc::clone(roles), Arc::downgrade(database), primary.clone());
    let again = move || {
        loop {
            {
                let mut state = of_thread.state.lock();
                if !state.stopped {
                    of_thread.changed.wait_for(&mut state, START_RETRY);
                }
                if state.stopped || !matches!(of_thread.role(), HostRole::Primary | HostRole::TakingOver) {
                    return;
                }
            }
            let Some(database) = weak.upgrade() else { return };
            match start(&of_thread, &database, &primary) {
                Ok(()) => {
                    tracing::info!("the data folder is a second tier from now on");
                    *of_thread.second_tier_failure.lock() = None;
                    return;
                }
                Err(error) => *of_thread.second_tier_failure.lock() = Some(error),
            }
        }
    };
    let thread = std::thread::Builder::new()
        .name("second-tier".to_owned())
        .spawn(again)
        .map_err(|error| Error::io("start a thread", &error))?;
    roles.state.lock().threads.push(thread);
    Ok(())
}

/// The numbers of copies' folders.
fn copies(logs: &Path) -> Result<BTreeSet<u64>> {
    let failed = |error: std::io::Error| Error::io(format_args!("read folder \"{}\"", logs.display()), &error);
    let mut numbers = BTreeSet::new();
    for entry in std::fs::read_dir(logs).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.strip_prefix(COPY)?.parse::<u64>().ok()));
    }
    Ok(numbers)
}

impl SecondTier {
    fn copy(&self) -> Option<Arc<TeeWriter>> {
        self.copy.lock().clone()
    }

    /// What waits for a commit to be copied, if there is something that it can be copied to: where the copy is behind or cannot be
    /// written, the pool's word counts.
    pub fn promises(&self) -> Option<Arc<TeeWriter>> {
        self.copy().filter(|copy| copy.is_complete())
    }

    /// The folder needs a checkpoint before it is one that a start can go on from, or the copy is long.
    pub fn wants_checkpoint(&self, end: LogPosition, bytes_max: u64) -> bool {
        let base = *self.base.lock();
        let was_tried = base.tried.is_some_and(|tried| tried.elapsed() < RETRY);
        if self.lacks_checkpoint(&base) {
            return !was_tried;
        }
        let segments = end.segment().saturating_sub(base.from.map_or(0, |(_, number)| number));
        !was_tried && segments * self.place.segment_bytes as u64 > bytes_max
    }

    fn lacks_checkpoint(&self, base: &Base) -> bool {
        base.ts == CommitTs(0) || base.from.is_some_and(|from| from < self.begins)
    }

    pub fn tries(&self) {
        self.base.lock().tried = Some(Instant::now());
    }

    /// What the manifest of a checkpoint says of the log, of which it lacks what is from a segment on.
    pub fn saved(&self, from: Option<(u64, u64)>) -> SavedLog {
        let place = LogPlace::Pool(LogCopy { from, ..self.place.clone() });
        SavedLog { place, closed: false, noted: false, left: None }
    }

    /// A checkpoint is in force: what the copy has before it goes, and so do copies that no manifest names.
    pub fn based(&self, storage: &Storage, ts: CommitTs, from: Option<(u64, u64)>) {
        storage.set_log_home(LogHome { identity: self.identity, saved: self.saved(from) });
        *self.base.lock() = Base { ts, from, written_at: Some(SystemTime::now()), tried: Some(Instant::now()) };
        if let (Some(copy), Some((term, number))) = (self.copy(), from) {
            copy.remove_before(term, number);
        }
        storage.end_inheritance();
        for number in copies(&self.logs).unwrap_or_default() {
            let name = format!("{COPY}{number}");
            if name != self.place.folder
                && let Err(error) = std::fs::remove_dir_all(self.logs.join(&name))
            {
                tracing::warn!("could not remove the copy of a log \"{}\": {error}", self.logs.join(name).display());
            }
        }
    }

    pub fn state(&self) -> SecondTierState {
        let (copy, base) = (self.copy(), *self.base.lock());
        let ended = || Error::new(SqlState::IO_ERROR, "the log is not copied into files any more");
        SecondTierState {
            is_complete: copy.as_ref().is_some_and(|copy| copy.is_complete()),
            copied: copy.as_ref().map_or(LogPosition::default(), |copy| copy.durable_end()),
            copied_ts: copy.as_ref().map_or(CommitTs(0), |copy| copy.durable()),
            checkpoint: base.ts,
            checkpoint_at: base.written_at,
            failure: copy.map_or_else(|| Some(ended()), |copy| copy.failure()),
        }
    }

    /// Copies what was written so far, and ends.
    pub fn end(&self) {
        drop(self.copy.lock().take());
    }
}

impl Database {
    /// What commits wait for beside the log: the copy of a second tier, if that has all that a start needs.
    #[inline]
    pub(crate) fn second_tier_copy(&self) -> Option<Arc<TeeWriter>> {
        self.roles.as_ref()?.second_tier.get()?.promises()
    }

    /// How far the second tier has come. `None` where this process is not the primary of a database in a pool, or has no data
    /// folder beside it.
    pub fn second_tier(&self) -> Option<SecondTierState> {
        let roles = self.roles.as_ref()?;
        let failed = || {
            let failure = roles.second_tier_failure.lock().clone()?;
            Some(SecondTierState {
                is_complete: false,
                copied: LogPosition::default(),
                copied_ts: CommitTs(0),
                checkpoint: CommitTs(0),
                checkpoint_at: None,
                failure: Some(failure),
            })
        };
        roles.second_tier.get().map(SecondTier::state).or_else(failed)
    }
}
