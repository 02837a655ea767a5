//! How a table is declared, and how each SQL type is held as Arrow.

use crate::{Partitioning, StorageParameters};
use arrow_schema::{DataType, Field, IntervalUnit, Schema, SchemaRef, TimeUnit};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;
use tidepool_base::{SchemaId, SqlType, TableId};

/// Field metadata key under which the declared SQL type travels through plans, as `SqlType`'s JSON.
pub const SQL_TYPE_METADATA: &str = "tidepool.type";

/// Width of the byte strings that hold numbers of `numeric` without precision. No other type is held as byte strings of a fixed width.
pub const NUMERIC_WIDTH: i32 = tidepool_base::NUMERIC_BYTES as i32;

/// Name of the column of row ids that scans can produce. No client can write it.
pub const ROW_ID: &str = "\u{1}row";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ColumnDef {
    pub name: String,
    pub sql_type: SqlType,
    pub nullable: bool,
    /// The default's SQL text.
    pub default: Option<String>,
    /// Counts from 1, stays for the column's life, and is not given again when the column is dropped. 0 in a definition
    /// that no table has yet.
    #[serde(default)]
    pub number: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
}

/// Whether the values of `GENERATED … AS IDENTITY` may be given by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Identity {
    /// Only with `OVERRIDING SYSTEM VALUE`.
    Always,
    ByDefault,
}

impl ColumnDef {
    /// A column that takes NULLs and has no default.
    pub fn new(name: impl Into<String>, sql_type: SqlType) -> ColumnDef {
        ColumnDef { name: name.into(), sql_type, nullable: true, default: None, number: 0, identity: None }
    }

    /// The column as scans produce it, its declared type in the metadata.
    pub fn field(&self) -> Field {
        let json = serde_json::to_string(&self.sql_type).expect("a type's JSON has no map keys and no I/O to fail on");
        Field::new(&self.name, arrow_type(self.sql_type), self.nullable)
            .with_metadata(HashMap::from([(SQL_TYPE_METADATA.to_string(), json)]))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableDef {
    pub id: TableId,
    pub name: String,
    pub columns: Vec<ColumnDef>,
    /// Positions of the primary key's columns; empty without one.
    pub primary_key: Vec<usize>,
    #[serde(default)]
    pub schema: SchemaId,
    /// The highest column number ever given.
    #[serde(default)]
    pub column_numbers: u16,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<CheckDef>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub indexes: Vec<IndexDef>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub foreign_keys: Vec<ForeignKeyDef>,
    #[serde(default, skip_serializing_if = "StorageParameters::is_empty")]
    pub parameters: StorageParameters,
    /// Of a partitioned table, which has no rows of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitioning: Option<Partitioning>,
    /// The partitioned table that it is a partition of, whose columns it has in the same order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_of: Option<TableId>,
    /// Of a temporary table, which nothing is written of.
    #[serde(skip)]
    pub on_commit: OnCommit,
}

/// What becomes of a temporary table when a transaction commits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnCommit {
    #[default]
    PreserveRows,
    DeleteRows,
    Drop,
}

/// An index. Its schema is its table's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexDef {
    pub id: TableId,
    pub name: String,
    pub columns: Vec<IndexColumn>,
    pub unique: bool,
    /// NULLs count as equal: only where `unique`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub nulls_not_distinct: bool,
    /// The constraint that it serves, which has its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constraint: Option<KeyConstraint>,
    /// `None`: where the table's delta is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tablespace: Option<String>,
    /// The index of the partitioned table that it is the part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_of: Option<TableId>,
    /// Rows that were there before it are still being put in: writers keep it, and nobody relies on it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub building: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexColumn {
    /// The column's.
    pub number: u16,
    #[serde(default, skip_serializing_if = "is_false")]
    pub descending: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    pub nulls_first: bool,
}

impl IndexColumn {
    /// `ASC NULLS LAST`.
    pub fn ascending(number: u16) -> IndexColumn {
        IndexColumn { number, descending: false, nulls_first: false }
    }
}

/// `PRIMARY KEY` or `UNIQUE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyConstraint {
    /// From the same numbers as tables' ids.
    pub oid: u32,
    pub primary: bool,
}

impl IndexDef {
    pub fn is_primary(&self) -> bool {
        self.constraint.is_some_and(|constraint| constraint.primary)
    }

    pub fn has_column(&self, number: u16) -> bool {
        self.columns.iter().any(|column| column.number == number)
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// A `CHECK` constraint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckDef {
    /// From the same numbers as tables' ids.
    pub oid: u32,
    pub name: String,
    /// The condition's SQL text; it names columns only.
    pub condition: String,
    /// Numbers of the columns that it names.
    pub columns: Vec<u16>,
}

/// A `FOREIGN KEY` constraint. Both tables and their columns are named by number, so it means the same whatever they are
/// called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignKeyDef {
    /// From the same numbers as tables' ids.
    pub oid: u32,
    pub name: String,
    /// Numbers of the columns that refer, in the order that they were named.
    pub columns: Vec<u16>,
    pub referenced: TableId,
    /// Of each column the one that it refers to.
    pub referenced_columns: Vec<u16>,
    /// The referenced table's unique index over just these.
    pub index: TableId,
    /// `MATCH FULL`: either all columns are NULL, or none.
    #[serde(default, skip_serializing_if = "is_false")]
    pub match_full: bool,
    pub on_delete: ReferentialAction,
    pub on_update: ReferentialAction,
    /// `NOT VALID`: rows from before it was declared were not looked at.
    #[serde(default, skip_serializing_if = "is_false")]
    pub not_valid: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    pub deferrable: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    pub initially_deferred: bool,
    /// A partition's: the foreign key, by number, of the partitioned table that it is the part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part_of: Option<u32>,
    /// Of a reference to a partitioned table, what PostgreSQL has for each of the partitions, all the way down. A foreign
    /// key that is itself a part has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub referenced_parts: Vec<ReferencedPart>,
}

/// A foreign key to a partitioned table, as far as it refers to one of its partitions: a constraint of its own by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReferencedPart {
    /// From the same numbers as tables' ids.
    pub oid: u32,
    pub name: String,
    /// The partition.
    pub referenced: TableId,
}

/// What becomes of rows that refer to one that goes, or whose key changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReferentialAction {
    /// There may be none, once the statement is over, or the transaction where the constraint is deferred.
    NoAction,
    /// There may be none.
    Restrict,
    Cascade,
    SetNull,
    SetDefault,
}

impl ForeignKeyDef {
    pub fn has_column(&self, number: u16) -> bool {
        self.columns.contains(&number)
    }

    /// Its own, and those of what it is to partitions that it refers to.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.name).chain(self.referenced_parts.iter().map(|part| &part.name))
    }
}

impl TableDef {
    /// A table of schema `public`. Columns without a number get theirs.
    pub fn new(id: TableId, name: impl Into<String>, columns: Vec<ColumnDef>, primary_key: Vec<usize>) -> TableDef {
        let mut def = TableDef {
            id,
            name: name.into(),
            columns,
            primary_key,
            schema: SchemaId::PUBLIC,
            column_numbers: 0,
            checks: Vec::new(),
            indexes: Vec::new(),
            foreign_keys: Vec::new(),
            parameters: StorageParameters::default(),
            partitioning: None,
            partition_of: None,
            on_commit: OnCommit::PreserveRows,
        };
        def.number_columns();
        def
    }

    /// It is one session's alone.
    pub fn is_temporary(&self) -> bool {
        self.id.is_temporary()
    }

    /// Gives numbers to the columns that have none: new ones, and those of a folder from before there were any.
    pub fn number_columns(&mut self) {
        let given = self.columns.iter().map(|column| column.number).max().unwrap_or(0);
        self.column_numbers = self.column_numbers.max(given);
        for column in self.columns.iter_mut().filter(|column| column.number == 0) {
            self.column_numbers += 1;
            column.number = self.column_numbers;
        }
    }

    pub fn column_by_number(&self, number: u16) -> Option<(usize, &ColumnDef)> {
        self.columns.iter().enumerate().find(|(_, column)| column.number == number)
    }

    /// Positions of an index's columns.
    pub fn index_positions(&self, index: &IndexDef) -> Vec<usize> {
        let position = |column: &IndexColumn| self.column_by_number(column.number).map(|(position, _)| position);
        index.columns.iter().filter_map(position).collect()
    }

    /// Positions of columns by their numbers.
    pub fn positions(&self, numbers: &[u16]) -> Vec<usize> {
        let position = |number: &u16| self.column_by_number(*number).map(|(position, _)| position);
        numbers.iter().filter_map(position).collect()
    }

    pub fn foreign_key(&self, name: &str) -> Option<&ForeignKeyDef> {
        self.foreign_keys.iter().find(|key| key.name == name)
    }

    pub fn index(&self, name: &str) -> Option<&IndexDef> {
        self.indexes.iter().find(|index| index.name == name)
    }

    /// The schema that scans produce. Boolean, Int16/32/64, Float32/64, Decimal128(p, s), Utf8View (text, varchar, char
    /// without trailing blanks, json, uuid in canonical text), Date32, Timestamp(us), Timestamp(us, "UTC"),
    /// Interval(MonthDayNano), BinaryView, FixedSizeBinary(18) (`numeric` without precision). Each field carries `SQL_TYPE_METADATA`.
    pub fn arrow_schema(&self) -> SchemaRef {
        Arc::new(Schema::new(self.columns.iter().map(ColumnDef::field).collect::<Vec<_>>()))
    }

    pub fn column_index(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }
}

/// The declared type of a field that came from a table, or the natural SQL type of its Arrow type.
pub fn sql_type_of_field(field: &Field) -> SqlType {
    // An expression keeps its input's metadata through some plans while changing the type: the declared type counts
    // only while it is still the one that the field is held as.
    if let Some(declared) =
        field.metadata().get(SQL_TYPE_METADATA).and_then(|json| serde_json::from_str::<SqlType>(json).ok())
        && arrow_type(declared) == *field.data_type()
    {
        return declared;
    }
    natural_type(field.data_type())
}

fn natural_type(data_type: &DataType) -> SqlType {
    match data_type {
        DataType::Boolean => SqlType::Boolean,
        DataType::Int8 | DataType::Int16 | DataType::UInt8 => SqlType::SmallInt,
        DataType::Int32 | DataType::UInt16 => SqlType::Integer,
        DataType::Int64 | DataType::UInt32 => SqlType::BigInt,
        DataType::UInt64 => SqlType::Numeric { precision: 20, scale: 0 },
        DataType::Float16 | DataType::Float32 => SqlType::Real,
        DataType::Float64 => SqlType::DoublePrecision,
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale) => SqlType::Numeric { precision: *precision, scale: *scale },
        DataType::Decimal256(precision, scale) => {
            SqlType::Numeric { precision: (*precision).min(38), scale: (*scale).min(38) }
        }
        DataType::FixedSizeBinary(NUMERIC_WIDTH) => SqlType::UnconstrainedNumeric,
        DataType::Date32 | DataType::Date64 => SqlType::Date,
        DataType::Timestamp(_, None) => SqlType::TIMESTAMP,
        DataType::Timestamp(_, Some(_)) => SqlType::TIMESTAMPTZ,
        DataType::Interval(_) | DataType::Duration(_) => SqlType::Interval,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            SqlType::Bytea
        }
        DataType::Dictionary(_, values) => natural_type(values),
        DataType::RunEndEncoded(_, values) => natural_type(values.data_type()),
        _ => SqlType::Text,
    }
}

/// The Arrow type that holds `sql_type`.
pub fn arrow_type(sql_type: SqlType) -> DataType {
    match sql_type {
        SqlType::Boolean => DataType::Boolean,
        SqlType::SmallInt => DataType::Int16,
        SqlType::Integer => DataType::Int32,
        SqlType::BigInt => DataType::Int64,
        SqlType::Real => DataType::Float32,
        SqlType::DoublePrecision => DataType::Float64,
        SqlType::Numeric { precision, scale } => DataType::Decimal128(precision, scale),
        SqlType::UnconstrainedNumeric => DataType::FixedSizeBinary(NUMERIC_WIDTH),
        SqlType::Text
        | SqlType::Varchar { .. }
        | SqlType::Char { .. }
        | SqlType::Uuid
        | SqlType::Json
        | SqlType::Jsonb => DataType::Utf8View,
        SqlType::Date => DataType::Date32,
        SqlType::Timestamp { .. } => DataType::Timestamp(TimeUnit::Microsecond, None),
        SqlType::TimestampTz { .. } => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        SqlType::Interval => DataType::Interval(IntervalUnit::MonthDayNano),
        SqlType::Bytea => DataType::BinaryView,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [SqlType; 22] = [
        SqlType::UnconstrainedNumeric,
        SqlType::Boolean,
        SqlType::SmallInt,
        SqlType::Integer,
        SqlType::BigInt,
        SqlType::Real,
        SqlType::DoublePrecision,
        SqlType::Numeric { precision: 15, scale: 2 },
        SqlType::Text,
        SqlType::Varchar { length_max: Some(7) },
        SqlType::Varchar { length_max: None },
        SqlType::Char { length: 3 },
        SqlType::Date,
        SqlType::TIMESTAMP,
        SqlType::TIMESTAMPTZ,
        SqlType::Timestamp { precision: Some(0) },
        SqlType::TimestampTz { precision: Some(6) },
        SqlType::Interval,
        SqlType::Bytea,
        SqlType::Uuid,
        SqlType::Json,
        SqlType::Jsonb,
    ];

    #[test]
    fn every_declared_type_survives_the_trip_through_a_field() {
        for sql_type in ALL {
            let column = ColumnDef::new("c", sql_type);
            assert_eq!(sql_type_of_field(&column.field()), sql_type);
        }
    }

    #[test]
    fn timestamps_without_a_precision_are_written_as_ever() {
        let read = |json: &str| serde_json::from_str::<SqlType>(json).unwrap();
        assert_eq!(serde_json::to_string(&SqlType::TIMESTAMP).unwrap(), "\"timestamp\"");
        assert_eq!(read("\"timestamp\""), SqlType::TIMESTAMP);
        assert_eq!(read("\"timestamp_tz\""), SqlType::TIMESTAMPTZ);
        assert_eq!(read("{\"varchar\":{\"length_max\":7}}"), SqlType::Varchar { length_max: Some(7) });
    }

    #[test]
    fn a_declared_type_that_no_longer_fits_the_field_gives_way_to_the_natural_one() {
        let column = ColumnDef::new("c", SqlType::Char { length: 3 });
        let field = column.field().with_data_type(DataType::Int64);
        assert_eq!(sql_type_of_field(&field), SqlType::BigInt);
        let field = Field::new("c", DataType::Decimal128(9, 4), true);
        assert_eq!(sql_type_of_field(&field), SqlType::Numeric { precision: 9, scale: 4 });
    }
}
