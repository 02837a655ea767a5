//! One device mapped into the address space.
//!
//! Every way in which a device can fail to be there is found in [`Mapping::open`]: a missing path or node, no permission,
//! too little room, a file that another process uses. What can fail later is a file system that fills up; so
//! [`Mapping::commit`] reserves the blocks of a range before it is written, and answers with an error where a plain write
//! would end the process with SIGBUS.
//!
//! The start of a mapping is aligned to 2 MiB (or to the device's page where that is larger), so that offsets and
//! addresses agree about huge pages.

use crate::paged::Paged;
use crate::{Location, Profile, topology};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;
use tidepool_base::{ByteSize, Error, Result, SqlState};

/// What an ordinary page holds.
pub const PAGE_BYTES: usize = 4096;

/// What a huge page holds, and a device-DAX device's unit.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Bytes at the start of a device of which [`Mapping::open_checked`] shows the content before anything is changed.
pub const HEADER_BYTES: usize = PAGE_BYTES;

const CACHE_LINE_BYTES: usize = 64;

const TMPFS_MAGIC: i64 = 0x0102_1994;
const RAMFS_MAGIC: i64 = 0x8584_58f6;
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

#[derive(Clone, Copy, Debug)]
pub struct MapOptions<'a> {
    /// Ask for huge pages where the device has them.
    pub huge_pages: bool,
    /// What stands between paged memory and its remote node; `None`: nothing that takes time. Of no meaning elsewhere.
    pub network: Option<&'a Profile>,
}

/// Looks at the first [`HEADER_BYTES`] of a file or device that is not new (zeroes past its end).
pub type HeaderCheck<'a> = &'a dyn Fn(&[u8]) -> Result<()>;

#[derive(Debug)]
enum Backing {
    /// Anonymous memory, bound to a node or not.
    Anonymous,
    File {
        file: File,
        /// The mapping has `MAP_SYNC`: flushed cache lines are durable.
        direct: bool,
        /// The file system can run out of room beneath the mapping.
        fills_up: bool,
    },
    /// Holds the device open, and the lock with it.
    Dax { _device: File },
    /// From the process's allocator.
    Heap(std::alloc::Layout),
    /// Mapped and unmapped page by page.
    Paged(Box<Paged>),
}

/// A mapped device. Unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    page_size: usize,
    huge_pages: bool,
    /// Every byte behind the header read as zero when it was opened.
    zeroed: bool,
    backing: Backing,
}

// SAFETY: the mapping is owned memory; all methods that touch it take `&self` and are thread-safe system calls.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `size` bytes (rounded up to the device's unit) of `location`. For a DAX device or an existing file of fixed
    /// size, `None` takes all of it.
    pub fn open(location: &Location, size: Option<u64>, options: MapOptions<'_>) -> Result<Mapping> {
        Mapping::open_checked(location, size, options, &|_| Ok(()))
    }

    /// As `open`, but a file or device that existed before is shown to `check` first, and nothing of it is changed when
    /// that fails.
    pub fn open_checked(
        location: &Location,
        size: Option<u64>,
        options: MapOptions<'_>,
        check: HeaderCheck<'_>,
    ) -> Result<Mapping> {
        if size == Some(0) {
            return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "the size of a device cannot be zero"));
        }
        match location {
            Location::Anon => open_anonymous(required(location, size)?, options, None),
            Location::Numa(node) => open_anonymous(required(location, size)?, options, Some(*node)),
            Location::File(path) => open_file(path, size, options, check),
            Location::Dax(path) => open_dax(path, size, check),
            Location::Paged { cache, remote } => {
                let size = required(location, size)?;
                let paged = Paged::open(remote, size, cache.bytes_of(size), options.network)?;
                let (base, len) = (paged.base(), paged.len());
                let backing = Backing::Paged(Box::new(paged));
                Ok(Mapping { base, len, page_size: PAGE_BYTES, huge_pages: false, zeroed: true, backing })
            }
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
        Mapping { base, len, page_size: PAGE_BYTES, huge_pages: false, zeroed: true, backing: Backing::Heap(layout) }
    }

    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

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
        self.huge_pages
    }

    /// Every byte behind the header read as zero when the device was opened.
    pub fn is_zeroed(&self) -> bool {
        self.zeroed
    }

    /// Memory that outlives the process.
    pub fn persists(&self) -> bool {
        matches!(self.backing, Backing::File { .. } | Backing::Dax { .. })
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
        matches!(self.backing, Backing::File { fills_up: true, .. })
    }

    /// Reserves the memory or the blocks of `range` (byte offsets), so that writing there cannot fail. Allocates nothing
    /// from the process, not even for the error.
    pub fn commit(&self, range: Range<usize>) -> io::Result<()> {
        if range.start > range.end || range.end > self.len {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        match &self.backing {
            Backing::File { file, fills_up: true, .. } => {
                let range = self.outward(&range);
                allocate_blocks(file, 0, &range)
            }
            _ => Ok(()),
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
            Backing::Anonymous => {
                // SAFETY: the pages lie inside this private anonymous mapping.
                let rc = unsafe { libc::madvise(self.at(start).cast(), end - start, libc::MADV_DONTNEED) };
                if rc == 0 { Ok(true) } else { Err(Error::io("give memory back", &io::Error::last_os_error())) }
            }
            Backing::File { file, .. } => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                match allocate_blocks(file, mode, &(start..end)) {
                    Ok(()) => Ok(true),
                    Err(error) if is_unsupported(&error) => Ok(false),
                    Err(error) => Err(Error::io("give a file's blocks back", &error)),
                }
            }
            Backing::Dax { .. } => Ok(false),
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
        if range.is_empty() {
            return Ok(());
        }
        match &self.backing {
            Backing::Anonymous | Backing::Heap(_) | Backing::Paged(_) => Ok(()),
            Backing::File { direct: true, .. } | Backing::Dax { .. } if flush::is_available() => {
                let start = range.start / CACHE_LINE_BYTES * CACHE_LINE_BYTES;
                flush::lines(self.at(start), self.at(range.end));
                Ok(())
            }
            Backing::File { .. } | Backing::Dax { .. } => {
                let range = self.outward(&range);
                // SAFETY: whole pages of this mapping.
                let rc = unsafe { libc::msync(self.at(range.start).cast(), range.len(), libc::MS_SYNC) };
                if rc == 0 { Ok(()) } else { Err(Error::io("write a mapped file back", &io::Error::last_os_error())) }
            }
        }
    }

    /// # Panics
    /// When the range is not inside the mapping.
    fn check(&self, range: &Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} is outside a mapping of {}", self.len);
    }

    fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.len);
        // SAFETY: offsets passed here were checked against the length.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// The pages that `range` touches.
    fn outward(&self, range: &Range<usize>) -> Range<usize> {
        let start = range.start / self.page_size * self.page_size;
        start..range.end.next_multiple_of(self.page_size).min(self.len)
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
            // SAFETY: mapped by `map` with this length, and nothing refers to it once its owner is dropped.
            Backing::Anonymous | Backing::File { .. } | Backing::Dax { .. } => unsafe {
                libc::munmap(self.base.as_ptr().cast(), self.len);
            },
        }
    }
}

fn required(location: &Location, size: Option<u64>) -> Result<u64> {
    size.ok_or_else(|| {
        Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("a size is required for device \"{location}\""))
            .with_hint("Write it as in size=4GB.")
    })
}

/// `size` in whole units, as an address-space length.
fn rounded(size: u64, unit: usize) -> Result<usize> {
    usize::try_from(size)
        .ok()
        .and_then(|size| size.checked_next_multiple_of(unit))
        // 2^46 bytes: half of what the smallest 64-bit address space leaves to a process.
        .filter(|size| *size <= 1 << 46)
        .ok_or_else(|| {
            Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("a device of {} cannot be mapped", ByteSize(size)))
        })
}

fn too_small(what: impl std::fmt::Display, wanted: u64, available: u64) -> Error {
    Error::new(SqlState::DISK_FULL, format!("{what} is too small")).with_detail(format!(
        "{} are wanted and {} are there.",
        ByteSize(wanted),
        ByteSize(available)
    ))
}

fn open_anonymous(size: u64, options: MapOptions<'_>, node: Option<u32>) -> Result<Mapping> {
    let len = rounded(size, if size >= HUGE_PAGE_BYTES as u64 { HUGE_PAGE_BYTES } else { PAGE_BYTES })?;
    let limit = match node {
        None => topology::memory_total_bytes().map(|bytes| ("this machine's memory".to_owned(), bytes)),
        Some(node) => {
            let nodes = topology::numa_nodes();
            if !nodes.contains(&node) {
                let names: Vec<String> = nodes.iter().map(u32::to_string).collect();
                return Err(Error::new(SqlState::UNDEFINED_OBJECT, format!("NUMA node {node} does not exist"))
                    .with_hint(format!("This machine's nodes are: {}.", names.join(", "))));
            }
            let bytes = topology::numa_node_bytes(node).unwrap_or(0);
            if bytes == 0 {
                return Err(Error::new(
                    SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                    format!("NUMA node {node} has no memory"),
                ));
            }
            Some((format!("NUMA node {node}"), bytes))
        }
    };
    if let Some((what, bytes)) = limit
        && len as u64 > bytes
    {
        return Err(too_small(what, len as u64, bytes));
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let base = map(len, HUGE_PAGE_BYTES, flags, -1)
        .map_err(|error| Error::io(format_args!("map {} of memory", ByteSize(len as u64)), &error))?;
    let huge_pages = options.huge_pages && advise(base, len, libc::MADV_HUGEPAGE);
    if !options.huge_pages {
        // Where the machine gives them to everybody. A kernel without them has nothing to refuse.
        advise(base, len, libc::MADV_NOHUGEPAGE);
    }
    let backing = Backing::Anonymous;
    let mapping = Mapping { base, len, page_size: PAGE_BYTES, huge_pages, zeroed: true, backing };
    if let Some(node) = node {
        bind(&mapping, node)?;
    }
    Ok(mapping)
}

/// Restricts the mapping to one node. Done before any page is touched, so nothing has to move.
fn bind(mapping: &Mapping, node: u32) -> Result<()> {
    const MPOL_BIND: libc::c_ulong = 2;
    const BITS: u32 = libc::c_ulong::BITS;
    let mut mask = [0 as libc::c_ulong; (crate::location::NUMA_NODE_MAX as usize + 1) / BITS as usize];
    mask[(node / BITS) as usize] |= 1 << (node % BITS);
    // The kernel reads one bit less than it is told.
    let bits = mask.len() * BITS as usize + 1;
    // SAFETY: the mapping and the mask are live; mbind changes a policy and no memory.
    let rc = unsafe {
        libc::syscall(libc::SYS_mbind, mapping.base.as_ptr(), mapping.len, MPOL_BIND, mask.as_ptr(), bits, 0)
    };
    if rc == 0 {
        Ok(())
    } else {
        Err(Error::io(format_args!("bind memory to NUMA node {node}"), &io::Error::last_os_error())
            .with_hint("The process must be allowed that node (cpuset.mems) and the system call mbind."))
    }
}

fn open_file(path: &Path, size: Option<u64>, options: MapOptions<'_>, check: HeaderCheck<'_>) -> Result<Mapping> {
    let shown = path.display();
    let open_error = |error: &io::Error| Error::io(format_args!("open file \"{shown}\""), error);
    let mut created = false;
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound && size.is_some() => {
            created = true;
            OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(path)
                .map_err(|error| open_error(&error))?
        }
        Err(error) => return Err(open_error(&error)),
    };
    let result = map_file(&file, path, size, check);
    if created && result.is_err() {
        // Made a moment ago by this call and of no use. That it stays when this fails too harms nobody.
        let _ = std::fs::remove_file(path);
    }
    let (base, len, page_size, direct, zeroed, fills_up) = result?;
    let huge_pages = page_size >= HUGE_PAGE_BYTES || (options.huge_pages && advise(base, len, libc::MADV_HUGEPAGE));
    Ok(Mapping { base, len, page_size, huge_pages, zeroed, backing: Backing::File { file, direct, fills_up } })
}

fn map_file(
    file: &File,
    path: &Path,
    size: Option<u64>,
    check: HeaderCheck<'_>,
) -> Result<(NonNull<u8>, usize, usize, bool, bool, bool)> {
    let shown = path.display();
    let failed = |action: &str, error: &io::Error| Error::io(format_args!("{action} \"{shown}\""), error);
    let metadata = file.metadata().map_err(|error| failed("inspect file", &error))?;
    if !metadata.is_file() {
        return Err(Error::new(SqlState::WRONG_OBJECT_TYPE, format!("\"{shown}\" is not a regular file"))
            .with_hint("For a device-DAX device write dax:PATH."));
    }
    lock(file, path)?;
    if metadata.len() > 0 {
        check(&read_header(file).map_err(|error| failed("read file", &error))?)?;
    }

    let system = FileSystem::of(file).map_err(|error| failed("inspect file system of", &error))?;
    let unit = system.page_bytes();
    let len = match size {
        Some(size) => rounded(size, unit)?,
        None if metadata.len() == 0 => required(&Location::File(path.to_owned()), None)? as usize,
        None => rounded(metadata.len() / unit as u64 * unit as u64, unit)?,
    };
    if len == 0 {
        return Err(too_small(format_args!("file \"{shown}\""), unit as u64, metadata.len()));
    }
    if system.kind != FileSystemKind::Huge {
        // Blocks that the file has already need no room. (A pool's file is made in its full size.)
        let missing = (len as u64).saturating_sub(metadata.blocks().saturating_mul(512));
        if let Some(available) = system.available_bytes
            && missing > available
        {
            return Err(too_small(
                format_args!("the file system of \"{shown}\""),
                len as u64,
                available + (len as u64 - missing),
            ));
        }
    }
    if metadata.len() < len as u64 {
        file.set_len(len as u64).map_err(|error| {
            failed("extend file", &error).with_detail(format!(
                "It has {} and {} are wanted.",
                ByteSize(metadata.len()),
                ByteSize(len as u64)
            ))
        })?;
    }
    let result = reserve_and_map(file, path, &system, len, metadata.len() == 0);
    if result.is_err() && metadata.len() < len as u64 {
        // As it was found: a later attempt without a size would take what this one asked for. Best effort.
        let _ = file.set_len(metadata.len());
    }
    let (base, direct, zeroed, fills_up) = result?;
    Ok((base, len, unit, direct, zeroed, fills_up))
}

/// Clears a file of `len` bytes, reserves its blocks where that takes no memory, and maps it: its address, whether it is
/// mapped directly, whether it is zeroed, and whether it can run out of room.
fn reserve_and_map(
    file: &File,
    path: &Path,
    system: &FileSystem,
    len: usize,
    new: bool,
) -> Result<(NonNull<u8>, bool, bool, bool)> {
    let shown = path.display();
    let failed = |action: &str, error: &io::Error| Error::io(format_args!("{action} \"{shown}\""), error);
    let unit = system.page_bytes();
    // Content of an earlier life is given back, header excepted, so that what is left reads as zeroes.
    let mut zeroed = new;
    let rest = HEADER_BYTES.next_multiple_of(unit)..len;
    if !zeroed && !rest.is_empty() {
        match allocate_blocks(file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, &rest) {
            Ok(()) => zeroed = unit == PAGE_BYTES,
            Err(error) if is_unsupported(&error) => {}
            Err(error) => return Err(failed("clear file", &error)),
        }
    }
    let fills_up = match system.kind {
        // Reserved by mmap itself, which fails when there are too few.
        FileSystemKind::Huge | FileSystemKind::Unlimited => false,
        FileSystemKind::Memory => true,
        FileSystemKind::Blocks => match allocate_blocks(file, 0, &(0..len)) {
            Ok(()) => true,
            Err(error) if is_unsupported(&error) => false,
            Err(error) => return Err(failed("reserve room for file", &error)),
        },
    };
    if fills_up {
        allocate_blocks(file, 0, &(0..HEADER_BYTES)).map_err(|error| failed("reserve room for file", &error))?;
    }

    let alignment = unit.max(HUGE_PAGE_BYTES);
    // Validated flags: an older kernel or a file system without DAX refuses MAP_SYNC, never ignores it.
    let (base, direct) = match map(len, alignment, libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC, file.as_raw_fd()) {
        Ok(base) => (base, true),
        Err(_) => {
            let base = map(len, alignment, libc::MAP_SHARED, file.as_raw_fd()).map_err(|error| {
                let error = failed("map file", &error);
                if system.kind == FileSystemKind::Huge {
                    error.with_hint(format!(
                        "{} huge pages of {} are needed (see /proc/sys/vm/nr_hugepages).",
                        len / unit,
                        ByteSize(unit as u64)
                    ))
                } else {
                    error
                }
            })?;
            (base, false)
        }
    };
    Ok((base, direct, zeroed, fills_up))
}

fn open_dax(path: &Path, size: Option<u64>, check: HeaderCheck<'_>) -> Result<Mapping> {
    let shown = path.display();
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|error| Error::io(format_args!("open device \"{shown}\""), &error))?;
    let metadata = device.metadata().map_err(|error| Error::io(format_args!("inspect device \"{shown}\""), &error))?;
    let sys = format!("/sys/dev/char/{}:{}", libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
    let attribute = |name: &str| std::fs::read_to_string(format!("{sys}/{name}")).ok()?.trim().parse::<u64>().ok();
    let Some(device_bytes) = attribute("size").filter(|_| metadata.file_type().is_char_device()) else {
        return Err(Error::new(SqlState::WRONG_OBJECT_TYPE, format!("\"{shown}\" is not a device-DAX device"))
            .with_hint("For a file on a DAX file system write file:PATH."));
    };
    lock(&device, path)?;
    let unit = attribute("align").map_or(HUGE_PAGE_BYTES, |align| (align as usize).max(HUGE_PAGE_BYTES));
    let len = match size {
        Some(size) => rounded(size, unit)?,
        None => rounded(device_bytes / unit as u64 * unit as u64, unit)?,
    };
    if len == 0 || len as u64 > device_bytes {
        return Err(too_small(format_args!("device \"{shown}\""), len.max(unit) as u64, device_bytes));
    }
    // Device DAX knows shared mappings only; they are synchronous by nature.
    let base = map(len, unit, libc::MAP_SHARED, device.as_raw_fd())
        .map_err(|error| Error::io(format_args!("map device \"{shown}\""), &error))?;
    let mapping = Mapping {
        base,
        len,
        page_size: unit,
        huge_pages: true,
        zeroed: false,
        backing: Backing::Dax { _device: device },
    };
    // The device has no read call: its content is looked at through the mapping.
    // SAFETY: the mapping is at least one unit long, and this process alone holds it.
    check(unsafe { std::slice::from_raw_parts(mapping.base.as_ptr(), HEADER_BYTES) })?;
    Ok(mapping)
}

/// One process at a time. Released when the file is closed, however the process ends.
fn lock(file: &File, path: &Path) -> Result<()> {
    // SAFETY: a system call on an open descriptor.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    let shown = path.display();
    if error.kind() == io::ErrorKind::WouldBlock {
        Err(Error::new(SqlState::OBJECT_IN_USE, format!("device \"{shown}\" is in use"))
            .with_detail("Another tablespace or another process has it open."))
    } else {
        Err(Error::io(format_args!("lock device \"{shown}\""), &error))
    }
}

fn read_header(file: &File) -> io::Result<[u8; HEADER_BYTES]> {
    let mut header = [0; HEADER_BYTES];
    let mut filled = 0;
    while filled < HEADER_BYTES {
        match file.read_at(&mut header[filled..], filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(header)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileSystemKind {
    /// tmpfs: blocks are memory.
    Memory,
    /// ramfs: as long as memory lasts.
    Unlimited,
    /// hugetlbfs.
    Huge,
    Blocks,
}

struct FileSystem {
    kind: FileSystemKind,
    block_bytes: u64,
    /// `None`: without a limit.
    available_bytes: Option<u64>,
}

impl FileSystem {
    fn of(file: &File) -> io::Result<FileSystem> {
        // SAFETY: a plain structure of integers, for which zeroes are valid.
        let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: an open descriptor and a structure to fill.
        if unsafe { libc::fstatfs(file.as_raw_fd(), &mut stat) } != 0 {
            return Err(io::Error::last_os_error());
        }
        #[allow(clippy::unnecessary_cast, reason = "the field's type differs between targets")]
        let kind = match stat.f_type as i64 & 0xffff_ffff {
            TMPFS_MAGIC => FileSystemKind::Memory,
            RAMFS_MAGIC => FileSystemKind::Unlimited,
            HUGETLBFS_MAGIC => FileSystemKind::Huge,
            _ => FileSystemKind::Blocks,
        };
        let block_bytes = (stat.f_bsize as u64).max(PAGE_BYTES as u64);
        // A tmpfs mounted without a limit reports no blocks at all.
        let unlimited = kind == FileSystemKind::Unlimited || stat.f_blocks == 0;
        let available_bytes = (!unlimited).then(|| stat.f_bavail.saturating_mul(stat.f_bsize as u64));
        Ok(FileSystem { kind, block_bytes, available_bytes })
    }

    fn page_bytes(&self) -> usize {
        match self.kind {
            FileSystemKind::Huge => self.block_bytes as usize,
            _ => PAGE_BYTES,
        }
    }
}

fn allocate_blocks(file: &File, mode: libc::c_int, range: &Range<usize>) -> io::Result<()> {
    loop {
        // SAFETY: a system call on an open descriptor; offsets are below 2^46.
        let rc =
            unsafe { libc::fallocate(file.as_raw_fd(), mode, range.start as libc::off_t, range.len() as libc::off_t) };
        if rc == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL))
}

/// Maps `len` bytes at an address that is a multiple of `alignment`.
pub(crate) fn map(len: usize, alignment: usize, flags: libc::c_int, fd: RawFd) -> io::Result<NonNull<u8>> {
    let reserved = len.checked_add(alignment).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
    let reserve = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), reserved, libc::PROT_NONE, reserve, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let start = start as usize;
    let base = start.next_multiple_of(alignment);
    // SAFETY: replaces part of the reservation made above, which nobody else knows of.
    let mapped = unsafe {
        libc::mmap(base as *mut libc::c_void, len, libc::PROT_READ | libc::PROT_WRITE, flags | libc::MAP_FIXED, fd, 0)
    };
    if mapped == libc::MAP_FAILED {
        let error = io::Error::last_os_error();
        // SAFETY: the reservation made above.
        unsafe { libc::munmap(start as *mut libc::c_void, reserved) };
        return Err(error);
    }
    for (from, to) in [(start, base), (base + len, start + reserved)] {
        if from < to {
            // SAFETY: what is left of the reservation on both sides. `len` is a multiple of the page size.
            unsafe { libc::munmap(from as *mut libc::c_void, to - from) };
        }
    }
    NonNull::new(mapped.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

/// Whether the kernel accepted the wish. It may still back a range with ordinary pages.
fn advise(base: NonNull<u8>, len: usize, huge_pages: libc::c_int) -> bool {
    debug_assert!(matches!(huge_pages, libc::MADV_HUGEPAGE | libc::MADV_NOHUGEPAGE));
    // SAFETY: advice on a live mapping; it changes no content.
    unsafe { libc::madvise(base.as_ptr().cast(), len, huge_pages) == 0 }
}

/// Flushing cache lines to a device that persists.
mod flush {
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
        // SAFETY: a fence; SSE is part of x86-64.
        unsafe { x86_64::_mm_sfence() };
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub fn lines(_start: *mut u8, _end: *mut u8) {
        unreachable!("guarded by is_available");
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;

    const OPTIONS: MapOptions<'static> = MapOptions { huge_pages: true, network: None };

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
