//! Vectors whose length depends on how many rows came: their room is asked for before they are allocated.
//!
//! Whether the statement's heap has room is looked at between chunks, and what is allocated meanwhile the process gives
//! ([`QueryHeap::check`]). Of what one chunk needs that is next to nothing; of a directory, of a list of all rows or of a window's
//! column it would be more than the budget may be missed by. Blocks that are no vectors ask [`QueryHeap::with_room`] themselves.

use tidepool_base::Result;
use tidepool_heap::QueryHeap;

/// Shorter vectors are not worth the question: columns of a chunk among them.
const ASKED_BYTES_MIN: usize = 64 << 10;

/// Runs `allocate`, which allocates a vector of so many bytes.
#[inline]
pub(crate) fn asked<R>(bytes: usize, allocate: impl FnOnce() -> R) -> Result<R> {
    if bytes < ASKED_BYTES_MIN { Ok(allocate()) } else { QueryHeap::with_room(bytes, allocate) }
}

/// As `vec![value; len]`.
pub(crate) fn filled<T: Clone>(value: T, len: usize) -> Result<Vec<T>> {
    asked(len.saturating_mul(size_of::<T>()), || vec![value; len])
}

/// As [`Vec::with_capacity`].
pub(crate) fn of_capacity<T>(len: usize) -> Result<Vec<T>> {
    asked(len.saturating_mul(size_of::<T>()), || Vec::with_capacity(len))
}

/// All values, of which there are `len`.
pub(crate) fn collected<T>(len: usize, values: impl Iterator<Item = T>) -> Result<Vec<T>> {
    let mut all = of_capacity(len)?;
    all.extend(values);
    Ok(all)
}

/// Makes room for `more` values. To be called before each time that some come: a vector that is full becomes twice as large.
pub(crate) fn grow<T>(all: &mut Vec<T>, more: usize) -> Result<()> {
    if all.capacity() - all.len() >= more {
        return Ok(());
    }
    let capacity = (all.capacity() * 2).max(all.len() + more);
    let bytes = capacity.saturating_mul(size_of::<T>());
    asked(bytes, || all.reserve_exact(capacity - all.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_as_others() {
        assert_eq!(filled(7u32, 3).unwrap(), [7, 7, 7]);
        assert_eq!(collected(2, 4..6).unwrap(), [4, 5]);
        let mut all = Vec::new();
        for value in 0..1000 {
            grow(&mut all, 1).unwrap();
            let capacity = all.capacity();
            all.push(value);
            assert_eq!(all.capacity(), capacity);
        }
        assert!(all.capacity() <= 2048);
        assert_eq!(all, (0..1000).collect::<Vec<i32>>());
    }
}
