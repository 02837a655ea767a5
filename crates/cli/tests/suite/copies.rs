//! A copy of a database in another pool, as its clients see it: it follows, shows how far it is, is killed, and takes the place of a
//! primary whose pool is lost.

use crate::cli::{Serving, sql, text, tidepool};
use crate::failover::{Cluster, connect, one, pool, until};
use crate::server::PATIENCE;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use tokio_postgres::Client;

const LOAD: &str = "CREATE TABLE t (id int PRIMARY KEY, a bigint, b text) TABLESPACE far; \
    CREATE SEQUENCE s; \
    INSERT INTO t SELECT x, x * 7, 'text ' || x FROM generate_series(1, 30000) AS g(x)";

/// All rows of the tables.
const ALL: &str = "SELECT (SELECT string_agg(id || ',' || a || ',' || b, ';' ORDER BY id) FROM t) || \
    (SELECT string_agg(id::text, ';' ORDER BY id) FROM later)";

fn command(cluster: &Cluster, name: &str, role: &str, from: &Path) -> Command {
    let mut command = tidepool();
    command.args(["serve", "--near", "128MB", "--far", "pool:", "--pool", &pool(cluster.folder.path())]);
    command.args(["--name", name, "--role", role, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]);
    command.arg("--copy-from").arg(from);
    command
}

fn start_copy(cluster: &Cluster, name: &str, from: &Path) -> Serving {
    Serving::start(command(cluster, name, "copy", from)).unwrap_or_else(|log| panic!("{name} does not start: {log}"))
}

/// Waits until a copy has all that its primary has acknowledged by now.
async fn caught_up(writer: &Client, reader: &Client) {
    let written = one(writer, "SELECT pg_current_wal_lsn()").await;
    let start = Instant::now();
    loop {
        // What is behind it says that all before it is there.
        writer.batch_execute("SELECT nextval('s')").await.unwrap();
        if one(reader, &format!("SELECT coalesce(pg_last_wal_replay_lsn() > '{written}', false)")).await == "t" {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{}", one(reader, "SELECT to_json(c)::text FROM tidepool.copy c").await);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// Wherever it dies while it follows or is promoted, the same command starts it again, and it has all that the folder has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_dies_at_any_point_is_started_again_and_promoted() {
    let here = Cluster::new();
    let data = here.folder.path().join("data");
    let primary = here.start("h1", "primary", &["--data", data.to_str().unwrap()]);
    let writer = connect(&primary.url).await;
    writer.batch_execute(LOAD).await.unwrap();
    until(&writer, "SELECT complete FROM tidepool.second_tier", "t").await;
    writer.batch_execute("CHECKPOINT; CREATE TABLE later (id int PRIMARY KEY)").await.unwrap();
    writer.batch_execute("INSERT INTO later SELECT x FROM generate_series(1, 500) AS g(x)").await.unwrap();
    let all = one(&writer, ALL).await;
    primary.signal(libc::SIGTERM);
    primary.wait();
    for point in tidepool_database::COPY_CRASH_POINTS {
        let elsewhere = Cluster::new();
        let mut command = command(&elsewhere, "c1", "copy", &data);
        command.env(tidepool_base::CRASH_POINT_VARIABLE, point);
        // At the first point it dies before it is ready.
        if let Ok(copy) = Serving::start(command) {
            let promoted = tidepool().args(["promote", &copy.url]).output().unwrap();
            assert!(!promoted.status.success(), "{point} was not reached");
            let (ended, log) = copy.wait();
            assert!(!ended, "{point}: {log}");
        } else {
            assert_eq!(*point, "copy.applied");
        }
        let copy = start_copy(&elsewhere, "c1", &data);
        let client = connect(&copy.url).await;
        if one(&client, "SELECT pg_is_in_recovery()").await == "t" {
            assert_eq!(one(&client, ALL).await, all, "{point}");
            let promoted = tidepool().args(["promote", &copy.url]).output().unwrap();
            assert!(promoted.status.success(), "{point}: {}", text(&promoted.stderr));
        } else {
            assert_eq!(*point, "role.founded", "it was primary before anybody could write");
        }
        let client = connect(&copy.url).await;
        assert_eq!(one(&client, ALL).await, all, "{point}");
        client.batch_execute("INSERT INTO later VALUES (1000)").await.unwrap();
        copy.signal(libc::SIGTERM);
        copy.wait();
        let checked = tidepool().args(["pool", "check", &pool(elsewhere.folder.path()), "--deep"]).output().unwrap();
        assert!(checked.status.success(), "{point}: {}", text(&checked.stdout));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_outlives_its_primary_and_that_ones_pool() {
    let (here, elsewhere) = (Cluster::new(), Cluster::new());
    let data = here.folder.path().join("data");
    // There is nothing to copy yet, and no copy of it in the same pool.
    let refused = Serving::refused(command(&elsewhere, "c1", "copy", &data));
    assert!(refused.contains("has nothing that a copy can begin with"), "{refused}");
    let primary = here.start("h1", "primary", &["--data", data.to_str().unwrap()]);
    let writer = connect(&primary.url).await;
    writer.batch_execute(LOAD).await.unwrap();
    writer.batch_execute("CREATE TABLE later (id int PRIMARY KEY)").await.unwrap();
    writer.batch_execute("INSERT INTO later VALUES (0)").await.unwrap();
    until(&writer, "SELECT complete FROM tidepool.second_tier", "t").await;
    writer.batch_execute("CHECKPOINT").await.unwrap();
    let refused = Serving::refused(command(&here, "c1", "copy", &data));
    assert!(refused.contains("has the database that is to be copied"), "{refused}");

    let copy = start_copy(&elsewhere, "c1", &data);
    let reader = connect(&copy.url).await;
    caught_up(&writer, &reader).await;
    assert_eq!(one(&reader, ALL).await, one(&writer, ALL).await);
    assert_eq!(one(&reader, "SELECT pg_is_in_recovery()").await, "t");
    assert_eq!(one(&reader, "SELECT role FROM tidepool.hosts WHERE is_this_server").await, "copy");
    let error = reader.batch_execute("INSERT INTO later VALUES (1)").await.unwrap_err();
    assert_eq!(error.as_db_error().unwrap().code().code(), "25006");
    for id in 1..50 {
        writer.batch_execute(&format!("INSERT INTO later VALUES ({id})")).await.unwrap();
    }
    writer.batch_execute("UPDATE t SET a = a + 1 WHERE id % 100 = 0; DELETE FROM t WHERE id % 101 = 0").await.unwrap();
    writer.batch_execute("CALL tidepool.merge('t'); CHECKPOINT").await.unwrap();
    caught_up(&writer, &reader).await;
    assert_eq!(one(&reader, ALL).await, one(&writer, ALL).await);
    // How far it is.
    until(&reader, "SELECT lag_bytes FROM tidepool.copy", "0").await;
    let shown = "SELECT term || ' ' || (replayed_lsn <= end_lsn) || ' ' || (written_at <= now()) || ' ' || (age_ms >= 0) || ' ' || \
        coalesce(failure, 'none') FROM tidepool.copy";
    assert_eq!(one(&reader, shown).await, "1 true true true none");
    assert_eq!(one(&reader, "SELECT status || ' ' || received_tli FROM pg_stat_wal_receiver").await, "streaming 1");
    assert_eq!(one(&reader, "SELECT pg_last_xact_replay_timestamp() <= now()").await, "t");
    let other = Serving::refused(command(&elsewhere, "c2", "copy", &data));
    assert!(other.contains("is in use"), "{other}");

    // It is killed while the primary writes, and so is the primary.
    copy.signal(libc::SIGKILL);
    copy.wait();
    writer.batch_execute("INSERT INTO later SELECT x FROM generate_series(1000, 1500) AS g(x)").await.unwrap();
    primary.signal(libc::SIGKILL);
    primary.wait();
    let primary = here.start("h1", "auto", &["--data", data.to_str().unwrap()]);
    let writer = connect(&primary.url).await;
    let copy = start_copy(&elsewhere, "c1", &data);
    let reader = connect(&copy.url).await;
    writer.batch_execute("INSERT INTO later VALUES (2000)").await.unwrap();
    until(&writer, "SELECT complete FROM tidepool.second_tier", "t").await;
    caught_up(&writer, &reader).await;
    let all = one(&writer, ALL).await;
    assert_eq!(one(&reader, ALL).await, all);

    // The pool is lost.
    primary.signal(libc::SIGKILL);
    primary.wait();
    std::fs::remove_file(here.folder.path().join("pool")).unwrap();
    let output = tidepool().args(["promote", &copy.url]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let writer = connect(&copy.url).await;
    assert_eq!(one(&writer, ALL).await, all);
    assert_eq!(one(&writer, "SELECT count(*) FROM tidepool.copy").await, "0");
    assert_eq!(one(&writer, "SELECT role FROM tidepool.hosts WHERE is_this_server").await, "primary");
    writer.batch_execute("INSERT INTO later VALUES (3000)").await.unwrap();
    let all = one(&writer, ALL).await;
    copy.signal(libc::SIGKILL);
    let (_, log) = copy.wait();
    assert!(log.contains("this copy is primary") && log.contains("written_at"), "{log}");
    // Started again as it was.
    let copy = start_copy(&elsewhere, "c1", &data);
    let answered = sql(&copy.url, &["--format", "csv", "-c", ALL], "");
    assert!(text(&answered.stdout).contains(&all), "{}", text(&answered.stderr));
    copy.signal(libc::SIGTERM);
    let (ended, log) = copy.wait();
    assert!(ended && log.contains("this copy was promoted"), "{log}");
    let checked = tidepool().args(["pool", "check", &pool(elsewhere.folder.path()), "--deep"]).output().unwrap();
    assert!(checked.status.success(), "{}", text(&checked.stdout));
}
