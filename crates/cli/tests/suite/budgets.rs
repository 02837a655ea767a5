//! What statements take of the heap beyond their budgets: next to nothing, wherever the budget ends.

use crate::server::{MIB, Setup, TestServer, code};
use tidepool_database::Config;

/// Each needs much for something else: rows, their directories and lists of them, keys, and columns of windows. Of few groups, whose
/// distinct values come to few parts, one worker makes all of a part's lists.
const QUERIES: [&str; 5] = [
    "SELECT few, count(DISTINCT text), count(DISTINCT number) FROM t GROUP BY few",
    "SELECT count(*) FROM (SELECT number, count(*), max(text) FROM t GROUP BY number) AS s",
    "SELECT count(*), max(a.text || b.text) FROM t a JOIN t b ON a.number = b.id WHERE b.text <> a.text",
    "SELECT text, id FROM t ORDER BY text DESC, id OFFSET 899990",
    "SELECT max(n), max(s), max(m) FROM (SELECT row_number() OVER w AS n, sum(number) OVER w AS s,
         max(number) OVER (w ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS m
     FROM t WINDOW w AS (ORDER BY number, id)) AS s",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn budgets_hold_within_a_hundredth() {
    let config = Config { threads: 2, ..Config::in_memory(1024 * MIB, 16 * MIB) };
    let server = TestServer::with(Setup { config: Some(config), ..Setup::default() }).await;
    let client = server.connect().await;
    let rows = "SELECT i AS id, i % 3 AS few, i::bigint * 7919 % 900001 AS number, 'the text of row ' || i AS text
                FROM generate_series(1, 900000) AS g(i)";
    client.batch_execute(&format!("CREATE TABLE t AS {rows}")).await.unwrap();
    let peak = async |query: &str| {
        let of = query.replace('\'', "''");
        let peak =
            format!("SELECT heap_bytes_peak FROM tidepool.queries WHERE query = '{of}' ORDER BY id DESC LIMIT 1");
        client.query_one(&peak, &[]).await.unwrap().get::<_, i64>(0) as u64
    };
    let mut refused = 0;
    for query in QUERIES {
        client.batch_execute("SET tidepool.statement_memory = 0").await.unwrap();
        client.simple_query(query).await.unwrap();
        let need = peak(query).await;
        // Less is not far above what a batch of rows takes.
        for budget in [0.95, 0.8, 0.65, 0.5, 0.35].map(|part| (need as f64 * part) as u64) {
            if budget < 24 * MIB {
                continue;
            }
            client.batch_execute(&format!("SET tidepool.statement_memory = '{budget}B'")).await.unwrap();
            if let Err(error) = client.simple_query(query).await {
                assert_eq!(code(&error), "53200", "{error:?}");
                refused += 1;
            }
            let held = peak(query).await;
            assert!(held <= budget + budget / 100, "{query} held {held} of {budget}, and needs {need}");
        }
    }
    assert!(refused >= 10, "{refused} budgets were too small");
}

/// Without a budget, a session's cursors leave half of the tablespaces to others.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn cursors_without_a_budget_leave_room() {
    let config = Config { threads: 2, ..Config::in_memory(192 * MIB, 16 * MIB) };
    let server = TestServer::with(Setup { config: Some(config), ..Setup::default() }).await;
    let (client, other) = (server.connect().await, server.connect().await);
    let rows = "SELECT i AS id, 'the text of row ' || i AS text FROM generate_series(1, 300000) AS g(i)";
    client.batch_execute(&format!("CREATE TABLE t AS {rows}")).await.unwrap();
    client.batch_execute("BEGIN").await.unwrap();
    let mut refused = None;
    for cursor in 0..200 {
        // So far that what is made ahead of the client has been made: what finds no room there is told when it is fetched.
        let declared =
            format!("DECLARE c{cursor} CURSOR FOR SELECT * FROM t ORDER BY text DESC; MOVE 100000 FROM c{cursor}");
        if let Err(error) = client.batch_execute(&declared).await {
            assert_eq!(code(&error), "53200", "{error:?}");
            refused = Some(error);
            break;
        }
    }
    let refused = refused.expect("cursors had room without end");
    assert!(refused.as_db_error().unwrap().detail().unwrap().contains("open cursors"), "{refused:?}");
    // While they are open: the last one's statement failed, but not what those before it hold.
    let sorted = other.query_one("SELECT count(*) FROM (SELECT * FROM t ORDER BY text OFFSET 1) AS s", &[]).await;
    assert_eq!(sorted.unwrap().get::<_, i64>(0), 299_999);
}

/// A session's cursors have one statement's budget together, and give it back when they are closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn cursors_share_a_budget() {
    let config = Config { threads: 2, ..Config::in_memory(512 * MIB, 16 * MIB) };
    let server = TestServer::with(Setup { config: Some(config), ..Setup::default() }).await;
    let client = server.connect().await;
    let rows = "SELECT i AS id, 'the text of row ' || i AS text FROM generate_series(1, 300000) AS g(i)";
    client.batch_execute(&format!("CREATE TABLE t AS {rows}")).await.unwrap();
    client.batch_execute("SET tidepool.statement_memory = '128MB'").await.unwrap();
    for _ in 0..2 {
        client.batch_execute("BEGIN").await.unwrap();
        let mut refused = None;
        // A dozen of them would hold more than the budget many times over.
        for cursor in 0..40 {
            let declared =
                format!("DECLARE c{cursor} CURSOR FOR SELECT * FROM t ORDER BY text DESC; FETCH 1 FROM c{cursor}");
            if let Err(error) = client.batch_execute(&declared).await {
                assert_eq!(code(&error), "53200", "{error:?}");
                refused = Some(cursor);
                break;
            }
        }
        let refused = refused.expect("cursors had room without end");
        assert!(refused > 0, "one cursor is within the budget");
        client.batch_execute("ROLLBACK").await.unwrap();
        client.batch_execute(&format!("SELECT count(*) FROM ({rows} ORDER BY text) AS s")).await.unwrap();
    }
}
