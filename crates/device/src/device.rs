//! One device: a source of memory that is opened once and mapped in pieces.
//!
//! Every way in which a device can fail to be there is found in [`Device::open`] and [`Device::resize`]: a missing path or
//! node, no permission, too little room, a file that another process uses. What can fail later is a file system that fills
//! up; so [`Device::commit`] reserves the blocks of a range before it is written, and answers with an error where a plain
//! write would end the process with SIGBUS.

mod shared;

pub use shared::{Protection, identity_of};

use crate::mapping::{
    CACHE_LINE_BYTES, Content, HEADER_BYTES, HUGE_PAGE_BYTES, HeaderCheck, MapOptions, PAGE_BYTES, flush, map,
};
use crate::{Location, topology};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use tidepool_base::{ByteSize, Error, Result, SqlState};

const TMPFS_MAGIC: i64 = 0x0102_1994;
const RAMFS_MAGIC: i64 = 0x8584_58f6;
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

#[derive(Debug)]
enum Source {
    /// Anonymous memory, bound to a node or not.
    Anonymous { node: Option<u32> },
    File {
        file: File,
        /// Every mapping so far has `MAP_SYNC`: flushed cache lines are durable.
        direct: AtomicBool,
        /// The file system can run out of room beneath the mapping.
        fills_up: bool,
        kind: FileSystemKind,
    },
    /// Holds the device open, and the lock with it.
    Dax { device: File, device_bytes: u64 },
}

/// What a device was before it was opened, to be put back if nothing comes of it.
#[derive(Clone, Copy, Debug)]
enum Found {
    /// Nothing of it was changed, or nothing need be put back.
    AsItIs,
    Created,
    FileOf {
        bytes: u64,
    },
}

/// An open device. What is mapped of it is its user's to unmap before it is dropped.
#[derive(Debug)]
pub struct Device {
    location: Location,
    source: Source,
    found: Found,
    /// Bytes in use, from the device's first on.
    len: AtomicUsize,
    page_size: usize,
    huge_pages_wanted: bool,
    /// The kernel agreed to huge pages wherever it was asked.
    huge_pages: AtomicBool,
    /// Every byte behind the header that nobody wrote since the device was opened reads as zero.
    zeroed: AtomicBool,
    protection: Protection,
    /// Other processes have it open: its size is nobody's to change.
    is_shared: bool,
    /// Other machines map the same bytes, and see what has reached the memory alone.
    is_written_back: AtomicBool,
}

impl Device {
    /// Opens `size` bytes (rounded up to the device's unit) of `location`. For a DAX device or an existing file of fixed
    /// size, `None` takes all of it. A file or device that existed before is shown to `check` first, and nothing of it is
    /// changed when that fails.
    pub fn open(location: &Location, size: Option<u64>, options: MapOptions, check: HeaderCheck<'_>) -> Result<Device> {
        if size == Some(0) {
            return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "the size of a device cannot be zero"));
        }
        match location {
            Location::Anon => open_anonymous(location, location.require_size(size)?, options, None),
            Location::Numa(node) => open_anonymous(location, location.require_size(size)?, options, Some(*node)),
            Location::File(path) => open_file(path, size, options, check),
            Location::Dax(path) => open_dax(path, size, check),
            Location::Striped(_) => Err(Error::internal(format!("\"{location}\" is not one device"))),
            Location::Paged { .. } | Location::Node { .. } => {
                Err(Error::internal(format!("\"{location}\" is mapped page by page")))
            }
            Location::Pool => Err(Error::internal(format!("\"{location}\" is leased extent by extent"))),
        }
    }

    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Bytes in use.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
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
        self.huge_pages.load(Ordering::Relaxed)
    }

    /// Every byte behind the header that nobody wrote since the device was opened reads as zero.
    pub fn is_zeroed(&self) -> bool {
        self.zeroed.load(Ordering::Relaxed)
    }

    /// Memory that outlives the process.
    pub fn persists(&self) -> bool {
        matches!(self.source, Source::File { .. } | Source::Dax { .. })
    }

    /// What was made durable on it is there when the machine was off. Once it is mapped.
    pub fn outlives_machine(&self) -> bool {
        match &self.source {
            Source::Anonymous { .. } => false,
            Source::File { .. } => self.is_flushed() && flush::is_available(),
            Source::Dax { .. } => true,
        }
    }

    /// What is made durable on it is written back from this machine's caches from now on, whatever it is: other machines map
    /// the same bytes, and see what has reached the memory alone. What is in a dead machine's caches is lost, as with its power.
    /// 0A000 where the processor has no instructions for that.
    pub fn write_back(&self) -> Result<()> {
        if !flush::is_available() {
            return Err(Error::unsupported("memory that is not coherent between machines on this processor")
                .with_detail("Its caches cannot be written back by programs."));
        }
        self.is_written_back.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Cache lines are to be flushed for what is made durable.
    fn is_flushed(&self) -> bool {
        match &self.source {
            Source::Anonymous { .. } => false,
            Source::File { direct, .. } => {
                direct.load(Ordering::Relaxed) || self.is_written_back.load(Ordering::Relaxed)
            }
            Source::Dax { .. } => true,
        }
    }

    /// `commit` has work to do here.
    pub fn needs_commit(&self) -> bool {
        matches!(self.source, Source::File { fills_up: true, .. })
    }

    /// What [`commit`](Device::commit) of all of it takes of the machine's memory: pages of a tmpfs that are not there yet.
    pub fn memory_to_commit(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        match &self.source {
            Source::File { file, kind: FileSystemKind::Memory, .. } => {
                let there = file.metadata().map_or(0, |metadata| metadata.blocks() * 512);
                (self.len() as u64).saturating_sub(there)
            }
            _ => 0,
        }
    }

    /// Says that bytes which nobody wrote may not be zero, as something was left there.
    pub fn note_not_zeroed(&self) {
        self.zeroed.store(false, Ordering::Relaxed);
    }

    /// `len` in the device's unit, as `open` rounds sizes.
    pub fn rounded_len(&self, len: u64) -> Result<usize> {
        let unit = match self.source {
            Source::Anonymous { .. } => unit_of_anonymous(len),
            _ => self.page_size,
        };
        rounded(len, unit)
    }

    /// Puts more or fewer bytes in use; `len` is in the device's unit. 53100 when there is no room, and then nothing is
    /// changed. What is cut off must not be mapped any more.
    pub fn resize(&self, len: usize) -> Result<()> {
        let before = self.len();
        if self.is_shared {
            return Err(Error::internal(format!("the size of \"{}\", which is shared, cannot change", self.location)));
        }
        match &self.source {
            Source::Anonymous { node } => {
                if len > before {
                    check_memory(len, *node)?;
                }
            }
            Source::File { file, kind, .. } => self.resize_file(file, *kind, before, len)?,
            Source::Dax { device_bytes, .. } => {
                if len as u64 > *device_bytes {
                    return Err(too_small(format_args!("device \"{}\"", self.location), len as u64, *device_bytes));
                }
            }
        }
        self.len.store(len, Ordering::Relaxed);
        Ok(())
    }

    fn resize_file(&self, file: &File, kind: FileSystemKind, before: usize, len: usize) -> Result<()> {
        let shown = self.location.to_string();
        let failed = |action: &str, error: &io::Error| Error::io(format_args!("{action} \"{shown}\""), error);
        if len <= before {
            return if len == before {
                Ok(())
            } else {
                file.set_len(len as u64).map_err(|error| failed("shorten file", &error))
            };
        }
        let metadata = file.metadata().map_err(|error| failed("inspect file", &error))?;
        let system = FileSystem::of(file).map_err(|error| failed("inspect file system of", &error))?;
        check_room(&system, &metadata, len, &shown)?;
        if metadata.len() > before as u64 {
            // Longer than what was in use: content of an earlier life.
            let stale = before..(metadata.len() as usize).min(len);
            match allocate_blocks(file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, &stale) {
                Ok(()) => {}
                Err(error) if is_unsupported(&error) => self.zeroed.store(false, Ordering::Relaxed),
                Err(error) => return Err(failed("clear file", &error)),
            }
        }
        if metadata.len() < len as u64 {
            file.set_len(len as u64).map_err(|error| failed("extend file", &error))?;
        }
        if kind == FileSystemKind::Blocks
            && let Err(error) = allocate_blocks(file, 0, &(before..len))
            && !is_unsupported(&error)
        {
            // As it was. Best effort: a file that stays longer takes no blocks.
            let _ = file.set_len(metadata.len());
            return Err(failed("reserve room for file", &error));
        }
        Ok(())
    }

    /// Puts a device back as it was found, when nothing came of opening it: a file that was made is removed, one that was
    /// extended is cut to its length. Best effort: what is left over harms nobody.
    pub fn undo_open(&self) {
        match (&self.source, self.found) {
            (Source::File { .. }, Found::Created) => {
                if let Location::File(path) = &self.location {
                    let _ = std::fs::remove_file(path);
                }
            }
            (Source::File { file, .. }, Found::FileOf { bytes }) => {
                let _ = file.set_len(bytes);
            }
            _ => {}
        }
    }

    /// Maps `len` bytes of the device from `offset` on at `address`, in place of what is there. All three are multiples
    /// of the device's page. What is there stays when the device refuses.
    ///
    /// # Safety
    /// `[address, address + len)` is the caller's: reserved by it, and nobody uses what is mapped there.
    pub unsafe fn map_at(&self, address: NonNull<u8>, offset: usize, len: usize) -> Result<()> {
        let fixed = |flags: libc::c_int, fd: i32| {
            // SAFETY: the caller's promise.
            let mapped = unsafe {
                libc::mmap(
                    address.as_ptr().cast(),
                    len,
                    self.protection.flags(),
                    flags | libc::MAP_FIXED,
                    fd,
                    offset as libc::off_t,
                )
            };
            if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
        };
        let failed = |error: &io::Error| {
            let about = Error::io(format_args!("map {} of \"{}\"", ByteSize(len as u64), self.location), error);
            if error.raw_os_error() == Some(libc::ENOMEM) {
                about.with_hint("The process may have as many mappings as vm.max_map_count says.")
            } else {
                about
            }
        };
        match &self.source {
            Source::Anonymous { node } => {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                fixed(flags, -1).map_err(|error| failed(&error))?;
                self.wish_for_huge_pages(address, len);
                if let Some(node) = node {
                    bind(address, len, *node)?;
                }
            }
            Source::File { file, direct, kind, .. } => {
                let refused = |error: &io::Error| {
                    if *kind == FileSystemKind::Huge {
                        failed(error).with_hint(format!(
                            "{} huge pages of {} are needed (see /proc/sys/vm/nr_hugepages).",
                            len / self.page_size,
                            ByteSize(self.page_size as u64)
                        ))
                    } else {
                        failed(error)
                    }
                };
                // Reserved by the first mapping, for all that follow.
                let tried_len = if *kind == FileSystemKind::Huge { len } else { self.page_size };
                let flags =
                    file_flags(file, direct, self.protection, offset, tried_len).map_err(|error| refused(&error))?;
                fixed(flags, file.as_raw_fd()).map_err(|error| refused(&error))?;
                if self.page_size < HUGE_PAGE_BYTES {
                    self.wish_for_huge_pages(address, len);
                }
            }
            // Device DAX knows shared mappings only; they are synchronous by nature.
            Source::Dax { device, .. } => {
                fixed(libc::MAP_SHARED, device.as_raw_fd()).map_err(|error| failed(&error))?
            }
        }
        Ok(())
    }

    fn wish_for_huge_pages(&self, address: NonNull<u8>, len: usize) {
        if self.huge_pages_wanted {
            if !advise(address, len, libc::MADV_HUGEPAGE) {
                self.huge_pages.store(false, Ordering::Relaxed);
            }
        } else if matches!(self.source, Source::Anonymous { .. }) {
            // Where the machine gives them to everybody. A kernel without them has nothing to refuse.
            advise(address, len, libc::MADV_NOHUGEPAGE);
        }
    }

    /// Reserves the blocks of `range` (byte offsets in the device), so that writing there cannot fail. Allocates nothing
    /// from the process, not even for the error.
    pub fn commit(&self, range: Range<usize>) -> io::Result<()> {
        if range.start > range.end || range.end > self.len() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        match &self.source {
            Source::File { file, fills_up: true, .. } => allocate_blocks(file, 0, &self.outward(&range)),
            _ => Ok(()),
        }
    }

    /// Backs `[address, address + len)`, whole pages that are mapped of this device, with memory. What they hold stays. Does
    /// nothing where the kernel cannot (before Linux 5.14): they are backed when they are used.
    ///
    /// # Safety
    /// These bytes are mapped of this device.
    pub unsafe fn populate(&self, address: NonNull<u8>, len: usize) -> io::Result<()> {
        loop {
            // SAFETY: mapped, by the caller's promise; it changes no content.
            if unsafe { libc::madvise(address.as_ptr().cast(), len, libc::MADV_POPULATE_WRITE) } == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EINVAL) => return Ok(()),
                _ => return Err(error),
            }
        }
    }

    /// Maps the pages of `[address, address + len)` to be read. Before Linux 5.14 they are touched.
    ///
    /// # Safety
    /// These bytes are mapped of this device, and `address` is a page's.
    pub unsafe fn map_ahead(&self, address: NonNull<u8>, len: usize) {
        // SAFETY: mapped, by the caller's promise; it changes no content.
        let rc = unsafe { libc::madvise(address.as_ptr().cast(), len, libc::MADV_POPULATE_READ) };
        // What else there is to say of a page, its first user is told.
        if rc == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL) {
            return;
        }
        for offset in (0..len.saturating_sub(size_of::<u64>() - 1)).step_by(PAGE_BYTES) {
            // SAFETY: a whole word at a page's start, mapped by the caller's promise. Others may store to it meanwhile, by
            // atomic words, as all do who have the device in common.
            unsafe { AtomicU64::from_ptr(address.as_ptr().add(offset).cast()) }.load(Ordering::Relaxed);
        }
    }

    /// The runs of bytes that have memory or blocks, as far as the system tells, in ascending order. Reading them takes
    /// nothing from the file system.
    pub fn backed(&self) -> Vec<Range<usize>> {
        let whole = 0..self.len();
        let Source::File { file, .. } = &self.source else { return vec![whole] };
        // SAFETY: a system call on an open descriptor, whose position nobody uses.
        let seek = |from: usize, what| unsafe { libc::lseek(file.as_raw_fd(), from as libc::off_t, what) };
        let mut runs = Vec::new();
        let mut from = 0;
        while from < whole.end
            && let Ok(start) = usize::try_from(seek(from, libc::SEEK_DATA))
            && let Ok(end) = usize::try_from(seek(start, libc::SEEK_HOLE))
            && start < end
        {
            runs.push(start..end.min(whole.end));
            from = end;
        }
        runs
    }

    /// Gives the pages of `range` (byte offsets in the device), which lie at `address`, back to the system; they read as
    /// zeroes afterwards. Only pages that lie wholly inside go. Where the device cannot (device DAX), or there are none,
    /// does nothing and returns false.
    ///
    /// # Safety
    /// The range is mapped at `address` and its content is of no use to anybody.
    pub unsafe fn release(&self, address: NonNull<u8>, range: Range<usize>) -> Result<bool> {
        let start = range.start.next_multiple_of(self.page_size);
        let end = range.end / self.page_size * self.page_size;
        // No hole is punched into what other processes have open: what they lease is memory that is there.
        if start >= end || self.is_shared {
            return Ok(false);
        }
        match &self.source {
            Source::Anonymous { .. } => {
                // SAFETY: inside the range, which the caller gives up.
                let rc = unsafe {
                    let from = address.as_ptr().add(start - range.start);
                    libc::madvise(from.cast(), end - start, libc::MADV_DONTNEED)
                };
                if rc == 0 { Ok(true) } else { Err(Error::io("give memory back", &io::Error::last_os_error())) }
            }
            Source::File { file, .. } => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                match allocate_blocks(file, mode, &(start..end)) {
                    Ok(()) => Ok(true),
                    Err(error) if is_unsupported(&error) => Ok(false),
                    Err(error) => Err(Error::io("give a file's blocks back", &error)),
                }
            }
            Source::Dax { .. } => Ok(false),
        }
    }

    /// Gives all that a file holds back to the system, its header excepted. Its user is done with it.
    pub fn clear(&self) -> Result<()> {
        let rest = HEADER_BYTES.next_multiple_of(self.page_size)..self.len();
        match &self.source {
            Source::File { file, .. } if !rest.is_empty() && !self.is_shared => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                match allocate_blocks(file, mode, &rest) {
                    Err(error) if !is_unsupported(&error) => Err(Error::io("give a file's blocks back", &error)),
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Makes writes to `[address, address + len)` durable on devices that persist (`clwb` and `sfence`, or `msync`).
    ///
    /// # Safety
    /// These bytes are mapped of this device.
    pub unsafe fn persist(&self, address: NonNull<u8>, len: usize) -> Result<()> {
        if matches!(self.source, Source::Anonymous { .. }) {
            return Ok(());
        }
        let flushed = self.is_flushed();
        let (start, end) = (address.addr().get(), address.addr().get() + len);
        let back = |to: usize| start - start / to * to;
        // SAFETY: lines and pages around the bytes lie in the mapping, which starts and ends with a page.
        unsafe {
            if flushed && flush::is_available() {
                let from = address.as_ptr().sub(back(CACHE_LINE_BYTES));
                flush::lines(from, address.as_ptr().add(len));
                return Ok(());
            }
            let from = address.as_ptr().sub(back(self.page_size));
            let pages = end.next_multiple_of(self.page_size) - from.addr();
            if libc::msync(from.cast(), pages, libc::MS_SYNC) == 0 {
                Ok(())
            } else {
                Err(Error::io("write a mapped file back", &io::Error::last_os_error()))
            }
        }
    }

    /// Copies `bytes` to `address`, and makes them durable on a device that persists: with stores past the cache where that
    /// is enough, or else with `msync`. Other devices just hold them.
    ///
    /// # Safety
    /// The bytes there are mapped of this device, and nobody else uses them meanwhile.
    pub unsafe fn store(&self, address: NonNull<u8>, bytes: &[u8]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            if self.is_flushed() && flush::is_available() {
                flush::store(address.as_ptr(), bytes);
                return Ok(());
            }
            address.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            if bytes.is_empty() { Ok(()) } else { self.persist(address, bytes.len()) }
        }
    }

    /// The pages that `range` touches.
    fn outward(&self, range: &Range<usize>) -> Range<usize> {
        let start = range.start / self.page_size * self.page_size;
        start..range.end.next_multiple_of(self.page_size).min(self.len())
    }
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

fn unit_of_anonymous(size: u64) -> usize {
    if size >= HUGE_PAGE_BYTES as u64 { HUGE_PAGE_BYTES } else { PAGE_BYTES }
}

fn open_anonymous(location: &Location, size: u64, options: MapOptions, node: Option<u32>) -> Result<Device> {
    let len = rounded(size, unit_of_anonymous(size))?;
    check_memory(len, node)?;
    Ok(Device {
        location: location.clone(),
        source: Source::Anonymous { node },
        found: Found::AsItIs,
        len: AtomicUsize::new(len),
        page_size: PAGE_BYTES,
        huge_pages_wanted: options.huge_pages,
        huge_pages: AtomicBool::new(options.huge_pages),
        zeroed: AtomicBool::new(true),
        protection: Protection::ReadWrite,
        is_shared: false,
        is_written_back: AtomicBool::new(false),
    })
}

/// The machine, or its node, has `len` bytes.
fn check_memory(len: usize, node: Option<u32>) -> Result<()> {
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
    match limit {
        Some((what, bytes)) if len as u64 > bytes => Err(too_small(what, len as u64, bytes)),
        _ => Ok(()),
    }
}

/// Restricts mapped memory to one node. Done before any page is touched, so nothing has to move.
fn bind(address: NonNull<u8>, len: usize, node: u32) -> Result<()> {
    const MPOL_BIND: libc::c_ulong = 2;
    const BITS: u32 = libc::c_ulong::BITS;
    let mut mask = [0 as libc::c_ulong; (crate::location::NUMA_NODE_MAX as usize + 1) / BITS as usize];
    mask[(node / BITS) as usize] |= 1 << (node % BITS);
    // The kernel reads one bit less than it is told.
    let bits = mask.len() * BITS as usize + 1;
    // SAFETY: the memory and the mask are live; mbind changes a policy and no memory.
    let rc = unsafe { libc::syscall(libc::SYS_mbind, address.as_ptr(), len, MPOL_BIND, mask.as_ptr(), bits, 0) };
    if rc == 0 {
        Ok(())
    } else {
        Err(Error::io(format_args!("bind memory to NUMA node {node}"), &io::Error::last_os_error())
            .with_hint("The process must be allowed that node (cpuset.mems) and the system call mbind."))
    }
}

fn open_file(path: &Path, size: Option<u64>, options: MapOptions, check: HeaderCheck<'_>) -> Result<Device> {
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
    let result = prepare_file(file, path, size, options, check);
    match result {
        Ok(device) if created => Ok(Device { found: Found::Created, ..device }),
        Err(error) if created => {
            // Made a moment ago by this call and of no use. That it stays when this fails too harms nobody.
            let _ = std::fs::remove_file(path);
            Err(error)
        }
        result => result,
    }
}

fn prepare_file(
    file: File,
    path: &Path,
    size: Option<u64>,
    options: MapOptions,
    check: HeaderCheck<'_>,
) -> Result<Device> {
    let shown = path.display();
    let failed = |action: &str, error: &io::Error| Error::io(format_args!("{action} \"{shown}\""), error);
    let metadata = file.metadata().map_err(|error| failed("inspect file", &error))?;
    if !metadata.is_file() {
        return Err(Error::new(SqlState::WRONG_OBJECT_TYPE, format!("\"{shown}\" is not a regular file"))
            .with_hint("For a device-DAX device write dax:PATH."));
    }
    lock(&file, path)?;
    let content = match metadata.len() {
        0 => Content::Goes,
        _ => check(&read_header(&file).map_err(|error| failed("read file", &error))?)?,
    };

    let system = FileSystem::of(&file).map_err(|error| failed("inspect file system of", &error))?;
    let unit = system.page_bytes();
    let len = match size {
        Some(size) => rounded(size, unit)?,
        None if metadata.len() == 0 => Location::File(path.to_owned()).require_size(None)? as usize,
        None => rounded(metadata.len() / unit as u64 * unit as u64, unit)?,
    };
    if len == 0 {
        return Err(too_small(format_args!("file \"{shown}\""), unit as u64, metadata.len()));
    }
    check_room(&system, &metadata, len, &path.display().to_string())?;
    if metadata.len() < len as u64 {
        file.set_len(len as u64).map_err(|error| {
            failed("extend file", &error).with_detail(format!(
                "It has {} and {} are wanted.",
                ByteSize(metadata.len()),
                ByteSize(len as u64)
            ))
        })?;
    }
    let clear = content == Content::Goes && metadata.len() > 0;
    let (cleared, fills_up) = match clear_and_reserve(&file, path, &system, len, clear) {
        Ok(reserved) => reserved,
        Err(error) => {
            if metadata.len() < len as u64 {
                // As it was found: a later attempt without a size would take what this one asked for. Best effort.
                let _ = file.set_len(metadata.len());
            }
            return Err(error);
        }
    };
    Ok(Device {
        location: Location::File(path.to_owned()),
        source: Source::File { file, direct: AtomicBool::new(true), fills_up, kind: system.kind },
        found: if metadata.len() < len as u64 { Found::FileOf { bytes: metadata.len() } } else { Found::AsItIs },
        len: AtomicUsize::new(len),
        page_size: unit,
        huge_pages_wanted: options.huge_pages,
        huge_pages: AtomicBool::new(unit >= HUGE_PAGE_BYTES || options.huge_pages),
        zeroed: AtomicBool::new(metadata.len() == 0 || cleared),
        protection: Protection::ReadWrite,
        is_shared: false,
        is_written_back: AtomicBool::new(false),
    })
}

/// A file of `len` bytes fits its file system.
fn check_room(system: &FileSystem, metadata: &std::fs::Metadata, len: usize, shown: &str) -> Result<()> {
    if system.kind == FileSystemKind::Huge {
        return Ok(());
    }
    // Blocks that the file has already need no room. (A pool's file is made in its full size.)
    let missing = (len as u64).saturating_sub(metadata.blocks().saturating_mul(512));
    match system.available_bytes {
        Some(available) if missing > available => Err(too_small(
            format_args!("the file system of \"{shown}\""),
            len as u64,
            available + (len as u64 - missing),
        )),
        _ => Ok(()),
    }
}

/// Clears a file of `len` bytes if it is to be, and reserves its blocks where that takes no memory: whether it was cleared,
/// and whether it can run out of room.
fn clear_and_reserve(file: &File, path: &Path, system: &FileSystem, len: usize, clear: bool) -> Result<(bool, bool)> {
    let shown = path.display();
    let failed = |action: &str, error: &io::Error| Error::io(format_args!("{action} \"{shown}\""), error);
    let unit = system.page_bytes();
    // Content of an earlier life is given back, header excepted, so that what is left reads as zeroes.
    let mut cleared = false;
    let rest = HEADER_BYTES.next_multiple_of(unit)..len;
    if clear && !rest.is_empty() {
        match allocate_blocks(file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, &rest) {
            Ok(()) => cleared = unit == PAGE_BYTES,
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
    Ok((cleared, fills_up))
}

fn open_dax(path: &Path, size: Option<u64>, check: HeaderCheck<'_>) -> Result<Device> {
    let shown = path.display();
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|error| Error::io(format_args!("open device \"{shown}\""), &error))?;
    let metadata = device.metadata().map_err(|error| Error::io(format_args!("inspect device \"{shown}\""), &error))?;
    let (device_bytes, unit) = dax_bytes(&metadata, path)?;
    lock(&device, path)?;
    let len = match size {
        Some(size) => rounded(size, unit)?,
        None => rounded(device_bytes / unit as u64 * unit as u64, unit)?,
    };
    if len == 0 || len as u64 > device_bytes {
        return Err(too_small(format_args!("device \"{shown}\""), len.max(unit) as u64, device_bytes));
    }
    // The device has no read call: its content is looked at through a mapping.
    let header = map(unit, unit, libc::MAP_SHARED, device.as_raw_fd())
        .map_err(|error| Error::io(format_args!("map device \"{shown}\""), &error))?;
    // SAFETY: the mapping is one unit long, and this process alone holds the device.
    let checked = check(unsafe { std::slice::from_raw_parts(header.as_ptr(), HEADER_BYTES) });
    // SAFETY: mapped above, and the slice is gone.
    unsafe { libc::munmap(header.as_ptr().cast(), unit) };
    checked?;
    Ok(Device {
        location: Location::Dax(path.to_owned()),
        source: Source::Dax { device, device_bytes },
        found: Found::AsItIs,
        len: AtomicUsize::new(len),
        page_size: unit,
        huge_pages_wanted: true,
        huge_pages: AtomicBool::new(true),
        zeroed: AtomicBool::new(false),
        protection: Protection::ReadWrite,
        is_shared: false,
        is_written_back: AtomicBool::new(false),
    })
}

/// The bytes of a device-DAX device, and its unit.
fn dax_bytes(metadata: &std::fs::Metadata, path: &Path) -> Result<(u64, usize)> {
    let sys = format!("/sys/dev/char/{}:{}", libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
    let attribute = |name: &str| std::fs::read_to_string(format!("{sys}/{name}")).ok()?.trim().parse::<u64>().ok();
    let Some(device_bytes) = attribute("size").filter(|_| metadata.file_type().is_char_device()) else {
        let shown = path.display();
        return Err(Error::new(SqlState::WRONG_OBJECT_TYPE, format!("\"{shown}\" is not a device-DAX device"))
            .with_hint("For a file on a DAX file system write file:PATH."));
    };
    let unit = attribute("align").map_or(HUGE_PAGE_BYTES, |align| (align as usize).max(HUGE_PAGE_BYTES));
    Ok((device_bytes, unit))
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

fn stat_of(file: &File) -> io::Result<libc::statfs> {
    // SAFETY: a plain structure of integers, for which zeroes are valid.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor and a structure to fill.
    if unsafe { libc::fstatfs(file.as_raw_fd(), &mut stat) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(stat)
}

#[allow(clippy::unnecessary_cast, reason = "the field's type differs between targets")]
fn magic(stat: &libc::statfs) -> i64 {
    stat.f_type as i64 & 0xffff_ffff
}

/// Which kind of file system a file is on.
fn magic_of(file: &File) -> io::Result<i64> {
    stat_of(file).map(|stat| magic(&stat))
}

impl FileSystem {
    fn of(file: &File) -> io::Result<FileSystem> {
        let stat = stat_of(file)?;
        let kind = match magic(&stat) {
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

/// The flags to map the file with. They are tried where the kernel likes: a mapping in place of another that the file system
/// refuses leaves a hole there, which belongs to any other thread that maps something before the next attempt (ext4 and xfs
/// refuse MAP_SYNC only once the other mapping is gone).
fn file_flags(
    file: &File,
    direct: &AtomicBool,
    protection: Protection,
    offset: usize,
    len: usize,
) -> io::Result<libc::c_int> {
    let try_with = |flags: libc::c_int| {
        // SAFETY: a fresh mapping at an address of the kernel's choice, which nobody else knows of and nobody touches.
        unsafe {
            let protection = protection.flags();
            let mapped =
                libc::mmap(std::ptr::null_mut(), len, protection, flags, file.as_raw_fd(), offset as libc::off_t);
            if mapped == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            libc::munmap(mapped, len);
        }
        Ok(flags)
    };
    // Validated flags: an older kernel or a file system without DAX refuses MAP_SYNC, never ignores it.
    if direct.load(Ordering::Relaxed)
        && let Ok(flags) = try_with(libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC)
    {
        return Ok(flags);
    }
    direct.store(false, Ordering::Relaxed);
    try_with(libc::MAP_SHARED)
}

/// Whether the kernel accepted the wish. It may still back a range with ordinary pages.
fn advise(base: NonNull<u8>, len: usize, huge_pages: libc::c_int) -> bool {
    debug_assert!(matches!(huge_pages, libc::MADV_HUGEPAGE | libc::MADV_NOHUGEPAGE));
    // SAFETY: advice on a live mapping; it changes no content.
    unsafe { libc::madvise(base.as_ptr().cast(), len, huge_pages) == 0 }
}
