//! `bench disaggregation`: the study of databases on disaggregated memory (paper 002, Disaggregation Cost), over paged memory.
//!
//! Tables and query heap lie in one paged tablespace, as everything does where an operating system disaggregates memory, and
//! the 22 queries of TPC-H run with a local cache of some share of what they touch. What they take is held against the same
//! queries in local memory. The emulation's own cost is told apart from the network's time.

use crate::cli::{self, BenchArgs};
use crate::compare::{Expected, ResultSet};
use crate::engine::{Connection, Engine, EngineKind};
use crate::load;
use crate::machine::{self, Machine};
use crate::progress::{Bar, say};
use crate::report::disaggregation_page;
use crate::result::{Answer, geometric_mean, median};
use crate::run::judge;
use crate::workload::{QuerySpec, Workload};
use serde::Serialize;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_database::Database;
use tidepool_device::paged::{CACHE_BYTES_MIN, Paged, PagingCounters};
use tidepool_device::{CacheSize, Location, PAGE_BYTES, Profile};
use tidepool_planner::Planner;
use tidepool_tablespace::{Tablespace, TablespaceConfig};

/// The networks unless others are named.
pub const PROFILES: &str = "rdma-56g-paging,infiniswap";

const REMOTE: &str = "remote";

/// Rounds in which pages that the queries touch together are counted.
const TOUCH_ROUNDS: usize = 2;

#[derive(Debug, Serialize)]
pub struct DisaggregationResult {
    pub schema: &'static str,
    pub tidepool_version: &'static str,
    pub started_at_unix: u64,
    pub scale_factor: f64,
    pub threads: usize,
    pub repeat: usize,
    pub machine: Machine,
    pub queries: Vec<String>,
    pub networks: Vec<Network>,
    pub failures: Vec<String>,
}

/// All that was measured over one network.
#[derive(Debug, Serialize)]
pub struct Network {
    pub profile: Profile,
    /// Who handles faults, and what one costs on this machine without any network, ns.
    pub handling: &'static str,
    pub mechanism_fault_ns: u64,
    /// Pages that the queries touch together, tables and heap, bytes: what shares are of.
    pub touched_bytes: u64,
    /// By query.
    pub query_touched_bytes: Vec<u64>,
    /// In local memory, median of the rounds before and after the others, ms by query.
    pub near_ms: Vec<f64>,
    pub near_runs_ms: Vec<Vec<f64>>,
    pub shares: Vec<Share>,
}

/// The queries with one size of cache.
#[derive(Debug, Serialize)]
pub struct Share {
    pub percent: f64,
    pub cache_bytes: u64,
    pub queries: Vec<QueryPoint>,
    /// Geometric means over the queries.
    pub slowdown: f64,
    pub slowdown_network: f64,
    /// Sum of the times over the sum of the near ones.
    pub slowdown_total: f64,
    /// Part of all the time that the mechanism took beyond the network's.
    pub mechanism_share: f64,
}

#[derive(Debug, Serialize)]
pub struct QueryPoint {
    pub runs_ms: Vec<f64>,
    /// The median run (of two in the middle the later), and what was counted in it.
    pub ms: f64,
    pub paging: Paging,
    /// Over local memory.
    pub slowdown: f64,
    /// The same, less what the mechanism took beyond the network's time. Exact for one thread; with more it is taken to be
    /// spread evenly over them.
    pub slowdown_network: f64,
}

/// What one query's faults came to, all threads added up.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Paging {
    pub faults: u64,
    pub fetched: u64,
    pub evicted: u64,
    pub written_back: u64,
    /// What the network takes.
    pub modelled_ms: f64,
    /// What the mechanism took, most of it while the network would have taken its time too.
    pub mechanism_ms: f64,
    /// What was waited beside it.
    pub waited_ms: f64,
    /// What was waited for pages that another thread was fetching.
    pub shared_ms: f64,
}

impl Paging {
    fn of(counters: &PagingCounters) -> Paging {
        let ms = |ns: u64| ns as f64 / 1e6;
        Paging {
            faults: counters.faults,
            fetched: counters.fetched,
            evicted: counters.evicted,
            written_back: counters.written_back,
            modelled_ms: ms(counters.modelled_ns),
            mechanism_ms: ms(counters.mechanism_ns),
            waited_ms: ms(counters.waited_ns),
            shared_ms: ms(counters.shared_ns),
        }
    }

    /// What the mechanism took beyond the network's time, ms, all threads added up.
    pub fn beyond_ms(&self) -> f64 {
        (self.mechanism_ms + self.waited_ms - self.modelled_ms).max(0.0)
    }
}

/// One run of one query.
struct Run {
    ms: f64,
    paging: Paging,
}

struct Bench {
    engine: Engine,
    workload: Workload,
    queries: Vec<QuerySpec>,
    threads: usize,
    repeat: usize,
    references: Vec<Option<Expected>>,
    failures: Vec<String>,
}

/// Fails when an answer is wrong or a query cannot run.
pub async fn run(args: &BenchArgs) -> Result<ExitCode> {
    let workload = Workload::by_name("tpch", args.sf)?;
    let queries = workload.select_queries(args.queries.as_deref().unwrap_or("1-22"))?;
    let shares = shares(&args.shares)?;
    if args.engine == EngineKind::PlainDatafusion {
        return Err(Error::new(SqlState::FEATURE_NOT_SUPPORTED, "plain DataFusion has no tablespaces"));
    }
    if args.far.is_some() {
        return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "--far is of no use here")
            .with_detail("Far memory is paged, as large as need be, over the networks that --profile lists."));
    }
    let profiles: Vec<Profile> =
        args.far_profiles(args.profile.as_deref().unwrap_or(PROFILES))?.into_iter().flatten().collect();
    if profiles.is_empty() {
        return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "the study needs a network")
            .with_hint("Give --profile a list such as rdma-56g-paging,infiniswap."));
    }
    // Before anything is generated.
    tidepool_device::paged::available()?;
    let started_at_unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let threads = cli::threads(args.threads)?;
    let mut config = cli::configuration(args.near, None)?;
    config.threads = threads;
    let size_bytes = config.near.size_bytes;
    let database = Database::open(config)?;
    let engine = Engine::Tidepool {
        database: database.clone(),
        planner: Planner::new(database.clone())?,
        datafusion_only: args.engine == EngineKind::Datafusion,
    };
    load::load(&engine, &workload, threads).await?;
    let mut bench = Bench {
        references: vec![None; queries.len()],
        engine,
        workload,
        queries,
        threads,
        repeat: args.repeat.max(1),
        failures: Vec::new(),
    };
    let mut networks = Vec::new();
    for profile in profiles {
        let remote = TablespaceConfig {
            name: REMOTE.to_owned(),
            location: Location::Paged { cache: CacheSize::Percent(100), remote: Box::new(Location::Anon) },
            size_bytes,
            profile: Some(profile.clone()),
            profiles: Vec::new(),
            huge_pages: false,
            populate_bytes: 0,
        };
        database.create_tablespace(remote)?;
        let space = database.tablespaces().get(REMOTE)?;
        networks.push(bench.network(&database, &space, profile, &shares).await?);
        drop(space);
        database.drop_tablespace(REMOTE)?;
    }
    let result = DisaggregationResult {
        schema: "tidepool-bench-disaggregation/1",
        tidepool_version: env!("CARGO_PKG_VERSION"),
        started_at_unix,
        scale_factor: args.sf,
        threads,
        repeat: bench.repeat,
        machine: machine::machine(),
        queries: bench.queries.iter().map(|query| query.name.clone()).collect(),
        networks,
        failures: bench.failures,
    };
    print(&result);
    if let Some(path) = &args.json {
        crate::write_json(path, &result)?;
    }
    if let Some(dir) = &args.report {
        say(format!("report: {}", write_report(dir, &result)?));
    }
    for failure in &result.failures {
        say(format!("FAILED  {failure}"));
    }
    Ok(if result.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// In percent, the largest first.
fn shares(list: &str) -> Result<Vec<f64>> {
    let share = |text: &str| {
        let percent = text.trim().trim_end_matches('%').trim_end().parse::<f64>().ok();
        percent.filter(|percent| *percent > 0.0 && *percent <= 100.0).ok_or_else(|| {
            Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("\"{}\" is no share of local memory", text.trim()))
                .with_hint("Write percentages above 0 and up to 100, as in 100,50,10.")
        })
    };
    let mut shares = list.split(',').map(share).collect::<Result<Vec<_>>>()?;
    shares.sort_by(|a, b| b.total_cmp(a));
    shares.dedup();
    Ok(shares)
}

fn write_report(dir: &Path, result: &DisaggregationResult) -> Result<String> {
    std::fs::create_dir_all(dir).map_err(|error| Error::io(format!("create folder \"{}\"", dir.display()), &error))?;
    crate::write_json(&dir.join("result.json"), result)?;
    let path = dir.join("index.html");
    std::fs::write(&path, disaggregation_page(result))
        .map_err(|error| Error::io(format!("write \"{}\"", path.display()), &error))?;
    Ok(path.display().to_string())
}

fn paged(space: &Tablespace) -> Result<&Paged> {
    space.paged().ok_or_else(|| Error::internal("the remote tablespace is not paged"))
}

/// Empties the cache, as far as it can be, and makes it as large as all of the memory.
fn forget(paged: &Paged) {
    paged.set_cache_bytes(CACHE_BYTES_MIN);
    paged.set_cache_bytes(paged.len() as u64);
}

impl Bench {
    async fn network(
        &mut self,
        database: &Arc<Database>,
        space: &Arc<Tablespace>,
        profile: Profile,
        shares: &[f64],
    ) -> Result<Network> {
        let name = profile.name.clone();
        let paged = paged(space)?;
        let mut connection = self.engine.connect().await?;
        self.place(&mut connection, "near").await?;
        // Once to warm up; the answers are the others' references.
        self.round(&mut connection, None, &format!("{name}: near, warm-up")).await?;
        let mut near = vec![Vec::new(); self.queries.len()];
        self.near_rounds(&mut connection, &name, &mut near).await?;

        self.place(&mut connection, REMOTE).await?;
        let mut query_touched_bytes = Vec::new();
        let bar = Bar::new(format!("{name}: what the queries touch"), self.queries.len() as u64, "queries");
        for query in &self.queries {
            forget(paged);
            let before = paged.local_bytes();
            connection.query(query.sql).await?;
            query_touched_bytes.push(paged.local_bytes() - before);
            bar.add(1);
        }
        drop(bar);
        forget(paged);
        let before = paged.local_bytes();
        // Threads do not come to the same heap's pages in every round.
        for _ in 0..TOUCH_ROUNDS {
            self.round(&mut connection, Some(paged), &format!("{name}: all together")).await?;
        }
        let touched_bytes = paged.local_bytes() - before;

        let mut measured = Vec::new();
        for percent in shares {
            let cache_bytes = ((touched_bytes as f64 * percent / 100.0) as u64).next_multiple_of(PAGE_BYTES as u64);
            paged.set_cache_bytes(cache_bytes);
            let mut runs: Vec<Vec<Run>> = self.queries.iter().map(|_| Vec::new()).collect();
            for round in 0..self.repeat {
                let label = format!("{name}: {percent} % local, round {} of {}", round + 1, self.repeat);
                for (all, run) in runs.iter_mut().zip(self.round(&mut connection, Some(paged), &label).await?) {
                    all.push(run);
                }
            }
            measured.push((*percent, paged.cache_bytes(), runs));
        }

        self.place(&mut connection, "near").await?;
        self.near_rounds(&mut connection, &name, &mut near).await?;
        drop(connection);
        let near_ms: Vec<f64> = near.iter().map(|runs| median(runs).unwrap_or(0.0)).collect();
        let shares =
            measured.into_iter().map(|(percent, cache, runs)| self.share(percent, cache, runs, &near_ms)).collect();
        // What the tables left there.
        database.tablespaces().get(REMOTE)?.trim(0)?;
        Ok(Network {
            profile,
            handling: paged.handling().name(),
            mechanism_fault_ns: paged.mechanism().fault_ns,
            touched_bytes,
            query_touched_bytes,
            near_ms,
            near_runs_ms: near,
            shares,
        })
    }

    fn share(&self, percent: f64, cache_bytes: u64, runs: Vec<Vec<Run>>, near_ms: &[f64]) -> Share {
        let threads = self.threads as f64;
        let mut beyond_ms = 0.0;
        let queries: Vec<QueryPoint> = runs
            .into_iter()
            .zip(near_ms)
            .map(|(mut runs, near_ms)| {
                let runs_ms = runs.iter().map(|run| run.ms).collect();
                runs.sort_by(|a, b| a.ms.total_cmp(&b.ms));
                let Run { ms, paging } = runs.swap_remove(runs.len() / 2);
                let beyond = paging.beyond_ms() / threads;
                beyond_ms += beyond;
                QueryPoint {
                    runs_ms,
                    ms,
                    paging,
                    slowdown: ms / near_ms,
                    slowdown_network: (ms - beyond).max(0.0) / near_ms,
                }
            })
            .collect();
        let total_ms: f64 = queries.iter().map(|point| point.ms).sum();
        Share {
            percent,
            cache_bytes,
            slowdown: geometric_mean(queries.iter().map(|point| point.slowdown)),
            slowdown_network: geometric_mean(queries.iter().map(|point| point.slowdown_network)),
            slowdown_total: total_ms / near_ms.iter().sum::<f64>(),
            mechanism_share: beyond_ms / total_ms,
            queries,
        }
    }

    async fn place(&self, connection: &mut Connection, tablespace: &str) -> Result<()> {
        for table in &self.workload.tables {
            connection.query(&format!("ALTER TABLE {} SET TABLESPACE {tablespace}", table.name)).await?;
        }
        connection.query(&format!("SET temp_tablespaces = '{tablespace}'")).await?;
        Ok(())
    }

    async fn near_rounds(&mut self, connection: &mut Connection, name: &str, near: &mut [Vec<f64>]) -> Result<()> {
        for round in 0..self.repeat {
            let label = format!("{name}: near, round {} of {}", round + 1, self.repeat);
            for (all, run) in near.iter_mut().zip(self.round(connection, None, &label).await?) {
                all.push(run.ms);
            }
        }
        Ok(())
    }

    /// Every query once, its answer checked.
    async fn round(&mut self, connection: &mut Connection, paged: Option<&Paged>, label: &str) -> Result<Vec<Run>> {
        let bar = Bar::new(label.to_owned(), self.queries.len() as u64, "queries");
        let mut runs = Vec::new();
        for (query, reference) in self.queries.iter().zip(&mut self.references) {
            bar.message(format!("{label}: {}", query.name));
            let before = paged.map(Paged::counters);
            let start = Instant::now();
            let batches = connection.query(query.sql).await?;
            let ms = start.elapsed().as_secs_f64() * 1e3;
            let paging = match (paged, &before) {
                (Some(paged), Some(before)) => Paging::of(&paged.counters().since(before)),
                _ => Paging::default(),
            };
            let rows = ResultSet::from_batches(&batches)?;
            if let Answer::Wrong(detail) = judge(&self.workload, query, &rows, reference, true) {
                self.failures.push(format!("{label}: {}: wrong answer: {detail}", query.name));
            }
            runs.push(Run { ms, paging });
            bar.add(1);
        }
        Ok(runs)
    }
}

fn print(result: &DisaggregationResult) {
    for network in &result.networks {
        println!(
            "{}: slowdown over local memory, SF {}, {} threads, {} rounds; the queries touch {}; a fault costs {:.1} us by itself ({})",
            network.profile.name,
            result.scale_factor,
            result.threads,
            result.repeat,
            ByteSize(network.touched_bytes),
            network.mechanism_fault_ns as f64 / 1e3,
            network.handling,
        );
        let line = |title: &str, cells: Vec<String>| println!("{title:<22} {}", cells.join(" "));
        let shares = &network.shares;
        line("local share", shares.iter().map(|share| format!("{:>8}", format!("{} %", share.percent))).collect());
        for (index, query) in result.queries.iter().enumerate() {
            let cell = |share: &Share| format!("{:>8.2}", share.queries[index].slowdown);
            line(query, shares.iter().map(cell).collect());
        }
        let of = |figure: fn(&Share) -> f64| shares.iter().map(|share| format!("{:>8.2}", figure(share))).collect();
        line("geometric mean", of(|share| share.slowdown));
        line("  network only", of(|share| share.slowdown_network));
        line("sum of times", of(|share| share.slowdown_total));
        let percent = |share: &Share| format!("{:>8}", format!("{:.1} %", share.mechanism_share * 100.0));
        line("  mechanism's part", shares.iter().map(percent).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_largest_first() {
        assert_eq!(shares("5, 100 %,50,50").unwrap(), [100.0, 50.0, 5.0]);
        for text in ["", "0", "101", "half", "50,,10"] {
            assert_eq!(shares(text).unwrap_err().code(), SqlState::INVALID_PARAMETER_VALUE, "{text}");
        }
    }

    #[test]
    fn the_mechanism_counts_where_the_network_is_faster() {
        let paging = Paging { modelled_ms: 5.0, mechanism_ms: 4.0, waited_ms: 1.5, ..Paging::default() };
        assert!((paging.beyond_ms() - 0.5).abs() < 1e-9);
        let waited = Paging { waited_ms: 0.5, ..paging };
        assert_eq!(waited.beyond_ms(), 0.0);
    }
}
