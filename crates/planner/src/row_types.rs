//! Types of columns that several rows or queries fill: `VALUES` lists, unions, and the two terms of a recursive query.
//!
//! As in PostgreSQL, numbers of unlike kinds become the larger kind, and a declared length is kept only where all agree on it. DataFusion
//! takes the first one's, which cuts the others, and refuses what differs in metadata alone.

use crate::errors::carry;
use crate::numerics::{self, NUMERIC};
use crate::rewrites::RewritePlan;
use crate::types::{TYPE_OID_METADATA, declared_type};
use crate::walk::walk_mut;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::metadata::FieldMetadata;
use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::common::{Column, DFSchema, Result, ScalarValue, TableReference};
use datafusion::logical_expr::expr::Cast;
use datafusion::logical_expr::planner::{PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning};
use datafusion::logical_expr::type_coercion::binary::type_union_resolution;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, Projection, Union, Values};
use datafusion::sql::sqlparser::ast::{self, Query, SelectItem, SetExpr, SetOperator, TableFactor, VisitorMut};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use tidepool_base::{Error, SqlState, SqlType};

/// Has all `VALUES` lists of a query planned by [`ValuesLists`], but the rows of an `INSERT`; and the numbers of recursive queries be ones
/// that each have a scale. 42601 for a subquery without columns that is to be a value.
pub fn prepare(query: &mut Query, assigned: bool) -> tidepool_base::Result<()> {
    if !(assigned && matches!(query.body.as_ref(), SetExpr::Values(_))) {
        wrap(&mut query.body);
    }
    match walk_mut(query, &mut Prepare) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

/// `SELECT FROM …`, which DataFusion does not look for where it takes the first column.
fn has_no_columns(query: &Query) -> bool {
    let mut body = &query.body;
    loop {
        match body.as_ref() {
            SetExpr::Select(select) => return select.projection.is_empty(),
            SetExpr::Query(query) => body = &query.body,
            SetExpr::SetOperation { left, .. } => body = left,
            _ => return false,
        }
    }
}

/// `VALUES …` as `SELECT * FROM (VALUES …)`.
fn wrap(body: &mut Box<SetExpr>) {
    match body.as_mut() {
        SetExpr::SetOperation { left, right, .. } => {
            wrap(left);
            wrap(right);
        }
        SetExpr::Values(_) => {
            let Ok(mut select) = crate::statement::parse_query("SELECT * FROM (SELECT 1) AS \"*VALUES*\"") else {
                return;
            };
            let values = std::mem::replace(body.as_mut(), SetExpr::Query(Box::new(select.clone())));
            if let SetExpr::Select(outer) = select.body.as_mut()
                && let Some(TableFactor::Derived { subquery, .. }) =
                    outer.from.first_mut().map(|from| &mut from.relation)
            {
                *subquery.body = values;
            }
            *body = select.body;
        }
        _ => {}
    }
}

struct Prepare;

impl VisitorMut for Prepare {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        let Some(with) = &mut query.with else { return ControlFlow::Continue(()) };
        for cte in &mut with.cte_tables {
            if with.recursive
                && let SetExpr::SetOperation { op: SetOperator::Union, left, right, .. } = cte.query.body.as_mut()
            {
                open(left);
                open(right);
            }
            wrap(&mut cte.query.body);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut ast::Expr) -> ControlFlow<Error> {
        let lacking = match expr {
            ast::Expr::Subquery(query) if has_no_columns(query) => Some("subquery must return only one column"),
            ast::Expr::InSubquery { subquery, .. } if has_no_columns(subquery) => Some("subquery has too few columns"),
            _ => None,
        };
        if let Some(message) = lacking {
            return ControlFlow::Break(Error::new(SqlState::SYNTAX_ERROR, message));
        }
        if let ast::Expr::Subquery(query)
        | ast::Expr::InSubquery { subquery: query, .. }
        | ast::Expr::Exists { subquery: query, .. } = expr
        {
            wrap(&mut query.body);
        }
        if let ast::Expr::UnaryOp { op: ast::UnaryOperator::Minus, expr: of } = expr
            && !matches!(of.as_ref(), ast::Expr::Value(_))
        {
            // DataFusion negates only what it knows for a number.
            let of = std::mem::replace(of.as_mut(), ast::Expr::value(ast::Value::Null));
            *expr = called(NEGATE, of);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        // A list that is a relation is planned as it is.
        if let TableFactor::Derived { subquery, .. } = factor
            && !is_plain(subquery)
        {
            wrap(&mut subquery.body);
        }
        ControlFlow::Continue(())
    }
}

/// Nothing but its body.
fn is_plain(query: &Query) -> bool {
    query.with.is_none()
        && query.order_by.is_none()
        && query.limit_clause.is_none()
        && query.fetch.is_none()
        && query.locks.is_empty()
        && matches!(query.body.as_ref(), SetExpr::Values(_))
}

/// The name of a function that stands for a minus before a value.
pub const NEGATE: &str = "tidepool_negate";

/// A function's call.
fn called(name: &str, argument: ast::Expr) -> ast::Expr {
    ast::Expr::Function(ast::Function {
        name: ast::ObjectName::from(vec![ast::Ident::new(name)]),
        uses_odbc_syntax: false,
        parameters: ast::FunctionArguments::None,
        args: ast::FunctionArguments::List(ast::FunctionArgumentList {
            duplicate_treatment: None,
            args: vec![ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(argument))],
            clauses: vec![],
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: vec![],
    })
}

/// The name of a function that makes decimals numbers that each have a scale, and lets all else pass.
pub const OPEN: &str = "tidepool_open";

/// Has the outputs of a recursive query's term be of types that the rounds to come fit.
fn open(term: &mut SetExpr) {
    let call = |expr: &mut ast::Expr| {
        let is_literal = matches!(expr, ast::Expr::Value(value)
            if matches!(value.value, ast::Value::SingleQuotedString(_) | ast::Value::Null | ast::Value::Placeholder(_)));
        if is_literal {
            return;
        }
        let inner = std::mem::replace(expr, ast::Expr::value(ast::Value::Null));
        *expr = called(OPEN, inner);
    };
    match term {
        SetExpr::Select(select) => {
            for item in &mut select.projection {
                match item {
                    SelectItem::UnnamedExpr(expr) => {
                        let name = crate::names::expression_name(expr);
                        let mut expr = std::mem::replace(expr, ast::Expr::value(ast::Value::Null));
                        call(&mut expr);
                        *item = SelectItem::ExprWithAlias { expr, alias: ast::Ident::with_quote('"', name) };
                    }
                    SelectItem::ExprWithAlias { expr, .. } => call(expr),
                    _ => {}
                }
            }
        }
        SetExpr::SetOperation { left, right, .. } => {
            open(left);
            open(right);
        }
        SetExpr::Values(values) => values.rows.iter_mut().flat_map(|row| &mut row.content).for_each(call),
        SetExpr::Query(query) if query.with.is_none() => open(&mut query.body),
        _ => {}
    }
}

/// Plans `VALUES` lists that are relations.
#[derive(Debug)]
pub struct ValuesLists;

impl RelationPlanner for ValuesLists {
    fn plan_relation(
        &self,
        relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<RelationPlanning> {
        let original = |relation: TableFactor| Ok(RelationPlanning::Original(Box::new(relation)));
        let TableFactor::Derived { subquery, alias, .. } = &relation else { return original(relation) };
        let SetExpr::Values(list) = subquery.body.as_ref() else { return original(relation) };
        let width = list.rows.first().map_or(0, |row| row.content.len());
        if !is_plain(subquery)
            || list.value_keyword
            || width == 0
            || list.rows.iter().any(|row| row.content.len() != width)
        {
            return original(relation);
        }
        let nothing = DFSchema::empty();
        let mut rows = Vec::with_capacity(list.rows.len());
        for row in &list.rows {
            let cells = row.content.iter().map(|cell| context.sql_to_expr(cell.clone(), &nothing));
            rows.push(cells.collect::<Result<Vec<Expr>>>()?);
        }
        match list_of(rows)? {
            Some(plan) => Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(plan, alias.clone())))),
            None => original(relation),
        }
    }
}

fn is_text(data_type: &DataType) -> bool {
    data_type.is_string()
}

/// A literal that is of the type of what is beside it.
fn is_open(cell: &Expr) -> bool {
    matches!(cell, Expr::Literal(ScalarValue::Utf8(_) | ScalarValue::Utf8View(_) | ScalarValue::Null, None))
}

/// The type of values of both types, as PostgreSQL settles it. `None` where there is none.
pub fn common(left: &DataType, right: &DataType) -> Option<DataType> {
    let exact = |of: &DataType| numerics::is_exact(of);
    Some(match (left, right) {
        (left, right) if left == right => left.clone(),
        (DataType::Null, other) | (other, DataType::Null) => other.clone(),
        (DataType::Decimal128(first, scale), DataType::Decimal128(second, other)) if scale == other => {
            DataType::Decimal128(*first.max(second), *scale)
        }
        (left, right) if left.is_integer() && right.is_integer() => {
            type_union_resolution(&[left.clone(), right.clone()])?
        }
        (left, right) if exact(left) && exact(right) => NUMERIC,
        (float, number) | (number, float) if float.is_floating() && exact(number) => float.clone(),
        (left, right) if is_text(left) && is_text(right) => DataType::Utf8View,
        (left, right) => type_union_resolution(&[left.clone(), right.clone()])?,
    })
}

/// A list's plan, its columns called as PostgreSQL calls them. `None` for values that have no common type.
fn list_of(mut rows: Vec<Vec<Expr>>) -> Result<Option<LogicalPlan>> {
    let nothing = DFSchema::empty();
    let width = rows.first().map_or(0, Vec::len);
    let mut fields = Vec::with_capacity(width);
    for column in 0..width {
        let mut data_type: Option<DataType> = None;
        let mut metadata: Option<FieldMetadata> = None;
        let mut is_one = true;
        let mut has_open_text = false;
        for cell in rows.iter().map(|row| &row[column]) {
            if is_open(cell) {
                has_open_text |= !matches!(cell, Expr::Literal(ScalarValue::Null, _));
                // An untyped text has no declared length that others could keep.
                is_one &= matches!(cell, Expr::Literal(ScalarValue::Null, _));
                continue;
            }
            let (_, field) = cell.to_field(&nothing)?;
            if matches!(cell, Expr::Placeholder(_)) && *field.data_type() == DataType::Null {
                continue;
            }
            let found = FieldMetadata::from(field.as_ref());
            is_one &= metadata.as_ref().is_none_or(|known| *known == found);
            metadata.get_or_insert(found);
            data_type = match data_type {
                None => Some(field.data_type().clone()),
                Some(known) => match common(&known, field.data_type()) {
                    Some(both) => Some(both),
                    None => return Ok(None),
                },
            };
        }
        let data_type = match data_type {
            Some(of) if of != DataType::Null => of,
            _ if has_open_text => DataType::Utf8View,
            _ => DataType::Null,
        };
        let field = Field::new(format!("column{}", column + 1), data_type, true);
        // Only lengths are dropped by what says nothing of them; other marks tell what the values are.
        let keeps =
            metadata.as_ref().is_some_and(|_| is_one) || has_open_text && metadata.as_ref().is_some_and(is_mark);
        fields.push(match metadata {
            Some(metadata) if keeps => metadata.add_to_field(field),
            _ => field,
        });
    }
    for row in &mut rows {
        for (cell, field) in row.iter_mut().zip(&fields) {
            let target = field.data_type();
            if let Expr::Literal(ScalarValue::Null, _) = cell {
                *cell = Expr::Literal(ScalarValue::try_from(target)?, None);
            } else if cell.get_type(&nothing).is_ok_and(|of| of != *target)
                && !matches!(cell, Expr::Placeholder(of) if of.field.is_none())
            {
                *cell = match numerics::is_numeric(target) && !is_open(cell) {
                    true => numerics::as_numeric(std::mem::take(cell)),
                    false => Expr::Cast(Cast::new_from_field(
                        Box::new(std::mem::take(cell)),
                        Arc::new(field.clone().with_name("")),
                    )),
                };
            }
        }
    }
    let schema = Arc::new(DFSchema::from_unqualified_fields(fields.into(), HashMap::new())?);
    Ok(Some(LogicalPlan::Values(Values { schema, values: rows })))
}

/// Whether a field's metadata says what its values are, beside how long they may be.
fn is_mark(metadata: &FieldMetadata) -> bool {
    let field = metadata.add_to_field(Field::new("", DataType::Utf8View, true));
    matches!(declared_type(&field), Some(SqlType::Uuid | SqlType::Json | SqlType::Jsonb))
        || field.metadata().contains_key(TYPE_OID_METADATA)
}

/// Leaves declared lengths out of unions whose parts do not agree on them.
pub fn settle(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut found = false;
    plan.rewrite_up_with_subqueries(&mut |node| {
        let node = match node {
            LogicalPlan::Union(union) => without_lengths(union)?,
            node => Transformed::no(node),
        };
        found |= node.transformed;
        if found { node.data.recompute_schema().map(Transformed::yes) } else { Ok(node) }
    })
    .data()
}

fn without_lengths(mut union: Union) -> Result<Transformed<LogicalPlan>> {
    let length = |field: &FieldRef| match declared_type(field) {
        Some(declared @ (SqlType::Varchar { length_max: Some(_) } | SqlType::Char { .. })) => Some(declared),
        Some(declared) if crate::rounding::has_precision(declared) => Some(declared),
        _ => None,
    };
    // A key of `ORDER BY` that only the first part has: its outputs are named, and not what they are of.
    let missing = (0..union.schema.fields().len())
        .find(|column| union.inputs.iter().any(|input| input.schema().fields().len() <= *column));
    if let Some(column) = missing {
        let name = union.schema.field(column).name();
        let message = format!("column \"{name}\" does not exist");
        return Err(carry(Error::new(SqlState::UNDEFINED_COLUMN, message)));
    }
    let unlike: Vec<usize> = (0..union.schema.fields().len())
        .filter(|column| {
            let mut lengths = union.inputs.iter().map(|input| length(&input.schema().fields()[*column]));
            let first = lengths.next().flatten();
            lengths.any(|other| other != first)
        })
        .collect();
    if unlike.is_empty() {
        return Ok(Transformed::no(LogicalPlan::Union(union)));
    }
    for input in &mut union.inputs {
        let output = |(column, (qualifier, field)): (usize, (Option<&TableReference>, &FieldRef))| {
            let value = Expr::Column(Column::from((qualifier, field)));
            match unlike.contains(&column) && length(field).is_some() {
                true => {
                    numerics::call(numerics::Kind::Plain, vec![value]).alias_qualified(qualifier.cloned(), field.name())
                }
                false => value,
            }
        };
        let outputs: Vec<Expr> = input.schema().iter().enumerate().map(output).collect();
        *input = Arc::new(LogicalPlan::Projection(Projection::try_new(outputs, input.clone())?));
    }
    Ok(Transformed::yes(LogicalPlan::Union(Union::try_new_with_loose_types(union.inputs)?)))
}
