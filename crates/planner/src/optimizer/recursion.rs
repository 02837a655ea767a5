//! What a recursive query's terms have in common.

use crate::rewrites::RewritePlan;
use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::{Cast, Expr, LogicalPlan, Projection};
use std::sync::Arc;

/// Marks the outputs of recursive terms as those of the first terms are marked, with the types that columns were declared with: DataFusion
/// takes no other rows for more of the same. To be done last, as its rules drop casts to the type that a value has.
pub fn settle(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut settle = |node: LogicalPlan| {
        let LogicalPlan::RecursiveQuery(mut query) = node else { return Ok(Transformed::no(node)) };
        let (wanted, own) = (query.schema.fields(), query.recursive_term.schema().clone());
        let is_marked = wanted.iter().zip(own.fields()).any(|(wanted, own)| wanted.metadata() != own.metadata());
        if !is_marked {
            return Ok(Transformed::no(LogicalPlan::RecursiveQuery(query)));
        }
        let marked = wanted.iter().enumerate().map(|(index, wanted)| {
            let (qualifier, field) = own.qualified_field(index);
            let column = Expr::Column((qualifier, field).into());
            match field.metadata() == wanted.metadata() {
                true => column,
                false => Expr::Cast(Cast::new_from_field(Box::new(column), wanted.clone()))
                    .alias_qualified(qualifier.cloned(), field.name()),
            }
        });
        let marked = marked.collect();
        query.recursive_term = Arc::new(LogicalPlan::Projection(Projection::try_new(marked, query.recursive_term)?));
        Ok(Transformed::yes(LogicalPlan::RecursiveQuery(query)))
    };
    Ok(plan.rewrite_up_with_subqueries(&mut settle)?.data)
}
