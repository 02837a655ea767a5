//! Benchmarks: TPC-H and TPC-DS in the placements of the far-memory study, their checks, and reports.
//!
//! A [`workload::Workload`] is data and queries; [`engine`] runs them on Tidepool, or on plain DataFusion for comparison;
//! [`run`] moves tables and heap between tablespaces in SQL and measures; [`result`] is what a run writes as JSON and
//! [`report`] what it writes as a page; [`cli`] is the part of the command line that `tidepool bench` and `tidepool demo` use.
//! [`probe`] measures the memory itself, for `tidepool device probe`.
//! Databases that are not written in Rust are compared by the scripts in `bench/` at the top of the repository.

pub mod ch;
pub mod cli;
pub mod compare;
pub mod connections;
pub mod disaggregation;
pub mod engine;
pub mod expander;
pub mod failover;
pub mod idle;
pub mod instance;
pub mod load;
pub mod observe;
pub mod oltp;
pub mod overload;
pub mod peaks;
pub mod placement;
pub mod pool;
pub mod probe;
pub mod progress;
pub mod reach;
pub mod readers;
pub mod report;
pub mod result;
pub mod run;
pub mod study;
pub mod tpcc;
pub mod tpcds;
pub mod tpch;
pub mod workload;

mod advise;
mod client;
mod demo;
mod machine;
mod mot;
mod random;
mod restart;
mod served;

use serde::Serialize;
use std::path::Path;
use tidepool_base::{Error, Result};

/// Writes what was measured as JSON; `-` is standard output.
/// Shows a report in Markdown, and writes it and the result where `--json` and `--report` say.
fn show(args: &cli::BenchArgs, result: &impl Serialize, text: &str) -> Result<()> {
    print!("{text}");
    if let Some(path) = &args.json {
        write_json(path, result)?;
    }
    if let Some(folder) = &args.report {
        let failed = |error| Error::io(format!("write the report into \"{}\"", folder.display()), &error);
        std::fs::create_dir_all(folder).map_err(failed)?;
        write_json(&folder.join("result.json"), result)?;
        std::fs::write(folder.join("report.md"), text).map_err(failed)?;
    }
    Ok(())
}

pub fn write_json(path: &Path, result: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(result)
        .map_err(|error| Error::internal(format!("could not write the result: {error}")))?;
    if path == Path::new("-") {
        println!("{text}");
        return Ok(());
    }
    std::fs::write(path, text + "\n").map_err(|error| Error::io(format!("write \"{}\"", path.display()), &error))
}
