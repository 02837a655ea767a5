//! What goes wrong gets the right error and disturbs nothing else.

use crate::raw::{self, Raw, field};
use crate::server::{MIB, PATIENCE, Setup, TestServer, code, connect};
use crate::witness::{Witness, memory, released};
use bytes::Bytes;
use futures::SinkExt;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidepool_database::Config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_postgres::Client;

async fn count(client: &Client, table: &str) -> i64 {
    client.query_one(&format!("SELECT count(*) FROM {table}"), &[]).await.unwrap().get(0)
}

/// The SQLSTATE a statement ends with, 00000 if well.
async fn outcome(client: &Client, sql: &str) -> String {
    match client.batch_execute(sql).await {
        Ok(()) => "00000".to_owned(),
        Err(error) => code(&error).to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn damaged_parquet_files() {
    let (_server, witness, client) = Witness::with_server(Setup::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let good = folder.path().join("good.parquet");
    let bad = folder.path().join("bad.parquet");
    client
        .batch_execute(&format!(
            "CREATE TABLE source AS SELECT x AS a, 'text ' || x AS b, (x * 1.25)::numeric(12,2) AS c, \
                 DATE '2020-01-01' + (x % 100)::int AS d, x % 3 = 0 AS e FROM generate_series(1, 3000) AS t(x); \
             COPY source TO '{}' WITH (FORMAT parquet); \
             CREATE TABLE target (a bigint, b text, c numeric(12,2), d date, e boolean)",
            good.display()
        ))
        .await
        .unwrap();
    let (tables, _) = memory(&client).await;
    let load = format!("COPY target FROM '{}' WITH (FORMAT parquet)", bad.display());
    let bytes = std::fs::read(&good).unwrap();

    for length in (0..bytes.len()).step_by(bytes.len() / 40).chain([1, 4, 8, bytes.len() - 1]) {
        std::fs::write(&bad, &bytes[..length]).unwrap();
        assert_eq!(outcome(&client, &load).await, "22P04", "cut to {length} of {}", bytes.len());
    }
    for foreign in [&b"a,b,c\n1,2,3\n"[..], b"PAR1", b"PAR1PAR1", b"PAR1\0\0\0\0\xff\xff\xff\x7fPAR1", &[0; 4096]] {
        std::fs::write(&bad, foreign).unwrap();
        assert_eq!(outcome(&client, &load).await, "22P04", "{foreign:?}");
    }
    let mut random = StdRng::seed_from_u64(3);
    let mut refused = 0;
    for round in 0..300 {
        let mut damaged = bytes.clone();
        // The footer says how the rest is read: half of the damage is there.
        let tail = bytes.len().min(1200);
        let at = match round % 2 {
            0 => random.random_range(0..bytes.len()),
            _ => random.random_range(bytes.len() - tail..bytes.len()),
        };
        damaged[at] ^= 1 << random.random_range(0..8);
        std::fs::write(&bad, &damaged).unwrap();
        let code = outcome(&client, &load).await;
        assert!(!code.is_empty() && !code.starts_with("XX"), "bit flipped in byte {at}: {code}");
        refused += u32::from(code != "00000");
        client.batch_execute("TRUNCATE target").await.unwrap();
    }
    assert!(refused > 50, "{refused}");
    released(&client, tables).await;
    std::fs::write(&bad, &bytes).unwrap();
    assert_eq!(outcome(&client, &load).await, "00000");
    assert_eq!(count(&client, "target").await, 3000);
    witness.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn bad_rows_are_placed() {
    let (server, client) = TestServer::start_connected().await;
    client.batch_execute("CREATE TABLE placed (a integer NOT NULL, b smallint, c varchar(3))").await.unwrap();
    let (tables, _) = memory(&client).await;
    let fine: String = (0..20_000).map(|n| format!("{n},1,x\n")).collect();
    for (rows, sqlstate, context) in [
        ("7,x,x\n", "22P02", "COPY placed, line 20001, column b: \"x\""),
        ("7,99999,x\n", "22003", "COPY placed, line 20001, column b: \"99999\""),
        ("7,1,long\n", "22001", "COPY placed, line 20001, column c: \"long\""),
        ("7,1\n", "22P04", "COPY placed, line 20001: \"7,1\""),
        ("7,1,x,y\n", "22P04", "COPY placed, line 20001: \"7,1,x,y\""),
        ("7,1,\"x\n", "22P04", "COPY placed, line 20002: \"7,1,\"x\n\""),
        ("7,1,x\n,2,y\n", "23502", "COPY placed, line 20002: \",2,y\""),
    ] {
        let sink = client.copy_in("COPY placed FROM STDIN WITH (FORMAT csv)").await.unwrap();
        futures::pin_mut!(sink);
        // The server may refuse the data before it has it all; what it says comes with the end.
        let _ = sink.send(Bytes::from(fine.clone())).await;
        let _ = sink.send(Bytes::copy_from_slice(rows.as_bytes())).await;
        let error = sink.finish().await.unwrap_err();
        assert_eq!(code(&error), sqlstate, "{rows:?}: {error:?}");
        assert_eq!(error.as_db_error().unwrap().where_(), Some(context), "{rows:?}");
    }
    assert_eq!(count(&client, "placed").await, 0);
    released(&client, tables).await;
    // Left out on request, and said so.
    let (mut raw, _) = Raw::start(server.address).await;
    raw.send(&raw::query("COPY placed FROM STDIN WITH (FORMAT csv, ON_ERROR ignore)")).await;
    raw.until(b'G').await;
    let data = raw::message(b'd', b"x,1,a\n7,1,b\n7,99999,c\n");
    let messages = raw.ask(&[data, raw::message(b'c', &[])].concat()).await;
    assert_eq!(raw::kinds(&messages), "NCZ", "{messages:?}");
    let notice = field(&messages[0].1, b'M').unwrap();
    assert_eq!(notice, "2 rows were skipped due to data type incompatibility");
    assert_eq!(messages[1].1, b"COPY 1\0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_load_that_does_not_fit() {
    let (_server, witness, client) = Witness::with_server(Setup::default()).await;
    client
        .batch_execute(
            "CREATE TABLESPACE narrow LOCATION 'anon:' WITH (size = '4MB'); CREATE TABLE wide (a text) TABLESPACE narrow",
        )
        .await
        .unwrap();
    let (tables, _) = memory(&client).await;
    // Nothing that an encoding could shorten much.
    let rows = |count: u32| -> String {
        let mut random = StdRng::seed_from_u64(5);
        (0..count).map(|_| format!("{:032x}{:032x}\n", random.random::<u128>(), random.random::<u128>())).collect()
    };
    for _ in 0..3 {
        let sink = client.copy_in("COPY wide FROM STDIN").await.unwrap();
        futures::pin_mut!(sink);
        for piece in rows(200_000).as_bytes().chunks(1 << 20) {
            if sink.send(Bytes::copy_from_slice(piece)).await.is_err() {
                break;
            }
        }
        let error = sink.finish().await.unwrap_err();
        assert_eq!(code(&error), "53200", "{error:?}");
        assert!(error.as_db_error().unwrap().message().contains("narrow"), "{error:?}");
        released(&client, tables).await;
        assert_eq!(count(&client, "wide").await, 0);
    }
    // What it held is free again.
    let sink = client.copy_in("COPY wide FROM STDIN").await.unwrap();
    futures::pin_mut!(sink);
    sink.send(Bytes::from(rows(20_000))).await.unwrap();
    assert_eq!(sink.finish().await.unwrap(), 20_000);
    assert_eq!(count(&client, "wide").await, 20_000);
    witness.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tables_move_while_they_are_read() {
    let (server, client) = TestServer::start_connected().await;
    client
        .batch_execute(
            "CREATE TABLE moving AS SELECT x AS id, 'payload ' || x % 1000 AS payload, (x % 7)::int AS extra \
                 FROM generate_series(1, 150000) AS t(x)",
        )
        .await
        .unwrap();
    client.batch_execute("CALL tidepool.merge('moving')").await.unwrap();
    client.batch_execute("INSERT INTO moving VALUES (0, 'payload 0', 0)").await.unwrap();
    let (tables, _) = memory(&client).await;
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let (config, stop) = (server.config(), stop.clone());
            tokio::spawn(async move {
                let client = connect(&config).await.unwrap();
                let mut rounds = 0;
                while !stop.load(Ordering::Relaxed) {
                    let sql =
                        "SELECT count(*), sum(id)::bigint, sum(extra)::bigint, min(payload), max(payload) FROM moving";
                    let row = client.query_one(sql, &[]).await.unwrap();
                    let sums = (row.get::<_, i64>(0), row.get::<_, i64>(1), row.get::<_, i64>(2));
                    assert_eq!(sums, (150_001, 11_250_075_000, 449_998));
                    assert_eq!((row.get::<_, &str>(3), row.get::<_, &str>(4)), ("payload 0", "payload 999"));
                    rounds += 1;
                }
                rounds
            })
        })
        .collect();
    let start = Instant::now();
    let mut moves = 0;
    while start.elapsed() < Duration::from_secs(5) || moves < 4 {
        for target in ["far", "near"] {
            client.batch_execute(&format!("ALTER TABLE moving SET TABLESPACE {target}")).await.unwrap();
            let column = format!("ALTER TABLE moving ALTER COLUMN payload SET TABLESPACE {target}");
            client.batch_execute(&column.replace(target, if target == "far" { "near" } else { "far" })).await.unwrap();
            let row = client
                .query_one(
                    "SELECT string_agg(DISTINCT column_name || ' ' || tablespace, ', ' ORDER BY column_name || ' ' || tablespace) \
                         FROM tidepool.tables WHERE table_name = 'moving' AND column_name IN ('id', 'payload')",
                    &[],
                )
                .await
                .unwrap();
            let other = if target == "far" { "near" } else { "far" };
            assert_eq!(row.get::<_, &str>(0), format!("id {target}, payload {other}"));
            moves += 2;
        }
    }
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        assert!(reader.await.unwrap() > 0);
    }
    client.batch_execute("ALTER TABLE moving SET TABLESPACE near").await.unwrap();
    // Nothing of the copies is left.
    released(&client, tables).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clients_that_vanish_leave_nothing() {
    let (server, witness, client) = Witness::with_server(Setup::default()).await;
    client.batch_execute("CREATE TABLE vanished (a bigint, b text)").await.unwrap();
    let (tables, _) = memory(&client).await;
    let rows: Vec<u8> = (0..100_000).flat_map(|n| format!("{n}\tsome text for row {n}\n").into_bytes()).collect();
    for round in 0..8 {
        let (mut raw, _) = Raw::start(server.address).await;
        match round % 4 {
            // In a transaction, after a COPY that succeeded in it.
            0 => {
                raw.ask(&raw::query("BEGIN")).await;
                raw.send(&raw::query("COPY vanished FROM STDIN")).await;
                raw.until(b'G').await;
                raw.ask(&[raw::message(b'd', &rows), raw::message(b'c', &[])].concat()).await;
            }
            // Within a COPY, within a row.
            1 => {
                raw.send(&raw::query("COPY vanished FROM STDIN")).await;
                raw.until(b'G').await;
                raw.send(&raw::message(b'd', &rows[..rows.len() - 3])).await;
            }
            // While an aggregate over many groups is built, which has a heap.
            2 => {
                let sql =
                    "SELECT x % 3000000, count(*) FROM generate_series(1, 30000000) AS t(x) GROUP BY 1 ORDER BY 2, 1";
                raw.send(&raw::query(sql)).await;
                while memory(&client).await.1 < 8 << 20 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            // In the middle of an answer, which it does not read.
            _ => {
                raw.send(&raw::query("COPY (SELECT * FROM generate_series(1, 10000000)) TO STDOUT")).await;
                raw.until(b'd').await;
            }
        }
        drop(raw);
    }
    let start = Instant::now();
    loop {
        let row = client.query_one("SELECT count(*) FROM pg_stat_activity WHERE state IS NOT NULL", &[]).await.unwrap();
        // The witness and the client that asks.
        if row.get::<_, i64>(0) <= 2 {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "connections stay");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    released(&client, tables).await;
    assert_eq!(count(&client, "vanished").await, 0);
    witness.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nesting_has_an_end() {
    let (_server, witness, client) = Witness::with_server(Setup::default()).await;
    let depth = 10_000;
    let repeated =
        |open: &str, inner: &str, close: &str| format!("{}{inner}{}", open.repeat(depth), close.repeat(depth));
    for sql in [
        format!("SELECT {}", repeated("(", "1", ")")),
        format!("SELECT {}", repeated("abs(", "1", ")")),
        format!("SELECT {}", repeated("CASE WHEN true THEN ", "1", " END")),
        format!("SELECT {}", repeated("NOT ", "true", "")),
        format!("SELECT {}", repeated("- ", "1", "")),
        format!("SELECT {}", repeated("CAST(", "1", " AS int)")),
        format!("SELECT {}", repeated("ARRAY[", "1", "]")),
        format!("SELECT * FROM {}", repeated("(SELECT * FROM ", "witness", ") t")),
        format!("SELECT {}", repeated("(SELECT ", "1", ")")),
        repeated("(", "SELECT 1", ")"),
        format!("SELECT 1{}", " UNION ALL SELECT 1".repeat(depth)),
        format!("EXPLAIN SELECT {}", repeated("(", "1", ")")),
        format!("CREATE TABLE deep (a int DEFAULT {})", repeated("(", "1", ")")),
    ] {
        let shown = &sql[..40];
        let code = outcome(&client, &sql).await;
        // What is no more than long may as well be answered.
        assert!(code == "54001" || code == "00000", "{shown}…: {code}");
        // Prepared, too: by another way to the planner.
        if let Err(error) = client.prepare(&sql).await {
            assert_eq!(crate::server::code(&error), "54001", "{shown}…");
        }
    }
    assert_eq!(outcome(&client, &format!("SELECT {}", repeated("(", "1", ")"))).await, "54001");
    // Long but flat.
    let sum = (0..5_000).map(|n| n.to_string()).collect::<Vec<_>>().join(" + ");
    let code = outcome(&client, &format!("SELECT {sum}")).await;
    assert!(code == "00000" || code == "54001", "{code}");
    let either = (1..=300).map(|n| format!("x = {n}")).collect::<Vec<_>>().join(" OR ");
    let row = client.query_one(&format!("SELECT count(*) FROM witness WHERE {either}"), &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 300);
    witness.finish().await;
}

/// A plausible conversation after start-up: whole messages of every type, some of them good.
fn conversation(random: &mut StdRng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..random.random_range(1..12) {
        let portal = ["", "p", "q"][random.random_range(0..3)];
        let statement = ["", "s", "t"][random.random_range(0..3)];
        let sql = [
            "SELECT 1",
            "SELECT $1::int + 1",
            "SELECT x FROM witness ORDER BY x",
            "BEGIN",
            "COMMIT",
            "ROLLBACK",
            "SELECT 1/0",
            "COPY fuzzed FROM STDIN",
            "COPY fuzzed FROM STDIN WITH (FORMAT binary)",
            "COPY witness TO STDOUT WITH (FORMAT binary)",
            "INSERT INTO fuzzed VALUES (1, 'x')",
            "DECLARE c CURSOR FOR SELECT x FROM witness",
            "FETCH 5 FROM c",
            "SELEKT",
            "",
        ][random.random_range(0..15)];
        let mut message = match random.random_range(0..14) {
            0 | 1 => raw::query(sql),
            2 | 3 => raw::parse(statement, sql),
            4 | 5 => raw::bind(portal, statement),
            6 | 7 => raw::execute(portal, random.random_range(0..3)),
            8 => raw::message(b'D', &[&b"SP"[random.random_range(0..2)..][..1], portal.as_bytes(), b"\0"].concat()),
            9 => raw::message(b'C', &[&b"SP"[random.random_range(0..2)..][..1], portal.as_bytes(), b"\0"].concat()),
            10 => raw::message(b'd', b"1\tx\n2"),
            11 => raw::message([b'c', b'H', b'S'][random.random_range(0..3)], &[]),
            12 => raw::message(b'f', b"enough\0"),
            _ => raw::message(b"pFX~"[random.random_range(0..4)], &random.random::<[u8; 8]>()),
        };
        // Damage: bits, and lengths that no longer fit.
        match random.random_range(0..6) {
            0 => {
                let at = random.random_range(0..message.len());
                message[at] ^= 1 << random.random_range(0..8);
            }
            1 => message.truncate(random.random_range(0..message.len())),
            2 => message.push(random.random()),
            _ => (),
        }
        bytes.extend_from_slice(&message);
        if random.random_range(0..3) == 0 {
            bytes.extend_from_slice(&raw::sync());
        }
    }
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn damaged_conversations() {
    let (server, witness, client) = Witness::with_server(Setup::default()).await;
    client.batch_execute("CREATE TABLE fuzzed (a int, b text)").await.unwrap();
    let mut random = StdRng::seed_from_u64(11);
    for round in 0..400 {
        let mut bytes = conversation(&mut random);
        let (mut raw, _) = Raw::start(server.address).await;
        if round % 5 == 0 {
            // All of it within a COPY.
            raw.send(&raw::query("COPY fuzzed FROM STDIN WITH (FORMAT binary)")).await;
            raw.until(b'G').await;
            bytes.splice(0..0, raw::message(b'd', b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0"));
        }
        // The server may well hang up before it has read it all.
        let _ = raw.stream.write_all(&bytes).await;
        let _ = raw.stream.shutdown().await;
        let mut answer = Vec::new();
        let read = raw.stream.read_to_end(&mut answer);
        let _ = tokio::time::timeout(PATIENCE, read).await.expect("the connection ends");
        let internal = answer.windows(6).any(|window| window == b"CXX000");
        assert!(!internal, "round {round}: {bytes:?}: {}", String::from_utf8_lossy(&answer));
    }
    // Start-up packets, too.
    let packet =
        raw::startup((3, 0), &[("user", "tidepool"), ("database", "tidepool"), ("options", "-c lock_timeout=1")]);
    for _ in 0..300 {
        let mut damaged = packet.clone();
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..damaged.len());
            damaged[at] ^= 1 << random.random_range(0..8);
        }
        damaged.truncate(random.random_range(1..=damaged.len()));
        let mut raw = Raw::open(server.address).await;
        let _ = raw.stream.write_all(&damaged).await;
        let _ = raw.stream.shutdown().await;
        let mut answer = Vec::new();
        let read = raw.stream.read_to_end(&mut answer);
        let _ = tokio::time::timeout(PATIENCE, read).await.expect("the connection ends");
    }
    assert_eq!(outcome(&client, "INSERT INTO fuzzed VALUES (1, 'x')").await, "00000", "no lock stays behind");
    witness.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn slow_clients_take_only_their_own_time() {
    let server = TestServer::start().await;
    let witness = Witness::start(&server).await;
    let question = raw::query("SELECT 42");
    let answered = Arc::new(tokio::sync::Semaphore::new(0));
    let slow: Vec<_> = (0..20)
        .map(|_| {
            let (address, question, answered) = (server.address, question.clone(), answered.clone());
            tokio::spawn(async move {
                let mut raw = Raw::open(address).await;
                let packet = raw::startup((3, 0), &[("user", "tidepool"), ("database", "tidepool")]);
                for byte in packet {
                    raw.send(&[byte]).await;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                raw.until(b'Z').await;
                let (last, most) = question.split_last().unwrap();
                for byte in most {
                    raw.send(&[*byte]).await;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                // No sooner than another client has had its answer.
                answered.acquire().await.unwrap().forget();
                raw.send(&[*last]).await;
                let messages = raw.until(b'Z').await;
                assert!(messages.iter().any(|(kind, body)| *kind == b'D' && body.ends_with(b"42")));
            })
        })
        .collect();
    let client = server.connect().await;
    assert_eq!(client.query_one("SELECT 1::bigint", &[]).await.unwrap().get::<_, i64>(0), 1);
    answered.add_permits(slow.len());
    for client in slow {
        client.await.unwrap();
    }
    witness.finish().await;
}

/// A statement that has no room anywhere fails alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_statement_over_budget() {
    let config = Config::in_memory(24 * MIB, 24 * MIB);
    let (_server, witness, client) = Witness::with_server(Setup { config: Some(config), ..Setup::default() }).await;
    let (tables, _) = memory(&client).await;
    // In no order that would let groups go as they come.
    let sql = "SELECT count(*) FROM (SELECT x::bigint * 7919 % 5000011 AS y, count(*) FROM generate_series(1, 5000000) AS t(x) GROUP BY 1) g";
    for _ in 0..3 {
        let error = client.simple_query(sql).await.unwrap_err();
        assert_eq!(code(&error), "53200", "{error:?}");
        released(&client, tables).await;
    }
    witness.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn binary_copy() {
    let (server, client) = TestServer::start_connected().await;
    client
        .batch_execute(
            "CREATE TABLE typed (a boolean, b smallint, c integer, d bigint, e numeric(20,4), f real, g double precision, \
                 h text, i varchar(10), j char(4), k date, l timestamp, m timestamptz, n interval, o bytea, p uuid, q json); \
             INSERT INTO typed VALUES \
                 (true, -7, 7, 5000000000, -12345.6789, 1.5, 1e-300, 'text', 'vc', 'ch', '2020-02-29', \
                  '2020-02-29 01:02:03.456789', '1999-12-31 23:59:59+02', '1 year -2 days 03:04:05', '\\x00ff', \
                  'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{\"a\": [1]}'), \
                 (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL); \
             CREATE TABLE typed_back AS SELECT * FROM typed LIMIT 0",
        )
        .await
        .unwrap();
    let (mut raw, _) = Raw::start(server.address).await;
    let messages = raw.ask(&raw::query("COPY typed TO STDOUT WITH (FORMAT binary)")).await;
    assert_eq!(raw::kinds(&messages), "HdddcCZ");
    // Binary as a whole, and each of seventeen columns.
    assert_eq!(messages[0].1, [&[1, 0, 17][..], &[0, 1].repeat(17)].concat());
    // As PostgreSQL sends it: the header with the first row, the trailer by itself.
    assert!(messages[1].1.starts_with(b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0\0\x11"));
    assert_eq!(messages[3].1, [0xff, 0xff]);
    raw.send(&raw::query("COPY typed_back FROM STDIN WITH (FORMAT binary)")).await;
    assert_eq!(raw.until(b'G').await[0].1[0], 1);
    let data: Vec<u8> = messages[1..4].iter().flat_map(|(_, body)| raw::message(b'd', body)).collect();
    let loaded = raw.ask(&[data, raw::message(b'c', &[])].concat()).await;
    assert_eq!(raw::kinds(&loaded), "CZ", "{loaded:?}");
    let text = |sql: &'static str| {
        let client = &client;
        async move { client.simple_query(sql).await.map(|rows| format!("{rows:?}")).unwrap() }
    };
    let before = text("SELECT * FROM typed ORDER BY a").await.replace("typed", "");
    assert_eq!(text("SELECT * FROM typed_back ORDER BY a").await.replace("typed_back", ""), before);
    // Nothing at all is a header and a trailer.
    let messages = raw.ask(&raw::query("COPY BINARY (SELECT 1 WHERE false) TO STDOUT")).await;
    assert_eq!(field(&messages[0].1, b'C').as_deref(), Some("42601"));
    let messages = raw.ask(&raw::query("COPY (SELECT 1 WHERE false) TO STDOUT BINARY")).await;
    assert_eq!(raw::kinds(&messages), "HdcCZ");
    // To a file of the server's and back.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("typed.bin");
    let shown = path.display();
    client
        .batch_execute(&format!(
            "COPY BINARY typed TO '{shown}'; TRUNCATE typed_back; COPY typed_back FROM '{shown}' WITH (FORMAT binary)"
        ))
        .await
        .unwrap();
    assert_eq!(text("SELECT * FROM typed_back ORDER BY a").await.replace("typed_back", ""), before);
    cut_and_refused(&client, &path).await;
}

async fn cut_and_refused(client: &Client, path: &Path) {
    let bytes = std::fs::read(path).unwrap();
    for length in (0..bytes.len() - 2).step_by(7) {
        std::fs::write(path, &bytes[..length]).unwrap();
        let sql = format!("COPY typed_back FROM '{}' WITH (FORMAT binary)", path.display());
        let code = outcome(client, &sql).await;
        // Between rows the trailer may be missing.
        assert!(code == "22P04" || code == "00000" && length > 19, "cut to {length}: {code}");
    }
}
