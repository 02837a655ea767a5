//! What clients can make the server hold, and that neither the server nor other clients suffer from those that try.

use crate::cli::{Serving, sql, text, tidepool};
use crate::raw::{self, Raw, field, kinds};
use crate::server::{MIB, Setup, TestServer, code};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tidepool_database::Config;
use tokio_postgres::Client;

const CLIENT_MEMORY: u64 = 32 * MIB;

async fn bounded() -> (TestServer, Client) {
    let mut config = Config { client_memory_bytes: CLIENT_MEMORY, ..Config::in_memory(256 * MIB, 64 * MIB) };
    config.server.connections_max = 64;
    let server = TestServer::with(Setup { config: Some(config), ..Setup::default() }).await;
    let client = server.connect().await;
    (server, client)
}

/// Bytes that clients hold of a kind, and at most held.
async fn held(client: &Client, kind: &str) -> (u64, u64) {
    let query = format!("SELECT bytes, bytes_peak FROM tidepool.memory WHERE purpose = 'clients: {kind}'");
    let row = client.query_one(&query, &[]).await.unwrap();
    (row.get::<_, i64>(0) as u64, row.get::<_, i64>(1) as u64)
}

/// Waits until it is so.
async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let start = Instant::now();
    while !is_so().await {
        assert!(start.elapsed() < Duration::from_secs(120), "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn answers(client: &Client) {
    let long = "x".repeat(50_000);
    let row = client.query_one(&format!("SELECT length('{long}')"), &[]).await.unwrap();
    assert_eq!(row.get::<_, i32>(0), 50_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn half_sent_messages_are_bounded() {
    let (server, client) = bounded().await;
    let before = held(&client, "messages").await.0;
    let mut senders = Vec::new();
    for _ in 0..10 {
        let (mut sender, _) = Raw::start(server.address).await;
        // All but the last byte of a message of 20 MB, whether it is kept or not.
        sender.send(&[&[b'Q'][..], &(20u32 << 20).to_be_bytes()].concat()).await;
        let half = vec![b'x'; 1 << 20];
        for _ in 0..19 {
            sender.send(&half).await;
        }
        sender.send(&half[..(1 << 20) - 5]).await;
        senders.push(sender);
    }
    answers(&client).await;
    let (now, peak) = held(&client, "messages").await;
    assert!(now <= CLIENT_MEMORY && peak <= CLIENT_MEMORY, "{now} and {peak}");
    // Each is answered, and goes on.
    for sender in &mut senders {
        let messages = sender.ask(b"\0").await;
        let wanted = field(&messages[0].1, b'C').unwrap();
        assert!(["53200", "42601"].contains(&wanted.as_str()), "{wanted}");
        assert_eq!(kinds(&sender.ask(&raw::query("SELECT 1")).await), "TDCZ");
    }
    assert!(held(&client, "messages").await.0 <= before);
    // In the extended protocol, up to the next Sync.
    let sender = &mut senders[0];
    let long = vec![b'1'; 20 << 20];
    let bind = [b"\0\0\0\0\0\x01", &(long.len() as u32).to_be_bytes()[..], &long, b"\0\0"].concat();
    let parts = [raw::parse("", "SELECT 1"), raw::message(b'B', &bind), raw::execute("", 0), raw::sync()];
    let messages = sender.ask(&parts.concat()).await;
    assert_eq!(kinds(&messages), "1EZ");
    assert_eq!(field(&messages[1].1, b'C').as_deref(), Some("53200"));
}

/// Runs `statement` with higher and higher numbers until it is refused. Returns the error.
async fn refused(client: &Client, most: usize, statement: impl Fn(usize) -> String) -> tokio_postgres::Error {
    for number in 0..most {
        if let Err(error) = client.batch_execute(&statement(number)).await {
            return error;
        }
    }
    panic!("{} was never refused", statement(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_session_keeps_is_bounded() {
    let (server, witness) = bounded().await;
    let before = held(&witness, "sessions").await.0;
    let list = (0..500).map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
    let client = server.connect().await;

    let error = refused(&client, 100_000, |n| format!("PREPARE p{n} AS SELECT $1::int IN ({list})")).await;
    assert_eq!(code(&error), "53200", "{error:?}");
    assert!(error.as_db_error().unwrap().hint().unwrap().contains("memory.clients"), "{error:?}");
    answers(&witness).await;
    client.batch_execute("DEALLOCATE ALL; PREPARE again AS SELECT 1; EXECUTE again").await.unwrap();

    client.batch_execute("BEGIN").await.unwrap();
    let error = refused(&client, 100_000, |n| format!("DECLARE c{n} CURSOR FOR SELECT 1")).await;
    assert_eq!(code(&error), "53200", "{error:?}");
    client.batch_execute("ROLLBACK").await.unwrap();

    // Those that are held have no query heap, of which there are some hundreds.
    let error = refused(&client, 100_000, |n| format!("DECLARE c{n} CURSOR WITH HOLD FOR SELECT 1")).await;
    assert_eq!(code(&error), "53200", "{error:?}");
    client.batch_execute("FETCH 1 FROM c900; CLOSE ALL").await.unwrap();

    let value = "x".repeat(900_000);
    client.batch_execute("BEGIN").await.unwrap();
    let error = refused(&client, 1_000, |n| format!("SAVEPOINT s; SET a.b TO '{n}{value}'")).await;
    assert_eq!(code(&error), "53200", "{error:?}");
    client.batch_execute("ROLLBACK").await.unwrap();

    for sql in [
        "SELECT set_config('a.b', repeat('x', 2000000), false)",
        "SELECT count(set_config('a.b' || n, repeat('x', 100000), false)) FROM generate_series(1, 1000) AS t(n)",
        "SELECT count(set_config('a.b' || n, 'x', false)) FROM generate_series(1, 100000) AS t(n)",
    ] {
        assert_eq!(code(&client.batch_execute(sql).await.unwrap_err()), "53200", "{sql}");
    }
    let locks = "SELECT count(pg_advisory_lock(n)) FROM generate_series(1, 1000000) AS t(n)";
    assert_eq!(code(&client.batch_execute(locks).await.unwrap_err()), "53200");
    client.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();

    answers(&client).await;
    let (_, peak) = held(&witness, "sessions").await;
    assert!(peak <= CLIENT_MEMORY, "{peak}");
    drop(client);
    until("what a session held is given back", async || held(&witness, "sessions").await.0 <= before + MIB).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn prepared_statements_and_portals_of_the_protocol_are_bounded() {
    let (server, witness) = bounded().await;
    let (mut client, _) = Raw::start(server.address).await;
    let list = (0..500).map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
    let (mut count, mut error) = (0, None);
    while error.is_none() && count < 100_000 {
        let batch: Vec<u8> =
            (0..20).flat_map(|n| raw::parse(&format!("p{}", count + n), &format!("SELECT {n} IN ({list})"))).collect();
        let messages = client.ask(&[batch, raw::sync()].concat()).await;
        count += messages.iter().filter(|(kind, _)| *kind == b'1').count();
        error = messages.into_iter().find(|(kind, _)| *kind == b'E');
    }
    assert_eq!(field(&error.unwrap().1, b'C').as_deref(), Some("53200"));
    assert!(count > 0, "{count}");
    answers(&witness).await;
    client.ask(&raw::query("DEALLOCATE ALL; BEGIN")).await;
    client.ask(&[raw::parse("one", "SELECT 1"), raw::sync()].concat()).await;
    let (mut count, mut error) = (0, None);
    while error.is_none() && count < 1_000_000 {
        let batch: Vec<u8> = (0..500).flat_map(|n| raw::bind(&format!("portal{}", count + n), "one")).collect();
        let messages = client.ask(&[batch, raw::sync()].concat()).await;
        count += messages.iter().filter(|(kind, _)| *kind == b'2').count();
        error = messages.into_iter().find(|(kind, _)| *kind == b'E');
    }
    assert_eq!(field(&error.unwrap().1, b'C').as_deref(), Some("53200"));
    answers(&witness).await;
    assert!(held(&witness, "sessions").await.1 <= CLIENT_MEMORY);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn plans_that_are_kept_are_bounded() {
    let (_server, client) = bounded().await;
    client
        .batch_execute("CREATE TABLE t AS SELECT n, n % 7 AS seven FROM generate_series(1, 100) AS g(n)")
        .await
        .unwrap();
    let list = (0..300).map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
    for n in 0..60 {
        client
            .batch_execute(&format!("SELECT seven, count(*) + {n} FROM t WHERE n + 1 IN ({list}) GROUP BY seven"))
            .await
            .unwrap();
    }
    let (now, peak) = held(&client, "plans").await;
    assert!(now > 0 && peak <= CLIENT_MEMORY / 2, "{now} and {peak}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clients_that_do_not_read_hold_little() {
    const CLIENTS: usize = 8;
    let (server, client) = bounded().await;
    let rows = "SELECT n, repeat('w', 1000) || n AS t FROM generate_series(1, 40000) AS g(n)";
    client.batch_execute(&format!("CREATE TABLE wide AS {rows}")).await.unwrap();
    let mut silent = Vec::new();
    for n in 0..CLIENTS {
        let (mut one, _) = Raw::start(server.address).await;
        one.send(&raw::query(["SELECT * FROM wide", "COPY wide TO STDOUT"][n % 2])).await;
        silent.push(one);
    }
    let waiting = "SELECT count(*) FROM tidepool.queries WHERE state = 'running' AND rows > 0 AND query LIKE '%wide%'";
    until("all of them wait for their clients", async || {
        client.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) as usize >= CLIENTS
    })
    .await;
    let heap = "SELECT sum(bytes)::bigint FROM tidepool.memory WHERE purpose = 'heap'";
    let bytes = client.query_one(heap, &[]).await.unwrap().get::<_, i64>(0) as u64;
    // The batch that is being sent, of 8,192 rows of a kilobyte, and the one after it.
    assert!(bytes <= CLIENTS as u64 * 20 * MIB, "{bytes} bytes of heap");
    let (now, _) = held(&client, "results").await;
    assert!(now <= CLIENTS as u64 * 256 * 1024, "{now}");
    answers(&client).await;
    let sum = client.query_one("SELECT sum(length(t))::bigint FROM wide", &[]).await.unwrap();
    assert_eq!(sum.get::<_, i64>(0), 40_000 * 1_000 + 188_894);
    // They can have all of it yet.
    let mut rows = [0, 0];
    for (n, one) in silent.iter_mut().take(2).enumerate() {
        rows[n] = one.until(b'Z').await.iter().filter(|(kind, _)| b"Dd".contains(kind)).count();
    }
    assert_eq!(rows, [40_000, 40_000]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_row_that_there_is_no_room_for_is_refused() {
    let (server, client) = bounded().await;
    client.batch_execute("CREATE TABLE t (n int PRIMARY KEY, t text)").await.unwrap();
    client.batch_execute("INSERT INTO t SELECT 1, repeat('x', 20000000)").await.unwrap();
    client.batch_execute("INSERT INTO t SELECT 2, repeat('x', 2000000)").await.unwrap();
    // By its plan, by its key, and by COPY; the connection goes on.
    let (mut raw, _) = Raw::start(server.address).await;
    for sql in ["SELECT t || '' FROM t ORDER BY n", "SELECT t FROM t WHERE n = 1", "COPY t TO STDOUT"] {
        let messages = raw.ask(&raw::query(sql)).await;
        let error = messages.iter().find(|(kind, _)| *kind == b'E').unwrap_or_else(|| panic!("{sql}"));
        assert_eq!(field(&error.1, b'C').as_deref(), Some("53200"), "{sql}");
        assert_eq!(kinds(&raw.ask(&raw::query("SELECT length(t) FROM t WHERE n = 2")).await), "TDCZ");
        let messages = raw.ask(&raw::query("SELECT t FROM t WHERE n = 2")).await;
        assert_eq!(kinds(&messages), "TDCZ", "{sql}");
        assert_eq!(messages[1].1.len(), 2_000_000 + 6);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_text_that_cannot_be_planned_in_memory_is_refused() {
    let (near, far) = (64 * MIB, 16 * MIB);
    let limit = near + far + CLIENT_MEMORY + 32 * MIB;
    let config =
        Config { client_memory_bytes: CLIENT_MEMORY, memory_limit_bytes: limit, ..Config::in_memory(near, far) };
    let server = TestServer::with(Setup { config: Some(config), ..Setup::default() }).await;
    let client = server.connect().await;
    let list = (0..200_000).map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
    for sql in
        [format!("SELECT 1 IN ({list})"), "SELECT 1;".repeat(100_000), format!("PREPARE p AS SELECT 1 IN ({list})")]
    {
        let error = client.batch_execute(&sql).await.unwrap_err();
        assert_eq!(code(&error), "53200", "{error:?}");
        assert!(error.as_db_error().unwrap().detail().unwrap().starts_with("Planning a statement of"), "{error:?}");
    }
    let error = client.prepare(&format!("SELECT 1 IN ({list})")).await.unwrap_err();
    assert_eq!(code(&error), "53200", "{error:?}");
    // Nothing stays set apart.
    let used = client.query_one("SELECT count(*) FROM tidepool.memory WHERE purpose = 'reserved'", &[]).await.unwrap();
    assert_eq!(used.get::<_, i64>(0), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn silent_sockets_keep_nobody_out() {
    let (server, client) = bounded().await;
    let mut silent = Vec::new();
    for n in 0..700 {
        let mut socket = Raw::open(server.address).await;
        if n % 3 == 0 {
            // Part of a first packet is as good as none.
            let _ = tokio::io::AsyncWriteExt::write_all(&mut socket.stream, &[0, 0, 0]).await;
        }
        silent.push(socket);
        if n % 100 == 99 {
            answers(&server.connect().await).await;
        }
    }
    answers(&client).await;
    // The first had to go, the last are still waited for.
    assert!(silent[0].read().await.is_none());
    let mut last = silent.pop().unwrap();
    last.send(
        &raw::startup((3, 0), &[("user", "tidepool"), ("database", "tidepool")])[3 * usize::from(699 % 3 == 0)..],
    )
    .await;
    assert!(kinds(&last.until(b'Z').await).ends_with('Z'));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_last_connections_are_superusers() {
    let options = tidepool_server::ServiceOptions {
        connections_max: 5,
        superuser_reserved: 2,
        ..tidepool_server::ServiceOptions::default()
    };
    let server = TestServer::with(Setup { options, ..Setup::default() }).await;
    let owner = server.connect().await;
    owner.batch_execute("CREATE ROLE guest LOGIN").await.unwrap();
    let mut config = server.config();
    config.user("guest");
    let _first = crate::server::connect(&config).await.unwrap();
    let _second = crate::server::connect(&config).await.unwrap();
    let error = crate::server::connect(&config).await.unwrap_err();
    assert_eq!(code(&error), "53300");
    assert!(error.as_db_error().unwrap().message().contains("reserved for non-replication superuser"), "{error:?}");
    until("a refused connection is gone", async || server.try_connect().await.is_some()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pipelines_that_are_not_read_are_bounded() {
    let (server, client) = bounded().await;
    for piece in
        [raw::sync(), raw::query("SELECT repeat('x', 100000)"), raw::parse("", "SELECT 1, 2, 3"), raw::query("x")]
    {
        let (mut flood, _) = Raw::start(server.address).await;
        let pieces = piece.repeat((1 << 20) / piece.len());
        // Until the server takes no more: neither reads what the other sends.
        let write = async {
            for _ in 0..200 {
                flood.send(&pieces).await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(2), write).await;
        answers(&client).await;
        for kind in ["messages", "results", "sessions"] {
            let (now, peak) = held(&client, kind).await;
            assert!(now <= 16 * MIB && peak <= CLIENT_MEMORY, "{kind}: {now} and {peak}");
        }
    }
}

/// A control group with a limit of its own, if this machine lets one be made.
struct Group {
    folder: PathBuf,
}

impl Group {
    fn with_limit(bytes: u64) -> Option<Group> {
        let name = format!("tidepool-test-{}", std::process::id());
        for (parent, file) in [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")] {
            let folder = Path::new(parent).join(&name);
            if !Path::new(parent).join("cgroup.procs").exists() || std::fs::create_dir(&folder).is_err() {
                continue;
            }
            let group = Group { folder };
            if std::fs::write(group.folder.join(file), bytes.to_string()).is_ok() {
                return Some(group);
            }
        }
        None
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes are gone.
        let _ = std::fs::remove_dir(&self.folder);
    }
}

/// Memory of a process that no file backs.
fn process_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or("0");
    let bytes = |key| line(key).trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024;
    bytes("RssAnon:") + bytes("RssShmem:")
}

#[test]
fn nothing_that_clients_send_ends_a_server_in_a_container() {
    const LIMIT: u64 = 500 * MIB;
    let folder = tempfile::tempdir().unwrap();
    let group = Group::with_limit(LIMIT);
    // Where no group can be made, the limit is told, and held against what the process has.
    let mut command = match &group {
        Some(group) => {
            let mut command = tidepool();
            let procs = std::ffi::CString::new(group.folder.join("cgroup.procs").into_os_string().into_encoded_bytes())
                .unwrap();
            let enter = move || {
                // SAFETY: system calls alone, with a name that is terminated.
                unsafe {
                    let file = libc::open(procs.as_ptr(), libc::O_WRONLY);
                    let written = libc::write(file, c"0".as_ptr().cast(), 1);
                    libc::close(file);
                    if written == 1 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
                }
            };
            // SAFETY: what runs between fork and exec allocates nothing.
            unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, enter) };
            command
        }
        None => tidepool(),
    };
    if group.is_none() {
        command.env("TIDEPOOL_MEMORY_LIMIT", format!("{}MB", LIMIT / MIB));
    }
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(folder.path().join("data"));
    let server = Serving::start(command).unwrap_or_else(|log| panic!("the server does not start: {log}"));
    let pid = server.pid();
    let address = server.url.rsplit('@').next().unwrap().split('/').next().unwrap().to_owned();
    let alive = |after: &str| {
        let output = sql(&server.url, &["-c", "SELECT 1"], "");
        assert!(output.status.success(), "after {after}: {}", text(&output.stderr));
        assert!(process_bytes(pid) <= LIMIT, "after {after}: {} MB", process_bytes(pid) / MIB);
    };
    let start = || {
        let mut socket = TcpStream::connect(&address).unwrap();
        socket.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
        socket.write_all(&raw::startup((3, 0), &[("user", "tidepool"), ("database", "tidepool")])).unwrap();
        socket
    };
    alive("nothing");

    let piece = vec![b'x'; 1 << 20];
    let mut sockets: Vec<TcpStream> = Vec::new();
    for _ in 0..10 {
        let mut socket = start();
        socket.write_all(&[&[b'Q'][..], &(200u32 << 20).to_be_bytes()].concat()).unwrap();
        for _ in 0..100 {
            socket.write_all(&piece).unwrap();
        }
        sockets.push(socket);
    }
    alive("half-sent messages");
    sockets.clear();

    let rows = "CREATE TABLE wide AS SELECT n, repeat('w', 1000) || n AS t FROM generate_series(1, 50000) AS g(n)";
    let output = sql(&server.url, &["-c", rows], "");
    assert!(output.status.success(), "{}", text(&output.stderr));
    for n in 0..60 {
        let mut socket = start();
        socket.write_all(&raw::query(["SELECT * FROM wide", "COPY wide TO STDOUT"][n % 2])).unwrap();
        sockets.push(socket);
        if n % 10 == 9 {
            alive("some that do not read");
        }
    }
    sockets.clear();

    let mut socket = start();
    for n in 0..100_000 {
        let parse = raw::parse(&format!("p{n}"), &format!("SELECT {n} + length('{n}') FROM wide WHERE n = {n}"));
        // The answers are not read: it ends where nothing more is taken.
        if socket.write_all(&parse).is_err() {
            break;
        }
    }
    alive("prepared statements");
    drop(socket);

    let list = (0..1_000_000).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
    for statement in [
        format!("SELECT count(*) FROM wide WHERE n IN ({list})"),
        format!("INSERT INTO wide (n) VALUES ({})", list.replace(',', "),(")),
        format!("SELECT length('{}')", "x".repeat(50 << 20)),
        "SELECT 1;".repeat(500_000),
    ] {
        let mut sockets: Vec<TcpStream> = (0..4).map(|_| start()).collect();
        let message = raw::query(&statement);
        std::thread::scope(|scope| {
            for socket in &mut sockets {
                scope.spawn(|| socket.write_all(&message));
            }
        });
        // Until each has been answered, with rows or an error.
        for socket in &mut sockets {
            socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
            read_to_ready(socket, 2);
        }
        alive(&statement[..30]);
    }

    // A row that does not end.
    let mut socket = start();
    socket.write_all(&raw::query("COPY wide (t) FROM STDIN")).unwrap();
    for _ in 0..400 {
        if socket.write_all(&raw::message(b'd', &piece)).is_err() {
            break;
        }
    }
    alive("a row that does not end");
    drop(socket);

    // Values that functions and aggregates make. Each statement is answered, those that take too much with the error that says so.
    let bounded = |statements: &[&str]| {
        let codes: Vec<Option<String>> = std::thread::scope(|scope| {
            let ask = |statement: &'static str| ask(start(), statement);
            let asking: Vec<_> = statements
                .iter()
                .map(|statement| {
                    let statement = statement.to_string();
                    scope.spawn(move || ask(Box::leak(statement.into_boxed_str())))
                })
                .collect();
            asking.into_iter().map(|asked| asked.join().unwrap()).collect()
        });
        for (statement, code) in statements.iter().zip(codes) {
            let is_well = code.as_deref().is_none_or(|code| ["53200", "54000"].contains(&code));
            assert!(is_well, "{statement}: {code:?}");
        }
        alive(statements[0]);
    };
    let texts = "CREATE TABLE texts AS SELECT n, repeat(md5(n::text), 3000) AS t FROM generate_series(1, 300) AS g(n)";
    let made = sql(&server.url, &["-c", texts], "");
    assert!(made.status.success(), "{}", text(&made.stderr));
    bounded(&["SELECT length(repeat('x', 500000000))"; 3]);
    bounded(&["SELECT length(repeat('x', 100000000) || n) FROM generate_series(1, 3) AS g(n)"; 3]);
    for statement in VALUES {
        bounded(&[statement]);
    }
    bounded(&[VALUES[0], VALUES[1], VALUES[2], VALUES[3]]);

    let silent: Vec<TcpStream> = (0..600).map(|_| TcpStream::connect(&address).unwrap()).collect();
    alive("silent sockets");
    drop(silent);
    server.signal(libc::SIGTERM);
    let (is_well, log) = server.wait();
    assert!(is_well, "{log}");
}

/// Each makes more than there is room for.
const VALUES: [&str; 33] = [
    "SELECT a.t || b.t FROM texts a, texts b ORDER BY 1 LIMIT 1",
    "SELECT length(string_agg(t, ',')) FROM texts, generate_series(1, 20)",
    "SELECT array_length(array_agg(t), 1) FROM texts, generate_series(1, 20)",
    "SELECT max(a.t || b.t) FROM texts a, texts b",
    "SELECT n % 3, length(string_agg(t, ',' ORDER BY n)) FROM texts, generate_series(1, 20) GROUP BY 1",
    "SELECT count(DISTINCT a.t || b.n) FROM texts a, texts b",
    "SELECT row_number() OVER (ORDER BY a.t || b.t) FROM texts a, texts b LIMIT 1",
    "SELECT length(upper(repeat('é', 90000000)))",
    "SELECT sum(length(repeat('x', 50000000) || n)) FROM generate_series(1, 8192) AS g(n)",
    "SELECT sum(length(concat(repeat('x', 50000000), n))) FROM generate_series(1, 8192) AS g(n)",
    "SELECT sum(length(concat_ws(',', repeat('x', 50000000), n))) FROM generate_series(1, 8192) AS g(n)",
    "SELECT sum(length(format('%s', repeat('x', 50000000) || n))) FROM generate_series(1, 8192) AS g(n)",
    "SELECT length(format('%500000000s', 'x'))",
    "SELECT length(regexp_replace(repeat('x', 1000000), 'x', repeat('y', 500), 'g'))",
    "SELECT array_length(string_to_array(repeat('a,', 30000000), ','), 1)",
    "SELECT length(json_build_array(repeat('\"', 80000000))::text)",
    "SELECT length(json_agg(t)::text) FROM texts, generate_series(1, 20)",
    "SELECT length(encode(repeat('x', 100000000)::bytea, 'hex'))",
    "SELECT length(quote_literal(repeat('''', 100000000)))",
    "SELECT length(overlay(repeat('x', 80000000) placing repeat('y', 80000000) from 5))",
    "SELECT length(initcap(repeat('ab ', 60000000)))",
    "SELECT length(array_agg(t)::text) FROM texts, generate_series(1, 20)",
    "SELECT repeat('x', 100000000), n FROM generate_series(1, 8192) AS g(n)",
    "WITH RECURSIVE r(t) AS (SELECT 'xxxxxxxxxx' UNION ALL SELECT t || t FROM r WHERE length(t) < 2000000000)
     SELECT max(length(t)) FROM r",
    // Lists.
    "SELECT generate_series(1, 10000000)",
    "SELECT n, generate_series(1, 500000) FROM generate_series(1, 1000) AS g(n) ORDER BY 1, 2",
    "SELECT array_length(array_agg(n), 1) FROM generate_series(1, 60000000) AS g(n)",
    "SELECT unnest(array_agg(n)) FROM generate_series(1, 30000000) AS g(n)",
    "SELECT generate_subscripts(array_agg(n), 1) FROM generate_series(1, 30000000) AS g(n)",
    "SELECT count(*) FROM regexp_matches(repeat('ab', 10000000), '(a)', 'g')",
    "SELECT array_length(regexp_split_to_array(repeat('a,', 20000000), ','), 1)",
    "SELECT count(*) FROM json_array_elements_text(('[' || repeat('1,', 20000000) || '1]')::json)",
    "SELECT count(*) FROM json_object_keys(('{' || repeat('\"a\":1,', 10000000) || '\"b\":1}')::json)",
];

/// The code of the error that a statement comes to, if it comes to one.
fn ask(mut socket: TcpStream, statement: &str) -> Option<String> {
    socket.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
    socket.write_all(&raw::query(statement)).unwrap();
    let mut reader = BufReader::new(socket);
    let (mut ready, mut code) = (0, None);
    while ready < 2 {
        let mut head = [0; 5];
        std::io::Read::read_exact(&mut reader, &mut head).unwrap_or_else(|error| panic!("{statement}: {error}"));
        let mut body = vec![0; u32::from_be_bytes(head[1..].try_into().unwrap()) as usize - 4];
        std::io::Read::read_exact(&mut reader, &mut body).unwrap_or_else(|error| panic!("{statement}: {error}"));
        match head[0] {
            b'Z' => ready += 1,
            b'E' => code = field(&body, b'C'),
            _ => {}
        }
    }
    code
}

/// Reads messages, up to the `count`th ReadyForQuery.
fn read_to_ready(socket: &mut TcpStream, count: usize) {
    let mut reader = BufReader::new(socket);
    let mut ready = 0;
    while ready < count {
        let mut head = [0; 5];
        std::io::Read::read_exact(&mut reader, &mut head).expect("an answer");
        let length = u64::from(u32::from_be_bytes(head[1..].try_into().unwrap())) - 4;
        let mut left = length;
        while left > 0 {
            let there = reader.fill_buf().expect("an answer").len() as u64;
            assert!(there > 0, "the connection ended");
            reader.consume(there.min(left) as usize);
            left -= there.min(left);
        }
        ready += usize::from(head[0] == b'Z');
    }
}
