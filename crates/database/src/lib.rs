//! The database: configuration, catalogue, transactions over tables, loading, text forms of values, and the data
//! folder.
//!
//! A [`DatabaseState`] is what exists; it never changes, and another one takes its place. A [`DatabaseVersion`] is a
//! state under a view of its tables' rows: what a statement reads. Readers hold one and are never blocked. A
//! [`Transaction`] writes versions of rows, and builds the next state where it changes what exists; both are seen by
//! others once it has committed.

#![forbid(unsafe_code)]

pub mod advice;
mod comment;
pub mod config;
pub mod copy;
pub mod progress;
pub mod scram;
pub mod text;

mod access;
mod alter;
pub mod by_key;
mod catalog;
mod check;
mod database;
mod ddl;
mod direct;
mod durability;
mod elastic;
mod encode_pool;
mod footing;
mod ids;
mod index;
mod loading;
mod locks;
mod log_home;
mod merge;
mod partition;
mod process_memory;
mod recovery;
mod redo;
mod references;
mod roles;
mod rows;
mod sequence;
mod storage;
mod transaction;
mod writer;

pub use access::{AccessLog, ColumnRecord, IndexRecord, TableRecord, Workload};
pub use alter::{ColumnSource, Compute};
pub use catalog::{
    Catalog, ColumnSize, DatabaseState, DatabaseVersion, RelationName, SchemaDef, StateMark, TableSize, ViewColumn,
    ViewDef, ViewRelation, ViewSource,
};
pub use check::{Checked, check_folder, reset_sequences, restore};
pub use comment::{Commented, Comments};
pub use config::{Config, ConfigBuilder};
pub use database::{Database, DatabaseStats};
pub use direct::{ChangeWatch, DirectRead, StatementMark};
pub use elastic::{Patience, TablespaceChange};
pub use footing::Footing;
pub use index::{NewIndex, OnConflict, Upserted};
pub use locks::{LockInfo, LockMode};
pub use log_home::reset_log;
pub use partition::{
    ChangedRows, NewPartition, PARTITIONS_MAX, PartitionTree, bound_literal, bound_text, ordinal_bits, split_id,
};
pub use references::{NewForeignKey, Referring, RowRules};
pub use roles::{Access, AccessKind, AccessObject, Grant, Membership, Privileges, RoleDef, grant, predefined, revoke};
pub use rows::{Changed, LockWait, Locked};
pub use sequence::{Sequence, SequenceDef, SequenceOwner, SequencePosition};
pub use storage::Copied;
pub use tidepool_txn::Isolation;
pub use transaction::{Savepoint, Transaction};
pub use writer::{ChecksOf, RowChecks, TableWriter, rounded};

/// Where [`tidepool_base::crash_point`] can end the process in this crate.
pub const CRASH_POINTS: &[&str] =
    &["commit.decided", "commit.stamped", "checkpoint.view", "checkpoint.rows", "checkpoint.manifest"];

#[cfg(test)]
mod check_tests;
#[cfg(test)]
mod found_tests;
#[cfg(test)]
mod ids_tests;
#[cfg(test)]
mod log_home_tests;
#[cfg(test)]
mod log_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod transfer_tests;
