use super::*;
use crate::{HUGE_PAGE_BYTES, Mapping, mapping};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

const MIB: u64 = 1 << 20;

/// `None`, with the reason printed, where the kernel refuses userfaultfd(2).
fn paged(size: u64, cache: u64, profile: Option<&str>) -> Option<Paged> {
    let profile = profile.map(|name| Profile::preset(name).unwrap());
    accepted(Paged::open(&Location::Anon, size, 4 * size, cache, profile.as_ref()))
}

fn with_threads(size: u64, cache: u64) -> Option<Paged> {
    let pages = |bytes: u64| bytes as usize / PAGE_BYTES;
    let (handling, most) = (Handling::HandlerThreads, 4 * size as usize);
    let far = Far { remote: &Location::Anon, profile: None, node: None };
    accepted(Paged::new(far, size as usize, most, pages(cache), handling, Mechanism::NONE))
}

fn accepted(result: Result<Paged>) -> Option<Paged> {
    match result {
        Ok(paged) => Some(paged),
        Err(error)
            if matches!(error.code(), SqlState::INSUFFICIENT_PRIVILEGE | SqlState::FEATURE_NOT_SUPPORTED)
                && error.message().contains("userfaultfd") =>
        {
            tidepool_base::cannot_test(&error);
            None
        }
        Err(error) => panic!("{error:?}"),
    }
}

fn slot(paged: &Paged, offset: usize) -> &AtomicU64 {
    assert!(offset.is_multiple_of(8) && offset < paged.len());
    // SAFETY: aligned memory of the window, which lives as long as `paged`.
    unsafe { AtomicU64::from_ptr(paged.base().as_ptr().add(offset).cast()) }
}

fn bytes_of(paged: &Paged, range: Range<usize>) -> &[u8] {
    // SAFETY: memory of the window, which nobody writes meanwhile.
    unsafe { std::slice::from_raw_parts(paged.base().as_ptr().add(range.start), range.len()) }
}

fn pages(paged: &Paged) -> Range<usize> {
    0..paged.len() / PAGE_BYTES
}

/// Writes every page, reads all of them, changes every third, reads all again.
fn fill_and_check(paged: &Paged) {
    for page in pages(paged) {
        slot(paged, page * PAGE_BYTES + 8).store(page as u64, Ordering::Relaxed);
        assert!(paged.local_bytes() <= paged.cache_bytes());
    }
    for round in 0..2 {
        for page in pages(paged) {
            let expected = if round == 1 && page.is_multiple_of(3) { page as u64 + 7 } else { page as u64 };
            assert_eq!(slot(paged, page * PAGE_BYTES + 8).load(Ordering::Relaxed), expected);
            if page.is_multiple_of(3) && round == 0 {
                slot(paged, page * PAGE_BYTES + 8).fetch_add(7, Ordering::Relaxed);
            }
            assert!(paged.local_bytes() <= paged.cache_bytes());
        }
    }
}

#[test]
fn pages_keep_their_content_in_a_cache_an_eighth_of_their_size() {
    let Some(paged) = paged(8 * MIB, MIB, None) else { return };
    fill_and_check(&paged);
    let counters = paged.counters();
    assert_eq!(counters.zeroed, 2048);
    // Each round misses all pages, as it comes in the order in which they left.
    assert_eq!(counters.fetched, 2 * 2048);
    assert_eq!(counters.evicted, counters.zeroed + counters.fetched - paged.local_bytes() / PAGE_BYTES as u64);
    // Those of the first pass, and a third of those of the second.
    assert_eq!(counters.written_back, 2048 + 683);
    assert_eq!(counters.unprotected, 683);
    assert_eq!(counters.soft, 0);
    assert_eq!((counters.modelled_ns, counters.waited_ns), (0, 0));
    assert!(paged.mechanism().fault_ns > 0 && counters.mechanism_ns > 0);
    assert_eq!(paged.places(0), Places { local: MIB, remote: 7 * MIB });
    assert!(paged.resident_bytes() >= 8 * MIB);
}

#[test]
fn what_fits_the_cache_faults_once() {
    let Some(paged) = paged(4 * MIB, 4 * MIB, None) else { return };
    fill_and_check(&paged);
    let counters = paged.counters();
    assert_eq!((counters.faults, counters.zeroed, counters.evicted), (1024, 1024, 0));
}

#[test]
fn handler_threads_do_the_same_and_serve_the_kernel_too() {
    let Some(paged) = with_threads(8 * MIB, MIB) else { return };
    fill_and_check(&paged);
    // A fault is counted when whoever waited for it may be long gone on.
    while paged.counters().faults < 3 * 2048 + 683 {
        std::thread::yield_now();
    }
    let counters = paged.counters();
    assert_eq!((counters.zeroed, counters.fetched), (2048, 2 * 2048));
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    // Page 0 left long ago: the kernel waits for it as anybody does.
    writer.write_all(bytes_of(&paged, 0..PAGE_BYTES)).unwrap();
    let mut read = [1; PAGE_BYTES];
    reader.read_exact(&mut read).unwrap();
    assert_eq!(u64::from_ne_bytes(read[8..16].try_into().unwrap()), 7);
}

#[test]
fn released_pages_read_as_zeroes_and_count_nowhere() {
    let Some(paged) = paged(8 * MIB, MIB, None) else { return };
    for page in pages(&paged) {
        slot(&paged, page * PAGE_BYTES).store(1, Ordering::Relaxed);
    }
    paged.set_owner(0..4 * MIB as usize, 1);
    // Half a page stays.
    paged.release(PAGE_BYTES / 2..paged.len() - PAGE_BYTES / 2);
    assert_eq!(paged.places(0).local, PAGE_BYTES as u64);
    assert_eq!(paged.places(1).remote, PAGE_BYTES as u64);
    assert_eq!(slot(&paged, 0).load(Ordering::Relaxed), 1);
    assert!(pages(&paged).skip(1).take(2046).all(|page| slot(&paged, page * PAGE_BYTES).load(Ordering::Relaxed) == 0));
    assert_eq!(slot(&paged, 2047 * PAGE_BYTES).load(Ordering::Relaxed), 1);
}

#[test]
fn the_cache_changes_its_size() {
    let Some(paged) = paged(8 * MIB, 8 * MIB, None) else { return };
    fill_and_check(&paged);
    paged.set_cache_bytes(2 * MIB);
    assert_eq!((paged.cache_bytes(), paged.local_bytes()), (2 * MIB, 2 * MIB));
    assert_eq!(paged.counters().evicted, 1536);
    paged.set_cache_bytes(64 * MIB);
    assert_eq!(paged.cache_bytes(), 8 * MIB);
    for page in pages(&paged) {
        let expected = if page.is_multiple_of(3) { page as u64 + 7 } else { page as u64 };
        assert_eq!(slot(&paged, page * PAGE_BYTES + 8).load(Ordering::Relaxed), expected);
    }
    assert_eq!(paged.local_bytes(), 8 * MIB);
}

#[test]
fn it_grows_and_shrinks_at_its_end() {
    for paged in [paged(4 * MIB, MIB, None), with_threads(4 * MIB, MIB)].into_iter().flatten() {
        fill_and_check(&paged);
        assert_eq!(paged.reserved_bytes(), 16 << 20);
        paged.grow(16 << 20).unwrap();
        assert_eq!((paged.len(), paged.cache_bytes()), (16 << 20, MIB));
        for page in 1024..4096 {
            let slot = slot(&paged, page * PAGE_BYTES);
            assert_eq!(slot.load(Ordering::Relaxed), 0);
            slot.store(page as u64, Ordering::Relaxed);
        }
        paged.set_owner(0..paged.len(), 3);
        assert!((1024..4096).all(|page| slot(&paged, page * PAGE_BYTES).load(Ordering::Relaxed) == page as u64));
        assert_eq!(paged.places(3), Places { local: MIB, remote: 15 * MIB });
        // What is behind the new end is gone, here and remotely; what comes there later is zeroed.
        // SAFETY: used by this test alone.
        unsafe { paged.shrink((3 << 20) - 1).unwrap() };
        assert_eq!((paged.len(), paged.local_bytes() + paged.places(3).remote), (3 << 20, 3 << 20));
        assert!(paged.resident_bytes() <= 4 * MIB);
        paged.grow(5 << 20).unwrap();
        assert!((0..256).all(|page| slot(&paged, (768 + page) * PAGE_BYTES + 8).load(Ordering::Relaxed) == 0));
        for page in 0..768 {
            let expected = if page % 3 == 0 { page as u64 + 7 } else { page as u64 };
            assert_eq!(slot(&paged, page * PAGE_BYTES + 8).load(Ordering::Relaxed), expected);
        }
        // The cache is no larger than what it is for.
        paged.set_cache_bytes(4 * MIB);
        // SAFETY: as above.
        unsafe { paged.shrink(2 << 20).unwrap() };
        assert_eq!(paged.cache_bytes(), 2 * MIB);
    }
}

#[test]
fn a_fetched_page_takes_as_long_as_the_network() {
    let Some(paged) = paged(8 * MIB, MIB, Some("infiniswap")) else { return };
    for page in pages(&paged) {
        slot(&paged, page * PAGE_BYTES).store(1, Ordering::Relaxed);
    }
    let before = paged.counters();
    let start = Instant::now();
    for page in pages(&paged).take(256) {
        assert_eq!(slot(&paged, page * PAGE_BYTES).load(Ordering::Relaxed), 1);
    }
    let elapsed_ns = start.elapsed().as_nanos() as u64;
    let counters = paged.counters();
    assert_eq!(counters.fetched - before.fetched, 256);
    let modelled_ns = counters.modelled_ns - before.modelled_ns;
    // The link was idle, and is never full: 40 us each, the last modified pages beside them.
    assert_eq!(modelled_ns, 256 * 40_000);
    let spent_ns = counters.mechanism_ns - before.mechanism_ns + counters.waited_ns - before.waited_ns;
    // Whatever was not waited for was spent by the mechanism, or credited when it had taken longer, or is owed still.
    let carried_ns = CREDIT_NS_MAX as u64 + paged.mechanism().fault_ns;
    assert!(spent_ns + carried_ns >= modelled_ns, "{spent_ns} {modelled_ns}");
    // Of each fault, the delivery of its signal is counted as it was measured beforehand, and may be shorter.
    let delivered_ns = 256 * paged.mechanism().delivery_ns;
    assert!(elapsed_ns + carried_ns + delivered_ns >= modelled_ns, "{elapsed_ns} {delivered_ns} {modelled_ns}");
}

#[test]
fn threads_that_fault_on_one_page_map_it_once() {
    let Some(paged) = paged(2 * MIB, MIB, None) else { return };
    let round = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for page in pages(&paged) {
                    round.fetch_add(1, Ordering::AcqRel);
                    while round.load(Ordering::Acquire) < 4 * (page as u64 + 1) {
                        std::thread::yield_now();
                    }
                    slot(&paged, page * PAGE_BYTES).fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert!(pages(&paged).all(|page| slot(&paged, page * PAGE_BYTES).load(Ordering::Relaxed) == 4));
    assert_eq!(paged.counters().zeroed, 512);
}

/// xorshift: a seed gives one sequence everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// Threads count up in pages that they share, in pages of their own, and give these back, while the cache is far too small
/// and changes its size, and the memory grows and shrinks. `TIDEPOOL_STRESS_SECONDS` and `TIDEPOOL_STRESS_SEED` make it longer and another.
#[test]
fn no_write_is_lost_under_stress() {
    let variable = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seconds = variable("TIDEPOOL_STRESS_SECONDS").unwrap_or(1);
    let seed = variable("TIDEPOOL_STRESS_SEED").unwrap_or(1);
    let handlings: [fn() -> Option<Paged>; 2] = [|| paged(16 * MIB, MIB, None), || with_threads(16 * MIB, MIB)];
    for paged in handlings.into_iter().filter_map(|open| open()) {
        stress(&paged, seconds, seed);
    }
}

fn stress(paged: &Paged, seconds: u64, seed: u64) {
    const THREADS: usize = 4;
    const SHARED: usize = 2048;
    const OWN: usize = 256;
    let end = AtomicBool::new(false);
    let sums: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let work = |number: usize| {
            let mut random = Random(seed * 0x9e37_79b9_7f4a_7c15 + number as u64 + 1);
            let mut counts = vec![0; SHARED];
            let mut own = vec![0u64; OWN];
            let own_first = SHARED + number * OWN;
            // Every thread has a word of its own in each shared page, and all share another.
            let at = |page: usize, word: usize| slot(paged, page * PAGE_BYTES + word * 8);
            while !end.load(Ordering::Relaxed) {
                let (page, mine) = (random.below(SHARED), random.below(OWN));
                match random.below(16) {
                    0..=4 => {
                        let word = at(page, 1 + number);
                        assert_eq!(word.load(Ordering::Relaxed), counts[page], "page {page}");
                        word.store(counts[page] + 1, Ordering::Relaxed);
                        at(page, 511).fetch_add(1, Ordering::Relaxed);
                        counts[page] += 1;
                    }
                    5..=7 => assert_eq!(at(page, 1 + number).load(Ordering::Relaxed), counts[page], "page {page}"),
                    8..=11 => {
                        at(own_first + mine, 5).store(own[mine] + 1, Ordering::Relaxed);
                        own[mine] += 1;
                    }
                    12..=14 => assert_eq!(at(own_first + mine, 5).load(Ordering::Relaxed), own[mine]),
                    _ if random.below(32) == 0 => {
                        let count = 1 + random.below(OWN - mine);
                        let first = (own_first + mine) * PAGE_BYTES;
                        paged.release(first..first + count * PAGE_BYTES);
                        paged.set_owner(first..first + count * PAGE_BYTES, count % OWNERS_MAX);
                        own[mine..mine + count].fill(0);
                    }
                    _ if number == 0 && random.below(64) == 0 => {
                        paged.set_cache_bytes(MIB + random.below(4 << 20) as u64)
                    }
                    _ if number == 1 && random.below(64) == 0 => {
                        let (end, count) = (paged.len() / PAGE_BYTES, 1 + random.below(600));
                        paged.grow((end + count) * PAGE_BYTES).unwrap();
                        for tail in (0..count).chain(0..count) {
                            at(end + tail, 9).fetch_add(1, Ordering::Relaxed);
                        }
                        assert!((0..count).all(|tail| at(end + tail, 9).load(Ordering::Relaxed) == 2));
                        // SAFETY: no other thread uses what was behind the end.
                        unsafe { paged.shrink(end * PAGE_BYTES).unwrap() };
                    }
                    _ => {}
                }
            }
            counts
        };
        let threads: Vec<_> = (0..THREADS).map(|number| scope.spawn(move || work(number))).collect();
        std::thread::sleep(std::time::Duration::from_secs(seconds));
        end.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for page in 0..SHARED {
        let expected: u64 = sums.iter().map(|counts| counts[page]).sum();
        assert_eq!(slot(paged, page * PAGE_BYTES + 511 * 8).load(Ordering::Relaxed), expected, "page {page}");
    }
    assert!(paged.local_bytes() <= paged.cache_bytes());
    let counters = paged.counters();
    assert!(counters.evicted > 0 && counters.soft > 0, "{counters:?}");
}

#[test]
fn the_kernel_is_handed_what_is_there() {
    let Some(paged) = paged(8 * MIB, MIB, None) else { return };
    for page in pages(&paged) {
        slot(&paged, page * PAGE_BYTES).store(page as u64, Ordering::Relaxed);
    }
    let mut file = tempfile();
    // This is what `write_all` is for: page 0 left long ago.
    let refused = file.write_all(bytes_of(&paged, 0..PAGE_BYTES)).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EFAULT));
    // Unaligned, so that parts end inside of pages.
    write_all(&mut file, bytes_of(&paged, 8..paged.len())).unwrap();
    use std::os::unix::fs::FileExt;
    let mut found = vec![0; paged.len() - 8];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(found, bytes_of(&paged, 8..paged.len()));
    // What lies elsewhere is written as it is.
    write_all(&mut file, b"end").unwrap();
    file.read_exact_at(&mut found[..3], paged.len() as u64 - 8).unwrap();
    assert_eq!(&found[..3], b"end");
}

fn tempfile() -> std::fs::File {
    // SAFETY: a name that is a string.
    let fd = unsafe { libc::memfd_create(c"tidepool-test".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: a descriptor that was just made.
    unsafe { std::fs::File::from_raw_fd(fd) }
}

/// A mapped file that became shorter: what SIGBUS is for elsewhere.
fn touch_beyond_a_file() {
    let file = tempfile();
    file.set_len(PAGE_BYTES as u64).unwrap();
    let base = mapping::map(PAGE_BYTES, HUGE_PAGE_BYTES, libc::MAP_SHARED, file.as_raw_fd()).unwrap();
    file.set_len(0).unwrap();
    // SAFETY: mapped; what comes of it is what is tested.
    unsafe { base.as_ptr().write_volatile(1) };
}

const CHILD: &str = "TIDEPOOL_TEST_SIGBUS";

/// Run by `a_foreign_sigbus_does_what_it_did` in a process of its own.
#[test]
fn child_that_meets_a_foreign_sigbus() {
    extern "C" fn leave(_signal: libc::c_int, _info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
        // SAFETY: ends the process, in any state.
        unsafe { libc::_exit(33) };
    }

    let Ok(what) = std::env::var(CHILD) else { return };
    // As it is in this process, where the standard library has a handler that ends it; or another one, or none.
    // SAFETY: a handler that only ends the process, or the default.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_flags = libc::SA_SIGINFO;
        match what.as_str() {
            "handled" => action.sa_sigaction = leave as *const () as usize,
            "ignored" => action.sa_sigaction = libc::SIG_IGN,
            _ => action.sa_sigaction = libc::SIG_DFL,
        }
        if what != "fault" {
            assert_eq!(libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()), 0);
        }
    }
    let Some(paged) = paged(8 * MIB, MIB, None) else { std::process::exit(77) };
    fill_and_check(&paged);
    if what == "sent" || what == "ignored" {
        // SAFETY: a signal to this thread, which is delivered at once.
        unsafe { libc::raise(libc::SIGBUS) };
        assert_eq!(what, "ignored");
        std::process::exit(44);
    }
    touch_beyond_a_file();
    unreachable!("a store behind a file's end went through");
}

#[test]
fn a_foreign_sigbus_does_what_it_did() {
    use std::os::unix::process::ExitStatusExt;
    for (what, signal, code) in [
        ("fault", Some(libc::SIGBUS), None),
        ("default", Some(libc::SIGBUS), None),
        ("handled", None, Some(33)),
        ("sent", Some(libc::SIGBUS), None),
        ("ignored", None, Some(44)),
    ] {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "paged::tests::child_that_meets_a_foreign_sigbus", "--nocapture"])
            .env(CHILD, what)
            .output()
            .unwrap();
        if child.status.code() == Some(77) {
            tidepool_base::cannot_test(&String::from_utf8_lossy(&child.stdout));
            return;
        }
        assert_eq!((child.status.signal(), child.status.code()), (signal, code), "{what}: {child:?}");
    }
}

#[test]
fn nonsense_is_refused() {
    let open = |location: &str, size, cache| {
        Paged::open(&location.parse().unwrap(), size, size, cache, None).err().map(|error| (error.code(), error))
    };
    for (location, size, cache, text) in [
        ("anon:", 4 * MIB, 8 * MIB, "larger than the paged memory"),
        ("anon:", 4 * MIB, MIB - 1, "too small"),
        ("anon:", 1 << 60, MIB, "too large"),
        ("file:/dev/shm/x", 4 * MIB, MIB, "cannot be held"),
        ("dax:/dev/dax0.0", 4 * MIB, MIB, "cannot be held"),
    ] {
        let (code, error) = open(location, size, cache).unwrap();
        assert_eq!(code, SqlState::INVALID_PARAMETER_VALUE, "{error:?}");
        assert!(error.message().contains(text), "{error:?}");
    }
}

#[test]
fn a_refusal_of_the_kernel_says_what_to_do() {
    for (errno, code, hint) in [
        (libc::EPERM, SqlState::INSUFFICIENT_PRIVILEGE, "vm.unprivileged_userfaultfd"),
        (libc::ENOSYS, SqlState::FEATURE_NOT_SUPPORTED, "CONFIG_USERFAULTFD"),
    ] {
        let error = kernel::refused(&io::Error::from_raw_os_error(errno));
        assert_eq!(error.code(), code);
        assert!(error.hint().unwrap().contains(hint), "{error:?}");
    }
}

#[test]
fn addresses_of_other_mappings_are_left_alone() {
    let Some(paged) = paged(2 * MIB, MIB, None) else { return };
    let other = Mapping::heap(PAGE_BYTES);
    let start = paged.base().as_ptr().addr();
    assert!(signal::overlaps(start, 1) && signal::overlaps(start - 10, 11));
    assert!(!signal::overlaps(start - 10, 10) && !signal::overlaps(other.base().as_ptr().addr(), PAGE_BYTES));
    drop(paged);
    assert!(!signal::overlaps(start, 1));
}
