//! Partitioned tables: between sessions, over restarts and backups, and beside a table of the same rows.

use crate::cli::{serve, sql, text, tidepool};
use crate::server::{TestServer, code, pid};
use tokio_postgres::Client;

async fn cell(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

async fn plan(client: &Client, query: &str) -> String {
    let rows = client.query(&format!("EXPLAIN {query}"), &[]).await.unwrap();
    rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>().join("\n")
}

/// Rows 1 to `rows` of partitions `p0` to `p3` by `k`.
async fn quarters(server: &TestServer, rows: u32) -> Client {
    let client = server.connect().await;
    let mut sql = "CREATE TABLE t (id int, k int, n bigint, PRIMARY KEY (id, k)) PARTITION BY LIST (k);".to_owned();
    for k in 0..4 {
        sql.push_str(&format!("CREATE TABLE p{k} PARTITION OF t FOR VALUES IN ({k});"));
    }
    sql.push_str(&format!("INSERT INTO t SELECT i, i % 4, 0 FROM generate_series(1, {rows}) AS g(i)"));
    client.batch_execute(&sql).await.unwrap();
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_row_is_lost_while_sessions_move_the_same_rows() {
    const SESSIONS: i64 = 4;
    const STEPS: i64 = 40;
    let server = TestServer::start().await;
    let client = quarters(&server, 6).await;
    let movers: Vec<_> = (0..SESSIONS)
        .map(|mover| {
            let config = server.config();
            tokio::spawn(async move {
                let client = crate::server::connect(&config).await.unwrap();
                for step in 0..STEPS {
                    let id = (mover + step) % 6 + 1;
                    let sql = format!("UPDATE t SET k = (k + {}) % 4, n = n + 1 WHERE id = {id}", mover + 1);
                    assert_eq!(client.execute(&sql, &[]).await.unwrap(), 1, "{sql}");
                }
            })
        })
        .collect();
    for _ in 0..10 {
        assert_eq!(cell(&client, "SELECT count(DISTINCT id) * 100 + count(*) FROM t").await, 606);
        client.batch_execute("CALL tidepool.merge('t')").await.unwrap();
    }
    for mover in movers {
        mover.await.unwrap();
    }
    assert_eq!(cell(&client, "SELECT sum(n)::bigint FROM t").await, SESSIONS * STEPS);
    assert_eq!(cell(&client, "SELECT count(DISTINCT id) * 100 + count(*) FROM t").await, 606);
    for k in 0..4 {
        assert_eq!(cell(&client, &format!("SELECT count(*) FROM p{k} WHERE k <> {k}")).await, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_snapshot_does_not_change_what_moved_since() {
    let server = TestServer::start().await;
    let first = quarters(&server, 8).await;
    let second = server.connect().await;
    for change in
        ["UPDATE t SET n = 5 WHERE id = 1", "DELETE FROM t WHERE id = 1", "SELECT * FROM t WHERE id = 1 FOR UPDATE"]
    {
        second.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM t").await.unwrap();
        first.batch_execute("UPDATE t SET k = (k + 1) % 4 WHERE id = 1").await.unwrap();
        let refused = second.batch_execute(change).await.unwrap_err();
        assert_eq!(code(&refused), "40001", "{change}");
        second.batch_execute("ROLLBACK").await.unwrap();
    }
    // Who has no snapshot to keep looks again, and finds it where it is.
    first.batch_execute("BEGIN; UPDATE t SET k = (k + 1) % 4 WHERE id = 2").await.unwrap();
    let pid = pid(&second).await;
    let waiting = tokio::spawn(async move { second.execute("UPDATE t SET n = n + 1 WHERE id = 2", &[]).await });
    server.until_waiting(pid, &waiting).await;
    first.batch_execute("COMMIT").await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), 1);
    assert_eq!(cell(&first, "SELECT n FROM t WHERE id = 2").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_partition_that_moves_holds_up_those_who_write_to_it_alone() {
    let server = TestServer::start().await;
    let first = quarters(&server, 8).await;
    let second = server.connect().await;
    first.batch_execute("BEGIN; ALTER TABLE p0 SET TABLESPACE far").await.unwrap();
    second.batch_execute("SET lock_timeout = '100ms'").await.unwrap();
    second.batch_execute("INSERT INTO t VALUES (9, 1, 0), (10, 2, 0); UPDATE t SET n = 1 WHERE k = 1").await.unwrap();
    second.batch_execute("UPDATE t SET k = 3 WHERE id = 1").await.unwrap();
    let refused = second.batch_execute("INSERT INTO t VALUES (11, 1, 0), (12, 0, 0)").await.unwrap_err();
    assert_eq!(code(&refused), "55P03");
    assert_eq!(cell(&second, "SELECT count(*) FROM t").await, 10);
    first.batch_execute("COMMIT").await.unwrap();
    second.batch_execute("INSERT INTO t VALUES (11, 1, 0), (12, 0, 0)").await.unwrap();
    assert_eq!(cell(&second, "SELECT count(*) FROM t WHERE k = 0").await, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn plans_read_the_partitions_that_conditions_leave() {
    let server = TestServer::start().await;
    let client = server.connect().await;
    let mut made =
        "CREATE TABLE m (day date NOT NULL, shop int, sum int, PRIMARY KEY (day, shop)) PARTITION BY RANGE (day);"
            .to_owned();
    for year in 2020..2026 {
        made.push_str(&format!(
            "CREATE TABLE m{year} PARTITION OF m FOR VALUES FROM ('{year}-01-01') TO ('{}-01-01');",
            year + 1
        ));
    }
    made.push_str("INSERT INTO m SELECT date '2020-01-01' + i, i % 7, i FROM generate_series(0, 2000) AS g(i);");
    client.batch_execute(&made).await.unwrap();
    for (condition, left) in [
        ("TRUE", "[m2020, m2021, m2022, m2023, m2024, m2025] (6 of 6)"),
        ("day = '2022-05-05'", "[m2022] (1 of 6)"),
        ("day >= '2021-06-01' AND day < '2023-01-01'", "[m2021, m2022] (2 of 6)"),
        ("day BETWEEN '2021-06-01' AND '2023-01-01'", "[m2021, m2022, m2023] (3 of 6)"),
        ("day IN ('2020-01-01', '2025-01-01')", "[m2020, m2025] (2 of 6)"),
        ("day < '2019-01-01'", "[] (0 of 6)"),
        ("day = '2022-05-05' AND shop = 3", "[m2022] (1 of 6), index=m2022_pkey, key=[day, shop]"),
        ("shop = 3", "[m2020, m2021, m2022, m2023, m2024, m2025] (6 of 6)"),
    ] {
        let shown = plan(&client, &format!("SELECT * FROM m WHERE {condition}")).await;
        assert!(shown.contains(&format!("table=m, partitions={left}")), "{condition}: {shown}");
    }
    client.batch_execute("PREPARE q AS SELECT sum FROM m WHERE day = $1").await.unwrap();
    assert!(plan(&client, "EXECUTE q('2024-03-03')").await.contains("[m2024] (1 of 6)"));
    assert!(plan(&client, "DELETE FROM m WHERE day > '2024-12-31'").await.contains("[m2025] (1 of 6)"));
    // Parts of it may live far, and are accounted there.
    client.batch_execute("CALL tidepool.merge('m'); ALTER TABLE m2020 SET TABLESPACE far").await.unwrap();
    assert!(plan(&client, "SELECT sum(sum) FROM m WHERE day < '2021-01-01'").await.contains("tablespaces=[far]"));
    let both = "SELECT sum(sum) FROM m WHERE day < '2022-01-01'";
    assert!(plan(&client, both).await.contains("tablespaces=[far, near]"));
    let rows = client.query(&format!("EXPLAIN PLACEMENT {both}"), &[]).await.unwrap();
    let placement = rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>().join("\n");
    assert!(placement.contains("m2020") && placement.contains("m2021") && !placement.contains("m2022"), "{placement}");
}

/// The same rows in a table, and partitioned in every way: all conditions find the same, in delta and in main.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn partitions_answer_as_one_table_does() {
    let server = TestServer::start().await;
    let client = server.connect().await;
    let columns = "(a int, b text, c numeric(8, 2), d timestamp)";
    let mut made = format!("CREATE TABLE plain {columns};");
    let by = [
        ("r", "RANGE (a)", ["FROM (MINVALUE) TO (100)", "FROM (100) TO (2000)", "FROM (2000) TO (2500)", "DEFAULT"]),
        (
            "rr",
            "RANGE (c, a)",
            ["FROM (MINVALUE, MINVALUE) TO (3, 7)", "FROM (3, 7) TO (3, MAXVALUE)", "FROM (5, 1) TO (9, 9)", "DEFAULT"],
        ),
        ("l", "LIST (b)", ["IN ('x0', 'x1', NULL)", "IN ('x2')", "IN ('x5', 'x7')", "DEFAULT"]),
        (
            "h",
            "HASH (a, b)",
            [
                "WITH (MODULUS 2, REMAINDER 0)",
                "WITH (MODULUS 4, REMAINDER 1)",
                "WITH (MODULUS 8, REMAINDER 3)",
                "WITH (MODULUS 8, REMAINDER 7)",
            ],
        ),
        (
            "d",
            "RANGE (d)",
            [
                "FROM ('2020-01-01') TO ('2020-01-02')",
                "FROM ('2020-01-02') TO ('2020-01-02 12:00')",
                "FROM ('2020-02-01') TO (MAXVALUE)",
                "DEFAULT",
            ],
        ),
    ];
    for (name, key, bounds) in by {
        made.push_str(&format!("CREATE TABLE {name} {columns} PARTITION BY {key};"));
        for (place, bound) in bounds.iter().enumerate() {
            let bound = if *bound == "DEFAULT" { bound.to_string() } else { format!("FOR VALUES {bound}") };
            made.push_str(&format!("CREATE TABLE {name}_{place} PARTITION OF {name} {bound};"));
        }
        made.push_str(&format!("CREATE INDEX ON {name} (b, a);"));
    }
    made.push_str(
        "INSERT INTO plain SELECT CASE WHEN i % 50 = 0 THEN NULL ELSE i END, CASE WHEN i % 31 = 0 THEN NULL ELSE 'x' || i % 11 END, \
         (i % 1000) / 100.0, timestamp '2020-01-01' + i * interval '1 minute' FROM generate_series(1, 3000) AS g(i);",
    );
    client.batch_execute(&made).await.unwrap();
    let conditions = [
        "TRUE",
        "a = 77",
        "a < 100",
        "a <= 100",
        "a BETWEEN 90 AND 110",
        "a IN (1, 2000, 2499, 2500)",
        "a IS NULL",
        "a IS NOT NULL",
        "a > 2600",
        "NOT a > 99",
        "a <> 5 AND a < 9",
        "b = 'x5'",
        "b IN ('x2', 'x7')",
        "b IS NULL",
        "b > 'x5'",
        "b <= 'x1'",
        "b = 'x3' AND a = 3",
        "b = 'x4' AND a IN (4, 15)",
        "c = 3",
        "c = 3 AND a > 7",
        "c = 3 AND a = 300",
        "c < 3.01 AND a < 50",
        "c IN (3, 5, 8.99)",
        "d < '2020-01-02'",
        "d = '2020-01-02'",
        "d >= '2020-01-02 11:59' AND d < '2020-01-02 12:01'",
        "a = 1 OR a = 2001",
        "a % 2 = 0 AND b LIKE 'x1%'",
    ];
    for merged in [false, true] {
        for (name, ..) in by {
            if !merged {
                client.batch_execute(&format!("INSERT INTO {name} SELECT * FROM plain")).await.unwrap();
            } else {
                let sql =
                    format!("CALL tidepool.merge('{name}'); UPDATE {name} SET c = c + 1, a = a + 1 WHERE a % 7 = 0");
                client.batch_execute(&sql).await.unwrap();
            }
        }
        if merged {
            client.batch_execute("UPDATE plain SET c = c + 1, a = a + 1 WHERE a % 7 = 0").await.unwrap();
        }
        for condition in conditions {
            let query = |table: &str| {
                format!(
                    "SELECT count(*) * 1000000 + coalesce(sum(a), 0)::bigint + count(b) FROM {table} WHERE {condition}"
                )
            };
            let expected = cell(&client, &query("plain")).await;
            for (name, ..) in by {
                assert_eq!(cell(&client, &query(name)).await, expected, "{name}: {condition}, merged {merged}");
            }
        }
    }
}

#[test]
fn partitions_survive_a_killed_process_and_go_with_a_backup() {
    const MAKE: &str = "CREATE TABLE t (id bigint, k int, note text, PRIMARY KEY (id, k)) PARTITION BY RANGE (k);\n\
        CREATE TABLE old PARTITION OF t FOR VALUES FROM (MINVALUE) TO (10) TABLESPACE far;\n\
        CREATE TABLE new PARTITION OF t FOR VALUES FROM (10) TO (20) PARTITION BY HASH (id);\n\
        CREATE TABLE new0 PARTITION OF new FOR VALUES WITH (MODULUS 2, REMAINDER 0);\n\
        CREATE TABLE new1 PARTITION OF new FOR VALUES WITH (MODULUS 2, REMAINDER 1);\n\
        INSERT INTO t SELECT g, g % 20, 'note ' || g FROM generate_series(1, 40000) AS s(g);\n\
        CHECKPOINT;\n\
        UPDATE t SET k = (k + 10) % 20, note = 'moved' WHERE id % 100 = 0;\n\
        CREATE TABLE last PARTITION OF t FOR VALUES FROM (20) TO (30);\n\
        INSERT INTO t VALUES (1, 25, 'last');\n\
        CREATE INDEX ON t (note);\n";
    const ASK: &str = "SELECT count(*), sum(k), count(*) FILTER (WHERE note = 'moved'), (SELECT count(*) FROM new), \
        (SELECT count(*) FROM old), (SELECT note FROM t WHERE k = 25 AND id = 1), \
        (SELECT count(*) FROM t WHERE id = 77), (SELECT count(*) FROM pg_inherits) FROM t";
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let run = |arguments: &[&str]| {
        let output = tidepool().args(arguments).output().unwrap();
        (output.status.success(), format!("{}{}", text(&output.stdout), text(&output.stderr)))
    };
    let ask = |url: &str| text(&sql(url, &["--format", "csv", "-c", ASK], "").stdout).to_owned();
    let server = serve(&folder.path().join("data"), &[]);
    let made = sql(&server.url, &[], MAKE);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let before = ask(&server.url);
    assert!(before.contains("40001,384025,400,20400,19600,last,1,15"), "{before}");
    let (made, told) = run(&["backup", &at("copy"), &server.url]);
    assert!(made, "{told}");
    server.signal(libc::SIGKILL);
    server.wait();

    let (sound, told) = run(&["check", "--data", &at("data")]);
    assert!(sound, "{told}");
    let server = serve(&folder.path().join("data"), &[]);
    assert_eq!(ask(&server.url), before);
    let refused = sql(&server.url, &["-c", "INSERT INTO t VALUES (5, 30, 'nowhere')"], "");
    assert!(
        text(&refused.stderr).contains("no partition of relation \"t\" found for row"),
        "{}",
        text(&refused.stderr)
    );
    let (sound, told) = run(&["check", &server.url]);
    assert!(sound, "{told}");
    server.signal(libc::SIGTERM);
    assert!(server.wait().0);

    let (restored, told) = run(&["restore", &at("copy"), "--data", &at("restored")]);
    assert!(restored, "{told}");
    let server = serve(&folder.path().join("restored"), &[]);
    assert_eq!(ask(&server.url), before);
    server.signal(libc::SIGTERM);
    assert!(server.wait().0);
}
