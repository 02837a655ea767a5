//! The log in use: what appends, waits, flushes and recycles.

use crate::channel::{CHUNK_WORDS, Receiver, Sender, channel};
use crate::config::LogConfig;
use crate::device::LogDevice;
use crate::format::{
    ABANDONED, CONTINUED, FRAME_HEADER_WORDS, FRAME_PAYLOAD_MAX, FrameHeader, LogPosition, PART, SEGMENT_HEADER_BYTES,
    STREAM, random_bytes,
};
use crate::group::Group;
use crate::notes::Notes;
use crate::recovery::Recovery;
use crate::room::{Room, frame_cost, lock, usable_bytes};
use crate::writer::{Start, Writer};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use tidepool_base::{ByteSize, CommitTs, Error, Result, SqlState, crash_point};

/// What a record is to those who write and read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordKind(pub u8);

impl RecordKind {
    /// A reader that does not know the kind passes over the record. Any other kind that it does not know ends its reading.
    pub fn may_be_skipped(self) -> bool {
        self.0 >= 128
    }
}

/// Answers with a timestamp such that every commit at or below it has been appended. What those appends did is visible to
/// whoever was answered (acquire).
pub type Floor = Box<dyn Fn() -> CommitTs + Send + Sync>;

/// Frames of a large payload that are sent at once, when it is spilled.
const SPILL_STEP_BYTES: usize = 1 << 20;

/// Room that an appender takes at a time, so that the books of room are no business of a commit's.
const LEASE_BYTES: u64 = 256 << 10;

/// How often a leader looks whether the floor has come to what it waits for.
const FLOOR_LOOKS: u32 = 100;

/// How often a thread that waits for room looks whether it is to give up.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(20);

const _: () = assert!(FRAME_PAYLOAD_MAX.div_ceil(8) + FRAME_HEADER_WORDS < CHUNK_WORDS / 2);

/// A log that is open. See the crate's documentation.
pub struct Log {
    device: Arc<dyn LogDevice>,
    config: LogConfig,
    floor: Floor,
    group: Group,
    /// Taken by the leader of a round, for all of it.
    writer: Mutex<Writer>,
    notes: Arc<Notes>,
    /// Buffers that no leader has seen yet.
    receivers: Mutex<Vec<Receiver>>,
    appender_next: AtomicU32,
    /// Buffers that held something in the last round.
    participants: AtomicUsize,
    room: Mutex<Room>,
    /// Room was made.
    room_made: Condvar,
    /// The segment that was being written when segments were prepared last.
    begun_before: AtomicU64,
    /// Segments from this one on stay, whatever checkpoints say.
    kept_from: Arc<AtomicU64>,
    /// Held by whoever makes, renames or removes segments. Taken before `room`, never inside `writer`.
    upkeep: Mutex<()>,
    callers: Mutex<Callers>,
    /// Somebody came to wait, or nobody will any more.
    called: Condvar,
}

/// What is told to who waits without sleeping.
pub type Call = Box<dyn FnOnce(Result<()>) + Send>;

#[derive(Default)]
struct Callers {
    waiting: Vec<(CommitTs, Call)>,
    is_closed: bool,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("device", &self.device.name()).field("durable", &self.durable()).finish()
    }
}

impl Log {
    /// Reads what is on `device`; [`Recovery::into_log`] then goes on behind it. An empty device is an empty log.
    pub fn open(device: Arc<dyn LogDevice>, config: LogConfig) -> Result<Recovery> {
        Recovery::open(device, config)
    }

    #[cfg(not(loom))]
    /// Begins the log of a term where the terms before ended. The device has the first segment, which was entered for the
    /// term and is empty ([`PoolDevice::begin`](crate::PoolDevice::begin)).
    pub fn begin(device: Arc<dyn LogDevice>, config: LogConfig, begun: crate::Begun, floor: Floor) -> Result<Arc<Log>> {
        let crate::Begun { term, first, before } = begun;
        let start = Start {
            current: None,
            offset: 0,
            chain: before.chain,
            end: before.end,
            written: before.written,
            prepared: vec![first],
            ts_max: before.ts_max,
            term,
            previous_term: before.term,
            begins_after: before.begins_after,
        };
        Log::start(device, config, start, floor)
    }

    pub(crate) fn start(device: Arc<dyn LogDevice>, config: LogConfig, start: Start, floor: Floor) -> Result<Arc<Log>> {
        let mut life = [0; 8];
        random_bytes(&mut life)?;
        let mut prepared = VecDeque::new();
        for number in &start.prepared {
            prepared.push_back((*number, device.open(*number)?));
        }
        let number_current = start.current.as_ref().map_or(0, |(number, _)| *number);
        let mut written = VecDeque::from(start.written.clone());
        // The current one is not full.
        written.retain(|written| written.number != number_current);
        let first = written.front().map_or(number_current, |written| written.number);
        let notes = Arc::new(Notes::start(device.clone(), config.identity, first, number_current)?);
        let room = Room {
            current_bytes: if number_current == 0 { 0 } else { usable_bytes(&*device, start.offset) },
            number_next: start.prepared.last().copied().unwrap_or(number_current) + 1,
            prepared,
            leased_bytes: 0,
            written,
            pinned_from: None,
            number_current,
            current_is_begun: number_current > 0,
            checkpoint: CommitTs(0),
        };
        // A term's first segment is not the first that ever was.
        let begun_before = match number_current {
            0 => start.prepared.first().map_or(0, |first| first.saturating_sub(1)),
            current => current,
        };
        let log = Arc::new(Log {
            group: Group::new(start.ts_max),
            writer: Mutex::new(Writer::new(notes.clone(), device.clone(), &config, u64::from_le_bytes(life), start)),
            notes,
            receivers: Mutex::new(Vec::new()),
            appender_next: AtomicU32::new(0),
            participants: AtomicUsize::new(0),
            room: Mutex::new(room),
            begun_before: AtomicU64::new(begun_before),
            room_made: Condvar::new(),
            kept_from: Arc::new(AtomicU64::new(u64::MAX)),
            upkeep: Mutex::new(()),
            callers: Mutex::default(),
            called: Condvar::new(),
            device,
            config,
            floor,
        });
        Ok(log)
    }

    /// A buffer for one thread or session.
    pub fn appender(self: &Arc<Self>) -> Result<Appender> {
        let (sender, receiver) = channel(CHUNK_WORDS)?;
        lock(&self.receivers).push(receiver);
        let number = self.appender_next.fetch_add(1, Ordering::Relaxed);
        Ok(Appender {
            log: self.clone(),
            sender,
            leased_bytes: 0,
            reserved_bytes: 0,
            stream: u64::from(number) << 32,
            is_streaming: false,
        })
    }

    /// Everything up to here survives what the device survives.
    pub fn durable(&self) -> CommitTs {
        self.group.durable()
    }

    /// Where the last block ended that is durable. Waits for a round that is being written.
    pub fn position(&self) -> LogPosition {
        lock(&self.writer).durable_end()
    }

    /// The error after which nothing is acknowledged any more, if there was one.
    pub fn failure(&self) -> Option<Error> {
        self.group.failure()
    }

    /// Waits until everything up to `ts`, which was appended, is durable. `interrupted` is asked now and then, and its error
    /// ends the wait; the commit is then as it was, and will be durable or not. 58030 when the device failed: then nothing
    /// more is acknowledged until the log is opened again.
    pub fn wait_durable(&self, ts: CommitTs, interrupted: impl Fn() -> Result<()>) -> Result<()> {
        self.group.wait(
            ts,
            || {
                // Another commit with a lower timestamp is about to be appended: a round before that would be in vain.
                (0..FLOOR_LOOKS).any(|_| {
                    std::hint::spin_loop();
                    (self.floor)() >= ts
                });
                let delay = self.config.commit_delay;
                if !delay.is_zero() && self.participants.load(Ordering::Relaxed) >= self.config.commit_siblings {
                    std::thread::sleep(delay);
                }
                self.round()
            },
            interrupted,
        )
    }

    /// Has `call` told when everything up to `ts`, which was appended, is durable, or why it will not be: at once, or by the
    /// thread that is in [`Log::serve_callers`]. For those that may not sleep.
    pub fn when_durable(&self, ts: CommitTs, call: Call) {
        if self.durable() >= ts {
            return call(Ok(()));
        }
        let mut callers = lock(&self.callers);
        if callers.is_closed {
            drop(callers);
            let closed = || Error::new(SqlState::ADMIN_SHUTDOWN, "the database is being closed");
            return call(if self.durable() >= ts { Ok(()) } else { Err(self.failure().unwrap_or_else(closed)) });
        }
        callers.waiting.push((ts, call));
        drop(callers);
        self.called.notify_one();
    }

    /// Makes durable what others wait for by `when_durable`, all that came while it was at it together, and tells them. Until
    /// `stop_serving`.
    pub fn serve_callers(&self) {
        let mut callers = lock(&self.callers);
        loop {
            let Some(last) = callers.waiting.iter().map(|(ts, _)| *ts).max() else {
                if callers.is_closed {
                    return;
                }
                callers = self.called.wait(callers).unwrap_or_else(|poisoned| poisoned.into_inner());
                continue;
            };
            drop(callers);
            let outcome = self.wait_durable(last, || Ok(()));
            let durable = self.durable();
            let mut told = Vec::new();
            callers = lock(&self.callers);
            let mut at = 0;
            while at < callers.waiting.len() {
                // After a failure nothing more becomes durable.
                match callers.waiting[at].0 <= durable || outcome.is_err() {
                    true => told.push(callers.waiting.swap_remove(at)),
                    false => at += 1,
                }
            }
            drop(callers);
            for (ts, call) in told {
                call(if ts <= durable { Ok(()) } else { outcome.clone() });
            }
            callers = lock(&self.callers);
        }
    }

    /// Ends `serve_callers`, once those who wait have been told.
    pub fn stop_serving(&self) {
        lock(&self.callers).is_closed = true;
        self.called.notify_all();
    }

    /// Makes what was appended durable, unless somebody is at it. For the thread that does so every some hundred
    /// milliseconds for commits that do not wait (PostgreSQL's `wal_writer_delay`).
    pub fn flush(&self) -> Result<()> {
        self.group.try_lead(|| self.round()).map(|_| ())
    }

    /// Writes out what was appended, and takes nothing more: whoever commits from now on is told 57P01.
    pub fn close(&self) -> Result<()> {
        while !self.group.try_lead(|| self.round())? {
            // Whoever leads may have come by before the last was appended.
            std::thread::sleep(Duration::from_micros(100));
        }
        self.group.fail(Error::new(SqlState::ADMIN_SHUTDOWN, "the database is being closed"));
        Ok(())
    }

    /// Prepares segments ahead of their use: one, or twice as many as were begun since this was last called, so that no appender has to
    /// wait until one is filled. For the same thread. 53100 when there is no room: nothing is lost then.
    pub fn prepare(&self) -> Result<()> {
        let wanted = {
            let current = lock(&self.room).number_current;
            // `max`: before the first block of a term there is no current one.
            let begun = current.saturating_sub(self.begun_before.fetch_max(current, Ordering::Relaxed));
            let within = self.config.bytes_max / 8 / self.device.segment_bytes() as u64;
            (2 * begun).min(within).max(1)
        };
        let is_wanted =
            |room: &Room| (room.prepared.len() as u64) < wanted && room.segments() < self.device.segments_max();
        while is_wanted(&lock(&self.room)) {
            let _upkeep = lock(&self.upkeep);
            if is_wanted(&lock(&self.room)) {
                self.add_segment()?;
            }
        }
        Ok(())
    }

    /// A round of group commit.
    fn round(&self) -> Result<CommitTs> {
        let mut writer = lock(&self.writer);
        let drained = writer.drain(&self.receivers, &self.room, &self.floor);
        let (participants, durable) = drained.map_err(|error| self.failed(error))?;
        self.participants.store(participants, Ordering::Relaxed);
        Ok(durable)
    }

    /// What everybody is told who waits from now on.
    fn failed(&self, error: Error) -> Error {
        if error.code() == SqlState::CRASH_SHUTDOWN {
            tracing::warn!(%error, "another host took over: nothing more is committed");
            return error;
        }
        tracing::error!(%error, "the log failed: nothing more is committed");
        Error::new(SqlState::IO_ERROR, "the log failed, and nothing can be committed any more")
            .with_detail(format!("The first error was: {error}. What was acknowledged before is not affected."))
            .with_hint("Look after the log's device, and start the server again.")
    }

    /// Leases room of `bytes` for an appender, or somewhat more.
    fn lease(&self, bytes: u64, interrupted: &dyn Fn() -> Result<()>) -> Result<u64> {
        let start = Instant::now();
        loop {
            if let Some(leased) = lock(&self.room).lease(&*self.device, bytes, LEASE_BYTES) {
                return Ok(leased);
            }
            if let Some(failure) = self.failure() {
                return Err(failure);
            }
            let full = match self.make_room(bytes) {
                Ok(true) => continue,
                Ok(false) => None,
                Err(error) => Some(error),
            };
            // Records that are written need less than was leased for them.
            if self.group.try_lead(|| self.round())?
                && let Some(leased) = lock(&self.room).lease(&*self.device, bytes, 0)
            {
                return Ok(leased);
            }
            if let Some(error) = full {
                return Err(error);
            }
            interrupted()?;
            if start.elapsed() >= self.config.room_wait {
                return Err(self.full(bytes));
            }
            let room = lock(&self.room);
            if room.segments() >= self.device.segments_max() {
                // Spurious wake-ups do no harm.
                _ = self.room_made.wait_timeout(room, INTERRUPT_INTERVAL);
            }
        }
    }

    /// Prepares a segment, unless there is room by now. False: the device has all the segments that it can have.
    fn make_room(&self, bytes: u64) -> Result<bool> {
        let _upkeep = lock(&self.upkeep);
        {
            let room = lock(&self.room);
            if room.free_bytes(&*self.device) >= room.leased_bytes + bytes {
                return Ok(true);
            }
            if room.segments() >= self.device.segments_max() {
                return Ok(false);
            }
        }
        self.add_segment().map(|()| true)
    }

    fn full(&self, bytes: u64) -> Error {
        let size = self.device.segments_max().saturating_mul(self.device.segment_bytes() as u64);
        Error::new(SqlState::DISK_FULL, format!("the log in {} is full", self.device.name()))
            .with_detail(format!("{} are wanted; the log has {}.", ByteSize(bytes), ByteSize(size)))
            .with_hint("A checkpoint makes room. Large transactions need a larger log.")
    }

    /// Under `upkeep`.
    fn add_segment(&self) -> Result<()> {
        let number = lock(&self.room).number_next;
        let (number, segment) = self.device.create_next(number)?;
        let mut room = lock(&self.room);
        room.number_next = number + 1;
        room.prepared.push_back((number, segment));
        self.room_made.notify_all();
        Ok(())
    }

    /// Says that a checkpoint has everything up to `ts`: segments without later records are used again, or removed if there
    /// are more than `bytes_min` asks for. Returns the number of segments that went.
    pub fn recycle_below(&self, ts: CommitTs) -> Result<u64> {
        let _upkeep = lock(&self.upkeep);
        let kept_from = self.kept_from.load(Ordering::Acquire);
        // All that is superfluous by now at once.
        let last = {
            let mut room = lock(&self.room);
            room.checkpoint = room.checkpoint.max(ts);
            room.superfluous_to(ts).map(|last| last.min(kept_from.saturating_sub(1)))
        };
        if let Some(last) = last {
            self.notes.given_up_below(last + 1)?;
        }
        let mut count = 0;
        loop {
            let (number, number_next, is_wanted) = {
                let room = lock(&self.room);
                let Some(number) = room.superfluous(ts).filter(|number| *number < kept_from) else { break };
                // As it will be without it.
                let bytes = (room.segments() - 1) * self.device.segment_bytes() as u64;
                let is_wanted = bytes < self.config.bytes_min || room.prepared.is_empty();
                (number, room.number_next, is_wanted && self.device.recycles())
            };
            self.notes.given_up_below(number + 1)?;
            crash_point("log.recycle");
            // One at a time and the oldest first, durably: a crash leaves no gap. It stays in the books until it is gone,
            // and is tried again when that fails.
            let recycled = match is_wanted {
                true => Some(self.device.recycle(number, number_next)?),
                false => self.device.remove(number).map(|()| None)?,
            };
            let mut room = lock(&self.room);
            room.written.pop_front();
            if let Some(segment) = recycled {
                room.number_next = number_next + 1;
                room.prepared.push_back((number_next, segment));
            }
            drop(room);
            self.room_made.notify_all();
            count += 1;
        }
        self.device.all_removed().map(|()| count)
    }

    /// The first segment that a reader needs who has everything up to `ts`: a later start goes on from there. 0: no segment
    /// has a block yet.
    pub fn needed_from(&self, ts: CommitTs) -> u64 {
        lock(&self.room).needed_from(ts)
    }

    /// Segments from this one on stay, whatever checkpoints say: what copies them elsewhere raises it. None are kept at first.
    pub fn kept_from(&self) -> Arc<AtomicU64> {
        self.kept_from.clone()
    }

    /// What the log lies on.
    pub fn device(&self) -> &Arc<dyn LogDevice> {
        &self.device
    }

    /// Bytes of segments that hold records.
    pub fn used_bytes(&self) -> u64 {
        let room = lock(&self.room);
        (room.segments() - room.prepared.len() as u64) * self.device.segment_bytes() as u64
    }

    /// The log is as large as it should get, or would be by the time a checkpoint is done.
    pub fn wants_checkpoint(&self) -> bool {
        let segment = self.device.segment_bytes() as u64;
        let most = self.config.bytes_max.min(self.device.segments_max().saturating_mul(segment));
        let room = lock(&self.room);
        room.wanting_segments() * segment + room.leased_bytes >= (most / 2).max(2 * segment)
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // Commits that did not wait. That nothing was acknowledged by it makes an error harmless; it was logged.
        let _ = self.flush();
    }
}

/// One thread's end of the log.
///
/// A transaction reserves, is decided, and appends; or it spills pieces first, when it is too large for memory.
pub struct Appender {
    log: Arc<Log>,
    sender: Sender,
    /// Room in segments that is this appender's.
    leased_bytes: u64,
    /// Of that, for the next record.
    reserved_bytes: u64,
    /// Number of the current or next stream.
    stream: u64,
    is_streaming: bool,
}

impl std::fmt::Debug for Appender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Appender").field("stream", &self.stream).field("leased_bytes", &self.leased_bytes).finish()
    }
}

/// Words and cost of the frames that `bytes` take.
fn frames_of(bytes: usize) -> (usize, u64) {
    let whole = bytes / FRAME_PAYLOAD_MAX;
    let of = |payload: usize| FRAME_HEADER_WORDS + 1 + payload.div_ceil(8);
    let (most, last) = (of(FRAME_PAYLOAD_MAX), of(bytes % FRAME_PAYLOAD_MAX));
    (whole * most + last, whole as u64 * frame_cost(most) + frame_cost(last))
}

impl Appender {
    /// Takes all that a record of `bytes` needs, so that appending it cannot fail. To be called before the commit is
    /// decided, and better before the floor stands still for it: it may wait. Waits while much that this thread appended is not written, or while the log is full and a checkpoint may
    /// make room, and asks `interrupted` meanwhile. 53100 when there is no room, until there is some; 58030 when the log has
    /// failed, for good.
    #[inline]
    pub fn reserve(&mut self, bytes: usize, interrupted: &dyn Fn() -> Result<()>) -> Result<()> {
        let (words, cost) = frames_of(bytes);
        if self.log.group.has_failed()
            || self.leased_bytes < cost
            || self.sender.buffered_bytes() > self.log.config.buffer_bytes_max
        {
            self.reserve_slowly(cost, interrupted)?;
        }
        self.sender.reserve(words)?;
        self.reserved_bytes = cost;
        Ok(())
    }

    #[cold]
    fn reserve_slowly(&mut self, cost: u64, interrupted: &dyn Fn() -> Result<()>) -> Result<()> {
        if let Some(failure) = self.log.failure() {
            return Err(failure);
        }
        while self.sender.buffered_bytes() > self.log.config.buffer_bytes_max {
            interrupted()?;
            if !self.log.group.try_lead(|| self.log.round())? {
                // Whoever leads comes by here.
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        if self.leased_bytes < cost {
            self.leased_bytes += self.log.lease(cost - self.leased_bytes, interrupted)?;
        }
        Ok(())
    }

    /// Appends a record, with what was spilled before it, if anything was. Cannot fail: `payload` is no longer than what was
    /// reserved. It is durable when [`Log::durable`] has reached `ts`.
    ///
    /// # Panics
    /// When it is longer.
    #[inline]
    pub fn append(&mut self, ts: CommitTs, kind: RecordKind, payload: &[u8]) {
        if payload.len() > FRAME_PAYLOAD_MAX || self.is_streaming {
            return self.append_stream(ts, kind, payload);
        }
        let header = FrameHeader { payload_bytes: payload.len(), kind: kind.0, flags: 0, ts };
        self.send(&header.words(), payload);
        self.reserved_bytes = 0;
        crash_point("log.appended");
    }

    #[cold]
    fn append_stream(&mut self, ts: CommitTs, kind: RecordKind, payload: &[u8]) {
        let (parts, rest) = payload.split_at(payload.len().saturating_sub(1) / FRAME_PAYLOAD_MAX * FRAME_PAYLOAD_MAX);
        for part in parts.chunks(FRAME_PAYLOAD_MAX) {
            self.send_part(part, true);
        }
        let header = FrameHeader { payload_bytes: rest.len(), kind: kind.0, flags: STREAM, ts };
        let [first, second] = header.words();
        self.send(&[first, second, self.stream], rest);
        self.reserved_bytes = 0;
        self.end_stream();
        crash_point("log.appended");
    }

    fn send_part(&mut self, part: &[u8], is_continued: bool) {
        let flags = PART | STREAM | if is_continued { CONTINUED } else { 0 };
        let header = FrameHeader { payload_bytes: part.len(), kind: 0, flags, ts: CommitTs(0) };
        let [first, second] = header.words();
        self.send(&[first, second, self.stream], part);
    }

    fn send(&mut self, head: &[u64], payload: &[u8]) {
        let cost = frame_cost(head.len() + payload.len().div_ceil(8));
        assert!(cost <= self.reserved_bytes, "more is appended to the log than was reserved");
        self.reserved_bytes -= cost;
        self.leased_bytes -= cost;
        self.sender.send(head, payload);
    }

    fn end_stream(&mut self) {
        self.is_streaming = false;
        // Numbers of 32 bits may come again: by then the stream of that number has long ended.
        self.stream = self.stream >> 32 << 32 | u64::from((self.stream as u32).wrapping_add(1));
    }

    /// Writes a piece of a large record ahead of the commit. Until `append` there is no record. Errors are those of
    /// `reserve`; the record is then to be abandoned.
    pub fn spill(&mut self, piece: &[u8], interrupted: &dyn Fn() -> Result<()>) -> Result<()> {
        let mut steps = piece.chunks(SPILL_STEP_BYTES).peekable();
        if piece.is_empty() {
            self.spill_step(&[], false, interrupted)?;
        }
        while let Some(step) = steps.next() {
            self.spill_step(step, steps.peek().is_some(), interrupted)?;
        }
        Ok(())
    }

    fn spill_step(&mut self, step: &[u8], is_continued: bool, interrupted: &dyn Fn() -> Result<()>) -> Result<()> {
        // And for the frame that ends the stream, should it come to nothing.
        self.reserve(step.len() + FRAME_PAYLOAD_MAX, interrupted)?;
        self.is_streaming = true;
        let mut parts = step.chunks(FRAME_PAYLOAD_MAX).peekable();
        if step.is_empty() {
            self.send_part(&[], is_continued);
        }
        while let Some(part) = parts.next() {
            let goes_on = parts.peek().is_some() || is_continued;
            self.send_part(part, goes_on);
        }
        Ok(())
    }

    /// Forgets what was spilled: the transaction is no more. Nothing else need be done for one that only reserved.
    pub fn abandon(&mut self) {
        self.reserved_bytes = 0;
        if !self.is_streaming {
            return;
        }
        let header = FrameHeader { payload_bytes: 0, kind: 0, flags: STREAM | ABANDONED, ts: CommitTs(0) };
        let [first, second] = header.words();
        // Room and memory for it were reserved with the last piece, and nothing else has used them. A later reservation that
        // failed has taken none away.
        self.reserved_bytes = frame_cost(FRAME_HEADER_WORDS + 1);
        self.send(&[first, second, self.stream], &[]);
        self.reserved_bytes = 0;
        self.end_stream();
    }

    /// Bytes that this thread appended and that nobody has written yet.
    pub fn buffered_bytes(&self) -> u64 {
        self.sender.buffered_bytes()
    }
}

impl Drop for Appender {
    fn drop(&mut self) {
        self.abandon();
        lock(&self.log.room).leased_bytes -= self.leased_bytes;
        self.log.room_made.notify_all();
    }
}

/// For those who size things: what of a segment is not for records.
pub const SEGMENT_OVERHEAD_BYTES: usize = SEGMENT_HEADER_BYTES + crate::room::SEAM_BYTES;
