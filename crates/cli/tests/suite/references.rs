//! Foreign keys between sessions: who waits for whom, and that no row is left without the one that it refers to.

use crate::server::{TestServer, code, pid};
use bytes::Bytes;
use futures::SinkExt;
use std::pin::pin;
use tokio_postgres::Client;

async fn cell(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// Parents 1 to 9, and children of a table for each action.
async fn family(server: &TestServer) -> Client {
    let client = server.connect().await;
    client
        .batch_execute(
            "CREATE TABLE p (id int PRIMARY KEY, n int); INSERT INTO p SELECT i, 0 FROM generate_series(1, 9) AS g(i);
             CREATE TABLE c (id int PRIMARY KEY, r int REFERENCES p);
             CREATE TABLE cascades (id int, r int REFERENCES p ON DELETE CASCADE ON UPDATE CASCADE, n int);
             CREATE TABLE nulls (id int, r int REFERENCES p ON DELETE SET NULL)",
        )
        .await
        .unwrap();
    client
}

/// What `sql` comes to in a session that has to wait for `first`, which then ends by `end`.
async fn after(server: &TestServer, first: &Client, end: &str, sql: &'static str) -> Result<(), String> {
    let second = server.connect().await;
    let pid = pid(&second).await;
    let waiting = tokio::spawn(async move { second.batch_execute(sql).await });
    server.until_waiting(pid, &waiting).await;
    first.batch_execute(end).await.unwrap();
    waiting.await.unwrap().map_err(|error| code(&error).to_owned())
}

fn refused() -> Result<(), String> {
    Err("23503".to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn who_takes_a_key_away_waits_for_those_that_refer_to_it() {
    let server = TestServer::start().await;
    let first = family(&server).await;
    for sql in ["DELETE FROM p WHERE id = 1", "UPDATE p SET id = 10 WHERE id = 1"] {
        first.batch_execute("BEGIN; INSERT INTO c VALUES (1, 1)").await.unwrap();
        assert_eq!(after(&server, &first, "COMMIT", sql).await, refused());
        first.batch_execute("DELETE FROM c").await.unwrap();
    }
    first.batch_execute("BEGIN; INSERT INTO c VALUES (1, 1)").await.unwrap();
    assert_eq!(after(&server, &first, "ROLLBACK", "DELETE FROM p WHERE id = 1").await, Ok(()));
    // What the other does to rows that refer to it counts, once it is decided.
    first.batch_execute("INSERT INTO c VALUES (2, 2), (3, 3); BEGIN; DELETE FROM c WHERE id = 2").await.unwrap();
    assert_eq!(after(&server, &first, "COMMIT", "DELETE FROM p WHERE id = 2").await, Ok(()));
    first.batch_execute("BEGIN; DELETE FROM c WHERE id = 3").await.unwrap();
    assert_eq!(after(&server, &first, "ROLLBACK", "DELETE FROM p WHERE id = 3").await, refused());
    // A change of what is no key keeps nobody from looking at what was there before.
    let second = server.connect().await;
    first.batch_execute("BEGIN; UPDATE c SET r = 4").await.unwrap();
    assert_eq!(code(&second.batch_execute("DELETE FROM p WHERE id = 3").await.unwrap_err()), "23503");
    first.batch_execute("COMMIT").await.unwrap();
    second.batch_execute("DELETE FROM p WHERE id = 3").await.unwrap();
    assert_eq!(cell(&first, "SELECT count(*) FROM p").await, 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn who_refers_to_a_key_waits_for_those_that_take_it_away() {
    let server = TestServer::start().await;
    let first = family(&server).await;
    for (change, back) in [
        ("BEGIN; DELETE FROM p WHERE id = 1", "INSERT INTO p VALUES (1)"),
        ("BEGIN; UPDATE p SET id = 20 WHERE id = 1", "UPDATE p SET id = 1 WHERE id = 20"),
    ] {
        first.batch_execute(change).await.unwrap();
        assert_eq!(after(&server, &first, "COMMIT", "INSERT INTO c VALUES (1, 1)").await, refused());
        first.batch_execute(back).await.unwrap();
        first.batch_execute(change).await.unwrap();
        assert_eq!(after(&server, &first, "ROLLBACK", "INSERT INTO c VALUES (1, 1)").await, Ok(()));
        first.batch_execute("DELETE FROM c").await.unwrap();
    }
    // The key may be back when it is over.
    first.batch_execute("BEGIN; DELETE FROM p WHERE id = 1; INSERT INTO p VALUES (1)").await.unwrap();
    assert_eq!(after(&server, &first, "COMMIT", "INSERT INTO c VALUES (1, 1)").await, Ok(()));
    // Nobody waits for a key that is not there yet.
    let second = server.connect().await;
    first.batch_execute("BEGIN; INSERT INTO p VALUES (30)").await.unwrap();
    assert_eq!(code(&second.batch_execute("INSERT INTO c VALUES (3, 30)").await.unwrap_err()), "23503");
    first.batch_execute("COMMIT").await.unwrap();
    second.batch_execute("INSERT INTO c VALUES (3, 30)").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_leaves_keys_as_they_are_waits_for_nobody() {
    let server = TestServer::start().await;
    let first = family(&server).await;
    let second = server.connect().await;
    second.batch_execute("SET lock_timeout = '20s'").await.unwrap();
    first.batch_execute("BEGIN; UPDATE p SET n = n + 1").await.unwrap();
    second.batch_execute("BEGIN; INSERT INTO c VALUES (1, 1), (2, 2)").await.unwrap();
    first.batch_execute("UPDATE p SET n = n + 1; INSERT INTO c VALUES (3, 1); COMMIT").await.unwrap();
    second.batch_execute("COMMIT").await.unwrap();
    assert_eq!(cell(&first, "SELECT sum(n)::bigint FROM p").await, 18);
    // Children that are changed in other columns keep nobody from the parent's.
    first.batch_execute("INSERT INTO cascades VALUES (1, 3, 0); BEGIN; UPDATE cascades SET n = 1").await.unwrap();
    second.batch_execute("DELETE FROM p WHERE id = 4").await.unwrap();
    assert_eq!(after(&server, &first, "COMMIT", "DELETE FROM p WHERE id = 3").await, Ok(()));
    assert_eq!(cell(&second, "SELECT count(*) FROM cascades").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn actions_wait_for_rows_and_look_again() {
    let server = TestServer::start().await;
    let first = family(&server).await;
    first
        .batch_execute("INSERT INTO cascades VALUES (1, 1, 0), (2, 1, 0); INSERT INTO nulls VALUES (1, 1)")
        .await
        .unwrap();
    // A row that refers to something else by then stays.
    first.batch_execute("BEGIN; UPDATE cascades SET r = 2 WHERE id = 2; UPDATE nulls SET id = 7").await.unwrap();
    assert_eq!(after(&server, &first, "COMMIT", "DELETE FROM p WHERE id = 1").await, Ok(()));
    assert_eq!(cell(&first, "SELECT sum(id)::bigint FROM cascades").await, 2);
    assert_eq!(cell(&first, "SELECT count(*) FROM nulls WHERE id = 7 AND r IS NULL").await, 1);
    first.batch_execute("BEGIN; INSERT INTO cascades VALUES (3, 2, 0)").await.unwrap();
    assert_eq!(after(&server, &first, "COMMIT", "UPDATE p SET id = 40 WHERE id = 2").await, Ok(()));
    assert_eq!(cell(&first, "SELECT count(*) FROM cascades WHERE r = 40").await, 2);
}

/// As PostgreSQL does: a check looks at its snapshot for what is referred to, and at what is committed for what refers.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_snapshot_does_not_refer_to_what_it_does_not_show() {
    let server = TestServer::start().await;
    let first = family(&server).await;
    let second = server.connect().await;
    for (meanwhile, sql, expected) in [
        ("INSERT INTO p VALUES (50)", "INSERT INTO c VALUES (1, 50)", "23503"),
        ("DELETE FROM p WHERE id = 9", "INSERT INTO c VALUES (1, 9)", "40001"),
        ("UPDATE p SET id = 60 WHERE id = 8", "INSERT INTO c VALUES (1, 8)", "40001"),
        ("INSERT INTO c VALUES (2, 2)", "DELETE FROM p WHERE id = 2", "23503"),
        ("INSERT INTO cascades VALUES (3, 3)", "DELETE FROM p WHERE id = 3", "40001"),
        ("INSERT INTO nulls VALUES (4, 4)", "DELETE FROM p WHERE id = 4", "40001"),
        ("ALTER TABLE p ADD CHECK (n < 1000)", "DELETE FROM p WHERE id = 5", "40001"),
        ("CREATE TABLE later (r int REFERENCES p)", "DELETE FROM p WHERE id = 5", "40001"),
    ] {
        for level in ["REPEATABLE READ", "SERIALIZABLE"] {
            second.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}; SELECT * FROM nulls")).await.unwrap();
            first.batch_execute("BEGIN").await.unwrap();
            first.batch_execute(meanwhile).await.unwrap();
            first.batch_execute("COMMIT").await.unwrap();
            let error = second.batch_execute(sql).await.unwrap_err();
            assert_eq!(code(&error), expected, "{meanwhile}, then {sql}: {error}");
            second.batch_execute("ROLLBACK").await.unwrap();
            // As it was.
            first
                .batch_execute(
                    "DROP TABLE IF EXISTS later; DELETE FROM c; DELETE FROM cascades; DELETE FROM nulls;
                     DELETE FROM p; INSERT INTO p SELECT i, 0 FROM generate_series(1, 9) AS g(i)",
                )
                .await
                .unwrap();
        }
    }
    // Other columns of what is referred to may have changed.
    second.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT * FROM nulls").await.unwrap();
    first.batch_execute("UPDATE p SET n = 5").await.unwrap();
    second.batch_execute("INSERT INTO c VALUES (1, 1); COMMIT").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_that_take_away_what_the_other_refers_to_do_not_wait_for_ever() {
    let server = TestServer::start().await;
    let first = family(&server).await;
    let second = server.connect().await;
    first.batch_execute("BEGIN; INSERT INTO c VALUES (1, 1)").await.unwrap();
    second.batch_execute("BEGIN; INSERT INTO c VALUES (2, 2)").await.unwrap();
    let waiting = tokio::spawn(async move {
        let ended = first.batch_execute("DELETE FROM p WHERE id = 2; COMMIT").await;
        ended.map_err(|error| code(&error).to_owned())
    });
    let other = second.batch_execute("DELETE FROM p WHERE id = 1; COMMIT").await;
    let ended = [waiting.await.unwrap(), other.map_err(|error| code(&error).to_owned())];
    assert_eq!(ended.iter().filter(|ended| **ended == Err("40P01".to_owned())).count(), 1, "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_foreign_key_is_made_when_those_that_write_are_done() {
    let server = TestServer::start().await;
    let first = family(&server).await;
    first.batch_execute("CREATE TABLE d (r int); INSERT INTO d VALUES (1)").await.unwrap();
    let add = "ALTER TABLE d ADD FOREIGN KEY (r) REFERENCES p";
    first.batch_execute("BEGIN; DELETE FROM p WHERE id = 1").await.unwrap();
    assert_eq!(after(&server, &first, "COMMIT", add).await, refused());
    first.batch_execute("UPDATE d SET r = 2; BEGIN; INSERT INTO d VALUES (77)").await.unwrap();
    assert_eq!(after(&server, &first, "COMMIT", add).await, refused());
    first.batch_execute("DELETE FROM d WHERE r = 77").await.unwrap();
    first.batch_execute(add).await.unwrap();
    // Neither table is emptied or dropped while the other's rows are checked.
    first.batch_execute("BEGIN; INSERT INTO d VALUES (3)").await.unwrap();
    assert_eq!(after(&server, &first, "COMMIT", "TRUNCATE p CASCADE").await, Ok(()));
    assert_eq!(cell(&first, "SELECT count(*) FROM d").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clients_are_told_the_constraint_and_copy_checks_it() {
    let server = TestServer::start().await;
    let client = family(&server).await;
    let error = client.batch_execute("INSERT INTO c VALUES (1, 99)").await.unwrap_err();
    let told = error.as_db_error().unwrap();
    assert_eq!((told.schema(), told.table(), told.constraint()), (Some("public"), Some("c"), Some("c_r_fkey")));
    let error = client.batch_execute("INSERT INTO p VALUES (1)").await.unwrap_err();
    let told = error.as_db_error().unwrap();
    assert_eq!((told.table(), told.constraint()), (Some("p"), Some("p_pkey")));
    let error = client.batch_execute("INSERT INTO p VALUES (NULL)").await.unwrap_err();
    let told = error.as_db_error().unwrap();
    assert_eq!((told.table(), told.column(), told.constraint()), (Some("p"), Some("id"), None));
    // Enough rows for row groups of their own.
    for (last, expected) in [("99", Some("23503")), ("9", None)] {
        let sink = client.copy_in::<_, Bytes>("COPY c FROM STDIN").await.unwrap();
        let mut sink = pin!(sink);
        let mut rows: String = (0..40_000).map(|id| format!("{id}\t{}\n", id % 9 + 1)).collect();
        rows.push_str(&format!("40000\t{last}\n"));
        sink.send(Bytes::from(rows)).await.unwrap();
        let copied = sink.finish().await;
        assert_eq!(copied.as_ref().err().map(code), expected);
    }
    assert_eq!(cell(&client, "SELECT count(*) FROM c").await, 40_001);
    client.batch_execute("CALL tidepool.merge('c'); CALL tidepool.merge('p')").await.unwrap();
    assert_eq!(code(&client.batch_execute("DELETE FROM p WHERE id = 9").await.unwrap_err()), "23503");
    assert_eq!(code(&client.batch_execute("UPDATE c SET r = 0 WHERE id = 40000").await.unwrap_err()), "23503");
    client.batch_execute("UPDATE c SET r = 2 WHERE r = 9; DELETE FROM p WHERE id = 9").await.unwrap();
}

/// Sessions take parents away, and refer to them, at random: every child has its parent at every moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_row_is_left_without_the_one_that_it_refers_to() {
    let server = TestServer::start().await;
    let client = family(&server).await;
    let writers: Vec<_> = (0..4_u64)
        .map(|writer| {
            let config = server.config();
            tokio::spawn(async move {
                let client = crate::server::connect(&config).await.unwrap();
                let mut random = writer * 7_919 + 1;
                let mut refused = 0;
                for step in 0..60 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let (what, key) = ((random >> 33) % 6, (random >> 40) % 9 + 1);
                    let id = writer * 1_000 + step;
                    let sql = match what {
                        0 => format!("INSERT INTO c VALUES ({id}, {key})"),
                        1 => format!("INSERT INTO cascades VALUES ({id}, {key}, 0), ({id}, {}, 0)", key % 9 + 1),
                        2 => format!("INSERT INTO nulls VALUES ({id}, {key})"),
                        3 => format!("DELETE FROM p WHERE id = {key}"),
                        4 => format!("INSERT INTO p VALUES ({key}, 0) ON CONFLICT DO NOTHING"),
                        _ => format!("DELETE FROM c WHERE r = {key}; DELETE FROM p WHERE id = {key}"),
                    };
                    match client.batch_execute(&sql).await {
                        Ok(()) => {}
                        Err(error) if matches!(code(&error), "23503" | "40P01") => refused += 1,
                        Err(error) => panic!("{sql}: {error}"),
                    }
                }
                refused
            })
        })
        .collect();
    let orphans = "SELECT (SELECT count(*) FROM c WHERE NOT EXISTS (SELECT 1 FROM p WHERE p.id = r))
                        + (SELECT count(*) FROM cascades WHERE NOT EXISTS (SELECT 1 FROM p WHERE p.id = r))
                        + (SELECT count(*) FROM nulls WHERE r IS NOT NULL
                                                        AND NOT EXISTS (SELECT 1 FROM p WHERE p.id = r))";
    for _ in 0..10 {
        assert_eq!(cell(&client, orphans).await, 0);
        client.batch_execute("CALL tidepool.merge('p'); CALL tidepool.merge('cascades')").await.unwrap();
    }
    for writer in writers {
        assert!(writer.await.unwrap() > 0, "nothing was ever refused");
    }
    assert_eq!(cell(&client, orphans).await, 0);
}

/// Parents 0 to 39 in four partitions, and children in two, of which nothing refers to a parent.
async fn partitioned(server: &TestServer) -> Client {
    let client = server.connect().await;
    client
        .batch_execute(
            "CREATE TABLE p (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
             CREATE TABLE p0 PARTITION OF p FOR VALUES FROM (0) TO (10);
             CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (10) TO (20);
             CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (20) TO (40) PARTITION BY HASH (id);
             CREATE TABLE p20 PARTITION OF p2 FOR VALUES WITH (MODULUS 2, REMAINDER 0);
             CREATE TABLE p21 PARTITION OF p2 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
             INSERT INTO p SELECT i, 0 FROM generate_series(0, 39) AS g(i);
             CREATE TABLE c (id int, r int REFERENCES p ON UPDATE CASCADE, PRIMARY KEY (id)) PARTITION BY LIST (id);
             CREATE TABLE c1 PARTITION OF c FOR VALUES IN (1);
             CREATE TABLE c2 PARTITION OF c DEFAULT",
        )
        .await
        .unwrap();
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn references_between_partitions_wait_as_those_between_tables_do() {
    let server = TestServer::start().await;
    let first = partitioned(&server).await;
    for sql in ["DELETE FROM p WHERE id = 1", "DELETE FROM p0 WHERE id = 1"] {
        first.batch_execute("BEGIN; INSERT INTO c VALUES (1, 1)").await.unwrap();
        assert_eq!(after(&server, &first, "COMMIT", sql).await, refused());
        first.batch_execute("DELETE FROM c").await.unwrap();
        first.batch_execute("BEGIN; INSERT INTO c2 VALUES (2, 1)").await.unwrap();
        assert_eq!(after(&server, &first, "ROLLBACK", sql).await, Ok(()));
        first.batch_execute("INSERT INTO p VALUES (1, 0)").await.unwrap();
    }
    first.batch_execute("DELETE FROM p WHERE id > 20").await.unwrap();
    for change in ["BEGIN; DELETE FROM p WHERE id = 12", "BEGIN; UPDATE p SET id = 38 WHERE id = 12"] {
        first.batch_execute(change).await.unwrap();
        assert_eq!(after(&server, &first, "ROLLBACK", "INSERT INTO c VALUES (1, 12)").await, Ok(()));
        first.batch_execute("DELETE FROM c").await.unwrap();
    }
    // A key that moves takes those along who refer to it meanwhile.
    first.batch_execute("BEGIN; INSERT INTO c VALUES (1, 5)").await.unwrap();
    assert_eq!(after(&server, &first, "COMMIT", "UPDATE p SET id = 25 WHERE id = 5").await, Ok(()));
    assert_eq!(cell(&first, "SELECT r::bigint FROM c1").await, 25);
    first.batch_execute("BEGIN; UPDATE p SET id = 26 WHERE id = 6").await.unwrap();
    assert_eq!(after(&server, &first, "COMMIT", "INSERT INTO c VALUES (2, 6)").await, refused());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn partitions_come_and_go_under_references() {
    let server = TestServer::start().await;
    let first = partitioned(&server).await;
    // Who refers to a partition's row keeps it from leaving.
    first.batch_execute("BEGIN; INSERT INTO c VALUES (1, 15)").await.unwrap();
    assert_eq!(after(&server, &first, "COMMIT", "ALTER TABLE p DETACH PARTITION p1").await, refused());
    first.batch_execute("DELETE FROM c; BEGIN; ALTER TABLE p DETACH PARTITION p1").await.unwrap();
    assert_eq!(after(&server, &first, "COMMIT", "INSERT INTO c VALUES (1, 15)").await, refused());
    // A partition that leaves keeps its foreign key, and one that comes gets it.
    first.batch_execute("BEGIN; ALTER TABLE c DETACH PARTITION c1; INSERT INTO c1 VALUES (1, 5)").await.unwrap();
    assert_eq!(after(&server, &first, "COMMIT", "DELETE FROM p WHERE id = 5").await, refused());
    let snapshot = server.connect().await;
    snapshot.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM p").await.unwrap();
    first
        .batch_execute(
            "CREATE TABLE c3 (id int PRIMARY KEY, r int); INSERT INTO c3 VALUES (3, 7);
             DROP TABLE c2; ALTER TABLE c ATTACH PARTITION c3 FOR VALUES IN (3)",
        )
        .await
        .unwrap();
    let stale = snapshot.batch_execute("DELETE FROM p WHERE id = 7").await.unwrap_err();
    assert_eq!(code(&stale), "40001");
    let gone = first.batch_execute("DELETE FROM p WHERE id = 7").await.unwrap_err();
    assert_eq!(code(&gone), "23503");
    // Whoever has a snapshot from before a table, or a partition, was referred to cannot write to it.
    snapshot.batch_execute("ROLLBACK").await.unwrap();
    first.batch_execute("CREATE TABLE q (id int PRIMARY KEY); INSERT INTO q VALUES (1)").await.unwrap();
    snapshot.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM q").await.unwrap();
    first.batch_execute("CREATE TABLE of_q (r int REFERENCES q); INSERT INTO of_q VALUES (1)").await.unwrap();
    assert_eq!(code(&snapshot.batch_execute("DELETE FROM q").await.unwrap_err()), "40001");
    snapshot.batch_execute("ROLLBACK").await.unwrap();
    first.batch_execute("CREATE TABLE p3 (id int PRIMARY KEY, n int); INSERT INTO p3 VALUES (45, 0)").await.unwrap();
    snapshot.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM p").await.unwrap();
    first
        .batch_execute("ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (40) TO (50); UPDATE c3 SET r = 45")
        .await
        .unwrap();
    assert_eq!(code(&snapshot.batch_execute("DELETE FROM p3").await.unwrap_err()), "40001");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_reference_breaks_while_both_sides_move() {
    const STEPS: i64 = 60;
    let server = TestServer::start().await;
    let client = partitioned(&server).await;
    let tasks: Vec<_> = (0..4)
        .map(|task: i64| {
            let config = server.config();
            tokio::spawn(async move {
                let client = crate::server::connect(&config).await.unwrap();
                for step in 0..STEPS {
                    let id = (task * 7 + step * 11) % 40;
                    let other = (id + 13 + task) % 40;
                    let sql = match (task + step) % 5 {
                        0 => format!("INSERT INTO c VALUES ({}, {id})", task * 1000 + step),
                        1 => format!("UPDATE p SET id = {other} WHERE id = {id}"),
                        2 => format!("DELETE FROM p WHERE id = {id}"),
                        3 => format!("UPDATE c SET r = {other}, id = id + 100000 WHERE id % 10 = {}", step % 10),
                        _ => format!("INSERT INTO p VALUES ({id}, 0) ON CONFLICT DO NOTHING"),
                    };
                    if let Err(error) = client.batch_execute(&sql).await {
                        let known = ["23503", "23505", "40P01", "40001"];
                        assert!(known.contains(&code(&error)), "{sql}: {error:?}");
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let orphans = "SELECT count(*) FROM c WHERE r IS NOT NULL AND r NOT IN (SELECT id FROM p)";
    assert_eq!(cell(&client, orphans).await, 0);
}
