//! What the data folder needs beyond the log's seam to files.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result, SqlState};
use tidepool_device::paged;
use tidepool_log::files::{Files, OpenHow};

/// Makes a new file of `parts`, one behind the other, and makes it durable. Replaces a file of that name.
pub(super) fn write(files: &dyn Files, path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let file = match files.create(path, OpenHow::default()) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            files.remove(path)?;
            files.create(path, OpenHow::default())?
        }
        created => created?,
    };
    let mut offset = 0;
    for part in parts {
        let mut rest = *part;
        while !rest.is_empty() {
            // Segments lie in tablespaces, of which some may be paged.
            match paged::write_once(rest, |bytes| file.write_at(offset, bytes)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    offset += count as u64;
                    rest = &rest[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
    file.sync_data()
}

/// A folder is waited for so long. A process that was killed has it until its memory is freed, and one that was just made has its maker's until it
/// begins its own program.
const LOCK_WITHIN: Duration = Duration::from_secs(1);
const LOCK_LOOK: Duration = Duration::from_millis(5);

/// Makes the folder if there is none, and keeps other processes out of it until what is returned is closed. 55006 when
/// another one has it, 55000 when it holds something else.
pub(crate) fn lock_folder(folder: &Path) -> Result<File> {
    let shown = folder.display();
    if !folder.exists() {
        std::fs::create_dir_all(folder)
            .map_err(|error| Error::io(format_args!("create data folder \"{shown}\""), &error))?;
        restrict(folder);
    }
    let entries = std::fs::read_dir(folder)
        .and_then(|entries| entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect())
        .map_err(|error| Error::io(format_args!("read data folder \"{shown}\""), &error))?;
    super::check_ours(folder, entries)?;
    let path = folder.join("LOCK");
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|error| Error::io(format_args!("open file \"{}\"", path.display()), &error))?;
    let deadline = Instant::now() + LOCK_WITHIN;
    let locked = loop {
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(LOCK_LOOK),
            locked => break locked,
        }
    };
    match locked {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => {
            Err(Error::new(SqlState::OBJECT_IN_USE, format!("data folder \"{shown}\" is in use by another process"))
                .with_hint("Connect to that process, or name another folder with --data."))
        }
        Err(TryLockError::Error(error)) => Err(Error::io(format_args!("lock file \"{}\"", path.display()), &error)),
    }
}

pub(super) fn restrict(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    if let Err(error) = std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700)) {
        tracing::warn!("could not restrict access to \"{}\": {error}", folder.display());
    }
}
