//! Who may connect: trust from this machine while no password is set, SCRAM-SHA-256 otherwise.

use crate::ROLE_NAME;
use crate::protocol::backend;
use crate::protocol::frontend::{self, Message};
use crate::startup::Failure;
use crate::wire::Wire;
use bytes::Bytes;
use tidepool_base::{Error, SqlState};
use tidepool_database::scram::{ServerExchange, Verifier};
use tidepool_database::{Database, RoleDef};

const PLAIN: &str = "SCRAM-SHA-256";
const PLUS: &str = "SCRAM-SHA-256-PLUS";

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Peer {
    /// This very process.
    Process,
    /// This machine, by a socket in the file system.
    Local,
    /// This machine.
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
    let refused = |message: String| Error::new(SqlState::INVALID_AUTHORIZATION, message);
    let state = database.state();
    let role = state.catalog.role(user);
    let password = |role: &RoleDef| {
        let is_over = role.valid_until.is_some_and(|until| until < now_micros());
        role.password.as_deref().filter(|_| !is_over).and_then(Verifier::parse)
    };
    // While the database's own role has no password, whoever is on this machine may do everything anyway.
    let owner = state.catalog.role(ROLE_NAME);
    let is_open = owner.is_none_or(|owner| owner.password.is_none());
    match (role, peer) {
        (_, Peer::Process) => (),
        (role, Peer::Local | Peer::Loopback) if is_open && role.is_none_or(|role| role.password.is_none()) => (),
        (_, Peer::Remote) if is_open && role.is_none_or(|role| role.password.is_none()) => {
            return Err(refused("connections from other machines need a password".to_owned())
                .with_detail("No password is set.")
                .with_hint("Connect from the server's own machine and run: ALTER ROLE tidepool PASSWORD '…'.")
                .into());
        }
        // An unknown role is found out no sooner than a wrong password.
        (role, _) => {
            let unusable = || Verifier::unusable(&database.secret(), user);
            let verifier = role.and_then(|role| password(role)).unwrap_or_else(unusable);
            exchange(wire, verifier, end_point, user).await?;
        }
    }
    match role {
        None => return Err(refused(format!("role \"{user}\" does not exist")).into()),
        Some(role) if !role.login => {
            return Err(refused(format!("role \"{user}\" is not permitted to log in")).into());
        }
        Some(_) => {}
    }
    backend::authentication_ok(&mut wire.output);
    Ok(())
}

fn now_micros() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(i64::MAX, |now| now.as_micros() as i64)
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
        match wire.message()? {
            Some(Message::Password(data)) => return Ok(data),
            _ => wire.fill().await?,
        }
    }
}
