//! The compute process's side: one connection that many threads use at once.
//!
//! No thread belongs to the connection. Of those that wait for an answer one *leads*: it reads the next frame, puts it
//! where it belongs, and wakes whose it is. When its own answer is complete, it wakes another one to lead. So a thread
//! that asks alone reads its answer itself, without being woken by another one, and the bytes of a `READ` go from the
//! socket to where they are wanted.
//!
//! A sender for whom there is no room leads as well now and then: the node may be sending, too, and neither would go
//! on.
//!
//! A request has a deadline. When it has passed, the request is cancelled. The node acknowledges that, and then it is
//! certain that the request had no effect (57014), or answers after all. If it does neither within the grace, the
//! connection is given up (08006): the outcome of the requests under way is unknown then, and the next connection of
//! the same lane settles it.

use crate::clock::Clock;
use crate::fault::Fault;
use crate::frame::{DATA_PREFIX_BYTES, Epoch, Flags, HEAD_BYTES, Head, Kind, RequestId};
use crate::hello::{self, Agreement, Offer};
use crate::message::{Allocation, Answer, Done, Extent, Place, Request, total_bytes};
use crate::sync::{Condvar, Mutex, MutexGuard, lock, wait_for};
use crate::token::Token;
use crate::transport::{Closer, Halves, Incoming, Outgoing, STALL, Transport};
use crate::{List, Payload};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tidepool_base::{Error, Result};

/// Bytes that are taken from the transport before they are checked: they are still in the cache then.
const PIECE_BYTES: usize = 64 << 10;

/// How long a sender without room leads at a time.
const DRAIN: Duration = Duration::from_millis(1);

/// How long a sender that finds the connection closed looks for what the node has said before.
const LAST_WORD: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For each step of the handshake.
    pub handshake: Duration,
    /// For a request that has no other.
    pub request: Duration,
    /// For the acknowledgement of a cancellation.
    pub grace: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts { handshake: Duration::from_secs(10), request: Duration::from_secs(30), grace: Duration::from_secs(1) }
    }
}

/// A connection to a node. Its clones are the same connection, which ends with the last of them and of its requests.
#[derive(Clone, Debug)]
pub struct Connection(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Locked before the state, if both are.
    outgoing: Mutex<Box<dyn Outgoing>>,
    /// Locked by the leader alone.
    incoming: Mutex<Receiver>,
    state: Mutex<State>,
    /// There may be room for another request.
    room: Arc<Condvar>,
    closer: Arc<dyn Closer>,
    clock: Arc<dyn Clock>,
    epoch: Epoch,
    agreement: Agreement,
    timeouts: Timeouts,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.closer.close();
    }
}

#[derive(Debug)]
struct Receiver {
    incoming: Box<dyn Incoming>,
    body: Vec<u8>,
}

#[derive(Debug)]
struct State {
    slots: HashMap<RequestId, Slot>,
    next: u64,
    /// Requests that the node has not answered, and the bytes of their bodies.
    under_way: u32,
    bytes: u64,
    is_led: bool,
    /// Threads that wait for room.
    room_waiters: u32,
    /// Why nothing goes any more.
    broken: Option<Error>,
}

/// A request that was sent.
#[derive(Debug)]
struct Slot {
    expects: Expects,
    body_bytes: u64,
    /// What came while its thread did not lead.
    received: VecDeque<Vec<u8>>,
    /// Offset of the next data, or number of the next batch.
    next: u64,
    /// Bytes of batches that came, and that may come.
    came: u64,
    granted: u64,
    finished: Option<Result<Outcome>>,
    wake: Arc<Condvar>,
    is_parked: bool,
    /// No thread waits for it, or will.
    is_abandoned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expects {
    Places(usize),
    Data(u64),
    Durable,
    Done,
    Rows,
    Pong(u64),
}

/// What a request came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Registered(Vec<Place>),
    /// All bytes have come, and lie where they were wanted.
    Data,
    Durable(u64),
    Done(Done),
    Pong,
}

/// Where data goes.
struct Fill<'a> {
    into: &'a mut [u8],
    filled: usize,
}

impl Fill<'_> {
    fn nothing() -> Fill<'static> {
        Fill { into: &mut [], filled: 0 }
    }

    fn add(&mut self, bytes: &[u8]) {
        // There is room for as much as was asked for, and no more comes.
        self.into[self.filled..self.filled + bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
    }
}

/// For whom a thread waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiter {
    Request(RequestId),
    Room,
}

type Guard<'a> = MutexGuard<'a, State>;

impl Connection {
    /// Opens a connection: proves that this side knows the token, checks that the node does, and agrees on the limits.
    pub fn open(transport: Box<dyn Transport>, offer: &Offer, token: &Token, timeouts: Timeouts) -> Result<Connection> {
        let mut halves = transport.split()?;
        let agreement = hello::offer(&mut halves, offer, token, timeouts.handshake)?;
        let Halves { outgoing, incoming, closer, clock, .. } = halves;
        let state = State {
            slots: HashMap::new(),
            next: 1,
            under_way: 0,
            bytes: 0,
            is_led: false,
            room_waiters: 0,
            broken: None,
        };
        Ok(Connection(Arc::new(Shared {
            outgoing: Mutex::new(outgoing),
            incoming: Mutex::new(Receiver { incoming, body: Vec::new() }),
            state: Mutex::new(state),
            room: Arc::new(Condvar::new()),
            closer,
            clock,
            epoch: offer.epoch,
            agreement,
            timeouts,
        })))
    }

    pub fn agreement(&self) -> &Agreement {
        &self.0.agreement
    }

    pub fn epoch(&self) -> Epoch {
        self.0.epoch
    }

    /// Ends the connection: all requests under way fail.
    pub fn close(&self) {
        self.0.fail(Fault::Closed("this side closed it").error());
    }

    /// Sends a request, to be answered within so long. Waits while there is no room for another one.
    pub fn submit(&self, request: &Request<'_>, timeout: Duration) -> Result<Pending> {
        self.0.submit(request, timeout)
    }

    fn call(&self, request: &Request<'_>) -> Result<Outcome> {
        self.submit(request, self.0.timeouts.request)?.wait()
    }

    pub fn ping(&self) -> Result<()> {
        self.call(&Request::Ping(0x7469_6465_706f_6f6c)).map(drop)
    }

    /// Allocates memory, and says where.
    pub fn register(&self, allocations: &[Allocation]) -> Result<Vec<Place>> {
        match self.call(&Request::Register(List::new(allocations)))? {
            Outcome::Registered(places) => Ok(places),
            _ => Err(Fault::Malformed("it answers another request").error()),
        }
    }

    pub fn deregister(&self, places: &[Place]) -> Result<Done> {
        self.call_done(&Request::Deregister(List::new(places)))
    }

    /// Reads extents, one after the other, into `into`, which has as many bytes as they together.
    pub fn read_into(&self, extents: &[Extent], into: &mut [u8]) -> Result<()> {
        let request = Request::Read(List::new(extents));
        self.submit(&request, self.0.timeouts.request)?.wait_into(into)
    }

    /// Writes the bytes of each extent.
    pub fn flush(&self, stage: u32, extents: &[Extent], pieces: &[&[u8]]) -> Result<Done> {
        let payload = Payload::Pieces(pieces);
        self.call_done(&Request::Flush { stage, extents: List::new(extents), payload })
    }

    pub fn publish(&self, root: u64, number: u64) -> Result<Done> {
        self.call_done(&Request::Publish { root, number })
    }

    /// Adds to a log, and says up to where that is durable.
    pub fn append(&self, log: u64, position: u64, payload: &[u8]) -> Result<u64> {
        match self.call(&Request::Append { log, position, payload })? {
            Outcome::Durable(position) => Ok(position),
            _ => Err(Fault::Malformed("it answers another request").error()),
        }
    }

    /// Has the node run a fragment, whose rows are received with [`Batches::next`]. Of these, `window` bytes may be on
    /// their way: it is brought within what a batch needs and the limits allow.
    pub fn fragment(&self, plan: &[u8], window: u64, timeout: Duration) -> Result<Batches> {
        let limits = self.0.agreement.limits;
        let window = window.clamp(limits.batch_bytes.into(), limits.credit_bytes);
        let pending = self.submit(&Request::Fragment { credit: window, plan }, timeout)?;
        Ok(Batches { pending, window, consumed: 0, granted: window, done: None })
    }

    fn call_done(&self, request: &Request<'_>) -> Result<Done> {
        match self.call(request)? {
            Outcome::Done(done) => Ok(done),
            _ => Err(Fault::Malformed("it answers another request").error()),
        }
    }
}

/// A request that was sent and not waited for yet. If it is dropped, it is cancelled.
#[derive(Debug)]
pub struct Pending {
    shared: Arc<Shared>,
    number: RequestId,
    until: Duration,
    data_bytes: Option<u64>,
    is_over: bool,
}

/// Cancels a request, from any thread.
#[derive(Clone, Debug)]
pub struct Canceller {
    shared: Arc<Shared>,
    number: RequestId,
}

impl Canceller {
    /// Asks the node to give the request up. The thread that waits for it is told what became of it.
    pub fn cancel(&self) -> Result<()> {
        self.shared.cancel(self.number, self.shared.clock.now() + self.shared.timeouts.grace)
    }
}

impl Pending {
    pub fn canceller(&self) -> Canceller {
        Canceller { shared: self.shared.clone(), number: self.number }
    }

    /// Waits for the answer to anything but a `READ`.
    pub fn wait(mut self) -> Result<Outcome> {
        if self.data_bytes.is_some_and(|bytes| bytes > 0) {
            return Err(Error::internal("data is waited for without a place for it"));
        }
        self.is_over = true;
        self.shared.wait(self.number, self.until, &mut Fill::nothing())
    }

    /// Waits for the answer to a `READ`, into as many bytes as it asked for. What they are, if it fails, is not said.
    pub fn wait_into(mut self, into: &mut [u8]) -> Result<()> {
        if self.data_bytes != Some(into.len() as u64) {
            return Err(Error::internal("data is waited for with another size than it has"));
        }
        self.is_over = true;
        self.shared.wait(self.number, self.until, &mut Fill { into, filled: 0 }).map(drop)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let is_under_way = {
            let mut state = lock(&self.shared.state);
            let is_under_way = state.slots.get(&self.number).is_some_and(|slot| slot.finished.is_none());
            if is_under_way && state.broken.is_none() {
                // The leader takes it away when the node has ended it.
                if let Some(slot) = state.slots.get_mut(&self.number) {
                    slot.is_abandoned = true;
                    slot.received.clear();
                }
                true
            } else {
                state.slots.remove(&self.number);
                false
            }
        };
        if is_under_way {
            // If it does not go, the connection is over.
            let _ = self.shared.cancel(self.number, self.shared.clock.now() + self.shared.timeouts.grace);
        }
    }
}

/// Rows of a fragment, as they come.
#[derive(Debug)]
pub struct Batches {
    pending: Pending,
    window: u64,
    consumed: u64,
    granted: u64,
    done: Option<Done>,
}

impl Batches {
    /// The next batch. `None`: the fragment is done, and all its batches have come.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Vec<u8>>> {
        if self.done.is_some() {
            return Ok(None);
        }
        let (shared, number) = (self.pending.shared.clone(), self.pending.number);
        let next = shared.next_batch(number, self.pending.until);
        match next {
            Ok(Next::Batch(bytes)) => {
                self.consumed += bytes.len() as u64;
                if self.consumed + self.window - self.granted >= self.window / 2 {
                    self.granted = self.consumed + self.window;
                    shared.grant(number, self.granted, self.pending.until)?;
                }
                Ok(Some(bytes))
            }
            Ok(Next::Done(done)) => {
                self.pending.is_over = true;
                self.done = Some(done);
                Ok(None)
            }
            Err(error) => {
                self.pending.is_over = true;
                Err(error)
            }
        }
    }

    /// What the fragment came to, once it is done.
    pub fn done(&self) -> Option<Done> {
        self.done
    }

    pub fn canceller(&self) -> Canceller {
        self.pending.canceller()
    }
}

enum Next {
    Batch(Vec<u8>),
    Done(Done),
}

/// Where data that comes is to go.
enum Goal {
    /// Straight to where it is wanted.
    Fill,
    Keep,
    Discard,
}

impl Shared {
    fn submit(self: &Arc<Shared>, request: &Request<'_>, timeout: Duration) -> Result<Pending> {
        let limits = self.agreement.limits;
        let until = self.clock.now().saturating_add(timeout);
        let (expects, granted) = match request {
            Request::Register(allocations) => (Expects::Places(allocations.len()), 0),
            Request::Read(extents) => (Expects::Data(total_bytes(extents)), 0),
            Request::Append { .. } => (Expects::Durable, 0),
            Request::Deregister(_) | Request::Flush { .. } | Request::Publish { .. } => (Expects::Done, 0),
            Request::Fragment { credit, .. } => (Expects::Rows, *credit),
            Request::Ping(word) => (Expects::Pong(*word), 0),
            Request::Credit { .. } | Request::Cancel => {
                return Err(Error::internal("a request is sent that belongs to another one"));
            }
        };
        let data_bytes = match expects {
            Expects::Data(bytes) => Some(bytes),
            _ => None,
        };
        if let Some(asked) = data_bytes.filter(|bytes| *bytes > limits.read_bytes) {
            return Err(Fault::Beyond { what: "bytes to read", asked, limit: limits.read_bytes }.error());
        }
        let mut prefix = Vec::with_capacity(64);
        let payload = request.encode(&mut prefix).map_err(Fault::error)?;
        let body_bytes = (prefix.len() + payload.len()) as u64;
        let limit = u64::from(limits.frame_bytes);
        if body_bytes > limit {
            return Err(Fault::Beyond { what: "bytes of a frame", asked: body_bytes, limit }.error());
        }
        let number = {
            let mut state = lock(&self.state);
            loop {
                if let Some(error) = &state.broken {
                    return Err(error.clone());
                }
                if state.under_way < limits.requests && state.bytes + body_bytes <= limits.request_bytes {
                    break;
                }
                if self.clock.now() >= until {
                    self.hand_over(&state);
                    return Err(Fault::Cancelled.error().with_detail("There was no room for it in time."));
                }
                state = self.step(state, Waiter::Room, &mut Fill::nothing(), until);
            }
            let number = RequestId(state.next);
            state.next += 1;
            state.under_way += 1;
            state.bytes += body_bytes;
            let slot = Slot {
                expects,
                body_bytes,
                received: VecDeque::new(),
                next: 0,
                came: 0,
                granted,
                finished: None,
                wake: Arc::new(Condvar::new()),
                is_parked: false,
                is_abandoned: false,
            };
            state.slots.insert(number, slot);
            self.hand_over(&state);
            number
        };
        let pending = Pending { shared: self.clone(), number, until, data_bytes, is_over: false };
        let sent = self.send(number, request.kind(), &prefix, payload, until);
        if let Err(error) = sent {
            let mut pending = pending;
            pending.is_over = true;
            lock(&self.state).slots.remove(&number);
            return Err(error);
        }
        Ok(pending)
    }

    /// Sends a frame. If it does not go out whole, the connection is over.
    fn send(&self, number: RequestId, kind: Kind, prefix: &[u8], payload: Payload<'_>, until: Duration) -> Result<()> {
        let mut frame: Vec<&[u8]> = Vec::with_capacity(8);
        frame.push(prefix);
        frame.extend(payload.pieces());
        let head = Head::of(kind, Flags::NONE, number, self.epoch, &frame).map_err(Fault::error)?.encode();
        frame.insert(0, &head);
        let mut outgoing = lock(&self.outgoing);
        if let Some(error) = lock(&self.state).broken.clone() {
            return Err(error);
        }
        let last = until.saturating_add(self.timeouts.grace).min(self.clock.now().saturating_add(STALL));
        let mut sent = 0;
        loop {
            match outgoing.send(&frame, &mut sent) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(fault) => return Err(self.fail(self.why(fault))),
            }
            if self.clock.now() >= last {
                return Err(self.fail(Fault::Closed("the peer does not receive").error()));
            }
            // The node may be waiting until this side receives.
            let state = lock(&self.state);
            let state = if state.is_led || state.broken.is_some() {
                state
            } else {
                let until = self.clock.now() + DRAIN;
                self.step(state, Waiter::Room, &mut Fill::nothing(), until)
            };
            self.hand_over(&state);
            if let Some(error) = &state.broken {
                return Err(error.clone());
            }
        }
    }

    /// The node may have said why it closed the connection: then that is the reason.
    fn why(&self, fault: Fault) -> Error {
        let until = self.clock.now() + LAST_WORD;
        let mut state = lock(&self.state);
        while state.broken.is_none() && self.clock.now() < until {
            state = self.step(state, Waiter::Room, &mut Fill::nothing(), until);
        }
        self.hand_over(&state);
        state.broken.clone().unwrap_or_else(|| fault.error())
    }

    fn cancel(&self, number: RequestId, until: Duration) -> Result<()> {
        self.send(number, Kind::Cancel, &[], Payload::Whole(&[]), until)
    }

    fn grant(&self, number: RequestId, granted: u64, until: Duration) -> Result<()> {
        if let Some(slot) = lock(&self.state).slots.get_mut(&number) {
            slot.granted = granted;
        }
        let mut prefix = Vec::new();
        let payload = Request::Credit { granted }.encode(&mut prefix).map_err(Fault::error)?;
        self.send(number, Kind::Credit, &prefix, payload, until)
    }

    /// Waits until a request is answered.
    fn wait(&self, number: RequestId, until: Duration, fill: &mut Fill<'_>) -> Result<Outcome> {
        self.wait_for(number, until, fill, |slot, fill| {
            while let Some(bytes) = slot.received.pop_front() {
                fill.add(&bytes);
            }
            slot.finished.take()
        })
    }

    fn next_batch(&self, number: RequestId, until: Duration) -> Result<Next> {
        self.wait_for(number, until, &mut Fill::nothing(), |slot, _| {
            if let Some(bytes) = slot.received.pop_front() {
                return Some(Ok(Next::Batch(bytes)));
            }
            Some(slot.finished.take()?.and_then(|outcome| match outcome {
                Outcome::Done(done) => Ok(Next::Done(done)),
                _ => Err(Fault::Malformed("it answers another request").error()),
            }))
        })
    }

    /// Waits until `ready` finds in a request's slot what is waited for. At the deadline the request is cancelled, and
    /// at the end of the grace the connection.
    fn wait_for<T>(
        &self,
        number: RequestId,
        mut until: Duration,
        fill: &mut Fill<'_>,
        mut ready: impl FnMut(&mut Slot, &mut Fill<'_>) -> Option<Result<T>>,
    ) -> Result<T> {
        let (mut is_late, mut is_over) = (false, false);
        let mut state = lock(&self.state);
        let result = loop {
            let Some(slot) = state.slots.get_mut(&number) else {
                break Err(Error::internal("a request is waited for twice"));
            };
            let had_finished = slot.finished.is_some();
            if let Some(result) = ready(slot, fill) {
                is_over = had_finished && slot.finished.is_none();
                break result;
            }
            if let Some(error) = &state.broken {
                break Err(error.clone());
            }
            if self.clock.now() >= until {
                if is_late {
                    drop(state);
                    self.fail(Fault::Closed("the peer does not answer").error());
                    state = lock(&self.state);
                    continue;
                }
                is_late = true;
                until = self.clock.now() + self.timeouts.grace;
                self.hand_over(&state);
                drop(state);
                // If it does not go, the state says so.
                let _ = self.cancel(number, until);
                state = lock(&self.state);
                continue;
            }
            state = self.step(state, Waiter::Request(number), fill, until);
        };
        if is_over || result.is_err() {
            state.slots.remove(&number);
        }
        self.hand_over(&state);
        match result {
            Err(error) if is_late && error == Fault::Cancelled.error() => {
                Err(error.with_detail("Its deadline had passed."))
            }
            result => result,
        }
    }

    /// Leads for one frame, or waits to be woken while another thread leads, but not beyond `until`.
    fn step<'a>(&'a self, mut state: Guard<'a>, waiter: Waiter, fill: &mut Fill<'_>, until: Duration) -> Guard<'a> {
        let timeout = until.saturating_sub(self.clock.now());
        if state.is_led {
            let wake = match waiter {
                Waiter::Request(number) => match state.slots.get_mut(&number) {
                    Some(slot) => {
                        slot.is_parked = true;
                        slot.wake.clone()
                    }
                    None => return state,
                },
                Waiter::Room => {
                    state.room_waiters += 1;
                    self.room.clone()
                }
            };
            (state, _) = wait_for(&wake, state, timeout);
            match waiter {
                Waiter::Request(number) => {
                    if let Some(slot) = state.slots.get_mut(&number) {
                        slot.is_parked = false;
                    }
                }
                Waiter::Room => state.room_waiters -= 1,
            }
            return state;
        }
        state.is_led = true;
        drop(state);
        let received = self.receive(waiter, fill, timeout);
        let mut state = lock(&self.state);
        state.is_led = false;
        if let Err(error) = received {
            self.fail_locked(&mut state, error);
        }
        state
    }

    /// Wakes a thread to lead, if none does and one waits. A thread that stops waiting calls this.
    fn hand_over(&self, state: &State) {
        if state.is_led {
            return;
        }
        if let Some(slot) = state.slots.values().find(|slot| slot.is_parked) {
            slot.wake.notify_one();
        } else if state.room_waiters > 0 {
            self.room.notify_one();
        }
    }

    fn fail(&self, error: Error) -> Error {
        let mut state = lock(&self.state);
        self.fail_locked(&mut state, error);
        state.broken.clone().unwrap_or_else(|| Fault::Closed("it is over").error())
    }

    /// Ends the connection, for the first reason that is given.
    fn fail_locked(&self, state: &mut State, error: Error) {
        if state.broken.is_none() {
            state.broken = Some(error);
        }
        self.closer.close();
        for slot in state.slots.values() {
            slot.wake.notify_all();
        }
        self.room.notify_all();
    }

    /// Receives the next frame and puts it where it belongs. False: none came in time.
    fn receive(&self, waiter: Waiter, fill: &mut Fill<'_>, timeout: Duration) -> Result<bool> {
        let mut receiver = lock(&self.incoming);
        let Receiver { incoming, body } = &mut *receiver;
        let mut head = [0; HEAD_BYTES];
        if !incoming.begin(&mut head, timeout).map_err(Fault::error)? {
            return Ok(false);
        }
        let head = Head::decode(&head, self.agreement.limits.frame_bytes).map_err(Fault::error)?;
        if head.request == RequestId::CONNECTION || head.kind != Kind::Data {
            let len = head.len as usize;
            if body.len() < len {
                body.resize(len, 0);
            }
            let body = &mut body[..len];
            incoming.receive(body).map_err(Fault::error)?;
            head.check_body(body).map_err(Fault::error)?;
            let answer = Answer::decode(head.kind, head.flags, body).map_err(Fault::error)?;
            if head.request == RequestId::CONNECTION {
                return Err(match answer {
                    Answer::Error(refusal) => refusal.to_error(),
                    _ => Fault::Malformed("an answer has no request").error(),
                });
            }
            self.check_epoch(&head).map_err(Fault::error)?;
            self.answered(&head, &answer)?;
            return Ok(true);
        }
        if !head.flags.contains(Flags::ANSWER) || head.len < DATA_PREFIX_BYTES as u32 {
            return Err(Fault::Malformed("its data is not an answer's").error());
        }
        if head.flags.contains(Flags::BARE) && !self.agreement.bare_data {
            return Err(Fault::Malformed("its data is not checked").error());
        }
        let mut prefix = [0; DATA_PREFIX_BYTES];
        incoming.receive(&mut prefix).map_err(Fault::error)?;
        let (offset, len) = (u64::from_le_bytes(prefix), head.len as usize - DATA_PREFIX_BYTES);
        let mut checksum = head.checksum();
        checksum.update(&prefix);
        let mut take = |bytes: &mut [u8]| -> Result<(), Fault> {
            for piece in bytes.chunks_mut(PIECE_BYTES) {
                incoming.receive(piece)?;
                checksum.update(piece);
            }
            Ok(())
        };
        let (mut kept, mut is_filled) = (Vec::new(), false);
        // If the number is damaged, bytes go to the wrong place: all requests fail then, and say nothing of what is
        // there.
        match self.goal(&head, offset, len as u64, waiter, fill).map_err(Fault::error)? {
            Goal::Fill => {
                take(&mut fill.into[fill.filled..fill.filled + len]).map_err(Fault::error)?;
                is_filled = true;
            }
            Goal::Keep => {
                kept.resize(len, 0);
                take(&mut kept).map_err(Fault::error)?;
            }
            Goal::Discard => {
                let mut left = len;
                let mut scratch = [0; 4096];
                while left > 0 {
                    let count = left.min(scratch.len());
                    take(&mut scratch[..count]).map_err(Fault::error)?;
                    left -= count;
                }
            }
        }
        head.check(&checksum).map_err(Fault::error)?;
        self.check_epoch(&head).map_err(Fault::error)?;
        let mut state = lock(&self.state);
        let Some(slot) = state.slots.get_mut(&head.request) else { return Ok(true) };
        if slot.finished.is_some() || slot.next != offset {
            return Ok(true);
        }
        slot.next += len as u64;
        let total = match slot.expects {
            Expects::Data(total) => total,
            _ => return Err(Fault::Malformed("it answers another request").error()),
        };
        if is_filled {
            fill.filled += len;
        } else if !slot.is_abandoned {
            slot.received.push_back(kept);
        }
        let last = head.flags.contains(Flags::LAST);
        if last != (slot.next == total) {
            return Err(Fault::Malformed("its data ends where it should not").error());
        }
        if last {
            self.finish(&mut state, head.request, Ok(Outcome::Data));
        }
        Ok(true)
    }

    fn check_epoch(&self, head: &Head) -> Result<(), Fault> {
        if head.epoch == self.epoch { Ok(()) } else { Err(Fault::Malformed("its answer is of another epoch")) }
    }

    fn goal(&self, head: &Head, offset: u64, len: u64, waiter: Waiter, fill: &Fill<'_>) -> Result<Goal, Fault> {
        let state = lock(&self.state);
        let Some(slot) = state.slots.get(&head.request) else {
            return if head.request.0 < state.next {
                Ok(Goal::Discard)
            } else {
                Err(Fault::Malformed("it answers a request that was not sent"))
            };
        };
        let Expects::Data(total) = slot.expects else {
            return Err(Fault::Malformed("it answers another request"));
        };
        if slot.finished.is_some() || offset < slot.next {
            return Ok(Goal::Discard);
        }
        if offset > slot.next {
            return Err(Fault::Closed("a frame was lost"));
        }
        if len > total - offset {
            return Err(Fault::Malformed("it has more data than was asked for"));
        }
        if slot.is_abandoned {
            return Ok(Goal::Discard);
        }
        let is_mine = waiter == Waiter::Request(head.request) && fill.filled as u64 == offset;
        Ok(if is_mine { Goal::Fill } else { Goal::Keep })
    }

    /// An answer other than data has come.
    fn answered(&self, head: &Head, answer: &Answer<'_>) -> Result<()> {
        let mut state = lock(&self.state);
        let next = state.next;
        let Some(slot) = state.slots.get_mut(&head.request).filter(|slot| slot.finished.is_none()) else {
            return if head.request.0 < next {
                Ok(())
            } else {
                Err(Fault::Malformed("it answers a request that was not sent").error())
            };
        };
        let outcome = match (answer, slot.expects) {
            (Answer::Error(refusal), _) => Err(refusal.to_error()),
            (Answer::Done(done), _) if done.cancelled => Err(Fault::Cancelled.error()),
            (Answer::Registered(places), Expects::Places(count)) if places.len() == count => {
                Ok(Outcome::Registered(places.iter().collect()))
            }
            (Answer::Durable { position }, Expects::Durable) => Ok(Outcome::Durable(*position)),
            (Answer::Pong(word), Expects::Pong(asked)) if *word == asked => Ok(Outcome::Pong),
            (Answer::Done(done), Expects::Done) => Ok(Outcome::Done(*done)),
            (Answer::Done(done), Expects::Rows) if done.batches == slot.next => Ok(Outcome::Done(*done)),
            (Answer::Done(_), Expects::Rows) => return Err(Fault::Closed("a frame was lost").error()),
            (Answer::Batch { number, payload }, Expects::Rows) => {
                if *number < slot.next {
                    return Ok(());
                }
                if *number > slot.next {
                    return Err(Fault::Closed("a frame was lost").error());
                }
                slot.next += 1;
                slot.came += payload.len() as u64;
                if slot.came > slot.granted {
                    return Err(Fault::Malformed("it sends more rows than its credit").error());
                }
                if !slot.is_abandoned {
                    slot.received.push_back(payload.to_vec());
                    slot.wake.notify_all();
                }
                return Ok(());
            }
            _ => return Err(Fault::Malformed("it answers another request").error()),
        };
        self.finish(&mut state, head.request, outcome);
        Ok(())
    }

    /// The node has answered a request: its place and its bytes are free again.
    fn finish(&self, state: &mut State, number: RequestId, outcome: Result<Outcome>) {
        let Some(slot) = state.slots.get_mut(&number) else { return };
        let body_bytes = slot.body_bytes;
        slot.finished = Some(outcome);
        slot.wake.notify_all();
        if slot.is_abandoned {
            state.slots.remove(&number);
        }
        state.under_way -= 1;
        state.bytes -= body_bytes;
        if state.room_waiters > 0 {
            self.room.notify_all();
        }
    }
}
