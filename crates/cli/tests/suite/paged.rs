//! Paged far memory: what SQL says of it, many sessions over a cache far smaller than the data, and what a kill leaves.

use crate::cli::{serve, sql, text};
use crate::server::{MIB, PATIENCE, Setup, TestServer, code, connect};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidepool_database::Config;
use tidepool_device::paged;
use tokio_postgres::{Client, SimpleQueryMessage};

/// False, with the reason printed, where the kernel refuses userfaultfd(2).
fn available() -> bool {
    paged::available().inspect_err(|error| tidepool_base::cannot_test(error)).is_ok()
}

async fn value(client: &Client, query: &str) -> String {
    let messages = client.simple_query(query).await.unwrap_or_else(|error| panic!("{query}: {error:?}"));
    let row = messages.into_iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or("NULL").to_owned()),
        _ => None,
    });
    row.unwrap_or_default()
}

async fn run(client: &Client, statements: &[&str]) {
    for statement in statements {
        client.batch_execute(statement).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
    }
}

async fn number(client: &Client, query: &str) -> i64 {
    value(client, query).await.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_paged_tablespace_says_what_it_does() {
    if !available() {
        return;
    }
    let server = TestServer::with(Setup { metrics: true, ..Setup::default() }).await;
    let client = server.connect().await;
    run(
        &client,
        &[
            "CREATE TABLESPACE p LOCATION 'paged:1MB:anon:' WITH (size = '64MB', profile = 'rdma-56g-paging')",
            "CREATE TABLE rows TABLESPACE p AS SELECT x AS a, x::bigint * 7919 % 1000003 AS b FROM generate_series(1, 1000000) AS t(x)",
            "CALL tidepool.merge('rows')",
        ],
    )
    .await;
    assert_eq!(value(&client, "SELECT sum(a), sum(b) FROM rows").await, "500000500000");
    assert_eq!(value(&client, "SELECT location FROM tidepool.tablespaces WHERE name = 'p'").await, "paged:1MB:anon:");
    let of =
        async |what: &str| number(&client, &format!("SELECT {what} FROM tidepool.paging WHERE tablespace = 'p'")).await;
    assert_eq!(of("bytes_cache").await, MIB as i64);
    assert!(of("bytes_local").await <= MIB as i64);
    assert!(of("bytes_remote").await > MIB as i64);
    assert!(of("fetched").await > 100 && of("written_back").await > 100);
    // A page takes 5 us of the network, and a fault what was measured when the tablespace was made.
    assert!(of("(modelled_ms * 1000 / fetched)::bigint").await >= 5);
    assert!(of("mechanism_fault_ns").await > 0);
    let main = "FROM tidepool.memory WHERE tablespace = 'p' AND purpose = 'main'";
    assert_eq!(value(&client, &format!("SELECT bytes_local + bytes_remote = bytes {main}")).await, "t");
    // The pacer has no part in it.
    assert_eq!(value(&client, "SELECT count(*) FROM tidepool.pacing WHERE tablespace = 'p'").await, "0");
    assert_eq!(value(&client, "SELECT stall_ms FROM tidepool.tablespaces WHERE name = 'p'").await, "NULL");

    let plan = client.simple_query("EXPLAIN (ANALYZE) SELECT sum(b) FROM rows").await.unwrap();
    let line = plan.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).filter(|line| line.starts_with("Paged in p: ")),
        _ => None,
    });
    assert!(line.is_some_and(|line| line.contains("pages fetched")), "{plan:?}");

    let page = server.get("/metrics").await;
    for sample in [
        "tidepool_paged_cache_bytes{tablespace=\"p\"} 1048576\n",
        "tidepool_page_faults_total{tablespace=\"p\",kind=\"fetched\"} ",
        "tidepool_paged_bytes{tablespace=\"p\",purpose=\"main\",place=\"remote\"} ",
        "tidepool_paging_seconds_total{tablespace=\"p\",part=\"mechanism\"} ",
    ] {
        assert!(page.contains(sample), "{sample}");
    }

    run(&client, &["DROP TABLE rows", "DROP TABLESPACE p"]).await;
    assert_eq!(value(&client, "SELECT count(*) FROM tidepool.paging").await, "0");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nonsense_about_paged_memory_is_refused() {
    let (server, client) = TestServer::start_connected().await;
    for (location, options, message) in [
        ("paged:64MB", "size = '1GB'", "invalid device location"),
        ("paged:64MB:file:/dev/shm/x", "size = '1GB'", "invalid device location"),
        ("paged:lots:anon:", "size = '1GB'", "invalid device location"),
        ("paged:0%:anon:", "size = '1GB'", "invalid device location"),
        ("paged:64MB:anon:", "huge_pages = off", "a size is required"),
        ("paged:64kB:anon:", "size = '1GB'", "a cache of 64 kB is too small"),
        ("paged:2GB:anon:", "size = '1GB'", "a cache of 2 GB is larger than the paged memory of 1 GB"),
        ("paged:64MB:anon:", "size = '1GB', profile = 'cxl-asic'", "profile \"cxl-asic\" is no network"),
    ] {
        let statement = format!("CREATE TABLESPACE odd LOCATION '{location}' WITH ({options})");
        let error = client.batch_execute(&statement).await.unwrap_err();
        assert_eq!(code(&error), "22023", "{statement}: {error:?}");
        let said = error.as_db_error().unwrap().message().to_owned();
        assert!(said.contains(message), "{statement}: {said}");
    }
    if available() {
        run(
            &client,
            &[
                "CREATE TABLESPACE p LOCATION 'paged:10%:anon:' WITH (size = '64MB', profile = 'infiniswap')",
                "CREATE TABLE t (a int)",
                "SELECT * FROM t",
            ],
        )
        .await;
        for (statement, expected, message) in [
            ("ALTER TABLESPACE p ADD LOCATION 'anon:'", "0A000", "cannot be one of several locations"),
            ("ALTER TABLESPACE p DROP LOCATION 'anon:'", "0A000", "cannot be one of several locations"),
            ("ALTER TABLESPACE p SET (size = '8MB')", "22023", "a cache of 819.2 kB is too small"),
            ("ALTER TABLESPACE p SET (cache = '65MB')", "22023", "is larger than the paged memory of 64 MB"),
            ("ALTER TABLESPACE p SET (cache = 'much')", "22023", "invalid"),
            ("ALTER TABLESPACE p SET (cache = '0%')", "22023", "invalid share"),
            ("ALTER TABLESPACE p SET (cache = '2MB', cache = '3MB')", "22023", "given twice"),
            ("ALTER TABLESPACE p SET (profile = 'infiniswap')", "22023", "cannot be changed"),
            ("ALTER TABLESPACE p SET (size = '30TB')", "22023", "is too large"),
            ("ALTER TABLESPACE near SET (cache = '2MB')", "55000", "has no cache"),
        ] {
            let error = client.batch_execute(statement).await.unwrap_err();
            assert_eq!(code(&error), expected, "{statement}: {error:?}");
            let said = error.as_db_error().unwrap().message().to_owned();
            assert!(said.contains(message), "{statement}: {said}");
        }
        let error = client.batch_execute("CALL tidepool.advise('1MB', 'p')").await.unwrap_err();
        assert_eq!(code(&error), "55000", "{error:?}");
        assert!(error.as_db_error().unwrap().message().contains("is paged"), "{error:?}");
    }
    server.stop().await;
}

/// Size and cache change under queries, separately and at once; what is local, remote and resident follows at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn size_and_cache_change_while_queries_run() {
    if !available() {
        return;
    }
    let (server, client) = TestServer::start_connected().await;
    run(
        &client,
        &[
            "CREATE TABLESPACE p LOCATION 'paged:2MB:anon:' WITH (size = '16MB')",
            "CREATE TABLE filler (a text) TABLESPACE p",
            "CREATE TABLE rows TABLESPACE p AS SELECT x AS a, md5(x::text) AS b FROM generate_series(1, 200000) AS t(x)",
        ],
    )
    .await;
    let fill = "INSERT INTO filler SELECT md5(x::text) || md5((x + 1)::text) FROM generate_series(1, 700000) AS t(x)";
    assert_eq!(code(&client.batch_execute(fill).await.unwrap_err()), "53200");
    let stop = Arc::new(AtomicBool::new(false));
    let reader = tokio::spawn({
        let (stop, client) = (stop.clone(), server.connect().await);
        async move {
            let mut asked = 0;
            while !stop.load(Ordering::Relaxed) {
                let found = value(&client, "SELECT count(*) || ' ' || sum(a) || ' ' || max(b) FROM rows").await;
                assert_eq!(found, "200000 20000100000 fffffe98d0963d27015c198262d97221");
                asked += 1;
            }
            asked
        }
    });
    let state = async || {
        value(
            &client,
            "SELECT t.bytes_size / 1048576 || ' ' || bytes_cache / 1048576 || ' ' || (bytes_local <= bytes_cache) || ' ' || location \
             FROM tidepool.tablespaces AS t JOIN tidepool.paging AS p ON p.tablespace = t.name",
        )
        .await
    };
    run(&client, &["ALTER TABLESPACE p SET (size = '128MB')", fill]).await;
    assert_eq!(state().await, "128 2 true paged:2MB:anon:");
    run(&client, &["ALTER TABLESPACE p SET (cache = '25%')", "SELECT max(a) FROM filler"]).await;
    assert_eq!(state().await, "128 32 true paged:25%:anon:");
    // What tables hold does not fit.
    assert_eq!(code(&client.batch_execute("ALTER TABLESPACE p SET (size = '16MB')").await.unwrap_err()), "53200");
    run(&client, &["DROP TABLE filler"]).await;
    // Who still reads what it was, or merges it, keeps it until then.
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = client.batch_execute("ALTER TABLESPACE p SET (size = '16MB', cache = '1MB')").await {
        assert!(code(&error) == "53200" && Instant::now() < deadline, "{error:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(state().await, "16 1 true paged:1MB:anon:");
    stop.store(true, Ordering::Relaxed);
    assert!(reader.await.unwrap() > 0);
    let space = server.database.tablespaces().get("p").unwrap();
    let (usage, paging) = (space.usage(), space.paged().unwrap());
    assert_eq!(paging.len() as u64, 16 * MIB);
    // Each page is there once or twice.
    assert!(usage.resident_bytes <= 17 * MIB, "{usage:?}");
    server.stop().await;
}

/// All of it in paged memory, of which hardly any is local.
fn paged_config(cache: &str, size: u64, profile: Option<&str>) -> Config {
    let mut config = Config::in_memory(128 * MIB, size);
    config.far.location = format!("paged:{cache}:anon:").parse().unwrap();
    config.far.profile = profile.map(|name| config.profile(name).unwrap());
    config.default_tablespace = "far".to_owned();
    config.temp_tablespaces = vec!["far".to_owned()];
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_sessions_share_a_small_cache() {
    if !available() {
        return;
    }
    // The least that is allowed: 256 pages for six sessions, their operators and their tables.
    let config = paged_config("1MB", 512 * MIB, None);
    let server = TestServer::with(Setup { config: Some(config), ..Setup::default() }).await;
    let client = server.connect().await;
    run(
        &client,
        &[
            "CREATE TABLE numbers AS SELECT x AS a, x % 1000 AS b, 'text ' || x % 5000 AS c FROM generate_series(1, 400000) AS t(x)",
            "CALL tidepool.merge('numbers')",
            "CREATE TABLE log (session int, a bigint)",
        ],
    )
    .await;
    let stop = Arc::new(AtomicBool::new(false));
    let worked = Arc::new(std::array::from_fn::<_, 6, _>(|_| AtomicU64::new(0)));
    let sessions: Vec<_> = (0..6)
        .map(|session| {
            let (config, stop, worked) = (server.config(), stop.clone(), worked.clone());
            tokio::spawn(async move {
                let client = connect(&config).await.unwrap();
                let mut rounds = 0;
                while !stop.load(Ordering::Relaxed) {
                    match session % 3 {
                        0 => {
                            let found = value(&client, "SELECT count(*) || ' ' || sum(a) || ' ' || min(c) || ' ' || max(c) FROM numbers").await;
                            assert_eq!(found, "400000 80000200000 text 0 text 999");
                        }
                        1 => {
                            // A hash table, and a sort, that do not fit the cache.
                            let found = value(
                                &client,
                                "SELECT count(*) || ' ' || sum(n) FROM (SELECT c, a % 40000 AS k, count(*) AS n FROM numbers GROUP BY 1, 2 ORDER BY n, c, k) AS g",
                            )
                            .await;
                            assert_eq!(found, "40000 400000");
                        }
                        _ => {
                            client.batch_execute(&format!("INSERT INTO log SELECT {session}, x FROM generate_series(1, 20000) AS t(x)")).await.unwrap();
                            let found = value(&client, &format!("SELECT count(*) FROM log WHERE session = {session}")).await;
                            assert_eq!(found, ((rounds + 1) * 20_000).to_string());
                        }
                    }
                    rounds += 1;
                    worked[session].fetch_add(1, Ordering::Relaxed);
                }
                rounds
            })
        })
        .collect();
    let of = async |what: &str| number(&client, &format!("SELECT {what} FROM tidepool.paging")).await;
    // All have worked side by side, and modified pages filled the cache again and again.
    while worked.iter().any(|rounds| rounds.load(Ordering::Relaxed) < 3) || of("written_back").await <= 2560 {
        // A session that failed never gets there.
        let failed = sessions.iter().any(|session| session.is_finished());
        assert!(!failed, "a session ended early");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut written = 0;
    for (session, task) in sessions.into_iter().enumerate() {
        let rounds = task.await.unwrap();
        assert!(rounds > 0, "session {session} did nothing");
        written += if session % 3 == 2 { rounds } else { 0 };
    }
    assert_eq!(number(&client, "SELECT count(*) FROM log").await, i64::from(written) * 20_000);
    assert_eq!(number(&client, "SELECT sum(a)::bigint FROM log").await, i64::from(written) * 200_010_000);
    assert!(of("bytes_local").await <= MIB as i64);
    // The kernel was handed rows of paged memory, and gave some.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("numbers.csv").display().to_string();
    let parquet = folder.path().join("numbers.parquet").display().to_string();
    run(
        &client,
        &[
            &format!("COPY numbers TO '{path}' (FORMAT csv)"),
            "CREATE TABLE again (a bigint, b bigint, c text)",
            &format!("COPY again FROM '{path}' (FORMAT csv)"),
            &format!("COPY numbers TO '{parquet}'"),
            &format!("COPY again FROM '{parquet}'"),
        ],
    )
    .await;
    assert_eq!(value(&client, "SELECT count(*) || ' ' || sum(a) FROM again").await, "800000 160000400000");
    server.stop().await;
}

fn answer(url: &str, query: &str) -> String {
    let output = sql(url, &["--format", "csv", "-c", query], "");
    assert!(output.status.success(), "{query}: {}", text(&output.stderr));
    text(&output.stdout).lines().nth(1).unwrap_or_default().to_owned()
}

/// Resident bytes of another process.
fn resident_bytes(pid: u32) -> i64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<i64>().unwrap() * 1024
}

#[test]
fn a_killed_server_leaves_paged_tables_in_its_folder() {
    if !available() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let far = ["--far", "paged:2MB:anon:,size=256MB,profile=rdma-56g-paging"];
    let server = serve(&data, &far);
    let run = |url: &str, statement: &str| {
        let output = sql(url, &["-c", statement], "");
        assert!(output.status.success(), "{statement}: {}", text(&output.stderr));
    };
    run(&server.url, "CREATE TABLESPACE q LOCATION 'paged:5%:anon:' WITH (size = '64MB', profile = 'infiniswap')");
    // What both are at the end, after a kill, is what they were altered to.
    run(&server.url, "ALTER TABLESPACE q SET (cache = '3MB', size = '96MB')");
    run(&server.url, "ALTER TABLESPACE far SET (size = '192MB')");
    let rows = "SELECT x AS a, 'row ' || x AS b FROM generate_series(1, 500000) AS t(x)";
    run(&server.url, &format!("CREATE TABLE kept TABLESPACE far AS {rows}"));
    run(&server.url, &format!("CREATE TABLE other TABLESPACE q AS {rows}"));
    // Every byte of them is in the books, and in nobody else's.
    assert_eq!(
        answer(
            &server.url,
            "SELECT sum(bytes_local + bytes_remote) = sum(bytes) FROM tidepool.memory WHERE purpose = 'main'"
        ),
        "t"
    );
    // What the books say of a tablespace is what the process has less without it.
    run(&server.url, "CREATE TABLESPACE q2 LOCATION 'paged:5%:anon:' WITH (size = '64MB')");
    run(
        &server.url,
        "CREATE TABLE digests TABLESPACE q2 AS SELECT md5(x::text) AS d FROM generate_series(1, 500000) AS t(x)",
    );
    let beside_heap = || {
        let heap = "SELECT sum(bytes) FROM tidepool.memory WHERE purpose LIKE 'process heap%'";
        resident_bytes(server.pid()) - answer(&server.url, heap).parse::<i64>().unwrap()
    };
    let held = answer(&server.url, "SELECT sum(bytes) FROM tidepool.memory WHERE tablespace = 'q2'");
    let held: i64 = held.parse().unwrap();
    assert!(held > 8 * MIB as i64, "{held}");
    let with = beside_heap();
    run(&server.url, "DROP TABLE digests");
    run(&server.url, "DROP TABLESPACE q2");
    let without = beside_heap();
    assert!((with - without - held).abs() < 6 * MIB as i64, "{with} {without} {held}");
    // Killed while pages come and go.
    let url = server.url.clone();
    let busy = std::thread::spawn(move || {
        let insert = "INSERT INTO kept SELECT -x, 'lost ' || x FROM generate_series(1, 3000) AS t(x)";
        while sql(&url, &["-c", insert], "").status.success() {}
    });
    while answer(&server.url, "SELECT count(*) > 3000 FROM kept WHERE a < 0") != "t" {}
    server.signal(libc::SIGKILL);
    assert!(!server.wait().0);
    busy.join().unwrap();

    let server = serve(&data, &far);
    let found = "SELECT location || ' ' || bytes_size / 1048576 FROM tidepool.tablespaces WHERE name = ";
    assert_eq!(answer(&server.url, &format!("{found}'q'")), "paged:3MB:anon: 96");
    assert_eq!(answer(&server.url, &format!("{found}'far'")), "paged:2MB:anon: 192");
    for table in ["kept", "other"] {
        let found =
            answer(&server.url, &format!("SELECT count(*) || ' ' || sum(a) || ' ' || max(b) FROM {table} WHERE a > 0"));
        assert_eq!(found, "500000 125000250000 row 99999", "{table}");
    }
    // Whole statements are there or are not.
    assert_eq!(answer(&server.url, "SELECT count(*) % 3000 FROM kept WHERE a < 0"), "0");
    server.signal(libc::SIGTERM);
    let (success, log) = server.wait();
    assert!(success, "{log}");
}
