//! Outputs beside set-returning functions that have the name of a column, and orders by what is no output.
//!
//! DataFusion expands a set-returning function over a projection of the other outputs, by their names, and of the columns that are read
//! beside them: an output of such a column's name would be there twice, and a column that is read by the order alone is not there. So the
//! outputs, and what orders them, get names that no column has, in a query of their own, and outputs have their own names around it.

use crate::catalog::{derived, select, table_alias};
use crate::names::expression_name;
use crate::statement::fold;
use crate::walk::{walk, walk_mut};
use datafusion::sql::sqlparser::ast::{
    Distinct, Expr, GroupByExpr, Ident, OrderByExpr, OrderByKind, Query, Select, SelectItem, SetExpr, TableWithJoins,
    Value, Visitor, VisitorMut,
};
use std::collections::HashSet;
use std::ops::ControlFlow;

/// Separates outputs that share a column's name, of a query that could not be planned for this, and of all queries within it.
pub fn separate(query: &mut Query) {
    let _ = walk_mut(query, &mut Queries { all: true });
}

/// Separates those of queries that are ordered by what is no output.
pub fn separate_orders(query: &mut Query) {
    let _ = walk_mut(query, &mut Queries { all: false });
}

struct Queries {
    /// Also where only a name is shared.
    all: bool,
}

impl VisitorMut for Queries {
    type Break = ();

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        let keys = match query.order_by.as_mut().map(|order| &mut order.kind) {
            Some(OrderByKind::Expressions(keys)) => keys.as_mut_slice(),
            Some(OrderByKind::All(_)) => return ControlFlow::Continue(()),
            None => &mut [],
        };
        self.separate_body(&mut query.body, keys);
        ControlFlow::Continue(())
    }
}

impl Queries {
    /// `keys`: by which the rows are ordered.
    fn separate_body(&self, body: &mut SetExpr, keys: &mut [OrderByExpr]) {
        match body {
            SetExpr::Select(select) => {
                let orders_by_outputs = keys.iter().all(|key| is_output(&select.projection, &key.expr));
                if (self.all || !orders_by_outputs)
                    && is_separable(select, orders_by_outputs)
                    && let Some(separated) = separated(select, keys)
                {
                    **select = separated;
                }
            }
            // A name alone orders these.
            SetExpr::SetOperation { left, right, .. } => {
                self.separate_body(left, &mut []);
                self.separate_body(right, &mut []);
            }
            _ => {}
        }
    }
}

/// A query of the outputs under their names, over one in which they have others. `None`: not all of them are known.
fn separated(within: &Select, keys: &mut [OrderByExpr]) -> Option<Select> {
    let original = within;
    let mut within = within.clone();
    let mut outputs = Vec::new();
    for (place, item) in within.projection.iter_mut().enumerate() {
        let (expr, name) = match item {
            SelectItem::UnnamedExpr(expr) => {
                let name = expression_name(expr);
                (expr.clone(), Ident::with_quote('"', name))
            }
            SelectItem::ExprWithAlias { expr, alias } => (expr.clone(), alias.clone()),
            _ => return None,
        };
        let inner = Ident::with_quote('"', format!("\u{1}{place}"));
        outputs.push(SelectItem::ExprWithAlias { expr: Expr::Identifier(inner.clone()), alias: name });
        *item = SelectItem::ExprWithAlias { expr, alias: inner };
    }
    for (place, key) in keys.iter_mut().enumerate().filter(|(_, key)| !is_output(&original.projection, &key.expr)) {
        let inner = Ident::with_quote('"', format!("\u{1}order{place}"));
        let expr = std::mem::replace(&mut key.expr, Expr::Identifier(inner.clone()));
        within.projection.push(SelectItem::ExprWithAlias { expr, alias: inner });
    }
    let mut rows = select(Vec::new(), Vec::new());
    rows.body = Box::new(SetExpr::Select(Box::new(within)));
    let relation = derived(rows, table_alias(Ident::with_quote('"', "\u{1}set"), Vec::new()));
    match *select(outputs, vec![TableWithJoins { relation, joins: Vec::new() }]).body {
        SetExpr::Select(select) => Some(*select),
        _ => None,
    }
}

/// Whether an output beside a set-returning function has the name of a column that is read, or rows are ordered by what is no output, and the
/// other clauses can be as they are.
fn is_separable(select: &Select, orders_by_outputs: bool) -> bool {
    let is_distinct_on = matches!(select.distinct, Some(Distinct::On(_)));
    if select.into.is_some() || is_distinct_on {
        return false;
    }
    let mut columns = Columns { found: HashSet::new(), expands: false, depth: 0 };
    let mut renamed = HashSet::new();
    for item in &select.projection {
        match item {
            SelectItem::UnnamedExpr(_) => {}
            SelectItem::ExprWithAlias { expr, alias } => {
                let name = fold(alias);
                if expression_name(expr) != name || !matches!(expr, Expr::Identifier(_) | Expr::CompoundIdentifier(_)) {
                    renamed.insert(name);
                }
            }
            _ => return false,
        }
        let _ = walk(item, &mut columns);
    }
    let is_renamed = |key: &Expr| matches!(key, Expr::Identifier(name) if renamed.contains(&fold(name)));
    let groups_by_output = match &select.group_by {
        GroupByExpr::Expressions(keys, _) => keys.iter().any(is_renamed),
        GroupByExpr::All(_) => true,
    };
    let is_shared = |name: &String| columns.found.contains(name);
    // What distinct rows are ordered by is among their outputs, or else refused.
    columns.expands
        && (renamed.iter().any(is_shared) || !orders_by_outputs)
        && (select.distinct.is_none() || orders_by_outputs)
        && !groups_by_output
}

/// Whether a key of an order is an output, by its name or its place.
fn is_output(projection: &[SelectItem], key: &Expr) -> bool {
    match key {
        Expr::Identifier(name) => projection.iter().any(|item| match item {
            SelectItem::UnnamedExpr(expr) => expression_name(expr) == fold(name),
            SelectItem::ExprWithAlias { alias, .. } => fold(alias) == fold(name),
            _ => false,
        }),
        Expr::Value(value) => matches!(value.value, Value::Number(..)),
        _ => false,
    }
}

/// Names of columns, and whether there is a set-returning function, outside of queries. All of those are calls of `unnest` by now.
struct Columns {
    found: HashSet<String>,
    expands: bool,
    depth: usize,
}

impl Visitor for Columns {
    type Break = ();

    fn pre_visit_query(&mut self, _query: &Query) -> ControlFlow<()> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _query: &Query) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        match expr {
            Expr::Identifier(name) if self.depth == 0 => drop(self.found.insert(fold(name))),
            Expr::CompoundIdentifier(parts) if self.depth == 0 => self.found.extend(parts.last().map(fold)),
            Expr::Function(function) if self.depth == 0 => {
                let name = function.name.0.last().and_then(|part| part.as_ident()).map(fold);
                self.expands |= name.as_deref() == Some("unnest");
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}
