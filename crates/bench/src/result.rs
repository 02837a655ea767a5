//! What a run writes as JSON: one object, `schema` naming its form. Times are milliseconds of wall clock unless the name says
//! otherwise; sizes are bytes.

use crate::engine::{EngineKind, StatementFacts};
use crate::machine::Machine;
use serde::Serialize;
use tidepool_device::Profile;

/// Changes with any change of meaning or of names; new fields may come without one.
pub const SCHEMA: &str = "tidepool-bench/1";

#[derive(Clone, Debug, Serialize)]
pub struct BenchResult {
    pub schema: &'static str,
    pub tidepool_version: &'static str,
    pub started_at_unix: u64,
    pub configuration: Configuration,
    /// Of `configuration` and `machine`: runs with the same hash can be compared.
    pub configuration_hash: String,
    pub machine: Machine,
    pub tablespaces: Vec<TablespaceFacts>,
    pub load: LoadFacts,
    pub placements: Vec<PlacementResult>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Configuration {
    pub benchmark: &'static str,
    pub scale_factor: f64,
    pub engine: EngineKind,
    pub threads: usize,
    pub streams: usize,
    pub queries: Vec<String>,
    pub placements: Vec<String>,
    pub profiles: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct TablespaceFacts {
    pub name: String,
    pub location: String,
    pub size_bytes: Option<u64>,
    /// True when accesses are charged what the profile's device would cost; false for the real thing.
    pub paced: bool,
    pub profile: Option<Profile>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct LoadFacts {
    pub seconds: f64,
    pub rows: u64,
    /// As plain Arrow arrays.
    pub raw_bytes: u64,
    /// In main: values, dictionaries, statistics and headers.
    pub encoded_bytes: u64,
    pub tables: Vec<TableFacts>,
    pub memory: Vec<MemoryFacts>,
    pub process_resident_bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct TableFacts {
    pub name: String,
    pub rows: u64,
    pub raw_bytes: u64,
    pub encoded_bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct MemoryFacts {
    pub tablespace: String,
    pub purpose: &'static str,
    pub bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct PlacementResult {
    pub name: &'static str,
    pub title: &'static str,
    /// `None` where nothing is far, or the far device is real.
    pub profile: Option<String>,
    pub tablespace_far: String,
    pub queries: Vec<QueryResult>,
    /// Sum of the medians.
    pub total_ms: f64,
    pub geometric_mean_ms: f64,
    /// Beside the first placement that was run: total time over its total time, less one.
    pub slowdown: Option<f64>,
    /// Half of what lies between the least and the greatest slowdown of a single round. `None` for fewer than two rounds.
    pub slowdown_noise: Option<f64>,
    pub paper_slowdown: Option<f64>,
    pub throughput: Option<Throughput>,
}

impl PlacementResult {
    /// What pacing accounted to one run of every query, all threads added up, ms. Unlike the slowdown it has no noise.
    pub fn stall_ms(&self) -> f64 {
        let scans = |facts: &StatementFacts| facts.scans.iter().map(|scan| scan.stall_ms).sum::<f64>();
        self.queries.iter().map(|query| query.facts.heap_stall_ms + scans(&query.facts)).sum()
    }
}

impl BenchResult {
    /// The slowdown that a placement would have if pacing's stalls were all that it costs: shared by the threads, beside the first
    /// placement's time.
    pub fn slowdown_modelled(&self, placement: &PlacementResult) -> Option<f64> {
        let first = self.placements.first().filter(|first| first.total_ms > 0.0)?;
        let stall_ms = placement.stall_ms() - first.stall_ms();
        Some(stall_ms / self.configuration.threads.max(1) as f64 / first.total_ms)
    }

    /// In plain words, the placements whose measured slowdown says less than the machine's noise.
    pub fn doubts(&self) -> Vec<String> {
        let of_placement = |placement: &PlacementResult| {
            let modelled = self.slowdown_modelled(placement).unwrap_or_default();
            let doubt = doubt(placement.slowdown?, placement.slowdown_noise, modelled)?;
            let by_pacing = format!("By what pacing charged it would be {:+.0} %.", modelled * 100.0);
            Some(format!("{}: {doubt} {by_pacing}", placement.title))
        };
        self.placements.iter().filter_map(of_placement).collect()
    }
}

/// A slowdown this small, measured and modelled, is none.
const SLOWDOWN_MIN: f64 = 0.02;

/// Why a slowdown says little; `None` where it says something, or where there is none.
fn doubt(slowdown: f64, noise: Option<f64>, modelled: f64) -> Option<String> {
    if slowdown.abs() <= SLOWDOWN_MIN && modelled <= SLOWDOWN_MIN {
        return None;
    }
    let measured = format!("the measured {:+.0} %", slowdown * 100.0);
    match noise {
        None => Some(format!("{measured} says little: after one round this machine's noise is not known.")),
        Some(noise) if noise >= slowdown.abs() => {
            Some(format!("{measured} says little: this machine's noise (± {:.0} %) exceeds it.", noise * 100.0))
        }
        Some(_) if slowdown < -SLOWDOWN_MIN => Some(format!(
            "{measured} cannot be: far memory makes nothing faster, so the machine was busy with other work."
        )),
        Some(_) => None,
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct QueryResult {
    pub name: String,
    /// Every timed run, in order; the warm-up is not among them.
    pub runs_ms: Vec<f64>,
    pub median_ms: Option<f64>,
    pub rows: usize,
    pub answer: Answer,
    /// Of the warm-up run.
    #[serde(flatten)]
    pub facts: StatementFacts,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "answer", content = "answer_detail", rename_all = "kebab-case")]
pub enum Answer {
    /// Equal to the published one.
    Published,
    /// Equal to the first placement's; there is no published answer at this scale.
    Agrees,
    /// The first placement's, which the others are held against.
    Reference,
    /// Nothing to compare with.
    Unchecked,
    Wrong(String),
    Error(String),
}

impl Answer {
    pub fn is_failure(&self) -> bool {
        matches!(self, Answer::Wrong(_) | Answer::Error(_))
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Throughput {
    pub streams: usize,
    pub seconds: f64,
    pub queries_per_hour: f64,
    /// Beside the first placement: queries an hour lost, as a ratio.
    pub loss: Option<f64>,
    /// The study's figure, for eight streams.
    pub paper_loss: Option<f64>,
    pub errors: Vec<String>,
}

impl BenchResult {
    pub fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for placement in &self.placements {
            for query in &placement.queries {
                match &query.answer {
                    Answer::Wrong(detail) => {
                        failures.push(format!("{} {}: wrong answer: {detail}", placement.title, query.name))
                    }
                    Answer::Error(detail) => failures.push(format!("{} {}: {detail}", placement.title, query.name)),
                    _ => {}
                }
            }
            if let Some(throughput) = &placement.throughput {
                failures.extend(throughput.errors.iter().map(|error| format!("{} streams: {error}", placement.title)));
            }
        }
        failures
    }
}

pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => None,
        length if length % 2 == 1 => Some(sorted[length / 2]),
        length => Some((sorted[length / 2 - 1] + sorted[length / 2]) / 2.0),
    }
}

pub fn geometric_mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0usize), |(sum, count), value| (sum + value.max(1e-6).ln(), count + 1));
    if count == 0 { 0.0 } else { (sum / count as f64).exp() }
}

/// FNV-1a of the text: stable between versions and machines, and not meant to resist anybody.
pub fn stable_hash(text: &str) -> String {
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}

/// The value that so much of them does not exceed.
pub fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(place.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubts_say_what_is_wrong_with_a_slowdown() {
        assert_eq!(doubt(0.12, Some(0.03), 0.10), None);
        assert_eq!(doubt(0.01, Some(0.05), 0.01), None, "nothing is claimed");
        let said = |slowdown, noise, modelled| doubt(slowdown, noise, modelled).unwrap();
        assert!(said(0.12, Some(0.30), 0.10).contains("exceeds it"));
        assert!(said(-0.30, Some(0.40), 0.10).contains("exceeds it"));
        assert!(said(-0.30, Some(0.05), 0.10).contains("cannot be"), "less than the effect, and no less wrong");
        assert!(said(0.12, None, 0.10).contains("not known"));
        assert!(said(0.0, Some(0.05), 0.10).contains("exceeds it"), "an effect that was not seen");
    }
}
