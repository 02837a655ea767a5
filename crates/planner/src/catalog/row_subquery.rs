//! `(a, b) IN (SELECT …)`, which DataFusion's planner does not know, as `EXISTS`.
//!
//! At the top of `WHERE`, between `AND`s, a condition that is NULL is as good as one that is false. There,
//!
//! * `IN` is: some row of the query is equal;
//! * `NOT IN` is: there is none of which it is not certain that it differs.
//!
//! Elsewhere it is true if some row is equal, else NULL if of some it is not certain, else false.

use super::rewrite::{derived, empty_query, literal, number, select, table_alias, unnamed};
use super::syntax::compare_rows;
use datafusion::sql::sqlparser::ast::helpers::attached_token::AttachedToken;
use datafusion::sql::sqlparser::ast::*;

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
    let Expr::InSubquery { expr: value, subquery, negated } = expr else { return };
    let mut again = (**subquery).clone();
    let Some(equal) = exists_where(value, subquery, false, |equal| equal) else { return };
    let uncertain = |equal| Expr::IsNull(Box::new(equal));
    let Some(uncertain) = exists_where(value, &mut again, false, uncertain) else { return };
    let truth = |is| literal(Value::Boolean(is));
    let when = |condition, result| CaseWhen { condition, result };
    *expr = Expr::Case {
        case_token: AttachedToken::empty(),
        end_token: AttachedToken::empty(),
        operand: None,
        conditions: vec![when(equal, truth(!*negated)), when(uncertain, literal(Value::Null))],
        else_result: Some(Box::new(truth(*negated))),
    };
}

fn exists(value: &Expr, subquery: &mut Query, negated: bool) -> Option<Expr> {
    let condition = |equal| if negated { Expr::IsNotFalse(Box::new(equal)) } else { equal };
    exists_where(value, subquery, negated, condition)
}

/// Whether some row of the query fulfils what `condition` makes of that it is equal. `None` when the value is no row.
fn exists_where(
    value: &Expr,
    subquery: &mut Query,
    negated: bool,
    condition: impl FnOnce(Expr) -> Expr,
) -> Option<Expr> {
    let fields = match value {
        Expr::Tuple(fields) => fields,
        Expr::Nested(inner) => match &**inner {
            Expr::Tuple(fields) => fields,
            _ => return None,
        },
        _ => return None,
    };
    // No other name is like these, so that the fields mean what they did outside.
    let names = (0..fields.len()).map(|place| Ident::with_quote('"', format!("field {place} of a row")));
    let names: Vec<Ident> = names.collect();
    let columns: Vec<Expr> = names.iter().cloned().map(Expr::Identifier).collect();
    let equal = compare_rows(fields, &BinaryOperator::Eq, &columns)?;
    let columns = names.into_iter().map(|name| TableAliasColumnDef { name, data_type: None }).collect();
    let alias = table_alias(Ident::with_quote('"', "rows of a query"), columns);
    let rows = derived(std::mem::replace(subquery, empty_query()), alias);
    let mut query = select(vec![unnamed(number(1))], vec![TableWithJoins { relation: rows, joins: vec![] }]);
    if let SetExpr::Select(select) = &mut *query.body {
        select.selection = Some(condition(equal));
    }
    Some(Expr::Exists { subquery: Box::new(query), negated })
}
