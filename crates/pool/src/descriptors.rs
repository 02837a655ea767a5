//! Sockets of the kernel's that keep messages apart and carry descriptors. One system call each.

#![allow(unsafe_code, reason = "each block is one system call on values that live")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

#[derive(Debug)]
pub(crate) enum Received {
    Message {
        bytes: Vec<u8>,
        descriptors: Vec<OwnedFd>,
    },
    /// Nothing within the time.
    Nothing,
    End,
}

fn checked(rc: i32) -> io::Result<i32> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: plain numbers; no other code has the descriptor that comes back.
    unsafe {
        let fd = checked(libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

fn address(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    let bytes = path.as_os_str().as_bytes();
    let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; 108] };
    if bytes.is_empty() || bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a socket's path has 1 to 107 bytes"));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok((address, size_of::<libc::sockaddr_un>() as libc::socklen_t))
}

/// A socket that listens at a path, for this user alone.
pub(crate) fn listen(path: &Path) -> io::Result<OwnedFd> {
    use std::os::unix::fs::PermissionsExt;
    let (socket, (address, len)) = (socket()?, address(path)?);
    // SAFETY: a live address of that length.
    unsafe { checked(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len))? };
    // Before anybody can connect, which takes `listen`.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    // SAFETY: an open descriptor.
    unsafe { checked(libc::listen(socket.as_raw_fd(), BACKLOG))? };
    Ok(socket)
}

pub(crate) fn connect(path: &Path) -> io::Result<OwnedFd> {
    let (socket, (address, len)) = (socket()?, address(path)?);
    // SAFETY: a live address of that length.
    unsafe { checked(libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len))? };
    Ok(socket)
}

/// Waits until there is something to read, or the end. False: nothing within the time.
fn wait(socket: BorrowedFd<'_>, time: Duration) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let time_ms = i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one live structure.
    match unsafe { checked(libc::poll(&raw mut poll, 1, time_ms)) } {
        Ok(count) => Ok(count > 0),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(error) => Err(error),
    }
}

/// `None`: nobody within the time.
pub(crate) fn accept(listener: BorrowedFd<'_>, time: Duration) -> io::Result<Option<OwnedFd>> {
    if !wait(listener, time)? {
        return Ok(None);
    }
    // SAFETY: an open descriptor, and no address is asked for; no other code has the descriptor that comes back.
    unsafe {
        let fd = libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC);
        Ok(Some(OwnedFd::from_raw_fd(checked(fd)?)))
    }
}

/// Whose the process at the other end is.
pub(crate) fn peer_user(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: a live structure of that length to fill.
    unsafe {
        checked(libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        ))?;
    }
    Ok(peer.uid)
}

pub(crate) fn own_user() -> u32 {
    // SAFETY: asks for a number, and cannot fail.
    unsafe { libc::geteuid() }
}

/// Room for control messages with so many descriptors, aligned as the kernel wants it.
fn control_room(descriptors: usize) -> Vec<MaybeUninit<u64>> {
    // SAFETY: computes a size.
    let bytes = unsafe { libc::CMSG_SPACE((descriptors * size_of::<RawFd>()) as u32) } as usize;
    vec![MaybeUninit::zeroed(); bytes.div_ceil(size_of::<u64>())]
}

/// Sends a message whole. `waits`: until there is room for it; without, that there is none is an error (`WouldBlock`).
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[RawFd], waits: bool) -> io::Result<()> {
    let flags = libc::MSG_NOSIGNAL | if waits { 0 } else { libc::MSG_DONTWAIT };
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = control_room(descriptors.len());
    // SAFETY: zeroes are a message without anything.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    if !descriptors.is_empty() {
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = control.len() * size_of::<u64>();
        let data_bytes = size_of_val(descriptors) as u32;
        // SAFETY: there is room for one header with so much behind it, which `control_room` has computed.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(data_bytes) as usize;
            std::ptr::copy_nonoverlapping(
                descriptors.as_ptr().cast::<u8>(),
                libc::CMSG_DATA(header),
                data_bytes as usize,
            );
            message.msg_controllen = libc::CMSG_SPACE(data_bytes) as usize;
        }
    }
    loop {
        // SAFETY: the message and what it refers to live; the kernel reads it only.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
        match sent {
            // A message of a packet socket goes whole.
            0.. => return Ok(()),
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// Waits for a message of at most so many bytes and descriptors, or for so long. A message that has more is an error, and its
/// descriptors are closed.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    bytes_max: usize,
    descriptors_max: usize,
    time: Duration,
) -> io::Result<Received> {
    if !wait(socket, time)? {
        return Ok(Received::Nothing);
    }
    let mut bytes = vec![0; bytes_max];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = control_room(descriptors_max);
    // SAFETY: zeroes are a message without anything.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = control.len() * size_of::<u64>();
    let received = loop {
        // SAFETY: the message and what it refers to live, and are written by nobody else.
        let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        match received {
            0.. => break received as usize,
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    };
    let descriptors = descriptors_of(&message);
    if message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 || descriptors.len() > descriptors_max {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is larger than any"));
    }
    if received == 0 {
        return Ok(Received::End);
    }
    bytes.truncate(received);
    Ok(Received::Message { bytes, descriptors })
}

/// Takes the descriptors that came with a message.
fn descriptors_of(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut descriptors = Vec::new();
    // SAFETY: the kernel has filled the control messages in, which lie in live memory; each header says how much is behind it.
    // The descriptors were made for this process, and no other code has them.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                let len = (*header).cmsg_len - libc::CMSG_LEN(0) as usize;
                for place in 0..len / size_of::<RawFd>() {
                    descriptors.push(OwnedFd::from_raw_fd(data.add(place).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    descriptors
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    const LONG: Duration = Duration::from_secs(60);

    fn pair() -> (tempfile::TempDir, OwnedFd, OwnedFd) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = listen(&path).unwrap();
        let one = connect(&path).unwrap();
        let other = accept(listener.as_fd(), LONG).unwrap().unwrap();
        (folder, one, other)
    }

    #[test]
    fn messages_keep_their_bounds_and_carry_descriptors() {
        let (_folder, one, other) = pair();
        let (mut near, far) = UnixStream::pair().unwrap();
        send(one.as_fd(), b"first", &[], true).unwrap();
        send(one.as_fd(), b"second", &[far.as_raw_fd(), far.as_raw_fd()], true).unwrap();
        drop(far);
        let Received::Message { bytes, descriptors } = receive(other.as_fd(), 100, 4, LONG).unwrap() else { panic!() };
        assert_eq!((bytes.as_slice(), descriptors.len()), (&b"first"[..], 0));
        let Received::Message { bytes, mut descriptors } = receive(other.as_fd(), 100, 4, LONG).unwrap() else {
            panic!()
        };
        assert_eq!((bytes.as_slice(), descriptors.len()), (&b"second"[..], 2));
        let mut far = UnixStream::from(descriptors.pop().unwrap());
        far.write_all(b"through").unwrap();
        drop((far, descriptors));
        let mut text = String::new();
        near.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
        assert!(matches!(receive(other.as_fd(), 100, 4, Duration::ZERO).unwrap(), Received::Nothing));
        drop(one);
        assert!(matches!(receive(other.as_fd(), 100, 4, LONG).unwrap(), Received::End));
        assert_eq!(peer_user(other.as_fd()).unwrap(), own_user());
    }

    #[test]
    fn what_is_too_large_is_an_error_and_its_descriptors_are_closed() {
        let (_folder, one, other) = pair();
        let (mut near, far) = UnixStream::pair().unwrap();
        send(one.as_fd(), &[7; 101], &[], false).unwrap();
        assert_eq!(receive(other.as_fd(), 100, 4, LONG).unwrap_err().kind(), io::ErrorKind::InvalidData);
        send(one.as_fd(), b"x", &[far.as_raw_fd(); 5], false).unwrap();
        drop(far);
        assert_eq!(receive(other.as_fd(), 100, 4, LONG).unwrap_err().kind(), io::ErrorKind::InvalidData);
        // Nobody has the other end: all five were closed.
        assert_eq!(near.read(&mut [0]).unwrap(), 0);
        assert!(listen(Path::new(&"x".repeat(108))).is_err());
    }
}
