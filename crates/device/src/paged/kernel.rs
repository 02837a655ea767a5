//! userfaultfd(2): page faults of a range of memory, resolved by the process itself. Structures and numbers are those of
//! `linux/userfaultfd.h`.

use super::PAGE_BYTES;
use crate::stop;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use tidepool_base::{Error, Result, SqlState};

/// Who resolves faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handling {
    /// The thread that faults, in a signal handler: `UFFD_FEATURE_SIGBUS`.
    FaultingThread,
    /// Threads made for it, for kernels without that feature. Slower by a change of threads each way.
    HandlerThreads,
}

impl Handling {
    pub fn name(self) -> &'static str {
        match self {
            Handling::FaultingThread => "faulting thread",
            Handling::HandlerThreads => "handler threads",
        }
    }
}

const API: u64 = 0xAA;
const USER_MODE_ONLY: libc::c_int = 1;
const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
const FEATURE_SIGBUS: u64 = 1 << 7;
const REGISTER_MODE_MISSING: u64 = 1 << 0;
const REGISTER_MODE_WP: u64 = 1 << 1;
const COPY_MODE_WP: u64 = 1 << 1;
const WRITEPROTECT_MODE_WP: u64 = 1 << 0;
const EVENT_PAGEFAULT: u8 = 0x12;
const PAGEFAULT_FLAG_WRITE: u64 = 1 << 0;
const PAGEFAULT_FLAG_WP: u64 = 1 << 1;

/// `_IOC(direction, 0xAA, number, size)`.
const fn request(direction: u64, number: u64, size: usize) -> libc::c_ulong {
    direction << 30 | (size as u64) << 16 | API << 8 | number
}

const READ: u64 = 2;
const READ_WRITE: u64 = 3;
const IOC_NEW: libc::c_ulong = request(0, 0, 0);
const IOC_API: libc::c_ulong = request(READ_WRITE, 0x3F, size_of::<Api>());
const IOC_REGISTER: libc::c_ulong = request(READ_WRITE, 0x00, size_of::<Register>());
const IOC_WAKE: libc::c_ulong = request(READ, 0x02, size_of::<Range>());
const IOC_COPY: libc::c_ulong = request(READ_WRITE, 0x03, size_of::<Copy>());
const IOC_WRITEPROTECT: libc::c_ulong = request(READ_WRITE, 0x06, size_of::<WriteProtect>());

#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    start: u64,
    len: u64,
}

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct Copy {
    to: u64,
    from: u64,
    len: u64,
    mode: u64,
    copied: i64,
}

#[repr(C)]
struct WriteProtect {
    range: Range,
    mode: u64,
}

#[repr(C)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u64,
}

const _: () = assert!(size_of::<Message>() == 32);

/// A fault that waits for its resolution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub address: usize,
    pub write: bool,
}

/// Tries before a page for which the kernel finds no memory ends the process, a millisecond apart.
const MEMORY_TRIES: u32 = 5_000;

#[derive(Debug)]
pub(crate) struct Userfault(OwnedFd);

impl Userfault {
    /// 42501 where the process may not, 0A000 where the kernel cannot.
    pub fn open(handling: Handling) -> Result<Userfault> {
        let file = descriptor(handling).map_err(|error| refused(&error))?;
        let mut api = Api { api: API, features: FEATURE_PAGEFAULT_FLAG_WP, ioctls: 0 };
        if handling == Handling::FaultingThread {
            api.features |= FEATURE_SIGBUS;
        }
        ioctl(&file, IOC_API, &mut api).map_err(|error| lacks(handling, &error))?;
        Ok(Userfault(file))
    }

    /// Has faults of missing and of write-protected pages come here. The range is anonymous private memory.
    pub fn register(&self, start: usize, len: usize) -> io::Result<()> {
        let mut register =
            Register { range: range(start, len), mode: REGISTER_MODE_MISSING | REGISTER_MODE_WP, ioctls: 0 };
        ioctl(&self.0, IOC_REGISTER, &mut register)?;
        const NEEDED: u64 = 1 << 0x03 | 1 << 0x06;
        if register.ioctls & NEEDED == NEEDED { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EINVAL)) }
    }

    /// Maps the page at `to`, which is missing, with the content of the one at `from`.
    pub fn copy(&self, to: usize, from: *const u8, writable: bool) {
        self.copy_run(to, from, 1, writable);
    }

    /// Maps `pages` pages from `to` on, which are all missing, with the content of those from `from` on.
    pub fn copy_run(&self, to: usize, from: *const u8, pages: usize, writable: bool) {
        let (mut tries, mut done, len) = (0, 0, pages * PAGE_BYTES);
        loop {
            let mode = if writable { 0 } else { COPY_MODE_WP };
            let (to, from, left) = ((to + done) as u64, (from.addr() + done) as u64, (len - done) as u64);
            let mut copy = Copy { to, from, len: left, mode, copied: 0 };
            match raw_ioctl(self.0.as_raw_fd(), IOC_COPY, &mut copy) {
                0 => return,
                libc::EAGAIN | libc::EINTR => {
                    // Some pages of several may be there.
                    done += copy.copied.max(0) as usize;
                    if done == len {
                        return;
                    }
                }
                libc::ENOMEM if tries < MEMORY_TRIES => {
                    tries += 1;
                    pause_ms(1);
                }
                errno => stop(format_args!("a page could not be mapped (error {errno})")),
            }
        }
    }

    pub fn write_protect(&self, start: usize, len: usize, protect: bool) {
        let mode = if protect { WRITEPROTECT_MODE_WP } else { 0 };
        loop {
            let mut request = WriteProtect { range: range(start, len), mode };
            match raw_ioctl(self.0.as_raw_fd(), IOC_WRITEPROTECT, &mut request) {
                0 => return,
                libc::EAGAIN | libc::EINTR => {}
                errno => stop(format_args!("a page's protection could not be changed (error {errno})")),
            }
        }
    }

    /// Lets threads that wait for a page look again.
    pub fn wake(&self, start: usize) {
        let mut range = range(start, PAGE_BYTES);
        match raw_ioctl(self.0.as_raw_fd(), IOC_WAKE, &mut range) {
            0 => {}
            errno => stop(format_args!("threads that wait for a page could not be woken (error {errno})")),
        }
    }

    /// The next fault, if there is one.
    pub fn read(&self) -> Option<Fault> {
        let mut message = Message { event: 0, reserved: [0; 7], flags: 0, address: 0, thread: 0 };
        // SAFETY: a descriptor and a structure of the length that is given.
        let read = unsafe { libc::read(self.0.as_raw_fd(), (&raw mut message).cast(), size_of::<Message>()) };
        (read == size_of::<Message>() as isize && message.event == EVENT_PAGEFAULT).then_some(Fault {
            address: message.address as usize,
            write: message.flags & (PAGEFAULT_FLAG_WRITE | PAGEFAULT_FLAG_WP) != 0,
        })
    }

    pub fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

fn range(start: usize, len: usize) -> Range {
    Range { start: start as u64, len: len as u64 }
}

/// A descriptor by system call, or from the device where only its permissions allow it. For faults in the kernel's own
/// accesses, which need no signal handler to be safe, more privilege is needed than for a process's own.
fn descriptor(handling: Handling) -> io::Result<OwnedFd> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    let own = match handling {
        // The signal is never sent for the kernel's own accesses: the flag gives nothing away.
        Handling::FaultingThread => flags | USER_MODE_ONLY,
        Handling::HandlerThreads => flags,
    };
    let mut result = userfaultfd(own);
    if result.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL)) {
        // Before Linux 5.11 there is no such flag.
        result = userfaultfd(flags);
    }
    match result {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) && Path::new("/dev/userfaultfd").exists() => {
            let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/userfaultfd");
            // SAFETY: a request without an argument on an open descriptor.
            let fd = device.map_or(-1, |device| unsafe { libc::ioctl(device.as_raw_fd(), IOC_NEW, flags) });
            // SAFETY: a descriptor that was just made.
            if fd < 0 { Err(error) } else { Ok(unsafe { OwnedFd::from_raw_fd(fd) }) }
        }
        result => result,
    }
}

fn userfaultfd(flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: a system call that makes a descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    // SAFETY: a descriptor that was just made.
    if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }) }
}

pub(super) fn refused(error: &io::Error) -> Error {
    let (code, hint) = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => (
            SqlState::INSUFFICIENT_PRIVILEGE,
            "The process needs userfaultfd(2): permission for /dev/userfaultfd, CAP_SYS_PTRACE or \
             vm.unprivileged_userfaultfd = 1; and in a container a seccomp profile that lets the call through.",
        ),
        Some(libc::ENOSYS) => (
            SqlState::FEATURE_NOT_SUPPORTED,
            "The kernel must be built with CONFIG_USERFAULTFD, and a container's seccomp profile must let the call \
             through.",
        ),
        _ => (SqlState::IO_ERROR, "Paged tablespaces use userfaultfd(2)."),
    };
    Error::new(code, format!("paged memory is not available: userfaultfd: {error}")).with_hint(hint)
}

fn lacks(handling: Handling, error: &io::Error) -> Error {
    Error::unsupported(format!("paged memory is not available: userfaultfd: {error}"))
        .with_detail(format!("Write protection and handling of faults by the {} are needed.", handling.name()))
        .with_hint("Linux 5.7 or later has both on x86-64.")
}

fn ioctl<T>(file: &OwnedFd, request: libc::c_ulong, argument: &mut T) -> io::Result<()> {
    match raw_ioctl(file.as_raw_fd(), request, argument) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Zero, or the error's number.
fn raw_ioctl<T>(fd: RawFd, request: libc::c_ulong, argument: &mut T) -> i32 {
    // SAFETY: every request of this module is called with the structure whose size is part of its number. What it does to
    // memory is up to the caller's addresses, which lie in a window of this process that nobody sees but by faulting.
    if unsafe { libc::ioctl(fd, request, std::ptr::from_mut(argument)) } == 0 {
        0
    } else {
        // SAFETY: the calling thread's own.
        unsafe { *libc::__errno_location() }
    }
}

fn pause_ms(ms: i64) {
    let pause = libc::timespec { tv_sec: 0, tv_nsec: ms * 1_000_000 };
    // SAFETY: a live structure; how much was left does not matter.
    unsafe { libc::nanosleep(&pause, std::ptr::null_mut()) };
}
