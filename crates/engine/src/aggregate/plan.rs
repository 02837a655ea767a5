//! How an aggregate is carried out: what a group's row has, and how it is found.

use super::direct::{self, Numbering};
use super::directory::HEADER_BYTES;
use super::functions::{AggregateCall, Needs, Output, Take};
use super::local::Limits;
use super::states::Accumulator;
use crate::rows::{RowLayout, Rows};
use crate::touch::{Meter, Pool};
use crate::types::{Class, ColumnType};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tidepool_base::{Error, Result};

/// Groups of rows with equal keys (NULL equals NULL, -0 equals 0, and all NaNs are equal), and what is computed of each. Without keys,
/// all rows are one group, also when there are none.
#[derive(Clone, Debug, PartialEq)]
pub struct Aggregate {
    pub input: Vec<ColumnType>,
    /// Columns of the input. They are the first columns of the result.
    pub keys: Vec<usize>,
    /// The columns that follow.
    pub functions: Vec<AggregateCall>,
    /// No more rows come.
    pub rows_max: u64,
}

impl Aggregate {
    /// The result's columns.
    pub fn columns(&self) -> Vec<ColumnType> {
        let keys = self.keys.iter().map(|key| self.input[*key].clone());
        keys.chain(self.functions.iter().map(|call| call.of.clone())).collect()
    }
}

#[derive(Clone, Debug)]
pub(super) enum Lookup {
    /// No keys.
    One,
    Direct(Numbering),
    Hashed,
}

/// Distinct values of a column in each group.
#[derive(Debug)]
pub(super) struct Set {
    pub take: Take,
    pub argument: usize,
    /// The keys and the column.
    pub layout: Arc<RowLayout>,
}

/// What tests choose; for the planner it is at its default, but for the rows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Variant {
    pub limits: Limits,
    /// Also where numbers would do.
    pub is_hashed: bool,
    pub has_no_runs: bool,
    pub has_no_order: bool,
    pub rows_expected: f64,
}

#[derive(Debug)]
pub(super) struct Plan {
    pub columns: Vec<ColumnType>,
    pub keys: Vec<usize>,
    /// Columns of the input that a group's row has: the keys first.
    pub stored: Vec<usize>,
    pub layout: Arc<RowLayout>,
    pub takes: Vec<Take>,
    pub accumulators: Vec<Accumulator>,
    pub sets: Vec<Set>,
    /// Of the columns after the keys.
    pub outputs: Vec<Output>,
    pub lookup: Lookup,
    pub limits: Limits,
    /// More groups than this are not numbered.
    pub numbers_max: usize,
    pub finds_runs: bool,
    /// Rows may come in the order of a key.
    pub finds_order: bool,
    pub meter: Meter,
    /// Groups that no worker's own table has any more.
    pub groups: Pool,
    /// Some floating-point number that was summed up is infinite. If none is, no sum may be.
    pub has_infinite: AtomicBool,
}

impl Plan {
    pub fn new(aggregate: &Aggregate, variant: Variant, meter: Meter) -> Result<Plan> {
        let Aggregate { input, keys, functions, rows_max } = aggregate;
        let used =
            keys.iter().copied().chain(functions.iter().flat_map(|call| call.argument.into_iter().chain(call.filter)));
        if used.into_iter().any(|column| column >= input.len()) {
            return Err(Error::internal("an aggregate of a column that is not there"));
        }
        if functions.iter().any(|call| call.filter.is_some_and(|filter| input[filter].class() != Class::Bool)) {
            return Err(Error::internal("an aggregate's filter is not a boolean"));
        }
        let key_types: Vec<ColumnType> = keys.iter().map(|key| stored_type(&input[*key])).collect();
        let mut needs = Needs::default();
        let of_call = |call: &AggregateCall| needs.of_call(call, input, !keys.is_empty(), *rows_max, keys.len());
        let outputs = functions.iter().map(of_call).collect::<Result<Vec<_>>>()?;
        let Needs { takes, mut accumulators, sets, carried } = needs;
        let stored: Vec<usize> = keys.iter().copied().chain(carried).collect();
        let trailer = accumulators.iter().map(Accumulator::bytes).sum();
        let stored_types = stored.iter().map(|column| stored_type(&input[*column])).collect();
        let layout = Arc::new(RowLayout::new(stored_types, HEADER_BYTES, trailer)?);
        let mut offset = layout.trailer(trailer);
        for accumulator in &mut accumulators {
            accumulator.offset = offset;
            offset += accumulator.bytes();
        }
        let set = |take: Take| {
            let argument = take.argument.ok_or_else(|| Error::internal("distinct rows"))?;
            let argument_type = stored_type(&input[argument]);
            let columns = key_types.iter().cloned().chain([argument_type]).collect();
            let layout = Arc::new(RowLayout::new(columns, HEADER_BYTES, 0)?);
            Ok(Set { take, argument, layout })
        };
        let sets = sets.into_iter().map(set).collect::<Result<Vec<_>>>()?;
        let numbers_max = direct::numbers_max(variant.rows_expected);
        let numbering =
            if variant.is_hashed || !sets.is_empty() { None } else { Numbering::of(&key_types, numbers_max) };
        let lookup = match numbering {
            _ if keys.is_empty() => Lookup::One,
            Some(numbering) => Lookup::Direct(numbering),
            None => Lookup::Hashed,
        };
        let finds_order = !variant.has_no_order
            && sets.is_empty()
            && matches!(lookup, Lookup::Hashed)
            && key_types.iter().any(|of| of.class() == Class::Int);
        Ok(Plan {
            columns: aggregate.columns(),
            keys: keys.clone(),
            numbers_max,
            stored,
            layout,
            takes,
            accumulators,
            sets,
            outputs,
            lookup,
            limits: variant.limits,
            finds_runs: !variant.has_no_runs,
            finds_order,
            groups: meter.pool(),
            meter,
            has_infinite: AtomicBool::new(false),
        })
    }

    /// For groups: none yet.
    pub fn rows(&self) -> Rows {
        Rows::observed(Arc::clone(&self.layout), self.meter.observer())
    }
}

/// Codes are within their dictionary.
fn stored_type(of: &ColumnType) -> ColumnType {
    match &of.dictionary {
        Some(dictionary) => of.clone().within((0, dictionary.len().max(1) as i128 - 1)),
        None => of.clone(),
    }
}
