//! TPC-C by what of it is far, mix and number of threads.

use super::{Plan, devices, median};
use crate::progress::say;
use serde::Serialize;
use std::time::Duration;
use tidepool_base::Result;
use tidepool_database::Config;
use tidepool_embedded::{Isolation, Tidepool};
use tidepool_tpcc::{Mix, Tables, Tablespaces};

const MIXES: [&str; 4] = ["standard", "read", "neworder", "payment"];
const WARM_UP: Duration = Duration::from_millis(300);

/// One line of the paper's plots. Heads of rows are near in all of them.
struct Line {
    name: &'static str,
    rows: &'static str,
    indexes: &'static str,
    devices: usize,
}

const LINES: [Line; 7] = [
    Line { name: "none", rows: "near", indexes: "near", devices: 0 },
    Line { name: "all", rows: "far", indexes: "far", devices: 1 },
    Line { name: "all", rows: "far", indexes: "far", devices: 2 },
    Line { name: "index", rows: "near", indexes: "far", devices: 1 },
    Line { name: "index", rows: "near", indexes: "far", devices: 2 },
    Line { name: "row", rows: "far", indexes: "near", devices: 1 },
    Line { name: "row", rows: "far", indexes: "near", devices: 2 },
];

#[derive(Clone, Debug, Serialize)]
pub struct MatrixResult {
    /// `None` where all is near.
    pub profile: Option<String>,
    /// What is far: none, all, index or row.
    pub placement: &'static str,
    /// Locations that far memory has: 1 is the paper's `cfg_1`, 2 its `cfg_2`.
    pub devices: usize,
    pub mix: &'static str,
    pub threads: usize,
    /// Of each thread, taking turns while they wait for far memory where there are several.
    pub terminals: usize,
    /// Transactions a second of each round.
    pub per_second: Vec<f64>,
    pub median_per_second: f64,
}

pub(super) fn measure(plan: &Plan) -> Result<(Vec<MatrixResult>, Vec<String>)> {
    let mut results: Vec<MatrixResult> = Vec::new();
    let mut breaches = Vec::new();
    for round in 0..plan.rounds {
        // Each round begins elsewhere, so that a slow moment of the machine does not fall on one line alone.
        let mut lines = lines(plan);
        let turn = round * 5 % lines.len();
        lines.rotate_left(turn);
        for (line, profile, config) in lines {
            say(format!(
                "round {} of {}: {} {}",
                round + 1,
                plan.rounds,
                line.name,
                profile.as_ref().map_or_else(String::new, |profile| format!("on {} of {profile}", line.devices))
            ));
            for (mix, threads, terminals, per_second) in measure_line(plan, line, config, &mut breaches)? {
                let known = results.iter_mut().find(|known| {
                    (known.placement, known.devices, known.mix, known.threads, known.terminals)
                        == (line.name, line.devices, mix, threads, terminals)
                        && known.profile == profile
                });
                match known {
                    Some(known) => known.per_second.push(per_second),
                    None => results.push(MatrixResult {
                        profile: profile.clone(),
                        placement: line.name,
                        devices: line.devices,
                        mix,
                        threads,
                        terminals,
                        per_second: vec![per_second],
                        median_per_second: 0.0,
                    }),
                }
            }
        }
    }
    for result in &mut results {
        result.median_per_second = median(result.per_second.clone());
    }
    Ok((results, breaches))
}

fn lines(plan: &Plan) -> Vec<(&'static Line, Option<String>, Config)> {
    let [near, far @ ..] = &LINES;
    let mut lines = vec![(near, None, plan.config.clone())];
    for profile in &plan.profiles {
        for line in far {
            lines.push((line, Some(profile.name.clone()), devices(&plan.config, profile, line.devices)));
        }
    }
    lines
}

/// Of one database, mix after mix with one thread and with all, each with one terminal and with several.
fn measure_line(
    plan: &Plan,
    line: &Line,
    mut config: Config,
    breaches: &mut Vec<String>,
) -> Result<Vec<(&'static str, usize, usize, f64)>> {
    config.threads = plan.threads;
    let tidepool = Tidepool::open(config)?;
    tidepool_tpcc::create(&tidepool, &Tablespaces { rows: line.rows.to_owned(), indexes: line.indexes.to_owned() })?;
    let tables = Tables::prepare(&tidepool)?;
    tidepool_tpcc::load(&tidepool, &tables, plan.warehouses, plan.threads)?;
    let mut measured = Vec::new();
    let mut counts = Vec::new();
    for threads in [1, plan.threads] {
        counts.extend([(threads, 1), (threads, plan.terminals)]);
    }
    counts.sort_unstable();
    counts.dedup();
    for mix in MIXES {
        for (threads, terminals) in &counts {
            let run = tidepool_tpcc::run(
                &tidepool,
                &tables,
                &tidepool_tpcc::Plan {
                    warehouses: plan.warehouses,
                    threads: *threads,
                    terminals: *terminals,
                    warm_up: WARM_UP,
                    duration: plan.duration,
                    mix: Mix::parse(mix)?,
                    isolation: Isolation::Serializable,
                    seed: 7 + *threads as u64,
                },
            )?;
            measured.push((mix, *threads, *terminals, run.per_second));
        }
    }
    breaches.extend(tidepool_tpcc::check(&tidepool, &tables, plan.warehouses)?);
    Ok(measured)
}
