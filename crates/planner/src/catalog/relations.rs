//! The system relations' names, oids and columns, as PostgreSQL 15 has them, and tables made of rows for them.
//!
//! `data/relations.txt` has a line for each relation: schema and name, oid, kind (`r` table, `v` view), then the columns
//! in order as `name:type`, with `!` after the type of a column that is never NULL. `data/views.txt` has Tidepool's own.

use super::value::{Value, array_of};
use crate::types::TYPE_OID_METADATA;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::array::RecordBatchOptions;
use datafusion::arrow::datatypes::{DataType, Field, IntervalUnit, Schema, SchemaRef, TimeUnit};
use datafusion::common::{DataFusionError, Result};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use tidepool_database::text::VECTOR_ITEM;
use tidepool_heap::QueryHeap;

/// A system table or view.
#[derive(Debug)]
pub struct Relation {
    pub schema: &'static str,
    pub name: &'static str,
    pub oid: u32,
    /// PostgreSQL's `relkind`.
    pub kind: &'static str,
    pub columns: Vec<Column>,
    arrow_schema: SchemaRef,
}

#[derive(Debug)]
pub struct Column {
    pub name: &'static str,
    /// PostgreSQL's `typname`.
    pub type_name: &'static str,
    pub not_null: bool,
}

static RELATIONS: LazyLock<Vec<Relation>> = LazyLock::new(|| {
    let lines = include_str!("data/relations.txt").lines().chain(include_str!("data/views.txt").lines());
    let lines = lines.filter(|line| !line.starts_with('#') && !line.is_empty());
    QueryHeap::outside(|| lines.filter_map(parse).collect())
});

static BY_NAME: LazyLock<HashMap<(&'static str, &'static str), &'static Relation>> = LazyLock::new(|| {
    let relations = RELATIONS.iter();
    QueryHeap::outside(|| relations.map(|relation| ((relation.schema, relation.name), relation)).collect())
});

fn parse(line: &'static str) -> Option<Relation> {
    let mut words = line.split_ascii_whitespace();
    let (schema, name) = words.next()?.split_once('.')?;
    let oid = words.next()?.parse().ok()?;
    let kind = words.next()?;
    let columns: Vec<Column> = words
        .filter_map(|word| {
            let (name, type_name) = word.split_once(':')?;
            let not_null = type_name.ends_with('!');
            Some(Column { name, type_name: type_name.trim_end_matches('!'), not_null })
        })
        .collect();
    let fields: Vec<Field> =
        columns.iter().map(|column| field(column.name, column.type_name, !column.not_null)).collect();
    Some(Relation { schema, name, oid, kind, columns, arrow_schema: Arc::new(Schema::new(fields)) })
}

/// All system relations.
pub fn all() -> &'static [Relation] {
    &RELATIONS
}

pub fn find(schema: &str, name: &str) -> Option<&'static Relation> {
    BY_NAME.get(&(schema, name)).copied()
}

impl Relation {
    pub fn arrow_schema(&self) -> &SchemaRef {
        &self.arrow_schema
    }
}

/// The Arrow type that holds PostgreSQL's type `type_name`, for types that only the catalogue uses as well.
pub fn arrow_type(type_name: &str) -> DataType {
    if let Some(item) = type_name.strip_prefix('_') {
        return DataType::List(Arc::new(Field::new_list_field(arrow_type(item), true)));
    }
    match type_name {
        "bool" => DataType::Boolean,
        "int2" => DataType::Int16,
        "int4" => DataType::Int32,
        "int8" | "xid8" => DataType::Int64,
        "float4" => DataType::Float32,
        "float8" => DataType::Float64,
        "numeric" => DataType::Decimal128(38, 10),
        "date" => DataType::Date32,
        "timestamp" => DataType::Timestamp(TimeUnit::Microsecond, None),
        "timestamptz" => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        "interval" => DataType::Interval(IntervalUnit::MonthDayNano),
        "bytea" => DataType::Binary,
        "oid" | "xid" | "cid" | "regproc" | "regprocedure" | "regoper" | "regoperator" | "regclass" | "regtype"
        | "regrole" | "regnamespace" | "regconfig" | "regdictionary" | "regcollation" => DataType::UInt32,
        "int2vector" => DataType::List(Arc::new(Field::new(VECTOR_ITEM, DataType::Int16, true))),
        "oidvector" => DataType::List(Arc::new(Field::new(VECTOR_ITEM, DataType::UInt32, true))),
        _ => DataType::Utf8,
    }
}

/// A field of PostgreSQL's type `type_name`, described to clients by that type's oid.
pub fn field(name: &str, type_name: &str, nullable: bool) -> Field {
    let field = Field::new(name, arrow_type(type_name), nullable);
    match super::types::by_name(type_name) {
        // The planner describes these by themselves.
        Some(entry) if !matches!(type_name, "bool" | "int2" | "int4" | "int8" | "float4" | "float8" | "text") => {
            field.with_metadata(HashMap::from([(TYPE_OID_METADATA.to_owned(), entry.oid.to_string())]))
        }
        _ => field,
    }
}

/// Rows of one relation in the making. Columns that a row leaves out are NULL, or 0, false or '' where never NULL.
pub struct Rows {
    relation: &'static Relation,
    columns: Vec<Vec<Value>>,
    rows: usize,
    unknown: Option<&'static str>,
}

impl Rows {
    pub fn new(relation: &'static Relation) -> Rows {
        Rows { relation, columns: vec![Vec::new(); relation.columns.len()], rows: 0, unknown: None }
    }

    pub fn push(&mut self, row: impl IntoIterator<Item = (&'static str, Value)>) {
        for (name, value) in row {
            match self.relation.columns.iter().position(|column| column.name == name) {
                Some(index) => self.columns[index].push(value),
                None => self.unknown = Some(name),
            }
        }
        self.rows += 1;
        for (values, column) in self.columns.iter_mut().zip(&self.relation.columns) {
            if values.len() < self.rows {
                values.push(if column.not_null { zero(column.type_name) } else { Value::Null });
            }
        }
    }

    pub fn finish(self) -> Result<RecordBatch> {
        if let Some(name) = self.unknown {
            return Err(DataFusionError::Internal(format!("{} has no column {name}", self.relation.name)));
        }
        let arrays = self
            .columns
            .iter()
            .zip(self.relation.arrow_schema.fields())
            .map(|(values, field)| array_of(values, field.data_type()))
            .collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        Ok(RecordBatch::try_new_with_options(self.relation.arrow_schema.clone(), arrays, &options)?)
    }
}

fn zero(type_name: &str) -> Value {
    match arrow_type(type_name) {
        DataType::Boolean => Value::Bool(false),
        DataType::Utf8 => Value::from(""),
        DataType::Float32 | DataType::Float64 => Value::Float(0.0),
        DataType::List(_) => Value::List(Vec::new()),
        DataType::Timestamp(..) => Value::Timestamp(0),
        DataType::Binary => Value::Bytes(Vec::new()),
        _ => Value::Int(0),
    }
}
