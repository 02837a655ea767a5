//! Processes of two machines that share a pool which is dealt out, killed while slices change hands: at random moments, and at every
//! crash point. No extent has two owners, a machine's slice stays its own until it is given up or the machine is said to be dead, and
//! nothing that dead processes owned is lost. The machines are one, so what its caches would do is not tried (`dealt_simulated`).
//!
//! `TIDEPOOL_STRESS_SECONDS=300 TIDEPOOL_STRESS_SEED=7 cargo test --release -p tidepool-pool --test slices -- --nocapture`

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
use tidepool_device::{Device, Mapping, Protection};
use tidepool_pool::SLICE_CRASH_POINTS;
use tidepool_pool::check::{check, usage};
use tidepool_pool::dealt::{Machine, Slice};
use tidepool_pool::liveness::Watcher;
use tidepool_pool::member::{JoinOptions, Member};
use tidepool_pool::pool::{CreateOptions, Pool};
use tidepool_pool::slices::DealtPool;
use tidepool_pool::words::{Generation, Kind, Role};

const POOL_VARIABLE: &str = "TIDEPOOL_TEST_DEALT_POOL";
const MODE_VARIABLE: &str = "TIDEPOOL_TEST_DEALT_MODE";
const MACHINES: [Machine; 2] = [Machine(0), Machine(1)];
const ONE: Machine = MACHINES[0];
const TWO: Machine = MACHINES[1];
const SLICES: [Slice; 2] = [Slice(0), Slice(1)];
/// Of a slice, beside the one with the books.
const EXTENTS: u64 = 6;

/// Within a slice that is in use.
const WITHIN: &[&str] = &["pool.joined", "pool.lease.zeroed", "pool.publish.summed", "pool.back.returning"];

struct Place {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

/// Two slices. `None` where a lock that is free does not say that a process has ended.
fn place() -> Option<Place> {
    let shm = Path::new("/dev/shm");
    let parent = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
    let folder = tempfile::Builder::new().prefix("tidepool-slices-").tempdir_in(parent).unwrap();
    let path = folder.path().join("pool");
    let options = CreateOptions {
        devices: vec![(location(&path), Some((1 + 2 * (1 + EXTENTS)) << 21))],
        extent_bytes: None,
        bytes_max: None,
        label: String::new(),
        populates: false,
        overcommits: false,
    };
    drop(DealtPool::create(&options, MACHINES.len() as u8).unwrap());
    let mapping = Mapping::open_shared(&location(&path), Protection::Read).unwrap();
    if !mapping.device().is_some_and(Device::is_of_one_kernel) {
        cannot_test(&format_args!("\"{}\" may be other kernels' too", folder.path().display()));
        return None;
    }
    Some(Place { _folder: folder, path })
}

fn open(path: &Path, machine: Machine, slice: Slice) -> Result<Arc<Pool>> {
    Pool::open_slice(&location(path), machine, slice).map(Arc::new)
}

fn release(path: &Path, machine: Machine, slice: Slice) -> Result<()> {
    DealtPool::release(&location(path), machine, slice)
}

fn dealt(path: &Path) -> DealtPool {
    DealtPool::open(&location(path), Protection::ReadWrite).unwrap()
}

fn holder(path: &Path, slice: Slice) -> Option<Machine> {
    let views = dealt(path).slices().unwrap();
    views.into_iter().find(|view| view.slice == slice).unwrap().holder.map(|(machine, _)| machine)
}

fn join(pool: &Arc<Pool>, name: &str) -> Result<Member> {
    let options = JoinOptions { role: Role::Standby, database: Some("a".to_owned()), ..JoinOptions::tool(name) };
    if pool.databases()?.is_empty() {
        let tool = Member::join(Arc::clone(pool), &JoinOptions::tool("tool"))?;
        match tool.create_database("a", 0) {
            // Another process of the machine was quicker.
            Err(error) if error.code() == SqlState::DUPLICATE_DATABASE => {}
            created => drop(created?),
        }
        tool.leave()?;
    }
    Member::join(Arc::clone(pool), &options)
}

// ------------------------------------------------------------------------------------------------------ the child

/// Not a test: what the others start and kill.
#[test]
fn child() {
    let Some(path) = std::env::var_os(POOL_VARIABLE) else { return };
    let path = Path::new(&path);
    let mode = std::env::var(MODE_VARIABLE).unwrap_or_default();
    let say = |line: &str| {
        let mut out = std::io::stdout().lock();
        out.write_all(format!("\n{line}\n").as_bytes()).and_then(|()| out.flush()).unwrap();
    };
    // The parent may kill it before it has ended by itself.
    let wrong = path.with_extension("wrong");
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let _ = std::fs::write(&wrong, info.to_string());
        hook(info);
    }));
    match mode.split_once(':') {
        None => once(path).unwrap(),
        Some((machine, seed)) => work(path, Machine(machine.parse().unwrap()), seed.parse().unwrap(), &say),
    }
    say("ended");
}

/// Takes a slice, works in it, and gives it up.
fn once(path: &Path) -> Result<()> {
    let pool = open(path, ONE, SLICES[0])?;
    Watcher::new(Arc::clone(&pool)).bury_the_dead()?;
    let member = join(&pool, "once")?;
    let leased = member.lease(Kind::Heap, 2)?;
    Ends::of(&member, leased[0])?.write(3);
    // What is published stays: as long as there is room for it.
    if let Ok(filled) = member.lease(Kind::Main, 1) {
        Ends::of(&member, filled[0])?.write(5);
        member.publish(filled[0], Generation(0))?;
    }
    member.give_back(leased[0])?;
    member.leave()?;
    drop(pool);
    release(path, ONE, SLICES[0])
}

fn is_in_use(error: &Error) -> bool {
    error.code() == SqlState::OBJECT_IN_USE
}

/// Takes slices, leases, writes and compares in them, and gives them up, until it is killed.
fn work(path: &Path, machine: Machine, seed: u64, say: &dyn Fn(&str)) {
    let mut random = Random(seed);
    say("works");
    for round in 0u64.. {
        let slice = SLICES[random.below(2) as usize];
        let pool = match open(path, machine, slice) {
            Ok(pool) => pool,
            Err(error) if is_in_use(&error) => {
                std::thread::sleep(Duration::from_micros(random.below(2000)));
                continue;
            }
            Err(error) => panic!("{error:?}"),
        };
        let is_left = match stay(&pool, &mut random, (seed << 32) + (round << 8)) {
            Ok(()) => true,
            // Another process of the machine gave the slice up before this one had joined it.
            Err(error) if error.code() == SqlState::ADMIN_SHUTDOWN => false,
            Err(error) => panic!("{error:?}"),
        };
        drop(pool);
        if is_left && random.below(2) == 0 {
            match release(path, machine, slice) {
                Ok(()) => {}
                // Another process of the machine uses it, or has given it up.
                Err(error) if is_in_use(&error) || error.code() == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE => {}
                Err(error) => panic!("{error:?}"),
            }
        }
        say("round");
    }
}

/// Leases, writes, compares and gives back.
fn stay(pool: &Arc<Pool>, random: &mut Random, first_mark: u64) -> Result<()> {
    Watcher::new(Arc::clone(pool)).bury_the_dead()?;
    let member = join(pool, "worker")?;
    let mut own = BTreeMap::new();
    for (mark, step) in (first_mark..).zip(0..20) {
        match random.below(4) {
            0 | 1 => match member.lease(Kind::Heap, 1) {
                Ok(leased) => {
                    Ends::of(&member, leased[0])?.write(mark);
                    own.insert(leased[0], mark);
                }
                Err(error) if error.code() == SqlState::DISK_FULL => {}
                Err(error) => return Err(error),
            },
            2 => {
                if let Some((extent, mark)) = own.pop_first() {
                    assert_eq!(Ends::of(&member, extent)?.read(), (mark, mark), "extent {} has two owners", extent.0);
                    member.give_back(extent)?;
                }
            }
            _ if step % 5 == 0 => std::thread::sleep(Duration::from_micros(random.below(500))),
            _ => {}
        }
        for (extent, mark) in &own {
            assert_eq!(Ends::of(&member, *extent)?.read(), (*mark, *mark), "extent {} has two owners", extent.0);
        }
    }
    assert!(
        pool.slice().is_some_and(|slice| slice.is_held().is_ok_and(|is_held| is_held)),
        "it was given up meanwhile"
    );
    member.leave()
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
        self.lines.by_ref().map_while(|line| line.ok()).any(|line| line == wanted)
    }

    /// Whether it had not ended by itself.
    fn kill(mut self) -> bool {
        let is_alive = self.child.try_wait().unwrap().is_none();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        is_alive
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // Of a test that fails.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Takes a slice that nobody has, and finds in it what was published, and nothing else.
fn all_is_free(path: &Path, machine: Machine, slice: Slice) {
    let pool = open(path, machine, slice).unwrap();
    assert!(pool.hosts().unwrap().is_empty(), "{:?}", pool.hosts());
    let report = check(&pool, true).unwrap();
    assert!(report.is_clean(), "{report:?}");
    let tool = Member::join(Arc::clone(&pool), &JoinOptions::tool("test")).unwrap();
    for view in pool.databases().unwrap() {
        tool.drop_database(&view.name).unwrap();
    }
    let usage: Vec<_> = usage(&pool).unwrap().into_iter().map(|((state, ..), count)| (state, count)).collect();
    assert_eq!(usage, [("control", 1), ("free", EXTENTS)]);
    tool.leave().unwrap();
    drop(pool);
    release(path, machine, slice).unwrap();
    assert!(dealt(path).faults().unwrap().is_empty());
}

/// A process of machine one ends at the point.
fn ends_at(path: &Path, point: &str) {
    let mut started = Started::new(path, "once", Some(point));
    assert!(!started.says("ended"), "{point} was not reached");
    let status = started.child.wait().unwrap();
    assert!(status.signal().is_some(), "{point}: {status}");
    assert!(dealt(path).faults().unwrap().is_empty(), "{point}");
}

#[test]
fn a_machine_keeps_its_slice_when_its_process_is_killed_at_any_point() {
    let Some(place) = place() else { return };
    let path = &place.path;
    for point in SLICE_CRASH_POINTS.iter().chain(WITHIN) {
        ends_at(path, point);
        let is_given = *point == "pool.slice.given";
        assert_eq!(holder(path, SLICES[0]), (!is_given).then_some(ONE), "{point}");
        if !is_given {
            let refused = open(path, TWO, SLICES[0]).unwrap_err();
            assert!(is_in_use(&refused) && refused.message().contains("held by host 1"), "{point}: {refused:?}");
            let refused = release(path, TWO, SLICES[0]).unwrap_err();
            assert_eq!(refused.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "{point}");
        }
        // The next process of its machine goes on, and gives it up.
        let mut started = Started::new(path, "once", None);
        assert!(started.says("ended"), "after {point}");
        drop(started);
        assert_eq!(holder(path, SLICES[0]), None, "{point}");
        all_is_free(path, TWO, SLICES[0]);
    }
}

#[test]
fn a_machine_that_is_said_to_be_dead_leaves_its_slice_to_others_at_any_point() {
    let Some(place) = place() else { return };
    let path = &place.path;
    for point in SLICE_CRASH_POINTS.iter().chain(WITHIN) {
        ends_at(path, point);
        let told = dealt(path).note_over(SLICES[0], TWO, true).unwrap();
        assert_eq!(told, (*point != "pool.slice.given").then_some(ONE), "{point}");
        assert_eq!(holder(path, SLICES[0]), None, "{point}");
        all_is_free(path, TWO, SLICES[0]);
    }
}

#[test]
fn processes_of_two_machines_that_are_killed_at_random_leave_nothing_behind() {
    let seconds = std::env::var("TIDEPOOL_STRESS_SECONDS").map_or(3, |text| text.parse().unwrap());
    let seed = std::env::var("TIDEPOOL_STRESS_SEED").map_or(1, |text| text.parse().unwrap());
    let Some(place) = place() else { return };
    let path = &place.path;
    let mut random = Random(seed);
    let (mut next, mut kills) = (seed * 1000, [0, 0]);
    let mut start = |machine: Machine| {
        next += 1;
        let mut started = Started::new(path, &format!("{}:{next}", machine.0), None);
        assert!(started.says("works"), "a process ended");
        (machine, started)
    };
    let mut all: Vec<_> = [ONE, TWO, ONE, TWO].map(&mut start).into();
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        std::thread::sleep(Duration::from_micros(random.below(30_000)));
        let (machine, started) = all.swap_remove(random.below(4) as usize);
        assert!(started.kill(), "a process of machine {} ended by itself", machine.0 + 1);
        kills[usize::from(machine.0)] += 1;
        all.push(start(machine));
        assert!(dealt(path).faults().unwrap().is_empty());
    }
    for (machine, started) in all {
        assert!(started.kill(), "a process of machine {} ended by itself", machine.0 + 1);
    }
    println!("{} kills at machine 1, {} at machine 2", kills[0], kills[1]);
    let wrong = std::fs::read_to_string(path.with_extension("wrong"));
    assert!(wrong.is_err(), "{wrong:?}");
    for slice in SLICES {
        if let Some(machine) = holder(path, slice) {
            let pool = open(path, machine, slice).unwrap();
            Watcher::new(Arc::clone(&pool)).bury_the_dead().unwrap();
            drop(pool);
            release(path, machine, slice).unwrap();
        }
        all_is_free(path, if slice == SLICES[0] { TWO } else { ONE }, slice);
    }
}
