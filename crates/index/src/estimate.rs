//! About how many entries a range has, for a planner.

use crate::cursor::KeyRange;
use crate::node::{Node, Shape, Side, Target, Words};
use crate::tree::{Index, Wait};
use std::cmp::Ordering;
use std::ops::Bound;
use tidepool_txn::View;

/// Further paths that are looked at, between the ends of the range.
const SAMPLES: usize = 6;

/// A place among a node's children, or a leaf's entries.
#[derive(Clone, Copy, Debug)]
struct Step {
    index: usize,
    count: usize,
}

impl Index {
    /// About how many entries are in the range: exact within a leaf; else as many as there would be if the nodes between
    /// were as full as some that are looked at. A few descents.
    pub fn estimate(&self, view: &View, range: KeyRange<'_>) -> f64 {
        let lower_target = match range.0 {
            Bound::Included(key) => Some(Target::first_of(key)),
            Bound::Excluded(key) => Some(Target::last_of(key)),
            Bound::Unbounded => None,
        };
        let upper_target = match range.1 {
            Bound::Included(key) => Some(Target::last_of(key)),
            Bound::Excluded(key) => Some(Target::first_of(key)),
            Bound::Unbounded => None,
        };
        let to = |target: Option<Target<'_>>, end: bool| {
            self.path(view, |_, node, shape| match target {
                Some(target) if shape.level() > 0 => node.child_index(shape, &target, Side::Right),
                Some(target) => node.position(shape, &target),
                // Of inner nodes the last child.
                None if end => shape.count(),
                None => 0,
            })
        };
        let (lower, upper) = loop {
            let (lower, upper) = (to(lower_target, false), to(upper_target, true));
            // Or the tree became higher or lower in between.
            if lower.len() == upper.len() {
                break (lower, upper);
            }
        };
        let Some(fork) = lower.iter().zip(&upper).position(|(lower, upper)| lower.index != upper.index) else {
            return 0.0;
        };
        let (first, last) = (lower[fork].index, upper[fork].index);
        if fork + 1 == lower.len() || last < first {
            return last.saturating_sub(first) as f64;
        }
        let mut seen = vec![lower.clone(), upper.clone()];
        for sample in 0..SAMPLES {
            let mut random = (sample as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let path = self.path(view, |depth, _, shape| match depth.cmp(&fork) {
                Ordering::Less => lower[depth].index,
                Ordering::Equal => first + (last - first) * (2 * sample + 1) / (2 * SAMPLES),
                Ordering::Greater => {
                    random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (random >> 33) as usize % (shape.count() + 1)
                }
            });
            if path.len() == lower.len() {
                seen.push(path);
            }
        }
        // From the leaves up: entries below a node of each level, on the average, and those that are beside the ends.
        let mut size = 1.0;
        let mut entries = 0.0;
        for depth in (fork..lower.len()).rev() {
            entries += size
                * if depth == fork {
                    (last - first - 1) as f64
                } else {
                    // The lower end is itself in the range in a leaf, and its child above is counted further down.
                    let is_inner = usize::from(depth + 1 < lower.len());
                    (lower[depth].count.saturating_sub(lower[depth].index + is_inner) + upper[depth].index) as f64
                };
            size *= seen.iter().map(|path| path[depth].count as f64).sum::<f64>() / seen.len() as f64;
        }
        entries
    }

    /// From the root to a place in a leaf, as `choose` says by depth.
    fn path(&self, view: &View, mut choose: impl FnMut(usize, &Node, Shape) -> usize) -> Vec<Step> {
        let mut path = Vec::new();
        self.retry(view, None, |touched| {
            path.clear();
            let spot = self.descend_by(0, Wait::Yes, touched, |node, shape| {
                let index = choose(path.len(), node, shape).min(shape.count());
                path.push(Step { index, count: shape.count() + 1 });
                index
            })?;
            let shape = spot.node.shape();
            path.push(Step { index: choose(path.len(), &spot.node, shape).min(shape.count()), count: shape.count() });
            spot.node.check(spot.version)
        });
        path
    }
}
