//! Tablespaces at a memory node: two processes, of which either may be killed, stopped or started anew.

use crate::cli::{Serving, serve, sql, text, tidepool, try_serve};
use crate::documents::{root, statements};
use crate::server::{PATIENCE, TestServer, code, connect};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};
use tidepool_device::paged;
use tokio_postgres::Client;

/// False, with the reason printed, where the kernel refuses userfaultfd(2).
fn available() -> bool {
    paged::available().inspect_err(|error| tidepool_base::cannot_test(error)).is_ok()
}

/// A node in a process of its own. Killed on drop.
struct NodeProcess {
    child: Child,
    address: String,
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        // An error: it is over.
        let _ = (self.child.kill(), self.child.wait());
    }
}

impl NodeProcess {
    fn start(listen: &str, more: &[&str]) -> NodeProcess {
        let mut command = tidepool();
        command.args(["memory-node", "--memory", "anon:,size=256MB", "--listen", listen]).args(more);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("tidepool memory node is ready: ");
        NodeProcess { address: address.unwrap_or_else(|| panic!("{line}")).to_owned(), child }
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the child is not waited for yet, so its number is still its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// What its log says after a graceful stop.
    fn stop(mut self) -> String {
        self.signal(libc::SIGTERM);
        let mut log = String::new();
        self.child.stderr.as_mut().unwrap().read_to_string(&mut log).unwrap();
        assert!(self.child.wait().unwrap().success(), "{log}");
        log
    }
}

/// A data folder, and a node's socket beside it.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn data(&self) -> PathBuf {
        self.0.path().join("data")
    }

    fn listen(&self) -> String {
        format!("unix:{}", self.0.path().join("node").display())
    }

    fn node(&self) -> NodeProcess {
        NodeProcess::start(&self.listen(), &[])
    }

    fn create_tablespace(&self) -> String {
        format!("CREATE TABLESPACE there LOCATION 'node:{},cache=2MB' WITH (size = '64MB')", self.listen())
    }
}

fn run(url: &str, statements: &[&str]) -> String {
    let arguments: Vec<&str> = statements.iter().flat_map(|statement| ["-c", statement]).collect();
    let output = sql(url, &arguments, "");
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).to_owned()
}

/// The only value of a query, whose heap is far.
fn value(url: &str, query: &str) -> String {
    let output = sql(url, &["--format", "csv", "-c", "SET temp_tablespaces = 'far'", "-c", query], "");
    assert!(output.status.success(), "{query}: {}", text(&output.stderr));
    text(&output.stdout).lines().next_back().unwrap_or_default().to_owned()
}

const UP: &str = "SELECT node_up FROM tidepool.paging WHERE tablespace = 'there'";

const MADE: [&str; 4] = [
    "CREATE TABLE rows (a int PRIMARY KEY, b bigint, c text) TABLESPACE there",
    "INSERT INTO rows SELECT x, x::bigint * 7919 % 1000003, 'row ' || x FROM generate_series(1, 200000) AS t(x)",
    "CALL tidepool.merge('rows')",
    "INSERT INTO rows SELECT x, 5, 'new ' || x FROM generate_series(200001, 240000) AS t(x)",
];

const SUMS: &str = "SELECT count(*) || ' ' || sum(b) || ' ' || sum(length(c)) FROM rows";

fn sums() -> String {
    let b: u64 = (1..=200_000_u64).map(|x| x * 7919 % 1_000_003).sum::<u64>() + 40_000 * 5;
    let c: usize = (1..=240_000).map(|x: u32| 4 + x.to_string().len()).sum();
    format!("240000 {b} {c}")
}

#[test]
fn tables_live_at_a_node_over_restarts_of_the_database() {
    if !available() {
        return;
    }
    let place = Place::new();
    let node = place.node();
    let server = serve(&place.data(), &[]);
    run(&server.url, &[&place.create_tablespace()]);
    run(&server.url, &MADE);
    assert_eq!(value(&server.url, SUMS), sums());
    let of = |url: &str, what: &str| -> i64 {
        value(url, &format!("SELECT {what} FROM tidepool.paging WHERE tablespace = 'there'")).parse().unwrap()
    };
    let url = server.url.as_str();
    assert_eq!(of(url, "bytes_cache"), 2 << 20);
    assert!(of(url, "bytes_local") <= 2 << 20 && of(url, "bytes_remote") > 2 << 20);
    assert!(of(url, "fetched") > 500 && of(url, "written_back") > 500 && of(url, "exchanges") > 500);
    assert_eq!((value(url, UP), of(url, "fetched_from_copies"), of(url, "node_losses")), ("t".into(), 0, 0));
    let location = value(url, "SELECT location FROM tidepool.tablespaces WHERE name = 'there'");
    assert_eq!(location.trim_matches('"'), format!("node:{},cache=2MB", place.listen()));
    // By key, by range, changed and deleted.
    assert_eq!(value(url, "SELECT c FROM rows WHERE a = 123456"), "row 123456");
    run(url, &["UPDATE rows SET b = 6 WHERE a % 1000 = 7", "DELETE FROM rows WHERE a > 239000"]);
    assert_eq!(value(url, "SELECT count(*) || ' ' || sum(b) FROM rows WHERE a % 1000 = 7"), "239 1434");
    run(url, &["ALTER TABLESPACE there SET (size = '96MB', cache = '4MB')"]);
    assert_eq!(of(url, "bytes_cache"), 4 << 20);
    assert_eq!(value(url, "SELECT count(*) FROM rows"), "239000");

    // The next process has the same, by the same memory: what the one before had was given back.
    server.signal(libc::SIGKILL);
    server.wait();
    let server = serve(&place.data(), &[]);
    assert_eq!(value(&server.url, "SELECT count(*) || ' ' || max(a) FROM rows"), "239000 239000");
    assert_eq!(value(&server.url, "SELECT count(*) || ' ' || sum(b) FROM rows WHERE a % 1000 = 7"), "239 1434");
    assert_eq!(value(&server.url, UP), "t");
    server.signal(libc::SIGTERM);
    assert!(server.wait().0);
    let server = serve(&place.data(), &[]);
    assert_eq!(value(&server.url, "SELECT count(*) FROM rows"), "239000");
    server.signal(libc::SIGKILL);
    server.wait();
    // What is left there is that of the last process alone.
    let log = node.stop();
    assert!(log.contains("96 MB of 256 MB lent to 1 databases"), "{log}");
    assert!(!Path::new(place.listen().trim_start_matches("unix:")).exists(), "the socket is left");
}

/// Clients that insert and update by key, and check what they read. Ends when told; returns how many rows were acknowledged.
async fn write(client: Client, from: i64, over: Arc<AtomicBool>, done: Arc<AtomicI64>) -> i64 {
    let insert = client.prepare("INSERT INTO log VALUES ($1, $1 * 3, 'a row of some length')").await.unwrap();
    let update = client.prepare("UPDATE log SET b = b + 1 WHERE a = $1").await.unwrap();
    let read = client.prepare("SELECT b FROM log WHERE a = $1").await.unwrap();
    let mut count = 0;
    while !over.load(Ordering::SeqCst) {
        let key = from + count;
        client.execute(&insert, &[&key]).await.unwrap();
        assert_eq!(client.execute(&update, &[&key]).await.unwrap(), 1);
        count += 1;
        let earlier = from + (count * 7919) % count;
        assert_eq!(client.query_one(&read, &[&earlier]).await.unwrap().get::<_, i64>(0), earlier * 3 + 1);
        done.fetch_add(1, Ordering::SeqCst);
    }
    count
}

async fn connected(server: &Serving) -> Client {
    connect(&server.url.parse().unwrap()).await.unwrap()
}

/// The node is killed, stopped and started anew under clients that write: no statement fails, and nothing is lost, even when
/// the database is killed while the node is away.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_node_that_comes_and_goes_costs_no_statement_and_no_commit() {
    const CLIENTS: i64 = 3;
    if !available() {
        return;
    }
    let place = Place::new();
    let mut node = place.node();
    let server = serve(&place.data(), &[]);
    let create = place.create_tablespace();
    run(&server.url, &[&create]);
    run(&server.url, &MADE);
    run(&server.url, &["CREATE TABLE log (a bigint PRIMARY KEY, b bigint, c text) TABLESPACE there"]);
    let (over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI64::new(0)));
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let client = connected(&server).await;
        clients.push(tokio::spawn(write(client, number << 32, over.clone(), done.clone())));
    }
    let scans = connected(&server).await;
    let go_on = async |what: &str| {
        let (before, begun) = (done.load(Ordering::SeqCst), Instant::now());
        let found: String = scans.query_one(SUMS, &[]).await.unwrap().get(0);
        assert_eq!(found, sums(), "{what}");
        while done.load(Ordering::SeqCst) < before + 300 {
            assert!(begun.elapsed() < PATIENCE, "nothing goes on: {what}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let is_up = async |wanted: bool| {
        let begun = Instant::now();
        while scans.query_one(UP, &[]).await.unwrap().get::<_, bool>(0) != wanted {
            assert!(begun.elapsed() < PATIENCE, "the node is not {wanted}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    go_on("at first").await;
    for round in 0..3 {
        node.signal(libc::SIGKILL);
        go_on("killed").await;
        is_up(false).await;
        drop(node);
        go_on("away").await;
        node = place.node();
        is_up(true).await;
        go_on("back").await;
        assert_eq!(
            scans.query_one("SELECT node_emptied FROM tidepool.paging", &[]).await.unwrap().get::<_, i64>(0),
            round + 1
        );
    }
    // Stopped, it says nothing, and has its memory still when it goes on.
    node.signal(libc::SIGSTOP);
    go_on("stopped").await;
    is_up(false).await;
    node.signal(libc::SIGCONT);
    is_up(true).await;
    go_on("woken").await;
    assert_eq!(scans.query_one("SELECT node_emptied FROM tidepool.paging", &[]).await.unwrap().get::<_, i64>(0), 3);
    // It is filled again.
    let begun = Instant::now();
    while scans.query_one("SELECT refilled FROM tidepool.paging", &[]).await.unwrap().get::<_, i64>(0) == 0 {
        assert!(begun.elapsed() < PATIENCE, "it is not filled");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // And now both.
    drop(node);
    go_on("away for good").await;
    over.store(true, Ordering::SeqCst);
    let mut acknowledged = Vec::new();
    for client in clients {
        acknowledged.push(client.await.unwrap());
    }
    drop(scans);
    server.signal(libc::SIGKILL);
    tokio::task::spawn_blocking(move || server.wait()).await.unwrap();

    let server = serve(&place.data(), &[]);
    let client = connected(&server).await;
    assert_eq!(client.query_one(SUMS, &[]).await.unwrap().get::<_, String>(0), sums());
    for (number, count) in acknowledged.into_iter().enumerate() {
        let from = (number as i64) << 32;
        let query = "SELECT count(*), sum(b - a * 3)::bigint FROM log WHERE a >= $1 AND a < $1 + 1000000000";
        let row = client.query_one(query, &[&from]).await.unwrap();
        assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (count, count));
    }
    assert!(!client.query_one(UP, &[]).await.unwrap().get::<_, bool>(0), "it starts without its node");
    let _node = place.node();
    let begun = Instant::now();
    while !client.query_one(UP, &[]).await.unwrap().get::<_, bool>(0) {
        assert!(begun.elapsed() < PATIENCE, "the node is not found");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(client.query_one(SUMS, &[]).await.unwrap().get::<_, String>(0), sums());
}

/// `near`, `far` and statements' heaps at a node, by the command line, over TCP and with a token.
#[test]
fn the_far_tier_is_at_a_node_and_statements_too() {
    if !available() {
        return;
    }
    let place = Place::new();
    let token = place.0.path().join("token");
    std::fs::write(&token, "0123456789abcdef0123456789abcdef\n").unwrap();
    let node = NodeProcess::start("127.0.0.1:0", &["--token-file", token.to_str().unwrap()]);
    let far = format!("node:{},cache=2MB,token={},size=64MB", node.address, token.display());
    let server = serve(&place.data(), &["--far", &far]);
    run(
        &server.url,
        &["CREATE TABLE big TABLESPACE far AS SELECT x AS a, x % 1000 AS b FROM generate_series(1, 300000) AS t(x)"],
    );
    let joined = "SELECT count(*) || ' ' || sum(l.a + r.a) FROM big l JOIN big r ON l.a = r.a + 1";
    assert_eq!(value(&server.url, joined), "299999 89999999999");
    let sorted = "SELECT a FROM big ORDER BY b DESC, a OFFSET 150000 LIMIT 1";
    assert_eq!(value(&server.url, sorted), "499");
    let fetched = value(&server.url, "SELECT fetched > 100 FROM tidepool.paging WHERE tablespace = 'far'");
    assert_eq!(fetched, "t");
    // It may be gone when the database starts, and is not waited for.
    server.signal(libc::SIGTERM);
    assert!(server.wait().0);
    drop(node);
    let server = serve(&place.data(), &["--far", &far]);
    assert_eq!(value(&server.url, joined), "299999 89999999999");
    // A new database, which has nothing yet, is told.
    let refused = try_serve(&place.0.path().join("other"), &["--far", &far], &[]).err().unwrap();
    assert!(refused.contains("could not connect") && refused.contains("tidepool memory-node --listen"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nonsense_about_nodes_is_refused() {
    let (server, client) = TestServer::start_connected().await;
    let place = Place::new();
    let listen = place.listen();
    let node = format!("node:{listen}");
    let refusals = [
        ("node:".to_owned(), "size = '64MB'", "22023", "invalid device location"),
        ("node:here,cache=2MB".to_owned(), "size = '64MB'", "22023", "invalid device location"),
        (node.clone(), "size = '64MB'", "22023", "invalid device location"),
        (format!("{node},cache=2MB,policy=best"), "size = '64MB'", "22023", "invalid device location"),
        (format!("{node},cache=2MB"), "huge_pages = off", "22023", "a size is required"),
        (format!("{node},cache=2MB"), "size = '64MB', profile = 'infiniswap'", "22023", "has no profile"),
        (format!("anon:, {node},cache=2MB"), "size = '64MB'", "0A000", "cannot be one of several locations"),
    ];
    let more = [
        (format!("{node},cache=64kB"), "size = '64MB'", "22023", "is too small"),
        (format!("{node},cache=65MB"), "size = '64MB'", "22023", "is larger than"),
        (format!("{node},cache=2MB"), "size = '64MB'", "08006", "could not connect"),
        ("node:127.0.0.1:1,cache=2MB".to_owned(), "size = '64MB'", "08006", "could not connect to 127.0.0.1:1"),
        (format!("{node},cache=2MB,token=/nonexistent"), "size = '64MB'", "58P01", "/nonexistent"),
    ];
    let refuse = async |refusals: &[(String, &str, &str, &str)]| {
        for (location, options, expected, message) in refusals {
            let statement = format!("CREATE TABLESPACE odd LOCATION '{location}' WITH ({options})");
            let error = client.batch_execute(&statement).await.unwrap_err();
            let said = error.as_db_error().unwrap().message().to_owned();
            assert_eq!(code(&error), *expected, "{statement}: {said}");
            assert!(said.contains(message), "{statement}: {said}");
        }
    };
    refuse(&refusals).await;
    if available() {
        refuse(&more).await;
        let _node = place.node();
        refuse(&[(format!("{node},cache=2MB"), "size = '1GB'", "53200", "the memory node is full")]).await;
        client.batch_execute(&place.create_tablespace()).await.unwrap();
        for (statement, expected) in [
            ("ALTER TABLESPACE there ADD LOCATION 'anon:'", "0A000"),
            ("ALTER TABLESPACE there SET (size = '1GB')", "53200"),
            ("ALTER TABLESPACE there SET (cache = '100kB')", "22023"),
        ] {
            assert_eq!(code(&client.batch_execute(statement).await.unwrap_err()), expected, "{statement}");
        }
        client.batch_execute("ALTER TABLESPACE there SET (size = '128MB'); DROP TABLESPACE there").await.unwrap();
        let whole = format!("CREATE TABLESPACE whole LOCATION '{node},cache=2MB' WITH (size = '256MB')");
        let begun = Instant::now();
        // What was dropped is given back by a thread of its own.
        while let Err(error) = client.batch_execute(&whole).await {
            assert_eq!(code(&error), "53200");
            assert!(begun.elapsed() < PATIENCE, "memory was not given back");
        }
    }
    server.stop().await;
}

#[test]
fn a_node_says_what_it_cannot_do() {
    let refused = |arguments: &[&str]| {
        let output = tidepool().arg("memory-node").args(arguments).output().unwrap();
        assert!(!output.status.success());
        let said = text(&output.stderr).to_owned();
        assert!(said.contains("error: ") && !said.contains("panicked"), "{said}");
        said
    };
    let open = refused(&["--memory", "anon:,size=1MB", "--listen", "0.0.0.0:0"]);
    assert!(open.contains("needs a token"), "{open}");
    assert!(refused(&["--memory", "anon:"]).contains("a size is required"));
    assert!(refused(&["--memory", "pool:,size=1MB"]).contains("cannot lend"));
    assert!(refused(&["--memory", "anon:,size=1MB", "--listen", "nowhere"]).contains("invalid address"));
    assert!(refused(&["--memory", "anon:,size=1MB", "--token-file", "/nonexistent"]).contains("token file"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    let listen = format!("unix:{}", file.display());
    assert!(refused(&["--memory", "anon:,size=1MB", "--listen", &listen]).contains("is no socket"));
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    let listen = format!("unix:{}", folder.path().join("node").display());
    let first = NodeProcess::start(&listen, &[]);
    assert!(refused(&["--memory", "anon:,size=1MB", "--listen", &listen]).contains("another process listens"));
    // What a killed one left is no obstacle.
    first.signal(libc::SIGKILL);
    drop(first);
    assert!(NodeProcess::start(&listen, &[]).stop().contains("the memory node ends"));
}

/// The tutorial, word for word, but for addresses and the folder. Each block of SQL answers with the tables that follow it.
#[test]
fn memory_over_there_can_be_followed() {
    if !available() {
        return;
    }
    let page = std::fs::read_to_string(root().join("docs/tutorials/memory-over-there.md")).unwrap();
    for command in [
        "    tidepool memory-node --listen 127.0.0.1:7777 --memory 'anon:,size=256MB'\n",
        "    tidepool memory node is ready: 127.0.0.1:7777\n",
        "    pkill -9 -f \"tidepool memory-node\"\n",
        "    tidepool serve\n",
    ] {
        assert!(page.contains(command), "{command}");
    }
    let place = Place::new();
    let mut node = Some(place.node());
    let server = serve(&place.data(), &[]);
    let blocks = statements(&page);
    assert_eq!(blocks.len(), 4);
    for (number, block) in blocks.into_iter().enumerate() {
        // The third block comes after the node was killed, and the fourth after it was started again.
        match number {
            2 => drop(node.take()),
            3 => node = Some(place.node()),
            _ => {}
        }
        let block_there = block.replace("127.0.0.1:7777", &place.listen());
        let output = sql(&server.url, &["-f", "-"], &block_there);
        assert!(output.status.success() && output.stderr.is_empty(), "{block}\n{}", text(&output.stderr));
        // What the page shows of answers, until its next heading, is in what came.
        let shown = page.split_once(block).unwrap().1.split("\n## ").next().unwrap();
        for table in shown.split("\n```\n").skip(1).step_by(2).map(|rest| rest.split("```").next().unwrap()) {
            for line in table.lines().filter(|line| !line.contains("-+-") && !line.starts_with("---")) {
                let line = line.trim();
                assert!(text(&output.stdout).contains(line), "{block}\nhas no {line}:\n{}", text(&output.stdout));
            }
        }
    }
    drop(node);
}
