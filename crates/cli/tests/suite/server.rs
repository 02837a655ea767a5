//! A server within the test's process, on a port of its own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tidepool_database::{Config, Database};
use tidepool_planner::Planner;
use tidepool_server::{Server, Service, ServiceOptions, ShutdownHandle};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_postgres::{Client, NoTls};

pub const MIB: u64 = 1 << 20;

/// After it something hangs, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(600);

pub struct TestServer {
    pub address: SocketAddr,
    pub metrics_address: Option<SocketAddr>,
    pub database: Arc<Database>,
    shutdown: ShutdownHandle,
    running: Option<tokio::task::JoinHandle<()>>,
}

#[derive(Default)]
pub struct Setup {
    pub config: Option<Config>,
    pub options: ServiceOptions,
    /// Certificate and key.
    pub tls: Option<(PathBuf, PathBuf)>,
    pub metrics: bool,
}

impl TestServer {
    pub async fn start() -> TestServer {
        TestServer::with(Setup::default()).await
    }

    /// One, and a client of it.
    pub async fn start_connected() -> (TestServer, Client) {
        let server = TestServer::start().await;
        let client = server.connect().await;
        (server, client)
    }

    pub async fn with(mut setup: Setup) -> TestServer {
        let config = setup.config.take().unwrap_or_else(|| Config::in_memory(256 * MIB, 256 * MIB));
        TestServer::over(Database::open(config).expect("open the database"), setup).await
    }

    /// Serves a database that is open.
    pub async fn over(database: Arc<Database>, setup: Setup) -> TestServer {
        let mut service = Service::new(Planner::new(database.clone()).expect("make a planner"), setup.options);
        if let Some((certificate, key)) = &setup.tls {
            service = service.with_tls(certificate, key).expect("load the certificate");
        }
        let metrics = setup.metrics.then_some("127.0.0.1:0");
        let server = Server::bind(Arc::new(service), "127.0.0.1:0", metrics, None).await.expect("listen");
        TestServer {
            address: server.address().unwrap(),
            metrics_address: server.metrics_address().unwrap(),
            database,
            shutdown: server.shutdown_handle(),
            running: Some(tokio::spawn(server.run())),
        }
    }

    pub fn config(&self) -> tokio_postgres::Config {
        let mut config = tokio_postgres::Config::new();
        config.host("127.0.0.1").port(self.address.port()).user("tidepool").dbname("tidepool");
        config
    }

    pub async fn connect(&self) -> Client {
        connect(&self.config()).await.expect("connect")
    }

    /// `None` where a connection is refused.
    pub async fn try_connect(&self) -> Option<Client> {
        connect(&self.config()).await.ok()
    }

    /// Stops and waits for the end.
    /// What the address for metrics answers, head and all.
    pub async fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.metrics_address.unwrap()).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    pub async fn stop(mut self) {
        self.shutdown.stop();
        let running = self.running.take().expect("stopped once");
        tokio::time::timeout(PATIENCE, running).await.expect("stops in time").expect("no panic");
    }

    /// Until the statement of a session waits for another transaction.
    pub async fn until_waiting<T>(&self, pid: i32, statement: &tokio::task::JoinHandle<T>) {
        let client = self.connect().await;
        let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND wait_event_type = 'Lock'");
        while client.query_one(&sql, &[]).await.unwrap().get::<_, i64>(0) == 0 {
            assert!(!statement.is_finished(), "the statement is over, and has waited for nobody");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Until a session runs a statement that begins like this.
    pub async fn until_running(&self, beginning: &str) {
        let client = self.connect().await;
        let sql =
            format!("SELECT count(*) FROM tidepool.queries WHERE state = 'running' AND query LIKE '{beginning}%'");
        while client.query_one(&sql, &[]).await.unwrap().get::<_, i64>(0) == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    pub fn ask_to_stop(&self) {
        self.shutdown.stop();
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.shutdown.stop();
    }
}

pub async fn connect(config: &tokio_postgres::Config) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// By which other sessions know a client's.
pub async fn pid(client: &Client) -> i32 {
    client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0)
}

/// The SQLSTATE of an error that the server sent.
pub fn code(error: &tokio_postgres::Error) -> &str {
    error.as_db_error().map_or("no code", |error| error.code().code())
}
