//! Readers beside the servers of a database in a pool: what their clients see while primaries come and go, and that nobody waits for
//! a reader that is stopped or killed.

use crate::failover::{Cluster, connect, is_stopped, one, until};
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
    let again = connect(&first.url).await;
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
