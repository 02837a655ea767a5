//! Sessions that read at another host (`tidepool.route_reads`): the primary passes a client's connection to a reader where a transaction
//! begins that only reads, and the reader passes it back before something runs that may write.
//!
//! A connection goes between two statements, as at a switch-over ([`crate::passing`]): its session as bytes, with all that was read and not
//! worked on, and a duplicate of its socket, over a control connection ([`tidepool_pool::control`]). The primary connects to every reader of
//! its database. Both directions go by that connection.
//!
//! What holds, whoever dies or sleeps at any step:
//!
//! * **A connection belongs to one process at each moment.** Its owner *offers* it, and goes on owning it. The other host says that it *has* all
//!   of it, and does nothing with it. Then the owner says *go*. It is the other host's from when that message is in the kernel's queue, and not
//!   before. An owner that does not hear in time withdraws the offer, and says no "go" for it ever; so a host that wakes later has
//!   nothing to go on with.
//! * **Nothing is served while it is between two owners.** The connection that wrote itself down is gone from its process, with its session
//!   and its entries, before it is offered. If nobody takes it, it is made anew from the same bytes.
//! * **Nothing runs twice, and nothing is lost.** What the client sent last is not worked on where the connection is written down: it is part of the
//!   bytes. All that was answered is sent.
//! * **An owner that dies takes its connections with it.** If it dies before it said "go", the other host lets go of what it has. If the other
//!   host dies after that, nobody has the socket any more. Either way the kernel closes it, and the client sees the connection end.
//! * **Nobody else ends it.** Standbys let go of their duplicates when a connection leaves the primary: so it outlives the primary, if that dies.
//!   One that has not heard of it finds in the connection's pages that it is elsewhere ([`crate::kept`]).
//!
//! A reader works on what came only once it shows the log up to where the primary had written it. So a session sees what it wrote, and never less than
//! it saw before. If that takes too long, or the reader cannot go on with the session, the bytes go back as they are, and the primary does the
//! work.
//!
//! A session at a reader goes back to whichever host is primary then. It waits for one while there is none.

mod link;

use crate::connection::Connection;
use crate::handover::Handover;
use crate::incoming::shut_down;
use crate::listener::stream_of;
use crate::passing::Stage;
use crate::service::{Phase, Service};
use crate::startup;
use crate::threads::Place;
use link::Link;
use parking_lot::{Condvar, Mutex};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result};
use tidepool_database::{Database, HostRole, Lsn};
use tidepool_planner::PortableSession;
use tidepool_pool::control::{ControlConnection, ControlListener};
use tidepool_pool::words::{Role, TermState};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use zeroize::Zeroizing;

/// Between two looks of a thread whether there is something to do that it is not told of.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Between two tries to find a primary for a session that goes back.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// How long a session that goes back is kept while no host is primary. Then its connection ends.
const HOME_WITHIN: Duration = Duration::from_secs(60);

/// How long a reader may be behind what a session has seen, until the session goes back.
const SHOWN_WITHIN: Duration = Duration::from_millis(200);

/// How long a server that stops waits for sessions that it has offered.
const STOP_WITHIN: Duration = Duration::from_secs(2);

/// A connection that no process serves, and this one owns. Dropped, the connection ends.
pub(crate) struct Parcel {
    socket: Option<OwnedFd>,
    /// As [`PortableSession`] reads them. They may have secrets.
    bytes: Zeroizing<Vec<u8>>,
    /// The end of the log that the session may have seen.
    seen: Lsn,
    /// What comes first is worked on by the host that it comes to.
    stays: bool,
}

impl Parcel {
    pub(crate) fn new(socket: OwnedFd, bytes: Vec<u8>, seen: Lsn) -> Parcel {
        Parcel { socket: Some(socket), bytes: Zeroizing::new(bytes), seen, stays: false }
    }

    /// Another process owns it.
    fn let_go(mut self) {
        self.socket = None;
    }
}

impl Drop for Parcel {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket {
            shut_down(socket);
        }
    }
}

/// A connection that leaves, once it is gone from here.
pub(crate) struct Departure {
    routing: Arc<Routing>,
    parcel: Parcel,
    goes_home: bool,
}

impl std::fmt::Debug for Departure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Departure")
    }
}

impl Departure {
    pub(crate) fn go(self) {
        match self.goes_home {
            true => self.routing.send_home(self.parcel),
            false => self.routing.send_out(self.parcel),
        }
    }
}

/// What comes from another host, or back from where it was to go.
pub(crate) enum Arrived {
    Session(Parcel),
    /// A client's request to cancel, which came to a host that does not have the client.
    Cancel {
        process_id: i32,
        secret: Vec<u8>,
    },
}

/// A session of another host, which is here as long as it reads. Dropped, its connection ends.
pub(crate) struct Guest {
    routing: Arc<Routing>,
    socket: Option<OwnedFd>,
    /// The session's number at its host.
    pub(crate) id: u32,
}

impl Guest {
    /// Its socket, to go back with.
    pub(crate) fn take_socket(&mut self) -> Option<OwnedFd> {
        self.socket.take()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.routing.guests.fetch_sub(1, Ordering::Relaxed);
        if let Some(socket) = &self.socket {
            shut_down(socket);
        }
    }
}

/// What a connection knows of routing.
pub(crate) struct Routes {
    pub(crate) routing: Arc<Routing>,
    pub(crate) guest: Option<Guest>,
    /// What comes next is worked on here.
    pub(crate) stays: bool,
}

impl Routes {
    pub(crate) fn departure(&self, parcel: Parcel) -> Departure {
        Departure { routing: self.routing.clone(), parcel, goes_home: self.guest.is_some() }
    }
}

/// Counts since the server started.
#[derive(Default)]
pub(crate) struct Counts {
    /// Sessions that readers took from here.
    pub(crate) out: AtomicU64,
    /// Sessions that went back from here to the primary.
    pub(crate) home: AtomicU64,
    /// Sessions that were to go out, and stayed as no reader took them.
    pub(crate) kept: AtomicU64,
}

/// Passes sessions between the primary and readers.
pub(crate) struct Routing {
    database: Arc<Database>,
    service: Weak<Service>,
    /// What connections are asked at a switch-over.
    stages: Option<watch::Receiver<Stage>>,
    links: Mutex<Vec<Arc<Link>>>,
    /// Links to readers.
    readers: AtomicUsize,
    /// Sessions that go back, and that no host has taken yet; with since when.
    homeward: Mutex<Vec<(Parcel, Instant)>>,
    changed: Condvar,
    /// Numbers offers.
    next: AtomicU64,
    guests: AtomicUsize,
    pub(crate) counts: Counts,
    arrived: UnboundedSender<Arrived>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    stopped: AtomicBool,
}

impl Routing {
    /// Of a database that lives in a pool, with what arrives. `None`: there are no other hosts.
    pub(crate) fn start(
        service: &Arc<Service>,
        stages: Option<watch::Receiver<Stage>>,
    ) -> Result<Option<(Arc<Routing>, UnboundedReceiver<Arrived>)>> {
        let database = service.planner().database();
        let Some(host) = database.pool().filter(|_| database.role() != HostRole::Alone) else { return Ok(None) };
        let (pool, member) = (host.pool(), host.member());
        let (arrived, arrivals) = unbounded_channel();
        let routing = Arc::new(Routing {
            database: database.clone(),
            service: Arc::downgrade(service),
            stages,
            links: Mutex::default(),
            readers: AtomicUsize::new(0),
            homeward: Mutex::default(),
            changed: Condvar::new(),
            next: AtomicU64::new(1),
            guests: AtomicUsize::new(0),
            counts: Counts::default(),
            arrived,
            threads: Mutex::default(),
            stopped: AtomicBool::new(false),
        });
        if database.is_reader() {
            let own = pool.hosts()?.into_iter().find(|view| view.host == member.host()).and_then(|view| view.text);
            let path = own.map(|text| PathBuf::from(text.control_socket)).filter(|path| !path.as_os_str().is_empty());
            match path.map(|path| ControlListener::bind(&path, pool, member.host())) {
                Some(Ok(listener)) => {
                    let of_thread = routing.clone();
                    routing.spawn("routing-accept", move || of_thread.accept(&listener))?;
                }
                // It serves its own clients.
                Some(Err(error)) => tracing::warn!("the primary cannot pass sessions to this reader: {error}"),
                None => tracing::info!("the primary cannot pass sessions to this reader: it listens nowhere"),
            }
            let of_thread = routing.clone();
            routing.spawn("routing-home", move || of_thread.attend_homeward())?;
        } else {
            let of_thread = routing.clone();
            routing.spawn("routing-attend", move || of_thread.attend_readers())?;
        }
        Ok(Some((routing, arrivals)))
    }

    /// Waits until other hosts have what was offered to them, and ends what works for it.
    pub(crate) fn stop(&self) {
        let end = Instant::now() + STOP_WITHIN;
        let is_busy = || {
            let links = self.links.lock();
            !self.homeward.lock().is_empty() || links.iter().any(|link| link.has_offers())
        };
        while is_busy() && Instant::now() < end {
            std::thread::sleep(RETRY_INTERVAL);
        }
        self.stopped.store(true, Ordering::Release);
        self.changed.notify_all();
        loop {
            let Some(thread) = self.threads.lock().pop() else { break };
            // It has told of its panic itself.
            let _ = thread.join();
        }
        self.homeward.lock().clear();
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(work);
        let thread = spawned.map_err(|error| Error::io("start a thread", &error))?;
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    /// Whether a session may find a reader now.
    #[inline]
    pub(crate) fn has_readers(&self) -> bool {
        self.readers.load(Ordering::Relaxed) > 0 && self.database.role() == HostRole::Primary
    }

    /// Of a connection that is served here: how it finds its way.
    pub(crate) fn routes(self: &Arc<Self>) -> Routes {
        Routes { routing: self.clone(), guest: None, stays: false }
    }

    /// Whether this host goes on with what another one passes to it.
    fn takes(&self) -> bool {
        let Some(service) = self.service.upgrade() else { return false };
        let is_ready = match self.database.is_reader() {
            true => {
                self.database.role() == HostRole::Following && service.connections() < service.options.connections_max
            }
            // While connections stop for another host, those that come would be late.
            false => {
                let is_asked = |stages: &watch::Receiver<Stage>| *stages.borrow() != Stage::Nothing;
                self.database.role() == HostRole::Primary && !self.stages.as_ref().is_some_and(is_asked)
            }
        };
        is_ready && !self.is_stopped() && *service.phase.borrow() == Phase::Running
    }

    /// Offers a session to the reader that has the least to do.
    fn send_out(&self, parcel: Parcel) {
        let now = Instant::now();
        let link = {
            let links = self.links.lock();
            links.iter().filter(|link| link.may_be_chosen(now)).min_by_key(|link| link.load()).cloned()
        };
        let refused = match link {
            Some(link) => link.offer(self.next.fetch_add(1, Ordering::Relaxed), parcel),
            None => Err(parcel),
        };
        if let Err(parcel) = refused {
            self.not_taken(parcel);
        }
    }

    /// Offers a session to the primary, or keeps it until there is one.
    fn send_home(&self, parcel: Parcel) {
        if let Err(parcel) = self.offer_home(parcel) {
            self.homeward.lock().push((parcel, Instant::now()));
            self.changed.notify_all();
        }
    }

    fn offer_home(&self, parcel: Parcel) -> std::result::Result<(), Parcel> {
        let reign = self.database.pool().and_then(|host| host.member().reign().ok());
        let Some(reign) = reign.filter(|reign| reign.state == TermState::Running) else { return Err(parcel) };
        let link = self.links.lock().iter().find(|link| reign.is_of(link.peer())).cloned();
        match link {
            Some(link) => link.offer(self.next.fetch_add(1, Ordering::Relaxed), parcel),
            None => Err(parcel),
        }
    }

    /// An offer has come to nothing: the session is this host's, as it was.
    fn not_taken(&self, mut parcel: Parcel) {
        if self.database.is_reader() {
            self.homeward.lock().push((parcel, Instant::now()));
            self.changed.notify_all();
            return;
        }
        tracing::debug!("no reader has taken a session: it stays");
        self.counts.kept.fetch_add(1, Ordering::Relaxed);
        parcel.stays = true;
        // Where nobody receives it, the server has stopped, and the connection ends.
        let _ = self.arrived.send(Arrived::Session(parcel));
    }

    /// Another host has taken a session that was offered to it.
    fn taken(&self, link: &Link) {
        let (counter, what) = match self.database.is_reader() {
            true => (&self.counts.home, "has taken a session back"),
            false => (&self.counts.out, "has taken a session that reads"),
        };
        counter.fetch_add(1, Ordering::Relaxed);
        tracing::debug!("{} {what}", link.peer());
    }

    /// Passes a request to cancel on: the client may be at any of the hosts.
    pub(crate) fn pass_cancel(&self, process_id: i32, secret: &[u8]) {
        for link in self.links.lock().iter() {
            link.cancel(process_id, secret);
        }
    }

    /// Serves a connection with another host on a thread of its own.
    fn attend(self: &Arc<Self>, connection: ControlConnection, is_reader: bool) {
        let link = Arc::new(Link::new(connection));
        tracing::debug!("{} is connected for sessions that read", link.peer());
        self.links.lock().push(link.clone());
        let (routing, of_thread) = (self.clone(), link.clone());
        self.readers.fetch_add(usize::from(is_reader), Ordering::Relaxed);
        let spawned = self.spawn("routing-link", move || {
            let offers = of_thread.serve(&routing);
            routing.links.lock().retain(|known| !Arc::ptr_eq(known, &of_thread));
            routing.readers.fetch_sub(usize::from(is_reader), Ordering::Relaxed);
            offers.into_iter().for_each(|parcel| routing.not_taken(parcel));
        });
        if let Err(error) = spawned {
            tracing::warn!("sessions are not passed to {}: {error}", link.peer());
            self.links.lock().retain(|known| !Arc::ptr_eq(known, &link));
            self.readers.fetch_sub(usize::from(is_reader), Ordering::Relaxed);
        }
    }

    /// At a reader: lets primaries connect.
    fn accept(self: &Arc<Self>, listener: &ControlListener) {
        let Some(host) = self.database.pool() else { return };
        while !self.is_stopped() {
            match listener.accept(host.pool(), LOOK_INTERVAL) {
                Ok(Some(connection)) => self.attend(connection, false),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!("{error}");
                    std::thread::sleep(LOOK_INTERVAL);
                }
            }
        }
    }

    /// At a reader: finds the primary for sessions that go back, and says how much there is to do here.
    fn attend_homeward(&self) {
        let mut said = None;
        while !self.is_stopped() {
            let waiting = std::mem::take(&mut *self.homeward.lock());
            for (parcel, since) in waiting {
                match self.offer_home(parcel) {
                    Ok(()) => {}
                    Err(parcel) if since.elapsed() < HOME_WITHIN => self.homeward.lock().push((parcel, since)),
                    Err(_) => tracing::warn!("a connection ends: there is no primary for it to go back to"),
                }
            }
            if let Some(service) = self.service.upgrade() {
                let now = (service.planner().statements_running() as u32, self.guests.load(Ordering::Relaxed) as u32);
                let links = self.links.lock();
                // What one was told that is gone is not known to the next.
                if said != Some((now, links.len())) {
                    links.iter().for_each(|link| link.say_load(now));
                    said = Some((now, links.len()));
                }
            }
            let mut homeward = self.homeward.lock();
            match homeward.is_empty() {
                true => _ = self.changed.wait_for(&mut homeward, LOOK_INTERVAL),
                false => {
                    drop(homeward);
                    std::thread::sleep(RETRY_INTERVAL);
                }
            }
        }
    }

    /// At a host that is primary, or may be one day: connects to all readers while it is.
    fn attend_readers(self: &Arc<Self>) {
        let Some(host) = self.database.pool() else { return };
        let (pool, own) = (host.pool(), host.member().host());
        let mut role = self.database.role();
        while !self.is_stopped() {
            if role == HostRole::Primary {
                let views = pool.hosts().unwrap_or_default();
                let database = views.iter().find(|view| view.host == own).map(|view| view.ident.database);
                let is_reader = |view: &&tidepool_pool::pool::HostView| {
                    view.ident.role == Role::Reader
                        && view.ident.state.is_live()
                        && Some(view.ident.database) == database
                        && view.text.as_ref().is_some_and(|text| !text.control_socket.is_empty())
                };
                for view in views.iter().filter(is_reader) {
                    if self.links.lock().iter().any(|link| link.peer() == view.host) {
                        continue;
                    }
                    match ControlConnection::connect(pool, own, view.host) {
                        Ok(connection) => self.attend(connection, true),
                        // It may not listen yet.
                        Err(error) => tracing::trace!("{error}"),
                    }
                }
            }
            role = self.database.wait_role(role, LOOK_INTERVAL);
        }
    }

    /// Makes the connection anew that was written down.
    fn connection_of(service: &Arc<Service>, parcel: &Parcel) -> Result<(Connection, u32)> {
        let failed = |error: &std::io::Error| Error::io("go on with a connection", error);
        let Some(socket) = &parcel.socket else { return Err(Error::internal("a connection without a socket")) };
        let socket = socket.try_clone().map_err(|error| failed(&error))?;
        let stream = stream_of(socket).map_err(|error| failed(&error))?;
        let portable = PortableSession::from_bytes(&parcel.bytes)?;
        let id = portable.id;
        let connection = startup::made_anew(service, stream, portable)?;
        Ok((connection, id))
    }

    /// Until statements here see the log up to there. False: that takes too long.
    async fn is_shown(&self, position: Lsn) -> bool {
        if self.database.shows(position) {
            return true;
        }
        let (told, shown) = tokio::sync::oneshot::channel();
        let _wait = self.database.when_shown(position, move |outcome| drop(told.send(outcome)));
        matches!(tokio::time::timeout(SHOWN_WITHIN, shown).await, Ok(Ok(Ok(()))))
    }
}

/// Goes on with a session that arrived, on the thread that it has a place on.
pub(crate) async fn go_on(
    service: Arc<Service>,
    routing: Arc<Routing>,
    handover: Option<Arc<Handover>>,
    mut parcel: Parcel,
    _place: Place,
) {
    let is_reader = routing.database.is_reader();
    if is_reader && !routing.is_shown(parcel.seen).await {
        tracing::debug!("a session goes back: this reader does not show what it has seen");
        parcel.stays = true;
        routing.send_home(parcel);
        return;
    }
    let (mut connection, id) = match Routing::connection_of(&service, &parcel) {
        Ok(connection) => connection,
        Err(error) if is_reader => {
            tracing::debug!("a session goes back, as it cannot go on here: {error}");
            parcel.stays = true;
            routing.send_home(parcel);
            return;
        }
        Err(error) => {
            tracing::warn!("a connection that was at a reader cannot go on here: {error}");
            return;
        }
    };
    let Some(socket) = parcel.socket.take() else { return };
    let guest = match is_reader {
        true => {
            routing.guests.fetch_add(1, Ordering::Relaxed);
            Some(Guest { routing: routing.clone(), socket: Some(socket), id })
        }
        false => {
            connection.share(handover.as_ref().and_then(|handover| handover.share_client(&socket)));
            None
        }
    };
    connection.set_routes(Routes { routing, guest, stays: parcel.stays });
    drop((parcel, handover));
    startup::run(&service, connection).await;
}
