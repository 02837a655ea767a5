//! What `EXPLAIN (ANALYZE)` tells of the engine's operators, held against what is known of the data and of the statement.

use crate::account::lines;
use crate::server::TestServer;
use tokio_postgres::Client;

/// The details of the first operator whose line has these words, the line itself first.
fn operator<'p>(plan: &'p [String], words: &str) -> &'p [String] {
    let is_operator = |line: &String| line.trim_start().starts_with("->");
    let start = plan.iter().position(|line| is_operator(line) && line.contains(words));
    let start = start.unwrap_or_else(|| panic!("no {words} in {plan:#?}"));
    let len = plan[start + 1..].iter().take_while(|line| !is_operator(line) && line.starts_with(' ')).count();
    &plan[start..=start + len]
}

/// What follows `name: ` in an operator's details.
fn detail<'p>(operator: &'p [String], name: &str) -> &'p str {
    let text = operator.iter().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(": "));
    text.unwrap_or_else(|| panic!("no {name} in {operator:#?}"))
}

/// The number after a word.
fn number(text: &str, word: &str) -> f64 {
    let rest = text.split_once(word).unwrap_or_else(|| panic!("no {word} in {text}")).1;
    rest.trim_start().split([' ', ',']).next().unwrap().parse().unwrap()
}

/// `N B in TABLESPACE, …` as bytes by tablespace.
fn memory(operator: &[String]) -> Vec<(String, u64)> {
    let part = |part: &str| {
        let (bytes, tablespace) = part.split_once(" B in ").unwrap();
        (tablespace.to_owned(), bytes.parse().unwrap())
    };
    detail(operator, "Memory").split(", ").map(part).collect()
}

async fn analyzed(client: &Client, query: &str) -> Vec<String> {
    lines(client, &format!("EXPLAIN (ANALYZE, VERBOSE) {query}")).await
}

/// Rows of `big`, of which `small` has every fifth.
const ROWS: u64 = 300_000;

async fn filled(tablespace: &str) -> (TestServer, Client) {
    let (server, client) = TestServer::start_connected().await;
    client
        .batch_execute(&format!(
            "CREATE TABLESPACE slow LOCATION 'anon:' WITH (size = '128MB', profile = 'cxl-asic');
             CREATE TABLESPACE tiny LOCATION 'anon:' WITH (size = '4MB');
             CREATE TABLE big TABLESPACE {tablespace} AS
                 SELECT value AS id, value::bigint * 7919 % 1000003 AS hash, value / 3 AS part, value % 7 AS weekday,
                        md5(value::text) AS digest
                 FROM generate_series(1, {ROWS}) AS s(value);
             CREATE TABLE small TABLESPACE {tablespace} AS
                 SELECT id, hash, part, digest FROM big WHERE id % 5 = 0;
             CREATE TABLE lined TABLESPACE {tablespace} AS SELECT value AS id FROM generate_series(1, 100000) AS s(value)
                 ORDER BY id;"
        ))
        .await
        .unwrap();
    for table in ["big", "small", "lined"] {
        client.batch_execute(&format!("CALL tidepool.merge('{table}')")).await.unwrap();
    }
    (server, client)
}

#[tokio::test(flavor = "multi_thread")]
async fn scans_tell_what_they_read_and_decode_by_tablespace() {
    let (server, client) = filled("slow").await;
    let encoded = "SELECT bytes_encoded FROM tidepool.tables WHERE table_name = 'big' AND column_name = 'hash'";
    let encoded = client.query_one(encoded, &[]).await.unwrap().get::<_, i64>(0) as f64;
    let stalled = || async {
        let pacing = "SELECT stall_ms FROM tidepool.pacing WHERE tablespace = 'slow' AND purpose = 'main'";
        client.query_opt(pacing, &[]).await.unwrap().map_or(0.0, |row| row.get::<_, f64>(0))
    };
    let before = stalled().await;
    let plan = analyzed(&client, "SELECT sum(hash) FROM big").await;
    let accounted_ms = stalled().await - before;
    let scan = operator(&plan, "Scan: ");
    assert!(scan[0].contains(&format!("rows={ROWS})")), "{scan:#?}");
    let read = detail(scan, "Tablespace slow");
    // All of the column but its header and statistics.
    let bytes = number(read, "read");
    assert!(bytes <= encoded && bytes > 0.98 * encoded, "{bytes} of {encoded}: {scan:#?}");
    assert_eq!(number(read, "decoded"), (8 * ROWS) as f64, "{scan:#?}");
    let stall_ms = number(read, "stalled");
    assert!(stall_ms > 0.0 && (stall_ms - accounted_ms).abs() < 0.002, "{stall_ms} of {accounted_ms}: {scan:#?}");

    // Columns of two tablespaces are told apart.
    client.batch_execute("ALTER TABLE big ALTER COLUMN hash SET TABLESPACE near").await.unwrap();
    let plan = analyzed(&client, "SELECT sum(hash), sum(id) FROM big").await;
    let scan = operator(&plan, "Scan: ");
    let near = detail(scan, "Tablespace near");
    assert_eq!((number(near, "read"), number(near, "decoded")), (bytes, (8 * ROWS) as f64), "{scan:#?}");
    assert_eq!(number(near, "stalled"), 0.0, "{scan:#?}");
    assert_eq!(number(detail(scan, "Tablespace slow"), "decoded"), (8 * ROWS) as f64, "{scan:#?}");

    // Rows that are not merged lie where the table has them.
    let some = "INSERT INTO big SELECT id + 1000000, hash, part, 1, digest FROM small WHERE id <= 5000";
    client.batch_execute(some).await.unwrap();
    let plan = analyzed(&client, "SELECT sum(hash) FROM big").await;
    let scan = operator(&plan, "Scan: ");
    let decoded = ["near", "slow"].map(|name| number(detail(scan, &format!("Tablespace {name}")), "decoded"));
    assert_eq!(decoded, [(8 * ROWS) as f64, 8.0 * 1000.0], "{scan:#?}");
    drop(client);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_tell_where_they_hold_how_much() {
    let (server, client) = filled("near").await;
    let queries = [
        ("SELECT count(*), sum(b.id) FROM big b JOIN big s ON b.hash = s.hash AND b.part = s.part", "Inner join", 24),
        ("SELECT digest, count(*) FROM big GROUP BY digest ORDER BY 2, 1 LIMIT 1", "Aggregate by [#0]", 40),
        ("SELECT id, hash, digest FROM big ORDER BY digest", "Sort: ", 48),
        ("SELECT id, sum(hash) OVER (PARTITION BY part ORDER BY id) FROM big", "Window by", 24),
    ];
    for (query, words, row_bytes) in queries {
        for spaces in ["far", "near", "tiny, far"] {
            client.batch_execute(&format!("SET temp_tablespaces = {spaces}")).await.unwrap();
            let plan = analyzed(&client, query).await;
            let held = memory(operator(&plan, words));
            let names: Vec<&str> = held.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names.join(", "), spaces, "{query}: {plan:#?}");
            let total: u64 = held.iter().map(|(_, bytes)| bytes).sum();
            assert!((row_bytes * ROWS..100 * row_bytes * ROWS).contains(&total), "{query} in {spaces}: {plan:#?}");
            // No operator holds more than the statement did.
            let peaks =
                "SELECT heap_bytes_peak FROM tidepool.queries WHERE query LIKE 'EXPLAIN%' ORDER BY id DESC LIMIT 1";
            let peak = client.query_one(peaks, &[]).await.unwrap().get::<_, i64>(0) as u64;
            assert!(total <= peak, "{total} of {peak} in {query} in {spaces}: {plan:#?}");
        }
    }
    drop(client);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_tell_how_they_went_about_it() {
    let (server, client) = filled("near").await;
    let told = [
        (
            "SELECT count(*), sum(s.part) FROM big b JOIN small s USING (id)",
            "Inner join",
            "Join Method: array of rows by key 5 to 300000",
        ),
        (
            "SELECT sum(id) FROM big b WHERE EXISTS (SELECT FROM small s WHERE s.id = b.id)",
            "join",
            "Join Method: bitmap of keys 5 to 300000",
        ),
        ("SELECT sum(b.id), sum(s.id) FROM big b JOIN small s USING (id, part)", "Inner join", "as there are 2 keys"),
        ("SELECT sum(b.id), sum(s.id) FROM big b JOIN small s USING (digest)", "Inner join", "as the key is text"),
        (
            "SELECT sum(b.id), sum(s.id) FROM big b JOIN small s ON b.id = s.hash * 1000000",
            "Inner join",
            "are too far apart for 60000 rows",
        ),
        (
            "SELECT sum(b.id) FROM big b JOIN small s ON b.id < s.id AND s.id < 15",
            "Inner join",
            "Join Method: nested loop over 2 rows",
        ),
        (
            "SELECT count(*), sum(s.part) FROM big b JOIN small s USING (id)",
            "Inner join",
            "Keys in Scan: bitmap of #0, 60000 of ",
        ),
        (
            "SELECT weekday, count(*) FROM big GROUP BY weekday",
            "Aggregate",
            "Aggregate Method: by number, as the keys' bounds leave no more than 7 groups",
        ),
        ("SELECT sum(id) FROM big", "Aggregate", "Aggregate Method: one group, as there are no keys"),
        (
            "SELECT id, count(*) FROM lined GROUP BY id",
            "Aggregate",
            "Aggregate Method: as they come, as rows are in the order of a key",
        ),
        (
            "SELECT hash, count(*) FROM big GROUP BY hash",
            "Aggregate",
            "Aggregate Method: by hash, as the keys' bounds leave more than 75000 groups",
        ),
        ("SELECT hash, count(*) FROM big GROUP BY hash", "Aggregate", "Partitioned: tables outgrew the cache; times="),
        (
            "SELECT digest, count(*) FROM small GROUP BY digest",
            "Aggregate",
            "Aggregate Method: by hash, as a key is text",
        ),
        ("SELECT id FROM big ORDER BY hash LIMIT 10", "Sort", "Sort Method: top-N, as only the first 10 are wanted"),
        ("SELECT id FROM big ORDER BY hash", "Sort", "Sort Method: full sort; rows=300000 runs="),
        ("SELECT id, rank() OVER (ORDER BY hash) FROM big", "Window", "Sort Method: full sort; rows=300000 runs="),
    ];
    for (query, words, expected) in told {
        let plan = analyzed(&client, query).await;
        let details = operator(&plan, words);
        assert!(details.iter().any(|line| line.contains(expected)), "no {expected} in {query}: {plan:#?}");
    }
    // Whoever does not analyse is told none of it.
    let plan = lines(&client, "EXPLAIN SELECT hash, count(*) FROM big GROUP BY hash").await;
    assert!(!plan.iter().any(|line| line.contains("Method") || line.contains("Memory")), "{plan:#?}");
    // Statements that write run queries, too.
    let plan = analyzed(&client, "CREATE TABLE copy AS SELECT hash, count(*) FROM big GROUP BY hash").await;
    assert!(detail(operator(&plan, "Aggregate"), "Aggregate Method").starts_with("by hash"), "{plan:#?}");
    drop(client);
    server.stop().await;
}

#[tokio::test]
async fn what_occurs_twice_is_computed_once() {
    let (_server, client) = filled("near").await;
    let groups = "SELECT weekday, count(*) AS rows FROM big WHERE part < 50000 GROUP BY weekday";
    let plan = analyzed(&client, &format!("SELECT sum(a.rows * b.rows) FROM ({groups}) a, ({groups}) b")).await;
    let has = |words: &str| plan.iter().filter(|line| line.contains(words)).count();
    assert_eq!((has("Rows: $rows0"), has("Scan: "), has("Subqueries: $rows0")), (2, 1, 1), "{plan:#?}");
    // Each is narrowed to some groups of its own, which a scan is told of.
    let narrow = |part: u64| {
        format!(
            "SELECT part, count(*) AS rows FROM big GROUP BY part) AS of_{part} JOIN small AS s{part} ON s{part}.part = of_{part}.part AND s{part}.id = {part}"
        )
    };
    let query = format!("SELECT * FROM ({}, ({}", narrow(1000), narrow(2000));
    let plan = analyzed(&client, &query).await;
    let narrowed = plan.iter().filter(|line| line.contains("Keys in Scan")).count();
    assert!(narrowed >= 2 && !plan.iter().any(|line| line.contains("$rows")), "{plan:#?}");
}

#[tokio::test]
async fn groups_are_made_below_a_join_where_they_are_few() {
    let (_server, client) = filled("near").await;
    let names = "CREATE TABLE names AS SELECT i AS weekday, 'day ' || i AS name FROM generate_series(0, 6) AS s(i)";
    client.batch_execute(names).await.unwrap();
    let plan = |join: &'static str| {
        let client = &client;
        async move {
            let query = format!("SELECT name, count(*), sum(hash) FROM big JOIN names ON {join} GROUP BY name");
            analyzed(client, &query).await
        }
    };
    let joined_rows = |plan: &[String]| {
        let line = plan.iter().find(|line| line.contains("Inner join")).cloned().unwrap();
        let rows = line.rsplit("rows=").next().and_then(|rest| rest.trim_end_matches(')').parse::<u64>().ok());
        rows.unwrap_or_else(|| panic!("{line}"))
    };
    let few = plan("big.weekday = names.weekday").await;
    assert_eq!(
        (joined_rows(&few), few.iter().filter(|line| line.contains("Aggregate by")).count()),
        (7, 2),
        "{few:#?}"
    );
    // Each row has a key of its own.
    let many = plan("big.id = names.weekday").await;
    assert_eq!(many.iter().filter(|line| line.contains("Aggregate by")).count(), 1, "{many:#?}");
}

#[tokio::test]
async fn what_follows_from_keys_and_conditions_is_not_worked_for() {
    let (_server, client) = filled("near").await;
    client
        .batch_execute(
            "CREATE TABLE days (weekday int NOT NULL PRIMARY KEY, name text, part int);
             INSERT INTO days SELECT i, 'day ' || i, i FROM generate_series(0, 6) AS s(i);",
        )
        .await
        .unwrap();
    let has = |plan: &[String], words: &str| plan.iter().filter(|line| line.contains(words)).count();
    // A name follows from a key; the numbers of `big` follow from nothing.
    let query = "SELECT days.weekday, name, big.part % 2, max(hash) FROM big JOIN days ON big.weekday = days.weekday
                 WHERE big.id % 3 = days.part GROUP BY 1, 2, 3";
    let plan = analyzed(&client, query).await;
    assert_eq!(has(&plan, "anyvalue("), 1, "{plan:#?}");
    let query = "SELECT small.id, small.part, max(big.hash) FROM big JOIN small ON big.id = small.id GROUP BY 1, 2";
    let plan = analyzed(&client, query).await;
    assert_eq!(has(&plan, "anyvalue("), 0, "{plan:#?}");

    let outer = "big LEFT JOIN small ON big.id = small.id";
    let kinds = |plan: &[String]| {
        let kind =
            |line: &String| line.trim_start().strip_prefix("->  ")?.split_once(" join: ").map(|it| it.0.to_owned());
        let mut kinds: Vec<String> = plan.iter().filter_map(kind).collect();
        kinds.sort();
        kinds.join(", ")
    };
    let plan =
        analyzed(&client, &format!("SELECT sum(big.hash) FROM {outer}, days WHERE small.part = days.part")).await;
    assert_eq!(kinds(&plan), "Inner, Inner", "{plan:#?}");
    let plan =
        analyzed(&client, &format!("SELECT sum(big.hash), min(small.part) FROM {outer} WHERE small.id IS NULL")).await;
    assert!(["LeftAnti", "RightAnti"].contains(&kinds(&plan).as_str()), "{plan:#?}");
    let plan = analyzed(&client, &format!("SELECT sum(big.hash) FROM {outer} WHERE small.part IS NULL")).await;
    assert!(["Left", "Right"].contains(&kinds(&plan).as_str()), "{plan:#?}");
}

#[tokio::test]
async fn only_what_is_wanted_of_partitions_and_sets_is_worked_for() {
    let (_server, client) = filled("near").await;
    let ranked = "SELECT * FROM (SELECT id, rank() OVER (PARTITION BY weekday ORDER BY hash) AS place FROM big) t";
    let plan = analyzed(&client, &format!("{ranked} WHERE place <= 10")).await;
    let first = detail(operator(&plan, "Window by"), "First Rows");
    // All but a few hundred of a worker's rows.
    assert!(number(first, "rank 10,") > 0.9 * ROWS as f64, "{first}");
    let plan = analyzed(&client, &format!("{ranked} WHERE place >= 10")).await;
    assert!(!plan.iter().any(|line| line.contains("First Rows")), "{plan:#?}");

    let sets = "SELECT weekday, rest, count(*), sum(hash) FROM (SELECT weekday, id % 100 AS rest, hash FROM big) t
                GROUP BY ROLLUP (weekday, rest)";
    let plan = analyzed(&client, sets).await;
    let made = detail(operator(&plan, "Aggregate by sets"), "Grouping Sets");
    assert!(made.starts_with("1 of 3"), "{made}");
    let of_all = operator(&plan, "Aggregate by [#0, #1]");
    assert!(of_all[0].contains("rows=700)"), "{of_all:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_of_a_part_of_a_text_is_expected_to_have_few_values() {
    let (_server, client) = TestServer::start_connected().await;
    // 900 states, of 30 first letters.
    let states = "SELECT chr(65 + g % 30) || chr(65 + g / 30 % 30) FROM generate_series(0, 8999) g";
    for sql in [
        format!("CREATE TABLE customer AS {}", states.replace(" FROM", " AS state FROM")),
        "CREATE TABLE nation AS SELECT 65 + g AS code FROM generate_series(0, 29) g".to_owned(),
    ] {
        client.batch_execute(&sql).await.unwrap();
    }
    let query = "EXPLAIN SELECT count(*) FROM customer, nation WHERE ascii(substring(state FROM 1 FOR 1)) = code";
    let lines: Vec<String> = client.query(query, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    let join = lines.iter().find(|line| line.contains("Inner join")).unwrap_or_else(|| panic!("{lines:#?}"));
    let rows = join.rsplit("rows=").next().and_then(|rest| rest.trim_end_matches(')').parse::<u64>().ok());
    // Each customer has a nation.
    assert!(rows.is_some_and(|rows| (4_500..=18_000).contains(&rows)), "{lines:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn scans_tell_what_is_still_in_delta() {
    let (_server, client) = TestServer::start_connected().await;
    client
        .batch_execute(
            "CREATE TABLESPACE slow LOCATION 'anon:' WITH (size = '64MB', profile = 'cxl-asic');
             CREATE TABLE parts (id int PRIMARY KEY, weight int);
             ALTER TABLE parts ALTER COLUMN weight SET TABLESPACE slow;
             INSERT INTO parts SELECT n, n FROM generate_series(1, 5) AS s(n)",
        )
        .await
        .unwrap();
    let note = async |query: &str| {
        let plan = analyzed(&client, query).await;
        plan.iter().find_map(|line| line.trim().strip_prefix("Rows Not Yet Merged: ")).map(str::to_owned)
    };
    let of_all = note("SELECT sum(weight) FROM parts").await.unwrap();
    assert!(of_all.starts_with("5, in delta in near;"), "{of_all}");
    client.batch_execute("CALL tidepool.merge('parts')").await.unwrap();
    assert_eq!(note("SELECT sum(weight) FROM parts").await, None);
    client.batch_execute("UPDATE parts SET weight = 0 WHERE id = 3").await.unwrap();
    let of_one = note("SELECT sum(weight) FROM parts").await.unwrap();
    assert!(of_one.starts_with("1, in delta in near;"), "{of_one}");
}
