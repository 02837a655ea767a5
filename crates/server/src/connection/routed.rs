//! A connection that goes to a reader where a transaction begins that only reads, and back from there.

use super::Connection;
use crate::passing::{BYTES_MAX, Passenger};
use crate::protocol::frontend::{Message, Sent};
use crate::routing::{Parcel, Routes};
use crate::service::Phase;
use crate::startup::Failure;
use std::collections::HashSet;
use tidepool_base::{Error, SqlState};
use tidepool_planner::{Routed, RoutedText, TransactionStatus};

/// A session with more bytes does not go to a reader: it may have more when it has to go back.
const BYTES_OUT_MAX: usize = BYTES_MAX / 4;

/// A message of which so much has come is not waited for: it goes where it may write, in parts.
const LONG_MESSAGE: usize = 32 << 10;

impl Connection {
    pub(crate) fn set_routes(&mut self, routes: Routes) {
        if routes.guest.is_some() {
            self.session.set_guest();
        }
        self.routes = Some(routes);
    }

    /// Whether what comes next is looked at before it is worked on.
    #[inline]
    pub(super) fn is_routed(&self) -> bool {
        self.routes.as_ref().is_some_and(|routes| routes.guest.is_some() || self.session.routes_reads())
    }

    /// The session's number, by which its client knows it.
    pub(super) fn home_id(&self) -> Option<u32> {
        self.routes.as_ref()?.guest.as_ref().map(|guest| guest.id)
    }

    /// Leaves for the host that is to do what comes next, if that is another one. Called before each message.
    pub(super) async fn route(&mut self) -> Result<(), Failure> {
        let Some(routes) = &self.routes else { return Ok(()) };
        if !self.is_between() {
            return Ok(());
        }
        match routes.guest.is_some() {
            true if self.is_to_go_home() => self.leave(BYTES_MAX).await,
            false if self.is_to_go_out() => self.leave(BYTES_OUT_MAX).await,
            _ => Ok(()),
        }
    }

    /// At a reader.
    fn is_to_go_home(&self) -> bool {
        match self.session.transaction_status() {
            TransactionStatus::Idle => {
                let is_to_read = self.session.routes_reads() && *self.phase.borrow() == Phase::Running;
                !is_to_read || self.routed(RoutedText::default()) == Some(Routed::Primary)
            }
            // Nothing was done in it yet, and what comes cannot be done here.
            TransactionStatus::InTransaction => {
                self.may_be_of_primary()
                    && self.session.is_whole_elsewhere()
                    && !self.session.is_tied()
                    && self.routed(RoutedText::in_block()) == Some(Routed::Primary)
            }
            TransactionStatus::Failed => false,
        }
    }

    /// At the primary.
    fn is_to_go_out(&mut self) -> bool {
        let is_asked = self.passenger.as_ref().is_some_and(Passenger::is_asked);
        if is_asked
            || self.session.transaction_status() != TransactionStatus::Idle
            || *self.phase.borrow() != Phase::Running
        {
            return false;
        }
        let Some(routed) = self.routed(RoutedText::default()) else { return false };
        let Some(routes) = &mut self.routes else { return false };
        if std::mem::take(&mut routes.stays) {
            return false;
        }
        routed == Routed::Reader
            && routes.routing.has_readers()
            && self.shared.is_some()
            && self.wire.may_go_over()
            && !self.session.is_tied()
    }

    /// Where what has come may run. `None`: too little has come to say.
    fn routed(&self, mut text: RoutedText) -> Option<Routed> {
        let mut input = &self.wire.input[..];
        let head = Message::head(input)?;
        if input.len() < head.bytes {
            return (input.len() >= LONG_MESSAGE).then_some(Routed::Primary);
        }
        let mut parsed = HashSet::new();
        while let Some((message, rest)) = Message::peek(input) {
            input = rest;
            match message {
                Sent::Query(sql) => {
                    text.add_text(&self.session, sql);
                    return Some(text.routed());
                }
                Sent::Parse { name, sql } => {
                    parsed.insert(name);
                    text.add_text(&self.session, sql);
                }
                Sent::Bind { statement } if parsed.contains(statement) => {}
                Sent::Bind { statement } => match (self.statements.get(statement), self.carried.get(statement)) {
                    (Some(prepared), _) => {
                        prepared.of.statement.iter().for_each(|statement| text.add(&self.session, statement));
                    }
                    (None, Some(carried)) => text.add_text(&self.session, &carried.statement.text),
                    (None, None) => return Some(Routed::Primary),
                },
                Sent::Sync | Sent::Terminate => return Some(text.routed()),
                Sent::Neutral => {}
                Sent::Other => return Some(Routed::Primary),
            }
        }
        // What is still to come may be anything, unless it comes within a transaction that may only read.
        match text.routed() {
            Routed::Reader => Some(Routed::Reader),
            Routed::Anywhere | Routed::Primary => Some(Routed::Primary),
        }
    }

    /// Whether it is worth a closer look what comes next in a transaction.
    fn may_be_of_primary(&self) -> bool {
        match Message::peek(&self.wire.input) {
            Some((Sent::Query(sql) | Sent::Parse { sql, .. }, _)) => self.session.may_be_of_primary(sql),
            Some((Sent::Bind { statement }, _)) => {
                match (self.statements.get(statement), self.carried.get(statement)) {
                    (Some(prepared), _) => {
                        prepared.of.statement.iter().any(|statement| self.session.may_be_of_primary(statement.text()))
                    }
                    (None, Some(carried)) => self.session.may_be_of_primary(&carried.statement.text),
                    (None, None) => false,
                }
            }
            _ => false,
        }
    }

    /// Returns where the connection stays.
    async fn leave(&mut self, bytes_max: usize) -> Result<(), Failure> {
        self.session.settle_cursors(BYTES_MAX).await;
        let seen = self.service.planner.database().written_lsn();
        let written = self.written().filter(|bytes| bytes.len() <= bytes_max);
        let Some(routes) = &mut self.routes else { return Ok(()) };
        let is_guest = routes.guest.is_some();
        let Some(bytes) = written else {
            if !is_guest {
                return Ok(());
            }
            let message = "the session is too large to go back to the primary";
            let error = Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message);
            return Err(error
                .with_hint("Close cursors that are held, and prepared statements, or connect again.")
                .into());
        };
        let socket = match (&mut routes.guest, &mut self.shared) {
            (Some(guest), _) => guest.take_socket(),
            (None, Some(shared)) => shared.leave(),
            (None, None) => None,
        };
        match socket {
            Some(socket) => Err(Failure::Routed(routes.departure(Parcel::new(socket, bytes, seen)))),
            None => Ok(()),
        }
    }
}
