//! A simulated pool: hosts that lease, hand over, publish and return, pause between any two accesses, die there, and wake late,
//! by seed.
//!
//! A host is stopped before each access of its transitions and run again up to there, so that one thread plays all of them
//! and a seed repeats a run. Hosts that are alive are suspected, too; extents hold marks, so that a second owner is noticed;
//! and when all have died, nothing may be lost.
//!
//! `TIDEPOOL_STRESS_OPERATIONS=1000000 TIDEPOOL_STRESS_SEED=7 cargo test --release -p tidepool-pool --lib simulated -- --nocapture`

use crate::death::{Death, Evidence};
use crate::layout::{EXTENT_BYTES_MIN, Layout};
use crate::memory::{At, Books, Memory, Trouble};
use crate::words::{
    Contents, Database, DeviceState, DeviceWord, Entry, EntryState, Extent, Generation, Host, HostState, Kind, Number,
    Owner, Role, Slot,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// splitmix64: numbers that repeat.
pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// All words, and a mark for what each extent holds.
struct World {
    words: RefCell<Vec<u64>>,
    marks: RefCell<Vec<u64>>,
}

/// The host has had its access.
#[derive(Clone, Copy, Debug)]
struct Turn;

/// One turn of a host.
struct Run<'a> {
    world: &'a World,
    history: &'a RefCell<Vec<u64>>,
    cursor: Cell<usize>,
    has_acted: Cell<bool>,
}

impl Run<'_> {
    fn access(&self, act: impl FnOnce(&World) -> u64) -> Result<u64, Turn> {
        let mut history = self.history.borrow_mut();
        let at = self.cursor.get();
        if let Some(value) = history.get(at) {
            self.cursor.set(at + 1);
            return Ok(*value);
        }
        if self.has_acted.replace(true) {
            return Err(Turn);
        }
        history.push(act(self.world));
        self.cursor.set(at + 1);
        Ok(history[at])
    }

    fn mark(&self, extent: Extent, mark: u64) -> Result<(), Turn> {
        let index = extent.0 as usize;
        self.access(|world| std::mem::replace(&mut world.marks.borrow_mut()[index], mark)).map(drop)
    }

    fn marked(&self, extent: Extent) -> Result<u64, Turn> {
        self.access(|world| world.marks.borrow()[extent.0 as usize])
    }
}

impl Memory for &Run<'_> {
    type Stop = Turn;

    fn load(&self, at: At) -> Result<u64, Turn> {
        self.access(|world| world.words.borrow()[at.0 as usize / 8])
    }

    fn store(&self, at: At, bits: u64) -> Result<(), Turn> {
        self.access(|world| std::mem::replace(&mut world.words.borrow_mut()[at.0 as usize / 8], bits)).map(drop)
    }

    fn swap(&self, at: At, from: u64, to: u64) -> Result<Result<(), u64>, Turn> {
        let found = self.access(|world| {
            let word = &mut world.words.borrow_mut()[at.0 as usize / 8];
            let found = *word;
            if found == from {
                *word = to;
            }
            found
        })?;
        Ok(if found == from { Ok(()) } else { Err(found) })
    }

    fn fence(&self) -> Result<(), Turn> {
        Ok(())
    }

    fn zero(&self, extent: Extent) -> Result<(), Turn> {
        self.mark(extent, 0)
    }
}

/// All words at once, for making and looking at a world.
impl Memory for &World {
    type Stop = std::convert::Infallible;

    fn load(&self, at: At) -> Result<u64, Self::Stop> {
        Ok(self.words.borrow()[at.0 as usize / 8])
    }

    fn store(&self, at: At, bits: u64) -> Result<(), Self::Stop> {
        self.words.borrow_mut()[at.0 as usize / 8] = bits;
        Ok(())
    }

    fn swap(&self, at: At, from: u64, to: u64) -> Result<Result<(), u64>, Self::Stop> {
        let word = &mut self.words.borrow_mut()[at.0 as usize / 8];
        if *word == from {
            *word = to;
            Ok(Ok(()))
        } else {
            Ok(Err(*word))
        }
    }

    fn fence(&self) -> Result<(), Self::Stop> {
        Ok(())
    }

    fn zero(&self, extent: Extent) -> Result<(), Self::Stop> {
        self.marks.borrow_mut()[extent.0 as usize] = 0;
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Join(Slot, Database),
    Hold,
    Attach,
    Lease(Extent, Kind),
    Mark(Extent, u64),
    Look(Extent, u64),
    Publish(Extent),
    GiveBack(Extent),
    Free(Extent),
    Hand(Extent, Slot),
    TakeBack(Extent),
    Take(Extent),
    /// To the root in force: nothing older is read any more.
    Raise,
    Root,
    Return(Extent),
    FreeShared(Extent),
    Suspect(Host),
    Confirm(Host),
    Sweep(Host),
    FreeSlot(Host),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    Done(bool),
    Joined(Option<Host>),
    Taken(Option<Contents>),
    Held(Generation),
    Marked(u64),
}

fn perform(action: Action, run: &Run<'_>, layout: Layout, me: Host, database: Database) -> Result<Came, Trouble<Turn>> {
    let books = Books { memory: run, layout };
    Ok(match action {
        Action::Join(slot, database) => Came::Joined(books.join(slot, Role::Standby, database)?),
        Action::Hold => Came::Held(books.hold_root(me, database)?),
        Action::Attach => Came::Done(books.advance(me, HostState::Attached)?),
        Action::Lease(extent, kind) => Came::Done(books.lease(me, database, extent, kind)?),
        Action::Mark(extent, mark) => {
            run.mark(extent, mark)?;
            Came::Done(true)
        }
        Action::Look(extent, _) => Came::Marked(run.marked(extent)?),
        Action::Publish(extent) => {
            let root = books.load(layout.root(database))?;
            Came::Done(books.publish(me, database, extent, root.generation, Number(1))?)
        }
        Action::GiveBack(extent) => Came::Done(books.give_back(me, extent)?),
        Action::Free(extent) | Action::FreeShared(extent) => {
            Came::Done(books.free(me, extent, Contents::Of(database))?)
        }
        Action::Hand(extent, to) => Came::Done(books.hand(me, extent, to)?),
        Action::TakeBack(extent) => Came::Done(books.take_back(me, extent)?),
        Action::Take(extent) => Came::Taken(books.take(me, database, extent)?),
        Action::Raise => {
            let root = books.load(layout.root(database))?;
            books.raise_hold(me, root.generation)?;
            Came::Held(root.generation)
        }
        Action::Root => {
            let root = books.load(layout.root(database))?;
            Came::Done(books.publish_root(database, root, root.place)?.is_some())
        }
        Action::Return(extent) => {
            let root = books.load(layout.root(database))?;
            let owner = books.load(layout.owner(extent))?;
            // The root in force names nothing that was there before it.
            let is_older = match owner {
                Owner::Shared { generation, .. } => generation < root.generation,
                Owner::Orphan { .. } => true,
                _ => false,
            };
            Came::Done(is_older && books.return_shared(me, database, extent, owner, root.generation)?)
        }
        Action::Suspect(host) => Came::Done(books.suspect(host)?),
        Action::Confirm(host) => Came::Done(books.confirm(host, &Death::by(Evidence::ProcessEnded))?),
        Action::Sweep(host) => Came::Done(books.sweep(host)?.is_some()),
        Action::FreeSlot(host) => Came::Done(books.free_slot(host)?),
    })
}

/// One process after another.
struct Process {
    host: Option<Host>,
    database: Database,
    action: Option<Action>,
    history: RefCell<Vec<u64>>,
    then: Vec<Action>,
    /// Its private extents, with the mark that each holds.
    own: BTreeMap<Extent, u64>,
    filling: Vec<Extent>,
    handed: BTreeMap<Extent, u64>,
    sleeps: u64,
    /// It was taken for dead and knows.
    is_over: bool,
}

impl Process {
    fn new(database: Database) -> Process {
        Process {
            host: None,
            database,
            action: None,
            history: RefCell::default(),
            then: Vec::new(),
            own: BTreeMap::new(),
            filling: Vec::new(),
            handed: BTreeMap::new(),
            sleeps: 0,
            is_over: false,
        }
    }
}

const HOSTS: usize = 4;
const EXTENTS: u32 = 24;

struct Simulation {
    world: World,
    layout: Layout,
    processes: Vec<Process>,
    /// Lives that ended, and were not buried to the end.
    dead: Vec<Host>,
    random: Random,
    marks: u64,
    /// Leases, returns and hand-overs.
    operations: u64,
    kills: u64,
    suspicions: u64,
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let layout = Layout { slots: 6, databases: 2, extents: EXTENTS };
        let world = World {
            words: RefCell::new(vec![0; layout.control_bytes() / 8]),
            marks: RefCell::new(vec![0; EXTENTS as usize]),
        };
        let books = Books { memory: &world, layout };
        let device = DeviceWord { first: Extent(0), extents: EXTENTS, state: DeviceState::Present };
        let made = books.format(&[device], &[true], Layout::new(EXTENTS).control_extents(EXTENT_BYTES_MIN));
        made.unwrap_or_else(|_| unreachable!("nothing is damaged"));
        for database in layout.all_databases() {
            let live = Entry { life: 1, state: EntryState::Live, by: Slot(63) };
            books.store(layout.entry(database), live).unwrap_or_else(|_| unreachable!("nothing is damaged"));
        }
        let processes = (0..HOSTS).map(|index| Process::new(Database((index % 2) as u8))).collect();
        let (random, dead) = (Random::new(seed), Vec::new());
        Simulation { world, layout, processes, dead, random, marks: 0, operations: 0, kills: 0, suspicions: 0 }
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        if of.is_empty() { None } else { Some(of[self.random.below(of.len() as u64) as usize]) }
    }

    /// What a process does next.
    fn choose(&mut self, index: usize) -> Action {
        if let Some(next) = self.processes[index].then.pop() {
            return next;
        }
        let database = self.processes[index].database;
        let slot = Slot(self.random.below(self.layout.slots.into()) as u8);
        let Some(me) = self.processes[index].host else {
            // A process that wants to join buries the dead, or there may be no slot.
            let dead = self.dead.clone();
            return match self.pick(&dead) {
                Some(host) if self.random.below(2) == 0 => {
                    self.processes[index].then = vec![Action::FreeSlot(host), Action::Sweep(host)];
                    Action::Confirm(host)
                }
                _ => Action::Join(slot, database),
            };
        };
        if self.processes[index].is_over {
            self.processes[index].then = vec![Action::FreeSlot(me), Action::Sweep(me)];
            return Action::Confirm(me);
        }
        let own: Vec<_> = self.processes[index].own.iter().map(|(extent, mark)| (*extent, *mark)).collect();
        let filling = self.processes[index].filling.clone();
        let handed: Vec<_> = self.processes[index].handed.keys().copied().collect();
        let extent = Extent(1 + self.random.below(u64::from(EXTENTS) - 1) as u32);
        let dead = self.dead.clone();
        let others: Vec<_> =
            self.processes.iter().filter_map(|process| process.host).filter(|host| *host != me).collect();
        match self.random.below(100) {
            0..22 => Action::Lease(
                extent,
                self.pick(&[Kind::Heap, Kind::Heap, Kind::Heap, Kind::Main, Kind::Log]).unwrap_or(Kind::Heap),
            ),
            22..37 => match self.pick(&own) {
                Some((extent, mark)) => Action::Look(extent, mark),
                None => Action::Raise,
            },
            37..52 => match self.pick(&own) {
                Some((extent, _)) => {
                    self.processes[index].own.remove(&extent);
                    self.processes[index].then.push(Action::Free(extent));
                    Action::GiveBack(extent)
                }
                None => Action::Raise,
            },
            52..64 => match (self.pick(&own), self.pick(&others)) {
                (Some((extent, mark)), Some(to)) => {
                    self.processes[index].own.remove(&extent);
                    self.processes[index].handed.insert(extent, mark);
                    Action::Hand(extent, to.slot)
                }
                _ => Action::Raise,
            },
            64..76 => Action::Take(extent),
            76..79 => self.pick(&handed).map_or(Action::Raise, Action::TakeBack),
            79..82 => match self.pick(&filling) {
                Some(extent) => {
                    self.processes[index].filling.retain(|other| *other != extent);
                    Action::Publish(extent)
                }
                None => Action::Raise,
            },
            82..85 => Action::Raise,
            85..88 => Action::Root,
            88..94 => Action::Return(extent),
            94 if self.random.below(20) == 0 => self.pick(&others).map_or(Action::Raise, Action::Suspect),
            _ => match self.pick(&dead) {
                Some(host) => {
                    self.processes[index].then = vec![Action::FreeSlot(host), Action::Sweep(host)];
                    Action::Confirm(host)
                }
                None => Action::Raise,
            },
        }
    }

    /// What a process makes of what its action came to.
    fn note(&mut self, index: usize, action: Action, came: Came) {
        let process = &mut self.processes[index];
        match (action, came) {
            (Action::Join(..), Came::Joined(Some(host))) => {
                process.host = Some(host);
                process.then = vec![Action::Attach, Action::Hold];
            }
            (Action::Attach, Came::Done(false)) => process.is_over = true,
            (Action::Lease(extent, kind), Came::Done(true)) => {
                self.operations += 1;
                self.marks += 1;
                if kind == Kind::Heap {
                    process.own.insert(extent, self.marks);
                    process.then.push(Action::Mark(extent, self.marks));
                } else if kind == Kind::Main {
                    process.filling.push(extent);
                }
            }
            (Action::Look(extent, mark), Came::Marked(found)) => {
                assert_eq!(found, mark, "extent {} of {:?} has a second owner", extent.0, process.host);
            }
            (Action::GiveBack(_), Came::Done(false)) => {
                process.then.clear();
                process.is_over = true;
            }
            (Action::Free(_), Came::Done(_)) => self.operations += 1,
            (Action::Hand(extent, _), Came::Done(is_done)) => {
                self.operations += 1;
                if !is_done {
                    process.handed.remove(&extent);
                    process.is_over = true;
                }
            }
            (Action::TakeBack(extent), Came::Done(is_done)) => {
                // Else another host took it.
                if let Some(mark) = process.handed.remove(&extent).filter(|_| is_done) {
                    process.own.insert(extent, mark);
                }
            }
            (Action::Take(extent), Came::Taken(Some(_))) => {
                self.operations += 1;
                self.marks += 1;
                process.own.insert(extent, self.marks);
                process.then.push(Action::Mark(extent, self.marks));
            }
            (Action::Return(extent), Came::Done(true)) => process.then.push(Action::FreeShared(extent)),
            (Action::Suspect(host), Came::Done(true)) => {
                self.suspicions += 1;
                // It notices when it looks; here, at once or late.
                if let Some(other) = self.processes.iter_mut().find(|other| other.host == Some(host)) {
                    other.is_over = true;
                    other.sleeps = other.sleeps.max(self.random.below(200));
                }
            }
            (Action::FreeSlot(host), Came::Done(_)) if process.host == Some(host) => {
                let database = process.database;
                *process = Process::new(database);
            }
            _ => {}
        }
    }

    fn turn(&mut self) {
        let index = self.random.below(HOSTS as u64) as usize;
        if self.processes[index].sleeps > 0 {
            self.processes[index].sleeps -= 1;
            return;
        }
        match self.random.below(2000) {
            0..4 => {
                let process = &mut self.processes[index];
                let database = Database(self.random.below(2) as u8);
                let killed = std::mem::replace(process, Process::new(database));
                self.kills += 1;
                // It may have taken a slot and not have known yet.
                let joined = match (killed.host, killed.action) {
                    (None, Some(Action::Join(slot, _))) => self.unknown_host(slot),
                    (host, _) => host,
                };
                self.dead.extend(joined);
                return;
            }
            4..8 => self.processes[index].sleeps = self.random.below(3000),
            _ => {}
        }
        let action = match self.processes[index].action {
            Some(action) => action,
            None => {
                let action = self.choose(index);
                self.processes[index].action = Some(action);
                self.processes[index].history.borrow_mut().clear();
                action
            }
        };
        let process = &self.processes[index];
        let me = process.host.unwrap_or(Host { slot: Slot(0), incarnation: crate::words::Incarnation(0) });
        let run =
            Run { world: &self.world, history: &process.history, cursor: Cell::new(0), has_acted: Cell::new(false) };
        match perform(action, &run, self.layout, me, process.database) {
            Err(Trouble::Stopped(Turn)) => {}
            Err(Trouble::Damaged { at, fault }) => panic!("the word at {at:?} is {fault}"),
            Ok(came) => {
                self.processes[index].action = None;
                self.note(index, action, came);
            }
        }
        let slots = self.layout.slots;
        let idents: Vec<_> = (0..slots).map(|slot| self.ident(Slot(slot))).collect();
        self.dead.retain(|host| {
            let ident = idents[usize::from(host.slot.0)];
            ident.incarnation == host.incarnation && ident.state != HostState::Free
        });
    }

    fn ident(&self, slot: Slot) -> crate::words::Ident {
        let books = Books { memory: &self.world, layout: self.layout };
        books.load(self.layout.ident(slot)).unwrap_or_else(|_| unreachable!("nothing is damaged"))
    }

    /// The host that a slot says it has, and that no process knows to be its own.
    fn unknown_host(&self, slot: Slot) -> Option<Host> {
        let ident = self.ident(slot);
        let host = Host { slot, incarnation: ident.incarnation };
        let is_known = self.processes.iter().any(|process| process.host == Some(host)) || self.dead.contains(&host);
        let is_joining = self.processes.iter().any(|process| {
            matches!(process.action, Some(Action::Join(other, _)) if other == slot && !process.history.borrow().is_empty())
        });
        (ident.state != HostState::Free && !is_known && !is_joining).then_some(host)
    }

    /// All die. What a last host can free is free then, and that is everything.
    fn end(&mut self) {
        for index in 0..HOSTS {
            let database = self.processes[index].database;
            self.processes[index] = Process::new(database);
        }
        let books = Books { memory: &self.world, layout: self.layout };
        let sure = |outcome: Result<bool, Trouble<std::convert::Infallible>>| {
            outcome.unwrap_or_else(|_| unreachable!("nothing is damaged"))
        };
        let death = Death::by(Evidence::ProcessEnded);
        let slots = self.layout.all_slots();
        let hosts: Vec<_> = slots.map(|slot| Host { slot, incarnation: self.ident(slot).incarnation }).collect();
        for host in &hosts {
            sure(books.confirm(*host, &death));
        }
        for host in &hosts {
            let _ = books.sweep(*host);
        }
        for host in &hosts {
            sure(books.free_slot(*host));
        }
        for database in self.layout.all_databases() {
            let joined = books.join(Slot(0), Role::Primary, database);
            let last = joined.ok().flatten().expect("every slot is free");
            books.stamp_root(database).unwrap_or_else(|_| unreachable!("nothing is damaged"));
            let held = books.hold_root(last, database).unwrap_or_else(|_| unreachable!("nothing is damaged"));
            for extent in self.layout.all_extents() {
                let found =
                    books.load(self.layout.owner(extent)).unwrap_or_else(|_| unreachable!("nothing is damaged"));
                if sure(books.return_shared(last, database, extent, found, held)) {
                    sure(books.free(last, extent, Contents::Of(database)));
                }
            }
            sure(books.confirm(last, &death));
            sure(books.free_slot(last));
        }
        for extent in self.layout.all_extents() {
            let owner = books.load(self.layout.owner(extent)).unwrap_or_else(|_| unreachable!("nothing is damaged"));
            assert!(matches!(owner, Owner::Free { .. } | Owner::Control), "extent {} is lost: {owner:?}", extent.0);
        }
    }
}

/// Leases, returns and hand-overs by four hosts that are killed at random leak nothing, and no extent has two owners.
#[test]
fn hosts_that_pause_and_die_leak_nothing() {
    let from_environment = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let operations = from_environment("TIDEPOOL_STRESS_OPERATIONS").unwrap_or(20_000);
    let first = from_environment("TIDEPOOL_STRESS_SEED").unwrap_or(1);
    let each = (operations / 4).max(1);
    let mut done = (0, 0, 0);
    for seed in first..first + 4 {
        let mut simulation = Simulation::new(seed);
        let mut turns = 0u64;
        while simulation.operations < each {
            simulation.turn();
            turns += 1;
            assert!(turns < each * 10_000, "seed {seed} comes to nothing: {} of {each}", simulation.operations);
        }
        simulation.end();
        done = (done.0 + simulation.operations, done.1 + simulation.kills, done.2 + simulation.suspicions);
    }
    println!("{} leases, returns and hand-overs, {} kills, {} false suspicions", done.0, done.1, done.2);
}
