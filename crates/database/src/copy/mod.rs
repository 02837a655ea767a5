//! `COPY`: text, CSV and binary as PostgreSQL defines them, and Parquet.

mod binary;
mod lines;
mod options;
mod parquet;
mod reader;
mod writer;

#[cfg(test)]
mod tests;

pub use options::{CopyFormat, CopyHeader, CopyOnError, CopyOptions, ParquetCompression};
pub use parquet::{ParquetWriter, parquet_schema, read_parquet};

use crate::text::TextSettings;
use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{Field, Schema, SchemaRef};
use binary::{BinaryRowReader, BinaryRowWriter};
use reader::TextRowReader;
use std::sync::Arc;
use tidepool_base::{ByteSize, Error, Result, SqlState, SqlType};
use tidepool_table::{ColumnDef, TableDef};
use writer::TextRowWriter;

/// A row that is not whole yet is in memory twice: once as it came, once as values. This bounds what a file without line
/// ends, or a made-up length, can take.
const ROW_BYTES_MAX: usize = (256 * ByteSize::MIB) as usize;

/// Rows of so many bytes make a batch, however few they are.
const BATCH_BYTES: usize = 8 << 20;

fn row_too_long() -> Error {
    Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "row is too long")
        .with_detail(format!("A row can have {} at most.", ByteSize(ROW_BYTES_MAX as u64)))
}

/// The columns at `positions` of a table, each with the field of batches read into it.
///
/// It is nullable whatever the table says: constraints are checked where rows enter the table.
fn targets<'a>(def: &'a TableDef, positions: &[usize]) -> Result<Vec<(&'a ColumnDef, Field)>> {
    let schema = def.arrow_schema();
    positions
        .iter()
        .map(|position| match (def.columns.get(*position), schema.fields().get(*position)) {
            (Some(column), Some(field)) => Ok((column, Field::clone(field).with_nullable(true))),
            _ => Err(Error::internal(format!("table \"{}\" has no column {position}", def.name))),
        })
        .collect()
}

/// What a reader of rows knows of its columns.
struct Columns<Reader> {
    schema: SchemaRef,
    names: Vec<String>,
    readers: Vec<Reader>,
    /// It takes no NULL.
    required: Vec<bool>,
}

impl<Reader> Columns<Reader> {
    fn new(def: &TableDef, positions: &[usize], reader: impl Fn(SqlType) -> Reader) -> Result<Columns<Reader>> {
        let targets = targets(def, positions)?;
        Ok(Columns {
            names: targets.iter().map(|(column, _)| column.name.clone()).collect(),
            readers: targets.iter().map(|(column, _)| reader(column.sql_type)).collect(),
            required: targets.iter().map(|(column, _)| !column.nullable).collect(),
            schema: Arc::new(Schema::new(targets.into_iter().map(|(_, field)| field).collect::<Vec<_>>())),
        })
    }
}

/// A batch of values that were read, perhaps into no column at all.
fn read_batch(schema: &SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(schema.clone(), columns, &options)
        .map_err(|error| Error::internal(error.to_string()))
}

/// Lets `read` take the whole rows of `rest` and the `bytes` after it. Returns what it left.
fn read_on(mut rest: Vec<u8>, bytes: &[u8], read: impl FnOnce(&[u8]) -> Result<usize>) -> Result<Vec<u8>> {
    if rest.is_empty() {
        let used = read(bytes)?;
        rest.extend_from_slice(&bytes[used..]);
    } else {
        rest.extend_from_slice(bytes);
        let used = read(&rest)?;
        rest.drain(..used);
    }
    Ok(rest)
}

/// Bytes in pieces of any size into batches, in the format that the options name (all but Parquet).
///
/// The batches' fields are nullable whatever the table says: constraints are checked where rows enter the table.
pub enum RowReader {
    /// Text or CSV.
    Text(Box<TextRowReader>),
    Binary(BinaryRowReader),
}

impl RowReader {
    /// For `columns`, positions in the table.
    pub fn new(def: &TableDef, columns: &[usize], options: &CopyOptions, settings: &TextSettings) -> Result<RowReader> {
        Ok(match options.format {
            CopyFormat::Binary => RowReader::Binary(BinaryRowReader::new(def, columns)?),
            _ => RowReader::Text(Box::new(TextRowReader::new(def, columns, options, settings)?)),
        })
    }

    /// Batches of up to 8,192 rows that became whole. Errors name line and column in their context.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<RecordBatch>> {
        match self {
            RowReader::Text(reader) => reader.feed(bytes),
            RowReader::Binary(reader) => reader.feed(bytes),
        }
    }

    /// Bytes of a row that is not whole yet.
    pub fn pending_bytes(&self) -> usize {
        match self {
            RowReader::Text(reader) => reader.pending_bytes(),
            RowReader::Binary(reader) => reader.pending_bytes(),
        }
    }

    /// The rows that are left. 22P04 when the bytes end within one.
    pub fn finish(&mut self) -> Result<Option<RecordBatch>> {
        match self {
            RowReader::Text(reader) => reader.finish(),
            RowReader::Binary(reader) => reader.finish(),
        }
    }

    /// Where a column that takes no NULL first had one: the context of the table's refusal.
    pub fn null_place(&self) -> Option<&str> {
        match self {
            RowReader::Text(reader) => reader.null_place(),
            RowReader::Binary(reader) => reader.null_place(),
        }
    }

    /// Rows left out because of `ON_ERROR ignore`.
    pub fn ignored(&self) -> u64 {
        match self {
            RowReader::Text(reader) => reader.ignored(),
            RowReader::Binary(_) => 0,
        }
    }
}

/// Rows as bytes, and where each ends: the protocol sends each in a message of its own.
#[derive(Debug, Default)]
pub struct EncodedRows {
    pub bytes: Vec<u8>,
    /// Ascending offsets in `bytes`.
    pub ends: Vec<usize>,
}

impl EncodedRows {
    fn end_row(&mut self) {
        self.ends.push(self.bytes.len());
    }

    /// Empties it for more rows.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

/// Batches into bytes, in the format that the options name (all but Parquet).
pub enum RowWriter {
    /// Text or CSV.
    Text(Box<TextRowWriter>),
    Binary(BinaryRowWriter),
}

impl RowWriter {
    pub fn new(
        names: &[String],
        types: &[SqlType],
        options: &CopyOptions,
        settings: &TextSettings,
    ) -> Result<RowWriter> {
        Ok(match options.format {
            CopyFormat::Binary => RowWriter::Binary(BinaryRowWriter::new(types, options, settings)?),
            _ => RowWriter::Text(Box::new(TextRowWriter::new(names, types, options, settings)?)),
        })
    }

    /// What comes before the first row.
    pub fn start(&mut self, out: &mut EncodedRows) {
        match self {
            RowWriter::Text(writer) => writer.start(out),
            RowWriter::Binary(writer) => writer.start(out),
        }
    }

    pub fn write(&mut self, batch: &RecordBatch, out: &mut EncodedRows) -> Result<()> {
        match self {
            RowWriter::Text(writer) => writer.write(batch, out),
            RowWriter::Binary(writer) => writer.write(batch, out),
        }
    }

    /// What comes after the last row.
    pub fn finish(&mut self, out: &mut EncodedRows) {
        match self {
            RowWriter::Text(_) => (),
            RowWriter::Binary(writer) => writer.finish(out),
        }
    }
}
