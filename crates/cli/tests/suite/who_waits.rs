//! Who has a lock and who waits for it, as `pg_locks`, `pg_stat_activity` and `pg_blocking_pids` show it to whoever looks for the
//! session that is in the way.

use crate::server::TestServer;
use std::time::Duration;
use tokio_postgres::{Client, SimpleQueryMessage};

/// A session and the number by which views name it.
struct Party {
    client: Client,
    pid: i32,
}

impl Party {
    async fn of(server: &TestServer) -> Party {
        let client = server.connect().await;
        let pid = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        Party { client, pid }
    }

    /// The statement runs by itself: what becomes of it is not waited for.
    fn run(self, statement: &'static str) -> (i32, tokio::task::JoinHandle<Client>) {
        let Party { client, pid } = self;
        let running = tokio::spawn(async move {
            client.batch_execute(statement).await.unwrap();
            client
        });
        (pid, running)
    }
}

/// The rows as text, their columns apart by blanks.
async fn rows(client: &Client, sql: &str) -> Vec<String> {
    let messages = client.simple_query(sql).await.unwrap();
    let row = |message: SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|column| row.get(column).unwrap_or("-").to_owned()).collect::<Vec<_>>().join(" "))
        }
        _ => None,
    };
    messages.into_iter().filter_map(row).collect()
}

async fn until_it_waits(client: &Client, pid: i32, event: &str) {
    let waits = format!(
        "SELECT 1 FROM pg_stat_activity WHERE pid = {pid} AND wait_event_type = 'Lock' AND wait_event = '{event}'
         AND cardinality(pg_blocking_pids({pid})) > 0"
    );
    while rows(client, &waits).await.is_empty() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The query by which PostgreSQL's documents and its monitors find who is in the way, over ids of transactions and relations.
const IN_THE_WAY: &str = "SELECT w.pid, h.pid, w.locktype, w.mode FROM pg_locks w JOIN pg_locks h
    ON h.locktype = w.locktype AND h.database IS NOT DISTINCT FROM w.database
    AND h.relation IS NOT DISTINCT FROM w.relation AND h.transactionid IS NOT DISTINCT FROM w.transactionid
    AND h.classid IS NOT DISTINCT FROM w.classid AND h.objid IS NOT DISTINCT FROM w.objid
    AND h.objsubid IS NOT DISTINCT FROM w.objsubid AND h.pid <> w.pid
    WHERE NOT w.granted AND h.granted";

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_row_is_shown_with_whoever_changed_it() {
    for direct in ["on", "off"] {
        for block in ["BEGIN", ""] {
            let server = TestServer::start().await;
            let (holder, waiter, watching) =
                (Party::of(&server).await, Party::of(&server).await, Party::of(&server).await.client);
            holder.client.batch_execute("CREATE TABLE t (k int PRIMARY KEY, v int)").await.unwrap();
            holder.client.batch_execute("INSERT INTO t VALUES (1, 1), (2, 2)").await.unwrap();
            for client in [&holder.client, &waiter.client] {
                client.batch_execute(&format!("SET tidepool.direct = {direct}")).await.unwrap();
            }
            holder.client.batch_execute("BEGIN; UPDATE t SET v = 10 WHERE k = 1").await.unwrap();
            waiter.client.batch_execute(block).await.unwrap();
            let (pid, waiting) = waiter.run("UPDATE t SET v = 20 WHERE k = 1");
            until_it_waits(&watching, pid, "transactionid").await;
            let found = rows(&watching, IN_THE_WAY).await;
            assert_eq!(found, [format!("{pid} {} transactionid ShareLock", holder.pid)], "{direct} {block}");
            let blocking = format!("SELECT pg_blocking_pids({pid}), pg_blocking_pids({})", holder.pid);
            assert_eq!(rows(&watching, &blocking).await, [format!("{{{}}} {{}}", holder.pid)]);
            // Ids of transactions agree between the views, and so do the names of those without.
            let ids = "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a ON a.backend_xid = l.transactionid AND a.pid = l.pid
                JOIN pg_locks v ON v.virtualxid = l.virtualtransaction AND v.pid = l.pid
                WHERE l.locktype = 'transactionid' AND l.granted AND v.granted";
            let writers = if direct == "on" && block.is_empty() { ["1", "2"] } else { ["2", "2"] };
            let count = rows(&watching, ids).await;
            assert!(writers.contains(&&*count[0]), "{count:?} {direct} {block}");
            holder.client.batch_execute("COMMIT").await.unwrap();
            let client = waiting.await.unwrap();
            client.batch_execute("COMMIT").await.unwrap();
            let left = "SELECT count(*) FROM pg_locks WHERE pid <> pg_backend_pid()";
            assert_eq!(rows(&watching, left).await, ["0"]);
            assert_eq!(rows(&watching, "SELECT v FROM t WHERE k = 1").await, ["20"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_relation_is_shown_with_all_that_have_it() {
    let server = TestServer::start().await;
    let (one, two, waiter, watching) =
        (Party::of(&server).await, Party::of(&server).await, Party::of(&server).await, server.connect().await);
    one.client.batch_execute("CREATE TABLE t (k int PRIMARY KEY, v int)").await.unwrap();
    for holder in [&one, &two] {
        holder.client.batch_execute("BEGIN; LOCK TABLE t IN SHARE MODE").await.unwrap();
    }
    let (pid, waiting) = waiter.run("ALTER TABLE t ADD COLUMN w int");
    until_it_waits(&watching, pid, "relation").await;
    let mut holders = [one.pid, two.pid];
    holders.sort_unstable();
    let blocking = format!("SELECT pg_blocking_pids({pid})");
    assert_eq!(rows(&watching, &blocking).await, [format!("{{{},{}}}", holders[0], holders[1])]);
    let found = rows(&watching, &format!("{IN_THE_WAY} ORDER BY h.pid")).await;
    assert_eq!(found, holders.map(|holder| format!("{pid} {holder} relation AccessExclusiveLock")));
    let waited = "SELECT pid, relation::regclass FROM pg_locks WHERE NOT granted AND waitstart <= clock_timestamp()";
    assert_eq!(rows(&watching, waited).await, [format!("{pid} t")]);
    for holder in [&one, &two] {
        holder.client.batch_execute("COMMIT").await.unwrap();
    }
    waiting.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn advisory_locks_are_shown_by_their_keys() {
    let server = TestServer::start().await;
    let (one, two, waiter, watching) =
        (Party::of(&server).await, Party::of(&server).await, Party::of(&server).await, server.connect().await);
    // Twice by one session is one row.
    for lock in
        ["pg_advisory_lock_shared(4294967298)", "pg_advisory_lock_shared(4294967298)", "pg_advisory_lock(-1, 7)"]
    {
        one.client.batch_execute(&format!("SELECT {lock}")).await.unwrap();
    }
    two.client.batch_execute("BEGIN; SELECT pg_advisory_xact_lock_shared(4294967298)").await.unwrap();
    let (pid, waiting) = waiter.run("SELECT pg_advisory_lock(4294967298)");
    until_it_waits(&watching, pid, "advisory").await;
    let advisory = "SELECT pid, classid, objid, objsubid, mode, granted FROM pg_locks
        WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        ORDER BY granted, objsubid, pid = $one";
    let expected = [
        format!("{pid} 1 2 1 ExclusiveLock f"),
        format!("{} 1 2 1 ShareLock t", two.pid),
        format!("{} 1 2 1 ShareLock t", one.pid),
        format!("{} 4294967295 7 2 ExclusiveLock t", one.pid),
    ];
    assert_eq!(rows(&watching, &advisory.replace("$one", &one.pid.to_string())).await, expected);
    let mut holders = [one.pid, two.pid];
    holders.sort_unstable();
    let blocking = format!("SELECT pg_blocking_pids({pid})");
    assert_eq!(rows(&watching, &blocking).await, [format!("{{{},{}}}", holders[0], holders[1])]);
    one.client.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();
    two.client.batch_execute("COMMIT").await.unwrap();
    // Its session has the lock as long as it lives.
    let _holder = waiting.await.unwrap();
    let left = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    assert_eq!(rows(&watching, left).await, ["1"]);
}
