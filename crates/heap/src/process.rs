//! The process's own memory in a tablespace: what no statement allocates (plans, sessions, caches, the general allocator's all).
//!
//! jemalloc's own arenas get extent hooks, as statements' arenas have ([`crate::arena`]), once and for as long as the process
//! runs. What was allocated before stays where it is. Off, which is the default, this costs nothing: no allocation and no free
//! of a block outside tablespaces comes by here.
//!
//! Invariants:
//!   * Every page that such an arena took of the tablespace has the arena's tag, from [`TAG_MIN`] on, until it is given back.
//!     So a free tells the process's blocks from a statement's by the address, and no two arenas' extents are neighbours in
//!     jemalloc's eyes (see [`crate::arena`]).
//!   * The tablespace is never let go: there is always a block in it.
//!   * Where it has no room, or cannot be asked, the system gives the memory, in a mapping of its own. Such a mapping is kept
//!     by jemalloc for ever, and its idle pages go back to the system.
//!   * The hooks run inside the allocator, under locks of jemalloc's. What is allocated within one, the text of an error, comes
//!     from a *reserve*, and is never freed. jemalloc would serve it from its first arena, whose locks may be held.
//!   * The tablespace's own code allocates under none of its locks but that of growth, and there from the reserve, too
//!     ([`tidepool_tablespace::around_growth`]): so a thread with that lock never waits for one that is within a hook. That
//!     holds for tablespaces over leases, so no others are taken.

use crate::allocator::{Route, set_route};
use crate::jemalloc;
use std::alloc::Layout;
use std::ffi::{c_uint, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use tidepool_base::{Error, Result, SqlState};
use tidepool_tablespace::{TAG_MAX, Tablespace, around_growth, page_tag};
use tikv_jemalloc_sys::{self as sys, extent_hooks_t};

/// Tags from here on are those of the process's own arenas; those below, of statements'.
pub const TAG_MIN: u16 = 1 << 12;

/// The tag of the reserve.
const RESERVE_TAG: u16 = TAG_MAX;

const _: () = assert!(crate::arena::ARENAS_MAX < TAG_MIN as usize);

const PAGE_BYTES: usize = 4096;

/// For the texts of errors, which are rare, and of which each takes some hundred bytes.
const RESERVE_BYTES: usize = 256 << 10;

#[repr(C)]
struct Ground {
    /// First, so that the hooks' own address is the ground's.
    hooks: extent_hooks_t,
    tag: u16,
}

/// A ground's hooks, by a pointer to all of it: the hooks look at what is behind them, too.
fn hooks_of(ground: &'static Ground) -> *mut extent_hooks_t {
    std::ptr::from_ref(ground).cast_mut().cast()
}

struct Taken {
    space: Arc<Tablespace>,
    reserve: usize,
}

static TAKEN: OnceLock<Taken> = OnceLock::new();

/// Bytes that arenas have of the tablespace.
static BYTES: AtomicU64 = AtomicU64::new(0);

/// Bytes of the reserve that were given.
static RESERVED: AtomicUsize = AtomicUsize::new(0);

/// From now on the process's own memory comes from this tablespace, which leases it of a pool, for as long as the process runs. Of
/// several, it stays with the first.
pub fn place_process_memory(space: &Arc<Tablespace>) -> Result<()> {
    if !space.is_leased() {
        return Err(Error::new(
            SqlState::FEATURE_NOT_SUPPORTED,
            format!("tablespace \"{}\" cannot hold the process's own memory", space.name()),
        )
        .with_hint("Name one at pool:."));
    }
    if !crate::is_installed() {
        return Err(Error::new(SqlState::FEATURE_NOT_SUPPORTED, "this program has an allocator of its own"));
    }
    if TAKEN.get().is_some() {
        return Ok(());
    }
    let Some(reserve) = space.allocate_tagged(RESERVE_BYTES, PAGE_BYTES, RESERVE_TAG) else {
        return Err(Error::new(SqlState::OUT_OF_MEMORY, format!("tablespace \"{}\" is full", space.name())));
    };
    let taken = Taken { space: Arc::clone(space), reserve: reserve.address.as_ptr().expose_provenance() };
    if TAKEN.set(taken).is_err() {
        // SAFETY: taken above, and nobody knows of it.
        unsafe { space.free_tagged(reserve.address, RESERVE_BYTES, RESERVE_TAG) };
        return Ok(());
    }
    keep_growth_apart();
    let others: Vec<u32> = crate::arena::numbers().chain(crate::spill::number()).collect();
    let for_large = jemalloc::automatic_arenas();
    for number in (0..=for_large).filter(|number| !others.contains(number)) {
        let Some(tag) = TAG_MIN.checked_add(number as u16).filter(|tag| *tag < RESERVE_TAG) else { break };
        let ground: &'static Ground = Box::leak(Box::new(Ground { hooks: HOOKS, tag }));
        // SAFETY: the hooks are leaked, and what they promise is said there.
        let set = unsafe { jemalloc::set_hooks(number, hooks_of(ground)) };
        set.map_err(|code| Error::internal(format!("jemalloc took no hooks (error {code})")))?;
        if number == for_large {
            // As jemalloc makes it: what is large goes back at once.
            let _ = jemalloc::set_dirty_decay(number, 0);
        }
    }
    Ok(())
}

/// Sees to it that a thread with a tablespace's lock of growth takes nothing from a statement's arena, in whose hooks others
/// wait for that lock: the text of an error or of a log's line, in the middle of a statement. It takes such from the process's own
/// arenas, or from the reserve where these have hooks, too. Before any arena has hooks.
pub fn keep_growth_apart() {
    around_growth(
        || set_route(if TAKEN.get().is_some() { Route::HOOK } else { Route::PROCESS }).bits(),
        |before| {
            set_route(Route::of_bits(before));
        },
    );
}

/// Bytes of the process's own memory that a tablespace holds.
pub fn bytes() -> u64 {
    BYTES.load(Ordering::Relaxed)
}

const HOOKS: extent_hooks_t = extent_hooks_t {
    alloc: Some(take_extent),
    dalloc: Some(give_extent_back),
    destroy: Some(destroy_extent),
    commit: None,
    decommit: None,
    purge_lazy: None,
    purge_forced: Some(purge_extent),
    split: Some(split_extent),
    merge: Some(merge_extents),
};

/// A free of a block in the tablespace: one of these arenas', which goes the way of any other, or the reserve's, which stays.
///
/// # Safety
/// The block is of this size, is freed with the flags of its layout, and its page has `tag`, which is at least [`TAG_MIN`].
pub unsafe fn free(block: *mut u8, size: usize, flags: i32, tag: u16) {
    if tag != RESERVE_TAG {
        // SAFETY: the caller's promise; the block is one of the process's arenas', as its caches are.
        unsafe { sys::sdallocx(block.cast(), size, flags) };
    }
}

/// A block at a page with this tag is one of these arenas'.
pub fn is_movable(tag: u16) -> bool {
    (TAG_MIN..RESERVE_TAG).contains(&tag)
}

/// A block for a thread that is within a hook. Null where the reserve is used up, which takes a thousand errors.
pub fn reserve(layout: Layout) -> *mut u8 {
    let Some(taken) = TAKEN.get() else { return null_mut() };
    let bytes = layout.size().next_multiple_of(16);
    if layout.align() > 16 || bytes > RESERVE_BYTES {
        return null_mut();
    }
    let from = RESERVED.fetch_add(bytes, Ordering::Relaxed);
    if from.saturating_add(bytes) > RESERVE_BYTES {
        return null_mut();
    }
    // Never written before, so of an extent's zeroes or of what this database left there: the caller zeroes.
    std::ptr::with_exposed_provenance_mut(taken.reserve + from)
}

/// Runs a hook's work: whatever it allocates is the reserve's.
fn within_hook<R>(work: impl FnOnce() -> R) -> R {
    let before = set_route(Route::HOOK);
    let result = work();
    set_route(before);
    result
}

fn is_in_space(address: *const c_void) -> bool {
    page_tag(address.cast()).is_some()
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
    // SAFETY: the hooks are a ground's first field; jemalloc passes pointers to two flags.
    let (ground, zero, commit) = unsafe { (&*hooks.cast::<Ground>(), &mut *zero, &mut *commit) };
    // At a fixed address: none. To keep for later: no, as with statements' arenas.
    if !new_address.is_null() || !*commit {
        return null_mut();
    }
    let Some(taken) = TAKEN.get() else { return map(size, alignment, zero) };
    let run = within_hook(|| taken.space.allocate_tagged(size, alignment.max(PAGE_BYTES), ground.tag));
    let Some(run) = run else { return map(size, alignment, zero) };
    BYTES.fetch_add(size as u64, Ordering::Relaxed);
    if *zero && !run.zeroed {
        // SAFETY: the run is `size` bytes long and this caller's.
        unsafe { run.address.as_ptr().write_bytes(0, size) };
    }
    *zero |= run.zeroed;
    run.address.as_ptr().cast()
}

/// Memory of the system.
fn map(size: usize, alignment: usize, zero: &mut bool) -> *mut c_void {
    let slack = if alignment > PAGE_BYTES { alignment } else { 0 };
    let Some(len) = size.checked_add(slack) else { return null_mut() };
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a mapping of its own, at an address that the kernel chooses.
    let mapped = unsafe { libc::mmap(null_mut(), len, access, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return null_mut();
    }
    *zero = true;
    // What lies before and behind is never touched.
    let ahead = mapped.addr().next_multiple_of(alignment.max(PAGE_BYTES)) - mapped.addr();
    mapped.wrapping_byte_add(ahead)
}

unsafe extern "C" fn give_extent_back(
    hooks: *mut extent_hooks_t,
    address: *mut c_void,
    size: usize,
    _committed: bool,
    _arena: c_uint,
) -> bool {
    // SAFETY: the hooks are a ground's first field.
    let ground = unsafe { &*hooks.cast::<Ground>() };
    let (Some(taken), Some(start)) = (TAKEN.get(), NonNull::new(address.cast::<u8>())) else { return true };
    if !is_in_space(address) {
        // True: it stays jemalloc's.
        return true;
    }
    // SAFETY: jemalloc gives back what it took from this arena's hooks, in whole or in part.
    within_hook(|| unsafe { taken.space.free_tagged(start, size, ground.tag) });
    BYTES.fetch_sub(size as u64, Ordering::Relaxed);
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

/// Of what stays jemalloc's. False: its pages are gone, and read as zeroes.
unsafe extern "C" fn purge_extent(
    _hooks: *mut extent_hooks_t,
    address: *mut c_void,
    _size: usize,
    offset: usize,
    length: usize,
    _arena: c_uint,
) -> bool {
    if is_in_space(address) {
        return true;
    }
    // SAFETY: idle memory of the process that is mapped from no file.
    unsafe { libc::madvise(address.wrapping_byte_add(offset), length, libc::MADV_DONTNEED) != 0 }
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
    false
}

unsafe extern "C" fn merge_extents(
    _hooks: *mut extent_hooks_t,
    address_a: *mut c_void,
    _size_a: usize,
    address_b: *mut c_void,
    _size_b: usize,
    _committed: bool,
    _arena: c_uint,
) -> bool {
    // True: refused. Neighbours may be of the tablespace and of the system.
    is_in_space(address_a) != is_in_space(address_b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_base::TablespaceId;
    use tidepool_device::Location;
    use tidepool_tablespace::TablespaceConfig;

    const SPACE_BYTES: usize = 1 << 20;
    const TAG: u16 = TAG_MIN + 7;

    /// An arena as jemalloc sees it: the hooks alone.
    #[derive(Clone, Copy)]
    struct Hooks(*mut extent_hooks_t);

    // SAFETY: the ground is leaked, and nobody writes to it.
    unsafe impl Send for Hooks {}

    impl Hooks {
        fn take(self, size: usize, alignment: usize, wants_zeroes: bool) -> *mut u8 {
            let (mut zero, mut commit) = (wants_zeroes, true);
            // SAFETY: the hooks are a ground's; the flags are there.
            let block = unsafe { take_extent(self.0, null_mut(), size, alignment, &raw mut zero, &raw mut commit, 0) };
            assert!(!block.is_null() && block.addr().is_multiple_of(alignment) && commit && (zero || !wants_zeroes));
            if zero {
                // SAFETY: the extent is this caller's, and was said to hold zeroes.
                let is_zero = (0..size).step_by(512).all(|at| unsafe { block.cast::<u8>().add(at).read() } == 0);
                assert!(is_zero, "zeroes were promised");
            }
            // SAFETY: the extent is this caller's, to its last byte.
            unsafe { block.cast::<u8>().write_bytes(0xa5, size) };
            block.cast()
        }

        /// Whether it is the tablespace's again.
        fn give_back(self, block: *mut u8, size: usize) -> bool {
            // SAFETY: what `take` returned, or a part of it, once.
            !unsafe { give_extent_back(self.0, block.cast(), size, true, 0) }
        }
    }

    /// What jemalloc does with extents: it takes and writes them, has them zeroed, splits and merges them, and gives them back in
    /// parts. Nothing of jemalloc runs here, so Miri looks at every access.
    #[test]
    fn extents_come_from_the_tablespace_and_go_back_to_it() {
        let config = TablespaceConfig {
            name: "own".into(),
            location: Location::Anon,
            size_bytes: Some(SPACE_BYTES as u64),
            profile: None,
            profiles: Vec::new(),
            huge_pages: false,
            populate_bytes: 0,
        };
        let space = Tablespace::open(TablespaceId(7), config).unwrap();
        let reserved = space.allocate_tagged(RESERVE_BYTES, PAGE_BYTES, RESERVE_TAG).unwrap();
        let taken = Taken { space: Arc::clone(&space), reserve: reserved.address.as_ptr().expose_provenance() };
        assert!(TAKEN.set(taken).is_ok(), "no other test of this program takes a tablespace");
        let hooks = Hooks(hooks_of(Box::leak(Box::new(Ground { hooks: HOOKS, tag: TAG }))));

        let (small, large) = (4 * PAGE_BYTES, 16 * PAGE_BYTES);
        let block = hooks.take(large, 4 * PAGE_BYTES, true);
        assert_eq!((page_tag(block), bytes()), (Some(TAG), large as u64));
        assert!(is_movable(TAG) && !is_movable(RESERVE_TAG) && !is_movable(TAG_MIN - 1));
        // In two parts, the second first; and then used again, with what was there.
        let second = block.wrapping_add(large / 2);
        // SAFETY: both parts are of one extent.
        assert!(!unsafe { split_extent(hooks.0, block.cast(), large, large / 2, large / 2, true, 0) });
        assert!(hooks.give_back(second, large / 2));
        assert_eq!((page_tag(second), bytes()), (Some(0), large as u64 / 2));
        // SAFETY: the first part is still taken.
        assert_eq!(unsafe { block.add(large / 2 - 1).read() }, 0xa5);
        let again = hooks.take(large / 2, PAGE_BYTES, true);
        // SAFETY: both are taken.
        assert!(!unsafe { merge_extents(hooks.0, block.cast(), large / 2, again.cast(), large / 2, true, 0) });
        assert!(hooks.give_back(again, large / 2) && hooks.give_back(block, large / 2));
        assert_eq!(bytes(), 0);

        // Neither at a given address, nor without memory.
        let (mut zero, mut commit) = (false, true);
        // SAFETY: the hooks are a ground's; the flags are there.
        let fixed = unsafe { take_extent(hooks.0, block.cast(), small, PAGE_BYTES, &raw mut zero, &raw mut commit, 0) };
        commit = false;
        // SAFETY: as above.
        let bare = unsafe { take_extent(hooks.0, null_mut(), small, PAGE_BYTES, &raw mut zero, &raw mut commit, 0) };
        assert!(fixed.is_null() && bare.is_null());

        // More than there is room for: the system's, which stays with jemalloc, and is no neighbour of the tablespace's.
        let foreign = hooks.take(SPACE_BYTES, 2 * PAGE_BYTES, true);
        assert_eq!((page_tag(foreign), bytes()), (None, 0));
        let block = hooks.take(small, PAGE_BYTES, false);
        // SAFETY: both are taken.
        assert!(unsafe { merge_extents(hooks.0, block.cast(), small, foreign.cast(), SPACE_BYTES, true, 0) });
        assert!(!hooks.give_back(foreign, SPACE_BYTES) && hooks.give_back(block, small));

        // From several threads, and given back by others.
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(move || {
                        (0..4).map(|_| hooks.take(small, PAGE_BYTES, true).expose_provenance()).collect()
                    })
                })
                .collect();
            let blocks: Vec<Vec<usize>> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
            let mut all = blocks.concat();
            all.sort_unstable();
            assert!(all.windows(2).all(|pair| pair[0] + small <= pair[1]), "extents overlap");
            for address in all {
                assert!(hooks.give_back(std::ptr::with_exposed_provenance_mut(address), small));
            }
        });
        assert_eq!(bytes(), 0);

        // The reserve, which is never freed.
        let layout = Layout::from_size_align(40, 8).unwrap();
        let (one, two) = (reserve(layout), reserve(layout));
        assert!(one.addr().is_multiple_of(16) && two.addr() >= one.addr() + 40);
        // SAFETY: both are this test's.
        unsafe {
            one.write_bytes(1, 40);
            two.write_bytes(2, 40);
            free(two, 40, 0, RESERVE_TAG);
            assert_eq!((one.add(39).read(), two.read()), (1, 2));
        }
        assert!(reserve(Layout::from_size_align(8, 64).unwrap()).is_null());
        assert!(reserve(Layout::from_size_align(RESERVE_BYTES + 1, 8).unwrap()).is_null());
        assert!((0..RESERVE_BYTES / 4096).any(|_| reserve(Layout::from_size_align(4096, 16).unwrap()).is_null()));
    }
}
