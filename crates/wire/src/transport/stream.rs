//! TCP and unix sockets.

use super::{Closer, Halves, Incoming, Outgoing, PATIENCE, STALL, Transport};
use crate::clock::SystemClock;
use crate::fault::Fault;
use crate::frame::HEAD_BYTES;
use std::fmt;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result, SqlState};

/// How long a receiver sleeps at most before it looks at its deadline.
const TICK: Duration = Duration::from_millis(100);

/// Bytes that are taken from the system at once where a frame begins. Small frames come several at a time; of a large
/// one so much is copied twice.
const BUFFER_BYTES: usize = 4 << 10;

/// A link that is slower is taken for one that is broken.
const SLOWEST_BYTES_PER_SECOND: u64 = 64 << 10;

/// Pieces that one call hands to the system.
const PIECES_MAX: usize = 16;

/// Sockets by which bytes come in order, of whatever family.
pub(crate) trait Socket: Send + Sync + Sized + fmt::Debug + 'static {
    const IS_LOCAL: bool;

    fn set_up(&self) -> io::Result<()>;
    fn read_timeout(&self, timeout: Duration) -> io::Result<()>;
    fn write_timeout(&self, timeout: Duration) -> io::Result<()>;
    fn read(&self, bytes: &mut [u8]) -> io::Result<usize>;
    fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize>;
    fn shut_down(&self) -> io::Result<()>;
}

macro_rules! socket {
    ($stream:ty, $local:literal, $set_up:expr) => {
        impl Socket for $stream {
            const IS_LOCAL: bool = $local;

            fn set_up(&self) -> io::Result<()> {
                let set_up: fn(&$stream) -> io::Result<()> = $set_up;
                set_up(self)
            }

            fn read_timeout(&self, timeout: Duration) -> io::Result<()> {
                self.set_read_timeout(Some(timeout))
            }

            fn write_timeout(&self, timeout: Duration) -> io::Result<()> {
                self.set_write_timeout(Some(timeout))
            }

            fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
                let mut stream: &$stream = self;
                Read::read(&mut stream, bytes)
            }

            fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
                let mut stream: &$stream = self;
                stream.write_vectored(pieces)
            }

            fn shut_down(&self) -> io::Result<()> {
                self.shutdown(Shutdown::Both)
            }
        }

        impl Transport for $stream {
            fn split(self: Box<Self>) -> Result<Halves> {
                split(*self).map_err(|error| Error::io("set up a socket", &error))
            }
        }
    };
}

socket!(TcpStream, false, |stream| stream.set_nodelay(true));
socket!(UnixStream, true, |_| Ok(()));

fn split<S: Socket>(socket: S) -> io::Result<Halves> {
    socket.set_up()?;
    socket.read_timeout(TICK)?;
    socket.write_timeout(PATIENCE)?;
    let socket = Arc::new(socket);
    Ok(Halves {
        outgoing: Box::new(Sender(socket.clone())),
        incoming: Box::new(Receiver {
            socket: socket.clone(),
            buffer: Box::new([0; BUFFER_BYTES]),
            from: 0,
            to: 0,
            timeout: TICK,
        }),
        closer: Arc::new(SocketCloser(socket)),
        clock: Arc::new(SystemClock::new()),
        is_local: S::IS_LOCAL,
    })
}

#[derive(Debug)]
struct Sender<S>(Arc<S>);

impl<S: Socket> Outgoing for Sender<S> {
    fn send(&mut self, frame: &[&[u8]], sent: &mut usize) -> Result<bool, Fault> {
        loop {
            let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
            let (mut count, mut skipped) = (0, *sent);
            for piece in frame {
                if skipped >= piece.len() {
                    skipped -= piece.len();
                } else if count < PIECES_MAX {
                    pieces[count] = IoSlice::new(&piece[skipped..]);
                    (count, skipped) = (count + 1, 0);
                }
            }
            if count == 0 {
                return Ok(true);
            }
            match self.0.write(&pieces[..count]) {
                Ok(0) => return Err(Fault::Closed("the peer closed it")),
                Ok(count) => *sent += count,
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => return Ok(false),
                    _ => return Err(Fault::from(&error)),
                },
            }
        }
    }
}

#[derive(Debug)]
struct Receiver<S> {
    socket: Arc<S>,
    buffer: Box<[u8; BUFFER_BYTES]>,
    /// Bytes of the buffer that came and were not taken.
    from: usize,
    to: usize,
    /// What the socket has been told last.
    timeout: Duration,
}

impl<S: Socket> Receiver<S> {
    fn set_timeout(&mut self, timeout: Duration) -> Result<(), Fault> {
        if self.timeout != timeout {
            self.socket.read_timeout(timeout).map_err(|error| Fault::from(&error))?;
            self.timeout = timeout;
        }
        Ok(())
    }

    /// `None`: nothing came for the socket's timeout.
    fn read(socket: &S, bytes: &mut [u8]) -> Result<Option<usize>, Fault> {
        loop {
            match socket.read(bytes) {
                Ok(0) => return Err(Fault::Closed("the peer closed it")),
                Ok(count) => return Ok(Some(count)),
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => return Ok(None),
                    _ => return Err(Fault::from(&error)),
                },
            }
        }
    }

    fn take(&mut self, bytes: &mut [u8]) -> usize {
        let count = bytes.len().min(self.to - self.from);
        bytes[..count].copy_from_slice(&self.buffer[self.from..self.from + count]);
        self.from += count;
        count
    }

    /// Reads until `done` bytes of `bytes`, of which so many are there, are all of them.
    fn fill(&mut self, bytes: &mut [u8], mut done: usize) -> Result<(), Fault> {
        let patience = STALL + Duration::from_secs(bytes.len() as u64 / SLOWEST_BYTES_PER_SECOND);
        let mut since: Option<Instant> = None;
        while done < bytes.len() {
            done += self.take(&mut bytes[done..]);
            let left = &mut bytes[done..];
            if left.is_empty() {
                break;
            }
            // Not renewed by what comes: a peer that sends a byte now and then would keep this thread for ever.
            if since.get_or_insert_with(Instant::now).elapsed() > patience {
                return Err(Fault::Closed("the rest of a frame does not come"));
            }
            // Nothing may come for the socket's timeout.
            if left.len() < BUFFER_BYTES {
                let came = Self::read(&self.socket, &mut self.buffer[..])?;
                (self.from, self.to) = (0, came.unwrap_or(0));
            } else {
                done += Self::read(&self.socket, left)?.unwrap_or(0);
            }
        }
        Ok(())
    }
}

impl<S: Socket> Incoming for Receiver<S> {
    fn begin(&mut self, head: &mut [u8; HEAD_BYTES], timeout: Duration) -> Result<bool, Fault> {
        if self.from == self.to {
            let begun = Instant::now();
            loop {
                let left = timeout.saturating_sub(begun.elapsed());
                // The system takes zero for no timeout at all.
                self.set_timeout(left.clamp(Duration::from_micros(50), TICK))?;
                if let Some(count) = Self::read(&self.socket, &mut self.buffer[..])? {
                    (self.from, self.to) = (0, count);
                    break;
                }
                if left <= TICK && begun.elapsed() >= timeout {
                    return Ok(false);
                }
            }
        }
        self.fill(head, 0)?;
        Ok(true)
    }

    fn receive(&mut self, bytes: &mut [u8]) -> Result<(), Fault> {
        self.fill(bytes, 0)
    }
}

#[derive(Debug)]
struct SocketCloser<S>(Arc<S>);

impl<S: Socket> Closer for SocketCloser<S> {
    fn close(&self) {
        // It may be over already.
        let _ = self.0.shut_down();
    }
}

/// Connects by TCP, to the first of the name's addresses that answers within `timeout`.
pub fn connect_tcp(address: &str, timeout: Duration) -> Result<TcpStream> {
    let failed = |error: &dyn fmt::Display| {
        Error::new(SqlState::CONNECTION_FAILURE, format!("could not connect to {address}: {error}"))
    };
    let mut last = None;
    for address in address.to_socket_addrs().map_err(|error| failed(&error))? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    Err(last.map_or_else(|| failed(&"it has no address"), |error| failed(&error)))
}

/// Connects to a unix socket.
pub fn connect_unix(path: &Path) -> Result<UnixStream> {
    UnixStream::connect(path).map_err(|error| {
        Error::new(SqlState::CONNECTION_FAILURE, format!("could not connect to \"{}\": {error}", path.display()))
    })
}

/// Where peers connect.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    /// With where it lies; the caller removes it.
    Unix(UnixListener, PathBuf),
}

impl Listener {
    pub fn tcp(address: &str) -> Result<Listener> {
        let listener =
            TcpListener::bind(address).map_err(|error| Error::io(format_args!("listen on {address}"), &error))?;
        Ok(Listener::Tcp(listener))
    }

    /// Who may connect is who may write to the socket's file: keep it in a folder of its owner's.
    pub fn unix(path: &Path) -> Result<Listener> {
        let listener = UnixListener::bind(path)
            .map_err(|error| Error::io(format_args!("listen on \"{}\"", path.display()), &error))?;
        Ok(Listener::Unix(listener, path.to_owned()))
    }

    /// The address of a TCP listener: the port that the system chose, if it was 0.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix(..) => None,
        }
    }

    pub fn accept(&self) -> io::Result<Box<dyn Transport>> {
        match self {
            Listener::Tcp(listener) => Ok(Box::new(listener.accept()?.0)),
            Listener::Unix(listener, _) => Ok(Box::new(listener.accept()?.0)),
        }
    }

    /// Something that makes a thread which waits in [`accept`](Listener::accept) go on.
    pub(crate) fn knock(&self) -> io::Result<Knock> {
        match self {
            Listener::Tcp(listener) => {
                let mut address = listener.local_addr()?;
                if address.ip().is_unspecified() {
                    address.set_ip(match address {
                        SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                        SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
                    });
                }
                Ok(Knock::Tcp(address))
            }
            Listener::Unix(_, path) => Ok(Knock::Unix(path.clone())),
        }
    }
}

/// Connects to a listener, and says nothing.
#[derive(Clone, Debug)]
pub(crate) enum Knock {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Knock {
    pub fn knock(&self) {
        // If no connection comes about, no thread waits for one.
        match self {
            Knock::Tcp(address) => drop(TcpStream::connect_timeout(address, Duration::from_secs(1))),
            Knock::Unix(path) => drop(UnixStream::connect(path)),
        }
    }
}
