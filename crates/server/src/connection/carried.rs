//! A connection that goes over to another host, and one that came from there.

use super::settled::Settling;
use super::{CONNECTION_BYTES, Connection, Trouble};
use crate::handover::SharedClient;
use crate::kept;
use crate::passing::{BYTES_MAX, Outcome, Stage};
use crate::portal::{Portal, PortalState, Prepared};
use crate::service::{Registration, Service};
use crate::startup::Failure;
use crate::succession::Beginning;
use crate::wire::Wire;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result, SqlState};
use tidepool_heap::{ClientAccount, Held};
use tidepool_planner::{
    PortablePrepared, PortableSession, PortableStatement, ResultColumn, Session, TransactionStatus,
};

/// A connection whose client has asked for nothing for so long is idle.
const IDLE_AFTER: Duration = Duration::from_millis(20);

impl Connection {
    /// Goes on with a session of another host. Of its client nothing is expected, and nothing is said to it.
    pub(crate) fn of_portable(
        service: Arc<Service>,
        mut wire: Wire,
        session: Session,
        registration: Registration,
        account: Arc<ClientAccount>,
        portable: PortableSession,
    ) -> Result<Connection> {
        let held = account.reserve(Held::Sessions, CONNECTION_BYTES)?;
        wire.charge(&account);
        wire.input.extend_from_slice(&portable.input);
        let carried = portable.statements.into_iter().map(|prepared| (prepared.statement.name.clone(), prepared));
        let mut connection = Connection::with(service, wire, session, registration, (account, held));
        connection.carried = carried.collect();
        // They end with their transaction, and are lost with it.
        if connection.session.transaction_status() == TransactionStatus::InTransaction
            && let Some(transaction) = portable.transaction
        {
            for portal in transaction.portals {
                let name = portal.rows.name.clone();
                connection.portals.insert(name, Portal::of_portable(portal, &connection.account)?);
            }
        }
        connection.idle_since = Some(Instant::now());
        Ok(connection)
    }

    /// What its client hears before all else.
    pub(crate) fn begin_with(&mut self, Beginning { output, fails }: Beginning) {
        self.wire.output = output;
        self.fails = fails.then(|| {
            let message = "terminating statement because the server that ran it has ended";
            Error::new(SqlState::SERIALIZATION_FAILURE, message).with_hint("The transaction might succeed if retried.")
        });
    }

    /// Its socket is shared with other hosts until it ends, and it may go over to one of them, if it can.
    pub(crate) fn share(&mut self, shared: Option<SharedClient>) {
        let sharing = shared.as_ref().filter(|_| self.wire.may_go_over());
        self.passenger = sharing.map(|shared| {
            let cancel = self.cancel.clone();
            shared.may_go_over(self.session.id(), move || cancel.give_way())
        });
        if let Some(shared) = &shared
            && let Some(keeper) = shared.keeper()
            && let Ok(settling) = Settling::new(keeper.clone(), &self.account)
            && self.wire.keep(keeper, shared.positions())
        {
            self.session.set_commit_witness(keeper.clone());
            self.settling = Some(settling);
        }
        self.shared = shared;
    }

    /// Between two statements: all that it answered is sent, and nothing is begun but a transaction of its client's, with its portals.
    pub(super) fn is_between(&self) -> bool {
        self.idle_since.is_some()
            && self.wire.is_settled()
            && (self.portals.is_empty() || self.session.transaction_status() != TransactionStatus::Idle)
            && !self.skipping
            && !self.implicit_block
    }

    /// Otherwise the transaction that they belong to does not.
    fn portals_go_over(&self) -> bool {
        self.portals.values().all(Portal::goes_over)
    }

    /// Reads what cursors and portals have left, as far as it may go over.
    async fn settle_results(&mut self) {
        self.session.settle_cursors(BYTES_MAX).await;
        for portal in self.portals.values_mut() {
            if let PortalState::Open(rows) = &mut portal.state {
                // An error is for when the client asks for it.
                _ = rows.batches.settle(BYTES_MAX).await;
            }
        }
    }

    /// `None` while it cannot go over.
    pub(super) fn written(&mut self) -> Option<Vec<u8>> {
        let mut portable = self.session.to_portable(BYTES_MAX)?;
        if self.portals_go_over() {
            portable.transaction = self.session.portable_transaction();
        }
        if let Some(transaction) = &mut portable.transaction {
            transaction.portals = self.portals.iter().filter_map(|(name, portal)| portal.to_portable(name)).collect();
        }
        portable.id = self.home_id().unwrap_or(portable.id);
        // Last of all, as the connection goes on another way from then on if it has TLS.
        (portable.input, portable.tls) = self.wire.write_down()?;
        let mut portable = self.completed(portable);
        let mut bytes = portable.to_bytes();
        if bytes.len() > BYTES_MAX && portable.transaction.take().is_some() {
            // The transaction is lost then, and not the connection.
            bytes = portable.to_bytes();
        }
        Some(bytes).filter(|bytes| bytes.len() <= BYTES_MAX)
    }

    /// As `written`, but for the client's bytes. `ended`: as it is once its transaction is committed.
    pub(super) fn session_bytes(&mut self, ended: bool) -> Option<Vec<u8>> {
        let portable = match ended {
            true => self.session.to_portable_committed(kept::SESSION_BYTES),
            false => self.session.to_portable(kept::SESSION_BYTES),
        }?;
        Some(self.completed(portable).to_bytes())
    }

    /// With what is the connection's own.
    fn completed(&self, mut portable: PortableSession) -> PortableSession {
        portable.process_id = self.registration.process_id;
        portable.secret = self.registration.secret.to_vec();
        let carried = self.carried.values().cloned();
        portable.statements = self.statements.values().map(|prepared| portable_of(prepared)).chain(carried).collect();
        portable
    }

    /// Does what a switch-over asks, where the connection is ready for it. Returns once it stays here.
    pub(super) async fn go_over(&mut self) -> Result<(), Failure> {
        // In any case: what was looked at is waited for no more.
        let Some(stage) = self.passenger.as_mut().map(|passenger| passenger.stage()) else { return Ok(()) };
        if !self.is_between() {
            return Ok(());
        }
        if stage != Stage::Nothing {
            self.settle_results().await;
        }
        let is_whole =
            self.session.is_whole_elsewhere() || (self.session.transaction_goes_over() && self.portals_go_over());
        if stage == Stage::Asking && is_whole && self.is_idle() {
            return self.stop_early().await;
        }
        let stops = match (stage, &self.passenger) {
            (Stage::Nothing | Stage::Asking, _) | (_, None) => false,
            (Stage::Stopping, Some(passenger)) => is_whole || !passenger.has_time(),
            (Stage::Losing, _) => true,
        };
        let portable = if stops { self.written() } else { None };
        let Some(passenger) = &self.passenger else { return Ok(()) };
        let outcome = match portable {
            Some(bytes) => passenger.stop(bytes).await,
            None => {
                match stage {
                    Stage::Nothing => {}
                    _ if stops => passenger.cannot_stop(),
                    _ => passenger.is_between(is_whole),
                }
                Outcome::Stays
            }
        };
        self.went_over(outcome)
    }

    /// When it will have been the client's turn for a while, if it has not yet.
    pub(super) fn idle_from(&self) -> Option<Instant> {
        self.idle_since.map(|since| since + IDLE_AFTER).filter(|from| *from > Instant::now())
    }

    /// Its client has not asked for anything for a while.
    fn is_idle(&self) -> bool {
        self.wire.input.is_empty()
            && self.idle_since.is_some_and(|since| since.elapsed() >= IDLE_AFTER)
            && self.session.transaction_status() == TransactionStatus::Idle
    }

    /// Stops in its turn, while connections are only asked. Returns once its client asks for something, or something else is wanted of it.
    async fn stop_early(&mut self) -> Result<(), Failure> {
        let watched = self.shared.as_ref().and_then(SharedClient::watch);
        let Connection { passenger: Some(passenger), phase, session, .. } = self else { return Ok(()) };
        let Some(socket) = watched else {
            passenger.is_between(true);
            return Ok(());
        };
        let turn = passenger.turn();
        tokio::select! {
            biased;
            _ = socket.readable() => return Ok(()),
            _ = phase.changed() => {
                phase.mark_changed();
                return Ok(());
            }
            () = session.terminated() => return Ok(()),
            _ = passenger.stage.changed() => {
                passenger.stage.mark_changed();
                return Ok(());
            }
            () = tokio::time::sleep(turn) => {}
        }
        let bytes = self.written();
        let Connection { passenger: Some(passenger), phase, session, .. } = self else { return Ok(()) };
        let Some(bytes) = bytes else {
            passenger.is_between(true);
            return Ok(());
        };
        let has_work = async {
            tokio::select! {
                _ = socket.readable() => {}
                _ = phase.changed() => phase.mark_changed(),
                () = session.terminated() => {}
            }
        };
        let outcome = passenger.stop_early(bytes, has_work).await;
        self.went_over(outcome)
    }

    /// `Ok`: it stays.
    fn went_over(&mut self, outcome: Outcome) -> Result<(), Failure> {
        match outcome {
            Outcome::Stays => Ok(()),
            Outcome::Gone => {
                self.shared.iter_mut().for_each(SharedClient::set_gone);
                Err(Failure::GoneOver)
            }
            Outcome::Lost => {
                let error = Error::new(SqlState::CRASH_SHUTDOWN, "another host has taken the database over");
                Err(error.with_hint("Connect again, to the new primary.").into())
            }
        }
    }

    /// Prepares a statement that another host prepared, if it is one, before it is used here for the first time.
    pub(super) async fn prepare_again(&mut self, name: &str) -> Result<(), Trouble> {
        let Some(carried) = self.carried.get(name).cloned() else { return Ok(()) };
        let PortableStatement { text, types, .. } = &carried.statement;
        self.prepare_as(name.to_owned(), text, types).await?;
        let is_as_told = self.statements.get(name).is_some_and(|prepared| {
            let description = &prepared.of.description;
            let columns = description.columns.as_deref().map(oids_of);
            description.parameters == carried.parameters && columns == carried.columns
        });
        if !is_as_told {
            // What it works on was changed since the client prepared it.
            self.session.forget_statement(name);
            self.statements.remove(name);
            return Err(Error::unsupported("cached plan must not change result type").into());
        }
        self.carried.remove(name);
        Ok(())
    }

    /// As `prepare_again`, of all that a text of SQL may name. One that cannot be prepared any more says so when it is used.
    pub(super) async fn prepare_carried(&mut self, sql: &str) -> Result<(), Failure> {
        if self.carried.is_empty() || !names_statements(sql) {
            return Ok(());
        }
        let names: Vec<String> = self.carried.keys().cloned().collect();
        for name in names {
            if let Err(Trouble::Connection(failure)) = self.prepare_again(&name).await {
                return Err(failure);
            }
        }
        Ok(())
    }
}

fn oids_of(columns: &[ResultColumn]) -> Vec<u32> {
    columns.iter().map(|column| column.type_oid).collect()
}

fn portable_of(prepared: &Prepared) -> PortablePrepared {
    let text = prepared.of.statement.as_ref().map_or_else(String::new, |statement| statement.text().to_owned());
    let description = &prepared.of.description;
    PortablePrepared {
        statement: PortableStatement { name: prepared.name.clone(), text, types: prepared.oids.clone() },
        parameters: description.parameters.clone(),
        columns: description.columns.as_deref().map(oids_of),
    }
}

/// Whether a text may have a `PREPARE` or `EXECUTE` in it, which share names with the protocol's statements.
fn names_statements(sql: &str) -> bool {
    let has = |word: &[u8]| sql.as_bytes().windows(word.len()).any(|part| part.eq_ignore_ascii_case(word));
    has(b"prepare") || has(b"execute")
}
