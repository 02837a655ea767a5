//! The standard anomalies, each as a script of two or three sessions, at each level: which are there, and what prevents the others.
//!
//! Most are Hermitage's (Kleppmann 2014, after Adya 1999), under their names; a blocked statement runs on when what it waits for
//! is over. Each runs over rows in delta and over rows in main.

use crate::server::{TestServer, code, pid};
use std::sync::Arc;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

type Outcome = Result<(), String>;

fn refused() -> Outcome {
    Err("40001".to_owned())
}

/// Sessions in transactions of one level.
struct Script {
    server: TestServer,
    level: &'static str,
    outside: Client,
}

#[derive(Clone)]
struct Session(Arc<Client>);

impl Session {
    async fn run(&self, sql: &str) -> Outcome {
        self.0.batch_execute(sql).await.map_err(|error| code(&error).to_owned())
    }

    async fn ok(&self, sql: &str) {
        assert_eq!(self.run(sql).await, Ok(()), "{sql}");
    }

    /// The rows' values, in the order of their ids.
    async fn values(&self, clause: &str) -> Vec<i32> {
        let sql = format!("SELECT value FROM test WHERE {clause} ORDER BY id");
        self.0.query(&sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
    }

    async fn value(&self, id: i32) -> i32 {
        self.values(&format!("id = {id}")).await[0]
    }

    async fn commit(&self) -> Outcome {
        self.run("COMMIT").await
    }
}

impl Script {
    /// A statement that has to wait for another session.
    async fn blocked(&self, session: &Session, sql: &'static str) -> JoinHandle<Outcome> {
        let (session, pid) = (session.clone(), pid(&session.0).await);
        let waiting = tokio::spawn(async move { session.run(sql).await });
        self.server.until_waiting(pid, &waiting).await;
        waiting
    }

    fn is(&self, level: &str) -> bool {
        self.level == level
    }

    async fn begin<const N: usize>(&self) -> [Session; N] {
        let mut sessions = Vec::new();
        for _ in 0..N {
            let session = Session(Arc::new(self.server.connect().await));
            // The snapshot is drawn by the first statement.
            session.ok(&format!("BEGIN ISOLATION LEVEL {}; SELECT 1", self.level)).await;
            sessions.push(session);
        }
        sessions.try_into().ok().expect("as many as were made")
    }

    /// What is there, of nobody's transaction.
    async fn rows(&self) -> Vec<(i32, i32)> {
        let rows = self.outside.query("SELECT id, value FROM test ORDER BY id", &[]).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    /// What two come to of which the second is refused if transactions are serializable.
    fn skewed(&self, second: &Outcome) {
        let expected = if self.is("SERIALIZABLE") { refused() } else { Ok(()) };
        assert_eq!(*second, expected, "{}", self.level);
    }
}

/// Runs a script at each level, in delta and in main: of two rows (1, 10) and (2, 20).
async fn at_each_level(script: impl AsyncFn(&Script)) {
    let server = TestServer::start().await;
    let outside = server.connect().await;
    outside.batch_execute("CREATE TABLE test (id int PRIMARY KEY, value int)").await.unwrap();
    let mut one = Script { server, level: LEVELS[0], outside };
    for merged in [false, true] {
        for level in LEVELS {
            one.level = level;
            one.outside.batch_execute("TRUNCATE test; INSERT INTO test VALUES (1, 10), (2, 20)").await.unwrap();
            if merged {
                one.outside.batch_execute("CALL tidepool.merge('test')").await.unwrap();
            }
            script(&one).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g0_dirty_write() {
    at_each_level(async |script| {
        let [one, two] = script.begin().await;
        one.ok("UPDATE test SET value = 11 WHERE id = 1").await;
        let waiting = script.blocked(&two, "UPDATE test SET value = 12 WHERE id = 1").await;
        one.ok("UPDATE test SET value = 21 WHERE id = 2").await;
        one.ok("COMMIT").await;
        let updated = waiting.await.unwrap();
        if script.is("READ COMMITTED") {
            assert_eq!(updated, Ok(()));
            two.ok("UPDATE test SET value = 22 WHERE id = 2; COMMIT").await;
            assert_eq!(script.rows().await, [(1, 12), (2, 22)]);
        } else {
            assert_eq!(updated, refused());
            assert_eq!(script.rows().await, [(1, 11), (2, 21)]);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g1a_aborted_reads_and_dirty_reads() {
    at_each_level(async |script| {
        let [one, two] = script.begin().await;
        one.ok("UPDATE test SET value = 101 WHERE id = 1").await;
        assert_eq!(two.value(1).await, 10, "not committed yet");
        one.ok("ROLLBACK").await;
        assert_eq!(two.value(1).await, 10);
        two.ok("COMMIT").await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g1b_intermediate_reads() {
    at_each_level(async |script| {
        let [one, two] = script.begin().await;
        one.ok("UPDATE test SET value = 101 WHERE id = 1").await;
        assert_eq!(two.value(1).await, 10);
        one.ok("UPDATE test SET value = 11 WHERE id = 1; COMMIT").await;
        assert_eq!(two.value(1).await, if script.is("READ COMMITTED") { 11 } else { 10 });
        two.ok("COMMIT").await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g1c_circular_information_flow() {
    at_each_level(async |script| {
        let [one, two] = script.begin().await;
        one.ok("UPDATE test SET value = 11 WHERE id = 1").await;
        two.ok("UPDATE test SET value = 22 WHERE id = 2").await;
        assert_eq!(one.value(2).await, 20);
        assert_eq!(two.value(1).await, 10);
        one.ok("COMMIT").await;
        script.skewed(&two.commit().await);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn otv_observed_transaction_vanishes() {
    at_each_level(async |script| {
        let [one, two, three] = script.begin().await;
        one.ok("UPDATE test SET value = 11 WHERE id = 1; UPDATE test SET value = 19 WHERE id = 2").await;
        let waiting = script.blocked(&two, "UPDATE test SET value = 12 WHERE id = 1").await;
        one.ok("COMMIT").await;
        let updated = waiting.await.unwrap();
        if script.is("READ COMMITTED") {
            assert_eq!(updated, Ok(()));
            assert_eq!(three.value(1).await, 11);
            two.ok("UPDATE test SET value = 18 WHERE id = 2").await;
            assert_eq!(three.value(2).await, 19, "what it saw of the first one stays");
            two.ok("COMMIT").await;
            assert_eq!(three.values("true").await, [12, 18]);
        } else {
            assert_eq!(updated, refused());
            assert_eq!(three.values("true").await, [10, 20]);
        }
        three.ok("COMMIT").await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fuzzy_reads() {
    at_each_level(async |script| {
        let [one, two] = script.begin().await;
        assert_eq!(one.value(1).await, 10);
        two.ok("UPDATE test SET value = 11 WHERE id = 1; DELETE FROM test WHERE id = 2; COMMIT").await;
        let expected = if script.is("READ COMMITTED") { vec![11] } else { vec![10, 20] };
        assert_eq!(one.values("true").await, expected);
        one.ok("COMMIT").await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pmp_phantoms() {
    at_each_level(async |script| {
        let [one, two] = script.begin().await;
        assert!(one.values("value = 30").await.is_empty());
        two.ok("INSERT INTO test VALUES (3, 30); COMMIT").await;
        let expected = if script.is("READ COMMITTED") { vec![30] } else { vec![] };
        assert_eq!(one.values("value % 3 = 0").await, expected);
        assert_eq!(one.values("id > 2").await, expected);
        one.ok("COMMIT").await;
    })
    .await;
}

/// The row that was waited for is looked at again, and is another one by then; the one that it has become is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pmp_predicates_of_writes() {
    at_each_level(async |script| {
        let [one, two] = script.begin().await;
        one.ok("UPDATE test SET value = value + 10").await;
        let waiting = script.blocked(&two, "DELETE FROM test WHERE value = 20").await;
        one.ok("COMMIT").await;
        let deleted = waiting.await.unwrap();
        if script.is("READ COMMITTED") {
            assert_eq!(deleted, Ok(()));
            two.ok("COMMIT").await;
            assert_eq!(script.rows().await, [(1, 20), (2, 30)]);
        } else {
            assert_eq!(deleted, refused());
            assert_eq!(script.rows().await, [(1, 20), (2, 30)]);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn p4_lost_update() {
    at_each_level(async |script| {
        let [one, two] = script.begin().await;
        assert_eq!(one.value(1).await, 10);
        assert_eq!(two.value(1).await, 10);
        one.ok("UPDATE test SET value = 11 WHERE id = 1").await;
        let waiting = script.blocked(&two, "UPDATE test SET value = 12 WHERE id = 1").await;
        one.ok("COMMIT").await;
        let updated = waiting.await.unwrap();
        assert_eq!(updated, if script.is("READ COMMITTED") { Ok(()) } else { refused() });
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g_single_read_skew() {
    at_each_level(async |script| {
        let [one, two, three] = script.begin().await;
        assert_eq!(one.value(1).await, 10);
        assert_eq!(three.value(1).await, 10);
        two.ok("UPDATE test SET value = 12 WHERE id = 1; UPDATE test SET value = 18 WHERE id = 2; COMMIT").await;
        assert_eq!(one.value(2).await, if script.is("READ COMMITTED") { 18 } else { 20 });
        one.ok("COMMIT").await;
        // The same where the second look is for a write.
        let deleted = three.run("DELETE FROM test WHERE value = 20").await;
        assert_eq!(deleted, if script.is("READ COMMITTED") { Ok(()) } else { refused() });
        three.ok("ROLLBACK").await;
        assert_eq!(script.rows().await, [(1, 12), (2, 18)]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g2_item_write_skew() {
    at_each_level(async |script| {
        let [one, two] = script.begin().await;
        assert_eq!(one.values("id IN (1, 2)").await, [10, 20]);
        assert_eq!(two.values("id IN (1, 2)").await, [10, 20]);
        one.ok("UPDATE test SET value = 11 WHERE id = 1").await;
        two.ok("UPDATE test SET value = 21 WHERE id = 2").await;
        one.ok("COMMIT").await;
        script.skewed(&two.commit().await);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn g2_predicate_write_skew() {
    let predicates = ["value % 3 = 0", "value >= 30", "id > 2", "id IN (3, 4)", "value IN (30, 42)"];
    let changes = [
        // Rows that come into the predicate, by being made or by being changed; of the latter the first ones' ids are not in it.
        ("INSERT INTO test VALUES (3, 30)", "INSERT INTO test VALUES (4, 42)"),
        ("UPDATE test SET value = 30 WHERE id = 1", "UPDATE test SET value = 42 WHERE id = 2"),
    ];
    at_each_level(async |script| {
        for predicate in predicates {
            for (change, other) in changes {
                if predicate.starts_with("id") && change.starts_with("UPDATE") {
                    continue;
                }
                let [one, two] = script.begin().await;
                assert!(one.values(predicate).await.is_empty());
                assert!(two.values(predicate).await.is_empty());
                one.ok(change).await;
                two.ok(other).await;
                one.ok("COMMIT").await;
                script.skewed(&two.commit().await);
                let back = "DELETE FROM test WHERE id > 2; UPDATE test SET value = id * 10";
                script.outside.batch_execute(back).await.unwrap();
            }
        }
        // Rows that go out of it: each takes one away because there are two.
        for predicate in ["value > 5", "id < 3", "true"] {
            let [one, two] = script.begin().await;
            for session in [&one, &two] {
                let sql = format!("SELECT count(*) FROM test WHERE {predicate}");
                assert_eq!(session.0.query_one(&sql, &[]).await.unwrap().get::<_, i64>(0), 2);
            }
            one.ok("DELETE FROM test WHERE id = 1").await;
            two.ok("DELETE FROM test WHERE id = 2").await;
            one.ok("COMMIT").await;
            script.skewed(&two.commit().await);
            script.outside.batch_execute("DELETE FROM test; INSERT INTO test VALUES (1, 10), (2, 20)").await.unwrap();
        }
    })
    .await;
}

/// Fekete, O'Neil and O'Neil, A Read-Only Transaction Anomaly Under Snapshot Isolation, SIGMOD Record 2004.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn read_only_transaction_anomaly() {
    at_each_level(async |script| {
        let [one, two] = script.begin().await;
        assert_eq!(one.values("true").await, [10, 20]);
        two.ok("UPDATE test SET value = value + 5 WHERE id = 2; COMMIT").await;
        let [three] = script.begin().await;
        assert_eq!(three.values("true").await, [10, 25]);
        three.ok("COMMIT").await;
        one.ok("UPDATE test SET value = 0 WHERE id = 1").await;
        script.skewed(&one.commit().await);
    })
    .await;
}
