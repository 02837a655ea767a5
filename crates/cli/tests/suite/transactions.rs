//! Transactions of several sessions over the same rows.

use crate::server::{TestServer, code, pid};
use std::time::Duration;
use tokio_postgres::Client;

async fn cell(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

async fn accounts(server: &TestServer) -> Client {
    let client = server.connect().await;
    client
        .batch_execute(
            "CREATE TABLE account (id int, balance bigint); INSERT INTO account SELECT i, 100 FROM generate_series(1, 8) AS g(i)",
        )
        .await
        .unwrap();
    client
}

/// Each session moves money between accounts, all the same few: nothing is lost, and the sum holds at every moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sums_hold_while_sessions_write_the_same_rows() {
    let server = TestServer::start().await;
    let client = accounts(&server).await;
    let movers: Vec<_> = (0..4)
        .map(|mover: i64| {
            let config = server.config();
            tokio::spawn(async move {
                let client = crate::server::connect(&config).await.unwrap();
                for step in 0..40 {
                    let (from, to) = ((mover + step) % 8 + 1, (mover * 3 + step * 5 + 1) % 8 + 1);
                    // In the order of ids, so that nobody waits for ever.
                    let change = |id: i64| match (id == from, id == to) {
                        (true, false) => "- 7",
                        (false, true) => "+ 7",
                        _ => "+ 0",
                    };
                    let (first, second) = (from.min(to), from.max(to));
                    let sql = format!(
                        "BEGIN; UPDATE account SET balance = balance {} WHERE id = {first}; \
                         UPDATE account SET balance = balance {} WHERE id = {second}; COMMIT",
                        change(first),
                        if first == second { "+ 0" } else { change(second) },
                    );
                    client.batch_execute(&sql).await.unwrap();
                }
            })
        })
        .collect();
    for _ in 0..20 {
        assert_eq!(cell(&client, "SELECT sum(balance)::bigint FROM account").await, 800);
        client.batch_execute("CALL tidepool.merge('account')").await.unwrap();
    }
    for mover in movers {
        mover.await.unwrap();
    }
    assert_eq!(cell(&client, "SELECT sum(balance)::bigint FROM account").await, 800);
    assert_eq!(cell(&client, "SELECT count(*) FROM account").await, 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_writer_waits_for_the_rows_writer_and_looks_again() {
    let server = TestServer::start().await;
    let first = accounts(&server).await;
    let second = server.connect().await;
    first.batch_execute("BEGIN; UPDATE account SET balance = balance + 1 WHERE id = 1").await.unwrap();
    // Readers do not wait, nor do writers of other rows.
    assert_eq!(cell(&second, "SELECT balance FROM account WHERE id = 1").await, 100);
    second.batch_execute("UPDATE account SET balance = 50 WHERE id = 2").await.unwrap();
    second.batch_execute("SET lock_timeout = '50ms'").await.unwrap();
    let error = second.batch_execute("UPDATE account SET balance = 0 WHERE id = 1").await.unwrap_err();
    assert_eq!(code(&error), "55P03");
    second.batch_execute("RESET lock_timeout").await.unwrap();
    let pid = pid(&second).await;
    let waiting = tokio::spawn(async move {
        second.batch_execute("UPDATE account SET balance = balance * 2 WHERE id = 1").await.unwrap();
        second
    });
    server.until_waiting(pid, &waiting).await;
    first.batch_execute("COMMIT").await.unwrap();
    waiting.await.unwrap();
    assert_eq!(cell(&first, "SELECT balance FROM account WHERE id = 1").await, 202);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_snapshot_holds_and_the_first_writer_wins() {
    let server = TestServer::start().await;
    let first = accounts(&server).await;
    let second = server.connect().await;
    first.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    assert_eq!(cell(&first, "SELECT sum(balance)::bigint FROM account").await, 800);
    second
        .batch_execute("UPDATE account SET balance = 0 WHERE id = 3; DELETE FROM account WHERE id = 4")
        .await
        .unwrap();
    assert_eq!(cell(&second, "SELECT sum(balance)::bigint FROM account").await, 600);
    assert_eq!(cell(&first, "SELECT sum(balance)::bigint FROM account").await, 800);
    first.batch_execute("UPDATE account SET balance = 1 WHERE id = 5").await.unwrap();
    let error = first.batch_execute("UPDATE account SET balance = 1 WHERE id = 3").await.unwrap_err();
    assert_eq!(code(&error), "40001");
    first.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(cell(&first, "SELECT balance FROM account WHERE id = 5").await, 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_two_that_read_what_the_other_writes_one_gives_up() {
    let server = TestServer::start().await;
    let first = accounts(&server).await;
    let second = server.connect().await;
    for client in [&first, &second] {
        client.batch_execute("BEGIN ISOLATION LEVEL SERIALIZABLE").await.unwrap();
        assert_eq!(cell(client, "SELECT sum(balance)::bigint FROM account WHERE id IN (1, 2)").await, 200);
    }
    first.batch_execute("UPDATE account SET balance = balance - 200 WHERE id = 1").await.unwrap();
    second.batch_execute("UPDATE account SET balance = balance - 200 WHERE id = 2").await.unwrap();
    first.batch_execute("COMMIT").await.unwrap();
    assert_eq!(code(&second.batch_execute("COMMIT").await.unwrap_err()), "40001");
    assert_eq!(cell(&first, "SELECT sum(balance)::bigint FROM account WHERE id IN (1, 2)").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_deadlock_ends_one_of_two() {
    let server = TestServer::start().await;
    let first = accounts(&server).await;
    let second = server.connect().await;
    first.batch_execute("BEGIN; UPDATE account SET balance = 1 WHERE id = 1").await.unwrap();
    second.batch_execute("BEGIN; UPDATE account SET balance = 2 WHERE id = 2").await.unwrap();
    let waiting = tokio::spawn(async move {
        let ended = first.batch_execute("UPDATE account SET balance = 1 WHERE id = 2; COMMIT").await;
        ended.map_err(|error| code(&error).to_owned())
    });
    let other = second.batch_execute("UPDATE account SET balance = 2 WHERE id = 1; COMMIT").await;
    let ended = [waiting.await.unwrap(), other.map_err(|error| code(&error).to_owned())];
    assert_eq!(ended.iter().filter(|ended| **ended == Err("40P01".to_owned())).count(), 1, "{ended:?}");
    assert_eq!(ended.iter().filter(|ended| ended.is_ok()).count(), 1, "{ended:?}");
}

/// Who leaves a transaction open loses the connection, and others get what it held.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn idle_sessions_end() {
    let server = TestServer::start().await;
    let (client, connection) = server.config().connect(tokio_postgres::NoTls).await.unwrap();
    let ended = tokio::spawn(connection);
    let other = accounts(&server).await;
    // Outside of a transaction nothing happens; nor while a statement runs.
    client.batch_execute("SET idle_in_transaction_session_timeout = 40").await.unwrap();
    tokio::time::sleep(Duration::from_millis(120)).await;
    client.batch_execute("BEGIN; UPDATE account SET balance = 0; SELECT pg_sleep(0.12)").await.unwrap();
    // Waits for the row, as long as it takes.
    other.batch_execute("UPDATE account SET balance = balance + 1 WHERE id = 1").await.unwrap();
    assert_eq!(cell(&other, "SELECT sum(balance)::bigint FROM account").await, 801);
    let error = ended.await.unwrap().unwrap_err();
    assert_eq!(code(&error), "25P03", "{error:?}");
    assert!(client.batch_execute("COMMIT").await.is_err());
    let (client, connection) = server.config().connect(tokio_postgres::NoTls).await.unwrap();
    let ended = tokio::spawn(connection);
    client.batch_execute("SET idle_session_timeout = '30ms'").await.unwrap();
    assert_eq!(code(&ended.await.unwrap().unwrap_err()), "57P05");
}

async fn keyed(server: &TestServer) -> Client {
    let client = server.connect().await;
    client
        .batch_execute("CREATE TABLE keyed (id int PRIMARY KEY, n int); INSERT INTO keyed VALUES (1, 10)")
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

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_two_that_insert_a_key_the_second_waits_for_the_first() {
    let server = TestServer::start().await;
    let first = keyed(&server).await;
    let insert = "INSERT INTO keyed VALUES (2, 0)";
    first.batch_execute("BEGIN; INSERT INTO keyed VALUES (2, 20)").await.unwrap();
    assert_eq!(after(&server, &first, "COMMIT", insert).await, Err("23505".to_owned()));
    first.batch_execute("BEGIN; DELETE FROM keyed WHERE id = 2").await.unwrap();
    assert_eq!(after(&server, &first, "ROLLBACK", insert).await, Err("23505".to_owned()));
    first.batch_execute("BEGIN; DELETE FROM keyed WHERE id = 2").await.unwrap();
    assert_eq!(after(&server, &first, "COMMIT", insert).await, Ok(()));
    first.batch_execute("BEGIN; INSERT INTO keyed VALUES (3, 30)").await.unwrap();
    assert_eq!(after(&server, &first, "ROLLBACK", "INSERT INTO keyed VALUES (3, 33)").await, Ok(()));
    first.batch_execute("BEGIN; UPDATE keyed SET id = 4 WHERE id = 3").await.unwrap();
    assert_eq!(after(&server, &first, "COMMIT", "UPDATE keyed SET id = 4 WHERE id = 2").await, Err("23505".to_owned()));
    assert_eq!(cell(&first, "SELECT sum(id)::bigint FROM keyed").await, 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_conflict_with_a_row_that_was_committed_meanwhile_is_one() {
    let server = TestServer::start().await;
    let first = keyed(&server).await;
    first.batch_execute("BEGIN; INSERT INTO keyed VALUES (2, 20)").await.unwrap();
    let add = "INSERT INTO keyed VALUES (2, 1) ON CONFLICT (id) DO UPDATE SET n = keyed.n + excluded.n";
    assert_eq!(after(&server, &first, "COMMIT", add).await, Ok(()));
    assert_eq!(cell(&first, "SELECT n::bigint FROM keyed WHERE id = 2").await, 21);
    first.batch_execute("BEGIN; UPDATE keyed SET n = 100 WHERE id = 2").await.unwrap();
    assert_eq!(after(&server, &first, "COMMIT", add).await, Ok(()));
    assert_eq!(cell(&first, "SELECT n::bigint FROM keyed WHERE id = 2").await, 101);
    first.batch_execute("BEGIN; DELETE FROM keyed WHERE id = 2").await.unwrap();
    assert_eq!(after(&server, &first, "COMMIT", add).await, Ok(()));
    assert_eq!(cell(&first, "SELECT n::bigint FROM keyed WHERE id = 2").await, 1);
    // Who has one snapshot cannot go by a row that it does not show.
    let other = server.connect().await;
    for sql in [
        "INSERT INTO keyed VALUES (3, 1) ON CONFLICT DO NOTHING",
        "INSERT INTO keyed VALUES (3, 1) ON CONFLICT (id) DO UPDATE SET n = 1",
    ] {
        other.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT * FROM keyed").await.unwrap();
        first.batch_execute("INSERT INTO keyed VALUES (3, 30)").await.unwrap();
        assert_eq!(code(&other.batch_execute(sql).await.unwrap_err()), "40001");
        other.batch_execute("ROLLBACK").await.unwrap();
        first.batch_execute("DELETE FROM keyed WHERE id = 3").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn counters_lose_nothing_when_many_sessions_insert_or_add() {
    let server = TestServer::start().await;
    let client = keyed(&server).await;
    let adders: Vec<_> = (0..4)
        .map(|_| {
            let config = server.config();
            tokio::spawn(async move {
                let client = crate::server::connect(&config).await.unwrap();
                for step in 0..60 {
                    let sql = format!(
                        "INSERT INTO keyed VALUES ({}, 1) ON CONFLICT (id) DO UPDATE SET n = keyed.n + 1",
                        100 + step % 7
                    );
                    client.batch_execute(&sql).await.unwrap();
                }
            })
        })
        .collect();
    for _ in 0..5 {
        client.batch_execute("CALL tidepool.merge('keyed')").await.unwrap();
    }
    for adder in adders {
        adder.await.unwrap();
    }
    assert_eq!(cell(&client, "SELECT sum(n)::bigint FROM keyed WHERE id >= 100").await, 240);
    assert_eq!(cell(&client, "SELECT count(*) FROM keyed WHERE id >= 100").await, 7);
}
