//! Look-ups of several keys that go down the tree side by side: while a node of one comes from memory, those of the others
//! are asked for, too. (Chen, Ailamaki, Gibbons and Mowry, *Improving Hash Join Performance through Prefetching*, ICDE 2004:
//! group prefetching; for indexes Jonathan et al., *Exploiting Coroutines to Attack the "Killer Nanoseconds"*, VLDB 2018.)

use crate::cursor::Rows;
use crate::lock::{Restart, Version};
use crate::node::{Node, Side, Target, Words};
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
        let leaves = self.leaves(group.clone(), key, &mut touched);
        touched.go_together(group.len());
        for (place, leaf) in group.zip(leaves) {
            let rows = leaf.ok_or(Restart).and_then(|(node, version)| {
                let mut rows = Rows::new();
                let more = node.rows_of(key(place), 0, &mut rows);
                node.check(version)?;
                if more.is_none() { Ok(rows) } else { Err(Restart) }
            });
            match rows {
                Ok(rows) => found(place, &rows),
                // Somebody changed a node just then, or the key goes on in the next leaf.
                Err(Restart) => found(place, &self.get(view, key(place))),
            }
        }
        self.charge(&touched);
    }

    /// The leaves of the keys, with the versions that they were come to at. `None`: a node changed on the way.
    fn leaves<'k>(
        &self,
        group: Range<usize>,
        key: &impl Fn(usize) -> &'k [u8],
        touched: &mut Touched,
    ) -> [Option<(Node, Version)>; TOGETHER] {
        let mut spots = [None; TOGETHER];
        spots[..group.len()].fill(self.root(Wait::Yes).ok());
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
