//! The file operations that the data folder needs: a seam, so that tests can fill the disk.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use tidepool_device::paged;

pub(crate) trait Files: Send + Sync + std::fmt::Debug {
    /// Makes a new file of `parts`, one behind the other, and makes it durable. Replaces a file of that name.
    fn write(&self, path: &Path, parts: &[&[u8]]) -> io::Result<()>;
    fn rename(&self, source: &Path, target: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes a folder's entries durable.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
}

#[derive(Debug)]
pub(crate) struct SystemFiles;

impl Files for SystemFiles {
    fn write(&self, path: &Path, parts: &[&[u8]]) -> io::Result<()> {
        // Passwords' verifiers and everybody's data are in these files.
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        for part in parts {
            // Segments lie in tablespaces, of which some may be paged.
            paged::write_all(&mut file, part)?;
        }
        file.sync_all()
    }

    fn rename(&self, source: &Path, target: &Path) -> io::Result<()> {
        std::fs::rename(source, target)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }
}
