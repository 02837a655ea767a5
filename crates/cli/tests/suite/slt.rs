//! SQL tests: every file of `tests/slt` in every placement, each on a server of its own.
//!
//! A file is skipped in a placement by a line `# skip in PLACEMENT: reason`. `TIDEPOOL_SLT=part/of/path` runs only the
//! files that match.

use crate::server::{MIB, Setup, TestServer};
use sqllogictest::{AsyncDB, DBOutput, DefaultColumnType, Runner};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tidepool_database::{Config, PoolSettings};
use tidepool_device::{CacheSize, Location, Profile, paged};
use tidepool_pool::pool::{CreateOptions, Pool};
use tidepool_pool::words::DATABASES;
use tokio_postgres::{Client, SimpleQueryMessage};

pub struct Connection {
    client: Client,
}

impl Connection {
    pub fn new(client: Client) -> Connection {
        Connection { client }
    }
}

/// An error as `statement error` matches it: its SQLSTATE, then its message.
#[derive(Debug)]
pub struct Failure(tokio_postgres::Error);

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.as_db_error() {
            Some(error) => {
                write!(f, "{}: {}", error.code().code(), error.message())?;
                error.detail().map_or(Ok(()), |detail| write!(f, " ({detail})"))
            }
            None => self.0.fmt(f),
        }
    }
}

impl std::error::Error for Failure {}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Failure {
        Failure(error)
    }
}

#[async_trait::async_trait]
impl AsyncDB for Connection {
    type Error = Failure;
    type ColumnType = DefaultColumnType;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, Failure> {
        let mut output = DBOutput::StatementComplete(0);
        for message in self.client.simple_query(sql).await? {
            match message {
                SimpleQueryMessage::RowDescription(columns) => {
                    output = DBOutput::Rows { types: vec![DefaultColumnType::Any; columns.len()], rows: Vec::new() };
                }
                SimpleQueryMessage::Row(row) => {
                    let values = (0..row.len())
                        .map(|column| match row.get(column) {
                            None => "NULL".to_owned(),
                            Some("") => "(empty)".to_owned(),
                            Some(text) => text.to_owned(),
                        })
                        .collect();
                    if let DBOutput::Rows { rows, .. } = &mut output {
                        rows.push(values);
                    }
                }
                SimpleQueryMessage::CommandComplete(count) => {
                    if let DBOutput::StatementComplete(_) = output {
                        output = DBOutput::StatementComplete(count);
                    }
                }
                _ => (),
            }
        }
        Ok(output)
    }

    async fn shutdown(&mut self) {}

    fn engine_name(&self) -> &str {
        "tidepool"
    }

    async fn sleep(duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    fn error_sql_state(error: &Failure) -> Option<String> {
        error.0.as_db_error().map(|error| error.code().code().to_owned())
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Placement {
    AllNear,
    AllFar,
    /// Hardly any near memory: query heaps begin near and overflow.
    TinyNear,
    /// Far memory is a file on tmpfs.
    FarFile,
    /// Far memory is striped over ordinary memory and a file on tmpfs.
    Striped,
    /// Far memory is held remotely, with a cache far smaller than it.
    Paged,
    /// As `AllNear`, and every statement goes the general way: none reads or writes rows by key without being planned. Plans are made
    /// without the values in the statements, where that can be.
    Planned,
    /// All memory, near and far, is leased from a pool.
    Pooled,
}

impl Placement {
    fn name(self) -> &'static str {
        match self {
            Placement::AllNear => "all_near",
            Placement::AllFar => "all_far",
            Placement::TinyNear => "tiny_near",
            Placement::FarFile => "far_file",
            Placement::Striped => "striped",
            Placement::Paged => "paged",
            Placement::Planned => "planned",
            Placement::Pooled => "pooled",
        }
    }

    /// What each connection begins with.
    fn settings(self) -> &'static str {
        match self {
            Placement::Planned => "SET tidepool.direct = off; SET plan_cache_mode = force_generic_plan",
            _ => "",
        }
    }

    fn config(self, scratch: &Path) -> Config {
        let (near, far, table_space, heap_spaces) = match self {
            Placement::AllNear | Placement::Planned => (512 * MIB, 256 * MIB, "near", "near"),
            Placement::AllFar => (256 * MIB, 512 * MIB, "far", "far"),
            Placement::TinyNear => (4 * MIB, 1024 * MIB, "far", "near,far"),
            Placement::FarFile | Placement::Striped | Placement::Paged | Placement::Pooled => {
                (256 * MIB, 512 * MIB, "far", "far")
            }
        };
        let mut config = Config::in_memory(near, far);
        config.default_tablespace = table_space.to_owned();
        config.temp_tablespaces = heap_spaces.split(',').map(str::to_owned).collect();
        if self == Placement::FarFile {
            config.far.location = Location::File(scratch.join("far"));
        }
        if self == Placement::Pooled {
            config.near.location = Location::Pool;
            config.far.location = Location::Pool;
            config.pool = Some(PoolSettings {
                name: Some("slt".to_owned()),
                database: idle_database(),
                guards: true,
                publishes: true,
                ..PoolSettings::new(Location::File(pool_of_tests().join("pool")))
            });
        }
        if self == Placement::Striped {
            config.far.location = format!("anon:*2, file:{}*1", scratch.join("far").display()).parse().unwrap();
        }
        if self == Placement::Paged {
            config.far.location =
                Location::Paged { cache: CacheSize::Bytes(8 * MIB), remote: Box::new(Location::Anon) };
            config.far.profile = Some(Profile::preset("rdma-56g-paging").unwrap());
        }
        config
    }
}

/// The folder of one pool for all files, one after the other.
fn pool_of_tests() -> &'static Path {
    static POOL: OnceLock<tempfile::TempDir> = OnceLock::new();
    let make = || {
        let shm = Path::new("/dev/shm");
        let folder = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }.unwrap();
        let options = CreateOptions {
            devices: vec![(Location::File(folder.path().join("pool")), Some(768 * MIB))],
            extent_bytes: None,
            bytes_max: None,
            label: "slt".to_owned(),
            populates: false,
            overcommits: false,
        };
        Pool::create(&options).unwrap();
        folder
    };
    POOL.get_or_init(make).path()
}

/// A database of that pool that no host works for: what the files before had may still be on its way out.
fn idle_database() -> String {
    let pool = Pool::open(&Location::File(pool_of_tests().join("pool"))).unwrap();
    let (databases, hosts) = (pool.databases().unwrap(), pool.hosts().unwrap());
    let is_idle = |name: &String| {
        let found = databases.iter().find(|view| view.name == *name);
        found.is_none_or(|view| hosts.iter().all(|host| host.ident.database != view.database))
    };
    (0..DATABASES).map(|number| format!("slt-{number}")).find(is_idle).expect("a database without a host")
}

fn root() -> PathBuf {
    crate::crate_folder().join("tests/slt")
}

pub fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "slt") {
            found.push(path);
        }
    }
}

/// The reason why `text` is skipped in a placement.
fn skipped(text: &str, placement: Placement) -> Option<&str> {
    let prefix = format!("# skip in {}:", placement.name());
    text.lines().find_map(|line| line.strip_prefix(&prefix)).map(|reason| {
        let reason = reason.trim();
        assert!(!reason.is_empty(), "a skipped file needs a reason");
        reason
    })
}

async fn run_file(path: &Path, placement: Placement) -> Result<(), String> {
    // On tmpfs where there is one.
    let shm = Path::new("/dev/shm");
    let scratch = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }.unwrap();
    let server = TestServer::with(Setup { config: Some(placement.config(scratch.path())), ..Setup::default() }).await;
    let config = server.config();
    let mut runner = Runner::new(move || {
        let config = config.clone();
        async move {
            let client = crate::server::connect(&config).await?;
            client.batch_execute(placement.settings()).await?;
            Ok(Connection::new(client))
        }
    });
    runner.add_label(placement.name());
    runner.set_var("TIDEPOOL_SLT_DATA".to_owned(), root().join("data").display().to_string());
    runner.set_var("TIDEPOOL_SLT_SCRATCH".to_owned(), scratch.path().display().to_string());
    let result = tokio::time::timeout(Duration::from_secs(300), runner.run_file_async(path)).await;
    drop(runner);
    server.stop().await;
    match result {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(error.display(false).to_string()),
        Err(_) => Err("not done after 300 s".to_owned()),
    }
}

async fn run_all(placement: Placement) {
    let mut paths = Vec::new();
    files(&root(), &mut paths);
    paths.sort();
    let wanted = std::env::var("TIDEPOOL_SLT").unwrap_or_default();
    let mut failures = String::new();
    let mut ran = 0;
    for (number, path) in paths.iter().enumerate() {
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        let text = std::fs::read_to_string(path).unwrap();
        if !name.contains(&wanted) {
            continue;
        }
        if let Some(reason) = skipped(&text, placement) {
            println!("{}: {name}: skipped: {reason}", placement.name());
            continue;
        }
        // One of five; all, if that is asked for.
        if placement == Placement::Pooled
            && std::env::var_os("TIDEPOOL_SLT_POOLED").is_none()
            && !number.is_multiple_of(5)
        {
            continue;
        }
        let start = Instant::now();
        ran += 1;
        let result = run_file(path, placement).await;
        println!("{}: {name}: {:.2} s", placement.name(), start.elapsed().as_secs_f64());
        if let Err(failure) = result {
            let _ = writeln!(failures, "\n=== {name} in placement {}\n{failure}", placement.name());
        }
    }
    assert!(failures.is_empty(), "{failures}");
    assert!(ran > 0 || !wanted.is_empty(), "no files in {}", root().display());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_near() {
    run_all(Placement::AllNear).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn striped() {
    run_all(Placement::Striped).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_far() {
    run_all(Placement::AllFar).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tiny_near() {
    run_all(Placement::TinyNear).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn far_file() {
    run_all(Placement::FarFile).await;
}

/// One file of five; with `TIDEPOOL_SLT_POOLED=all` every one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pooled() {
    run_all(Placement::Pooled).await;
    let folder = pool_of_tests();
    let pool = Pool::open(&Location::File(folder.join("pool"))).unwrap();
    let report = tidepool_pool::check::check(&pool, true).unwrap();
    assert!(report.is_clean(), "{report:?}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn planned() {
    run_all(Placement::Planned).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn paged() {
    match paged::available() {
        Ok(_) => run_all(Placement::Paged).await,
        Err(error) => tidepool_base::cannot_test(&error),
    }
}
