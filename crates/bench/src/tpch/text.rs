//! The generator's pool of random text: 300 MB, of which every comment is a piece. `tpchgen` would keep it for as long as
//! the process lives, and it would count as the memory of whoever was loaded. Here it lives while rows are generated.

use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use parking_lot::Mutex;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use tpchgen::distribution::Distributions;
use tpchgen::text::TextPool;

/// As large as the specification's `dbgen` makes it: rows depend on it.
const POOL_BYTES: i32 = 300 << 20;

/// Owns a text pool, from `Box::leak`.
pub struct Text(NonNull<TextPool>);

// SAFETY: owns the pool, as a box does.
unsafe impl Send for Text {}
// SAFETY: as above; a pool does not change.
unsafe impl Sync for Text {}

impl Text {
    /// The pool that somebody holds, or a new one.
    pub fn get() -> Arc<Text> {
        static HELD: Mutex<Weak<Text>> = Mutex::new(Weak::new());
        let mut held = HELD.lock();
        held.upgrade().unwrap_or_else(|| {
            let pool = Box::new(TextPool::new(POOL_BYTES, Distributions::static_default()));
            let text = Arc::new(Text(NonNull::from(Box::leak(pool))));
            *held = Arc::downgrade(&text);
            text
        })
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        // SAFETY: from `Box::leak`, and whoever borrowed from it is gone (see `generate`).
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Rows that borrow from the pool, and the pool.
pub struct Generated<R> {
    // Before the pool: dropped first.
    rows: R,
    _text: Arc<Text>,
}

impl<R: Iterator> Iterator for Generated<R> {
    type Item = R::Item;

    fn next(&mut self) -> Option<R::Item> {
        self.rows.next()
    }
}

/// `make` gives rows out of a pool that lives as long as they do. `R`'s items must not borrow from the pool: Arrow batches
/// own what they hold, as their builders copy text.
pub fn generate<R: Iterator<Item = Result<RecordBatch, ArrowError>>>(
    make: impl FnOnce(&'static TextPool) -> R,
) -> Generated<R> {
    let text = Text::get();
    // SAFETY: not for ever, but for as long as `rows`, the only one that gets it: both are dropped together, rows first.
    let rows = make(unsafe { &*text.0.as_ptr() });
    Generated { rows, _text: text }
}
