//! The clocks of emulated links, which all processes on this machine share.
//!
//! A device has one bandwidth, whoever uses it: two servers over one pool, or two halves of a device, take it from each
//! other. So the clock of a link that a profile names is no variable of the process but a word in a small file of shared
//! memory, `/dev/shm/tidepool-links-UID`, which all processes of a user map. Links without a name belong to their tablespace.
//!
//! Invariants:
//!
//! * A slot's name changes by compare-and-swap only, from the exact value that was read, so two processes that look for
//!   one name at once find one slot.
//! * A clock is a number and a hint. Whatever another process stores there, a charge waits for [`AHEAD_NS_MAX`] at most,
//!   and the clock is right again after it, so one that takes a slot over harms nobody.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// Nanoseconds since the machine started: one clock for all processes. Usable in a signal handler.
pub(crate) fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a structure to fill. The clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Links that the file has room for. More than anybody names; beyond that, the one that was idle for longest goes.
const SLOTS: usize = 1024;

/// A line of its own, as busy links are written by all their users.
#[derive(Debug)]
#[repr(C, align(64))]
struct Slot {
    /// A hash of the link's name. Zero: free.
    name: AtomicU64,
    /// When the link is free, nanoseconds of `monotonic_ns`.
    busy_until: AtomicU64,
}

/// A clock that is further ahead than this is wrong. No transfer takes as long.
const AHEAD_NS_MAX: u64 = 60_000_000_000;

const TABLE_BYTES: usize = SLOTS * size_of::<Slot>();

/// When a link is free, nanoseconds of a clock that all its users have.
#[derive(Debug)]
pub(crate) enum LinkClock {
    Own(AtomicU64),
    Shared(&'static AtomicU64),
}

impl LinkClock {
    /// Of a link that has no name.
    pub fn own() -> Arc<LinkClock> {
        Arc::new(LinkClock::Own(AtomicU64::new(0)))
    }

    /// Of the link of that name: the same for all processes of this user on this machine; where there is no shared memory
    /// to be had, for all tablespaces of this process, for as long as one has it.
    pub fn named(name: &str) -> Arc<LinkClock> {
        static CLOCKS: Mutex<BTreeMap<String, Weak<LinkClock>>> = Mutex::new(BTreeMap::new());
        let mut clocks = CLOCKS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        clocks.retain(|_, clock| clock.strong_count() > 0);
        if let Some(clock) = clocks.get(name).and_then(Weak::upgrade) {
            return clock;
        }
        let clock = match table() {
            Some(slots) => Arc::new(LinkClock::Shared(&slot(slots, hash(name)).busy_until)),
            None => LinkClock::own(),
        };
        clocks.insert(name.to_owned(), Arc::downgrade(&clock));
        clock
    }

    /// Takes the link for `transfer_ns`, no earlier than `earliest`. Returns when the transfer begins.
    pub fn take(&self, earliest: u64, transfer_ns: u64) -> u64 {
        let free_at = |busy: u64| {
            if busy > earliest.saturating_add(AHEAD_NS_MAX) { earliest } else { busy.max(earliest) }
        };
        // Relaxed: the clock is a number, and orders no other memory.
        let busy = self
            .word()
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |busy| Some(free_at(busy).saturating_add(transfer_ns)))
            .unwrap_or_else(|busy| busy);
        free_at(busy)
    }

    #[inline]
    fn word(&self) -> &AtomicU64 {
        match self {
            LinkClock::Own(word) => word,
            LinkClock::Shared(word) => word,
        }
    }
}

/// FNV-1a, 64 bits, never zero. Two names of one hash would share a link.
fn hash(name: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, step).max(1)
}

/// The slot of that name, which is taken if there is none.
fn slot(slots: &[Slot], name: u64) -> &Slot {
    let start = name as usize % slots.len();
    loop {
        let mut idlest: Option<(&Slot, u64, u64)> = None;
        for slot in slots[start..].iter().chain(&slots[..start]) {
            let found = slot.name.load(Ordering::Acquire);
            if found == name {
                return slot;
            }
            if found == 0 {
                // Where another process was faster, it was with the same name, or the next slot is tried.
                match slot.name.compare_exchange(0, name, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return slot,
                    Err(taken) if taken == name => return slot,
                    Err(_) => continue,
                }
            }
            let busy_until = slot.busy_until.load(Ordering::Relaxed);
            if idlest.is_none_or(|(_, _, least)| busy_until < least) {
                idlest = Some((slot, found, busy_until));
            }
        }
        // All are taken.
        if let Some((slot, found, _)) = idlest
            && slot.name.compare_exchange(found, name, Ordering::AcqRel, Ordering::Acquire).is_ok()
        {
            return slot;
        }
    }
}

/// The table of this user, mapped once and for as long as the process lives. `None` where it cannot be had, which is said once.
fn table() -> Option<&'static [Slot]> {
    static TABLE: OnceLock<Option<&'static [Slot]>> = OnceLock::new();
    *TABLE.get_or_init(|| {
        let path = path();
        match map(&path) {
            Ok(slots) => Some(slots),
            Err(error) => {
                eprintln!(
                    "warning: emulated links are shared with no other process, as \"{}\" cannot be used: {error}",
                    path.display()
                );
                None
            }
        }
    })
}

fn path() -> PathBuf {
    // SAFETY: reads the process's user, and cannot fail.
    let user = unsafe { libc::geteuid() };
    PathBuf::from(format!("/dev/shm/tidepool-links-{user}"))
}

fn map(path: &Path) -> io::Result<&'static [Slot]> {
    let open = |flags: i32| {
        File::options()
            .read(true)
            .write(true)
            .create(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | flags)
            .open(path)
    };
    let file = open(libc::O_CLOEXEC)?;
    let metadata = file.metadata()?;
    // SAFETY: as in `path`.
    if !metadata.is_file() || metadata.uid() != unsafe { libc::geteuid() } {
        return Err(io::Error::other("it is not a file of this user's"));
    }
    // Zeroes are a table without names. Two processes that do this at once give it the same length.
    if metadata.len() < TABLE_BYTES as u64 {
        file.set_len(TABLE_BYTES as u64)?;
    }
    // SAFETY: a new mapping of a file that is at least that long: nobody of this user's makes it shorter.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            TABLE_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: mapped just now, page-aligned, never unmapped, and any bits are a `Slot`; it is changed by atomics only.
    Ok(unsafe { std::slice::from_raw_parts(address.cast::<Slot>(), SLOTS) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(count: usize) -> Vec<Slot> {
        (0..count).map(|_| Slot { name: AtomicU64::new(0), busy_until: AtomicU64::new(0) }).collect()
    }

    #[test]
    fn a_name_has_one_slot_and_the_idlest_goes() {
        let slots = slots(4);
        let take = |name: u64, busy_until: u64| {
            let slot = slot(&slots, name);
            slot.busy_until.store(busy_until, Ordering::Relaxed);
            slot as *const Slot
        };
        // 1 and 5 begin at the same place.
        let places = [take(1, 400), take(5, 100), take(2, 300), take(3, u64::MAX)];
        assert!(places.iter().enumerate().all(|(index, place)| !places[..index].contains(place)));
        assert_eq!(take(1, 400), places[0]);
        assert_eq!(take(5, 100), places[1]);
        assert_eq!(take(9, 500), places[1], "the one that was idle for longest");
        for _ in 0..3 {
            take(11, 2_000);
            take(12, 2_000);
        }
        assert_eq!(take(3, u64::MAX), places[3]);
    }

    #[test]
    fn whatever_a_clock_says_is_survived() {
        let clock = LinkClock::Own(AtomicU64::new(u64::MAX - 5));
        assert_eq!(clock.take(100, 1_000), 100);
        assert_eq!(clock.take(200, 1_000), 1_100);
    }

    #[test]
    fn threads_that_look_for_one_name_find_one_slot() {
        for round in 0..200u64 {
            let slots = slots(8);
            let found: Vec<usize> = std::thread::scope(|scope| {
                let threads: Vec<_> =
                    (0..3).map(|_| scope.spawn(|| std::ptr::from_ref(slot(&slots, 40 + round)) as usize)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(found.iter().all(|place| *place == found[0]));
        }
    }

    /// This test is its own second process: there it takes the link whose name it is given, once.
    #[test]
    fn processes_share_a_link() {
        const LINK: &str = "TIDEPOOL_TEST_LINK";
        const EARLIEST: u64 = 1_000_000_000;
        const TRANSFER_NS: u64 = 1_000_000;
        if let Ok(name) = std::env::var(LINK) {
            LinkClock::named(&name).take(EARLIEST, TRANSFER_NS);
            return;
        }
        let [shared, other] = ["shared", "other"].map(|name| format!("{name} of test {}", std::process::id()));
        assert_eq!(LinkClock::named(&shared).take(EARLIEST, TRANSFER_NS), EARLIEST);
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "links::tests::processes_share_a_link"])
            .env(LINK, &shared)
            .stdout(std::process::Stdio::null())
            .status();
        assert!(status.unwrap().success());
        assert_eq!(LinkClock::named(&shared).take(EARLIEST, TRANSFER_NS), EARLIEST + 2 * TRANSFER_NS);
        assert_eq!(LinkClock::named(&other).take(EARLIEST, TRANSFER_NS), EARLIEST);
    }
}
