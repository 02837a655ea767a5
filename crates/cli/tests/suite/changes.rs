//! Statements that change rows.

use crate::server::TestServer;
use tokio_postgres::{Client, SimpleQueryMessage};

/// The first column of all rows.
async fn lines(client: &Client, sql: &str) -> Vec<String> {
    let messages = client.simple_query(sql).await.unwrap();
    let row = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    };
    messages.iter().filter_map(row).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_of_a_change_says_what_becomes_of_its_rows() {
    let server = TestServer::start().await;
    let client = server.connect().await;
    let tables = "CREATE SCHEMA s; CREATE TABLE s.t (id int PRIMARY KEY); CREATE TABLE t (id int PRIMARY KEY, n int)";
    client.batch_execute(tables).await.unwrap();
    for (sql, node) in [
        ("EXPLAIN INSERT INTO t VALUES (1, 1)", "Insert on t"),
        ("EXPLAIN UPDATE t SET n = 1", "Update on t"),
        ("EXPLAIN UPDATE t AS \"X\" SET n = 1", "Update on t \"X\""),
        ("EXPLAIN (VERBOSE) DELETE FROM s.t", "Delete on s.t"),
        ("EXPLAIN (FORMAT TREE) DELETE FROM s.t", "Delete on s.t"),
        ("EXPLAIN SELECT * FROM t FOR UPDATE", "LockRows"),
    ] {
        let plan = lines(&client, sql).await;
        assert_eq!(plan[0], node, "{sql}");
        assert!(plan.len() > 1 && !plan.concat().contains('\u{1}'), "{plan:?}");
    }
    let upsert = "INSERT INTO t VALUES (1, 1), (2, 2) ON CONFLICT (id) DO UPDATE SET n = excluded.n WHERE t.n < 5";
    client.batch_execute("INSERT INTO t VALUES (1, 0)").await.unwrap();
    let plan = lines(&client, &format!("EXPLAIN ANALYZE {upsert}")).await;
    assert!(plan[0].starts_with("Insert on t (actual time=") && plan[0].ends_with(" ms rows=2)"), "{plan:?}");
    let details = [
        "  Conflict Resolution: UPDATE",
        "  Conflict Arbiter Indexes: t_pkey",
        "  Conflict Filter: (t.n < 5)",
        "  Tuples Inserted: 1",
        "  Conflicting Tuples: 1",
    ];
    assert_eq!(plan[1..6], details);
    let plan = lines(&client, "EXPLAIN ANALYZE DELETE FROM t WHERE id = 2 RETURNING n").await;
    assert!(plan[0].starts_with("Delete on t (actual time=") && plan[0].ends_with(" ms rows=1)"), "{plan:?}");
    assert_eq!(lines(&client, "SELECT n FROM t").await, ["1"]);
}
