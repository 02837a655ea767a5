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
//! * A host that was taken over from accepts no more at addresses that it had inherited: who connects there is the new primary's.

use crate::incoming::shut_down;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result};
use tidepool_database::{Database, HostRole, StateMark};
use tidepool_planner::{LookedAt, Planner, StatementInUse};
use tidepool_pool::control::{Arrival, ControlConnection, ControlListener};
use tidepool_pool::liveness::is_lock_held;
use tidepool_pool::words::Host;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

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

type Shared = Arc<OwnedFd>;

/// What goes to a standby.
#[derive(Clone)]
enum Message {
    Listener(ListenerKind, String, Shared),
    Client(u64, Shared),
    Gone(u64),
    /// The host that the address belongs to has it now.
    LetGo(String),
    Statement(StatementInUse),
}

const LISTENER: u8 = b'L';
const CLIENT: u8 = b'C';
const GONE: u8 = b'G';
const LET_GO: u8 = b'U';
const STATEMENT: u8 = b'S';
/// From a standby: it was given this address, and wants it.
const WANTED: u8 = b'W';
/// The answer: it has it.
const YOURS: u8 = b'Y';

impl Message {
    fn send(&self, connection: &ControlConnection) -> Result<()> {
        match self {
            Message::Listener(kind, address, socket) => {
                let kind = match kind {
                    ListenerKind::Tcp => b't',
                    ListenerKind::Local => b'l',
                };
                connection.send(&[&[LISTENER, kind], address.as_bytes()].concat(), &[socket.as_fd()])
            }
            Message::Client(number, socket) => {
                connection.send(&[&[CLIENT][..], &number.to_le_bytes()].concat(), &[socket.as_fd()])
            }
            Message::Gone(number) => connection.send(&[&[GONE][..], &number.to_le_bytes()].concat(), &[]),
            Message::LetGo(address) => connection.send(&[&[LET_GO], address.as_bytes()].concat(), &[]),
            Message::Statement(statement) => {
                connection.send(&[&[STATEMENT], statement.to_bytes().as_slice()].concat(), &[])
            }
        }
    }
}

/// Of a host that serves clients: what it shares.
#[derive(Default)]
struct Own {
    next: u64,
    clients: HashMap<u64, Shared>,
    listeners: Vec<(ListenerKind, String, Shared)>,
    standbys: Vec<(u64, SyncSender<Message>)>,
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
        self.standbys.retain(|(_, queue)| queue.try_send(message.clone()).is_ok());
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

/// Of a host that follows: what its primary shared.
#[derive(Default)]
struct Inherited {
    clients: HashMap<u64, OwnedFd>,
    listeners: Vec<InheritedListener>,
    /// This host takes over: whatever comes still is for it.
    takes_over: bool,
    /// It has, and accepts.
    has_taken_over: bool,
    /// Addresses that this host was given, and at which its primary listens.
    wanted: Vec<String>,
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
    taken: UnboundedSender<InheritedListener>,
    stopped: AtomicBool,
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
    socket: Shared,
}

impl Drop for SharedClient {
    fn drop(&mut self) {
        let mut own = self.handover.own.lock();
        own.clients.remove(&self.number);
        own.tell(&Message::Gone(self.number));
        drop(own);
        // Standbys may have it for a moment longer.
        shut_down(&self.socket);
    }
}

impl Handover {
    /// Of a database that lives in a pool, with the listeners that come to it. `None`: no other host can take it over. `addresses`: those
    /// that this host was given; `wanted`: those of them at which it does not listen.
    pub(crate) fn start(
        planner: &Arc<Planner>,
        addresses: Vec<String>,
        wanted: Vec<String>,
    ) -> Result<Option<(Arc<Handover>, UnboundedReceiver<InheritedListener>)>> {
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
            stopped: AtomicBool::new(false),
        });
        let own = pool.hosts()?.into_iter().find(|view| view.host == member.host()).and_then(|view| view.text);
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
            own.standbys.clear();
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

    /// Shares a client's socket until what is returned is dropped, which ends the connection. `None` where there is no
    /// descriptor left.
    pub(crate) fn share_client(self: &Arc<Self>, socket: &impl AsFd) -> Option<SharedClient> {
        let socket = Arc::new(socket.as_fd().try_clone_to_owned().ok()?);
        let mut own = self.own.lock();
        let number = own.next;
        own.next += 1;
        own.tell(&Message::Client(number, socket.clone()));
        own.clients.insert(number, socket.clone());
        drop(own);
        Some(SharedClient { handover: self.clone(), number, socket })
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
                        own.standbys.push((next, queue));
                    }
                    let (number, own) = (next, self.own.clone());
                    next += 1;
                    let told = spawn("handover-tell", move || {
                        serve_standby(&connection, &messages, &own);
                        own.lock().standbys.retain(|(known, _)| *known != number);
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
                end_clients(&mut inherited);
                for listener in std::mem::take(&mut inherited.listeners) {
                    let _ = self.taken.send(listener);
                }
            }
            // Another host was quicker. Clients of the one before are told by whichever host hears of that first.
            HostRole::Following => {
                if std::mem::take(&mut inherited.takes_over) {
                    end_clients(&mut inherited);
                }
            }
            HostRole::Failed => end_clients(&mut inherited),
            HostRole::Fenced => self.own.lock().stop_inherited(),
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
                end_clients(&mut self.inherited.lock());
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
                let primary = pool.hosts()?.into_iter().find(|view| reign.is_of(view.host));
                let primary = primary.filter(|view| view.host != member.host() && view.ident.state.is_live());
                primary.map(|view| ControlConnection::connect(pool, member.host(), view.host)).transpose()
            });
            match connected {
                Ok(Some(connection)) => {
                    self.hear(&connection);
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

    /// Takes what the primary shares, until it ends.
    fn hear(&self, connection: &ControlConnection) {
        loop {
            match connection.receive(LOOK_INTERVAL) {
                Ok(Arrival::Message { bytes, descriptors }) => {
                    if let Some(wanted) = self.take(&bytes, descriptors)
                        && connection.send(&[&[WANTED], wanted.as_bytes()].concat(), &[]).is_err()
                    {
                        return;
                    }
                }
                Ok(Arrival::Nothing) if !self.is_stopped() => {
                    // From a primary that was stopped, and for longer than a take-over takes.
                    if self.database.role() == HostRole::TakingOver {
                        end_clients(&mut self.inherited.lock());
                    }
                }
                Ok(Arrival::Nothing | Arrival::End) | Err(_) => return,
            }
        }
    }

    /// Returns an address that is to be asked for.
    fn take(&self, bytes: &[u8], mut descriptors: Vec<OwnedFd>) -> Option<String> {
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).ok();
        let mut inherited = self.inherited.lock();
        match (bytes, descriptors.pop()) {
            ([LISTENER, kind @ (b't' | b'l'), address @ ..], Some(socket)) => {
                let kind = if *kind == b't' { ListenerKind::Tcp } else { ListenerKind::Local };
                let address = String::from_utf8_lossy(address).into_owned();
                let listener = InheritedListener { kind, address, socket };
                match inherited.has_taken_over {
                    true => _ = self.taken.send(listener),
                    false => {
                        let is_wanted = inherited.wanted.contains(&listener.address);
                        let wanted = is_wanted.then(|| listener.address.clone());
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
                    gone.into_iter().for_each(|listener| _ = self.taken.send(listener));
                }
            }
            ([CLIENT, number_bytes @ ..], Some(socket)) => match (inherited.has_taken_over, number(number_bytes)) {
                (true, _) => shut_down(&socket),
                (false, Some(number)) => _ = inherited.clients.insert(number, socket),
                (false, None) => {}
            },
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
                }
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
            inherited.clients.clear();
            inherited.listeners.clear();
            return;
        }
        tracing::info!("{primary} has ended: {} clients of it are told", inherited.clients.len());
        end_clients(&mut inherited);
        // Its listeners are for whoever takes over. That may be another host, which has them, too: then these are let go of when
        // this host has that one's.
        drop(inherited);
        let end = Instant::now() + END_WAIT;
        while Instant::now() < end && self.database.role() == HostRole::Following && !self.is_stopped() {
            let is_another = || {
                let host = self.database.pool()?;
                let reign = host.member().reign().ok()?;
                Some(!reign.is_of(primary) && reign.state == tidepool_pool::words::TermState::Running)
            };
            if is_another() == Some(true) {
                break;
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
        let mut inherited = self.inherited.lock();
        if !inherited.takes_over {
            inherited.listeners.clear();
        }
    }
}

/// Until the standby is gone, does not keep up, or nothing is told any more.
fn serve_standby(connection: &ControlConnection, messages: &Receiver<Message>, own: &Mutex<Own>) {
    tracing::info!("{} has the sockets of this host's clients", connection.peer());
    let mut looked = Instant::now();
    loop {
        match messages.recv_timeout(LOOK_INTERVAL) {
            Ok(message) => {
                if message.send(connection).is_err() {
                    return;
                }
                if looked.elapsed() < LOOK_INTERVAL {
                    continue;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        looked = Instant::now();
        match connection.receive(Duration::ZERO) {
            Ok(Arrival::Nothing) => {}
            Ok(Arrival::Message { bytes, .. }) => {
                if give_back(connection, &bytes, own).is_err() {
                    return;
                }
            }
            _ => return,
        }
    }
}

/// Gives an address that was inherited back to the host that it belongs to, if that asks for it.
fn give_back(connection: &ControlConnection, message: &[u8], own: &Mutex<Own>) -> Result<()> {
    let Some((&WANTED, address)) = message.split_first() else { return Ok(()) };
    let address = String::from_utf8_lossy(address).into_owned();
    let mut own = own.lock();
    if own.is_inherited(&address) {
        // Whoever has it next hears of it before the others let go of theirs.
        connection.send(&[&[YOURS], address.as_bytes()].concat(), &[])?;
        tracing::info!("clients that connect to {address} are served by {} again", connection.peer());
        own.let_go(&address);
    }
    Ok(())
}

fn end_clients(inherited: &mut Inherited) {
    inherited.clients.drain().for_each(|(_, socket)| shut_down(&socket));
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    spawned.map_err(|error| Error::io("start a thread", &error))
}
