//! A node over an array, and what its clients begin with.
#![allow(dead_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tidepool_base::{Error, Result, SqlState};
use tidepool_wire::{
    Admission, Done, Epoch, Extent, Identity, Limits, NodeFacts, Offer, Place, Request, Responder, Server,
    ServerConfig, Service, Timeouts, Token,
};

pub const TABLESPACE: Identity = Identity([5; 16]);

/// Keeps bytes, and answers fragments with rows that it makes: `plan` is (batches u32, bytes of each u32).
pub struct ArrayNode {
    pub memory: Mutex<Vec<u8>>,
    pub requests: AtomicU64,
    pub epoch: AtomicU64,
    /// Plans of no bytes wait here until they are cancelled.
    pub waiting: AtomicU64,
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl ArrayNode {
    pub fn new(bytes: usize) -> ArrayNode {
        ArrayNode {
            memory: Mutex::new(vec![0; bytes]),
            requests: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
        }
    }

    fn answer(&self, request: Request<'_>, responder: Responder) -> Result<()> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        match request {
            Request::Register(allocations) => {
                let places: Vec<Place> = allocations.iter().map(|allocation| Place(allocation.bytes)).collect();
                responder.registered(&places)
            }
            Request::Read(extents) => {
                // Under the lock: what is sent is of one moment.
                let memory = lock(&self.memory);
                let pieces: Option<Vec<&[u8]>> = extents.iter().map(|extent| memory.get(range(extent))).collect();
                match pieces {
                    Some(pieces) => responder.data(&pieces),
                    None => responder.error(&outside()),
                }
            }
            Request::Flush { extents, payload, .. } => {
                let bytes = payload.to_vec();
                let mut memory = lock(&self.memory);
                let mut from = &bytes[..];
                for extent in extents.iter() {
                    let (first, rest) = from.split_at(extent.bytes as usize);
                    match memory.get_mut(range(extent)) {
                        Some(to) => to.copy_from_slice(first),
                        None => return responder.error(&outside()),
                    }
                    from = rest;
                }
                drop(memory);
                responder.done(Done { bytes: bytes.len() as u64, ..Done::default() })
            }
            Request::Append { position, payload, .. } => responder.durable(position + payload.len() as u64),
            Request::Fragment { plan: [], .. } => {
                self.waiting.fetch_add(1, Ordering::SeqCst);
                while !responder.is_cancelled() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                responder.cancelled()
            }
            Request::Fragment { plan, .. } => {
                let (batches, len) = shape(plan);
                let mut responder = responder;
                for number in 0..batches {
                    responder.batch(&vec![number as u8; len])?;
                }
                responder.done(Done { rows: u64::from(batches), ..Done::default() })
            }
            Request::Publish { root: u64::MAX, .. } => panic!("a defect of the service"),
            Request::Ping(word) => responder.pong(word),
            _ => responder.done(Done::default()),
        }
    }
}

fn range(extent: Extent) -> std::ops::Range<usize> {
    let start = extent.place.0 as usize;
    start..start.saturating_add(extent.bytes as usize)
}

fn outside() -> Error {
    Error::new(SqlState::INVALID_PARAMETER_VALUE, "there is no such place").with_hint("Ask for another.")
}

pub fn plan(batches: u32, len: u32) -> Vec<u8> {
    [batches.to_le_bytes(), len.to_le_bytes()].concat()
}

fn shape(plan: &[u8]) -> (u32, usize) {
    let word = |at: usize| u32::from_le_bytes(plan[at..at + 4].try_into().unwrap());
    (word(0), word(4) as usize)
}

/// The node as a service: fragments run on threads of their own.
pub struct ArrayService(pub Arc<ArrayNode>);

impl Service for ArrayService {
    fn admit(&self, offer: &Offer) -> Result<Admission> {
        if offer.tablespace != TABLESPACE {
            return Err(Error::new(SqlState::UNDEFINED_OBJECT, "there is no such tablespace"));
        }
        let facts = NodeFacts { content: 42, cores: 2, row_nanoseconds: 3, ..NodeFacts::default() };
        Ok(Admission { facts, epoch: Epoch(self.0.epoch.load(Ordering::SeqCst)) })
    }

    fn begun(&self, offer: &Offer) -> Result<()> {
        self.0.epoch.fetch_max(offer.epoch.0, Ordering::SeqCst);
        Ok(())
    }

    fn serve(&self, _: &Offer, request: Request<'_>, responder: Responder) {
        // An error here says that the peer is gone.
        if let Request::Fragment { credit, plan } = request {
            let (node, plan) = (self.0.clone(), plan.to_vec());
            std::thread::spawn(move || drop(node.answer(Request::Fragment { credit, plan: &plan }, responder)));
        } else {
            drop(self.0.answer(request, responder));
        }
    }
}

pub fn token() -> Token {
    Token::new(b"a token that both sides know").unwrap()
}

pub fn server(bytes: usize, config: ServerConfig) -> (Arc<ArrayNode>, Arc<Server<ArrayService>>) {
    let node = Arc::new(ArrayNode::new(bytes));
    let server = Server::new(ArrayService(node.clone()), token(), config).unwrap();
    (node, server)
}

pub fn offer(epoch: u64, client: u8, lane: u32, incarnation: u64) -> Offer {
    Offer {
        tablespace: TABLESPACE,
        epoch: Epoch(epoch),
        client: Identity([client; 16]),
        lane,
        incarnation,
        limits: Limits::default(),
        bare_data: true,
    }
}

/// So long that no test waits for one of them to pass.
pub const PATIENT: Timeouts = Timeouts {
    handshake: Duration::from_secs(120),
    request: Duration::from_secs(120),
    grace: Duration::from_secs(120),
};

pub fn extent(place: u64, bytes: u32) -> Extent {
    Extent { place: Place(place), bytes }
}
