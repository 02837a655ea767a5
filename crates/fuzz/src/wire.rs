//! What comes on a connection between a compute process and a memory node: frames and the bodies of all kinds.

use tidepool_wire::frame::HEAD_BYTES;
use tidepool_wire::{
    Allocation, Answer, Done, Epoch, Extent, FRAME_BYTES_MIN, Fault, Flags, Head, Hello, Identity, Kind, Limits, List,
    Offer, Payload, Place, Refusal, Request, RequestId,
};

/// A frame's longest body here.
const BODY_BYTES_MAX: u32 = FRAME_BYTES_MIN;

fn frame(kind: Kind, flags: Flags, prefix: &[u8], payload: &Payload<'_>) -> Vec<u8> {
    let body = [prefix, &payload.to_vec()].concat();
    let head = Head::of(kind, flags, RequestId(1), Epoch(1), &[&body]).unwrap_or_else(|fault| panic!("{fault}"));
    [&head.encode()[..], &body].concat()
}

/// A byte that says whether checksums are put right, then frames one after the other.
pub fn seeds() -> Vec<Vec<u8>> {
    let extents = [Extent { place: Place(4096), bytes: 3 }, Extent { place: Place(1 << 40), bytes: 2 }];
    let places = [Place(1), Place(u64::MAX)];
    let requests = [
        Request::Register(List::new(&[Allocation { bytes: 1 << 20, purpose: 3 }])),
        Request::Deregister(List::new(&places)),
        Request::Read(List::new(&extents)),
        Request::Flush { stage: 1, extents: List::new(&extents), payload: Payload::Whole(b"bytes") },
        Request::Publish { root: 1, number: 2 },
        Request::Append { log: 1, position: 2, payload: b"record" },
        Request::Fragment { credit: 1 << 20, plan: b"plan" },
        Request::Credit { granted: 1 << 21 },
        Request::Cancel,
        Request::Ping(7),
    ];
    let refusal = Refusal { code: *b"53200", message: "out of memory", detail: Some("All of it."), hint: None };
    let answers = [
        Answer::Registered(List::new(&places)),
        Answer::Data { offset: 5, payload: Payload::Whole(b"data") },
        Answer::Durable { position: 9 },
        Answer::Batch { number: 3, payload: b"rows" },
        Answer::Done(Done { cancelled: true, rows: 1, bytes: 2, batches: 3, nanoseconds: 4 }),
        Answer::Error(refusal),
        Answer::Pong(7),
    ];
    let offer = Offer {
        tablespace: Identity([1; 16]),
        epoch: Epoch(1),
        client: Identity([2; 16]),
        lane: 1,
        incarnation: 2,
        limits: Limits::default(),
        bare_data: true,
    };
    let hellos = [
        Hello::Offer { offer, versions: (1, 1), nonce: [3; 32] },
        Hello::Challenge { version: 1, nonce: [4; 32] },
        Hello::Proof([5; 32]),
    ];
    let mut frames = Vec::new();
    for request in &requests {
        let mut prefix = Vec::new();
        let payload = request.encode(&mut prefix).unwrap_or_else(|fault| panic!("{fault}"));
        frames.push(frame(request.kind(), Flags::NONE, &prefix, &payload));
    }
    for answer in &answers {
        let mut prefix = Vec::new();
        let payload = answer.encode(&mut prefix).unwrap_or_else(|fault| panic!("{fault}"));
        let last = Flags::ANSWER.with(Flags::LAST);
        let flags = if answer.kind() == Kind::Batch { Flags::ANSWER } else { last };
        frames.push(frame(answer.kind(), flags, &prefix, &payload));
    }
    for hello in &hellos {
        frames.push(frame(Kind::Hello, Flags::NONE, &hello.encode(), &Payload::Whole(&[])));
    }
    let all = frames.concat();
    frames.push(all);
    frames.iter().flat_map(|frames| [0, 1].map(|seals| [&[seals], &frames[..]].concat())).collect()
}

/// Each frame is refused, or its body is, or the body means what would be written in the same bytes.
pub fn run(input: &[u8]) {
    let Some((seals, mut rest)) = input.split_first() else { return };
    while let Some((head, body)) = rest.split_first_chunk::<HEAD_BYTES>() {
        let Ok(mut head) = Head::decode(head, BODY_BYTES_MAX) else { return };
        let Some((body, after)) = body.split_at_checked(head.len as usize) else { return };
        if seals % 2 == 1 {
            head = Head::of(head.kind, head.flags, head.request, head.epoch, &[body])
                .unwrap_or_else(|fault| panic!("{fault}"));
        }
        if head.check_body(body).is_err() {
            assert!(seals % 2 == 0, "a checksum that was put right is wrong");
            return;
        }
        let mut again = Vec::new();
        let request = Request::decode(head.kind, head.flags, body).map(|request| request.encode(&mut again));
        same(request, &again, body);
        let mut again = Vec::new();
        let answer = Answer::decode(head.kind, head.flags, body).map(|answer| answer.encode(&mut again));
        same(answer, &again, body);
        if let Ok(hello) = Hello::decode(body, head.epoch) {
            assert!(hello.encode() == body, "a greeting is not what it says");
        }
        rest = after;
    }
}

fn same(decoded: Result<Result<Payload<'_>, Fault>, Fault>, prefix: &[u8], body: &[u8]) {
    let Ok(encoded) = decoded else { return };
    let payload = encoded.unwrap_or_else(|fault| panic!("what was read cannot be written: {fault}"));
    assert!([prefix, &payload.to_vec()].concat() == body, "a body is not what it says");
}
