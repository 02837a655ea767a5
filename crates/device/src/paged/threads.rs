//! Threads that resolve faults, where the faulting thread cannot.

use super::space::Space;
use super::storage::SystemBox;
use super::table::Touch;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::panic::RefUnwindSafe;
use std::thread::JoinHandle;
use std::{io, ptr};
use tidepool_base::{Error, Result};

/// Threads that resolve what others fault on.
#[derive(Debug)]
pub(super) struct HandlerThreads {
    /// Readable when they shall end.
    end: OwnedFd,
    threads: Vec<JoinHandle<()>>,
}

/// The handles are touched on drop alone.
impl RefUnwindSafe for HandlerThreads {}

impl HandlerThreads {
    pub fn start(space: &SystemBox<Space>) -> Result<HandlerThreads> {
        let failed = |error: &io::Error| Error::io("start threads for page faults", error);
        // SAFETY: a system call that makes a descriptor.
        let end = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if end < 0 {
            return Err(failed(&io::Error::last_os_error()));
        }
        // SAFETY: a descriptor that was just made.
        let mut all = HandlerThreads { end: unsafe { OwnedFd::from_raw_fd(end) }, threads: Vec::new() };
        // As many faults can wait for the network at a time.
        let count = std::thread::available_parallelism().map_or(2, |count| count.get().max(2));
        for _ in 0..count {
            let address = space.as_ptr().expose_provenance();
            let thread = std::thread::Builder::new().name("page faults".into()).spawn(move || {
                // SAFETY: the threads end before the space is dropped.
                let space: &Space = unsafe { &*ptr::with_exposed_provenance(address) };
                handle_faults(space, end);
            });
            all.threads.push(thread.map_err(|error| failed(&error))?);
        }
        Ok(all)
    }
}

impl Drop for HandlerThreads {
    fn drop(&mut self) {
        let one = 1u64;
        // SAFETY: a live number of the length that is given.
        unsafe { libc::write(self.end.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
        for thread in self.threads.drain(..) {
            // It panics in none of its steps.
            let _ = thread.join();
        }
    }
}

fn handle_faults(space: &Space, end: RawFd) {
    let mut polled = [space.userfault.as_raw_fd(), end].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    loop {
        // SAFETY: live structures, as many as said.
        unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, -1) };
        if polled[1].revents != 0 {
            return;
        }
        while let Some(fault) = space.userfault.read() {
            let touch = if fault.write { Touch::Write } else { Touch::Read };
            space.resolve(fault.address, touch);
        }
    }
}
