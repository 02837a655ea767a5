//! Aggregation: groups by hash, by number, or none.
//!
//! A group is a row ([`crate::rows`]) of its keys, with the states of its accumulators behind them. Each worker has groups of its
//! own, which become one when all have ended. Groups are found in one of three ways: there is but one; keys that are integers with
//! few values are numbered; others are looked up by their hash.

mod described;
mod direct;
mod directory;
mod functions;
mod local;
mod merge;
mod ordered;
mod output;
mod plan;
mod runs;
mod states;
#[cfg(test)]
mod tests;
mod texts;
mod worker;

pub use functions::{AggregateCall, AggregateFunction, sum_type};
pub(crate) use functions::{out_of_range, result_bounds};
pub use plan::Aggregate;
pub(crate) use states::{State, SumWide};

use crate::pipeline::{Next, Reader, Sink, SinkState, Source, Task, states_of};
use crate::touch::{Meter, Touches};
use crate::types::ColumnType;
use merge::{Finished, Merging};
use parking_lot::Mutex;
use plan::{Plan, Variant};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use tidepool_base::{Error, Result};
use worker::Worker;

/// An aggregate and its groups: [`AggregateSink`] makes them, [`AggregateSource`] reads them afterwards.
pub struct AggregateTable {
    plan: Arc<Plan>,
    merging: Mutex<Merging>,
    finished: Arc<OnceLock<Finished>>,
}

impl AggregateTable {
    /// Fails for functions of types that they have not, and for keys of [`crate::types::Class::Other`].
    pub fn new(aggregate: &Aggregate) -> Result<Arc<AggregateTable>> {
        AggregateTable::metered(aggregate, None, Meter::default())
    }

    /// As above, for about so many rows if that is known, and with an account of what it touches.
    pub fn metered(aggregate: &Aggregate, rows_expected: Option<f64>, meter: Meter) -> Result<Arc<AggregateTable>> {
        let variant = Variant { rows_expected: rows_expected.unwrap_or(0.0), ..Variant::default() };
        AggregateTable::with_variant(aggregate, variant, meter)
    }

    fn with_variant(aggregate: &Aggregate, variant: Variant, meter: Meter) -> Result<Arc<AggregateTable>> {
        Ok(Arc::new(AggregateTable {
            plan: Arc::new(Plan::new(aggregate, variant, meter)?),
            merging: Mutex::default(),
            finished: Arc::default(),
        }))
    }

    /// The result's columns: the keys, and then the functions.
    pub fn columns(&self) -> &[ColumnType] {
        &self.plan.columns
    }

    fn finished(&self) -> Result<&Finished> {
        self.finished.get().ok_or_else(|| Error::internal("groups are read before they are there"))
    }
}

impl fmt::Debug for AggregateTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AggregateTable").field("plan", &self.plan).finish_non_exhaustive()
    }
}

/// Takes the rows that are aggregated.
#[derive(Debug)]
pub struct AggregateSink(Arc<AggregateTable>);

impl AggregateSink {
    pub fn new(table: &Arc<AggregateTable>) -> AggregateSink {
        AggregateSink(Arc::clone(table))
    }
}

impl Sink for AggregateSink {
    fn worker(&self) -> Result<Box<dyn SinkState>> {
        Ok(Box::new(Worker::new(&self.0.plan)?))
    }

    fn finish(&self, _round: usize, states: &mut Vec<Box<dyn SinkState>>) -> Result<Vec<Task>> {
        if self.0.finished.get().is_some() {
            return Ok(Vec::new());
        }
        let workers = states_of(states).into_iter().map(|worker| *worker).collect();
        self.0.merging.lock().next(&self.0.plan, workers, &self.0.finished)
    }
}

/// Gives the groups, in no order, as columns of keys and functions. Every group comes once from each source.
#[derive(Debug)]
pub struct AggregateSource {
    table: Arc<AggregateTable>,
    /// Pieces of the result that readers took.
    taken: Arc<AtomicUsize>,
}

impl AggregateSource {
    pub fn new(table: &Arc<AggregateTable>) -> AggregateSource {
        AggregateSource { table: Arc::clone(table), taken: Arc::default() }
    }
}

impl Source for AggregateSource {
    fn reader(&self) -> Result<Box<dyn Reader>> {
        let touches = self.table.plan.meter.touches();
        Ok(Box::new(GroupReader { table: Arc::clone(&self.table), taken: Arc::clone(&self.taken), touches }))
    }

    fn parallelism(&self) -> Result<usize> {
        Ok(self.table.finished()?.pieces.len())
    }
}

struct GroupReader {
    table: Arc<AggregateTable>,
    taken: Arc<AtomicUsize>,
    touches: Touches,
}

impl Reader for GroupReader {
    fn next(&mut self) -> Result<Next> {
        let finished = self.table.finished()?;
        let piece = self.taken.fetch_add(1, Ordering::Relaxed);
        if piece >= finished.pieces.len() {
            return Ok(Next::End);
        }
        let plan = &self.table.plan;
        let chunk = finished.chunk(plan, piece)?;
        self.touches.read(&plan.groups, chunk.rows * plan.layout.width());
        Ok(Next::Chunk(chunk))
    }
}
