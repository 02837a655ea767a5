//! Minimum, maximum, null count and distinct count, by segment and by table.

use serde::{Deserialize, Serialize};

/// One non-null value, in storage form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Datum {
    Boolean(bool),
    /// Int16/32/64, Date32 (days) and timestamps (us) widened.
    Int(i64),
    /// Decimal128, unscaled.
    Decimal(i128),
    /// Float32/64 widened. Ordered as PostgreSQL orders floats: NaN above all.
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ColumnStatistics {
    /// Inclusive bounds; `None` when unknown, or all values are NULL.
    pub min: Option<Datum>,
    pub max: Option<Datum>,
    pub null_count: u64,
    /// Estimated from merged sketches.
    pub distinct_count: Option<u64>,
    /// Average bytes of a value as a scan hands it out.
    pub value_bytes_avg: f64,
    /// No value occurs twice, known for certain (a dense or strictly ordered column).
    pub unique: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableStatistics {
    pub rows: u64,
    pub columns: Vec<ColumnStatistics>,
}
