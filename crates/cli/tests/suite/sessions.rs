//! Clients whose connections go over to the next primary at a planned change of primary.

use crate::cli::{Serving, text, tidepool};
use crate::failover::{Cluster, connect, connect_soon, one, pool, until};
use crate::raw::{self, Raw};
use crate::server::{PATIENCE, code};
use crate::wire::write_key;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_postgres::{Client, Error, NoTls, Statement};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

const STREAMING: &str = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";

/// Hosts that come back as standbys. No host takes another for silent on a busy machine, and none gives up because of it: each change is
/// the test's.
pub fn rejoining(cluster: &Cluster, drain: &str) -> String {
    let config = cluster.folder.path().join("tidepool.toml");
    let text = format!("[pool]\non_fenced = \"rejoin\"\nhost_timeout = \"60s\"\nswitchover_drain = \"{drain}\"\n");
    std::fs::write(&config, text).unwrap();
    config.to_str().unwrap().to_owned()
}

/// Has servers of a configuration accept clients with TLS, and makes such clients.
pub struct Encryption {
    roots: RootCertStore,
}

impl Encryption {
    pub fn new(cluster: &Cluster, config: &str) -> Encryption {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let [certificate, key] = ["server.crt", "server.key"].map(|name| cluster.folder.path().join(name));
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        write_key(&key, &made.signing_key.serialize_pem(), 0o600);
        let mut text = std::fs::read_to_string(config).unwrap();
        text += &format!("[server]\ntls_certificate = {certificate:?}\ntls_key = {key:?}\n");
        std::fs::write(config, text).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        Encryption { roots }
    }

    /// With one of the cipher suites of TLS 1.3, by number.
    async fn stream(&self, url: &str, number: usize) -> TlsStream<TcpStream> {
        let mut provider = ring::default_provider();
        provider.cipher_suites.retain(|suite| suite.tls13().is_some());
        let suite = provider.cipher_suites[number % provider.cipher_suites.len()];
        let config =
            ClientConfig::builder_with_provider(Arc::new(CryptoProvider { cipher_suites: vec![suite], ..provider }))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(self.roots.clone())
                .with_no_client_auth();
        let mut stream = TcpStream::connect(address(url)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(&[0, 0, 0, 8, 4, 210, 22, 47]).await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'S');
        TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap()
    }

    pub async fn connect(&self, url: &str, number: usize) -> Client {
        let config: tokio_postgres::Config = url.parse().unwrap();
        let (client, connection) = config.connect_raw(self.stream(url, number).await, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }
}

pub fn start(cluster: &Cluster, name: &str, role: &str, config: &str, crash_point: Option<&str>) -> Serving {
    let mut command = tidepool();
    command.args(["serve", "--near", "128MB", "--far", "pool:", "--pool", &pool(cluster.folder.path())]);
    command.args(["--name", name, "--role", role, "--config", config]);
    // A host that begins anew listens where it did.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    command.args(["--listen", &free.to_string()]);
    command.envs(crash_point.map(|point| ("TIDEPOOL_CRASH_POINT", point)));
    Serving::start(command).unwrap_or_else(|log| panic!("{name} does not start: {log}"))
}

pub fn address(url: &str) -> SocketAddr {
    url.split('@').nth(1).unwrap().split('/').next().unwrap().parse().unwrap()
}

pub async fn switch_over(url: &str, to: &str) {
    let (url, to) = (url.to_owned(), to.to_owned());
    let switching = move || {
        let done = tidepool().args(["switchover", &url, "--to", &to]).output().unwrap();
        let is_done = done.status.success() && text(&done.stdout) == format!("{to} is primary\n");
        assert!(is_done, "{}{}", text(&done.stdout), text(&done.stderr));
    };
    tokio::task::spawn_blocking(switching).await.unwrap();
}

/// A client with all that a session can have between two statements.
pub struct Rich {
    pub client: Client,
    insert: Statement,
    select: Statement,
    process_id: String,
    number: i32,
}

impl Rich {
    pub async fn new(url: &str, number: i32, encryption: Option<&Encryption>) -> Rich {
        let url = format!("{url}?application_name=rich{number}&options=-c%20lock_timeout%3D7s");
        let client = match encryption {
            Some(encryption) => encryption.connect(&url, number as usize).await,
            None => connect(&url).await,
        };
        let setup = format!(
            "SET search_path = s{number}, public; SET TIME ZONE 'Europe/Zurich'; SET app.number = '{number}';
             SET work_mem = '9MB'; SET statement_timeout = '10min'; SET default_transaction_isolation = 'repeatable read';
             PREPARE twice(int) AS SELECT $1 * 2"
        );
        client.batch_execute(&setup).await.unwrap();
        client
            .batch_execute(&format!("SELECT pg_advisory_lock({number}), pg_advisory_lock({number}, 7)"))
            .await
            .unwrap();
        client.batch_execute("SELECT nextval('counted'), nextval('ahead'), nextval('counted')").await.unwrap();
        let held = "BEGIN; DECLARE held CURSOR WITH HOLD FOR SELECT i FROM generate_series(1, 1000) AS g(i); COMMIT";
        client.batch_execute(held).await.unwrap();
        let insert = client.prepare("INSERT INTO t VALUES ($1, $2)").await.unwrap();
        let select = client.prepare("SELECT count(*) FROM t WHERE name = $1").await.unwrap();
        let process_id = one(&client, "SELECT pg_backend_pid()").await;
        Rich { client, insert, select, process_id, number }
    }

    pub async fn state(&self) -> String {
        let settings = ["search_path", "TimeZone", "app.number", "work_mem", "statement_timeout", "lock_timeout"];
        let more = ["default_transaction_isolation", "application_name", "session_authorization"];
        let settings = settings.iter().chain(&more).map(|name| format!("current_setting('{name}')"));
        let settings = settings.collect::<Vec<_>>().join(" || '|' || ");
        let known = "currval('counted') || '|' || currval('ahead') || '|' || lastval() || '|' || pg_backend_pid()";
        one(&self.client, &format!("SELECT {settings} || '|' || {known}")).await
    }

    /// Uses what it has. `round`: how often it was asked.
    pub async fn check(&self, round: i32, state: &str) {
        assert_eq!(self.state().await, state);
        assert_eq!(one(&self.client, "EXECUTE twice(21)").await, "42");
        let name = format!("rich{}", self.number);
        self.client.execute(&self.insert, &[&(self.number * 1000 + round), &name]).await.unwrap();
        let count: i64 = self.client.query_one(&self.select, &[&name]).await.unwrap().get(0);
        assert_eq!(count, i64::from(round) + 1);
        assert_eq!(one(&self.client, "FETCH 1 FROM held").await, (round + 1).to_string());
        // Once more than it was locked, the lock is not its.
        let (number, held) = (self.number, format!("SELECT pg_try_advisory_lock({})", self.number));
        assert_eq!(one(&self.client, &held).await, "t");
        for answer in ["t", "t", "f"] {
            assert_eq!(one(&self.client, &format!("SELECT pg_advisory_unlock({number})")).await, answer);
        }
        assert_eq!(one(&self.client, &held).await, "t");
    }

    /// By the key that it was told when it connected, at an address of either server.
    pub async fn check_cancel(&self, url: &str) {
        let cancel = self.client.cancel_token();
        let mut sleeping = std::pin::pin!(self.client.simple_query("SELECT pg_sleep(3600)"));
        let ended = loop {
            // A request that comes before the statement is for nothing.
            tokio::select! {
                ended = &mut sleeping => break ended,
                () = tokio::time::sleep(Duration::from_millis(100)) => {
                    let stream = TcpStream::connect(address(url)).await.unwrap();
                    cancel.cancel_query_raw(stream, NoTls).await.unwrap();
                }
            }
        };
        assert_eq!(code(&ended.unwrap_err()), "57014");
    }
}

/// Adds to its account, until it is stopped or its connection ends: how often, and the longest that one transaction took.
pub async fn add(mut client: Client, account: i32, stopped: Arc<AtomicBool>) -> (i64, Duration, Option<Error>) {
    let (mut added, mut longest) = (0, Duration::ZERO);
    let update =
        client.prepare("UPDATE accounts SET balance = balance + 1 WHERE id = $1 RETURNING balance").await.unwrap();
    while !stopped.load(Ordering::Relaxed) {
        let start = Instant::now();
        let adding = async {
            let transaction = client.transaction().await?;
            let balance: i64 = transaction.query_one(&update, &[&account]).await?.get(0);
            transaction.commit().await?;
            Ok(balance)
        };
        match adding.await {
            Ok(balance) => {
                added += 1;
                assert_eq!(balance, added, "an answer is lost, or was given twice");
            }
            Err(error) => return (added, longest, Some(error)),
        }
        longest = longest.max(start.elapsed());
    }
    (added, longest, None)
}

async fn set_up(url: &str) {
    let client = connect(url).await;
    create_tables(&client).await;
    until(&client, STREAMING, "1").await;
}

pub async fn create_tables(client: &Client) {
    let tables = "CREATE TABLE t (id int PRIMARY KEY, name text);
                  CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL);
                  INSERT INTO accounts SELECT id, 0 FROM generate_series(1, 4) AS made(id);
                  CREATE SEQUENCE counted; CREATE SEQUENCE ahead CACHE 10";
    client.batch_execute(tables).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_notice_nothing_of_a_switch_over() {
    let cluster = Cluster::new();
    let config = rejoining(&cluster, "100s");
    let encryption = Encryption::new(&cluster, &config);
    let hosts = [start(&cluster, "h1", "primary", &config, None), start(&cluster, "h2", "standby", &config, None)];
    let mut urls = hosts.each_ref().map(|host| host.url.clone());
    set_up(&urls[0]).await;
    let mut rich = Vec::new();
    for number in 1..=6 {
        let client = Rich::new(&urls[0], number, Some(&encryption).filter(|_| number > 3)).await;
        let state = client.state().await;
        rich.push((client, state));
    }
    // Half of a message has come; and another client has sent what nobody worked on.
    let (mut half, _) = Raw::start(address(&urls[0])).await;
    half.ask(&[raw::parse("named", "SELECT 'prepared'"), raw::sync()].concat()).await;
    let mut half_secured = Raw { stream: encryption.stream(&urls[0], 0).await };
    half_secured.send(&raw::startup((3, 0), &[("user", "tidepool"), ("database", "tidepool")])).await;
    half_secured.until(b'Z').await;
    half_secured.ask(&[raw::parse("named", "SELECT 'prepared'"), raw::sync()].concat()).await;
    let stopped = Arc::new(AtomicBool::new(false));
    let mut adding = Vec::new();
    for account in 1..=4 {
        let client = match account {
            1 | 2 => connect(&urls[0]).await,
            _ => encryption.connect(&urls[0], account as usize).await,
        };
        adding.push(tokio::spawn(add(client, account, stopped.clone())));
    }
    let longest = AtomicU64::new(0);
    for round in 0..20 {
        let to = if round % 2 == 0 { "h2" } else { "h1" };
        let whole = [raw::bind("", "named"), raw::execute("", 0), raw::sync()].concat();
        let (first, second) = whole.split_at(3 + round as usize % 5);
        half.send(first).await;
        half_secured.send(first).await;
        let start = Instant::now();
        switch_over(&urls[0], to).await;
        longest.fetch_max(start.elapsed().as_millis() as u64, Ordering::Relaxed);
        urls.swap(0, 1);
        half.send(second).await;
        let answer = half.until(b'Z').await;
        assert_eq!(raw::kinds(&answer), "2DCZ");
        half_secured.send(second).await;
        assert_eq!(raw::kinds(&half_secured.until(b'Z').await), "2DCZ");
        for (client, state) in &rich {
            client.check(round, state).await;
        }
        let client = connect_soon(&urls[0]).await;
        assert_eq!(one(&client, "SELECT name FROM tidepool.hosts WHERE is_this_server").await, to);
        assert_eq!(one(&client, "SELECT pg_try_advisory_lock(1)").await, "f");
        rich[round as usize % 6].0.check_cancel(&urls[round as usize / 6 % 2]).await;
        until(&client, STREAMING, "1").await;
    }
    stopped.store(true, Ordering::Relaxed);
    let mut all = 0;
    for adding in adding {
        let (added, longest, error) = adding.await.unwrap();
        assert!(error.is_none() && added > 0, "{added} {error:?}");
        println!("{added} transactions, the longest {longest:?}");
        all += added;
    }
    println!("the longest switch-over took {} ms", longest.load(Ordering::Relaxed));
    let client = connect_soon(&urls[0]).await;
    assert_eq!(one(&client, "SELECT sum(balance) FROM accounts").await, all.to_string());
    assert_eq!(one(&rich[0].0.client, "SELECT pg_backend_pid()").await, rich[0].0.process_id);
    for host in hosts {
        host.signal(libc::SIGTERM);
        let (_, log) = host.wait();
        assert!(!log.contains("ERROR") && !log.contains("panic"), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_go_over_ends_and_the_others_go_on() {
    let cluster = Cluster::new();
    let config = rejoining(&cluster, "1s");
    let first = start(&cluster, "h1", "primary", &config, None);
    let second = start(&cluster, "h2", "standby", &config, None);
    set_up(&first.url).await;
    let idle = connect(&first.url).await;
    // What it prepared is changed by then.
    let changed = idle.prepare("SELECT balance FROM accounts WHERE id = $1").await.unwrap();
    idle.batch_execute("ALTER TABLE accounts ALTER balance TYPE int").await.unwrap();
    let holding = connect(&first.url).await;
    let hold = "BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT id, name, now() FROM (VALUES (1, 'a'), (2, NULL), (3, 'c')) AS v(id, name);
                DECLARE ended CURSOR WITH HOLD FOR SELECT id FROM t; FETCH 1 FROM ended; COMMIT; FETCH 1 FROM c";
    holding.batch_execute(hold).await.unwrap();
    // More than goes over.
    let large = connect(&first.url).await;
    large
        .batch_execute("DECLARE c CURSOR WITH HOLD FOR SELECT repeat('x', 1000) FROM generate_series(1, 10000)")
        .await
        .unwrap();
    // One of the next primary's own clients has what one that goes over has, too.
    let (taken, locked) = (connect(&second.url).await, connect(&first.url).await);
    taken.batch_execute("SELECT pg_advisory_lock(1)").await.unwrap();
    locked.batch_execute("SELECT pg_advisory_lock(1)").await.unwrap();
    switch_over(&first.url, "h2").await;
    for ended in [&large, &locked] {
        assert!(ended.batch_execute("SELECT 1").await.is_err());
    }
    assert_eq!(one(&holding, "FETCH 1 FROM c").await, "2");
    holding.batch_execute("BEGIN").await.unwrap();
    let at = holding.batch_execute("UPDATE t SET name = '' WHERE CURRENT OF c").await.unwrap_err();
    assert_eq!(code(&at), "24000");
    holding.batch_execute("ROLLBACK").await.unwrap();
    let left = holding.simple_query("FETCH ALL FROM c").await.unwrap();
    let rows: Vec<_> = left
        .iter()
        .filter_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => {
                Some((row.get(0).map(str::to_owned), row.get(1).map(str::to_owned)))
            }
            _ => None,
        })
        .collect();
    assert_eq!(rows, [(Some("3".to_owned()), Some("c".to_owned()))]);
    holding.batch_execute("FETCH ALL FROM ended; CLOSE c; CLOSE ended").await.unwrap();
    assert_eq!(one(&taken, "SELECT pg_advisory_unlock(1)").await, "t");
    assert_eq!(one(&idle, "SELECT balance FROM accounts WHERE id = 1").await, "0");
    assert_eq!(code(&idle.query(&changed, &[&1]).await.unwrap_err()), "0A000");
    idle.batch_execute("UPDATE accounts SET balance = 5 WHERE id = 1").await.unwrap();
    assert_eq!(one(&taken, "SELECT balance FROM accounts WHERE id = 1").await, "5");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_with_more_than_rows_are_lost_and_their_clients_told() {
    let cluster = Cluster::new();
    let config = rejoining(&cluster, "1s");
    let first = start(&cluster, "h1", "primary", &config, None);
    let second = start(&cluster, "h2", "standby", &config, None);
    set_up(&first.url).await;
    let begin = async |sql: &str| {
        let client = connect(&first.url).await;
        client.batch_execute("SET work_mem = '9MB'").await.unwrap();
        client.batch_execute(sql).await.unwrap();
        client
    };
    let reading = begin("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM accounts").await;
    let writing = begin(
        "BEGIN; UPDATE accounts SET balance = 100 WHERE id = 1; SET work_mem = '11MB'; SELECT pg_current_xact_id()",
    )
    .await;
    let committing = begin("BEGIN; SET LOCAL work_mem = '12MB'; SELECT pg_current_xact_id(); UPDATE accounts SET balance = 100 WHERE id = 2").await;
    let saved =
        begin("BEGIN; CREATE TABLE made (id int); SAVEPOINT s; UPDATE accounts SET balance = 100 WHERE id = 3").await;
    // More rows than go over.
    let many = "SELECT repeat('x', 1000) FROM generate_series(1, 1000000)";
    let fetching = begin(&format!("BEGIN; DECLARE c CURSOR FOR {many}; FETCH 1 FROM c")).await;
    let begun = begin("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await;
    let failed = begin("BEGIN; UPDATE accounts SET balance = 100 WHERE id = 4").await;
    assert!(failed.batch_execute("SELECT 1 / 0").await.is_err());
    let mut ported = begin("SELECT 1").await;
    let transaction = ported.transaction().await.unwrap();
    let portal = transaction.bind(many, &[]).await.unwrap();
    assert_eq!(transaction.query_portal(&portal, 1).await.unwrap().len(), 1);
    let sleeping = begin("SELECT 1").await;
    let (waiting, blocking) =
        (begin("SELECT 1").await, begin("BEGIN; SELECT pg_advisory_xact_lock(5), pg_current_xact_id()").await);
    let sleep = async {
        let (slept, waited) = tokio::join!(
            sleeping.batch_execute("SELECT pg_sleep(3600)"),
            waiting.batch_execute("SELECT pg_advisory_lock(5)"),
        );
        [slept, waited].map(|ended| code(&ended.unwrap_err()).to_owned())
    };
    let switching = async {
        // One that has not begun begins at the next primary.
        let watching = connect(&first.url).await;
        let running = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active'
                       AND query IN ('SELECT pg_sleep(3600)', 'SELECT pg_advisory_lock(5)')";
        until(&watching, running, "2").await;
        switch_over(&first.url, "h2").await;
    };
    let (ended, ()) = tokio::join!(sleep, switching);
    assert_eq!(ended, ["40001", "40001"]);
    let error = async |client: &Client, sql: &str| code(&client.batch_execute(sql).await.unwrap_err()).to_owned();
    for client in [&reading, &writing, &blocking] {
        assert_eq!(error(client, "SELECT 1").await, "40001");
        assert_eq!(error(client, "SELECT 1").await, "25P02");
        client.batch_execute("ROLLBACK").await.unwrap();
    }
    assert_eq!(error(&saved, "ROLLBACK TO s").await, "40001");
    assert_eq!(error(&saved, "ROLLBACK TO s").await, "3B001");
    // Also where its end was asked for: the client did not know. It is over then.
    assert_eq!(error(&committing, "COMMIT").await, "40001");
    assert_eq!(error(&fetching, "FETCH 1 FROM c").await, "40001");
    assert_eq!(code(&transaction.query_portal(&portal, 1).await.unwrap_err()), "40001");
    transaction.rollback().await.unwrap();
    saved.batch_execute("ROLLBACK").await.unwrap();
    fetching.batch_execute("COMMIT").await.unwrap();
    // Of one in which nothing was done, nothing is lost.
    assert_eq!(one(&begun, "SHOW transaction_isolation").await, "repeatable read");
    assert_eq!(error(&begun, "DELETE FROM accounts").await, "25006");
    begun.batch_execute("COMMIT").await.unwrap();
    assert_eq!(error(&failed, "SELECT 1").await, "25P02");
    failed.batch_execute("COMMIT").await.unwrap();
    for client in [&reading, &writing, &committing, &saved, &fetching, &begun, &failed, &sleeping, &waiting, &blocking]
    {
        assert_eq!(one(client, "SHOW work_mem").await, "9MB");
        assert_eq!(one(client, "SELECT pg_is_in_recovery()").await, "f");
    }
    assert_eq!(one(&ported, "SELECT sum(balance) FROM accounts").await, "0");
    for host in [first, second] {
        host.signal(libc::SIGTERM);
        let (_, log) = host.wait();
        assert!(!log.contains("ERROR") && !log.contains("panic"), "{log}");
    }
}

/// Settings that a transaction changed, for itself and for its session, and those that it goes back to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_of_open_transactions_go_over() {
    let cluster = Cluster::new();
    let config = rejoining(&cluster, "100s");
    let hosts = [start(&cluster, "h1", "primary", &config, None), start(&cluster, "h2", "standby", &config, None)];
    let mut urls = hosts.each_ref().map(|host| host.url.clone());
    set_up(&urls[0]).await;
    connect(&urls[0]).await.batch_execute("CREATE SCHEMA other; CREATE ROLE clerk").await.unwrap();
    const SHOWN: &str = "SELECT concat_ws('|', current_setting('work_mem'), current_setting('lock_timeout'), current_setting('search_path'),
        current_setting('app.tenant', true), current_setting('application_name'), current_setting('timezone'), current_user,
        current_setting('transaction_isolation'), current_setting('transaction_read_only'))";
    let first = "SET work_mem = '9MB'; SET app.tenant = '0'; SET application_name = 'first'";
    // In parts, between which servers change.
    let transactions: [&[&str]; 3] = [
        &[
            "BEGIN; SET work_mem = '11MB'; SET LOCAL lock_timeout = '5s'; SET LOCAL app.tenant = '7'; SET application_name = 'second';
             UPDATE accounts SET balance = balance + 1 WHERE id = 1; SAVEPOINT s; SET LOCAL work_mem = '12MB'; SET search_path = other;
             SET LOCAL ROLE clerk; SAVEPOINT t; RESET work_mem; SET TIME ZONE 'Asia/Tokyo'; SELECT set_config('app.tenant', '8', false)",
            "ROLLBACK TO t",
            "ROLLBACK TO s",
            "SET work_mem = '13MB'; SAVEPOINT u; SET LOCAL work_mem = '14MB'",
            "COMMIT",
        ],
        // Nothing else was done in it.
        &["BEGIN; SET LOCAL work_mem = '12MB'; SET TIME ZONE 'Asia/Tokyo'", "SET application_name = 'third'", "COMMIT", "RESET ALL"],
        &["BEGIN; RESET work_mem; UPDATE accounts SET balance = 0 WHERE id = 2; SAVEPOINT s; SELECT pg_advisory_xact_lock($own);
         SELECT pg_advisory_xact_lock($own); SELECT pg_advisory_xact_lock_shared(1, 2)", "SET LOCAL app.tenant = ''", "ROLLBACK"],
    ];
    let mut clients = Vec::new();
    for _ in transactions {
        let client = connect(&urls[0]).await;
        client.batch_execute(first).await.unwrap();
        clients.push(client);
    }
    // What each shows after each part, where it stays at one server.
    let mut expected = Vec::new();
    for transaction in transactions {
        let client = connect(&urls[0]).await;
        client.batch_execute(first).await.unwrap();
        let mut shown = Vec::new();
        for part in transaction {
            client.batch_execute(&part.replace("$own", "8")).await.unwrap();
            shown.push(one(&client, SHOWN).await);
        }
        expected.push(shown);
    }
    let client = connect(&urls[0]).await;
    assert_eq!(expected[0][4], "13MB|0|\"$user\", public|0|second|UTC|tidepool|read committed|off");
    client.batch_execute("UPDATE accounts SET balance = 0 WHERE id = 1").await.unwrap();
    for part in 0..5 {
        for (number, transaction) in transactions.iter().enumerate() {
            if let Some(statements) = transaction.get(part) {
                clients[number].batch_execute(&statements.replace("$own", "9")).await.unwrap();
                assert_eq!(one(&clients[number], SHOWN).await, expected[number][part], "{statements}");
            }
        }
        switch_over(&urls[0], if part % 2 == 0 { "h2" } else { "h1" }).await;
        urls.swap(0, 1);
        for (number, transaction) in transactions.iter().enumerate() {
            let last = part.min(transaction.len() - 1);
            assert_eq!(
                one(&clients[number], SHOWN).await,
                expected[number][last],
                "{}, then a switch-over",
                transaction[last]
            );
        }
        // Those locks that end with a transaction, too.
        let to_be_had = "SELECT concat_ws(' ', pg_try_advisory_xact_lock(9), pg_try_advisory_xact_lock_shared(1, 2), pg_try_advisory_xact_lock(1, 2))";
        assert_eq!(one(&client, to_be_had).await, if part < 2 { "f t f" } else { "t t t" });
        until(&client, STREAMING, "1").await;
    }
    assert_eq!(one(&client, "SELECT balance FROM accounts WHERE id = 1").await, "1");
    for host in hosts {
        host.signal(libc::SIGTERM);
        let (_, log) = host.wait();
        assert!(!log.contains("ERROR") && !log.contains("panic"), "{log}");
    }
}

/// Whatever rows they wrote and locked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_that_are_open_go_on() {
    let cluster = Cluster::new();
    let config = rejoining(&cluster, "100s");
    let hosts = [start(&cluster, "h1", "primary", &config, None), start(&cluster, "h2", "standby", &config, None)];
    let mut urls = hosts.each_ref().map(|host| host.url.clone());
    set_up(&urls[0]).await;
    let client = connect(&urls[0]).await;
    let tables = "CREATE TABLE parent (id int PRIMARY KEY, name text UNIQUE, n numeric DEFAULT 1.5);
                  CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent ON DELETE CASCADE);
                  CREATE TABLE part (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
                  CREATE TABLE part_low PARTITION OF part FOR VALUES FROM (0) TO (100);
                  CREATE TABLE part_high PARTITION OF part FOR VALUES FROM (100) TO (200);
                  INSERT INTO parent SELECT i, 'p' || i FROM generate_series(1, 100) AS g(i);
                  INSERT INTO part SELECT i, 'v' FROM generate_series(0, 199, 10) AS g(i);
                  CALL tidepool.merge('parent');
                  INSERT INTO parent SELECT i, 'p' || i FROM generate_series(101, 110) AS g(i);
                  UPDATE parent SET n = 2 WHERE id IN (7, 8)";
    for statement in tables.split(';') {
        client.batch_execute(statement).await.unwrap();
    }
    let begin = async |sql: &str| {
        let client = connect(&urls[0]).await;
        client.batch_execute(sql).await.unwrap();
        client
    };
    let reading = begin("BEGIN; SELECT count(*) FROM parent; SAVEPOINT empty").await;
    let writing = begin(
        "BEGIN; INSERT INTO parent VALUES (201, 'own'), (202, 'own too'); UPDATE parent SET n = n + 1 WHERE id IN (1, 7, 105, 201);
         UPDATE parent SET name = 'renamed' WHERE id = 2; DELETE FROM parent WHERE id IN (3, 106);
         SAVEPOINT one; UPDATE parent SET n = n * 10 WHERE id IN (1, 201); INSERT INTO parent VALUES (3, 'p3 again');
         SAVEPOINT two; DELETE FROM parent WHERE id IN (1, 201, 3); INSERT INTO parent VALUES (203, 'last')",
    )
    .await;
    // What a parent's end takes along is taken along once.
    let referring = begin(
        "BEGIN; INSERT INTO child VALUES (1, 10), (2, 11), (3, 11); DELETE FROM parent WHERE id = 11;
         INSERT INTO parent VALUES (11, 'p11'); INSERT INTO child VALUES (4, 11)",
    )
    .await;
    let moving = begin("BEGIN; UPDATE part SET k = k + 95 WHERE k = 10; UPDATE part SET v = 'w' WHERE k = 150").await;
    let locking = begin(
        "BEGIN; SELECT id FROM parent WHERE id = 20 FOR UPDATE; SELECT id FROM parent WHERE id = 21 FOR NO KEY UPDATE;
         SELECT id FROM parent WHERE id = 22 FOR SHARE; SELECT id FROM parent WHERE id = 107 FOR KEY SHARE;
         LOCK TABLE t IN SHARE MODE",
    )
    .await;
    let fetching = begin(
        "BEGIN; INSERT INTO parent VALUES (301, 'own 1'), (302, 'own 2'), (303, 'own 3');
         DECLARE own CURSOR FOR SELECT id, name FROM parent WHERE id > 300; FETCH 1 FROM own;
         DECLARE other CURSOR FOR SELECT id FROM parent WHERE id IN (40, 108) FOR UPDATE; FETCH 2 FROM other;
         DECLARE numbers CURSOR WITH HOLD FOR SELECT i FROM generate_series(1, 9) AS g(i); FETCH 2 FROM numbers;
         SAVEPOINT later; DECLARE later CURSOR FOR SELECT 7",
    )
    .await;
    let keyed = begin("SELECT 1").await;
    let by_key = keyed.prepare("UPDATE accounts SET balance = balance + 1 WHERE id = $1").await.unwrap();
    keyed.batch_execute("BEGIN").await.unwrap();
    keyed.execute(&by_key, &[&1]).await.unwrap();
    // Portals of the protocol, one of which has given all that it has.
    let mut ported = begin("SELECT 1").await;
    let ported = ported.transaction().await.unwrap();
    ported.execute("UPDATE accounts SET balance = balance + 7 WHERE id = 2", &[]).await.unwrap();
    let given = ported.bind("SELECT 5", &[]).await.unwrap();
    assert_eq!(ported.query_portal(&given, 1).await.unwrap().len(), 1);
    let left = ported.bind("SELECT id, name, n::text FROM parent WHERE id <= $1 ORDER BY id", &[&100]).await.unwrap();
    let next = async |most: i32| -> Vec<(i32, Option<String>, Option<String>)> {
        let rows = ported.query_portal(&left, most).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
    };
    let row = |id: i32, n: &str| (id, Some(format!("p{id}")), Some(n.to_owned()));
    assert_eq!(next(5).await, [1, 2, 3, 4, 5].map(|id| row(id, "1.5")));
    let free = "SELECT string_agg(id::text, ',' ORDER BY id) FROM (SELECT id FROM parent WHERE id < 30 OR id > 100 FOR UPDATE SKIP LOCKED) s";
    let mut seen = None;
    for round in 1..=3 {
        let now = one(&client, free).await;
        assert_eq!(
            *seen.get_or_insert(now.clone()),
            now,
            "others may have other rows after {} switch-overs",
            round - 1
        );
        switch_over(&urls[0], if round % 2 == 1 { "h2" } else { "h1" }).await;
        urls.swap(0, 1);
        // Others wait for what they wait for before.
        client.batch_execute("SET lock_timeout = '50ms'").await.unwrap();
        for sql in [
            "INSERT INTO parent VALUES (202, 'another')",
            "INSERT INTO parent VALUES (300, 'renamed')",
            "UPDATE parent SET n = 0 WHERE id = 7",
            "UPDATE parent SET n = 0 WHERE id = 22",
            "DELETE FROM parent WHERE id = 10",
            "DELETE FROM parent WHERE id = 107",
            "UPDATE part SET v = '' WHERE k = 150",
            "INSERT INTO t VALUES (1, 'one')",
            "UPDATE accounts SET balance = 0 WHERE id = 1",
        ] {
            let refused = client.batch_execute(sql).await.map_err(|error| code(&error).to_owned());
            assert_eq!(refused, Err("55P03".to_owned()), "{sql}");
        }
        client
            .batch_execute(
                "UPDATE parent SET n = n WHERE id = 107; SELECT id FROM parent WHERE id = 22 FOR SHARE NOWAIT",
            )
            .await
            .unwrap();
        assert_eq!(one(&client, "SELECT count(*) FROM parent").await, "110");
        keyed.execute(&by_key, &[&1]).await.unwrap();
        moving.batch_execute("UPDATE part SET v = v || 'x' WHERE k = 105").await.unwrap();
        fetching.batch_execute("UPDATE parent SET n = coalesce(n, 0) + 1 WHERE CURRENT OF own").await.unwrap();
        assert_eq!(one(&fetching, "FETCH 1 FROM numbers").await, (round + 2).to_string());
        assert!(ported.query_portal(&given, 1).await.unwrap().is_empty());
        assert_eq!(next(1).await, [row(round + 5, if round == 1 { "1.5" } else { "2" })]);
        until(&client, STREAMING, "1").await;
    }
    let rest = next(0).await;
    assert_eq!((rest.len(), rest.last()), (92, Some(&row(100, "1.5"))));
    assert!(next(0).await.is_empty());
    ported.commit().await.unwrap();
    assert_eq!(one(&client, "SELECT balance FROM accounts WHERE id = 2").await, "7");
    // Each sees what it did.
    reading.batch_execute("ROLLBACK TO empty; COMMIT").await.unwrap();
    let own = "SELECT string_agg(id || ' ' || name || ' ' || n, ',' ORDER BY id) FROM parent WHERE id < 4 OR id IN (7, 105, 106) OR id > 200";
    assert_eq!(one(&writing, own).await, "2 renamed 1.5,7 p7 3,105 p105 2.5,202 own too 1.5,203 last 1.5");
    writing.batch_execute("ROLLBACK TO two").await.unwrap();
    assert_eq!(
        one(&writing, own).await,
        "1 p1 25.0,2 renamed 1.5,3 p3 again 1.5,7 p7 3,105 p105 2.5,201 own 25.0,202 own too 1.5"
    );
    writing.batch_execute("ROLLBACK TO one; UPDATE parent SET n = n + 1 WHERE id = 201; COMMIT").await.unwrap();
    assert_eq!(one(&client, own).await, "1 p1 2.5,2 renamed 1.5,7 p7 3,105 p105 2.5,201 own 3.5,202 own too 1.5");
    assert_eq!(one(&referring, "SELECT string_agg(id::text, ',' ORDER BY id) FROM child").await, "1,4");
    referring.batch_execute("COMMIT").await.unwrap();
    assert_eq!(one(&client, "SELECT string_agg(id::text, ',' ORDER BY id) FROM child").await, "1,4");
    moving.batch_execute("COMMIT").await.unwrap();
    assert_eq!(
        one(&client, "SELECT string_agg(v, ',' ORDER BY k) FROM part_high WHERE k IN (105, 150)").await,
        "vxxx,w"
    );
    assert_eq!(one(&fetching, "SELECT n FROM parent WHERE id = 301").await, "4.5");
    assert_eq!(one(&fetching, "FETCH 1 FROM later").await, "7");
    fetching.batch_execute("ROLLBACK TO later").await.unwrap();
    assert_eq!(code(&fetching.batch_execute("FETCH 1 FROM later").await.unwrap_err()), "34000");
    fetching.batch_execute("ROLLBACK TO later; UPDATE parent SET n = n + 5 WHERE CURRENT OF own").await.unwrap();
    // The next one.
    fetching.batch_execute("FETCH 1 FROM own; DELETE FROM parent WHERE CURRENT OF own").await.unwrap();
    fetching.batch_execute("UPDATE parent SET n = 98 WHERE CURRENT OF other; COMMIT").await.unwrap();
    assert_eq!(one(&fetching, "FETCH 1 FROM numbers").await, "6");
    assert_eq!(code(&fetching.batch_execute("FETCH 1 FROM own").await.unwrap_err()), "34000");
    let fetched = "SELECT string_agg(id || ' ' || n, ',' ORDER BY id) FROM parent WHERE id > 300 OR n > 90";
    let fetched = one(&client, fetched).await;
    assert!(["40 98,301 6.5,303 1.5", "108 98,301 6.5,303 1.5"].contains(&fetched.as_str()), "{fetched}");
    client.batch_execute("DELETE FROM parent WHERE id > 300").await.unwrap();
    locking
        .batch_execute("UPDATE parent SET n = 0 WHERE id = 22; INSERT INTO t VALUES (1, 'one'); COMMIT")
        .await
        .unwrap();
    keyed.batch_execute("COMMIT").await.unwrap();
    assert_eq!(one(&client, "SELECT balance FROM accounts WHERE id = 1").await, "4");
    assert_eq!(one(&client, "SELECT count(*) FROM pg_locks WHERE relation IS NOT NULL").await, "0");
    // What was written so is in the log as all else is.
    let rows =
        "SELECT (SELECT sum(id) FROM parent) || ' ' || (SELECT sum(id) FROM child) || ' ' || (SELECT sum(k) FROM part)";
    let before = one(&client, rows).await;
    let standby = connect(&urls[1]).await;
    until(&standby, rows, &before).await;
    for host in hosts {
        host.signal(libc::SIGTERM);
        let (_, log) = host.wait();
        assert!(!log.contains("ERROR") && !log.contains("panic"), "{log}");
    }
}

/// Sessions of clients that ask for nothing are passed on before others are stopped, and go on when they ask for something.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_sessions_go_on_while_others_have_time_to_end() {
    const ASKED: i32 = 12;
    let cluster = Cluster::new();
    let config = rejoining(&cluster, "100s");
    let encryption = Encryption::new(&cluster, &config);
    let hosts = [start(&cluster, "h1", "primary", &config, None), start(&cluster, "h2", "standby", &config, None)];
    let [first, second] = &hosts;
    set_up(&first.url).await;
    let mut clients = Vec::new();
    for number in 0..6 {
        clients.push(match number % 2 {
            0 => connect(&first.url).await,
            _ => encryption.connect(&first.url, number).await,
        });
    }
    let reading = connect(&first.url).await;
    reading.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM accounts").await.unwrap();
    let asking = async {
        // Each for longer than an idle session is left alone, so that it is passed on in between, and once more.
        for asked in 1..=ASKED {
            for (number, client) in clients.iter().enumerate().filter(|(number, _)| *number > 1) {
                let sql = format!(
                    "SET app.asked = '{asked}'; UPDATE accounts SET balance = {asked} WHERE id = {}",
                    number - 1
                );
                client.batch_execute(&sql).await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(70)).await;
        }
        reading.batch_execute("COMMIT").await.unwrap();
    };
    tokio::join!(switch_over(&first.url, "h2"), asking);
    for (number, client) in clients.iter().enumerate() {
        assert_eq!(one(client, "SELECT pg_is_in_recovery()").await, "f");
        if number > 1 {
            assert_eq!(one(client, "SHOW app.asked").await, ASKED.to_string());
            let balance = format!("SELECT balance FROM accounts WHERE id = {}", number - 1);
            assert_eq!(one(client, &balance).await, ASKED.to_string());
        }
    }
    assert_eq!(one(&connect(&second.url).await, "SELECT pg_is_in_recovery()").await, "f");
    for (is_first, host) in [true, false].into_iter().zip(hosts) {
        host.signal(libc::SIGTERM);
        let (_, log) = host.wait();
        assert!(!log.contains("ERROR") && !log.contains("panic"), "{log}");
        assert!(!is_first || log.contains("early=") && !log.contains("early=0"), "{log}");
    }
}

/// Ends one of the two hosts at a point of a switch-over: clients go on at the other, or their connections end, and no answer is lost
/// or given twice. How many of them went on.
async fn with_a_death(point: &str, of_first: bool) -> usize {
    const IDLE: usize = 4;
    let cluster = Cluster::new();
    let config = rejoining(&cluster, "100s");
    let encryption = Encryption::new(&cluster, &config);
    let at = |is_its: bool| Some(point).filter(|_| is_its);
    let first = start(&cluster, "h1", "primary", &config, at(of_first));
    let second = start(&cluster, "h2", "standby", &config, at(!of_first));
    set_up(&first.url).await;
    let mut idle = Vec::new();
    for number in 0..IDLE {
        let client = match number % 2 {
            0 => connect(&first.url).await,
            _ => encryption.connect(&first.url, number).await,
        };
        client.batch_execute(&format!("SET app.number = '{number}'")).await.unwrap();
        idle.push(client);
    }
    // In transactions, which go on or are lost as a whole.
    idle[0].batch_execute("CREATE TABLE opened (number int)").await.unwrap();
    let mut open = Vec::new();
    for number in 3..=4 {
        let client = match number % 2 {
            0 => connect(&first.url).await,
            _ => encryption.connect(&first.url, number).await,
        };
        let sql = format!(
            "BEGIN; INSERT INTO opened SELECT {number} FROM generate_series(1, 3); SAVEPOINT s;
             UPDATE accounts SET balance = 7 WHERE id = {number}; INSERT INTO opened VALUES ({number})"
        );
        client.batch_execute(&sql).await.unwrap();
        open.push((number, client));
    }
    let stopped = Arc::new(AtomicBool::new(false));
    let clients = [connect(&first.url).await, encryption.connect(&first.url, 0).await];
    let adding =
        [1, 2].into_iter().zip(clients).map(|(account, client)| tokio::spawn(add(client, account, stopped.clone())));
    let adding = adding.collect::<Vec<_>>();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let url = first.url.clone();
    let switching = tokio::task::spawn_blocking(move || tidepool().args(["switchover", &url, "--to", "h2"]).output());
    let (mut one_dies, other) = if of_first { (first, second) } else { (second, first) };
    let begun = Instant::now();
    while !one_dies.has_ended() {
        assert!(begun.elapsed() < PATIENCE, "{point} is not reached");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    switching.await.unwrap().unwrap();
    let client = connect_soon(&other.url).await;
    until(&client, "SELECT pg_is_in_recovery()", "f").await;
    let mut alive = 0;
    for (number, idle) in idle.iter().enumerate() {
        let asked =
            tokio::time::timeout(PATIENCE, idle.simple_query("SHOW app.number")).await.expect("an end or an answer");
        if asked.is_ok() {
            assert_eq!(one(idle, "SHOW app.number").await, number.to_string());
            idle.batch_execute(&format!("INSERT INTO t VALUES ({number}, 'idle')")).await.unwrap();
            alive += 1;
        }
    }
    for (number, open) in open {
        let committing = open.batch_execute("ROLLBACK TO s; INSERT INTO opened VALUES (-1); COMMIT");
        let committed = tokio::time::timeout(PATIENCE, committing).await.expect("an end or an answer");
        assert!(committed.is_ok() || alive < IDLE, "{point}: {committed:?}");
        let rows = one(&client, &format!("SELECT count(*) FROM opened WHERE number = {number}")).await;
        assert_eq!(rows, if committed.is_ok() { "3" } else { "0" }, "{point}: {committed:?}");
        assert_eq!(one(&client, &format!("SELECT balance FROM accounts WHERE id = {number}")).await, "0");
        // Its locks went with it.
        client.batch_execute(&format!("UPDATE accounts SET balance = 0 WHERE id = {number}")).await.unwrap();
    }
    stopped.store(true, Ordering::Relaxed);
    for (account, adding) in (1..).zip(adding) {
        let (added, _, error) = adding.await.unwrap();
        let balance: i64 =
            one(&client, &format!("SELECT balance FROM accounts WHERE id = {account}")).await.parse().unwrap();
        // One that was not answered may have been committed.
        let unknown = i64::from(error.is_some());
        assert!((added..=added + unknown).contains(&balance), "{point}: {added} answered, {balance} committed");
    }
    assert_eq!(one(&client, "SELECT count(*) FROM t").await, alive.to_string());
    println!("{point} of {}: {alive} of {IDLE} go on", if of_first { "the old" } else { "the new" });
    alive
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_death_of_either_side_leaves_the_other_serving() {
    // Nobody has the sessions yet: they end. Then the other host has some of them, or all.
    assert_eq!(with_a_death("switchover.stopped", true).await, 0);
    assert!(with_a_death("switchover.session:2", true).await <= 2);
    assert_eq!(with_a_death("switchover.passed", true).await, 4);
    // The next primary is not primary yet: they go on where they were.
    assert_eq!(with_a_death("switchover.held", false).await, 4);
    // It is, and all that it had ends with it. The old one begins anew, and takes over.
    for point in ["pool.reign.taken", "role.sealed", "switchover.going_on"] {
        assert_eq!(with_a_death(point, false).await, 0);
    }
}
