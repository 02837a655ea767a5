//! Plans that serve statements with other values: they give what a plan of its own gives each of them.

use crate::server::{Setup, TestServer};
use std::hash::{DefaultHasher, Hash, Hasher};
use tokio_postgres::types::{IsNull, ToSql, Type};
use tokio_postgres::{Client, SimpleQueryMessage};

const TABLES: &str = "
    CREATE TABLE person (id int PRIMARY KEY, name text, code char(4), height real, born date, seen timestamptz, uuid uuid, region smallint, balance numeric(12,2), big bigint);
    CREATE TABLE sale (id int PRIMARY KEY, person int, sold timestamp NOT NULL, state varchar(8), total numeric(12,2), paid boolean);
    CREATE INDEX ON sale (person, sold);
    CREATE INDEX ON person (region DESC, id);
    INSERT INTO person SELECT i, CASE WHEN i % 11 = 0 THEN NULL ELSE 'name ' || i % 40 END, 'c' || i % 7, i / 8.0, date '2020-01-01' + i, timestamptz '2026-01-01 00:00+00' + i * interval '1 hour',
        ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd38' || lpad((i % 50)::text, 4, '0'))::uuid, i % 5, i * 1.25, i * 3000000000 FROM generate_series(1, 300) AS g(i);
    INSERT INTO sale SELECT i, CASE WHEN i % 13 = 0 THEN NULL ELSE i % 280 + 1 END, timestamp '2026-01-01' + i * interval '7 minutes',
        (ARRAY['open', 'paid', 'sent'])[i % 3 + 1], i * 0.75, i % 2 = 0 FROM generate_series(1, 2000) AS g(i);
    ANALYZE";

/// Statements, and for each of their places the kind of value that goes there.
const STATEMENTS: &[(&str, &str)] = &[
    ("SELECT id, name FROM person WHERE id = {}", "i"),
    ("SELECT id FROM person WHERE {} < id ORDER BY id LIMIT 3", "i"),
    ("SELECT id FROM person WHERE id BETWEEN {} AND {} ORDER BY id", "ii"),
    ("SELECT id FROM person WHERE region = {} ORDER BY id LIMIT {} OFFSET {}", "inn"),
    ("SELECT id FROM person ORDER BY id DESC LIMIT {}", "n"),
    ("SELECT region, id FROM person ORDER BY region DESC, id LIMIT {}", "n"),
    ("SELECT count(*) FROM person WHERE name = {}", "s"),
    ("SELECT count(*) FROM person WHERE code = {} OR name = {}", "ss"),
    ("SELECT count(*) FROM person WHERE uuid = {}", "u"),
    ("SELECT count(*) FROM person WHERE born > {} AND born <= {}", "dd"),
    ("SELECT count(*) FROM person WHERE seen < {}", "t"),
    ("SELECT count(*) FROM person WHERE height = {} OR height > {}", "ii"),
    ("SELECT count(*) FROM person WHERE balance > {} AND big < {}", "ii"),
    ("SELECT count(*) FROM person WHERE big = {} * 3000000000", "i"),
    ("SELECT count(*) FROM person WHERE (id IN ({}, {}) AND id IN ({}, {})) IS NULL", "iiii"),
    ("SELECT count(*) FROM person WHERE id NOT IN ({}, {}) AND region <> {}", "iii"),
    ("SELECT count(*) FROM person WHERE id = {} AND id = {}", "ii"),
    ("SELECT id + {} AS more FROM person WHERE id = {} ORDER BY 1", "ii"),
    (
        "SELECT p.id, count(s.id), sum(s.total) FROM person p LEFT JOIN sale s ON s.person = p.id AND s.state = {} WHERE p.region = {} GROUP BY p.id ORDER BY p.id LIMIT 20",
        "si",
    ),
    (
        "SELECT p.id FROM person p WHERE p.id < {} AND EXISTS (SELECT 1 FROM sale s WHERE s.person = p.id AND s.total > {}) ORDER BY p.id",
        "ii",
    ),
    (
        "SELECT p.id FROM person p WHERE p.region = {} AND NOT EXISTS (SELECT 1 FROM sale s WHERE s.person = p.id AND s.state = {}) ORDER BY p.id",
        "is",
    ),
    (
        "SELECT p.id, (SELECT count(*) FROM sale s WHERE s.person = p.id AND s.id > {}) AS sales FROM person p WHERE p.id BETWEEN {} AND 40 ORDER BY p.id",
        "ii",
    ),
    ("SELECT p.id, (SELECT max(s.total) FROM sale s WHERE s.person = p.id) AS most FROM person p WHERE p.id = {}", "i"),
    (
        "SELECT p.id, f.id FROM person p, LATERAL (SELECT s.id FROM sale s WHERE s.person = p.id ORDER BY s.total DESC LIMIT {}) AS f WHERE p.region = {} ORDER BY 1, 2",
        "ni",
    ),
    (
        "WITH mine AS (SELECT id, total FROM sale WHERE person = {}) SELECT count(*), sum(total) FROM mine WHERE total > {}",
        "ii",
    ),
    (
        "WITH a AS (SELECT person, count(*) AS c FROM sale WHERE id < {} GROUP BY person) SELECT p.name, a.c FROM person p JOIN a ON a.person = p.id WHERE a.c > {} ORDER BY 1, 2 LIMIT 9",
        "ii",
    ),
    (
        "SELECT state, count(*) FROM sale WHERE person IN (SELECT id FROM person WHERE region = {} AND name <> {}) GROUP BY state ORDER BY state",
        "is",
    ),
    ("SELECT DISTINCT region FROM person WHERE id > {} ORDER BY region", "i"),
    ("SELECT id FROM person WHERE id = {} UNION ALL SELECT id FROM sale WHERE id = {} ORDER BY 1", "ii"),
    ("SELECT id, rank() OVER (PARTITION BY region ORDER BY balance DESC) FROM person WHERE id < {} ORDER BY id", "i"),
    (
        "SELECT p.id, s.id FROM person p FULL JOIN sale s ON s.person = p.id AND s.id < {} WHERE p.id = {} OR s.id = {} ORDER BY 1, 2 LIMIT 30",
        "iii",
    ),
    (
        "SELECT CASE WHEN id > {} THEN 'more' ELSE 'less' END AS side, count(*) FROM person GROUP BY 1 HAVING count(*) > {} ORDER BY 1",
        "ii",
    ),
    ("SELECT max(id) FROM person WHERE name LIKE 'name 1%' AND id < {}", "i"),
    ("SELECT count(*) FROM sale WHERE paid AND total / {} > 3", "i"),
    ("SELECT count(*) FROM (VALUES ({}), (2), (3)) AS v(x) WHERE x = {}", "ii"),
    ("SELECT count(*) FROM person WHERE seen < now() - interval '1 day' AND id < {}", "i"),
    (
        "SELECT id, now() > seen AS past, pg_typeof(current_timestamp) FROM person WHERE id < {} AND now() IS NOT NULL GROUP BY id, seen ORDER BY id LIMIT {}",
        "in",
    ),
];

/// The same, of statements that write.
const WRITES: &[(&str, &str)] = &[
    ("UPDATE sale SET total = total + {} WHERE person IN (SELECT id FROM person WHERE region = {})", "ii"),
    ("UPDATE sale SET state = {}, paid = NOT paid WHERE person IN (SELECT id FROM person WHERE name = {}) AND id < {}", "ssi"),
    ("UPDATE sale s SET sold = {}, person = p.id FROM person p WHERE p.id = s.person AND p.region = {} AND s.id < 100 RETURNING s.id, s.sold, p.name", "ti"),
    ("UPDATE person SET (balance, name) = (SELECT sum(total), {} FROM sale WHERE person = person.id) WHERE id = {}", "si"),
    ("UPDATE person SET born = {}, uuid = {}, code = {} WHERE id IN (SELECT person FROM sale WHERE id = {}) RETURNING *", "dusi"),
    ("UPDATE sale SET paid = sold < now() WHERE person IN (SELECT id FROM person WHERE seen < now() AND region = {})", "i"),
    ("DELETE FROM sale USING person p WHERE p.id = sale.person AND p.id = {}", "i"),
    ("DELETE FROM sale WHERE NOT EXISTS (SELECT 1 FROM person p WHERE p.id = sale.person AND p.id > {}) RETURNING id", "i"),
    ("INSERT INTO sale (id, person, sold, state, total) SELECT id + 10000, region, seen, name, big FROM person WHERE id < {} AND name <> {}", "is"),
    (
        "INSERT INTO sale (id, person, sold, total) SELECT s.id, p.id, s.sold, 1 FROM person p JOIN sale s ON s.person = p.id WHERE p.region = {}
         ON CONFLICT (id) DO UPDATE SET total = excluded.total + {}, state = {} RETURNING id, total",
        "iis",
    ),
    (
        "MERGE INTO sale s USING (SELECT id, balance FROM person WHERE region = {}) AS p ON p.id = s.id
         WHEN MATCHED AND s.total > {} THEN UPDATE SET total = p.balance, state = {} WHEN MATCHED THEN DELETE
         WHEN NOT MATCHED THEN INSERT (id, person, sold, total) VALUES (p.id + 5000, {}, '2026-01-01', {})",
        "iisnn",
    ),
    ("WITH few AS (SELECT id FROM person WHERE region = {}) UPDATE sale SET paid = true WHERE person IN (SELECT id FROM few) AND id > {} RETURNING id", "ii"),
];

/// Values of a kind, as they are written.
fn values(kind: char) -> &'static [&'static str] {
    match kind {
        'i' => &["1", "7", "40", "-3", "0", "299", "2147483647", "2147483648", "99999999999", "12.5", "NULL"],
        'n' => &["1", "2", "5", "0"],
        's' => &["'open'", "'paid'", "'name 7'", "''", "'it''s'", "'c3  '", "'c3'", "'7'", "NULL"],
        'u' => &["'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380007'", "'a0eebc999c0b4ef8bb6d6bb9bd380001'", "'no uuid'", "NULL"],
        'd' => &["'2020-03-01'", "'2020-01-02'", "'March 5, 2020'", "'2020-02-30'", "NULL"],
        _ => &["'2026-01-02 03:00+00'", "'2026-01-05'", "'today'", "'soon'", "NULL"],
    }
}

/// The statement with values, the same ones for the same round.
fn written(statement: &str, kinds: &str, round: usize) -> String {
    let mut text = String::new();
    let mut parts = statement.split("{}");
    text.push_str(parts.next().unwrap_or_default());
    for (place, (kind, part)) in kinds.chars().zip(parts).enumerate() {
        let values = values(kind);
        // Each place goes through its values at a pace of its own.
        text.push_str(values[(round * (2 * place + 1) + place) % values.len()]);
        text.push_str(part);
    }
    text
}

/// Its rows, or the code of its error.
async fn answer(client: &Client, sql: &str) -> Result<Vec<String>, String> {
    let messages = client.simple_query(sql).await;
    let messages = messages.map_err(|error| crate::server::code(&error).to_owned())?;
    let rows = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|at| row.get(at).unwrap_or("NULL").to_owned()).collect::<Vec<_>>().join("|"))
        }
        _ => None,
    });
    Ok(rows.collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn they_give_what_plans_of_their_own_give() {
    let server = TestServer::start().await;
    let (shared, own, direct) = (server.connect().await, server.connect().await, server.connect().await);
    shared.batch_execute(TABLES).await.unwrap();
    shared.batch_execute("SET plan_cache_mode = force_generic_plan; SET tidepool.direct = off").await.unwrap();
    own.batch_execute("SET plan_cache_mode = force_custom_plan; SET tidepool.direct = off").await.unwrap();
    let mut differences = Vec::new();
    for (statement, kinds) in STATEMENTS {
        for round in 0..12 {
            let sql = written(statement, kinds, round);
            let wanted = answer(&own, &sql).await;
            for (client, by) in [(&shared, "a shared plan"), (&direct, "the usual way")] {
                let got = answer(client, &sql).await;
                if got != wanted {
                    differences.push(format!("{sql}\n  by {by}: {got:?}\n  by a plan of its own: {wanted:?}"));
                }
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// What a statement gives back, and what the tables are after it. It is undone.
async fn written_by(client: &Client, sql: &str) -> Result<Vec<String>, String> {
    client.batch_execute("BEGIN").await.unwrap();
    let mut answer = answer(client, sql).await;
    if let Ok(rows) = &mut answer {
        rows.sort_unstable();
        for table in ["sale", "person"] {
            let all = self::answer(client, &format!("SELECT * FROM {table} ORDER BY id")).await.unwrap();
            let mut hasher = DefaultHasher::new();
            all.hash(&mut hasher);
            rows.push(format!("{table}: {} rows, {:x}", all.len(), hasher.finish()));
        }
    }
    client.batch_execute("ROLLBACK").await.unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn statements_that_write_share_them() {
    let server = TestServer::start().await;
    let (shared, own, usual) = (server.connect().await, server.connect().await, server.connect().await);
    shared.batch_execute(TABLES).await.unwrap();
    shared.batch_execute("SET plan_cache_mode = force_generic_plan; SET tidepool.direct = off").await.unwrap();
    own.batch_execute("SET plan_cache_mode = force_custom_plan; SET tidepool.direct = off").await.unwrap();
    let mut differences = Vec::new();
    for (statement, kinds) in WRITES {
        for round in 0..12 {
            let sql = written(statement, kinds, round);
            let wanted = written_by(&own, &sql).await;
            for (client, by) in [(&shared, "a shared plan"), (&usual, "the usual way")] {
                let got = written_by(client, &sql).await;
                if got != wanted {
                    differences.push(format!("{sql}\n  by {by}: {got:?}\n  by a plan of its own: {wanted:?}"));
                }
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// The time is each statement's own.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_time_is_no_part_of_them() {
    let server = TestServer::start().await;
    let client = server.connect().await;
    client
        .batch_execute("CREATE TABLE t (id int PRIMARY KEY, at timestamptz); INSERT INTO t VALUES (1, NULL), (2, NULL)")
        .await
        .unwrap();
    client.batch_execute("SET plan_cache_mode = force_generic_plan; SET tidepool.direct = off").await.unwrap();
    let mut seen = Vec::new();
    for id in [1, 2, 1, 2] {
        seen.extend(
            answer(
                &client,
                &format!("UPDATE t SET at = now() WHERE id IN (SELECT id FROM t WHERE id = {id}) RETURNING at"),
            )
            .await
            .unwrap(),
        );
        seen.extend(
            answer(&client, &format!("SELECT now() FROM t WHERE id = {id} AND at < now() GROUP BY id")).await.unwrap(),
        );
    }
    let count = seen.len();
    seen.dedup();
    assert!(count == 8 && seen.len() == 8, "{seen:?}");
    assert!(seen.is_sorted(), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writes_follow_what_tables_and_roles_become() {
    let server = TestServer::start().await;
    let (owner, client) = (server.connect().await, server.connect().await);
    owner
        .batch_execute("CREATE TABLE stock (id int PRIMARY KEY, n int); CREATE TABLE sold (stock int, n int)")
        .await
        .unwrap();
    owner.batch_execute("INSERT INTO stock SELECT i, 100 FROM generate_series(1, 50) AS g(i)").await.unwrap();
    owner.batch_execute("INSERT INTO sold SELECT i, 1 FROM generate_series(1, 50) AS g(i)").await.unwrap();
    let of = |id: usize| {
        format!(
            "UPDATE stock SET n = stock.n - s.n FROM sold s WHERE s.stock = stock.id AND stock.id = {id} RETURNING stock.*"
        )
    };
    let copied = |id: usize| format!("INSERT INTO sold SELECT id, n FROM stock WHERE id = {id} AND n > 0 RETURNING *");
    for id in 1..5 {
        assert_eq!(answer(&client, &of(id)).await.unwrap(), [format!("{id}|99")]);
        assert_eq!(answer(&client, &copied(id + 20)).await.unwrap(), [format!("{}|100", id + 20)]);
    }
    owner
        .batch_execute(
            "ALTER TABLE stock ADD COLUMN note text DEFAULT 'new'; ALTER TABLE sold ADD COLUMN at int DEFAULT 7",
        )
        .await
        .unwrap();
    for id in 5..8 {
        assert_eq!(answer(&client, &of(id)).await.unwrap(), [format!("{id}|99|new")]);
        assert_eq!(answer(&client, &copied(id + 20)).await.unwrap(), [format!("{}|100|7", id + 20)]);
    }
    owner.batch_execute("ALTER TABLE stock ADD CONSTRAINT few CHECK (n > 98)").await.unwrap();
    assert_eq!(answer(&client, &of(5)).await, Err("23514".to_owned()));
    assert_eq!(answer(&client, &of(8)).await.unwrap(), ["8|99|new"]);
    owner.batch_execute("CREATE ROLE seller LOGIN; GRANT SELECT ON stock, sold TO seller").await.unwrap();
    client.batch_execute("SET ROLE seller").await.unwrap();
    for _ in 0..3 {
        assert_eq!(answer(&client, &of(9)).await, Err("42501".to_owned()));
    }
    owner.batch_execute("GRANT UPDATE ON stock TO seller").await.unwrap();
    for id in 9..12 {
        assert_eq!(answer(&client, &of(id)).await.unwrap(), [format!("{id}|99|new")]);
    }
    owner.batch_execute("REVOKE UPDATE ON stock FROM seller").await.unwrap();
    assert_eq!(answer(&client, &of(12)).await, Err("42501".to_owned()));
    client.batch_execute("RESET ROLE").await.unwrap();
    // Another table of that name.
    owner.batch_execute("CREATE SCHEMA side; CREATE TABLE side.stock (n int, id int)").await.unwrap();
    owner.batch_execute("INSERT INTO side.stock VALUES (7, 13)").await.unwrap();
    client.batch_execute("SET search_path = side, public").await.unwrap();
    for _ in 0..3 {
        client.batch_execute("BEGIN").await.unwrap();
        assert_eq!(answer(&client, &of(13)).await.unwrap(), ["6|13"]);
        client.batch_execute("ROLLBACK").await.unwrap();
    }
}

/// A plan that serves others finds rows again that somebody else has changed meanwhile, and only these.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writes_look_again_at_rows_that_others_changed() {
    let server = TestServer::start().await;
    let (first, second) = (server.connect().await, server.connect().await);
    first
        .batch_execute("CREATE TABLE stock (id int PRIMARY KEY, n int); CREATE TABLE sold (stock int, n int)")
        .await
        .unwrap();
    first.batch_execute("INSERT INTO stock SELECT i, 0 FROM generate_series(1, 40) AS g(i)").await.unwrap();
    first.batch_execute("INSERT INTO sold SELECT i, i FROM generate_series(1, 40) AS g(i)").await.unwrap();
    let statements = [
        "UPDATE stock SET n = stock.n + s.n FROM sold s WHERE s.stock = stock.id AND stock.n < 50 AND stock.id IN ({}, {}) RETURNING stock.id, stock.n",
        "DELETE FROM stock USING sold s WHERE s.stock = stock.id AND stock.n < 50 AND stock.id IN ({}, {}) RETURNING stock.id, stock.n",
        "MERGE INTO stock USING sold s ON s.stock = stock.id AND stock.id IN ({}, {}) WHEN MATCHED AND stock.n < 50 THEN UPDATE SET n = stock.n + s.n RETURNING stock.id, stock.n",
    ];
    for (place, statement) in statements.into_iter().enumerate() {
        let of = |one: usize, other: usize| {
            statement.replacen("{}", &one.to_string(), 1).replacen("{}", &other.to_string(), 1)
        };
        let from = 10 * place + 1;
        for round in 0..3 {
            second.batch_execute("BEGIN").await.unwrap();
            answer(&second, &of(from + round, from + round + 1)).await.unwrap();
            second.batch_execute("ROLLBACK").await.unwrap();
        }
        // One row is still to be changed, the other no more.
        first
            .batch_execute(&format!(
                "BEGIN; UPDATE stock SET n = 1 WHERE id = {from}; UPDATE stock SET n = 60 WHERE id = {}",
                from + 1
            ))
            .await
            .unwrap();
        let waiter = server.connect().await;
        let pid = crate::server::pid(&waiter).await;
        let sql = of(from, from + 1);
        let waiting = tokio::spawn(async move { answer(&waiter, &sql).await });
        server.until_waiting(pid, &waiting).await;
        first.batch_execute("COMMIT").await.unwrap();
        let n = if statement.starts_with("DELETE") { 1 } else { 1 + from };
        assert_eq!(waiting.await.unwrap().unwrap(), [format!("{from}|{n}")], "{statement}");
    }
}

/// A value as a client's text, whatever type the server wants.
#[derive(Debug)]
struct Text(Option<&'static str>);

impl ToSql for Text {
    fn to_sql(&self, _: &Type, out: &mut bytes::BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        Ok(match self.0 {
            Some(text) => {
                out.extend_from_slice(text.as_bytes());
                IsNull::No
            }
            None => IsNull::Yes,
        })
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> tokio_postgres::types::Format {
        tokio_postgres::types::Format::Text
    }

    tokio_postgres::types::to_sql_checked!();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn prepared_statements_share_them_too() {
    let server = TestServer::start().await;
    let (shared, own) = (server.connect().await, server.connect().await);
    shared.batch_execute(TABLES).await.unwrap();
    shared.batch_execute("SET tidepool.direct = off").await.unwrap();
    own.batch_execute("SET plan_cache_mode = force_custom_plan; SET tidepool.direct = off").await.unwrap();
    for (statement, kinds) in STATEMENTS {
        let mut text = statement.to_string();
        for place in 1..=kinds.len() {
            text = text.replacen("{}", &format!("${place}"), 1);
        }
        let prepared = (shared.prepare(&text).await, own.prepare(&text).await);
        let (shared_statement, own_statement) = match prepared {
            (Ok(one), Ok(other)) => (one, other),
            (one, other) => {
                assert_eq!(one.is_ok(), other.is_ok(), "{text}");
                continue;
            }
        };
        for round in 0..8 {
            let of = |(place, kind): (usize, char)| {
                let values = values(kind);
                let value = values[(round * (2 * place + 1) + place) % values.len()];
                Text((value != "NULL").then(|| value.trim_matches('\'')))
            };
            let parameters: Vec<Text> = kinds.chars().enumerate().map(of).collect();
            let parameters: Vec<&(dyn ToSql + Sync)> =
                parameters.iter().map(|one| one as &(dyn ToSql + Sync)).collect();
            let one = shared.query(&shared_statement, &parameters).await;
            let other = own.query(&own_statement, &parameters).await;
            let told = |rows: Result<Vec<tokio_postgres::Row>, tokio_postgres::Error>| match rows {
                Ok(rows) => format!("{} rows: {:?}", rows.len(), rows.iter().map(cells).collect::<Vec<_>>()),
                Err(error) => crate::server::code(&error).to_owned(),
            };
            assert_eq!(told(one), told(other), "{text} with {parameters:?}");
        }
    }
}

/// The bytes of a row's values.
fn cells(row: &tokio_postgres::Row) -> Vec<Option<Vec<u8>>> {
    struct Bytes(Vec<u8>);

    impl<'r> tokio_postgres::types::FromSql<'r> for Bytes {
        fn from_sql(_: &Type, raw: &'r [u8]) -> Result<Bytes, Box<dyn std::error::Error + Sync + Send>> {
            Ok(Bytes(raw.to_vec()))
        }

        fn accepts(_: &Type) -> bool {
            true
        }
    }

    (0..row.len()).map(|at| row.get::<_, Option<Bytes>>(at).map(|bytes| bytes.0)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn they_follow_what_tables_and_roles_become() {
    let server = TestServer::start().await;
    let (owner, client) = (server.connect().await, server.connect().await);
    owner.batch_execute(TABLES).await.unwrap();
    client.batch_execute("SET tidepool.direct = off").await.unwrap();
    let of = |id: usize| {
        format!("SELECT count(*), max(p.name) FROM person p JOIN sale s ON s.person = p.id WHERE p.id = {id}")
    };
    for id in 1..5 {
        let got = answer(&client, &of(id)).await.unwrap();
        assert!(got[0].ends_with(&format!("name {id}")), "{got:?}");
    }
    // New rows and other values are seen at once.
    owner.batch_execute("UPDATE person SET name = 'another' WHERE id = 3").await.unwrap();
    assert!(answer(&client, &of(3)).await.unwrap()[0].ends_with("another"));
    // So is another definition.
    owner
        .batch_execute(
            "ALTER TABLE person RENAME COLUMN name TO title; ALTER TABLE person ADD COLUMN name int DEFAULT 5",
        )
        .await
        .unwrap();
    assert!(answer(&client, &of(4)).await.unwrap()[0].ends_with("|5"));
    // A role that may not read gets nothing by a plan of one who may.
    owner.batch_execute("CREATE ROLE reader LOGIN").await.unwrap();
    client.batch_execute("SET ROLE reader").await.unwrap();
    assert_eq!(answer(&client, &of(2)).await, Err("42501".to_owned()));
    owner.batch_execute("GRANT SELECT ON person, sale TO reader").await.unwrap();
    assert!(answer(&client, &of(2)).await.is_ok());
    assert!(answer(&client, &of(1)).await.is_ok());
    owner.batch_execute("REVOKE SELECT ON sale FROM reader").await.unwrap();
    assert_eq!(answer(&client, &of(1)).await, Err("42501".to_owned()));
}

/// Threads of connections have small stacks, and what is planned already is lowered there.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn deep_statements_run_as_often_as_they_come() {
    let server = TestServer::start().await;
    let client = server.connect().await;
    client.batch_execute("CREATE TABLE deep (a bigint); INSERT INTO deep VALUES (1), (2)").await.unwrap();
    client.batch_execute("SET tidepool.direct = off").await.unwrap();
    for nested in [" + a".repeat(900), format!("{}{}", " + (a".repeat(400), ")".repeat(400))] {
        for value in 1..6 {
            let sql = format!("SELECT count(*) FROM deep WHERE a{nested} > {value}");
            assert_eq!(answer(&client, &sql).await, Ok(vec!["2".to_owned()]), "{value}");
            let explained = answer(&client, &format!("EXPLAIN (ANALYZE) {sql}")).await;
            assert!(explained.is_ok(), "{explained:?}");
        }
    }
}

async fn plans_made(server: &TestServer) -> u64 {
    let page = server.get("/metrics").await;
    let sample = page.lines().find_map(|line| line.strip_prefix("tidepool_plans_total{how=\"made\"} "));
    sample.expect(&page).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_plan_is_made_in_vain() {
    let server = TestServer::with(Setup { metrics: true, ..Setup::default() }).await;
    let client = server.connect().await;
    client.batch_execute(TABLES).await.unwrap();
    client
        .batch_execute(
            "CREATE TABLE large (id int, person int);
            INSERT INTO large SELECT i, i % 300 FROM generate_series(1, 200000) AS g(i);
            ANALYZE;
            SET tidepool.direct = off",
        )
        .await
        .unwrap();
    let of_few =
        |id: usize| format!("SELECT count(s.total) FROM person p JOIN sale s ON s.person = p.id WHERE p.id = {id}");
    let of_many =
        |id: usize| format!("SELECT count(p.name) FROM large l JOIN person p ON l.person = p.id WHERE l.id > {id}");
    for (of, with_other_values) in [(&of_few as &dyn Fn(usize) -> String, 1), (&of_many, 5)] {
        // The same text is planned once, however much it reads.
        let before = plans_made(&server).await;
        for _ in 0..5 {
            answer(&client, &of(1)).await.unwrap();
        }
        assert_eq!(plans_made(&server).await, before + 1, "{}", of(1));
        // With other values, all are served by one plan; what reads much is planned once for each of them, and not for others besides.
        for id in 2..7 {
            answer(&client, &of(id)).await.unwrap();
        }
        assert_eq!(plans_made(&server).await, before + 1 + with_other_values, "{}", of(2));
    }
    server.stop().await;
}
