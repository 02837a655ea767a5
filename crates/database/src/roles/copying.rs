//! A copy: a standby over a pool of its own, which follows the log of another pool's database by the files of that one's second tier.
//!
//! It is the way in of a data folder into a new pool ([`super::fall_back`]) with time between its two halves. The folder's checkpoint
//! is read and becomes what there is; the log is followed from there, as a standby follows, for as long as nobody asks for more. When
//! the copy is *promoted* it follows to the end of what there is, and becomes the primary of its own pool's database, whose identity
//! and log are its own: nothing of the old primary's is ever read after that.
//!
//! * The pool's database has no manifest and no log until then, and the process has it to itself. So a copy that is started again
//!   begins with the folder's checkpoint again, and what its predecessor had in the pool is free.
//! * A main that a merge made comes with the checkpoint that has it in a file: its record is remembered until then, and its rows are in
//!   versions meanwhile.
//! * What is missing in the folder, torn or damaged is waited for, and told. What is gone, since a later checkpoint has it, is
//!   not: then the copy begins anew with that one. The tables of the new checkpoint take the place of those there were in one step,
//!   and until then statements see these.
//! * Promotion is refused where the folder has more behind a place that cannot be read: that would be lost without a word.
//! * The first manifest is in force before a statement writes (`Roles::is_founding`).

use super::attach::{APPLY_THREADS_MAX, Attached};
use super::copied::{Base, CopiedGroups, Stamp, end_of};
use super::fall_back::{Folder, InLog, drop_database, logged, of_files};
use super::following::{Following, Outcome};
use super::{HostRole, Roles, watch};
use crate::config::{PoolRole, PoolSettings};
use crate::database::Follows;
use crate::durability::ids::Ids;
use crate::durability::small::MainRecord;
use crate::durability::storage::EarlierLife;
use crate::durability::tier1::shared_extents;
use crate::follow::Follower;
use crate::pool_host::PoolHost;
use crate::text::moment_text;
use crate::{Config, Database};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};
use tidepool_base::{CommitTs, Error, Result, SqlState, StoreId, crash_point};
use tidepool_log::files::SystemFiles;
use tidepool_log::{FileSource, LogPosition, Next, PoolTail, Tail};
use tidepool_pool::words::HostState;

/// Between two looks at a log in which nothing is new.
const PAUSE: Duration = Duration::from_millis(20);

/// Between two looks whether the folder has another checkpoint.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Between two looks at the end of the log, and whether something is behind a place that cannot be read.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// What is missing for so long is told in the log, and a checkpoint that has it is gone on from.
const PATIENCE: Duration = Duration::from_secs(2);

/// Between two looks at memory of the pool that nothing uses any more.
const RECLAIM_INTERVAL: Duration = Duration::from_secs(5);

/// How often a start looks for a checkpoint whose files go or come while it is read.
const BASE_TRIES: u32 = 20;

/// How a copy does.
#[derive(Clone, Debug)]
pub struct CopyState {
    /// What is copied.
    pub folder: PathBuf,
    pub(super) segment_bytes: u64,
    /// The checkpoint that it began with, the last time.
    pub base: CommitTs,
    /// How often it began anew.
    pub begun_anew: u64,
    /// The end of what the folder has of the log, when it was looked at last, and when that was.
    pub end: LogPosition,
    pub looked_at: Option<SystemTime>,
    /// When the newest block was written that was applied, by the primary's clock.
    pub written_at: Option<SystemTime>,
    /// Why it does not go on, while that is so.
    pub failure: Option<Error>,
}

impl CopyState {
    /// How old what it shows is, by this machine's clock and the primary's.
    pub fn age(&self) -> Option<Duration> {
        Some(self.written_at?.elapsed().unwrap_or_default())
    }
}

/// Why nothing was applied.
enum Trouble {
    /// Something in the folder is missing or damaged, and may come.
    Waits(Error),
    /// Nothing can be applied any more.
    Ends(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        Trouble::Waits(error)
    }
}

struct Copying {
    roles: Arc<Roles>,
    folder: PathBuf,
    /// The newest checkpoint of the folder that was seen.
    newest: Base,
    stamp: Option<Stamp>,
    /// The checkpoint whose log is followed.
    base: Base,
    follower: Follower,
    groups: Arc<CopiedGroups>,
    tail: Option<Tail<FileSource>>,
    /// Where a reader has to begin that goes on from what is applied.
    place: Option<(u64, u64)>,
    /// Mains of which the record was applied, and the file was not there: the latest of each range.
    mains: HashMap<(StoreId, u64), MainRecord>,
    marked_us: u64,
    looked: Instant,
    checked: Instant,
    reclaimed: Instant,
    /// Since when something is in the way, and whether that was told.
    trouble: Option<(Instant, bool)>,
    /// The folder's manifest cannot be read.
    lacks_manifest: bool,
}

impl Database {
    /// Opens a copy of another pool's database.
    pub(super) fn open_copy(config: Config) -> Result<Arc<Database>> {
        let settings = config.pool.clone().ok_or_else(|| Error::internal("a role without a pool"))?;
        let folder = settings.copy_from.clone().ok_or_else(|| Error::internal("a copy of nothing"))?;
        let mut found = Base::find(&folder);
        loop {
            if let Ok(base) = &found {
                check_other_pool(&settings, base)?;
            }
            let host = PoolHost::join(&config)?.ok_or_else(|| Error::internal("a role without a pool"))?;
            host.check_beside_copies(true)?;
            match logged(&host)? {
                InLog::Nothing => return Copying::begin(config, &host, &folder, found),
                // A promotion was cut short before anybody could write.
                InLog::Marks => {
                    drop(host);
                    drop_database(&settings)?;
                    found = Base::find(&folder);
                }
                InLog::Commits => {
                    drop(host);
                    tracing::warn!(
                        "this copy was promoted, and has a database of its own: it begins as auto, and does not follow \"{}\"",
                        folder.display()
                    );
                    let role = PoolRole::Auto;
                    let pool = Some(PoolSettings { role: Some(role), ..settings });
                    return Database::open_in_pool(Config { pool, ..config }, role);
                }
            }
        }
    }
}

/// 55000 where the pool is the one whose database is to be copied.
fn check_other_pool(settings: &PoolSettings, base: &Base) -> Result<()> {
    let pool = settings.open()?;
    if pool.databases()?.iter().all(|view| view.identity != base.identity.0) {
        return Ok(());
    }
    Err(Error::new(
        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!("pool \"{}\" has the database that is to be copied", settings.location),
    )
    .with_detail("A copy in the same pool would be lost with it.")
    .with_hint("Make another pool, of other memory, and name that: --pool. In this one, start a standby."))
}

impl Copying {
    fn begin(config: Config, host: &Arc<PoolHost>, folder: &Path, found: Result<Base>) -> Result<Arc<Database>> {
        let mut found = found;
        for left in (0..BASE_TRIES).rev() {
            let stamp = Stamp::of(folder);
            let begun = found.and_then(|base| Copying::begin_with(config.clone(), host, folder, base, stamp));
            match begun {
                Ok(begun) => return Ok(begun),
                // Its files went, or are still to come.
                Err(error) if left == 0 || !may_come(&error) => return Err(error),
                Err(_) => std::thread::sleep(LOOK_INTERVAL),
            }
            found = Base::find(folder);
        }
        Err(Error::internal("a copy has not begun"))
    }

    fn begin_with(
        config: Config,
        host: &Arc<PoolHost>,
        folder: &Path,
        base: Base,
        stamp: Option<Stamp>,
    ) -> Result<Arc<Database>> {
        let freed = host.member().reclaim_unnamed()?;
        if freed > 0 {
            tracing::info!("{freed} extents of the pool, which an earlier start of this copy left, are free");
        }
        let begun = Instant::now();
        // It is the second tier of what there is once the copy is promoted.
        let own = Folder::open(&config)?;
        if let Some(own) = &own {
            own.check_new()?;
            own.storage.begin_second_tier(false)?;
        }
        let threads = config.threads.clamp(1, APPLY_THREADS_MAX);
        let follows = Follows {
            storage: own.map(|own| own.storage),
            applied: base.ts(),
            host: Some(Arc::clone(host)),
            catalogue: Some(&base.manifest),
        };
        let database = Database::open_as(config, Arc::new(SystemFiles), None, Some(follows))?;
        let roles = database.roles_of_pool()?;
        database.attach_folder(&base.storage, &base.manifest)?;
        let groups = Arc::new(CopiedGroups::new(&database, &base.storage));
        let follower = Follower::new(&database, Arc::clone(&groups) as _, threads)?;
        host.advance(HostState::Following)?;
        *roles.copy.lock() = Some(CopyState {
            folder: folder.to_owned(),
            segment_bytes: base.log.segment_bytes as u64,
            base: base.ts(),
            begun_anew: 0,
            end: LogPosition::default(),
            looked_at: None,
            written_at: None,
            failure: None,
        });
        roles.note_progress(|progress| progress.applied = base.ts());
        tracing::info!(
            folder = %folder.display(),
            tables = base.manifest.tables.len(),
            ms = begun.elapsed().as_millis() as u64,
            "the copy has the checkpoint of the folder, and follows its log"
        );
        let now = Instant::now();
        let mut copying = Copying {
            roles: Arc::clone(&roles),
            folder: folder.to_owned(),
            newest: base.clone(),
            stamp,
            base,
            follower,
            groups,
            tail: None,
            place: None,
            mains: HashMap::new(),
            marked_us: 0,
            looked: now,
            checked: now,
            reclaimed: now,
            trouble: None,
            lacks_manifest: false,
        };
        // Statements are to see what there is by now, as far as it can be read.
        loop {
            match copying.read(&database) {
                Ok(true) => {}
                Ok(false) | Err(Trouble::Waits(_)) => break,
                Err(Trouble::Ends(error)) => return Err(error),
            }
        }
        let _ = copying.measure();
        let watcher = host.take_watcher()?;
        let (weak, of_thread) = (Arc::downgrade(&database), Arc::clone(&roles));
        let thread = std::thread::Builder::new()
            .name("copy".to_owned())
            .spawn(move || copying.run(&of_thread, &weak))
            .map_err(|error| Error::io("start the thread that follows", &error))?;
        roles.state.lock().threads.push(thread);
        watch::start(&roles, watcher)?;
        Ok(database)
    }

    /// What the thread does.
    fn run(mut self, roles: &Arc<Roles>, database: &Weak<Database>) {
        loop {
            let Some(database) = database.upgrade() else { return };
            let is_asked = {
                let state = roles.state.lock();
                if state.stopped || roles.role() == HostRole::Fenced {
                    return;
                }
                state.is_asked
            };
            if is_asked {
                match self.promote(&database) {
                    Ok(None) => return,
                    Ok(Some(back)) => self = *back,
                    Err(error) => return roles.fail(&error),
                }
            }
            let is_paused = roles.pauses();
            let stepped = if is_paused { Ok(false) } else { self.step(&database) };
            let is_new = match stepped {
                Ok(is_new) => is_new,
                Err(Trouble::Waits(error)) => match self.wait_for(&database, error) {
                    Ok(is_new) => is_new,
                    Err(error) => return roles.fail(&error),
                },
                Err(Trouble::Ends(error)) => return roles.fail(&error),
            };
            if is_new {
                continue;
            }
            // It would be kept by a thread that waits.
            drop(database);
            let mut state = roles.state.lock();
            if !state.stopped && !state.is_asked {
                roles.changed.wait_for(&mut state, PAUSE);
            }
        }
    }

    /// Applies what is new, and looks at the folder now and then. False: nothing is new.
    fn step(&mut self, database: &Arc<Database>) -> Result<bool, Trouble> {
        if self.looked.elapsed() >= LOOK_INTERVAL {
            self.looked = Instant::now();
            self.look(database)?;
        }
        if self.reclaimed.elapsed() >= RECLAIM_INTERVAL {
            self.reclaimed = Instant::now();
            self.reclaim(database)?;
        }
        let is_due = self.checked.elapsed() >= CHECK_INTERVAL;
        if is_due {
            self.checked = Instant::now();
            self.measure()?;
        }
        if self.read(database)? {
            self.end_trouble();
            return Ok(true);
        }
        if (is_due || self.trouble.is_some()) && self.check(database)? {
            return Ok(true);
        }
        self.end_trouble();
        Ok(false)
    }

    /// Applies what is new.
    fn read(&mut self, database: &Arc<Database>) -> Result<bool, Trouble> {
        let read = self.read_on(database);
        if read.is_err() {
            // What was read and not applied is read again.
            self.tail = None;
            self.groups.let_go();
        }
        read
    }

    fn read_on(&mut self, database: &Arc<Database>) -> Result<bool, Trouble> {
        if self.tail.is_none() {
            self.tail = self.base.tail(self.place, self.follower.applied_ts())?;
        }
        let Some(tail) = &mut self.tail else { return Ok(false) };
        let Next::Batch(batch) = tail.read()? else {
            tail.look_again()?;
            return Ok(false);
        };
        let ((term, position), marked_us) = (tail.position(), tail.marked_us());
        self.roles.note_progress(|progress| (progress.term, progress.received) = (term, position));
        let mut mains = Vec::new();
        let batch = of_files(database, tail, batch, &mut |main| mains.push(main))?;
        self.groups.hold(&batch)?;
        self.follower.apply(database, batch).map_err(Trouble::Ends)?;
        crash_point("copy.applied");
        self.groups.let_go();
        self.place = Some(tail.needed_place());
        self.marked_us = self.marked_us.max(marked_us);
        database.transaction_ids.follow(u32::try_from(term).unwrap_or(u32::MAX));
        let written_at = self.written_at();
        let applied = self.follower.applied_ts();
        self.roles.note_progress(|progress| {
            (progress.replayed, progress.applied) = (position, applied);
            progress.replayed_at = written_at;
        });
        self.note(|copy| {
            copy.written_at = written_at;
            copy.end = copy.end.max(position);
        });
        let has_mains = !mains.is_empty();
        self.mains.extend(mains.into_iter().map(|main| ((main.store, main.range), main)));
        if has_mains {
            self.adopt(database)?;
        }
        Ok(true)
    }

    fn written_at(&self) -> Option<SystemTime> {
        (self.marked_us > 0).then(|| SystemTime::UNIX_EPOCH + Duration::from_micros(self.marked_us))
    }

    fn note(&self, note: impl FnOnce(&mut CopyState)) {
        self.roles.copy.lock().as_mut().map(note);
    }

    /// Looks whether the folder has another checkpoint.
    fn look(&mut self, database: &Arc<Database>) -> Result<(), Trouble> {
        let stamp = Stamp::of(&self.folder);
        if stamp.is_none() || stamp == self.stamp {
            return Ok(());
        }
        match Base::find(&self.folder) {
            Ok(newest) => (self.newest, self.stamp, self.lacks_manifest) = (newest, stamp, false),
            // The log goes on without it.
            Err(error) => {
                self.lacks_manifest = true;
                self.note(|copy| copy.failure = Some(error));
                return Ok(());
            }
        }
        self.adopt(database)
    }

    /// Says how far the folder goes.
    fn measure(&mut self) -> Result<()> {
        let end = end_of(&self.base.source())?;
        self.note(|copy| {
            copy.end = end.map_or(copy.end, |(_, end)| copy.end.max(end));
            copy.looked_at = Some(SystemTime::now());
        });
        Ok(())
    }

    /// Where nothing is new: whether the folder has something behind this place, or another log. True: there was something new.
    fn check(&mut self, database: &Arc<Database>) -> Result<bool, Trouble> {
        if !self.newest.goes_on(&self.base) {
            return Err(Trouble::Waits(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("folder \"{}\" has another log by now", self.folder.display()),
            )));
        }
        self.check_gap(database)
    }

    /// XX001 if something is behind this place. True: it was new, and is applied.
    fn check_gap(&mut self, database: &Arc<Database>) -> Result<bool, Trouble> {
        let Some(Err(error)) = self.tail.as_ref().map(Tail::check_end) else { return Ok(false) };
        // Unless it came meanwhile.
        if self.read(database)? {
            return Ok(true);
        }
        let is_there = self.tail.as_ref().is_none_or(|tail| tail.check_end().is_ok());
        if is_there { Ok(false) } else { Err(Trouble::Waits(error)) }
    }

    /// Puts mains in place of rows whose files the newest checkpoint has brought.
    fn adopt(&mut self, database: &Arc<Database>) -> Result<(), Trouble> {
        if self.mains.is_empty() || !self.newest.goes_on(&self.base) {
            return Ok(());
        }
        let named = self.newest.mains();
        let is_there = |place: &(StoreId, u64), main: &mut MainRecord| match main.group {
            None => true,
            Some((group, _)) => named.get(place).is_some_and(|file| file.id == group.0),
        };
        let ready: Vec<_> = self.mains.extract_if(is_there).collect();
        for (place, main) in ready {
            let group = match (named.get(&place).filter(|_| main.group.is_some()), self.follower.table_of(place.0)) {
                (Some(file), Some(table)) => match self.groups.merged_group(table, file) {
                    Ok(group) => Some(group),
                    // It comes later, or went, and the next checkpoint has another one.
                    Err(error) if may_come(&error) => {
                        self.mains.insert(place, main);
                        continue;
                    }
                    Err(error) => return Err(Trouble::Ends(error)),
                },
                _ if main.group.is_some() => continue,
                _ => None,
            };
            self.follower.adopt(database, main, group).map_err(Trouble::Ends)?;
        }
        Ok(())
    }

    /// Gives back what of the pool nothing uses any more: no other host reads it.
    fn reclaim(&self, database: &Database) -> Result<()> {
        let member = self.roles.host().member();
        let generation = member.root()?.generation;
        // First what there is: what is published from here on is used.
        let mut unused = shared_extents(member)?;
        for space in database.tablespaces().list().iter().chain([self.roles.places().space()]) {
            for extent in space.used_extents() {
                unused.remove(&extent);
            }
        }
        for (extent, owner) in unused {
            member.reclaim(extent, owner, generation)?;
        }
        Ok(())
    }

    fn end_trouble(&mut self) {
        if self.trouble.take().is_some_and(|(_, was_told)| was_told) {
            tracing::info!("the copy goes on");
        }
        if !self.lacks_manifest {
            self.note(|copy| copy.failure = None);
        }
    }

    /// Something in the folder cannot be read. It is tried again, unless a later checkpoint has it. True: the copy went on.
    fn wait_for(&mut self, database: &Arc<Database>, error: Error) -> Result<bool> {
        let (since, was_told) = *self.trouble.get_or_insert((Instant::now(), false));
        // Other files may have the same names by then.
        self.tail = None;
        let is_old = since.elapsed() >= PATIENCE;
        if is_old && !was_told {
            tracing::warn!("the copy waits: {error}{}", error.detail().map(|it| format!(" {it}")).unwrap_or_default());
            self.trouble = Some((since, true));
        }
        self.note(|copy| copy.failure = Some(error.clone()));
        if let Some(stamp) = Stamp::of(&self.folder).filter(|stamp| Some(*stamp) != self.stamp)
            && let Ok(newest) = Base::find(&self.folder)
        {
            (self.newest, self.stamp) = (newest, Some(stamp));
        }
        let is_other = !self.newest.goes_on(&self.base);
        let is_behind = |place: (u64, u64)| self.newest.log.from.is_some_and(|from| place < from);
        let is_gone = is_other || self.place.or(self.base.log.from).is_some_and(is_behind);
        if !is_gone && !is_old {
            return Ok(false);
        }
        if self.newest.ts() > self.follower.applied_ts() {
            return match self.begin_anew(database) {
                Ok(()) => Ok(true),
                Err(error) if may_come(&error) => {
                    self.note(|copy| copy.failure = Some(error));
                    Ok(false)
                }
                Err(error) => Err(error),
            };
        }
        if is_other {
            let behind = Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("folder \"{}\" has a database that is behind this copy", self.folder.display()),
            )
            .with_detail("It has another log by now, and its checkpoint is older than what this copy shows.")
            .with_hint("Promote the copy if it has what is wanted. If the folder has, start the copy again: it begins with that.");
            self.note(|copy| copy.failure = Some(behind));
        }
        Ok(false)
    }

    /// Begins with the newest checkpoint, in place of all that there is.
    fn begin_anew(&mut self, database: &Arc<Database>) -> Result<()> {
        let (begun, stamp) = (Instant::now(), Stamp::of(&self.folder));
        let base = Base::find(&self.folder)?;
        if base.ts() <= self.follower.applied_ts() {
            return Ok(());
        }
        tracing::warn!(
            folder = %self.folder.display(),
            "the copy is so far behind that what it lacks is gone: it begins anew with the checkpoint there"
        );
        database.ids.pass(&Ids::of(&base.manifest).next());
        // Statements go on with what there was.
        let mut state = database.state_of_folder(&base.storage, &base.manifest)?;
        let (ts, mut filled) = (base.ts(), Vec::new());
        {
            let _commit = database.commit.lock();
            // What there was is shown as of this moment, too, until the tables have their indexes.
            database.transactions().follow(ts);
            let worker = database.transactions().worker()?;
            let view = Arc::new(worker.hold_now());
            for table in state.tables.values_mut() {
                let with = table.with_def(Arc::clone(&table.def));
                *table = Arc::new(database.with_followed_indexes(with, &view, &mut filled)?);
            }
            database.set_state(state);
            worker.rest();
        }
        database.backfill(filled)?;
        let groups = Arc::new(CopiedGroups::new(database, &base.storage));
        let threads = database.config().threads.clamp(1, APPLY_THREADS_MAX);
        self.follower = Follower::new(database, Arc::clone(&groups) as _, threads)?;
        self.groups = groups;
        (self.newest, self.stamp) = (base.clone(), stamp);
        (self.tail, self.place) = (None, None);
        self.mains.clear();
        self.note(|copy| {
            (copy.base, copy.segment_bytes, copy.end) = (ts, base.log.segment_bytes as u64, LogPosition::default());
            copy.begun_anew += 1;
        });
        self.roles.note_progress(|progress| {
            (progress.received, progress.replayed) = (LogPosition::default(), LogPosition::default());
            progress.applied = ts;
        });
        self.base = base;
        self.end_trouble();
        tracing::info!(ms = begun.elapsed().as_millis() as u64, "the copy has begun anew");
        Ok(())
    }

    /// Applies all that the folder has.
    fn finish(&mut self, database: &Arc<Database>) -> Result<(), Trouble> {
        self.tail = None;
        self.look(database)?;
        if !self.newest.goes_on(&self.base) {
            // Where it is older than what is applied, its log is none that this copy could go on with.
            if self.newest.ts() <= self.follower.applied_ts() {
                return Ok(());
            }
            self.begin_anew(database)?;
        }
        while self.read(database)? || self.check_gap(database)? {}
        Ok(())
    }

    /// Applies what the folder has, and becomes primary. `Some`: it does not, as asked for; and why not is said to who asked.
    fn promote(mut self, database: &Arc<Database>) -> Result<Option<Box<Copying>>> {
        let all = match self.finish(database) {
            Ok(()) => Ok(()),
            Err(Trouble::Waits(error)) => Err(error),
            Err(Trouble::Ends(error)) => return Err(error),
        };
        if let Err(error) = all {
            let refusal = Error::new(error.code(), "the copy cannot be promoted with all that its folder has")
                .with_detail(match error.detail() {
                    Some(detail) => format!("{}. {detail}", capitalized(error.message())),
                    None => format!("{}.", capitalized(error.message())),
                })
                .with_hint(
                    "Bring what is missing. To do without it, remove the segments of the log behind that place.",
                );
            tracing::error!("{refusal}: {}", refusal.detail().unwrap_or_default());
            let mut state = self.roles.state.lock();
            (state.is_asked, state.refusal) = (false, Some(refusal));
            drop(state);
            self.roles.changed.notify_all();
            return Ok(Some(Box::new(self)));
        }
        let (term, position) = {
            let state = self.roles.state.lock();
            // Where nothing of the log was read, it is the checkpoint's.
            (state.progress.term.max(self.base.log.from.map_or(0, |(term, _)| term)), state.progress.replayed)
        };
        let lsn = database.lsn_of(position);
        let written_at = match self.marked_us {
            0 => "unknown".to_owned(),
            us => moment_text(us as i64),
        };
        let Copying { roles, folder, base, follower, .. } = self;
        let after = follower.applied_ts();
        let life = EarlierLife { identity: base.identity.to_string(), upto: after };
        database.earlier_lives.lock().push(life);
        let host = Arc::clone(roles.host());
        // Its terms are later than those of the log that it followed: ids of transactions are drawn by term.
        let mut seen = host.member().reign()?;
        while u64::from(seen.term.0) < term {
            seen =
                host.member().take_over(seen)?.ok_or_else(|| Error::internal("a copy has its database to itself"))?;
        }
        let tail = PoolTail::attach(Arc::clone(host.member()), roles.identity(), None, after)?;
        roles.is_founding.store(true, Ordering::Release);
        // Places are those of its own log from here on.
        *roles.copy.lock() = None;
        crash_point("copy.promoting");
        let following = Following::of(&roles, Attached { follower, tail });
        match following.take_over(database, seen)? {
            Outcome::Primary => {}
            Outcome::Follows(_) => return Err(host.in_use()?),
        }
        tracing::warn!(
            folder = %folder.display(),
            lsn = %lsn,
            term,
            written_at,
            "this copy is primary, of a database of its own: what the primary before committed after that moment is not in it"
        );
        Ok(None)
    }
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Whether what is missing or damaged may come: the folder may be a copy that is being brought.
fn may_come(error: &Error) -> bool {
    let codes = [
        SqlState::DATA_CORRUPTED,
        SqlState::UNDEFINED_FILE,
        SqlState::IO_ERROR,
        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
    ];
    codes.contains(&error.code())
}
