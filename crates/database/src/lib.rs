//! The database: configuration, catalogue, transactions over tables, loading, text forms of values, and the data folder.
//!
//! A [`DatabaseVersion`] is one immutable state of everything; readers hold one and are never blocked. A [`Transaction`]
//! builds the next one: it locks the tables it changes, sees its own changes, and publishes them all at once on commit.
//! This is the simple write path (append, create, drop, truncate); row versions and the log replace its inside.

pub mod advice;
pub mod config;
pub mod copy;
pub mod progress;
pub mod scram;
pub mod text;

mod access;
mod alter;
mod catalog;
mod database;
mod ddl;
mod elastic;
mod encode_pool;
mod locks;
mod sequence;
mod storage;
mod transaction;
mod writer;

pub use access::{AccessLog, ColumnRecord, TableRecord, Workload};
pub use alter::{ColumnSource, Compute};
pub use catalog::{
    Catalog, ColumnSize, DatabaseVersion, RelationName, SchemaDef, TableSize, ViewColumn, ViewDef, ViewRelation,
    ViewSource,
};
pub use config::{Config, ConfigBuilder};
pub use database::{Database, DatabaseStats};
pub use elastic::{Patience, TablespaceChange};
pub use locks::LockInfo;
pub use sequence::{Sequence, SequenceDef, SequenceOwner, SequencePosition};
pub use transaction::{Interrupted, Savepoint, Transaction};
pub use writer::{RowChecks, TableWriter};

#[cfg(test)]
mod tests;
