//! What serializable transactions are refused for, and what not: what one read and another one changed meanwhile.

use crate::server::{TestServer, code};
use tokio_postgres::Client;

async fn run(client: &Client, sql: &str) -> Result<(), String> {
    client.batch_execute(sql).await.map_err(|error| code(&error).to_owned())
}

const MAKE: &str = "DROP TABLE IF EXISTS child, test, other, parts; DROP TABLE IF EXISTS more, parts_1, parts_2;
    CREATE TABLE test (id int PRIMARY KEY, value int, note text);
    CREATE TABLE other (id int PRIMARY KEY);
    CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES test);
    CREATE INDEX test_value ON test (value);
    INSERT INTO test SELECT i, i * 10, 'note ' || i FROM generate_series(1, 40) AS g(i);
    INSERT INTO child VALUES (1, 3);
    CREATE TABLE parts (id int, value int) PARTITION BY RANGE (id);
    CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10);
    CREATE TABLE more (id int, value int); INSERT INTO more VALUES (15, 1)";

/// What the first does before, and after, the second has done something and committed; and whether the first can then commit.
async fn expect(cases: &[(&str, &str, &str, bool)]) {
    let server = TestServer::start().await;
    let (one, two) = (server.connect().await, server.connect().await);
    for merged in [false, true] {
        for (reads, change, writes, holds) in cases {
            let about = format!("{reads}; {change}; {writes}; merged: {merged}");
            run(&two, MAKE).await.unwrap();
            if merged {
                run(&two, "CALL tidepool.merge('test')").await.unwrap();
            }
            run(&one, &format!("BEGIN ISOLATION LEVEL SERIALIZABLE; {reads}")).await.expect(&about);
            let level = if change.contains("INDEX") { "" } else { "BEGIN ISOLATION LEVEL SERIALIZABLE; " };
            let end = if level.is_empty() { "" } else { "; COMMIT" };
            run(&two, &format!("{level}{change}{end}")).await.expect(&about);
            run(&one, writes).await.expect(&about);
            let expected = if *holds { Ok(()) } else { Err("40001".to_owned()) };
            assert_eq!(run(&one, "COMMIT").await, expected, "{about}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn who_writes_other_rows_of_the_same_table_is_in_nobodys_way() {
    let write = "UPDATE test SET note = 'mine' WHERE id = 20";
    expect(&[
        ("UPDATE test SET value = 11 WHERE id = 1", "UPDATE test SET value = 21 WHERE id = 2", write, true),
        ("SELECT * FROM test WHERE id = 1", "DELETE FROM test WHERE id = 2; INSERT INTO test VALUES (50)", write, true),
        // By range of an index, and by conditions that none has.
        ("SELECT count(*) FROM test WHERE id < 5", "INSERT INTO test VALUES (50, 500, 'x')", write, true),
        (
            "SELECT sum(id) FROM test WHERE value BETWEEN 30 AND 50",
            "UPDATE test SET value = 70 WHERE id = 6",
            write,
            true,
        ),
        ("SELECT count(*) FROM test WHERE note = 'note 1'", "UPDATE test SET note = 'x' WHERE id = 7", write, true),
        ("SELECT count(*) FROM test WHERE note IS NULL", "INSERT INTO test VALUES (50, 1, 'x')", write, true),
        ("SELECT 1 FROM test WHERE id IN (1, 3, 5)", "UPDATE test SET value = 0 WHERE id IN (2, 4)", write, true),
        // Inserting finds nothing out but that the key is free.
        ("INSERT INTO test VALUES (51)", "INSERT INTO test VALUES (52)", write, true),
        ("INSERT INTO test VALUES (1) ON CONFLICT DO NOTHING", "UPDATE test SET value = 0 WHERE id = 2", write, true),
        (
            "INSERT INTO child VALUES (2, 5)",
            "UPDATE test SET value = 0 WHERE id = 5; DELETE FROM test WHERE id = 6",
            write,
            true,
        ),
        ("SELECT count(*) FROM parts WHERE id < 5", "INSERT INTO parts VALUES (7, 7)", write, true),
        // What is rolled back has not been.
        ("SELECT * FROM test", "SAVEPOINT a; DELETE FROM test WHERE id > 5; ROLLBACK TO a", write, true),
        ("SELECT * FROM test", "SELECT * FROM test WHERE id = 1 FOR UPDATE", write, true),
        // Who only reads did so as of then.
        ("SELECT count(*) FROM test", "DELETE FROM test WHERE id = 1", "SELECT sum(value) FROM test", true),
        // What it wrote itself it may read.
        ("UPDATE test SET value = 0; SELECT * FROM test", "INSERT INTO other VALUES (1)", write, true),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn who_read_what_changed_is_refused() {
    let write = "UPDATE test SET note = 'mine' WHERE id = 20";
    let elsewhere = "INSERT INTO other VALUES (1)";
    expect(&[
        ("SELECT * FROM test WHERE id = 2", "UPDATE test SET value = 21 WHERE id = 2", write, false),
        ("SELECT * FROM test WHERE id = 2", "DELETE FROM test WHERE id = 2", elsewhere, false),
        ("SELECT * FROM test WHERE id = 50", "INSERT INTO test VALUES (50)", write, false),
        ("SELECT count(*) FROM test WHERE id < 0", "UPDATE test SET id = -1 WHERE id = 7", write, false),
        // Rows that come into what was asked for, and rows that leave it.
        ("SELECT * FROM test WHERE value = 25", "UPDATE test SET value = 25 WHERE id = 7", write, false),
        ("SELECT * FROM test WHERE value = 30", "UPDATE test SET value = 25 WHERE id = 3", write, false),
        ("SELECT count(*) FROM test WHERE note = 'x'", "UPDATE test SET note = 'x' WHERE id = 7", write, false),
        ("SELECT count(*) FROM test WHERE note = 'note 7'", "UPDATE test SET note = 'x' WHERE id = 7", write, false),
        ("SELECT 1 FROM test WHERE id + 0 = 50", "INSERT INTO test VALUES (50)", elsewhere, false),
        // A count that may come from statistics.
        ("SELECT count(*) FROM test", "INSERT INTO test VALUES (50)", elsewhere, false),
        ("SELECT max(id) FROM test", "INSERT INTO test VALUES (50)", elsewhere, false),
        // By way of a join, and of a subquery.
        (
            "SELECT * FROM child JOIN test ON parent = test.id",
            "UPDATE test SET value = 0 WHERE id = 3",
            elsewhere,
            false,
        ),
        (
            "INSERT INTO other SELECT max(value) FROM test WHERE id < 4",
            "DELETE FROM test WHERE id = 1",
            "SELECT 1",
            false,
        ),
        // What is changed twice, or comes and goes and comes.
        ("SELECT * FROM test WHERE id = 2", "DELETE FROM test WHERE id = 2; INSERT INTO test VALUES (2)", write, false),
        // What statements find out by the way.
        ("INSERT INTO test VALUES (1) ON CONFLICT DO NOTHING", "DELETE FROM test WHERE id = 1", write, false),
        (
            "INSERT INTO test VALUES (1) ON CONFLICT (id) DO UPDATE SET value = 1 WHERE test.value = 0",
            "UPDATE test SET value = 0 WHERE id = 1",
            write,
            false,
        ),
        // What another table is in the place of.
        ("SELECT * FROM test WHERE id = 1", "TRUNCATE test, child", elsewhere, false),
        ("SELECT * FROM test WHERE id = 1", "DROP TABLE child, test", elsewhere, false),
        (
            "SELECT * FROM test WHERE id = 1",
            "ALTER TABLE test SET TABLESPACE far; UPDATE test SET value = 0 WHERE id = 1",
            elsewhere,
            false,
        ),
        // Partitions that come and go.
        ("SELECT count(*) FROM parts", "INSERT INTO parts VALUES (5, 5)", elsewhere, false),
        (
            "SELECT count(*) FROM parts WHERE value = 1",
            "ALTER TABLE parts ATTACH PARTITION more FOR VALUES FROM (10) TO (20)",
            elsewhere,
            false,
        ),
        ("SELECT count(*) FROM parts WHERE value = 1", "ALTER TABLE parts DETACH PARTITION parts_1", elsewhere, false),
        (
            "SELECT count(*) FROM parts",
            "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20); INSERT INTO parts VALUES (12, 1)",
            elsewhere,
            false,
        ),
        // The index that it went by is no more, or another one.
        (
            "SELECT * FROM test WHERE value = 25",
            "DROP INDEX test_value; INSERT INTO test VALUES (50, 25)",
            elsewhere,
            false,
        ),
        (
            "SELECT * FROM test WHERE value = 30",
            "DROP INDEX test_value; UPDATE test SET value = 0 WHERE id = 3",
            elsewhere,
            false,
        ),
    ])
    .await;
}

/// An error, too, tells something of what there is.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn who_goes_on_after_an_error_has_read_what_it_says() {
    let server = TestServer::start().await;
    let (one, two) = (server.connect().await, server.connect().await);
    for (fails, code, change, holds) in [
        ("INSERT INTO test VALUES (5)", "23505", "DELETE FROM test WHERE id = 5", false),
        ("INSERT INTO child VALUES (2, 77)", "23503", "INSERT INTO test VALUES (77)", false),
        ("DELETE FROM test WHERE id = 3", "23503", "DELETE FROM child WHERE id = 1", false),
        ("INSERT INTO test VALUES (5)", "23505", "INSERT INTO other VALUES (2)", true),
    ] {
        run(&two, MAKE).await.unwrap();
        run(&one, "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT 1; SAVEPOINT a").await.unwrap();
        assert_eq!(run(&one, fails).await, Err(code.to_owned()), "{fails}");
        run(&one, "ROLLBACK TO a").await.unwrap();
        run(&two, change).await.unwrap();
        run(&one, "INSERT INTO other VALUES (1)").await.unwrap();
        let expected = if holds { Ok(()) } else { Err("40001".to_owned()) };
        assert_eq!(run(&one, "COMMIT").await, expected, "{fails}; {change}");
    }
}
