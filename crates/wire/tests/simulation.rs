//! A client reads and writes an array at a node over a network that loses, doubles, damages, delays and cuts, by seeds.
//!
//! The model knows of each cell which values it may have. A write that was acknowledged leaves one; a write whose
//! outcome is unknown leaves the old and the new one, until a read tells; one that was cancelled leaves the old one.
//! Whatever the network does, no read gives another value, nothing hangs, and each error has one of the codes that the
//! protocol names.
//!
//! Time is virtual, so that a seed is nearly a history:
//! `TIDEPOOL_STRESS_SECONDS=300 TIDEPOOL_STRESS_SEED=7 cargo test --release -p tidepool-wire --test simulation -- --nocapture`

mod common;

use common::{ArrayService, TABLESPACE, extent, offer, plan, server, token};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidepool_base::{Error, SqlState};
use tidepool_wire::transport::simulated::{Happened, Network, Rates};
use tidepool_wire::{
    Batches, Connection, Epoch, Limits, List, Outcome, Payload, Pending, Request, Server, ServerConfig, Timeouts,
};

const CELLS: u64 = 16;
const CELL_BYTES: u32 = 512;

const TIMEOUTS: Timeouts = Timeouts {
    handshake: Duration::from_millis(500),
    request: Duration::from_millis(100),
    grace: Duration::from_millis(50),
};

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

/// Something that was asked and not waited for yet.
enum Asked {
    Read { cell: u64, pending: Pending, may_be: BTreeSet<u32> },
    Write { cell: u64, value: u32, pending: Pending },
    Rows { batches: u32, rows: Batches },
}

#[derive(Debug, Default)]
struct Seen {
    reads: u64,
    writes: u64,
    fragments: u64,
    cancelled: u64,
    unknown: u64,
    connections: u64,
    refused: u64,
    fenced: u64,
}

struct World {
    random: Random,
    network: Arc<Network>,
    server: Arc<Server<ArrayService>>,
    nodes: Vec<std::thread::JoinHandle<()>>,
    epoch: u64,
    client: u8,
    incarnation: u64,
    cells: Vec<BTreeSet<u32>>,
    next_value: u32,
    seen: Seen,
}

/// No error has another code.
fn check(error: &Error) {
    let codes = [
        SqlState::CONNECTION_FAILURE,
        SqlState::PROTOCOL_VIOLATION,
        SqlState::PROGRAM_LIMIT_EXCEEDED,
        SqlState::QUERY_CANCELED,
        SqlState::ADMIN_SHUTDOWN,
    ];
    assert!(codes.contains(&error.code()), "{error:?}");
}

fn value_of(bytes: &[u8]) -> u32 {
    let value = u32::from_le_bytes(bytes[..4].try_into().unwrap());
    assert!(bytes.as_chunks::<4>().0.iter().all(|word| *word == value.to_le_bytes()), "half of a write");
    value
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let scale = random.below(4) as u32;
        let mut rate = |max: u64| random.below(max) as u32 * scale;
        let rates = Rates { lost: rate(60), doubled: rate(300), damaged: rate(40), cut: rate(40), late: rate(200) };
        let network = Network::new(seed, rates);
        let config = ServerConfig { handshake: TIMEOUTS.handshake, ..ServerConfig::default() };
        let (_, server) = server((CELLS * u64::from(CELL_BYTES)) as usize, config);
        World {
            random,
            network,
            server,
            nodes: Vec::new(),
            epoch: 1,
            client: 1,
            incarnation: 0,
            cells: vec![BTreeSet::from([0]); CELLS as usize],
            next_value: 1,
            seen: Seen::default(),
        }
    }

    /// A connection, whatever it takes. What lost requests came to is settled then.
    fn connect(&mut self) -> Connection {
        for _ in 0..1_000 {
            self.nodes.retain(|node| !node.is_finished());
            let (near, far) = self.network.pair();
            let server = self.server.clone();
            self.nodes.push(std::thread::spawn(move || drop(server.serve(Box::new(far)))));
            self.incarnation += 1;
            let limits = Limits { frame_bytes: 16 << 10, batch_bytes: 4 << 10, ..Limits::default() };
            let offer = tidepool_wire::Offer { limits, ..offer(self.epoch, self.client, 0, self.incarnation) };
            match Connection::open(Box::new(near), &offer, &token(), TIMEOUTS) {
                Ok(connection) => {
                    self.seen.connections += 1;
                    return connection;
                }
                Err(error) => {
                    // A token or a number that was damaged is refused as if it were another's, were it not for the
                    // checksum.
                    check(&error);
                    self.seen.refused += 1;
                }
            }
        }
        panic!("no connection comes about");
    }

    fn ask(&mut self, connection: &Connection, busy: &mut BTreeSet<u64>) -> Result<Option<Asked>, Error> {
        let timeout = match self.random.below(20) {
            0 => Duration::from_micros(self.random.below(150)),
            _ => TIMEOUTS.request,
        };
        let cell = self.random.below(CELLS);
        match self.random.below(10) {
            0 => {
                let batches = self.random.below(12) as u32;
                let rows = connection.fragment(&plan(batches, 3000), 8 << 10, timeout)?;
                Ok(Some(Asked::Rows { batches, rows }))
            }
            1..6 => {
                // Of a cell that is being written at the time either value may be read.
                if !busy.insert(cell) {
                    return Ok(None);
                }
                let extents = [extent(cell * u64::from(CELL_BYTES), CELL_BYTES)];
                let pending = connection.submit(&Request::Read(List::new(&extents)), timeout)?;
                Ok(Some(Asked::Read { cell, pending, may_be: self.cells[cell as usize].clone() }))
            }
            _ => {
                if !busy.insert(cell) {
                    return Ok(None);
                }
                let value = self.next_value;
                self.next_value += 1;
                let bytes = value.to_le_bytes().repeat(CELL_BYTES as usize / 4);
                let extents = [extent(cell * u64::from(CELL_BYTES), CELL_BYTES)];
                let extents = List::new(&extents);
                let request = Request::Flush { stage: 0, extents, payload: Payload::Whole(&bytes) };
                // If it does not go out whole, it may still have come.
                self.cells[cell as usize].insert(value);
                let pending = connection.submit(&request, timeout)?;
                Ok(Some(Asked::Write { cell, value, pending }))
            }
        }
    }

    fn settle(&mut self, asked: Asked) -> Result<(), Error> {
        match asked {
            Asked::Read { cell, pending, may_be } => {
                let mut bytes = [0; CELL_BYTES as usize];
                if self.random.below(30) == 0 {
                    drop(pending);
                    return Ok(());
                }
                pending.wait_into(&mut bytes)?;
                let value = value_of(&bytes);
                assert!(may_be.contains(&value), "cell {cell} has {value}, and may have {may_be:?}");
                self.cells[cell as usize] = BTreeSet::from([value]);
                self.seen.reads += 1;
            }
            Asked::Write { cell, value, pending } => {
                if self.random.below(20) == 0 {
                    pending.canceller().cancel()?;
                }
                match pending.wait() {
                    Ok(outcome) => {
                        assert!(matches!(outcome, Outcome::Done(done) if done.bytes == u64::from(CELL_BYTES)));
                        self.cells[cell as usize] = BTreeSet::from([value]);
                        self.seen.writes += 1;
                    }
                    Err(error) => {
                        if error.code() == SqlState::QUERY_CANCELED {
                            // It had no effect, and never will.
                            self.cells[cell as usize].remove(&value);
                        }
                        return Err(error);
                    }
                }
            }
            Asked::Rows { batches, mut rows } => {
                let mut number = 0;
                while let Some(bytes) = rows.next()? {
                    assert!(bytes.len() == 3000 && bytes.iter().all(|byte| *byte == number as u8));
                    number += 1;
                    if self.random.below(200) == 0 {
                        return Ok(());
                    }
                }
                assert_eq!(number, batches, "rows are missing");
                self.seen.fragments += 1;
            }
        }
        Ok(())
    }

    /// Requests on one connection until it ends, or enough of them.
    fn session(&mut self) {
        let connection = self.connect();
        for _ in 0..self.random.below(60) + 1 {
            let (mut asked, mut busy) = (Vec::new(), BTreeSet::new());
            let mut failed = None;
            for _ in 0..self.random.below(6) + 1 {
                match self.ask(&connection, &mut busy) {
                    Ok(one) => asked.extend(one),
                    Err(error) => failed = Some(error),
                }
            }
            while !asked.is_empty() {
                let at = self.random.below(asked.len() as u64) as usize;
                let one = asked.swap_remove(at);
                if let Err(error) = self.settle(one) {
                    failed = Some(error);
                }
            }
            if let Some(error) = failed {
                check(&error);
                if error.code() == SqlState::QUERY_CANCELED {
                    self.seen.cancelled += 1;
                } else {
                    self.seen.unknown += 1;
                    return;
                }
            }
        }
        if self.random.below(4) == 0 {
            self.take_over(connection);
        }
    }

    /// Another process takes the tablespace over while the one before still writes.
    fn take_over(&mut self, before: Connection) {
        let late = self.ask(&before, &mut BTreeSet::new());
        self.epoch += 1;
        self.client = self.client % 100 + 1;
        self.incarnation = 0;
        let after = self.connect();
        assert_eq!(self.server.epoch(TABLESPACE), Some(Epoch(self.epoch)));
        // What was asked before may have happened before; from here on nothing of it does.
        let values: Vec<Option<u32>> = (0..CELLS).map(|cell| self.read(&after, cell)).collect();
        if let Ok(Some(asked)) = late {
            let (cell, written) = match &asked {
                Asked::Write { cell, value, .. } => (Some(*cell), Some(*value)),
                _ => (None, None),
            };
            match self.settle(asked) {
                // It was answered before it was fenced off.
                Ok(()) => {
                    if let Some(value) = cell.and_then(|cell| values[cell as usize]) {
                        assert_eq!(Some(value), written, "a write was acknowledged and is not there");
                    }
                }
                Err(error) => {
                    check(&error);
                    self.seen.fenced += u64::from(error.code() == SqlState::ADMIN_SHUTDOWN);
                }
            }
        }
        for (cell, value) in values.into_iter().enumerate() {
            if let Some(value) = value {
                self.cells[cell] = BTreeSet::from([value]);
                if let Some(again) = self.read(&after, cell as u64) {
                    assert_eq!(again, value, "something of an older epoch has happened");
                }
            }
        }
        let more = before.ping();
        check(&more.expect_err("an older epoch is served"));
    }

    fn read(&mut self, connection: &Connection, cell: u64) -> Option<u32> {
        let mut bytes = [0; CELL_BYTES as usize];
        let read = connection.read_into(&[extent(cell * u64::from(CELL_BYTES), CELL_BYTES)], &mut bytes);
        match read {
            Ok(()) => {
                let (value, may_be) = (value_of(&bytes), &self.cells[cell as usize]);
                assert!(may_be.contains(&value), "cell {cell} has {value}, and may have {may_be:?}");
                Some(value)
            }
            Err(error) => {
                check(&error);
                None
            }
        }
    }

    /// The network is well again: all cells have one of the values that they may have.
    fn finish(mut self) -> (Seen, Happened) {
        let happened = self.network.happened();
        self.network.set_rates(Rates::default());
        let connection = self.connect();
        for cell in 0..CELLS {
            self.read(&connection, cell).expect("nothing is wrong with the network");
        }
        connection.close();
        drop(connection);
        for node in self.nodes {
            node.join().unwrap();
        }
        assert_eq!(self.server.connections(), 0);
        (self.seen, happened)
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn whatever_the_network_does_no_answer_is_wrong() {
    let first = setting("TIDEPOOL_STRESS_SEED", 1);
    let seconds = Duration::from_secs(setting("TIDEPOOL_STRESS_SECONDS", 0));
    let start = Instant::now();
    let (mut all, mut network) = (Seen::default(), Happened::default());
    let mut seed = first;
    while if seconds.is_zero() { seed < first + 60 } else { start.elapsed() < seconds } {
        let mut world = World::new(seed);
        for _ in 0..8 {
            world.session();
        }
        let (seen, happened) = world.finish();
        all.reads += seen.reads;
        all.writes += seen.writes;
        all.fragments += seen.fragments;
        all.cancelled += seen.cancelled;
        all.unknown += seen.unknown;
        all.connections += seen.connections;
        all.refused += seen.refused;
        all.fenced += seen.fenced;
        network.sent += happened.sent;
        network.lost += happened.lost;
        network.doubled += happened.doubled;
        network.damaged += happened.damaged;
        network.cut += happened.cut;
        network.late += happened.late;
        network.overtaken += happened.overtaken;
        seed += 1;
    }
    println!("{} seeds: {all:?}\n{network:?}", seed - first);
    // All that is to be tested has happened.
    for count in [all.reads, all.writes, all.fragments, all.cancelled, all.unknown, all.refused, all.fenced] {
        assert!(count > 0, "{all:?}");
    }
    for count in [network.lost, network.doubled, network.damaged, network.cut, network.late, network.overtaken] {
        assert!(count > 0, "{network:?}");
    }
}
