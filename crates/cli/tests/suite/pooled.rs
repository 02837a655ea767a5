//! Servers whose tablespaces are in one pool: side by side, killed, started again, full.

use crate::cli::{Serving, serve, sql, text, tidepool};
use std::path::Path;
use std::process::Output;

/// A folder on memory of this kernel where there is some.
fn folder() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    let parent = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("tidepool-pooled-").tempdir_in(parent).unwrap()
}

fn program(arguments: &[&str]) -> Output {
    tidepool().args(arguments).output().unwrap()
}

fn make_pool(folder: &Path, size: &str) -> String {
    let location = format!("file:{}", folder.join("pool").display());
    let output = program(&["pool", "create", &location, "--size", size]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    location
}

fn start(folder: &Path, pool: &str, database: &str, more: &[&str]) -> Serving {
    let data = folder.join(database);
    let name = format!("host-{database}");
    let flags = ["--pool", pool, "--database", database, "--name", &name, "--far", "pool:"];
    serve(&data, &[&flags[..], more].concat())
}

/// Statements, each a transaction of its own.
fn run(server: &Serving, statements: &str) {
    let arguments: Vec<&str> = statements.split("; ").flat_map(|statement| ["-c", statement]).collect();
    let output = sql(&server.url, &arguments, "");
    assert!(output.status.success(), "{statements}: {}", text(&output.stderr));
}

fn fails(server: &Serving, statement: &str) -> String {
    let output = sql(&server.url, &["-c", statement], "");
    assert!(!output.status.success(), "{statement}: {}", text(&output.stdout));
    text(&output.stderr).to_owned()
}

fn answer(server: &Serving, query: &str) -> String {
    let output = sql(&server.url, &["--format", "csv", "-c", query], "");
    assert!(output.status.success(), "{query}: {}", text(&output.stderr));
    text(&output.stdout).lines().nth(1).unwrap_or_default().to_owned()
}

fn checked(pool: &str) {
    let output = program(&["pool", "check", pool, "--deep"]);
    assert!(output.status.success(), "{}", text(&output.stdout));
}

/// Extents of a state, as `pool list` shows them.
fn extents(pool: &str, state: &str) -> u64 {
    let output = program(&["pool", "list", pool]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    let (_, table) = shown.split_once("\nExtents\n").unwrap();
    let rows = table.lines().filter(|line| line.split_whitespace().next() == Some(state));
    // The count is before the size and its unit.
    let count = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words[words.len() - 3].replace(',', "").parse::<u64>().unwrap()
    };
    rows.map(count).sum()
}

const LOAD: &str = "CREATE TABLE t (id int PRIMARY KEY, a bigint, b text) TABLESPACE far; \
     INSERT INTO t SELECT x, x * 7, 'text ' || x FROM generate_series(1, 300000) AS s(x); \
     CALL tidepool.merge('t')";

const SUMS: &str = "SELECT count(*) || ' ' || sum(a) || ' ' || sum(length(b)) FROM t";

#[test]
fn two_databases_share_a_pool_and_a_kill_leaves_nothing_behind() {
    let folder = folder();
    let folder = folder.path();
    let pool = make_pool(folder, "400MB");
    let all = extents(&pool, "free");
    let (one, two) = (start(folder, &pool, "one", &[]), start(folder, &pool, "two", &[]));
    std::thread::scope(|scope| {
        for server in [&one, &two] {
            scope.spawn(move || run(server, LOAD));
        }
    });
    let expected = answer(&one, SUMS);
    assert_eq!(answer(&two, SUMS), expected);
    run(&one, "DELETE FROM t WHERE id % 3 = 0; CALL tidepool.merge('t')");
    let expected_of_one = answer(&one, SUMS);
    checked(&pool);
    assert_eq!(answer(&one, "SELECT count(*) FROM tidepool.hosts WHERE role = 'primary' AND lock_held"), "2");
    assert_eq!(answer(&two, "SELECT name FROM tidepool.hosts WHERE is_this_server"), "host-two");
    let of_one = "SELECT sum(bytes_of_server) > 0 AND sum(bytes_used) > 0 FROM tidepool.pool_extents";
    assert_eq!(answer(&one, of_one), "t");
    assert_eq!(answer(&one, "SELECT count(*) FROM tidepool.pool WHERE state = 'open' AND bytes_free > 0"), "1");
    assert_ne!(answer(&one, "SELECT count(*) FROM tidepool.pool_events WHERE kind = 'host joined'"), "0");
    // Its own database is refused to another host.
    let other = folder.join("other");
    let flags = ["serve", "--data", other.to_str().unwrap(), "--listen", "127.0.0.1:0", "--pool", &pool];
    let refused = program(&[&flags[..], &["--database", "one"]].concat());
    assert!(!refused.status.success() && text(&refused.stderr).contains("is in use"), "{}", text(&refused.stderr));

    // One is killed: the other finds out, and has what it had.
    let held = extents(&pool, "private");
    one.signal(libc::SIGKILL);
    assert!(!one.wait().0);
    let hosts = || answer(&two, "SELECT count(*) FROM tidepool.hosts");
    while hosts() != "1" {
        std::thread::yield_now();
    }
    assert!(extents(&pool, "private") < held);
    assert_eq!(answer(&two, SUMS), expected);
    checked(&pool);

    // It comes again from its folder, and takes nothing of the other's.
    let one = start(folder, &pool, "one", &[]);
    assert_eq!(answer(&one, SUMS), expected_of_one);
    assert_eq!(extents(&pool, "orphan"), 0);
    assert_eq!(answer(&two, SUMS), expected);
    checked(&pool);
    // Both are killed.
    for server in [&one, &two] {
        server.signal(libc::SIGKILL);
    }
    assert!(!one.wait().0 && !two.wait().0);
    let (one, two) = (start(folder, &pool, "one", &[]), start(folder, &pool, "two", &[]));
    assert_eq!((answer(&one, SUMS), answer(&two, SUMS)), (expected_of_one, expected));
    run(&one, "CALL tidepool.check()");
    checked(&pool);
    for server in [&one, &two] {
        server.signal(libc::SIGTERM);
    }
    assert!(one.wait().0 && two.wait().0);
    assert_eq!(extents(&pool, "free"), all, "{}", text(&program(&["pool", "list", &pool]).stdout));
    checked(&pool);
}

#[test]
fn a_full_pool_is_an_error_and_tables_come_and_go() {
    let folder = folder();
    let folder = folder.path();
    let pool = make_pool(folder, "64MB");
    let server = start(folder, &pool, "one", &[]);
    run(&server, "CREATE TABLESPACE more LOCATION 'pool:' WITH (size = '16MB')");
    assert_eq!(answer(&server, "SELECT bytes_size FROM tidepool.tablespaces WHERE name = 'more'"), "16777216");
    run(&server, "CREATE TABLE small (a int) TABLESPACE more; INSERT INTO small SELECT generate_series(1, 1000)");
    run(&server, "CREATE TABLE t (a bigint, b text) TABLESPACE far");
    let fill = "INSERT INTO t SELECT x, md5(x::text) || md5((x + 1)::text) FROM generate_series(1, 2000000) AS s(x)";
    let error = fails(&server, fill);
    assert!(error.contains(&format!("pool \"{pool}\" is full")) && error.contains("are free"), "{error}");
    // What the statement had is free again.
    run(&server, "INSERT INTO t SELECT x, 'x' FROM generate_series(1, 10000) AS s(x); CALL tidepool.merge('t')");
    assert_eq!(answer(&server, "SELECT count(*) FROM t"), "10000");
    let error = fails(&server, "ALTER TABLESPACE more ADD LOCATION 'anon:'");
    assert!(error.contains("cannot be one of several locations"), "{error}");
    // Out of the pool, into it, and to another size.
    run(&server, "ALTER TABLE small SET TABLESPACE near; CALL tidepool.merge('small')");
    run(&server, "ALTER TABLE small SET TABLESPACE more");
    run(&server, "ALTER TABLESPACE more SET (size = '8MB')");
    assert_eq!(answer(&server, "SELECT bytes_size FROM tidepool.tablespaces WHERE name = 'more'"), "8388608");
    assert_eq!(answer(&server, "SELECT sum(a) FROM small"), "500500");
    run(&server, "DROP TABLE small; DROP TABLESPACE more; DROP TABLE t");
    checked(&pool);
    server.signal(libc::SIGTERM);
    assert!(server.wait().0);

    // Without its pool a server says what it lacks.
    let data = folder.join("one");
    let output = program(&["sql", "--data", data.to_str().unwrap(), "--far", "pool:", "-c", "SELECT 1"]);
    assert!(!output.status.success() && text(&output.stderr).contains("pool.location"), "{}", text(&output.stderr));
}

/// Two tables whose row groups alternate in the extents of the pool, and one of them dropped: half of each extent is left.
pub(crate) fn leave_halves(mut run: impl FnMut(&str)) {
    run("CREATE TABLE stays (a bigint, b text) TABLESPACE far; CREATE TABLE goes (a bigint, b text) TABLESPACE far");
    for number in 0..24 {
        for table in ["stays", "goes"] {
            let (first, last) = (number * 20_000 + 1, (number + 1) * 20_000);
            run(&format!(
                "INSERT INTO {table} SELECT x, md5(x::text) || md5((-x)::text) FROM generate_series({first}, {last}) AS s(x)"
            ));
        }
    }
    run("CREATE INDEX stays_by_a ON stays (a); UPDATE stays SET a = a + 0 WHERE a % 50000 = 0; DROP TABLE goes");
}

pub(crate) const STAYS: &str =
    "SELECT count(*) || ' ' || sum(a) || ' ' || min(b) || ' ' || count(DISTINCT b) FROM stays";

pub(crate) const MAIN: &str = "SELECT sum(extents) FROM tidepool.pool_extents WHERE kind = 'main'";

/// What `CALL tidepool.pool_yield` says of so many extents more than are free.
fn yields(server: &Serving, more: i64) -> String {
    let free: i64 = answer(server, "SELECT bytes_free FROM tidepool.pool").parse().unwrap();
    let output = sql(
        &server.url,
        &["--format", "csv", "-c", &format!("CALL tidepool.pool_yield('{}')", free + more * (2 << 20))],
        "",
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).lines().nth(1).unwrap_or_default().to_owned()
}

#[test]
fn hosts_give_way_to_one_that_is_short_of_room() {
    let folder = folder();
    let folder = folder.path();
    let pool = make_pool(folder, "256MB");
    let one = start(folder, &pool, "one", &[]);
    leave_halves(|statements| run(&one, statements));
    let before = answer(&one, STAYS);
    let other = start(folder, &pool, "other", &[]);
    let main = || answer(&one, MAIN).parse::<u64>().unwrap();
    let held = main();
    // More than the extents that are idle: what is in half empty ones is moved.
    let done = yields(&other, 5);
    assert!(done.ends_with(",t"), "{done}");
    assert!(main() + 2 <= held, "main has {} extents, and had {held}", main());
    assert_eq!(answer(&one, STAYS), before);
    assert_eq!(answer(&one, "SELECT b = md5('77777') || md5('-77777') FROM stays WHERE a = 77777"), "t");
    // What cannot be had is waited for no longer than the client wants.
    let yields_soon = ["-c", "SET statement_timeout = '100ms'", "-c", "CALL tidepool.pool_yield('250MB')"];
    let error = sql(&other.url, &yields_soon, "");
    assert!(text(&error.stderr).contains("canceling statement due to statement timeout"), "{}", text(&error.stderr));
    let error = fails(&other, "CALL tidepool.pool_yield('1GB')");
    assert!(error.contains("is smaller than what is to be free of it"), "{error}");
    let error = fails(&other, "BEGIN; CALL tidepool.pool_yield('1MB')");
    assert!(error.contains("CALL tidepool.pool_yield cannot run"), "{error}");
    // What was moved survives a kill, and a restart by its files.
    one.signal(libc::SIGKILL);
    one.wait();
    let one = start(folder, &pool, "one", &[]);
    assert_eq!(answer(&one, STAYS), before);
    checked(&pool);
    let output = sql(&one.url, &["-c", "CALL tidepool.check()"], "");
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// Everything that a server without a folder has is in the pool, and private: nothing of it outlives the process.
#[test]
fn an_ephemeral_database_lives_in_a_pool_and_leaves_nothing() {
    use tidepool_database::{Config, Database, PoolSettings};
    let folder = folder();
    let pool = make_pool(folder.path(), "128MB");
    let all = extents(&pool, "free");
    let mut config = Config::in_memory(16 << 20, 16 << 20);
    for space in [&mut config.near, &mut config.far] {
        (space.location, space.size_bytes) = (tidepool_device::Location::Pool, None);
    }
    config.pool =
        Some(PoolSettings { database: "passing".to_owned(), guards: true, ..PoolSettings::new(pool.parse().unwrap()) });
    let database = Database::open(config).unwrap();
    assert_eq!(database.tablespaces().near().size_bytes(), all << 21);
    let held: Vec<_> = (0..4)
        .map(|_| database.tablespaces().near().allocate(3 << 20, tidepool_tablespace::Purpose::Main).unwrap())
        .collect();
    assert!(extents(&pool, "private") >= 6);
    assert_eq!(extents(&pool, "filling"), 0);
    drop(held);
    drop(database);
    assert_eq!(extents(&pool, "free"), all);
    checked(&pool);
}

/// A server that keeps nothing, with its own memory in the pool, too. However it ends, its neighbour finds out, and all is free.
#[test]
fn a_server_wholly_in_a_pool_leaves_nothing_however_it_ends() {
    let folder = folder();
    let folder = folder.path();
    let pool = make_pool(folder, "512MB");
    let neighbour = start(folder, &pool, "neighbour", &[]);
    run(&neighbour, LOAD);
    let expected = answer(&neighbour, SUMS);
    let of_server = || answer(&neighbour, "SELECT count(*) FROM tidepool.pool_extents WHERE database = 'b'");
    let whole = ["--near", "pool:", "--far", "pool:", "--process-tablespace", "near"];
    let whole = [&["serve", "--ephemeral", "--listen", "127.0.0.1:0", "--pool", &pool, "--database", "b"], &whole[..]];
    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGABRT] {
        let mut command = tidepool();
        command.current_dir(folder).args(whole.concat());
        let server = Serving::start(command).unwrap();
        run(&server, LOAD);
        assert_eq!(answer(&server, SUMS), expected);
        // Its sessions and plans are there, beside rows.
        let own = "SELECT sum(bytes) > 1000000 FROM tidepool.memory WHERE tablespace = 'near' AND purpose = 'heap'";
        assert_eq!(answer(&server, own), "t");
        assert_ne!(of_server(), "0");
        server.signal(signal);
        server.wait();
        // Only a neighbour can say that the process is gone.
        while of_server() != "0" {
            std::thread::yield_now();
        }
    }
    assert!(!folder.join("tidepool-data").exists(), "it keeps nothing");
    assert_eq!(answer(&neighbour, SUMS), expected);
    checked(&pool);
    // What is not in a pool cannot hold it, nor what does not exist.
    for space in ["near", "nowhere"] {
        let refused = program(&["serve", "--ephemeral", "--near", "64MB", "--process-tablespace", space]);
        assert!(!refused.status.success());
        assert!(text(&refused.stderr).contains("is no tablespace at pool:"), "{}", text(&refused.stderr));
    }
}
