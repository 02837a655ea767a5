//! Inputs of unions, their columns called as the union's.
//!
//! Where all inputs but one turn out to be empty, DataFusion takes the union's names for that one's.

use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, Result};
use datafusion::logical_expr::{Expr, LogicalPlan, Projection};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};
use std::sync::Arc;

/// Goes before empty relations are looked for.
#[derive(Debug)]
pub struct UnionNames;

impl OptimizerRule for UnionNames {
    fn name(&self) -> &str {
        "tidepool_union_names"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Union(mut union) = plan else { return Ok(Transformed::no(plan)) };
        let mut found = false;
        for input in &mut union.inputs {
            let names = input.schema().fields().iter().zip(union.schema.fields());
            if names.into_iter().all(|(own, meant)| own.name() == meant.name()) {
                continue;
            }
            let outputs = input.schema().iter().zip(union.schema.fields());
            let outputs = outputs.map(|(own, meant)| Expr::Column(Column::from(own)).alias(meant.name())).collect();
            *input = Arc::new(LogicalPlan::Projection(Projection::try_new(outputs, Arc::clone(input))?));
            found = true;
        }
        Ok(Transformed::new_transformed(LogicalPlan::Union(union), found))
    }
}
