//! `tidepool bench mot`: the measurements of the paper on openGauss's memory engine over persistent memory (Avni et al.,
//! *openGauss: Extending In-Memory OLTP with Persistent Memory*): TPC-C by what of it is far, single accesses by how much of the
//! memory is far, and the log on a file and in memory.
//!
//! Its two devices are far memory over one location (`cfg_1`) or over two (`cfg_2`), each paced as the profile.

mod accesses;
mod log;
mod matrix;
mod report;

use crate::cli::{BenchArgs, configuration, terminals, threads};
use crate::machine::{self, Machine};
use crate::progress::say;
use serde::Serialize;
use std::process::ExitCode;
use std::time::Duration;
use tidepool_base::{Error, Result, SqlState};
use tidepool_database::Config;
use tidepool_device::{Location, Profile, Stripe};

pub use accesses::AccessResult;
pub use log::LogResult;
pub use matrix::MatrixResult;

const PROFILES: &str = "optane,cxl-asic,fpga-prototype";
const SECONDS: f64 = 1.0;
const TERMINALS: usize = 2;

/// What a run writes as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct MotResult {
    pub schema: &'static str,
    pub tidepool_version: &'static str,
    pub machine: Machine,
    pub warehouses: u32,
    pub rounds: usize,
    pub seconds: f64,
    pub matrix: Vec<MatrixResult>,
    pub accesses: Vec<AccessResult>,
    pub log: Vec<LogResult>,
    /// Breaches of TPC-C's consistency conditions, after any run.
    pub breaches: Vec<String>,
}

/// What the parts need.
struct Plan {
    config: Config,
    profiles: Vec<Profile>,
    threads: usize,
    /// Of each thread, in the runs with more than one.
    terminals: usize,
    warehouses: i32,
    rounds: usize,
    duration: Duration,
}

/// Far memory over one or two locations, each paced as `profile`.
pub(crate) fn devices(config: &Config, profile: &Profile, count: usize) -> Config {
    let mut config = config.clone();
    if count > 1 {
        let stripe = |_| Stripe { location: Location::Anon, weight: 1 };
        config.far.location = Location::Striped((0..count).map(stripe).collect());
    }
    config.far.profile = Some(profile.clone());
    config.far.profiles.clear();
    config
}

/// Measures, reports, and fails where a consistency condition does not hold.
pub fn run_mot(args: &BenchArgs) -> Result<ExitCode> {
    let wanted = args.profile.as_deref().unwrap_or(PROFILES);
    let paced = args.far_profiles(wanted)?.into_iter().collect::<Option<Vec<_>>>();
    let Some(profiles) = paced else {
        return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "the study of placements needs devices")
            .with_hint("Name profiles, such as --profile cxl-asic."));
    };
    let threads = threads(args.threads)?;
    let terminals = terminals(args, TERMINALS)?;
    let warehouses = args.warehouses.unwrap_or((threads * terminals) as u32);
    if warehouses == 0 || args.repeat == 0 {
        return Err(Error::new(
            SqlState::INVALID_PARAMETER_VALUE,
            "there must be at least one warehouse, and one round",
        ));
    }
    let config = configuration(args.near, args.far.as_deref())?;
    if !config.far.location.is_anonymous() {
        return Err(Error::unsupported("the study of placements on devices that cannot be had twice")
            .with_hint("On a real device run: bench tpcc --placement all --far LOCATION."));
    }
    let seconds = args.seconds.unwrap_or(SECONDS);
    let plan = Plan {
        config,
        profiles,
        threads,
        terminals,
        warehouses: warehouses as i32,
        rounds: args.repeat,
        duration: Duration::try_from_secs_f64(seconds).unwrap_or_default(),
    };
    let accesses = accesses::measure(&plan)?;
    say(format!("single accesses: {} patterns measured", accesses.len()));
    let log = log::measure(&plan)?;
    let (matrix, breaches) = matrix::measure(&plan)?;
    let result = MotResult {
        schema: "tidepool-mot/1",
        tidepool_version: env!("CARGO_PKG_VERSION"),
        machine: machine::machine(),
        warehouses,
        rounds: plan.rounds,
        seconds,
        matrix,
        accesses,
        log,
        breaches,
    };
    crate::show(args, &result, &report::markdown(&result))?;
    Ok(if result.breaches.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn median(values: Vec<f64>) -> f64 {
    crate::result::median(&values).unwrap_or(0.0)
}
