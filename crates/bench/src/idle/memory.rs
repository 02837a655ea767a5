//! What memory a process has, as the kernel tells, in the pool and outside it.

use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tidepool_base::{Error, Result};

/// Resident bytes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Resident {
    /// Of nobody else: heap, stacks, the allocator's own books.
    pub anonymous: u64,
    /// Of files: the program's code, which all processes of the program share.
    pub code: u64,
    /// Of the pool, as far as this process has touched it.
    pub pool: u64,
}

/// From `/proc/PID/smaps`. The pool is the file at a path.
pub(crate) fn resident(pid: u32, pool: &str) -> Result<Resident> {
    let path = format!("/proc/{pid}/smaps");
    let text = std::fs::read_to_string(&path).map_err(|error| Error::io(format!("read \"{path}\""), &error))?;
    let mut by_file: BTreeMap<&str, u64> = BTreeMap::new();
    let mut file = "";
    for line in text.lines() {
        let mut fields = line.split_whitespace();
        let first = fields.next().unwrap_or_default();
        if let Some((from, to)) = first.split_once('-').filter(|_| !first.ends_with(':'))
            && [from, to].iter().all(|number| u64::from_str_radix(number, 16).is_ok())
        {
            file = fields.nth(4).unwrap_or_default();
        } else if first == "Rss:" {
            let kilobytes: u64 = fields.next().and_then(|number| number.parse().ok()).unwrap_or(0);
            *by_file.entry(file).or_default() += kilobytes << 10;
        }
    }
    let mut resident = Resident::default();
    for (file, bytes) in by_file {
        match file {
            _ if file == pool => resident.pool += bytes,
            "" => resident.anonymous += bytes,
            _ if file.starts_with('[') => resident.anonymous += bytes,
            _ => resident.code += bytes,
        }
    }
    Ok(resident)
}

/// Looks every few milliseconds at what a process has outside shared memory, and keeps the most.
pub(crate) struct Peak {
    is_over: Arc<AtomicBool>,
    most: Arc<[AtomicU64; 3]>,
    thread: JoinHandle<()>,
}

const LOOK: Duration = Duration::from_millis(5);

impl Peak {
    pub fn watch(pid: u32) -> Result<Peak> {
        let (is_over, most) = (Arc::new(AtomicBool::new(false)), Arc::new([const { AtomicU64::new(0) }; 3]));
        let (until, kept) = (Arc::clone(&is_over), Arc::clone(&most));
        let look = move || {
            while !until.load(Ordering::Relaxed) {
                let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
                let bytes = |key: &str| {
                    let line = text.lines().find_map(|line| line.strip_prefix(key));
                    let kilobytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
                    kilobytes.unwrap_or(0) << 10
                };
                let (anonymous, code) = (bytes("RssAnon:"), bytes("RssFile:"));
                for (most, now) in kept.iter().zip([anonymous, code, anonymous + code]) {
                    most.fetch_max(now, Ordering::Relaxed);
                }
                std::thread::sleep(LOOK);
            }
        };
        let thread = std::thread::Builder::new().name("memory".to_owned()).spawn(look);
        Ok(Peak { is_over, most, thread: thread.map_err(|error| Error::io("start a thread", &error))? })
    }

    /// The most of anonymous memory, of code, and of both at once.
    pub fn end(self) -> [u64; 3] {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
        self.most.each_ref().map(|most| most.load(Ordering::Relaxed))
    }
}
