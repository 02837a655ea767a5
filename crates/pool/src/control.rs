//! The control socket: how hosts on one kernel speak to each other, and pass descriptors.
//!
//! A host that serves listens on a socket of its own, the path of which stands in its text in the books
//! ([`crate::pool::HostText::control_socket`]). A standby connects to its primary's and stays. What is passed are duplicates of
//! listening sockets and of clients' sockets: they live on when the sender is killed, so clients queue at a listener instead of
//! being refused, and a successor can tell those that were connected (`shutdown`) instead of letting them wait for the kernel.
//!
//! * A message arrives whole or not at all, with all its descriptors (`SOCK_SEQPACKET`).
//! * The end of a connection says that the other process has closed it or has ended, its memory included: the kernel closes
//!   descriptors after it has freed memory. So it is evidence of a death, as the lock of its slot is, and as late.
//! * Only processes of the same user are let in, and of these only hosts of the same pool: the first message says which host it
//!   is, and that is compared with the books.

use crate::descriptors::{self, Received};
use crate::pool::Pool;
use crate::words::{Host, Incarnation, Slot};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result, SqlState};

/// Bytes of a message, and descriptors that go with it, at most.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
pub const MESSAGE_DESCRIPTORS_MAX: usize = 64;

/// What a connection begins with: these letters, the pool's identity, and the host's slot and incarnation.
const GREETING: &[u8; 8] = b"TIDECTL1";
const GREETING_BYTES: usize = 8 + 16 + 1 + 4;

/// How long either side waits for the other's greeting.
const GREETING_WITHIN: Duration = Duration::from_secs(2);

/// Where other hosts find this one. The path is removed when this is dropped.
#[derive(Debug)]
pub struct ControlListener {
    socket: OwnedFd,
    path: PathBuf,
    greeting: [u8; GREETING_BYTES],
}

/// A connection between two hosts.
#[derive(Debug)]
pub struct ControlConnection {
    socket: OwnedFd,
    peer: Host,
}

/// What comes over a connection.
#[derive(Debug)]
pub enum Arrival {
    Message {
        bytes: Vec<u8>,
        descriptors: Vec<OwnedFd>,
    },
    /// Nothing came within the time.
    Nothing,
    /// The other process has ended, or wants nothing more.
    End,
}

/// Sockets at which hosts listen of a pool whose first device is, or was, at `path`: beside it, by its name. The file of
/// such a pool may be gone, and what a host has of it is not.
pub fn living_beside(path: &Path) -> Vec<PathBuf> {
    let Ok(path) = std::path::absolute(path) else { return Vec::new() };
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Vec::new();
    };
    let first = format!("{name}.");
    let is_its = |name: &str| name.starts_with(&first) && name.ends_with(".control");
    let beside = std::fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let sockets = beside.filter(|socket| socket.file_name().and_then(|name| name.to_str()).is_some_and(is_its));
    sockets.filter(|socket| descriptors::connect(socket).is_ok()).collect()
}

impl ControlListener {
    /// Listens at a path, for hosts of `pool`. A socket that a process left there is replaced; 55006 where one still listens.
    pub fn bind(path: &Path, pool: &Pool, host: Host) -> Result<ControlListener> {
        let failed = |error: io::Error| Error::io(format_args!("listen at \"{}\"", path.display()), &error);
        let socket = match descriptors::listen(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                match descriptors::connect(path) {
                    Ok(_) => {
                        let message = format!("another process listens at \"{}\"", path.display());
                        return Err(Error::new(SqlState::OBJECT_IN_USE, message));
                    }
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                    Err(error) => return Err(failed(error)),
                }
                std::fs::remove_file(path).map_err(failed)?;
                descriptors::listen(path)
            }
            socket => socket,
        };
        let socket = socket.map_err(failed)?;
        Ok(ControlListener { socket, path: path.to_owned(), greeting: greeting(pool, host) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for another host, or for so long. Whoever is no host of the pool that lives is sent away, and waited on.
    pub fn accept(&self, pool: &Pool, time: Duration) -> Result<Option<ControlConnection>> {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let accepted = descriptors::accept(self.socket.as_fd(), left);
            let accepted = accepted.map_err(|error| Error::io("accept a connection of another host", &error))?;
            let Some(socket) = accepted else { return Ok(None) };
            // Somebody who is no host of the pool does not matter to those that are.
            if let Ok(connection) = self.greet(pool, socket) {
                return Ok(Some(connection));
            }
        }
    }

    fn greet(&self, pool: &Pool, socket: OwnedFd) -> Result<ControlConnection> {
        let peer = check_greeting(pool, &socket)?;
        send(socket.as_fd(), &self.greeting, &[], true)?;
        Ok(ControlConnection { socket, peer })
    }
}

/// Removes the socket that a host left which is known to be dead, unless another process has put its own there.
pub(crate) fn remove_left(path: &Path) {
    let is_refused =
        |path: &Path| descriptors::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    if !is_refused(path) {
        return;
    }
    // Another process may come to listen there since it was looked at: so it is moved, and looked at once more.
    let mut moved = path.as_os_str().to_owned();
    moved.push(format!(".{}", std::process::id()));
    let moved = PathBuf::from(moved);
    if std::fs::rename(path, &moved).is_err() {
        return;
    }
    if !is_refused(&moved) {
        // Fails where a third one is there by now.
        let _ = std::fs::hard_link(&moved, path);
    }
    let _ = std::fs::remove_file(&moved);
}

impl Drop for ControlListener {
    fn drop(&mut self) {
        // It may be gone, or another's by now.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl ControlConnection {
    /// Connects to a host that says in its text where it listens, as `own`. 08006 where nobody does, 55000 where that is not the
    /// host any more.
    pub fn connect(pool: &Pool, own: Host, to: Host) -> Result<ControlConnection> {
        let view = pool.hosts()?.into_iter().find(|view| view.host == to);
        let path = view.and_then(|view| view.text).map(|text| text.control_socket).filter(|path| !path.is_empty());
        let refused = |what: String| Error::new(SqlState::CONNECTION_FAILURE, what);
        let path = path.ok_or_else(|| refused(format!("{to} does not say where it listens")))?;
        let socket = descriptors::connect(Path::new(&path))
            .map_err(|error| refused(format!("could not connect to {to} at \"{path}\": {error}")))?;
        send(socket.as_fd(), &greeting(pool, own), &[], true)?;
        let peer = check_greeting(pool, &socket)?;
        if peer != to {
            let message = format!("at \"{path}\" listens {peer}, and not {to}");
            return Err(Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message));
        }
        Ok(ControlConnection { socket, peer })
    }

    /// The host at the other end.
    pub fn peer(&self) -> Host {
        self.peer
    }

    /// Sends a message with descriptors, of which the other process gets duplicates. 08006 where it has ended, 54000 for more than a
    /// message holds.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        send(self.socket.as_fd(), bytes, descriptors, true).map(drop)
    }

    /// As `send`, for those that must not wait. False: there is no room, as the other process does not read, and nothing was sent.
    pub fn try_send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<bool> {
        send(self.socket.as_fd(), bytes, descriptors, false)
    }

    /// Waits for a message, or for so long.
    pub fn receive(&self, time: Duration) -> Result<Arrival> {
        let received = descriptors::receive(self.socket.as_fd(), MESSAGE_BYTES_MAX, MESSAGE_DESCRIPTORS_MAX, time);
        match received {
            Ok(Received::Nothing) => Ok(Arrival::Nothing),
            Ok(Received::End) => Ok(Arrival::End),
            Ok(Received::Message { bytes, descriptors }) => Ok(Arrival::Message { bytes, descriptors }),
            // What it left unread when it was killed.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(Arrival::End),
            Err(error) => Err(Error::io(format_args!("hear from {}", self.peer), &error)),
        }
    }
}

impl AsFd for ControlConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsFd for ControlListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn greeting(pool: &Pool, host: Host) -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    bytes[..8].copy_from_slice(GREETING);
    bytes[8..24].copy_from_slice(&pool.superblock().identity);
    bytes[24] = host.slot.0;
    bytes[25..].copy_from_slice(&host.incarnation.0.to_le_bytes());
    bytes
}

/// The host that greets. It is of this user's, of this pool, and lives, says the pool.
fn check_greeting(pool: &Pool, socket: &OwnedFd) -> Result<Host> {
    let refused =
        |what: &str| Error::new(SqlState::PROTOCOL_VIOLATION, format!("a control connection was refused: {what}"));
    let failed = |error: io::Error| Error::io("greet another host", &error);
    if descriptors::peer_user(socket.as_fd()).map_err(failed)? != descriptors::own_user() {
        return Err(refused("it is another user's"));
    }
    let received = descriptors::receive(socket.as_fd(), GREETING_BYTES, 0, GREETING_WITHIN).map_err(failed)?;
    let Received::Message { bytes, .. } = received else { return Err(refused("it said nothing")) };
    if bytes.len() != GREETING_BYTES || &bytes[..8] != GREETING {
        return Err(refused("it is of another release"));
    }
    if bytes[8..24] != pool.superblock().identity {
        return Err(refused("it is of another pool"));
    }
    let incarnation = u32::from_le_bytes([bytes[25], bytes[26], bytes[27], bytes[28]]);
    let host = Host { slot: Slot(bytes[24]), incarnation: Incarnation(incarnation) };
    match pool.hosts()?.iter().any(|view| view.host == host) {
        true => Ok(host),
        false => Err(refused("it is no host that lives")),
    }
}

/// False: there is no room, and `waits` says not to wait for it.
fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>], waits: bool) -> Result<bool> {
    if bytes.is_empty() || bytes.len() > MESSAGE_BYTES_MAX || descriptors.len() > MESSAGE_DESCRIPTORS_MAX {
        let message = format!(
            "a control message has 1 to {MESSAGE_BYTES_MAX} bytes and at most {MESSAGE_DESCRIPTORS_MAX} descriptors"
        );
        return Err(Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message));
    }
    let raw: Vec<i32> = descriptors.iter().map(|descriptor| descriptor.as_raw_fd()).collect();
    match descriptors::send(socket, bytes, &raw, waits) {
        Ok(()) => Ok(true),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock if !waits => Ok(false),
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected => {
                Err(Error::new(SqlState::CONNECTION_FAILURE, "the other host has ended"))
            }
            _ => Err(Error::io("speak to another host", &error)),
        },
    }
}
