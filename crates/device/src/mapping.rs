//! One device mapped whole into the address space, at one place for its life.
//!
//! The start of a mapping is aligned to 2 MiB (or to the device's page where that is larger), so that offsets and
//! addresses agree about huge pages.

use crate::Location;
use crate::device::{Device, Protection};
use crate::paged::Paged;
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use tidepool_base::{ByteSize, Error, Result};

/// What an ordinary page holds.
pub const PAGE_BYTES: usize = 4096;

/// What a huge page holds, and a device-DAX device's unit.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Bytes at the start of a device of which [`Mapping::open_checked`] shows the content before anything is changed.
pub const HEADER_BYTES: usize = PAGE_BYTES;

pub(crate) const CACHE_LINE_BYTES: usize = 64;

#[derive(Clone, Copy, Debug)]
pub struct MapOptions {
    /// Ask for huge pages where the device has them.
    pub huge_pages: bool,
}

/// Looks at the first [`HEADER_BYTES`] of a file or device that is not new (zeroes past its end).
pub type HeaderCheck<'a> = &'a dyn Fn(&[u8]) -> Result<Content>;

/// What becomes of what a file or device holds behind its header when it is opened. Exhaustive and mutually exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// It is given back, or left for whoever takes the memory.
    Goes,
    /// Some of it is of use: nothing is changed.
    Stays,
}

#[derive(Debug)]
enum Backing {
    Device(Device),
    /// From the process's allocator.
    Heap(std::alloc::Layout),
    /// Mapped and unmapped page by page.
    Paged(Box<Paged>),
}

/// A mapped device. Unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    /// Of paged memory: with what it can grow by.
    len: usize,
    page_size: usize,
    backing: Backing,
}

/// A part of a device that other processes have mapped, too. What is done there is for its user to prove.
#[derive(Debug)]
pub struct PartMapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: owned addresses; nothing here touches what is there.
unsafe impl Send for PartMapping {}
// SAFETY: as above.
unsafe impl Sync for PartMapping {}

impl PartMapping {
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for PartMapping {
    fn drop(&mut self) {
        // SAFETY: mapped or reserved by this, whose users are gone.
        unsafe { unmap(self.base, self.len) };
    }
}

// SAFETY: the mapping is owned memory; all methods that touch it take `&self` and are thread-safe system calls.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `size` bytes (rounded up to the device's unit) of `location`. For a DAX device or an existing file of fixed
    /// size, `None` takes all of it.
    pub fn open(location: &Location, size: Option<u64>, options: MapOptions) -> Result<Mapping> {
        Mapping::open_checked(location, size, options, &|_| Ok(Content::Goes))
    }

    /// As `open`, but a file or device that existed before is shown to `check` first, and nothing of it is changed when
    /// that fails.
    pub fn open_checked(
        location: &Location,
        size: Option<u64>,
        options: MapOptions,
        check: HeaderCheck<'_>,
    ) -> Result<Mapping> {
        let device = Device::open(location, size, options, check)?;
        Mapping::of(device).map_err(|(device, error)| {
            device.undo_open();
            error
        })
    }

    /// Maps all of a file or DAX device that other processes may have mapped, too ([`Device::open_shared`]).
    pub fn open_shared(location: &Location, protection: Protection) -> Result<Mapping> {
        Mapping::of(Device::open_shared(location, protection)?).map_err(|(_, error)| error)
    }

    /// As `open_shared`, of the part of it around `range` that can be mapped by itself: it begins and ends with a unit of the
    /// device. The device is closed behind it, so that nothing else of it can be mapped by that. Returns where in the device
    /// the mapping begins.
    pub fn open_shared_part(
        location: &Location,
        protection: Protection,
        range: Range<usize>,
    ) -> Result<(PartMapping, usize)> {
        let device = Device::open_shared(location, protection)?;
        let unit = device.page_size();
        let (start, end) = (range.start / unit * unit, range.end.next_multiple_of(unit));
        if range.is_empty() || end > device.len() {
            return Err(Error::internal(format!("{range:?} is no part of \"{location}\"")));
        }
        let len = end - start;
        let base = reserve(len, unit)
            .map_err(|error| Error::io(format_args!("reserve addresses for {}", ByteSize(len as u64)), &error))?;
        let part = PartMapping { base, len };
        // SAFETY: reserved a moment ago, and known to nobody else.
        unsafe { device.map_at(base, start, len) }?;
        Ok((part, start))
    }

    fn of(device: Device) -> Result<Mapping, (Device, Error)> {
        let (len, page_size) = (device.len(), device.page_size());
        let mapped = reserve(len, page_size.max(HUGE_PAGE_BYTES))
            .map_err(|error| Error::io(format_args!("reserve addresses for {}", ByteSize(len as u64)), &error))
            .and_then(|base| {
                // SAFETY: reserved a moment ago, and known to nobody else.
                match unsafe { device.map_at(base, 0, len) } {
                    Ok(()) => Ok(base),
                    Err(error) => {
                        // SAFETY: the reservation made above.
                        unsafe { unmap(base, len) };
                        Err(error)
                    }
                }
            });
        match mapped {
            Ok(base) => Ok(Mapping { base, len, page_size, backing: Backing::Device(device) }),
            Err(error) => Err((device, error)),
        }
    }

    /// Heap-backed stand-in, for Miri and for tests. Zeroed.
    pub fn heap(size: usize) -> Mapping {
        use std::alloc::{GlobalAlloc, Layout, System, handle_alloc_error};
        let len = size.max(1).next_multiple_of(PAGE_BYTES);
        let layout = Layout::from_size_align(len, PAGE_BYTES).expect("a mapping fits the address space");
        // SAFETY: the layout's size is not zero. `System`, because the global allocator may be built on mappings.
        let base = unsafe { System.alloc_zeroed(layout) };
        let base = NonNull::new(base).unwrap_or_else(|| handle_alloc_error(layout));
        Mapping { base, len, page_size: PAGE_BYTES, backing: Backing::Heap(layout) }
    }

    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes of addresses. All of them are mapped, except of paged memory, which may have fewer ([`Paged::len`]).
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The smallest unit that can be given back, bytes.
    pub fn page_size(&self) -> usize {
        self.page_size
    }

    /// Touching one byte of an aligned 2 MiB may back all of it.
    pub fn has_huge_pages(&self) -> bool {
        self.device().is_some_and(Device::has_huge_pages)
    }

    /// Every byte behind the header read as zero when the device was opened.
    pub fn is_zeroed(&self) -> bool {
        self.device().is_none_or(Device::is_zeroed)
    }

    /// Memory that outlives the process.
    pub fn persists(&self) -> bool {
        self.device().is_some_and(Device::persists)
    }

    /// The page table, of paged memory.
    pub fn paged(&self) -> Option<&Paged> {
        match &self.backing {
            Backing::Paged(paged) => Some(paged),
            _ => None,
        }
    }

    /// `commit` has work to do here.
    pub fn needs_commit(&self) -> bool {
        self.device().is_some_and(Device::needs_commit)
    }

    /// What it is mapped of, unless that is the process's own memory.
    pub fn device(&self) -> Option<&Device> {
        match &self.backing {
            Backing::Device(device) => Some(device),
            Backing::Heap(_) | Backing::Paged(_) => None,
        }
    }

    /// Reserves the memory or the blocks of `range` (byte offsets), so that writing there cannot fail. Allocates nothing
    /// from the process, not even for the error.
    pub fn commit(&self, range: Range<usize>) -> io::Result<()> {
        match &self.backing {
            Backing::Device(device) => device.commit(range),
            Backing::Heap(_) | Backing::Paged(_) => Ok(()),
        }
    }

    /// Backs all of it with memory. What it holds stays.
    pub fn populate(&self) -> io::Result<()> {
        match &self.backing {
            // SAFETY: all of the mapping is mapped of the device.
            Backing::Device(device) => unsafe { device.populate(self.base, self.len) },
            Backing::Heap(_) | Backing::Paged(_) => Ok(()),
        }
    }

    /// Maps the pages of `range` (byte offsets), so that the first read of each does not enter the kernel. Changes no content.
    pub fn map_ahead(&self, range: Range<usize>) {
        self.check(&range);
        if let Backing::Device(device) = &self.backing
            && !range.is_empty()
        {
            let start = range.start / PAGE_BYTES * PAGE_BYTES;
            // SAFETY: inside the mapping, which is mapped of the device, and begins with a page.
            unsafe { device.map_ahead(self.at(start), range.end - start) };
        }
    }

    /// Gives the pages of `range` (byte offsets) back to the system; they read as zeroes afterwards. Only pages that lie
    /// wholly inside go. Where the device cannot (device DAX), does nothing and returns false.
    pub fn release(&self, range: Range<usize>) -> Result<bool> {
        self.check(&range);
        let start = range.start.next_multiple_of(self.page_size);
        let end = range.end / self.page_size * self.page_size;
        if start >= end {
            return Ok(false);
        }
        match &self.backing {
            // SAFETY: the device is mapped from its start on, and the range's owner gives it up by calling this.
            Backing::Device(device) => unsafe { device.release(self.at(start), start..end) },
            Backing::Paged(paged) => {
                paged.release(start..end);
                Ok(true)
            }
            Backing::Heap(_) => {
                // SAFETY: the range lies inside the allocation, and its owner gives it up by calling this.
                unsafe { self.at(start).write_bytes(0, end - start) };
                Ok(true)
            }
        }
    }

    /// Makes writes to `range` durable on devices that persist (`clwb` and `sfence`, or `msync`).
    pub fn persist(&self, range: Range<usize>) -> Result<()> {
        self.check(&range);
        match &self.backing {
            // SAFETY: inside the mapping, which is the device's.
            Backing::Device(device) if !range.is_empty() => unsafe {
                device.persist(self.at(range.start), range.len())
            },
            _ => Ok(()),
        }
    }

    /// Writes back what this machine's caches have of `range`, and has it read from the memory the next time: other machines
    /// may have changed it ([`Device::write_back`]). Lines around the range go, too.
    pub fn drop_cached(&self, range: Range<usize>) {
        self.check(&range);
        if self.device().is_some() && flush::is_available() && !range.is_empty() {
            let start = range.start / CACHE_LINE_BYTES * CACHE_LINE_BYTES;
            // SAFETY: both are inside the mapping, as the range is, which begins with a page.
            let (start, end) = unsafe { (self.base.as_ptr().add(start), self.base.as_ptr().add(range.end)) };
            flush::drop_lines(start, end);
        }
    }

    /// Copies `bytes` to `offset`, and makes them durable on devices that persist. Others just hold them.
    ///
    /// # Safety
    /// Nobody else uses these bytes of the mapping meanwhile.
    pub unsafe fn store(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.check(&(offset..offset.saturating_add(bytes.len())));
        match &self.backing {
            // SAFETY: inside the mapping, which is the device's, and the caller's promise.
            Backing::Device(device) => unsafe { device.store(self.at(offset), bytes) },
            Backing::Heap(_) | Backing::Paged(_) => {
                // SAFETY: inside the mapping, and the caller's promise.
                unsafe { self.at(offset).as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                Ok(())
            }
        }
    }

    /// # Panics
    /// When the range is not inside the mapping.
    fn check(&self, range: &Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} is outside a mapping of {}", self.len);
    }

    fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset <= self.len);
        // SAFETY: offsets passed here were checked against the length.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        match &self.backing {
            Backing::Heap(layout) => {
                use std::alloc::{GlobalAlloc, System};
                // SAFETY: allocated by `System` with this layout, and nothing refers to it once its owner is dropped.
                unsafe { System.dealloc(self.base.as_ptr(), *layout) };
            }
            // Unmaps itself.
            Backing::Paged(_) => {}
            // SAFETY: reserved and mapped with this length, and nothing refers to it once its owner is dropped.
            Backing::Device(_) => unsafe { unmap(self.base, self.len) },
        }
    }
}

impl From<Paged> for Mapping {
    fn from(paged: Paged) -> Mapping {
        let (base, len) = (paged.base(), paged.reserved_bytes());
        Mapping { base, len, page_size: PAGE_BYTES, backing: Backing::Paged(Box::new(paged)) }
    }
}

fn addresses_are_limited() -> bool {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a live structure to fill.
    unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) };
    limit.rlim_cur != libc::RLIM_INFINITY
}

/// As `reserve`, or as much less as there is where addresses are scarce (under valgrind, for one), but `least` bytes. No
/// more than those where the process's addresses are limited (`ulimit -v`): all of its other memory needs some too. Both
/// are multiples of `unit`, and so is the length that is returned.
pub(crate) fn reserve_some(wanted: usize, least: usize, unit: usize) -> io::Result<(NonNull<u8>, usize)> {
    let mut len = if addresses_are_limited() { least } else { wanted.max(least) };
    loop {
        match reserve(len, unit) {
            Ok(base) => return Ok((base, len)),
            Err(_) if len > least => len = (len / 2 / unit * unit).max(least),
            Err(error) => return Err(error),
        }
    }
}

/// Addresses of the process's own in which nothing is mapped: `len` bytes from a multiple of `alignment` on. Both are
/// multiples of a page.
pub(crate) fn reserve(len: usize, alignment: usize) -> io::Result<NonNull<u8>> {
    let wide = len.checked_add(alignment).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), wide, libc::PROT_NONE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let lead = start.addr().next_multiple_of(alignment) - start.addr();
    // SAFETY: inside what was just mapped.
    let base = unsafe { start.cast::<u8>().add(lead) };
    for (from, len) in [(start.cast::<u8>(), lead), (base.wrapping_add(len), alignment - lead)] {
        if len > 0 {
            // SAFETY: what is left of the mapping on both sides.
            unsafe { libc::munmap(from.cast(), len) };
        }
    }
    NonNull::new(base).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

/// # Safety
/// The range was reserved or mapped by the caller, and nothing refers to it any more.
pub(crate) unsafe fn unmap(base: NonNull<u8>, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(base.as_ptr().cast(), len) };
}

/// Maps `len` bytes at an address that is a multiple of `alignment`.
pub(crate) fn map(len: usize, alignment: usize, flags: libc::c_int, fd: RawFd) -> io::Result<NonNull<u8>> {
    let base = reserve(len, alignment)?;
    // SAFETY: replaces the reservation made above, which nobody else knows of.
    let mapped = unsafe {
        libc::mmap(base.as_ptr().cast(), len, libc::PROT_READ | libc::PROT_WRITE, flags | libc::MAP_FIXED, fd, 0)
    };
    if mapped == libc::MAP_FAILED {
        // The reservation stays reserved, if it is there: the system may have given it up, and to another thread since.
        return Err(io::Error::last_os_error());
    }
    Ok(base)
}

/// Flushing cache lines to a device that persists.
pub(crate) mod flush {
    #[cfg(target_arch = "x86_64")]
    pub fn is_available() -> bool {
        // Every x86-64 processor has `clflush`.
        true
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub fn is_available() -> bool {
        false
    }

    /// Flushes the lines of `[start, end)`; `start` is aligned to a line, and both lie in one mapping.
    #[cfg(target_arch = "x86_64")]
    pub fn lines(start: *mut u8, end: *mut u8) {
        begin_lines(start, end);
        // SAFETY: a fence; SSE is part of x86-64.
        unsafe { std::arch::x86_64::_mm_sfence() };
    }

    /// Begins to flush them: a fence waits for it.
    #[cfg(target_arch = "x86_64")]
    pub fn begin_lines(start: *mut u8, end: *mut u8) {
        use std::arch::{asm, x86_64};
        use std::sync::OnceLock;

        static HAS_CLWB: OnceLock<bool> = OnceLock::new();
        // Leaf 7, EBX bit 24. Leaf 0 says whether there is a leaf 7.
        let clwb =
            *HAS_CLWB.get_or_init(|| x86_64::__cpuid(0).eax >= 7 && x86_64::__cpuid_count(7, 0).ebx & (1 << 24) != 0);
        let mut line = start;
        while line < end {
            // SAFETY: the line lies in a live mapping; writing it back changes no content. `clwb` was detected.
            unsafe {
                if clwb {
                    asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags));
                } else {
                    x86_64::_mm_clflush(line);
                }
            }
            line = line.wrapping_add(super::CACHE_LINE_BYTES);
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub fn lines(_start: *mut u8, _end: *mut u8) {
        unreachable!("guarded by is_available");
    }

    /// Writes the lines of `[start, end)` back and takes them out of all caches of this machine; `start` is aligned to a line,
    /// and both lie in one mapping. What is read afterwards comes from the memory.
    #[cfg(target_arch = "x86_64")]
    pub fn drop_lines(start: *mut u8, end: *mut u8) {
        // `clflushopt` is ordered with stores to its own line alone.
        fence();
        begin_drop(start, end);
        // No load behind it is done before the lines are gone.
        fence();
    }

    /// Loads, stores, and what was begun with lines before it are done before what is behind it.
    #[cfg(target_arch = "x86_64")]
    pub fn fence() {
        // SAFETY: a fence; SSE2 is part of x86-64.
        unsafe { std::arch::x86_64::_mm_mfence() };
    }

    /// Begins to drop them: a fence before it orders it, and a fence behind it waits for it.
    #[cfg(target_arch = "x86_64")]
    pub fn begin_drop(start: *mut u8, end: *mut u8) {
        use std::arch::{asm, x86_64};
        use std::sync::OnceLock;

        static HAS_CLFLUSHOPT: OnceLock<bool> = OnceLock::new();
        // Leaf 7, EBX bit 23.
        let clflushopt = *HAS_CLFLUSHOPT
            .get_or_init(|| x86_64::__cpuid(0).eax >= 7 && x86_64::__cpuid_count(7, 0).ebx & (1 << 23) != 0);
        let mut line = start;
        while line < end {
            // SAFETY: the line lies in a live mapping; flushing it changes no content. `clflushopt` was detected.
            unsafe {
                if clflushopt {
                    asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
                } else {
                    x86_64::_mm_clflush(line);
                }
            }
            line = line.wrapping_add(super::CACHE_LINE_BYTES);
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub fn drop_lines(_start: *mut u8, _end: *mut u8) {
        unreachable!("guarded by is_available");
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub fn begin_lines(_start: *mut u8, _end: *mut u8) {
        unreachable!("guarded by is_available");
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub fn begin_drop(_start: *mut u8, _end: *mut u8) {
        unreachable!("guarded by is_available");
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub fn fence() {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    /// Copies `source` to `target` past the cache, so that it is durable when this returns.
    ///
    /// # Safety
    /// `[target, target + source.len())` lies in a live mapping and is the caller's to write; `source` is elsewhere.
    #[cfg(target_arch = "x86_64")]
    pub unsafe fn store(target: *mut u8, source: &[u8]) {
        use std::arch::x86_64::_mm_stream_si64;
        let head = target.align_offset(8).min(source.len());
        let (words, rest) = source[head..].as_chunks::<8>();
        // SAFETY: all of it lies in the target by the caller's promise; the words are aligned to eight bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(source.as_ptr(), target, head);
            let mut word = target.add(head);
            for bytes in words {
                _mm_stream_si64(word.cast(), i64::from_le_bytes(*bytes));
                word = word.add(8);
            }
            std::ptr::copy_nonoverlapping(rest.as_ptr(), word, rest.len());
            // What went through the cache: up to seven bytes at each end. The fence is for all of it.
            let line = |byte: *mut u8| byte.sub(byte.addr() % super::CACHE_LINE_BYTES);
            if head > 0 {
                lines(line(target), target.add(head));
            }
            lines(line(word), word.add(rest.len()));
        }
    }

    /// # Safety
    /// Never called.
    #[cfg(not(target_arch = "x86_64"))]
    pub unsafe fn store(_target: *mut u8, _source: &[u8]) {
        unreachable!("guarded by is_available");
    }
}
#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::{Place, Window, topology};
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;
    use tidepool_base::SqlState;

    const OPTIONS: MapOptions = MapOptions { huge_pages: true };

    fn bytes(mapping: &mut Mapping) -> &mut [u8] {
        // SAFETY: the mapping is readable and writable memory, borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(mapping.base().as_ptr(), mapping.len()) }
    }

    /// A file in `TIDEPOOL_TEST_FOLDER` (of a DAX file system, for one), or else in memory.
    fn temporary(name: &str) -> std::path::PathBuf {
        let folder = match std::env::var_os("TIDEPOOL_TEST_FOLDER") {
            Some(folder) => folder.into(),
            None if Path::new("/dev/shm").is_dir() => "/dev/shm".into(),
            None => std::env::temp_dir(),
        };
        folder.join(format!("tidepool-mapping-{}-{name}", std::process::id()))
    }

    #[test]
    fn anonymous_memory_is_aligned_zeroed_and_released() {
        let mut mapping = Mapping::open(&Location::Anon, Some(5 << 20), OPTIONS).unwrap();
        assert_eq!(mapping.len(), 6 << 20);
        assert_eq!(mapping.base().as_ptr() as usize % HUGE_PAGE_BYTES, 0);
        bytes(&mut mapping).fill(7);
        assert!(mapping.release(HUGE_PAGE_BYTES..2 * HUGE_PAGE_BYTES).unwrap());
        assert_eq!(bytes(&mut mapping)[HUGE_PAGE_BYTES - 1], 7);
        assert!(bytes(&mut mapping)[HUGE_PAGE_BYTES..2 * HUGE_PAGE_BYTES].iter().all(|byte| *byte == 0));
        mapping.persist(0..mapping.len()).unwrap();
    }

    #[test]
    fn a_file_is_made_written_and_found_again() {
        let path = temporary("made");
        let location = Location::File(path.clone());
        {
            let mut mapping = Mapping::open(&location, Some(4 << 20), OPTIONS).unwrap();
            mapping.commit(0..mapping.len()).unwrap();
            bytes(&mut mapping)[..4].copy_from_slice(b"head");
            bytes(&mut mapping)[1 << 20] = 9;
            mapping.persist(0..mapping.len()).unwrap();
            let error = Mapping::open(&location, None, OPTIONS).unwrap_err();
            assert_eq!(error.code(), SqlState::OBJECT_IN_USE);
        }
        let seen = std::cell::Cell::new(false);
        let refused = Mapping::open_checked(&location, None, OPTIONS, &|header| {
            seen.set(header.starts_with(b"head"));
            Err(Error::corrupted("foreign"))
        });
        assert_eq!(refused.unwrap_err().code(), SqlState::DATA_CORRUPTED);
        assert!(seen.get());
        assert_eq!(std::fs::read(&path).unwrap()[1 << 20], 9, "a refused file is left as it was");
        {
            let mut mapping = Mapping::open(&location, None, OPTIONS).unwrap();
            assert_eq!(mapping.len(), 4 << 20);
            assert_eq!(&bytes(&mut mapping)[..4], b"head");
            assert!(mapping.is_zeroed());
            assert_eq!(bytes(&mut mapping)[1 << 20], 0);
        }
        std::fs::remove_file(path).unwrap();
    }

    /// On a disk: ext4 and xfs refuse MAP_SYNC only after they took away what was mapped at the place.
    #[test]
    fn the_place_of_a_file_is_never_free_for_another_thread() {
        let path = std::env::temp_dir().join(format!("tidepool-mapping-{}-place", std::process::id()));
        let location = Location::File(path.clone());
        let window = Window::reserve_some(HUGE_PAGE_BYTES, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES).unwrap();
        let address = window.base().addr().get();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
                let mut is_free = false;
                while !done.load(Ordering::Relaxed) {
                    let place = std::ptr::without_provenance_mut(address);
                    // SAFETY: takes the place of nothing, by its flags.
                    is_free |= unsafe { libc::mmap(place, PAGE_BYTES, libc::PROT_NONE, flags, -1, 0) } == place;
                }
                is_free
            });
            let map_and_unmap = || -> Result<()> {
                let size = Some(HUGE_PAGE_BYTES as u64);
                let open = || Device::open(&location, size, OPTIONS, &|_| Ok(Content::Goes));
                // A process that another test starts has the file, and its lock, until it runs its program.
                let in_use = |opened: &Result<Device>| {
                    opened.as_ref().is_err_and(|error| error.code() == SqlState::OBJECT_IN_USE)
                };
                let mut device = open();
                while in_use(&device) {
                    std::thread::sleep(Duration::from_millis(1));
                    device = open();
                }
                let number = window.add(device?).unwrap();
                // SAFETY: nobody uses anything there.
                unsafe {
                    window.map(0, Place { device: number, slot: 0 }, 0..HUGE_PAGE_BYTES)?;
                    window.unmap(0, 0)?;
                }
                window.remove(number);
                Ok(())
            };
            let mapped: Vec<Result<()>> = (0..3000).map(|_| map_and_unmap()).collect();
            done.store(true, Ordering::Relaxed);
            assert!(!other.join().unwrap());
            mapped.into_iter().for_each(Result::unwrap);
        });
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_is_stored_is_there_at_any_alignment() {
        let source: Vec<u8> = (0..1000u32).map(|number| number as u8 | 1).collect();
        for (from, len) in [(0, 0), (0, 1), (5, 2), (3, 64), (64, 200), (61, 1000), (4096, 512)] {
            let mut mapping = Mapping::open(&Location::Anon, Some(8192), OPTIONS).unwrap();
            if !flush::is_available() {
                continue;
            }
            // SAFETY: inside the mapping, which nobody else knows.
            unsafe { flush::store(mapping.base().as_ptr().add(from), &source[..len]) };
            let mut expected = vec![0; 8192];
            expected[from..from + len].copy_from_slice(&source[..len]);
            assert!(bytes(&mut mapping) == expected, "{len} bytes at {from}");
            // SAFETY: as above.
            unsafe { mapping.store(from, &vec![0; len]).unwrap() };
            assert!(bytes(&mut mapping).iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn what_is_dropped_from_caches_is_in_memory() {
        let path = temporary("dropped");
        std::fs::write(&path, vec![1; 2 << 20]).unwrap();
        let mapping = Mapping::open_shared(&Location::File(path.clone()), crate::Protection::ReadWrite).unwrap();
        let device = mapping.device().unwrap();
        device.write_back().unwrap();
        assert!(device.outlives_machine(), "what is durable there needs no other machine's caches");
        // SAFETY: inside the mapping, which nobody else uses.
        unsafe { mapping.store(100, &[7; 5000]).unwrap() };
        mapping.persist(90..6000).unwrap();
        for range in [0..0, 5..6, 63..129, 100..5100, 0..2 << 20] {
            mapping.drop_cached(range);
        }
        let read = std::fs::read(&path).unwrap();
        assert!(read[100..5100].iter().all(|byte| *byte == 7) && read[5100..].iter().all(|byte| *byte == 1));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_is_missing_or_too_small_is_said_at_once() {
        let open = |text: &str, size| Mapping::open(&text.parse().unwrap(), size, OPTIONS).unwrap_err();
        assert_eq!(open("anon:", None).code(), SqlState::INVALID_PARAMETER_VALUE);
        assert_eq!(open("anon:", Some(0)).code(), SqlState::INVALID_PARAMETER_VALUE);
        assert_eq!(open("anon:", Some(1 << 60)).code(), SqlState::INVALID_PARAMETER_VALUE);
        assert_eq!(open("anon:", Some(1 << 45)).code(), SqlState::DISK_FULL);
        assert_eq!(open("numa:1023", Some(1 << 20)).code(), SqlState::UNDEFINED_OBJECT);
        assert_eq!(open("file:/nowhere/at/all", Some(1 << 20)).code(), SqlState::UNDEFINED_FILE);
        assert_eq!(open("file:/dev/null", Some(1 << 20)).code(), SqlState::WRONG_OBJECT_TYPE);
        assert_eq!(open("dax:/dev/dax99.0", None).code(), SqlState::UNDEFINED_FILE);
        assert_eq!(open("dax:/dev/null", None).code(), SqlState::WRONG_OBJECT_TYPE);
        let path = temporary("huge");
        let error = open(&format!("file:{}", path.display()), Some(1 << 45));
        assert_eq!(error.code(), SqlState::DISK_FULL, "{error:?}");
        assert!(!path.exists(), "a file that was made in vain is removed");
    }

    /// The node that the page at `offset` lies on.
    fn node_of(mapping: &Mapping, offset: usize) -> i32 {
        let page = mapping.base().as_ptr().wrapping_add(offset);
        let mut status = -1;
        // SAFETY: without target nodes the call only reports where one page lies.
        let rc = unsafe {
            libc::syscall(libc::SYS_move_pages, 0, 1, &raw const page, std::ptr::null::<i32>(), &raw mut status, 0)
        };
        assert_eq!(rc, 0, "{}", io::Error::last_os_error());
        status
    }

    #[test]
    fn memory_is_bound_to_a_node_that_exists() {
        // The last one: where there are several, not the one that would be taken anyway.
        let with_memory = |node: &u32| topology::numa_node_bytes(*node) > Some(0);
        let Some(node) = topology::numa_nodes().into_iter().rfind(with_memory) else {
            return;
        };
        match Mapping::open(&Location::Numa(node), Some(4 << 20), OPTIONS) {
            Ok(mut mapping) => {
                bytes(&mut mapping).fill(1);
                assert_eq!(node_of(&mapping, 3 << 20), node as i32);
            }
            // Containers may forbid mbind: then that is what is said.
            Err(error) => assert!(error.message().contains("NUMA node"), "{error:?}"),
        }
    }
}
