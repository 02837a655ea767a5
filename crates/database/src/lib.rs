//! The database: configuration, catalogue, transactions over tables, loading, text forms of values, and the data
//! folder.
//!
//! A [`DatabaseState`] is what exists; it never changes, and another one takes its place. A [`DatabaseVersion`] is a
//! state under a view of its tables' rows: what a statement reads. Readers hold one and are never blocked. A
//! [`Transaction`] writes versions of rows, and builds the next state where it changes what exists; both are seen by
//! others once it has committed.

#![forbid(unsafe_code)]

pub mod config;
pub mod copy;
pub mod progress;
pub mod scram;
pub mod text;

mod access;
mod background;
mod catalog;
mod database;
mod ddl;
mod durability;
mod encode_pool;
pub mod follow;
mod lsn;
mod nodes;
mod patience;
pub mod pod;
mod pool_host;
mod process_memory;
mod roles;
mod upkeep;
mod write;

pub use access::{AccessLog, ColumnRecord, DirectRead, IndexRecord, TableRecord, Workload};
pub use catalog::comment::{Commented, Comments};
pub use catalog::relation::{RelationName, SchemaDef, ViewColumn, ViewDef, ViewRelation, ViewSource};
pub use catalog::roles::{
    Access, AccessKind, AccessObject, Grant, Membership, Privileges, RoleDef, grant, predefined, revoke,
};
pub use catalog::sequence::{Sequence, SequenceDef, SequenceOwner, SequencePosition};
pub use catalog::state::{Catalog, ColumnSize, DatabaseState, DatabaseVersion, StateMark, TableSize};
pub use catalog::temporary::TemporaryTables;
pub use config::{Config, ConfigBuilder, OnFenced, PoolRole, PoolSettings};
pub use database::{Database, DatabaseStats};
pub use ddl::alter::{ColumnSource, Compute};
pub use durability::archive::ArchiverState;
pub use durability::check::{Checked, check_folder, reset_sequences, restore};
pub use durability::point_in_time::{Recovered, RecoveryTarget, recover_to, remove_archive_before};
pub use durability::reset_log::reset_log;
pub use durability::small::MainPlaces;
pub use durability::storage::Copied;
pub use durability::transaction_ids::{CommitWitness, CurrentTransaction, TransactionFate};
pub use lsn::Lsn;
pub use patience::Patience;
pub use pool_host::{LIFE_LEFT_VARIABLE, PoolHost};
pub use roles::{
    CopyState, FollowProgress, HostHolds, HostRole, PassesSessions, PositionWait, ReplayPause, RoleWatch,
    SecondTierState, Standby, StandbyNames, StandbyWait, Switchover, SwitchoverOptions, SyncState, Upstream,
};
pub use tidepool_log::{ArchiveState, LogPosition};
pub use tidepool_txn::{Isolation, Tag};
pub use upkeep::advice;
pub use upkeep::elastic::TablespaceChange;
pub use upkeep::room::PoolYield;
pub use write::by_key;
pub use write::direct::{ChangeWatch, StatementMark};
pub use write::footing::{Footing, LookedUp};
pub use write::index::{NewIndex, OnConflict, Upserted};
pub use write::locks::{LockInfo, LockMode};
pub use write::partition::{
    ChangedRows, NewPartition, PARTITIONS_MAX, PartitionTree, bound_literal, bound_text, ordinal_bits, split_id,
};
pub use write::portable::{DoneAgain, RowStep, TransactionStep};
pub use write::references::{NewForeignKey, Referring, RowRules};
pub use write::rows::{Changed, LockWait, Locked};
pub use write::transaction::{CommitWait, Savepoint, Transaction};
pub use write::writer::{ChecksOf, RowChecks, TableWriter, rounded};

/// Where [`tidepool_base::crash_point`] can end the process in this crate.
pub const CRASH_POINTS: &[&str] =
    &["commit.decided", "commit.stamped", "checkpoint.view", "checkpoint.rows", "checkpoint.manifest"];

/// Where it can be ended in a process that follows a pool's log, or takes over.
pub const ROLE_CRASH_POINTS: &[&str] = &["follow.applied", "role.sealed", "role.applied"];

/// Where it can be ended in a copy of another pool's database, and when that is promoted.
pub const COPY_CRASH_POINTS: &[&str] = &["copy.applied", "copy.promoting", "role.founding", "role.founded"];

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
mod stress;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod transfer_tests;
