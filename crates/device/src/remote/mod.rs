//! A memory node's memory as what paged memory is fetched from: pages over a real network.
//!
//! [`NodeStore`] does inside of a fault what a fault needs: it brings a page, and it sends pages that leave the cache. It
//! allocates nothing there, and waits for nobody but the network, and for that not for long.
//!
//! # No page is lost
//!
//! Every page that is sent is also written to [`copies`], a file of this machine. So each page has content in two places,
//! of which the node's is the fast one. For each page the store knows in which *generation* of the node's memory it was
//! sent there last. When a connection fails or is silent for too long, the node is *away*: pages come from the copies and
//! go there alone, at the disk's speed, and no statement notices anything else. The [`keeper`], a thread, connects anew. If
//! the node's content number is what it was, its pages count again, but for those that were written meanwhile. If it is
//! another one, the node has lost its memory: a new generation begins, in which it has nothing. In both cases the keeper
//! then sends it, in the background, what it has not.
//!
//! What was sent and not acknowledged may still be on its way when the node counts as away. It arrives before the lane that
//! sent it is connected anew, or never (`tidepool-wire`'s fences), and nothing else is sent before that.

mod address;
mod copies;
mod frames;
mod keeper;
mod lanes;
mod tenant;

pub use address::{NodeAddress, read_token};
pub(crate) use keeper::Keeper;
pub use tenant::Tenant;

use crate::paged::storage::Slots;
use crate::{HUGE_PAGE_BYTES, PAGE_BYTES, stop};
use copies::Copies;
pub(crate) use frames::Frames;
use lanes::{Claim, Lanes};
use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_wire::{Allocation, Connection, Extent, Fault, Limits, Offer, Place, Timeouts, Token};

/// Pages that one request moves.
pub(crate) const EXCHANGE_PAGES: usize = 16;

/// What is registered at a node at once. Each is one run of the node's memory.
pub(crate) const CHUNK_BYTES: usize = HUGE_PAGE_BYTES;

/// How long a fault waits for the node before the node counts as away.
const FAULT_PATIENCE: Duration = Duration::from_secs(1);

/// How long everything else waits for it.
const CONTROL_PATIENCE: Duration = Duration::from_secs(5);

const HANDSHAKE: Duration = Duration::from_secs(2);

/// Which memory node, and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeSettings {
    pub address: NodeAddress,
    /// A file with the token that the node was given. `None`: a node of this machine that was given none.
    pub token: Option<PathBuf>,
    pub policy: Policy,
}

/// How it is decided which pages are in the local cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// By what the database says that it is about to read, and by what is small and important.
    #[default]
    Managed,
    /// As an operating system would: pages come when they are touched, one by one.
    Os,
}

impl Policy {
    pub fn name(self) -> &'static str {
        match self {
            Policy::Managed => "managed",
            Policy::Os => "os",
        }
    }
}

/// What to do about a node that cannot be reached when its memory is first wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// There is no memory then.
    Refused,
    /// Its pages are kept in copies on this machine until it is there.
    Awaited,
}

/// What became of the connection to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCounters {
    /// The node is there: pages come from it.
    pub is_up: bool,
    /// Times that it was found to be away.
    pub losses: u64,
    /// Times that it came back without what it had held.
    pub emptied: u64,
    /// Pages that came from this machine's copies instead.
    pub fetched_from_copies: u64,
    /// Pages that were sent to it again after it was away.
    pub refilled: u64,
    /// Requests for pages and with pages, and what threads waited for them.
    pub exchanges: u64,
    pub waited_ns: u64,
}

#[derive(Debug, Default)]
struct Counters {
    losses: AtomicU64,
    emptied: AtomicU64,
    fetched_from_copies: AtomicU64,
    refilled: AtomicU64,
    exchanges: AtomicU64,
    waited_ns: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct NodeStore {
    settings: NodeSettings,
    token: Token,
    tenant: Tenant,
    /// The first of its lanes' numbers: no other connection of the process has them.
    lanes_from: u32,
    lanes: Lanes,
    pub frames: Frames,
    copies: Copies,
    /// Of each chunk, its place at the node plus one; zero: it is not registered.
    places: Slots<AtomicU64>,
    /// Of each page, the generation in which the node was sent its content. Changed under the page's lock.
    sent_in: Slots<AtomicU32>,
    /// Bytes that there are.
    len: AtomicUsize,
    /// From one on. What was sent in an earlier one is lost.
    generation: AtomicU32,
    /// Whether pages are asked for at the node, and sent there.
    is_up: AtomicBool,
    /// Whether the keeper has something to send that the node has not.
    lacks: AtomicBool,
    control: Mutex<Control>,
    counters: Counters,
}

/// For what is not done inside of faults.
#[derive(Debug)]
struct Control {
    connection: Option<Connection>,
    /// The node's content number.
    content: u64,
    /// Bytes that are registered, in whole chunks.
    registered: usize,
    incarnation: u64,
    /// To be given back when the node is there again.
    owed: Vec<Place>,
}

thread_local! {
    // Constant and without a destructor, as in `paged::space`.
    /// What this thread has waited for nodes, ns.
    static WAITED_NS: Cell<u64> = const { Cell::new(0) };
}

/// What this thread has waited for nodes since it began, ns.
pub(crate) fn waited_ns() -> u64 {
    WAITED_NS.get()
}

/// More threads than this fault at a time only where there are more processors.
fn lane_count() -> usize {
    std::thread::available_parallelism().map_or(4, |cores| (cores.get() * 2).clamp(4, 32))
}

impl NodeStore {
    /// Connects, gives back what an earlier process of the tenant had, and registers `len` bytes. `pages` is how many there
    /// can be at most; `frames_base` the start of as many pages for frames.
    ///
    /// 08006, 28P01 or 53200 as the node says; 53100 if this machine's disk has no room for copies.
    pub fn open(
        settings: &NodeSettings,
        tenant: &Tenant,
        len: usize,
        pages: u32,
        frames_base: usize,
        absence: Absence,
    ) -> Result<NodeStore> {
        let token = match &settings.token {
            Some(path) => read_token(path)?,
            None => NodeAddress::local_token()?,
        };
        let no_memory = || Error::new(SqlState::OUT_OF_MEMORY, "out of memory for the books of remote memory");
        let chunks = pages as usize / (CHUNK_BYTES / PAGE_BYTES) + 1;
        let count = lane_count();
        let store = NodeStore {
            settings: settings.clone(),
            token,
            tenant: tenant.clone(),
            lanes_from: Tenant::take_lanes(count as u32 + 1),
            lanes: Lanes::new(count),
            frames: Frames::new(frames_base, pages).ok_or_else(no_memory)?,
            copies: Copies::new(&tenant.folder, len as u64)?,
            places: Slots::zeroed(chunks).ok_or_else(no_memory)?,
            sent_in: Slots::zeroed(pages as usize).ok_or_else(no_memory)?,
            len: AtomicUsize::new(len),
            generation: AtomicU32::new(1),
            is_up: AtomicBool::new(false),
            lacks: AtomicBool::new(false),
            control: Mutex::new(Control {
                connection: None,
                content: 0,
                registered: 0,
                incarnation: 0,
                owed: Vec::new(),
            }),
            counters: Counters::default(),
        };
        match (store.connect(len), absence) {
            (Ok(()), _) => Ok(store),
            (Err(error), Absence::Awaited) if error.code() == SqlState::CONNECTION_FAILURE => {
                tracing::warn!(node = %settings, %error, "the memory node cannot be reached: its pages stay here");
                Ok(store)
            }
            (Err(error), _) => {
                let error = match error.code() {
                    SqlState::CONNECTION_FAILURE => error.with_hint(format!(
                        "Start it there: tidepool memory-node --listen {} --memory 'anon:,size=…'.",
                        settings.address
                    )),
                    _ => error,
                };
                let has_context = error.context().is_some();
                Err(if has_context { error } else { error.with_context(format!("memory node {settings}")) })
            }
        }
    }

    fn control(&self) -> std::sync::MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn offer(&self, lane: u32, incarnation: u64) -> Offer {
        Offer {
            tablespace: self.tenant.database,
            epoch: self.tenant.epoch,
            client: self.tenant.client,
            lane: self.lanes_from + lane,
            incarnation,
            limits: Limits::default(),
            bare_data: true,
        }
    }

    /// Connects all that is not connected, and registers up to `len` bytes. When this returns, the node is up.
    fn connect(&self, len: usize) -> Result<()> {
        let mut control = self.control();
        control.incarnation += 1;
        let incarnation = control.incarnation;
        let timeouts = Timeouts { handshake: HANDSHAKE, request: CONTROL_PATIENCE, grace: FAULT_PATIENCE };
        let transport = self.settings.address.connect(HANDSHAKE)?;
        let connection = Connection::open(transport, &self.offer(0, incarnation), &self.token, timeouts)?;
        let content = connection.agreement().facts.content;
        let is_first = control.content == 0;
        if is_first {
            connection.deregister(&[Place::OTHERS])?;
        }
        if content != control.content {
            if !is_first {
                // Nothing is left there of what this process had.
                self.generation.fetch_add(1, Ordering::SeqCst);
                self.counters.emptied.fetch_add(1, Ordering::Relaxed);
            }
            control.owed.clear();
            control.registered = 0;
            control.content = content;
        }
        if !control.owed.is_empty() {
            connection.deregister(&control.owed)?;
            control.owed.clear();
        }
        // From here on there is something to be given back, whatever comes of it.
        control.connection = Some(connection.clone());
        self.register(&connection, &mut control.registered, len)?;
        let generation = self.generation.load(Ordering::SeqCst);
        for number in 0..self.lanes.len() {
            // Whoever has it gives it back within a fault's patience, or is ended by the keeper.
            let mut claim = loop {
                match self.lanes.try_claim(number) {
                    Some(claim) => break claim,
                    None => std::thread::sleep(Duration::from_millis(1)),
                }
            };
            if claim.is_up() && claim.parts().0.is_some_and(|line| line.generation == generation) {
                continue;
            }
            claim.set(None);
            let transport = self.settings.address.connect(HANDSHAKE)?;
            let offer = self.offer(number as u32 + 1, incarnation);
            let connection = tidepool_wire::DirectConnection::open(transport, &offer, &self.token, HANDSHAKE)?;
            if connection.agreement().facts.content != content {
                return Err(Fault::Closed("the node was started anew").error());
            }
            claim.set(Some(lanes::Line { connection, generation }));
        }
        self.is_up.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Registers chunks beyond `registered`, up to `len` bytes.
    fn register(&self, connection: &Connection, registered: &mut usize, len: usize) -> Result<()> {
        const AT_ONCE: usize = 1024;
        let len = len.next_multiple_of(CHUNK_BYTES);
        while *registered < len {
            let count = ((len - *registered) / CHUNK_BYTES).min(AT_ONCE);
            let wanted = vec![Allocation { bytes: CHUNK_BYTES as u64, purpose: 0 }; count];
            let places = connection.register(&wanted)?;
            let first = *registered / CHUNK_BYTES;
            for (slot, place) in self.places[first..].iter().zip(&places) {
                slot.store(place.0 + 1, Ordering::SeqCst);
            }
            *registered += places.len() * CHUNK_BYTES;
        }
        Ok(())
    }

    /// Has memory for `len` bytes, at the node and on the disk, and then maps them. 55000 while the node is away.
    pub fn grow(&self, len: usize, map: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut control = self.control();
        let Some(connection) = control.connection.clone().filter(|_| self.is_up.load(Ordering::SeqCst)) else {
            return Err(self.away());
        };
        self.copies.grow(len as u64)?;
        self.register(&connection, &mut control.registered, len)
            .map_err(|error| error.with_context(format!("memory node {}", self.settings.address)))?;
        map()?;
        self.len.store(len, Ordering::SeqCst);
        Ok(())
    }

    fn away(&self) -> Error {
        Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, format!("memory node {} is away", self.settings.address))
            .with_detail("Its pages are read from this machine's copies until it is back.")
            .with_hint("Start it again, or wait until it can be reached.")
    }

    /// Gives back what lies behind `len` bytes, which nobody uses.
    pub fn shrink(&self, len: usize) -> Result<()> {
        let mut control = self.control();
        self.len.store(len, Ordering::SeqCst);
        let keep = len.next_multiple_of(CHUNK_BYTES);
        if keep < control.registered {
            let chunks = keep / CHUNK_BYTES..control.registered / CHUNK_BYTES;
            let places: Vec<Place> = chunks
                .map(|chunk| self.places[chunk].swap(0, Ordering::SeqCst))
                .filter(|place| *place != 0)
                .map(|place| Place(place - 1))
                .collect();
            control.registered = keep;
            let connection = control.connection.clone().filter(|_| self.is_up.load(Ordering::SeqCst));
            let given = connection.is_some_and(|connection| {
                places.chunks(tidepool_wire::ENTRIES_MAX as usize).all(|places| connection.deregister(places).is_ok())
            });
            if !given {
                control.owed.extend(places);
            }
        }
        self.copies.shrink(len as u64)
    }

    fn extent(&self, page: u32) -> Option<Extent> {
        let offset = page as usize * PAGE_BYTES;
        let place = self.places[offset / CHUNK_BYTES].load(Ordering::SeqCst);
        let place = Place(place.checked_sub(1)? + (offset % CHUNK_BYTES) as u64);
        Some(Extent { place, bytes: PAGE_BYTES as u32 })
    }

    fn claim(&self) -> Claim<'_> {
        self.lanes.claim(pause)
    }

    /// From now on the node is away, until the keeper has connected anew.
    fn lose(&self, claim: &mut Claim<'_>) {
        claim.note_down();
        if self.is_up.swap(false, Ordering::SeqCst) {
            self.counters.losses.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Runs an exchange with the node over a claimed lane. False: the node is away.
    fn exchange(
        &self,
        claim: &mut Claim<'_>,
        generation: u32,
        run: impl FnOnce(&mut tidepool_wire::DirectConnection, &mut [u8]) -> std::result::Result<(), Fault>,
    ) -> bool {
        if !self.is_up.load(Ordering::SeqCst) || !claim.is_up() {
            return false;
        }
        let began = crate::links::monotonic_ns();
        let (line, buffer) = claim.parts();
        let Some(line) = line.filter(|line| line.generation == generation) else { return false };
        let outcome = run(&mut line.connection, buffer);
        let waited = crate::links::monotonic_ns() - began;
        WAITED_NS.set(WAITED_NS.get() + waited);
        self.counters.waited_ns.fetch_add(waited, Ordering::Relaxed);
        self.counters.exchanges.fetch_add(1, Ordering::Relaxed);
        if outcome.is_err() {
            self.lose(claim);
        }
        outcome.is_ok()
    }

    /// Brings the content of pages that only the node and the copies have, and hands it to `with`, one after the other.
    /// The caller holds the pages' locks; at most [`EXCHANGE_PAGES`].
    pub fn fetch(&self, pages: &[u32], with: impl FnOnce(*const u8)) {
        let mut claim = self.claim();
        let generation = self.generation.load(Ordering::SeqCst);
        let mut extents = [Extent { place: Place(0), bytes: 0 }; EXCHANGE_PAGES];
        let is_there = pages.iter().zip(&mut extents).all(|(page, extent)| {
            let found =
                self.extent(*page).filter(|_| self.sent_in[*page as usize].load(Ordering::Relaxed) == generation);
            found.is_some_and(|found| {
                *extent = found;
                true
            })
        });
        let bytes = pages.len() * PAGE_BYTES;
        let came = is_there
            && self.exchange(&mut claim, generation, |connection, buffer| {
                connection.read_into(&extents[..pages.len()], &mut buffer[..bytes], FAULT_PATIENCE)
            });
        let buffer = claim.parts().1;
        if !came {
            for (page, into) in pages.iter().zip(buffer.as_chunks_mut::<PAGE_BYTES>().0) {
                if !self.copies.read(u64::from(*page) * PAGE_BYTES as u64, into) {
                    self.lost();
                }
            }
            self.counters.fetched_from_copies.fetch_add(pages.len() as u64, Ordering::Relaxed);
        }
        with(buffer.as_ptr());
    }

    /// Neither the node nor the copies have a page: both machines' memory is gone, and the data folder is what is left.
    fn lost(&self) -> ! {
        stop(format_args!(
            "58030: memory node {} is away, and this machine's copies of its pages cannot be read. Start the server \
             again: it reads what was committed from the data folder",
            self.settings.address
        ))
    }

    /// Sends pages that are in frames and were changed: to the copies, and to the node if it is there. The caller holds
    /// their locks; at most [`EXCHANGE_PAGES`].
    pub fn send(&self, pages: &[u32]) {
        let mut pieces: [&[u8]; EXCHANGE_PAGES] = [&[]; EXCHANGE_PAGES];
        for (page, piece) in pages.iter().zip(&mut pieces) {
            let Some(frame) = self.frames.of(*page) else { stop(format_args!("an inactive page has no frame")) };
            let frame = std::ptr::with_exposed_provenance::<u8>(frame);
            // SAFETY: the frame is the page's, whose lock the caller holds until this returns: nobody writes it.
            *piece = unsafe { std::slice::from_raw_parts(frame, PAGE_BYTES) };
        }
        self.send_pieces(pages, &pieces[..pages.len()], true);
    }

    /// `are_new`: the copies have not got them yet. Whether the node has them now.
    fn send_pieces(&self, pages: &[u32], pieces: &[&[u8]], are_new: bool) -> bool {
        let mut are_copied = true;
        if are_new {
            for (page, piece) in pages.iter().zip(pieces) {
                are_copied &= self.copies.write(u64::from(*page) * PAGE_BYTES as u64, piece);
            }
        }
        let generation = self.generation.load(Ordering::SeqCst);
        let mut extents = [Extent { place: Place(0), bytes: 0 }; EXCHANGE_PAGES];
        let have_places = pages.iter().zip(&mut extents).all(|(page, extent)| {
            self.extent(*page).is_some_and(|found| {
                *extent = found;
                true
            })
        });
        let sent = have_places && self.is_up.load(Ordering::SeqCst) && {
            let mut claim = self.claim();
            self.exchange(&mut claim, generation, |connection, _| {
                connection.flush(0, &extents[..pages.len()], pieces, FAULT_PATIENCE)
            })
        };
        for page in pages {
            self.sent_in[*page as usize].store(if sent { generation } else { 0 }, Ordering::Relaxed);
        }
        if !sent {
            self.lacks.store(true, Ordering::SeqCst);
            if !are_copied || self.copies.is_broken() {
                self.lost();
            }
        }
        sent
    }

    pub fn counters(&self) -> NodeCounters {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        NodeCounters {
            is_up: self.is_up.load(Ordering::SeqCst),
            losses: load(&self.counters.losses),
            emptied: load(&self.counters.emptied),
            fetched_from_copies: load(&self.counters.fetched_from_copies),
            refilled: load(&self.counters.refilled),
            exchanges: load(&self.counters.exchanges),
            waited_ns: load(&self.counters.waited_ns),
        }
    }

    /// Gives all memory back: it is not used any more. Of a node that is away the next process does.
    fn leave(&self) {
        let control = self.control();
        let was_lost = self.counters.losses.load(Ordering::SeqCst) > 0 && !self.is_up.load(Ordering::SeqCst);
        let (Some(connection), false) = (&control.connection, was_lost) else { return };
        let held = self.places[..control.registered / CHUNK_BYTES].iter();
        let places: Vec<Place> = held
            .filter_map(|place| place.load(Ordering::SeqCst).checked_sub(1).map(Place))
            .chain(control.owed.iter().copied())
            .collect();
        for places in places.chunks(tidepool_wire::ENTRIES_MAX as usize) {
            if let Err(error) = connection.deregister(places) {
                // The next process of the same database gives back what is left.
                tracing::debug!(%error, node = %self.settings, "memory was not given back");
                return;
            }
        }
    }
}

/// Lets others go on.
fn pause(tries: u32) {
    if tries < 100 {
        std::hint::spin_loop();
    } else {
        // SAFETY: a system call without arguments.
        unsafe { libc::sched_yield() };
    }
}

impl Drop for NodeStore {
    fn drop(&mut self) {
        self.leave();
    }
}

impl std::fmt::Display for NodeSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.address)
    }
}

/// 22023 for sizes that a node cannot have.
pub(crate) fn check_size(size: u64) -> Result<()> {
    if size < CHUNK_BYTES as u64 {
        return Err(Error::new(
            SqlState::INVALID_PARAMETER_VALUE,
            format!("{} is too little for a node", ByteSize(size)),
        )
        .with_detail(format!("Memory is registered in pieces of {}.", ByteSize(CHUNK_BYTES as u64))));
    }
    Ok(())
}
