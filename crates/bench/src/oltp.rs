//! TPC-C by connections and by what of it is far, with the traffic over the device's link: figure 5 of the far-memory study
//! (paper 000, section 5.2.1), and half of figure 3 of the expander study (paper 001, section 4.2).
//!
//! A connection is a terminal of the embedded API. There are as many threads as processors, and terminals of one thread
//! take turns while they wait for memory.

use crate::instance::counters;
use crate::progress::say;
use crate::result::median;
use serde::Serialize;
use std::time::Duration;
use tidepool_base::{Error, Result};
use tidepool_database::Config;
use tidepool_embedded::{Isolation, MergePolicy, Tidepool};
use tidepool_tpcc::{Mix, Plan, Tables, Tablespaces};

const WARM_UP: Duration = Duration::from_millis(500);

#[derive(Clone, Debug, Serialize)]
pub struct OltpPoint {
    pub connections: usize,
    pub transactions_per_second: f64,
    /// Bytes per second over the device's link.
    pub link_read: f64,
    pub link_written: f64,
}

/// One line of a figure.
#[derive(Clone, Debug, Serialize)]
pub struct OltpLine {
    pub title: String,
    /// By number of connections; medians of the rounds.
    pub points: Vec<OltpPoint>,
}

/// What is measured in all lines alike.
#[derive(Clone, Debug)]
pub(crate) struct OltpPlan {
    pub warehouses: u32,
    pub threads: usize,
    /// Of each thread.
    pub terminals: Vec<usize>,
    pub seconds: f64,
    pub rounds: usize,
}

/// Loads a database and runs it with each number of connections. What was ordered and paid goes to main as it settles. Fails
/// where one of TPC-C's consistency conditions does not hold afterwards.
pub(crate) fn measure(plan: &OltpPlan, title: &str, mut config: Config, spaces: &Tablespaces) -> Result<OltpLine> {
    config.threads = plan.threads;
    let tidepool = Tidepool::open(config)?;
    tidepool_tpcc::create_with(&tidepool, spaces, MergePolicy::Auto)?;
    let tables = Tables::prepare(&tidepool)?;
    say(format!("{title}: load {} warehouses", plan.warehouses));
    tidepool_tpcc::load(&tidepool, &tables, plan.warehouses as i32, plan.threads)?;
    let mut rounds: Vec<Vec<OltpPoint>> = vec![Vec::new(); plan.terminals.len()];
    for _ in 0..plan.rounds.max(1) {
        for (terminals, points) in plan.terminals.iter().zip(&mut rounds) {
            let connections = terminals * plan.threads;
            say(format!("{title}: {connections} connections"));
            let before = counters(tidepool.database())?;
            let run = tidepool_tpcc::run(
                &tidepool,
                &tables,
                &Plan {
                    warehouses: plan.warehouses as i32,
                    threads: plan.threads,
                    terminals: *terminals,
                    warm_up: WARM_UP,
                    duration: Duration::try_from_secs_f64(plan.seconds).unwrap_or_default(),
                    mix: Mix::parse("standard")?,
                    isolation: Isolation::Serializable,
                    seed: 7 + connections as u64,
                },
            )?;
            let after = counters(tidepool.database())?;
            // The link's counters have the warm-up in them.
            let seconds = run.seconds + WARM_UP.as_secs_f64();
            points.push(OltpPoint {
                connections,
                transactions_per_second: run.per_second,
                link_read: (after.link_bytes_read - before.link_bytes_read) as f64 / seconds,
                link_written: (after.link_bytes_written - before.link_bytes_written) as f64 / seconds,
            });
        }
    }
    if let Some(breach) = tidepool_tpcc::check(&tidepool, &tables, plan.warehouses as i32)?.first() {
        return Err(Error::internal(format!("a condition of TPC-C does not hold: {breach}")));
    }
    Ok(OltpLine { title: title.to_owned(), points: rounds.iter().map(|points| middle(points)).collect() })
}

fn middle(points: &[OltpPoint]) -> OltpPoint {
    let of = |figure: fn(&OltpPoint) -> f64| median(&points.iter().map(figure).collect::<Vec<_>>()).unwrap_or(0.0);
    OltpPoint {
        connections: points.first().map_or(0, |point| point.connections),
        transactions_per_second: of(|point| point.transactions_per_second),
        link_read: of(|point| point.link_read),
        link_written: of(|point| point.link_written),
    }
}

/// The most that any line does: what figures are shown as a part of.
pub fn most(lines: &[OltpLine]) -> f64 {
    lines.iter().flat_map(|line| &line.points).map(|point| point.transactions_per_second).fold(0.0, f64::max)
}

/// Lines by connections, as parts of the most.
pub fn print(lines: &[OltpLine]) {
    let heads = lines.first().map_or(Vec::new(), |line| line.points.iter().map(|point| point.connections).collect());
    let heads: String = heads.into_iter().map(|count| format!("{:>19}  ", format!("{count} connections"))).collect();
    println!("{:<28} {heads}", "");
    let most = most(lines);
    for line in lines {
        let cells = line.points.iter().map(|point| {
            let traffic = (point.link_read + point.link_written) / 1e9;
            format!("{:>9.3} {traffic:>6.2} GB/s", point.transactions_per_second / most)
        });
        println!("{:<28} {}", line.title, cells.collect::<Vec<_>>().join(" "));
    }
}
