//! A host of this process: it joins, beats, leases and leaves.
//!
//! The lock on the byte of its slot, of the first device as this process has it open, is taken before the slot is, and is
//! released by the kernel however the process ends. A thread of its own beats, and holds a word that the kernel marks when
//! that thread ends: much earlier than the lock is released where the process has much memory, but no proof of anything.

use crate::check::usage;
use crate::control;
use crate::death::{Death, Evidence};
use crate::layout::{HostNumber, SEGMENTS, TERMS};
use crate::memory::Bytes;
use crate::needs::Needs;
use crate::pool::{HostText, Pool, check_name};
use crate::reader;
use crate::system;
use crate::words::{
    Contents, Database, End, Entry, EntryState, EventKind, Extent, Generation, Host, HostState, Kind, Number, Owner,
    Reign, Role, Root, SLOTS, Seal, Segment, Slot, Term, TermState,
};
use parking_lot::{Condvar, Mutex};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tidepool_base::{ByteSize, Error, Result, SqlState, crash_point};

/// How often a host beats by default: a watcher that waits for 200 ms then suspects no live host under load.
pub const BEAT: Duration = Duration::from_millis(5);

/// Why a host gets no extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No extent of the pool is free.
    Full,
    /// The database has as much of the pool as it may have.
    Quota,
    /// Another host took this one for dead.
    Fenced,
    /// A word of the books is damaged.
    Damaged,
    /// The host reads, and changes nothing of the pool.
    Reader,
}

/// What a host says of itself when it joins.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    pub name: String,
    pub version: String,
    pub role: Role,
    /// By name; none for tools.
    pub database: Option<String>,
    pub address: String,
    pub control_socket: String,
    pub beat: Duration,
}

impl JoinOptions {
    pub fn tool(name: &str) -> JoinOptions {
        JoinOptions {
            name: name.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            role: Role::Tool,
            database: None,
            address: String::new(),
            control_socket: String::new(),
            beat: BEAT,
        }
    }
}

#[derive(Debug, Default)]
struct Stop {
    is_asked: Mutex<bool>,
    asked: Condvar,
}

/// One life of a host. Leaves when it is dropped.
#[derive(Debug)]
pub struct Member {
    pool: Arc<Pool>,
    host: Host,
    database: Database,
    /// Where the last lease was found.
    hint: AtomicU32,
    /// Extents that can be leased one by one before the quota is looked at again.
    quota_left: AtomicU64,
    stop: Arc<Stop>,
    beats: Option<JoinHandle<()>>,
    has_left: bool,
    /// Of a host that reads: what it was granted.
    room: Option<reader::Room>,
    pub(crate) needs: Mutex<Needs>,
}

impl Member {
    /// Takes a free slot. 53300 where there is none, 3D000 where the database does not exist.
    pub fn join(pool: Arc<Pool>, options: &JoinOptions) -> Result<Member> {
        if !(pool.is_readers() && options.role == Role::Reader) {
            pool.check_writable()?;
        }
        check_name("host name", &options.name, 63)?;
        let database = match &options.database {
            Some(name) => pool.database(name)?,
            None => Database::NONE,
        };
        let Some(host) = take_slot(&pool, options, database)? else {
            return Err(Error::new(
                SqlState::TOO_MANY_CONNECTIONS,
                format!("pool \"{}\" has no free slot for a host", pool.location()),
            )
            .with_hint("Stop a host, or forget one that is dead: tidepool pool forget."));
        };
        let stop = Arc::new(Stop::default());
        let beats = {
            let (pool, stop, period) = (Arc::clone(&pool), Arc::clone(&stop), options.beat);
            std::thread::Builder::new()
                .name("tidepool-beat".to_owned())
                .spawn(move || beat(&pool, host, &stop, period))
                .map_err(|error| Error::io("start a thread", &error))
        };
        let (hint, quota_left) = (AtomicU32::new(0), AtomicU64::new(0));
        let room = pool.is_readers().then(|| reader::Room::new(&pool));
        let needs = Mutex::default();
        let (beating, has_left) = (None, false);
        let mut member = Member { pool, host, database, hint, quota_left, stop, beats: beating, has_left, room, needs };
        member.beats = Some(beats?);
        member.attach()?;
        Ok(member)
    }

    fn attach(&self) -> Result<()> {
        let (pool, books) = (&self.pool, self.pool.books());
        if self.database != Database::NONE {
            // Looked at again, now that a host that drops it sees this one.
            let entry = pool.told(books.load(books.layout.entry(self.database)))?;
            if entry.state != EntryState::Live {
                return Err(Error::new(SqlState::INVALID_CATALOG_NAME, "the database is being dropped"));
            }
            pool.told(books.hold_root(self.host, self.database))?;
            // What stands there is of the slot's life before.
            for which in [HostNumber::Wanted, HostNumber::Room, HostNumber::Needed] {
                pool.told(books.store(books.layout.host_number(self.host.slot, which), Number(0)))?;
            }
        }
        if !pool.told(books.advance(self.host, HostState::Attached))? {
            return Err(self.fenced());
        }
        pool.record(EventKind::Joined, self.host.slot, self.host.incarnation.0.into())
    }

    pub(crate) fn fenced(&self) -> Error {
        Error::new(SqlState::ADMIN_SHUTDOWN, format!("{} was taken for dead by another host", self.host))
            .with_hint("It must stop, and may join again.")
    }

    pub fn host(&self) -> Host {
        self.host
    }

    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    pub fn database(&self) -> Database {
        self.database
    }

    /// No other host took this one for dead.
    pub fn is_current(&self) -> Result<bool> {
        self.pool.told(self.pool.books().is_current(self.host))
    }

    /// Takes `count` free extents for `kind`: all, or none (53200). What another database left there reads as zeroes.
    pub fn lease(&self, kind: Kind, count: usize) -> Result<Vec<Extent>> {
        if self.pool.is_readers() {
            return Err(self.refused(Refusal::Reader, count));
        }
        if !self.is_current()? {
            return Err(self.fenced());
        }
        self.check_quota(count)?;
        let (pool, books) = (&self.pool, self.pool.books());
        let extents = books.layout.extents;
        let mut leased = Vec::with_capacity(count);
        for is_last in [false, true] {
            let start = self.hint.load(Ordering::Relaxed);
            for extent in (start..extents).chain(0..start.min(extents)).map(Extent) {
                if leased.len() == count {
                    break;
                }
                if pool.is_there(extent) && pool.told(books.lease(self.host, self.database, extent, kind))? {
                    leased.push(extent);
                    self.hint.store(extent.0 + 1, Ordering::Relaxed);
                }
            }
            if leased.len() == count {
                break;
            }
            if !is_last {
                // Others may have added a device.
                pool.refresh()?;
            }
        }
        // One that was taken for dead meanwhile may have been swept before it took these.
        let is_current = self.is_current()?;
        if leased.len() < count || !is_current {
            let found = leased.len();
            leased.into_iter().try_for_each(|extent| self.return_at_once(extent))?;
            if !is_current {
                return Err(self.fenced());
            }
            return Err(pool.full(count as u64, found as u64));
        }
        Ok(leased)
    }

    /// As `lease`, of one extent, for callers inside the process's allocator: nothing is allocated but for what is damaged,
    /// and devices that others added meanwhile are not looked for. `is_usable`: of those that the caller can map.
    pub fn lease_one(&self, kind: Kind, is_usable: &dyn Fn(Extent) -> bool) -> std::result::Result<Extent, Refusal> {
        let (pool, books) = (&self.pool, self.pool.books());
        if let Some(room) = &self.room {
            // What is written once is for other hosts to read.
            return if kind.is_shared() { Err(Refusal::Reader) } else { room.lease(pool, self.host, is_usable) };
        }
        let is_current = || books.is_current(self.host).map_err(|_| Refusal::Damaged);
        if !is_current()? {
            return Err(Refusal::Fenced);
        }
        if self.is_at_quota()? {
            return Err(Refusal::Quota);
        }
        let extents = books.layout.extents;
        let start = self.hint.load(Ordering::Relaxed).min(extents);
        for extent in (start..extents).chain(0..start).map(Extent) {
            let is_leased = pool.is_there(extent)
                && is_usable(extent)
                && books.lease(self.host, self.database, extent, kind).map_err(|_| Refusal::Damaged)?;
            if !is_leased {
                continue;
            }
            self.hint.store(extent.0 + 1, Ordering::Relaxed);
            // One that was taken for dead meanwhile may have been swept before it took this.
            if is_current()? {
                return Ok(extent);
            }
            let _ = self.return_at_once(extent);
            return Err(Refusal::Fenced);
        }
        Err(Refusal::Full)
    }

    /// As `check_quota`, for one more. Counting looks at all extents, so it is done once for many of them where much of the
    /// quota is left: hosts of the database may go beyond it by what they have in hand.
    fn is_at_quota(&self) -> std::result::Result<bool, Refusal> {
        const AT_A_TIME: u64 = 64;
        if self.database == Database::NONE {
            return Ok(false);
        }
        let take = |left: u64| left.checked_sub(1);
        if self.quota_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            return Ok(false);
        }
        let books = self.pool.books();
        let quota = books.load(books.layout.quota(self.database)).map_err(|_| Refusal::Damaged)?.0;
        if quota == 0 {
            return Ok(false);
        }
        let left = quota.saturating_sub(self.used_by_database()?);
        // Near the quota each is counted.
        self.quota_left.store((left / 16).min(AT_A_TIME), Ordering::Relaxed);
        Ok(left == 0)
    }

    /// Extents that hosts of this one's database own, and that are its own.
    fn used_by_database(&self) -> std::result::Result<u64, Refusal> {
        let books = self.pool.books();
        let mut is_of_database = [false; SLOTS];
        for slot in books.layout.all_slots() {
            let ident = books.load(books.layout.ident(slot)).map_err(|_| Refusal::Damaged)?;
            is_of_database[usize::from(slot.0)] = ident.state != HostState::Free && ident.database == self.database;
        }
        let mut used = 0;
        for extent in books.layout.all_extents() {
            let owner = books.load(books.layout.owner(extent)).map_err(|_| Refusal::Damaged)?;
            used += u64::from(match owner {
                Owner::Shared { database, .. } | Owner::Orphan { database, .. } => database == self.database,
                _ => owner.writer().is_some_and(|host| is_of_database[usize::from(host.slot.0)]),
            });
        }
        Ok(used)
    }

    /// Why so many extents are not to be had now.
    pub fn why_refused(&self, count: usize) -> Refusal {
        if let Some(_reader) = &self.room {
            return Refusal::Full;
        }
        match (self.is_current(), self.check_quota(count)) {
            (Ok(false), _) => Refusal::Fenced,
            (Err(_), _) => Refusal::Damaged,
            (Ok(true), Err(error)) if error.code() == SqlState::OUT_OF_MEMORY => Refusal::Quota,
            (Ok(true), Err(_)) => Refusal::Damaged,
            (Ok(true), Ok(())) => Refusal::Full,
        }
    }

    /// The root of its database that is in force.
    pub fn root(&self) -> Result<Root> {
        self.pool.told(self.pool.books().load(self.pool.layout().root(self.database)))
    }

    /// What the books say of an extent.
    pub fn owner(&self, extent: Extent) -> Result<Owner> {
        self.pool.told(self.pool.books().load(self.pool.layout().owner(extent)))
    }

    /// Why an extent was refused, in words. Other hosts are asked for room where there was none.
    pub fn refused(&self, refusal: Refusal, count: usize) -> Error {
        if refusal == Refusal::Full {
            self.note_refused(count as u64);
        }
        let error = || -> Result<Error> {
            Ok(match refusal {
                Refusal::Fenced => self.fenced(),
                Refusal::Full if self.room.is_some() => {
                    let error = self.pool.full(count as u64, self.pool.free_extents()?);
                    error.with_hint(
                        "A primary grants a reader its memory: it must be there, and the pool must have room.",
                    )
                }
                Refusal::Full => self.pool.full(count as u64, self.pool.free_extents()?),
                Refusal::Quota => match self.check_quota(count) {
                    Err(error) => error,
                    // Others have freed some meanwhile.
                    Ok(()) => Error::new(SqlState::OUT_OF_MEMORY, "the database has reached its quota of the pool"),
                },
                Refusal::Reader => Error::new(
                    SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                    "a reader puts nothing into the pool that others read",
                ),
                Refusal::Damaged => {
                    Error::corrupted(format!("the books of pool \"{}\" are damaged", self.pool.location()))
                        .with_hint("Run tidepool pool check.")
                }
            })
        };
        error().unwrap_or_else(|error| error)
    }

    /// Gives an extent back that nothing was done with, whatever its kind.
    fn return_at_once(&self, extent: Extent) -> Result<()> {
        let (pool, books) = (&self.pool, self.pool.books());
        let field = books.layout.owner(extent);
        let owner = pool.told(books.load(field))?;
        if owner.writer() == Some(self.host) {
            pool.told(books.swap(field, owner, Owner::Free { holds: books.contents_of(self.database) }))?;
        }
        Ok(())
    }

    /// The database may have so many more. Hosts that lease at the same moment may go beyond it, by what they lease then.
    fn check_quota(&self, count: usize) -> Result<()> {
        if self.database == Database::NONE {
            return Ok(());
        }
        let (pool, books) = (&self.pool, self.pool.books());
        let quota = pool.told(books.load(books.layout.quota(self.database)))?.0;
        if quota == 0 {
            return Ok(());
        }
        let used: u64 = usage(pool)?
            .into_iter()
            .filter(|((_, _, database), _)| *database == Some(self.database.0))
            .map(|(_, count)| count)
            .sum();
        if used + count as u64 <= quota {
            return Ok(());
        }
        let bytes = |extents: u64| ByteSize(extents * pool.extent_bytes());
        Err(Error::new(SqlState::OUT_OF_MEMORY, "the database has reached its quota of the pool").with_detail(format!(
            "It may have {}, has {}, and {} more are wanted.",
            bytes(quota),
            bytes(used),
            bytes(count as u64)
        )))
    }

    /// Frees the shared extents and the orphans of its database, but for those of a log, while the database has no manifest:
    /// then no host finds what is in them. The caller is the database's primary. How many.
    pub fn reclaim_unnamed(&self) -> Result<u32> {
        let (pool, books) = (&self.pool, self.pool.books());
        let root = pool.told(books.load(books.layout.root(self.database)))?;
        if root.place != Root::NEW.place {
            return Ok(0);
        }
        let mut freed = 0;
        for extent in books.layout.all_extents() {
            let owner = self.owner(extent)?;
            let kind = match owner {
                Owner::Shared { database, kind, .. } | Owner::Orphan { database, kind, .. }
                    if database == self.database =>
                {
                    kind
                }
                _ => continue,
            };
            if kind != Kind::Log && self.reclaim(extent, owner, root.generation)? {
                freed += 1;
            }
        }
        Ok(freed)
    }

    /// Where an extent of its own, or one that it may read, is in this process.
    pub fn extent(&self, extent: Extent) -> Result<(NonNull<u8>, usize)> {
        self.pool.extent(extent)
    }

    fn done(&self, is_done: bool, extent: Extent) -> Result<()> {
        if is_done {
            return Ok(());
        }
        if !self.is_current()? {
            return Err(self.fenced());
        }
        let owner = self.owner(extent)?;
        Err(Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("extent {} is not the host's to change: it is {}", extent.0, owner.text()),
        ))
    }

    /// Gives an extent of its own back. Nothing of this process stores there any more.
    pub fn give_back(&self, extent: Extent) -> Result<()> {
        if let Some(room) = &self.room {
            room.give_back(extent);
            return Ok(());
        }
        let books = self.pool.books();
        let is_done = self.pool.told(books.give_back(self.host, extent))?
            && self.pool.told(books.free(self.host, extent, books.contents_of(self.database)))?;
        self.done(is_done, extent)
    }

    /// Grants a host that reads what it asks for, at most so many extents. How many it got. The caller is the primary.
    pub fn grant(&self, to: Host, count: usize) -> Result<usize> {
        let (pool, books) = (&self.pool, self.pool.books());
        let extents = books.layout.extents;
        let mut granted = 0;
        let start = self.hint.load(Ordering::Relaxed).min(extents);
        for extent in (start..extents).chain(0..start).map(Extent) {
            if granted == count || self.is_at_quota().unwrap_or(true) {
                break;
            }
            if pool.is_there(extent) && pool.told(books.grant(self.host, to, self.database, extent))? {
                granted += 1;
                self.hint.store(extent.0 + 1, Ordering::Relaxed);
            }
        }
        Ok(granted)
    }

    /// Takes in an extent that a host which reads gives back. False where it is not that host's.
    pub fn take_in(&self, from: Host, extent: Extent) -> Result<bool> {
        if extent.0 >= self.pool.layout().extents {
            return Ok(false);
        }
        self.pool.told(self.pool.books().take_in(self.host, from, self.database, extent))
    }

    /// Of a host that reads: gives back extents that are not in use, but for so many. How many went. Other hosts have none: what they
    /// do not use goes back at once.
    pub fn return_spare(&self, keep: usize) -> Result<usize> {
        match &self.room {
            None => Ok(0),
            Some(room) => room.return_spare(&self.pool, self.host, keep).map_err(|refusal| self.refused(refusal, keep)),
        }
    }

    /// Offers a private extent to another host, with what it holds.
    pub fn hand(&self, extent: Extent, to: Slot) -> Result<()> {
        let is_done = self.pool.told(self.pool.books().hand(self.host, extent, to))?;
        crash_point("pool.handed");
        self.done(is_done, extent)
    }

    pub fn take_back(&self, extent: Extent) -> Result<()> {
        let is_done = self.pool.told(self.pool.books().take_back(self.host, extent))?;
        self.done(is_done, extent)
    }

    /// Takes what another host offered. What it holds now: bytes of the database, or zeroes.
    pub fn take(&self, extent: Extent) -> Result<Contents> {
        // Refused where it could not be zeroed.
        self.pool.extent(extent)?;
        let taken = self.pool.told(self.pool.books().take(self.host, self.database, extent))?;
        self.done(taken.is_some(), extent)?;
        Ok(taken.unwrap_or(Contents::Unknown))
    }

    /// What was offered to this host and can be taken.
    pub fn offered(&self) -> Result<Vec<Extent>> {
        let books = self.pool.books();
        let mut offered = Vec::new();
        for extent in books.layout.all_extents() {
            let owner = self.pool.told(books.load(books.layout.owner(extent)))?;
            if matches!(owner, Owner::Handed { to, .. } if to == self.host.slot) {
                offered.push(extent);
            }
        }
        Ok(offered)
    }

    /// No host writes to an extent that this one was filling any more; its checksum is kept.
    pub fn publish(&self, extent: Extent, generation: Generation) -> Result<()> {
        let books = self.pool.books();
        let owner = self.owner(extent)?;
        let is_filling = matches!(owner, Owner::Filling { by, .. } if by == self.host);
        self.done(is_filling, extent)?;
        let sum = Number(self.sum_of_own(extent)?);
        let is_done = self.pool.told(books.publish(self.host, self.database, extent, generation, sum))?;
        self.done(is_done, extent)
    }

    #[allow(unsafe_code, reason = "the extent is this host's own")]
    fn sum_of_own(&self, extent: Extent) -> Result<u64> {
        self.pool.extent(extent)?;
        // Zeroes that nobody wrote over, too: who reads this on another machine, or after its restart, compares all of it.
        let memory = &self.pool.books().memory;
        memory.persist_bytes(extent, 0, memory.extent_bytes());
        // SAFETY: the word says that this incarnation alone stores there, and it stores no more, as it publishes.
        Ok(unsafe { self.pool.books().memory.sum(extent) }.unwrap_or(0))
    }

    /// Makes a database. 42P04 where there is one of this name, 53000 where the directory is full.
    pub fn create_database(&self, name: &str, quota_extents: u64) -> Result<Database> {
        self.pool.check_writable()?;
        self.create_database_after(name, quota_extents, Term(0))
    }

    /// As `create_database`, of a database whose terms come after `term`: it had those in another pool, and files speak of
    /// them.
    pub fn create_database_after(&self, name: &str, quota_extents: u64, term: Term) -> Result<Database> {
        check_name("database name", name, 63)?;
        let (pool, books) = (&self.pool, self.pool.books());
        if name.is_empty() || pool.databases()?.iter().any(|view| view.name == name) {
            return Err(Error::new(
                SqlState::DUPLICATE_DATABASE,
                format!("database \"{name}\" already exists in pool \"{}\"", pool.location()),
            ));
        }
        for database in books.layout.all_databases() {
            let field = books.layout.entry(database);
            let entry = pool.told(books.load(field))?;
            let making = Entry { life: entry.life + 1, state: EntryState::Creating, by: self.host.slot };
            if entry.state != EntryState::Free || !pool.told(books.swap(field, entry, making))? {
                continue;
            }
            crash_point("pool.database.creating");
            let mut text = [0; crate::layout::NAME_BYTES + 16];
            text[..name.len()].copy_from_slice(name.as_bytes());
            let identity = system::random_identity().map_err(|error| Error::io("get random bytes", &error))?;
            text[crate::layout::NAME_BYTES..].copy_from_slice(&identity);
            pool.told(books.write_text(books.layout.database_text(database), &text))?;
            pool.told(books.store(books.layout.quota(database), Number(quota_extents)))?;
            self.clear_directory(database, term)?;
            // Of two that make a database of one name at the same time, at least one sees the other's.
            pool.told(books.fence())?;
            if pool.databases()?.iter().any(|view| view.name == name && view.database != database) {
                pool.told(books.swap(field, making, Entry { state: EntryState::Free, ..making }))?;
                return Err(Error::new(
                    SqlState::DUPLICATE_DATABASE,
                    format!("database \"{name}\" is being created in pool \"{}\" by another host", pool.location()),
                ));
            }
            let is_made = pool.told(books.swap(field, making, Entry { state: EntryState::Live, ..making }))?;
            if !is_made {
                return Err(self.fenced());
            }
            pool.record(EventKind::DatabaseMade, self.host.slot, database.0.into())?;
            return Ok(database);
        }
        Err(Error::new(
            SqlState::INSUFFICIENT_RESOURCES,
            format!("pool \"{}\" has no room for a database", pool.location()),
        )
        .with_detail(format!("It has {} places.", crate::words::DATABASES)))
    }

    /// Takes out of a place of the directory what a database before left there: no host is attached to that any more. Terms and
    /// generations go on, so that no word comes back.
    fn clear_directory(&self, database: Database, after: Term) -> Result<()> {
        let (pool, books) = (self.pool(), self.pool().books());
        let (root, term) = (books.layout.root(database), books.layout.term(database));
        let (found, reign) = (pool.told(books.load(root))?, pool.told(books.load(term))?);
        if found.place != Root::NEW.place {
            let generation = Generation(found.generation.0 + 1);
            pool.told(books.swap(root, found, Root { place: Root::NEW.place, generation }))?;
        }
        let last = reign.term.max(after);
        pool.told(books.swap(term, reign, Reign { term: last, state: TermState::Ended, ..reign }))?;
        for back in 0..TERMS as u32 {
            // A log that is begun here goes on from nothing.
            let of = Term(last.0.wrapping_sub(back));
            let field = books.layout.seal(database, of);
            let (seal, empty) = (pool.told(books.load(field))?, Seal::new(of, End::Empty));
            if seal != empty {
                pool.told(books.swap(field, seal, empty))?;
            }
        }
        for number in 0..SEGMENTS as u64 {
            let field = books.layout.segment(database, number);
            let segment = pool.told(books.load(field))?;
            if segment != Segment::NONE {
                pool.told(books.swap(field, segment, Segment::NONE))?;
            }
        }
        Ok(())
    }

    /// Drops a database that no host is attached to: its shared extents and orphans are free. 55006 otherwise.
    pub fn drop_database(&self, name: &str) -> Result<u32> {
        self.pool.check_writable()?;
        let (pool, books) = (&self.pool, self.pool.books());
        let database = pool.database(name)?;
        let field = books.layout.entry(database);
        let entry = pool.told(books.load(field))?;
        let dropping = Entry { state: EntryState::Dropping, by: self.host.slot, ..entry };
        if entry.state != EntryState::Live || !pool.told(books.swap(field, entry, dropping))? {
            return Err(Error::new(SqlState::OBJECT_IN_USE, format!("database \"{name}\" is being changed")));
        }
        // Hosts that join look at the entry after they can be seen.
        pool.told(books.fence())?;
        if let Some(host) = pool.hosts()?.into_iter().find(|view| view.ident.database == database) {
            pool.told(books.swap(field, dropping, entry))?;
            return Err(Error::new(SqlState::OBJECT_IN_USE, format!("database \"{name}\" is being accessed"))
                .with_detail(format!("{} is {}.", host.host, host.ident.state.text())));
        }
        let mut freed = 0;
        for extent in books.layout.all_extents() {
            let owner_field = books.layout.owner(extent);
            let owner = pool.told(books.load(owner_field))?;
            let is_its = match owner {
                Owner::Shared { database: of, .. } => of == database,
                Owner::Orphan { database: of, by, .. } => of == database && pool.told(books.is_gone(by))?,
                _ => false,
            };
            // Its place in the directory may be another database's next, which is not to be shown what this one left.
            if is_its && pool.told(books.swap(owner_field, owner, Owner::Returning { by: self.host }))? {
                pool.told(books.free(self.host, extent, Contents::Unknown))?;
                freed += 1;
            } else if owner == (Owner::Free { holds: Contents::Of(database) }) {
                pool.told(books.swap(owner_field, owner, Owner::Free { holds: Contents::Unknown }))?;
            }
        }
        pool.told(books.swap(field, dropping, Entry { state: EntryState::Free, ..dropping }))?;
        pool.record(EventKind::DatabaseDropped, self.host.slot, database.0.into())?;
        Ok(freed)
    }

    /// Leaves, as dropping it does, and says what went wrong with that.
    pub fn leave(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.has_left, true) {
            return Ok(());
        }
        *self.stop.is_asked.lock() = true;
        self.stop.asked.notify_all();
        if let Some(beats) = self.beats.take() {
            // It panics at nothing.
            let _ = beats.join();
        }
        let pool = &self.pool;
        // Even if another host took it for dead: nothing of it stores to the pool from here on.
        pool.told(pool.books().advance(self.host, HostState::Leaving))?;
        let death = Death::by(Evidence::Itself);
        let result = match pool.is_readers() {
            true => reader::leave(pool, self.host, &death),
            false => bury(pool, self.host, &death, EventKind::Left),
        };
        let _ = pool.books().memory.first_device().unlock_byte(pool.lock_of(self.host.slot));
        pool.own().lock().remove(&self.host.slot);
        result.map(drop)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // What is left of it is found and freed as if it had been killed.
        let _ = self.end();
    }
}

/// Confirms a death, frees what is free then, and gives the slot away. False when another host did all of it.
pub(crate) fn bury(pool: &Pool, host: Host, death: &Death, kind: EventKind) -> Result<bool> {
    pool.check_writable()?;
    let books = pool.books();
    let ident = pool.told(books.load(books.layout.ident(host.slot)))?;
    let left = pool.told(books.read_text(books.layout.host_text(host.slot)))?.map(|bytes| HostText::of_bytes(&bytes));
    let is_its = ident.incarnation == host.incarnation && death.evidence != Evidence::Itself;
    let left = left.filter(|text| is_its && !text.control_socket.is_empty() && text.boot_id == system::boot_id());
    if pool.told(books.confirm(host, death))? {
        pool.record(kind, host.slot, host.incarnation.0.into())?;
    }
    let Some(swept) = pool.told(books.sweep(host))? else { return Ok(false) };
    if swept.freed + swept.orphaned > 0 {
        pool.record(EventKind::Swept, host.slot, u64::from(swept.freed))?;
    }
    let is_free = pool.told(books.free_slot(host))?;
    if let Some(text) = left.filter(|_| is_free) {
        control::remove_left(Path::new(&text.control_socket));
    }
    Ok(is_free)
}

fn take_slot(pool: &Arc<Pool>, options: &JoinOptions, database: Database) -> Result<Option<Host>> {
    let books = pool.books();
    let pid = std::process::id();
    let (device_number, inode) = books.memory.first_device().kernel_identity()?;
    let text = HostText {
        name: options.name.clone(),
        version: options.version.clone(),
        boot_id: system::boot_id(),
        pid,
        start: system::started(pid).unwrap_or(0),
        process_namespace: system::process_namespace(),
        lock_on: format!("{device_number}:{inode}"),
        address: options.address.clone(),
        control_socket: options.control_socket.clone(),
    };
    let mut own = pool.own().lock();
    for slot in books.layout.all_slots().filter(|slot| !own.contains(slot)).collect::<Vec<_>>() {
        let ident = pool.told(books.load(books.layout.ident(slot)))?;
        if ident.state != HostState::Free {
            continue;
        }
        let device = books.memory.first_device();
        let lock = pool.lock_of(slot);
        let locked = if pool.is_readers() { device.lock_byte_of_reader(lock) } else { device.lock_byte(lock) };
        if !locked.map_err(|error| Error::io("lock a byte of the pool", &error))? {
            continue;
        }
        if pool.is_readers() {
            books.memory.map_own_page(books.layout.host_page(slot))?;
        }
        // What the kernel marked for the life before is not held against this one.
        books.memory.thread_word(books.layout.thread_word(slot)).store(0, Ordering::SeqCst);
        let Some(host) = pool.told(books.join(slot, options.role, database))? else {
            let _ = device.unlock_byte(lock);
            if pool.is_readers() {
                return Err(reader::lost_slot(pool));
            }
            continue;
        };
        own.insert(slot);
        crash_point("pool.joined");
        pool.told(books.write_text(books.layout.host_text(slot), &text.to_bytes()))?;
        beat_once(pool, host, 1)?;
        return Ok(Some(host));
    }
    Ok(None)
}

fn beat_once(pool: &Pool, host: Host, beats: u64) -> Result<()> {
    let books = pool.books();
    let store = |which, value| pool.told(books.store(books.layout.host_number(host.slot, which), Number(value)));
    store(HostNumber::MonotonicUs, system::monotonic_us())?;
    store(HostNumber::WallUs, system::wall_us())?;
    store(HostNumber::Beats, beats)
}

fn beat(pool: &Pool, host: Host, stop: &Stop, period: Duration) {
    system::come_first();
    crash_point("pool.beat.begins");
    let books = pool.books();
    // Where the kernel has no such word, a kill is noticed later.
    let _held = system::HeldWord::hold(books.memory.thread_word(books.layout.thread_word(host.slot)));
    let mut is_asked = stop.is_asked.lock();
    for beats in 2.. {
        if *is_asked {
            return;
        }
        // A damaged word is told by those that need it.
        let _ = beat_once(pool, host, beats);
        stop.asked.wait_for(&mut is_asked, period);
    }
}
