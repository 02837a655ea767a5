//! Many rows that an `INSERT` spells out in plain literals and parameters, read into its table's types without being planned.
//!
//! DataFusion takes each value for an expression that every rule is to look at, which took seven eighths of the time of a
//! statement of 1,024 rows. (Drivers make such statements of many single ones: JDBC's `reWriteBatchedInserts`.)

use crate::parameters::parameter;
use crate::query::ParameterFields;
use arrow::array::{Array, ArrayRef, RecordBatch, StringViewBuilder, new_null_array};
use arrow::compute::concat;
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::catalog::MemTable;
use datafusion::common::TableReference;
use datafusion::datasource::provider_as_source;
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::sqlparser::ast::{Expr, Query, SetExpr, UnaryOperator, Value, ValueWithSpan};
use std::sync::Arc;
use tidepool_base::{Result, SqlType};
use tidepool_database::text::{TextReader, TextSettings};

/// Fewer rows are planned, and `EXPLAIN` shows them.
const ROWS_MIN: usize = 16;

enum Literal<'a> {
    Null,
    Text(&'a str),
    Number { is_negative: bool, digits: &'a str },
    Boolean(bool),
}

fn literal(expr: &Expr) -> Option<Literal<'_>> {
    match expr {
        Expr::Value(ValueWithSpan { value, .. }) => match value {
            Value::Null => Some(Literal::Null),
            Value::SingleQuotedString(text) | Value::EscapedStringLiteral(text) => Some(Literal::Text(text)),
            Value::Number(digits, _) => Some(Literal::Number { is_negative: false, digits }),
            Value::Boolean(value) => Some(Literal::Boolean(*value)),
            _ => None,
        },
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => match literal(expr)? {
            Literal::Number { is_negative: false, digits } => Some(Literal::Number { is_negative: true, digits }),
            _ => None,
        },
        _ => None,
    }
}

/// Whether a literal of this kind is read as the type's text is.
fn is_read_by(literal: &Literal<'_>, sql_type: SqlType) -> bool {
    use SqlType as T;
    match (literal, sql_type) {
        (_, T::Interval | T::Bytea | T::Json | T::Jsonb) => false,
        (Literal::Null | Literal::Text(_), _) => true,
        (Literal::Number { digits, .. }, T::SmallInt | T::Integer | T::BigInt) => {
            digits.bytes().all(|byte| byte.is_ascii_digit())
        }
        (Literal::Number { .. }, T::Numeric { .. } | T::UnconstrainedNumeric | T::Real | T::DoublePrecision) => true,
        (Literal::Boolean(_), T::Boolean) => true,
        _ => false,
    }
}

/// A column's values. `None` where one of them needs to be planned, if only for its error.
fn column<'a>(values: impl Iterator<Item = &'a Expr>, sql_type: SqlType, settings: &TextSettings) -> Option<ArrayRef> {
    let values = values.map(|expr| literal(expr).filter(|literal| is_read_by(literal, sql_type)));
    if matches!(sql_type, SqlType::Text | SqlType::Varchar { .. } | SqlType::Char { .. }) {
        // As they are: lengths are the writer's to check.
        let mut texts = StringViewBuilder::new();
        for value in values {
            match value? {
                Literal::Null => texts.append_null(),
                Literal::Text(text) => texts.try_append_value(text).ok()?,
                _ => return None,
            }
        }
        return Some(Arc::new(texts.finish()));
    }
    let mut reader = TextReader::new(sql_type, settings);
    let mut negated = String::new();
    for value in values {
        let text = match value? {
            Literal::Null => {
                reader.append_null();
                continue;
            }
            Literal::Text(text) | Literal::Number { is_negative: false, digits: text } => text,
            Literal::Number { is_negative: true, digits } => {
                negated.clear();
                negated.push('-');
                negated.push_str(digits);
                &negated
            }
            Literal::Boolean(true) => "true",
            Literal::Boolean(false) => "false",
        };
        reader.append(text).ok()?;
    }
    Some(reader.finish())
}

/// Parameters of a statement: their types, and where it is not only described an array of one value for each.
pub struct Given<'a> {
    pub fields: &'a ParameterFields,
    pub values: &'a [ArrayRef],
}

/// Whether an assignment makes one of the other by the same cast wherever it is written.
fn is_taken_for(given: &DataType, column: &DataType) -> bool {
    let is_decimal = |of: &DataType| matches!(of, DataType::Decimal128(..)) || crate::numerics::is_numeric(of);
    let are_decimals = is_decimal(given) && is_decimal(column);
    let are = |kind: fn(&DataType) -> bool| kind(given) && kind(column);
    given == column
        || are_decimals
        || are(DataType::is_integer)
        || are(DataType::is_floating)
        || are(DataType::is_string)
}

impl Given<'_> {
    /// A column's values that are parameters, all of one type. `None` where they need to be planned.
    fn column<'a>(&self, cells: impl Iterator<Item = &'a Expr>, sql_type: SqlType) -> Option<ArrayRef> {
        // Text that is to be read as it is put in.
        if sql_type.is_json() {
            return None;
        }
        let numbers = cells.map(parameter).collect::<Option<Vec<_>>>()?;
        let column = tidepool_table::arrow_type(sql_type);
        if self.values.is_empty() {
            let data_type =
                |number: &usize| self.fields.get(number - 1)?.as_ref().map(|field| field.data_type().clone());
            let types = numbers.iter().map(data_type).collect::<Option<Vec<_>>>()?;
            let data_type = types.first()?;
            let is_one = types.iter().all(|other| other == data_type) && is_taken_for(data_type, &column);
            return is_one.then(|| new_null_array(data_type, numbers.len()));
        }
        let values = numbers.iter().map(|number| self.values.get(number - 1)).collect::<Option<Vec<_>>>()?;
        let data_type = values.first()?.data_type();
        if values.iter().any(|value| value.data_type() != data_type) || !is_taken_for(data_type, &column) {
            return None;
        }
        let values: Vec<&dyn Array> = values.into_iter().map(|value| value.as_ref()).collect();
        concat(&values).ok()
    }
}

/// Reads the rows of a query that is nothing but `VALUES`, for columns of these names and types. `None` where they are to be
/// planned like any other query.
pub fn plan(
    query: &Query,
    columns: &[(&str, SqlType)],
    settings: &TextSettings,
    given: &Given<'_>,
) -> Result<Option<LogicalPlan>> {
    let SetExpr::Values(values) = query.body.as_ref() else { return Ok(None) };
    let is_bare = query.with.is_none()
        && query.order_by.is_none()
        && query.limit_clause.is_none()
        && query.fetch.is_none()
        && query.locks.is_empty();
    if !is_bare || values.rows.len() < ROWS_MIN || values.rows.iter().any(|row| row.content.len() != columns.len()) {
        return Ok(None);
    }
    let (mut fields, mut arrays) = (Vec::new(), Vec::new());
    for (place, (name, sql_type)) in columns.iter().enumerate() {
        let cells = values.rows.iter().map(|row| &row.content[place]);
        let data_type = tidepool_table::arrow_type(*sql_type);
        let read = match cells.clone().next().and_then(parameter) {
            Some(_) => given.column(cells, *sql_type),
            None => column(cells, *sql_type, settings).filter(|array| *array.data_type() == data_type),
        };
        let Some(array) = read else { return Ok(None) };
        fields.push(match sql_type {
            // Among texts, only its field tells it.
            SqlType::Uuid => crate::types::field(name, *sql_type),
            _ => Field::new(*name, array.data_type().clone(), true),
        });
        arrays.push(array);
    }
    let schema = Arc::new(Schema::new(fields));
    let batch = RecordBatch::try_new(schema.clone(), arrays).map_err(crate::errors::from_arrow)?;
    let table = MemTable::try_new(schema, vec![vec![batch]]).map_err(crate::errors::from_datafusion)?;
    LogicalPlanBuilder::scan(TableReference::bare("*VALUES*"), provider_as_source(Arc::new(table)), None)
        .and_then(LogicalPlanBuilder::build)
        .map(Some)
        .map_err(crate::errors::from_datafusion)
}
