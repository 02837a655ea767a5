//! What is in nodes, taken out of them, and nodes' words made of it: for all changes but that of one entry.

use crate::node::{
    Extras, Fence, HEAD_BYTES, HEADER_WORDS, LARGE_WORDS, Node, SMALL_WORDS, Shape, Slot, Words, code, extension_word,
    extension_words, fence_words, payload_words,
};
use std::ops::Range;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Of the key, in `Content::bytes`.
    start: u32,
    len: u32,
    pub row: u64,
    /// An inner node's: a link.
    pub child: u64,
}

/// A node's entries, decoded, or those of several neighbours.
#[derive(Debug, Default)]
pub(crate) struct Content {
    pub level: u8,
    pub lower: Fence,
    pub upper: Option<Fence>,
    /// An inner node's last child.
    pub last_child: u64,
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

impl Content {
    /// Of a node that is locked, or a copy.
    pub fn of(view: &impl Words) -> Content {
        let mut content = Content {
            level: view.shape().level(),
            lower: view.lower_fence(),
            upper: view.upper_fence(),
            last_child: view.word(3),
            bytes: Vec::new(),
            entries: Vec::new(),
        };
        content.append_entries(view);
        content
    }

    /// Adds a right neighbour's. Of inner nodes what lies between, this one's upper fence, becomes a separator.
    pub fn append(&mut self, view: &impl Words) {
        if self.level > 0
            && let Some(upper) = self.upper.take()
        {
            self.push(&upper.key, upper.row, self.last_child);
        }
        self.append_entries(view);
        self.upper = view.upper_fence();
        self.last_child = view.word(3);
    }

    fn append_entries(&mut self, view: &impl Words) {
        let mut key = Vec::new();
        view.copy_prefix(&mut key);
        let prefix_len = key.len();
        let count = view.shape().count();
        // As many bytes as an entry without words of its own can have, which most are.
        self.bytes.reserve((count + 1) * (prefix_len + HEAD_BYTES));
        self.entries.reserve(count + 1);
        for index in 0..count {
            let slot = view.slot(index);
            key.truncate(prefix_len);
            view.copy_rest(slot, &mut key);
            let first = view.word(slot.payload());
            let (row, child) = if self.level == 0 { (first, 0) } else { (view.separator_row(slot), first) };
            self.push(&key, row, child);
        }
    }

    pub fn push(&mut self, key: &[u8], row: u64, child: u64) {
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(key);
        self.entries.push(Entry { start, len: key.len() as u32, row, child });
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn entry(&self, index: usize) -> Entry {
        self.entries[index]
    }

    pub fn key(&self, index: usize) -> &[u8] {
        let Entry { start, len, .. } = self.entries[index];
        &self.bytes[start as usize..(start + len) as usize]
    }

    /// Forgets the first `count` entries, and begins at `lower`.
    pub fn keep_from(&mut self, count: usize, lower: Fence) {
        self.entries.drain(..count);
        let start = self.entries.first().map_or(self.bytes.len() as u32, |entry| entry.start);
        self.bytes.drain(..start as usize);
        for entry in &mut self.entries {
            entry.start -= start;
        }
        self.lower = lower;
    }

    /// Words that a node of these entries needs.
    pub fn words(&self, entries: Range<usize>, lower: &Fence, upper: Option<&Fence>) -> usize {
        let prefix_len = prefix_len(lower, upper);
        let entries: usize = entries.map(|index| self.entry_words(index, prefix_len)).sum();
        HEADER_WORDS + fence_words(lower.key.len()) + upper.map_or(0, |upper| fence_words(upper.key.len())) + entries
    }

    /// Words of an entry with its slot, of which `prefix_len` bytes are left out.
    pub fn entry_words(&self, index: usize, prefix_len: usize) -> usize {
        let entry = self.entries[index];
        1 + payload_words(self.level, entry.row, (entry.len as usize).saturating_sub(prefix_len))
    }

    /// A node of these entries, of `size_words`, in which they have room.
    pub fn build(
        &self,
        entries: Range<usize>,
        lower: &Fence,
        upper: Option<&Fence>,
        last_child: u64,
        size_words: usize,
    ) -> Image {
        debug_assert!(self.words(entries.clone(), lower, upper) <= size_words);
        let prefix_len = prefix_len(lower, upper);
        let mut words = vec![0; size_words];
        let mut heap = size_words;
        for fence in [Some(lower), upper].into_iter().flatten() {
            heap -= fence_words(fence.key.len());
            for n in 0..fence.key.len().div_ceil(8) {
                words[heap + n] = crate::node::load(&fence.key, 8 * n);
            }
            words[heap + fence.key.len().div_ceil(8)] = fence.row;
        }
        let count = entries.len();
        for (position, index) in entries.enumerate() {
            let Entry { row, child, .. } = self.entries[index];
            let rest = &self.key(index)[prefix_len..];
            heap -= payload_words(self.level, row, rest.len());
            let slot = Slot::new(code(rest), self.level > 0 && row != 0, heap);
            words[HEADER_WORDS + position] = slot.0;
            write_payload(slot, self.level, row, child, rest, |at, word| words[at] = word);
        }
        words[1] = Shape::new(self.level, prefix_len, heap, count).0;
        words[2] = Extras::new(lower.key.len(), upper.map(|upper| upper.key.len())).0;
        words[3] = if self.level == 0 { crate::node::head(&lower.key, prefix_len) } else { last_child };
        Image { words, count, heap }
    }
}

/// Writes what belongs to a slot.
#[inline]
pub(crate) fn write_payload(
    slot: Slot,
    level: u8,
    row: u64,
    child: u64,
    rest: &[u8],
    mut write: impl FnMut(usize, u64),
) {
    write(slot.payload(), if level == 0 { row } else { child });
    if slot.has_row() {
        write(slot.payload() + 1, row);
    }
    for n in 0..extension_words(rest.len()) {
        write(slot.extension() + n, extension_word(rest, n));
    }
}

/// Bytes that all keys between two fences begin with.
pub(crate) fn prefix_len(lower: &Fence, upper: Option<&Fence>) -> usize {
    upper.map_or(0, |upper| common_len(&lower.key, &upper.key))
}

pub(crate) fn common_len(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The shortest fence that is after the first entry and not after the second (Bayer, Unterauer: "Prefix B-trees", 1977).
pub(crate) fn separator(left: (&[u8], u64), right: (&[u8], u64)) -> Fence {
    let common = common_len(left.0, right.0);
    match right.0.get(..common + 1) {
        Some(key) => Fence { key: key.to_vec(), row: 0 },
        // Equal keys: the right one is not shorter, as it is not before the left.
        None => Fence { key: right.0.to_vec(), row: right.1 },
    }
}

/// The size of a node for content of so many words, with room to grow; `None` if it is too much for any.
pub(crate) fn size_for(words: usize) -> Option<usize> {
    if words <= SMALL_WORDS {
        Some(SMALL_WORDS)
    } else if words <= LARGE_WORDS {
        Some(LARGE_WORDS)
    } else {
        None
    }
}

/// The words of a node to be.
#[derive(Debug)]
pub(crate) struct Image {
    words: Vec<u64>,
    count: usize,
    heap: usize,
}

impl Image {
    pub fn size_words(&self) -> usize {
        self.words.len()
    }

    /// Leaves room behind the payloads of a leaf that has none yet.
    pub fn lose(&mut self, words: usize) {
        debug_assert_eq!(self.count, 0);
        self.heap -= words;
        let shape = Shape(self.words[1]);
        self.words[1] = Shape::new(shape.level(), shape.prefix_len(), self.heap, 0).0;
        self.words[2] = Extras(self.words[2]).with_lost(words).0;
    }

    /// Writes it into a locked node of its size.
    pub fn store(&self, node: Node) {
        debug_assert_eq!(node.size_words(), self.words.len());
        for at in (1..HEADER_WORDS + self.count).chain(self.heap..self.words.len()) {
            node.set_word(at, self.words[at]);
        }
    }
}
