//! What is used of jemalloc, behind functions that take and give plain values.

use std::ffi::CStr;
use std::sync::OnceLock;
use tikv_jemalloc_sys as sys;

/// Pages of jemalloc's books.
const PAGE_BYTES: u64 = 4096;

/// `mallocx` flags that choose an explicit thread cache, or none.
pub const TCACHE_MASK: i32 = 0xfff << 8;

pub const fn arena_flag(arena: u32) -> i32 {
    sys::MALLOCX_ARENA(arena as usize)
}

pub const fn tcache_flag(tcache: u32) -> i32 {
    sys::MALLOCX_TCACHE(tcache as usize)
}

/// The inverse of [`tcache_flag`]; `None` for no thread cache.
pub fn tcache_of_flag(flag: i32) -> Option<u32> {
    // jemalloc counts from two: zero is the thread's own, one is none.
    (flag >> 8).checked_sub(2).and_then(|tcache| u32::try_from(tcache).ok())
}

/// Layouts as `mallocx` wants them: nothing said where the size class is aligned enough by itself.
#[inline]
pub const fn layout_flags(align: usize, size: usize) -> i32 {
    // 16 bytes: the quantum of every 64-bit target's size classes, from 16 bytes on.
    if align <= 16 && align <= size { 0 } else { sys::MALLOCX_ALIGN(align) }
}

/// Bytes of the extent that a large block takes: its size class may be larger, and a page is for where it begins.
pub fn extent_bytes(bytes: usize) -> u64 {
    // SAFETY: a size that is not zero, and no flags.
    let class = unsafe { sys::nallocx(bytes.max(1), 0) };
    // Zero: there is no class that large.
    (class.max(bytes) as u64).saturating_add(PAGE_BYTES)
}

/// Numbers that stand for a name: looking a name up by number takes no string comparison.
struct Mib<const N: usize> {
    name: &'static CStr,
    parts: OnceLock<[usize; N]>,
}

impl<const N: usize> Mib<N> {
    const fn new(name: &'static CStr) -> Mib<N> {
        Mib { name, parts: OnceLock::new() }
    }

    fn parts(&self) -> [usize; N] {
        *self.parts.get_or_init(|| {
            let mut parts = [0; N];
            let mut len = N;
            // SAFETY: a name and an array of the length that is given.
            let rc = unsafe { sys::mallctlnametomib(self.name.as_ptr(), parts.as_mut_ptr(), &mut len) };
            assert!(rc == 0 && len == N, "jemalloc has no {:?}", self.name);
            parts
        })
    }

    /// # Safety
    /// `In` and `Out` are the types that jemalloc documents for the name, and `input` is valid for it.
    unsafe fn call<In, Out: Default>(&self, parts: [usize; N], input: Option<In>) -> Result<Out, i32> {
        let mut output = Out::default();
        let mut output_len = size_of::<Out>();
        let (out, out_len) = if output_len == 0 {
            (std::ptr::null_mut(), std::ptr::null_mut())
        } else {
            ((&raw mut output).cast(), &raw mut output_len)
        };
        let mut input = input;
        let (new, new_len) = match &mut input {
            Some(value) => ((value as *mut In).cast(), size_of::<In>()),
            None => (std::ptr::null_mut(), 0),
        };
        // SAFETY: the pointers are to live values of the sizes that are given; the types are the caller's promise.
        let rc = unsafe { sys::mallctlbymib(parts.as_ptr(), N, out, out_len, new, new_len) };
        if rc == 0 { Ok(output) } else { Err(rc) }
    }
}

static EPOCH: Mib<1> = Mib::new(c"epoch");
static STATS_ALLOCATED: Mib<2> = Mib::new(c"stats.allocated");
static STATS_RESIDENT: Mib<2> = Mib::new(c"stats.resident");
static ARENA_SMALL: Mib<5> = Mib::new(c"stats.arenas.0.small.allocated");
static ARENA_LARGE: Mib<5> = Mib::new(c"stats.arenas.0.large.allocated");
static ARENA_ACTIVE: Mib<4> = Mib::new(c"stats.arenas.0.pactive");
static ARENA_DIRTY: Mib<4> = Mib::new(c"stats.arenas.0.pdirty");
static ARENA_PURGE: Mib<3> = Mib::new(c"arena.0.purge");
static ARENA_DECAY: Mib<3> = Mib::new(c"arena.0.decay");
static AUTOMATIC_ARENAS: Mib<2> = Mib::new(c"opt.narenas");
static ARENA_HOOKS: Mib<3> = Mib::new(c"arena.0.extent_hooks");
static ARENAS_COUNT: Mib<2> = Mib::new(c"arenas.narenas");
static DEFAULT_DIRTY_DECAY: Mib<2> = Mib::new(c"arenas.dirty_decay_ms");
static ARENA_DIRTY_DECAY: Mib<3> = Mib::new(c"arena.0.dirty_decay_ms");
static ARENA_MUZZY_DECAY: Mib<3> = Mib::new(c"arena.0.muzzy_decay_ms");
static ARENA_OVERSIZE: Mib<3> = Mib::new(c"arena.0.oversize_threshold");
static ARENAS_CREATE: Mib<2> = Mib::new(c"experimental.arenas_create_ext");
static THREAD_ALLOCATED: Mib<2> = Mib::new(c"thread.allocated");
static THREAD_DEALLOCATED: Mib<2> = Mib::new(c"thread.deallocated");
static TCACHE_CREATE: Mib<2> = Mib::new(c"tcache.create");
static TCACHE_FLUSH: Mib<2> = Mib::new(c"tcache.flush");

/// jemalloc's `arena_config_t`.
#[repr(C)]
struct ArenaConfig {
    extent_hooks: *mut sys::extent_hooks_t,
    metadata_use_hooks: bool,
}

/// Makes an arena over `hooks`; jemalloc's own books stay in the process's memory.
///
/// # Safety
/// `hooks` live for ever and keep jemalloc's contract for extent hooks.
pub unsafe fn create_arena(hooks: *mut sys::extent_hooks_t) -> Result<u32, i32> {
    let config = ArenaConfig { extent_hooks: hooks, metadata_use_hooks: false };
    // SAFETY: `unsigned` out, `arena_config_t` in, as documented; the hooks are the caller's promise.
    unsafe { ARENAS_CREATE.call(ARENAS_CREATE.parts(), Some(config)) }
}

/// Arenas that threads are given by jemalloc itself, numbered from zero. The next one is for blocks of 8 MiB and more.
pub fn automatic_arenas() -> u32 {
    // SAFETY: `unsigned` out.
    unsafe { AUTOMATIC_ARENAS.call(AUTOMATIC_ARENAS.parts(), None::<()>) }.unwrap_or(0)
}

/// Gives an arena that jemalloc has of its own other hooks; makes it if need be, with its own books in the process's memory.
///
/// # Safety
/// `hooks` live for ever, keep jemalloc's contract for extent hooks, and know what to do with memory of its own hooks.
pub unsafe fn set_hooks(arena: u32, hooks: *mut sys::extent_hooks_t) -> Result<(), i32> {
    // SAFETY: a size that is not zero; the block is freed at once.
    unsafe {
        let block = sys::mallocx(16, arena_flag(arena) | sys::MALLOCX_TCACHE_NONE);
        if block.is_null() {
            return Err(libc::ENOMEM);
        }
        sys::sdallocx(block, 16, sys::MALLOCX_TCACHE_NONE);
        // `extent_hooks_t *` in.
        ARENA_HOOKS.call(in_arena(&ARENA_HOOKS, 1, arena), Some(hooks))
    }
}

fn in_arena<const N: usize>(mib: &Mib<N>, index: usize, arena: u32) -> [usize; N] {
    let mut parts = mib.parts();
    parts[index] = arena as usize;
    parts
}

/// How long freed extents are kept for reuse.
pub fn set_dirty_decay(arena: u32, milliseconds: isize) -> Result<(), i32> {
    // SAFETY: `ssize_t` in.
    unsafe { ARENA_DIRTY_DECAY.call(in_arena(&ARENA_DIRTY_DECAY, 1, arena), Some(milliseconds)) }
}

/// The same for the process's arenas that are made from here on.
pub fn set_default_dirty_decay(milliseconds: isize) -> Result<(), i32> {
    // SAFETY: `ssize_t` in.
    unsafe { DEFAULT_DIRTY_DECAY.call(DEFAULT_DIRTY_DECAY.parts(), Some(milliseconds)) }
}

/// No second state between dirty and given back.
pub fn disable_muzzy(arena: u32) -> Result<(), i32> {
    // SAFETY: `ssize_t` in.
    unsafe { ARENA_MUZZY_DECAY.call(in_arena(&ARENA_MUZZY_DECAY, 1, arena), Some(0isize)) }
}

/// Extents of at least this size are given back as soon as they are free.
pub fn set_oversize_threshold(arena: u32, bytes: usize) -> Result<(), i32> {
    // SAFETY: `size_t` in.
    unsafe { ARENA_OVERSIZE.call(in_arena(&ARENA_OVERSIZE, 1, arena), Some(bytes)) }
}

/// Gives all free extents back.
pub fn purge(arena: u32) {
    // SAFETY: neither in nor out.
    let result: Result<(), i32> = unsafe { ARENA_PURGE.call(in_arena(&ARENA_PURGE, 1, arena), None::<()>) };
    debug_assert_eq!(result, Ok(()));
}

/// Gives back those free extents that have been kept for long enough.
pub fn decay(arena: u32) {
    // SAFETY: neither in nor out.
    let result: Result<(), i32> = unsafe { ARENA_DECAY.call(in_arena(&ARENA_DECAY, 1, arena), None::<()>) };
    debug_assert_eq!(result, Ok(()));
}

/// All arenas are numbered below this.
pub fn arenas_count() -> u32 {
    // SAFETY: `unsigned` out.
    unsafe { ARENAS_COUNT.call(ARENAS_COUNT.parts(), None::<()>) }.unwrap_or(0)
}

/// Bytes that this thread ever allocated, less those that it freed. Only differences mean something: threads free what others allocated.
pub fn thread_balance() -> u64 {
    // SAFETY: both give a `uint64_t`.
    let (allocated, freed): (u64, u64) = unsafe {
        let allocated = THREAD_ALLOCATED.call(THREAD_ALLOCATED.parts(), None::<()>).unwrap_or(0);
        (allocated, THREAD_DEALLOCATED.call(THREAD_DEALLOCATED.parts(), None::<()>).unwrap_or(0))
    };
    allocated.wrapping_sub(freed)
}

/// A thread cache to be used with [`tcache_flag`], by one thread at a time.
pub fn create_tcache() -> Result<u32, i32> {
    // SAFETY: `unsigned` out.
    unsafe { TCACHE_CREATE.call(TCACHE_CREATE.parts(), None::<()>) }
}

/// Empties a thread cache that no thread uses now.
pub fn flush_tcache(tcache: u32) {
    // SAFETY: `unsigned` in.
    let result: Result<(), i32> = unsafe { TCACHE_FLUSH.call(TCACHE_FLUSH.parts(), Some(tcache)) };
    debug_assert_eq!(result, Ok(()));
}

/// Bytes of (allocated, resident) over all arenas, less what the arenas in `except` have in extents of their own.
pub fn memory_except(except: impl Iterator<Item = u32>) -> (u64, u64) {
    // SAFETY: `uint64_t` in and out; the other names give a `size_t`.
    let (mut allocated, mut resident) = unsafe {
        let _: Result<u64, i32> = EPOCH.call(EPOCH.parts(), Some(1u64));
        let allocated: usize = STATS_ALLOCATED.call(STATS_ALLOCATED.parts(), None::<()>).unwrap_or(0);
        let resident: usize = STATS_RESIDENT.call(STATS_RESIDENT.parts(), None::<()>).unwrap_or(0);
        (allocated as u64, resident as u64)
    };
    for arena in except {
        // SAFETY: each of these gives a `size_t`.
        let (small, large, active, dirty) = unsafe {
            let small: usize = ARENA_SMALL.call(in_arena(&ARENA_SMALL, 2, arena), None::<()>).unwrap_or(0);
            let large: usize = ARENA_LARGE.call(in_arena(&ARENA_LARGE, 2, arena), None::<()>).unwrap_or(0);
            let active: usize = ARENA_ACTIVE.call(in_arena(&ARENA_ACTIVE, 2, arena), None::<()>).unwrap_or(0);
            let dirty: usize = ARENA_DIRTY.call(in_arena(&ARENA_DIRTY, 2, arena), None::<()>).unwrap_or(0);
            (small as u64, large as u64, active as u64, dirty as u64)
        };
        allocated = allocated.saturating_sub(small + large);
        resident = resident.saturating_sub((active + dirty) * PAGE_BYTES);
    }
    (allocated, resident)
}
