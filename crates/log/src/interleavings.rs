//! The log of a pool on threads, in a memory that is weaker than x86's: its writer, a follower and a successor that ends the term,
//! each by the code that a mapped pool runs: `RUSTFLAGS="--cfg loom" cargo test --release -p tidepool-log --lib interleavings`.
//!
//! One segment of term 1 has a block. The writer adds another one, which comes into memory in two pieces.

use crate::device::{LogDevice, LogSegment};
use crate::format::{
    BLOCK_ALIGNMENT, BLOCK_HEADER_BYTES, BlockHeader, DatabaseIdentity, FrameHeader, LogPosition, SEGMENT_HEADER_BYTES,
    SegmentHeader,
};
use crate::pool_device::{PoolDevice, PoolHost, PoolSource};
use crate::seal::{Sealed, seal_before};
use crate::tail::{Next, Tail};
use loom::sync::Arc as Shared;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;
use std::convert::Infallible;
use std::sync::Arc;
use tidepool_base::{CommitTs, Error, Result};
use tidepool_pool::layout::{Layout, SEGMENTS, TERMS};
use tidepool_pool::memory::{At, Books, Bytes, Memory, Trouble};
use tidepool_pool::words::End;
use tidepool_pool::words::{
    Database, Extent, First, Host, Incarnation, Reign, Seal, Segment, Slot, Term, TermState, Word,
};

const DATA: Database = Database(0);
const TERM: Term = Term(1);
/// Whose the line of the next term was, in a pool that is new.
const BEFORE: Term = Term(2u32.wrapping_sub(TERMS as u32));
const IDENTITY: DatabaseIdentity = DatabaseIdentity([3; 16]);
const LAYOUT: Layout = Layout { slots: 3, databases: 1, extents: 1 };
const SEGMENT_BYTES: usize = SEGMENT_HEADER_BYTES + 4 * BLOCK_BYTES;
const BLOCK_BYTES: usize = 2 * BLOCK_ALIGNMENT;
const FIRST_BLOCK: usize = SEGMENT_HEADER_BYTES;
const SECOND_BLOCK: usize = FIRST_BLOCK + BLOCK_BYTES;
/// The floors of the blocks, each with one record.
const FLOORS: [CommitTs; 2] = [CommitTs(5), CommitTs(10)];

/// What all share: the words that change, and the pieces of the second block that are there.
#[derive(Debug)]
struct Pool {
    words: Vec<(At, AtomicU64)>,
    pieces: [AtomicU64; 2],
    /// The segment with both blocks.
    bytes: Vec<u8>,
}

/// The pool as one host sees it.
#[derive(Clone, Debug)]
struct Seen(Shared<Pool>);

fn host(slot: u8) -> Host {
    Host { slot: Slot(slot), incarnation: Incarnation(1) }
}

/// The segment with both blocks, and the second block.
fn segment() -> (Vec<u8>, Vec<u8>) {
    let mut bytes = vec![0; SEGMENT_BYTES];
    let header = SegmentHeader {
        segment_bytes: SEGMENT_BYTES as u64,
        identity: IDENTITY,
        number: 1,
        chain: 0,
        previous_end: LogPosition::default(),
        term: TERM.0.into(),
        previous_term: 0,
        begins_after: CommitTs(0),
    };
    header.write(&mut bytes);
    let mut chain = 0;
    for (offset, ts) in [FIRST_BLOCK, SECOND_BLOCK].into_iter().zip(FLOORS) {
        let frame = FrameHeader { payload_bytes: 40, kind: 7, flags: 0, ts };
        let frames_bytes = frame.frame_words() * 8;
        let block = &mut bytes[offset..offset + BLOCK_HEADER_BYTES + frames_bytes];
        for (index, word) in frame.words().into_iter().enumerate() {
            crate::format::put(block, BLOCK_HEADER_BYTES + index * 8, word);
        }
        let position = LogPosition::new(1, offset);
        let header = BlockHeader { frames_bytes, position, chain, life: 1, durable: position, ts_max: ts, floor: ts };
        chain = header.seal(block, IDENTITY);
    }
    let second = bytes[SECOND_BLOCK..SECOND_BLOCK + BLOCK_BYTES].to_vec();
    (bytes, second)
}

impl Pool {
    fn new() -> Seen {
        let word = |at: At, bits: u64| (at, AtomicU64::new(bits));
        let words = vec![
            word(LAYOUT.term(DATA).at, Reign::of(TERM, TermState::Running, host(0)).bits()),
            word(LAYOUT.seal(DATA, TERM).at, Seal::new(TERM, End::Open).bits()),
        ];
        Seen(Shared::new(Pool { words, pieces: [AtomicU64::new(0), AtomicU64::new(0)], bytes: segment().0 }))
    }

    fn word(&self, at: At) -> Option<&AtomicU64> {
        self.words.iter().find(|(there, _)| *there == at).map(|(_, word)| word)
    }

    /// Of words that no host changes here: as in a pool that is new, but for where the term's segment is.
    fn constant(at: At) -> u64 {
        let table = LAYOUT.segment(DATA, 0).at.0;
        match at {
            at if at == LAYOUT.first(DATA, TERM).at => First::new(TERM, 1).bits(),
            at if at == LAYOUT.segment(DATA, 1).at => Segment { term: TERM, extent: Extent(0) }.bits(),
            At(at) if (table..table + 8 * SEGMENTS as u32).contains(&at) => Segment::NONE.bits(),
            at if at == LAYOUT.first(DATA, Term(2)).at => First::new(BEFORE, 0).bits(),
            at if at == LAYOUT.seal(DATA, Term(2)).at => Seal::new(BEFORE, End::Empty).bits(),
            at => unreachable!("nobody looks at {at:?}"),
        }
    }
}

/// As a mapped pool has them.
impl Memory for Seen {
    type Stop = Infallible;

    fn load(&self, at: At) -> std::result::Result<u64, Infallible> {
        Ok(self.0.word(at).map_or_else(|| Pool::constant(at), |word| word.load(Ordering::Acquire)))
    }

    fn store(&self, at: At, _: u64) -> std::result::Result<(), Infallible> {
        unreachable!("a word is stored at {at:?}")
    }

    fn swap(&self, at: At, from: u64, to: u64) -> std::result::Result<std::result::Result<(), u64>, Infallible> {
        let word = self.0.word(at).unwrap_or_else(|| panic!("a word is swapped at {at:?}"));
        let swapped = word.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Ok(swapped.map(drop))
    }

    fn fence(&self) -> std::result::Result<(), Infallible> {
        fence(Ordering::SeqCst);
        Ok(())
    }

    fn zero(&self, _: Extent) -> std::result::Result<(), Infallible> {
        unreachable!("an extent is zeroed")
    }
}

impl Bytes for Seen {
    fn extent_bytes(&self) -> usize {
        SEGMENT_BYTES
    }

    fn read_bytes(&self, _: Extent, offset: usize, bytes: &mut [u8]) -> bool {
        bytes.copy_from_slice(&self.0.bytes[offset..offset + bytes.len()]);
        for (index, piece) in self.0.pieces.iter().enumerate() {
            let start = SECOND_BLOCK + index * BLOCK_ALIGNMENT;
            let (from, to) = (start.max(offset), (start + BLOCK_ALIGNMENT).min(offset + bytes.len()));
            if from < to && piece.load(Ordering::Relaxed) == 0 {
                bytes[from - offset..to - offset].fill(0);
            }
        }
        fence(Ordering::Acquire);
        true
    }

    fn write_bytes(&self, _: Extent, offset: usize, bytes: &[u8]) -> bool {
        assert_eq!(bytes, &self.0.bytes[offset..offset + bytes.len()]);
        self.0.pieces.iter().for_each(|piece| piece.store(1, Ordering::Release));
        true
    }

    fn persist_bytes(&self, _: Extent, _: usize, _: usize) -> bool {
        true
    }

    fn persist_word(&self, _: At) {}
}

#[derive(Debug)]
struct Member {
    books: Books<Seen>,
    host: Host,
}

impl PoolHost for Member {
    type Memory = Seen;

    fn books(&self) -> &Books<Seen> {
        &self.books
    }

    fn told<T>(&self, outcome: std::result::Result<T, Trouble<Infallible>>) -> Result<T> {
        outcome.map_err(|trouble| Error::internal(format!("{trouble:?}")))
    }

    fn host(&self) -> Host {
        self.host
    }

    fn database(&self) -> Database {
        DATA
    }

    fn pool_name(&self) -> String {
        "a pool".to_owned()
    }

    fn lease_log(&self) -> Result<Extent> {
        Err(Error::internal("there is one segment"))
    }

    fn missing(&self, _: Extent) -> Error {
        Error::internal("an extent is away")
    }
}

fn member(seen: &Seen, slot: u8) -> Arc<Member> {
    Arc::new(Member { books: Books { memory: seen.clone(), layout: LAYOUT }, host: host(slot) })
}

fn tail(member: &Arc<Member>) -> Tail<PoolSource<Member>> {
    Tail::open(PoolSource::new(Arc::clone(member)), IDENTITY, Some((TERM.0.into(), 1)))
}

/// Writes the second block. True: it may be acknowledged.
fn write(seen: &Seen) -> bool {
    let member = member(seen, 0);
    let device = PoolDevice::new(member, Reign::of(TERM, TermState::Running, host(0)), 1);
    let segment: Arc<dyn LogSegment> = device.open(1).unwrap();
    segment.write(SECOND_BLOCK, &self::segment().1).unwrap();
    segment.sync().is_ok()
}

/// Takes the term, and says where the one before ended.
fn succeed(seen: &Seen, slot: u8) -> Sealed {
    let member = member(seen, slot);
    let reign = member.told(member.books.reign(DATA)).unwrap();
    let reign = member.told(member.books.take_over(DATA, member.host, reign)).unwrap().unwrap();
    seal_before(&tail(&member), reign).unwrap()
}

/// The floor up to which a follower has been given records, after so many looks.
fn follow(tail: &mut Tail<PoolSource<Member>>, looks: usize) -> CommitTs {
    for _ in 0..looks {
        match tail.read().unwrap() {
            Next::Batch(batch) => {
                let given: Vec<CommitTs> = batch.records.iter().map(|record| record.ts).collect();
                assert!(FLOORS.ends_with(&given) || FLOORS.starts_with(&given), "{given:?}");
                assert_eq!(given.last(), Some(&batch.floor));
            }
            Next::Nothing | Next::AtSeal => {}
        }
    }
    tail.floor()
}

fn has_second(sealed: Sealed) -> bool {
    let end = |start: usize| LogPosition::new(1, start + BLOCK_BYTES);
    assert!(sealed.term == 1 && (sealed.end == end(FIRST_BLOCK) || sealed.end == end(SECOND_BLOCK)), "{sealed:?}");
    sealed.end == end(SECOND_BLOCK)
}

fn model(bound: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(bound);
    builder.check(run);
}

/// A block that is acknowledged is before the seal.
#[test]
fn what_is_acknowledged_is_before_the_seal() {
    model(3, || {
        let seen = Pool::new();
        let other = seen.clone();
        let successor = thread::spawn(move || succeed(&other, 1));
        let is_acknowledged = write(&seen);
        assert!(has_second(successor.join().unwrap()) || !is_acknowledged, "an acknowledged block is lost");
    });
}

/// A follower is given what is before the seal, and all of it, whenever it looks.
#[test]
fn what_a_follower_is_given_is_before_the_seal() {
    model(2, || {
        let seen = Pool::new();
        let (primary, other) = (seen.clone(), seen.clone());
        let writer = thread::spawn(move || write(&primary));
        let successor = thread::spawn(move || succeed(&other, 1));
        let follower = member(&seen, 2);
        let mut tail = tail(&follower);
        let given = follow(&mut tail, 2);
        writer.join().unwrap();
        let is_sealed_behind = has_second(successor.join().unwrap());
        assert!(is_sealed_behind || given < FLOORS[1], "a follower shows what the seal leaves out");
        // The term is over: what is left comes now, and it ends where the seal says.
        let all = follow(&mut tail, 2);
        assert_eq!(all, FLOORS[usize::from(is_sealed_behind)]);
    });
}

/// Once a follower finds the seal it finds all before it, though it looked there in vain a moment ago.
#[test]
fn what_is_before_the_seal_is_seen_by_whoever_finds_the_seal() {
    model(3, || {
        let seen = Pool::new();
        let other = seen.clone();
        let successor = thread::spawn(move || {
            write(&other);
            assert!(has_second(succeed(&other, 1)));
        });
        let follower = member(&seen, 2);
        let mut tail = tail(&follower);
        // XX001, if the seal were found and the block were not.
        follow(&mut tail, 3);
        successor.join().unwrap();
        assert_eq!(follow(&mut tail, 2), FLOORS[1]);
    });
}
