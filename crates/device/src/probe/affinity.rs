//! Which processors measure.

use std::io;
use tidepool_base::{Error, Result};

/// Processors that this process may run on, by number.
pub fn processors() -> Result<Vec<usize>> {
    // SAFETY: a set of bits, for which zeroes are valid.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: a set of the size that is given; 0 is the calling thread.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } != 0 {
        return Err(Error::io("list the processors", &io::Error::last_os_error()));
    }
    // SAFETY: numbers below the size of the set.
    Ok((0..libc::CPU_SETSIZE as usize).filter(|processor| unsafe { libc::CPU_ISSET(*processor, &set) }).collect())
}

/// Keeps the calling thread on one processor. Where that is refused the thread may move: figures scatter a little more.
pub(super) fn pin(processor: usize) {
    if processor >= libc::CPU_SETSIZE as usize {
        return;
    }
    // SAFETY: as above.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: a number below the size of the set.
    unsafe { libc::CPU_SET(processor, &mut set) };
    // SAFETY: a set of the size that is given; 0 is the calling thread.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
}
