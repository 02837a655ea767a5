//! What clients saw and did: the input of the checker.

/// An isolation level, from the weakest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    ReadCommitted,
    RepeatableRead,
    Serializable,
}

impl Level {
    pub const ALL: [Level; 3] = [Level::ReadCommitted, Level::RepeatableRead, Level::Serializable];

    pub fn sql(self) -> &'static str {
        match self {
            Level::ReadCommitted => "READ COMMITTED",
            Level::RepeatableRead => "REPEATABLE READ",
            Level::Serializable => "SERIALIZABLE",
        }
    }
}

/// A list or a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub table: &'static str,
    /// What predicates select by. A key's never changes.
    pub group: i64,
    pub id: i64,
}

/// Values are unique among all writes of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// A list becomes one longer.
    Append {
        key: Key,
        value: i64,
    },
    /// All of a list, in order.
    List {
        key: Key,
        values: Vec<i64>,
    },
    /// How long a list is.
    Length {
        key: Key,
        length: usize,
    },
    /// A register's value takes the place of `before`; `None`: there is no row. Each key has a row once at most.
    Write {
        key: Key,
        before: Option<i64>,
        value: Option<i64>,
    },
    Row {
        key: Key,
        value: Option<i64>,
    },
    /// All registers of a group that have rows, by id.
    Group {
        table: &'static str,
        group: i64,
        rows: Vec<(i64, i64)>,
    },
}

#[derive(Clone, Debug)]
pub struct Step {
    pub op: Op,
    /// Rolled back to a savepoint.
    pub undone: bool,
}

#[derive(Clone, Debug)]
pub struct Transaction {
    pub session: usize,
    pub level: Level,
    /// Before its first statement was sent, and after the answer to its last: any clock that all sessions share.
    pub began: u64,
    pub ended: u64,
    pub committed: bool,
    pub steps: Vec<Step>,
}

pub type History = Vec<Transaction>;
