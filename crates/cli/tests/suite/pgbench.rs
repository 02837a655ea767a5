//! PostgreSQL's pgbench, unmodified: initialises, runs its built-in scripts in every query mode, and its sums agree.

use crate::cli::{serve, sql, text};
use std::path::PathBuf;
use std::process::Command;

/// Debian keeps it out of the way of several releases side by side.
fn pgbench() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let folders = debian.map(|entry| entry.path().join("bin")).chain(folders);
    folders.map(|folder| folder.join("pgbench")).find(|program| program.exists())
}

#[test]
fn pgbench_runs_unmodified() {
    let Some(program) = pgbench() else {
        tidepool_base::cannot_test(&"there is no pgbench here (Debian: postgresql)");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let server = serve(&folder.path().join("data"), &[]);
    let run = |arguments: &[&str]| {
        let output = Command::new(&program).args(arguments).arg(&server.url).output().unwrap();
        let (stdout, stderr) = (text(&output.stdout).to_owned(), text(&output.stderr).to_owned());
        assert!(output.status.success(), "{arguments:?}: {stdout}{stderr}");
        assert!(!stderr.contains("ERROR"), "{arguments:?}: {stderr}");
        stdout
    };
    run(&["-i", "-s", "1", "-q"]);
    for script in ["tpcb-like", "simple-update", "select-only"] {
        for mode in ["simple", "extended", "prepared"] {
            let told = run(&["-b", script, "-M", mode, "-c", "3", "-j", "2", "-t", "15", "-n"]);
            assert!(told.contains("number of transactions actually processed: 45/45"), "{script} {mode}: {told}");
            assert!(told.contains("number of failed transactions: 0 "), "{script} {mode}: {told}");
        }
    }
    let sums = "SELECT (SELECT sum(abalance) FROM pgbench_accounts) - (SELECT sum(delta) FROM pgbench_history) AS a,
                       (SELECT sum(tbalance) FROM pgbench_tellers) - (SELECT sum(bbalance) FROM pgbench_branches) AS b,
                       (SELECT count(*) FROM pgbench_history) AS h";
    let output = sql(&server.url, &["--format", "csv", "-c", sums], "");
    assert_eq!(text(&output.stdout).lines().nth(1), Some("0,0,270"), "{}", text(&output.stderr));
    // Anew, with foreign keys, which its scripts heed.
    run(&["-i", "-s", "2", "-q", "--foreign-keys", "-I", "dtgvpf"]);
    let told = run(&["-b", "tpcb-like", "-c", "3", "-j", "2", "-t", "15", "-n"]);
    assert!(told.contains("number of failed transactions: 0 "), "{told}");
    let keys = "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND convalidated";
    let output = sql(&server.url, &["--format", "csv", "-c", keys], "");
    assert_eq!(text(&output.stdout).lines().nth(1), Some("5"), "{}", text(&output.stderr));
    let output = sql(&server.url, &["-c", "DELETE FROM pgbench_branches WHERE bid = 1"], "");
    assert!(!output.status.success());
    let stderr = text(&output.stderr);
    assert!(stderr.contains("violates foreign key constraint \"pgbench_"), "{stderr}");
    // With the vacuum that it begins with.
    run(&["-c", "2", "-t", "5"]);
    server.signal(libc::SIGTERM);
    assert!(server.wait().0);
}
