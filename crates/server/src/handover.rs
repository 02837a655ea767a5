//! Sockets that a primary and its standbys on the same machine have in common, so that a client learns at once when the primary
//! is gone, and can connect at once to where it was.
//!
//! The primary passes duplicates of the sockets that it listens on, and of each client's socket, to every standby that asks
//! ([`tidepool_pool::control`]). A socket lives as long as one process has it. So a listener whose process is killed is
//! still there, and clients that connect wait in its queue instead of being refused, until the standby that takes over
//! accepts them. And the sockets of the clients would stay open without an answer until the standby is done with them: it shuts
//! them down when it has taken over, from a primary that was killed and from one that was stopped alike. The kernel itself would
//! close a killed process's sockets only after it has freed its memory. Clients that hear of the end sooner can only look for a primary that
//! is not there yet, on processors that the take-over needs; so they hear of it before only where the take-over takes long.
//!
//! * Only a standby that takes over or has, or that knows that the primary's process has ended, shuts clients down. One whose connection
//!   ended for another reason lets go of its duplicates and connects again.
//! * A primary that was taken over from may wake. It is ended by who took over (`tidepool_database`), and until that is certain,
//!   it may accept a client: it answers nothing but that it is no primary any more. Where it cannot be ended, its listeners
//!   are shut down, which ends them in every process, and made anew.
//! * An address belongs to the host that was given it. Who took over serves it while that host is away. When the host is back as a standby it asks
//!   for the address, has the listener already, and goes on with it; the primary accepts there no more.
//! * Nothing here is waited for by a client: what goes to a standby goes by a thread of its own, and one that does not read is
//!   let go of.
//! * Besides sockets the primary passes on what its clients have prepared ([`StatementInUse`]), and a standby prepares it: clients that
//!   come all at once after a take-over find it done.
//! * A primary may die before it has shared its listeners. Who takes over listens anew then, where it was given the address itself or the
//!   pool says that the primary had it.
//! * A host that was taken over from accepts no more at addresses that it had inherited: who connects there is the new primary's.
//! * At a planned change of primary, clients' connections go over ([`crate::passing`]): the sockets are there already, and the sessions come as
//!   bytes, in pieces. A host that has all of a session goes on with it when it is primary, if the pool says that the pass is in force.

mod inherited;
mod message;
mod standbys;

use crate::incoming::{self, Positions, shut_down};
use crate::kept::Keeper;
use crate::passing::{Outcome, Passenger, Passing, Stopped, Written};
use crate::succession::{self, Beginning, Coming, InheritedClient, InheritedSession, gather};
use inherited::Inherited;
use message::{
    ASK, CANCEL, CLIENT, COUNTS, GONE, HAS, LET_GO, LISTENER, Message, PIECE, STATEMENT, Shared, SharedSocket, WANTED,
    YOURS,
};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result, SqlState, crash_point};
use tidepool_database::{Database, HostRole, PassesSessions, StateMark};
use tidepool_planner::{LookedAt, Planner, StatementInUse};
use tidepool_pool::control::{Arrival, ControlConnection, ControlListener};
use tidepool_pool::liveness::is_lock_held;
use tidepool_pool::pool::HostView;
use tidepool_pool::words::{Host, Reign};
use tokio::net::UnixStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use zeroize::Zeroizing;

/// Between two looks of a thread whether it is to end.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Between two tries to reach the primary.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Messages that wait for one standby. With more it is let go of.
const QUEUE_MAX: usize = 8_192;

/// Statements that standbys are told of, and how long between two looks for more.
const STATEMENTS_MAX: usize = 256;
const STATEMENTS_INTERVAL: Duration = Duration::from_millis(500);

/// A standby prepares statements anew when nothing that exists was changed for so long.
const PREPARE_AFTER: Duration = Duration::from_millis(100);

/// How long a host whose connection ended is looked at for its death. The kernel frees its memory first.
const END_WAIT: Duration = Duration::from_secs(5);

/// How long clients of the primary before hear nothing while this host takes over.
const TAKE_OVER_WAIT: Duration = Duration::from_millis(50);

/// How long a standby has to say that it has all sessions, and how long a message waits for room in its queue.
const PASS_WITHIN: Duration = Duration::from_secs(10);

/// How long a standby that follows already may take to ask for sockets, at least, and as a part of the time that open transactions have.
/// Clients go on meanwhile.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
const CONNECT_WITHIN_PART: u32 = 5;

/// Bytes of a session in one message.
const PIECE_BYTES: usize = 32 << 10;

/// What a listening socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListenerKind {
    Tcp,
    /// In the file system.
    Local,
}

/// A listening socket of a primary before.
#[derive(Debug)]
pub(crate) struct InheritedListener {
    pub(crate) kind: ListenerKind,
    /// `HOST:PORT`, or a path.
    pub(crate) address: String,
    pub(crate) socket: OwnedFd,
}

/// What comes from another host.
pub(crate) enum Taken {
    Listener(InheritedListener),
    /// Of this host or of the primary before, whose listener has not come: that one died first. By its configuration.
    Address(String),
    Session(Box<InheritedSession>),
    /// A client's request to cancel, which came to a host that does not have the client.
    Cancel {
        process_id: i32,
        secret: Vec<u8>,
    },
}

/// Of a host that serves clients: what it shares.
#[derive(Default)]
struct Own {
    next: u64,
    clients: HashMap<u64, SharedSocket>,
    listeners: Vec<(ListenerKind, String, Shared)>,
    standbys: Vec<(u64, Host, SyncSender<Message>)>,
    /// Whether there is one.
    is_followed: Arc<AtomicBool>,
    /// Those that it was given itself.
    addresses: Vec<String>,
    /// By address, ends the accepting at one that was inherited.
    stops: HashMap<String, oneshot::Sender<()>>,
    /// What its clients have prepared.
    statements: HashSet<StatementInUse>,
}

impl Own {
    /// To all standbys that keep up.
    fn tell(&mut self, message: &Message) {
        self.retain(|(_, _, queue)| queue.try_send(message.clone()).is_ok());
    }

    fn retain(&mut self, is_kept: impl FnMut(&(u64, Host, SyncSender<Message>)) -> bool) {
        self.standbys.retain(is_kept);
        self.is_followed.store(!self.standbys.is_empty(), Ordering::Relaxed);
    }

    /// An address that another host was given, and not this one, too.
    fn is_inherited(&self, address: &str) -> bool {
        self.stops.contains_key(address) && !self.addresses.iter().any(|own| own == address)
    }

    /// Accepts no more at an address that was inherited.
    fn let_go(&mut self, address: &str) {
        if let Some(stop) = self.stops.remove(address) {
            let _ = stop.send(());
        }
        self.listeners.retain(|(_, known, _)| known != address);
        self.tell(&Message::LetGo(address.to_owned()));
    }

    /// Accepts no more at any address that was inherited. Who took over has the listeners.
    fn stop_inherited(&mut self) {
        for (address, stop) in self.stops.drain() {
            let _ = stop.send(());
            self.listeners.retain(|(_, known, _)| *known != address);
        }
    }
}

pub(crate) struct Handover {
    database: Arc<Database>,
    planner: Arc<Planner>,
    /// Of a host that follows: what clients of its primary have prepared.
    statements: Mutex<HashSet<StatementInUse>>,
    /// Apart: threads that tell standbys hold nothing else of this.
    own: Arc<Mutex<Own>>,
    /// Those that hold the database.
    threads: Mutex<Vec<JoinHandle<()>>>,
    inherited: Mutex<Inherited>,
    taken: UnboundedSender<Taken>,
    /// Connections of the primary before that have not begun here yet.
    coming: Arc<AtomicUsize>,
    stopped: AtomicBool,
    pub(crate) passing: Arc<Passing>,
    /// Whom sessions were passed to last.
    passed_to: Mutex<Option<Host>>,
}

impl std::fmt::Debug for Handover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handover")
    }
}

/// A client's socket while it is shared.
pub(crate) struct SharedClient {
    handover: Arc<Handover>,
    number: u64,
    socket: SharedSocket,
    is_gone: bool,
}

impl SharedClient {
    /// Where what the connection is can be put down for a process that comes after this one.
    pub(crate) fn keeper(&self) -> Option<&Arc<Keeper>> {
        self.socket.keeper.as_ref()
    }

    pub(crate) fn positions(&self) -> Option<Positions> {
        incoming::positions(&self.socket.socket)
    }

    /// The connection may go over to another host from now on.
    pub(crate) fn may_go_over(&self, session: u32, end_statement: impl Fn() + Send + 'static) -> Passenger {
        self.handover.passing.enter(self.number, session, end_statement)
    }

    /// Tells by `readable` when its client has sent something, or ended it; nothing is to be read from it. It is waited for alike whichever kind
    /// of socket it is.
    pub(crate) fn watch(&self) -> Option<UnixStream> {
        UnixStream::from_std(self.socket.socket.try_clone().ok()?.into()).ok()
    }

    /// Passes a request to cancel on to the primary: clients that went over to that host ask at the address that they know.
    pub(crate) fn pass_cancel(&self, process_id: i32, secret: &[u8]) {
        let connection = self.handover.inherited.lock().connection.clone();
        if let Some(connection) = connection {
            // It is as if the request had not come, where that host is gone.
            let _ = connection.send(&[&[CANCEL][..], &process_id.to_le_bytes(), secret].concat(), &[]);
        }
    }

    /// Another process is to go on with the connection, and other hosts let go of it. Returns its socket.
    pub(crate) fn leave(&mut self) -> Option<OwnedFd> {
        let socket = self.socket.socket.try_clone().ok()?;
        self.set_gone();
        self.handover.own.lock().tell(&Message::Gone(self.number));
        Some(socket)
    }

    /// Another process goes on with the connection: it does not end.
    pub(crate) fn set_gone(&mut self) {
        self.socket.keeper.iter().for_each(|keeper| keeper.leave());
        self.is_gone = true;
    }
}

impl Drop for SharedClient {
    fn drop(&mut self) {
        let mut own = self.handover.own.lock();
        own.clients.remove(&self.number);
        if self.is_gone {
            return;
        }
        own.tell(&Message::Gone(self.number));
        drop(own);
        // Standbys may have it for a moment longer.
        shut_down(&self.socket.socket);
    }
}

impl Handover {
    /// Of a database that lives in a pool, with the listeners that come to it. `None`: no other host can take it over. `addresses`: those
    /// that this host was given; `wanted`: those of them at which it does not listen.
    pub(crate) fn start(
        planner: &Arc<Planner>,
        addresses: Vec<String>,
        wanted: Vec<String>,
    ) -> Result<Option<(Arc<Handover>, UnboundedReceiver<Taken>)>> {
        let database = planner.database();
        if database.role() == HostRole::Alone || database.is_reader() {
            return Ok(None);
        }
        let Some(host) = database.pool() else { return Ok(None) };
        let (pool, member) = (host.pool(), host.member());
        let (taken, listeners) = unbounded_channel();
        let handover = Arc::new(Handover {
            database: database.clone(),
            planner: planner.clone(),
            statements: Mutex::default(),
            own: Arc::new(Mutex::new(Own { addresses, ..Own::default() })),
            threads: Mutex::default(),
            inherited: Mutex::new(Inherited { wanted, ..Inherited::default() }),
            taken,
            coming: Arc::default(),
            stopped: AtomicBool::new(false),
            passing: Passing::new(),
            passed_to: Mutex::default(),
        });
        let weak: Weak<Handover> = Arc::downgrade(&handover);
        database.set_passing(weak);
        let hosts = pool.hosts()?;
        // Before this host says that it is there: its primary may die at once.
        if let Ok(reign) = member.reign() {
            handover.note_address(&hosts, &reign, member.host());
        }
        let own = hosts.into_iter().find(|view| view.host == member.host()).and_then(|view| view.text);
        if let Some(path) =
            own.map(|text| PathBuf::from(text.control_socket)).filter(|path| !path.as_os_str().is_empty())
        {
            match ControlListener::bind(&path, pool, member.host()) {
                Ok(listener) => {
                    let of_thread = handover.clone();
                    handover.threads.lock().push(spawn("handover-accept", move || of_thread.accept(&listener))?);
                }
                // Only clients' sockets are not shared then.
                Err(error) => tracing::warn!("standbys cannot have this host's sockets: {error}"),
            }
        }
        let of_watch = Arc::downgrade(&handover);
        database.watch_role(Box::new(move |role| {
            if let Some(handover) = of_watch.upgrade() {
                handover.role_changed(role);
            }
        }));
        let of_thread = handover.clone();
        handover.threads.lock().push(spawn("handover-attend", move || of_thread.attend())?);
        let of_thread = handover.clone();
        handover.threads.lock().push(spawn("handover-plan", move || {
            of_thread.prepare_statements();
            of_thread.tell_statements();
        })?);
        Ok(Some((handover, listeners)))
    }

    /// Ends what works for it: nothing holds the database then, which leaves the pool when it is closed.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        {
            let mut own = self.own.lock();
            own.retain(|_| false);
            own.listeners.clear();
        }
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // It has told of its panic itself.
            let _ = thread.join();
        }
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// From now on standbys have this listener, too.
    pub(crate) fn share_listener(&self, kind: ListenerKind, address: String, socket: &impl AsFd) {
        match socket.as_fd().try_clone_to_owned() {
            Ok(socket) => {
                let socket = Arc::new(socket);
                let mut own = self.own.lock();
                own.tell(&Message::Listener(kind, address.clone(), socket.clone()));
                own.listeners.retain(|(_, known, _)| *known != address);
                own.listeners.push((kind, address, socket));
            }
            Err(error) => tracing::warn!(%error, "a listener is not shared with standbys"),
        }
    }

    /// As `share_listener`, of one that was inherited. What is returned resolves when the address goes back.
    pub(crate) fn share_inherited(
        &self,
        kind: ListenerKind,
        address: &str,
        socket: &impl AsFd,
    ) -> oneshot::Receiver<()> {
        let (stop, stopped) = oneshot::channel();
        self.own.lock().stops.insert(address.to_owned(), stop);
        self.share_listener(kind, address.to_owned(), socket);
        stopped
    }

    /// Whether this host accepts clients there.
    pub(crate) fn listens(&self, address: &str) -> bool {
        self.own.lock().listeners.iter().any(|(_, known, _)| known == address)
    }

    /// Shares a client's socket until what is returned is dropped, which ends the connection. `None` where there is no
    /// descriptor left.
    pub(crate) fn share_client(self: &Arc<Self>, socket: &impl AsFd) -> Option<SharedClient> {
        let keeper = match Keeper::new(self.own.lock().is_followed.clone()) {
            Ok(keeper) => Some(Arc::new(keeper)),
            Err(error) => {
                tracing::warn!(%error, "a connection is not kept for a standby");
                None
            }
        };
        let socket = SharedSocket { socket: Arc::new(socket.as_fd().try_clone_to_owned().ok()?), keeper };
        let mut own = self.own.lock();
        let number = own.next;
        own.next += 1;
        own.tell(&Message::Client(number, socket.clone()));
        own.clients.insert(number, socket.clone());
        drop(own);
        Some(SharedClient { handover: self.clone(), number, socket, is_gone: false })
    }

    fn accept(self: &Arc<Self>, listener: &ControlListener) {
        let Some(host) = self.database.pool() else { return };
        let mut next = 0;
        while !self.is_stopped() {
            self.database.say_written();
            match listener.accept(host.pool(), LOOK_INTERVAL) {
                Ok(Some(connection)) => {
                    let (queue, messages) = sync_channel(QUEUE_MAX);
                    {
                        let mut own = self.own.lock();
                        let listeners = own.listeners.iter().cloned();
                        let listeners =
                            listeners.map(|(kind, address, socket)| Message::Listener(kind, address, socket));
                        let clients =
                            own.clients.iter().map(|(number, socket)| Message::Client(*number, socket.clone()));
                        let statements = own.statements.iter().cloned().map(Message::Statement);
                        // Whatever does not fit is as if the standby did not keep up.
                        if listeners.chain(clients).chain(statements).any(|message| queue.try_send(message).is_err()) {
                            continue;
                        }
                        own.standbys.push((next, connection.peer(), queue));
                        own.is_followed.store(true, Ordering::Relaxed);
                    }
                    let (number, own, taken) = (next, self.own.clone(), self.taken.clone());
                    next += 1;
                    let told = spawn("handover-tell", move || {
                        standbys::serve_standby(&connection, &messages, &own, &taken);
                        own.lock().retain(|(known, ..)| *known != number);
                    });
                    if let Err(error) = told {
                        tracing::warn!("a standby cannot have this host's sockets: {error}");
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!("{error}");
                    std::thread::sleep(LOOK_INTERVAL);
                }
            }
        }
    }

    fn role_changed(&self, role: HostRole) {
        let mut inherited = self.inherited.lock();
        match role {
            HostRole::TakingOver => inherited.takes_over = true,
            HostRole::Primary => {
                (inherited.takes_over, inherited.has_taken_over) = (true, true);
                self.go_on_with_sessions(&mut inherited);
                let has_come = |address: &str| inherited.listeners.iter().any(|listener| listener.address == address);
                let addresses = inherited.wanted.iter().chain(&inherited.of_primary);
                let missing: Vec<_> = addresses.filter(|address| !has_come(address)).cloned().collect();
                missing.into_iter().for_each(|address| _ = self.taken.send(Taken::Address(address)));
                for listener in std::mem::take(&mut inherited.listeners) {
                    let _ = self.taken.send(Taken::Listener(listener));
                }
            }
            // Another host was quicker. Clients of the one before are told by whichever host hears of that first.
            HostRole::Following => {
                if std::mem::take(&mut inherited.takes_over) {
                    inherited.sessions.clear();
                    inherited.end_clients();
                    // That one goes on with them.
                    inherited.clients.clear();
                }
            }
            HostRole::Failed => inherited.end_all(),
            HostRole::Fenced => {
                self.own.lock().stop_inherited();
                self.sessions_are_gone();
            }
            HostRole::Alone => {}
        }
    }

    /// Prepares what clients of the primary have prepared, for what exists by now, until this host takes over.
    fn prepare_statements(&self) {
        let mut prepared: HashSet<StatementInUse> = HashSet::new();
        let (mut mark, mut since) = (self.database.state().mark(), Instant::now());
        while !self.is_stopped() && matches!(self.database.role(), HostRole::Following | HostRole::TakingOver) {
            let state = self.database.state();
            if !StateMark::is_of(&mark, &state) {
                (mark, since) = (state.mark(), Instant::now());
                prepared.clear();
            }
            drop(state);
            let missing = self.statements.lock().iter().find(|statement| !prepared.contains(*statement)).cloned();
            // A take-over has the processors to itself. Another host may turn out to have been quicker.
            let may_prepare = since.elapsed() >= PREPARE_AFTER && self.database.role() == HostRole::Following;
            match missing.filter(|_| may_prepare) {
                Some(statement) => {
                    if let Err(error) = self.planner.prepare_ahead(&statement) {
                        tracing::debug!("a statement of the primary's clients was not prepared: {error}");
                    }
                    prepared.insert(statement);
                }
                None => std::thread::sleep(LOOK_INTERVAL),
            }
        }
    }

    /// Tells standbys what clients of this host have prepared, while it is primary.
    fn tell_statements(&self) {
        let (mut looked, mut looked_at) = (None::<Instant>, LookedAt::default());
        while !self.is_stopped() && self.database.role() == HostRole::Primary {
            let is_due = looked.is_none_or(|looked| looked.elapsed() >= STATEMENTS_INTERVAL);
            let is_wanted = || {
                let own = self.own.lock();
                !own.standbys.is_empty() && own.statements.len() < STATEMENTS_MAX
            };
            if is_due && is_wanted() {
                looked = Some(Instant::now());
                for statement in self.planner.statements_in_use(STATEMENTS_MAX, &mut looked_at) {
                    let mut own = self.own.lock();
                    if own.statements.len() < STATEMENTS_MAX && own.statements.insert(statement.clone()) {
                        own.tell(&Message::Statement(statement));
                    }
                }
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Has the sockets of whoever is primary, until this host is.
    fn attend(&self) {
        loop {
            self.attend_primaries();
            while self.database.wait_role(HostRole::TakingOver, TAKE_OVER_WAIT) == HostRole::TakingOver {
                self.inherited.lock().end_clients();
            }
            if self.is_stopped() || self.database.role() != HostRole::Following {
                return;
            }
        }
    }

    fn attend_primaries(&self) {
        let Some(host) = self.database.pool() else { return };
        let (pool, member) = (host.pool(), host.member());
        while !self.is_stopped() && self.database.role() == HostRole::Following {
            let connected = member.reign().and_then(|reign| {
                let hosts = pool.hosts()?;
                self.note_address(&hosts, &reign, member.host());
                let primary = hosts.into_iter().find(|view| reign.is_of(view.host));
                let primary = primary.filter(|view| view.host != member.host() && view.ident.state.is_live());
                primary.map(|view| ControlConnection::connect(pool, member.host(), view.host)).transpose()
            });
            match connected {
                Ok(Some(connection)) => {
                    let connection = Arc::new(connection);
                    self.inherited.lock().connection = Some(connection.clone());
                    self.hear(&connection);
                    self.inherited.lock().connection = None;
                    let end = Instant::now() + END_WAIT;
                    // It is not said why: a primary that is alive has let go of this host, and its clients are its own.
                    while Instant::now() < end
                        && !self.is_stopped()
                        && !self.inherited.lock().takes_over
                        && is_lock_held(pool, connection.peer()).unwrap_or(true)
                    {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    self.ended(is_lock_held(pool, connection.peer()).unwrap_or(true), connection.peer());
                }
                Ok(None) | Err(_) => std::thread::sleep(RETRY_INTERVAL),
            }
        }
    }

    /// Of the primary, as long as there is one: of one that is gone it is wanted still.
    fn note_address(&self, hosts: &[HostView], reign: &Reign, own: Host) {
        if hosts.iter().any(|view| view.host != own && reign.is_of(view.host)) {
            self.inherited.lock().of_primary = address_beside(hosts, reign, own);
        }
    }

    /// Takes what the primary shares, until it ends.
    fn hear(&self, connection: &ControlConnection) {
        loop {
            match connection.receive(LOOK_INTERVAL) {
                Ok(Arrival::Message { bytes, descriptors }) => {
                    if let Some(reply) = self.take(&bytes, descriptors)
                        && connection.send(&reply, &[]).is_err()
                    {
                        return;
                    }
                }
                Ok(Arrival::Nothing) if !self.is_stopped() => {
                    // From a primary that was stopped, and for longer than a take-over takes.
                    if self.database.role() == HostRole::TakingOver {
                        self.inherited.lock().end_clients();
                    }
                }
                Ok(Arrival::Nothing | Arrival::End) | Err(_) => return,
            }
        }
    }

    /// Returns what is to be answered.
    fn take(&self, bytes: &[u8], mut descriptors: Vec<OwnedFd>) -> Option<Vec<u8>> {
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).ok();
        let mut inherited = self.inherited.lock();
        match (bytes, descriptors.pop()) {
            ([LISTENER, kind @ (b't' | b'l'), address @ ..], Some(socket)) => {
                let kind = if *kind == b't' { ListenerKind::Tcp } else { ListenerKind::Local };
                let address = String::from_utf8_lossy(address).into_owned();
                let listener = InheritedListener { kind, address, socket };
                match inherited.has_taken_over {
                    true => _ = self.taken.send(Taken::Listener(listener)),
                    false => {
                        let is_wanted = inherited.wanted.contains(&listener.address);
                        let wanted = is_wanted.then(|| [&[WANTED], listener.address.as_bytes()].concat());
                        inherited.listeners.push(listener);
                        return wanted;
                    }
                }
            }
            ([kind @ (YOURS | LET_GO), address @ ..], _) => {
                let is_its = |listener: &mut InheritedListener| listener.address.as_bytes() == address;
                let gone: Vec<_> = inherited.listeners.extract_if(.., is_its).collect();
                if *kind == YOURS {
                    inherited.wanted.retain(|wanted| wanted.as_bytes() != address);
                    gone.into_iter().for_each(|listener| _ = self.taken.send(Taken::Listener(listener)));
                }
            }
            ([CLIENT, number_bytes @ ..], Some(last)) => {
                let (socket, pages) = match descriptors.pop() {
                    Some(socket) => (socket, Some(last)),
                    None => (last, None),
                };
                match (inherited.has_taken_over, number(number_bytes)) {
                    (true, _) => shut_down(&socket),
                    (false, Some(number)) => _ = inherited.clients.insert(number, InheritedClient { socket, pages }),
                    (false, None) => {}
                }
            }
            ([STATEMENT, statement @ ..], _) => {
                let mut statements = self.statements.lock();
                // Those of a primary before make room.
                if statements.len() == STATEMENTS_MAX {
                    statements.clear();
                }
                statements.extend(StatementInUse::from_bytes(statement));
            }
            ([GONE, number_bytes @ ..], _) => {
                if let Some(number) = number(number_bytes) {
                    inherited.clients.remove(&number);
                    inherited.sessions.remove(&number);
                }
            }
            ([PIECE, rest @ ..], _) if !inherited.has_taken_over => inherited.take_piece(rest),
            ([COUNTS, rest @ ..], _) if !inherited.has_taken_over => inherited.take_counts(rest),
            ([ASK, pass @ ..], _) => {
                let pass = number(pass)?;
                let whole =
                    inherited.sessions.values().filter(|session| session.session.is_some() && session.pass == pass);
                let count = whole.count() as u64;
                crash_point("switchover.held");
                return Some([&[HAS][..], &pass.to_le_bytes(), &count.to_le_bytes()].concat());
            }
            // Of a later release.
            _ => {}
        }
        None
    }

    /// The primary's connection ended.
    fn ended(&self, is_alive: bool, primary: Host) {
        let mut inherited = self.inherited.lock();
        if inherited.takes_over {
            return;
        }
        if is_alive {
            inherited.sessions.clear();
            inherited.clients.clear();
            inherited.listeners.clear();
            return;
        }
        inherited.end_clients();
        tracing::info!("{primary} has ended: {} clients of it are kept", inherited.clients.len());
        // Its listeners are for whoever takes over. That may be another host, which has them, too: then these are let go of when
        // this host has that one's.
        drop(inherited);
        let end = Instant::now() + END_WAIT;
        let mut has_successor = false;
        while Instant::now() < end && self.database.role() == HostRole::Following && !self.is_stopped() {
            let is_another = || {
                let host = self.database.pool()?;
                let reign = host.member().reign().ok()?;
                Some(!reign.is_of(primary) && reign.state == tidepool_pool::words::TermState::Running)
            };
            has_successor = is_another() == Some(true);
            if has_successor {
                break;
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
        let mut inherited = self.inherited.lock();
        if !inherited.takes_over {
            inherited.listeners.clear();
            if has_successor {
                // Which goes on with those that it can.
                inherited.sessions.clear();
                inherited.end_clients();
                inherited.clients.clear();
            }
            inherited.end_all();
        }
    }

    /// This host is primary: goes on with sessions that it has whole, if their pass is in force. The primary before does not, then.
    fn go_on_with_sessions(&self, inherited: &mut Inherited) {
        let in_force = self.database.passed();
        crash_point("switchover.going_on");
        let mut passed = Vec::new();
        for (number, session) in std::mem::take(&mut inherited.sessions) {
            if let Some(session) = session.session.filter(|_| Some(session.pass) == in_force)
                && let Some(client) = inherited.clients.remove(&number)
            {
                match session {
                    Ok(portable) => passed.push(InheritedSession::new(client.socket, portable, Beginning::default())),
                    Err(error) => {
                        tracing::warn!("a connection of the primary before cannot go on here: {error}");
                        shut_down(&client.socket);
                    }
                }
            }
        }
        self.gather(move |_| passed);
        inherited.end_clients();
        let kept: Vec<InheritedClient> = inherited.clients.drain().map(|(_, client)| client).collect();
        if in_force.is_some() {
            // It lives, and has said so to those that did not go over.
            return kept.iter().for_each(|client| shut_down(&client.socket));
        }
        self.gather(move |database| succession::succeed(database, kept));
    }

    /// Hands sessions on to the threads that serve clients, without waiting for it.
    fn gather(&self, sessions: impl FnOnce(&Database) -> Vec<InheritedSession> + Send + 'static) {
        let (taken, coming, database) = (self.taken.clone(), self.coming.clone(), self.database.clone());
        // Until they are counted themselves.
        let gathering = Coming::count(&coming);
        let gathering = spawn("handover-gather", move || {
            let mut sessions = sessions(&database);
            sessions.iter_mut().for_each(|session| session.set_coming(&coming));
            drop(gathering);
            gather(sessions, &|session| {
                // Nobody listens any more at the end.
                let _ = taken.send(Taken::Session(Box::new(session)));
            });
        });
        if let Err(error) = gathering {
            tracing::error!("clients of the primary before cannot go on here: {error}");
        }
    }

    /// Another host has the database. The one that sessions were passed to goes on with them, or shuts them down.
    fn sessions_are_gone(&self) {
        let reign = self.database.pool().and_then(|host| host.member().reign().ok());
        let is_its = reign.is_some_and(|reign| self.passed_to.lock().take().is_some_and(|host| reign.is_of(host)));
        let outcome = if is_its { Outcome::Gone } else { Outcome::Lost };
        let passing = self.passing.clone();
        let ends = self.database.ends_after_switchover();
        if !ends || spawn("handover-tell", move || passing.tell_slowly(outcome)).is_err() {
            self.passing.tell(outcome);
        }
    }

    fn queue_to(&self, host: Host) -> Option<SyncSender<Message>> {
        let own = self.own.lock();
        own.standbys.iter().find(|(_, standby, _)| *standby == host).map(|(.., queue)| queue.clone())
    }
}

impl PassesSessions for Handover {
    fn pass(&self, to: Host, pass: u64, caller: Option<u32>) -> Result<()> {
        let drain = self.database.config().pool.as_ref().map_or(Duration::ZERO, |pool| pool.switchover_drain);
        let end = Instant::now() + CONNECT_WITHIN.max(drain / CONNECT_WITHIN_PART);
        while self.queue_to(to).is_none() && Instant::now() < end {
            std::thread::sleep(RETRY_INTERVAL);
        }
        let Some(queue) = self.queue_to(to) else {
            tracing::info!("{to} has no sockets of this host's clients: they end");
            return Ok(());
        };
        // Those that have not begun cannot be asked.
        while self.coming.load(Ordering::Acquire) > 0 && Instant::now() < end {
            std::thread::sleep(RETRY_INTERVAL);
        }
        let start = Instant::now();
        *self.passed_to.lock() = Some(to);
        let early = self.passing.ask(drain, caller);
        let (asked, early_count) = (start.elapsed(), early.len());
        let mut drafts: HashSet<u64> = early.iter().map(|(number, _)| *number).collect();
        let end = Instant::now() + PASS_WITHIN;
        put_all(&queue, pass, early, false, end)?;
        // Those that stop now do not wait for what comes before them.
        held(&queue, pass, end, to)?;
        let put_early = start.elapsed();
        let Stopped { written, withdrawn } = self.passing.stop(drain, caller);
        crash_point("switchover.stopped");
        let (stopped, late_count) = (start.elapsed(), written.len());
        let end = Instant::now() + PASS_WITHIN;
        for number in &withdrawn {
            drafts.remove(number);
        }
        for (number, _) in &written {
            if drafts.remove(number) {
                // The standby forgets what came of it.
                put(&queue, Message::Gone(*number), end)?;
                let socket = self.own.lock().clients.get(number).cloned();
                socket.map_or(Ok(()), |socket| put(&queue, Message::Client(*number, socket), end))?;
            }
        }
        // Those that have stayed as they were count now.
        let drafts: Vec<u64> = drafts.into_iter().collect();
        for numbers in drafts.chunks(PIECE_BYTES / size_of::<u64>()) {
            put(&queue, Message::Counts { pass, numbers: numbers.into() }, end)?;
        }
        put_all(&queue, pass, written, true, end)?;
        let held = held(&queue, pass, end, to)?;
        tracing::info!(
            early = early_count,
            late = late_count,
            held,
            asked_us = asked.as_micros() as u64,
            stopped_us = (stopped - put_early).as_micros() as u64,
            passed_us = (start.elapsed() - stopped).as_micros() as u64,
            "{to} has the sessions of this host's clients"
        );
        Ok(())
    }

    fn take_back(&self) {
        *self.passed_to.lock() = None;
        self.passing.tell(Outcome::Stays);
    }
}

fn not_taken(to: Host) -> Error {
    let message = format!("{to} has not taken the sessions of this host's clients");
    Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message)
}

/// Waits for room in a standby's queue, so long.
fn put(queue: &SyncSender<Message>, mut message: Message, end: Instant) -> Result<()> {
    let failed = |what: &str| {
        let message = format!("sessions were not passed on: {what}");
        Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message)
    };
    loop {
        message = match queue.try_send(message) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Full(message)) if Instant::now() < end => message,
            Err(TrySendError::Full(_)) => return Err(failed("the standby does not take them")),
            Err(TrySendError::Disconnected(_)) => return Err(failed("the standby's connection has ended")),
        };
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// How many sessions of a pass a standby has that count, once it has taken everything that was put into its queue.
fn held(queue: &SyncSender<Message>, pass: u64, end: Instant, to: Host) -> Result<u64> {
    let (answer, answered) = sync_channel(1);
    put(queue, Message::Ask { pass, answer }, end)?;
    answered.recv_timeout(end.saturating_duration_since(Instant::now())).map_err(|_| not_taken(to))
}

/// Puts sessions into a standby's queue, in pieces. `counts`: they do not go on here.
fn put_all(queue: &SyncSender<Message>, pass: u64, sessions: Written, counts: bool, end: Instant) -> Result<()> {
    for (number, bytes) in sessions {
        // It may have secrets.
        let bytes = Zeroizing::new(bytes);
        let mut pieces = bytes.chunks(PIECE_BYTES).peekable();
        while let Some(piece) = pieces.next() {
            let is_last = counts && pieces.peek().is_none();
            put(queue, Message::Piece { pass, number, is_last, bytes: piece.into() }, end)?;
        }
        crash_point("switchover.session");
    }
    Ok(())
}

/// Where the primary listens by its configuration, if it is another host that has the same network, as far as the pool tells.
fn address_beside(hosts: &[HostView], reign: &Reign, own: Host) -> Option<String> {
    let text_of = |is_it: &dyn Fn(Host) -> bool| hosts.iter().find(|view| is_it(view.host))?.text.as_ref();
    let (own, primary) = (text_of(&|host| host == own)?, text_of(&|host| host != own && reign.is_of(host))?);
    let is_beside = own.boot_id == primary.boot_id && own.process_namespace == primary.process_namespace;
    is_beside.then(|| primary.address.clone())
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    spawned.map_err(|error| Error::io("start a thread", &error))
}
