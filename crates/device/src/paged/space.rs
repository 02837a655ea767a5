//! Resolving faults: the page table over the window, its copy and the kernel, with what the network takes.

use super::kernel::{Handling, Userfault};
use super::link::Link;
use super::table::{self, Memory, Resolution, Table, Touch};
use super::{CREDIT_NS_MAX, Mechanism, SPINS};
use crate::links::monotonic_ns as now_ns;
use crate::remote::{self, EXCHANGE_PAGES, NodeStore};
use crate::{PAGE_BYTES, stop};
use std::cell::Cell;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub faults: AtomicU64,
    pub fetched: AtomicU64,
    pub brought: AtomicU64,
    pub zeroed: AtomicU64,
    pub soft: AtomicU64,
    pub unprotected: AtomicU64,
    pub evicted: AtomicU64,
    pub written_back: AtomicU64,
    pub modelled_ns: AtomicU64,
    pub mechanism_ns: AtomicU64,
    pub waited_ns: AtomicU64,
    pub shared_ns: AtomicU64,
}

/// What a handler needs. In memory of the system's allocator, all of it.
#[derive(Debug)]
pub(crate) struct Space {
    pub window: usize,
    /// Where the copies are, or a node's frames.
    pub copy: usize,
    /// Where pages come from, if that is another machine.
    pub store: Option<NodeStore>,
    pub userfault: Userfault,
    /// This process, for `process_madvise`; `None` where the kernel lets nobody advise itself so.
    pub process: Option<OwnedFd>,
    pub handling: Handling,
    pub mechanism: Mechanism,
    pub table: Table,
    pub link: Option<Link>,
    pub counters: Counters,
}

thread_local! {
    // Constant and without a destructor: reading it is one instruction, also in a signal handler.
    /// What this thread spent beyond what the network takes; below zero what it still owes.
    static CREDIT_NS: Cell<i64> = const { Cell::new(0) };
}

#[repr(align(4096))]
struct ZeroPage([u8; PAGE_BYTES]);

static ZERO_PAGE: ZeroPage = ZeroPage([0; PAGE_BYTES]);

impl Space {
    pub fn node(&self) -> Option<&NodeStore> {
        self.store.as_ref()
    }

    pub fn resolve(&self, address: usize, touch: Touch) {
        let entered_ns = now_ns();
        let page = ((address - self.window) / PAGE_BYTES) as u32;
        // A handler thread waits for whoever faults: nothing of one fault may be credited against another's.
        let credit_ns = if self.handling == Handling::FaultingThread { CREDIT_NS.get() } else { 0 };
        let (mut modelled_ns, mut waited_ns, mut shared_ns) = (0, 0, 0);
        let waited_before_ns = remote::waited_ns();
        let outcome = self.table.fault(page, touch, self, |fetched, written_back| {
            let Some(link) = &self.link else { return };
            modelled_ns = link.charge(entered_ns, fetched, written_back);
            let before_ns = now_ns();
            let saved_ns = credit_ns + (self.mechanism.delivery_ns + self.mechanism.map_ns) as i64;
            let until_ns = (entered_ns + modelled_ns).saturating_add_signed(-saved_ns);
            let mut after_ns = before_ns;
            while after_ns < until_ns {
                std::hint::spin_loop();
                after_ns = now_ns();
            }
            waited_ns = after_ns - before_ns;
        });
        // Of a network that is real.
        waited_ns += remote::waited_ns() - waited_before_ns;
        let inside_ns = now_ns() - entered_ns;
        let counters = &self.counters;
        let count = |counter: &AtomicU64, by: u64| {
            if by > 0 {
                counter.fetch_add(by, Ordering::Relaxed);
            }
        };
        let mut mechanism_ns = inside_ns.saturating_sub(waited_ns) + self.mechanism.delivery_ns;
        match outcome.resolution {
            Resolution::Already => {
                // Whoever comes second to a page on its way waits for it as well.
                mechanism_ns = self.mechanism.delivery_ns;
                shared_ns = inside_ns;
                if self.handling == Handling::HandlerThreads {
                    self.userfault.wake(self.window + page as usize * PAGE_BYTES);
                }
            }
            Resolution::Unprotected => count(&counters.unprotected, 1),
            Resolution::Soft => count(&counters.soft, 1),
            Resolution::Zeroed => count(&counters.zeroed, 1),
            Resolution::Fetched => count(&counters.fetched, 1),
        }
        // A first touch costs as much in any other memory.
        if modelled_ns > 0 || matches!(outcome.resolution, Resolution::Unprotected | Resolution::Soft) {
            let spent_ns = (waited_ns + mechanism_ns) as i64;
            CREDIT_NS.set((credit_ns + spent_ns - modelled_ns as i64).min(CREDIT_NS_MAX));
        }
        count(&counters.faults, 1);
        count(&counters.evicted, outcome.evicted.into());
        count(&counters.written_back, outcome.written_back.into());
        count(&counters.modelled_ns, modelled_ns);
        count(&counters.mechanism_ns, mechanism_ns);
        count(&counters.waited_ns, waited_ns);
        count(&counters.shared_ns, shared_ns);
    }

    fn address(&self, page: u32) -> usize {
        self.window + page as usize * PAGE_BYTES
    }

    fn copy_of(&self, page: u32) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.copy + page as usize * PAGE_BYTES)
    }

    /// Drops the pages of `run` in the mapping that starts at `base`.
    fn drop_pages(&self, base: usize, run: &Range<u32>) {
        let start = ptr::with_exposed_provenance_mut::<libc::c_void>(base + run.start as usize * PAGE_BYTES);
        // SAFETY: pages of a private anonymous mapping of this module's, of which the table says that nobody needs them.
        let rc = unsafe { libc::madvise(start, run.len() * PAGE_BYTES, libc::MADV_DONTNEED) };
        if rc != 0 {
            // SAFETY: the calling thread's own.
            stop(format_args!("pages could not be dropped (error {})", unsafe { *libc::__errno_location() }));
        }
    }

    /// As `drop_pages`, of several runs of the window at once. False where that is not possible.
    fn drop_runs(&self, runs: &[Range<u32>]) -> bool {
        let Some(process) = &self.process else { return false };
        let none = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        let mut ranges = [none; table::BATCH_MAX];
        for (range, run) in ranges.iter_mut().zip(runs) {
            range.iov_base = ptr::with_exposed_provenance_mut(self.address(run.start));
            range.iov_len = run.len() * PAGE_BYTES;
        }
        advise_process(process.as_raw_fd(), &ranges[..runs.len()])
    }
}

/// False unless the kernel dropped all of it. What it did drop may be dropped again.
fn advise_process(process: RawFd, ranges: &[libc::iovec]) -> bool {
    let bytes: usize = ranges.iter().map(|range| range.iov_len).sum();
    // SAFETY: as in `Space::drop_pages`; the ranges are live.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            process,
            ranges.as_ptr(),
            ranges.len(),
            libc::MADV_DONTNEED,
            0 as libc::c_uint,
        )
    };
    rc == bytes as libc::c_long
}

impl Memory for Space {
    fn keeps_copies(&self) -> bool {
        self.store.is_none()
    }

    fn sends_at_once(&self) -> usize {
        if self.store.is_some() { EXCHANGE_PAGES } else { 1 }
    }

    fn send(&self, pages: &[u32]) {
        if let Some(store) = &self.store {
            store.send(pages);
        }
    }

    fn left(&self, page: u32) {
        if let Some(store) = &self.store {
            store.frames.give(page);
        }
    }

    fn map_together(&self, pages: &[u32]) {
        let Some(store) = &self.store else {
            return pages.iter().for_each(|page| self.map(*page, true, false));
        };
        store.fetch(pages, |from| {
            let mut start = 0;
            while start < pages.len() {
                let run = 1 + pages[start..].windows(2).take_while(|pair| pair[0] + 1 == pair[1]).count();
                let from = from.wrapping_add(start * PAGE_BYTES);
                self.userfault.copy_run(self.address(pages[start]), from, run, false);
                start += run;
            }
        });
    }

    fn map(&self, page: u32, stored: bool, writable: bool) {
        if let Some(store) = self.store.as_ref().filter(|_| stored) {
            match store.frames.of(page) {
                Some(frame) => {
                    self.userfault.copy(self.address(page), ptr::with_exposed_provenance(frame), writable);
                    store.frames.give(page);
                }
                None => store.fetch(&[page], |from| self.userfault.copy(self.address(page), from, writable)),
            }
            return;
        }
        let from = if stored { self.copy_of(page).cast_const() } else { ZERO_PAGE.0.as_ptr() };
        self.userfault.copy(self.address(page), from, writable);
    }

    fn unprotect(&self, page: u32) {
        self.userfault.write_protect(self.address(page), PAGE_BYTES, false);
    }

    fn protect(&self, run: Range<u32>) {
        self.userfault.write_protect(self.address(run.start), run.len() * PAGE_BYTES, true);
    }

    fn copy_out(&self, page: u32) {
        let from = ptr::with_exposed_provenance::<u8>(self.address(page));
        let to = match &self.store {
            Some(store) => ptr::with_exposed_provenance_mut(store.frames.take(page)),
            None => self.copy_of(page),
        };
        // SAFETY: a page of the window that is mapped and protected: nobody writes it. Its copy, or its frame, is the page
        // table's alone while the page is locked.
        unsafe { ptr::copy_nonoverlapping(from, to, PAGE_BYTES) };
    }

    fn unmap(&self, runs: &[Range<u32>]) {
        if runs.len() < 2 || !self.drop_runs(runs) {
            runs.iter().for_each(|run| self.drop_pages(self.window, run));
        }
    }

    fn discard(&self, run: Range<u32>) {
        self.drop_pages(self.window, &run);
        match &self.store {
            Some(store) => run.for_each(|page| store.frames.give(page)),
            None => self.drop_pages(self.copy, &run),
        }
    }

    fn pause(&self, tries: u32) {
        if tries < SPINS {
            std::hint::spin_loop();
        } else {
            // SAFETY: a system call without arguments.
            unsafe { libc::sched_yield() };
        }
    }
}

/// A descriptor of this process, if the kernel lets it drop pages of its own by it (from Linux 6.13 on).
pub(crate) fn process_for_advice(window: NonNull<u8>) -> Option<OwnedFd> {
    // SAFETY: a system call that makes a descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) };
    // SAFETY: a descriptor that was just made.
    let process = (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as RawFd) })?;
    // Nothing is mapped there yet.
    let page = libc::iovec { iov_base: window.as_ptr().cast(), iov_len: PAGE_BYTES };
    advise_process(process.as_raw_fd(), &[page]).then_some(process)
}
