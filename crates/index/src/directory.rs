//! A table of hashes beside the tree: where keys were found that were looked up, so that the next look-up of one goes to its leaf at
//! once. (As the adaptive hash index of InnoDB. The tree stays what is true, and has the order; the table only knows where to
//! look first.)
//!
//! It is made when many single keys have been looked up in a tree that is too large for the inner caches, in the same
//! tablespace. Where that is far, a line of the table is waited for before the leaf is, which coming down over nodes that are in the caches
//! would not have been; it takes a fraction of the processor's time all the same, and what is waited for others use.
//!
//! What a hint says may be out of date: the leaf may have been split, taken out of the tree, or made another node. So whoever follows one
//! looks whether the node is a leaf, begins with the key's own prefix and has the key, all at one version, and goes down the tree
//! otherwise. For that the memory must still be the tree's. Before any of it goes back to its tablespace, the table is left for an empty one,
//! and it itself is kept until no view is held of the time when it was the current one. Hints are put into the table that was current
//! before the leaf was come to: so none that can be found under a view names memory that left before.
//!
//! ```text
//! word 0      buckets
//! word 8 …    buckets of eight words, a cache line each:
//!             | hash: 16 | leaf's address, and entry in the low bits: 48 |, or 0
//! ```

use crate::cursor::Rows;
use crate::node::{Node, SMALL_WORDS, Target, Words, code, load};
use crate::sync::{AtomicU64, Ordering};
use crate::tree::LEAF_LINES;
// Not loom's: what is counted orders nothing, and is no part of any protocol.
use std::sync::atomic::AtomicU64 as Counter;
use tidepool_base::RowId;

const WAYS: usize = 8;
const HEADER_WORDS: usize = 8;
const TAG_SHIFT: u32 = 48;
const POSITION: u64 = SMALL_WORDS as u64 * 8 - 1;

/// A place that a hint names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hint {
    pub link: u64,
    pub position: usize,
}

/// A table, lent by the arena.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    words: *const AtomicU64,
    buckets: u64,
}

/// Words of a table for so many keys: a quarter more than there are of them, so that few take each other's places.
pub(crate) fn words_for(keys: usize) -> usize {
    HEADER_WORDS + WAYS * (keys + keys / 4).div_ceil(WAYS).max(1)
}

/// Of a key's bytes. Multiplied and folded, as in foldhash: what it is used for needs it quick, not safe from those who would have
/// keys collide: they would have them looked up in the tree.
#[inline]
pub(crate) fn hash(key: &[u8]) -> u64 {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    const SEED: u64 = 0x2436_3f84_a885_a308;
    let fold = |state: u64, word: u64| {
        let wide = u128::from(state ^ word) * u128::from(MULTIPLIER);
        wide as u64 ^ (wide >> 64) as u64
    };
    let mut state = fold(SEED, key.len() as u64);
    let mut at = 0;
    while at < key.len() {
        state = fold(state.rotate_left(23), load(key, at));
        at += 8;
    }
    state
}

impl Table {
    /// Makes memory that nobody else knows yet an empty table.
    ///
    /// # Safety
    /// So many atomics are at `words`, and stay there for as long as the table is lent.
    pub unsafe fn make(words: *const AtomicU64, count: usize) {
        let buckets = (count - HEADER_WORDS) / WAYS;
        for at in 0..count {
            // SAFETY: as the caller says.
            unsafe { &*words.add(at) }.store(if at == 0 { buckets as u64 } else { 0 }, Ordering::Relaxed);
        }
    }

    /// # Safety
    /// A table was made there, published to this thread, and its memory is kept.
    #[inline]
    pub unsafe fn at(words: *const AtomicU64) -> Table {
        // SAFETY: as the caller says.
        Table { words, buckets: unsafe { &*words }.load(Ordering::Relaxed) }
    }

    /// Keys for which it has places.
    pub fn capacity(self) -> usize {
        self.buckets as usize * WAYS
    }

    #[inline]
    fn bucket(&self, hash: u64) -> &[AtomicU64; WAYS] {
        let bucket = ((u128::from(hash) * u128::from(self.buckets)) >> 64) as usize;
        // SAFETY: below the number of buckets, all words of which are there for as long as the table is lent.
        unsafe { &*self.words.add(HEADER_WORDS + bucket * WAYS).cast() }
    }

    #[inline]
    pub fn prefetch(self, hash: u64) {
        crate::node::prefetch(self.bucket(hash).as_ptr());
    }

    #[inline]
    fn tag(hash: u64) -> u64 {
        hash << TAG_SHIFT
    }

    /// Where a key of this hash was found, if it is known.
    #[inline]
    pub fn find(self, hash: u64) -> Option<Hint> {
        for place in self.bucket(hash) {
            // Acquire: what the leaf was made of comes before.
            let word = place.load(Ordering::Acquire);
            if word != 0 && (word ^ Table::tag(hash)) >> TAG_SHIFT == 0 {
                let link = word & !(u64::MAX << TAG_SHIFT) & !POSITION;
                return Some(Hint { link, position: (word & POSITION) as usize });
            }
        }
        None
    }

    /// Puts down where a key was found. True: instead of another one.
    pub fn put(self, hash: u64, node: Node, position: usize) -> bool {
        let link = node.link();
        if node.is_large() || position as u64 > POSITION || link & (POSITION | u64::MAX << TAG_SHIFT) != 0 {
            return false;
        }
        let word = Table::tag(hash) | link | position as u64;
        let bucket = self.bucket(hash);
        let is_for = |found: u64| found == 0 || (found ^ word) >> TAG_SHIFT == 0;
        let place = bucket.iter().find(|place| is_for(place.load(Ordering::Relaxed)));
        // Any of them, and not the same each time.
        place.unwrap_or(&bucket[(hash >> 16) as usize % WAYS]).store(word, Ordering::Release);
        place.is_none()
    }
}

/// What following a hint came to. Exhaustive and mutually exclusive.
#[derive(Debug)]
pub(crate) enum Followed {
    /// All rows of the key, the first of which is where the hint said, or elsewhere in the leaf.
    Found { rows: Rows, moved_to: Option<usize> },
    /// To be looked up in the tree.
    Lost,
}

impl Hint {
    /// Asks the processor for what is looked at of the leaf: where that is waited for, all lines at once, as when one comes to it from above.
    #[inline]
    pub fn prefetch(self, node: Node, is_far: bool) {
        if is_far {
            node.prefetch(LEAF_LINES);
        } else {
            node.prefetch_entry(self.position);
        }
    }

    /// `node` is the one that the hint names.
    #[inline]
    pub fn follow(self, node: Node, key: &[u8]) -> Followed {
        let Ok(version) = node.try_read() else { return Followed::Lost };
        let shape = node.shape();
        if shape.level() != 0 || !node.has_prefix(shape, key) {
            return Followed::Lost;
        }
        let rest = key.get(shape.prefix_len()..).unwrap_or(&[]);
        let code = code(rest);
        let count = shape.count().min(node.size_words());
        let has = |position: usize| {
            let slot = node.slot(position);
            slot.code() == code && node.compare_extension(slot, rest).is_eq()
        };
        let is_first = |position: usize| position > 0 && position < count && has(position) && !has(position - 1);
        let mut first = self.position;
        if !is_first(first) {
            first = node.position(shape, &Target::first_of(key));
            // Entries of the key may be in the leaf before where this one begins with it.
            if !is_first(first) {
                return Followed::Lost;
            }
        }
        let mut rows = Rows::new();
        let mut position = first;
        loop {
            rows.push(RowId(node.row(position)));
            position += 1;
            if position >= count || !has(position) {
                break;
            }
        }
        let goes_on = position == count && node.upper_fence_has_key(key).is_some();
        if goes_on || node.check(version).is_err() {
            return Followed::Lost;
        }
        Followed::Found { rows, moved_to: (first != self.position).then_some(first) }
    }
}

/// When a tree is to have a table, and when it has outgrown it. Of what is counted some is lost, where several threads count.
#[derive(Debug)]
pub(crate) struct Demand {
    /// Look-ups of single keys that went down the tree, and of those, the ones whose place another key had in the table.
    descents: Counter,
    crowded: Counter,
    /// Descents before it is asked whether a table is to be made.
    patience: Counter,
}

/// One look-up in so many is counted, for all of them: a word that all threads write is not to be written each time.
const SAMPLED: u64 = if cfg!(test) { 1 } else { 16 };

/// Leaves of a tree that is worth it, bytes.
const LEAF_BYTES_MIN: u64 = if cfg!(test) { 2 << 10 } else { 64 << 10 };

const PATIENCE_MIN: u64 = if cfg!(test) { 64 } else { 4096 };
const PATIENCE_MAX: u64 = 1 << 24;

impl Default for Demand {
    fn default() -> Demand {
        Demand { descents: Counter::new(0), crowded: Counter::new(0), patience: Counter::new(PATIENCE_MIN) }
    }
}

impl Demand {
    /// A look-up found its key by going down the tree. True: it is to be asked whether a table should be made.
    #[inline]
    pub fn descended(&self, hash: u64, is_crowded: bool) -> bool {
        // Of the bits in the middle: neither those that choose the bucket nor those that tell keys apart.
        if (hash >> 32).is_multiple_of(SAMPLED) { self.count(is_crowded) } else { false }
    }

    #[cold]
    fn count(&self, is_crowded: bool) -> bool {
        if is_crowded {
            self.crowded.fetch_add(SAMPLED, Ordering::Relaxed);
        }
        let descents = self.descents.fetch_add(SAMPLED, Ordering::Relaxed) + SAMPLED;
        descents >= self.patience.load(Ordering::Relaxed)
    }

    /// How many keys the next table should have room for, if there should be one: of a tree with so many bytes of leaves, and leaves of
    /// about so many keys; `capacity` is the current table's. Begins to count anew.
    pub fn wanted(&self, leaf_bytes: u64, keys_a_leaf: usize, capacity: usize) -> Option<usize> {
        let descents = self.descents.swap(0, Ordering::Relaxed);
        let crowded = self.crowded.swap(0, Ordering::Relaxed);
        let keys = (leaf_bytes / (SMALL_WORDS as u64 * 8)) as usize * keys_a_leaf.max(1);
        // As many look-ups as a quarter of the keys: else most of the table would never be used.
        let least = keys as u64 / 4;
        self.patience.fetch_max(least, Ordering::Relaxed);
        let is_outgrown = capacity == 0 || (crowded > descents / 2 && keys > capacity);
        (leaf_bytes >= LEAF_BYTES_MIN && descents >= least && is_outgrown).then_some(keys)
    }

    /// The table was left, as memory of the tree was given back, or none could be made.
    pub fn was_in_vain(&self) {
        let patience = self.patience.load(Ordering::Relaxed);
        self.patience.store((patience * 2).min(PATIENCE_MAX), Ordering::Relaxed);
    }
}
