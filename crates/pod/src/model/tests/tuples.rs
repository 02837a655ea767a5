//! Hosts that move two rows in and out, read them, and count both up in transactions.

use super::super::{Host, Program, Report, Step, Stop, Switches, run};
use super::{Plan, Scenario};
use crate::layout::{HostId, Layout};
use crate::memory::{Blocks, Retired};
use crate::tuples::{Lock, Seen, Status, Tuples};
use crate::words::{Begin, Plain, TupleState};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use tidepool_base::CommitTs;

const LAYOUT: Layout = Layout { hosts: 3, workers: 1, tuples: 2, ring_lines: 4, block_lines: 3, blocks: 4 };
const HOME: HostId = HostId(0);

/// What the hosts do.
#[derive(Clone, Copy)]
struct Work {
    layout: Layout,
    /// Of each host.
    transactions: [usize; 3],
    /// One of so many transactions aborts.
    aborts_in: usize,
    /// The home moves a row out at one of so many looks.
    moves_in: usize,
}

/// How often a host tries to lock before it gives up.
const TRIES: usize = 60;

/// What the programs know of each other, which is not in the pod.
#[derive(Default)]
struct Shared {
    clock: u64,
    /// Rows that are at their home.
    at_home: [Option<(CommitTs, Vec<u8>)>; 2],
    /// Blocks on their way to their hosts.
    returned: [Vec<Retired>; 3],
    has_worked: [bool; 3],
    is_recovered: [bool; 3],
    /// Commits that were acknowledged.
    acknowledged: u64,
    /// Commits that began.
    begun: u64,
    /// What each of them writes, and when.
    writes: BTreeSet<(u64, CommitTs)>,
}

type Books = Rc<RefCell<Shared>>;

/// Of one line or several.
fn image(value: u64) -> Vec<u8> {
    let mut bytes = value.to_le_bytes().to_vec();
    let more = if value.is_multiple_of(4) { value as usize % 24 } else { 50 + value as usize * 29 % 90 };
    bytes.extend((0..more).map(|at| (value as u8).wrapping_mul(7).wrapping_add(at as u8)));
    bytes
}

fn value_of(host: &Host<'_>, bytes: &[u8]) -> u64 {
    let value = bytes.first_chunk().map_or(u64::MAX, |eight| u64::from_le_bytes(*eight));
    host.hold(value < 1000 && image(value) == bytes, || format!("a row is {bytes:02x?}"));
    value
}

/// One host at its work.
struct Worker<'h> {
    host: &'h Host<'h>,
    work: Work,
    books: Books,
    blocks: Blocks,
    /// The least that it may find from now on.
    least: [(u64, CommitTs); 2],
}

impl<'h> Worker<'h> {
    fn new(host: &'h Host<'h>, work: Work, books: Books) -> Worker<'h> {
        let blocks = Blocks::new(work.layout.blocks(host.id()), work.layout.block_lines);
        Worker { host, work, books, blocks, least: [(0, CommitTs(0)); 2] }
    }

    fn tuples(&self) -> Tuples<'h, Host<'h>> {
        Tuples::new(self.host, self.work.layout)
    }

    fn rows(&self) -> usize {
        self.work.layout.tuples as usize
    }

    fn me(&self) -> usize {
        usize::from(self.host.id().0)
    }

    fn take_returned(&mut self) {
        let me = self.me();
        for retired in std::mem::take(&mut self.books.borrow_mut().returned[me]) {
            assert!(self.blocks.retire(retired).is_ok(), "a block goes to its host");
        }
    }

    /// Sends a block to its host.
    fn send_home(&self, retired: Retired) {
        let first = retired.block().first();
        let layout = self.work.layout;
        let owner = layout.all_hosts().find(|host| layout.blocks(*host).each().any(|line| line == first));
        let owner = owner.expect("a block is some host's");
        self.books.borrow_mut().returned[usize::from(owner.0)].push(retired);
    }

    fn note(&mut self, tuple: usize, begin: CommitTs, value: u64) {
        let is_written = value == 0 || self.books.borrow().writes.contains(&(value, begin));
        self.host.hold(is_written, || format!("tuple {tuple} has {value} at {begin:?}, which nobody has committed"));
        let least = self.least[tuple];
        self.host.hold((value, begin) >= least, || {
            format!("tuple {tuple} has {value} at {begin:?}, after {least:?} was seen")
        });
        self.least[tuple] = (value, begin);
    }

    fn look(&mut self, tuple: usize) -> Step<()> {
        if let Seen::Row { begin, image } = self.tuples().read(tuple as u32)? {
            let value = value_of(self.host, &image);
            self.note(tuple, begin, value);
        }
        Ok(())
    }

    /// Counts all rows up, or none. It locks them in one order.
    fn count_up(&mut self) -> Step<()> {
        let mut transaction = self.tuples().begin(self.host.id(), 0)?;
        let mut values = [0; 2];
        // What is taken back is unlike all that is committed.
        let is_aborted = self.host.random(self.work.aborts_in) == 0;
        let more = if is_aborted { 100 } else { 1 };
        for (tuple, value) in values.iter_mut().enumerate().take(self.work.layout.tuples as usize) {
            let mut tries = 0;
            loop {
                self.take_returned();
                let host = self.host;
                let lock = transaction.write(tuple as u32, &mut self.blocks, |bytes| {
                    *value = value_of(host, bytes) + more;
                    image(*value)
                })?;
                if lock == Lock::Done {
                    break;
                }
                tries += 1;
                if tries == TRIES {
                    return transaction.abort(&mut self.blocks);
                }
                self.host.pause()?;
                self.look_after_the_dead()?;
            }
        }
        let is_one = self.rows() == 1 || values[0] == values[1];
        self.host.hold(is_one, || format!("the rows are {values:?}"));
        if is_aborted {
            return transaction.abort(&mut self.blocks);
        }
        let ts = {
            let mut books = self.books.borrow_mut();
            books.clock += 1;
            books.begun += 1;
            let ts = CommitTs(books.clock);
            books.writes.insert((values[0], ts));
            ts
        };
        let books = self.books.clone();
        let replaced = transaction.commit(ts, || books.borrow_mut().acknowledged += 1)?;
        replaced.into_iter().for_each(|retired| self.send_home(retired));
        (0..self.rows()).for_each(|tuple| self.note(tuple, ts, values[tuple]));
        Ok(())
    }

    /// The home moves a row in or out.
    fn move_one(&mut self) -> Step<()> {
        self.take_returned();
        let tuple = self.host.random(self.rows());
        let row = self.books.borrow().at_home[tuple].clone();
        if let Some((begin, image)) = row {
            if self.host.random(4) == 0 {
                // As one does who finds the row in use after all.
                if let Some(moving) = self.tuples().reserve(tuple as u32)? {
                    self.tuples().give_up(moving)?;
                }
            } else if self.tuples().move_in(tuple as u32, begin, &image, &mut self.blocks)? {
                self.books.borrow_mut().at_home[tuple] = None;
            }
        } else if self.host.random(self.work.moves_in) == 0
            && let Some(moved) = self.tuples().move_out(tuple as u32)?
        {
            let value = value_of(self.host, &moved.image);
            self.note(tuple, moved.begin, value);
            self.books.borrow_mut().at_home[tuple] = Some((moved.begin, moved.image));
            self.send_home(moved.retired);
        }
        Ok(())
    }

    /// The next living host after a dead one recovers for it.
    fn look_after_the_dead(&mut self) -> Step<()> {
        for distance in 1..3 {
            let dead = HostId((self.host.id().0 + 3 - distance) % 3);
            let index = usize::from(dead.0);
            let is_mine = (1..distance).all(|between| self.host.has_died(HostId((dead.0 + between) % 3)));
            // To recover again changes nothing.
            let is_needed = !self.books.borrow().is_recovered[index] || self.host.random(3) == 0;
            if is_mine && self.host.has_died(dead) && is_needed {
                self.host.outlives(dead)?;
                self.tuples().recover(dead, |_| HOME)?;
                self.books.borrow_mut().is_recovered[index] = true;
            }
        }
        Ok(())
    }

    /// Nothing that a host began is left to do.
    fn is_over(&self, other: usize) -> bool {
        let books = self.books.borrow();
        books.has_worked[other] || self.host.has_died(HostId(other as u8)) && books.is_recovered[other]
    }

    /// Stays until all others have worked or were recovered, and looks at what they have left.
    fn end(&mut self) -> Step<()> {
        let me = self.me();
        self.books.borrow_mut().has_worked[me] = true;
        while !(0..3).filter(|other| *other != me).all(|other| self.is_over(other)) {
            self.host.pause()?;
            self.look_after_the_dead()?;
        }
        let mut values = [None; 2];
        for (tuple, value) in values.iter_mut().enumerate().take(self.rows()) {
            self.look(tuple)?;
            *value = match self.tuples().read(tuple as u32)? {
                Seen::Row { image, .. } => Some(value_of(self.host, &image)),
                Seen::Locked(tag) => {
                    self.host.hold(false, || format!("{tag:?} is left in tuple {tuple}"));
                    None
                }
                // Its home may have died before it could say what the row is.
                Seen::Absent(state) => {
                    let row = self.books.borrow().at_home[tuple].clone();
                    self.host.hold(row.is_some() || self.host.has_died(HOME), || format!("tuple {tuple} is {state:?}"));
                    row.map(|row| value_of(self.host, &row.1))
                }
                Seen::Changed => None,
            };
        }
        let (acknowledged, begun) = (self.books.borrow().acknowledged, self.books.borrow().begun);
        for value in values.into_iter().flatten() {
            self.host.hold(value >= acknowledged && value <= begun, || {
                format!("{acknowledged} to {begun} commits have counted the rows to {values:?}")
            });
        }
        if let [Some(one), Some(two)] = values {
            self.host.hold(one == two, || format!("the rows are {one} and {two} in the end"));
        }
        Ok(())
    }
}

fn work(plan: Plan, work: Work) -> Report {
    let books = Books::default();
    books.borrow_mut().at_home = std::array::from_fn(|_| Some((CommitTs(0), image(0))));
    let program = |me: u8| -> Program {
        let books = books.clone();
        Box::new(move |host| {
            let mut worker = Worker::new(host, work, books);
            let rows = worker.rows();
            for _ in 0..work.transactions[usize::from(me)] {
                worker.count_up()?;
                worker.look(host.random(rows))?;
                worker.look_after_the_dead()?;
            }
            while HostId(me) == HOME && !(1..3).all(|other| worker.is_over(other)) {
                worker.move_one()?;
                worker.look(host.random(rows))?;
                worker.look_after_the_dead()?;
            }
            worker.end()
        })
    };
    run(plan, work.layout, (0..work.layout.hosts).map(program).collect())
}

const ALL: &[HostId] = &[HostId(0), HostId(1), HostId(2)];

fn transfers(plan: Plan) -> Report {
    work(plan, Work { layout: LAYOUT, transactions: [0, 5, 5], aborts_in: 4, moves_in: 4 })
}

pub const TRANSFERS: Scenario =
    Scenario { name: "transfers", run: transfers, mortals: ALL, deaths: 2, accesses: 1000, runs: 1 };

/// One row, few blocks, and hosts that sleep in the middle of a look: blocks are written again while others read them.
fn reuse(plan: Plan) -> Report {
    let layout = Layout { tuples: 1, blocks: 2, ..LAYOUT };
    let plan = Plan { sleeps_in: 10, ..plan };
    work(plan, Work { layout, transactions: [0, 14, 3], aborts_in: 3, moves_in: 6 })
}

/// One host writes, mostly in vain, and the next one recovers for the home again and again.
fn aborts(plan: Plan) -> Report {
    let layout = Layout { tuples: 1, blocks: 2, ..LAYOUT };
    let plan = Plan { sleeps_in: 8, ..plan };
    work(plan, Work { layout, transactions: [0, 20, 0], aborts_in: 2, moves_in: 40 })
}

pub const ABORTS: Scenario =
    Scenario { name: "aborts", run: aborts, mortals: &[HostId(0), HostId(1)], deaths: 1, accesses: 300, runs: 1 };

/// One host writes one row, another looks at it in each way that there is, and few switches lie between them.
fn duel(plan: Plan) -> Report {
    let layout = Layout { tuples: 1, blocks: 2, ..LAYOUT };
    let plan = Plan { switches: Some(Switches { count: 4, steps: 260 }), ..plan };
    let work = Work { layout, transactions: [0; 3], aborts_in: 2, moves_in: 1 };
    let books = Books::default();
    books.borrow_mut().at_home = std::array::from_fn(|_| Some((CommitTs(0), image(1))));
    books.borrow_mut().writes.insert((1, CommitTs(0)));
    let program = |me: u8| -> Program {
        let books = books.clone();
        Box::new(move |host| {
            let mut worker = Worker::new(host, work, books.clone());
            if HostId(me) == HOME {
                worker.move_one()?;
                // A row that is moved out and in again.
                while !host.is_over(HostId(1)) {
                    host.pause()?;
                    if host.random(4) == 0 {
                        worker.move_one()?;
                    }
                }
                return Ok(());
            }
            while books.borrow().at_home[0].is_some() && !host.is_over(HOME) {
                host.pause()?;
            }
            for _ in 0..4 {
                match (me, host.random(3)) {
                    (1, _) => worker.count_up()?,
                    (_, 0) => worker.look(0)?,
                    // It has nothing under way, so this changes nothing.
                    (_, 1) => worker.tuples().recover(HostId(2), |_| HOME)?,
                    _ => {
                        let mut transaction = worker.tuples().begin(host.id(), 0)?;
                        let change = |bytes: &[u8]| image(value_of(host, bytes) + 200);
                        transaction.write(0, &mut worker.blocks, change)?;
                        transaction.abort(&mut worker.blocks)?;
                    }
                }
            }
            Ok(())
        })
    };
    run(plan, layout, (0..layout.hosts).map(program).collect())
}

pub const DUEL: Scenario = Scenario { name: "duel", run: duel, mortals: &[], deaths: 0, accesses: 0, runs: 16 };

pub const REUSE: Scenario = Scenario { name: "reuse", run: reuse, mortals: ALL, deaths: 1, accesses: 500, runs: 1 };

/// Host 1 dies in a transaction, host 2 recovers for it and dies, too: what is recovered is recovered for good.
fn recoverers(plan: Plan) -> Report {
    recover_when(plan, |host| host.outlives(HostId(1)))
}

/// The same by a host that has only not heard of host 1 for a while.
pub fn hasty(plan: Plan) -> Report {
    recover_when(plan, |host| {
        for _ in 0..host.random(60) {
            host.pause()?;
        }
        Ok(true)
    })
}

fn recover_when(plan: Plan, waits: fn(&Host<'_>) -> Result<bool, Stop>) -> Report {
    let layout = LAYOUT;
    let work = Work { layout, transactions: [0, 1, 0], aborts_in: 5, moves_in: 3 };
    let books = Books::default();
    books.borrow_mut().at_home = std::array::from_fn(|_| Some((CommitTs(0), image(0))));
    let program = |me: u8| -> Program {
        let books = books.clone();
        Box::new(move |host| {
            let mut worker = Worker::new(host, work, books.clone());
            match me {
                0 => {
                    while books.borrow().at_home.iter().any(Option::is_some) {
                        worker.move_one()?;
                    }
                    // Nobody looks at the tuples until all others have ended.
                    while !host.is_over(HostId(1)) || !host.is_over(HostId(2)) {
                        host.pause()?;
                    }
                    for other in [1, 2] {
                        if host.has_died(HostId(other)) && !books.borrow().is_recovered[usize::from(other)] {
                            host.outlives(HostId(other))?;
                            if other == 1 {
                                worker.tuples().recover(HostId(other), |_| HOME)?;
                            }
                        }
                    }
                    let mut transaction = worker.tuples().begin(host.id(), 0)?;
                    let mut values = [0; 2];
                    for (tuple, value) in values.iter_mut().enumerate() {
                        let lock = transaction.write(tuple as u32, &mut worker.blocks, |bytes| {
                            *value = value_of(host, bytes);
                            bytes.to_vec()
                        })?;
                        host.hold(lock == Lock::Done, || format!("tuple {tuple} is {lock:?} in the end"));
                    }
                    let (acknowledged, begun) = (books.borrow().acknowledged, books.borrow().begun);
                    let is_right = values[0] == values[1] && (acknowledged..=begun).contains(&values[0]);
                    host.hold(is_right, || format!("{acknowledged} to {begun} commits have left {values:?}"));
                    transaction.abort(&mut worker.blocks)
                }
                1 => {
                    for _ in 0..3 {
                        worker.count_up()?;
                    }
                    Ok(())
                }
                _ => {
                    if waits(host)? {
                        worker.tuples().recover(HostId(1), |_| HOME)?;
                        books.borrow_mut().is_recovered[1] = true;
                        // It may die here.
                        for _ in 0..10 {
                            drop(worker.tuples().begin(host.id(), 0)?);
                        }
                    }
                    Ok(())
                }
            }
        })
    };
    run(plan, layout, (0..layout.hosts).map(program).collect())
}

pub const RECOVERERS: Scenario = Scenario {
    name: "recoverers",
    run: recoverers,
    mortals: &[HostId(1), HostId(2)],
    deaths: 2,
    accesses: 110,
    runs: 8,
};

/// The home moves a row in and out, and dies. What it leaves behind can be read and written, or is at home.
fn movers(plan: Plan) -> Report {
    let layout = Layout { tuples: 1, blocks: 2, ..LAYOUT };
    let work = Work { layout, transactions: [0; 3], aborts_in: 2, moves_in: 1 };
    let books = Books::default();
    books.borrow_mut().at_home = std::array::from_fn(|_| Some((CommitTs(0), image(0))));
    let program = |me: u8| -> Program {
        let books = books.clone();
        Box::new(move |host| {
            let mut worker = Worker::new(host, work, books.clone());
            match me {
                0 => {
                    for _ in 0..12 {
                        worker.move_one()?;
                        // A row that is at home is changed there.
                        let mut books = books.borrow_mut();
                        if let Some((begin, row)) = &mut books.at_home[0] {
                            let value = value_of(host, row) + 1;
                            *begin = CommitTs(value);
                            *row = image(value);
                            books.acknowledged = value;
                            books.writes.insert((value, CommitTs(value)));
                        }
                    }
                    Ok(())
                }
                1 => {
                    if !host.outlives(HOME)? {
                        return Ok(());
                    }
                    worker.tuples().recover(HOME, |_| HOME)?;
                    let mut transaction = worker.tuples().begin(host.id(), 0)?;
                    loop {
                        let mut value = 0;
                        let lock = transaction.write(0, &mut worker.blocks, |bytes| {
                            value = value_of(host, bytes);
                            bytes.to_vec()
                        })?;
                        let newest = books.borrow().acknowledged;
                        match lock {
                            Lock::Done => host.hold(value == newest, || format!("{value} is left instead of {newest}")),
                            Lock::Busy(tag) if tag.host() == HostId(2) => {
                                host.pause()?;
                                continue;
                            }
                            Lock::Changed => continue,
                            Lock::Absent(TupleState::Dead | TupleState::Free) => {}
                            other => host.hold(false, || format!("the tuple is {other:?} in the end")),
                        }
                        return transaction.abort(&mut worker.blocks);
                    }
                }
                _ => {
                    // Now and then it sees the tuple, so that the home's words survive it, and now and then it does
                    // not.
                    for _ in 0..host.random(12) {
                        host.pause()?;
                        if host.random(2) == 0 {
                            worker.look(0)?;
                        } else {
                            let mut transaction = worker.tuples().begin(host.id(), 0)?;
                            transaction.write(0, &mut worker.blocks, <[u8]>::to_vec)?;
                            transaction.abort(&mut worker.blocks)?;
                        }
                    }
                    Ok(())
                }
            }
        })
    };
    run(plan, layout, (0..layout.hosts).map(program).collect())
}

pub const MOVERS: Scenario =
    Scenario { name: "movers", run: movers, mortals: &[HostId(0)], deaths: 1, accesses: 140, runs: 4 };

/// What the hosts of [`KEPT`] know of each other, which is not in the pod.
#[derive(Default)]
struct Versions {
    /// The row from each of these times on, in order. All of them are committed.
    values: Vec<(u64, u64)>,
    has_moved_in: bool,
}

impl Versions {
    fn newest(&self) -> (u64, u64) {
        *self.values.last().expect("the row has a first value")
    }

    fn at(&self, ts: u64) -> u64 {
        self.values.iter().rfind(|(since, _)| *since <= ts).expect("the first is as of the beginning").1
    }
}

/// One host writes a row again and again, and has blocks written anew when the reader's horizon has passed them. Another reads what
/// the row was.
fn kept(plan: Plan) -> Report {
    let layout = Layout { tuples: 1, blocks: 4, ..LAYOUT };
    let plan = Plan { sleeps_in: 12, ..plan };
    let versions = Rc::new(RefCell::new(Versions { values: vec![(0, 1)], ..Versions::default() }));
    let returned = Rc::new(RefCell::new(Vec::<Retired>::new()));
    let program = |me: u8| -> Program {
        let (versions, returned) = (versions.clone(), returned.clone());
        Box::new(move |host| {
            let tuples = Tuples::new(host, layout);
            let mut blocks = Blocks::new(layout.blocks(host.id()), layout.block_lines);
            match me {
                0 => {
                    let is_in = tuples.move_in(0, CommitTs(0), &image(1), &mut blocks)?;
                    host.hold(is_in, || "the tuple was in use".to_owned());
                    versions.borrow_mut().has_moved_in = true;
                    Ok(())
                }
                1 => {
                    while !versions.borrow().has_moved_in {
                        host.pause()?;
                    }
                    // Replaced at these times.
                    let mut waiting: Vec<(u64, Retired)> = Vec::new();
                    let mut writes = 0;
                    for _ in 0..90 {
                        let horizon = layout.horizon(HostId(2)).load(host)?.0;
                        let is_due = |(ts, _): &mut (u64, Retired)| *ts < horizon;
                        for (_, retired) in waiting.extract_if(.., is_due) {
                            // The first one is the home's.
                            if let Err(of_home) = blocks.retire(retired) {
                                returned.borrow_mut().push(of_home);
                            }
                        }
                        if blocks.free() == 0 {
                            host.pause()?;
                            continue;
                        }
                        let (ts, value) = versions.borrow().newest();
                        let (ts, value) = (ts + 1, value + 1);
                        let mut transaction = tuples.begin(host.id(), 0)?;
                        let lock = transaction.write(0, &mut blocks, |_| image(value))?;
                        host.hold(lock == Lock::Done, || format!("the tuple is {lock:?}, and nobody else writes it"));
                        let decided = || versions.borrow_mut().values.push((ts, value));
                        for retired in transaction.commit(CommitTs(ts), decided)? {
                            waiting.push((ts, retired));
                        }
                        writes += 1;
                        if writes == 14 {
                            break;
                        }
                    }
                    Ok(())
                }
                _ => {
                    while !versions.borrow().has_moved_in {
                        host.pause()?;
                    }
                    let mut published = layout.horizon(host.id()).load(host)?;
                    while !host.is_over(HostId(1)) {
                        let snapshot = versions.borrow().newest().0;
                        // It never goes back but for the first time, before which nothing was free.
                        layout.horizon(host.id()).move_on(host, published, Plain(snapshot))?;
                        published = Plain(snapshot);
                        for _ in 0..host.random(6) {
                            host.pause()?;
                        }
                        let value = value_at(host, &tuples, snapshot)?;
                        let expected = versions.borrow().at(snapshot);
                        host.hold(value == expected, || {
                            format!("the row was {expected} at {snapshot}, and {value} is read")
                        });
                    }
                    Ok(())
                }
            }
        })
    };
    run(plan, layout, (0..layout.hosts).map(program).collect())
}

/// The row of a tuple as of a snapshot that keeps its versions.
fn value_at(host: &Host<'_>, tuples: &Tuples<'_, Host<'_>>, snapshot: u64) -> Step<u64> {
    'anew: loop {
        let word = tuples.load(0)?;
        let Some(mut version) = tuples.newest(0, word)? else { continue };
        if let Begin::By(tag) = version.begin {
            match tuples.status(tag)? {
                Status::Committed(ts) => version.begin = Begin::At(ts),
                Status::Running | Status::Aborted => {}
                Status::Gone => continue 'anew,
            }
        }
        loop {
            if let Begin::At(ts) = version.begin
                && ts.0 <= snapshot
            {
                return Ok(value_of(host, &version.image));
            }
            let Some(older) = version.older else {
                host.hold(false, || format!("nothing is as old as {snapshot}"));
                return Ok(0);
            };
            version = tuples.older(older)?;
        }
    }
}

pub const KEPT: Scenario = Scenario { name: "kept versions", run: kept, mortals: &[], deaths: 0, accesses: 0, runs: 2 };
