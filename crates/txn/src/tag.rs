//! The word that says since when a version is there: a commit timestamp, or whose transaction's timestamp it will be.
//!
//! ```text
//! 63 62        61                                         0
//! [0][0][ commit timestamp, ns                             ]
//! [1][     slot, 15 bits     ][  sequence number, 48 bits  ]
//! ```
//!
//! Where several hosts share slots, the upper four bits of the slot are the host's number, and the other eleven say which
//! of its slots it is.
//!
//! At a million transactions a second, a slot's sequence numbers last for nine years, and timestamps for 146.

use std::fmt;
use tidepool_base::CommitTs;

pub(crate) const TAG_BIT: u64 = 1 << 63;
const SLOT_SHIFT: u32 = 48;
/// Within a slot's number, where hosts share slots.
pub(crate) const HOST_SHIFT: u32 = 11;
pub(crate) const SEQUENCE_MASK: u64 = (1 << SLOT_SHIFT) - 1;
/// Timestamps are below: a slot's state has two bits of its own beside one.
pub(crate) const TS_MASK: u64 = (1 << 62) - 1;

/// The timestamp of what never came to be: versions of an aborted transaction.
pub const NEVER: CommitTs = CommitTs(TS_MASK);

/// A transaction that writes: a slot, and which of the transactions that have used it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag(pub(crate) u64);

impl Tag {
    pub(crate) fn new(slot: usize, sequence: u64) -> Tag {
        debug_assert!(slot < 1 << 15 && sequence <= SEQUENCE_MASK);
        Tag(TAG_BIT | (slot as u64) << SLOT_SHIFT | sequence)
    }

    /// What the word `begin` of a version holds while this transaction is under way.
    #[inline]
    pub fn word(self) -> u64 {
        self.0
    }

    /// The transaction that wrote a version with this `begin`, unless it is a timestamp.
    #[inline]
    pub fn of_word(word: u64) -> Option<Tag> {
        (word & TAG_BIT != 0).then_some(Tag(word))
    }

    #[inline]
    pub(crate) fn slot(self) -> usize {
        ((self.0 & !TAG_BIT) >> SLOT_SHIFT) as usize
    }

    #[inline]
    pub(crate) fn sequence(self) -> u64 {
        self.0 & SEQUENCE_MASK
    }

    /// Names the transaction to people; no two that are under way have the same.
    pub fn number(self) -> u64 {
        self.sequence() << 15 | self.slot() as u64
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(f)
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tag({}.{})", self.slot(), self.sequence())
    }
}
