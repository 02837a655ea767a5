//! Tablespaces that change, and tables that move, while statements run.

use crate::server::{MIB, PATIENCE, Setup, TestServer, code};
use crate::witness::{memory, released};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidepool_database::Config;
use tidepool_device::{Profile, paged};
use tokio_postgres::{Client, SimpleQueryMessage};

/// The SQLSTATE a statement ends with, 00000 if well.
async fn outcome(client: &Client, sql: &str) -> String {
    match client.batch_execute(sql).await {
        Ok(()) => "00000".to_owned(),
        Err(error) => code(&error).to_owned(),
    }
}

async fn size(client: &Client, tablespace: &str) -> i64 {
    let row = client.query_one("SELECT bytes_size FROM tidepool.tablespaces WHERE name = $1", &[&tablespace]).await;
    row.unwrap().get(0)
}

/// Resident bytes in `range` of this process, from the kernel's own books.
fn resident(range: &Range<usize>) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut inside, mut bytes) = (false, 0);
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or("");
        if let Some((start, end)) = first.split_once('-')
            && let (Ok(start), Ok(_)) = (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16))
        {
            inside = range.contains(&start);
        } else if inside && first == "Rss:" {
            bytes += words.next().unwrap().parse::<u64>().unwrap() * 1024;
        }
    }
    bytes
}

/// A table moves to a device on which writing it takes seconds. Others read it, and write elsewhere, as if nothing were.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_do_not_wait_for_a_move() {
    let mut config = Config::in_memory(256 * MIB, 256 * MIB);
    config.profiles.push(Profile {
        name: "slow".to_owned(),
        write_gb_per_s: 0.004,
        ..Profile::preset("cxl-asic").unwrap()
    });
    config.profiles[0].mixed_gb_per_s = Default::default();
    let server = TestServer::with(Setup { config: Some(config), ..Setup::default() }).await;
    let client = server.connect().await;
    client
        .batch_execute(
            "CREATE TABLESPACE slow LOCATION 'anon:' WITH (size = '128MB', profile = 'slow'); \
             CREATE TABLE moving AS SELECT x AS a, md5(x::text) AS b FROM generate_series(1, 250000) AS t(x); \
             CREATE TABLE other (a bigint)",
        )
        .await
        .unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let asking = |sql: &'static str| {
        let (stop, config) = (stop.clone(), server.config());
        tokio::spawn(async move {
            let client = crate::server::connect(&config).await.unwrap();
            let mut asked = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let start = Instant::now();
                client.batch_execute(sql).await.unwrap();
                asked.push((start, Instant::now()));
            }
            asked
        })
    };
    let reader = asking("SELECT count(*), max(a) FROM moving WHERE a % 1000 = 7");
    let writer = asking("INSERT INTO other VALUES (1)");
    let start = Instant::now();
    client.batch_execute("ALTER TABLE moving SET TABLESPACE slow").await.unwrap();
    let end = Instant::now();
    stop.store(true, Ordering::Relaxed);
    for (what, asking) in [("reads", reader), ("writes", writer)] {
        let asked = asking.await.unwrap();
        let meanwhile = asked.iter().filter(|(begun, ended)| *begun > start && *ended < end).count();
        println!("a move of {:?}: {meanwhile} {what} began and ended meanwhile", end - start);
        assert!(meanwhile > 5, "{meanwhile} {what} of {}", asked.len());
    }
    let row = client.query_one("SELECT count(*), sum(a)::bigint FROM moving", &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (250_000, 250_000 * 250_001 / 2));
}

/// False, with the reason printed, where the kernel refuses userfaultfd(2).
fn paging_is_available() -> bool {
    paged::available().inspect_err(|error| tidepool_base::cannot_test(error)).is_ok()
}

/// What a statement under way holds is waited for, as long as it may be.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn shrinking_waits_for_heaps_and_gives_up() {
    shrink_beneath_a_heap("anon:").await;
    if paging_is_available() {
        shrink_beneath_a_heap("paged:2MB:anon:").await;
    }
}

async fn shrink_beneath_a_heap(location: &str) {
    let (server, client) = TestServer::start_connected().await;
    client
        .batch_execute(&format!(
            "CREATE TABLESPACE work LOCATION '{location}' WITH (size = '128MB'); \
             CREATE TABLE source AS SELECT x AS a, md5(x::text) AS b FROM generate_series(1, 200000) AS t(x)",
        ))
        .await
        .unwrap();
    let holder = server.connect().await;
    // Sorted, and held until it is closed.
    holder
        .batch_execute(
            "SET temp_tablespaces = work, near; BEGIN; \
             DECLARE held CURSOR FOR SELECT a, b FROM source ORDER BY b; FETCH 1 FROM held",
        )
        .await
        .unwrap();
    let held: i64 = client
        .query_one("SELECT bytes FROM tidepool.memory WHERE tablespace = 'work' AND purpose = 'heap'", &[])
        .await
        .unwrap()
        .get(0);
    assert!(held > 8 << 20, "{held}");
    let error =
        client.batch_execute("SET lock_timeout = '300ms'; ALTER TABLESPACE work SET (size = '4MB')").await.unwrap_err();
    assert_eq!(code(&error), "55P03");
    assert!(error.as_db_error().unwrap().detail().unwrap().contains("still used by statements"), "{error:?}");
    assert_eq!(size(&client, "work").await, 128 << 20);
    // While one change waits, another is refused, and a cancel ends it.
    let other = server.connect().await;
    let cancel = other.cancel_token();
    let waiting = tokio::spawn(async move { outcome(&other, "ALTER TABLESPACE work SET (size = '4MB')").await });
    while size(&client, "work").await != 4 << 20 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(outcome(&client, "ALTER TABLESPACE work SET (size = '64MB')").await, "55006");
    cancel.cancel_query(tokio_postgres::NoTls).await.unwrap();
    assert_eq!(waiting.await.unwrap(), "57014");
    assert_eq!(size(&client, "work").await, 128 << 20);
    let rest = holder.simple_query("FETCH ALL FROM held").await.unwrap();
    assert_eq!(rest.iter().filter(|message| matches!(message, SimpleQueryMessage::Row(_))).count(), 199_999);
    let shrinking = tokio::spawn({
        let client = server.connect().await;
        async move { outcome(&client, "ALTER TABLESPACE work SET (size = '4MB')").await }
    });
    while size(&client, "work").await != 4 << 20 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    holder.batch_execute("COMMIT").await.unwrap();
    assert_eq!(shrinking.await.unwrap(), "00000");
    let space = server.database.tablespaces().get("work").unwrap();
    assert!(resident(&space.address_range()) <= 4 << 20);
}

/// Memory of what is dropped or moved is the system's again, and the books say what the kernel does.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn memory_goes_back_at_once() {
    fill_and_empty("anon:, anon:").await;
    if paging_is_available() {
        fill_and_empty("paged:64MB:anon:").await;
    }
}

async fn fill_and_empty(location: &str) {
    let (server, client) = TestServer::start_connected().await;
    client.batch_execute(&format!("CREATE TABLESPACE room LOCATION '{location}' WITH (size = '128MB')")).await.unwrap();
    let space = server.database.tablespaces().get("room").unwrap();
    let fill = "CREATE TABLE filled TABLESPACE room AS SELECT x AS a, md5(x::text) AS b FROM generate_series(1, 500000) AS t(x)";
    for gone in [
        "DROP TABLE filled",
        "TRUNCATE filled; DROP TABLE filled",
        "ALTER TABLE filled SET TABLESPACE near; DROP TABLE filled",
    ] {
        client.batch_execute(fill).await.unwrap();
        let (full, counted) = (space.usage().resident_bytes, resident(&space.address_range()));
        assert!(full > 8 << 20 && counted > 8 << 20 && counted <= full, "{full} {counted}");
        client.batch_execute(gone).await.unwrap();
        let start = Instant::now();
        // The last tasks of a statement may still be letting go.
        while space.usage().used_bytes > 0 && start.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let (left, counted) = (space.usage().resident_bytes, resident(&space.address_range()));
        assert!(left <= 4 << 20 && counted <= left, "{gone}: {left} {counted}");
    }
    client.batch_execute(fill).await.unwrap();
    client.batch_execute("ALTER TABLESPACE room SET (size = '64MB')").await.unwrap();
    let usage = space.usage();
    assert!(resident(&space.address_range()) <= usage.resident_bytes && usage.resident_bytes <= 64 << 20, "{usage:?}");
    let row = client.query_one("SELECT count(*), sum(a)::bigint FROM filled", &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (500_000, 500_000 * 500_001 / 2));
}

const ROWS: i64 = 200_000;

/// Queries with their answers, as text.
fn questions() -> Vec<(String, String)> {
    let half = ROWS * (ROWS + 1) / 2;
    let mut order: Vec<(i64, i64)> = (1..=ROWS).map(|a| ((a * 7919) % 200_003, a)).collect();
    order.sort_unstable();
    vec![
        ("SELECT count(*) || ' ' || sum(a) FROM numbers".to_owned(), format!("{ROWS} {half}")),
        ("SELECT count(DISTINCT c)::text FROM numbers".to_owned(), ROWS.to_string()),
        (
            format!(
                "SELECT count(*)::text FROM (SELECT b FROM numbers GROUP BY b HAVING count(*) = {}) AS g",
                ROWS / 1000
            ),
            "1000".to_owned(),
        ),
        (
            "SELECT count(*) || ' ' || sum(p.v) FROM numbers AS n JOIN parts AS p ON n.b = p.k".to_owned(),
            format!("{ROWS} {}", 2 * (ROWS / 1000) * 999 * 500),
        ),
        (
            "SELECT a::text FROM numbers ORDER BY (a * 7919) % 200003, a LIMIT 1 OFFSET 150000".to_owned(),
            order[150_000].1.to_string(),
        ),
        ("SELECT max(c) || min(c) FROM numbers WHERE a > 199990".to_owned(), "row 200000row 199991".to_owned()),
        ("SELECT v::text FROM parts WHERE k = 777".to_owned(), "1554".to_owned()),
    ]
}

fn environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Codes that a change may be refused with: no room, a wait that took too long, nothing to drop, too many or too large.
const REFUSALS: [&str; 9] = ["53200", "53100", "55P03", "42704", "55000", "54000", "22023", "55006", "40P01"];

struct Changer {
    client: Client,
    /// Those that change, besides near.
    spaces: Vec<&'static str>,
    random: StdRng,
    scratch: String,
    done: BTreeMap<(&'static str, String), u64>,
}

impl Changer {
    async fn change(&mut self) {
        let random = &mut self.random;
        let spaces = self.spaces.as_slice();
        let space = spaces[random.random_range(0..spaces.len())];
        let locations = ["anon:".to_owned(), format!("file:{}/a", self.scratch), format!("file:{}/b", self.scratch)];
        let location = &locations[random.random_range(0..3)];
        let targets = || ["near"].iter().chain(spaces).copied();
        let target = targets().nth(random.random_range(0..targets().count())).unwrap_or("near");
        let (kind, sql) = match random.random_range(0..11) {
            0 if space == "paged" => {
                let (cache, mib) = (random.random_range(1..20), random.random_range(16..128));
                let size = if random.random_bool(0.5) { format!(", size = '{mib}MB'") } else { String::new() };
                let unit = ["MB", "%"][random.random_range(0..2)];
                ("cache", format!("ALTER TABLESPACE paged SET (cache = '{cache}{unit}'{size})"))
            }
            0..=2 => {
                let mib = random.random_range(16..256);
                ("size", format!("ALTER TABLESPACE {space} SET (size = '{mib}MB')"))
            }
            3 => ("near", format!("ALTER TABLESPACE near SET (size = '{}MB')", random.random_range(300..600))),
            4 | 5 => {
                let weight = random.random_range(1..4);
                ("add", format!("ALTER TABLESPACE {space} ADD LOCATION '{location}*{weight}'"))
            }
            6 => ("drop", format!("ALTER TABLESPACE {space} DROP LOCATION '{location}'")),
            7 | 8 => {
                let table = ["numbers", "parts", "grown"][random.random_range(0..3)];
                ("move", format!("ALTER TABLE {table} SET TABLESPACE {target}"))
            }
            9 => {
                let index = ["parts_key", "grown_a"][random.random_range(0..2)];
                ("index", format!("ALTER INDEX {index} SET TABLESPACE {target}"))
            }
            _ => ("column", format!("ALTER TABLE numbers ALTER COLUMN c SET TABLESPACE {target}")),
        };
        let code = outcome(&self.client, &sql).await;
        let paged_part = space == "paged" && matches!(kind, "add" | "drop") && code == "0A000";
        assert!(code == "00000" || paged_part || REFUSALS.contains(&code.as_str()), "{sql}: {code}");
        *self.done.entry((kind, code)).or_default() += 1;
    }
}

/// `TIDEPOOL_SOAK_SECONDS=600 TIDEPOOL_SOAK_SEED=7 cargo test --release -p tidepool --test suite -- soak --nocapture`
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn soak() {
    let (seconds, seed) = (environment("TIDEPOOL_SOAK_SECONDS", 5), environment("TIDEPOOL_SOAK_SEED", 1));
    let shm = Path::new("/dev/shm");
    let scratch = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }.unwrap();
    let mut config = Config::in_memory(512 * MIB, 128 * MIB);
    config.temp_tablespaces = ["pool", "far", "near"].map(str::to_owned).to_vec();
    config.tablespaces.push(tidepool_tablespace::TablespaceConfig {
        name: "pool".to_owned(),
        size_bytes: Some(64 * MIB),
        ..config.near.clone()
    });
    let mut spaces = vec!["far", "pool"];
    if paging_is_available() {
        spaces.push("paged");
        config.temp_tablespaces.insert(1, "paged".to_owned());
        config.tablespaces.push(tidepool_tablespace::TablespaceConfig {
            name: "paged".to_owned(),
            location: "paged:4MB:anon:".parse().unwrap(),
            size_bytes: Some(64 * MIB),
            ..config.near.clone()
        });
    }
    let server = TestServer::with(Setup { config: Some(config), ..Setup::default() }).await;
    let client = server.connect().await;
    client
        .batch_execute(&format!(
            "CREATE TABLE numbers TABLESPACE far AS SELECT x AS a, x % 1000 AS b, 'row ' || x AS c \
                 FROM generate_series(1, {ROWS}) AS t(x); \
             CREATE TABLE parts TABLESPACE pool AS SELECT x AS k, 2 * x AS v FROM generate_series(0, 999) AS t(x); \
             ALTER TABLE parts ADD CONSTRAINT parts_key PRIMARY KEY (k); \
             CREATE TABLE grown (a bigint, b text) TABLESPACE pool; \
             CREATE UNIQUE INDEX grown_a ON grown (a) TABLESPACE far; SET lock_timeout = '5s'"
        ))
        .await
        .unwrap();

    let deadline = Instant::now() + Duration::from_secs(seconds);
    let asked = Arc::new(AtomicU64::new(0));
    let mut sessions = Vec::new();
    for session in 0..3u64 {
        let (config, asked, questions) = (server.config(), asked.clone(), questions());
        sessions.push(tokio::spawn(async move {
            let client = crate::server::connect(&config).await.unwrap();
            let mut random = StdRng::seed_from_u64(seed.wrapping_mul(1000).wrapping_add(session));
            while Instant::now() < deadline {
                let (question, answer) = &questions[random.random_range(0..questions.len())];
                let row = client.query_one(question.as_str(), &[]).await;
                let row = row.unwrap_or_else(|error| panic!("seed {seed}: {question}: {error:?}"));
                assert_eq!(&row.get::<_, String>(0), answer, "seed {seed}: {question}");
                asked.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    sessions.push(tokio::spawn({
        let config = server.config();
        async move {
            let client = crate::server::connect(&config).await.unwrap();
            let mut rows = 0i64;
            while Instant::now() < deadline {
                let sql = format!(
                    "INSERT INTO grown SELECT x, md5(x::text) FROM generate_series({}, {}) AS t(x)",
                    rows + 1,
                    rows + 500
                );
                match outcome(&client, &sql).await.as_str() {
                    "00000" => rows += 500,
                    // Where it lies there is no room at the moment.
                    "53200" | "53100" => {}
                    code => panic!("seed {seed}: {sql}: {code}"),
                }
                let row = client.query_one("SELECT count(*), coalesce(sum(a), 0)::bigint FROM grown", &[]).await;
                let row = row.unwrap_or_else(|error| panic!("seed {seed}: {error:?}"));
                assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (rows, rows * (rows + 1) / 2), "seed {seed}");
                if rows >= 300_000 {
                    client.batch_execute("TRUNCATE grown").await.unwrap();
                    rows = 0;
                }
            }
        }
    }));
    let mut changer = Changer {
        client,
        spaces,
        random: StdRng::seed_from_u64(seed),
        scratch: scratch.path().display().to_string(),
        done: BTreeMap::new(),
    };
    while Instant::now() < deadline {
        changer.change().await;
    }
    for session in sessions {
        session.await.unwrap();
    }
    println!("soak, seed {seed}: {} answers right; changes: {:?}", asked.load(Ordering::Relaxed), changer.done);

    // At the end memory adds up, and goes back.
    let client = changer.client;
    for (question, answer) in questions() {
        assert_eq!(client.query_one(question.as_str(), &[]).await.unwrap().get::<_, String>(0), answer);
    }
    assert!(memory(&client).await.0 > 0);
    client.batch_execute("DROP TABLE numbers, parts, grown").await.unwrap();
    released(&client, 0).await;
    for space in server.database.tablespaces().list() {
        space.trim(0).unwrap();
        let usage = space.usage();
        let counted = resident(&space.address_range());
        // A statement's heap may be there, and shared pages of files that nobody touched are not.
        assert!(counted <= usage.resident_bytes, "{}: {counted} {usage:?}", space.name());
        assert!(usage.resident_bytes <= 4 << 20, "{}: {usage:?}", space.name());
    }
    let sum: i64 =
        client.query_one("SELECT sum(bytes_resident)::bigint FROM tidepool.tablespaces", &[]).await.unwrap().get(0);
    assert!(sum <= 8 << 20, "{sum}");
}
