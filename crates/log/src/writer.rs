//! The leader's end of the log: frames into blocks, blocks into segments.
//!
//! Frames gather in a buffer that mirrors the current segment from `buffer_start` on. At the end of a round the open block
//! is sealed and all is written and synced. Where room allows, the next block starts at a page of its own. Where not, it
//! starts in the same page, which is then written again with it: its first bytes as they are, so that a torn write leaves
//! them as they are.

use crate::channel::Receiver;
use crate::config::LogConfig;
use crate::device::{LogDevice, LogSegment};
use crate::file_device::AlignedBuffer;
use crate::format::{
    ABANDONED, BLOCK_ALIGNMENT, BLOCK_FRAMES_MAX, BLOCK_HEADER_BYTES, BlockHeader, DatabaseIdentity,
    FRAME_HEADER_WORDS, FrameHeader, LogPosition, MARK_BYTES, PAGE_BYTES, PART, SEGMENT_HEADER_BYTES, STREAM,
    SegmentHeader, mark_words,
};
use crate::notes::Notes;
use crate::recovery::Written;
use crate::room::{Room, frame_cost, lock, usable_bytes};
use crate::sync::{AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tidepool_base::{CommitTs, Error, Result, crash_point};

/// Where writing goes on.
#[derive(Debug)]
pub(crate) struct Start {
    pub current: Option<(u64, Arc<dyn LogSegment>)>,
    /// Of the next block.
    pub offset: usize,
    pub chain: u64,
    /// Where the last block ended. All before is durable.
    pub end: LogPosition,
    /// Segments that are begun, the current one included.
    pub written: Vec<Written>,
    pub prepared: Vec<u64>,
    pub ts_max: CommitTs,
    /// In which is written from here on, and in which the last block is.
    pub term: u64,
    pub previous_term: u64,
    /// Commits up to this one were there before the log. Of one that goes on: 0.
    pub begins_after: CommitTs,
}

impl Start {
    /// Of a log in which nothing was ever written.
    pub fn of_empty(prepared: Vec<u64>) -> Start {
        Start {
            current: None,
            offset: 0,
            chain: 0,
            end: LogPosition::default(),
            written: Vec::new(),
            prepared,
            ts_max: CommitTs(0),
            term: 0,
            previous_term: 0,
            begins_after: CommitTs(0),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Writer {
    device: Arc<dyn LogDevice>,
    notes: Arc<Notes>,
    identity: DatabaseIdentity,
    block_bytes_max: usize,
    clock: fn() -> u64,
    /// The last mark.
    marked: u64,
    /// Appenders' buffers.
    pub receivers: Vec<Receiver>,

    // Where it writes.
    current: Option<(u64, Arc<dyn LogSegment>)>,
    /// Byte offset in the segment of the next block, or of the open one.
    offset: usize,
    chain: u64,
    life: u64,
    term: u64,
    /// Of the segment before the next.
    previous_term: u64,
    /// Of the next segment: not 0 before the log's first.
    begins_after: CommitTs,
    /// All before is durable.
    durable: LogPosition,
    /// Of records with bytes in the current segment.
    segment_ts_max: CommitTs,
    /// The greatest that a block of this life names.
    floor: CommitTs,
    /// Of all records of this life.
    ts_max: CommitTs,

    // What is not written yet.
    buffer: AlignedBuffer,
    buffer_start: usize,
    filled: usize,
    is_open: bool,
    block_ts_max: CommitTs,
    /// Where the last block ended.
    end: LogPosition,
    is_unwritten: bool,
    is_unsynced: bool,
    /// The current segment has a block, for good.
    is_begun: bool,

    // What the books of room are to be told.
    cost: u64,
    /// The first segment of each stream that has not ended.
    streams: HashMap<u64, u64>,
    /// Records that ended and started in an earlier segment, with that.
    ended: Vec<(u64, CommitTs)>,
}

impl Writer {
    pub fn new(notes: Arc<Notes>, device: Arc<dyn LogDevice>, config: &LogConfig, life: u64, start: Start) -> Writer {
        let ts_max = start.written.last().map_or(CommitTs(0), |written| written.ts_max);
        // A page before the block, the block, a page behind it.
        let buffer = AlignedBuffer::zeroed(
            PAGE_BYTES + (BLOCK_HEADER_BYTES + BLOCK_FRAMES_MAX).next_multiple_of(PAGE_BYTES) + PAGE_BYTES,
        );
        Writer {
            device,
            notes,
            identity: config.identity,
            block_bytes_max: config.block_bytes_max.min(BLOCK_FRAMES_MAX - MARK_BYTES),
            clock: config.clock,
            marked: 0,
            receivers: Vec::new(),
            buffer_start: start.offset,
            is_begun: start.current.is_some(),
            current: start.current,
            offset: start.offset,
            chain: start.chain,
            life,
            term: start.term,
            previous_term: start.previous_term,
            begins_after: start.begins_after,
            durable: start.end,
            end: start.end,
            segment_ts_max: ts_max,
            floor: CommitTs(0),
            ts_max: CommitTs(0),
            buffer,
            filled: 0,
            is_open: false,
            block_ts_max: CommitTs(0),
            is_unwritten: false,
            is_unsynced: false,
            cost: 0,
            streams: HashMap::new(),
            ended: Vec::new(),
        }
    }

    /// Where the last block ended that is durable.
    pub fn durable_end(&self) -> LogPosition {
        self.durable
    }

    /// Writes out all that was appended, and makes it durable. `added`: buffers that no leader has seen yet. `floor` answers
    /// with a timestamp such that every commit at or below it has been appended. Returns the number of buffers that held
    /// something, and the timestamp up to which everything is durable.
    pub fn drain(
        &mut self,
        added: &Mutex<Vec<Receiver>>,
        room: &Mutex<Room>,
        floor: &dyn Fn() -> CommitTs,
    ) -> Result<(usize, CommitTs)> {
        let mut receivers = std::mem::take(&mut self.receivers);
        let outcome = self.drain_all(&mut receivers, added, room, floor);
        receivers.retain_mut(|receiver| !receiver.is_done());
        self.receivers = receivers;
        outcome
    }

    fn drain_all(
        &mut self,
        receivers: &mut Vec<Receiver>,
        added: &Mutex<Vec<Receiver>>,
        room: &Mutex<Room>,
        floor: &dyn Fn() -> CommitTs,
    ) -> Result<(usize, CommitTs)> {
        receivers.append(&mut lock(added));
        let participants = self.drain_buffers(receivers, room)?;
        // What is in the buffers after this answer has all that it speaks of: so they are looked at once more. Asked before
        // the first look, it would leave out most of what that found.
        let floor = floor();
        receivers.append(&mut lock(added));
        self.drain_buffers(receivers, room)?;
        let durable = self.finish(room, floor)?;
        Ok((participants, durable))
    }

    fn drain_buffers(&mut self, receivers: &mut [Receiver], room: &Mutex<Room>) -> Result<usize> {
        let mut participants = 0;
        for receiver in receivers.iter_mut() {
            let mut is_empty = true;
            loop {
                let run = receiver.peek();
                if run.is_empty() {
                    break;
                }
                is_empty = false;
                let words = run.len();
                self.put_run(run, room)?;
                receiver.advance(words);
            }
            if !is_empty {
                participants += 1;
                receiver.report();
            }
        }
        Ok(participants)
    }

    fn put_run(&mut self, run: &[AtomicU64], room: &Mutex<Room>) -> Result<()> {
        let mut rest = run;
        while let [first, second, ..] = rest {
            let header = FrameHeader::of([first.load(Ordering::Relaxed), second.load(Ordering::Relaxed)]);
            let (frame, next) = rest.split_at(header.frame_words());
            self.put(&header, frame, room)?;
            rest = next;
        }
        Ok(())
    }

    fn put(&mut self, header: &FrameHeader, frame: &[AtomicU64], room: &Mutex<Room>) -> Result<()> {
        let bytes = frame.len() * 8;
        if self.is_open && self.block_bytes() + bytes > BLOCK_HEADER_BYTES + self.block_bytes_max {
            self.close(self.floor);
            self.write_out()?;
        }
        let fits = match (&self.current, self.is_open) {
            (None, _) => false,
            (_, true) => self.offset + self.block_bytes() + bytes + MARK_BYTES <= self.device.segment_bytes(),
            (_, false) => self.offset + BLOCK_HEADER_BYTES + bytes + MARK_BYTES <= self.device.segment_bytes(),
        };
        if !fits {
            self.begin_segment(room)?;
        }
        self.open();
        let target = &mut self.buffer.bytes_mut()[self.filled..self.filled + bytes];
        let (slots, _) = target.as_chunks_mut::<8>();
        for (slot, word) in slots.iter_mut().zip(frame) {
            *slot = word.load(Ordering::Relaxed).to_le_bytes();
        }
        self.filled += bytes;
        self.cost += frame_cost(frame.len());
        self.note(header, frame);
        Ok(())
    }

    /// Begins a block where the last one ended, if none is open.
    fn open(&mut self) {
        if !self.is_open {
            self.is_open = true;
            self.block_ts_max = CommitTs(0);
            self.filled = self.offset - self.buffer_start + BLOCK_HEADER_BYTES;
        }
    }

    /// Keeps track of timestamps and streams.
    fn note(&mut self, header: &FrameHeader, frame: &[AtomicU64]) {
        let number = self.current.as_ref().map_or(0, |(number, _)| *number);
        if header.flags & STREAM != 0 {
            let stream = frame[FRAME_HEADER_WORDS].load(Ordering::Relaxed);
            if header.flags & PART != 0 {
                self.streams.entry(stream).or_insert(number);
            } else if let Some(first) = self.streams.remove(&stream)
                && header.flags & ABANDONED == 0
                && first < number
            {
                self.ended.push((first, header.ts));
            }
        }
        if header.flags & (PART | ABANDONED) == 0 {
            self.block_ts_max = self.block_ts_max.max(header.ts);
            self.segment_ts_max = self.segment_ts_max.max(header.ts);
            self.ts_max = self.ts_max.max(header.ts);
        }
    }

    /// Of the open block.
    fn block_bytes(&self) -> usize {
        self.buffer_start + self.filled - self.offset
    }

    /// Says in the open block, which has room for it, when it was written.
    fn mark(&mut self) {
        if !self.is_open {
            return;
        }
        // A clock that is set back stands still here.
        self.marked = self.marked.max((self.clock)());
        let target = &mut self.buffer.bytes_mut()[self.filled..self.filled + MARK_BYTES];
        let (slots, _) = target.as_chunks_mut::<8>();
        for (slot, word) in slots.iter_mut().zip(mark_words(self.marked)) {
            *slot = word.to_le_bytes();
        }
        self.filled += MARK_BYTES;
    }

    /// Seals the open block, with this floor.
    fn close(&mut self, floor: CommitTs) {
        let Some((number, _)) = self.current else { return };
        if !self.is_open {
            return;
        }
        self.is_open = false;
        self.floor = floor;
        let header = BlockHeader {
            frames_bytes: self.block_bytes() - BLOCK_HEADER_BYTES,
            position: LogPosition::new(number, self.offset),
            chain: self.chain,
            life: self.life,
            durable: self.durable,
            ts_max: self.block_ts_max,
            floor,
        };
        let start = self.offset - self.buffer_start;
        self.chain = header.seal(&mut self.buffer.bytes_mut()[start..self.filled], self.identity);
        let end = self.filled.next_multiple_of(BLOCK_ALIGNMENT);
        self.buffer.bytes_mut()[self.filled..end].fill(0);
        self.filled = end;
        self.offset = self.buffer_start + end;
        self.end = LogPosition::new(number, self.offset);
        self.is_unwritten = true;
    }

    /// Writes what was sealed. The page that it ends in stays in the buffer.
    fn write_out(&mut self) -> Result<()> {
        let Some((_, segment)) = &self.current else { return Ok(()) };
        if !self.is_unwritten {
            return Ok(());
        }
        let alignment = self.device.block_alignment().max(self.device.write_alignment());
        let end = self.filled.next_multiple_of(alignment);
        self.buffer.bytes_mut()[self.filled..end].fill(0);
        crash_point("log.write");
        // From here on until it is synced nobody knows what of it is there.
        self.is_unsynced = true;
        segment.write(self.buffer_start, &self.buffer.bytes()[..end])?;
        crash_point("log.written");
        self.is_unwritten = false;
        let kept = self.filled / alignment * alignment;
        self.buffer.bytes_mut().copy_within(kept..end, 0);
        self.buffer_start += kept;
        self.filled -= kept;
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        if let Some((number, segment)) = &self.current
            && self.is_unsynced
        {
            segment.sync()?;
            crash_point("log.synced");
            // Once a segment: from now on it is missed. Nobody was told of anything in it.
            self.notes.begun(*number)?;
            self.is_unsynced = false;
            self.is_begun = true;
            self.durable = self.end;
        }
        Ok(())
    }

    /// Ends this segment, durably, and goes on in the next.
    fn begin_segment(&mut self, room: &Mutex<Room>) -> Result<()> {
        self.close(self.floor);
        self.write_out()?;
        self.sync()?;
        let previous_end = self.end;
        {
            let mut room = lock(room);
            self.tell(&mut room);
            if let Some((number, _)) = self.current.take() {
                room.written.push_back(Written { number, ts_max: self.segment_ts_max });
            }
            let next = room.prepared.pop_front();
            room.number_current = next.as_ref().map_or(0, |(number, _)| *number);
            room.current_bytes = usable_bytes(&*self.device, SEGMENT_HEADER_BYTES);
            room.current_is_begun = false;
            self.is_begun = false;
            self.current = next;
        }
        let Some((number, _)) = &self.current else {
            return Err(Error::internal("the log has less room than was promised"));
        };
        let header = SegmentHeader {
            segment_bytes: self.device.segment_bytes() as u64,
            identity: self.identity,
            number: *number,
            chain: self.chain,
            previous_end,
            term: self.term,
            previous_term: std::mem::replace(&mut self.previous_term, self.term),
            begins_after: std::mem::replace(&mut self.begins_after, CommitTs(0)),
        };
        header.write(self.buffer.bytes_mut());
        self.buffer_start = 0;
        self.filled = SEGMENT_HEADER_BYTES;
        self.offset = SEGMENT_HEADER_BYTES;
        self.segment_ts_max = CommitTs(0);
        crash_point("log.segment.begun");
        Ok(())
    }

    /// Ends a round. Returns the timestamp up to which everything is durable.
    fn finish(&mut self, room: &Mutex<Room>, floor: CommitTs) -> Result<CommitTs> {
        let floor = floor.max(self.floor);
        // Records that were written above the floor of their time want a later one to be known, in a block of its own if
        // there is nothing else to write.
        if self.ts_max > self.floor && floor > self.floor && !self.is_open {
            let cost = frame_cost(0);
            if lock(room).lease(&*self.device, cost, 0).is_none() {
                return Ok(self.floor);
            }
            self.cost += cost;
            if self.offset + BLOCK_HEADER_BYTES + MARK_BYTES > self.device.segment_bytes() {
                self.begin_segment(room)?;
            }
            self.open();
        }
        self.mark();
        self.close(floor);
        let alignment = self.device.block_alignment();
        let page = alignment as u64;
        // Skipping to the next page takes room that others may need more.
        let skips = self.is_unwritten
            && !self.offset.is_multiple_of(alignment)
            && lock(room).lease(&*self.device, page, 0).is_some();
        self.write_out()?;
        self.sync()?;
        if skips {
            self.cost += page;
            self.offset = self.offset.next_multiple_of(alignment);
            self.buffer_start = self.offset;
            self.filled = 0;
        }
        self.tell(&mut lock(room));
        Ok(floor)
    }

    /// Brings the books of room up to date.
    fn tell(&mut self, room: &mut Room) {
        if self.current.is_some() {
            room.current_bytes = usable_bytes(&*self.device, self.offset);
            room.current_is_begun = self.is_begun;
        }
        room.leased_bytes -= std::mem::take(&mut self.cost);
        room.pinned_from = self.streams.values().copied().min();
        for (first, ts) in self.ended.drain(..) {
            for written in room.written.iter_mut().rev().take_while(|written| written.number >= first) {
                written.ts_max = written.ts_max.max(ts);
            }
        }
    }
}
