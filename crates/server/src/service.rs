//! What all connections of a process share.

use crate::auth::Peer;
use crate::failures::Failures;
use crate::metrics::Metrics;
use crate::routing::Routing;
use crate::startup;
use crate::tls::Tls;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tidepool_base::Result;
use tidepool_planner::{CancelHandle, Planner, Session};
use tokio::sync::watch;

/// How a service treats its clients.
#[derive(Clone, Debug)]
pub struct ServiceOptions {
    /// Clients that can be connected at once; the next one gets 53300.
    pub connections_max: usize,
    /// Of these, the last ones, which only superusers get.
    pub superuser_reserved: usize,
    /// Files and sockets that the process may have open, if that is known.
    pub descriptors_max: Option<usize>,
    /// A client that takes longer than this to say who it is is disconnected.
    pub authentication_timeout: Duration,
    /// A client that takes longer than this to send its first packet is disconnected.
    pub opening_timeout: Duration,
    /// How long running statements have to end once the server is asked to stop; then they are cancelled.
    pub shutdown_grace: Duration,
    /// Statements that take at least this long are logged.
    pub slow_statement: Option<Duration>,
    /// Clients that come over TCP without TLS are refused.
    pub tls_required: bool,
}

/// For services within a process. `tidepool serve` takes `connections_max` from the configuration, 500 unless it says otherwise.
impl Default for ServiceOptions {
    fn default() -> ServiceOptions {
        ServiceOptions {
            connections_max: 400,
            superuser_reserved: 3,
            descriptors_max: None,
            authentication_timeout: Duration::from_secs(60),
            opening_timeout: Duration::from_secs(10),
            shutdown_grace: Duration::from_secs(30),
            slow_statement: None,
            tls_required: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// The database is not there yet.
    Starting,
    Running,
    /// Another host has taken the database over: nothing is answered any more.
    Fenced,
    /// No new work: a connection ends when its statement does.
    Stopping,
}

/// A planner with what its connections share.
pub struct Service {
    pub(crate) planner: Arc<Planner>,
    pub(crate) options: ServiceOptions,
    pub(crate) metrics: Metrics,
    pub(crate) tls: Option<Tls>,
    pub(crate) phase: watch::Sender<Phase>,
    pub(crate) failures: Failures,
    /// Passes sessions to other hosts of the pool that read, once it listens.
    pub(crate) routing: OnceLock<Arc<Routing>>,
    /// By the numbers and secrets that clients know.
    cancellable: Mutex<HashMap<(i32, Bytes), CancelHandle>>,
}

impl Service {
    /// A service that no network reaches: for [`Service::connect`] and [`Server::bind`](crate::Server::bind).
    pub fn new(planner: Arc<Planner>, options: ServiceOptions) -> Service {
        Service {
            planner,
            options,
            metrics: Metrics::default(),
            tls: None,
            phase: watch::Sender::new(Phase::Running),
            failures: Failures::default(),
            routing: OnceLock::new(),
            cancellable: Mutex::default(),
        }
    }

    /// Reads certificate and key (PEM); network clients may then ask for TLS.
    pub fn with_tls(mut self, certificate: &std::path::Path, key: &std::path::Path) -> Result<Service> {
        self.tls = Some(Tls::load(certificate, key)?);
        Ok(self)
    }

    pub fn planner(&self) -> &Arc<Planner> {
        &self.planner
    }

    /// A connection from within the process: the client's end of a pipe that speaks the protocol. No password is asked.
    pub fn connect(self: &Arc<Self>) -> tokio::io::DuplexStream {
        let (client, server) = tokio::io::duplex(256 * 1024);
        tokio::spawn(startup::serve(self.clone(), Box::new(server), Peer::Process, None, None));
        client
    }

    /// Enters a connection under its session's number, with a secret of `secret_bytes` bytes, until the guard drops.
    pub(crate) fn register(self: &Arc<Self>, session: &Session, secret_bytes: usize) -> Registration {
        let secret: Vec<u8> = (0..secret_bytes).map(|_| rand::random()).collect();
        self.register_as(session, session.id() as i32, Bytes::from(secret))
    }

    /// As `register`, of a client that knows its number and secret from another host.
    pub(crate) fn register_as(self: &Arc<Self>, session: &Session, process_id: i32, secret: Bytes) -> Registration {
        self.cancellable.lock().insert((process_id, secret.clone()), session.cancel_handle());
        Registration { service: self.clone(), process_id, secret }
    }

    /// A cancel request: silently nothing unless number and secret fit. Whether they do.
    pub(crate) fn cancel(&self, process_id: i32, secret: &[u8]) -> bool {
        let key = (process_id, Bytes::copy_from_slice(secret));
        let handle = self.cancellable.lock().get(&key).cloned();
        match &handle {
            Some(handle) => handle.cancel(),
            None => tracing::info!(process_id, "cancel request for no such connection"),
        }
        handle.is_some()
    }

    /// Another host has taken the database over. What ends the process comes by itself.
    pub(crate) fn end_role(&self) {
        self.phase.send_if_modified(|phase| std::mem::replace(phase, (*phase).max(Phase::Fenced)) < Phase::Fenced);
    }

    pub(crate) fn cancel_all(&self) {
        let handles: Vec<CancelHandle> = self.cancellable.lock().values().cloned().collect();
        handles.iter().for_each(CancelHandle::cancel);
    }

    pub(crate) fn connections(&self) -> usize {
        self.cancellable.lock().len()
    }
}

/// A connection's entry, for as long as it lives.
pub(crate) struct Registration {
    service: Arc<Service>,
    pub(crate) process_id: i32,
    pub(crate) secret: Bytes,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.service.cancellable.lock().remove(&(self.process_id, self.secret.clone()));
    }
}
