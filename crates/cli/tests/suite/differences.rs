//! The known differences from PostgreSQL: `tests/differences`, in the form of `tests/slt`, with PostgreSQL's answers.
//!
//! A record below a comment that begins with `# differs:` has another answer today, and that comment says which. All other
//! records prepare for these, and must succeed. As soon as one that differs gives PostgreSQL's answer, this test fails and
//! says so: the record moves to a file of `tests/slt`, where its answer is kept right.

use crate::server::TestServer;
use crate::slt::{Connection, files};
use sqllogictest::{DefaultColumnType, Record, Runner};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// What a comment begins with whose record differs.
const MARK: &str = "differs:";

fn root() -> PathBuf {
    crate::crate_folder().join("tests/differences")
}

/// What is not as the file says it is: a line each.
async fn surprises(path: &Path) -> String {
    let records = sqllogictest::parse_file::<DefaultColumnType>(path).unwrap();
    let server = TestServer::start().await;
    let config = server.config();
    let mut runner = Runner::new(move || {
        let config = config.clone();
        async move {
            let client = crate::server::connect(&config).await?;
            Ok(Connection::new(client))
        }
    });
    let mut surprises = String::new();
    let mut differs = false;
    for record in records {
        let at = match &record {
            Record::Comment(lines) => {
                differs = lines.iter().any(|line| line.trim_start().starts_with(MARK));
                continue;
            }
            Record::Statement { loc, .. } | Record::Query { loc, .. } => loc.to_string(),
            _ => String::new(),
        };
        if at.is_empty() {
            let _ = runner.run_async(record).await;
            continue;
        }
        let outcome = runner.run_async(record).await;
        let _ = match (outcome, differs) {
            (Ok(_), true) => writeln!(surprises, "{at}: is PostgreSQL's answer now: move it to a file of tests/slt"),
            (Err(error), false) => writeln!(surprises, "{}", error.display(false)),
            _ => Ok(()),
        };
        differs = false;
    }
    drop(runner);
    server.stop().await;
    surprises
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn known_differences_from_postgresql_are_listed() {
    let mut paths = Vec::new();
    files(&root(), &mut paths);
    paths.sort();
    assert!(!paths.is_empty(), "no files in {}", root().display());
    let mut all = String::new();
    for path in paths {
        all += &surprises(&path).await;
    }
    assert!(all.is_empty(), "{all}");
}
