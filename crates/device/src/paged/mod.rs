//! Paged memory: 4 KiB pages that a remote node holds, with a bounded cache of them in local memory.
//!
//! What an operating system does that disaggregates memory (Infiniswap, LegoOS), done in the process: the pages of a
//! *window* of the address space are there while the cache holds them. A thread that touches another one faults, waits as
//! long as the network would take, has the page mapped, and goes on. So whatever allocates in the window is paged, without
//! knowing it. A second mapping of this machine's memory, the *copy*, stands for the remote node.
//!
//! [`backing`] has the addresses of both, [`table`] says which pages are where and why no write is lost, [`Link`] what the network takes, [`signal`] how faults
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

mod backing;
mod kernel;
mod link;
mod signal;
pub(crate) mod space;
pub(crate) mod storage;
mod table;
#[cfg(test)]
mod tests;
mod threads;

pub use kernel::Handling;
pub use table::{OWNERS_MAX, Places};

use crate::links::monotonic_ns as now_ns;
use crate::remote::{self, Absence, Keeper, NodeCounters, NodeSettings, NodeStore, Policy, Tenant};
use crate::{Location, PAGE_BYTES, Profile};
use backing::Backing;
use kernel::Userfault;
use link::Link;
use space::{Counters, Space, process_for_advice};
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use storage::SystemBox;
use table::{Memory, Replacement, SENT_MAX, Table};
use threads::HandlerThreads;
use tidepool_base::{ByteSize, Error, Result, SqlState};

/// Bytes of pages that paged memory has numbers for.
pub const BYTES_MAX: u64 = (u32::MAX - 1) as u64 * PAGE_BYTES as u64;

/// Smaller caches are refused: one instruction can touch tens of pages, on every thread, and needs all of its own at once.
pub const CACHE_BYTES_MIN: u64 = 1 << 20;

/// Most that a thread's costs beyond the network's are credited: what unmapping a batch of pages takes.
const CREDIT_NS_MAX: i64 = 200_000;

/// How much of a managed cache pages of protected owners may take before they leave it as others do, percent.
const PROTECTED_SHARE: u8 = 50;

/// Bytes that are brought together around those that are named: one request's.
const EXTENT_BYTES: usize = SENT_MAX * PAGE_BYTES;

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
    /// Of those, pages that came before they were touched, because it was said that they would be.
    pub brought: u64,
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
            brought: self.brought - before.brought,
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
        let len = pages * PAGE_BYTES;
        let far = Far { remote: &Location::Anon, profile: None, node: None };
        let paged = Paged::new(far, len, len, cache, handling, Mechanism::NONE)?;
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

/// Where pages are that are not in the cache.
struct Far<'a> {
    /// Memory that stands for the remote node's, or has the frames of one.
    remote: &'a Location,
    /// Of the network, where it is emulated.
    profile: Option<&'a Profile>,
    node: Option<AtNode<'a>>,
}

/// Memory at a node: which one, who asks for it, and how it is used.
#[derive(Clone, Copy, Debug)]
pub struct AtNode<'a> {
    pub node: &'a NodeSettings,
    pub tenant: &'a Tenant,
    pub absence: Absence,
    /// Owners whose pages stay in a managed cache before others' do, a bit each ([`Paged::set_owner`]).
    pub protected: u32,
}

/// Memory that is mapped and unmapped page by page. Unmapped on drop.
#[derive(Debug)]
pub struct Paged {
    // Dropped in this order: from then on no fault is resolved.
    _keeper: Option<Keeper>,
    _threads: Option<HandlerThreads>,
    _registration: signal::Registration,
    backing: Backing,
    space: SystemBox<Space>,
}

impl Paged {
    /// `size` bytes in whole pages, at most `cache` of them local. It can grow to `most` bytes, or less where addresses are
    /// scarce. `remote` is the memory that stands for the remote node, `anon:` or `numa:N`. Without a profile the network
    /// takes no time.
    ///
    /// 22023 for sizes that make no sense and for a profile that moves less than a page; 42501 or 0A000 where the kernel refuses.
    pub fn open(remote: &Location, size: u64, most: u64, cache: u64, profile: Option<&Profile>) -> Result<Paged> {
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
        Paged::check_sizes(size, cache)?;
        let len = page_bytes(size);
        let most = page_bytes(most.min(BYTES_MAX)).max(len);
        let (handling, mechanism) = available()?;
        let far = Far { remote, profile, node: None };
        Paged::new(far, len, most, cache as usize / PAGE_BYTES, handling, mechanism)
    }

    /// As `open`, with the pages of a memory node, over the real network. Once this has returned, the node may come and
    /// go.
    pub fn open_at_node(at: AtNode<'_>, size: u64, most: u64, cache: u64) -> Result<Paged> {
        Paged::check_sizes(size, cache)?;
        remote::check_size(size)?;
        let len = page_bytes(size);
        let most = page_bytes(most.min(BYTES_MAX)).max(len);
        let (handling, mechanism) = available()?;
        // Frames are this machine's own memory.
        let far = Far { remote: &Location::Anon, profile: None, node: Some(at) };
        Paged::new(far, len, most, cache as usize / PAGE_BYTES, handling, mechanism)
    }

    /// Whether there can be paged memory of `size` bytes with a cache of `cache`; 22023 if not.
    pub fn check_sizes(size: u64, cache: u64) -> Result<()> {
        if cache < CACHE_BYTES_MIN {
            return Err(invalid(format!("a cache of {} is too small for paged memory", ByteSize(cache)))
                .with_detail(format!("It takes {} at least.", ByteSize(CACHE_BYTES_MIN)))
                .with_hint("Write a larger cache, as in paged:64MB:anon: or node:HOST:PORT,cache=64MB."));
        }
        if cache > size {
            return Err(invalid(format!(
                "a cache of {} is larger than the paged memory of {}",
                ByteSize(cache),
                ByteSize(size)
            ))
            .with_hint("Write a share of it, as in paged:25%:anon: or node:HOST:PORT,cache=25%, or a larger size."));
        }
        if size > BYTES_MAX {
            return Err(invalid(format!("paged memory of {} is too large", ByteSize(size)))
                .with_detail(format!("It can be {} at most.", ByteSize(BYTES_MAX))));
        }
        Ok(())
    }

    fn new(
        far: Far<'_>,
        len: usize,
        most: usize,
        cache_pages: usize,
        handling: Handling,
        mechanism: Mechanism,
    ) -> Result<Paged> {
        let Far { remote, profile, node } = far;
        let replacement = match node {
            Some(AtNode { node, protected, .. }) if node.policy == Policy::Managed => {
                Replacement::Midpoint { protected, share: PROTECTED_SHARE }
            }
            _ => Replacement::SegmentedFifo,
        };
        let userfault = Userfault::open(handling)?;
        let backing = Backing::new(remote, len, most, &userfault)?;
        let (start, reserved) = (backing.base().as_ptr().expose_provenance(), backing.reserved());
        let no_memory = || Error::new(SqlState::OUT_OF_MEMORY, "out of memory for the books of paged memory");
        let pages = (reserved as u64).min(BYTES_MAX) / PAGE_BYTES as u64;
        let copy = backing.copy().as_ptr().expose_provenance();
        let store =
            node.map(|at| NodeStore::open(at.node, at.tenant, len, pages as u32, copy, at.absence)).transpose()?;
        let space = Space {
            window: start,
            copy,
            store,
            userfault,
            process: process_for_advice(backing.base()),
            handling,
            mechanism,
            table: Table::new(pages as u32, cache_pages as u32, replacement).ok_or_else(no_memory)?,
            link: profile.map(Link::new),
            counters: Counters::default(),
        };
        let space = SystemBox::new(space).ok_or_else(no_memory)?;
        if handling == Handling::FaultingThread {
            signal::install()?;
        }
        // SAFETY: the registration is dropped before the space, which does not move.
        let registration = unsafe { signal::register(space.as_ptr(), start, reserved) }?;
        let threads = match handling {
            Handling::FaultingThread => None,
            Handling::HandlerThreads => Some(HandlerThreads::start(&space)?),
        };
        let keeper = space.store.is_some().then(|| Keeper::start(&space)).transpose()?;
        Ok(Paged { _keeper: keeper, _threads: threads, _registration: registration, backing, space })
    }

    pub fn base(&self) -> NonNull<u8> {
        self.backing.base()
    }

    /// Bytes that there are, in whole pages.
    pub fn len(&self) -> usize {
        self.backing.len()
    }

    /// Bytes that it can grow to.
    pub fn reserved_bytes(&self) -> usize {
        (self.backing.reserved() as u64).min(BYTES_MAX) as usize
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds empty pages at the end: `len` bytes in all, rounded up to whole pages. After an error it is as large as before.
    ///
    /// # Panics
    /// When that is less than it has, or more than it has addresses for.
    pub fn grow(&self, len: usize) -> Result<()> {
        let len = page_bytes(len as u64);
        match &self.space.store {
            Some(store) => store.grow(len, || self.backing.grow(len, &self.space.userfault)),
            None => self.backing.grow(len, &self.space.userfault),
        }
    }

    /// Cuts it off after `len` bytes, rounded up to whole pages: memory and addresses behind are the system's again. A cache
    /// that is larger shrinks with it. After an error the memory is given back, and some addresses are not.
    ///
    /// # Safety
    /// Nobody uses the bytes behind, nor calls another method for them.
    ///
    /// # Panics
    /// When that is more than it has.
    pub unsafe fn shrink(&self, len: usize) -> Result<()> {
        let len = page_bytes(len as u64);
        self.release(len..self.len());
        // SAFETY: the caller's promise, and nothing is left there.
        let unmapped = unsafe { self.backing.shrink(len) };
        if self.cache_bytes() > len as u64 {
            self.set_cache_bytes(len as u64);
        }
        let given = self.space.store.as_ref().map_or(Ok(()), |store| store.shrink(len));
        unmapped.and(given)
    }

    /// Empties the whole pages inside of `range` (byte offsets), which nobody uses: they read as zeroes afterwards.
    pub fn release(&self, range: Range<usize>) {
        if let Some(pages) = self.pages(range) {
            self.space.table.release(pages, &*self.space);
        }
    }

    /// Whether it is worth to say which bytes will be read.
    pub fn is_told(&self) -> bool {
        self.space.table.is_told()
    }

    /// Brings the extents of 64 kB that `range` (byte offsets) lies in, as far as they are not in the cache, an extent at a
    /// time: the range is about to be read from end to end. Of a range that would take much of the cache, the first part.
    pub fn bring(&self, range: Range<usize>) {
        if !self.is_told() {
            return;
        }
        let most = (self.cache_bytes() as usize / 8).max(EXTENT_BYTES);
        let start = range.start / EXTENT_BYTES * EXTENT_BYTES;
        let end = range.end.next_multiple_of(EXTENT_BYTES).min(self.len()).min(start.saturating_add(most));
        for extent in (start..end).step_by(EXTENT_BYTES) {
            let pages = extent / PAGE_BYTES..(extent + EXTENT_BYTES).min(end) / PAGE_BYTES;
            let mut wanted = [0; SENT_MAX];
            let mut count = 0;
            for page in pages.map(|page| page as u32).filter(|page| self.space.table.is_remote(*page)) {
                wanted[count] = page;
                count += 1;
            }
            // A page alone comes as well by a fault, if it is wanted at all.
            if count > 1 && !self.bring_together(&wanted[..count]) {
                return;
            }
        }
    }

    /// Brings the pages that hold these bytes (offsets): they are about to be read, wherever each is.
    pub fn bring_each(&self, offsets: impl Iterator<Item = usize>) {
        if !self.is_told() {
            return;
        }
        let mut wanted = [0; SENT_MAX];
        let mut count = 0;
        for offset in offsets {
            let page = (offset / PAGE_BYTES) as u32;
            if offset < self.len() && self.space.table.is_remote(page) && !wanted[..count].contains(&page) {
                wanted[count] = page;
                count += 1;
                if count == SENT_MAX {
                    wanted.sort_unstable();
                    if !self.bring_together(&wanted) {
                        return;
                    }
                    count = 0;
                }
            }
        }
        if count > 1 {
            wanted[..count].sort_unstable();
            self.bring_together(&wanted[..count]);
        }
    }

    /// False: there is no room for more at the moment.
    fn bring_together(&self, pages: &[u32]) -> bool {
        let waited_before_ns = remote::waited_ns();
        let (brought, outcome) = self.space.table.bring(pages, &*self.space);
        let counters = &self.space.counters;
        let add = |counter: &AtomicU64, by: u64| counter.fetch_add(by, Ordering::Relaxed);
        add(&counters.fetched, brought.into());
        add(&counters.brought, brought.into());
        add(&counters.evicted, outcome.evicted.into());
        add(&counters.written_back, outcome.written_back.into());
        add(&counters.waited_ns, remote::waited_ns() - waited_before_ns);
        brought > 0
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
        let copies = match &self.space.store {
            Some(store) => store.frames.bytes(),
            None => self.space.table.stored() * PAGE_BYTES as u64,
        };
        bytes(self.space.table.active()) + copies
    }

    /// How it is with the memory node, if there is one.
    pub fn node(&self) -> Option<NodeCounters> {
        self.space.store.as_ref().map(NodeStore::counters)
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
            brought: load(&counters.brought),
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

/// `len` in whole pages, as bytes.
fn page_bytes(len: u64) -> usize {
    len.next_multiple_of(PAGE_BYTES as u64) as usize
}

fn bytes(pages: u32) -> u64 {
    u64::from(pages) * PAGE_BYTES as u64
}

fn invalid(message: String) -> Error {
    Error::new(SqlState::INVALID_PARAMETER_VALUE, message)
}
