//! Listening, and stopping.

use crate::auth::Peer;
use crate::local::LocalListener;
use crate::metrics;
use crate::service::{Phase, Service};
use crate::strangers::{Stranded, Strangers};
use crate::threads::{Place, Threads};
use crate::wire::Io;
use crate::{DATABASE_NAME, ROLE_NAME, incoming, startup};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidepool_base::{Error, Result, SqlState};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixStream};
use tokio::sync::mpsc::Sender;
use tokio::task::JoinSet;

/// Connections that wait to be accepted. The kernel caps it at `net.core.somaxconn`.
const BACKLOG: u32 = 1024;

/// Sockets beyond the clients allowed: those that are still saying who they are, and cancel requests.
const STRANGERS_MAX: usize = 256;

/// Descriptors that are not for clients: of files, of the log, of what listens.
const OTHER_DESCRIPTORS: usize = 128;

/// A service that listens.
pub struct Server {
    service: Arc<Service>,
    listeners: Vec<TcpListener>,
    local: Option<LocalListener>,
    metrics: Option<TcpListener>,
    threads: Threads,
}

/// Stops a server from anywhere.
#[derive(Clone)]
pub struct ShutdownHandle {
    service: Arc<Service>,
}

impl ShutdownHandle {
    /// New clients are turned away, idle ones told to go (57P01), and running statements have the time of grace.
    pub fn stop(&self) {
        self.service.phase.send_replace(Phase::Stopping);
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener> {
    let attempt = || -> std::io::Result<TcpListener> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        // Accepted sockets inherit it: a client whose machine vanished is noticed in the end.
        socket.set_keepalive(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    attempt().map_err(|error| {
        let code = match error.kind() {
            std::io::ErrorKind::AddrInUse => SqlState::OBJECT_IN_USE,
            std::io::ErrorKind::PermissionDenied => SqlState::INSUFFICIENT_PRIVILEGE,
            _ => SqlState::IO_ERROR,
        };
        let failed = Error::new(code, format!("could not listen on {address}: {error}"));
        match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                failed.with_hint("Another server listens there: stop it, or choose another port with --listen.")
            }
            _ => failed,
        }
    })
}

async fn resolve(text: &str) -> Result<Vec<SocketAddr>> {
    let invalid = |why: String| {
        Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("invalid address to listen on: \"{text}\""))
            .with_detail(why)
            .with_hint("Write HOST:PORT, as in 127.0.0.1:5477.")
    };
    let mut addresses: Vec<SocketAddr> =
        tokio::net::lookup_host(text).await.map_err(|error| invalid(format!("{error}.")))?.collect();
    addresses.sort_by_key(|address| address.is_ipv6());
    addresses.dedup();
    if addresses.is_empty() { Err(invalid("It names no address.".to_owned())) } else { Ok(addresses) }
}

impl Server {
    /// Listens on `listen` (`HOST:PORT`; port 0 takes a free one), and for metrics on `metrics_listen` if given; and on a socket in
    /// `socket_directory` if given, which is named by the port.
    /// Refuses an address that other machines can reach while no password is set: 28000.
    pub async fn bind(
        service: Arc<Service>,
        address: &str,
        metrics_address: Option<&str>,
        socket_directory: Option<&Path>,
    ) -> Result<Server> {
        let addresses = resolve(address).await?;
        let state = service.planner.database().state();
        let has_password = state.catalog.role(ROLE_NAME).is_some_and(|role| role.password.is_some());
        if let Some(open) = addresses.iter().find(|address| !address.ip().is_loopback())
            && !has_password
        {
            return Err(Error::new(
                SqlState::INVALID_AUTHORIZATION,
                format!("refusing to listen on {open}: no password is set for role \"{ROLE_NAME}\""),
            )
            .with_detail("Other machines could connect without one.")
            .with_hint(
                "Set one with: tidepool sql --data DIR -c \"ALTER ROLE tidepool PASSWORD '…'\", or listen on 127.0.0.1.",
            ));
        }
        let mut listeners: Vec<TcpListener> = Vec::new();
        for mut address in addresses {
            // A name such as localhost has an address of each family: one port for both.
            if let (0, Some(first)) = (address.port(), listeners.first()) {
                address.set_port(local_address(first)?.port());
            }
            match listen(address).await {
                Ok(listener) => listeners.push(listener),
                // A machine without IPv6 still resolves localhost to ::1.
                Err(error) if !listeners.is_empty() => tracing::warn!("{error}"),
                Err(error) => return Err(error),
            }
        }
        let metrics = match metrics_address {
            Some(text) => Some(listen(resolve(text).await?[0]).await?),
            None => None,
        };
        let port = local_address(&listeners[0])?.port();
        let local = socket_directory.map(|folder| LocalListener::bind(folder, port)).transpose()?;
        let cores = &service.planner.database().config().workload.transactions.cores;
        let count = match cores.len() {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            count => count,
        };
        // Two at least: one may be held up.
        let threads = Threads::start(count.max(2), cores, service.planner.database())?;
        Ok(Server { service, listeners, local, metrics, threads })
    }

    /// Where clients connect.
    pub fn address(&self) -> Result<SocketAddr> {
        local_address(&self.listeners[0])
    }

    pub fn metrics_address(&self) -> Result<Option<SocketAddr>> {
        self.metrics.as_ref().map(local_address).transpose()
    }

    /// What a client on this machine connects to.
    pub fn url(&self) -> Result<String> {
        let mut address = self.address()?;
        if address.ip().is_unspecified() {
            address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
        }
        Ok(format!("postgresql://{ROLE_NAME}@{address}/{DATABASE_NAME}"))
    }

    pub fn shutdown_handle(&self) -> ShutdownHandle {
        ShutdownHandle { service: self.service.clone() }
    }

    /// Serves until [`ShutdownHandle::stop`]; returns when every connection has ended.
    pub async fn run(self) {
        let Server { service, listeners, local, metrics, threads } = self;
        let mut phase = service.phase.subscribe();
        let mut connections = JoinSet::new();
        let mut background = JoinSet::new();
        if let Some(listener) = metrics {
            background.spawn(metrics::serve(service.clone(), listener));
        }
        let strangers = Strangers::new(strangers_max(&service));
        let (accepted, mut incoming) = tokio::sync::mpsc::channel(64);
        for listener in listeners {
            let next = async move || listener.accept().await.map(|(stream, address)| Accepted::Tcp(stream, address));
            background.spawn(accept_all(next, accepted.clone()));
        }
        if let Some(local) = local {
            let next = async move || local.listener.accept().await.map(|(stream, _)| Accepted::Local(stream));
            background.spawn(accept_all(next, accepted));
        }
        loop {
            tokio::select! {
                Some(stream) = incoming.recv() => {
                    tracing::debug!("connection from {stream}");
                    let Some(place) = threads.place(stream.processor()) else { continue };
                    let handle = place.handle.clone();
                    let (stranded, is_full) = strangers.enter(stream.address());
                    if is_full {
                        tracing::info!("a connection that has not said who it is makes room for {stream}");
                    }
                    let number = stranded.number();
                    let task = match stream {
                        Accepted::Tcp(stream, address) => {
                            // Answers are written whole; waiting to fill a packet only delays them.
                            let _ = stream.set_nodelay(true);
                            let peer = match address.ip().to_canonical().is_loopback() {
                                true => Peer::Loopback,
                                false => Peer::Remote,
                            };
                            let stream = stream.into_std();
                            let serving = serve(service.clone(), stream, TcpStream::from_std, peer, place, stranded);
                            connections.spawn_on(serving, &handle)
                        }
                        Accepted::Local(stream) => {
                            let (stream, peer) = (stream.into_std(), Peer::Local);
                            let serving = serve(service.clone(), stream, UnixStream::from_std, peer, place, stranded);
                            connections.spawn_on(serving, &handle)
                        }
                    };
                    strangers.set_task(number, task);
                }
                Some(_) = connections.join_next() => (),
                // Also where it was asked to before anybody listened.
                _ = phase.wait_for(|phase| *phase != Phase::Running) => break,
            }
        }
        background.abort_all();
        drop(incoming);
        tracing::info!("stopping: {} connections", service.connections());
        let all = async { while connections.join_next().await.is_some() {} };
        let grace = service.options.shutdown_grace;
        if tokio::time::timeout(grace, all).await.is_err() {
            tracing::warn!("statements still run after {} s: cancelling them", grace.as_secs());
            service.cancel_all();
            let rest = async { while connections.join_next().await.is_some() {} };
            // Whoever does not read its answer by now will not.
            let _ = tokio::time::timeout(Duration::from_secs(5), rest).await;
            connections.shutdown().await;
        }
    }
}

/// As many as descriptors are there for, beside the clients.
fn strangers_max(service: &Service) -> usize {
    let Some(descriptors) = service.options.descriptors_max else { return STRANGERS_MAX };
    let wanted = service.options.connections_max + STRANGERS_MAX;
    let there = descriptors.saturating_sub(OTHER_DESCRIPTORS);
    if there < wanted {
        tracing::warn!("this process may open {descriptors} files, which is too few for {wanted} connections");
    }
    // At least a few, so that somebody gets in when clients leave.
    there.saturating_sub(service.options.connections_max).clamp(8, STRANGERS_MAX)
}

/// A connection that nobody serves yet.
enum Accepted {
    Tcp(TcpStream, SocketAddr),
    Local(UnixStream),
}

impl std::fmt::Display for Accepted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Accepted::Tcp(_, address) => address.fmt(f),
            Accepted::Local(_) => f.write_str("a client by the local socket"),
        }
    }
}

impl Accepted {
    fn address(&self) -> Option<IpAddr> {
        match self {
            Accepted::Tcp(_, address) => Some(address.ip().to_canonical()),
            Accepted::Local(_) => None,
        }
    }

    /// On which it comes in, if that is known.
    fn processor(&self) -> Option<usize> {
        match self {
            Accepted::Tcp(stream, _) => incoming::processor(stream),
            Accepted::Local(_) => None,
        }
    }
}

/// Passes on all connections that come, until nobody takes them any more.
async fn accept_all(next: impl AsyncFn() -> std::io::Result<Accepted>, accepted: Sender<Accepted>) {
    loop {
        match next().await {
            Ok(connection) => {
                if accepted.send(connection).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                // Out of descriptors, most likely: wait for some to come back.
                tracing::warn!("could not accept a connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Serves a connection on the thread that it has a place on, to whose runtime `enter` adds it.
async fn serve<S, I: Io + 'static>(
    service: Arc<Service>,
    stream: std::io::Result<S>,
    enter: impl FnOnce(S) -> std::io::Result<I>,
    peer: Peer,
    _place: Place,
    stranded: Stranded,
) {
    match stream.and_then(enter) {
        Ok(stream) => startup::serve(service, Box::new(stream), peer, Some(stranded)).await,
        Err(error) => tracing::warn!("could not serve a connection: {error}"),
    }
}

fn local_address(listener: &TcpListener) -> Result<SocketAddr> {
    listener.local_addr().map_err(|error| Error::io("find out the address listened on", &error))
}
