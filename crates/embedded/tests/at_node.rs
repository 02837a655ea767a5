//! A database whose far memory is at a memory node: three processes, of which the node's and the database's are killed.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use tidepool_device::remote::NodeAddress;
use tidepool_device::{Location, paged};
use tidepool_embedded::{
    Config, ConfigBuilder, Direction, Isolation, MergePolicy, Result, ScanRange, SqlType, TableBuilder, Text, Tidepool,
};
use tidepool_node::{Arena, Process};

const ROWS: i64 = 30_000;

/// After it something hangs, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(600);

/// What a child is to be, and where.
const CHILD: &str = "TIDEPOOL_TEST_CHILD";

/// False, with the reason printed, where the kernel refuses userfaultfd(2).
fn available() -> bool {
    paged::available().inspect_err(|error| tidepool_base::cannot_test(error)).is_ok()
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("node")
}

/// Not a test of its own: what the node's process runs.
#[test]
fn node_process() {
    let Some(folder) = child("node") else { return };
    let arena = Arena::open(&Location::Anon, Some(128 << 20)).unwrap();
    let process = Process::bind(arena, &NodeAddress::Unix(socket(&folder)), None, 100).unwrap();
    println!("ready");
    process.run().unwrap();
}

/// Not a test of its own: what the database's process runs, until it is killed. It says which rows it has committed.
#[test]
fn database_process() {
    let Some(folder) = child("database") else { return };
    let tidepool = open(&folder).unwrap();
    if tidepool.table("rows").is_err() {
        create(&tidepool);
    }
    check_whole(&tidepool);
    println!("ready {}", last(&tidepool));
    let (rows, by_id) = {
        let rows = tidepool.table("rows").unwrap();
        let by_id = rows.primary_key().unwrap();
        (rows, by_id)
    };
    let value = rows.column::<i64>("value").unwrap();
    let mut session = tidepool.session().unwrap();
    for id in last(&tidepool) + 1.. {
        let text = note(id);
        session
            .run(Isolation::Serializable, |access| {
                access.insert(&rows, (id, id * 3, text.as_str()))?;
                // An older one is changed there and back, so that its memory is written at the node.
                let older = access.get(&by_id, ((id * 7919) % id,))?.expect("it is there");
                let (row, before) = (older.id(), older.get(value));
                access.update(&rows, row, |row| row.set(value, &(before + 1)))?;
                access.update(&rows, row, |row| row.set(value, &before))
            })
            .unwrap();
        println!("{id}");
        if id % 2_000 == 0 {
            check_whole(&tidepool);
            println!("whole");
        }
        if id % 5_000 == 0 {
            tidepool.database().checkpoint().unwrap();
        }
    }
}

/// The folder, if this process is a child of that kind.
fn child(kind: &str) -> Option<PathBuf> {
    let text = std::env::var(CHILD).ok()?;
    let (found, folder) = text.split_once(' ')?;
    (found == kind).then(|| folder.into())
}

fn configuration(folder: &Path) -> Result<Config> {
    ConfigBuilder::default()
        .near("64MB")?
        .far(&format!("node:unix:{},cache=1MB,size=48MB", socket(folder).display()))?
        .data_dir(Some(folder.join("data")))
        .build()
}

fn open(folder: &Path) -> Result<Tidepool> {
    Tidepool::open(configuration(folder)?)
}

fn note(id: i64) -> String {
    format!("the note of row {id}, of a length of its own {}", "-".repeat((id % 50) as usize))
}

fn create(tidepool: &Tidepool) {
    TableBuilder::new("rows")
        .column("id", SqlType::BigInt)
        .column("value", SqlType::BigInt)
        .column("note", SqlType::Text)
        .primary_key(["id"])
        .tablespace("far")
        .index_tablespace("far")
        .merge_policy(MergePolicy::Never)
        .create(tidepool)
        .unwrap();
    let rows = tidepool.table("rows").unwrap();
    let mut session = tidepool.session().unwrap();
    for start in (0..ROWS).step_by(500) {
        session
            .run(Isolation::Serializable, |access| {
                (start..start + 500).try_for_each(|id| access.insert(&rows, (id, id * 3, note(id).as_str())).map(drop))
            })
            .unwrap();
    }
}

fn last(tidepool: &Tidepool) -> i64 {
    let rows = tidepool.table("rows").unwrap();
    let (by_id, id) = (rows.primary_key().unwrap(), rows.column::<i64>("id").unwrap());
    let mut session = tidepool.session().unwrap();
    session
        .run(Isolation::RepeatableRead, |access| {
            let mut found = access.scan(&by_id, ScanRange::all(), Direction::Backward)?;
            Ok(found.next().expect("there are rows")?.get(id))
        })
        .unwrap()
}

/// Reads all rows in their order: none is missing, and each is what was committed.
fn check_whole(tidepool: &Tidepool) {
    let rows = tidepool.table("rows").unwrap();
    let by_id = rows.primary_key().unwrap();
    let (id, value) = (rows.column::<i64>("id").unwrap(), rows.column::<i64>("value").unwrap());
    let text = rows.column::<Text>("note").unwrap();
    let mut session = tidepool.session().unwrap();
    session
        .run(Isolation::RepeatableRead, |access| {
            for (number, row) in access.scan(&by_id, ScanRange::all(), Direction::Forward)?.enumerate() {
                let row = row?;
                let number = number as i64;
                assert_eq!((row.get(id), row.get(value)), (number, number * 3));
                assert_eq!(row.get(text), note(number));
            }
            Ok(())
        })
        .unwrap();
}

/// A child that outlives no test, also one that fails.
struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // An error: it is over.
        let _ = (self.child.kill(), self.child.wait());
    }
}

impl Running {
    fn start(kind: &str, folder: &Path) -> Running {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("{kind}_process"), "--nocapture"])
            .env(CHILD, format!("{kind} {}", folder.display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Running { child, lines }
    }

    /// The rest of the next line that begins so.
    fn until(&mut self, beginning: &str) -> String {
        loop {
            let line = self.lines.next().unwrap_or_else(|| panic!("it ended before {beginning}")).unwrap();
            if let Some(rest) = line.strip_prefix(beginning) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Reads on until it has committed `count` more rows. The last of them.
    fn commits(&mut self, count: usize) -> i64 {
        let mut numbers = self.lines.by_ref().filter_map(|line| line.unwrap().parse().ok());
        numbers.nth(count - 1).expect("it goes on")
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }
}

/// The node is killed, started anew, stopped and woken, while the database commits; then both are killed. What was committed
/// is there, and the database needs no node to say so.
#[test]
fn a_node_that_comes_and_goes_costs_no_commit() {
    if !available() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    let mut node = Running::start("node", folder.path());
    node.until("ready");
    let mut database = Running::start("database", folder.path());
    database.until("ready");
    database.commits(300);
    for _ in 0..2 {
        drop(node);
        database.commits(300);
        database.until("whole");
        node = Running::start("node", folder.path());
        node.until("ready");
        database.commits(300);
        database.until("whole");
    }
    node.signal("-STOP");
    database.commits(300);
    node.signal("-CONT");
    database.commits(300);
    // The database alone, and then the node as well.
    for with_node in [true, false] {
        let committed = database.commits(50);
        if !with_node {
            drop(node);
            node = Running::start("node", folder.path());
            node.signal("-KILL");
        }
        drop(database);
        database = Running::start("database", folder.path());
        let found: i64 = database.until("ready").parse().unwrap();
        assert!(found >= committed, "{committed} was committed, and {found} is the last");
        database.commits(300);
        database.until("whole");
    }
    drop(database);
    assert!(begun.elapsed() < PATIENCE);
    // The last word: within this process, without a node.
    let tidepool = open(folder.path()).unwrap();
    check_whole(&tidepool);
    std::io::stdout().flush().unwrap();
}

/// A new data folder has no rows, and is told that there is no node.
#[test]
fn a_new_database_needs_its_node() {
    if !available() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let error = open(folder.path()).unwrap_err();
    assert_eq!(error.code(), tidepool_embedded::SqlState::CONNECTION_FAILURE, "{error}");
    assert!(error.hint().unwrap().contains("tidepool memory-node --listen"), "{error}");
}
