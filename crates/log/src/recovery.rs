//! Reading a log from its first segment to its end, and going on behind it.

use crate::config::{LogConfig, NotesUse};
use crate::device::{LogDevice, LogSegment};
use crate::file_device::AlignedBuffer;
use crate::format::{
    ABANDONED, BLOCK_ALIGNMENT, BLOCK_FRAMES_MAX, BLOCK_HEADER_BYTES, BlockHeader, CONTINUED, Frame, LogPosition,
    PAGE_BYTES, PART, SEGMENT_HEADER_BYTES, STREAM, SegmentHeader,
};
use crate::log::{Floor, Log, RecordKind};
use crate::notes::Note;
use crate::writer::Start;
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use tidepool_base::{CommitTs, Error, Result, SqlState};

/// Read at once. A multiple of a page, and more than a block.
const WINDOW_BYTES: usize = 2 << 20;

const _: () = assert!(WINDOW_BYTES >= BLOCK_FRAMES_MAX + BLOCK_HEADER_BYTES + 2 * PAGE_BYTES);

/// 55000: a log of several hosts is not one that this reader can go on with.
pub(crate) fn of_terms(what: &str) -> Error {
    Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, format!("{what} is of a database in a pool"))
        .with_hint("Start the server with the pool that the log belongs to.")
}

/// How a log ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogEnd {
    /// Behind the last block is nothing that was begun.
    Clean(LogPosition),
    /// Something was begun there and not finished. Nothing of it was ever acknowledged.
    Torn(LogPosition),
}

impl LogEnd {
    pub fn position(self) -> LogPosition {
        match self {
            LogEnd::Clean(position) | LogEnd::Torn(position) => position,
        }
    }
}

/// A segment that is written, and the greatest timestamp of a record that has bytes in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub number: u64,
    pub ts_max: CommitTs,
}

/// Reads a log in the order in which it was written, which is not that of timestamps.
///
/// Memory: two windows of 2 MB, and 24 bytes for each 32 kB of records that were begun and not ended.
#[derive(Debug)]
pub struct Recovery {
    device: Arc<dyn LogDevice>,
    config: LogConfig,
    /// Read no records up to this one.
    after: CommitTs,
    /// Segments that are there, in ascending order.
    numbers: Vec<u64>,
    /// Those that are begun, up to the one that is read.
    written: Vec<Written>,
    segment: Option<(u64, Arc<dyn LogSegment>)>,
    window: Window,
    parts_window: Window,
    /// Byte offsets in the window's segment of the block's start, of its next frame and of its end.
    block: Range<usize>,
    frame: usize,
    chain: u64,
    life: u64,
    /// What the last block said.
    durable: LogPosition,
    floor: CommitTs,
    block_ts_max: CommitTs,
    /// By life, the greatest floor of all its blocks; once they have been looked at.
    floors: Option<HashMap<u64, CommitTs>>,
    streams: HashMap<u64, Stream>,
    ts_max: CommitTs,
    /// Greatest timestamp of lives before this one: each draws later ones.
    ts_before: CommitTs,
    tail: Option<LogEnd>,
    /// Which segments there have to be, as far as that counts.
    note: Note,
}

#[derive(Debug)]
struct Stream {
    segment_first: u64,
    parts: Vec<Place>,
}

/// Where a frame's payload is.
#[derive(Clone, Copy, Debug)]
struct Place {
    block: LogPosition,
    /// From the block's start.
    start: u32,
    len: u32,
    is_continued: bool,
}

/// A run of a segment in memory.
#[derive(Debug)]
struct Window {
    bytes: AlignedBuffer,
    segment: u64,
    start: usize,
    len: usize,
}

impl Window {
    fn new() -> Window {
        Window { bytes: AlignedBuffer::zeroed(WINDOW_BYTES), segment: 0, start: 0, len: 0 }
    }

    /// Up to `len` bytes from `offset` on: fewer where the segment ends.
    fn get(&mut self, number: u64, segment: &dyn LogSegment, offset: usize, len: usize) -> Result<&[u8]> {
        debug_assert!(len + PAGE_BYTES <= WINDOW_BYTES);
        let end = self.start + self.len;
        let is_inside =
            self.segment == number && offset >= self.start && (offset + len <= end || self.len < WINDOW_BYTES);
        if !is_inside || offset > end {
            // Nothing is in it while it is filled: reading may fail.
            (self.segment, self.len) = (0, 0);
            let start = offset / PAGE_BYTES * PAGE_BYTES;
            self.len = segment.read(start, self.bytes.bytes_mut())?;
            (self.segment, self.start) = (number, start);
        }
        let from = (offset - self.start).min(self.len);
        Ok(&self.bytes.bytes()[from..self.len.min(from + len)])
    }
}

/// A committed record.
#[derive(Debug)]
pub struct Record<'a> {
    pub ts: CommitTs,
    pub kind: RecordKind,
    /// Of its last frame's block.
    pub position: LogPosition,
    recovery: &'a mut Recovery,
    frames: Vec<Place>,
    next: usize,
    joined: Vec<u8>,
}

impl Record<'_> {
    /// The next piece of the payload, as its writer gave it: one for each spill, and at last what was appended, which is left
    /// out when it is empty and others came before. XX001 when the log has changed since it was read first.
    pub fn next_piece(&mut self) -> Result<Option<&[u8]>> {
        let Some(first) = self.frames.get(self.next).copied() else { return Ok(None) };
        if !first.is_continued {
            self.next += 1;
            if first.len == 0 && self.next > 1 && self.next == self.frames.len() {
                return Ok(None);
            }
            return self.recovery.payload(first).map(Some);
        }
        self.joined.clear();
        while let Some(frame) = self.frames.get(self.next).copied() {
            self.next += 1;
            let payload = self.recovery.payload(frame)?;
            self.joined.extend_from_slice(payload);
            if !frame.is_continued {
                break;
            }
        }
        Ok(Some(&self.joined))
    }

    /// All of the payload, in memory.
    pub fn payload(&mut self) -> Result<Cow<'_, [u8]>> {
        if self.frames.len() == 1 {
            self.next = 1;
            return self.recovery.payload(self.frames[0]).map(Cow::Borrowed);
        }
        let mut all = Vec::new();
        while let Some(piece) = self.next_piece()? {
            all.extend_from_slice(piece);
        }
        Ok(Cow::Owned(all))
    }
}

impl Recovery {
    /// Looks at what is on `device`. 0A000 when it is another release's, 55000 when another database's, XX001 when its beginning is
    /// missing.
    pub(crate) fn open(device: Arc<dyn LogDevice>, config: LogConfig) -> Result<Recovery> {
        let numbers = device.segments()?;
        let note = match (config.notes, Note::of(&*device, config.identity)?) {
            (NotesUse::Needed, None) => {
                return Err(Error::corrupted(format!("the note of segments in {} is missing", device.name()))
                    .with_detail("It says which segments the log has."));
            }
            (NotesUse::Ignored, _) => Note::default(),
            (_, note) => note.unwrap_or_default(),
        };
        let mut recovery = Recovery {
            device,
            config,
            after: CommitTs(0),
            numbers,
            written: Vec::new(),
            segment: None,
            window: Window::new(),
            parts_window: Window::new(),
            block: 0..0,
            frame: 0,
            chain: 0,
            life: 0,
            durable: LogPosition::default(),
            floor: CommitTs(0),
            block_ts_max: CommitTs(0),
            floors: None,
            streams: HashMap::new(),
            ts_max: CommitTs(0),
            ts_before: CommitTs(0),
            tail: None,
            note,
        };
        if let Some(required) = note.required()
            && recovery.numbers.first().is_none_or(|first| *first > required)
        {
            return Err(recovery.missing(required));
        }
        if let Some(first) = recovery.numbers.first().copied()
            && let Some((header, segment)) = recovery.begun(first)?
        {
            recovery.chain = header.chain;
            recovery.enter(header, segment);
        }
        Ok(recovery)
    }

    /// Passes over records at or below `ts`: a checkpoint has them.
    pub fn skip_to(&mut self, ts: CommitTs) {
        self.after = ts;
    }

    /// Looks at all blocks, and returns the greatest timestamp of any record, of those too that are left out, and of any floor: the
    /// next life's are above it.
    pub fn look_ahead(&mut self) -> Result<CommitTs> {
        let (floors, ts_max) = Recovery::open(self.device.clone(), self.config.clone())?.find_floors()?;
        self.floors = Some(floors);
        Ok(ts_max)
    }

    /// Greatest timestamp that was read so far.
    pub fn ts_max(&self) -> CommitTs {
        self.ts_max
    }

    /// How the log ended, once the last record was read.
    pub fn tail(&self) -> Option<LogEnd> {
        self.tail
    }

    /// The next record. XX001, with the place, where the log is damaged. Records are left out that nobody was told of and that
    /// may build upon others that are lost; which those are takes a first look at all blocks.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>> {
        if self.floors.is_none() {
            self.look_ahead()?;
        }
        loop {
            // A block may have no frames.
            while self.frame == self.block.end {
                if self.tail.is_some() || !self.next_block()? {
                    return Ok(None);
                }
            }
            let Some((ts, kind, frames)) = self.next_frame()? else { continue };
            let floor = self.floors.as_ref().and_then(|floors| floors.get(&self.life).copied()).unwrap_or(CommitTs(0));
            if ts <= self.after || ts > floor {
                continue;
            }
            let position = LogPosition::new(self.number(), self.block.start);
            return Ok(Some(Record { ts, kind, position, recovery: self, frames, next: 0, joined: Vec::new() }));
        }
    }

    /// Reads the rest, and opens the log for appending behind its end. `floor` answers with a timestamp such that every
    /// commit at or below it has been appended, as the caller can see (with acquire ordering) when it returns.
    pub fn into_log(mut self, floor: Floor) -> Result<Arc<Log>> {
        self.skip_to(CommitTs(u64::MAX));
        // None is wanted, so it does not matter which are to be left out.
        self.floors.get_or_insert_default();
        while self.next_record()?.is_some() {}
        let start = self.settle()?;
        Log::start(self.device, self.config, start, floor)
    }

    fn find_floors(mut self) -> Result<(HashMap<u64, CommitTs>, CommitTs)> {
        let (mut floors, mut ts_max) = (HashMap::new(), CommitTs(0));
        while self.next_block()? {
            let floor: &mut CommitTs = floors.entry(self.life).or_insert(CommitTs(0));
            *floor = self.floor.max(*floor);
            ts_max = ts_max.max(self.block_ts_max).max(self.floor);
        }
        Ok((floors, ts_max))
    }

    fn number(&self) -> u64 {
        self.segment.as_ref().map_or(0, |(number, _)| *number)
    }

    /// The segment, if it is begun.
    fn begun(&self, number: u64) -> Result<Option<(SegmentHeader, Arc<dyn LogSegment>)>> {
        let segment = self.device.open(number)?;
        let mut bytes = AlignedBuffer::zeroed(SEGMENT_HEADER_BYTES);
        let count = segment.read(0, bytes.bytes_mut())?;
        let name = self.device.segment_name(number);
        let Some(header) = SegmentHeader::read(&bytes.bytes()[..count], self.config.identity, &name)? else {
            return Ok(None);
        };
        if header.number != number {
            return Ok(None);
        }
        if header.term != 0 {
            return Err(of_terms(&format!("log segment \"{name}\"")));
        }
        let last = self.device.segment_bytes() - BLOCK_ALIGNMENT;
        if segment.read(last, &mut bytes.bytes_mut()[..BLOCK_ALIGNMENT])? < BLOCK_ALIGNMENT
            && header.segment_bytes == self.device.segment_bytes() as u64
        {
            return Err(Error::corrupted(format!("log segment \"{name}\" is cut off")));
        }
        if header.segment_bytes != self.device.segment_bytes() as u64 {
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("log segment \"{name}\" has {} bytes", header.segment_bytes),
            )
            .with_hint(format!("The configuration says {}: change it back.", self.device.segment_bytes())));
        }
        Ok(Some((header, segment)))
    }

    fn enter(&mut self, header: SegmentHeader, segment: Arc<dyn LogSegment>) {
        self.written.push(Written { number: header.number, ts_max: CommitTs(0) });
        self.durable = header.previous_end;
        self.segment = Some((header.number, segment));
        self.block = SEGMENT_HEADER_BYTES..SEGMENT_HEADER_BYTES;
        self.frame = SEGMENT_HEADER_BYTES;
    }

    /// Goes to the next block. False: the log ends here.
    fn next_block(&mut self) -> Result<bool> {
        let Some((number, segment)) = self.segment.clone() else {
            return self.finish();
        };
        let end = self.block.end.next_multiple_of(BLOCK_ALIGNMENT);
        for start in [end, end.next_multiple_of(PAGE_BYTES)] {
            if let Some((header, checksum)) = self.block_at(number, &*segment, start)?
                && header.chain == self.chain
            {
                if header.life != self.life {
                    // Their appenders are gone.
                    self.streams.clear();
                    self.life = header.life;
                    self.ts_before = self.ts_max;
                }
                self.chain = checksum;
                (self.durable, self.floor, self.block_ts_max) = (header.durable, header.floor, header.ts_max);
                self.block = start..header.end();
                self.frame = start + BLOCK_HEADER_BYTES;
                return Ok(true);
            }
        }
        let here = LogPosition::new(number, end);
        if self.numbers.binary_search(&(number + 1)).is_ok()
            && let Some((header, segment)) = self.begun(number + 1)?
            && header.chain == self.chain
            && header.previous_end == here
        {
            self.enter(header, segment);
            return self.next_block();
        }
        self.finish()
    }

    /// The block that starts at `start`, if its checksum is right and it names its own position.
    fn block_at(&mut self, number: u64, segment: &dyn LogSegment, start: usize) -> Result<Option<(BlockHeader, u64)>> {
        if start + BLOCK_HEADER_BYTES > self.device.segment_bytes() {
            return Ok(None);
        }
        let identity = self.config.identity;
        let Some(header) = BlockHeader::peek(self.window.get(number, segment, start, BLOCK_HEADER_BYTES)?) else {
            return Ok(None);
        };
        if header.position != LogPosition::new(number, start) || header.end() > self.device.segment_bytes() {
            return Ok(None);
        }
        let bytes = self.window.get(number, segment, start, BLOCK_HEADER_BYTES + header.frames_bytes)?;
        Ok(header.verify(bytes, identity).map(|checksum| (header, checksum)))
    }

    /// XX001: a segment that was begun is not.
    fn missing(&self, number: u64) -> Error {
        let name = self.device.segment_name(number);
        let what = match self.numbers.binary_search(&number) {
            Ok(_) => format!("log segment \"{name}\" has nothing of the log"),
            Err(_) => format!("log segment \"{name}\" is missing"),
        };
        Error::corrupted(what).with_detail(format!(
            "Transactions were committed there: the log goes from segment {} to segment {}.",
            self.note.first, self.note.begun
        ))
    }

    /// Decides what this end of the log is. Always false, or an error.
    fn finish(&mut self) -> Result<bool> {
        let end = self.segment.as_ref().map(|(number, _)| *number);
        if let Some(required) = self.note.required()
            && end.is_none_or(|end| end < self.note.begun)
        {
            // What is damaged rather than missing is told below, with its place.
            let next = end.map_or(required, |end| end + 1);
            if self.numbers.binary_search(&next).is_err() || self.begun(next)?.is_none() {
                return Err(self.missing(next));
            }
        }
        let Some((number, segment)) = self.segment.clone() else {
            // Nothing was ever written, unless a later segment says otherwise.
            let here = LogPosition::new(self.numbers.first().copied().unwrap_or(0), 0);
            for number in self.numbers.clone() {
                if self.begun(number)?.is_some() {
                    return Err(self.damaged(here, number, 0));
                }
            }
            self.tail = Some(LogEnd::Clean(here));
            return Ok(false);
        };
        let here = LogPosition::new(number, self.block.end.next_multiple_of(BLOCK_ALIGNMENT));
        self.look_for_newer(here, number, &*segment, here.offset())?;
        let later: Vec<u64> = self.numbers.iter().copied().filter(|later| *later > number).collect();
        for later in later {
            if self.begun(later)?.is_some() {
                return Err(self.damaged(here, later, 0));
            }
            if later == number + 1 {
                let segment = self.device.open(later)?;
                self.look_for_newer(here, later, &*segment, SEGMENT_HEADER_BYTES)?;
            }
        }
        let mut is_torn = false;
        for start in [here.offset(), here.offset().next_multiple_of(PAGE_BYTES)] {
            let bytes = self.window.get(number, &*segment, start, BLOCK_HEADER_BYTES)?;
            let begun =
                BlockHeader::peek(bytes).is_some_and(|header| header.position == LogPosition::new(number, start));
            is_torn |= begun;
        }
        self.tail = Some(if is_torn { LogEnd::Torn(here) } else { LogEnd::Clean(here) });
        Ok(false)
    }

    /// XX001 if a block from `start` on says that what is at `here` was durable once.
    fn look_for_newer(&mut self, here: LogPosition, number: u64, segment: &dyn LogSegment, start: usize) -> Result<()> {
        let mut start = start;
        while start + BLOCK_HEADER_BYTES <= self.device.segment_bytes() {
            let bytes = self.window.get(number, segment, start, PAGE_BYTES)?;
            if bytes.len() < BLOCK_HEADER_BYTES {
                break;
            }
            let lines = bytes.len() / BLOCK_ALIGNMENT;
            let found = (0..lines).find(|line| BlockHeader::peek(&bytes[line * BLOCK_ALIGNMENT..]).is_some());
            let Some(line) = found else {
                start += lines * BLOCK_ALIGNMENT;
                continue;
            };
            start += line * BLOCK_ALIGNMENT;
            if let Some((header, _)) = self.block_at(number, segment, start)?
                && header.durable > here
            {
                return Err(self.damaged(here, number, start));
            }
            start += BLOCK_ALIGNMENT;
        }
        Ok(())
    }

    fn damaged(&self, here: LogPosition, newer_number: u64, newer_offset: usize) -> Error {
        let (place, newer) = (self.device.segment_name(here.segment()), self.device.segment_name(newer_number));
        Error::corrupted(format!("the log is damaged at byte {} of segment \"{place}\"", here.offset())).with_detail(
            format!(
                "There is no valid record there, but byte {newer_offset} of segment \"{newer}\" was written after it was \
                 durable."
            ),
        )
    }

    /// Reads a frame. `None`: it ends no record.
    fn next_frame(&mut self) -> Result<Option<(CommitTs, RecordKind, Vec<Place>)>> {
        let number = self.number();
        let block = LogPosition::new(number, self.block.start);
        let Some((_, segment)) = self.segment.clone() else { return Ok(None) };
        let bytes = self.window.get(number, &*segment, self.block.start, self.block.len())?;
        let frame = Frame::read(bytes, self.frame - self.block.start, self.block.len()).ok_or_else(|| {
            Error::corrupted(format!(
                "the log is damaged at byte {} of segment \"{}\"",
                self.frame,
                self.device.segment_name(number)
            ))
            .with_detail("A block with the right checksum holds something that is no record.")
        })?;
        self.frame = self.block.start + frame.next;
        let flags = frame.header.flags;
        let place = Place {
            block,
            start: frame.payload_start as u32,
            len: frame.header.payload_bytes as u32,
            is_continued: flags & CONTINUED != 0,
        };
        if flags & ABANDONED != 0 {
            self.streams.remove(&frame.stream);
            return Ok(None);
        }
        if flags & PART != 0 {
            let stream = Stream { segment_first: number, parts: Vec::new() };
            self.streams.entry(frame.stream).or_insert(stream).parts.push(place);
            return Ok(None);
        }
        let ts = frame.header.ts;
        let (first, mut frames) = match flags & STREAM != 0 {
            true => self.streams.remove(&frame.stream).map_or((number, Vec::new()), |s| (s.segment_first, s.parts)),
            false => (number, Vec::new()),
        };
        frames.push(place);
        if ts <= self.ts_before {
            return Err(Error::corrupted(format!("the log has timestamp {ts} twice, or out of its order"))
                .with_detail(format!(
                    "At {block} a process committed at it, and one before had come to {}.",
                    self.ts_before
                )));
        }
        self.ts_max = self.ts_max.max(ts);
        for written in self.written.iter_mut().rev().take_while(|written| written.number >= first) {
            written.ts_max = written.ts_max.max(ts);
        }
        Ok(Some((ts, RecordKind(frame.header.kind), frames)))
    }

    /// The bytes of a frame that was read before.
    fn payload(&mut self, place: Place) -> Result<&[u8]> {
        let (number, offset) = (place.block.segment(), place.block.offset());
        let range = place.start as usize..(place.start + place.len) as usize;
        if number == self.number() && offset == self.block.start {
            let Some((_, segment)) = &self.segment else { return Ok(&[]) };
            return self.window.get(number, &**segment, offset, self.block.len()).map(|bytes| &bytes[range]);
        }
        let segment = self.device.open(number)?;
        let header = BlockHeader::peek(self.parts_window.get(number, &*segment, offset, BLOCK_HEADER_BYTES)?);
        let bytes = match header {
            Some(header) if header.position == place.block => {
                let bytes =
                    self.parts_window.get(number, &*segment, offset, BLOCK_HEADER_BYTES + header.frames_bytes)?;
                header.verify(bytes, self.config.identity).and_then(|_| bytes.get(range))
            }
            _ => None,
        };
        bytes.ok_or_else(|| Error::corrupted(format!("the log changed while it was read: {}", place.block)))
    }

    /// Makes what was read durable, and says where to go on.
    fn settle(&mut self) -> Result<Start> {
        let Some((number, segment)) = self.segment.take() else {
            let first = self.numbers.first().copied().unwrap_or(1);
            return Ok(Start::of_empty(self.prepared_from(first)?));
        };
        let end = self.block.end.next_multiple_of(BLOCK_ALIGNMENT);
        // The system may hold it and have failed to write it, for an earlier process: then another sync would not write it
        // either. What was durable when the last block was written needs nothing. All of an earlier segment was.
        let from = if self.durable.segment() == number { self.durable.offset() } else { 0 };
        let alignment = self.device.block_alignment();
        let (mut at, to) = (from / alignment * alignment, end.next_multiple_of(alignment));
        let mut step = AlignedBuffer::zeroed(1 << 20);
        while at < to {
            let len = step.len().min(to - at);
            let count = segment.read(at, &mut step.bytes_mut()[..len])?;
            if count < len {
                return Err(Error::corrupted(format!(
                    "log segment \"{}\" is cut off",
                    self.device.segment_name(number)
                )));
            }
            segment.write(at, &step.bytes()[..len])?;
            at += len;
        }
        segment.sync()?;
        Ok(Start {
            current: Some((number, segment)),
            offset: end.next_multiple_of(alignment),
            chain: self.chain,
            end: LogPosition::new(number, end),
            written: std::mem::take(&mut self.written),
            prepared: self.prepared_from(number + 1)?,
            ts_max: self.ts_max,
            term: 0,
            previous_term: 0,
            begins_after: CommitTs(0),
        })
    }

    /// Segments that are there from `first` on and were not begun. What follows a gap is removed.
    fn prepared_from(&self, first: u64) -> Result<Vec<u64>> {
        let mut prepared = Vec::new();
        for (number, expected) in self.numbers.iter().copied().filter(|number| *number >= first).zip(first..) {
            if number == expected {
                prepared.push(number);
            } else {
                self.device.remove(number)?;
            }
        }
        Ok(prepared)
    }
}
