//! Conditions tried on a sample of a table's rows, for estimates.

use super::TableProvider;
use crate::optimizer::estimate::Tried;
use datafusion::arrow::array::{ArrayRef, AsArray, RecordBatch};
use datafusion::arrow::datatypes::Schema;
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::execution_props::ExecutionProps;
use datafusion::logical_expr::expr_rewriter::unnormalize_col;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::utils::conjunction;
use datafusion::physical_expr::create_physical_expr;
use parking_lot::Mutex;
use std::sync::Arc;
use tidepool_heap::QueryHeap;

/// What was tried before, of a table: of one version, or of those of a plan that is kept.
#[derive(Debug, Default)]
pub struct Trials(Mutex<Vec<(Vec<Expr>, Option<Tried>)>>);

/// Conditions that are kept.
const TRIALS_MAX: usize = 64;

/// Partitions of which rows are looked at, the largest ones.
const PARTITIONS_MAX: usize = 16;

impl TableProvider {
    /// What becomes of some rows under all of `conditions`. `None` where they cannot be evaluated on any row, or there are none.
    pub fn tried(&self, conditions: &[Expr]) -> Option<Tried> {
        let known = |trials: &[(Vec<Expr>, Option<Tried>)]| {
            trials.iter().find(|(of, _)| of == conditions).map(|(_, tried)| *tried)
        };
        if let Some(tried) = known(&self.trials.0.lock()) {
            return tried;
        }
        // What fails on some row may never come to it when the statement runs.
        let tried = self.try_on_sample(conditions).ok().flatten();
        let mut trials = self.trials.0.lock();
        if trials.len() < TRIALS_MAX {
            trials.push((conditions.to_vec(), tried));
        }
        tried
    }

    fn try_on_sample(&self, conditions: &[Expr]) -> Result<Option<Tried>> {
        let Some(all) = conjunction(conditions.iter().cloned().map(unnormalize_col)) else { return Ok(None) };
        let all = crate::generic::with_values(all)?;
        if all.is_volatile() {
            return Ok(None);
        }
        let def = &self.source.version.def;
        let named = all.column_refs();
        let mut columns =
            named.iter().map(|column| self.schema.index_of(&column.name)).collect::<Result<Vec<_>, _>>()?;
        columns.sort_unstable();
        columns.dedup();
        if columns.iter().any(|column| *column >= def.columns.len()) {
            return Ok(None);
        }
        let schema = Arc::new(Schema::new(
            columns.iter().map(|column| self.schema.fields()[*column].clone()).collect::<Vec<_>>(),
        ));
        let condition = create_physical_expr(
            &all,
            &DFSchema::try_from(schema.clone())?,
            &ExecutionProps::new(),
            &PhysicalPlanningContext::default(),
        )?;
        let mut tables = self.tables();
        tables.retain(|table| table.rows_max() > 0);
        let looked_at_all = tables.len() <= PARTITIONS_MAX;
        tables.sort_by_key(|table| std::cmp::Reverse(table.rows_max()));
        tables.truncate(PARTITIONS_MAX);
        let (mut share, mut total, mut rows, mut is_all) = (0.0, 0.0, 0, looked_at_all);
        for table in tables {
            let of_table = table.statistics().rows;
            let arrays = QueryHeap::outside(|| table.sample(&columns)).map_err(crate::errors::carry)?;
            let Some(arrays) = arrays else { return Ok(None) };
            let sampled = arrays.first().map_or(0, |array| array.len());
            if sampled == 0 {
                continue;
            }
            let batch = RecordBatch::try_new(schema.clone(), arrays)?;
            let passed: ArrayRef = condition.evaluate(&batch)?.into_array(sampled)?;
            let passed = passed.as_boolean();
            let passed = passed.iter().filter(|passes| *passes == Some(true)).count();
            share += passed as f64 / sampled as f64 * of_table as f64;
            total += of_table as f64;
            rows += sampled;
            is_all &= sampled as u64 == of_table;
        }
        if rows == 0 || total == 0.0 {
            return Ok(None);
        }
        Ok(Some(Tried { passed: (share / total * rows as f64).round() as usize, rows, all: is_all }))
    }
}
