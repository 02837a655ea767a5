//! The model of caches: hosts with a private cache each over lines of memory, and words that all see alike.
//!
//! Each host is a program of ordinary code over [`Access`]. It runs on a stack of its own, and stops before each
//! access; a seed says which host goes on. Between two accesses caches do what hardware may: they evict any line and
//! write it back, fetch any line early, write a modified line back late, or finish what was begun with `write_back`
//! or `discard`.
//!
//! | what happens | in the model |
//! | --- | --- |
//! | a line is stored to | the host's cache has it, modified; memory does not |
//! | a line is fetched | from the host's cache, however old that is, or else from memory, into the cache |
//! | `write_back`, `discard` | happen at any time up to the next fence |
//! | `discard` behind a load without a fence between them | may have happened right after the last fence, and the line was fetched again then |
//! | a load of a word behind fetches without `order` between them | may have happened before those |
//! | a host dies | its modified lines are lost, or some of them; so are lines of words that it changed and nobody has loaded since |
//!
//! # What is a fault
//!
//! * A fetch gives bytes that are older than the latest that were sealed before it. *Before*: the sealing host
//!   changed a word, and the fetching one has loaded that change, or one that was made by a host that had.
//! * Two hosts have one line modified.
//! * A host writes back a line of another host, or older bytes over newer ones.
//! * A host takes bytes for what a word published which are others: its reference has outlived its generation.
//! * A program finds a word or a block that cannot be, or what it looks for does not come to pass.
//!
//! A run can leave out one access ([`Site`]), wherever the code has it: each must make some run fail.

#[cfg(test)]
mod tests;

use crate::access::{Access, Fence, Line, LineBytes, Lines, Note, Part, WordAt};
use crate::layout::{HostId, Layout};
use crate::memory::Trouble;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::panic::Location;
use std::rc::Rc;
use tidepool_device::LINE_BYTES;

const WORDS_OF_LINE: usize = LINE_BYTES / 8;

/// States of a line that are remembered.
const HISTORY_MAX: usize = 64;

/// Accesses that are told when a run fails.
const TOLD: usize = 100;

/// splitmix64: numbers that repeat.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }

    /// True once in so many times.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// How an access is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Omission {
    /// A swap is a load, a comparison and a store.
    TornSwap,
    /// A swap says that it was done.
    Swap,
    Advance,
    WriteBackWord,
    WriteBack,
    Discard(Part),
    Fence(Fence),
    Order,
}

/// An access of the code: where a caller outside of the discipline's own functions makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    pub file: &'static str,
    pub line: u32,
    pub column: u32,
    pub omission: Omission,
}

/// Why an access was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The host is dead.
    Dead,
    /// The run has failed.
    Over,
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    pub left_out: Option<Site>,
    /// Ends these hosts after so many of their accesses.
    pub ends: [Option<(HostId, u64)>; 2],
    /// A host sleeps before one in so many of its accesses, while others go on.
    pub sleeps_in: usize,
    /// One host runs until it waits or until one of so many random steps comes, as in *probabilistic concurrency
    /// testing* (Burckhardt et al., ASPLOS 2010): few switches at places that nobody expects. `None`: hosts take
    /// turns at random.
    pub switches: Option<Switches>,
    /// Accesses and pauses of all hosts. A run that needs more does not come to an end.
    pub steps_max: u64,
}

impl Plan {
    pub fn new(seed: u64) -> Plan {
        Plan { seed, left_out: None, ends: [None; 2], sleeps_in: 40, switches: None, steps_max: 40_000 }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Switches {
    pub count: usize,
    /// Steps among which they are spread.
    pub steps: usize,
}

/// What became of a run.
#[derive(Debug)]
pub struct Report {
    pub fault: Option<String>,
    /// Accesses that could be left out.
    pub sites: BTreeSet<Site>,
    /// Of each host.
    pub accesses: Vec<u64>,
}

pub type Step<T> = Result<T, Trouble<Stop>>;
pub type Program = Box<dyn FnOnce(&Host<'_>) -> Step<()>>;

/// How many seals of each host another knows of.
type Clock = Vec<u64>;

fn join(clock: &mut Clock, other: &Clock) {
    clock.iter_mut().zip(other).for_each(|(own, other)| *own = (*own).max(*other));
}

/// A value that a word had from a time on.
#[derive(Clone, Debug)]
struct Value {
    since: u64,
    bits: u64,
    clock: Clock,
}

/// Words of one line.
#[derive(Clone, Debug, Default)]
struct WordLine {
    /// What is left if the host dies that has it modified.
    durable: [u64; WORDS_OF_LINE],
    modified_by: Option<usize>,
}

#[derive(Clone, Debug)]
struct Contents {
    since: u64,
    version: u64,
    bytes: LineBytes,
}

#[derive(Debug)]
struct Seal {
    version: u64,
    host: usize,
    count: u64,
}

#[derive(Debug)]
struct Memory {
    /// The host that may store to the line.
    owner: usize,
    /// The last is what memory has.
    history: Vec<Contents>,
    /// Versions so far.
    versions: u64,
    /// The latest that any host has stored and that is not lost.
    stored: u64,
    seals: Vec<Seal>,
}

impl Memory {
    fn now(&self) -> &Contents {
        self.history.last().expect("a line has contents from the start")
    }

    fn at(&self, time: u64) -> &Contents {
        self.history.iter().rfind(|contents| contents.since <= time).unwrap_or(&self.history[0])
    }
}

#[derive(Clone, Debug)]
struct Cached {
    version: u64,
    bytes: LineBytes,
    is_modified: bool,
}

/// One host's caches, and what it knows.
#[derive(Debug, Default)]
struct Caches {
    lines: BTreeMap<usize, Cached>,
    written_back: BTreeSet<usize>,
    discarded: BTreeSet<usize>,
    words_written_back: BTreeSet<usize>,
    clock: Clock,
    fenced_at: u64,
    /// It has loaded a word since the last fence.
    has_loaded: bool,
    /// Of the first fetch that no `order` stands behind.
    unordered_since: Option<u64>,
    /// When it last saw each word.
    seen: BTreeMap<u32, u64>,
    accesses: u64,
    is_dead: bool,
    is_done: bool,
    sleeps_until: u64,
    /// The highest goes on, where hosts do not take turns at random.
    priority: i64,
}

struct World {
    plan: Plan,
    random: Random,
    time: u64,
    words: Vec<Vec<Value>>,
    word_lines: Vec<WordLine>,
    lines: Vec<Memory>,
    hosts: Vec<Caches>,
    /// What each value of a word published.
    published: BTreeMap<(WordAt, u64), Vec<u8>>,
    died_at: u64,
    fault: Option<String>,
    sites: BTreeSet<Site>,
    told: Vec<String>,
}

impl World {
    fn new(plan: Plan, layout: Layout) -> World {
        let hosts = usize::from(layout.hosts);
        let words = (layout.coherent_bytes() / 8) as usize;
        let clock = vec![0; hosts];
        let mut world = World {
            plan,
            random: Random::new(plan.seed),
            time: 1,
            words: vec![vec![Value { since: 0, bits: 0, clock: clock.clone() }]; words],
            word_lines: vec![WordLine::default(); words.div_ceil(WORDS_OF_LINE)],
            lines: Vec::new(),
            hosts: (0..hosts).map(|_| Caches { clock: clock.clone(), ..Caches::default() }).collect(),
            published: BTreeMap::new(),
            died_at: 0,
            fault: None,
            sites: BTreeSet::new(),
            told: Vec::new(),
        };
        for _ in 0..layout.lines() {
            let empty = Contents { since: 0, version: 0, bytes: [0; LINE_BYTES] };
            world.lines.push(Memory {
                owner: usize::MAX,
                history: vec![empty],
                versions: 0,
                stored: 0,
                seals: Vec::new(),
            });
        }
        for host in layout.all_hosts() {
            let rings = layout.all_hosts().filter(|to| *to != host).map(|to| layout.ring_bytes(host, to));
            for line in rings.chain([layout.blocks(host)]).flat_map(Lines::each) {
                world.lines[line.0 as usize].owner = usize::from(host.0);
            }
        }
        world
    }

    fn fail(&mut self, fault: String) {
        if self.fault.is_none() {
            let mut text = String::new();
            for told in self.told.iter().rev().take(TOLD).rev() {
                writeln!(text, "    {told}").expect("text grows");
            }
            self.fault = Some(format!("{fault}\n{text}"));
        }
    }

    fn tell(&mut self, host: usize, what: impl FnOnce() -> String) {
        let line = format!("{:>6}  host {host} {}", self.time, what());
        self.told.push(line);
        if self.told.len() > 8 * TOLD {
            self.told.drain(..7 * TOLD);
        }
    }

    fn word(&self, at: WordAt) -> &Value {
        self.words[at.0 as usize].last().expect("a word has a value from the start")
    }

    /// A word of a line is loaded or changed by a host: what another has modified of the line reaches memory.
    fn share_words(&mut self, host: usize, at: WordAt) {
        let line = at.0 as usize / WORDS_OF_LINE;
        if self.word_lines[line].modified_by.is_some_and(|by| by != host) {
            self.keep_words(line);
        }
    }

    fn keep_words(&mut self, line: usize) {
        for index in 0..WORDS_OF_LINE {
            if let Some(value) = self.words.get(line * WORDS_OF_LINE + index).and_then(|values| values.last()) {
                self.word_lines[line].durable[index] = value.bits;
            }
        }
        self.word_lines[line].modified_by = None;
    }

    fn load(&mut self, host: usize, at: WordAt) -> u64 {
        let caches = &self.hosts[host];
        let seen = caches.seen.get(&at.0).copied().unwrap_or(0);
        let mut time = self.time;
        if let Some(since) = caches.unordered_since
            && self.random.one_in(2)
        {
            time = since.max(seen).max(self.died_at);
        }
        let values = &self.words[at.0 as usize];
        let value = values.iter().rfind(|value| value.since <= time).unwrap_or(&values[0]).clone();
        let caches = &mut self.hosts[host];
        caches.seen.insert(at.0, time);
        caches.has_loaded = true;
        join(&mut caches.clock, &value.clock);
        self.share_words(host, at);
        value.bits
    }

    fn change(&mut self, host: usize, at: WordAt, to: u64) {
        self.share_words(host, at);
        self.word_lines[at.0 as usize / WORDS_OF_LINE].modified_by = Some(host);
        let mut clock = self.word(at).clock.clone();
        join(&mut clock, &self.hosts[host].clock);
        self.words[at.0 as usize].push(Value { since: self.time, bits: to, clock });
    }

    fn swap(&mut self, host: usize, at: WordAt, from: u64, to: u64, is_done: bool) -> Result<(), u64> {
        // All that was fetched before was fetched.
        self.hosts[host].unordered_since = None;
        let found = self.load(host, at);
        if found != from {
            return Err(found);
        }
        if is_done {
            self.change(host, at, to);
            self.hosts[host].seen.insert(at.0, self.time);
        }
        Ok(())
    }

    fn cached(&mut self, host: usize, line: usize) -> &mut Cached {
        let now = self.lines[line].now();
        let fetched = Cached { version: now.version, bytes: now.bytes, is_modified: false };
        self.hosts[host].lines.entry(line).or_insert(fetched)
    }

    fn store(&mut self, host: usize, line: usize, change: impl FnOnce(&mut LineBytes), is_whole: bool) {
        let other = (0..self.hosts.len())
            .find(|other| *other != host && self.hosts[*other].lines.get(&line).is_some_and(|line| line.is_modified));
        if let Some(other) = other {
            self.fail(format!("hosts {other} and {host} both have line {line} modified"));
        }
        let owner = self.lines[line].owner;
        if owner != host {
            self.fail(format!("host {host} stores to line {line}, which is host {owner}'s"));
        }
        let latest = self.lines[line].stored;
        if !is_whole && self.cached(host, line).version != latest {
            self.fail(format!("host {host} stores to a part of line {line}, of which it has an old copy"));
        }
        let memory = &mut self.lines[line];
        memory.versions += 1;
        memory.stored = memory.versions;
        let version = memory.versions;
        let cached = self.cached(host, line);
        change(&mut cached.bytes);
        cached.version = version;
        cached.is_modified = true;
    }

    fn write_to_memory(&mut self, host: usize, line: usize) {
        let Some(cached) = self.hosts[host].lines.get_mut(&line).filter(|cached| cached.is_modified) else { return };
        cached.is_modified = false;
        let contents = Contents { since: self.time, version: cached.version, bytes: cached.bytes };
        let memory = &mut self.lines[line];
        if memory.history.len() == HISTORY_MAX {
            memory.history.remove(0);
        }
        let (owner, newest) = (memory.owner, memory.now().version);
        let is_older = newest > contents.version;
        memory.history.push(contents);
        if owner != host {
            self.fail(format!("host {host} writes back line {line}, which is host {owner}'s"));
        }
        if is_older {
            self.fail(format!("host {host} writes older bytes over newer ones of line {line}"));
        }
    }

    fn evict(&mut self, host: usize, line: usize) {
        self.write_to_memory(host, line);
        self.hosts[host].lines.remove(&line);
    }

    fn fetch(&mut self, host: usize, line: usize) -> LineBytes {
        let time = self.time;
        self.hosts[host].unordered_since.get_or_insert(time);
        let cached = self.cached(host, line).clone();
        let clock = &self.hosts[host].clock;
        let known = |seal: &&Seal| clock[seal.host] >= seal.count && seal.version > cached.version;
        if let Some(Seal { version, host: by, .. }) = self.lines[line].seals.iter().find(known) {
            let fault = format!(
                "host {host} fetches version {} of line {line}, and host {by} has sealed version {version} before",
                cached.version
            );
            self.fail(fault);
        }
        cached.bytes
    }

    fn discard(&mut self, host: usize, line: usize) {
        let caches = &self.hosts[host];
        let (time, is_early) = (caches.fenced_at, caches.has_loaded && self.random.one_in(2));
        let is_modified = self.hosts[host].lines.get(&line).is_some_and(|cached| cached.is_modified);
        if is_early && !is_modified {
            let then = self.lines[line].at(time);
            let refetched = Cached { version: then.version, bytes: then.bytes, is_modified: false };
            self.hosts[host].lines.insert(line, refetched);
        } else {
            self.hosts[host].discarded.insert(line);
        }
    }

    fn fence(&mut self, host: usize) {
        for line in std::mem::take(&mut self.hosts[host].written_back) {
            self.write_to_memory(host, line);
        }
        for line in std::mem::take(&mut self.hosts[host].discarded) {
            self.evict(host, line);
        }
        for line in std::mem::take(&mut self.hosts[host].words_written_back) {
            if self.word_lines[line].modified_by == Some(host) {
                self.keep_words(line);
            }
        }
        let caches = &mut self.hosts[host];
        (caches.fenced_at, caches.has_loaded, caches.unordered_since) = (self.time, false, None);
    }

    fn die(&mut self, host: usize) {
        // Before it died its caches may have written back anything, or nothing.
        let keeps = self.random.below(3);
        for line in self.hosts[host].lines.keys().copied().collect::<Vec<_>>() {
            if keeps == 1 || keeps == 2 && self.random.one_in(2) {
                self.write_to_memory(host, line);
            }
            if self.hosts[host].lines[&line].is_modified {
                self.lines[line].stored = self.lines[line].now().version;
            }
        }
        for line in 0..self.word_lines.len() {
            if self.word_lines[line].modified_by != Some(host) {
                continue;
            }
            if keeps == 1 || keeps == 2 && self.random.one_in(2) {
                self.keep_words(line);
                continue;
            }
            self.word_lines[line].modified_by = None;
            for index in 0..WORDS_OF_LINE {
                let (at, bits) = (line * WORDS_OF_LINE + index, self.word_lines[line].durable[index]);
                if let Some(last) = self.words.get(at).and_then(|values| values.last()).cloned()
                    && last.bits != bits
                {
                    self.words[at].push(Value { since: self.time, bits, clock: last.clock });
                }
            }
        }
        let clock = std::mem::take(&mut self.hosts[host].clock);
        let accesses = self.hosts[host].accesses;
        let priority = self.hosts[host].priority;
        self.hosts[host] = Caches { clock, accesses, priority, is_dead: true, ..Caches::default() };
        self.died_at = self.time;
        self.tell(host, || "dies".to_owned());
    }

    fn demote(&mut self, host: usize) {
        let least = self.hosts.iter().map(|host| host.priority).min().unwrap_or(0);
        self.hosts[host].priority = least - 1;
    }

    /// Which of the hosts that can go on does.
    fn choose(&mut self, ready: &[usize], steps: u64, switches: &[usize]) -> usize {
        if self.plan.switches.is_some() {
            let highest = |world: &World| *ready.iter().max_by_key(|host| world.hosts[**host].priority).unwrap_or(&0);
            if switches.contains(&(steps as usize)) {
                self.demote(highest(self));
            }
            return highest(self);
        }
        let awake: Vec<_> = ready.iter().copied().filter(|host| self.hosts[*host].sleeps_until <= steps).collect();
        let among = if awake.is_empty() { ready } else { &awake };
        let chosen = among[self.random.below(among.len())];
        if self.random.one_in(self.plan.sleeps_in) {
            self.hosts[chosen].sleeps_until = steps + self.random.below(120) as u64;
        }
        chosen
    }

    /// What hardware does by itself.
    fn happen(&mut self) {
        let host = self.random.below(self.hosts.len());
        if self.hosts[host].is_dead {
            return;
        }
        let choose =
            |random: &mut Random, among: Vec<usize>| (!among.is_empty()).then(|| among[random.below(among.len())]);
        match self.random.below(6) {
            0 => {
                if let Some(line) = choose(&mut self.random, self.hosts[host].lines.keys().copied().collect()) {
                    self.evict(host, line);
                }
            }
            1 | 2 => {
                let line = self.random.below(self.lines.len());
                self.cached(host, line);
            }
            3 => {
                if let Some(line) = choose(&mut self.random, self.hosts[host].lines.keys().copied().collect()) {
                    self.write_to_memory(host, line);
                }
            }
            4 => {
                if let Some(line) = choose(&mut self.random, self.hosts[host].discarded.iter().copied().collect()) {
                    self.hosts[host].discarded.remove(&line);
                    self.evict(host, line);
                }
            }
            _ => {
                let line = self.random.below(self.word_lines.len());
                if self.word_lines[line].modified_by == Some(host) && self.random.one_in(8) {
                    self.keep_words(line);
                }
            }
        }
    }
}

/// A host of a run: its accesses.
pub struct Host<'y> {
    yielder: &'y Yielder<(), ()>,
    world: Rc<RefCell<World>>,
    me: usize,
}

impl Host<'_> {
    pub fn id(&self) -> HostId {
        HostId(self.me as u8)
    }

    /// Waits: lets others go on.
    pub fn pause(&self) -> Result<(), Stop> {
        self.world.borrow_mut().demote(self.me);
        self.turn()
    }

    fn turn(&self) -> Result<(), Stop> {
        self.yielder.suspend(());
        let world = self.world.borrow();
        if world.fault.is_some() {
            return Err(Stop::Over);
        }
        if world.hosts[self.me].is_dead { Err(Stop::Dead) } else { Ok(()) }
    }

    fn access<T>(&self, show: impl FnOnce(&T) -> String, act: impl FnOnce(&mut World, usize) -> T) -> Result<T, Stop> {
        self.turn()?;
        let mut world = self.world.borrow_mut();
        world.time += 1;
        let value = act(&mut world, self.me);
        world.tell(self.me, || show(&value));
        world.hosts[self.me].accesses += 1;
        if world.plan.ends.contains(&Some((self.id(), world.hosts[self.me].accesses))) {
            world.die(self.me);
            return Err(Stop::Dead);
        }
        Ok(value)
    }

    fn is_left_out(&self, location: &'static Location<'static>, omission: Omission) -> bool {
        let site = Site { file: location.file(), line: location.line(), column: location.column(), omission };
        let mut world = self.world.borrow_mut();
        world.sites.insert(site);
        world.plan.left_out == Some(site)
    }

    /// What a program finds must be so.
    pub fn hold(&self, is_so: bool, otherwise: impl FnOnce() -> String) {
        if !is_so {
            self.world.borrow_mut().fail(format!("host {}: {}", self.me, otherwise()));
        }
    }

    pub fn random(&self, bound: usize) -> usize {
        self.world.borrow_mut().random.below(bound)
    }

    /// Waits until a host has died, which is confirmed, or has ended. True: it died, and its lines are this host's now.
    pub fn outlives(&self, other: HostId) -> Result<bool, Stop> {
        let other = usize::from(other.0);
        loop {
            self.pause()?;
            let mut world = self.world.borrow_mut();
            if world.hosts[other].is_dead {
                let owners: Vec<_> = world.hosts.iter().map(|host| host.is_dead).collect();
                // And those of the dead that were the dead host's.
                let lines = world.lines.iter_mut().filter(|line| owners[line.owner]);
                lines.for_each(|line| line.owner = self.me);
                return Ok(true);
            }
            if world.hosts[other].is_done {
                return Ok(false);
            }
        }
    }

    /// Whether a host has died. Its lines are not this host's for that.
    pub fn has_died(&self, other: HostId) -> bool {
        self.world.borrow().hosts[usize::from(other.0)].is_dead
    }

    /// Whether a host has died or ended.
    pub fn is_over(&self, other: HostId) -> bool {
        let other = &self.world.borrow().hosts[usize::from(other.0)];
        other.is_dead || other.is_done
    }
}

impl Access for Host<'_> {
    type Stop = Stop;

    fn load(&self, at: WordAt) -> Result<u64, Stop> {
        self.access(|bits| format!("loads word {}: {bits:#x}", at.0), |world, me| world.load(me, at))
    }

    fn swap(&self, at: WordAt, from: u64, to: u64) -> Result<Result<(), u64>, Stop> {
        let location = Location::caller();
        let show = |swapped: &Result<(), u64>| match swapped {
            Ok(()) => format!("swaps word {}: {from:#x} for {to:#x}", at.0),
            Err(found) => format!("does not swap word {} for {to:#x}: {found:#x} is there", at.0),
        };
        if self.is_left_out(location, Omission::TornSwap) {
            let found = self.load(at)?;
            if found != from {
                return Ok(Err(found));
            }
            return self.access(show, |world, me| {
                if world.word(at).bits != from {
                    world.fail(format!("host {me} overwrites word {}, which has changed", at.0));
                }
                world.change(me, at, to);
                Ok(())
            });
        }
        let is_done = !self.is_left_out(location, Omission::Swap);
        self.access(show, |world, me| world.swap(me, at, from, to, is_done))
    }

    fn advance(&self, at: WordAt, from: u64, to: u64) -> Result<Result<(), u64>, Stop> {
        let is_done = !self.is_left_out(Location::caller(), Omission::Advance);
        self.access(
            |_| format!("moves word {} from {from:#x} to {to:#x}", at.0),
            |world, me| world.swap(me, at, from, to, is_done),
        )
    }

    fn write_back_word(&self, at: WordAt) -> Result<(), Stop> {
        if self.is_left_out(Location::caller(), Omission::WriteBackWord) {
            return Ok(());
        }
        self.access(
            |()| format!("writes word {} back", at.0),
            |world, me| {
                world.hosts[me].words_written_back.insert(at.0 as usize / WORDS_OF_LINE);
            },
        )
    }

    fn fill(&self, line: Line, bytes: &LineBytes) -> Result<(), Stop> {
        self.access(
            |()| format!("fills line {}", line.0),
            |world, me| world.store(me, line.0 as usize, |own| *own = *bytes, true),
        )
    }

    fn put(&self, line: Line, bits: u64) -> Result<(), Stop> {
        self.access(
            |()| format!("stamps line {} with {bits:#x}", line.0),
            |world, me| {
                world.store(me, line.0 as usize, |own| own[..8].copy_from_slice(&bits.to_le_bytes()), false);
            },
        )
    }

    fn fetch(&self, line: Line, into: &mut LineBytes) -> Result<(), Stop> {
        *into = self.access(
            |bytes: &LineBytes| format!("fetches line {}: {:02x?}…", line.0, &bytes[..24]),
            |world, me| world.fetch(me, line.0 as usize),
        )?;
        Ok(())
    }

    fn write_back(&self, lines: Lines) -> Result<(), Stop> {
        if self.is_left_out(Location::caller(), Omission::WriteBack) {
            return Ok(());
        }
        self.access(
            |()| format!("writes back {} lines from {}", lines.count, lines.first.0),
            |world, me| world.hosts[me].written_back.extend(lines.each().map(|line| line.0 as usize)),
        )
    }

    fn discard(&self, lines: Lines, part: Part) -> Result<(), Stop> {
        if self.is_left_out(Location::caller(), Omission::Discard(part)) {
            return Ok(());
        }
        self.access(
            |()| format!("discards {} lines from {}", lines.count, lines.first.0),
            |world, me| lines.each().for_each(|line| world.discard(me, line.0 as usize)),
        )
    }

    fn fence(&self, fence: Fence) -> Result<(), Stop> {
        if self.is_left_out(Location::caller(), Omission::Fence(fence)) {
            return Ok(());
        }
        self.access(|()| format!("fences: {fence:?}"), |world, me| world.fence(me))
    }

    fn order(&self) -> Result<(), Stop> {
        if self.is_left_out(Location::caller(), Omission::Order) {
            return Ok(());
        }
        self.access(|()| "orders its loads".to_owned(), |world, me| world.hosts[me].unordered_since = None)
    }

    fn note(&self, note: Note<'_>) {
        let mut world = self.world.borrow_mut();
        let world = &mut *world;
        match note {
            Note::Sealed(lines) => {
                let clock = &mut world.hosts[self.me].clock;
                clock[self.me] += 1;
                let count = clock[self.me];
                for line in lines.each() {
                    let line = &mut world.lines[line.0 as usize];
                    line.seals.push(Seal { version: line.stored, host: self.me, count });
                }
            }
            Note::Publishes { at, bits, bytes } => {
                world.published.insert((at, bits), bytes.to_vec());
            }
            Note::Accepts { at, bits, bytes } => {
                // The first word of a block is its stamp, which changes once. A message has none.
                let of = |bytes: &[u8]| bytes.get(8..).unwrap_or_default().to_vec();
                if let Some(published) = world.published.get(&(at, bits))
                    && (published.len() != bytes.len() || of(published) != of(bytes))
                {
                    let text = format!(
                        "host {} takes {bytes:02x?} for what word {} published, which is {published:02x?}",
                        self.me, at.0
                    );
                    world.fail(text);
                }
            }
        }
    }
}

/// The words of a new pod.
struct Setup<'a>(&'a RefCell<World>);

impl Access for Setup<'_> {
    type Stop = Stop;

    fn load(&self, at: WordAt) -> Result<u64, Stop> {
        Ok(self.0.borrow().word(at).bits)
    }

    fn swap(&self, at: WordAt, _from: u64, to: u64) -> Result<Result<(), u64>, Stop> {
        let mut world = self.0.borrow_mut();
        world.words[at.0 as usize][0].bits = to;
        world.word_lines[at.0 as usize / WORDS_OF_LINE].durable[at.0 as usize % WORDS_OF_LINE] = to;
        Ok(Ok(()))
    }

    fn write_back_word(&self, _at: WordAt) -> Result<(), Stop> {
        Ok(())
    }

    fn fill(&self, _line: Line, _bytes: &LineBytes) -> Result<(), Stop> {
        Ok(())
    }

    fn put(&self, _line: Line, _bits: u64) -> Result<(), Stop> {
        Ok(())
    }

    fn fetch(&self, _line: Line, _into: &mut LineBytes) -> Result<(), Stop> {
        Ok(())
    }

    fn write_back(&self, _lines: Lines) -> Result<(), Stop> {
        Ok(())
    }

    fn discard(&self, _lines: Lines, _part: Part) -> Result<(), Stop> {
        Ok(())
    }

    fn fence(&self, _fence: Fence) -> Result<(), Stop> {
        Ok(())
    }

    fn order(&self) -> Result<(), Stop> {
        Ok(())
    }
}

/// Runs a program for each host of a new pod, by the plan's seed.
pub fn run(plan: Plan, layout: Layout, programs: Vec<Program>) -> Report {
    let world = Rc::new(RefCell::new(World::new(plan, layout)));
    assert!(crate::create(&Setup(&world), layout).is_ok(), "the words of a new pod");
    assert_eq!(programs.len(), usize::from(layout.hosts), "a program for each host");
    let mut hosts: Vec<_> = programs
        .into_iter()
        .enumerate()
        .map(|(me, program)| {
            let world = world.clone();
            Some(Coroutine::new(move |yielder: &Yielder<(), ()>, ()| program(&Host { yielder, world, me })))
        })
        .collect();
    let switches: Vec<_> = {
        let mut world = world.borrow_mut();
        for host in 0..hosts.len() {
            world.hosts[host].priority = world.random.below(1 << 20) as i64;
        }
        let Switches { count, steps } = plan.switches.unwrap_or(Switches { count: 0, steps: 1 });
        (0..count).map(|_| 1 + world.random.below(steps)).collect()
    };
    let mut steps = 0;
    while hosts.iter().any(Option::is_some) {
        steps += 1;
        let chosen = {
            let mut world = world.borrow_mut();
            if steps >= plan.steps_max {
                world.fail("the hosts do not come to an end".to_owned());
            }
            if world.random.one_in(2) {
                world.happen();
            }
            let ready: Vec<_> = (0..hosts.len()).filter(|host| hosts[*host].is_some()).collect();
            world.choose(&ready, steps, &switches)
        };
        let Some(host) = &mut hosts[chosen] else { continue };
        if let CoroutineResult::Return(result) = host.resume(()) {
            hosts[chosen] = None;
            let mut world = world.borrow_mut();
            world.hosts[chosen].is_done = true;
            match result {
                Ok(()) | Err(Trouble::Stopped(_)) => {}
                Err(trouble) => world.fail(format!("host {chosen}: {trouble}")),
            }
        }
    }
    let mut world = world.borrow_mut();
    Report {
        fault: world.fault.take(),
        sites: std::mem::take(&mut world.sites),
        accesses: world.hosts.iter().map(|host| host.accesses).collect(),
    }
}
