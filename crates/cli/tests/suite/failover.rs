//! Servers of one database in one pool: what their clients see when the primary is killed, stopped, or hands over.

use crate::cli::{Serving, sql, text, tidepool};
use crate::server::{PATIENCE, code};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_postgres::{Client, NoTls};

fn folder() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    let parent = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("tidepool-failover-").tempdir_in(parent).unwrap()
}

/// A pool, in which servers of one database are started.
pub(crate) struct Cluster {
    pub(crate) folder: tempfile::TempDir,
}

impl Cluster {
    pub(crate) fn new() -> Cluster {
        let folder = folder();
        let output = tidepool().args(["pool", "create", &pool(folder.path()), "--size", "300MB"]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        Cluster { folder }
    }

    pub(crate) fn start(&self, name: &str, role: &str, more: &[&str]) -> Serving {
        let mut command = tidepool();
        command.args(["serve", "--near", "128MB", "--far", "pool:", "--pool", &pool(self.folder.path())]);
        command.args(["--name", name, "--role", role]);
        command.args(if more.contains(&"--listen") { &[][..] } else { &["--listen", "127.0.0.1:0"] }).args(more);
        Serving::start(command).unwrap_or_else(|log| panic!("{name} does not start: {log}"))
    }
}

/// At which nobody listens. Another process may take it first.
pub(crate) fn free_address() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

pub(crate) fn pool(folder: &Path) -> String {
    format!("file:{}", folder.join("pool").display())
}

pub(crate) async fn connect(url: &str) -> Client {
    try_connect(url).await.unwrap()
}

/// As `connect`, where a primary that was killed or taken over from may still accept: it resets the connection, or answers nothing but
/// that it has been taken over from, and to connect again.
pub(crate) async fn connect_soon(url: &str) -> Client {
    let start = Instant::now();
    loop {
        let answered = async {
            let client = try_connect(url).await?;
            client.simple_query("SELECT 1").await.map(|_| client)
        };
        match answered.await {
            Ok(client) => return client,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{url}: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub(crate) async fn try_connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

pub(crate) async fn one(client: &Client, sql: &str) -> String {
    let rows = client.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let row = rows.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or("null").to_owned()),
        _ => None,
    });
    row.unwrap_or_else(|| panic!("{sql}: no row"))
}

/// Until a query answers this.
pub(crate) async fn until(client: &Client, sql: &str, wanted: &str) {
    let start = Instant::now();
    loop {
        let answer = one(client, sql).await;
        if answer == wanted {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{sql}: {answer}, not {wanted}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// All threads of a process have stopped: the signal takes a moment.
pub(crate) fn is_stopped(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let stat = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
    // The state comes behind the name, which is in brackets.
    let is_stopped = |stat: &str| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'));
    tasks.flatten().all(|task| is_stopped(&stat(task)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_a_killed_primary_learn_at_once_and_find_the_next_where_it_was() {
    let cluster = Cluster::new();
    let first = cluster.start("h1", "primary", &[]);
    let second = cluster.start("h2", "standby", &[]);
    let writer = connect(&first.url).await;
    writer.batch_execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)").await.unwrap();
    let reader = connect(&second.url).await;
    assert_eq!(one(&reader, "SELECT pg_is_in_recovery()").await, "t");
    until(&reader, "SELECT count(*) FROM pg_class WHERE relname = 't'", "1").await;
    until(&reader, "SELECT count(*) FROM t", "1").await;
    // What each says of the other.
    assert_eq!(one(&writer, "SELECT application_name || ' ' || state FROM pg_stat_replication").await, "h2 streaming");
    assert_eq!(one(&reader, "SELECT conninfo FROM pg_stat_wal_receiver").await, "application_name=h1");
    let written = one(&writer, "SELECT pg_current_wal_lsn()").await;
    until(&reader, &format!("SELECT pg_last_wal_replay_lsn() >= '{written}'"), "t").await;
    until(&writer, "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn) FROM pg_stat_replication", "0").await;
    let refused = code(&reader.simple_query("SELECT pg_current_wal_lsn()").await.unwrap_err()).to_owned();
    assert_eq!(refused, "55000");
    for sql in ["SELECT pg_promote()", "SELECT pg_promote(false)", "SELECT pg_promote(true, 1)"] {
        assert_eq!(code(&writer.simple_query(sql).await.unwrap_err()), "55000", "{sql}");
    }
    let error = reader.simple_query("SELECT pg_promote(true, 0)").await.unwrap_err();
    assert_eq!(code(&error), "22003");
    // A pause.
    reader.batch_execute("SELECT pg_wal_replay_pause()").await.unwrap();
    until(&reader, "SELECT pg_get_wal_replay_pause_state()", "paused").await;
    writer.batch_execute("INSERT INTO t VALUES (2)").await.unwrap();
    assert_eq!(one(&reader, "SELECT count(*) FROM t").await, "1");
    reader.batch_execute("SELECT pg_wal_replay_resume()").await.unwrap();
    until(&reader, "SELECT count(*) FROM t", "2").await;

    // A client that waits for an answer, and one that waits for nothing.
    let (waiting, idle) = (connect(&first.url).await, connect(&first.url).await);
    let asking = tokio::spawn(async move { waiting.batch_execute("SELECT pg_sleep(3600)").await });
    until(&writer, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%3600%' AND state = 'active'", "2").await;
    first.signal(libc::SIGKILL);
    // The standby has their sockets, and goes on with them. A statement may be what the primary died of: it does not begin anew.
    let ended = tokio::time::timeout(PATIENCE, asking).await.unwrap().unwrap();
    assert_eq!(code(&ended.unwrap_err()), "40001");
    idle.batch_execute("SELECT 1").await.unwrap();
    // Who connects to where the primary was is not refused, and waits for the next.
    let again = connect(&first.url).await;
    again.batch_execute("INSERT INTO t VALUES (3)").await.unwrap();
    assert_eq!(one(&again, "SELECT string_agg(id::text, ',' ORDER BY id) FROM t").await, "1,2,3");
    // The standby's own clients go on, and may write.
    until(&reader, "SHOW in_hot_standby", "off").await;
    reader.batch_execute("INSERT INTO t VALUES (4)").await.unwrap();
    assert_eq!(one(&reader, "SELECT pg_is_in_recovery()").await, "f");

    // A third takes over from the second, with both addresses.
    let third = cluster.start("h3", "standby", &[]);
    let follower = connect(&third.url).await;
    until(&follower, "SELECT count(*) FROM t", "4").await;
    second.signal(libc::SIGKILL);
    for url in [&first.url, &second.url, &third.url] {
        let client = connect_soon(url).await;
        assert_eq!(one(&client, "SELECT count(*) FROM t").await, "4", "{url}");
    }
}

/// What a server has prepared for clients of its primary, says its address for metrics.
async fn prepared_ahead(metrics: std::net::SocketAddr) -> u64 {
    let mut stream = tokio::net::TcpStream::connect(metrics).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).await.unwrap();
    let line = page.lines().find_map(|line| line.strip_prefix("tidepool_statements_prepared_ahead_total "));
    line.expect(&page).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_prepares_what_clients_of_the_primary_have_prepared() {
    let cluster = Cluster::new();
    let first = cluster.start("h1", "primary", &[]);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let second = cluster.start("h2", "standby", &["--metrics", &free.to_string()]);
    let setup = connect(&first.url).await;
    setup.batch_execute("CREATE TABLE t (id int PRIMARY KEY, name text)").await.unwrap();
    let insert = async |client: &Client, id: i32| {
        let put = client.prepare("INSERT INTO t VALUES ($1, $2)").await?;
        client.execute(&put, &[&id, &"name"]).await
    };
    insert(&setup, 1).await.unwrap();
    let wait = async |count: u64| {
        let start = Instant::now();
        while prepared_ahead(free).await < count {
            assert!(start.elapsed() < PATIENCE, "{} statements", prepared_ahead(free).await);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    wait(1).await;
    // Prepared anew for what exists by now. One that cannot be is left out.
    let before = prepared_ahead(free).await;
    setup.batch_execute("CREATE TABLE other (id int)").await.unwrap();
    wait(before + 1).await;
    let columns = setup.prepare("SELECT name FROM t WHERE id = $1").await.unwrap();
    assert_eq!(setup.query_one(&columns, &[&1]).await.unwrap().get::<_, &str>(0), "name");
    setup.batch_execute("ALTER TABLE t ALTER id TYPE bigint").await.unwrap();
    first.signal(libc::SIGKILL);
    // What was prepared for the table as it was is not what runs.
    let again = connect_soon(&second.url).await;
    until(&again, "SELECT pg_is_in_recovery()", "f").await;
    assert!(insert(&again, 2).await.is_err(), "its first parameter is a bigint by now");
    let put = again.prepare("INSERT INTO t VALUES ($1, $2)").await.unwrap();
    assert_eq!(again.execute(&put, &[&2_i64, &"name"]).await.unwrap(), 1);
    assert_eq!(one(&again, "SELECT count(*) FROM t").await, "2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_takes_the_primarys_address_that_it_was_given_too() {
    let cluster = Cluster::new();
    let first = cluster.start("h1", "auto", &[]);
    let address = first.url.split('@').nth(1).unwrap().split('/').next().unwrap().to_owned();
    let writer = connect(&first.url).await;
    writer.batch_execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)").await.unwrap();
    // Both are configured alike.
    let second = cluster.start("h2", "auto", &["--listen", &address]);
    assert_eq!(second.url, first.url);
    until(&writer, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'", "1").await;
    assert_eq!(one(&writer, "SELECT pg_is_in_recovery()").await, "f");
    // One that is stopped answers nothing. Its clients go on at the next one.
    first.signal(libc::SIGSTOP);
    while !is_stopped(first.pid()) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::timeout(PATIENCE, writer.batch_execute("INSERT INTO t VALUES (2)")).await.unwrap().unwrap();
    let again = connect(&first.url).await;
    again.batch_execute("INSERT INTO t VALUES (3)").await.unwrap();
    assert_eq!(one(&again, "SELECT name FROM tidepool.hosts WHERE is_this_server").await, "h2");
    // It was ended, or ends when it wakes.
    first.signal(libc::SIGCONT);
    assert!(!first.wait().0);
    assert_eq!(one(&writer, "SELECT string_agg(id::text, ',' ORDER BY id) FROM t").await, "1,2,3");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_hands_over_when_it_is_told_to() {
    let cluster = Cluster::new();
    let first = cluster.start("h1", "primary", &[]);
    let second = cluster.start("h2", "standby", &[]);
    let writer = connect(&first.url).await;
    writer.batch_execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)").await.unwrap();
    until(&writer, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'", "1").await;
    let refused = async |sql: &str| code(&writer.simple_query(sql).await.unwrap_err()).to_owned();
    assert_eq!(refused("CALL tidepool.switchover('nobody')").await, "42704");
    assert_eq!(refused("BEGIN; CALL tidepool.switchover('h2')").await, "25001");
    writer.batch_execute("ROLLBACK").await.unwrap();
    let reader = connect(&second.url).await;
    let error = reader.simple_query("CALL tidepool.switchover('h1')").await.unwrap_err();
    assert_eq!(code(&error), "55000");
    let trial = tidepool().args(["switchover", &first.url, "--to", "h2", "--dry-run"]).output().unwrap();
    assert!(trial.status.success() && text(&trial.stdout).starts_with("h2 can take over"), "{}", text(&trial.stderr));
    assert_eq!(one(&writer, "SELECT pg_is_in_recovery()").await, "f");
    let done = tidepool().args(["switchover", &first.url, "--to", "h2"]).output().unwrap();
    assert!(done.status.success() && text(&done.stdout) == "h2 is primary\n", "{}", text(&done.stderr));
    // Its connection went over.
    writer.batch_execute("INSERT INTO t VALUES (2)").await.unwrap();
    let url = first.url.clone();
    assert!(!first.wait().0);
    let again = connect(&url).await;
    assert_eq!(one(&again, "SELECT name FROM tidepool.hosts WHERE is_this_server").await, "h2");
    assert_eq!(one(&again, "SELECT count(*) FROM t").await, "2");

    // By the standby, too.
    let third = cluster.start("h3", "standby", &[]);
    let promoted = tidepool().args(["promote", &third.url]).output().unwrap();
    assert!(
        promoted.status.success() && text(&promoted.stdout) == "the server is primary\n",
        "{}",
        text(&promoted.stderr)
    );
    let output = sql(&third.url, &["-c", "INSERT INTO t VALUES (5)"], "");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(!second.wait().0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_are_stopped_leave_the_pool() {
    let cluster = Cluster::new();
    let first = cluster.start("h1", "primary", &[]);
    let second = cluster.start("h2", "standby", &[]);
    let (writer, reader) = (connect(&first.url).await, connect(&second.url).await);
    writer.batch_execute("CREATE TABLE t (id int PRIMARY KEY)").await.unwrap();
    until(&writer, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'", "1").await;
    for server in [second, first] {
        server.signal(libc::SIGTERM);
        let (is_good, log) = server.wait();
        assert!(is_good, "{log}");
    }
    assert!(writer.simple_query("SELECT 1").await.is_err());
    assert!(reader.simple_query("SELECT 1").await.is_err());
    let destroyed = tidepool().args(["pool", "destroy", &pool(cluster.folder.path())]).output().unwrap();
    assert!(destroyed.status.success(), "{}", text(&destroyed.stderr));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sequences_that_were_restarted_go_on_from_there_at_the_next_primary() {
    let cluster = Cluster::new();
    let first = cluster.start("h1", "primary", &[]);
    let writer = connect(&first.url).await;
    writer.batch_execute("CREATE SEQUENCE a; CREATE SEQUENCE b; ALTER SEQUENCE b RESTART WITH 70").await.unwrap();
    let second = cluster.start("h2", "standby", &[]);
    writer.batch_execute("ALTER SEQUENCE a RESTART WITH 500; ALTER SEQUENCE b INCREMENT 2").await.unwrap();
    let reader = connect(&second.url).await;
    until(&reader, "SELECT last_value FROM a", "500").await;
    first.signal(libc::SIGKILL);
    until(&reader, "SHOW in_hot_standby", "off").await;
    assert_eq!(one(&reader, "SELECT nextval('a')").await, "500");
    assert_eq!(one(&reader, "SELECT nextval('b')").await, "70");
    // And with nobody there.
    second.signal(libc::SIGKILL);
    second.wait();
    let third = cluster.start("h3", "primary", &[]);
    let client = connect(&third.url).await;
    let next: i64 = one(&client, "SELECT nextval('a')").await.parse().unwrap();
    assert!((501..600).contains(&next), "{next}");
}

/// A primary that is taken over from begins anew as a standby, and takes over again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_primary_comes_back_as_a_standby_by_itself() {
    let cluster = Cluster::new();
    let config = cluster.folder.path().join("tidepool.toml");
    // No host takes another for silent on a busy machine: each hand-over is the test's.
    std::fs::write(&config, "[pool]\non_fenced = \"rejoin\"\nhost_timeout = \"60s\"\n").unwrap();
    let rejoins = ["--config", config.to_str().unwrap()];
    let first = cluster.start("h1", "primary", &rejoins);
    let second = cluster.start("h2", "standby", &rejoins);
    let writer = connect(&first.url).await;
    writer.batch_execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)").await.unwrap();
    let mut urls = [first.url.clone(), second.url.clone()];
    let streaming = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
    until(&writer, streaming, "1").await;
    let pids = [first.pid(), second.pid()];
    for round in 0..4 {
        let to = if round % 2 == 0 { "h2" } else { "h1" };
        let done = tidepool().args(["switchover", &urls[0], "--to", to]).output().unwrap();
        assert!(done.status.success() && text(&done.stdout) == format!("{to} is primary\n"), "{}", text(&done.stderr));
        urls.swap(0, 1);
        let client = connect_soon(&urls[0]).await;
        until(&client, "SELECT pg_is_in_recovery()", "f").await;
        client.batch_execute(&format!("INSERT INTO t VALUES ({})", round + 2)).await.unwrap();
        // The other is there again, the same process, and follows.
        until(&client, streaming, "1").await;
        let roles = "SELECT string_agg(name || ' ' || role, ', ' ORDER BY name) FROM tidepool.hosts";
        let wanted = if to == "h2" { "h1 standby, h2 primary" } else { "h1 primary, h2 standby" };
        until(&client, roles, wanted).await;
        let processes = "SELECT string_agg(process::text, ',' ORDER BY name) FROM tidepool.hosts";
        assert_eq!(one(&client, processes).await, format!("{},{}", pids[0], pids[1]));
        assert_eq!(one(&client, "SELECT count(*) FROM t").await, (round + 2).to_string());
    }
    for server in [first, second] {
        server.signal(libc::SIGTERM);
        let (_, log) = server.wait();
        // A hand-over is nothing that went wrong.
        assert!(!log.contains("ERROR"), "{log}");
    }
}

/// Nothing is left beside the pool of hosts that were killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sockets_of_hosts_that_were_killed_go_with_them() {
    let cluster = Cluster::new();
    let sockets = || {
        let entries = std::fs::read_dir(cluster.folder.path()).unwrap().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.retain(|name| name.contains("control"));
        names.sort();
        names
    };
    let first = cluster.start("h1", "primary", &[]);
    let second = cluster.start("h2", "standby", &[]);
    assert_eq!(sockets(), ["pool.h1.control", "pool.h2.control"]);
    first.signal(libc::SIGKILL);
    first.wait();
    let reader = connect(&second.url).await;
    until(&reader, "SHOW in_hot_standby", "off").await;
    until(&reader, "SELECT count(*) FROM tidepool.hosts", "1").await;
    assert_eq!(sockets(), ["pool.h2.control"]);
    second.signal(libc::SIGKILL);
    second.wait();
    // Whoever comes next buries whoever is there, also by a name that it has itself.
    let third = cluster.start("h2", "primary", &[]);
    assert_eq!(sockets(), ["pool.h2.control"]);
    let fourth = cluster.start("h4", "standby", &[]);
    let reader = connect(&fourth.url).await;
    until(&reader, "SELECT pg_is_in_recovery()", "t").await;
    assert_eq!(sockets(), ["pool.h2.control", "pool.h4.control"]);
    drop(third);
}

/// An old primary that is back as a standby serves clients at the address that it was given, so those who look for a standby find one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_returns_as_a_standby_has_its_address_again() {
    let cluster = Cluster::new();
    let first = cluster.start("h1", "primary", &[]);
    let own = first.url.split('@').nth(1).unwrap().split('/').next().unwrap().to_owned();
    let second = cluster.start("h2", "standby", &[]);
    let third = cluster.start("h3", "standby", &[]);
    let writer = connect(&first.url).await;
    writer.batch_execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)").await.unwrap();
    let url = first.url.clone();
    let next = connect(&second.url).await;
    until(&next, "SELECT count(*) FROM pg_class WHERE relname = 't'", "1").await;
    until(&next, "SELECT count(*) FROM t", "1").await;
    first.signal(libc::SIGKILL);
    first.wait();
    // Whoever takes over is found there meanwhile.
    let is_primary = "SELECT NOT pg_is_in_recovery()";
    until(&connect_soon(&url).await, is_primary, "t").await;
    let again = cluster.start("h1", "standby", &["--listen", &own]);
    assert_eq!(again.url, url);
    // Clients of the primary come to it by its own address, and to the standby by its.
    let name = "SELECT name || ' ' || role FROM tidepool.hosts WHERE is_this_server";
    let start = Instant::now();
    while one(&connect_soon(&url).await, name).await != "h1 standby" {
        assert!(start.elapsed() < PATIENCE, "{own} is not the standby's");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for _ in 0..20 {
        assert_eq!(one(&connect(&url).await, name).await, "h1 standby");
    }
    let both = [connect(&second.url).await, connect(&third.url).await];
    let mut roles = Vec::new();
    for client in &both {
        roles.push(one(client, is_primary).await);
    }
    roles.sort();
    assert_eq!(roles, ["f", "t"]);
    // The next take-over hands it on again.
    again.signal(libc::SIGTERM);
    assert!(again.wait().0);
    assert!(try_connect(&url).await.is_err());
}

/// A primary that dies before it has shared what it listens on is found where it was all the same, and so is a host that was to listen there
/// itself. Here it cannot share, as nobody finds its socket.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_takes_over_listens_where_the_primary_did_that_shared_nothing() {
    let cluster = Cluster::new();
    let [own, of_second] = [free_address(), free_address()];
    let first = cluster.start("h1", "primary", &["--listen", &own]);
    let writer = connect(&first.url).await;
    writer.batch_execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)").await.unwrap();
    std::fs::remove_file(cluster.folder.path().join("pool.h1.control")).unwrap();
    let second = cluster.start("h2", "standby", &["--listen", &of_second]);
    let at_second = connect(&second.url).await;
    let urls = [first.url.clone(), second.url.clone()];
    until(&writer, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'", "1").await;
    first.signal(libc::SIGKILL);
    first.wait();
    until(&at_second, "SELECT pg_is_in_recovery()", "f").await;
    let again = connect_soon(&urls[0]).await;
    assert_eq!(one(&again, "SELECT name FROM tidepool.hosts WHERE is_this_server").await, "h2");
    // Back as a standby it has been given an address at which the primary listens, and does not get that one's listener.
    std::fs::remove_file(cluster.folder.path().join("pool.h2.control")).unwrap();
    let third = cluster.start("h1", "standby", &["--listen", &own]);
    assert_eq!(third.url, urls[0]);
    until(&at_second, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'", "1").await;
    second.signal(libc::SIGKILL);
    second.wait();
    for url in &urls {
        let client = connect_soon(url).await;
        until(&client, "SELECT pg_is_in_recovery()", "f").await;
        assert_eq!(one(&client, "SELECT name FROM tidepool.hosts WHERE is_this_server").await, "h1");
        assert_eq!(one(&client, "SELECT count(*) FROM t").await, "1");
    }
    // The other's address goes back to it.
    let _fourth = cluster.start("h2", "standby", &["--listen", &of_second]);
    let start = Instant::now();
    while one(&connect_soon(&urls[1]).await, "SELECT name FROM tidepool.hosts WHERE is_this_server").await != "h2" {
        assert!(start.elapsed() < PATIENCE, "{of_second} is not the standby's");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
