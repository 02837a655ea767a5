//! Queries within a statement that lock rows: they run before it, one after another, and their rows take their places.
//!
//! A part is run once, whatever the statement then needs of it, and sees nothing of what the statement writes. So one that
//! is correlated with the query around it is refused.

use super::read::{Reader, Reading, Scope, stronger};
use crate::facts::SessionFacts;
use crate::insert::object_name;
use crate::names::OutputNames;
use crate::resolve::BY_ID;
use crate::statement::locking::{has_locks, is_limited, strip, take};
use crate::statement::{Command, QualifiedName, Statement, VisitQueries, fold};
use crate::walk::{walk, walk_mut};
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Schema};
use datafusion::sql::sqlparser::ast::{self, VisitorMut};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use tidepool_base::{Error, Result};
use tidepool_database::LockWait;
use tidepool_table::rows::RowLock;

/// A query that runs before its statement.
pub struct Part {
    pub reading: Reading,
    /// Names of its columns, if they are not its outputs'.
    pub columns: Option<Vec<String>>,
}

impl Part {
    pub fn strengthen(&mut self, lock: RowLock, wait: LockWait) {
        self.reading.targets.iter_mut().for_each(|target| stronger(target, lock, wait));
    }
}

/// What a part's rows are called, in schema `pg_oid`.
pub fn name(number: usize) -> String {
    format!("\u{1}part{number}")
}

pub fn name_of(number: usize) -> ast::ObjectName {
    ast::ObjectName::from(vec![ast::Ident::with_quote('"', BY_ID), ast::Ident::with_quote('"', name(number))])
}

pub fn part_number(name: &QualifiedName) -> Option<usize> {
    name.schema.as_deref().filter(|schema| *schema == BY_ID)?;
    name.name.strip_prefix("\u{1}part")?.parse().ok()
}

/// `SELECT * FROM` a part.
pub fn all_of_part(number: usize) -> Result<ast::Query> {
    let table = ast::TableFactor::Table {
        name: name_of(number),
        alias: None,
        args: None,
        with_hints: Vec::new(),
        version: None,
        with_ordinality: false,
        partitions: Vec::new(),
        json_path: None,
        sample: None,
        index_hints: Vec::new(),
    };
    let mut query = crate::statement::parse_query("SELECT *")?;
    if let ast::SetExpr::Select(select) = query.body.as_mut() {
        select.from = vec![ast::TableWithJoins { relation: table, joins: Vec::new() }];
    }
    Ok(query)
}

/// A statement, and what runs before it.
pub struct Parted {
    pub statement: Statement,
    pub parts: Vec<Part>,
    /// Of a query that locks rows.
    pub reading: Option<Reading>,
}

/// Takes the queries that lock rows out of a statement.
pub fn of(facts: &Arc<SessionFacts>, statement: &Statement) -> Result<Parted> {
    let mut command = match statement.command() {
        Command::Copy(copy) => match &copy.source {
            crate::statement::CopySource::Query(query) => query.command().clone(),
            crate::statement::CopySource::Table { .. } => return Err(Error::internal("a table makes no query")),
        },
        command => command.clone(),
    };
    let mut extract =
        Extract { reader: Reader::new(facts), scopes: vec![Scope::default()], withs: Vec::new(), error: None };
    command.visit_queries(&mut extract);
    if let Some(error) = extract.error {
        return Err(error);
    }
    let mut reader = extract.reader;
    let mut reading = None;
    if let Command::Locking { query, clauses } = &command {
        match statement.command() {
            Command::Copy(_) => {
                let number = reader.part(query.clone(), clauses, None, None)?;
                command = Command::Query(Box::new(all_of_part(number)?));
            }
            _ => reading = Some(reader.read(query.clone(), clauses, None)?),
        }
    }
    Ok(Parted { statement: statement.rewritten(command), parts: reader.parts, reading })
}

/// The statement without its locking clauses: of the same columns and parameters.
pub fn without_locks(statement: &Statement) -> Statement {
    struct Strip;
    impl VisitQueries for Strip {
        fn visit<T: ast::Visit + ast::VisitMut>(&mut self, with: Option<&mut ast::With>, node: &mut T) {
            with.into_iter().for_each(strip);
            strip(node);
        }
    }
    let mut command = statement.command().clone();
    command.visit_queries(&mut Strip);
    statement.rewritten(command)
}

/// Rows of a part up to which they are written into conditions, where an index may find what they ask for.
const INLINED_MAX: usize = 100;

/// The values of a part's one column, as literals of its type; `None` where they are many, or of a type whose literals
/// are not as good as its values.
pub fn literals(schema: &Schema, rows: &[RecordBatch]) -> Result<Option<Literals>> {
    let [column] = schema.fields().iter().as_slice() else { return Ok(None) };
    let name = match column.data_type() {
        DataType::Int16 => "SMALLINT",
        DataType::Int32 => "INTEGER",
        DataType::Int64 => "BIGINT",
        DataType::Utf8View => "TEXT",
        _ => return Ok(None),
    };
    let count: usize = rows.iter().map(RecordBatch::num_rows).sum();
    if count > INLINED_MAX || rows.iter().any(|rows| rows.column(0).null_count() > 0) {
        return Ok(None);
    }
    let literal =
        |text: &str| crate::statement::parse_expression(&format!("CAST('{}' AS {name})", text.replace('\'', "''")));
    let mut values = Vec::with_capacity(count);
    for rows in rows {
        let texts = arrow::compute::cast(rows.column(0), &DataType::Utf8View).map_err(crate::errors::from_arrow)?;
        let texts = texts.as_string_view_opt().into_iter().flatten().flatten();
        values.extend(texts.map(literal).collect::<Result<Vec<_>>>()?);
    }
    let null = crate::statement::parse_expression(&format!("CAST(NULL AS {name})"))?;
    Ok(Some(Literals { values, null }))
}

/// What takes the place of a part in conditions.
pub struct Literals {
    values: Vec<ast::Expr>,
    null: ast::Expr,
}

/// Puts literals in the place of a part: of `x IN (part)`, and of `x = (part)`.
pub fn inline(number: usize, literals: &Literals, node: &mut impl ast::VisitMut) {
    let _ = walk_mut(node, &mut Inline { number, literals });
}

/// As [`inline`], of a whole statement.
pub fn inline_into(number: usize, literals: &Literals, statement: &Statement) -> Statement {
    let mut command = statement.command().clone();
    command.visit_queries(&mut Inline { number, literals });
    statement.rewritten(command)
}

struct Inline<'a> {
    number: usize,
    literals: &'a Literals,
}

impl VisitQueries for Inline<'_> {
    fn visit<T: ast::Visit + ast::VisitMut>(&mut self, with: Option<&mut ast::With>, node: &mut T) {
        let _ = with.map(|with| walk_mut(with, self));
        let _ = walk_mut(node, self);
    }
}

impl Inline<'_> {
    fn is_part(&self, query: &ast::Query) -> bool {
        let ast::SetExpr::Select(select) = query.body.as_ref() else { return false };
        match select.from.as_slice() {
            [ast::TableWithJoins { relation: ast::TableFactor::Table { name, alias: None, .. }, joins }] => {
                let number = object_name(name).ok().and_then(|name| part_number(&name));
                joins.is_empty() && number == Some(self.number)
            }
            _ => false,
        }
    }
}

impl VisitorMut for Inline<'_> {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut ast::Expr) -> ControlFlow<()> {
        let Literals { values, null } = self.literals;
        match expr {
            ast::Expr::InSubquery { expr: value, subquery, negated: false } if self.is_part(subquery) => {
                *expr = match values.is_empty() {
                    true => ast::Expr::value(ast::Value::Boolean(false)),
                    false => ast::Expr::InList { expr: value.clone(), list: values.clone(), negated: false },
                };
            }
            ast::Expr::BinaryOp { left, op: ast::BinaryOperator::Eq, right } if values.len() <= 1 => {
                for side in [left, right] {
                    if let ast::Expr::Subquery(query) = side.as_ref()
                        && self.is_part(query)
                    {
                        **side = values.first().unwrap_or(null).clone();
                    }
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

struct Extract<'a> {
    reader: Reader<'a>,
    /// What the queries under way may read.
    scopes: Vec<Scope>,
    /// `WITH` of the queries under way, which has been visited.
    withs: Vec<Option<ast::With>>,
    error: Option<Error>,
}

impl VisitQueries for Extract<'_> {
    fn visit<T: ast::Visit + ast::VisitMut>(&mut self, with: Option<&mut ast::With>, node: &mut T) {
        let visit = || {
            let names = relations_of(node);
            if let Some(with) = with {
                self.with(with, &names)?;
            }
            walk_mut(node, self)
        };
        if let ControlFlow::Break(error) = visit() {
            self.error = Some(error);
        }
    }
}

impl Extract<'_> {
    /// `read`: names of relations that are read beside it.
    fn with(&mut self, with: &mut ast::With, read: &BTreeSet<String>) -> ControlFlow<Error> {
        let within = relations_of(with);
        for place in 0..with.cte_tables.len() {
            let table = &mut with.cte_tables[place];
            let name = fold(&table.alias.name);
            if has_locks(table.query.as_ref()) {
                if with.recursive && relations_of(table.query.as_ref()).contains(&name) {
                    let message = "FOR UPDATE/SHARE in a recursive query is not implemented";
                    return ControlFlow::Break(Error::unsupported(message));
                }
                // What nobody reads is not run.
                if !read.contains(&name) && !within.contains(&name) {
                    strip(table.query.as_mut());
                }
            }
            walk_mut(table.query.as_mut(), self)?;
            if let Some(scope) = self.scopes.last_mut() {
                scope.tables.retain(|around| fold(&around.alias.name) != name);
                scope.tables.push(table.clone());
                scope.recursive |= with.recursive;
            }
        }
        ControlFlow::Continue(())
    }

    fn extract(&mut self, query: &mut ast::Query) -> Result<()> {
        let clauses = take(query);
        let own = self.scopes.last().cloned().unwrap_or_default().around(query.clone());
        let name = OutputNames::of(&own).only();
        *query = all_of_part(self.reader.part(own, &clauses, None, None)?)?;
        if let (Some(name), ast::SetExpr::Select(select)) = (name, query.body.as_mut()) {
            // What is called after it keeps its name.
            let column = ast::Expr::Identifier(ast::Ident::with_quote('"', name));
            select.projection = vec![ast::SelectItem::UnnamedExpr(column)];
        }
        Ok(())
    }
}

impl VisitorMut for Extract<'_> {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut ast::Query) -> ControlFlow<Error> {
        if let ast::SetExpr::SetOperation { left, right, .. } = query.body.as_ref() {
            for side in [left, right] {
                if let ast::SetExpr::Query(side) = side.as_ref()
                    && !side.locks.is_empty()
                {
                    let message = "FOR UPDATE is not allowed with UNION/INTERSECT/EXCEPT";
                    return ControlFlow::Break(Error::unsupported(message));
                }
            }
        }
        let scope = self.scopes.last().cloned().unwrap_or_default();
        self.scopes.push(scope);
        let mut with = query.with.take();
        if let Some(with) = &mut with {
            let read = relations_of(query);
            self.with(with, &read)?;
        }
        self.withs.push(with);
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &mut ast::Query) -> ControlFlow<Error> {
        query.with = self.withs.pop().flatten();
        self.scopes.pop();
        if !query.locks.is_empty()
            && let Err(error) = self.extract(query)
        {
            return ControlFlow::Break(error);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut ast::Expr) -> ControlFlow<Error> {
        if let ast::Expr::Exists { subquery, .. } = expr
            && !subquery.locks.is_empty()
            && !is_limited(subquery)
        {
            // One row tells.
            let limit = Some(ast::Expr::value(ast::Value::Number("1".to_owned(), false)));
            subquery.limit_clause = Some(ast::LimitClause::LimitOffset { limit, offset: None, limit_by: Vec::new() });
        }
        ControlFlow::Continue(())
    }
}

/// Names of relations in a node, without those in a schema.
fn relations_of(node: &impl ast::Visit) -> BTreeSet<String> {
    struct Relations(BTreeSet<String>);
    impl ast::Visitor for Relations {
        type Break = ();
        fn pre_visit_relation(&mut self, name: &ast::ObjectName) -> ControlFlow<()> {
            if let [part] = name.0.as_slice() {
                self.0.extend(part.as_ident().map(fold));
            }
            ControlFlow::Continue(())
        }
    }
    let mut relations = Relations(BTreeSet::new());
    let _ = walk(node, &mut relations);
    relations.0
}
