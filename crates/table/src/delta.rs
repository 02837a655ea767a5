//! Delta: rows not yet merged, as Arrow batches in a tablespace.

use crate::segment::statistics_of;
use crate::sketch::Sketch;
use crate::statistics::ColumnStatistics;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, make_array};
use arrow_buffer::Buffer;
use arrow_data::ArrayData;
use arrow_data::transform::MutableArrayData;
use arrow_schema::DataType;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use tidepool_base::{Error, Result};
use tidepool_device::Access;
use tidepool_tablespace::{Purpose, Region, Tablespace};

const ALIGNMENT: usize = 64;

/// Rows not yet merged: one immutable batch whose buffers lie in a tablespace.
#[derive(Debug)]
pub struct DeltaChunk {
    batch: RecordBatch,
    bytes: u64,
    column_bytes: Vec<u64>,
    tablespace: Arc<Tablespace>,
    /// What the batch's buffers point into.
    owner: Arc<Owner>,
    statistics: OnceLock<Vec<(ColumnStatistics, Sketch)>>,
}

/// Keeps the region while any array points into it.
#[derive(Debug)]
struct Owner(Region);

// Nothing writes to the region after its arrays are made, so a panic elsewhere cannot leave it half written.
impl RefUnwindSafe for Owner {}
impl UnwindSafe for Owner {}

impl DeltaChunk {
    /// Copies `batch` into `tablespace` (purpose delta).
    pub fn new(batch: &RecordBatch, tablespace: &Arc<Tablespace>) -> Result<DeltaChunk> {
        let columns = batch.columns().iter().map(compact).collect::<Result<Vec<ArrayData>>>()?;
        let column_bytes =
            columns.iter().map(|column| buffers(column).iter().map(|buffer| buffer.len() as u64).sum()).collect();
        let len: usize = columns.iter().flat_map(buffers).map(|buffer| buffer.len().next_multiple_of(ALIGNMENT)).sum();
        let mut region = tablespace.allocate(len.max(ALIGNMENT), Purpose::Delta)?;
        let mut end = 0;
        for buffer in columns.iter().flat_map(buffers) {
            region[end..end + buffer.len()].copy_from_slice(&buffer);
            end += buffer.len().next_multiple_of(ALIGNMENT);
        }
        tablespace.charge(Purpose::Delta, &[Access::write_sequential(len as u64)]);

        let owner = Arc::new(Owner(region));
        let mut end = 0;
        let mut place = |len: usize| {
            let bytes = &owner.0[end..end + len];
            end += len.next_multiple_of(ALIGNMENT);
            let start = NonNull::from(bytes).cast::<u8>();
            // SAFETY: the bytes lie in the region, which does not move or change and lives as long as its owner, which
            // the buffer keeps alive.
            unsafe { Buffer::from_custom_allocation(start, len, Arc::clone(&owner) as _) }
        };
        let columns = (columns.iter().zip(batch.columns()))
            .map(|(data, column)| {
                let buffers: Vec<Buffer> = data.buffers().iter().map(|buffer| place(buffer.len())).collect();
                let nulls = data.nulls().map(|nulls| place(nulls.inner().values().len()));
                let data = ArrayData::builder(column.data_type().clone())
                    .len(data.len())
                    .buffers(buffers)
                    .null_bit_buffer(nulls)
                    .build()
                    .map_err(|error| Error::internal(format!("a delta chunk could not be put together: {error}")))?;
                Ok(make_array(data))
            })
            .collect::<Result<Vec<_>>>()?;
        let options = arrow_array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let batch = RecordBatch::try_new_with_options(batch.schema(), columns, &options)
            .map_err(|error| Error::internal(format!("a delta chunk could not be put together: {error}")))?;
        Ok(DeltaChunk {
            batch,
            bytes: len as u64,
            column_bytes,
            tablespace: Arc::clone(tablespace),
            owner,
            statistics: OnceLock::new(),
        })
    }

    pub fn batch(&self) -> &RecordBatch {
        &self.batch
    }

    /// Bytes in the tablespace.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn tablespace(&self) -> &Arc<Tablespace> {
        &self.tablespace
    }

    /// All rows, to be read from end to end: the tablespace's device is charged for it.
    pub fn read_whole(&self) -> &RecordBatch {
        self.tablespace.charge(Purpose::Delta, &[Access::read_sequential(self.bytes)]);
        &self.batch
    }

    /// Something of it lies in memory that `space` is to give up.
    pub fn must_move(&self, space: &Tablespace) -> bool {
        space.is_closing(&self.owner.0)
    }

    /// The same rows in another tablespace.
    pub fn copy_to(&self, tablespace: &Arc<Tablespace>) -> Result<DeltaChunk> {
        DeltaChunk::new(self.read_whole(), tablespace)
    }

    /// Of each column; worked out once.
    pub(crate) fn statistics(&self) -> &[(ColumnStatistics, Sketch)] {
        self.statistics.get_or_init(|| {
            self.read_whole().columns().iter().map(|column| statistics_of(column).unwrap_or_default()).collect()
        })
    }

    /// Bytes of one column.
    pub(crate) fn column_bytes(&self, column: usize) -> u64 {
        self.column_bytes[column]
    }
}

/// The array from its first row on, and without text that it does not show.
fn compact(array: &ArrayRef) -> Result<ArrayData> {
    let data = match array.data_type() {
        DataType::Utf8View => array.as_string_view().gc().to_data(),
        DataType::BinaryView => array.as_binary_view().gc().to_data(),
        _ => array.to_data(),
    };
    if data.offset() == 0 && data.nulls().is_none_or(|nulls| nulls.offset() == 0) {
        return Ok(data);
    }
    // Copying gives buffers that start with the first row.
    let mut copy = MutableArrayData::new(vec![&data], false, data.len());
    copy.try_extend(0, 0, data.len())
        .map_err(|error| Error::internal(format!("a delta chunk could not be copied: {error}")))?;
    Ok(copy.freeze())
}

/// The buffers that hold an array's rows, no longer than need be.
fn buffers(data: &ArrayData) -> Vec<Buffer> {
    let mut buffers = data.buffers().to_vec();
    if let Some(nulls) = data.nulls() {
        buffers.push(nulls.inner().values().into());
    }
    buffers
}
