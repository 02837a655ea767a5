//! Listening, and stopping.

use crate::auth::Peer;
use crate::doorway::{Doorway, MetricsPlace, listen, local_address, resolve};
use crate::handover::{Handover, InheritedListener, ListenerKind, SharedClient, Taken};
use crate::local::{LocalListener, LocalPlace};
use crate::metrics;
use crate::passing::Stage;
use crate::routing::{self, Arrived, Routing};
use crate::service::{Phase, Service};
use crate::strangers::{Stranded, Strangers};
use crate::succession::InheritedSession;
use crate::threads::{Place, Threads};
use crate::wire::Io;
use crate::{DATABASE_NAME, ROLE_NAME, incoming, startup};
use parking_lot::Mutex;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidepool_base::{Error, Result, SqlState};
use tidepool_database::HostRole;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc::{Sender, UnboundedReceiver};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Sockets beyond the clients allowed: those that are still saying who they are, and cancel requests.
const STRANGERS_MAX: usize = 256;

/// Descriptors that are not for clients: of files, of the log, of what listens.
const OTHER_DESCRIPTORS: usize = 128;

/// Of a connection that other hosts have, too: its socket, a duplicate of that, and its pages.
const SHARED_DESCRIPTORS: usize = 3;

/// How long a host that was taken over from may be alive before listeners that it has, too, are shut down and made anew. It is
/// ended meanwhile, where it can be.
const PREDECESSOR_WAIT: Duration = Duration::from_secs(1);
const PREDECESSOR_LOOKS: Duration = Duration::from_millis(10);

/// How long an address is waited for that another server listens on, whose database this one has taken over.
const LISTEN_WAIT: Duration = Duration::from_secs(5);

/// A service that listens.
pub struct Server {
    service: Arc<Service>,
    listeners: Vec<TcpListener>,
    /// Where it is to listen first of all. A standby may find another host there, which it takes over from one day.
    address: SocketAddr,
    /// What other hosts of the database share with it.
    handover: Option<(Arc<Handover>, UnboundedReceiver<Taken>)>,
    /// Sessions that other hosts pass to it, and it to them.
    routing: Option<(Arc<Routing>, UnboundedReceiver<Arrived>)>,
    local: Option<LocalListener>,
    metrics: Option<MetricsPlace>,
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
        let doorway = Doorway::open(address, metrics_address, service.planner.database().is_following()).await?;
        Server::within(service, doorway, socket_directory).await
    }

    /// As `bind`, with what listens already.
    pub async fn within(service: Arc<Service>, doorway: Doorway, socket_directory: Option<&Path>) -> Result<Server> {
        let (mut listeners, addresses, metrics) = doorway.close().await;
        let database = service.planner.database().clone();
        let end = tokio::time::Instant::now() + LISTEN_WAIT;
        while listeners.is_empty() && !database.is_following() {
            // Whom it took over from has not ended yet.
            match listen(addresses[0]).await {
                Ok(listener) => listeners.push(listener),
                Err(error) if tokio::time::Instant::now() > end => return Err(error),
                Err(_) => tokio::time::sleep(PREDECESSOR_LOOKS).await,
            }
        }
        let state = database.state();
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
        let address = match listeners.first() {
            Some(listener) => local_address(listener)?,
            None => addresses[0],
        };
        let local = socket_directory.map(|folder| LocalListener::bind(folder, address.port())).transpose();
        let local = match local {
            // Its primary has it, on the same machine.
            Err(error) if error.code() == SqlState::OBJECT_IN_USE && database.is_following() => {
                tracing::info!("{error}");
                None
            }
            local => local?,
        };
        let own: Vec<String> = addresses.iter().map(|address| address.to_string()).collect();
        let here: Vec<String> =
            listeners.iter().filter_map(|listener| Some(local_address(listener).ok()?.to_string())).collect();
        let wanted = own.iter().filter(|address| !here.contains(address)).cloned().collect();
        let handover = Handover::start(&service.planner, own, wanted)?;
        let routing = Routing::start(&service, stages(handover.as_ref().map(|(handover, _)| handover)))?;
        if let Some((routing, _)) = &routing {
            // Once a service.
            let _ = service.routing.set(routing.clone());
        }
        let of_watch = Arc::downgrade(&service);
        database.watch_role(Box::new(move |role| {
            if role == HostRole::Fenced
                && let Some(service) = of_watch.upgrade()
            {
                service.end_role();
            }
        }));
        let cores = &service.planner.database().config().workload.transactions.cores;
        let count = match cores.len() {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            count => count,
        };
        // Two at least: one may be held up.
        let threads = Threads::start(count.max(2), cores, service.planner.database())?;
        Ok(Server { service, listeners, address, handover, routing, local, metrics, threads })
    }

    /// Where clients connect.
    pub fn address(&self) -> Result<SocketAddr> {
        Ok(self.address)
    }

    /// `None` also while another server has the place.
    pub fn metrics_address(&self) -> Result<Option<SocketAddr>> {
        self.metrics.as_ref().and_then(MetricsPlace::address).transpose()
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
        let Server { service, listeners, local, metrics, threads, handover, routing, .. } = self;
        let (handover, mut inherited) = handover.unzip();
        let (routing, mut arrivals) = routing.unzip();
        let mut phase = service.phase.subscribe();
        let mut connections = JoinSet::new();
        let mut background = JoinSet::new();
        if let Some(place) = metrics {
            let service = service.clone();
            background.spawn(async move { metrics::serve(service, place.listener().await).await });
        }
        let strangers = Strangers::new(strangers_max(&service));
        let (accepted, mut incoming) = tokio::sync::mpsc::channel(64);
        for listener in listeners {
            if let (Some(handover), Ok(address)) = (&handover, local_address(&listener)) {
                handover.share_listener(ListenerKind::Tcp, address.to_string(), &listener);
            }
            let next = async move || listener.accept().await.map(|(stream, address)| Accepted::Tcp(stream, address));
            background.spawn(accept_all(next, accepted.clone(), stages(handover.as_ref())));
        }
        let own_place = local.as_ref().map(|local| local.path().display().to_string());
        if let Some(local) = local {
            if let Some(handover) = &handover {
                handover.share_listener(ListenerKind::Local, local.path().display().to_string(), local.socket());
            }
            let next = async move || local.accept().await.map(Accepted::Local);
            background.spawn(accept_all(next, accepted.clone(), stages(handover.as_ref())));
        }
        loop {
            let inherited_next = async {
                match &mut inherited {
                    Some(inherited) => inherited.recv().await,
                    None => std::future::pending().await,
                }
            };
            let arrived_next = async {
                match &mut arrivals {
                    Some(arrivals) => arrivals.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(arrived) = arrived_next => match arrived {
                    Arrived::Cancel { process_id, secret } => _ = service.cancel(process_id, &secret),
                    Arrived::Session(parcel) => {
                        let (Some(routing), Some(place)) = (routing.clone(), threads.place(None)) else { continue };
                        let handle = place.handle.clone();
                        let going_on = routing::go_on(service.clone(), routing, handover.clone(), parcel, place);
                        connections.spawn_on(going_on, &handle);
                    }
                },
                Some(taken) = inherited_next => {
                    let (service, accepted) = (service.clone(), accepted.clone());
                    let Some(handover) = handover.clone() else { continue };
                    match taken {
                        // What is at the place of one of its own is that.
                        Taken::Listener(listener) if Some(&listener.address) == own_place.as_ref() => {}
                        Taken::Listener(listener) => {
                            background.spawn(accept_inherited(service, handover, listener, accepted));
                        }
                        Taken::Address(address) => {
                            background.spawn(accept_anew(service, handover, address, accepted));
                        }
                        Taken::Cancel { process_id, secret } => _ = service.cancel(process_id, &secret),
                        Taken::Session(session) => {
                            let Some(place) = threads.place(None) else { continue };
                            let handle = place.handle.clone();
                            connections.spawn_on(go_on(service, handover, *session, place), &handle);
                        }
                    }
                }
                Some(stream) = incoming.recv() => {
                    tracing::debug!("connection from {stream}");
                    let Some(place) = threads.place(stream.processor()) else { continue };
                    let handle = place.handle.clone();
                    let (stranded, is_full) = strangers.enter(stream.address());
                    if is_full {
                        tracing::info!("a connection that has not said who it is makes room for {stream}");
                    }
                    let number = stranded.number();
                    let share = |socket: &dyn AsFd| handover.as_ref().and_then(|handover| handover.share_client(&socket));
                    let task = match stream {
                        Accepted::Tcp(stream, address) => {
                            let shared = share(&stream);
                            // Answers are written whole; waiting to fill a packet only delays them.
                            let _ = stream.set_nodelay(true);
                            let peer = match address.ip().to_canonical().is_loopback() {
                                true => Peer::Loopback,
                                false => Peer::Remote,
                            };
                            let stream = stream.into_std();
                            let serving = serve(service.clone(), stream, TcpStream::from_std, peer, place, stranded, shared);
                            connections.spawn_on(serving, &handle)
                        }
                        Accepted::Local(stream) => {
                            let shared = share(&stream);
                            let (stream, peer) = (stream.into_std(), Peer::Local);
                            let serving = serve(service.clone(), stream, UnixStream::from_std, peer, place, stranded, shared);
                            connections.spawn_on(serving, &handle)
                        }
                    };
                    strangers.set_task(number, task);
                }
                Some(_) = connections.join_next() => (),
                // Also where it was asked to before anybody listened.
                _ = phase.wait_for(|phase| *phase == Phase::Stopping) => break,
            }
        }
        // What they hold of the database is let go of by then.
        background.shutdown().await;
        drop(incoming);
        if let Some(handover) = &handover {
            let handover = handover.clone();
            let _ = tokio::task::spawn_blocking(move || handover.stop()).await;
        }
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
        // Connections of other hosts go back to them until here.
        drop(arrivals);
        if let Some(routing) = routing {
            let _ = tokio::task::spawn_blocking(move || routing.stop()).await;
        }
    }
}

/// As many as descriptors are there for, beside the clients.
fn strangers_max(service: &Service) -> usize {
    let Some(descriptors) = service.options.descriptors_max else { return STRANGERS_MAX };
    let wanted = service.options.connections_max + STRANGERS_MAX;
    let each = match service.planner.database().role() {
        HostRole::Alone => 1,
        _ => SHARED_DESCRIPTORS,
    };
    let there = descriptors.saturating_sub(OTHER_DESCRIPTORS) / each;
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

/// What connections that may go over are asked. `None`: none may.
fn stages(handover: Option<&Arc<Handover>>) -> Option<watch::Receiver<Stage>> {
    handover.map(|handover| handover.passing.stages())
}

/// Returns once connections are stopped, or are not any more.
async fn stopping(stages: &mut Option<watch::Receiver<Stage>>, wanted: bool) {
    let Some(stages) = stages else { return std::future::pending().await };
    if stages.wait_for(|stage| matches!(*stage, Stage::Stopping | Stage::Losing) == wanted).await.is_err() {
        std::future::pending().await
    }
}

/// Passes on all connections that come, until nobody takes them any more. While connections are stopped which go over to another host, those
/// that come wait for that host.
async fn accept_all(
    next: impl AsyncFn() -> std::io::Result<Accepted>,
    accepted: Sender<Accepted>,
    mut stages: Option<watch::Receiver<Stage>>,
) {
    loop {
        let next = tokio::select! {
            biased;
            () = stopping(&mut stages, true) => {
                stopping(&mut stages, false).await;
                continue;
            }
            next = next() => next,
        };
        match next {
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
    shared: Option<SharedClient>,
) {
    match stream.and_then(enter) {
        Ok(stream) => startup::serve(service, Box::new(stream), peer, Some(stranded), shared).await,
        Err(error) => tracing::warn!("could not serve a connection: {error}"),
    }
}

/// Goes on with a connection of the primary before, on the thread that it has a place on.
async fn go_on(service: Arc<Service>, handover: Arc<Handover>, session: InheritedSession, _place: Place) {
    let mut session = session;
    let (gate, coming) = (session.gate(), session.coming());
    let InheritedSession { socket, portable, beginning, .. } = session;
    // Ends it where it cannot go on.
    let shared = handover.share_client(&socket);
    drop(handover);
    match stream_of(socket) {
        Ok(stream) => startup::go_on(service, stream, (portable, beginning), (gate, coming), shared).await,
        Err(error) => tracing::warn!("could not go on with a connection: {error}"),
    }
}

/// A client's socket that came from another host.
pub(crate) fn stream_of(socket: OwnedFd) -> std::io::Result<Box<dyn Io>> {
    let local = std::os::unix::net::UnixStream::from(socket);
    match local.local_addr().is_ok() {
        true => UnixStream::from_std(local).map(|stream| Box::new(stream) as Box<dyn Io>),
        false => TcpStream::from_std(OwnedFd::from(local).into()).map(|stream| Box::new(stream) as Box<dyn Io>),
    }
}

/// Returns when the host that this one took over from has lived on for too long. Until then it may wake.
async fn outlived(service: Arc<Service>) {
    let end = tokio::time::Instant::now() + PREDECESSOR_WAIT;
    while service.planner.database().living_predecessor().is_some() {
        if tokio::time::Instant::now() > end {
            return;
        }
        tokio::time::sleep(PREDECESSOR_LOOKS).await;
    }
    std::future::pending().await
}

/// Holds the place of a socket in the file system that this host has of another one, from when that one is gone: so that no third takes it
/// for one that a server left behind, and that what is there goes with this server.
async fn hold_place(kind: ListenerKind, address: &str, place: &Mutex<Option<LocalPlace>>) {
    if kind == ListenerKind::Local {
        loop {
            match LocalPlace::take(Path::new(address)) {
                Ok(Some(taken)) => {
                    *place.lock() = Some(taken);
                    break;
                }
                Ok(None) => tokio::time::sleep(PREDECESSOR_LOOKS).await,
                Err(error) => {
                    tracing::warn!("{error}");
                    break;
                }
            }
        }
    }
    std::future::pending().await
}

async fn accept_from(
    kind: ListenerKind,
    socket: OwnedFd,
    accepted: Sender<Accepted>,
    stages: Option<watch::Receiver<Stage>>,
) -> std::io::Result<()> {
    match kind {
        ListenerKind::Tcp => {
            let listener = TcpListener::from_std(socket.into())?;
            let next = async move || listener.accept().await.map(|(stream, address)| Accepted::Tcp(stream, address));
            accept_all(next, accepted, stages).await;
        }
        ListenerKind::Local => {
            let listener = UnixListener::from_std(socket.into())?;
            let next = async move || listener.accept().await.map(|(stream, _)| Accepted::Local(stream));
            accept_all(next, accepted, stages).await;
        }
    }
    Ok(())
}

/// Accepts from a listener of the primary that this host took over from. While that one may wake, it would accept, too: if it
/// cannot be ended, the listener is ended in all processes, and made anew.
async fn accept_inherited(
    service: Arc<Service>,
    handover: Arc<Handover>,
    inherited: InheritedListener,
    accepted: Sender<Accepted>,
) {
    let InheritedListener { kind, address, socket } = inherited;
    tracing::info!("clients that connect to {address} are served by this host from now on");
    let went_back = handover.share_inherited(kind, &address, &socket);
    let both = socket.try_clone();
    let stages = Some(handover.passing.stages());
    let accepting = accept_from(kind, socket, accepted.clone(), stages.clone());
    let place = Mutex::new(None);
    let holding = hold_place(kind, &address, &place);
    tokio::select! {
        ended = accepting => {
            if let Err(error) = ended {
                tracing::error!("could not accept connections to {address}: {error}");
            }
            return;
        }
        // It does not return.
        () = holding => return,
        // The sender is gone only where another one took its place.
        Ok(()) = went_back => {
            place.lock().take().into_iter().for_each(LocalPlace::leave);
            return;
        }
        () = outlived(service) => {}
    }
    if let Ok(both) = both {
        incoming::shut_down(&both);
    }
    let anew = match (kind, address.parse()) {
        (ListenerKind::Tcp, Ok(address)) => listen(address).await,
        _ => return,
    };
    match anew {
        Ok(listener) => {
            handover.share_listener(kind, address.to_string(), &listener);
            let next = async move || listener.accept().await.map(|(stream, address)| Accepted::Tcp(stream, address));
            accept_all(next, accepted, stages).await;
        }
        Err(error) => tracing::error!("{error}"),
    }
}

/// Between two tries to listen where another process does, at most.
const ANEW_LOOKS: Duration = Duration::from_secs(1);

/// Listens at an address whose listener the primary before did not share before it died.
async fn accept_anew(service: Arc<Service>, handover: Arc<Handover>, address: String, accepted: Sender<Accepted>) {
    let addresses = match resolve(&address).await {
        Ok(addresses) => addresses,
        Err(error) => return tracing::warn!("{error}"),
    };
    let mut accepting = JoinSet::new();
    // Nobody connects to a port that was to be a free one.
    for address in addresses.into_iter().filter(|address| address.port() != 0) {
        accepting.spawn(accept_anew_at(service.clone(), handover.clone(), address, accepted.clone()));
    }
    drop((service, handover, accepted));
    while accepting.join_next().await.is_some() {}
}

async fn accept_anew_at(
    service: Arc<Service>,
    handover: Arc<Handover>,
    address: SocketAddr,
    accepted: Sender<Accepted>,
) {
    let name = address.to_string();
    let mut pause = PREDECESSOR_LOOKS;
    let listener = loop {
        // The listener may come yet, from the host before where that lives.
        if service.planner.database().role() != HostRole::Primary || handover.listens(&name) {
            return;
        }
        match listen(address).await {
            Ok(listener) => break listener,
            Err(error) if error.code() == SqlState::OBJECT_IN_USE => {}
            Err(error) => return tracing::info!("clients that connect to {name} are not served by this host: {error}"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(ANEW_LOOKS);
    };
    tracing::info!("clients that connect to {name} are served by this host from now on");
    let went_back = handover.share_inherited(ListenerKind::Tcp, &name, &listener);
    let next = async move || listener.accept().await.map(|(stream, address)| Accepted::Tcp(stream, address));
    tokio::select! {
        () = accept_all(next, accepted, Some(handover.passing.stages())) => {}
        // The sender is gone only where another one took its place.
        Ok(()) = went_back => {}
    }
}
