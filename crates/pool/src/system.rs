//! What is asked of the kernel: clocks, random bytes, which process is which, and whether it has ended. One system call each.

#![allow(unsafe_code, reason = "each block is one system call on values that live")]

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

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

/// The flag of a thread that has begun to end, in the kernel's numbers: it runs no code of its program any more.
const EXITING: u64 = 0x4;

/// Whether process `pid` that started then may still run code of its program. A process that ends does not, long before the kernel has freed its memory.
pub(crate) fn runs(pid: u32, start: u64) -> bool {
    if started(pid) != Some(start) {
        return false;
    }
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return started(pid) == Some(start) };
    // Threads that are ending begin no others. One that is gone meanwhile has ended.
    threads.flatten().any(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let rest = stat.rsplit_once(')').map(|(_, rest)| rest);
        // Behind the name there are its state and five numbers before its flags.
        let flags = rest.and_then(|rest| rest.split_whitespace().nth(6)).map(|flags| flags.parse::<u64>());
        matches!(flags, Some(Ok(flags)) if flags & EXITING == 0)
    })
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
        // SAFETY: plain numbers; no other code has the descriptor that comes back.
        let process = unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0);
            (fd >= 0).then(|| Process(OwnedFd::from_raw_fd(fd as i32)))
        };
        // Looked at once it is held: a number that was given to another process since has another start.
        process.filter(|_| started(pid) == Some(start))
    }

    pub fn kill(&self) -> io::Result<()> {
        self.send(libc::SIGKILL)
    }

    /// Asks it to end.
    pub fn terminate(&self) -> io::Result<()> {
        self.send(libc::SIGTERM)
    }

    fn send(&self, signal: i32) -> io::Result<()> {
        // SAFETY: an open descriptor, and no structure.
        let rc = unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), signal, std::ptr::null::<u8>(), 0)
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

/// What the kernel sets in a robust futex when the thread that holds it ends.
pub(crate) const OWNER_DIED: u32 = libc::FUTEX_OWNER_DIED;

#[repr(C)]
struct Node {
    next: *mut Node,
}

/// What the kernel reads when a thread ends: a ring of nodes, and where the futex of each is from there.
#[repr(C)]
struct Head {
    first: Node,
    futex_offset: libc::c_long,
    pending: *mut Node,
}

/// A robust futex that the calling thread holds: the kernel marks it when the thread ends, before the process's memory is
/// freed. The thread holds no other: it does nothing else.
pub(crate) struct HeldWord<'a> {
    word: &'a AtomicU32,
    /// Kept where it is while the kernel may read it.
    _ring: Box<(Head, Node)>,
    before: *mut libc::c_void,
    /// The kernel's list is a thread's own.
    _stays: PhantomData<*const ()>,
}

impl<'a> HeldWord<'a> {
    /// `None` where the kernel has no such lists.
    pub fn hold(word: &'a AtomicU32) -> Option<HeldWord<'a>> {
        let mut before: *mut libc::c_void = std::ptr::null_mut();
        let mut len: libc::size_t = 0;
        // SAFETY: two live places to fill, of the calling thread's own list.
        let rc = unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut before, &raw mut len) };
        if rc != 0 || len != size_of::<Head>() {
            return None;
        }
        let none = || Node { next: std::ptr::null_mut() };
        let head = Head { first: none(), futex_offset: 0, pending: std::ptr::null_mut() };
        let mut ring = Box::new((head, none()));
        let node: *mut Node = &raw mut ring.1;
        ring.1.next = &raw mut ring.0.first;
        ring.0.first.next = node;
        ring.0.futex_offset = (word.as_ptr().addr() as libc::c_long).wrapping_sub(node.addr() as libc::c_long);
        // SAFETY: a plain call.
        let thread = unsafe { libc::gettid() } as u32;
        // SAFETY: the ring is well formed, and stays where it is until another list is set in its place (`drop`) or the
        // thread has ended. The word is mapped as long as this lives.
        let rc = unsafe { libc::syscall(libc::SYS_set_robust_list, &raw const ring.0, size_of::<Head>()) };
        if rc != 0 {
            return None;
        }
        // After the list, which says nothing about a word that names no thread: whoever finds the thread's number here may
        // sleep, as the kernel will mark it. As if a thread waited, so that the kernel wakes.
        word.store(thread | libc::FUTEX_WAITERS, Ordering::SeqCst);
        Some(HeldWord { word, _ring: ring, before, _stays: PhantomData })
    }
}

impl Drop for HeldWord<'_> {
    fn drop(&mut self) {
        // Before the list goes, for the same reason.
        self.word.store(0, Ordering::SeqCst);
        wake_all(self.word);
        // SAFETY: the list that the thread had, which its runtime keeps until the thread ends.
        unsafe { libc::syscall(libc::SYS_set_robust_list, self.before, size_of::<Head>()) };
    }
}

pub(crate) fn wake_all(word: &AtomicU32) {
    // SAFETY: a live word, which is not changed.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Sleeps until a thread or the kernel wakes those that wait for `word`, if it is still `value`, or for so long. It may wake for nothing.
pub(crate) fn wait(word: &AtomicU32, value: u32, time: Duration) {
    let seconds = libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX);
    let time = libc::timespec { tv_sec: seconds, tv_nsec: time.subsec_nanos().into() };
    // SAFETY: a live word, which is not changed, and a structure that lives.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const time) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_runs_until_it_begins_to_end() {
        let own = std::process::id();
        assert!(runs(own, started(own).unwrap()));
        assert!(!runs(own, started(own).unwrap() + 1), "another life of the number");
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let start = started(child.id()).unwrap();
        assert!(runs(child.id(), start));
        child.kill().unwrap();
        // Nobody has waited for it: it is there, and does nothing.
        while runs(child.id(), start) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!runs(child.id(), start));
    }
}
