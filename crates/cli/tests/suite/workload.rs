//! Workload classes: who runs, who waits, who is refused, and who is never made to wait.

use crate::server::{MIB, Setup, TestServer, code};
use std::time::Duration;
use tidepool_database::Config;
use tidepool_database::config::{ClassConfig, WorkloadConfig};
use tokio_postgres::Client;

fn class(running_max: usize, queued_max: usize, queue_timeout: Duration) -> ClassConfig {
    ClassConfig {
        running_max: Some(running_max),
        queued_max: Some(queued_max),
        queue_timeout: Some(queue_timeout),
        cores: Vec::new(),
    }
}

const FOR_EVER: Duration = Duration::ZERO;

async fn start(transactions: ClassConfig, analytics: ClassConfig) -> TestServer {
    let mut config = Config::in_memory(256 * MIB, 256 * MIB);
    config.workload = WorkloadConfig { transactions, analytics };
    let server = TestServer::with(Setup { config: Some(config), metrics: true, ..Setup::default() }).await;
    let client = server.connect().await;
    client.batch_execute("CREATE TABLE t (k INT PRIMARY KEY, v INT)").await.unwrap();
    client.batch_execute("INSERT INTO t SELECT g, 0 FROM generate_series(1, 100) g").await.unwrap();
    server
}

/// Of a class.
async fn count(client: &Client, class: &str, column: &str) -> i64 {
    let sql = format!("SELECT {column} FROM tidepool.workload_classes WHERE class = '{class}'");
    client.query_one(&sql, &[]).await.unwrap().get(0)
}

/// Until a column of a class has this value. The tests' time limits are the whole suite's.
async fn until(client: &Client, class: &str, column: &str, value: i64) {
    while count(client, class, column).await != value {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Runs until it is cancelled.
const ENDLESS: &str = "SELECT count(pg_sleep(3600)) FROM t";

#[tokio::test(flavor = "multi_thread")]
async fn queries_wait_their_turn_and_others_do_not() {
    let server = start(class(4, 100, FOR_EVER), class(1, 1, FOR_EVER)).await;
    let (first, second, third, admin) =
        (server.connect().await, server.connect().await, server.connect().await, server.connect().await);
    let cancel = first.cancel_token();
    let endless = tokio::spawn(async move { first.batch_execute(ENDLESS).await });
    until(&admin, "analytics", "running", 1).await;
    let (pid, waiting) = {
        let pid: i32 = second.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        (pid, tokio::spawn(async move { second.query_one("SELECT count(*), sum(v) FROM t", &[]).await }))
    };
    until(&admin, "analytics", "queued", 1).await;
    let state = format!("SELECT state FROM tidepool.queries WHERE pid = {pid} AND query LIKE 'SELECT count(*)%'");
    assert_eq!(admin.query_one(&state, &[]).await.unwrap().get::<_, String>(0), "queued");

    // The queue is full.
    let error = third.query("SELECT sum(v) FROM t", &[]).await.unwrap_err();
    assert_eq!(code(&error), "53000", "{error:?}");
    let detail = error.as_db_error().unwrap().detail().unwrap().to_owned();
    assert!(detail.contains("1 run at once") && detail.contains("1 wait already"), "{detail}");
    assert_eq!(count(&admin, "analytics", "refused_full").await, 1);
    // As written, by key, without tables, of the system, and what writes: none of them is a query that waits.
    for sql in [
        "SELECT v FROM t WHERE k = 1",
        "SELECT 1",
        "SELECT count(*) FROM pg_class",
        "SELECT count(*) FROM pg_catalog.pg_attribute",
        "SELECT count(*) FROM information_schema.tables",
        "UPDATE t SET v = v + 1",
        "BEGIN; SELECT v FROM t WHERE k = 2; COMMIT",
        "BEGIN READ ONLY; SELECT count(*) FROM tidepool.queries; COMMIT",
        "EXPLAIN SELECT sum(v) FROM t",
    ] {
        third.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
    cancel.cancel_query(tokio_postgres::NoTls).await.unwrap();
    assert_eq!(code(&endless.await.unwrap().unwrap_err()), "57014");
    // It sees what was committed while it waited.
    let row = waiting.await.unwrap().unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (100, 100));
    until(&admin, "analytics", "running", 0).await;
    assert_eq!(count(&admin, "analytics", "waited").await, 1);
    assert_eq!(count(&admin, "analytics", "queued").await, 0);
    let metrics = server.get("/metrics").await;
    for line in [
        "tidepool_workload_running{class=\"analytics\"} 0",
        "tidepool_workload_waited_total{class=\"analytics\"} 1",
        "tidepool_workload_refused_total{class=\"analytics\",reason=\"full\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_ends_with_its_time_with_a_cancel_and_with_its_client() {
    let server = start(class(4, 100, FOR_EVER), class(1, 10, Duration::from_millis(50))).await;
    let (first, second, admin) = (server.connect().await, server.connect().await, server.connect().await);
    let cancel = first.cancel_token();
    let endless = tokio::spawn(async move { first.batch_execute(ENDLESS).await });
    until(&admin, "analytics", "running", 1).await;
    let error = second.query("SELECT sum(v) FROM t", &[]).await.unwrap_err();
    assert_eq!(code(&error), "53000", "{error:?}");
    assert!(error.as_db_error().unwrap().detail().unwrap().contains("It waited for"), "{error:?}");
    assert_eq!(count(&admin, "analytics", "refused_late").await, 1);
    second.batch_execute("SET statement_timeout = '10ms'").await.unwrap();
    let error = second.query("SELECT sum(v) FROM t", &[]).await.unwrap_err();
    assert_eq!(code(&error), "57014", "{error:?}");
    // Of another class, by the client's word.
    second.batch_execute("SET statement_timeout = 0; SET tidepool.workload_class = 'transactions'").await.unwrap();
    second.query("SELECT sum(v) FROM t", &[]).await.unwrap();
    second.batch_execute("SET tidepool.workload_class = 'analytics'").await.unwrap();
    assert_eq!(code(&second.query("SELECT v FROM t WHERE k = 1", &[]).await.unwrap_err()), "53000");
    cancel.cancel_query(tokio_postgres::NoTls).await.unwrap();
    endless.await.unwrap().unwrap_err();
    until(&admin, "analytics", "running", 0).await;
    second.query("SELECT v FROM t WHERE k = 1", &[]).await.unwrap();
    let counted = count(&admin, "analytics", "queued").await;
    assert_eq!(counted, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_holds_locks_does_not_wait() {
    let server = start(class(1, 100, FOR_EVER), class(1, 100, FOR_EVER)).await;
    let (first, second, holder, admin) =
        (server.connect().await, server.connect().await, server.connect().await, server.connect().await);
    let cancel = first.cancel_token();
    holder.batch_execute("BEGIN; UPDATE t SET v = 1 WHERE k = 1").await.unwrap();
    let endless = tokio::spawn(async move { first.batch_execute(ENDLESS).await });
    until(&admin, "analytics", "running", 1).await;
    // The class is full, and this one runs beyond its limit: nobody who waits for the row may wait for the query too.
    let sum: i64 = holder.query_one("SELECT sum(v) FROM t", &[]).await.unwrap().get(0);
    assert_eq!(sum, 1);
    // The one place for transactions was given up while the client did nothing, and another is let in: up to the row.
    let blocked = tokio::spawn(async move { second.batch_execute("UPDATE t SET v = v + 10 WHERE k = 1").await });
    until(&admin, "transactions", "running", 1).await;
    let waits =
        "SELECT count(*) FROM tidepool.queries WHERE state = 'running' AND query LIKE 'UPDATE t SET v = v + 10%'";
    while admin.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The holder goes on at once, and both come through.
    holder.batch_execute("UPDATE t SET v = v + 1 WHERE k = 2").await.unwrap();
    assert!(count(&admin, "transactions", "running").await >= 2);
    holder.batch_execute("COMMIT").await.unwrap();
    blocked.await.unwrap().unwrap();
    let sum: i64 = holder.query_one("SELECT v FROM t WHERE k = 1", &[]).await.unwrap().get::<_, i32>(0).into();
    assert_eq!(sum, 11);
    cancel.cancel_query(tokio_postgres::NoTls).await.unwrap();
    endless.await.unwrap().unwrap_err();
    for (class, running) in [("transactions", 0), ("analytics", 0)] {
        until(&admin, class, "running", running).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_is_let_in_or_refused_when_it_begins() {
    let server = start(class(1, 0, FOR_EVER), class(1, 0, FOR_EVER)).await;
    let (holder, other, admin) = (server.connect().await, server.connect().await, server.connect().await);
    // Busy all the time, so that its place stays its own.
    let cancel = holder.cancel_token();
    let busy = tokio::spawn(async move {
        holder.batch_execute("BEGIN").await.unwrap();
        holder.batch_execute("SELECT pg_sleep(3600)").await
    });
    until(&admin, "transactions", "running", 1).await;
    let error = other.batch_execute("BEGIN").await.unwrap_err();
    assert_eq!(code(&error), "53000", "{error:?}");
    // There is no block to roll back.
    assert_eq!(other.query_one("SELECT 1", &[]).await.unwrap().get::<_, i32>(0), 1);
    assert_eq!(code(&other.query("SELECT v FROM t WHERE k = 1", &[]).await.unwrap_err()), "53000");
    cancel.cancel_query(tokio_postgres::NoTls).await.unwrap();
    assert_eq!(code(&busy.await.unwrap().unwrap_err()), "57014");
    until(&admin, "transactions", "running", 0).await;
    other
        .batch_execute(
            "BEGIN; UPDATE t SET v = 7 WHERE k = 1; COMMIT AND CHAIN; UPDATE t SET v = v + 1 WHERE k = 1; COMMIT",
        )
        .await
        .unwrap();
    assert_eq!(admin.query_one("SELECT v FROM t WHERE k = 1", &[]).await.unwrap().get::<_, i32>(0), 8);
    until(&admin, "transactions", "running", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_keeps_nobody_out() {
    let server = start(class(4, 100, FOR_EVER), class(1, 100, FOR_EVER)).await;
    let (mut slow, other, admin) = (server.connect().await, server.connect().await, server.connect().await);
    other.batch_execute("INSERT INTO t SELECT g, g FROM generate_series(101, 200000) g").await.unwrap();
    let transaction = slow.transaction().await.unwrap();
    let portal = transaction.bind("SELECT k, v FROM t", &[]).await.unwrap();
    assert_eq!(transaction.query_portal(&portal, 5).await.unwrap().len(), 5);
    let row = other.query_one("SELECT count(*) FROM t", &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 200_000);
    let mut rows = 5;
    loop {
        let more = transaction.query_portal(&portal, 50_000).await.unwrap().len();
        rows += more;
        if more == 0 {
            break;
        }
    }
    assert_eq!(rows, 200_000);
    drop(portal);
    transaction.commit().await.unwrap();
    until(&admin, "analytics", "running", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_with_little_room_lose_nothing() {
    const CLIENTS: usize = 60;
    const ROUNDS: i64 = 10;
    let server = start(class(2, 10, FOR_EVER), class(1, 10, FOR_EVER)).await;
    let admin = server.connect().await;
    let clients: Vec<_> = futures::future::join_all((0..CLIENTS).map(|_| server.connect())).await;
    let mut tasks = Vec::new();
    for (number, client) in clients.into_iter().enumerate() {
        tasks.push(tokio::spawn(async move {
            let key = (number % 100 + 1) as i32;
            let (mut done, mut refused) = (0_i64, 0_i64);
            while done < ROUNDS {
                let worked = match number % 2 {
                    0 => client.batch_execute(&format!("UPDATE t SET v = v + 1 WHERE k = {key}")).await,
                    _ => client.batch_execute(&format!("BEGIN; UPDATE t SET v = v + 1 WHERE k = {key}; COMMIT")).await,
                };
                match worked {
                    Ok(()) => done += 1,
                    Err(error) => {
                        assert_eq!(code(&error), "53000", "{error:?}");
                        refused += 1;
                        if number % 2 == 1 {
                            client.batch_execute("ROLLBACK").await.unwrap();
                        }
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                }
            }
            refused
        }));
    }
    let mut refused = 0;
    let mut at_work: futures::future::JoinAll<_> = futures::future::join_all(tasks);
    let outcomes = loop {
        tokio::select! {
            outcomes = &mut at_work => break outcomes,
            () = tokio::time::sleep(Duration::from_millis(3)) => {
                let queued = count(&admin, "transactions", "queued").await;
                assert!(queued <= 10, "{queued}");
            }
        }
    };
    for outcome in outcomes {
        refused += outcome.unwrap();
    }
    assert_eq!(count(&admin, "transactions", "refused_full").await, refused);
    assert_eq!(count(&admin, "transactions", "running").await, 0);
    assert_eq!(count(&admin, "transactions", "queued").await, 0);
    let sum: i64 = admin.query_one("SELECT sum(v) FROM t", &[]).await.unwrap().get(0);
    assert_eq!(sum, CLIENTS as i64 * ROUNDS);
}

#[tokio::test(flavor = "multi_thread")]
async fn planned_statements_run_on_the_cores_of_their_class() {
    let last = *tidepool_device::processors().unwrap().last().unwrap();
    let mut config = Config::in_memory(256 * MIB, 256 * MIB);
    config.workload.analytics.cores = vec![last];
    let server = TestServer::with(Setup { config: Some(config.clone()), ..Setup::default() }).await;
    let client = server.connect().await;
    client.batch_execute("CREATE TABLE t AS SELECT g FROM generate_series(1, 300000) g").await.unwrap();
    client.query("SELECT g % 10, count(*) FROM t GROUP BY 1", &[]).await.unwrap();
    let threads: String = client.query_one("SHOW tidepool.threads", &[]).await.unwrap().get(0);
    assert_eq!(threads, "1");
    let cores: Option<String> = client
        .query_one("SELECT cores FROM tidepool.workload_classes WHERE class = 'analytics'", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(cores, Some(last.to_string()));
    config.workload.analytics.cores = vec![1023];
    let database = tidepool_database::Database::open(config).unwrap();
    let Err(error) = tidepool_planner::Planner::new(database) else { panic!("there is a processor 1023") };
    assert_eq!(error.code().code(), "F0000");
}
