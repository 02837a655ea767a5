//! The transitions on threads, over the words as a mapped pool has them, in a memory that is weaker than x86's:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p tidepool-pool --lib interleavings`.

use crate::layout::{HostNumber, Layout};
use crate::memory::{At, Books, Field, Memory};
use crate::sync::{self, AtomicU64};
use crate::words::{
    Contents, Database, End, Extent, First, Generation, Host, HostState, Ident, Incarnation, Kind, Number, Owner,
    Reign, Role, Root, Seal, Slot, Term, TermState, Word,
};
use loom::sync::Arc;
use loom::thread;
use std::convert::Infallible;

const DATA: Database = Database(0);
/// Where a byte of an extent stands in.
const CONTENT: At = At(1 << 31);

struct Words(Vec<(At, AtomicU64)>);

impl Words {
    fn word(&self, at: At) -> &AtomicU64 {
        &self.0.iter().find(|(there, _)| *there == at).unwrap_or_else(|| panic!("no word stands at {at:?}")).1
    }
}

impl Memory for Arc<Words> {
    type Stop = Infallible;

    fn load(&self, at: At) -> Result<u64, Infallible> {
        Ok(sync::load(self.word(at)))
    }

    fn store(&self, at: At, bits: u64) -> Result<(), Infallible> {
        sync::store(self.word(at), bits);
        Ok(())
    }

    fn swap(&self, at: At, from: u64, to: u64) -> Result<Result<(), u64>, Infallible> {
        Ok(sync::swap(self.word(at), from, to))
    }

    fn fence(&self) -> Result<(), Infallible> {
        sync::full_fence();
        Ok(())
    }

    fn zero(&self, _: Extent) -> Result<(), Infallible> {
        self.word(CONTENT).store(0, sync::Ordering::Relaxed);
        Ok(())
    }
}

#[derive(Default)]
struct Ground(Vec<(At, u64)>);

impl Ground {
    fn word<W: Word>(mut self, field: Field<W>, word: W) -> Ground {
        self.0.push((field.at, word.bits()));
        self
    }

    fn content(mut self, value: u64) -> Ground {
        self.0.push((CONTENT, value));
        self
    }

    fn books(&self, layout: Layout) -> Books<Arc<Words>> {
        let words = self.0.iter().map(|(at, bits)| (*at, AtomicU64::new(*bits))).collect();
        Books { memory: Arc::new(Words(words)), layout }
    }
}

fn again(books: &Books<Arc<Words>>) -> Books<Arc<Words>> {
    Books { memory: Arc::clone(&books.memory), layout: books.layout }
}

fn host(slot: u8) -> Host {
    Host { slot: Slot(slot), incarnation: Incarnation(1) }
}

fn attached() -> Ident {
    Ident { incarnation: Incarnation(1), state: HostState::Attached, role: Role::Standby, database: DATA }
}

/// Nothing stops an access, and no word is damaged.
fn sure<T, E>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|_| panic!("a word is damaged"))
}

fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

/// Two lease, write, publish or give back: what is read is what its owner wrote.
#[test]
fn an_extent_goes_from_hand_to_hand_with_what_was_written() {
    model(|| {
        let layout = Layout { slots: 2, databases: 1, extents: 1 };
        let books = Ground::default()
            .word(layout.owner(Extent(0)), Owner::Free { holds: Contents::Of(DATA) })
            .word(layout.sum(Extent(0)), Number(0))
            .content(0)
            .books(layout);
        let other = again(&books);
        let use_it = |books: &Books<Arc<Words>>, slot: u8| {
            if sure(books.lease(host(slot), DATA, Extent(0), Kind::Main)) {
                let byte = books.memory.word(CONTENT);
                byte.store(u64::from(slot) + 1, sync::Ordering::Relaxed);
                assert_eq!(byte.load(sync::Ordering::Relaxed), u64::from(slot) + 1, "two own one extent");
                if slot == 0 {
                    assert!(sure(books.publish(host(0), DATA, Extent(0), Generation(1), Number(1))));
                } else {
                    assert!(sure(books.give_back(host(1), Extent(0))));
                    assert!(sure(books.free(host(1), Extent(0), Contents::Of(DATA))));
                }
            }
        };
        let thread = thread::spawn(move || use_it(&other, 1));
        use_it(&books, 0);
        if let Owner::Shared { .. } = sure(books.load(layout.owner(Extent(0)))) {
            assert_eq!(books.memory.word(CONTENT).load(sync::Ordering::Relaxed), 1, "published before it was written");
        }
        thread.join().unwrap();
    });
}

fn reign_ground(layout: Layout) -> Ground {
    Ground::default()
        .word(layout.term(DATA), Reign::of(Term(1), TermState::Running, host(0)))
        .word(layout.first(DATA, Term(1)), First::new(Term(1), 1))
        .word(layout.seal(DATA, Term(1)), Seal::new(Term(1), End::Open))
        .content(0)
}

/// A primary acknowledges a block, or its successor seals the log before it; never both.
#[test]
fn an_acknowledgement_and_a_take_over() {
    model(|| {
        let layout = Layout { slots: 2, databases: 1, extents: 0 };
        let books = reign_ground(layout).books(layout);
        let other = again(&books);
        let successor = thread::spawn(move || {
            let seen = sure(other.reign(DATA));
            assert!(sure(other.take_over(DATA, host(1), seen)).is_some());
            let whole = sure(other.memory.load(CONTENT));
            sure(other.seal(DATA, Term(1), End::At { number_low: 1, offset: whole as u32 + 1 }))
        });
        sure(books.memory.store(CONTENT, 1));
        let is_acknowledged = sure(books.is_settled(DATA, Term(1)));
        let end = successor.join().unwrap();
        assert!(!is_acknowledged || end == Some(End::At { number_low: 1, offset: 2 }), "{end:?}");
    });
}

/// A follower applies what it read only if the seal contains it.
#[test]
fn a_follower_and_a_take_over() {
    model(|| {
        let layout = Layout { slots: 2, databases: 1, extents: 0 };
        let books = reign_ground(layout).books(layout);
        let (primary, other) = (again(&books), again(&books));
        let writer = thread::spawn(move || sure(primary.memory.store(CONTENT, 1)));
        let successor = thread::spawn(move || {
            let seen = sure(other.reign(DATA));
            sure(other.take_over(DATA, host(1), seen));
            sure(other.memory.load(CONTENT))
        });
        let is_read = sure(books.memory.load(CONTENT)) == 1;
        let is_applied = is_read && sure(books.is_settled(DATA, Term(1)));
        writer.join().unwrap();
        let sealed = successor.join().unwrap();
        assert!(!is_applied || sealed == 1, "a follower shows what the seal leaves out");
    });
}

/// Of two that seal, one decides.
#[test]
fn a_term_is_sealed_once() {
    model(|| {
        let layout = Layout { slots: 2, databases: 1, extents: 0 };
        let books = reign_ground(layout).books(layout);
        let other = again(&books);
        let seal =
            |books: &Books<Arc<Words>>, offset| sure(books.seal(DATA, Term(1), End::At { number_low: 1, offset }));
        let thread = thread::spawn(move || seal(&other, 3));
        let mine = seal(&books, 2);
        assert_eq!(thread.join().unwrap(), mine);
        assert_eq!(sure(books.end_of(DATA, Term(1))), mine);
    });
}

/// A host that joins holds the root that it reads, or the one after it.
#[test]
fn a_hold_and_a_return() {
    model(|| {
        let layout = Layout { slots: 2, databases: 1, extents: 1 };
        let shared = Owner::Shared { database: DATA, kind: Kind::Main, generation: Generation(1) };
        let root = Root { place: Extent(0), generation: Generation(1) };
        let mut ground =
            Ground::default().word(layout.owner(Extent(0)), shared).word(layout.root(DATA), root).content(7);
        for slot in layout.all_slots() {
            ground = ground
                .word(layout.ident(slot), attached())
                .word(layout.host_number(slot, HostNumber::GenHeld), Number(100))
                .word(layout.host_number(slot, HostNumber::LogNeeded), Number(100));
        }
        let books = ground.books(layout);
        let other = again(&books);
        let primary = thread::spawn(move || {
            let root = sure(other.publish_root(DATA, root, Extent(1))).expect("no other host publishes");
            if sure(other.return_shared(host(0), DATA, Extent(0), shared, root.generation)) {
                sure(other.memory.zero(Extent(0)));
            }
        });
        if sure(books.hold_root(host(1), DATA)) == Generation(1) {
            assert_eq!(sure(books.memory.load(CONTENT)), 7, "an extent was freed under a reader");
        }
        primary.join().unwrap();
    });
}

/// Bytes come into memory in their order, and are read so: of two blocks, each with a word of its own, the later is not seen without
/// the one before.
#[test]
fn bytes_are_seen_in_their_order() {
    model(|| {
        let words: Arc<[AtomicU64; 2]> = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let other = Arc::clone(&words);
        let writer = thread::spawn(move || sync::store_bytes(&other[..], &[7; 16]));
        let mut bytes = [[0; 8]; 2];
        sync::load_bytes(&words[1..], &mut bytes[1]);
        sync::load_bytes(&words[..1], &mut bytes[0]);
        assert!(bytes[1] == [0; 8] || bytes[0] == [7; 8], "a block without the one before it");
        writer.join().unwrap();
    });
}
