//! What a server finds when it starts: after a kill, and after damage.

use crate::cli::{Serving, serve, sql, text, tidepool};
use crate::server::PATIENCE;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

fn answer(url: &str, query: &str) -> String {
    let output = sql(url, &["--format", "csv", "-c", query], "");
    assert!(output.status.success(), "{query}: {}", text(&output.stderr));
    text(&output.stdout).lines().nth(1).unwrap_or_default().to_owned()
}

fn run(url: &str, statement: &str) {
    let output = sql(url, &["-c", statement], "");
    assert!(output.status.success(), "{statement}: {}", text(&output.stderr));
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(folder.join("rows")).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

/// Numbers without precision, their indexes and constraints: from the checkpoint, from the log, in delta and in main.
#[test]
fn a_killed_server_keeps_numbers_at_their_scales() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = serve(&data, &[]);
    run(&server.url, "CREATE TABLE kept (a numeric PRIMARY KEY, b numeric, id int)");
    run(
        &server.url,
        "INSERT INTO kept SELECT x + 0.50::numeric, 1::numeric / x, x FROM generate_series(1, 20000) AS t(x); CALL tidepool.merge('kept')",
    );
    run(&server.url, "CREATE INDEX kept_b ON kept (b)");
    run(&server.url, "CHECKPOINT");
    run(&server.url, "INSERT INTO kept VALUES (0.00, NULL, 0), (-1E-21, 12345678901234567890123456789012345678, -1)");
    run(&server.url, "UPDATE kept SET b = 2.500 WHERE a = 7.5");
    let whole = "SELECT md5(string_agg(a::text || '|' || coalesce(b::text, ''), ',' ORDER BY id)) FROM kept";
    let before = answer(&server.url, whole);
    server.signal(libc::SIGKILL);
    assert!(!server.wait().0);

    let server = serve(&data, &[]);
    assert_eq!(answer(&server.url, whole), before);
    for (query, expected) in [
        ("SELECT a FROM kept WHERE id = 0", "0.00"),
        ("SELECT a FROM kept WHERE id = -1", "-0.000000000000000000001"),
        ("SELECT b FROM kept WHERE a < 0", "12345678901234567890123456789012345678"),
        ("SELECT a FROM kept WHERE b = 2.5", "7.50"),
        ("SELECT b FROM kept WHERE a = 3.500", "0.33333333333333333333"),
        ("SELECT count(*) FROM kept WHERE a > 100.5", "19900"),
    ] {
        assert_eq!(answer(&server.url, query), expected, "{query}");
    }
    let refused = sql(&server.url, &["-c", "INSERT INTO kept VALUES (7.5)"], "");
    assert!(text(&refused.stderr).contains("duplicate key"), "{}", text(&refused.stderr));
    run(&server.url, "CALL tidepool.merge('kept')");
    run(&server.url, "CALL tidepool.check()");
    assert_eq!(answer(&server.url, whole), before);
    server.signal(libc::SIGTERM);
    server.wait();
}

/// By a restart that nobody has taken a value after, one after which others came, and one that a later change of the definition hides.
#[test]
fn a_killed_server_keeps_where_sequences_were_restarted() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = serve(&data, &[]);
    run(&server.url, "CREATE SEQUENCE a; CREATE SEQUENCE b; CREATE SEQUENCE c; CREATE SEQUENCE d");
    run(&server.url, "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY, x int); INSERT INTO t (x) VALUES (1), (2)");
    run(
        &server.url,
        "ALTER SEQUENCE a RESTART WITH 500; ALTER SEQUENCE b RESTART WITH 600; ALTER SEQUENCE c RESTART WITH 700",
    );
    run(&server.url, "BEGIN; ALTER SEQUENCE d RESTART WITH 800; ALTER SEQUENCE d INCREMENT 2; COMMIT");
    run(&server.url, "ALTER TABLE t ALTER id RESTART WITH 900");
    assert_eq!(answer(&server.url, "SELECT nextval('b')"), "600");
    run(&server.url, "ALTER SEQUENCE c INCREMENT 3; ALTER SEQUENCE b INCREMENT 1");
    server.signal(libc::SIGKILL);
    assert!(!server.wait().0);

    let server = serve(&data, &[]);
    for (name, wanted) in [("a", "500"), ("c", "700"), ("c", "703"), ("d", "800"), ("d", "802")] {
        assert_eq!(answer(&server.url, &format!("SELECT nextval('{name}')")), wanted, "{name}");
    }
    assert_eq!(answer(&server.url, "INSERT INTO t (x) VALUES (3) RETURNING id"), "900");
    let next: i64 = answer(&server.url, "SELECT nextval('b')").parse().unwrap();
    assert!((601..=640).contains(&next), "{next}");
    server.signal(libc::SIGTERM);
    server.wait();
}

#[test]
fn a_killed_server_keeps_what_was_committed() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut expected = 0;
    for round in 1..=3u32 {
        let server = serve(&data, &[]);
        if round == 1 {
            run(&server.url, "CREATE TABLE kept (a bigint, b text)");
        }
        assert_eq!(answer(&server.url, "SELECT count(*) FROM kept"), expected.to_string());
        // Only what the manifest names is left of the round before.
        let before = files(&data);
        run(&server.url, "INSERT INTO kept SELECT x, 'row ' || x FROM generate_series(1, 100000) AS t(x)");
        run(&server.url, "BEGIN; INSERT INTO kept VALUES (-1, 'undone'); ROLLBACK");
        // Small commits are in the folder within seconds; here, at once.
        run(&server.url, "CHECKPOINT");
        expected += 100_000;
        let committed = files(&data);
        assert!(committed.len() > before.len());
        // Killed in the middle of a transaction that has written much.
        let mut open = tidepool()
            .args(["sql", &server.url, "-c", "BEGIN"])
            .args(["-c", "INSERT INTO kept SELECT x, 'lost ' || x FROM generate_series(1, 300000) AS t(x)"])
            .args(["-c", "SELECT pg_sleep(600)"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let start = Instant::now();
        while answer(&server.url, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'") != "1" {
            assert!(start.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(50));
        }
        server.signal(libc::SIGKILL);
        assert!(!server.wait().0);
        open.wait().unwrap();

        let server = serve(&data, &[]);
        assert_eq!(files(&data), committed, "round {round}");
        assert_eq!(answer(&server.url, "SELECT count(*) FROM kept"), expected.to_string());
        assert_eq!(answer(&server.url, "SELECT count(*) FROM kept WHERE a < 0 OR b LIKE 'lost%'"), "0");
        server.signal(libc::SIGKILL);
        assert!(!server.wait().0);
    }
}

#[test]
fn a_killed_server_keeps_its_objects_and_gives_no_value_twice() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = serve(&data, &[]);
    run(&server.url, "CREATE SCHEMA s; CREATE TABLE s.t (id serial, n int CHECK (n > 0), note text DEFAULT 'none')");
    run(&server.url, "CREATE VIEW s.v AS SELECT id, n FROM s.t WHERE n < 100; CREATE SEQUENCE plain CACHE 5");
    run(&server.url, "ALTER TABLE s.t ADD COLUMN later int DEFAULT 3; ALTER TABLE s.t DROP COLUMN note");
    // Not committed: not there after the kill.
    run(&server.url, "BEGIN; CREATE SCHEMA gone; DROP VIEW s.v; ALTER SEQUENCE plain RESTART WITH 1000; ROLLBACK");
    let mut given: Vec<i64> = Vec::new();
    let take = |url: &str, count: usize| -> Vec<i64> {
        let output = sql(
            url,
            &["--format", "csv", "-c", &format!("SELECT nextval('plain') FROM generate_series(1, {count})")],
            "",
        );
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).lines().skip(1).map(|line| line.parse().unwrap()).collect()
    };
    given.extend(take(&server.url, 7));
    run(&server.url, "INSERT INTO s.t (n) VALUES (1), (2)");
    let mut url = server.url.clone();
    let mut running = server;
    for round in 1..=3 {
        running.signal(libc::SIGKILL);
        assert!(!running.wait().0);
        running = serve(&data, &[]);
        url = running.url.clone();
        given.extend(take(&url, 40 * round));
        // A gap is no longer than what is written ahead.
        let last = given.iter().max().unwrap();
        assert!(*last < 2_000, "{last}");
        assert_eq!(answer(&url, "SELECT count(*) FROM pg_views WHERE schemaname = 's'"), "1");
        assert_eq!(answer(&url, "SELECT count(*) FROM pg_namespace WHERE nspname = 'gone'"), "0");
        assert_eq!(answer(&url, "SELECT count(*) FROM s.v"), answer(&url, "SELECT count(*) FROM s.t WHERE later = 3"));
        let refused = sql(&url, &["-c", "INSERT INTO s.t (n) VALUES (0)"], "");
        assert!(text(&refused.stderr).contains("t_n_check"), "{}", text(&refused.stderr));
        run(&url, "INSERT INTO s.t (n) VALUES (3); CHECKPOINT");
    }
    assert_eq!(answer(&url, "SELECT count(*) - count(DISTINCT id) FROM s.t"), "0");
    let distinct: std::collections::BTreeSet<i64> = given.iter().copied().collect();
    assert_eq!(distinct.len(), given.len(), "{given:?}");
    // A graceful stop leaves no gap but what sessions had cached.
    run(&url, "CREATE SEQUENCE exact; SELECT nextval('exact')");
    running.signal(libc::SIGTERM);
    assert!(running.wait().0);
    let running = serve(&data, &[]);
    assert_eq!(answer(&running.url, "SELECT nextval('exact')"), "2");
    running.signal(libc::SIGTERM);
    assert!(running.wait().0);
}

/// Starts a server that must refuse to, and returns what it says.
fn refused(data: &Path, arguments: &[&str]) -> String {
    let mut command = tidepool();
    command
        .args(["serve", "--near", "64MB", "--data"])
        .arg(data)
        .args(if arguments.contains(&"--far") { &[][..] } else { &["--far", "anon:,size=64MB"] })
        .args(arguments);
    Serving::refused(command)
}

#[test]
fn a_damaged_data_folder_is_refused_with_the_files_name() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = serve(&data, &[]);
    run(&server.url, "CREATE TABLE damaged AS SELECT x, 'text ' || x AS y FROM generate_series(1, 150000) AS t(x)");
    run(&server.url, "INSERT INTO damaged VALUES (0, 'one more')");
    server.signal(libc::SIGTERM);
    assert!(server.wait().0);
    let mut victims = files(&data);
    assert!(victims.len() >= 2, "{victims:?}");
    victims.extend(["MANIFEST", "SEQUENCES"].map(|name| data.join(name)));
    let mut random = StdRng::seed_from_u64(17);
    for victim in &victims {
        let name = victim.file_name().unwrap().to_str().unwrap();
        let good = std::fs::read(victim).unwrap();
        let other = std::fs::read(victims.iter().find(|other| *other != victim).unwrap()).unwrap();
        let mut bad = vec![Vec::new(), good[..good.len() / 2].to_vec(), good[..good.len() - 1].to_vec()];
        bad.extend([other, b"something else altogether\n".to_vec(), [&good[..], b"more"].concat()]);
        for _ in 0..3 {
            let mut flipped = good.clone();
            let at = random.random_range(0..flipped.len());
            flipped[at] ^= 1 << random.random_range(0..8);
            bad.push(flipped);
        }
        for bytes in bad {
            std::fs::write(victim, &bytes).unwrap();
            let said = refused(&data, &[]);
            assert!(said.contains(name), "{} bytes in {name}: {said}", bytes.len());
        }
        std::fs::remove_file(victim).unwrap();
        assert!(refused(&data, &[]).contains(name), "{name} is missing");
        std::fs::write(victim, &good).unwrap();
    }
    // Nothing was lost by the attempts.
    let server = serve(&data, &[]);
    assert_eq!(answer(&server.url, "SELECT count(*) || ' ' || sum(x) FROM damaged"), "150001 11250075000");
    server.signal(libc::SIGTERM);
    assert!(server.wait().0);
}

#[test]
fn files_that_cannot_be_tablespaces() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let file = folder.path().join("far");
    let far = format!("file:{},size=64MB", file.display());
    let arguments = ["--far", far.as_str()];
    let name = file.to_str().unwrap();
    // Somebody else's file stays as it is.
    for foreign in [b"a letter to a friend\n".to_vec(), vec![7; 1 << 20]] {
        std::fs::write(&file, &foreign).unwrap();
        assert!(refused(&data, &arguments).contains(name));
        assert_eq!(std::fs::read(&file).unwrap(), foreign);
    }
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    assert!(refused(&data, &arguments).contains(name));
    std::fs::remove_dir(&file).unwrap();
    let nowhere = format!("file:{}/no/such/folder,size=64MB", folder.path().display());
    assert!(refused(&data, &["--far", &nowhere]).contains("no/such/folder"));
    // One of ours, and then of a version to come.
    let serve_far = || {
        let mut command = tidepool();
        command.args(["sql", "--near", "64MB", "--far", &far, "--data"]).arg(&data).args(["-c", "SELECT 1"]);
        command.output().unwrap()
    };
    let output = serve_far();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let good = std::fs::read(&file).unwrap();
    let mut newer = good.clone();
    for copy in [0, 2048] {
        if newer[copy..].starts_with(b"TIDEPOOL") {
            newer[copy + 8] += 1;
        }
    }
    assert_ne!(newer, good);
    std::fs::write(&file, &newer).unwrap();
    let other = folder.path().join("other");
    assert!(refused(&other, &arguments).contains(name));
    // The data folder has all that the file had: it goes on, says so, and leaves the file alone.
    for content in [newer, b"a letter to a friend\n".to_vec()] {
        std::fs::write(&file, &content).unwrap();
        let output = serve_far();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let warning = text(&output.stderr);
        assert!(warning.contains("memory takes its place") && warning.contains(name), "{warning}");
        assert_eq!(std::fs::read(&file).unwrap(), content);
    }
    std::fs::write(&file, &good).unwrap();
    assert!(serve_far().status.success());
}
