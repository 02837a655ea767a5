//! `check`, `backup` and `restore` from the command line; indexes while sessions write.

use crate::cli::{serve, sql, text, tidepool};
use crate::server::{TestServer, code};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const MAKE: &str = "CREATE TABLESPACE pool LOCATION 'anon:' WITH (size = '32MB');\n\
    CREATE TABLE t (id bigint PRIMARY KEY, note text) TABLESPACE pool;\n\
    INSERT INTO t SELECT g, 'note ' || g FROM generate_series(1, 50000) AS s(g);\n\
    CALL tidepool.merge('t');\n\
    UPDATE t SET note = 'changed' WHERE id % 100 = 0;\n\
    CREATE SEQUENCE s;\nSELECT nextval('s');\n\
    CREATE VIEW changed AS SELECT id FROM t WHERE note = 'changed';\n";

fn run(arguments: &[&str]) -> (bool, String, String) {
    let output = tidepool().args(arguments).output().unwrap();
    (output.status.success(), text(&output.stdout).to_owned(), text(&output.stderr).to_owned())
}

fn first_row_file(data: &Path) -> std::path::PathBuf {
    let mut files: Vec<_> = std::fs::read_dir(data.join("rows")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.swap_remove(0)
}

#[test]
fn a_backup_is_checked_and_restored_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let server = serve(&folder.path().join("data"), &[]);
    let made = sql(&server.url, &[], MAKE);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let (sound, told, _) = run(&["check", &server.url]);
    assert!(sound, "{told}");
    let of_table = told.lines().find(|line| line.starts_with("t: 50000 rows, ")).unwrap();
    assert!(of_table.ends_with(" entries of 1 indexes: sound"), "{of_table}");

    let (made, told, failed) = run(&["backup", &at("copy"), &server.url]);
    assert!(made && told.contains("copy: 1 tables in "), "{told} {failed}");
    let (again, _, told) = run(&["backup", &at("copy"), &server.url]);
    assert!(!again && told.contains("is not empty"), "{told}");
    let refused = sql(&server.url, &["-c", "BEGIN; CALL tidepool.backup('/tmp/x')"], "");
    assert!(text(&refused.stderr).contains("cannot run inside a transaction block"), "{}", text(&refused.stderr));
    let refused = sql(&server.url, &["-c", "CALL tidepool.backup('x')"], "");
    assert!(text(&refused.stderr).contains("relative path not allowed"), "{}", text(&refused.stderr));
    // The server goes on; what comes is not in the copy.
    assert!(sql(&server.url, &["-c", "DELETE FROM t"], "").status.success());
    let (in_use, _, told) = run(&["check", "--data", &at("data")]);
    assert!(!in_use && told.contains("is in use by another process"), "{told}");

    let (sound, told, _) = run(&["check", "--data", &at("copy")]);
    assert!(sound && told.starts_with("files of the last checkpoint: "), "{told}");
    let moved = format!("pool=file:{}", at("device"));
    let (restored, told, failed) = run(&["restore", &at("copy"), "--data", &at("new"), "--tablespace", &moved]);
    assert!(restored && told.contains("new: 1 tables in "), "{told} {failed}");
    let other = serve(&folder.path().join("new"), &[]);
    let query = "SELECT count(*), (SELECT count(*) FROM changed), nextval('s') > 1 FROM t";
    let shown = sql(&other.url, &["--format", "csv", "-c", query], "");
    assert_eq!(text(&shown.stdout).lines().nth(1), Some("50000,500,t"), "{}", text(&shown.stderr));
    let shown = sql(
        &other.url,
        &["--format", "csv", "-c", "SELECT location FROM tidepool.tablespaces WHERE name = 'pool'"],
        "",
    );
    assert!(text(&shown.stdout).contains(&at("device")), "{}", text(&shown.stdout));
    other.signal(libc::SIGTERM);
    assert!(other.wait().0);
    let (sound, told, _) = run(&["check", "--data", &at("new")]);
    assert!(sound && told.contains("the log since then: 0 transactions"), "{told}");

    // Damage is named, and nothing is restored from it.
    let damaged = first_row_file(&folder.path().join("copy"));
    let mut bytes = std::fs::read(&damaged).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&damaged, bytes).unwrap();
    let (sound, told, _) = run(&["check", "--data", &at("copy")]);
    assert!(!sound && told.contains("NOT SOUND") && told.contains(damaged.to_str().unwrap()), "{told}");
    let (restored, _, told) = run(&["restore", &at("copy"), "--data", &at("never")]);
    assert!(!restored && told.contains("is damaged") && !folder.path().join("never/MANIFEST").exists(), "{told}");
    for (arguments, reason) in [
        (["restore", &at("nowhere"), "--data", &at("never")], "is not a data folder of Tidepool's"),
        (["restore", &at("copy"), "--data", &at("new")], "is not empty"),
    ] {
        let (done, _, told) = run(&arguments);
        assert!(!done && told.contains(reason), "{told}");
    }
    let (done, _, told) = run(&["restore", &at("copy"), "--data", &at("never"), "--tablespace", "elsewhere=anon:"]);
    assert!(!done && told.contains("has no tablespace \"elsewhere\""), "{told}");
    server.signal(libc::SIGTERM);
    assert!(server.wait().0);
}

/// What psql shows of an index that is made while sessions write, and the answers that it gives.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn indexes_are_made_and_dropped_while_sessions_write() {
    let server = TestServer::start().await;
    let client = server.connect().await;
    client
        .batch_execute(
            "CREATE TABLE account (id int PRIMARY KEY, branch int NOT NULL, balance bigint NOT NULL);
             INSERT INTO account SELECT i, i % 50, 100 FROM generate_series(1, 20000) AS g(i)",
        )
        .await
        .unwrap();
    client.batch_execute("CALL tidepool.merge('account')").await.unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let mut writers = Vec::new();
    for writer in 0..3 {
        let (session, done) = (server.connect().await, Arc::clone(&done));
        writers.push(tokio::spawn(async move {
            let mut written = 0;
            for step in 0_i32.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                let id = (step * 37 + writer * 7_919) % 20_000 + 1;
                let sql = format!(
                    "BEGIN; UPDATE account SET balance = balance - 1, branch = (branch + 7) % 50 WHERE id = {id};
                     UPDATE account SET balance = balance + 1 WHERE id = {}; COMMIT",
                    20_001 - id
                );
                match session.batch_execute(&sql).await {
                    Ok(()) => written += 1,
                    // Two take rows in each other's order.
                    Err(error) if code(&error) == "40P01" => session.batch_execute("ROLLBACK").await.unwrap(),
                    Err(error) => panic!("{error:?}"),
                }
            }
            written
        }));
    }
    for _ in 0..3 {
        client.batch_execute("CREATE INDEX CONCURRENTLY by_branch ON account (branch, id)").await.unwrap();
        for round in 0..2 {
            // Each side its own way to the rows: to `branch + 0` there is none but a scan.
            for branch in [0, 17, 49] {
                let sql = format!(
                    "SELECT (SELECT count(*) || ' ' || coalesce(sum(id), 0) FROM account WHERE branch = {branch})
                        = (SELECT count(*) || ' ' || coalesce(sum(id), 0) FROM account WHERE branch + 0 = {branch})"
                );
                let same: bool = client.query_one(&sql, &[]).await.unwrap().get(0);
                assert!(same, "branch {branch}, round {round}");
            }
            client.batch_execute("REINDEX INDEX CONCURRENTLY by_branch").await.unwrap();
        }
        let faults = client.query("CALL tidepool.check()", &[]).await.unwrap();
        assert!(faults.iter().all(|row| row.get::<_, Option<String>>("fault").is_none()), "{faults:?}");
        client.batch_execute("DROP INDEX CONCURRENTLY by_branch").await.unwrap();
    }
    done.store(true, Ordering::Relaxed);
    for writer in writers {
        assert!(writer.await.unwrap() > 0);
    }
    let total: i64 = client.query_one("SELECT sum(balance)::bigint FROM account", &[]).await.unwrap().get(0);
    assert_eq!(total, 2_000_000);
}
