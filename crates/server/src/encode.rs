//! Rows into `DataRow` messages.

use crate::kept::Keeper;
use crate::wire::{UNCOUNTED_BYTES, Wire};
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::DataType;
use std::sync::Arc;
use tidepool_base::{Numeric, Result, SqlType, panic_point};
use tidepool_database::text::{BinaryWriter, TextSettings, TextWriter, Zone, single};
use tidepool_heap::{ClientAccount, Held, Reservation};
use tidepool_planner::{Datum, ResultColumn, RowSink};

/// A statement that goes to its rows by itself and has more to send takes the general path, which sends as it goes.
const DIRECT_BYTES_MAX: usize = 1 << 20;

/// Output is sent once it holds this much: some dozens of rows a system call, and still in the cache.
pub(crate) const FLUSH_BYTES: usize = 32 * 1024;

const OID: u32 = 26;
const REGPROC: u32 = 24;

enum ColumnWriter {
    Text(TextWriter),
    Binary(BinaryWriter),
}

/// Batches whose values take no more have no row that would have to be counted.
const LARGE_BATCH_BYTES: usize = UNCOUNTED_BYTES / 4;

/// One batch on its way out.
pub(crate) struct RowEncoder {
    columns: Vec<ColumnWriter>,
    /// What may be long in it.
    long: Vec<ArrayRef>,
    rows: usize,
    next: usize,
}

impl RowEncoder {
    /// `formats` has one entry a column: 0 text, 1 binary.
    pub(crate) fn new(
        batch: &RecordBatch,
        columns: &[ResultColumn],
        formats: &[i16],
        settings: &TextSettings,
    ) -> Result<RowEncoder> {
        let columns = batch
            .columns()
            .iter()
            .zip(columns)
            .zip(formats)
            .map(|((array, column), format)| match format {
                1 => binary_writer(array, column, settings).map(ColumnWriter::Binary),
                _ if column.type_oid == REGPROC && array.data_type().is_integer() => {
                    let names = tidepool_planner::function_names(array)?;
                    TextWriter::new(&names, SqlType::Text, settings).map(ColumnWriter::Text)
                }
                _ => TextWriter::new(array, column.sql_type, settings).map(ColumnWriter::Text),
            })
            .collect::<Result<_>>()?;
        let long = batch.columns().iter().filter(|array| may_be_long(array)).cloned().collect();
        Ok(RowEncoder { columns, long, rows: batch.num_rows(), next: 0 })
    }

    pub(crate) fn is_done(&self) -> bool {
        self.next == self.rows
    }

    /// Rows that were appended to the output.
    pub(crate) fn sent(&self) -> usize {
        self.next
    }

    pub(crate) fn left(&self) -> usize {
        self.rows - self.next
    }

    /// Appends up to `rows_max` rows to the output, and none after it is worth sending. Returns how many. 53200 for a row that there is no room for.
    pub(crate) fn encode(&mut self, wire: &mut Wire, rows_max: u64) -> Result<u64> {
        let first = self.next;
        panic_point("server.encoder");
        while self.next < self.rows && ((self.next - first) as u64) < rows_max && wire.output.len() < FLUSH_BYTES {
            if !self.long.is_empty() {
                wire.reserve_output(self.long.iter().map(|array| encoded_bytes_max(array, self.next)).sum())?;
            }
            self.encode_row(&mut wire.output);
            self.next += 1;
        }
        Ok((self.next - first) as u64)
    }

    fn encode_row(&self, out: &mut Vec<u8>) {
        out.push(b'D');
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&(self.columns.len() as u16).to_be_bytes());
        for column in &self.columns {
            let value = out.len();
            out.extend_from_slice(&[0; 4]);
            let present = match column {
                ColumnWriter::Text(writer) => writer.write(self.next, out),
                ColumnWriter::Binary(writer) => writer.write(self.next, out),
            };
            let len = if present { (out.len() - value - 4) as i32 } else { -1 };
            out[value..value + 4].copy_from_slice(&len.to_be_bytes());
        }
        crate::protocol::backend::patch_length(out, start);
    }
}

/// Whether a value of the array may be long by itself.
fn may_be_long(array: &ArrayRef) -> bool {
    let has_length = match array.data_type() {
        DataType::Utf8View | DataType::BinaryView | DataType::Utf8 | DataType::Binary => true,
        DataType::LargeUtf8 | DataType::LargeBinary => true,
        data_type => data_type.is_nested(),
    };
    has_length && array.get_buffer_memory_size() > LARGE_BATCH_BYTES
}

/// What a value may take when it is encoded: the text of bytes is twice as long as they are.
fn encoded_bytes_max(array: &ArrayRef, row: usize) -> usize {
    let bytes = match array.data_type() {
        DataType::Utf8View => array.as_string_view().views()[row] as u32 as usize,
        DataType::BinaryView => 2 * (array.as_binary_view().views()[row] as u32 as usize),
        DataType::Utf8 => array.as_string::<i32>().value_length(row) as usize,
        DataType::Binary => 2 * array.as_binary::<i32>().value_length(row) as usize,
        // As if they were alike; what is nested has a text of its own.
        _ => 4 * array.get_buffer_memory_size() / array.len().max(1),
    };
    bytes + 64
}

/// Rows of single values, on their way out as they come.
pub(crate) struct DirectRows<'a> {
    out: &'a mut Vec<u8>,
    /// Where they begin.
    start: usize,
    columns: &'a [ResultColumn],
    formats: &'a [i16],
    settings: &'a TextSettings,
    zone: Zone,
    account: &'a Arc<ClientAccount>,
    /// Once the rows are much.
    held: Option<Reservation>,
    /// Who is to have the rows before they are committed.
    keeper: Option<&'a Keeper>,
}

impl<'a> DirectRows<'a> {
    /// `formats` has one entry a column: 0 text, 1 binary.
    pub(crate) fn new(
        out: &'a mut Vec<u8>,
        columns: &'a [ResultColumn],
        formats: &'a [i16],
        settings: &'a TextSettings,
        account: &'a Arc<ClientAccount>,
        keeper: Option<&'a Keeper>,
    ) -> DirectRows<'a> {
        let start = out.len();
        DirectRows {
            out,
            start,
            columns,
            formats,
            settings,
            zone: settings.zone().unwrap_or(Zone::UTC),
            account,
            held: None,
            keeper,
        }
    }
}

impl RowSink for DirectRows<'_> {
    fn committing(&mut self) {
        if let Some(keeper) = self.keeper
            && self.out.len() > self.start
        {
            keeper.expect_rows(self.out);
        }
    }

    fn row(&mut self, values: &[Datum<'_>]) -> Result<()> {
        let out = &mut *self.out;
        out.push(b'D');
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&(values.len() as u16).to_be_bytes());
        for ((value, column), format) in values.iter().zip(self.columns).zip(self.formats) {
            let at = out.len();
            out.extend_from_slice(&[0; 4]);
            let present = match format {
                1 => write_binary(value, column, self.settings, out)?,
                _ => write_text(value, column.sql_type, self.zone, self.settings, out),
            };
            let len = if present { (out.len() - at - 4) as i32 } else { -1 };
            out[at..at + 4].copy_from_slice(&len.to_be_bytes());
        }
        crate::protocol::backend::patch_length(out, start);
        if out.len() > UNCOUNTED_BYTES {
            let held = self.held.get_or_insert_with(|| self.account.nothing(Held::Results));
            if out.len() as u64 > held.bytes() {
                held.resize((out.len() + UNCOUNTED_BYTES) as u64)?;
            }
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.out.len() > DIRECT_BYTES_MAX
    }

    fn clear(&mut self) {
        self.out.truncate(self.start);
    }
}

/// Appends a value's text; false, and nothing, for NULL.
fn write_text(value: &Datum<'_>, sql_type: SqlType, zone: Zone, settings: &TextSettings, out: &mut Vec<u8>) -> bool {
    match value {
        Datum::Null => return false,
        Datum::Boolean(value) => out.push(if *value { b't' } else { b'f' }),
        Datum::Int(value) => match sql_type {
            SqlType::Date => single::write_days(*value, out),
            SqlType::Timestamp { .. } => single::write_microseconds(*value, None, out),
            SqlType::TimestampTz { .. } => single::write_microseconds(*value, Some(zone), out),
            _ => single::write_integer(*value, out),
        },
        Datum::Real(value) => single::write_real(*value, settings.extra_float_digits, out),
        Datum::Double(value) => single::write_double(*value, settings.extra_float_digits, out),
        Datum::Numeric(value) => {
            let scale = if let SqlType::Numeric { scale, .. } = sql_type { scale } else { 0 };
            single::write_numeric(*value, scale, out);
        }
        Datum::Interval(value) => single::write_duration(*value, out),
        Datum::Text(text) => {
            out.extend_from_slice(text.as_bytes());
            if let SqlType::Char { length } = sql_type {
                // Blank-padded.
                out.resize(out.len() + (length as usize).saturating_sub(text.chars().count()), b' ');
            }
        }
        Datum::Bytes(bytes) => match Numeric::from_bytes(bytes).filter(|_| sql_type == SqlType::UnconstrainedNumeric) {
            Some(number) => tidepool_database::text::numeric::write(number, out),
            None => single::write_bytes(bytes, out),
        },
    }
    true
}

/// As `write_text`, in binary.
fn write_binary(value: &Datum<'_>, column: &ResultColumn, settings: &TextSettings, out: &mut Vec<u8>) -> Result<bool> {
    match (value, column.sql_type) {
        (Datum::Null, _) => return Ok(false),
        (Datum::Boolean(value), _) => out.push(u8::from(*value)),
        (Datum::Int(value), SqlType::SmallInt) if column.type_oid == 21 => {
            out.extend_from_slice(&(*value as i16).to_be_bytes());
        }
        (Datum::Int(value), SqlType::Integer) if column.type_oid == 23 => {
            out.extend_from_slice(&(*value as i32).to_be_bytes());
        }
        (Datum::Int(value), SqlType::BigInt) if column.type_oid == 20 => out.extend_from_slice(&value.to_be_bytes()),
        (Datum::Double(value), SqlType::DoublePrecision) => out.extend_from_slice(&value.to_be_bytes()),
        (Datum::Text(text), SqlType::Text | SqlType::Varchar { .. }) if form_of_oid(column.type_oid).is_none() => {
            out.extend_from_slice(text.as_bytes())
        }
        (value, sql_type) => {
            let array = Datum::array([value], &tidepool_planner::arrow_type(sql_type))?;
            return Ok(binary_writer(&array, column, settings)?.write(0, out));
        }
    }
    Ok(true)
}

/// The type of an oid that columns held as text have a binary form of their own by.
fn form_of_oid(oid: u32) -> Option<SqlType> {
    match oid {
        2950 => Some(SqlType::Uuid),
        3802 => Some(SqlType::Jsonb),
        _ => None,
    }
}

/// The type told to the client decides, where it is not the column's own: `oid` is a four-byte integer on the wire
/// whatever holds it, and an array type needs its elements' binary form.
fn binary_writer(array: &dyn Array, column: &ResultColumn, settings: &TextSettings) -> Result<BinaryWriter> {
    if array.data_type().is_nested()
        && let Some(element) = element_type(column.type_oid)
    {
        let oid = if matches!(column.type_oid, 30 | 1028) { OID } else { element.oid() };
        return BinaryWriter::array(array, element, oid, settings);
    }
    let sql_type = match column.type_oid {
        oid if let Some(of) = form_of_oid(oid) => of,
        oid if is_oid_like(oid) && array.data_type().is_integer() => SqlType::Integer,
        21 => SqlType::SmallInt,
        23 => SqlType::Integer,
        20 => SqlType::BigInt,
        _ => column.sql_type,
    };
    BinaryWriter::new(array, sql_type, settings)
}

/// `oid`, `xid`, `cid` and the `reg…` types.
fn is_oid_like(oid: u32) -> bool {
    matches!(oid, 24 | 26 | 28 | 29 | 2202..=2206 | 3734 | 3769 | 4089 | 4096)
}

/// The element type of PostgreSQL's array type `oid`.
pub(crate) fn element_type(oid: u32) -> Option<SqlType> {
    Some(match oid {
        1000 => SqlType::Boolean,
        1001 => SqlType::Bytea,
        1005 | 22 => SqlType::SmallInt,
        1007 | 1028 | 30 => SqlType::Integer,
        1016 => SqlType::BigInt,
        1021 => SqlType::Real,
        1022 => SqlType::DoublePrecision,
        1231 => SqlType::UnconstrainedNumeric,
        1009 | 1003 | 1002 | 1034 => SqlType::Text,
        1014 => SqlType::Char { length: 1 },
        1015 => SqlType::Varchar { length_max: None },
        1182 => SqlType::Date,
        1115 => SqlType::TIMESTAMP,
        1185 => SqlType::TIMESTAMPTZ,
        1187 => SqlType::Interval,
        2951 => SqlType::Uuid,
        199 => SqlType::Json,
        3807 => SqlType::Jsonb,
        _ => return None,
    })
}
