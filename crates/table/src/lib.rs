//! Tables: rows not yet merged, main with its encodings, statistics, and scans over both.
//!
//! Nouns, outside in: a [`TableVersion`] is one immutable state of a table; its main is [`RowGroup`]s, each one
//! [`Segment`] a column; its delta is [`DeltaChunk`]s. A version never changes; writers make the next one.
//!
//! Leaves to others: names, transactions and files (`tidepool-database`).

mod column_main;
mod delta;
mod encoding;
mod scan;
mod schema;
mod statistics;
mod version;

pub use column_main::{RowGroup, Segment};
pub use delta::DeltaChunk;
pub use encoding::EncodingKind;
pub use scan::{ColumnFilter, CompareOp, FilterSource, ScanMetrics, ScanReader, ScanRequest, TableScan};
pub use schema::{ColumnDef, SQL_TYPE_METADATA, TableDef, arrow_type, sql_type_of_field};
pub use statistics::{ColumnStatistics, Datum, TableStatistics};
pub use version::{Placement, TableVersion};

/// Rows of a full row group.
pub const ROW_GROUP_ROWS: usize = 128 * 1024;

/// Rows of a batch that a scan hands out, at most.
pub const BATCH_ROWS: usize = 8 * 1024;
