//! Following a log that another process writes: the records up to a floor, in the order of their timestamps.
//!
//! A record is given out when a block's floor has come to its timestamp: until then, one with an earlier timestamp may be
//! missing, and it is no record. What is above the last floor of a life when the next begins never was one. So each batch has
//! all commits between the floor before and its own, and a reader that has applied it is where the primary was then.
//!
//! Memory: the blocks that were read last, 4 MB and one more at most, and a place for each record above the floor and for
//! each 32 kB of one. Bytes of what was read earlier are read again.

use crate::blocks::{Block, Blocks, Came, Cursor, Source};
use crate::device::LogSegment;
use crate::format::{
    ABANDONED, BLOCK_ALIGNMENT, BLOCK_HEADER_BYTES, BlockHeader, CONTINUED, DatabaseIdentity, Frame, LogPosition, PART,
    STREAM, marked_time,
};
use crate::log::RecordKind;
use crate::recovery::Written;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tidepool_base::{CommitTs, Error, Result, SqlState};
use tidepool_pool::layout::SEGMENTS;
use tidepool_pool::words::Extent;

/// Where a frame's payload is.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Counts the segments that were entered.
    ordinal: u64,
    block: u32,
    /// From the block's start.
    start: u32,
    len: u32,
    is_continued: bool,
}

/// A committed record.
#[derive(Clone, Debug)]
pub struct TailRecord {
    pub ts: CommitTs,
    pub kind: RecordKind,
    /// Of its last frame's block.
    pub position: LogPosition,
    first: Place,
    rest: Vec<Place>,
    /// The next to be read.
    next: usize,
    /// Of its oldest segment.
    ordinal: u64,
}

impl TailRecord {
    fn place(&self, index: usize) -> Option<Place> {
        match index {
            0 => Some(self.first),
            index => self.rest.get(index - 1).copied(),
        }
    }

    fn places(&self) -> usize {
        1 + self.rest.len()
    }
}

/// All commits between two floors, in the order of their timestamps.
#[derive(Debug)]
pub struct Batch {
    pub floor: CommitTs,
    pub records: Vec<TailRecord>,
}

/// Where a reader stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Before the first block that was written later than this, in microseconds since 1970; `inclusive`: not at it, either.
    Time { us: u64, inclusive: bool },
    /// Before the first block that ends behind this place; `inclusive`: that ends there, too.
    Position { end: LogPosition, inclusive: bool },
}

/// What a reader has come to.
#[derive(Debug)]
pub enum Next {
    /// Applied, it makes the reader's state that of `floor`.
    Batch(Batch),
    /// There is nothing new.
    Nothing,
    /// The last term that has begun ended here, and everything of it has been given out.
    AtSeal,
}

/// Where the log of the terms so far ended, for the term that goes on from there.
#[derive(Clone, Debug)]
pub struct Before {
    pub term: u64,
    pub end: LogPosition,
    pub(crate) chain: u64,
    pub(crate) written: Vec<Written>,
    pub ts_max: CommitTs,
    /// Where there is no log: what its reader had before it.
    pub(crate) begins_after: CommitTs,
}

/// What the log of a new term begins with.
#[derive(Clone, Debug)]
pub struct Begun {
    pub term: u64,
    /// Its first segment.
    pub first: u64,
    pub before: Before,
}

#[derive(Debug)]
struct Opened {
    ordinal: u64,
    term: u64,
    number: u64,
}

#[derive(Debug)]
struct Stream {
    ordinal: u64,
    parts: Vec<Place>,
}

/// 55000 for a reader that lacks what was there before the log.
fn begins_after(ts: CommitTs) -> Error {
    Error::new(
        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        "the log of the database begins after what this host has of it",
    )
    .with_detail(format!("Commits up to {ts} were brought into the pool from elsewhere while this host was there."))
    .with_hint("Start this host again.")
}

/// A reader of a log at its moving end.
#[derive(Debug)]
pub struct Tail<S> {
    blocks: Blocks<S>,
    identity: DatabaseIdentity,
    /// Gives out no records up to this one.
    after: CommitTs,
    /// Segments in which something may have to be read again, and the one that is read.
    opened: VecDeque<Opened>,
    life: u64,
    floor: CommitTs,
    ts_max: CommitTs,
    /// Greatest timestamp of lives before this one.
    ts_before: CommitTs,
    held: Vec<TailRecord>,
    streams: HashMap<u64, Stream>,
    /// Of the blocks that were read last: ordinal and offset, in ascending order.
    window: Vec<(u64, u32)>,
    /// A block that was read again.
    again: (Option<(u64, u32)>, Vec<u8>),
    joined: Vec<u8>,
    written: VecDeque<Written>,
    until: Option<Until>,
    is_reached: bool,
    /// The latest mark of a block that was taken.
    marked: u64,
    /// Extents of segments that were mapped ahead.
    pub(crate) mapped: VecDeque<Extent>,
}

impl<S: Source> Tail<S> {
    /// Reads the log from the start of segment `number` of `term` on, as a checkpoint or [`oldest`](crate::PoolSource::oldest)
    /// names it, or all of it.
    pub fn open(source: S, identity: DatabaseIdentity, from: Option<(u64, u64)>) -> Tail<S> {
        let cursor = match from {
            Some((term, number)) => Cursor::before_segment(identity, term, number),
            None => Cursor::at_start(identity),
        };
        Tail {
            blocks: Blocks::new(source, cursor),
            identity,
            after: CommitTs(0),
            opened: VecDeque::new(),
            life: 0,
            floor: CommitTs(0),
            ts_max: CommitTs(0),
            ts_before: CommitTs(0),
            held: Vec::new(),
            streams: HashMap::new(),
            window: Vec::new(),
            again: (None, Vec::new()),
            joined: Vec::new(),
            written: VecDeque::new(),
            until: None,
            is_reached: false,
            marked: 0,
            mapped: VecDeque::new(),
        }
    }

    /// Gives out nothing from that place on.
    pub fn stop_at(&mut self, until: Until) {
        self.until = Some(until);
    }

    /// The place at which it was to stop is there: what the log has up to it has been given out.
    pub fn is_reached(&self) -> bool {
        // The end of one segment is the beginning of the next.
        let segment_bytes = self.blocks.source.segment_bytes() as u64;
        let place = |position: LogPosition| position.segment() * segment_bytes + position.offset() as u64;
        let is_at_end = match self.until {
            Some(Until::Position { end, inclusive: true }) => place(self.blocks.cursor.position()) == place(end),
            _ => false,
        };
        self.is_reached || is_at_end
    }

    /// When the last block was written that was given out, in microseconds since 1970; 0 where no block said so.
    pub fn marked_us(&self) -> u64 {
        self.marked
    }

    fn stops_before(&mut self, block: &Block) -> bool {
        let Some(until) = self.until else { return false };
        let marked = marked_time(&self.blocks.buffer[block.range.clone()]).unwrap_or(0).max(self.marked);
        let is_behind = match until {
            // Without a mark it raises no floor.
            Until::Time { us, inclusive } => marked > us || marked == us && marked > 0 && !inclusive,
            Until::Position { end, inclusive } => {
                let offset = block.header.end().next_multiple_of(BLOCK_ALIGNMENT);
                let ends = LogPosition::new(block.number, offset);
                ends > end || ends == end && !inclusive
            }
        };
        if !is_behind {
            self.marked = marked;
        }
        is_behind
    }

    /// Passes over records at or below `ts`: a checkpoint has them.
    pub fn skip_to(&mut self, ts: CommitTs) {
        self.after = ts;
        self.floor = self.floor.max(ts);
    }

    pub fn source(&self) -> &S {
        &self.blocks.source
    }

    #[cfg(test)]
    pub(crate) fn set_window(&mut self, bytes: usize) {
        self.blocks.set_window(bytes);
    }

    pub(crate) fn cursor(&self) -> &Cursor {
        &self.blocks.cursor
    }

    pub(crate) fn set_segment(&mut self, segment: Arc<dyn LogSegment>) {
        self.blocks.cursor.set_segment(segment);
    }

    /// Everything up to here has been given out.
    pub fn floor(&self) -> CommitTs {
        self.floor
    }

    /// Greatest timestamp that was read, of records too that never were any, or that the state has from which it went on.
    pub fn ts_max(&self) -> CommitTs {
        self.ts_max.max(self.after)
    }

    /// The term of the last block that was read, and where that ended.
    pub fn position(&self) -> (u64, LogPosition) {
        (self.blocks.cursor.term, self.blocks.cursor.position())
    }

    /// Where the log is up to which all records have been given out: there may be some behind it whose floor has not come.
    pub fn given_out(&self) -> LogPosition {
        let end = self.blocks.cursor.position();
        let held = self.held.iter().filter(|record| record.ts > self.floor);
        held.map(|record| record.position).min().map_or(end, |first| first.min(end))
    }

    /// The first segment in which the reader may have to read again. It needs none before it, once it is done with the last
    /// batch.
    pub fn needed_from(&self) -> u64 {
        let number = |ordinal: u64| self.opened.iter().find(|opened| opened.ordinal == ordinal).map(|one| one.number);
        self.oldest().and_then(number).unwrap_or(self.blocks.cursor.number)
    }

    /// As [`needed_from`](Tail::needed_from), with the segment's term: a reader that begins there and passes over what this one has
    /// given out goes on from this one's place.
    pub fn needed_place(&self) -> (u64, u64) {
        let place = |ordinal: u64| self.opened.iter().find(|opened| opened.ordinal == ordinal);
        let place = self.oldest().and_then(place).map(|one| (one.term, one.number));
        place.unwrap_or((self.blocks.cursor.term, self.blocks.cursor.number))
    }

    /// Where the log has come to, which ended there: all terms before a new one are sealed and have been read.
    pub fn into_before(self) -> Before {
        let Cursor { term, chain, .. } = self.blocks.cursor;
        // Of a term without a block nothing follows.
        let term = if self.blocks.cursor.is_within() { term } else { 0 };
        let end = self.blocks.cursor.position();
        let begins_after = if self.blocks.cursor.is_within() { CommitTs(0) } else { self.after };
        Before { term, end, chain, ts_max: self.ts_max(), written: self.written.into(), begins_after }
    }

    /// Goes on, as far as it can without waiting. Records of the batch before cannot be read any more. XX001, with the place, where
    /// the log is damaged.
    pub fn read(&mut self) -> Result<Next> {
        self.close_segments();
        loop {
            if self.is_reached {
                return Ok(Next::Nothing);
            }
            let came = self.blocks.read()?;
            self.window.clear();
            if came != Came::Blocks {
                return Ok(if came == Came::AtSeal { Next::AtSeal } else { Next::Nothing });
            }
            let floor = self.floor;
            let mut ready = Vec::new();
            for index in 0..self.blocks.blocks.len() {
                let block = self.blocks.blocks[index].clone();
                if self.stops_before(&block) {
                    self.is_reached = true;
                    break;
                }
                self.take(&block, &mut ready)?;
            }
            if self.floor > floor {
                ready.sort_unstable_by_key(|record| record.ts);
                return Ok(Next::Batch(Batch { floor: self.floor, records: ready }));
            }
        }
    }

    /// Takes a block. Records that its floor covers are ready.
    fn take(&mut self, block: &Block, ready: &mut Vec<TailRecord>) -> Result<()> {
        if let Some(header) = &block.begins {
            let is_first = header.previous_end == LogPosition::default();
            if is_first && header.begins_after > self.after {
                return Err(begins_after(header.begins_after));
            }
            let ordinal = self.opened.back().map_or(0, |last| last.ordinal + 1);
            self.opened.push_back(Opened { ordinal, term: block.term, number: block.number });
            self.written.push_back(Written { number: block.number, ts_max: CommitTs(0) });
            if self.written.len() > SEGMENTS {
                self.written.pop_front();
            }
        }
        if block.header.life != self.life {
            // Its appenders are gone, and nobody was told of what is above its floor.
            self.life = block.header.life;
            self.streams.clear();
            self.held.clear();
            self.ts_before = self.ts_max;
        }
        let ordinal = self.opened.back().map_or(0, |last| last.ordinal);
        let offset = block.header.position.offset() as u32;
        self.window.push((ordinal, offset));
        let (mut at, len) = (BLOCK_HEADER_BYTES, block.range.len());
        while at < len {
            let bytes = &self.blocks.buffer[block.range.clone()];
            let frame = Frame::read(bytes, at, len).ok_or_else(|| {
                Error::corrupted(format!("the log is damaged at {}", block.header.position))
                    .with_detail("A block with the right checksum holds something that is no record.")
            })?;
            at = frame.next;
            self.frame(&frame, ordinal, block.header.position)?;
        }
        if block.header.floor > self.floor {
            self.floor = block.header.floor;
            let (floor, after) = (self.floor, self.after);
            ready.extend(self.held.extract_if(.., |record| record.ts <= floor).filter(|record| record.ts > after));
        }
        Ok(())
    }

    fn frame(&mut self, frame: &Frame, ordinal: u64, position: LogPosition) -> Result<()> {
        let flags = frame.header.flags;
        let place = Place {
            ordinal,
            block: position.offset() as u32,
            start: frame.payload_start as u32,
            len: frame.header.payload_bytes as u32,
            is_continued: flags & CONTINUED != 0,
        };
        if flags & ABANDONED != 0 {
            self.streams.remove(&frame.stream);
            return Ok(());
        }
        if flags & PART != 0 {
            let stream = Stream { ordinal, parts: Vec::new() };
            self.streams.entry(frame.stream).or_insert(stream).parts.push(place);
            return Ok(());
        }
        let ts = frame.header.ts;
        if ts <= self.ts_before {
            return Err(Error::corrupted(format!("the log has timestamp {ts} twice, or out of its order"))
                .with_detail(format!(
                    "At {position} a process committed at it, and one before had come to {}.",
                    self.ts_before
                )));
        }
        let stream = if flags & STREAM != 0 { self.streams.remove(&frame.stream) } else { None };
        let (oldest, mut places) = stream.map_or((ordinal, Vec::new()), |stream| (stream.ordinal, stream.parts));
        let first = match places.is_empty() {
            true => place,
            false => {
                places.push(place);
                places.remove(0)
            }
        };
        self.ts_max = self.ts_max.max(ts);
        // Segments are entered in the order of their ordinals, and the last is this record's.
        let spanned = (ordinal - oldest) as usize + 1;
        for written in self.written.iter_mut().rev().take(spanned) {
            written.ts_max = written.ts_max.max(ts);
        }
        let kind = RecordKind(frame.header.kind);
        self.held.push(TailRecord { ts, kind, position, first, rest: places, next: 0, ordinal: oldest });
        Ok(())
    }

    /// The oldest segment in which something may have to be read again, by its ordinal.
    fn oldest(&self) -> Option<u64> {
        let held = self.held.iter().map(|record| record.ordinal);
        held.chain(self.streams.values().map(|stream| stream.ordinal)).min()
    }

    /// Lets go of segments in which nothing is to be read again.
    fn close_segments(&mut self) {
        let oldest = self.oldest().unwrap_or(u64::MAX);
        while self.opened.len() > 1 && self.opened.front().is_some_and(|first| first.ordinal < oldest) {
            self.opened.pop_front();
        }
    }

    /// The next piece of a record's payload, as its writer gave it: one for each spill, and at last what was appended, which
    /// is left out when it is empty and others came before. `None`: there is no more.
    pub fn next_piece(&mut self, record: &mut TailRecord) -> Result<Option<&[u8]>> {
        let Some(first) = record.place(record.next) else { return Ok(None) };
        if !first.is_continued {
            record.next += 1;
            if first.len == 0 && record.next > 1 && record.next == record.places() {
                return Ok(None);
            }
            return self.payload(first).map(Some);
        }
        let mut joined = std::mem::take(&mut self.joined);
        joined.clear();
        while let Some(place) = record.place(record.next) {
            record.next += 1;
            joined.extend_from_slice(self.payload(place)?);
            if !place.is_continued {
                break;
            }
        }
        self.joined = joined;
        Ok(Some(&self.joined))
    }

    /// All of a record's payload.
    pub fn payload_of(&mut self, record: &TailRecord) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        for index in 0..record.places() {
            if let Some(place) = record.place(index) {
                all.extend_from_slice(self.payload(place)?);
            }
        }
        Ok(all)
    }

    fn payload(&mut self, place: Place) -> Result<&[u8]> {
        let range = place.start as usize..(place.start + place.len) as usize;
        let key = (place.ordinal, place.block);
        if let Ok(index) = self.window.binary_search(&key) {
            let block = self.blocks.blocks[index].range.clone();
            return Ok(&self.blocks.buffer[block][range]);
        }
        if self.again.0 != Some(key) {
            self.again.0 = None;
            self.read_again(place)?;
            self.again.0 = Some(key);
        }
        self.again.1.get(range).ok_or_else(|| Error::internal("a record is longer than its block"))
    }

    fn read_again(&mut self, place: Place) -> Result<()> {
        let index = self.opened.front().and_then(|first| place.ordinal.checked_sub(first.ordinal));
        let opened = index.and_then(|index| self.opened.get(index as usize));
        let opened = opened.ok_or_else(|| Error::internal("a record is read that was given out before"))?;
        let source = &self.blocks.source;
        let position = LogPosition::new(opened.number, place.block as usize);
        let changed = || Error::corrupted(format!("the log changed while it was read: {position}"));
        let segment: Arc<dyn LogSegment> =
            source.segment(opened.term, opened.number)?.ok_or_else(|| source.too_old(opened.term))?;
        let bytes = &mut self.again.1;
        bytes.resize(BLOCK_HEADER_BYTES, 0);
        segment.read(position.offset(), bytes)?;
        let header = BlockHeader::peek(bytes).filter(|header| header.position == position).ok_or_else(changed)?;
        bytes.resize(BLOCK_HEADER_BYTES + header.frames_bytes, 0);
        segment.read(position.offset(), bytes)?;
        header.verify(bytes, self.identity).map(drop).ok_or_else(changed)
    }
}
