//! A connection's state, and what each statement does to it.
//!
//! Outside a transaction block a statement commits by itself. Inside one, the block's transaction is lent to the
//! statement that writes and comes back when it succeeds; an error leaves the block failed, and all it may do then is
//! end.

mod admission;
mod alter;
mod call;
mod change;
mod comment;
mod copy;
mod cursor;
mod describe;
mod direct;
mod durable;
mod execute;
mod explain;
mod foreign_keys;
mod grants;
mod identity;
mod indexes;
mod lock_table;
mod locking;
mod merge;
mod objects;
mod outcome;
mod owners;
mod partitions;
mod parts;
mod portable;
mod positions;
mod prepared;
mod query;
mod read_ahead;
mod roles;
mod routing;
mod savepoint;
mod sequences;
mod settings;
mod standbys;
mod tables;
mod temporary;
mod transaction;
mod upkeep;
mod utility;
mod views;

pub use crate::copy::CopyIn;
pub(crate) use change::{Shape, Source};
pub(crate) use describe::{describe, describe_command, describe_query};
pub use direct::{DirectDone, DirectStatement, PreparedStatement};
pub use durable::share_commits;
pub use outcome::{BatchStream, CopyOut, Description, Notice, Outcome, ResultColumn};
pub use read_ahead::ReadAhead;
pub use routing::{Routed, RoutedText};
pub(crate) use tables::checked_writer;
pub use transaction::TransactionStatus;

use crate::catalog::SessionSequences;
use crate::direct::cache::Known;
use crate::facts::SessionFacts;
use crate::heap::SessionHeaps;
use crate::interrupt::Interrupt;
use crate::planner::Planner;
use crate::privileges::Acting;
use crate::room::PlanningRoom;
use crate::settings::Settings;
use crate::statement::{self, Statement};
use crate::workload::{Place, Turn};
use arrow::array::RecordBatch;
use chrono::{DateTime, Utc};
use cursor::Cursor;
use futures::StreamExt;
use parking_lot::Mutex;
use prepared::Prepared;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;
use tidepool_base::{Error, Result, RoleId, SqlState};
use tidepool_database::{Catalog, CurrentTransaction, Database, DatabaseVersion, Footing, Tag, TemporaryTables};
use tidepool_heap::{ClientAccount, Held, Reservation};
use tokio::sync::Notify;
use transaction::Block;

/// No role's id: of one that was dropped while it was in use.
const NOBODY: RoleId = RoleId(u32::MAX);

/// Settings that one statement may change by `set_config`, in any order.
const SETTINGS_REQUESTED_MAX: usize = 1_000;

/// What each prepared statement, cursor and savepoint takes beside what it is made of, in bytes.
const ENTRY_BYTES: u64 = 512;

/// Bytes of a text that is kept once it is parsed, and how many are.
const SHORT_TEXT: usize = 64;
const SHORT_TEXTS_MAX: usize = 64;

/// A row of `pg_stat_activity`.
#[derive(Clone, Debug)]
pub(crate) struct SessionRow {
    pub session_id: u32,
    pub user: String,
    pub application_name: String,
    pub start: DateTime<Utc>,
    pub transaction_status: TransactionStatus,
    /// Of the transaction that it is in, by which locks name it.
    pub tag: Option<Tag>,
    /// Its statement waits for another transaction.
    pub waits_for_lock: bool,
    /// Its commit waits for standbys.
    pub waits_for_standbys: bool,
}

#[derive(Clone)]
pub struct CancelHandle(Arc<SessionShared>);

impl CancelHandle {
    /// Ends the statement that runs now, if any, with 57014.
    pub fn cancel(&self) {
        self.0.cancel();
    }

    /// Ends the statement that runs now, if any, with 40001: another process is to go on with the session.
    pub fn give_way(&self) {
        if let Some(interrupt) = self.0.running.lock().upgrade() {
            interrupt.give_way();
        }
    }
}

/// What others may see of a session.
pub struct SessionShared {
    id: u32,
    /// Who connected.
    user: String,
    /// The same: the database's own for a user of this process that is no role.
    role: RoleId,
    start: DateTime<Utc>,
    running: Mutex<Weak<Interrupt>>,
    visible: Mutex<(Option<Arc<Settings>>, TransactionStatus)>,
    /// What `set_config` was called with: (name, value, local). Takes effect once its statement is over.
    requested_settings: Mutex<Vec<(String, String, bool)>>,
    heaps: Arc<SessionHeaps>,
    current: Arc<CurrentTransaction>,
    waits_for_standbys: AtomicBool,
    /// To leave, by `pg_terminate_backend`.
    terminated: AtomicBool,
    terminating: Notify,
}

impl SessionShared {
    /// 53200 where a statement sets too many.
    pub(crate) fn request_setting(&self, name: String, value: String, local: bool) -> Result<()> {
        let mut requested = self.requested_settings.lock();
        // Only the last value of a setting counts.
        if let Some(last) = requested.last_mut()
            && last.0 == name
            && last.2 == local
        {
            last.1 = value;
            return Ok(());
        }
        let bytes: usize = requested.iter().map(|(name, value, _)| name.len() + value.len()).sum();
        if requested.len() >= SETTINGS_REQUESTED_MAX || bytes + value.len() > crate::settings::BYTES_MAX {
            return Err(crate::settings::too_large());
        }
        requested.push((name, value, local));
        Ok(())
    }

    /// What ends the statement that runs. Gone when the statement is.
    pub(crate) fn interrupt(&self) -> Weak<Interrupt> {
        self.running.lock().clone()
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

    /// Whose session it is: who connected, or whom `SET SESSION AUTHORIZATION` named.
    fn session_role(&self, settings: &Settings, catalog: &Catalog) -> RoleId {
        match settings.get("session_authorization") {
            Some(name) if name != self.user => catalog.role(&name).map_or(NOBODY, |role| role.id),
            _ => self.role,
        }
    }

    /// Whom statements work for, by name and id.
    fn current_role(&self, settings: &Settings, catalog: &Catalog) -> (String, RoleId) {
        match settings.get("role").filter(|name| name != "none") {
            Some(name) => {
                let id = catalog.role(&name).map_or(NOBODY, |role| role.id);
                (name, id)
            }
            None => {
                let session = settings.get("session_authorization");
                (session.unwrap_or_else(|| self.user.clone()), self.session_role(settings, catalog))
            }
        }
    }

    pub(crate) fn row(&self, database: &Database) -> SessionRow {
        let (settings, transaction_status) = self.visible.lock().clone();
        let application_name = settings.and_then(|settings| settings.get("application_name")).unwrap_or_default();
        SessionRow {
            session_id: self.id,
            user: self.user.clone(),
            application_name,
            start: self.start,
            transaction_status,
            tag: self.current.tag(database),
            waits_for_standbys: self.waits_for_standbys.load(Ordering::Relaxed),
            waits_for_lock: self.interrupt().upgrade().is_some_and(|interrupt| interrupt.waits_for_lock()),
        }
    }
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
    /// Those of the protocol. Its statements are held, and accounted, where the protocol is spoken.
    by_protocol: HashMap<String, Weak<PreparedStatement>>,
    sequences: Arc<Mutex<SessionSequences>>,
    /// What the client knows the transaction by that it is in, or the statement, if it asks for that.
    current: Arc<CurrentTransaction>,
    temporary: Arc<TemporaryTables>,
    cursors: HashMap<String, Cursor>,
    next_cursor: u64,
    notices: Vec<Notice>,
    /// Texts that begin and end transactions.
    parsed: Mutex<HashMap<String, Vec<Statement>>>,
    /// Programs of texts, and that there are none.
    programs: HashMap<String, Known>,
    /// By their texts, with the types that the client gave of parameters.
    prepared_texts: HashMap<String, (Vec<u32>, Arc<PreparedStatement>)>,
    /// The statement is an `EXPLAIN (ANALYZE)`.
    analyzes: bool,
    /// Of its workload class, for the statement that is begun next.
    place: Option<Arc<Place>>,
    /// In its workload class.
    turn: Turn,
    /// What the session's connection is charged for; `None`: it has none, and nobody counts.
    account: Option<Arc<ClientAccount>>,
    /// The room of the text that is worked on is there.
    has_room: bool,
    /// What it knows of texts.
    texts_held: Option<Reservation>,
    /// Of its settings, when they are much.
    settings_held: Option<Reservation>,
    /// What the statement that runs stands on.
    footing: Arc<Footing>,
    /// When the statement that runs began: it may be begun anew, and has its time once.
    began: Option<Instant>,
    /// Held while what a statement that failed wrote is undone behind the client's back.
    undoing: Arc<tokio::sync::Mutex<()>>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.planner.forget(self.shared.id);
        if self.temporary.is_used() {
            // What looks at them.
            (self.block, self.cursors) = (None, HashMap::new());
            let (tables, database) = (std::mem::take(&mut self.temporary), self.planner.database().clone());
            // Many rows take a while.
            self.planner.workers().spawn_blocking(move || database.end_temporary_tables(tables));
        }
    }
}

/// A statement on its way: what it reads, who may end it, and its place in the registry.
pub(crate) struct Running {
    pub facts: Arc<SessionFacts>,
    pub interrupt: Arc<Interrupt>,
    pub query: crate::queries::RunningQuery,
}

/// What the functions of a statement may know.
#[expect(clippy::too_many_arguments, reason = "the parts of a statement's facts")]
fn facts_of(
    planner: &Arc<Planner>,
    shared: &SessionShared,
    settings: &Arc<Settings>,
    sequences: &Arc<Mutex<SessionSequences>>,
    (current, temporary): (&Arc<CurrentTransaction>, &Arc<TemporaryTables>),
    version: Arc<DatabaseVersion>,
    footing: Arc<Footing>,
    transaction_start: DateTime<Utc>,
    statement_start: DateTime<Utc>,
) -> Arc<SessionFacts> {
    let (user, role) = shared.current_role(settings, &version.catalog);
    footing.role(role);
    Arc::new(SessionFacts {
        planner: planner.clone(),
        user,
        session_user: settings.get("session_authorization").unwrap_or_default(),
        role: Acting::of(&version.catalog, role),
        database: crate::facts::DATABASE,
        session_id: shared.id,
        settings: settings.clone(),
        sequences: sequences.clone(),
        current: current.clone(),
        temporary: temporary.clone(),
        version,
        transaction_start,
        statement_start,
        heaps: shared.heaps.clone(),
        footing,
        parts: Default::default(),
    })
}

/// What a session of the user begins with.
fn first_settings(planner: &Planner, user: &str) -> Settings {
    let state = planner.database().state();
    let mut settings = Settings::new(planner.database(), user);
    for (name, value) in state.catalog.role(user).iter().flat_map(|role| &role.settings) {
        // It was good when it was set.
        if let Err(error) = settings.set_default(name, value, planner.database()) {
            tracing::warn!(%error, user, setting = name, "a role's setting is of no use any more");
        }
    }
    settings
}

impl Session {
    pub(crate) fn new(planner: Arc<Planner>, id: u32, user: &str) -> Session {
        let role = planner.database().state().catalog.role(user).map_or(RoleId::OWNER, |role| role.id);
        let settings = first_settings(&planner, user);
        Session::with(planner, id, (user, role), Utc::now(), settings)
    }

    /// Of a user with the role.
    fn with(
        planner: Arc<Planner>,
        id: u32,
        (user, role): (&str, RoleId),
        start: DateTime<Utc>,
        settings: Settings,
    ) -> Session {
        let settings = Arc::new(settings);
        let shared = Arc::new(SessionShared {
            id,
            role,
            user: user.to_owned(),
            start,
            running: Mutex::new(Weak::new()),
            visible: Mutex::new((None, TransactionStatus::Idle)),
            requested_settings: Mutex::default(),
            heaps: Arc::default(),
            current: Arc::default(),
            waits_for_standbys: AtomicBool::new(false),
            terminated: AtomicBool::new(false),
            terminating: Notify::new(),
        });
        Session {
            planner,
            current: shared.current.clone(),
            shared,
            settings_reported: settings.clone(),
            settings,
            block: None,
            prepared: HashMap::new(),
            by_protocol: HashMap::new(),
            sequences: Arc::default(),
            temporary: TemporaryTables::of_session(id),
            cursors: HashMap::new(),
            next_cursor: 0,
            notices: Vec::new(),
            parsed: Mutex::default(),
            programs: HashMap::new(),
            prepared_texts: HashMap::new(),
            analyzes: false,
            place: None,
            turn: Turn::none(),
            account: None,
            has_room: false,
            texts_held: None,
            settings_held: None,
            footing: Arc::default(),
            began: None,
            undoing: Arc::default(),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<SessionShared> {
        &self.shared
    }

    /// From now on what the session holds is charged to its connection.
    pub fn set_account(&mut self, account: Arc<ClientAccount>) {
        self.account = Some(account);
    }

    /// 53200 where the session may not hold so much more.
    pub(crate) fn hold(&self, bytes: u64) -> Result<Option<Reservation>> {
        self.account.as_ref().map(|account| account.reserve(Held::Sessions, bytes + ENTRY_BYTES)).transpose()
    }

    /// Room for a client's text, to be held while it is worked on, if it is long ([`Session::has_room`]). 53200 where there is none.
    pub fn room_for(&self, text: &str) -> Result<Option<PlanningRoom>> {
        if self.has_room { Ok(None) } else { self.planner.room_for(text) }
    }

    /// Whether the text that the statements from now on are of has its room.
    pub fn set_has_room(&mut self, has_room: bool) {
        self.has_room = has_room;
    }

    /// Stands for the backend's process id.
    pub fn id(&self) -> u32 {
        self.shared.id
    }

    /// Splits and parses a client's text. 42601 with the position on a syntax error.
    pub fn parse(&self, sql: &str) -> Result<Vec<Statement>> {
        // Most texts that begin and end transactions are always the same.
        let is_short = sql.len() <= SHORT_TEXT;
        if is_short && let Some(known) = self.parsed.lock().get(sql) {
            return Ok(known.clone());
        }
        let statements = statement::parse(sql)?;
        let is_kept = |statement: &Statement| {
            use statement::Command::{Begin, Commit, Rollback};
            matches!(statement.command(), Begin { .. } | Commit { .. } | Rollback { .. })
        };
        if is_short && statements.iter().all(is_kept) {
            let mut parsed = self.parsed.lock();
            if parsed.len() < SHORT_TEXTS_MAX {
                parsed.insert(sql.to_owned(), statements.clone());
            }
        }
        Ok(statements)
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

    pub fn take_notices(&mut self) -> Vec<Notice> {
        let mut notices = std::mem::take(&mut self.notices);
        notices.retain(|notice| self.settings.sends(notice.severity));
        notices
    }

    /// Leaves a notice of the rows that a COPY left out, if any.
    pub fn rows_skipped(&mut self, rows: u64) {
        self.notices.extend(crate::copy::skipped_notice(rows));
    }

    fn notice(&mut self, severity: &'static str, code: SqlState, message: impl Into<String>) {
        self.notices.push(Notice { severity, error: Error::new(code, message) });
    }

    fn show_status(&self) {
        *self.shared.visible.lock() = (Some(self.settings.clone()), self.transaction_status());
    }

    /// Whom statements work for, by name and id.
    fn current_role(&self, catalog: &Catalog) -> (String, RoleId) {
        self.shared.current_role(&self.settings, catalog)
    }

    /// 42501 unless the role that statements work for may do what this one does, apart from what its queries read.
    pub(crate) fn check_privileges(&self, command: &statement::Command) -> Result<()> {
        let state = self.planner.database().state();
        let (_, role) = self.current_role(&state.catalog);
        self.footing.role(role);
        if state.catalog.roles.get(&role).is_some_and(|role| role.superuser) {
            return Ok(());
        }
        let facts = match command {
            statement::Command::LockTables { .. } => self.facts_unbegun(Utc::now()),
            _ => self.facts(Utc::now()),
        };
        crate::privileges::check(&facts, command)
    }

    fn facts(&self, statement_start: DateTime<Utc>) -> Arc<SessionFacts> {
        self.facts_over(self.snapshot(), statement_start)
    }

    /// As `facts`, over what is committed, whatever the transaction block: no statement of it begins.
    fn facts_apart(&self, statement_start: DateTime<Utc>) -> Arc<SessionFacts> {
        self.facts_over(self.planner.database().version_for(&self.temporary), statement_start)
    }

    /// As `facts`, of what takes no snapshot: a transaction that has none yet may read later what is committed meanwhile.
    fn facts_unbegun(&self, statement_start: DateTime<Utc>) -> Arc<SessionFacts> {
        match self.has_begun() {
            true => self.facts(statement_start),
            false => self.facts_apart(statement_start),
        }
    }

    fn facts_over(&self, version: Arc<DatabaseVersion>, statement_start: DateTime<Utc>) -> Arc<SessionFacts> {
        let transaction_start = self.block.as_ref().map_or(statement_start, |block| block.start);
        let Session { planner, shared, settings, sequences, current, temporary, footing, .. } = self;
        let (footing, current) = (footing.clone(), (current, temporary));
        facts_of(planner, shared, settings, sequences, current, version, footing, transaction_start, statement_start)
    }

    /// Of what begins now, and is what a cancel ends.
    fn interrupt(&self) -> Arc<Interrupt> {
        let since = self.began.unwrap_or_else(Instant::now);
        let interrupt =
            Arc::new(Interrupt::new(since, self.settings.statement_timeout(), self.settings.lock_timeout()));
        *self.shared.running.lock() = Arc::downgrade(&interrupt);
        interrupt
    }

    fn running(&self, text: &str) -> Running {
        self.running_over(text, Session::facts)
    }

    fn running_over(&self, text: &str, facts: fn(&Session, DateTime<Utc>) -> Arc<SessionFacts>) -> Running {
        let interrupt = self.interrupt();
        let mut query = self.planner.queries.start(self.shared.id, &self.shared.user, text);
        query.place = self.place.clone();
        query.footing = self.footing.clone();
        if self.analyzes {
            query.info.observe();
        }
        if self.block.is_none() {
            // The statement is a transaction of its own.
            let (advisory, session) = (self.planner.advisory.clone(), self.shared.id);
            let (planner, current) = (self.planner.clone(), self.current.clone());
            query.at_end(move |succeeded| {
                advisory.end_transaction(session);
                current.end_reading(planner.database(), succeeded);
            });
        }
        Running { facts: facts(self, Utc::now()), interrupt, query }
    }
}
