//! What of a table main does not show: rows in versions, and rows of main that are gone.
//!
//! A file of kind delta has two parts: an Arrow IPC stream of one batch, the table's columns and then the rows' ids
//! (UInt64); and the ids of the rows of main that are gone, 8 bytes each. (Earlier files have one part, without ids:
//! rows in versions alone.) A table has as many as its delta takes, of [`FILE_BYTES`] or little more: what is in memory twice
//! while it is written or read is one of them.

use super::row_file::{self, Identity, Kind};
use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, ArrayRef, RecordBatch, UInt64Array};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use std::sync::Arc;
use tidepool_base::{CommitTs, Error, Result, RowId};
use tidepool_table::rows::{Apart, RowStore};
use tidepool_table::{ROW_ID, TableDef, TableVersion};
use tidepool_txn::View;

pub(super) struct Delta {
    rows: RecordBatch,
    /// As long as `rows`; empty when the file has none.
    ids: Vec<RowId>,
    gone: Vec<RowId>,
}

/// Bytes of rows from which on a file is full.
const FILE_BYTES: usize = if cfg!(test) { 4 << 10 } else { 16 << 20 };

impl Delta {
    /// Hands what main does not show of a table to a function, file by file.
    pub fn each(table: &TableVersion, mut take: impl FnMut(Delta) -> Result<()>) -> Result<()> {
        let (mut ids, mut images, mut gone, mut bytes) = (Vec::new(), Vec::new(), Vec::new(), 0);
        let mut ranges: Vec<u64> = table.headed().iter().map(|(number, _)| *number).collect();
        ranges.extend(table.ranges_with_dead());
        ranges.sort_unstable();
        ranges.dedup();
        for number in ranges {
            for (row, apart) in table.apart(number) {
                match apart {
                    Apart::Image(image) => {
                        bytes += size_of::<RowId>() + image.len();
                        ids.push(row);
                        images.push(image);
                    }
                    Apart::Deleted => {
                        bytes += size_of::<RowId>();
                        gone.push(row);
                    }
                }
                if bytes >= FILE_BYTES {
                    take(Delta::new(table, std::mem::take(&mut ids), &images, std::mem::take(&mut gone))?)?;
                    (images, bytes) = (Vec::new(), 0);
                }
            }
        }
        if bytes > 0 { take(Delta::new(table, ids, &images, gone)?) } else { Ok(()) }
    }

    fn new(table: &TableVersion, ids: Vec<RowId>, images: &[&[u8]], gone: Vec<RowId>) -> Result<Delta> {
        let layout = table.rows().layout();
        let all: Vec<usize> = (0..table.def.columns.len()).collect();
        let columns = layout.decode(images, &all)?;
        let options = arrow_array::RecordBatchOptions::new().with_row_count(Some(ids.len()));
        let rows = RecordBatch::try_new_with_options(layout.schema().clone(), columns, &options)
            .map_err(|error| Error::internal(format!("delta cannot be written: {error}")))?;
        Ok(Delta { rows, ids, gone })
    }

    pub fn rows(&self) -> usize {
        self.rows.num_rows()
    }

    pub fn parts(&self) -> Result<[Vec<u8>; 2]> {
        let internal = |error: arrow_schema::ArrowError| Error::internal(format!("delta cannot be written: {error}"));
        let ids: ArrayRef = Arc::new(self.ids.iter().map(|row| row.0).collect::<UInt64Array>());
        let columns = self.rows.columns().iter().cloned().chain([ids]).collect();
        let batch = RecordBatch::try_new(with_ids(self.rows.schema_ref()), columns).map_err(internal)?;
        let mut bytes = Vec::new();
        let mut writer = StreamWriter::try_new(&mut bytes, &batch.schema()).map_err(internal)?;
        writer.write(&batch).and_then(|()| writer.finish()).map_err(internal)?;
        drop(writer);
        Ok([bytes, self.gone.iter().flat_map(|row| row.0.to_le_bytes()).collect()])
    }

    /// XX001 unless the parts are what was written of such a table.
    pub fn read(def: &TableDef, parts: &[&[u8]], rows: u64) -> Result<Delta> {
        let damaged = |what: String| Error::corrupted(what);
        let (stream, gone) = match parts {
            [stream] => (stream, &[][..]),
            [stream, gone] if gone.len().is_multiple_of(8) => (stream, *gone),
            _ => return Err(damaged(format!("it has {} parts", parts.len()))),
        };
        // The checksum held, so these bytes are what was written; errors here are bugs rather than damage.
        let mut reader = StreamReader::try_new(std::io::Cursor::new(*stream), None)
            .map_err(|error| damaged(format!("it cannot be understood: {error}")))?;
        let batch = match reader.next() {
            Some(Ok(batch)) => batch,
            Some(Err(error)) => return Err(damaged(format!("it cannot be understood: {error}"))),
            None => return Err(damaged("it has no rows".to_owned())),
        };
        let schema = def.arrow_schema();
        let columns = schema.fields().len();
        let own = &batch.columns()[..columns.min(batch.num_columns())];
        let same = own.len() == columns
            && own.iter().zip(schema.fields()).all(|(array, field)| array.data_type() == field.data_type());
        if !same || batch.num_rows() as u64 != rows {
            return Err(damaged("its columns or rows are not the table's".to_owned()));
        }
        let ids = match &batch.columns()[columns..] {
            [] => Vec::new(),
            [ids] if *ids.data_type() == DataType::UInt64 => {
                ids.as_primitive::<UInt64Type>().values().iter().map(|id| RowId(*id)).collect()
            }
            _ => return Err(damaged("its columns are not the table's".to_owned())),
        };
        // The table may have been renamed since: names come from its definition.
        let options = arrow_array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let rows = RecordBatch::try_new_with_options(schema, own.to_vec(), &options)
            .map_err(|error| damaged(format!("it does not fit its table: {error}")))?;
        let id = |bytes: &[u8]| RowId(u64::from_le_bytes(std::array::from_fn(|place| bytes[place])));
        Ok(Delta { rows, ids, gone: gone.chunks_exact(8).map(id).collect() })
    }

    /// Rows of main that are gone.
    pub fn gone(&self) -> &[RowId] {
        &self.gone
    }

    /// Puts the rows into their places, as of `ts`.
    pub fn restore(&self, rows: &Arc<RowStore>, view: &View, ts: CommitTs) -> Result<()> {
        let images = rows.layout().rows(&self.rows)?;
        let mut image = Vec::new();
        for place in 0..self.rows.num_rows() {
            images.image(place, &mut image)?;
            match self.ids.get(place) {
                Some(row) => rows.restore_row(view, *row, Some(&image), ts)?,
                None => rows.restore_new(view, &image, ts)?,
            }
        }
        Ok(())
    }
}

/// Makes the bytes of a file of delta under a number.
pub(crate) type MakeFile<'m> = &'m dyn Fn(u64) -> Result<Vec<u8>>;

/// Hands what main does not show of a table to functions: each row of main that is gone, and of parts of what is in versions the number of
/// rows, and what makes the bytes of a file of delta under a number.
pub(crate) fn delta_bytes(
    table: &TableVersion,
    gone: &mut dyn FnMut(RowId),
    image: &mut dyn FnMut(u64, MakeFile<'_>) -> Result<()>,
) -> Result<()> {
    Delta::each(table, |delta| {
        delta.gone().iter().copied().for_each(&mut *gone);
        let rows = delta.rows() as u64;
        if rows == 0 {
            return Ok(());
        }
        image(rows, &|number| {
            let parts = delta.parts()?;
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let mut bytes = row_file::header(&identity(&table.def, number, rows), &parts);
            parts.iter().for_each(|part| bytes.extend_from_slice(part));
            Ok(bytes)
        })
    })
}

/// Puts rows into their places that `delta_bytes` wrote under a number, as of `ts`. XX001 when they are others, or damaged.
pub(crate) fn restore_delta_bytes(
    def: &TableDef,
    number: u64,
    rows: u64,
    bytes: &[u8],
    to: &Arc<RowStore>,
    view: &View,
    ts: CommitTs,
) -> Result<()> {
    let parts = row_file::parts(bytes, &identity(def, number, rows))?;
    Delta::read(def, &parts, rows)?.restore(to, view, ts)
}

fn identity(def: &TableDef, number: u64, rows: u64) -> Identity {
    Identity { kind: Kind::Delta, table: u64::from(def.id.0), id: number, rows }
}

fn with_ids(schema: &SchemaRef) -> SchemaRef {
    let mut fields = schema.fields().to_vec();
    fields.push(Arc::new(Field::new(ROW_ID, DataType::UInt64, false)));
    Arc::new(Schema::new(fields))
}
