//! Ranges of entries, and all entries of one key.

use crate::directory::{self, Followed, Table};
use crate::node::{Fence, HEADER_WORDS, Node, Shape, Side, Snapshot, Target, Words, code};
use crate::pace::{Counted, Touched};
use crate::tree::{Index, Wait};
use std::ops::{Bound, Deref};
use tidepool_base::RowId;
use tidepool_txn::View;

/// Keys from one bound to another.
pub type KeyRange<'k> = (Bound<&'k [u8]>, Bound<&'k [u8]>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Forward,
    Backward,
}

/// The row ids of one key, in order. Up to three without an allocation.
#[derive(Clone, Debug)]
pub struct Rows {
    len: usize,
    few: [RowId; 3],
    /// All of them, if there are more than three.
    many: Vec<RowId>,
}

impl Rows {
    pub(crate) fn new() -> Rows {
        Rows { len: 0, few: [RowId(0); 3], many: Vec::new() }
    }

    pub(crate) fn push(&mut self, row: RowId) {
        if let Some(place) = self.few.get_mut(self.len) {
            *place = row;
        } else {
            if self.many.is_empty() {
                self.many.extend_from_slice(&self.few);
            }
            self.many.push(row);
        }
        self.len += 1;
    }

    fn truncate(&mut self, len: usize) {
        self.len = len;
        self.many.truncate(if len > self.few.len() { len } else { 0 });
    }
}

impl Deref for Rows {
    type Target = [RowId];

    fn deref(&self) -> &[RowId] {
        if self.len <= self.few.len() { &self.few[..self.len] } else { &self.many }
    }
}

impl Index {
    /// All rows that have an entry of exactly this key.
    pub fn get(&self, view: &View, key: &[u8]) -> Rows {
        self.rows_of(view, key, None)
    }

    /// As `get`, for who counts for himself what it touches.
    pub fn get_counting(&self, view: &View, key: &[u8], counted: &mut Counted) -> Rows {
        self.rows_of(view, key, Some(counted))
    }

    #[inline]
    fn rows_of(&self, view: &View, key: &[u8], counted: Option<&mut Counted>) -> Rows {
        assert!(self.arena.is_kept_by(view), "a view of the index's own transactions keeps its nodes");
        // Before the tree: what is put down goes into a table that was current by then.
        let (directory, hash) = (self.arena.directory(), directory::hash(key));
        let mut touched = Touched::default();
        if let Some(directory) = directory {
            directory.prefetch(hash);
            touched.hints(1);
            self.spaces.arrive();
        }
        if let Some(directory) = directory
            && let Some(hint) = directory.find(hash)
        {
            // SAFETY: of a table that was current under the view.
            let node = unsafe { self.node(hint.link) };
            if self.spaces.are_far() {
                hint.prefetch(node, true);
                self.spaces.arrive();
            }
            if let Followed::Found { rows, moved_to } = hint.follow(node, key) {
                if let Some(position) = moved_to {
                    directory.put(hash, node, position);
                }
                touched.node(Shape::new(0, 0, 0, 0));
                self.count(touched, counted);
                return rows;
            }
        }
        let (rows, place) = self.rows_in_tree(view, key, touched, counted);
        if !rows.is_empty() {
            self.found_in_tree(directory, hash, place);
        }
        rows
    }

    /// A look-up found its key by going down the tree.
    #[inline]
    pub(crate) fn found_in_tree(&self, directory: Option<Table>, hash: u64, (leaf, position): (Node, usize)) {
        let is_crowded = directory.is_some_and(|directory| directory.put(hash, leaf, position));
        if self.arena.demand.descended(hash, is_crowded) {
            let (leaf_bytes, _) = self.arena.used_bytes();
            let capacity = directory.map_or(0, Table::capacity);
            // How many keys the leaf has, or had: nobody minds.
            if let Some(keys) = self.arena.demand.wanted(leaf_bytes, leaf.shape().count(), capacity) {
                self.arena.set_directory(keys);
            }
        }
    }

    /// The rows, and the leaf and the place in it where the first entry of the key is, or would be.
    #[inline]
    fn rows_in_tree(
        &self,
        view: &View,
        key: &[u8],
        mut before: Touched,
        mut counted: Option<&mut Counted>,
    ) -> (Rows, (Node, usize)) {
        let mut first = None;
        let mut rows = Rows::new();
        // Where the leaf before ended, if entries of the key go on behind it.
        let mut from = 0;
        loop {
            let had = rows.len;
            let (place, more) = self.retry(view, counted.as_deref_mut(), |touched| {
                rows.truncate(had);
                *touched += std::mem::take(&mut before);
                let target = Target::before(key, from);
                let spot = self.descend(&target, Side::Right, 0, Wait::Yes, touched)?;
                let (position, more) = spot.node.rows_of(key, from, &mut rows);
                spot.node.check(spot.version)?;
                Ok(((spot.node, position), more))
            });
            let first = *first.get_or_insert(place);
            match more {
                None => return (rows, first),
                Some(row) => from = row,
            }
        }
    }
}

impl Node {
    /// Appends the rows of a leaf's entries of this key, of row ids from `from` on. To be checked behind. Where the first of them is; and
    /// `Some`: they may go on behind the leaf, from that row id on.
    #[inline]
    pub(crate) fn rows_of(&self, key: &[u8], from: u64, rows: &mut Rows) -> (usize, Option<u64>) {
        let shape = self.shape();
        let count = shape.count().min(self.size_words());
        let rest = key.get(shape.prefix_len()..).unwrap_or(&[]);
        let code = code(rest);
        let first = self.position(shape, &Target::before(key, from));
        let mut position = first;
        while position < count {
            let slot = self.slot(position);
            if slot.code() != code || self.compare_extension(slot, rest).is_ne() {
                break;
            }
            rows.push(RowId(self.word(slot.payload())));
            position += 1;
        }
        (first, if position >= count { self.upper_fence_has_key(key) } else { None })
    }
}

/// A walk over a range of entries. It holds nothing of the index between two steps, and may rest for as long as it likes.
///
/// It delivers every entry that is there all along exactly once, in order, whatever is put in and taken out beside it. Of
/// those that come or go meanwhile it delivers some. A leaf's entries are as they were at one moment.
#[derive(Debug)]
pub struct Cursor {
    lower: OwnedBound,
    upper: OwnedBound,
    direction: Direction,
    leaf: Snapshot,
    /// Entries of the leaf that are still to come.
    positions: std::ops::Range<usize>,
    /// Where the next leaf begins, or going backward where it ends. `None`: there is none.
    next: Option<Next>,
    key: Vec<u8>,
    /// Bytes of `key` that are the leaf's prefix, if that is there.
    prefix_len: Option<usize>,
    /// `None`: the index counts.
    counted: Option<Counted>,
}

#[derive(Clone, Debug)]
enum Next {
    /// The first leaf of the range.
    Start,
    Fence(Fence),
}

/// A place between entries, or an end of them all.
#[derive(Clone, Debug)]
struct OwnedBound {
    key: Vec<u8>,
    kind: BoundKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BoundKind {
    /// Before the entries of the key.
    First,
    /// After them.
    Last,
    None,
}

impl Default for OwnedBound {
    fn default() -> OwnedBound {
        OwnedBound { key: Vec::new(), kind: BoundKind::None }
    }
}

impl OwnedBound {
    fn set(&mut self, bound: Bound<&[u8]>, included: BoundKind, excluded: BoundKind) {
        let (key, kind) = match bound {
            Bound::Included(key) => (key, included),
            Bound::Excluded(key) => (key, excluded),
            Bound::Unbounded => (&[][..], BoundKind::None),
        };
        self.key.clear();
        self.key.extend_from_slice(key);
        self.kind = kind;
    }

    fn target(&self) -> Option<Target<'_>> {
        match self.kind {
            BoundKind::First => Some(Target::first_of(&self.key)),
            BoundKind::Last => Some(Target::last_of(&self.key)),
            BoundKind::None => None,
        }
    }
}

impl Default for Cursor {
    /// Over nothing.
    fn default() -> Cursor {
        Cursor {
            lower: OwnedBound::default(),
            upper: OwnedBound::default(),
            direction: Direction::Forward,
            leaf: Snapshot::default(),
            positions: 0..0,
            next: None,
            key: Vec::new(),
            prefix_len: None,
            counted: None,
        }
    }
}

impl Cursor {
    pub fn new(range: KeyRange<'_>, direction: Direction) -> Cursor {
        let mut cursor = Cursor::default();
        cursor.restart(range, direction);
        cursor
    }

    /// Begins anew, over a range of this index or another one, with the memory that it has.
    pub fn restart(&mut self, range: KeyRange<'_>, direction: Direction) {
        self.lower.set(range.0, BoundKind::First, BoundKind::Last);
        self.upper.set(range.1, BoundKind::Last, BoundKind::First);
        self.direction = direction;
        self.positions = 0..0;
        self.next = Some(Next::Start);
        self.prefix_len = None;
        self.counted = None;
    }

    /// As `new`, with what it touches counted by itself.
    pub fn counting(range: KeyRange<'_>, direction: Direction) -> Cursor {
        Cursor { counted: Some(Counted::default()), ..Cursor::new(range, direction) }
    }

    /// What it touched so far, if it counts.
    pub fn counted(&self) -> Counted {
        self.counted.unwrap_or_default()
    }

    /// The next entry, of the one index that the cursor is used with.
    #[inline]
    pub fn next(&mut self, index: &Index, view: &View) -> Option<(&[u8], RowId)> {
        let position = self.step(index, view)?;
        let prefix_len = match self.prefix_len {
            Some(len) => len,
            None => {
                self.key.clear();
                self.leaf.copy_prefix(&mut self.key);
                *self.prefix_len.insert(self.key.len())
            }
        };
        self.key.truncate(prefix_len);
        let slot = self.leaf.slot(position);
        self.leaf.copy_rest(slot, &mut self.key);
        Some((&self.key, RowId(self.leaf.word(slot.payload()))))
    }

    /// The next entry's row, without its key: cheaper.
    #[inline]
    pub fn next_row(&mut self, index: &Index, view: &View) -> Option<RowId> {
        let position = self.step(index, view)?;
        Some(RowId(self.leaf.row(position)))
    }

    #[inline]
    fn step(&mut self, index: &Index, view: &View) -> Option<usize> {
        loop {
            let position = match self.direction {
                Direction::Forward => self.positions.next(),
                Direction::Backward => self.positions.next_back(),
            };
            if position.is_some() {
                return position;
            }
            let next = self.next.take()?;
            self.fill(index, view, next);
        }
    }

    /// Copies the next leaf.
    fn fill(&mut self, index: &Index, view: &View, next: Next) {
        let is_forward = self.direction == Direction::Forward;
        let bound = if is_forward { self.lower.target() } else { self.upper.target() };
        let side = if is_forward { Side::Right } else { Side::Left };
        let target = match &next {
            Next::Start => bound,
            Next::Fence(fence) => Some(fence.target()),
        };
        let leaf = &mut self.leaf;
        index.retry(view, self.counted.as_mut(), |touched| {
            let spot = match &target {
                Some(target) => index.descend(target, side, 0, Wait::Yes, touched)?,
                None if is_forward => index.descend(&Target::first_of(&[]), side, 0, Wait::Yes, touched)?,
                None => index.descend_last(touched)?,
            };
            let shape = spot.node.shape();
            touched.copy(8 * (spot.node.size_words() + HEADER_WORDS + shape.count()).saturating_sub(shape.heap()));
            leaf.copy(spot.node);
            spot.node.check(spot.version)
        });
        self.prefix_len = None;
        let (leaf, shape) = (&self.leaf, self.leaf.shape());
        let from = target.map_or(0, |target| leaf.position(shape, &target));
        if is_forward {
            let (end, is_last) = match self.upper.target() {
                Some(bound) if leaf.begins_at_or_behind(&bound) => (0, true),
                Some(bound) if leaf.ends_at_or_behind(&bound) => (leaf.position(shape, &bound), true),
                _ => (shape.count(), false),
            };
            self.next = if is_last { None } else { leaf.upper_fence().map(Next::Fence) };
            self.positions = from..end.max(from);
        } else {
            let from = if target.is_some() { from } else { shape.count() };
            let (start, is_last) = match self.lower.target() {
                Some(bound) if !leaf.ends_at_or_behind(&bound) => (from, true),
                Some(bound) if !leaf.begins_at_or_behind(&bound) => (leaf.position(shape, &bound), true),
                _ => (0, false),
            };
            self.next = if is_last || leaf.is_lowest() { None } else { Some(Next::Fence(leaf.lower_fence())) };
            self.positions = start.min(from)..from;
        }
    }
}
