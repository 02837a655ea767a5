//! Grouping sets: rows once for each set, without the keys that the set has not, and groups of them all; or groups made of each other
//! ([`cascade`]).

mod average;
mod cascade;
#[cfg(test)]
mod tests;

pub use average::{average, parts};
pub(crate) use cascade::Level;

use crate::aggregate::{Aggregate, AggregateCall, AggregateFunction, AggregateSource, AggregateTable};
use crate::pipeline::{Next, Operator, Out, Reader, Source, Step};
use crate::types::{Class, ColumnType};
use crate::vector::{Chunk, Values, Vector};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidepool_base::{Error, Result};

/// One of the sets: which of the keys it has, and the number that tells its groups from those of others.
#[derive(Clone, Debug, PartialEq)]
pub struct KeySet {
    pub keys: Vec<bool>,
    pub id: i64,
}

/// Groups by each of some sets of keys. Columns of the result: the keys, NULL where a set has them not; the set's number; the functions.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupingSets {
    pub input: Vec<ColumnType>,
    /// Columns of the input, each once. No function's argument or filter is one of them.
    pub keys: Vec<usize>,
    pub sets: Vec<KeySet>,
    /// Of the sets' numbers.
    pub id: ColumnType,
    pub functions: Vec<AggregateCall>,
    /// Functions that count: of no rows they are 0, and others NULL. Told apart from the functions' own, which may sum counts.
    pub counts: Vec<bool>,
    /// No more rows come, of the input.
    pub rows_max: u64,
}

impl GroupingSets {
    /// What comes out of [`Expand`]: the input's columns and the set's number.
    fn expanded(&self) -> Vec<ColumnType> {
        let of = |(column, of): (usize, &ColumnType)| {
            let is_key = self.keys.contains(&column);
            ColumnType { nullable: of.nullable || is_key, ..of.clone() }
        };
        self.input.iter().enumerate().map(of).chain([self.id.clone()]).collect()
    }

    /// The groups of what comes out of [`Expand`].
    pub fn aggregate(&self) -> Aggregate {
        Aggregate {
            input: self.expanded(),
            keys: self.keys.iter().copied().chain([self.input.len()]).collect(),
            functions: self.functions.clone(),
            rows_max: self.rows_max.saturating_mul(self.sets.len() as u64),
        }
    }

    pub fn columns(&self) -> Vec<ColumnType> {
        self.aggregate().columns()
    }

    /// Fails for functions of types that they have not, and for sets of other keys.
    pub fn check(&self) -> Result<()> {
        let used = || self.functions.iter().flat_map(|call| call.argument.into_iter().chain(call.filter));
        if used().any(|column| self.keys.contains(&column)) {
            return Err(Error::internal("a function of a grouping set's key"));
        }
        if self.sets.iter().any(|set| set.keys.len() != self.keys.len()) || self.counts.len() != self.functions.len() {
            return Err(Error::internal("a grouping set of other keys"));
        }
        if self.keys.iter().any(|key| self.input.get(*key).is_none()) || self.id.class() != Class::Int {
            return Err(Error::internal("a grouping set of a column that is not there"));
        }
        AggregateTable::new(&self.aggregate()).map(drop)
    }

    /// The groups that there are without rows: one for each set without keys.
    fn of_nothing(&self) -> Chunk {
        let ids: Vec<i64> = self.sets.iter().filter(|set| !set.keys.contains(&true)).map(|set| set.id).collect();
        let rows = ids.len();
        let columns = self.columns();
        let (of_keys, of_functions) = columns.split_at(self.keys.len() + 1);
        let keys = of_keys[..self.keys.len()].iter().map(|of| Vector::nulls(of, rows));
        let functions = of_functions.iter().zip(&self.counts).map(|(of, is_count)| match (is_count, of.class()) {
            (true, Class::Int) => Vector::ints(vec![0; rows]),
            _ => Vector::nulls(of, rows),
        });
        Chunk::new(rows, keys.chain([Vector::ints(ids)]).chain(functions).collect())
    }
}

/// A function over what another one gave of parts of the rows; `None` where there is none. `column`: where that is.
pub fn merging(call: &AggregateCall, column: usize) -> Option<AggregateCall> {
    use AggregateFunction as F;
    let function = match call.function {
        F::Count | F::Sum => F::Sum,
        F::Min | F::Max | F::BoolAnd | F::BoolOr => call.function,
        _ => return None,
    };
    let takes_repeated = matches!(call.function, F::Min | F::Max | F::BoolAnd | F::BoolOr);
    let merging =
        AggregateCall { function, argument: Some(column), filter: None, distinct: false, of: call.of.clone() };
    (takes_repeated || !call.distinct).then_some(merging)
}

/// Gives each row once for each set.
#[derive(Debug)]
pub struct Expand {
    sets: Arc<GroupingSets>,
    /// Whether any row came.
    seen: Arc<AtomicBool>,
}

impl Expand {
    pub fn new(sets: &Arc<GroupingSets>) -> Expand {
        Expand { sets: Arc::clone(sets), seen: Arc::default() }
    }

    /// The groups of what it gives.
    pub fn groups(&self, table: &Arc<AggregateTable>) -> SetGroups {
        SetGroups {
            sets: Arc::clone(&self.sets),
            groups: AggregateSource::new(table),
            seen: Arc::clone(&self.seen),
            is_told: Arc::default(),
        }
    }
}

impl Operator for Expand {
    fn worker(&self) -> Result<Box<dyn Step>> {
        Ok(Box::new(ExpandStep { sets: Arc::clone(&self.sets), seen: Arc::clone(&self.seen) }))
    }
}

struct ExpandStep {
    sets: Arc<GroupingSets>,
    seen: Arc<AtomicBool>,
}

impl Step for ExpandStep {
    fn push(&mut self, chunk: Chunk, out: Out<'_>) -> Result<()> {
        if chunk.rows == 0 {
            return Ok(());
        }
        self.seen.store(true, Ordering::Relaxed);
        let GroupingSets { input, keys, sets, .. } = self.sets.as_ref();
        let nulls: Vec<Vector> = keys.iter().map(|key| Vector::nulls(&input[*key], chunk.rows)).collect();
        for set in sets {
            let mut columns = chunk.columns.clone();
            for ((key, is_kept), nulls) in keys.iter().zip(&set.keys).zip(&nulls) {
                if !is_kept {
                    columns[*key] = nulls.clone();
                }
            }
            columns.push(Vector { values: Values::Int(vec![set.id; chunk.rows].into()), valid: None });
            out(Chunk::new(chunk.rows, columns))?;
        }
        Ok(())
    }
}

/// The groups; of no rows, those that there are nevertheless.
#[derive(Debug)]
pub struct SetGroups {
    sets: Arc<GroupingSets>,
    groups: AggregateSource,
    seen: Arc<AtomicBool>,
    is_told: Arc<AtomicBool>,
}

impl Source for SetGroups {
    fn reader(&self) -> Result<Box<dyn Reader>> {
        if self.seen.load(Ordering::Relaxed) {
            return self.groups.reader();
        }
        let is_first = !self.is_told.swap(true, Ordering::Relaxed);
        Ok(Box::new(Nothing(is_first.then(|| self.sets.of_nothing()))))
    }

    fn parallelism(&self) -> Result<usize> {
        if self.seen.load(Ordering::Relaxed) { self.groups.parallelism() } else { Ok(1) }
    }
}

struct Nothing(Option<Chunk>);

impl Reader for Nothing {
    fn next(&mut self) -> Result<Next> {
        Ok(self.0.take().filter(|groups| groups.rows > 0).map_or(Next::End, Next::Chunk))
    }
}
