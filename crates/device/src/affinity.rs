//! Which processors threads run on.

use std::io;
use tidepool_base::{Error, Result, SqlState};

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

/// Keeps the calling thread on these processors, and threads that it starts. None is all that the process may run on, and changes nothing.
/// 22023 for a processor that there is not.
pub fn confine(processors: &[usize]) -> Result<()> {
    if processors.is_empty() {
        return Ok(());
    }
    // SAFETY: as above.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &processor in processors {
        if processor >= libc::CPU_SETSIZE as usize {
            let error = format!("there is no processor {processor}");
            return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, error));
        }
        // SAFETY: a number below the size of the set.
        unsafe { libc::CPU_SET(processor, &mut set) };
    }
    // SAFETY: a set of the size that is given; 0 is the calling thread.
    if unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) } != 0 {
        let error = io::Error::last_os_error();
        return Err(match error.raw_os_error() {
            Some(libc::EINVAL) => {
                let listed = processors.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
                Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("no processor of {listed} can be had"))
            }
            _ => Error::io("confine a thread to processors", &error),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_kept_where_it_is_told() {
        let all = processors().unwrap();
        let last = *all.last().unwrap();
        std::thread::spawn(move || {
            confine(&[last]).unwrap();
            assert_eq!(processors().unwrap(), [last]);
            confine(&[]).unwrap();
            assert_eq!(processors().unwrap(), [last], "no processors are no change");
            let error = confine(&[usize::MAX]).unwrap_err();
            assert_eq!(error.code(), SqlState::INVALID_PARAMETER_VALUE);
            let error = confine(&[libc::CPU_SETSIZE as usize - 1]).unwrap_err();
            assert_eq!(error.code(), SqlState::INVALID_PARAMETER_VALUE);
        })
        .join()
        .unwrap();
        assert_eq!(processors().unwrap(), all, "other threads stay where they are");
    }
}
