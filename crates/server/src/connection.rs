//! One connection: messages in, answers out.
//!
//! The protocol has two ways to run SQL. A simple query is one message with any number of statements, answered as a
//! whole. The extended protocol takes a statement apart (Parse, Bind, Describe, Execute, Close) and lets a client send
//! ahead; an error then skips everything up to the next Sync. Either way, statements that are sent together and are not
//! in a transaction block share one implicit transaction.

mod carried;
mod copying;
mod routed;
mod settled;
mod texts;

use crate::encode::{DirectRows, FLUSH_BYTES, RowEncoder};
use crate::handover::SharedClient;
use crate::parameters;
use crate::passing::Passenger;
use crate::portal::{EncodedBatch, Portal, PortalState, Prepared, Rows, expand_formats};
use crate::protocol::backend;
use crate::protocol::frontend::{Bind, Message, Target};
use crate::routing::Routes;
use crate::service::{Phase, Registration, Service};
use crate::startup::Failure;
use crate::wire::Wire;
use futures::FutureExt;
use settled::{Ending, Settling};
use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};
use texts::{abbreviate, ends_transaction, rows_loaded};
use tidepool_base::{Error, Result, SqlState, caught, panic_point, panicked};
use tidepool_heap::{ClientAccount, Held, Reservation};
use tidepool_planner::{
    CancelHandle, Datum, DirectDone, DirectStatement, Outcome, PortablePrepared, ReadAhead, ResultColumn, Session,
    Statement, TransactionStatus, plain_error,
};
use tokio::sync::watch;

/// A cancelled statement whose client is gone has this long to end by itself before it is dropped where it stands.
const ABANDON_AFTER: Duration = Duration::from_secs(10);

/// What every connection takes: its session, and buffers as far as they are not counted.
const CONNECTION_BYTES: u64 = 64 * 1024;

/// What a prepared statement or portal takes beside what it is made of, and each value.
const ENTRY_BYTES: u64 = 256;
const VALUE_BYTES: u64 = 48;

/// A portal that gave some of its rows: its plan, its heap, and what carries its batches.
const OPEN_BYTES: u64 = 64 * 1024;

/// An unnamed statement of fewer bytes is not counted.
const UNNAMED_BYTES: u64 = 64 * 1024;

/// Longer texts are parsed apart from the thread, which others need.
const LONG_TEXT_BYTES: usize = 64 * 1024;

pub(crate) struct Connection {
    service: Arc<Service>,
    wire: Wire,
    session: Session,
    cancel: CancelHandle,
    account: Arc<ClientAccount>,
    /// What every connection takes.
    _held: Reservation,
    registration: Registration,
    phase: watch::Receiver<Phase>,
    statements: HashMap<String, Arc<Prepared>>,
    /// Those that another host prepared, until they are used.
    carried: HashMap<String, PortablePrepared>,
    portals: HashMap<String, Portal>,
    /// After an error in the extended protocol, until the next Sync.
    skipping: bool,
    /// An implicit transaction is open since the last Sync.
    implicit_block: bool,
    /// Since when it has been the client's turn, if it is.
    idle_since: Option<Instant>,
    /// It may go over to another host.
    passenger: Option<Passenger>,
    /// What the client asked first has ended by this already.
    fails: Option<Error>,
    /// What it puts down of itself for a process that comes after this one.
    settling: Option<Settling>,
    /// Its transactions that only read may run at another host.
    routes: Option<Routes>,
    /// Ends with it, behind all else.
    shared: Option<SharedClient>,
}

/// How a statement, or a message, went wrong: for the statement alone or for the connection.
enum Trouble {
    Statement(Error),
    Connection(Failure),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        Trouble::Statement(error)
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Trouble {
        Trouble::Connection(failure)
    }
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Trouble {
        Trouble::Connection(error.into())
    }
}

/// What a finished statement is counted as.
struct Completed {
    tag: String,
    rows_loaded: u64,
}

/// Runs `work` while watching for the client's going away, which cancels it. It is lent, as moving a statement's state takes longer than
/// many a statement. A panic in it is its statement's error.
async fn attended<T>(
    wire: &mut Wire,
    cancel: &CancelHandle,
    work: Pin<&mut impl Future<Output = T>>,
) -> Result<T, Trouble> {
    let mut work = AssertUnwindSafe(work).catch_unwind();
    tokio::select! {
        biased;
        value = &mut work => return value.map_err(|panic| panicked(panic.as_ref()).into()),
        () = wire.gone() => cancel.cancel(),
    }
    let _ = tokio::time::timeout(ABANDON_AFTER, work).await;
    Err(Failure::Gone.into())
}

/// Lets the thread's other connections go first whose messages are there already: then answers go out together. A client that sleeps is
/// woken by the first of them that is its own, and would take the processor from the statements of the others.
async fn behind_the_ready() {
    let mut is_behind = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut is_behind, true) {
            return Poll::Ready(());
        }
        // To the end of the thread's queue.
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Resolves once connections are asked for something else.
async fn asked(passenger: &mut Option<Passenger>) {
    match passenger {
        // It does not end before this.
        Some(passenger) => _ = passenger.stage.changed().await,
        None => std::future::pending().await,
    }
}

impl Connection {
    /// `wire.output` holds what start-up has to say. An error where there is no memory for one more, with the wire.
    #[expect(clippy::result_large_err, reason = "once a connection")]
    pub(crate) fn new(
        service: Arc<Service>,
        mut wire: Wire,
        mut session: Session,
        registration: Registration,
    ) -> std::result::Result<Connection, (Wire, Error)> {
        let account = service.planner.database().client_memory().account();
        let held = match account.reserve(Held::Sessions, CONNECTION_BYTES) {
            Ok(held) => held,
            Err(error) => return Err((wire, error)),
        };
        wire.charge(&account);
        session.set_account(account.clone());
        backend::backend_key_data(&mut wire.output, registration.process_id, &registration.secret);
        Ok(Connection::with(service, wire, session, registration, (account, held)))
    }

    /// One that has said nothing yet. `held`: the account, and what the connection itself takes of it.
    fn with(
        service: Arc<Service>,
        wire: Wire,
        session: Session,
        registration: Registration,
        (account, held): (Arc<ClientAccount>, Reservation),
    ) -> Connection {
        Connection {
            account,
            _held: held,
            wire,
            cancel: session.cancel_handle(),
            session,
            registration,
            phase: service.phase.subscribe(),
            routes: service.routing.get().map(|routing| routing.routes()),
            service,
            statements: HashMap::new(),
            carried: HashMap::new(),
            portals: HashMap::new(),
            skipping: false,
            implicit_block: false,
            idle_since: None,
            passenger: None,
            fails: None,
            settling: None,
            shared: None,
        }
    }

    pub(crate) fn say_fatal(&mut self, error: &Error) {
        tracing::info!(connection = self.registration.process_id, "connection ends: {error}");
        backend::error_response(&mut self.wire.output, "FATAL", error);
    }

    pub(crate) async fn close(&mut self) {
        self.wire.close().await;
    }

    /// Answers messages until the connection ends.
    pub(crate) async fn run(&mut self) -> Failure {
        match self.run_messages().await {
            Ok(never) => match never {},
            Err(failure) => failure,
        }
    }

    async fn run_messages(&mut self) -> Result<std::convert::Infallible, Failure> {
        match self.idle_since {
            None => self.ready().await?,
            // One that came from another host is ready, and may have had something to say.
            Some(_) => {
                self.settle();
                self.wire.flush().await?;
            }
        }
        loop {
            let message = self.next_message().await?;
            let mut charge = self.wire.take_charge();
            match message {
                Message::Terminate => return Err(Failure::Gone),
                Message::Sync => self.sync().await?,
                Message::Query(sql) => {
                    self.skipping = false;
                    match self.fails.take() {
                        None => self.simple_query(&sql).await?,
                        Some(error) => {
                            self.report(&error);
                            self.ready().await?;
                        }
                    }
                }
                Message::Malformed { extended: false, error } => {
                    self.skipping = false;
                    self.report(&error);
                    self.ready().await?;
                }
                Message::FunctionCall => {
                    self.report(&Error::unsupported("function calls by the protocol's own message are not supported"));
                    self.ready().await?;
                }
                // Left over from a COPY that ended in an error.
                Message::CopyData(_) | Message::CopyDone | Message::CopyFail(_) => (),
                Message::Password(_) => {
                    let message = "unexpected password message";
                    return Err(Error::new(SqlState::PROTOCOL_VIOLATION, message).into());
                }
                _ if self.skipping => (),
                message => match self.extended(message, &mut charge).await {
                    Ok(()) => (),
                    Err(Trouble::Connection(failure)) => return Err(failure),
                    Err(Trouble::Statement(error)) => {
                        self.skipping = true;
                        self.report(&error);
                        // A client that sent Flush waits for this before it sends its Sync.
                        self.wire.flush().await?;
                    }
                },
            }
            if self.wire.output.len() >= FLUSH_BYTES {
                self.wire.flush().await?;
            }
        }
    }

    /// Waits for a message, and for the server's stop.
    async fn next_message(&mut self) -> Result<Message, Failure> {
        loop {
            if self.is_routed() {
                self.route().await?;
            }
            if *self.phase.borrow_and_update() == Phase::Fenced {
                let message = "another host has taken the database over";
                let hint = "Connect again, to the new primary.";
                return Err(Error::new(SqlState::CRASH_SHUTDOWN, message).with_hint(hint).into());
            }
            if *self.phase.borrow() != Phase::Running || self.session.is_terminated() {
                let message = "terminating connection due to administrator command";
                return Err(Error::new(SqlState::ADMIN_SHUTDOWN, message).into());
            }
            let mut idle_from = None;
            if self.passenger.as_ref().is_some_and(Passenger::is_asked) {
                idle_from = self.idle_from();
                self.go_over().await?;
            }
            if let Some(message) = self.wire.message()? {
                self.idle_since = None;
                return Ok(message);
            }
            let idle = self.idle_since.and_then(|since| Some((since, self.session.idle_timeout()?)));
            let place_timeout = self.session.place_timeout();
            let unused = async {
                match place_timeout {
                    Some(timeout) => tokio::time::sleep(timeout).await,
                    None => std::future::pending().await,
                }
            };
            let becomes_idle = async {
                match idle_from {
                    Some(from) => tokio::time::sleep_until(from.into()).await,
                    None => std::future::pending().await,
                }
            };
            let expired = async {
                match idle {
                    Some((since, (timeout, error))) => {
                        tokio::time::sleep_until((since + timeout).into()).await;
                        error
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                filled = self.wire.fill() => filled?,
                _ = self.phase.changed() => (),
                () = asked(&mut self.passenger) => (),
                () = becomes_idle => (),
                () = self.session.terminated() => (),
                () = unused => self.session.give_up_place(),
                error = expired => return Err(error.into()),
            }
        }
    }

    /// Tells an error to the client and fails the transaction.
    fn report(&mut self, error: &Error) {
        tracing::debug!(connection = self.registration.process_id, "{error:?}");
        self.session_changes();
        self.session.fail();
        self.send_notices();
        backend::error_response(&mut self.wire.output, "ERROR", &plain_error(error));
    }

    fn send_notices(&mut self) {
        for notice in self.session.take_notices() {
            backend::notice_response(&mut self.wire.output, notice.severity, &plain_error(&notice.error));
        }
    }

    async fn ready(&mut self) -> Result<(), Failure> {
        self.send_notices();
        for (name, value) in self.session.take_changed_settings() {
            backend::parameter_status(&mut self.wire.output, &name, &value);
        }
        backend::ready_for_query(&mut self.wire.output, self.session.transaction_status());
        self.settle();
        behind_the_ready().await;
        self.wire.flush().await?;
        self.idle_since = Some(Instant::now());
        Ok(())
    }

    async fn simple_query(&mut self, sql: &str) -> Result<(), Failure> {
        // As in PostgreSQL, the unnamed statement and portal do not outlive a simple query.
        if self.statements.remove("").is_some() | self.carried.remove("").is_some() {
            self.session_changes();
        }
        self.portals.remove("");
        self.prepare_carried(sql).await?;
        let outcome = match self.run_text(sql).await {
            Ok(true) => Ok(()),
            Ok(false) => self.run_statements(sql).await,
            Err(trouble) => Err(trouble),
        };
        let ended = match outcome {
            Ok(()) => self.end_implicit_block().await,
            Err(Trouble::Statement(error)) => {
                self.report(&error);
                // Rolls back: the report failed it.
                self.end_implicit_block().await.or(Ok(()))
            }
            Err(Trouble::Connection(failure)) => return Err(failure),
        };
        if let Err(error) = ended {
            self.report(&error);
        }
        if self.session.transaction_status() == TransactionStatus::Idle {
            self.portals.clear();
        }
        self.ready().await
    }

    /// Also of one that a statement began for itself and that a panic kept it from ending.
    async fn end_implicit_block(&mut self) -> Result<()> {
        if std::mem::take(&mut self.implicit_block) {
            // All that there is of the answer.
            self.expect_commit(Ending::Ready);
        }
        self.session.end_implicit_block().await
    }

    fn begin_implicit_block(&mut self) {
        if !self.implicit_block && self.session.transaction_status() == TransactionStatus::Idle {
            self.session.begin_implicit_block();
            self.implicit_block = true;
        }
    }

    async fn run_statements(&mut self, sql: &str) -> Result<(), Trouble> {
        let _room = self.session.room_for(sql)?;
        self.session.set_has_room(_room.is_some());
        let ran = self.run_parsed(sql).await;
        self.session.set_has_room(false);
        ran
    }

    async fn run_parsed(&mut self, sql: &str) -> Result<(), Trouble> {
        let statements = self.parsed(sql).await?;
        let statements: Vec<Statement> = statements.into_iter().filter(|statement| !statement.is_empty()).collect();
        if statements.is_empty() {
            backend::empty_query_response(&mut self.wire.output);
            return Ok(());
        }
        if statements.len() > 1 {
            self.begin_implicit_block();
        }
        // Of a text of one, it was tried to go to its rows.
        let is_tried = statements.len() == 1;
        for statement in &statements {
            let start = Instant::now();
            let result = self.run_simple(statement, is_tried).await;
            self.count(statement.text(), start, &result);
            result?;
            if self.wire.output.len() >= FLUSH_BYTES {
                self.wire.flush().await?;
            }
        }
        Ok(())
    }

    async fn parsed(&mut self, sql: &str) -> Result<Vec<Statement>, Trouble> {
        if sql.len() < LONG_TEXT_BYTES {
            return Ok(caught(|| self.session.parse(sql))?);
        }
        let text = sql.to_owned();
        let parsed = tokio::task::spawn_blocking(move || tidepool_planner::parse(&text)).await;
        Ok(parsed.unwrap_or_else(|_| Err(Error::internal("the parser failed")))?)
    }

    /// Runs a text whose statement goes to its rows by itself. False: it is another one.
    async fn run_text(&mut self, sql: &str) -> Result<bool, Trouble> {
        let Some(direct) = attended(&mut self.wire, &self.cancel, pin!(self.session.direct_of_text(sql))).await? else {
            return Ok(false);
        };
        let start = Instant::now();
        let columns = direct.columns().cloned();
        let formats = vec![0; columns.as_ref().map_or(0, |columns| columns.len())];
        let result = match self.run_direct(&direct, &[], columns.as_deref(), &formats, true).await {
            Ok(None) => return Ok(false),
            Ok(Some(done)) => Ok(Some(self.complete_direct(done))),
            Err(trouble) => Err(trouble),
        };
        self.count(sql, start, &result);
        result.map(|_| true)
    }

    /// Runs a statement that goes to its rows by itself. `None`: it is to be planned after all.
    async fn run_direct(
        &mut self,
        direct: &DirectStatement,
        values: &[Datum<'static>],
        columns: Option<&[ResultColumn]>,
        formats: &[i16],
        describes: bool,
    ) -> Result<Option<DirectDone>, Trouble> {
        let settings = self.session.shared_text_settings();
        let is_written = direct.writes() && self.session.transaction_status() == TransactionStatus::Idle;
        if is_written {
            self.expect_commit(if describes { Ending::Tag } else { self.ending_of_extended() });
        }
        // Nobody else writes meanwhile.
        let mut output = std::mem::take(&mut self.wire.output);
        let start = output.len();
        if describes && let Some(columns) = columns {
            backend::row_description(&mut output, columns, formats);
        }
        let keeper = self.settling.as_ref().filter(|_| is_written).map(|settling| &**settling.keeper());
        let mut rows =
            DirectRows::new(&mut output, columns.unwrap_or_default(), formats, &settings, &self.account, keeper);
        let ran =
            attended(&mut self.wire, &self.cancel, pin!(self.session.run_direct(direct, values, &mut rows))).await;
        if !matches!(ran, Ok(Ok(Some(_)))) {
            output.truncate(start);
        }
        self.wire.output = output;
        // For as long as the client takes to read it. What there is no room for is sent all the same, as it is there.
        let _ = self.wire.reserve_output(0);
        let done = ran??;
        self.worked_in_block();
        if done.is_some() && self.wire.output.len() >= FLUSH_BYTES {
            self.wire.flush().await?;
        }
        Ok(done)
    }

    fn complete_direct(&mut self, done: DirectDone) -> Completed {
        let rows_loaded = if done.tag.starts_with("INSERT") { done.rows } else { 0 };
        self.complete(format!("{} {}", done.tag, done.rows), rows_loaded)
    }

    /// Counts a statement that ran from `start` on.
    fn count(&self, text: &str, start: Instant, result: &Result<Option<Completed>, Trouble>) {
        let elapsed = start.elapsed();
        let metrics = &self.service.metrics;
        match result {
            Ok(Some(completed)) => {
                metrics.statement(&completed.tag, SqlState::SUCCESSFUL_COMPLETION, elapsed);
                metrics.rows_loaded(completed.rows_loaded);
            }
            // Suspended: counted when it ends.
            Ok(None) => (),
            Err(Trouble::Statement(error)) => metrics.statement(text, error.code(), elapsed),
            Err(Trouble::Connection(_)) => metrics.statement(text, SqlState::CONNECTION_FAILURE, elapsed),
        }
        if let Some(slow) = self.service.options.slow_statement
            && elapsed >= slow
        {
            tracing::warn!(
                connection = self.registration.process_id,
                ms = elapsed.as_millis() as u64,
                "slow statement: {}",
                abbreviate(text)
            );
        }
    }

    /// `is_tried`: it is known not to go to its rows by itself.
    async fn execute(
        &mut self,
        statement: &Statement,
        parameters: &[arrow::array::ArrayRef],
        is_tried: bool,
        ending: Ending,
    ) -> Result<Outcome, Trouble> {
        tracing::trace!(connection = self.registration.process_id, "execute: {}", statement.text());
        self.executes(statement, ending);
        Ok(match is_tried {
            true => {
                attended(&mut self.wire, &self.cancel, pin!(self.session.execute_planned(statement, parameters)))
                    .await??
            }
            false => {
                attended(&mut self.wire, &self.cancel, pin!(self.session.execute(statement, parameters))).await??
            }
        })
    }

    async fn run_simple(&mut self, statement: &Statement, is_tried: bool) -> Result<Option<Completed>, Trouble> {
        if let Some(tag) = self.deallocate(statement.text()) {
            backend::command_complete(&mut self.wire.output, tag);
            return Ok(Some(Completed { tag: tag.to_owned(), rows_loaded: 0 }));
        }
        let ending = if is_tried { Ending::Tag } else { Ending::None };
        match self.execute(statement, &[], is_tried, ending).await? {
            Outcome::Rows { columns, batches, tag } => {
                self.send_notices();
                let formats = vec![0; columns.len()];
                backend::row_description(&mut self.wire.output, &columns, &formats);
                let mut rows = Rows::new(columns, formats, ReadAhead::new(batches), tag);
                let (sent, _) = self.send_rows(&mut rows, u64::MAX).await?;
                Ok(Some(self.complete(format!("{tag} {sent}"), 0)))
            }
            outcome => self.finish(statement, outcome).await.map(Some),
        }
    }

    /// The part of an outcome that is the same in both protocols.
    async fn finish(&mut self, statement: &Statement, outcome: Outcome) -> Result<Completed, Trouble> {
        match outcome {
            Outcome::Rows { .. } => Err(Error::internal("rows where none were expected").into()),
            Outcome::Command { tag } => {
                let rows_loaded = rows_loaded(&tag, statement.text());
                Ok(self.complete(tag, rows_loaded))
            }
            Outcome::CopyIn(copy) => {
                let skipped = copy.skipped.clone();
                let rows = self.copy_in(copy).await?;
                self.session.rows_skipped(skipped.load(Ordering::Relaxed));
                Ok(self.complete(format!("COPY {rows}"), rows))
            }
            Outcome::CopyOut(copy) => {
                let rows = self.copy_out(copy).await?;
                Ok(self.complete(format!("COPY {rows}"), 0))
            }
            Outcome::Empty => {
                backend::empty_query_response(&mut self.wire.output);
                Ok(Completed { tag: String::new(), rows_loaded: 0 })
            }
        }
    }

    fn complete(&mut self, tag: String, rows_loaded: u64) -> Completed {
        self.send_notices();
        backend::command_complete(&mut self.wire.output, &tag);
        if tag.starts_with("DISCARD ALL") || tag == "DEALLOCATE ALL" {
            self.statements.clear();
            self.carried.clear();
        }
        Completed { tag, rows_loaded }
    }

    /// `DEALLOCATE` of a statement that was prepared by the protocol: clients expect both kinds in one name space. The
    /// session knows those prepared in SQL.
    fn deallocate(&mut self, text: &str) -> Option<&'static str> {
        let mut words = text.split_ascii_whitespace();
        if !words.next()?.eq_ignore_ascii_case("deallocate") {
            return None;
        }
        let mut name = words.next()?;
        if name.eq_ignore_ascii_case("prepare") {
            name = words.next()?;
        }
        if words.next().is_some() {
            return None;
        }
        let name = name.trim_end_matches(';');
        let name = match name.strip_prefix('"').and_then(|name| name.strip_suffix('"')) {
            Some(quoted) => quoted.replace("\"\"", "\""),
            None => name.to_lowercase(),
        };
        if self.session.transaction_status() == TransactionStatus::Failed {
            return None;
        }
        self.session_changes();
        self.session.forget_statement(&name);
        let is_carried = self.carried.remove(&name).is_some();
        (self.statements.remove(&name).is_some() || is_carried).then_some("DEALLOCATE")
    }

    /// Sends up to `rows_max` rows: how many, and whether those were all.
    async fn send_rows(&mut self, rows: &mut Rows, rows_max: u64) -> Result<(u64, bool), Trouble> {
        let settings = self.session.text_settings();
        let mut sent = 0;
        loop {
            if let Some(batch) = &mut rows.batch {
                let start = self.wire.output.len();
                let encoded = caught(|| batch.encoder.encode(&mut self.wire, rows_max - sent));
                // Nothing of a message that was not finished.
                sent += encoded.inspect_err(|_| self.wire.output.truncate(start))?;
                if self.wire.output.len() >= FLUSH_BYTES {
                    self.wire.flush().await?;
                }
                if !batch.encoder.is_done() {
                    if sent == rows_max {
                        return Ok((sent, false));
                    }
                    continue;
                }
                rows.batch = None;
            }
            // Before the next batch is asked for: a client that wants five of five rows is told of the end only when it
            // asks again, as with PostgreSQL.
            if sent == rows_max {
                return Ok((sent, false));
            }
            match attended(&mut self.wire, &self.cancel, pin!(rows.batches.next())).await? {
                Some(batch) => {
                    let batch = batch?;
                    let encoder = caught(|| RowEncoder::new(&batch, &rows.columns, &rows.formats, &settings))?;
                    rows.batch = Some(EncodedBatch { encoder, rows: batch });
                }
                None => return Ok((sent, true)),
            }
        }
    }

    /// `charge`: what the message is charged with, to be held as long as it is.
    async fn extended(&mut self, message: Message, charge: &mut Option<Reservation>) -> Result<(), Trouble> {
        if let Some(error) = self.fails.take() {
            return Err(error.into());
        }
        match message {
            Message::Parse { name, sql, parameter_oids } => self.parse(name, &sql, &parameter_oids).await,
            Message::Bind(bind) => {
                self.prepare_again(&bind.statement).await?;
                Ok(caught(|| self.bind(bind, charge))?)
            }
            Message::Describe { target: Target::Statement, name } => {
                self.prepare_again(&name).await?;
                Ok(self.describe_statement(&name)?)
            }
            Message::Describe { target: Target::Portal, name } => Ok(self.describe_portal(&name)?),
            Message::Execute { portal, rows_max } => self.execute_portal(&portal, rows_max).await,
            Message::Close { target, name } => {
                self.session_changes();
                match target {
                    Target::Statement => {
                        self.session.forget_statement(&name);
                        self.statements.remove(&name);
                        self.carried.remove(&name);
                    }
                    Target::Portal => drop(self.portals.remove(&name)),
                }
                backend::close_complete(&mut self.wire.output);
                Ok(())
            }
            Message::Flush => Ok(self.wire.flush().await?),
            Message::Malformed { error, .. } => Err(error.into()),
            _ => Err(Error::internal("message out of place").into()),
        }
    }

    async fn parse(&mut self, name: String, sql: &str, parameter_oids: &[u32]) -> Result<(), Trouble> {
        if name.is_empty() {
            self.statements.remove("");
            self.carried.remove("");
        } else if self.statements.contains_key(&name) || self.carried.contains_key(&name) {
            let message = format!("prepared statement \"{name}\" already exists");
            return Err(Error::new(SqlState::DUPLICATE_PREPARED_STATEMENT, message).into());
        }
        self.prepare_as(name, sql, parameter_oids).await?;
        backend::parse_complete(&mut self.wire.output);
        Ok(())
    }

    async fn prepare_as(&mut self, name: String, sql: &str, parameter_oids: &[u32]) -> Result<(), Trouble> {
        self.session_changes();
        let preparing = self.session.prepare_statement(sql, parameter_oids);
        let of = attended(&mut self.wire, &self.cancel, pin!(preparing)).await??;
        // An unnamed one is the next one's place, and most are small.
        let bytes = of.bytes() + ENTRY_BYTES + 2 * name.len() as u64;
        let held = match name.is_empty() && bytes < UNNAMED_BYTES {
            true => None,
            false => Some(self.account.reserve(Held::Sessions, bytes)?),
        };
        if !name.is_empty() {
            self.session.name_statement(&name, &of);
        }
        let prepared = Prepared { name: name.clone(), of, oids: parameter_oids.to_vec(), _held: held };
        self.statements.insert(name, Arc::new(prepared));
        Ok(())
    }

    fn prepared(&self, name: &str) -> Result<&Arc<Prepared>> {
        self.statements.get(name).ok_or_else(|| {
            let message = match name {
                "" => "unnamed prepared statement does not exist".to_owned(),
                name => format!("prepared statement \"{name}\" does not exist"),
            };
            Error::new(SqlState::INVALID_SQL_STATEMENT_NAME, message)
        })
    }

    fn bind(&mut self, bind: Bind, charge: &mut Option<Reservation>) -> Result<()> {
        let prepared = self.prepared(&bind.statement)?.clone();
        panic_point("server.bind");
        let description = &prepared.of.description;
        let wanted = description.parameters.len();
        if bind.parameters.len() != wanted {
            let message = format!(
                "bind message supplies {} parameters, but prepared statement \"{}\" requires {wanted}",
                bind.parameters.len(),
                prepared.name
            );
            return Err(Error::new(SqlState::PROTOCOL_VIOLATION, message));
        }
        if bind.portal.is_empty() {
            self.portals.remove("");
        } else if self.portals.contains_key(&bind.portal) {
            let message = format!("cursor \"{}\" already exists", bind.portal);
            return Err(Error::new(SqlState::DUPLICATE_CURSOR, message));
        }
        // What is wrong with them is said now.
        let values = match prepared.of.direct() {
            Some(_) => parameters::decode_values(
                &bind.parameters,
                &bind.parameter_formats,
                &description.parameters,
                &self.session.shared_text_settings(),
            )?,
            None => {
                self.decode(&prepared, &bind.parameters, &bind.parameter_formats)?;
                Vec::new()
            }
        };
        if let Some(columns) = &description.columns {
            expand_formats(&bind.result_formats, columns.len())?;
        }
        let held = match bind.portal.is_empty() {
            true => None,
            // The whole message, as the values are in it.
            false => {
                let values =
                    bind.parameters.iter().flatten().map(|value| value.len() as u64 + VALUE_BYTES).sum::<u64>();
                let formats = 2 * (bind.parameter_formats.len() + bind.result_formats.len()) as u64;
                let bytes = ENTRY_BYTES + 2 * bind.portal.len() as u64 + 2 * values + formats;
                Some(self.account.reserve(Held::Sessions, bytes)?)
            }
        };
        let portal = Portal {
            _held: [held, charge.take()],
            prepared: Some(prepared),
            parameters: bind.parameters,
            parameter_formats: bind.parameter_formats,
            values,
            result_formats: bind.result_formats,
            state: PortalState::Ready,
        };
        self.portals.insert(bind.portal, portal);
        backend::bind_complete(&mut self.wire.output);
        Ok(())
    }

    fn decode(
        &self,
        prepared: &Prepared,
        parameters: &[Option<bytes::Bytes>],
        formats: &[i16],
    ) -> Result<Vec<arrow::array::ArrayRef>> {
        let oids = &prepared.of.description.parameters;
        parameters::decode(parameters, formats, oids, &self.session.shared_text_settings())
    }

    /// A portal may be gone with its transaction, which was another process's.
    fn no_portal(&self, name: &str) -> Error {
        let unknown = || Error::new(SqlState::INVALID_CURSOR_NAME, format!("portal \"{name}\" does not exist"));
        self.session.take_lost().unwrap_or_else(unknown)
    }

    fn describe_statement(&mut self, name: &str) -> Result<()> {
        let prepared = self.prepared(name)?.clone();
        let description = &prepared.of.description;
        backend::parameter_description(&mut self.wire.output, &description.parameters);
        self.describe_columns(description.columns.as_deref(), &[])
    }

    fn describe_portal(&mut self, name: &str) -> Result<()> {
        let (columns, formats) = match self.portals.get(name) {
            Some(Portal { prepared: Some(prepared), result_formats, .. }) => {
                (prepared.of.description.columns.clone(), result_formats.clone())
            }
            Some(Portal { state: PortalState::Open(rows), .. }) => (Some(rows.columns.clone()), rows.formats.clone()),
            Some(_) => (None, Vec::new()),
            // `DECLARE name CURSOR` makes a portal too.
            None => (Some(self.session.cursor_columns(name).ok_or_else(|| self.no_portal(name))?.to_vec()), Vec::new()),
        };
        self.describe_columns(columns.as_deref(), &formats)
    }

    fn describe_columns(&mut self, columns: Option<&[ResultColumn]>, formats: &[i16]) -> Result<()> {
        match columns {
            Some(columns) => {
                let formats = expand_formats(formats, columns.len())?;
                backend::row_description(&mut self.wire.output, columns, &formats);
            }
            None => backend::no_data(&mut self.wire.output),
        }
        Ok(())
    }

    async fn execute_portal(&mut self, name: &str, rows_max: u32) -> Result<(), Trouble> {
        // Out of the map while it runs, so that a failure leaves nothing half run behind.
        let mut portal = self.portals.remove(name).ok_or_else(|| self.no_portal(name))?;
        let rows_max = if rows_max == 0 { u64::MAX } else { u64::from(rows_max) };
        let Some(prepared) = portal.prepared.clone() else {
            self.run_open(&mut portal, rows_max).await?;
            self.portals.insert(name.to_owned(), portal);
            return Ok(());
        };
        let Some(statement) = prepared.of.statement.clone() else {
            backend::empty_query_response(&mut self.wire.output);
            self.portals.insert(name.to_owned(), portal);
            return Ok(());
        };
        // A lone statement between two Syncs commits by itself; it takes others around it to need a block.
        if matches!(portal.state, PortalState::Ready) && !Message::next_is_sync(&self.wire.input) {
            self.begin_implicit_block();
        }
        let start = Instant::now();
        let result = self.run_portal(&mut portal, &prepared, &statement, rows_max).await;
        self.count(statement.text(), start, &result);
        result?;
        // Nothing outlives its transaction.
        if self.session.transaction_status() == TransactionStatus::Idle && ends_transaction(statement.text()) {
            self.portals.clear();
        } else {
            self.portals.insert(name.to_owned(), portal);
        }
        Ok(())
    }

    async fn run_portal(
        &mut self,
        portal: &mut Portal,
        prepared: &Prepared,
        statement: &Statement,
        rows_max: u64,
    ) -> Result<Option<Completed>, Trouble> {
        if !matches!(portal.state, PortalState::Ready) {
            return self.run_open(portal, rows_max).await;
        }
        portal.state = PortalState::Done;
        if let Some(tag) = self.deallocate(statement.text()) {
            return Ok(Some(self.complete(tag.to_owned(), 0)));
        }
        if rows_max == u64::MAX
            && let Some(direct) = prepared.of.direct()
        {
            let columns = direct.columns();
            let formats = match columns {
                Some(columns) => expand_formats(&portal.result_formats, columns.len())?,
                None => Vec::new(),
            };
            let columns = columns.map(|columns| &**columns);
            if let Some(done) = self.run_direct(direct, &portal.values, columns, &formats, false).await? {
                if columns.is_some() {
                    portal.state = PortalState::Exhausted { tag: done.tag.into() };
                }
                return Ok(Some(self.complete_direct(done)));
            }
        }
        let parameters = self.decode(prepared, &portal.parameters, &portal.parameter_formats)?;
        let ending = self.ending_of_extended();
        match self.execute(statement, &parameters, true, ending).await? {
            Outcome::Rows { columns, batches, tag } => {
                check_columns(prepared.of.description.columns.as_deref(), &columns)?;
                let formats = expand_formats(&portal.result_formats, columns.len())?;
                portal.state = PortalState::Open(Box::new(Rows::new(columns, formats, ReadAhead::new(batches), tag)));
                self.run_open(portal, rows_max).await
            }
            outcome => self.finish(statement, outcome).await.map(Some),
        }
    }

    /// Sends rows of a portal whose statement runs already, or has. After an error it has none.
    async fn run_open(&mut self, portal: &mut Portal, rows_max: u64) -> Result<Option<Completed>, Trouble> {
        let mut rows = match std::mem::replace(&mut portal.state, PortalState::Done) {
            PortalState::Open(rows) => rows,
            PortalState::Exhausted { tag } => {
                let completed = self.complete(format!("{tag} 0"), 0);
                portal.state = PortalState::Exhausted { tag };
                return Ok(Some(completed));
            }
            PortalState::Done | PortalState::Ready => {
                let message = "portal cannot be run";
                return Err(Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message)
                    .with_detail("It was run already.")
                    .into());
            }
        };
        let (sent, all) = self.send_rows(&mut rows, rows_max).await?;
        if all {
            let completed = self.complete(format!("{} {sent}", rows.tag), 0);
            portal.state = PortalState::Exhausted { tag: rows.tag };
            return Ok(Some(completed));
        }
        backend::portal_suspended(&mut self.wire.output);
        if rows.held.is_none() {
            rows.held = Some(self.account.reserve(Held::Sessions, OPEN_BYTES)?);
        }
        portal.state = PortalState::Open(rows);
        Ok(None)
    }

    async fn sync(&mut self) -> Result<(), Failure> {
        let skipped = std::mem::take(&mut self.skipping);
        if let Err(error) = self.end_implicit_block().await
            && !skipped
        {
            self.report(&error);
        }
        if self.session.transaction_status() == TransactionStatus::Idle {
            self.portals.clear();
        }
        self.ready().await
    }
}

/// A client decodes rows by what it was told when it prepared the statement.
fn check_columns(described: Option<&[ResultColumn]>, actual: &[ResultColumn]) -> Result<()> {
    let same = described.is_some_and(|described| {
        described.len() == actual.len() && described.iter().zip(actual).all(|(a, b)| a.type_oid == b.type_oid)
    });
    if same { Ok(()) } else { Err(Error::unsupported("cached plan must not change result type")) }
}
