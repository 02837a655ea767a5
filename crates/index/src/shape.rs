//! Changes of the tree's shape: splitting nodes, joining neighbours, moving nodes.
//!
//! Each is done under the locks of the parent and of the children concerned, so that a reader that comes down meanwhile
//! meets the parent before or after. Locks are tried for, never waited for. All that can fail, memory that is to be taken
//! foremost, comes before the first change.

use crate::content::{Content, Image, common_len, separator, size_for};
use crate::lock::Restart;
use crate::node::{
    Extras, Fence, HEAD_BYTES, LARGE_WORDS, Node, SMALL_WORDS, Side, Slot, Target, Words, fence_words, payload_words,
};
use crate::pace::{Counted, Touched};
use crate::sync::{Backoff, Ordering};
use crate::tree::{Index, Locked, Parent, Spot, Wait};
use std::ops::Range;
use std::sync::Arc;
use tidepool_base::Result;
use tidepool_tablespace::Tablespace;
use tidepool_txn::View;

/// A node with fewer entries, that is full all the same, is made large instead of being split: its keys are too long.
pub(crate) const ENTRIES_MIN: usize = if cfg!(loom) { 2 } else { 6 };

/// What must come first.
enum Step {
    Done,
    /// The parent's level must have room for so many words.
    ParentFull(usize),
}

/// How a node becomes two, or a larger one.
enum Division {
    Grown(Image),
    Split { left: Left, right: Image, fence: Fence },
}

/// What a node is to be that another one is put behind.
enum Left {
    Image(Image),
    /// As it is, but that it ends at the fence.
    Shortened,
}

impl Index {
    /// Splits the node at `level` in which `target` lies, or makes it larger, unless it has room for `words` more.
    pub(crate) fn make_room(&self, target: &Target<'_>, level: u8, words: usize) -> Result<()> {
        let mut backoff = Backoff::new();
        loop {
            match self.try_make_room(target, level, words)? {
                Ok(Step::Done) => return Ok(()),
                Ok(Step::ParentFull(words)) => self.make_room(target, level + 1, words)?,
                Err(Restart) => backoff.pause(),
            }
        }
    }

    fn try_make_room(&self, target: &Target<'_>, level: u8, words: usize) -> Result<Result<Step, Restart>> {
        let (spot, mut parent, mut node) = match self.lock_with_parent(target, level) {
            Ok(locked) => locked,
            Err(Restart) => return Ok(Err(Restart)),
        };
        // The tree may have become lower meanwhile, and somebody else may have made room.
        if node.node().shape().level() != level || node.has_room(words) {
            return Ok(Ok(Step::Done));
        }
        let division = match split_behind(node.node(), target) {
            Some(division) => division,
            None => divide(&Content::of(&node.node()), node.node(), target, words),
        };
        let (left, right, fence) = match division {
            Division::Grown(image) => {
                let new = self.filled(&image, level)?;
                self.replace(&spot, parent.as_mut(), node, new.node());
                return Ok(Ok(Step::Done));
            }
            Division::Split { left, right, fence } => (left, right, fence),
        };
        // One more entry in the parent: separator and left child; what was there now leads to the right child.
        if let Some(parent) = &mut parent {
            // The parent's prefix may be longer, never shorter, than nothing.
            let words = 1 + payload_words(level + 1, fence.row, fence.key.len() - parent.node().shape().prefix_len());
            if !parent.has_room(words) {
                return Ok(Ok(Step::ParentFull(words)));
            }
        }
        // From here on only taking memory can fail.
        let right = self.filled(&right, level)?;
        let new_left = match &left {
            Left::Image(left) if left.size_words() != node.node().size_words() => match self.filled(left, level) {
                Ok(node) => Some(node),
                Err(error) => {
                    right.retire(&self.arena);
                    return Err(error);
                }
            },
            Left::Image(_) | Left::Shortened => None,
        };
        let left_link = new_left.as_ref().unwrap_or(&node).node().link();
        match (&mut parent, spot.parent) {
            (Some(parent), Some(Parent { index, .. })) => {
                parent.set_child(index, right.node().link());
                let put = parent.put(index, &fence.key, fence.row, left_link);
                debug_assert!(put.is_ok(), "room was made");
            }
            _ => {
                let mut above = Content::default();
                (above.level, above.last_child) = (level + 1, right.node().link());
                above.push(&fence.key, fence.row, left_link);
                let size = size_for(above.words(0..1, &above.lower, None)).unwrap_or(LARGE_WORDS);
                let root = match self.filled(&above.build(0..1, &above.lower, None, above.last_child, size), level + 1)
                {
                    Ok(root) => root,
                    Err(error) => {
                        right.retire(&self.arena);
                        if let Some(left) = new_left {
                            left.retire(&self.arena);
                        }
                        return Err(error);
                    }
                };
                self.root.store(root.node().link(), Ordering::Release);
            }
        }
        match (new_left, left) {
            (Some(_), _) => node.retire(&self.arena),
            (None, Left::Image(left)) => left.store(node.node_mut()),
            (None, Left::Shortened) => node.end_at(&fence),
        }
        Ok(Ok(Step::Done))
    }

    /// The node at `level` in which `target` lies, or the root if that is not above, locked, with its parent.
    fn lock_with_parent(
        &self,
        target: &Target<'_>,
        level: u8,
    ) -> std::result::Result<(Spot, Option<Locked>, Locked), Restart> {
        let spot = self.descend(target, Side::Right, level, Wait::Yes, &mut Touched::default())?;
        let parent = match spot.parent {
            Some(parent) => Some(Locked::new(parent.node, parent.version)?),
            None => None,
        };
        let node = Locked::new(spot.node, spot.version)?;
        if parent.is_none() && self.root.load(Ordering::Relaxed) != spot.node.link() {
            return Err(Restart);
        }
        Ok((spot, parent, node))
    }

    /// A new node, locked.
    pub(crate) fn filled(&self, image: &Image, level: u8) -> Result<Locked> {
        let node = self.arena.take(image.size_words(), level)?;
        image.store(node);
        Ok(Locked::fresh(node))
    }

    /// Puts `new` in a node's place.
    fn replace(&self, spot: &Spot, parent: Option<&mut Locked>, node: Locked, new: Node) {
        match (parent, spot.parent) {
            (Some(parent), Some(Parent { index, .. })) => parent.set_child(index, new.link()),
            _ => self.root.store(new.link(), Ordering::Release),
        }
        node.retire(&self.arena);
    }

    /// Joins the node at `level` in which `target` lies with a neighbour if both have few entries, and so on upwards.
    /// Gives up when somebody else is at work there: the next removal tries again.
    pub(crate) fn tidy(&self, target: &Target<'_>, mut level: u8) {
        while let Ok(true) = self.try_join(target, level) {
            level += 1;
        }
    }

    /// Whether the parent may have become too small.
    fn try_join(&self, target: &Target<'_>, level: u8) -> std::result::Result<bool, Restart> {
        let (spot, parent, mut node) = self.lock_with_parent(target, level)?;
        let (Some(mut parent), Some(Parent { index, .. })) = (parent, spot.parent) else {
            let shape = node.node().shape();
            if shape.level() > 0 && shape.count() == 0 {
                // Its only child becomes the root. Nobody replaces that child without this lock.
                self.root.store(node.node_mut().child(0), Ordering::Release);
                node.retire(&self.arena);
            }
            return Ok(false);
        };
        if node.node().shape().level() != level || !node.node().is_small() {
            return Ok(false);
        }
        let is_empty = node.node().shape().count() == 0 && level == 0;
        let last = parent.node().shape().count();
        for left_index in [index.checked_sub(1), (index < last).then_some(index)].into_iter().flatten() {
            let is_left = left_index == index;
            // SAFETY: a child of a locked node.
            let other = unsafe { self.node(parent.node().child(if is_left { index + 1 } else { left_index })) };
            let other = Locked::new(other, other.try_read()?)?;
            let (left, right) = if is_left { (&node, &other) } else { (&other, &node) };
            let mut content = Content::of(&left.node());
            content.append(&right.node());
            let words = content.words(0..content.len(), &content.lower, content.upper.as_ref());
            // With room to grow, or the next insertion would split it again; but nothing comes of an empty leaf.
            let fits = |size: usize| words <= if is_empty { size } else { size * 3 / 4 };
            let sizes = [SMALL_WORDS, left.node().size_words().max(right.node().size_words())];
            let Some(size) = sizes.into_iter().find(|size| fits(*size)) else { continue };
            let image =
                content.build(0..content.len(), &content.lower, content.upper.as_ref(), content.last_child, size);
            let (mut left, right) = if is_left { (node, other) } else { (other, node) };
            let new = if left.node().size_words() == size {
                image.store(left.node_mut());
                None
            } else {
                match self.filled(&image, level) {
                    Ok(new) => Some(new),
                    // They stay as they are.
                    Err(_) => return Ok(false),
                }
            };
            // The right one's place in the parent has the separator behind both.
            parent.set_child(left_index + 1, new.as_ref().unwrap_or(&left).node().link());
            parent.take_out(left_index);
            right.retire(&self.arena);
            if new.is_some() {
                left.retire(&self.arena);
            }
            return Ok(parent.node().is_small());
        }
        Ok(false)
    }

    /// From now on new nodes are put into `space`. [`Index::relocate`] moves the others there.
    pub fn set_tablespace(&self, space: Arc<Tablespace>) {
        self.arena.set_tablespace(space.clone());
        self.spaces.set(space);
    }

    /// Moves all nodes away from memory that is to be given up: that of another tablespace than the index's, and what the
    /// tablespace is about to give back. Goes on beside all other work. Returns how many were moved. The memory goes
    /// back with a later [`Index::reclaim`], when no view is held that was there by now.
    ///
    /// 53200 when there is no room elsewhere: what was moved by then stays moved.
    pub fn relocate(&self, view: &View) -> Result<usize> {
        let closing = self.arena.close_regions();
        if closing.is_empty() {
            self.reclaim();
            return Ok(0);
        }
        let is_closing = |node: Node| {
            let after = closing.partition_point(|range| range.start <= node.address());
            after.checked_sub(1).is_some_and(|at| closing[at].contains(&node.address()))
        };
        let mut moved = 0;
        let mut from = Fence::default();
        loop {
            // Upper levels first, so that the walk ends below nodes that stay.
            let mut level = u8::MAX;
            let upper = loop {
                let found = self.retry(view, Some(&mut Counted::default()), |touched| {
                    let spot = self.descend(&from.target(), Side::Right, level, Wait::Yes, touched)?;
                    let (shape, upper) = (spot.node.shape(), spot.node.upper_fence());
                    spot.node.check(spot.version)?;
                    Ok((spot.node, shape.level(), upper))
                });
                let (node, found_level, upper) = found;
                if is_closing(node) {
                    let mut backoff = Backoff::new();
                    while let Err(Restart) = self.try_move(&from.target(), found_level, &is_closing)? {
                        backoff.pause();
                    }
                    moved += 1;
                }
                match found_level {
                    0 => break upper,
                    above => level = above - 1,
                }
            };
            match upper {
                Some(upper) => from = upper,
                None => break,
            }
        }
        self.reclaim();
        Ok(moved)
    }

    fn try_move(
        &self,
        target: &Target<'_>,
        level: u8,
        is_closing: &impl Fn(Node) -> bool,
    ) -> Result<std::result::Result<(), Restart>> {
        let Ok((spot, mut parent, node)) = self.lock_with_parent(target, level) else { return Ok(Err(Restart)) };
        if !is_closing(node.node()) || node.node().shape().level() != level {
            return Ok(Ok(()));
        }
        let content = Content::of(&node.node());
        let size = node.node().size_words();
        let image = content.build(0..content.len(), &content.lower, content.upper.as_ref(), content.last_child, size);
        let new = self.filled(&image, level)?;
        self.replace(&spot, parent.as_mut(), node, new.node());
        Ok(Ok(()))
    }
}

/// Decides how a full node makes room for `words` at `target`.
fn divide(content: &Content, node: Node, target: &Target<'_>, words: usize) -> Division {
    let count = content.len();
    let (lower, upper) = (&content.lower, content.upper.as_ref());
    if count < ENTRIES_MIN && !node.is_large() {
        return Division::Grown(content.build(0..count, lower, upper, content.last_child, LARGE_WORDS));
    }
    let position = node.position(node.shape(), target);
    let prefix_len = node.shape().prefix_len();
    if let Some(split) = split_ahead(content, &node, target, position) {
        return split;
    }
    if let Some(at) = sequential_position(content, &node, target, position)
        && let Some(split) = split(content, target, position, at, words)
    {
        return split;
    }
    let total: usize = (0..count).map(|index| content.entry_words(index, prefix_len)).sum();
    let mut before = 0;
    let half = (0..count).position(|index| {
        before += content.entry_words(index, prefix_len);
        before * 2 >= total
    });
    // In a leaf both sides keep an entry, of an inner node the one in the middle goes up.
    let at = half.map_or(1, |index| index + usize::from(content.level == 0)).clamp(1, count - 1);
    split(content, target, position, at, words).unwrap_or_else(|| {
        // Half of the entries, one more, and two fences: three entries and two fences have room.
        tidepool_device::stop(format_args!("a node of an index that is full cannot be split"))
    })
}

/// When keys come in order at the end of a leaf that is full of short ones, it stays as it is, to the word: a new one begins behind it.
/// Its fence goes where [`behind`] has left room for it.
fn split_behind(node: Node, target: &Target<'_>) -> Option<Division> {
    let (shape, extras) = (node.shape(), node.extras());
    let count = shape.count();
    if shape.level() > 0 || count < ENTRIES_MIN || extras.last() + 1 != count || node.position(shape, target) < count {
        return None;
    }
    // Longer ones might become shorter with a nearer fence; of these each has one word.
    let end = shape.heap() + count;
    let is_short = |slot: Slot| slot.payload() < end && !slot.tail().1;
    if !(0..count).all(|index| is_short(node.slot(index))) {
        return None;
    }
    let mut last = Vec::new();
    node.copy_prefix(&mut last);
    node.copy_rest(node.slot(count - 1), &mut last);
    let fence = separator((&last, node.row(count - 1)), (target.key, target.row));
    if end + fence_words(fence.key.len()) > node.lower_at() {
        return None;
    }
    let right = behind(&fence, node.upper_fence().as_ref(), target)?;
    Some(Division::Split { left: Left::Shortened, right, fence })
}

/// A leaf with nothing in it yet, to which keys will be added in order, of which `target` is the first. When it is full, it gets a fence
/// that is no longer than a key: it has so much room behind its entries.
fn behind(lower: &Fence, upper: Option<&Fence>, target: &Target<'_>) -> Option<Image> {
    let empty = Content::default();
    let needed = empty.words(0..0, lower, upper);
    let size = size_for(needed)?;
    let mut image = empty.build(0..0, lower, upper, 0, size);
    let upper_words = upper.map_or(0, |upper| fence_words(upper.key.len()));
    let room = fence_words(target.key.len()).saturating_sub(upper_words);
    if needed + room <= size / 2 {
        image.lose(room);
    }
    Some(image)
}

/// Where to split when keys come in order: what comes before will not be added to, and may be as full as it is.
fn sequential_position(content: &Content, node: &Node, target: &Target<'_>, position: usize) -> Option<usize> {
    let (count, last) = (content.len(), node.extras().last());
    if last == Extras::NOWHERE || last + 1 != position || position <= count / 2 {
        return None;
    }
    let most = if content.level > 0 { count - 1 } else { count };
    // The new fence takes words too.
    let fits = |at: &usize| {
        let fence = fence_at(content, target, position, *at);
        content.words(0..*at, &content.lower, Some(&fence)) <= node.size_words()
    };
    (count / 2 + 1..=position.min(most)).rev().find(fits)
}

/// When keys come in order at the end of a leaf that ends far off, its entries have little in common with its upper fence,
/// and so are long. A nearer fence makes them short: that, with nothing behind it yet, makes room too.
fn split_ahead(content: &Content, node: &Node, target: &Target<'_>, position: usize) -> Option<Division> {
    let count = content.len();
    if content.level > 0 || position < count || node.extras().last() + 1 != position {
        return None;
    }
    let longest = (0..count).map(|index| content.key(index).len()).max().max(Some(target.key.len()))?;
    // With so many bytes in the prefix the others are in the slots.
    let wanted = longest.saturating_sub(HEAD_BYTES);
    if wanted <= node.shape().prefix_len() || common_len(&content.lower.key, target.key) < wanted {
        return None;
    }
    // The first key that is above the target and begins with those.
    let next = (wanted..target.key.len()).find(|at| target.key[*at] < u8::MAX)?;
    let mut fence = Fence { key: target.key[..=next].to_vec(), row: 0 };
    fence.key[next] += 1;
    let is_below_upper = content.upper.as_ref().is_none_or(|upper| fence < *upper);
    let words = content.words(0..count, &content.lower, Some(&fence));
    if !is_below_upper || words > node.size_words() * 7 / 8 {
        return None;
    }
    Some(Division::Split {
        left: Left::Image(content.build(0..count, &content.lower, Some(&fence), 0, node.size_words())),
        right: behind(&fence, content.upper.as_ref(), target)?,
        fence,
    })
}

/// What divides the entries below `at` from the others and the one that is about to come. In an inner node entry `at` itself.
fn fence_at(content: &Content, target: &Target<'_>, position: usize, at: usize) -> Fence {
    if content.level > 0 {
        return Fence { key: content.key(at).to_vec(), row: content.entry(at).row };
    }
    let last = (content.key(at - 1), content.entry(at - 1).row);
    let next = if at == position { (target.key, target.row) } else { (content.key(at), content.entry(at).row) };
    separator(last, next)
}

/// Entry `at` becomes the right node's first, or of inner nodes the separator. `None` if one of the two has no room.
fn split(content: &Content, target: &Target<'_>, position: usize, at: usize, words: usize) -> Option<Division> {
    let count = content.len();
    let fence = fence_at(content, target, position, at);
    let (right, left_last) = if content.level > 0 { (at + 1..count, content.entry(at).child) } else { (at..count, 0) };
    let build = |entries: Range<usize>, lower: &Fence, upper: Option<&Fence>, last_child: u64| {
        let needed = content.words(entries.clone(), lower, upper);
        // A few long entries are on their way to a large node in any case.
        let wanted = if entries.len() < ENTRIES_MIN && needed > SMALL_WORDS / 2 { needed + words } else { needed };
        let size = size_for(wanted).or_else(|| size_for(needed))?;
        Some(content.build(entries, lower, upper, last_child, size))
    };
    let left = Left::Image(build(0..at, &content.lower, Some(&fence), left_last)?);
    let right = match content.level == 0 && right.is_empty() {
        true => behind(&fence, content.upper.as_ref(), target)?,
        false => build(right, &fence, content.upper.as_ref(), content.last_child)?,
    };
    Some(Division::Split { left, right, fence })
}
