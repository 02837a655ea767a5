//! Real processes over one pool: the primary of a database is killed or stopped at random, or ends at a crash point, while it
//! writes. A standby takes over, and another is started. Whatever was acknowledged is there in the end, nothing is there in
//! part, all ways to the rows agree, and the pool's books are clean.
//!
//! Readers are killed and stopped beside them. Each is asked for positions of the log at which a commit was acknowledged: once it
//! says that it shows one, it shows that commit, and none in part.
//!
//! `TIDEPOOL_STRESS_SECONDS=300 TIDEPOOL_STRESS_SEED=7 cargo test --release -p tidepool-database --lib -- roles::processes --nocapture`

use super::tests::{Place, WAIT};
use super::*;
use crate::stress::{for_seeds, variable};
use crate::tests::{columns, insert, placement, rows};
use crate::write::index::{INDEXED_AT_ONCE, IndexedAtOnce};
use crate::write::writer::SHORT_ROW_GROUP_ROWS;
use crate::{Changed, Lsn, Transaction};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use tidepool_base::{CRASH_POINT_VARIABLE, RowId};
use tidepool_device::Location;

const POOL_VARIABLE: &str = "TIDEPOOL_TEST_ROLE_POOL";
const SEED_VARIABLE: &str = "TIDEPOOL_TEST_ROLE_SEED";
/// The process is a reader.
const READER_VARIABLE: &str = "TIDEPOOL_TEST_ROLE_READER";
/// Beside the pool, of a host with a second tier.
const FOLDER_VARIABLE: &str = "TIDEPOOL_TEST_ROLE_FOLDER";

/// Rows of a transaction, all with numbers of one multiple of it.
const ROWS: usize = 10;

/// Rows of a transaction that make a row group of main.
const LOAD: usize = (SHORT_ROW_GROUP_ROWS + 50).next_multiple_of(ROWS);

/// Numbers that a process has for itself.
const NUMBERS: usize = 10_000_000;

/// Rows that transfers move between two tables, and that no transaction makes or takes.
const MOVED: usize = 100;

/// Silent for so long, a primary is taken over from. Longer than a loaded machine delays a beat.
const TIMEOUT: Duration = Duration::from_millis(500);

const WRITERS: usize = 3;

/// Numbers of readers are from here on.
const READERS: usize = 1_000_000;

/// Not a test: what the others start, stop and kill.
#[test]
fn child() {
    let (Ok(pool), Ok(seed)) = (std::env::var(POOL_VARIABLE), std::env::var(SEED_VARIABLE)) else { return };
    let say = |line: String| std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
    say("\n".into());
    let seed: usize = seed.parse().unwrap();
    let place = Location::File(pool.into());
    // As of large tables: keys are looked for while indexes are filled, and the process may die meanwhile. Every third leaves that to those.
    INDEXED_AT_ONCE.set(Some(IndexedAtOnce { rows: 64, leaves_others: seed.is_multiple_of(3) }));
    let is_reader = std::env::var_os(READER_VARIABLE).is_some();
    let role = if is_reader { PoolRole::Reader } else { PoolRole::Auto };
    let mut config = super::tests::config_at(place, &format!("host-{seed}"), role, TIMEOUT);
    config.data_dir = std::env::var_os(FOLDER_VARIABLE).map(Into::into);
    let has_folder = config.data_dir.is_some();
    let database = Database::open(config);
    let database = match database {
        // Another one has been suspicious in the meantime.
        Err(error) if error.code() == SqlState::CRASH_SHUTDOWN => return say(format!("fenced {}\n", error.message())),
        database => database.unwrap(),
    };
    if is_reader {
        return read_on(&database, &say);
    }
    say(format!("{}\n", database.role().name()));
    loop {
        match database.role() {
            HostRole::Following => drop(database.wait_role(HostRole::Following, WAIT)),
            HostRole::TakingOver => drop(database.wait_role(HostRole::TakingOver, WAIT)),
            HostRole::Primary => break say("primary\n".into()),
            role => return say(format!("{} {:?}\n", role.name(), database.follow_progress())),
        }
    }
    if database.state().table(&"one".into()).is_none() {
        let mut transaction = database.begin().unwrap();
        for name in ["one", "left", "right", "loads"] {
            let space = if name == "loads" { "far" } else { "near" };
            transaction.create_table(name, columns(), vec![0], placement(space)).unwrap();
        }
        insert(&mut transaction, "left", 0..MOVED).unwrap();
        transaction.commit().unwrap();
    }
    // What is committed before the folder is complete is in the pool alone.
    while has_folder && !database.second_tier().is_some_and(|tier| tier.is_complete) {
        database.checkpoint().unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    let next = AtomicUsize::new(seed * NUMBERS + NUMBERS);
    std::thread::scope(|scope| {
        if has_folder {
            scope.spawn(|| {
                let mut random = StdRng::seed_from_u64(seed as u64);
                while database.role() == HostRole::Primary {
                    std::thread::sleep(Duration::from_millis(random.random_range(10..200)));
                    // It may be fenced meanwhile.
                    let _ = database.checkpoint();
                }
            });
        }
        for thread in 0..WRITERS {
            let (database, next) = (&database, &next);
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64((seed * WRITERS + thread) as u64);
                loop {
                    match step(&mut random, database, next) {
                        Ok(Some(line)) => say(line),
                        Ok(None) => {}
                        Err(error) if error.code() == SqlState::CRASH_SHUTDOWN => return,
                        Err(error) => {
                            let retried = [SqlState::SERIALIZATION_FAILURE, SqlState::DEADLOCK_DETECTED];
                            assert!(retried.contains(&error.code()), "{error} {:?}", error.detail());
                        }
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
        }
    });
    say("fenced\n".into());
}

/// Shows what was acknowledged, whenever it is told where in the log that is, until it is killed or sent away.
fn read_on(database: &Arc<Database>, say: &dyn Fn(String)) {
    say("reader\n".into());
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let Some((start, position)) = line.split_once(' ') else { continue };
        let (start, position): (usize, Lsn) = (start.parse().unwrap(), Lsn(position.parse().unwrap()));
        let (told, waits) = channel();
        let wait = database.when_shown(position, move |outcome| drop(told.send(outcome)));
        let outcome = waits.recv().unwrap();
        drop(wait);
        let begun = database.begin().and_then(|mut transaction| transaction.begin_statement().map(drop));
        if let Err(error) = outcome.and(begun) {
            assert_eq!(error.code(), SqlState::CRASH_SHUTDOWN, "{error}");
            break;
        }
        let shown = numbers_in(database, "one");
        // What was read is told if it was not another's memory by then.
        if database.check_reigns().is_err() {
            break;
        }
        let has_all = |start: usize| (start..start + ROWS).all(|number| shown.contains(&number));
        let torn = shown.iter().map(|number| number / ROWS * ROWS).find(|start| !has_all(*start));
        match torn {
            Some(torn) => say(format!("torn {torn}\n")),
            None if has_all(start) => say(format!("seen {start}\n")),
            None => say(format!("missing {start}\n")),
        }
    }
    say("fenced\n".into());
}

fn numbers_in(database: &Arc<Database>, table: &str) -> BTreeSet<usize> {
    rows(database, table).iter().map(|row| row.split('|').next().unwrap().parse().unwrap()).collect()
}

/// Numbers for so many rows, from a multiple of `ROWS` on.
fn numbers(next: &AtomicUsize, count: usize) -> usize {
    next.fetch_add(count + ROWS, Ordering::Relaxed).next_multiple_of(ROWS)
}

/// One transaction. What it is acknowledged by is to be said.
fn step(random: &mut StdRng, database: &Arc<Database>, next: &AtomicUsize) -> Result<Option<String>> {
    let kind = random.random_range(0..40);
    if kind == 0 {
        let name = ["one", "left", "right"][random.random_range(0..3)];
        database.merge(name)?;
        database.vacuum();
        return Ok(None);
    }
    let mut transaction = database.begin()?;
    let (what, start) = match kind {
        1 => {
            let start = numbers(next, LOAD);
            insert(&mut transaction, "loads", start..start + LOAD)?;
            ("load", start)
        }
        2..15 => ("moved", transfer(random, &mut transaction, next)?),
        _ => {
            let start = numbers(next, ROWS);
            insert(&mut transaction, "one", start..start + ROWS)?;
            ("ack", start)
        }
    };
    transaction.commit()?;
    Ok(Some(format!("{what} {start} {}\n", database.written_lsn().0)))
}

/// Takes some rows of one table and puts as many into the other.
fn transfer(random: &mut StdRng, transaction: &mut Transaction, next: &AtomicUsize) -> Result<usize> {
    let (from, to) = if random.random() { ("left", "right") } else { ("right", "left") };
    let version = transaction.begin_statement()?;
    let table = version.table(from).ok_or_else(|| Error::internal("no such table"))?;
    let all = (0..table.rows().ranges()).flat_map(|range| (0..3000).map(move |at| RowId::new(range, at)));
    let some = all.filter(|row| table.rows().read(table.view(), *row).is_some());
    let some: Vec<RowId> = some.filter(|_| random.random_range(0..10) == 0).collect();
    drop((version, table));
    let Changed::Rows(taken) = transaction.delete(from, &some)? else { return Ok(0) };
    transaction.end_statement();
    let count = taken.true_count();
    let start = numbers(next, count);
    insert(transaction, to, start..start + count)?;
    Ok(count)
}

/// A child, as its parent knows it.
struct Running {
    number: usize,
    child: Child,
    lines: Receiver<String>,
    role: String,
    is_hit: bool,
    has_ended: bool,
    goes_on_at: Option<Instant>,
    /// Of a reader.
    orders: Option<ChildStdin>,
    asked: Option<Instant>,
}

#[derive(Default)]
struct Told {
    /// An insertion that was acknowledged, and a place in the log behind it.
    latest: Option<(usize, u64)>,
    /// What readers were asked for and have shown.
    seen: usize,
    acknowledged: BTreeSet<usize>,
    loaded: BTreeSet<usize>,
    /// Children that became primary, in that order.
    primaries: Vec<usize>,
    moved: usize,
}

impl Running {
    fn start(place: &Place, number: usize, crash: Option<&str>) -> Running {
        Running::start_with(place, number, crash, None, false)
    }

    fn start_with(place: &Place, number: usize, crash: Option<&str>, folder: Option<&str>, is_reader: bool) -> Running {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "roles::processes::child", "--nocapture"]).env_remove(CRASH_POINT_VARIABLE);
        let Location::File(path) = place.location() else { panic!("a pool is a file") };
        command.env(POOL_VARIABLE, path).env(SEED_VARIABLE, number.to_string());
        if let Some(crash) = crash {
            command.env(CRASH_POINT_VARIABLE, crash);
        }
        if let Some(folder) = folder {
            command.env(FOLDER_VARIABLE, place.folder(folder));
        }
        if is_reader {
            command.env(READER_VARIABLE, "");
        }
        let errors = place.file(&format!("errors-{number}"));
        let orders = if is_reader { Stdio::piped() } else { Stdio::null() };
        command.stdin(orders).stdout(Stdio::piped()).stderr(errors);
        let mut child = command.spawn().unwrap();
        let orders = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(|line| line.ok()) {
                // Nobody may want the rest.
                let _ = sender.send(line);
            }
        });
        let role = String::new();
        Running { number, child, lines, role, is_hit: false, has_ended: false, goes_on_at: None, orders, asked: None }
    }

    fn hear(&mut self, told: &mut Told) {
        loop {
            let line = match self.lines.try_recv() {
                Ok(line) => line,
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.has_ended = true;
                    return;
                }
            };
            let mut words = line.split(' ');
            let (what, number) = (words.next().unwrap_or_default(), words.next().and_then(|word| word.parse().ok()));
            match (what, number) {
                ("ack", Some(start)) => {
                    told.acknowledged.insert(start);
                    told.latest = words.next().and_then(|word| word.parse().ok()).map(|position| (start, position));
                }
                ("seen", Some(_)) => (self.asked, told.seen) = (None, told.seen + 1),
                ("missing" | "torn", _) => panic!("reader {}: {line}", self.number),
                ("load", Some(start)) => drop(told.loaded.insert(start)),
                ("moved", Some(_)) => told.moved += 1,
                ("primary", _) if self.role != "primary" => {
                    self.role = "primary".to_owned();
                    told.primaries.push(self.number);
                }
                ("standby" | "fenced" | "reader", _) => self.role = what.to_owned(),
                ("failed", _) => panic!("host {} cannot follow: {line}", self.number),
                _ => {}
            }
        }
    }

    /// Wakes it, if it is time to.
    fn go_on(&mut self) -> bool {
        let is_time = self.goes_on_at.is_some_and(|at| at <= Instant::now());
        if is_time {
            self.goes_on_at = None;
            // It may have been ended by the one that took over from it.
            let _ = Command::new("kill").args(["-CONT", &self.child.id().to_string()]).status();
        }
        is_time
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(status.unwrap().success());
    }
}

/// All that children may end at.
fn crash_points() -> Vec<&'static str> {
    let own = crate::CRASH_POINTS.iter().filter(|point| !point.starts_with("checkpoint"));
    let log = tidepool_log::CRASH_POINTS.iter().chain(tidepool_log::POOL_CRASH_POINTS);
    let of_files = ["log.noted", "log.segment.renamed", "log.segment.removed", "log.recycle", "log.segment.forgotten"];
    let log = log.filter(|point| !of_files.contains(point) && !point.starts_with("log.tee"));
    own.chain(crate::ROLE_CRASH_POINTS).chain(log).chain(tidepool_pool::CRASH_POINTS).copied().collect()
}

/// Readers beside the others.
#[derive(Default)]
struct Readers {
    all: Vec<Running>,
    started: usize,
    hit_at: Option<Instant>,
    hits: usize,
}

impl Readers {
    /// Starts, asks, kills and stops some.
    fn go_on(&mut self, seed: u64, random: &mut StdRng, place: &Place, told: &mut Told) {
        // There is something to be shown.
        if told.latest.is_none() {
            return;
        }
        while self.all.len() < 2 {
            let crash = (random.random_range(0..4) == 0).then(|| {
                let point = ["follow.applied", "pool.joined", "pool.beat.begins"][random.random_range(0..3)];
                format!("{point}:{}", random.random_range(1..60))
            });
            let number = READERS + self.started;
            let mut reader = Running::start_with(place, number, crash.as_deref(), None, true);
            // It may end by itself.
            reader.is_hit = crash.is_some();
            self.all.push(reader);
            self.started += 1;
        }
        for reader in &mut self.all {
            reader.hear(told);
            reader.go_on();
            let waits = reader.asked.is_some_and(|asked| asked.elapsed() > WAIT);
            assert!(!waits, "seed {seed}: reader {} does not answer {}", reader.number, place.errors());
            if let (Some((start, position)), "reader", None) = (told.latest, &*reader.role, reader.asked)
                && let Some(orders) = &mut reader.orders
            {
                reader.asked = Some(Instant::now());
                // It may have been killed.
                let _ = orders.write_all(format!("{start} {position}\n").as_bytes());
            }
        }
        self.all.retain_mut(|reader| {
            if reader.has_ended {
                reader.child.wait().unwrap();
                let is_right = reader.is_hit || reader.role == "fenced";
                assert!(is_right, "seed {seed}: reader {} ended {}", reader.number, place.errors());
            }
            !reader.has_ended
        });
        let at =
            *self.hit_at.get_or_insert_with(|| Instant::now() + Duration::from_millis(random.random_range(100..900)));
        if at > Instant::now() || self.all.is_empty() {
            return;
        }
        self.hit_at = None;
        let index = random.random_range(0..self.all.len());
        let reader = &mut self.all[index];
        if reader.role != "reader" || reader.goes_on_at.is_some() {
            return;
        }
        self.hits += 1;
        if random.random_range(0..3) > 0 {
            reader.is_hit = true;
            reader.child.kill().unwrap();
        } else {
            reader.signal("-STOP");
            reader.goes_on_at = Some(Instant::now() + TIMEOUT.mul_f64(random.random_range(0.1..1.5)));
        }
    }
}

/// So many processes become primary one after the other.
fn failovers(seed: u64, count: usize) {
    let mut random = StdRng::seed_from_u64(seed);
    let place = Place::new();
    let points = crash_points();
    let (mut hosts, mut told) = (Vec::<Running>::new(), Told::default());
    let (mut started, mut heard) = (0, Instant::now());
    let (mut hit_at, mut readers) = (None, Readers::default());
    while told.primaries.len() < count {
        while hosts.len() < 2 {
            // The first may write for a while.
            let crash = if started > 0 && random.random_range(0..3) == 0 {
                let point = points[random.random_range(0..points.len())];
                Some(format!("{point}:{}", random.random_range(1..30)))
            } else {
                None
            };
            hosts.push(Running::start(&place, started, crash.as_deref()));
            started += 1;
        }
        std::thread::sleep(Duration::from_millis(1));
        let before = (told.acknowledged.len(), told.primaries.len(), started);
        for host in &mut hosts {
            host.hear(&mut told);
            if host.go_on() {
                // If it was not taken over from meanwhile, it is to be hit again.
                host.is_hit = false;
            }
        }
        readers.go_on(seed, &mut random, &place, &mut told);
        if before != (told.acknowledged.len(), told.primaries.len(), started) {
            heard = Instant::now();
        }
        let state = || hosts.iter().map(|host| (host.number, host.role.clone(), host.is_hit)).collect::<Vec<_>>();
        assert!(heard.elapsed() < WAIT, "seed {seed}: nobody is primary: {:?} {}", state(), place.errors());
        hosts.retain_mut(|host| {
            if host.has_ended {
                host.child.wait().unwrap();
            }
            !host.has_ended
        });
        let is_followed = hosts.iter().any(|host| host.role == "standby");
        let Some(primary) = hosts.iter_mut().find(|host| host.role == "primary" && !host.is_hit) else {
            hit_at = None;
            continue;
        };
        let at = *hit_at.get_or_insert_with(|| Instant::now() + Duration::from_millis(random.random_range(20..400)));
        if at > Instant::now() || !is_followed && random.random_range(0..1000) > 0 {
            continue;
        }
        (primary.is_hit, hit_at) = (true, None);
        if random.random_range(0..3) > 0 {
            primary.child.kill().unwrap();
        } else {
            primary.signal("-STOP");
            // Some wake while they are taken over from.
            primary.goes_on_at = Some(Instant::now() + TIMEOUT.mul_f64(random.random_range(0.5..1.5)));
        }
    }
    for mut host in hosts.into_iter().chain(readers.all) {
        host.child.kill().unwrap();
        host.child.wait().unwrap();
        while !host.has_ended {
            host.hear(&mut told);
            std::thread::yield_now();
        }
    }
    let database = place.open("last", PoolRole::Auto);
    verify(seed, &database, &told);
    database.close().unwrap();
    drop(database);
    place.checked();
    let (acknowledged, loaded) = (told.acknowledged.len(), told.loaded.len());
    println!(
        "seed {seed}: {} primaries of {started} processes, {} readers hit {} times; {acknowledged} insertions, {loaded} loads, \
         {} transfers, {} positions shown",
        told.primaries.len(),
        readers.started,
        readers.hits,
        told.moved,
        told.seen
    );
}

/// What was acknowledged is there, and nothing in part.
fn verify(seed: u64, database: &Arc<Database>, told: &Told) {
    assert_eq!(database.role(), HostRole::Primary);
    let numbers = |table: &str| numbers_in(database, table);
    let whole = |table: &str, rows: usize, told: &BTreeSet<usize>| {
        let mut found = numbers(table);
        for start in told {
            assert!((*start..start + rows).all(|number| found.remove(&number)), "seed {seed}: {start} is lost");
        }
        // Others were committed, and their processes died before they said so: none in part.
        while let Some(start) = found.first().copied() {
            let is_whole = start.is_multiple_of(ROWS) && (start..start + rows).all(|number| found.remove(&number));
            assert!(is_whole, "seed {seed}: {start} of {table} is there in part");
        }
    };
    whole("one", ROWS, &told.acknowledged);
    whole("loads", LOAD, &told.loaded);
    assert_eq!(numbers("left").len() + numbers("right").len(), MOVED, "seed {seed}");
    for checked in database.check(&|| Ok(())).unwrap() {
        assert!(checked.faults.is_empty(), "{}: {:?}", checked.object, checked.faults);
    }
}

/// Hosts with a data folder, one after the other, are killed or end at crash points, while they write, and while they fill the pool.
/// The pool is lost, damaged, or there, when the next one starts.
fn lost_pools(seed: u64, rounds: usize) {
    let mut random = StdRng::seed_from_u64(seed);
    let place = Place::new();
    let points: Vec<&str> =
        [&["log.tee.header", "log.tee.block", "checkpoint.rows", "checkpoint.manifest"], crate::ROLE_CRASH_POINTS]
            .concat();
    let mut told = Told::default();
    let (mut lost, mut filling) = (0, 0);
    for round in 0..rounds {
        let crash = (round > 0 && random.random_range(0..3) == 0).then(|| {
            let point = points[random.random_range(0..points.len())];
            format!("{point}:{}", random.random_range(1..30))
        });
        let mut host = Running::start_with(&place, round, crash.as_deref(), Some("data"), false);
        let is_early = round > 0 && random.random_range(0..4) == 0;
        let (started, before) = (Instant::now(), told.acknowledged.len());
        let mut ends_at = is_early.then(|| started + Duration::from_millis(random.random_range(0..300)));
        while !host.has_ended {
            host.hear(&mut told);
            if ends_at.is_none() && told.acknowledged.len() > before {
                ends_at = Some(Instant::now() + Duration::from_millis(random.random_range(50..1000)));
            }
            if ends_at.is_some_and(|at| at <= Instant::now()) {
                filling += usize::from(host.role != "primary");
                host.child.kill().unwrap();
                ends_at = None;
            }
            assert!(started.elapsed() < WAIT, "seed {seed}, round {round}: {} {}", host.role, place.errors());
            std::thread::sleep(Duration::from_millis(1));
        }
        host.child.wait().unwrap();
        let Location::File(path) = place.location() else { panic!("a pool is a file") };
        match random.random_range(0..4) {
            0 => {}
            // The process may have been killed before it made a lost pool anew.
            _ if !path.exists() => {}
            1 => {
                let file = std::fs::File::options().write(true).open(&path).unwrap();
                std::os::unix::fs::FileExt::write_all_at(&file, &[0x5a; 4096], 0).unwrap();
                lost += 1;
            }
            _ => {
                std::fs::remove_file(&path).unwrap();
                lost += 1;
            }
        }
    }
    let mut config = place.config("last", PoolRole::Auto);
    config.data_dir = Some(place.folder("data"));
    let database = Database::open(config).unwrap_or_else(|error| panic!("seed {seed}: {error} {:?}", error.detail()));
    verify(seed, &database, &told);
    database.close().unwrap();
    drop(database);
    place.checked();
    let (acknowledged, loaded) = (told.acknowledged.len(), told.loaded.len());
    println!(
        "seed {seed}: {rounds} processes, {lost} pools lost, {filling} killed before they served; {acknowledged} \
         insertions, {loaded} loads, {} transfers",
        told.moved
    );
}

#[test]
fn nothing_acknowledged_is_lost_with_the_pool() {
    let rounds = if variable("TIDEPOOL_STRESS_SECONDS", 0) > 0 { 12 } else { 6 };
    for_seeds(1, |seed| lost_pools(seed, rounds));
}

#[test]
fn nothing_acknowledged_is_lost_when_primaries_die() {
    let rounds = if variable("TIDEPOOL_STRESS_SECONDS", 0) > 0 { 10 } else { 5 };
    for_seeds(1, |seed| failovers(seed, rounds));
}
