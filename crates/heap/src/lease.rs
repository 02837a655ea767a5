//! Who may use an arena, and when its books are closed: the part of an arena's life that threads race for.
//!
//! # Protocol
//!
//! An arena is *idle* (of nobody, nothing taken), *leased* (to one open heap) or *lingering* (its heap is closed, blocks
//! are left). `life` guards the change between them, everything about which tablespaces the arena holds, and every purge.
//!
//! * Only a leased arena takes pages, and its lease ends when no thread is inside its heap any more.
//! * What is freed becomes free extents, which stay with the arena until a purge. A purge that meets another one in
//!   jemalloc does nothing and says nothing, and one that started earlier may have missed what was freed since. So purges
//!   take turns, jemalloc is told to make none of its own, and each starts after the frees it is for.
//! * Whoever frees a block from outside the heap, *after* that looks whether the arena is leased. Whoever ends the lease
//!   purges *after* that. Both are sequentially consistent, so at least one of the two sees the other: either the end's
//!   purge finds the block, or the free finds the lease ended and purges itself. No page stays with an arena that has
//!   neither blocks nor a lease.
//! * A tablespace is let go of when the arena has no page of it, under the lock of an arena that is not leased. Giving a
//!   page back uses the tablespace first and counts the page last.
//!
//! `model` below holds this against every interleaving:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p tidepool-heap --lib lease`.

#[cfg(all(test, loom))]
use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering, fence},
};
#[cfg(not(all(test, loom)))]
use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering, fence},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Idle,
    Leased,
    Lingering,
}

/// What a lease is about.
pub trait Books {
    /// Tablespaces that were held, to be dropped without any lock.
    type LetGo;

    /// Gives all free extents back.
    fn purge(&self);

    /// Lets go of the tablespaces of which no page is left. True when none is held any more.
    fn let_go(&self) -> (bool, Self::LetGo);
}

#[derive(Debug)]
pub struct Lease {
    /// `life` is `Leased`, to be asked without the lock.
    leased: AtomicBool,
    /// A mutex of the standard library: a futex, so that waiting for it never allocates. Nothing allocates or frees under
    /// it but jemalloc for itself.
    life: Mutex<Life>,
}

impl Lease {
    pub fn new() -> Lease {
        Lease { leased: AtomicBool::new(false), life: Mutex::new(Life::Idle) }
    }

    pub fn is_leased(&self) -> bool {
        self.leased.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Starts a lease if the arena is in `life` (not `Leased`) and `prepare` agrees. Nobody takes pages before `prepare`
    /// returns. With `wait` unset, an arena that is being looked after is passed over.
    pub fn begin(&self, life: Life, wait: bool, prepare: impl FnOnce() -> bool) -> bool {
        let mut guard = if wait {
            self.lock()
        } else {
            match self.life.try_lock() {
                Ok(guard) => guard,
                Err(_) => return false,
            }
        };
        if *guard != life || !prepare() {
            return false;
        }
        *guard = Life::Leased;
        // Release: whoever sees the lease sees what was prepared.
        self.leased.store(true, Ordering::Release);
        true
    }

    /// Ends the lease. No thread is inside the heap, and none comes in.
    pub fn end<B: Books>(&self, books: &B) -> B::LetGo {
        self.leased.store(false, Ordering::Release);
        fence(Ordering::SeqCst);
        let mut life = self.lock();
        *life = Life::Lingering;
        Lease::settle(&mut life, books)
    }

    /// To be called after a block was freed from outside its heap.
    pub fn freed_outside<B: Books>(&self, books: &B) -> Option<B::LetGo> {
        fence(Ordering::SeqCst);
        if self.is_leased() {
            return None;
        }
        let mut life = self.lock();
        (*life == Life::Lingering).then(|| Lease::settle(&mut life, books))
    }

    /// Gives free extents back.
    pub fn purge<B: Books>(&self, books: &B) -> Option<B::LetGo> {
        let mut life = self.lock();
        if *life == Life::Lingering {
            return Some(Lease::settle(&mut life, books));
        }
        books.purge();
        None
    }

    fn settle<B: Books>(life: &mut Life, books: &B) -> B::LetGo {
        books.purge();
        let (all, let_go) = books.let_go();
        if all {
            *life = Life::Idle;
        }
        let_go
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    /// jemalloc's arena and one tablespace, in pages. Nothing here orders one thread before another but the protocol.
    struct Arena {
        lease: Lease,
        free: AtomicUsize,
        purging: AtomicBool,
        bytes: AtomicUsize,
        /// The tablespace, held or not. Touched like the plain memory that it is.
        held: AtomicBool,
        space: UnsafeCell<usize>,
    }

    impl Books for Arena {
        type LetGo = ();

        /// As jemalloc does: skipped while another one runs, and only what is free at its start.
        fn purge(&self) {
            if self.purging.swap(true, Ordering::Relaxed) {
                return;
            }
            for _ in 0..self.free.swap(0, Ordering::Relaxed) {
                self.give_back();
            }
            self.purging.store(false, Ordering::Relaxed);
        }

        fn let_go(&self) -> (bool, ()) {
            if self.bytes.load(Ordering::Acquire) > 0 {
                return (false, ());
            }
            if self.held.swap(false, Ordering::AcqRel) {
                // Unmapped: nobody else may be at it.
                self.space.with_mut(|space| unsafe { *space += 1 });
            }
            (true, ())
        }
    }

    impl Arena {
        fn new() -> Arc<Arena> {
            Arc::new(Arena {
                lease: Lease::new(),
                free: AtomicUsize::new(0),
                purging: AtomicBool::new(false),
                bytes: AtomicUsize::new(0),
                held: AtomicBool::new(false),
                space: UnsafeCell::new(0),
            })
        }

        fn begin(&self, life: Life) -> bool {
            self.lease.begin(life, true, || {
                self.held.store(true, Ordering::Release);
                true
            })
        }

        fn take(&self) {
            assert!(self.lease.is_leased());
            self.bytes.fetch_add(1, Ordering::Relaxed);
        }

        fn give_back(&self) {
            assert!(self.held.load(Ordering::Acquire), "a page of a tablespace that is not held");
            self.space.with(|_| ());
            self.bytes.fetch_sub(1, Ordering::Release);
        }

        fn free(&self) {
            self.free.fetch_add(1, Ordering::Relaxed);
        }

        fn free_outside(&self) {
            self.free();
            self.lease.freed_outside(self);
        }

        fn assert_idle(&self) {
            assert_eq!(self.bytes.load(Ordering::Relaxed), 0, "pages are left");
            assert_eq!(*self.lease.lock(), Life::Idle);
            assert!(!self.held.load(Ordering::Relaxed));
        }
    }

    fn free_elsewhere(arena: &Arc<Arena>) -> thread::JoinHandle<()> {
        let arena = arena.clone();
        thread::spawn(move || arena.free_outside())
    }

    /// Two blocks freed by two threads while the lease ends.
    #[test]
    fn blocks_freed_while_a_lease_ends_leave_nothing() {
        loom::model(|| {
            let arena = Arena::new();
            assert!(arena.begin(Life::Idle));
            arena.take();
            arena.take();
            let threads = [free_elsewhere(&arena), free_elsewhere(&arena)];
            arena.lease.end(&*arena);
            for thread in threads {
                thread.join().unwrap();
            }
            arena.assert_idle();
        });
    }

    /// A block outlives its lease and is freed during the next one of the same arena, or before, or after.
    #[test]
    fn an_arena_that_lingers_is_leased_again() {
        loom::model(|| {
            let arena = Arena::new();
            assert!(arena.begin(Life::Idle));
            arena.take();
            arena.lease.end(&*arena);
            let late = free_elsewhere(&arena);
            if arena.begin(Life::Lingering) || arena.begin(Life::Idle) {
                arena.take();
                arena.free();
                arena.lease.end(&*arena);
            }
            late.join().unwrap();
            arena.assert_idle();
        });
    }

    /// Somebody looks for memory everywhere.
    #[test]
    fn a_purge_from_elsewhere_harms_nobody() {
        loom::model(|| {
            let arena = Arena::new();
            assert!(arena.begin(Life::Idle));
            arena.take();
            let late = free_elsewhere(&arena);
            let elsewhere = {
                let arena = arena.clone();
                thread::spawn(move || arena.lease.purge(&*arena).is_some())
            };
            arena.lease.end(&*arena);
            late.join().unwrap();
            elsewhere.join().unwrap();
            arena.assert_idle();
        });
    }

    /// Two heaps want one arena; one gets it at a time.
    #[test]
    fn one_heap_at_a_time() {
        loom::model(|| {
            let arena = Arena::new();
            let use_it = |arena: &Arena| {
                if arena.begin(Life::Idle) {
                    arena.take();
                    arena.free();
                    arena.lease.end(arena);
                }
            };
            let other = {
                let arena = arena.clone();
                thread::spawn(move || use_it(&arena))
            };
            use_it(&arena);
            other.join().unwrap();
            arena.assert_idle();
        });
    }
}
