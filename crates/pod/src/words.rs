//! The words of the coherent area, beside numbers, which are the pool's.
//!
//! From the most significant bit on:
//!
//! | word | fields, in bits |
//! | --- | --- |
//! | of a tuple | first line of its block 40, all ones for none; count of its changes 21; state 3 |
//! | standing of a slot | state 2, timestamp 62 |
//! | tag | 1, host 4, worker 11, sequence 48 |
//!
//! A tag has the form of `txn`'s, whose slots are numbered across the hosts of a pod. It stands in the first word of
//! a block until the timestamp takes its place.

use crate::layout::HostId;
use crate::memory::{BlockRef, Refers};
use std::fmt;
use tidepool_base::CommitTs;
use tidepool_pool::words::{Fault, Word};

pub const HOSTS_MAX: usize = 16;
pub const WORKERS_MAX: usize = 2048;

const WORKER_SHIFT: u32 = 48;
const HOST_SHIFT: u32 = 59;
const TAG_BIT: u64 = 1 << 63;
const SEQUENCE_MASK: u64 = (1 << WORKER_SHIFT) - 1;
const TS_MASK: u64 = (1 << 62) - 1;

/// A number all of whose values are sound: words that hosts change by other accesses than compare-and-swap, too, and those
/// whose first value is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Plain(pub u64);

impl Word for Plain {
    fn bits(self) -> u64 {
        self.0
    }

    fn read(bits: u64) -> Result<Plain, Fault> {
        Ok(Plain(bits))
    }
}

/// The sequence number of a slot, without what a host marks beside it for itself.
pub fn sequence_of(word: u64) -> u64 {
    word & SEQUENCE_MASK
}

/// A transaction that writes: a worker of a host, and which of its transactions.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag(u64);

impl Tag {
    pub fn new(host: HostId, worker: u16, sequence: u64) -> Tag {
        debug_assert!(usize::from(host.0) < HOSTS_MAX && usize::from(worker) < WORKERS_MAX);
        Tag(TAG_BIT | u64::from(host.0) << HOST_SHIFT | u64::from(worker) << WORKER_SHIFT | sequence & SEQUENCE_MASK)
    }

    pub fn word(self) -> u64 {
        self.0
    }

    /// The transaction that a version's first word names, unless it is a timestamp.
    pub fn of_word(word: u64) -> Option<Tag> {
        (word & TAG_BIT != 0).then_some(Tag(word))
    }

    pub fn host(self) -> HostId {
        HostId((self.0 >> HOST_SHIFT & 0xf) as u8)
    }

    pub fn worker(self) -> u16 {
        (self.0 >> WORKER_SHIFT) as u16 & (WORKERS_MAX as u16 - 1)
    }

    pub fn sequence(self) -> u64 {
        self.0 & SEQUENCE_MASK
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tag({}.{}.{})", self.host().0, self.worker(), self.sequence())
    }
}

/// The first word of a version. Exhaustive and mutually exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// The version is there since then.
    At(CommitTs),
    /// This transaction wrote it.
    By(Tag),
}

impl Begin {
    pub fn of_word(word: u64) -> Begin {
        if word & TAG_BIT == 0 { Begin::At(CommitTs(word)) } else { Begin::By(Tag(word)) }
    }

    pub fn word(self) -> u64 {
        match self {
            Begin::At(ts) => ts.0,
            Begin::By(tag) => tag.word(),
        }
    }
}

/// What the transaction of a slot does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is under way, or there is none.
    Running,
    /// It will have a timestamp after this one, if any.
    Committing(CommitTs),
    Committed(CommitTs),
    /// It takes its versions back, or the host that recovers for it does.
    Aborted,
}

impl Word for Standing {
    fn bits(self) -> u64 {
        match self {
            Standing::Running => 0,
            Standing::Committing(after) => 1 << 62 | after.0 & TS_MASK,
            Standing::Committed(ts) => 2 << 62 | ts.0 & TS_MASK,
            Standing::Aborted => 3 << 62,
        }
    }

    fn read(bits: u64) -> Result<Standing, Fault> {
        match (bits >> 62, bits & TS_MASK) {
            (0, 0) => Ok(Standing::Running),
            (1, after) => Ok(Standing::Committing(CommitTs(after))),
            (2, ts) => Ok(Standing::Committed(CommitTs(ts))),
            (3, 0) => Ok(Standing::Aborted),
            _ => Err(Fault { bits }),
        }
    }
}

/// What a tuple is. Exhaustive and mutually exclusive.
///
/// `Free → Moving → Live → Frozen → Dead → Moving`, by the home alone; `Live → Live` by every host that writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TupleState {
    /// Was never used.
    Free = 0,
    /// The home is about to put a row in. No other host reads it.
    Moving = 1,
    /// All hosts read and write it. A tag in its block's first word is its lock.
    Live = 2,
    /// The home is about to take the row out. All hosts may read it, none may write.
    Frozen = 3,
    /// The row is at its home.
    Dead = 4,
}

impl TupleState {
    fn has_block(self) -> bool {
        matches!(self, TupleState::Live | TupleState::Frozen)
    }
}

const STATE_BITS: u32 = 3;
const COUNT_BITS: u32 = 21;
const BLOCK_SHIFT: u32 = STATE_BITS + COUNT_BITS;
const NO_BLOCK: u64 = (1 << BlockRef::BITS) - 1;

const _: () = assert!(BLOCK_SHIFT + BlockRef::BITS == 64);

/// The word of a tuple. It counts its changes, so that none of its values comes back while a host looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TupleWord {
    state: TupleState,
    count: u32,
    block: Option<BlockRef>,
}

impl TupleWord {
    pub const NEW: TupleWord = TupleWord { state: TupleState::Free, count: 0, block: None };

    /// The word that was frozen to this one.
    pub fn before_freeze(self) -> TupleWord {
        debug_assert_eq!(self.state, TupleState::Frozen);
        TupleWord { state: TupleState::Live, count: self.count.wrapping_sub(1) & ((1 << COUNT_BITS) - 1), ..self }
    }

    /// The next value of the word.
    pub fn next(self, state: TupleState, block: Option<BlockRef>) -> TupleWord {
        debug_assert_eq!(block.is_some(), state.has_block());
        TupleWord { state, count: (self.count + 1) & ((1 << COUNT_BITS) - 1), block }
    }

    pub fn state(self) -> TupleState {
        self.state
    }
}

impl Word for TupleWord {
    fn bits(self) -> u64 {
        let block = self.block.map_or(NO_BLOCK, BlockRef::bits);
        // A word of zeroes, as a new pod has it, is one that is free.
        let block = if self.state == TupleState::Free { 0 } else { block };
        block << BLOCK_SHIFT | u64::from(self.count) << STATE_BITS | self.state as u64
    }

    fn read(bits: u64) -> Result<TupleWord, Fault> {
        let count = (bits >> STATE_BITS) as u32 & ((1 << COUNT_BITS) - 1);
        let block = bits >> BLOCK_SHIFT;
        let state = match bits & ((1 << STATE_BITS) - 1) {
            0 if bits == 0 => return Ok(TupleWord::NEW),
            1 => TupleState::Moving,
            2 => TupleState::Live,
            3 => TupleState::Frozen,
            4 => TupleState::Dead,
            _ => return Err(Fault { bits }),
        };
        if state.has_block() == (block == NO_BLOCK) {
            return Err(Fault { bits });
        }
        Ok(TupleWord { state, count, block: state.has_block().then(|| BlockRef::read(block)) })
    }
}

impl Refers for TupleWord {
    fn block(self) -> Option<BlockRef> {
        self.block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold<W: Word>(word: W) {
        assert_eq!(W::read(word.bits()), Ok(word));
    }

    #[test]
    fn each_word_is_read_as_it_was_written() {
        hold(TupleWord::NEW);
        assert_eq!(TupleWord::NEW.bits(), 0);
        let moving = TupleWord::NEW.next(TupleState::Moving, None);
        let live = moving.next(TupleState::Live, Some(BlockRef::read(NO_BLOCK - 1)));
        let frozen = live.next(TupleState::Frozen, live.block());
        let dead = frozen.next(TupleState::Dead, None);
        [moving, live, frozen, dead].into_iter().for_each(hold);
        assert!(TupleWord::read(u64::MAX).is_err());
        assert!(TupleWord::read(moving.bits() | 7).is_err());
        let last = TupleWord { count: (1 << COUNT_BITS) - 1, ..live };
        hold(last);
        assert_eq!(last.next(TupleState::Live, last.block()).count, 0, "the count begins again");
        let committed = [CommitTs(0), CommitTs(TS_MASK)].map(Standing::Committed);
        committed.into_iter().chain([Standing::Running, Standing::Aborted]).for_each(hold);
        hold(Standing::Committing(CommitTs(7)));
        assert!(Standing::read(5).is_err() && Standing::read(3 << 62 | 1).is_err());
    }

    #[test]
    fn a_tag_names_host_worker_and_sequence() {
        let tag = Tag::new(HostId(15), 2047, SEQUENCE_MASK);
        assert_eq!((tag.host(), tag.worker(), tag.sequence()), (HostId(15), 2047, SEQUENCE_MASK));
        let tag = Tag::new(HostId(3), 0, 7);
        assert_eq!((tag.host(), tag.worker(), tag.sequence()), (HostId(3), 0, 7));
        assert_eq!(Begin::of_word(tag.word()), Begin::By(tag));
        assert_eq!(Begin::of_word(7), Begin::At(CommitTs(7)));
    }
}
