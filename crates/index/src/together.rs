//! Look-ups of several keys that go down the tree side by side: while a node of one comes from memory, those of the others
//! are asked for, too. (Chen, Ailamaki, Gibbons and Mowry, *Improving Hash Join Performance through Prefetching*, ICDE 2004:
//! group prefetching; for indexes Jonathan et al., *Exploiting Coroutines to Attack the "Killer Nanoseconds"*, VLDB 2018.)

use crate::cursor::Rows;
use crate::directory::{self, Followed, Table};
use crate::lock::{Restart, Version};
use crate::node::{Node, Shape, Side, Target, Words};
use crate::pace::{Counted, Touched};
use crate::tree::{INNER_LINES, Index, LEAF_LINES, Wait};
use tidepool_txn::View;

/// Look-ups that are under way at once: more than memory answers at a time on any machine that there is.
pub(crate) const TOGETHER: usize = 16;

/// A group of keys, by their places from `start` on, and those that the table of hashes did not lead to.
struct Group<K> {
    key: K,
    start: usize,
    hashes: [u64; TOGETHER],
    len: usize,
    lost: [u8; TOGETHER],
    lost_len: usize,
}

impl<'k, K: Fn(usize) -> &'k [u8]> Group<K> {
    fn key(&self, at: usize) -> &'k [u8] {
        (self.key)(self.start + at)
    }

    fn lose(&mut self, at: usize) {
        self.lost[self.lost_len] = at as u8;
        self.lost_len += 1;
    }

    /// The key that is the `n`-th of those lost.
    fn lost_key(&self, n: usize) -> &'k [u8] {
        self.key(usize::from(self.lost[n]))
    }
}

impl Index {
    /// As [`Index::get`] of `count` keys. `found` is told of each, in no order.
    pub fn get_together<'k>(
        &self,
        view: &View,
        count: usize,
        key: impl Fn(usize) -> &'k [u8],
        found: impl FnMut(usize, &Rows),
    ) {
        self.get_groups(view, count, key, found, None);
    }

    /// As `get_together`, for who counts for himself what it touches.
    pub fn get_together_counting<'k>(
        &self,
        view: &View,
        count: usize,
        key: impl Fn(usize) -> &'k [u8],
        found: impl FnMut(usize, &Rows),
        counted: &mut Counted,
    ) {
        self.get_groups(view, count, key, found, Some(counted));
    }

    fn get_groups<'k>(
        &self,
        view: &View,
        count: usize,
        key: impl Fn(usize) -> &'k [u8],
        mut found: impl FnMut(usize, &Rows),
        mut counted: Option<&mut Counted>,
    ) {
        assert!(self.arena.is_kept_by(view), "a view of the index's own transactions keeps its nodes");
        let mut start = 0;
        while start < count {
            let len = (count - start).min(TOGETHER);
            let hashes = [0; TOGETHER];
            let group = Group { key: &key, start, hashes, len, lost: [0; TOGETHER], lost_len: 0 };
            let touched = self.get_group(view, group, &mut found);
            self.count(touched, counted.as_deref_mut());
            start += len;
        }
    }

    fn get_group<'k>(
        &self,
        view: &View,
        mut group: Group<impl Fn(usize) -> &'k [u8]>,
        found: &mut impl FnMut(usize, &Rows),
    ) -> Touched {
        let mut touched = Touched::default();
        let directory = self.arena.directory();
        for at in 0..group.len {
            group.hashes[at] = directory::hash(group.key(at));
            if let Some(directory) = directory {
                directory.prefetch(group.hashes[at]);
            }
        }
        match directory {
            Some(directory) => {
                touched.hints(group.len);
                self.spaces.arrive();
                self.get_known(directory, &mut group, found, &mut touched);
            }
            None => (0..group.len).for_each(|at| group.lose(at)),
        }
        if group.lost_len > 0 {
            self.get_lost(view, directory, &group, found, &mut touched);
        } else {
            touched.go_together(group.len);
        }
        touched
    }

    /// The rows of those keys that are where the directory says. The others are lost.
    fn get_known<'k>(
        &self,
        directory: Table,
        group: &mut Group<impl Fn(usize) -> &'k [u8]>,
        found: &mut impl FnMut(usize, &Rows),
        touched: &mut Touched,
    ) {
        let is_far = self.spaces.are_far();
        let mut hints = [None; TOGETHER];
        for (hint, hash) in hints.iter_mut().zip(&group.hashes[..group.len]) {
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
        for (at, hint) in hints[..group.len].iter().enumerate() {
            let followed = hint.map(|(hint, node)| (hint.follow(node, group.key(at)), node));
            match followed {
                Some((Followed::Found { rows, moved_to }, node)) => {
                    if let Some(position) = moved_to {
                        directory.put(group.hashes[at], node, position);
                    }
                    touched.node(Shape::new(0, 0, 0, 0));
                    found(group.start + at, &rows);
                }
                Some((Followed::Lost, _)) | None => group.lose(at),
            }
        }
    }

    /// The rows of those keys that are lost.
    fn get_lost<'k>(
        &self,
        view: &View,
        directory: Option<Table>,
        group: &Group<impl Fn(usize) -> &'k [u8]>,
        found: &mut impl FnMut(usize, &Rows),
        touched: &mut Touched,
    ) {
        let leaves = self.leaves(group, touched);
        touched.go_together(group.len);
        for (n, leaf) in leaves[..group.lost_len].iter().enumerate() {
            let at = usize::from(group.lost[n]);
            let (key, place) = (group.key(at), group.start + at);
            let rows = leaf.ok_or(Restart).and_then(|(node, version)| {
                let mut rows = Rows::new();
                let (position, more) = node.rows_of(key, 0, &mut rows);
                node.check(version)?;
                if more.is_none() { Ok((rows, (node, position))) } else { Err(Restart) }
            });
            match rows {
                Ok((rows, leaf)) => {
                    found(place, &rows);
                    if !rows.is_empty() {
                        self.found_in_tree(directory, group.hashes[at], leaf);
                    }
                }
                // Somebody changed a node just then, or the key goes on in the next leaf.
                Err(Restart) => found(place, &self.get(view, key)),
            }
        }
    }

    /// The leaves of the keys that are lost, with the versions that they were come to at. `None`: a node changed on the way.
    fn leaves<'k>(
        &self,
        group: &Group<impl Fn(usize) -> &'k [u8]>,
        touched: &mut Touched,
    ) -> [Option<(Node, Version)>; TOGETHER] {
        let mut spots = [None; TOGETHER];
        spots[..group.lost_len].fill(self.root(Wait::Yes).ok());
        let mut children = [None; TOGETHER];
        loop {
            let (mut has_inner, mut has_leaves) = (false, false);
            for n in 0..group.lost_len {
                let Some((node, version)) = spots[n] else { continue };
                let shape = node.shape();
                if shape.level() == 0 {
                    continue;
                }
                touched.node(shape);
                let index = node.child_index(shape, &Target::first_of(group.lost_key(n)), Side::Right);
                let link = node.child(index);
                if node.check(version).is_err() {
                    spots[n] = None;
                    continue;
                }
                // SAFETY: a child of a node at a version just checked.
                let below = unsafe { self.node(link) };
                below.prefetch(if shape.level() == 1 { LEAF_LINES } else { INNER_LINES });
                children[n] = Some(below);
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
            for n in 0..group.lost_len {
                let (Some((node, version)), Some(child)) = (spots[n], children[n].take()) else { continue };
                // It was still the child when its version was read.
                let read = child.read().and_then(|below| node.check(version).map(|()| (child, below)));
                spots[n] = read.ok();
            }
        }
    }
}
