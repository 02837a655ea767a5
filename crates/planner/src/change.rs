//! `UPDATE` and `DELETE`: which rows change, and into what, as a plan.
//!
//! The plan is that of a query over the target and the relations after `FROM` or `USING`: the row's id, then, for an
//! `UPDATE`, the whole new row in the table's types, then what `RETURNING` asks for, which is evaluated over the new
//! row (of a `DELETE`, the old one) and the other relations' columns.

use crate::errors::from_datafusion;
use crate::facts::SessionFacts;
use crate::insert::{self, object_name};
use crate::query::{self, ParameterFields};
use crate::resolve::BY_ID;
use crate::row_expressions::ROW;
use crate::statement::current::cursor_of;
use crate::statement::{fold, parse_expression, parse_query};
use datafusion::arrow::datatypes::DataType;
use datafusion::catalog::TableProvider as DataFusionTable;
use datafusion::common::{Column, TableReference};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Cast, Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::sqlparser::ast;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidepool_base::{Error, Result, RowId, SqlState};
use tidepool_table::{Identity, ROW_ID, TableDef, TableVersion};

/// Outputs before the row's columns: the id.
pub const FIRST: usize = 1;

/// An `UPDATE` or `DELETE`, read off its syntax.
pub struct Change {
    pub version: Arc<TableVersion>,
    /// What columns of the target are qualified with.
    alias: ast::Ident,
    /// Of an `UPDATE`: the expression of each assigned column, by position.
    assigned: Option<BTreeMap<usize, ast::Expr>>,
    others: Vec<ast::TableWithJoins>,
    selection: Option<ast::Expr>,
    /// This row alone: a cursor's.
    row: Option<RowId>,
    returning: Option<Vec<ast::SelectItem>>,
    with: Option<ast::With>,
}

/// A change, planned.
pub struct Planned {
    pub plan: LogicalPlan,
    /// Columns before those of `RETURNING`.
    pub width: usize,
    /// Names of the columns that `RETURNING` gives back.
    pub returning: Option<Vec<String>>,
}

impl Change {
    /// What the table is called in the statement.
    pub fn alias(&self) -> String {
        fold(&self.alias)
    }

    pub fn is_update(&self) -> bool {
        self.assigned.is_some()
    }

    pub fn of_update(facts: &Arc<SessionFacts>, update: ast::Update, with: Option<ast::With>) -> Result<Change> {
        if update.output.is_some() || update.or.is_some() || !update.order_by.is_empty() || update.limit.is_some() {
            return Err(Error::new(SqlState::SYNTAX_ERROR, "this form of UPDATE is not PostgreSQL's"));
        }
        let others = match update.from {
            None => Vec::new(),
            Some(ast::UpdateTableFromKind::AfterSet(tables) | ast::UpdateTableFromKind::BeforeSet(tables)) => tables,
        };
        let mut change = Change::new(facts, update.table, others, update.selection, update.returning, with)?;
        change.assigned = Some(assignments(&change.version.def, update.assignments)?);
        Ok(change)
    }

    pub fn of_delete(facts: &Arc<SessionFacts>, delete: ast::Delete, with: Option<ast::With>) -> Result<Change> {
        let refused = || Error::new(SqlState::SYNTAX_ERROR, "this form of DELETE is not PostgreSQL's");
        if !delete.tables.is_empty() || delete.output.is_some() || !delete.order_by.is_empty() || delete.limit.is_some()
        {
            return Err(refused());
        }
        let (ast::FromTable::WithFromKeyword(tables) | ast::FromTable::WithoutKeyword(tables)) = delete.from;
        let [table] = <[_; 1]>::try_from(tables).map_err(|_| refused())?;
        Change::new(facts, table, delete.using.unwrap_or_default(), delete.selection, delete.returning, with)
    }

    fn new(
        facts: &Arc<SessionFacts>,
        table: ast::TableWithJoins,
        others: Vec<ast::TableWithJoins>,
        selection: Option<ast::Expr>,
        returning: Option<Vec<ast::SelectItem>>,
        with: Option<ast::With>,
    ) -> Result<Change> {
        let ast::TableFactor::Table { name, alias, args: None, sample: None, .. } = table.relation else {
            return Err(Error::new(SqlState::SYNTAX_ERROR, "only a table can be changed"));
        };
        if !table.joins.is_empty() {
            return Err(Error::new(SqlState::SYNTAX_ERROR, "the table to be changed cannot be joined here")
                .with_hint("Name other tables after FROM or USING."));
        }
        let named = object_name(&name)?;
        let version = crate::resolve::table(facts, &named)?;
        if alias.as_ref().is_some_and(|alias| !alias.columns.is_empty()) {
            return Err(Error::new(SqlState::SYNTAX_ERROR, "columns of the table to be changed cannot be renamed"));
        }
        let alias = alias.map_or_else(|| ast::Ident::with_quote('"', &named.name), |alias| alias.name);
        // Of `WHERE CURRENT OF` the session tells the row.
        let selection = selection.filter(|condition| cursor_of(Some(condition)).is_none());
        Ok(Change { version, alias, assigned: None, others, selection, row: None, returning, with })
    }

    /// Changes this row alone.
    pub fn pick(&mut self, row: RowId) {
        self.row = Some(row);
    }

    /// Type oids of the parameters: those given, else of a column for one that is assigned to it as it stands.
    pub fn parameters(&self, given: &[u32]) -> Vec<u32> {
        let mut oids = given.to_vec();
        insert::settle_values(&self.version.def, self.assigned.iter().flatten(), &mut oids);
        oids
    }

    pub fn plan(
        mut self,
        state: &SessionState,
        facts: &Arc<SessionFacts>,
        parameters: ParameterFields,
    ) -> Result<Planned> {
        let def = self.version.def.clone();
        let returning = self.returning.take();
        let is_update = self.is_update();
        // Of a DELETE the rows themselves matter to RETURNING alone.
        let row = if is_update || returning.is_some() { def.columns.len() } else { 0 };
        let version = self.version.clone();
        let provider: Arc<dyn DataFusionTable> = match self.row {
            Some(row) => crate::scan::TableProvider::of_row(&facts.version, version, row)?,
            None => crate::scan::TableProvider::with_row_ids(&facts.version, version, 0)?,
        };
        let query = self.query(row, returning.is_some())?;
        let source = query::logical_plan_of_rows(state, facts, query, parameters.clone(), provider)?;

        let input = |index: usize| Expr::Column(Column::from(source.schema().qualified_field(index)));
        let alias = fold(&self.alias);
        // What leaves a plan has a type of SQL's.
        let id = Expr::Cast(Cast::new(Box::new(input(0)), DataType::Int64));
        let mut outputs = vec![id.alias(ROW_ID)];
        let columns: Vec<usize> = (0..row).collect();
        let values = if is_update {
            insert::assigned(&source, 1, &columns, &def)?
        } else {
            columns.iter().map(|column| input(1 + column)).collect()
        };
        let qualified = |(column, value): (usize, Expr)| {
            value.alias_qualified(Some(TableReference::bare(alias.as_str())), &def.columns[column].name)
        };
        outputs.extend(values.into_iter().enumerate().map(qualified));
        let width = if is_update { 1 + row } else { 1 };
        outputs.extend((1 + row..source.schema().fields().len()).map(input));
        let plan = LogicalPlanBuilder::from(source)
            .project(outputs)
            .and_then(LogicalPlanBuilder::build)
            .map_err(from_datafusion)?;
        let Some(items) = returning else { return Ok(Planned { plan, width, returning: None }) };

        let (plan, names) = query::returning(state, facts, items, plan, FIRST, width, parameters)?;
        Ok(Planned { plan, width, returning: Some(names) })
    }

    /// The row's id, the first `row` columns of the new row, and with `all` those of the other relations.
    fn query(&mut self, row: usize, all: bool) -> Result<Box<ast::Query>> {
        let mut query = parse_query(&format!("SELECT NULL FROM {BY_ID}.\"{ROW}\" AS t"))?;
        let ast::SetExpr::Select(select) = query.body.as_mut() else {
            return Err(Error::internal("a SELECT that is none"));
        };
        let column =
            |name: &str| ast::Expr::CompoundIdentifier(vec![self.alias.clone(), ast::Ident::with_quote('"', name)]);
        let item = |expr: ast::Expr, name: String| ast::SelectItem::ExprWithAlias {
            expr,
            alias: ast::Ident::with_quote('"', name),
        };
        select.projection = vec![item(column(ROW_ID), ROW_ID.to_owned())];
        let mut assigned = self.assigned.take().unwrap_or_default();
        for (position, def) in self.version.def.columns.iter().enumerate().take(row) {
            let expr = assigned.remove(&position).unwrap_or_else(|| column(&def.name));
            select.projection.push(item(expr, format!("\u{1}{position}")));
        }
        if all {
            for relation in self.others.iter().flat_map(names_of) {
                let kind = ast::SelectItemQualifiedWildcardKind::ObjectName(ast::ObjectName::from(vec![relation]));
                let options = ast::WildcardAdditionalOptions::default();
                select.projection.push(ast::SelectItem::QualifiedWildcard(kind, options));
            }
        }
        if let Some(ast::TableFactor::Table { alias: Some(alias), .. }) =
            select.from.first_mut().map(|table| &mut table.relation)
        {
            alias.name = self.alias.clone();
        }
        select.from.append(&mut self.others);
        select.selection = self.selection.take();
        query.with = self.with.take();
        Ok(Box::new(query))
    }
}

/// What the columns of a relation after `FROM` are qualified with.
pub fn names_of(table: &ast::TableWithJoins) -> Vec<ast::Ident> {
    let name = |factor: &ast::TableFactor| match factor {
        ast::TableFactor::Table { name, alias, .. } => match alias {
            Some(alias) => vec![alias.name.clone()],
            None => name.0.last().and_then(|part| part.as_ident()).cloned().into_iter().collect(),
        },
        ast::TableFactor::Derived { alias, .. }
        | ast::TableFactor::Function { alias, .. }
        | ast::TableFactor::UNNEST { alias, .. } => alias.iter().map(|alias| alias.name.clone()).collect(),
        ast::TableFactor::NestedJoin { table_with_joins, alias: None } => names_of(table_with_joins),
        ast::TableFactor::NestedJoin { alias: Some(alias), .. } => vec![alias.name.clone()],
        _ => Vec::new(),
    };
    let joined = table.joins.iter().flat_map(|join| name(&join.relation));
    name(&table.relation).into_iter().chain(joined).collect()
}

/// The expression of each assigned column, by position. 42703 when there is no such column, 42601 when one is assigned
/// to twice.
pub fn assignments(def: &TableDef, list: Vec<ast::Assignment>) -> Result<BTreeMap<usize, ast::Expr>> {
    let mut assigned = BTreeMap::new();
    let mut assign = |name: &ast::ObjectName, value: ast::Expr| {
        let [part] = name.0.as_slice() else {
            return Err(Error::unsupported("fields of columns cannot be assigned to"));
        };
        let column = part.as_ident().map(fold).unwrap_or_default();
        let position = def.column_index(&column).ok_or_else(|| {
            Error::new(
                SqlState::UNDEFINED_COLUMN,
                format!("column \"{column}\" of relation \"{}\" does not exist", def.name),
            )
        })?;
        let definition = &def.columns[position];
        let value = if insert::is_default(&value) {
            match &definition.default {
                Some(text) => parse_expression(text)?,
                None => ast::Expr::value(ast::Value::Null),
            }
        } else if definition.identity == Some(Identity::Always) {
            let message = format!("column \"{column}\" can only be updated to DEFAULT");
            return Err(Error::new(SqlState::GENERATED_ALWAYS, message)
                .with_detail(format!("Column \"{column}\" is an identity column defined as GENERATED ALWAYS.")));
        } else {
            value
        };
        match assigned.insert(position, value) {
            None => Ok(()),
            Some(_) => {
                Err(Error::new(SqlState::SYNTAX_ERROR, format!("multiple assignments to same column \"{column}\"")))
            }
        }
    };
    for assignment in list {
        match assignment.target {
            ast::AssignmentTarget::ColumnName(name) => assign(&name, assignment.value)?,
            ast::AssignmentTarget::Tuple(names) => {
                let width = names.len();
                for (name, value) in names.iter().zip(row_values(assignment.value, width)?) {
                    assign(name, value)?;
                }
            }
        }
    }
    Ok(assigned)
}

/// The `width` values of a row: listed, or a subquery's outputs, which becomes a subquery for each.
fn row_values(value: ast::Expr, width: usize) -> Result<Vec<ast::Expr>> {
    let values = match value {
        ast::Expr::Tuple(values) => values,
        ast::Expr::Nested(value) if width == 1 => vec![*value],
        ast::Expr::Function(function) if is_row(&function) => match function.args {
            ast::FunctionArguments::List(list) => list
                .args
                .into_iter()
                .map(|argument| match argument {
                    ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr)) => Ok(expr),
                    _ => Err(Error::new(SqlState::SYNTAX_ERROR, "a row has values only")),
                })
                .collect::<Result<_>>()?,
            _ => Vec::new(),
        },
        ast::Expr::Subquery(query) => {
            let ast::SetExpr::Select(select) = query.body.as_ref() else {
                return Err(Error::unsupported("only a plain SELECT can be assigned to several columns"));
            };
            let outputs = select.projection.len();
            let of = |position: usize| {
                let mut query = query.clone();
                if let ast::SetExpr::Select(select) = query.body.as_mut() {
                    let item = select.projection.swap_remove(position);
                    select.projection = vec![item];
                }
                ast::Expr::Subquery(query)
            };
            (0..outputs).map(of).collect()
        }
        _ => {
            return Err(Error::unsupported(
                "source for a multiple-column UPDATE item must be a sub-SELECT or ROW() expression",
            ));
        }
    };
    if values.len() != width {
        return Err(Error::new(SqlState::SYNTAX_ERROR, "number of columns does not match number of values"));
    }
    Ok(values)
}

fn is_row(function: &ast::Function) -> bool {
    matches!(function.name.0.as_slice(), [part] if part.as_ident().is_some_and(|name| name.value.eq_ignore_ascii_case("row")))
}
