//! Statements that change rows.

use crate::server::{TestServer, code, pid};
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

/// What a statement gives back, as text, in a session that has to wait for `first`, which then commits.
async fn after(server: &TestServer, first: &Client, sql: &str) -> Vec<String> {
    let second = server.connect().await;
    let pid = pid(&second).await;
    let sql = sql.to_owned();
    let waiting = tokio::spawn(async move {
        let messages = second.simple_query(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        let text = |message: SimpleQueryMessage| match message {
            SimpleQueryMessage::Row(row) => {
                let cells: Vec<&str> = (0..row.len()).map(|cell| row.get(cell).unwrap_or("NULL")).collect();
                Some(cells.join(" "))
            }
            SimpleQueryMessage::CommandComplete(rows) => Some(format!("= {rows}")),
            _ => None,
        };
        messages.into_iter().filter_map(text).collect()
    });
    server.until_waiting(pid, &waiting).await;
    first.batch_execute("COMMIT").await.unwrap();
    waiting.await.unwrap()
}

/// As PostgreSQL has it: the rows that others changed are looked at as they are now, all else as of before.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rows_that_others_changed_are_looked_at_again_and_nothing_else() {
    let server = TestServer::start().await;
    let first = server.connect().await;
    first
        .batch_execute("CREATE TABLE t (id int PRIMARY KEY, n int, s text); CREATE TABLE r (id int, n int)")
        .await
        .unwrap();
    let reset = "TRUNCATE t; TRUNCATE r; INSERT INTO t SELECT i, 0, 's' || i FROM generate_series(1, 4) AS g(i);
                 INSERT INTO r VALUES (1, 10), (2, 20)";
    let all = "SELECT id || ':' || n FROM t ORDER BY id";
    // What another session does, what has to wait for it, what that gives, and what the table is in the end.
    let cases: &[(&str, &str, &[&str], &[&str])] = &[
        // It sees the new value, and no row that came meanwhile.
        (
            "UPDATE t SET n = 5 WHERE id = 1; INSERT INTO t VALUES (9, 0, 'new')",
            "UPDATE t SET n = n + 1 WHERE id IN (1, 2, 9)",
            &["= 2"],
            &["1:6", "2:1", "3:0", "4:0", "9:0"],
        ),
        // The condition holds no more, or holds by now.
        ("UPDATE t SET n = 5 WHERE id < 3", "UPDATE t SET n = 1 WHERE n = 0", &["= 2"], &["1:5", "2:5", "3:1", "4:1"]),
        (
            "UPDATE t SET n = 5 WHERE id < 3",
            "DELETE FROM t WHERE n = 0 RETURNING id",
            &["3", "4", "= 2"],
            &["1:5", "2:5"],
        ),
        (
            "UPDATE t SET n = 5 WHERE id = 1",
            "DELETE FROM t WHERE id = 1 RETURNING n",
            &["5", "= 1"],
            &["2:0", "3:0", "4:0"],
        ),
        ("DELETE FROM t WHERE id = 1", "UPDATE t SET n = n + 1 WHERE id < 3", &["= 1"], &["2:1", "3:0", "4:0"]),
        (
            "UPDATE t SET id = 7 WHERE id = 1",
            "UPDATE t SET n = 3 WHERE id = 1",
            &["= 0"],
            &["2:0", "3:0", "4:0", "7:0"],
        ),
        // Keys are written as they are now.
        (
            "UPDATE t SET id = 7 WHERE id = 1",
            "UPDATE t SET id = id + 1 WHERE s = 's1'",
            &["= 1"],
            &["2:0", "3:0", "4:0", "8:0"],
        ),
        // Other rows are as of before: of other tables, and of this one.
        (
            "UPDATE r SET n = 100; UPDATE t SET n = 5 WHERE id = 1",
            "UPDATE t SET n = t.n + r.n FROM r WHERE t.id = r.id RETURNING t.id, r.n",
            &["2 20", "1 10", "= 2"],
            &["1:15", "2:20", "3:0", "4:0"],
        ),
        (
            "UPDATE t SET n = 5 WHERE id = 1",
            "UPDATE t SET n = n + 1 + (SELECT max(n) FROM t) WHERE id = 1",
            &["= 1"],
            &["1:6", "2:0", "3:0", "4:0"],
        ),
        (
            "UPDATE t SET n = 5 WHERE id = 1; DELETE FROM r",
            "DELETE FROM t WHERE id IN (SELECT id FROM r) AND n < 9 RETURNING id, n",
            &["2 0", "1 5", "= 2"],
            &["3:0", "4:0"],
        ),
        (
            "UPDATE t SET n = 5 WHERE id = 1",
            "WITH RECURSIVE w (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM w WHERE i < 2)
             UPDATE t SET n = n + 1 FROM w WHERE id = i",
            &["= 2"],
            &["1:6", "2:1", "3:0", "4:0"],
        ),
        (
            "UPDATE t SET n = 5 WHERE id = 1",
            "MERGE INTO t USING r ON t.id = r.id WHEN MATCHED AND t.n = 5 THEN DELETE WHEN MATCHED THEN UPDATE SET n = r.n",
            &["= 2"],
            &["2:20", "3:0", "4:0"],
        ),
        (
            "DELETE FROM t WHERE id = 1",
            "MERGE INTO t USING r ON t.id = r.id WHEN MATCHED THEN UPDATE SET n = t.n + r.n
             WHEN NOT MATCHED THEN INSERT VALUES (r.id, 99)",
            &["= 2"],
            &["1:99", "2:20", "3:0", "4:0"],
        ),
        (
            "UPDATE t SET n = 5 WHERE id = 1",
            "MERGE INTO t USING r ON t.id = r.id WHEN MATCHED THEN UPDATE SET n = t.n + r.n
             WHEN NOT MATCHED THEN INSERT VALUES (r.id, 99)",
            &["= 2"],
            &["1:15", "2:20", "3:0", "4:0"],
        ),
        (
            "DELETE FROM t WHERE id = 1",
            "MERGE INTO t USING r ON t.id = r.id WHEN MATCHED THEN DELETE",
            &["= 1"],
            &["3:0", "4:0"],
        ),
        // Rows that are locked, in their order, with what else the query says of them.
        (
            "UPDATE t SET n = 5 WHERE id = 2; UPDATE t SET n = 7 WHERE id = 3",
            "SELECT id, n FROM t WHERE n < 6 ORDER BY id FOR UPDATE",
            &["1 0", "2 5", "4 0", "= 3"],
            &["1:0", "2:5", "3:7", "4:0"],
        ),
        (
            "UPDATE t SET n = 5 WHERE id = 1; DELETE FROM r",
            "SELECT t.id, t.n, r.n FROM t JOIN r USING (id) ORDER BY 1 FOR SHARE OF t",
            &["1 5 10", "2 0 20", "= 2"],
            &["1:5", "2:0", "3:0", "4:0"],
        ),
        (
            "UPDATE t SET n = 5 WHERE id = 1",
            "SELECT a.id, a.n, b.id, b.n FROM t AS a JOIN t AS b ON a.id = b.id - 1 WHERE a.id < 3 ORDER BY 1 FOR UPDATE",
            &["1 5 2 0", "2 0 3 0", "= 2"],
            &["1:5", "2:0", "3:0", "4:0"],
        ),
        (
            "UPDATE t SET n = 5 WHERE id = 1",
            "SELECT id FROM t WHERE n = 0 ORDER BY id LIMIT 2 FOR UPDATE",
            &["2", "3", "= 2"],
            &["1:5", "2:0", "3:0", "4:0"],
        ),
        (
            "UPDATE t SET n = 5 WHERE id = 1",
            "SELECT id, n, (SELECT max(n) FROM r) FROM t WHERE id < 3 ORDER BY id FOR UPDATE",
            &["1 5 20", "2 0 20", "= 2"],
            &["1:5", "2:0", "3:0", "4:0"],
        ),
    ];
    for merged in [false, true] {
        for (change, sql, given, end) in cases {
            first.batch_execute(reset).await.unwrap();
            if merged {
                first.batch_execute("CALL tidepool.merge('t')").await.unwrap();
            }
            first.batch_execute(&format!("BEGIN; {change}")).await.unwrap();
            assert_eq!(after(&server, &first, sql).await, *given, "{change}; then {sql}");
            assert_eq!(lines(&first, all).await, *end, "{change}; then {sql}");
        }
    }
    // Whoever has one snapshot gives up.
    for sql in
        ["UPDATE t SET n = 1 WHERE id = 1", "DELETE FROM t WHERE id = 1", "SELECT * FROM t WHERE id = 1 FOR UPDATE"]
    {
        first.batch_execute(reset).await.unwrap();
        let second = server.connect().await;
        second.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT * FROM t").await.unwrap();
        first.batch_execute("UPDATE t SET n = 2 WHERE id = 1").await.unwrap();
        let refused = second.batch_execute(sql).await.unwrap_err();
        assert_eq!(code(&refused), "40001", "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_row_that_all_write_counts_all_of_them() {
    const CLIENTS: usize = 8;
    const TIMES: usize = 25;
    let server = TestServer::start().await;
    let first = server.connect().await;
    let tables = "CREATE TABLE hot (id int PRIMARY KEY, n int, m int); INSERT INTO hot VALUES (1, 0, 0), (2, 0, 0);
                  CREATE TABLE one (id int); INSERT INTO one VALUES (1)";
    first.batch_execute(tables).await.unwrap();
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        let session = server.connect().await;
        clients.push(tokio::spawn(async move {
            let sql = match client % 4 {
                0 => "UPDATE hot SET n = n + 1 WHERE id = 1",
                1 => "UPDATE hot SET n = n + 1 FROM one WHERE hot.id = one.id",
                2 => "MERGE INTO hot USING one ON hot.id = one.id WHEN MATCHED THEN UPDATE SET n = n + 1",
                _ => "BEGIN; SELECT n FROM hot WHERE id = 1 FOR UPDATE; UPDATE hot SET n = n + 1 WHERE id = 1; COMMIT",
            };
            for _ in 0..TIMES {
                session.batch_execute(sql).await.unwrap();
            }
        }));
    }
    for client in clients {
        client.await.unwrap();
    }
    assert_eq!(lines(&first, "SELECT n FROM hot ORDER BY id").await, [(CLIENTS * TIMES).to_string(), "0".to_owned()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_queue_gives_each_job_to_one_worker() {
    const JOBS: usize = 120;
    let server = TestServer::start().await;
    let first = server.connect().await;
    let tables = format!(
        "CREATE TABLE job (id int PRIMARY KEY, done bool NOT NULL, times int NOT NULL);
         INSERT INTO job SELECT i, false, 0 FROM generate_series(1, {JOBS}) AS g(i)"
    );
    first.batch_execute(&tables).await.unwrap();
    let mut workers = Vec::new();
    for _ in 0..4 {
        let session = server.connect().await;
        workers.push(tokio::spawn(async move {
            loop {
                session.batch_execute("BEGIN").await.unwrap();
                let take = "SELECT id FROM job WHERE NOT done ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED";
                let taken = session.query_opt(take, &[]).await.unwrap();
                let Some(row) = taken else { break session.batch_execute("COMMIT").await.unwrap() };
                let id: i32 = row.get(0);
                let done = format!("UPDATE job SET done = true, times = times + 1 WHERE id = {id}; COMMIT");
                session.batch_execute(&done).await.unwrap();
            }
        }));
    }
    for worker in workers {
        worker.await.unwrap();
    }
    assert_eq!(lines(&first, "SELECT count(*) FROM job WHERE done AND times = 1").await, [JOBS.to_string()]);
}
