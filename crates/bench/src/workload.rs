//! What a benchmark is made of, whatever engine runs it: tables, where their rows come from, and queries.

use arrow::record_batch::RecordBatch;
use std::any::Any;
use tidepool_base::{Error, Result, SqlState};

/// Rows as they are generated. Nothing is made before it is asked for.
pub type BatchSource = Box<dyn Iterator<Item = Result<RecordBatch>> + Send>;

pub struct TableSpec {
    pub name: String,
    /// `CREATE TABLE …`
    pub ddl: String,
    /// Exact or nearly so, for progress.
    pub rows: u64,
    /// Large enough to be made in several parts at once.
    pub divisible: bool,
}

#[derive(Clone, Debug)]
pub struct QuerySpec {
    /// `q1`
    pub name: String,
    pub sql: &'static str,
}

pub struct Workload {
    /// `tpch`
    pub name: &'static str,
    /// `TPC-H`
    pub title: &'static str,
    pub scale_factor: f64,
    pub tables: Vec<TableSpec>,
    pub queries: Vec<QuerySpec>,
    /// Part `part` (from 0) of `parts` of a table.
    pub source: fn(table: &str, scale_factor: f64, part: usize, parts: usize) -> Result<BatchSource>,
    /// What all sources share: made once if it is held while they come and go, and gone with the last of them.
    pub prepare: fn() -> Box<dyn Any + Send>,
}

impl Workload {
    pub fn by_name(name: &str, scale_factor: f64) -> Result<Workload> {
        if !(scale_factor.is_finite() && scale_factor > 0.0 && scale_factor <= 100_000.0) {
            return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("invalid scale factor: {scale_factor}"))
                .with_hint("Give a number above 0, such as 0.1, 1 or 10."));
        }
        match name {
            "tpch" => Ok(crate::tpch::workload(scale_factor)),
            "tpcds" => crate::tpcds::workload(scale_factor),
            _ => Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("there is no benchmark \"{name}\""))
                .with_hint("There are tpch, tpcds, placement and advise.")),
        }
    }

    /// The queries a list such as `1,6,q18` or `1-5` names, in the list's order.
    pub fn select_queries(&self, list: &str) -> Result<Vec<QuerySpec>> {
        let invalid = |item: &str| {
            Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("{} has no query \"{item}\"", self.title))
                .with_hint(format!("Queries are numbered 1 to {}.", self.queries.len()))
        };
        let mut selected = Vec::new();
        for item in list.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let number = |text: &str| {
                text.trim()
                    .trim_start_matches(['q', 'Q'])
                    .parse::<usize>()
                    .ok()
                    .filter(|number| (1..=self.queries.len()).contains(number))
            };
            let (first, last) = match item.split_once('-') {
                Some((first, last)) => (number(first), number(last)),
                None => (number(item), number(item)),
            };
            let (Some(first), Some(last)) = (first, last) else { return Err(invalid(item)) };
            selected.extend(self.queries[first - 1..last.max(first)].iter().cloned());
        }
        Ok(selected)
    }
}
