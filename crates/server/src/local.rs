//! A socket in the file system, for clients on this machine.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tidepool_base::{Error, Result, SqlState};
use tokio::net::{UnixListener, UnixStream};

/// The longest path of a socket, bytes: `sun_path` has one more, for the zero.
const PATH_BYTES_MAX: usize = 107;

/// A listening socket. Its file goes when it is dropped.
pub(crate) struct LocalListener {
    listener: UnixListener,
    place: LocalPlace,
}

/// The place of a socket, which is this process's. What is there goes when it is dropped.
pub(crate) struct LocalPlace {
    path: PathBuf,
    lock_path: PathBuf,
    /// Locked: whoever finds a socket's file beside one that is not finds what a server left that was killed.
    _lock: File,
    is_left: bool,
}

impl LocalPlace {
    /// Another process has what is there.
    pub(crate) fn leave(mut self) {
        self.is_left = true;
    }

    /// `None` while it is another process's.
    pub(crate) fn take(path: &Path) -> Result<Option<LocalPlace>> {
        let failed = |error: &std::io::Error| Error::io(format_args!("listen on \"{}\"", path.display()), error);
        let mut lock_path = path.as_os_str().to_owned();
        lock_path.push(".lock");
        let lock_path = PathBuf::from(lock_path);
        let mut lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(|error| Error::io(format_args!("open \"{}\"", lock_path.display()), &error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(failed(&error)),
        }
        // For people; what counts is the lock.
        let _ = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
        Ok(Some(LocalPlace { path: path.to_owned(), lock_path, _lock: lock, is_left: false }))
    }
}

impl LocalListener {
    /// Listens where libpq looks for the server of `port` when it is told `folder` for a host. 55006 when another server listens there.
    pub(crate) fn bind(folder: &Path, port: u16) -> Result<LocalListener> {
        let path = folder.join(format!(".s.PGSQL.{port}"));
        if path.as_os_str().len() > PATH_BYTES_MAX {
            return Err(Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("the path of a socket is too long: \"{}\"", path.display()),
            )
            .with_detail(format!("It may have {PATH_BYTES_MAX} bytes.")));
        }
        let failed = |error: &std::io::Error| Error::io(format_args!("listen on \"{}\"", path.display()), error);
        let Some(place) = LocalPlace::take(&path)? else {
            return Err(Error::new(
                SqlState::OBJECT_IN_USE,
                format!("could not listen on \"{}\": another server does", path.display()),
            )
            .with_hint("Stop it, or choose another folder with --socket-directory, or another port with --listen."));
        };
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
        opened.map(|()| LocalListener { listener, place })
    }
}

fn is_socket(file: &std::fs::Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_socket(&file.file_type())
}

impl LocalListener {
    pub(crate) fn path(&self) -> &Path {
        &self.place.path
    }

    pub(crate) fn socket(&self) -> &UnixListener {
        &self.listener
    }

    pub(crate) async fn accept(&self) -> std::io::Result<UnixStream> {
        Ok(self.listener.accept().await?.0)
    }
}

impl Drop for LocalPlace {
    fn drop(&mut self) {
        if self.is_left {
            return;
        }
        // While the lock is held, so that it is nobody else's. What cannot be removed the next server takes for left behind.
        if std::fs::symlink_metadata(&self.path).is_ok_and(|found| is_socket(&found)) {
            let _ = std::fs::remove_file(&self.path);
        }
        let _ = std::fs::remove_file(&self.lock_path);
    }
}
