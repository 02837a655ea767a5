//! What every other crate speaks: identifiers, errors with PostgreSQL's codes, SQL types and byte sizes.
//!
//! Owns no behaviour and depends on nothing of Tidepool's.

mod error;
mod id;
mod size;
mod types;

pub use error::{Error, Result, SqlState};
pub use id::{CommitTs, RowGroupId, RowId, StatementId, TableId, TablespaceId};
pub use size::ByteSize;
pub use types::SqlType;
