//! Connections over TCP, unix sockets and pairs in one process: every request, many threads, answers in any order,
//! cancelling, deadlines, ends, and a node that is another process and is killed.

mod common;

use common::{ArrayNode, ArrayService, PATIENT, extent, lock, offer, plan, server, token};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidepool_base::SqlState;
use tidepool_wire::transport::Transport;
use tidepool_wire::transport::local::Link;
use tidepool_wire::transport::stream::{Listener, connect_tcp, connect_unix};
use tidepool_wire::{
    Allocation, Connection, DirectConnection, Fault, Limits, List, Offer, Outcome, Place, Request, Server,
    ServerConfig, Timeouts,
};

const LONG: Duration = Duration::from_secs(120);

type Connect<'a> = &'a dyn Fn() -> Box<dyn Transport>;

/// A test's view of a node that it can connect to.
struct Node<'a> {
    memory: Arc<ArrayNode>,
    server: Arc<Server<ArrayService>>,
    connect: Connect<'a>,
}

impl Node<'_> {
    fn open(&self, offer: &Offer, timeouts: Timeouts) -> Connection {
        Connection::open((self.connect)(), offer, &token(), timeouts).unwrap()
    }
}

/// Stops a server at the end of a test, also of one that fails.
struct Stopping<'a>(&'a Server<ArrayService>);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// The same test over each transport.
fn over_each(bytes: usize, config: ServerConfig, test: impl Fn(&Node<'_>)) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node");
    for listener in [Listener::tcp("127.0.0.1:0").unwrap(), Listener::unix(&path).unwrap()] {
        let (memory, server) = server(bytes, config);
        let address = listener.tcp_address();
        let connect = || -> Box<dyn Transport> {
            match address {
                Some(address) => Box::new(connect_tcp(&address.to_string(), LONG).unwrap()),
                None => Box::new(connect_unix(&path).unwrap()),
            }
        };
        std::thread::scope(|scope| {
            let listening = scope.spawn(|| server.listen(&listener));
            let stopping = Stopping(&server);
            test(&Node { memory, server: server.clone(), connect: &connect });
            drop(stopping);
            listening.join().unwrap().unwrap();
        });
    }
    let (memory, server) = server(bytes, config);
    let connect = || -> Box<dyn Transport> {
        let (near, far) = Link::unpaced().pair();
        let server = server.clone();
        std::thread::spawn(move || drop(server.serve(Box::new(far))));
        Box::new(near)
    };
    test(&Node { memory, server: server.clone(), connect: &connect });
    server.stop();
}

#[test]
fn every_request_is_answered() {
    over_each(1 << 20, ServerConfig::default(), |node| {
        let connection = node.open(&offer(1, 1, 0, 1), PATIENT);
        assert_eq!(connection.agreement().facts.content, 42);
        connection.ping().unwrap();
        let places = connection.register(&[Allocation { bytes: 64, purpose: 1 }, Allocation { bytes: 9, purpose: 2 }]);
        assert_eq!(places.unwrap(), [Place(64), Place(9)]);
        connection.deregister(&[Place(64)]).unwrap();
        let done = connection.flush(0, &[extent(10, 3), extent(100, 2)], &[b"ab", b"cde"]).unwrap();
        assert_eq!(done.bytes, 5);
        let mut bytes = [0; 7];
        connection.read_into(&[extent(100, 2), extent(9, 5)], &mut bytes).unwrap();
        assert_eq!(&bytes, b"de\0abc\0");
        connection.read_into(&[], &mut []).unwrap();
        connection.publish(7, 8).unwrap();
        assert_eq!(connection.append(1, 1000, b"record").unwrap(), 1006);
        let mut rows = connection.fragment(&plan(50, 60_000), 1 << 20, LONG).unwrap();
        for number in 0..50 {
            assert_eq!(rows.next().unwrap().unwrap(), vec![number; 60_000]);
        }
        assert!(rows.next().unwrap().is_none());
        assert_eq!((rows.done().unwrap().rows, rows.done().unwrap().batches), (50, 50));
        // An error is the request's alone, and comes whole.
        let refused = connection.read_into(&[extent(1 << 30, 5)], &mut [0; 5]).unwrap_err();
        assert_eq!((refused.code(), refused.hint()), (SqlState::INVALID_PARAMETER_VALUE, Some("Ask for another.")));
        // A defect of the service is an error of the request that met it.
        assert_eq!(connection.publish(u64::MAX, 0).unwrap_err().code(), SqlState::INTERNAL_ERROR);
        connection.ping().unwrap();
    });
}

#[test]
fn threads_share_a_connection_and_both_sides_send_much_at_once() {
    const THREADS: usize = 6;
    const BYTES: usize = 3 << 20;
    over_each(THREADS * BYTES, ServerConfig::default(), |node| {
        let connection = node.open(&offer(1, 1, 0, 1), PATIENT);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let connection = connection.clone();
                scope.spawn(move || {
                    let place = (thread * BYTES) as u64;
                    let mut got = vec![0; BYTES];
                    for round in 0..4 {
                        // Large ones fill all buffers on both ways: nobody may wait for the other for ever.
                        let sent: Vec<u8> = (0..BYTES).map(|at| (at / 7 + thread + round) as u8).collect();
                        connection.flush(0, &[extent(place, BYTES as u32)], &[&sent]).unwrap();
                        connection.read_into(&[extent(place, BYTES as u32)], &mut got).unwrap();
                        assert!(sent == got, "thread {thread}, round {round}");
                        for small in 0..50 {
                            let bytes = [(thread * 50 + small) as u8; 40];
                            connection.flush(0, &[extent(place + small as u64, 40)], &[&bytes]).unwrap();
                            let mut got = [0; 40];
                            connection.read_into(&[extent(place + small as u64, 40)], &mut got).unwrap();
                            assert_eq!(bytes, got);
                        }
                    }
                    let mut rows = connection.fragment(&plan(30, 100_000), 0, LONG).unwrap();
                    let mut number = 0;
                    while let Some(batch) = rows.next().unwrap() {
                        assert!(batch == vec![number; 100_000]);
                        number += 1;
                    }
                    assert_eq!(number, 30);
                });
            }
        });
    });
}

#[test]
fn answers_come_in_any_order_and_requests_can_be_cancelled() {
    over_each(4096, ServerConfig::default(), |node| {
        let connection = node.open(&offer(1, 1, 0, 1), PATIENT);
        let mut endless = connection.fragment(&[], 0, LONG).unwrap();
        // Later ones are answered meanwhile, and waited for in another order.
        let first = connection.submit(&Request::Read(List::new(&[extent(0, 8)])), LONG).unwrap();
        let second = connection.submit(&Request::Ping(9), LONG).unwrap();
        assert_eq!(second.wait().unwrap(), Outcome::Pong);
        first.wait_into(&mut [0; 8]).unwrap();
        let canceller = endless.canceller();
        std::thread::scope(|scope| {
            scope.spawn(move || canceller.cancel().unwrap());
            assert_eq!(endless.next().unwrap_err().code(), SqlState::QUERY_CANCELED);
        });
        // A deadline cancels, and so does losing interest.
        let mut late = connection.fragment(&[], 0, Duration::from_millis(1)).unwrap();
        let refused = late.next().unwrap_err();
        assert_eq!((refused.code(), refused.detail()), (SqlState::QUERY_CANCELED, Some("Its deadline had passed.")));
        let lost = connection.fragment(&[], 0, LONG).unwrap();
        drop(lost);
        // All are over, so that there is room for as many as there may be.
        let all: Vec<_> = (0..256).map(|word| connection.submit(&Request::Ping(word), LONG).unwrap()).collect();
        all.into_iter().for_each(|pending| drop(pending.wait().unwrap()));
    });
}

#[test]
fn each_request_that_waits_is_told_that_the_connection_ended() {
    over_each(4096, ServerConfig::default(), |node| {
        let connection = node.open(&offer(1, 1, 0, 1), PATIENT);
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..5)
                .map(|_| {
                    let connection = connection.clone();
                    scope.spawn(move || connection.fragment(&[], 0, LONG)?.next().map(drop))
                })
                .collect();
            while node.memory.waiting.load(Ordering::SeqCst) < 5 {
                std::thread::yield_now();
            }
            node.server.stop();
            for waited in waiting {
                assert_eq!(waited.join().unwrap().unwrap_err().code(), SqlState::CONNECTION_FAILURE);
            }
        });
        assert_eq!(connection.ping().unwrap_err().code(), SqlState::CONNECTION_FAILURE);
    });
}

#[test]
fn one_thread_reads_directly() {
    over_each(5 << 20, ServerConfig::default(), |node| {
        {
            let mut memory = lock(&node.memory.memory);
            for (at, byte) in memory.iter_mut().enumerate() {
                *byte = ((at * 31) >> 5) as u8;
            }
        }
        let mut reader = DirectConnection::open((node.connect)(), &offer(1, 1, 3, 1), &token(), LONG).unwrap();
        for (place, len) in [(0, 1), (17, 4096), (4096, 65_536), (1, 5_000_000), (9, 0)] {
            let mut bytes = vec![0; len];
            let halves = [extent(place, len as u32 / 2), extent(place + len as u64 / 2, (len - len / 2) as u32)];
            reader.read_into(&halves, &mut bytes, LONG).unwrap();
            assert!(bytes == lock(&node.memory.memory)[place as usize..place as usize + len], "{len}");
        }
        let refused = reader.read_into(&[extent(1 << 40, 10)], &mut [0; 10], LONG);
        assert_eq!(refused, Err(Fault::Refused(SqlState::INVALID_PARAMETER_VALUE)));
        // That is no reason to end the connection, unlike a newer epoch.
        reader.read_into(&[extent(5, 10)], &mut [0; 10], LONG).unwrap();
        let _newer = node.open(&offer(2, 2, 0, 1), PATIENT);
        let fenced = reader.read_into(&[extent(5, 10)], &mut [0; 10], LONG).unwrap_err();
        assert!([SqlState::ADMIN_SHUTDOWN, SqlState::CONNECTION_FAILURE].contains(&fenced.code()), "{fenced:?}");
        assert_eq!(reader.read_into(&[extent(5, 10)], &mut [0; 10], LONG), Err(fenced));
    });
}

#[test]
fn one_thread_writes_directly() {
    over_each(5 << 20, ServerConfig::default(), |node| {
        let mut direct = DirectConnection::open((node.connect)(), &offer(1, 1, 3, 1), &token(), LONG).unwrap();
        let pages: Vec<Vec<u8>> = (0..32_u8).map(|number| vec![number + 1; 100_000]).collect();
        let pieces: Vec<&[u8]> = pages.iter().map(Vec::as_slice).collect();
        // Last first, with a gap between them.
        let extents: Vec<_> = (0..32_u64).map(|number| extent((31 - number) * 120_000, 100_000)).collect();
        direct.flush(0, &extents, &pieces, LONG).unwrap();
        for (number, extent) in extents.iter().enumerate() {
            let start = extent.place.0 as usize;
            let memory = lock(&node.memory.memory);
            assert!(memory[start..start + 100_000].iter().all(|byte| *byte == number as u8 + 1));
            assert!(memory[start + 100_000..start + 120_000].iter().all(|byte| *byte == 0));
        }
        let refused = direct.flush(0, &[extent(1 << 40, 5)], &[b"12345"], LONG);
        assert_eq!(refused, Err(Fault::Refused(SqlState::INVALID_PARAMETER_VALUE)));
        // More than a frame takes is refused here, and what was refused ends no connection.
        let much = vec![0; 4 << 20];
        let beyond = direct.flush(0, &[extent(0, much.len() as u32)], &[&much], LONG);
        assert!(matches!(beyond, Err(Fault::Beyond { .. })), "{beyond:?}");
        direct.flush(0, &[extent(3, 2)], &[b"ab"], LONG).unwrap();
        assert_eq!(lock(&node.memory.memory)[2..6], [32, b'a', b'b', 32]);
    });
}

#[test]
fn a_newer_epoch_ends_older_ones_and_refuses_them() {
    over_each(4096, ServerConfig::default(), |node| {
        let old = node.open(&offer(1, 1, 0, 1), PATIENT);
        let mut waiting = old.fragment(&[], 0, LONG).unwrap();
        while node.memory.waiting.load(Ordering::SeqCst) < 1 {
            std::thread::yield_now();
        }
        let new = node.open(&offer(2, 2, 0, 1), PATIENT);
        assert_eq!(waiting.next().unwrap_err().code(), SqlState::ADMIN_SHUTDOWN);
        assert_eq!(old.ping().unwrap_err().code(), SqlState::ADMIN_SHUTDOWN);
        let refused = Connection::open((node.connect)(), &offer(1, 1, 0, 2), &token(), PATIENT).unwrap_err();
        assert_eq!(refused.code(), SqlState::ADMIN_SHUTDOWN);
        assert_eq!(refused.message(), "epoch 1 is over: epoch 2 has begun");
        new.ping().unwrap();
        // The next connection of the same lane ends the one before, and others not.
        let other = node.open(&offer(2, 2, 1, 1), PATIENT);
        let next = node.open(&offer(2, 2, 0, 2), PATIENT);
        assert_eq!(new.ping().unwrap_err().code(), SqlState::CONNECTION_FAILURE);
        other.ping().unwrap();
        next.ping().unwrap();
    });
}

#[test]
fn the_limits_of_a_connection_are_the_lesser_ones() {
    let limits = Limits { requests: 3, frame_bytes: 32 << 10, batch_bytes: 8 << 10, ..Limits::default() };
    let config = ServerConfig { limits, connections: 1, ..ServerConfig::default() };
    over_each(1 << 20, config, |node| {
        let mine = Limits { read_bytes: 100_000, requests: 50, ..Limits::default() };
        let connection = node.open(&Offer { limits: mine, ..offer(1, 1, 0, 1) }, PATIENT);
        let agreed = connection.agreement().limits;
        assert_eq!((agreed.requests, agreed.read_bytes, agreed.frame_bytes), (3, 100_000, 32 << 10));
        let beyond = [
            connection.read_into(&[extent(0, 100_001)], &mut vec![0; 100_001]).unwrap_err(),
            connection.append(0, 0, &[0; 32 << 10]).unwrap_err(),
        ];
        assert!(beyond.iter().all(|error| error.code() == SqlState::PROGRAM_LIMIT_EXCEEDED), "{beyond:?}");
        // More data than a frame takes comes in several.
        connection.read_into(&[extent(3, 100_000)], &mut vec![0; 100_000]).unwrap();
        // A fourth request waits for room, in vain here.
        let three: Vec<_> = (0..3).map(|_| connection.fragment(&[], 0, LONG).unwrap()).collect();
        let refused = connection.submit(&Request::Ping(1), Duration::from_millis(5)).unwrap_err();
        assert_eq!(refused.detail(), Some("There was no room for it in time."));
        drop(three);
        connection.ping().unwrap();
        // A node serves so many connections, and no more.
        let refused = Connection::open((node.connect)(), &offer(1, 1, 1, 1), &token(), PATIENT).unwrap_err();
        assert_eq!(refused.code(), SqlState::TOO_MANY_CONNECTIONS);
    });
}

const CHILD: &str = "TIDEPOOL_WIRE_TEST_NODE";

/// Not a test of its own: what the other process runs.
#[test]
fn node_process() {
    let Some(address) = std::env::var_os(CHILD) else { return };
    let (_, server) = server(1 << 20, ServerConfig::default());
    let listener = match address.to_str() {
        Some("tcp") => Listener::tcp("127.0.0.1:0").unwrap(),
        _ => Listener::unix(Path::new(&address)).unwrap(),
    };
    println!("listens at {:?}", listener.tcp_address());
    server.listen(&listener).unwrap();
}

#[test]
fn a_node_is_another_process_and_dies() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node");
    for address in ["tcp", path.to_str().unwrap()] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "node_process", "--nocapture"])
            .env(CHILD, address)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.find_map(|line| Some(line.unwrap().split_once("listens at ")?.1.to_owned())).unwrap();
        let transport: Box<dyn Transport> = match line.strip_prefix("Some(") {
            Some(rest) => Box::new(connect_tcp(rest.trim_end_matches(')'), LONG).unwrap()),
            None => Box::new(connect_unix(&path).unwrap()),
        };
        let connection = Connection::open(transport, &offer(1, 1, 0, 1), &token(), PATIENT).unwrap();
        let mut got = vec![0; 200_000];
        for round in 0..20 {
            let sent = vec![round; 200_000];
            connection.flush(0, &[extent(0, 200_000)], &[&sent]).unwrap();
            connection.read_into(&[extent(0, 200_000)], &mut got).unwrap();
            assert!(sent == got);
        }
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..3)
                .map(|_| {
                    let connection = connection.clone();
                    scope.spawn(move || connection.fragment(&[], 0, LONG)?.next().map(drop))
                })
                .collect();
            child.kill().unwrap();
            child.wait().unwrap();
            for waited in waiting {
                assert_eq!(waited.join().unwrap().unwrap_err().code(), SqlState::CONNECTION_FAILURE);
            }
        });
    }
}
