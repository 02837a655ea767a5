//! Servers that are killed at random moments and at every named crash point, under a mixed workload: what was acknowledged
//! is there, and nothing that was not is half there.
//!
//! Each client writes transactions of its own, one after another, and notes which were acknowledged. `TIDEPOOL_STRESS_SEED` and
//! `TIDEPOOL_STRESS_SECONDS` make it another and a longer history.

mod contents;
mod partitioned;

use crate::cli::{Serving, text, tidepool, try_serve};
use crate::server::PATIENCE;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};
use tokio_postgres::{Client, NoTls};

const CLIENTS: usize = 4;
/// Of these, commits do not wait for the log.
const ASYNCHRONOUS: usize = 3;
const ACCOUNTS: i64 = 16;
/// Transactions that a client's journal keeps.
const KEPT: i64 = 12;
/// Partitions that came last: the others are dropped.
const KEPT_PARTITIONS: i64 = 3;

/// Transactions after which a crash point that was not reached will not be.
const POINT_TRANSACTIONS: i64 = 200;

/// Of the crash points every so manieth is next, so that a short run has some of each kind; it has no divisor in common with
/// the number of kinds of rounds, so that a long one has all.
const STEP: usize = 5;

/// Rows of a client's transaction in the journal.
fn parts(number: i64) -> i64 {
    number % 4 + 1
}

/// What clients were told.
#[derive(Default)]
struct Told {
    /// By client, the last transaction that was acknowledged.
    acknowledged: [AtomicI64; CLIENTS],
    /// The last table that was made.
    tables: AtomicI64,
}

async fn connect(url: &str) -> Option<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.ok()?;
    tokio::spawn(connection);
    Some(client)
}

/// Transactions until the server is gone.
async fn write(url: String, number: usize, first: i64, told: Arc<Told>, mut random: StdRng) {
    let Some(client) = connect(&url).await else { return };
    if number == ASYNCHRONOUS && client.batch_execute("SET synchronous_commit = off").await.is_err() {
        return;
    }
    for next in first.. {
        let (from, to) = (random.random_range(1..=ACCOUNTS), random.random_range(1..=ACCOUNTS));
        let rows: Vec<String> =
            (0..parts(next)).map(|part| format!("({number}, {next}, {part}, repeat('x', {}))", next % 300)).collect();
        let rolled_back = random.random_range(0..6) == 0;
        let sql = format!(
            "BEGIN; UPDATE counter SET last = {next} WHERE client = {number};
             INSERT INTO journal VALUES {};
             DELETE FROM journal WHERE client = {number} AND number <= {};
             UPDATE account SET balance = balance + CASE WHEN id = {from} THEN -5 WHEN id = {to} THEN 5 ELSE 0 END
             WHERE id IN ({from}, {to}) AND {from} <> {to};
             {}
             {}",
            rows.join(", "),
            next - KEPT,
            partitioned::moved(number, next),
            if rolled_back { "ROLLBACK" } else { "COMMIT" },
        );
        if rolled_back {
            // The same once more, to the end.
            if !is_through(&client, &sql).await || !is_through(&client, &sql.replace("ROLLBACK", "COMMIT")).await {
                return;
            }
        } else if !is_through(&client, &sql).await {
            return;
        }
        told.acknowledged[number].store(next, Ordering::SeqCst);
    }
}

/// Runs a transaction until it is not undone for the sake of another one, and a checkpoint has made room for it in the log, which takes
/// longer than the server waits where others have the processors. False: the server is gone.
async fn is_through(client: &Client, sql: &str) -> bool {
    let begun = Instant::now();
    // A log in which there is never room again is a defect.
    let is_to_come_again = |code: &str| code.starts_with("40") || code == "53100" && begun.elapsed() < PATIENCE / 2;
    loop {
        match client.batch_execute(sql).await {
            Ok(()) => return true,
            Err(error) if error.code().is_some_and(|code| is_to_come_again(code.code())) => {
                if client.batch_execute("ROLLBACK").await.is_err() {
                    return false;
                }
            }
            Err(error) => {
                assert!(error.as_db_error().is_none_or(|error| error.code().code().starts_with("57")), "{error:?}");
                return false;
            }
        }
    }
}

/// Tables that come and go, each with its number of rows, partitions, and indexes beside writers; checkpoints and merges.
async fn define(url: String, first: i64, told: Arc<Told>, mut random: StdRng) {
    let Some(client) = connect(&url).await else { return };
    for next in first.. {
        let sql = format!(
            "BEGIN; CREATE TABLE made_{next} AS SELECT x FROM generate_series(1, {next}) AS g(x);
             DROP TABLE IF EXISTS made_{}; {} COMMIT",
            next - 2,
            partitioned::sliced(next)
        );
        if !is_through(&client, &sql).await {
            return;
        }
        told.tables.store(next, Ordering::SeqCst);
        let other = match random.random_range(0..10) {
            0 => "CHECKPOINT",
            1 => "CALL tidepool.merge('journal')",
            2 => "CALL tidepool.merge('account')",
            3 => "CALL tidepool.merge('moving_0')",
            4 => partitioned::BACK,
            5 => "CREATE INDEX CONCURRENTLY IF NOT EXISTS by_note ON journal (note)",
            6 => "DROP INDEX CONCURRENTLY IF EXISTS by_note",
            7 => "REINDEX INDEX CONCURRENTLY journal_pkey",
            8 => "REINDEX TABLE CONCURRENTLY account",
            _ => "SELECT pg_sleep(0.02)",
        };
        if !is_through(&client, other).await {
            return;
        }
    }
}

/// Looks at the accounts, and at rows that move, until the server is gone: their sum holds in every snapshot, not only after a
/// start.
async fn watch(url: String, about: String) {
    let Some(client) = connect(&url).await else { return };
    let sql = "SELECT sum(balance)::bigint, count(*) FROM account";
    while let Ok(row) = client.query_one(sql, &[]).await {
        let (sum, count): (i64, i64) = (row.get(0), row.get(1));
        assert_eq!((sum, count), (100 * ACCOUNTS, ACCOUNTS), "{about}: before the kill");
        let Ok(watched) = partitioned::watch(&client).await else { return };
        assert_eq!(watched, partitioned::WATCHED, "{about}: before the kill");
    }
}

async fn number(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
}

/// Compares what the server has with what clients were told, and takes that for the new truth.
async fn check(url: &str, told: &Told, about: &str) {
    let client = connect(url).await.expect("the server is ready");
    assert_eq!(number(&client, "SELECT sum(balance)::bigint FROM account").await, 100 * ACCOUNTS, "{about}");
    assert_eq!(number(&client, "SELECT count(*) FROM account").await, ACCOUNTS, "{about}");
    let mut all_last = Vec::new();
    for (of, acknowledged) in told.acknowledged.iter().enumerate() {
        let was_told = acknowledged.load(Ordering::SeqCst);
        let last = number(&client, &format!("SELECT last FROM counter WHERE client = {of}")).await;
        // The one after that was under way.
        assert!(
            last <= was_told + 1 && (last >= was_told || of == ASYNCHRONOUS),
            "{about}: {of} has {last} of {was_told}"
        );
        let rows = client
            .query(
                "SELECT number, count(*), min(part), max(part) FROM journal WHERE client = $1 GROUP BY 1 ORDER BY 1",
                &[&(of as i32)],
            )
            .await
            .unwrap();
        let found: Vec<(i64, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let expected: Vec<(i64, i64)> =
            ((last - KEPT + 1).max(1)..=last).map(|number| (number, parts(number))).collect();
        assert_eq!(found, expected, "{about}: the journal of {of}, told of {was_told}");
        acknowledged.store(last, Ordering::SeqCst);
        all_last.push(last);
    }
    let tables = client
        .query(
            "SELECT relname FROM pg_class WHERE relname LIKE 'made%' AND relkind = 'r' ORDER BY length(relname), 1",
            &[],
        )
        .await
        .unwrap();
    let names: Vec<String> = tables.iter().map(|row| row.get(0)).collect();
    let was_told = told.tables.load(Ordering::SeqCst);
    let named = |last: i64| ((last - 1).max(1)..=last).map(|number| format!("made_{number}")).collect::<Vec<_>>();
    let last = if names == named(was_told) { was_told } else { was_told + 1 };
    assert_eq!(names, named(last), "{about}: told of {was_told}");
    for number_of in (last - 1).max(1)..=last {
        assert_eq!(number(&client, &format!("SELECT count(*) FROM made_{number_of}")).await, number_of, "{about}");
    }
    told.tables.store(last, Ordering::SeqCst);
    // Those that were not finished are gone.
    let sql = "SELECT count(*) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
        WHERE NOT indisvalid OR relname LIKE '%ccnew%'";
    assert_eq!(number(&client, sql).await, 0, "{about}");
    partitioned::check(&client, &all_last, last, about).await;
    for row in client.query("CALL tidepool.check()", &[]).await.unwrap() {
        let (object, fault): (String, Option<String>) = (row.get(0), row.get(2));
        assert_eq!(fault, None, "{about}: {object}");
    }
}

/// What is wrong with what a killed server left, before another one looks at it.
fn check_folder(data: &Path, config: &Path) -> Result<(), String> {
    let mut command = tidepool();
    let checked = command.args(["check", "--data"]).arg(data).env("TIDEPOOL_CONFIG", config).output().unwrap();
    let said = || format!("check --data: {}{}", text(&checked.stdout), text(&checked.stderr));
    if checked.status.success() { Ok(()) } else { Err(said()) }
}

fn start(data: &Path, config: &Path, crash_point: Option<&str>) -> Result<Serving, String> {
    let mut environment = vec![("TIDEPOOL_CONFIG", config.to_str().unwrap())];
    environment.extend(crash_point.map(|point| (tidepool_base::CRASH_POINT_VARIABLE, point)));
    // As the configuration says, which a flag would override.
    let far = format!("file:{},size=64MB", data.with_file_name("far").display());
    try_serve(data, &["--far", &far], &environment)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_kills() {
    let variable = |name: &str, default: u64| {
        std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number")))
    };
    let (seed, seconds) = (variable("TIDEPOOL_STRESS_SEED", 1), variable("TIDEPOOL_STRESS_SECONDS", 0));
    let begun = Instant::now();
    let mut random = StdRng::seed_from_u64(seed);
    let folder = tempfile::tempdir().unwrap();
    let (data, config) = (folder.path().join("data"), folder.path().join("tidepool.toml"));
    // Main of the accounts stays in memory when the process ends, that of the other tables does not.
    // Their log moves from files to that memory and back.
    let far = folder.path().join("far");
    let configure = |log: &str| {
        let text = format!(
            "[memory.far]\nlocation = \"file:{}\"\nsize = \"64MB\"\n\
             [log]\nsize = \"1MB\"\nsegment_size = \"64kB\"\ncheckpoint_timeout = \"1s\"\n{log}",
            far.display()
        );
        std::fs::write(&config, text).unwrap();
    };
    configure("");
    let told = Arc::new(Told::default());
    {
        let server = start(&data, &config, None).unwrap();
        let client = connect(&server.url).await.unwrap();
        let sql = format!(
            "CREATE TABLE account (id bigint PRIMARY KEY, balance bigint) TABLESPACE far;
             INSERT INTO account SELECT x, 100 FROM generate_series(1, {ACCOUNTS}) AS g(x);
             CREATE TABLE counter (client int PRIMARY KEY, last bigint);
             INSERT INTO counter SELECT x, 0 FROM generate_series(0, {}) AS g(x);
             CREATE TABLE journal (client int, number bigint, part int, note text, PRIMARY KEY (client, number, part));
             CREATE TABLE made_1 AS SELECT 1 AS x;
             {}",
            CLIENTS - 1,
            partitioned::make()
        );
        client.batch_execute(&sql).await.unwrap();
        told.tables.store(1, Ordering::SeqCst);
        server.signal(libc::SIGKILL);
        server.wait();
    }
    let points: Vec<&str> = tidepool_log::CRASH_POINTS.iter().chain(tidepool_database::CRASH_POINTS).copied().collect();
    let mut reached = 0;
    let mut rounds = 0;
    while rounds < points.len() + 4 || begun.elapsed() < Duration::from_secs(seconds) {
        let point = points.get(rounds * STEP % (points.len() + 4)).map(|point| match *point {
            "log.write" | "log.written" | "log.synced" | "log.appended" | "commit.decided" | "commit.stamped" => {
                format!("{point}:{}", random.random_range(1..60))
            }
            _ => format!("{point}:{}", random.random_range(1..4)),
        });
        let about = format!("seed {seed}, round {rounds}, {}", point.as_deref().unwrap_or("killed"));
        rounds += 1;
        match random.random_range(0..8) {
            0 | 1 => configure("tablespace = \"far\"\n"),
            2 => configure(""),
            _ => {}
        }
        let server = match start(&data, &config, point.as_deref()) {
            Ok(server) => server,
            // It was reached at the start.
            Err(log) => {
                assert!(point.is_some() && !log.contains("error: "), "{about}: {log}");
                reached += 1;
                let server = start(&data, &config, None).unwrap_or_else(|log| panic!("{about}: {log}"));
                check(&server.url, &told, &about).await;
                server.signal(libc::SIGKILL);
                server.wait();
                continue;
            }
        };
        let mut clients = Vec::new();
        for of in 0..CLIENTS {
            let first = told.acknowledged[of].load(Ordering::SeqCst) + 1;
            let random = StdRng::seed_from_u64(random.random());
            clients.push(tokio::spawn(write(server.url.clone(), of, first, told.clone(), random)));
        }
        let first = told.tables.load(Ordering::SeqCst) + 1;
        let of_definer = StdRng::seed_from_u64(random.random());
        clients.push(tokio::spawn(define(server.url.clone(), first, told.clone(), of_definer)));
        clients.push(tokio::spawn(watch(server.url.clone(), about.clone())));
        let lasts = match point {
            // Should the point not be reached.
            Some(_) => Duration::from_secs(3),
            None => Duration::from_millis(random.random_range(20..700)),
        };
        let watch = Instant::now();
        let ended = || clients.iter().all(|client| client.is_finished());
        // On a busy machine it takes longer until as much was done.
        let acknowledged = || told.acknowledged.iter().map(|last| last.load(Ordering::SeqCst)).sum::<i64>();
        let enough = acknowledged() + if point.is_some() { POINT_TRANSACTIONS } else { 0 };
        while (watch.elapsed() < lasts || acknowledged() < enough) && watch.elapsed() < PATIENCE && !ended() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        reached += usize::from(ended());
        server.signal(libc::SIGKILL);
        for client in clients {
            client.await.unwrap();
        }
        let (_, log) = server.wait();
        assert!(!log.contains("panicked"), "{about}: {log}");
        check_folder(&data, &config).unwrap_or_else(|fault| panic!("{about}: {fault}"));
        let server = start(&data, &config, None).unwrap_or_else(|log| panic!("{about}: {log}"));
        check(&server.url, &told, &about).await;
        server.signal(libc::SIGKILL);
        server.wait();
    }
    println!("seed {seed}: {rounds} rounds, {reached} ended at a crash point");
    assert!(reached * 3 >= rounds, "{reached} of {rounds} rounds reached their crash point");
}
