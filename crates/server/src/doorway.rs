//! What listens, before there is a service behind it: clients that connect are told to come again (57P03) while the database is
//! being opened.

use crate::metrics;
use crate::protocol::backend;
use crate::protocol::frontend::Opening;
use crate::wire::{Io, Wire};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tidepool_base::{Error, Result, SqlState};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinSet;

/// Connections that wait to be accepted. The kernel caps it at `net.core.somaxconn`.
const BACKLOG: u32 = 1024;

/// A client that takes longer to say what it wants is not told.
const PATIENCE: Duration = Duration::from_secs(5);

/// Clients that are told at once, of each listener. The others wait.
const TOLD_MAX: usize = 64;

/// Listens for clients, and for those who ask after health and metrics.
pub struct Doorway {
    addresses: Vec<SocketAddr>,
    listeners: Vec<Arc<TcpListener>>,
    metrics: Option<Arc<TcpListener>>,
    /// Another server's, until it ends.
    metrics_later: Option<SocketAddr>,
    told: JoinSet<()>,
}

impl Doorway {
    /// Listens on `address` (`HOST:PORT`; port 0 takes a free one), and for metrics on `metrics_address` if given. `may_wait`: the
    /// process may be a standby of the one that listens there.
    pub async fn open(address: &str, metrics_address: Option<&str>, may_wait: bool) -> Result<Doorway> {
        let mut addresses = resolve(address).await?;
        let mut listeners: Vec<Arc<TcpListener>> = Vec::new();
        for address in &mut addresses {
            // A name such as localhost has an address of each family: one port for both.
            if let (0, Some(first)) = (address.port(), listeners.first()) {
                address.set_port(local_address(first)?.port());
            }
            match listen(*address).await {
                Ok(listener) => listeners.push(Arc::new(listener)),
                Err(error) if may_wait && error.code() == SqlState::OBJECT_IN_USE => {
                    tracing::info!("{address} is another server's: this one serves clients there when it takes over");
                }
                // A machine without IPv6 still resolves localhost to ::1.
                Err(error) if !listeners.is_empty() => tracing::warn!("{error}"),
                Err(error) => return Err(error),
            }
        }
        let (mut metrics, mut metrics_later) = (None, None);
        if let Some(text) = metrics_address {
            let address = resolve(text).await?[0];
            match listen(address).await {
                Ok(listener) => metrics = Some(Arc::new(listener)),
                Err(error) if may_wait && error.code() == SqlState::OBJECT_IN_USE => {
                    tracing::info!("{address} is another server's: this one has metrics there once that one has ended");
                    metrics_later = Some(address);
                }
                Err(error) => return Err(error),
            }
        }
        let mut told = JoinSet::new();
        for listener in &listeners {
            told.spawn(tell_all(listener.clone()));
        }
        if let Some(listener) = &metrics {
            told.spawn(metrics::serve_starting(listener.clone()));
        }
        Ok(Doorway { addresses, listeners, metrics, metrics_later, told })
    }

    /// What listens, for the service that is there now; where it was to listen; and what listens for metrics, or will.
    pub(crate) async fn close(mut self) -> (Vec<TcpListener>, Vec<SocketAddr>, Option<MetricsPlace>) {
        // Nobody has them any more then.
        self.told.shutdown().await;
        let listeners = self.listeners.into_iter().filter_map(Arc::into_inner).collect();
        let metrics = self.metrics.and_then(Arc::into_inner).map(MetricsPlace::Listener);
        (listeners, self.addresses, metrics.or(self.metrics_later.map(MetricsPlace::Later)))
    }
}

/// Where a server has its metrics.
pub(crate) enum MetricsPlace {
    Listener(TcpListener),
    /// Once nobody else listens there.
    Later(SocketAddr),
}

/// Between two looks whether a place has become free.
const LATER_LOOKS: Duration = Duration::from_millis(20);

impl MetricsPlace {
    /// `None` while another server has it.
    pub(crate) fn address(&self) -> Option<Result<SocketAddr>> {
        match self {
            MetricsPlace::Listener(listener) => Some(local_address(listener)),
            MetricsPlace::Later(_) => None,
        }
    }

    /// What listens there, when it does.
    pub(crate) async fn listener(self) -> TcpListener {
        match self {
            MetricsPlace::Listener(listener) => listener,
            MetricsPlace::Later(address) => loop {
                tokio::time::sleep(LATER_LOOKS).await;
                if let Ok(listener) = listen(address).await {
                    tracing::info!("metrics at http://{address}/metrics");
                    return listener;
                }
            },
        }
    }
}

async fn tell_all(listener: Arc<TcpListener>) {
    let mut told = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => _ = told.spawn(tell(Box::new(stream))),
            Err(error) => {
                tracing::warn!("could not accept a connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        while told.try_join_next().is_some() {}
        if told.len() >= TOLD_MAX {
            told.join_next().await;
        }
    }
}

/// Tells a client that it is too early.
async fn tell(io: Box<dyn Io>) {
    let mut wire = Wire::new(io);
    let told = async {
        loop {
            match Opening::decode(&mut wire.input) {
                Ok(None) => wire.fill().await.ok()?,
                Ok(Some(Opening::Ssl | Opening::GssEncryption)) => {
                    wire.output.push(b'N');
                    wire.flush().await.ok()?;
                }
                Ok(Some(Opening::Startup { .. })) => {
                    let error = Error::new(SqlState::CANNOT_CONNECT_NOW, "the database system is starting up");
                    backend::error_response(&mut wire.output, "FATAL", &error);
                    wire.close().await;
                    return None::<()>;
                }
                Ok(Some(Opening::Cancel { .. })) | Err(_) => return None,
            }
        }
    };
    let _ = tokio::time::timeout(PATIENCE, told).await;
}

pub(crate) async fn listen(address: SocketAddr) -> Result<TcpListener> {
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

pub(crate) async fn resolve(text: &str) -> Result<Vec<SocketAddr>> {
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

pub(crate) fn local_address(listener: &TcpListener) -> Result<SocketAddr> {
    listener.local_addr().map_err(|error| Error::io("find out the address listened on", &error))
}
