//! The program itself, as a user runs it.

use crate::server::PATIENCE;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Another program than the one that was built with the tests: an earlier release, say, that they are to find a fault in.
const PROGRAM_VARIABLE: &str = "TIDEPOOL_TEST_PROGRAM";

pub fn tidepool() -> Command {
    let program = std::env::var_os(PROGRAM_VARIABLE);
    let mut command = Command::new(program.unwrap_or_else(|| env!("CARGO_BIN_EXE_tidepool").into()));
    // The tester's own configuration is none of the test's.
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TIDEPOOL_")) {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

pub struct Serving {
    child: Ended,
    pub url: String,
}

/// A child that outlives no test, also one that fails.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // An error: it is over.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server on `data` and waits for its line.
pub fn serve(data: &Path, arguments: &[&str]) -> Serving {
    try_serve(data, arguments, &[]).unwrap_or_else(|log| panic!("the server does not start: {log}"))
}

/// As `serve`, with more of an environment. What the server says, if it ends before it is ready.
pub fn try_serve(data: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Result<Serving, String> {
    let mut command = tidepool();
    command
        .envs(environment.iter().copied())
        .args(["serve", "--near", "256MB", "--data"])
        .arg(data)
        .args(if arguments.contains(&"--listen") { &[][..] } else { &["--listen", "127.0.0.1:0"] })
        .args(if arguments.contains(&"--far") { &[][..] } else { &["--far", "anon:,size=256MB"] })
        .args(arguments);
    Serving::start(command)
}

impl Serving {
    /// Waits for the line of a server that is started by this command. What the server says, if it ends before it is ready.
    pub fn start(command: Command) -> Result<Serving, String> {
        Serving::start_or_end(command).map_err(|(_, log)| log)
    }

    /// What a server says that refuses to start. One that serves fails the test, instead of being waited for.
    pub fn refused(mut command: Command) -> String {
        let arguments = format!("{:?}", command.get_args().collect::<Vec<_>>());
        // Of the port that others may use.
        if !command.get_args().any(|argument| argument == "--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        let Err((code, stderr)) = Serving::start_or_end(command) else { panic!("it serves with {arguments}") };
        assert_eq!(code, Some(1), "{arguments}: {stderr}");
        assert!(stderr.contains("error: ") && !stderr.contains("panicked"), "{arguments}: {stderr}");
        stderr
    }

    /// As `start`, with the status of a server that ends before it is ready.
    fn start_or_end(mut command: Command) -> Result<Serving, (Option<i32>, String)> {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        match line.trim().strip_prefix("tidepool is ready: ") {
            Some(url) => Ok(Serving { url: url.to_owned(), child: Ended(child) }),
            None => {
                let mut log = String::new();
                child.stderr.as_mut().unwrap().read_to_string(&mut log).unwrap();
                Err((child.wait().unwrap().code(), log))
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: the child is not waited for yet, so its number is still its own.
        assert_eq!(unsafe { libc::kill(self.child.0.id() as i32, signal) }, 0);
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.0.try_wait().unwrap().is_some()
    }

    pub fn wait(mut self) -> (bool, String) {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.0.try_wait().unwrap() {
                let mut log = String::new();
                self.child.0.stderr.as_mut().unwrap().read_to_string(&mut log).unwrap();
                return (status.success(), log);
            }
            assert!(start.elapsed() < PATIENCE, "the server does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

pub fn sql(url: &str, arguments: &[&str], input: &str) -> Output {
    let mut child = tidepool()
        .args(["sql", url])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn version_and_usage() {
    let version = tidepool().arg("--version").output().unwrap();
    let (version, commit) =
        text(&version.stdout).trim_end().split_once(" (").unwrap_or((text(&version.stdout).trim_end(), ""));
    assert_eq!(version, concat!("tidepool ", env!("CARGO_PKG_VERSION")));
    // Built of an archive it knows no commit.
    assert!(commit.is_empty() || commit.ends_with(')') && commit.contains(" 20"), "{commit}");
    let nonsense = tidepool().arg("swim").output().unwrap();
    assert_eq!(nonsense.status.code(), Some(2));
}

#[test]
fn a_server_keeps_its_data_over_a_graceful_stop() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = serve(&data, &[]);
    let made = sql(
        &server.url,
        &["-c", "CREATE TABLE tides (id integer, name text)", "-c", "INSERT INTO tides VALUES (1, 'ebb'), (2, 'flow')"],
        "",
    );
    assert!(made.status.success(), "{}", text(&made.stderr));
    assert_eq!(text(&made.stdout), "CREATE TABLE\nINSERT 0 2\n");
    server.signal(libc::SIGTERM);
    let (success, log) = server.wait();
    assert!(success, "{log}");

    let server = serve(&data, &[]);
    let shown = sql(&server.url, &[], "SELECT id, name FROM tides ORDER BY id;\n");
    assert_eq!(
        text(&shown.stdout),
        " id | name \n----+------\n  1 | ebb\n  2 | flow\n(2 rows)\n\n",
        "{}",
        text(&shown.stderr)
    );
    server.signal(libc::SIGINT);
    assert!(server.wait().0);

    // The same folder without a server.
    let shown = tidepool()
        .args(["sql", "--near", "256MB", "--far", "anon:,size=256MB", "--data"])
        .arg(&data)
        .args(["-c", "SELECT count(*) FROM tides"])
        .output()
        .unwrap();
    assert_eq!(text(&shown.stdout), " count \n-------\n     2\n(1 row)\n\n", "{}", text(&shown.stderr));
}

#[test]
fn two_servers_cannot_share_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(folder.path(), &[]);
    let mut second = tidepool();
    second.args(["serve", "--near", "64MB", "--far", "64MB", "--data"]).arg(folder.path());
    Serving::refused(second);
    server.signal(libc::SIGTERM);
    assert!(server.wait().0);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_on_this_machine_connect_by_a_socket() {
    let folder = tempfile::tempdir().unwrap();
    let sockets = folder.path().to_str().unwrap();
    let server = serve(&folder.path().join("data"), &["--socket-directory", sockets]);
    let port: u16 = server.url.rsplit(':').next().and_then(|rest| rest.split('/').next()).unwrap().parse().unwrap();
    assert!(folder.path().join(format!(".s.PGSQL.{port}")).exists());
    let mut config = tokio_postgres::Config::new();
    config.host_path(folder.path()).port(port).user("tidepool").dbname("tidepool");
    let client = crate::server::connect(&config).await.unwrap();
    assert_eq!(client.query_one("SELECT 40 + $1::int", &[&2]).await.unwrap().get::<_, i32>(0), 42);
    // A cancel comes by the same way.
    let other = crate::server::connect(&config).await.unwrap();
    let cancel = client.cancel_token();
    let (slept, cancelled) = tokio::join!(client.simple_query("SELECT pg_sleep(600)"), async {
        let sleeping =
            "SELECT count(*) FROM tidepool.queries WHERE state = 'running' AND query LIKE 'SELECT pg_sleep%'";
        while other.query_one(sleeping, &[]).await.unwrap().get::<_, i64>(0) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        cancel.cancel_query(tokio_postgres::NoTls).await
    });
    cancelled.unwrap();
    assert_eq!(crate::server::code(&slept.unwrap_err()), "57014");
    client.batch_execute("ALTER ROLE tidepool PASSWORD 'tide'").await.unwrap();
    let refused = crate::server::connect(&config).await.unwrap_err();
    assert!(format!("{refused:?}").contains("password"), "{refused:?}");
    crate::server::connect(config.password("tide")).await.unwrap();
    drop((client, other));
    server.signal(libc::SIGTERM);
    let (success, log) = tokio::task::spawn_blocking(|| server.wait()).await.unwrap();
    assert!(success, "{log}");
    assert!(!folder.path().join(format!(".s.PGSQL.{port}")).exists());
    assert!(!folder.path().join(format!(".s.PGSQL.{port}.lock")).exists());
}

#[test]
fn what_a_killed_server_left_of_its_socket_is_replaced_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let sockets = folder.path().join("sockets");
    std::fs::create_dir(&sockets).unwrap();
    let start =
        |listen: &str| try_serve(&data, &["--listen", listen, "--socket-directory", sockets.to_str().unwrap()], &[]);
    let end = |server: Serving, signal| {
        server.signal(signal);
        server.wait()
    };
    let server = start("127.0.0.1:0").unwrap_or_else(|log| panic!("{log}"));
    let listen = server.url.rsplit('@').next().and_then(|rest| rest.split('/').next()).unwrap().to_owned();
    let path = sockets.join(format!(".s.PGSQL.{}", listen.rsplit(':').next().unwrap()));
    let lock = path.with_extension(format!("{}.lock", path.extension().unwrap().to_str().unwrap()));
    assert!(path.exists() && lock.exists());
    end(server, libc::SIGKILL);
    assert!(path.exists() && lock.exists());
    let server = start(&listen).unwrap_or_else(|log| panic!("{log}"));
    std::os::unix::net::UnixStream::connect(&path).unwrap();
    assert!(end(server, libc::SIGTERM).0);
    assert_eq!(std::fs::read_dir(&sockets).unwrap().count(), 0);
    // Another server's, which runs.
    let held = std::fs::File::create(&lock).unwrap();
    held.try_lock().unwrap();
    let log = start(&listen).err().unwrap();
    assert!(log.contains("another server does"), "{log}");
    drop(held);
    // A file that happens to be called so.
    std::fs::write(&path, "mine").unwrap();
    let log = start(&listen).err().unwrap();
    assert!(log.contains("no socket"), "{log}");
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    let long = folder.path().join("x".repeat(100));
    std::fs::create_dir(&long).unwrap();
    let log = try_serve(&data, &["--socket-directory", long.to_str().unwrap()], &[]).err().unwrap();
    assert!(log.contains("too long"), "{log}");
}

#[test]
fn errors_are_told_with_their_place_and_code() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(folder.path(), &[]);
    let failed = sql(&server.url, &["-c", "SELECT 1 +\n  FROM"], "");
    assert_eq!(failed.status.code(), Some(1));
    assert!(text(&failed.stderr).starts_with("error: "), "{}", text(&failed.stderr));
    // A script ends at its first failure.
    let failed = sql(&server.url, &[], "SELECT 1 AS one;\nSELECT * FROM nowhere;\nSELECT 2 AS two;\n");
    assert_eq!(failed.status.code(), Some(1));
    assert!(text(&failed.stdout).contains("one") && !text(&failed.stdout).contains("two"));
    assert!(text(&failed.stderr).contains("nowhere"), "{}", text(&failed.stderr));
    server.signal(libc::SIGTERM);
    assert!(server.wait().0);
}

#[test]
fn copy_both_ways() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(&folder.path().join("data"), &[]);
    let input = folder.path().join("in.csv");
    let output = folder.path().join("out.csv");
    let rows: String = (0..10_000).map(|n| format!("{n},\"row, {n}\"\n")).collect();
    std::fs::write(&input, format!("id,name\n{rows}")).unwrap();
    let script = format!(
        "CREATE TABLE copied (id bigint, name text);\n\
         \\copy copied FROM '{}' WITH (FORMAT csv, HEADER)\n\
         \\copy (SELECT * FROM copied ORDER BY id) TO '{}' WITH (FORMAT csv)\n\
         \\copy (SELECT count(*) FROM copied) TO stdout\n",
        input.display(),
        output.display()
    );
    let copied = sql(&server.url, &[], &script);
    assert!(copied.status.success(), "{}", text(&copied.stderr));
    assert_eq!(text(&copied.stdout), "CREATE TABLE\nCOPY 10000\nCOPY 10000\n10000\n");
    assert_eq!(std::fs::read_to_string(&output).unwrap(), rows);
    std::fs::write(&input, "1,fine\nnot a number,x\n").unwrap();
    let failed = sql(&server.url, &["-c", &format!("\\copy copied FROM '{}' CSV", input.display())], "");
    assert_eq!(failed.status.code(), Some(1));
    assert!(text(&failed.stderr).contains("not a number"), "{}", text(&failed.stderr));
    server.signal(libc::SIGTERM);
    assert!(server.wait().0);
}

#[test]
fn backslash_commands_run() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(folder.path(), &[]);
    let script = "CREATE TABLE shown (id integer NOT NULL, name text);\n\
        \\d\n\\d shown\n\\dt\n\\dt+\n\\dv\n\\db\n\\db+\n\\dn\n\\du\n\\l\n\\conninfo\n\\x\nSELECT 1 AS a, 'b' AS b;\n\\timing\n\\?\n\\q\nSELECT 'unreachable';\n";
    let output = sql(&server.url, &[], script);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    for expected in ["shown", "not null", "near", "far", "tidepool", "-[ RECORD 1 ]", "Timing is on."] {
        assert!(shown.contains(expected), "{expected} is missing from {shown}");
    }
    assert!(!shown.contains("unreachable"));
    server.signal(libc::SIGTERM);
    assert!(server.wait().0);
}

#[test]
fn a_profile_of_the_configuration_file_can_be_named_in_sql() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("tidepool.toml");
    let mine = "[[profile]]\nname = \"mine\"\nread_latency_ns = 321\nwrite_latency_ns = 300\nread_gb_per_s = 20\n\
        write_gb_per_s = 12\nmixed_gb_per_s = { \"2:1\" = 25.5 }\n";
    std::fs::write(&config, mine).unwrap();
    let data = folder.path().join("data");
    let server = serve(&data, &["--config", config.to_str().unwrap()]);
    let script = "CREATE TABLESPACE own LOCATION 'anon:' WITH (size = '1MB', profile = 'mine');\n\
        SELECT t.name, p.read_latency_ns, p.mixed_gb_per_s FROM tidepool.tablespaces t JOIN tidepool.profiles p ON p.name = t.profile;\n";
    let output = sql(&server.url, &[], script);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(shown.contains("own") && shown.contains("321") && shown.contains("2:1 25.5"), "{shown}");
    server.signal(libc::SIGTERM);
    assert!(server.wait().0);
    std::fs::write(&config, mine.replace("25.5", "60")).unwrap();
    let mut command = tidepool();
    command.args(["serve", "--data"]).arg(&data).arg("--config").arg(&config);
    let stderr = Serving::refused(command);
    assert!(stderr.contains("invalid device profile") && stderr.contains("the reads come to 40.0 GB/s"), "{stderr}");
}

#[test]
fn configuration_mistakes_are_errors_not_panics() {
    let attempt = |arguments: &[&str]| {
        // Each its own: where a folder has data, memory takes the place of a tier that cannot be opened.
        let folder = tempfile::tempdir().unwrap();
        let mut command = tidepool();
        command.args(["serve", "--data"]).arg(folder.path()).args(arguments);
        Serving::refused(command)
    };
    let small = ["--near", "64MB", "--far", "anon:,size=64MB"];
    let with = |more: &[&'static str]| [small.as_slice(), more].concat();
    assert!(attempt(&with(&["--listen", "0.0.0.0:0"])).contains("no password is set"));
    attempt(&with(&["--listen", "nonsense"]));
    attempt(&with(&["--config", "/nonexistent/tidepool.toml"]));
    attempt(&["--near", "lots"]);
    attempt(&with(&["--listen", "127.0.0.1:0", "--socket-directory", "/nonexistent"]));
    assert!(attempt(&["--near", "64MB,populate=65MB", "--far", "64MB"]).contains("65 MB of tablespace \"near\""));
    attempt(&["--near", "64MB", "--far", "paged:1MB:anon:,size=64MB,populate=1MB"]);
    attempt(&["--far", "numa:999,size=64MB"]);
    attempt(&["--far", "file:/nonexistent/far,size=64MB"]);
    attempt(&["--far", "anon:,size=64MB,profile=unheard-of"]);
    attempt(&with(&["--tls-certificate", "/nonexistent/crt", "--tls-key", "/nonexistent/key"]));
}
