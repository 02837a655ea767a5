//! The global allocator: jemalloc, with a route for each thread.
//!
//! A route is one word, thread-local: zero for the process's own arenas, otherwise the tag of a heap's arena and the
//! `mallocx` flags that choose it. Outside any heap an allocation costs a thread-local read more than plain jemalloc, and
//! a free a look at the few address ranges that tablespaces have.
//!
//! Thread caches never mix. A block in a tablespace enters only the explicit cache of its own heap's arena, and only from
//! a thread that is inside that heap; from anywhere else it goes straight back to its arena. Any other block goes to the
//! process's caches, also from inside a heap. Where the process's own memory lies in a tablespace ([`crate::process`]), its
//! pages have tags of their own, and its blocks enter the process's caches, too.

use crate::arena::{self, Arena};
use crate::blocks::{self, Watch};
use crate::jemalloc::{self, TCACHE_MASK, layout_flags};
use crate::machine;
use crate::process;
use crate::spill;
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use tidepool_tablespace::page_tag;
use tikv_jemalloc_sys as sys;

/// Install with `#[global_allocator]`. Without it, heaps open and work but route nothing.
#[derive(Debug, Default, Clone, Copy)]
pub struct TidepoolAllocator;

/// Where a thread's allocations go: tag in bits 32 to 47, `mallocx` flags in bits 0 to 30, the number of the heap's watch (zero: none) in bits
/// 48 to 62.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route(u64);

impl Route {
    pub const PROCESS: Route = Route(0);
    /// Noticed and served as the process's: see [`is_installed`].
    const PROBE: Route = Route((u16::MAX as u64) << 32);
    /// Within a hook of the process's own arenas: served from a reserve.
    pub const HOOK: Route = Route((u16::MAX as u64) << 32 | 1);
    const WATCH_SHIFT: u32 = 48;

    /// `cache`: the flag of a thread cache that is the calling thread's alone.
    pub fn to(arena: &Arena, cache: Option<i32>, watch: Option<Watch>) -> Route {
        let flags = arena.flag() | cache.unwrap_or(sys::MALLOCX_TCACHE_NONE);
        let watch = u64::from(watch.map_or(0, Watch::number));
        Route(watch << Route::WATCH_SHIFT | u64::from(arena.tag()) << 32 | u64::from(flags as u32))
    }

    pub fn bits(self) -> u64 {
        self.0
    }

    /// The inverse of `bits`.
    pub fn of_bits(bits: u64) -> Route {
        Route(bits)
    }

    pub fn is_watched(self) -> bool {
        self.watch().is_some()
    }

    /// The same, watched or not.
    pub fn watched(self, watch: Option<Watch>) -> Route {
        let rest = self.0 & ((1 << Route::WATCH_SHIFT) - 1);
        Route(u64::from(watch.map_or(0, Watch::number)) << Route::WATCH_SHIFT | rest)
    }

    fn watch(self) -> Option<Watch> {
        Watch::of_number((self.0 >> Route::WATCH_SHIFT) as u16)
    }

    pub fn tag(self) -> u16 {
        (self.0 >> 32) as u16
    }

    fn flags(self) -> i32 {
        self.0 as u32 as i32
    }
}

thread_local! {
    // Constant and without a destructor: reading it is one instruction, at any time of a thread's life.
    static ROUTE: Cell<Route> = const { Cell::new(Route::PROCESS) };
}

pub fn route() -> Route {
    ROUTE.get()
}

pub fn set_route(route: Route) -> Route {
    ROUTE.replace(route)
}

/// From this size on a block is worth a look at how much memory there is; and so are this many bytes of smaller ones.
const OVERDRAFT_LARGE_BYTES: u64 = 1 << 20;
const OVERDRAFT_STEP: u64 = 8 << 20;

/// The process had no room when it was last looked at.
static IS_FULL: AtomicBool = AtomicBool::new(false);

static PROBED: AtomicBool = AtomicBool::new(false);

/// True when `TidepoolAllocator` is this program's global allocator.
pub fn is_installed() -> bool {
    if !PROBED.load(Ordering::Relaxed) {
        let layout = Layout::new::<[u64; 4]>();
        let before = set_route(Route::PROBE);
        // SAFETY: the layout is not empty, and the block is given back with the same one. `black_box`: a pair that does
        // nothing else may be left out by the compiler.
        unsafe {
            let block = std::hint::black_box(std::alloc::alloc(layout));
            if !block.is_null() {
                std::alloc::dealloc(block, layout);
            }
        }
        set_route(before);
    }
    PROBED.load(Ordering::Relaxed)
}

// SAFETY: blocks come from jemalloc with the layout's size and alignment, and go back to the arena they came from, which
// jemalloc finds by their address. Nothing here unwinds.
unsafe impl GlobalAlloc for TidepoolAllocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let route = ROUTE.get();
        if route == Route::PROCESS {
            // SAFETY: the caller's promises.
            unsafe { process_alloc(layout) }
        } else {
            // SAFETY: as above.
            unsafe { routed_alloc(route, layout, 0) }
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let route = ROUTE.get();
        if route == Route::PROCESS {
            // SAFETY: the caller's promises.
            unsafe { process_alloc_zeroed(layout) }
        } else {
            // SAFETY: as above.
            unsafe { routed_alloc(route, layout, sys::MALLOCX_ZERO) }
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let flags = layout_flags(layout.align(), layout.size());
        // SAFETY: the block is jemalloc's and of this layout; which cache it may enter is said by its address.
        unsafe {
            match page_tag(block) {
                None => sys::sdallocx(block.cast(), layout.size(), flags),
                Some(tag) => {
                    let route = ROUTE.get();
                    if route.tag() == tag {
                        if let Some(watch) = route.watch() {
                            blocks::freed(watch, block, layout.size());
                        }
                        sys::sdallocx(block.cast(), layout.size(), flags | (route.flags() & TCACHE_MASK));
                    } else {
                        free_outside(block, layout.size(), flags, tag);
                    }
                }
            }
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let route = ROUTE.get();
        let tag = page_tag(block);
        // The old block's alignment holds for the new one too.
        let flags = layout_flags(layout.align(), new_size);
        if tag.is_none() && route == Route::PROCESS {
            // SAFETY: the block is jemalloc's, in the process's arenas, where it is to stay.
            unsafe { sys::rallocx(block.cast(), new_size, flags).cast() }
        } else {
            // SAFETY: the caller's promises.
            unsafe { routed_realloc(route, tag, block, layout, new_size, flags) }
        }
    }
}

/// Frees a block of a heap that this thread is not inside, or the process's own in a tablespace.
#[inline(never)]
unsafe fn free_outside(block: *mut u8, size: usize, flags: i32, tag: u16) {
    if tag >= process::TAG_MIN {
        // SAFETY: the caller's promises.
        return unsafe { process::free(block, size, flags, tag) };
    }
    // SAFETY: the caller's promises. Straight to its arena, as no cache of this thread is that arena's.
    unsafe { sys::sdallocx(block.cast(), size, flags | sys::MALLOCX_TCACHE_NONE) };
    if let Some(arena) = arena::by_tag(tag) {
        // It may be the arena's last, and the arena the last to hold a tablespace: what its end frees and logs is the
        // process's.
        let before = set_route(Route::PROCESS);
        arena.freed_outside();
        set_route(before);
    }
}

#[inline]
unsafe fn process_alloc(layout: Layout) -> *mut u8 {
    let flags = layout_flags(layout.align(), layout.size());
    // SAFETY: the size is not zero.
    let block: *mut c_void =
        unsafe { if flags == 0 { sys::malloc(layout.size()) } else { sys::mallocx(layout.size(), flags) } };
    block.cast()
}

#[inline]
unsafe fn process_alloc_zeroed(layout: Layout) -> *mut u8 {
    let flags = layout_flags(layout.align(), layout.size());
    // SAFETY: the size is not zero.
    let block: *mut c_void = unsafe {
        if flags == 0 { sys::calloc(1, layout.size()) } else { sys::mallocx(layout.size(), flags | sys::MALLOCX_ZERO) }
    };
    block.cast()
}

#[inline(never)]
unsafe fn routed_alloc(route: Route, layout: Layout, zero: i32) -> *mut u8 {
    if route == Route::PROBE {
        PROBED.store(true, Ordering::Relaxed);
        // SAFETY: the caller's promises.
        return unsafe { overdraft_alloc(layout, zero) };
    }
    if route == Route::HOOK {
        return reserve_alloc(layout, zero);
    }
    let flags = route.flags() | layout_flags(layout.align(), layout.size()) | zero;
    // SAFETY: the size is not zero; the flags name an arena and a cache that is this thread's alone.
    let block = unsafe { sys::mallocx(layout.size(), flags) };
    if block.is_null() {
        // SAFETY: the same size and flags.
        unsafe { refused(route, layout, flags, zero) }
    } else {
        if let Some(watch) = route.watch() {
            blocks::allocated(watch, block.cast(), layout.size());
        }
        block.cast()
    }
}

#[cold]
fn reserve_alloc(layout: Layout, zero: i32) -> *mut u8 {
    let block = process::reserve(layout);
    if block.is_null() {
        // Better than to end the process.
        // SAFETY: the size is not zero, as the caller promised.
        return unsafe { overdraft_alloc(layout, zero) };
    }
    if zero != 0 {
        // SAFETY: a block of this size, and this caller's.
        unsafe { block.write_bytes(0, layout.size()) };
    }
    block
}

/// A block from the process although the thread is inside a heap.
unsafe fn overdraft_alloc(layout: Layout, zero: i32) -> *mut u8 {
    // SAFETY: the caller's promises.
    unsafe { if zero == 0 { process_alloc(layout) } else { process_alloc_zeroed(layout) } }
}

/// No tablespace had room. The process gives the memory, so that nothing aborts, and the heap remembers.
#[cold]
#[inline(never)]
unsafe fn refused(route: Route, layout: Layout, flags: i32, zero: i32) -> *mut u8 {
    let Some(arena) = arena::by_tag(route.tag()) else {
        return null_mut();
    };
    if arena.overdraft_bytes() == 0 {
        // Free blocks and extents may stand in the way: of other sizes, or of other statements. Once is enough: the
        // statement ends soon.
        if let Some(cache) = jemalloc::tcache_of_flag(route.flags() & TCACHE_MASK) {
            jemalloc::flush_tcache(cache);
        }
        for purge in [|arena: &Arena| arena.purge(), |_: &Arena| arena::purge_all()] {
            let before = set_route(Route::PROCESS);
            purge(arena);
            set_route(before);
            // SAFETY: as the call before.
            let block = unsafe { sys::mallocx(layout.size(), flags) };
            if !block.is_null() {
                return block.cast();
            }
        }
    }
    let bytes = layout.size() as u64;
    let before = arena.overdraw(bytes);
    // A large block never counts for the process: what of it is not touched yet nobody would see.
    let is_large = bytes >= OVERDRAFT_LARGE_BYTES;
    // SAFETY: the caller's promises.
    let spilled = || unsafe { spill::alloc(layout.size(), layout_flags(layout.align(), layout.size()) | zero) };
    if is_large {
        let block = spilled();
        if !block.is_null() {
            return block;
        }
    }
    // Reading how much memory there is takes microseconds: only for large blocks and now and then. What was found holds for small ones that follow,
    // of whichever statement.
    if is_large || before == 0 || before / OVERDRAFT_STEP != (before + bytes) / OVERDRAFT_STEP {
        IS_FULL.store(!machine::has_room_for(bytes), Ordering::Relaxed);
    }
    if IS_FULL.load(Ordering::Relaxed) {
        if is_large {
            return null_mut();
        }
        // Little is worth a try: the system ends the process for much.
        let block = spilled();
        if !block.is_null() {
            return block;
        }
    }
    // SAFETY: the caller's promises.
    unsafe { overdraft_alloc(layout, zero) }
}

#[inline(never)]
unsafe fn routed_realloc(
    route: Route,
    tag: Option<u16>,
    block: *mut u8,
    layout: Layout,
    new_size: usize,
    flags: i32,
) -> *mut u8 {
    if route == Route::PROCESS && tag.is_some_and(process::is_movable) {
        // SAFETY: the block is jemalloc's, in the process's arenas, where it is to stay.
        return unsafe { sys::rallocx(block.cast(), new_size, flags).cast() };
    }
    if tag == Some(route.tag()) {
        // SAFETY: the block is of the arena that the flags name.
        let moved = unsafe { sys::rallocx(block.cast(), new_size, route.flags() | flags) };
        if !moved.is_null() {
            if let Some(watch) = route.watch() {
                blocks::resized(watch, block, layout.size(), moved.cast(), new_size);
            }
            return moved.cast();
        }
    }
    // SAFETY: the caller promises that the new size is valid for the alignment.
    let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
    // SAFETY: both layouts are valid; the new block is at least as long as what is copied, and they do not overlap.
    unsafe {
        let moved = TidepoolAllocator.alloc(new_layout);
        if !moved.is_null() {
            std::ptr::copy_nonoverlapping(block, moved, layout.size().min(new_size));
            TidepoolAllocator.dealloc(block, layout);
        }
        moved
    }
}
