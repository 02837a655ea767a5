//! Which of a thread's allocations are bulk: large, filled in sequence, and touched seldom.
//!
//! Where a heap has several tablespaces, bulk leaves a quarter of each but the last to what is touched all the time, directories of hash
//! tables above all: these are small beside the rows that they lead to, and then stay near while the rows go far.

use std::cell::Cell;

/// The part of a tablespace that bulk leaves to others: one in so many. A hash table's directory takes 8 to 16 bytes a row, which takes 24 to 100.
pub(crate) const BULK_LEAVES: u64 = 4;

thread_local! {
    // Constant and without a destructor: read inside the allocator.
    static IS_BULK: Cell<bool> = const { Cell::new(false) };
}

pub(crate) fn is_bulk() -> bool {
    IS_BULK.get()
}

/// Runs `allocate`, which allocates bulk. Blocks of less than 16 KiB share pages with others, and are not told apart.
pub fn bulk<R>(allocate: impl FnOnce() -> R) -> R {
    struct Back(bool);

    impl Drop for Back {
        fn drop(&mut self) {
            IS_BULK.set(self.0);
        }
    }

    let _back = Back(IS_BULK.replace(true));
    allocate()
}
