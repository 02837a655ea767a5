//! Each body comes back as it went in, whatever is in it; whatever else comes is refused or read as something that
//! would be written in the same way; and each damage of one bit is found.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidepool_base::{Error, SqlState};
use tidepool_wire::frame::HEAD_BYTES;
use tidepool_wire::{
    Agreement, Allocation, Answer, Done, ENTRIES_MAX, Epoch, Extent, Fault, Flags, Head, Hello, Identity, Kind, Limits,
    List, NodeFacts, Offer, Payload, Place, Refusal, Request, RequestId,
};

const ROUNDS: u64 = if cfg!(miri) { 20 } else { 2_000 };

fn number(random: &mut StdRng) -> u64 {
    match random.random_range(0..4) {
        0 => random.random_range(0..4),
        1 => u64::MAX - random.random_range(0..4),
        _ => random.random(),
    }
}

fn bytes(random: &mut StdRng) -> Vec<u8> {
    let len = random.random_range(0..200) * random.random_range(0..4);
    (0..len).map(|_| random.random()).collect()
}

fn text(random: &mut StdRng) -> String {
    let letters = ['a', 'ü', '"', '\0', '漢', '🦀', ' ', '\n'];
    (0..random.random_range(0..40)).map(|_| letters[random.random_range(0..letters.len())]).collect()
}

fn list<T>(random: &mut StdRng, mut entry: impl FnMut(&mut StdRng) -> T) -> Vec<T> {
    (0..random.random_range(0..20)).map(|_| entry(random)).collect()
}

/// What a request or an answer borrows from.
struct Parts {
    places: Vec<Place>,
    extents: Vec<Extent>,
    allocations: Vec<Allocation>,
    bytes: Vec<u8>,
    message: String,
    detail: String,
    hint: String,
}

fn parts(random: &mut StdRng) -> Parts {
    let extents = list(random, |random| Extent { place: Place(number(random)), bytes: random.random_range(0..100) });
    let total: u32 = extents.iter().map(|extent| extent.bytes).sum();
    Parts {
        places: list(random, |random| Place(number(random))),
        allocations: list(random, |random| Allocation { bytes: number(random), purpose: random.random() }),
        bytes: (0..total).map(|_| random.random()).collect(),
        extents,
        message: text(random),
        detail: text(random),
        hint: text(random),
    }
}

fn request<'a>(parts: &'a Parts, random: &mut StdRng) -> Request<'a> {
    match random.random_range(0..10) {
        0 => Request::Register(List::new(&parts.allocations)),
        1 => Request::Deregister(List::new(&parts.places)),
        2 => Request::Read(List::new(&parts.extents)),
        3 => Request::Flush {
            stage: random.random(),
            extents: List::new(&parts.extents),
            payload: Payload::Whole(&parts.bytes),
        },
        4 => Request::Publish { root: number(random), number: number(random) },
        5 => Request::Append { log: number(random), position: number(random), payload: &parts.bytes },
        6 => Request::Fragment { credit: number(random), plan: &parts.bytes },
        7 => Request::Credit { granted: number(random) },
        8 => Request::Cancel,
        _ => Request::Ping(number(random)),
    }
}

fn answer<'a>(parts: &'a Parts, random: &mut StdRng) -> Answer<'a> {
    match random.random_range(0..7) {
        0 => Answer::Registered(List::new(&parts.places)),
        1 => Answer::Data { offset: number(random), payload: Payload::Whole(&parts.bytes) },
        2 => Answer::Durable { position: number(random) },
        3 => Answer::Batch { number: number(random), payload: &parts.bytes },
        4 => Answer::Done(Done {
            cancelled: random.random(),
            rows: number(random),
            bytes: number(random),
            batches: number(random),
            nanoseconds: number(random),
        }),
        5 => Answer::Error(Refusal {
            code: *b"53200",
            message: &parts.message,
            detail: random.random::<bool>().then_some(parts.detail.as_str()),
            hint: random.random::<bool>().then_some(parts.hint.as_str()),
        }),
        _ => Answer::Pong(number(random)),
    }
}

fn limits(random: &mut StdRng) -> Limits {
    Limits {
        frame_bytes: random.random_range(16 << 10..64 << 20),
        batch_bytes: random.random_range(1..16 << 10),
        read_bytes: random.random_range(1..1 << 30),
        requests: random.random_range(1..=1024),
        request_bytes: random.random_range(64 << 20..1 << 30),
        credit_bytes: random.random_range(16 << 10..1 << 30),
    }
}

fn hello(random: &mut StdRng) -> Hello {
    match random.random_range(0..4) {
        0 => Hello::Offer {
            offer: Offer {
                tablespace: Identity(random.random()),
                epoch: Epoch(7),
                client: Identity(random.random()),
                lane: random.random(),
                incarnation: number(random),
                limits: limits(random),
                bare_data: random.random(),
            },
            versions: (random.random_range(0..2), random.random_range(1..u16::MAX)),
            nonce: random.random(),
        },
        1 => Hello::Challenge { version: 1, nonce: random.random() },
        2 => Hello::Proof(random.random()),
        _ => Hello::Welcome {
            proof: random.random(),
            agreement: Agreement {
                facts: NodeFacts {
                    content: number(random),
                    cores: random.random(),
                    row_nanoseconds: random.random(),
                    latency_nanoseconds: random.random(),
                    bytes_per_second: number(random),
                },
                limits: limits(random),
                bare_data: random.random(),
            },
        },
    }
}

/// The flags that an answer's frame has.
fn flags(answer: &Answer<'_>) -> Flags {
    match answer.kind() {
        Kind::Batch => Flags::ANSWER,
        _ => Flags::ANSWER.with(Flags::LAST),
    }
}

fn body(encode: impl FnOnce(&mut Vec<u8>) -> Result<Vec<u8>, Fault>) -> Vec<u8> {
    let mut body = Vec::new();
    let payload = encode(&mut body).unwrap();
    body.extend(payload);
    body
}

fn request_body(request: &Request<'_>) -> Vec<u8> {
    body(|to| request.encode(to).map(|payload| payload.to_vec()))
}

fn answer_body(answer: &Answer<'_>) -> Vec<u8> {
    body(|to| answer.encode(to).map(|payload| payload.to_vec()))
}

#[test]
fn bodies_come_back_as_they_went_in() {
    let mut random = StdRng::seed_from_u64(1);
    for _ in 0..ROUNDS {
        let parts = parts(&mut random);
        let request = request(&parts, &mut random);
        let bytes = request_body(&request);
        assert_eq!(Request::decode(request.kind(), Flags::NONE, &bytes), Ok(request));
        let answer = answer(&parts, &mut random);
        let bytes = answer_body(&answer);
        assert_eq!(Answer::decode(answer.kind(), flags(&answer), &bytes), Ok(answer));
        let hello = hello(&mut random);
        assert_eq!(Hello::decode(&hello.encode(), Epoch(7)), Ok(hello));
    }
}

#[test]
fn a_body_in_pieces_is_one_body() {
    let extents = [Extent { place: Place(1), bytes: 3 }, Extent { place: Place(9), bytes: 2 }];
    let pieces: [&[u8]; 3] = [b"ab", b"", b"cde"];
    let request = |payload| Request::Flush { stage: 5, extents: List::new(&extents), payload };
    let (split, whole) = (request(Payload::Pieces(&pieces)), request(Payload::Whole(b"abcde")));
    assert_eq!(split, whole);
    assert_eq!(request_body(&split), request_body(&whole));
    let short = request(Payload::Whole(b"abcd"));
    assert_eq!(short.encode(&mut Vec::new()).unwrap_err().code(), SqlState::PROTOCOL_VIOLATION);
}

/// Whatever comes is refused as malformed or beyond a limit, or is the body of what it is taken for, byte for byte.
#[test]
fn what_nobody_wrote_is_refused_or_means_what_it_says() {
    let mut random = StdRng::seed_from_u64(2);
    let (mut read, mut refused) = (0, 0);
    for _ in 0..ROUNDS * 4 {
        let parts = parts(&mut random);
        let (kind, mut bytes) = if random.random() {
            let request = request(&parts, &mut random);
            (request.kind(), request_body(&request))
        } else {
            let answer = answer(&parts, &mut random);
            (answer.kind(), answer_body(&answer))
        };
        match random.random_range(0..4) {
            0 => bytes.truncate(random.random_range(0..=bytes.len())),
            1 => bytes.extend(self::bytes(&mut random)),
            2 => bytes = self::bytes(&mut random),
            _ => {}
        }
        for _ in 0..random.random_range(0..3) {
            if !bytes.is_empty() {
                let at = random.random_range(0..bytes.len());
                bytes[at] = random.random();
            }
        }
        let kind = if random.random() { kind } else { Kind::ALL[random.random_range(0..Kind::ALL.len())] };
        let flags = Flags::from_bits(random.random_range(0..8)).unwrap();
        let request = Request::decode(kind, flags, &bytes).map(|request| request_body(&request));
        let answer = Answer::decode(kind, flags, &bytes).map(|answer| answer_body(&answer));
        for result in [request, answer] {
            match result {
                Ok(again) => {
                    assert_eq!(again, bytes, "{kind:?}");
                    read += 1;
                }
                Err(fault) => {
                    let code = fault.code();
                    assert!(
                        [SqlState::PROTOCOL_VIOLATION, SqlState::PROGRAM_LIMIT_EXCEEDED].contains(&code),
                        "{fault:?}"
                    );
                    refused += 1;
                }
            }
        }
        if let Ok(hello) = Hello::decode(&bytes, Epoch(7)) {
            assert_eq!(hello.encode(), bytes);
        }
    }
    assert!(read > ROUNDS / 4 && refused > ROUNDS, "{read} read, {refused} refused");
}

/// What a receiver makes of bytes: the frame's head and body, or why not.
fn receive(bytes: &[u8]) -> Result<(Head, Vec<u8>), Fault> {
    let (head, body) = bytes.split_first_chunk::<HEAD_BYTES>().ok_or(Fault::Malformed("short"))?;
    let head = Head::decode(head, 64 << 10)?;
    // Where the length is damaged, the body is another one, or never comes whole.
    let body = body.get(..head.len as usize).ok_or(Fault::Closed("the rest does not come"))?;
    head.check_body(body)?;
    Ok((head, body.to_vec()))
}

#[test]
fn each_damaged_bit_of_a_frame_is_found() {
    let mut random = StdRng::seed_from_u64(3);
    let mut bits = 0;
    for round in 0..if cfg!(miri) { 2 } else { 40 } {
        let parts = parts(&mut random);
        let request = request(&parts, &mut random);
        let body = if round == 0 { vec![7; 2000] } else { request_body(&request) };
        let id = RequestId(number(&mut random));
        let head = Head::of(request.kind(), Flags::NONE, id, Epoch(number(&mut random)), &[&body]).unwrap();
        let mut frame = [&head.encode()[..], &body].concat();
        // The next frame follows in the stream.
        frame.extend(Head::of(Kind::Ping, Flags::NONE, id, Epoch(1), &[&[1; 8]]).unwrap().encode());
        frame.extend([1; 8]);
        assert_eq!(receive(&frame), Ok((head, body.clone())));
        for bit in 0..(HEAD_BYTES + body.len()) * 8 {
            frame[bit / 8] ^= 1 << (bit % 8);
            let found = receive(&frame).expect_err("a damaged bit goes unnoticed");
            let codes = [SqlState::PROTOCOL_VIOLATION, SqlState::PROGRAM_LIMIT_EXCEEDED, SqlState::CONNECTION_FAILURE];
            assert!(codes.contains(&found.code()), "{found:?}");
            frame[bit / 8] ^= 1 << (bit % 8);
            bits += 1;
        }
    }
    println!("{bits} bits");
}

#[test]
fn bare_data_is_checked_up_to_its_offset() {
    let flags = Flags::ANSWER.with(Flags::LAST).with(Flags::BARE);
    let body = [&9_u64.to_le_bytes()[..], b"data"].concat();
    let head = Head::of(Kind::Data, flags, RequestId(1), Epoch(1), &[&body]).unwrap();
    let mut frame = [&head.encode()[..], &body].concat();
    for bit in 0..frame.len() * 8 {
        frame[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(receive(&frame).is_ok(), bit / 8 >= HEAD_BYTES + 8, "bit {bit}");
        frame[bit / 8] ^= 1 << (bit % 8);
    }
    // Nothing else may go without.
    let head = Head { kind: Kind::Batch, ..head };
    assert_eq!(Head::decode(&head.encode(), 100).unwrap_err().code(), SqlState::PROTOCOL_VIOLATION);
}

#[test]
fn a_list_is_refused_before_it_is_believed() {
    let mut body = (ENTRIES_MAX + 1).to_le_bytes().to_vec();
    let refused = Request::decode(Kind::Read, Flags::NONE, &body).unwrap_err();
    assert_eq!(refused.code(), SqlState::PROGRAM_LIMIT_EXCEEDED);
    assert_eq!(refused.to_string(), "too many entries of a list: 4097, the limit is 4096");
    body = ENTRIES_MAX.to_le_bytes().to_vec();
    assert_eq!(Request::decode(Kind::Read, Flags::NONE, &body).unwrap_err().code(), SqlState::PROTOCOL_VIOLATION);
    let places = vec![Place(1); ENTRIES_MAX as usize + 1];
    let sent = Request::Deregister(List::new(&places)).encode(&mut Vec::new());
    assert_eq!(sent.unwrap_err().code(), SqlState::PROGRAM_LIMIT_EXCEEDED);
}

#[test]
fn errors_travel_whole_and_long_ones_are_cut() {
    let error =
        Error::new(SqlState::OUT_OF_MEMORY, "out of memory").with_detail("All is used.").with_hint("Free some.");
    let bytes = answer_body(&Answer::Error(Refusal::of(&error)));
    let flags = Flags::ANSWER.with(Flags::LAST);
    let Ok(Answer::Error(refusal)) = Answer::decode(Kind::Error, flags, &bytes) else { panic!("no error") };
    assert_eq!(refusal.to_error(), error);

    let long = "ü".repeat(100_000);
    let error = Error::new(SqlState::IO_ERROR, long.as_str()).with_detail(long.as_str()).with_hint(long.as_str());
    let bytes = answer_body(&Answer::Error(Refusal::of(&error)));
    assert!(bytes.len() <= tidepool_wire::FRAME_BYTES_MIN as usize);
    assert!(Answer::decode(Kind::Error, flags, &bytes).is_ok());

    // A code that this release does not have is an internal error here.
    let strange = Refusal { code: *b"ZZ999", message: "strange", detail: None, hint: None };
    assert_eq!(strange.to_error().code(), SqlState::INTERNAL_ERROR);
    for (at, byte) in [(4, b'!'), (5, 4), (6, 1)] {
        let mut bytes = answer_body(&Answer::Error(strange));
        bytes[at] = byte;
        assert_eq!(
            Answer::decode(Kind::Error, flags, &bytes).unwrap_err().code(),
            SqlState::PROTOCOL_VIOLATION,
            "{at}"
        );
    }
}

#[test]
fn other_versions_and_other_protocols_are_told_apart() {
    let mut random = StdRng::seed_from_u64(4);
    let mut offer = loop {
        if let hello @ Hello::Offer { .. } = hello(&mut random) {
            break hello.encode();
        }
    };
    offer[12..16].copy_from_slice(&[2, 0, 3, 0]);
    let refused = Hello::decode(&offer, Epoch(1)).unwrap_err();
    assert_eq!(refused, Fault::UnknownVersions { oldest: 2, newest: 3 });
    let error = refused.error();
    assert_eq!(error.code(), SqlState::FEATURE_NOT_SUPPORTED);
    assert_eq!(error.message(), "protocol versions 2 to 3 are not supported");
    // All that a later version has behind its number may be anything.
    assert_eq!(Hello::decode(&offer[..20], Epoch(1)).unwrap_err(), refused);
    offer[4] = b'X';
    assert_eq!(Hello::decode(&offer, Epoch(1)).unwrap_err().code(), SqlState::PROTOCOL_VIOLATION);
}
