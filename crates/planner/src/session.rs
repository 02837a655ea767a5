use arrow::array::{ArrayRef, RecordBatch};
use bytes::Bytes;
use futures::Stream;
use std::pin::Pin;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlType};
use tidepool_database::Database;
use tidepool_database::text::TextSettings;

pub type BatchStream = Pin<Box<dyn Stream<Item = Result<RecordBatch>> + Send>>;

/// One a process.
pub struct Planner {}

impl Planner {
    pub fn new(_database: Arc<Database>) -> Result<Arc<Planner>> {
        unimplemented!()
    }
    pub fn database(&self) -> &Arc<Database> {
        unimplemented!()
    }
    pub fn session(self: &Arc<Self>, _user: &str) -> Session {
        unimplemented!()
    }
    /// Sessions that exist, for `pg_stat_activity` and metrics.
    pub fn session_count(&self) -> usize {
        unimplemented!()
    }
    /// Statements that run now, then the latest finished ones.
    pub fn queries(&self) -> Vec<Arc<crate::QueryInfo>> {
        unimplemented!()
    }
    /// Sessions that exist.
    pub(crate) fn sessions(&self) -> Vec<SessionRow> {
        unimplemented!()
    }
}

/// A row of `pg_stat_activity`.
#[derive(Clone, Debug)]
pub(crate) struct SessionRow {
    pub session_id: u32,
    pub user: String,
    pub application_name: String,
    pub start: chrono::DateTime<chrono::Utc>,
    pub transaction_status: TransactionStatus,
}

/// One statement of a client's text, parsed.
#[derive(Clone)]
pub struct Statement {}

impl Statement {
    /// Its part of the text.
    pub fn text(&self) -> &str {
        unimplemented!()
    }
    /// No statement at all (only blanks and comments).
    pub fn is_empty(&self) -> bool {
        unimplemented!()
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct ResultColumn {
    pub name: String,
    pub sql_type: SqlType,
    /// PostgreSQL's oid and modifier, which may be of a type no column can have (`oid`, `name`, `int4[]`).
    pub type_oid: u32,
    pub type_modifier: i32,
    /// The table and attribute number it comes from, or zeroes.
    pub table_oid: u32,
    pub attribute: i16,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// Type oids of `$1`, `$2`, …
    pub parameters: Vec<u32>,
    /// `None` for a statement that returns no rows.
    pub columns: Option<Vec<ResultColumn>>,
}

pub enum Outcome {
    /// Dropping the stream ends the statement. The tag's row count is the server's to add (`SELECT 5`).
    Rows {
        columns: Vec<ResultColumn>,
        batches: BatchStream,
        tag: &'static str,
    },
    /// `INSERT 0 5`, `CREATE TABLE`, `BEGIN`.
    Command {
        tag: String,
    },
    CopyIn(CopyIn),
    CopyOut(CopyOut),
    Empty,
}

/// `COPY … FROM STDIN` under way. Dropped unfinished, it leaves nothing behind.
pub struct CopyIn {
    pub columns: usize,
}

impl CopyIn {
    pub async fn write(&mut self, _bytes: Bytes) -> Result<()> {
        unimplemented!()
    }
    /// The client's CopyFail is an error to hand to `Session::fail`, after dropping this.
    pub async fn finish(self) -> Result<u64> {
        unimplemented!()
    }
}

/// `COPY … TO STDOUT` under way.
pub struct CopyOut {
    pub columns: usize,
    pub data: Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>,
    /// Rows sent so far; final once `data` ended.
    pub rows: Arc<std::sync::atomic::AtomicU64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionStatus {
    Idle,
    InTransaction,
    Failed,
}

/// A NOTICE or WARNING for the client.
#[derive(Clone, Debug)]
pub struct Notice {
    pub severity: &'static str,
    pub error: Error,
}

#[derive(Clone)]
pub struct CancelHandle {}

impl CancelHandle {
    /// Ends the statement that runs now, if any, with 57014.
    pub fn cancel(&self) {
        unimplemented!()
    }
}

pub struct Session {}

impl Session {
    /// Splits and parses a client's text. 42601 with the position on a syntax error.
    pub fn parse(&self, _sql: &str) -> Result<Vec<Statement>> {
        unimplemented!()
    }
    /// Parameter types (those the client gave, the rest inferred) and result columns.
    pub async fn describe(&mut self, _statement: &Statement, _parameter_oids: &[u32]) -> Result<Description> {
        unimplemented!()
    }
    /// Runs one statement. `parameters` are arrays of length one, of the described types. Outside a transaction block
    /// it commits by itself; `CopyIn` commits at `finish`. An error inside a block fails the block.
    pub async fn execute(&mut self, _statement: &Statement, _parameters: &[ArrayRef]) -> Result<Outcome> {
        unimplemented!()
    }
    /// From here to `end_implicit_block`, statements outside a transaction block share one transaction instead of
    /// committing one by one: several statements in one simple query, or a pipeline up to its Sync. As in PostgreSQL,
    /// `BEGIN` turns it into an ordinary block (which outlives it), `COMMIT` and `ROLLBACK` end what was done so far, and
    /// `transaction_status` does not show it. Does nothing inside a transaction block.
    pub fn begin_implicit_block(&mut self) {
        unimplemented!()
    }
    /// Commits what the implicit block did, or rolls it back when a statement in it failed (or `fail` was called). Does
    /// nothing when there is none, or when it became an ordinary block.
    pub async fn end_implicit_block(&mut self) -> Result<()> {
        unimplemented!()
    }
    /// An error of the protocol's own (a bad parameter, CopyFail) also fails the transaction block.
    pub fn fail(&mut self) {
        unimplemented!()
    }
    pub fn transaction_status(&self) -> TransactionStatus {
        unimplemented!()
    }
    pub fn cancel_handle(&self) -> CancelHandle {
        unimplemented!()
    }
    /// The value of a setting as `SHOW` prints it.
    pub fn setting(&self, _name: &str) -> Result<String> {
        unimplemented!()
    }
    /// `SET` by the protocol (start-up parameters).
    pub fn set(&mut self, _name: &str, _value: &str) -> Result<()> {
        unimplemented!()
    }
    /// Settings that changed since last asked and that the protocol reports (ParameterStatus).
    pub fn take_changed_settings(&mut self) -> Vec<(String, String)> {
        unimplemented!()
    }
    pub fn take_notices(&mut self) -> Vec<Notice> {
        unimplemented!()
    }
    pub fn text_settings(&self) -> TextSettings {
        unimplemented!()
    }
    /// All statements of a text, each outcome drained and returned as batches: for embedded use, tests and benchmarks.
    pub async fn query(&mut self, _sql: &str) -> Result<Vec<RecordBatch>> {
        unimplemented!()
    }
}
