//! How a table is declared, and how each SQL type is held as Arrow.

use arrow_schema::{DataType, Field, SchemaRef};
use serde::{Deserialize, Serialize};
use tidepool_base::{SqlType, TableId};

/// Field metadata key under which the declared SQL type travels through plans, as `SqlType`'s JSON.
pub const SQL_TYPE_METADATA: &str = "tidepool.type";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ColumnDef {
    pub name: String,
    pub sql_type: SqlType,
    pub nullable: bool,
    /// The default's SQL text.
    pub default: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableDef {
    pub id: TableId,
    pub name: String,
    pub columns: Vec<ColumnDef>,
    /// Positions of the declared primary key's columns; empty without one. Declared, not enforced yet.
    pub primary_key: Vec<usize>,
}

impl TableDef {
    /// The schema that scans produce. Boolean, Int16/32/64, Float32/64, Decimal128(p, s), Utf8View (text, varchar, char
    /// without trailing blanks, json, uuid in canonical text), Date32, Timestamp(us), Timestamp(us, "UTC"),
    /// Interval(MonthDayNano), BinaryView. Each field carries `SQL_TYPE_METADATA`.
    pub fn arrow_schema(&self) -> SchemaRef {
        unimplemented!()
    }

    pub fn column_index(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }
}

/// The declared type of a field that came from a table, or the natural SQL type of its Arrow type.
pub fn sql_type_of_field(_field: &Field) -> SqlType {
    unimplemented!()
}

/// The Arrow type that holds `sql_type`.
pub fn arrow_type(_sql_type: SqlType) -> DataType {
    unimplemented!()
}
