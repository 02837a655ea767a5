//! Clients that are idle, that are busy, and that are in transactions; and what they hold against what servers say.

use crate::client::{Answer, Client, Login};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result, SqlState};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

/// Within which every busy client has to go on.
const WITHIN: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(2);
const RETRY: Duration = Duration::from_millis(20);

/// Of so many idle clients one has a cursor that outlives its transaction.
const CURSOR_EVERY: usize = 10;

/// The longest that a transaction is open between two statements, in milliseconds.
const OPEN_MS: u64 = 100;

const SERIALIZATION_FAILURE: &str = "40001";

#[derive(Clone)]
pub(super) struct Setup {
    pub idle: usize,
    pub busy: usize,
    pub open: usize,
    /// Between two statements of a busy client.
    pub think: Duration,
    /// Of every second client.
    pub tls: Option<TlsConnector>,
}

impl Setup {
    /// Of the client with this number.
    fn tls(&self, client: usize) -> Option<&TlsConnector> {
        self.tls.as_ref().filter(|_| client % 2 == 1)
    }
}

/// What came of it.
pub(super) struct Done {
    pub acknowledged: u64,
    pub committed: u64,
    pub lost_connections: u64,
    pub wrong: u64,
    pub failed: BTreeMap<String, u64>,
}

struct Shared {
    setup: Setup,
    addresses: RwLock<Vec<String>>,
    is_over: AtomicBool,
    acknowledged: AtomicU64,
    committed: AtomicU64,
    lost_connections: AtomicU64,
    wrong: AtomicU64,
    failed: Mutex<BTreeMap<String, u64>>,
    /// Of each busy client, its statements since the last look: when each was sent and when it was answered.
    statements: Vec<Mutex<Vec<(Instant, Instant)>>>,
}

/// Clients at work.
pub(super) struct Clients {
    shared: Arc<Shared>,
    idle: Vec<Idle>,
    at_work: Vec<JoinHandle<Result<()>>>,
}

struct Idle {
    client: Client,
    number: usize,
    process: i64,
}

impl Clients {
    /// Makes the table, and connects all.
    pub async fn start(address: &str, setup: Setup) -> Result<Clients> {
        let mut admin = Client::connect(address).await?;
        admin.query("CREATE TABLE counted (client INT PRIMARY KEY, count BIGINT NOT NULL)").await?.succeeded()?;
        let rows = setup.busy + setup.open;
        admin
            .query(&format!("INSERT INTO counted SELECT i, 0 FROM generate_series(1, {rows}) i"))
            .await?
            .succeeded()?;
        let shared = Arc::new(Shared {
            addresses: RwLock::new(vec![address.to_owned()]),
            is_over: AtomicBool::new(false),
            acknowledged: AtomicU64::new(0),
            committed: AtomicU64::new(0),
            lost_connections: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            failed: Mutex::default(),
            statements: (0..setup.busy).map(|_| Mutex::default()).collect(),
            setup,
        });
        let setup = &shared.setup;
        let mut idle = Vec::with_capacity(setup.idle);
        for number in 0..setup.idle {
            idle.push(Idle::connect(address, number, setup.tls(number)).await?);
        }
        let mut at_work: Vec<_> =
            (0..setup.busy).map(|number| tokio::spawn(Arc::clone(&shared).busy(number))).collect();
        at_work.extend((0..setup.open).map(|number| tokio::spawn(Arc::clone(&shared).open(number))));
        let clients = Clients { shared, idle, at_work };
        clients.went_on(Instant::now()).await?;
        Ok(clients)
    }

    /// Where those connect whose connection ended.
    pub fn look_at(&self, addresses: &[String]) {
        *self.shared.addresses.write() = addresses.to_vec();
    }

    /// Waits until every busy client has had an answer to what it asked after this.
    pub async fn went_on(&self, after: Instant) -> Result<()> {
        let end = Instant::now() + WITHIN;
        let is_on = |statements: &Mutex<Vec<(Instant, Instant)>>| {
            statements.lock().last().is_some_and(|(asked, _)| *asked >= after)
        };
        while !self.shared.statements.iter().all(is_on) {
            if Instant::now() > end || self.at_work.iter().any(JoinHandle::is_finished) {
                return Err(Error::new(SqlState::CONNECTION_FAILURE, "a client did not go on"));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Nobody listens any more where a server did that was replaced.
    pub fn address_is_gone(&self) {
        self.shared.wrong.fetch_add(1, Ordering::Relaxed);
        self.shared.note("address gone");
    }

    /// Of each busy client its longest statement that was under way at a time since then, in ms, sorted.
    pub fn stalls(&self, since: Instant) -> Vec<f64> {
        let longest = |statements: &Mutex<Vec<(Instant, Instant)>>| {
            let statements = std::mem::take(&mut *statements.lock());
            let late = statements.into_iter().filter(|(_, answered)| *answered >= since);
            late.map(|(asked, answered)| (answered - asked).as_secs_f64() * 1e3).fold(0.0, f64::max)
        };
        let mut stalls: Vec<f64> = self.shared.statements.iter().map(longest).collect();
        stalls.sort_by(f64::total_cmp);
        stalls
    }

    /// Ends them, and looks whether the idle ones have what they began with.
    pub async fn stop(self, address: &str) -> Result<Done> {
        let Clients { shared, idle, at_work } = self;
        shared.is_over.store(true, Ordering::Relaxed);
        for client in at_work {
            client.await.map_err(|error| Error::internal(format!("a client failed: {error}")))??;
        }
        for mut client in idle {
            match client.has_what_it_had().await {
                Ok(true) => {}
                Ok(false) => _ = shared.wrong.fetch_add(1, Ordering::Relaxed),
                Err(error) => {
                    shared.lost_connections.fetch_add(1, Ordering::Relaxed);
                    shared.note(error.code().code());
                }
            }
        }
        // What is there is what was acknowledged: each client looked at its own row after every statement.
        Client::connect(address).await?.query("DROP TABLE counted").await?.succeeded()?;
        let failed = shared.failed.lock().clone();
        Ok(Done {
            acknowledged: shared.acknowledged.load(Ordering::Relaxed),
            committed: shared.committed.load(Ordering::Relaxed),
            lost_connections: shared.lost_connections.load(Ordering::Relaxed),
            wrong: shared.wrong.load(Ordering::Relaxed),
            failed,
        })
    }
}

impl Idle {
    /// Has a setting, a prepared statement, and some a cursor.
    async fn connect(address: &str, number: usize, tls: Option<&TlsConnector>) -> Result<Idle> {
        let (mut client, _) = Client::log_in_over(address, &Login::default(), tls).await?;
        client.query(&format!("SET application_name = 'idle {number}'")).await?.succeeded()?;
        client.prepare("plus", &format!("SELECT $1::bigint + {number}")).await?;
        let process = client.execute("plus", &[1]).await?.succeeded()?.number(0)?;
        if process != number as i64 + 1 {
            return Err(Error::internal("a prepared statement gave a wrong answer"));
        }
        if number.is_multiple_of(CURSOR_EVERY) {
            let sql =
                "BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT i FROM generate_series(1, 3) i; COMMIT; FETCH 1 FROM c";
            client.query(sql).await?.succeeded()?;
        }
        let process = client.query("SELECT pg_backend_pid()").await?.succeeded()?.number(0)?;
        Ok(Idle { client, number, process })
    }

    async fn has_what_it_had(&mut self) -> Result<bool> {
        let name = self.client.query("SHOW application_name").await?.succeeded()?;
        let sum = self.client.execute("plus", &[1]).await?.succeeded()?.number(0)?;
        let process = self.client.query("SELECT pg_backend_pid()").await?.succeeded()?.number(0)?;
        let row = match self.number.is_multiple_of(CURSOR_EVERY) {
            true => self.client.query("FETCH 1 FROM c").await?.succeeded()?.number(0)?,
            false => 2,
        };
        let is_named = name.values.first() == Some(&Some(format!("idle {}", self.number)));
        Ok(is_named && sum == self.number as i64 + 1 && process == self.process && row == 2)
    }
}

/// A client with the number of its row.
struct Counting {
    client: Client,
    row: i64,
    /// What the row has to say.
    count: i64,
}

impl Shared {
    fn note(&self, code: &str) {
        *self.failed.lock().entry(code.to_owned()).or_default() += 1;
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Connects to whichever host takes writes.
    async fn connect(&self, number: usize, row: i64) -> Result<Counting> {
        let end = Instant::now() + WITHIN;
        loop {
            let addresses = self.addresses.read().clone();
            for address in &addresses {
                if let Ok(counting) = self.try_host(address, number, row).await {
                    return Ok(counting);
                }
            }
            if Instant::now() > end {
                return Err(Error::new(SqlState::CONNECTION_FAILURE, "no host takes writes"));
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn try_host(&self, address: &str, number: usize, row: i64) -> Result<Counting> {
        let (mut client, said) = Client::log_in_over(address, &Login::default(), self.setup.tls(number)).await?;
        if said.says("in_hot_standby", "on") {
            return Err(Error::new(SqlState::READ_ONLY_SQL_TRANSACTION, "the host follows another"));
        }
        client.prepare("add", "UPDATE counted SET count = count + 1 WHERE client = $1 RETURNING count").await?;
        client.prepare("get", "SELECT count FROM counted WHERE client = $1").await?;
        let count = client.execute("get", &[row]).await?.succeeded()?.number(0)?;
        Ok(Counting { client, row, count })
    }

    /// After the loss of a connection: another one, whose row may have what was under way.
    async fn connect_again(&self, number: usize, before: &Counting, under_way: i64) -> Result<Counting> {
        self.lost_connections.fetch_add(1, Ordering::Relaxed);
        let counting = self.connect(number, before.row).await?;
        if counting.count != before.count && counting.count != before.count + under_way {
            self.wrong.fetch_add(1, Ordering::Relaxed);
        }
        Ok(counting)
    }

    /// One row is updated again and again.
    async fn busy(self: Arc<Self>, number: usize) -> Result<()> {
        let mut counting = self.connect(number, number as i64 + 1).await?;
        while !self.is_over() {
            let asked = Instant::now();
            match counting.client.execute("add", &[counting.row]).await {
                Ok(answer) => {
                    // Otherwise it was not done, and is asked for again.
                    if let Some(sum) = self.sum(answer) {
                        counting.count += 1;
                        self.check(&mut counting, sum);
                        self.acknowledged.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Err(error) => {
                    self.note(error.code().code());
                    counting = self.connect_again(number, &counting, 1).await?;
                }
            }
            self.statements[number].lock().push((asked, Instant::now()));
            tokio::time::sleep(self.setup.think).await;
        }
        Ok(())
    }

    /// What a statement returned. `None`: it failed, which is noted.
    fn sum(&self, answer: Answer) -> Option<i64> {
        if let Some(code) = &answer.error {
            self.note(code);
            if code != SERIALIZATION_FAILURE {
                self.wrong.fetch_add(1, Ordering::Relaxed);
            }
            return None;
        }
        answer.number(0).ok()
    }

    fn check(&self, counting: &mut Counting, sum: i64) {
        if sum != counting.count {
            self.wrong.fetch_add(1, Ordering::Relaxed);
            counting.count = sum;
        }
    }

    /// Two updates of one row in a transaction, one of them behind a savepoint, with some time between any two statements.
    async fn open(self: Arc<Self>, number: usize) -> Result<()> {
        let mut random = crate::random::Random::new(number as u64 + 1);
        let number = self.setup.busy + number;
        let mut counting = self.connect(number, number as i64 + 1).await?;
        while !self.is_over() {
            match self.transaction(&mut counting, &mut random).await {
                Ok(true) => {
                    counting.count += 2;
                    self.committed.fetch_add(1, Ordering::Relaxed);
                }
                Ok(false) => _ = counting.client.query("ROLLBACK").await,
                Err(error) => {
                    self.note(error.code().code());
                    counting = self.connect_again(number, &counting, 2).await?;
                }
            }
        }
        let sum = counting.client.execute("get", &[counting.row]).await?.succeeded()?.number(0)?;
        self.check(&mut counting, sum);
        Ok(())
    }

    /// Whether it committed.
    async fn transaction(&self, counting: &mut Counting, random: &mut crate::random::Random) -> Result<bool> {
        let row = counting.row;
        let steps = ["BEGIN", "add", "SAVEPOINT s", "add", "COMMIT"];
        let mut sum = counting.count;
        for step in steps {
            let answer = match step {
                "add" => counting.client.execute("add", &[row]).await?,
                _ => counting.client.query(step).await?,
            };
            if let Some(code) = &answer.error {
                self.note(code);
                return Ok(false);
            }
            if step == "add" {
                sum += 1;
                if answer.number(0)? != sum {
                    self.wrong.fetch_add(1, Ordering::Relaxed);
                }
            }
            if step == "COMMIT" && answer.in_transaction {
                self.wrong.fetch_add(1, Ordering::Relaxed);
            }
            tokio::time::sleep(Duration::from_millis(random.below(OPEN_MS))).await;
        }
        Ok(true)
    }
}
