//! Outer joins as inner ones, where something further up drops the rows that they add.
//!
//! Conditions that every row must meet of which anything comes out are carried down: of filters, and of joins that drop rows without a
//! match. An outer join adds rows with NULL for all columns of a side; where a condition is not true of such rows, whatever their other
//! columns are, it need not add them. (Galindo-Legaria, Rosenthal, *Outerjoin Simplification and Reordering for Query Optimization*, TODS
//! 1997.)

use crate::rewrites::RewriteTree;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, JoinType, NullEquality, Result, ScalarValue};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Expr, Join, LogicalPlan, Operator};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Debug)]
pub struct OuterJoins;

impl OptimizerRule for OuterJoins {
    fn name(&self) -> &str {
        "outer_joins"
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let mut has_outer = false;
        plan.apply_with_subqueries(|node| {
            has_outer |= matches!(node, LogicalPlan::Join(join) if join.join_type.is_outer());
            Ok(if has_outer { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })?;
        if has_outer { simplified(plan, &[]) } else { Ok(Transformed::no(plan)) }
    }
}

/// Columns of other parts of the plan, of which nothing is known, have this qualifier: names below may be the same.
const ELSEWHERE: &str = "__elsewhere";

/// The same plan, of whose rows only those matter that meet all of `conditions`.
fn simplified(plan: LogicalPlan, conditions: &[Expr]) -> Result<Transformed<LogicalPlan>> {
    plan.map_subqueries(|subquery| simplified(subquery, &[]))?.transform_data(|plan| {
        if let LogicalPlan::Join(join) = plan {
            return simplified_join(join, conditions);
        }
        let below: Vec<Vec<Expr>> = plan.inputs().iter().map(|input| below(&plan, input, conditions)).collect();
        let mut below = below.into_iter();
        plan.map_children(|child| simplified(child, &below.next().unwrap_or_default()))
    })
}

/// What an operator's conditions ask of the rows of one of its inputs.
fn below(plan: &LogicalPlan, input: &LogicalPlan, conditions: &[Expr]) -> Vec<Expr> {
    let same_columns = |meaning: &dyn Fn(usize) -> Option<Expr>| {
        let meanings = (0..plan.schema().fields().len())
            .filter_map(|index| Some((Column::from(plan.schema().qualified_field(index)), meaning(index)?)));
        let meanings: HashMap<Column, Expr> = meanings.collect();
        conditions.iter().filter_map(|condition| meant(condition, plan.schema(), &meanings)).collect()
    };
    let of_input = |index: usize| Some(Expr::Column(Column::from(input.schema().qualified_field(index))));
    match plan {
        LogicalPlan::Filter(filter) => {
            let own = split_conjunction(&filter.predicate).into_iter().filter(|condition| is_known(condition)).cloned();
            conditions.iter().cloned().chain(own).collect()
        }
        LogicalPlan::Projection(projection) => same_columns(&|index| {
            let expr = projection.expr[index].clone().unalias();
            is_known(&expr).then_some(expr)
        }),
        LogicalPlan::SubqueryAlias(_) | LogicalPlan::Union(_) => same_columns(&of_input),
        LogicalPlan::Sort(sort) if sort.fetch.is_none() => conditions.to_vec(),
        LogicalPlan::Distinct(datafusion::logical_expr::Distinct::All(_)) => conditions.to_vec(),
        // Rows of a group that is dropped matter to nobody.
        LogicalPlan::Aggregate(aggregate) if !matches!(aggregate.group_expr.as_slice(), [Expr::GroupingSet(_)]) => {
            same_columns(&|index| aggregate.group_expr.get(index).filter(|key| is_known(key)).cloned())
        }
        _ => Vec::new(),
    }
}

fn is_known(expr: &Expr) -> bool {
    !expr.is_volatile() && !super::passes::has_subquery(expr)
}

/// A condition over what columns mean below. `None` if one means nothing there.
fn meant(condition: &Expr, schema: &DFSchema, meanings: &HashMap<Column, Expr>) -> Option<Expr> {
    let columns = condition.column_refs();
    if columns.iter().any(|column| schema.has_column(column) && !meanings.contains_key(*column)) {
        return None;
    }
    let mut replace = |node: Expr| match &node {
        Expr::Column(column) => {
            Ok(meanings.get(column).map_or(Transformed::no(node.clone()), |meant| Transformed::yes(meant.clone())))
        }
        _ => Ok(Transformed::no(node)),
    };
    condition.clone().rewrite_up(&mut replace).ok().map(|replaced| replaced.data)
}

/// Conditions that say something of a join's side, other columns of theirs set apart.
fn of_side(conditions: &[&Expr], side: &DFSchema) -> Vec<Expr> {
    let own = conditions.iter().filter(|condition| condition.column_refs().iter().any(|it| side.has_column(it)));
    let mut apart = |node: Expr| match node {
        Expr::Column(column) if !side.has_column(&column) => {
            Ok(Transformed::yes(Expr::Column(Column::new(Some(ELSEWHERE), column.name))))
        }
        node => Ok(Transformed::no(node)),
    };
    own.filter_map(|condition| (*condition).clone().rewrite_up(&mut apart).ok()).map(|it| it.data).collect()
}

fn simplified_join(mut join: Join, conditions: &[Expr]) -> Result<Transformed<LogicalPlan>> {
    use JoinType::{Full, Inner, Left, LeftAnti, LeftMark, LeftSemi, Right, RightAnti, RightMark, RightSemi};
    let (left, right) = (join.left.schema().clone(), join.right.schema().clone());
    let drops = |side: &DFSchema| {
        conditions.iter().any(|condition| {
            condition.column_refs().iter().any(|column| side.has_column(column))
                && fate(condition, &|column| side.has_column(column)).is_not_true()
        })
    };
    let before = join.join_type;
    join.join_type = match before {
        Left if drops(&right) => Inner,
        Right if drops(&left) => Inner,
        Full => match (drops(&left), drops(&right)) {
            (true, true) => Inner,
            (true, false) => Left,
            (false, true) => Right,
            (false, false) => Full,
        },
        other => other,
    };
    let mut own: Vec<Expr> = Vec::new();
    if join.null_equality == NullEquality::NullEqualsNothing && !join.null_aware {
        own.extend(join.on.iter().map(|(left, right)| left.clone().eq(right.clone())));
    }
    own.extend(join.filter.iter().flat_map(split_conjunction).cloned());
    own.retain(is_known);
    let own: Vec<&Expr> = own.iter().collect();
    let outside: Vec<&Expr> = conditions.iter().collect();
    let both: Vec<&Expr> = outside.iter().chain(&own).copied().collect();
    // A row of a side whose rows come out by matching alone has to match.
    let (of_left, of_right): (&[&Expr], &[&Expr]) = match join.join_type {
        Inner => (&both, &both),
        LeftSemi => (&both, &own),
        RightSemi => (&own, &both),
        _ if join.null_aware => (&[], &[]),
        Left | LeftAnti | LeftMark => (&outside, &own),
        Right | RightAnti | RightMark => (&own, &outside),
        Full => (&[], &[]),
    };
    let of_left = of_side(of_left, &left);
    let of_right = of_side(of_right, &right);
    let changed = join.join_type != before;
    let new_left = simplified(Arc::unwrap_or_clone(join.left), &of_left)?;
    let new_right = simplified(Arc::unwrap_or_clone(join.right), &of_right)?;
    let changed = changed || new_left.transformed || new_right.transformed;
    (join.left, join.right) = (Arc::new(new_left.data), Arc::new(new_right.data));
    Ok(Transformed::new_transformed(LogicalPlan::Join(join), changed))
}

/// What is known of an expression's value.
#[derive(Clone, Debug, PartialEq)]
enum Fate {
    Null,
    /// Not NULL.
    Value(ScalarValue),
    /// False or NULL.
    NotTrue,
    Unknown,
}

impl Fate {
    fn is_not_true(&self) -> bool {
        matches!(self, Fate::Null | Fate::NotTrue | Fate::Value(ScalarValue::Boolean(Some(false))))
    }

    fn is_true(&self) -> bool {
        *self == Fate::Value(ScalarValue::Boolean(Some(true)))
    }

    fn truth(value: bool) -> Fate {
        Fate::Value(ScalarValue::Boolean(Some(value)))
    }
}

/// What becomes of an expression where some columns are NULL.
fn fate(expr: &Expr, is_null: &dyn Fn(&Column) -> bool) -> Fate {
    let of = |expr: &Expr| fate(expr, is_null);
    // NULL if one of these is.
    let strict =
        |exprs: &[&Expr]| if exprs.iter().any(|expr| of(expr) == Fate::Null) { Fate::Null } else { Fate::Unknown };
    match expr {
        Expr::Column(column) if is_null(column) => Fate::Null,
        Expr::Literal(value, _) if value.is_null() => Fate::Null,
        Expr::Literal(value, _) => Fate::Value(value.clone()),
        Expr::Alias(alias) => of(&alias.expr),
        Expr::Cast(cast) => match of(&cast.expr) {
            Fate::Value(value) => match value.cast_to(cast.field.data_type()) {
                Ok(value) if !value.is_null() => Fate::Value(value),
                _ => Fate::Unknown,
            },
            Fate::Null => Fate::Null,
            _ => Fate::Unknown,
        },
        Expr::BinaryExpr(binary) => {
            let (left, right) = (of(&binary.left), of(&binary.right));
            match binary.op {
                Operator::And if left.is_not_true() || right.is_not_true() => Fate::NotTrue,
                Operator::And if left.is_true() && right.is_true() => Fate::truth(true),
                Operator::Or if left.is_true() || right.is_true() => Fate::truth(true),
                Operator::Or if left.is_not_true() && right.is_not_true() => Fate::NotTrue,
                Operator::And | Operator::Or => Fate::Unknown,
                op if op.returns_null_on_null() && (left == Fate::Null || right == Fate::Null) => Fate::Null,
                op => match (left, right) {
                    (Fate::Value(left), Fate::Value(right)) => compared(op, &left, &right),
                    _ => Fate::Unknown,
                },
            }
        }
        Expr::Not(inner) => match of(inner) {
            Fate::Null => Fate::Null,
            Fate::Value(ScalarValue::Boolean(Some(value))) => Fate::truth(!value),
            _ => Fate::Unknown,
        },
        Expr::IsNull(inner) | Expr::IsNotNull(inner) => {
            let negated = matches!(expr, Expr::IsNotNull(_));
            match of(inner) {
                Fate::Null => Fate::truth(!negated),
                Fate::Value(_) => Fate::truth(negated),
                _ => Fate::Unknown,
            }
        }
        Expr::IsTrue(inner) if of(inner).is_not_true() => Fate::truth(false),
        Expr::IsFalse(inner) if of(inner) == Fate::Null => Fate::truth(false),
        Expr::Negative(inner) => strict(&[inner]),
        Expr::Between(between) => strict(&[&between.expr]),
        Expr::InList(list) => strict(&[&list.expr]),
        Expr::Like(like) | Expr::SimilarTo(like) => strict(&[&like.expr, &like.pattern]),
        Expr::Case(case) => {
            let base = case.expr.as_deref().map(of);
            for (when, then) in &case.when_then_expr {
                let condition = match (&base, of(when)) {
                    (None, condition) => condition,
                    (Some(Fate::Null), _) | (Some(_), Fate::Null) => Fate::Null,
                    _ => Fate::Unknown,
                };
                if condition.is_true() {
                    return of(then);
                }
                if !condition.is_not_true() {
                    return Fate::Unknown;
                }
            }
            case.else_expr.as_deref().map_or(Fate::Null, of)
        }
        Expr::ScalarFunction(function) if function.name() == "coalesce" => {
            function.args.iter().map(of).find(|value| *value != Fate::Null).unwrap_or(Fate::Null)
        }
        Expr::ScalarFunction(function) => match crate::casts::watched(function) {
            Some(arithmetic) => of(&arithmetic),
            None if function.func.is_strict() => strict(&function.args.iter().collect::<Vec<_>>()),
            None => Fate::Unknown,
        },
        _ => Fate::Unknown,
    }
}

fn compared(op: Operator, left: &ScalarValue, right: &ScalarValue) -> Fate {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let is_float = matches!(left, ScalarValue::Float16(_) | ScalarValue::Float32(_) | ScalarValue::Float64(_));
    // NaN is in another order here.
    let Some(order) = left.partial_cmp(right).filter(|_| !is_float) else { return Fate::Unknown };
    match op {
        Operator::Eq => Fate::truth(order == Equal),
        Operator::NotEq => Fate::truth(order != Equal),
        Operator::Lt => Fate::truth(order == Less),
        Operator::LtEq => Fate::truth(order != Greater),
        Operator::Gt => Fate::truth(order == Greater),
        Operator::GtEq => Fate::truth(order != Less),
        _ => Fate::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::datatypes::{DataType, Field, Schema};
    use datafusion::functions::core::expr_fn::coalesce;
    use datafusion::logical_expr::logical_plan::builder::LogicalTableSource;
    use datafusion::logical_expr::{LogicalPlanBuilder, col, lit, when};
    use datafusion::optimizer::OptimizerContext;

    fn null_of(names: &'static [&'static str], expr: &Expr) -> Fate {
        fate(expr, &|column| names.contains(&column.name.as_str()))
    }

    #[test]
    fn what_becomes_of_conditions_on_rows_that_are_added() {
        let is_dropped = |expr: &Expr| null_of(&["a", "b"], expr).is_not_true();
        assert!(is_dropped(&col("a").eq(col("x"))));
        assert!(is_dropped(&(col("a") + col("x")).gt(lit(3))));
        assert!(is_dropped(&coalesce(vec![col("a"), lit(0)]).gt(lit(0))));
        assert!(!is_dropped(&coalesce(vec![col("a"), lit(1)]).gt(lit(0))));
        assert!(!is_dropped(&coalesce(vec![col("a"), col("x")]).gt(lit(0))));
        assert!(is_dropped(&when(col("a").is_not_null(), col("a")).otherwise(lit(0)).unwrap().gt(lit(0))));
        assert!(!is_dropped(&when(col("x").gt(lit(0)), col("a")).otherwise(lit(1)).unwrap().gt(lit(0))));
        assert!(!is_dropped(&col("a").is_null()));
        assert!(is_dropped(&col("a").is_not_null()));
        assert!(is_dropped(&Expr::Not(Box::new(col("a").is_null()))));
        assert!(is_dropped(&col("a").eq(lit(1)).or(col("b").eq(lit(1)))));
        assert!(!is_dropped(&col("a").eq(lit(1)).or(col("x").eq(lit(1)))));
        assert!(is_dropped(&col("a").eq(lit(1)).and(col("x").eq(lit(1)))));
        assert!(!is_dropped(&Expr::Not(Box::new(col("a").eq(lit(1)).and(col("x").eq(lit(1)))))));
        assert!(!is_dropped(&col("x").eq(lit(1))));
        assert!(is_dropped(&col("a").in_list(vec![lit(1), lit(2)], true)));
        assert!(is_dropped(&Expr::IsTrue(Box::new(col("a")))));
        assert!(!is_dropped(&Expr::IsUnknown(Box::new(col("a")))));
        let distinct = datafusion::logical_expr::binary_expr(col("a"), Operator::IsDistinctFrom, col("x"));
        assert!(!is_dropped(&distinct));
    }

    fn scan(name: &str) -> LogicalPlan {
        let fields = vec![Field::new("k", DataType::Int32, true), Field::new("v", DataType::Int32, true)];
        let source = Arc::new(LogicalTableSource::new(Arc::new(Schema::new(fields))));
        LogicalPlanBuilder::scan(name, source, None).unwrap().build().unwrap()
    }

    fn join(left: LogicalPlan, right: LogicalPlan, how: JoinType, on: (&str, &str)) -> LogicalPlan {
        let builder = LogicalPlanBuilder::from(left);
        builder.join(right, how, (vec![on.0], vec![on.1]), None).unwrap().build().unwrap()
    }

    fn types(plan: &LogicalPlan) -> Vec<JoinType> {
        let simplified = OuterJoins.rewrite(plan.clone(), &OptimizerContext::new()).unwrap().data;
        assert_eq!(simplified.schema(), plan.schema());
        let mut types = Vec::new();
        simplified
            .apply(|node| {
                if let LogicalPlan::Join(join) = node {
                    types.push(join.join_type);
                }
                Ok(TreeNodeRecursion::Continue)
            })
            .unwrap();
        types
    }

    #[test]
    fn joins_further_up_tell_which_rows_are_needed() {
        use JoinType::{Full, Inner, Left, LeftAnti, LeftSemi, Right};
        let outer = |how| join(scan("a"), scan("b"), how, ("a.k", "b.k"));
        // By the side that is NULL, and by the other.
        assert_eq!(types(&join(outer(Left), scan("c"), Inner, ("b.v", "c.k"))), [Inner, Inner]);
        assert_eq!(types(&join(outer(Left), scan("c"), Inner, ("a.v", "c.k"))), [Inner, Left]);
        assert_eq!(types(&join(outer(Right), scan("c"), Inner, ("a.v", "c.k"))), [Inner, Inner]);
        assert_eq!(types(&join(outer(Full), scan("c"), Inner, ("a.v", "c.k"))), [Inner, Left]);
        assert_eq!(types(&join(outer(Full), scan("c"), LeftSemi, ("b.v", "c.k"))), [LeftSemi, Right]);
        assert_eq!(types(&join(outer(Left), scan("c"), LeftAnti, ("b.v", "c.k"))), [LeftAnti, Left]);
        // Rows of an optional side that cannot match are needed by nobody; those of the other side are.
        assert_eq!(types(&join(scan("c"), outer(Left), Left, ("c.k", "b.v"))), [Left, Inner]);
        assert_eq!(types(&join(outer(Left), scan("c"), Left, ("b.v", "c.k"))), [Left, Left]);
    }

    #[test]
    fn conditions_go_through_what_renames_columns_and_makes_groups() {
        use JoinType::{Inner, Left};
        let outer = join(scan("a"), scan("b"), Left, ("a.k", "b.k"));
        let grouped = |key: &str| {
            let sum = datafusion::functions_aggregate::expr_fn::sum(col("a.v"));
            LogicalPlanBuilder::from(outer.clone()).aggregate(vec![col(key)], vec![sum.alias("s")]).unwrap()
        };
        let over = |builder: LogicalPlanBuilder, condition: Expr| builder.filter(condition).unwrap().build().unwrap();
        assert_eq!(types(&over(grouped("b.v"), col("b.v").gt(lit(0)))), [Inner]);
        assert_eq!(types(&over(grouped("b.v"), col("s").gt(lit(0)))), [Left]);
        assert_eq!(types(&over(grouped("a.v"), col("a.v").gt(lit(0)))), [Left]);
        let renamed = LogicalPlanBuilder::from(outer.clone())
            .project(vec![col("a.k").alias("x"), (col("b.v") + lit(1)).alias("y")])
            .unwrap()
            .alias("t")
            .unwrap();
        assert_eq!(types(&over(renamed.clone(), col("t.y").gt(lit(0)))), [Inner]);
        assert_eq!(types(&over(renamed.clone(), col("t.x").gt(lit(0)))), [Left]);
        // All that come first would be others.
        let limited = renamed.limit(0, Some(3)).unwrap();
        assert_eq!(types(&over(limited, col("t.y").gt(lit(0)))), [Left]);
        // A table of the same name elsewhere says nothing of the one below.
        let hidden = LogicalPlanBuilder::from(outer).project(vec![col("a.k").alias("k")]).unwrap().alias("t").unwrap();
        let above = join(hidden.build().unwrap(), scan("b"), Inner, ("t.k", "b.k"));
        assert_eq!(types(&over(LogicalPlanBuilder::from(above), col("b.v").gt(col("t.k")))), [Inner, Left]);
    }
}
