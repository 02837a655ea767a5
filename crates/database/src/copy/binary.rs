//! PostgreSQL's binary COPY format: a header, then for each row the number of its fields and each field with its length,
//! then a trailer.

use super::{BATCH_BYTES, Columns, CopyOptions, EncodedRows, ROW_BYTES_MAX, read_batch, read_on, row_too_long};
use crate::text::{BinaryReader, BinaryWriter, TextSettings};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use tidepool_base::{Error, Result, SqlState, SqlType};
use tidepool_table::{BATCH_ROWS, TableDef};

const SIGNATURE: &[u8; 11] = b"PGCOPY\n\xff\r\n\0";

/// Flags of the header that a reader must know or refuse. Those below may be passed over.
const CRITICAL_FLAGS: u32 = 0xffff_0000;
/// Rows begin with an oid. PostgreSQL 12 stopped reading them.
const OIDS_FLAG: u32 = 1 << 16;

fn bad(message: impl Into<String>) -> Error {
    Error::new(SqlState::BAD_COPY_FILE_FORMAT, message)
}

/// The header's length, or `None` while it is not there whole. With `last`, nothing follows `bytes`.
fn header(bytes: &[u8], last: bool) -> Result<Option<usize>> {
    let missing = |what: &str| match last {
        true => Err(bad(format!("invalid COPY file header (missing {what})"))),
        false => Ok(None),
    };
    let signature = &bytes[..bytes.len().min(SIGNATURE.len())];
    if !SIGNATURE.starts_with(signature) || (last && signature.len() < SIGNATURE.len()) {
        return Err(bad("COPY file signature not recognized"));
    }
    let Some((flags, rest)) = bytes[signature.len()..].split_first_chunk::<4>() else { return missing("flags") };
    let flags = u32::from_be_bytes(*flags);
    if flags & OIDS_FLAG != 0 {
        return Err(bad("invalid COPY file header (WITH OIDS)"));
    }
    if flags & CRITICAL_FLAGS != 0 {
        return Err(bad("unrecognized critical flags in COPY file header"));
    }
    let Some((extension, rest)) = rest.split_first_chunk::<4>() else { return missing("length") };
    let Ok(extension) = usize::try_from(i32::from_be_bytes(*extension)) else {
        return Err(bad("invalid COPY file header (missing length)"));
    };
    if rest.len() < extension {
        return if last { Err(bad("invalid COPY file header (wrong length)")) } else { Ok(None) };
    }
    Ok(Some(SIGNATURE.len() + 8 + extension))
}

/// What the next bytes are.
enum Next {
    /// A whole row of this many bytes.
    Row(usize),
    /// The trailer.
    End,
    /// The start of a row or trailer.
    Incomplete,
}

/// Binary COPY data, in pieces of any size, into batches of `columns` (positions in the table).
///
/// The batches' fields are nullable whatever the table says: constraints are checked where rows enter the table.
pub struct BinaryRowReader {
    table: String,
    schema: SchemaRef,
    names: Vec<String>,
    readers: Vec<BinaryReader>,
    /// By column: it takes no NULL.
    required: Vec<bool>,
    /// Where a column that takes none first had one.
    null_place: Option<String>,
    /// What is not read yet: less than a row, or than the header.
    rest: Vec<u8>,
    /// Of the rows since the last batch.
    batch_bytes: usize,
    header_pending: bool,
    /// The trailer was read: nothing may follow.
    ended: bool,
    row_number: u64,
    rows: usize,
}

impl BinaryRowReader {
    pub fn new(def: &TableDef, columns: &[usize]) -> Result<BinaryRowReader> {
        let Columns { schema, names, readers, required } = Columns::new(def, columns, BinaryReader::new)?;
        Ok(BinaryRowReader {
            table: def.name.clone(),
            schema,
            names,
            readers,
            required,
            null_place: None,
            rest: Vec::new(),
            batch_bytes: 0,
            header_pending: true,
            ended: false,
            row_number: 0,
            rows: 0,
        })
    }

    /// Bytes of a row that is not whole yet.
    pub fn pending_bytes(&self) -> usize {
        self.rest.len()
    }

    /// Batches of up to 8,192 rows that became whole. Errors name row and column in their context.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<RecordBatch>> {
        let mut batches = Vec::new();
        let rest = std::mem::take(&mut self.rest);
        self.rest = read_on(rest, bytes, |bytes| self.read(bytes, &mut batches))?;
        if self.rest.len() > ROW_BYTES_MAX {
            return Err(row_too_long().with_context(self.place(self.row_number + 1)));
        }
        Ok(batches)
    }

    /// The rows that are left. As in PostgreSQL, data may end without a trailer, but not within a row.
    pub fn finish(&mut self) -> Result<Option<RecordBatch>> {
        if self.header_pending {
            header(&self.rest, true)?;
        }
        if !self.rest.is_empty() {
            return Err(bad("unexpected EOF in COPY data").with_context(self.place(self.row_number + 1)));
        }
        self.take_batch()
    }

    pub fn null_place(&self) -> Option<&str> {
        self.null_place.as_deref()
    }

    /// Reads whole rows from `bytes` and returns how many bytes they took.
    fn read(&mut self, bytes: &[u8], batches: &mut Vec<RecordBatch>) -> Result<usize> {
        let mut at = 0;
        if self.header_pending {
            let Some(length) = header(bytes, false)? else { return Ok(0) };
            at = length;
            self.header_pending = false;
        }
        loop {
            if self.ended {
                if at < bytes.len() {
                    return Err(
                        bad("received copy data after EOF marker").with_context(self.place(self.row_number + 1))
                    );
                }
                return Ok(at);
            }
            match self.next(&bytes[at..])? {
                Next::Incomplete => return Ok(at),
                Next::End => {
                    at += 2;
                    self.ended = true;
                }
                Next::Row(length) => {
                    self.row_number += 1;
                    self.read_row(&bytes[at + 2..at + length])?;
                    at += length;
                    self.rows += 1;
                    self.batch_bytes += length;
                    if self.rows == BATCH_ROWS || self.batch_bytes >= BATCH_BYTES {
                        batches.extend(self.take_batch()?);
                    }
                }
            }
        }
    }

    /// Looks at lengths only, so that a large row in many pieces is not read again with each.
    fn next(&self, bytes: &[u8]) -> Result<Next> {
        let place = || self.place(self.row_number + 1);
        let Some((count, mut rest)) = bytes.split_first_chunk::<2>() else { return Ok(Next::Incomplete) };
        let count = i16::from_be_bytes(*count);
        if count == -1 {
            return Ok(Next::End);
        }
        if usize::try_from(count).ok() != Some(self.readers.len()) {
            let expected = self.readers.len();
            return Err(bad(format!("row field count is {count}, expected {expected}")).with_context(place()));
        }
        for name in &self.names {
            let Some((length, after)) = rest.split_first_chunk::<4>() else { return Ok(Next::Incomplete) };
            rest = match i32::from_be_bytes(*length) {
                -1 => after,
                length => {
                    let length = usize::try_from(length)
                        .map_err(|_| bad("invalid field size").with_context(format!("{}, column {name}", place())))?;
                    match after.get(length..) {
                        Some(after) => after,
                        None => return Ok(Next::Incomplete),
                    }
                }
            };
        }
        Ok(Next::Row(bytes.len() - rest.len()))
    }

    /// The fields of a row that [`Self::next`] found whole.
    fn read_row(&mut self, mut fields: &[u8]) -> Result<()> {
        for column in 0..self.readers.len() {
            let Some((length, after)) = fields.split_first_chunk::<4>() else {
                return Err(Error::internal("a row of COPY data is not whole"));
            };
            fields = after;
            let reader = &mut self.readers[column];
            match usize::try_from(i32::from_be_bytes(*length)) {
                Err(_) => {
                    reader.append_null();
                    if self.required[column] && self.null_place.is_none() {
                        self.null_place = Some(self.place(self.row_number));
                    }
                }
                Ok(length) => {
                    let (value, after) = fields
                        .split_at_checked(length)
                        .ok_or_else(|| Error::internal("a field of COPY data is not whole"))?;
                    fields = after;
                    reader.append(value).map_err(|error| {
                        error.with_context(format!("{}, column {}", self.place(self.row_number), self.names[column]))
                    })?;
                }
            }
        }
        Ok(())
    }

    fn place(&self, row: u64) -> String {
        format!("COPY {}, line {row}", self.table)
    }

    fn take_batch(&mut self) -> Result<Option<RecordBatch>> {
        let rows = std::mem::take(&mut self.rows);
        self.batch_bytes = 0;
        if rows == 0 {
            return Ok(None);
        }
        let columns = self.readers.iter_mut().map(BinaryReader::finish).collect();
        read_batch(&self.schema, columns, rows).map(Some)
    }
}

/// Batches into binary COPY data.
pub struct BinaryRowWriter {
    types: Vec<SqlType>,
    settings: TextSettings,
}

impl BinaryRowWriter {
    pub fn new(types: &[SqlType], options: &CopyOptions, settings: &TextSettings) -> Result<BinaryRowWriter> {
        options.validate()?;
        Ok(BinaryRowWriter { types: types.to_vec(), settings: settings.clone() })
    }

    /// The header, which is no row of its own: as PostgreSQL sends it, it comes with the first one.
    pub fn start(&self, out: &mut EncodedRows) {
        out.bytes.extend_from_slice(SIGNATURE);
        // No flags, no extension.
        out.bytes.extend_from_slice(&[0; 8]);
    }

    pub fn write(&self, batch: &RecordBatch, out: &mut EncodedRows) -> Result<()> {
        if batch.num_columns() != self.types.len() {
            return Err(Error::internal("a batch's columns are not those of its COPY"));
        }
        let columns = batch.columns().iter().zip(&self.types);
        let writers = columns
            .map(|(array, sql_type)| BinaryWriter::of_copy(array, *sql_type, &self.settings))
            .collect::<Result<Vec<_>>>()?;
        for row in 0..batch.num_rows() {
            let bytes = &mut out.bytes;
            bytes.extend_from_slice(&(writers.len() as i16).to_be_bytes());
            for writer in &writers {
                let at = bytes.len();
                bytes.extend_from_slice(&(-1_i32).to_be_bytes());
                if writer.write(row, bytes) {
                    let length = (bytes.len() - at - 4) as i32;
                    bytes[at..at + 4].copy_from_slice(&length.to_be_bytes());
                }
            }
            out.end_row();
        }
        Ok(())
    }

    pub fn finish(&self, out: &mut EncodedRows) {
        out.bytes.extend_from_slice(&(-1_i16).to_be_bytes());
        out.end_row();
    }
}
