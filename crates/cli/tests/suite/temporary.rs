//! Temporary tables: whose they are, that nothing outside of their session has anything of them, and what becomes of a connection that
//! has some.

use crate::failover::{Cluster, connect, connect_soon, one, until};
use crate::kept::until_kept;
use crate::server::{MIB, Setup, TestServer, code, pid};
use crate::sessions::{create_tables, rejoining, start, switch_over};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidepool_database::Config;
use tokio_postgres::Client;

const STREAMING: &str = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
const USED: &str = "SELECT bytes_used FROM tidepool.tablespaces WHERE name = 'far'";
const NEAR: &str = "SELECT bytes_used FROM tidepool.tablespaces WHERE name = 'near'";
const PERSISTENT: &str = "SELECT count(*) FROM pg_class WHERE relpersistence = 't'";

/// Far memory that is used once so little is left that a session of its own cannot be told from nothing.
async fn until_given_back(server: &TestServer, client: &Client, before: u64) {
    let start = Instant::now();
    loop {
        server.database.vacuum();
        let used: u64 = one(client, USED).await.parse().unwrap();
        if used <= before + MIB {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{used} bytes are used, and {before} were");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn they_end_with_their_session_and_give_their_memory_back() {
    let server = TestServer::start().await;
    let watching = server.connect().await;
    let before: u64 = one(&watching, USED).await.parse().unwrap();
    for round in 0..3 {
        let client = server.connect().await;
        client
            .batch_execute(
                "CREATE TEMP TABLE t (id int PRIMARY KEY, v text) TABLESPACE far;
                 INSERT INTO t SELECT i, 'row ' || i FROM generate_series(1, 50000) AS g(i);
                 CREATE TEMP TABLE made TABLESPACE far AS SELECT * FROM t;
                 UPDATE t SET v = v || '!'; DELETE FROM t WHERE id % 2 = 0",
            )
            .await
            .unwrap();
        assert_eq!(one(&client, "SELECT count(*) FROM t").await, "25000");
        let used: u64 = one(&watching, USED).await.parse().unwrap();
        assert!(used > before + MIB, "{used} bytes are used, and {before} were");
        assert_eq!(one(&watching, PERSISTENT).await, "0");
        match round {
            0 => drop(client),
            1 => {
                let killed = format!("SELECT pg_terminate_backend({})", pid(&client).await);
                assert_eq!(one(&watching, &killed).await, "t");
            }
            // In the middle of a transaction.
            _ => {
                client.batch_execute("BEGIN; TRUNCATE made; INSERT INTO t VALUES (0, 'open')").await.unwrap();
                drop(client);
            }
        }
        until_given_back(&server, &watching, before).await;
    }
    // What is discarded goes at once, and a transaction of its own is enough.
    let client = server.connect().await;
    let made = "CREATE TEMP TABLE t TABLESPACE far AS SELECT i, 'row ' || i FROM generate_series(1, 50000) AS g(i)";
    for end in ["DISCARD TEMP", "DISCARD ALL", "DROP TABLE t", "TRUNCATE t"] {
        client.batch_execute(made).await.unwrap();
        client.batch_execute(end).await.unwrap();
        until_given_back(&server, &watching, before).await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn they_count_within_their_tablespace() {
    let config = Config { threads: 2, ..Config::in_memory(64 * MIB, 24 * MIB) };
    let server = TestServer::with(Setup { config: Some(config), ..Setup::default() }).await;
    let client = server.connect().await;
    client.batch_execute("CREATE TEMP TABLE t (id int, v text) TABLESPACE far").await.unwrap();
    let mut refused = None;
    for _ in 0..100 {
        let many = "INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 10000) AS g(i)";
        if let Err(error) = client.batch_execute(many).await {
            refused = Some(error);
            break;
        }
    }
    assert_eq!(code(&refused.expect("there was room for all")), "53200");
    // The session goes on.
    client.batch_execute("TRUNCATE t").await.unwrap();
    client.batch_execute("INSERT INTO t VALUES (1, 'there is room again')").await.unwrap();
    assert_eq!(one(&client, "SELECT count(*) FROM t").await, "1");
    let other = server.connect().await;
    other.batch_execute("CREATE TABLESPACE extra LOCATION 'anon:' WITH (size = '16MB')").await.unwrap();
    client.batch_execute("CREATE TEMP TABLE e (a int) TABLESPACE extra").await.unwrap();
    assert_eq!(code(&other.batch_execute("DROP TABLESPACE extra").await.unwrap_err()), "55006");
    client.batch_execute("DROP TABLE e").await.unwrap();
    other.batch_execute("DROP TABLESPACE extra").await.unwrap();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_of_them_is_written_or_hurts_others() {
    let folder = tempfile::tempdir().unwrap();
    let config = || {
        let mut config = Config::in_memory(128 * MIB, 128 * MIB);
        config.data_dir = Some(folder.path().join("data"));
        Some(config)
    };
    let server = TestServer::with(Setup { config: config(), ..Setup::default() }).await;
    let (client, other) = (server.connect().await, server.connect().await);
    client.batch_execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'p')").await.unwrap();
    let prepared = other.prepare("SELECT v FROM t WHERE id = $1").await.unwrap();
    assert_eq!(other.query_one(&prepared, &[&1]).await.unwrap().get::<_, &str>(0), "p");
    let oid: i64 = one(&client, "SELECT 't'::regclass::oid").await.parse().unwrap();
    let (state, written) = (server.database.state(), one(&client, "SELECT pg_current_wal_lsn()").await);
    client
        .batch_execute(
            "CREATE TEMP TABLE t (id serial PRIMARY KEY, v text CHECK (v <> '') UNIQUE);
             INSERT INTO t (v) SELECT 'secret ' || i FROM generate_series(1, 40000) AS g(i);
             CREATE INDEX ON t (v, id); COMMENT ON TABLE t IS 'secret'; GRANT SELECT ON t TO PUBLIC;
             UPDATE t SET v = 'secret!' WHERE id = 2; DELETE FROM t WHERE id = 3;
             ALTER TABLE t ADD COLUMN c int DEFAULT 3;
             CREATE TEMP TABLE made AS SELECT * FROM t;
             BEGIN; CREATE TEMP TABLE short (a int) ON COMMIT DROP; INSERT INTO short VALUES (1); COMMIT;
             CREATE TEMP TABLE emptied (a int) ON COMMIT DELETE ROWS; INSERT INTO emptied VALUES (1)",
        )
        .await
        .unwrap();
    // By key, too.
    let insert = client.prepare("INSERT INTO t (id, v) VALUES ($1, $2)").await.unwrap();
    client.execute(&insert, &[&100_000, &"secret by key"]).await.unwrap();
    assert!(Arc::ptr_eq(&state, &server.database.state()), "what exists for all has changed");
    assert_eq!(one(&client, "SELECT pg_current_wal_lsn()").await, written);
    assert_eq!(other.query_one(&prepared, &[&1]).await.unwrap().get::<_, &str>(0), "p");
    // One transaction writes to both; a record has the one.
    client
        .batch_execute(
            "BEGIN; INSERT INTO t (id, v) VALUES (-1, 'secret'); INSERT INTO public.t VALUES (2, 'q');
         CREATE TABLE next (a int); CREATE TEMP TABLE next_too (a int); COMMIT",
        )
        .await
        .unwrap();
    // No other ids were drawn than that of the one table and what was made with it.
    let next: i64 = one(&client, "SELECT 'next'::regclass::oid").await.parse().unwrap();
    assert!(next - oid < 5, "{oid} and then {next}");
    assert!(one(&client, "SELECT 't'::regclass::oid").await.parse::<i64>().unwrap() >= 1 << 30);
    // Others see none of it, in no view.
    for view in ["pg_class WHERE relname", "pg_index JOIN pg_class c ON c.oid = indexrelid WHERE c.relname"] {
        assert_eq!(one(&other, &format!("SELECT count(*) FROM {view} LIKE 'made%'")).await, "0");
    }
    assert_eq!(one(&other, "SELECT count(*) FROM t").await, "2");
    assert_eq!(one(&other, "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'pg_temp%'").await, "0");
    for sql in ["VACUUM FULL", "CHECKPOINT", "CALL tidepool.merge('t')"] {
        other.batch_execute(sql).await.unwrap();
    }
    let checked = other.query("CALL tidepool.check()", &[]).await;
    if let Ok(rows) = checked {
        assert!(rows.iter().all(|row| row.get::<_, Option<&str>>(2).is_none()));
    }
    let copy = folder.path().join("copy");
    other.batch_execute(&format!("CALL tidepool.backup('{}')", copy.display())).await.unwrap();
    client.batch_execute("INSERT INTO t (id, v) VALUES (-2, 'secret too')").await.unwrap();
    assert_eq!(one(&client, "SELECT count(*) FROM made").await, "39999");
    drop((client, other));
    server.stop().await;
    // Neither files nor the log have a word of it.
    let secret = b"secret";
    let mut folders = vec![folder.path().to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else {
                let bytes = match std::fs::read(&entry) {
                    Ok(bytes) => bytes,
                    // A checkpoint that was under way has removed it since the folder was listed.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                    Err(error) => panic!("{}: {error}", entry.display()),
                };
                assert!(!bytes.windows(secret.len()).any(|part| part == secret), "{}", entry.display());
            }
        }
    }
    let server = TestServer::with(Setup { config: config(), ..Setup::default() }).await;
    let client = server.connect().await;
    assert_eq!(one(&client, "SELECT string_agg(v, '' ORDER BY id) FROM t").await, "pq");
    assert_eq!(one(&client, PERSISTENT).await, "0");
    assert_eq!(one(&client, "SELECT count(*) FROM next").await, "0");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sessions_use_the_same_names_at_once() {
    let server = TestServer::start().await;
    let setting = server.connect().await;
    setting
        .batch_execute("CREATE TABLE shared (id int PRIMARY KEY, n int); INSERT INTO shared VALUES (1, 0)")
        .await
        .unwrap();
    let working: Vec<_> = (0..6)
        .map(|number| {
            let config = server.config();
            tokio::spawn(async move {
                let mut client = crate::server::connect(&config).await.unwrap();
                for round in 0..30 {
                    let make =
                        "CREATE TEMP TABLE work (id int PRIMARY KEY, who int); CREATE INDEX by_who ON work (who)";
                    client.batch_execute(make).await.unwrap();
                    let insert = client.prepare("INSERT INTO work VALUES ($1, $2)").await.unwrap();
                    for id in 0..20 {
                        client.execute(&insert, &[&id, &number]).await.unwrap();
                    }
                    let transaction = client.transaction().await.unwrap();
                    let moved = "UPDATE shared SET n = n + (SELECT count(*) FROM work WHERE who = $1) WHERE id = 1";
                    transaction.execute(moved, &[&number]).await.unwrap();
                    transaction.execute("DELETE FROM work WHERE id < $1", &[&(round % 20)]).await.unwrap();
                    transaction.commit().await.unwrap();
                    let left: i64 = client.query_one("SELECT count(*) FROM work", &[]).await.unwrap().get(0);
                    assert_eq!(left, i64::from(20 - round % 20));
                    client.batch_execute("DROP TABLE work").await.unwrap();
                }
            })
        })
        .collect();
    // What exists for all changes meanwhile.
    for round in 0..30 {
        setting.batch_execute(&format!("CREATE TABLE other{round} (a int); DROP TABLE other{round}")).await.unwrap();
    }
    for working in working {
        working.await.unwrap();
    }
    assert_eq!(one(&setting, "SELECT n FROM shared").await, (6 * 30 * 20).to_string());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_has_some_of_its_own() {
    let cluster = Cluster::new();
    let first = cluster.start("h1", "primary", &[]);
    let writer = connect(&first.url).await;
    writer.batch_execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')").await.unwrap();
    let standby = cluster.start("h2", "standby", &[]);
    let reader = cluster.start("r1", "reader", &[]);
    for url in [&reader.url, &standby.url] {
        let client = connect(url).await;
        until(&client, "SELECT v FROM t WHERE id = 1", "a").await;
        client
            .batch_execute(
                "CREATE TEMP TABLE scratch (id int PRIMARY KEY, v text, n serial);
                 INSERT INTO scratch SELECT id, v FROM t; INSERT INTO scratch (id, v) VALUES (7, 'seven');
                 CREATE TEMP TABLE made AS SELECT i FROM generate_series(1, 100000) AS g(i);
                 CREATE INDEX ON made (i); ALTER TABLE made ADD COLUMN c int DEFAULT 1",
            )
            .await
            .unwrap();
        assert_eq!(one(&client, "SELECT string_agg(v || n, ',' ORDER BY id) FROM scratch").await, "a1,seven2");
        assert_eq!(one(&client, "SELECT sum(c) FROM made").await, "100000");
        // All else is refused as it was.
        for sql in [
            "INSERT INTO t SELECT id + 10, v FROM scratch",
            "CREATE TABLE u (a int)",
            "DROP TABLE t",
            "DROP TABLE made, t",
            "TRUNCATE t",
            "SELECT * FROM t FOR UPDATE",
            "CREATE SEQUENCE s",
            "COPY t FROM STDIN",
        ] {
            assert_eq!(code(&client.simple_query(sql).await.unwrap_err()), "25006", "{sql}");
        }
        client
            .batch_execute(
                "BEGIN; INSERT INTO scratch VALUES (8, 'eight'); SAVEPOINT s; DELETE FROM scratch; ROLLBACK TO s;
                 UPDATE scratch SET v = 'one' WHERE id = 1; COMMIT;
                 BEGIN; DELETE FROM scratch; DROP TABLE made; ROLLBACK; TRUNCATE made",
            )
            .await
            .unwrap();
        assert_eq!(one(&client, "SELECT string_agg(v, ',' ORDER BY id) FROM scratch").await, "one,seven,eight");
        assert_eq!(one(&client, "SELECT count(*) FROM made").await, "0");
    }
    // While the primary writes nothing, time stands still for those who follow. Memory comes back all the same.
    for url in [&reader.url, &standby.url] {
        let (client, watching) = (connect(url).await, connect(url).await);
        client.batch_execute("CREATE TEMP TABLE t (id int PRIMARY KEY, v text) TABLESPACE near").await.unwrap();
        client.batch_execute("INSERT INTO t SELECT i, 'row ' FROM generate_series(1, 10000) AS g(i)").await.unwrap();
        let used = async || one(&watching, NEAR).await.parse::<u64>().unwrap();
        let once = used().await;
        for round in 0..40 {
            client.batch_execute(&format!("UPDATE t SET v = 'row {round}' WHERE id > 0")).await.unwrap();
            client.batch_execute("DELETE FROM t WHERE id = 1; INSERT INTO t VALUES (1, 'again')").await.unwrap();
        }
        assert_eq!(one(&client, "SELECT count(*) FROM t WHERE v LIKE 'row 39'").await, "9999");
        assert!(used().await < 4 * once, "{once} bytes were used, and {} are", used().await);
        // A cursor still shows what there was.
        client.batch_execute("BEGIN; DECLARE c CURSOR FOR SELECT v FROM t ORDER BY id; MOVE 5 FROM c").await.unwrap();
        client.batch_execute("UPDATE t SET v = 'new'; DELETE FROM t WHERE id % 2 = 0").await.unwrap();
        assert_eq!(one(&client, "FETCH 1 FROM c").await, "row 39");
        client.batch_execute("COMMIT").await.unwrap();
        assert_eq!(one(&client, "SELECT count(*) || max(v) FROM t WHERE v = 'new'").await, "5000new");
        drop(client);
        let start = Instant::now();
        while used().await * 2 > once {
            assert!(start.elapsed() < Duration::from_secs(60), "{once} bytes were used, and {} are", used().await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    // What is replicated goes on, and is read beside them.
    let (client, at_standby) = (connect(&reader.url).await, connect(&standby.url).await);
    for client in [&client, &at_standby] {
        client.batch_execute("CREATE TEMP TABLE seen (id int PRIMARY KEY); INSERT INTO seen VALUES (1)").await.unwrap();
    }
    for number in 2..30 {
        writer.batch_execute(&format!("INSERT INTO t VALUES ({number}, 'n')")).await.unwrap();
        if number == 10 {
            writer.batch_execute("CREATE TABLE later (a int); ALTER TABLE t ADD COLUMN w int").await.unwrap();
        }
        let written = one(&writer, "SELECT pg_current_wal_lsn()").await;
        for client in [&client, &at_standby] {
            client.batch_execute(&format!("SET tidepool.read_after = '{written}'")).await.unwrap();
            client.batch_execute("INSERT INTO seen SELECT id FROM t ON CONFLICT DO NOTHING").await.unwrap();
            assert_eq!(one(client, "SELECT count(*) FROM seen JOIN t USING (id)").await, number.to_string());
        }
    }
    // The primary is killed. The reader's session stays, and so does the standby's, which then writes to all.
    first.signal(libc::SIGKILL);
    let again = connect_soon(&first.url).await;
    assert_eq!(one(&again, "SELECT name FROM tidepool.hosts WHERE is_this_server").await, "h2");
    again.batch_execute("INSERT INTO t VALUES (100, 'after')").await.unwrap();
    at_standby.batch_execute("RESET tidepool.read_after; INSERT INTO seen VALUES (100)").await.unwrap();
    assert_eq!(one(&at_standby, "SELECT count(*) FROM seen JOIN t USING (id)").await, "30");
    at_standby.batch_execute("INSERT INTO t SELECT id + 1000, 'of seen' FROM seen").await.unwrap();
    let written = one(&again, "SELECT pg_current_wal_lsn()").await;
    client
        .batch_execute(&format!("SET tidepool.read_after = '{written}'; INSERT INTO seen VALUES (100)"))
        .await
        .unwrap();
    assert_eq!(one(&client, "SELECT count(*) FROM seen JOIN t USING (id)").await, "30");
    assert_eq!(one(&client, "SELECT count(*) FROM t").await, "60");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_has_some_is_not_routed() {
    const WHERE_READ: &str = "BEGIN READ ONLY; SELECT pg_is_in_recovery(); COMMIT";
    let cluster = Cluster::new();
    let primary = cluster.start("h1", "primary", &[]);
    let client = connect(&primary.url).await;
    client.batch_execute("SET tidepool.route_reads = on").await.unwrap();
    let _reader = cluster.start("r1", "reader", &[]);
    until(&client, WHERE_READ, "t").await;
    // One that is at a reader goes back to make one; within a transaction that only reads it may not.
    client.batch_execute("BEGIN READ ONLY; SELECT 1").await.unwrap();
    let refused = client.batch_execute("CREATE TEMP TABLE mine (a int)").await.unwrap_err();
    assert_eq!(code(&refused), "25006");
    client.batch_execute("ROLLBACK").await.unwrap();
    client.batch_execute("CREATE TEMP TABLE mine (a int); INSERT INTO mine VALUES (1)").await.unwrap();
    for _ in 0..5 {
        assert_eq!(one(&client, WHERE_READ).await, "f");
        assert_eq!(one(&client, "BEGIN READ ONLY; SELECT a FROM mine; COMMIT").await, "1");
    }
    client.batch_execute("DISCARD TEMP").await.unwrap();
    until(&client, WHERE_READ, "t").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_has_some_ends_with_its_host() {
    let cluster = Cluster::new();
    let config = rejoining(&cluster, "1s");
    let first = start(&cluster, "h1", "primary", &config, None);
    let second = start(&cluster, "h2", "standby", &config, None);
    let setup = connect(&first.url).await;
    create_tables(&setup).await;
    until(&setup, STREAMING, "1").await;
    let make = "CREATE TEMP TABLE mine (a int); INSERT INTO mine VALUES (1)";
    let (has, had, open, made, plain) = (
        connect(&first.url).await,
        connect(&first.url).await,
        connect(&first.url).await,
        connect(&first.url).await,
        connect(&first.url).await,
    );
    has.batch_execute(make).await.unwrap();
    had.batch_execute(&format!("{make}; DROP TABLE mine")).await.unwrap();
    // Its transaction is lost, and says so; the table would not have been there yet.
    open.batch_execute(&format!("BEGIN; {make}")).await.unwrap();
    made.batch_execute("BEGIN").await.unwrap();
    made.batch_execute(make).await.unwrap();
    made.batch_execute("COMMIT").await.unwrap();
    switch_over(&first.url, "h2").await;
    for ended in [&has, &made] {
        let error = ended.batch_execute("SELECT * FROM mine").await.unwrap_err();
        // By the one that ends, or by the first look at what has been taken over.
        assert!(ended.is_closed() || ["57P01", "57P02"].contains(&code(&error)), "{error:?}");
    }
    assert_eq!(code(&open.batch_execute("SELECT 1").await.unwrap_err()), "40001");
    open.batch_execute("ROLLBACK").await.unwrap();
    for client in [&had, &open, &plain] {
        assert_eq!(one(client, "SELECT name FROM tidepool.hosts WHERE is_this_server").await, "h2");
        assert_eq!(code(&client.batch_execute("SELECT * FROM mine").await.unwrap_err()), "42P01");
    }
    until(&plain, STREAMING, "1").await;

    // A host that is killed: only those go on that have none.
    let url = second.url.clone();
    let (has, made, had, plain) = (connect(&url).await, connect(&url).await, connect(&url).await, connect(&url).await);
    has.batch_execute(make).await.unwrap();
    made.batch_execute("BEGIN").await.unwrap();
    made.batch_execute("CREATE TEMP TABLE mine (id int PRIMARY KEY)").await.unwrap();
    made.batch_execute("COMMIT").await.unwrap();
    let insert = made.prepare("INSERT INTO mine VALUES ($1)").await.unwrap();
    made.execute(&insert, &[&1]).await.unwrap();
    had.batch_execute(&format!("{make}; DISCARD TEMP")).await.unwrap();
    until_kept(&second, &first).await;
    second.signal(libc::SIGKILL);
    let again = connect_soon(&url).await;
    assert_eq!(one(&again, "SELECT name FROM tidepool.hosts WHERE is_this_server").await, "h1");
    for ended in [&has, &made] {
        assert!(ended.batch_execute("SELECT 1").await.is_err());
    }
    for client in [&had, &plain] {
        assert_eq!(one(client, "SELECT count(*) FROM accounts").await, "4");
    }
}
