//! Clients that insert rows one after the other, and look for the next host when theirs is gone, as a driver with a list of
//! hosts does (libpq's multi-host URL with `target_session_attrs=read-write`).

use crate::client::{Client, Login};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long a client waits for a host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// To take a connection.
    connect: Duration,
    /// For an answer. A host that was stopped closes no connection, so a client without such a bound waits for ever.
    answer: Duration,
    /// Between two rounds over the hosts when none of them takes writes.
    pause: Duration,
    /// A host that did not answer is not tried again for so long.
    silence: Duration,
}

impl Default for Patience {
    /// As `connect_timeout` of libpq, whose least is two seconds.
    fn default() -> Patience {
        Patience {
            connect: Duration::from_secs(2),
            answer: Duration::from_secs(5),
            pause: Duration::from_millis(1),
            silence: Duration::ZERO,
        }
    }
}

impl Patience {
    /// Of clients that are to notice sooner than a standby that their host's machine is gone.
    pub const APART: Patience = Patience {
        connect: Duration::from_millis(100),
        answer: Duration::from_millis(100),
        pause: Duration::from_millis(5),
        silence: Duration::from_secs(2),
    };
}

pub(super) const TABLE: &str =
    "CREATE TABLE acknowledged (client INT NOT NULL, number BIGINT NOT NULL, PRIMARY KEY (client, number))";

/// When a host was ended, and when it was certain that it did nothing any more: an answer after that is another host's. `None` of hosts that others
/// run, which end the connections of theirs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub at: Instant,
    pub over: Option<Instant>,
}

/// The first statement that was acknowledged on a connection, or since a host was ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct First {
    /// When the connection was begun.
    pub connected: Instant,
    /// When the statement was sent, and when it was acknowledged.
    pub begun: Instant,
    pub acknowledged: Instant,
}

/// What a client did, numbers of its rows.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub acknowledged: BTreeSet<i64>,
    /// Sent, and the connection ended before the answer.
    pub in_doubt: BTreeSet<i64>,
    /// Statements and connections that failed, by SQLSTATE.
    pub failed: BTreeMap<String, u64>,
}

#[derive(Debug)]
struct Shared {
    login: Login,
    patience: Patience,
    hosts: RwLock<Vec<String>>,
    is_over: AtomicBool,
    /// When it was certain of the host that was ended last that it did nothing any more.
    ended: RwLock<Option<Instant>>,
    /// By client.
    firsts: Vec<Mutex<Vec<First>>>,
}

/// Clients at work.
#[derive(Debug)]
pub(super) struct Clients {
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<Written>>,
}

impl Clients {
    pub fn start(count: usize, login: &Login, hosts: Vec<String>, patience: Patience) -> Clients {
        let shared = Arc::new(Shared {
            login: login.clone(),
            patience,
            hosts: RwLock::new(hosts),
            is_over: AtomicBool::new(false),
            ended: RwLock::new(None),
            firsts: (0..count).map(|_| Mutex::new(Vec::new())).collect(),
        });
        let tasks = (0..count).map(|client| tokio::spawn(run(client, Arc::clone(&shared)))).collect();
        Clients { shared, tasks }
    }

    /// From now on clients look at these hosts, in this order.
    pub fn look_at(&self, hosts: Vec<String>) {
        *self.shared.hosts.write() = hosts;
    }

    pub fn host_ended(&self, ended: Ended) {
        *self.shared.ended.write() = ended.over;
    }

    /// For each client the time from the end of a host to the first acknowledgement of a statement that it began afterwards at another one: on
    /// a connection that it began afterwards, or once the host did nothing any more, as connections go on at another.
    pub fn resumed_after(&self, ended: Ended) -> Vec<Option<Duration>> {
        let is_elsewhere = |first: &First| {
            first.connected >= ended.at && first.begun >= ended.at || ended.over.is_some_and(|over| first.begun >= over)
        };
        let after = |firsts: &Mutex<Vec<First>>| {
            let firsts = firsts.lock();
            firsts.iter().filter(|first| is_elsewhere(first)).map(|first| first.acknowledged - ended.at).min()
        };
        self.shared.firsts.iter().map(after).collect()
    }

    /// Whether every client has had something acknowledged.
    pub fn are_at_work(&self) -> bool {
        self.shared.firsts.iter().all(|firsts| !firsts.lock().is_empty())
    }

    pub async fn stop(self) -> Result<Vec<Written>> {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for task in self.tasks {
            all.push(task.await.map_err(|error| Error::internal(format!("a client failed: {error}")))?);
        }
        Ok(all)
    }
}

/// A connection, where it leads, and when it was begun.
struct Connected {
    client: Client,
    host: String,
    begun: Instant,
}

/// A host that did not answer, and when.
type Silent = Option<(String, Instant)>;

/// Connects to the first host that takes writes.
async fn connect(shared: &Shared, silent: &Silent, failed: &mut BTreeMap<String, u64>) -> Option<Connected> {
    while !shared.is_over.load(Ordering::Relaxed) {
        let hosts = shared.hosts.read().clone();
        let is_silent =
            |host: &str| silent.as_ref().is_some_and(|(of, at)| of == host && at.elapsed() < shared.patience.silence);
        for host in hosts.into_iter().filter(|host| !is_silent(host)) {
            let begun = Instant::now();
            match try_host(&host, &shared.login, shared.patience).await {
                Ok(Some(client)) => return Some(Connected { client, host, begun }),
                Ok(None) => {}
                Err(error) => *failed.entry(error.code().code().to_owned()).or_default() += 1,
            }
        }
        tokio::time::sleep(shared.patience.pause).await;
    }
    None
}

/// `None`: the host takes no writes.
async fn try_host(host: &str, login: &Login, patience: Patience) -> Result<Option<Client>> {
    let connecting = timeout(patience.connect, Client::log_in(host, login));
    let (mut client, said) = connecting.await.map_err(|_| no_answer())??;
    if said.says("in_hot_standby", "on") || said.says("default_transaction_read_only", "on") {
        return Ok(None);
    }
    let prepared = client.prepare("put", "INSERT INTO acknowledged VALUES ($1, $2)");
    timeout(patience.answer, prepared).await.map_err(|_| no_answer())??;
    Ok(Some(client))
}

fn no_answer() -> Error {
    Error::new(tidepool_base::SqlState::CONNECTION_FAILURE, "the host does not answer")
}

async fn run(number: usize, shared: Arc<Shared>) -> Written {
    let mut written = Written::default();
    let (mut next, mut silent): (i64, Silent) = (0, None);
    let mut seen: Option<Instant> = None;
    while let Some(connection) = connect(&shared, &silent, &mut written.failed).await {
        let Connected { mut client, host, begun: connected } = connection;
        let mut is_first = true;
        while !shared.is_over.load(Ordering::Relaxed) {
            next += 1;
            let begun = Instant::now();
            // A row that failed without a word, or with one, is not sent again, so that each has one outcome.
            let failure = match timeout(shared.patience.answer, client.execute("put", &[number as i64, next])).await {
                Ok(Ok(answer)) => match answer.error {
                    None => None,
                    Some(code) => {
                        // A statement that the server refused is not there, unless the server says that it does not know.
                        let is_in_doubt = code.starts_with("08") || code.starts_with("57") || code == "40003";
                        if is_in_doubt {
                            written.in_doubt.insert(next);
                        }
                        Some(code)
                    }
                },
                Ok(Err(error)) => {
                    written.in_doubt.insert(next);
                    Some(error.code().code().to_owned())
                }
                Err(_) => {
                    written.in_doubt.insert(next);
                    silent = Some((host.clone(), Instant::now()));
                    Some("no answer".to_owned())
                }
            };
            if let Some(code) = failure {
                *written.failed.entry(code).or_default() += 1;
                break;
            }
            written.acknowledged.insert(next);
            let ended = *shared.ended.read();
            let is_after = ended != seen && ended.is_some_and(|ended| begun >= ended);
            if is_first || is_after {
                is_first = false;
                seen = if is_after { ended } else { seen };
                let first = First { connected, begun, acknowledged: Instant::now() };
                shared.firsts[number].lock().push(first);
            }
        }
    }
    written
}
