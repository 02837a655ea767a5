//! `COPY`: text and CSV as PostgreSQL defines them, and Parquet.

use crate::text::TextSettings;
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use std::path::Path;
use tidepool_base::{Result, SqlType};
use tidepool_table::TableDef;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyFormat {
    Text,
    Csv,
    Parquet,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyOptions {
    pub format: CopyFormat,
    pub delimiter: u8,
    pub null: String,
    pub header: bool,
    pub quote: u8,
    pub escape: u8,
    pub force_quote: Option<Vec<String>>,
}

impl CopyOptions {
    /// PostgreSQL's defaults for a format.
    pub fn new(_format: CopyFormat) -> CopyOptions {
        unimplemented!()
    }
    /// Applies `(name, value)` option pairs as written after `WITH`; 42601 / 22023 on nonsense.
    pub fn from_pairs(_pairs: &[(String, Option<String>)]) -> Result<CopyOptions> {
        unimplemented!()
    }
}

/// Text or CSV bytes, in pieces of any size, into batches of `columns` (positions in the table).
pub struct RowReader {}

impl RowReader {
    pub fn new(
        _def: &TableDef,
        _columns: &[usize],
        _options: &CopyOptions,
        _settings: &TextSettings,
    ) -> Result<RowReader> {
        unimplemented!()
    }
    /// Batches of up to 8,192 rows that became whole. Errors name line and column in their context.
    pub fn feed(&mut self, _bytes: &[u8]) -> Result<Vec<RecordBatch>> {
        unimplemented!()
    }
    pub fn finish(&mut self) -> Result<Option<RecordBatch>> {
        unimplemented!()
    }
}

/// Batches into text or CSV bytes.
pub struct RowWriter {}

impl RowWriter {
    pub fn new(
        _names: &[String],
        _types: &[SqlType],
        _options: &CopyOptions,
        _settings: &TextSettings,
    ) -> Result<RowWriter> {
        unimplemented!()
    }
    /// The header line, if any.
    pub fn start(&mut self, _out: &mut Vec<u8>) {}
    pub fn write(&mut self, _batch: &RecordBatch, _out: &mut Vec<u8>) -> Result<()> {
        unimplemented!()
    }
}

/// A Parquet file's rows, columns matched by name (case-insensitively) or, if none matches, by position, and cast to the table's types.
pub fn read_parquet(
    _path: &Path,
    _def: &TableDef,
    _columns: &[usize],
) -> Result<Box<dyn Iterator<Item = Result<RecordBatch>> + Send>> {
    unimplemented!()
}

/// The table definition that a Parquet file suggests (for `CREATE TABLE` helpers in CLI and bench).
pub fn parquet_schema(_path: &Path) -> Result<SchemaRef> {
    unimplemented!()
}

pub struct ParquetWriter {}

impl ParquetWriter {
    pub fn create(_path: &Path, _names: &[String], _types: &[SqlType], _schema: SchemaRef) -> Result<ParquetWriter> {
        unimplemented!()
    }
    pub fn write(&mut self, _batch: &RecordBatch) -> Result<()> {
        unimplemented!()
    }
    pub fn finish(self) -> Result<u64> {
        unimplemented!()
    }
}
