//! Copies, on this machine's disk, of what a node holds: a node that is lost takes nothing with it.
//!
//! The file has no name and goes with the process. Its room is taken when it is made, so that later writes find it. What
//! is written there stays in the system's page cache for a while and goes to the disk in the background; nobody waits.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use tidepool_base::{ByteSize, Error, Result, SqlState};

#[derive(Debug)]
pub(crate) struct Copies {
    file: File,
    /// A write failed: what is there is not what was written last.
    is_broken: AtomicBool,
}

impl Copies {
    /// Room for so many bytes in a file of `folder`. 53100 if there is too little.
    pub fn new(folder: &Path, bytes: u64) -> Result<Copies> {
        let failed = |error: &io::Error| {
            Error::io(format_args!("make a file for copies of remote pages in \"{}\"", folder.display()), error)
        };
        let copies = Copies { file: unnamed(folder).map_err(|error| failed(&error))?, is_broken: false.into() };
        copies.grow(bytes)?;
        Ok(copies)
    }

    /// Takes room for so many bytes in all.
    pub fn grow(&self, bytes: u64) -> Result<()> {
        let failed = |error: &io::Error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Error::new(SqlState::DISK_FULL, format!("no room for copies of {} of remote pages", ByteSize(bytes)))
                    .with_detail("What a memory node holds is kept on this machine's disk, too, in case it is lost.")
                    .with_hint("Free some space in the data folder, or name a smaller size.")
            }
            _ => Error::io(format_args!("reserve {} for copies of remote pages", ByteSize(bytes)), error),
        };
        let Ok(len) = libc::off_t::try_from(bytes) else {
            return Err(failed(&io::Error::from_raw_os_error(libc::EFBIG)));
        };
        // SAFETY: a system call on an open descriptor.
        if unsafe { libc::fallocate(self.file.as_raw_fd(), 0, 0, len) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() == Some(libc::EOPNOTSUPP) {
            // A file system that takes no room beforehand: a write that finds none is noticed then.
            return self.file.set_len(bytes).map_err(|error| failed(&error));
        }
        Err(failed(&error))
    }

    /// Gives back what lies behind so many bytes.
    pub fn shrink(&self, bytes: u64) -> Result<()> {
        self.file.set_len(bytes).map_err(|error| Error::io("shrink the file of copies of remote pages", &error))
    }

    /// False: it is not there, and from now on nothing counts as being there. Allocates nothing.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let written = self.file.write_all_at(bytes, offset).is_ok();
        if !written {
            self.is_broken.store(true, Ordering::SeqCst);
        }
        written
    }

    /// False: it could not be read. Allocates nothing.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        !self.is_broken() && self.file.read_exact_at(into, offset).is_ok()
    }

    pub fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::SeqCst)
    }
}

fn unnamed(folder: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    match options.clone().custom_flags(libc::O_TMPFILE).open(folder) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::ENOENT)) => {
            // A file system without such files: one that loses its name at once.
            let path = folder.join(format!("remote-{}-{:x}.copies", std::process::id(), crate::links::monotonic_ns()));
            let file = options.create_new(true).open(&path)?;
            std::fs::remove_file(&path)?;
            Ok(file)
        }
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_read_as_they_were_written_and_leave_no_file() {
        let folder = std::env::temp_dir().join(format!("tidepool copies {}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let copies = Copies::new(&folder, 1 << 20).unwrap();
        assert!(copies.write(8192, b"page") && copies.write((1 << 20) - 4, b"last"));
        let mut bytes = [0; 4];
        assert!(copies.read(8192, &mut bytes) && &bytes == b"page");
        copies.grow(2 << 20).unwrap();
        assert!(copies.read((2 << 20) - 4, &mut bytes) && bytes == [0; 4]);
        copies.shrink(1 << 20).unwrap();
        assert!(!copies.read(1 << 20, &mut bytes), "behind its end there is nothing");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        std::fs::remove_dir(&folder).unwrap();
        assert!(Copies::new(&folder, 1).is_err());
    }
}
