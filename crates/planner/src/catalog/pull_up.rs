//! Which correlated subqueries DataFusion may turn into joins.
//!
//! It takes the conditions over outer columns out of the subquery's filters and makes them the join's, whatever lies between.
//! That keeps a query's meaning where such a condition may as well be asked above every operator that lies over it: not
//! over a window or `DISTINCT ON`, which see other rows then, not from the side of an outer join that may be missing, and
//! over a grouping only where it says that a column equals something, which becomes a column to group by.

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchemaRef, Result};
use datafusion::logical_expr::logical_plan::{FetchType, SkipType};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{
    Aggregate, BinaryExpr, Distinct, Expr, Join, JoinType, Limit, LogicalPlan, Operator, Projection, Subquery, lit,
};
use datafusion::optimizer::decorrelate::PullUpCorrelatedExpr;

/// What is asked of a subquery's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Whether there is one: `EXISTS`.
    Existence,
    /// Whether a value is among them: `IN`.
    Membership,
    /// What is in the only one there is.
    Value,
    /// All of them: `LATERAL`.
    Rows,
}

impl Asked {
    /// Whether more rows that are alike change nothing.
    fn ignores_duplicates(self) -> bool {
        matches!(self, Asked::Existence | Asked::Membership)
    }
}

/// Whether DataFusion may turn a subquery into a join, and can.
pub fn can_pull_up(subquery: &Subquery, asked: Asked) -> Result<bool> {
    let mut pull_up = PullUpCorrelatedExpr::new()
        .with_exists_sub_query(asked == Asked::Existence)
        .with_need_handle_count_bug(!asked.ignores_duplicates());
    let plan = subquery.subquery.as_ref().clone();
    Ok(plan.rewrite(&mut pull_up).is_ok() && pull_up.can_pull_up && is_safe(&subquery.subquery, asked)?)
}

/// Whether conditions over outer columns mean the same at the top of a subquery as they do where they are.
fn is_safe(subquery: &LogicalPlan, asked: Asked) -> Result<bool> {
    Ok(Above { asked, is_plain: true, counts: false }.pulled(subquery)?.is_some_and(|columns| are_told_apart(&columns)))
}

/// DataFusion gives the subquery a name of its own, under which columns are told apart by their names alone.
fn are_told_apart(columns: &[Column]) -> bool {
    let alike = |column: &Column| columns.iter().filter(|other| other.name == column.name && *other != column).count();
    columns.iter().all(|column| alike(column) == 0)
}

/// The one row that a subquery always has, if that is known: an aggregate without groups.
pub fn has_one_row(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) => {
            plan.inputs().first().is_some_and(|input| has_one_row(input))
        }
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        _ => false,
    }
}

/// What lies above an operator within its subquery.
#[derive(Clone, Copy)]
struct Above {
    asked: Asked,
    /// Only what hands each row on.
    is_plain: bool,
    /// Something that looks at how many rows there are.
    counts: bool,
}

impl Above {
    /// The columns that conditions over outer columns name beside these, as a plan's outputs. `None`: the conditions cannot
    /// be asked above it.
    fn pulled(self, plan: &LogicalPlan) -> Result<Option<Vec<Column>>> {
        if !has_outer_columns(plan)? {
            return Ok(Some(Vec::new()));
        }
        let (refers, nested_refers) = outer_references(plan)?;
        if nested_refers || (refers && !matches!(plan, LogicalPlan::Filter(_))) {
            return Ok(None);
        }
        match plan {
            LogicalPlan::Filter(filter) => {
                let all = split_conjunction(&filter.predicate);
                let conditions: Vec<&Expr> =
                    all.iter().filter(|condition| condition.contains_outer()).copied().collect();
                for condition in &conditions {
                    if asks_correlated(condition)? {
                        return Ok(None);
                    }
                }
                if self.counts && !conditions.iter().all(|condition| equates_column(condition)) {
                    return Ok(None);
                }
                let pulled = Above { is_plain: false, ..self }.pulled(&filter.input)?;
                // A filter of which nothing is left makes DataFusion forget the columns that it knows of what is below.
                let is_all = conditions.len() == all.len();
                let may_forget =
                    matches!(filter.input.as_ref(), LogicalPlan::Filter(_) | LogicalPlan::SubqueryAlias(_));
                let pulled = pulled.filter(|columns| columns.is_empty() || !is_all || !may_forget);
                Ok(pulled.map(|mut columns| {
                    columns.extend(conditions.iter().flat_map(|condition| condition.column_refs()).cloned());
                    columns
                }))
            }
            LogicalPlan::Projection(projection) => {
                let pulled = self.pulled(&projection.input)?;
                let is_another = |column: &Column| {
                    let mut outputs = projection.schema.fields().iter().zip(&projection.expr);
                    outputs.any(|(field, expr)| {
                        let same = matches!(expr.clone().unalias(), Expr::Column(output) if output == *column);
                        *field.name() == column.name && !same
                    })
                };
                Ok(pulled.filter(|columns| !columns.iter().any(is_another)))
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let pulled = self.pulled(&alias.input)?.filter(|columns| are_told_apart(columns));
                let renamed = |column: Column| Column::new(Some(alias.alias.clone()), column.name);
                Ok(pulled.map(|columns| columns.into_iter().map(renamed).collect()))
            }
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => self.pulled(&sort.input),
            LogicalPlan::Limit(limit) => {
                let keeps_one = self.asked == Asked::Existence && self.is_plain && keeps_first(limit)?;
                if keeps_one { self.pulled(&limit.input) } else { Ok(None) }
            }
            LogicalPlan::Distinct(Distinct::All(input)) => {
                Above { counts: self.counts || !self.asked.ignores_duplicates(), ..self }.pulled(input)
            }
            LogicalPlan::Aggregate(aggregate) => self.pulled_over_aggregate(aggregate),
            LogicalPlan::Join(join) => self.pulled_over_join(join),
            _ => Ok(None),
        }
    }

    fn pulled_over_aggregate(self, aggregate: &Aggregate) -> Result<Option<Vec<Column>>> {
        if aggregate.group_expr.iter().any(|key| matches!(key, Expr::GroupingSet(_))) {
            return Ok(None);
        }
        // One row also where there is nothing to aggregate. A join does not find it, which DataFusion knows how to put
        // right at the top of a subquery alone.
        let is_put_right = !self.asked.ignores_duplicates() && self.is_plain && !self.counts;
        if aggregate.group_expr.is_empty() && !is_put_right {
            return Ok(None);
        }
        let counts = self.counts || !aggregate.aggr_expr.is_empty() || !self.asked.ignores_duplicates();
        Above { is_plain: false, counts, ..self }.pulled(&aggregate.input)
    }

    fn pulled_over_join(self, join: &Join) -> Result<Option<Vec<Column>>> {
        let (left, right) = match join.join_type {
            JoinType::Inner => (true, true),
            JoinType::Left => (true, false),
            JoinType::Right => (false, true),
            // `INTERSECT` and `EXCEPT`, which lose the column, are others.
            _ => (false, false),
        };
        let below = Above { is_plain: false, ..self };
        let side = |is_kept: bool, input: &LogicalPlan| match has_outer_columns(input)? {
            false => Ok(Some(Vec::new())),
            true if is_kept => below.pulled(input),
            true => Ok(None),
        };
        let of_right = match lateral(&join.right) {
            Some(subquery) => {
                let outer = outer_columns(&subquery.subquery)?;
                outer.iter().all(|(column, _)| join.left.schema().has_column(column)).then(Vec::new)
            }
            None => side(right, &join.right)?,
        };
        Ok(side(left, &join.left)?.zip(of_right).map(|(mut columns, of_right)| {
            columns.extend(of_right);
            columns
        }))
    }
}

/// The same for `EXISTS`, whatever the select list.
pub fn without_outputs(plan: &LogicalPlan) -> Result<Option<LogicalPlan>> {
    let LogicalPlan::Projection(projection) = plan else { return Ok(None) };
    Ok(Some(LogicalPlan::Projection(Projection::try_new(vec![lit(1)], projection.input.clone())?)))
}

/// `EXISTS` asks for no more than a first row.
fn keeps_first(limit: &Limit) -> Result<bool> {
    let skips_none = matches!(limit.get_skip_type()?, SkipType::Literal(0));
    Ok(skips_none && !matches!(limit.get_fetch_type()?, FetchType::UnsupportedExpr))
}

/// Whether a condition asks a query that names columns of the rows around it.
fn asks_correlated(condition: &Expr) -> Result<bool> {
    condition.exists(|expr| match queried(expr) {
        Some(subquery) => has_outer_columns(&subquery.subquery),
        None => Ok(false),
    })
}

/// The query that an expression asks.
fn queried(expr: &Expr) -> Option<&Subquery> {
    match expr {
        Expr::ScalarSubquery(subquery) => Some(subquery),
        Expr::Exists(exists) => Some(&exists.subquery),
        Expr::InSubquery(within) => Some(&within.subquery),
        Expr::SetComparison(comparison) => Some(&comparison.subquery),
        _ => None,
    }
}

/// `column = …` without other columns of the subquery, either way round.
fn equates_column(condition: &Expr) -> bool {
    let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = condition else { return false };
    match (left.as_ref(), right.as_ref()) {
        (Expr::Column(_), other) | (other, Expr::Column(_)) => !other.any_column_refs(),
        _ => false,
    }
}

/// The subquery that a join's right side is, if it is `LATERAL`, also under a name.
pub fn lateral(right: &LogicalPlan) -> Option<&Subquery> {
    match right {
        LogicalPlan::Subquery(subquery) => Some(subquery),
        LogicalPlan::SubqueryAlias(alias) => match alias.input.as_ref() {
            LogicalPlan::Subquery(subquery) => Some(subquery),
            _ => None,
        },
        _ => None,
    }
}

/// The columns of queries further out that a plan refers to, with the references.
pub fn outer_columns(plan: &LogicalPlan) -> Result<Vec<(Column, Expr)>> {
    let mut found = Vec::new();
    collect(plan, &mut Vec::new(), &mut found)?;
    Ok(found)
}

pub fn has_outer_columns(plan: &LogicalPlan) -> Result<bool> {
    Ok(!outer_columns(plan)?.is_empty())
}

/// Whether queries within an operator's expressions refer to outer columns.
pub fn refers_within_queries(plan: &LogicalPlan) -> Result<bool> {
    Ok(outer_references(plan)?.1)
}

/// Whether an operator's own expressions refer to outer columns, and whether queries within them do.
fn outer_references(plan: &LogicalPlan) -> Result<(bool, bool)> {
    let (mut direct, mut found) = (false, Vec::new());
    plan.apply_expressions(|expr| {
        direct |= expr.contains_outer();
        collect_nested(plan, expr, &mut Vec::new(), &mut found)
    })?;
    Ok((direct, !found.is_empty()))
}

/// `scopes` are the schemas of the queries between, and of what stands before a `LATERAL` one.
fn collect(plan: &LogicalPlan, scopes: &mut Vec<DFSchemaRef>, found: &mut Vec<(Column, Expr)>) -> Result<()> {
    plan.apply_expressions(|expr| {
        expr.apply(|expr| {
            if let Expr::OuterReferenceColumn(_, column) = expr {
                let own = scopes.iter().any(|schema| schema.has_column(column));
                if !own && !found.iter().any(|known| &known.0 == column) {
                    found.push((column.clone(), expr.clone()));
                }
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        collect_nested(plan, expr, scopes, found)
    })?;
    for input in plan.inputs() {
        let depth = scopes.len();
        if let LogicalPlan::Join(join) = plan
            && std::ptr::eq(input, join.right.as_ref())
            && lateral(&join.right).is_some()
        {
            scopes.push(join.left.schema().clone());
        }
        collect(input, scopes, found)?;
        scopes.truncate(depth);
    }
    Ok(())
}

/// What queries within an operator's expression refer to, beyond the operator's own inputs.
fn collect_nested(
    plan: &LogicalPlan,
    expr: &Expr,
    scopes: &mut Vec<DFSchemaRef>,
    found: &mut Vec<(Column, Expr)>,
) -> Result<TreeNodeRecursion> {
    expr.apply(|expr| {
        let Some(nested) = queried(expr) else { return Ok(TreeNodeRecursion::Continue) };
        let depth = scopes.len();
        scopes.extend(plan.inputs().into_iter().map(|input| input.schema().clone()));
        collect(&nested.subquery, scopes, found)?;
        scopes.truncate(depth);
        Ok(TreeNodeRecursion::Continue)
    })
}
