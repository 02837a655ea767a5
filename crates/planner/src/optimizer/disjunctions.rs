//! `(a AND b) OR (a AND c)` as `a AND (b OR c)`, in subqueries too: what they have in common with the query around may stand
//! in every branch, and they become joins only where it stands alone.

use crate::rewrites::RewritePlan;
use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::utils::{conjunction, disjunction, split_binary, split_conjunction};
use datafusion::logical_expr::{Expr, Filter, LogicalPlan, Operator};

/// A plan whose filters have what all branches of a disjunction ask for outside of it.
pub fn factor(plan: LogicalPlan) -> Result<LogicalPlan> {
    let factored = plan.rewrite_down_with_subqueries(&mut |node| {
        let LogicalPlan::Filter(filter) = &node else { return Ok(Transformed::no(node)) };
        let conjuncts = split_conjunction(&filter.predicate);
        let factored: Vec<Option<Expr>> = conjuncts.iter().map(|conjunct| factored(conjunct)).collect();
        if factored.iter().all(Option::is_none) {
            return Ok(Transformed::no(node));
        }
        let all = conjuncts.into_iter().zip(factored).map(|(old, new)| new.unwrap_or_else(|| old.clone()));
        let Some(predicate) = conjunction(all) else { return Ok(Transformed::no(node)) };
        Ok(Transformed::yes(LogicalPlan::Filter(Filter::try_new(predicate, filter.input.clone())?)))
    })?;
    Ok(factored.data)
}

/// `None` for what is no disjunction, or one whose branches have nothing in common.
fn factored(expr: &Expr) -> Option<Expr> {
    let branches: Vec<Vec<&Expr>> =
        split_binary(expr, Operator::Or).into_iter().map(|branch| split_conjunction(branch)).collect();
    let (first, others) = branches.split_first().filter(|(_, others)| !others.is_empty())?;
    let is_common = |conjunct: &&&Expr| !conjunct.is_volatile() && others.iter().all(|other| other.contains(conjunct));
    let common: Vec<&Expr> = first.iter().filter(is_common).copied().collect();
    if common.is_empty() {
        return None;
    }
    let rest = branches.iter().map(|branch| {
        let rest = branch.iter().filter(|conjunct| !common.contains(conjunct));
        conjunction(rest.map(|conjunct| (*conjunct).clone()))
    });
    // A branch that asks for nothing else lets pass whatever the others do.
    let rest: Option<Vec<Expr>> = rest.collect();
    conjunction(common.into_iter().cloned().chain(rest.and_then(disjunction)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::logical_expr::{col, lit};

    fn is(name: &str) -> Expr {
        col(name).eq(lit(1))
    }

    #[test]
    fn what_branches_have_in_common_comes_out_of_them() {
        let both = |one: &str, other: &str| is(one).and(is(other));
        let expected = is("a").and(is("b").or(is("c")));
        assert_eq!(factored(&both("a", "b").or(both("c", "a"))), Some(expected));
        assert_eq!(factored(&both("a", "b").or(both("a", "c")).or(is("a"))), Some(is("a")));
        assert_eq!(factored(&both("a", "b").or(both("c", "d"))), None);
        assert_eq!(factored(&both("a", "b")), None);
        assert_eq!(factored(&both("a", "b").or(both("b", "a"))), Some(both("a", "b")));
    }
}
