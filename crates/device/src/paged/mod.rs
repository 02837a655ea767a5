//! Paged memory: 4 KiB pages that a remote node holds, with a bounded cache of them in local memory.
//!
//! What an operating system does that disaggregates memory (Infiniswap, LegoOS), done in the process: the pages of a
//! *window* of the address space are there while the cache holds them. A thread that touches another one faults, waits as
//! long as the network would take, has the page mapped, and goes on. So whatever allocates in the window is paged, without
//! knowing it. A second mapping of this machine's memory, the *copy*, stands for the remote node.
//!
//! [`table`] says which pages are where and why no write is lost, [`Link`] what the network takes, [`signal`] how faults
//! come in, [`kernel`] what the kernel is asked for.
//!
//! A fault costs something by itself: a signal and a few system calls. That time counts towards what the network would
//! take, and only what is left is waited for. What a thread spends beyond is credited against its next faults, up to
//! [`CREDIT_NS_MAX`]: pages are unmapped several at a time, and unmapping, inactive pages touched again and first writes
//! are costs of the emulation, which hardware's bits for used and written pages would save. Both times are counted.
//!
//! # What the kernel itself touches
//!
//! A system call that is given a missing page answers EFAULT, where the fault is handled by the thread itself. So what
//! hands tablespaces' memory to the kernel does it by [`write_all`] or a [`Writer`]. (Waiting for a lock in such memory needs nothing: the
//! libraries' loops around futex(2) touch the lock after each call.) Nor may the kernel or a device keep writing to a page
//! that was handed over before, as with O_DIRECT or RDMA: the page table would not know of it.

mod kernel;
mod link;
mod signal;
mod storage;
mod table;
#[cfg(test)]
mod tests;

pub use kernel::Handling;
pub use table::{OWNERS_MAX, Places};

use crate::{HUGE_PAGE_BYTES, Location, MapOptions, Mapping, PAGE_BYTES, Profile, mapping, stop};
use kernel::Userfault;
use link::Link;
use std::cell::Cell;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::panic::RefUnwindSafe;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::{io, ptr};
use storage::SystemBox;
use table::{Memory, Resolution, Table, Touch};
use tidepool_base::{ByteSize, Error, Result, SqlState};

/// Smaller caches are refused: one instruction can touch tens of pages, on every thread, and needs all of its own at once.
pub const CACHE_BYTES_MIN: u64 = 1 << 20;

/// Most that a thread's costs beyond the network's are credited: what unmapping a batch of pages takes.
const CREDIT_NS_MAX: i64 = 200_000;

/// Waits of more tries than this let others run.
const SPINS: u32 = 100;

/// Faults that [`Mechanism::measured`] takes the median of.
const FAULTS_MEASURED: usize = 512;

/// Totals since the mapping was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PagingCounters {
    /// All that were resolved: those below, and those that found another thread had been there.
    pub faults: u64,
    /// Pages that came over the network.
    pub fetched: u64,
    /// Touched for the first time: nothing to fetch.
    pub zeroed: u64,
    /// Unmapped but still in the cache.
    pub soft: u64,
    /// First writes to pages that had been read.
    pub unprotected: u64,
    /// Pages that left the cache.
    pub evicted: u64,
    /// Of those, pages that were modified and went over the network.
    pub written_back: u64,
    /// What the network takes for all of that, of all threads together, ns.
    pub modelled_ns: u64,
    /// What the mechanism took: signals, system calls, copying, ns.
    pub mechanism_ns: u64,
    /// What threads waited, beside the mechanism, to make up what the network takes, ns.
    pub waited_ns: u64,
    /// What threads waited for pages that another thread was fetching, ns. In none of the above.
    pub shared_ns: u64,
}

impl PagingCounters {
    /// What was added after `before`.
    pub fn since(&self, before: &PagingCounters) -> PagingCounters {
        PagingCounters {
            faults: self.faults - before.faults,
            fetched: self.fetched - before.fetched,
            zeroed: self.zeroed - before.zeroed,
            soft: self.soft - before.soft,
            unprotected: self.unprotected - before.unprotected,
            evicted: self.evicted - before.evicted,
            written_back: self.written_back - before.written_back,
            modelled_ns: self.modelled_ns - before.modelled_ns,
            mechanism_ns: self.mechanism_ns - before.mechanism_ns,
            waited_ns: self.waited_ns - before.waited_ns,
            shared_ns: self.shared_ns - before.shared_ns,
        }
    }
}

/// What a fault costs on this machine without any network.
#[derive(Clone, Copy, Debug)]
pub struct Mechanism {
    /// Median of a fault that fetches a page and makes room for it, ns.
    pub fault_ns: u64,
    /// The part of it before and after the handler, ns.
    delivery_ns: u64,
    /// The part that maps the page, which is after the wait, ns.
    map_ns: u64,
}

impl Mechanism {
    const NONE: Mechanism = Mechanism { fault_ns: 0, delivery_ns: 0, map_ns: 0 };

    /// Measured once a process, in a few milliseconds.
    pub fn measured(handling: Handling) -> Result<Mechanism> {
        static MEASURED: [OnceLock<Mechanism>; 2] = [const { OnceLock::new() }; 2];
        let place = &MEASURED[handling as usize];
        if let Some(mechanism) = place.get() {
            return Ok(*mechanism);
        }
        let mechanism = Mechanism::measure(handling)?;
        Ok(*place.get_or_init(|| mechanism))
    }

    fn measure(handling: Handling) -> Result<Mechanism> {
        let pages = 2 * FAULTS_MEASURED;
        let cache = pages / 2;
        let paged = Paged::new(&Location::Anon, pages * PAGE_BYTES, cache, None, handling, Mechanism::NONE)?;
        let page = |index: usize| paged.base().as_ptr().wrapping_add(index * PAGE_BYTES);
        for index in 0..pages {
            // SAFETY: a page of the window, which nobody else knows of.
            unsafe { page(index).write_volatile(1) };
        }
        let (mut whole, mut inside) = ([0; FAULTS_MEASURED], [0; FAULTS_MEASURED]);
        for index in 0..FAULTS_MEASURED {
            let before = (now_ns(), paged.counters().mechanism_ns);
            // SAFETY: as above.
            std::hint::black_box(unsafe { page(index).read_volatile() });
            whole[index] = now_ns() - before.0;
            inside[index] = paged.counters().mechanism_ns - before.1;
        }
        let mut mapped = [0; FAULTS_MEASURED];
        paged.release(0..pages * PAGE_BYTES);
        for (index, ns) in mapped.iter_mut().enumerate() {
            let before = now_ns();
            paged.space.map(index as u32, false, false);
            *ns = now_ns() - before;
        }
        let (fault_ns, inside_ns) = (median(&mut whole), median(&mut inside));
        Ok(Mechanism { fault_ns, delivery_ns: fault_ns.saturating_sub(inside_ns), map_ns: median(&mut mapped) })
    }
}

fn median(values: &mut [u64; FAULTS_MEASURED]) -> u64 {
    values.sort_unstable();
    values[FAULTS_MEASURED / 2]
}

fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a structure to fill. Usable in a signal handler; the clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[derive(Debug, Default)]
struct Counters {
    faults: AtomicU64,
    fetched: AtomicU64,
    zeroed: AtomicU64,
    soft: AtomicU64,
    unprotected: AtomicU64,
    evicted: AtomicU64,
    written_back: AtomicU64,
    modelled_ns: AtomicU64,
    mechanism_ns: AtomicU64,
    waited_ns: AtomicU64,
    shared_ns: AtomicU64,
}

/// What a handler needs. In memory of the system's allocator, all of it.
#[derive(Debug)]
struct Space {
    window: usize,
    /// Where the copies are.
    copy: usize,
    userfault: Userfault,
    /// This process, for `process_madvise`; `None` where the kernel lets nobody advise itself so.
    process: Option<OwnedFd>,
    handling: Handling,
    mechanism: Mechanism,
    table: Table,
    link: Option<Link>,
    counters: Counters,
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
    fn resolve(&self, address: usize, touch: Touch) {
        let entered_ns = now_ns();
        let page = ((address - self.window) / PAGE_BYTES) as u32;
        // A handler thread waits for whoever faults: nothing of one fault may be credited against another's.
        let credit_ns = if self.handling == Handling::FaultingThread { CREDIT_NS.get() } else { 0 };
        let (mut modelled_ns, mut waited_ns, mut shared_ns) = (0, 0, 0);
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
        let inside_ns = now_ns() - entered_ns;
        let counters = &self.counters;
        let count = |counter: &AtomicU64, by: u64| {
            if by > 0 {
                counter.fetch_add(by, Ordering::Relaxed);
            }
        };
        let mut mechanism_ns = inside_ns - waited_ns + self.mechanism.delivery_ns;
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
    fn map(&self, page: u32, stored: bool, writable: bool) {
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
        // SAFETY: a page of the window that is mapped and protected: nobody writes it. Its copy is the page table's alone
        // while the page is locked.
        unsafe { ptr::copy_nonoverlapping(from, self.copy_of(page), PAGE_BYTES) };
    }

    fn unmap(&self, runs: &[Range<u32>]) {
        if runs.len() < 2 || !self.drop_runs(runs) {
            runs.iter().for_each(|run| self.drop_pages(self.window, run));
        }
    }

    fn discard(&self, run: Range<u32>) {
        self.drop_pages(self.window, &run);
        self.drop_pages(self.copy, &run);
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

/// Who handles faults on this machine, and at what cost. 42501 or 0A000 where the kernel refuses.
pub fn available() -> Result<(Handling, Mechanism)> {
    match Mechanism::measured(Handling::FaultingThread) {
        Ok(mechanism) => Ok((Handling::FaultingThread, mechanism)),
        Err(error) if error.code() == SqlState::FEATURE_NOT_SUPPORTED => {
            // A kernel without signals for faults may still have the rest.
            match Mechanism::measured(Handling::HandlerThreads) {
                Ok(mechanism) => Ok((Handling::HandlerThreads, mechanism)),
                Err(_) => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

/// Memory that is mapped and unmapped page by page. Unmapped on drop.
#[derive(Debug)]
pub struct Paged {
    // Dropped in this order: from then on no fault is resolved.
    _threads: Option<HandlerThreads>,
    _registration: signal::Registration,
    window: Window,
    space: SystemBox<Space>,
    _copy: Mapping,
}

#[derive(Debug)]
struct Window {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address range, unmapped by its owner alone.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: mapped by `Paged::new`, and nothing refers to it once its owner is dropped.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl Paged {
    /// `size` bytes in whole pages, at most `cache` of them local. `remote` is the memory that stands for the remote
    /// node, `anon:` or `numa:N`. Without a profile the network takes no time.
    ///
    /// 22023 for sizes that make no sense and for a profile that moves less than a page; 42501 or 0A000 where the kernel refuses.
    pub fn open(remote: &Location, size: u64, cache: u64, profile: Option<&Profile>) -> Result<Paged> {
        if !matches!(remote, Location::Anon | Location::Numa(_)) {
            return Err(invalid(format!("the pages of a paged tablespace cannot be held in \"{remote}\""))
                .with_hint("Write paged:CACHE:anon: or paged:CACHE:numa:NODE."));
        }
        if let Some(profile) = profile {
            profile.validate()?;
            if (profile.granularity_bytes as usize) < PAGE_BYTES {
                return Err(invalid(format!("profile \"{}\" is no network", profile.name))
                    .with_detail(format!(
                        "It moves {} bytes at a time; paged memory is fetched by pages of {PAGE_BYTES}.",
                        profile.granularity_bytes
                    ))
                    .with_hint(
                        "Name rdma-56g-paging, infiniswap or a profile of your own with granularity_bytes = 4096.",
                    ));
            }
        }
        if cache < CACHE_BYTES_MIN {
            return Err(invalid(format!("a cache of {} is too small for paged memory", ByteSize(cache)))
                .with_detail(format!("It takes {} at least.", ByteSize(CACHE_BYTES_MIN)))
                .with_hint("Write a larger cache, as in paged:64MB:anon:."));
        }
        if cache > size {
            return Err(invalid(format!(
                "a cache of {} is larger than the paged memory of {}",
                ByteSize(cache),
                ByteSize(size)
            ))
            .with_hint("Write a share of it, as in paged:25%:anon:, or a larger size."));
        }
        let page = PAGE_BYTES as u64;
        if size > (u32::MAX - 1) as u64 * page {
            return Err(invalid(format!("paged memory of {} is too large", ByteSize(size)))
                .with_detail(format!("It can be {} at most.", ByteSize((u32::MAX - 1) as u64 * page))));
        }
        let size = size.next_multiple_of(page) as usize;
        let (handling, mechanism) = available()?;
        Paged::new(remote, size, (cache / page) as usize, profile, handling, mechanism)
    }

    fn new(
        remote: &Location,
        len: usize,
        cache_pages: usize,
        profile: Option<&Profile>,
        handling: Handling,
        mechanism: Mechanism,
    ) -> Result<Paged> {
        let pages = (len / PAGE_BYTES) as u32;
        let copy = Mapping::open(remote, Some(len as u64), MapOptions { huge_pages: false, network: None })?;
        let userfault = Userfault::open(handling)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let map_failed = |error: &io::Error| Error::io(format_args!("map {} of memory", ByteSize(len as u64)), error);
        let window = mapping::map(len, HUGE_PAGE_BYTES, flags, -1).map_err(|error| map_failed(&error))?;
        let window = Window { base: window, len };
        let start = window.base.as_ptr().expose_provenance();
        // Pages come and go one by one. A child process has no handler for them and must not see zeroes instead.
        for advice in [libc::MADV_NOHUGEPAGE, libc::MADV_DONTFORK] {
            // SAFETY: advice on a live mapping; it changes no content. A kernel without huge pages refuses the first.
            unsafe { libc::madvise(window.base.as_ptr().cast(), len, advice) };
        }
        userfault.register(start, len).map_err(|error| kernel::refused(&error))?;
        let no_memory = || Error::new(SqlState::OUT_OF_MEMORY, "out of memory for the books of paged memory");
        let space = Space {
            window: start,
            copy: copy.base().as_ptr().expose_provenance(),
            userfault,
            process: process_for_advice(&window),
            handling,
            mechanism,
            table: Table::new(pages, cache_pages as u32).ok_or_else(no_memory)?,
            link: profile.map(Link::new),
            counters: Counters::default(),
        };
        let space = SystemBox::new(space).ok_or_else(no_memory)?;
        if handling == Handling::FaultingThread {
            signal::install()?;
        }
        // SAFETY: the registration is dropped before the space, which does not move.
        let registration = unsafe { signal::register(space.as_ptr(), start, len) }?;
        let threads = match handling {
            Handling::FaultingThread => None,
            Handling::HandlerThreads => Some(HandlerThreads::start(&space)?),
        };
        Ok(Paged { _threads: threads, _registration: registration, window, space, _copy: copy })
    }

    pub fn base(&self) -> NonNull<u8> {
        self.window.base
    }

    pub fn len(&self) -> usize {
        self.window.len
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Empties the whole pages inside of `range` (byte offsets), which nobody uses: they read as zeroes afterwards.
    pub fn release(&self, range: Range<usize>) {
        if let Some(pages) = self.pages(range) {
            self.space.table.release(pages, &*self.space);
        }
    }

    /// Notes that the whole pages inside of `range` (byte offsets) are counted for `owner`, below [`OWNERS_MAX`].
    pub fn set_owner(&self, range: Range<usize>, owner: usize) {
        if let Some(pages) = self.pages(range) {
            self.space.table.set_owner(pages, owner, &*self.space);
        }
    }

    fn pages(&self, range: Range<usize>) -> Option<Range<u32>> {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} is outside of {}", self.len());
        let pages = range.start.div_ceil(PAGE_BYTES) as u32..(range.end / PAGE_BYTES) as u32;
        (!pages.is_empty()).then_some(pages)
    }

    pub fn cache_bytes(&self) -> u64 {
        bytes(self.space.table.capacity())
    }

    /// Makes the cache larger or smaller; what no longer fits leaves it now, and nobody waits for the network.
    pub fn set_cache_bytes(&self, cache: u64) {
        let pages = (cache.max(CACHE_BYTES_MIN) / PAGE_BYTES as u64).min((self.len() / PAGE_BYTES) as u64);
        let outcome = self.space.table.set_capacity(pages as u32, &*self.space);
        self.space.counters.evicted.fetch_add(outcome.evicted.into(), Ordering::Relaxed);
        self.space.counters.written_back.fetch_add(outcome.written_back.into(), Ordering::Relaxed);
    }

    /// What the cache holds.
    pub fn local_bytes(&self) -> u64 {
        bytes(self.space.table.resident())
    }

    /// One owner's pages, in bytes.
    pub fn places(&self, owner: usize) -> Places {
        let pages = self.space.table.places(owner);
        Places { local: pages.local * PAGE_BYTES as u64, remote: pages.remote * PAGE_BYTES as u64 }
    }

    /// What this machine holds for all of it: mapped pages, and copies, which a page may have beside being mapped.
    pub fn resident_bytes(&self) -> u64 {
        bytes(self.space.table.active()) + self.space.table.stored() * PAGE_BYTES as u64
    }

    pub fn mechanism(&self) -> Mechanism {
        self.space.mechanism
    }

    pub fn handling(&self) -> Handling {
        self.space.handling
    }

    pub fn counters(&self) -> PagingCounters {
        let counters = &self.space.counters;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PagingCounters {
            faults: load(&counters.faults),
            fetched: load(&counters.fetched),
            zeroed: load(&counters.zeroed),
            soft: load(&counters.soft),
            unprotected: load(&counters.unprotected),
            evicted: load(&counters.evicted),
            written_back: load(&counters.written_back),
            modelled_ns: load(&counters.modelled_ns),
            mechanism_ns: load(&counters.mechanism_ns),
            waited_ns: load(&counters.waited_ns),
            shared_ns: load(&counters.shared_ns),
        }
    }
}

/// Writes all of `bytes`, which may lie in paged memory.
pub fn write_all(writer: &mut impl io::Write, bytes: &[u8]) -> io::Result<()> {
    io::Write::write_all(&mut Writer(writer), bytes)
}

/// A writer that may be given paged memory, where the one inside hands what it is given to the kernel.
#[derive(Debug)]
pub struct Writer<W>(pub W);

/// Hands `bytes`, which may lie in paged memory, to a `write` that gives them to the kernel: all of them, or a part.
pub fn write_once(bytes: &[u8], write: impl FnOnce(&[u8]) -> io::Result<usize>) -> io::Result<usize> {
    const PART_BYTES: usize = 32 << 10;
    if !signal::overlaps(bytes.as_ptr().addr(), bytes.len()) {
        return write(bytes);
    }
    // On the stack, which is in no tablespace.
    let mut part = [0; PART_BYTES];
    let part = &mut part[..bytes.len().min(PART_BYTES)];
    part.copy_from_slice(&bytes[..part.len()]);
    write(part)
}

impl<W: io::Write> io::Write for Writer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write_once(bytes, |bytes| self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn bytes(pages: u32) -> u64 {
    u64::from(pages) * PAGE_BYTES as u64
}

fn invalid(message: String) -> Error {
    Error::new(SqlState::INVALID_PARAMETER_VALUE, message)
}

/// A descriptor of this process, if the kernel lets it drop pages of its own by it (from Linux 6.13 on).
fn process_for_advice(window: &Window) -> Option<OwnedFd> {
    // SAFETY: a system call that makes a descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) };
    // SAFETY: a descriptor that was just made.
    let process = (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as RawFd) })?;
    // Nothing is mapped there yet.
    let page = libc::iovec { iov_base: window.base.as_ptr().cast(), iov_len: PAGE_BYTES };
    advise_process(process.as_raw_fd(), &[page]).then_some(process)
}

/// Threads that resolve what others fault on.
#[derive(Debug)]
struct HandlerThreads {
    /// Readable when they shall end.
    end: OwnedFd,
    threads: Vec<JoinHandle<()>>,
}

/// The handles are touched on drop alone.
impl RefUnwindSafe for HandlerThreads {}

impl HandlerThreads {
    fn start(space: &SystemBox<Space>) -> Result<HandlerThreads> {
        let failed = |error: &io::Error| Error::io("start threads for page faults", error);
        // SAFETY: a system call that makes a descriptor.
        let end = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if end < 0 {
            return Err(failed(&io::Error::last_os_error()));
        }
        // SAFETY: a descriptor that was just made.
        let mut all = HandlerThreads { end: unsafe { OwnedFd::from_raw_fd(end) }, threads: Vec::new() };
        // As many faults can wait for the network at a time.
        let count = std::thread::available_parallelism().map_or(2, |count| count.get().max(2));
        for _ in 0..count {
            let address = space.as_ptr().expose_provenance();
            let thread = std::thread::Builder::new().name("page faults".into()).spawn(move || {
                // SAFETY: the threads end before the space is dropped.
                let space: &Space = unsafe { &*ptr::with_exposed_provenance(address) };
                handle_faults(space, end);
            });
            all.threads.push(thread.map_err(|error| failed(&error))?);
        }
        Ok(all)
    }
}

impl Drop for HandlerThreads {
    fn drop(&mut self) {
        let one = 1u64;
        // SAFETY: a live number of the length that is given.
        unsafe { libc::write(self.end.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
        for thread in self.threads.drain(..) {
            // It panics in none of its steps.
            let _ = thread.join();
        }
    }
}

fn handle_faults(space: &Space, end: RawFd) {
    let mut polled = [space.userfault.as_raw_fd(), end].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    loop {
        // SAFETY: live structures, as many as said.
        unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, -1) };
        if polled[1].revents != 0 {
            return;
        }
        while let Some(fault) = space.userfault.read() {
            let touch = if fault.write { Touch::Write } else { Touch::Read };
            space.resolve(fault.address, touch);
        }
    }
}
