//! Statements that go to their rows by an index's keys, without a plan of operators between them and the rows.
//!
//! A statement is planned once, as any other is, up to the end of its analysis: names are resolved then, types settled,
//! defaults in place and privileges checked. What comes of that is made into a [`Program`] ([`compile`]): for each of one to
//! three tables an index and the values of its columns ([`access`]), conditions, and outputs ([`expr`]), which go from the
//! row's image straight to who wants them. Where there is something that programs have no form for, there is none, and the
//! general path runs the statement: an answer never depends on which of the two it was.
//!
//! A program belongs to one state of what exists, to one role and to one set of settings ([`Program::is_for`]). It holds nothing of
//! a snapshot. A text without parameters is taken for one with its literals as parameters ([`template`]), so that texts which
//! differ in nothing else share a program.
//!
//! [`run`] runs programs, on the thread of whoever asks: it takes microseconds. What finds out that it would take longer
//! gives way to the general path before it has written anything; who would have to wait for another transaction, undoes
//! what it did and runs again on a thread that may sleep.

pub mod access;
pub mod aggregate;
pub mod cache;
pub mod compile;
pub mod datum;
pub mod explain;
pub mod expr;
pub mod run;
pub mod template;

use crate::facts::SessionFacts;
use crate::session::ResultColumn;
use crate::settings::Settings;
use compile::{Query, Source};
use datum::Datum;
use expr::Expr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use tidepool_base::{Result, SqlType};
use tidepool_database::{LockWait, RelationName, StateMark};
use tidepool_table::rows::RowLock;
use tidepool_table::{Table, TableDef};

/// Who takes the rows of a statement as they come.
pub trait RowSink {
    fn row(&mut self, values: &[Datum<'_>]) -> Result<()>;
    /// So much came that no more should: the general path sends rows as it goes.
    fn is_full(&self) -> bool {
        false
    }
    /// None of those that came count: the statement begins again, or fails.
    fn clear(&mut self);
    /// All have come, and the statement's transaction is committed next.
    fn committing(&mut self) {}
}

/// A table that a program writes to.
pub struct Target {
    pub name: RelationName,
    pub table: Weak<Table>,
    pub def: Arc<TableDef>,
    /// Columns whose texts are to be fitted to their types.
    pub fitted: Vec<(usize, SqlType)>,
    /// Columns that may not be NULL.
    pub required: Vec<usize>,
    /// Over the new row as slots, in the order in which they are checked.
    pub checks: Vec<Expr>,
    /// Over the new row as slots, or the old one of a `DELETE`.
    pub returning: Option<Vec<Expr>>,
}

pub enum Work {
    Select(Query),
    Lock {
        query: Query,
        lock: RowLock,
        wait: LockWait,
    },
    /// The rows' values, one a column.
    Insert {
        target: Target,
        rows: Vec<Vec<Expr>>,
    },
    /// The query's outputs are the new row's values.
    Update {
        query: Query,
        target: Target,
    },
    Delete {
        query: Query,
        target: Target,
    },
}

pub struct Program {
    pub work: Work,
    pub columns: Option<Arc<[ResultColumn]>>,
    /// Of the parameters, those that stand for literals included.
    pub parameters: Vec<SqlType>,
    pub state: StateMark,
    pub settings: Arc<Settings>,
    /// How often it found more rows than are for it.
    too_many: AtomicU32,
    /// What it takes of memory, about.
    pub bytes: u64,
}

/// After so many times that a program found too much, it is not tried any more.
const TOO_MANY_MAX: u32 = 3;

impl Program {
    pub fn new(
        work: Work,
        columns: Option<Vec<ResultColumn>>,
        parameters: Vec<SqlType>,
        facts: &SessionFacts,
    ) -> Program {
        Program {
            work,
            columns: columns.map(Arc::from),
            parameters,
            state: facts.version.mark(),
            settings: facts.settings.clone(),
            too_many: AtomicU32::new(0),
            bytes: 0,
        }
    }

    pub fn sources(&self) -> &[Source] {
        match &self.work {
            Work::Select(query)
            | Work::Lock { query, .. }
            | Work::Update { query, .. }
            | Work::Delete { query, .. } => &query.sources,
            Work::Insert { .. } => &[],
        }
    }

    /// It takes a transaction that may write.
    pub fn writes(&self) -> bool {
        !matches!(self.work, Work::Select(_))
    }

    /// It writes to a table that is its session's alone.
    pub fn is_of_temporary(&self) -> bool {
        match &self.work {
            Work::Select(_) | Work::Lock { .. } => false,
            Work::Insert { target, .. } | Work::Update { target, .. } | Work::Delete { target, .. } => {
                target.def.is_temporary()
            }
        }
    }

    /// It is a query without FROM, which belongs to no class of the workload.
    pub fn reads_no_table(&self) -> bool {
        matches!(&self.work, Work::Select(query) if query.sources.is_empty())
    }

    /// The statement as messages name it.
    pub fn name(&self) -> &'static str {
        match &self.work {
            Work::Select(_) => "SELECT",
            Work::Lock { lock: RowLock::Update, .. } => "SELECT FOR UPDATE",
            Work::Lock { lock: RowLock::NoKeyUpdate, .. } => "SELECT FOR NO KEY UPDATE",
            Work::Lock { lock: RowLock::Share, .. } => "SELECT FOR SHARE",
            Work::Lock { lock: RowLock::KeyShare, .. } => "SELECT FOR KEY SHARE",
            Work::Insert { .. } => "INSERT",
            Work::Update { .. } => "UPDATE",
            Work::Delete { .. } => "DELETE",
        }
    }

    /// The command tag before its number of rows.
    pub fn tag(&self) -> &'static str {
        match &self.work {
            Work::Select(_) | Work::Lock { .. } => "SELECT",
            Work::Insert { .. } => "INSERT 0",
            Work::Update { .. } => "UPDATE",
            Work::Delete { .. } => "DELETE",
        }
    }

    /// Whether it is worth trying.
    pub fn is_useful(&self) -> bool {
        self.too_many.load(Ordering::Relaxed) < TOO_MANY_MAX
    }

    pub(crate) fn found_too_many(&self) {
        self.too_many.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether it does under these settings what it did when it was made.
    pub fn is_for(&self, settings: &Settings) -> bool {
        self.settings.mean_the_same(settings)
    }
}
