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
//! Segments go back when a checkpoint is past them: with the root in force then, and no host that reads them. The
//! checkpoint's root is published before the log is told of it.

use crate::blocks::{Source, Verdict, header_of};
use crate::device::{LogDevice, LogSegment, NOTE_BYTES};
use crate::format::{BLOCK_ALIGNMENT, DatabaseIdentity, LogPosition};
use crate::room::lock;
use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use tidepool_base::{Error, Result, SqlState, crash_point};
use tidepool_pool::layout::{SEGMENTS, TERMS};
use tidepool_pool::member::Member;
use tidepool_pool::memory::{Books, Bytes, Memory, Trouble};
use tidepool_pool::words::{Contents, Database, End, Extent, Host, Kind, Owner, Reign, Seal, Segment as Entry, Term};

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
}

#[derive(Debug)]
struct Upkeep {
    /// Segments before it are superfluous to this host.
    first: u64,
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
        PoolDevice { host, term: reign.term, upkeep: Mutex::new(Upkeep { first: 0, newest }) }
    }

    /// Enters the first segment, and begins the term's log there. The host runs after that. 57P02 where the term was ended
    /// meanwhile.
    pub fn begin(&self, reign: Reign) -> Result<u64> {
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
    fn collect(&self, upkeep: &Upkeep) -> Result<()> {
        let (host, books, database) = (&*self.host, self.host.books(), self.host.database());
        let since = host.told(books.load(books.layout.root(database)))?.generation;
        for place in 0..SEGMENTS as u64 {
            let entry = host.told(books.load(books.layout.segment(database, place)))?;
            // What a later term enters is not this one's to judge.
            if entry == Entry::NONE || entry.term > self.term {
                continue;
            }
            let Some(number) = number_of(place, upkeep.newest).filter(|number| *number < upkeep.first) else {
                continue;
            };
            if !host.told(books.nobody_needs_segment(host.host(), database, number, since))? {
                continue;
            }
            // First no reader finds it any more, then it goes. What is cut short between is found below, by the next.
            if host.told(books.forget_segment(database, number, entry))? {
                crash_point("log.segment.forgotten");
                self.give_back(entry.extent)?;
            }
        }
        self.collect_unnamed()
    }

    /// Gives back what dead primaries took for the log and the table does not name.
    fn collect_unnamed(&self) -> Result<()> {
        let (host, books, database) = (&*self.host, self.host.books(), self.host.database());
        let mut unnamed = Vec::new();
        for extent in books.layout.all_extents() {
            let owner = host.told(books.load(books.layout.owner(extent)))?;
            if matches!(owner, Owner::Orphan { database: of, kind: Kind::Log, .. } if of == database) {
                unnamed.push(extent);
            }
        }
        if unnamed.is_empty() {
            return Ok(());
        }
        // After the owners: a primary that takes one of them, once it is free, has it as its own.
        for place in 0..SEGMENTS as u64 {
            let entry = host.told(books.load(books.layout.segment(database, place)))?;
            if entry != Entry::NONE {
                unnamed.retain(|extent| *extent != entry.extent);
            }
        }
        unnamed.into_iter().try_for_each(|extent| self.give_back(extent).map(drop))
    }

    /// False where its writer may still be alive.
    fn give_back(&self, extent: Extent) -> Result<bool> {
        let (host, books, database) = (&*self.host, self.host.books(), self.host.database());
        Ok(host.told(books.return_log(host.host(), database, extent))?
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
        self.give_back(extent)?;
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

    /// It is superfluous to this host, and all before it. It goes now, or when no other host needs it.
    fn remove(&self, number: u64) -> Result<()> {
        let mut upkeep = lock(&self.upkeep);
        upkeep.first = upkeep.first.max(number + 1);
        self.collect(&upkeep)?;
        crash_point("log.segment.removed");
        Ok(())
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

    /// The oldest segment that is there, with its term. `None`: there is no log.
    pub fn oldest(&self, identity: DatabaseIdentity) -> Result<Option<(u64, u64)>> {
        let (host, books, database) = (&*self.host, self.host.books(), self.host.database());
        let reign = host.told(books.reign(database))?;
        let mut entries = Vec::new();
        for place in 0..SEGMENTS as u64 {
            let entry = host.told(books.load(books.layout.segment(database, place)))?;
            let term = u64::from(entry.term.0);
            let Some(segment) = self.segment(term, place)?.filter(|_| entry != Entry::NONE) else { continue };
            // Its header says which of those at this place it is; without one it was not begun.
            if let Some(header) = header_of(&*segment, identity)?
                && header.term == term
                && header.number % SEGMENTS as u64 == place
            {
                entries.push((entry.term, header.number));
            }
        }
        for term in (1..=reign.term.0).rev().take(TERMS).collect::<Vec<_>>().into_iter().rev().map(Term) {
            let Some(first) = host.told(books.first_segment(database, term))? else { continue };
            let end = host.told(books.end_of(database, term))?;
            if end == Some(End::Empty) {
                continue;
            }
            // What a host entered behind its seal is no part of the log. A term has no segment before its first.
            let is_before_end = |number: u64| {
                let end = end.and_then(|end| position_of(end, number));
                number >= first && end.is_none_or(|end| number <= end.segment())
            };
            let of_term = entries.iter().filter(|(of, number)| *of == term && is_before_end(*number));
            if let Some((_, number)) = of_term.min() {
                return Ok(Some((term.0.into(), *number)));
            }
        }
        Ok(None)
    }

    fn too_old(&self, term: u64) -> Error {
        Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("the log of term {term} is not in {} any more", self.host.pool_name()),
        )
        .with_hint("Start this host again: it attaches to the newest checkpoint.")
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
    /// free there are none of its.
    fn next_numbers(&self, term: u64, number: u64) -> Result<Vec<u64>> {
        const AHEAD: usize = 64;
        let (host, books) = (&*self.host, self.host.books());
        let mut numbers = Vec::new();
        for next in number + 1..number + SEGMENTS as u64 {
            let entry = host.told(books.load(books.layout.segment(host.database(), next)))?;
            if entry == Entry::NONE || numbers.len() == AHEAD {
                break;
            }
            if u64::from(entry.term.0) == term {
                numbers.push(next);
            }
        }
        Ok(numbers)
    }

    fn next_terms(&self, term: u64) -> Result<Vec<(u64, u64)>> {
        let (host, books, database) = (&*self.host, self.host.books(), self.host.database());
        let newest = host.told(books.reign(database))?.term;
        if u64::from(newest.0) >= term + TERMS as u64 && term > 0 {
            return Err(self.too_old(term));
        }
        let first = if term > 0 { term as u32 + 1 } else { newest.0.saturating_sub(TERMS as u32 - 1).max(1) };
        for next in (first..=newest.0).map(Term) {
            if host.told(books.end_of(database, next))? == Some(End::Empty) {
                continue;
            }
            // One that has not begun, or whose end is not known yet.
            let first = host.told(books.first_segment(database, next))?;
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
        match host.told(books.end_of(database, of))? {
            Some(end) => Ok(Verdict::Ended(position_of(end, near))),
            None if u64::from(host.told(books.reign(database))?.term.0) >= term + TERMS as u64 => {
                Err(self.too_old(term))
            }
            None => Ok(Verdict::Ending),
        }
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
