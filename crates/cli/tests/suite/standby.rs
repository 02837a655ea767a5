//! What clients see of a server that follows another one's log, before and after it takes over.

use crate::raw::{self, Raw};
use crate::server::{MIB, Setup, TestServer};
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;
use tidepool_base::{CommitTs, Error, Result, RowGroupId};
use tidepool_database::follow::{Batch, Follower, LoggedRecord, RowGroups};
use tidepool_database::{Config, Database};
use tidepool_log::files::{OpenHow, SystemFiles};
use tidepool_log::{DatabaseIdentity, FileDevice, Log, LogConfig, NotesUse};
use tidepool_table::{RowGroup, Table};
use tokio_postgres::Client;

const SEGMENT_BYTES: usize = 1 << 20;

/// The tests write too few rows for one.
struct NoGroups;

impl RowGroups for NoGroups {
    fn loaded(&self, _: &Table, _: RowGroupId, _: u64, _: Option<&[u8]>) -> Result<Arc<RowGroup>> {
        Err(Error::internal("a row group where none was expected"))
    }

    fn merged(&self, _: &Table, _: RowGroupId, _: u64, _: &[u8]) -> Result<Arc<RowGroup>> {
        Err(Error::internal("a main where none was expected"))
    }
}

/// A primary, and a server that follows its log as far as it is told to.
struct Pair {
    primary: TestServer,
    writer: Client,
    standby: TestServer,
    follower: Option<Follower>,
    folder: TempDir,
}

impl Pair {
    async fn start() -> Pair {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::in_memory(64 * MIB, 64 * MIB);
        config.data_dir = Some(folder.path().join("data"));
        config.log.segment_bytes = SEGMENT_BYTES;
        let primary = TestServer::with(Setup { config: Some(config), ..Setup::default() }).await;
        let following = Database::open_following(Config::in_memory(64 * MIB, 64 * MIB)).unwrap();
        let follower = Follower::new(&following, Arc::new(NoGroups), 1).unwrap();
        let standby = TestServer::over(following, Setup { metrics: true, ..Setup::default() }).await;
        let writer = primary.connect().await;
        Pair { primary, writer, standby, follower: Some(follower), folder }
    }

    /// Runs statements on the primary, and has the standby apply all that it has.
    async fn write(&mut self, sql: &str) {
        self.writer.batch_execute(sql).await.unwrap();
        let (from, to) = (self.folder.path().join("data/log"), self.folder.path().join("copy"));
        let _ = std::fs::remove_dir_all(&to);
        std::fs::create_dir(&to).unwrap();
        let mut names: Vec<PathBuf> = std::fs::read_dir(&from).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        for name in names.iter().rev().filter(|name| name.is_file()) {
            std::fs::copy(name, to.join(name.file_name().unwrap())).unwrap();
        }
        let device = FileDevice::open(Arc::new(SystemFiles), &to, SEGMENT_BYTES, OpenHow::default()).unwrap();
        let identity = DatabaseIdentity(self.primary.database.secret());
        let config = LogConfig { notes: NotesUse::Ignored, bytes_max: 1 << 30, ..LogConfig::new(identity) };
        let mut recovery = Log::open(Arc::new(device), config).unwrap();
        let follower = self.follower.as_mut().unwrap();
        recovery.skip_to(follower.applied_ts());
        let mut records = Vec::new();
        while let Some(mut record) = recovery.next_record().unwrap() {
            let (ts, kind) = (record.ts, record.kind);
            let mut pieces = Vec::new();
            while let Some(piece) = record.next_piece().unwrap() {
                pieces.push(piece.to_vec());
            }
            records.push(LoggedRecord { ts, kind, pieces });
        }
        let floor = records.iter().map(|record| record.ts).max().unwrap_or(follower.applied_ts());
        follower.apply(&self.standby.database, Batch { records, floor }).unwrap();
    }

    fn promote(&mut self) {
        self.follower.take().unwrap().promote(&self.standby.database, CommitTs(0));
    }
}

/// (SQLSTATE, message) of a statement's error.
async fn refused(client: &Client, sql: &str) -> (String, String) {
    match client.simple_query(sql).await {
        Ok(_) => ("00000".to_owned(), sql.to_owned()),
        Err(error) => {
            let error = error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error}"));
            (error.code().code().to_owned(), error.message().to_owned())
        }
    }
}

async fn one(client: &Client, sql: &str) -> String {
    let rows = client.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    rows.iter()
        .find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or("null").to_owned()),
            _ => None,
        })
        .unwrap_or_else(|| panic!("{sql}: no row"))
}

const MADE: &str = "CREATE TABLE account (id int PRIMARY KEY, owner text); INSERT INTO account VALUES (1, 'a'), (2, 'b'); \
    CREATE SEQUENCE ticket; CREATE VIEW owners AS SELECT owner FROM account; CREATE SCHEMA extra; CREATE ROLE clerk; \
    CREATE INDEX by_owner ON account (owner)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_reads_and_refuses_to_write_in_postgresqls_words() {
    let mut pair = Pair::start().await;
    pair.write(MADE).await;
    let client = pair.standby.connect().await;
    assert_eq!(one(&client, "SELECT string_agg(owner, ',' ORDER BY id) FROM account").await, "a,b");
    // As PostgreSQL 15 says it on a hot standby.
    let in_read_only = [
        ("INSERT INTO account VALUES (3, 'c')", "INSERT"),
        ("INSERT INTO account SELECT 9, 'x' WHERE false", "INSERT"),
        ("UPDATE account SET owner = 'z' WHERE id = 1", "UPDATE"),
        ("UPDATE account SET owner = 'z'", "UPDATE"),
        ("DELETE FROM account WHERE id = 1", "DELETE"),
        ("MERGE INTO account USING (SELECT 1 AS a) x ON id = a WHEN MATCHED THEN DELETE", "MERGE"),
        ("SELECT * FROM account WHERE id = 1 FOR UPDATE", "SELECT FOR UPDATE"),
        ("SELECT * FROM account FOR NO KEY UPDATE", "SELECT FOR NO KEY UPDATE"),
        ("SELECT * FROM account FOR SHARE", "SELECT FOR SHARE"),
        ("SELECT * FROM account FOR KEY SHARE", "SELECT FOR KEY SHARE"),
        ("CREATE TABLE other (a int)", "CREATE TABLE"),
        ("CREATE TABLE account (a int)", "CREATE TABLE"),
        ("CREATE TABLE other AS SELECT 1 AS a", "CREATE TABLE AS"),
        ("DROP TABLE account", "DROP TABLE"),
        ("DROP TABLE IF EXISTS nowhere", "DROP TABLE"),
        ("TRUNCATE account", "TRUNCATE TABLE"),
        ("ALTER TABLE account ADD COLUMN c int", "ALTER TABLE"),
        ("ALTER TABLE nowhere ADD COLUMN c int", "ALTER TABLE"),
        ("ALTER TABLE account OWNER TO clerk", "ALTER TABLE"),
        ("CREATE VIEW other AS SELECT 1 AS a", "CREATE VIEW"),
        ("ALTER VIEW owners RENAME TO others", "ALTER VIEW"),
        ("DROP VIEW owners", "DROP VIEW"),
        ("CREATE INDEX ON account (owner)", "CREATE INDEX"),
        ("CREATE INDEX CONCURRENTLY ON account (owner)", "CREATE INDEX"),
        ("ALTER INDEX by_owner RENAME TO by_name", "ALTER INDEX"),
        ("DROP INDEX by_owner", "DROP INDEX"),
        ("CREATE SEQUENCE other", "CREATE SEQUENCE"),
        ("ALTER SEQUENCE ticket RESTART", "ALTER SEQUENCE"),
        ("DROP SEQUENCE ticket", "DROP SEQUENCE"),
        ("SELECT nextval('ticket')", "nextval()"),
        ("SELECT setval('ticket', 5)", "setval()"),
        ("CREATE SCHEMA other", "CREATE SCHEMA"),
        ("ALTER SCHEMA extra RENAME TO other", "ALTER SCHEMA"),
        ("DROP SCHEMA extra", "DROP SCHEMA"),
        ("COMMENT ON TABLE account IS 'x'", "COMMENT"),
        ("ALTER TABLESPACE near SET (size = '1GB')", "ALTER TABLESPACE"),
        ("DROP TABLESPACE near", "DROP TABLESPACE"),
        ("GRANT SELECT ON account TO clerk", "GRANT"),
        ("REVOKE SELECT ON account FROM clerk", "REVOKE"),
        ("GRANT clerk TO tidepool", "GRANT ROLE"),
        ("CREATE USER other", "CREATE ROLE"),
        ("ALTER ROLE clerk LOGIN", "ALTER ROLE"),
        ("DROP ROLE clerk", "DROP ROLE"),
        ("REASSIGN OWNED BY clerk TO tidepool", "REASSIGN OWNED"),
        ("DROP OWNED BY clerk", "DROP OWNED"),
        ("EXPLAIN ANALYZE INSERT INTO account VALUES (4, 'd')", "INSERT"),
        ("COPY (INSERT INTO account VALUES (5, 'e') RETURNING id) TO STDOUT", "INSERT"),
        ("BEGIN; DECLARE c CURSOR FOR SELECT * FROM account FOR UPDATE", "SELECT FOR UPDATE"),
    ];
    for (sql, what) in in_read_only {
        let wanted = ("25006".to_owned(), format!("cannot execute {what} in a read-only transaction"));
        assert_eq!(refused(&client, sql).await, wanted, "{sql}");
        client.batch_execute("ROLLBACK").await.unwrap();
    }
    for (sql, what) in [
        ("COPY account FROM STDIN", "COPY"),
        ("VACUUM", "VACUUM"),
        ("VACUUM FULL account", "VACUUM"),
        ("ANALYZE account", "ANALYZE"),
        ("REINDEX TABLE account", "REINDEX"),
    ] {
        let wanted = ("25006".to_owned(), format!("cannot execute {what} during recovery"));
        assert_eq!(refused(&client, sql).await, wanted, "{sql}");
    }
    let read_write = "cannot set transaction read-write mode during recovery";
    let serializable = "cannot use serializable mode in a hot standby";
    for (sql, message) in [
        ("BEGIN READ WRITE", read_write),
        ("START TRANSACTION READ WRITE", read_write),
        ("BEGIN; SET TRANSACTION READ WRITE", read_write),
        ("SET transaction_read_only = off", read_write),
        ("BEGIN; SET LOCAL transaction_read_only = off", read_write),
        ("BEGIN ISOLATION LEVEL SERIALIZABLE", serializable),
        ("BEGIN; SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", serializable),
        ("SET transaction_isolation = 'serializable'", serializable),
    ] {
        assert_eq!(refused(&client, sql).await, ("0A000".to_owned(), message.to_owned()), "{sql}");
        client.batch_execute("ROLLBACK; RESET default_transaction_isolation").await.unwrap();
    }
    // By every way to rows, and the session works on.
    client.batch_execute("SET default_transaction_isolation = 'serializable'").await.unwrap();
    for sql in ["SELECT owner FROM account WHERE id = 1", "SELECT 1", "SELECT max(id) FROM account"] {
        assert_eq!(refused(&client, sql).await, ("0A000".to_owned(), serializable.to_owned()), "{sql}");
    }
    assert_eq!(one(&client, "SHOW transaction_isolation").await, "serializable");
    client.batch_execute("RESET default_transaction_isolation").await.unwrap();
    let error = client.query("SELECT owner FROM account WHERE id = $1 FOR UPDATE", &[&1i32]).await.unwrap_err();
    assert_eq!(crate::server::code(&error), "25006");
    let error = client.execute("UPDATE account SET owner = $2 WHERE id = $1", &[&1i32, &"q"]).await.unwrap_err();
    assert_eq!(crate::server::code(&error), "25006");
    // What may be done.
    for sql in [
        "BEGIN; SAVEPOINT a; ROLLBACK TO a; COMMIT",
        "BEGIN READ ONLY; SELECT 1; COMMIT",
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM account; COMMIT",
        "BEGIN; SET TRANSACTION READ ONLY; COMMIT",
        "SET default_transaction_read_only = off",
        "SET transaction_read_only = on",
        "EXPLAIN INSERT INTO account VALUES (1, 'x')",
        "PREPARE p AS INSERT INTO account VALUES (1, 'x')",
        "BEGIN; DECLARE c CURSOR FOR SELECT * FROM account; FETCH c; CLOSE c; COMMIT",
        "SELECT pg_advisory_lock(1), pg_advisory_unlock(1)",
        "CHECKPOINT",
        "DISCARD ALL",
    ] {
        assert_eq!(refused(&client, sql).await.0, "00000", "{sql}");
    }
    client.batch_execute("PREPARE p AS INSERT INTO account VALUES (1, 'x')").await.unwrap();
    assert_eq!(refused(&client, "EXECUTE p").await.0, "25006");
    // What is wrong with a statement that writes rows is said first.
    assert_eq!(refused(&client, "INSERT INTO nowhere VALUES (1)").await.0, "42P01");
    for (name, value) in
        [("in_hot_standby", "on"), ("transaction_read_only", "on"), ("default_transaction_read_only", "off")]
    {
        assert_eq!(one(&client, &format!("SHOW {name}")).await, value, "{name}");
    }
    assert_eq!(one(&client, "SELECT pg_is_in_recovery()").await, "t");
}

/// Parameters that a client is told of.
fn told(messages: &[raw::Message]) -> Vec<(String, String)> {
    let parameter = |body: &[u8]| {
        let mut words = body.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
        (words.next().unwrap(), words.next().unwrap())
    };
    messages.iter().filter(|(kind, _)| *kind == b'S').map(|(_, body)| parameter(body)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promotion_is_told_to_clients_that_are_connected() {
    let mut pair = Pair::start().await;
    pair.write(MADE).await;
    let (mut raw, first) = Raw::start(pair.standby.address).await;
    let first = told(&first);
    let of = |told: &[(String, String)], name: &str| {
        told.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    };
    assert_eq!(of(&first, "in_hot_standby").as_deref(), Some("on"));
    assert_eq!(of(&first, "default_transaction_read_only").as_deref(), Some("off"));
    let (begun, idle) = (pair.standby.connect().await, pair.standby.connect().await);
    begun.batch_execute("BEGIN; SELECT count(*) FROM account").await.unwrap();
    let status =
        async |pair: &Pair, path: &str| pair.standby.get(path).await.split(' ').nth(1).unwrap().parse::<u16>().unwrap();
    assert_eq!([status(&pair, "/replica").await, status(&pair, "/primary").await], [200, 503]);
    pair.promote();
    assert_eq!([status(&pair, "/replica").await, status(&pair, "/primary").await], [503, 200]);
    assert_eq!(told(&raw.ask(&raw::query("SELECT 1")).await), [("in_hot_standby".to_owned(), "off".to_owned())]);
    // Once.
    assert_eq!(told(&raw.ask(&raw::query("SELECT 1")).await), []);
    assert_eq!(one(&idle, "SHOW transaction_read_only").await, "off");
    idle.batch_execute("INSERT INTO account VALUES (3, 'c')").await.unwrap();
    assert_eq!(one(&idle, "SELECT nextval('ticket')").await, "1");
    // A transaction stays what it was when it began.
    assert_eq!(one(&begun, "SHOW in_hot_standby").await, "off");
    let wanted = ("25006".to_owned(), "cannot execute INSERT in a read-only transaction".to_owned());
    assert_eq!(refused(&begun, "INSERT INTO account VALUES (4, 'd')").await, wanted);
    begun.batch_execute("ROLLBACK; BEGIN; INSERT INTO account VALUES (4, 'd'); COMMIT").await.unwrap();
    idle.batch_execute("BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM account; COMMIT").await.unwrap();
    assert_eq!(one(&idle, "SELECT count(*) FROM account").await, "4");
    assert_eq!(one(&idle, "SELECT pg_is_in_recovery()").await, "f");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_endpoints_say_which_server_is_which() {
    let mut pair = Pair::start().await;
    let all = [
        "/",
        "/primary",
        "/master",
        "/read-write",
        "/leader",
        "/replica",
        "/read-only",
        "/sync",
        "/read-only-sync",
        "/async",
        "/standby-leader",
        "/health",
        "/readiness",
        "/liveness",
    ];
    let yes = async |pair: &Pair| {
        let mut yes = Vec::new();
        for path in all {
            match pair.standby.get(path).await.split(' ').nth(1).unwrap() {
                "200" => yes.push(path),
                status => assert_eq!(status, "503", "{path}"),
            }
        }
        yes
    };
    assert_eq!(yes(&pair).await, ["/replica", "/read-only", "/async", "/health", "/readiness", "/liveness"]);
    // It does not know how far it is behind.
    assert!(pair.standby.get("/replica?lag=16MB").await.starts_with("HTTP/1.1 503"));
    assert!(pair.standby.get("/replica?lag=much").await.starts_with("HTTP/1.1 400"));
    assert!(pair.standby.get("/nothing").await.starts_with("HTTP/1.1 404"));
    assert!(pair.standby.get("/replica").await.contains("\"role\":\"replica\""));
    pair.promote();
    assert_eq!(
        yes(&pair).await,
        [
            "/",
            "/primary",
            "/master",
            "/read-write",
            "/leader",
            "/read-only",
            "/read-only-sync",
            "/health",
            "/readiness",
            "/liveness"
        ]
    );
}
