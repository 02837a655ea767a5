//! `ORDER BY` with expressions: their names are columns of the input, never names of outputs, which only a name alone can be.
//!
//! DataFusion looks for outputs first. So outputs that have the name of something within such an expression go by another
//! while the query is planned.

use crate::statement::fold;
use crate::walk::walk_mut;
use datafusion::common::Column;
use datafusion::logical_expr::{Expr as PlanExpr, LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::sqlparser::ast::{Expr, Ident, OrderByKind, Query, SelectItem, SetExpr, VisitorMut};
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use tidepool_base::Result;

/// By the names that outputs go by, their own. Empty where nothing had to be done.
pub type OwnNames = HashMap<String, String>;

/// Renames the outputs of a query that names in its order would be taken for.
pub fn separate(query: &mut Query) -> OwnNames {
    let mut own = OwnNames::new();
    let Query { body, order_by: Some(order_by), .. } = query else { return own };
    let (SetExpr::Select(select), OrderByKind::Expressions(keys)) = (body.as_mut(), &mut order_by.kind) else {
        return own;
    };
    let mut named = Names { found: HashSet::new(), depth: 0 };
    for key in keys.iter_mut().filter(|key| name_alone(&key.expr).is_none()) {
        let _ = walk_mut(&mut key.expr, &mut named);
    }
    if named.found.is_empty() {
        return own;
    }
    for item in &mut select.projection {
        let SelectItem::ExprWithAlias { alias, expr } = item else { continue };
        let name = fold(alias);
        let is_itself = match expr {
            Expr::Identifier(column) => fold(column) == name,
            Expr::CompoundIdentifier(parts) => parts.last().is_some_and(|column| fold(column) == name),
            _ => false,
        };
        if named.found.contains(&name) && !is_itself {
            let other = format!("\u{1}{name}");
            for key in keys.iter_mut() {
                if name_alone(&key.expr).is_some_and(|key| fold(key) == name) {
                    key.expr = Expr::Identifier(Ident::with_quote('"', &other));
                }
            }
            *alias = Ident::with_quote('"', &other);
            own.insert(other, name);
        }
    }
    own
}

fn name_alone(expr: &Expr) -> Option<&Ident> {
    match expr {
        Expr::Identifier(name) => Some(name),
        Expr::Nested(inner) => name_alone(inner),
        _ => None,
    }
}

/// The plan with its outputs under their own names again.
pub fn restore(plan: LogicalPlan, own: &OwnNames) -> Result<LogicalPlan> {
    if own.is_empty() {
        return Ok(plan);
    }
    let outputs: Vec<PlanExpr> = plan
        .schema()
        .iter()
        .map(|output| {
            // Where a column has that name, too, who shows the outputs knows how they are called.
            let is_free = |name: &&String| plan.schema().fields().iter().all(|field| field.name() != *name);
            let name = own.get(output.1.name()).filter(is_free).cloned();
            let column = PlanExpr::Column(Column::from(output));
            match name {
                Some(name) => column.alias(name),
                None => column,
            }
        })
        .collect();
    let restored = LogicalPlanBuilder::from(plan).project(outputs).and_then(LogicalPlanBuilder::build);
    restored.map_err(crate::errors::from_datafusion)
}

/// Names of columns, outside of queries.
struct Names {
    found: HashSet<String>,
    depth: usize,
}

impl VisitorMut for Names {
    type Break = ();

    fn pre_visit_query(&mut self, _query: &mut Query) -> ControlFlow<()> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _query: &mut Query) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if self.depth == 0 {
            match expr {
                Expr::Identifier(name) => drop(self.found.insert(fold(name))),
                // A column of a relation, which an output of its name would make ambiguous.
                Expr::CompoundIdentifier(parts) => self.found.extend(parts.last().map(fold)),
                _ => {}
            }
        }
        ControlFlow::Continue(())
    }
}
