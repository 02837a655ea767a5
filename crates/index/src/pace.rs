//! What an operation touches of paced memory, counted on its way and charged at its end.

use crate::arena::Arena;
use crate::node::Shape;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tidepool_device::Access;
use tidepool_tablespace::{Purpose, Tablespace};

/// Cache lines that were touched.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Touched {
    inner_lines: u32,
    leaf_lines: u32,
    leaves: u32,
    written_lines: u32,
    scanned_bytes: u64,
}

impl Touched {
    /// A search in a node.
    #[inline]
    pub fn node(&mut self, shape: Shape) {
        // The header and the first slots, those lines in which the search goes on, a payload.
        let lines = 2 + (usize::BITS - (shape.count() / 8).leading_zeros());
        if shape.level() == 0 {
            self.leaf_lines += lines;
            self.leaves += 1;
        } else {
            self.inner_lines += lines;
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
        self.scanned_bytes += bytes as u64;
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
    let leaves = f64::from(touched.leaves.max(1));
    let accesses = [
        // Each level depends on the one above. Inner nodes are few, and so mostly cached: they are a working set apart.
        Access::read_random(touched.inner_lines.into(), inner_bytes, 2.0),
        // A leaf's header and slots are fetched at once, the payload when it is known.
        Access::read_random(touched.leaf_lines.into(), leaf_bytes, f64::from(touched.leaf_lines) / (2.0 * leaves)),
        Access::write_random(touched.written_lines.into(), leaf_bytes, 4.0),
        Access::read_sequential(touched.scanned_bytes),
    ];
    let made = |access: &&Access| match access.pattern {
        tidepool_device::Pattern::Sequential { bytes, .. } => bytes > 0,
        tidepool_device::Pattern::Random { lines, .. } => lines > 0,
    };
    let made: Vec<Access> = accesses.iter().filter(made).copied().collect();
    space.charge(Purpose::Index, &made);
}
