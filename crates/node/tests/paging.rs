//! Paged memory over a node: what is written comes back whatever becomes of the node.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidepool_base::SqlState;
use tidepool_device::paged::{self, AtNode, Paged};
use tidepool_device::remote::{Absence, NodeAddress, NodeSettings, Policy, Tenant};
use tidepool_device::{Location, PAGE_BYTES};
use tidepool_node::{Arena, Process, Status, Stopper};

const MIB: u64 = 1 << 20;

/// Everything here takes less, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(120);

/// False, with the reason printed, where the kernel refuses userfaultfd(2).
fn available() -> bool {
    paged::available().inspect_err(|error| tidepool_base::cannot_test(error)).is_ok()
}

/// A node on a unix socket, on a thread. Ends with this.
struct TestNode {
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl TestNode {
    fn start(socket: &Path, bytes: u64) -> TestNode {
        TestNode::limited(socket, bytes, 100)
    }

    fn limited(socket: &Path, bytes: u64, connections: usize) -> TestNode {
        let arena = Arena::open(&Location::Anon, Some(bytes)).unwrap();
        let process = Process::bind(arena, &NodeAddress::Unix(socket.to_owned()), None, connections).unwrap();
        let stopper = process.stopper();
        TestNode { stopper, thread: Some(std::thread::spawn(|| process.run().unwrap())) }
    }

    fn status(&self) -> Status {
        self.stopper.status()
    }

    fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.stopper.stop();
            thread.join().unwrap();
        }
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.end();
    }
}

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { folder: tempfile::tempdir().unwrap() }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("node")
    }

    fn node(&self) -> TestNode {
        TestNode::start(&self.socket(), 64 * MIB)
    }

    fn settings(&self) -> NodeSettings {
        NodeSettings { address: NodeAddress::Unix(self.socket()), token: None, policy: Policy::Os }
    }

    fn open(&self, bytes: u64) -> Paged {
        let tenant = Tenant::next_of(self.folder.path()).unwrap();
        open_with(&self.settings(), &tenant, Absence::Refused, bytes, 2 * bytes, MIB).unwrap()
    }
}

fn open_with(
    node: &NodeSettings,
    tenant: &Tenant,
    absence: Absence,
    size: u64,
    most: u64,
    cache: u64,
) -> tidepool_base::Result<Paged> {
    Paged::open_at_node(AtNode { node, tenant, absence, protected: 1 << IMPORTANT }, size, most, cache)
}

/// The owner of pages that are small and important.
const IMPORTANT: usize = 3;

fn word(paged: &Paged, page: usize) -> *mut u64 {
    // The last word: a page that came in part would show.
    paged.base().as_ptr().wrapping_add(page * PAGE_BYTES + PAGE_BYTES - 8).cast()
}

fn write(paged: &Paged, page: usize, value: u64) {
    assert!(page * PAGE_BYTES < paged.len());
    // SAFETY: a word of the window that no other thread of the test touches.
    unsafe { word(paged, page).write_volatile(value) };
}

fn read(paged: &Paged, page: usize) -> u64 {
    assert!(page * PAGE_BYTES < paged.len());
    // SAFETY: as above.
    unsafe { word(paged, page).read_volatile() }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn pages_go_to_the_node_and_come_back() {
    if !available() {
        return;
    }
    let place = Place::new();
    let node = place.node();
    let paged = place.open(16 * MIB);
    let pages = 16 * MIB as usize / PAGE_BYTES;
    for round in 1..=3 {
        for page in 0..pages {
            assert_eq!(read(&paged, page), if round == 1 { 0 } else { (page * (round - 1)) as u64 });
            write(&paged, page, (page * round) as u64);
        }
    }
    let (counters, exchanged) = (paged.counters(), paged.node().unwrap());
    assert!(counters.fetched as usize >= 2 * (pages - 256) && counters.written_back as usize >= 3 * (pages - 300));
    // Pages are sent sixteen at a time, and brought one by one.
    assert!(exchanged.exchanges < counters.fetched + counters.written_back / 8, "{exchanged:?} {counters:?}");
    assert_eq!((exchanged.losses, exchanged.fetched_from_copies, exchanged.is_up), (0, 0, true));
    assert!(paged.local_bytes() <= MIB && paged.resident_bytes() <= MIB + MIB / 2, "{}", paged.resident_bytes());
    let status = node.status();
    assert_eq!((status.bytes - status.free_bytes, status.databases), (16 * MIB, 1));
    assert!(status.reads >= counters.fetched && status.flushed_bytes >= counters.written_back * PAGE_BYTES as u64);

    // What is given back is empty, and comes from nowhere.
    paged.release(0..8 * MIB as usize);
    assert!((0..pages / 2).all(|page| read(&paged, page) == 0));
    assert!((pages / 2..pages).all(|page| read(&paged, page) == 3 * page as u64));

    // It grows and shrinks with its memory at the node.
    paged.grow(32 * MIB as usize).unwrap();
    (pages..2 * pages).for_each(|page| write(&paged, page, 5));
    assert_eq!(node.status().bytes - node.status().free_bytes, 32 * MIB);
    assert!((pages..2 * pages).all(|page| read(&paged, page) == 5));
    // SAFETY: nobody uses what is behind.
    unsafe { paged.shrink(6 * MIB as usize) }.unwrap();
    assert_eq!(node.status().bytes - node.status().free_bytes, 6 * MIB);
    assert_eq!(read(&paged, 0), 0);
    drop(paged);
    assert_eq!(node.status().free_bytes, 64 * MIB);
}

/// What is said to be read comes sixteen pages at a time, and drives out what came so before, not what is used.
#[test]
fn what_is_said_comes_together_and_what_is_important_stays() {
    if !available() {
        return;
    }
    let place = Place::new();
    let node = place.node();
    let tenant = Tenant::next_of(place.folder.path()).unwrap();
    let settings = NodeSettings { policy: Policy::Managed, ..place.settings() };
    let paged = open_with(&settings, &tenant, Absence::Refused, 16 * MIB, 16 * MIB, MIB).unwrap();
    let pages = paged.len() / PAGE_BYTES;
    (0..pages).for_each(|page| write(&paged, page, page as u64));
    // A scan over 15 MB of them, through a cache of 1 MB; the first 64 pages are an index meanwhile, and touched.
    paged.set_owner(0..64 * PAGE_BYTES, IMPORTANT);
    (0..64).for_each(|page| assert_eq!(read(&paged, page), page as u64));
    let (before, exchanges) = (paged.counters(), node.status().reads);
    for round in 0..3 {
        for page in 256..pages {
            if page % 16 == 0 {
                paged.bring(page * PAGE_BYTES..(page + 16) * PAGE_BYTES);
            }
            assert_eq!(read(&paged, page), page as u64, "round {round}");
            if page % 100 == 0 {
                assert_eq!(read(&paged, page / 100), page as u64 / 100);
            }
        }
    }
    let spent = paged.counters().since(&before);
    let scanned = 3 * (pages - 256) as u64;
    assert!(spent.brought > scanned * 9 / 10 && spent.fetched - spent.brought < scanned / 50, "{spent:?}");
    assert!(node.status().reads - exchanges < scanned / 12, "{} reads", node.status().reads - exchanges);
    let before = paged.counters();
    (0..64).for_each(|page| assert_eq!(read(&paged, page), page as u64));
    assert_eq!(paged.counters().since(&before).fetched, 0, "what is important had to go");

    // Pages here and there, too; twice the same is asked for once; what is not there is passed over.
    let (before, exchanges) = (paged.counters(), node.status().reads);
    let offsets = || (0..64).map(|number| (1000 + (number % 32) * 37) * PAGE_BYTES + 17);
    paged.bring_each(offsets().chain([usize::MAX]));
    assert_eq!(paged.counters().since(&before).brought, 32);
    assert_eq!(node.status().reads - exchanges, 2);
    for offset in offsets() {
        let page = offset / PAGE_BYTES;
        assert_eq!(read(&paged, page), page as u64);
    }
    assert_eq!(paged.counters().since(&before).fetched, 32);
    // Of what is larger than the cache, a part is brought.
    paged.bring(0..paged.len());
    assert!(paged.local_bytes() <= MIB);
    // Without the policy nothing is.
    let plain = place.open(8 * MIB);
    plain.bring(0..8 * MIB as usize);
    assert_eq!(plain.counters().brought, 0);
}

/// Hints from several threads, beside writes, at a node that comes and goes.
#[test]
fn hints_lose_no_write() {
    if !available() {
        return;
    }
    let place = Place::new();
    let node = place.node();
    let tenant = Tenant::next_of(place.folder.path()).unwrap();
    let settings = NodeSettings { policy: Policy::Managed, ..place.settings() };
    let paged = Arc::new(open_with(&settings, &tenant, Absence::Refused, 12 * MIB, 12 * MIB, MIB).unwrap());
    let pages = paged.len() / PAGE_BYTES;
    (0..pages).for_each(|page| write(&paged, page, 0));
    let over = Arc::new(AtomicBool::new(false));
    let hinting: Vec<_> = (0..2_usize)
        .map(|thread| {
            let (paged, over) = (paged.clone(), over.clone());
            std::thread::spawn(move || {
                let mut random = thread + 77;
                while !over.load(Ordering::Relaxed) {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let page = (random >> 33) % (pages - 64);
                    if random & 1 << 20 == 0 {
                        paged.bring(page * PAGE_BYTES..(page + 64) * PAGE_BYTES);
                    } else {
                        paged.bring_each((0..20).map(|number| (page + number * 3) * PAGE_BYTES));
                    }
                    if random & 7 << 21 == 0 {
                        paged.set_owner(page * PAGE_BYTES..(page + 8) * PAGE_BYTES, random >> 40 & 7);
                    }
                }
            })
        })
        .collect();
    under_load(&paged, |go_on| {
        go_on();
        node.stop();
        go_on();
        let _node = place.node();
        until("the node is used again", || paged.node().unwrap().is_up);
        go_on();
    });
    over.store(true, Ordering::Relaxed);
    for thread in hinting {
        thread.join().unwrap();
    }
    assert!(paged.counters().brought > 1000);
}

/// Threads that write and read pages of their own, until told to end. Each checks all that it reads.
fn work(paged: &Paged, over: &AtomicBool, done: &AtomicU64, thread: usize, pages: usize) -> Vec<u64> {
    let mut expected = vec![0_u64; pages];
    let mut random = thread as u64 + 1;
    while !over.load(Ordering::Relaxed) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let page = random as usize % pages;
        assert_eq!(read(paged, thread * pages + page), expected[page]);
        if random & 0x10000 != 0 {
            expected[page] = random;
            write(paged, thread * pages + page, random);
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    expected
}

/// Runs threads over memory while `happen` happens. All that they wrote is there in the end.
fn under_load(paged: &Arc<Paged>, happen: impl FnOnce(&dyn Fn())) {
    const THREADS: usize = 3;
    let pages = paged.len() / PAGE_BYTES / THREADS;
    let (over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (paged, over, done) = (paged.clone(), over.clone(), done.clone());
            std::thread::spawn(move || work(&paged, &over, &done, thread, pages))
        })
        .collect();
    let go_on = || {
        let before = done.load(Ordering::Relaxed);
        until("the threads go on", || done.load(Ordering::Relaxed) > before + 3000);
    };
    go_on();
    happen(&go_on);
    over.store(true, Ordering::Relaxed);
    for (thread, worker) in threads.into_iter().enumerate() {
        for (page, value) in worker.join().unwrap().into_iter().enumerate() {
            assert_eq!(read(paged, thread * pages + page), value, "page {page} of thread {thread}");
        }
    }
}

#[test]
fn a_node_that_dies_takes_nothing_with_it_and_is_filled_again() {
    if !available() {
        return;
    }
    let place = Place::new();
    let node = place.node();
    let paged = Arc::new(place.open(12 * MIB));
    let pages = paged.len() / PAGE_BYTES;
    (0..pages).for_each(|page| write(&paged, page, 0));
    under_load(&paged, |go_on| {
        node.stop();
        go_on();
        assert!(!paged.node().unwrap().is_up);
        let error = paged.grow(14 * MIB as usize).unwrap_err();
        assert_eq!(error.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "{error}");
        let node = place.node();
        go_on();
        until("the node is used again", || paged.node().unwrap().is_up && node.status().reads > 0);
        let before = paged.node().unwrap().fetched_from_copies;
        // All that is not in the cache comes from the new node before long.
        until("the node is filled", || {
            let counters = paged.node().unwrap();
            counters.refilled > 0 && {
                go_on();
                paged.node().unwrap().fetched_from_copies == counters.fetched_from_copies
            }
        });
        let counters = paged.node().unwrap();
        assert_eq!((counters.losses, counters.emptied), (1, 1), "{counters:?}");
        assert!(before > 0);
        // Again: what was filled is lost again.
        node.stop();
        go_on();
        let _node = place.node();
        until("the node is used again", || paged.node().unwrap().is_up);
        go_on();
    });
    assert_eq!(paged.node().unwrap().emptied, 2);
}

/// A node that is there and says nothing: connections are taken, and end unanswered.
#[test]
fn a_node_that_hangs_is_given_up() {
    if !available() {
        return;
    }
    let place = Place::new();
    // A relay, which can be told to hold everything.
    let (held, cut) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let node = TestNode::start(&place.folder.path().join("behind"), 64 * MIB);
    let listener = std::os::unix::net::UnixListener::bind(place.socket()).unwrap();
    let behind = place.folder.path().join("behind");
    {
        let (held, cut) = (held.clone(), cut.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let far = UnixStream::connect(&behind).unwrap();
                for (from, to) in [(&stream, &far), (&far, &stream)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (held, cut) = (held.clone(), cut.clone());
                    std::thread::spawn(move || relay(from, to, &held, &cut));
                }
            }
        });
    }
    let paged = Arc::new(place.open(12 * MIB));
    let pages = paged.len() / PAGE_BYTES;
    (0..pages).for_each(|page| write(&paged, page, 0));
    under_load(&paged, |go_on| {
        held.store(true, Ordering::SeqCst);
        go_on();
        assert!(!paged.node().unwrap().is_up);
        held.store(false, Ordering::SeqCst);
        until("the node is used again", || paged.node().unwrap().is_up);
        go_on();
        // It kept what it had: its content number says so.
        assert_eq!(paged.node().unwrap().emptied, 0);
        for _ in 0..5 {
            cut.store(true, Ordering::SeqCst);
            until("the loss is noticed", || !paged.node().unwrap().is_up);
            cut.store(false, Ordering::SeqCst);
            until("the node is used again", || paged.node().unwrap().is_up);
            go_on();
        }
    });
    assert_eq!(paged.node().unwrap().emptied, 0);
    drop(paged);
    assert_eq!(node.status().free_bytes, 64 * MIB);
}

/// Hands bytes on, but for while they are held; ends when it is cut.
fn relay(mut from: UnixStream, mut to: UnixStream, held: &AtomicBool, cut: &AtomicBool) {
    use std::io::{Read, Write};
    from.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let mut bytes = [0; 4096];
    loop {
        if cut.load(Ordering::SeqCst) {
            break;
        }
        let count = match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(_) => break,
        };
        while held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // They may be over already.
    let _ = (from.shutdown(std::net::Shutdown::Both), to.shutdown(std::net::Shutdown::Both));
}

#[test]
fn the_next_process_has_what_the_last_one_left_given_back_and_ends_it() {
    if !available() {
        return;
    }
    let place = Place::new();
    let node = place.node();
    let old = place.open(8 * MIB);
    let pages = old.len() / PAGE_BYTES;
    (0..pages).for_each(|page| write(&old, page, page as u64));
    // Two of one process share what the node has for the database.
    let tenant = Tenant::next_of(place.folder.path()).unwrap();
    let open = |bytes| open_with(&place.settings(), &tenant, Absence::Refused, bytes, bytes, MIB).unwrap();
    let first = open(4 * MIB);
    write(&first, 7, 77);
    let second = open(2 * MIB);
    assert_eq!(node.status().bytes - node.status().free_bytes, 6 * MIB);
    // The old one goes on from its copies, and changes nothing at the node.
    (0..pages).for_each(|page| assert_eq!(read(&old, page), page as u64));
    (0..pages).for_each(|page| write(&old, page, 1));
    (0..pages).for_each(|page| assert_eq!(read(&old, page), 1));
    assert!(!old.node().unwrap().is_up && first.node().unwrap().is_up && second.node().unwrap().is_up);
    drop(old);
    assert_eq!(node.status().bytes - node.status().free_bytes, 6 * MIB);
    assert_eq!(read(&first, 7), 77);
}

/// As a database does that was there before: it starts whether the node is there or not.
#[test]
fn a_node_may_come_later() {
    if !available() {
        return;
    }
    let place = Place::new();
    let tenant = Tenant::next_of(place.folder.path()).unwrap();
    let open = |bytes| open_with(&place.settings(), &tenant, Absence::Awaited, bytes, bytes, MIB).unwrap();
    let paged = open(8 * MIB);
    let pages = paged.len() / PAGE_BYTES;
    (0..pages).for_each(|page| write(&paged, page, page as u64));
    (0..pages).for_each(|page| assert_eq!(read(&paged, page), page as u64));
    let node = place.node();
    until("the node is found", || paged.node().unwrap().is_up);
    until("the node is filled", || node.status().flushed_bytes >= 6 * MIB);
    (0..pages).for_each(|page| assert_eq!(read(&paged, page), page as u64));
    let counters = paged.node().unwrap();
    assert!(counters.refilled > 1000 && counters.emptied == 0 && node.status().reads > 0, "{counters:?}");
}

#[test]
fn what_cannot_be_is_said_when_it_is_opened() {
    if !available() {
        return;
    }
    let place = Place::new();
    let tenant = Tenant::next_of(place.folder.path()).unwrap();
    let open = |settings: &NodeSettings, bytes, cache| {
        open_with(settings, &tenant, Absence::Refused, bytes, bytes, cache).map(drop).unwrap_err()
    };
    let nobody = open(&place.settings(), 4 * MIB, MIB);
    assert_eq!(nobody.code(), SqlState::CONNECTION_FAILURE);
    assert!(nobody.hint().unwrap().contains("tidepool memory-node --listen"), "{nobody}");
    let node = place.node();
    assert_eq!(open(&place.settings(), 66 * MIB, MIB).code(), SqlState::OUT_OF_MEMORY);
    assert_eq!(open(&place.settings(), 4 * MIB, MIB / 2).code(), SqlState::INVALID_PARAMETER_VALUE);
    assert_eq!(open(&place.settings(), MIB, MIB).code(), SqlState::INVALID_PARAMETER_VALUE);
    let token = place.folder.path().join("token");
    std::fs::write(&token, "another token than the node's").unwrap();
    let stranger = open(&NodeSettings { token: Some(token.clone()), ..place.settings() }, 4 * MIB, MIB);
    assert_eq!(stranger.code(), SqlState::INVALID_PASSWORD);
    std::fs::remove_file(&token).unwrap();
    let missing = open(&NodeSettings { token: Some(token), ..place.settings() }, 4 * MIB, MIB);
    assert_eq!(missing.code(), SqlState::UNDEFINED_FILE);
    // Nor is there memory for one whose connections are too many.
    let crowded = TestNode::limited(&place.folder.path().join("crowded"), 64 * MIB, 3);
    let address = NodeAddress::Unix(place.folder.path().join("crowded"));
    assert_eq!(
        open(&NodeSettings { address, ..place.settings() }, 4 * MIB, MIB).code(),
        SqlState::TOO_MANY_CONNECTIONS
    );
    until("what was registered is given back", || crowded.status().free_bytes == 64 * MIB);
    // Nothing of all that is left.
    assert_eq!(node.status().free_bytes, 64 * MIB);
    let open_to_all =
        Process::bind(Arena::open(&Location::Anon, Some(MIB)).unwrap(), &"0.0.0.0:0".parse().unwrap(), None, 10);
    assert_eq!(open_to_all.unwrap_err().code(), SqlState::INVALID_PARAMETER_VALUE);
}
