//! Rows that a statement spells out, as the engine's.

use super::lower::{Lowered, Lowering, own, refused};
use crate::optimizer::estimate;
use datafusion::arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{DFSchema, Result as PlanResult, ScalarValue};
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{EmptyRelation, Expr, LogicalPlan, Values};
use datafusion::physical_expr::create_physical_expr;
use std::sync::Arc;
use tidepool_engine::plan::Plan;
use tidepool_engine::types::ColumnType;
use tidepool_engine::vector::{CHUNK_ROWS, Chunk, Vector};

impl Lowering<'_> {
    pub(super) fn values(&self, values: &Values, plan: &LogicalPlan) -> PlanResult<Lowered> {
        let types: Vec<ColumnType> =
            plan.schema().fields().iter().map(|field| ColumnType::new(field.data_type().clone(), true)).collect();
        let mut chunks = Vec::new();
        for rows in values.values.chunks(CHUNK_ROWS) {
            let column = |(column, of): (usize, &ColumnType)| {
                let cell = |row: &Vec<Expr>| match row.get(column) {
                    Some(expr) => self.constant(expr, &of.data_type),
                    None => Err(refused("rows of several lengths")),
                };
                let cells = rows.iter().map(cell).collect::<PlanResult<Vec<_>>>()?;
                let array: ArrayRef = ScalarValue::iter_to_array(cells)?;
                own(Vector::from_arrow(&array, of))
            };
            let columns = types.iter().enumerate().map(column).collect::<PlanResult<Vec<_>>>()?;
            chunks.push(Chunk::new(rows.len(), columns));
        }
        let estimate = estimate::of_node(plan, &[]);
        Ok(Lowered::new(Plan::chunks(chunks, types), estimate))
    }

    /// No row, or one.
    pub(super) fn empty(&self, empty: &EmptyRelation, plan: &LogicalPlan) -> Lowered {
        let types: Vec<ColumnType> =
            plan.schema().fields().iter().map(|field| ColumnType::new(field.data_type().clone(), true)).collect();
        let columns = types.iter().map(|of| Vector::nulls(of, 1)).collect();
        let chunks = if empty.produce_one_row { vec![Chunk::new(1, columns)] } else { Vec::new() };
        Lowered::new(Plan::chunks(chunks, types), estimate::of_node(plan, &[]))
    }

    /// The value of an expression that reads no column.
    fn constant(&self, expr: &Expr, data_type: &DataType) -> PlanResult<ScalarValue> {
        let value = match expr {
            Expr::Literal(value, _) => value.clone(),
            expr => {
                let has_more = expr.exists(|node| {
                    Ok(matches!(
                        node,
                        Expr::Column(_)
                            | Expr::OuterReferenceColumn(..)
                            | Expr::Placeholder(_)
                            | Expr::ScalarSubquery(_)
                            | Expr::Exists(_)
                            | Expr::InSubquery(_)
                            | Expr::SetComparison(_)
                    ))
                })?;
                if has_more || expr.is_volatile() {
                    return Err(refused("such value"));
                }
                let (schema, planning) = (DFSchema::empty(), PhysicalPlanningContext::default());
                let physical = create_physical_expr(expr, &schema, self.state.execution_props(), &planning)?;
                let options = RecordBatchOptions::new().with_row_count(Some(1));
                let row = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &options)?;
                ScalarValue::try_from_array(&physical.evaluate(&row)?.into_array(1)?, 0)?
            }
        };
        // A NULL without a type is of its column's.
        if value.data_type() == *data_type { Ok(value) } else { value.cast_to(data_type) }
    }
}
