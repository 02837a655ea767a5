//! A connection's state: settings, transaction block, prepared statements and cursors; and what each statement does to
//! them.
//!
//! Outside a block a statement commits by itself. Inside one, the block's [`Transaction`] is lent to the statement that
//! writes and comes back when it succeeds; an error leaves the block failed, and all it may do then is end.

mod savepoint;

use crate::execute::{Batches, Execution, joined};
use crate::facts::SessionFacts;
use crate::interrupt::Interrupt;
use crate::names::OutputNames;
use crate::planner::Planner;
use crate::query;
use crate::settings::Settings;
use crate::statement::{
    self, AlterAction, Command, CopyEndpoint, CopySource, CopyStatement, FetchCount, QualifiedName, SetValue,
    Statement, TransactionMode,
};
use crate::types;
use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use chrono::{DateTime, Utc};
use datafusion::sql::sqlparser::ast;
use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use tidepool_base::{Error, Result, SqlState, SqlType};
use tidepool_database::copy::EncodedRows;
use tidepool_database::text::TextSettings;
use tidepool_database::{DatabaseVersion, Transaction};
use tidepool_table::ColumnDef;
use tokio::sync::Notify;

pub use crate::copy::CopyIn;

pub type BatchStream = Pin<Box<dyn Stream<Item = Result<RecordBatch>> + Send>>;

/// A row of `pg_stat_activity`.
#[derive(Clone, Debug)]
pub(crate) struct SessionRow {
    pub session_id: u32,
    pub user: String,
    pub application_name: String,
    pub start: DateTime<Utc>,
    pub transaction_status: TransactionStatus,
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

impl ResultColumn {
    fn text(name: &str) -> ResultColumn {
        ResultColumn {
            name: name.to_owned(),
            sql_type: SqlType::Text,
            type_oid: SqlType::Text.oid(),
            type_modifier: -1,
            table_oid: 0,
            attribute: 0,
        }
    }
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

/// `COPY … TO STDOUT` under way.
pub struct CopyOut {
    pub columns: usize,
    /// The data is in binary form, not text.
    pub binary: bool,
    pub data: Pin<Box<dyn Stream<Item = Result<EncodedRows>> + Send>>,
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
pub struct CancelHandle(Arc<SessionShared>);

impl CancelHandle {
    /// Ends the statement that runs now, if any, with 57014.
    pub fn cancel(&self) {
        self.0.cancel();
    }
}

/// What others may see of a session.
pub struct SessionShared {
    id: u32,
    user: String,
    start: DateTime<Utc>,
    running: Mutex<Weak<Interrupt>>,
    visible: Mutex<(String, TransactionStatus)>,
    /// What `set_config` was called with: (name, value, local). Takes effect once its statement is over.
    requested_settings: Mutex<Vec<(String, String, bool)>>,
    /// To leave, by `pg_terminate_backend`.
    terminated: AtomicBool,
    terminating: Notify,
}

impl SessionShared {
    pub(crate) fn request_setting(&self, name: String, value: String, local: bool) {
        self.requested_settings.lock().push((name, value, local));
    }

    pub(crate) fn cancel(&self) {
        if let Some(interrupt) = self.running.lock().upgrade() {
            interrupt.cancel();
        }
    }

    pub(crate) fn terminate(&self) {
        self.terminated.store(true, Ordering::Release);
        self.terminating.notify_waiters();
        self.cancel();
    }

    pub(crate) fn row(&self) -> SessionRow {
        let (application_name, transaction_status) = self.visible.lock().clone();
        SessionRow {
            session_id: self.id,
            user: self.user.clone(),
            application_name,
            start: self.start,
            transaction_status,
        }
    }
}

/// A transaction on loan to the statement that writes with it. Empty before the first write, and while lent.
pub type Slot = Arc<Mutex<Option<Transaction>>>;

struct Block {
    slot: Slot,
    /// Made by `BEGIN`, rather than around the statements of one query text.
    explicit: bool,
    failed: Arc<AtomicBool>,
    read_only: bool,
    start: DateTime<Utc>,
    /// What `ROLLBACK` goes back to.
    settings_before: Arc<Settings>,
    /// Without `SET LOCAL`: what `COMMIT` leaves.
    settings_session: Arc<Settings>,
    savepoints: Vec<savepoint::Savepoint>,
}

#[derive(Clone)]
struct Prepared {
    statement: Statement,
    types: Vec<u32>,
}

struct Cursor {
    columns: Vec<ResultColumn>,
    /// Never locked: a stream alone is not `Sync`, and a session that is not could not be lent across an await.
    batches: Mutex<BatchStream>,
    /// Rows of the last batch not yet fetched.
    rest: Option<RecordBatch>,
    hold: bool,
    /// In the order of opening.
    number: u64,
}

/// One a connection.
pub struct Session {
    planner: Arc<Planner>,
    shared: Arc<SessionShared>,
    settings: Arc<Settings>,
    /// What the client was told last.
    settings_reported: Arc<Settings>,
    block: Option<Block>,
    prepared: HashMap<String, Prepared>,
    cursors: HashMap<String, Cursor>,
    next_cursor: u64,
    notices: Vec<Notice>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.planner.forget(self.shared.id);
    }
}

/// A statement on its way: what it reads, who may end it, and its place in the registry.
pub(crate) struct Running {
    pub facts: Arc<SessionFacts>,
    pub interrupt: Arc<Interrupt>,
    pub query: crate::queries::RunningQuery,
}

impl Session {
    pub(crate) fn new(planner: Arc<Planner>, id: u32, user: &str) -> Session {
        let settings = Arc::new(Settings::new(planner.database(), user));
        let shared = Arc::new(SessionShared {
            id,
            user: user.to_owned(),
            start: Utc::now(),
            running: Mutex::new(Weak::new()),
            visible: Mutex::new((String::new(), TransactionStatus::Idle)),
            requested_settings: Mutex::default(),
            terminated: AtomicBool::new(false),
            terminating: Notify::new(),
        });
        Session {
            planner,
            shared,
            settings_reported: settings.clone(),
            settings,
            block: None,
            prepared: HashMap::new(),
            cursors: HashMap::new(),
            next_cursor: 0,
            notices: Vec::new(),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<SessionShared> {
        &self.shared
    }

    /// Stands for the backend's process id.
    pub fn id(&self) -> u32 {
        self.shared.id
    }

    /// Splits and parses a client's text. 42601 with the position on a syntax error.
    pub fn parse(&self, sql: &str) -> Result<Vec<Statement>> {
        statement::parse(sql)
    }

    /// From here to `end_implicit_block`, statements outside a transaction block share one transaction instead of
    /// committing one by one: several statements in one simple query, or a pipeline up to its Sync. As in PostgreSQL,
    /// `BEGIN` turns it into an ordinary block (which outlives it), `COMMIT` and `ROLLBACK` end what was done so far, and
    /// `transaction_status` does not show it. Does nothing inside a transaction block.
    pub fn begin_implicit_block(&mut self) {
        if self.block.is_none() {
            self.begin(false, &[]);
        }
    }

    /// Commits what the implicit block did, or rolls it back when a statement in it failed (or `fail` was called). Does
    /// nothing when there is none, or when it became an ordinary block.
    pub async fn end_implicit_block(&mut self) -> Result<()> {
        match &self.block {
            Some(block) if !block.explicit => {
                let failed = block.failed.load(Ordering::Acquire);
                self.end(!failed).await
            }
            _ => Ok(()),
        }
    }

    /// An error of the protocol's own (a bad parameter, CopyFail) also fails the transaction block.
    pub fn fail(&mut self) {
        if let Some(block) = &self.block {
            block.failed.store(true, Ordering::Release);
            self.show_status();
        }
    }

    pub fn transaction_status(&self) -> TransactionStatus {
        match &self.block {
            Some(block) if block.explicit && block.failed.load(Ordering::Acquire) => TransactionStatus::Failed,
            Some(block) if block.explicit => TransactionStatus::InTransaction,
            _ => TransactionStatus::Idle,
        }
    }

    /// Resolves once another session has asked this one to end.
    pub fn terminated(&self) -> impl Future<Output = ()> + Send + 'static {
        let shared = self.shared.clone();
        async move {
            let terminating = shared.terminating.notified();
            tokio::pin!(terminating);
            terminating.as_mut().enable();
            if !shared.terminated.load(Ordering::Acquire) {
                terminating.await;
            }
        }
    }

    pub fn is_terminated(&self) -> bool {
        self.shared.terminated.load(Ordering::Acquire)
    }

    pub fn cancel_handle(&self) -> CancelHandle {
        CancelHandle(self.shared.clone())
    }

    /// The value of a setting as `SHOW` prints it.
    pub fn setting(&self, name: &str) -> Result<String> {
        self.settings.get(name).ok_or_else(|| {
            Error::new(SqlState::UNDEFINED_OBJECT, format!("unrecognized configuration parameter \"{name}\""))
        })
    }

    /// `SET` by the protocol (start-up parameters).
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let mut settings = self.settings.as_ref().clone();
        settings.set_default(name, value, self.planner.database())?;
        self.settings = Arc::new(settings);
        self.show_status();
        Ok(())
    }

    /// Settings that changed since last asked and that the protocol reports (ParameterStatus).
    pub fn take_changed_settings(&mut self) -> Vec<(String, String)> {
        self.take_requested_settings();
        if Arc::ptr_eq(&self.settings, &self.settings_reported) {
            return Vec::new();
        }
        let changed = self.settings.reported_changes(&self.settings_reported);
        self.settings_reported = self.settings.clone();
        changed
    }

    pub fn take_notices(&mut self) -> Vec<Notice> {
        let mut notices = std::mem::take(&mut self.notices);
        notices.retain(|notice| self.settings.sends(notice.severity));
        notices
    }

    /// Leaves a notice of the rows that a COPY left out, if any.
    pub fn rows_skipped(&mut self, rows: u64) {
        self.notices.extend(crate::copy::skipped_notice(rows));
    }

    /// The columns of an open cursor: a portal to the protocol, which may describe it.
    pub fn cursor_columns(&self, name: &str) -> Option<&[ResultColumn]> {
        self.cursors.get(name).map(|cursor| cursor.columns.as_slice())
    }

    pub fn text_settings(&self) -> TextSettings {
        self.settings.text_settings()
    }

    fn notice(&mut self, severity: &'static str, code: SqlState, message: impl Into<String>) {
        self.notices.push(Notice { severity, error: Error::new(code, message) });
    }

    fn show_status(&self) {
        let name = self.settings.get("application_name").unwrap_or_default();
        *self.shared.visible.lock() = (name, self.transaction_status());
    }

    /// All statements of a text, each outcome drained and returned as batches: for embedded use, tests and benchmarks.
    pub async fn query(&mut self, sql: &str) -> Result<Vec<RecordBatch>> {
        let mut all = Vec::new();
        for statement in self.parse(sql)? {
            match self.execute(&statement, &[]).await? {
                Outcome::Rows { mut batches, .. } => {
                    while let Some(batch) = batches.next().await {
                        match batch {
                            Ok(batch) => all.push(batch),
                            Err(error) => {
                                self.fail();
                                return Err(error);
                            }
                        }
                    }
                }
                Outcome::CopyIn(_) | Outcome::CopyOut(_) => {
                    self.fail();
                    return Err(Error::unsupported("COPY with a client needs a client"));
                }
                Outcome::Command { .. } | Outcome::Empty => {}
            }
        }
        Ok(all)
    }

    // ---- Transaction blocks ----

    fn begin(&mut self, explicit: bool, modes: &[TransactionMode]) {
        let mut read_only = self.settings.is_on("default_transaction_read_only");
        let mut settings = self.settings.as_ref().clone();
        let isolation = self.settings.get("default_transaction_isolation").unwrap_or_default();
        settings.set_own("transaction_isolation", &isolation);
        let before = self.settings.clone();
        for mode in modes {
            match mode {
                TransactionMode::Isolation(level) => settings.set_own("transaction_isolation", level),
                TransactionMode::ReadOnly(only) => read_only = *only,
                TransactionMode::Deferrable => {}
            }
        }
        settings.set_own("transaction_read_only", if read_only { "on" } else { "off" });
        self.settings = Arc::new(settings);
        self.block = Some(Block {
            slot: Slot::default(),
            explicit,
            failed: Arc::default(),
            read_only,
            start: Utc::now(),
            settings_session: before.clone(),
            settings_before: before,
            savepoints: Vec::new(),
        });
        self.show_status();
    }

    /// Ends the block, if there is one.
    async fn end(&mut self, commit: bool) -> Result<()> {
        let Some(block) = self.block.take() else { return Ok(()) };
        self.cursors.retain(|_, cursor| cursor.hold);
        self.planner.advisory.end_transaction(self.shared.id);
        let commit = commit && !block.failed.load(Ordering::Acquire);
        self.settings = if commit { block.settings_session } else { block.settings_before };
        self.show_status();
        let transaction = block.slot.lock().take();
        let Some(transaction) = transaction else { return Ok(()) };
        let ended = self.planner.workers().spawn_blocking(move || {
            if commit && transaction.has_changes() {
                transaction.commit().map(drop)
            } else {
                transaction.rollback();
                Ok(())
            }
        });
        joined(ended.await)
    }

    /// What the next statement reads.
    fn snapshot(&self) -> Arc<DatabaseVersion> {
        if let Some(block) = &self.block
            && let Some(transaction) = block.slot.lock().as_ref()
        {
            return transaction.version();
        }
        self.planner.database().version()
    }

    fn facts(&self, statement_start: DateTime<Utc>) -> Arc<SessionFacts> {
        Arc::new(SessionFacts {
            planner: self.planner.clone(),
            user: self.shared.user.clone(),
            database: crate::facts::DATABASE,
            session_id: self.shared.id,
            settings: self.settings.clone(),
            version: self.snapshot(),
            transaction_start: self.block.as_ref().map_or(statement_start, |block| block.start),
            statement_start,
        })
    }

    fn running(&self, text: &str) -> Running {
        let interrupt =
            Arc::new(Interrupt::new(self.settings.timeout("statement_timeout"), self.settings.timeout("lock_timeout")));
        *self.shared.running.lock() = Arc::downgrade(&interrupt);
        let mut query = self.planner.queries.start(self.shared.id, &self.shared.user, text);
        if self.block.is_none() {
            // The statement is a transaction of its own.
            let (advisory, session) = (self.planner.advisory.clone(), self.shared.id);
            query.at_end(move || advisory.end_transaction(session));
        }
        Running { facts: self.facts(Utc::now()), interrupt, query }
    }

    fn check_writable(&self, what: &str) -> Result<()> {
        let read_only = match &self.block {
            Some(block) => block.read_only,
            None => self.settings.is_on("default_transaction_read_only"),
        };
        if read_only {
            return Err(Error::new(
                SqlState::READ_ONLY_SQL_TRANSACTION,
                format!("cannot execute {what} in a read-only transaction"),
            ));
        }
        Ok(())
    }

    fn refuse_in_block(&self, what: &str) -> Result<()> {
        match &self.block {
            Some(block) if block.explicit => Err(Error::new(
                SqlState::ACTIVE_SQL_TRANSACTION,
                format!("{what} cannot run inside a transaction block"),
            )),
            _ => Ok(()),
        }
    }

    /// Runs `write` with the block's transaction, or with one of its own that it commits, on a thread that may block. An
    /// error undoes all of the transaction's work, unless there is a savepoint to go back to.
    pub(crate) fn begin_write<T: Send + 'static>(
        &self,
        interrupt: Arc<Interrupt>,
        write: impl FnOnce(&mut Transaction, &Interrupt) -> Result<T> + Send + 'static,
    ) -> tokio::task::JoinHandle<Result<T>> {
        let slot = self.block.as_ref().map(|block| block.slot.clone());
        let failed = self.block.as_ref().map(|block| block.failed.clone());
        let keep = self.block.as_ref().is_some_and(|block| !block.savepoints.is_empty());
        let database = self.planner.database().clone();
        self.planner.workers().spawn_blocking(move || {
            let lent = slot.as_ref().and_then(|slot| slot.lock().take());
            let mut transaction = lent.unwrap_or_else(|| database.begin());
            let written = write(&mut transaction, &interrupt).and_then(|value| interrupt.check().map(|()| value));
            match (written, slot) {
                (Ok(value), Some(slot)) => {
                    *slot.lock() = Some(transaction);
                    Ok(value)
                }
                (Ok(value), None) => transaction.commit().map(|_| value),
                (Err(error), slot) => {
                    match slot {
                        Some(slot) if keep => *slot.lock() = Some(transaction),
                        _ => transaction.rollback(),
                    }
                    if let Some(failed) = failed {
                        failed.store(true, Ordering::Release);
                    }
                    Err(error)
                }
            }
        })
    }

    async fn write<T: Send + 'static>(
        &self,
        mut running: Running,
        write: impl FnOnce(&mut Transaction, &Interrupt) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        running.query.info.running(None);
        let written = joined(self.begin_write(running.interrupt.clone(), write).await);
        if written.is_ok() {
            running.query.succeeded();
        }
        written
    }

    // ---- Statements ----

    /// Parameter types (those the client gave, the rest inferred) and result columns.
    pub async fn describe(&mut self, statement: &Statement, parameter_oids: &[u32]) -> Result<Description> {
        let described = self.describe_inner(statement, parameter_oids).await;
        described.map_err(|error| {
            self.fail();
            statement.place(error)
        })
    }

    async fn describe_inner(&mut self, statement: &Statement, given: &[u32]) -> Result<Description> {
        self.check_not_failed(statement)?;
        let none = |columns| Ok(Description { parameters: given.to_vec(), columns });
        match statement.command() {
            Command::Query(_) | Command::Insert(_) => {}
            Command::Explain { .. } => return none(Some(vec![ResultColumn::text("QUERY PLAN")])),
            Command::Show { name: None } => {
                return none(Some(vec![
                    ResultColumn::text("name"),
                    ResultColumn::text("setting"),
                    ResultColumn::text("description"),
                ]));
            }
            Command::Show { name: Some(name) } => return none(Some(vec![ResultColumn::text(&spelled(name))])),
            Command::Fetch { name, discard: false, .. } => {
                let columns = self.cursor(name)?.columns.clone();
                return none(Some(columns));
            }
            Command::Execute { name, .. } => {
                let prepared = self.prepared(name)?;
                let description = Box::pin(self.describe_inner(&prepared.statement, &prepared.types)).await?;
                return none(description.columns);
            }
            _ => return none(None),
        }
        let facts = self.facts(Utc::now());
        let statement = statement.clone();
        let given = given.to_vec();
        joined(self.planner.workers().spawn(async move { describe(&facts, &statement, &given) }).await)
    }

    fn check_not_failed(&self, statement: &Statement) -> Result<()> {
        let failed = self.block.as_ref().is_some_and(|block| block.failed.load(Ordering::Acquire));
        if failed
            && !matches!(
                statement.command(),
                Command::Commit { .. } | Command::Rollback { .. } | Command::RollbackTo { .. } | Command::Empty
            )
        {
            return Err(Error::new(
                SqlState::IN_FAILED_SQL_TRANSACTION,
                "current transaction is aborted, commands ignored until end of transaction block",
            ));
        }
        Ok(())
    }

    /// Runs one statement. `parameters` are arrays of length one, of the described types. Outside a transaction block
    /// it commits by itself; `CopyIn` commits at `finish`. An error inside a block fails the block.
    pub async fn execute(&mut self, statement: &Statement, parameters: &[ArrayRef]) -> Result<Outcome> {
        let outcome = self.execute_inner(statement, parameters).await;
        outcome.map_err(|error| {
            self.fail();
            statement.place(error)
        })
    }

    async fn execute_inner(&mut self, statement: &Statement, parameters: &[ArrayRef]) -> Result<Outcome> {
        self.take_requested_settings();
        self.check_not_failed(statement)?;
        let text = statement.text();
        let command = |tag: &str| Ok(Outcome::Command { tag: tag.to_owned() });
        match statement.command() {
            Command::Empty => Ok(Outcome::Empty),
            Command::Unsupported(error) => Err(error.clone()),
            Command::Query(_) => self.select(text, statement, parameters).await,
            Command::Insert(_) => self.insert(text, statement, parameters).await,
            Command::CreateTable { .. } => self.create_table(text, statement, parameters).await,
            Command::DropTables { names, if_exists } => self.drop_tables(text, names, *if_exists).await,
            Command::Truncate { names } => self.truncate(text, names).await,
            Command::AlterTable { name, if_exists, action } => self.alter_table(text, name, *if_exists, action).await,
            Command::CreateTablespace { name, location, options } => {
                self.refuse_in_block("CREATE TABLESPACE")?;
                self.check_writable("CREATE TABLESPACE")?;
                let config = crate::ddl::tablespace(name, location, options)?;
                let database = self.planner.database().clone();
                joined(self.planner.workers().spawn_blocking(move || database.create_tablespace(config)).await)?;
                command("CREATE TABLESPACE")
            }
            Command::DropTablespace { name, if_exists } => {
                self.refuse_in_block("DROP TABLESPACE")?;
                self.check_writable("DROP TABLESPACE")?;
                let database = self.planner.database().clone();
                let dropped = name.clone();
                match joined(self.planner.workers().spawn_blocking(move || database.drop_tablespace(&dropped)).await) {
                    Err(error) if *if_exists && error.code() == SqlState::UNDEFINED_OBJECT => {
                        self.notice(
                            "NOTICE",
                            SqlState::SUCCESSFUL_COMPLETION,
                            format!("tablespace \"{name}\" does not exist, skipping"),
                        );
                    }
                    dropped => dropped?,
                }
                command("DROP TABLESPACE")
            }
            Command::Copy(copy) => self.copy(text, copy, parameters).await,
            Command::Begin { modes } => {
                check_modes(modes)?;
                match &mut self.block {
                    Some(block) if block.explicit => {
                        self.notice(
                            "WARNING",
                            SqlState::ACTIVE_SQL_TRANSACTION,
                            "there is already a transaction in progress",
                        );
                    }
                    Some(block) => {
                        block.explicit = true;
                        self.set_modes(modes, true)?;
                    }
                    None => self.begin(true, modes),
                }
                self.show_status();
                command("BEGIN")
            }
            Command::Commit { chain } => {
                let failed = self.block.as_ref().is_some_and(|block| block.failed.load(Ordering::Acquire));
                let explicit = self.block.as_ref().map(|block| block.explicit);
                if explicit != Some(true) {
                    self.notice("WARNING", SqlState::NO_ACTIVE_SQL_TRANSACTION, "there is no transaction in progress");
                }
                self.end(true).await?;
                self.restart(explicit, *chain);
                command(if failed { "ROLLBACK" } else { "COMMIT" })
            }
            Command::Rollback { chain } => {
                let explicit = self.block.as_ref().map(|block| block.explicit);
                if explicit != Some(true) {
                    self.notice("WARNING", SqlState::NO_ACTIVE_SQL_TRANSACTION, "there is no transaction in progress");
                }
                self.end(false).await?;
                self.restart(explicit, *chain);
                command("ROLLBACK")
            }
            Command::Savepoint { name } => self.savepoint(name),
            Command::Release { name } => self.release(name),
            Command::RollbackTo { name } => self.roll_back_to(name).await,
            Command::Set { name, value, local } => {
                self.set_setting(name, value, *local)?;
                command("SET")
            }
            Command::SetTransaction { modes } => {
                check_modes(modes)?;
                if self.block.as_ref().is_none_or(|block| !block.explicit) {
                    self.notice(
                        "WARNING",
                        SqlState::NO_ACTIVE_SQL_TRANSACTION,
                        "SET TRANSACTION can only be used in transaction blocks",
                    );
                }
                self.set_modes(modes, false)?;
                command("SET")
            }
            Command::SetSessionTransaction { modes } => {
                check_modes(modes)?;
                for mode in modes {
                    match mode {
                        TransactionMode::Isolation(level) => {
                            self.set_setting(
                                "default_transaction_isolation",
                                &SetValue::Values(vec![(*level).to_owned()]),
                                false,
                            )?;
                        }
                        TransactionMode::ReadOnly(only) => {
                            let value = if *only { "on" } else { "off" };
                            self.set_setting(
                                "default_transaction_read_only",
                                &SetValue::Values(vec![value.to_owned()]),
                                false,
                            )?;
                        }
                        TransactionMode::Deferrable => {}
                    }
                }
                command("SET")
            }
            Command::Reset { name } => {
                match name {
                    Some(name) => self.set_setting(name, &SetValue::Default, false)?,
                    None => self.change_settings(false, |settings| {
                        settings.reset_all();
                        Ok(())
                    })?,
                }
                command("RESET")
            }
            Command::Show { name } => self.show(name.as_deref()),
            Command::DiscardAll => {
                self.refuse_in_block("DISCARD ALL")?;
                self.planner.advisory.unlock_all(self.shared.id);
                self.prepared.clear();
                self.cursors.clear();
                self.change_settings(false, |settings| {
                    settings.reset_all();
                    Ok(())
                })?;
                command("DISCARD ALL")
            }
            Command::DiscardNothing { tag } => command(tag),
            Command::Prepare { name, types, statement } => {
                if self.prepared.contains_key(name) {
                    return Err(Error::new(
                        SqlState::DUPLICATE_PREPARED_STATEMENT,
                        format!("prepared statement \"{name}\" already exists"),
                    ));
                }
                let types = types
                    .iter()
                    .map(|data_type| types::sql_type(data_type).map(SqlType::oid))
                    .collect::<Result<Vec<_>>>()?;
                let description = Box::pin(self.describe_inner(statement, &types)).await?;
                let prepared = Prepared { statement: statement.clone(), types: description.parameters };
                self.prepared.insert(name.clone(), prepared);
                command("PREPARE")
            }
            Command::Execute { name, arguments } => self.execute_prepared(name, arguments).await,
            Command::Deallocate { name } => match name {
                Some(name) => {
                    self.prepared(name)?;
                    self.prepared.remove(name);
                    command("DEALLOCATE")
                }
                None => {
                    self.prepared.clear();
                    command("DEALLOCATE ALL")
                }
            },
            Command::Declare { name, hold, query } => self.declare(name, *hold, query, parameters).await,
            Command::Fetch { name, count, discard } => self.fetch(name, *count, *discard).await,
            Command::Close { name } => match name {
                Some(name) => {
                    self.cursor(name)?;
                    self.cursors.remove(name);
                    command("CLOSE CURSOR")
                }
                None => {
                    self.cursors.clear();
                    command("CLOSE CURSOR ALL")
                }
            },
            Command::Explain { options, statement } => self.explain(text, *options, statement, parameters).await,
            Command::Checkpoint => {
                let database = self.planner.database().clone();
                joined(self.planner.workers().spawn_blocking(move || database.checkpoint()).await)?;
                command("CHECKPOINT")
            }
            Command::Merge { table } => {
                self.refuse_in_block("CALL tidepool.merge")?;
                self.check_writable("CALL tidepool.merge")?;
                let name = crate::ddl::public_name(table)?.to_owned();
                let database = self.planner.database().clone();
                joined(self.planner.workers().spawn_blocking(move || database.merge(&name)).await)?;
                command("CALL")
            }
            Command::AlterRole { role, password } => {
                self.check_writable("ALTER ROLE")?;
                let database = self.planner.database().clone();
                let (role, password) = (role.clone(), password.clone());
                let role = match role.as_str() {
                    "current_user" | "session_user" | "current_role" => self.shared.user.clone(),
                    _ => role,
                };
                if role != self.shared.user
                    && role != crate::facts::DATABASE
                    && database.password_verifier(&role).is_none()
                {
                    return Err(Error::new(SqlState::UNDEFINED_OBJECT, format!("role \"{role}\" does not exist")));
                }
                joined(
                    self.planner
                        .workers()
                        .spawn_blocking(move || {
                            let verifier = password.map(|password| tidepool_database::scram::verifier_text(&password));
                            database.set_password_verifier(&role, verifier)
                        })
                        .await,
                )?;
                command("ALTER ROLE")
            }
        }
    }

    /// After `COMMIT` or `ROLLBACK`: what comes next in a query text of several statements, or `AND CHAIN`.
    fn restart(&mut self, explicit: Option<bool>, chain: bool) {
        if chain && explicit == Some(true) {
            self.begin(true, &[]);
        } else if explicit == Some(false) {
            self.begin(false, &[]);
        }
    }

    fn set_modes(&mut self, modes: &[TransactionMode], begin: bool) -> Result<()> {
        let Some(block) = &mut self.block else { return Ok(()) };
        let mut settings = self.settings.as_ref().clone();
        for mode in modes {
            match mode {
                TransactionMode::Isolation(level) => settings.set_own("transaction_isolation", level),
                TransactionMode::ReadOnly(only) => {
                    if !only && block.read_only && !begin && block.slot.lock().is_some() {
                        return Err(Error::new(
                            SqlState::ACTIVE_SQL_TRANSACTION,
                            "transaction read-write mode must be set before any query",
                        ));
                    }
                    block.read_only = *only;
                    settings.set_own("transaction_read_only", if *only { "on" } else { "off" });
                }
                TransactionMode::Deferrable => {}
            }
        }
        self.settings = Arc::new(settings);
        Ok(())
    }

    fn set_setting(&mut self, name: &str, value: &SetValue, local: bool) -> Result<()> {
        let lower = name.to_lowercase();
        if lower == "transaction_read_only"
            && let SetValue::Values(values) = value
        {
            let only = matches!(values.first().map(String::as_str), Some("on" | "true" | "1" | "yes"));
            return self.set_modes(&[TransactionMode::ReadOnly(only)], false);
        }
        if local && self.block.is_none() {
            self.notice(
                "WARNING",
                SqlState::NO_ACTIVE_SQL_TRANSACTION,
                "SET LOCAL can only be used in transaction blocks",
            );
            return Ok(());
        }
        let database = self.planner.database().clone();
        self.change_settings(local, |settings| match value {
            SetValue::Default => settings.reset(name),
            SetValue::Values(values) => settings.set(name, values, &database),
        })
    }

    /// Carries out what `set_config` asked for. The function has checked the values, so that nothing fails here.
    fn take_requested_settings(&mut self) {
        let requested = std::mem::take(&mut *self.shared.requested_settings.lock());
        for (name, value, local) in requested {
            if let Err(error) = self.set_setting(&name, &SetValue::Values(vec![value]), local) {
                tracing::warn!(%error, setting = name, "set_config was accepted and then failed");
            }
        }
    }

    fn change_settings(&mut self, local: bool, change: impl Fn(&mut Settings) -> Result<()>) -> Result<()> {
        let mut settings = self.settings.as_ref().clone();
        change(&mut settings)?;
        self.settings = Arc::new(settings);
        if !local && let Some(block) = &mut self.block {
            change(Arc::make_mut(&mut block.settings_session))?;
        }
        self.show_status();
        Ok(())
    }

    fn show(&self, name: Option<&str>) -> Result<Outcome> {
        let rows = |columns: Vec<(&str, Vec<String>)>| {
            let fields: Vec<Field> =
                columns.iter().map(|(name, _)| Field::new(*name, DataType::Utf8View, true)).collect();
            let described = columns.iter().map(|(name, _)| ResultColumn::text(name)).collect();
            let arrays = columns
                .into_iter()
                .map(|(_, values)| Arc::new(arrow::array::StringViewArray::from_iter_values(values)) as ArrayRef)
                .collect();
            let batch =
                RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).map_err(crate::errors::from_arrow)?;
            Ok(Outcome::Rows { columns: described, batches: Box::pin(futures::stream::iter([Ok(batch)])), tag: "SHOW" })
        };
        match name {
            Some(name) => rows(vec![(&spelled(name), vec![self.setting(name)?])]),
            None => {
                let list = self.settings.list();
                rows(vec![
                    ("name", list.iter().map(|row| row.name.to_owned()).collect()),
                    ("setting", list.iter().map(|row| row.value.clone()).collect()),
                    ("description", list.iter().map(|row| row.description.to_owned()).collect()),
                ])
            }
        }
    }

    // ---- Queries ----

    fn block_failed(&self) -> Option<Arc<AtomicBool>> {
        self.block.as_ref().map(|block| block.failed.clone())
    }

    /// Plans and starts a query. `query` is called on a worker: copying a deep one takes a deep stack.
    async fn start(
        &self,
        running: Running,
        query: query::Source,
        parameters: &[ArrayRef],
    ) -> Result<(Vec<ResultColumn>, arrow::datatypes::SchemaRef, Batches)> {
        let planning = self.planner.workers().spawn(query::planning(running.facts.clone(), query, parameters.to_vec()));
        let planned = tokio::select! {
            biased;
            error = running.interrupt.wait() => return Err(error),
            planned = planning => joined(planned)?,
        };
        let (columns, schema) = (planned.columns.clone(), planned.schema.clone());
        let batches = self.run(running, planned)?;
        Ok((columns, schema, batches))
    }

    fn run(&self, running: Running, planned: query::Planned) -> Result<Batches> {
        Ok(self.prepare_run(running, planned)?.start(&self.planner.workers()))
    }

    fn prepare_run(&self, running: Running, planned: query::Planned) -> Result<Execution> {
        let heap = crate::heap::open(self.planner.database(), &running.facts.settings)?;
        let runtime = crate::heap::runtime(planned.state.runtime_env(), &heap);
        let context = datafusion::execution::TaskContext::default()
            .with_session_config(planned.state.config().clone().with_extension(running.query.info.clone()))
            .with_runtime(runtime);
        Ok(Execution {
            plan: crate::charge::wrap(
                crate::guard::wrap(planned.plan, &running.interrupt)?,
                &heap,
                &running.query.info,
            )?,
            context: Arc::new(context),
            schema: planned.schema,
            heap,
            query: running.query,
            interrupt: running.interrupt,
            failed: self.block_failed(),
        })
    }

    async fn select(&mut self, text: &str, statement: &Statement, parameters: &[ArrayRef]) -> Result<Outcome> {
        let running = self.running(text);
        let statement = statement.clone();
        let (columns, _, batches) = self.start(running, Box::new(move || query_of(&statement)), parameters).await?;
        Ok(Outcome::Rows { columns, batches: Box::pin(batches), tag: "SELECT" })
    }

    async fn insert(&mut self, text: &str, statement: &Statement, parameters: &[ArrayRef]) -> Result<Outcome> {
        self.check_writable("INSERT")?;
        let running = self.running(text);
        let facts = running.facts.clone();
        let parameters = parameters.to_vec();
        let statement = statement.clone();
        let planning = self.planner.workers().spawn(async move {
            let state = facts.planner.state(&facts);
            let Command::Insert(insert) = statement.command() else {
                return Err(Error::internal("not an INSERT"));
            };
            let target = crate::insert::read(&facts, insert.as_ref().clone())?;
            let version = target.version.clone();
            let logical = target.plan(&state, &facts, query::parameter_fields(&parameters))?;
            let logical = query::bind(logical, &parameters)?;
            let plan = query::physical_plan(&state, &logical).await?;
            let names = OutputNames::none();
            Ok((version, query::planned(state, plan, &names)))
        });
        let (version, planned) = joined(planning.await)?;
        let rows = self.insert_planned(running, version.def.name.clone(), planned).await?;
        Ok(Outcome::Command { tag: format!("INSERT 0 {rows}") })
    }

    /// Puts a plan's rows into a table.
    async fn insert_planned(&self, running: Running, table: String, planned: query::Planned) -> Result<u64> {
        let schema = planned.schema.clone();
        let settings = running.facts.settings.text_settings();
        let interrupt = running.interrupt.clone();
        let mut batches = self.run(running, planned)?;
        let written = self.begin_write(interrupt, move |transaction, interrupt| {
            transaction.lock_table(&table, &interrupt.lock_wait())?;
            let mut writer = transaction.writer(&table)?;
            let conform = crate::insert::Conform::new(&writer.table().def.clone(), &schema, settings);
            while let Some(batch) = batches.blocking_next() {
                writer.write(&conform.apply(&batch?)?)?;
            }
            transaction.absorb(writer)
        });
        joined(written.await)
    }

    async fn create_table(&mut self, text: &str, statement: &Statement, parameters: &[ArrayRef]) -> Result<Outcome> {
        let Command::CreateTable { table, with_data, .. } = statement.command() else {
            return Err(Error::internal("not a CREATE TABLE"));
        };
        let with_data = *with_data;
        let is_query = table.query.is_some();
        self.check_writable(if is_query { "CREATE TABLE AS" } else { "CREATE TABLE" })?;
        let running = self.running(text);
        let facts = running.facts.clone();
        let parameters = parameters.to_vec();
        let statement = statement.clone();
        let planning = self.planner.workers().spawn(async move {
            let Command::CreateTable { table, tablespace, .. } = statement.command() else {
                return Err(Error::internal("not a CREATE TABLE"));
            };
            let mut table = crate::ddl::new_table(&facts, table.as_ref().clone(), tablespace.clone())?;
            let exists = facts.version.table(&table.name).is_some();
            let Some((query, names)) = table.query.take() else { return Ok((table, None)) };
            if exists && table.if_not_exists {
                return Ok((table, None));
            }
            let planned = query::plan(facts, query, parameters).await?;
            table.columns = created_columns(&planned, names)?;
            Ok((table, Some(planned)))
        });
        let (table, planned) = joined(planning.await)?;
        let exists = running.facts.version.table(&table.name).is_some();
        if exists && table.if_not_exists {
            self.notice(
                "NOTICE",
                SqlState::DUPLICATE_TABLE,
                format!("relation \"{}\" already exists, skipping", table.name),
            );
            return Ok(Outcome::Command { tag: if is_query { "CREATE TABLE AS" } else { "CREATE TABLE" }.to_owned() });
        }
        if exists {
            return Err(Error::new(SqlState::DUPLICATE_TABLE, format!("relation \"{}\" already exists", table.name)));
        }
        let Some(planned) = planned else {
            self.write(running, move |transaction, _| {
                transaction.create_table(&table.name, table.columns, table.primary_key, table.placement).map(drop)
            })
            .await?;
            return Ok(Outcome::Command { tag: "CREATE TABLE".to_owned() });
        };
        let schema = planned.schema.clone();
        let settings = running.facts.settings.text_settings();
        let interrupt = running.interrupt.clone();
        let mut batches = if with_data { Some(self.run(running, planned)?) } else { None };
        let written = self.begin_write(interrupt, move |transaction, _| {
            let name = table.name.clone();
            transaction.create_table(&name, table.columns, table.primary_key, table.placement)?;
            let Some(batches) = &mut batches else { return Ok(0) };
            let mut writer = transaction.writer(&name)?;
            let conform = crate::insert::Conform::new(&writer.table().def.clone(), &schema, settings);
            while let Some(batch) = batches.blocking_next() {
                writer.write(&conform.apply(&batch?)?)?;
            }
            transaction.absorb(writer)
        });
        let rows = joined(written.await)?;
        Ok(Outcome::Command { tag: if with_data { format!("SELECT {rows}") } else { "CREATE TABLE AS".to_owned() } })
    }

    async fn drop_tables(&mut self, text: &str, names: &[QualifiedName], if_exists: bool) -> Result<Outcome> {
        self.check_writable("DROP TABLE")?;
        let running = self.running(text);
        let mut tables = Vec::with_capacity(names.len());
        for name in names {
            let table = crate::ddl::public_name(name)?;
            if running.facts.version.table(table).is_none() {
                if !if_exists {
                    return Err(Error::new(SqlState::UNDEFINED_TABLE, format!("table \"{name}\" does not exist")));
                }
                self.notice(
                    "NOTICE",
                    SqlState::SUCCESSFUL_COMPLETION,
                    format!("table \"{name}\" does not exist, skipping"),
                );
            } else if !tables.iter().any(|seen| seen == table) {
                tables.push(table.to_owned());
            }
        }
        self.write(running, move |transaction, interrupt| {
            for table in &tables {
                transaction.lock_table(table, &interrupt.lock_wait())?;
                transaction.drop_table(table)?;
            }
            Ok(())
        })
        .await?;
        Ok(Outcome::Command { tag: "DROP TABLE".to_owned() })
    }

    async fn truncate(&mut self, text: &str, names: &[QualifiedName]) -> Result<Outcome> {
        self.check_writable("TRUNCATE TABLE")?;
        let running = self.running(text);
        let tables = names
            .iter()
            .map(|name| crate::insert::target(&running.facts, name).map(|version| version.def.name.clone()))
            .collect::<Result<Vec<_>>>()?;
        self.write(running, move |transaction, interrupt| {
            for table in &tables {
                transaction.lock_table(table, &interrupt.lock_wait())?;
                transaction.truncate(table)?;
            }
            Ok(())
        })
        .await?;
        Ok(Outcome::Command { tag: "TRUNCATE TABLE".to_owned() })
    }

    async fn alter_table(
        &mut self,
        text: &str,
        name: &QualifiedName,
        if_exists: bool,
        action: &AlterAction,
    ) -> Result<Outcome> {
        self.check_writable("ALTER TABLE")?;
        let running = self.running(text);
        let tag = || Ok(Outcome::Command { tag: "ALTER TABLE".to_owned() });
        let table = match crate::insert::target(&running.facts, name) {
            Ok(version) => version.def.name.clone(),
            Err(error) if if_exists && error.code() == SqlState::UNDEFINED_TABLE => {
                self.notice(
                    "NOTICE",
                    SqlState::SUCCESSFUL_COMPLETION,
                    format!("relation \"{name}\" does not exist, skipping"),
                );
                return tag();
            }
            Err(error) => return Err(error),
        };
        if let AlterAction::Rename { name } = action {
            crate::ddl::check_table_name(name)?;
        }
        let action = action.clone();
        self.write(running, move |transaction, interrupt| {
            transaction.lock_table(&table, &interrupt.lock_wait())?;
            match &action {
                AlterAction::SetTablespace { column, tablespace } => {
                    transaction.set_tablespace(&table, column.as_deref(), tablespace)
                }
                AlterAction::Rename { name } => transaction.rename_table(&table, name),
            }
        })
        .await?;
        tag()
    }

    async fn copy(&mut self, text: &str, copy: &CopyStatement, parameters: &[ArrayRef]) -> Result<Outcome> {
        let running = self.running(text);
        if copy.from {
            let CopySource::Table { name, columns } = &copy.source else {
                return Err(Error::new(SqlState::SYNTAX_ERROR, "COPY FROM needs a table"));
            };
            self.check_writable("COPY FROM")?;
            let load = crate::copy::Load::new(&running.facts, name, columns, &copy.options, &copy.endpoint)?;
            return match &copy.endpoint {
                CopyEndpoint::Client => Ok(Outcome::CopyIn(load.from_client(self, running)?)),
                CopyEndpoint::File(path) => {
                    let path = path.clone();
                    let skipped = load.skipped();
                    let rows = self
                        .write(running, move |transaction, interrupt| load.from_file(transaction, interrupt, &path))
                        .await?;
                    self.rows_skipped(skipped.load(Ordering::Relaxed));
                    Ok(Outcome::Command { tag: format!("COPY {rows}") })
                }
            };
        }
        let table = match &copy.source {
            CopySource::Table { name, columns } => {
                let version = crate::query::table(&running.facts, name.schema.as_deref(), &name.name)?;
                Some(crate::copy::select(name, columns, &version.schema())?)
            }
            CopySource::Query(_) => None,
        };
        let source = copy.source.clone();
        let query = move || match (table, &source) {
            (Some(query), _) => Ok(query),
            (None, CopySource::Query(statement)) => query_of(statement),
            (None, CopySource::Table { .. }) => Err(Error::internal("a table makes no query")),
        };
        let settings = running.facts.settings.text_settings();
        let options = crate::copy::options(&copy.options, &copy.endpoint)?;
        let (columns, schema, batches) = self.start(running, Box::new(query), parameters).await?;
        let unload = crate::copy::Unload::new(&columns, &schema, &options, &settings)?;
        match &copy.endpoint {
            CopyEndpoint::Client => unload.to_client(batches).map(Outcome::CopyOut),
            CopyEndpoint::File(path) => {
                let path = path.clone();
                let rows = joined(self.planner.workers().spawn_blocking(move || unload.to_file(batches, &path)).await)?;
                Ok(Outcome::Command { tag: format!("COPY {rows}") })
            }
        }
    }

    async fn explain(
        &mut self,
        text: &str,
        options: crate::statement::ExplainOptions,
        statement: &Statement,
        parameters: &[ArrayRef],
    ) -> Result<Outcome> {
        let running = self.running(text);
        let explained = match statement.command() {
            Command::Execute { name, .. } => self.prepared(name)?.statement,
            Command::Insert(_) | Command::CreateTable { .. } if options.analyze => {
                return Err(Error::unsupported("EXPLAIN ANALYZE runs queries only"));
            }
            _ => statement.clone(),
        };
        let facts = running.facts.clone();
        let owned = parameters.to_vec();
        let planning_start = std::time::Instant::now();
        let planning =
            self.planner.workers().spawn(async move { query::plan(facts, query_of(&explained)?, owned).await });
        let planned = joined(planning.await)?;
        let planning_time = planning_start.elapsed();
        let mut plan = planned.plan.clone();
        let mut execution = None;
        if options.analyze {
            let info = running.query.info.clone();
            let start = std::time::Instant::now();
            let prepared = self.prepare_run(running, planned)?;
            plan = prepared.plan.clone();
            let mut batches = prepared.start(&self.planner.workers());
            let mut rows = 0;
            while let Some(batch) = batches.next().await {
                rows += batch?.num_rows();
            }
            execution = Some((start.elapsed(), rows, info));
        }
        let mut lines = crate::explain::lines(&plan, options.analyze, options.verbose, options.tree);
        if let Some((elapsed, rows, info)) = execution {
            for (tablespace, _, peak) in info.heap_bytes() {
                lines.push(format!("Heap in {tablespace}: {} at most", tidepool_base::ByteSize(peak)));
            }
            let stall = info.heap_stall_ns();
            if stall > 0 {
                lines.push(format!("Heap stalled by pacing (estimate): {:.3} ms", stall as f64 / 1e6));
            }
            for (tablespace, bytes, stall) in info.scan_bytes() {
                lines.push(format!(
                    "Read from {tablespace}: {}, stalled {:.3} ms",
                    tidepool_base::ByteSize(bytes),
                    stall as f64 / 1e6
                ));
            }
            lines.push(format!("Planning Time: {:.3} ms", planning_time.as_secs_f64() * 1e3));
            lines.push(format!("Execution Time: {:.3} ms ({rows} rows)", elapsed.as_secs_f64() * 1e3));
        }
        let schema = Arc::new(Schema::new(vec![Field::new("QUERY PLAN", DataType::Utf8View, true)]));
        let lines = arrow::array::StringViewArray::from_iter_values(lines);
        let batch = RecordBatch::try_new(schema, vec![Arc::new(lines)]).map_err(crate::errors::from_arrow)?;
        Ok(Outcome::Rows {
            columns: vec![ResultColumn::text("QUERY PLAN")],
            batches: Box::pin(futures::stream::iter([Ok(batch)])),
            tag: "EXPLAIN",
        })
    }

    // ---- Prepared statements and cursors ----

    fn prepared(&self, name: &str) -> Result<Prepared> {
        self.prepared.get(name).cloned().ok_or_else(|| {
            Error::new(SqlState::INVALID_SQL_STATEMENT_NAME, format!("prepared statement \"{name}\" does not exist"))
        })
    }

    async fn execute_prepared(&mut self, name: &str, arguments: &[ast::Expr]) -> Result<Outcome> {
        let prepared = self.prepared(name)?;
        if prepared.types.len() != arguments.len() {
            return Err(Error::new(
                SqlState::SYNTAX_ERROR,
                format!("wrong number of parameters for prepared statement \"{name}\""),
            )
            .with_detail(format!(
                "Expected {} parameters but got {}.",
                prepared.types.len(),
                arguments.len()
            )));
        }
        let mut parameters = Vec::with_capacity(arguments.len());
        if !arguments.is_empty() {
            // The arguments as casts to the parameters' types, evaluated by a query of one row.
            let casts: Vec<String> = arguments
                .iter()
                .zip(&prepared.types)
                .map(|(argument, &oid)| match types::sql_type_of_oid(oid) {
                    Some(SqlType::NUMERIC_DEFAULT) => format!("({argument})::numeric"),
                    Some(sql_type) => format!("({argument})::{sql_type}"),
                    None => format!("({argument})"),
                })
                .collect();
            let statements = statement::parse(&format!("SELECT {}", casts.join(", ")))?;
            let Some(statement) = statements.into_iter().next() else {
                return Err(Error::internal("arguments make no query"));
            };
            let running = self.running("EXECUTE");
            let (_, _, mut batches) = self.start(running, Box::new(move || query_of(&statement)), &[]).await?;
            while let Some(batch) = batches.next().await {
                parameters.extend(batch?.columns().iter().cloned());
            }
        }
        Box::pin(self.execute_inner(&prepared.statement, &parameters)).await
    }

    fn cursor(&self, name: &str) -> Result<&Cursor> {
        self.cursors.get(name).ok_or_else(|| no_cursor(name))
    }

    async fn declare(&mut self, name: &str, hold: bool, query: &Statement, parameters: &[ArrayRef]) -> Result<Outcome> {
        if !hold && self.block.as_ref().is_none_or(|block| !block.explicit) {
            return Err(Error::new(
                SqlState::NO_ACTIVE_SQL_TRANSACTION,
                "DECLARE CURSOR can only be used in transaction blocks",
            ));
        }
        if self.cursors.contains_key(name) {
            return Err(Error::new(SqlState::DUPLICATE_CURSOR, format!("cursor \"{name}\" already exists")));
        }
        if !matches!(query.command(), Command::Query(_)) {
            return Err(Error::unsupported("only queries can be declared as cursors"));
        }
        let running = self.running(query.text());
        let query = query.clone();
        let (columns, _, batches) = self.start(running, Box::new(move || query_of(&query)), parameters).await?;
        let number = self.next_cursor;
        self.next_cursor += 1;
        let cursor = Cursor { columns, batches: Mutex::new(Box::pin(batches)), rest: None, hold, number };
        self.cursors.insert(name.to_owned(), cursor);
        Ok(Outcome::Command { tag: "DECLARE CURSOR".to_owned() })
    }

    async fn fetch(&mut self, name: &str, count: FetchCount, discard: bool) -> Result<Outcome> {
        let Some(cursor) = self.cursors.get_mut(name) else { return Err(no_cursor(name)) };
        let mut left = match count {
            FetchCount::Rows(rows) => rows,
            FetchCount::All => u64::MAX,
        };
        let mut fetched = Vec::new();
        let mut rows = 0;
        while left > 0 {
            let batch = match cursor.rest.take() {
                Some(batch) => batch,
                None => match cursor.batches.get_mut().next().await {
                    Some(batch) => batch?,
                    None => break,
                },
            };
            let take = usize::try_from(left).unwrap_or(usize::MAX).min(batch.num_rows());
            if take < batch.num_rows() {
                cursor.rest = Some(batch.slice(take, batch.num_rows() - take));
            }
            rows += take as u64;
            left -= take as u64;
            if !discard {
                fetched.push(Ok(batch.slice(0, take)));
            }
        }
        if discard {
            return Ok(Outcome::Command { tag: format!("MOVE {rows}") });
        }
        Ok(Outcome::Rows {
            columns: cursor.columns.clone(),
            batches: Box::pin(futures::stream::iter(fetched)),
            tag: "FETCH",
        })
    }
}

fn no_cursor(name: &str) -> Error {
    Error::new(SqlState::INVALID_CURSOR_NAME, format!("cursor \"{name}\" does not exist"))
}

fn check_modes(modes: &[TransactionMode]) -> Result<()> {
    for mode in modes {
        if let TransactionMode::Isolation(level) = mode {
            crate::settings::isolation(level)?;
        }
    }
    Ok(())
}

/// `SHOW`'s column is called after the setting, as it spells itself.
fn spelled(name: &str) -> String {
    match name.to_lowercase().as_str() {
        "timezone" => "TimeZone".to_owned(),
        "datestyle" => "DateStyle".to_owned(),
        "intervalstyle" => "IntervalStyle".to_owned(),
        name => name.to_owned(),
    }
}

/// The query in a statement.
fn query_of(statement: &Statement) -> Result<Box<ast::Query>> {
    let query = match statement.command() {
        Command::Query(query) => Some(query.clone()),
        Command::Insert(insert) => insert.source.clone(),
        Command::CreateTable { table, .. } => table.query.clone(),
        Command::Unsupported(error) => return Err(error.clone()),
        _ => None,
    };
    let query = query.ok_or_else(|| Error::unsupported("this needs a query that returns rows"))?;
    if matches!(query.body.as_ref(), ast::SetExpr::Select(select) if select.into.is_some()) {
        return Err(Error::unsupported("SELECT INTO is not supported").with_hint("Use CREATE TABLE AS."));
    }
    Ok(query)
}

fn created_columns(planned: &query::Planned, names: Vec<String>) -> Result<Vec<ColumnDef>> {
    if names.len() > planned.columns.len() {
        return Err(Error::new(SqlState::SYNTAX_ERROR, "too many column names were specified"));
    }
    let fields = planned.schema.fields();
    let columns: Vec<ColumnDef> = planned
        .columns
        .iter()
        .zip(fields)
        .enumerate()
        .map(|(position, (column, field))| {
            let Some(sql_type) = types::type_of(field) else {
                return Err(Error::unsupported(format!(
                    "column \"{}\" has a type that no table can hold",
                    column.name
                )));
            };
            let name = names.get(position).cloned().unwrap_or_else(|| column.name.clone());
            Ok(ColumnDef { name, sql_type, nullable: true, default: None })
        })
        .collect::<Result<_>>()?;
    crate::ddl::check_columns(&columns)?;
    Ok(columns)
}

fn describe(facts: &Arc<SessionFacts>, statement: &Statement, given: &[u32]) -> Result<Description> {
    let state = facts.planner.state(facts);
    match statement.command() {
        Command::Query(ast_query) => {
            let mut given = crate::parameters::settled(ast_query, given);
            if let Some((probe, arrays)) = crate::parameters::element_probe(ast_query, &given) {
                let plan = query::logical_plan(&state, facts, probe, query::fields_of_oids(&given), None)?;
                let elements = query::parameter_oids(&plan, &given)?;
                given.resize(elements.len(), 0);
                for index in arrays {
                    given[index - 1] = types::array_of_oid(elements[index - 1]);
                }
            }
            let given = given.as_slice();
            let fields = query::fields_of_oids(given);
            let names = OutputNames::of(ast_query);
            let plan = query::logical_plan(&state, facts, ast_query.clone(), fields, None)?;
            let parameters = query::parameter_oids(&plan, given)?;
            // Types are only final after coercion, and with the parameters' types known.
            let plan = if parameters.as_slice() == given {
                plan
            } else {
                query::logical_plan(&state, facts, ast_query.clone(), query::fields_of_oids(&parameters), None)?
            };
            let nulls = query::fields_of_oids(&parameters)
                .into_iter()
                .map(|field| {
                    let data_type = field.map_or(DataType::Utf8View, |field| field.data_type().clone());
                    arrow::array::new_null_array(&data_type, 1)
                })
                .collect::<Vec<_>>();
            let plan = query::bind(plan, &nulls)?;
            let analyzed = state
                .analyzer()
                .execute_and_check(plan, state.config_options(), |_, _| {})
                .map_err(crate::errors::from_datafusion)?;
            let schema = types::canonical_schema(analyzed.schema().as_arrow());
            Ok(Description { parameters, columns: Some(query::columns(&schema, &names)) })
        }
        Command::Insert(insert) => {
            let given = crate::parameters::settled(insert.as_ref(), given);
            let given = given.as_slice();
            let target = crate::insert::read(facts, insert.as_ref().clone())?;
            let types: Vec<u32> =
                target.columns.iter().map(|&column| target.version.def.columns[column].sql_type.oid()).collect();
            let fields = crate::insert::value_parameters(insert, &types, given);
            let plan = target.plan(&state, facts, query::fields_of_oids(&fields))?;
            Ok(Description { parameters: query::parameter_oids(&plan, &fields)?, columns: None })
        }
        _ => Ok(Description { parameters: given.to_vec(), columns: None }),
    }
}
