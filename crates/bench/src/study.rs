//! `bench placement`: the far-memory study's experiments (paper 000, sections 5.2.2 and 5.3), over any profiles.
//!
//! * I-config: one instance, its data and heap near or far, with 1 to 8 streams of TPC-H (the study's figures 6 and 7).
//! * Y-config: two instances, each a process of its own, that share one device's bandwidth, the one with its heap far and the
//!   other with its main, each alone and both at once (figure 8). The study gave each a socket of its own; here each has half of
//!   the threads, also when it runs alone, so that what they take from each other is the device.
//! * TPC-C in the same placements by number of connections, with the traffic over the link (figure 5).

use crate::cli::{self, BenchArgs};
use crate::engine::EngineKind;
use crate::instance::{Instance, InstancePlan, InstanceProcess, Point};
use crate::machine::{self, Machine};
use crate::oltp::{self, OltpLine, OltpPlan};
use crate::placement::{PLACEMENTS, Placement};
use crate::progress::say;
use crate::report::study_page;
use crate::workload::{QuerySpec, Workload};
use serde::Serialize;
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};
use tidepool_base::{Error, Result, SqlState};
use tidepool_device::Profile;
use tidepool_tpcc::Tablespaces;

/// Streams at a time, as in the study.
const STREAMS: [usize; 4] = [1, 2, 4, 8];

/// Terminals of a thread: the study's 1 to 16 client processes of 28 connections, of 56 logical processors.
const TERMINALS: [usize; 4] = [1, 2, 4, 8];

/// Of each run of TPC-C.
const SECONDS: f64 = 3.0;

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
    /// Empty where queries were chosen.
    pub oltp: Vec<OltpConfig>,
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

/// TPC-C on one instance.
#[derive(Debug, Serialize)]
pub struct OltpConfig {
    pub profile: String,
    pub warehouses: u32,
    pub lines: Vec<OltpLine>,
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
    // Who names queries wants those.
    let with_oltp = args.queries.is_none();
    let profiles = args.far_profiles(args.profile())?.into_iter().flatten().collect::<Vec<_>>();
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
        oltp: Vec::new(),
    };
    for profile in &profiles {
        result.i_config.push(study.i_config(profile).await?);
        if with_oltp {
            result.oltp.push(tokio::task::block_in_place(|| study.oltp(profile))?);
        }
        result.y_config.push(tokio::task::block_in_place(|| study.y_config(profile))?);
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
    async fn instance(&self, profile: Profile, threads: usize) -> Result<Instance<'_>> {
        let plan = InstancePlan { args: self.args, workload: &self.workload, queries: &self.queries };
        let config = plan.config(profile, threads)?;
        Instance::open(plan, config).await
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

    fn y_config(&self, profile: &Profile) -> Result<YConfig> {
        let link = format!("{} of the study {}", profile.name, std::process::id());
        let shared = Profile { link: Some(link), ..profile.clone() };
        let threads = (self.threads / 2).max(1);
        say(format!("{}: Y-config, two processes", profile.name));
        let mut first = InstanceProcess::start(self.args, shared.clone(), threads)?;
        let mut second = InstanceProcess::start(self.args, shared, threads)?;
        let [both_near, main_far, heap_far, _] = PLACEMENTS;
        say(format!("{}: Y-config, each alone", profile.name));
        let near = self.points_of_process(&mut first, both_near)?;
        let heap_far_separate = self.points_of_process(&mut first, heap_far)?;
        let main_far_separate = self.points_of_process(&mut second, main_far)?;
        say(format!("{}: Y-config, both at once", profile.name));
        let (mut heap_far_concurrent, mut main_far_concurrent) = (Vec::new(), Vec::new());
        for &streams in &self.streams {
            let mut rounds = [Vec::new(), Vec::new()];
            for _ in 0..self.args.repeat.max(1) {
                // Who has measured goes on until the other has, so that each is measured beside the other.
                first.go_on(heap_far, streams)?;
                second.go_on(main_far, streams)?;
                rounds[0].push(first.point()?);
                rounds[1].push(second.point()?);
                first.rest()?;
                second.rest()?;
            }
            let [heap, main] = rounds;
            heap_far_concurrent.push(Point::middle(streams, &heap));
            main_far_concurrent.push(Point::middle(streams, &main));
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

    fn points_of_process(&self, instance: &mut InstanceProcess, placement: Placement) -> Result<Vec<Point>> {
        instance.place(placement)?;
        // Warm, as the study's instances were.
        instance.streams(placement, 1)?;
        let mut points = Vec::new();
        for &streams in &self.streams {
            let rounds = (0..self.args.repeat.max(1)).map(|_| instance.streams(placement, streams));
            points.push(Point::middle(streams, &rounds.collect::<Result<Vec<_>>>()?));
        }
        Ok(points)
    }

    /// Figure 5. The study's heap has no part in transactions by key; what is far is rows, in delta and in main, and indexes.
    fn oltp(&self, profile: &Profile) -> Result<OltpConfig> {
        let plan = OltpPlan {
            warehouses: self.args.warehouses.unwrap_or(self.threads as u32),
            threads: self.threads,
            terminals: TERMINALS.to_vec(),
            seconds: self.args.seconds.unwrap_or(SECONDS),
            rounds: self.args.repeat,
        };
        let mut lines = Vec::new();
        for (title, rows, indexes) in [
            ("Both DRAM", "near", "near"),
            ("Rows FAR", "far", "near"),
            ("Indexes FAR", "near", "far"),
            ("Both FAR", "far", "far"),
        ] {
            let mut config = cli::configuration(self.args.near, self.args.far.as_deref())?;
            config.far.profile = Some(profile.clone());
            config.far.profiles.clear();
            let spaces = Tablespaces { rows: rows.to_owned(), indexes: indexes.to_owned() };
            lines.push(oltp::measure(&plan, &format!("{}: {title}", profile.name), config, &spaces)?);
        }
        Ok(OltpConfig { profile: profile.name.clone(), warehouses: plan.warehouses, lines })
    }

    async fn points(&self, instance: &Instance<'_>, placement: Placement) -> Result<Vec<Point>> {
        instance.place(placement).await?;
        // Warm, as the study's instances were.
        instance.streams(placement, 1).await?;
        let mut points = Vec::new();
        for &streams in &self.streams {
            let mut rounds = Vec::new();
            for _ in 0..self.args.repeat.max(1) {
                rounds.push(instance.streams(placement, streams).await?);
            }
            points.push(Point::middle(streams, &rounds));
        }
        Ok(points)
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
    for config in &result.oltp {
        println!(
            "TPC-C, {}: {} warehouses, throughput beside the most, and traffic",
            config.profile, config.warehouses
        );
        oltp::print(&config.lines);
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
