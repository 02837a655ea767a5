//! Scans: projection, filters and limit pushed down, row groups skipped by statistics, filters evaluated on encoded
//! data where the encoding allows, main and delta alike. Readers share a queue of morsels (a row group each).

use crate::{Datum, TableVersion};
use arrow_array::{ArrayRef, BooleanArray, RecordBatch};
use arrow_schema::SchemaRef;
use std::sync::Arc;
use tidepool_base::Result;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareOp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// A condition on one column (by position in the table). A row passes when it is true; NULL is not true.
#[derive(Clone)]
pub enum ColumnFilter {
    Compare {
        column: usize,
        op: CompareOp,
        value: Datum,
    },
    In {
        column: usize,
        values: Vec<Datum>,
    },
    IsNull {
        column: usize,
    },
    IsNotNull {
        column: usize,
    },
    /// Any deterministic function of the one column, strict or not. Evaluated once per dictionary entry (and once for
    /// NULL) where the segment has a dictionary, else on decoded vectors.
    Function {
        column: usize,
        function: Arc<dyn Fn(&ArrayRef) -> Result<BooleanArray> + Send + Sync>,
    },
}

/// Filters that become known while the scan runs (runtime filters of joins, the threshold of a top-N).
pub trait FilterSource: Send + Sync {
    /// Grows whenever `filters` would answer differently; asked once a batch.
    fn generation(&self) -> u64;
    fn filters(&self) -> Vec<ColumnFilter>;
}

pub struct ScanRequest {
    /// Columns to produce, in order. May be empty (only row counts).
    pub projection: Vec<usize>,
    /// All must hold. Exact: no row that fails one is produced.
    pub filters: Vec<ColumnFilter>,
    pub dynamic: Option<Arc<dyn FilterSource>>,
    /// Stop once this many rows were produced by all readers together.
    pub limit: Option<usize>,
    pub batch_rows: usize,
}

/// What a scan did so far, over all its readers. By tablespace where a tablespace matters.
#[derive(Clone, Debug, Default)]
pub struct ScanMetrics {
    pub row_groups: u64,
    pub row_groups_skipped: u64,
    pub rows_scanned: u64,
    pub rows_produced: u64,
    pub decoded_bytes: u64,
    /// (tablespace name, encoded bytes read, nanoseconds stalled by pacing).
    pub tablespaces: Vec<(String, u64, u64)>,
}

pub struct TableScan {}

impl TableScan {
    pub fn new(_version: Arc<TableVersion>, _request: ScanRequest) -> Arc<TableScan> {
        unimplemented!()
    }
    pub fn schema(&self) -> SchemaRef {
        unimplemented!()
    }
    /// One of any number of readers, for one thread each; together they see every row once.
    pub fn reader(self: &Arc<Self>) -> ScanReader {
        unimplemented!()
    }
    pub fn metrics(&self) -> ScanMetrics {
        unimplemented!()
    }
}

pub struct ScanReader {}

impl ScanReader {
    /// The next batch, or `None` at the end. Never an empty batch.
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        unimplemented!()
    }
}
