//! The last resort: blocks in a file, when the process may not take any more memory.
//!
//! A statement whose tablespaces are full goes on in the process's memory until it is noticed ([`crate::QueryHeap::check`]), and Rust code aborts
//! on a failed allocation. So a block that the process has no room for either lies in a file of the data folder, which has no name and goes with
//! its last block. The kernel can write such pages out, so they do not count for a control group as memory that must be kept; the statement is
//! slow, and soon over. Room on the disk is taken before the block is: a write to a mapping cannot fail without a signal.
//!
//! Blocks are of a jemalloc arena whose extents are mapped from the file, so that a free finds its way by the address, as of all blocks.
//! The hooks run inside the allocator: they do not allocate.

use crate::jemalloc;
use std::ffi::{CString, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering};
use tikv_jemalloc_sys::{self as sys, extent_hooks_t};

/// Where the next extent begins in the file: no part of it is used twice, as it costs nothing once it is given back.
static NEXT: AtomicI64 = AtomicI64::new(0);

/// The file, or less than zero: there is none.
static FILE: AtomicI32 = AtomicI32::new(-1);

/// jemalloc's number of the arena plus one; zero until it is made.
static ARENA: AtomicU32 = AtomicU32::new(0);

/// Bytes that are mapped now, and in how many parts.
static BYTES: AtomicU64 = AtomicU64::new(0);
static EXTENTS: AtomicU64 = AtomicU64::new(0);

/// The kernel lets a process have 65,530 mappings, unless it was told otherwise.
const EXTENTS_MAX: u64 = 16_000;

/// Free extents from this size on go back at once: all of them.
const GIVEN_BACK_BYTES_MIN: usize = 4096;

/// Kept free on the disk for the log.
const DISK_RESERVE_BYTES: u64 = 256 << 20;

/// A file system in memory is no way out.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

static HOOKS: extent_hooks_t = extent_hooks_t {
    alloc: Some(map_extent),
    dalloc: Some(unmap_extent),
    destroy: Some(destroy_extent),
    commit: None,
    decommit: None,
    purge_lazy: None,
    purge_forced: None,
    split: Some(split_extent),
    merge: None,
};

/// From now on there is a file in `folder`, unless there is one already, the file system cannot do that, or it is in memory.
pub fn open(folder: &Path) {
    if FILE.load(Ordering::Acquire) >= 0 {
        return;
    }
    let Ok(folder) = CString::new(folder.as_os_str().as_bytes()) else { return };
    // SAFETY: a zero-terminated name, and a structure that the call fills.
    let file = unsafe {
        let mut about: libc::statfs = std::mem::zeroed();
        if libc::statfs(folder.as_ptr(), &raw mut about) != 0 || IN_MEMORY.contains(&(about.f_type as u64)) {
            return;
        }
        libc::open(folder.as_ptr(), libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC, 0o600)
    };
    if file < 0 {
        return;
    }
    if ARENA.load(Ordering::Acquire) == 0 {
        // SAFETY: the hooks live for ever; what they promise is said there.
        let Ok(number) = (unsafe { jemalloc::create_arena((&raw const HOOKS).cast_mut()) }) else { return };
        // What is free goes back at once.
        let _ = jemalloc::disable_muzzy(number)
            .and_then(|()| jemalloc::set_dirty_decay(number, 0))
            .and_then(|()| jemalloc::set_oversize_threshold(number, GIVEN_BACK_BYTES_MIN));
        ARENA.store(number + 1, Ordering::Release);
    }
    if FILE.compare_exchange(-1, file, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // Another thread was first.
        // SAFETY: opened above, and nobody else's.
        unsafe { libc::close(file) };
    }
}

/// A block in the file, or null. `flags`: alignment and zeroing of `mallocx`.
///
/// # Safety
/// As `mallocx`: the size is not zero.
pub unsafe fn alloc(size: usize, flags: i32) -> *mut u8 {
    let Some(number) = ARENA.load(Ordering::Acquire).checked_sub(1) else { return null_mut() };
    let flags = flags | jemalloc::arena_flag(number) | sys::MALLOCX_TCACHE_NONE;
    // SAFETY: the caller's promise; the arena is made.
    unsafe { sys::mallocx(size, flags).cast() }
}

/// jemalloc's number of the arena.
pub fn number() -> Option<u32> {
    ARENA.load(Ordering::Acquire).checked_sub(1)
}

/// Bytes of blocks in the file now.
#[cfg(test)]
fn bytes() -> u64 {
    BYTES.load(Ordering::Relaxed)
}

/// Whether the disk has so much, beside what others need of it.
fn has_disk_for(file: i32, bytes: u64) -> bool {
    // SAFETY: a structure that the call fills.
    unsafe {
        let mut about: libc::statfs = std::mem::zeroed();
        libc::fstatfs(file, &raw mut about) == 0
            && bytes.saturating_add(DISK_RESERVE_BYTES) <= about.f_bavail.saturating_mul(about.f_bsize as u64)
    }
}

unsafe extern "C" fn map_extent(
    _hooks: *mut extent_hooks_t,
    new_address: *mut c_void,
    size: usize,
    alignment: usize,
    zero: *mut bool,
    commit: *mut bool,
    _arena: c_uint,
) -> *mut c_void {
    let file = FILE.load(Ordering::Acquire);
    // SAFETY: jemalloc passes pointers to two flags.
    let (zero, commit) = unsafe { (&mut *zero, &mut *commit) };
    // At a fixed address, or to keep for later: no.
    let is_one_more = EXTENTS.load(Ordering::Relaxed) < EXTENTS_MAX;
    if file < 0 || !new_address.is_null() || !*commit || !is_one_more || !has_disk_for(file, size as u64) {
        return null_mut();
    }
    let (Ok(len), Some(wide)) = (i64::try_from(size), size.checked_add(alignment)) else { return null_mut() };
    let offset = NEXT.fetch_add(len, Ordering::Relaxed);
    // SAFETY: the range of the file is this call's; addresses are first reserved, then the aligned part of them, which lies within what was reserved,
    // is mapped over, and the rest given back. `alignment` is a power of two.
    unsafe {
        if libc::fallocate(file, 0, offset, len) != 0 {
            return null_mut();
        }
        let reserved = libc::mmap(null_mut(), wide, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        if reserved == libc::MAP_FAILED {
            punch(file, offset, len);
            return null_mut();
        }
        let before = reserved.cast::<u8>().align_offset(alignment);
        let at = reserved.cast::<u8>().add(before);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let mapped = libc::mmap(at.cast(), size, protection, libc::MAP_SHARED | libc::MAP_FIXED, file, offset);
        if mapped == libc::MAP_FAILED {
            libc::munmap(reserved, wide);
            punch(file, offset, len);
            return null_mut();
        }
        if before > 0 {
            libc::munmap(reserved, before);
        }
        if wide > before + size {
            libc::munmap(at.add(size).cast(), wide - before - size);
        }
        BYTES.fetch_add(size as u64, Ordering::Relaxed);
        EXTENTS.fetch_add(1, Ordering::Relaxed);
        *zero = true;
        mapped
    }
}

/// Gives a range of the file back to the disk.
fn punch(file: i32, offset: i64, len: i64) {
    // SAFETY: a system call on a file that stays open.
    unsafe { libc::fallocate(file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, len) };
}

unsafe extern "C" fn unmap_extent(
    _hooks: *mut extent_hooks_t,
    address: *mut c_void,
    size: usize,
    _committed: bool,
    _arena: c_uint,
) -> bool {
    // SAFETY: jemalloc gives back what `map_extent` gave, or a part of it; nobody uses it. The pages are taken out of the file first, which the
    // mapping alone knows the place of.
    unsafe {
        libc::madvise(address, size, libc::MADV_REMOVE);
        libc::munmap(address, size);
    }
    BYTES.fetch_sub(size as u64, Ordering::Relaxed);
    EXTENTS.fetch_sub(1, Ordering::Relaxed);
    false
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
    // Parts of a mapping can be given back: jemalloc asks for more than it needs, and lets go of the rest.
    EXTENTS.fetch_add(1, Ordering::Relaxed);
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
    unsafe { unmap_extent(hooks, address, size, committed, number) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_lie_in_a_file_and_go_with_it() {
        // Where the tests are built, not in `/tmp`, which may be in memory.
        let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        open(&folder);
        if FILE.load(Ordering::Acquire) < 0 {
            panic!("no file can be made in {}", folder.display());
        }
        for (size, flags) in
            [(100, 0), (5 << 20, 0), (40 << 20, sys::MALLOCX_ZERO), (1 << 20, sys::MALLOCX_ALIGN(1 << 16))]
        {
            // SAFETY: not zero, and freed with the same size.
            unsafe {
                let block = alloc(size, flags);
                assert!(!block.is_null() && bytes() >= size as u64, "{size}");
                if flags == sys::MALLOCX_ZERO {
                    assert!((0..size).step_by(4096).all(|at| *block.add(at) == 0));
                }
                assert!(flags != sys::MALLOCX_ALIGN(1 << 16) || block.addr().is_multiple_of(1 << 16));
                block.write_bytes(7, size);
                assert_eq!(*block.add(size - 1), 7);
                sys::sdallocx(block.cast(), size, flags & !sys::MALLOCX_ZERO | sys::MALLOCX_TCACHE_NONE);
            }
            assert!(bytes() < size.max(16 << 10) as u64 * 2, "{size}: {}", bytes());
        }
        // What no disk has.
        // SAFETY: not zero.
        assert!(unsafe { alloc(1 << 50, 0) }.is_null());
    }
}
