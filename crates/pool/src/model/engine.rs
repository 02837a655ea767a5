//! The checker: every interleaving of some hosts over some words, breadth first.
//!
//! A host is a program of *procedures*. A procedure is ordinary code over [`Memory`]; the checker stops it before each
//! access and remembers what the accesses so far returned, so that it can be run up to there again. Between two accesses
//! any other host may go on, for ever: so each host is also one that sleeps there and wakes when all is over. A mortal host
//! may die there.
//!
//! Memory is x86's: a plain store waits in its processor's buffer, in order, until it reaches memory at any later moment; a
//! load sees the own buffer first; a swap or a fence empties it. What is in a buffer when its host dies reaches memory all
//! the same, and a death is confirmed only after that.
//!
//! A fence or a swap can be removed where the code has it: a fence then does nothing, and a swap becomes a load, a
//! comparison and a plain store.

use crate::death::{Death, Evidence};
use crate::layout::Layout;
use crate::memory::{At, Books, Field, Memory, Trouble};
use crate::words::{Extent, Word};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt::Write;
use std::panic::Location;
use xxhash_rust::xxh3::xxh3_128;

pub const LOCALS: usize = 6;
pub type Locals = [u64; LOCALS];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The host has had its access.
    Turn,
    /// What it waits for is not so.
    Blocked,
}

pub type Step<T> = Result<T, Trouble<Stop>>;

/// Where a host goes on after a procedure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Goto(u8),
    End,
}

pub type Program = Box<dyn Fn(&Run<'_>, u8, &mut Locals) -> Step<Next>>;

pub struct Actor {
    pub name: &'static str,
    pub mortal: bool,
    pub program: Program,
}

struct Place {
    at: At,
    name: String,
    show: fn(u64) -> String,
}

pub type Check = Box<dyn Fn(&View<'_>) -> Option<String>>;

pub struct Scenario {
    pub name: &'static str,
    pub layout: Layout,
    places: Vec<Place>,
    index: HashMap<At, usize>,
    initial: Vec<u64>,
    pub actors: Vec<Actor>,
    pub deaths: u8,
    pub notes: Vec<u64>,
    /// What holds in every state.
    pub invariant: Check,
    /// What holds where nobody can do anything any more.
    pub end: Check,
}

impl Scenario {
    pub fn new(name: &'static str, layout: Layout) -> Scenario {
        Scenario {
            name,
            layout,
            places: Vec::new(),
            index: HashMap::new(),
            initial: Vec::new(),
            actors: Vec::new(),
            deaths: 1,
            notes: Vec::new(),
            invariant: Box::new(|_| None),
            end: Box::new(|_| None),
        }
    }

    pub fn word<W: Word>(&mut self, name: impl Into<String>, field: Field<W>, word: W) {
        fn show<W: Word>(bits: u64) -> String {
            match W::read(bits) {
                Ok(word) => format!("{word:?}"),
                Err(fault) => fault.to_string(),
            }
        }
        self.place(field.at, name.into(), show::<W>, word.bits());
    }

    /// Gives a word that stands there another value.
    pub fn replace<W: Word>(&mut self, field: Field<W>, word: W) {
        let place = self.place_of(field.at);
        self.initial[place] = word.bits();
    }

    pub fn content(&mut self, extent: u32, index: u32, value: u64) {
        self.place(content(extent, index), format!("byte {index} of extent {extent}"), |bits| bits.to_string(), value);
    }

    fn place(&mut self, at: At, name: String, show: fn(u64) -> String, bits: u64) {
        let before = self.index.insert(at, self.places.len());
        assert!(before.is_none(), "{name} stands twice");
        self.places.push(Place { at, name, show });
        self.initial.push(bits);
    }

    pub fn actor(
        &mut self,
        name: &'static str,
        mortal: bool,
        program: impl Fn(&Run<'_>, u8, &mut Locals) -> Step<Next> + 'static,
    ) {
        self.actors.push(Actor { name, mortal, program: Box::new(program) });
    }

    fn place_of(&self, at: At) -> usize {
        *self.index.get(&at).unwrap_or_else(|| panic!("{}: no word stands at {at:?}", self.name))
    }
}

/// Where the contents of an extent stand in for its bytes.
pub fn content(extent: u32, index: u32) -> At {
    At(1 << 31 | extent << 4 | index)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Works,
    Done,
    Dead,
}

#[derive(Clone)]
struct Pending {
    place: u16,
    bits: u64,
    /// What a swap without its lock believes to be there.
    believed: Option<u64>,
}

#[derive(Clone)]
struct Host {
    life: Life,
    procedure: u8,
    locals: Locals,
    history: Vec<u64>,
    buffer: Vec<Pending>,
}

#[derive(Clone)]
struct State {
    memory: Vec<u64>,
    hosts: Vec<Host>,
    notes: Vec<u64>,
    deaths: u8,
}

impl State {
    fn first(scenario: &Scenario) -> State {
        let host = Host { life: Life::Works, procedure: 0, locals: [0; LOCALS], history: vec![], buffer: vec![] };
        State {
            memory: scenario.initial.clone(),
            hosts: vec![host; scenario.actors.len()],
            notes: scenario.notes.clone(),
            deaths: 0,
        }
    }

    fn digest(&self, bytes: &mut Vec<u8>) -> u128 {
        bytes.clear();
        let mut put = |value: u64| bytes.extend_from_slice(&value.to_le_bytes());
        self.memory.iter().chain(&self.notes).for_each(|word| put(*word));
        put(u64::from(self.deaths));
        for host in &self.hosts {
            put((host.life as u64) << 8 | u64::from(host.procedure) | (host.history.len() as u64) << 16);
            // What is over has no state but its buffer.
            if host.life == Life::Works {
                host.locals.iter().chain(&host.history).for_each(|word| put(*word));
            }
            put(host.buffer.len() as u64);
            for pending in &host.buffer {
                put(u64::from(pending.place));
                put(pending.bits);
                put(pending.believed.unwrap_or(0));
            }
        }
        xxh3_128(bytes)
    }

    /// The oldest store of a buffer reaches memory. False when it was a swap without a lock that overwrote what it had not
    /// read.
    fn flush_one(&mut self, host: usize) -> bool {
        let pending = self.hosts[host].buffer.remove(0);
        let place = usize::from(pending.place);
        let is_lost = pending.believed.is_some_and(|believed| believed != self.memory[place]);
        self.memory[place] = pending.bits;
        !is_lost
    }
}

/// What an invariant may look at: memory, what reached it, and the notes.
pub struct View<'a> {
    scenario: &'a Scenario,
    state: &'a State,
}

impl View<'_> {
    pub fn word<W: Word>(&self, field: Field<W>) -> W {
        let bits = self.state.memory[self.scenario.place_of(field.at)];
        W::read(bits).unwrap_or_else(|fault| panic!("{}: {fault}", self.scenario.name))
    }

    pub fn content(&self, extent: u32, index: u32) -> u64 {
        self.state.memory[self.scenario.place_of(content(extent, index))]
    }

    pub fn note(&self, index: usize) -> u64 {
        self.state.notes[index]
    }

    pub fn is_dead(&self, host: usize) -> bool {
        self.state.hosts[host].life == Life::Dead
    }
}

/// A place in the code, which the compiler gives: where a fence or a swap can be removed.
pub type Site = (&'static str, u32, &'static str);

/// What is checked beside the scenario's invariants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    pub removed: Option<Site>,
    /// A swap that was removed may not overwrite what it has not read.
    pub no_lost_updates: bool,
}

impl Options {
    pub const RIGHT: Options = Options { removed: None, no_lost_updates: true };
}

/// One turn of one host: the memory that its program sees.
pub struct Run<'a> {
    pub scenario: &'a Scenario,
    state: RefCell<&'a mut State>,
    me: usize,
    cursor: Cell<usize>,
    has_acted: Cell<bool>,
    wrong: RefCell<Option<String>>,
    options: Options,
    sites: &'a RefCell<BTreeSet<Site>>,
    shown: Option<RefCell<String>>,
}

impl<'a> Run<'a> {
    pub fn books(&self) -> Books<&Run<'a>> {
        Books { memory: self, layout: self.scenario.layout }
    }

    fn access(
        &self,
        show: impl FnOnce(u64) -> String,
        act: impl FnOnce(&mut State) -> Option<u64>,
    ) -> Result<u64, Stop> {
        let mut state = self.state.borrow_mut();
        let at = self.cursor.get();
        if let Some(value) = state.hosts[self.me].history.get(at) {
            self.cursor.set(at + 1);
            return Ok(*value);
        }
        if self.has_acted.get() {
            return Err(Stop::Turn);
        }
        let value = act(&mut state).ok_or(Stop::Blocked)?;
        state.hosts[self.me].history.push(value);
        self.cursor.set(at + 1);
        self.has_acted.set(true);
        if let Some(shown) = &self.shown {
            *shown.borrow_mut() = show(value);
        }
        Ok(value)
    }

    fn is_now(&self) -> bool {
        self.has_acted.get() && self.cursor.get() == self.state.borrow().hosts[self.me].history.len()
    }

    /// Says what the program just came to, in notes that no program can read. Stands behind an access, with which it is one
    /// moment.
    pub fn note(&self, note: impl FnOnce(&mut [u64]) -> Result<(), String>) {
        if self.is_now()
            && let Err(wrong) = note(&mut self.state.borrow_mut().notes)
        {
            self.wrong.borrow_mut().get_or_insert(wrong);
        }
    }

    /// What must be so where the program has come to.
    pub fn hold(&self, is_so: bool, otherwise: impl FnOnce() -> String) {
        self.note(|_| if is_so { Ok(()) } else { Err(otherwise()) });
    }

    /// Waits until another host is dead and everything that it stored has reached memory.
    pub fn death_of(&self, host: usize) -> Step<Death> {
        let name = self.scenario.actors[host].name;
        self.access(
            |_| format!("learns that the {name} is dead"),
            |state| (state.hosts[host].life == Life::Dead && state.hosts[host].buffer.is_empty()).then_some(0),
        )?;
        Ok(Death::by(Evidence::ProcessEnded))
    }

    /// Whether another host is dead and everything that it stored has reached memory.
    pub fn is_dead(&self, host: usize) -> Step<bool> {
        let name = self.scenario.actors[host].name;
        let is_dead = self.access(
            |is_dead| format!("sees that the {name} is {}", if is_dead == 1 { "dead" } else { "not dead" }),
            |state| Some((state.hosts[host].life == Life::Dead && state.hosts[host].buffer.is_empty()).into()),
        )?;
        Ok(is_dead == 1)
    }

    /// Waits until `at` holds what is wanted.
    pub fn until(&self, at: At, what: &str, is_so: impl Fn(u64) -> bool) -> Step<u64> {
        let place = self.scenario.place_of(at);
        Ok(self.access(|_| format!("finds {what}"), |state| Some(state.memory[place]).filter(|bits| is_so(*bits)))?)
    }

    fn name(&self, at: At) -> &str {
        &self.scenario.places[self.scenario.place_of(at)].name
    }

    fn show(&self, at: At, bits: u64) -> String {
        (self.scenario.places[self.scenario.place_of(at)].show)(bits)
    }

    /// Notes where the code is, and says whether that is what is removed.
    fn is_removed(&self, location: &'static Location<'static>, what: &'static str) -> bool {
        let site = (location.file(), location.line(), what);
        // What a scenario's own programs do is not the product's.
        if !site.0.contains("model") {
            self.sites.borrow_mut().insert(site);
        }
        self.options.removed == Some(site)
    }

    fn load_word(&self, at: At) -> Result<u64, Stop> {
        let place = self.scenario.place_of(at);
        self.access(
            |bits| format!("loads {}: {}", self.name(at), self.show(at, bits)),
            |state| {
                let buffered = state.hosts[self.me].buffer.iter().rfind(|pending| usize::from(pending.place) == place);
                Some(buffered.map_or(state.memory[place], |pending| pending.bits))
            },
        )
    }

    fn store_word(&self, at: At, bits: u64, believed: Option<u64>) -> Result<(), Stop> {
        let place = self.scenario.place_of(at) as u16;
        self.access(
            |_| format!("stores {}: {}", self.name(at), self.show(at, bits)),
            |state| {
                state.hosts[self.me].buffer.push(Pending { place, bits, believed });
                Some(0)
            },
        )
        .map(drop)
    }

    fn drain(&self, state: &mut State) {
        while !state.hosts[self.me].buffer.is_empty() {
            if !state.flush_one(self.me) && self.options.no_lost_updates {
                self.wrong.borrow_mut().get_or_insert_with(lost_update);
            }
        }
    }
}

fn lost_update() -> String {
    "a word was overwritten by a host that had not read it".to_owned()
}

impl Memory for &Run<'_> {
    type Stop = Stop;

    fn load(&self, at: At) -> Result<u64, Stop> {
        self.load_word(at)
    }

    fn store(&self, at: At, bits: u64) -> Result<(), Stop> {
        self.store_word(at, bits, None)
    }

    #[track_caller]
    fn swap(&self, at: At, from: u64, to: u64) -> Result<Result<(), u64>, Stop> {
        if self.is_removed(Location::caller(), "swap") {
            let found = self.load_word(at)?;
            if found != from {
                return Ok(Err(found));
            }
            self.store_word(at, to, Some(from))?;
            return Ok(Ok(()));
        }
        let place = self.scenario.place_of(at);
        let found = self.access(
            |found| {
                let way = if found == from { "to" } else { "and does not put" };
                format!("swaps {}: finds {} {way} {}", self.name(at), self.show(at, found), self.show(at, to))
            },
            |state| {
                self.drain(state);
                let found = state.memory[place];
                if found == from {
                    state.memory[place] = to;
                }
                Some(found)
            },
        )?;
        Ok(if found == from { Ok(()) } else { Err(found) })
    }

    #[track_caller]
    fn fence(&self) -> Result<(), Stop> {
        if self.is_removed(Location::caller(), "fence") {
            return Ok(());
        }
        self.access(
            |_| "fences".to_owned(),
            |state| {
                self.drain(state);
                Some(0)
            },
        )
        .map(drop)
    }

    fn zero(&self, extent: Extent) -> Result<(), Stop> {
        let bytes = content(extent.0, 0).0..content(extent.0 + 1, 0).0;
        let mut places: Vec<At> =
            self.scenario.places.iter().map(|place| place.at).filter(|at| bytes.contains(&at.0)).collect();
        places.sort();
        places.into_iter().try_for_each(|at| self.store_word(at, 0, None))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Step(u8),
    Flush(u8),
    Die(u8),
}

/// What became of a scenario.
pub struct Explored {
    pub states: usize,
    /// The shortest way to something that must not be.
    pub counterexample: Option<String>,
    pub sites: BTreeSet<Site>,
}

/// Why the states of a scenario were not all seen.
const STATES_MAX: usize = 30_000_000;

pub fn explore(scenario: &Scenario, options: Options) -> Explored {
    let sites = RefCell::new(BTreeSet::new());
    let mut bytes = Vec::new();
    let first = State::first(scenario);
    let mut seen = HashSet::from([first.digest(&mut bytes)]);
    // For the way back: who came from where.
    let mut ways: Vec<(u32, Action)> = vec![(0, Action::Step(0))];
    let mut queue = VecDeque::from([(0u32, first)]);
    while let Some((from, state)) = queue.pop_front() {
        let mut is_stuck = true;
        for action in actions(scenario, &state) {
            let mut next = state.clone();
            let Some((wrong, _)) = act(scenario, &mut next, action, options, &sites, false) else { continue };
            is_stuck = false;
            let view = View { scenario, state: &next };
            let wrong = wrong.or_else(|| (scenario.invariant)(&view));
            if !seen.insert(next.digest(&mut bytes)) && wrong.is_none() {
                continue;
            }
            ways.push((from, action));
            let to = (ways.len() - 1) as u32;
            if let Some(wrong) = wrong {
                let counterexample = tell(scenario, &ways, to, options, &wrong);
                return Explored {
                    states: seen.len(),
                    counterexample: Some(counterexample),
                    sites: sites.into_inner(),
                };
            }
            assert!(ways.len() < STATES_MAX, "{} has too many states", scenario.name);
            queue.push_back((to, next));
        }
        if is_stuck && let Some(wrong) = (scenario.end)(&View { scenario, state: &state }) {
            let counterexample = tell(scenario, &ways, from, options, &wrong);
            return Explored { states: seen.len(), counterexample: Some(counterexample), sites: sites.into_inner() };
        }
    }
    Explored { states: seen.len(), counterexample: None, sites: sites.into_inner() }
}

fn actions(scenario: &Scenario, state: &State) -> Vec<Action> {
    let mut actions = Vec::new();
    for (index, host) in state.hosts.iter().enumerate() {
        let number = index as u8;
        if host.life == Life::Works {
            actions.push(Action::Step(number));
            if scenario.actors[index].mortal && state.deaths < scenario.deaths {
                actions.push(Action::Die(number));
            }
        }
        if !host.buffer.is_empty() {
            actions.push(Action::Flush(number));
        }
    }
    actions
}

/// Does one thing. `None` where it cannot be done; else what is wrong with it, and what it was.
fn act(
    scenario: &Scenario,
    state: &mut State,
    action: Action,
    options: Options,
    sites: &RefCell<BTreeSet<Site>>,
    is_told: bool,
) -> Option<(Option<String>, String)> {
    match action {
        Action::Die(host) => {
            state.hosts[usize::from(host)].life = Life::Dead;
            state.deaths += 1;
            Some((None, "dies".to_owned()))
        }
        Action::Flush(host) => {
            let host = usize::from(host);
            let place = usize::from(state.hosts[host].buffer[0].place);
            let is_fine = state.flush_one(host);
            let wrong = (!is_fine && options.no_lost_updates).then(lost_update);
            Some((wrong, format!("(its store of {} reaches memory)", scenario.places[place].name)))
        }
        Action::Step(host) => {
            let host = usize::from(host);
            let (procedure, mut locals) = (state.hosts[host].procedure, state.hosts[host].locals);
            let run = Run {
                scenario,
                state: RefCell::new(state),
                me: host,
                cursor: Cell::new(0),
                has_acted: Cell::new(false),
                wrong: RefCell::new(None),
                options,
                sites,
                shown: is_told.then(RefCell::default),
            };
            let result = (scenario.actors[host].program)(&run, procedure, &mut locals);
            let (wrong, has_acted) = (run.wrong.into_inner(), run.has_acted.get());
            let shown = run.shown.map(RefCell::into_inner).unwrap_or_default();
            let here = &mut state.hosts[host];
            match result {
                Err(Trouble::Stopped(Stop::Blocked)) => return None,
                Err(Trouble::Stopped(Stop::Turn)) => {}
                Err(damaged) => return Some((Some(damaged.to_string_in_model()), shown)),
                Ok(next) => {
                    here.history.clear();
                    here.locals = locals;
                    match next {
                        Next::Goto(procedure) => {
                            assert!(has_acted || procedure != here.procedure, "a program that does nothing for ever");
                            here.procedure = procedure;
                        }
                        Next::End => here.life = Life::Done,
                    }
                }
            }
            Some((wrong, shown))
        }
    }
}

impl Trouble<Stop> {
    fn to_string_in_model(self) -> String {
        match self {
            Trouble::Stopped(stop) => format!("{stop:?}"),
            Trouble::Damaged { at, fault } => format!("the word at {at:?} is {fault}"),
        }
    }
}

/// The way to a state, a line a step.
fn tell(scenario: &Scenario, ways: &[(u32, Action)], to: u32, options: Options, wrong: &str) -> String {
    let mut actions = Vec::new();
    let mut at = to;
    while at != 0 {
        let (from, action) = ways[at as usize];
        actions.push(action);
        at = from;
    }
    let sites = RefCell::new(BTreeSet::new());
    let mut state = State::first(scenario);
    let mut text = format!("{}:\n", scenario.name);
    for (number, action) in actions.iter().rev().enumerate() {
        let (Action::Step(host) | Action::Flush(host) | Action::Die(host)) = *action;
        let told = act(scenario, &mut state, *action, options, &sites, true);
        let line = told.map_or_else(|| "?".to_owned(), |(_, shown)| shown);
        let line = if line.is_empty() { "goes on" } else { &line };
        writeln!(text, "{:>4}  {:<12} {line}", number + 1, scenario.actors[usize::from(host)].name)
            .expect("text grows");
    }
    writeln!(text, "      so: {wrong}").expect("text grows");
    text
}
