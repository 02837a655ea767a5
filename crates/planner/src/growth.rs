//! What expressions become when they are written out.
//!
//! DataFusion writes `x BETWEEN a AND b` and `coalesce(x, y)` with `x` twice, so one within the other doubles with each level; and a filter takes the
//! place of the columns that it is pushed through. A statement that comes to too much that way is refused before it is, with PostgreSQL's error for what
//! is nested too deep.

use crate::errors::carry;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result};
use datafusion::logical_expr::{Between, Case, Expr, Filter, LogicalPlan};
use tidepool_base::{Error, SqlState};

/// Parts that an expression may have, written out, beyond so many times those that it has.
const PARTS_MAX: usize = 2_000;
const GROWTH_MAX: usize = 4;

/// Parts that a filter may have, literals left out: it takes the place of columns.
const FILTER_PARTS_MAX: usize = 500_000;

/// 54001 for a plan with expressions that are too much when they are written out.
pub fn check(plan: &LogicalPlan) -> Result<()> {
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            let written = written_out(expr);
            // Few have so many: only then it is counted how many there are.
            if written > PARTS_MAX && written > parts(expr, |_| true)?.saturating_mul(GROWTH_MAX) {
                return Err(too_much("An expression has too many parts once BETWEEN and COALESCE are written out."));
            }
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(())
}

/// The same for a filter on its way through the columns that it names.
pub fn check_filter(filter: &Filter) -> Result<()> {
    if parts(&filter.predicate, |part| !matches!(part, Expr::Literal(..)))? > FILTER_PARTS_MAX {
        return Err(too_much("A condition has too many parts once the columns that it names are written out."));
    }
    Ok(())
}

fn too_much(detail: &str) -> DataFusionError {
    carry(Error::new(SqlState::STATEMENT_TOO_COMPLEX, "stack depth limit exceeded").with_detail(detail))
}

fn parts(expr: &Expr, counts: impl Fn(&Expr) -> bool) -> Result<usize> {
    let mut parts = 0;
    expr.apply(|part| {
        parts += usize::from(counts(part));
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(parts)
}

fn written_out(expr: &Expr) -> usize {
    match expr {
        Expr::Between(Between { expr, low, high, .. }) => {
            twice(written_out(expr)).saturating_add(written_out(low)).saturating_add(written_out(high))
        }
        Expr::ScalarFunction(call) if matches!(call.func.name(), "coalesce" | "nvl" | "nvl2") => {
            let args = choices(&call.args);
            args.iter().fold(1usize, |sum, arg| sum.saturating_add(twice(written_out(arg))))
        }
        expr => {
            let mut parts = 1usize;
            // Nothing that it calls fails.
            let _ = expr.apply_children(|child| {
                parts = parts.saturating_add(written_out(child));
                Ok(TreeNodeRecursion::Continue)
            });
            parts
        }
    }
}

fn twice(parts: usize) -> usize {
    parts.saturating_mul(2).saturating_add(1)
}

/// What `coalesce` chooses from, with those of another one in place of that: it chooses among them in the same order.
pub fn choices(args: &[Expr]) -> Vec<&Expr> {
    fn gather<'e>(arg: &'e Expr, found: &mut Vec<&'e Expr>) {
        match arg {
            Expr::ScalarFunction(call) if call.func.name() == "coalesce" => {
                call.args.iter().for_each(|arg| gather(arg, found));
            }
            Expr::Case(case) => match chosen(case) {
                Some(parts) => parts.into_iter().for_each(|part| gather(part, found)),
                None => found.push(arg),
            },
            arg => found.push(arg),
        }
    }
    let mut found = Vec::new();
    args.iter().for_each(|arg| gather(arg, &mut found));
    found
}

/// What a `coalesce` that is written out chooses from.
fn chosen(case: &Case) -> Option<Vec<&Expr>> {
    if case.expr.is_some() || case.when_then_expr.is_empty() {
        return None;
    }
    let mut parts = Vec::with_capacity(case.when_then_expr.len() + 1);
    for (when, then) in &case.when_then_expr {
        match when.as_ref() {
            Expr::IsNotNull(of) if of == then => parts.push(then.as_ref()),
            _ => return None,
        }
    }
    parts.extend(case.else_expr.as_deref());
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::functions::core::coalesce;
    use datafusion::logical_expr::{col, lit, when};

    #[test]
    fn what_is_written_twice_counts_twice() {
        let mut nested = col("a");
        for _ in 0..20 {
            nested = nested.between(lit(false), lit(true));
        }
        assert!(written_out(&nested) > 1 << 20);
        let mut chosen = col("a");
        for _ in 0..200 {
            chosen = coalesce().call(vec![chosen, lit(1)]);
        }
        assert!(written_out(&chosen) < 2_000);
        let case = when(col("a").is_not_null(), col("a")).otherwise(chosen).unwrap();
        let Expr::Case(case) = case else { panic!("a case") };
        assert_eq!(super::chosen(&case).unwrap().len(), 2);
        assert_eq!(choices(&[Expr::Case(case)]).len(), 202);
    }
}
