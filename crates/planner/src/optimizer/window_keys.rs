//! Windows partitioned by expressions, as windows partitioned by columns.
//!
//! DataFusion 55 sorts a window's input by the partition's expressions in their normal form, in which columns that a join or a filter
//! makes equal are one, and then does not know the expressions as they were for what it has sorted by ("All partition by columns should
//! have an ordering"). Columns it knows. So expressions become columns of a projection below, and one above drops them again.

use datafusion::common::alias::AliasGenerator;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, Result};
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::{Expr, LogicalPlan, Projection, Window};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};
use std::sync::Arc;

#[derive(Debug)]
pub struct WindowKeys;

impl OptimizerRule for WindowKeys {
    fn name(&self) -> &str {
        "window_keys"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        match plan {
            LogicalPlan::Window(window) => by_columns(window, config.alias_generator()),
            other => Ok(Transformed::no(other)),
        }
    }
}

fn by_columns(window: Window, names: &AliasGenerator) -> Result<Transformed<LogicalPlan>> {
    let mut keys: Vec<(Expr, String)> = Vec::new();
    let mut functions = window.window_expr.clone();
    for function in functions.iter_mut().filter_map(function_of) {
        for key in &mut function.params.partition_by {
            if key.column_refs().is_empty() || matches!(key, Expr::Column(_)) {
                continue;
            }
            let expression = std::mem::take(key);
            let name = match keys.iter().find(|(known, _)| *known == expression) {
                Some((_, name)) => name.clone(),
                None => {
                    keys.push((expression, names.next("__partition")));
                    keys[keys.len() - 1].1.clone()
                }
            };
            *key = Expr::Column(Column::new_unqualified(name));
        }
    }
    if keys.is_empty() {
        return Ok(Transformed::no(LogicalPlan::Window(window)));
    }

    let input_columns = || window.input.schema().iter().map(|field| Expr::Column(Column::from(field)));
    let keys = keys.into_iter().map(|(key, name)| key.alias(name));
    let keyed = Projection::try_new(input_columns().chain(keys).collect(), window.input.clone())?;
    let keyed = Window::try_new(functions, Arc::new(LogicalPlan::Projection(keyed)))?;

    // The functions' columns are named by their texts, which name the partitions.
    let computed = keyed.schema.iter().skip(keyed.input.schema().fields().len());
    let meant = window.schema.iter().skip(window.input.schema().fields().len());
    let computed = computed.zip(meant).map(|(computed, (qualifier, field))| {
        Expr::Column(Column::from(computed)).alias_qualified(qualifier.cloned(), field.name())
    });
    let columns = input_columns().chain(computed).collect();
    let restored =
        Projection::try_new_with_schema(columns, Arc::new(LogicalPlan::Window(keyed)), window.schema.clone())?;
    Ok(Transformed::yes(LogicalPlan::Projection(restored)))
}

fn function_of(expr: &mut Expr) -> Option<&mut WindowFunction> {
    match expr {
        Expr::WindowFunction(function) => Some(function),
        Expr::Alias(alias) => function_of(&mut alias.expr),
        _ => None,
    }
}
