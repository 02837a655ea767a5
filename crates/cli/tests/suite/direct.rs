//! Statements that go to their rows without a plan do what planned ones do: random statements over random tables, each by
//! both paths, with the same rows, errors and effects.

use crate::server::{TestServer, code};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tokio_postgres::{Client, SimpleQueryMessage};

const TYPES: [&str; 10] = [
    "int",
    "bigint",
    "smallint",
    "text",
    "varchar(4)",
    "numeric(8,2)",
    "date",
    "boolean",
    "timestamp",
    "double precision",
];

struct Made {
    types: Vec<&'static str>,
    /// Columns of the primary key.
    key: usize,
}

fn literal(random: &mut StdRng, of: &str) -> String {
    if random.random_ratio(1, 14) {
        return "NULL".to_owned();
    }
    let small = random.random_range(0..6);
    match of {
        "int" if random.random_ratio(1, 25) => "2147483647".to_owned(),
        "smallint" if random.random_ratio(1, 25) => "32767".to_owned(),
        "bigint" if random.random_ratio(1, 25) => "9223372036854775807".to_owned(),
        "int" | "bigint" | "smallint" if random.random_ratio(1, 12) => format!("-{small}"),
        "int" | "bigint" | "smallint" => small.to_string(),
        "text" => format!("'{}'", ["a", "b", "", "it''s", "é"].choose(random).unwrap()),
        "varchar(4)" => format!("'{}'", ["a", "ab", "abcd", "abcde", "ab      "].choose(random).unwrap()),
        "numeric(8,2)" => ["0", "1.5", "-2.25", "999999.99", "1000000", "0.005"].choose(random).unwrap().to_string(),
        "date" => format!("'2024-01-0{}'", small + 1),
        "boolean" => ["true", "false"].choose(random).unwrap().to_string(),
        "timestamp" => format!("'2024-01-01 00:00:0{small}'"),
        _ => ["0", "1.5", "-2.5e3"].choose(random).unwrap().to_string(),
    }
}

fn schema(random: &mut StdRng) -> (String, Made) {
    let count = random.random_range(3..7);
    let keyed = TYPES[..9].to_vec();
    let mut types: Vec<&'static str> = Vec::new();
    let key = random.random_range(1..3);
    for place in 0..count {
        types.push(if place < key { keyed.choose(random).unwrap() } else { TYPES.choose(random).unwrap() });
    }
    let mut columns: Vec<String> = types.iter().enumerate().map(|(place, of)| format!("c{place} {of}")).collect();
    let last = count - 1;
    match random.random_range(0..5) {
        0 => columns[last] += " NOT NULL",
        1 => columns[last] += &format!(" DEFAULT {}", literal(random, types[last])),
        2 if matches!(types[last], "int" | "bigint" | "numeric(8,2)") => {
            columns[last] += " CHECK (c".to_owned().as_str()
        }
        _ => {}
    }
    if columns[last].ends_with("(c") {
        columns[last] += &format!("{last} < 5)");
    }
    let keys: Vec<String> = (0..key).map(|place| format!("c{place}")).collect();
    let mut sql = format!("CREATE TABLE t ({}, PRIMARY KEY ({}));", columns.join(", "), keys.join(", "));
    if random.random_bool(0.6) {
        let order = ["", " DESC", " NULLS FIRST"].choose(random).unwrap();
        let unique = if random.random_ratio(1, 4) { "UNIQUE " } else { "" };
        sql += &format!("CREATE {unique}INDEX ON t (c{}{order}, c{last});", random.random_range(0..count - 1));
    }
    (sql, Made { types, key })
}

fn condition(random: &mut StdRng, made: &Made, column: usize) -> String {
    let of = made.types[column];
    match random.random_range(0..9) {
        0 => format!("c{column} IN ({}, {})", literal(random, of), literal(random, of)),
        1 => format!("c{column} BETWEEN {} AND {}", literal(random, of), literal(random, of)),
        2 => format!("c{column} < {}", literal(random, of)),
        3 => format!("c{column} >= {}", literal(random, of)),
        4 => format!("c{column} IS {}NULL", ["", "NOT "].choose(random).unwrap()),
        _ => format!("c{column} = {}", literal(random, of)),
    }
}

/// Values of several columns together.
fn rows_in(random: &mut StdRng, made: &Made) -> String {
    let width = random.random_range(made.key..=(made.key + 1).min(made.types.len()));
    let columns: Vec<String> = (0..width).map(|column| format!("c{column}")).collect();
    let row = |random: &mut StdRng| {
        let values: Vec<String> = (0..width).map(|column| literal(random, made.types[column])).collect();
        format!("({})", values.join(", "))
    };
    let rows: Vec<String> = (0..random.random_range(1..5)).map(|_| row(random)).collect();
    format!("({}) IN ({})", columns.join(", "), rows.join(", "))
}

fn conditions(random: &mut StdRng, made: &Made) -> String {
    if random.random_ratio(1, 5) {
        return rows_in(random, made);
    }
    let mut all: Vec<String> = (0..made.key).map(|column| condition(random, made, column)).collect();
    while random.random_ratio(1, 3) {
        let column = random.random_range(0..made.types.len());
        all.push(condition(random, made, column));
    }
    all.join(" AND ")
}

fn value(random: &mut StdRng, made: &Made, column: usize) -> String {
    let of = made.types[column];
    let is_number = matches!(of, "int" | "bigint" | "smallint" | "numeric(8,2)" | "double precision");
    match random.random_range(0..6) {
        0 if is_number => format!("c{column} + {}", literal(random, of)),
        1 if is_number => format!("c{column} * 2 - {}", literal(random, of)),
        2 if of == "text" => format!("c{column} || 'x'"),
        3 => format!("coalesce(c{column}, {})", literal(random, of)),
        4 => "DEFAULT".to_owned(),
        _ => literal(random, of),
    }
}

fn statement(random: &mut StdRng, made: &Made) -> String {
    let statement = any_statement(random, made);
    match statement.contains(" RETURNING ") {
        // The planned path gives such a text back as it was written, not as it was stored.
        true => statement.replace("'ab      '", "'ab'"),
        false => statement,
    }
}

fn any_statement(random: &mut StdRng, made: &Made) -> String {
    let count = made.types.len();
    let all: Vec<String> = (0..count).map(|column| format!("c{column}")).collect();
    let returning = if random.random_ratio(1, 3) { " RETURNING *, c0" } else { "" };
    match random.random_range(0..12) {
        10 => {
            let (by, column) = (random.random_range(0..count), random.random_range(0..count));
            let call = ["count(*)", "count(#)", "min(#)", "count(DISTINCT #)"].choose(random).unwrap();
            let call = call.replace('#', &format!("c{column}"));
            let limit = ["", " LIMIT 2", " LIMIT 1 OFFSET 1"].choose(random).unwrap();
            format!("SELECT c{by}, {call} FROM t WHERE {} GROUP BY c{by} ORDER BY 1{limit}", conditions(random, made))
        }
        11 => {
            let order = all[..made.key].join(", ");
            let limit = random.random_range(0..3);
            let lock = ["UPDATE", "SHARE SKIP LOCKED"].choose(random).unwrap();
            format!("SELECT * FROM t WHERE {} ORDER BY {order} LIMIT {limit} FOR {lock}", conditions(random, made))
        }
        0..=2 => {
            let rows = random.random_range(1..3);
            let row = |random: &mut StdRng| {
                let values: Vec<String> = made.types.iter().map(|of| literal(random, of)).collect();
                format!("({})", values.join(", "))
            };
            let rows: Vec<String> = (0..rows).map(|_| row(random)).collect();
            format!("INSERT INTO t VALUES {}{returning}", rows.join(", "))
        }
        3..=4 => {
            let column = random.random_range(0..count);
            let other = (column + 1) % count;
            let mut set = format!("c{column} = {}", value(random, made, column));
            if random.random_ratio(1, 3) {
                set += &format!(", c{other} = {}", value(random, made, other));
            }
            format!("UPDATE t SET {set} WHERE {}{returning}", conditions(random, made))
        }
        5 => format!("DELETE FROM t WHERE {}{returning}", conditions(random, made)),
        6 => {
            let column = random.random_range(0..count);
            let call = ["count(*)", "count(#)", "min(#)", "max(#)", "count(DISTINCT #)"].choose(random).unwrap();
            let sum = ["int", "bigint", "numeric(8,2)"].contains(&made.types[column]) && random.random_bool(0.5);
            let call = if sum { "sum(#), avg(#)" } else { call };
            format!("SELECT {} FROM t WHERE {}", call.replace('#', &format!("c{column}")), conditions(random, made))
        }
        7 => {
            let order: Vec<String> = (all.iter())
                .map(|column| column.clone() + ["", " DESC", " DESC NULLS LAST"].choose(random).unwrap())
                .collect();
            let limit = if random.random_bool(0.5) { " LIMIT 2 OFFSET 1" } else { "" };
            format!("SELECT * FROM t WHERE {} ORDER BY {}{limit}", conditions(random, made), order.join(", "))
        }
        8 => format!(
            "SELECT a.c0, b.c{} FROM t a, t b WHERE a.c0 = {} AND b.c0 = a.c0 ORDER BY 1, 2",
            count - 1,
            literal(random, made.types[0])
        ),
        _ => {
            let lock = ["", " FOR UPDATE", " FOR SHARE", " FOR NO KEY UPDATE SKIP LOCKED"].choose(random).unwrap();
            format!("SELECT *, c0 AS again FROM t WHERE {}{lock}", conditions(random, made))
        }
    }
}

/// Rows, or the SQLSTATE. `sorted`: of a statement that promises no order.
async fn outcome(client: &Client, sql: &str) -> Result<Vec<String>, String> {
    let messages = client.simple_query(sql).await.map_err(|error| code(&error).to_owned())?;
    let mut rows = Vec::new();
    for message in messages {
        match message {
            SimpleQueryMessage::Row(row) => {
                let values: Vec<&str> = (0..row.len()).map(|column| row.get(column).unwrap_or("∅")).collect();
                rows.push(values.join("|"));
            }
            SimpleQueryMessage::CommandComplete(count) => rows.push(format!("{count} rows")),
            SimpleQueryMessage::RowDescription(columns) => {
                rows.push(columns.iter().map(|column| column.name().to_owned()).collect::<Vec<_>>().join("|"));
            }
            _ => {}
        }
    }
    if !sql.contains("ORDER BY") {
        rows.sort();
    }
    Ok(rows)
}

async fn contents(client: &Client) -> Vec<String> {
    outcome(client, "SELECT * FROM t").await.unwrap()
}

async fn goes_direct(client: &Client, sql: &str) -> bool {
    let lines = outcome(client, &format!("EXPLAIN {sql}")).await.unwrap_or_default();
    lines.iter().any(|line| line.starts_with("Direct: "))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn both_paths_do_the_same() {
    let seed = std::env::var("TIDEPOOL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_241_124);
    let rounds = std::env::var("TIDEPOOL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(6);
    let mut random = StdRng::seed_from_u64(seed);
    let server = TestServer::start().await;
    let (direct, planned) = (server.connect().await, server.connect().await);
    planned.batch_execute("SET tidepool.direct = off").await.unwrap();
    let (mut statements, mut gone) = (0, 0);
    for round in 0..rounds {
        let (sql, made) = schema(&mut random);
        for (client, name) in [(&direct, "one"), (&planned, "other")] {
            client
                .batch_execute(&format!("CREATE SCHEMA {name}{round}; SET search_path = {name}{round}"))
                .await
                .unwrap();
        }
        let made_by = (outcome(&direct, &sql).await, outcome(&planned, &sql).await);
        assert_eq!(made_by.0, made_by.1, "{sql}");
        if made_by.0.is_err() {
            continue;
        }
        let mut is_open = false;
        for step in 0..150 {
            let about = format!("seed {seed}, round {round}, step {step}: {sql}");
            if random.random_ratio(1, 12) {
                let levels = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
                let control = match is_open {
                    true => ["COMMIT", "ROLLBACK"].choose(&mut random).unwrap().to_string(),
                    false => format!("BEGIN ISOLATION LEVEL {}", levels.choose(&mut random).unwrap()),
                };
                is_open = !is_open;
                assert_eq!(outcome(&direct, &control).await, outcome(&planned, &control).await, "{about}: {control}");
                continue;
            }
            if random.random_ratio(1, 40) && !is_open {
                for client in [&direct, &planned] {
                    client.batch_execute("CALL tidepool.merge('t')").await.unwrap();
                }
            }
            let statement = statement(&mut random, &made);
            if step % 5 == 0 && !is_open {
                gone += usize::from(goes_direct(&direct, &statement).await);
                assert!(!goes_direct(&planned, &statement).await);
                statements += 1;
            }
            let (left, right) = (outcome(&direct, &statement).await, outcome(&planned, &statement).await);
            assert_eq!(left, right, "{about}: {statement}");
            if left.is_err() && is_open {
                is_open = false;
                direct.batch_execute("ROLLBACK").await.unwrap();
                planned.batch_execute("ROLLBACK").await.unwrap();
            }
            if step % 10 == 9 && !is_open {
                assert_eq!(contents(&direct).await, contents(&planned).await, "{about}: {statement}");
            }
        }
        for client in [&direct, &planned] {
            client.batch_execute("ROLLBACK").await.unwrap();
        }
        assert_eq!(contents(&direct).await, contents(&planned).await, "seed {seed}, round {round}: {sql}");
    }
    assert!(gone * 2 > statements, "{gone} of {statements} statements went direct");
    server.stop().await;
}

/// What prepared statements and their parameters do, in text and binary.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn prepared_statements_go_to_their_rows() {
    let server = TestServer::start().await;
    let client = server.connect().await;
    client
        .batch_execute(
            "CREATE SEQUENCE numbers START 5;
             CREATE TABLE t (id int PRIMARY KEY, name varchar(5), amount numeric(8,2) DEFAULT 1.5,
                             made timestamptz DEFAULT now(), number bigint DEFAULT nextval('numbers'));",
        )
        .await
        .unwrap();
    let insert =
        client.prepare("INSERT INTO t (id, name) VALUES ($1, $2) RETURNING number, amount::text").await.unwrap();
    for id in 0..10i32 {
        let row = client.query_one(&insert, &[&id, &"a"]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), 5 + i64::from(id));
        assert_eq!(row.get::<_, String>(1), "1.50");
    }
    assert_eq!(code(&client.query(&insert, &[&3i32, &"a"]).await.unwrap_err()), "23505");
    assert_eq!(code(&client.query(&insert, &[&30i32, &"abcdef"]).await.unwrap_err()), "22001");
    let update = client.prepare("UPDATE t SET amount = amount + 2 WHERE id = $1").await.unwrap();
    assert_eq!(client.execute(&update, &[&3i32]).await.unwrap(), 1);
    assert_eq!(client.execute(&update, &[&300i32]).await.unwrap(), 0);
    let select =
        client.prepare("SELECT id, name, number FROM t WHERE id BETWEEN $1 AND $2 ORDER BY id DESC").await.unwrap();
    let rows = client.query(&select, &[&2i32, &4i32]).await.unwrap();
    let ids: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(ids, [4, 3, 2]);
    // What was made is altered: the statement is made anew, or its columns are not what they were.
    client.batch_execute("ALTER TABLE t ALTER COLUMN number TYPE int").await.unwrap();
    assert_eq!(code(&client.query(&select, &[&2i32, &4i32]).await.unwrap_err()), "0A000");
    client.batch_execute("CREATE TABLE other (id int PRIMARY KEY)").await.unwrap();
    assert_eq!(client.execute(&update, &[&3i32]).await.unwrap(), 1);
    let rows =
        client.query("SELECT state, query FROM tidepool.queries WHERE query LIKE 'UPDATE t %'", &[]).await.unwrap();
    assert!(rows.iter().any(|row| row.get::<_, String>(0) == "finished"), "{rows:?}");
    let used = client
        .query_one("SELECT sum(lookups)::bigint FROM tidepool.index_access WHERE table_name = 't'", &[])
        .await
        .unwrap();
    assert!(used.get::<_, i64>(0) >= 4);
    server.stop().await;
}

/// Who waits for a row lets other sessions work, on however few threads, and sees what it waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn waiting_keeps_nobody_from_working() {
    let server = TestServer::start().await;
    let clients = [server.connect().await, server.connect().await, server.connect().await];
    clients[0]
        .batch_execute("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 0), (2, 0)")
        .await
        .unwrap();
    clients[0].batch_execute("BEGIN").await.unwrap();
    clients[0].batch_execute("UPDATE t SET v = v + 1 WHERE id = 1").await.unwrap();
    let waiting = {
        let config = server.config();
        let client = crate::server::connect(&config).await.unwrap();
        tokio::spawn(async move { client.query_one("UPDATE t SET v = v + 10 WHERE id = 1 RETURNING v", &[]).await })
    };
    for _ in 0..20 {
        clients[1].batch_execute("UPDATE t SET v = v + 1 WHERE id = 2").await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert!(!waiting.is_finished());
    clients[2].batch_execute("SET lock_timeout = '50ms'").await.unwrap();
    let refused = clients[2].batch_execute("UPDATE t SET v = 5 WHERE id = 1").await.unwrap_err();
    assert_eq!(code(&refused), "55P03");
    clients[0].batch_execute("COMMIT").await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap().get::<_, i32>(0), 11);
    server.stop().await;
}

/// Literals that stand for another time whenever they are read are not kept as what they were.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moments_are_those_of_their_statement() {
    let server = TestServer::start().await;
    let client = server.connect().await;
    client.batch_execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)").await.unwrap();
    for sql in ["SELECT 'now'::timestamptz", "SELECT 'now'::timestamptz FROM t WHERE id = 1", "SELECT now()"] {
        let (first, second) = (outcome(&client, sql).await.unwrap(), outcome(&client, sql).await.unwrap());
        assert_ne!(first, second, "{sql}");
    }
}
