//! Arrays of words that several threads fill.

use crate::observed::{Hold, Observer};
use std::alloc::Layout;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use tidepool_base::{Error, Result, SqlState};
use tidepool_heap::QueryHeap;

/// As many words as it was made with, at first 0, at a multiple of a cache line.
#[derive(Debug)]
pub struct Words {
    first: NonNull<AtomicU64>,
    len: usize,
    _hold: Hold,
}

// SAFETY: it owns its words, which are atomic.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

fn layout(len: usize) -> Option<Layout> {
    Layout::from_size_align(len.max(1).checked_mul(8)?, 64).ok()
}

impl Words {
    /// 53200 if the statement's heap, or the machine, has no room for them.
    pub fn new(len: usize, observer: &Observer) -> Result<Words> {
        let refused = || Error::new(SqlState::OUT_OF_MEMORY, "out of memory");
        let layout = layout(len).ok_or_else(refused)?;
        // SAFETY: the layout has bytes.
        let first = QueryHeap::with_room(layout.size(), || unsafe { std::alloc::alloc_zeroed(layout) })?;
        let first = NonNull::new(first.cast::<AtomicU64>()).ok_or_else(refused)?;
        let hold = observer.hold(first.as_ptr().addr(), layout.size());
        Ok(Words { first, len, _hold: hold })
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    #[inline(always)]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: `len` words were allocated, and words of 0 are valid.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        if let Some(layout) = layout(self.len) {
            // SAFETY: allocated in `new`, of this layout.
            unsafe { std::alloc::dealloc(self.first.as_ptr().cast(), layout) }
        }
    }
}
