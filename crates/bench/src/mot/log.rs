//! TPC-C with its log on a file and in memory that keeps what it holds.

use super::{Plan, median};
use crate::progress::say;
use serde::Serialize;
use std::path::Path;
use std::time::Duration;
use tidepool_base::{Error, Result};
use tidepool_database::Config;
use tidepool_device::{Location, Profile};
use tidepool_embedded::{Isolation, Tidepool};
use tidepool_tablespace::TablespaceConfig;
use tidepool_tpcc::{Mix, Tables, Tablespaces};

const WARM_UP: Duration = Duration::from_millis(500);
/// Of the log; its tablespace is a little larger.
const LOG_BYTES: u64 = 1 << 30;
const SPACE_BYTES: u64 = LOG_BYTES + (64 << 20);

#[derive(Clone, Debug, Serialize)]
pub struct LogResult {
    /// `file`, `memory` (a file on tmpfs, as it is), or the profile that such memory is paced as.
    pub device: String,
    pub threads: usize,
    pub per_second: f64,
    /// From a transaction's begin to its being durable.
    pub acknowledged_p50_us: f64,
    pub acknowledged_p99_us: f64,
}

pub(super) fn measure(plan: &Plan) -> Result<Vec<LogResult>> {
    let mut devices: Vec<(String, Option<Option<Profile>>)> =
        vec![("file".to_owned(), None), ("memory".to_owned(), Some(None))];
    devices.extend(plan.profiles.iter().map(|profile| (profile.name.clone(), Some(Some(profile.clone())))));
    let mut runs: Vec<(String, usize, Vec<[f64; 3]>)> = Vec::new();
    for round in 0..plan.rounds {
        for (name, memory) in &devices {
            say(format!("round {} of {}: log on {name}", round + 1, plan.rounds));
            let mut counts = vec![1, plan.threads];
            counts.dedup();
            for threads in counts {
                let measured = measure_device(plan, memory.as_ref(), threads)?;
                match runs.iter_mut().find(|(known, of, _)| known == name && *of == threads) {
                    Some((_, _, runs)) => runs.push(measured),
                    None => runs.push((name.clone(), threads, vec![measured])),
                }
            }
        }
    }
    let of = |runs: &[[f64; 3]], place: usize| median(runs.iter().map(|run| run[place]).collect());
    Ok(runs
        .into_iter()
        .map(|(device, threads, runs)| LogResult {
            device,
            threads,
            per_second: of(&runs, 0),
            acknowledged_p50_us: of(&runs, 1),
            acknowledged_p99_us: of(&runs, 2),
        })
        .collect())
}

/// Transactions a second, and how long they took to be durable: median and 99th percentile, µs.
fn measure_device(plan: &Plan, memory: Option<&Option<Profile>>, threads: usize) -> Result<[f64; 3]> {
    let folder = Scratch::new(&std::env::temp_dir())?;
    let shared = Path::new("/dev/shm");
    let tmpfs = Scratch::new(if shared.is_dir() { shared } else { folder.path() })?;
    let mut config =
        Config { data_dir: Some(folder.path().join("data")), threads: plan.threads, ..plan.config.clone() };
    config.log.bytes_max = LOG_BYTES;
    if let Some(profile) = memory {
        config.tablespaces.push(TablespaceConfig {
            name: "log".to_owned(),
            location: Location::File(tmpfs.path().join("log")),
            size_bytes: Some(SPACE_BYTES),
            profile: profile.clone(),
            profiles: Vec::new(),
            huge_pages: true,
            populate_bytes: 0,
        });
        config.log.tablespace = Some("log".to_owned());
    }
    let tidepool = Tidepool::open(config)?;
    let near = || "near".to_owned();
    tidepool_tpcc::create(&tidepool, &Tablespaces { rows: near(), indexes: near() })?;
    let tables = Tables::prepare(&tidepool)?;
    tidepool_tpcc::load(&tidepool, &tables, plan.warehouses, plan.threads)?;
    tidepool.database().checkpoint()?;
    let run = tidepool_tpcc::run(
        &tidepool,
        &tables,
        &tidepool_tpcc::Plan {
            warehouses: plan.warehouses,
            threads,
            terminals: 1,
            warm_up: WARM_UP,
            duration: plan.duration,
            mix: Mix::parse("standard")?,
            isolation: Isolation::Serializable,
            seed: 7,
        },
    )?;
    Ok([run.per_second, run.acknowledged_p50_us.unwrap_or(0.0), run.acknowledged_p99_us.unwrap_or(0.0)])
}

/// A folder of its own, which goes when dropped.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(within: &Path) -> Result<Scratch> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tidepool-mot-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = within.join(name);
        std::fs::create_dir(&path).map_err(|error| Error::io(format!("make folder \"{}\"", path.display()), &error))?;
        Ok(Scratch(path))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left is in a folder for what may go.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
