//! `(a, b) IN (SELECT …)`, and other comparisons of rows with those of a query, which DataFusion's planner does not know, as `EXISTS`.
//!
//! At the top of `WHERE`, between `AND`s, a condition that is NULL is as good as one that is false. There,
//!
//! * `IN` is: some row of the query is equal;
//! * `NOT IN` is: there is none of which it is not certain that it differs.
//!
//! Elsewhere it is true if some row is equal, else NULL if of some it is not certain, else false.

use super::rewrite::{derived, empty_query, literal, number, select, table_alias, take, unnamed};
use super::syntax::{compare_rows, row_of};
use crate::names::expression_name;
use datafusion::sql::sqlparser::ast::helpers::attached_token::AttachedToken;
use datafusion::sql::sqlparser::ast::*;
use std::collections::HashSet;

/// What is at the top of a condition.
pub fn conditions(expr: &mut Expr) {
    match expr {
        Expr::BinaryOp { left, op: BinaryOperator::And, right } => {
            conditions(left);
            conditions(right);
        }
        Expr::Nested(inner) => conditions(inner),
        Expr::InSubquery { expr: value, subquery, negated } => {
            if let Some(exists) = exists(value, subquery, *negated) {
                *expr = exists;
            }
        }
        _ => {}
    }
}

/// Anywhere else.
pub fn value(expr: &mut Expr) {
    // What some row is, of which it is that the comparison with all is false.
    let (value, op, query, negated) = match expr {
        Expr::InSubquery { expr: value, subquery, negated } => (value, BinaryOperator::Eq, subquery, *negated),
        Expr::AnyOp { left, compare_op, right, .. } => match right.as_mut() {
            Expr::Subquery(query) => (left, compare_op.clone(), query, false),
            _ => return,
        },
        Expr::AllOp { left, compare_op, right } => match (right.as_mut(), opposite(compare_op)) {
            (Expr::Subquery(query), Some(opposite)) => (left, opposite, query, true),
            _ => return,
        },
        _ => return,
    };
    if row_of(unnested(value)).is_none() {
        return;
    }
    let mut again = query.as_ref().clone();
    let Some(true_of) = exists_where(value, &op, query, false, |compared| compared) else { return };
    let uncertain = |compared| Expr::IsNull(Box::new(compared));
    let Some(uncertain) = exists_where(value, &op, &mut again, false, uncertain) else { return };
    let truth = |is| literal(Value::Boolean(is));
    let when = |condition, result| CaseWhen { condition, result };
    *expr = Expr::Case {
        case_token: AttachedToken::empty(),
        end_token: AttachedToken::empty(),
        operand: None,
        conditions: vec![when(true_of, truth(!negated)), when(uncertain, literal(Value::Null))],
        else_result: Some(Box::new(truth(negated))),
    };
}

/// What is true where a comparison is false.
fn opposite(op: &BinaryOperator) -> Option<BinaryOperator> {
    use BinaryOperator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    Some(match op {
        Eq => NotEq,
        NotEq => Eq,
        Lt => GtEq,
        GtEq => Lt,
        Gt => LtEq,
        LtEq => Gt,
        _ => return None,
    })
}

fn unnested(expr: &Expr) -> &Expr {
    match expr {
        Expr::Nested(inner) => inner,
        expr => expr,
    }
}

fn exists(value: &Expr, subquery: &mut Query, negated: bool) -> Option<Expr> {
    let condition = |equal| if negated { Expr::IsNotFalse(Box::new(equal)) } else { equal };
    exists_where(value, &BinaryOperator::Eq, subquery, negated, condition)
}

/// Whether some row of the query fulfils what `condition` makes of a comparison with it. `None` when the value is no row.
fn exists_where(
    value: &Expr,
    op: &BinaryOperator,
    subquery: &mut Query,
    negated: bool,
    condition: impl FnOnce(Expr) -> Expr,
) -> Option<Expr> {
    let fields = row_of(unnested(value))?;
    // No other name is like these, so that the fields mean what they did outside.
    let names = (0..fields.len()).map(|place| Ident::with_quote('"', format!("field {place} of a row")));
    let names: Vec<Ident> = names.collect();
    let columns: Vec<Expr> = names.iter().cloned().map(Expr::Identifier).collect();
    let compared = compare_rows(&fields, op, &columns)?;
    name_alike(subquery);
    let columns = names.into_iter().map(|name| TableAliasColumnDef { name, data_type: None }).collect();
    let alias = table_alias(Ident::with_quote('"', "rows of a query"), columns);
    let rows = derived(std::mem::replace(subquery, empty_query()), alias);
    let mut query = select(vec![unnamed(number(1))], vec![TableWithJoins { relation: rows, joins: vec![] }]);
    if let SetExpr::Select(select) = &mut *query.body {
        select.selection = Some(condition(compared));
    }
    Some(Expr::Exists { subquery: Box::new(query), negated })
}

/// Outputs of one name get others, which nobody asks for: a relation has each once.
fn name_alike(query: &mut Query) {
    let SetExpr::Select(select) = &mut *query.body else { return };
    let mut names = HashSet::new();
    for (place, item) in select.projection.iter_mut().enumerate() {
        let name = match item {
            SelectItem::UnnamedExpr(expr) => expression_name(expr),
            SelectItem::ExprWithAlias { alias, .. } => alias.value.clone(),
            _ => return,
        };
        if !names.insert(name)
            && let SelectItem::UnnamedExpr(expr) = item
        {
            let alias = Ident::with_quote('"', format!("output {place} of a row"));
            *item = SelectItem::ExprWithAlias { expr: take(expr), alias };
        }
    }
}
