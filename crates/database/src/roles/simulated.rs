//! Several whole databases on one pool, one step at a time by a seed: hosts that come, follow, take over, write, load, merge and write
//! manifests, that pause in the middle of any of these, wake as if nothing had happened, and die. The same seed makes the same
//! history, which a test holds.
//!
//! A host is the product's own database, without the threads that follow, look at others, write out and tend: a step calls
//! what those would call ([`crate::stress::go_stepwise`]). It runs on a thread of its own ([`super::steps`]), while no other does,
//! and can be made to pause at each crash point: between two stores to the log, before a look at `TERM`, within a take-over, a lease
//! or a manifest. A host that dies stays where it is: its thread waits, nothing is dropped or flushed, and another host confirms its death. So the
//! pool is left as a kill leaves it. A process plays one history, and ends without dropping the dead. (Threads or destructors of a
//! host that go on after its death was confirmed store to what is another's by then, and wait for ever for a lock that is a byte of
//! another's.) What a dead host does all the same: its thread that beats goes on to store to the page of its slot, which no other host
//! gets as long as the process holds its lock.
//!
//! What holds: what was acknowledged is there after each take-over; each host shows transactions whole, and none that was never
//! committed; rows that move between tables are there once; every index agrees with its rows; a host that was taken over from
//! shows nothing and acknowledges nothing that its successor does not have; a reader that was sent away finds that out before it applies
//! anything of a log that may be another's memory; in the end the pool's books are in order.
//!
//! Each of these, taken out, is found within some histories: the look at `TERM` before a commit is acknowledged, the look at each
//! snapshot, the reading on to a term's end before it is sealed, the sealing that a block's reader waits for, what becomes of a dead
//! primary's log (freed with it), what hosts need of the log when its segments go back, and what they hold of main when extents go back.
//! A test leaves out those that are steps of the database itself ([`what_is_left_out_is_found`]). In every third history one primary
//! reigns for long, so that mains take the place of mains under followers that lag.
//!
//! What is not reached: interleavings between crash points, which are those of the pool's and the log's own models and simulations
//! ([`tidepool_pool::model`], `log::simulated`), of threads of one database ([`super::manifest_tests`]) and of real processes
//! ([`super::processes`]); and memory that is weaker than this machine's.
//!
//! `TIDEPOOL_STRESS_TRACE=1` shows the steps.
//!
//! `TIDEPOOL_STRESS_SECONDS=300 TIDEPOOL_STRESS_SEED=7 cargo test --release -p tidepool-database --lib -- roles::simulated --nocapture`

use super::following::{Following, Outcome};
use super::steps::{Came, Step, step};
use super::tests::Place;
use super::*;
use crate::follow::tests::check;
use crate::stress::{LEFT_OUT_VARIABLE, for_seeds, go_stepwise, variable};
use crate::tests::{batch_of, columns, insert, memory, placement, rows};
use crate::write::index::{INDEXED_AT_ONCE, IndexedAtOnce};
use crate::write::writer::SHORT_ROW_GROUP_ROWS;
use crate::{Changed, Transaction};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;
use tidepool_base::RowId;
use tidepool_pool::liveness::forget;
use tidepool_pool::member::Member;
use tidepool_pool::memory::Bytes;
use tidepool_pool::pool::Pool;
use tidepool_pool::words::{Contents, Owner};

/// Rows of a transaction, all with numbers of one multiple of it.
const ROWS: usize = 10;

/// Rows of a transaction that make a row group of main.
const LOAD: usize = (SHORT_ROW_GROUP_ROWS + 50).next_multiple_of(ROWS);

/// Rows that transfers move between two tables, and that no transaction makes or takes.
const MOVED: usize = 60;

const TABLES: [&str; 4] = ["one", "left", "right", "loads"];

const HOSTS: usize = 4;

/// Of a history, but for two at its end: each has tablespaces until then, of which a process may have 64.
const STARTED_MAX: usize = 16;

/// Which history a process is to play.
const SEED: &str = "TIDEPOOL_SIMULATED_SEED";

const TRACE: &str = "TIDEPOOL_STRESS_TRACE";

const STEPS: usize = 400;

/// As many histories as this find what is left out.
const LEFT_OUT_SEEDS_MAX: u64 = 60;

/// A transaction that inserts so many rows: the table and the first number. Of a transfer nothing.
type Rows = Option<(&'static str, usize)>;

struct Open {
    transaction: Transaction,
    rows: Rows,
}

struct Host {
    /// Before the database, which they hold.
    open: Vec<Open>,
    following: Option<Following>,
    database: Arc<Database>,
}

/// What a host does in one step.
#[derive(Debug)]
enum Work {
    /// It applies what is new, and looks whether it can hold another root.
    Read {
        looks: bool,
    },
    TakeOver(Reign),
    Begin {
        seed: u64,
        kind: usize,
        start: usize,
    },
    Finish {
        place: usize,
        undoes: bool,
    },
    Merge(&'static str),
    Manifest,
    /// What threads do beside all that, a part of it.
    Tend(usize),
}

enum Did {
    Read(Result<bool>),
    /// Whether it is primary.
    TookOver(Result<bool>),
    Began(Rows, Result<()>),
    Committed(Rows, Result<()>),
    Other(Result<String>),
}

struct Slot {
    number: usize,
    member: Arc<Member>,
    is_reader: bool,
    state: HostIs,
}

enum HostIs {
    Awake(Box<Host>),
    /// Between two steps.
    Frozen(Box<Host>),
    Paused(Step<(Box<Host>, Did)>),
    /// Only while its step runs.
    Stepping,
}

/// First numbers of what was inserted, by table.
#[derive(Default)]
struct Known {
    acknowledged: BTreeSet<(&'static str, usize)>,
    /// Commits that failed as their host did, or have not come to an answer.
    in_doubt: BTreeSet<(&'static str, usize)>,
}

struct World {
    seed: u64,
    /// One primary has its term for long, beside followers that lag.
    is_calm: bool,
    random: StdRng,
    hosts: Vec<Slot>,
    /// What the dead have left is in the process's memory until its end, and nobody touches it.
    dead: Vec<HostIs>,
    known: Known,
    noted: usize,
    started: usize,
    next: usize,
    takeovers: usize,
    pauses: usize,
    pool: Pool,
    /// Extents that no host owns, and that are filled with something that nobody may find.
    free: BTreeSet<Extent>,
    place: Option<Place>,
}

fn of_takeover(error: &Error) -> bool {
    error.code() == SqlState::CRASH_SHUTDOWN
}

impl Host {
    fn is_primary(&self) -> bool {
        self.following.is_none()
    }

    fn checkpoints(&self) -> Arc<Checkpoints> {
        Arc::clone(self.database.roles.as_ref().unwrap().checkpoints().unwrap())
    }

    fn work(&mut self, work: Work) -> Did {
        let database = Arc::clone(&self.database);
        if let Some(log) = database.log.get() {
            // Its thread would have made room by now.
            let _ = log.prepare();
        }
        match work {
            Work::Read { looks } => {
                let Some(following) = &mut self.following else { return Did::Read(Ok(false)) };
                following.holding().set_due(looks);
                Did::Read(following.read(&database))
            }
            Work::TakeOver(seen) => {
                let Some(following) = self.following.take() else { return Did::TookOver(Ok(true)) };
                Did::TookOver(following.take_over(&database, seen).map(|outcome| match outcome {
                    Outcome::Primary => true,
                    Outcome::Follows(back) => {
                        self.following = Some(*back);
                        false
                    }
                }))
            }
            Work::Begin { seed, kind, start } => {
                let rows = match kind {
                    0 => Some(("loads", start)),
                    1..=8 => None,
                    _ => Some(("one", start)),
                };
                Did::Began(rows, self.begin(rows, start, seed))
            }
            Work::Finish { place, undoes } => {
                let Open { transaction, rows } = self.open.swap_remove(place);
                if undoes {
                    drop(transaction);
                    return Did::Other(Ok(format!("undone: {rows:?}")));
                }
                Did::Committed(rows, transaction.commit().map(drop))
            }
            Work::Merge(name) => {
                let merged = database.merge(name);
                database.vacuum();
                Did::Other(merged.map(|count| format!("{count} rows")))
            }
            Work::Manifest => {
                let written = self.checkpoints().write(&database);
                Did::Other(written.map(|written| format!("{:?}", written.map(|written| written.generation))))
            }
            Work::Tend(part) => Did::Other(match (part, database.log.get()) {
                (0, Some(log)) => log.flush().map(|()| "flushed".to_owned()),
                (1, Some(_)) => {
                    database.tick();
                    Ok("ticked".to_owned())
                }
                _ => {
                    database.vacuum();
                    Ok("vacuumed".to_owned())
                }
            }),
        }
    }

    fn begin(&mut self, rows: Rows, start: usize, seed: u64) -> Result<()> {
        let mut transaction = self.database.begin()?;
        let writes = match rows {
            Some((table, start)) => insert(&mut transaction, table, start..start + rows_of(table)).map(|_| true),
            None => transfer(&mut StdRng::seed_from_u64(seed), &mut transaction, start),
        };
        // The commit of one that wrote nothing says nothing.
        if writes? {
            self.open.push(Open { transaction, rows });
        }
        Ok(())
    }
}

fn rows_of(table: &str) -> usize {
    if table == "loads" { LOAD } else { ROWS }
}

impl Slot {
    fn awake(&self) -> Option<&Host> {
        match &self.state {
            HostIs::Awake(host) => Some(host),
            _ => None,
        }
    }

    /// Its term is in force: nobody has taken over from it.
    fn reigns(&self) -> bool {
        self.member.reign().unwrap().is_of(self.member.host())
    }
}

impl World {
    fn new(seed: u64) -> World {
        let place = Place::of(512 << 20);
        World {
            seed,
            is_calm: seed.is_multiple_of(3),
            random: StdRng::seed_from_u64(seed),
            hosts: Vec::new(),
            dead: Vec::new(),
            known: Known::default(),
            noted: 0,
            started: 0,
            next: 1000,
            takeovers: 0,
            pauses: 0,
            pool: Pool::open(&place.location()).unwrap(),
            free: BTreeSet::new(),
            place: Some(place),
        }
    }

    fn note(&mut self, line: String) {
        if std::env::var_os(TRACE).is_some() {
            println!("| {line}");
        }
        self.noted += 1;
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.random_range(0..bound)
    }

    fn numbers(&mut self, count: usize) -> usize {
        let start = self.next.next_multiple_of(ROWS);
        self.next = start + count;
        start
    }

    /// Another host attaches, and follows.
    fn start(&mut self, role: PoolRole) {
        let number = self.started;
        self.started += 1;
        let place = self.place.as_ref().unwrap();
        let mut config = place.config(&format!("host-{number}"), role);
        config.threads = 1;
        let is_reader = role == PoolRole::Reader;
        if is_reader {
            // No other host runs while it waits for what a primary grants.
            config.far = memory().far;
        }
        let host = PoolHost::join(&config).unwrap().unwrap();
        let (database, following) = Following::attach(config, &host, None)
            .unwrap_or_else(|error| panic!("seed {}: host {number} does not attach: {error}", self.seed));
        database.halt();
        let member = Arc::clone(host.member());
        let host = Host { open: Vec::new(), following: Some(following), database };
        self.hosts.push(Slot { number, member, is_reader, state: HostIs::Awake(Box::new(host)) });
        self.note(format!("start {number}, {}", role.name()));
    }

    /// A primary takes a reader for one that holds too much.
    fn send_away(&mut self) {
        let readers: Vec<usize> = (0..self.hosts.len()).filter(|index| self.hosts[*index].is_reader).collect();
        if readers.is_empty() {
            return;
        }
        let index = readers[self.below(readers.len())];
        let is_new = self.pool.told(self.pool.books().suspect(self.hosts[index].member.host())).unwrap();
        self.note(format!("suspect {}: {is_new}", self.hosts[index].number));
    }

    /// Ends one as a kill does: nothing of it runs from here on, and another host finds out.
    fn kill(&mut self, index: usize) {
        let host = self.hosts.remove(index);
        self.note(format!("kill {}", host.number));
        forget(&self.pool, host.member.host(), true).unwrap();
        self.dead.push(host.state);
    }

    /// Some host that is awake, and is primary (it thinks) or follows.
    fn awake(&mut self, is_primary: bool) -> Option<usize> {
        let suits = |host: &Slot| host.awake().is_some_and(|host| host.is_primary() == is_primary);
        let all: Vec<usize> = (0..self.hosts.len()).filter(|index| suits(&self.hosts[*index])).collect();
        (!all.is_empty()).then(|| all[self.below(all.len())])
    }

    /// After how many crash points a step pauses, if it does.
    fn passes(&mut self) -> Option<u32> {
        match self.below(if self.is_calm { 60 } else { 12 }) {
            0 => Some(self.below(4) as u32),
            1 => Some(self.below(40) as u32),
            _ => None,
        }
    }

    fn step(&mut self) {
        if self.is_calm {
            return self.step_calmly();
        }
        match self.below(51) {
            0 | 1 if self.hosts.len() < HOSTS && self.started < STARTED_MAX => {
                let role = if self.below(3) == 0 { PoolRole::Reader } else { PoolRole::Standby };
                self.start(role);
            }
            50 => self.send_away(),
            2 if self.hosts.len() > 1 && self.below(2) == 0 => {
                let index = self.below(self.hosts.len());
                self.kill(index);
            }
            3 | 4 if !self.hosts.is_empty() => {
                let sleeps = self.hosts.iter().position(|host| host.awake().is_none());
                let index = match sleeps {
                    Some(index) if self.below(2) == 0 => index,
                    _ => self.below(self.hosts.len()),
                };
                self.freeze_or_wake(index);
            }
            5..=10 => {
                let Some(index) = self.awake(false) else { return };
                let looks = self.below(2) == 0;
                self.work(index, Work::Read { looks });
            }
            11 | 12 => self.take_over(),
            13..=17 => {
                let Some(index) = self.awake(true) else { return };
                self.work(index, Work::Manifest);
            }
            18..=21 => {
                let Some(index) = self.awake(true) else { return };
                let name = TABLES[self.below(TABLES.len())];
                self.work(index, Work::Merge(name));
            }
            22 | 23 => {
                let is_primary = self.below(2) == 0;
                let Some(index) = self.awake(is_primary) else { return };
                let part = self.below(3);
                self.work(index, Work::Tend(part));
            }
            24..=36 => self.begin(),
            _ => self.finish(),
        }
    }

    /// Mains take the place of mains under followers that see that late, from one manifest to the next.
    fn step_calmly(&mut self) {
        let reigning = self.hosts.iter().position(|host| host.reigns());
        let Some(reigning) = reigning.filter(|index| self.hosts[*index].awake().is_some_and(Host::is_primary)) else {
            match (reigning, self.below(8)) {
                (_, 0) if self.hosts.len() < HOSTS && self.started < STARTED_MAX => self.start(PoolRole::Standby),
                (Some(sleeps), 1..) if self.hosts[sleeps].awake().is_none() => self.freeze_or_wake(sleeps),
                (None, 1) => {
                    let index = self.below(self.hosts.len());
                    self.freeze_or_wake(index);
                }
                _ => self.take_over(),
            }
            return;
        };
        match self.below(40) {
            0 | 1 if self.hosts.len() < HOSTS && self.started < STARTED_MAX => {
                let role = if self.below(2) == 0 { PoolRole::Reader } else { PoolRole::Standby };
                self.start(role);
            }
            2 if self.below(4) == 0 => {
                let index = self.below(self.hosts.len());
                self.kill(index);
            }
            3 => {
                let index = self.below(self.hosts.len());
                if index != reigning {
                    self.freeze_or_wake(index);
                }
            }
            4..=11 => {
                let Some(index) = self.awake(false) else { return };
                let looks = self.below(2) == 0;
                self.work(index, Work::Read { looks });
            }
            12..=19 => self.work(reigning, Work::Manifest),
            20..=25 => {
                let name = TABLES[self.below(3)];
                self.work(reigning, Work::Merge(name));
            }
            26 => {
                let is_primary = self.below(2) == 0;
                let Some(index) = self.awake(is_primary) else { return };
                let part = self.below(3);
                self.work(index, Work::Tend(part));
            }
            27..=32 => self.begin(),
            _ => self.finish(),
        }
    }

    /// Fills what no host owns any more, at once: a host that still reads there finds something else than what was there.
    fn spoil(&mut self) {
        let books = self.pool.books();
        let spoilt = vec![0xdb; books.memory.extent_bytes()];
        for extent in books.layout.all_extents() {
            let owner = self.pool.told(books.load(books.layout.owner(extent))).unwrap();
            match owner {
                Owner::Free { holds } if holds != Contents::Zeroes => {
                    if self.free.insert(extent) {
                        assert!(books.memory.write_bytes(extent, 0, &spoilt));
                    }
                }
                _ => {
                    self.free.remove(&extent);
                }
            }
        }
    }

    fn freeze_or_wake(&mut self, index: usize) {
        let passes = self.passes();
        let place = &mut self.hosts[index];
        let number = place.number;
        match std::mem::replace(&mut place.state, HostIs::Stepping) {
            HostIs::Awake(host) => {
                place.state = HostIs::Frozen(host);
                self.note(format!("freeze {number}"));
            }
            HostIs::Frozen(host) => {
                place.state = HostIs::Awake(host);
                self.note(format!("wake {number}"));
            }
            HostIs::Paused(step) => {
                self.note(format!("wake {number}"));
                let came = step.go_on(passes);
                self.came(number, came, true);
            }
            HostIs::Stepping => unreachable!("no step is under way"),
        }
    }

    fn work(&mut self, index: usize, work: Work) {
        let passes = self.passes();
        self.run_up_to(index, work, passes);
    }

    fn run_up_to(&mut self, index: usize, work: Work, passes: Option<u32>) {
        let place = &mut self.hosts[index];
        let number = place.number;
        let HostIs::Awake(mut host) = std::mem::replace(&mut place.state, HostIs::Stepping) else {
            unreachable!("only a host that is awake does anything")
        };
        if let Work::Finish { place, undoes: false } = &work {
            // Until it is answered.
            self.known.in_doubt.extend(host.open[*place].rows);
        }
        self.note(format!("{number}: {work:?}"));
        let came = step(passes, move || {
            let did = host.work(work);
            (host, did)
        });
        self.came(number, came, false);
    }

    /// What has become of a step. `slept`: it has paused, and others went on meanwhile.
    fn came(&mut self, number: usize, came: Came<(Box<Host>, Did)>, slept: bool) {
        let index = self.hosts.iter().position(|host| host.number == number).unwrap();
        match came {
            Came::Paused(step, point) => {
                self.hosts[index].state = HostIs::Paused(step);
                self.pauses += 1;
                self.note(format!("{number} pauses at {point}"));
            }
            Came::Ended((host, did)) => {
                self.hosts[index].state = HostIs::Awake(host);
                self.judge(index, did, slept);
            }
        }
    }

    fn judge(&mut self, index: usize, did: Did, slept: bool) {
        let number = self.hosts[index].number;
        match did {
            Did::Read(Err(error)) if self.hosts[index].is_reader && of_takeover(&error) => {
                let is_current = self.hosts[index].member.is_current().unwrap();
                assert!(!is_current, "seed {}: {number} reads: {error}", self.seed);
                self.note(format!("{number} was sent away"));
                self.kill(index);
            }
            Did::Read(read) => {
                let is_new = read.unwrap_or_else(|error| panic!("seed {}: {number} reads: {error}", self.seed));
                self.note(format!("{number} has read: {is_new}"));
                self.look(index, &BTreeSet::new());
            }
            Did::TookOver(Ok(true)) => self.reign(index, slept),
            Did::TookOver(Ok(false)) => self.note(format!("{number} was not first")),
            Did::TookOver(Err(error)) => {
                // While it slept. Its process ends.
                assert!(slept && of_takeover(&error), "seed {}: {number} takes over: {error}", self.seed);
                self.note(format!("{number} has lost its term"));
                self.kill(index);
            }
            Did::Began(rows, began) => {
                self.note(format!("{number} has begun {rows:?}: {}", code(&began)));
                self.allowed(index, began.err());
            }
            Did::Committed(rows, committed) => {
                self.note(format!("{number} has committed {rows:?}: {}", code(&committed)));
                if committed.is_ok() {
                    self.acknowledge(index, rows, slept);
                }
                self.allowed(index, committed.err());
            }
            Did::Other(Ok(what)) => self.note(format!("{number}: {what}")),
            Did::Other(Err(error)) => {
                self.note(format!("{number}: {}", error.code().code()));
                self.allowed(index, Some(error));
            }
        }
    }

    fn acknowledge(&mut self, index: usize, rows: Rows, slept: bool) {
        let (seed, number) = (self.seed, self.hosts[index].number);
        let reigns = self.hosts[index].reigns();
        assert!(reigns || slept, "seed {seed}: {number}, which was taken over from, acknowledges {rows:?}");
        self.known.acknowledged.extend(rows);
        let (Some((table, start)), false) = (rows, reigns) else { return };
        // It was so when it fell asleep: then its successor has it.
        let successor = self.hosts.iter().filter(|host| host.reigns()).find_map(Slot::awake);
        if let Some(successor) = successor.filter(|host| host.is_primary() && host.has_tables()) {
            let found = numbers(&successor.database, table);
            assert!(found.contains(&start), "seed {seed}: {number} acknowledges {rows:?}, which its successor lacks");
        }
    }

    /// What may be refused: what meets another transaction's rows, and all where another host has taken over.
    fn allowed(&self, index: usize, error: Option<Error>) {
        let Some(error) = error else { return };
        let retried = [SqlState::SERIALIZATION_FAILURE, SqlState::DEADLOCK_DETECTED, SqlState::LOCK_NOT_AVAILABLE];
        // What it was filling is not its own then.
        let is_of_zombie = of_takeover(&error) || error.code() == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE;
        let is_right = retried.contains(&error.code()) || !self.hosts[index].reigns() && is_of_zombie;
        let number = self.hosts[index].number;
        assert!(is_right, "seed {}: {number}: {error} {:?}", self.seed, error.detail());
    }

    /// A host suspects whoever reigns, rightly or not.
    fn take_over(&mut self) {
        let reigning = self.hosts.iter().find(|host| host.reigns());
        let is_well = reigning.is_some_and(|host| host.awake().is_some());
        if is_well && self.below(4) > 0 {
            return;
        }
        let Some(index) = self.awake(false).filter(|index| !self.hosts[*index].is_reader) else { return };
        let seen = self.hosts[index].member.reign().unwrap();
        self.work(index, Work::TakeOver(seen));
    }

    /// A host is primary.
    fn reign(&mut self, index: usize, slept: bool) {
        let (seed, number) = (self.seed, self.hosts[index].number);
        self.takeovers += 1;
        self.note(format!("{number} is primary"));
        if !self.hosts[index].reigns() {
            assert!(slept, "seed {seed}: {number} took over, and does not reign");
            return;
        }
        let HostIs::Awake(host) = &self.hosts[index].state else { unreachable!("it has just ended a step") };
        host.make_tables();
        let acknowledged = self.known.acknowledged.clone();
        self.look(index, &acknowledged);
        // What others show from now on is nothing.
        for place in self.hosts.iter().filter(|place| !place.reigns()) {
            let Some(host) = place.awake().filter(|host| host.is_primary()) else { continue };
            let mut reader = host.database.begin().unwrap();
            let shown = reader.begin_statement().map(drop);
            assert!(shown.is_err_and(|error| of_takeover(&error)), "seed {seed}: {} answers", place.number);
        }
    }

    /// Begins a transaction, which stays open.
    fn begin(&mut self) {
        let Some(index) = self.awake(true) else { return };
        let Some(host) = self.hosts[index].awake() else { return };
        if host.open.len() > 3 || !host.has_tables() {
            return;
        }
        // Two transfers could wait for one another's rows, and there is one thread.
        let may_move = host.open.iter().all(|open| open.rows.is_some());
        let kind = if may_move { self.below(30) } else { 9 };
        let start = self.numbers(if kind == 0 { LOAD } else { ROWS });
        let seed = self.random.random();
        self.work(index, Work::Begin { seed, kind, start });
    }

    /// Ends one that is open.
    fn finish(&mut self) {
        let Some(index) = self.awake(true) else { return };
        let count = self.hosts[index].awake().map_or(0, |host| host.open.len());
        if count == 0 {
            return;
        }
        let (place, undoes) = (self.below(count), self.below(10) == 0);
        self.work(index, Work::Finish { place, undoes });
    }

    /// What a host shows is whole, and made of what was committed; and it has all that it must have.
    fn look(&mut self, index: usize, must_have: &BTreeSet<(&'static str, usize)>) {
        let seed = self.seed;
        let number = self.hosts[index].number;
        let Some(host) = self.hosts[index].awake() else { return };
        if !host.has_tables() {
            assert!(must_have.is_empty(), "seed {seed}: tables are lost");
            return;
        }
        let database = Arc::clone(&host.database);
        let mut shown = 0;
        for table in ["one", "loads"] {
            let mut found = numbers(&database, table);
            shown += found.len();
            for (_, start) in must_have.iter().filter(|(name, _)| *name == table) {
                assert!(found.contains(start), "seed {seed}: {start} of {table} is lost at {number}");
            }
            while let Some(start) = found.first().copied() {
                let is_whole = (start..start + rows_of(table)).all(|number| found.remove(&number));
                assert!(is_whole, "seed {seed}: {start} of {table} is there in part at {number}");
                let (key, known) = ((table, start), &self.known);
                let is_known = known.acknowledged.contains(&key) || known.in_doubt.contains(&key);
                assert!(is_known, "seed {seed}: {start} of {table} was never committed, and {number} shows it");
            }
        }
        let moved = numbers(&database, "left").len() + numbers(&database, "right").len();
        assert_eq!(moved, MOVED, "seed {seed}: rows that are moved, at {number}");
        if self.noted.is_multiple_of(5) {
            check(&database);
        }
        self.note(format!("{number} shows {shown}"));
    }

    fn run(&mut self) {
        self.start(PoolRole::Standby);
        let seen = self.hosts[0].member.reign().unwrap();
        self.run_up_to(0, Work::TakeOver(seen), None);
        for _ in 0..STEPS {
            if self.hosts.is_empty() {
                if self.started >= STARTED_MAX {
                    break;
                }
                self.start(PoolRole::Standby);
            }
            self.step();
            self.spoil();
        }
        self.end();
    }

    /// All die; another host has everything that was acknowledged.
    fn end(&mut self) {
        while !self.hosts.is_empty() {
            self.kill(0);
        }
        self.spoil();
        for writes in [true, false] {
            self.start(PoolRole::Standby);
            let seen = self.hosts[0].member.reign().unwrap();
            self.run_up_to(0, Work::TakeOver(seen), None);
            if writes {
                self.run_up_to(0, Work::Manifest, None);
            }
            let HostIs::Awake(host) = &self.hosts[0].state else { unreachable!("its steps have ended") };
            check(&host.database);
            self.kill(0);
            self.spoil();
        }
        self.place.as_ref().unwrap().checked();
        println!(
            "seed {}: {} hosts, {} pauses, {} take-overs, {} transactions acknowledged, {} in doubt",
            self.seed,
            self.started,
            self.pauses,
            self.takeovers,
            self.known.acknowledged.len(),
            self.known.in_doubt.difference(&self.known.acknowledged).count()
        );
    }
}

fn code<T>(result: &Result<T>) -> &'static str {
    result.as_ref().err().map_or("done", |error| error.code().code())
}

fn numbers(database: &Database, table: &str) -> BTreeSet<usize> {
    rows(database, table).iter().map(|row| row.split('|').next().unwrap().parse().unwrap()).collect()
}

impl Host {
    fn has_tables(&self) -> bool {
        self.database.state().table(&"one".into()).is_some()
    }

    fn make_tables(&self) {
        if self.has_tables() {
            return;
        }
        let mut transaction = self.database.begin().unwrap();
        for name in TABLES {
            let space = if name == "loads" { "far" } else { "near" };
            transaction.create_table(name, columns(), vec![0], placement(space)).unwrap();
        }
        insert(&mut transaction, "left", 0..MOVED).unwrap();
        transaction.commit().unwrap();
    }
}

/// Takes some rows of one table and puts as many into the other, or has them become others where they are: so a merge makes a main
/// in another one's place. Whether there were any.
fn transfer(random: &mut StdRng, transaction: &mut Transaction, start: usize) -> Result<bool> {
    let (from, to) = if random.random() { ("left", "right") } else { ("right", "left") };
    let version = transaction.begin_statement()?;
    let table = version.table(from).ok_or_else(|| Error::internal("no such table"))?;
    let all = (0..table.rows().ranges()).flat_map(|range| (0..1000).map(move |at| RowId::new(range, at)));
    let some: Vec<RowId> = all
        .filter(|row| table.rows().read(table.view(), *row).is_some())
        .filter(|_| random.random_range(0..10) == 0)
        .take(ROWS)
        .collect();
    let def = table.def.clone();
    drop((version, table));
    if random.random() {
        let line = |number: usize| vec![Some(number.to_string()), Some(format!("row {number}"))];
        let changed = batch_of(&def, &(start..start + some.len()).map(line).collect::<Vec<_>>());
        let Changed::Rows(changed) = transaction.update(from, &some, &changed)? else { return Ok(false) };
        transaction.end_statement();
        return Ok(changed.true_count() > 0);
    }
    let Changed::Rows(taken) = transaction.delete(from, &some)? else { return Ok(false) };
    transaction.end_statement();
    let count = taken.true_count();
    insert(transaction, to, start..start + count)?;
    Ok(count > 0)
}

/// In a process of its own, which ends without dropping anything: what a dead host's destructors would go through is others'
/// memory by then.
#[test]
fn one_history() {
    let Ok(seed) = std::env::var(SEED) else { return };
    let seed = seed.parse().unwrap();
    go_stepwise();
    // In every other history indexes are filled by nobody but those who look keys up.
    let rows = if seed % 2 == 0 { 0 } else { u64::MAX };
    INDEXED_AT_ONCE.set(Some(IndexedAtOnce { rows, leaves_others: true }));
    let world: &'static mut World = Box::leak(Box::new(World::new(seed)));
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run()));
    drop(world.place.take());
    match ended {
        Ok(()) => std::process::exit(0),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Plays a history in a process of its own, without what is `left_out` of the product.
fn play(seed: u64, shows_steps: bool, left_out: Option<&str>) -> std::process::Output {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "roles::simulated::one_history", "--nocapture"]).env(SEED, seed.to_string());
    if shows_steps {
        command.env(TRACE, "1");
    }
    match left_out {
        Some(what) => command.env(LEFT_OUT_VARIABLE, what),
        None => command.env_remove(LEFT_OUT_VARIABLE),
    };
    command.output().unwrap()
}

/// What a history says of itself.
fn history(seed: u64, shows_steps: bool) -> String {
    let output = play(seed, shows_steps, None);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

#[test]
fn nothing_is_lost_or_invented_in_simulated_histories() {
    let least = if variable("TIDEPOOL_STRESS_SECONDS", 0) > 0 { 1 } else { 6 };
    let shows_steps = std::env::var_os(TRACE).is_some();
    for_seeds(least, |seed| print!("{}", history(seed, shows_steps)));
}

#[test]
fn a_seed_makes_the_same_history_again() {
    let steps = || -> Vec<String> {
        let said = history(11, true);
        said.lines().filter(|line| line.starts_with("| ")).map(str::to_owned).collect()
    };
    let (one, two) = (steps(), steps());
    assert!(one.len() > 100);
    let differs = one.iter().zip(&two).position(|(one, two)| one != two);
    let at = |steps: &[String]| differs.map(|at| steps[at].clone());
    assert!(one == two, "from step {differs:?} on: {:?} and {:?}", at(&one), at(&two));
}

/// Leaves out one step of the protocol at a time, and expects a history to fail that goes well with that step.
#[test]
fn what_is_left_out_is_found() {
    for what in ["look at a snapshot", "rest of the log", "need of the log", "hold on main"] {
        let found = (1..=LEFT_OUT_SEEDS_MAX).find(|seed| {
            let output = play(*seed, false, Some(what));
            let said = String::from_utf8_lossy(&output.stderr);
            let line = said.lines().skip_while(|line| !line.contains("panicked at")).nth(1).unwrap_or_default();
            if !output.status.success() {
                println!("without the {what}, at seed {seed}: {line}");
            }
            !output.status.success()
        });
        let found = found.unwrap_or_else(|| panic!("no history finds that the {what} is left out"));
        history(found, false);
    }
}
