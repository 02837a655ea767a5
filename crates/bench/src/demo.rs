//! `tidepool demo`: the far-memory study's experiment on this machine, from nothing to a report.

use crate::cli::{self, Request};
use crate::placement::PLACEMENTS;
use crate::progress::{say, thousands};
use crate::report;
use crate::result::{Answer, BenchResult};
use crate::run::Repeat;
use crate::workload::Workload;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidepool_base::{ByteSize, Result};
use tidepool_device::Profile;

/// The profile of the far-memory study's device.
const PROFILE: &str = "fpga-prototype";

/// What the timed rounds may take: with loading and checking before them, the whole demo stays under three minutes on two
/// cores.
const TIMED_ROUNDS_LIMIT: Duration = Duration::from_secs(75);

/// Generate TPC-H, run it with data and query heap near and far, check every answer, write a report.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoArgs {
    /// Scale factor: 1 is about a gigabyte of text
    #[arg(long, default_value_t = 1.0)]
    pub sf: f64,
    /// Also run this many streams at once and measure their throughput
    #[arg(long, default_value_t = 1)]
    pub streams: usize,
    /// Threads for loading and for each query [default: all]
    #[arg(long)]
    pub threads: Option<usize>,
    /// Folder for the report
    #[arg(long, default_value = "report")]
    pub report: PathBuf,
    /// Size of near memory [default: as the server's]
    #[arg(long)]
    pub near: Option<ByteSize>,
    /// Far memory, as LOCATION,size=SIZE,profile=NAME [default: anon:, paced as the FPGA prototype]
    #[arg(long)]
    pub far: Option<String>,
}

/// Fails when an answer is wrong or a query cannot run.
pub async fn run_demo(args: DemoArgs) -> Result<ExitCode> {
    let start = Instant::now();
    let workload = Workload::by_name("tpch", args.sf)?;
    let config = cli::configuration(args.near, args.far.as_deref())?;
    let far = config.far.clone();
    // A location of the user's own is taken as it is, paced only if its text says so.
    let profile = if args.far.is_some() { far.profile.clone() } else { Some(Profile::preset(PROFILE)?) };
    say(format!("TPC-H at scale factor {}: the 22 queries with table data and query heap near or far.", args.sf));
    match &profile {
        Some(profile) => say(format!(
            "Far is {}, paced as {} ({:.0} ns, {:.1} GB/s read, {:.1} GB/s write).",
            far.location, profile.name, profile.read_latency_ns, profile.read_gb_per_s, profile.write_gb_per_s
        )),
        None => say(format!("Far is {}, as fast as it is: nothing is paced.", far.location)),
    }
    let request = Request {
        queries: workload.queries.clone(),
        engine: crate::engine::EngineKind::Tidepool,
        threads: cli::threads(args.threads)?,
        streams: args.streams,
        placements: PLACEMENTS.to_vec(),
        profiles: vec![profile],
        config,
        repeat: Repeat::Within { limit: TIMED_ROUNDS_LIMIT, rounds_min: 3, rounds_max: 5 },
        export: None,
        results: None,
        workload,
    };
    let result = cli::execute(&request).await?;
    let page = report::write(&args.report, &result)?;
    print(&result);
    println!();
    println!("Report: {}", page.display());
    println!("Took {:.0} s.", start.elapsed().as_secs_f64());
    println!();
    println!("Next, a server and psql:");
    println!("    tidepool serve        (or: cargo run --release -- serve)");
    println!("    psql postgresql://tidepool@127.0.0.1:5477/tidepool");
    Ok(cli::report_failures(&result))
}

fn print(result: &BenchResult) {
    let load = &result.load;
    println!();
    println!(
        "Loaded {} rows in {:.1} s: {} as Arrow, {} in main ({:.1} times smaller).",
        thousands(load.rows),
        load.seconds,
        ByteSize(load.raw_bytes),
        ByteSize(load.encoded_bytes),
        load.raw_bytes as f64 / load.encoded_bytes.max(1) as f64
    );
    println!();
    cli::print_summary(result);
    println!();
    let answers = || result.placements.iter().flat_map(|placement| &placement.queries).map(|query| &query.answer);
    let good = answers().filter(|answer| !answer.is_failure()).count();
    let against = if answers().any(|answer| *answer == Answer::Published) {
        "equal the published ones"
    } else {
        "agree between placements (answers are published for scale factor 1 only)"
    };
    println!("Answers: {good} of {} {against}.", answers().count());
    println!(
        "The paper measured SAP HANA at scale factor 10 on a real FPGA prototype; its times are not this machine's."
    );
    println!(
        "Times are medians of rounds in which the placements take turns; ± is how far single rounds lie apart. 'stalled' is what \
         pacing charged for far memory, by all threads, and 'modelled' the slowdown that follows from it alone; what a slowdown has \
         beyond that is this machine's noise and the work of keeping the heap's account. Hash tables that fit its last-level cache cost no more far away, so a small scale \
         factor shows little of the heap's cost."
    );
}
