//! Grouping sets of which each is made of the groups of another one, that has its keys and few others.
//!
//! The groups by all keys are there. Groups by some of these keys are made of the smallest groups, by what is known of the keys, that tell
//! them apart: a `ROLLUP` goes from each set to the next smaller one. ("Smallest parent": Agarwal et al., *On the Computation of
//! Multidimensional Aggregates*, VLDB 1996.)

use super::{GroupingSets, KeySet};
use crate::aggregate::{Aggregate, AggregateCall, AggregateFunction};
use crate::pipeline::{Operator, Out, Step};
use crate::types::Class;
use crate::vector::{Chunk, Values, Vector};
use std::sync::Arc;
use tidepool_base::{Error, Result};

/// Different values that a key is taken to have where nothing is known of it.
const VALUES_UNKNOWN: f64 = 1e5;

/// How a set's groups are made.
#[derive(Debug, PartialEq)]
pub(crate) struct Level {
    /// Its number among the sets.
    pub set: usize,
    /// The level whose groups it is made of; `None`: the groups by all keys.
    pub of: Option<usize>,
    /// `None`: they are those.
    pub aggregate: Option<Aggregate>,
}

impl GroupingSets {
    /// How each set is made of groups by all of the keys, or of those of an earlier level. `None` where the rows that come are not such groups, or
    /// where functions of groups are not made of those of smaller ones.
    pub(crate) fn cascade(&self, finest: &Aggregate) -> Option<Vec<Level>> {
        use AggregateFunction as F;
        let width = self.keys.len();
        let merges = |call: &AggregateCall| {
            matches!(call.function, F::Sum | F::Min | F::Max | F::BoolAnd | F::BoolOr)
                && !call.distinct
                && call.filter.is_none()
                && call
                    .argument
                    .is_some_and(|argument| argument >= width && self.input[argument].class() == call.of.class())
        };
        let are_groups = finest.keys.len() == width && self.keys.iter().copied().eq(0..width);
        if !are_groups || !self.functions.iter().all(merges) {
            return None;
        }
        let values = |key: &usize| {
            let of = &self.input[*key];
            match (&of.dictionary, of.bounds) {
                (Some(dictionary), _) => dictionary.len() as f64,
                (None, Some((lower, upper))) if of.class() == Class::Int => (upper - lower) as f64 + 1.0,
                _ if of.class() == Class::Bool => 2.0,
                _ => VALUES_UNKNOWN,
            }
        };
        let groups = |set: &KeySet| (0..width).filter(|key| set.keys[*key]).map(|key| values(&key)).product::<f64>();
        let size = |set: &KeySet| set.keys.iter().filter(|is_kept| **is_kept).count();
        let mut order: Vec<usize> = (0..self.sets.len()).collect();
        order.sort_by_key(|set| std::cmp::Reverse(size(&self.sets[*set])));
        let mut levels: Vec<Level> = Vec::with_capacity(order.len());
        for set in order {
            let keys = &self.sets[set].keys;
            if size(&self.sets[set]) == width {
                levels.push(Level { set, of: None, aggregate: None });
                continue;
            }
            let has_all = |level: &usize| {
                levels[*level].aggregate.is_some()
                    && self.sets[levels[*level].set].keys.iter().zip(keys).all(|(has, wants)| *has || !wants)
            };
            let smaller = |a: &usize, b: &usize| {
                groups(&self.sets[levels[*a].set]).total_cmp(&groups(&self.sets[levels[*b].set]))
            };
            let of = (0..levels.len()).filter(has_all).min_by(smaller);
            let aggregate = self.level(of.map(|of| &levels[of]), keys);
            levels.push(Level { set, of, aggregate: Some(aggregate) });
        }
        Some(levels)
    }

    /// Groups by some keys, of another level's.
    fn level(&self, of: Option<&Level>, keys: &[bool]) -> Aggregate {
        let (input, of_keys) = match of {
            Some(Level { set, aggregate: Some(aggregate), .. }) => (aggregate.columns(), &self.sets[*set].keys[..]),
            _ => (self.input.clone(), &[][..]),
        };
        let has = |key: usize| of_keys.get(key).copied().unwrap_or(true);
        let place = |key: usize| (0..key).filter(|before| has(*before)).count();
        let places = (0..keys.len()).filter(|key| keys[*key]).map(place).collect();
        let first = place(keys.len());
        let argument =
            |index: usize, call: &AggregateCall| if of.is_some() { Some(first + index) } else { call.argument };
        let functions = self.functions.iter().enumerate();
        let functions =
            functions.map(|(index, call)| AggregateCall { argument: argument(index, call), ..call.clone() });
        Aggregate { input, keys: places, functions: functions.collect(), rows_max: self.rows_max }
    }

    /// Groups of a level as groups of the sets.
    pub(crate) fn of_level(self: &Arc<Self>, level: &Level) -> SetColumns {
        let keys = &self.sets[level.set].keys;
        let mut next = 0..;
        let keys = keys.iter().map(|is_kept| if *is_kept { next.next() } else { None }).collect::<Vec<_>>();
        let first = keys.iter().flatten().count();
        let function = |(index, call): (usize, &AggregateCall)| match level.aggregate {
            Some(_) => first + index,
            None => call.argument.unwrap_or_default(),
        };
        let functions = self.functions.iter().enumerate().map(function).collect();
        SetColumns { sets: Arc::clone(self), set: level.set, keys, functions }
    }
}

/// Gives the groups of one set the columns of all: NULL for keys that it has not, and its number.
#[derive(Clone, Debug)]
pub(crate) struct SetColumns {
    sets: Arc<GroupingSets>,
    set: usize,
    /// Where the keys are among the columns that come.
    keys: Vec<Option<usize>>,
    functions: Vec<usize>,
}

impl Operator for SetColumns {
    fn worker(&self) -> Result<Box<dyn Step>> {
        Ok(Box::new(self.clone()))
    }
}

impl Step for SetColumns {
    fn push(&mut self, chunk: Chunk, out: Out<'_>) -> Result<()> {
        let GroupingSets { input, keys, sets, counts, .. } = self.sets.as_ref();
        let of_chunk = |place: usize| {
            chunk.columns.get(place).cloned().ok_or_else(|| Error::internal("groups of a set without their columns"))
        };
        let key = |(place, column): (&Option<usize>, &usize)| match place {
            Some(place) => of_chunk(*place),
            None => Ok(Vector::nulls(&input[*column], chunk.rows)),
        };
        let mut columns = self.keys.iter().zip(keys).map(key).collect::<Result<Vec<Vector>>>()?;
        columns.push(Vector::ints(vec![sets[self.set].id; chunk.rows]));
        for (place, is_count) in self.functions.iter().zip(counts) {
            columns.push(counted(of_chunk(*place)?, *is_count));
        }
        out(Chunk::new(chunk.rows, columns))
    }
}

/// Sums of counts, of which there are none where there are no rows.
fn counted(sums: Vector, is_count: bool) -> Vector {
    match (&sums.values, &sums.valid) {
        (Values::Int(values), Some(valid)) if is_count => {
            Vector::ints(values.iter().enumerate().map(|(row, sum)| if valid.get(row) { *sum } else { 0 }).collect())
        }
        _ => sums,
    }
}
