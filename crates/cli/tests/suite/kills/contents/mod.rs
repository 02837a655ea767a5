//! Servers that are killed while tables of several row groups are loaded, changed, merged and altered; after each start every
//! row of every table is compared with what its clients know, by every way to the rows.
//!
//! A history has a data folder to itself, and some rounds: a start, the comparison, a workload, the end, and the check of the folder. All
//! choices come from the history's seed; what the seed does not choose is how statements of several sessions meet. `TIDEPOOL_STRESS_SEED` is
//! the first history's, and more of them follow for `TIDEPOOL_STRESS_SECONDS`.

mod compare;
mod definer;
mod model;
mod world;
mod writers;

use super::{check_folder, start};
use model::{Table, WRITERS, new_columns};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use world::World;

/// Which sessions a history has.
#[derive(Clone, Copy)]
struct Work {
    writers: i64,
    /// One that changes definitions, also while others write.
    defines: bool,
    /// One that merges and makes checkpoints.
    keeps: bool,
}

const ALL: Work = Work { writers: WRITERS, defines: true, keeps: true };

/// Loads one after another: all but the moment of the kill is the seed's.
const LOADS: Work = Work { writers: 1, defines: false, keeps: false };

/// Statements that wait for changes of their table's definition, one after another.
const WAITS: Work = Work { writers: 0, defines: true, keeps: false };

fn configure(config: &Path, far: &Path, random: &mut StdRng) {
    // Where checkpoints are rare the log is all that a restart has; where they are not, they come between all else.
    let (size, timeout) = if random.random_range(0..2) == 0 { ("64MB", "1h") } else { ("1MB", "1s") };
    let text = format!(
        "[memory.far]\nlocation = \"file:{}\"\nsize = \"64MB\"\n\
         [log]\nsize = \"{size}\"\nsegment_size = \"64kB\"\ncheckpoint_timeout = \"{timeout}\"\n",
        far.display()
    );
    std::fs::write(config, text).unwrap();
}

fn random_tables(random: &mut StdRng) -> Vec<Table> {
    let mut ordinal = 0;
    (0..3)
        .map(|at| {
            let partitions = if at == 1 { random.random_range(2..5) } else { 0 };
            let mut table = Table::new(&format!("t{at}"), partitions, new_columns(random, &mut ordinal));
            table.indexed = random.random_range(0..2) == 0;
            table.granted = random.random_range(0..3) > 0;
            table
        })
        .collect()
}

/// One history. How many rounds it had.
async fn history(seed: u64, work: Work) -> u64 {
    let mut random = StdRng::seed_from_u64(seed);
    let folder = tempfile::tempdir().unwrap();
    let (data, config) = (folder.path().join("data"), folder.path().join("tidepool.toml"));
    configure(&config, &folder.path().join("far"), &mut random);
    let rounds = random.random_range(4..9);
    let makes_checkpoints = random.random_range(0..2) == 0;
    let world = Arc::new(World::new(format!("TIDEPOOL_STRESS_SEED={seed}"), random_tables(&mut random)));
    let started = |crash_point: Option<&str>| start(&data, &config, crash_point);
    let server = started(None).unwrap_or_else(|log| panic!("{}", world.failure(&log)));
    {
        let client = world::connect(&server.url, "tidepool").await.expect("the server is ready");
        let mut sql = "CREATE ROLE clerk LOGIN;".to_owned();
        for (at, table) in world.tables.iter().enumerate() {
            let table = table.read().await;
            sql += &table.create();
            if at == 2 {
                sql += "ALTER TABLE t2 SET TABLESPACE far;";
            }
        }
        sql += if random.random_range(0..2) == 0 { "CHECKPOINT" } else { "" };
        client
            .batch_execute(&sql)
            .await
            .unwrap_or_else(|error| panic!("{}", world.failure(&format!("{sql}: {error:?}"))));
        world.note(sql);
    }
    let points: Vec<&str> = tidepool_log::CRASH_POINTS.iter().chain(tidepool_database::CRASH_POINTS).copied().collect();
    let mut first = Some(server);
    for round in 0..rounds {
        let point = (random.random_range(0..3) == 0)
            .then(|| format!("{}:{}", points[random.random_range(0..points.len())], random.random_range(1..40)));
        world.note(format!("-- round {round}, {}", point.as_deref().unwrap_or("killed")));
        let mut running = if round == 0 { first.take() } else { None };
        if round > 0 {
            let server = started(None).unwrap_or_else(|log| panic!("{}", world.failure(&log)));
            compare::compare(&world, &server.url, &mut random).await;
            running = Some(server);
        }
        if let Some(server) = running.take_if(|_| point.is_some() || random.random_range(0..4) == 0) {
            // Nothing happened in it, but that it started.
            server.signal(libc::SIGKILL);
            server.wait();
        }
        let server = match running.map_or_else(|| started(point.as_deref()), Ok) {
            Ok(server) => server,
            // The point was reached at the start.
            Err(log) => {
                assert!(point.is_some() && !log.contains("error: "), "{}", world.failure(&log));
                continue;
            }
        };
        world.set_over(false);
        let mut clients = Vec::new();
        let url = &server.url;
        let steps = if work.writers == 0 { 60 } else { 16 };
        let enough = world.steps() + random.random_range(1..steps);
        for of in 0..work.writers {
            let is_alone = work.writers == 1;
            clients.push(tokio::spawn(writers::write(world.clone(), url.clone(), of, random.random(), is_alone)));
        }
        if work.defines {
            let is_alone = work.writers == 0;
            clients.push(tokio::spawn(definer::define(world.clone(), url.clone(), random.random(), is_alone)));
        }
        if work.keeps {
            clients.push(tokio::spawn(definer::keep(world.clone(), url.clone(), random.random(), makes_checkpoints)));
        }
        let later = Duration::from_micros(random.random_range(0..40_000));
        let gently = random.random_range(0..10) == 0;
        let gone = async {
            while !clients.iter().any(|client| client.is_finished()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            () = world.until(enough) => tokio::time::sleep(later).await,
            () = gone => {}
        }
        world.end_next(gently);
        server.signal(if gently { libc::SIGTERM } else { libc::SIGKILL });
        world.set_over(true);
        for client in clients {
            client.await.unwrap();
        }
        let (_, log) = server.wait();
        assert!(!log.contains("panicked"), "{}", world.failure(&log));
        // A checkpoint that its own check refuses ends nothing, and is as bad.
        assert!(!log.contains("could not write to the data folder"), "{}", world.failure(&log));
        check_folder(&data, &config).unwrap_or_else(|fault| panic!("{}", world.failure(&fault)));
    }
    let server = started(None).unwrap_or_else(|log| panic!("{}", world.failure(&log)));
    compare::compare(&world, &server.url, &mut random).await;
    server.signal(libc::SIGKILL);
    server.wait();
    rounds
}

/// Histories of seeds that have found something, unless the environment names another one to begin with.
async fn histories(kept: &[u64], work: Work) {
    let variable = |name: &str| {
        std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap_or_else(|_| panic!("{name} is no number")))
    };
    let begun = Instant::now();
    let mut rounds = 0;
    let seconds = Duration::from_secs(variable("TIDEPOOL_STRESS_SECONDS").unwrap_or(0));
    match variable("TIDEPOOL_STRESS_SEED") {
        None => {
            for seed in kept {
                rounds += history(*seed, work).await;
            }
            println!("{} histories: {rounds} rounds", kept.len());
        }
        Some(first) => {
            let mut seed = first;
            while seed == first || begun.elapsed() < seconds {
                rounds += history(seed, work).await;
                seed += 1;
            }
            println!("seeds {first} to {}: {rounds} rounds", seed - 1);
        }
    }
}

/// A merge drew ids while a checkpoint was made, whose manifest then named ids that would be drawn again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_that_are_loaded_and_altered_keep_what_they_had() {
    histories(&[101], ALL).await;
}

/// Row groups of a load that the log has were given the ids of others, and read for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loads_between_kills_keep_all_rows_and_no_others() {
    histories(&[2], LOADS).await;
}

/// Values went into other columns, and into tables that their writer had no privileges on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_that_waited_write_what_was_meant_or_nothing() {
    histories(&[3], WAITS).await;
}

/// Seeds that found, when histories were drawn in another way, values in other columns (7), a role that wrote without privileges (19), and rows
/// lost in a table that had become partitioned (28).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "as long as the rest of the harness; `cargo test kills -- --include-ignored` runs it"]
async fn seeds_that_found_more() {
    histories(&[7, 19, 28], ALL).await;
}
