//! Statements that go to their rows without a plan: found by their texts or as prepared, run where they are, committed without a
//! thread that waits for the log.

use super::change::{Reading, Source};
use super::describe::describe;
use super::{Description, Outcome, ResultColumn, Session, SessionShared};
use crate::catalog::SessionSequences;
use crate::direct::cache::{Known, OWN_MAX, OfText};
use crate::direct::compile::output_types;
use crate::direct::datum::{Datum, is_text};
use crate::direct::expr::{Compiler, Context, Expr};
use crate::direct::run::{Ran, Run, Statement as Running, Told};
use crate::direct::template::{self, Literal, Template};
use crate::direct::{Program, RowSink, Target, Work};
use crate::execute::{joined, panicked};
use crate::facts::SessionFacts;
use crate::interrupt::Interrupt;
use crate::locking::parts::{self, Parted};
use crate::names::OutputNames;
use crate::origins;
use crate::planner::Planner;
use crate::query;
use crate::resolve::{self, Relation};
use crate::settings::Settings;
use crate::statement::{Command, Statement};
use crate::types;
use crate::workload::Class;
use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Field, Schema};
use chrono::{DateTime, Utc};
use datafusion::common::DFSchema;
use datafusion::common::config::ConfigOptions;
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::sqlparser::ast;
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tidepool_base::{Error, Result, SqlState, SqlType, TableId, panic_point};
use tidepool_database::text::TextSettings;
use tidepool_database::{
    CommitWait, CurrentTransaction, DatabaseVersion, Footing, Privileges, RelationName, Sequence, StatementMark,
    TemporaryTables, Transaction,
};
use tidepool_heap::Held;
use tidepool_table::TableDef;

/// A statement that a client prepared, with what is known of it.
pub struct PreparedStatement {
    /// `None` for a text without a statement in it.
    pub statement: Option<Statement>,
    pub description: Description,
    direct: Option<DirectStatement>,
    known: Known,
    /// What it takes of memory, about.
    bytes: u64,
}

/// A statement that goes to its rows by itself: what to run, and over which values.
#[derive(Clone)]
pub struct DirectStatement {
    program: Arc<Program>,
    /// Values of the parameters that stand for the text's literals, behind its own.
    literals: Arc<[Datum<'static>]>,
    text: Arc<str>,
}

impl DirectStatement {
    /// The columns that it gives back, if any.
    pub fn columns(&self) -> Option<&Arc<[ResultColumn]>> {
        self.program.columns.as_ref()
    }

    pub fn writes(&self) -> bool {
        self.program.writes()
    }
}

impl OfText for Arc<PreparedStatement> {
    fn known(&self) -> &Known {
        &self.known
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl PreparedStatement {
    /// What it takes of memory, about.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn direct(&self) -> Option<&DirectStatement> {
        self.direct.as_ref().filter(|direct| direct.program.is_useful())
    }
}

/// What a statement that went to its rows came to.
#[derive(Clone, Copy, Debug)]
pub struct DirectDone {
    /// The command tag before the number of rows.
    pub tag: &'static str,
    pub rows: u64,
}

/// What expressions and constraints ask of a statement.
struct StatementContext {
    planner: Arc<Planner>,
    shared: Arc<SessionShared>,
    settings: Arc<Settings>,
    sequences: Arc<Mutex<SessionSequences>>,
    current: Arc<CurrentTransaction>,
    temporary: Arc<TemporaryTables>,
    footing: Arc<Footing>,
    transaction_start: DateTime<Utc>,
    statement_start: DateTime<Utc>,
    interrupt: Option<Arc<Interrupt>>,
}

impl Context for StatementContext {
    fn now_us(&self) -> i64 {
        self.transaction_start.timestamp_micros()
    }

    fn text_settings(&self) -> &TextSettings {
        self.settings.shared_text_settings()
    }

    fn next_value(&self, sequence: &Arc<Sequence>) -> Result<i64> {
        crate::catalog::next_value_of(&self.sequences, self.planner.database(), sequence)
    }
}

impl Running for StatementContext {
    fn context(&self) -> &dyn Context {
        self
    }

    fn facts(&self, version: &Arc<DatabaseVersion>) -> Arc<SessionFacts> {
        super::facts_of(
            &self.planner,
            &self.shared,
            &self.settings,
            &self.sequences,
            (&self.current, &self.temporary),
            version.clone(),
            self.footing.clone(),
            self.transaction_start,
            self.statement_start,
        )
    }

    fn check(&self) -> Result<()> {
        self.interrupt.as_ref().map_or(Ok(()), |interrupt| interrupt.check())
    }
}

/// Rows kept until all of them are there.
#[derive(Default)]
struct Kept(Vec<Vec<Datum<'static>>>);

impl RowSink for Kept {
    fn row(&mut self, values: &[Datum<'_>]) -> Result<()> {
        self.0.push(values.iter().map(|value| value.clone().into_owned()).collect());
        Ok(())
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// Bytes of what a session itself knows of texts, and what each takes beside what it is made of.
const OWN_BYTES_MAX: u64 = 4 << 20;
const TEXT_BYTES: u64 = 256;

/// How often a statement waits for others without a thread, before it gets one.
const WAITS_MAX: u32 = 16;

/// A statement that waits for another transaction, for others to see.
struct Waiting {
    interrupt: Arc<Interrupt>,
    query: crate::queries::RunningQuery,
    times: u32,
}

/// What came of an attempt.
enum Attempt {
    Done(u64, Option<Told>),
    General,
    /// Another transaction is to be waited for; then it goes on over what it saw.
    HeldUp(Arc<DatabaseVersion>),
}

/// `version`: what the statement saw when it was held up.
fn attempt(
    transaction: &mut Transaction,
    version: Option<Arc<DatabaseVersion>>,
    program: &Program,
    parameters: &[Datum<'static>],
    context: &StatementContext,
    sink: &mut dyn RowSink,
) -> Result<Attempt> {
    let version = match version {
        Some(version) => {
            transaction.resume_statement(&version);
            version
        }
        None => transaction.begin_statement()?,
    };
    let ran = catch_unwind(AssertUnwindSafe(|| {
        panic_point("planner.direct");
        let mut run = Run { program, parameters, statement: context, sink: &mut *sink };
        run.run(transaction, version.clone())
    }));
    transaction.end_statement();
    if transaction.was_held_up() {
        sink.clear();
        return Ok(Attempt::HeldUp(version));
    }
    match ran {
        Ok(Ok((Ran::Done(rows), told))) => Ok(Attempt::Done(rows, told)),
        Ok(Ok((Ran::General, _))) => {
            sink.clear();
            Ok(Attempt::General)
        }
        Ok(Err(error)) => {
            sink.clear();
            Err(error)
        }
        Err(panic) => {
            sink.clear();
            Err(panicked(panic.as_ref()))
        }
    }
}

impl Session {
    /// Whether statements of this text go to rows by themselves, and how.
    pub async fn direct_of_text(&mut self, sql: &str) -> Option<DirectStatement> {
        if !self.settings.is_direct() {
            return None;
        }
        let template = template::of(sql)?;
        if template.given > 0 {
            return None;
        }
        let program = self.program_of(&template, &[]).await?;
        let literals = self.literals(&template, &program).ok()?;
        let text = sql.trim().trim_end_matches(';').trim_end();
        Some(DirectStatement { program, literals, text: Arc::from(text) })
    }

    /// As `direct_of_text`, of a text with parameters of these types.
    async fn direct_with(&mut self, text: &str, parameters: &[u32]) -> Option<DirectStatement> {
        if !self.settings.is_direct() {
            return None;
        }
        let template = template::of(text)?;
        if template.given > parameters.len() {
            return None;
        }
        // Parameters that the text does not use come before its literals all the same.
        let template = match template.given == parameters.len() {
            true => template,
            false => return None,
        };
        let program = self.program_of(&template, parameters).await?;
        let literals = self.literals(&template, &program).ok()?;
        Some(DirectStatement { program, literals, text: Arc::from(text) })
    }

    fn literals(&self, template: &Template, program: &Program) -> Result<Arc<[Datum<'static>]>> {
        let settings = self.settings.shared_text_settings();
        // A bad one is the general path's to complain about.
        let value = |(literal, sql_type): (&Literal, &SqlType)| literal.read(*sql_type, settings);
        template.literals.iter().zip(&program.parameters[template.given..]).map(value).collect()
    }

    pub(crate) async fn program_of(&mut self, template: &Template, given: &[u32]) -> Option<Arc<Program>> {
        let key = template.key(given);
        let state = self.temporary.over(self.planner.database().state());
        if let Some(known) = self.programs.get(key.as_str())
            && known.state.is_of(&state)
            && known.settings.mean_the_same(&self.settings)
        {
            return known.program.clone().filter(|program| program.is_useful());
        }
        let (_, role) = self.current_role(&state.catalog);
        let is_for = |known: &Known| known.state.is_of(&state) && known.is_for(&self.settings, role);
        // What a name means to this session may be its own.
        let shares = !self.temporary.is_used();
        let known = match shares.then(|| self.planner.programs.find(&key, is_for)).flatten() {
            Some(known) => known,
            None if !shares => self.compile(template, given).await,
            None => {
                let known = self.compile(template, given).await;
                self.planner.programs.keep(&key, known.clone(), self.planner.database().client_memory());
                known
            }
        };
        let program = known.program.clone();
        if self.keeps_text(key.len() as u64 + known.bytes) {
            self.programs.insert(key, known);
        }
        program
    }

    /// What there is for a text. Not tried in a block that failed.
    async fn compile(&mut self, template: &Template, given: &[u32]) -> Known {
        let facts = self.facts_apart(Utc::now());
        let known = |program: Option<Program>| Known {
            bytes: program.as_ref().map_or(0, |program| program.bytes),
            program: program.map(Arc::new),
            state: facts.version.mark(),
            settings: facts.settings.clone(),
            role: facts.role.id,
        };
        let Ok(statements) = crate::statement::parse(&template.text) else { return known(None) };
        let [statement] = statements.as_slice() else { return known(None) };
        if !is_candidate(statement.command()) || !matches!(self.current_of(statement.command()), Ok(None)) {
            return known(None);
        }
        let (of, statement, template, given) = (facts.clone(), statement.clone(), template.clone(), given.to_vec());
        let compiling = self.planner.workers().spawn(async move {
            let (program, bytes) = tidepool_heap::retained(|| compile(&of, &statement, &template, &given));
            Ok(program.map(|mut program| {
                program.bytes = bytes;
                program
            }))
        });
        known(joined(compiling.await).unwrap_or(None))
    }

    /// Prepares a statement for a client, or finds it as it was prepared before. 42601 for several statements in one.
    pub async fn prepare_statement(&mut self, sql: &str, oids: &[u32]) -> Result<Arc<PreparedStatement>> {
        let state = self.temporary.over(self.planner.database().state());
        let failed = self.block.as_ref().is_some_and(|block| block.failed.load(Ordering::Acquire));
        if !failed
            && let Some((known_oids, known)) = self.prepared_texts.get(sql)
            && known_oids == oids
            && known.known.state.is_of(&state)
            && known.known.settings.mean_the_same(&self.settings)
        {
            return Ok(known.clone());
        }
        let (_, role) = self.current_role(&state.catalog);
        // What a transaction has changed, others do not see.
        let is_apart = match &self.block {
            None => true,
            Some(block) => block.slot.lock().as_ref().is_some_and(|transaction| !transaction.has_changes()),
        };
        let shares = is_apart && !failed && !self.temporary.is_used() && sql.len() <= PREPARED_TEXT_MAX;
        let key = shares.then(|| oids.iter().fold(sql.to_owned(), |key, oid| format!("{key}\0{oid}")));
        let is_for = |known: &Known| known.state.is_of(&state) && known.is_for(&self.settings, role);
        if let Some(key) = &key
            && let Some(known) = self.planner.prepared.find(key, is_for)
        {
            self.keep_prepared(sql, oids, &known);
            return Ok(known);
        }
        let _room = self.room_for(sql)?;
        let mut statements = self.parse(sql)?.into_iter().filter(|statement| !statement.is_empty());
        let statement = statements.next();
        if statements.next().is_some() {
            let message = "cannot insert multiple commands into a prepared statement";
            return Err(Error::new(SqlState::SYNTAX_ERROR, message));
        }
        let description = match &statement {
            Some(statement) => self.describe(statement, oids).await?,
            None => Description { parameters: Vec::new(), columns: None },
        };
        let mut direct = None;
        if let Some(statement) = &statement
            && !failed
        {
            direct = self.direct_with(statement.text(), &description.parameters).await;
            // As it was described, it is to be run.
            direct =
                direct.filter(|direct| direct.columns().map(|columns| &**columns) == description.columns.as_deref());
        }
        let known = Known { program: None, state: state.mark(), settings: self.settings.clone(), role, bytes: 0 };
        let columns = description.columns.as_deref().unwrap_or_default();
        let described: usize = columns.iter().map(|column| size_of::<ResultColumn>() + column.name.len()).sum();
        let bytes = statement.as_ref().map_or(0, Statement::bytes)
            + direct.as_ref().map_or(0, |direct| direct.program.bytes + direct.text.len() as u64)
            + (described + size_of::<PreparedStatement>()) as u64;
        let prepared = Arc::new(PreparedStatement { statement, description, direct, known, bytes });
        self.keep_prepared(sql, oids, &prepared);
        // Other statements may mean what is the session's own: its cursors, statements that it prepared.
        if let Some(key) = key
            && prepared.direct.is_some()
        {
            self.planner.prepared.keep(&key, prepared.clone(), self.planner.database().client_memory());
        }
        Ok(prepared)
    }

    fn keep_prepared(&mut self, sql: &str, oids: &[u32], prepared: &Arc<PreparedStatement>) {
        if sql.len() <= PREPARED_TEXT_MAX && self.keeps_text(sql.len() as u64 + prepared.bytes) {
            self.prepared_texts.insert(sql.to_owned(), (oids.to_vec(), prepared.clone()));
        }
    }

    /// Makes room for one more text in what the session knows of texts. False: it may not hold so much.
    fn keeps_text(&mut self, bytes: u64) -> bool {
        if self.programs.len() + self.prepared_texts.len() >= 2 * OWN_MAX {
            self.forget_texts();
        }
        let Some(account) = &self.account else { return true };
        let held = self.texts_held.get_or_insert_with(|| account.nothing(Held::Plans));
        let wanted = held.bytes() + bytes + TEXT_BYTES;
        if wanted <= OWN_BYTES_MAX && held.resize(wanted).is_ok() {
            return true;
        }
        self.forget_texts();
        self.texts_held.as_mut().is_some_and(|held| {
            let wanted = bytes + TEXT_BYTES;
            wanted <= OWN_BYTES_MAX && held.resize(wanted).is_ok()
        })
    }

    fn forget_texts(&mut self) {
        self.programs.clear();
        self.prepared_texts.clear();
        if let Some(held) = &mut self.texts_held {
            // Nothing is always to be had.
            let _ = held.resize(0);
        }
    }

    /// Runs a statement by going to its rows, which `sink` gets as they come. `None`: it is for the general path after all, and nothing was
    /// done. An error fails the transaction block.
    pub async fn run_direct(
        &mut self,
        direct: &DirectStatement,
        parameters: &[Datum<'static>],
        sink: &mut (dyn RowSink + Send),
    ) -> Result<Option<DirectDone>> {
        let ran = self.run_direct_inner(direct, parameters, sink).await;
        if ran.is_err() {
            self.fail();
        }
        let ran = ran?;
        self.shown_by_standbys().await?;
        Ok(ran)
    }

    async fn run_direct_inner(
        &mut self,
        direct: &DirectStatement,
        parameters: &[Datum<'static>],
        sink: &mut (dyn RowSink + Send),
    ) -> Result<Option<DirectDone>> {
        self.undone().await?;
        self.notice_role();
        self.take_requested_settings();
        let program = &direct.program;
        if let Some(block) = self.block.as_ref().filter(|block| block.failed.load(Ordering::Acquire)) {
            return Err(block.refusal());
        }
        if !program.is_for(&self.settings) {
            return Ok(None);
        }
        self.check_level()?;
        if program.writes() && !program.is_of_temporary() {
            self.check_writable(program.name())?;
        }
        let joined_parameters;
        let parameters = match (parameters, &*direct.literals) {
            (parameters, []) => parameters,
            ([], literals) => literals,
            (parameters, literals) => {
                joined_parameters = parameters.iter().chain(literals).cloned().collect::<Vec<_>>();
                &joined_parameters
            }
        };
        let start = Instant::now();
        let class = self.settings.workload_class().unwrap_or(Class::Transactions);
        // Until it is committed.
        let _place = match program.reads_no_table() {
            true => None,
            false => {
                self.shown_here().await?;
                self.admit(class, &direct.text).await?
            }
        };
        let context = self.statement_context(None);
        let (slot, keep) = match &self.block {
            Some(block) => (Some(block.slot.clone()), !block.savepoints.is_empty()),
            None => (None, false),
        };
        let mut transaction = match &slot {
            Some(slot) => match slot.lock().take() {
                Some(transaction) => transaction,
                None => return Ok(None),
            },
            None => {
                let isolation = super::transaction::isolation(self.settings.default_isolation());
                let mut transaction = self.planner.database().begin_at(isolation)?;
                transaction.set_temporary(self.temporary.clone());
                transaction.name_to(&self.current);
                transaction
            }
        };
        let mark = program.writes().then(|| transaction.mark_statement());
        // A cancel of a statement before is not this one's.
        transaction.set_patience(Arc::new(()));
        let mut waiting: Option<Waiting> = None;
        let mut version = None;
        let ended = loop {
            transaction.set_hurried(true);
            let attempted = attempt(&mut transaction, version.take(), program, parameters, &context, sink);
            let Ok(Attempt::HeldUp(seen)) = attempted else { break attempted };
            if let Some(mark) = &mark {
                transaction.undo_statement(mark);
            }
            let waiting = waiting.get_or_insert_with(|| self.begin_waiting(direct));
            if waiting.times == WAITS_MAX {
                break Ok(Attempt::HeldUp(seen));
            }
            waiting.times += 1;
            let (told, free) = tokio::sync::oneshot::channel::<()>();
            let tell = move || {
                // Who waited may be gone.
                let _ = told.send(());
            };
            match transaction.when_free(tell) {
                Ok(true) => {}
                Ok(false) => break Ok(Attempt::HeldUp(seen)),
                Err(error) => break Err(error),
            }
            version = Some(seen);
            let lock_timeout = async {
                match self.settings.lock_timeout() {
                    Some(timeout) => tokio::time::sleep(timeout).await,
                    None => std::future::pending().await,
                }
            };
            let _noted = waiting.interrupt.note_lock_wait();
            let error = tokio::select! {
                biased;
                _ = free => continue,
                error = waiting.interrupt.wait() => error,
                () = lock_timeout => crate::interrupt::lock_timed_out(),
            };
            transaction.stop_waiting();
            break Err(error);
        };
        transaction.set_hurried(false);
        let (rows, told) = match ended {
            Ok(Attempt::Done(rows, told)) => (rows, told),
            Ok(Attempt::HeldUp(seen)) => {
                // It goes on under another entry.
                waiting.into_iter().for_each(|waiting| waiting.query.forget());
                let held_up = (transaction, seen);
                return Box::pin(self.run_patiently(direct, parameters.to_vec(), sink, start, held_up)).await;
            }
            Ok(Attempt::General) => {
                if let Some(mark) = &mark {
                    transaction.undo_statement(mark);
                }
                if let Some(slot) = &slot {
                    *slot.lock() = Some(transaction);
                }
                return Ok(None);
            }
            Err(error) => {
                if waiting.is_none() {
                    self.record_direct(direct, &context, 0, true);
                }
                if let Some(slot) = &slot {
                    if keep {
                        *slot.lock() = Some(transaction);
                    } else {
                        self.undo_behind(transaction).await;
                    }
                }
                return Err(error);
            }
        };
        match slot {
            Some(slot) => *slot.lock() = Some(transaction),
            None if program.writes() => {
                if let Some(witness) = self.current.witness() {
                    if witness.is_wanted() {
                        sink.committing();
                        witness.will_say(&format!("{} {rows}", program.tag()), self.sequences_revision());
                    }
                    transaction.set_current(self.current.clone());
                }
                if let Err(error) = self.commit_decided(transaction).await {
                    sink.clear();
                    if waiting.is_none() {
                        self.record_direct(direct, &context, 0, true);
                    }
                    return Err(error);
                }
            }
            None => drop(transaction),
        }
        match waiting {
            Some(mut waiting) => {
                waiting.query.info.rows.store(rows, Ordering::Relaxed);
                waiting.query.succeeded();
            }
            None => self.record_direct(direct, &context, rows, false),
        }
        if let Some(told) = told {
            told.record(program, self.planner.database().access_log(), start.elapsed());
        }
        Ok(Some(DirectDone { tag: program.tag(), rows }))
    }

    /// As `run_direct`, on a thread that may sleep until other transactions are over; of a statement that was held up, its
    /// writes undone, with what it saw.
    async fn run_patiently(
        &mut self,
        direct: &DirectStatement,
        parameters: Vec<Datum<'static>>,
        sink: &mut (dyn RowSink + Send),
        start: Instant,
        held_up: (Transaction, Arc<DatabaseVersion>),
    ) -> Result<Option<DirectDone>> {
        let interrupt = self.interrupt();
        let mut query = self.planner.queries.start(self.shared.id, &self.shared.user, &direct.text);
        query.info.running(None);
        let context = self.statement_context(Some(interrupt.clone()));
        let (slot, failed, keep) = match &self.block {
            Some(block) => (Some(block.slot.clone()), Some(block.failed.clone()), !block.savepoints.is_empty()),
            None => (None, None, false),
        };
        let wait = self.commit_wait();
        let current = (wait == CommitWait::Applied || self.current.witness().is_some()).then(|| self.current.clone());
        let (workers, undoing) = (self.planner.workers(), self.undoing.clone());
        let program = direct.program.clone();
        let running = self.planner.workers().spawn_blocking(move || {
            let (mut transaction, version) = held_up;
            transaction.set_patience(interrupt.clone());
            transaction.set_commit_wait(wait);
            current.iter().for_each(|current| transaction.set_current(current.clone()));
            let mark: Option<StatementMark> = slot.is_some().then(|| transaction.mark_statement());
            let mut kept = Kept::default();
            let attempted = attempt(&mut transaction, Some(version), &program, &parameters, &context, &mut kept)
                .and_then(|attempted| interrupt.check().map(|()| attempted));
            let ended = match attempted {
                Ok(Attempt::Done(rows, told)) => match &slot {
                    None => {
                        // Rows that it gives back are not with the client's other messages yet.
                        if let Some(witness) = current.as_ref().and_then(|current| current.witness())
                            && program.columns.is_none()
                        {
                            let sequences = context.sequences.lock().revision();
                            witness.will_say(&format!("{} {rows}", program.tag()), sequences);
                        }
                        transaction.try_commit().map(|_| Some((rows, told)))
                    }
                    Some(_) => Ok(Some((rows, told))),
                },
                Ok(_) => {
                    if let Some(mark) = &mark {
                        transaction.undo_statement(mark);
                    }
                    Ok(None)
                }
                Err(error) => Err(error),
            };
            match (&ended, slot) {
                (Ok(_), Some(slot)) => *slot.lock() = Some(transaction),
                (Ok(_), None) => {}
                (Err(_), Some(slot)) if keep => *slot.lock() = Some(transaction),
                (Err(_), _) => super::transaction::roll_back(transaction, &workers, undoing.blocking_lock_owned()),
            }
            if let (Err(_), Some(failed)) = (&ended, failed) {
                failed.store(true, Ordering::Release);
            }
            ended.map(|ended| ended.map(|(rows, told)| (rows, told, kept)))
        });
        let Some((rows, told, kept)) = joined(running.await)? else { return Ok(None) };
        query.info.rows.store(rows, Ordering::Relaxed);
        query.succeeded();
        kept.0.iter().try_for_each(|row| sink.row(row))?;
        if let Some(told) = told {
            told.record(&direct.program, self.planner.database().access_log(), start.elapsed());
        }
        Ok(Some(DirectDone { tag: direct.program.tag(), rows }))
    }

    fn begin_waiting(&self, direct: &DirectStatement) -> Waiting {
        let query = self.planner.queries.start(self.shared.id, &self.shared.user, &direct.text);
        query.info.running(None);
        Waiting { interrupt: self.interrupt(), query, times: 0 }
    }

    fn statement_context(&self, interrupt: Option<Arc<Interrupt>>) -> StatementContext {
        let now = Utc::now();
        StatementContext {
            planner: self.planner.clone(),
            shared: self.shared.clone(),
            settings: self.settings.clone(),
            sequences: self.sequences.clone(),
            current: self.current.clone(),
            temporary: self.temporary.clone(),
            footing: self.footing.clone(),
            transaction_start: self.block.as_ref().map_or(now, |block| block.start),
            statement_start: now,
            interrupt,
        }
    }

    fn record_direct(&self, direct: &DirectStatement, context: &StatementContext, rows: u64, failed: bool) {
        let shared = &self.shared;
        self.planner.queries.record(shared.id, &shared.user, &direct.text, context.statement_start, rows, failed);
    }

    /// Runs a statement by going to its rows, if it is of that kind.
    pub(super) async fn try_direct(
        &mut self,
        statement: &Statement,
        parameters: &[ArrayRef],
    ) -> Result<Option<Outcome>> {
        if !matches!(
            statement.command(),
            Command::Query(_)
                | Command::Insert(..)
                | Command::Update { .. }
                | Command::Delete { .. }
                | Command::Locking { .. }
        ) || !is_candidate(statement.command())
        {
            return Ok(None);
        }
        let oid = |array: &ArrayRef| types::describe(&Field::new("", array.data_type().clone(), true)).1;
        let oids: Vec<u32> = parameters.iter().map(oid).collect();
        let values = parameters.iter().map(|array| Datum::of_array(array, 0)).collect::<Result<Vec<_>>>();
        let Ok(values) = values else { return Ok(None) };
        let Some(direct) = self.direct_with(statement.text(), &oids).await else { return Ok(None) };
        let mut kept = Kept::default();
        let Some(done) = self.run_direct_inner(&direct, &values, &mut kept).await? else { return Ok(None) };
        let Some(columns) = direct.columns() else {
            return Ok(Some(Outcome::command(format!("{} {}", done.tag, done.rows))));
        };
        let batch = batch_of(columns, &kept.0)?;
        let batches = Box::pin(futures::stream::iter((batch.num_rows() > 0).then_some(Ok(batch))));
        Ok(Some(Outcome::Rows { columns: columns.to_vec(), batches, tag: done.tag }))
    }

    /// What `EXPLAIN` says of how a statement goes to its rows by itself.
    pub(super) async fn explain_direct(&mut self, statement: &Statement, parameters: &[ArrayRef]) -> Vec<String> {
        let oid = |array: &ArrayRef| types::describe(&Field::new("", array.data_type().clone(), true)).1;
        let oids: Vec<u32> = parameters.iter().map(oid).collect();
        match self.direct_with(statement.text(), &oids).await {
            Some(direct) if direct.program.is_useful() => {
                crate::direct::explain::lines(&direct.program, &self.planner.database().version_for(&self.temporary))
            }
            _ => Vec::new(),
        }
    }
}

/// Texts of prepared statements that are kept, in bytes.
const PREPARED_TEXT_MAX: usize = 4 << 10;

fn batch_of(columns: &[ResultColumn], rows: &[Vec<Datum<'static>>]) -> Result<RecordBatch> {
    let types: Vec<_> = columns.iter().map(|column| tidepool_table::arrow_type(column.sql_type)).collect();
    let arrays = (types.iter().enumerate())
        .map(|(place, data_type)| Datum::array(rows.iter().map(|row| &row[place]), data_type))
        .collect::<Result<Vec<_>>>()?;
    let fields: Vec<Field> =
        columns.iter().zip(types).map(|(column, data_type)| Field::new(&column.name, data_type, true)).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options)
        .map_err(crate::errors::from_arrow)
}

/// Whether it is worth looking closer.
fn is_candidate(command: &Command) -> bool {
    let is_plain = |query: &ast::Query| {
        let ast::SetExpr::Select(select) = query.body.as_ref() else { return false };
        let tables: usize = select.from.iter().map(|table| 1 + table.joins.len()).sum();
        let group = match &select.group_by {
            ast::GroupByExpr::Expressions(_, modifiers) => modifiers.is_empty(),
            ast::GroupByExpr::All(_) => false,
        };
        let (is_filtered, is_limited) = (select.selection.is_some(), query.limit_clause.is_some());
        let is_short = match tables {
            0 => !is_filtered && !is_limited && query.order_by.is_none(),
            _ => tables <= 3 && (is_filtered || is_limited && query.order_by.is_some()),
        };
        query.with.is_none()
            && is_short
            && select.distinct.is_none()
            && select.having.is_none()
            && select.into.is_none()
            && group
    };
    match command {
        Command::Query(query) => is_plain(query),
        Command::Locking { query, clauses } => is_plain(query) && clauses.len() == 1,
        Command::Insert(insert, _) => {
            insert.on.is_none()
                && insert.source.as_ref().is_some_and(|source| {
                    matches!(source.body.as_ref(), ast::SetExpr::Values(values) if values.rows.len() <= ROWS_MAX)
                        && source.with.is_none()
                        && source.order_by.is_none()
                        && source.limit_clause.is_none()
                })
        }
        Command::Update { update, with } => with.is_none() && update.from.is_none() && update.selection.is_some(),
        Command::Delete { delete, with } => with.is_none() && delete.using.is_none() && delete.selection.is_some(),
        _ => false,
    }
}

/// Rows of an `INSERT` that are written one by one.
const ROWS_MAX: usize = 100;

fn analyzed(state: &SessionState, plan: LogicalPlan) -> Option<LogicalPlan> {
    crate::optimizer::analyze(state, plan).ok()
}

/// The program of a statement of a template, whose first parameters are the client's, of types `given`. `None` for one that there is none for, or that is wrong:
/// then the general path says what is.
fn compile(facts: &Arc<SessionFacts>, statement: &Statement, template: &Template, given: &[u32]) -> Option<Program> {
    let oids = template.oids(given);
    if template.names_moments() {
        return None;
    }
    crate::privileges::check(facts, statement.command()).ok()?;
    let is_locking = matches!(statement.command(), Command::Locking { .. });
    if statement.locks_rows() && !is_locking {
        return None;
    }
    let described = match is_locking {
        true => describe(facts, &parts::without_locks(statement), &oids).ok()?,
        false => describe(facts, statement, &oids).ok()?,
    };
    if described.parameters.len() != oids.len() {
        return None;
    }
    let parameters: Vec<SqlType> =
        described.parameters.iter().map(|oid| types::sql_type_of_oid(*oid)).collect::<Option<_>>()?;
    if !template.is_exact(&parameters[given.len()..]) {
        return None;
    }
    let fields = query::fields_of_oids(&described.parameters);
    let state = facts.planner.state(facts);
    let options = Arc::new(ConfigOptions::default());
    let sequence = |name: &str| sequence_of(facts, name);
    let compiler = Compiler { options: &options, sequence: &sequence };
    let program = |work: Work, columns| Some(Program::new(work, columns, parameters.clone(), facts));
    match statement.command() {
        Command::Query(ast_query) => {
            let plan = query::logical_plan(&state, facts, ast_query.clone(), fields, None).ok()?;
            let origins = origins::of_plan(facts, &plan);
            let plan = analyzed(&state, plan)?;
            output_types(plan.schema())?;
            let query = compiler.relation(&plan)?.query()?;
            query.outputs.iter().all(Option::is_some).then_some(())?;
            let schema = types::canonical_schema(plan.schema().as_arrow());
            let mut columns = query::columns(&schema, &OutputNames::of(ast_query));
            origins::mark(&mut columns, &origins);
            program(Work::Select(query), Some(columns))
        }
        Command::Locking { .. } => {
            let Parted { parts, reading, .. } = parts::of(facts, statement).ok()?;
            let reading = reading.filter(|_| parts.is_empty())?;
            let (lock, wait) = match reading.targets.as_slice() {
                [target] if target.tree.is_none() => (target.lock, target.wait),
                _ => return None,
            };
            let plan = crate::locking::unbound(&state, facts, &reading, fields).ok()?;
            let origins = origins::of_plan(facts, &plan);
            let plan = analyzed(&state, plan)?;
            let mut query = compiler.relation(&plan)?.query()?;
            // Its id is the last.
            matches!(query.outputs.pop(), Some(Some(Expr::RowId(0)))).then_some(())?;
            (query.sources.len() == 1 && query.aggregate.is_none()).then_some(())?;
            query.outputs.iter().all(Option::is_some).then_some(())?;
            let schema = types::canonical_schema(plan.schema().as_arrow());
            let mut columns = query::columns(&schema, &OutputNames::none());
            columns.pop();
            let names = reading.names.apply(columns.iter().map(|column| column.name.clone()));
            for (column, name) in columns.iter_mut().zip(names) {
                column.name = name;
            }
            origins::mark(&mut columns, &origins);
            columns.iter().all(|column| types::sql_type_of_oid(column.type_oid).is_some()).then_some(())?;
            program(Work::Lock { query, lock, wait }, Some(columns))
        }
        command @ (Command::Insert(..) | Command::Update { .. } | Command::Delete { .. }) => {
            let (reading, _) = Source::read(facts, command, &described.parameters).ok()?;
            let (updates, inserts) = (matches!(command, Command::Update { .. }), matches!(reading, Reading::Insert(_)));
            let source = reading.plan(&state, facts, fields).ok()?;
            if source.has_conflict() {
                return None;
            }
            let version = source.version.clone();
            let def = version.def.clone();
            if def.partitioning.is_some() || def.partition_of.is_some() {
                return None;
            }
            let plan = analyzed(&state, source.plan.clone())?;
            let schema = types::canonical_schema(plan.schema().as_arrow());
            let columns = source.columns(&schema);
            let (inner, returning) = match (&plan, source.returns()) {
                (LogicalPlan::Projection(top), true) => (top.input.as_ref(), Some(top)),
                (_, true) => return None,
                (plan, false) => (plan, None),
            };
            // A type may be settled after the columns' casts were planned: the general path casts what comes out.
            if (inserts || updates) && !is_as_held(&def, inner.schema(), usize::from(updates)) {
                return None;
            }
            let slots: Vec<Option<Expr>> = (0..def.columns.len()).map(|slot| Some(Expr::Slot(slot))).collect();
            let inputs: Vec<Option<Expr>> = match inserts {
                true => slots.clone(),
                false => std::iter::once(None).chain(slots.clone()).collect(),
            };
            let returning = match returning {
                None => None,
                Some(top) => {
                    output_types(top.schema.as_ref())?;
                    if inputs.len() != inner.schema().fields().len() {
                        return None;
                    }
                    let of = |expr| compiler.compile(expr, inner.schema(), &inputs);
                    Some(top.expr[source.width()..].iter().map(of).collect::<Option<Vec<_>>>()?)
                }
            };
            let mut target = Target {
                name: RelationName::from(&*def),
                table: Arc::downgrade(version.table()),
                fitted: fitted_of(&def),
                required: (0..def.columns.len()).filter(|column| !def.columns[*column].nullable).collect(),
                checks: checks_of(facts, &compiler, &def, &slots)?,
                returning,
                def,
            };
            if inserts {
                let rows = values(&compiler, inner)?;
                let rows = rows.into_iter().map(|row| row.into_iter().collect()).collect::<Option<Vec<Vec<_>>>>()?;
                rows.iter().all(|row| row.len() == target.def.columns.len()).then_some(())?;
                return program(Work::Insert { target, rows }, columns);
            }
            let mut query = compiler.relation(inner)?.query()?;
            let plain = query.sources.len() == 1
                && query.aggregate.is_none()
                && query.sort.is_empty()
                && query.skip.is_none()
                && query.fetch.is_none();
            (plain && matches!(query.outputs.first(), Some(Some(Expr::RowId(0))))).then_some(())?;
            query.outputs.remove(0);
            if !updates {
                query.outputs.clear();
                return program(Work::Delete { query, target }, columns);
            }
            query.outputs.truncate(target.def.columns.len());
            query.outputs.iter().all(Option::is_some).then_some(())?;
            // What stays is as it was.
            target.fitted.retain(
                |(text, _)| !matches!(&query.outputs[*text], Some(Expr::Column { column, .. }) if column == text),
            );
            program(Work::Update { query, target }, columns)
        }
        _ => None,
    }
}

/// Whether a plan's outputs from `first` on are of the types in which the table holds its columns.
fn is_as_held(def: &TableDef, schema: &DFSchema, first: usize) -> bool {
    let outputs = schema.fields().iter().skip(first);
    schema.fields().len() >= first + def.columns.len()
        && def.columns.iter().zip(outputs).all(|(column, output)| {
            let held = tidepool_table::arrow_type(column.sql_type);
            *output.data_type() == held || is_text(output.data_type()) && is_text(&held)
        })
}

/// Columns whose values are made to fit: texts are cut or read, timestamps rounded.
fn fitted_of(def: &TableDef) -> Vec<(usize, SqlType)> {
    let is_fitted = |sql_type: SqlType| {
        matches!(sql_type, SqlType::Varchar { length_max: Some(_) } | SqlType::Char { .. } | SqlType::Uuid)
            || sql_type.is_json()
            || sql_type.rounds_to().is_some()
    };
    let columns = def.columns.iter().enumerate();
    columns.filter(|(_, column)| is_fitted(column.sql_type)).map(|(place, column)| (place, column.sql_type)).collect()
}

/// A table's constraints over its columns as slots, in the order of their names.
fn checks_of(
    facts: &Arc<SessionFacts>,
    compiler: &Compiler<'_>,
    def: &TableDef,
    slots: &[Option<Expr>],
) -> Option<Vec<Expr>> {
    if def.checks.is_empty() {
        return Some(Vec::new());
    }
    let plan = crate::row_expressions::analyzed_checks(facts, def).ok()?;
    let LogicalPlan::Projection(projection) = &plan else { return None };
    let of = |expr| compiler.compile(expr, projection.input.schema(), slots);
    projection.expr.iter().map(of).collect()
}

/// The rows of `VALUES`, and what is made of each.
fn values(compiler: &Compiler<'_>, plan: &LogicalPlan) -> Option<Vec<Vec<Option<Expr>>>> {
    match plan {
        LogicalPlan::Values(values) => {
            let schema = DFSchema::empty();
            let row = |row: &Vec<datafusion::logical_expr::Expr>| {
                row.iter().map(|expr| compiler.compile(expr, &schema, &[])).collect()
            };
            Some(values.values.iter().map(row).collect())
        }
        LogicalPlan::Projection(projection) => {
            let rows = values(compiler, &projection.input)?;
            let row = |inputs: Vec<Option<Expr>>| -> Vec<Option<Expr>> {
                let of = |expr| compiler.compile(expr, projection.input.schema(), &inputs);
                projection.expr.iter().map(of).collect()
            };
            Some(rows.into_iter().map(row).collect())
        }
        LogicalPlan::SubqueryAlias(alias) => values(compiler, &alias.input),
        LogicalPlan::EmptyRelation(empty) if empty.produce_one_row => Some(vec![Vec::new()]),
        _ => None,
    }
}

/// The sequence that a name or number means, if the session may take its values.
fn sequence_of(facts: &Arc<SessionFacts>, name: &str) -> Option<Arc<Sequence>> {
    let relation = match name.parse::<u32>() {
        Ok(oid) => resolve::by_id(facts, TableId(oid))?,
        Err(_) => return None,
    };
    crate::privileges::check_sequence(facts, &relation, &[Privileges::USAGE, Privileges::UPDATE]).ok()?;
    match relation {
        Relation::Sequence(sequence) => Some(sequence),
        _ => None,
    }
}
