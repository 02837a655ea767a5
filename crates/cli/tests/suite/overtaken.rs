//! Statements that wait for a lock while others change what they were planned against: they are planned anew, as PostgreSQL plans
//! them, whatever way they went before.

use crate::server::{TestServer, code, connect};
use std::time::Duration;
use tokio_postgres::{Client, SimpleQueryMessage};

const TABLES: &str = "
    DROP TABLE IF EXISTS goods, other, made, leaf CASCADE;
    CREATE TABLE goods (id int PRIMARY KEY, a int DEFAULT 1, b int, c int);
    INSERT INTO goods VALUES (1, 1, 1, 1), (2, 2, 2, 2);
    CREATE TABLE source (x int, y int);
    INSERT INTO source VALUES (10, 11);
    CREATE VIEW seen AS SELECT x, y FROM source;
    CREATE TABLE parts (id int, k int) PARTITION BY LIST (k);
    CREATE TABLE part PARTITION OF parts FOR VALUES IN (1);
    INSERT INTO parts VALUES (1, 1);
    GRANT ALL ON goods, source, seen, parts TO clerk";

const DROPPED: &str =
    "DROP TABLE IF EXISTS goods, goods2, parts, part, source CASCADE; DROP SCHEMA IF EXISTS side CASCADE";

/// How the statement that waits is sent.
#[derive(Clone, Copy, Debug)]
enum Way {
    Simple,
    Prepared,
    Planned,
}

const WAYS: [Way; 3] = [Way::Simple, Way::Prepared, Way::Planned];

struct Waiting<'s> {
    server: &'s TestServer,
    owner: Client,
    watching: Client,
}

impl Waiting<'_> {
    async fn of(server: &TestServer) -> Waiting<'_> {
        let owner = server.connect().await;
        owner.batch_execute("CREATE ROLE clerk LOGIN; CREATE ROLE staff").await.unwrap();
        Waiting { server, owner, watching: server.connect().await }
    }

    /// Until somebody waits for a lock of a table, or for what a statement that goes to its rows waits for.
    async fn wait_for(&self, statement: &str, waiter: &tokio::task::JoinHandle<String>) {
        let direct = format!(
            "SELECT 1 FROM tidepool.queries WHERE state = 'running' AND query = '{}'
             UNION ALL SELECT 1 FROM pg_locks WHERE NOT granted",
            statement.replace('\'', "''")
        );
        while !waiter.is_finished() && self.watching.query(&direct, &[]).await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// What becomes of a statement that waits while `changes` are made, and of the table it is about.
    #[expect(clippy::too_many_arguments, reason = "the parts of an interleaving")]
    async fn outcome(
        &self,
        way: Way,
        role: &str,
        block: bool,
        before: &str,
        changes: &str,
        statement: &str,
        end: &str,
    ) -> String {
        for text in [DROPPED, TABLES, before] {
            self.owner.batch_execute(text).await.unwrap();
        }
        let client = connect(self.server.config().user(role)).await.unwrap();
        if let Way::Planned = way {
            client.batch_execute("SET tidepool.direct = off").await.unwrap();
        }
        if block {
            client.batch_execute("BEGIN; SELECT 1").await.unwrap();
        }
        let prepared = match way {
            Way::Prepared => client.prepare(statement).await.ok(),
            _ => None,
        };
        self.owner.batch_execute(&format!("BEGIN; {changes}")).await.unwrap();
        let text = statement.to_owned();
        let waiter = tokio::spawn(async move {
            let done = match prepared {
                Some(prepared) => client.execute(&prepared, &[]).await,
                None => client.simple_query(&text).await.map(|messages| {
                    let tag = |message: &SimpleQueryMessage| match message {
                        SimpleQueryMessage::CommandComplete(rows) => Some(*rows),
                        _ => None,
                    };
                    messages.iter().find_map(tag).unwrap_or_default()
                }),
            };
            match done {
                Ok(rows) => {
                    if block {
                        client.batch_execute("COMMIT").await.unwrap();
                    }
                    format!("{rows}")
                }
                Err(error) => code(&error).to_owned(),
            }
        });
        self.wait_for(statement, &waiter).await;
        self.owner.batch_execute(end).await.unwrap();
        waiter.await.unwrap()
    }

    async fn rows(&self, query: &str) -> String {
        let messages = self.owner.simple_query(query).await.unwrap();
        let rows = messages.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                let cells = (0..row.len()).map(|column| row.get(column).unwrap_or("-").to_owned());
                Some(cells.collect::<Vec<_>>().join(","))
            }
            _ => None,
        });
        rows.collect::<Vec<_>>().join(" ")
    }

    /// In every way, alone and in a block.
    async fn check(&self, role: &str, before: &str, changes: &str, query: &str, cases: &[(&str, &str, &str)]) {
        for (statement, outcome, rows) in cases {
            for way in WAYS {
                for block in [false, true] {
                    let what = format!("{way:?}, {block}: {changes}; {statement}");
                    let found = self.outcome(way, role, block, before, changes, statement, "COMMIT").await;
                    assert_eq!(found, *outcome, "{what}");
                    if !query.is_empty() {
                        assert_eq!(self.rows(query).await, *rows, "{what}");
                    }
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn values_go_to_the_columns_that_the_statement_names() {
    let server = TestServer::start().await;
    let waiting = Waiting::of(&server).await;
    let changes = "ALTER TABLE goods DROP COLUMN a; ALTER TABLE goods ADD COLUMN d int";
    let stays = "1,1,1,- 2,2,2,-";
    let upsert = "INSERT INTO goods (id, b) VALUES (1, 71) ON CONFLICT (id) DO UPDATE SET b = goods.b + excluded.b";
    let merge = "MERGE INTO goods USING (VALUES (8, 80), (1, 90)) s(i, v) ON goods.id = s.i
                 WHEN MATCHED THEN UPDATE SET b = s.v WHEN NOT MATCHED THEN INSERT (id, b) VALUES (s.i, s.v)";
    let cases = [
        ("INSERT INTO goods (id, a, b) VALUES (5, 50, 51)", "42703", stays),
        ("INSERT INTO goods (id, a, b) SELECT 6, 60, 61", "42703", stays),
        ("INSERT INTO goods VALUES (9, 91, 92, 93)", "1", "1,1,1,- 2,2,2,- 9,91,92,93"),
        ("INSERT INTO goods (id, b) SELECT 6, 61", "1", "1,1,1,- 2,2,2,- 6,61,-,-"),
        ("INSERT INTO goods (id, b) VALUES (6, 61) RETURNING *", "1", "1,1,1,- 2,2,2,- 6,61,-,-"),
        (upsert, "1", "1,72,1,- 2,2,2,-"),
        (merge, "2", "1,90,1,- 2,2,2,- 8,80,-,-"),
        ("UPDATE goods SET b = b + 1 WHERE id = 1", "1", "1,2,1,- 2,2,2,-"),
        ("UPDATE goods SET a = a + 1 WHERE id = 1", "42703", stays),
        ("UPDATE goods SET b = y FROM source WHERE id = 1", "1", "1,11,1,- 2,2,2,-"),
        ("DELETE FROM goods WHERE b = 1 AND c = 1", "1", "2,2,2,-"),
        ("SELECT id FROM goods WHERE id = 1 FOR UPDATE", "1", stays),
        ("SELECT a FROM goods WHERE id = 1 FOR UPDATE", "42703", stays),
    ];
    waiting.check("tidepool", "", changes, "SELECT * FROM goods ORDER BY id", &cases).await;
    // What was changed and taken back changes nothing.
    for way in WAYS {
        let insert = "INSERT INTO goods (id, a, b) SELECT 6, 60, 61";
        let found = waiting.outcome(way, "clerk", false, "", changes, insert, "ROLLBACK").await;
        assert_eq!(
            (found.as_str(), waiting.rows("SELECT a, b FROM goods WHERE id = 6").await.as_str()),
            ("1", "60,61")
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn constraints_defaults_and_indexes_are_those_of_afterwards() {
    let server = TestServer::start().await;
    let waiting = Waiting::of(&server).await;
    let all = "SELECT * FROM goods ORDER BY id, b";
    let stays = "1,1,1,1 2,2,2,2";
    let cases = [
        ("INSERT INTO goods (id) VALUES (5)", "1", "1,1,1,1 2,2,2,2 5,77,-,-"),
        ("INSERT INTO goods (id) SELECT 5", "1", "1,1,1,1 2,2,2,2 5,77,-,-"),
    ];
    waiting.check("clerk", "", "ALTER TABLE goods ALTER a SET DEFAULT 77", all, &cases).await;
    let cases = [
        ("INSERT INTO goods (id, b) SELECT 5, 5", "1", "1,1,x1,1 2,2,x2,2 5,1,5,-"),
        ("UPDATE goods SET b = 7 WHERE id = 1", "1", "1,1,7,1 2,2,x2,2"),
    ];
    waiting.check("clerk", "", "ALTER TABLE goods ALTER b TYPE text USING 'x' || b", all, &cases).await;
    let cases =
        [("INSERT INTO goods (id) VALUES (5)", "23502", stays), ("INSERT INTO goods (id) SELECT 5", "23502", stays)];
    waiting.check("clerk", "", "ALTER TABLE goods ALTER c SET NOT NULL", all, &cases).await;
    let cases = [
        ("INSERT INTO goods (id, b) SELECT 5, 5", "23514", stays),
        ("UPDATE goods SET b = 9 WHERE id = 1", "23514", stays),
    ];
    waiting.check("clerk", "", "ALTER TABLE goods ADD CHECK (b < 3)", all, &cases).await;
    let cases = [
        ("INSERT INTO goods (id, b) SELECT 5, 1", "23505", stays),
        ("UPDATE goods SET b = 1 WHERE id = 2", "23505", stays),
    ];
    waiting.check("clerk", "", "CREATE UNIQUE INDEX ON goods (b)", all, &cases).await;
    let cases = [
        ("INSERT INTO goods (id, b) VALUES (1, 5) ON CONFLICT (id) DO NOTHING", "42P10", stays),
        ("INSERT INTO goods (id, b) SELECT 1, 5", "1", "1,1,1,1 1,1,5,- 2,2,2,2"),
    ];
    waiting.check("clerk", "", "ALTER TABLE goods DROP CONSTRAINT goods_pkey", all, &cases).await;
    let cases = [
        ("UPDATE goods SET a = 3 WHERE id = 1", "0", ""),
        ("DELETE FROM goods WHERE a = 1", "0", ""),
        ("SELECT id FROM goods WHERE id = 1 FOR UPDATE", "0", ""),
        ("INSERT INTO goods (id) VALUES (1) ON CONFLICT DO NOTHING", "1", "1,1,-,-"),
    ];
    waiting.check("clerk", "", "TRUNCATE goods", all, &cases).await;
    let change = "CREATE SEQUENCE numbers START 500; ALTER TABLE goods ALTER a SET DEFAULT nextval('numbers')";
    let cases = [("INSERT INTO goods (id) SELECT 6", "42501", stays)];
    waiting.check("clerk", "DROP SEQUENCE IF EXISTS numbers", change, all, &cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn names_and_privileges_are_asked_for_again() {
    let server = TestServer::start().await;
    let waiting = Waiting::of(&server).await;
    let writes = [
        "INSERT INTO goods (id, a) VALUES (5, 6)",
        "INSERT INTO goods (id, a) SELECT 5, 6",
        "INSERT INTO goods (id, a) VALUES (1, 5) ON CONFLICT (id) DO UPDATE SET a = 9",
        "MERGE INTO goods USING source ON id = x WHEN NOT MATCHED THEN INSERT (id) VALUES (x)",
        "UPDATE goods SET a = 3 WHERE id = 1",
        "UPDATE goods SET a = 3 WHERE b = 1",
        "DELETE FROM goods WHERE id = 1",
        "SELECT id FROM goods WHERE id = 1 FOR UPDATE",
        "TRUNCATE goods",
    ];
    let anew =
        "DROP TABLE goods; CREATE TABLE goods (id int PRIMARY KEY, a int, b int, c int); INSERT INTO goods VALUES (1)";
    let revoke = "REVOKE ALL ON goods FROM clerk; ALTER TABLE goods ADD COLUMN d int";
    let renamed = "ALTER TABLE goods RENAME TO goods2";
    let member = "REVOKE ALL ON goods FROM clerk; GRANT ALL ON goods TO staff; GRANT staff TO clerk";
    let left = "REVOKE staff FROM clerk; ALTER TABLE goods ADD COLUMN d int";
    for (role, before, changes, outcome) in [
        ("clerk", "", anew, "42501"),
        ("clerk", "", revoke, "42501"),
        ("clerk", member, left, "42501"),
        ("clerk", "", renamed, "42P01"),
        ("tidepool", "", renamed, "42P01"),
        ("tidepool", "", "DROP TABLE goods", "42P01"),
    ] {
        let cases: Vec<(&str, &str, &str)> = writes.iter().map(|statement| (*statement, outcome, "")).collect();
        waiting.check(role, before, changes, "", &cases).await;
    }
    // Another table has the name, with its columns in another order.
    let swapped = "ALTER TABLE goods RENAME TO goods2; CREATE TABLE goods (a int, id int PRIMARY KEY)";
    let cases = [
        ("INSERT INTO goods (id, a) VALUES (5, 6)", "1", "6,5"),
        ("INSERT INTO goods (id, a) SELECT 7, 8", "1", "8,7"),
        ("UPDATE goods SET a = 3 WHERE id = 1", "0", ""),
    ];
    waiting.check("tidepool", "", swapped, "SELECT * FROM goods", &cases).await;
    let schema = "CREATE SCHEMA side; GRANT USAGE ON SCHEMA side TO clerk; CREATE TABLE side.t (a int); GRANT ALL ON side.t TO clerk";
    let changes = "REVOKE USAGE ON SCHEMA side FROM clerk; ALTER TABLE side.t ADD COLUMN z int";
    let cases = [("INSERT INTO side.t VALUES (1)", "42501", ""), ("UPDATE side.t SET a = 3", "42501", "")];
    waiting.check("clerk", schema, changes, "SELECT * FROM side.t", &cases).await;
    // What is read beside the table that is waited for.
    let from_source = [
        ("INSERT INTO goods (id, b) SELECT x, y FROM source", "42501", ""),
        ("UPDATE goods SET b = y FROM source WHERE id = 1", "42501", ""),
    ];
    let changes = "REVOKE ALL ON source FROM clerk; ALTER TABLE goods ADD COLUMN d int";
    waiting.check("clerk", "", changes, "", &from_source).await;
    let changes = "CREATE OR REPLACE VIEW seen AS SELECT y + 100 AS x, x + 100 AS y FROM source;
                   ALTER TABLE goods ADD COLUMN d int";
    let cases = [
        ("INSERT INTO goods (id, b) SELECT x, y FROM seen", "1", "1,1 2,2 111,110"),
        ("UPDATE goods SET b = (SELECT y FROM seen) WHERE id = 1", "1", "1,110 2,2"),
    ];
    waiting.check("clerk", "", changes, "SELECT id, b FROM goods ORDER BY id", &cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn partitions_are_those_of_afterwards() {
    let server = TestServer::start().await;
    let waiting = Waiting::of(&server).await;
    let cases = [
        ("INSERT INTO parts VALUES (5, 1)", "23514", "1,1"),
        ("INSERT INTO parts SELECT 6, 1", "23514", "1,1"),
        ("UPDATE parts SET id = 9 WHERE k = 1", "0", "1,1"),
        ("DELETE FROM parts WHERE k = 1", "0", "1,1"),
    ];
    waiting.check("clerk", "", "ALTER TABLE parts DETACH PARTITION part", "SELECT * FROM part", &cases).await;
    let changes = "ALTER TABLE parts DROP COLUMN id; ALTER TABLE parts ADD COLUMN z int";
    let cases =
        [("INSERT INTO parts (id, k) SELECT 5, 1", "42703", "1,-"), ("INSERT INTO parts (k) SELECT 1", "1", "1,- 1,-")];
    waiting.check("tidepool", "", changes, "SELECT * FROM parts", &cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn definitions_that_wait_are_read_again() {
    let server = TestServer::start().await;
    let waiting = Waiting::of(&server).await;
    let dropped = [
        ("CREATE INDEX ON goods (c)", "42703", ""),
        ("CREATE UNIQUE INDEX ON goods (c)", "42703", ""),
        ("ALTER TABLE goods DROP COLUMN c", "42703", ""),
        ("ALTER TABLE goods DROP COLUMN IF EXISTS c", "0", ""),
        ("ALTER TABLE goods ALTER c TYPE bigint", "42703", ""),
        ("ALTER TABLE goods ALTER c SET DEFAULT 3", "42703", ""),
        ("ALTER TABLE goods ADD CHECK (c > 0)", "42703", ""),
        ("ALTER TABLE goods ADD FOREIGN KEY (c) REFERENCES goods (id)", "42703", ""),
    ];
    waiting.check("tidepool", "", "ALTER TABLE goods DROP COLUMN c", "", &dropped).await;
    let gone = [
        ("ALTER TABLE goods ADD COLUMN z int", "42P01", ""),
        ("DROP TABLE goods", "42P01", ""),
        ("DROP TABLE IF EXISTS goods", "0", ""),
        ("TRUNCATE goods", "42P01", ""),
        ("CREATE INDEX ON goods (b)", "42P01", ""),
    ];
    waiting.check("tidepool", "", "DROP TABLE goods", "", &gone).await;
    waiting.check("tidepool", "", "ALTER TABLE goods RENAME TO goods2", "", &gone).await;
    let owned = [
        ("ALTER TABLE goods ADD COLUMN z int", "42501", ""),
        ("DROP TABLE goods", "42501", ""),
        ("CREATE INDEX ON goods (b)", "42501", ""),
        ("TRUNCATE goods", "42501", ""),
    ];
    let changes = "ALTER TABLE goods OWNER TO staff; ALTER TABLE goods ADD COLUMN d int";
    waiting.check("clerk", "ALTER TABLE goods OWNER TO clerk", changes, "", &owned).await;
    // Whoever waits to change privileges changes what they are then.
    let has = "SELECT has_table_privilege('staff', 'goods', 'SELECT'), has_table_privilege('staff', 'goods', 'INSERT')";
    let cases = [("GRANT SELECT ON goods TO staff", "0", "t,t"), ("REVOKE INSERT ON goods FROM staff", "0", "f,f")];
    waiting.check("tidepool", "", "GRANT INSERT ON goods TO staff", has, &cases).await;
}

/// A view is made without its tables' locks: whoever commits second is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_column_goes_with_no_view_left_behind() {
    let server = TestServer::start().await;
    let (first, second) = (server.connect().await, server.connect().await);
    first.batch_execute("CREATE TABLE t (a int, b int)").await.unwrap();
    first.batch_execute("BEGIN; ALTER TABLE t DROP COLUMN b").await.unwrap();
    second.batch_execute("CREATE VIEW v AS SELECT b FROM t").await.unwrap();
    assert_eq!(code(&first.batch_execute("COMMIT").await.unwrap_err()), "2BP01");
    first.batch_execute("SELECT b FROM v; DROP VIEW v").await.unwrap();
    second.batch_execute("BEGIN; CREATE VIEW v AS SELECT b FROM t").await.unwrap();
    first.batch_execute("ALTER TABLE t DROP COLUMN b").await.unwrap();
    assert_eq!(code(&second.batch_execute("COMMIT").await.unwrap_err()), "42703");
}

/// A transaction with one snapshot is not planned anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_transaction_of_one_snapshot_fails() {
    let server = TestServer::start().await;
    let waiting = Waiting::of(&server).await;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        for changes in [
            "ALTER TABLE goods ADD COLUMN d int",
            "REVOKE ALL ON goods FROM clerk; ALTER TABLE goods ADD COLUMN d int",
            "DROP TABLE goods; CREATE TABLE goods (id int PRIMARY KEY, a int, b int, c int)",
        ] {
            for statement in ["INSERT INTO goods (id) SELECT 5", "UPDATE goods SET a = 3 WHERE id = 1"] {
                for way in WAYS {
                    let before = format!("ALTER ROLE clerk SET default_transaction_isolation = '{level}'");
                    let found = waiting.outcome(way, "clerk", true, &before, changes, statement, "COMMIT").await;
                    assert_eq!(found, "40001", "{way:?}, {level}: {changes}; {statement}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_copy_is_planned_anew_until_it_asks_for_its_rows() {
    let server = TestServer::start().await;
    let waiting = Waiting::of(&server).await;
    for (role, changes, statement, outcome) in [
        ("tidepool", "ALTER TABLE goods DROP COLUMN a", "COPY goods (id, a) FROM STDIN", "42703"),
        ("tidepool", "ALTER TABLE goods RENAME TO goods2", "COPY goods FROM STDIN", "42P01"),
        (
            "clerk",
            "REVOKE ALL ON goods FROM clerk; ALTER TABLE goods ADD COLUMN d int",
            "COPY goods (id) FROM STDIN",
            "42501",
        ),
        ("clerk", "ALTER TABLE goods DROP COLUMN a", "COPY goods (id, b) FROM STDIN", "1"),
        ("clerk", "ALTER TABLE parts DETACH PARTITION part", "COPY parts FROM STDIN", "23514"),
    ] {
        for text in [DROPPED, TABLES] {
            waiting.owner.batch_execute(text).await.unwrap();
        }
        let client = connect(server.config().user(role)).await.unwrap();
        waiting.owner.batch_execute(&format!("BEGIN; {changes}")).await.unwrap();
        let waiter = tokio::spawn(async move {
            use futures::SinkExt;
            let copied = async {
                let sink = client.copy_in::<_, bytes::Bytes>(statement).await?;
                let mut sink = std::pin::pin!(sink);
                let row = if statement.contains("(id)") { "7\n" } else { "7\t1\n" };
                sink.send(bytes::Bytes::from_static(row.as_bytes())).await?;
                sink.finish().await
            };
            match copied.await {
                Ok(rows) => rows.to_string(),
                Err(error) => code(&error).to_owned(),
            }
        });
        waiting.wait_for(statement, &waiter).await;
        waiting.owner.batch_execute("COMMIT").await.unwrap();
        assert_eq!(waiter.await.unwrap(), outcome, "{changes}; {statement}");
    }
}

/// Statements that need no lock to wait for, beside one that alters their table all the time: each is of one definition.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writers_beside_an_altered_table_write_the_right_columns() {
    let server = TestServer::start().await;
    let owner = server.connect().await;
    owner.batch_execute("CREATE TABLE busy (k bigserial PRIMARY KEY, g int, v text, p int)").await.unwrap();
    let statements = [
        "INSERT INTO busy (g, v, p) VALUES (1, 'v', 1)",
        "INSERT INTO busy (g, v, p) SELECT 1, 'v', 1",
        "INSERT INTO busy (k, g, v, p) VALUES (0, 1, 'v', 1) ON CONFLICT (k) DO UPDATE SET v = 'w'",
        "UPDATE busy SET v = 'y' WHERE k = 0",
        "MERGE INTO busy USING (VALUES (0)) s(a) ON k = a WHEN MATCHED THEN UPDATE SET v = 'm'",
    ];
    let mut writers = Vec::new();
    for statement in statements {
        let client = server.connect().await;
        writers.push(tokio::spawn(async move {
            for _ in 0..40 {
                client.simple_query(statement).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
            }
        }));
    }
    while !writers.iter().all(tokio::task::JoinHandle::is_finished) {
        owner.batch_execute("ALTER TABLE busy ADD COLUMN z int DEFAULT 7").await.unwrap();
        owner.batch_execute("ALTER TABLE busy DROP COLUMN z").await.unwrap();
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let wrong = owner.query("SELECT 1 FROM busy WHERE g <> 1 OR p <> 1 OR v NOT IN ('v', 'w', 'y', 'm')", &[]).await;
    assert!(wrong.unwrap().is_empty());
}
