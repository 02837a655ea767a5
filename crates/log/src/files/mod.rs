//! The file operations that whatever must survive needs: a seam, so that tests can lose, tear, refuse and fill up.
//!
//! What holds of every implementation, and no more may be relied on:
//!
//! * What was written is there after a crash of the machine once [`StoredFile::sync_data`] has returned, with the length that
//!   it needs. Before, any subset of its sectors of 512 bytes may be.
//! * A name that was made, changed or removed is so after a crash once [`Files::sync_folder`] of its folder has returned.
//!   Before, each such change alone may be lost.
//! * After a failed sync nobody knows what is there, and another sync tells nothing: the system may have dropped what it
//!   could not write, and forgotten about it.

mod simulated;
mod system;

pub use simulated::{Fault, Operation, SECTOR_BYTES, SimulatedFiles};
pub use system::SystemFiles;

use std::fmt::Debug;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenHow {
    /// Beside the system's cache (`O_DIRECT`): positions, lengths and addresses are multiples of 4,096.
    pub direct: bool,
}

/// Files and folders by path.
pub trait Files: Send + Sync + Debug {
    /// Makes a file, for its owner's eyes only, and opens it for reading and writing. One of that name is in the way.
    fn create(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn StoredFile>>;

    /// Opens a file for reading and writing.
    fn open(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn StoredFile>>;

    /// Replaces a file of the name `target`.
    fn rename(&self, source: &Path, target: &Path) -> io::Result<()>;

    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes a folder, if there is none of that name.
    fn create_folder(&self, path: &Path) -> io::Result<()>;

    /// Makes a folder's entries durable.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;

    /// Names of the entries of a folder, in any order.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;

    /// All of a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let file = self.open(path, OpenHow::default())?;
        let len = usize::try_from(file.len()?).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        bytes.resize(len, 0);
        let mut filled = 0;
        while filled < len {
            match file.read_at(filled as u64, &mut bytes[filled..]) {
                // Cut by somebody else meanwhile.
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }
}

/// An open file. Several threads may use it at once.
pub trait StoredFile: Send + Sync + Debug {
    fn len(&self) -> io::Result<u64>;

    fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|len| len == 0)
    }

    /// Cuts the file off, or extends it by zeroes that take no room.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Reserves room for the file's first `len` bytes, so that writing there does not fail for the want of it, and extends
    /// the file to that length. What was there stays. `StorageFull` when there is no room.
    fn allocate(&self, len: u64) -> io::Result<()>;

    /// Reads some bytes, of which there may be fewer than asked for; none past the end. May be interrupted.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize>;

    /// Writes some bytes, of which there may be fewer than given. May be interrupted.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize>;

    /// Makes what was written durable.
    fn sync_data(&self) -> io::Result<()>;
}

impl dyn StoredFile + '_ {
    /// Writes all of `bytes`.
    pub fn write_all_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match self.write_at(offset + done as u64, &bytes[done..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads until `bytes` is full or the file ends. Returns the bytes read.
    pub fn read_full_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < bytes.len() {
            match self.read_at(offset + done as u64, &mut bytes[done..]) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}
