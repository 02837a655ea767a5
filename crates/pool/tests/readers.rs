//! A host that reads, in a process of its own: what it stores astray ends it, and changes nothing of the pool.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidepool_base::SqlState;
use tidepool_device::Location;
use tidepool_pool::check::check;
use tidepool_pool::layout::HostNumber;
use tidepool_pool::liveness::Watcher;
use tidepool_pool::member::{JoinOptions, Member, Refusal};
use tidepool_pool::pool::{CreateOptions, Pool};
use tidepool_pool::reader::{asked_of, nobody_else_reigned};
use tidepool_pool::words::{Extent, Host, HostState, Kind, Number, Owner, Role};

const POOL_VARIABLE: &str = "TIDEPOOL_TEST_READER_POOL";
const MODE_VARIABLE: &str = "TIDEPOOL_TEST_READER_MODE";

struct Place {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

fn location(path: &Path) -> Location {
    Location::File(path.to_owned())
}

/// A pool with database `a`.
fn place() -> Place {
    let shm = Path::new("/dev/shm");
    let parent = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
    let folder = tempfile::Builder::new().prefix("tidepool-pool-").tempdir_in(parent).unwrap();
    let path = folder.path().join("pool");
    let pool = Pool::create(&CreateOptions {
        devices: vec![(location(&path), Some(16 << 21))],
        extent_bytes: None,
        bytes_max: None,
        label: String::new(),
        populates: false,
        overcommits: false,
    });
    let tool = Member::join(Arc::new(pool.unwrap()), &JoinOptions::tool("test")).unwrap();
    tool.create_database("a", 0).unwrap();
    Place { _folder: folder, path }
}

fn options(name: &str, role: Role) -> JoinOptions {
    JoinOptions { role, database: Some("a".to_owned()), ..JoinOptions::tool(name) }
}

fn join_reader(path: &Path, name: &str) -> Member {
    let pool = Arc::new(Pool::open_as_reader(&location(path)).unwrap());
    Member::join(pool, &options(name, Role::Reader)).unwrap()
}

/// Not a test: what the others start.
#[test]
fn child() {
    let Some(path) = std::env::var_os(POOL_VARIABLE) else { return };
    let mode = std::env::var(MODE_VARIABLE).unwrap_or_default();
    let reader = join_reader(Path::new(&path), "child");
    let (pool, books) = (reader.pool(), reader.pool().books());
    let stray = |extent: Extent, offset: usize| {
        let (base, _) = reader.extent(extent).unwrap();
        // SAFETY: none: it is a store astray, which the kernel is to refuse. The address is mapped as long as the pool is open.
        unsafe { base.as_ptr().add(offset).write_volatile(7) };
    };
    match mode.as_str() {
        "books" => stray(Extent(0), pool.layout().owner(Extent(5)).at.0 as usize),
        "page" => {
            let other = pool.hosts().unwrap().into_iter().find(|view| view.host != reader.host()).unwrap();
            stray(Extent(0), pool.layout().ident(other.host.slot).at.0 as usize);
        }
        "extent" => stray(Extent(9), 0),
        "own" => {
            let own = pool.layout().host_number(reader.host().slot, HostNumber::AppliedTs);
            pool.told(books.store(own, Number(77))).unwrap();
            assert_eq!(pool.told(books.load(own)).unwrap(), Number(77));
            std::mem::forget(reader);
            std::process::exit(0);
        }
        _ => {}
    }
}

fn run(place: &Place, mode: &str) -> ExitStatus {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(POOL_VARIABLE, &place.path)
        .env(MODE_VARIABLE, mode)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap()
}

#[test]
fn a_store_astray_ends_the_reader_and_changes_nothing() {
    let place = place();
    let pool = Arc::new(Pool::open(&location(&place.path)).unwrap());
    let primary = Member::join(Arc::clone(&pool), &options("primary", Role::Primary)).unwrap();
    let mut watcher = Watcher::new(Arc::clone(&pool));
    let books = || std::fs::read(&place.path).unwrap()[995_328..1 << 20].to_vec();
    let before = books();
    for mode in ["books", "page", "extent"] {
        assert_eq!(run(&place, mode).signal(), Some(libc::SIGSEGV), "{mode}");
        watcher.bury_the_dead().unwrap();
        assert_eq!(pool.hosts().unwrap().len(), 1, "{mode}: the reader is gone, and its slot is free");
    }
    assert_eq!(run(&place, "own").code(), Some(0));
    let left = pool.hosts().unwrap().into_iter().find(|view| view.host != primary.host()).unwrap();
    assert_eq!((left.ident.role, left.text.unwrap().name.as_str()), (Role::Reader, "child"));
    let applied = pool.layout().host_number(left.host.slot, HostNumber::AppliedTs);
    assert_eq!(pool.told(pool.books().load(applied)).unwrap(), Number(77), "its own page is its to write");
    watcher.bury_the_dead().unwrap();
    assert_eq!(run(&place, "").code(), Some(0));
    assert_eq!(pool.hosts().unwrap().len(), 1, "one that leaves frees its slot itself");
    assert_eq!(books(), before, "no owner and no checksum has changed");
    let report = check(&pool, true).unwrap();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn a_reader_takes_and_changes_nothing() {
    let place = place();
    let writers = Arc::new(Pool::open(&location(&place.path)).unwrap());
    let _primary = Member::join(Arc::clone(&writers), &options("primary", Role::Primary)).unwrap();
    let (one, two) = (join_reader(&place.path, "one"), join_reader(&place.path, "two"));
    assert_ne!(one.host(), two.host());
    let hosts = writers.hosts().unwrap();
    let roles: Vec<_> = hosts.iter().map(|view| writers.role_of(view).unwrap()).collect();
    assert_eq!(roles, ["standby", "reader", "reader"]);
    assert_eq!(one.lease(Kind::Main, 1).unwrap_err().code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    assert_eq!(one.lease_one(Kind::Main, &|_| true), Err(Refusal::Reader), "main is for others to read");
    assert_eq!(one.create_database("b", 0).unwrap_err().code(), SqlState::INSUFFICIENT_PRIVILEGE);
    let refused = Member::join(Arc::clone(one.pool()), &options("again", Role::Standby)).unwrap_err();
    assert_eq!(refused.code(), SqlState::INSUFFICIENT_PRIVILEGE);
    // Locks of readers say what other hosts' say.
    let mut watcher = Watcher::new(Arc::clone(&writers));
    assert_eq!(watcher.bury_the_dead().unwrap(), 0);
    two.leave().unwrap();
    assert_eq!(writers.hosts().unwrap().len(), 2);
    // Suspected, it is told so by the word that it looks at.
    watcher.suspect(one.host()).unwrap();
    assert!(!one.is_current().unwrap());
    let is_suspect = |state| writers.hosts().unwrap().iter().any(|view| view.ident.state == state);
    assert!(is_suspect(HostState::Suspect));
    one.leave().unwrap();
    assert_eq!(writers.hosts().unwrap().len(), 1);
}

/// However the test ends.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Does for a reader what it asks for, as a primary does, until `ended`.
fn serve(primary: &Member, reader: Host, ended: &AtomicBool) {
    let mut granted = None;
    while !ended.load(Ordering::Acquire) {
        assert!(nobody_else_reigned(primary.pool(), primary.host(), primary.database()).unwrap());
        let Some(asked) = asked_of(primary.pool(), reader).unwrap() else { continue };
        match asked.returned {
            Some(extent) => _ = primary.take_in(reader, extent).unwrap(),
            None if asked.count > 0 && granted != Some(asked.number) => {
                granted = Some(asked.number);
                primary.grant(reader, asked.count as usize).unwrap();
            }
            None => {}
        }
    }
}

#[test]
fn a_reader_has_the_extents_that_it_is_granted() {
    let place = place();
    let writers = Arc::new(Pool::open(&location(&place.path)).unwrap());
    let primary = Member::join(Arc::clone(&writers), &options("primary", Role::Primary)).unwrap();
    let reader = join_reader(&place.path, "reader");
    let owned = || {
        let of = |extent: &Extent| primary.owner(*extent).unwrap();
        let own = |owner: &Owner| matches!(owner, Owner::Private { by, .. } if *by == reader.host());
        writers.layout().all_extents().filter(|extent| own(&of(extent))).count()
    };
    let lease = || reader.lease_one(Kind::Heap, &|_| true);
    assert!(lease().is_err(), "there is no primary that serves it");
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&ended);
        scope.spawn(|| serve(&primary, reader.host(), &ended));
        let mut all: Vec<Extent> = (0..10).map(|_| lease().unwrap()).collect();
        all.sort_unstable_by_key(|extent| extent.0);
        all.dedup();
        assert_eq!(all.len(), 10, "each once");
        let before = owned();
        assert_eq!(reader.return_spare(0).unwrap(), before - 10);
        all.iter().try_for_each(|extent| reader.give_back(*extent)).unwrap();
        assert_eq!(reader.return_spare(4).unwrap(), 6);
        assert_eq!(owned(), 4);
        // All that the pool has, and then no more.
        let mut count = 0;
        while lease().is_ok() {
            count += 1;
        }
        assert_eq!(count, 15, "what it kept and all that is free, but for the books");
        assert_eq!(reader.why_refused(1), Refusal::Full);
    });
    // It dies with what it has, which another host frees.
    reader.leave().unwrap();
    Watcher::new(Arc::clone(&writers)).bury_the_dead().unwrap();
    assert_eq!(writers.free_extents().unwrap(), 15);
    assert_eq!(writers.hosts().unwrap().len(), 1);
    assert!(check(&writers, true).unwrap().is_clean());
}

#[test]
fn a_reader_waits_for_a_primary_that_is_slow_to_grant() {
    let place = place();
    let writers = Arc::new(Pool::open(&location(&place.path)).unwrap());
    let primary = Member::join(Arc::clone(&writers), &options("primary", Role::Primary)).unwrap();
    let reader = join_reader(&place.path, "reader");
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&ended);
        scope.spawn(|| {
            // Longer than a reader waits where nothing is free.
            std::thread::sleep(std::time::Duration::from_millis(800));
            serve(&primary, reader.host(), &ended);
        });
        reader.lease_one(Kind::Heap, &|_| true).unwrap();
    });
}
