//! The two disciplines as types: words that are changed by compare-and-swap alone, and blocks that are written once.
//!
//! # Life of a block
//!
//! ```text
//! Draft ── fill, seal ──▶ Sealed ── publish (swap of a word) ──▶ Published ── stamp ──▶ Stamped
//!   ▲                        │ the swap finds another word                                 │
//!   └────────────────────────┘                                                             │
//!   └───────── Retired ◀── swap that takes the reference out of its word ◀─────────────────┘
//! ```
//!
//! * A [`Draft`] has no reference: what is not sealed cannot be published.
//! * A [`Sealed`] block was filled, written back and fenced. A swap of a word publishes it.
//! * What is published cannot be written, but for its *stamp*, the first word: once, by the host that published the
//!   block, or by the host that recovers for it.
//! * A block becomes a draft again by [`Retired`]: no word refers to it any more.
//! * All reads are of a word's block ([`Hw::read_block`]): the lines are fetched anew, and the word is loaded again.
//!   Each change of such a word counts, so a word that did not change says that the block was not written meanwhile.
//!   A reader needs no permission for that, and holds up no writer.

//!
//! The compiler refuses what breaks this. A block that is not sealed is not published:
//!
//! ```compile_fail,E0308
//! # use tidepool_pod::{access::Access, memory::{Draft, Hw}, words::{TupleState, TupleWord}};
//! fn publish<A: Access>(access: &A, word: Hw<TupleWord>, from: TupleWord, draft: Draft) {
//!     let _ = word.publish(access, from, |block| from.next(TupleState::Live, Some(block)), draft);
//! }
//! ```
//!
//! And what was sealed is not filled again:
//!
//! ```compile_fail,E0382
//! # use tidepool_pod::{access::Access, memory::Draft};
//! fn fill_twice<A: Access>(access: &A, draft: Draft) {
//!     let _ = draft.seal(access, 0, &[b"a row"]);
//!     let _ = draft.seal(access, 0, &[b"another"]);
//! }
//! ```
//!
//! While this is how it goes:
//!
//! ```
//! # use tidepool_pod::{access::Access, memory::{Blocks, Hw, Outcome, Publication}, words::{TupleState, TupleWord}};
//! fn publish<A: Access>(access: &A, word: Hw<TupleWord>, blocks: &mut Blocks) -> Outcome<bool, A> {
//!     let Some(draft) = blocks.take() else { return Ok(false) };
//!     let from = word.load(access)?;
//!     let sealed = draft.seal(access, 0, &[b"a row"])?;
//!     let to = |block| from.next(TupleState::Live, Some(block));
//!     Ok(matches!(word.publish(access, from, to, sealed)?, Publication::Done(..)))
//! }
//! ```

use crate::access::{Access, Fence, Line, Lines, Note, Part, WordAt};
use crate::words::Tag;
use std::fmt;
use std::marker::PhantomData;
use tidepool_device::LINE_BYTES;
use tidepool_pool::words::{Fault, Word};

/// Why a transition did not end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble<S> {
    Stopped(S),
    /// This word of the coherent area cannot be.
    Damaged {
        at: WordAt,
        fault: Fault,
    },
    /// What stands at this line cannot be.
    Broken {
        line: Line,
    },
    /// A version names a transaction that its slot does not know.
    Unknown {
        tag: Tag,
    },
}

impl<S> From<S> for Trouble<S> {
    fn from(stop: S) -> Trouble<S> {
        Trouble::Stopped(stop)
    }
}

impl<S> fmt::Display for Trouble<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Stopped(_) => f.write_str("stopped"),
            Trouble::Damaged { at, fault } => write!(f, "word {} of the pod is {fault}", at.0),
            Trouble::Unknown { tag } => write!(f, "no slot of the pod knows {tag:?}"),
            Trouble::Broken { line } => write!(f, "what line {} of the pod holds is damaged", line.0),
        }
    }
}

pub type Outcome<T, A> = Result<T, Trouble<<A as Access>::Stop>>;

/// Where a published block stands. Made of a sealed block, or read from a word that refers to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockRef(u64);

impl BlockRef {
    /// Places that a word has room for: 64 TiB.
    pub const BITS: u32 = 40;

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    /// What a word or a block says that was read.
    pub(crate) fn read(bits: u64) -> BlockRef {
        BlockRef(bits & ((1 << BlockRef::BITS) - 1))
    }

    pub fn first(self) -> Line {
        Line(self.0)
    }

    /// Reads a block that stays as it is: the caller's snapshot keeps it from being written again.
    #[track_caller]
    pub fn read_kept<A: Access>(self, access: &A, lines_max: u32) -> Outcome<Vec<u8>, A> {
        let mut bytes = Vec::new();
        if !fetch_framed(access, Lines { first: self.first(), count: lines_max }, &mut bytes)? {
            return Err(Trouble::Broken { line: self.first() });
        }
        Ok(bytes)
    }
}

/// A word that refers to a block, or to none. Each change of it makes another word than it ever was.
pub trait Refers: Word {
    fn block(self) -> Option<BlockRef>;
}

/// A coherent word of one kind: loaded by all hosts, changed by compare-and-swap alone.
pub struct Hw<W> {
    at: WordAt,
    kind: PhantomData<fn() -> W>,
}

impl<W> Clone for Hw<W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Hw<W> {}

impl<W> fmt::Debug for Hw<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hw({})", self.at.0)
    }
}

impl<W: Word> Hw<W> {
    pub(crate) const fn new(at: WordAt) -> Hw<W> {
        Hw { at, kind: PhantomData }
    }

    pub fn at(self) -> WordAt {
        self.at
    }

    fn read<S>(self, bits: u64) -> Result<W, Trouble<S>> {
        W::read(bits).map_err(|fault| Trouble::Damaged { at: self.at, fault })
    }

    #[track_caller]
    pub fn load<A: Access>(self, access: &A) -> Outcome<W, A> {
        self.read(access.load(self.at)?)
    }

    /// Puts `to` where `from` is, or says what is there.
    #[track_caller]
    pub fn swap<A: Access>(self, access: &A, from: W, to: W) -> Outcome<Result<(), W>, A> {
        match access.swap(self.at, from.bits(), to.bits())? {
            Ok(()) => Ok(Ok(())),
            Err(found) => Ok(Err(self.read(found)?)),
        }
    }

    /// Changes a word that no other host changes now.
    #[track_caller]
    pub fn move_on<A: Access>(self, access: &A, from: W, to: W) -> Outcome<(), A> {
        access
            .advance(self.at, from.bits(), to.bits())?
            .map_err(|bits| Trouble::Damaged { at: self.at, fault: Fault { bits } })
    }

    /// Puts the first value where a new area has zeroes.
    #[track_caller]
    pub(crate) fn initialize<A: Access>(self, access: &A, first: W) -> Outcome<(), A> {
        access
            .advance(self.at, 0, first.bits())?
            .map_err(|bits| Trouble::Damaged { at: self.at, fault: Fault { bits } })
    }

    /// Begins to write the word back, with all of its line. The next seal waits for it.
    #[track_caller]
    pub fn begin_durable<A: Access>(self, access: &A) -> Outcome<(), A> {
        Ok(access.write_back_word(self.at)?)
    }

    /// Has the word outlive this host. Until then it does so only if another host has loaded it.
    #[track_caller]
    pub fn make_durable<A: Access>(self, access: &A) -> Outcome<(), A> {
        Hw::make_all_durable([self], access)
    }

    /// The same of several words, for one wait.
    #[track_caller]
    pub fn make_all_durable<A: Access>(words: impl IntoIterator<Item = Hw<W>>, access: &A) -> Outcome<(), A> {
        for word in words {
            access.write_back_word(word.at)?;
        }
        Ok(access.fence(Fence::WrittenBack)?)
    }
}

/// What became of publishing.
#[derive(Debug)]
pub enum Publication<W> {
    /// And the word that is there now.
    Done(Published, W),
    /// Another word is there. The block is as it was before it was filled.
    Changed(W, Draft),
}

impl<W: Refers> Hw<W> {
    /// Puts what `to` makes of the block's reference where `from` is.
    #[track_caller]
    pub fn publish<A: Access>(
        self,
        access: &A,
        from: W,
        to: impl FnOnce(BlockRef) -> W,
        sealed: Sealed,
    ) -> Outcome<Publication<W>, A> {
        let block = BlockRef(sealed.lines.first.0);
        let to = to(block);
        debug_assert!(to.block() == Some(block) && to != from);
        access.note(Note::Publishes { at: self.at, bits: to.bits(), bytes: &sealed.bytes });
        Ok(match self.swap(access, from, to)? {
            Ok(()) => Publication::Done(Published { lines: sealed.lines }, to),
            Err(found) => Publication::Changed(found, Draft { lines: sealed.lines, bytes: sealed.bytes }),
        })
    }

    /// The same of a word that no other host changes now.
    #[track_caller]
    pub fn publish_alone<A: Access>(
        self,
        access: &A,
        from: W,
        to: impl FnOnce(BlockRef) -> W,
        sealed: Sealed,
    ) -> Outcome<Published, A> {
        let to = to(BlockRef(sealed.lines.first.0));
        access.note(Note::Publishes { at: self.at, bits: to.bits(), bytes: &sealed.bytes });
        self.move_on(access, from, to)?;
        Ok(Published { lines: sealed.lines })
    }

    /// Reads the block that the word referred to when it was loaded as `word`. `None` where the word is another by
    /// now: what was read may be of no use.
    #[track_caller]
    pub fn read_block<A: Access>(self, access: &A, word: W, lines_max: u32) -> Outcome<Option<Vec<u8>>, A> {
        let Some(block) = word.block() else { return Ok(None) };
        let mut bytes = Vec::new();
        let is_whole = fetch_framed(access, Lines { first: block.first(), count: lines_max }, &mut bytes)?;
        // The lines were loaded before the word is loaded again.
        access.order()?;
        if self.load(access)? != word {
            return Ok(None);
        }
        if !is_whole {
            return Err(Trouble::Broken { line: block.first() });
        }
        access.note(Note::Accepts { at: self.at, bits: word.bits(), bytes: &bytes });
        Ok(Some(bytes))
    }

    /// Takes the reference out of a word that no other host changes now: `to` has none, or another.
    #[track_caller]
    pub fn withdraw<A: Access>(self, access: &A, from: W, to: W) -> Outcome<Option<Retired>, A> {
        debug_assert!(from.block() != to.block());
        self.move_on(access, from, to)?;
        Ok(from.block().map(Retired))
    }
}

/// Before the bytes of a block or message: a word of its kind's own, and its length.
pub const FRAME_BYTES: usize = 16;

/// Lines of so many bytes with their frame.
pub const fn framed_lines(bytes: usize) -> u32 {
    (FRAME_BYTES + bytes).div_ceil(LINE_BYTES) as u32
}

fn word_of(bytes: &[u8], index: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
    u64::from_le_bytes(eight)
}

/// The first word of a block or message.
pub(crate) fn first_word(framed: &[u8]) -> u64 {
    word_of(framed, 0)
}

/// Fetches lines anew that begin with a frame, as many as that says. False where there cannot be so many.
#[track_caller]
pub(crate) fn fetch_framed<A: Access>(access: &A, lines: Lines, into: &mut Vec<u8>) -> Outcome<bool, A> {
    into.clear();
    // The word that says that the lines are there was loaded before they are dropped.
    access.fence(Fence::BeforeDiscard)?;
    fetch_part(access, Lines { count: 1, ..lines }, Part::Head, into)?;
    let Some(bytes) = usize::try_from(word_of(into, 1)).ok().filter(|bytes| *bytes <= lines.bytes() - FRAME_BYTES)
    else {
        return Ok(false);
    };
    let used = framed_lines(bytes);
    if used > 1 {
        fetch_part(access, Lines { count: used, ..lines }.from(1), Part::Rest, into)?;
    }
    into.truncate(FRAME_BYTES + bytes);
    Ok(true)
}

#[track_caller]
fn fetch_part<A: Access>(access: &A, lines: Lines, part: Part, into: &mut Vec<u8>) -> Outcome<(), A> {
    access.discard(lines, part)?;
    access.fence(Fence::Discarded(part))?;
    for line in lines.each() {
        let mut bytes = [0; LINE_BYTES];
        access.fetch(line, &mut bytes)?;
        into.extend_from_slice(&bytes);
    }
    Ok(())
}

/// Lines of this host's own that no word refers to.
#[derive(Debug)]
pub struct Draft {
    lines: Lines,
    /// What they are filled with.
    bytes: Vec<u8>,
}

impl Draft {
    /// The caller knows that the lines are this host's own and that no word refers to them.
    pub(crate) fn of(lines: Lines) -> Draft {
        Draft { lines, bytes: Vec::new() }
    }

    /// Bytes that it has room for.
    pub fn room(&self) -> usize {
        self.lines.bytes() - FRAME_BYTES
    }

    /// Fills it and makes all of it ready for other hosts to read.
    ///
    /// # Panics
    /// Where it has no room for so many bytes.
    #[track_caller]
    pub fn seal<A: Access>(mut self, access: &A, first_word: u64, parts: &[&[u8]]) -> Outcome<Sealed, A> {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        assert!(length <= self.room(), "{length} bytes for a block that has room for {}", self.room());
        self.bytes.clear();
        self.bytes.extend_from_slice(&first_word.to_le_bytes());
        self.bytes.extend_from_slice(&(length as u64).to_le_bytes());
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        let used = Lines { count: framed_lines(length), ..self.lines };
        for (line, bytes) in used.each().zip(self.bytes.chunks(LINE_BYTES)) {
            let mut whole = [0; LINE_BYTES];
            whole[..bytes.len()].copy_from_slice(bytes);
            access.fill(line, &whole)?;
        }
        access.write_back(used)?;
        access.fence(Fence::WrittenBack)?;
        access.note(Note::Sealed(used));
        Ok(Sealed { lines: self.lines, bytes: self.bytes })
    }
}

/// A block that is in memory as it was filled, and that no word refers to.
#[derive(Debug)]
pub struct Sealed {
    lines: Lines,
    bytes: Vec<u8>,
}

/// A block that this host has published and not stamped.
#[derive(Debug)]
pub struct Published {
    lines: Lines,
}

impl Published {
    /// Stamps all of these blocks. When this returns, every host that fetches one anew finds the stamp.
    #[track_caller]
    pub fn stamp_all<A: Access>(blocks: impl IntoIterator<Item = Published>, access: &A, stamp: u64) -> Outcome<(), A> {
        let mut firsts = Vec::new();
        for block in blocks {
            put_stamp(access, block.lines.first, stamp)?;
            firsts.push(block.lines.first);
        }
        access.fence(Fence::WrittenBack)?;
        firsts.into_iter().for_each(|first| access.note(Note::Sealed(Lines { first, count: 1 })));
        Ok(())
    }
}

#[track_caller]
fn put_stamp<A: Access>(access: &A, line: Line, stamp: u64) -> Outcome<(), A> {
    access.put(line, stamp)?;
    access.write_back(Lines { first: line, count: 1 })?;
    Ok(())
}

/// Begins to stamp a block of a host that is dead and whose lines are the caller's now. A fence waits for it.
///
/// The caller has read the block by its word since the death was confirmed. So this host has no older copy of the
/// line, which it would write back beside the stamp.
#[track_caller]
pub fn stamp_for_dead<A: Access>(access: &A, block: BlockRef, stamp: u64) -> Outcome<(), A> {
    put_stamp(access, block.first(), stamp)
}

/// A block that no word refers to any more. Its owner may write it again.
#[derive(Debug)]
pub struct Retired(BlockRef);

impl Retired {
    /// The caller knows that no word refers to the block and that none reads it but to find that out.
    pub(crate) fn of(block: BlockRef) -> Retired {
        Retired(block)
    }

    pub fn block(&self) -> BlockRef {
        self.0
    }

    /// As a word of a message to the block's host, which reads it by [`Retired::of_word`].
    pub fn word(self) -> u64 {
        self.0.bits()
    }

    /// What a host was told that had retired the block and sent it home. Nobody else tells that.
    pub fn of_word(word: u64) -> Retired {
        Retired(BlockRef::read(word))
    }
}

/// The blocks of one host, all of one size, and which of them are free. Near memory alone: a host that dies takes it
/// along.
#[derive(Debug)]
pub struct Blocks {
    lines: Lines,
    block_lines: u32,
    free: Vec<Draft>,
}

impl Blocks {
    /// The caller owns the lines, and no word refers to any of them.
    pub fn new(lines: Lines, block_lines: u32) -> Blocks {
        assert!(block_lines > 0, "a block has lines");
        let firsts = (0..lines.count / block_lines).map(|index| lines.first.0 + u64::from(index * block_lines));
        let free = firsts.rev().map(|first| Draft::of(Lines::new(first, block_lines))).collect();
        Blocks { lines, block_lines, free }
    }

    pub fn take(&mut self) -> Option<Draft> {
        self.free.pop()
    }

    pub fn put_back(&mut self, draft: Draft) {
        self.free.push(draft);
    }

    /// Takes a block in that no word refers to any more. Gives it back where it is another host's.
    pub fn retire(&mut self, retired: Retired) -> Result<(), Retired> {
        let first = retired.0.first().0;
        if first < self.lines.first.0 || first >= self.lines.first.0 + u64::from(self.lines.count) {
            return Err(retired);
        }
        self.free.push(Draft::of(Lines::new(first, self.block_lines)));
        Ok(())
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }
}
