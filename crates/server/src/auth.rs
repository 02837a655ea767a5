//! Who may connect: trust from this machine while no password is set, SCRAM-SHA-256 otherwise.

use crate::ROLE_NAME;
use crate::protocol::backend;
use crate::protocol::frontend::{self, Message};
use crate::startup::Failure;
use crate::wire::Wire;
use bytes::Bytes;
use tidepool_base::{Error, SqlState};
use tidepool_database::Database;
use tidepool_database::scram::{ServerExchange, Verifier};

const PLAIN: &str = "SCRAM-SHA-256";
const PLUS: &str = "SCRAM-SHA-256-PLUS";

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Peer {
    /// This very process.
    Process,
    Loopback,
    Remote,
}

/// Returns once the client is known to be `user`; the answer to it is in `wire.output`.
pub(crate) async fn authenticate(
    wire: &mut Wire,
    database: &Database,
    user: &str,
    peer: Peer,
    end_point: Option<&[u8]>,
) -> Result<(), Failure> {
    let known = user == ROLE_NAME;
    let verifier = database.password_verifier(ROLE_NAME);
    match (verifier, peer) {
        (_, Peer::Process) | (None, Peer::Loopback) if known => (),
        (_, Peer::Process) | (None, Peer::Loopback) => {
            return Err(Error::new(SqlState::INVALID_AUTHORIZATION, format!("role \"{user}\" does not exist")).into());
        }
        (None, Peer::Remote) => {
            return Err(Error::new(SqlState::INVALID_AUTHORIZATION, "connections from other machines need a password")
                .with_detail("No password is set.")
                .with_hint("Connect from the server's own machine and run: ALTER ROLE tidepool PASSWORD '…'.")
                .into());
        }
        (Some(text), _) => {
            let verifier = match Verifier::parse(&text) {
                Some(verifier) if known => verifier,
                // An unknown role is found out no sooner than a wrong password.
                _ => Verifier::unusable(),
            };
            exchange(wire, verifier, end_point, user).await?;
        }
    }
    backend::authentication_ok(&mut wire.output);
    Ok(())
}

async fn exchange(wire: &mut Wire, verifier: Verifier, end_point: Option<&[u8]>, user: &str) -> Result<(), Failure> {
    let mechanisms: &[&str] = if end_point.is_some() { &[PLUS, PLAIN] } else { &[PLAIN] };
    backend::authentication_sasl(&mut wire.output, mechanisms);
    let (mechanism, first) = frontend::sasl_initial_response(answer(wire).await?)?;
    if !mechanisms.contains(&mechanism.as_str()) {
        let message = "client selected an invalid SASL authentication mechanism";
        return Err(Error::new(SqlState::PROTOCOL_VIOLATION, message).into());
    }
    let (exchange, server_first) = ServerExchange::start(&first, verifier, end_point, mechanism == PLUS)?;
    backend::authentication_sasl_continue(&mut wire.output, &server_first);
    let proof = answer(wire).await?;
    match exchange.finish(&proof)? {
        Some(server_final) => {
            backend::authentication_sasl_final(&mut wire.output, &server_final);
            Ok(())
        }
        None => {
            let message = format!("password authentication failed for user \"{user}\"");
            Err(Error::new(SqlState::INVALID_PASSWORD, message).into())
        }
    }
}

/// Sends what there is and waits for the client's part of the exchange.
async fn answer(wire: &mut Wire) -> Result<Bytes, Failure> {
    wire.flush().await?;
    loop {
        // Nothing but a password is expected, and nobody has proved anything yet: keep what can be sent small.
        if wire.input.first().is_some_and(|kind| *kind != b'p') {
            let message = format!("expected password response, got message type {}", wire.input[0]);
            return Err(Error::new(SqlState::PROTOCOL_VIOLATION, message).into());
        }
        match Message::decode(&mut wire.input)? {
            Some(Message::Password(data)) => return Ok(data),
            _ => wire.fill().await?,
        }
    }
}
