//! Peers that do not know the token, that say what the protocol does not allow, and that ask for more than they may.

mod common;

use common::{PATIENT, extent, offer, plan, server, token};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidepool_base::{Result, SqlState};
use tidepool_wire::frame::HEAD_BYTES;
use tidepool_wire::transport::{Halves, Incoming, Outgoing, Transport};
use tidepool_wire::{
    Agreement, Answer, Connection, Epoch, Fault, Flags, Head, Hello, Identity, Kind, Limits, NodeFacts, Offer,
    RequestId, ServerConfig, Timeouts, Token,
};

const LONG: Duration = Duration::from_secs(120);

/// Sends what it is told to in place of the next frame that its owner sends.
#[derive(Debug)]
struct Liar {
    honest: Box<dyn Transport>,
    lie: Lie,
}

type Lie = Arc<Mutex<Option<Vec<Vec<u8>>>>>;

#[derive(Debug)]
struct LyingSender {
    honest: Box<dyn Outgoing>,
    lie: Lie,
}

impl Transport for Liar {
    fn split(self: Box<Self>) -> Result<Halves> {
        let halves = self.honest.split()?;
        Ok(Halves { outgoing: Box::new(LyingSender { honest: halves.outgoing, lie: self.lie }), ..halves })
    }
}

impl Outgoing for LyingSender {
    fn send(&mut self, frame: &[&[u8]], sent: &mut usize) -> Result<bool, Fault> {
        let Some(frames) = common::lock(&self.lie).take() else { return self.honest.send(frame, sent) };
        for frame in &frames {
            let mut sent = 0;
            while !self.honest.send(&[frame], &mut sent)? {}
        }
        Ok(true)
    }
}

/// A connection that is open, and whose next request is `frames` instead; what it comes to.
fn lied(limits: Limits, config: ServerConfig, frames: Vec<Vec<u8>>) -> SqlState {
    let (near, far) = UnixStream::pair().unwrap();
    let (_, server) = server(1 << 20, config);
    let node = std::thread::spawn({
        let server = server.clone();
        move || server.serve(Box::new(far))
    });
    let lie = Lie::default();
    let transport = Box::new(Liar { honest: Box::new(near), lie: lie.clone() });
    let connection = Connection::open(transport, &Offer { limits, ..offer(3, 1, 0, 1) }, &token(), PATIENT).unwrap();
    connection.ping().unwrap();
    *common::lock(&lie) = Some(frames);
    let error = connection.ping().expect_err("a lie is believed");
    // Whatever it was, the node has none of it left, and serves others.
    drop(connection);
    let _ = node.join().unwrap();
    assert_eq!(server.connections(), 0);
    error.code()
}

fn frame(kind: Kind, flags: Flags, request: u64, epoch: u64, body: &[u8]) -> Vec<u8> {
    let head = Head::of(kind, flags, RequestId(request), Epoch(epoch), &[body]).unwrap();
    [&head.encode(), body].concat()
}

#[test]
fn what_the_protocol_does_not_allow_ends_the_connection() {
    let ping = frame(Kind::Ping, Flags::NONE, 2, 3, &[0; 8]);
    let mut unknown = ping.clone();
    unknown[4] = 99;
    let mut flagged = ping.clone();
    flagged[7] = 128;
    let mut damaged = ping.clone();
    damaged[HEAD_BYTES] ^= 1;
    let mut long = ping.clone();
    long[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    let hello = Hello::Proof([0; 32]).encode();
    let lies = [
        ("an unknown kind", unknown, SqlState::PROTOCOL_VIOLATION),
        ("unknown flags", flagged, SqlState::PROTOCOL_VIOLATION),
        ("a wrong checksum", damaged, SqlState::PROTOCOL_VIOLATION),
        ("a length beyond the limit", long, SqlState::PROGRAM_LIMIT_EXCEEDED),
        ("an answer", frame(Kind::Done, Flags::ANSWER, 2, 3, &[0; 40]), SqlState::PROTOCOL_VIOLATION),
        ("a second greeting", frame(Kind::Hello, Flags::NONE, 0, 3, &hello), SqlState::PROTOCOL_VIOLATION),
        ("no number", frame(Kind::Ping, Flags::NONE, 0, 3, &[0; 8]), SqlState::PROTOCOL_VIOLATION),
        ("an old epoch", frame(Kind::Ping, Flags::NONE, 2, 2, &[0; 8]), SqlState::ADMIN_SHUTDOWN),
        ("an epoch to come", frame(Kind::Ping, Flags::NONE, 2, 4, &[0; 8]), SqlState::PROTOCOL_VIOLATION),
        ("a short body", frame(Kind::Ping, Flags::NONE, 2, 3, &[0; 7]), SqlState::PROTOCOL_VIOLATION),
        ("a long body", frame(Kind::Cancel, Flags::NONE, 2, 3, &[0]), SqlState::PROTOCOL_VIOLATION),
        ("a list of nothing", frame(Kind::Read, Flags::NONE, 2, 3, &[9, 0, 0, 0]), SqlState::PROTOCOL_VIOLATION),
        ("a long list", frame(Kind::Read, Flags::NONE, 2, 3, &[255; 4]), SqlState::PROGRAM_LIMIT_EXCEEDED),
    ];
    for (name, lie, code) in lies {
        assert_eq!(lied(Limits::default(), ServerConfig::default(), vec![lie]), code, "{name}");
    }
}

#[test]
fn a_peer_cannot_have_more_under_way_than_was_agreed() {
    let limits = Limits {
        requests: 2,
        frame_bytes: 32 << 10,
        batch_bytes: 8 << 10,
        request_bytes: 64 << 10,
        ..Limits::default()
    };
    let config = ServerConfig { limits, ..ServerConfig::default() };
    let fragment = |request: u64, credit: u64, plan: &[u8]| {
        frame(Kind::Fragment, Flags::NONE, request, 3, &[&credit.to_le_bytes()[..], plan].concat())
    };
    // Number 2 is that of the ping, whose answer is waited for: the last one of three.
    let many = vec![fragment(3, 8 << 10, &[]), fragment(4, 8 << 10, &[]), fragment(2, 8 << 10, &[])];
    assert_eq!(lied(limits, config, many), SqlState::TOO_MANY_CONNECTIONS);
    // Two plans of 30 kB fit into the credit of requests, and three do not.
    let wide = Limits { requests: 100, ..limits };
    let config = ServerConfig { limits: wide, ..config };
    let append = |request: u64| fragment(request, 8 << 10, &[&plan(1 << 30, 8)[..], &[0; 30 << 10]].concat());
    let large = vec![append(3), append(4), append(2)];
    assert_eq!(lied(wide, config, large), SqlState::PROTOCOL_VIOLATION);
    // Credit of rows: too much of it, too little to begin with, and more than may be granted.
    assert_eq!(lied(wide, config, vec![fragment(2, u64::MAX, &[])]), SqlState::PROGRAM_LIMIT_EXCEEDED);
    assert_eq!(lied(wide, config, vec![fragment(2, 5, &[])]), SqlState::PROTOCOL_VIOLATION);
    let granted = frame(Kind::Credit, Flags::NONE, 2, 3, &u64::MAX.to_le_bytes());
    assert_eq!(lied(wide, config, vec![fragment(2, 8 << 10, &[]), granted]), SqlState::PROTOCOL_VIOLATION);
    // More bytes than a read may have.
    let read = [&1_u32.to_le_bytes()[..], &[0; 8], &u32::MAX.to_le_bytes()].concat();
    assert_eq!(lied(wide, config, vec![frame(Kind::Read, Flags::NONE, 2, 3, &read)]), SqlState::PROGRAM_LIMIT_EXCEEDED);
}

#[test]
fn peers_without_the_token_are_refused_on_both_sides() {
    let other = Token::new(b"a token that is another one").unwrap();
    let (_, node) = server(4096, ServerConfig::default());
    let (near, far) = UnixStream::pair().unwrap();
    let serving = std::thread::spawn({
        let node = node.clone();
        move || node.serve(Box::new(far))
    });
    let refused = Connection::open(Box::new(near), &offer(1, 1, 0, 1), &other, PATIENT).unwrap_err();
    assert_eq!((refused.code(), refused.message()), (SqlState::INVALID_PASSWORD, "authentication failed"));
    assert_eq!(serving.join().unwrap().unwrap_err().code(), SqlState::INVALID_PASSWORD);
    // It has not begun an epoch either.
    assert_eq!(node.epoch(common::TABLESPACE), None);

    // A node that welcomes everybody, without a proof of its own.
    let (near, far) = UnixStream::pair().unwrap();
    let impostor = std::thread::spawn(move || {
        let Halves { mut outgoing, mut incoming, .. } = Box::new(far).split().unwrap();
        let mut say = |hello: Hello| {
            let frame = frame(Kind::Hello, Flags::ANSWER, 0, 1, &hello.encode());
            outgoing.send(&[&frame], &mut 0).unwrap();
        };
        receive(&mut *incoming);
        say(Hello::Challenge { version: 1, nonce: [7; 32] });
        let (_, body) = receive(&mut *incoming);
        let Ok(Hello::Proof(proof)) = Hello::decode(&body, Epoch(1)) else { panic!("no proof") };
        let agreement = Agreement { facts: NodeFacts::default(), limits: Limits::default(), bare_data: false };
        // Not even the peer's own proof, sent back, is one.
        say(Hello::Welcome { proof, agreement });
    });
    let refused = Connection::open(Box::new(near), &offer(1, 1, 0, 1), &token(), PATIENT).unwrap_err();
    assert_eq!(refused.code(), SqlState::INVALID_PASSWORD);
    impostor.join().unwrap();
}

fn receive(incoming: &mut dyn Incoming) -> (Head, Vec<u8>) {
    let mut head = [0; HEAD_BYTES];
    assert!(incoming.begin(&mut head, LONG).unwrap());
    let head = Head::decode(&head, 1 << 20).unwrap();
    let mut body = vec![0; head.len as usize];
    incoming.receive(&mut body).unwrap();
    head.check_body(&body).unwrap();
    (head, body)
}

/// What a node says to a peer that begins with these bytes.
fn greeted(bytes: &[u8], config: ServerConfig) -> SqlState {
    let (near, far) = UnixStream::pair().unwrap();
    let (_, node) = server(4096, config);
    let serving = std::thread::spawn(move || node.serve(Box::new(far)));
    let Halves { mut outgoing, mut incoming, .. } = Box::new(near).split().unwrap();
    outgoing.send(&[bytes], &mut 0).unwrap();
    let (head, body) = receive(&mut *incoming);
    assert!(serving.join().unwrap().is_err());
    match Answer::decode(head.kind, head.flags, &body).unwrap() {
        Answer::Error(refusal) => refusal.sqlstate(),
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn strangers_are_told_why_they_are_not_let_in() {
    let config = ServerConfig::default();
    let mut offered = Hello::Offer { offer: offer(1, 1, 0, 1), versions: (1, 1), nonce: [1; 32] }.encode();
    assert_eq!(greeted(b"GET / HTTP/1.1\r\nHost: node.example\r\n\r\n", config), SqlState::PROTOCOL_VIOLATION);
    assert_eq!(greeted(&frame(Kind::Ping, Flags::NONE, 1, 1, &[0; 8]), config), SqlState::PROTOCOL_VIOLATION);
    let long = frame(Kind::Hello, Flags::NONE, 0, 1, &[0; 17 << 10]);
    assert_eq!(greeted(&long[..HEAD_BYTES], config), SqlState::PROGRAM_LIMIT_EXCEEDED);
    // A peer that says nothing more does not keep its thread.
    let short = ServerConfig { handshake: Duration::from_millis(1), ..config };
    assert_eq!(greeted(&[], short), SqlState::CONNECTION_FAILURE);
    offered[12..16].copy_from_slice(&[2, 0, 9, 0]);
    let later = frame(Kind::Hello, Flags::NONE, 0, 1, &offered);
    assert_eq!(greeted(&later, config), SqlState::FEATURE_NOT_SUPPORTED);

    let (_, node) = server(4096, config);
    let (near, far) = UnixStream::pair().unwrap();
    let serving = std::thread::spawn(move || node.serve(Box::new(far)));
    let strange = Offer { tablespace: Identity([9; 16]), ..offer(1, 1, 0, 1) };
    let refused = Connection::open(Box::new(near), &strange, &token(), PATIENT).unwrap_err();
    assert_eq!(refused.code(), SqlState::UNDEFINED_OBJECT);
    assert!(serving.join().unwrap().is_err());
}

/// A node that answers with `frames`, whatever it is asked, and what its client makes of that.
fn answered(frames: Vec<Vec<u8>>, ask: impl FnOnce(&Connection) -> Result<()>) -> SqlState {
    let (near, far) = UnixStream::pair().unwrap();
    let lie = Lie::default();
    let (_, node) = server(1 << 20, ServerConfig::default());
    let transport = Box::new(Liar { honest: Box::new(far), lie: lie.clone() });
    let serving = std::thread::spawn(move || drop(node.serve(transport)));
    let timeouts = Timeouts { grace: Duration::from_millis(1), ..PATIENT };
    let connection = Connection::open(Box::new(near), &offer(3, 1, 0, 1), &token(), timeouts).unwrap();
    *common::lock(&lie) = Some(frames);
    let error = ask(&connection).expect_err("a lie is believed");
    assert!(connection.ping().is_err(), "the connection goes on");
    drop(connection);
    serving.join().unwrap();
    error.code()
}

#[test]
fn a_node_is_not_believed_either() {
    let last = Flags::ANSWER.with(Flags::LAST);
    let data = |flags: Flags, offset: u64, len: usize| {
        frame(Kind::Data, flags, 1, 3, &[&offset.to_le_bytes()[..], &vec![1; len]].concat())
    };
    let read = |connection: &Connection| connection.read_into(&[extent(0, 100)], &mut [0; 100]);
    let violation = SqlState::PROTOCOL_VIOLATION;
    for (name, frames, code) in [
        ("more than was asked for", vec![data(last, 0, 101)], violation),
        ("less", vec![data(last, 0, 99)], violation),
        ("no end", vec![data(Flags::ANSWER, 0, 100)], violation),
        ("a gap", vec![data(Flags::ANSWER, 0, 10), data(last, 11, 89)], SqlState::CONNECTION_FAILURE),
        ("an offset out of this world", vec![data(last, u64::MAX, 100)], SqlState::CONNECTION_FAILURE),
        ("another kind", vec![frame(Kind::Durable, last, 1, 3, &[0; 8])], violation),
        ("another request", vec![frame(Kind::Durable, last, 77, 3, &[0; 8])], violation),
        ("another request's data", vec![frame(Kind::Data, last, 77, 3, &[0; 8])], violation),
        ("a request", vec![frame(Kind::Read, Flags::NONE, 1, 3, &[0; 4])], violation),
        ("another epoch", vec![frame(Kind::Data, last, 1, 2, &[0; 108])], violation),
        ("a done that is not one", vec![frame(Kind::Done, last, 1, 3, &[0; 40])], violation),
    ] {
        assert_eq!(answered(frames, read), code, "{name}");
    }
    let rows = |connection: &Connection| {
        let mut rows = connection.fragment(&plan(1, 1), 0, LONG)?;
        while rows.next()?.is_some() {}
        Ok(())
    };
    let batch = |number: u64, len: usize| {
        frame(Kind::Batch, Flags::ANSWER, 1, 3, &[&number.to_le_bytes()[..], &vec![1; len]].concat())
    };
    // The window is the least that there is, a batch of 1 MB.
    let beyond = vec![batch(0, 1 << 19), batch(1, 1 << 19), batch(2, 1 << 20)];
    assert_eq!(answered(vec![batch(0, (1 << 20) + 1)], rows), violation);
    assert!([violation, SqlState::CONNECTION_FAILURE].contains(&answered(beyond, rows)));
    assert_eq!(answered(vec![batch(1, 5)], rows), SqlState::CONNECTION_FAILURE);
    let done = [&[0; 24][..], &5_u64.to_le_bytes(), &[0; 8]].concat();
    assert_eq!(answered(vec![batch(0, 5), frame(Kind::Done, last, 1, 3, &done)], rows), SqlState::CONNECTION_FAILURE);
}
