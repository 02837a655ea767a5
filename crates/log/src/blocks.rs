//! The blocks of a log that another process may be writing, and that may go over several terms.
//!
//! [`Cursor`] goes from one whole block to the next. It remembers nothing of a place where no block was whole yet, so that
//! it reads there anew each time; checksum and chain say whether a block is there. [`Blocks`] gives blocks out that are part
//! of the log for good:
//!
//! * where the term is still the writer's *after* the block was seen whole: each host that ends the term reads it later;
//! * before the seal, where the term was ended.
//!
//! A segment is entered when the first block in it is whole. So all that read a term to its end come to the same position.

use crate::device::LogSegment;
use crate::format::{
    BLOCK_ALIGNMENT, BLOCK_HEADER_BYTES, BlockHeader, DatabaseIdentity, LogPosition, PAGE_BYTES, SEGMENT_HEADER_BYTES,
    SegmentHeader,
};
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState};
use tidepool_pool::layout::SEGMENTS;

/// How many looks of a reader that waits in vain look in all places.
const LOOKS_EVERYWHERE: u32 = 64;

/// What is read at a time, and so what is held in memory of it: more than the largest block.
const WINDOW_BYTES: usize = 4 << 20;

/// What is looked through at a time for a block behind the end: of whole lines, and less than a cache.
const SCANNED_BYTES: usize = 64 << 10;

/// What is known of a term, by a look at it after blocks of it were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// What was there before the look is part of the term for good.
    Settled,
    /// The term is over, and it is not known yet where it ended.
    Ending,
    /// It ended here. `None`: before its first block.
    Ended(Option<LogPosition>),
}

/// Where the segments of a log are, as a reader finds them.
pub trait Source: Send + Debug {
    /// What errors call the log.
    fn name(&self) -> String;

    fn segment_bytes(&self) -> usize;

    /// Segment `number` of `term`, if there is one.
    fn segment(&self, term: u64, number: u64) -> Result<Option<Arc<dyn LogSegment>>>;

    /// Which the next segment of `term` after `number` may be, in the order in which they are to be tried. `everywhere`: also
    /// behind places that are free, where a late entry of another term may have been.
    fn next_numbers(&self, term: u64, number: u64, everywhere: bool) -> Result<Vec<u64>>;

    /// The terms that may follow `term`, with their first segments, in the order in which they are to be tried.
    fn next_terms(&self, term: u64) -> Result<Vec<(u64, u64)>>;

    /// What is known of `term`. Whatever of it was read before the call was read before the look. `near`: the segment that
    /// was read last.
    fn verdict(&self, term: u64, near: u64) -> Result<Verdict>;

    /// 55000: the log does not go back to `term` any more, or not that far into it.
    fn too_old(&self, term: u64) -> Error;
}

/// A place between two blocks.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    identity: DatabaseIdentity,
    pub term: u64,
    pub number: u64,
    segment: Option<Arc<dyn LogSegment>>,
    /// Bytes in the segment before it.
    offset: usize,
    /// Checksum of the block before.
    pub chain: u64,
    /// A first segment is taken as it is found: what it names as its chain is that.
    is_anywhere: bool,
    /// Looks for the next segment in all places.
    pub looks_everywhere: bool,
}

/// A block that was read into a buffer.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub term: u64,
    pub number: u64,
    pub header: BlockHeader,
    /// Header and frames, in the buffer.
    pub range: Range<usize>,
    /// The header of the segment, where the block is its first.
    pub begins: Option<SegmentHeader>,
}

impl Cursor {
    /// Before the first block of the log.
    pub fn at_start(identity: DatabaseIdentity) -> Cursor {
        let (segment, is_anywhere, looks_everywhere) = (None, false, false);
        Cursor { identity, term: 0, number: 0, segment, offset: 0, chain: 0, is_anywhere, looks_everywhere }
    }

    /// Before a segment, whatever was before it.
    pub fn before_segment(identity: DatabaseIdentity, term: u64, number: u64) -> Cursor {
        Cursor { term, number, is_anywhere: true, ..Cursor::at_start(identity) }
    }

    /// A block of the log was read.
    pub fn is_within(&self) -> bool {
        self.segment.is_some()
    }

    /// The same segment, opened anew.
    pub fn set_segment(&mut self, segment: Arc<dyn LogSegment>) {
        self.segment = Some(segment);
    }

    /// Where the last block ended.
    pub fn position(&self) -> LogPosition {
        match self.segment {
            Some(_) => LogPosition::new(self.number, self.offset),
            None => LogPosition::default(),
        }
    }

    /// Reads the next whole block of the term behind `buffer`'s end, if there is one and it ends at `limit` or before.
    pub fn next(
        &mut self,
        source: &dyn Source,
        limit: Option<LogPosition>,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<Block>> {
        if let Some(segment) = self.segment.clone() {
            let next_page = self.offset.next_multiple_of(PAGE_BYTES);
            for start in [self.offset, next_page].into_iter().take(if next_page == self.offset { 1 } else { 2 }) {
                let found = self.block_at(source, &*segment, self.number, start, self.chain, limit, buffer)?;
                if let Some((header, range, chain)) = found {
                    self.offset = header.end().next_multiple_of(BLOCK_ALIGNMENT);
                    self.chain = chain;
                    let (term, number) = (self.term, self.number);
                    return Ok(Some(Block { term, number, header, range, begins: None }));
                }
            }
            let everywhere = self.looks_everywhere || limit.is_some();
            for number in source.next_numbers(self.term, self.number, everywhere)? {
                if let Some(block) = self.enter(source, self.term, number, limit, buffer)? {
                    return Ok(Some(block));
                }
            }
            return Ok(None);
        }
        if self.is_anywhere {
            return self.enter(source, self.term, self.number, limit, buffer);
        }
        Ok(None)
    }

    /// Goes to the first block of the term after this one, which has ended here.
    pub fn next_term(&mut self, source: &dyn Source, buffer: &mut Vec<u8>) -> Result<Option<Block>> {
        for (term, number) in source.next_terms(self.term)? {
            // Its end is not known: the caller asks before it makes anything of the block.
            if let Some(block) = self.enter(source, term, number, None, buffer)? {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }

    /// Goes to the first block of a segment that follows this place.
    fn enter(
        &mut self,
        source: &dyn Source,
        term: u64,
        number: u64,
        limit: Option<LogPosition>,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<Block>> {
        let Some(segment) = source.segment(term, number)? else { return Ok(None) };
        let Some(header) = read_header(source, &*segment, self.identity, term, number)? else { return Ok(None) };
        let follows =
            header.chain == self.chain && header.previous_end == self.position() && header.previous_term == self.term;
        if !follows && !self.is_anywhere {
            return Ok(None);
        }
        let found = self.block_at(source, &*segment, number, SEGMENT_HEADER_BYTES, header.chain, limit, buffer)?;
        let Some((block, range, chain)) = found else { return Ok(None) };
        *self = Cursor {
            identity: self.identity,
            term,
            number,
            segment: Some(segment),
            offset: block.end().next_multiple_of(BLOCK_ALIGNMENT),
            chain,
            is_anywhere: false,
            looks_everywhere: self.looks_everywhere,
        };
        Ok(Some(Block { term, number, header: block, range, begins: Some(header) }))
    }

    /// Reads what may be a block at `start`.
    #[allow(clippy::too_many_arguments, reason = "where it is to be, and what it follows")]
    fn block_at(
        &self,
        source: &dyn Source,
        segment: &dyn LogSegment,
        number: u64,
        start: usize,
        chain: u64,
        limit: Option<LogPosition>,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<(BlockHeader, Range<usize>, u64)>> {
        if start + BLOCK_HEADER_BYTES > source.segment_bytes() {
            return Ok(None);
        }
        let mut bytes = [0; BLOCK_HEADER_BYTES];
        if segment.read(start, &mut bytes)? < BLOCK_HEADER_BYTES {
            return Ok(None);
        }
        let Some(header) = BlockHeader::peek(&bytes) else { return Ok(None) };
        let is_here = header.position == LogPosition::new(number, start)
            && header.end() <= source.segment_bytes()
            && header.chain == chain
            && header.frames_bytes.is_multiple_of(8);
        let end = || LogPosition::new(number, header.end().next_multiple_of(BLOCK_ALIGNMENT));
        if !is_here || limit.is_some_and(|limit| end() > limit) {
            return Ok(None);
        }
        let at = buffer.len();
        let range = at..at + BLOCK_HEADER_BYTES + header.frames_bytes;
        buffer.resize(range.end, 0);
        let count = segment.read(start, &mut buffer[range.clone()])?;
        // What was read first may have been half written: the header is taken from what the checksum covers.
        let whole = (count == range.len()).then(|| &buffer[range.clone()]);
        let checksum = whole.and_then(|whole| BlockHeader::peek(whole)?.verify(whole, self.identity));
        match checksum.filter(|_| buffer[range.clone()].starts_with(&bytes)) {
            Some(checksum) => Ok(Some((header, range, checksum))),
            None => {
                buffer.truncate(at);
                Ok(None)
            }
        }
    }

    /// Goes on to the end of the term, or to `limit`.
    pub fn run(&mut self, source: &dyn Source, limit: Option<LogPosition>) -> Result<()> {
        let mut buffer = Vec::new();
        while self.next(source, limit, &mut buffer)?.is_some() {
            buffer.clear();
        }
        Ok(())
    }

    /// As `run`, over blocks whose writer may not have come to making them durable: they are, before anything rests on them.
    pub fn run_and_persist(&mut self, source: &dyn Source) -> Result<()> {
        self.persist_to_here(0)?;
        let mut buffer = Vec::new();
        while let Some(block) = self.next(source, None, &mut buffer)? {
            self.persist_to_here(if block.begins.is_some() { 0 } else { block.header.position.offset() })?;
            buffer.clear();
        }
        Ok(())
    }

    /// Of the segment, from `start` on.
    fn persist_to_here(&self, start: usize) -> Result<()> {
        match &self.segment {
            Some(segment) => segment.persist(start, self.offset - start),
            None => Ok(()),
        }
    }

    /// XX001 if something behind this place says that a block here was durable once. A host that has lost the term does not
    /// write so: its block is not durable before it has looked.
    pub fn check_end(&self, source: &dyn Source) -> Result<()> {
        let Some(segment) = self.segment.clone() else { return Ok(()) };
        self.look_for_newer(source, &*segment, self.term, self.number, self.offset)?;
        for number in source.next_numbers(self.term, self.number, true)? {
            if let Some(segment) = source.segment(self.term, number)? {
                self.look_for_newer(source, &*segment, self.term, number, SEGMENT_HEADER_BYTES)?;
            }
        }
        Ok(())
    }

    /// XX001 if a block of `term` in a segment, or in one in its place, was written after the log behind this place was
    /// durable.
    pub fn look_for_newer(
        &self,
        source: &dyn Source,
        segment: &dyn LogSegment,
        term: u64,
        number: u64,
        from: usize,
    ) -> Result<()> {
        let (here, end) = (self.position(), source.segment_bytes());
        // A piece at a time: a successor looks through some segments before it is primary, and memory that it had to take for
        // all of one would cost more than the look.
        let mut piece = vec![0; SCANNED_BYTES.min(end.saturating_sub(from))];
        let mut block = Vec::new();
        for start in (from..end).step_by(SCANNED_BYTES) {
            let count = segment.read(start, &mut piece[..SCANNED_BYTES.min(end - start)])?;
            for line in (0..count.saturating_sub(BLOCK_HEADER_BYTES - 1)).step_by(BLOCK_ALIGNMENT) {
                let Some(header) = BlockHeader::peek(&piece[line..count]) else { continue };
                let at = start + line;
                let is_its = header.position.offset() == at
                    && header.position.segment() % SEGMENTS as u64 == number % SEGMENTS as u64;
                if !is_its || header.durable <= here {
                    continue;
                }
                let bytes = BLOCK_HEADER_BYTES + header.frames_bytes.next_multiple_of(8);
                block.resize(bytes.min(end - at), 0);
                let count = segment.read(at, &mut block)?;
                if header.verify(&block[..count], self.identity).is_some() {
                    return Err(damaged(source, term, here).with_detail(format!(
                        "There is no valid record there, but {} was written after it was durable.",
                        header.position
                    )));
                }
            }
        }
        Ok(())
    }
}

pub(crate) fn damaged(source: &dyn Source, term: u64, here: LogPosition) -> Error {
    Error::corrupted(format!(
        "the log in {} is damaged at byte {} of segment {} of term {term}",
        source.name(),
        here.offset(),
        here.segment()
    ))
}

/// The header of a segment, whatever it is. What was another database's has none.
pub(crate) fn header_of(segment: &dyn LogSegment, identity: DatabaseIdentity) -> Result<Option<SegmentHeader>> {
    let mut bytes = [0; 2 * BLOCK_ALIGNMENT];
    let count = segment.read(0, &mut bytes)?;
    match SegmentHeader::read(&bytes[..count], identity, "of a pool") {
        Err(error) if error.code() == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE => Ok(None),
        read => read,
    }
}

/// The header of a segment, if it is begun under this number in this term.
pub(crate) fn read_header(
    source: &dyn Source,
    segment: &dyn LogSegment,
    identity: DatabaseIdentity,
    term: u64,
    number: u64,
) -> Result<Option<SegmentHeader>> {
    let header = header_of(segment, identity)?;
    Ok(header.filter(|header| {
        header.number == number && header.term == term && header.segment_bytes == source.segment_bytes() as u64
    }))
}

/// What a reader has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// There are blocks.
    Blocks,
    /// There is nothing new.
    Nothing,
    /// The term ended here, and no later one has begun.
    AtSeal,
}

/// Blocks that are part of the log for good, some at a time.
#[derive(Debug)]
pub(crate) struct Blocks<S> {
    pub source: S,
    pub cursor: Cursor,
    /// Where the term ends, once that is known.
    limit: Option<LogPosition>,
    /// Bytes of the blocks.
    pub buffer: Vec<u8>,
    pub blocks: Vec<Block>,
    window_bytes: usize,
    /// Looks in vain, one after the other.
    idle: u32,
}

impl<S: Source> Blocks<S> {
    pub fn new(source: S, cursor: Cursor) -> Blocks<S> {
        let (buffer, blocks, window_bytes) = (Vec::new(), Vec::new(), WINDOW_BYTES);
        Blocks { source, cursor, limit: None, buffer, blocks, window_bytes, idle: 0 }
    }

    /// Reads again from a place before.
    pub fn restart(&mut self, cursor: Cursor) {
        self.undo(cursor);
        self.limit = None;
    }

    #[cfg(test)]
    pub fn set_window(&mut self, bytes: usize) {
        self.window_bytes = bytes;
    }

    /// Reads on: as many blocks as there are, up to a bound. The ones of the last call are gone.
    pub fn read(&mut self) -> Result<Came> {
        loop {
            self.buffer.clear();
            self.blocks.clear();
            let before = self.cursor.clone();
            self.cursor.looks_everywhere = self.idle % LOOKS_EVERYWHERE == LOOKS_EVERYWHERE - 1;
            self.fill()?;
            self.idle = if self.blocks.is_empty() { self.idle.wrapping_add(1) } else { 0 };
            let (term, number) = (self.cursor.term, self.cursor.number);
            if self.limit.is_some() {
                if !self.blocks.is_empty() {
                    return Ok(Came::Blocks);
                }
                if Some(self.cursor.position()) != self.limit {
                    if self.source.segment(term, number)?.is_none() {
                        return Err(self.source.too_old(term));
                    }
                    return Err(damaged(&self.source, term, self.cursor.position())
                        .with_detail("The term ended behind this place, and there is no valid record."));
                }
                return self.go_on();
            }
            if !self.cursor.is_within() && term == 0 {
                // Nothing was ever written that is known of.
                return self.go_on();
            }
            // After the blocks were seen.
            match self.source.verdict(term, number)? {
                Verdict::Settled if self.blocks.is_empty() => return self.check_place().map(|()| Came::Nothing),
                Verdict::Settled => return Ok(Came::Blocks),
                Verdict::Ending => {
                    self.undo(before);
                    return Ok(Came::Nothing);
                }
                Verdict::Ended(end) => {
                    self.undo(before);
                    if !self.cursor.is_within() && end.is_none_or(|end| end.segment() < number) {
                        return Err(self.no_block());
                    }
                    // Of a term without a block, nothing was read before.
                    self.limit = Some(end.unwrap_or(self.cursor.position()));
                }
            }
        }
    }

    /// There is nothing new at this place of a term that goes on. 55000 where the segment went from under the reader.
    fn check_place(&self) -> Result<()> {
        let Cursor { term, number, .. } = self.cursor;
        match self.source.segment(term, number)? {
            None => Err(self.source.too_old(term)),
            // A segment that a checkpoint names has a block.
            Some(_) if !self.cursor.is_within() => Err(self.no_block()),
            Some(_) => Ok(()),
        }
    }

    fn no_block(&self) -> Error {
        let Cursor { term, number, .. } = self.cursor;
        damaged(&self.source, term, LogPosition::new(number, SEGMENT_HEADER_BYTES))
            .with_detail("A checkpoint says that the log is needed from there, and there is no valid record.")
    }

    fn undo(&mut self, before: Cursor) {
        self.cursor = before;
        self.buffer.clear();
        self.blocks.clear();
    }

    fn fill(&mut self) -> Result<()> {
        while self.buffer.len() < self.window_bytes
            && let Some(block) = self.cursor.next(&self.source, self.limit, &mut self.buffer)?
        {
            self.blocks.push(block);
        }
        Ok(())
    }

    /// The term has ended here: on to the next.
    fn go_on(&mut self) -> Result<Came> {
        let before = self.cursor.clone();
        let at_end = if self.limit.is_some() { Came::AtSeal } else { Came::Nothing };
        if self.cursor.next_term(&self.source, &mut self.buffer)?.is_none() {
            return Ok(at_end);
        }
        // The block was whole before this look. It is read again with those that follow it, by what is known then.
        let (term, number) = (self.cursor.term, self.cursor.number);
        let verdict = self.source.verdict(term, number)?;
        self.undo(before);
        let limit = match verdict {
            Verdict::Settled => None,
            Verdict::Ending | Verdict::Ended(None) => return Ok(Came::Nothing),
            Verdict::Ended(end) => end,
        };
        let Some(first) = self.cursor.next_term(&self.source, &mut self.buffer)? else { return Ok(at_end) };
        if first.term != term {
            return Err(Error::internal("the log's terms changed while it was read"));
        }
        self.limit = limit;
        self.blocks.push(first);
        Ok(Came::Blocks)
    }
}
