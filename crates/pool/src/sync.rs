//! Atomic words, or loom's in their place, with the orderings that [`Memory`](crate::memory::Memory) promises.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

pub(crate) fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Acquire)
}

pub(crate) fn store(word: &AtomicU64, bits: u64) {
    word.store(bits, Ordering::Release);
}

/// A swap is a fence, too, as x86's is: the language promises that of fences alone.
pub(crate) fn swap(word: &AtomicU64, from: u64, to: u64) -> Result<(), u64> {
    let swapped = word.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    swapped.map(drop)
}

pub(crate) fn full_fence() {
    fence(Ordering::SeqCst);
}

/// Bytes that another host may be writing. Once this has returned, all is seen that their writer had stored before them.
pub(crate) fn load_bytes(words: &[AtomicU64], bytes: &mut [u8]) {
    for (word, eight) in words.iter().zip(bytes.as_chunks_mut::<8>().0) {
        *eight = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    fence(Ordering::Acquire);
}

/// Words of bytes are stored in their order.
pub(crate) fn store_bytes(words: &[AtomicU64], bytes: &[u8]) {
    for (word, eight) in words.iter().zip(bytes.as_chunks::<8>().0) {
        word.store(u64::from_ne_bytes(*eight), Ordering::Release);
    }
}
