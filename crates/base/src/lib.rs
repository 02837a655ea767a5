//! What every other crate speaks: identifiers, errors with PostgreSQL's codes, SQL types, byte sizes, named crash points, what a
//! panic comes to, what a misspelt name may have meant, and what tests do that cannot run.
//!
//! Owns no other behaviour and depends on nothing of Tidepool's.

#![forbid(unsafe_code)]

mod crash;
mod error;
mod id;
mod nearest;
mod numeric;
mod panics;
mod size;
mod testing;
mod types;

pub use crash::{
    CRASH_POINT_VARIABLE, PANIC_POINT_VARIABLE, arm_crash_point, at_crash_points, crash_point, panic_point,
    without_unwinding,
};
pub use error::{Error, Part, Result, SqlState, Subject};
pub use id::{
    CommitTs, RoleId, RowGroupId, RowId, SchemaId, StatementId, StoreId, TEMPORARY_IDS, TEMPORARY_OIDS, TableId,
    TablespaceId,
};
pub use nearest::nearest;
pub use numeric::{NUMERIC_BYTES, NUMERIC_DIGITS, NUMERIC_KEY_BYTES, Numeric};
pub use panics::{caught, panicked};
pub use size::ByteSize;
pub use testing::cannot_test;
pub use types::{SqlType, TIMESTAMP_DIGITS_MAX, round_microseconds};
