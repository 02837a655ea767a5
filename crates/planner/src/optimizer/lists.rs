//! `IN` lists of one expression that are asked for together, as one.
//!
//! DataFusion unites and intersects such lists as it simplifies: as if no item were NULL or another expression, and as if the
//! expression were never NULL itself. So it makes `x NOT IN (1) OR x NOT IN (2)` true for a NULL, and `x IN (a) AND x IN (b)` false
//! where `a = b`. Here such lists are put together with what NULL is in SQL, or written out if they cannot be, before it sees
//! them.

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{BinaryExpr, Expr, Operator, binary_expr, lit};
use std::borrow::Cow;
use std::collections::HashSet;

/// What is, or will be when DataFusion has simplified it, a list.
struct List<'a> {
    expr: &'a Expr,
    items: Vec<&'a Expr>,
    negated: bool,
}

fn list_of(expr: &Expr) -> Option<List<'_>> {
    match expr {
        Expr::InList(list) => Some(List { expr: &list.expr, items: list.list.iter().collect(), negated: list.negated }),
        Expr::Not(inner) => list_of(inner).map(|list| List { negated: !list.negated, ..list }),
        Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::Eq | Operator::NotEq), right }) => {
            let is_value = |expr: &Expr| !expr.any_column_refs();
            let (expr, item) = match (is_value(left), is_value(right)) {
                (false, true) => (left, right),
                (true, false) => (right, left),
                _ => return None,
            };
            Some(List { expr, items: vec![item], negated: *op == Operator::NotEq })
        }
        Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::And | Operator::Or), right }) => {
            let negated = *op == Operator::And;
            let right = list_of(right).filter(|list| list.negated == negated)?;
            let mut left = list_of(left).filter(|list| list.negated == negated && list.expr == right.expr)?;
            left.items.extend(right.items);
            Some(left)
        }
        _ => None,
    }
}

/// Whether it is not one comparison.
fn is_long(expr: &Expr) -> bool {
    match expr {
        Expr::Not(inner) => is_long(inner),
        Expr::BinaryExpr(BinaryExpr { op, .. }) => matches!(op, Operator::And | Operator::Or),
        _ => true,
    }
}

/// The two lists that DataFusion would put together wrongly. Two that tell one thing of more items are united without harm.
fn lists_of(expr: &Expr) -> Option<(List<'_>, Operator, List<'_>)> {
    let Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::And | Operator::Or), right }) = expr else {
        return None;
    };
    let meet = |list: &List<'_>| *op == Operator::And || list.negated;
    let second = list_of(right).filter(|list| is_long(right) && meet(list))?;
    let first = list_of(left).filter(|list| is_long(left) && meet(list))?;
    let unite = *op == Operator::And && first.negated && second.negated;
    (!unite).then_some((first, *op, second))
}

/// Whether these are two lists that may turn out to be of one expression.
pub(super) fn may_meet(expr: &Expr) -> bool {
    lists_of(expr).is_some_and(|(first, _, second)| {
        first.expr == second.expr || first.expr.column_refs() == second.expr.column_refs()
    })
}

/// With what it compares simplified, but not what comes of comparisons.
fn simplified(expr: Expr, simplify: &impl Fn(Expr) -> Result<Expr>) -> Result<Expr> {
    let is_whole = match &expr {
        Expr::Not(_) => false,
        Expr::BinaryExpr(BinaryExpr { op, .. }) => !matches!(op, Operator::And | Operator::Or),
        _ => true,
    };
    if is_whole {
        simplify(expr)
    } else {
        expr.map_children(|expr| simplified(expr, simplify).map(Transformed::yes)).data()
    }
}

/// One list, or two that nobody takes for lists of one expression, for what [`may_meet`]. `simplify` is told of what is compared.
pub(super) fn put_together(expr: Expr, simplify: &impl Fn(Expr) -> Result<Expr>) -> Result<Transformed<Expr>> {
    let expr = simplified(expr, simplify)?;
    let Some((first, op, second)) = lists_of(&expr).filter(|(first, _, second)| first.expr == second.expr) else {
        return Ok(Transformed::yes(expr));
    };
    let (Some(of_first), Some(of_second)) = (values(&first.items), values(&second.items)) else {
        return Ok(Transformed::yes(binary_expr(first.apart(), op, second.apart())));
    };
    let (kept, of_other, stays) = match (first.negated, second.negated) {
        (true, false) => (&second, of_first, false),
        (false, true) => (&first, of_second, false),
        _ => (&first, of_second, true),
    };
    let mut seen = HashSet::new();
    let is_kept = |value: Cow<'_, ScalarValue>| of_other.contains(&value) == stays && seen.insert(value.into_owned());
    let items = kept.items.iter().zip(values_in_order(&kept.items).map(is_kept));
    let list: Vec<Expr> = items.filter(|(_, is_kept)| *is_kept).map(|(item, _)| (*item).clone()).collect();
    let expr = kept.expr.clone();
    let negated = op == Operator::Or;
    let unknown = lit(ScalarValue::Boolean(None));
    Ok(Transformed::yes(match (list.is_empty(), negated) {
        (false, _) => expr.in_list(list, negated),
        (true, true) => expr.is_not_null().or(unknown),
        (true, false) => expr.is_null().and(unknown),
    }))
}

/// What literals are, none of them NULL.
fn values<'a>(items: &[&'a Expr]) -> Option<HashSet<Cow<'a, ScalarValue>>> {
    let are_values = items.iter().all(|item| matches!(item, Expr::Literal(value, _) if !value.is_null()));
    are_values.then(|| values_in_order(items).collect())
}

fn values_in_order<'a>(items: &[&'a Expr]) -> impl Iterator<Item = Cow<'a, ScalarValue>> {
    items.iter().filter_map(|item| match item {
        Expr::Literal(value, _) => Some(canonical(value)),
        _ => None,
    })
}

/// Zero has no sign in SQL.
fn canonical(value: &ScalarValue) -> Cow<'_, ScalarValue> {
    match value {
        ScalarValue::Float64(Some(zero)) if *zero == 0.0 => Cow::Owned(ScalarValue::Float64(Some(0.0))),
        ScalarValue::Float32(Some(zero)) if *zero == 0.0 => Cow::Owned(ScalarValue::Float32(Some(0.0))),
        value => Cow::Borrowed(value),
    }
}

impl List<'_> {
    /// As it is, if its items are values; else as comparisons with each, which nobody takes for a list.
    fn apart(&self) -> Expr {
        if values(&self.items).is_some() {
            return self.expr.clone().in_list(self.items.iter().map(|item| (*item).clone()).collect(), self.negated);
        }
        let (compare, together) =
            if self.negated { (Operator::NotEq, Operator::And) } else { (Operator::Eq, Operator::Or) };
        let compared = self.items.iter().map(|item| match item {
            Expr::Literal(value, _) if value.is_null() => lit(ScalarValue::Boolean(None)),
            item => binary_expr(self.expr.clone(), compare, (*item).clone()),
        });
        compared.reduce(|left, right| binary_expr(left, together, right)).unwrap_or_else(|| lit(self.negated))
    }
}
