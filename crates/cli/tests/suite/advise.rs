//! The placement advisor from the command line.

use crate::cli::{serve, sql, text, tidepool, try_serve};
use std::path::Path;

const MAKE: &str = "CREATE TABLESPACE slow LOCATION 'anon:' WITH (size = '64MB', profile = 'cxl-asic');\n\
    CREATE TABLE t TABLESPACE near AS SELECT g AS id, g % 10 AS tens, md5(g::text) AS digest FROM generate_series(1, 20000) AS s(g);\n\
    CREATE TABLE unread TABLESPACE near AS SELECT g AS \"group\" FROM generate_series(1, 20000) AS s(g);\n\
    CALL tidepool.merge('t');\nCALL tidepool.merge('unread');\nCALL tidepool.reset_access();\n\
    SELECT sum(id) FROM t WHERE tens = 3;\n";

const WHERE: &str = "SELECT column_name, tablespace FROM tidepool.tables WHERE column_name IS NOT NULL ORDER BY table_name, column_name";

fn places(shown: &[u8]) -> Vec<String> {
    text(shown).lines().skip(1).map(str::to_owned).collect()
}

#[test]
fn advice_is_a_script_and_can_be_applied() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(&folder.path().join("data"), &[]);
    let made = sql(&server.url, &[], MAKE);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let advise = |arguments: &[&str]| {
        let output =
            tidepool().args(["advise", &server.url, "--far-tablespace", "slow"]).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).to_owned()
    };
    let statements = |script: &str| -> Vec<String> {
        script.lines().filter(|line| !line.starts_with("--")).map(str::to_owned).collect()
    };
    let rows = || places(&sql(&server.url, &["--format", "csv", "-c", WHERE], "").stdout);

    // Plenty of room: what is never read leaves. Without --apply nothing moves.
    let plenty = advise(&["--near-limit", "100MB"]);
    let digest = "ALTER TABLE t ALTER COLUMN digest SET TABLESPACE slow;";
    assert_eq!(statements(&plenty), [digest, "ALTER TABLE unread SET TABLESPACE slow;"]);
    assert!(plenty.contains(": 1 statements, "), "{plenty}");
    assert_eq!(rows(), ["digest,near", "id,near", "tens,near", "group,near"]);

    // The file has what the script has, and more.
    let json = folder.path().join("advice.json");
    let applied = advise(&["--near-limit", "100MB", "--apply", "--json", json.to_str().unwrap()]);
    assert_eq!(statements(&applied), statements(&plenty));
    let document: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(document["statements"].as_array().unwrap().len(), 2);
    assert_eq!(document["columns"].as_array().unwrap().len(), 4);
    let near_bytes = |name: &str| document[name].as_u64().unwrap();
    assert!(near_bytes("near_bytes_advised") < near_bytes("near_bytes_now"));
    assert_eq!(document["stall_advised_ms"].as_f64(), Some(0.0));
    assert_eq!(rows(), ["digest,slow", "id,near", "tens,near", "group,slow"]);
    assert!(advise(&["--near-limit", "100MB"]).contains("Nothing needs to move."));

    // No room at all, and back again.
    advise(&["--near-limit", "0", "--apply"]);
    assert_eq!(rows(), ["digest,slow", "id,slow", "tens,slow", "group,slow"]);
    let back = advise(&["--near-limit", "100MB", "--json", "-"]);
    let document: serde_json::Value = serde_json::from_str(&back).unwrap();
    assert!(document["stall_now_ms"].as_f64() > Some(0.0));
    assert_eq!(document["near_bytes_now"].as_u64(), Some(0));
    advise(&["--near-limit", "100MB", "--apply"]);
    assert_eq!(rows(), ["digest,slow", "id,near", "tens,near", "group,slow"]);

    let failed = tidepool().args(["advise", &server.url, "--near-limit", "1MB"]).output().unwrap();
    assert_eq!(failed.status.code(), Some(1));
    assert!(text(&failed.stderr).contains("has no profile"), "{}", text(&failed.stderr));
    server.signal(libc::SIGTERM);
    assert!(server.wait().0);
}

#[test]
fn the_recorded_workload_outlives_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let near = ["--near", "256MB", "--far", "anon:,size=256MB", "--data"];
    let made = tidepool().arg("sql").args(near).arg(&data).args(["-f", &script(folder.path())]).output().unwrap();
    assert!(made.status.success(), "{}", text(&made.stderr));
    let advise = || {
        let mut command = tidepool();
        command.arg("advise").args(near).arg(&data).args(["--far-tablespace", "slow", "--near-limit", "100MB"]);
        command.output().unwrap()
    };
    let advised = advise();
    assert!(text(&advised.stdout).contains("ALTER COLUMN digest SET TABLESPACE slow"), "{}", text(&advised.stderr));

    // A damaged record is no reason not to start; it is told, and forgotten.
    std::fs::write(data.join("ACCESS"), "{").unwrap();
    let advised = advise();
    let stderr = text(&advised.stderr);
    assert!(stderr.contains("no workload is recorded") && stderr.contains("damaged"), "{stderr}");
}

fn script(folder: &Path) -> String {
    let path = folder.join("make.sql");
    std::fs::write(&path, MAKE).unwrap();
    path.display().to_string()
}

#[test]
fn explain_placement_tells_columns_operators_and_placements() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(&folder.path().join("data"), &[]);
    let made = sql(&server.url, &[], MAKE);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let query =
        "EXPLAIN PLACEMENT SELECT x.id, count(*) FROM t x JOIN t y ON x.id = y.id WHERE x.tens > 3 GROUP BY x.id";
    let explained = sql(&server.url, &["-c", query], "");
    let shown = text(&explained.stdout);
    for expected in [
        "t.id (now in near)",
        "t.tens (now in near)",
        "hash join: id = id",
        "grouping: id",
        "rows between operators",
        "all in near",
        "tables in far",
        "heap in far",
        "tables in slow",
        "heap in slow",
        "both in slow",
        "As placed now: ",
    ] {
        assert!(shown.contains(expected), "{expected} is missing from {shown}");
    }
    assert!(!shown.contains("digest"), "{shown}");
    // near and far are local memory here, slow is not.
    let waits = |name: &str| -> f64 {
        let line = shown.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
        line.trim_start().trim_start_matches(name).split_whitespace().next().unwrap().parse().unwrap()
    };
    assert_eq!((waits("all in near"), waits("both in far")), (0.0, 0.0));
    assert!(waits("tables in slow") > 0.0 && waits("both in slow") >= waits("tables in slow"), "{shown}");
    server.signal(libc::SIGTERM);
    assert!(server.wait().0);
}

/// An index that is far and looked up often comes near, and what is waited for falls by what was predicted: the accounted
/// stalls depend on what is touched alone.
#[test]
fn indexes_are_placed_by_what_lookups_read_of_them() {
    let folder = tempfile::tempdir().unwrap();
    // So small that an index of some megabytes is not in it.
    let server = try_serve(&folder.path().join("data"), &[], &[("TIDEPOOL_LAST_LEVEL_CACHE", "256kB")]).unwrap();
    let run = |script: &str| -> String {
        let output = sql(&server.url, &["--format", "csv"], script);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).to_owned()
    };
    let number = |query: &str| -> f64 { run(query).lines().last().unwrap().parse().unwrap() };
    run("CREATE TABLESPACE slow LOCATION 'anon:' WITH (size = '128MB', profile = 'cxl-asic');\n\
        CREATE TABLE t (id integer PRIMARY KEY, kind integer, pad text) TABLESPACE near;\n\
        INSERT INTO t SELECT g, g * 7919 % 25000, md5(g::text) FROM generate_series(1, 100000) AS s(g);\n\
        CREATE INDEX by_kind ON t (kind) TABLESPACE slow;\nALTER INDEX t_pkey SET TABLESPACE slow;\n\
        CALL tidepool.merge('t');\n");
    let mut work = String::new();
    for step in 0..300 {
        work += &format!("SELECT pad FROM t WHERE id = {};\n", step * 331 + 1);
        if step % 10 == 0 {
            work += &format!("SELECT pad FROM t WHERE kind = {};\n", step * 83);
        }
    }
    // What the work is charged with, ms.
    let accounted = || -> f64 {
        let charged = "SELECT coalesce(sum(stall_ms), 0) FROM tidepool.pacing WHERE tablespace = 'slow'";
        run("CALL tidepool.reset_access()");
        let before = number(charged);
        assert_eq!(run(&work).lines().filter(|line| line.len() == 32).count(), 300 + 30 * 4);
        number(charged) - before
    };
    let advise = |arguments: &[&str]| -> serde_json::Value {
        let mut command = tidepool();
        command.args(["advise", &server.url, "--far-tablespace", "slow", "--json", "-"]).args(arguments);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let ms = |advice: &serde_json::Value, name: &str| advice[name].as_f64().unwrap();
    let is_close = |left: f64, right: f64| (left - right).abs() <= 0.02 * right;

    let far_ms = accounted();
    let used = "SELECT index_name, scans, lookups, entries, writes FROM tidepool.index_access ORDER BY 1";
    assert_eq!(run(used).lines().skip(1).collect::<Vec<_>>(), ["by_kind,30,30,120,0", "t_pkey,300,300,300,0"]);
    let advice = advise(&["--near-limit", "100MB"]);
    let mut moved: Vec<&str> =
        advice["statements"].as_array().unwrap().iter().map(|statement| statement.as_str().unwrap()).collect();
    moved.sort_unstable();
    assert_eq!(moved, ["ALTER INDEX by_kind SET TABLESPACE near", "ALTER INDEX t_pkey SET TABLESPACE near"]);
    assert_eq!((advice["columns"].as_array().unwrap().len(), advice["indexes"].as_array().unwrap().len()), (3, 2));
    assert_eq!(ms(&advice, "stall_advised_ms"), 0.0);
    assert!(far_ms > 0.03 && is_close(ms(&advice, "stall_now_ms"), far_ms), "{far_ms} ms, but {advice:#}");

    // Room for one of them beside the table.
    let limit = number("SELECT sum(bytes_encoded) FROM tidepool.tables WHERE column_name IS NULL")
        + number("SELECT bytes_index FROM tidepool.index_access WHERE index_name = 't_pkey'");
    let advice = advise(&["--near-limit", &limit.to_string(), "--apply"]);
    assert_eq!(advice["statements"], serde_json::json!(["ALTER INDEX t_pkey SET TABLESPACE near"]));
    let predicted_ms = ms(&advice, "stall_advised_ms");
    assert!(0.0 < predicted_ms && predicted_ms < far_ms / 2.0, "{far_ms} ms, but {advice:#}");
    let left_ms = accounted();
    assert!(is_close(predicted_ms, left_ms), "{left_ms} ms, but {advice:#}");

    // What a statement reads of it is shown with the statement.
    let explained = run("EXPLAIN PLACEMENT SELECT pad FROM t WHERE kind = 7");
    assert!(explained.contains("t, index by_kind (now in slow)"), "{explained}");
    let explained = run("EXPLAIN (ANALYZE) SELECT pad FROM t WHERE kind = 7");
    assert!(explained.contains("Index Lookups: 1  Entries Found: 4  Index Read: "), "{explained}");
    assert!(
        explained.contains("tablespaces=[near, slow]") && explained.contains("Tablespace slow: read "),
        "{explained}"
    );
    server.signal(libc::SIGTERM);
    assert!(server.wait().0);
}
