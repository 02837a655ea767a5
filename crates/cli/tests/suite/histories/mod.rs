//! Histories of concurrent random transactions over the wire, searched for what their isolation levels forbid.
//!
//! A server of its own process, several sessions, three kinds of data:
//!
//! * `lists`: a row a list, its values concatenated in a text. Appending updates the row, or inserts it.
//! * `elements`: a row an element, with its position, which is the number of elements that the transaction found. Appending
//!   reads a predicate and inserts.
//! * `registers`: rows with unique values that are inserted, updated and deleted one by one and by predicate. `RETURNING` says what was
//!   replaced.
//!
//! They are read by index and by full scan, as rows and as counts, while tables are merged, move and gain and lose an index. Each round has tables of its
//! own, of other placements and merge policies. `TIDEPOOL_STRESS_SEED` and `TIDEPOOL_STRESS_SECONDS` make it another and a
//! longer run.

mod checker;
mod checker_tests;
mod clients;
mod graph;
mod history;

use crate::cli::try_serve;
use crate::server::code;
use clients::{Recorder, Session, Tables};
use history::{History, Level};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio_postgres::{Client, NoTls};

const SESSIONS: usize = 4;
const TRANSACTIONS: usize = 40;

const MERGES: [&str; 3] = ["never", "auto", "immediate"];
const PLACES: [&str; 5] = ["near", "far", "filed", "striped", "paged"];

pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}

/// Merges, moves, and an index that comes and goes, until told to stop.
async fn disturb(client: Client, tables: Tables, places: Vec<&'static str>, stop: Arc<AtomicBool>, mut random: StdRng) {
    let mut has_index = false;
    while !stop.load(Ordering::Relaxed) {
        let table = tables.names()[random.random_range(0..3)].clone();
        let sql = match random.random_range(0..16) {
            0 => format!("ALTER TABLE {table} SET TABLESPACE {}", places[random.random_range(0..places.len())]),
            1 => {
                has_index = !has_index;
                let elements = &tables.elements;
                match has_index {
                    true => format!("CREATE INDEX {elements}_tag ON {elements} (tag)"),
                    false => format!("DROP INDEX {elements}_tag"),
                }
            }
            _ => format!("CALL tidepool.merge('{table}')"),
        };
        if let Err(error) = client.batch_execute(&sql).await {
            // It may wait crosswise with somebody.
            assert!(["40P01", "40001"].contains(&code(&error)), "{sql}: {error:?}");
            if sql.contains("INDEX") {
                has_index = !has_index;
            }
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(1..20))).await;
    }
}

/// The same, as if all had been promised serializability.
fn raised(history: &History) -> History {
    let mut raised = history.clone();
    raised.iter_mut().for_each(|transaction| transaction.level = Level::Serializable);
    raised
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn levels_forbid_what_they_promise() {
    let variable = |name: &str, default: u64| {
        std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number")))
    };
    let (seed, seconds) = (variable("TIDEPOOL_STRESS_SEED", 1), variable("TIDEPOOL_STRESS_SECONDS", 0));
    let begun = Instant::now();
    let mut random = StdRng::seed_from_u64(seed);
    let folder = tempfile::tempdir().unwrap();
    let server = try_serve(&folder.path().join("data"), &[], &[]).unwrap_or_else(|log| panic!("{log}"));
    let client = connect(&server.url).await;
    let file = folder.path().join("filed").display().to_string();
    let part = folder.path().join("striped").display().to_string();
    let mut places: Vec<&'static str> = Vec::new();
    for (place, location) in [
        ("filed", format!("file:{file}")),
        ("striped", format!("anon:*2, file:{part}*1")),
        ("paged", "paged:8MB:anon:".to_owned()),
    ] {
        let sql = format!("CREATE TABLESPACE {place} LOCATION '{location}' WITH (size = '64MB')");
        match client.batch_execute(&sql).await {
            Ok(()) => places.push(place),
            // The kernel may refuse userfaultfd(2).
            Err(error) => assert_eq!(place, "paged", "{error:?}"),
        }
    }
    places.extend(PLACES.iter().filter(|place| !["filed", "striped", "paged"].contains(place)));
    let mut rounds = 0;
    let (mut totals, mut weak) = ([(0, 0); 4], 0);
    while rounds < 4 || begun.elapsed() < Duration::from_secs(seconds) {
        // The last kind has all levels side by side.
        let level = Level::ALL.get(rounds % 4).copied();
        let (merge, place) = (MERGES[random.random_range(0..3)], places[random.random_range(0..places.len())]);
        let about = format!("seed {seed}, round {rounds}, {level:?}, merge {merge}, {place}");
        let tables = Tables::of_round(rounds);
        client.batch_execute(&tables.create(merge, place)).await.unwrap_or_else(|error| panic!("{about}: {error:?}"));
        let recorder = Arc::new(Recorder::new());
        let stop = Arc::new(AtomicBool::new(false));
        let of_disturber = StdRng::seed_from_u64(random.random());
        let disturber = connect(&server.url).await;
        let disturbing = tokio::spawn(disturb(disturber, tables.clone(), places.clone(), stop.clone(), of_disturber));
        let mut sessions = Vec::new();
        for number in 0..SESSIONS {
            let session = Session {
                number,
                client: connect(&server.url).await,
                tables: tables.clone(),
                recorder: recorder.clone(),
                random: StdRng::seed_from_u64(random.random()),
            };
            sessions.push(tokio::spawn(session.run(level, TRANSACTIONS)));
        }
        let mut history = History::new();
        for session in sessions {
            history.extend(session.await.unwrap_or_else(|error| panic!("{about}: {error}")));
        }
        stop.store(true, Ordering::Relaxed);
        disturbing.await.unwrap_or_else(|error| panic!("{about}: {error}"));
        let last = Session {
            number: SESSIONS,
            client: connect(&server.url).await,
            tables: tables.clone(),
            recorder,
            random: StdRng::seed_from_u64(0),
        };
        history.extend(last.look_at_all().await);
        let anomalies = checker::check(&history);
        if let Some(worst) = anomalies.first() {
            let names: Vec<&str> = anomalies.iter().map(|anomaly| anomaly.name).collect();
            panic!("{about}: {names:?}, of which {}: {}", worst.name, worst.about);
        }
        // Of what weaker levels allow there is some: the checker would find it.
        weak += usize::from(!checker::check(&raised(&history)).is_empty());
        let committed = history.iter().filter(|transaction| transaction.committed).count();
        assert!(committed * 5 > history.len(), "{about}: {committed} of {} committed", history.len());
        let total = &mut totals[rounds % 4];
        *total = (total.0 + committed, total.1 + history.len());
        client.batch_execute(&tables.drop()).await.unwrap_or_else(|error| panic!("{about}: {error:?}"));
        rounds += 1;
    }
    println!(
        "seed {seed}: {rounds} rounds; committed, by level and then mixed: {totals:?}; {weak} rounds were not serializable"
    );
    server.signal(libc::SIGTERM);
    let (ended_well, log) = server.wait();
    assert!(ended_well && !log.contains("panicked"), "{log}");
}
