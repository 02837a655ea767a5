//! `bench placement`: the far-memory study's experiments (paper 000, sections 5.2.2 and 5.3), over any profiles.
//!
//! * I-config: one instance, its data and heap near or far, with 1 to 8 streams of TPC-H (the study's figures 6 and 7).
//! * Y-config: two instances that share one device's bandwidth, the one with its heap far and the other with its main, each
//!   alone and both at once (figure 8). The study gave each a socket of its own; here each has half of the threads, also when
//!   it runs alone, so that what they take from each other is the device.

use crate::cli::{self, BenchArgs};
use crate::engine::{Engine, EngineKind};
use crate::load;
use crate::machine::{self, Machine};
use crate::placement::{PLACEMENTS, Placement};
use crate::progress::say;
use crate::report::study_page;
use crate::result::median;
use crate::run::{self, Arm, Plan, Repeat};
use crate::workload::{QuerySpec, Workload};
use serde::Serialize;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tidepool_base::{Error, Result, SqlState};
use tidepool_database::Database;
use tidepool_device::{PacingCounters, Profile};
use tidepool_planner::Planner;

/// Streams at a time, as in the study.
const STREAMS: [usize; 4] = [1, 2, 4, 8];

#[derive(Debug, Serialize)]
pub struct StudyResult {
    pub tidepool_version: &'static str,
    pub started_at_unix: u64,
    pub scale_factor: f64,
    pub threads: usize,
    pub repeat: usize,
    pub machine: Machine,
    pub queries: Vec<String>,
    pub i_config: Vec<IConfig>,
    pub y_config: Vec<YConfig>,
}

impl StudyResult {
    pub fn streams(&self) -> Vec<usize> {
        self.i_config.first().map_or(Vec::new(), |config| config.near.iter().map(|point| point.streams).collect())
    }
}

/// One instance.
#[derive(Debug, Serialize)]
pub struct IConfig {
    pub profile: String,
    /// Both DRAM, by number of streams.
    pub near: Vec<Point>,
    pub far: Vec<PlacementPoints>,
}

#[derive(Debug, Serialize)]
pub struct PlacementPoints {
    pub placement: &'static str,
    pub title: &'static str,
    pub points: Vec<Point>,
}

/// Two instances.
#[derive(Debug, Serialize)]
pub struct YConfig {
    pub profile: String,
    /// Both DRAM on half of the threads.
    pub near: Vec<Point>,
    pub heap_far_separate: Vec<Point>,
    pub main_far_separate: Vec<Point>,
    pub heap_far_concurrent: Vec<Point>,
    pub main_far_concurrent: Vec<Point>,
}

/// What some streams did: the median of the rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    pub streams: usize,
    pub queries_per_hour: f64,
    /// What the model takes to have crossed the device's link, bytes per second.
    pub link_read: f64,
    pub link_written: f64,
    /// Over all threads, ms per query.
    pub stall_ms: f64,
}

/// An instance with its tables loaded.
struct Instance {
    database: Arc<Database>,
    engine: Engine,
}

struct Study<'a> {
    args: &'a BenchArgs,
    workload: Workload,
    queries: Vec<QuerySpec>,
    threads: usize,
    streams: Vec<usize>,
}

/// Fails when a query does.
pub async fn run_study(args: BenchArgs) -> Result<ExitCode> {
    let workload = Workload::by_name("tpch", args.sf)?;
    let queries = workload.select_queries(args.queries.as_deref().unwrap_or("1-22"))?;
    let threads = cli::threads(args.threads)?;
    let streams_max = if args.streams == 1 { STREAMS[STREAMS.len() - 1] } else { args.streams };
    let streams = STREAMS.into_iter().filter(|streams| *streams <= streams_max).collect();
    if args.engine == EngineKind::PlainDatafusion {
        return Err(Error::new(SqlState::FEATURE_NOT_SUPPORTED, "plain DataFusion has no tablespaces"));
    }
    let started_at_unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let study = Study { args: &args, workload, queries, threads, streams };
    let profiles = cli::profiles(args.profile())?.into_iter().flatten().collect::<Vec<_>>();
    if profiles.is_empty() {
        return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "the study needs a profile for far memory")
            .with_hint("Give --profile a list of names; tidepool.profiles has them."));
    }
    let mut result = StudyResult {
        tidepool_version: env!("CARGO_PKG_VERSION"),
        started_at_unix,
        scale_factor: args.sf,
        threads,
        repeat: args.repeat,
        machine: machine::machine(),
        queries: study.queries.iter().map(|query| query.name.clone()).collect(),
        i_config: Vec::new(),
        y_config: Vec::new(),
    };
    for profile in &profiles {
        result.i_config.push(study.i_config(profile).await?);
        result.y_config.push(study.y_config(profile).await?);
    }
    print(&result);
    if let Some(path) = &args.json {
        crate::write_json(path, &result)?;
    }
    if let Some(dir) = &args.report {
        say(format!("report: {}", write_report(dir, &result)?));
    }
    Ok(ExitCode::SUCCESS)
}

fn write_report(dir: &Path, result: &StudyResult) -> Result<String> {
    std::fs::create_dir_all(dir).map_err(|error| Error::io(format!("create folder \"{}\"", dir.display()), &error))?;
    crate::write_json(&dir.join("result.json"), result)?;
    let path = dir.join("index.html");
    std::fs::write(&path, study_page(result))
        .map_err(|error| Error::io(format!("write \"{}\"", path.display()), &error))?;
    Ok(path.display().to_string())
}

impl Study<'_> {
    async fn instance(&self, profile: Profile, threads: usize) -> Result<Instance> {
        let mut config = cli::configuration(self.args.near, self.args.far.as_deref())?;
        config.far.profile = Some(profile);
        config.far.profiles.clear();
        config.threads = threads;
        let database = Database::open(config)?;
        let planner = Planner::new(database.clone())?;
        let datafusion_only = self.args.engine == EngineKind::Datafusion;
        let engine = Engine::Tidepool { database: database.clone(), planner, datafusion_only };
        load::load(&engine, &self.workload, self.threads).await?;
        Ok(Instance { database, engine })
    }

    fn plan<'a>(&'a self, instance: &'a Instance, streams: usize) -> Plan<'a> {
        Plan {
            engine: &instance.engine,
            workload: &self.workload,
            queries: self.queries.clone(),
            arms: Vec::new(),
            repeat: Repeat::Rounds(0),
            streams,
            results_dir: None,
        }
    }

    async fn i_config(&self, profile: &Profile) -> Result<IConfig> {
        let instance = self.instance(profile.clone(), self.threads).await?;
        let mut all = Vec::new();
        for placement in PLACEMENTS {
            say(format!("{}: I-config, {}", profile.name, placement.title));
            all.push(self.points(&instance, placement).await?);
        }
        let near = all.remove(0);
        let far = PLACEMENTS[1..].iter().zip(all);
        Ok(IConfig {
            profile: profile.name.clone(),
            near,
            far: far
                .map(|(placement, points)| PlacementPoints {
                    placement: placement.name,
                    title: placement.title,
                    points,
                })
                .collect(),
        })
    }

    async fn y_config(&self, profile: &Profile) -> Result<YConfig> {
        let shared = Profile { link: Some(format!("{} of the study", profile.name)), ..profile.clone() };
        let threads = (self.threads / 2).max(1);
        let first = self.instance(shared.clone(), threads).await?;
        let second = self.instance(shared, threads).await?;
        let [both_near, main_far, heap_far, _] = PLACEMENTS;
        say(format!("{}: Y-config, each alone", profile.name));
        let near = self.points(&first, both_near).await?;
        let heap_far_separate = self.points(&first, heap_far).await?;
        let main_far_separate = self.points(&second, main_far).await?;
        say(format!("{}: Y-config, both at once", profile.name));
        let (mut heap_far_concurrent, mut main_far_concurrent) = (Vec::new(), Vec::new());
        for &streams in &self.streams {
            let mut rounds = [Vec::new(), Vec::new()];
            for _ in 0..self.args.repeat.max(1) {
                let measuring = AtomicUsize::new(2);
                let (heap, main) = tokio::join!(
                    self.beside(&first, heap_far, streams, &measuring),
                    self.beside(&second, main_far, streams, &measuring)
                );
                rounds[0].push(heap?);
                rounds[1].push(main?);
            }
            let [heap, main] = rounds;
            heap_far_concurrent.push(middle(streams, &heap));
            main_far_concurrent.push(middle(streams, &main));
        }
        Ok(YConfig {
            profile: profile.name.clone(),
            near,
            heap_far_separate,
            main_far_separate,
            heap_far_concurrent,
            main_far_concurrent,
        })
    }

    async fn points(&self, instance: &Instance, placement: Placement) -> Result<Vec<Point>> {
        self.place(instance, placement).await?;
        // Warm, as the study's instances were.
        self.streams(instance, placement, 1).await?;
        let mut points = Vec::new();
        for &streams in &self.streams {
            let mut rounds = Vec::new();
            for _ in 0..self.args.repeat.max(1) {
                rounds.push(self.streams(instance, placement, streams).await?);
            }
            points.push(middle(streams, &rounds));
        }
        Ok(points)
    }

    async fn place(&self, instance: &Instance, placement: Placement) -> Result<()> {
        let mut connection = instance.engine.connect().await?;
        placement.place_tables(&mut connection, &self.workload, "far").await
    }

    /// Every stream runs every query once.
    async fn streams(&self, instance: &Instance, placement: Placement, streams: usize) -> Result<Point> {
        let arm = Arm { placement, far: "far".to_owned(), profile: None };
        let before = counters(&instance.database)?;
        let start = Instant::now();
        let throughput = run::streams(&self.plan(instance, streams), &arm).await?;
        let seconds = start.elapsed().as_secs_f64();
        if let Some(error) = throughput.errors.first() {
            return Err(Error::internal(format!("a query of the study failed: {error}")));
        }
        let after = counters(&instance.database)?;
        Ok(Point {
            streams,
            queries_per_hour: throughput.queries_per_hour,
            link_read: (after.link_bytes_read - before.link_bytes_read) as f64 / seconds,
            link_written: (after.link_bytes_written - before.link_bytes_written) as f64 / seconds,
            stall_ms: (after.stall_ns - before.stall_ns) as f64 / 1e6 / (streams * self.queries.len()) as f64,
        })
    }

    /// As `streams`, and goes on with them until the other instance has measured too.
    async fn beside(
        &self,
        instance: &Instance,
        placement: Placement,
        streams: usize,
        measuring: &AtomicUsize,
    ) -> Result<Point> {
        let point = self.streams(instance, placement, streams).await;
        measuring.fetch_sub(1, Ordering::AcqRel);
        while measuring.load(Ordering::Acquire) > 0 && point.is_ok() {
            self.streams(instance, placement, streams).await?;
        }
        point
    }
}

fn counters(database: &Database) -> Result<PacingCounters> {
    let far = database.tablespaces().get("far")?;
    Ok(far.pacer().map(|pacer| pacer.counters()).unwrap_or_default())
}

fn middle(streams: usize, rounds: &[Point]) -> Point {
    let of = |figure: fn(&Point) -> f64| median(&rounds.iter().map(figure).collect::<Vec<_>>()).unwrap_or(0.0);
    Point {
        streams,
        queries_per_hour: of(|point| point.queries_per_hour),
        link_read: of(|point| point.link_read),
        link_written: of(|point| point.link_written),
        stall_ms: of(|point| point.stall_ms),
    }
}

fn print(result: &StudyResult) {
    let line = |title: &str, points: &[Point], base: f64| {
        let cells = points.iter().map(|point| {
            let traffic = (point.link_read + point.link_written) / 1e9;
            format!("{:>7.2} {traffic:>6.2} GB/s", point.queries_per_hour / base)
        });
        println!("{title:<28} {}", cells.collect::<Vec<_>>().join(" "));
    };
    let heading = || {
        let streams = result.streams().into_iter().map(|streams| format!("{streams:>9} streams  "));
        println!("{:<28} {}", "", streams.collect::<String>());
    };
    let last = |points: &[Point]| points.last().map_or(1.0, |point| point.queries_per_hour);
    for config in &result.i_config {
        println!("I-config, {}: throughput beside Both DRAM with most streams, and traffic", config.profile);
        heading();
        let base = last(&config.near);
        line("Both DRAM", &config.near, base);
        for far in &config.far {
            line(far.title, &far.points, base);
        }
    }
    for config in &result.y_config {
        println!("Y-config, {}: the same, two instances", config.profile);
        heading();
        let base = last(&config.near);
        line("Both DRAM", &config.near, base);
        line("Heap FAR, alone", &config.heap_far_separate, base);
        line("Heap FAR, beside Main FAR", &config.heap_far_concurrent, base);
        line("Main FAR, alone", &config.main_far_separate, base);
        line("Main FAR, beside Heap FAR", &config.main_far_concurrent, base);
    }
}
