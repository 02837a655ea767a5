//! What the books stand in: 64-bit words of shared memory, and how they are read and changed.
//!
//! The transitions of this crate are written once, over [`Memory`]. The model stops them before each access and lets
//! another host go on, loom explores them on threads, the simulation kills hosts within them, and a mapped pool runs them.

use crate::layout::{Layout, Text};
use crate::words::{Extent, Fault, Word};
use std::fmt;
use std::marker::PhantomData;
use xxhash_rust::xxh3::xxh3_64;

/// The place of a word: its byte offset in the control area, a multiple of 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct At(pub u32);

/// The place of a word of one kind.
pub struct Field<W> {
    pub at: At,
    kind: PhantomData<fn() -> W>,
}

impl<W> Clone for Field<W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Field<W> {}

impl<W> Field<W> {
    pub const fn new(at: At) -> Field<W> {
        Field { at, kind: PhantomData }
    }
}

/// Shared words. Loads acquire, stores release, and swaps and fences are sequentially consistent.
///
/// `Stop` is why an access was not made: a mapped pool has no reason, a model has many.
pub trait Memory {
    type Stop;

    #[track_caller]
    fn load(&self, at: At) -> Result<u64, Self::Stop>;

    #[track_caller]
    fn store(&self, at: At, bits: u64) -> Result<(), Self::Stop>;

    /// Puts `to` where `from` is, or says what is there.
    #[track_caller]
    fn swap(&self, at: At, from: u64, to: u64) -> Result<Result<(), u64>, Self::Stop>;

    #[track_caller]
    fn fence(&self) -> Result<(), Self::Stop>;

    /// Fills an extent with zeroes. The caller owns it. What is there stays where the extent's device is away.
    #[track_caller]
    fn zero(&self, extent: Extent) -> Result<(), Self::Stop>;
}

/// The bytes of extents, as several hosts use them at once: what is read while another host writes it is any mixture of
/// what it was and what it becomes.
///
/// Offsets and lengths are multiples of 8. Each word of 8 bytes is written as a whole. Words that are read were there when
/// the call began, or came meanwhile; words that are written reach memory in their order, before what the host stores after the call,
/// and not later than its next fence.
pub trait Bytes {
    fn extent_bytes(&self) -> usize;

    /// False where the extent's device is away.
    fn read_bytes(&self, extent: Extent, offset: usize, bytes: &mut [u8]) -> bool;

    /// Writes to an extent of the host's own, durably on memory that outlives the machine. False where the extent's device
    /// is away.
    fn write_bytes(&self, extent: Extent, offset: usize, bytes: &[u8]) -> bool;

    /// Makes bytes that *another* host stored durable, on memory that outlives the machine: it may have died before it did.
    /// False where the extent's device is away.
    fn persist_bytes(&self, extent: Extent, offset: usize, len: usize) -> bool;

    /// The same of a word that was read.
    fn persist_word(&self, at: At);

    /// Maps an extent's pages, so that the first look at its bytes does not wait for the kernel. Changes nothing, and may do nothing.
    fn map_ahead(&self, _extent: Extent) {}
}

/// Why a transition did not end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble<S> {
    Stopped(S),
    /// The books are damaged at this word.
    Damaged {
        at: At,
        fault: Fault,
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
            Trouble::Damaged { at, fault } => write!(f, "the word at byte {} is {fault}", at.0),
        }
    }
}

pub type Outcome<T, M> = Result<T, Trouble<<M as Memory>::Stop>>;

/// The books of a pool in some memory: everything that hosts do to them.
#[derive(Debug)]
pub struct Books<M> {
    pub memory: M,
    pub layout: Layout,
}

impl<M: Memory> Books<M> {
    #[track_caller]
    pub fn load<W: Word>(&self, field: Field<W>) -> Outcome<W, M> {
        let bits = self.memory.load(field.at)?;
        W::read(bits).map_err(|fault| Trouble::Damaged { at: field.at, fault })
    }

    #[track_caller]
    pub fn store<W: Word>(&self, field: Field<W>, word: W) -> Outcome<(), M> {
        Ok(self.memory.store(field.at, word.bits())?)
    }

    /// Puts `to` where `from` is. False where something else is.
    #[track_caller]
    pub fn swap<W: Word>(&self, field: Field<W>, from: W, to: W) -> Outcome<bool, M> {
        Ok(self.memory.swap(field.at, from.bits(), to.bits())?.is_ok())
    }

    #[track_caller]
    pub fn fence(&self) -> Outcome<(), M> {
        Ok(self.memory.fence()?)
    }

    /// Writes a text that is its host's own, and then its checksum.
    pub fn write_text(&self, text: Text, value: &[u8]) -> Outcome<(), M> {
        debug_assert!(value.len() <= text.bytes && text.bytes.is_multiple_of(8));
        let mut bytes = value.to_vec();
        bytes.resize(text.bytes, 0);
        for (index, word) in bytes.chunks_exact(8).enumerate() {
            let mut eight = [0; 8];
            eight.copy_from_slice(word);
            self.memory.store(At(text.at.0 + index as u32 * 8), u64::from_le_bytes(eight))?;
        }
        Ok(self.memory.store(text.checksum(), xxh3_64(&bytes))?)
    }

    /// The bytes of a text, with the zeroes behind it. `None` where its checksum is wrong: it is damaged, or being written.
    pub fn read_text(&self, text: Text) -> Outcome<Option<Vec<u8>>, M> {
        let mut bytes = Vec::with_capacity(text.bytes);
        for offset in (0..text.bytes as u32).step_by(8) {
            bytes.extend_from_slice(&self.memory.load(At(text.at.0 + offset))?.to_le_bytes());
        }
        let checksum = self.memory.load(text.checksum())?;
        Ok((xxh3_64(&bytes) == checksum).then_some(bytes))
    }
}
