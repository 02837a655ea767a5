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
    /// A schema, for the life of the database. Doubles as its PostgreSQL oid.
    SchemaId(u32)
);
id!(
    /// A role, for the life of the database. Doubles as its PostgreSQL oid.
    RoleId(u32)
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
    /// The rows of a table, as long as they keep their ids: a table that is emptied or moved has others. Unique within the
    /// database and never used twice.
    StoreId(u64)
);
id!(
    /// A statement being executed, for the life of the process.
    StatementId(u64)
);
id!(
    /// When a transaction committed: nanoseconds on the database's own clock, which only goes forward, over restarts too.
    /// Zero is before every commit.
    CommitTs(u64)
);
id!(
    /// A row of a table, for its life: the number of its range, and its position there.
    ///
    /// ```text
    /// 63                      17 16            0
    /// [        range            |   position    ]
    /// ```
    RowId(u64)
);

impl RowId {
    /// Bits of a position. A range has as many rows as a full row group.
    pub const POSITION_BITS: u32 = 17;
    /// Rows of a range.
    pub const RANGE_ROWS: usize = 1 << RowId::POSITION_BITS;

    /// `position` is below `RANGE_ROWS`.
    #[inline]
    pub fn new(range: u64, position: usize) -> RowId {
        debug_assert!(position < RowId::RANGE_ROWS && range < 1 << (64 - RowId::POSITION_BITS));
        RowId(range << RowId::POSITION_BITS | position as u64)
    }

    #[inline]
    pub fn range(self) -> u64 {
        self.0 >> RowId::POSITION_BITS
    }

    #[inline]
    pub fn position(self) -> usize {
        (self.0 & (RowId::RANGE_ROWS as u64 - 1)) as usize
    }
}

/// Oids of what one session has for itself: from here on, and below the next. They are drawn by each process anew, and nothing that outlives it
/// names them.
pub const TEMPORARY_OIDS: std::ops::Range<u32> = 1 << 30..1 << 31;

/// As `TEMPORARY_OIDS`, of stores and row groups: from here on.
pub const TEMPORARY_IDS: u64 = 1 << 61;

impl TableId {
    /// It is a relation that one session has for itself.
    #[inline]
    pub fn is_temporary(self) -> bool {
        TEMPORARY_OIDS.contains(&self.0)
    }
}

impl StoreId {
    /// It has the rows of a temporary table.
    #[inline]
    pub fn is_temporary(self) -> bool {
        self.0 >= TEMPORARY_IDS
    }
}

impl SchemaId {
    /// It is a session's own, in which its temporary tables are.
    #[inline]
    pub fn is_temporary(self) -> bool {
        TEMPORARY_OIDS.contains(&self.0)
    }

    /// Schema `public`, which exists unless it was dropped.
    pub const PUBLIC: SchemaId = SchemaId(2200);
}

impl RoleId {
    /// Everybody.
    pub const PUBLIC: RoleId = RoleId(0);
    /// The role that a database begins with, which may do everything.
    pub const OWNER: RoleId = RoleId(10);
}

impl Default for SchemaId {
    fn default() -> SchemaId {
        SchemaId::PUBLIC
    }
}
