//! Hosts over one simulated pool, by seed: primaries that write, followers, successors, and second successors while the first
//! still works. Between any two accesses to the shared memory any of them may sleep, for ever or until long after its term
//! was taken, or die. Stores wait in the buffers of x86's processors, and a block comes into memory piece by piece.
//!
//! Nothing that was acknowledged is lost, nothing is shown that the log is without in the end, each follower's state is one
//! that the log has, and a host whose term was taken acknowledges nothing. Each fence and each look that is left out is
//! found.
//!
//! A host is a thread. One of them runs at a time, and hands over before an access where the seed says so; so a seed is a
//! history. A host that died runs on without any effect, to its end.
//!
//! `TIDEPOOL_STRESS_SECONDS=300 TIDEPOOL_STRESS_SEED=7 cargo test --release -p tidepool-log --lib simulated -- --nocapture`

use crate::LogConfig;
use crate::files::SimulatedFiles;
use crate::format::DatabaseIdentity;
use crate::log::{Appender, Log, RecordKind};
use crate::pool_device::{PoolDevice, PoolHost, PoolSource};
use crate::room::lock;
use crate::seal::seal_before;
use crate::tail::{Begun, Next, Tail};
use crate::tee::{FileSource, Tee};
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tidepool_base::{CommitTs, Error, Result, SqlState};
use tidepool_pool::layout::{HostNumber, Layout, SEGMENTS, TERMS};
use tidepool_pool::memory::{At, Books, Bytes, Memory, Trouble};
use tidepool_pool::words::{
    Database, DeviceState, DeviceWord, End, Entry, EntryState, Extent, Host, HostState, Ident, Incarnation, Kind,
    Number, Reign, Role, Slot, Term, TermState, Word,
};

const EXTENT_BYTES: usize = 80 << 10;
const EXTENTS: u32 = 40;
const HOSTS: usize = 6;
const DATA: Database = Database(0);
const IDENTITY: DatabaseIdentity = DatabaseIdentity([3; 16]);
const LAYOUT: Layout = Layout { slots: HOSTS as u8 + 1, databases: 1, extents: EXTENTS };
/// One in so many words of a table that is scanned is a turn.
const SCANNED: u64 = 400;
/// Turns until the hosts are told to end.
const TURNS: u64 = 4000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// No fence does anything.
    NoFence,
    /// A primary acknowledges without a look at `TERM`.
    NoLook,
    /// A follower gives out what it has read.
    GivesOutAtOnce,
    /// The seal is stored, whatever is there.
    SealStored,
    /// A successor reads the log to its end before it takes the term.
    ReadsFirst,
    /// Entries of the log table are stored, whatever is there.
    EntryStored,
    /// Segments go back though hosts read them.
    NeedIgnored,
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        // splitmix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Works,
    /// Until this turn.
    Sleeps(u64),
    Ended,
    Dead,
}

enum Store {
    Word(usize, u64),
    Bytes(usize, usize, Vec<u8>),
}

/// What a database is: timestamps, and who committed at them.
type Contents = BTreeMap<u64, u64>;

#[derive(Clone, Default)]
struct Manifest {
    ts: u64,
    from: Option<(u64, u64)>,
    contents: Contents,
}

struct State {
    words: Vec<u64>,
    extents: Vec<Vec<u8>>,
    random: Random,
    turn: u64,
    runs: usize,
    lives: Vec<Life>,
    buffers: Vec<VecDeque<Store>>,
    is_over: bool,
    /// Terms are short, and many.
    hurries: bool,
    /// No root is ever published.
    is_rootless: bool,
    /// The segment before the first.
    first_number: u64,
    wrong: Option<String>,
    manifests: Vec<Manifest>,
    acknowledged: Contents,
    shown: Contents,
    /// The first is no record without the second.
    pairs: Vec<((u64, u64), (u64, u64))>,
    ends: Vec<(usize, u64, Contents)>,
    /// The second tier of each host: its files, what it does not have, and up to where it promised to have the rest.
    tees: Vec<Option<(SimulatedFiles, u64, u64)>>,
    seen: BTreeMap<&'static str, u64>,
}

struct World {
    state: Mutex<State>,
    runs: Vec<Condvar>,
    mutant: Option<Mutant>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("World")
    }
}

impl State {
    fn apply(&mut self, store: Store) {
        match store {
            Store::Word(index, bits) => self.words[index] = bits,
            Store::Bytes(extent, at, bytes) => self.extents[extent][at..at + bytes.len()].copy_from_slice(&bytes),
        }
    }

    fn flush(&mut self, host: usize) {
        while let Some(store) = self.buffers[host].pop_front() {
            self.apply(store);
        }
    }

    fn note(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    /// Lets another host run, or the same. Those that sleep wake when all others have ended.
    fn pass(&mut self, from: usize) -> usize {
        let turn = self.turn;
        for life in &mut self.lives {
            if matches!(life, Life::Sleeps(until) if *until <= turn) {
                *life = Life::Works;
            }
        }
        let able = |life: &Life| *life == Life::Works;
        if !self.lives.iter().any(able)
            && let Some(next) = self.lives.iter_mut().find(|life| matches!(life, Life::Sleeps(_)))
        {
            *next = Life::Works;
        }
        let able: Vec<usize> = (0..self.lives.len()).filter(|host| able(&self.lives[*host])).collect();
        match able.len() {
            0 => from,
            count => able[self.random.below(count as u64) as usize],
        }
    }
}

impl World {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// One access of a host, when it is its turn. `None`: it is dead, and the access has no effect. One in `calm` accesses
    /// lets another host run first.
    fn access<T>(&self, me: usize, calm: u64, act: impl FnOnce(&mut State) -> T) -> Option<T> {
        let mut state = self.lock();
        if state.lives[me] == Life::Dead {
            return None;
        }
        // A table that is scanned is one step, not thousands.
        state.turn += u64::from(calm < SCANNED || state.random.one_in(SCANNED));
        if state.turn >= if state.hurries { 5 * TURNS } else { TURNS } {
            state.is_over = true;
        }
        // Now and then a store reaches memory.
        if state.random.one_in(3) {
            let host = state.random.below(HOSTS as u64 + 1) as usize;
            if let Some(store) = state.buffers[host].pop_front() {
                state.apply(store);
            }
        }
        if state.random.one_in(calm) {
            let is_over = state.is_over;
            let of = if state.hurries { 8000 } else { 1000 };
            match state.random.below(of) {
                0..4 if !is_over && me < HOSTS => {
                    state.note("a host dies");
                    state.lives[me] = Life::Dead;
                    state.flush(me);
                }
                4..30 if !is_over => {
                    state.note("a host sleeps");
                    let until = state.turn + state.random.below(TURNS / 2);
                    state.lives[me] = Life::Sleeps(until);
                }
                _ => {}
            }
            state.runs = state.pass(me);
            if state.runs != me {
                self.runs[state.runs].notify_one();
            }
            if state.lives[me] == Life::Dead {
                return None;
            }
            while state.runs != me {
                state = self.runs[me].wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
            }
        }
        Some(act(&mut state))
    }

    /// A host may sleep here for a while.
    fn nap(&self, me: usize) {
        let mut state = self.lock();
        if state.lives[me] == Life::Works && me < HOSTS && state.random.one_in(2) {
            let until = state.turn + state.random.below(600);
            state.lives[me] = Life::Sleeps(until);
        }
    }

    /// What a host came to, at the same moment as its access before.
    fn say(&self, me: usize, act: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        if state.lives[me] != Life::Dead {
            act(&mut state);
        }
    }

    fn wrong(&self, what: String) {
        let mut state = self.lock();
        state.wrong.get_or_insert(what);
        state.is_over = true;
    }

    fn is_at_end(&self, me: usize) -> bool {
        let state = self.lock();
        state.is_over || state.lives[me] == Life::Dead
    }
}

/// Memory as one host sees it.
#[derive(Debug)]
struct Seen {
    world: Arc<World>,
    me: usize,
    /// The term in which it is primary.
    term: AtomicU64,
    /// The term that it believes to be in force while it reads, 0 where it looks.
    believed: AtomicU64,
    /// Words that it has changed since it died.
    ghost: Mutex<BTreeMap<usize, u64>>,
}

impl Seen {
    fn mutant(&self) -> Option<Mutant> {
        self.world.mutant
    }

    fn of_ghost(&self, index: usize) -> u64 {
        let own = lock(&self.ghost).get(&index).copied();
        own.unwrap_or_else(|| self.world.lock().words[index])
    }
}

/// Tables that are scanned are many words, and little comes of most of them.
fn calm(at: At) -> u64 {
    let is_scanned = at.0 >= LAYOUT.segment(DATA, 0).at.0;
    if is_scanned { SCANNED } else { 3 }
}

impl Memory for Seen {
    type Stop = Infallible;

    fn load(&self, at: At) -> std::result::Result<u64, Infallible> {
        let index = at.0 as usize / 8;
        let loaded = self.world.access(self.me, calm(at), |state| {
            let own = state.buffers[self.me].iter().rev().find_map(|store| match store {
                Store::Word(word, bits) if *word == index => Some(*bits),
                _ => None,
            });
            own.unwrap_or(state.words[index])
        });
        let loaded = loaded.unwrap_or_else(|| self.of_ghost(index));
        let term = match self.mutant() {
            Some(Mutant::NoLook) => self.term.load(Ordering::Relaxed),
            Some(Mutant::GivesOutAtOnce) => self.believed.load(Ordering::Relaxed),
            _ => 0,
        };
        if term > 0 && at == LAYOUT.term(DATA).at {
            let host = Host { slot: Slot(self.me as u8), incarnation: Incarnation(1) };
            return Ok(Reign::of(Term(term as u32), TermState::Running, host).bits());
        }
        let is_need = LAYOUT.all_slots().any(|slot| at == LAYOUT.host_number(slot, HostNumber::LogNeeded).at);
        if self.mutant() == Some(Mutant::NeedIgnored) && is_need {
            return Ok(Number::MAX.bits());
        }
        Ok(loaded)
    }

    fn store(&self, at: At, bits: u64) -> std::result::Result<(), Infallible> {
        let index = at.0 as usize / 8;
        let stored = self.world.access(self.me, calm(at), |state| {
            state.buffers[self.me].push_back(Store::Word(index, bits));
        });
        if stored.is_none() {
            lock(&self.ghost).insert(index, bits);
        }
        Ok(())
    }

    fn swap(&self, at: At, from: u64, to: u64) -> std::result::Result<std::result::Result<(), u64>, Infallible> {
        let is_seal = (1..40).any(|term| at == LAYOUT.seal(DATA, Term(term)).at);
        let is_entry = (LAYOUT.segment(DATA, 0).at.0..LAYOUT.event_next().at.0).contains(&at.0);
        let is_stored = match self.mutant() {
            Some(Mutant::SealStored) => is_seal && self.term.load(Ordering::Relaxed) == 0,
            Some(Mutant::EntryStored) => is_entry && from == tidepool_pool::words::Segment::NONE.bits(),
            _ => false,
        };
        // Between reading a term to its end and saying so, much can happen.
        if is_seal {
            self.world.nap(self.me);
        }
        let swapped = self.world.access(self.me, if is_seal { 1 } else { 3 }, |state| {
            state.flush(self.me);
            let word = &mut state.words[at.0 as usize / 8];
            let found = *word;
            if found == from || is_stored {
                *word = to;
                Ok(())
            } else {
                Err(found)
            }
        });
        Ok(swapped.unwrap_or_else(|| {
            let index = at.0 as usize / 8;
            let found = self.of_ghost(index);
            if found != from {
                return Err(found);
            }
            lock(&self.ghost).insert(index, to);
            Ok(())
        }))
    }

    fn fence(&self) -> std::result::Result<(), Infallible> {
        if self.mutant() != Some(Mutant::NoFence) {
            self.world.access(self.me, 3, |state| state.flush(self.me));
        }
        Ok(())
    }

    fn zero(&self, extent: Extent) -> std::result::Result<(), Infallible> {
        self.world.access(self.me, 3, |state| {
            state.flush(self.me);
            state.extents[extent.0 as usize].fill(0);
        });
        Ok(())
    }
}

impl Bytes for Seen {
    fn extent_bytes(&self) -> usize {
        EXTENT_BYTES
    }

    fn read_bytes(&self, extent: Extent, offset: usize, bytes: &mut [u8]) -> bool {
        let extent = extent.0 as usize;
        self.world.access(self.me, 3, |state| {
            bytes.copy_from_slice(&state.extents[extent][offset..offset + bytes.len()]);
            for store in &state.buffers[self.me] {
                let Store::Bytes(of, at, stored) = store else { continue };
                let (from, to) = ((*at).max(offset), (at + stored.len()).min(offset + bytes.len()));
                if *of == extent && from < to {
                    bytes[from - offset..to - offset].copy_from_slice(&stored[from - at..to - at]);
                }
            }
        });
        true
    }

    fn write_bytes(&self, extent: Extent, offset: usize, bytes: &[u8]) -> bool {
        let mut at = 0;
        while at < bytes.len() {
            let mut step = 0;
            let stored = self.world.access(self.me, 3, |state| {
                step = [64, 256, 8192][state.random.below(3) as usize].min(bytes.len() - at);
                let piece = bytes[at..at + step].to_vec();
                state.buffers[self.me].push_back(Store::Bytes(extent.0 as usize, offset + at, piece));
            });
            if stored.is_none() {
                return true;
            }
            at += step;
        }
        true
    }

    /// The machine goes on for ever.
    fn persist_bytes(&self, _: Extent, _: usize, _: usize) -> bool {
        true
    }

    fn persist_word(&self, _: At) {}
}

#[derive(Debug)]
struct SimulatedHost {
    books: Books<Seen>,
    host: Host,
}

impl SimulatedHost {
    fn world(&self) -> &World {
        &self.books.memory.world
    }

    fn me(&self) -> usize {
        self.books.memory.me
    }
}

impl PoolHost for SimulatedHost {
    type Memory = Seen;

    fn books(&self) -> &Books<Seen> {
        &self.books
    }

    fn told<T>(&self, outcome: std::result::Result<T, Trouble<Infallible>>) -> Result<T> {
        outcome.map_err(|trouble| Error::corrupted(trouble.to_string()))
    }

    fn host(&self) -> Host {
        self.host
    }

    fn database(&self) -> Database {
        DATA
    }

    fn pool_name(&self) -> String {
        "the simulated pool".to_owned()
    }

    fn lease_log(&self) -> Result<Extent> {
        for extent in LAYOUT.all_extents() {
            if self.told(self.books.lease(self.host, DATA, extent, Kind::Log))? {
                return Ok(extent);
            }
        }
        Err(Error::new(SqlState::OUT_OF_MEMORY, "the simulated pool is full"))
    }

    fn missing(&self, extent: Extent) -> Error {
        Error::internal(format!("extent {} is missing", extent.0))
    }
}

/// What a host has applied.
struct Applied {
    contents: Contents,
    floor: u64,
    /// The manifest from which it went on, and where in the log.
    since: (u64, Option<(u64, u64)>),
}

fn payload(ts: u64, term: u64, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        (0..16 + len as u64).map(|index| (ts.wrapping_mul(31) ^ (index * 7) ^ term) as u8).collect();
    bytes[..8].copy_from_slice(&ts.to_le_bytes());
    bytes[8..16].copy_from_slice(&term.to_le_bytes());
    bytes
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(eight)
}

/// Reads on, and applies.
fn follow(tail: &mut Tail<PoolSource<SimulatedHost>>, applied: &mut Applied, shows: bool) -> Result<Came> {
    let host = tail.source().host().clone();
    let (world, me, memory) = (host.world(), host.me(), &host.books.memory);
    if memory.mutant() == Some(Mutant::GivesOutAtOnce) && world.lock().random.one_in(2) {
        memory.believed.store(tail.position().0, Ordering::Relaxed);
    }
    let next = tail.read();
    memory.believed.store(0, Ordering::Relaxed);
    match next? {
        Next::Nothing => Ok(Came::Nothing),
        Next::AtSeal => Ok(Came::AtSeal),
        Next::Batch(batch) => {
            let mut before = applied.floor;
            for record in &batch.records {
                let bytes = tail.payload_of(record)?;
                let (ts, term) = (word(&bytes, 0), word(&bytes, 8));
                if ts != record.ts.0
                    || bytes != payload(ts, term, bytes.len() - 16)
                    || ts <= before
                    || ts > batch.floor.0
                {
                    return Err(Error::internal(format!("a record at {} says {ts}, after {before}", record.ts)));
                }
                before = ts;
                applied.contents.insert(ts, term);
            }
            applied.floor = batch.floor.0;
            if shows {
                world.say(me, |state| {
                    state.note("a batch is shown");
                    for record in &batch.records {
                        let term = applied.contents[&record.ts.0];
                        if let Some(other) = state.shown.insert(record.ts.0, term).filter(|other| *other != term) {
                            let what = format!("{} was shown in terms {other} and {term}", record.ts);
                            state.wrong.get_or_insert(what);
                        }
                    }
                });
            }
            Ok(Came::Batch)
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    Batch,
    Nothing,
    AtSeal,
}

/// Attaches: holds the root in force and starts from it.
fn attach(host: &Arc<SimulatedHost>) -> Result<(Tail<PoolSource<SimulatedHost>>, Applied)> {
    let books = &host.books;
    host.told(books.hold_root(host.host, DATA))?;
    let root = host.told(books.load(LAYOUT.root(DATA)))?;
    let manifest = host.world().lock().manifests[root.place.0 as usize].clone();
    let mut tail = Tail::open(PoolSource::new(host.clone()), IDENTITY, manifest.from);
    tail.set_window(1 << 14);
    tail.skip_to(CommitTs(manifest.ts));
    if let Some((_, number)) = manifest.from {
        host.told(books.need_log_from(host.host, number))?;
    }
    let Manifest { ts, from, contents } = manifest;
    Ok((tail, Applied { contents, floor: ts, since: (ts, from) }))
}

/// One life of a host: it follows, takes over now and then, and writes until its term is taken.
fn live(host: &Arc<SimulatedHost>) -> Result<()> {
    let (world, me) = (host.world(), host.me());
    let draw = |end: u64| world.lock().random.below(end);
    let books = &host.books;
    let joined = host.told(books.join(host.host.slot, Role::Standby, DATA))?;
    if joined != Some(host.host) {
        return Ok(());
    }
    let (mut tail, mut applied) = attach(host)?;
    let hurries = world.lock().hurries;
    while !world.is_at_end(me) {
        let is_following = draw(if hurries { 3 } else { 14 }) > 0;
        if is_following {
            if follow(&mut tail, &mut applied, true)? == Came::Batch {
                host.told(books.need_log_from(host.host, tail.needed_from()))?;
            }
            bury(host, draw(HOSTS as u64) as usize)?;
            continue;
        }
        let seen = host.told(books.reign(DATA))?;
        let mut early = None;
        if world.mutant == Some(Mutant::ReadsFirst) && seen.term.0 > 0 {
            let mut cursor = tail.cursor().clone();
            cursor.run(tail.source(), None)?;
            early = Some((cursor.term, End::at(cursor.number.max(1), cursor.position().offset().max(64))));
        }
        let Some(reign) = host.told(books.take_over(DATA, host.host, seen))? else { continue };
        world.say(me, |state| {
            state.note("a term is taken");
            if reign.term.0 as usize > TERMS + 1 {
                state.note("a line of the ring is taken again");
            }
        });
        if let Some((term, end)) = early.filter(|(term, _)| *term > 0 && *term == u64::from(seen.term.0)) {
            host.told(books.seal(DATA, Term(term as u32), end))?;
        }
        match promote(host, reign, tail, applied) {
            Ok(()) => {}
            Err(error) if error.code() == SqlState::CRASH_SHUTDOWN => {
                world.say(me, |state| state.note("a term is lost"));
            }
            // It has the term and no room for a log: others take over.
            Err(error) if error.code() == SqlState::DISK_FULL => {}
            Err(error) => return Err(error),
        }
        books.memory.term.store(0, Ordering::Relaxed);
        (tail, applied) = attach(host)?;
    }
    world.say(me, |state| state.ends.push((me, applied.floor, applied.contents.clone())));
    Ok(())
}

/// Confirms a death, so that what the host had becomes free.
fn bury(host: &Arc<SimulatedHost>, other: usize) -> Result<()> {
    let is_dead = {
        let state = host.world().lock();
        state.lives[other] == Life::Dead
    };
    if is_dead {
        let dead = Host { slot: Slot(other as u8), incarnation: Incarnation(1) };
        let field = LAYOUT.ident(dead.slot);
        let ident = host.told(host.books.load(field))?;
        if ident.incarnation == dead.incarnation && !matches!(ident.state, HostState::Free | HostState::Dead) {
            host.told(host.books.swap(field, ident, Ident { state: HostState::Dead, ..ident }))?;
        }
        host.told(host.books.sweep(dead))?;
        host.told(host.books.free_slot(dead))?;
    }
    Ok(())
}

fn promote(
    host: &Arc<SimulatedHost>,
    reign: Reign,
    mut tail: Tail<PoolSource<SimulatedHost>>,
    mut applied: Applied,
) -> Result<()> {
    let (world, me, books) = (host.world(), host.me(), &host.books);
    let draw = |end: u64| world.lock().random.below(end);
    let sealed = seal_before(&tail, reign)?;
    while tail.position().1 != sealed.end {
        follow(&mut tail, &mut applied, true)?;
        if world.is_at_end(me) {
            return Ok(());
        }
    }
    let reigns = || Ok(books.reign(DATA)?.is_of(host.host));
    if host.told(books.orphan_others_while(host.host, DATA, reigns))?.is_none() || !host.told(reigns())? {
        return Ok(());
    }
    let mut root = host.told(books.stamp_root(DATA))?;
    let before = tail.into_before();
    let (manifest_ts, manifest_from) = applied.since;
    // Numbers that begin anew in the table soon.
    let newest = if before.end.segment() > 0 { before.end.segment() } else { world.lock().first_number };
    let device = Arc::new(PoolDevice::new(host.clone(), reign, newest));
    let (hurries, is_rootless) = {
        let state = world.lock();
        (state.hurries, state.is_rootless)
    };
    let first = device.begin(reign)?;
    if host.told(books.run(DATA, reign))?.is_none() {
        return Ok(());
    }
    let term = u64::from(reign.term.0);
    books.memory.term.store(term, Ordering::Relaxed);
    let mut config = LogConfig::new(IDENTITY);
    config.room_wait = Duration::ZERO;
    config.bytes_min = 0;
    config.block_bytes_max = 1 << (9 + draw(9));
    let mut clock = before.ts_max.0.max(applied.floor);
    let appended = Arc::new(AtomicU64::new(clock));
    let floor = {
        let appended = appended.clone();
        move || CommitTs(appended.load(Ordering::Acquire))
    };
    let log = Log::begin(device.clone(), config, Begun { term, first, before }, Box::new(floor))?;
    let (mut appender, mut other) = (log.appender()?, log.appender()?);
    let mut tee = Copying::begin(host, manifest_ts, manifest_from, &device)?;
    let never = || Ok(());
    // Appended and not acknowledged yet.
    let mut waiting = Contents::new();
    let append = |appender: &mut Appender, ts: u64, large: bool| -> Result<()> {
        let len = draw(if large { 40_000 } else { 3_000 }) as usize;
        let bytes = payload(ts, term, len);
        let (spilled, rest) = bytes.split_at(if large { bytes.len() / 2 } else { 0 });
        if !spilled.is_empty() {
            appender.spill(spilled, &never)?;
        }
        appender.reserve(rest.len(), &never)?;
        appender.append(CommitTs(ts), RecordKind(1), rest);
        Ok(())
    };
    while !(world.is_at_end(me) || hurries && draw(4) == 0) {
        let outcome: Result<()> = (|| match draw(10) {
            0 => {
                // A later one is written first.
                let (early, late) = (clock + 1, clock + 2);
                let is_there = append(&mut other, late, false);
                is_there?;
                clock += 2;
                world.say(me, |state| state.pairs.push(((late, term), (early, term))));
                log.flush()?;
                append(&mut appender, early, false)?;
                waiting.extend([(early, term), (late, term)]);
                appended.store(clock, Ordering::Release);
                Ok(())
            }
            1 => {
                let ts = log.durable().0;
                let needed = log.needed_from(CommitTs(ts));
                if needed == 0 || ts <= applied.floor.max(1) || is_rootless {
                    return Ok(());
                }
                let from = Some((device.term_of(needed)?, needed));
                // What nobody has been told of yet is durable all the same.
                let of = applied.contents.range(..=ts).chain(waiting.range(..=ts));
                let contents = of.map(|(ts, term)| (*ts, *term)).collect();
                let place = {
                    let mut state = world.lock();
                    state.manifests.push(Manifest { ts, from, contents });
                    Extent(state.manifests.len() as u32 - 1)
                };
                if let Some(next) = host.told(books.replace_root(DATA, host.host, root, place))? {
                    root = next;
                    let gone = log.recycle_below(CommitTs(ts))?;
                    world.say(me, |state| {
                        state.note("a checkpoint");
                        if gone > 0 {
                            state.note("segments go");
                        }
                    });
                }
                Ok(())
            }
            kind => {
                append(&mut appender, clock + 1, kind == 2)?;
                clock += 1;
                waiting.insert(clock, term);
                appended.store(clock, Ordering::Release);
                Ok(())
            }
        })();
        if draw(3) == 0
            && let Some(tee) = &mut tee
        {
            tee.step(host, &device)?;
        }
        let full = match outcome {
            Err(error) if error.code() == SqlState::DISK_FULL => {
                appender.abandon();
                other.abandon();
                world.say(me, |state| state.note("the log is full"));
                true
            }
            outcome => outcome.map(|()| false)?,
        };
        if full || draw(3) > 0 {
            if log.durable().0 < appended.load(Ordering::Relaxed) {
                log.wait_durable(CommitTs(appended.load(Ordering::Relaxed)), never)?;
            }
            let durable = log.durable().0;
            let rest = waiting.split_off(&(durable + 1));
            let acknowledged = std::mem::replace(&mut waiting, rest);
            applied.contents.extend(acknowledged.clone());
            world.say(me, |state| {
                if !acknowledged.is_empty() {
                    state.note("acknowledged");
                }
                state.acknowledged.extend(acknowledged);
            });
        }
        if full {
            // Until a host lets a segment go.
            return Ok(());
        }
        log.prepare().or_else(|error| if error.code() == SqlState::DISK_FULL { Ok(()) } else { Err(error) })?;
    }
    Ok(())
}

/// The second tier of a primary.
struct Copying {
    tee: Tee<PoolSource<SimulatedHost>>,
}

impl Copying {
    /// `None`: its files are not of this log, or it has none. Where a manifest stands for what is before, nothing of that is
    /// in the files.
    fn begin(
        host: &Arc<SimulatedHost>,
        ts: u64,
        from: Option<(u64, u64)>,
        device: &PoolDevice<SimulatedHost>,
    ) -> Result<Option<Copying>> {
        let (world, me) = (host.world(), host.me());
        if me % 2 == 0 {
            return Ok(None);
        }
        let (disk, is_fresh) = {
            let mut state = world.lock();
            if state.lives[me] == Life::Dead {
                return Ok(None);
            }
            let is_fresh = state.tees[me].is_none();
            (state.tees[me].get_or_insert_with(|| (SimulatedFiles::new(1), ts, 0)).0.clone(), is_fresh)
        };
        // Late, and not what the files miss: what was given back before is gone.
        device.kept_from().store(from.map_or(0, |(_, number)| number), Ordering::Release);
        let files = FileSource::open(Arc::new(disk), Path::new("/tee"), EXTENT_BYTES, IDENTITY)?;
        match Tee::open(PoolSource::new(host.clone()), files, from) {
            Ok(mut tee) => {
                device.kept_from().store(tee.needed_from(), Ordering::Release);
                if let Some((term, number)) = from.filter(|_| is_fresh) {
                    tee.remove_before(term, number)?;
                }
                // Behind a gap it promises nothing.
                Ok(Some(Copying { tee }).filter(|copying| copying.tee.is_complete()))
            }
            Err(error) if error.code() == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE => {
                device.kept_from().store(u64::MAX, Ordering::Release);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn step(&mut self, host: &Arc<SimulatedHost>, device: &PoolDevice<SimulatedHost>) -> Result<()> {
        let (world, me) = (host.world(), host.me());
        match self.tee.step() {
            Ok(_) => {}
            // Another host reigns, and has given back what this one has not copied.
            Err(error) if error.code() == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE => {}
            Err(error) => return Err(error),
        }
        device.kept_from().store(self.tee.needed_from(), Ordering::Release);
        let durable = self.tee.durable().0;
        world.say(me, |state| {
            state.note("blocks are copied");
            if let Some((_, _, promised)) = &mut state.tees[me] {
                *promised = durable.max(*promised);
            }
        });
        Ok(())
    }
}

/// A history. What was wrong with it, or how often things happened.
fn history(seed: u64, mutant: Option<Mutant>) -> std::result::Result<BTreeMap<&'static str, u64>, String> {
    let state = State {
        words: vec![0; LAYOUT.control_bytes() / 8],
        extents: vec![vec![0; EXTENT_BYTES]; EXTENTS as usize],
        random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        turn: 0,
        runs: HOSTS,
        lives: vec![Life::Works; HOSTS + 1],
        buffers: (0..=HOSTS).map(|_| VecDeque::new()).collect(),
        is_over: false,
        hurries: seed.is_multiple_of(3),
        is_rootless: seed.is_multiple_of(6),
        first_number: if seed.is_multiple_of(2) { 0 } else { SEGMENTS as u64 - 1 - seed % 20 },
        wrong: None,
        manifests: vec![Manifest::default()],
        acknowledged: Contents::new(),
        shown: Contents::new(),
        pairs: Vec::new(),
        ends: Vec::new(),
        tees: vec![None; HOSTS],
        seen: BTreeMap::new(),
    };
    let runs = (0..=HOSTS).map(|_| Condvar::new()).collect();
    let world = Arc::new(World { state: Mutex::new(state), runs, mutant });
    let host = |me: usize| {
        let (term, believed, ghost) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::default());
        let memory = Seen { world: world.clone(), me, term, believed, ghost };
        let host = Host { slot: Slot(me as u8), incarnation: Incarnation(1) };
        Arc::new(SimulatedHost { books: Books { memory, layout: LAYOUT }, host })
    };
    // The last host is the one that looks at what is left. Nobody else runs yet, and nothing of it dies.
    let last = host(HOSTS);
    let corrupt = |error: Error| format!("{error:?}");
    {
        let mut state = world.lock();
        state.lives[..HOSTS].fill(Life::Ended);
    }
    let device = DeviceWord { first: Extent(0), extents: EXTENTS, state: DeviceState::Present };
    last.told(last.books.format(&[device], &[true], 1)).map_err(corrupt)?;
    let live_entry = Entry { life: 1, state: EntryState::Live, by: Slot(63) };
    last.told(last.books.store(LAYOUT.entry(DATA), live_entry)).map_err(corrupt)?;
    for slot in LAYOUT.all_slots() {
        // Of lives before.
        last.told(last.books.store(LAYOUT.host_number(slot, HostNumber::LogNeeded), Number(100_000)))
            .map_err(corrupt)?;
    }
    last.told(last.books.fence()).map_err(corrupt)?;
    {
        let mut state = world.lock();
        state.flush(HOSTS);
        state.turn = 0;
        state.is_over = false;
        state.lives.fill(Life::Works);
        state.lives[HOSTS] = Life::Ended;
    }
    std::thread::scope(|scope| {
        for me in 0..HOSTS {
            let (world, host) = (&world, host(me));
            scope.spawn(move || {
                {
                    let mut state = world.lock();
                    while state.runs != me && state.lives[me] != Life::Dead {
                        state = world.runs[me].wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
                    }
                }
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| live(&host)));
                let is_dead = world.lock().lives[me] == Life::Dead;
                match outcome {
                    Ok(Ok(())) => {}
                    // What a dead host still meets says nothing.
                    _ if is_dead => {}
                    Ok(Err(error)) => world.wrong(format!("host {me}: {error:?}")),
                    Err(_) => world.wrong(format!("host {me} panicked")),
                }
                let mut state = world.lock();
                if state.lives[me] != Life::Dead {
                    state.lives[me] = Life::Ended;
                    state.flush(me);
                    state.runs = state.pass(me);
                    let next = state.runs;
                    drop(state);
                    world.runs[next].notify_one();
                }
            });
        }
        let mut state = world.lock();
        let first = state.random.below(HOSTS as u64) as usize;
        state.runs = first;
        drop(state);
        world.runs[first].notify_one();
    });
    {
        let mut state = world.lock();
        if let Some(wrong) = state.wrong.take() {
            return Err(wrong);
        }
        (0..HOSTS).for_each(|host| state.flush(host));
        state.runs = HOSTS;
        state.lives[..HOSTS].fill(Life::Ended);
        state.lives[HOSTS] = Life::Works;
    }
    look(&world, &last)
}

/// What is left, as a host finds it that takes over.
fn look(world: &Arc<World>, last: &Arc<SimulatedHost>) -> std::result::Result<BTreeMap<&'static str, u64>, String> {
    let show = |error: Error| format!("the last host: {error:?}");
    last.told(last.books.join(last.host.slot, Role::Standby, DATA)).map_err(show)?;
    let (mut tail, mut applied) = attach(last).map_err(show)?;
    let seen = last.told(last.books.reign(DATA)).map_err(show)?;
    let reign = last.told(last.books.take_over(DATA, last.host, seen)).map_err(show)?;
    let reign = reign.ok_or("nobody else takes over")?;
    let sealed = seal_before(&tail, reign).map_err(show)?;
    while tail.position().1 != sealed.end {
        follow(&mut tail, &mut applied, false).map_err(show)?;
    }
    let state = world.lock();
    let contents = &applied.contents;
    for (what, set) in [("acknowledged", &state.acknowledged), ("shown", &state.shown)] {
        if let Some((ts, term)) = set.iter().find(|(ts, term)| contents.get(ts) != Some(term)) {
            return Err(format!("{ts} was {what} in term {term}, and is {:?} in the end", contents.get(ts)));
        }
    }
    for (me, (disk, since, promised)) in state.tees.iter().enumerate().filter_map(|(me, tee)| Some((me, tee.as_ref()?)))
    {
        let files =
            FileSource::open(Arc::new(disk.clone()), Path::new("/tee"), EXTENT_BYTES, IDENTITY).map_err(show)?;
        let mut tail = Tail::open(files.clone(), IDENTITY, files.oldest().map_err(show)?);
        tail.skip_to(CommitTs(*since));
        let mut copied = Contents::new();
        while let Next::Batch(batch) = tail.read().map_err(show)? {
            for record in &batch.records {
                let bytes = tail.payload_of(record).map_err(show)?;
                copied.insert(record.ts.0, word(&bytes, 8));
            }
        }
        if let Some((ts, term)) = copied.iter().find(|(ts, term)| contents.get(ts) != Some(term)) {
            return Err(format!(
                "{ts} is in the files of host {me} in term {term}, and is {:?} in the end",
                contents.get(ts)
            ));
        }
        let missing = contents.iter().find(|(ts, _)| (since + 1..=*promised).contains(*ts) && !copied.contains_key(ts));
        if let Some((ts, term)) = missing {
            return Err(format!("host {me} promised {promised}, and its files are without {ts} of term {term}"));
        }
    }
    for ((late, term), (early, of)) in &state.pairs {
        if contents.get(late) == Some(term) && contents.get(early) != Some(of) {
            return Err(format!("{late} of term {term} is there without {early}"));
        }
    }
    for (me, floor, of) in &state.ends {
        if !contents.range(..=floor).eq(of.iter()) {
            return Err(format!("host {me} was at {floor}, and had not what the log has up to there"));
        }
    }
    Ok(state.seen.clone())
}

fn seed() -> u64 {
    std::env::var("TIDEPOOL_STRESS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_is_shown_that_does_not_stay() {
    let seconds: Option<u64> = std::env::var("TIDEPOOL_STRESS_SECONDS").ok().and_then(|text| text.parse().ok());
    let start = Instant::now();
    let mut seen = BTreeMap::<&str, u64>::new();
    for number in 0.. {
        match seconds {
            Some(seconds) if start.elapsed() >= Duration::from_secs(seconds) => break,
            None if number == 60 => break,
            _ => {}
        }
        let seed = seed() + number;
        match history(seed, None) {
            Ok(counts) => counts.into_iter().for_each(|(what, count)| *seen.entry(what).or_default() += count),
            Err(wrong) => panic!("TIDEPOOL_STRESS_SEED={seed}: {wrong}"),
        }
        *seen.entry("histories").or_default() += 1;
    }
    println!("{seen:?} in {:?}", start.elapsed());
    let wanted =
        ["a host dies", "a host sleeps", "a term is taken", "a term is lost", "a batch is shown", "acknowledged"];
    let more = ["a checkpoint", "segments go", "a line of the ring is taken again", "blocks are copied"];
    for what in wanted.into_iter().chain(more) {
        assert!(seen.contains_key(what), "no history had: {what}");
    }
}

#[test]
fn each_fence_and_each_look_that_is_left_out_is_found() {
    use Mutant::*;
    for mutant in [NoFence, NoLook, GivesOutAtOnce, SealStored, ReadsFirst, EntryStored, NeedIgnored] {
        let start = Instant::now();
        let found =
            (seed()..seed() + 3000).find_map(|seed| history(seed, Some(mutant)).err().map(|wrong| (seed, wrong)));
        let Some((at, wrong)) = found else { panic!("nothing comes of {mutant:?}") };
        println!("{mutant:?}: after {} histories, {:?}: {wrong}", at - seed() + 1, start.elapsed());
    }
}
