//! Identifiers, each a type of its own so that none is passed for another.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A table, for the life of the database. Doubles as its PostgreSQL oid, so user tables start at 16384.
    TableId(u32)
);
id!(
    /// A tablespace, for the life of the process. 0 is `near`, 1 is `far`.
    TablespaceId(u16)
);
id!(
    /// A row group of a table's main, unique within the database and never used twice.
    RowGroupId(u64)
);
id!(
    /// A statement being executed, for the life of the process.
    StatementId(u64)
);
id!(
    /// The position of a commit in the order of commits.
    CommitTs(u64)
);
