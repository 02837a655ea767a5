//! `LOCK TABLE` between sessions.

use crate::server::{TestServer, code, pid};
use tokio_postgres::Client;

/// With whom each conflicts: PostgreSQL, table 13.2.
const MODES: [(&str, [bool; 8]); 8] = {
    const X: bool = true;
    const O: bool = false;
    [
        ("ACCESS SHARE", [O, O, O, O, O, O, O, X]),
        ("ROW SHARE", [O, O, O, O, O, O, X, X]),
        ("ROW EXCLUSIVE", [O, O, O, O, X, X, X, X]),
        ("SHARE UPDATE EXCLUSIVE", [O, O, O, X, X, X, X, X]),
        ("SHARE", [O, O, X, X, O, X, X, X]),
        ("SHARE ROW EXCLUSIVE", [O, O, X, X, X, X, X, X]),
        ("EXCLUSIVE", [O, X, X, X, X, X, X, X]),
        ("ACCESS EXCLUSIVE", [X, X, X, X, X, X, X, X]),
    ]
};

async fn table(server: &TestServer) -> Client {
    let client = server.connect().await;
    client.batch_execute("CREATE TABLE t (id int PRIMARY KEY, n bigint); INSERT INTO t VALUES (1, 0)").await.unwrap();
    client
}

async fn count(client: &Client) -> i64 {
    client.query_one("SELECT count(*) FROM t", &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn modes_bear_each_other_as_postgresql_says() {
    let server = TestServer::start().await;
    let first = table(&server).await;
    let second = server.connect().await;
    second.batch_execute("SET lock_timeout = '20ms'").await.unwrap();
    for (held, conflicts) in MODES {
        for ((wanted, _), conflicts) in MODES.iter().zip(conflicts) {
            first.batch_execute(&format!("BEGIN; LOCK TABLE t IN {held} MODE")).await.unwrap();
            for nowait in ["NOWAIT", ""] {
                let got = second.batch_execute(&format!("BEGIN; LOCK t IN {wanted} MODE {nowait}")).await;
                assert_eq!(got.as_ref().err().map(code), conflicts.then_some("55P03"), "{held}, then {wanted}");
                if let (Err(error), "NOWAIT") = (&got, nowait) {
                    let message = error.as_db_error().unwrap().message();
                    assert_eq!(message, "could not obtain lock on relation \"t\"");
                }
                second.batch_execute("ROLLBACK").await.unwrap();
            }
            assert_eq!(count(&second).await, 1, "readers do not wait");
            first.batch_execute("COMMIT").await.unwrap();
        }
        // Rows change beside whom ROW EXCLUSIVE does not conflict with, by whatever way they are changed.
        first.batch_execute(&format!("BEGIN; LOCK TABLE t IN {held} MODE")).await.unwrap();
        let prepared = second.prepare("UPDATE t SET n = n + 1 WHERE id = $1").await.unwrap();
        let by_key = second.execute(&prepared, &[&1]).await.map(|_| ());
        let by_plan = second.batch_execute("UPDATE t SET n = n + 1 WHERE n >= 0").await;
        let inserted = second.batch_execute("BEGIN; INSERT INTO t VALUES (2, 2); ROLLBACK").await;
        let _ = second.batch_execute("ROLLBACK").await;
        for got in [by_key, by_plan, inserted] {
            assert_eq!(got.as_ref().err().map(code), conflicts[2].then_some("55P03"), "{held}");
        }
        first.batch_execute("COMMIT").await.unwrap();
    }
}

/// Who changes rows by their keys takes no locks while nobody keeps changes off: he is waited for all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whoever_changes_rows_is_waited_for() {
    let server = TestServer::start().await;
    let first = table(&server).await;
    let insert = first.prepare("INSERT INTO t VALUES ($1, 0)").await.unwrap();
    for (round, mode) in ["SHARE", "SHARE ROW EXCLUSIVE", "EXCLUSIVE", "ACCESS EXCLUSIVE"].into_iter().enumerate() {
        first.batch_execute("BEGIN").await.unwrap();
        first.execute(&insert, &[&(10 + round as i32)]).await.unwrap();
        let second = server.connect().await;
        let refused = second.batch_execute(&format!("BEGIN; LOCK t IN {mode} MODE NOWAIT")).await.unwrap_err();
        assert_eq!(code(&refused), "55P03", "{mode}");
        second.batch_execute("ROLLBACK").await.unwrap();
        let number = pid(&second).await;
        let locking = tokio::spawn(async move {
            second.batch_execute(&format!("BEGIN ISOLATION LEVEL REPEATABLE READ; LOCK t IN {mode} MODE")).await?;
            // It took no snapshot before it had the lock.
            let count = count(&second).await;
            second.batch_execute("COMMIT").await.map(|()| count)
        });
        server.until_waiting(number, &locking).await;
        first.batch_execute("COMMIT").await.unwrap();
        assert_eq!(locking.await.unwrap().unwrap(), 2 + round as i64, "{mode}");
    }
}

/// Sessions that read, and write what they make of it, lose nothing under a lock that writers alone keep off each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_read_under_a_lock_stays_so() {
    const SESSIONS: usize = 6;
    const ROUNDS: usize = 40;
    let server = TestServer::start().await;
    let client = table(&server).await;
    let mut working = Vec::new();
    for number in 0..SESSIONS {
        let client = server.connect().await;
        working.push(tokio::spawn(async move {
            let mode = ["SHARE ROW EXCLUSIVE", "EXCLUSIVE", "ACCESS EXCLUSIVE"][number % 3];
            let set = client.prepare("UPDATE t SET n = $1 WHERE id = 1").await.unwrap();
            for _ in 0..ROUNDS {
                client.batch_execute(&format!("BEGIN; LOCK TABLE t IN {mode} MODE")).await.unwrap();
                let n: i64 = client.query_one("SELECT n FROM t WHERE id = 1", &[]).await.unwrap().get(0);
                client.execute(&set, &[&(n + 1)]).await.unwrap();
                client.batch_execute("COMMIT").await.unwrap();
            }
        }));
    }
    for session in working {
        session.await.unwrap();
    }
    let n: i64 = client.query_one("SELECT n FROM t", &[]).await.unwrap().get(0);
    assert_eq!(n as usize, SESSIONS * ROUNDS);
}

/// Two that share a table and then both want to change it wait for each other: one is told so.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cycle_of_locks_is_found() {
    let server = TestServer::start().await;
    let first = table(&server).await;
    let second = server.connect().await;
    for client in [&first, &second] {
        client.batch_execute("BEGIN; LOCK t IN SHARE MODE").await.unwrap();
    }
    let update = "UPDATE t SET n = n + 1";
    let (one, other) = tokio::join!(first.batch_execute(update), second.batch_execute(update));
    assert_eq!(one.as_ref().err().or(other.as_ref().err()).map(code), Some("40P01"));
    assert!(one.is_ok() || other.is_ok());
}

/// A table that is dropped while its lock is waited for is none when it is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_table_that_went_meanwhile_is_not_there() {
    let server = TestServer::start().await;
    let first = table(&server).await;
    first.batch_execute("BEGIN; DROP TABLE t").await.unwrap();
    let second = server.connect().await;
    let number = pid(&second).await;
    let locking = tokio::spawn(async move { second.batch_execute("BEGIN; LOCK t IN SHARE MODE").await });
    server.until_waiting(number, &locking).await;
    first.batch_execute("COMMIT").await.unwrap();
    assert_eq!(code(&locking.await.unwrap().unwrap_err()), "42P01");
}
