use arrow_array::RecordBatch;
use std::sync::Arc;
use tidepool_base::Result;
use tidepool_tablespace::Tablespace;

/// Rows not yet merged: one immutable batch whose buffers lie in a tablespace.
#[derive(Debug)]
pub struct DeltaChunk {}

impl DeltaChunk {
    /// Copies `batch` into `tablespace` (purpose delta).
    pub fn new(_batch: &RecordBatch, _tablespace: &Arc<Tablespace>) -> Result<DeltaChunk> {
        unimplemented!()
    }
    pub fn batch(&self) -> &RecordBatch {
        unimplemented!()
    }
    pub fn bytes(&self) -> u64 {
        unimplemented!()
    }
}
