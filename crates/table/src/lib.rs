//! Tables: rows not yet merged, main with its encodings, statistics, and scans over both.
//!
//! Nouns, outside in: a [`Table`] has rows, a [`rows::RowStore`]; a [`TableVersion`] is what one view sees of them. Its
//! main is [`RowGroup`]s, each one [`Segment`] a column; its delta is versions of rows.
//!
//! [`rows`] is the table as transactions write it: row ids, versions, and ranges whose main is replaced online.
//!
//! Leaves to others: names, files and who may do what (`tidepool-database`), timestamps and snapshots (`tidepool-txn`).

mod bits;
mod blob;
mod check;
#[cfg(test)]
mod conformance;

mod delta_columns;
mod dictionary;
mod encoding;
mod filter;
mod index;
mod logical;
mod parameters;
mod partition;
mod row_group;
pub mod rows;
mod sample;
mod scan;
mod schema;
mod segment;
mod sketch;
mod statistics;
#[cfg(test)]
mod table_tests;
mod tally;
#[cfg(test)]
mod testing;
mod version;

pub use check::TableReport;
pub use delta_columns::DeltaColumn;
pub use dictionary::ColumnDictionary;
pub use encoding::EncodingKind;
pub use filter::{ColumnFilter, CompareOp, FilterFunction, FilterSource, KeyTest};
pub use index::{
    BuildRequest, Entered, GroupKeys, IndexAccess, IndexKey, IndexUse, TableIndex, build_indexes, fill_index, key_value,
};
pub use parameters::{MergePolicy, StorageParameters};
pub use partition::{Misfit, PartitionBound, PartitionDef, PartitionMap, PartitionStrategy, Partitioning, RangeBound};
pub use row_group::RowGroup;
pub use scan::{ColumnAccess, Form, ScanMetrics, ScanReader, ScanRequest, TableScan, TablespaceRead};
pub use schema::{
    CheckDef, ColumnDef, ForeignKeyDef, Identity, IndexColumn, IndexDef, KeyConstraint, NUMERIC_WIDTH, OnCommit,
    ROW_ID, ReferencedPart, ReferentialAction, SQL_TYPE_METADATA, TableDef, arrow_type, sql_type_of_field,
};
pub use segment::{Origin, Segment, SegmentPlace};
pub use statistics::{ColumnStatistics, Datum, TableStatistics};
pub use version::{ColumnUsage, Placement, Table, TableVersion};

/// Rows of a full row group.
pub const ROW_GROUP_ROWS: usize = 128 * 1024;

/// Rows of a batch that a scan hands out, at most.
pub const BATCH_ROWS: usize = 8 * 1024;
