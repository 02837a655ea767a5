//! Arenas: where a heap's blocks come from.
//!
//! An arena is a jemalloc arena whose extent hooks take pages from the tablespaces of the heap that leases it, in their
//! order, within its budget. Making one costs far more than a short statement, so they are kept and leased again.
//!
//! Life cycle: made -> leased to an open heap -> closed (thread caches flushed, free extents given back) -> idle, or
//! *lingering* while blocks that outlived their heap are in use. A lingering arena gives every extent back as soon as its
//! last block is freed, and may be leased again by a heap that uses the tablespaces in which it lingers. How threads race
//! for this is [`crate::lease`]'s matter.
//!
//! Invariants:
//!   * Every page that an arena took carries the arena's tag ([`tidepool_tablespace::page_tag`]) until it is given back,
//!     and an arena gives back only pages with its tag.
//!   * `held[i].space` is set while `held[i].bytes` is not zero: a page keeps its tablespace open.
//!   * Only a leased arena takes pages.
//!   * No two arenas' extents are neighbours in jemalloc's eyes. Of two adjoining extents it joins those where the upper
//!     one is not a *head* (the start of what a hook gave), and takes it for granted that both are then of one arena: it
//!     locks and changes the books of the one that it works for. That holds for address space that is never given back. It
//!     breaks when the start of a run is given back while its rest is in use, and another arena gets that start: two arenas
//!     then have one extent in their books, hand it out twice, or give it back twice. So the start goes to another arena
//!     only with a free page between it and the rest ([`Tablespace::allocate_tagged`]).
//!   * jemalloc retains nothing. It grows an arena by doubling and keeps the rest for ever, unless the hook refuses: those
//!     requests come with `commit` unset, others with `commit` set. Then it asks again for exactly what it needs.
//!     (`opt.retain` must stay on for the process's own arenas, where it saves two thirds of the cost of large blocks.)
//!   * jemalloc purges only when told to.
//!
//! The hooks run inside the allocator. They must not allocate, and do not: they change atomics and a tablespace's books.
//! What contradicts these invariants is memory given to two owners, and ends the process with a line that says what it was.

use crate::bulk::BULK_LEAVES;
use crate::jemalloc;
use crate::lease::{Books, Lease, Life};
use crate::promise;
use std::ffi::{c_uint, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result, SqlState};
use tidepool_tablespace::{TAG_MAX, Tablespace, stop};
use tikv_jemalloc_sys::extent_hooks_t;

/// jemalloc has room for 4,095 arenas, and a search for an idle one looks at all that are made.
pub const ARENAS_MAX: usize = 256;

const _: () = assert!(ARENAS_MAX <= TAG_MAX as usize);

/// Tablespaces that one heap can name.
pub const HEAP_SPACES_MAX: usize = 8;

/// Room for a heap's tablespaces and for others in which the arena lingers.
const HELD_MAX: usize = 2 * HEAP_SPACES_MAX;

/// Threads that can be inside one heap with a thread cache each; more work without.
const TCACHES_MAX: usize = 32;

/// Freed extents from this size on go back to the tablespace at once, to be joined there with their neighbours.
const OVERSIZE_BYTES: usize = 1 << 20;

/// Smaller ones are kept for the statement, longer than most of them run.
const FREE_EXTENTS_KEPT: Duration = Duration::from_secs(10);

/// A century: jemalloc itself never gives free extents back. (Not "never", -1: then it would not give large ones back at
/// once either.)
const DIRTY_DECAY_MS: isize = 100 * 365 * 24 * 3600 * 1000;

const BYTE_ALIGNMENT_MIN: usize = 4096;

/// What an arena has of one tablespace.
#[derive(Debug)]
struct Held {
    /// The tablespace's address range; length zero: none. Looked through for any address, so that a tablespace that is
    /// being let go is not touched. Written and read in the order that `tidepool_tablespace::page_tag` explains.
    len: AtomicUsize,
    start: AtomicUsize,
    /// From `Arc::into_raw`, or null. Only to be followed by a lease, or for a page that is in use.
    space: AtomicPtr<Tablespace>,
    bytes: AtomicU64,
    bytes_peak: AtomicU64,
    /// Bytes that lingered when the present lease began.
    bytes_before: AtomicU64,
}

impl Held {
    const fn none() -> Held {
        Held {
            len: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            space: AtomicPtr::new(null_mut()),
            bytes: AtomicU64::new(0),
            bytes_peak: AtomicU64::new(0),
            bytes_before: AtomicU64::new(0),
        }
    }

    fn contains(&self, address: *const u8) -> bool {
        let len = self.len.load(Ordering::Acquire);
        let offset = address.addr().wrapping_sub(self.start.load(Ordering::Acquire));
        offset < len && self.len.load(Ordering::Relaxed) == len
    }

    fn set(&self, space: &Arc<Tablespace>) {
        let range = space.address_range();
        self.space.store(Arc::into_raw(space.clone()).cast_mut(), Ordering::Release);
        self.start.store(range.start, Ordering::Release);
        self.len.store(range.len(), Ordering::Release);
    }

    /// The tablespace, if any, which the caller drops.
    fn clear(&self) -> Option<Arc<Tablespace>> {
        self.len.store(0, Ordering::Release);
        let space = self.space.swap(null_mut(), Ordering::AcqRel);
        // SAFETY: from `Arc::into_raw`, and taken out of its place.
        (!space.is_null()).then(|| unsafe { Arc::from_raw(space) })
    }
}

/// A thread cache: whoever sets `busy` may use it.
#[derive(Debug)]
struct Cache {
    busy: AtomicBool,
    /// jemalloc's number plus one; zero until made.
    id: AtomicU32,
    /// Used since it was last flushed.
    used: AtomicBool,
}

#[repr(C)]
pub struct Arena {
    /// First, so that the hooks' own address is the arena's.
    hooks: extent_hooks_t,
    /// jemalloc's number.
    number: AtomicU32,
    tag: u16,
    lease: Lease,
    held: [Held; HELD_MAX],
    /// Places in `held`, in overflow order; the first `order_len` count.
    order: [AtomicU8; HEAP_SPACES_MAX],
    order_len: AtomicUsize,
    budget_bytes: AtomicU64,
    /// Of all tablespaces, lingering bytes left out.
    bytes: AtomicU64,
    /// Bytes that no tablespace had room for, and that the process gave.
    overdraft_bytes: AtomicU64,
    /// When free extents were last given back, in milliseconds of [`now_ms`].
    purged_ms: AtomicU64,
    caches: [Cache; TCACHES_MAX],
}

// SAFETY: the hooks are function pointers that never change; everything else is atomic or a lock.
unsafe impl Sync for Arena {}
// SAFETY: as above.
unsafe impl Send for Arena {}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arena").field("tag", &self.tag).field("number", &self.number).finish_non_exhaustive()
    }
}

/// Arenas by tag less one. Filled from the start, never emptied.
static ARENAS: [AtomicPtr<Arena>; ARENAS_MAX] = [const { AtomicPtr::new(null_mut()) }; ARENAS_MAX];

/// How many arenas there are. Held while one is made.
static MADE: Mutex<usize> = Mutex::new(0);

/// Milliseconds since some time in the past.
fn now_ms() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_millis() as u64
}

fn all() -> impl Iterator<Item = &'static Arena> {
    (1..=ARENAS_MAX as u16).map_while(by_tag)
}

/// Gives the free extents of all arenas back, for a statement that found no room.
pub fn purge_all() {
    for arena in all() {
        arena.purge();
    }
}

/// The arena with this tag (one or more).
pub fn by_tag(tag: u16) -> Option<&'static Arena> {
    let arena = ARENAS.get(usize::from(tag).checked_sub(1)?)?.load(Ordering::Acquire);
    // SAFETY: made by `Box::leak`.
    unsafe { arena.as_ref() }
}

/// jemalloc's numbers of all arenas.
pub fn numbers() -> impl Iterator<Item = u32> {
    all().map(|arena| arena.number.load(Ordering::Relaxed))
}

/// What one tablespace gave to a heap, bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub bytes: u64,
    pub bytes_peak: u64,
}

impl Arena {
    /// An arena for a heap over `spaces` (at most [`HEAP_SPACES_MAX`]). The caller is outside any heap.
    pub fn lease(spaces: &[Arc<Tablespace>], budget_bytes: Option<u64>) -> Result<&'static Arena> {
        debug_assert!(!spaces.is_empty() && spaces.len() <= HEAP_SPACES_MAX);
        let begin = |arena: &Arena, life, wait| {
            arena.lease.begin(life, wait, || {
                let suits = arena.lingering_spaces().all(|held| spaces.iter().any(|space| held == Arc::as_ptr(space)));
                suits && arena.prepare(spaces, budget_bytes)
            })
        };
        let find = |wait| {
            // One that nobody has blocks in, if there is one: then all that it gives back is this heap's.
            [Life::Idle, Life::Lingering].into_iter().find_map(|life| all().find(|arena| begin(arena, life, wait)))
        };
        if let Some(arena) = find(false) {
            return Ok(arena);
        }
        let mut made = MADE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if *made == ARENAS_MAX {
            drop(made);
            // One may only have been looked after a moment ago.
            return find(true).ok_or_else(|| too_many(format!("There can be {ARENAS_MAX}.")));
        }
        crate::process::keep_growth_apart();
        let arena = Arena::make(*made)?;
        // Nobody knows of it yet, so it can be leased.
        begin(arena, Life::Idle, true);
        ARENAS[*made].store((arena as *const Arena).cast_mut(), Ordering::Release);
        *made += 1;
        Ok(arena)
    }

    /// Writes down what a lease is for. False when there is no room for it.
    fn prepare(&self, spaces: &[Arc<Tablespace>], budget_bytes: Option<u64>) -> bool {
        for (index, space) in spaces.iter().enumerate() {
            let Some(place) = self.hold(space) else { return false };
            self.order[index].store(place as u8, Ordering::Relaxed);
        }
        self.order_len.store(spaces.len(), Ordering::Relaxed);
        self.budget_bytes.store(budget_bytes.unwrap_or(u64::MAX), Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
        self.overdraft_bytes.store(0, Ordering::Relaxed);
        self.purged_ms.store(now_ms(), Ordering::Relaxed);
        true
    }

    fn make(made: usize) -> Result<&'static Arena> {
        let arena: &'static Arena = Box::leak(Box::new(Arena {
            hooks: extent_hooks_t {
                alloc: Some(take_extent),
                dalloc: Some(give_extent_back),
                destroy: Some(destroy_extent),
                commit: None,
                decommit: None,
                purge_lazy: None,
                purge_forced: None,
                split: Some(split_extent),
                merge: Some(merge_extents),
            },
            number: AtomicU32::new(0),
            tag: made as u16 + 1,
            lease: Lease::new(),
            held: [const { Held::none() }; HELD_MAX],
            order: [const { AtomicU8::new(0) }; HEAP_SPACES_MAX],
            order_len: AtomicUsize::new(0),
            budget_bytes: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            overdraft_bytes: AtomicU64::new(0),
            purged_ms: AtomicU64::new(0),
            caches: [const { Cache { busy: AtomicBool::new(false), id: AtomicU32::new(0), used: AtomicBool::new(false) } };
                TCACHES_MAX],
        }));
        // SAFETY: the hooks are leaked, and written for this. jemalloc does not change them.
        let number = unsafe { jemalloc::create_arena(std::ptr::from_ref(arena).cast_mut().cast()) }
            .map_err(|code| too_many(format!("jemalloc made no arena (error {code}).")))?;
        arena.number.store(number, Ordering::Relaxed);
        jemalloc::disable_muzzy(number)
            .and_then(|()| jemalloc::set_dirty_decay(number, DIRTY_DECAY_MS))
            .and_then(|()| jemalloc::set_oversize_threshold(number, OVERSIZE_BYTES))
            .map_err(|code| too_many(format!("jemalloc could not set up an arena (error {code}).")))?;
        Ok(arena)
    }

    /// The place of `space` in `held`, made if need be and possible. For a lease that begins.
    fn hold(&self, space: &Arc<Tablespace>) -> Option<usize> {
        let at = |held: &Held| held.space.load(Ordering::Acquire).cast_const();
        let place = match self.held.iter().position(|held| std::ptr::eq(at(held), Arc::as_ptr(space))) {
            Some(place) => place,
            None => {
                let place = self.held.iter().position(|held| at(held).is_null())?;
                self.held[place].set(space);
                place
            }
        };
        let held = &self.held[place];
        let lingering = held.bytes.load(Ordering::Acquire);
        held.bytes_before.store(lingering, Ordering::Relaxed);
        held.bytes_peak.store(lingering, Ordering::Relaxed);
        Some(place)
    }

    /// Ends a lease. No thread is inside the heap any more; the caller is outside any heap.
    pub fn close(&self) {
        for cache in &self.caches {
            if cache.used.swap(false, Ordering::Acquire) {
                jemalloc::flush_tcache(cache.id.load(Ordering::Relaxed) - 1);
            }
        }
        drop(self.lease.end(self));
    }

    /// To be called when a block of this arena was freed by a thread outside its heap. The caller is outside any heap.
    pub fn freed_outside(&self) {
        drop(self.lease.freed_outside(self));
    }

    /// Tablespaces that hold blocks of a former lease.
    fn lingering_spaces(&self) -> impl Iterator<Item = *const Tablespace> {
        self.held
            .iter()
            .filter(|held| held.bytes.load(Ordering::Acquire) > 0)
            .map(|held| held.space.load(Ordering::Acquire).cast_const())
    }

    pub fn tag(&self) -> u16 {
        self.tag
    }

    pub fn flag(&self) -> i32 {
        jemalloc::arena_flag(self.number.load(Ordering::Relaxed))
    }

    /// A thread cache for the calling thread alone, if one is free: its place, and the flag to use it with.
    pub fn take_cache(&self, thread: usize) -> Option<(usize, i32)> {
        for place in [thread, thread + 1].map(|number| number % TCACHES_MAX) {
            let cache = &self.caches[place];
            // Acquire, and release when given back: what the last user did to the cache is seen by the next.
            if cache.busy.load(Ordering::Relaxed) || cache.busy.swap(true, Ordering::Acquire) {
                continue;
            }
            let mut id = cache.id.load(Ordering::Relaxed);
            if id == 0 {
                let Ok(made) = jemalloc::create_tcache() else {
                    // jemalloc has no more of them. The place stays unmade.
                    cache.busy.store(false, Ordering::Release);
                    return None;
                };
                id = made + 1;
                cache.id.store(id, Ordering::Relaxed);
            }
            cache.used.store(true, Ordering::Relaxed);
            return Some((place, jemalloc::tcache_flag(id - 1)));
        }
        None
    }

    pub fn give_cache_back(&self, place: usize) {
        self.caches[place].busy.store(false, Ordering::Release);
    }

    /// Bytes taken since the lease began and not given back.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub fn overdraft_bytes(&self) -> u64 {
        self.overdraft_bytes.load(Ordering::Relaxed)
    }

    /// Notes bytes that the process gives instead; returns how many there were before.
    pub fn overdraw(&self, bytes: u64) -> u64 {
        self.overdraft_bytes.fetch_add(bytes, Ordering::Relaxed)
    }

    /// Gives free extents back, so that others, or blocks of another size, may use their pages.
    pub fn purge(&self) {
        self.purged_ms.store(now_ms(), Ordering::Relaxed);
        drop(self.lease.purge(self));
    }

    /// Gives free extents back if that was long ago.
    pub fn tidy(&self) {
        let now = now_ms();
        if now.saturating_sub(self.purged_ms.load(Ordering::Relaxed)) >= FREE_EXTENTS_KEPT.as_millis() as u64 {
            self.purge();
        }
    }

    pub fn usage(&self, space: &Tablespace) -> Usage {
        let Some(held) = self.held.iter().find(|held| std::ptr::eq(held.space.load(Ordering::Acquire), space)) else {
            return Usage::default();
        };
        let before = held.bytes_before.load(Ordering::Relaxed);
        Usage {
            bytes: held.bytes.load(Ordering::Relaxed).saturating_sub(before),
            bytes_peak: held.bytes_peak.load(Ordering::Relaxed).saturating_sub(before),
        }
    }

    /// The heap's tablespaces in the order in which they are asked. For bulk, one of which less than a quarter is left comes after all
    /// others: that is for what is touched more often.
    fn order(&self, is_bulk: bool) -> impl Iterator<Item = (&Held, &Tablespace)> {
        let places = &self.order[..self.order_len.load(Ordering::Relaxed).min(HEAP_SPACES_MAX)];
        let all = places.iter().enumerate().filter_map(move |(number, place)| {
            let held = &self.held[usize::from(place.load(Ordering::Relaxed)) % HELD_MAX];
            // SAFETY: held by a leased arena until its close, which waits for all threads to leave the heap.
            let space = unsafe { held.space.load(Ordering::Acquire).as_ref() }?;
            let is_last = number + 1 == places.len();
            let is_late = is_bulk && !is_last && space.available_bytes() < space.size_bytes() / BULK_LEAVES;
            Some((held, space, is_late))
        });
        let early = all.clone().filter(|(.., is_late)| !is_late);
        let late = all.filter(move |(.., is_late)| is_bulk && *is_late);
        early.chain(late).map(|(held, space, _)| (held, space))
    }

    /// Takes `size` bytes for the leasing heap. Null when neither budget nor tablespaces allow it.
    fn take(&self, size: usize, alignment: usize, zero: &mut bool) -> *mut c_void {
        if !self.lease.is_leased() {
            return null_mut();
        }
        let bytes = size as u64;
        let promised = promise::redeem(self.tag, bytes);
        if self.set_apart(bytes - promised) {
            for (held, space) in self.order(crate::bulk::is_bulk()) {
                let Some(run) = space.allocate_tagged(size, alignment.max(BYTE_ALIGNMENT_MIN), self.tag) else {
                    continue;
                };
                let now = held.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
                held.bytes_peak.fetch_max(now, Ordering::Relaxed);
                if *zero && !run.zeroed {
                    // SAFETY: the run is `size` bytes long and this caller's.
                    unsafe { run.address.as_ptr().write_bytes(0, size) };
                }
                *zero |= run.zeroed;
                return run.address.as_ptr().cast();
            }
            self.put_back(bytes - promised);
        }
        promise::restore(self.tag, promised);
        null_mut()
    }

    /// Counts bytes as taken, unless the budget does not allow that.
    pub fn set_apart(&self, bytes: u64) -> bool {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = before.saturating_add(bytes) <= self.budget_bytes.load(Ordering::Relaxed);
        if !fits {
            self.put_back(bytes);
        }
        fits
    }

    /// The inverse of `set_apart`.
    pub fn put_back(&self, bytes: u64) {
        // Blocks of a former lease may go during this one: they were never part of its count.
        let _ = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| Some(now.saturating_sub(bytes)));
    }

    /// # Safety
    /// `[address, address + size)` are pages that this arena took and nobody uses.
    unsafe fn give_back(&self, address: NonNull<u8>, size: usize) {
        let bytes = size as u64;
        let held = self.held.iter().find(|held| held.contains(address.as_ptr()));
        // SAFETY: a page of it is in use, so it is held (invariant).
        let space = held.and_then(|held| unsafe { held.space.load(Ordering::Acquire).as_ref() });
        let (Some(held), Some(space)) = (held, space) else {
            stop(format_args!("arena {} gives back {size} bytes of a tablespace that it does not hold", self.tag));
        };
        // SAFETY: the caller's promise.
        unsafe { space.free_tagged(address, size, self.tag) };
        self.put_back(bytes);
        // Release, and last: from here on the tablespace may be let go.
        if held.bytes.fetch_sub(bytes, Ordering::Release) < bytes {
            stop(format_args!("arena {} gives back more than it took of a tablespace", self.tag));
        }
    }
}

impl Books for Arena {
    type LetGo = [Option<Arc<Tablespace>>; HELD_MAX];

    fn purge(&self) {
        jemalloc::purge(self.number.load(Ordering::Relaxed));
    }

    fn let_go(&self) -> (bool, Self::LetGo) {
        let mut all = true;
        let let_go = self.held.each_ref().map(|held| {
            // Acquire: pairs with the subtraction in `give_back`, the hook's last use of the tablespace.
            let empty = held.bytes.load(Ordering::Acquire) == 0;
            all &= empty;
            if empty { held.clear() } else { None }
        });
        (all, let_go)
    }
}

fn too_many(detail: String) -> Error {
    Error::new(SqlState::INSUFFICIENT_RESOURCES, "too many query heaps are open at once").with_detail(detail)
}

unsafe extern "C" fn take_extent(
    hooks: *mut extent_hooks_t,
    new_address: *mut c_void,
    size: usize,
    alignment: usize,
    zero: *mut bool,
    commit: *mut bool,
    _arena: c_uint,
) -> *mut c_void {
    // SAFETY: the hooks are an arena's first field; jemalloc passes pointers to two flags.
    let (arena, zero, commit) = unsafe { (&*hooks.cast::<Arena>(), &mut *zero, &mut *commit) };
    // At a fixed address: none. To keep for later: no (see the module's invariants).
    if !new_address.is_null() || !*commit {
        return null_mut();
    }
    arena.take(size, alignment, zero)
}

unsafe extern "C" fn give_extent_back(
    hooks: *mut extent_hooks_t,
    address: *mut c_void,
    size: usize,
    _committed: bool,
    _arena: c_uint,
) -> bool {
    // SAFETY: the hooks are an arena's first field.
    let arena = unsafe { &*hooks.cast::<Arena>() };
    if let Some(address) = NonNull::new(address.cast()) {
        // SAFETY: jemalloc gives back what it took from this arena's hooks, in whole or in part.
        unsafe { arena.give_back(address, size) };
    }
    false
}

unsafe extern "C" fn destroy_extent(
    hooks: *mut extent_hooks_t,
    address: *mut c_void,
    size: usize,
    committed: bool,
    number: c_uint,
) {
    // SAFETY: the same promises.
    unsafe { give_extent_back(hooks, address, size, committed, number) };
}

unsafe extern "C" fn split_extent(
    _hooks: *mut extent_hooks_t,
    _address: *mut c_void,
    _size: usize,
    _size_a: usize,
    _size_b: usize,
    _committed: bool,
    _arena: c_uint,
) -> bool {
    // A tablespace takes parts of runs back.
    false
}

unsafe extern "C" fn merge_extents(
    hooks: *mut extent_hooks_t,
    address_a: *mut c_void,
    _size_a: usize,
    address_b: *mut c_void,
    _size_b: usize,
    _committed: bool,
    _arena: c_uint,
) -> bool {
    // SAFETY: the hooks are an arena's first field.
    let arena = unsafe { &*hooks.cast::<Arena>() };
    // Neighbours in the address space may be of two tablespaces. True: refused.
    !arena.held.iter().any(|held| held.contains(address_a.cast()) && held.contains(address_b.cast()))
}
