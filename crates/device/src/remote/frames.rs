//! Near memory for pages that are in the cache and not mapped.
//!
//! A page that is unmapped is copied to a frame, and the frame is free again when the page is mapped or leaves the cache.
//! So frames take as much memory as the inactive part of the cache, whatever the size of the whole.

use crate::PAGE_BYTES;
use crate::paged::storage::Slots;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Frames by page. All of it is used inside of faults: nothing is allocated, and locks are spun for.
#[derive(Debug)]
pub(crate) struct Frames {
    /// The first frame's address. There are addresses for as many frames as pages.
    base: usize,
    /// Each page's frame plus one; zero: it has none. Changed under the page's lock.
    of_page: Slots<AtomicU32>,
    /// Of a free frame: the next free one plus one.
    next: Slots<AtomicU32>,
    /// Guards what follows, and `next`.
    locked: AtomicBool,
    /// The first free frame plus one.
    free: AtomicU32,
    /// Frames that were ever used, which have memory.
    touched: AtomicU32,
}

impl Frames {
    /// `None`: there is no memory for the books. `base` is the start of `pages` pages that nobody else uses.
    pub fn new(base: usize, pages: u32) -> Option<Frames> {
        Some(Frames {
            base,
            of_page: Slots::zeroed(pages as usize)?,
            next: Slots::zeroed(pages as usize)?,
            locked: AtomicBool::new(false),
            free: AtomicU32::new(0),
            touched: AtomicU32::new(0),
        })
    }

    /// Where the page's frame is, if it has one. The caller holds the page's lock.
    pub fn of(&self, page: u32) -> Option<usize> {
        let frame = self.of_page[page as usize].load(Ordering::Relaxed);
        (frame != 0).then(|| self.base + (frame as usize - 1) * PAGE_BYTES)
    }

    /// Gives the page a frame, unless it has one. The caller holds the page's lock.
    pub fn take(&self, page: u32) -> usize {
        if let Some(address) = self.of(page) {
            return address;
        }
        let frame = self.alone(|| {
            let free = self.free.load(Ordering::Relaxed);
            if free != 0 {
                self.free.store(self.next[free as usize - 1].load(Ordering::Relaxed), Ordering::Relaxed);
                return free;
            }
            // No more than there are pages: each has one at most.
            let touched = self.touched.load(Ordering::Relaxed) + 1;
            self.touched.store(touched, Ordering::Relaxed);
            touched
        });
        self.of_page[page as usize].store(frame, Ordering::Relaxed);
        self.base + (frame as usize - 1) * PAGE_BYTES
    }

    /// Takes the page's frame away, if it has one. The caller holds the page's lock.
    pub fn give(&self, page: u32) {
        let frame = self.of_page[page as usize].swap(0, Ordering::Relaxed);
        if frame != 0 {
            self.alone(|| {
                self.next[frame as usize - 1].store(self.free.load(Ordering::Relaxed), Ordering::Relaxed);
                self.free.store(frame, Ordering::Relaxed);
            });
        }
    }

    /// Bytes of memory that frames take, in use or free.
    pub fn bytes(&self) -> u64 {
        u64::from(self.touched.load(Ordering::Relaxed)) * PAGE_BYTES as u64
    }

    fn alone<R>(&self, change: impl FnOnce() -> R) -> R {
        while self.locked.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            std::hint::spin_loop();
        }
        let result = change();
        self.locked.store(false, Ordering::Release);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_one_pages_at_a_time_and_is_used_again() {
        let frames = Frames::new(1 << 20, 8).unwrap();
        let (first, second) = (frames.take(3), frames.take(5));
        assert_eq!((first, second, frames.take(3)), (1 << 20, (1 << 20) + PAGE_BYTES, first));
        assert_eq!((frames.of(3), frames.of(4)), (Some(first), None));
        frames.give(3);
        frames.give(3);
        assert_eq!((frames.of(3), frames.take(7), frames.bytes()), (None, first, 2 * PAGE_BYTES as u64));
        let rest: Vec<usize> = [0, 1, 2, 4, 6].map(|page| frames.take(page)).into();
        let mut all = [rest, vec![first, second]].concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 7);
    }

    #[test]
    fn threads_never_share_a_frame() {
        let frames = Frames::new(0, 64).unwrap();
        let owners: Vec<AtomicU32> = (0..64).map(|_| AtomicU32::new(0)).collect();
        std::thread::scope(|scope| {
            for thread in 0..4_u32 {
                let (frames, owners) = (&frames, &owners);
                scope.spawn(move || {
                    for turn in 0..20_000 {
                        let page = thread * 16 + turn % 16;
                        let owner = &owners[frames.take(page) / PAGE_BYTES];
                        assert_eq!(owner.swap(page + 1, Ordering::SeqCst), 0);
                        assert_eq!(owner.swap(0, Ordering::SeqCst), page + 1);
                        frames.give(page);
                    }
                });
            }
        });
        assert!(frames.bytes() <= 4 * PAGE_BYTES as u64);
    }
}
