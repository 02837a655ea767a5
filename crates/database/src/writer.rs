use arrow_array::RecordBatch;
use std::sync::Arc;
use tidepool_base::Result;
use tidepool_table::TableVersion;

/// A stream of rows into one table. Holds at most one row group's worth unencoded (times the encoding threads).
/// Independent of the transaction while it runs, so that it can live on another thread; `Transaction::absorb` takes its rows in.
#[derive(Debug)]
pub struct TableWriter {}

impl TableWriter {
    pub fn table(&self) -> &Arc<TableVersion> {
        unimplemented!()
    }
    /// All of the table's columns, in order, in `TableDef::arrow_schema`'s types. 23502 on a NULL where none may be;
    /// 22001 on text too long; 53200 when the tablespace is full.
    pub fn write(&mut self, _batch: &RecordBatch) -> Result<()> {
        unimplemented!()
    }
    pub fn rows(&self) -> u64 {
        unimplemented!()
    }
}
