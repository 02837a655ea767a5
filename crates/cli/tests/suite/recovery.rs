//! Recovery to a moment, as the how-to page says it: its configuration and its commands, word for word but for the folders.

use crate::cli::{serve, sql, text, tidepool};
use std::path::Path;
use std::process::Command;

const PAGE: &str = "../../docs/how-to/back-up-and-restore.md";

/// The indented block of the page that has this.
fn block(page: &str, what: &str) -> String {
    let mut blocks = vec![Vec::new()];
    for line in page.lines() {
        match line.strip_prefix("    ") {
            Some(code) => blocks.last_mut().unwrap().push(code.trim_start_matches("   ")),
            None => blocks.push(Vec::new()),
        }
    }
    let found: Vec<_> = blocks.into_iter().map(|block| block.join("\n")).filter(|block| block.contains(what)).collect();
    assert!(!found.is_empty(), "the page has no {what}");
    found[0].clone()
}

fn csv(url: &str, query: &str) -> String {
    let shown = sql(url, &["--format", "csv", "-c", query], "");
    assert!(shown.status.success(), "{query}: {}", text(&shown.stderr));
    text(&shown.stdout).lines().skip(1).collect::<Vec<_>>().join("\n")
}

fn run(url: &str, statements: &str) {
    let done = sql(url, &[], statements);
    assert!(done.status.success(), "{statements}: {}", text(&done.stderr));
}

#[test]
fn a_server_is_recovered_to_a_moment_as_the_page_says() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().to_str().unwrap().to_owned();
    let in_home = |text: &str| text.replace("/backups/", &format!("{home}/"));
    let shell = |command: &str| {
        let bin = Path::new(tidepool().get_program()).parent().unwrap().to_owned();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let output = Command::new("sh").args(["-c", command]).current_dir(&home).env("PATH", path).output().unwrap();
        (output.status.success(), text(&output.stdout).to_owned(), text(&output.stderr).to_owned())
    };
    let config = folder.path().join("tidepool.toml");
    let settings = in_home(&block(&page, "archive ="));
    assert!(settings.contains("archive_timeout = "), "{settings}");
    std::fs::write(&config, settings).unwrap();

    let data = folder.path().join("data");
    let server = serve(&data, &["--config", config.to_str().unwrap()]);
    run(&server.url, "CREATE TABLE t (id bigint PRIMARY KEY, note text); CREATE SEQUENCE s;");
    let backup = in_home(&block(&page, "tidepool backup /backups/monday postgresql"));
    let (made, _, failed) = shell(&backup.replace("postgresql://tidepool@127.0.0.1:5477/tidepool", &server.url));
    assert!(made, "{failed}");
    // Rows of delta, of a load that a merge and a checkpoint take the file of away, and of changes.
    run(
        &server.url,
        "INSERT INTO t SELECT g, 'loaded ' || g FROM generate_series(1, 200000) AS s(g);\
         UPDATE t SET note = 'changed' WHERE id % 1000 = 0; CALL tidepool.merge('t'); CHECKPOINT;\
         SELECT nextval('s'), nextval('s'); DELETE FROM t WHERE id % 7 = 0;",
    );
    let contents = "SELECT count(*), sum(id), md5(string_agg(note, ',' ORDER BY id)) FROM t";
    let expected = csv(&server.url, contents);
    // It dies, with some of that not archived perhaps.
    server.signal(libc::SIGKILL);
    server.wait();
    let server = serve(&data, &["--config", config.to_str().unwrap()]);
    assert_eq!(csv(&server.url, contents), expected);
    let (time, lsn) = (csv(&server.url, "SELECT clock_timestamp()"), csv(&server.url, "SELECT pg_current_wal_lsn()"));
    run(&server.url, "DROP TABLE t; CREATE TABLE later (a int)");
    let archiver = csv(&server.url, "SELECT failed_count, last_failed_wal IS NULL FROM pg_stat_archiver");
    assert_eq!(archiver, "0,t");
    assert_eq!(csv(&server.url, "SELECT failure IS NULL, lag_bytes >= 0 FROM tidepool.archive"), "t,t");
    server.signal(libc::SIGTERM);
    assert!(server.wait().0);

    let restore = in_home(&block(&page, "tidepool restore /backups/monday --archive"));
    let (done, told, failed) = shell(&restore.replace("2026-11-27 12:00:00+00", time.trim()));
    assert!(done && told.contains("transactions of the log"), "{told} {failed}");
    let by_lsn = format!("tidepool restore {home}/monday --archive {home}/archive --data by-lsn --target-lsn {lsn}");
    let (done, told, failed) = shell(&by_lsn);
    assert!(done, "{told} {failed}");
    for recovered in ["recovered", "by-lsn"] {
        let server = serve(&folder.path().join(recovered), &[]);
        assert_eq!(csv(&server.url, contents), expected, "{recovered}");
        assert_eq!(csv(&server.url, "SELECT nextval('s') > 2"), "t");
        assert_eq!(csv(&server.url, "SELECT count(*) FROM pg_class WHERE relname = 'later'"), "0");
        server.signal(libc::SIGTERM);
        assert!(server.wait().0);
    }
    let (all, told, failed) = shell(&format!("tidepool restore {home}/monday --archive {home}/archive --data all"));
    assert!(all, "{told} {failed}");
    // Past the end, and into what is there.
    let (done, _, told) = shell(&restore.replace("2026-11-27 12:00:00+00", "2999-01-01").replace("recovered", "never"));
    assert!(!done && told.contains("recovery ended before configured recovery target was reached"), "{told}");
    assert!(!folder.path().join("never").exists());
    let (done, _, told) = shell(&restore.replace("2026-11-27 12:00:00+00", time.trim()));
    assert!(!done && told.contains("is not empty"), "{told}");
    let (done, _, told) = shell(&restore.replace("2026-11-27 12:00:00+00", "noon").replace("recovered", "never"));
    assert!(!done && told.contains("invalid input syntax for type timestamp with time zone: \"noon\""), "{told}");
    let (done, told, failed) = shell(&in_home(&block(&page, "tidepool archive-cleanup")));
    assert!(done && told.starts_with("removed "), "{told} {failed}");
}
