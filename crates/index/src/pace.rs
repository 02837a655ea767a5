//! What an operation touches of paced memory, counted on its way and charged at its end.

use crate::arena::Arena;
use crate::node::Shape;
use crate::tree::LEAF_LINES;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tidepool_device::Access;
use tidepool_tablespace::{Purpose, Tablespace};

const LINE_BYTES: usize = 64;

/// Cache lines that were touched.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Touched {
    inner_lines: u32,
    leaves: u32,
    written_lines: u32,
    /// Beyond the lines of a leaf that are fetched in any case.
    copied_bytes: u64,
}

impl Touched {
    /// A search in a node.
    #[inline]
    pub fn node(&mut self, shape: Shape) {
        if shape.level() == 0 {
            self.leaves += 1;
        } else {
            // The header and the first slots, those lines in which the search goes on, a payload.
            self.inner_lines += 2 + (usize::BITS - (shape.count() / 8).leading_zeros());
        }
    }

    /// An entry of a leaf was put in or taken out: header, slots, payload.
    #[inline]
    pub fn write(&mut self) {
        self.written_lines += 4;
    }

    /// A leaf was copied.
    #[inline]
    pub fn copy(&mut self, bytes: usize) {
        self.copied_bytes += bytes.saturating_sub(LEAF_LINES * LINE_BYTES) as u64;
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

    #[inline]
    pub fn charge(&self, touched: &Touched, arena: &Arena) {
        // SAFETY: one of `all`, which keeps it until `self` is dropped.
        let space = unsafe { &*self.current.load(Ordering::Acquire) };
        if space.pacer().is_some() {
            charge(space, touched, arena);
        }
    }
}

#[cold]
fn charge(space: &Tablespace, touched: &Touched, arena: &Arena) {
    let (leaf_bytes, inner_bytes) = arena.used_bytes();
    let accesses = [
        // Each level depends on the one above. Inner nodes are few, and so mostly cached: they are a working set apart.
        Access::read_random(touched.inner_lines.into(), inner_bytes, 2.0),
        // All lines of a leaf are fetched at once.
        Access::read_random(u64::from(touched.leaves) * LEAF_LINES as u64, leaf_bytes, LEAF_LINES as f64),
        // Nobody waits for what is written: it is there by then, and leaves the caches later.
        Access::write_random(touched.written_lines.into(), leaf_bytes, f64::MAX),
        Access::read_sequential(touched.copied_bytes),
    ];
    let made = |access: &&Access| match access.pattern {
        tidepool_device::Pattern::Sequential { bytes, .. } => bytes > 0,
        tidepool_device::Pattern::Random { lines, .. } => lines > 0,
    };
    let made: Vec<Access> = accesses.iter().filter(made).copied().collect();
    space.charge(Purpose::Index, &made);
}
