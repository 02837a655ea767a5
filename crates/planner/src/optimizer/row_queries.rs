//! Rows of `VALUES` that have subqueries become queries of a row each: DataFusion computes `VALUES` while it plans, and no
//! subquery for it.

use super::passes::has_query;
use crate::rewrites::RewritePlan;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchema, DFSchemaRef, Result};
use datafusion::logical_expr::{
    Cast, EmptyRelation, Expr, ExprSchemable, LogicalPlan, Projection, Sort, Union, Values, lit,
};
use datafusion::optimizer::AnalyzerRule;
use std::sync::Arc;

/// No column of anybody's.
const ROW_NUMBER: &str = "\u{1}row";

#[derive(Debug)]
pub struct RowQueries;

impl AnalyzerRule for RowQueries {
    fn name(&self) -> &str {
        "tidepool_row_queries"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        let rewritten = plan.rewrite_up_with_subqueries(&mut |node| match node {
            LogicalPlan::Values(values) if values.values.iter().flatten().any(has_query) => {
                queries(values).map(Transformed::yes)
            }
            node => Ok(Transformed::no(node)),
        })?;
        Ok(rewritten.data)
    }
}

/// The rows in their order; those between that have none stay together.
fn queries(values: Values) -> Result<LogicalPlan> {
    let Values { schema, values } = values;
    if let [row] = values.as_slice() {
        return query(row.clone(), schema.fields());
    }
    // Nothing else says which comes first once they are several queries.
    let number = Field::new(ROW_NUMBER, DataType::Int64, false);
    let fields: Vec<FieldRef> = schema.fields().iter().cloned().chain([Arc::new(number)]).collect();
    let numbered = Schema::new(fields.clone());
    let numbered: DFSchemaRef = Arc::new(DFSchema::try_from(numbered)?);
    let (mut inputs, mut plain) = (Vec::new(), Vec::new());
    let flush = |plain: &mut Vec<Vec<Expr>>, inputs: &mut Vec<Arc<LogicalPlan>>| {
        if !plain.is_empty() {
            let values = std::mem::take(plain);
            inputs.push(Arc::new(LogicalPlan::Values(Values { schema: Arc::clone(&numbered), values })));
        }
    };
    for (mut row, number) in values.into_iter().zip(0i64..) {
        row.push(lit(number));
        if row.iter().any(has_query) {
            flush(&mut plain, &mut inputs);
            inputs.push(Arc::new(query(row, &fields)?));
        } else {
            plain.push(row);
        }
    }
    flush(&mut plain, &mut inputs);
    let input = Arc::new(LogicalPlan::Union(Union { inputs, schema: numbered }));
    let expr = vec![Expr::Column(Column::new_unqualified(ROW_NUMBER)).sort(true, false)];
    let sorted = Arc::new(LogicalPlan::Sort(Sort { expr, input, fetch: None }));
    let outputs = schema.columns().into_iter().map(Expr::Column).collect();
    Projection::try_new_with_schema(outputs, sorted, schema).map(LogicalPlan::Projection)
}

fn query(row: Vec<Expr>, fields: &[FieldRef]) -> Result<LogicalPlan> {
    let nothing: DFSchemaRef = Arc::new(DFSchema::empty());
    let output = |(expr, field): (Expr, &FieldRef)| -> Result<Expr> {
        let is_typed = expr.get_type(&nothing).is_ok_and(|data_type| data_type == *field.data_type());
        let expr = if is_typed { expr } else { Expr::Cast(Cast::new(Box::new(expr), field.data_type().clone())) };
        Ok(expr.alias(field.name()))
    };
    let outputs = row.into_iter().zip(fields).map(output).collect::<Result<Vec<_>>>()?;
    let empty = EmptyRelation { produce_one_row: true, schema: nothing };
    Projection::try_new(outputs, Arc::new(LogicalPlan::EmptyRelation(empty))).map(LogicalPlan::Projection)
}
