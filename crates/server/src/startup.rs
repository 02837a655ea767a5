//! From an accepted stream to a session: encryption, version, who and where, settings.

use crate::DATABASE_NAME;
use crate::auth::{self, Peer};
use crate::connection::Connection;
use crate::handover::SharedClient;
use crate::protocol::backend;
use crate::protocol::frontend::Opening;
use crate::routing::Departure;
use crate::secured::Secured;
use crate::service::{Phase, Service};
use crate::strangers::Stranded;
use crate::succession::{Beginning, Coming, Gate};
use crate::wire::{Io, Wire};
use bytes::Bytes;
use futures::FutureExt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;
use tidepool_base::{Error, SqlState};
use tidepool_planner::{PortableSession, Session};

/// The newest minor version of protocol 3 that is spoken.
const MINOR_VERSION: u16 = 2;

/// Names of the one database beside its own: those of databases that every PostgreSQL server has, which tools connect to first.
const OTHER_NAMES: [&str; 2] = ["postgres", "template1"];

/// Settings that a client is told at start-up and whenever they change, each with the value for a session that has no such setting.
const REPORTED: [(&str, &str); 13] = [
    ("server_version", "15.0"),
    ("server_encoding", "UTF8"),
    ("client_encoding", "UTF8"),
    ("application_name", ""),
    ("default_transaction_read_only", "off"),
    ("in_hot_standby", "off"),
    ("is_superuser", "on"),
    ("session_authorization", "tidepool"),
    ("DateStyle", "ISO, MDY"),
    ("IntervalStyle", "postgres"),
    ("TimeZone", "UTC"),
    ("integer_datetimes", "on"),
    ("standard_conforming_strings", "on"),
];

/// Why a connection ends.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The client is gone, or said goodbye: nobody to tell.
    Gone,
    /// Told to the client before the end.
    Fatal(Error),
    /// Another process goes on with it.
    GoneOver,
    /// Another process is to go on with it, once it is gone from here.
    Routed(Departure),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Fatal(error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(_: std::io::Error) -> Failure {
        Failure::Gone
    }
}

/// Serves one connection to its end. Nothing that happens in it reaches beyond it. Its socket is shared with other hosts, if it is.
pub(crate) async fn serve(
    service: Arc<Service>,
    io: Box<dyn Io>,
    peer: Peer,
    stranded: Option<Stranded>,
    shared: Option<SharedClient>,
) {
    let timeout = service.options.authentication_timeout;
    let opening = tokio::time::timeout(timeout, open(&service, io, peer, stranded, shared));
    let opened = AssertUnwindSafe(opening).catch_unwind().await;
    let connection = match opened {
        Ok(Ok(Some(connection))) => connection,
        Ok(Ok(None)) => return,
        Ok(Err(_)) => {
            tracing::info!("a client did not finish start-up in time");
            return;
        }
        Err(panic) => {
            tracing::error!("panic while a client connected: {}", panic_text(&*panic));
            return;
        }
    };
    run(&service, connection).await;
}

pub(crate) async fn run(service: &Service, mut connection: Connection) {
    service.metrics.connection_opened();
    let failure = match AssertUnwindSafe(connection.run()).catch_unwind().await {
        Ok(failure) => failure,
        Err(panic) => {
            let text = panic_text(&*panic);
            tracing::error!("panic in a connection: {text}");
            Failure::Fatal(
                Error::internal("the statement met a defect in the server")
                    .with_detail(format!("{text}."))
                    .with_hint("The connection ends; other connections and the data are not affected."),
            )
        }
    };
    match failure {
        // Nothing is said, and the socket is another's.
        Failure::GoneOver => {}
        Failure::Routed(departure) => {
            drop(connection);
            departure.go();
        }
        Failure::Fatal(error) => {
            connection.say_fatal(&error);
            connection.close().await;
        }
        Failure::Gone => connection.close().await,
    }
    service.metrics.connection_closed();
}

/// A connection of another host, by what that wrote down of it.
pub(crate) fn made_anew(
    service: &Arc<Service>,
    io: Box<dyn Io>,
    portable: PortableSession,
) -> tidepool_base::Result<Connection> {
    let wire = match &portable.tls {
        Some(tls) => Wire::secured(Secured::of_portable(io, tls)?),
        None => Wire::new(io),
    };
    let account = service.planner.database().client_memory().account();
    let session = service.planner.go_on(&portable, account.clone())?;
    let secret = Bytes::copy_from_slice(&portable.secret);
    let registration = service.register_as(&session, portable.process_id, secret);
    Connection::of_portable(service.clone(), wire, session, registration, account, portable)
}

/// Goes on with a connection of another host, by what that wrote down of it, and what its client is told first.
pub(crate) async fn go_on(
    service: Arc<Service>,
    io: Box<dyn Io>,
    (portable, beginning): (PortableSession, Beginning),
    (mut gate, coming): (Gate, Coming),
    shared: Option<SharedClient>,
) {
    let going_on = async { made_anew(&service, io, portable) };
    match AssertUnwindSafe(going_on).catch_unwind().await {
        Ok(Ok(mut connection)) => {
            gate.pass().await;
            connection.share(shared);
            drop(coming);
            connection.begin_with(beginning);
            run(&service, connection).await;
        }
        Ok(Err(error)) => tracing::warn!("a connection of the primary before cannot go on here: {error}"),
        Err(panic) => tracing::error!("panic while a connection went over: {}", panic_text(&*panic)),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("unknown panic")
}

/// `None`: the connection is done with already.
async fn open(
    service: &Arc<Service>,
    io: Box<dyn Io>,
    peer: Peer,
    stranded: Option<Stranded>,
    shared: Option<SharedClient>,
) -> Option<Connection> {
    let mut wire = Wire::new(io);
    let mut encrypted = false;
    let patience = tokio::time::Instant::now() + service.options.opening_timeout;
    let (version, parameters) = loop {
        match Opening::decode(&mut wire.input) {
            Ok(None) => match tokio::time::timeout_at(patience, wire.fill()).await {
                Ok(filled) => filled.ok()?,
                Err(_) => {
                    tracing::info!("a client did not send its first packet in time");
                    return None;
                }
            },
            // Not a PostgreSQL client: an answer would mean nothing to it.
            Err(error) => {
                tracing::debug!("refused a connection: {error}");
                return None;
            }
            Ok(Some(Opening::Cancel { process_id, secret })) => {
                if !service.cancel(process_id, &secret) {
                    shared.iter().for_each(|shared| shared.pass_cancel(process_id, &secret));
                    service.routing.get().iter().for_each(|routing| routing.pass_cancel(process_id, &secret));
                }
                return None;
            }
            Ok(Some(Opening::GssEncryption)) => {
                wire.output.push(b'N');
                wire.flush().await.ok()?;
            }
            Ok(Some(Opening::Ssl)) => match &service.tls {
                Some(tls) if !encrypted => {
                    if !wire.input.is_empty() {
                        // Someone put bytes in front of the encryption that would count as the client's own.
                        tracing::warn!("received unencrypted data after SSL request");
                        return None;
                    }
                    wire.output.push(b'S');
                    wire.flush().await.ok()?;
                    match Secured::accept(tls, wire.into_io()).await {
                        Ok(secured) => wire = Wire::secured(secured),
                        Err(error) => {
                            tracing::info!("TLS handshake failed: {error}");
                            return None;
                        }
                    }
                    encrypted = true;
                }
                _ => {
                    wire.output.push(b'N');
                    wire.flush().await.ok()?;
                }
            },
            Ok(Some(Opening::Startup { version, parameters })) => break (version, parameters),
        }
    };
    if let Some(stranded) = &stranded {
        stranded.has_opened();
    }
    if service.options.tls_required && !encrypted && matches!(peer, Peer::Loopback | Peer::Remote) {
        let error = Error::new(SqlState::INVALID_AUTHORIZATION, "connections without encryption are refused")
            .with_hint("Connect with sslmode=require.");
        tracing::info!("refused a connection: {error}");
        refuse(&mut wire, &error).await;
        return None;
    }
    let end_point = service.tls.as_ref().filter(|_| encrypted).and_then(|tls| tls.end_point.clone());
    match start(service, &mut wire, version, &parameters, peer, end_point.as_deref()).await {
        Ok(session) => {
            let secret_bytes = if version.1 >= 2 { 32 } else { 4 };
            if !stranded.is_none_or(Stranded::make_known) {
                return None;
            }
            let registration = service.register(&session, secret_bytes);
            if peer != Peer::Process
                && let Some(error) = too_many(service, &parameters)
            {
                refuse(&mut wire, &error).await;
                return None;
            }
            match Connection::new(service.clone(), wire, session, registration) {
                Ok(mut connection) => {
                    connection.share(shared);
                    Some(connection)
                }
                Err((mut wire, error)) => {
                    refuse(&mut wire, &error).await;
                    None
                }
            }
        }
        Err(Failure::Gone | Failure::GoneOver | Failure::Routed(_)) => None,
        Err(Failure::Fatal(error)) => {
            tracing::info!("refused a connection: {error}");
            refuse(&mut wire, &error).await;
            None
        }
    }
}

/// 53300 where the connection, which is counted by now, is one too many.
fn too_many(service: &Service, parameters: &[(String, String)]) -> Option<Error> {
    let is_superuser = || {
        let user = parameters.iter().rev().find(|(name, _)| name == "user").map(|(_, user)| user.as_str());
        let state = service.planner.database().state();
        user.and_then(|user| state.catalog.role(user)).is_some_and(|role| role.superuser)
    };
    let most = service.options.connections_max;
    let reserved = service.options.superuser_reserved.min(most.saturating_sub(1));
    let count = service.connections();
    let message = if count > most {
        "sorry, too many clients already"
    } else if count > most - reserved && !is_superuser() {
        "remaining connection slots are reserved for non-replication superuser connections"
    } else {
        return None;
    };
    Some(Error::new(SqlState::TOO_MANY_CONNECTIONS, message))
}

async fn refuse(wire: &mut Wire, error: &Error) {
    backend::error_response(&mut wire.output, "FATAL", error);
    wire.close().await;
}

async fn start(
    service: &Arc<Service>,
    wire: &mut Wire,
    version: (u16, u16),
    parameters: &[(String, String)],
    peer: Peer,
    end_point: Option<&[u8]>,
) -> Result<Session, Failure> {
    let (major, minor) = version;
    if major != 3 {
        return Err(Error::unsupported(format!(
            "unsupported frontend protocol {major}.{minor}: server supports 3.0 to 3.{MINOR_VERSION}"
        ))
        .into());
    }
    let unknown: Vec<&str> =
        parameters.iter().map(|(name, _)| name.as_str()).filter(|name| name.starts_with("_pq_.")).collect();
    if minor > MINOR_VERSION || !unknown.is_empty() {
        backend::negotiate_protocol_version(&mut wire.output, u32::from(minor.min(MINOR_VERSION)), &unknown);
    }
    let parameter = |wanted: &str| {
        parameters
            .iter()
            .rev()
            .find(|(name, _)| name == wanted)
            .map(|(_, value)| value.as_str())
            .filter(|v| !v.is_empty())
    };
    let Some(user) = parameter("user") else {
        let message = "no PostgreSQL user name specified in startup packet";
        return Err(Error::new(SqlState::INVALID_AUTHORIZATION, message).into());
    };
    if *service.phase.borrow() != Phase::Running {
        return Err(Error::new(SqlState::CANNOT_CONNECT_NOW, "the database system is shutting down").into());
    }
    if peer != Peer::Process && service.connections() >= service.options.connections_max {
        return Err(Error::new(SqlState::TOO_MANY_CONNECTIONS, "sorry, too many clients already").into());
    }
    if let Err(failure) = auth::authenticate(wire, service.planner.database(), user, peer, end_point).await {
        if let Failure::Fatal(error) = &failure
            && [SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION].contains(&error.code())
        {
            let delay = service.failures.failed(user, Instant::now());
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = wire.gone() => {}
            }
        }
        return Err(failure);
    }
    service.failures.succeeded(user);
    let database = parameter("database").unwrap_or(user);
    if database != DATABASE_NAME && !OTHER_NAMES.contains(&database) {
        let message = format!("database \"{database}\" does not exist");
        return Err(Error::new(SqlState::INVALID_CATALOG_NAME, message)
            .with_hint(format!("There is one database: \"{DATABASE_NAME}\"."))
            .into());
    }
    if parameter("replication").is_some_and(|value| !matches!(value, "false" | "off" | "no" | "0")) {
        return Err(Error::unsupported("replication connections are not supported").into());
    }
    check_connection_limit(service, user)?;
    let mut session = service.planner.session(user);
    for (name, value) in parameters {
        match name.as_str() {
            "user" | "database" | "replication" => (),
            "options" => {
                for (name, value) in command_line_options(value)? {
                    session.set(&name, &value)?;
                }
            }
            name if name.starts_with("_pq_.") => (),
            name => session.set(name, value)?,
        }
    }
    // What start-up itself changed is part of what follows.
    session.take_changed_settings();
    for (name, fixed) in REPORTED {
        let value = session.setting(name).unwrap_or_else(|_| fixed.to_owned());
        backend::parameter_status(&mut wire.output, name, &value);
    }
    Ok(session)
}

/// 53300 when the role has as many sessions as it may have. Superusers are not counted.
fn check_connection_limit(service: &Service, user: &str) -> Result<(), Error> {
    let state = service.planner.database().state();
    let role = state.catalog.role(user).filter(|role| !role.superuser);
    match role.and_then(|role| role.connections_max) {
        Some(most) if service.planner.session_count_of(user) >= most as usize => {
            Err(Error::new(SqlState::TOO_MANY_CONNECTIONS, format!("too many connections for role \"{user}\"")))
        }
        _ => Ok(()),
    }
}

/// `-c name=value` and `--name=value`, as a server's command line has them; a backslash escapes a blank.
fn command_line_options(text: &str) -> Result<Vec<(String, String)>, Error> {
    let mut words = vec![String::new()];
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => words.last_mut().expect("never empty").extend(characters.next()),
            character if character.is_ascii_whitespace() => words.push(String::new()),
            character => words.last_mut().expect("never empty").push(character),
        }
    }
    let mut words = words.into_iter().filter(|word| !word.is_empty());
    let mut options = Vec::new();
    let invalid = |word: &str| {
        Error::new(SqlState::SYNTAX_ERROR, format!("invalid command-line argument for server process: {word}"))
            .with_hint("Write options as -c name=value.")
    };
    while let Some(word) = words.next() {
        let setting = match word.as_str() {
            "-c" => words.next().ok_or_else(|| invalid(&word))?,
            _ => match word.strip_prefix("--").or_else(|| word.strip_prefix("-c")) {
                Some(setting) => setting.to_owned(),
                None => return Err(invalid(&word)),
            },
        };
        let (name, value) = setting.split_once('=').ok_or_else(|| invalid(&setting))?;
        // PostgreSQL takes dashes for underscores here.
        options.push((name.replace('-', "_"), value.to_owned()));
    }
    Ok(options)
}
