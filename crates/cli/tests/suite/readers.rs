//! Readers beside the servers of a database in a pool: what their clients see while primaries come and go, and that nobody waits for
//! a reader that is stopped or killed.

use crate::cli::tidepool;
use crate::failover::{Cluster, connect, connect_soon, is_stopped, one, pool, try_connect, until};
use crate::pooled::{MAIN, STAYS, leave_halves};
use crate::server::code;
use std::time::Duration;

const HELD: &str = "SELECT count(*) FROM tidepool.hosts WHERE role = 'reader' AND name = 'r1'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_serve_through_a_fail_over_and_read_what_was_written() {
    let cluster = Cluster::new();
    let first = cluster.start("h1", "primary", &[]);
    let writer = connect(&first.url).await;
    writer.batch_execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')").await.unwrap();
    let standby = cluster.start("h2", "standby", &[]);
    let readers = [cluster.start("r1", "reader", &[]), cluster.start("r2", "reader", &[])];
    let clients = [connect(&readers[0].url).await, connect(&readers[1].url).await];
    for (client, name) in clients.iter().zip(["r1", "r2"]) {
        assert_eq!(one(client, "SELECT pg_is_in_recovery()").await, "t");
        assert_eq!(one(client, "SELECT role FROM tidepool.hosts WHERE is_this_server").await, "reader");
        assert_eq!(one(client, "SELECT name FROM tidepool.hosts WHERE is_this_server").await, name);
        until(client, "SELECT v FROM t WHERE id = 1", "a").await;
        for (sql, expected) in [
            ("INSERT INTO t VALUES (2, 'b')", "25006"),
            ("SELECT * FROM t FOR UPDATE", "25006"),
            ("VACUUM", "25006"),
            ("BEGIN READ WRITE", "0A000"),
            ("SELECT pg_promote()", "55000"),
            ("SET tidepool.read_after = 'soon'", "22023"),
        ] {
            assert_eq!(code(&client.simple_query(sql).await.unwrap_err()), expected, "{sql}");
        }
    }
    let error = writer.simple_query("CALL tidepool.switchover('r1')").await.unwrap_err();
    assert_eq!(code(&error), "55000");
    // Read your writes: by the planned path and by key.
    for number in 2..20 {
        writer.batch_execute(&format!("INSERT INTO t VALUES ({number}, 'n{number}')")).await.unwrap();
        let written = one(&writer, "SELECT pg_current_wal_lsn()").await;
        for client in &clients {
            client.batch_execute(&format!("SET tidepool.read_after = '{written}'")).await.unwrap();
            assert_eq!(one(client, &format!("SELECT v FROM t WHERE id = {number}")).await, format!("n{number}"));
            assert_eq!(one(client, "SELECT count(*) FROM t").await, number.to_string());
        }
    }
    // What never comes is waited for no longer than the client wants.
    clients[0].batch_execute("SET tidepool.read_after = 'FFFF/0'; SET statement_timeout = '50ms'").await.unwrap();
    assert_eq!(code(&clients[0].simple_query("SELECT count(*) FROM t").await.unwrap_err()), "57014");
    clients[0].batch_execute("RESET tidepool.read_after; RESET statement_timeout").await.unwrap();

    // The primary is killed: the standby takes over, and not a reader. Readers' clients stay connected.
    first.signal(libc::SIGKILL);
    let again = connect_soon(&first.url).await;
    assert_eq!(one(&again, "SELECT name FROM tidepool.hosts WHERE is_this_server").await, "h2");
    again.batch_execute("INSERT INTO t VALUES (100, 'after')").await.unwrap();
    let written = one(&again, "SELECT pg_current_wal_lsn()").await;
    for client in &clients {
        client.batch_execute(&format!("SET tidepool.read_after = '{written}'")).await.unwrap();
        assert_eq!(one(client, "SELECT v FROM t WHERE id = 100").await, "after");
        assert_eq!(one(client, "SELECT pg_is_in_recovery()").await, "t");
    }
    // With no primary at all they go on.
    drop(again);
    standby.signal(libc::SIGKILL);
    for client in &clients {
        assert_eq!(one(client, "SELECT count(*) FROM t").await, "20");
    }
    let third = cluster.start("h3", "auto", &[]);
    let writer = connect(&third.url).await;
    writer.batch_execute("INSERT INTO t VALUES (200, 'third')").await.unwrap();
    for client in &clients {
        until(client, "SELECT count(*) FROM t", "21").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_a_reader_that_is_stopped_or_killed() {
    let cluster = Cluster::new();
    let primary = cluster.start("h1", "primary", &[]);
    let writer = connect(&primary.url).await;
    writer.batch_execute("CREATE TABLE t (id int PRIMARY KEY)").await.unwrap();
    let reader = cluster.start("r1", "reader", &[]);
    let client = connect(&reader.url).await;
    until(&client, "SELECT count(*) FROM t", "0").await;
    until(&writer, HELD, "1").await;
    reader.signal(libc::SIGSTOP);
    while !is_stopped(reader.pid()) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Commits, merges and vacuum go on.
    for round in 0..20 {
        writer
            .batch_execute(&format!(
                "INSERT INTO t SELECT generate_series({}, {}); CALL tidepool.merge('t'); DELETE FROM t WHERE id % 7 = {}",
                round * 1000,
                round * 1000 + 999,
                round % 7
            ))
            .await
            .unwrap();
    }
    writer.batch_execute("VACUUM").await.unwrap();
    until(&writer, "SELECT bytes_held IS NOT NULL FROM tidepool.hosts WHERE name = 'r1'", "t").await;
    // It wakes and catches up.
    reader.signal(libc::SIGCONT);
    let count = one(&writer, "SELECT count(*) FROM t").await;
    until(&client, "SELECT count(*) FROM t", &count).await;
    // Killed, it is gone, and so is what it held.
    reader.signal(libc::SIGKILL);
    until(&writer, HELD, "0").await;
    // Another one comes in its place.
    let next = cluster.start("r1", "reader", &[]);
    let client = connect(&next.url).await;
    until(&client, "SELECT count(*) FROM t", &count).await;
}

/// What a reader asks for the primary gives, out of memory that both read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_gives_way_to_a_reader() {
    let cluster = Cluster::new();
    let config = cluster.folder.path().join("primary.toml");
    std::fs::write(&config, "[pool]\ntier1_interval = \"100ms\"\n").unwrap();
    let primary = cluster.start("h1", "primary", &["--config", config.to_str().unwrap()]);
    let writer = connect(&primary.url).await;
    let mut load = Vec::new();
    leave_halves(|statements| load.push(statements.to_owned()));
    for statements in &load {
        writer.batch_execute(statements).await.unwrap();
    }
    let reader = cluster.start("r1", "reader", &[]);
    let client = connect(&reader.url).await;
    let before = one(&writer, STAYS).await;
    until(&client, STAYS, &before).await;
    let free: i64 = one(&client, "SELECT bytes_free FROM tidepool.pool").await.parse().unwrap();
    let held: u64 = one(&writer, MAIN).await.parse().unwrap();
    let wanted = free + 5 * (2 << 20);
    let done = one(&client, &format!("CALL tidepool.pool_yield('{wanted}')")).await;
    assert_eq!(done, (wanted as u64).next_multiple_of(2 << 20).to_string());
    let free: i64 = one(&client, "SELECT bytes_free FROM tidepool.pool").await.parse().unwrap();
    // A manifest may have taken some of it since.
    assert!(free + (4 << 20) >= wanted, "{free} of {wanted} are free");
    let left: u64 = one(&writer, MAIN).await.parse().unwrap();
    assert!(left + 2 <= held, "main has {left} extents, and had {held}");
    assert_eq!(one(&writer, STAYS).await, before);
    assert_eq!(one(&client, STAYS).await, before);
}

/// `tidepool pool readers`: what it prints, or its error.
fn readers(cluster: &Cluster, count: &str, serve: &[&str]) -> Result<String, String> {
    let logs = cluster.folder.path().to_str().unwrap();
    let mut command = tidepool();
    command.args(["pool", "readers", &pool(cluster.folder.path()), count, "--logs", logs, "--", "--near", "64MB"]);
    let output = command.args(serve).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// Ends what a test that fails leaves behind.
struct Readers<'c>(&'c Cluster);

impl Drop for Readers<'_> {
    fn drop(&mut self) {
        let _ = readers(self.0, "0", &[]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_come_and_go_by_their_number() {
    let cluster = Cluster::new();
    let primary = cluster.start("h1", "primary", &[]);
    let writer = connect(&primary.url).await;
    writer.batch_execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)").await.unwrap();
    let far = ["--far", "pool:"];
    let _readers = Readers(&cluster);
    // One that was started in another way does not count, and stays.
    let other = cluster.start("r1", "reader", &[]);
    let started = readers(&cluster, "2", &far).unwrap();
    let urls: Vec<&str> = started.lines().map(|line| line.split_once(" at ").unwrap().1).collect();
    assert!(started.starts_with("reader-1 at ") && urls.len() == 2, "{started}");
    for url in &urls {
        until(&connect(url).await, "SELECT count(*) FROM t", "1").await;
    }
    // As many as there are already: they are shown, and nothing else happens.
    let shown = readers(&cluster, "2", &far).unwrap();
    assert_eq!(shown.lines().count(), 2, "{shown}");
    let first = connect(urls[0]).await;
    assert_eq!(one(&first, "SELECT count(*) FROM tidepool.hosts WHERE role = 'reader'").await, "3");
    let left = readers(&cluster, "1", &far).unwrap();
    assert!(left.starts_with("reader-2 is stopped\nreader-1 at "), "{left}");
    assert_eq!(one(&first, "SELECT count(*) FROM t").await, "1");
    assert!(try_connect(urls[1]).await.is_err());
    // One that does not start is an error, in its words.
    let error = readers(&cluster, "2", &["--far", "nowhere:"]).unwrap_err();
    assert!(error.starts_with("error: reader-2 did not start: ") && error.contains("reader-2.log"), "{error}");
    assert_eq!(readers(&cluster, "0", &far).unwrap(), "reader-1 is stopped\n");
    until(&writer, "SELECT string_agg(name, ',') FROM tidepool.hosts WHERE role = 'reader'", "r1").await;
    assert_eq!(one(&connect(&other.url).await, "SELECT count(*) FROM t").await, "1");
}
