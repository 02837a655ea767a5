//! Where a connection's packets come in.

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
