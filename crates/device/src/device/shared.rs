//! Devices that several processes map at once: what is in them is divided by words in them, and not by a lock on the whole.
//!
//! Opening one changes nothing of it: no lock is taken, nothing is cleared, reserved, extended or shortened. A byte can be
//! locked, by its offset, for the life of the open device; what that says is its user's affair.

use super::{Device, FileSystem, FileSystemKind, Found, Source, dax_bytes, rounded};
use crate::Location;
use crate::mapping::HUGE_PAGE_BYTES;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tidepool_base::{Error, Result, SqlState};

/// What may be done to what is mapped of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    Read,
    ReadWrite,
}

impl Protection {
    pub(crate) fn flags(self) -> libc::c_int {
        match self {
            Protection::Read => libc::PROT_READ,
            Protection::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        }
    }
}

impl Device {
    /// Opens all of a file or DAX device that other processes may have open, too.
    pub fn open_shared(location: &Location, protection: Protection) -> Result<Device> {
        let path = match location {
            Location::File(path) | Location::Dax(path) => path,
            _ => {
                return Err(Error::new(
                    SqlState::WRONG_OBJECT_TYPE,
                    format!("several processes cannot share \"{location}\""),
                )
                .with_hint("Name a file: or dax: location."));
            }
        };
        let failed = |action: &str, error: &io::Error| Error::io(format_args!("{action} \"{location}\""), error);
        let file = OpenOptions::new()
            .read(true)
            .write(protection == Protection::ReadWrite)
            .open(path)
            .map_err(|error| failed("open", &error))?;
        let metadata = file.metadata().map_err(|error| failed("inspect", &error))?;
        let (source, bytes, unit) = match location {
            Location::Dax(_) => {
                let (bytes, unit) = dax_bytes(&metadata, path)?;
                (Source::Dax { device: file, device_bytes: bytes }, bytes, unit)
            }
            _ if !metadata.is_file() => {
                return Err(Error::new(SqlState::WRONG_OBJECT_TYPE, format!("\"{location}\" is not a regular file"))
                    .with_hint("For a device-DAX device write dax:PATH."));
            }
            _ => {
                let system = FileSystem::of(&file).map_err(|error| failed("inspect file system of", &error))?;
                let source = Source::File { file, direct: AtomicBool::new(true), fills_up: false, kind: system.kind };
                (source, metadata.len(), system.page_bytes())
            }
        };
        let len = rounded(bytes / unit as u64 * unit as u64, unit)?;
        if len == 0 {
            return Err(Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, format!("\"{location}\" is empty")));
        }
        Ok(Device {
            location: location.clone(),
            source,
            found: Found::AsItIs,
            len: AtomicUsize::new(len),
            page_size: unit,
            huge_pages_wanted: true,
            huge_pages: AtomicBool::new(unit >= HUGE_PAGE_BYTES),
            zeroed: AtomicBool::new(false),
            protection,
            is_shared: true,
            is_written_back: AtomicBool::new(false),
        })
    }

    /// No other kernel can map the same bytes: they are memory of this one, or its cache of a file. What this kernel says of
    /// processes and locks is then all there is to know. Once it is mapped.
    pub fn is_of_one_kernel(&self) -> bool {
        match &self.source {
            Source::Anonymous { .. } => true,
            Source::File { file, direct, kind, .. } => {
                *kind != FileSystemKind::Blocks
                    || self.is_on_local_disk() && !direct.load(Ordering::Relaxed) && is_cached(file)
            }
            Source::Dax { .. } => false,
        }
    }

    /// File systems that one kernel mounts at a time. Those of networks and of virtual machines' hosts are others.
    fn is_on_local_disk(&self) -> bool {
        const EXT: i64 = 0xef53;
        const XFS: i64 = 0x5846_5342;
        const BTRFS: i64 = 0x9123_683e;
        let Source::File { file, .. } = &self.source else { return false };
        super::magic_of(file).is_ok_and(|magic| matches!(magic, EXT | XFS | BTRFS))
    }

    /// What tells this file or device from others of this kernel.
    pub fn kernel_identity(&self) -> Result<(u64, u64)> {
        let metadata = match &self.source {
            Source::Anonymous { .. } => return Err(Error::internal("anonymous memory has no file")),
            Source::File { file, .. } => file.metadata(),
            Source::Dax { device, .. } => device.metadata(),
        };
        let metadata = metadata.map_err(|error| Error::io(format_args!("inspect \"{}\"", self.location), &error))?;
        Ok(identity_of(&self.location, &metadata))
    }

    fn byte_lock(&self, command: libc::c_int, kind: libc::c_int, offset: u64) -> io::Result<libc::flock> {
        let fd = match &self.source {
            Source::Anonymous { .. } => return Err(io::Error::from_raw_os_error(libc::EBADF)),
            Source::File { file, .. } => file.as_raw_fd(),
            Source::Dax { device, .. } => device.as_raw_fd(),
        };
        // SAFETY: a plain structure of integers, for which zeroes are valid.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = kind as libc::c_short;
        lock.l_whence = libc::SEEK_SET as libc::c_short;
        lock.l_start = offset as libc::off_t;
        lock.l_len = 1;
        // SAFETY: a system call on an open descriptor, with a structure that lives.
        if unsafe { libc::fcntl(fd, command, &raw mut lock) } == 0 { Ok(lock) } else { Err(io::Error::last_os_error()) }
    }

    /// Locks a byte for this open device, until it is unlocked or closed, however the process ends. False when another open
    /// device has it. No child that runs another program keeps it.
    pub fn lock_byte(&self, offset: u64) -> io::Result<bool> {
        match self.byte_lock(libc::F_OFD_SETLK, libc::F_WRLCK, offset) {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// As `lock_byte`, of a device that was opened to be read. Of two that try in the same moment both may be refused.
    pub fn lock_byte_of_reader(&self, offset: u64) -> io::Result<bool> {
        match self.byte_lock(libc::F_OFD_SETLK, libc::F_RDLCK, offset) {
            Ok(_) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => return Ok(false),
            Err(error) => return Err(error),
        }
        // Such a lock can be several devices' at once: the one that looks after it has its own sees all that came before.
        if self.is_byte_locked(offset)? {
            self.unlock_byte(offset)?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Locks a byte as others may, too, until it is unlocked or the device is closed. False: another open device has it to itself.
    pub fn share_byte(&self, offset: u64) -> io::Result<bool> {
        match self.byte_lock(libc::F_OFD_SETLK, libc::F_RDLCK, offset) {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub fn unlock_byte(&self, offset: u64) -> io::Result<()> {
        self.byte_lock(libc::F_OFD_SETLK, libc::F_UNLCK, offset).map(drop)
    }

    /// Another open device has a byte locked.
    pub fn is_byte_locked(&self, offset: u64) -> io::Result<bool> {
        let lock = self.byte_lock(libc::F_OFD_GETLK, libc::F_WRLCK, offset)?;
        Ok(i32::from(lock.l_type) != libc::F_UNLCK)
    }
}

/// What tells what is at a location from others of this kernel: of a DAX device its number, whatever node it has.
pub fn identity_of(location: &Location, metadata: &std::fs::Metadata) -> (u64, u64) {
    match location {
        Location::Dax(_) => (0, metadata.rdev()),
        _ => (metadata.dev(), metadata.ino()),
    }
}

/// What is mapped of a file is this kernel's cache, and not the device's own memory. That may be so without `MAP_SYNC`, too
/// (virtio-pmem). False where the kernel does not tell.
fn is_cached(file: &File) -> bool {
    const DAX: u64 = libc::STATX_ATTR_DAX as u64;
    // SAFETY: a plain structure of integers, for which zeroes are valid.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor, an empty path and a structure to fill.
    let rc = unsafe { libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, 0, &raw mut stat) };
    rc == 0 && stat.stx_attributes_mask & DAX != 0 && stat.stx_attributes & DAX == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mapping;

    fn file(name: &str, bytes: u64) -> (std::path::PathBuf, Location) {
        let path = std::env::temp_dir().join(format!("tidepool-shared-{name}-{}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(bytes).unwrap();
        (path.clone(), Location::File(path))
    }

    #[test]
    fn what_one_stores_the_other_sees_and_nothing_is_changed_by_opening() {
        let (path, location) = file("seen", 4 << 20);
        std::fs::write(&path, vec![7u8; 4 << 20]).unwrap();
        let one = Mapping::open_shared(&location, Protection::ReadWrite).unwrap();
        let two = Mapping::open_shared(&location, Protection::Read).unwrap();
        assert_eq!((one.len(), two.len()), (4 << 20, 4 << 20));
        // SAFETY: both are mapped, and nobody else knows of the file.
        unsafe {
            assert_eq!(two.base().add(12345).read(), 7);
            one.base().add(12345).write(8);
            assert_eq!(two.base().add(12345).read(), 8);
        }
        let device = Device::open_shared(&location, Protection::ReadWrite).unwrap();
        assert!(device.resize(8 << 20).is_err(), "others have it mapped");
        device.clear().unwrap();
        // SAFETY: nobody uses what is mapped there.
        assert!(!unsafe { device.release(one.base(), 0..4 << 20) }.unwrap(), "no hole is punched");
        // SAFETY: mapped.
        assert_eq!(unsafe { two.base().add(12345).read() }, 8);
        assert!(std::fs::metadata(&path).unwrap().len() == 4 << 20);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_byte_is_locked_by_one_open_device() {
        let (path, location) = file("locks", 1 << 20);
        let open = || Device::open_shared(&location, Protection::ReadWrite).unwrap();
        let (one, two) = (open(), open());
        assert!(one.lock_byte(3).unwrap() && !two.lock_byte(3).unwrap());
        assert!(two.is_byte_locked(3).unwrap() && !two.is_byte_locked(4).unwrap());
        assert!(!one.is_byte_locked(3).unwrap(), "nobody else has it");
        assert_eq!(one.kernel_identity().unwrap(), two.kernel_identity().unwrap());
        // Of a directory for temporary files: whether the kernel tells or not.
        let mapped = Mapping::open_shared(&location, Protection::ReadWrite).unwrap();
        let magic = super::super::magic_of(&std::fs::File::open(&path).unwrap()).unwrap();
        let is_memory = matches!(magic, 0x0102_1994 | 0x8584_58f6);
        assert!(!is_memory || mapped.device().unwrap().is_of_one_kernel());
        drop(one);
        assert!(!two.is_byte_locked(3).unwrap() && two.lock_byte(3).unwrap());
        two.unlock_byte(3).unwrap();
        assert!(open().lock_byte(3).unwrap());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_cannot_be_shared_is_said() {
        let code = |text: &str| Device::open_shared(&text.parse().unwrap(), Protection::Read).unwrap_err().code();
        assert_eq!(code("anon:"), SqlState::WRONG_OBJECT_TYPE);
        assert_eq!(code("file:/nowhere/at/all"), SqlState::UNDEFINED_FILE);
        assert_eq!(code("file:/dev/null"), SqlState::WRONG_OBJECT_TYPE);
        assert_eq!(code("dax:/dev/null"), SqlState::WRONG_OBJECT_TYPE);
        let (path, location) = file("empty", 0);
        let error = Device::open_shared(&location, Protection::Read).unwrap_err();
        assert_eq!(error.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
        std::fs::remove_file(path).unwrap();
    }
}
