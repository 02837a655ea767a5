//! The tree: finding, putting in and taking out one entry. What changes the tree's shape is in `shape`.

use crate::arena::{Arena, IndexMemory};
use crate::content::{Content, write_payload};
use crate::finger::Fingers;
use crate::lock::{self, Restart, Version};
use crate::node::{
    Extras, Fence, HEADER_WORDS, Node, SMALL_WORDS, Shape, Side, Slot, Target, Words, code, fence_words, load,
    payload_words,
};
use crate::pace::{Counted, Spaces, Touched};
use crate::sync::{AtomicU64, Backoff, Ordering, fence};
use crate::uses::Uses;
use std::sync::Arc;
// Not loom's: numbers that are drawn order nothing.
use std::sync::atomic::AtomicU64 as Counter;
use tidepool_base::{Error, Result, RowId, SqlState};
use tidepool_tablespace::Tablespace;
use tidepool_txn::{Transactions, View};

/// Longest key, bytes. As PostgreSQL's: three such entries fit a node of the larger kind, with its fences.
pub const KEY_BYTES_MAX: usize = 2704;

/// Encoded keys to row ids, in order: a B+-tree whose nodes lie in a tablespace.
///
/// Equal keys are told apart by their row ids. Readers take no lock and write no shared memory.
#[derive(Debug)]
pub struct Index {
    pub(crate) arena: Arena,
    /// The root's link. Changed by whoever has the root locked.
    pub(crate) root: AtomicU64,
    pub(crate) spaces: Spaces,
    uses: Uses,
    /// No other index of the process has, or had, the same.
    number: u64,
}

/// The next index's.
static NUMBERS: Counter = Counter::new(1);

/// A node on the way down, and where it was found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    pub node: Node,
    pub version: Version,
    /// `None`: the node is the root.
    pub parent: Option<Parent>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Parent {
    pub node: Node,
    pub version: Version,
    /// Which of its children.
    pub index: usize,
}

/// A node that this thread has locked, until dropped.
#[derive(Debug)]
pub(crate) struct Locked {
    node: Node,
    changed: bool,
}

impl Locked {
    #[inline]
    pub fn new(node: Node, version: Version) -> Result<Locked, Restart> {
        lock::lock(node.version(), version)?;
        Ok(Locked { node, changed: false })
    }

    /// A node that the arena has just given.
    pub fn fresh(node: Node) -> Locked {
        Locked { node, changed: true }
    }

    #[inline]
    pub fn node(&self) -> Node {
        self.node
    }

    /// To be changed.
    #[inline]
    pub fn node_mut(&mut self) -> Node {
        self.changed = true;
        self.node
    }

    /// No other node refers to it any more.
    pub fn retire(self, arena: &Arena) {
        let (node, level) = (self.node, self.node.shape().level());
        std::mem::forget(self);
        arena.retire(node, level);
    }
}

impl Drop for Locked {
    #[inline]
    fn drop(&mut self) {
        if self.changed {
            lock::unlock_changed(self.node.version());
        } else {
            lock::unlock_unchanged(self.node.version());
        }
    }
}

/// Whether waiting for a locked node is allowed: not to those who hold one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Yes,
    No,
}

/// What came of an attempt.
pub(crate) enum Attempt<T> {
    Done(T),
    /// The leaf of the entry must have room for so many words more.
    Full(usize),
}

impl Index {
    /// An empty index. 53200 when the tablespace is full.
    pub fn create(space: Arc<Tablespace>, transactions: Arc<Transactions>) -> Result<Index> {
        let arena = Arena::new(space.clone(), transactions);
        let root = arena.take(SMALL_WORDS, 0)?;
        let empty = Content::default();
        empty.build(0..0, &empty.lower, None, 0, SMALL_WORDS).store(root);
        lock::unlock_changed(root.version());
        let root = AtomicU64::new(root.link());
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Ok(Index { arena, root, spaces: Spaces::new(space), uses: Uses::default(), number })
    }

    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Where new nodes are put.
    pub fn tablespace(&self) -> Arc<Tablespace> {
        self.arena.tablespace()
    }

    pub fn memory(&self) -> IndexMemory {
        self.arena.memory()
    }

    /// What was touched since this was last asked, but by those who count for themselves.
    pub fn take_touched(&self) -> Touched {
        self.uses.take()
    }

    /// Gives memory back that nobody reads any more. Changes of the tree's shape do the same.
    pub fn reclaim(&self) {
        self.arena.reclaim();
    }

    /// # Safety
    /// The link was the root's, or a child's of a node at a version that was checked since, or a hint's of a directory that was current,
    /// under the view at hand; or a finger's, and no memory of nodes has left since (see `finger`).
    #[inline]
    pub(crate) unsafe fn node(&self, link: u64) -> Node {
        // SAFETY: it was a node of this tree under the caller's view, or its memory was not given up by then (see `directory`). Its memory stays a node's of this tree until no view
        // of that time is held any more.
        unsafe { Node::from_link(link) }
    }

    pub(crate) fn root(&self, wait: Wait) -> Result<(Node, Version), Restart> {
        // Acquire: the root was filled before.
        let link = self.root.load(Ordering::Acquire);
        // SAFETY: the root's.
        let node = unsafe { self.node(link) };
        let version = if wait == Wait::Yes { node.read()? } else { node.try_read()? };
        // A root that is replaced stays locked until the new one is known: so if it is still known, it is the root at
        // this version.
        if self.root.load(Ordering::Acquire) == link { Ok((node, version)) } else { Err(Restart) }
    }

    /// The node at `level` in which `target` lies, or the root if that is not above `level`. What is read of it is to be
    /// checked against the version.
    #[inline]
    pub(crate) fn descend(
        &self,
        target: &Target<'_>,
        side: Side,
        level: u8,
        wait: Wait,
        touched: &mut Touched,
    ) -> Result<Spot, Restart> {
        self.descend_by(level, wait, touched, |node, shape| node.child_index(shape, target, side))
    }

    /// The last leaf.
    pub(crate) fn descend_last(&self, touched: &mut Touched) -> Result<Spot, Restart> {
        self.descend_by(0, Wait::Yes, touched, |_, shape| shape.count())
    }

    #[inline]
    pub(crate) fn descend_by(
        &self,
        level: u8,
        wait: Wait,
        touched: &mut Touched,
        mut choose: impl FnMut(&Node, Shape) -> usize,
    ) -> Result<Spot, Restart> {
        let (mut node, mut version) = self.root(wait)?;
        let mut parent = None;
        loop {
            let shape = node.shape();
            touched.node(shape);
            if shape.level() <= level {
                return Ok(Spot { node, version, parent });
            }
            let index = choose(&node, shape);
            let link = node.child(index);
            node.check(version)?;
            // SAFETY: a child of a node at a version just checked.
            let child = unsafe { self.node(link) };
            child.prefetch(if shape.level() == 1 { LEAF_LINES } else { INNER_LINES });
            // Whoever may wait for a node holds none.
            if shape.level() == 1 && wait == Wait::Yes {
                self.spaces.arrive();
            }
            let child_version = if wait == Wait::Yes { child.read()? } else { child.try_read()? };
            // It was still the child when its version was read.
            node.check(version)?;
            parent = Some(Parent { node, version, index });
            (node, version) = (child, child_version);
        }
    }

    /// Repeats what met somebody's change. While the view is held, memory that this may read is kept. What is touched is
    /// counted by the caller, or else here.
    #[inline]
    pub(crate) fn retry<T>(
        &self,
        view: &View,
        counted: Option<&mut Counted>,
        mut attempt: impl FnMut(&mut Touched) -> Result<T, Restart>,
    ) -> T {
        assert!(self.arena.is_kept_by(view), "a view of the index's own transactions keeps its nodes");
        let mut touched = Touched::default();
        let mut backoff = Backoff::new();
        loop {
            if let Ok(done) = attempt(&mut touched) {
                self.count(touched, counted);
                return done;
            }
            backoff.pause();
        }
    }

    /// Counts what was touched for the caller, or else here.
    #[inline]
    pub(crate) fn count(&self, touched: Touched, counted: Option<&mut Counted>) {
        match counted {
            Some(counted) => {
                let paced = self.spaces.charge(&touched, &self.arena);
                *counted += Counted { touched, paced: paced.unwrap_or_default() };
            }
            None => self.charge(&touched),
        }
    }

    /// Counts what was touched for nobody in particular.
    #[inline]
    pub(crate) fn charge(&self, touched: &Touched) {
        self.spaces.gather(touched, &self.arena);
        self.uses.add(touched);
    }

    /// Puts an entry in. False if it is there already. 54000 for a key that is too long, 53200 when the tablespace is
    /// full; the index is then as it was.
    pub fn insert(&self, view: &View, key: &[u8], row: RowId) -> Result<bool> {
        self.insert_near(view, key, row, &mut Fingers::default())
    }

    /// As `insert`, of a thread that puts several in, which is quicker where they come in order.
    pub fn insert_near(&self, view: &View, key: &[u8], row: RowId, fingers: &mut Fingers) -> Result<bool> {
        check_key(key)?;
        let target = Target::before(key, row.0);
        loop {
            match self.retry(view, None, |touched| self.try_insert(&target, fingers, touched)) {
                Attempt::Done(new) => return Ok(new),
                Attempt::Full(words) => self.make_room(&target, 0, words)?,
            }
        }
    }

    #[inline]
    fn try_insert(
        &self,
        target: &Target<'_>,
        fingers: &mut Fingers,
        touched: &mut Touched,
    ) -> Result<Attempt<bool>, Restart> {
        let (node, version, position) = self.leaf_to_write(target, fingers, touched)?;
        if node.is_entry(node.shape(), position, target) {
            node.check(version)?;
            return Ok(Attempt::Done(false));
        }
        let mut leaf = Locked::new(node, version)?;
        touched.write();
        Ok(match leaf.put_row(position, target) {
            Ok(()) => Attempt::Done(true),
            Err(words) => Attempt::Full(words),
        })
    }

    /// The leaf in which the target lies, and how many of its entries are before the target: true if it is still at the version when it is
    /// locked. The next time a target near it is found from there.
    #[inline]
    pub(crate) fn leaf_to_write(
        &self,
        target: &Target<'_>,
        fingers: &mut Fingers,
        touched: &mut Touched,
    ) -> Result<(Node, Version, usize), Restart> {
        if let Some(leaf) = fingers.leaf(self, target, touched) {
            return Ok(leaf);
        }
        let departures = self.arena.departures();
        let Spot { node, version, .. } = self.descend(target, Side::Right, 0, Wait::Yes, touched)?;
        fingers.put(self, node, departures);
        Ok((node, version, node.position(node.shape(), target)))
    }

    /// Whether there is this entry: of many that a key has, it is found as quickly as of one.
    pub fn has(&self, view: &View, key: &[u8], row: RowId) -> bool {
        let target = Target::before(key, row.0);
        self.retry(view, None, |touched| {
            let Spot { node, version, .. } = self.descend(&target, Side::Right, 0, Wait::Yes, touched)?;
            let shape = node.shape();
            let is_there = node.is_entry(shape, node.position(shape, &target), &target);
            node.check(version)?;
            Ok(is_there)
        })
    }

    /// Takes an entry out. False if there is none.
    pub fn remove(&self, view: &View, key: &[u8], row: RowId) -> bool {
        self.remove_unless(view, key, row, || false)
    }

    /// Takes an entry out, unless `is_wanted`. False if there is none, or it stays.
    ///
    /// `is_wanted` is asked under the leaf's lock, after a full fence: it must be quick, wait for nobody and leave this index
    /// alone. So whoever first makes what it looks for visible, then passes a full fence, and then inserts the entry (and
    /// perhaps finds that it is there) can rely on it: either `is_wanted` saw it, or the insertion comes after the removal.
    pub fn remove_unless(&self, view: &View, key: &[u8], row: RowId, mut is_wanted: impl FnMut() -> bool) -> bool {
        let target = Target::before(key, row.0);
        let (removed, is_small) = self.retry(view, None, |touched| self.try_remove(&target, &mut is_wanted, touched));
        if is_small {
            self.tidy(&target, 0);
        }
        removed
    }

    fn try_remove(
        &self,
        target: &Target<'_>,
        is_wanted: &mut impl FnMut() -> bool,
        touched: &mut Touched,
    ) -> Result<(bool, bool), Restart> {
        let Spot { node, version, .. } = self.descend(target, Side::Right, 0, Wait::Yes, touched)?;
        let shape = node.shape();
        let position = node.position(shape, target);
        if !node.is_entry(shape, position, target) {
            node.check(version)?;
            return Ok((false, false));
        }
        let mut leaf = Locked::new(node, version)?;
        fence(Ordering::SeqCst);
        if is_wanted() {
            return Ok((false, false));
        }
        touched.write();
        leaf.take_out(position);
        Ok((true, node.is_small()))
    }
}

/// Lines of a leaf that are fetched at once: all of a small one. So a look-up waits once for far memory, not again for a slot and
/// again for the entry; the lines that it does not need cost less than that.
pub(crate) const LEAF_LINES: usize = 16;
/// Of an inner node, which is mostly in the caches.
pub(crate) const INNER_LINES: usize = 3;

/// Fewer lost words are not worth writing a node anew for: it would be full again soon. And a leaf keeps some for its next fence.
const LOST_MIN: usize = if cfg!(loom) { 1 } else { 8 };

pub(crate) fn check_key(key: &[u8]) -> Result<()> {
    if key.len() <= KEY_BYTES_MAX {
        return Ok(());
    }
    Err(Error::new(
        SqlState::PROGRAM_LIMIT_EXCEEDED,
        format!("index row size {} exceeds index row size maximum {KEY_BYTES_MAX}", key.len()),
    )
    .with_hint("Values larger than this cannot be indexed. Consider an index on an expression of the value, or a shorter column."))
}

impl Node {
    /// Whether the entry at `position` is the target's own.
    #[inline]
    fn is_entry(&self, shape: Shape, position: usize, target: &Target<'_>) -> bool {
        let rest = target.key.get(shape.prefix_len()..).unwrap_or(&[]);
        position < shape.count() && self.row(position) == target.row && self.has_key(position, rest)
    }

    /// Whether a node has so few entries that it might be joined with a neighbour. True now and then only, so that one that cannot be
    /// joined is not tried at each removal.
    pub(crate) fn is_small(&self) -> bool {
        let count = self.shape().count();
        count == 0 || (count.is_multiple_of(4) && self.used_words() < self.size_words() / 4)
    }
}

impl Locked {
    /// Makes `words` free between slots and payloads, if the node has so many.
    pub fn has_room(&mut self, words: usize) -> bool {
        if self.node.free_words() >= words {
            return true;
        }
        let lost = self.node.extras().lost();
        if lost < LOST_MIN || self.node.free_words() + lost < words {
            return false;
        }
        let content = Content::of(&self.node);
        let last = self.node.extras().last();
        let image = content.build(
            0..content.len(),
            &content.lower,
            content.upper.as_ref(),
            content.last_child,
            self.node.size_words(),
        );
        let node = self.node_mut();
        image.store(node);
        node.set_word(2, node.extras().with_last(last).0);
        true
    }

    /// Puts a leaf's entry in, or says how many words it needs.
    #[inline]
    pub fn put_row(&mut self, position: usize, target: &Target<'_>) -> Result<(), usize> {
        self.put(position, target.key, target.row, 0)
    }

    /// Puts an entry in at its place, or says how many words it needs.
    #[inline]
    pub fn put(&mut self, position: usize, key: &[u8], row: u64, child: u64) -> Result<(), usize> {
        let rest_of = |shape: Shape| key.get(shape.prefix_len()..).unwrap_or(&[]);
        let level = self.node.shape().level();
        let words = 1 + payload_words(level, row, rest_of(self.node.shape()).len());
        if !self.has_room(words) {
            return Err(words);
        }
        let node = self.node_mut();
        // Made room, its entries may begin with more bytes than before.
        let shape = node.shape();
        let rest = rest_of(shape);
        let heap = shape.heap() - payload_words(level, row, rest.len());
        let slot = Slot::new(code(rest), level > 0 && row != 0, heap);
        write_payload(slot, level, row, child, rest, |at, word| node.set_word(at, word));
        for at in (HEADER_WORDS + position..HEADER_WORDS + shape.count()).rev() {
            node.set_word(at + 1, node.word(at));
        }
        node.set_word(HEADER_WORDS + position, slot.0);
        node.set_word(1, Shape::new(level, shape.prefix_len(), heap, shape.count() + 1).0);
        node.set_word(2, node.extras().with_last(position).0);
        Ok(())
    }

    pub fn take_out(&mut self, position: usize) {
        let node = self.node_mut();
        let (shape, extras) = (node.shape(), node.extras());
        let slot = node.slot(position);
        let words = node.entry_payload_words(slot);
        for at in HEADER_WORDS + position + 1..HEADER_WORDS + shape.count() {
            node.set_word(at - 1, node.word(at));
        }
        let is_first = slot.payload() == shape.heap();
        let heap = if is_first { shape.heap() + words } else { shape.heap() };
        let lost = if is_first { extras.lost() } else { extras.lost() + words };
        node.set_word(1, Shape::new(shape.level(), shape.prefix_len(), heap, shape.count() - 1).0);
        node.set_word(2, extras.with_lost(lost).with_last(Extras::NOWHERE).0);
    }

    /// Makes a leaf end at a nearer fence, for which there is room behind its payloads.
    pub fn end_at(&mut self, upper: &Fence) {
        let node = self.node_mut();
        let (extras, end_before) = (node.extras(), node.payloads_end());
        let at = node.lower_at() - fence_words(upper.key.len());
        for n in 0..upper.key.len().div_ceil(8) {
            node.set_word(at + n, load(&upper.key, 8 * n));
        }
        node.set_word(at + upper.key.len().div_ceil(8), upper.row);
        let lost = extras.lost() + at - end_before;
        node.set_word(2, extras.with_upper_len(upper.key.len()).with_lost(lost).with_last(Extras::NOWHERE).0);
    }

    /// Makes child `index` another node.
    pub fn set_child(&mut self, index: usize, link: u64) {
        let node = self.node_mut();
        let at = if index >= node.shape().count() { 3 } else { node.slot(index).payload() };
        node.set_word(at, link);
    }
}
