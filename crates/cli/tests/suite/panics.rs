//! A defect at any stage of a statement ends that statement, and nothing else: a server is started in which one place panics, once.

use crate::cli::{serve, try_serve};
use crate::server::code;
use crate::witness::memory;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn outcome(client: &Client, sql: &str) -> String {
    match client.simple_query(sql).await {
        Ok(_) => "00000".to_owned(),
        Err(error) => code(&error).to_owned(),
    }
}

async fn value(client: &Client, sql: &str) -> String {
    let rows = client.simple_query(sql).await.unwrap();
    let row = rows.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    row.unwrap_or_default().to_owned()
}

/// Places that panic, and what gets there first.
const STAGES: [(&str, &str); 15] = [
    ("planner.parser", "SELECT count(*) FROM stage"),
    ("planner.session", "SELECT count(*) FROM stage"),
    ("planner.names", "SELECT count(*) FROM stage"),
    ("planner.optimizer", "SELECT count(*) FROM stage"),
    ("planner.execution", "SELECT count(*) FROM stage"),
    ("engine.worker", "SELECT count(*) FROM stage"),
    ("planner.operator", "SELECT count(*) FROM stage JOIN generate_series(1, 10) AS g(x) ON id = x"),
    (
        "planner.subquery",
        "SELECT (SELECT b.n FROM stage b WHERE b.id < a.id ORDER BY b.id DESC LIMIT 1 OFFSET a.n) FROM stage a",
    ),
    ("planner.shared", "WITH v AS (SELECT id, random() AS r FROM stage) SELECT count(*) FROM v a JOIN v b USING (r)"),
    ("planner.direct", "UPDATE stage SET n = n + 1 WHERE id = 1"),
    ("planner.write", "UPDATE stage SET n = n + 1 WHERE n >= 0"),
    ("planner.write", "INSERT INTO stage SELECT x, 0, NULL FROM generate_series(5001, 5100) AS g(x)"),
    ("database.encode", "CREATE TABLE other AS SELECT x FROM generate_series(1, 1000000) AS g(x)"),
    ("database.commit", "INSERT INTO stage SELECT x, 0, NULL FROM generate_series(5001, 5100) AS g(x)"),
    ("server.encoder", "SELECT id, note FROM stage ORDER BY id"),
];

/// The table that all stages work on.
fn prepared(data: &Path) {
    let server = serve(data, &[]);
    let made = crate::cli::sql(
        &server.url,
        &[
            "-c",
            "CREATE TABLE stage (id int PRIMARY KEY, n int, note text)",
            "-c",
            "INSERT INTO stage SELECT x, x % 7, repeat('note ', 20) FROM generate_series(1, 5000) AS g(x)",
        ],
        "",
    );
    assert!(made.status.success(), "{}", crate::cli::text(&made.stderr));
    server.signal(libc::SIGTERM);
    assert!(server.wait().0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_at_any_stage_ends_its_statement_alone() {
    for (place, sql) in STAGES {
        for in_block in [false, true] {
            // Its beginning gets there first; or its end does.
            if in_block && ["planner.parser", "planner.session", "database.commit"].contains(&place) {
                continue;
            }
            let about = format!("{place}, {}: {sql}", if in_block { "in a block" } else { "by itself" });
            let folder = tempfile::tempdir().unwrap();
            let data = folder.path().join("data");
            prepared(&data);
            let environment = [(tidepool_base::PANIC_POINT_VARIABLE, place)];
            let server = try_serve(&data, &[], &environment).unwrap();
            let client = connect(&server.url).await;
            if in_block {
                assert_eq!(outcome(&client, "BEGIN").await, "00000", "{about}");
            }
            assert_eq!(outcome(&client, sql).await, "XX000", "{about}");
            if in_block {
                assert_eq!(outcome(&client, "SELECT 1").await, "25P02", "{about}");
                assert_eq!(outcome(&client, "ROLLBACK").await, "00000", "{about}");
            }
            // Nobody waits for what it had locked, and its work is undone.
            let other = connect(&server.url).await;
            assert_eq!(value(&other, "SELECT count(*) FROM stage").await, "5000", "{about}");
            assert_eq!(value(&other, "SELECT sum(n) FROM stage").await, "14997", "{about}");
            assert_eq!(outcome(&other, "SET lock_timeout = '20s'; UPDATE stage SET n = n").await, "00000", "{about}");
            assert_eq!(outcome(&client, sql).await, "00000", "{about}");
            // What the statement had taken comes back.
            let start = Instant::now();
            let left = "SELECT count(*) FROM tidepool.queries WHERE state NOT IN ('finished', 'failed')";
            while value(&other, left).await != "1" || memory(&other).await.1 > 4 << 20 {
                assert!(start.elapsed() < Duration::from_secs(120), "{about}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_a_message_ends_what_was_sent_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    prepared(&data);
    let server = try_serve(&data, &[], &[(tidepool_base::PANIC_POINT_VARIABLE, "server.bind")]).unwrap();
    let client = connect(&server.url).await;
    let statement = client.prepare("SELECT note FROM stage WHERE id = $1").await.unwrap();
    assert_eq!(code(&client.query(&statement, &[&1i32]).await.unwrap_err()), "XX000");
    assert_eq!(client.query(&statement, &[&1i32]).await.unwrap().len(), 1);
}
