//! Processes that share a pool are killed and stopped: at random moments, and at every crash point. Nothing that they owned is
//! lost or has two owners, and one that was taken for dead does nothing more when it wakes.
//!
//! `TIDEPOOL_STRESS_SECONDS=300 TIDEPOOL_STRESS_SEED=7 cargo test --release -p tidepool-pool --test processes -- --nocapture`

mod common;

use common::{Ends, Random, location};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidepool_base::{CRASH_POINT_VARIABLE, Error, Result, SqlState, cannot_test};
use tidepool_device::{Device, Location, Mapping, Protection};
use tidepool_pool::CRASH_POINTS;
use tidepool_pool::check::{check, usage};
use tidepool_pool::liveness::{Finding, Watcher};
use tidepool_pool::member::{JoinOptions, Member};
use tidepool_pool::pool::{CreateOptions, Pool};
use tidepool_pool::words::{Contents, Database, End, Extent, Generation, Kind, Owner, Role};

const POOL_VARIABLE: &str = "TIDEPOOL_TEST_POOL";
const MODE_VARIABLE: &str = "TIDEPOOL_TEST_MODE";
const EXTENTS: u64 = 24;

fn open(path: &Path) -> Arc<Pool> {
    Arc::new(Pool::open(&location(path)).unwrap())
}

struct Place {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

/// Memory of this kernel where there is a gigabyte of it, as containers may have very little.
fn parent() -> PathBuf {
    let shm = "/dev/shm";
    let room = Command::new("df").args(["--block-size=1", "--output=avail", shm]).output();
    let bytes =
        room.ok().and_then(|room| String::from_utf8(room.stdout).ok()?.lines().last()?.trim().parse::<u64>().ok());
    if bytes.is_some_and(|bytes| bytes >= 1 << 30) { PathBuf::from(shm) } else { std::env::temp_dir() }
}

/// A pool with databases `a` and `b`. `None` where a lock that is free does not say that a process has ended.
fn place() -> Option<Place> {
    let folder = tempfile::Builder::new().prefix("tidepool-pool-").tempdir_in(parent()).unwrap();
    let path = folder.path().join("pool");
    let pool = Pool::create(&CreateOptions {
        devices: vec![(location(&path), Some(EXTENTS << 21))],
        extent_bytes: None,
        bytes_max: None,
        label: String::new(),
        populates: false,
        overcommits: false,
    });
    let tool = Member::join(Arc::new(pool.unwrap()), &JoinOptions::tool("test")).unwrap();
    tool.create_database("a", 0).unwrap();
    tool.create_database("b", 0).unwrap();
    let mapping = Mapping::open_shared(&location(&path), Protection::Read).unwrap();
    if !mapping.device().is_some_and(Device::is_of_one_kernel) {
        let shown = folder.path().display();
        cannot_test(&format_args!("\"{shown}\" may be other kernels' too, and /dev/shm has no gigabyte"));
        return None;
    }
    Some(Place { _folder: folder, path })
}

fn join(pool: &Arc<Pool>, name: &str, database: &str) -> Result<Member> {
    let options = JoinOptions { role: Role::Standby, database: Some(database.to_owned()), ..JoinOptions::tool(name) };
    Member::join(Arc::clone(pool), &options)
}

// ------------------------------------------------------------------------------------------------------ the child

/// Not a test: what the others start, stop and kill.
#[test]
fn child() {
    let Some(path) = std::env::var_os(POOL_VARIABLE) else { return };
    let mode = std::env::var(MODE_VARIABLE).unwrap_or_default();
    let say = |line: &str| {
        let mut out = std::io::stdout().lock();
        out.write_all(format!("\n{line}\n").as_bytes()).and_then(|()| out.flush()).unwrap();
    };
    let pool = open(Path::new(&path));
    let result = match mode.as_str() {
        "once" => once(&pool, &say),
        "hold" => hold(&pool, &say),
        seed => work(&pool, seed.parse().unwrap(), &say),
    };
    match result {
        Ok(()) => say("ended"),
        Err(error) if error.code() == SqlState::ADMIN_SHUTDOWN => say("fenced"),
        Err(error) => panic!("{error:?}"),
    }
}

/// Comes by every crash point once.
fn once(pool: &Arc<Pool>, say: &dyn Fn(&str)) -> Result<()> {
    let (member, other) = (join(pool, "one", "a")?, join(pool, "two", "b")?);
    say("joined");
    let filled = member.lease(Kind::Main, 1)?[0];
    Ends::of(&member, filled)?.write(5);
    member.publish(filled, Generation(0))?;
    member.lease(Kind::Log, 1)?;
    let seen = member.reign()?;
    if let Some(taken) = member.take_over(seen)? {
        member.seal(seen.term, End::at(1, 64))?;
        member.adopt()?;
        member.open_log(taken, 1)?;
        member.run(taken)?;
    }
    let leased = member.lease(Kind::Heap, 3)?;
    member.hand(leased[0], other.host().slot)?;
    other.take(leased[0])?;
    member.give_back(leased[1])?;
    assert_eq!(member.grant(other.host(), 1)?, 1);
    member.create_database("c", 0)?;
    // At the end, as what is added stays.
    if std::env::var(CRASH_POINT_VARIABLE).is_ok_and(|point| point == "pool.device.adding") {
        let Location::File(path) = pool.location() else { unreachable!("the test's own file") };
        pool.add_device(&Location::File(path.with_extension("added")), Some(4 << 21))?;
    }
    member.leave()?;
    other.leave()
}

/// Owns two extents until it is told what to do, or wakes.
fn hold(pool: &Arc<Pool>, say: &dyn Fn(&str)) -> Result<()> {
    let member = join(pool, "holder", "a")?;
    member.lease(Kind::Heap, 2)?;
    say("joined");
    loop {
        if !member.is_current()? {
            return Err(Error::new(SqlState::ADMIN_SHUTDOWN, "taken for dead"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Leases, writes, compares, hands over, takes, publishes, gives back and buries others, until it is killed.
fn work(pool: &Arc<Pool>, seed: u64, say: &dyn Fn(&str)) -> Result<()> {
    let mut random = Random(seed);
    let mut watcher = Watcher::new(Arc::clone(pool));
    watcher.bury_the_dead()?;
    let member = join(pool, "worker", if seed.is_multiple_of(2) { "a" } else { "b" })?;
    say("joined");
    let mut own: BTreeMap<Extent, u64> = BTreeMap::new();
    let mut mark = seed << 32;
    let is_full = |error: &Error| error.code() == SqlState::DISK_FULL;
    let is_others = |error: &Error| error.code() == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE;
    for round in 0u64.. {
        if round.is_multiple_of(64) {
            watcher.bury_the_dead()?;
        }
        let chosen = own.keys().copied().nth(random.below(own.len().max(1) as u64) as usize);
        match (random.below(10), chosen) {
            (0..=3, _) => match member.lease(Kind::Heap, 1 + random.below(2) as usize) {
                Ok(leased) => {
                    for extent in leased {
                        mark += 1;
                        Ends::of(&member, extent)?.write(mark);
                        own.insert(extent, mark);
                    }
                }
                Err(error) if is_full(&error) => {}
                Err(error) => return Err(error),
            },
            (4 | 5, Some(extent)) => {
                let mark = own.remove(&extent).unwrap_or(0);
                assert_eq!(Ends::of(&member, extent)?.read(), (mark, mark), "extent {} has two owners", extent.0);
                member.give_back(extent)?;
            }
            (6, Some(extent)) => {
                let slots: Vec<_> = pool.hosts()?.iter().map(|view| view.host.slot).collect();
                own.remove(&extent);
                if !slots.is_empty() {
                    member.hand(extent, slots[random.below(slots.len() as u64) as usize])?;
                }
            }
            (7, _) => {
                for extent in member.offered()? {
                    match member.take(extent) {
                        Ok(holds) => {
                            let found = Ends::of(&member, extent)?.read();
                            let is_right = found.0 == found.1 && (holds != Contents::Zeroes || found.0 == 0);
                            assert!(is_right, "extent {} holds {found:?}", extent.0);
                            mark += 1;
                            Ends::of(&member, extent)?.write(mark);
                            own.insert(extent, mark);
                        }
                        Err(error) if is_others(&error) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
            (8, Some(extent)) => {
                let mark = own[&extent];
                assert_eq!(Ends::of(&member, extent)?.read(), (mark, mark), "extent {} has two owners", extent.0);
            }
            (9, _) if random.below(200) == 0 => match member.lease(Kind::Main, 1) {
                Ok(leased) => {
                    Ends::of(&member, leased[0])?.write(5);
                    member.publish(leased[0], Generation(0))?;
                }
                Err(error) if is_full(&error) => {}
                Err(error) => return Err(error),
            },
            _ => {}
        }
    }
    Ok(())
}

// ----------------------------------------------------------------------------------------------------- the parent

struct Started {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Started {
    fn new(path: &Path, mode: &str, crash_point: Option<&str>) -> Started {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["child", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(POOL_VARIABLE, path).env(MODE_VARIABLE, mode).env_remove(CRASH_POINT_VARIABLE);
        if let Some(point) = crash_point {
            command.env(CRASH_POINT_VARIABLE, point);
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Started { child, lines }
    }

    /// Waits for a line. False when the child ends without it.
    fn says(&mut self, wanted: &str) -> bool {
        self.lines.by_ref().map_while(Result::ok_or_none).any(|line| line == wanted)
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Waits until the process is stopped.
    fn stops(&self) {
        loop {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
            match stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()) {
                Some('T') => return,
                Some('Z' | 'X') => panic!("it ended"),
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Lines of a pipe whose writer was killed may end in the middle of a character.
trait OkOrNone<T> {
    fn ok_or_none(self) -> Option<T>;
}

impl OkOrNone<String> for std::io::Result<String> {
    fn ok_or_none(self) -> Option<String> {
        self.ok()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // Of a test that fails.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Buries all that are dead; drops the databases, with what was published and orphaned; then everything is free.
fn all_is_free(path: &Path) {
    let pool = open(path);
    let mut watcher = Watcher::new(Arc::clone(&pool));
    watcher.bury_the_dead().unwrap();
    let hosts = pool.hosts().unwrap();
    assert!(hosts.is_empty(), "somebody is left: {hosts:?}");
    let report = check(&pool, true).unwrap();
    assert!(report.is_clean(), "{report:?}");
    for extent in (0..EXTENTS as u32).map(Extent) {
        let owner = pool.told(pool.books().load(pool.layout().owner(extent))).unwrap();
        let is_settled =
            matches!(owner, Owner::Free { .. } | Owner::Control | Owner::Shared { .. } | Owner::Orphan { .. });
        assert!(is_settled, "extent {} is {owner:?}", extent.0);
    }
    let tool = Member::join(Arc::clone(&pool), &JoinOptions::tool("test")).unwrap();
    for view in pool.databases().unwrap() {
        tool.drop_database(&view.name).unwrap();
    }
    let usage: Vec<_> = usage(&pool).unwrap().into_iter().map(|((state, ..), count)| (state, count)).collect();
    assert_eq!(usage, [("control", 1), ("free", EXTENTS - 1)]);
    ["a", "b"].into_iter().for_each(|name| assert!(tool.create_database(name, 0).is_ok()));
}

#[test]
fn a_process_that_is_killed_at_any_crash_point_leaves_nothing_behind() {
    let Some(place) = place() else { return };
    for point in CRASH_POINTS {
        let mut started = Started::new(&place.path, "once", Some(point));
        assert!(!started.says("ended"), "{point} was not reached");
        let status = started.child.wait().unwrap();
        assert!(status.signal().is_some(), "{point}: {status}");
        all_is_free(&place.path);
    }
    let mut started = Started::new(&place.path, "once", None);
    assert!(started.says("ended"));
    all_is_free(&place.path);
}

#[test]
fn processes_that_are_killed_at_random_leave_nothing_behind() {
    let seconds = std::env::var("TIDEPOOL_STRESS_SECONDS").map_or(3, |text| text.parse().unwrap());
    let seed = std::env::var("TIDEPOOL_STRESS_SEED").map_or(1, |text| text.parse().unwrap());
    let Some(place) = place() else { return };
    let mut random = Random(seed);
    let mut next = seed * 1000;
    let mut start = || {
        next += 1;
        let mut started = Started::new(&place.path, &next.to_string(), None);
        assert!(started.says("joined"), "a worker ended");
        started
    };
    let mut workers: Vec<_> = (0..4).map(|_| start()).collect();
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut kills = 0;
    while Instant::now() < end {
        let index = random.below(workers.len() as u64) as usize;
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        workers.swap_remove(index).kill();
        kills += 1;
        workers.push(start());
        let report = check(&open(&place.path), false).unwrap();
        assert!(report.is_clean(), "{report:?}");
    }
    workers.into_iter().for_each(Started::kill);
    println!("{kills} kills");
    all_is_free(&place.path);
}

#[test]
fn a_stopped_process_is_in_quarantine_until_it_is_killed() {
    let Some(place) = place() else { return };
    let pool = open(&place.path);
    let mut started = Started::new(&place.path, "hold", None);
    assert!(started.says("joined"));
    let mut watcher = Watcher::new(Arc::clone(&pool));
    started.signal("-STOP");
    let silence = Duration::from_millis(100);
    let host = loop {
        let findings = watcher.look(silence).unwrap();
        let (host, finding) = findings[0];
        assert!(!matches!(finding, Finding::Dead(_)), "it has its lock");
        if finding == Finding::Silent {
            break host;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(watcher.suspect(host).unwrap());
    assert_eq!(watcher.bury_the_dead().unwrap(), 0);
    assert_eq!(check(&pool, false).unwrap().quarantined, 2);
    let tool = Member::join(Arc::clone(&pool), &JoinOptions::tool("test")).unwrap();
    assert!(tool.lease(Kind::Heap, EXTENTS as usize - 2).is_err(), "what it owns is nobody's");
    // It is stopped, and killed all the same.
    let death = watcher.kill(host, Duration::from_secs(10)).unwrap().expect("it is of this kernel");
    assert!(watcher.bury(host, &death).unwrap());
    assert_eq!(tool.lease(Kind::Heap, EXTENTS as usize - 1).unwrap().len(), EXTENTS as usize - 1);
    tool.leave().unwrap();
    all_is_free(&place.path);
}

#[test]
fn a_process_that_was_taken_for_dead_wakes_and_leaves() {
    let Some(place) = place() else { return };
    let pool = open(&place.path);
    let mut started = Started::new(&place.path, "hold", None);
    assert!(started.says("joined"));
    started.signal("-STOP");
    let host = pool.hosts().unwrap()[0].host;
    assert!(pool.told(pool.books().suspect(host)).unwrap());
    started.signal("-CONT");
    assert!(started.says("fenced"));
    started.child.wait().unwrap();
    // It freed what it owned itself, as nobody knows better that it is done.
    assert!(pool.hosts().unwrap().is_empty());
    assert_eq!(pool.database("a").unwrap(), Database(0));
    all_is_free(&place.path);
}

#[test]
fn a_lock_is_seen_by_processes_and_released_by_death() {
    let Some(place) = place() else { return };
    let pool = open(&place.path);
    let mut watcher = Watcher::new(Arc::clone(&pool));
    let mut started = Started::new(&place.path, "hold", None);
    assert!(started.says("joined"));
    assert!(watcher.look(Duration::MAX).unwrap().iter().all(|(_, finding)| *finding == Finding::Alive));
    started.kill();
    assert!(matches!(watcher.look(Duration::MAX).unwrap().as_slice(), [(_, Finding::Dead(_))]));
    assert_eq!(watcher.bury_the_dead().unwrap(), 1);
    all_is_free(&place.path);
}

#[test]
fn a_kill_wakes_all_that_wait_for_it() {
    let Some(place) = place() else { return };
    let pool = open(&place.path);
    let mut started = Started::new(&place.path, "hold", None);
    assert!(started.says("joined"));
    let host = pool.hosts().unwrap()[0].host;
    let watch = || Watcher::new(open(&place.path)).wait_for_end(host, Duration::from_secs(60)).unwrap();
    assert!(!Watcher::new(Arc::clone(&pool)).wait_for_end(host, Duration::from_millis(1)).unwrap(), "it is alive");
    std::thread::scope(|scope| {
        let watchers = [scope.spawn(watch), scope.spawn(watch), scope.spawn(watch)];
        started.kill();
        assert!(watchers.into_iter().all(|watcher| watcher.join().unwrap()));
    });
    all_is_free(&place.path);
    // One that is killed before its thread has the futex, so that the kernel wakes nobody.
    let started = Started::new(&place.path, "hold", Some("stop:pool.beat.begins"));
    started.stops();
    let host = pool.hosts().unwrap()[0].host;
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| Watcher::new(open(&place.path)).wait_for_end(host, Duration::from_secs(60)));
        started.kill();
        assert!(watcher.join().unwrap().unwrap());
    });
    all_is_free(&place.path);
    // One that leaves is no suspect.
    let member = join(&pool, "leaves", "a").unwrap();
    let host = member.host();
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| Watcher::new(open(&place.path)).wait_for_end(host, Duration::from_secs(60)));
        member.leave().unwrap();
        assert!(!watcher.join().unwrap().unwrap());
    });
}

/// At every crash point a process is stopped and taken for dead, another works on, and then the first is woken, or killed.
#[test]
fn a_process_that_is_stopped_at_any_crash_point_harms_nobody() {
    let Some(place) = place() else { return };
    // A device whose addition goes on stays.
    for point in CRASH_POINTS.iter().filter(|point| !point.contains("device")) {
        for wakes in [true, false] {
            let mut started = Started::new(&place.path, "once", Some(&format!("stop:{point}")));
            started.stops();
            let pool = open(&place.path);
            let mut watcher = Watcher::new(Arc::clone(&pool));
            for (host, finding) in watcher.look(Duration::MAX).unwrap() {
                assert!(!matches!(finding, Finding::Dead(_)) || point.contains("sweep"), "{point}: it is only stopped");
                watcher.suspect(host).unwrap();
            }
            let owned: Vec<_> = (0..EXTENTS as u32)
                .map(|extent| pool.told(pool.books().load(pool.layout().owner(Extent(extent)))).unwrap())
                .collect();
            // Whatever the other takes was nobody's.
            let other = join(&pool, "other", "b").unwrap();
            let free = owned.iter().filter(|owner| matches!(owner, Owner::Free { .. })).count();
            for (mark, extent) in (1..).zip(other.lease(Kind::Heap, free).unwrap()) {
                assert!(matches!(owned[extent.0 as usize], Owner::Free { .. }));
                Ends::of(&other, extent).unwrap().write(mark);
            }
            if wakes {
                started.signal("-CONT");
                // It is told, unless it is about to leave.
                assert!(started.lines.by_ref().any(|line| line.is_ok_and(|line| line == "fenced" || line == "ended")));
                started.child.wait().unwrap();
            } else {
                started.kill();
            }
            for (mark, extent) in (1..).zip((0..EXTENTS as u32).map(Extent).filter(|extent| {
                let owner = pool.told(pool.books().load(pool.layout().owner(*extent))).unwrap();
                owner.writer() == Some(other.host())
            })) {
                assert_eq!(Ends::of(&other, extent).unwrap().read(), (mark, mark), "{point}: extent {}", extent.0);
            }
            other.leave().unwrap();
            all_is_free(&place.path);
        }
    }
}
