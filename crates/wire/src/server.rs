//! The node's side: a thread a connection, which reads requests and hands them to a [`Service`].
//!
//! The service answers at once, on that thread, or keeps the [`Responder`] and answers from another one later. So
//! answers come in any order. A `CANCEL` is seen while others work; it raises a flag at the request that it names.

use crate::clock::Clock;
use crate::codec::Payload;
use crate::fault::Fault;
use crate::fence::{Fences, Gate, Inside};
use crate::frame::{DATA_PREFIX_BYTES, Epoch, Flags, HEAD_BYTES, Head, Kind, RequestId};
use crate::hello::{self, Agreement, Identity, NodeFacts, Offer};
use crate::limits::{Limits, REQUESTS_MAX};
use crate::message::{Answer, Done, Place, Refusal, Request, total_bytes};
use crate::sync::{Condvar, Mutex, lock, wait_for};
use crate::token::Token;
use crate::transport::stream::{Knock, Listener};
use crate::transport::{Closer, Halves, Incoming, Outgoing, Transport, send_whole};
use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result, SqlState};

/// How often a thread that waits looks whether it should go on waiting.
const TICK: Duration = Duration::from_millis(500);

/// No frame of data has more: what other requests' answers wait for is this at most.
const DATA_BYTES_MAX: usize = 1 << 20;

/// What a node does about requests.
pub trait Service: Send + Sync + 'static {
    /// Whether there is such a tablespace. The peer has proved that it knows the token.
    fn admit(&self, offer: &Offer) -> Result<Admission>;

    /// The offer's epoch is the tablespace's now, and no older one has effects any more. Called for each connection,
    /// before it is welcome: a service that outlives its process makes the epoch durable here.
    fn begun(&self, offer: &Offer) -> Result<()> {
        let _ = offer;
        Ok(())
    }

    /// Answers a request, now or later. Requests come from several connections at once. A panic leaves the request
    /// without an answer, of which the peer is told.
    fn serve(&self, peer: &Offer, request: Request<'_>, responder: Responder);

    /// The connection is over, and so are its requests.
    fn left(&self, peer: &Offer) {
        let _ = peer;
    }
}

/// What a service says of a tablespace.
#[derive(Clone, Copy, Debug, Default)]
pub struct Admission {
    pub facts: NodeFacts,
    /// The greatest epoch that it knows of.
    pub epoch: Epoch,
}

#[derive(Clone, Copy, Debug)]
pub struct ServerConfig {
    pub limits: Limits,
    /// Connections at one time, those included that have not proved yet that they may have one.
    pub connections: usize,
    /// How long a peer may take for each step of the handshake.
    pub handshake: Duration,
    /// How long a new connection waits for what older ones are at, which it ends.
    pub patience: Duration,
    /// Whether data goes without a checksum to peers on the same machine that agree.
    pub bare_data: bool,
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig {
            limits: Limits::default(),
            connections: 1024,
            handshake: Duration::from_secs(10),
            patience: Duration::from_secs(5),
            bare_data: true,
        }
    }
}

/// A node's end of all its connections.
pub struct Server<S> {
    service: S,
    token: Token,
    config: ServerConfig,
    fences: Fences,
    open: Mutex<Open>,
    /// A connection ended.
    ended: Condvar,
    stopping: AtomicBool,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    connections: HashMap<u64, Option<Arc<dyn Closer>>>,
    knocks: Vec<Knock>,
}

impl<S> fmt::Debug for Server<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("config", &self.config).finish_non_exhaustive()
    }
}

impl<S: Service> Server<S> {
    pub fn new(service: S, token: Token, config: ServerConfig) -> Result<Arc<Server<S>>> {
        config.limits.check().map_err(Fault::error)?;
        Ok(Arc::new(Server {
            service,
            token,
            config,
            fences: Fences::default(),
            open: Mutex::default(),
            ended: Condvar::new(),
            stopping: AtomicBool::new(false),
        }))
    }

    pub fn service(&self) -> &S {
        &self.service
    }

    /// The greatest epoch that came for a tablespace.
    pub fn epoch(&self, tablespace: Identity) -> Option<Epoch> {
        self.fences.epoch(tablespace)
    }

    /// Connections that are open.
    pub fn connections(&self) -> usize {
        lock(&self.open).connections.len()
    }

    /// Serves all that connect, each on a thread, until the server is stopped.
    pub fn listen(self: &Arc<Self>, listener: &Listener) -> Result<()> {
        let knock = listener.knock().map_err(|error| Error::io("find out the address of a socket", &error))?;
        lock(&self.open).knocks.push(knock);
        while !self.stopping.load(Ordering::SeqCst) {
            let transport = match listener.accept() {
                Ok(transport) => transport,
                // The peer gave up, or there are too many descriptors: there may be fewer soon.
                Err(_) => {
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                }
            };
            let server = self.clone();
            let named = std::thread::Builder::new().name("wire".to_owned());
            // Without a thread the connection is closed, which its peer sees.
            let _ = named.spawn(move || server.serve(transport));
        }
        Ok(())
    }

    /// Ends all connections and listening, and returns when the last connection is over.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        let mut open = lock(&self.open);
        for closer in open.connections.values().flatten() {
            closer.close();
        }
        for knock in std::mem::take(&mut open.knocks) {
            knock.knock();
        }
        while !open.connections.is_empty() {
            (open, _) = wait_for(&self.ended, open, TICK);
        }
    }

    /// Serves one connection, on this thread, until it is over. Returns why it ended.
    pub fn serve(self: &Arc<Self>, transport: Box<dyn Transport>) -> Result<()> {
        let mut halves = transport.split()?;
        let number = {
            let mut open = lock(&self.open);
            open.next += 1;
            let number = open.next;
            if !self.stopping.load(Ordering::SeqCst) && open.connections.len() < self.config.connections {
                open.connections.insert(number, Some(halves.closer.clone()));
                Some(number)
            } else {
                None
            }
        };
        let Some(number) = number else {
            let limit = self.config.connections as u64;
            let error = Fault::Busy { what: "connections", limit }.error();
            hello::refuse(&mut halves, &error);
            return Err(error);
        };
        let served = self.serve_counted(halves);
        lock(&self.open).connections.remove(&number);
        self.ended.notify_all();
        served
    }

    fn serve_counted(self: &Arc<Self>, mut halves: Halves) -> Result<()> {
        let guest = match hello::challenge(&mut halves, &self.token, self.config.handshake) {
            Ok(guest) => guest,
            Err(error) => {
                // The peer may be gone.
                let _ = hello::send_refusal(&mut halves, Epoch(0), &error);
                return Err(error);
            }
        };
        let offer = guest.offer;
        let admission = match self.service.admit(&offer) {
            Ok(admission) => admission,
            Err(error) => {
                let _ = hello::send_refusal(&mut halves, offer.epoch, &error);
                return Err(error);
            }
        };
        let agreement = Agreement {
            facts: admission.facts,
            limits: self.config.limits.lesser(offer.limits),
            bare_data: self.config.bare_data && offer.bare_data && halves.is_local,
        };
        // Until the peer is welcome, this thread alone sends; then all send by the wire.
        let wire = Arc::new(Wire {
            out: Mutex::new(None),
            closer: halves.closer.clone(),
            clock: halves.clock.clone(),
            epoch: offer.epoch,
            agreement,
            tasks: Mutex::default(),
            is_over: AtomicBool::new(false),
        });
        let of_gate = wire.clone();
        let gate = Gate::new(offer, Box::new(move |fault| of_gate.end(fault)));
        let let_in = self
            .fences
            .admit(&gate, admission.epoch, self.config.patience)
            .and_then(|()| agreement.limits.check().map_err(Fault::error))
            .and_then(|()| self.service.begun(&offer).inspect_err(|_| self.fences.leave(&gate)));
        if let Err(error) = let_in {
            let _ = hello::send_refusal(&mut halves, offer.epoch, &error);
            return Err(error);
        }
        let served = hello::welcome(&mut halves, &guest, &agreement).and_then(|()| {
            let Halves { outgoing, mut incoming, .. } = halves;
            *lock(&wire.out) = Some(Out { outgoing, prefix: Vec::new() });
            let served = self.serve_requests(&mut *incoming, &offer, &wire, &gate);
            let fault = served.err().unwrap_or(Fault::Closed("the node ended it"));
            if fault.code() != SqlState::CONNECTION_FAILURE {
                wire.tell(fault);
            }
            Err(fault.error())
        });
        gate.close(Fault::Closed("it is over"));
        wire.give_up();
        gate.wait_empty_for_good();
        self.fences.leave(&gate);
        self.service.left(&offer);
        served
    }

    fn serve_requests(
        &self,
        incoming: &mut dyn Incoming,
        peer: &Offer,
        wire: &Arc<Wire>,
        gate: &Arc<Gate>,
    ) -> Result<(), Fault> {
        let limits = wire.agreement.limits;
        let mut seen = Seen::default();
        let mut buffer = Vec::new();
        loop {
            let mut head = [0; HEAD_BYTES];
            if !incoming.begin(&mut head, TICK)? {
                if let Some(fault) = gate.closed() {
                    return Err(fault);
                }
                continue;
            }
            let head = Head::decode(&head, limits.frame_bytes)?;
            let len = head.len as usize;
            if buffer.len() < len {
                buffer.resize(len, 0);
            }
            let body = &mut buffer[..len];
            incoming.receive(body)?;
            head.check_body(body)?;
            if head.epoch != peer.epoch {
                return Err(match head.epoch < peer.epoch {
                    true => Fault::Fenced { epoch: head.epoch.0, current: peer.epoch.0 },
                    false => Fault::Malformed("a new epoch needs a new connection"),
                });
            }
            if head.request == RequestId::CONNECTION {
                return Err(Fault::Malformed("a request has no number"));
            }
            let request = Request::decode(head.kind, head.flags, body)?;
            match request {
                Request::Credit { granted } => wire.grant(head.request, granted)?,
                Request::Cancel => {
                    if !wire.cancel(head.request) && seen.insert(head.request) {
                        // It has not come yet, and will be passed over when it does.
                        let inside = gate.enter()?;
                        wire.send(head.request, &Answer::Done(Done { cancelled: true, ..Done::default() }), true)?;
                        drop(inside);
                    }
                }
                request => {
                    // Twice, or so late that its sender has given it up: it must not happen.
                    if !seen.insert(head.request) {
                        continue;
                    }
                    let inside = gate.enter()?;
                    if let Some(responder) = wire.begin(head, &request, inside)? {
                        // The responder says that there is no answer, and other requests go on.
                        let _ = catch_unwind(AssertUnwindSafe(|| self.service.serve(peer, request, responder)));
                    }
                }
            }
        }
    }
}

/// Numbers of requests that came, as far back as one can still be on its way.
#[derive(Debug)]
struct Seen {
    last: u64,
    bits: Box<[u64; Seen::WORDS]>,
}

impl Default for Seen {
    fn default() -> Seen {
        Seen { last: 0, bits: Box::new([0; Seen::WORDS]) }
    }
}

impl Seen {
    const WORDS: usize = REQUESTS_MAX as usize * 4 / 64;
    const NUMBERS: u64 = Seen::WORDS as u64 * 64;

    /// False if it came before, or is so far back that it may have.
    fn insert(&mut self, request: RequestId) -> bool {
        let number = request.0;
        if number > self.last {
            // What the ring had of numbers that are too far back now makes room for those that have not come.
            let first = (self.last + 1).max(number.saturating_sub(Seen::NUMBERS - 1));
            for passed in first..=number {
                self.bits[Seen::word(passed)] &= !Seen::bit(passed);
            }
            self.last = number;
        } else if self.last - number >= Seen::NUMBERS {
            return false;
        }
        let (word, bit) = (&mut self.bits[Seen::word(number)], Seen::bit(number));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    fn word(number: u64) -> usize {
        (number % Seen::NUMBERS / 64) as usize
    }

    fn bit(number: u64) -> u64 {
        1 << (number % 64)
    }
}

/// A connection, as those see it that answer.
#[derive(Debug)]
struct Wire {
    /// `None` until the peer is welcome.
    out: Mutex<Option<Out>>,
    closer: Arc<dyn Closer>,
    clock: Arc<dyn Clock>,
    epoch: Epoch,
    agreement: Agreement,
    tasks: Mutex<Tasks>,
    is_over: AtomicBool,
}

#[derive(Debug)]
struct Out {
    outgoing: Box<dyn Outgoing>,
    prefix: Vec<u8>,
}

#[derive(Debug, Default)]
struct Tasks {
    by_number: HashMap<RequestId, Arc<Task>>,
    /// Of all their bodies.
    bytes: u64,
}

/// A request that is under way.
#[derive(Debug)]
struct Task {
    kind: Kind,
    body_bytes: u64,
    /// Bytes of data that it asked for.
    data_bytes: u64,
    is_cancelled: AtomicBool,
    credit: Mutex<Credit>,
    changed: Condvar,
    batches: AtomicU64,
}

#[derive(Debug)]
struct Credit {
    granted: u64,
    used: u64,
}

impl Wire {
    fn send(&self, request: RequestId, answer: &Answer<'_>, last: bool) -> Result<(), Fault> {
        let mut out = lock(&self.out);
        let Some(Out { outgoing, prefix }) = &mut *out else {
            return Err(Fault::Closed("it is not open yet"));
        };
        let mut flags = if last { Flags::ANSWER.with(Flags::LAST) } else { Flags::ANSWER };
        if self.agreement.bare_data && answer.kind() == Kind::Data {
            flags = flags.with(Flags::BARE);
        }
        prefix.clear();
        let payload = answer.encode(prefix)?;
        let mut frame: Vec<&[u8]> = Vec::with_capacity(8);
        frame.push(prefix);
        frame.extend(payload.pieces());
        let head = Head::of(answer.kind(), flags, request, self.epoch, &frame)?.encode();
        frame.insert(0, &head);
        let sent = send_whole(&mut **outgoing, &*self.clock, &frame);
        if sent.is_err() {
            self.closer.close();
        }
        sent
    }

    /// Tells the peer why the connection ends, if that can be done without waiting.
    fn tell(&self, fault: Fault) {
        let error = fault.error();
        let mut body = Vec::new();
        let flags = Flags::ANSWER.with(Flags::LAST);
        let encoded = Answer::Error(Refusal::of(&error)).encode(&mut body);
        // The newer epoch's number is in the text: the frame is of this connection.
        let head = encoded.and_then(|_| Head::of(Kind::Error, flags, RequestId::CONNECTION, self.epoch, &[&body]));
        if let Ok(head) = head
            && let Ok(mut out) = self.out.try_lock()
            && let Some(out) = &mut *out
        {
            // It is closed whether or not this got through.
            let _ = out.outgoing.send(&[&head.encode(), &body], &mut 0);
        }
    }

    fn end(&self, fault: Fault) {
        self.tell(fault);
        self.closer.close();
        self.give_up();
    }

    /// Has all that are at work for the connection stop.
    fn give_up(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        for task in lock(&self.tasks).by_number.values() {
            task.cancel();
        }
    }

    /// Takes a request up, or refuses it.
    fn begin(self: &Arc<Wire>, head: Head, request: &Request<'_>, inside: Inside) -> Result<Option<Responder>, Fault> {
        let limits = self.agreement.limits;
        let data_bytes = match request {
            Request::Read(extents) => total_bytes(extents),
            _ => 0,
        };
        let (granted, needed) = match *request {
            Request::Fragment { credit, .. } => (credit, u64::from(limits.batch_bytes)),
            _ => (0, 0),
        };
        let task = Arc::new(Task {
            kind: head.kind,
            body_bytes: head.len.into(),
            data_bytes,
            is_cancelled: AtomicBool::new(false),
            credit: Mutex::new(Credit { granted, used: 0 }),
            changed: Condvar::new(),
            batches: AtomicU64::new(0),
        });
        let refused = {
            let mut tasks = lock(&self.tasks);
            if tasks.bytes + task.body_bytes > limits.request_bytes {
                return Err(Fault::Malformed("it has more bytes under way than its credit"));
            }
            if tasks.by_number.len() >= limits.requests as usize {
                Some(Fault::Busy { what: "requests", limit: limits.requests.into() })
            } else if data_bytes > limits.read_bytes {
                Some(Fault::Beyond { what: "bytes to read", asked: data_bytes, limit: limits.read_bytes })
            } else if granted > limits.credit_bytes {
                Some(Fault::Beyond { what: "bytes of credit", asked: granted, limit: limits.credit_bytes })
            } else if granted < needed {
                Some(Fault::Malformed("its credit is less than a batch"))
            } else {
                tasks.bytes += task.body_bytes;
                tasks.by_number.insert(head.request, task.clone());
                None
            }
        };
        if let Some(fault) = refused {
            let error = fault.error();
            self.send(head.request, &Answer::Error(Refusal::of(&error)), true)?;
            return Ok(None);
        }
        if self.is_over.load(Ordering::SeqCst) {
            task.cancel();
        }
        Ok(Some(Responder { wire: self.clone(), number: head.request, task, is_answered: false, _inside: inside }))
    }

    fn task(&self, number: RequestId) -> Option<Arc<Task>> {
        lock(&self.tasks).by_number.get(&number).cloned()
    }

    /// False if no such request is under way.
    fn cancel(&self, number: RequestId) -> bool {
        self.task(number).is_some_and(|task| {
            task.cancel();
            true
        })
    }

    fn grant(&self, number: RequestId, granted: u64) -> Result<(), Fault> {
        // It may have ended meanwhile.
        let Some(task) = self.task(number) else { return Ok(()) };
        let mut credit = lock(&task.credit);
        if granted > credit.used.saturating_add(self.agreement.limits.credit_bytes) {
            return Err(Fault::Malformed("it grants more than the limit"));
        }
        credit.granted = credit.granted.max(granted);
        task.changed.notify_all();
        Ok(())
    }
}

impl Task {
    fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::SeqCst);
        let _credit = lock(&self.credit);
        self.changed.notify_all();
    }
}

/// Answers one request, once. If it is dropped before, the peer is told that there is no answer; of a fragment that was
/// cancelled, that it was.
#[derive(Debug)]
pub struct Responder {
    wire: Arc<Wire>,
    number: RequestId,
    task: Arc<Task>,
    is_answered: bool,
    /// Who takes the tablespace over waits for this.
    _inside: Inside,
}

impl Responder {
    /// The peer does not want it any more, or is gone. What has had no effect yet should have none, and be
    /// [`cancelled`](Responder::cancelled).
    pub fn is_cancelled(&self) -> bool {
        self.task.is_cancelled.load(Ordering::SeqCst)
    }

    pub fn limits(&self) -> Limits {
        self.wire.agreement.limits
    }

    fn finish(mut self, answer: &Answer<'_>) -> Result<()> {
        self.finish_by_ref(answer)
    }

    fn finish_by_ref(&mut self, answer: &Answer<'_>) -> Result<()> {
        let answer = match *answer {
            Answer::Done(done) => Answer::Done(Done { batches: self.task.batches.load(Ordering::Relaxed), ..done }),
            answer => answer,
        };
        self.forget();
        self.wire.send(self.number, &answer, true).map_err(Fault::error)
    }

    /// Gives the request's place back. Before its last frame goes: the peer counts as few as this side then, or more.
    fn forget(&mut self) {
        self.is_answered = true;
        let mut tasks = lock(&self.wire.tasks);
        if tasks.by_number.remove(&self.number).is_some() {
            tasks.bytes -= self.task.body_bytes;
        }
    }

    /// The answer to a `REGISTER`.
    pub fn registered(self, places: &[Place]) -> Result<()> {
        self.finish(&Answer::Registered(crate::codec::List::new(places)))
    }

    /// The answer to an `APPEND`.
    pub fn durable(self, position: u64) -> Result<()> {
        self.finish(&Answer::Durable { position })
    }

    /// The answer to a `PING`.
    pub fn pong(self, word: u64) -> Result<()> {
        self.finish(&Answer::Pong(word))
    }

    /// The answer to a `FLUSH`, a `PUBLISH`, a `DEREGISTER`, and the end of a fragment's.
    pub fn done(self, done: Done) -> Result<()> {
        self.finish(&Answer::Done(done))
    }

    /// The request was given up, and had no effect.
    pub fn cancelled(self) -> Result<()> {
        self.finish(&Answer::Done(Done { cancelled: true, ..Done::default() }))
    }

    pub fn error(self, error: &Error) -> Result<()> {
        self.finish(&Answer::Error(Refusal::of(error)))
    }

    /// The answer to a `READ`: the bytes of its extents in a row, which are sent from where they are.
    pub fn data(mut self, pieces: &[&[u8]]) -> Result<()> {
        let total: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        if self.task.kind != Kind::Read || total != self.task.data_bytes {
            return self.error(&Error::internal(format!("{total} bytes answer a request for other ones")));
        }
        let room = (self.limits().frame_bytes as usize).min(DATA_BYTES_MAX) - DATA_PREFIX_BYTES;
        if total as usize <= room {
            return self.finish(&Answer::Data { offset: 0, payload: Payload::Pieces(pieces) });
        }
        let (mut offset, mut left) = (0, room);
        let mut frame: Vec<&[u8]> = Vec::new();
        for piece in pieces {
            let mut piece = *piece;
            while piece.len() >= left {
                let (first, rest) = piece.split_at(left);
                frame.push(first);
                let last = offset + room as u64 == total;
                if last {
                    self.forget();
                } else if self.is_cancelled() {
                    return self.cancelled();
                }
                let answer = Answer::Data { offset, payload: Payload::Pieces(&frame) };
                self.wire.send(self.number, &answer, last).map_err(Fault::error)?;
                if last {
                    return Ok(());
                }
                offset += room as u64;
                (piece, left) = (rest, room);
                frame.clear();
            }
            left -= piece.len();
            if !piece.is_empty() {
                frame.push(piece);
            }
        }
        self.finish(&Answer::Data { offset, payload: Payload::Pieces(&frame) })
    }

    /// Some rows of a fragment. Waits until the peer has room for them.
    pub fn batch(&mut self, bytes: &[u8]) -> Result<()> {
        let (asked, limit) = (bytes.len() as u64, u64::from(self.limits().batch_bytes));
        if asked > limit {
            return Err(Fault::Beyond { what: "bytes of a batch", asked, limit }.error());
        }
        if self.task.kind != Kind::Fragment {
            return Err(Error::internal("rows answer a request for none"));
        }
        let mut credit = lock(&self.task.credit);
        while credit.granted - credit.used < asked && !self.is_cancelled() {
            (credit, _) = wait_for(&self.task.changed, credit, TICK);
        }
        if self.is_cancelled() {
            return Err(Fault::Cancelled.error());
        }
        credit.used += asked;
        drop(credit);
        let number = self.task.batches.fetch_add(1, Ordering::Relaxed);
        self.wire.send(self.number, &Answer::Batch { number, payload: bytes }, false).map_err(Fault::error)
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if !self.is_answered {
            let error = Error::internal("the node has no answer");
            let answer = match self.is_cancelled() && self.task.kind == Kind::Fragment {
                true => Answer::Done(Done { cancelled: true, ..Done::default() }),
                false => Answer::Error(Refusal::of(&error)),
            };
            // The connection may be over.
            let _ = self.finish_by_ref(&answer);
        }
    }
}

impl Gate {
    fn wait_empty_for_good(&self) {
        while !self.wait_empty(Instant::now() + TICK) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_taken_up_once_and_not_when_it_is_too_late() {
        let mut seen = Seen::default();
        for number in [1, 3, 2, 70, 69] {
            assert!(seen.insert(RequestId(number)), "{number}");
            assert!(!seen.insert(RequestId(number)), "{number}");
        }
        let far = 70 + Seen::NUMBERS;
        assert!(seen.insert(RequestId(far)));
        assert!(!seen.insert(RequestId(70)) && !seen.insert(RequestId(4)));
        assert!(seen.insert(RequestId(71)) && !seen.insert(RequestId(71)));
        assert!(seen.insert(RequestId(u64::MAX)) && !seen.insert(RequestId(far)));
        assert!(seen.insert(RequestId(u64::MAX - Seen::NUMBERS + 1)));
        assert!(!seen.insert(RequestId(u64::MAX - Seen::NUMBERS)));
    }
}
