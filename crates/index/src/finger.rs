//! Where entries were put in last: keys that come in order go to the same leaf many times, and need not come down from the root each
//! time. (Finger search: Guibas, McCreight, Plass and Roberts, *A New Representation for Linear Lists*, STOC 1977.)
//!
//! What a finger says may be out of date: the leaf may have been split, taken out of the tree, or made another node. So whoever follows
//! one looks whether the node is a leaf of the tree in which the key belongs, at one version, and locks it at that version; or goes down
//! the tree. For that the memory must still be the tree's: no finger is followed that is older than the last departure of memory from the
//! tree ([`crate::arena::Arena::departures`]).

use crate::lock::Version;
use crate::node::{Node, Target, Words};
use crate::pace::Touched;
use crate::tree::Index;

/// One of an index's leaves.
#[derive(Clone, Copy, Debug, Default)]
struct Finger {
    /// The index's number; 0 for none.
    index: u64,
    link: u64,
    /// Memory had left the index so often before the leaf was come to.
    departures: u64,
    /// Its lines are in the caches of whoever comes to it again.
    is_warm: bool,
}

/// The leaves that one thread put entries in last, of several indexes. Those of one may take the place of another's.
#[derive(Clone, Debug, Default)]
pub struct Fingers([Finger; PLACES]);

const PLACES: usize = 8;

impl Fingers {
    fn of(&mut self, index: &Index) -> &mut Finger {
        &mut self.0[index.number() as usize % PLACES]
    }

    /// Something else has been done since: what is come to by these is read of memory again.
    pub fn rest(&mut self) {
        self.0.iter_mut().for_each(|finger| finger.is_warm = false);
    }

    /// `departures`: of the index, before the leaf was come to.
    #[inline]
    pub(crate) fn put(&mut self, index: &Index, leaf: Node, departures: u64) {
        *self.of(index) = Finger { index: index.number(), link: leaf.link(), departures, is_warm: true };
    }

    /// The leaf in which the target lies, not at its very beginning, if it is known, and how many of its entries are before the target; to
    /// be locked at the version. The caller holds a view of the index's transactions.
    #[inline]
    pub(crate) fn leaf(
        &mut self,
        index: &Index,
        target: &Target<'_>,
        touched: &mut Touched,
    ) -> Option<(Node, Version, usize)> {
        let finger = self.of(index);
        if finger.index != index.number() || finger.departures != index.arena.departures() {
            return None;
        }
        // SAFETY: a finger's, and no memory has left the tree since the leaf was in it, by what is seen under the caller's view.
        let node = unsafe { index.node(finger.link) };
        let version = node.try_read().ok()?;
        let shape = node.shape();
        if shape.level() != 0 || !node.has_prefix(shape, target.key) {
            return None;
        }
        let position = node.position(shape, target);
        // Behind an entry of the leaf, and before one or before its end.
        if position == 0 || (position >= shape.count() && !node.is_below_upper_fence(target)) {
            return None;
        }
        if !finger.is_warm {
            touched.node(shape);
            finger.is_warm = true;
        }
        Some((node, version, position))
    }
}
