//! A tree's nodes: memory taken from a tablespace in regions, cut into nodes of one of two sizes, and used again.
//!
//! A node that leaves the tree may be made another node at once: all of a node's words are atomics, whatever it is, its
//! version only grows, and a reader asks for that before it believes what it read. Only when a region goes back to its
//! tablespace must nobody read from it any more: it is kept until the *horizon* has passed the moment at which its last
//! node had left.
//!
//! Taking a node waits for a mutex of the tree's own: once in the many insertions that fill a node.

use crate::directory::{self, Demand, Table};
use crate::lock;
use crate::node::{LARGE_WORDS, Node, SMALL_WORDS, Words};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, fence};
use std::sync::Arc;
use tidepool_base::{CommitTs, Result};
use tidepool_tablespace::{Purpose, Region, Tablespace};
use tidepool_txn::{Transactions, View};

/// Regions start with this and double, so that a small index is small.
#[cfg(not(loom))]
const REGION_BYTES_MIN: usize = 16 << 10;
/// One huge page.
#[cfg(not(loom))]
const REGION_BYTES_MAX: usize = 2 << 20;
/// As few atomics as can be.
#[cfg(loom)]
const REGION_BYTES_MIN: usize = 8 * SMALL_WORDS * 8;
#[cfg(loom)]
const REGION_BYTES_MAX: usize = REGION_BYTES_MIN;

const SPARE_NODES_MIN: usize = 8;

const WORD_BYTES: usize = size_of::<AtomicU64>();

#[cfg(not(loom))]
type Memory = Region;

/// `bytes` of a tablespace, and their first word.
#[cfg(not(loom))]
fn take_memory(space: &Arc<Tablespace>, bytes: usize) -> Result<(Memory, *const AtomicU64)> {
    let mut region = space.allocate(bytes, Purpose::Index)?;
    let words = region.as_mut_ptr().cast_const().cast();
    Ok((region, words))
}

/// loom's atomics are no plain memory.
#[cfg(loom)]
#[derive(Debug)]
struct Memory {
    region: Region,
    _words: Box<[AtomicU64]>,
}

#[cfg(loom)]
fn take_memory(space: &Arc<Tablespace>, bytes: usize) -> Result<(Memory, *const AtomicU64)> {
    let region = space.allocate(bytes, Purpose::Index)?;
    let words: Box<[AtomicU64]> = (0..bytes / 8).map(|_| AtomicU64::new(0)).collect();
    let first = words.as_ptr();
    Ok((Memory { region, _words: words }, first))
}

#[cfg(loom)]
impl std::ops::Deref for Memory {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}

#[derive(Debug)]
struct Block {
    region: Memory,
    /// Address of its first node.
    start: usize,
    node_words: usize,
    nodes: usize,
    /// Nodes that were never used are the last ones.
    fresh: usize,
    /// Link of the first retired node, and through their second words all others; 0 behind the last.
    free: u64,
    free_count: usize,
    /// To be emptied: gives no more nodes.
    closing: bool,
}

impl Block {
    fn end(&self) -> usize {
        self.start + self.nodes * self.node_words * WORD_BYTES
    }

    fn is_idle(&self) -> bool {
        self.free_count == self.nodes
    }
}

#[derive(Debug)]
struct Books {
    space: Arc<Tablespace>,
    /// In order of their addresses.
    blocks: Vec<Block>,
    /// Where nodes of either size were found last.
    current: [usize; 2],
    /// The current table of where keys are.
    directory: Option<Memory>,
    /// Regions whose nodes have all left, and tables that others followed, with the moment of that.
    leaving: Vec<(CommitTs, Memory)>,
}

/// What a tree holds of memory, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexMemory {
    /// Of the tablespace's.
    pub held_bytes: u64,
    /// Of nodes in the tree.
    pub used_bytes: u64,
    /// Of those, of inner nodes.
    pub inner_bytes: u64,
    /// Of `held_bytes`, those of the table of where keys are.
    pub directory_bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Arena {
    books: Mutex<Books>,
    transactions: Arc<Transactions>,
    // For those who charge accesses: changed only with the tree's shape.
    leaf_bytes: AtomicU64,
    inner_bytes: AtomicU64,
    /// Address of the table in `Books::directory`, or 0.
    directory: AtomicU64,
    /// Its bytes.
    directory_bytes: AtomicU64,
    /// How often memory of nodes left.
    departures: AtomicU64,
    pub demand: Demand,
}

impl Arena {
    pub fn new(space: Arc<Tablespace>, transactions: Arc<Transactions>) -> Arena {
        Arena {
            books: Mutex::new(Books {
                space,
                blocks: Vec::new(),
                current: [0; 2],
                directory: None,
                leaving: Vec::new(),
            }),
            transactions,
            leaf_bytes: AtomicU64::new(0),
            inner_bytes: AtomicU64::new(0),
            directory: AtomicU64::new(0),
            directory_bytes: AtomicU64::new(0),
            departures: AtomicU64::new(0),
            demand: Demand::default(),
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        crate::sync::lock(&self.books)
    }

    pub fn tablespace(&self) -> Arc<Tablespace> {
        self.books().space.clone()
    }

    fn counter(&self, level: u8) -> &AtomicU64 {
        if level == 0 { &self.leaf_bytes } else { &self.inner_bytes }
    }

    /// Bytes of the table of where keys are.
    pub fn directory_bytes(&self) -> u64 {
        self.directory_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of the leaves, and of the inner nodes, in the tree.
    pub fn used_bytes(&self) -> (u64, u64) {
        (self.leaf_bytes.load(Ordering::Relaxed), self.inner_bytes.load(Ordering::Relaxed))
    }

    pub fn memory(&self) -> IndexMemory {
        let books = self.books();
        let regions =
            books.blocks.iter().map(|block| &block.region).chain(books.leaving.iter().map(|(_, region)| region));
        let bytes_of = |region: &Memory| region.len_bytes() as u64;
        let directory_bytes = books.directory.as_ref().map_or(0, bytes_of);
        let held_bytes = directory_bytes + regions.map(bytes_of).sum::<u64>();
        let (leaf_bytes, inner_bytes) = self.used_bytes();
        IndexMemory { held_bytes, used_bytes: leaf_bytes + inner_bytes, inner_bytes, directory_bytes }
    }

    /// The table of where keys are, if there is one. The caller holds a view, for as long as he uses it.
    #[inline]
    pub fn directory(&self) -> Option<Table> {
        // Acquire: the table was made before.
        let address = self.directory.load(Ordering::Acquire);
        // SAFETY: made by `set_directory`, and its memory is kept until no view is held of the time when it was here.
        (address != 0).then(|| unsafe { Table::at(std::ptr::with_exposed_provenance(address as usize)) })
    }

    /// Makes an empty table for so many keys the current one. None, where there is no room for one.
    #[cold]
    pub fn set_directory(&self, keys: usize) {
        let mut books = self.books();
        let words = directory::words_for(keys);
        let Ok((memory, first)) = take_memory(&books.space, words * WORD_BYTES) else {
            self.demand.was_in_vain();
            return;
        };
        // SAFETY: the region has so many words, and nobody else knows it.
        unsafe { Table::make(first, words) };
        self.leave_directory(&mut books);
        self.directory_bytes.store(memory.len_bytes() as u64, Ordering::Relaxed);
        books.directory = Some(memory);
        self.directory.store(first.expose_provenance() as u64, Ordering::Release);
        self.release(books);
    }

    /// From now on there is no table, so that what any says is known to none who begins from now on.
    fn leave_directory(&self, books: &mut Books) {
        if let Some(memory) = books.directory.take() {
            self.directory.store(0, Ordering::Release);
            self.directory_bytes.store(0, Ordering::Relaxed);
            books.leaving.push((self.now(), memory));
        }
    }

    /// How often memory of nodes left the tree, or was about to. While the caller holds a view, what was a node of the tree at one time
    /// stays one of its memory's nodes, retired or not, if this is the same before that and now.
    #[inline]
    pub fn departures(&self) -> u64 {
        // Acquire: what follows comes after.
        self.departures.load(Ordering::Acquire)
    }

    /// Memory of nodes is about to leave, which hints and fingers may name.
    fn leave_directory_for_nodes(&self, books: &mut Books) {
        // Under the lock of the books.
        self.departures.store(self.departures.load(Ordering::Relaxed) + 1, Ordering::Release);
        if books.directory.is_some() {
            self.demand.was_in_vain();
        }
        self.leave_directory(books);
    }

    /// A node for `level`, locked. 53200 when the tablespace is full.
    pub fn take(&self, size_words: usize, level: u8) -> Result<Node> {
        let node = self.books().take(size_words)?;
        self.counter(level).fetch_add(8 * size_words as u64, Ordering::Relaxed);
        lock::reuse(node.version());
        Ok(node)
    }

    /// Takes back a locked node that no other node refers to any more, or that none ever did.
    pub fn retire(&self, node: Node, level: u8) {
        lock::unlock_retired(node.version());
        self.counter(level).fetch_sub(8 * node.size_words() as u64, Ordering::Relaxed);
        let mut books = self.books();
        if let Some(block) = books.give_back(node)
            && books.is_dispensable(block)
        {
            self.leave_directory_for_nodes(&mut books);
            let block = books.blocks.remove(block);
            books.current = [0; 2];
            books.leaving.push((self.now(), block.region));
        }
        self.release(books);
    }

    /// The time as of which what is out of reach by now has left.
    fn now(&self) -> CommitTs {
        // After it is out of reach for all: a view's time is drawn before anything is looked at under it, with a full
        // fence in between.
        fence(Ordering::SeqCst);
        self.transactions.clock().now()
    }

    /// Whether what can be reached under the view stays where it is.
    #[inline]
    pub fn is_kept_by(&self, view: &View) -> bool {
        view.is_of(&self.transactions)
    }

    /// Gives back what nobody reads any more.
    pub fn reclaim(&self) {
        if !self.books().leaving.is_empty() {
            self.transactions.try_advance_horizon();
            self.release(self.books());
        }
    }

    fn release(&self, mut books: MutexGuard<'_, Books>) {
        if books.leaving.is_empty() {
            return;
        }
        let horizon = self.transactions.horizon();
        let gone: Vec<_> = books.leaving.extract_if(.., |(moment, _)| *moment < horizon).collect();
        drop(books);
        drop(gone);
    }

    /// From now on nodes come from `space`, and those that others gave are to be moved.
    pub fn set_tablespace(&self, space: Arc<Tablespace>) {
        let mut books = self.books();
        books.space = space;
        self.leave_directory(&mut books);
    }

    /// Closes the regions that are to be given up: those of another tablespace, and those that their tablespace takes away.
    /// Returns the addresses of their nodes, in order. Nodes there are taken no more.
    pub fn close_regions(&self) -> Vec<std::ops::Range<usize>> {
        let mut books = self.books();
        let books = &mut *books;
        if books.directory.as_ref().is_some_and(|memory| memory.is_closing()) {
            self.leave_directory(books);
        }
        let mut closing = Vec::new();
        let mut index = 0;
        while index < books.blocks.len() {
            let block = &mut books.blocks[index];
            block.closing = !Arc::ptr_eq(block.region.tablespace(), &books.space) || block.region.is_closing();
            if block.closing && block.is_idle() {
                self.leave_directory_for_nodes(books);
                let block = books.blocks.remove(index);
                books.leaving.push((self.now(), block.region));
                continue;
            }
            if block.closing {
                closing.push(block.start..block.end());
            }
            index += 1;
        }
        books.current = [0; 2];
        closing
    }
}

impl Books {
    fn take(&mut self, size_words: usize) -> Result<Node> {
        let class = usize::from(size_words == LARGE_WORDS);
        let count = self.blocks.len();
        let has_room = |block: &Block| block.node_words == size_words && !block.closing && block.free_count > 0;
        let found =
            (self.current[class]..count).chain(0..self.current[class].min(count)).find(|n| has_room(&self.blocks[*n]));
        let index = match found {
            Some(index) => index,
            None => self.grow(size_words)?,
        };
        self.current[class] = index;
        let block = &mut self.blocks[index];
        block.free_count -= 1;
        if block.free != 0 {
            // SAFETY: a node of this block.
            let node = unsafe { Node::from_link(block.free) };
            block.free = node.word(1);
            return Ok(node);
        }
        let address = block.start + block.fresh * size_words * WORD_BYTES;
        block.fresh += 1;
        // SAFETY: the next of the block's nodes, all words of which were made atomics when the block was made.
        Ok(unsafe { Node::new(std::ptr::with_exposed_provenance(address), size_words) })
    }

    /// Returns the new block's place.
    fn grow(&mut self, size_words: usize) -> Result<usize> {
        let held: usize = self.blocks.iter().filter(|block| block.node_words == size_words).map(Block::bytes).sum();
        let least = (size_words * 8).max(if cfg!(loom) { 1 } else { tidepool_device::PAGE_BYTES });
        let mut bytes =
            held.next_power_of_two().clamp(REGION_BYTES_MIN.max(4 * least), REGION_BYTES_MAX.max(4 * least));
        let (region, words) = loop {
            match take_memory(&self.space, bytes) {
                Ok(memory) => break memory,
                // What is left may be in pieces.
                Err(error) if error.is_of_room() && bytes > least => bytes /= 2,
                Err(error) => return Err(error),
            }
        };
        let start = words.expose_provenance();
        let nodes = bytes / (size_words * 8);
        for node in 0..nodes {
            // SAFETY: within the region, aligned as pages are, and nobody else's.
            let node = unsafe { Node::new(words.add(node * size_words), size_words) };
            lock::init(node.version());
        }
        let index = self.blocks.partition_point(|block| block.start < start);
        let block = Block {
            region,
            start,
            node_words: size_words,
            nodes,
            fresh: 0,
            free: 0,
            free_count: nodes,
            closing: false,
        };
        self.blocks.insert(index, block);
        // Places have moved.
        self.current = [0; 2];
        Ok(index)
    }

    /// Returns the place of the node's block, if none of its nodes is in use.
    fn give_back(&mut self, node: Node) -> Option<usize> {
        let index = self.blocks.partition_point(|block| block.start <= node.address()).checked_sub(1);
        let block = index.and_then(|index| self.blocks.get_mut(index)).filter(|block| node.address() < block.end());
        let Some(block) = block else {
            tidepool_device::stop(format_args!("a node is given back to an index that does not hold it"));
        };
        node.set_word(1, block.free);
        block.free = node.link();
        block.free_count += 1;
        if block.is_idle() { index } else { None }
    }

    /// Whether there are enough free nodes without an idle block that a tree which grows and shrinks in turns does not take
    /// and give memory each time.
    fn is_dispensable(&self, index: usize) -> bool {
        let block = &self.blocks[index];
        let others = self.blocks.iter().enumerate().filter(|(other, _)| *other != index);
        let (mut spare, mut used) = (0, 0);
        for (_, other) in others.filter(|(_, other)| other.node_words == block.node_words) {
            used += other.nodes - other.free_count;
            spare += if other.closing { 0 } else { other.free_count };
        }
        block.closing || spare >= used / 8 + SPARE_NODES_MIN
    }
}

impl Block {
    fn bytes(&self) -> usize {
        self.nodes * self.node_words * 8
    }
}

const _: () = assert!(SMALL_WORDS * 8 <= REGION_BYTES_MIN);
