//! A node's layout, and reading it.
//!
//! A node is a run of words, so that each word can be read while another thread writes it. Slots, in order of their
//! entries, grow up from the header; what belongs to the entries (payloads) grows down from the fences at the end.
//!
//! ```text
//! word 0      version (`lock`)
//! word 1      level: 8 | prefix bytes: 16 | first payload word: 16 | entries: 16
//! word 2      where the last entry went: 16 | words lost: 16 | upper fence bytes: 16 | lower fence bytes: 16
//! word 3      inner nodes: the last child, which has no separator; leaves: the prefix's first eight bytes
//! word 4 …    slots
//! …           payloads
//! …           the upper fence's key and row id, then the lower's
//! ```
//!
//! A node holds the entries from its lower fence on and below its upper fence. All of these begin with what the fences
//! have in common: the *prefix*, which is left out of the entries (LeanStore's prefix truncation). A slot has the next six
//! bytes of the key, and orders by them alone:
//!
//! ```text
//! | the next 6 bytes, zeroes behind the end: 48 | how many there are, 7 for more: 3 | 0 | has row id: 1 | payload: 11 |
//! ```
//!
//! A leaf's payload is the row id, an inner node's the child and, if it is not zero, the row id of the separator. A key with
//! more than six bytes behind the prefix goes on in words: first the number of all bytes behind the prefix: 16, and six
//! of them, then eight a word, all big-endian with zeroes behind the end. So words compare as the bytes do.
//!
//! In an inner node, child *i* has the entries below separator *i* and not below the one before.

use crate::lock::{self, Restart, Version};
use crate::sync::{AtomicU64, Ordering};
use std::cmp;

/// Words of nearly all nodes: 1 KiB. Chosen by measurement, see `examples/index_speed.rs`.
#[cfg(not(loom))]
pub(crate) const SMALL_WORDS: usize = 128;
/// Words of a node whose keys are too long for that: 16 KiB.
#[cfg(not(loom))]
pub(crate) const LARGE_WORDS: usize = 2048;
/// Few steps, so that a model ends.
#[cfg(loom)]
pub(crate) const SMALL_WORDS: usize = 16;
#[cfg(loom)]
pub(crate) const LARGE_WORDS: usize = 32;

pub(crate) const HEADER_WORDS: usize = 4;
pub(crate) const HEAD_BYTES: usize = 6;
/// Number of bytes in the slot: that there are more.
const TAIL_MORE: u64 = 7;
/// The separator's row id is not zero.
const HAS_ROW: u64 = 1 << 11;
const PAYLOAD: u64 = LARGE_WORDS_MAX as u64 - 1;
const LARGE_WORDS_MAX: usize = 2048;
const CODE_SHIFT: u32 = 13;
/// Length of an upper fence that is above all.
const NO_FENCE: u64 = 0xffff;

const _: () = assert!(SMALL_WORDS.is_power_of_two() && LARGE_WORDS.is_power_of_two() && LARGE_WORDS <= LARGE_WORDS_MAX);

/// A place between entries: before an entry of this key and row id, or right after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target<'k> {
    pub key: &'k [u8],
    pub row: u64,
    pub after: bool,
}

impl<'k> Target<'k> {
    pub fn before(key: &'k [u8], row: u64) -> Target<'k> {
        Target { key, row, after: false }
    }

    /// Before all entries of a key.
    pub fn first_of(key: &'k [u8]) -> Target<'k> {
        Target::before(key, 0)
    }

    /// After all entries of a key.
    pub fn last_of(key: &'k [u8]) -> Target<'k> {
        Target { key, row: u64::MAX, after: true }
    }
}

/// A key and a row id between nodes: entries that are not below it are right of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fence {
    pub key: Vec<u8>,
    pub row: u64,
}

impl Fence {
    pub fn target(&self) -> Target<'_> {
        Target::before(&self.key, self.row)
    }
}

/// Of a child among an inner node's, for a place between entries that is a separator: the child that begins or that ends there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Right,
    Left,
}

/// Word 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape(pub u64);

impl Shape {
    pub fn new(level: u8, prefix_len: usize, heap: usize, count: usize) -> Shape {
        Shape(u64::from(level) << 48 | (prefix_len as u64) << 32 | (heap as u64) << 16 | count as u64)
    }

    #[inline]
    pub fn count(self) -> usize {
        (self.0 & 0xffff) as usize
    }

    /// The first payload word.
    #[inline]
    pub fn heap(self) -> usize {
        (self.0 >> 16 & 0xffff) as usize
    }

    #[inline]
    pub fn prefix_len(self) -> usize {
        (self.0 >> 32 & 0xffff) as usize
    }

    /// Leaves are at level 0.
    #[inline]
    pub fn level(self) -> u8 {
        (self.0 >> 48) as u8
    }
}

/// Word 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extras(pub u64);

impl Extras {
    /// Where the entry went that was put in last, if nothing was.
    pub const NOWHERE: usize = 0xffff;

    pub fn new(lower_len: usize, upper_len: Option<usize>) -> Extras {
        Extras((Extras::NOWHERE as u64) << 48 | upper_len.map_or(NO_FENCE, |len| len as u64) << 16 | lower_len as u64)
    }

    pub fn lower_len(self) -> usize {
        (self.0 & 0xffff) as usize
    }

    pub fn upper_len(self) -> Option<usize> {
        let len = self.0 >> 16 & 0xffff;
        (len != NO_FENCE).then_some(len as usize)
    }

    /// Payload words of entries that are gone.
    pub fn lost(self) -> usize {
        (self.0 >> 32 & 0xffff) as usize
    }

    pub fn last(self) -> usize {
        (self.0 >> 48) as usize
    }

    pub fn with_lost(self, lost: usize) -> Extras {
        Extras(self.0 & !(0xffff << 32) | (lost as u64) << 32)
    }

    pub fn with_upper_len(self, len: usize) -> Extras {
        Extras(self.0 & !(0xffff << 16) | (len as u64) << 16)
    }

    pub fn with_last(self, last: usize) -> Extras {
        Extras(self.0 & !(0xffff << 48) | (last as u64 & 0xffff) << 48)
    }
}

/// Eight bytes from `at` on, big-endian, zeroes behind the end.
#[inline]
pub(crate) fn load(bytes: &[u8], at: usize) -> u64 {
    match bytes.get(at..) {
        Some(rest) => match rest.first_chunk::<8>() {
            Some(chunk) => u64::from_be_bytes(*chunk),
            None => load_end(rest),
        },
        None => 0,
    }
}

#[inline]
fn load_end(rest: &[u8]) -> u64 {
    let mut word = 0;
    for byte in rest {
        word = word << 8 | u64::from(*byte);
    }
    // At most seven bytes, so the shift is one of a word; by 64 when there are none.
    word.checked_shl(64 - 8 * rest.len() as u32).unwrap_or(0)
}

/// Of the first `len` bytes of a word, big-endian.
#[inline]
fn head_mask(len: usize) -> u64 {
    if len >= 8 { u64::MAX } else { !(u64::MAX >> (8 * len)) }
}

/// The first eight of the first `len` bytes, zeroes behind the end: what a leaf says of its prefix.
#[inline]
pub(crate) fn head(bytes: &[u8], len: usize) -> u64 {
    load(bytes, 0) & head_mask(len)
}

/// What a slot orders by: of the bytes behind the prefix.
#[inline]
pub(crate) fn code(rest: &[u8]) -> u64 {
    (load(rest, 0) >> 16) << 3 | if rest.len() > HEAD_BYTES { TAIL_MORE } else { rest.len() as u64 }
}

/// Words that a key of which `rest_len` bytes are behind the prefix takes beside its slot.
#[inline]
pub(crate) fn extension_words(rest_len: usize) -> usize {
    if rest_len > HEAD_BYTES { 1 + rest_len.saturating_sub(2 * HEAD_BYTES).div_ceil(8) } else { 0 }
}

/// The word of a key's extension that is the `n`-th.
#[inline]
pub(crate) fn extension_word(rest: &[u8], n: usize) -> u64 {
    match n {
        0 => (rest.len() as u64) << 48 | load(rest, HEAD_BYTES) >> 16,
        _ => load(rest, 2 * HEAD_BYTES + 8 * (n - 1)),
    }
}

/// Payload words of an entry.
#[inline]
pub(crate) fn payload_words(level: u8, row: u64, rest_len: usize) -> usize {
    1 + usize::from(level > 0 && row != 0) + extension_words(rest_len)
}

pub(crate) fn fence_words(len: usize) -> usize {
    1 + len.div_ceil(8)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(pub u64);

impl Slot {
    pub fn new(code: u64, has_row: bool, payload: usize) -> Slot {
        Slot(code << CODE_SHIFT | if has_row { HAS_ROW } else { 0 } | payload as u64)
    }

    #[inline]
    pub fn code(self) -> u64 {
        self.0 >> CODE_SHIFT
    }

    /// Bytes of the key that are in the slot, and whether there are more.
    #[inline]
    pub fn tail(self) -> (usize, bool) {
        match self.code() & 7 {
            TAIL_MORE => (HEAD_BYTES, true),
            len => (len as usize, false),
        }
    }

    #[inline]
    pub fn has_row(self) -> bool {
        self.0 & HAS_ROW != 0
    }

    #[inline]
    pub fn payload(self) -> usize {
        (self.0 & PAYLOAD) as usize
    }

    /// Where the key goes on.
    #[inline]
    pub fn extension(self) -> usize {
        self.payload() + 1 + usize::from(self.has_row())
    }
}

/// Reading a node, or a copy of one. Of a node that changes meanwhile the answers are void, but there always is one.
pub(crate) trait Words {
    /// Word `at`, modulo the node's size.
    fn word(&self, at: usize) -> u64;

    fn size_words(&self) -> usize;

    #[inline]
    fn shape(&self) -> Shape {
        Shape(self.word(1))
    }

    #[inline]
    fn extras(&self) -> Extras {
        Extras(self.word(2))
    }

    #[inline]
    fn slot(&self, index: usize) -> Slot {
        Slot(self.word(HEADER_WORDS + index))
    }

    /// A leaf's entry.
    #[inline]
    fn row(&self, index: usize) -> u64 {
        self.word(self.slot(index).payload())
    }

    /// An inner node's separator's.
    #[inline]
    fn separator_row(&self, slot: Slot) -> u64 {
        if slot.has_row() { self.word(slot.payload() + 1) } else { 0 }
    }

    /// A link.
    #[inline]
    fn child(&self, index: usize) -> u64 {
        if index >= self.shape().count() { self.word(3) } else { self.word(self.slot(index).payload()) }
    }

    /// Words between slots and payloads.
    fn free_words(&self) -> usize {
        let shape = self.shape();
        shape.heap().saturating_sub(HEADER_WORDS + shape.count())
    }

    /// Words of entries.
    fn used_words(&self) -> usize {
        let (shape, extras) = (self.shape(), self.extras());
        let fences = fence_words(extras.lower_len()) + extras.upper_len().map_or(0, fence_words);
        (self.size_words() + shape.count()).saturating_sub(shape.heap() + extras.lost() + fences)
    }

    /// Bytes of an entry's key behind the prefix.
    #[inline]
    fn rest_len(&self, slot: Slot) -> usize {
        match slot.tail() {
            (len, false) => len,
            (_, true) => (self.word(slot.extension()) >> 48) as usize,
        }
    }

    fn entry_payload_words(&self, slot: Slot) -> usize {
        1 + usize::from(slot.has_row()) + extension_words(self.rest_len(slot))
    }

    /// How an entry whose slot's code is that of `rest` compares with it, by what is not in the slot.
    #[inline]
    fn compare_extension(&self, slot: Slot, rest: &[u8]) -> cmp::Ordering {
        if rest.len() <= HEAD_BYTES {
            return cmp::Ordering::Equal;
        }
        let at = slot.extension();
        let first = self.word(at);
        let len = (first >> 48) as usize;
        let order = (first << 16).cmp(&(load(rest, HEAD_BYTES) & !0xffff));
        if order.is_ne() {
            return order;
        }
        for n in 1..extension_words(len.min(rest.len())) {
            let order = self.word(at + n).cmp(&extension_word(rest, n));
            if order.is_ne() {
                return order;
            }
        }
        // The shorter is a prefix of the other, but for zeroes.
        len.cmp(&rest.len())
    }

    /// Whether entry `slot` is before `target`, of which `rest` is behind the prefix. Their codes are the same.
    #[inline]
    fn is_before(&self, slot: Slot, level: u8, rest: &[u8], target: &Target<'_>) -> bool {
        match self.compare_extension(slot, rest) {
            cmp::Ordering::Equal => {
                let row = if level == 0 { self.word(slot.payload()) } else { self.separator_row(slot) };
                row < target.row || (row == target.row && target.after)
            }
            order => order.is_lt(),
        }
    }

    /// The number of entries before `target`, which lies between the node's fences.
    #[inline]
    fn position(&self, shape: Shape, target: &Target<'_>) -> usize {
        let rest = target.key.get(shape.prefix_len()..).unwrap_or(&[]);
        let code = code(rest);
        // What a writer leaves half done must not keep a reader for long.
        let count = shape.count().min(self.size_words());
        let first = lower_bound(self, code, count);
        if first == count
            || self.slot(first).code() != code
            || !self.is_before(self.slot(first), shape.level(), rest, target)
        {
            return first;
        }
        // Several entries have this code: mostly few.
        let (mut before, mut step) = (first, 1);
        let mut end = loop {
            let probe = before + step;
            if probe >= count {
                break count;
            }
            let slot = self.slot(probe);
            if slot.code() != code || !self.is_before(slot, shape.level(), rest, target) {
                break probe;
            }
            before = probe;
            step *= 2;
        };
        while before + 1 < end {
            let middle = before + (end - before) / 2;
            let slot = self.slot(middle);
            if slot.code() == code && self.is_before(slot, shape.level(), rest, target) {
                before = middle;
            } else {
                end = middle;
            }
        }
        end
    }

    /// Which child has the entries beside `target`.
    #[inline]
    fn child_index(&self, shape: Shape, target: &Target<'_>, side: Side) -> usize {
        match side {
            // A separator that is the target's own belongs to the child on its right.
            Side::Right => self.position(shape, &Target { after: true, ..*target }),
            Side::Left => self.position(shape, target),
        }
    }

    /// Whether entry `index` has this key, of which `rest` is behind the prefix.
    #[inline]
    fn has_key(&self, index: usize, rest: &[u8]) -> bool {
        let slot = self.slot(index);
        slot.code() == code(rest) && self.compare_extension(slot, rest).is_eq()
    }

    /// Where the lower fence's words begin.
    fn lower_at(&self) -> usize {
        self.size_words().saturating_sub(fence_words(self.extras().lower_len()))
    }

    /// Where the payloads' words end, and the fences' begin, but for words lost between them.
    fn payloads_end(&self) -> usize {
        self.lower_at().saturating_sub(self.extras().upper_len().map_or(0, fence_words))
    }

    fn lower_fence(&self) -> Fence {
        self.fence(self.lower_at(), self.extras().lower_len())
    }

    /// `None`: above all.
    fn upper_fence(&self) -> Option<Fence> {
        let len = self.extras().upper_len()?;
        Some(self.fence(self.lower_at().saturating_sub(fence_words(len)), len))
    }

    fn fence(&self, at: usize, len: usize) -> Fence {
        let mut key = Vec::with_capacity(len);
        self.copy_bytes(at, len, &mut key);
        Fence { key, row: self.word(at + len.div_ceil(8)) }
    }

    /// Whether entries of `key` may go on in the next leaf.
    fn upper_fence_has_key(&self, key: &[u8]) -> Option<u64> {
        let len = self.extras().upper_len()?;
        if len != key.len() {
            return None;
        }
        let at = self.lower_at().saturating_sub(fence_words(len));
        let words = len.div_ceil(8);
        (0..words).all(|n| self.word(at + n) == load(key, 8 * n)).then(|| self.word(at + words))
    }

    /// How a place's key and row id compare with the fence of `len` bytes at word `at`.
    #[inline]
    fn compare_with_fence(&self, place: &Target<'_>, at: usize, len: usize) -> cmp::Ordering {
        let words = len.div_ceil(8);
        for n in 0..words {
            let order = load(place.key, 8 * n).cmp(&self.word(at + n));
            if order.is_ne() {
                return order;
            }
        }
        // The shorter is a prefix of the other, but for zeroes.
        place.key.len().cmp(&len).then_with(|| place.row.cmp(&self.word(at + words)))
    }

    #[inline]
    fn compare_with_upper_fence(&self, place: &Target<'_>) -> cmp::Ordering {
        match self.extras().upper_len() {
            Some(len) => self.compare_with_fence(place, self.lower_at().saturating_sub(fence_words(len)), len),
            None => cmp::Ordering::Less,
        }
    }

    /// Whether an entry at `place` would be before the upper fence.
    #[inline]
    fn is_below_upper_fence(&self, place: &Target<'_>) -> bool {
        self.compare_with_upper_fence(place).is_lt()
    }

    /// Whether a place is at the upper fence or before it.
    fn ends_at_or_behind(&self, place: &Target<'_>) -> bool {
        match self.compare_with_upper_fence(place) {
            cmp::Ordering::Equal => !place.after,
            order => order.is_lt(),
        }
    }

    /// Whether a place is at the lower fence or before it.
    fn begins_at_or_behind(&self, place: &Target<'_>) -> bool {
        match self.compare_with_fence(place, self.lower_at(), self.extras().lower_len()) {
            cmp::Ordering::Equal => !place.after,
            order => order.is_lt(),
        }
    }

    /// Whether no leaf is before.
    fn is_lowest(&self) -> bool {
        self.extras().lower_len() == 0 && self.word(self.lower_at()) == 0
    }

    /// Whether a key begins with a leaf's prefix.
    #[inline]
    fn has_prefix(&self, shape: Shape, key: &[u8]) -> bool {
        let len = shape.prefix_len();
        if self.word(3) != head(key, len) || key.len() < len {
            return false;
        }
        // Of a longer one the rest is the lower fence's.
        len <= 8
            || (1..len.div_ceil(8)).all(|n| {
                let mask = head_mask(len - 8 * n);
                (self.word(self.lower_at() + n) ^ load(key, 8 * n)) & mask == 0
            })
    }

    fn copy_bytes(&self, at: usize, len: usize, into: &mut Vec<u8>) {
        // A node that is being written may say any length.
        let len = len.min(8 * self.size_words());
        for n in 0..len.div_ceil(8) {
            let bytes = self.word(at + n).to_be_bytes();
            into.extend_from_slice(&bytes[..(len - 8 * n).min(8)]);
        }
    }

    /// Appends the bytes that all keys begin with.
    fn copy_prefix(&self, into: &mut Vec<u8>) {
        self.copy_bytes(self.lower_at(), self.shape().prefix_len(), into);
    }

    /// Appends the bytes of an entry's key behind the prefix.
    fn copy_rest(&self, slot: Slot, into: &mut Vec<u8>) {
        let (len, more) = slot.tail();
        let head = (slot.code() >> 3 << 16).to_be_bytes();
        into.extend_from_slice(&head[..len]);
        if more {
            let at = slot.extension();
            let first = self.word(at);
            let len = ((first >> 48) as usize).saturating_sub(HEAD_BYTES);
            into.extend_from_slice(&(first << 16).to_be_bytes()[..len.min(HEAD_BYTES)]);
            self.copy_bytes(at + 1, len.saturating_sub(HEAD_BYTES), into);
        }
    }
}

/// The number of entries whose code is below `code`. Without branches: which way it goes cannot be guessed.
#[inline]
fn lower_bound<V: Words + ?Sized>(view: &V, code: u64, count: usize) -> usize {
    let (mut base, mut len) = (0, count);
    while len > 1 {
        let half = len / 2;
        base = if view.slot(base + half - 1).code() < code { base + half } else { base };
        len -= half;
    }
    base + usize::from(len == 1 && view.slot(base).code() < code)
}

/// A node of a tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    words: *const AtomicU64,
    size_words: usize,
}

// SAFETY: a shared reference to atomics in all but name.
unsafe impl Send for Node {}
// SAFETY: as above.
unsafe impl Sync for Node {}

/// In a link, beside the address: the node is a large one.
const LINK_LARGE: u64 = 1;

impl PartialEq for Node {
    fn eq(&self, other: &Node) -> bool {
        self.words == other.words
    }
}

impl Node {
    /// # Safety
    /// `link` is from `link()` of a node whose memory stays a node's, of whatever tree or none, while the result is used.
    #[inline]
    pub unsafe fn from_link(link: u64) -> Node {
        let size_words = if link & LINK_LARGE == 0 { SMALL_WORDS } else { LARGE_WORDS };
        Node { words: std::ptr::with_exposed_provenance((link & !LINK_LARGE) as usize), size_words }
    }

    /// # Safety
    /// So many atomics are at `words`, whose provenance is exposed.
    pub unsafe fn new(words: *const AtomicU64, size_words: usize) -> Node {
        debug_assert!(size_words == SMALL_WORDS || size_words == LARGE_WORDS);
        Node { words, size_words }
    }

    /// What a parent keeps of a child: address and size.
    #[inline]
    pub fn link(self) -> u64 {
        self.address() as u64 | if self.is_large() { LINK_LARGE } else { 0 }
    }

    pub fn address(self) -> usize {
        self.words.addr()
    }

    pub fn is_large(self) -> bool {
        self.size_words == LARGE_WORDS
    }

    #[inline]
    fn atomic(&self, at: usize) -> &AtomicU64 {
        // SAFETY: within the node, whose size is a power of two, and atomics are there for as long as the node is used.
        unsafe { &*self.words.add(at & (self.size_words - 1)) }
    }

    #[inline]
    pub fn version(&self) -> &AtomicU64 {
        self.atomic(0)
    }

    #[inline]
    pub fn read(&self) -> Result<Version, Restart> {
        lock::read(self.version())
    }

    #[inline]
    pub fn try_read(&self) -> Result<Version, Restart> {
        lock::try_read(self.version())
    }

    #[inline]
    pub fn check(&self, version: Version) -> Result<(), Restart> {
        lock::check(self.version(), version)
    }

    /// Of a locked node.
    #[inline]
    pub fn set_word(&self, at: usize, word: u64) {
        self.atomic(at).store(word, Ordering::Relaxed);
    }

    /// Asks the processor to fetch the first `lines` cache lines, all at once.
    #[inline]
    pub fn prefetch(self, lines: usize) {
        for line in 0..lines {
            prefetch(self.words.wrapping_add(8 * line));
        }
    }

    /// As `prefetch`, of what looking at one entry takes: the header, and the slot.
    #[inline]
    pub fn prefetch_entry(self, position: usize) {
        prefetch(self.words);
        prefetch(self.words.wrapping_add(HEADER_WORDS + position));
    }
}

/// Asks the processor to fetch a line.
#[inline]
pub(crate) fn prefetch(word: *const AtomicU64) {
    #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which is right for any address.
        unsafe { _mm_prefetch(word.cast(), _MM_HINT_T0) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri), not(loom))))]
    let _ = word;
}

impl Words for Node {
    #[inline]
    fn word(&self, at: usize) -> u64 {
        self.atomic(at).load(Ordering::Relaxed)
    }

    #[inline]
    fn size_words(&self) -> usize {
        self.size_words
    }
}

/// A copy of a node as it was at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    words: Vec<u64>,
}

impl Snapshot {
    /// Copies what is in use of `node`. To be checked behind.
    pub fn copy(&mut self, node: Node) {
        let shape = node.shape();
        self.words.resize(node.size_words, 0);
        // Of a node that changes meanwhile any words may be asked for.
        let slots_end = (HEADER_WORDS + shape.count()).min(node.size_words);
        let heap = shape.heap().min(node.size_words);
        for (from, end) in [(1, slots_end), (heap, node.size_words)] {
            for (at, word) in (from..end).zip(&mut self.words[from..end]) {
                *word = node.word(at);
            }
        }
    }
}

impl Words for Snapshot {
    #[inline]
    fn word(&self, at: usize) -> u64 {
        // A snapshot of nothing has no words.
        self.words.get(at & self.words.len().wrapping_sub(1)).copied().unwrap_or(0)
    }

    #[inline]
    fn size_words(&self) -> usize {
        self.words.len()
    }
}
