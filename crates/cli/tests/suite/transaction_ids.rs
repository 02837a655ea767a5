//! What a client learns of a transaction whose id it asked for, from the server that it was sent to, after that server's end, and
//! from the one that took over.

use crate::cli::serve;
use crate::failover::{Cluster, connect, one, until};
use crate::server::{Setup, TestServer, code};
use tokio_postgres::Client;

const ID: &str = "SELECT pg_current_xact_id()";

async fn id(client: &Client) -> String {
    one(client, ID).await
}

async fn status(client: &Client, id: &str) -> String {
    let status = one(client, &format!("SELECT pg_xact_status('{id}'::xid8)")).await;
    assert_eq!(one(client, &format!("SELECT txid_status({id})")).await, status);
    status
}

async fn run(client: &Client, sql: &str) {
    client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_has_one_id_and_ends_one_way() {
    let server = TestServer::with(Setup::default()).await;
    let (client, other) = (server.connect().await, server.connect().await);
    run(&client, "CREATE TABLE t (id int PRIMARY KEY, x text)").await;
    // It is drawn when it is first asked for, and stays the same.
    run(&client, "BEGIN; INSERT INTO t VALUES (1)").await;
    assert_eq!(one(&client, "SELECT pg_current_xact_id_if_assigned()").await, "null");
    assert_eq!(one(&client, "SELECT txid_current_if_assigned()").await, "null");
    let first = id(&client).await;
    for same in ["pg_current_xact_id()", "txid_current()", "pg_current_xact_id_if_assigned()"] {
        assert_eq!(one(&client, &format!("SELECT {same}")).await, first);
    }
    let inner = "SELECT count(DISTINCT pg_current_xact_id()::text) FROM generate_series(1, 5000)";
    assert_eq!(one(&client, inner).await, "1");
    run(&client, "SAVEPOINT a").await;
    assert_eq!(id(&client).await, first);
    run(&client, "ROLLBACK TO a").await;
    assert_eq!(id(&client).await, first);
    assert_eq!([status(&client, &first).await, status(&other, &first).await], ["in progress"; 2]);
    run(&client, "COMMIT").await;
    assert_eq!([status(&client, &first).await, status(&other, &first).await], ["committed"; 2]);
    assert_eq!(one(&client, "SELECT pg_current_xact_id_if_assigned()").await, "null");
    // By each way that a transaction ends without a commit.
    for end in ["ROLLBACK", "SELECT 1 / 0", "INSERT INTO t VALUES (1)"] {
        run(&client, "BEGIN; INSERT INTO t VALUES (2)").await;
        let own = id(&client).await;
        let _ = client.batch_execute(end).await;
        run(&client, "ROLLBACK").await;
        assert_eq!(status(&other, &own).await, "aborted", "{end}");
        assert!(own.parse::<u64>().unwrap() > first.parse::<u64>().unwrap());
    }
    // One that writes nothing, one that is read only, one that changes what exists, and statements without a block.
    for (begin, end) in [
        ("BEGIN", "COMMIT"),
        ("BEGIN READ ONLY", "COMMIT"),
        ("BEGIN ISOLATION LEVEL SERIALIZABLE", "COMMIT"),
        ("BEGIN; CREATE TABLE u (a int)", "DROP TABLE u; COMMIT"),
    ] {
        run(&client, begin).await;
        let own = id(&client).await;
        run(&client, end).await;
        assert_eq!(status(&other, &own).await, "committed", "{begin}");
    }
    let own = id(&client).await;
    assert_ne!(id(&client).await, own);
    assert_eq!(status(&other, &own).await, "committed");
    let inserted = "INSERT INTO t VALUES (7, pg_current_xact_id()::text) RETURNING x";
    let own = one(&client, inserted).await;
    assert_eq!(status(&other, &own).await, "committed");
    assert!(client.simple_query(inserted).await.is_err());
    let all = "INSERT INTO t SELECT n, pg_current_xact_id()::text FROM generate_series(100, 199) AS g(n)";
    run(&client, all).await;
    assert_eq!(one(&client, "SELECT count(DISTINCT x) FROM t WHERE id >= 100").await, "1");
    let own = one(&client, "SELECT x FROM t WHERE id = 100").await;
    assert_eq!(status(&other, &own).await, "committed");
    run(&client, "BEGIN").await;
    let own = id(&client).await;
    drop(client);
    until(&other, &format!("SELECT txid_status({own})"), "aborted").await;
    // Those that nobody drew.
    for (sql, wanted) in [("0", "null"), ("1", "committed"), ("2", "committed"), ("3", "null")] {
        assert_eq!(status(&other, sql).await, wanted, "{sql}");
    }
    for sql in ["SELECT txid_status(-1)", "SELECT pg_xact_status('9223372036854775807'::xid8)"] {
        assert_eq!(code(&other.simple_query(sql).await.unwrap_err()), "22023", "{sql}");
    }
    assert_eq!(one(&other, "SELECT pg_xact_status(NULL)").await, "null");
    for (sql, wanted) in [("pg_current_xact_id()", "xid8"), ("txid_current()", "bigint")] {
        assert_eq!(one(&other, &format!("SELECT pg_typeof({sql})")).await, wanted);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_knows_what_the_log_and_the_checkpoint_have() {
    let folder = tempfile::tempdir().unwrap();
    let mut known: Vec<(String, &str)> = Vec::new();
    for round in 0..4 {
        let server = serve(&folder.path().join("data"), &[]);
        let client = connect(&server.url).await;
        if round == 0 {
            run(&client, "CREATE TABLE t (id int)").await;
        }
        for (id, fate) in &known {
            assert_eq!(status(&client, id).await, *fate, "{id} in round {round}");
        }
        for commits in [true, false, true] {
            run(&client, "BEGIN; INSERT INTO t VALUES (1)").await;
            let own = id(&client).await;
            assert!(known.iter().all(|(known, _)| *known != own), "{own} was drawn twice");
            run(&client, if commits { "COMMIT" } else { "ROLLBACK" }).await;
            known.push((own, if commits { "committed" } else { "aborted" }));
            if round % 2 == 0 {
                run(&client, "CHECKPOINT").await;
            }
        }
        run(&client, "BEGIN; INSERT INTO t VALUES (1)").await;
        known.push((id(&client).await, "aborted"));
        server.signal(if round == 1 { libc::SIGTERM } else { libc::SIGKILL });
        server.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_takes_over_knows_which_commits_survived() {
    let cluster = Cluster::new();
    let mut primary = cluster.start("h0", "primary", &[]);
    let mut known: Vec<(String, &str)> = Vec::new();
    let writer = connect(&primary.url).await;
    run(&writer, "CREATE TABLE t (id int)").await;
    drop(writer);
    for round in 1..4 {
        let standby = cluster.start(&format!("h{round}"), "standby", &[]);
        let (writer, reader) = (connect(&primary.url).await, connect(&standby.url).await);
        let error = reader.simple_query(ID).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        let words = "cannot execute pg_current_xact_id() during recovery";
        assert_eq!((error.code().code(), error.message()), ("25006", words));
        assert_eq!(code(&reader.simple_query("SELECT txid_current()").await.unwrap_err()), "25006");
        assert_eq!(one(&reader, "SELECT pg_current_xact_id_if_assigned()").await, "null");
        run(&writer, "BEGIN; INSERT INTO t VALUES (1)").await;
        let rolled_back = id(&writer).await;
        run(&writer, "ROLLBACK; BEGIN; INSERT INTO t VALUES (1)").await;
        let committed = id(&writer).await;
        run(&writer, "COMMIT").await;
        // The standby has it soon, and knows by the same record that the one before has ended.
        until(&reader, &format!("SELECT txid_status({committed})"), "committed").await;
        assert_eq!(status(&reader, &rolled_back).await, "aborted");
        let open = connect(&primary.url).await;
        run(&open, "BEGIN; INSERT INTO t VALUES (2)").await;
        let unfinished = id(&open).await;
        assert_eq!(status(&reader, &unfinished).await, "in progress");
        known.extend([(rolled_back, "aborted"), (committed, "committed"), (unfinished, "aborted")]);
        primary.signal(libc::SIGKILL);
        primary.wait();
        until(&reader, "SELECT pg_is_in_recovery()", "f").await;
        for (id, fate) in &known {
            assert_eq!(status(&reader, id).await, *fate, "{id} after take-over {round}");
        }
        assert_eq!(one(&reader, "SELECT count(*) FROM t").await, round.to_string());
        primary = standby;
    }
    // From the manifest and the log, with nobody there.
    primary.signal(libc::SIGKILL);
    primary.wait();
    let last = cluster.start("last", "primary", &[]);
    let client = connect(&last.url).await;
    for (id, fate) in &known {
        assert_eq!(status(&client, id).await, *fate, "{id} after the restart");
    }
    assert!(known.iter().all(|(known, _)| known.parse::<u64>().unwrap() < 1 << 40));
}
