//! Partitions as statements write them, made into what the database takes.

use crate::facts::SessionFacts;
use crate::resolve;
use crate::row_expressions::{self, RowExpressions};
use crate::statement::{BoundClause, BoundValue, PartitionBy, QualifiedName};
use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::Schema;
use datafusion::sql::sqlparser::ast;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState};
use tidepool_database::text::{TextSettings, TextWriter};
use tidepool_table::{ColumnDef, PartitionBound, PartitionStrategy, Partitioning, RangeBound, TableDef, TableVersion};

/// Columns of a partition key: PostgreSQL's limit.
const KEY_COLUMNS_MAX: usize = 32;

fn invalid(message: impl Into<String>) -> Error {
    Error::new(SqlState::INVALID_TABLE_DEFINITION, message)
}

/// How a new table is partitioned. Its columns have their numbers.
pub fn partitioning(by: &PartitionBy, columns: &[ColumnDef]) -> Result<Partitioning> {
    let strategy = match by.strategy.as_str() {
        "range" => PartitionStrategy::Range,
        "list" => PartitionStrategy::List,
        "hash" => PartitionStrategy::Hash,
        other => {
            return Err(Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("unrecognized partitioning strategy \"{other}\""),
            ));
        }
    };
    if strategy == PartitionStrategy::List && by.columns.len() > 1 {
        return Err(Error::new(
            SqlState::INVALID_OBJECT_DEFINITION,
            "cannot use \"list\" partition strategy with more than one column",
        ));
    }
    if by.columns.len() > KEY_COLUMNS_MAX {
        return Err(Error::new(
            SqlState::TOO_MANY_COLUMNS,
            format!("cannot partition using more than {KEY_COLUMNS_MAX} columns"),
        ));
    }
    let number = |name: &String| {
        let column = columns.iter().find(|column| column.name == *name).ok_or_else(|| {
            Error::new(SqlState::UNDEFINED_COLUMN, format!("column \"{name}\" named in partition key does not exist"))
        })?;
        if column.sql_type.is_json() {
            let message =
                format!("data type {} has no default operator class for access method \"btree\"", column.sql_type);
            return Err(Error::new(SqlState::UNDEFINED_OBJECT, message));
        }
        Ok(column.number)
    };
    let columns = by.columns.iter().map(number).collect::<Result<_>>()?;
    Ok(Partitioning { strategy, columns, partitions: Vec::new() })
}

/// The partitioned table that a table is to be a partition of. 42P17 for one that is not partitioned.
pub fn parent(facts: &SessionFacts, name: &QualifiedName) -> Result<Arc<TableVersion>> {
    let table = resolve::table(facts, name)?;
    if table.def.partitioning.is_none() {
        let message = format!("\"{}\" is not partitioned", table.def.name);
        return Err(Error::new(SqlState::INVALID_OBJECT_DEFINITION, message));
    }
    Ok(table)
}

/// The columns that a new partition has from its table.
pub fn columns_of(parent: &TableDef) -> Vec<ColumnDef> {
    let own = |column: &ColumnDef| ColumnDef {
        number: 0,
        identity: None,
        // An identity column's values come with rows that are put into the partitioned table.
        default: column.default.clone().filter(|_| column.identity.is_none()),
        ..column.clone()
    };
    parent.columns.iter().map(own).collect()
}

/// Which rows a partition of `parent` is to have. 42P16 for a bound of another strategy's.
pub fn bound(facts: &Arc<SessionFacts>, parent: &TableDef, clause: &BoundClause) -> Result<PartitionBound> {
    let partitioning = parent.partitioning.as_ref().ok_or_else(|| Error::internal("a table is not partitioned"))?;
    let positions = parent.positions(&partitioning.columns);
    let columns: Vec<&ColumnDef> = positions.iter().map(|position| &parent.columns[*position]).collect();
    match (partitioning.strategy, clause) {
        (PartitionStrategy::Hash, BoundClause::Default) => {
            Err(invalid("a hash-partitioned table may not have a default partition"))
        }
        (_, BoundClause::Default) => Ok(PartitionBound::Default),
        (PartitionStrategy::Range, BoundClause::Range { from, to }) => Ok(PartitionBound::Range {
            from: range(facts, &columns, from, "FROM")?,
            to: range(facts, &columns, to, "TO")?,
        }),
        (PartitionStrategy::List, BoundClause::List(values)) => {
            let mut texts: Vec<Option<String>> = Vec::with_capacity(values.len());
            for value in values {
                let text = text(facts, columns[0], value)?;
                if !texts.contains(&text) {
                    texts.push(text);
                }
            }
            Ok(PartitionBound::List { values: texts })
        }
        (PartitionStrategy::Hash, BoundClause::Hash { modulus, remainder }) => {
            let positive = "modulus for hash partition must be an integer value greater than zero";
            let modulus =
                modulus.parse::<i32>().ok().filter(|modulus| *modulus > 0).ok_or_else(|| invalid(positive))?;
            let negative = "remainder for hash partition must be an integer value greater than or equal to zero";
            let remainder = remainder.parse::<i32>().ok().filter(|remainder| *remainder >= 0);
            let remainder = remainder.ok_or_else(|| invalid(negative))?;
            if remainder >= modulus {
                return Err(invalid("remainder for hash partition must be less than modulus"));
            }
            Ok(PartitionBound::Hash { modulus: modulus as u32, remainder: remainder as u32 })
        }
        (strategy, _) => Err(invalid(format!("invalid bound specification for a {} partition", strategy.name()))),
    }
}

fn range(
    facts: &Arc<SessionFacts>,
    columns: &[&ColumnDef],
    values: &[BoundValue],
    side: &str,
) -> Result<Vec<RangeBound>> {
    if values.len() != columns.len() {
        return Err(invalid(format!("{side} must specify exactly one value per partitioning column")));
    }
    let mut bounds: Vec<RangeBound> = Vec::with_capacity(values.len());
    for (value, column) in values.iter().zip(columns) {
        let bound = match value {
            BoundValue::MinValue => RangeBound::MinValue,
            BoundValue::MaxValue => RangeBound::MaxValue,
            BoundValue::Value(value) => RangeBound::Value(text(facts, column, value)?.ok_or_else(|| {
                Error::new(SqlState::INVALID_OBJECT_DEFINITION, "cannot specify NULL in range bound")
            })?),
        };
        let name = |bound: &RangeBound| match bound {
            RangeBound::MinValue => Some("MINVALUE"),
            RangeBound::MaxValue => Some("MAXVALUE"),
            RangeBound::Value(_) => None,
        };
        if let Some(before) = bounds.last().filter(|before| **before != bound).and_then(name) {
            let message = format!("every bound following {before} must also be {before}");
            return Err(Error::new(SqlState::DATATYPE_MISMATCH, message));
        }
        bounds.push(bound);
    }
    Ok(bounds)
}

/// The text of a constant, as a column's value; `None` for NULL.
fn text(facts: &Arc<SessionFacts>, column: &ColumnDef, value: &ast::Expr) -> Result<Option<String>> {
    const WHAT: &str = "partition bound expression";
    let mut value = value.clone();
    crate::catalog::rewrite_expression(&mut value);
    if !row_expressions::names_in(&mut value, "partition bound")?.is_empty() {
        return Err(Error::unsupported(format!("cannot use column reference in {WHAT}")));
    }
    let planned = RowExpressions::plan(facts, "", &[], &[(value.to_string(), Some(column.sql_type))], WHAT)?;
    let options = RecordBatchOptions::new().with_row_count(Some(1));
    let row = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &options)
        .map_err(crate::errors::from_arrow)?;
    let values = crate::references::conform(facts, column)(planned.evaluate(&row)?)?;
    let value = values.first().ok_or_else(|| Error::internal("a bound has no value"))?;
    let mut text = Vec::new();
    let is_value = TextWriter::new(value, column.sql_type, &TextSettings::default())?.write(0, &mut text);
    let text = String::from_utf8(text).map_err(|_| Error::internal("a value's text is not UTF-8"))?;
    Ok(is_value.then_some(text))
}
