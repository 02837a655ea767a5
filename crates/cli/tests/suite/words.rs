//! What a user sees is in SQL's words: no error, no hint and no plan names what the libraries below call their own.

use crate::account::lines;
use crate::server::TestServer;
use tokio_postgres::error::ErrorPosition;

/// Parts of words that mean something only to who knows the libraries.
const INTERNAL: [&str; 26] = [
    "Int8",
    "Int16",
    "Int32",
    "Int64",
    "Utf8",
    "Float32",
    "Float64",
    "Decimal128",
    "Decimal256",
    "Date32",
    "BinaryView",
    "Boolean(",
    "Timestamp(",
    "Interval(",
    "Struct(",
    "List(",
    "Arrow",
    "DataFusion",
    "LogicalPlan",
    "logical expression",
    "hysical plan",
    "hysical expr",
    "TableScan",
    "SchemaError",
    "sqltorel",
    "tidepool_",
];

fn internal(text: &str) -> Option<&'static str> {
    let is_operator = |word: &str| word.ends_with("Exec");
    let operator = text.split(|c: char| !c.is_alphanumeric()).any(is_operator).then_some("Exec");
    INTERNAL.into_iter().find(|part| text.contains(part)).or(operator)
}

/// With SQLSTATE and message where they are PostgreSQL's.
const REFUSED: [(&str, &str, &str); 47] = [
    ("SELECT a COLLATE \"de_DE\" FROM t", "0A000", ""),
    ("SELECT b FROM t ORDER BY b COLLATE \"en_US\"", "0A000", ""),
    ("SELECT ROW(1,2)::int", "42846", "cannot cast type record to integer"),
    ("SELECT CAST(f AS bytea) FROM t", "42846", "cannot cast type date to bytea"),
    ("SELECT CAST(v AS int) FROM t", "42846", "cannot cast type interval to integer"),
    ("SELECT CAST(h AS int) FROM t", "42846", "cannot cast type bytea to integer"),
    ("SELECT CAST(g AS date) FROM t", "42846", "cannot cast type boolean to date"),
    (
        "SELECT GROUPING(c) FROM t GROUP BY a",
        "42803",
        "arguments to GROUPING must be grouping expressions of the associated query level",
    ),
    (
        "SELECT a, GROUPING(a, b, c) FROM t GROUP BY ROLLUP (a)",
        "42803",
        "arguments to GROUPING must be grouping expressions of the associated query level",
    ),
    (
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n FROM r WHERE n NOT IN (SELECT n FROM r)) SELECT * FROM r",
        "42P19",
        "",
    ),
    (
        "WITH RECURSIVE r AS (SELECT 1 UNION ALL SELECT r.*, 2 FROM r) SELECT * FROM r",
        "42601",
        "each UNION query must have the same number of columns",
    ),
    ("SELECT a FROM t WHERE row_number() OVER () = 1", "42P20", "window functions are not allowed in WHERE"),
    ("SELECT a FROM t GROUP BY row_number() OVER ()", "42P20", "window functions are not allowed in GROUP BY"),
    ("SELECT 1 FROM t HAVING row_number() OVER () = 1", "42P20", "window functions are not allowed in HAVING"),
    (
        "SELECT * FROM t JOIN s ON row_number() OVER () = 1",
        "42P20",
        "window functions are not allowed in JOIN conditions",
    ),
    ("SELECT * FROM t JOIN s ON sum(a) > 1", "42803", "aggregate functions are not allowed in JOIN conditions"),
    ("SELECT * FROM t JOIN s ON stddev_pop(a) > 1", "42803", "aggregate functions are not allowed in JOIN conditions"),
    ("INSERT INTO t(a) VALUES (sum(1))", "42803", "aggregate functions are not allowed in VALUES"),
    ("INSERT INTO t(a) VALUES (row_number() OVER ())", "42P20", "window functions are not allowed in VALUES"),
    ("DELETE FROM t RETURNING sum(a)", "42803", "aggregate functions are not allowed in RETURNING"),
    (
        "SELECT sum(row_number() OVER ()) FROM t",
        "42803",
        "aggregate function calls cannot contain window function calls",
    ),
    ("SELECT sum(a) OVER w FROM t", "42704", "window \"w\" does not exist"),
    (
        "SELECT percentile_cont(2) WITHIN GROUP (ORDER BY a) FROM t",
        "22003",
        "percentile value 2 is not between 0 and 1",
    ),
    ("SELECT NOT a FROM t", "42804", "argument of NOT must be type boolean, not type integer"),
    ("SELECT a AND g FROM t", "42804", "argument of AND must be type boolean, not type integer"),
    ("SELECT -b FROM t", "42883", "operator does not exist: - text"),
    ("SELECT v * v FROM t", "42883", "operator does not exist: interval * interval"),
    ("SELECT a LIKE 1 FROM t", "42883", "operator does not exist: integer ~~ integer"),
    ("SELECT ARRAY[1, true]", "42804", ""),
    ("SELECT coalesce(1, now())", "42804", ""),
    ("SELECT greatest(1, true)", "42804", ""),
    ("SELECT a[1] FROM t", "42804", ""),
    (
        "SELECT DISTINCT a FROM t ORDER BY b",
        "42P10",
        "for SELECT DISTINCT, ORDER BY expressions must appear in select list",
    ),
    (
        "SELECT DISTINCT ON (a) a FROM t ORDER BY b",
        "42P10",
        "SELECT DISTINCT ON expressions must match initial ORDER BY expressions",
    ),
    ("SELECT a FROM t GROUP BY 7", "42P10", "GROUP BY position 7 is not in select list"),
    ("SELECT a FROM t LIMIT true", "42804", "argument of LIMIT must be type bigint, not type boolean"),
    ("SELECT a FROM t LIMIT (SELECT x FROM s)", "0A000", ""),
    (
        "SELECT a FROM t INTERSECT SELECT x, y FROM s",
        "42601",
        "each INTERSECT query must have the same number of columns",
    ),
    ("VALUES (1, 2), (3)", "42601", "VALUES lists must all be the same length"),
    ("SELECT * FROM generate_series(1, 10, 0)", "22023", "step size cannot equal zero"),
    ("SELECT sum(generate_series(1, 3))", "0A000", ""),
    ("SELECT e @> e FROM t", "0A000", ""),
    ("SELECT b'101'", "0A000", "bit strings are not supported"),
    ("SELECT a := 1 FROM t", "42601", "syntax error at or near \":=\""),
    ("SELECT ROW(t.*) FROM t", "0A000", ""),
    ("SELECT date_trunc('foo', d) FROM t", "22023", ""),
    ("SELECT a FROM t UNION ALL SELECT x FROM s ORDER BY b", "42703", "column \"b\" does not exist"),
];

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_in_plain_words() {
    let (_server, client) = TestServer::start_connected().await;
    client
        .batch_execute(
            "CREATE TABLE t (a int, b text, c numeric(5,2), d timestamp, e json, f date, g boolean, h bytea, u uuid, v interval);
             CREATE TABLE s (x int, y text);
             INSERT INTO t VALUES (1, 'one', 1.5, '2020-01-01', '{}', '2020-01-01', true, 'x', gen_random_uuid(), '1 day');
             INSERT INTO s VALUES (1, 'one'), (3, 'three')",
        )
        .await
        .unwrap();
    let mut wrong = Vec::new();
    for (sql, code, message) in REFUSED {
        let error = match client.batch_execute(sql).await {
            Ok(()) => {
                wrong.push(format!("{sql}\n  is not refused"));
                continue;
            }
            Err(error) => error.as_db_error().unwrap().clone(),
        };
        let texts = [error.message(), error.detail().unwrap_or(""), error.hint().unwrap_or("")];
        if let Some(part) = texts.iter().find_map(|text| internal(text)) {
            wrong.push(format!("{sql}\n  {part} in {texts:?}"));
        } else if error.code().code() != code || !message.is_empty() && error.message() != message {
            wrong.push(format!("{sql}\n  {} {texts:?}", error.code().code()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn plans_are_in_plain_words() {
    let (_server, client) = TestServer::start_connected().await;
    client.batch_execute("CREATE TABLE t (a int PRIMARY KEY, b text, c numeric(5,2))").await.unwrap();
    for sql in [
        "SELECT 1, 1.5, 'x', true, now()",
        "SELECT * FROM t WHERE b > 'x' AND c <> 1.25 OR a = 7",
        "SELECT a, row_number() OVER (ORDER BY b), random() FROM t ORDER BY random() LIMIT 3",
        "SELECT x.a, count(*) FROM t x LEFT JOIN t y ON x.a < y.a AND y.b LIKE 'q%' GROUP BY 1 HAVING count(*) > 2",
        "SELECT a FROM t UNION ALL SELECT 1 INTERSECT SELECT a::int FROM t WHERE a IN (SELECT length(b) FROM t)",
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 9) SELECT * FROM r, generate_series(1, 3)",
        "SELECT unnest(ARRAY[1,2]), interval '1 day', '2020-01-01'::timestamptz",
        "INSERT INTO t VALUES (1, 'a', 2.5), (2, 'b', NULL)",
        "UPDATE t SET c = c * 2 WHERE b IS NULL",
        "VALUES (1, 'x'), (2, NULL)",
    ] {
        for options in [
            "",
            "(VERBOSE)",
            "(FORMAT TREE)",
            "(FORMAT JSON, VERBOSE)",
            "(FORMAT YAML)",
            "(FORMAT XML)",
            "(ANALYZE, VERBOSE)",
        ] {
            // A statement that writes is not to do it again and again.
            if options.contains("ANALYZE") && sql.starts_with("INSERT") {
                continue;
            }
            let plan = lines(&client, &format!("EXPLAIN {options} {sql}")).await.join("\n");
            assert_eq!(internal(&plan), None, "EXPLAIN {options} {sql}:\n{plan}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plans_are_documents_too() {
    let (_server, client) = TestServer::start_connected().await;
    client.batch_execute("CREATE TABLE t (a int PRIMARY KEY, b text NOT NULL)").await.unwrap();
    // As a client of the protocol prepares it and asks for its plan.
    let prepared = client.prepare("SELECT x.a, y.b FROM t x LEFT JOIN t y ON x.a = y.a WHERE x.a > $1").await.unwrap();
    let held = client.query_one("SELECT count(*) FROM t WHERE $1::int IS NULL", &[&1]).await.unwrap();
    assert_eq!(held.get::<_, i64>(0), 0);
    drop(prepared);
    client
        .batch_execute("PREPARE q AS SELECT x.a, y.b FROM t x LEFT JOIN t y ON x.a = y.a WHERE x.a > $1")
        .await
        .unwrap();
    let row = client.query_one("EXPLAIN (ANALYZE, VERBOSE, FORMAT JSON) EXECUTE q(1)", &[]).await.unwrap();
    assert_eq!(row.columns()[0].type_().name(), "json");
    let document: serde_json::Value =
        serde_json::from_str(&lines(&client, "EXPLAIN (ANALYZE, VERBOSE, FORMAT JSON) EXECUTE q(1)").await.join("\n"))
            .unwrap();
    let plan = &document[0]["Plan"];
    assert_eq!(plan["Output"], serde_json::json!(["a", "b"]));
    assert!(document[0]["Execution Time"].is_number(), "{document}");
    fn joins(plan: &serde_json::Value) -> usize {
        let below = plan["Plans"].as_array().map_or(0, |plans| plans.iter().map(joins).sum());
        below + usize::from(plan["Join Type"] == "Left" && plan["Plans"][1]["Parent Relationship"] == "Inner")
    }
    assert_eq!(joins(plan), 1, "{document}");
    let yaml = lines(&client, "EXPLAIN (FORMAT YAML) SELECT 1").await.join("\n");
    assert!(yaml.starts_with("- Plan: \n    Node Type: "), "{yaml}");
    let xml = lines(&client, "EXPLAIN (FORMAT XML) SELECT 1").await.join("\n");
    assert!(xml.starts_with("<explain xmlns") && xml.ends_with("</explain>"), "{xml}");
    let error = client.batch_execute("EXPLAIN (FORMAT HTML) SELECT 1").await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "22023");
}

/// Where PostgreSQL says that the name is which an error is about: the part of the text from there on. Empty: it says nothing.
const NAMED: [(&str, &str); 44] = [
    ("SELECT * FROM tripz", "tripz"),
    ("SELECT * FROM public.tripz", "public.tripz"),
    ("SELECT * FROM nosuch.tripz", "nosuch.tripz"),
    ("SELECT * FROM trips NATURAL JOIN dd", "dd"),
    ("INSERT INTO tripz VALUES (1)", "tripz VALUES (1)"),
    ("UPDATE tripz SET a = 1", "tripz SET a = 1"),
    ("DELETE FROM tripz", "tripz"),
    ("DROP TABLE tripz", ""),
    ("TRUNCATE tripz", ""),
    ("SELECT a FROM trips WHERE zz > 1", "zz > 1"),
    ("SELECT trips.x FROM trips", "trips.x FROM trips"),
    ("SELECT \"Note\" FROM trips", "\"Note\" FROM trips"),
    ("SELECT t.note, é FROM trips t", "é FROM trips t"),
    ("SELECT 'x' AS zz, zz FROM trips", "zz FROM trips"),
    ("SELECT a FROM trips ORDER BY bb", "bb"),
    ("SELECT count(*) FROM trips GROUP BY zz", "zz"),
    ("SELECT * FROM trips JOIN d ON zz = 1", "zz = 1"),
    ("SELECT * FROM trips JOIN d ON d.zz = trips.a", "d.zz = trips.a"),
    ("SELECT a FROM trips, d", "a FROM trips, d"),
    ("SELECT z.a FROM trips t", "z.a FROM trips t"),
    ("SELECT trips.*, zz.* FROM trips", "zz.* FROM trips"),
    ("WITH x AS (SELECT zz FROM trips) SELECT * FROM x", "zz FROM trips) SELECT * FROM x"),
    ("SELECT * FROM trips, (SELECT qq FROM d) s", "qq FROM d) s"),
    ("SELECT a, count(*) FROM trips GROUP BY note", "a, count(*) FROM trips GROUP BY note"),
    ("SELECT a FROM trips UNION SELECT zz FROM d", "zz FROM d"),
    ("SELECT * FROM trips WHERE a IN (SELECT zz FROM d)", "zz FROM d)"),
    ("INSERT INTO trips (b) VALUES (1)", "b) VALUES (1)"),
    ("INSERT INTO d (id, a) VALUES (1, zz)", "zz)"),
    ("INSERT INTO d VALUES (1, 'x') RETURNING zz", "zz"),
    ("UPDATE trips SET q = 1", "q = 1"),
    ("UPDATE trips SET a = zz", "zz"),
    ("DELETE FROM trips WHERE zz = 1", "zz = 1"),
    ("CREATE TABLE made AS SELECT zz FROM trips", "zz FROM trips"),
    ("CREATE VIEW seen AS SELECT zz FROM trips", "zz FROM trips"),
    ("EXPLAIN SELECT zz FROM trips", "zz FROM trips"),
    ("CREATE INDEX ON trips (zz)", ""),
    ("ALTER TABLE trips DROP COLUMN zz", ""),
    ("SELECT lowr(note) FROM trips", "lowr(note) FROM trips"),
    ("SELECT public.lowr(1)", "public.lowr(1)"),
    ("SELECT note = 1 FROM trips", "= 1 FROM trips"),
    ("SELECT a::intt FROM trips", "intt FROM trips"),
    ("SELECT CAST(a AS intt) FROM trips", "intt) FROM trips"),
    ("CREATE TABLE made (a intt)", "intt)"),
    ("SELECT sum(a) OVER w FROM trips", "w FROM trips"),
];

#[tokio::test(flavor = "multi_thread")]
async fn errors_about_names_have_positions() {
    let (_server, client) = TestServer::start_connected().await;
    client
        .batch_execute("CREATE TABLE trips (a int, note text); CREATE TABLE d (id bigint PRIMARY KEY, a text)")
        .await
        .unwrap();
    let mut wrong = Vec::new();
    // A position counts from the beginning of all that the client sent.
    for before in ["", "SELECT 'é'; "] {
        for (sql, from) in NAMED {
            let text = format!("{before}{sql}");
            let error = client.batch_execute(&text).await.unwrap_err();
            let error = error.as_db_error().unwrap();
            let found = match error.position() {
                Some(ErrorPosition::Original(position)) => text.chars().skip(*position as usize - 1).collect(),
                _ => String::new(),
            };
            if found != from {
                wrong.push(format!("{text}\n  {} at \"{found}\", not at \"{from}\"", error.message()));
            }
        }
    }
    // And so it does where a statement is prepared.
    let error = client.prepare("SELECT note, zz FROM trips").await.unwrap_err();
    assert_eq!(error.as_db_error().unwrap().position(), Some(&ErrorPosition::Original(14)));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
