//! Looking a whole tree over, while it is in use.

use crate::lock::Restart;
use crate::node::{Fence, HEADER_WORDS, Node, Side, Snapshot, Words, fence_words};
use crate::sync::Ordering;
use crate::tree::{Index, Wait};
use tidepool_base::{Error, Result};
use tidepool_txn::View;

/// What a tree consists of, as far as it stood still while it was looked over.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct IndexReport {
    pub entries: u64,
    pub leaves: u64,
    pub levels: u8,
    /// Of the leaves' words, those that hold something, 0 to 1.
    pub fill: f64,
}

#[derive(Debug)]
struct Seen {
    node: Node,
    version: crate::lock::Version,
    copy: Snapshot,
    /// Which child the path takes.
    index: usize,
}

impl Index {
    /// Verifies order, fences, levels and the words of all nodes. XX001 with a detail when something is wrong.
    pub fn check(&self, view: &View) -> Result<IndexReport> {
        let mut report = IndexReport::default();
        let mut from = Fence::default();
        let mut before: Vec<Seen> = Vec::new();
        let (mut used, mut words) = (0, 0);
        loop {
            let path = self.retry(view, None, |_| self.copy_path(&from));
            for (depth, seen) in path.iter().enumerate() {
                let known =
                    before.get(depth).is_some_and(|known| (known.node, known.version) == (seen.node, seen.version));
                if !known {
                    check_node(&seen.copy).map_err(corrupted)?;
                }
                match depth.checked_sub(1).map(|above| &path[above]) {
                    Some(parent) => check_child(parent, &seen.copy).map_err(corrupted)?,
                    None if seen.copy.lower_fence() != Fence::default() || seen.copy.upper_fence().is_some() => {
                        return Err(corrupted("its root does not have all keys".into()));
                    }
                    None => {}
                }
            }
            let Some(leaf) = path.last().map(|seen| &seen.copy) else { break };
            report.leaves += 1;
            report.entries += leaf.shape().count() as u64;
            report.levels = path.len() as u8;
            used += leaf.used_words() + leaf.size_words() - leaf.lower_at() + HEADER_WORDS;
            words += leaf.size_words();
            match leaf.upper_fence() {
                Some(upper) if upper <= from => return Err(corrupted("a leaf ends where it begins".into())),
                Some(upper) => from = upper,
                None => break,
            }
            before = path;
        }
        report.fill = used as f64 / words.max(1) as f64;
        Ok(report)
    }

    /// The nodes on the way to a place.
    fn copy_path(&self, from: &Fence) -> Result<Vec<Seen>, Restart> {
        let mut path: Vec<Seen> = Vec::new();
        let target = from.target();
        let mut nodes = Vec::new();
        let leaf = self.descend_by(0, Wait::Yes, &mut Default::default(), |node, shape| {
            nodes.push(*node);
            node.child_index(shape, &target, Side::Right)
        })?;
        nodes.push(leaf.node);
        for node in nodes {
            let version = node.try_read()?;
            let mut copy = Snapshot::default();
            copy.copy(node);
            node.check(version)?;
            if path.last().is_some_and(|above: &Seen| above.copy.child(above.index) != node.link()) {
                return Err(Restart);
            }
            let index = copy.child_index(copy.shape(), &target, Side::Right);
            path.push(Seen { node, version, copy, index });
        }
        // One that was the root may have been split since, and another be above it.
        if path.first().is_some_and(|top| self.root.load(Ordering::Acquire) != top.node.link()) {
            return Err(Restart);
        }
        // The nodes were on the path, and are as they were copied: none has changed until all were.
        for seen in &path {
            seen.node.check(seen.version)?;
        }
        Ok(path)
    }
}

fn corrupted(what: String) -> Error {
    Error::corrupted("an index is damaged").with_detail(format!("In the tree {what}."))
}

/// A node by itself.
fn check_node(node: &Snapshot) -> Result<(), String> {
    let (shape, extras) = (node.shape(), node.extras());
    let fences = node.lower_at().checked_sub(extras.upper_len().map_or(0, fence_words));
    let slots_end = HEADER_WORDS + shape.count();
    let Some(fences) = fences.filter(|fences| slots_end <= shape.heap() && shape.heap() <= *fences) else {
        return Err(format!("a node of level {} has {} entries and no room for them", shape.level(), shape.count()));
    };
    let (lower, upper) = (node.lower_fence(), node.upper_fence());
    if upper.as_ref().is_some_and(|upper| *upper <= lower)
        // Less than they have in common where the upper fence has come nearer since the entries were written.
        || shape.prefix_len() > crate::content::prefix_len(&lower, upper.as_ref())
    {
        return Err(format!("a node of level {} has fences that do not fit", shape.level()));
    }
    if shape.level() == 0 && !node.has_prefix(shape, &lower.key) {
        return Err("a leaf has another prefix than its fences".to_owned());
    }
    let mut key = Vec::new();
    let mut before: Option<(Vec<u8>, u64)> = None;
    let mut words = 0;
    for index in 0..shape.count() {
        let slot = node.slot(index);
        let len = node.entry_payload_words(slot);
        words += len;
        if slot.payload() < shape.heap() || slot.payload() + len > fences {
            return Err(format!("entry {index} of a node of level {} lies outside of it", shape.level()));
        }
        key.clear();
        node.copy_prefix(&mut key);
        node.copy_rest(slot, &mut key);
        let row = if shape.level() == 0 { node.row(index) } else { node.separator_row(slot) };
        let entry = (key.clone(), row);
        let is_low = match &before {
            Some(before) => *before >= entry,
            None => entry < (lower.key.clone(), lower.row),
        };
        if is_low || upper.as_ref().is_some_and(|upper| entry >= (upper.key.clone(), upper.row)) {
            return Err(format!("entry {index} of a node of level {} is out of order", shape.level()));
        }
        before = Some(entry);
    }
    if words + extras.lost() != fences - shape.heap() {
        return Err(format!("a node of level {} does not know how much of it is in use", shape.level()));
    }
    Ok(())
}

/// A node as its parent says it is.
fn check_child(parent: &Seen, child: &Snapshot) -> Result<(), String> {
    let (node, index) = (&parent.copy, parent.index);
    let separator = |index: usize| {
        let slot = node.slot(index);
        let mut key = Vec::new();
        node.copy_prefix(&mut key);
        node.copy_rest(slot, &mut key);
        Fence { key, row: node.separator_row(slot) }
    };
    let lower = if index == 0 { node.lower_fence() } else { separator(index - 1) };
    let upper = if index < node.shape().count() { Some(separator(index)) } else { node.upper_fence() };
    if child.shape().level() + 1 != node.shape().level() {
        return Err(format!(
            "a node of level {} is below one of level {}",
            child.shape().level(),
            node.shape().level()
        ));
    }
    if child.lower_fence() != lower || child.upper_fence() != upper {
        return Err(format!("a node of level {} does not have the keys that its parent says", child.shape().level()));
    }
    Ok(())
}
