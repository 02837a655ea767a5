//! A node over pairs of sockets and in-process links: what one database may do, and what it cannot do to another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidepool_base::{Error, SqlState};
use tidepool_device::Location;
use tidepool_node::{Arena, Node, STAGED_BYTES_MAX, UNIT_BYTES};
use tidepool_wire::transport::local::Link;
use tidepool_wire::{
    Allocation, Connection, Epoch, Extent, Identity, Limits, Offer, Place, Server, ServerConfig, Timeouts, Token,
};

const MIB: u64 = 1 << 20;

fn node(bytes: u64) -> Arc<Server<Node>> {
    let arena = Arena::open(&Location::Anon, Some(bytes)).unwrap();
    Server::new(Node::new(arena).unwrap(), token(), ServerConfig::default()).unwrap()
}

fn token() -> Token {
    Token::new(&[9; 32]).unwrap()
}

/// Database, epoch, client and lane.
fn offer(database: u8, epoch: u64, client: u8, lane: u32) -> Offer {
    Offer {
        tablespace: Identity([database; 16]),
        epoch: Epoch(epoch),
        client: Identity([client; 16]),
        lane,
        incarnation: 1,
        limits: Limits::default(),
        bare_data: true,
    }
}

fn try_connect(server: &Arc<Server<Node>>, offer: &Offer) -> Result<Connection, Error> {
    let (near, far) = Link::unpaced().pair();
    let server = server.clone();
    std::thread::spawn(move || drop(server.serve(Box::new(far))));
    Connection::open(Box::new(near), offer, &token(), Timeouts::default())
}

fn connect(server: &Arc<Server<Node>>, offer: &Offer) -> Connection {
    try_connect(server, offer).unwrap()
}

fn allocation(bytes: u64) -> Allocation {
    Allocation { bytes, purpose: 3 }
}

fn at(place: Place, offset: u64, bytes: u32) -> Extent {
    Extent { place: Place(place.0 + offset), bytes }
}

fn read(connection: &Connection, extent: Extent) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0xAA; extent.bytes as usize];
    connection.read_into(&[extent], &mut bytes)?;
    Ok(bytes)
}

/// Root and number, whose checksum is looked at.
fn root(connection: &Connection) -> (u64, u64) {
    let bytes = read(connection, Extent { place: Place::ROOT, bytes: 32 }).unwrap();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(word(16), xxhash_rust::xxh3::xxh3_64(&bytes[..16]));
    assert_eq!(word(24), 0);
    (word(0), word(8))
}

#[test]
fn memory_is_registered_read_written_and_given_back() {
    let server = node(4 * MIB);
    let connection = connect(&server, &offer(1, 1, 1, 0));
    assert_ne!(connection.agreement().facts.content, 0);
    let places = connection.register(&[allocation(MIB), allocation(1), allocation(2 * MIB)]).unwrap();
    assert_eq!(server.service().bytes_of(Identity([1; 16])), [(3, 3 * MIB + UNIT_BYTES)]);
    assert_eq!(read(&connection, at(places[2], 5, 4096)).unwrap(), [0; 4096], "fresh memory is empty");
    let (first, second) = (vec![1; 100_000], vec![2; 7]);
    let extents = [at(places[0], 3, 100_000), at(places[2], 2 * MIB - 7, 7)];
    connection.flush(0, &extents, &[&first, &second]).unwrap();
    let mut both = vec![0; 100_007];
    connection.read_into(&[extents[1], extents[0]], &mut both).unwrap();
    assert!(both[..7] == second && both[7..] == first);

    // All or nothing, whatever is wrong with it.
    for wrong in
        [at(places[2], 2 * MIB - 6, 7), at(Place(0), 4 * MIB, 1), at(Place(u64::MAX), 0, 4), at(places[1], 0, 65_537)]
    {
        let error = read(&connection, wrong).unwrap_err();
        assert_eq!(error.code(), SqlState::INVALID_PARAMETER_VALUE, "{wrong:?}");
        let bytes = vec![9; wrong.bytes as usize];
        let error = connection.flush(0, &[extents[1], wrong], &[&[9; 7], &bytes]).unwrap_err();
        assert_eq!(error.code(), SqlState::INVALID_PARAMETER_VALUE, "{wrong:?}");
        assert_eq!(read(&connection, extents[1]).unwrap(), second);
    }
    let full = connection.register(&[allocation(UNIT_BYTES), allocation(MIB)]).unwrap_err();
    assert_eq!(full.code(), SqlState::OUT_OF_MEMORY);
    assert!(full.detail().unwrap().contains("960 kB of 4 MB are free"), "{full:?}");
    assert_eq!(connection.register(&[allocation(0)]).unwrap_err().code(), SqlState::INVALID_PARAMETER_VALUE);
    assert_eq!(connection.register(&[allocation(u64::MAX)]).unwrap_err().code(), SqlState::OUT_OF_MEMORY);
    let unknown = connection.deregister(&[places[0], Place(1)]).unwrap_err();
    assert_eq!(unknown.code(), SqlState::INVALID_PARAMETER_VALUE);
    assert_eq!(read(&connection, extents[0]).unwrap(), first);
    assert_eq!(connection.deregister(&[places[0], places[0]]).unwrap().bytes, MIB);
    assert_eq!(read(&connection, extents[0]).unwrap_err().code(), SqlState::INVALID_PARAMETER_VALUE);
    // What others had is empty when it is had again.
    let again = connection.register(&[allocation(MIB)]).unwrap();
    assert_eq!(read(&connection, at(again[0], 3, 100)).unwrap(), [0; 100]);
    let status = server.service().status();
    assert_eq!((status.databases, status.connections, status.bytes), (1, 1, 4 * MIB));
    assert!(status.refused >= 12 && status.reads >= 5 && status.flushed_bytes == 100_007, "{status:?}");
}

#[test]
fn databases_do_not_see_each_other() {
    let server = node(2 * MIB);
    let (one, other) = (connect(&server, &offer(1, 1, 1, 0)), connect(&server, &offer(2, 1, 1, 0)));
    let place = one.register(&[allocation(UNIT_BYTES)]).unwrap()[0];
    one.flush(0, &[at(place, 0, 6)], &[b"secret"]).unwrap();
    assert_eq!(read(&other, at(place, 0, 6)).unwrap_err().code(), SqlState::INVALID_PARAMETER_VALUE);
    assert!(other.flush(0, &[at(place, 0, 6)], &[b"broken"]).is_err());
    assert!(other.deregister(&[place]).is_err());
    assert_eq!(other.deregister(&[Place::OTHERS]).unwrap().bytes, 0);
    assert_eq!(read(&one, at(place, 0, 6)).unwrap(), b"secret");
    // An empty room is forgotten with its last connection, and one with memory is not.
    drop((one, other));
    while server.connections() > 0 {
        std::thread::yield_now();
    }
    assert_eq!(server.service().status().databases, 1);
}

#[test]
fn the_next_process_finds_what_was_left_and_fences_the_one_before() {
    let server = node(4 * MIB);
    let old = connect(&server, &offer(1, 1, 1, 0));
    let left = old.register(&[allocation(MIB)]).unwrap()[0];
    old.flush(0, &[at(left, 0, 4)], &[b"left"]).unwrap();
    old.publish(77, 1).unwrap();
    old.flush(9, &[at(left, 0, 4)], &[b"half"]).unwrap();

    let new = connect(&server, &offer(1, 2, 2, 0));
    assert_eq!(old.flush(0, &[at(left, 0, 4)], &[b"late"]).unwrap_err().code(), SqlState::ADMIN_SHUTDOWN);
    assert_eq!(try_connect(&server, &offer(1, 1, 1, 1)).unwrap_err().code(), SqlState::ADMIN_SHUTDOWN);
    assert_eq!((read(&new, at(left, 0, 4)).unwrap(), root(&new)), (b"left".to_vec(), (77, 1)));
    // What was staged and not published is gone.
    new.publish(78, 9).unwrap();
    assert_eq!(read(&new, at(left, 0, 4)).unwrap(), b"left");

    let mine = new.register(&[allocation(MIB)]).unwrap()[0];
    assert_eq!(new.deregister(&[Place::OTHERS]).unwrap().bytes, MIB);
    assert!(read(&new, at(left, 0, 4)).is_err());
    assert_eq!((read(&new, at(mine, 0, 4)).unwrap(), root(&new)), (vec![0; 4], (0, 0)));
    // The epoch outlives connections as long as there is memory.
    drop(new);
    while server.connections() > 0 {
        std::thread::yield_now();
    }
    assert_eq!(try_connect(&server, &offer(1, 1, 3, 0)).unwrap_err().code(), SqlState::ADMIN_SHUTDOWN);
}

#[test]
fn staged_writes_come_in_force_with_their_root() {
    let server = node(80 * MIB);
    let connection = connect(&server, &offer(1, 1, 1, 0));
    let place = connection.register(&[allocation(72 * MIB)]).unwrap()[0];
    connection.flush(1, &[at(place, 0, 2)], &[b"s1"]).unwrap();
    connection.flush(2, &[at(place, 2, 2)], &[b"s2"]).unwrap();
    connection.flush(3, &[at(place, 4, 2)], &[b"s3"]).unwrap();
    assert_eq!((read(&connection, at(place, 0, 6)).unwrap(), root(&connection)), (vec![0; 6], (0, 0)));
    assert_eq!(connection.publish(500, 2).unwrap().bytes, 2);
    assert_eq!((read(&connection, at(place, 0, 6)).unwrap(), root(&connection)), (b"\0\0s2\0\0".to_vec(), (500, 2)));
    // Backwards never, nor what comes after its publication.
    let late = SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE;
    assert_eq!(connection.publish(400, 1).unwrap_err().code(), late);
    assert_eq!(connection.publish(500, 2).unwrap_err().code(), late);
    assert_eq!(connection.flush(2, &[at(place, 0, 2)], &[b"xx"]).unwrap_err().code(), late);
    assert_eq!(connection.publish(1, 0).unwrap_err().code(), SqlState::INVALID_PARAMETER_VALUE);
    assert_eq!(connection.publish(1, 1 << 32).unwrap_err().code(), SqlState::INVALID_PARAMETER_VALUE);
    connection.publish(600, 3).unwrap();
    assert_eq!((read(&connection, at(place, 0, 6)).unwrap(), root(&connection)), (b"\0\0s2s3".to_vec(), (600, 3)));

    // There is a limit on what may wait, of many small writes too.
    let piece = vec![1; 3 << 20];
    let mut staged = 0;
    let error = loop {
        match connection.flush(7, &[at(place, 0, 3 << 20)], &[&piece]) {
            Ok(_) => staged += piece.len() as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(error.code(), SqlState::PROGRAM_LIMIT_EXCEEDED);
    assert!(staged <= STAGED_BYTES_MAX && staged > STAGED_BYTES_MAX - 2 * piece.len() as u64, "{staged}");
    connection.publish(700, 8).unwrap();
    connection.flush(9, &[at(place, 0, 3 << 20)], &[&piece]).unwrap();
    let nothing = vec![at(place, 0, 0); 4000];
    let refused = (0..1000).find_map(|_| connection.flush(9, &nothing, &[]).err());
    assert_eq!(refused.unwrap().code(), SqlState::PROGRAM_LIMIT_EXCEEDED);
}

/// One publishes both halves of a record over and over, and readers never see halves of two.
#[test]
fn a_publication_is_never_torn() {
    let server = node(4 * MIB);
    let writer = connect(&server, &offer(1, 1, 1, 0));
    let place = writer.register(&[allocation(MIB)]).unwrap()[0];
    let halves = [at(place, 0, 200_000), at(place, 300_000, 200_000)];
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for lane in 1..3 {
            let reader = connect(&server, &offer(1, 1, 1, lane));
            let over = &over;
            scope.spawn(move || {
                let (mut bytes, mut seen) = (vec![0; 400_032], 0);
                let extents = [halves[0], halves[1], Extent { place: Place::ROOT, bytes: 32 }];
                while !over.load(Ordering::SeqCst) {
                    reader.read_into(&extents, &mut bytes).unwrap();
                    let number = u64::from_le_bytes(bytes[400_008..400_016].try_into().unwrap());
                    assert!(bytes[..400_000].iter().all(|byte| *byte == number as u8), "torn at {number}");
                    assert!(number >= seen);
                    seen = number;
                }
                assert!(seen > 0);
            });
        }
        for number in 1..=200_u32 {
            let half = vec![number as u8; 200_000];
            writer.flush(number, &halves, &[&half, &half]).unwrap();
            writer.publish(0, number.into()).unwrap();
        }
        std::thread::sleep(Duration::from_millis(20));
        over.store(true, Ordering::SeqCst);
    });
}
