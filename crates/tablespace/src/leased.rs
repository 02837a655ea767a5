//! Tablespaces over leases: windows over the devices of a pool, whose extents come and go as they are needed.
//!
//! Each stripe of the window is one extent of the pool. It is mapped there while this host owns the extent, or has published
//! it: a store by an address of the tablespace that comes late meets no memory. Pages are taken within extents of one *class*, which is what
//! the pool's books say of an extent: heap, delta, index or main. A class has books of its own, in which the pages of its
//! stripes alone are open.
//!
//! *Private* extents (all but main's) are this incarnation's alone, and free as soon as it is known to be dead. *Main* of a
//! database that outlives its process goes to *filling* extents, a page of which is written once: what is given back there
//! is not taken again. When no page of one is left, or when there are too many of them ([`FILLING_MAX`]), it is closed, and
//! published once all that was taken in it was written ([`crate::Region::publish`]). It goes back to the pool when nothing
//! is left in it. Main of a database that ends with its process is private, too.
//!
//! An extent goes back when its last page is given back, if it is main's or belongs to much that is given back at once. Of
//! the other classes extents stay for the next use, until they are trimmed or the pool is full.
//!
//! Locks: `growth`, then a class's book. Both are taken inside the global allocator: under neither is anything allocated, but
//! for what to say of an error. A thread that comes by here again for that is refused.

mod attached;
mod bounds;
mod siblings;

pub use attached::{Claimed, PoolPlace};
pub(crate) use bounds::Leasing;

use crate::extents::Extents;
use crate::leased::attached::Attached;
#[cfg(loom)]
use crate::no_pool::{Member, Refusal};
use crate::shape::{Kind as ShapeKind, Shape};
use crate::storage::SystemArray;
use crate::{Purpose, Tablespace, TablespaceConfig};
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use tidepool_base::{ByteSize, Error, Result, SqlState, TablespaceId};
use tidepool_device::{DEVICES_MAX, Device, PAGE_BYTES, Place, Protection, Window};
#[cfg(not(loom))]
use tidepool_pool::member::{Member, Refusal};
use tidepool_pool::words::{Extent, Kind};

/// Addresses for so many times the extents that a pool can have: runs of several extents find room between others.
const ADDRESSES_FACTOR: u64 = 2;

/// Extents whose return failed that are remembered, to be returned again. More stay the host's until it ends.
const FAILED_MAX: usize = 64;

/// Extents of main that are being filled at a time. What they have room for is the most that is lost to having several.
const FILLING_MAX: usize = 8;

/// What the pool's books tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// And all that is none of the others. Its book is the tablespace's own.
    Heap = 0,
    Delta = 1,
    Index = 2,
    Main = 3,
}

impl Class {
    const ALL: [Class; 4] = [Class::Heap, Class::Delta, Class::Index, Class::Main];

    pub fn of(purpose: Purpose) -> Class {
        match purpose {
            Purpose::Main => Class::Main,
            Purpose::Delta => Class::Delta,
            Purpose::Index => Class::Index,
            Purpose::Heap | Purpose::Log | Purpose::Metadata | Purpose::Reserved | Purpose::Free => Class::Heap,
        }
    }
}

/// What is at a stripe, in one word: `NONE`, or an extent, its class, and whether it is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lease {
    extent: Extent,
    class: Class,
    /// So that the tablespace can shrink: what is in it is moved elsewhere.
    is_closing: bool,
    /// Another host's, or an earlier one's, which is read here.
    is_others: bool,
}

impl Lease {
    const NONE: u64 = 0;
    const PRESENT: u64 = 1 << 63;
    const CLOSING: u64 = 1 << 40;
    const OTHERS: u64 = 1 << 41;
    const CLASS_SHIFT: u32 = 32;

    fn bits(self) -> u64 {
        let closing = if self.is_closing { Lease::CLOSING } else { 0 };
        let others = if self.is_others { Lease::OTHERS } else { 0 };
        Lease::PRESENT | closing | others | (self.class as u64) << Lease::CLASS_SHIFT | u64::from(self.extent.0)
    }

    fn of(bits: u64) -> Option<Lease> {
        (bits != Lease::NONE).then(|| Lease {
            extent: Extent(bits as u32),
            class: Class::ALL[(bits >> Lease::CLASS_SHIFT) as usize % Class::ALL.len()],
            is_closing: bits & Lease::CLOSING != 0,
            is_others: bits & Lease::OTHERS != 0,
        })
    }
}

/// Of a stripe of main: pages that were taken and not yet written are counted in the low bits. Changed under main's book.
const FULL: u32 = 1 << 31;
const SHARED: u32 = 1 << 30;
const PENDING: u32 = SHARED - 1;

/// How a tablespace uses what it leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseOptions {
    /// Its database outlives the process, so that what main holds is for other hosts to read. Otherwise nothing of it is.
    pub publishes: bool,
    /// What is published is mapped to be read alone, so that a store to it ends the process.
    pub guards: bool,
    /// Other hosts read what was published: an extent that nothing here refers to any more stays shared, for those to give
    /// back that know when no host reads it.
    pub keeps: bool,
}

/// Where extents come from.
#[derive(Debug)]
pub(crate) enum Lessor {
    Member(Arc<Member>),
    /// In place of a pool, for Miri: extents are numbers, and the memory is the window's own.
    #[cfg(test)]
    Counted(tests::Counted),
}

#[derive(Debug)]
pub(crate) struct Leased {
    lessor: Lessor,
    stripe_bytes: usize,
    stripes: usize,
    /// Extents that it may have.
    limit: AtomicUsize,
    /// `limit` is what the pool has.
    is_bounded_by_pool: AtomicBool,
    held: AtomicUsize,
    /// Of these, what is to go so that the tablespace is within its bound. Changed under `growth`.
    closing: AtomicUsize,
    /// Free extents of the pool, when that was last looked at.
    pool_free: AtomicUsize,
    /// Main is for other hosts to read, too.
    publishes: bool,
    /// What is published is mapped to be read alone.
    guards: bool,
    /// Published extents are not given back here.
    keeps: bool,
    attached: Attached,
    is_far: bool,
    /// Of all classes but the heap's.
    books: [Mutex<Extents>; 3],
    main: SystemArray<AtomicU32>,
    growth: Mutex<Growth>,
}

// What its locks guard is between two states only where nothing panics.
impl std::panic::RefUnwindSafe for Leased {}

#[derive(Debug)]
struct Growth {
    leases: SystemArray<u64>,
    /// One past the highest stripe that was ever leased.
    end: usize,
    /// Stripes of main that are being filled.
    filling: [u32; FILLING_MAX],
    filling_count: usize,
    /// The window's number for each of the pool's devices.
    devices: [Option<u16>; DEVICES_MAX],
    /// By which what it owns is mapped: of a host that reads the others are opened to be read.
    own_devices: [Option<u16>; DEVICES_MAX],
    /// Extents that are mapped no more and could not be given back, and whether they were shared: another host may still read
    /// such a one.
    failed: [(Extent, bool); FAILED_MAX],
    failed_count: usize,
}

thread_local! {
    // Constant and without a destructor: read inside the allocator.
    static WITHIN_GROWTH: Cell<bool> = const { Cell::new(false) };
}

/// The lock of what is leased. While a thread has it, memory that the thread asks for comes from what is leased already.
struct Growing<'a> {
    growth: MutexGuard<'a, Growth>,
    before: Option<u64>,
}

impl Drop for Growing<'_> {
    fn drop(&mut self) {
        if let (Some(before), Some((_, leave))) = (self.before, AROUND_GROWTH.get()) {
            leave(before);
        }
        WITHIN_GROWTH.set(false);
    }
}

/// What the allocator does when a thread takes the lock of growth, and gives it back.
static AROUND_GROWTH: OnceLock<(Enter, Leave)> = OnceLock::new();

type Enter = fn() -> u64;
type Leave = fn(u64);

/// Has `enter` called by a thread that takes the lock of a tablespace's growth, and `leave` with what that returned when it gives the
/// lock back: where an allocator's own memory comes from such a tablespace, a thread with that lock must not wait for another that
/// is inside the allocator and waits for the lock. Once in a process.
pub fn around_growth(enter: Enter, leave: Leave) {
    let _ = AROUND_GROWTH.set((enter, leave));
}

impl Lessor {
    /// Of the extents that can be mapped: of a device that was added, the window may not know yet.
    fn lease(&self, growth: &Growth, kind: Kind) -> Result<Extent, Refusal> {
        match self {
            Lessor::Member(member) => {
                let is_known = |extent| {
                    member.pool().place(extent).is_some_and(|(device, _)| growth.own_devices[device].is_some())
                };
                member.lease_one(kind, &is_known)
            }
            #[cfg(test)]
            Lessor::Counted(counted) => counted.lease(kind),
        }
    }

    /// Gives an extent back that this host owns, or has published. Nothing of this process uses it any more.
    fn give_back(&self, extent: Extent, is_shared: bool) -> Result<()> {
        match self {
            Lessor::Member(member) if is_shared => reclaim(member, extent),
            Lessor::Member(member) => member.give_back(extent),
            #[cfg(test)]
            Lessor::Counted(counted) => counted.give_back(extent, is_shared),
        }
    }

    /// Of one host of one pool.
    fn is_same(&self, other: &Lessor) -> bool {
        match (self, other) {
            (Lessor::Member(one), Lessor::Member(two)) => Arc::ptr_eq(one, two),
            #[cfg(test)]
            _ => false,
        }
    }

    /// The pool has this extent, and its device is there.
    fn has(&self, extent: Extent) -> bool {
        match self {
            Lessor::Member(member) => member.pool().place(extent).is_some(),
            #[cfg(test)]
            Lessor::Counted(_) => true,
        }
    }

    fn publish(&self, extent: Extent) -> Result<()> {
        match self {
            Lessor::Member(member) => {
                let root = member.root()?;
                member.publish(extent, root.generation)
            }
            #[cfg(test)]
            Lessor::Counted(counted) => counted.publish(extent),
        }
    }

    /// Maps an extent at a stripe.
    ///
    /// # Safety
    /// Nobody uses the stripe, and the extent is mapped at no other.
    unsafe fn map(&self, window: &Window, growth: &Growth, stripe: usize, extent: Extent, is_own: bool) -> bool {
        match self {
            Lessor::Member(member) => {
                let Some((device, offset)) = member.pool().place(extent) else { return false };
                let devices = if is_own { &growth.own_devices } else { &growth.devices };
                let Some(number) = devices[device] else { return false };
                let place = Place { device: number, slot: (offset / window.stripe_bytes()) as u32 };
                // SAFETY: the caller's promise.
                match unsafe { window.map(stripe, place, 0..window.stripe_bytes()) } {
                    Ok(()) => true,
                    Err(error) => {
                        tracing::warn!(extent = extent.0, %error, "an extent of the pool was not mapped");
                        false
                    }
                }
            }
            #[cfg(test)]
            Lessor::Counted(_) => stripe * PAGE_BYTES < window.len(),
        }
    }

    /// # Safety
    /// Nobody uses the stripe.
    unsafe fn unmap(&self, window: &Window, stripe: usize) -> bool {
        match self {
            Lessor::Member(_) => {
                // SAFETY: the caller's promise.
                let unmapped = unsafe { window.unmap(stripe, 0) };
                if let Err(error) = &unmapped {
                    tracing::error!(%error, "an extent is still mapped, and stays this host's");
                }
                unmapped.is_ok()
            }
            #[cfg(test)]
            Lessor::Counted(_) => true,
        }
    }
}

/// Nothing of this process refers to a shared extent any more, and no root names it: there is no root with a manifest that
/// this release makes.
fn reclaim(member: &Member, extent: Extent) -> Result<()> {
    let (root, owner) = (member.root()?, member.owner(extent)?);
    if member.reclaim(extent, owner, root.generation)? {
        return Ok(());
    }
    Err(Error::new(SqlState::OBJECT_IN_USE, "another host may still read it"))
}

impl Leased {
    fn new(lessor: Lessor, window: &Window, stripe_bytes: usize, options: LeaseOptions) -> Result<Leased> {
        let (pages, stripes) = (window.len() / PAGE_BYTES, window.len() / stripe_bytes);
        Ok(Leased {
            lessor,
            stripe_bytes,
            stripes,
            limit: AtomicUsize::new(0),
            is_bounded_by_pool: AtomicBool::new(false),
            held: AtomicUsize::new(0),
            closing: AtomicUsize::new(0),
            pool_free: AtomicUsize::new(0),
            publishes: options.publishes,
            guards: options.guards,
            keeps: options.keeps,
            attached: Attached::default(),
            is_far: false,
            books: [
                Mutex::new(Extents::new(pages)?),
                Mutex::new(Extents::new(pages)?),
                Mutex::new(Extents::new(pages)?),
            ],
            main: SystemArray::zeroed(stripes)?,
            growth: Mutex::new(Growth {
                leases: SystemArray::zeroed(stripes)?,
                end: 0,
                filling: [0; FILLING_MAX],
                filling_count: 0,
                devices: [None; DEVICES_MAX],
                own_devices: [None; DEVICES_MAX],
                failed: [(Extent(0), false); FAILED_MAX],
                failed_count: 0,
            }),
        })
    }

    pub fn book(&self, class: Class) -> Option<&Mutex<Extents>> {
        (class as usize).checked_sub(1).map(|index| &self.books[index])
    }

    fn stripe_pages(&self) -> usize {
        self.stripe_bytes / PAGE_BYTES
    }

    fn pages_of(&self, stripe: usize) -> Range<usize> {
        stripe * self.stripe_pages()..(stripe + 1) * self.stripe_pages()
    }

    fn stripes_of(&self, run: &Range<usize>) -> Range<usize> {
        run.start / self.stripe_pages()..run.end.div_ceil(self.stripe_pages())
    }

    fn kind(&self, class: Class) -> Kind {
        match class {
            Class::Heap => Kind::Heap,
            Class::Delta => Kind::Delta,
            Class::Index => Kind::Index,
            Class::Main if self.publishes => Kind::Main,
            Class::Main => Kind::Near,
        }
    }

    /// A page of this class is written once, and given back for good.
    pub fn is_written_once(&self, class: Class) -> bool {
        class == Class::Main && self.publishes
    }

    pub fn is_far(&self) -> bool {
        self.is_far
    }

    /// `None`: this thread has the lock.
    fn grow(&self) -> Option<Growing<'_>> {
        if WITHIN_GROWTH.replace(true) {
            return None;
        }
        // Nothing under this lock panics.
        let growth = self.growth.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        Some(Growing { growth, before: AROUND_GROWTH.get().map(|(enter, _)| enter()) })
    }

    /// Of extents that are mapped, and of what is claimed.
    pub fn held_bytes(&self) -> u64 {
        (self.held.load(Ordering::Relaxed) * self.stripe_bytes) as u64 + self.attached.claimed_bytes()
    }

    fn limit_bytes(&self) -> u64 {
        (self.limit.load(Ordering::Relaxed) as u64).saturating_mul(self.stripe_bytes as u64)
    }

    /// What can be taken at most, of the pool and of what is leased.
    pub fn available_bytes(&self, used_bytes: u64) -> u64 {
        let free = (self.pool_free.load(Ordering::Relaxed) * self.stripe_bytes) as u64 + self.held_bytes();
        self.limit_bytes().min(free).saturating_sub(used_bytes)
    }

    /// Nothing here refers to an extent of main any more, and others may.
    fn leave(&self, extent: Extent, is_shared: bool) {
        if !is_shared && let Err(error) = self.lessor.publish(extent) {
            // It is an orphan once this host's life is over.
            tracing::warn!(extent = extent.0, %error, "an extent was not published");
        }
    }

    /// The owner of pages that were just taken has not written them yet. Under main's book.
    pub fn note_taken(&self, run: &Range<usize>) {
        for stripe in self.stripes_of(run) {
            let pages = overlap(run, &self.pages_of(stripe)) as u32;
            // Relaxed: under the book's lock.
            self.main[stripe].fetch_add(pages, Ordering::Relaxed);
        }
    }
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> usize {
    one.end.min(other.end).saturating_sub(one.start.max(other.start))
}

fn lock(book: &Mutex<Extents>) -> MutexGuard<'_, Extents> {
    book.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Tablespace {
    /// A tablespace over the pool that `member` is a host of. `config` has no size, or a bound.
    pub fn open_leased(
        id: TablespaceId,
        config: TablespaceConfig,
        member: &Arc<Member>,
        options: LeaseOptions,
    ) -> Result<Arc<Tablespace>> {
        let context = format!("tablespace \"{}\" at {}", config.name, config.location);
        Tablespace::try_open_leased(id, config, member, options)
            .map_err(|error| if error.context().is_none() { error.with_context(context) } else { error })
    }

    fn try_open_leased(
        id: TablespaceId,
        config: TablespaceConfig,
        member: &Arc<Member>,
        options: LeaseOptions,
    ) -> Result<Arc<Tablespace>> {
        config.check_populate()?;
        let pool = member.pool();
        let stripe_bytes = pool.extent_bytes();
        let extents = u64::from(pool.layout().extents);
        let most = crate::shape::pages_max() * PAGE_BYTES as u64 / stripe_bytes * stripe_bytes;
        let wanted = (extents * stripe_bytes).saturating_mul(ADDRESSES_FACTOR).min(most);
        let least = (extents * stripe_bytes).min(most);
        let window = Window::reserve_some(wanted as usize, least as usize, stripe_bytes as usize)?;
        window.reserve_places();
        let mut leased = Leased::new(Lessor::Member(Arc::clone(member)), &window, stripe_bytes as usize, options)?;
        let devices = (0..DEVICES_MAX).filter_map(|device| pool.device_location(device));
        leased.is_far = devices.into_iter().any(|location| location.is_far());
        let size = config.size_bytes;
        let space = Tablespace::new_leased(id, config, window, leased)?;
        space.set_bound(size)?;
        space.look_at_pool()?;
        space.list_as_sibling();
        Ok(space)
    }

    fn new_leased(
        id: TablespaceId,
        config: TablespaceConfig,
        window: Window,
        leased: Leased,
    ) -> Result<Arc<Tablespace>> {
        let shape = Shape { kind: ShapeKind::Leased, ..Shape::default() };
        Tablespace::with_leases(id, config, window, shape, Some(Box::new(leased)))
    }

    fn set_bound(&self, size_bytes: Option<u64>) -> Result<()> {
        let Some(leased) = &self.leased else { return Ok(()) };
        let limit = match size_bytes {
            Some(0) => {
                return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "the size of a tablespace cannot be zero"));
            }
            Some(bytes) => usize::try_from(bytes.div_ceil(leased.stripe_bytes as u64)).unwrap_or(usize::MAX),
            None => usize::MAX / leased.stripe_bytes,
        };
        leased.limit.store(limit, Ordering::Relaxed);
        leased.is_bounded_by_pool.store(size_bytes.is_none(), Ordering::Relaxed);
        self.note_bound(leased);
        Ok(())
    }

    fn note_bound(&self, leased: &Leased) {
        self.set_size_bytes(leased.limit_bytes());
    }

    /// Looks what the pool has now: how much of it is free, and devices that were added. For tablespaces that are not over a
    /// pool it does nothing.
    pub fn look_at_pool(&self) -> Result<()> {
        let Some(leased) = &self.leased else { return Ok(()) };
        #[cfg_attr(not(test), allow(irrefutable_let_patterns, reason = "tests have another"))]
        let Lessor::Member(member) = &leased.lessor else { return Ok(()) };
        let pool = member.pool();
        pool.refresh()?;
        for number in 0..DEVICES_MAX {
            let is_known = leased.growth.lock().is_ok_and(|growth| growth.devices[number].is_some());
            let Some(location) = pool.device_location(number).filter(|_| !is_known) else { continue };
            let protection = if pool.is_readers() { Protection::Read } else { Protection::ReadWrite };
            let device = Device::open_shared(&location, protection)?;
            if pool.is_dealt() {
                device.write_back()?;
            }
            if pool.device_identity(number) != Some(device.kernel_identity()?) {
                return Err(Error::new(
                    SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                    format!("\"{location}\" is not the device that the pool was opened with"),
                )
                .with_detail("Another file or device is there now.")
                .with_hint("Start the server again, with the pool that it is to use."));
            }
            // As many as a pool can have.
            let Ok(of_window) = self.window.add(device) else { continue };
            let own = match protection {
                // What it owns a host that reads maps by another descriptor.
                Protection::Read => self.window.add(Device::open_shared(&location, Protection::ReadWrite)?).ok(),
                Protection::ReadWrite => Some(of_window),
            };
            let Some(mut growing) = leased.grow() else { continue };
            growing.growth.devices[number] = Some(of_window);
            growing.growth.own_devices[number] = own;
        }
        let (all, free) = pool.room()?;
        leased.pool_free.store(free as usize, Ordering::Relaxed);
        // Under the lock: a bound may be set meanwhile.
        if let Some(_growing) = leased.grow()
            && leased.is_bounded_by_pool.load(Ordering::Relaxed)
        {
            leased.limit.store(all as usize, Ordering::Relaxed);
            self.note_bound(leased);
        }
        Ok(())
    }

    /// Whether it takes its memory from a pool, extent by extent.
    pub fn is_leased(&self) -> bool {
        self.leased.is_some()
    }

    /// The extents that it has now, by what the pool's books say of them: `(state, kind, extents, bytes used in them)`.
    pub fn leases(&self) -> Vec<(&'static str, &'static str, u64, u64)> {
        let Some(leased) = &self.leased else { return Vec::new() };
        let mut rows = Vec::with_capacity(8);
        for class in Class::ALL {
            let mut counts = [(0, 0); 3];
            let Some(growing) = leased.grow() else { return Vec::new() };
            let book = lock(leased.book(class).unwrap_or(self.heap_book()));
            for stripe in 0..growing.growth.end {
                if Lease::of(growing.growth.leases[stripe]).is_none_or(|lease| lease.class != class) {
                    continue;
                }
                let state = match leased.main[stripe].load(Ordering::Relaxed) & SHARED {
                    _ if !leased.is_written_once(class) => 0,
                    0 => 1,
                    _ => 2,
                };
                counts[state].0 += 1;
                counts[state].1 += (book.used_in(leased.pages_of(stripe)) * PAGE_BYTES) as u64;
            }
            drop(book);
            drop(growing);
            let kind = leased.kind(class).text();
            for (state, (extents, used)) in ["private", "filling", "shared"].into_iter().zip(counts) {
                if extents > 0 {
                    rows.push((state, kind, extents, used));
                }
            }
        }
        rows
    }

    /// Takes `count` pages where there are none: leases extents for them. Returns the class's book, locked since they were
    /// taken.
    pub(crate) fn lease_and_take<'a>(
        &'a self,
        leased: &'a Leased,
        class: Class,
        count: usize,
        alignment: usize,
        tag: u16,
    ) -> Option<(MutexGuard<'a, Extents>, Range<usize>)> {
        let mut growing = leased.grow()?;
        let growth = &mut *growing.growth;
        let book = leased.book(class).unwrap_or(self.heap_book());
        {
            // Others may have leased some meanwhile.
            let mut extents = lock(book);
            if self.is_closed() {
                return None;
            }
            if let Some(run) = self.place(&mut extents, count, alignment, tag) {
                return Some((extents, run));
            }
        }
        let stripe_pages = leased.stripe_pages();
        // A stripe's first page is aligned to a stripe, as the window is.
        let slack = alignment.saturating_sub(stripe_pages);
        let stripes = count.checked_add(slack)?.div_ceil(stripe_pages);
        let is_within = |leased: &Leased| {
            let staying = leased.held.load(Ordering::Relaxed) - leased.closing.load(Ordering::Relaxed);
            staying.saturating_add(stripes) <= leased.limit.load(Ordering::Relaxed)
        };
        if !is_within(leased) {
            self.give_idle_back(leased, growth, 0, stripes, 0..0);
            if !is_within(leased) {
                return None;
            }
        }
        let first = self.hole(leased, growth, stripes, tag)?;
        for stripe in first..first + stripes {
            if !self.lease_at(leased, growth, stripe, class, first..stripe) {
                for stripe in first..stripe {
                    self.let_go(leased, growth, stripe);
                }
                return None;
            }
        }
        let origin = self.window.base().as_ptr().addr() / PAGE_BYTES % alignment;
        let start = (first * stripe_pages + origin).next_multiple_of(alignment) - origin;
        let run = start..start + count;
        if leased.is_written_once(class) {
            self.begin_filling(leased, growth, first..first + stripes, &run);
        }
        let pages = first * stripe_pages..(first + stripes) * stripe_pages;
        let mut extents = lock(book);
        if self.is_closed() {
            // While they were leased.
            drop(extents);
            (first..first + stripes).for_each(|stripe| self.let_go(leased, growth, stripe));
            return None;
        }
        extents.open(pages.clone());
        extents.set_touched(pages, true);
        if !extents.take_at(run.clone()) {
            // Not reached: the stripes were just opened, and nobody else could see them.
            return None;
        }
        Some((extents, run))
    }

    /// The first of `count` stripes in a row at which nothing is. What follows them is not the middle of another arena's run.
    fn hole(&self, leased: &Leased, growth: &Growth, count: usize, tag: u16) -> Option<usize> {
        let mut first = 0;
        let mut stripe = 0;
        while first + count <= leased.stripes {
            if stripe == first + count {
                if tag == 0 || !self.is_inside_another(first + count, leased, tag) {
                    return Some(first);
                }
                first += 1;
            } else if stripe < growth.end && growth.leases[stripe] != Lease::NONE {
                first = stripe + 1;
                stripe = first;
            } else {
                stripe += 1;
            }
        }
        None
    }

    fn is_inside_another(&self, stripe: usize, leased: &Leased, tag: u16) -> bool {
        self.owners().is_inside_another(stripe * leased.stripe_pages(), tag)
    }

    /// Leases an extent and maps it at a stripe. Its pages are closed still, as those of the `fresh` stripes before it are.
    fn lease_at(&self, leased: &Leased, growth: &mut Growth, stripe: usize, class: Class, fresh: Range<usize>) -> bool {
        let kind = leased.kind(class);
        let mut extent = leased.lessor.lease(growth, kind);
        if extent == Err(Refusal::Full) && self.give_idle_back(leased, growth, 0, 1, fresh) > 0 {
            extent = leased.lessor.lease(growth, kind);
        }
        let Ok(extent) = extent else { return false };
        // SAFETY: nothing is at the stripe, and the extent was just leased.
        if !unsafe { leased.lessor.map(&self.window, growth, stripe, extent, true) } {
            growth.give_back(&leased.lessor, extent, false);
            return false;
        }
        growth.leases[stripe] = Lease { extent, class, is_closing: false, is_others: false }.bits();
        growth.end = growth.end.max(stripe + 1);
        leased.main[stripe].store(0, Ordering::Relaxed);
        leased.held.fetch_add(1, Ordering::Relaxed);
        // An estimate, until it is looked at again.
        let _ = leased.pool_free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| free.checked_sub(1));
        true
    }

    /// Gives a stripe's extent back, whose pages are closed and nobody's.
    fn let_go(&self, leased: &Leased, growth: &mut Growth, stripe: usize) {
        let Some(lease) = Lease::of(growth.leases[stripe]) else { return };
        // First: from the moment that it is given back the memory may be another's.
        // SAFETY: nobody owns a page of it, and nobody can take one.
        if !unsafe { leased.lessor.unmap(&self.window, stripe) } {
            return;
        }
        let is_shared = leased.main[stripe].swap(0, Ordering::Relaxed) & SHARED != 0;
        growth.leases[stripe] = Lease::NONE;
        growth.end_filling(stripe);
        leased.held.fetch_sub(1, Ordering::Relaxed);
        if lease.is_closing {
            leased.closing.fetch_sub(1, Ordering::Relaxed);
        }
        if lease.is_others {
            return;
        }
        if leased.keeps && leased.is_written_once(lease.class) {
            leased.leave(lease.extent, is_shared);
            return;
        }
        growth.give_back(&leased.lessor, lease.extent, is_shared);
        leased.pool_free.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives a stripe back if nobody owns a page of it.
    fn let_go_if_idle(&self, leased: &Leased, growth: &mut Growth, stripe: usize) -> bool {
        let Some(lease) = Lease::of(growth.leases[stripe]) else { return false };
        let pages = leased.pages_of(stripe);
        {
            let mut extents = lock(leased.book(lease.class).unwrap_or(self.heap_book()));
            if extents.used_in(pages.clone()) > 0 {
                return false;
            }
            extents.close_open(pages.clone());
            extents.set_touched(pages, false);
        }
        self.let_go(leased, growth, stripe);
        true
    }

    /// Gives idle extents back, at most so many, from the top down, until so many bytes of pages that nobody owns are left, but
    /// for some stripes. How many went.
    fn give_idle_back(
        &self,
        leased: &Leased,
        growth: &mut Growth,
        keep_bytes: u64,
        at_most: usize,
        but: Range<usize>,
    ) -> usize {
        let mut given = growth.give_failed_back(&leased.lessor);
        for stripe in (0..growth.end).rev().filter(|stripe| !but.contains(stripe)) {
            let free = leased.held_bytes().saturating_sub(self.used_bytes());
            if given >= at_most || free.saturating_sub(keep_bytes) == 0 {
                break;
            }
            given += usize::from(self.let_go_if_idle(leased, growth, stripe));
        }
        if given > 0 {
            self.note_leases(leased);
        }
        given
    }

    /// Stripes of main that were just leased are filled from now on, by `run` first. Others are closed for it, the fullest ones.
    fn begin_filling(&self, leased: &Leased, growth: &mut Growth, fresh: Range<usize>, run: &Range<usize>) {
        let is_filled = |stripe: usize| overlap(run, &leased.pages_of(stripe)) == leased.stripe_pages();
        // At most two: the first and the last.
        let partial = fresh.clone().filter(|stripe| !is_filled(*stripe)).count().min(FILLING_MAX);
        while growth.filling_count > FILLING_MAX - partial {
            let (mut fullest, mut least) = (growth.filling[0], usize::MAX);
            {
                let book = lock(&leased.books[Class::Main as usize - 1]);
                for stripe in &growth.filling[..growth.filling_count] {
                    let free = book.free_in(leased.pages_of(*stripe as usize));
                    if free < least {
                        (least, fullest) = (free, *stripe);
                    }
                }
            }
            self.close_filled(leased, growth, fullest as usize);
        }
        for stripe in fresh {
            if is_filled(stripe) {
                leased.main[stripe].store(FULL, Ordering::Relaxed);
            } else if growth.filling_count < FILLING_MAX {
                growth.filling[growth.filling_count] = stripe as u32;
                growth.filling_count += 1;
            }
        }
    }

    /// Takes nothing more of a stripe of main, and publishes it if all of it was written.
    fn close_filled(&self, leased: &Leased, growth: &mut Growth, stripe: usize) {
        growth.end_filling(stripe);
        {
            let mut extents = lock(&leased.books[Class::Main as usize - 1]);
            extents.close_open(leased.pages_of(stripe));
            leased.main[stripe].fetch_or(FULL, Ordering::Relaxed);
        }
        self.publish_filled(leased, growth, stripe);
    }

    /// Publishes a stripe of main that is full, once all of it was written.
    fn publish_filled(&self, leased: &Leased, growth: &mut Growth, stripe: usize) {
        let Some(lease) = Lease::of(growth.leases[stripe]).filter(|lease| lease.class == Class::Main) else { return };
        {
            let mut extents = lock(&leased.books[Class::Main as usize - 1]);
            let word = leased.main[stripe].load(Ordering::Relaxed);
            let is_full = word & FULL != 0 || extents.free_in(leased.pages_of(stripe)) == 0;
            if word & (SHARED | PENDING) != 0 || !is_full {
                return;
            }
            extents.close_open(leased.pages_of(stripe));
            leased.main[stripe].fetch_or(FULL, Ordering::Relaxed);
        }
        growth.end_filling(stripe);
        if self.let_go_if_idle(leased, growth, stripe) {
            return self.note_leases(leased);
        }
        match leased.lessor.publish(lease.extent) {
            Ok(()) => {
                leased.main[stripe].fetch_or(SHARED, Ordering::Relaxed);
                if leased.guards && matches!(leased.lessor, Lessor::Member(_)) {
                    // SAFETY: nobody writes to pages of main that were written, and all were.
                    if let Err(error) = unsafe { self.window.protect(stripe, Protection::Read) } {
                        tracing::warn!(%error, "a published extent can still be written");
                    }
                }
            }
            Err(error) => tracing::warn!(extent = lease.extent.0, %error, "an extent was not published"),
        }
    }

    /// The owner of pages of main writes to them no more.
    pub(crate) fn note_written(&self, run: &Range<usize>) {
        let Some(leased) = self.leased.as_deref().filter(|leased| leased.publishes) else { return };
        let mut is_ready = false;
        {
            let book = lock(&leased.books[Class::Main as usize - 1]);
            for stripe in leased.stripes_of(run) {
                let pages = overlap(run, &leased.pages_of(stripe)) as u32;
                let left = leased.main[stripe].fetch_sub(pages, Ordering::Relaxed) - pages;
                is_ready |= left & PENDING == 0 && (left & FULL != 0 || book.free_in(leased.pages_of(stripe)) == 0);
            }
        }
        if !is_ready {
            return;
        }
        let Some(mut growing) = leased.grow() else { return };
        for stripe in leased.stripes_of(run) {
            self.publish_filled(leased, &mut growing.growth, stripe);
        }
    }

    /// Takes pages back into a class's book. `returns`: extents of which nothing is left go back to the pool.
    pub(crate) fn give_back_leased(&self, leased: &Leased, run: Range<usize>, purpose: Purpose, returns: bool) {
        let class = Class::of(purpose);
        let bytes = (run.len() * PAGE_BYTES) as u64;
        let mut is_idle = false;
        {
            let mut extents = lock(leased.book(class).unwrap_or(self.heap_book()));
            extents.give_back(run.clone());
            if leased.is_written_once(class) {
                extents.close_open(run.clone());
            }
            for stripe in leased.stripes_of(&run) {
                is_idle |= extents.used_in(leased.pages_of(stripe)) == 0;
            }
        }
        self.subtract(purpose, bytes);
        self.note_leases(leased);
        let returns = returns || self.is_closed() || self.is_shrinking();
        if !returns || !is_idle {
            return;
        }
        let Some(mut growing) = leased.grow() else { return };
        for stripe in leased.stripes_of(&run) {
            self.let_go_if_idle(leased, &mut growing.growth, stripe);
        }
        drop(growing);
        self.note_leases(leased);
    }

    /// As [`Tablespace::trim`].
    pub(crate) fn trim_leased(&self, leased: &Leased, keep_bytes: u64) -> u64 {
        let Some(mut growing) = leased.grow() else { return 0 };
        (self.give_idle_back(leased, &mut growing.growth, keep_bytes, usize::MAX, 0..0) * leased.stripe_bytes) as u64
    }

    pub(crate) fn note_leases(&self, leased: &Leased) {
        self.set_free(leased.held_bytes().saturating_sub(self.used_bytes()));
    }

    /// Why `len` bytes were not to be had.
    pub(crate) fn full_of_leases(&self, leased: &Leased, len: usize) -> Error {
        let wanted = len.div_ceil(leased.stripe_bytes).max(1);
        let (held, limit) = (leased.held.load(Ordering::Relaxed), leased.limit.load(Ordering::Relaxed));
        if held + wanted > limit && !leased.is_bounded_by_pool.load(Ordering::Relaxed) {
            let size = |extents: usize| ByteSize((extents * leased.stripe_bytes) as u64);
            return Error::new(SqlState::OUT_OF_MEMORY, format!("tablespace \"{}\" is full", self.name()))
                .with_detail(format!(
                    "{} are wanted; it has {} of the pool in extents of {}, and may have {}.",
                    ByteSize(len as u64),
                    size(held),
                    size(1),
                    size(limit)
                ))
                .with_hint("Make the tablespace larger, or put less into it.");
        }
        match &leased.lessor {
            Lessor::Member(member) => {
                let error = member.refused(member.why_refused(wanted), wanted);
                let context = format!("tablespace \"{}\"", self.name());
                if error.context().is_none() { error.with_context(context) } else { error }
            }
            #[cfg(test)]
            Lessor::Counted(_) => Error::new(SqlState::DISK_FULL, "the pool is full"),
        }
    }

    /// When it is closed: all that it has goes back to the pool. Nobody owns a page any more.
    pub(crate) fn leave_pool(&self, leased: &Leased) {
        let Some(mut growing) = leased.grow() else { return };
        for stripe in 0..growing.growth.end {
            self.let_go(leased, &mut growing.growth, stripe);
        }
    }
}

impl Growth {
    /// Gives an extent back, now or when that is tried again.
    fn give_back(&mut self, lessor: &Lessor, extent: Extent, is_shared: bool) {
        let Err(error) = lessor.give_back(extent, is_shared) else { return };
        if self.failed_count < FAILED_MAX {
            self.failed[self.failed_count] = (extent, is_shared);
            self.failed_count += 1;
            return;
        }
        // It stays this host's until its death is confirmed, or the database's until it is dropped.
        tracing::warn!(extent = extent.0, %error, "an extent was not given back to the pool");
    }

    /// Tries again what failed. How many extents went.
    fn give_failed_back(&mut self, lessor: &Lessor) -> usize {
        let before = std::mem::take(&mut self.failed_count);
        for index in 0..before {
            let (extent, is_shared) = self.failed[index];
            if lessor.give_back(extent, is_shared).is_err() {
                self.failed[self.failed_count] = (extent, is_shared);
                self.failed_count += 1;
            }
        }
        before - self.failed_count
    }

    fn end_filling(&mut self, stripe: usize) {
        let filling = &mut self.filling[..self.filling_count];
        if let Some(index) = filling.iter().position(|filled| *filled as usize == stripe) {
            filling[index] = filling[filling.len() - 1];
            self.filling_count -= 1;
        }
    }
}

#[cfg(test)]
#[path = "leased_tests.rs"]
pub(crate) mod tests;
