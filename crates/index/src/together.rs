//! Look-ups of several keys that go down the tree side by side: while a node of one comes from memory, those of the others
//! are asked for, too. (Chen, Ailamaki, Gibbons and Mowry, *Improving Hash Join Performance through Prefetching*, ICDE 2004:
//! group prefetching; for indexes Jonathan et al., *Exploiting Coroutines to Attack the "Killer Nanoseconds"*, VLDB 2018.)

use crate::cursor::Rows;
use crate::directory::{self, Followed, Table};
use crate::lock::{Restart, Version};
use crate::node::{Node, Shape, Side, Target, Words};
use crate::pace::Touched;
use crate::tree::{INNER_LINES, Index, LEAF_LINES, Wait};
use std::ops::Range;
use tidepool_txn::View;

/// Look-ups that are under way at once: more than memory answers at a time on any machine that there is.
pub(crate) const TOGETHER: usize = 16;

impl Index {
    /// As [`Index::get`] of `count` keys, of which `found` is told in order.
    pub fn get_together<'k>(
        &self,
        view: &View,
        count: usize,
        key: impl Fn(usize) -> &'k [u8],
        mut found: impl FnMut(usize, &Rows),
    ) {
        assert!(self.arena.is_kept_by(view), "a view of the index's own transactions keeps its nodes");
        for start in (0..count).step_by(TOGETHER) {
            self.get_group(view, start..count.min(start + TOGETHER), &key, &mut found);
        }
    }

    fn get_group<'k>(
        &self,
        view: &View,
        group: Range<usize>,
        key: &impl Fn(usize) -> &'k [u8],
        found: &mut impl FnMut(usize, &Rows),
    ) {
        let mut touched = Touched::default();
        let directory = self.arena.directory();
        let mut hashes = [0; TOGETHER];
        for (hash, place) in hashes.iter_mut().zip(group.clone()) {
            *hash = directory::hash(key(place));
            if let Some(directory) = directory {
                directory.prefetch(*hash);
            }
        }
        let mut known = [const { None }; TOGETHER];
        let mut lost = group.len();
        if let Some(directory) = directory {
            touched.hints(group.len());
            self.spaces.arrive();
            lost -= self.known(directory, group.clone(), key, &hashes, &mut known, &mut touched);
        }
        let is_unknown = |place: usize| known[place - group.start].is_none();
        let leaves =
            if lost > 0 { self.leaves(group.clone(), key, &is_unknown, &mut touched) } else { [None; TOGETHER] };
        touched.go_together(group.len());
        for (at, place) in group.enumerate() {
            if let Some(rows) = &known[at] {
                found(place, rows);
                continue;
            }
            let rows = leaves[at].ok_or(Restart).and_then(|(node, version)| {
                let mut rows = Rows::new();
                let (position, more) = node.rows_of(key(place), 0, &mut rows);
                node.check(version)?;
                if more.is_none() { Ok((rows, (node, position))) } else { Err(Restart) }
            });
            match rows {
                Ok((rows, leaf)) => {
                    found(place, &rows);
                    if !rows.is_empty() {
                        self.found_in_tree(directory, hashes[at], leaf);
                    }
                }
                // Somebody changed a node just then, or the key goes on in the next leaf.
                Err(Restart) => found(place, &self.get(view, key(place))),
            }
        }
        self.charge(&touched);
    }

    /// The rows of those keys that are where the directory says. Returns how many are.
    fn known<'k>(
        &self,
        directory: Table,
        group: Range<usize>,
        key: &impl Fn(usize) -> &'k [u8],
        hashes: &[u64; TOGETHER],
        known: &mut [Option<Rows>; TOGETHER],
        touched: &mut Touched,
    ) -> usize {
        let is_far = self.spaces.are_far();
        let mut hints = [None; TOGETHER];
        for (hint, hash) in hints.iter_mut().zip(&hashes[..group.len()]) {
            *hint = directory.find(*hash).map(|hint| {
                // SAFETY: of a table that was current under the view.
                let node = unsafe { self.node(hint.link) };
                hint.prefetch(node, is_far);
                (hint, node)
            });
        }
        if hints.iter().any(Option::is_some) {
            self.spaces.arrive();
        }
        let mut count = 0;
        for (((place, hint), known), hash) in group.zip(hints).zip(known).zip(hashes) {
            let Some((hint, node)) = hint else { continue };
            if let Followed::Found { rows, moved_to } = hint.follow(node, key(place)) {
                if let Some(position) = moved_to {
                    directory.put(*hash, node, position);
                }
                touched.node(Shape::new(0, 0, 0, 0));
                *known = Some(rows);
                count += 1;
            }
        }
        count
    }

    /// The leaves of those keys that are `wanted` (by their places), with the versions that they were come to at. `None`: a node changed on the way.
    fn leaves<'k>(
        &self,
        group: Range<usize>,
        key: &impl Fn(usize) -> &'k [u8],
        wanted: &impl Fn(usize) -> bool,
        touched: &mut Touched,
    ) -> [Option<(Node, Version)>; TOGETHER] {
        let mut spots = [None; TOGETHER];
        let root = self.root(Wait::Yes).ok();
        for (spot, place) in spots.iter_mut().zip(group.clone()) {
            *spot = root.filter(|_| wanted(place));
        }
        let mut children = [None; TOGETHER];
        loop {
            let (mut has_inner, mut has_leaves) = (false, false);
            for ((spot, child), place) in spots.iter_mut().zip(&mut children).zip(group.clone()) {
                let Some((node, version)) = *spot else { continue };
                let shape = node.shape();
                if shape.level() == 0 {
                    continue;
                }
                touched.node(shape);
                let index = node.child_index(shape, &Target::first_of(key(place)), Side::Right);
                let link = node.child(index);
                if node.check(version).is_err() {
                    *spot = None;
                    continue;
                }
                // SAFETY: a child of a node at a version just checked.
                let below = unsafe { self.node(link) };
                below.prefetch(if shape.level() == 1 { LEAF_LINES } else { INNER_LINES });
                *child = Some(below);
                has_inner = true;
                has_leaves |= shape.level() == 1;
            }
            if has_leaves {
                self.spaces.arrive();
            }
            if !has_inner {
                spots.iter().flatten().for_each(|(leaf, _)| touched.node(leaf.shape()));
                return spots;
            }
            for (spot, child) in spots.iter_mut().zip(&mut children) {
                let (Some((node, version)), Some(child)) = (*spot, child.take()) else { continue };
                // It was still the child when its version was read.
                let read = child.read().and_then(|below| node.check(version).map(|()| (child, below)));
                *spot = read.ok();
            }
        }
    }
}
