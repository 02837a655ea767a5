//! What the kernel says of sockets, and does to them.

use std::os::fd::{AsFd, AsRawFd};

/// The processor that the kernel took the socket's last packets on: that of the network card's queue, or, of a client on this machine,
/// the one that the client's thread ran on. None where the kernel does not say.
pub(crate) fn processor(stream: &impl AsRawFd) -> Option<usize> {
    let mut processor: libc::c_int = 0;
    let mut size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes no more than `size` bytes to `processor`, which both outlive the call; `stream` keeps the descriptor open.
    let result = unsafe {
        let value = (&raw mut processor).cast();
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_INCOMING_CPU, value, &raw mut size)
    };
    if result == 0 { usize::try_from(processor).ok() } else { None }
}

/// Ends a socket in every process that has it: a connection's other end is told, and a listener listens no more.
pub(crate) fn shut_down(socket: &impl AsFd) {
    // SAFETY: a system call upon a descriptor that is open as long as it is borrowed. What it fails on has ended already.
    unsafe { libc::shutdown(socket.as_fd().as_raw_fd(), libc::SHUT_RDWR) };
}

/// Bytes that have come in and that nobody has read.
pub(crate) fn unread(socket: &impl AsFd) -> Option<u64> {
    queued(socket, Queue::In)
}

/// A socket's bytes that have come in, or that its other end has not acknowledged.
enum Queue {
    In,
    Out,
}

fn queued(socket: &impl AsFd, queue: Queue) -> Option<u64> {
    let request = match queue {
        Queue::In => libc::FIONREAD,
        Queue::Out => libc::TIOCOUTQ,
    };
    let mut bytes: libc::c_int = 0;
    // SAFETY: both requests write one number; the descriptor is open as long as it is borrowed.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), request, &raw mut bytes) };
    if result == 0 { u64::try_from(bytes).ok() } else { None }
}

/// How far a socket has come: bytes that were read from it, and bytes that were written to it, from its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Positions {
    pub(crate) consumed: u64,
    pub(crate) written: u64,
}

/// Words of `struct tcp_info` that are looked at here: bytes that the other end has acknowledged, and bytes that came in.
const BYTES_ACKED: usize = 15;
const BYTES_RECEIVED: usize = 16;

/// As the kernel counts of a TCP connection, whichever process reads and writes it. `None` of another kind of socket.
pub(crate) fn positions(socket: &impl AsFd) -> Option<Positions> {
    let descriptor = socket.as_fd().as_raw_fd();
    let mut info = [0u64; BYTES_RECEIVED + 1];
    let mut size = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes no more than `size` bytes to `info`, of which any bits are numbers; the descriptor is open.
    let result = unsafe {
        let value = (&raw mut info).cast();
        libc::getsockopt(descriptor, libc::IPPROTO_TCP, libc::TCP_INFO, value, &raw mut size)
    };
    if result != 0 || (size as usize) < size_of_val(&info) {
        return None;
    }
    let (unread, unacknowledged) = (unread(socket)?, queued(socket, Queue::Out)?);
    let consumed = info[BYTES_RECEIVED].checked_sub(unread)?;
    Some(Positions { consumed, written: info[BYTES_ACKED] + unacknowledged })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_kernel_counts_what_was_read_and_written() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let first = positions(&server).unwrap();
        client.write_all(&[1; 3000]).unwrap();
        server.read_exact(&mut [0; 1000]).unwrap();
        server.write_all(&[2; 700]).unwrap();
        let second = positions(&server).unwrap();
        assert_eq!((second.consumed - first.consumed, second.written - first.written), (1000, 700));
        client.read_exact(&mut [0; 700]).unwrap();
        server.read_exact(&mut [0; 2000]).unwrap();
        let third = positions(&server).unwrap();
        assert_eq!((third.consumed - first.consumed, third.written - first.written), (3000, 700));
        assert!(positions(&std::os::unix::net::UnixStream::pair().unwrap().0).is_none());
    }
}
