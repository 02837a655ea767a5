//! Sessions whose transactions run at a reader where they only read (`tidepool.route_reads`): where each statement runs, what it sees, and
//! what becomes of connections when hosts are killed, stopped and replaced.

use crate::failover::{Cluster, connect, connect_soon, is_stopped, one, until};
use crate::raw::{self, Raw};
use crate::server::{PATIENCE, code};
use crate::sessions::{Encryption, address, rejoining, start, switch_over};
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio_postgres::{Client, NoTls};

/// `t` at a reader.
const WHERE_READ: &str = "BEGIN READ ONLY; SELECT pg_is_in_recovery(); COMMIT";
const WHERE: &str = "SELECT pg_is_in_recovery()";
const ON: &str = "SET tidepool.route_reads = on";

async fn routed(url: &str) -> Client {
    let client = connect(url).await;
    client.batch_execute(ON).await.unwrap();
    client
}

/// Whether two processes have a socket in common.
fn share_sockets(one: u32, other: u32) -> bool {
    let sockets = |pid: u32| -> HashSet<PathBuf> {
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let targets = descriptors.filter_map(|descriptor| std::fs::read_link(descriptor.path()).ok());
        targets.filter(|target| target.to_string_lossy().starts_with("socket:")).collect()
    };
    !sockets(one).is_disjoint(&sockets(other))
}

async fn set_up(url: &str) -> Client {
    let client = connect(url).await;
    client.batch_execute("CREATE TABLE t (id int PRIMARY KEY, name text)").await.unwrap();
    client
}

/// Writes and reads in turns, and returns how often it read at a reader.
async fn alternate(client: &mut Client, rounds: i32, number: i32) -> i32 {
    let insert = client.prepare("INSERT INTO t VALUES ($1, $2)").await.unwrap();
    let select = client.prepare("SELECT count(*) FROM t WHERE name = $1").await.unwrap();
    let place = client.prepare(WHERE).await.unwrap();
    let name = format!("n{number}");
    client.batch_execute(&format!("SET app.number = '{number}'; SET TIME ZONE 'Europe/Zurich'")).await.unwrap();
    let process_id = one(client, "SELECT pg_backend_pid()").await;
    let mut at_reader = 0;
    for round in 0..rounds {
        client.execute(&insert, &[&(number * 10_000 + round), &name]).await.unwrap();
        let transaction = client.build_transaction().read_only(true).start().await.unwrap();
        let count: i64 = transaction.query_one(&select, &[&name]).await.unwrap().get(0);
        assert_eq!(count, i64::from(round) + 1, "it does not see what it wrote");
        at_reader += i32::from(transaction.query_one(&place, &[]).await.unwrap().get::<_, bool>(0));
        let setting = transaction.query_one("SELECT current_setting('app.number')", &[]).await.unwrap();
        assert_eq!(setting.get::<_, String>(0), number.to_string());
        let refused = transaction.execute(&insert, &[&-1, &name]).await.unwrap_err();
        assert_eq!(code(&refused), "25006");
        transaction.rollback().await.unwrap();
        assert_eq!(one(client, "SHOW TimeZone").await, "Europe/Zurich");
        if round % 10 == 0 {
            assert_eq!(one(client, WHERE).await, "f");
            assert_eq!(one(client, "SELECT pg_backend_pid()").await, process_id);
        }
    }
    at_reader
}

async fn alternates(is_secured: bool) {
    let cluster = Cluster::new();
    let config = rejoining(&cluster, "1s");
    let encryption = is_secured.then(|| Encryption::new(&cluster, &config));
    let primary = start(&cluster, "h1", "primary", &config, None);
    let setting = set_up(&primary.url).await;
    let _readers = [start(&cluster, "r1", "reader", &config, None), start(&cluster, "r2", "reader", &config, None)];
    let looks = routed(&primary.url).await;
    until(&looks, WHERE_READ, "t").await;
    let mut working = Vec::new();
    for number in 1..=4 {
        let mut client = match &encryption {
            Some(encryption) => encryption.connect(&primary.url, number as usize).await,
            None => connect(&primary.url).await,
        };
        client.batch_execute(ON).await.unwrap();
        working.push(tokio::spawn(async move { alternate(&mut client, 100, number).await }));
    }
    let mut at_reader = 0;
    for working in working {
        at_reader += working.await.unwrap();
    }
    println!("{at_reader} of 400 transactions ran at a reader");
    assert!(at_reader > 0);
    assert_eq!(one(&setting, "SELECT count(*) FROM t").await, "400");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_read_at_readers_what_they_wrote_at_the_primary() {
    alternates(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn encrypted_sessions_read_at_readers_what_they_wrote_at_the_primary() {
    alternates(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_statement_runs_where_it_can() {
    let cluster = Cluster::new();
    let primary = cluster.start("h1", "primary", &[]);
    let plain = set_up(&primary.url).await;
    let client = routed(&primary.url).await;
    // There is no reader.
    assert_eq!(one(&client, WHERE_READ).await, "f");
    let reader = cluster.start("r1", "reader", &[]);
    until(&client, WHERE_READ, "t").await;
    // Off is off.
    assert_eq!(one(&plain, WHERE_READ).await, "f");
    // It stays there for what works on the session alone, and its own reader's clients see it.
    let at_reader = connect(&reader.url).await;
    client.batch_execute("SET application_name = 'guest'").await.unwrap();
    let activity = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'guest'";
    assert_eq!(one(&at_reader, activity).await, "1");
    assert_eq!(one(&client, "SHOW in_hot_standby").await, "on");
    // A statement that may write goes back.
    client.batch_execute("INSERT INTO t VALUES (1, 'one')").await.unwrap();
    assert_eq!(one(&at_reader, activity).await, "0");
    for (sql, at) in [
        ("BEGIN READ ONLY; SELECT pg_is_in_recovery(); COMMIT; INSERT INTO t VALUES (2, 'two')", "f"),
        ("BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY; SELECT pg_is_in_recovery(); COMMIT", "f"),
        ("BEGIN; SELECT pg_is_in_recovery(); COMMIT", "f"),
        ("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; SELECT pg_is_in_recovery(); COMMIT", "t"),
    ] {
        until(&client, WHERE_READ, "t").await;
        match at {
            "t" => until(&client, sql, at).await,
            _ => assert_eq!(one(&client, sql).await, at, "{sql}"),
        }
    }
    // A transaction that turns out not to be for a reader goes back before its first statement, and is refused later.
    until(&client, WHERE_READ, "t").await;
    client.batch_execute("BEGIN READ ONLY").await.unwrap();
    assert_eq!(one(&client, "SELECT pg_try_advisory_xact_lock(7)").await, "t");
    assert_eq!(one(&plain, "SELECT pg_try_advisory_xact_lock(7)").await, "f");
    client.batch_execute("COMMIT").await.unwrap();
    client.batch_execute("BEGIN READ ONLY").await.unwrap();
    client.batch_execute("SET TRANSACTION READ WRITE; INSERT INTO t VALUES (3, 'three'); COMMIT").await.unwrap();
    loop {
        client.batch_execute("BEGIN READ ONLY").await.unwrap();
        if one(&client, WHERE).await == "t" {
            break;
        }
        client.batch_execute("COMMIT").await.unwrap();
    }
    let refused = client.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap_err();
    assert_eq!(code(&refused), "0A000");
    client.batch_execute("ROLLBACK").await.unwrap();
    // What ties it to the primary keeps it there.
    client.batch_execute("SELECT pg_advisory_lock(8)").await.unwrap();
    assert_eq!(one(&client, WHERE_READ).await, "f");
    client.batch_execute("SELECT pg_advisory_unlock(8)").await.unwrap();
    // Cursors that outlive their transactions go back with it.
    until(&client, WHERE_READ, "t").await;
    client
        .batch_execute("BEGIN READ ONLY; DECLARE c CURSOR WITH HOLD FOR SELECT id FROM t ORDER BY id; COMMIT")
        .await
        .unwrap();
    assert_eq!(one(&client, "FETCH 1 FROM c").await, "1");
    client.batch_execute("INSERT INTO t VALUES (4, 'four')").await.unwrap();
    assert_eq!(one(&client, "FETCH 1 FROM c").await, "2");
    client.batch_execute("CLOSE c").await.unwrap();
    // All that a session does, where its transactions only read by default.
    client.batch_execute("SET default_transaction_read_only = on").await.unwrap();
    until(&client, WHERE, "t").await;
    let select = client.prepare("SELECT count(*) FROM t WHERE id < $1").await.unwrap();
    let count: i64 = client.query_one(&select, &[&100]).await.unwrap().get(0);
    assert_eq!(count, 4);
    assert_eq!(code(&client.batch_execute("DELETE FROM t").await.unwrap_err()), "25006");
    client.batch_execute("BEGIN READ WRITE; INSERT INTO t VALUES (5, 'five'); COMMIT").await.unwrap();
    client.batch_execute("VACUUM t").await.unwrap();
    // Off, it goes back.
    until(&client, WHERE, "t").await;
    client.batch_execute("SET tidepool.route_reads = off").await.unwrap();
    assert_eq!(one(&client, WHERE).await, "f");
    // A role may have it.
    plain.batch_execute("CREATE USER u; ALTER USER u SET tidepool.route_reads = on").await.unwrap();
    let of_role = connect(&primary.url.replace("tidepool@", "u@")).await;
    until(&of_role, WHERE_READ, "t").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_client_sends_at_once_and_in_parts_is_worked_on_once() {
    let cluster = Cluster::new();
    let primary = cluster.start("h1", "primary", &[]);
    let plain = set_up(&primary.url).await;
    let _reader = cluster.start("r1", "reader", &[]);
    let looks = routed(&primary.url).await;
    until(&looks, WHERE_READ, "t").await;
    let (mut client, _) = Raw::start(address(&primary.url)).await;
    client.ask(&raw::query(ON)).await;
    let extended = |sql: &str| [raw::parse("", sql), raw::bind("", ""), raw::execute("", 0)].concat();
    let (mut id, mut at_reader) = (0, 0);
    for round in 0..60 {
        // Reads and writes as one piece: the whole runs at the primary.
        id += 1;
        let insert = format!("INSERT INTO t VALUES ({id}, 'n')");
        let both = [extended("BEGIN READ ONLY"), extended(WHERE), extended("COMMIT"), extended(&insert), raw::sync()];
        let mut answer = client.ask(&both.concat()).await;
        // A setting is told that says where the session is.
        answer.retain(|(kind, _)| *kind != b'S');
        assert_eq!(raw::kinds(&answer), "12C12DC12C12CZ", "{answer:?}");
        assert_eq!(answer[5].1.last(), Some(&b'f'));
        // A message that comes in parts, and the next one behind it.
        let read =
            [extended("BEGIN READ ONLY"), raw::sync(), extended(WHERE), extended("COMMIT"), raw::sync()].concat();
        let (first, second) = read.split_at(1 + round % (read.len() - 1));
        client.send(first).await;
        tokio::task::yield_now().await;
        client.send(second).await;
        let begun = client.until(b'Z').await;
        assert_eq!(raw::kinds(&begun).replace('S', ""), "12CZ", "{begun:?}");
        let answer = client.until(b'Z').await;
        assert_eq!(raw::kinds(&answer).replace('S', ""), "12DC12CZ", "{answer:?}");
        at_reader += i32::from(answer.iter().any(|(kind, body)| *kind == b'D' && body.last() == Some(&b't')));
        // Two rounds at once, of which the first reads.
        id += 1;
        let insert = format!("INSERT INTO t VALUES ({id}, '{}')", "long".repeat(round * 4000));
        let read = "BEGIN READ ONLY; SELECT count(*) FROM t; COMMIT";
        client.send(&[raw::query(read), raw::query(&insert), raw::query("SELECT 1")].concat()).await;
        let answer = client.until(b'Z').await;
        let count = answer.iter().find(|(kind, _)| *kind == b'D').unwrap();
        assert_eq!(String::from_utf8_lossy(&count.1[6..]), (id - 1).to_string());
        assert_eq!(raw::kinds(&client.until(b'Z').await).replace('S', ""), "CZ");
        assert_eq!(raw::kinds(&client.until(b'Z').await).replace('S', ""), "TDCZ");
    }
    println!("{at_reader} of 60 transactions ran at a reader");
    assert!(at_reader > 0);
    assert_eq!(one(&plain, "SELECT count(*) FROM t").await, id.to_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_is_killed_stopped_or_ended_leaves_sessions_a_primary() {
    let cluster = Cluster::new();
    let primary = cluster.start("h1", "primary", &[]);
    let _plain = set_up(&primary.url).await;
    let reader = cluster.start("r1", "reader", &[]);
    let [at_reader, at_primary] = [routed(&primary.url).await, routed(&primary.url).await];
    until(&at_reader, WHERE_READ, "t").await;
    until(&at_primary, WHERE_READ, "t").await;
    at_primary.batch_execute("INSERT INTO t VALUES (1, 'one')").await.unwrap();
    // One that sleeps takes nothing: the primary reads.
    reader.signal(libc::SIGSTOP);
    while !is_stopped(reader.pid()) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for id in 2..5 {
        assert_eq!(one(&at_primary, WHERE_READ).await, "f");
        at_primary.batch_execute(&format!("INSERT INTO t VALUES ({id}, 'more')")).await.unwrap();
    }
    // It wakes, and has nothing of what was offered to it meanwhile.
    reader.signal(libc::SIGCONT);
    until(&at_primary, WHERE_READ, "t").await;
    assert_eq!(one(&at_primary, "SELECT count(*) FROM t").await, "4");
    assert_eq!(one(&at_reader, "SELECT count(*) FROM t").await, "4");
    // Killed, it takes those that are there with it, and nobody else.
    until(&at_reader, WHERE_READ, "t").await;
    reader.signal(libc::SIGKILL);
    assert!(at_reader.batch_execute(WHERE_READ).await.is_err());
    for _ in 0..3 {
        assert_eq!(one(&at_primary, WHERE_READ).await, "f");
    }
    // One that is told to end lets them go back first.
    let reader = cluster.start("r2", "reader", &[]);
    until(&at_primary, WHERE_READ, "t").await;
    reader.signal(libc::SIGTERM);
    let (_, log) = reader.wait();
    assert!(!log.contains("ERROR") && !log.contains("panic"), "{log}");
    assert_eq!(one(&at_primary, "SELECT count(*) FROM t").await, "4");
    assert_eq!(one(&at_primary, WHERE_READ).await, "f");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_at_a_reader_outlives_its_primary() {
    let cluster = Cluster::new();
    let config = rejoining(&cluster, "1s");
    let first = start(&cluster, "h1", "primary", &config, None);
    let plain = set_up(&first.url).await;
    let second = start(&cluster, "h2", "standby", &config, None);
    let reader = start(&cluster, "r1", "reader", &config, None);
    until(&plain, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'", "2").await;
    let (idle, reading) = (routed(&first.url).await, routed(&first.url).await);
    until(&idle, WHERE_READ, "t").await;
    // Another one is primary by its will.
    switch_over(&first.url, "h2").await;
    idle.batch_execute("INSERT INTO t VALUES (1, 'one')").await.unwrap();
    assert_eq!(one(&idle, "SELECT name FROM tidepool.hosts WHERE is_this_server").await, "h2");
    until(&idle, WHERE_READ, "t").await;
    until(&plain, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'", "2").await;
    // It is killed while one session is idle at the reader, and one reads.
    until(&reading, WHERE_READ, "t").await;
    reading.batch_execute("BEGIN READ ONLY").await.unwrap();
    assert_eq!(one(&reading, "SELECT count(*) FROM t").await, "1");
    let begun = Instant::now();
    while share_sockets(first.pid(), reader.pid()) {
        assert!(begun.elapsed() < PATIENCE, "the standby keeps sockets of sessions that went to a reader");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    second.signal(libc::SIGKILL);
    assert_eq!(one(&reading, "SELECT count(*) FROM t").await, "1");
    reading.batch_execute("COMMIT").await.unwrap();
    for (client, id) in [(&idle, 2), (&reading, 3)] {
        client.batch_execute(&format!("INSERT INTO t VALUES ({id}, 'after')")).await.unwrap();
        assert_eq!(one(client, "SELECT name FROM tidepool.hosts WHERE is_this_server").await, "h1");
    }
    until(&idle, WHERE_READ, "t").await;
    let again = connect_soon(&first.url).await;
    assert_eq!(one(&again, "SELECT count(*) FROM t").await, "3");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_cancels_at_the_address_that_it_knows() {
    let cluster = Cluster::new();
    let primary = cluster.start("h1", "primary", &[]);
    let _plain = set_up(&primary.url).await;
    let _reader = cluster.start("r1", "reader", &[]);
    let client = Arc::new(routed(&primary.url).await);
    until(&client, WHERE_READ, "t").await;
    let sleeper = client.clone();
    let mut sleeping =
        tokio::spawn(async move { sleeper.batch_execute("BEGIN READ ONLY; SELECT pg_sleep(3600)").await });
    let ended = loop {
        tokio::select! {
            ended = &mut sleeping => break ended.unwrap(),
            () = tokio::time::sleep(Duration::from_millis(50)) => {
                let stream = TcpStream::connect(address(&primary.url)).await.unwrap();
                client.cancel_token().cancel_query_raw(stream, NoTls).await.unwrap();
            }
        }
    };
    assert_eq!(code(&ended.unwrap_err()), "57014");
    client.batch_execute("ROLLBACK").await.unwrap();
    client.batch_execute("INSERT INTO t VALUES (1, 'one')").await.unwrap();
}

/// What one move to a reader and back costs: `cargo test … -- --ignored --nocapture cost_of_a_move`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn cost_of_a_move() {
    let cluster = Cluster::new();
    let primary = cluster.start("h1", "primary", &[]);
    let client = set_up(&primary.url).await;
    let _reader = cluster.start("r1", "reader", &[]);
    const ROUNDS: u32 = 2000;
    let read = "BEGIN READ ONLY; SELECT count(*) FROM t; COMMIT";
    for on in ["off", "on", "off", "on"] {
        client.batch_execute(&format!("SET tidepool.route_reads = {on}")).await.unwrap();
        if on == "on" {
            until(&client, WHERE_READ, "t").await;
        }
        let start = Instant::now();
        for _ in 0..ROUNDS {
            client.batch_execute(read).await.unwrap();
            client.batch_execute("SELECT 1").await.unwrap();
        }
        println!("{on}: {:?} a round of a read-only transaction and another statement", start.elapsed() / ROUNDS);
    }
}
