//! Hosts that move two rows in and out, read them, and count both up in transactions.

use super::super::{Host, Program, Report, Step, run};
use super::{Plan, Scenario};
use crate::layout::{HostId, Layout};
use crate::memory::{Blocks, Retired};
use crate::tuples::{Lock, Seen, Tuples};
use std::cell::RefCell;
use std::rc::Rc;
use tidepool_base::CommitTs;

const LAYOUT: Layout = Layout { hosts: 3, workers: 1, tuples: 2, ring_lines: 4, block_lines: 3, blocks: 4 };
const HOME: HostId = HostId(0);
const TRANSACTIONS: usize = 5;
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
}

type Books = Rc<RefCell<Shared>>;

fn image(value: u64) -> Vec<u8> {
    let mut bytes = value.to_le_bytes().to_vec();
    let more = value as usize * 29 % 140;
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
    books: Books,
    blocks: Blocks,
    /// The least that it may find from now on.
    least: [(u64, CommitTs); 2],
}

impl<'h> Worker<'h> {
    fn new(host: &'h Host<'h>, books: Books) -> Worker<'h> {
        let blocks = Blocks::new(LAYOUT.blocks(host.id()), LAYOUT.block_lines);
        Worker { host, books, blocks, least: [(0, CommitTs(0)); 2] }
    }

    fn tuples(&self) -> Tuples<'h, Host<'h>> {
        Tuples::new(self.host, LAYOUT)
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
        let owner = LAYOUT.all_hosts().find(|host| LAYOUT.blocks(*host).each().any(|line| line == first));
        let owner = owner.expect("a block is some host's");
        self.books.borrow_mut().returned[usize::from(owner.0)].push(retired);
    }

    fn note(&mut self, tuple: usize, begin: CommitTs, value: u64) {
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

    /// Counts both rows up, or neither. It locks them in one order.
    fn count_up(&mut self) -> Step<()> {
        let mut transaction = self.tuples().begin(self.host.id(), 0)?;
        let mut values = [0; 2];
        for tuple in 0..2 {
            let mut tries = 0;
            loop {
                self.take_returned();
                let host = self.host;
                let lock = transaction.write(tuple as u32, &mut self.blocks, |bytes| {
                    values[tuple] = value_of(host, bytes) + 1;
                    image(values[tuple])
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
        self.host.hold(values[0] == values[1], || format!("the rows are {values:?}"));
        if self.host.random(4) == 0 {
            return transaction.abort(&mut self.blocks);
        }
        let ts = {
            let mut books = self.books.borrow_mut();
            books.clock += 1;
            books.begun += 1;
            CommitTs(books.clock)
        };
        let books = self.books.clone();
        let replaced = transaction.commit(ts, || books.borrow_mut().acknowledged += 1)?;
        replaced.into_iter().for_each(|retired| self.send_home(retired));
        (0..2).for_each(|tuple| self.note(tuple, ts, values[tuple]));
        Ok(())
    }

    /// The home moves a row in or out.
    fn move_one(&mut self) -> Step<()> {
        self.take_returned();
        let tuple = self.host.random(2);
        let row = self.books.borrow().at_home[tuple].clone();
        if let Some((begin, image)) = row {
            if self.tuples().move_in(tuple as u32, begin, &image, &mut self.blocks)? {
                self.books.borrow_mut().at_home[tuple] = None;
            }
        } else if self.host.random(4) == 0
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
            if is_mine && self.host.has_died(dead) && !self.books.borrow().is_recovered[index] {
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
        for (tuple, value) in values.iter_mut().enumerate() {
            self.look(tuple)?;
            *value = match self.tuples().read(tuple as u32)? {
                Seen::Row { image, .. } => Some(value_of(self.host, &image)),
                Seen::Locked(tag) => {
                    self.host.hold(false, || format!("{tag:?} is left in tuple {tuple}"));
                    None
                }
                // Its home may have died before it could say what the row is.
                Seen::Absent(_) => self.books.borrow().at_home[tuple].clone().map(|row| value_of(self.host, &row.1)),
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

fn transfers(plan: Plan) -> Report {
    let books = Books::default();
    books.borrow_mut().at_home = std::array::from_fn(|_| Some((CommitTs(0), image(0))));
    let program = |me: u8| -> Program {
        let books = books.clone();
        Box::new(move |host| {
            let mut worker = Worker::new(host, books);
            if HostId(me) == HOME {
                while !(1..3).all(|other| worker.is_over(other)) {
                    worker.move_one()?;
                    let tuple = host.random(2);
                    worker.look(tuple)?;
                    worker.look_after_the_dead()?;
                }
            } else {
                for _ in 0..TRANSACTIONS {
                    worker.count_up()?;
                    let tuple = host.random(2);
                    worker.look(tuple)?;
                    worker.look_after_the_dead()?;
                }
            }
            worker.end()
        })
    };
    run(plan, LAYOUT, (0..LAYOUT.hosts).map(program).collect())
}

pub const TRANSFERS: Scenario = Scenario {
    name: "transfers",
    run: transfers,
    mortals: &[HostId(0), HostId(1), HostId(2)],
    deaths: 2,
    accesses: 1000,
};
