//! Which columns a query reads of tables of which its role may read some only.
//!
//! A scan refuses to give columns that may not be read (`scan`), but sees only those that are left when the query is optimised: the
//! values of `count(b)` are of no account where `b` is never NULL. PostgreSQL asks for what the text refers to. So this
//! looks at the plan as it was written. A column that is passed on is read by whoever computes with it, or by the query's own
//! outputs; a reference to a whole row reads all of its columns, and is found in the syntax: plans have none.

use crate::facts::SessionFacts;
use crate::privileges::{self, Acting, Readable, denied_table};
use crate::resolve::{self, Relation};
use crate::scan;
use crate::statement::fold;
use crate::walk::walk;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchemaRef, JoinType, Result as PlanResult, TableReference};
use datafusion::datasource::source_as_provider;
use datafusion::logical_expr::{Distinct, Expr, LogicalPlan};
use datafusion::sql::sqlparser::ast;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use tidepool_base::Result;
use tidepool_table::TableVersion;

/// A column of a scan that is passed on: whether it may be read, and the name of its table.
#[derive(Clone)]
struct Source {
    may: bool,
    table: String,
}

/// What each output of a plan passes on.
type Sources = Vec<Option<Source>>;

/// The columns that expressions are over.
struct Inputs {
    schema: DFSchemaRef,
    sources: Sources,
}

/// 42501 where a query reads columns that its role may not read.
pub fn check(plan: &LogicalPlan) -> Result<()> {
    let mut is_partly = false;
    let looked = plan.apply_with_subqueries(|node| {
        is_partly |= matches!(readable(node), Some((Readable::Columns(_), _)));
        Ok(if is_partly { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    looked.map_err(crate::errors::from_datafusion)?;
    if !is_partly {
        return Ok(());
    }
    let outputs = sources(plan, &mut Vec::new()).map_err(crate::errors::from_datafusion)?;
    outputs.iter().flatten().try_for_each(read).map_err(crate::errors::from_datafusion)
}

/// 42501 where a query refers to whole rows of a table of which `acting` may read some columns only. A name counts as one of a
/// table wherever in the query the table has it, unless a table of the query has a column of that name.
pub fn check_rows(facts: &SessionFacts, acting: &Acting, query: &ast::Query) -> Result<()> {
    if acting.is_superuser {
        return Ok(());
    }
    let mut rows = Rows { facts, tables: Vec::new(), wildcards: BTreeSet::new(), names: BTreeSet::new() };
    let _ = walk(query, &mut rows);
    let Rows { tables, wildcards, names, .. } = rows;
    let is_column = |name: &String| tables.iter().any(|(_, table)| table.def.column_index(name).is_some());
    let is_row = |name: &String| wildcards.contains(name) || names.contains(name) && !is_column(name);
    for (_, table) in tables.iter().filter(|(name, _)| is_row(name)) {
        let readable = privileges::check_read(facts, acting, &Relation::Table(table.clone()))?;
        if let Readable::Columns(may) = readable
            && may.contains(&false)
        {
            return Err(denied_table(&table.def.name));
        }
    }
    Ok(())
}

/// What a query's names could be whole rows by.
struct Rows<'f> {
    facts: &'f SessionFacts,
    /// Tables by what the query calls them.
    tables: Vec<(String, Arc<TableVersion>)>,
    /// `t` of each `t.*` that is an argument.
    wildcards: BTreeSet<String>,
    names: BTreeSet<String>,
}

impl ast::Visitor for Rows<'_> {
    type Break = ();

    fn pre_visit_table_factor(&mut self, factor: &ast::TableFactor) -> ControlFlow<()> {
        if let ast::TableFactor::Table { name, alias, .. } = factor {
            let mut parts = name.0.iter().rev().filter_map(ast::ObjectNamePart::as_ident).map(fold);
            let (own, schema) = (parts.next().unwrap_or_default(), parts.next());
            if let Some(Relation::Table(table)) = resolve::relation(self.facts, schema.as_deref(), &own) {
                let shown = alias.as_ref().map_or(own, |alias| fold(&alias.name));
                self.tables.push((shown, table));
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &ast::Expr) -> ControlFlow<()> {
        match expr {
            ast::Expr::Identifier(name) => drop(self.names.insert(fold(name))),
            ast::Expr::Function(function) => {
                let ast::FunctionArguments::List(list) = &function.args else { return ControlFlow::Continue(()) };
                for argument in &list.args {
                    if let ast::FunctionArg::Unnamed(ast::FunctionArgExpr::QualifiedWildcard(name)) = argument
                        && let Some(name) = name.0.last().and_then(ast::ObjectNamePart::as_ident)
                    {
                        self.wildcards.insert(fold(name));
                    }
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// What may be read of the table that a scan is of.
fn readable(plan: &LogicalPlan) -> Option<(Readable, String)> {
    let LogicalPlan::TableScan(scan) = plan else { return None };
    let provider = source_as_provider(&scan.source).ok()?;
    let table = provider.downcast_ref::<scan::TableProvider>()?;
    Some((table.may_read().clone(), table.def().name.clone()))
}

fn read(source: &Source) -> PlanResult<()> {
    if source.may { Ok(()) } else { Err(crate::errors::carry(denied_table(&source.table))) }
}

/// What a plan passes on. `around`: the inputs of the queries around it.
fn sources(plan: &LogicalPlan, around: &mut Vec<Inputs>) -> PlanResult<Sources> {
    let mut inputs = Vec::new();
    for input in plan.inputs() {
        inputs.push(Inputs { schema: input.schema().clone(), sources: sources(input, around)? });
    }
    // What is computed is read.
    plan.apply_expressions(|expr| {
        if passed(expr).is_none() || !passes_on(plan) {
            of_expr(expr, &mut inputs, around)?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    let pass = |exprs: &[Expr]| -> Sources {
        let of = |expr: &Expr| passed(expr).and_then(|column| inputs.iter().find_map(|input| input.get(column)));
        exprs.iter().map(of).collect()
    };
    let mut outputs = match plan {
        LogicalPlan::TableScan(scan) => match readable(plan) {
            Some((Readable::Columns(may), table)) => {
                let all = 0..scan.source.schema().fields().len();
                let columns = scan.projection.clone().unwrap_or_else(|| all.collect());
                let of = |column: usize| may.get(column).map(|may| Source { may: *may, table: table.clone() });
                columns.into_iter().map(of).collect()
            }
            _ => Vec::new(),
        },
        LogicalPlan::Projection(projection) => pass(&projection.expr),
        LogicalPlan::Aggregate(aggregate) => pass(&aggregate.group_expr),
        LogicalPlan::Distinct(Distinct::On(distinct)) => pass(&distinct.select_expr),
        LogicalPlan::Join(join) => match join.join_type {
            JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => {
                inputs.pop().map_or_else(Vec::new, |right| right.sources)
            }
            _ => inputs.into_iter().flat_map(|input| input.sources).collect(),
        },
        LogicalPlan::Filter(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Limit(_)
        | LogicalPlan::Window(_)
        | LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Distinct(_) => inputs.pop().map_or_else(Vec::new, |input| input.sources),
        // Other operators look at the values.
        _ => {
            inputs.iter().flat_map(|input| &input.sources).flatten().try_for_each(read)?;
            Vec::new()
        }
    };
    outputs.resize(plan.schema().fields().len(), None);
    Ok(outputs)
}

/// Whether what a plan's expressions only name are its outputs.
fn passes_on(plan: &LogicalPlan) -> bool {
    matches!(plan, LogicalPlan::Projection(_))
}

/// The column that an expression is nothing but.
fn passed(expr: &Expr) -> Option<&Column> {
    match expr {
        Expr::Alias(alias) => passed(&alias.expr),
        Expr::Column(column) => Some(column),
        _ => None,
    }
}

impl Inputs {
    fn get(&self, column: &Column) -> Option<Source> {
        self.sources.get(self.schema.maybe_index_of_column(column)?).cloned().flatten()
    }

    /// All columns of a row.
    fn row<'i>(&'i self, of: Option<&'i TableReference>) -> impl Iterator<Item = &'i Source> {
        let columns = self.schema.iter().zip(&self.sources);
        columns
            .filter(move |((qualifier, _), _)| of.is_none() || *qualifier == of)
            .filter_map(|(_, source)| source.as_ref())
    }
}

fn of_expr(expr: &Expr, inputs: &mut Vec<Inputs>, around: &mut Vec<Inputs>) -> PlanResult<()> {
    expr.apply(|expr| {
        match expr {
            Expr::Column(column) => inputs.iter().find_map(|input| input.get(column)).iter().try_for_each(read)?,
            Expr::OuterReferenceColumn(_, column) => {
                around.iter().rev().find_map(|input| input.get(column)).iter().try_for_each(read)?;
            }
            #[expect(deprecated, reason = "what SQL's planner makes of a whole row")]
            Expr::Wildcard { qualifier: Some(of), .. } => {
                inputs.iter().flat_map(|input| input.row(Some(of))).try_for_each(read)?;
            }
            Expr::ScalarSubquery(subquery) => of_subquery(&subquery.subquery, inputs, around)?,
            Expr::InSubquery(within) => of_subquery(&within.subquery.subquery, inputs, around)?,
            Expr::SetComparison(compared) => of_subquery(&compared.subquery.subquery, inputs, around)?,
            Expr::Exists(exists) => of_subquery(&exists.subquery.subquery, inputs, around)?,
            _ => {}
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

fn of_subquery(plan: &LogicalPlan, inputs: &mut Vec<Inputs>, around: &mut Vec<Inputs>) -> PlanResult<()> {
    let outside = around.len();
    around.append(inputs);
    let outputs = sources(plan, around);
    *inputs = around.split_off(outside);
    outputs?.iter().flatten().try_for_each(read)
}
