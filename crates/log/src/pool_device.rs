//! A log in a pool: its segments are extents, which any host of the database can read, and the host that reigns writes.
//!
//! A segment is one extent. So one word of the books says where it is, its room is taken and given back by one swap, and
//! nothing has to be contiguous; a segment of 2 MiB holds the largest block. The log table of the database's page says which
//! extent segment `n` is; an entry names the term that wrote it, is made by a swap from none, and is changed by none until no
//! host needs the segment. Where another term's late entry has a segment's place, the next number is used.
//!
//! A block is acknowledged when it was stored and `TERM` was looked at *after* that, and is still the host's own
//! ([`LogSegment::sync`]). A host that took the term over changed `TERM` before it read the log to its end, so at least one of
//! the two sees the other. From the first look that fails on, the log of this process acknowledges nothing (57P02).
//!
//! Segments go back when a checkpoint is past them: with the root in force then, no host that reads them, and the second
//! tier past them, too. The checkpoint's root is published before the log is told of it.
//!
//! The ring of terms says of the last 32 where they begin and end. What is older the log says itself: the first segment of a
//! term names the term and the position before it, and the newest seal is the end of all that were before. So any number of
//! terms may come between two roots.

use crate::blocks::{Cursor, Source, Verdict, damaged, header_of};
use crate::device::{LogDevice, LogSegment, NOTE_BYTES};
use crate::format::{BLOCK_ALIGNMENT, DatabaseIdentity, LogPosition, SegmentHeader};
use crate::room::lock;
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tidepool_base::{CommitTs, Error, Result, SqlState, crash_point};
use tidepool_pool::layout::{SEGMENTS, TERMS};
#[cfg(not(loom))]
use tidepool_pool::member::Member;
use tidepool_pool::memory::{Books, Bytes, Memory, Trouble};
use tidepool_pool::words::{Contents, Database, End, Extent, Host, Kind, Owner, Reign, Seal, Segment as Entry, Term};

/// Segments that a reader maps ahead at a time, and that it remembers: a primary prepares far fewer. What is forgotten is mapped again,
/// which costs little.
const MAPPED_AT_ONCE: usize = 2;
const MAPPED_MAX: usize = 128;

/// Places of the table that are left for late entries.
const SPARE_PLACES: u64 = 256;

/// A host of a pool, as its database's log sees it.
pub trait PoolHost: Send + Sync + Debug + 'static {
    type Memory: Memory<Stop = Infallible> + Bytes;

    fn books(&self) -> &Books<Self::Memory>;

    /// What a transition came to, or that the books are damaged.
    fn told<T>(&self, outcome: std::result::Result<T, Trouble<Infallible>>) -> Result<T>;

    fn host(&self) -> Host;

    fn database(&self) -> Database;

    /// What errors call the pool.
    fn pool_name(&self) -> String;

    /// A free extent, of [`Kind::Log`]. 53200 where there is none.
    fn lease_log(&self) -> Result<Extent>;

    /// Why an extent cannot be reached.
    fn missing(&self, extent: Extent) -> Error;
}

#[cfg(not(loom))]
impl PoolHost for Member {
    type Memory = tidepool_pool::mapped::Mapped;

    fn books(&self) -> &Books<Self::Memory> {
        self.pool().books()
    }

    fn told<T>(&self, outcome: std::result::Result<T, Trouble<Infallible>>) -> Result<T> {
        self.pool().told(outcome)
    }

    fn host(&self) -> Host {
        Member::host(self)
    }

    fn database(&self) -> Database {
        Member::database(self)
    }

    fn pool_name(&self) -> String {
        format!("pool \"{}\"", self.pool().location())
    }

    fn lease_log(&self) -> Result<Extent> {
        let extent = self.lease(Kind::Log, 1)?.pop();
        extent.ok_or_else(|| Error::internal("an extent was leased and is none"))
    }

    fn missing(&self, extent: Extent) -> Error {
        match self.extent(extent) {
            Err(error) => error,
            // Its device was opened a moment ago.
            Ok(_) => Error::internal(format!("extent {} cannot be reached", extent.0)),
        }
    }
}

/// 57P02: the term is another host's.
pub(crate) fn term_lost<H: PoolHost>(host: &H, term: u64) -> Error {
    let by = match host.told(host.books().reign(host.database())) {
        Ok(reign) => format!(" It is in term {} now.", reign.term.0),
        Err(_) => String::new(),
    };
    Error::new(SqlState::CRASH_SHUTDOWN, "another host has taken the database over")
        .with_detail(format!(
            "This host was its primary in term {term}.{by} Whether transactions that were being committed are part of the \
             database is open."
        ))
        .with_hint("Connect again, to the new primary, and look whether the transaction is there.")
}

/// Segments of the term in which a host is primary.
#[derive(Debug)]
pub struct PoolDevice<H> {
    host: Arc<H>,
    term: Term,
    upkeep: Mutex<Upkeep>,
    /// The second tier has not copied the segments from here on.
    kept_from: Arc<AtomicU64>,
    /// Nor has an archive.
    archived_from: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Upkeep {
    /// Segments before it are superfluous to this host.
    first: u64,
    /// What other hosts were told of that.
    told: u64,
    /// The newest that was entered.
    newest: u64,
}

/// The segment whose place in the log table is `place`, when none after `newest` has been entered.
fn number_of(place: u64, newest: u64) -> Option<u64> {
    let back = newest.checked_sub(place)? % SEGMENTS as u64;
    Some(newest - back).filter(|number| *number > 0)
}

/// The position that a seal names, in the segment nearest to `near`.
fn position_of(end: End, near: u64) -> Option<LogPosition> {
    let End::At { number_low, offset } = end else { return None };
    let span = 1 << 20;
    let from = near.saturating_sub(span / 2);
    let number = from + (u64::from(number_low) + span - from % span) % span;
    Some(LogPosition::new(number, offset as usize * Seal::OFFSET_UNIT))
}

impl<H: PoolHost> PoolDevice<H> {
    /// The log of the term that `reign` began. Segments up to `newest` are earlier terms'.
    pub fn new(host: Arc<H>, reign: Reign, newest: u64) -> PoolDevice<H> {
        let none = || Arc::new(AtomicU64::new(u64::MAX));
        let upkeep = Mutex::new(Upkeep { first: 0, told: 0, newest });
        PoolDevice { host, term: reign.term, upkeep, kept_from: none(), archived_from: none() }
    }

    /// As `kept_from`, for what copies the log into an archive.
    pub fn archived_from(&self) -> Arc<AtomicU64> {
        self.archived_from.clone()
    }

    /// Segments from this one on stay, whatever checkpoints say: what copies the log into the second tier has it, and raises
    /// it. None are kept for it at first.
    pub fn kept_from(&self) -> Arc<AtomicU64> {
        self.kept_from.clone()
    }

    /// Enters the first segment, and begins the term's log there. The host runs after that. 57P02 where the term was ended
    /// meanwhile.
    pub fn begin(&self, reign: Reign) -> Result<u64> {
        self.collect_empty()?;
        let next = lock(&self.upkeep).newest + 1;
        let (number, _) = self.create_next(next)?;
        let (books, database) = (self.host.books(), self.host.database());
        if !self.host.told(books.open_log(database, reign, number))? {
            return Err(term_lost(&*self.host, reign.term.0.into()));
        }
        crash_point("log.term.begun");
        Ok(number)
    }

    pub fn host(&self) -> &Arc<H> {
        &self.host
    }

    /// The term of a segment that is in the log table, as a checkpoint names it with the number.
    pub fn term_of(&self, number: u64) -> Result<u64> {
        let books = self.host.books();
        let entry = self.host.told(books.load(books.layout.segment(self.host.database(), number)))?;
        Ok(entry.term.0.into())
    }

    fn handle(&self, number: u64, extent: Extent) -> Arc<dyn LogSegment> {
        Arc::new(PoolSegment { host: self.host.clone(), term: self.term, number, extent })
    }

    /// Gives back what is superfluous, as far as other hosts let it go.
    fn collect(&self, upkeep: &mut Upkeep) -> Result<()> {
        let (host, books, database) = (&*self.host, self.host.books(), self.host.database());
        let kept = [&self.kept_from, &self.archived_from].map(|kept| kept.load(Ordering::Acquire));
        let first = kept.into_iter().fold(upkeep.first, u64::min);
        if first > upkeep.told {
            // Others go by that once this host is primary no more.
            host.told(books.need_log_from(host.host(), first))?;
            upkeep.told = first;
        }
        // What it would judge by later is its successor's to judge.
        if !host.told(books.is_settled(database, self.term))? {
            return Ok(());
        }
        let since = host.told(books.load(books.layout.root(database)))?.generation;
        for place in 0..SEGMENTS as u64 {
            let entry = host.told(books.load(books.layout.segment(database, place)))?;
            // What a later term enters is not this one's to judge.
            if entry == Entry::NONE || entry.term > self.term {
                continue;
            }
            let number = self.number_at(place, entry, upkeep.newest)?;
            let Some(number) = number.filter(|number| *number < first) else { continue };
            if !host.told(books.nobody_needs_segment(host.host(), database, number, since))? {
                continue;
            }
            let found = host.told(books.load(books.layout.owner(entry.extent)))?;
            // First no reader finds it any more, then it goes. What is cut short between is found below, by the next.
            if host.told(books.forget_segment(database, number, entry))? {
                crash_point("log.segment.forgotten");
                self.give_back(entry.extent, found)?;
            }
        }
        self.collect_unnamed()
    }

    /// Takes the segments of terms that ended without a block out of the table: no reader enters them. A host that dies again
    /// and again before its first block would take an extent each time.
    fn collect_empty(&self) -> Result<()> {
        let (host, books, database) = (&*self.host, self.host.books(), self.host.database());
        let source = PoolSource::new(self.host.clone());
        let mut known = HashMap::new();
        for place in 0..SEGMENTS as u64 {
            let entry = host.told(books.load(books.layout.segment(database, place)))?;
            if entry == Entry::NONE || entry.term >= self.term {
                continue;
            }
            let is_empty = match known.get(&entry.term) {
                Some(is_empty) => *is_empty,
                None => source.end_of(entry.term.0.into(), 0)? == Some(None),
            };
            known.insert(entry.term, is_empty);
            let found = host.told(books.load(books.layout.owner(entry.extent)))?;
            if is_empty && host.told(books.forget_segment(database, place, entry))? {
                crash_point("log.segment.forgotten");
                // One whose writer may live goes later, as an orphan that the table does not name.
                self.give_back(entry.extent, found)?;
            }
        }
        Ok(())
    }

    /// What its header says, and of a segment that was not begun what its place can be. An earlier term's late entry may be
    /// ahead of all that was entered.
    fn number_at(&self, place: u64, entry: Entry, newest: u64) -> Result<Option<u64>> {
        let mut bytes = [0; 2 * BLOCK_ALIGNMENT];
        if !self.host.books().memory.read_bytes(entry.extent, 0, &mut bytes) {
            return Ok(None);
        }
        let header = SegmentHeader::read_any(&bytes);
        let is_its =
            |header: &SegmentHeader| header.term == u64::from(entry.term.0) && header.number % SEGMENTS as u64 == place;
        Ok(match header.filter(is_its) {
            Some(header) => Some(header.number),
            None => number_of(place, newest),
        })
    }

    /// Gives back what dead primaries took for the log and the table does not name.
    fn collect_unnamed(&self) -> Result<()> {
        let (host, books, database) = (&*self.host, self.host.books(), self.host.database());
        let mut unnamed = Vec::new();
        for extent in books.layout.all_extents() {
            let owner = host.told(books.load(books.layout.owner(extent)))?;
            let Owner::Orphan { by, database: of, kind: Kind::Log } = owner else { continue };
            // One that lives may be about to enter it.
            if of == database && host.told(books.is_gone(by))? {
                unnamed.push((extent, owner));
            }
        }
        if unnamed.is_empty() {
            return Ok(());
        }
        // After the owners: a primary that takes one of them, once it is free, has it as its own.
        for place in 0..SEGMENTS as u64 {
            let entry = host.told(books.load(books.layout.segment(database, place)))?;
            if entry != Entry::NONE {
                unnamed.retain(|(extent, _)| *extent != entry.extent);
            }
        }
        unnamed.into_iter().try_for_each(|(extent, found)| self.give_back(extent, found).map(drop))
    }

    /// False where its writer may still be alive, and where the extent has another word than the one that was `found` when
    /// the table still named it: then it went back, and may be another segment's.
    fn give_back(&self, extent: Extent, found: Owner) -> Result<bool> {
        let (host, books, database) = (&*self.host, self.host.books(), self.host.database());
        Ok(host.told(books.return_log(host.host(), database, extent, found))?
            && host.told(books.free(host.host(), extent, Contents::Of(database)))?)
    }
}

impl<H: PoolHost> LogDevice for PoolDevice<H> {
    fn name(&self) -> String {
        self.host.pool_name()
    }

    fn segment_name(&self, number: u64) -> String {
        format!("{number} in {}", self.host.pool_name())
    }

    fn segment_bytes(&self) -> usize {
        self.host.books().memory.extent_bytes()
    }

    fn segments_max(&self) -> u64 {
        SEGMENTS as u64 - SPARE_PLACES
    }

    fn write_alignment(&self) -> usize {
        BLOCK_ALIGNMENT
    }

    fn block_alignment(&self) -> usize {
        BLOCK_ALIGNMENT
    }

    /// Of this term.
    fn segments(&self) -> Result<Vec<u64>> {
        let (books, database) = (self.host.books(), self.host.database());
        let newest = lock(&self.upkeep).newest;
        let mut numbers = Vec::new();
        for place in 0..SEGMENTS as u64 {
            let entry = self.host.told(books.load(books.layout.segment(database, place)))?;
            numbers.extend(number_of(place, newest).filter(|_| entry.term == self.term));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn open(&self, number: u64) -> Result<Arc<dyn LogSegment>> {
        let (books, database) = (self.host.books(), self.host.database());
        let extent = self.host.told(books.segment(database, number, self.term))?;
        let extent = extent.ok_or_else(|| Error::corrupted(format!("log segment {number} is not in the log table")))?;
        Ok(self.handle(number, extent))
    }

    fn create(&self, number: u64) -> Result<Arc<dyn LogSegment>> {
        self.create_next(number).map(|(_, segment)| segment)
    }

    fn create_next(&self, number: u64) -> Result<(u64, Arc<dyn LogSegment>)> {
        let (host, books, database) = (&*self.host, self.host.books(), self.host.database());
        let full = |error: Error| match error.code() {
            SqlState::OUT_OF_MEMORY => {
                Error::new(SqlState::DISK_FULL, error.message().to_owned()).with_detail("The log needs an extent.")
            }
            _ => error,
        };
        let extent = host.lease_log().map_err(full)?;
        crash_point("log.segment.leased");
        // What it held before has no header that could be taken for this segment's; it is not to be asked.
        if !books.memory.write_bytes(extent, 0, &[0; BLOCK_ALIGNMENT]) {
            return Err(host.missing(extent));
        }
        host.told(books.fence())?;
        let entry = Entry { term: self.term, extent };
        for number in number..number + SEGMENTS as u64 {
            if host.told(books.enter_segment(database, number, entry))? {
                crash_point("log.segment.created");
                let mut upkeep = lock(&self.upkeep);
                upkeep.newest = upkeep.newest.max(number);
                return Ok((number, self.handle(number, extent)));
            }
        }
        self.give_back(extent, Owner::Log { by: host.host() })?;
        Err(Error::new(SqlState::DISK_FULL, format!("the log table of {} is full", host.pool_name()))
            .with_hint("A checkpoint makes room, once no host needs the segments before it."))
    }

    /// Other hosts may be reading it.
    fn recycles(&self) -> bool {
        false
    }

    fn recycle(&self, source: u64, target: u64) -> Result<Arc<dyn LogSegment>> {
        self.remove(source)?;
        self.create(target)
    }

    /// It is superfluous to this host, and all before it. It goes when no other host needs it.
    fn remove(&self, number: u64) -> Result<()> {
        let mut upkeep = lock(&self.upkeep);
        upkeep.first = upkeep.first.max(number + 1);
        crash_point("log.segment.removed");
        Ok(())
    }

    fn all_removed(&self) -> Result<()> {
        self.collect(&mut lock(&self.upkeep))
    }

    /// The log table says which segments there are, and a segment that was begun shows in what follows it.
    fn notes(&self) -> Result<Vec<[u8; NOTE_BYTES]>> {
        Ok(Vec::new())
    }

    fn write_note(&self, _: bool, _: &[u8; NOTE_BYTES]) -> Result<()> {
        Ok(())
    }
}

/// A segment of any term, as a host of the database has it.
#[derive(Debug)]
struct PoolSegment<H> {
    host: Arc<H>,
    term: Term,
    number: u64,
    extent: Extent,
}

impl<H: PoolHost> PoolSegment<H> {
    fn wrong(&self, offset: usize, len: usize) -> Error {
        Error::internal(format!("{len} bytes at {offset} of log segment {}", self.number))
    }
}

impl<H: PoolHost> LogSegment for PoolSegment<H> {
    fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<usize> {
        let memory = &self.host.books().memory;
        let from = offset.min(memory.extent_bytes());
        let count = bytes.len().min(memory.extent_bytes() - from);
        if !from.is_multiple_of(8) || !count.is_multiple_of(8) {
            return Err(self.wrong(offset, count));
        }
        if !memory.read_bytes(self.extent, from, &mut bytes[..count]) {
            return Err(self.host.missing(self.extent));
        }
        Ok(count)
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let memory = &self.host.books().memory;
        let fits = offset <= memory.extent_bytes() && bytes.len() <= memory.extent_bytes() - offset;
        if !fits || !offset.is_multiple_of(8) || !bytes.len().is_multiple_of(8) {
            return Err(self.wrong(offset, bytes.len()));
        }
        if !memory.write_bytes(self.extent, offset, bytes) {
            return Err(self.host.missing(self.extent));
        }
        Ok(())
    }

    /// With the word by which it was found.
    fn persist(&self, offset: usize, len: usize) -> Result<()> {
        let books = self.host.books();
        books.memory.persist_word(books.layout.segment(self.host.database(), self.number).at);
        books.memory.persist_word(books.layout.first(self.host.database(), self.term).at);
        match books.memory.persist_bytes(self.extent, offset, len) {
            true => Ok(()),
            false => Err(self.host.missing(self.extent)),
        }
    }

    /// What was stored is in memory that survives the process. The look at `TERM` comes after it.
    fn sync(&self) -> Result<()> {
        if self.host.told(self.host.books().is_settled(self.host.database(), self.term))? {
            return Ok(());
        }
        Err(term_lost(&*self.host, self.term.0.into()))
    }
}

/// The log of a database in a pool, as one of its hosts reads it.
#[derive(Debug)]
pub struct PoolSource<H> {
    host: Arc<H>,
}

impl<H> Clone for PoolSource<H> {
    fn clone(&self) -> Self {
        PoolSource { host: self.host.clone() }
    }
}

impl<H: PoolHost> PoolSource<H> {
    pub fn new(host: Arc<H>) -> PoolSource<H> {
        PoolSource { host }
    }

    pub fn host(&self) -> &Arc<H> {
        &self.host
    }

    /// The oldest segment that is there, with its term. `None`: the log is there from its beginning on, or there is none.
    ///
    /// It is found from the newest place on that is known to be in the log, as each segment names the one before.
    pub fn oldest(&self, identity: DatabaseIdentity) -> Result<Option<(u64, u64)>> {
        loop {
            let newest = self.newest_term()?;
            let oldest = self.oldest_by(identity);
            // Otherwise lines of the ring may have been other terms' when they were read.
            if self.newest_term()? == newest {
                return oldest;
            }
        }
    }

    fn oldest_by(&self, identity: DatabaseIdentity) -> Result<Option<(u64, u64)>> {
        let first = self.first_segment(identity)?.filter(|header| header.previous_end.segment() != 0);
        Ok(first.map(|header| (header.term, header.number)))
    }

    /// The header of the oldest segment that is there. `None`: there is no log.
    fn first_segment(&self, identity: DatabaseIdentity) -> Result<Option<SegmentHeader>> {
        let mut at = self.newest_begun(identity)?;
        let mut first = None;
        while let Some((term, number)) = at {
            let Some(segment) = self.segment(term, number)? else { break };
            let Some(header) = header_of(&*segment, identity)? else {
                return Err(damaged(self, term, LogPosition::new(number, 0)).with_detail("The segment has no header."));
            };
            if (header.term, header.number) != (term, number) {
                break;
            }
            let before = (header.previous_term, header.previous_end.segment());
            at = (before.1 != 0).then_some(before);
            first = Some(header);
        }
        Ok(first)
    }

    /// Whether there is a log, and of one that is there from its beginning on, the timestamp up to which commits were there before it:
    /// not 0 where a database was brought into the pool from elsewhere. Until its primary's first manifest is in force, those are nowhere
    /// in the pool.
    pub fn begins_after(&self, identity: DatabaseIdentity) -> Result<Option<CommitTs>> {
        loop {
            let newest = self.newest_term()?;
            let first = self.first_segment(identity)?;
            if self.newest_term()? == newest {
                return Ok(first.map(|header| header.begins_after));
            }
        }
    }

    /// Maps segments that a primary has prepared behind `number`, and this one: whoever seals the term looks through them. Some at a
    /// time, so that a caller which follows is not kept from that for long. False: there was nothing to do.
    pub(crate) fn map_ahead(&self, term: u64, number: u64, mapped: &mut VecDeque<Extent>) -> Result<bool> {
        let (host, books) = (&*self.host, self.host.books());
        let mut mapped_now = 0;
        for number in std::iter::once(number).chain(self.next_numbers(term, number, false)?) {
            let extent = host.told(books.segment(host.database(), number, Term(term as u32)))?;
            let Some(extent) = extent.filter(|extent| !mapped.contains(extent)) else { continue };
            if mapped_now == MAPPED_AT_ONCE {
                break;
            }
            books.memory.map_ahead(extent);
            mapped_now += 1;
            if mapped.len() == MAPPED_MAX {
                mapped.pop_front();
            }
            mapped.push_back(extent);
        }
        Ok(mapped_now > 0)
    }

    fn newest_term(&self) -> Result<u32> {
        Ok(self.host.told(self.host.books().reign(self.host.database()))?.term.0)
    }

    /// The newest segment with a block that is known to be in the log, with its term.
    fn newest_begun(&self, identity: DatabaseIdentity) -> Result<Option<(u64, u64)>> {
        let (host, books, database) = (&*self.host, self.host.books(), self.host.database());
        let sealed = host.told(books.newest_seal(database))?;
        // A term begins its log when all before are sealed.
        let open = sealed.map_or(1, |(term, _)| u64::from(term.0) + 1);
        // The first of its segments may have gone by now.
        for number in self.numbers_of(identity, open)?.into_iter().rev() {
            let mut cursor = Cursor::before_segment(identity, open, number);
            if cursor.next(self, None, &mut Vec::new())?.is_some() {
                return Ok(Some((open, number)));
            }
        }
        sealed.map_or(Ok(None), |(_, end)| self.segment_at(identity, end))
    }

    /// The segments of a term that are begun, in ascending order.
    fn numbers_of(&self, identity: DatabaseIdentity, term: u64) -> Result<Vec<u64>> {
        let (host, books, database) = (&*self.host, self.host.books(), self.host.database());
        let mut numbers = Vec::new();
        for place in 0..SEGMENTS as u64 {
            let entry = host.told(books.load(books.layout.segment(database, place)))?;
            if entry == Entry::NONE || u64::from(entry.term.0) != term {
                continue;
            }
            let Some(segment) = self.segment(term, place)? else { continue };
            let header = header_of(&*segment, identity)?;
            let its = header.filter(|header| header.term == term && header.number % SEGMENTS as u64 == place);
            numbers.extend(its.map(|header| header.number));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The segment that a seal names, with its term, which may be an earlier one than the seal's.
    fn segment_at(&self, identity: DatabaseIdentity, end: End) -> Result<Option<(u64, u64)>> {
        let (host, books, database) = (&*self.host, self.host.books(), self.host.database());
        let End::At { number_low, .. } = end else { return Ok(None) };
        let place = u64::from(number_low) % SEGMENTS as u64;
        let entry = host.told(books.load(books.layout.segment(database, place)))?;
        let term = u64::from(entry.term.0);
        // The last segment of all stays until another has a block.
        let found = self.segment(term, place)?;
        let found = found.map(|segment| header_of(&*segment, identity)).transpose()?.flatten();
        let is_it = |header: &SegmentHeader| {
            header.term == term && position_of(end, header.number).is_some_and(|end| end.segment() == header.number)
        };
        match found.filter(is_it) {
            Some(header) => Ok(Some((term, header.number))),
            None => Err(Error::corrupted(format!("the log in {} is damaged", self.name()))
                .with_detail(format!("It ended in a segment at place {place} of the log table, which is not there."))),
        }
    }

    /// How a term ended that the ring still speaks of. `Some(None)`: it has no block, and its seal is the end of one before.
    pub(crate) fn end_of(&self, term: u64, near: u64) -> Result<Option<Option<LogPosition>>> {
        let (host, books, database) = (&*self.host, self.host.books(), self.host.database());
        let of = Term(term as u32);
        let Some(end) = host.told(books.end_of(database, of))? else { return Ok(None) };
        // A term that never began a log has no first segment.
        let first = host.told(books.first_segment(database, of))?;
        let end = first.and_then(|first| position_of(end, near.max(first)).filter(|end| end.segment() >= first));
        // The word between was the term's, too, if the seal still is.
        Ok(host.told(books.end_of(database, of))?.map(|_| end))
    }

    /// The first segment of the last of the terms that go on from `term`, with the position from which it does: of several
    /// all but the last have no block.
    fn following(&self, term: u64) -> Result<Option<(u64, SegmentHeader)>> {
        let (host, books, database) = (&*self.host, self.host.books(), self.host.database());
        let mut found: Option<(u64, SegmentHeader)> = None;
        for place in 0..SEGMENTS as u64 {
            let entry = host.told(books.load(books.layout.segment(database, place)))?;
            let of = u64::from(entry.term.0);
            if of <= term || found.as_ref().is_some_and(|(last, _)| of <= *last) {
                continue;
            }
            let mut bytes = [0; 2 * BLOCK_ALIGNMENT];
            if !books.memory.read_bytes(entry.extent, 0, &mut bytes) {
                return Err(host.missing(entry.extent));
            }
            let goes_on = |header: &SegmentHeader| {
                header.term == of && header.number % SEGMENTS as u64 == place && header.previous_term == term
            };
            if let Some(header) = SegmentHeader::read_any(&bytes).filter(goes_on) {
                found = Some((of, header));
            }
        }
        Ok(found)
    }

    /// How a term ended whose line of the ring is a later one's.
    fn verdict_of_old(&self, term: u64, near: u64) -> Result<Verdict> {
        let (host, books, database) = (&*self.host, self.host.books(), self.host.database());
        if let Some((_, header)) = self.following(term)? {
            return Ok(Verdict::Ended(Some(header.previous_end)));
        }
        // No term since has a block: the newest seal is this one's, too.
        let Some((sealed, end)) = host.told(books.newest_seal(database))? else { return Ok(Verdict::Ending) };
        if u64::from(sealed.0) < term {
            return Ok(Verdict::Ending);
        }
        let Some(end) = position_of(end, near) else { return Ok(Verdict::Ended(None)) };
        let entry = host.told(books.load(books.layout.segment(database, end.segment())))?;
        match u64::from(entry.term.0).cmp(&term) {
            std::cmp::Ordering::Equal => Ok(Verdict::Ended(Some(end))),
            std::cmp::Ordering::Less if entry != Entry::NONE => Ok(Verdict::Ended(None)),
            _ => Err(self.too_old(term)),
        }
    }
}

impl<H: PoolHost> Source for PoolSource<H> {
    fn name(&self) -> String {
        self.host.pool_name()
    }

    fn segment_bytes(&self) -> usize {
        self.host.books().memory.extent_bytes()
    }

    fn segment(&self, term: u64, number: u64) -> Result<Option<Arc<dyn LogSegment>>> {
        let (host, books) = (&self.host, self.host.books());
        let term = Term(term as u32);
        let extent = host.told(books.segment(host.database(), number, term))?;
        Ok(extent.map(|extent| -> Arc<dyn LogSegment> {
            Arc::new(PoolSegment { host: host.clone(), term, number, extent })
        }))
    }

    /// A writer passes over places that other terms have, and prepares some segments ahead. Behind the first place that is
    /// free there are none of its, but where a late entry of another term was and went.
    fn next_numbers(&self, term: u64, number: u64, everywhere: bool) -> Result<Vec<u64>> {
        const AHEAD: usize = 64;
        let (host, books) = (&*self.host, self.host.books());
        let mut numbers = Vec::new();
        for next in number + 1..number + SEGMENTS as u64 {
            let entry = host.told(books.load(books.layout.segment(host.database(), next)))?;
            if entry == Entry::NONE && !everywhere || numbers.len() == AHEAD {
                break;
            }
            if entry != Entry::NONE && u64::from(entry.term.0) == term {
                numbers.push(next);
            }
        }
        Ok(numbers)
    }

    fn next_terms(&self, term: u64) -> Result<Vec<(u64, u64)>> {
        let (host, books, database) = (&*self.host, self.host.books(), self.host.database());
        let newest = self.newest_term()?;
        if u64::from(newest) >= term + TERMS as u64 {
            return Ok(self.following(term)?.map(|(next, header)| (next, header.number)).into_iter().collect());
        }
        for next in (term as u32 + 1..=newest).map(Term) {
            let first = host.told(books.first_segment(database, next))?;
            if self.end_of(next.0.into(), 0)? == Some(None) {
                continue;
            }
            // One that has not begun, or whose end is not known yet.
            return Ok(first.map(|number| (next.0.into(), number)).into_iter().collect());
        }
        Ok(Vec::new())
    }

    fn verdict(&self, term: u64, near: u64) -> Result<Verdict> {
        let (host, books, database) = (&*self.host, self.host.books(), self.host.database());
        let of = Term(term as u32);
        if host.told(books.is_settled(database, of))? {
            return Ok(Verdict::Settled);
        }
        if let Some(end) = self.end_of(term, near)? {
            return Ok(Verdict::Ended(end));
        }
        match u64::from(self.newest_term()?) >= term + TERMS as u64 {
            true => self.verdict_of_old(term, near),
            false => Ok(Verdict::Ending),
        }
    }

    fn too_old(&self, term: u64) -> Error {
        Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("the log of term {term} is not in {} any more", self.host.pool_name()),
        )
        .with_hint("Start this host again: it attaches to the newest checkpoint.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_and_a_seal_stand_for_the_nearest_segment() {
        let places = SEGMENTS as u64;
        assert_eq!(number_of(8, 5), None);
        assert_eq!(number_of(0, 5), None);
        for number in [1, 7, places - 1, places, 3 * places + 17] {
            for newest in [number, number + 1000, number + places - 1] {
                assert_eq!(number_of(number % places, newest), Some(number), "up to {newest}");
            }
            for near in [number, number.saturating_sub(1000), number + 1000] {
                let end = End::at(number, 8192);
                assert_eq!(position_of(end, near), Some(LogPosition::new(number, 8192)));
            }
        }
        assert_eq!(position_of(End::Empty, 7), None);
        let far = (5u64 << 20) + 3;
        assert_eq!(position_of(End::at(far, 64), far - 2000), Some(LogPosition::new(far, 64)));
    }
}
