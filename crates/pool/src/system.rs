//! What is asked of the kernel: clocks, random bytes, who a process is, and whether it has ended. One system call each.

#![allow(unsafe_code, reason = "each block is one system call on values that live")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The machine's monotonic clock, in microseconds.
pub(crate) fn monotonic_us() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live structure to fill. The clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

/// Microseconds since 1970.
pub(crate) fn wall_us() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |elapsed| elapsed.as_micros() as u64)
}

pub(crate) fn random_identity() -> io::Result<[u8; 16]> {
    let mut identity = [0u8; 16];
    // SAFETY: a buffer of the length that is given.
    let count = unsafe { libc::getrandom(identity.as_mut_ptr().cast(), identity.len(), 0) };
    if count == identity.len() as isize { Ok(identity) } else { Err(io::Error::last_os_error()) }
}

/// What tells this start of the machine from others.
pub(crate) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// The calling thread comes before others, where the process may ask for that.
pub(crate) fn come_first() {
    // SAFETY: plain numbers. Without the right to it, nothing changes.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, libc::gettid() as libc::id_t, -20) };
}

/// When process `pid` started, in the kernel's ticks, if it exists.
pub(crate) fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may hold anything, there are 19 fields before it.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Which namespace of processes this one is in.
pub(crate) fn process_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino())
}

/// A process, whatever becomes of its number.
pub(crate) struct Process(OwnedFd);

impl Process {
    /// Process `pid`, if it is there and started then.
    pub fn open(pid: u32, start: u64) -> Option<Process> {
        // SAFETY: plain numbers; the descriptor that comes back is nobody else's.
        let process = unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0);
            (fd >= 0).then(|| Process(OwnedFd::from_raw_fd(fd as i32)))
        };
        // Looked at once it is held: a number that was given to another process since has another start.
        process.filter(|_| started(pid) == Some(start))
    }

    pub fn kill(&self) -> io::Result<()> {
        // SAFETY: an open descriptor, and no structure.
        let rc = unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), libc::SIGKILL, std::ptr::null::<u8>(), 0)
        };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Waits until it has ended, memory and all, or for so long.
    pub fn has_ended(&self, wait_ms: i32) -> bool {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live structure.
        unsafe { libc::poll(&raw mut poll, 1, wait_ms) == 1 }
    }
}
