use super::{Files, OpenHow, StoredFile};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

/// The operating system's files.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemFiles;

fn options(how: OpenHow) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    if how.direct {
        options.custom_flags(libc::O_DIRECT);
    }
    options
}

impl Files for SystemFiles {
    fn create(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn StoredFile>> {
        // Passwords' verifiers and everybody's data are in these files.
        Ok(Arc::new(SystemFile(options(how).create_new(true).mode(0o600).open(path)?)))
    }

    fn open(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn StoredFile>> {
        Ok(Arc::new(SystemFile(options(how).open(path)?)))
    }

    fn rename(&self, source: &Path, target: &Path) -> io::Result<()> {
        std::fs::rename(source, target)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn create_folder(&self, path: &Path) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            made => made,
        }
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        // A name that is not UTF-8 is none of ours.
        std::fs::read_dir(path)?
            .filter_map(|entry| entry.map(|entry| entry.file_name().into_string().ok()).transpose())
            .collect()
    }
}

#[derive(Debug)]
struct SystemFile(File);

impl StoredFile for SystemFile {
    fn len(&self) -> io::Result<u64> {
        self.0.metadata().map(|metadata| metadata.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let bytes = libc::off_t::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        loop {
            // Not `fallocate`, which file systems may refuse: this one then writes zeroes to what has no blocks.
            // SAFETY: a system call on a descriptor that is open; it touches no memory.
            match unsafe { libc::posix_fallocate(self.0.as_raw_fd(), 0, bytes) } {
                0 => return Ok(()),
                libc::EINTR => {}
                error => return Err(io::Error::from_raw_os_error(error)),
            }
        }
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(bytes, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        // Whoever writes from a tablespace may give paged memory, which the kernel cannot read by itself.
        tidepool_device::paged::write_once(bytes, |bytes| self.0.write_at(bytes, offset))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}
