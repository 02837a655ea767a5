//! Cache lines of memory that several machines share, where no hardware keeps their caches alike.
//!
//! The calls begin what the processor does, and [`fence_lines`] waits for it: so many lines cost one wait. On
//! processors whose instructions this crate does not know, they do nothing: there the caches must be coherent.

use crate::mapping::flush;
use std::ptr::NonNull;

pub const LINE_BYTES: usize = 64;

fn is_available() -> bool {
    flush::is_available() && !cfg!(miri)
}

/// Begins to write the lines of `len` bytes at `address` back to memory. This processor's caches may keep them.
///
/// # Safety
/// The bytes are mapped, and the first begins a line.
pub unsafe fn write_back_lines(address: NonNull<u8>, len: usize) {
    debug_assert!(address.addr().get().is_multiple_of(LINE_BYTES));
    if is_available() {
        // SAFETY: the end of mapped bytes, by the caller's promise.
        flush::begin_lines(address.as_ptr(), unsafe { address.as_ptr().add(len) });
    }
}

/// Begins to drop the lines of `len` bytes at `address` from all caches of this machine; what is modified is written
/// back first. A fence must stand before it, or a line may be dropped and fetched again before an older load.
///
/// # Safety
/// The bytes are mapped, and the first begins a line.
pub unsafe fn discard_lines(address: NonNull<u8>, len: usize) {
    debug_assert!(address.addr().get().is_multiple_of(LINE_BYTES));
    if is_available() {
        // SAFETY: the end of mapped bytes, by the caller's promise.
        flush::begin_drop(address.as_ptr(), unsafe { address.as_ptr().add(len) });
    }
}

/// All loads and stores before it, and what was begun with lines before it, are done before anything behind it.
pub fn fence_lines() {
    if is_available() {
        flush::fence();
    }
    // What the compiler must not move, and what other processors have in place of the instructions.
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}
