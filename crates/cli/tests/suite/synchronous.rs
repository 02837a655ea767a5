//! Commits that wait until standbys show them.

use crate::failover::{Cluster, connect, is_stopped, one, until};
use crate::server::{PATIENCE, code};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_postgres::{AsyncMessage, Client, NoTls};

const SYNC_REP: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND state = 'active'";

/// A configuration file in which the standbys that commits wait for are named.
struct Names(PathBuf);

impl Names {
    fn new(cluster: &Cluster, names: &str) -> Names {
        let file = Names(cluster.folder.path().join("tidepool.toml"));
        file.write(names);
        file
    }

    fn write(&self, names: &str) {
        std::fs::write(&self.0, format!("[pool]\nsynchronous_standby_names = '{names}'\n")).unwrap();
    }

    /// Has a server read it again.
    async fn set(&self, client: &Client, names: &str) {
        self.write(names);
        assert_eq!(one(client, "SELECT pg_reload_conf()").await, "t");
        assert_eq!(one(client, "SHOW synchronous_standby_names").await, names);
    }

    fn arguments(&self) -> [&str; 2] {
        ["--config", self.0.to_str().unwrap()]
    }
}

/// A client, and the warnings that it gets.
async fn connect_hearing(url: &str) -> (Client, Arc<Mutex<Vec<String>>>) {
    let (client, mut connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    let heard: Arc<Mutex<Vec<String>>> = Arc::default();
    let of_task = heard.clone();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notice(notice) = message {
                of_task.lock().unwrap().push(format!("{} {}", notice.severity(), notice.message()));
            }
        }
    });
    (client, heard)
}

const STREAMING: &str = "SELECT string_agg(application_name, ',' ORDER BY application_name) FROM pg_stat_replication \
    WHERE state = 'streaming'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_committed_at_remote_apply_is_shown_by_the_standby() {
    let cluster = Cluster::new();
    let names = Names::new(&cluster, "h2");
    let first = cluster.start("h1", "primary", &names.arguments());
    let second = cluster.start("h2", "standby", &[]);
    let (writer, other) = (connect(&first.url).await, connect(&first.url).await);
    let reader = connect(&second.url).await;
    until(&writer, STREAMING, "h2").await;
    for client in [&writer, &other] {
        client.batch_execute("SET synchronous_commit = remote_apply").await.unwrap();
    }
    writer.batch_execute("CREATE TABLE t (id int PRIMARY KEY, x int)").await.unwrap();
    let statement = reader.prepare("SELECT count(*), sum(x) FROM t").await.unwrap();
    let insert = writer.prepare("INSERT INTO t VALUES ($1, $1)").await.unwrap();
    for round in 1..=1000 {
        match round % 5 {
            // By each way that a commit comes about.
            0 => {
                writer.batch_execute(&format!("BEGIN; INSERT INTO t VALUES ({round}, {round}); COMMIT")).await.unwrap()
            }
            1 => drop(writer.execute(&insert, &[&round]).await.unwrap()),
            2 => {
                let sql = format!("INSERT INTO t SELECT n, n FROM generate_series({round}, {round}) AS g(n)");
                writer.batch_execute(&sql).await.unwrap();
            }
            3 => {
                writer.batch_execute(&format!("BEGIN; INSERT INTO t VALUES ({round}, 0)")).await.unwrap();
                writer.batch_execute(&format!("UPDATE t SET x = id WHERE id = {round}; COMMIT")).await.unwrap();
            }
            // Beside another one.
            _ => {
                let sql = format!("INSERT INTO t VALUES ({round}, {round})");
                let noise = "CREATE SEQUENCE IF NOT EXISTS s";
                let (one, two) = tokio::join!(writer.batch_execute(&sql), other.batch_execute(noise));
                one.and(two).unwrap();
            }
        }
        let row = reader.query_one(&statement, &[]).await.unwrap();
        let wanted = i64::from(round);
        assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (wanted, wanted * (wanted + 1) / 2));
    }
    // Definitions and files, too.
    writer.batch_execute("CREATE TABLE u AS SELECT 1 AS a").await.unwrap();
    assert_eq!(one(&reader, "SELECT a FROM u").await, "1");
    let states = "SELECT application_name || ' ' || sync_priority || ' ' || sync_state FROM pg_stat_replication";
    assert_eq!(one(&writer, states).await, "h2 1 sync");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_waits_for_a_standby_that_is_gone_until_its_client_gives_up_or_the_names_change() {
    let cluster = Cluster::new();
    let names = Names::new(&cluster, "h2");
    let first = cluster.start("h1", "primary", &names.arguments());
    let looks = connect(&first.url).await;
    looks.batch_execute("CREATE TABLE t (id int PRIMARY KEY)").await.unwrap();
    // Nobody is there. Other levels do not wait.
    for level in ["off", "local", "remote_write", "on"] {
        looks
            .batch_execute(&format!("SET synchronous_commit = {level}; CREATE TABLE {level}_table (a int)"))
            .await
            .unwrap();
    }
    let error = looks.simple_query("SET synchronous_standby_names = 'h3'").await.unwrap_err();
    assert_eq!(code(&error), "55P02");
    // By a cancel, and by a time limit: the commit stands, and a warning says so.
    let (client, heard) = connect_hearing(&first.url).await;
    client.batch_execute("SET synchronous_commit = remote_apply").await.unwrap();
    let cancel = client.cancel_token();
    let client = Arc::new(client);
    let waiting = client.clone();
    let commit = tokio::spawn(async move { waiting.batch_execute("INSERT INTO t VALUES (1)").await });
    until(&looks, SYNC_REP, "1").await;
    // Others see it meanwhile, as in PostgreSQL they do not; what it changed is not held back.
    assert!(!commit.is_finished());
    cancel.cancel_query(NoTls).await.unwrap();
    tokio::time::timeout(PATIENCE, commit).await.unwrap().unwrap().unwrap();
    let warning = "WARNING canceling wait for synchronous replication due to user request";
    assert_eq!(heard.lock().unwrap().drain(..).collect::<Vec<_>>(), [warning]);
    client.batch_execute("SET statement_timeout = '50ms'; BEGIN; INSERT INTO t VALUES (2)").await.unwrap();
    client.batch_execute("COMMIT").await.unwrap();
    assert_eq!(heard.lock().unwrap().drain(..).collect::<Vec<_>>(), [warning]);
    client.batch_execute("SET statement_timeout = 0").await.unwrap();
    assert_eq!(one(&looks, "SELECT count(*) FROM t").await, "2");
    // The names change to nobody, and to one who is there.
    let standby = cluster.start("h3", "standby", &[]);
    until(&looks, STREAMING, "h3").await;
    for (id, changed) in [(3, ""), (4, "h3"), (5, "ANY 1 (h2, h3)"), (6, "1 (h3, h2)")] {
        names.set(&looks, "h2").await;
        let waiting = client.clone();
        let sql = format!("INSERT INTO t VALUES ({id})");
        let commit = tokio::spawn(async move { waiting.batch_execute(&sql).await });
        until(&looks, SYNC_REP, "1").await;
        names.set(&looks, changed).await;
        tokio::time::timeout(PATIENCE, commit).await.unwrap().unwrap().unwrap();
        until(&looks, SYNC_REP, "0").await;
    }
    assert!(heard.lock().unwrap().is_empty());
    // What cannot be read changes nothing.
    names.write("FIRST (h3)");
    assert_eq!(one(&looks, "SELECT pg_reload_conf()").await, "t");
    assert_eq!(one(&looks, "SHOW synchronous_standby_names").await, "1 (h3, h2)");
    // A signal has it read, too.
    names.write("h2");
    first.signal(libc::SIGHUP);
    until(&looks, "SHOW synchronous_standby_names", "h2").await;
    // A take-over ends the wait with the connection: the client does not know, and finds the commit.
    let waiting = client.clone();
    let commit = tokio::spawn(async move { waiting.batch_execute("INSERT INTO t VALUES (7)").await });
    until(&looks, SYNC_REP, "1").await;
    let next = connect(&standby.url).await;
    assert_eq!(one(&next, "SELECT pg_promote()").await, "t");
    assert!(tokio::time::timeout(PATIENCE, commit).await.unwrap().unwrap().is_err());
    assert_eq!(one(&next, "SELECT string_agg(id::text, ',' ORDER BY id) FROM t").await, "1,2,3,4,5,6,7");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standbys_take_each_others_places() {
    let cluster = Cluster::new();
    let names = Names::new(&cluster, "FIRST 1 (h2, h3)");
    let first = cluster.start("h1", "primary", &names.arguments());
    let client = connect(&first.url).await;
    client.batch_execute("SET synchronous_commit = remote_apply").await.unwrap();
    let second = cluster.start("h2", "standby", &[]);
    let third = cluster.start("h3", "standby", &[]);
    let fourth = cluster.start("h4", "standby", &[]);
    until(&client, STREAMING, "h2,h3,h4").await;
    let states = "SELECT string_agg(application_name || ' ' || sync_priority || ' ' || sync_state, ', ' \
        ORDER BY application_name) FROM pg_stat_replication";
    for (set, wanted) in [
        ("FIRST 1 (h2, h3)", "h2 1 sync, h3 2 potential, h4 0 async"),
        ("2 (h3, *)", "h2 2 sync, h3 1 sync, h4 2 potential"),
        ("ANY 2 (h2, h4)", "h2 1 quorum, h3 0 async, h4 1 quorum"),
        ("", "h2 0 async, h3 0 async, h4 0 async"),
        ("h3, h2", "h2 2 potential, h3 1 sync, h4 0 async"),
    ] {
        names.set(&client, set).await;
        assert_eq!(one(&client, states).await, wanted, "{set}");
        client.batch_execute(&format!("CREATE TABLE \"{set} made\" (a int)")).await.unwrap();
    }
    // The one that is waited for dies: the next takes its place.
    third.signal(libc::SIGKILL);
    client.batch_execute("CREATE TABLE t (a int)").await.unwrap();
    until(&client, states, "h2 2 sync, h4 0 async").await;
    // One that is stopped is waited for until it goes on.
    second.signal(libc::SIGSTOP);
    while !is_stopped(second.pid()) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let url = first.url.clone();
    let commit = tokio::spawn(async move {
        let client = connect(&url).await;
        client.batch_execute("SET synchronous_commit = remote_apply; INSERT INTO t VALUES (1)").await.unwrap();
    });
    until(&client, SYNC_REP, "1").await;
    second.signal(libc::SIGCONT);
    tokio::time::timeout(PATIENCE, commit).await.unwrap().unwrap();
    let reader = connect(&second.url).await;
    assert_eq!(one(&reader, "SELECT count(*) FROM t").await, "1");
    drop(fourth);
}
