//! What an operation touches, counted on its way, and charged at its end where the memory is paced.

use crate::arena::{Arena, IndexMemory};
use crate::node::Shape;
use crate::tree::LEAF_LINES;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tidepool_device::{Access, PacingCounters, Pattern};
use tidepool_tablespace::{GatherSlot, Purpose, Tablespace};

const LINE_BYTES: usize = 64;

/// Look-ups that go down side by side, to be accounted as so many; fewer are accounted as if each went alone.
const TOGETHER_MIN: usize = 4;

/// Lines that an entry put in or taken out writes: header, slots, payload.
const WRITE_LINES: u64 = 4;

/// What operations touched of an index: the accesses that pacing charges for where the memory is paced, counted
/// everywhere. Building an index and moving its nodes do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Touched {
    /// Cache lines of inner nodes.
    pub inner_lines: u64,
    /// Leaves that were come to from the root.
    pub leaves: u64,
    /// Of `inner_lines`, those of look-ups that waited for memory together with others.
    pub inner_lines_together: u64,
    /// Cache lines of the table of where keys were found last.
    pub hint_lines: u64,
    /// Of `hint_lines`, those of look-ups that waited for memory together with others.
    pub hint_lines_together: u64,
    /// Leaves that were locked to put an entry in or take one out.
    pub writes: u64,
    /// Leaves that were copied and are larger than what is fetched of any leaf, and their bytes beyond that.
    pub copies: u64,
    pub copied_bytes: u64,
}

impl Touched {
    /// A search in a node.
    #[inline]
    pub(crate) fn node(&mut self, shape: Shape) {
        if shape.level() == 0 {
            self.leaves += 1;
        } else {
            // The header and the first slots, those lines in which the search goes on, a payload.
            self.inner_lines += u64::from(2 + (usize::BITS - (shape.count() / 8).leading_zeros()));
        }
    }

    /// Look-ups in the table of where keys were found last.
    #[inline]
    pub(crate) fn hints(&mut self, lookups: usize) {
        self.hint_lines += lookups as u64;
    }

    /// What was counted so far was of so many look-ups at once.
    pub(crate) fn go_together(&mut self, lookups: usize) {
        if lookups >= TOGETHER_MIN {
            self.inner_lines_together = self.inner_lines;
            self.hint_lines_together = self.hint_lines;
        }
    }

    #[inline]
    pub(crate) fn write(&mut self) {
        self.writes += 1;
    }

    /// A leaf was copied.
    #[inline]
    pub(crate) fn copy(&mut self, bytes: usize) {
        let beyond = bytes.saturating_sub(LEAF_LINES * LINE_BYTES) as u64;
        self.copies += u64::from(beyond > 0);
        self.copied_bytes += beyond;
    }

    pub fn is_empty(&self) -> bool {
        *self == Touched::default()
    }

    /// Cache lines of leaves that were fetched.
    pub fn leaf_lines(&self) -> u64 {
        self.leaves * LEAF_LINES as u64
    }

    pub fn written_lines(&self) -> u64 {
        self.writes * WRITE_LINES
    }

    pub fn bytes_read(&self) -> u64 {
        (self.inner_lines + self.hint_lines + self.leaf_lines()) * LINE_BYTES as u64 + self.copied_bytes
    }

    /// For a cost model, of an index that takes so much memory.
    pub fn accesses(&self, memory: IndexMemory) -> [Access; 7] {
        let IndexMemory { used_bytes, inner_bytes, directory_bytes, .. } = memory;
        let together = 2.0 * TOGETHER_MIN as f64;
        let alone = |lines: u64, together: u64| lines.saturating_sub(together);
        let leaf_bytes = used_bytes.saturating_sub(inner_bytes);
        let copied = Pattern::Sequential { bytes: self.copied_bytes, runs: self.copies };
        [
            // Each level depends on the one above. Inner nodes are few, and so mostly cached: they are a working set apart.
            Access::read_random(alone(self.inner_lines, self.inner_lines_together), inner_bytes, 2.0),
            Access::read_random(self.inner_lines_together, inner_bytes, together),
            // One line each, before the leaf can be asked for.
            Access::read_random(alone(self.hint_lines, self.hint_lines_together), directory_bytes, 1.0),
            Access::read_random(self.hint_lines_together, directory_bytes, together),
            // All lines of a leaf are fetched at once: as many as a core has under way, be it for one look-up or for several.
            Access::read_random(self.leaf_lines(), leaf_bytes, LEAF_LINES as f64),
            // Nobody waits for what is written: it is there by then, and leaves the caches later.
            Access::write_random(self.written_lines(), leaf_bytes, f64::MAX),
            Access { pattern: copied, write: false },
        ]
    }
}

impl std::ops::AddAssign for Touched {
    fn add_assign(&mut self, other: Touched) {
        self.inner_lines += other.inner_lines;
        self.leaves += other.leaves;
        self.inner_lines_together += other.inner_lines_together;
        self.hint_lines += other.hint_lines;
        self.hint_lines_together += other.hint_lines_together;
        self.writes += other.writes;
        self.copies += other.copies;
        self.copied_bytes += other.copied_bytes;
    }
}

/// What some operations touched, and what pacing accounted for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub touched: Touched,
    pub paced: PacingCounters,
}

impl std::ops::AddAssign for Counted {
    fn add_assign(&mut self, other: Counted) {
        self.touched += other.touched;
        self.paced += other.paced;
    }
}

/// An index's tablespace, to be asked at every operation, and those it had before: few, and one may still be asked.
#[derive(Debug)]
pub(crate) struct Spaces {
    /// Of one of `all`.
    current: AtomicPtr<Tablespace>,
    all: Mutex<Vec<Arc<Tablespace>>>,
}

impl Spaces {
    pub fn new(space: Arc<Tablespace>) -> Spaces {
        let spaces = Spaces { current: AtomicPtr::default(), all: Mutex::default() };
        spaces.set(space);
        spaces
    }

    pub fn set(&self, space: Arc<Tablespace>) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        self.current.store(Arc::as_ptr(&space).cast_mut(), Ordering::Release);
        if !all.iter().any(|known| Arc::ptr_eq(known, &space)) {
            all.push(space);
        }
    }

    /// `None` where the tablespace is not paced.
    #[inline]
    pub fn charge(&self, touched: &Touched, arena: &Arena) -> Option<PacingCounters> {
        // SAFETY: one of `all`, which keeps it until `self` is dropped.
        let space = unsafe { &*self.current.load(Ordering::Acquire) };
        space.pacer().is_some().then(|| space.spend(Purpose::Index, &accesses(touched, arena)))
    }

    /// Whether what is asked for is waited for longer than it takes to ask for more.
    #[inline]
    pub fn are_far(&self) -> bool {
        // SAFETY: as above.
        unsafe { &*self.current.load(Ordering::Acquire) }.is_far()
    }

    /// A node that was asked for is come to: see [`Tablespace::arrive`].
    #[inline]
    pub fn arrive(&self) {
        if tidepool_fiber::may_pause() {
            // SAFETY: as above.
            unsafe { &*self.current.load(Ordering::Acquire) }.arrive();
        }
    }

    /// As `charge`, for nobody in particular, and so together with what comes next.
    #[inline]
    pub fn gather(&self, touched: &Touched, arena: &Arena) {
        // SAFETY: as above.
        let space = unsafe { &*self.current.load(Ordering::Acquire) };
        if space.pacer().is_some() {
            space.gather(GatherSlot::Keys, &accesses(touched, arena));
        }
    }
}

#[inline(never)]
fn accesses(touched: &Touched, arena: &Arena) -> [Access; 7] {
    let (leaf_bytes, inner_bytes) = arena.used_bytes();
    let directory_bytes = arena.directory_bytes();
    touched.accesses(IndexMemory { used_bytes: leaf_bytes + inner_bytes, inner_bytes, directory_bytes, held_bytes: 0 })
}
