//! The accesses to a pod's memory that there are, one method each.
//!
//! A pod has two kinds of memory. *Words* are in the small area that hardware keeps coherent between hosts. *Lines*
//! are in the rest: each host has its own caches over them, and what one stores reaches another only if the first
//! writes it back and the second fetches it anew.
//!
//! The transitions of this crate are written once over [`Access`]. Mapped memory runs them ([`crate::mapped`]), and
//! so does the model of caches (`model`), which leaves out one access after the other. Only [`crate::memory`] calls
//! these methods: its types are the discipline.
//!
//! | method | what the hardware promises |
//! | --- | --- |
//! | `load`, `swap`, `advance` | one order of all changes of a word, which all hosts see; what a host changed in a line of words is lost with it until another host loads the line, or until `write_back_word` and a fence |
//! | `fill`, `put` | nothing to other hosts: the line may reach memory at any time, or never |
//! | `fetch` | the bytes in the caches of this host, or else those in memory; a cache may have fetched them long before |
//! | `write_back` | begins to write lines back; a fence waits for it |
//! | `discard` | begins to drop lines from this host's caches; it may pass older loads up to a fence, and a fence waits for it |
//! | `fence` | everything before it is done before everything behind it |
//! | `order` | loads before it are done before loads behind it |
//!
//! A `swap` promises nothing about lines: on x86 it would wait for what was written back, elsewhere it does not.

use tidepool_device::LINE_BYTES;

/// The place of a word: its number in the coherent area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WordAt(pub u32);

/// The number of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Line(pub u64);

/// The bytes of a line.
pub type LineBytes = [u8; LINE_BYTES];

/// Lines one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lines {
    pub first: Line,
    pub count: u32,
}

impl Lines {
    pub fn new(first: u64, count: u32) -> Lines {
        Lines { first: Line(first), count }
    }

    pub fn each(self) -> impl Iterator<Item = Line> {
        (self.first.0..self.first.0 + u64::from(self.count)).map(Line)
    }

    /// The lines from one of them on.
    pub fn from(self, from: u32) -> Lines {
        debug_assert!(from <= self.count);
        Lines::new(self.first.0 + u64::from(from), self.count - from)
    }

    pub fn bytes(self) -> usize {
        self.count as usize * LINE_BYTES
    }
}

/// What a fence is there for. The model leaves each out by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fence {
    /// What was written back is in memory before what is behind the fence.
    WrittenBack,
    /// Loads before it are done before lines are dropped.
    BeforeDiscard,
    /// The part of what is read is dropped before loads behind it.
    Discarded(Part),
}

/// Of what is read: the first line says how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    Head,
    Rest,
}

/// What the types know and memory does not: told to the model, which believes no host's word that it reads. Mapped
/// memory ignores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note<'a> {
    /// What the host stored to these lines is written back: from here on others may be told of them.
    Sealed(Lines),
    /// The host swaps a word for `bits`, which publishes these bytes. The note stands before the swap.
    Publishes { at: WordAt, bits: u64, bytes: &'a [u8] },
    /// The host takes these bytes for those that the word published as `bits`.
    Accepts { at: WordAt, bits: u64, bytes: &'a [u8] },
}

/// Accesses to a pod's memory. `Stop` is why one was not made: mapped memory has no reason, the model has some.
pub trait Access {
    type Stop;

    /// Acquires.
    #[track_caller]
    fn load(&self, at: WordAt) -> Result<u64, Self::Stop>;

    /// Puts `to` where `from` is, or says what is there. Acquires and releases.
    #[track_caller]
    fn swap(&self, at: WordAt, from: u64, to: u64) -> Result<Result<(), u64>, Self::Stop>;

    /// A swap of a word that no other host changes meanwhile: it finds `from`.
    #[track_caller]
    fn advance(&self, at: WordAt, from: u64, to: u64) -> Result<Result<(), u64>, Self::Stop> {
        self.swap(at, from, to)
    }

    /// Begins to write the line of a word back to memory that outlives this host.
    #[track_caller]
    fn write_back_word(&self, at: WordAt) -> Result<(), Self::Stop>;

    /// Stores a whole line.
    #[track_caller]
    fn fill(&self, line: Line, bytes: &LineBytes) -> Result<(), Self::Stop>;

    /// Stores the first word of a line.
    #[track_caller]
    fn put(&self, line: Line, bits: u64) -> Result<(), Self::Stop>;

    #[track_caller]
    fn fetch(&self, line: Line, into: &mut LineBytes) -> Result<(), Self::Stop>;

    #[track_caller]
    fn write_back(&self, lines: Lines) -> Result<(), Self::Stop>;

    #[track_caller]
    fn discard(&self, lines: Lines, part: Part) -> Result<(), Self::Stop>;

    #[track_caller]
    fn fence(&self, fence: Fence) -> Result<(), Self::Stop>;

    #[track_caller]
    fn order(&self) -> Result<(), Self::Stop>;

    fn note(&self, _note: Note<'_>) {}
}
