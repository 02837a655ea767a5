//! `SELECT … FOR UPDATE` and its kin between sessions.

use crate::server::{TestServer, code};
use std::time::Duration;
use tokio_postgres::Client;

const LOCKS: [&str; 4] = ["FOR KEY SHARE", "FOR SHARE", "FOR NO KEY UPDATE", "FOR UPDATE"];

async fn cell(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

async fn jobs(server: &TestServer, rows: u32) -> Client {
    let client = server.connect().await;
    let sql = format!(
        "CREATE TABLE job (id int PRIMARY KEY, n bigint NOT NULL);
         INSERT INTO job SELECT i, 0 FROM generate_series(1, {rows}) AS g(i)"
    );
    client.batch_execute(&sql).await.unwrap();
    client
}

/// The ids that a query gives back, in a session that has to wait for `first`, which then ends by `end`.
async fn after(server: &TestServer, first: &Client, end: &str, sql: &'static str) -> Result<Vec<i32>, String> {
    let second = server.connect().await;
    let waiting = tokio::spawn(async move {
        let rows = second.query(sql, &[]).await;
        rows.map(|rows| rows.iter().map(|row| row.get(0)).collect()).map_err(|error| code(&error).to_owned())
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiting.is_finished(), "{sql}");
    first.batch_execute(end).await.unwrap();
    waiting.await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn locks_bear_each_other_as_postgresql_says() {
    let server = TestServer::start().await;
    let first = jobs(&server, 3).await;
    let second = server.connect().await;
    for merged in [false, true] {
        if merged {
            first.batch_execute("CALL tidepool.merge('job')").await.unwrap();
        }
        for (held, one) in LOCKS.iter().enumerate() {
            for (wanted, other) in LOCKS.iter().enumerate() {
                first.batch_execute(&format!("BEGIN; SELECT * FROM job WHERE id = 2 {one}")).await.unwrap();
                let got = second.batch_execute(&format!("SELECT * FROM job WHERE id = 2 {other} NOWAIT")).await;
                let bears = held + wanted < 3 && (held, wanted) != (0, 3) && (held, wanted) != (3, 0);
                assert_eq!(got.as_ref().err().map(code), (!bears).then_some("55P03"), "{one}, then {other}");
                // Rows beside it are free.
                second.batch_execute("SELECT * FROM job WHERE id <> 2 FOR UPDATE NOWAIT").await.unwrap();
                first.batch_execute("COMMIT").await.unwrap();
            }
            // What a write takes: a row that is deleted, one whose key changes, one whose key does not.
            second.batch_execute("SET lock_timeout = '50ms'").await.unwrap();
            first.batch_execute(&format!("BEGIN; SELECT * FROM job WHERE id = 2 {one}")).await.unwrap();
            for (sql, bears) in [
                ("DELETE FROM job WHERE id = 2", false),
                ("UPDATE job SET id = 9 WHERE id = 2", false),
                ("UPDATE job SET n = n + 1 WHERE id = 2", held == 0),
            ] {
                let got = second.batch_execute(&format!("BEGIN; {sql}; ROLLBACK")).await;
                assert_eq!(got.as_ref().err().map(code), (!bears).then_some("55P03"), "{one}, then {sql}");
                second.batch_execute("ROLLBACK").await.unwrap();
            }
            assert_eq!(cell(&second, "SELECT n FROM job WHERE id = 2").await, 0, "readers do not wait");
            first.batch_execute("ROLLBACK").await.unwrap();
            second.batch_execute("RESET lock_timeout").await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn who_waited_sees_the_row_as_it_is_then() {
    let server = TestServer::start().await;
    let first = jobs(&server, 5).await;
    first.batch_execute("BEGIN; UPDATE job SET n = 7 WHERE id = 1").await.unwrap();
    let all = "SELECT id FROM job WHERE n = 0 ORDER BY id FOR UPDATE";
    assert_eq!(after(&server, &first, "COMMIT", all).await, Ok(vec![2, 3, 4, 5]));
    first.batch_execute("BEGIN; UPDATE job SET n = 7 WHERE id = 2").await.unwrap();
    assert_eq!(after(&server, &first, "ROLLBACK", all).await, Ok(vec![2, 3, 4, 5]));
    first.batch_execute("BEGIN; DELETE FROM job WHERE id = 2").await.unwrap();
    assert_eq!(
        after(&server, &first, "COMMIT", "SELECT id FROM job ORDER BY id LIMIT 2 FOR SHARE").await,
        Ok(vec![1, 3])
    );
    // A lock alone changes nothing.
    first.batch_execute("BEGIN; SELECT * FROM job WHERE id = 3 FOR UPDATE").await.unwrap();
    assert_eq!(after(&server, &first, "COMMIT", "SELECT id FROM job WHERE id = 3 FOR UPDATE").await, Ok(vec![3]));
    first.batch_execute("BEGIN; SAVEPOINT a; SELECT * FROM job WHERE id = 3 FOR UPDATE; ROLLBACK TO a").await.unwrap();
    let second = server.connect().await;
    second.batch_execute("SELECT * FROM job WHERE id = 3 FOR UPDATE NOWAIT").await.unwrap();
    first.batch_execute("COMMIT").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_snapshot_locks_what_it_shows_or_nothing() {
    let server = TestServer::start().await;
    let first = jobs(&server, 3).await;
    let second = server.connect().await;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        for lock in LOCKS {
            second.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}; SELECT 1 FROM job LIMIT 0")).await.unwrap();
            first.batch_execute("UPDATE job SET n = n + 1 WHERE id = 1").await.unwrap();
            second.batch_execute(&format!("SELECT * FROM job WHERE id = 2 {lock}")).await.unwrap();
            let locked = second.batch_execute(&format!("SELECT * FROM job WHERE id = 1 {lock}")).await;
            // Of a key it matters only that it stays.
            let expected = (lock != "FOR KEY SHARE").then_some("40001");
            assert_eq!(locked.as_ref().err().map(code), expected, "{level} {lock}");
            second.batch_execute("ROLLBACK").await.unwrap();
        }
        second.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}; SELECT 1 FROM job LIMIT 0")).await.unwrap();
        first.batch_execute("UPDATE job SET n = n + 1 WHERE id = 3").await.unwrap();
        second.batch_execute("SELECT * FROM job WHERE id = 3 FOR KEY SHARE").await.unwrap();
        first.batch_execute("UPDATE job SET n = n + 1 WHERE id = 3").await.unwrap();
        first.batch_execute("SET lock_timeout = '50ms'").await.unwrap();
        assert_eq!(code(&first.batch_execute("DELETE FROM job WHERE id = 3").await.unwrap_err()), "55P03");
        second.batch_execute("ROLLBACK").await.unwrap();
        first.batch_execute("RESET lock_timeout").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_that_lock_rows_crosswise_do_not_wait_for_ever() {
    let server = TestServer::start().await;
    let first = jobs(&server, 2).await;
    let second = server.connect().await;
    first.batch_execute("BEGIN; SELECT * FROM job WHERE id = 1 FOR SHARE").await.unwrap();
    second.batch_execute("BEGIN; SELECT * FROM job WHERE id = 2 FOR UPDATE").await.unwrap();
    let waiting = tokio::spawn(async move {
        let ended = first.batch_execute("SELECT * FROM job WHERE id = 2 FOR KEY SHARE; COMMIT").await;
        ended.map_err(|error| code(&error).to_owned())
    });
    let other = second.batch_execute("SELECT * FROM job WHERE id = 1 FOR NO KEY UPDATE; COMMIT").await;
    let ended = [waiting.await.unwrap(), other.map_err(|error| code(&error).to_owned())];
    assert_eq!(ended.iter().filter(|ended| **ended == Err("40P01".to_owned())).count(), 1, "{ended:?}");
}

/// Each job is done once, though all ask for the first one that nobody has.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn workers_share_a_queue_by_skipping_what_others_have() {
    let server = TestServer::start().await;
    let client = jobs(&server, 80).await;
    client.batch_execute("CREATE TABLE done (id int)").await.unwrap();
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let config = server.config();
            tokio::spawn(async move {
                let mut client = crate::server::connect(&config).await.unwrap();
                loop {
                    let transaction = client.transaction().await.unwrap();
                    let sql = "SELECT id FROM job ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1";
                    let Some(row) = transaction.query_opt(sql, &[]).await.unwrap() else { break };
                    let id: i32 = row.get(0);
                    transaction.execute("DELETE FROM job WHERE id = $1", &[&id]).await.unwrap();
                    transaction.execute("INSERT INTO done VALUES ($1)", &[&id]).await.unwrap();
                    transaction.commit().await.unwrap();
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    assert_eq!(cell(&client, "SELECT count(*) FROM job").await, 0);
    assert_eq!(cell(&client, "SELECT count(DISTINCT id) FROM done").await, 80);
    assert_eq!(cell(&client, "SELECT count(*) FROM done").await, 80);
}

/// What is read under a lock may be written back.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_between_a_locking_read_and_the_write() {
    let server = TestServer::start().await;
    let client = jobs(&server, 3).await;
    let adders: Vec<_> = (0..4)
        .map(|adder: i32| {
            let config = server.config();
            tokio::spawn(async move {
                let mut client = crate::server::connect(&config).await.unwrap();
                for step in 0..30 {
                    let id = (adder + step) % 3 + 1;
                    let lock = if step % 2 == 0 { "FOR UPDATE" } else { "FOR NO KEY UPDATE" };
                    let transaction = client.transaction().await.unwrap();
                    let sql = format!("SELECT n FROM job WHERE id = $1 {lock}");
                    let n: i64 = transaction.query_one(&sql, &[&id]).await.unwrap().get(0);
                    let sql = "UPDATE job SET n = $2 WHERE id = $1";
                    transaction.execute(sql, &[&id, &(n + 1)]).await.unwrap();
                    transaction.commit().await.unwrap();
                }
            })
        })
        .collect();
    for _ in 0..10 {
        client.batch_execute("CALL tidepool.merge('job')").await.unwrap();
    }
    for adder in adders {
        adder.await.unwrap();
    }
    assert_eq!(cell(&client, "SELECT sum(n)::bigint FROM job").await, 120);
}
