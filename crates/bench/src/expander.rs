//! `bench expander`: the single-node test of the expander study (paper 001, section 4.2, figure 3): TPC-C by connections and
//! TPC-DS by parallel requests, with table data near, on one expander, on two that are striped, and on what the study took
//! for a coming one, the memory of the other socket.

use crate::cli::{self, BenchArgs};
use crate::engine::EngineKind;
use crate::instance::{Instance, InstancePlan, Point};
use crate::mot::devices;
use crate::oltp::{self, OltpLine, OltpPlan};
use crate::placement::PLACEMENTS;
use crate::progress::say;
use crate::workload::Workload;
use serde::Serialize;
use std::process::ExitCode;
use tidepool_base::{Error, Result, SqlState};
use tidepool_database::Config;
use tidepool_tpcc::Tablespaces;

/// Connections of TPC-C a processor, as the study's 176, 352 and 704 on 44 cores.
const TERMINALS: [usize; 3] = [4, 8, 16];
/// Parallel requests of TPC-DS; the study went to 32 on 44 cores.
const STREAMS: [usize; 4] = [1, 2, 4, 8];
const SECONDS: f64 = 3.0;

struct Memory {
    title: &'static str,
    /// `None`: table data is near.
    profile: Option<&'static str>,
    devices: usize,
    /// Mean loss of TPC-DS's throughput that the study prints, percent. Of TPC-C it found none.
    paper_loss: Option<f64>,
}

const MEMORIES: [Memory; 4] = [
    Memory { title: "baseline", profile: None, devices: 1, paper_loss: None },
    Memory { title: "1 CXL", profile: Some("pcie4-x8-expander"), devices: 1, paper_loss: Some(27.0) },
    Memory { title: "2 CXL, striped", profile: Some("pcie4-x8-expander"), devices: 2, paper_loss: Some(18.0) },
    Memory { title: "CXL emulation", profile: Some("remote-socket"), devices: 1, paper_loss: Some(8.0) },
];

#[derive(Debug, Serialize)]
pub struct ExpanderResult {
    pub schema: &'static str,
    pub tidepool_version: &'static str,
    pub machine: crate::machine::Machine,
    pub threads: usize,
    /// Part of the devices' links, as `--scale-link` says.
    pub link_scale: f64,
    pub warehouses: u32,
    pub scale_factor: f64,
    pub tpcc: Vec<OltpLine>,
    pub tpcds: Vec<TpcdsLine>,
}

#[derive(Debug, Serialize)]
pub struct TpcdsLine {
    pub title: &'static str,
    /// By parallel requests; medians of the rounds.
    pub points: Vec<Point>,
    /// Mean over the numbers of requests, percent.
    pub loss: Option<f64>,
    pub paper_loss: Option<f64>,
}

/// Fails where a query or a condition of TPC-C does.
pub async fn run_expander(args: &BenchArgs) -> Result<ExitCode> {
    if args.profile.is_some() || args.engine == EngineKind::PlainDatafusion {
        return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "the expander study has devices of its own")
            .with_hint("--scale-link says how much of their links there is."));
    }
    let threads = cli::threads(args.threads)?;
    let workload = Workload::by_name("tpcds", args.sf)?;
    let queries =
        workload.select_queries(args.queries.as_deref().unwrap_or(&format!("1-{}", workload.queries.len())))?;
    let plan = OltpPlan {
        warehouses: args.warehouses.unwrap_or(threads as u32),
        threads,
        terminals: TERMINALS.to_vec(),
        seconds: args.seconds.unwrap_or(SECONDS),
        rounds: args.repeat,
    };
    let mut result = ExpanderResult {
        schema: "tidepool-expander/1",
        tidepool_version: env!("CARGO_PKG_VERSION"),
        machine: crate::machine::machine(),
        threads,
        link_scale: args.scale_link.unwrap_or(1.0),
        warehouses: plan.warehouses,
        scale_factor: args.sf,
        tpcc: Vec::new(),
        tpcds: Vec::new(),
    };
    for memory in &MEMORIES {
        let rows = if memory.profile.is_some() { "far" } else { "near" };
        let spaces = Tablespaces { rows: rows.to_owned(), indexes: "near".to_owned() };
        let config = memory.config(args)?;
        let line =
            tokio::task::block_in_place(|| oltp::measure(&plan, &format!("TPC-C, {}", memory.title), config, &spaces))?;
        result.tpcc.push(line);
    }
    let streams_max = if args.streams == 1 { STREAMS[STREAMS.len() - 1] } else { args.streams };
    let [both_near, main_far, ..] = PLACEMENTS;
    for memory in &MEMORIES {
        let placement = if memory.profile.is_some() { main_far } else { both_near };
        let mut config = memory.config(args)?;
        config.threads = threads;
        let instance_plan = InstancePlan { args, workload: &workload, queries: &queries };
        let instance = Instance::open(instance_plan, config).await?;
        instance.place(placement).await?;
        say(format!("TPC-DS, {}: warm up", memory.title));
        instance.streams(placement, 1).await?;
        let mut points = Vec::new();
        for streams in STREAMS.into_iter().filter(|streams| *streams <= streams_max) {
            say(format!("TPC-DS, {}: {streams} requests at a time", memory.title));
            let mut rounds = Vec::new();
            for _ in 0..args.repeat.max(1) {
                rounds.push(instance.streams(placement, streams).await?);
            }
            points.push(Point::middle(streams, &rounds));
        }
        let loss = result.tpcds.first().map(|base| mean_loss(&base.points, &points));
        result.tpcds.push(TpcdsLine { title: memory.title, points, loss, paper_loss: memory.paper_loss });
    }
    print(&result);
    if let Some(path) = &args.json {
        crate::write_json(path, &result)?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Memory {
    fn config(&self, args: &BenchArgs) -> Result<Config> {
        let config = cli::configuration(args.near, args.far.as_deref())?;
        match self.profile {
            None => Ok(config),
            Some(name) => {
                let profile = args.far_profiles(name)?.into_iter().flatten().next();
                Ok(devices(&config, &profile.ok_or_else(|| Error::internal("a preset is missing"))?, self.devices))
            }
        }
    }
}

/// Percent, over the numbers of requests.
fn mean_loss(base: &[Point], points: &[Point]) -> f64 {
    let losses = base.iter().zip(points).map(|(base, point)| 1.0 - point.queries_per_hour / base.queries_per_hour);
    100.0 * losses.sum::<f64>() / base.len().max(1) as f64
}

fn print(result: &ExpanderResult) {
    println!(
        "TPC-C, {} warehouses, {} threads, {:.3} of each link: throughput beside the most, and traffic",
        result.warehouses, result.threads, result.link_scale
    );
    oltp::print(&result.tpcc);
    println!("TPC-DS, scale factor {}: queries an hour beside the most, and traffic", result.scale_factor);
    let all = || result.tpcds.iter().flat_map(|line| &line.points);
    let most = all().map(|point| point.queries_per_hour).fold(0.0, f64::max);
    let heads = result.tpcds.first().map_or(&[][..], |line| &line.points);
    let heads: String = heads.iter().map(|point| format!("{:>19}  ", format!("{} requests", point.streams))).collect();
    println!("{:<28} {heads} {:>8} {:>8}", "", "loss", "paper");
    for line in &result.tpcds {
        let cells = line.points.iter().map(|point| {
            let traffic = (point.link_read + point.link_written) / 1e9;
            format!("{:>9.3} {traffic:>6.2} GB/s", point.queries_per_hour / most)
        });
        let percent = |loss: Option<f64>| loss.map_or("–".to_owned(), |loss| format!("{loss:.1} %"));
        let cells = cells.collect::<Vec<_>>().join(" ");
        println!("{:<28} {cells} {:>9} {:>8}", line.title, percent(line.loss), percent(line.paper_loss));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_means_over_numbers_of_requests() {
        let point =
            |queries_per_hour| Point { streams: 1, queries_per_hour, link_read: 0.0, link_written: 0.0, stall_ms: 0.0 };
        let loss = mean_loss(&[point(100.0), point(200.0)], &[point(90.0), point(100.0)]);
        assert!((loss - 30.0).abs() < 1e-9, "{loss}");
    }
}
