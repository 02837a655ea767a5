//! `count(r.*)` where a join may leave `r` without a row: the whole row is NULL then, and is not counted.
//!
//! DataFusion counts every row. So the relation gets a column more, which is never NULL in a row of its own, and that is counted.

use crate::statement::{fold, parse_query};
use crate::walk::walk_mut;
use datafusion::sql::sqlparser::ast::{
    DuplicateTreatment, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments, Ident,
    JoinOperator, Query, Select, SetExpr, TableAlias, TableFactor, TableWithJoins, VisitorMut,
};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use tidepool_base::{Error, Result};

/// The column that tells whether there is a row.
const IS_THERE: &str = "\u{1}row";

/// Counts the rows of relations by what is never NULL in them, at whatever depth of a query.
/// 0A000 for a count of distinct rows, which would be one of distinct truth values.
pub fn write_out(query: &mut Query) -> Result<()> {
    match walk_mut(query, &mut Queries) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

struct Queries;

impl VisitorMut for Queries {
    type Break = Error;

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        if let Expr::Function(Function { name, args: FunctionArguments::List(list), .. }) = expr
            && list.duplicate_treatment == Some(DuplicateTreatment::Distinct)
            && list.args.iter().any(|arg| matches!(arg, FunctionArg::Unnamed(FunctionArgExpr::QualifiedWildcard(_))))
        {
            return ControlFlow::Break(Error::unsupported(format!("{name}(DISTINCT row) is not supported")));
        }
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        let SetExpr::Select(select) = query.body.as_mut() else { return ControlFlow::Continue(()) };
        let nullable = nullable_of(select);
        if nullable.is_empty() {
            return ControlFlow::Continue(());
        }
        let mut counts = Counts { nullable, counted: BTreeSet::new(), depth: 0 };
        let _ = walk_mut(&mut select.projection, &mut counts);
        let _ = walk_mut(&mut select.having, &mut counts);
        let _ = walk_mut(&mut query.order_by, &mut counts);
        if !counts.counted.is_empty() {
            let SetExpr::Select(select) = query.body.as_mut() else { return ControlFlow::Continue(()) };
            select.from.iter_mut().for_each(|table| mark(table, &counts.counted));
        }
        ControlFlow::Continue(())
    }
}

/// The relations of a query that joins may leave without a row, by name.
fn nullable_of(select: &Select) -> BTreeSet<String> {
    let mut nullable = BTreeSet::new();
    for table in &select.from {
        find_nullable(table, &mut nullable);
    }
    nullable
}

/// Returns the names of all relations in it.
fn find_nullable(table: &TableWithJoins, nullable: &mut BTreeSet<String>) -> Vec<String> {
    let mut left = names_in(&table.relation, nullable);
    for join in &table.joins {
        let right = names_in(&join.relation, nullable);
        let (of_left, of_right) = match &join.join_operator {
            JoinOperator::Left(_) | JoinOperator::LeftOuter(_) => (false, true),
            JoinOperator::Right(_) | JoinOperator::RightOuter(_) => (true, false),
            JoinOperator::FullOuter(_) => (true, true),
            _ => (false, false),
        };
        if of_left {
            nullable.extend(left.iter().cloned());
        }
        if of_right {
            nullable.extend(right.iter().cloned());
        }
        left.extend(right);
    }
    left
}

fn names_in(factor: &TableFactor, nullable: &mut BTreeSet<String>) -> Vec<String> {
    match factor {
        TableFactor::NestedJoin { table_with_joins, alias: None } => find_nullable(table_with_joins, nullable),
        factor => name_of(factor).map(|name| fold(&name)).into_iter().collect(),
    }
}

fn name_of(factor: &TableFactor) -> Option<Ident> {
    let of = |alias: &Option<TableAlias>| alias.as_ref().map(|alias| alias.name.clone());
    match factor {
        TableFactor::Table { name, alias, .. } => of(alias).or_else(|| name.0.last()?.as_ident().cloned()),
        TableFactor::Derived { alias, .. }
        | TableFactor::Function { alias, .. }
        | TableFactor::UNNEST { alias, .. }
        | TableFactor::TableFunction { alias, .. }
        | TableFactor::NestedJoin { alias, .. } => of(alias),
        _ => None,
    }
}

/// Gives relations that are counted their column.
fn mark(table: &mut TableWithJoins, counted: &BTreeSet<String>) {
    mark_factor(&mut table.relation, counted);
    table.joins.iter_mut().for_each(|join| mark_factor(&mut join.relation, counted));
}

fn mark_factor(factor: &mut TableFactor, counted: &BTreeSet<String>) {
    if let TableFactor::NestedJoin { table_with_joins, alias: None } = factor {
        return mark(table_with_joins, counted);
    }
    let Some(name) = name_of(factor).filter(|name| counted.contains(&fold(name))) else { return };
    let Ok(mut rows) = parse_query(&format!("SELECT *, true AS \"{IS_THERE}\" FROM t")) else { return };
    let is_lateral = match factor {
        TableFactor::Derived { lateral, .. } | TableFactor::Function { lateral, .. } => *lateral,
        _ => false,
    };
    let SetExpr::Select(select) = rows.body.as_mut() else { return };
    let [table] = select.from.as_mut_slice() else { return };
    std::mem::swap(&mut table.relation, factor);
    let alias = Some(TableAlias { explicit: true, name, columns: Vec::new(), at: None });
    *factor = TableFactor::Derived { lateral: is_lateral, subquery: Box::new(rows), alias, sample: None };
}

/// Counts of relations, not those of queries within.
struct Counts {
    nullable: BTreeSet<String>,
    counted: BTreeSet<String>,
    depth: usize,
}

impl Counts {
    fn count(&mut self, function: &mut Function) {
        let is_count =
            function.name.0.last().and_then(|part| part.as_ident()).is_some_and(|name| fold(name) == "count");
        let FunctionArguments::List(FunctionArgumentList { args, duplicate_treatment: None, .. }) = &mut function.args
        else {
            return;
        };
        let [argument @ FunctionArg::Unnamed(FunctionArgExpr::QualifiedWildcard(_))] = args.as_mut_slice() else {
            return;
        };
        let FunctionArg::Unnamed(FunctionArgExpr::QualifiedWildcard(name)) = argument else { return };
        let [name] = name.0.as_slice() else { return };
        let Some(relation) = name.as_ident().filter(|name| is_count && self.nullable.contains(&fold(name))) else {
            return;
        };
        self.counted.insert(fold(relation));
        let is_there = Expr::CompoundIdentifier(vec![relation.clone(), Ident::with_quote('"', IS_THERE)]);
        *argument = FunctionArg::Unnamed(FunctionArgExpr::Expr(is_there));
    }
}

impl VisitorMut for Counts {
    type Break = ();

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if self.depth == 0
            && let Expr::Function(function) = expr
        {
            self.count(function);
        }
        ControlFlow::Continue(())
    }
}
