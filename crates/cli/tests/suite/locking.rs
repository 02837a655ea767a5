//! `SELECT … FOR UPDATE` and its kin between sessions.

use crate::server::{TestServer, code, pid};
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
    let pid = pid(&second).await;
    let waiting = tokio::spawn(async move {
        let rows = second.query(sql, &[]).await;
        rows.map(|rows| rows.iter().map(|row| row.get(0)).collect()).map_err(|error| code(&error).to_owned())
    });
    server.until_waiting(pid, &waiting).await;
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

/// `LIMIT` counts rows that are there when they are locked; none are locked beyond it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_limit_counts_rows_that_were_locked() {
    let server = TestServer::start().await;
    let first = jobs(&server, 5).await;
    first.batch_execute("BEGIN; UPDATE job SET n = 7 WHERE id = 1").await.unwrap();
    let sql = "SELECT id FROM job WHERE n = 0 ORDER BY id LIMIT 2 FOR UPDATE";
    assert_eq!(after(&server, &first, "COMMIT", sql).await, Ok(vec![2, 3]));
    // A row keeps its place, whatever it comes to.
    first.batch_execute("BEGIN; UPDATE job SET n = 8 WHERE id = 2").await.unwrap();
    let sql = "SELECT id FROM job ORDER BY n, id LIMIT 2 FOR NO KEY UPDATE";
    assert_eq!(after(&server, &first, "COMMIT", sql).await, Ok(vec![2, 3]));
    first.batch_execute("BEGIN; SELECT id FROM job ORDER BY id LIMIT 2 OFFSET 1 FOR UPDATE").await.unwrap();
    let second = server.connect().await;
    second.batch_execute("SELECT id FROM job WHERE id > 3 FOR UPDATE NOWAIT").await.unwrap();
    for id in [1, 2, 3] {
        let locked = second.batch_execute(&format!("SELECT id FROM job WHERE id = {id} FOR UPDATE NOWAIT")).await;
        assert_eq!(code(&locked.unwrap_err()), "55P03", "{id}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn views_and_subqueries_lock_rows_of_their_tables() {
    let server = TestServer::start().await;
    let first = jobs(&server, 3).await;
    let second = server.connect().await;
    first
        .batch_execute(
            "CREATE VIEW low AS SELECT id, n FROM job WHERE id < 3;
             CREATE VIEW lower AS SELECT id AS k FROM low WHERE id < 2;
             CREATE VIEW top AS SELECT * FROM job ORDER BY id LIMIT 1",
        )
        .await
        .unwrap();
    let free = "SELECT id FROM job ORDER BY id FOR UPDATE SKIP LOCKED";
    for (sql, left) in [
        ("SELECT * FROM low FOR UPDATE", vec![3]),
        ("SELECT * FROM lower FOR SHARE", vec![2, 3]),
        ("SELECT * FROM top FOR UPDATE", vec![2, 3]),
        ("SELECT * FROM low WHERE n = 1 FOR UPDATE", vec![1, 2, 3]),
        ("SELECT * FROM (SELECT id FROM job WHERE id > 1) s FOR UPDATE", vec![1]),
        ("SELECT * FROM (SELECT id FROM low) s WHERE id = 2 FOR UPDATE OF s", vec![1, 3]),
        ("SELECT * FROM (SELECT id FROM job ORDER BY id DESC LIMIT 2) s FOR UPDATE", vec![1]),
        ("SELECT * FROM (SELECT id FROM job WHERE id < 3 FOR UPDATE) s", vec![3]),
        ("SELECT 1 WHERE EXISTS (SELECT 1 FROM job WHERE id = 2 FOR UPDATE)", vec![1, 3]),
        ("WITH x AS (SELECT id FROM low FOR UPDATE) SELECT count(*) FROM x", vec![3]),
        ("WITH x AS (SELECT id FROM low FOR UPDATE) SELECT 1", vec![1, 2, 3]),
        ("SELECT * FROM low JOIN (SELECT 1 AS k) s ON k = id FOR UPDATE OF low", vec![2, 3]),
        ("INSERT INTO job SELECT id + 10, 0 FROM job WHERE id = 3 FOR UPDATE", vec![1, 2]),
        ("CREATE TABLE made AS SELECT * FROM job WHERE id = 3 FOR UPDATE", vec![1, 2]),
    ] {
        first.batch_execute(&format!("BEGIN; {sql}")).await.unwrap();
        let found: Vec<i32> = second.query(free, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
        assert_eq!(found, left, "{sql}");
        first.batch_execute("ROLLBACK").await.unwrap();
    }
    let all = "SELECT id FROM low WHERE n = 0 ORDER BY id FOR UPDATE";
    first.batch_execute("BEGIN; UPDATE job SET n = 7 WHERE id = 1").await.unwrap();
    assert_eq!(after(&server, &first, "ROLLBACK", all).await, Ok(vec![1, 2]));
    first.batch_execute("BEGIN; UPDATE job SET n = 7 WHERE id = 1").await.unwrap();
    assert_eq!(after(&server, &first, "COMMIT", all).await, Ok(vec![2]));
    first.batch_execute("BEGIN; UPDATE job SET n = 7 WHERE id = 2").await.unwrap();
    let sql = "SELECT id FROM (SELECT id FROM job WHERE n = 0 ORDER BY id LIMIT 1) s FOR UPDATE";
    assert_eq!(after(&server, &first, "COMMIT", sql).await, Ok(vec![3]));
}

/// A statement's own subquery waits, and looks again, as a query does.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_subquery_that_locks_gives_rows_as_they_are_then() {
    let server = TestServer::start().await;
    let first = jobs(&server, 6).await;
    let next =
        "DELETE FROM job WHERE id IN (SELECT id FROM job WHERE n = 0 ORDER BY id LIMIT 1 FOR UPDATE) RETURNING id";
    first.batch_execute("BEGIN; UPDATE job SET n = 7 WHERE id = 1").await.unwrap();
    assert_eq!(after(&server, &first, "COMMIT", next).await, Ok(vec![2]));
    // One that was changed and still meets the condition.
    first.batch_execute("BEGIN; UPDATE job SET n = n WHERE id = 3").await.unwrap();
    assert_eq!(after(&server, &first, "COMMIT", next).await, Ok(vec![3]));
    first.batch_execute("BEGIN; DELETE FROM job WHERE id = 4").await.unwrap();
    let sql = "WITH x AS (SELECT id FROM job WHERE n = 0 ORDER BY id LIMIT 1 FOR UPDATE)
               UPDATE job SET n = 1 FROM x WHERE job.id = x.id RETURNING job.id";
    assert_eq!(after(&server, &first, "COMMIT", sql).await, Ok(vec![5]));
    first.batch_execute("BEGIN; UPDATE job SET n = 7 WHERE id = 6").await.unwrap();
    assert_eq!(after(&server, &first, "COMMIT", next).await, Ok(vec![]));
    assert_eq!(cell(&first, "SELECT sum(n)::bigint FROM job").await, 15);
    // Where a transaction has one snapshot, it says so.
    let second = server.connect().await;
    second.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM job").await.unwrap();
    first.batch_execute("UPDATE job SET n = 0 WHERE id = 1").await.unwrap();
    let refused = second.query("SELECT * FROM (SELECT id FROM job FOR UPDATE) s", &[]).await;
    assert_eq!(code(&refused.unwrap_err()), "40001");
}

/// Job queues in one statement, in the forms that real ones have.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_queue_is_worked_off_by_one_statement_a_job() {
    let server = TestServer::start().await;
    let client = jobs(&server, 90).await;
    let forms = [
        "DELETE FROM job WHERE id IN (SELECT id FROM job ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id",
        "DELETE FROM job WHERE id = (SELECT id FROM job ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING id",
        "DELETE FROM job USING (SELECT id FROM job ORDER BY id LIMIT 2 FOR UPDATE SKIP LOCKED) s
         WHERE s.id = job.id RETURNING job.id",
        "WITH s AS MATERIALIZED (SELECT id FROM job ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
         DELETE FROM job USING s WHERE s.id = job.id RETURNING job.id",
    ];
    let workers: Vec<_> = forms
        .into_iter()
        .map(|sql| {
            let config = server.config();
            tokio::spawn(async move {
                let client = crate::server::connect(&config).await.unwrap();
                let take = client.prepare(sql).await.unwrap();
                let mut taken = Vec::new();
                loop {
                    let rows = client.query(&take, &[]).await.unwrap();
                    if rows.is_empty() {
                        return taken;
                    }
                    taken.extend(rows.iter().map(|row| row.get::<_, i32>(0)));
                }
            })
        })
        .collect();
    let mut taken = Vec::new();
    for worker in workers {
        taken.append(&mut worker.await.unwrap());
    }
    taken.sort_unstable();
    // Who finds all that is left in others' hands is done.
    assert_eq!(cell(&client, "SELECT count(*) FROM job").await as usize + taken.len(), 90);
    let all = taken.len();
    taken.dedup();
    assert_eq!(taken.len(), all, "a job was taken twice");
}

/// What a subquery found is looked up: taking a job takes as long as finding it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_job_that_was_found_is_taken_by_its_key() {
    let server = TestServer::start().await;
    let client = jobs(&server, 2_000).await;
    for sql in [
        "DELETE FROM job WHERE id IN (SELECT id FROM job ORDER BY id LIMIT 2 FOR UPDATE SKIP LOCKED)",
        "UPDATE job SET n = 1 WHERE id = (SELECT id FROM job ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)",
        "SELECT * FROM job WHERE id IN (SELECT id FROM job WHERE n = 0 ORDER BY id LIMIT 1 FOR UPDATE)",
    ] {
        let rows = client.query(&format!("EXPLAIN ANALYZE {sql}"), &[]).await.unwrap();
        let lines: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let own = lines.iter().take_while(|line| !line.starts_with("Part 1"));
        assert!(own.into_iter().any(|line| line.contains("index=job_pkey")), "{}", lines.join("\n"));
    }
    assert_eq!(cell(&client, "SELECT min(id)::bigint FROM job WHERE n = 0").await, 4);
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
