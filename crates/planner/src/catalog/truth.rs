//! Where within an expression it can be seen whether a comparison with a query's rows is false or unknown.
//!
//! `WHERE`, `HAVING` and `ON` keep a row if their condition is true. As far as only `AND` and `OR` lie between, a part of such a condition
//! may as well be false where it is unknown, which is what semi and mark joins make of it. Anywhere else there are three values.

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::expr::{Exists, InSubquery, SetComparison, SetQuantifier};
use datafusion::logical_expr::{BinaryExpr, Expr, LogicalPlan, Operator};

/// What becomes of an expression's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It is a condition, or one of those that `AND` makes a condition of.
    Conjunct,
    /// It is a part of a condition, for which false is as good as unknown.
    Condition,
    /// Anything.
    Value,
}

impl Place {
    /// The place of an operator's expressions.
    pub fn within(node: &LogicalPlan) -> Place {
        match node {
            LogicalPlan::Filter(_) => Place::Conjunct,
            // The keys of a join are values that are compared.
            LogicalPlan::Join(join) if join.on.is_empty() => Place::Condition,
            _ => Place::Value,
        }
    }

    pub fn shows_unknown(self) -> bool {
        self == Place::Value
    }
}

/// Rewrites an expression from its innermost parts outwards; `rewrite` is told each part's place. `NOT` goes into the comparisons with rows
/// of queries that it stands before, and before `EXISTS`.
pub fn transform(
    expr: Expr,
    place: Place,
    rewrite: &mut dyn FnMut(Expr, Place) -> Result<Transformed<Expr>>,
) -> Result<Transformed<Expr>> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::And | Operator::Or), right })
            if !place.shows_unknown() =>
        {
            let below = if op == Operator::And { place } else { Place::Condition };
            let left = transform(*left, below, rewrite)?;
            let right = transform(*right, below, rewrite)?;
            let changed = left.transformed || right.transformed;
            let (left, right) = (Box::new(left.data), Box::new(right.data));
            Ok(Transformed::new_transformed(Expr::BinaryExpr(BinaryExpr { left, op, right }), changed))
        }
        Expr::Not(inner) => match opposite(*inner) {
            Ok(opposite) => Ok(Transformed::yes(transform(opposite, place, rewrite)?.data)),
            Err(inner) => {
                let inner = transform(inner, Place::Value, rewrite)?;
                Ok(inner.update_data(|inner| Expr::Not(Box::new(inner))))
            }
        },
        expr => expr
            .map_children(|part| transform(part, Place::Value, &mut *rewrite))?
            .transform_parent(|expr| rewrite(expr, place)),
    }
}

/// What `NOT` makes of a query's answer. The expression itself, if it is none.
fn opposite(expr: Expr) -> std::result::Result<Expr, Expr> {
    match expr {
        Expr::InSubquery(of) => Ok(Expr::InSubquery(InSubquery { negated: !of.negated, ..of })),
        Expr::Exists(of) => Ok(Expr::Exists(Exists { negated: !of.negated, ..of })),
        Expr::SetComparison(of) => match of.op.negate() {
            Some(op) => {
                let quantifier = match of.quantifier {
                    SetQuantifier::Any => SetQuantifier::All,
                    SetQuantifier::All => SetQuantifier::Any,
                };
                Ok(Expr::SetComparison(SetComparison { op, quantifier, ..of }))
            }
            None => Err(Expr::SetComparison(of)),
        },
        expr => Err(expr),
    }
}
