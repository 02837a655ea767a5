//! Expressions over the rows of one table, evaluated outside of queries: `CHECK` constraints, defaults of new columns, and
//! what `ALTER COLUMN … TYPE` makes of a column.

use crate::errors::{from_arrow, from_datafusion};
use crate::facts::SessionFacts;
use crate::query;
use crate::resolve::BY_ID;
use crate::statement::{Command, Statement, fold, parse_expression};
use crate::walk::walk_mut;
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::catalog::{MemTable, TableProvider};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Cast, Expr, ExprSchemable, LogicalPlan};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::sql::sqlparser::ast::{self, VisitorMut};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState, SqlType};
use tidepool_database::RowChecks;
use tidepool_table::{CheckDef, ColumnDef, TableDef};

/// The name, in schema `BY_ID`, under which such an expression's rows are planned.
pub const ROW: &str = "row";

/// Expressions ready to be evaluated.
pub struct RowExpressions {
    expressions: Vec<Arc<dyn PhysicalExpr>>,
    /// Positions of the columns that they are given, in the table.
    pub reads: Vec<usize>,
}

/// The rows of a table as a query's source.
fn rows_of(columns: &[ColumnDef]) -> Result<Arc<dyn TableProvider>> {
    // Nothing may be concluded from what may not be NULL: rows are looked at before that is known of them.
    let fields: Vec<Field> = columns.iter().map(|column| column.field().with_nullable(true)).collect();
    Ok(Arc::new(MemTable::try_new(Arc::new(Schema::new(fields)), vec![vec![]]).map_err(from_datafusion)?))
}

impl RowExpressions {
    /// Plans texts over a table's columns, each cast to its target where there is one, as in an assignment. `what` is for
    /// messages: `check constraint`.
    pub fn plan(
        facts: &Arc<SessionFacts>,
        table: &str,
        columns: &[ColumnDef],
        texts: &[(String, Option<SqlType>)],
        what: &str,
    ) -> Result<RowExpressions> {
        let state = facts.planner.state(facts);
        let mut reads = BTreeSet::new();
        for (text, _) in texts {
            let named = names_in(&mut parse_expression(text)?, what)?;
            reads.extend((0..columns.len()).filter(|&position| named.contains(&columns[position].name)));
        }
        let reads: Vec<usize> = reads.into_iter().collect();
        let given: Vec<ColumnDef> = reads.iter().map(|&position| columns[position].clone()).collect();
        let plan = plan_over(facts, &state, table, &given, texts, what)?;
        let LogicalPlan::Projection(projection) = plan else {
            return Err(Error::unsupported(format!("this {what} is not supported")));
        };
        let expressions = (projection.expr.into_iter())
            .map(|expr| state.create_physical_expr(expr.unalias(), projection.input.schema()).map_err(from_datafusion))
            .collect::<Result<_>>()?;
        Ok(RowExpressions { expressions, reads })
    }

    /// `batch` has the columns at `reads`.
    pub fn evaluate(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        let rows = batch.num_rows();
        (self.expressions.iter())
            .map(|expr| expr.evaluate(batch).and_then(|value| value.into_array(rows)).map_err(from_datafusion))
            .collect()
    }

    /// As `evaluate`, of a batch of all of the table's columns.
    fn evaluate_whole(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        self.evaluate(&batch.project(&self.reads).map_err(from_arrow)?)
    }
}

/// The analysed plan of `SELECT text, … FROM table`.
fn plan_over(
    facts: &Arc<SessionFacts>,
    state: &SessionState,
    table: &str,
    columns: &[ColumnDef],
    texts: &[(String, Option<SqlType>)],
    what: &str,
) -> Result<LogicalPlan> {
    let outputs: Vec<String> =
        texts.iter().enumerate().map(|(index, (text, _))| format!("({text}) AS \"{index}\"")).collect();
    let quoted = table.replace('"', "\"\"");
    let sql = format!("SELECT {} FROM {BY_ID}.\"{ROW}\" AS \"{quoted}\"", outputs.join(", "));
    let query = match crate::statement::parse(&sql)?.first().map(Statement::command) {
        Some(Command::Query(query)) => query.clone(),
        _ => return Err(Error::internal("an expression makes no query")),
    };
    let plan = query::logical_plan_of_rows(state, facts, query, Vec::new(), rows_of(columns)?)?;
    let LogicalPlan::Projection(mut projection) = plan else {
        return Err(Error::unsupported(format!("this {what} is not supported")));
    };
    if !matches!(projection.input.as_ref(), LogicalPlan::SubqueryAlias(_) | LogicalPlan::TableScan(_)) {
        return Err(Error::new(SqlState::GROUPING_ERROR, format!("aggregate functions are not allowed in {what}s")));
    }
    for (expr, (_, target)) in projection.expr.iter_mut().zip(texts) {
        let Some(target) = target.map(tidepool_table::arrow_type) else { continue };
        let bare = expr.clone().unalias();
        if bare.get_type(projection.input.schema()).map_err(from_datafusion)? != target {
            let name = expr.schema_name().to_string();
            *expr = Expr::Cast(Cast::new(Box::new(bare), target)).alias(name);
        }
    }
    let plan = datafusion::logical_expr::Projection::try_new(projection.expr, projection.input)
        .map(LogicalPlan::Projection)
        .map_err(from_datafusion)?;
    state.analyzer().execute_and_check(plan, state.config_options(), |_, _| {}).map_err(from_datafusion)
}

/// The analysed plan of a table's constraints over all of its columns, in the order of their names.
pub fn analyzed_checks(facts: &Arc<SessionFacts>, def: &TableDef) -> Result<LogicalPlan> {
    let mut checks: Vec<&CheckDef> = def.checks.iter().collect();
    checks.sort_by(|left, right| left.name.cmp(&right.name));
    let texts: Vec<(String, Option<SqlType>)> = checks.iter().map(|check| (check.condition.clone(), None)).collect();
    plan_over(facts, &facts.planner.state(facts), &def.name, &def.columns, &texts, CHECK)
}

/// The columns that an expression names. 0A000 when it has a subquery.
pub fn names_in(expr: &mut ast::Expr, what: &str) -> Result<BTreeSet<String>> {
    struct Names<'a> {
        found: BTreeSet<String>,
        what: &'a str,
    }
    impl VisitorMut for Names<'_> {
        type Break = Error;
        fn pre_visit_query(&mut self, _: &mut ast::Query) -> ControlFlow<Error> {
            ControlFlow::Break(Error::unsupported(format!("cannot use subquery in {}", self.what)))
        }
        fn pre_visit_expr(&mut self, expr: &mut ast::Expr) -> ControlFlow<Error> {
            match expr {
                ast::Expr::Identifier(name) => drop(self.found.insert(fold(name))),
                ast::Expr::CompoundIdentifier(parts) => self.found.extend(parts.last().map(fold)),
                _ => {}
            }
            ControlFlow::Continue(())
        }
    }
    let mut names = Names { found: BTreeSet::new(), what };
    match walk_mut(expr, &mut names) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(names.found),
    }
}

const CHECK: &str = "check constraint";

/// Reads a `CHECK`: plans it, and finds out which columns it names. The name is the one given, or one that no other
/// constraint of the table has.
pub fn check(
    facts: &Arc<SessionFacts>,
    table: &str,
    columns: &[ColumnDef],
    others: &[String],
    name: Option<String>,
    condition: &ast::Expr,
) -> Result<CheckDef> {
    let mut condition = condition.clone();
    crate::moments::settle(facts, &mut condition, columns);
    crate::catalog::rewrite_expression(&mut condition);
    let named = names_in(&mut condition, CHECK)?;
    let text = condition.to_string();
    let state = facts.planner.state(facts);
    let plan = plan_over(facts, &state, table, columns, &[(text.clone(), None)], CHECK)?;
    match plan.schema().field(0).data_type() {
        DataType::Boolean | DataType::Null => {}
        _ => {
            let found = crate::types::type_of(plan.schema().field(0));
            let found = found.map_or_else(|| "record".to_owned(), |sql_type| sql_type.to_string());
            return Err(Error::new(
                SqlState::DATATYPE_MISMATCH,
                format!("argument of CHECK must be type boolean, not type {found}"),
            ));
        }
    }
    let used: Vec<&ColumnDef> = columns.iter().filter(|column| named.contains(&column.name)).collect();
    let name = match name {
        Some(name) if others.contains(&name) => {
            return Err(Error::new(
                SqlState::DUPLICATE_OBJECT,
                format!("constraint \"{name}\" for relation \"{table}\" already exists"),
            ));
        }
        Some(name) => name,
        None => {
            let column = match used.as_slice() {
                [column] => Some(column.name.as_str()),
                _ => None,
            };
            free_name(table, column, others)
        }
    };
    Ok(CheckDef {
        oid: facts.planner.database().next_table_id().0,
        name,
        condition: text,
        columns: used.iter().map(|column| column.number).collect(),
    })
}

fn free_name(table: &str, column: Option<&str>, others: &[String]) -> String {
    let base = match column {
        Some(column) => format!("{table}_{column}_check"),
        None => format!("{table}_check"),
    };
    let mut number = 0;
    loop {
        let name = if number == 0 { base.clone() } else { format!("{base}{number}") };
        if !others.contains(&name) {
            return name;
        }
        number += 1;
    }
}

/// A condition whose column is called otherwise from now on.
pub fn rename_column(condition: &str, before: &str, after: &str) -> Result<String> {
    struct Rename<'a>(&'a str, &'a str);
    impl VisitorMut for Rename<'_> {
        type Break = ();
        fn pre_visit_expr(&mut self, expr: &mut ast::Expr) -> ControlFlow<()> {
            let name = match expr {
                ast::Expr::Identifier(name) => Some(name),
                ast::Expr::CompoundIdentifier(parts) => parts.last_mut(),
                _ => None,
            };
            if let Some(name) = name
                && fold(name) == self.0
            {
                *name = ast::Ident::with_quote('"', self.1);
            }
            ControlFlow::Continue(())
        }
    }
    let mut expr = parse_expression(condition)?;
    let _ = walk_mut(&mut expr, &mut Rename(before, after));
    Ok(expr.to_string())
}

/// A table's constraints, ready to be checked.
pub struct Checks {
    expressions: RowExpressions,
    /// In the order of their names, as PostgreSQL checks them.
    names: Vec<String>,
}

impl Checks {
    pub fn of(facts: &Arc<SessionFacts>, def: &TableDef) -> Result<Checks> {
        Checks::these(facts, def, def.checks.iter())
    }

    pub fn these<'a>(
        facts: &Arc<SessionFacts>,
        def: &TableDef,
        checks: impl Iterator<Item = &'a CheckDef>,
    ) -> Result<Checks> {
        let mut checks: Vec<&CheckDef> = checks.collect();
        checks.sort_by(|left, right| left.name.cmp(&right.name));
        let texts: Vec<(String, Option<SqlType>)> =
            checks.iter().map(|check| (check.condition.clone(), None)).collect();
        let expressions = RowExpressions::plan(facts, &def.name, &def.columns, &texts, CHECK)?;
        Ok(Checks { expressions, names: checks.iter().map(|check| check.name.clone()).collect() })
    }

    /// Positions of the columns that they need.
    pub fn reads(&self) -> &[usize] {
        &self.expressions.reads
    }

    fn first(&self, conditions: &[ArrayRef]) -> Option<(usize, String)> {
        let broken = conditions.iter().zip(&self.names).filter_map(|(condition, name)| {
            let condition = condition.as_boolean_opt()?;
            let row = (0..condition.len()).find(|&row| condition.is_valid(row) && !condition.value(row))?;
            Some((row, name.clone()))
        });
        broken.min_by_key(|(row, _)| *row)
    }

    /// 23514 when a row of a batch of the columns at `reads` breaks one, in the words for rows that are there already.
    pub fn check_existing(&self, table: &str, batch: &RecordBatch) -> Result<()> {
        match self.first(&self.expressions.evaluate(batch)?) {
            None => Ok(()),
            Some((_, name)) => Err(Error::new(
                SqlState::CHECK_VIOLATION,
                format!("check constraint \"{name}\" of relation \"{table}\" is violated by some row"),
            )),
        }
    }
}

impl RowChecks for Checks {
    fn violation(&self, batch: &RecordBatch) -> Result<Option<(usize, String)>> {
        Ok(self.first(&self.expressions.evaluate_whole(batch)?))
    }
}
