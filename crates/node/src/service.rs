//! What a node does about requests.

use crate::arena::Arena;
use crate::room::{ROOT_BYTES, Room};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_wire::{
    Admission, Allocation, Done, Epoch, Extent, Identity, List, NodeFacts, Offer, Payload, Place, Request, Responder,
    Service,
};

/// Databases that a node has memory of.
pub const ROOMS_MAX: usize = 1024;

/// Runs that one database may have: each costs the node some hundred bytes of its own.
pub const RUNS_MAX: usize = 1 << 20;

/// Serves memory. Answers each request at once, on its connection's thread.
#[derive(Debug)]
pub struct Node {
    arena: Arena,
    facts: NodeFacts,
    rooms: Mutex<HashMap<Identity, Entry>>,
    counters: Counters,
}

#[derive(Debug)]
struct Entry {
    room: Arc<RwLock<Room>>,
    epoch: Epoch,
    connections: usize,
}

#[derive(Debug, Default)]
struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    flushes: AtomicU64,
    flushed_bytes: AtomicU64,
    publications: AtomicU64,
    refused: AtomicU64,
}

/// What a node has and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub bytes: u64,
    pub free_bytes: u64,
    /// Databases that have memory or connections.
    pub databases: usize,
    pub connections: usize,
    pub reads: u64,
    pub read_bytes: u64,
    pub flushes: u64,
    pub flushed_bytes: u64,
    pub publications: u64,
    /// Requests that were answered with an error.
    pub refused: u64,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} lent to {} databases over {} connections; {} reads of {}, {} writes of {}, {} publications, {} \
             requests refused",
            ByteSize(self.bytes - self.free_bytes),
            ByteSize(self.bytes),
            self.databases,
            self.connections,
            self.reads,
            ByteSize(self.read_bytes),
            self.flushes,
            ByteSize(self.flushed_bytes),
            self.publications,
            self.refused,
        )
    }
}

impl Node {
    /// Lends the arena's memory. Its content is new: nobody finds anything in it.
    pub fn new(arena: Arena) -> Result<Node> {
        let Identity(random) = Identity::random()?;
        let [word, _] = random.as_chunks::<8>().0 else { return Err(Error::internal("an identity has two words")) };
        let facts = NodeFacts {
            content: u64::from_le_bytes(*word).max(1),
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
            ..NodeFacts::default()
        };
        Ok(Node { arena, facts, rooms: Mutex::default(), counters: Counters::default() })
    }

    pub fn status(&self) -> Status {
        let rooms = self.rooms.lock();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Status {
            bytes: self.arena.bytes(),
            free_bytes: self.arena.free_bytes(),
            databases: rooms.len(),
            connections: rooms.values().map(|entry| entry.connections).sum(),
            reads: load(&self.counters.reads),
            read_bytes: load(&self.counters.read_bytes),
            flushes: load(&self.counters.flushes),
            flushed_bytes: load(&self.counters.flushed_bytes),
            publications: load(&self.counters.publications),
            refused: load(&self.counters.refused),
        }
    }

    /// Bytes that a database has here, by the purposes that it named.
    pub fn bytes_of(&self, database: Identity) -> Vec<(u16, u64)> {
        let room = self.rooms.lock().get(&database).map(|entry| entry.room.clone());
        room.map_or_else(Vec::new, |room| room.read().bytes_by_purpose().into_iter().collect())
    }

    fn room(&self, peer: &Offer) -> Result<Arc<RwLock<Room>>> {
        let rooms = self.rooms.lock();
        let entry = rooms.get(&peer.tablespace).ok_or_else(|| Error::internal("a connection without a room"))?;
        Ok(entry.room.clone())
    }

    fn register(&self, peer: &Offer, wanted: &List<'_, Allocation>) -> Result<Vec<Place>> {
        let wanted: Vec<Allocation> = wanted.iter().collect();
        if wanted.iter().any(|allocation| allocation.bytes == 0) {
            return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "an allocation of no bytes"));
        }
        let room = self.room(peer)?;
        let mut room = room.write();
        if room.runs() + wanted.len() > RUNS_MAX {
            return Err(Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "too many places are registered")
                .with_detail(format!("A database can have {RUNS_MAX} at a node.")));
        }
        room.register(&self.arena, peer.client, &wanted)
    }

    fn deregister(&self, peer: &Offer, places: &List<'_, Place>) -> Result<u64> {
        let places: Vec<Place> = places.iter().collect();
        let room = self.room(peer)?;
        let mut room = room.write();
        let bytes = room.deregister(&self.arena, peer.client, &places)?;
        if places.contains(&Place::OTHERS) {
            room.drop_staged();
            room.forget_root();
        }
        Ok(bytes)
    }

    /// The bytes of all extents in a row.
    fn read(&self, peer: &Offer, extents: &List<'_, Extent>, responder: Responder) -> Result<()> {
        let bytes: usize = extents.iter().map(|extent| extent.bytes as usize).sum();
        let mut buffer = vec![0; bytes];
        let copied = self.room(peer).and_then(|room| {
            // Held by all readers together; what is published at once has it alone.
            let room = room.read();
            let mut into = &mut buffer[..];
            for extent in extents.iter() {
                let (part, rest) = into.split_at_mut(extent.bytes as usize);
                if extent.place == Place::ROOT && part.len() <= ROOT_BYTES {
                    part.copy_from_slice(&room.published().encode()[..part.len()]);
                } else {
                    let found = room.find(&extent)?;
                    self.arena.read(found.start, part);
                }
                into = rest;
            }
            Ok(())
        });
        match copied {
            Ok(()) => {
                self.counters.reads.fetch_add(1, Ordering::Relaxed);
                self.counters.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
                responder.data(&[&buffer])
            }
            Err(error) => self.refuse(&error, responder),
        }
    }

    fn flush(&self, peer: &Offer, stage: u32, extents: &List<'_, Extent>, payload: Payload<'_>) -> Result<Done> {
        // What came over the wire is in one piece.
        let bytes = match payload {
            Payload::Whole(bytes) => bytes,
            Payload::Pieces(_) => return Err(Error::internal("a request's bytes are in pieces")),
        };
        let mut left = bytes;
        let split = extents.iter().map(|extent| {
            let (first, rest) = left.split_at(extent.bytes as usize);
            left = rest;
            (extent, first)
        });
        let writes: Vec<(Extent, &[u8])> = split.collect();
        let room = self.room(peer)?;
        if stage == 0 {
            room.read().write(&self.arena, &writes)?;
        } else {
            room.write().stage(stage, &writes)?;
        }
        self.counters.flushes.fetch_add(1, Ordering::Relaxed);
        self.counters.flushed_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(Done { bytes: bytes.len() as u64, ..Done::default() })
    }

    fn publish(&self, peer: &Offer, root: u64, number: u64) -> Result<Done> {
        let room = self.room(peer)?;
        let bytes = room.write().publish(&self.arena, root, number)?;
        self.counters.publications.fetch_add(1, Ordering::Relaxed);
        Ok(Done { bytes, ..Done::default() })
    }

    fn refuse(&self, error: &Error, responder: Responder) -> Result<()> {
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        responder.error(error)
    }

    fn answer(&self, peer: &Offer, request: Request<'_>, responder: Responder) -> Result<()> {
        let done = match request {
            Request::Ping(word) => return responder.pong(word),
            Request::Read(extents) => return self.read(peer, &extents, responder),
            Request::Register(wanted) => match self.register(peer, &wanted) {
                Ok(places) => return responder.registered(&places),
                Err(error) => Err(error),
            },
            Request::Deregister(places) => {
                self.deregister(peer, &places).map(|bytes| Done { bytes, ..Done::default() })
            }
            Request::Flush { stage, extents, payload } => self.flush(peer, stage, &extents, payload),
            Request::Publish { root, number } => self.publish(peer, root, number),
            Request::Append { .. } => Err(Error::unsupported("this node keeps no logs")),
            Request::Fragment { .. } => Err(Error::unsupported("this node runs no fragments of plans")),
            // The connection sees to these.
            Request::Credit { .. } | Request::Cancel => return Ok(()),
        };
        match done {
            Ok(done) => responder.done(done),
            Err(error) => self.refuse(&error, responder),
        }
    }
}

impl Service for Node {
    fn admit(&self, offer: &Offer) -> Result<Admission> {
        let rooms = self.rooms.lock();
        if !rooms.contains_key(&offer.tablespace) && rooms.len() >= ROOMS_MAX {
            return Err(Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "the memory node has too many databases")
                .with_detail(format!("It takes {ROOMS_MAX}.")));
        }
        let epoch = rooms.get(&offer.tablespace).map_or(Epoch(0), |entry| entry.epoch);
        Ok(Admission { facts: self.facts, epoch })
    }

    fn begun(&self, offer: &Offer) -> Result<()> {
        let mut rooms = self.rooms.lock();
        let entry = rooms.entry(offer.tablespace).or_insert_with(|| Entry {
            room: Arc::default(),
            epoch: offer.epoch,
            connections: 0,
        });
        entry.connections += 1;
        if entry.epoch < offer.epoch {
            entry.epoch = offer.epoch;
            // What an older epoch staged and did not publish is in force never.
            entry.room.write().drop_staged();
        }
        Ok(())
    }

    fn serve(&self, peer: &Offer, request: Request<'_>, responder: Responder) {
        // An error: the peer is gone, which its connection notices.
        let _ = self.answer(peer, request, responder);
    }

    fn left(&self, peer: &Offer) {
        let mut rooms = self.rooms.lock();
        if let Some(entry) = rooms.get_mut(&peer.tablespace) {
            entry.connections -= 1;
            // A room with memory is kept for the next process; an empty one is forgotten.
            if entry.connections == 0 && entry.room.read().is_empty() {
                rooms.remove(&peer.tablespace);
            }
        }
    }
}
