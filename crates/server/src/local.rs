//! A socket in the file system, for clients on this machine.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tidepool_base::{Error, Result, SqlState};
use tokio::net::UnixListener;

/// The longest path of a socket, bytes: `sun_path` has one more, for the zero.
const PATH_BYTES_MAX: usize = 107;

/// A listening socket. Its file goes when it is dropped.
pub(crate) struct LocalListener {
    pub(crate) listener: UnixListener,
    path: PathBuf,
    lock_path: PathBuf,
    /// Locked: whoever finds a socket's file beside one that is not finds what a server left that was killed.
    _lock: File,
}

impl LocalListener {
    /// Listens where libpq looks for the server of `port` when it is told `folder` for a host. 55006 when another server listens there.
    pub(crate) fn bind(folder: &Path, port: u16) -> Result<LocalListener> {
        let path = folder.join(format!(".s.PGSQL.{port}"));
        let lock_path = folder.join(format!(".s.PGSQL.{port}.lock"));
        if path.as_os_str().len() > PATH_BYTES_MAX {
            return Err(Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("the path of a socket is too long: \"{}\"", path.display()),
            )
            .with_detail(format!("It may have {PATH_BYTES_MAX} bytes.")));
        }
        let failed = |error: &std::io::Error| Error::io(format_args!("listen on \"{}\"", path.display()), error);
        let mut lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(|error| Error::io(format_args!("open \"{}\"", lock_path.display()), &error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::new(
                    SqlState::OBJECT_IN_USE,
                    format!("could not listen on \"{}\": another server does", path.display()),
                )
                .with_hint(
                    "Stop it, or choose another folder with --socket-directory, or another port with --listen.",
                ));
            }
            Err(TryLockError::Error(error)) => return Err(failed(&error)),
        }
        // For people; what counts is the lock.
        let _ = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
        match std::fs::symlink_metadata(&path) {
            Ok(found) if !is_socket(&found) => {
                return Err(Error::new(
                    SqlState::DUPLICATE_FILE,
                    format!("could not listen on \"{}\": there is a file that is no socket", path.display()),
                ));
            }
            Ok(_) => std::fs::remove_file(&path).map_err(|error| failed(&error))?,
            Err(_) => {}
        }
        let listener = UnixListener::bind(&path).map_err(|error| failed(&error))?;
        // As PostgreSQL's: who may connect is said by roles, and by who may look into the folder.
        let opened = std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777));
        let opened = opened.map_err(|error| failed(&error));
        let listener = LocalListener { listener, path, lock_path, _lock: lock };
        opened.map(|()| listener)
    }
}

fn is_socket(file: &std::fs::Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_socket(&file.file_type())
}

impl LocalListener {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        // While the lock is held, so that it is nobody else's. What cannot be removed the next server takes for left behind.
        let _ = std::fs::remove_file(&self.path);
        let _ = std::fs::remove_file(&self.lock_path);
    }
}
