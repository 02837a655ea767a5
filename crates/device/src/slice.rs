//! How long a thread runs before another gets its turn.
//!
//! The scheduler (EEVDF: Stoica and Abdel-Wahab, *Earliest Eligible Virtual Deadline First*, 1995; Linux from 6.6 on) serves the thread
//! whose turn would be over first. Who asks for short turns comes sooner once he has something to do, and gets no more of the
//! processor for it: what a thread wants that mostly waits, and that many others wait for.

use std::io;
use std::time::Duration;
use tidepool_base::{Error, Result};

/// The shortest that Linux grants.
const SHORT: Duration = Duration::from_micros(100);

/// Linux's `struct sched_attr`, as far as version 0 of it goes.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// Of the ordinary policies: nanoseconds of a turn (from 6.12 on; before, nothing).
    runtime: u64,
    deadline: u64,
    period: u64,
}

const BYTES: u32 = size_of::<Attributes>() as u32;

fn attributes() -> Result<Attributes> {
    let mut attributes = Attributes::default();
    // SAFETY: the kernel writes no more than the size that it is given, of plain numbers; thread 0 is the calling one.
    if unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, BYTES, 0) } != 0 {
        return Err(Error::io("read how a thread is scheduled", &io::Error::last_os_error()));
    }
    Ok(attributes)
}

/// Asks for short turns for the calling thread. Changes nothing for one that is not scheduled as threads ordinarily are.
pub fn take_short_turns() -> Result<()> {
    let mut attributes = attributes()?;
    if attributes.policy != libc::SCHED_OTHER as u32 {
        return Ok(());
    }
    (attributes.size, attributes.runtime) = (BYTES, SHORT.as_nanos() as u64);
    // SAFETY: the structure is as large as it says; thread 0 is the calling one.
    if unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } != 0 {
        return Err(Error::io("ask for short turns of a thread", &io::Error::last_os_error()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_short_turns_and_its_priority_still() {
        let own = attributes().unwrap();
        std::thread::spawn(move || {
            take_short_turns().unwrap();
            let after = attributes().unwrap();
            assert_eq!((after.policy, after.nice), (own.policy, own.nice));
            // A kernel that knows nothing of it says nothing of it either.
            assert!(own.runtime == 0 || after.runtime == SHORT.as_nanos() as u64, "{}", after.runtime);
        })
        .join()
        .unwrap();
        assert_eq!(attributes().unwrap().runtime, own.runtime, "other threads have theirs");
    }
}
